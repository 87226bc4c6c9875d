"""Several processes behind one socket, for `serve --workers`.

The process that is started opens the socket, forks workers before anything heavy is loaded, and
looks after them: one that dies is started again, and a signal to stop is passed on. Which worker a
connection goes to is up to the kernel.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from lapace.cli.app import TERMINATED, TerminatedError
from lapace.errors import InputError

if TYPE_CHECKING:
    import socket

__all__ = ["Worker", "workers"]

RESTARTS = 5  # of workers within a minute; then all stop
LONGEST = 20.0  # seconds that workers get to stop


@dataclass(frozen=True)
class Worker:
    """What a worker process was given.

    Attributes:
        number: Which one it is, from 0.
        listener: The socket that all share; None for the only process.
        folder: Where workers leave their counts for each other; None for the only process.
        started: Called once it listens.
        speaks: Whether it prints remarks, for all of them.
    """

    number: int = 0
    listener: socket.socket | None = None
    folder: Path | None = None
    started: Callable[[], None] = lambda: None
    speaks: bool = True


@contextmanager
def workers(count: int, host: str, port: int) -> Iterator[Worker]:
    """Goes on as one process, or in as many: the block is run by each of them.

    Args:
        count: How many processes.
        host: The address to listen on.
        port: The port; 0 for any that is free.
    """
    if count < 1:
        raise InputError(f"--workers {count} is no number of processes: give one from 1.")
    if count == 1:
        yield Worker()
        return
    if not hasattr(os, "fork"):
        raise InputError("Several workers need fork, which this system lacks. Leave out --workers.")
    from lapace.server.running import listen

    with listen(host, port) as listener, tempfile.TemporaryDirectory(prefix="lapace-") as folder:
        crew = _Crew(count, listener, Path(folder))
        worker = crew.look_after()
        if worker is None:
            raise typer.Exit(crew.code)
        code = 0
        try:
            yield worker
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except typer.Exit as error:
            code = error.exit_code
        except TerminatedError:
            code = TERMINATED
        except BaseException as error:
            from lapace.cli.app import print_error

            code = print_error(error) if isinstance(error, Exception) else 1
        finally:
            # What belongs to the first process, such as the folder, is not cleaned up here.
            sys.stderr.flush()
            os._exit(code)


@dataclass
class _Crew:
    """The workers of one socket, as the first process sees them."""

    count: int
    listener: socket.socket
    folder: Path
    code: int = 0
    running: dict[int, int] = field(default_factory=dict)  # numbers by process
    ended: list[float] = field(default_factory=list)  # when workers died
    stopping: bool = False
    alive: tuple[int, int] = field(default_factory=os.pipe)  # closed with this process

    def look_after(self) -> Worker | None:
        """Starts the workers and waits for their end; returns in each of them what it was given."""
        before = {s: signal.signal(s, self._stop) for s in (signal.SIGTERM, signal.SIGINT)}
        for number in range(self.count):
            worker = self._start(number, before, wait=number == 0)
            if worker is not None:
                return worker
            if self.stopping:
                break
        while self.running:
            pid, status = _wait()
            number = self.running.pop(pid, -1)
            if self.stopping or number < 0:
                continue
            now = time.monotonic()
            self.ended = [t for t in self.ended if now - t < 60] + [now]
            if len(self.ended) > RESTARTS:
                _say("Workers keep dying: all stop.")
                self.code = os.waitstatus_to_exitcode(status) or 1
                self._stop(signal.SIGTERM, None)
                continue
            _say(f"Worker {number} died; it is started again.")
            worker = self._start(number, before)
            if worker is not None:
                return worker
        for number_, handler in before.items():
            signal.signal(number_, handler)
        return None

    def _start(
        self, number: int, before: dict[signal.Signals, Any], *, wait: bool = False
    ) -> Worker | None:
        """Forks one worker; in it returns what it is given. Waits until it listens, or ends."""
        ready, says = os.pipe()
        pid = os.fork()
        if not pid:
            for handled, handler in before.items():
                signal.signal(handled, handler)
            os.close(ready)
            os.close(self.alive[1])
            threading.Thread(target=_end_with_parent, args=(self.alive[0],), daemon=True).start()
            return Worker(number, self.listener, self.folder, lambda: _written(says), wait)
        os.close(says)
        self.running[pid] = number
        if wait and not _read(ready):  # it ended before it listened, and has said why
            _, status = os.waitpid(pid, 0)
            del self.running[pid]
            self.code, self.stopping = os.waitstatus_to_exitcode(status) or 1, True
        os.close(ready)
        return None

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Passes a signal on; a second one, or patience at its end, kills."""
        how = signal.SIGKILL if self.stopping else signal.SIGTERM
        if not self.stopping and number == signal.SIGTERM:
            self.code = self.code or TERMINATED
        self.stopping = True
        for pid in self.running:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, LONGEST)


def _wait() -> tuple[int, int]:
    try:
        return os.wait()
    except ChildProcessError:
        return -1, 0


def _read(pipe: int) -> bytes:
    return os.read(pipe, 1)


def _written(pipe: int) -> None:
    with suppress(OSError):
        os.write(pipe, b"1")
        os.close(pipe)


def _end_with_parent(pipe: int) -> None:
    """In a worker's thread: stops it when the first process is gone."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
    from lapace.cli.outputs import say

    say(f"lapace: {text}")
