"""Where a figure comes from: the code, the commit, the environment and the machine.

The code of an experiment is the hash of every function, class and constant of `lapace` and
`benchmarks` that its function names, directly or not, without comments, docstrings and the words of
errors and warnings. So figures of baselines do not depend on the search that only ours uses. Nobody
has to raise a number: a figure made by other code is marked wherever it is shown.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import lapace

# What measures an experiment, or one of its sides; others measure as E1 does.
STARTS = {
    "grid": "readings.measure", "e2": "e2._ours", "e2 baselines": "e2._of_baseline",
    "e3": "e3.measure", "e4": "e4.measure", "clusters": "e2.sweep",
    "tuning": "e2._of_baseline", "privacy": "privacy.measure", "e5": "e5.main_e5",
}  # fmt: skip
PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas", "torch", "dice-ml")
ROOTS = ("lapace", "benchmarks")
# Settings are hashed apart, and how figures are shown does not change them.
NOT_MEASURING = tuple(
    f"benchmarks.{name}" for name in ("jobs", "plan", "provenance", "figures", "drawing")
)


@dataclass(frozen=True)
class Origin:
    """What made a job's figures.

    Attributes:
        code: Hash of the code used.
        commit: The commit, with `+` where files had changed since.
        environment: Versions of Python and packages.
        machine: Cores and accelerator.
    """

    code: str = ""
    commit: str = ""
    environment: str = ""
    machine: str = ""

    @classmethod
    def here(cls, experiment: str, recipe: str = "") -> Origin:
        """Returns what makes an experiment's figures of one side now."""
        return cls(code_of(experiment, recipe), _commit(), environment(), _machine())


@cache
def _commit() -> str:
    """Returns the commit: of the checkout, or as `BENCHMARK_COMMIT` says where there is none."""
    if told := os.environ.get("BENCHMARK_COMMIT"):
        return told[:12]
    try:
        head, changed = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip()[:12] + ("+" if changed.strip() else "")


@cache
def environment() -> str:
    """Returns the versions that figures are made with, in one line."""
    found = [f"lapace {lapace.__version__}", f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


@cache
def _machine() -> str:
    import torch

    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    return f"{cores}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else cores


@cache
def code_of(experiment: str, recipe: str = "") -> str:
    """Returns a short hash of the code that makes an experiment's figures of one side.

    Examples:
        >>> len(code_of("e2")), code_of("e2") == code_of("e2", "baselines")
        (12, False)
    """
    start = STARTS.get(f"{experiment} {recipe}") or STARTS.get(experiment, "e1.measure")
    return hashed(f"benchmarks.{start}")


def hashed(start: str) -> str:
    """Returns a short hash of all the code that a function of ours uses."""
    digest = hashlib.sha256()
    for module, name in names_of(start):
        digest.update(f"{module}.{name}\n{_meaning(module).get(name, '')}\n".encode())
    return digest.hexdigest()[:12]


def names_of(start: str) -> list[tuple[str, str]]:
    """Returns what a name of ours uses, directly or not, itself included: modules and names.

    A class counts as a whole, and so does a module that is handed on as a value. Statements that
    define nothing (under the name "") count where anything of their module does.

    Examples:
        >>> ("lapace.model", "LGMVAE") in names_of("benchmarks.losses.PaperLoss")
        True
    """
    found: set[tuple[str, str]] = set()
    open_ = [_resolved(start)]
    while open_:
        module, name = place = open_.pop()
        if place not in found and module not in NOT_MEASURING:
            found.add(place)
            open_ += [(module, ""), *_used(module, name)]
    return sorted(found)


def _resolved(path: str) -> tuple[str, str]:
    """Returns the module that a path such as `lapace.Explainer` is defined in, and its name there.

    The name is "*" where the path is that of a module.
    """
    parts, cut = path.split("."), path.count(".") + 1
    while _file(".".join(parts[:cut])) is None:
        cut -= 1
    module, rest = ".".join(parts[:cut]), parts[cut:]
    if not rest:
        return module, "*"
    if rest[0] not in _statements(module) and (home := _imported(module).get(rest[0])):
        return _resolved(".".join([home, *rest[1:]]))
    return module, rest[0]


@cache
def _used(module: str, name: str) -> set[tuple[str, str]]:
    """Returns what of ours occurs in the statements that define a name."""
    own, known = _statements(module), _imported(module)
    paths = {f"{module}.{key}" for key in {**own, **known} if key} if name == "*" else set()
    for statement in own.get(name, []):
        nodes = list(ast.walk(statement))
        local = {**known, **_imports(nodes)}
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            first, *rest = (id(node) not in inner and _dotted(node)) or [""]
            if first in local:
                paths.add(".".join([local[first], *rest]))
            elif first and first in own:
                paths.add(f"{module}.{first}")
    return set(map(_resolved, paths))


def _dotted(node: ast.AST) -> list[str]:
    """Returns the parts of `a.b.c`; none for anything else."""
    rest: list[str] = []
    while isinstance(node, ast.Attribute):
        node, rest = node.value, [node.attr, *rest]
    return [node.id, *rest] if isinstance(node, ast.Name) else []


@cache
def _file(module: str) -> Path | None:
    """Returns a module's file, without importing it."""
    root, *rest = module.split(".")
    origin = getattr(find_spec(root), "origin", None)
    if origin is None or not rest:
        return origin and Path(origin)
    place = Path(origin).parent.joinpath(*rest)
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.exists()), None)


@cache
def _source(module: str) -> str:
    file = _file(module)
    assert file is not None, module
    return file.read_text(encoding="utf-8")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _statements(module: str) -> dict[str, list[ast.stmt]]:
    """Returns a module's statements by the names they define, under "" if they define none."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _tree(module).body:
        for name in _defined(node):
            found.setdefault(name, []).append(node)
    return found


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return []  # what is imported counts where it is used
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [name for target in targets for name in getattr(target, "elts", [target])]
    return [name.id if isinstance(name, ast.Name) else "" for name in names]


@cache
def _imported(module: str) -> dict[str, str]:
    return _imports(ast.walk(_tree(module)))


def _imports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Returns the names that some code imports from us, with their paths."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                found[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {name: path for name, path in found.items() if path.partition(".")[0] in ROOTS}


@cache
def _meaning(module: str) -> dict[str, str]:
    """Returns, by name, a module's code without comments, docstrings, layout and words of errors.

    It is text, not a syntax tree: trees are written differently by each version of Python.
    """
    source = _source(module)
    lines = [line.encode() for line in source.splitlines()]
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1].decode()[:column].encode()
    for node in _words(_tree(module)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        for row in range(first, last + 1):
            begin = node.col_offset if row == first else 0
            end = (node.end_col_offset or 0) if row == last else len(lines[row])
            lines[row] = lines[row][:begin] + b" " * (end - begin) + lines[row][end:]
    found = {}
    for name, statements in _statements(module).items():
        parts = []
        for node in statements:
            begin = min(n.lineno for n in (node, *getattr(node, "decorator_list", ())))
            parts += lines[begin - 1 : node.end_lineno]
        found[name] = "".join(b"".join(parts).decode().split())
    return found


def _words(tree: ast.Module) -> Iterator[ast.expr]:
    """Yields docstrings, what is raised, and the arguments of warnings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn":
            yield from node.args
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        value = first.value if isinstance(first, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value
