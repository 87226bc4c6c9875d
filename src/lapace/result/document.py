"""The published JSON of explanations: types that say what a document holds, and both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.documents import Document, plain, restore, schema_of
from lapace.errors import InputError
from lapace.result.counterfactuals import Counterfactuals, Mark, records
from lapace.result.explanation import PICKS, Explanation, Status
from lapace.result.why_not import Cell, WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template

__all__ = ["from_json", "json_schema", "to_json", "why_not_to_json"]

VERSION = 4
ADDRESS = "https://lapace.readthedocs.io/schemas/explanation-4.json"
MINIMAL = ("nearest", "best", "enough")  # rows that lie on no path
NUMBERS = ("probability", "density", "survival", "survival_low", "survival_high", "distance")

Row: TypeAlias = tuple[Cell, ...]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]


class JudgedRow(Document):
    """A row and the verdicts on it; null is unknown.

    Attributes:
        row: The cells in the order of `schema.features`; null is missing.
        label: What the classifier says of the row; null: it was not queried.
        feasible: Whether every constraint holds on it.
        probability: The classifier's probability of the target.
        density: Share of the training rows of its label that are less dense. This and survival
            are null for steps that no pick chose.
        survival: Estimated chance that the row keeps the target when the classifier is retrained.
        survival_low: Lower end of its 90% interval.
        survival_high: Upper end of its 90% interval.
        distance: Distance from the instance.
    """

    row: Row
    label: Level | None
    feasible: bool
    probability: float | None
    density: Share | None
    survival: Share | None
    survival_low: Share | None
    survival_high: Share | None
    distance: Amount | None


class StepDocument(JudgedRow):
    """A step of a path.

    Attributes:
        tau: Position on the path, 0 the instance and 1 the endpoint; null: the step is unused.
        valid: Whether the label is the target; null: the classifier was not queried.
    """

    tau: Share | None
    valid: bool | None


class MinimalDocument(JudgedRow):
    """A row of `nearest` or `best`.

    Attributes:
        valid: Whether the label is the target.
        prototype: The prototype whose path comes closest to the row; null: there is no path.
        effort: The distance, and a fifth for each change.
        mark: Shortcoming of a minimal row: no margin (edge), rarer than the floor (unusual), both.
    """

    valid: bool
    prototype: Count | None
    effort: Amount
    mark: Mark


class PathDocument(Document):
    """A path from an instance to a prototype.

    Attributes:
        prototype: The prototype it leads to.
        picks: The position in `steps` that each pick chose.
        crossings: How often the label leaves the target again.
        steps: Every step: the grid, then the refined first and the midpoint.
    """

    prototype: Count
    picks: dict[str, Count]
    crossings: Count
    steps: tuple[StepDocument, ...]


class InstanceDocument(Document):
    """An instance and everything found for it.

    Attributes:
        row: Its cells.
        label: What the classifier says of it; null: the row is malformed.
        target: The label wanted; null: any other label.
        status: The outcome.
        reason: The outcome in words.
        paths: The paths from it.
        why_not: The smallest relaxation, for an instance without a counterfactual, where it was
            requested.
        id: The identifier, where the table has one; an array where it has several parts.
        nearest: The minimal row of least effort; absent where it was not computed.
        best: The safe ends of different ways to the target, cheapest first; absent where they were
            not computed.
        enough: The other ends of these ways, in the same order: what just turns the decision.
    """

    row: Row
    label: Level | None
    target: Level | None
    status: Status
    reason: str
    paths: tuple[PathDocument, ...]
    why_not: WhyNot | None = None
    id: str | int | float | bool | tuple[Level | None, ...] | UnsetType | None = UNSET
    nearest: Annotated[tuple[MinimalDocument, ...], Meta(max_length=1)] | UnsetType = UNSET
    best: tuple[MinimalDocument, ...] | UnsetType = UNSET
    enough: tuple[MinimalDocument, ...] | UnsetType = UNSET


class OptionsDocument(Document):
    """The options of the query.

    Attributes:
        costs: Weights of the distance by column; null: infinite, the column is fixed.
        confidence: The probability of the target that `valid` required.
        plausibility: The density that `feasible` required.
        search: The settings of the search by name.
    """

    costs: Mapping[str, Amount | None] | None
    confidence: Share | None
    plausibility: Share | None
    search: dict[str, Any]


class ExplanationDocument(Document):
    """Everything found for a batch of instances: each instance's paths, step by step.

    Attributes:
        schema: The columns.
        template: The frame kind the instances came in.
        labels: The classifier's labels.
        constraints: The constraints of the query, as text.
        options: The other options of the query.
        n_queries: Rows the classifier was asked about.
        instances: The instances.
    """

    format: Literal["lapace/explanation"]
    version: Literal[4]
    schema: Schema
    template: Template
    labels: Annotated[tuple[Level, ...], Meta(min_length=2)]
    constraints: tuple[str, ...]
    options: OptionsDocument
    n_queries: Count
    instances: tuple[InstanceDocument, ...]


def json_schema() -> dict[str, Any]:
    """Returns the published JSON Schema of `Explanation.to_json`, made from the types above.

    Examples:
        >>> json_schema()["title"]
        'lapace explanation'
    """
    return schema_of(ExplanationDocument, ADDRESS, "lapace explanation")


# ------------------------------------------------------------------------------------------------
# Out


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Returns an explanation as plain JSON values."""
    count, minimal = len(explanation), explanation.minimal
    columns = {
        "row": _rows(explanation.schema, explanation.instances),
        "label": explanation.label,
        "target": explanation.target,
        "status": explanation.status,
        "reason": explanation.reason,
        "paths": _grouped(_paths(explanation), explanation.instance, count),
        "why_not": [explanation.why_not.get(i) for i in range(count)],
        **_ids(explanation),
        **{pick: _grouped(_minimal(rows), rows.instance, count) for pick, rows in minimal.items()},
    }
    # Published files leave out rank maps and histograms. Distances are counted in `ranks`.
    features = [replace(f, knots=None, histogram=((), ())) for f in explanation.schema.features]
    return plain(
        {
            "format": "lapace/explanation",
            "version": VERSION,
            "schema": replace(explanation.schema, features=tuple(features)),
            "template": explanation.template,
            "labels": explanation.labels,
            "constraints": explanation.constraints,
            "options": {n: getattr(explanation, n) for n in OptionsDocument.__struct_fields__},
            "n_queries": explanation.n_queries,
            "instances": _records(columns),
        }
    )


