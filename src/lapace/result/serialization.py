"""Explanations as published JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.result.counterfactuals import values
from lapace.result.explanation import STATUSES, Explanation, InstanceExplanation
from lapace.result.why_not import WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template

__all__ = ["VERSION", "from_json", "json_schema", "to_json", "why_not_to_json"]


VERSION = 2
KINDS = ("pandas", "polars", "pyarrow", "records", "array")


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of `Explanation.to_json`.

    Examples:
        >>> json_schema()["title"]
        'lapace explanation'
    """
    text = files("lapace").joinpath("explanation.schema.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def to_json(answer: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values."""
    return {
        "format": "lapace/explanation",
        "version": VERSION,
        "schema": _public(answer.schema),
        "template": answer.template.to_json(),
        "labels": list(answer.labels),
        "constraints": list(answer.constraints),
        "options": {
            "costs": None if answer.costs is None else dict(answer.costs),
            "confidence": answer.confidence,
            "search": dict(answer.search),
        },
        "n_queries": answer.n_queries,
        "instances": [_instance_to_json(instance) for instance in answer],
    }


def _instance_to_json(instance: InstanceExplanation) -> dict[str, Any]:
    answer, why = instance.explanation, instance.why_not
    return {
        "row": values(answer.schema, answer.instances[instance.position]),
        "label": instance.label,
        "target": instance.target,
        "status": instance.status,
        "reason": instance.reason,
        "why_not": None if why is None else why.to_json(),
        "paths": [
            _path_to_json(answer, int(index))
            for index in np.flatnonzero(answer.instance == instance.position)
        ],
    }


def why_not_to_json(answer: Explanation) -> dict[str, Any]:
    """Only who has no answer and why: what `lapace why-not` and `/v1/why-not` give."""
    instances = [
        {
            "instance": instance.position,
            "status": instance.status,
            "reason": instance.reason,
            "why_not": None if instance.why_not is None else instance.why_not.to_json(),
        }
        for instance in answer
    ]
    return {"format": "lapace/why-not", "version": VERSION, "instances": instances}


def _public(schema: Schema) -> dict[str, Any]:
    """The schema without what only training needs."""
    data = schema.to_json()
    for feature in data["features"]:
        feature["knots"] = None
        feature["histogram"] = [[], []]
    return data


def _number(value: float) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124  NaN


def _path_to_json(answer: Explanation, index: int) -> dict[str, Any]:
    verdict, names = (False, True, None), (*answer.labels, None)
    steps = [
        {
            "tau": _number(answer.tau[index, s]),
            "row": values(answer.schema, answer.cells[index, s]),
            "label": names[answer.predicted[index, s]],
            "valid": verdict[answer.valid[index, s]],
            "feasible": bool(answer.feasible[index, s]),
            "probability": _number(answer.probability[index, s]),
            "density": _number(answer.density[index, s]),
            "density_before": _number(answer.density_before[index, s]),
            "distance": float(answer.distance[index, s]),
        }
        for s in range(answer.tau.shape[1])
    ]
    return {
        "prototype": None if answer.prototype[index] < 0 else int(answer.prototype[index]),
        "picks": {name: int(steps_[index]) for name, steps_ in answer.picked.items()},
        "crossings": int(answer.crossings[index]),
        "steps": steps,
    }


def from_json(data: Mapping[str, Any]) -> Explanation:
    """Reads what `Explanation.to_json` gave; what is not that is refused."""
    if not isinstance(data, Mapping) or data.get("format") != "lapace/explanation":
        raise InputError("This is not a lapace explanation.")
    if data.get("version") != VERSION:
        raise InputError(
            f"This explanation is of version {data.get('version')}; this lapace reads {VERSION}."
        )
    try:
        return _checked(_parse(data))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"This explanation is damaged: {error!r}.") from None


def _checked(answer: Explanation) -> Explanation:
    """What could be read but not used is refused as well."""
    template, steps = answer.template, answer.tau.shape[1]
    words = (*answer.reason, *answer.constraints, *answer.schema.names, *template.dtypes)
    holds = {
        "a kind of frame": {template.kind, answer.schema.template.kind} <= set(KINDS),
        "a column": sorted(template.names) == sorted(answer.schema.names)
        and len(template.dtypes) == len(template.names),
        "a label": all(isinstance(label, str | int) for label in answer.labels),
        "a status": set(answer.status) <= set(STATUSES),
        "a text": all(isinstance(word, str) for word in words),
        "a pick": {"first", "middle", "last"} <= set(answer.picked)
        and all(((step >= 0) & (step < steps)).all() for step in answer.picked.values()),
        "a verdict": bool(np.isin(answer.valid, (-1, 0, 1)).all()),
        "a why_not": all(
            _is_why_not(why, answer.status[instance], set(answer.schema.names))
            for instance, why in answer.why_not.items()
        ),
    }
    for what, fine in holds.items():
        if not fine:
            raise ValueError(f"{what} is not what it should be")
    return answer


