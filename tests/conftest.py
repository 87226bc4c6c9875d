"""Settings of every test: one thread per process, repeatable properties, explicit skips.

A test that needs something a machine may lack says so:

    @pytest.mark.needs("onnx")

and is skipped where it is missing. `LAPACE_REQUIRE=data,onnx` turns the skips of those
capabilities into failures, so that a machine meant to have them cannot pass without them. Where
only trying shows it (a data set that may not be reachable), the test calls the `missing` fixture
instead: `missing("data", "heloc could not be fetched")`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree, which
from tempfile import mkdtemp
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# The workers share the cores among themselves. Nothing above imports numpy or torch, which read
# these once, when they are loaded.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

# Every run draws the same examples, wherever and however it was started;
# `--hypothesis-profile=random` draws new ones.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


# Per capability: whether it is present, and the reason to give where it is not. Only fetching
# shows whether there is `data`: its tests use the `missing` fixture.
PROBES: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (
        lambda: which("chromium") is not None and find_spec("playwright") is not None,
        "one of chromium and playwright is not installed",
    ),
    "data": (lambda: True, "a data set could not be fetched"),
    "dice": (lambda: find_spec("dice_ml") is not None, "dice-ml is not installed"),
    "nginx": (
        lambda: all(map(which, ("nginx", "openssl"))),
        "one of nginx and openssl is not installed",
    ),
    "onnx": (
        lambda: all(map(find_spec, ("onnx", "onnxruntime", "skl2onnx"))),
        "one of onnx, onnxruntime and skl2onnx is not installed",
    ),
    "ray": (lambda: find_spec("ray") is not None, "Ray is not installed"),
}


def known(*capabilities: str) -> tuple[str, ...]:
    """The capabilities, each of which has to be one of `PROBES`."""
    if unknown := ", ".join(sorted(set(capabilities) - set(PROBES))):
        raise pytest.UsageError(f"There is no capability {unknown}; there are {', '.join(PROBES)}.")
    return capabilities


def required() -> tuple[str, ...]:
    """The capabilities named by LAPACE_REQUIRE."""
    return known(*os.environ.get("LAPACE_REQUIRE", "").replace(",", " ").split())


def skip_or_fail(capability: str, reason: str) -> NoReturn:
    """Skip the running test, or fail it where the capability is required."""
    if capability in required():
        pytest.fail(f"'{capability}' is required here, but {reason}.", pytrace=False)
    pytest.skip(f"{known(capability)[0]}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt requirement before any test has run; name the folder of this run."""
    required()
    if not hasattr(config, "workerinput"):  # the workers get the folder of the first process
        os.environ["LAPACE_WORLDS"] = folder = mkdtemp(prefix="lapace-worlds-")
        config.add_cleanup(lambda: rmtree(folder, ignore_errors=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Apply `@pytest.mark.needs(...)`."""
    for mark in item.iter_markers("needs"):
        for capability in known(*mark.args):
            present, reason = PROBES[capability]
            if not present():
                skip_or_fail(capability, reason)


@pytest.fixture
def missing() -> Callable[[str, str], NoReturn]:
    """Reports that a capability turned out to be missing: `missing("data", "why")`."""
    return skip_or_fail


@pytest.fixture
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the default recipe a short one, for tests of anything but what is learned."""
    from lapace import training

    monkeypatch.setattr(training, "DEFAULT", replace(training.DEFAULT, **QUICK_FIT))


QUICK_FIT = {"hidden": 32, "batch": 128, "enough": 0}
# `make test` leaves tests that need another program or a download to `make test-all`.
OUTSIDE = {"browser", "data", "dice", "nginx", "ray"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests as `full` that need something outside Python, and those of the experiments."""
    for item in items:
        needed = {name for mark in item.iter_markers("needs") for name in mark.args}
        fixtures = getattr(item, "fixturenames", ())
        is_experiment = item.path.is_relative_to(Path(__file__).parent / "benchmarks")
        if needed & OUTSIDE or "missing" in fixtures or is_experiment:
            item.add_marker(pytest.mark.full)