def why_not_to_json(explanation: Explanation) -> dict[str, Any]:
    """Returns which instances have no counterfactual and why, as `lapace why-not` prints it."""
    positions = range(len(explanation))
    columns = {
        "instance": positions,
        **_ids(explanation),
        "status": explanation.status,
        "reason": explanation.reason,
        "why_not": [explanation.why_not.get(i) for i in positions],
    }
    return plain({"format": "lapace/why-not", "version": VERSION, "instances": _records(columns)})


def _ids(explanation: Explanation) -> dict[str, list[Any]]:
    """Returns identifiers as a column, if there are any; a date or another object becomes text."""

    def plain_id(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain_id, value))
        return value if isinstance(value, str | bool | int | None) else str(value)

    return {} if explanation.ids is None else {"id": [plain_id(value) for value in explanation.ids]}


def _paths(explanation: Explanation) -> list[dict[str, Any]]:
    n_paths, n_steps, n_columns = explanation.cells.shape
    labels = np.array([*explanation.labels, None], dtype=object)
    numbers = {name: getattr(explanation, name).ravel() for name in ("feasible", "tau", *NUMBERS)}
    steps = {
        "row": _rows(explanation.schema, explanation.cells.reshape(-1, n_columns)),
        "label": labels[explanation.predicted].ravel(),
        "valid": np.array([False, True, None], dtype=object)[explanation.valid].ravel(),
        **numbers,
    }
    path = np.repeat(np.arange(n_paths), n_steps)
    paths = {
        "prototype": explanation.prototype,
        "picks": _records(explanation.picked) or [{}] * n_paths,
        "crossings": explanation.crossings,
        "steps": _grouped(_records(steps), path, n_paths),
    }
    return _records(paths)


