"""Where a figure comes from: the code, the commit, the environment and the machine.

The code of an experiment is the hash of every module of `lapace` and `benchmarks` that its module
imports, directly or not, without comments, docstrings and the words of errors and warnings. Nobody
has to raise a number: a figure made by other code is marked wherever it is shown.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import lapace

__all__ = ["Origin", "code_of", "environment", "modules_of"]

# The module that measures an experiment; others measure as E1 does.
HOMES = {
    "grid": "readings", "e2": "e2", "e3": "e3", "e4": "e4", "clusters": "e2", "tuning": "e2",
    "privacy": "privacy", "e5": "e5",
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
        code: Hash of the modules used.
        commit: The commit, with `+` where files had changed since.
        environment: Versions of Python and packages.
        machine: Cores and accelerator.
    """

    code: str = ""
    commit: str = ""
    environment: str = ""
    machine: str = ""

    @classmethod
    def here(cls, experiment: str) -> Origin:
        """Returns what makes figures now."""
        return cls(code_of(experiment), _commit(), environment(), _machine())


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
def code_of(experiment: str) -> str:
    """Returns a short hash of the code that makes an experiment's figures.

    Examples:
        >>> len(code_of("e2")), code_of("e2") == code_of("e3")
        (12, False)
    """
    digest = hashlib.sha256()
    for name in modules_of(f"benchmarks.{HOMES.get(experiment, 'e1')}"):
        digest.update(f"{name}\n{_meaning(name)}\n".encode())
    return digest.hexdigest()[:12]


def modules_of(start: str) -> list[str]:
    """Returns the modules of ours that a module imports, directly or not, itself included.

    Examples:
        >>> "lapace.model" in modules_of("benchmarks.losses")
        True
    """
    found, open_ = set(), [start]
    while open_:
        name = open_.pop()
        if name not in found and name not in NOT_MEASURING:
            found.add(name)
            open_ += _imported(name)
    return sorted(found)


@cache
def _source(name: str) -> str:
    origin = getattr(find_spec(name), "origin", None)
    assert origin is not None, name
    return Path(origin).read_text(encoding="utf-8")


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse(_source(name))


def _imported(name: str) -> Iterator[str]:
    if name == "lapace":
        return  # its names load when they are used: below
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in ROOTS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ROOTS:
            for alias in node.names:
                yield _home(node.module or "", alias.name)


def _home(module: str, name: str) -> str:
    """Returns the module that an imported name is, or is defined in."""
    if module == "lapace" and name in lapace._HOMES:
        return f"lapace.{lapace._HOMES[name]}"
    spec = find_spec(module)
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    inner = any(
        Path(place, f"{name}.py").exists() or Path(place, name, "__init__.py").exists()
        for place in places
    )
    return f"{module}.{name}" if inner else module


@cache
def _meaning(name: str) -> str:
    """Returns a module's code without comments, docstrings, layout and the words of errors.

    It is text, not a syntax tree: trees are written differently by each version of Python.
    """
    source = _source(name)
    lines = [line.encode() for line in source.splitlines()]
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1].decode()[:column].encode()
    for node in _words(_tree(name)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        for row in range(first, last + 1):
            begin = node.col_offset if row == first else 0
            end = (node.end_col_offset or 0) if row == last else len(lines[row])
            lines[row] = lines[row][:begin] + b" " * (end - begin) + lines[row][end:]
    return "".join(b"".join(lines).decode().split())


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
