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


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# Per capability: whether it is present, and the reason to give where it is not. Only fetching
# shows whether there is `data`: its tests use the `missing` fixture.
PROBES: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (
        lambda: which("chromium") is not None and find_spec("playwright") is not None,
        "one of chromium and playwright is not installed",
    ),
    "data": (lambda: True, "a data set could not be fetched"),
    "dice": (lambda: find_spec("dice_ml") is not None, "dice-ml is not installed"),
    "gpu": (_has_gpu, "torch sees no GPU"),
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
LONGEST = {
    "test_a_killed_raylet_ends_the_run_and_it_is_resumed_without_ray",
    "test_drop_is_that_of_brute_force_with_confidence",
    *(f"test_drop_is_that_of_brute_force_with_three_labels[{k}]" for k in (1, 2, "any-other")),
    "test_eight_threads_get_the_same_explanations",
    "test_every_page_fits_the_screen[laptop]",
    "test_kills_of_a_worker_the_driver_and_a_node_change_nothing",
    "test_pages_are_accessible[light]",
    "test_the_code_in_the_pages_runs[docs/how-to/examples.md]",
    "test_the_demo_keeps_its_files_in_the_folder_named",
    "test_the_notebook_shows_what_happens[cohort]",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what needs the experiments run in small, and what takes longest."""
    for item in items:
        small = (
            "world" in getattr(item, "fixturenames", ()) and item.path.name == "test_benchmarks.py"
        )
        if small or item.name in LONGEST:
            item.add_marker(pytest.mark.slow)
