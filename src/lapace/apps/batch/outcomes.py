"""The query of a run, and the outcome of each instance as rows of a table with fixed columns.

An instance has a row for each counterfactual found, or one row with its status and reason. Names
and types of the columns follow from the explainer and the types of the input, never from the rows
at hand, so that the outcomes of all parts are one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from lapace.apps.batch.files import need_pyarrow
from lapace.arrays import Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.explainer import Explainer, Search
from lapace.result import Explanation
from lapace.schema import Feature, Schema
from lapace.table import Table, Template, read

__all__ = ["FAILED", "Layout", "Request", "failed_rows", "make_layout", "outcome_rows"]

FAILED = "failed"  # the status of rows that the classifier could not be queried about
NUMBERS = ("probability", "density", "survival", "survival_low", "survival_high", "distance")
STEPS = ("first", "middle", "last")  # picks that lie on a path


@dataclass(frozen=True)
class Request:
    """A query for every instance of a run: the arguments of `explain`, and columns to write.

    Attributes:
        target: As in `Explainer.explain`: a label, or `any-other`.
        constraints: As text.
        costs: Weights of changes by column.
        confidence: The least probability of the target.
        plausibility: The least density percentile.
        picks: Which counterfactuals: any of `best`, `nearest`, `first`, `middle`, `last`.
        n_best: How many different ways `best` looks for.
        steps: Steps from an instance to a prototype.
        n_starts: How many rows each search for `nearest` and for `best` starts from.
        id_column: The column that identifies the rows; by default the one the explainer's file
            names, or else `id`, if that is no feature.
        keep: Further columns that are written beside the outcomes.
        by: A column whose groups are compared in the summary.

    Examples:
        >>> Request(target="approved", picks=("nearest",)).search.picks
        ('nearest',)
    """

    target: Any = None
    constraints: tuple[str, ...] = ()
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    plausibility: float | None = None
    picks: tuple[str, ...] = ("best", "nearest")
    n_best: int = 3
    steps: int = 20
    n_starts: int = 10
    id_column: str | None = None
    keep: tuple[str, ...] = ()
    by: str | None = None

    def __post_init__(self) -> None:
        """Refuses settings that cannot work."""
        object.__setattr__(self, "constraints", tuple(map(str, self.constraints)))
        for name in ("picks", "keep"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not self.picks:
            raise InputError("No pick is asked for. Name one, such as best.")
        self.search  # noqa: B018  refuses wrong settings

    @property
    def search(self) -> Search:
        """The settings of the search."""
        shared = {field.name for field in fields(Search)} & {field.name for field in fields(self)}
        return Search(**{name: getattr(self, name) for name in shared})

    def explain(self, explainer: Explainer, table: Any) -> Explanation:
        """Explains some instances."""
        return explainer.explain(
            table,
            target=self.target,
            constraints=self.constraints,
            costs=self.costs,
            confidence=self.confidence,
            plausibility=self.plausibility,
            search=self.search,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the query as plain JSON values."""
        values = asdict(self)
        costs = {name: str(cost) for name, cost in sorted((self.costs or {}).items())}
        lists = {name: list(values[name]) for name in ("constraints", "picks", "keep")}
        target = None if self.target is None else str(self.target)
        return {**values, **lists, "costs": costs or None, "target": target}


