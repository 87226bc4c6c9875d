"""What is known of a row: whether it is feasible, and what the classifier says of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from lapace.arrays import Bools, Floats, Ints, distinct
from lapace.explainer.problem import Problem
from lapace.instances import query_rows
from lapace.paths import Steps

__all__ = ["RARE", "Oracle"]

MAX_REFUSED = 200  # rows of a search the classifier may raise on before it counts as broken
RARE = 5.0  # the floor of `best`: a density percentile among training rows of the target


class Oracle:
    """Evaluates rows for instances: projects them, checks the constraints, queries the classifier.

    Every method takes rows and the position of the instance each is for. Equal rows are queried
    once. What the oracle learns on the way it tells by its properties.

    Args:
        problem: The problem that is solved.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._infeasible: set[int] = set()
        self._unsolved: set[int] = set()
        self._seconds: dict[str, float] = {}
        self._refused = 0

    @property
    def infeasible(self) -> frozenset[int]:
        """Instances proved to have no feasible row."""
        return frozenset(self._infeasible)

    @property
    def unsolved(self) -> frozenset[int]:
        """Instances with a row for which the solver of constraints ended without a result."""
        return frozenset(self._unsolved)

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far in the classifier and on constraints."""
        return dict(self._seconds)

    # -- rows -------------------------------------------------------------------------------------

    def project(self, cells: Floats, instance: Ints) -> tuple[Floats, Bools]:
        """Moves rows to where every constraint holds; says for which of them that succeeded."""
        problem, schema = self.problem, self.problem.schema
        originals = problem.instances.cells[instance]
        with self.timed("constraints"):
            if not len(problem.system) or problem.search.enforce == "latent":
                cells = schema.derive(cells, originals)
                feasible = problem.system.feasible(cells, originals)
            else:
                possible = ~np.isin(instance, list(self._infeasible))
                moved = problem.system.project(
                    cells[possible],
                    originals[possible],
                    costs=problem.costs,
                    owners=instance[possible],
                )
                self._infeasible.update(instance[possible][moved.proved_infeasible].tolist())
                self._unsolved.update(instance[possible][moved.unsolved].tolist())
                cells, feasible = cells.copy(), possible.copy()
                cells[possible], feasible[possible] = moved.cells, moved.feasible
            return cells, feasible & schema.derivable(cells, originals)

    def evaluate(self, cells: Floats, instance: Ints, tau: Floats | None = None) -> Steps:
        """Projects rows and queries the classifier about all of them."""
        cells, feasible = self.project(cells, instance)
        return self.query(cells, feasible, instance, tau)

    def accepts(self, cells: Floats, instance: Ints, margin: Bools, floor: Bools) -> Bools:
        """Whether rows are acceptable as they are; only feasible ones are queried.

        Args:
            cells: Rows, their derived columns computed.
            instance: The instance of each.
            margin: Rows that must keep a margin as well as being ok.
            floor: Rows that must not be too unusual either.
        """
        originals = self.problem.instances.cells[instance]
        with self.timed("constraints"):
            accepted = self.problem.system.feasible(cells, originals)
            accepted &= self.problem.schema.derivable(cells, originals)
        rows = np.flatnonzero(accepted)
        if not len(rows):
            return accepted
        steps = self.query(cells[rows], accepted[rows], instance[rows])
        accepted[rows] = self.acceptable(steps, instance[rows], margin[rows], floor[rows])
        return accepted

    def acceptable(self, steps: Steps, instance: Ints, margin: Bools, floor: Bools) -> Bools:
        """Whether evaluated rows are ok and, where that is asked, have a margin and are usual."""
        accepted = steps.ok
        rows = np.flatnonzero(accepted & margin)
        accepted[rows] = self.has_margin(steps.take(rows), instance[rows])
        rows = np.flatnonzero(accepted & floor)
        accepted[rows] = self.density(steps.take(rows), instance[rows]) >= RARE
        return accepted

    def has_margin(self, steps: Steps, instance: Ints) -> Bools:
        """Whether rows are likely to keep their label; `confidence` replaces the margin."""
        problem = self.problem
        if problem.confidence is not None or not len(instance):
            return np.ones(len(instance), dtype=bool)
        label = problem.instances.label_reached(steps.predicted, instance)
        return problem.fitted.has_margin(problem.schema, steps.cells, label, steps.probability)

    def density(self, steps: Steps, instance: Ints) -> Floats:
        """Density percentiles of rows among training rows of the label they are meant to have."""
        label = self.problem.instances.label_reached(steps.predicted, instance)
        return self.problem.fitted.decoder.density(self.problem.schema, steps.cells, label)

    # -- the classifier ---------------------------------------------------------------------------

    def query(
        self, cells: Floats, feasible: Bools, instance: Ints, tau: Floats | None = None
    ) -> Steps:
        """Queries the classifier; a row it raises on is not valid, and costs no other row."""
        problem, known = self.problem, self.problem.instances
        once, which = distinct(cells)
        with self.timed("classifier"):
            codes, probability, refused = query_rows(
                problem.classifier,
                cells[once],
                problem.schema,
                known_row=known.cells[instance[:1]],
                max_refused=MAX_REFUSED - self._refused,
            )
        self._refused += len(refused)
        codes = codes[which]
        reached = known.target_probability(probability[which], instance)
        valid = known.reaches_target(codes, instance)
        if problem.confidence is not None:
            valid &= reached >= problem.confidence
        tau = np.full(len(cells), np.nan) if tau is None else tau
        steps = Steps(tau, cells, codes, valid.astype(np.int8), feasible, reached)
        if problem.plausibility is None:
            return steps
        rows = np.flatnonzero(steps.ok)
        usual = feasible.copy()
        usual[rows] = self.density(steps.take(rows), instance[rows]) >= problem.plausibility
        return steps._replace(feasible=usual)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `seconds`."""
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + perf_counter() - start
