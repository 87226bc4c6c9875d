"""The code of the pages: runs it, compares what it prints and draws with what the pages show.

    python docs/pages.py              # makes every picture anew, and says which outputs differ
    python docs/pages.py README.md    # of one page
    python docs/pages.py --check      # changes nothing; fails where something differs

A picture that the code of a page saves is shown from `docs/images`. Outputs are the `text` blocks
right below a block of code. What a page fetches on the command line, `lapace data fetch …`, is
there for its code. The tests run the same functions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
# Another machine, or a faster way to train, rounds otherwise, and the search may end at another
# feature: outputs are compared by their words, and pictures in small, unless asked for exactly.
TOLERANCE = 0.35  # of the ink of two pictures

# So may a value that lies near its threshold, and what it decides: a verdict shown as passing may
# be unsure elsewhere. One that fails is noticed.
VERDICT = re.compile(r"^(Report on the explanations): (?!.*fails).*|^ *(?:passes|unsure)  +")

FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n]*$")
FETCH = re.compile(r"^lapace (data fetch .*)$", re.MULTILINE)
NOT_RUN = re.compile(r"^\s*<!-- not run: \S.*-->\s*$")


class Block(NamedTuple):
    """A block of Python in a page."""

    line: int  # of its first line of code, counted from 1
    code: str
    shown: str = ""  # the output shown right below it


def blocks(text: str) -> list[Block]:
    """The ```python blocks of a Markdown page that are meant to run.

    One that is not meant to run says why on the line before it: `<!-- not run: why -->`.
    """
    found: list[Block] = []
    before, fence, start, last = "", None, 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence, start, run = mark, number, not NOT_RUN.match(before)
        elif fence and mark and mark[2].startswith(fence[2]) and not mark[3]:
            language = fence[3].strip("{.}").lower()
            assert language != "pycon", f"line {start}: write ```python, so that it is run"
            code = textwrap.dedent("\n".join(lines[start : number - 1]))
            if run and language in {"py", "python", "python3"}:
                found.append(Block(start + 1, code))
            elif language == "text" and last:
                found[-1] = found[-1]._replace(shown=code)
            last = run and language in {"py", "python", "python3"}
            fence = None
        elif fence is None and line.strip():
            last = False
        before = line
    assert fence is None, f"line {start}: this block is never closed"
    return found


def run(page: Path) -> list[tuple[Block, str]]:
    """Runs the code of a page in the current folder; each block with what it printed."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    record = []
    text = page.read_text(encoding="utf-8")
    for line in FETCH.findall(text):
        fetch = [sys.executable, "-m", "lapace.apps.cli", *shlex.split(line, comments=True)]
        subprocess.run(fetch, check=True, capture_output=True)
    for block in blocks(text):
        # Empty lines in front make a traceback point at the line in the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        record.append((block, printed.getvalue()))
    return record


def words(line: str) -> str:
    """A line without what may differ between machines: figures, and verdicts but *fails*."""
    return " ".join(re.findall(r"[^\W\d]{3,}", VERDICT.sub(r"\1", line)))


def differences(shown: str, printed: str, *, exact: bool = False) -> list[str]:
    """Lines shown that were not printed; `…` stands for any lines.

    Unless `exact`, only `words` count, and in between the first and the last line up to half of
    the lines may differ.
    """

    def plain(line: str) -> str:
        return " ".join(line.split()) if exact else words(line)

    known = [plain(line) for line in printed.splitlines()]
    lines = [line for line in shown.splitlines() if line.strip("… ") and plain(line)]
    lost = [line for line in lines if plain(line.rstrip("…")) not in known]
    if exact or not lines or {lines[0], lines[-1]} & set(lost) or len(lost) > len(lines) / 2:
        return lost
    return []


def distance(one: Path, other: Path) -> float:
    """How far two pictures differ, seen in small: the share of their ink that is not common.

    0 where they are equal, 1 where what one draws the other leaves blank.
    """
    import numpy as np
    from PIL import Image

    ink = []
    for path in (one, other):
        with Image.open(path) as picture:
            small = np.asarray(picture.convert("L").resize((64, 64)), dtype=float)
        ink.append(np.abs(small - np.median(small)) / 255)
    return float(np.abs(ink[0] - ink[1]).sum() / max(np.maximum(*ink).sum(), 1e-9))


def pictures(folder: Path) -> dict[str, float]:
    """Pictures in a folder that a page shows, with their distance from the ones shown."""
    return {
        made.name: distance(made, IMAGES / made.name)
        for made in sorted(folder.glob("*.png"))
        if (IMAGES / made.name).exists()
    }


# What is drawn by a script or seen in a browser; all else by the code of a page.
SCRIPTS = {
    "illustration": ["examples/illustration.py", str(IMAGES / "illustration.png")],
    "workbench": [
        "-m",
        "pytest",
        "-q",
        "tests/apps/test_workbench_browser.py",
        "-k",
        "finds_keeps",
    ],
}
WITH_PICTURES = ("README.md", "docs/start/first-explanation.md", "docs/how-to/examples.md")


def main(names: list[str], *, check: bool, exact: bool) -> int:
    """Makes pictures anew, or only checks them, and says which outputs differ."""
    wrong = 0
    for name in names or [*WITH_PICTURES, *SCRIPTS]:
        if name in SCRIPTS and check:
            continue  # they need minutes, or a browser
        if name in SCRIPTS:
            environment = {**os.environ, "LAPACE_PICTURES": str(IMAGES)}
            subprocess.run([sys.executable, *SCRIPTS[name]], cwd=ROOT, env=environment, check=True)
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for block, printed in run(ROOT / name):
                lost = differences(block.shown, printed, exact=exact)
                wrong += bool(lost)
                if lost:
                    print(f"{name}:{block.line} shows what was not printed. Printed:\n{printed}")
            for picture, far in pictures(Path(folder)).items():
                print(f"{picture}: {far:.4f} from the one shown before")
                wrong += check and far > (0 if exact else TOLERANCE)
                if not check:
                    shutil.copy(picture, IMAGES / picture)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="such as README.md; by default all with pictures")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--exact", action="store_true", help="compare figures and pixels too")
    options = parser.parse_args()
    sys.exit(main(options.pages, check=options.check, exact=options.exact))
