"""What an explanation is: plain frozen data, and picks that only select.

`Explanation` holds every step of every path as arrays; `first`, `middle`, `last`, `nearest`,
`sparse` and `at` choose rows among them and return `Counterfactuals`. Nothing here asks the
classifier, needs the model, or computes anything that `explain` has not already decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError
from lapace.schema import Schema
from lapace.table import Level, Template, plain_frame, read_json, write_json

__all__ = ["Counterfactuals", "Explanation", "Person", "json_schema"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

VERSION = 1
KINDS = ("pandas", "polars", "pyarrow", "records", "array")
STATUSES = ("answered", "none_found", "infeasible", "already_target", "malformed")


@dataclass(frozen=True)
class Counterfactuals:
    """Rows offered as answers, and what is known of each.

    Attributes:
        schema: The columns.
        template: The frame kind the rows go out as.
        people: Cells of everyone asked about.
        cells: Cells of the answers.
        who: For each answer the person's position in the query.
        prototype: The prototype its path leads to, as numbered in the report; -1 for none.
        tau: Where on the path it stands, 0 the person, 1 the prototype; NaN off any path.
        valid: Whether the classifier, asked about exactly this row, says the target.
        feasible: Whether every constraint and rule holds on exactly this row.
        probability: The classifier's probability of the target; NaN where unknown.
        density: Percentile of its latent density among training rows; NaN where unknown.
        distance: From the person, in `Schema.distance` with the costs asked for.
    """

    schema: Schema
    template: Template
    people: Floats
    cells: Floats
    who: Ints
    prototype: Ints
    tau: Floats
    valid: Bools
    feasible: Bools
    probability: Floats
    density: Floats
    distance: Floats

    @classmethod
    def of(
        cls,
        schema: Schema,
        people: Floats,
        cells: Floats,
        who: Ints,
        *,
        valid: Bools,
        template: Template | None = None,
        **known: NDArray[Any],
    ) -> Counterfactuals:
        """Answers from any method: what is not known is left unknown."""
        unknown = np.full(len(cells), np.nan)
        return cls(
            schema,
            template or schema.template,
            people,
            cells,
            who,
            cast(Ints, known.get("prototype", np.full(len(cells), -1))),
            known.get("tau", unknown),
            valid,
            cast(Bools, known.get("feasible", np.ones(len(cells), dtype=bool))),
            known.get("probability", unknown),
            known.get("density", unknown),
            known.get("distance", schema.gaps(people[who], cells).sum(axis=1)),
        )

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        people = len(np.unique(self.who))
        return f"Counterfactuals: {len(self)} rows for {people} people, {int(self.ok.sum())} ok"

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        return self.valid & self.feasible

    @cached_property
    def changed(self) -> Ints:
        """How many features differ from the person's."""
        count: Ints = self.schema.changed(self.people[self.who], self.cells).sum(axis=1)
        return count

    def where(self, mask: Bools) -> Counterfactuals:
        """Only some of the answers."""
        names = (
            "cells", "who", "prototype", "tau", "valid", "feasible", "probability", "density",
            "distance",
        )  # fmt: skip
        kept = {name: getattr(self, name)[mask] for name in names}
        return Counterfactuals(self.schema, self.template, self.people, **kept)

    @property
    def rows(self) -> Any:
        """The answers in the table's own columns."""
        return self.schema.frame(self.cells, self.template)

    @property
    def about(self) -> Any:
        """What is known of each answer, one line each."""
        return plain_frame(self.template.kind, self._about())

    @property
    def frame(self) -> Any:
        """`about` and `rows` side by side."""
        own = {
            (f"answer_{name}" if name in self.schema.names else name): values
            for name, values in self._about().items()
        }
        return self.template.beside(own, self.rows)

    def _about(self) -> dict[str, NDArray[Any]]:
        names = np.array(self.schema.names, dtype=object)
        different = self.schema.changed(self.people[self.who], self.cells)
        features = np.empty(len(self), dtype=object)
        features[:] = [", ".join(names[row]) for row in different]
        return {
            "who": self.who,
            "prototype": self.prototype,
            "tau": self.tau,
            "valid": self.valid,
            "feasible": self.feasible,
            "probability": self.probability,
            "density": self.density,
            "distance": self.distance,
            "changed": self.changed,
            "features": features,
        }


