"""The words of the code and the pages: the field's, one for each thing, and no class name twice.

`docs/index.md` lists the words that are used. Those refused below were once names of
the same things, or address a layperson, which only the demo does.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT / "src" / "lapace").rglob("*.py"))
SOURCES = [*LIBRARY, *sorted((ROOT / "examples").glob("*.py"))]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src" / "lapace").rglob("*.toml")),  # descriptions of the data sets
    *sorted((ROOT / "src" / "lapace").rglob("*.json")),
]
SCREENS = [  # what the page and letters show
    path for path in sorted((ROOT / "src" / "lapace").rglob("*.*")) if path.suffix in {".js", ".j2"}
]

WORDS = """
    Booth Desk Door Ground StandIns Visit absence anybody as_it_is asking everybody furnish
    given judging meet nobody obeying opening outside people person published put_back searching
    somebody stand stand_ins there told trouble troubles twins vouching who whom wishes
"""
NAMES = frozenset(WORDS.split())
PROSE = re.compile(
    r"\b(people|persons?|nobody|somebody|anybody|everybody|told|wishes|stand-ins?)\b", re.IGNORECASE
)

# Phrases that readers had to read twice: they sound translated, or refer to nothing named.
STUMBLES = """
    and the cost of its line|by which rows that may replace one|that a row is then looked for within
    the encoded column it is read off|given whom to ask about rows|neither called certain nor
    that another is closer and surer than|for a number for each row in turn|no classifier is asked
    only cells that could not be proposed|it proves it where|last where it ends
    what is needed lies inside|that things really turn out so|what else was kept to|are more so
    one's own is handed over|the road beside|money put by|keep that answer, and
    searched for to the end|labelled as said|of that of training rows|take the label back
    without fewer it does not|might do as well, for|not said of a column|lets them give way
    would have to give|predicted as wanted|what is predicted is explained|wherever it was moved
    not asked of their|differs from that in|is no change of its own|is no kind of|is no notation
    what holds for every method|hand it over|hand over at least|that is the answer asked about
    nothing was found that can be relied on|keep that answer|it would be otherwise if
    many changes that were tried|what it rests on|is clear of the line|keeps to this:
    once the way of deciding|which real cases look like|follow what you set|>mend it<
    token holds none|names no token|many are asking|the ones a decision is about
    its wait and the classifier
"""
STUMBLE = re.compile(
    "|".join(r"\s+".join(phrase.split()) for phrase in re.split(r"[|\n]", STUMBLES.strip())),
    re.IGNORECASE,
)
WRITTEN = {"gallery.md", "reproducing.md", "speed.md"}  # in part by the benchmarks
SPACED_PERCENT = re.compile(r"\d %(?!\w)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def refused_names(code: str) -> Iterator[tuple[int, str]]:
    """Line and identifier, keyword arguments and attributes included."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME and token.string.strip("_") in NAMES:
            yield token.start[0], token.string


def refused_prose(text: str, *, python: bool) -> Iterator[tuple[int, str]]:
    """Line and word; of Python only comments and strings, f-strings included."""
    parts = [(1, text)]
    if python:
        literal = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        parts = [(token.start[0], token.string) for token in tokens if token.type in literal]
    for line, part in parts:
        for match in PROSE.finditer(part):
            yield line + part.count("\n", 0, match.start()), match[0]


def class_names(code: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef)]


def shown(path: Path, found: Iterator[tuple[int, str]]) -> list[str]:
    """What is refused in a file, as an editor shows it."""
    return [f"{path.relative_to(ROOT).as_posix()}:{line} {word}" for line, word in found]


def test_the_scanner_finds_what_is_refused():
    code = textwrap.dedent('''
        """Nobody is
        told anything."""
        def meet(table, *, who=None):  # a stand-in
            return table.people_, f"{table} of a person", "thereby given"
    ''')
    assert list(refused_names(code)) == [(4, "meet"), (4, "who"), (5, "people_")]
    words = [(2, "Nobody"), (3, "told"), (4, "stand-in"), (5, "person")]
    assert list(refused_prose(code, python=True)) == words
    page = "All fine.\nTold by a person, to an impersonal one.\n"
    assert list(refused_prose(page, python=False)) == [(2, "Told"), (2, "person")]
    assert not list(refused_names("found = explain(instances)  # who\n"))
    nested = "class A:\n    class B: ...\ndef f():\n    class A: ...\n"
    assert sorted(class_names(nested)) == ["A", "A", "B"]


def test_names_are_the_fields_words():
    found = [line for path in SOURCES for line in shown(path, refused_names(read(path)))]
    found += [str(path) for path in LIBRARY if path.stem in NAMES]
    assert not found, "\n".join(found)


def test_prose_is_in_the_fields_words():
    found = [
        line
        for path in (*SOURCES, *PAGES)
        for line in shown(path, refused_prose(read(path), python=path.suffix == ".py"))
    ]
    assert not found, "\n".join(found)


def test_the_list_of_stumbles_finds_them_across_lines():
    assert STUMBLE.search("The instance was not searched\n    for to the end.")
    assert STUMBLE.search("Returned rows labelled as said.")
    assert not STUMBLE.search("The search for this instance did not finish.")
    assert SPACED_PERCENT.search("64 % of rows")
    assert not SPACED_PERCENT.search("64% of rows, %d % n")


def test_no_phrase_that_readers_stumbled_over_comes_back():
    paths = [*LIBRARY, *PAGES, *SCREENS]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        for match in STUMBLE.finditer(re.sub(r'"\s*\n\s*f?"', "", read(path)))
    ]
    pages = [path for path in PAGES if path.suffix == ".md" and path.name not in WRITTEN]
    for path in pages:
        found += [f"{path.name}: {match[0]}" for match in SPACED_PERCENT.finditer(read(path))]
    assert not found, "\n".join(found)


def test_a_class_name_is_defined_once():
    names = Counter(name for path in LIBRARY for name in class_names(read(path)))
    assert len(names) > 50
    assert {name: count for name, count in names.items() if count > 1} == {}


def docstrings(code: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, with the line each stands below."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_docstrings_name_their_subject_first():
    headless = re.compile(r"(Of|What|Who|Which|Those) ")
    found = [
        f"{path.relative_to(ROOT)}:{line} {text.splitlines()[0]}"
        for path in LIBRARY
        for line, text in docstrings(read(path))
        if headless.match(text)
    ]
    assert not found, "\n".join(found)


def private_names(code: str) -> Iterator[tuple[int, str]]:
    """Names with an underscore that a module uses and does not define."""
    tree = ast.parse(code)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lapace"):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if is_self else [node.attr]
        for name in names:
            if re.match(r"_[a-z]", name) and name not in own:
                yield node.lineno, name


def test_apps_use_public_names_only():
    code = "from lapace.table import _read\nx._cells = self._rows\nos._exit(1)\n"
    assert [name for _, name in private_names(code)] == ["_read", "_cells", "_exit"]
    others = {"_exit", "_replace", "_text"}  # of Python itself, and NiceGUI's only way to set it
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in LIBRARY
        if "apps" in path.relative_to(ROOT).parts
        for line, name in private_names(read(path))
        if name not in others
    ]
    assert not found, "\n".join(found)