def _is_why_not(why: WhyNot, status: str, names: set[str]) -> bool:
    """Whether what was read can be used: of somebody without an answer, with texts and numbers."""
    told = [word for move in why.moves for word in (move.constraint, move.text)]
    words = (*why.clash, *why.drop, why.text, *told)
    far = [move.by for move in why.moves]
    return (
        status in ("infeasible", "none_found")
        and why.status == status
        and isinstance(why.exact, bool)
        and all(isinstance(word, str) for word in words)
        and all(by is None or (isinstance(by, int | float) and np.isfinite(by)) for by in far)
        and (why.row is None or set(why.row) == names)
    )


def _parse(data: Mapping[str, Any]) -> Explanation:
    schema = Schema.from_json(data["schema"])
    labels = tuple(data["labels"])
    instances, options = data["instances"], data["options"]
    paths = [(i, path) for i, instance in enumerate(instances) for path in instance["paths"]]
    steps = [path["steps"] for _, path in paths]
    count = len(steps[0]) if steps else 1  # a path of nobody still has an instance and an end
    shape = (len(paths), count)

    def column(name: str, dtype: Any, unknown: Any = np.nan) -> NDArray[Any]:
        cells = [[unknown if s[name] is None else s[name] for s in path] for path in steps]
        return np.array(cells, dtype=dtype).reshape(shape)

    rows = [step["row"] for path in steps for step in path]
    picks = list(paths[0][1]["picks"]) if paths else ["first", "middle", "last"]
    return Explanation(
        schema=schema,
        template=Template.from_json(data["template"]),
        labels=labels,
        instances=_cells(schema, [p["row"] for p in instances]),
        label=_labels(labels, [p["label"] for p in instances]),
        target=_labels(labels, [p["target"] for p in instances]),
        status=tuple(p["status"] for p in instances),
        reason=tuple(p["reason"] for p in instances),
        constraints=tuple(data["constraints"]),
        instance=np.array([i for i, _ in paths], dtype=np.int64),
        prototype=np.array(
            [-1 if p["prototype"] is None else p["prototype"] for _, p in paths], dtype=np.int64
        ),
        tau=column("tau", np.float64),
        cells=_cells(schema, rows).reshape(*shape, len(schema.features)),
        predicted=np.array(
            [[_code(labels, s["label"]) for s in path] for path in steps], dtype=np.int64
        ).reshape(shape),
        valid=column("valid", np.int8, -1),
        feasible=column("feasible", np.bool_),
        probability=column("probability", np.float64),
        density=column("density", np.float64),
        density_before=column("density_before", np.float64),
        distance=column("distance", np.float64),
        picked={k: np.array([p["picks"][k] for _, p in paths], dtype=np.int64) for k in picks},
        crossings=np.array([p["crossings"] for _, p in paths], dtype=np.int64),
        n_queries=int(data["n_queries"]),
        costs=None if options["costs"] is None else dict(options["costs"]),
        confidence=options["confidence"],
        search=dict(options["search"]),
        why_not={
            i: WhyNot.from_json(w) for i, p in enumerate(instances) if (w := p.get("why_not"))
        },
    )


def _labels(labels: tuple[Level, ...], values: Sequence[Level | None]) -> NDArray[np.object_]:
    """Labels of a file as the known ones; JSON does not tell 1 from 1.0."""
    codes = np.array([_code(labels, value) for value in values], dtype=np.int64)
    return np.array([*labels, None], dtype=object)[codes]


def _code(labels: tuple[Level, ...], label: Level | None) -> int:
    return -1 if label is None else labels.index(label)


def _cells(schema: Schema, rows: Sequence[Sequence[Any]]) -> Floats:
    cells = np.full((len(rows), len(schema.features)), np.nan)
    if any(len(row) != len(schema.features) for row in rows):
        raise ValueError("a row has more or fewer cells than there are columns")
    for i, feature in enumerate(schema.features):
        codes = {level: float(k) for k, level in enumerate(feature.levels)}
        for r, row in enumerate(rows):
            value = row[i]
            if value is not None:
                cells[r, i] = value if feature.kind == "continuous" else codes[value]
    return cells