@dataclass(frozen=True)
class Explanation:
    """Everything found for everyone asked about.

    A path is one line of the path arrays; its steps are the grid, then the refined first, the
    midpoint and, where asked for, the sparse row. `valid` is 1, 0, or -1 where the classifier
    was not asked.

    Attributes:
        schema: The columns, widened by what only these people have.
        template: The frame kind the people came in.
        labels: The classifier's labels; `label` and `target` are positions in it, -1 for none.
        people_cells: Everyone asked about.
        label: What the classifier says of each person.
        target: The label wanted for each person.
        status: One of `STATUSES` for each person.
        reason: The status in words.
        constraints: What every answer had to obey, as text.
        who: The person each path starts from.
        prototype: The prototype each path leads to.
        tau: Where each step stands.
        cells: The rows.
        valid: What the classifier said of each step.
        feasible: Whether each step obeys the constraints.
        probability: Of the target.
        density: Percentile among training rows.
        distance: From the person.
        picked: For `first`, `middle`, `last` (and `sparse`) the step chosen on each path.
        crossings: How often the label leaves the target again on each path's grid.
        asked: Rows the classifier was asked about.
    """

    schema: Schema
    template: Template
    labels: tuple[Level, ...]
    people_cells: Floats
    label: Ints
    target: Ints
    status: tuple[str, ...]
    reason: tuple[str, ...]
    constraints: tuple[str, ...]
    who: Ints  # (paths,)
    prototype: Ints  # (paths,)
    tau: Floats  # (paths, steps)
    cells: Floats  # (paths, steps, columns)
    valid: NDArray[np.int8]  # (paths, steps)
    feasible: Bools  # (paths, steps)
    probability: Floats  # (paths, steps)
    density: Floats  # (paths, steps)
    distance: Floats  # (paths, steps)
    picked: Mapping[str, Ints]  # each (paths,)
    crossings: Ints  # (paths,)
    asked: int

    # -- people -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Iterator[Person]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, who: int) -> Person:
        count = len(self)
        if not -count <= who < count:
            raise IndexError(f"There is no person {who}: the query had {count}.")
        return Person(self, who % count)

    @property
    def people(self) -> Any:
        """One line per person: label, target, status, and the reason in words."""
        names = np.array([*self.labels, None], dtype=object)
        columns: dict[str, NDArray[Any]] = {
            "label": names[self.label],
            "target": names[self.target],
            "status": np.array(self.status, dtype=object),
            "reason": np.array(self.reason, dtype=object),
        }
        return plain_frame(self.template.kind, columns)

    def __repr__(self) -> str:
        counts = {s: self.status.count(s) for s in STATUSES if s in self.status}
        told = ", ".join(f"{n} {s.replace('_', ' ')}" for s, n in counts.items())
        return f"Explanation of {len(self)} people: {told or 'nobody'}; {len(self.who)} paths"

    # -- picks ------------------------------------------------------------------------------------

    @property
    def ok(self) -> Bools:
        """Steps that are valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def first(self) -> Counterfactuals:
        """Per person and prototype, where the last unbroken run of ok steps begins."""
        return self._steps(self.picked["first"])

    def middle(self) -> Counterfactuals:
        """Per person and prototype, half-way between first and the prototype."""
        return self._steps(self.picked["middle"])

    def last(self) -> Counterfactuals:
        """Per person and prototype, the ok step farthest along: without limits the prototype."""
        return self._steps(self.picked["last"])

    def at(self, tau: float) -> Counterfactuals:
        """Per person and prototype, the stored step nearest `tau`."""
        if not 0 <= tau <= 1:
            raise InputError(f"tau is {tau}; it goes from 0, the person, to 1, the prototype.")
        return self._steps(np.nan_to_num(np.abs(self.tau - tau), nan=np.inf).argmin(axis=1))

    def nearest(self) -> Counterfactuals:
        """Per person, the ok row of least distance found on any path."""
        return self._cheapest(self._nearest_steps())

    def sparse(self) -> Counterfactuals:
        """Per person, the nearest row after putting features back to the person's own."""
        if "sparse" not in self.picked:
            raise InputError("There is no sparse row here. Ask for it: explain(..., sparse=True).")
        return self._cheapest(self.picked["sparse"])

    def _nearest_steps(self) -> Ints:
        """On each path the ok step of least distance."""
        cost = np.where(self.ok & ~np.isnan(self.tau), self.distance, np.inf)
        none = ~np.isfinite(cost).any(axis=1)  # then `first` is the best that was found
        return np.where(none, self.picked["first"], cost.argmin(axis=1))

    def _cheapest(self, chosen: Ints) -> Counterfactuals:
        """Per person the cheapest ok row of those chosen on each path, or the best there is."""
        paths = np.arange(len(self.who))
        price = np.where(self.ok[paths, chosen], self.distance[paths, chosen], np.inf)
        hope = np.nan_to_num(self.probability[paths, chosen], nan=0.0)
        # Of rows that are not ok, one that obeys the constraints is better than one that does not.
        order = np.lexsort((-hope, ~self.feasible[paths, chosen], price, self.who))
        _, where = np.unique(self.who[order], return_index=True)
        return self._rows(order[where], chosen[order[where]])

    def _steps(self, steps: Ints) -> Counterfactuals:
        return self._rows(np.arange(len(self.who)), steps)

    def _rows(self, paths: Ints, steps: Ints) -> Counterfactuals:
        return Counterfactuals(
            self.schema,
            self.template,
            self.people_cells,
            self.cells[paths, steps],
            self.who[paths],
            self.prototype[paths],
            self.tau[paths, steps],
            self.valid[paths, steps] == 1,
            self.feasible[paths, steps],
            self.probability[paths, steps],
            self.density[paths, steps],
            self.distance[paths, steps],
        )

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """As plain JSON values in the published format; written to `path` where one is given."""
        data = {
            "format": "lapace/explanation",
            "version": VERSION,
            "schema": _public(self.schema),
            "template": self.template.to_json(),
            "labels": list(self.labels),
            "constraints": list(self.constraints),
            "asked": self.asked,
            "people": [self[i]._to_json() for i in range(len(self))],
        }
        if path is not None:
            write_json(path, data)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | Path) -> Explanation:
        """Reads back what `to_json` gave, as values or as a file."""
        if isinstance(data, str | Path):
            data = read_json(data, "an explanation")
        return _explanation_from_json(cast(Mapping[str, Any], data))