@dataclass(frozen=True)
class Layout:
    """The columns of the outcomes.

    Attributes:
        request: The query.
        schema: The columns of the training table.
        keys: Columns of the input that are written as they are, and their names in the output.
        identifier: The one of them that identifies the rows.
        fields: Names and types of all columns, in order.
        names: The names of the library's own columns, which give way to columns of the input.
    """

    request: Request
    schema: Schema
    keys: Mapping[str, str]
    identifier: str | None
    fields: tuple[tuple[str, Any], ...]
    names: Mapping[str, str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that are read."""
        by = () if self.request.by is None else (self.request.by,)
        return tuple(dict.fromkeys((*self.keys, *self.schema.names, *by)))

    @property
    def arrow(self) -> Any:
        """The schema of pyarrow."""
        return need_pyarrow().schema(list(self.fields))

    def to_json(self) -> dict[str, str]:
        """Returns the types by column, as text."""
        return {name: str(kind) for name, kind in self.fields}


def make_layout(request: Request, explainer: Explainer, types: Mapping[str, Any]) -> Layout:
    """Lays out the columns of the outcomes.

    Args:
        request: The query.
        explainer: The explainer, whose columns the instances have.
        types: The types of the input's columns.
    """
    pa, schema = need_pyarrow(), explainer.schema_
    usual = (name for name in (explainer.id_column_, "id") if name in types)
    identifier = request.id_column or next((n for n in usual if n not in schema.names), None)
    keys = tuple(dict.fromkeys([*([identifier] if identifier else []), *request.keep]))
    for name in (*keys, *([request.by] if request.by else [])):
        if name not in types:
            raise InputError(f"Column '{name}' is in no file.{did_you_mean(name, types)}")
    if request.id_column in schema.names:
        raise InputError(f"Column '{request.id_column}' is a feature; it cannot be the id as well.")
    lacking = [name for name in schema.names if name not in types]
    if lacking:
        raise InputError(
            f"Column '{lacking[0]}' is in no file.{did_you_mean(lacking[0], types)} The explainer "
            "was fitted with it."
        )
    labels = _label_type(pa, explainer.classes_)
    own = {
        "source": pa.string(),
        "row": pa.int64(),
        "label": labels,
        "target": labels if request.target != "any-other" else pa.string(),
        "status": pa.string(),
        "reason": pa.string(),
        "pick": pa.string(),
        "rank": pa.int64(),
        "prototype": pa.int64(),
        "tau": pa.float64(),
        "reached": labels,
        **dict.fromkeys(NUMBERS, pa.float64()),
        "changed": pa.int64(),
        "features": pa.string(),
        "mark": pa.string(),
    }
    features = {f.name: _feature_type(pa, f, types[f.name]) for f in schema.features}
    called = {identifier: "id"} if identifier and "id" not in {*request.keep, *features} else {}
    taken = {*(called.get(name, name) for name in keys), *features}
    names = {name: _free(name, "lapace_", "", taken) for name in own}
    before = {name: _free(name, "", "_before", taken) for name in features}
    written = [name for name in keys if name not in features]
    fields = [(called.get(name, name), types[name]) for name in written]
    fields += [(names[name], kind) for name, kind in own.items()]
    fields += [*features.items(), *((before[name], kind) for name, kind in features.items())]
    names |= {f"{name}_before": text for name, text in before.items()}
    keys_by_name = {name: called.get(name, name) for name in keys}
    return Layout(request, schema, keys_by_name, identifier, tuple(fields), names)


def _free(name: str, prefix: str, suffix: str, taken: set[str]) -> str:
    """Returns a free name for a column: always with the suffix, with the prefix if needed."""
    text = f"{name}{suffix}"
    while text in taken:
        text = f"{prefix}{text}" if prefix else f"{text}_"
    taken.add(text)
    return text


def _label_type(pa: Any, labels: Iterable[Any]) -> Any:
    kinds = {type(label) for label in labels}
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return types.get(kinds.pop(), pa.string()) if len(kinds) == 1 else pa.string()


def _feature_type(pa: Any, feature: Feature, kind: Any) -> Any:
    """Returns the type of a feature's column, which holds every value an instance may have."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    whole, truth = pa.types.is_integer(kind), pa.types.is_boolean(kind)
    if feature.kind != "continuous":
        levels = {type(level) for level in feature.categories}
        if levels == {bool} and truth:
            return pa.bool_()
        if levels == {int} and (whole or truth):
            return pa.int64()
        return (
            pa.float64() if levels <= {int, float} and pa.types.is_floating(kind) else pa.string()
        )
    if feature.is_date and pa.types.is_date(kind):
        return pa.date32()
    if feature.is_date and pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if feature.written and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return pa.string()
    return pa.int64() if feature.integer and whole else pa.float64()


# ------------------------------------------------------------------------------------------------
# Rows


def as_instances(layout: Layout, rows: Any, first: int) -> Table:
    """Reads rows of pyarrow as a table, identified by the id column or by position in the file."""
    table = read(rows)
    if layout.identifier is not None:
        ids = rows.column(layout.identifier).to_pylist()
    else:
        ids = list(range(first, first + len(rows)))
    return replace(table, ids=tuple(ids), template=replace(table.template, index=("row",)))


@dataclass(frozen=True)
class _PickedRows:
    """Rows of some picks: their instances, picks, cells and further columns."""

    instance: Ints
    pick: Ints
    cells: Floats
    columns: dict[str, Any]


def outcome_rows(
    layout: Layout, explanation: Explanation, rows: Any, source: str, first: int
) -> Any:
    """Returns the outcome of every instance as a pyarrow table in the layout's columns.

    Args:
        layout: The columns.
        explanation: The explanation of the instances.
        rows: The instances as they were read.
        source: The file they are from.
        first: The position of the first in it.
    """
    picked = _picked_rows(layout, explanation)
    without = np.setdiff1d(np.arange(len(explanation)), picked.instance)
    instance = np.concatenate([picked.instance, without]).astype(np.int64)
    pick = np.concatenate([picked.pick, np.full(len(without), -1)])
    order = np.lexsort((pick, instance))  # stable: ranks and prototypes stay in order
    instance = instance[order]
    cells = np.concatenate([picked.cells, np.full((len(without), picked.cells.shape[1]), np.nan)])
    wanted = [one.wanted for one in explanation]
    columns: dict[str, Any] = {
        "source": [source] * len(instance),
        "row": first + instance,
        "label": explanation.label[instance],
        "target": np.array(wanted, dtype=object)[instance],
        "status": np.array(explanation.status, dtype=object)[instance],
        "reason": np.array(explanation.reason, dtype=object)[instance],
    }
    for name, values in picked.columns.items():
        nothing = np.full(len(without), None, dtype=object)
        columns[name] = np.concatenate([values.astype(object), nothing])[order]
    return _built(
        layout,
        explanation.schema,
        columns,
        rows.take(instance),
        cells[order],
        explanation.instances[instance],
    )


def failed_rows(layout: Layout, rows: Any, source: str, first: int, why: str) -> Any:
    """Returns the outcome of instances that the classifier could not be queried about."""
    count = len(rows)
    nothing = np.full((count, len(layout.schema.names)), np.nan)
    columns = {
        "source": [source] * count,
        "row": np.arange(first, first + count),
        "status": [FAILED] * count,
        "reason": [why] * count,
    }
    return _built(layout, layout.schema, columns, rows, nothing, nothing)


def _picked_rows(layout: Layout, explanation: Explanation) -> _PickedRows:
    """Collects the ok counterfactuals of all picks asked for."""
    parts: list[_PickedRows] = []
    for k, pick in enumerate(layout.request.picks):
        rows = getattr(explanation, pick)()
        rows = rows.where(rows.ok)
        about = rows.about_columns()
        columns = {
            name: about[name]
            for name in (*NUMBERS, "rank", "prototype", "tau", "changed", "features", "mark")
        }
        columns["reached"] = about["label"]
        columns["pick"] = np.full(len(rows), pick, dtype=object)
        parts.append(_PickedRows(rows.instance, np.full(len(rows), k), rows.cells, columns))
    joined = {n: np.concatenate([p.columns[n].astype(object) for p in parts]) for n in columns}
    return _PickedRows(
        np.concatenate([p.instance for p in parts]),
        np.concatenate([p.pick for p in parts]),
        np.concatenate([p.cells for p in parts]),
        joined,
    )


def _built(
    layout: Layout, schema: Schema, columns: Mapping[str, Any], rows: Any, cells: Any, before: Any
) -> Any:
    """Builds the table in the layout's columns and types; unknown values are null."""
    pa = need_pyarrow()
    types = dict(layout.fields)
    made: dict[str, Any] = {}
    for name, text in layout.keys.items():
        if name not in schema.names:
            made[text] = _cast(rows.column(name), types[text])
    for name, text in layout.names.items():
        if name in columns:
            made[text] = _plain_column(pa, columns[name], types[text])
    texts = tuple(str(types[name]) for name in schema.names)
    template = Template("pyarrow", schema.names, texts)
    for suffix, part in (("", cells), ("_before", before)):
        frame = template.build(schema.columns(part, template))
        for name in schema.names:
            text = layout.names.get(f"{name}{suffix}", name) if suffix else name
            made[text] = _cast(frame.column(name), types[text])
    count = len(cells)
    arrays = [made[n] if n in made else pa.nulls(count, kind) for n, kind in layout.fields]
    return pa.table(arrays, schema=layout.arrow)


def _plain_column(pa: Any, values: Any, kind: Any) -> Any:
    """Returns plain values as a column; NaN becomes null, and a text column takes anything."""
    plain = [None if v is None or v != v else v for v in values]  # noqa: PLR0124  NaN
    if pa.types.is_string(kind):
        plain = [None if v is None else str(v) for v in plain]
    return pa.array(plain, kind)


def _cast(column: Any, kind: Any) -> Any:
    return column if column.type == kind else column.cast(kind)
