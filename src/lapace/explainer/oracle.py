"""The oracle that says whether rows are ok for instances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from lapace.arrays import Bools, Floats, Ints, distinct
from lapace.classifier import query_rows
from lapace.classifier.outputs import score_odds
from lapace.paths import Steps, rows_differ

if TYPE_CHECKING:
    from lapace.explainer.problem import Problem

__all__ = ["Oracle"]

MAX_REFUSED = 200  # rows of a search the classifier may raise on before it counts as broken


class Oracle:
    """Evaluates rows for instances: projects them, checks the constraints, queries the classifier.

    Every method takes rows and the position of the instance each is for. Equal rows are queried
    once. An oracle serves one search and counts along the way.

    Attributes:
        problem: The problem that is solved.
        infeasible: Instances proved to have no feasible row.
        unsolved: Instances with a row for which the solver of constraints ended without a result.
        seconds: Time spent in the classifier and on constraints.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.infeasible: set[int] = set()
        self.unsolved: set[int] = set()
        self.seconds = {"classifier": 0.0, "constraints": 0.0}
        self._refused = 0

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
                possible = ~np.isin(instance, list(self.infeasible))
                moved = problem.system.project(
                    cells[possible], originals[possible], costs=problem.costs
                )
                self.infeasible.update(instance[possible][moved.proved_infeasible].tolist())
                self.unsolved.update(instance[possible][moved.unsolved].tolist())
                cells, feasible = cells.copy(), possible.copy()
                cells[possible], feasible[possible] = moved.cells, moved.feasible
            return cells, feasible & schema.derived.derivable(cells, originals)

    def evaluate(self, cells: Floats, instance: Ints, tau: Floats | None = None) -> Steps:
        """Projects rows and queries the classifier about all of them.

        Off the paths (without `tau`) a cell that does not differ from the instance's becomes it,
        where the row stays feasible.
        """
        cells, feasible = self.project(cells, instance)
        if tau is None:
            originals = self.problem.instances.cells[instance]
            same = self.problem.schema.same_where_unchanged(cells, originals)
            kept = self.problem.feasible(same, instance) | ~feasible
            cells = np.where(kept[:, None], same, cells)
        return self.query(cells, feasible, instance, tau)

    def accepts(self, cells: Floats, instance: Ints, margin: Bools) -> Bools:
        """Whether rows are acceptable as they are; only feasible ones are queried.

        Args:
            cells: Rows, their derived columns computed.
            instance: The instance of each.
            margin: Whether each has to keep a margin, beside being ok.
        """
        with self.timed("constraints"):
            accepted = self.problem.feasible(cells, instance)
        # The instance itself is not valid, and need not be asked about.
        accepted &= rows_differ(cells, self.problem.instances.cells[instance])
        rows = np.flatnonzero(accepted)
        if len(rows):
            steps = self.query(cells[rows], accepted[rows], instance[rows])
            asked = np.flatnonzero(steps.ok & margin[rows])
            accepted[rows] = steps.ok
            accepted[rows[asked]] = self.has_margin(steps.take(asked), instance[rows[asked]])
        return accepted

    def has_margin(self, steps: Steps, instance: Ints) -> Bools:
        """Whether rows are likely to keep their label; `confidence` replaces the margin."""
        problem = self.problem
        if problem.confidence is not None or not len(instance):
            return np.ones(len(instance), dtype=bool)
        label = problem.instances.label_reached(steps.predicted, instance)
        return problem.fitted.survival.has_margin(problem.schema, steps.cells, label, steps.odds)

    def density(self, steps: Steps, instance: Ints) -> Floats:
        """Returns the share of training rows of the label meant that are less dense than rows."""
        if not len(instance):
            return np.empty(0)
        label = self.problem.instances.label_reached(steps.predicted, instance)
        return self.problem.fitted.decoder.density(self.problem.schema, steps.cells, label)

    # -- the classifier ---------------------------------------------------------------------------

    def query(
        self, cells: Floats, feasible: Bools, instance: Ints, tau: Floats | None = None
    ) -> Steps:
        """Queries the classifier; a row it raises on is not valid, and costs no other row."""
        problem, instances = self.problem, self.problem.instances
        once, which = distinct(cells)
        with self.timed("classifier"):
            found, refused = query_rows(
                problem.classifier,
                cells[once],
                problem.schema,
                known_row=instances.cells[instance[:1]],
                max_refused=MAX_REFUSED - self._refused,
            )
        self._refused += len(refused)
        codes = found.codes[which]
        reached = instances.target_probability(found.probability[which], instance)
        odds = score_odds(found.scores[which], instances.label_reached(codes, instance))
        valid = instances.reaches_target(codes, instance)
        if problem.confidence is not None:
            valid &= reached >= problem.confidence
        tau = np.full(len(cells), np.nan) if tau is None else tau
        steps = Steps(tau, cells, codes, valid.astype(np.int8), feasible, reached, odds)
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
            self.seconds[name] += perf_counter() - start
