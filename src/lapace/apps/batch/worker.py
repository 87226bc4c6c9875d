"""Makes one part: reads a row group, explains it chunk by chunk, and writes its outcomes.

A part is a pure function of its file, its row group and the settings. The counts of a part are kept
in its own file, so that both are there or neither.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from lapace.apps.batch.counts import Counts, count_outcomes
from lapace.apps.batch.files import Part, Place, need_pyarrow, read_part
from lapace.apps.batch.outcomes import (
    Layout,
    as_instances,
    failed_rows,
    outcome_rows,
)
from lapace.apps.loaders import finish_move, without_secrets
from lapace.errors import ClassifierError, InputError, LapaceError, first_line
from lapace.explainer import Explainer, storage

__all__ = ["Bundle", "PartWorker", "one_thread"]

Made: TypeAlias = dict[str, Any]  # what became of a part, as plain JSON values

CHUNK = 1000  # rows explained at a time, from the start of a row group on
COUNTS, KEY = b"lapace.counts", b"lapace.key"
LONGEST_PAUSE = 60.0  # seconds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bundle:
    """An explainer and its classifier, packed for workers that may share no disk.

    Attributes:
        explainer: The content of its file.
        file: Name and content of the classifier's file, if it has one.
        named: The classifier as `load_classifier` takes it, if it is no file.
        model: The classifier itself, if it was handed over in Python.
        loader: Further arguments of `load_classifier`.
        trust: Types that a skops file may hold besides known ones.
        threshold: The decision threshold and its label, if one is set.
        device: Where the explainer runs.
        name: What its file is called, for messages.
    """

    explainer: bytes
    file: tuple[str, bytes] | None = None
    named: str | None = None
    model: Any = None
    loader: Mapping[str, Any] = field(default_factory=dict)
    trust: tuple[str, ...] = ()
    threshold: tuple[float, Any] | None = None
    device: str = "cpu"
    name: str = "explainer.lapace"

    @classmethod
    def of(
        cls,
        explainer: Explainer | str | os.PathLike[str],
        classifier: Any = None,
        *,
        device: str = "cpu",
        loader: Mapping[str, Any] | None = None,
        threshold: tuple[float, Any] | None = None,
    ) -> Bundle:
        """Reads an explainer and its classifier.

        Args:
            explainer: The file, or a fitted explainer, whose classifier is then pickled.
            classifier: A file, module or address, or the classifier itself; None for the one that
                the explainer's file refers to.
            device: Where the explainer runs.
            loader: Further arguments of `load_classifier`.
            threshold: The decision threshold and its label.
        """
        settings = dict(loader or {})
        more: dict[str, Any] = {"device": device, "loader": settings, "threshold": threshold}
        more["trust"] = tuple(settings.get("trust", ()))
        if isinstance(explainer, Explainer):
            model = explainer.classifier if classifier is None else classifier
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # what is not saved
                path = Path(folder, "explainer.lapace")
                explainer.save(path)
                return cls(path.read_bytes(), model=model, **more)
        path = Path(explainer)
        reference = storage.read_reference(path)
        content = path.read_bytes()
        more["name"] = path.name
        if classifier is None and reference is not None and reference.sha256 is not None:
            beside = path.absolute().parent / reference.name
            finish_move(beside, reference.sha256)
            held = beside.read_bytes() if beside.is_file() else b""
            return cls(content, (reference.name, held) if held else None, **more)
        if isinstance(classifier, str | os.PathLike):
            text = os.fspath(classifier)
            if "://" not in text and Path(text).is_file():
                return cls(content, (Path(text).name, Path(text).read_bytes()), text, **more)
            return cls(content, named=text, **more)
        return cls(content, model=classifier, **more)

    def on(self, device: str) -> Bundle:
        """Returns this bundle for another device."""
        return replace(self, device=device)

    def load(self) -> Explainer:
        """Returns the explainer with its classifier."""
        from lapace.apps.loaders import load_classifier
        from lapace.classifier import threshold

        with tempfile.TemporaryDirectory() as folder:
            path, name = self._unpacked(Path(folder)), self.named
            if self.file is not None and name is not None:
                name = str(Path(folder, self.file[0]))
            model = self.model if name is None else load_classifier(name, **self.loader)
            if self.threshold is not None and model is not None:
                model = threshold(model, *self.threshold)
            return Explainer.load(path, model, trust=self.trust, device=self.device)

    def _unpacked(self, folder: Path) -> Path:
        """Writes the files into a folder, and returns the explainer's path there."""
        path = folder / self.name
        files = {path: self.explainer}
        if self.file is not None:
            files[folder / self.file[0]] = self.file[1]
        try:
            for file, content in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        except OSError as error:
            raise LapaceError(
                f"The temporary folder '{folder}' cannot be written to: {error.strerror}."
            ) from None
        return path

    def to_json(self) -> dict[str, Any]:
        """Returns names and hashes of the explainer and its classifier as plain JSON values."""
        values: dict[str, Any] = {"explainer": hashlib.sha256(self.explainer).hexdigest()}
        if self.file is not None:
            values["classifier"] = hashlib.sha256(self.file[1]).hexdigest()
        elif self.named is not None:
            shown = without_secrets(self.named) if "://" in self.named else self.named
            values["classifier"] = shown
        elif self.model is not None:
            values["classifier"] = type(self.model).__name__
        values["threshold"] = None if self.threshold is None else str(self.threshold)
        return {**values, "device": self.device}


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


