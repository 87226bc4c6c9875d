"""Engines that make parts: actors of Ray Data, or a plain loop where Ray is not installed.

Ray decides where and when a part is made, and makes it again when a worker dies. It moves names of
parts and counts only; rows go from the input file to the output file within one worker, so memory
does not grow with the input.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapace.apps.batch.files import Part
from lapace.errors import InputError, LapaceError, first_line, import_extra

__all__ = ["Engine", "EngineError", "map_parts"]

BLOCKS = 20_000  # work items of Ray; more parts than these share items
SMALL = 2_000  # rows, about a minute's work: Ray's start would take up what two workers gain
OBJECT_STORE = 200 * 2**20  # bytes, of a Ray that is started here: rows never go through it


class EngineError(LapaceError):
    """Ray lost its workers, or is gone: the same run may work another time."""


@dataclass(frozen=True)
class Engine:
    """How parts are made.

    Attributes:
        workers: How many at a time. 1 makes them one after another, without Ray; None takes one for
            each core if Ray is installed and there are at least 2,000 rows.
        gpus: GPUs of each worker; 0.5 lets two share one.
        address: A Ray cluster to use, as `ray.init` takes it; None to start Ray on this machine.
    """

    workers: int | None = None
    gpus: float = 0.0
    address: str | None = None

    @property
    def needs_ray(self) -> bool:
        """Whether something was asked for that only Ray can do."""
        return self.address is not None or self.gpus > 0 or (self.workers or 1) > 1

    @property
    def uses_ray(self) -> bool:
        """Whether parts may be made by actors of Ray."""
        is_installed = importlib.util.find_spec("ray") is not None
        return self.needs_ray or (self.workers is None and is_installed)

    def check(self) -> None:
        """Refuses settings that need Ray where it is not installed."""
        if self.uses_ray:
            _import_ray(self)


def map_parts(
    engine: Engine, function: Callable[[Part], Any], parts: Sequence[Part]
) -> Iterator[Any]:
    """Calls a function with each part, and yields what it returns as it is done.

    With Ray the function is pickled once for each worker, and results come in any order. A small
    job is done here unless Ray was asked for.
    """
    large = len(parts) > 1 and sum(part.rows for part in parts) >= SMALL
    if parts and engine.uses_ray and (engine.needs_ray or large):
        yield from _on_ray(engine, function, parts)
    else:
        yield from map(function, parts)


def _on_ray(
    engine: Engine, function: Callable[[Part], Any], parts: Sequence[Part]
) -> Iterator[Any]:
    with _ray(engine) as ray:
        items = [{"part": pickle.dumps(part)} for part in parts]
        dataset = ray.data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map(
            RayWorker, fn_constructor_args=(function,), **actor_options(ray, engine, len(parts))
        )
        try:
            for row in dataset.iter_rows():
                yield pickle.loads(row["made"])  # our own workers pickled it
        except ray.exceptions.RayError as error:
            raise EngineError(f"Ray failed: {first_line(error)}") from error


def _import_ray(engine: Engine) -> Any:
    """Imports Ray, which reads its settings from the environment at that moment."""
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_BACKEND_LOG_LEVEL": "fatal",  # its log files have everything
    }
    if engine.address is None and "ray" not in sys.modules:
        # One that is started here listens on loopback, as Ray does on macOS and Windows, and
        # answers only to its own processes.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import_extra("ray.data", "ray", "Several workers at a time")
    return import_extra("ray", "ray", "Several workers at a time")


def _cores() -> int | None:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()  # macOS and Windows


@contextmanager
def _ray(engine: Engine) -> Iterator[Any]:
    """Connects to Ray: the one that runs, the one at the address, or one started here."""
    ray = _import_ray(engine)
    already_running = ray.is_initialized()
    if not already_running:
        settings: dict[str, Any] = {"address": engine.address}
        if engine.address is None:
            settings = {
                "address": "local",  # not one that happens to run here
                "num_cpus": engine.workers or _cores(),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE,
            }
        try:
            if engine.address is None:  # without loopback, Ray would wait for it
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    socket.create_connection(listener.getsockname(), 10).close()
            with _quiet(), _own_termination():
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        except Exception as error:  # of many kinds: a folder, a socket, a process of Ray
            raise LapaceError(
                f"Ray could not be started or reached ({first_line(error)}). Without it "
                "(--workers 1) parts are made one after another."
            ) from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if not already_running:
            ray.shutdown()


@contextmanager
def _own_termination() -> Iterator[None]:
    """Keeps this process's way to end at SIGTERM: Ray replaces it, and would print a C++ stack."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, ended = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit:  # SIGTERM came while Ray had replaced it
        ended = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if ended:
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps off standard error what Ray's C++ code prints while it starts; errors are raised."""
    before = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def actor_options(ray: Any, engine: Engine, most: int) -> dict[str, Any]:
    """Returns the options of an actor pool: how many actors, and the resources of each.

    Args:
        ray: The module.
        engine: The engine.
        most: The largest useful number of actors.
    """
    resources = ray.cluster_resources()
    if engine.gpus and resources.get("GPU", 0) < engine.gpus:
        raise InputError(
            f"Each worker is to have {engine.gpus:g} GPUs, and Ray has {resources.get('GPU', 0):g}."
        )
    room = resources.get("GPU", 0) / engine.gpus if engine.gpus else resources.get("CPU", 1)
    options: dict[str, Any] = {
        "compute": ray.data.ActorPoolStrategy(size=min(engine.workers or int(max(1, room)), most)),
        "num_cpus": 1,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
    }
    return options | ({"num_gpus": engine.gpus} if engine.gpus else {})


class RayWorker:
    """A function of parts as an actor of Ray Data."""

    def __init__(self, function: Callable[[Part], Any]) -> None:
        self.function = function

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        """Calls the function with the part that a row of work holds."""
        return {"made": pickle.dumps(self.function(pickle.loads(row["part"])))}
