"""The query of a run, and the outcome of each instance as rows of a table with fixed columns.

An instance has a row for each counterfactual found, or one row with its status and reason. Names
and types of the columns follow from the explainer and the types of the input, never from the rows
at hand, so that the outcomes of all parts are one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lapace.apps.batch.files import pa
from lapace.arrays import Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.explainer import Explainer, Search
from lapace.result import Explanation
from lapace.schema import Feature
from lapace.table import Table, Template, read

__all__ = ["Layout", "Request", "as_instances", "make_layout", "outcome_rows"]

ABOUT = {  # columns of `Counterfactuals.about`
    "rank": pa.int64(),
    "prototype": pa.int64(),
    "tau": pa.float64(),
    "probability": pa.float64(),
    "density": pa.float64(),
    "survival": pa.float64(),
    "survival_low": pa.float64(),
    "survival_high": pa.float64(),
    "distance": pa.float64(),
    "effort": pa.float64(),
    "changed": pa.int64(),
    "features": pa.string(),
    "mark": pa.string(),
}


@dataclass(frozen=True)
class Request:
    """A query for every instance of a run: the arguments of `explain`, and columns to write.

    Attributes:
        target: As in `Explainer.explain`: a label, or `any-other`.
        constraints: As text.
        costs: Weights of changes by column.
        confidence: The least probability of the target.
        plausibility: The least density, a share from 0 to below 1.
        search: How to search; its picks are the counterfactuals that are written.
        id_column: The column that identifies the rows; by default the one the explainer's file
            names, or else `id`, if that is no feature.
        keep: Further columns that are written beside the outcomes.

    Examples:
        >>> Request(target="approved").search.picks
        ('best', 'nearest')
    """

    target: Any = None
    constraints: tuple[str, ...] = ()
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    plausibility: float | None = None
    search: Search = field(default_factory=lambda: Search(picks=("best", "nearest")))
    id_column: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a query without picks."""
        object.__setattr__(self, "constraints", tuple(map(str, self.constraints)))
        if not self.search.picks:
            raise InputError("No pick is asked for. Name one, such as best.")

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
        """Returns the query as plain JSON values, the settings of the search among them."""
        costs = {name: str(cost) for name, cost in (self.costs or {}).items()}
        values = asdict(self) | {"target": str(self.target), "costs": costs}
        values |= values.pop("search")
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


@dataclass(frozen=True)
class Layout:
    """The columns of the outcomes.

    Attributes:
        request: The query.
        identifier: The column of the input that identifies the rows, if there is one.
        inputs: The columns of the input that are read.
        types: All columns of the output, in order, with their types.
        names: The names of the library's own columns, which give way to columns of the input.
    """

    request: Request
    identifier: str | None
    inputs: Sequence[str]
    types: Mapping[str, Any]
    names: Mapping[str, str]

    @property
    def arrow(self) -> Any:
        """The schema of pyarrow; it tells pandas that whole numbers stay whole beside nulls."""
        whole = [name for name, kind in self.types.items() if pa.types.is_signed_integer(kind)]
        kinds = {"pandas_type": "int64", "numpy_type": "Int64", "metadata": None}
        columns = [{"name": name, "field_name": name, **kinds} for name in whole]
        about = {"columns": columns, "index_columns": [], "column_indexes": []}
        return pa.schema(list(self.types.items()), {"pandas": json.dumps(about)})


def make_layout(request: Request, explainer: Explainer, types: Mapping[str, Any]) -> Layout:
    """Lays out the columns of the outcomes.

    Args:
        request: The query.
        explainer: The explainer, whose columns the instances have.
        types: The types of the input's columns.
    """
    schema = explainer.schema_
    if request.id_column in schema.names:
        raise InputError(f"Column '{request.id_column}' is a feature; it cannot be the id as well.")
    usual = (n for n in (explainer.id_column_, "id") if n in types and n not in schema.names)
    identifier = request.id_column or next(usual, None)
    named = () if identifier is None else (identifier,)
    inputs = list(dict.fromkeys((*named, *request.keep, *schema.names)))
    for name in inputs:
        if name not in types:
            fitted = " The explainer was fitted with it." if name in schema.names else ""
            raise InputError(f"Column '{name}' is in no file.{did_you_mean(name, types)}{fitted}")
    labels = _type_of(explainer.classes_)
    own = {
        **({} if identifier is None else {"id": types[identifier]}),
        "source": pa.string(),
        "row": pa.int64(),
        "label": labels,
        "target": labels if request.target != "any-other" else pa.string(),
        "status": pa.string(),
        "reason": pa.string(),
        "pick": pa.string(),
        "reached": labels,
        **ABOUT,
    }
    kept = [name for name in request.keep if name not in schema.names and name != identifier]
    taken = {*kept, *schema.names}
    features = {f.name: _feature_type(f, types[f.name]) for f in schema.features}
    before = {f"{name}_before": kind for name, kind in features.items()}
    names = {name: f"lapace_{name}" if name in taken else name for name in (*own, *before)}
    columns = {names[name]: kind for name, kind in own.items()}
    columns |= {name: types[name] for name in kept} | features
    columns |= {names[name]: kind for name, kind in before.items()}
    return Layout(request, identifier, inputs, columns, names)