def _minimal(rows: Counterfactuals) -> list[dict[str, Any]]:
    names = ("label", "valid", "feasible", "mark", "effort", *NUMBERS)
    columns = {name: getattr(rows, name) for name in names}
    columns["row"] = _rows(rows.schema, rows.cells)
    return _records({**columns, "prototype": _prototypes(rows.prototype)})


def _prototypes(prototype: Ints) -> list[int | None]:
    return [None if number < 0 else number for number in prototype.tolist()]


def _rows(schema: Schema, cells: Floats) -> list[Row]:
    return [tuple(record.values()) for record in records(schema, cells)]


def _records(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns one dictionary per row of some columns."""
    plain_columns = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain_columns, strict=True)]


def _grouped(items: Sequence[Any], group: Ints, count: int) -> list[list[Any]]:
    """Returns the items of each group, 0 to `count - 1`, in order."""
    groups: list[list[Any]] = [[] for _ in range(count)]
    for item, position in zip(items, group.tolist(), strict=True):
        groups[position].append(item)
    return groups


# ------------------------------------------------------------------------------------------------
# In


def from_json(data: Any) -> Explanation:
    """Reads what `Explanation.to_json` returned; anything else is refused with a sentence."""
    if not isinstance(data, Mapping) or data.get("format") != "lapace/explanation":
        raise InputError("This is not a lapace explanation.")
    if data.get("version") != VERSION:
        raise InputError(
            f"This explanation is of format version {data.get('version')}, and this lapace reads "
            f"version {VERSION}. Explain the instances again, or use the lapace that wrote it."
        )
    document = restore(ExplanationDocument, data, "this explanation")
    try:
        _check(document)
        return _explanation(document)
    except (ValueError, OverflowError) as error:
        raise InputError(f"This explanation is damaged: {error}.") from None


def _check(document: ExplanationDocument) -> None:
    """Refuses a document whose parts do not fit together, where numpy would not notice."""
    names, search = document.schema.names, document.options.search
    instances, picks = document.instances, search.get("picks")
    paths = [path for one in instances for path in one.paths]
    template = document.template
    if sorted(template.names) != sorted(names) or len(template.dtypes) != len(names):
        raise ValueError("template does not have the columns of the schema")
    costs = document.options.costs or {}
    document.schema.weights({name: cost for name, cost in costs.items() if cost is not None})
    if not isinstance(picks, list) or not all(pick in PICKS for pick in picks):
        raise ValueError(f"options.search.picks is {picks!r}; there are {', '.join(PICKS)}")
    n_best = search.get("n_best", 1)
    if not isinstance(n_best, int) or n_best < 1:
        raise ValueError(f"options.search.n_best is {n_best!r}")
    if len({one.id is UNSET for one in instances}) > 1:
        raise ValueError("some instances have an id and some have none")
    if len({len(path.steps) for path in paths}) > 1:
        raise ValueError("some paths have more steps than others")
    on_path = [pick for pick in picks if pick not in MINIMAL]
    if any(not 0 <= path.picks.get(p, -1) < len(path.steps) for path in paths for p in on_path):
        raise ValueError("a pick is no step of its path")
    if any(len(one.best or ()) != len(one.enough or ()) for one in instances):
        raise ValueError("a way of best lacks one of its ends")
    relaxed = [one.why_not.row for one in instances if one.why_not and one.why_not.row is not None]
    if any(sorted(row) != sorted(names) for row in relaxed):
        raise ValueError("a why_not does not have the columns of the schema")


def _explanation(document: ExplanationDocument) -> Explanation:
    schema, instances, options = document.schema, document.instances, document.options
    paths = [path for one in instances for path in one.paths]
    steps = [step for path in paths for step in path.steps]
    shape = (len(paths), len(paths[0].steps) if paths else 1)
    names = np.array([*document.labels, None], dtype=object)
    picks, costs = tuple(options.search["picks"]), options.costs
    numbers = {name: _column(steps, name).reshape(shape) for name in ("tau", *NUMBERS)}
    explanation = Explanation(
        schema=schema,
        template=document.template,
        labels=document.labels,
        instances=_cells(schema, instances),
        label=names[_codes(instances, document.labels)],
        target=names[_codes(instances, document.labels, "target")],
        status=tuple(one.status for one in instances),
        reason=tuple(one.reason for one in instances),
        constraints=document.constraints,
        instance=np.repeat(np.arange(len(instances)), [len(one.paths) for one in instances]),
        prototype=_column(paths, "prototype", np.int64),
        cells=_cells(schema, steps).reshape(*shape, len(schema.features)),
        predicted=_codes(steps, document.labels).reshape(shape),
        valid=_column(steps, "valid", np.int8, -1).reshape(shape),
        feasible=_column(steps, "feasible", np.bool_).reshape(shape),
        **cast(dict[str, Any], numbers),
        picked={
            pick: np.array([path.picks[pick] for path in paths], dtype=np.int64)
            for pick in picks
            if pick not in MINIMAL
        },
        crossings=_column(paths, "crossings", np.int64),
        n_queries=document.n_queries,
        ids=None if not instances or instances[0].id is UNSET else tuple(i.id for i in instances),
        costs=None if costs is None else {k: np.inf if v is None else v for k, v in costs.items()},
        confidence=options.confidence,
        plausibility=options.plausibility,
        search={**options.search, "picks": picks},
        why_not={i: one.why_not for i, one in enumerate(instances) if one.why_not is not None},
        minimal={},
    )
    minimal = {
        name: _minimal_rows(explanation, [getattr(one, name) or () for one in instances])
        for name in MINIMAL
        if name.replace("enough", "best") in picks
    }
    return replace(explanation, minimal=minimal)


def _minimal_rows(
    explanation: Explanation, by_instance: Sequence[Sequence[MinimalDocument]]
) -> Counterfactuals:
    """Returns the rows of `nearest` or `best`, given those of each instance."""
    rows = [row for some in by_instance for row in some]
    counts = [len(some) for some in by_instance]
    labels = np.array([*explanation.labels, None], dtype=object)
    return Counterfactuals.of(
        explanation.schema,
        explanation.instances,
        _cells(explanation.schema, rows),
        np.repeat(np.arange(len(counts)), counts),
        template=explanation.template,
        rank=np.array([rank for count in counts for rank in range(count)], dtype=np.int64),
        prototype=_column(rows, "prototype", np.int64, -1),
        label=labels[_codes(rows, explanation.labels)],
        valid=_column(rows, "valid", np.bool_),
        feasible=_column(rows, "feasible", np.bool_),
        mark=_column(rows, "mark", object),
        ids=explanation.ids,
        **{name: _column(rows, name) for name in ("effort", *NUMBERS)},
    )


def _column(
    documents: Sequence[Any], name: str, dtype: Any = np.float64, unknown: Any = np.nan
) -> NDArray[Any]:
    """Returns one field of some documents as an array, with `unknown` where it is null."""
    values = [getattr(document, name) for document in documents]
    return np.array([unknown if value is None else value for value in values], dtype=dtype)


def _codes(documents: Sequence[Any], labels: Sequence[Level], name: str = "label") -> Ints:
    """Returns the labels of some documents as positions; -1 where one is null."""
    code_of = {label: code for code, label in enumerate([*labels, None])}
    values = [getattr(document, name) for document in documents]
    if unknown := {*values} - {*code_of}:
        raise ValueError(f"the classifier has no label {unknown.pop()!r}")
    codes = np.array([code_of[value] for value in values], dtype=np.int64)
    return np.where(codes == len(labels), -1, codes)


def _cells(schema: Schema, documents: Sequence[Any]) -> Floats:
    """Returns the rows of some documents as cells."""
    cells = np.empty((len(documents), len(schema.features)))
    if any(len(document.row) != len(schema.features) for document in documents):
        raise ValueError("a row does not have the columns of the schema")
    for i, feature in enumerate(schema.features):
        values: list[Any] = [document.row[i] for document in documents]
        if feature.levels:
            code_of: dict[Any, float] = {level: k for k, level in enumerate(feature.levels)}
            values = [code_of.get(value, value) for value in values]
        elif feature.is_date:
            values = [value if value is None else feature.number(str(value)) for value in values]
        try:
            cells[:, i] = values
        except (TypeError, ValueError):
            raise ValueError(f"column '{feature.name}' of a row holds no value of it") from None
    return cells
