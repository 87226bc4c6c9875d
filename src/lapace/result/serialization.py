"""Explanations as JSON in a published format, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.result.counterfactuals import Counterfactuals, public_schema, records
from lapace.result.explanation import PICKS, STATUSES, Explanation, InstanceExplanation
from lapace.result.why_not import WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template

__all__ = ["VERSION", "from_json", "json_schema", "to_json", "why_not_to_json"]

VERSION = 2
MINIMAL = ("nearest", "best")  # picks that lie on no path
MARKS = ("", "edge", "unusual", "edge, unusual")
KINDS = ("pandas", "polars", "pyarrow", "records", "array")
NUMBERS = (  # of each step; a row of `nearest` or `best` has no tau
    "tau", "probability", "density", "survival", "survival_low", "survival_high",
    "distance",
)  # fmt: skip


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of `Explanation.to_json`.

    Examples:
        >>> json_schema()["title"]
        'lapace explanation'
    """
    text = files("lapace").joinpath("explanation.schema.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def to_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values."""
    costs = explanation.costs
    return {
        "format": "lapace/explanation",
        "version": VERSION,
        "schema": public_schema(explanation.schema).to_json(),
        "template": explanation.template.to_json(),
        "labels": list(explanation.labels),
        "constraints": list(explanation.constraints),
        "options": {
            "costs": None if costs is None else {k: _finite(v) for k, v in costs.items()},
            **{
                name: None if (value := getattr(explanation, name)) is None else float(value)
                for name in ("confidence", "plausibility")
            },
            "search": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in explanation.search.items()
            },
        },
        "n_queries": explanation.n_queries,
        "instances": [_instance_to_json(instance) for instance in explanation],
    }


def _instance_to_json(instance: InstanceExplanation) -> dict[str, Any]:
    whole = instance.explanation
    return {
        **_identity(instance),
        "row": list(instance.row.values()),
        "label": instance.label,
        "target": instance.target,
        **_outcome(instance),
        "paths": [
            _path_to_json(whole, int(index))
            for index in np.flatnonzero(whole.instance == instance.position)
        ],
        **{
            pick: _minimal_to_json(rows, np.flatnonzero(rows.instance == instance.position))
            for pick, rows in whole.minimal.items()
        },
    }


