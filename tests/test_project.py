"""The project around the library: names, metadata, documentation. `make lint` covers the rest."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import lapace
from benchmarks import baselines
from docs import pages
from docs.pages import Block, blocks
from lapace import Explainer, InputError, Search
from lapace.apps.cli.commands import app
from lapace.constraints.language import KEYWORDS, Relation
from lapace.report import THRESHOLDS
from tests.processes import ROOT, environment, python

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

# Modules whose import, however indirect, must not bring in torch.
WITHOUT_TORCH = ("table", "schema", "result", "metrics", "report", "plots")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = python("-c", code)
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
    is_module = name == home.rpartition(".")[2]
    assert value is (module if is_module else getattr(module, name))
    if not is_module:
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
    # Where the index offers torch for CUDA, it brings libraries of its own.
    cuda = {name for name in installed if re.match("nvidia-|cuda-|triton$", name)} - known.keys()
    assert {name: v for name, v in installed.items() if name not in ours | cuda} == known


# --- capabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "status", "says"),
    [
        ("", 1, "1 failed, 1 passed, 2 skipped, 1 error"),
        ("data, onnx", 1, "2 failed, 1 passed, 1 skipped, 1 error"),
        ("data dice", 1, "2 failed, 1 passed, 2 errors"),
        ("dcie", pytest.ExitCode.USAGE_ERROR, "no capability dcie; there are browser, data, dice,"),
    ],
)
def test_a_missing_capability_skips_or_where_required_fails(tmp_path, require, status, says):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs\n  full\n")
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
    variables = environment(LAPACE_REQUIRE=require, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    pytest_alone = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    done = python(*pytest_alone, cwd=tmp_path, env=variables)
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_continuous_integration_requires_every_capability_tests_need():
    pages = [page for page in Path(__file__).parent.rglob("test_*.py") if page != Path(__file__)]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    needed = set(re.findall(r'\b(?:needs|missing)\("(\w+)"', text))
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "LAPACE_REQUIRE=$require make test-all" in commands
    # A package that the machine's distribution may not offer is required where it was installed.
    required = re.findall(r"\brequire=(?:\$require,)?(\S+)$", commands, flags=re.MULTILINE)
    assert needed == set(",".join(required).split(","))


def test_torch_has_one_thread():
    torch = import_module("torch")
    assert torch.get_num_threads() == 1


# --- documentation ---------------------------------------------------------------------------


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


# Pages whose code is run; that of the README runs where the wheel is installed. The others have
# shell commands, which the tests of the command line run, or none at all.
ALONE = {
    "docs/how-to/baselines.md",
    "docs/how-to/classifiers.md",
    "docs/how-to/examples.md",
    "docs/how-to/prepare-csv.md",
    "docs/how-to/serving.md",
    "docs/how-to/why-not.md",
    "docs/reference/constraints.md",
}
ON_LOANS = {  # all with the same explainer
    "docs/how-to/fairness.md",
    "docs/how-to/letters.md",
    "docs/how-to/one-decision.md",
    "docs/how-to/report.md",
    "docs/reference/explainer.md",
    "docs/reference/metrics.md",
    "docs/reference/tables.md",
    "docs/start/first-explanation.md",
}


def test_the_pages_with_code_are_known():
    found = {page.relative_to(ROOT).as_posix() for page in PAGES if blocks(read(page))}
    assert found == ALONE | ON_LOANS | {"README.md"}


def check_page(page, folder, monkeypatch):
    """Runs a page in a folder, and compares what it prints and draws with what it shows."""
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for block, printed in pages.run(ROOT / page):
        lost = pages.differences(block.shown, printed)
        assert not lost, f"{page}:{block.line} shows {lost}, but printed:\n{printed}"
    for name, far in pages.pictures(folder).items():
        assert far < pages.TOLERANCE, f"{name}: run `make pictures`"


@pytest.mark.full
@pytest.mark.parametrize("page", sorted(ALONE))
def test_the_code_in_the_pages_runs(page, tmp_path, monkeypatch):
    check_page(page, tmp_path / "page", monkeypatch)


@pytest.mark.full
def test_the_code_in_the_pages_on_loans_runs(tmp_path, monkeypatch):
    """They begin with the same fit, which is made once."""
    fits, fit = {}, Explainer.fit

    def once(self, X, y=None, **more):
        settings = {k: v for k, v in self.get_params().items() if k != "classifier"}
        key = repr((settings, more, y)), tuple(map(str, self.classifier.predict(X)))
        if key not in fits:
            fits[key] = fit(self, X, y, **more)
        kept = vars(fits[key]).items()
        vars(self).update({name: value for name, value in kept if name != "classifier"})
        return self

    monkeypatch.setattr(Explainer, "fit", once)
    for page in sorted(ON_LOANS):
        check_page(page, tmp_path / Path(page).stem, monkeypatch)
    assert len(fits) == 1


@pytest.mark.parametrize("name", ["answer.png", "digit.png"])
def test_pictures_that_differ_are_noticed(name, tmp_path):
    from PIL import Image

    shown, other = pages.IMAGES / name, tmp_path / name
    with Image.open(shown) as picture:
        whole = picture.convert("RGB")
    width, height = whole.size
    whole.resize((width, height - 9)).save(other)
    assert pages.pictures(tmp_path)[name] < pages.TOLERANCE / 2
    whole.paste(whole.crop((0, 0, width, height // 2)), (0, height // 2))
    whole.save(other)
    assert pages.distance(shown, shown) == 0
    assert pages.distance(shown, other) > pages.TOLERANCE


def test_outputs_that_differ_are_noticed():
    printed = "abc 1\nbcd 2\ncde 3\n"
    assert pages.differences("abc  1\n…\ncde 3", printed, exact=True) == []
    assert pages.differences("abc 1\ncde 4", printed, exact=True) == ["cde 4"]
    assert pages.differences("abc 1\nxyz 2\ncde 4", printed) == []
    assert pages.differences("abc 1\nxyz 4", printed) == ["xyz 4"]
    assert pages.differences("abc\nxyz\nyzx\ncde\n", "abc\ncde\n") == []
    assert len(pages.differences("abc\nxyz\nyzx\nzxy\ncde\n", "abc\ncde\n")) == 3


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ("Report on the explanations: unsure. 6 of 8 checks pass.\n  unsure   rows   75 %", False),
        (
            "Report on the explanations: unsure for a; passes for b. 7 checks pass.\n passes  rows",
            False,
        ),
        (
            "Report on the explanations: fails for a; passes for b. 7 checks pass.\n passes  rows",
            True,
        ),
        ("Report on the explanations: fails. 7 of 8 checks pass.\n  passes   rows   90 %", True),
        ("Report on the explanations: passes. All 8 checks pass.\n  fails    rows   60 %", True),
    ],
)
def test_a_verdict_shown_may_be_unsure_elsewhere_but_not_fail(other, differs):
    shown = "Report on the explanations: passes. All 8 checks pass.\n  passes   rows   90 %"
    assert bool(pages.differences(shown, other)) == differs
    assert pages.differences(shown, other, exact=True)


# --- what the pages must name ------------------------------------------------------------------


def test_every_public_name_is_in_the_reference():
    page, _ = read(DOCS / "reference" / "api.md").split("\n## Other names\n")
    shown = re.findall(r"^::: lapace\.(?:apps\.)?([\w.]+)$", page, flags=re.MULTILINE)
    assert sorted(shown) == sorted(set(lapace.__all__) - {"__version__"})


def test_every_metric_data_set_and_method_is_on_its_page():
    guide = read(DOCS / "reference" / "metrics.md")
    named = [*lapace.metrics.__all__, *lapace.datasets.names()]
    assert [name for name in named if f"`{name}`" not in guide] == []
    methods = read(DOCS / "how-to" / "baselines.md")
    assert [name for name in baselines.__all__ if f"`{name}" not in methods] == []


def test_the_page_on_the_report_has_its_thresholds():
    page = read(DOCS / "how-to" / "report.md")
    for t in THRESHOLDS.values():
        assert f"| `{t.name}` | {t.question} | {t.limits} | {t.advice} |" in page
    assert page.count("\n| `") == len(THRESHOLDS)


@pytest.mark.parametrize(
    ("name", "function", "page"),
    [
        ("Explainer", Explainer.__init__, "explainer.md"),
        ("explain", Explainer.explain, "explainer.md"),
        ("Search", Search, "explainer.md"),
    ],
)
def test_the_reference_has_the_signatures(name, function, page):
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self" and parameter.kind != parameter.VAR_KEYWORD
    ]
    signature = str(inspect.Signature(parameters)).replace("'", '"')
    assert f"`{name}{signature}`" in read(DOCS / "reference" / page)


def test_research_settings_are_in_a_section_of_their_own():
    page = read(DOCS / "reference" / "explainer.md")
    first, research = page.split("\n## Research settings\n")
    for name in ("steps", "stable", "enforce", "recipe", "n_latent"):
        assert f"| `{name}` |" in research
        assert f"| `{name}` |" not in first


def test_the_numbers_on_the_page_of_the_method_are_the_codes():
    """Of `docs/understand/method.md`: whoever changes one here changes the page."""
    from lapace.categories import SMOOTHING
    from lapace.explainer.correction import ETA, N_CORRECT
    from lapace.explainer.fit import EMPHASIS, SAMPLES
    from lapace.explainer.minimal import ALIKE, PART, ROUND_SHARE, UNUSUAL, UNUSUAL_PRICE
    from lapace.paths.decoder import MIN_PROBABILITY, NOISE, ORIGINAL_BONUS
    from lapace.paths.tracing import SECTIONS
    from lapace.schema.distance import CHARGE
    from lapace.schema.ranks import SPIKE
    from lapace.survival import LIKELY
    from lapace.training import DEFAULT, FLOOR, GAUSSIANS, PAPER, PER_GAUSSIAN, SPREAD, steps_for

    assert (MIN_PROBABILITY, ORIGINAL_BONUS, SECTIONS) == (0.1, 1.0, 8)
    assert (SPIKE, FLOOR, UNUSUAL, SMOOTHING) == (0.01, 0.5, 0.05, 0.1)
    assert (SPREAD, PER_GAUSSIAN, GAUSSIANS, NOISE, EMPHASIS) == (0.5, 25, 20, 0.5, 1.5)
    assert (CHARGE, ALIKE, UNUSUAL_PRICE, LIKELY) == (0.2, 1.05, 1.5, 0.95)
    assert (SAMPLES, PART, ROUND_SHARE) == (4_000, 1 / 20, 0.01)
    assert (ETA, N_CORRECT) == (0.1, 50)
    assert (PAPER.heads, PAPER.follows_paper, PAPER.weights) == ("sigmoid", True, (0.1, 0.1, 1))
    assert (PAPER.hidden, PAPER.batch, PAPER.rate) == (512, 1024, 1e-3)
    assert (PAPER.steps, PAPER.epochs, PAPER.patience) == (4000, 100, 0.2)
    assert (DEFAULT.heads, DEFAULT.follows_paper) == ("softmax", False)
    assert (DEFAULT.hidden, DEFAULT.batch, DEFAULT.rate) == (128, 512, 2e-3)
    assert DEFAULT.weights == (1, 0.3, 1)
    assert [steps_for(rows) for rows in (300, 2_000, 100_000)] == [500, 1000, 2000]


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/serving.md", "docs/start/tutorial.md"])
def test_commands_in_the_pages_exist_with_their_options(page):
    """Those of docs/reference/cli.md are run by the tests of the command line."""
    commands = typer.main.get_command(app).commands
    text = read(ROOT / page).replace("\\\n", " ")
    lines = re.findall(r"^lapace ([a-z-]+) (?=.*--|.*\.lapace)(.*)$", text, re.MULTILINE)
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
    page = read(DOCS / "reference" / "constraints.md")
    texts = constraints_in(page)
    forms = {type(lapace.constraints.parse(text)) for text in texts}
    assert forms == set(get_args(lapace.constraints.Constraint))
    words = {word for text in texts for word in re.findall(r"[a-z]+|[<>=!]+", text)}
    assert words >= KEYWORDS | set(get_args(Relation))


def test_every_page_is_in_the_table_of_contents():
    contents = read(ROOT / "mkdocs.yml")
    nav = set(re.findall(r": ([\w/-]+\.md)$", contents, flags=re.MULTILINE))
    written = {page.relative_to(DOCS).as_posix() for page in PAGES if page.name != "README.md"}
    assert nav == written
    assert len(nav) <= 30


def test_the_readme_is_read_in_half_a_minute():
    assert len(read(ROOT / "README.md").splitlines()) <= 100


def test_pages_have_the_titles_of_the_menu():
    entries = re.findall(r'- "?(.+?)"?: ([\w/-]+\.md)$', read(ROOT / "mkdocs.yml"), re.MULTILINE)
    assert len(entries) > 20
    for title, page in entries:
        if page != "index.md":
            assert read(DOCS / page).startswith(f"# {title}\n"), page
