"""The project around the library: names, metadata, documentation. `make lint` covers the rest."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import NamedTuple, get_args

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import lapace
from lapace import Explainer, InputError, Search
from lapace.cli.commands import app
from lapace.constraints.language import KEYWORDS, Relation
from lapace.report import threshold_table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# Modules whose import, however indirect, must not bring in torch.
WITHOUT_TORCH = ("table", "schema", "result", "metrics", "report", "plots")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- public names ---------------------------------------------------------------------------


def names_seen_by_type_checkers() -> set[str]:
    """What `lapace/__init__.py` imports under TYPE_CHECKING."""
    tree = ast.parse(read(Path(lapace.__file__)))
    guarded = [
        node
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
    ]
    return {
        alias.asname or alias.name
        for node in guarded
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_exact():
    lazy = set(lapace.__all__) - {"__version__"}
    assert len(lapace.__all__) == len(set(lapace.__all__))
    assert dir(lapace) == sorted(lapace.__all__)
    assert lazy == set(lapace._HOMES) == names_seen_by_type_checkers()


@pytest.mark.parametrize("name", lapace.__all__)
def test_every_public_name_loads_from_its_home(name):
    value = getattr(lapace, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+", value)
        return
    home = lapace._HOMES[name]
    module = importlib.import_module(f"lapace.{home}")
    assert value is (module if name == home else getattr(module, name))
    if name != home:
        assert value.__module__.startswith("lapace.")


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(AttributeError, match=r"no attribute 'Explaner'\. Did you mean 'Explainer'"):
        lapace.Explaner  # noqa: B018


def test_import_brings_in_nothing_heavy():
    code = """
        import sys
        before = set(sys.modules)
        import lapace
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(*sorted(new - sys.stdlib_module_names))
    """
    assert run_python(textwrap.dedent(code)).split() == ["lapace"]


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_modules_that_do_without_torch(module):
    code = f"import sys, lapace.{module}; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"


# --- metadata and versions -------------------------------------------------------------------


def project() -> dict:
    return tomllib.loads(read(ROOT / "pyproject.toml"))["project"]


def requirements() -> list[Requirement]:
    """Every requirement of the library and its extras but for the extras naming other extras."""
    extras = project()["optional-dependencies"].values()
    texts = [*project()["dependencies"], *(text for extra in extras for text in extra)]
    return [need for need in map(Requirement, texts) if need.name != "lapace"]


def pins() -> dict[str, Version]:
    lines = read(ROOT / "constraints.txt").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_the_version_is_said_once_and_the_same_everywhere():
    assert "version" in project()["dynamic"]
    citation = read(ROOT / "CITATION.cff")
    assert f"\nversion: {lapace.__version__}\n" in citation


def test_requirements_have_a_lower_bound_and_nothing_else():
    for need in requirements():
        operators = [spec.operator for spec in need.specifier]
        assert operators == [">="], f"{need} is not just a lower bound"


def test_extra_all_is_every_extra_a_user_could_want():
    extras = project()["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "lapace"
    # DiCE is there to be compared with, and brings hundreds of megabytes along.
    assert everything.extras == set(extras) - {"all", "dev", "dice", "docs"}


def test_every_requirement_is_pinned_within_its_bound():
    pinned = pins()
    for need in requirements():
        assert canonicalize_name(need.name) in pinned, f"{need.name} is not in constraints.txt"
        assert need.specifier.contains(pinned[canonicalize_name(need.name)], prereleases=True)


def test_the_pins_are_plain_sorted_and_the_ones_installed():
    lines = read(ROOT / "constraints.txt").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line) for line in pinned)
    names = [line.partition("==")[0].lower() for line in pinned]
    assert all(a < b for a, b in pairwise(names))
    if Path(sys.prefix) != ROOT / ".venv":
        return  # another environment may have other versions: only ours is held to the pins
    ours = {"lapace", "pip"}
    installed = {
        canonicalize_name(found.name): Version(found.version).public
        for found in importlib.metadata.distributions()
    }
    known = {name: str(version) for name, version in pins().items()}
    assert {name: v for name, v in installed.items() if name not in ours} == known


# --- capabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "status", "says"),
    [
        ("", 1, "1 failed, 1 passed, 2 skipped, 1 error"),
        ("data, onnx", 1, "2 failed, 1 passed, 1 skipped, 1 error"),
        ("data dice", 1, "2 failed, 1 passed, 2 errors"),
        (
            "dcie",
            pytest.ExitCode.USAGE_ERROR,
            "no capability dcie; there are browser, data, dice,",
        ),
    ],
)
def test_a_missing_capability_skips_or_where_required_fails(tmp_path, require, status, says):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs\n")
    code = """
        import conftest, pytest
        conftest.PROBES["dice"] = (lambda: False, "it is not installed")
        conftest.PROBES["onnx"] = (lambda: True, "it is not installed")

        @pytest.mark.needs("dice", "onnx")
        def test_marked(): pass

        @pytest.mark.needs("onnx")
        def test_present(): pass

        def test_found_missing(missing): missing("data", "it could not be fetched")

        @pytest.mark.needs("onxx")
        def test_misspelt_mark(): pass

        def test_misspelt_call(missing): missing("dta", "it could not be fetched")
    """
    (tmp_path / "test_needs.py").write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "LAPACE_REQUIRE": require, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_continuous_integration_requires_every_capability_tests_need_but_a_gpu():
    pages = [page for page in Path(__file__).parent.glob("test_*.py") if page != Path(__file__)]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    needed = set(re.findall(r'\b(?:needs|missing)\("(\w+)"', text))
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "LAPACE_REQUIRE=$require make test" in commands
    # A package that the machine's distribution may not offer is required where it was installed.
    required = re.findall(r"\brequire=(?:\$require,)?(\S+)$", commands, flags=re.MULTILINE)
    assert needed == {*",".join(required).split(","), "gpu"}


def test_torch_has_one_thread():
    torch = import_module("torch")
    assert torch.get_num_threads() == 1


# --- documentation ---------------------------------------------------------------------------


class Block(NamedTuple):
    """A block of Python in a page."""

    line: int  # of its first line of code, counted from 1
    code: str


FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: \S.*-->\s*$")


def blocks(text: str) -> list[Block]:
    """The ```python blocks of a Markdown page that are meant to run.

    One that is not meant to run says why on the line before it: `<!-- not run: why -->`.
    """
    found: list[Block] = []
    before, fence, start = "", None, 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence, start, run = mark, number, not NOT_RUN.match(before)
        elif fence and mark and mark[2].startswith(fence[2]) and not mark[3]:
            language = fence[3].strip("{.}").lower()
            assert language != "pycon", f"line {start}: write ```python, so that it is run"
            if run and language in {"py", "python", "python3"}:
                code = textwrap.dedent("\n".join(lines[start : number - 1]))
                found.append(Block(start + 1, code))
            fence = None
        before = line
    assert fence is None, f"line {start}: this block is never closed"
    return found


