"""Everything found for a batch of instances, and one instance's part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, matches
from lapace.errors import InputError, check_integer, did_you_mean
from lapace.files import read_json, write_json
from lapace.result.counterfactuals import Counterfactuals, record
from lapace.result.why_not import WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template, plain_frame

__all__ = ["ANY_OTHER", "PICKS", "STATUSES", "Explanation", "InstanceExplanation"]


Status: TypeAlias = Literal["answered", "none_found", "infeasible", "already_target", "malformed"]
STATUSES = get_args(Status)
STEP = (  # the fields that have one value per path and step
    "tau", "cells", "predicted", "valid", "feasible", "probability", "density",
    "survival", "survival_low", "survival_high", "distance",
)  # fmt: skip
PICKS = ("best", "nearest", "first", "middle", "last")
End: TypeAlias = Literal["safe", "enough"]
ENDS = get_args(End)
ANY_OTHER = "any-other"  # the target that is any label but the instance's


@dataclass(frozen=True, eq=False)
class Explanation:
    """Everything found for a batch of instances.

    The path arrays have one line per path; the steps of a path are the grid, then the refined first
    and the midpoint.

    Attributes:
        schema: The columns, widened by what only these instances have.
        template: The frame kind the instances came in.
        labels: The classifier's labels.
        instances: Cells of all instances of the query.
        label: What the classifier says of each instance; None where it cannot say.
        target: The label wanted for each instance; None for any other than `label`.
        status: One of `STATUSES` for each instance.
        reason: The status in words.
        constraints: The constraints and rules on every counterfactual, as text.
        instance: The position of the instance each path starts from.
        prototype: The prototype each path leads to.
        predicted: What the classifier says of each step, as a position in `labels`; -1 where it was
            not queried or could not say.
        valid: Whether each step's label is the target: 1, 0, or -1 where the classifier was not
            queried.
        tau, cells, feasible, probability, density, survival, survival_low, survival_high, distance:
            As in `Counterfactuals`, for each step. Density and survival are NaN for steps that
            neither `first`, `middle` nor `last` picked.
        picked: The step of each path that `first`, `middle` and `last` chose, by pick.
        minimal: The rows that lie on no path, by name: `nearest`, and both ends of the ways of
            `best`, `best` (safe) and `enough`, row by row.
        crossings: How often the label leaves the target again on each path's grid.
        n_queries: Rows the classifier was asked about.
        ids: Identifiers of the instances, where their table had any.
        costs: The weights of `distance` by column, where any were given.
        confidence: The probability of the target that `valid` required, where one was given.
        plausibility: The density that `feasible` required, where one was given.
        search: The settings of the search, by name.
        why_not: The smallest relaxation for each instance without a counterfactual (none_found,
            infeasible), by position; empty until `Explainer.why_not` is called.
        seconds: Seconds spent in all, in the classifier, and on the constraints. Neither compared
            nor part of the JSON.
        request: The constraints as objects, for `Explainer.why_not`. Neither compared nor part of
            the JSON.
    """

    schema: Schema
    template: Template
    labels: tuple[Level, ...]
    instances: Floats  # (n, columns)
    label: NDArray[np.object_]  # (n,)
    target: NDArray[np.object_]  # (n,)
    status: tuple[str, ...]
    reason: tuple[str, ...]
    constraints: tuple[str, ...]
    instance: Ints  # (paths,)
    prototype: Ints  # (paths,)
    tau: Floats  # (paths, steps)
    cells: Floats  # (paths, steps, columns)
    predicted: Ints  # (paths, steps)
    valid: NDArray[np.int8]  # (paths, steps)
    feasible: Bools  # (paths, steps)
    probability: Floats  # (paths, steps)
    density: Floats  # (paths, steps)
    survival: Floats  # (paths, steps)
    survival_low: Floats  # (paths, steps)
    survival_high: Floats  # (paths, steps)
    distance: Floats  # (paths, steps)
    picked: Mapping[str, Ints]  # each (paths,)
    minimal: Mapping[str, Counterfactuals]
    crossings: Ints  # (paths,)
    n_queries: int
    ids: tuple[Any, ...] | None = None
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    plausibility: float | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    why_not: Mapping[int, WhyNot] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    request: Any = field(default=None, compare=False, repr=False)

    # -- instances --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Iterator[InstanceExplanation]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> InstanceExplanation: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> Explanation: ...
    def __getitem__(self, key: Any) -> Any:
        """Returns one instance by position, or several by a slice, positions or a mask.

        Several instances are an `Explanation`, in which positions count from 0 again; `n_queries`
        stays that of the whole.
        """
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"There is no instance {key}: the query had {len(self)}.")
            i = int(key) % len(self)
            return InstanceExplanation(
                explanation=self,
                position=i,
                id=None if self.ids is None else self.ids[i],
                label=self.label[i],
                target=self.target[i],
                status=self.status[i],
                reason=self.reason[i],
                why_not=self.why_not.get(i),
            )
        positions = np.arange(len(self))
        chosen = positions[key] if isinstance(key, slice) or len(key) else positions[:0]
        instance, paths = matches(chosen, self.instance)
        return replace(
            self,
            **{name: getattr(self, name)[chosen] for name in ("instances", "label", "target")},
            **{name: getattr(self, name)[paths] for name in ("prototype", "crossings", *STEP)},
            instance=instance,
            status=tuple(self.status[i] for i in chosen),
            reason=tuple(self.reason[i] for i in chosen),
            ids=None if self.ids is None else tuple(self.ids[i] for i in chosen),
            picked={name: steps[paths] for name, steps in self.picked.items()},
            minimal={name: rows.of_instances(chosen) for name, rows in self.minimal.items()},
            why_not={k: self.why_not[i] for k, i in enumerate(chosen) if i in self.why_not},
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explanation) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def summary(self) -> Any:
        """A frame of one line per instance: label, target, status, and the reason in words."""
        columns = {
            "label": self.label,
            "target": np.array([instance.wanted for instance in self], dtype=object),
            "status": np.array(self.status, dtype=object),
            "reason": np.array(self.reason, dtype=object),
        }
        return plain_frame(self.template.kind, columns, self.ids, self.template.index)

    def __repr__(self) -> str:
        return describe_statuses(Counter(self.status))

    # -- picks ------------------------------------------------------------------------------------

    @property
    def ok(self) -> Bools:
        """Whether each step is valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def first(self) -> Counterfactuals:
        """Returns, per instance and prototype, the start of the last unbroken run of ok steps."""
        return self._steps("first")

    def middle(self) -> Counterfactuals:
        """Returns, per instance and prototype, the midpoint between first and the prototype."""
        return self._steps("middle")

    def last(self) -> Counterfactuals:
        """Returns, per instance and prototype, the ok step of largest tau."""
        return self._steps("last")

    def at(self, tau: float) -> Counterfactuals:
        """Returns, per instance and prototype, the stored step nearest `tau`."""
        if not 0 <= tau <= 1:
            raise InputError(f"tau is {tau}; it goes from 0, the instance, to 1, the prototype.")
        step = np.nan_to_num(np.abs(self.tau - tau), nan=np.inf).argmin(axis=1)
        return self._rows(np.arange(len(step)), step)

    def nearest(self) -> Counterfactuals:
        """Returns, per instance, the ok row of least effort found, made minimal.

        No change in the row can be undone alone with the row staying ok, and no number can go back
        alone by a twentieth of its change (or one step of its resolution, if that is more).
        """
        return self._minimal_rows("nearest")

    def best(self, k: int | None = None, *, end: End = "safe") -> Counterfactuals:
        """Returns, per instance, up to `k` different ways to the target, cheapest first.

        A way has two ends. `safe` is minimal among the rows that keep a margin of the classifier's
        odds; its numbers are then rounded outward. `enough` just turns the decision, and changes no
        other features. They coincide where there is no margin to keep: with `confidence`, or for a
        classifier of labels alone. `mark` says what a row lacks. Two ways differ in a category, or
        neither changes all the features that the other changes.

        Args:
            k: The most ways per instance; None for all that were computed.
            end: `safe` or `enough`.
        """
        if end not in ENDS:
            hint = did_you_mean(end, ENDS)
            raise InputError(f"end is {end!r}; a way ends at 'safe' or at 'enough'.{hint}")
        self._minimal_rows("best")
        rows = self.minimal["best" if end == "safe" else "enough"]
        if k is None:
            return rows
        k = check_integer("k", k)
        most = self.search.get("n_best", k)
        if k > most:
            raise InputError(
                f"Only the best {most} were computed. Use explain(..., search=Search(n_best={k}))."
            )
        return rows.where(rows.rank < k)

    def all_steps(self, paths: Ints | None = None) -> Counterfactuals:
        """Returns all steps, sorted by instance, prototype and tau.

        A tau that occurs twice on a path is returned once.

        Args:
            paths: The positions of the paths; all of them by default.
        """
        paths = np.arange(len(self.instance)) if paths is None else paths
        path, step = np.nonzero(~np.isnan(self.tau[paths]))
        path = paths[path]
        tau = self.tau[path, step]
        order = np.lexsort((tau, path, self.prototype[path], self.instance[path]))
        path, step, tau = path[order], step[order], tau[order]
        new = np.ones(len(path), dtype=bool)  # the first step of each tau
        new[1:] = (np.diff(path) != 0) | (np.diff(tau) != 0)
        return self._rows(path[new], step[new])

    def _minimal_rows(self, pick: str) -> Counterfactuals:
        if pick not in self.minimal:
            raise self._not_computed(pick)
        return self.minimal[pick]

    def _steps(self, pick: str) -> Counterfactuals:
        """Returns the step that a pick chose on each path."""
        if pick not in self.picked:
            raise self._not_computed(pick)
        return self._rows(np.arange(len(self.instance)), self.picked[pick])

    def _not_computed(self, pick: str) -> InputError:
        if pick not in PICKS:
            hint = did_you_mean(pick, PICKS)
            return InputError(f"There is no pick '{pick}'. There are: {', '.join(PICKS)}.{hint}")
        wanted = (*(name for name in self.minimal if name in PICKS), *self.picked, pick)
        return InputError(
            f"The pick '{pick}' was not computed: explain with search=Search(picks={wanted})."
        )

    def _rows(self, paths: Ints, steps: Ints) -> Counterfactuals:
        """Returns some steps of some paths."""
        columns = {name: getattr(self, name)[paths, steps] for name in STEP}
        labels = np.array([*self.labels, None], dtype=object)
        columns.update(label=labels[columns.pop("predicted")], valid=columns["valid"] == 1)
        costs = {name: cost for name, cost in (self.costs or {}).items() if cost < np.inf}
        originals = self.instances[self.instance[paths]]
        columns["effort"] = self.schema.effort(originals, columns["cells"], costs)
        return Counterfactuals.of(
            self.schema,
            self.instances,
            instance=self.instance[paths],
            template=self.template,
            prototype=self.prototype[paths],
            ids=self.ids,
            **columns,
        )

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Returns plain JSON values in the published format, and writes them to `path` if given."""
        from lapace.result import document  # which reads and writes explanations

        data = document.to_json(self)
        if path is not None:
            write_json(path, data)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | Path) -> Explanation:
        """Reads back what `to_json` returned or wrote, from values or from a file."""
        if isinstance(data, str | Path):
            data = read_json(data, "an explanation")
        from lapace.result import document

        return document.from_json(data)


def describe_statuses(counts: Mapping[str, int]) -> str:
    """Describes an explanation in a line, given how many instances have each status.

    Examples:
        >>> describe_statuses({"answered": 2, "none_found": 1})
        'Explanation of 3 instances: 2 answered, 1 none found'
    """
    total = sum(counts.values())
    parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in STATUSES if counts.get(s)]
    noun = "instance" if total == 1 else "instances"
    return f"Explanation of {total} {noun}{': ' if parts else ''}{', '.join(parts)}"


@dataclass(frozen=True)
class InstanceExplanation:
    """One instance's part of an explanation.

    Attributes:
        explanation: The explanation of all instances.
        position: The instance's position in the query.
        id: The instance's identifier; None where its table has none.
        label: What the classifier says of it; None where it cannot say.
        target: The label wanted; None for any other than `label`.
        status: One of `STATUSES`.
        reason: The status in words.
        why_not: The smallest relaxation, for an instance without a counterfactual.
    """

    explanation: Explanation
    position: int
    id: Any
    label: Level | None
    target: Level | None
    status: str
    reason: str
    why_not: WhyNot | None

    @property
    def name(self) -> Any:
        """The instance's name in words and pictures: its identifier, or else its position."""
        return self.position if self.id is None else self.id

    @property
    def wanted(self) -> Level | None:
        """The target, or `any-other`; None where neither is known, for a malformed row."""
        return ANY_OTHER if self.target is None and self.label is not None else self.target

    @cached_property
    def _alone(self) -> Explanation:
        return self.explanation[[self.position]]

    @property
    def row(self) -> dict[str, Any]:
        """The instance as plain values by column."""
        return record(self.explanation.schema, self.explanation.instances[self.position])

    def nearest(self) -> Counterfactuals:
        """Returns the ok row of least effort, made minimal; see `Explanation.nearest`."""
        return self._alone.nearest()

    def best(self, k: int | None = None, *, end: End = "safe") -> Counterfactuals:
        """Returns up to `k` different ways to the target; see `Explanation.best`."""
        return self._alone.best(k, end=end)

    @cached_property
    def _paths(self) -> Ints:
        """Paths by the distance of their nearest ok step."""
        alone = self._alone
        distance = np.where(alone.ok, alone.distance, np.inf).min(axis=1, initial=np.inf)
        return np.lexsort((distance, np.isinf(distance)))

    @property
    def prototypes(self) -> tuple[int, ...]:
        """The prototypes that paths lead to, sorted by the distance of their nearest ok step."""
        return tuple(self._alone.prototype[self._paths].tolist())

    def path(self, prototype: int | None = None) -> Counterfactuals:
        """Returns every step of one path, in order.

        Args:
            prototype: The prototype it leads to, by default the nearest.
        """
        paths = np.flatnonzero(self.explanation.instance == self.position)
        return self.explanation.all_steps(paths[[self._path(prototype)]])

    def changes(self, pick: str = "best", *, rank: int = 0, prototype: int | None = None) -> Any:
        """Returns a frame of the changes of one counterfactual: feature, before, after.

        Of a way of `best` it has both ends: feature, before, enough, safe. What `enough` leaves as
        it is shows its value before. Where the target is any other label, a column `label` says
        which one was reached.

        Args:
            pick: `best`, `nearest`, `first`, `middle` or `last`.
            rank: Rank among the best rows, 0 the cheapest.
            prototype: The path of `first`, `middle` or `last`; by default that of `path`.
        """
        alone = self._alone
        if pick in alone.picked:
            path = np.array([self._path(prototype)])
            ends = {"after": alone._rows(path, alone.picked[pick][path])}
        else:
            if pick not in PICKS:
                raise alone._not_computed(pick)
            rows = alone._minimal_rows(pick)
            ends = {"after": rows}
            if pick == "best":
                ends = {"enough": alone.minimal["enough"], "safe": rows}
            ends = {name: rows.where(rows.rank == rank) for name, rows in ends.items()}
            if not all(map(len, ends.values())):
                raise InputError(f"Instance {self.name} has no {pick} row {rank}: {self.reason}")
        before, last = alone.instances[0], [*ends.values()][-1]
        changed = np.flatnonzero(last.schema.changed(before, last.cells[0]))
        features = [(i, last.schema.features[i]) for i in changed]
        cells = {"before": before, **{name: rows.cells[0] for name, rows in ends.items()}}
        columns: dict[str, NDArray[Any]] = {
            "feature": np.array([f.name for _, f in features], dtype=object)
        }
        for name, row in cells.items():
            columns[name] = np.array([f.text(row[i]) for i, f in features], dtype=object)
        if self.wanted == ANY_OTHER:
            columns["label"] = np.full(len(changed), last.label[0], dtype=object)
        return plain_frame(last.template.kind, columns)

    def __repr__(self) -> str:
        return f"Instance {self.name}: {self.label} → {self.wanted}: {self.status}. {self.reason}"

    def _path(self, prototype: int | None) -> int:
        """Returns the position of the path to a prototype; see `path`."""
        endpoints = self._alone.prototype
        if not len(endpoints):
            raise InputError(f"Instance {self.name} has no paths: {self.reason}")
        if prototype is None:
            return int(self._paths[0])
        if prototype not in endpoints:
            others = ", ".join(map(str, sorted(endpoints)))
            raise InputError(
                f"Instance {self.name} has no path to prototype {prototype}. There are: {others}."
            )
        return int(np.flatnonzero(endpoints == prototype)[0])