class PartWorker:
    """Makes parts; loads the explainer and its classifier once.

    Args:
        bundle: The explainer and its classifier.
        layout: The columns of the outcomes.
        output: The folder to write to.
        key: The hash of the settings, kept in every part.
        retries: How often rows are tried again when the classifier fails.
        pause: Seconds before the first of these; doubled before each further one.
    """

    def __init__(
        self, bundle: Bundle, layout: Layout, output: Place, key: str, retries: int, pause: float
    ) -> None:
        self.bundle, self.layout, self.output, self.key = bundle, layout, output, key
        self.retries, self.pause = retries, pause
        self._explainer: Explainer | None = None
        self._given_up = False  # until the classifier answers again, rows get one attempt

    def __call__(self, part: Part) -> Made:
        """Makes a part.

        Returns:
            `name`, `source` and `rows`, and either `counts`, with the processor seconds they took
            and the memory the process then has; `failed`, why the rows could not be
            read; or `stop`, why nothing more can be written.
        """
        start = time.process_time()
        made: Made = {"name": part.name, "source": part.place.shown, "rows": part.rows}
        try:
            rows = read_part(part, self.layout.inputs)
        except LapaceError as error:
            return {**made, "failed": str(error)}
        counts = Counts.none(self.layout)
        try:
            with one_thread():
                (self.output / part.name).write(lambda s: self._write(s, part, rows, counts))
        except OSError as error:
            why = error.strerror or first_line(error)
            return {**made, "stop": f"'{self.output.shown}' cannot be written to: {why}."}
        except InputError as error:  # these rows cannot be used
            return {**made, "failed": str(error)}
        except LapaceError as error:  # this machine cannot go on
            return {**made, "stop": str(error)}
        seconds, memory = time.process_time() - start, own_memory()
        return {**made, "counts": counts.to_json(), "core_seconds": seconds, "memory": memory}

    def _write(self, stream: Any, part: Part, rows: Any, counts: Counts) -> None:
        """Writes the outcomes chunk by chunk, and the counts at the end."""
        parquet = need_pyarrow("pyarrow.parquet")
        with parquet.ParquetWriter(stream, self.layout.arrow, compression="zstd") as writer:
            for begin in range(0, len(rows), CHUNK):
                chunk = rows.slice(begin, CHUNK)
                table, counted = self._outcomes(part, chunk, part.first + begin)
                writer.write_table(table)
                counts.add(counted)
            writer.add_key_value_metadata(
                {
                    COUNTS: json.dumps(counts.to_json()).encode(),
                    KEY: f"{self.key} {part.footer}".encode(),
                }
            )

    def _outcomes(self, part: Part, chunk: Any, first: int) -> tuple[Any, Counts]:
        """Returns the outcomes of a chunk; rows say so if the classifier failed for too long."""
        layout, source = self.layout, part.place.shown
        attempts = 1 + (0 if self._given_up else self.retries)
        for attempt in range(attempts):
            try:
                explanation = layout.request.explain(
                    self._loaded(), as_instances(layout, chunk, first)
                )
                break
            except ClassifierError as error:
                log.warning("Attempt %d of %d: %s", attempt + 1, attempts, error)
                why = str(error)
                if attempt + 1 < attempts:
                    time.sleep(min(LONGEST_PAUSE, self.pause * 2**attempt))
        else:
            self._given_up = True
            counts = Counts.none(layout)
            counts.failed[why] = len(chunk)
            return failed_rows(layout, chunk, source, first, why), counts
        self._given_up = False
        table = outcome_rows(layout, explanation, chunk, source, first)
        pick = table.column(layout.names["pick"])
        lines = len(pick) - pick.null_count
        return table, count_outcomes(layout, explanation, chunk, lines)

    def _loaded(self) -> Explainer:
        if self._explainer is None:
            self._explainer = self.bundle.load()
        return self._explainer


def own_memory() -> int:
    """Returns the bytes of memory that this process holds; 0 if the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_counts(place: Place, layout: Layout) -> tuple[str, Counts]:
    """Reads the key and the counts of a finished part."""
    parquet = need_pyarrow("pyarrow.parquet")
    try:
        with place.filesystem.open_input_file(place.path) as stream:
            metadata = parquet.ParquetFile(stream).metadata.metadata
            return metadata[KEY].decode(), Counts.from_json(json.loads(metadata[COUNTS]), layout)
    except Exception as error:  # a file that is none of ours, or was cut
        raise InputError(
            f"'{place.shown}' is no finished part: {first_line(error)}. Remove it, or name another "
            "folder."
        ) from None