def test_the_collector_finds_what_is_meant_to_run():
    page = """
        Words.

        ```python
        a = 1

        b = 2
        ```

        <!-- not run: needs your own table -->
        ```python
        raise SystemExit
        ```

        ```sh
        make demo
        ```

        ````md
        ```python
        shown, not run
        ```
        ````

            ```python
            c = a + b
            ```
    """
    found = blocks(textwrap.dedent(page))
    assert found == [Block(5, "a = 1\n\nb = 2"), Block(26, "c = a + b")]
    with pytest.raises(AssertionError, match="line 1: this block is never closed"):
        blocks("```python\n1")
    with pytest.raises(AssertionError, match="line 1: write ```python"):
        blocks("```pycon\n>>> 1\n```")
    assert len(blocks("<!-- not run: -->\n```python\n1\n```")) == 1, "a reason is needed"


# Pages whose code is run. The others have shell commands, which the tests of the command line run,
# or none at all.
WITH_CODE = {
    "README.md",
    "docs/baselines.md",
    "docs/classifiers.md",
    "docs/constraints.md",
    "docs/examples.md",
    "docs/guide.md",
    "docs/letters.md",
    "docs/method.md",
    "docs/quickstart.md",
    "docs/serving.md",
}


def test_the_pages_with_code_are_known():
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if blocks(read(page))}
    assert pages == WITH_CODE


