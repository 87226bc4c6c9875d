"""A run over Parquet files: plan, resume, make the parts, and sum up.

The output folder holds one Parquet file for each part, `_manifest.json` with the settings, and
`_summary.json`. Nothing in it depends on when or by whom a part was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lapace import __version__
from lapace.apps.batch.engines import Engine, EngineError, map_parts
from lapace.apps.batch.files import READERS, FileParts, Part, Place, find_inputs, pa, read_footers
from lapace.apps.batch.outcomes import Layout, Request, make_layout
from lapace.apps.batch.worker import CHUNK, Counts, PartWorker, read_counts
from lapace.errors import InputError, LapaceError
from lapace.explainer import Explainer
from lapace.progress import Progress
from lapace.result import STATUSES

__all__ = ["Summary", "run"]

MANIFEST, SUMMARY = "_manifest.json", "_summary.json"
FORMAT = 4
REASONS = 20  # the commonest reasons that the summary has


@dataclass
class Summary:
    """The outcome of a run, in figures.

    Attributes:
        counts: Instances by status and reason, those of earlier runs included.
        parts: How many parts there are.
        skipped: How many of them an earlier run had made.
        unreadable: Files, or parts of them, that could not be read, and why.
        stopped: Why the run ended early; empty if it did not.
        rows: How many rows this run explained.
        seconds: How long it took, Ray's start included.
    """

    counts: Counts = field(default_factory=Counter)
    parts: int = 0
    skipped: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    rows: int = 0
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every row of every file has an outcome."""
        return not (self.stopped or self.unreadable)

    @property
    def rate(self) -> float:
        """Rows explained per second in this run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def status(self) -> dict[str, int]:
        """Instances by status."""
        totals: Counter[str] = Counter()
        for (status, _), count in self.counts.items():
            totals[status] += count
        return {status: totals[status] for status in STATUSES if totals[status]}

    def reasons(self, most: int = REASONS) -> list[tuple[str, str, int]]:
        """Returns statuses, reasons and how often each occurs, the commonest first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        lines = [(status, reason, count) for (status, reason), count in ordered if reason]
        return lines[:most]

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as plain JSON values."""
        return {
            **self.lasting(),
            "stopped": self.stopped or None,
            "skipped_parts": self.skipped,
            "explained_rows": self.rows,
            "seconds": self.seconds,
            "rows_per_second": self.rate,
        }

    def lasting(self) -> dict[str, Any]:
        """Returns the figures that do not depend on when and how often the run was started."""
        return {
            "format": FORMAT,
            "complete": self.complete,
            "parts": self.parts,
            "rows": self.counts.total(),
            "status": self.status,
            "reasons": [list(line) for line in self.reasons()],
            "unreadable": dict(sorted(self.unreadable.items())),
        }


def run(
    explainer: Explainer,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    request: Request | None = None,
    *,
    identity: Mapping[str, str] | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Explains every row of Parquet files, and writes a part of outcomes for each row group.

    Called again with the same settings, it keeps the parts that are finished and makes the others;
    with other settings the folder is refused.

    Args:
        explainer: A fitted explainer. It is saved, and its classifier pickled, for the workers.
        sources: Files, folders, patterns or addresses of pyarrow's filesystems.
        output: The folder to write to, a path or an address.
        request: What is wanted of every instance.
        identity: Names or hashes of the explainer and its classifier, kept with the settings; by
            default a hash of the explainer, which holds what the classifier says of prototypes.
        engine: Where parts are made; by default on all cores here, by Ray if it is installed.
        progress: Called as `progress("explaining", done, total)` with rows.

    Returns:
        The figures of the whole run.
    """
    engine, request = engine or Engine(), request or Request()
    engine.check()
    content = _content(explainer)
    out = Place.of(output)
    listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files = read_footers(find_inputs(listed, out))
    layout = make_layout(request, explainer, _types(files))
    no_rows = explainer.schema_.frame(explainer.prototypes_[0].cells[None])[:0]
    request.explain(explainer, no_rows)  # refuses a wrong request before anything is written
    device = "cuda" if engine.gpus else "cpu"
    settings = {
        "lapace": __version__,
        "chunk": CHUNK,
        "device": device,
        **(identity or {"explainer": hashlib.sha256(content).hexdigest()}),
        **request.to_json(),
        "columns": {name: str(kind) for name, kind in layout.types.items()},
    }
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    worker = PartWorker(content, explainer.classifier, device, layout, out, key)
    out.make_folder()
    with out.held():
        _begin(out, settings, key)
        summary = Summary()
        todo = _plan(summary, out, files, layout, key)
        try:
            _make(summary, todo, worker, engine, progress or (lambda *_: None))
        finally:
            with suppress(OSError):
                out.sweep()
        if not summary.stopped:
            _finish(summary, out)
    return summary


