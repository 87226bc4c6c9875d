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
from lapace.result.counterfactuals import Counterfactuals, Mark, public_schema, records
from lapace.result.explanation import PICKS, Explanation, Status
from lapace.result.why_not import Cell, WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template

__all__ = ["from_json", "json_schema", "to_json", "why_not_to_json"]

VERSION = 2
ADDRESS = "https://lapace.readthedocs.io/schemas/explanation-2.json"
MINIMAL = ("nearest", "best")  # picks that lie on no path
NUMBERS = ("probability", "density", "survival", "survival_low", "survival_high", "distance")

Row: TypeAlias = tuple[Cell, ...]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Percentile: TypeAlias = Annotated[float, Meta(ge=0, le=100)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]


class JudgedRow(Document):
    """A row and the verdicts on it; null is unknown.

    Attributes:
        row: The cells in the order of `schema.features`; null is missing.
        label: What the classifier says of the row; null: it was not queried.
        feasible: Whether every constraint holds on it.
        probability: The classifier's probability of the target.
        density: Percentile of the latent density among training rows.
        survival: Estimated chance that the row keeps the target when the classifier is retrained.
        survival_low: Lower end of its 90% interval.
        survival_high: Upper end of its 90% interval.
        distance: Distance from the instance.
    """

    row: Row
    label: Level | None
    feasible: bool
    probability: float | None
    density: Percentile | None
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
        prototype: The prototype whose path comes closest to the row; null: a sampled endpoint.
        mark: Shortcoming of a `best` row: no margin (edge), rarer than the floor (unusual), both.
    """

    valid: bool
    prototype: Count | None
    mark: Mark


class PathDocument(Document):
    """A path from an instance to an endpoint.

    Attributes:
        prototype: The prototype it leads to; null: a sampled endpoint, from which only `nearest`
            and `best` start.
        picks: The position in `steps` that each pick chose.
        crossings: How often the label leaves the target again.
        steps: Every step: the grid, then the refined first and the midpoint.
    """

    prototype: Count | None
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
        nearest: The closest minimal row; absent where it was not computed.
        best: Different ways to the target, cheapest first; absent where they were not computed.
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


class OptionsDocument(Document):
    """The options of the query.

    Attributes:
        costs: Weights of the distance by column; null: infinite, the column is fixed.
        confidence: The probability of the target that `valid` required.
        plausibility: The density percentile that `feasible` required.
        search: The settings of the search by name.
    """

    costs: Mapping[str, Amount | None] | None
    confidence: Share | None
    plausibility: Percentile | None
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
    version: Literal[2]
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
    paths = _paths(explanation)
    minimal = {pick: _minimal(rows) for pick, rows in explanation.minimal.items()}

    def of(rows: Sequence[Any], instance: Ints, position: int) -> tuple[Any, ...]:
        return tuple(rows[i] for i in np.flatnonzero(instance == position).tolist())

    instances = tuple(
        InstanceDocument(
            row=tuple(one.row.values()),
            label=one.label,
            target=one.target,
            status=cast(Status, one.status),
            reason=one.reason,
            why_not=one.why_not,
            paths=of(paths, explanation.instance, one.position),
            id=UNSET if explanation.ids is None else _plain_id(one.id),
            **{
                pick: of(minimal[pick], rows.instance, one.position)
                for pick, rows in explanation.minimal.items()
            },
        )
        for one in explanation
    )
    return plain(
        ExplanationDocument(
            format="lapace/explanation",
            version=2,
            schema=public_schema(explanation.schema),
            template=explanation.template,
            labels=explanation.labels,
            constraints=explanation.constraints,
            options=OptionsDocument(
                costs=explanation.costs,
                confidence=explanation.confidence,
                plausibility=explanation.plausibility,
                search=dict(explanation.search),
            ),
            n_queries=explanation.n_queries,
            instances=instances,
        )
    )


def why_not_to_json(explanation: Explanation) -> dict[str, Any]:
    """Returns which instances have no counterfactual and why, as `lapace why-not` prints it."""
    instances = [
        {
            "instance": one.position,
            **({} if explanation.ids is None else {"id": _plain_id(one.id)}),
            "status": one.status,
            "reason": one.reason,
            "why_not": one.why_not,
        }
        for one in explanation
    ]
    return plain({"format": "lapace/why-not", "version": VERSION, "instances": instances})


def _plain_id(value: Any) -> Any:
    """Returns an identifier with its parts as a tuple; a date or another object becomes text."""
    if isinstance(value, tuple):
        return tuple(map(_plain_id, value))
    return value if isinstance(value, str | bool | int | None) else str(value)


def _paths(whole: Explanation) -> list[PathDocument]:
    n_paths, n_steps, n_columns = whole.cells.shape
    rows = _rows(whole.schema, whole.cells.reshape(-1, n_columns))
    names = (*whole.labels, None)
    verdicts = (False, True, None)
    numbers = {name: getattr(whole, name).ravel().tolist() for name in ("tau", *NUMBERS)}
    steps = [
        StepDocument(row=row, label=names[code], valid=verdicts[valid], feasible=feasible, **known)
        for row, code, valid, feasible, known in zip(
            rows,
            whole.predicted.ravel().tolist(),
            whole.valid.ravel().tolist(),
            whole.feasible.ravel().tolist(),
            _lines(numbers),
            strict=True,
        )
    ]
    picked = {pick: chosen.tolist() for pick, chosen in whole.picked.items()}
    return [
        PathDocument(
            prototype=_endpoint(int(whole.prototype[i])),
            picks={pick: chosen[i] for pick, chosen in picked.items()},
            crossings=int(whole.crossings[i]),
            steps=tuple(steps[i * n_steps : (i + 1) * n_steps]),
        )
        for i in range(n_paths)
    ]


def _minimal(rows: Counterfactuals) -> list[MinimalDocument]:
    names = ("label", "valid", "feasible", "mark", *NUMBERS)
    known = _lines({name: getattr(rows, name).tolist() for name in names})
    cells, prototypes = _rows(rows.schema, rows.cells), rows.prototype.tolist()
    return [
        MinimalDocument(row=row, prototype=_endpoint(prototype), **fields)
        for row, prototype, fields in zip(cells, prototypes, known, strict=True)
    ]


def _rows(schema: Schema, cells: Floats) -> list[Row]:
    return [tuple(record.values()) for record in records(schema, cells)]


def _lines(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns one dictionary per row of some columns."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _endpoint(prototype: int) -> int | None:
    return None if prototype < 0 else prototype


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
        return _explanation(document)
    except (ValueError, OverflowError) as error:
        raise InputError(f"This explanation is damaged: {error}.") from None


def _explanation(document: ExplanationDocument) -> Explanation:
    _check(document)
    schema, instances, options = document.schema, document.instances, document.options
    paths = [(i, path) for i, one in enumerate(instances) for path in one.paths]
    shape = (len(paths), len(paths[0][1].steps) if paths else 1)
    steps = [step for _, path in paths for step in path.steps]
    names = np.array([*document.labels, None], dtype=object)
    code_of: dict[Level | None, int] = {label: k for k, label in enumerate(document.labels)}
    code_of[None] = -1
    picks = tuple(options.search["picks"])
    numbers = {name: _column(steps, name).reshape(shape) for name in ("tau", *NUMBERS)}

    def codes(labels: Sequence[Level | None]) -> NDArray[np.int64]:
        return np.array([code_of[label] for label in labels], dtype=np.int64)

    explanation = Explanation(
        schema=schema,
        template=document.template,
        labels=document.labels,
        instances=_cells(schema, [one.row for one in instances]),
        label=names[codes([one.label for one in instances])],
        target=names[codes([one.target for one in instances])],
        status=tuple(one.status for one in instances),
        reason=tuple(one.reason for one in instances),
        constraints=document.constraints,
        instance=np.array([i for i, _ in paths], dtype=np.int64),
        prototype=_column([path for _, path in paths], "prototype", np.int64, -1),
        cells=_cells(schema, [step.row for step in steps]).reshape(*shape, len(schema.features)),
        predicted=codes([step.label for step in steps]).reshape(shape),
        valid=_column(steps, "valid", np.int8, -1).reshape(shape),
        feasible=_column(steps, "feasible", np.bool_).reshape(shape),
        **cast(dict[str, Any], numbers),
        picked={
            pick: np.array([path.picks[pick] for _, path in paths], dtype=np.int64)
            for pick in picks
            if pick not in MINIMAL
        },
        crossings=np.array([path.crossings for _, path in paths], dtype=np.int64),
        n_queries=document.n_queries,
        ids=None if not instances or instances[0].id is UNSET else tuple(i.id for i in instances),
        costs=None if options.costs is None else {k: _cost(v) for k, v in options.costs.items()},
        confidence=options.confidence,
        plausibility=options.plausibility,
        search={**options.search, "picks": picks},
        why_not={i: one.why_not for i, one in enumerate(instances) if one.why_not is not None},
        minimal={},
    )
    minimal = {
        pick: _minimal_rows(explanation, [getattr(one, pick) or () for one in instances])
        for pick in MINIMAL
        if pick in picks
    }
    return replace(explanation, minimal=minimal)


def _cost(weight: float | None) -> float:
    return np.inf if weight is None else weight


def _minimal_rows(
    explanation: Explanation, by_instance: Sequence[Sequence[MinimalDocument]]
) -> Counterfactuals:
    """Returns the rows of `nearest` or `best`, given those of each instance."""
    ranked = [(i, k, row) for i, some in enumerate(by_instance) for k, row in enumerate(some)]
    rows = [row for _, _, row in ranked]
    return Counterfactuals.of(
        explanation.schema,
        explanation.instances,
        _cells(explanation.schema, [row.row for row in rows]),
        np.array([i for i, _, _ in ranked], dtype=np.int64),
        template=explanation.template,
        rank=np.array([rank for _, rank, _ in ranked], dtype=np.int64),
        prototype=_column(rows, "prototype", np.int64, -1),
        label=_column(rows, "label", object, None),
        valid=_column(rows, "valid", np.bool_),
        feasible=_column(rows, "feasible", np.bool_),
        mark=_column(rows, "mark", object),
        ids=explanation.ids,
        reasons=explanation.reasons,
        **{name: _column(rows, name) for name in NUMBERS},
    )


def _column(
    documents: Sequence[Any], name: str, dtype: Any = np.float64, unknown: Any = np.nan
) -> NDArray[Any]:
    """Returns one field of some documents as an array, with `unknown` where it is null."""
    values = [getattr(document, name) for document in documents]
    return np.array([unknown if value is None else value for value in values], dtype=dtype)


def _cells(schema: Schema, rows: Sequence[Row]) -> Floats:
    cells = np.empty((len(rows), len(schema.features)))
    for i, feature in enumerate(schema.features):
        values: list[Any] = [row[i] for row in rows]
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


def _check(document: ExplanationDocument) -> None:
    """Refuses a document whose parts do not fit together."""
    names, template = document.schema.names, document.template
    picks = document.options.search.get("picks")
    if sorted(template.names) != sorted(names) or len(template.dtypes) != len(names):
        raise ValueError("template does not have the columns of the schema")
    if not isinstance(picks, list) or not all(pick in PICKS for pick in picks):
        raise ValueError(f"options.search.picks is {picks!r}; there are {', '.join(PICKS)}")
    for name in ("n_best", "n_starts"):
        value = document.options.search.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"options.search.{name} is {value!r}")
    if len({one.id is UNSET for one in document.instances}) > 1:
        raise ValueError("some instances have an id and some have none")
    if len({len(path.steps) for one in document.instances for path in one.paths}) > 1:
        raise ValueError("some paths have more steps than others")
    for i, one in enumerate(document.instances):
        if problem := _problem(one, document, picks):
            raise ValueError(f"instances[{i}] has {problem}")


def _problem(one: InstanceDocument, document: ExplanationDocument, picks: list[str]) -> str:
    """Returns why an instance does not fit its document; empty where it does."""
    steps = [step for path in one.paths for step in path.steps]
    rows = [*steps, *(one.nearest or ()), *(one.best or ())]
    labels = (one.label, one.target, *(row.label for row in rows))
    on_path = [pick for pick in picks if pick not in MINIMAL]
    chosen = [(path.picks.get(pick, -1), path.steps) for path in one.paths for pick in on_path]
    why, names = one.why_not, document.schema.names
    problems = {
        "a label that the classifier does not have": not {*labels} <= {*document.labels, None},
        "a row of another length than the schema": any(
            len(row) != len(names) for row in (one.row, *(row.row for row in rows))
        ),
        "a pick that is no step of its path": any(not 0 <= k < len(path) for k, path in chosen),
        "a why_not of another status": why is not None and why.status != one.status,
        "a why_not of other columns": why is not None
        and why.row is not None
        and sorted(why.row) != sorted(names),
    }
    return next((problem for problem, wrong in problems.items() if wrong), "")
