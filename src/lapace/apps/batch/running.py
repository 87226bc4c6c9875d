"""A run over Parquet files: plan, resume, make the parts, and sum up.

The output folder holds one Parquet file for each part, `_manifest.json` with the settings and the
counts of each part, and `_summary.json`. Nothing in it depends on when or by whom a part was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lapace import __version__
from lapace.apps.batch.counts import Counts
from lapace.apps.batch.engines import Engine, EngineError, map_parts
from lapace.apps.batch.files import (
    READERS,
    FileParts,
    Part,
    Place,
    find_inputs,
    lacking_columns,
    need_pyarrow,
    read_footers,
)
from lapace.apps.batch.outcomes import FAILED, Layout, Request, make_layout
from lapace.apps.batch.worker import CHUNK, Bundle, Made, PartWorker, read_counts
from lapace.errors import InputError, LapaceError
from lapace.explainer import Explainer

__all__ = ["Summary", "run"]

MANIFEST, SUMMARY = "_manifest.json", "_summary.json"
FORMAT = 1


@dataclass(frozen=True)
class Summary:
    """The outcome of a run, in figures.

    Attributes:
        counts: Counts of all parts, those of earlier runs included.
        parts: How many there are.
        skipped: How many of them an earlier run had made.
        unreadable: Files, or parts of them, that could not be read, and why.
        stopped: Why the run ended early; empty if it did not.
        engine: What made the parts: `ray` or `loop`.
        rows: How many rows this run explained.
        seconds: How long it took, Ray's start included.
        core_seconds: Processor seconds of the workers.
        memory: The most memory a worker held after a part, in bytes.
        by: The column whose groups are compared.
    """

    counts: Counts
    parts: int
    skipped: int
    unreadable: Mapping[str, str]
    stopped: str
    engine: str
    rows: int
    seconds: float
    core_seconds: float = 0.0
    memory: int = 0
    by: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every row of every file has an outcome, and none failed."""
        return not (self.stopped or self.unreadable or self.counts.status[FAILED])

    @property
    def rate(self) -> float:
        """Rows explained per second in this run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as plain JSON values."""
        return {
            **self.lasting(),
            "stopped": self.stopped or None,
            "engine": self.engine,
            "skipped_parts": self.skipped,
            "explained_rows": self.rows,
            "seconds": self.seconds,
            "rows_per_second": self.rate,
            "core_seconds": self.core_seconds,
            "memory": self.memory,
        }

    def lasting(self) -> dict[str, Any]:
        """Returns the figures that do not depend on when and how often the run was started."""
        cohort = self.counts.cohort
        lines = {"costs": cohort.cost_lines(), "features": cohort.feature_lines()}
        groups = {name: [*_records(table)] for name, table in lines.items()}
        p_values = {"p_cost": cohort.p_cost, "p_answered": cohort.p_answered}
        return {
            "format": FORMAT,
            "complete": self.complete,
            "parts": self.parts,
            **self.counts.summary(),
            "unreadable": dict(sorted(self.unreadable.items())),
            "cohort": {
                "by": self.by,
                "sentences": cohort.sentences,
                **{name: _plain(p) for name, p in p_values.items()},
                **groups,
            },
        }


def _records(lines: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(lines, map(_plain, row), strict=True)) for row in zip(*lines.values(), strict=True)
    ]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value  # noqa: PLR0124  NaN