def _content(explainer: Explainer) -> bytes:
    """Returns the content of the file that an explainer is saved to."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what is not saved
        path = Path(folder, "explainer.lapace")
        explainer.save(path)
        return path.read_bytes()


def _types(files: Sequence[FileParts]) -> dict[str, Any]:
    """Returns the type of each column: one that holds those of all files, else text."""
    kinds: dict[str, dict[Any, None]] = {}
    for file in files:
        for name, kind in file.types.items():
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            kinds.setdefault(name, {})[plain] = None
    if not kinds:
        listed = "; ".join(f"'{file.source}': {file.unreadable}" for file in files[:3])
        raise InputError(f"None of the files can be read. {listed}")
    types = {}
    for name, several in kinds.items():
        schemas = [pa.schema([(name, kind)]) for kind in several]
        try:
            types[name] = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            types[name] = pa.string()
    return types


def _begin(out: Place, settings: Mapping[str, Any], key: str) -> None:
    """Writes the manifest, or refuses a folder that was begun with other settings."""
    names = out.names()
    if MANIFEST in names:
        try:
            with out.filesystem.open_input_stream((out / MANIFEST).path) as stream:
                before = json.loads(stream.read())
            earlier_key, earlier = before["key"], before["settings"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"'{out.shown}/{MANIFEST}' is not a manifest of a run.") from None
        if earlier_key != key:
            raise InputError(_difference(out, earlier, settings))
        return
    if any(name.endswith(".parquet") for name in names):
        raise InputError(f"'{out.shown}' holds Parquet files of something else. Name a new folder.")
    _write_json(out / MANIFEST, {"format": FORMAT, "key": key, "settings": settings})


def _difference(out: Place, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Says which settings differ from those a folder was begun with."""
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    shown = [f"{n} was {before.get(n)!r} and is {now.get(n)!r}" for n in names if n != "columns"]
    said = "; ".join(shown[:3]) or "the types of the input's columns differ"
    return (
        f"'{out.shown}' was begun with other settings: {said}. Use the same ones, or name another "
        "folder."
    )


def _write_json(place: Place, data: Any) -> None:
    content = json.dumps(data, indent=1, sort_keys=True, allow_nan=False).encode()
    place.write(lambda stream: stream.write(content + b"\n"))


# ------------------------------------------------------------------------------------------------
# Parts


def _plan(
    summary: Summary, out: Place, files: Sequence[FileParts], layout: Layout, key: str
) -> list[Part]:
    """Adds the parts that are finished to the summary, and returns the others in order."""
    parts: list[Part] = []
    for file in files:
        lacking = [f"'{name}'" for name in layout.inputs if name not in file.types]
        if file.unreadable or lacking:
            why = file.unreadable or f"It has no column {', '.join(lacking[:5])}."
            summary.unreadable[file.source] = why
        else:
            parts += file.parts
    written = set(out.names())
    finished = [part for part in parts if part.name in written]
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda part: read_counts(out / part.name), finished))
    for part, (part_key, counts) in zip(finished, read, strict=True):
        if part_key != f"{key} {part.footer}":
            raise InputError(
                f"'{part.place.shown}' has changed since '{part.name}' was written. Remove its "
                "parts, or name another folder."
            )
        summary.counts.update(counts)
    summary.parts, summary.skipped = len(parts), len(finished)
    return [part for part in parts if part.name not in written]


def _make(
    summary: Summary, todo: Sequence[Part], worker: PartWorker, engine: Engine, progress: Progress
) -> None:
    """Makes the parts that are not finished, and adds them to the summary."""
    start, done = time.perf_counter(), summary.counts.total()
    total = done + sum(part.rows for part in todo)
    failed: dict[str, str] = {}  # parts whose rows cannot be used, and why
    progress("explaining", done, total)
    try:
        for made in map_parts(engine, worker, todo):
            if made.stop:
                summary.stopped = made.stop
                break
            if made.failed:
                failed[made.part.name] = made.failed
            summary.counts.update(made.counts)
            summary.rows += made.counts.total()
            done += made.part.rows
            progress("explaining", done, total)
    except EngineError as error:
        summary.stopped = str(error)
    for part in todo:  # in their order, whichever was done first
        if part.name in failed:
            earlier = summary.unreadable.get(part.place.shown, "")
            summary.unreadable[part.place.shown] = f"{earlier} {failed[part.name]}".strip()
    summary.seconds = time.perf_counter() - start


def _finish(summary: Summary, out: Place) -> None:
    """Writes the summary."""
    try:
        _write_json(out / SUMMARY, summary.lasting())
    except OSError as error:
        raise LapaceError(
            f"'{out.shown}' cannot be written to: {error.strerror or error}. All parts are there; "
            "run the same again for the summary."
        ) from None
