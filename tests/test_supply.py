"""What is installed with lapace: pins, hashes, licences, and what is built."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.utils import canonicalize_name

import lapace
from tests.processes import ROOT, python

NVIDIA = ("cuda-", "nvidia-", "triton")  # of another build of torch than that for CPUs


@pytest.fixture(scope="module")
def licences():
    """The script that lists licences."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "licences.py")))


def pins(name):
    """Versions by package, of a file of requirements."""
    text = (ROOT / name).read_text()
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def test_what_users_install_is_pinned_as_tested_and_hashed(licences):
    locked, tested = pins("requirements.txt"), pins("constraints.txt")
    differ = {name for name in locked.keys() & tested.keys() if locked[name] != tested[name]}
    assert not differ, "run `make lock`"
    missing = {n for n in licences.installed() - locked.keys() if not n.startswith(NVIDIA)}
    assert not missing, "run `make lock`"
    for block in re.split(r"\n(?=\w)", (ROOT / "requirements.txt").read_text()):
        assert block.startswith("#") or "--hash=sha256:" in block, block


def test_licences_are_allowed(licences):
    names = [name for name in licences.installed() if not name.startswith(NVIDIA)]
    assert len(names) > 50
    for name in names:
        known = licences.licence(distribution(name))
        assert licences.is_allowed(known), f"{name} is under {known}"
    listed = list(licences.lines())
    assert f"torch: {licences.licence(distribution('torch'))}" in listed


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("(Apache-2.0 AND MIT)", True),
        ("MIT AND AGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("not said", False),
    ],
)
def test_a_licence_is_allowed_where_one_alternative_is(expression, allowed, licences):
    assert licences.is_allowed(expression) is allowed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What `make dist` builds: the source archive, and from it the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    done = python("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_is_built_from_the_source_archive(wheel):
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    assert {"requirements.txt", "docs/index.md", "README.md", "tests/worlds.py"} <= inside
    with zipfile.ZipFile(wheel) as built:
        names = {n for n in built.namelist() if ".dist-info/" not in n}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/lapace"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert names == {name.removeprefix("src/") for name in tracked if (ROOT / name).exists()}


@pytest.mark.full
def test_the_example_of_the_readme_runs_from_the_wheel(wheel, tmp_path):
    """In an empty environment, which only finds the packages that lapace needs here.

    `make dist-check` installs those too, from the index.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=tmp_path, check=True)
    python = tmp_path / "env" / "bin" / "python"
    needs = sysconfig.get_path("purelib")
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (packages / "needs.pth").write_text(f"{needs}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-qq", "--no-deps", "--no-index", str(wheel)], check=True)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=bare, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(python, "-c", "import lapace; print(lapace.__file__)").strip()
    assert Path(where).is_relative_to(packages)
    assert run(tmp_path / "env" / "bin" / "lapace", "--version").split()[-1] == lapace.__version__
    # Fails where what the page shows was not printed, or its picture is another one.
    run(python, ROOT / "docs" / "pages.py", "--check", "README.md")


def test_the_versions_of_python_named_are_those_that_were_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == ">=3.11"