def run(
    explainer: Explainer | str | os.PathLike[str] | Bundle,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    request: Request | None = None,
    *,
    classifier: Any = None,
    engine: Engine | None = None,
    retries: int = 5,
    pause: float = 2.0,
    retry_failed: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Summary:
    """Explains every row of Parquet files, and writes a part of outcomes for each row group.

    Called again with the same settings, it keeps the parts that are finished and makes the others;
    with other settings the folder is refused.

    Args:
        explainer: A fitted explainer, or the file of one.
        sources: Files, folders, patterns or addresses of pyarrow's filesystems.
        output: The folder to write to, a path or an address.
        request: What is wanted of every instance.
        classifier: As for `explain`.
        engine: Where parts are made; by default on all cores here, by Ray if it is installed.
        retries: How often rows are tried again when the classifier fails; then they are written
            with the status `failed`.
        pause: Seconds before the first of these attempts; doubled before each further one.
        retry_failed: Make parts again that have such rows.
        progress: Called as `progress("explaining", done, total)` with rows.

    Returns:
        The figures of the whole run.
    """
    need_pyarrow()
    engine, request = engine or Engine(), request or Request()
    engine.check()
    device = "cuda" if engine.gpus else "cpu"
    if isinstance(explainer, Bundle):
        bundle = explainer
    else:
        bundle = Bundle.of(explainer, classifier, device=device)
    out = Place.of(output)
    files = read_footers(find_inputs(_listed(sources), out))
    loaded = bundle.on("cpu").load()
    layout = make_layout(request, loaded, _types(files))
    no_rows = layout.schema.frame(loaded.prototypes_[0].cells[None])[:0]
    request.explain(loaded, no_rows)  # refuses a wrong request before anything is written
    settings = _settings(bundle, request, layout)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    out.make_folder()
    with out.locked():
        _begin(out, settings, key)
        out.sweep()
        plan = _Plan.of(out, files, layout, key, retry_failed=retry_failed)
        worker = PartWorker(bundle, layout, out, key, retries, pause)
        summary = _make(plan, worker, engine, request.by, progress)
        _finish(out, plan, summary, settings, key)
    return summary


def _listed(sources: Any) -> list[Any]:
    return [sources] if isinstance(sources, str | os.PathLike) else list(sources)


def _types(files: Sequence[FileParts]) -> dict[str, Any]:
    """Returns the type of each column: text where files differ, but for widths of numbers."""
    pa = need_pyarrow()
    types: dict[str, Any] = {}
    for file in files:
        for name, kind in (file.types or {}).items():
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            before = types.setdefault(name, plain)
            if before != plain:
                types[name] = _wider(pa, before, plain)
    if not types:
        reasons = {file.source: file.unreadable for file in files}
        listed = "; ".join(f"'{source}': {why}" for source, why in list(reasons.items())[:3])
        raise InputError(f"None of the files can be read. {listed}")
    return types


def _wider(pa: Any, one: Any, other: Any) -> Any:
    numbers = [pa.types.is_integer(k) or pa.types.is_floating(k) for k in (one, other)]
    if all(map(pa.types.is_integer, (one, other))):
        return pa.int64()
    if all(numbers):
        return pa.float64()
    return pa.string()


def _settings(bundle: Bundle, request: Request, layout: Layout) -> dict[str, Any]:
    """Returns everything that determines the outcomes, but the input."""
    return {
        "lapace": __version__,
        "chunk": CHUNK,
        **bundle.to_json(),
        **request.to_json(),
        "columns": layout.to_json(),
    }


def _begin(out: Place, settings: Mapping[str, Any], key: str) -> None:
    """Writes the manifest, or refuses a folder that was begun with other settings."""
    names = out.names()
    if MANIFEST in names:
        try:
            before = json.loads((out / MANIFEST).read())
            earlier_key, earlier = before["key"], before["settings"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"'{out.shown}/{MANIFEST}' is no manifest of a run.") from None
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


@dataclass
class _Plan:
    """The parts of a run: those to make and those that are finished.

    Attributes:
        todo: Parts to make, in order.
        done: Rows and statuses by finished part.
        counts: Counts of all finished parts.
        unreadable: Files, or parts of them, that cannot be read, and why.
    """

    todo: list[Part]
    done: dict[str, dict[str, Any]]
    counts: Counts
    unreadable: dict[str, str]

    @classmethod
    def of(
        cls, out: Place, files: Sequence[FileParts], layout: Layout, key: str, *, retry_failed: bool
    ) -> _Plan:
        unreadable = {file.source: file.unreadable for file in files if file.unreadable}
        parts: list[Part] = []
        for file in files:
            lacking = lacking_columns(layout.inputs, file.types or ()) if file.parts else ""
            if lacking:
                unreadable[file.source] = lacking
            else:
                parts += file.parts
        plan = cls([], {}, Counts.none(layout), unreadable)
        written = set(out.names())
        finished = [part.name for part in parts if part.name in written]
        with ThreadPoolExecutor(READERS) as pool:
            read = pool.map(lambda name: read_counts(out / name, layout), finished)
            counts_by_part = dict(zip(finished, read, strict=True))
        for part in parts:
            part_key, counts = counts_by_part.get(part.name, ("", None))
            if counts is not None and part_key != f"{key} {part.footer}":
                raise InputError(
                    f"'{part.place.shown}' has changed since '{part.name}' was written. Remove its "
                    "parts, or name another folder."
                )
            if counts is None or (retry_failed and counts.status[FAILED]):
                plan.todo.append(part)
            else:
                plan.add(part.name, counts)
        return plan

    def add(self, name: str, counts: Counts) -> None:
        """Adds a finished part."""
        self.counts.add(counts)
        status = counts.summary()["status"]
        self.done[name] = {"rows": counts.rows, "status": status}


def _make(
    plan: _Plan,
    worker: PartWorker,
    engine: Engine,
    by: str | None,
    progress: Callable[[str, int, int], None] | None,
) -> Summary:
    """Makes the parts that are not finished, and sums up."""
    engine = engine.chosen(len(plan.todo))
    skipped, start = len(plan.done), time.perf_counter()
    explained, done = 0, plan.counts.rows
    total = done + sum(part.rows for part in plan.todo)
    stopped, cores, memory = "", 0.0, 0
    if progress is not None:
        progress("explaining", done, total)
    try:
        for made in map_parts(engine, worker, plan.todo):
            stopped = made.get("stop", "")
            if stopped:
                break
            explained += _add(plan, made, worker.layout)
            cores += made.get("core_seconds", 0.0)
            memory = max(memory, made.get("memory", 0))
            done += made["rows"]
            if progress is not None:
                progress("explaining", done, total)
    except EngineError as error:
        stopped = str(error)
    return Summary(
        plan.counts,
        skipped + len(plan.todo),
        skipped,
        plan.unreadable,
        stopped,
        "ray" if engine.uses_ray else "loop",
        explained,
        time.perf_counter() - start,
        cores,
        memory,
        by,
    )


def _add(plan: _Plan, made: Made, layout: Layout) -> int:
    """Adds a part that was made or could not be read; returns how many rows were explained."""
    if "failed" in made:
        before = plan.unreadable.get(made["source"], "")
        plan.unreadable[made["source"]] = " ".join(filter(None, [before, made["failed"]]))
        return 0
    counts = Counts.from_json(made["counts"], layout)
    plan.add(made["name"], counts)
    return counts.rows


def _finish(
    out: Place, plan: _Plan, summary: Summary, settings: Mapping[str, Any], key: str
) -> None:
    """Writes the manifest with the counts of each part, and the summary."""
    data = {"format": FORMAT, "key": key, "settings": settings}
    if summary.stopped:
        return
    try:
        out.sweep()
        parts = dict(sorted(plan.done.items()))
        _write_json(out / MANIFEST, {**data, "parts": parts, "complete": summary.complete})
        _write_json(out / SUMMARY, summary.lasting())
    except OSError as error:
        raise LapaceError(
            f"'{out.shown}' cannot be written to: {error.strerror or error}. All parts are there; "
            "run the same again for the summary."
        ) from None
