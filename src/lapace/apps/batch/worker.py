"""Makes one part: reads a row group, explains it chunk by chunk, and writes its outcomes.

A part is a pure function of its file, its row group and the settings. The counts of a part are kept
in its own file, so that both are there or neither.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lapace.apps.batch.files import Part, Place, pq, read_part
from lapace.apps.batch.outcomes import Layout, as_instances, outcome_rows
from lapace.apps.cohorts import ALL, Cohort, group_names
from lapace.errors import ClassifierError, InputError, LapaceError, first_line
from lapace.explainer import Explainer
from lapace.result import Explanation

__all__ = ["PartWorker", "new_cohort", "one_thread", "read_counts"]

Made: TypeAlias = dict[str, Any]  # the outcome of making a part, as plain JSON values

CHUNK = 1000  # rows explained at a time, from the start of a row group on
COUNTS, KEY = "lapace.counts", "lapace.key"  # metadata of a part
LONGEST_PAUSE = 60.0  # seconds

log = logging.getLogger(__name__)


@contextmanager
def one_thread() -> Iterator[None]:
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
        retries: How often rows are tried again when the classifier fails.
        pause: Seconds before the first of these; doubled before each further one.
    """

    content: bytes
    classifier: Any
    device: str
    layout: Layout
    output: Place
    key: str
    retries: int
    pause: float
    _explainer: Explainer | None = None

    def __call__(self, part: Part) -> Made:
        """Makes a part.

        Returns:
            `source` and `rows`, and either `counts`; `failed`, why the rows could not be read; or
            `stop`, why the run cannot go on.
        """
        made: Made = {"source": part.place.shown, "rows": part.rows}
        try:
            rows, cohort = read_part(part, self.layout.inputs), new_cohort(self.layout)
        except LapaceError as error:
            return {**made, "failed": str(error)}
        try:
            with one_thread():
                (self.output / part.name).write(lambda s: self._write(s, part, rows, cohort))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else first_line(error)
            return {**made, "stop": f"'{self.output.shown}' cannot be written to: {why}."}
        except InputError as error:  # these rows cannot be used
            return {**made, "failed": str(error)}
        except LapaceError as error:  # the classifier is gone
            return {**made, "stop": str(error)}
        return {**made, "counts": cohort.to_json()}

    def _write(self, stream: Any, part: Part, rows: Any, cohort: Cohort) -> None:
        """Writes the outcomes chunk by chunk, and their counts at the end."""
        layout, request = self.layout, self.layout.request
        picks, by = request.search.picks, request.by
        counted = "nearest" if "nearest" in picks else picks[0]
        with pq.ParquetWriter(stream, layout.arrow, compression="zstd") as writer:
            for begin in range(0, len(rows), CHUNK):
                chunk, first = rows.slice(begin, CHUNK), part.first + begin
                explanation = self._explain(as_instances(layout, chunk, first))
                is_feature = by is None or by in layout.schema.names
                groups = by if is_feature else chunk.column(by).to_pylist()
                cohort.add(explanation, group_names(explanation, groups), counted)
                writer.write_table(
                    outcome_rows(layout, explanation, chunk, part.place.shown, first)
                )
            metadata = {COUNTS: json.dumps(cohort.to_json()), KEY: f"{self.key} {part.footer}"}
            writer.add_key_value_metadata(metadata)

    def _explain(self, table: Any) -> Explanation:
        """Explains instances; a classifier that fails is queried again, after longer pauses."""
        for attempt in range(self.retries):
            try:
                return self.layout.request.explain(self._loaded(), table)
            except ClassifierError as error:
                log.warning("Attempt %d of %d: %s", attempt + 1, 1 + self.retries, error)
                time.sleep(min(LONGEST_PAUSE, self.pause * 2**attempt))
        return self.layout.request.explain(self._loaded(), table)

    def _loaded(self) -> Explainer:
        if self._explainer is None:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, "explainer.lapace")
                    path.write_bytes(self.content)
                    self._explainer = Explainer.load(path, self.classifier, device=self.device)
            except OSError as error:
                where = tempfile.gettempdir()
                raise LapaceError(f"'{where}' cannot be written to: {error.strerror}.") from None
        return self._explainer


def new_cohort(layout: Layout) -> Cohort:
    """Returns counts of no instances yet."""
    return Cohort(layout.schema, layout.request.by or ALL)


def read_counts(place: Place, layout: Layout) -> tuple[str, Cohort]:
    """Reads the key and the counts of a finished part."""
    try:
        with place.filesystem.open_input_file(place.path) as stream:
            metadata = pq.ParquetFile(stream).metadata.metadata
        counts = json.loads(metadata[COUNTS.encode()])
        cohort = Cohort.from_json(counts, layout.schema, layout.request.by or ALL)
        return metadata[KEY.encode()].decode(), cohort
    except Exception as error:  # a file that is none of ours, or was cut
        raise InputError(
            f"'{place.shown}' is no finished part: {first_line(error)}. Remove it, or name another "
            "folder."
        ) from None
