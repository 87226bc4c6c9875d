"""Every script in `examples/` runs, in a folder of its own, and leaves what it says it leaves."""

from __future__ import annotations

import re

import pytest

from tests.processes import ROOT, environment, python

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# The pictures each script writes, and what it must have said.
EXPECTED = {"illustration": ({"illustration.png"}, r"\d of 3 paths lead to 'appr")}


def test_every_script_is_expected_to_leave_something():
    assert {script.stem for script in SCRIPTS} == set(EXPECTED)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_runs(script, tmp_path):
    more = environment(LAPACE_FAST="1", MPLBACKEND="Agg", PYTHONIOENCODING="utf-8")
    done = python("-W", "error", script, cwd=tmp_path, env=more, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    files, sentence = EXPECTED[script.stem]
    written = {path.name: path for path in tmp_path.rglob("*") if path.is_file()}
    assert set(written) == files
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.values())
    assert re.search(sentence, done.stdout), f"{sentence!r} is not in:\n{done.stdout}"


def test_the_picture_in_the_readme_is_a_small_file():
    assert (ROOT / "docs" / "images" / "illustration.png").stat().st_size < 300_000
