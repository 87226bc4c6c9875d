"""Every script in `examples/` runs, in a folder of its own, and leaves what it says it leaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))

# What each script writes, and what it must have said.
EXPECTED = {
    "demo": (
        {f"demo-output/{name}.png" for name in ("path", "prototypes", "latent-map", "training")},
        (
            r"Can it be trusted\?\n─+\n\s*\S",
            r"Option 1: approved, .* if\n(    .+  →  .+\n)+",
            r"not the legal\s+reason",
        ),
    ),
    "illustration": (
        {"illustration.png"},
        (r"\d of 3 paths lead to 'approved'",),
    ),
}


def test_every_script_is_expected_to_leave_something():
    assert {script.stem for script in SCRIPTS} == set(EXPECTED)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_runs(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            "LAPACE_FAST": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONIOENCODING": "utf-8",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files, sentences = EXPECTED[script.stem]
    written = {p.relative_to(tmp_path).as_posix(): p for p in tmp_path.rglob("*") if p.is_file()}
    assert set(written) == files
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.values())
    for sentence in sentences:
        assert re.search(sentence, done.stdout), f"{sentence!r} is not in:\n{done.stdout}"


def test_the_picture_in_the_readme_is_a_small_file():
    picture = ROOT / "docs" / "images" / "illustration.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 300_000