@dataclass(frozen=True)
class Person:
    """One person's part of an explanation."""

    explanation: Explanation
    who: int

    @property
    def status(self) -> str:
        """Answered, none_found, infeasible, already_target or malformed."""
        return self.explanation.status[self.who]

    @property
    def reason(self) -> str:
        """The status in words."""
        return self.explanation.reason[self.who]

    @property
    def label(self) -> Level | None:
        """What the classifier says of this person."""
        code = self.explanation.label[self.who]
        return self.explanation.labels[code] if code >= 0 else None

    @property
    def target(self) -> Level | None:
        """The label asked for."""
        code = self.explanation.target[self.who]
        return self.explanation.labels[code] if code >= 0 else None

    @property
    def row(self) -> dict[str, Any]:
        """The person, in the table's own words."""
        return _record(self.explanation.schema, self.explanation.people_cells[self.who])

    @property
    def prototypes(self) -> tuple[int, ...]:
        """The prototypes there is a path to, nearest first row first."""
        paths = self._paths()
        step = self.explanation.picked["first"][paths]
        ok = self.explanation.ok[paths, step]
        order = np.lexsort((self.explanation.distance[paths, step], ~ok))
        return tuple(int(p) for p in self.explanation.prototype[paths[order]])

    def path(self, prototype: int | None = None) -> Counterfactuals:
        """Every step towards one prototype, in order; by default the nearest one."""
        index = self._path(prototype)
        tau, first = np.unique(self.explanation.tau[index], return_index=True)
        known = first[~np.isnan(tau)]
        return self.explanation._rows(np.full(len(known), index), known)

    def changes(self, prototype: int | None = None, pick: str = "first") -> Any:
        """What a person reads: feature, before, after, and from which point of the path.

        Args:
            prototype: The path; by default the one whose first answer is nearest, and for
                `nearest` and `sparse` the one their row was found on.
            pick: `first`, `middle`, `last`, `nearest` or `sparse`.
        """
        answer = self.explanation
        nearest = answer._nearest_steps()
        picks = {**answer.picked, "nearest": nearest}
        if pick not in picks:
            raise InputError(f"There is no pick '{pick}'. There are: {', '.join(picks)}.")
        if prototype is None and pick in ("nearest", "sparse") and len(self._paths()):
            found = answer._cheapest(picks[pick])
            prototype = int(found.prototype[found.who == self.who][0])
        index = self._path(prototype)
        step = picks[pick][index]
        own, row = answer.people_cells[self.who], answer.cells[index, step]
        path = self.path(int(answer.prototype[index]))
        # The sparse row lies on no path: it is what is left of the path's nearest row.
        end = answer.tau[index, nearest[index] if pick == "sparse" else step]
        before_pick = path.tau <= end
        lines = []
        for i in np.flatnonzero(answer.schema.changed(own, row)):
            feature = answer.schema.features[i]
            moved = answer.schema.changed(own[None], path.cells)[:, i] & before_pick
            still = np.flatnonzero(~moved & before_pick)
            start = path.tau[still[-1] + 1] if len(still) and still[-1] + 1 < len(path) else 0.0
            start = min(float(start), float(end))
            lines.append((feature.name, feature.text(own[i]), feature.text(row[i]), start))
        columns = zip(*lines, strict=True) if lines else ((), (), (), ())
        names = ("feature", "before", "after", "from_tau")
        dtypes = (object, object, object, np.float64)
        return plain_frame(
            answer.template.kind,
            {n: np.array(list(c), dtype=t) for n, c, t in zip(names, columns, dtypes, strict=True)},
        )

    def __repr__(self) -> str:
        return f"Person {self.who}: {self.label} → {self.target}: {self.status}. {self.reason}"

    def _paths(self) -> Ints:
        return np.flatnonzero(self.explanation.who == self.who)

    def _path(self, prototype: int | None) -> int:
        if not len(self._paths()):
            raise InputError(f"Person {self.who} has no paths: {self.reason}")
        wanted = self.prototypes[0] if prototype is None else prototype
        for index in self._paths():
            if self.explanation.prototype[index] == wanted:
                return int(index)
        known = ", ".join(map(str, sorted(self.prototypes)))
        raise InputError(
            f"Person {self.who} has no path to prototype {wanted}. There are: {known}."
        )

    def _to_json(self) -> dict[str, Any]:
        answer = self.explanation
        return {
            "row": _values(answer.schema, answer.people_cells[self.who]),
            "label": self.label,
            "target": self.target,
            "status": self.status,
            "reason": self.reason,
            "paths": [_path_to_json(answer, int(index)) for index in self._paths()],
        }


