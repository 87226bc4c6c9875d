"""Everything found for everyone asked about, and one instance's part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError
from lapace.result.counterfactuals import Counterfactuals, record
from lapace.result.why_not import WhyNot
from lapace.schema import Schema
from lapace.table import Level, Template, plain_frame, read_json, write_json

__all__ = ["ANY_OTHER", "STATUSES", "Explanation", "InstanceExplanation"]


STATUSES = ("answered", "none_found", "infeasible", "already_target", "malformed")
ANY_OTHER = "any-other"  # the target that is any label but the instance's


@dataclass(frozen=True, eq=False)
class Explanation:
    """Everything found for a batch of instances.

    A path is one line of the path arrays; its steps are the grid, then the refined first, the
    midpoint and, where it was requested, the sparse row.

    Attributes:
        schema: The columns, widened by what only these instances have.
        template: The frame kind the instances came in.
        labels: The classifier's labels.
        instances: Cells of all instances of the query.
        label: What the classifier says of each instance; None where it cannot say.
        target: The label wanted for each instance; None for any other than `label`.
        status: One of `STATUSES` for each instance.
        reason: The status in words.
        constraints: What every counterfactual has to satisfy, as text.
        instance: The position of the instance each path starts from.
        prototype: The prototype each path leads to; -1 for a sampled endpoint, used by `nearest` and
            `sparse` alone.
        tau: Where on its path each step lies.
        cells: The rows.
        predicted: What the classifier says of each step, as a position in `labels`; -1 where it was
            not queried or could not say.
        valid: Whether that is the target: 1, 0, or -1 where the classifier was not queried.
        feasible: Whether each step satisfies the constraints.
        probability: Of the target.
        density: Percentile among training rows.
        density_before: The percentile before the constraints moved the row.
        distance: From the instance.
        picked: For `first`, `middle`, `last` (and `sparse`) the step chosen on each path.
        crossings: How often the label leaves the target again on each path's grid.
        n_queries: Rows the classifier was asked about.
        ids: Identifiers of the instances, where their table had any.
        costs: The weights of `distance` by column, where any were given.
        confidence: The probability of the target that `valid` required, where one was given.
        search: The settings of the search, by name.
        why_not: By position of an instance without a counterfactual (none_found, infeasible), the
            smallest relaxation; empty until `Explainer.why_not` is called.
        seconds: How long it took: in all, in the classifier, and for the constraints. Neither
            compared nor part of the JSON.
        request: What `Explainer.explain` keeps for `Explainer.why_not`. Neither compared nor part of
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
    density_before: Floats  # (paths, steps)
    distance: Floats  # (paths, steps)
    picked: Mapping[str, Ints]  # each (paths,)
    crossings: Ints  # (paths,)
    n_queries: int
    ids: tuple[Any, ...] | None = None
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    why_not: Mapping[int, WhyNot] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    request: Any = field(default=None, compare=False, repr=False)

    # -- instances -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Iterator[InstanceExplanation]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, instance: int) -> InstanceExplanation:
        count = len(self)
        if not -count <= instance < count:
            raise IndexError(f"There is no instance {instance}: the query had {count}.")
        return InstanceExplanation(self, instance % count)

    @property
    def summary(self) -> Any:
        """One line per instance: label, target, status, and the reason in words."""
        columns: dict[str, NDArray[Any]] = {
            "label": self.label,
            "target": np.array([instance.wanted for instance in self], dtype=object),
            "status": np.array(self.status, dtype=object),
            "reason": np.array(self.reason, dtype=object),
        }
        return plain_frame(self.template.kind, columns)

    def __repr__(self) -> str:
        counts = {s: self.status.count(s) for s in STATUSES if s in self.status}
        told = ", ".join(f"{n} {s.replace('_', ' ')}" for s, n in counts.items())
        nearby = int((self.prototype < 0).sum())
        led = len(self.instance) - nearby
        paths = f"{led} path{'' if led == 1 else 's'}"
        paths += f", {nearby} more to somebody nearby" if nearby else ""
        instances = "1 instance" if len(self) == 1 else f"{len(self)} instances"
        return f"Explanation of {instances}: {told or 'nobody'}; {paths}"

    # -- picks ------------------------------------------------------------------------------------

    @property
    def ok(self) -> Bools:
        """Steps that are valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def first(self) -> Counterfactuals:
        """Per instance and prototype, where the last unbroken run of ok steps begins."""
        return self._steps(self.picked["first"])

    def middle(self) -> Counterfactuals:
        """Per instance and prototype, half-way between first and the prototype."""
        return self._steps(self.picked["middle"])

    def last(self) -> Counterfactuals:
        """Per instance and prototype, the ok step farthest along: without limits the prototype."""
        return self._steps(self.picked["last"])

    def at(self, tau: float) -> Counterfactuals:
        """Per instance and prototype, the stored step nearest `tau`."""
        if not 0 <= tau <= 1:
            raise InputError(f"tau is {tau}; it goes from 0, the instance, to 1, the prototype.")
        return self._steps(np.nan_to_num(np.abs(self.tau - tau), nan=np.inf).argmin(axis=1))

    def nearest(self) -> Counterfactuals:
        """Per instance, the ok row of least distance found on any path."""
        return self._cheapest(self._nearest_steps())

    def sparse(self) -> Counterfactuals:
        """Per instance, the nearest row after putting features back to the instance's own."""
        if "sparse" not in self.picked:
            raise InputError("There is no sparse row here. Ask for it: explain(..., sparse=True).")
        return self._cheapest(self.picked["sparse"])

    def all_steps(self) -> Counterfactuals:
        """Every step of every path, by instance, prototype (sampled endpoints last) and tau."""
        return self._in_order(np.arange(len(self.instance)))

    def _in_order(self, paths: Ints) -> Counterfactuals:
        """The steps of some paths that lie on them, in order."""
        path, step = np.nonzero(~np.isnan(self.tau[paths]))
        path = paths[path]
        tau, sampled = self.tau[path, step], self.prototype[path] < 0
        order = np.lexsort((tau, path, self.prototype[path], sampled, self.instance[path]))
        path, step, tau = path[order], step[order], tau[order]
        new = np.ones(len(path), dtype=bool)  # of steps with the same tau only the first
        new[1:] = (np.diff(path) != 0) | (np.diff(tau) != 0)
        return self._rows(path[new], step[new])

    def _nearest_steps(self) -> Ints:
        """On each path the ok step of least distance."""
        cost = np.where(self.ok & ~np.isnan(self.tau), self.distance, np.inf)
        none = ~np.isfinite(cost).any(axis=1)  # then `first` is the best that was found
        return np.where(none, self.picked["first"], cost.argmin(axis=1))

    def _cheapest(self, chosen: Ints) -> Counterfactuals:
        """Per instance the cheapest ok row of those chosen on each path, or the best there is."""
        paths = np.arange(len(self.instance))
        price = np.where(self.ok[paths, chosen], self.distance[paths, chosen], np.inf)
        hope = np.nan_to_num(self.probability[paths, chosen], nan=0.0)
        # Of rows that are not ok, one that obeys the constraints is better than one that does not.
        order = np.lexsort((-hope, ~self.feasible[paths, chosen], price, self.instance))
        _, where = np.unique(self.instance[order], return_index=True)
        return self._rows(order[where], chosen[order[where]])

    def _steps(self, steps: Ints) -> Counterfactuals:
        """One step of each path that leads to a prototype."""
        paths = np.flatnonzero(self.prototype >= 0)
        return self._rows(paths, steps[paths])

    def _rows(self, paths: Ints, steps: Ints) -> Counterfactuals:
        return Counterfactuals(
            self.schema,
            self.template,
            self.instances,
            self.cells[paths, steps],
            self.instance[paths],
            self.prototype[paths],
            self.tau[paths, steps],
            np.array([*self.labels, None], dtype=object)[self.predicted[paths, steps]],
            self.valid[paths, steps] == 1,
            self.feasible[paths, steps],
            self.probability[paths, steps],
            self.density[paths, steps],
            self.distance[paths, steps],
            self.density_before[paths, steps],
            self.ids,
            {i: self.reason[i] for i, status in enumerate(self.status) if status != "answered"},
        )

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """As plain JSON values in the published format; written to `path` where one is given."""
        from lapace.result import serialization  # which reads and writes explanations

        data = serialization.to_json(self)
        if path is not None:
            write_json(path, data)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | Path) -> Explanation:
        """Reads back what `to_json` gave, as values or as a file."""
        if isinstance(data, str | Path):
            data = read_json(data, "an explanation")
        from lapace.result import serialization

        return serialization.from_json(cast(Mapping[str, Any], data))


