"""What every test stands on: one thread, repeatable properties, and honest skips.

A test that needs something the machine may lack says so:

    @pytest.mark.needs("browser")

and is skipped where it is missing. `LAPACE_REQUIRE=browser,onnx` turns the skips of those
capabilities into failures, so that a machine meant to have them cannot pass without them. Where
only trying can tell (a data set that may or may not be within reach), the test asks the `missing`
fixture instead: `missing("data", "heloc could not be fetched")`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# The workers share the cores among themselves. Nothing above imports numpy or torch, which read
# these once, when they are loaded.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# How to tell that a capability is there, and what its absence is called. `data` has no probe:
# only fetching tells.
PROBES: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (lambda: any(map(shutil.which, BROWSERS)), "no Chromium on the PATH"),
    "dice": (lambda: find_spec("dice_ml") is not None, "dice-ml is not installed"),
    "onnx": (
        lambda: all(map(find_spec, ("onnx", "onnxruntime", "skl2onnx"))),
        "one of onnx, onnxruntime and skl2onnx is not installed",
    ),
    "ray": (lambda: find_spec("ray") is not None, "ray is not installed"),
}
CAPABILITIES = frozenset(PROBES) | {"data"}


def required() -> frozenset[str]:
    """The capabilities LAPACE_REQUIRE names; a misspelt one stops the run."""
    named = frozenset(os.environ.get("LAPACE_REQUIRE", "").replace(",", " ").split())
    if unknown := ", ".join(sorted(named - CAPABILITIES)):
        known = ", ".join(sorted(CAPABILITIES))
        raise pytest.UsageError(f"LAPACE_REQUIRE names {unknown}; known are {known}.")
    return named


def give_up(capability: str, reason: str) -> NoReturn:
    """Skip the running test, or fail it where the capability is required."""
    if capability not in CAPABILITIES:
        raise pytest.UsageError(f"'{capability}' is not one of {', '.join(sorted(CAPABILITIES))}.")
    if capability in required():
        pytest.fail(f"'{capability}' is required here, but {reason}.", pytrace=False)
    pytest.skip(f"{capability}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt requirement before any test has run."""
    required()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Honour `@pytest.mark.needs(...)`."""
    for mark in item.iter_markers("needs"):
        for capability in mark.args:
            present, reason = PROBES[capability]
            if not present():
                give_up(capability, reason)


@pytest.fixture
def missing() -> Callable[[str, str], NoReturn]:
    """Says that a capability turned out to be missing: `missing("data", "why")`."""
    return give_up