def _minimal_to_json(rows: Counterfactuals, chosen: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The rows of `nearest` or `best` of one instance, cheapest first."""
    cells = records(rows.schema, rows.cells[chosen])
    return [
        {
            "row": list(row.values()),
            "label": rows.label[i],
            "valid": bool(rows.valid[i]),
            "feasible": bool(rows.feasible[i]),
            "prototype": None if rows.prototype[i] < 0 else int(rows.prototype[i]),
            "mark": rows.mark[i],
            **{name: _finite(getattr(rows, name)[i]) for name in NUMBERS[1:]},
        }
        for i, row in zip(chosen.tolist(), cells, strict=True)
    ]


def _identity(instance: InstanceExplanation) -> dict[str, Any]:
    return {} if instance.explanation.ids is None else {"id": _id_to_json(instance.id)}


def _outcome(instance: InstanceExplanation) -> dict[str, Any]:
    why = None if instance.why_not is None else instance.why_not.to_json()
    return {"status": instance.status, "reason": instance.reason, "why_not": why}


def _id_to_json(value: Any) -> Any:
    """An identifier, one of several parts as a list; what JSON does not have (a date) as text."""
    if isinstance(value, tuple):
        return [_id_to_json(part) for part in value]
    return value if isinstance(value, str | bool | int | None) else str(value)


def _path_to_json(whole: Explanation, index: int) -> dict[str, Any]:
    verdicts, labels = (False, True, None), (*whole.labels, None)
    steps = [
        {
            "row": list(row.values()),
            "label": labels[whole.predicted[index, s]],
            "valid": verdicts[whole.valid[index, s]],
            "feasible": bool(whole.feasible[index, s]),
            **{name: _finite(getattr(whole, name)[index, s]) for name in NUMBERS},
        }
        for s, row in enumerate(records(whole.schema, whole.cells[index]))
    ]
    return {
        "prototype": None if whole.prototype[index] < 0 else int(whole.prototype[index]),
        "picks": {name: int(chosen[index]) for name, chosen in whole.picked.items()},
        "crossings": int(whole.crossings[index]),
        "steps": steps,
    }


def _finite(value: float) -> float | None:
    """A number that JSON has; None for NaN (unknown) and infinity (the cost of a fixed column)."""
    return float(value) if np.isfinite(value) else None


def why_not_to_json(explanation: Explanation) -> dict[str, Any]:
    """Only which instances have no counterfactual and why, as `lapace why-not` prints it."""
    instances = [{"instance": i.position, **_identity(i), **_outcome(i)} for i in explanation]
    return {"format": "lapace/why-not", "version": VERSION, "instances": instances}


def from_json(data: Mapping[str, Any]) -> Explanation:
    """Reads what `Explanation.to_json` returned; anything else is refused."""
    if not isinstance(data, Mapping) or data.get("format") != "lapace/explanation":
        raise InputError("This is not a lapace explanation.")
    if data.get("version") != VERSION:
        raise InputError(
            f"This explanation is of format version {data.get('version')}, and this lapace reads "
            f"version {VERSION}. Explain the instances again, or use the lapace that wrote it."
        )
    try:
        return _checked(_parse(data))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"This explanation is damaged: {error!r}.") from None


def _checked(found: Explanation) -> Explanation:
    """Refuses what could be parsed but not used."""
    template, steps = found.template, found.tau.shape[1]
    texts = (*found.reason, *found.constraints, *found.schema.names, *template.dtypes)
    index = [name for name in template.index if not isinstance(name, str | int | None)]
    rules = {
        "a kind of frame": {template.kind, found.schema.template.kind} <= set(KINDS),
        "a column": sorted(template.names) == sorted(found.schema.names)
        and len(template.dtypes) == len(template.names),
        "an identifier": not index and (found.ids is None or all(map(_is_id, found.ids))),
        "a label": all(isinstance(label, str | int) for label in found.labels),
        "a status": set(found.status) <= set(STATUSES),
        "a text": all(isinstance(text, str) for text in texts),
        "an option": _are_numbers(
            [found.confidence, found.plausibility, *(found.costs or {}).values()], np.inf
        ),
        "a pick": {*found.search["picks"]} <= {*PICKS}
        and all(((step >= 0) & (step < steps)).all() for step in found.picked.values()),
        "n_best": isinstance(most := found.search.get("n_best", 1), int) and most >= 1,
        "n_starts": isinstance(starts := found.search.get("n_starts", 1), int) and starts >= 1,
        "a mark": all(set(rows.mark) <= set(MARKS) for rows in found.minimal.values()),
        "a verdict": bool(np.isin(found.valid, (-1, 0, 1)).all()),
        "a why_not": all(
            _is_why_not(why, found.status[instance], set(found.schema.names))
            for instance, why in found.why_not.items()
        ),
    }
    for what, holds in rules.items():
        if not holds:
            raise ValueError(f"{what} is not what it should be")
    return found


def _is_id(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, str | int | float | None) for part in parts)


def _are_numbers(found: Sequence[Any], *others: Any) -> bool:
    """Whether all are finite numbers, None, or one of the others."""
    return all(
        v is None or (isinstance(v, int | float) and (np.isfinite(v) or v in others)) for v in found
    )


def _is_why_not(why: WhyNot, status: str, names: set[str]) -> bool:
    """Whether it is of an instance without a counterfactual, with texts and numbers."""
    texts = [text for move in why.moves for text in (move.constraint, move.text)]
    return (
        status in ("infeasible", "none_found")
        and why.status == status
        and isinstance(why.exact, bool)
        and all(isinstance(text, str) for text in (*why.clash, *why.drop, why.text, *texts))
        and _are_numbers([move.by for move in why.moves])
        and (why.row is None or set(why.row) == names)
    )


def _parse(data: Mapping[str, Any]) -> Explanation:
    schema, labels = Schema.from_json(data["schema"]), tuple(data["labels"])
    instances, options, costs = data["instances"], data["options"], data["options"]["costs"]
    paths = [(i, path) for i, instance in enumerate(instances) for path in instance["paths"]]
    steps = [path["steps"] for _, path in paths]
    shape = (len(paths), len(steps[0]) if steps else 1)
    names = np.array([*labels, None], dtype=object)

    def column(name: str, dtype: Any, unknown: Any = np.nan) -> NDArray[Any]:
        cells = [[unknown if s[name] is None else s[name] for s in path] for path in steps]
        return np.array(cells, dtype=dtype).reshape(shape)

    def codes(found: Sequence[Level | None]) -> NDArray[np.int64]:
        return np.array([-1 if v is None else labels.index(v) for v in found], dtype=np.int64)

    rows = [step["row"] for path in steps for step in path]
    search = dict(options["search"])
    search["picks"] = tuple(search["picks"])
    picks = [pick for pick in search["picks"] if pick not in MINIMAL]
    ids = [_id_from_json(instance["id"]) for instance in instances if "id" in instance]
    if ids and len(ids) < len(instances):
        raise ValueError("some instances have an id and some have none")
    template = Template.from_json(data["template"])
    originals = _cells(schema, [instance["row"] for instance in instances])
    found = Explanation(
        schema=schema,
        template=template,
        labels=labels,
        instances=originals,
        label=names[codes([instance["label"] for instance in instances])],
        target=names[codes([instance["target"] for instance in instances])],
        status=tuple(instance["status"] for instance in instances),
        reason=tuple(instance["reason"] for instance in instances),
        constraints=tuple(data["constraints"]),
        instance=np.array([i for i, _ in paths], dtype=np.int64),
        prototype=np.array([_endpoint(path["prototype"]) for _, path in paths], dtype=np.int64),
        cells=_cells(schema, rows).reshape(*shape, len(schema.features)),
        predicted=codes([step["label"] for path in steps for step in path]).reshape(shape),
        valid=column("valid", np.int8, -1),
        feasible=column("feasible", np.bool_),
        **cast(dict[str, Any], {name: column(name, np.float64) for name in NUMBERS}),
        picked={k: np.array([p["picks"][k] for _, p in paths], dtype=np.int64) for k in picks},
        crossings=np.array([path["crossings"] for _, path in paths], dtype=np.int64),
        n_queries=int(data["n_queries"]),
        ids=tuple(ids) or None,
        costs=None if costs is None else {k: np.inf if v is None else v for k, v in costs.items()},
        confidence=options["confidence"],
        plausibility=options["plausibility"],
        search=search,
        why_not={
            i: WhyNot.from_json(why)
            for i, instance in enumerate(instances)
            if (why := instance.get("why_not"))
        },
        minimal={},
    )
    minimal = {
        pick: _minimal_from_json(found, [instance.get(pick, ()) for instance in instances])
        for pick in MINIMAL
        if pick in search["picks"]
    }
    return replace(found, minimal=minimal)


def _minimal_from_json(
    found: Explanation, instances: Sequence[Sequence[Mapping[str, Any]]]
) -> Counterfactuals:
    """The rows of `nearest` or `best`, given those of each instance."""
    rows = [(i, rank, row) for i, some in enumerate(instances) for rank, row in enumerate(some)]

    def column(name: str, dtype: Any, unknown: Any = np.nan) -> NDArray[Any]:
        values = [unknown if row[name] is None else row[name] for _, _, row in rows]
        return np.array(values, dtype=dtype)

    labels = np.empty(len(rows), dtype=object)
    labels[:] = [None if row["label"] is None else row["label"] for _, _, row in rows]
    if not {*labels.tolist()} <= {*found.labels, None}:
        raise ValueError("a row has a label that the classifier does not have")
    return Counterfactuals(
        found.schema,
        found.template,
        found.instances,
        cells=_cells(found.schema, [row["row"] for _, _, row in rows]),
        instance=np.array([i for i, _, _ in rows], dtype=np.int64),
        prototype=np.array([_endpoint(row["prototype"]) for _, _, row in rows], dtype=np.int64),
        tau=np.full(len(rows), np.nan),
        label=labels,
        valid=column("valid", np.bool_),
        feasible=column("feasible", np.bool_),
        rank=np.array([rank for _, rank, _ in rows], dtype=np.int64),
        mark=column("mark", object, ""),
        ids=found.ids,
        reasons=found.reasons,
        **cast(dict[str, Any], {name: column(name, np.float64) for name in NUMBERS[1:]}),
    )


def _endpoint(prototype: int | None) -> int:
    if prototype is not None and prototype < 0:
        raise ValueError(f"there is no prototype {prototype}")
    return -1 if prototype is None else prototype


def _id_from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _cells(schema: Schema, rows: Sequence[Sequence[Any]]) -> Floats:
    codes = [
        None if f.kind == "continuous" else {None: np.nan} | {v: k for k, v in enumerate(f.levels)}
        for f in schema.features
    ]
    dates = {i: f for i, f in enumerate(schema.features) if f.is_date}
    cells = [
        [value if known is None else known[value] for known, value in zip(codes, row, strict=True)]
        for row in rows
    ]
    for row in cells if dates else ():
        for i, feature in dates.items():
            row[i] = feature.number(str(row[i])) if row[i] is not None else np.nan
    return np.array(cells, dtype=np.float64).reshape(len(rows), len(codes))  # None is NaN
