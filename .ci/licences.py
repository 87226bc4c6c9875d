"""Lists the licence of every package that `lapace[all]` installs: `make licences`."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
# Those that let anyone use, change and pass on what they cover, and ask for no more than a notice;
# MPL asks for changes to its own files, LGPL for a library that can be replaced.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "HPND", "ISC", "LGPL", "MIT", "MIT-CMU", "MPL-2.0", "NCSA", "PSF-2.0",
    "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
# As packages write it that have no expression in their metadata.
SPELLINGS = {
    r"apache": "Apache-2.0",
    r"3-clause|new bsd|bsd-3": "BSD-3-Clause",
    r"\bbsd\b": "BSD",
    r"\bmit\b|expat": "MIT",
    r"mozilla public license 2|mpl.2": "MPL-2.0",
    r"\bpsf\b|python software foundation": "PSF-2.0",
    r"\bisc\b": "ISC",
    r"unlicense": "Unlicense",
}


def installed() -> set[str]:
    """The packages that `lapace[all]` needs here, by their canonical names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *_extra(project["optional-dependencies"], "all")]
    names: set[str] = set()
    for text in needed:
        _add(Requirement(text), "", names, set())
    return names


def _extra(extras: dict[str, list[str]], name: str) -> Iterator[str]:
    """What an extra needs; one that names others of our own needs what they need."""
    for text in extras[name]:
        if Requirement(text).name == "lapace":
            for other in Requirement(text).extras:
                yield from _extra(extras, other)
        else:
            yield text


def _add(needed: Requirement, extra: str, names: set[str], seen: set[tuple[str, str]]) -> None:
    """Adds a package and all it needs, unless a marker says that it is not needed here."""
    if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
        return
    try:
        found = distribution(needed.name)
    except PackageNotFoundError:  # on another system, or of another build of torch
        return
    names.add(canonicalize_name(needed.name))
    for more in ("", *needed.extras):
        if (needed.name, more) not in seen:
            seen.add((needed.name, more))
            for text in found.requires or ():
                _add(Requirement(text), more, names, seen)


def licence(package: Distribution) -> str:
    """A package's licence as an expression, or as it is written where none is known."""
    known = package.metadata
    if expression := known.get("License-Expression"):
        return str(expression)
    said = [c.rpartition(" :: ")[2] for c in known.get_all("Classifier") or () if "License" in c]
    said.append((known.get("License") or "").strip()[:60])
    files = [file for file in package.files or () if file.name.startswith("LICENSE")]
    said += [file.read_text(encoding="utf-8").strip()[:60] for file in files[:1]]
    for text in said:
        for spelling, name in SPELLINGS.items():
            if re.search(spelling, text, flags=re.IGNORECASE):
                return name
    return next((text for text in said if text), "not said")


def is_allowed(expression: str) -> bool:
    """Whether one alternative of an expression has allowed licences only."""
    alternatives = re.split(r"\s+OR\s+", re.sub(r"[()]", "", expression))
    return any(
        all(part.split(" WITH ")[0].strip() in ALLOWED for part in re.split(r"\s+AND\s+", each))
        for each in alternatives
    )


def lines() -> Iterator[str]:
    """Yields a line for every package."""
    yield "What `pip install 'lapace[all]'` installs. A test refuses a licence that asks for more"
    yield "than a notice or changes to its own files. lapace is under the MIT licence. Builds of"
    yield "torch for GPUs bring NVIDIA's libraries, under their own terms."
    yield ""
    for name in sorted(installed()):
        yield f"{name}: {licence(distribution(name))}"


if __name__ == "__main__":
    sys.stdout.write("\n".join([*lines(), ""]))