def _type_of(values: Iterable[Any], kind: Any = None) -> Any:
    """Returns a type that holds some values, the given one or theirs; else that of text."""
    try:
        return pa.array(list(values), kind).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def _feature_type(feature: Feature, kind: Any) -> Any:
    """Returns the type of a feature's column: the input's, or a wider one where that is too narrow.

    The column holds every value that an instance or a counterfactual may have.
    """
    whole, number = pa.types.is_integer(kind), pa.types.is_floating(kind)
    if feature.kind != "continuous":
        return _type_of(feature.categories, kind)
    if feature.is_date and pa.types.is_temporal(kind):
        return pa.date32() if pa.types.is_date(kind) else pa.timestamp("us", kind.tz)
    if feature.written and not (whole or number):
        return pa.string()
    return pa.int64() if feature.integer and whole else pa.float64()


# ------------------------------------------------------------------------------------------------
# Rows


def as_instances(layout: Layout, rows: Any, first: int) -> Table:
    """Reads rows of pyarrow as a table, identified by the id column or by position in the file."""
    table, ids = read(rows), tuple(range(first, first + len(rows)))
    if layout.identifier is not None:
        ids = tuple(rows.column(layout.identifier).to_pylist())
    return replace(table, ids=ids, template=replace(table.template, index=("row",)))


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
    instance, cells, found = _counterfactuals(explanation, layout.request.search.picks)
    instances, schema = rows.take(instance), explanation.schema
    wanted = [one.wanted for one in explanation]
    own: dict[str, Any] = {
        "source": [source] * len(instance),
        "row": first + instance,
        "label": explanation.label[instance],
        "target": [wanted[i] for i in instance],
        "status": [explanation.status[i] for i in instance],
        "reason": [explanation.reason[i] for i in instance],
        **found,
    }
    if layout.identifier is not None:
        own["id"] = instances.column(layout.identifier)
    made: dict[str, Any] = {name: instances.column(name) for name in layout.request.keep}
    made |= {layout.names[name]: values for name, values in own.items()}
    texts = tuple(str(layout.types[name]) for name in schema.names)
    template = Template("pyarrow", schema.names, texts)
    changed = template.build(schema.columns(cells, template))
    before = template.build(schema.columns(explanation.instances[instance], template))
    for name in schema.names:
        made[name] = changed.column(name)
        made[layout.names[f"{name}_before"]] = before.column(name)
    arrays = [_column(made[name], kind) for name, kind in layout.types.items()]
    return pa.table(arrays, schema=layout.arrow)


def _counterfactuals(
    explanation: Explanation, picks: Sequence[str]
) -> tuple[Ints, Floats, dict[str, Any]]:
    """Returns the instance and the cells of each counterfactual, and what is known of it, by name.

    They are in the order of the instances. One that has no counterfactual has a row without any.
    """
    chosen = [getattr(explanation, pick)() for pick in picks]
    chosen = [found.where(found.ok) for found in chosen]
    instances = np.concatenate([found.instance for found in chosen])
    rest = np.setdiff1d(np.arange(len(explanation)), instances)
    instances = np.concatenate([instances, rest])
    # Stable: picks, ranks and prototypes of an instance stay in their order.
    order = np.argsort(instances, kind="stable")
    nothing = np.full((len(rest), len(explanation.schema.names)), np.nan)
    cells = np.concatenate([*(found.cells for found in chosen), nothing])[order]
    about = [found.about_columns() for found in chosen]
    for pick, columns in zip(picks, about, strict=True):
        columns["reached"] = columns["label"]
        columns["pick"] = np.full(len(columns["label"]), pick, dtype=object)
    unknown = np.full(len(rest), None)
    known = {
        name: np.concatenate([*(columns[name] for columns in about), unknown])[order]
        for name in ("pick", "reached", *ABOUT)
    }
    return instances[order], cells, known


def _column(values: Any, kind: Any) -> Any:
    """Returns a column of a type; NaN becomes null, and a text column takes anything."""
    if isinstance(values, pa.ChunkedArray):
        return values.cast(kind)
    if pa.types.is_string(kind):
        values = [None if v is None else str(v) for v in values]
    return pa.array(values, kind, from_pandas=True)
