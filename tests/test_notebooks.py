"""The notebooks run, and show what they would show now."""

from __future__ import annotations

import base64
import runpy
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from docs import pages

HERE = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))


@pytest.fixture(scope="module")
def run():
    """The script that runs them."""
    return SimpleNamespace(**runpy.run_path(str(HERE / "run.py")))


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["cohort", "constraints", "first-explanation"]


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_shows_what_happens(path, run, tmp_path):
    shown = run.outputs(nbformat.read(path, as_version=4))
    assert sum(map(len, shown)) >= 4, "its outputs are not kept: run `make notebooks`"
    made = run.outputs(run.executed(path))
    assert [[kind for kind, _ in cell] for cell in made] == [
        [kind for kind, _ in cell] for cell in shown
    ]
    for new, old in zip(chain(*made), chain(*shown), strict=True):
        if new[0] == "text":
            assert not pages.differences(old[1], new[1]), f"{old[1]}\nis now\n{new[1]}"
            continue
        files = [tmp_path / "new.png", tmp_path / "old.png"]
        for file, (_, data) in zip(files, (new, old), strict=True):
            file.write_bytes(base64.b64decode(data))
        assert pages.distance(*files) < pages.TOLERANCE, "run `make notebooks`"