@dataclass(frozen=True)
class InstanceExplanation:
    """One instance's part of an explanation.

    Attributes:
        explanation: The whole.
        position: Their position in the query.
        called: Their number in words and pictures, where the query was part of a larger table.
    """

    explanation: Explanation
    position: int
    called: int | None = None

    @property
    def number(self) -> int:
        """What words and pictures call them by: `instance`, if nothing else was said."""
        return self.position if self.called is None else self.called

    @property
    def status(self) -> str:
        """Answered, none_found, infeasible, already_target or malformed."""
        return self.explanation.status[self.position]

    @property
    def reason(self) -> str:
        """The status in words."""
        return self.explanation.reason[self.position]

    @property
    def why_not(self) -> WhyNot | None:
        """What stands in the way, for an instance without an answer."""
        return self.explanation.why_not.get(self.position)

    @property
    def label(self) -> Level | None:
        """What the classifier says of this instance."""
        label: Level | None = self.explanation.label[self.position]
        return label

    @property
    def target(self) -> Level | None:
        """The label wanted; None for any other than `label`."""
        target: Level | None = self.explanation.target[self.position]
        return target

    @property
    def wanted(self) -> Level | None:
        """The target, or `any-other`; None where neither is known, for a malformed row."""
        return ANY_OTHER if self.target is None and self.label is not None else self.target

    @property
    def row(self) -> dict[str, Any]:
        """The instance, in the table's own words."""
        return record(self.explanation.schema, self.explanation.instances[self.position])

    @property
    def prototypes(self) -> tuple[int, ...]:
        """The prototypes there is a path to, nearest first row first."""
        paths = self._paths()
        paths = paths[self.explanation.prototype[paths] >= 0]
        step = self.explanation.picked["first"][paths]
        ok = self.explanation.ok[paths, step]
        order = np.lexsort((self.explanation.distance[paths, step], ~ok))
        return tuple(int(p) for p in self.explanation.prototype[paths[order]])

    def path(self, prototype: int | None = None) -> Counterfactuals:
        """Every step towards one prototype, in order; by default the nearest one.

        -1 is the path to a made-up instance nearby, where `nearest` and `sparse` are often found; it
        is the default where no other has an answer.
        """
        index = self._path(prototype)
        return self.explanation._in_order(np.array([index]))

    def changes(self, prototype: int | None = None, pick: str = "first") -> Any:
        """What an instance reads: feature, before, after, and from which point of the path.

        Args:
            prototype: The path; by default that of `path`, whose first answer is nearest, and for
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
            prototype = int(found.prototype[found.instance == self.position][0])
        index = self._path(prototype)
        step = picks[pick][index]
        own, row = answer.instances[self.position], answer.cells[index, step]
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
        return f"Instance {self.number}: {self.label} → {self.target}: {self.status}. {self.reason}"

    def _paths(self) -> Ints:
        return np.flatnonzero(self.explanation.instance == self.position)

    def _usual(self) -> int:
        """The path shown unasked: what an instance reads must be an answer where they have one."""
        answer, paths = self.explanation, self._paths()
        good: Bools = np.asarray(answer.ok[paths].any(axis=1))
        led = answer.prototype[paths] >= 0
        if good.any() and not good[led].any():
            return -1
        return next(iter(self.prototypes), -1)

    def _path(self, prototype: int | None) -> int:
        if not len(self._paths()):
            raise InputError(f"Instance {self.number} has no paths: {self.reason}")
        wanted = self._usual() if prototype is None else prototype
        for index in self._paths():
            if self.explanation.prototype[index] == wanted:
                return int(index)
        known = ", ".join(str(p) for p in sorted(self.explanation.prototype[self._paths()]))
        raise InputError(
            f"Instance {self.number} has no path to prototype {wanted}. There are: {known}."
        )