@pytest.mark.parametrize("page", sorted(WITH_CODE))
def test_the_code_in_the_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in blocks(read(ROOT / page)):
        # Empty lines in front make a traceback point at the line in the page.
        exec(compile("\n" * (line - 1) + code, page, "exec"), namespace)


# --- what the pages must name ------------------------------------------------------------------


def test_every_public_name_is_in_the_reference():
    shown = re.findall(r"^::: lapace\.([\w.]+)$", read(DOCS / "api.md"), flags=re.MULTILINE)
    assert sorted(shown) == sorted(set(lapace.__all__) - {"__version__"})


def test_the_guide_names_every_metric_and_data_set_and_the_baselines_page_every_method():
    guide = read(DOCS / "guide.md")
    named = [*lapace.metrics.__all__, *lapace.datasets.names()]
    assert [name for name in named if f"`{name}`" not in guide] == []
    methods = read(DOCS / "baselines.md")
    assert [name for name in lapace.baselines.__all__ if f"`{name}" not in methods] == []


def test_the_guide_has_the_reports_thresholds():
    assert threshold_table() in read(DOCS / "guide.md")


@pytest.mark.parametrize(
    ("name", "function"),
    [("Explainer", Explainer.__init__), ("explain", Explainer.explain), ("Search", Search)],
)
def test_the_guide_has_the_signatures(name, function):
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]
    signature = str(inspect.Signature(parameters)).replace("'", '"')
    assert f"`{name}{signature}`" in read(DOCS / "guide.md")


@pytest.mark.parametrize("page", ["README.md", "docs/serving.md"])
def test_commands_in_the_pages_exist_with_their_options(page):
    """Those of docs/cli.md are run by the tests of the command line."""
    commands = typer.main.get_command(app).commands
    lines = re.findall(
        r"^lapace ([a-z-]+) (?=.*--|.*\.lapace)(.*)$", read(ROOT / page), re.MULTILINE
    )
    assert lines
    for name, rest in lines:
        command = commands[name]
        if hasattr(command, "commands"):  # a group, such as `data`
            command = command.commands[rest.split()[0]]
        options = {word for parameter in command.params for word in parameter.opts}
        used = {word for word in shlex.split(rest, comments=True) if re.match(r"--?[a-z]", word)}
        assert used <= options, name


def constraints_in(page: str) -> list[str]:
    """What stands in quotes or backticks and is a constraint."""
    found = []
    for text in {text for pair in re.findall(r'"([^"\n]+)"|`([^`\n]+)`', page) for text in pair}:
        with suppress(InputError):
            found.append(str(lapace.constraints.parse(text)))
    return found


def test_the_search_for_constraints_finds_them():
    page = 'Say `fixed age`, or `age`, or:\n\n    explain(X, constraints=["age >= 40"])\n'
    assert sorted(constraints_in(page)) == ["age >= 40", "fixed age"]


def test_every_form_of_constraint_is_on_their_page():
    page = read(DOCS / "constraints.md")
    texts = constraints_in(page)
    forms = {type(lapace.constraints.parse(text)) for text in texts}
    assert forms == set(get_args(lapace.constraints.Constraint)) - {lapace.constraints.Custom}
    assert "Custom(" in page
    words = {word for text in texts for word in re.findall(r"[a-z]+|[<>=!]+", text)}
    assert words >= KEYWORDS | set(get_args(Relation))


def reference_names() -> list[str]:
    """The public names, and the classes and functions of those that are modules."""
    names = []
    for name in set(lapace.__all__) - {"__version__"}:
        value = getattr(lapace, name)
        inner = getattr(value, "__all__", ()) if inspect.ismodule(value) else ()
        kinds = (type, FunctionType)
        names += [name, *(f"{name}.{n}" for n in inner if isinstance(getattr(value, n), kinds))]
    return names


def test_the_documentation_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = read(tmp_path / "site" / "api" / "index.html")
    missing = [name for name in reference_names() if f'id="lapace.{name}"' not in reference]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    contents = read(ROOT / "mkdocs.yml")
    nav = set(re.findall(r": ([\w/-]+\.md)$", contents, flags=re.MULTILINE))
    assert nav == {page.relative_to(DOCS).as_posix() for page in PAGES if page.name != "README.md"}
