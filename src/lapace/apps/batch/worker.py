"""Makes one part: reads a row group, explains it chunk by chunk, and writes its outcomes.

A part is a pure function of its file, its row group and the settings. The counts of a part are kept
in its own file, so that both are there or neither.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from lapace.apps.batch.files import Part, Place, pq, read_part
from lapace.apps.batch.outcomes import Layout, as_instances, outcome_rows
from lapace.errors import InputError, LapaceError, first_line
from lapace.explainer import Explainer
from lapace.result import Explanation

__all__ = ["CHUNK", "Counts", "Made", "PartWorker", "read_counts"]

Counts: TypeAlias = Counter[tuple[str, str]]  # instances by status and reason; answered have none

CHUNK = 1000  # rows explained at a time, from the start of a row group on
COUNTS, KEY = "lapace.counts", "lapace.key"  # metadata of a part


@contextmanager
def _one_thread() -> Iterator[None]:
    """Holds numeric libraries at one thread, since the last digits of sums depend on it."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Made:
    """The outcome of making a part.

    Attributes:
        part: The part.
        counts: Its instances by status and reason; empty if it was not made.
        failed: Why its rows could not be used; empty if they could.
        stop: Why the run cannot go on; empty if it can.
    """

    part: Part
    counts: Counts = field(default_factory=Counter)
    failed: str = ""
    stop: str = ""


@dataclass
class PartWorker:
    """Makes parts; loads the explainer once. It is pickled for workers that may share no disk.

    Attributes:
        content: The content of the explainer's file.
        classifier: Its classifier.
        device: Where the explainer runs.
        layout: The columns of the outcomes.
        output: The folder to write to.
        key: The hash of the settings, kept in every part.
    """

    content: bytes
    classifier: Any
    device: str
    layout: Layout
    output: Place
    key: str

    def __call__(self, part: Part) -> Made:
        """Makes a part."""
        counts: Counts = Counter()
        try:
            rows = read_part(part, self.layout.inputs)
            with _one_thread():
                (self.output / part.name).write(lambda s: self._write(s, part, rows, counts))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else first_line(error)
            return Made(part, stop=f"'{self.output.shown}' cannot be written to: {why}.")
        except InputError as error:  # these rows cannot be used
            return Made(part, failed=str(error))
        except LapaceError as error:  # the classifier is gone
            return Made(part, stop=str(error))
        return Made(part, counts)

    def _write(self, stream: Any, part: Part, rows: Any, counts: Counts) -> None:
        """Writes the outcomes chunk by chunk, and their counts at the end."""
        layout = self.layout
        with pq.ParquetWriter(stream, layout.arrow, compression="zstd") as writer:
            for begin in range(0, len(rows), CHUNK):
                chunk, first = rows.slice(begin, CHUNK), part.first + begin
                instances = as_instances(layout, chunk, first)
                explanation = layout.request.explain(self._explainer, instances)
                counts.update(_reasons(explanation))
                writer.write_table(
                    outcome_rows(layout, explanation, chunk, part.place.shown, first)
                )
            counted = json.dumps(sorted(counts.items()))
            metadata = {COUNTS: counted, KEY: f"{self.key} {part.footer}"}
            writer.add_key_value_metadata(metadata)

    @cached_property
    def _explainer(self) -> Explainer:
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "explainer.lapace")
                path.write_bytes(self.content)
                return Explainer.load(path, self.classifier, device=self.device)
        except OSError as error:
            where = tempfile.gettempdir()
            raise LapaceError(f"'{where}' cannot be written to: {error.strerror}.") from None


def _reasons(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yields the status of each instance, and why it has no counterfactual if it has none."""
    ids = explanation.ids or range(len(explanation))
    for status, reason, i in zip(explanation.status, explanation.reason, ids, strict=True):
        without = status in ("answered", "already_target")
        yield status, "" if without else reason.replace(f" in row {i}", "")


def read_counts(place: Place) -> tuple[str, Counts]:
    """Reads the key and the counts of a finished part."""
    try:
        metadata = pq.read_metadata(place.path, filesystem=place.filesystem).metadata
        counts = json.loads(metadata[COUNTS.encode()])
        return metadata[KEY.encode()].decode(), Counter({tuple(key): n for key, n in counts})
    except Exception as error:  # a file that is none of ours, or was cut
        raise InputError(
            f"'{place.shown}' is not a finished part: {first_line(error)}. Remove it, or name "
            "another folder."
        ) from None