# ------------------------------------------------------------------------------------------------
# JSON


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of `Explanation.to_json`.

    Examples:
        >>> json_schema()["title"]
        'lapace explanation'
    """
    text = files("lapace").joinpath("explanation.schema.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def _public(schema: Schema) -> dict[str, Any]:
    """The schema without what only training needs."""
    data = schema.to_json()
    for feature in data["features"]:
        feature["knots"] = None
        feature["histogram"] = [[], []]
    return data


def _values(schema: Schema, cells: Floats) -> list[Any]:
    """One row as JSON values, in the columns' order."""
    values: list[Any] = []
    for feature, cell in zip(schema.features, cells.tolist(), strict=True):
        if cell != cell:  # noqa: PLR0124  NaN
            values.append(None)
        elif feature.kind == "continuous":
            values.append(int(cell) if feature.integer and cell == int(cell) else cell)
        else:
            values.append(feature.levels[int(cell)])
    return values


def _record(schema: Schema, cells: Floats) -> dict[str, Any]:
    return dict(zip(schema.names, _values(schema, cells), strict=True))


def _number(value: float) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124  NaN


def _path_to_json(answer: Explanation, index: int) -> dict[str, Any]:
    verdict = (False, True, None)
    steps = [
        {
            "tau": _number(answer.tau[index, s]),
            "row": _values(answer.schema, answer.cells[index, s]),
            "valid": verdict[answer.valid[index, s]],
            "feasible": bool(answer.feasible[index, s]),
            "probability": _number(answer.probability[index, s]),
            "density": _number(answer.density[index, s]),
            "distance": float(answer.distance[index, s]),
        }
        for s in range(answer.tau.shape[1])
    ]
    return {
        "prototype": int(answer.prototype[index]),
        "picks": {name: int(steps_[index]) for name, steps_ in answer.picked.items()},
        "crossings": int(answer.crossings[index]),
        "steps": steps,
    }


def _explanation_from_json(data: Mapping[str, Any]) -> Explanation:
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
    }
    for what, fine in holds.items():
        if not fine:
            raise ValueError(f"{what} is not what it should be")
    return answer


def _parse(data: Mapping[str, Any]) -> Explanation:
    schema = Schema.from_json(data["schema"])
    labels = tuple(data["labels"])
    people = data["people"]
    paths = [(i, path) for i, person in enumerate(people) for path in person["paths"]]
    steps = [path["steps"] for _, path in paths]
    count = len(steps[0]) if steps else 1  # a path of nobody still has a person and an end
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
        people_cells=_cells(schema, [p["row"] for p in people]),
        label=np.array([_code(labels, p["label"]) for p in people], dtype=np.int64),
        target=np.array([_code(labels, p["target"]) for p in people], dtype=np.int64),
        status=tuple(p["status"] for p in people),
        reason=tuple(p["reason"] for p in people),
        constraints=tuple(data["constraints"]),
        who=np.array([i for i, _ in paths], dtype=np.int64),
        prototype=np.array([p["prototype"] for _, p in paths], dtype=np.int64),
        tau=column("tau", np.float64),
        cells=_cells(schema, rows).reshape(*shape, len(schema.features)),
        valid=column("valid", np.int8, -1),
        feasible=column("feasible", np.bool_),
        probability=column("probability", np.float64),
        density=column("density", np.float64),
        distance=column("distance", np.float64),
        picked={k: np.array([p["picks"][k] for _, p in paths], dtype=np.int64) for k in picks},
        crossings=np.array([p["crossings"] for _, p in paths], dtype=np.int64),
        asked=int(data["asked"]),
    )


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
