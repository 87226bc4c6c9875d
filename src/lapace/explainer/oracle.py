r"""What is evaluated of a row: project it, check the constraints, query the classifier.

`Oracle` evaluates rows of lines. `LatentCorrection` comes before that: with $g$ the penalty of a
decoded row, zero where every constraint holds, $z \leftarrow z - \eta \nabla_z g$. In the paper
$\eta$ is small and fixed, and a point is corrected while it violates a constraint, at most
`N_CORRECT` times: `Search(enforce="latent")`. Everywhere else the step is Polyak's,
$\eta = g / \lVert\nabla g\rVert^2$, which brings a linear $g$ to zero at once, so nothing has to be
tuned. What still violates a constraint afterwards is left to the projection, if one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints import Custom
from lapace.errors import LapaceError
from lapace.explainer.problem import Problem
from lapace.instances import query_rows
from lapace.paths import EncodedInstances, Lines, Steps

__all__ = ["Ask", "LatentCorrection", "Oracle", "QueryBudgetError", "Verdicts"]

MAX_REFUSED = 200  # rows of a search the classifier may raise on before it counts as broken

# Gradient steps per point. Before a projection one is best: on loans and on adult more cost time
# and gained nothing. Where no projection follows, as for a Python function that has none, many.
CORRECTIONS, MANY_CORRECTIONS = 1, 20
MAX_LENGTH = 1.0  # latent length of one step
# The paper's correction, where it says "small" and "up to a maximum number". g counts shares of
# each column's range.
ETA, N_CORRECT = 0.1, 50


Ask: TypeAlias = Callable[[Floats, Ints], Steps]  # rows and their lines → as checked and queried


class QueryBudgetError(LapaceError):
    """A query would exceed `max_queries`."""


@dataclass
class Oracle:
    """Evaluates rows of lines: projection, check, query.

    Attributes:
        problem: What is searched for.
        instance: The instance of each line, (lines,).
        label: The label of each line's endpoint, (lines,).
        infeasible: Instances proved to have no feasible row; grows with every projection.
        seconds: Time spent in the classifier and on constraints; grows with every call.
    """

    problem: Problem
    instance: Ints
    label: Ints
    infeasible: set[int] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: int = 0

    def __call__(self, tau: Floats, cells: Floats, lines: Ints) -> Steps:
        """Rows projected, checked and queried, given the line of each."""
        cells, feasible = self.project(cells, lines)
        return self._queried(tau, cells, feasible, lines)

    def check(self, cells: Floats, lines: Ints) -> Steps:
        """Rows checked without projection; only feasible ones are queried.

        They stay as they are but for derived columns.
        """
        cells, feasible = self._checked(cells, lines)
        unknown = np.full(len(cells), np.nan)
        none = np.full(len(cells), -1, dtype=np.int64)
        steps = Steps.of(unknown, cells, none, none.astype(np.int8), feasible, unknown.copy())
        rows = np.flatnonzero(feasible)
        if len(rows):
            steps.write(
                rows, self._queried(unknown[rows], cells[rows], feasible[rows], lines[rows])
            )
        return steps

    def _checked(self, cells: Floats, lines: Ints) -> tuple[Floats, Bools]:
        """Rows with their derived columns computed, and whether every constraint holds."""
        schema, originals = self.problem.schema, self.problem.instances.cells[self.instance[lines]]
        cells = schema.derive(cells, originals)
        feasible = self.problem.system.feasible(cells, originals)
        return cells, feasible & schema.derivable(cells, originals)

    def project(self, cells: Floats, lines: Ints) -> tuple[Floats, Bools]:
        """Rows moved to where every constraint holds, and whether that succeeded.

        Derived columns follow what projection moves.
        """
        problem, instance = self.problem, self.instance[lines]
        if not len(problem.system) or problem.search.enforce in ("latent", "polyak"):
            return self._checked(cells, lines)
        open_ = np.flatnonzero(~np.isin(instance, list(self.infeasible)))
        originals = problem.instances.cells[instance[open_]]
        with self.timed("constraints"):
            moved = problem.system.project(
                cells[open_],
                originals,
                costs=problem.costs,
                allowance=problem.nodes,
                owners=instance[open_],
            )
        self.infeasible.update(instance[open_][moved.proved_infeasible].tolist())
        cells, feasible = cells.copy(), np.zeros(len(cells), dtype=bool)
        cells[open_], feasible[open_] = moved.cells, moved.feasible
        feasible &= problem.schema.derivable(cells, problem.instances.cells[instance])
        return cells, feasible

    def _queried(self, tau: Floats, cells: Floats, feasible: Bools, lines: Ints) -> Steps:
        """Queries the classifier; a row it raises on is not valid, and costs no other row."""
        problem, classifier = self.problem, self.problem.classifier
        budget = problem.max_queries
        if budget is not None and classifier.n_queries + len(cells) > budget:
            raise QueryBudgetError(f"The budget of {budget:,} queries is spent.")
        with problem.turn, self.timed("classifier"):
            codes, probability, refused = query_rows(
                classifier,
                cells,
                problem.schema,
                known_row=problem.instances.cells[self.instance[:1]],
                max_refused=MAX_REFUSED - self.refused,
            )
        self.refused += len(refused)
        instance, label = self.instance[lines], self.label[lines]
        any_other = problem.instances.target_code[instance] < 0
        original = problem.instances.label_code[instance]
        valid = np.where(any_other, codes != original, codes == label) & (codes >= 0)
        rows = np.arange(len(lines))
        reached = np.where(any_other, 1.0 - probability[rows, original], probability[rows, label])
        if problem.confidence is not None:
            valid &= reached >= problem.confidence
        feasible = self.plausible(cells, feasible, valid, np.where(any_other, codes, label))
        return Steps.of(tau, cells, codes, valid, feasible, reached)

    def plausible(self, cells: Floats, feasible: Bools, valid: Bools, label: Ints) -> Bools:
        """Feasible rows that are at least as usual as `plausibility` requires."""
        least = self.problem.plausibility
        rows = np.flatnonzero(feasible & valid)
        if least is None or not len(rows):
            return feasible
        density = self.problem.fitted.decoder.density(self.problem.schema, cells[rows], label[rows])
        feasible = feasible.copy()
        feasible[rows] = density >= least
        return feasible

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `seconds`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start


class Verdicts:
    """Rows of lines as checked and queried, each of them once.

    Args:
        oracle: Evaluates rows.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._place: dict[bytes, int] = {}
        self._steps: Steps | None = None

    def __call__(self, cells: Floats, lines: Ints) -> Steps:
        """Rows checked, and queried where that was not done before."""
        keys = self._keys(cells, lines)
        new = list({key: i for i, key in enumerate(keys) if key not in self._place}.values())
        if new or self._steps is None:
            rows = np.array(new, dtype=np.int64)
            self._add([keys[i] for i in new], self.oracle.check(cells[rows], lines[rows]))
        assert self._steps is not None
        return self._steps.take(np.array([self._place[key] for key in keys], dtype=np.int64))

    def knows(self, cells: Floats, lines: Ints) -> bool:
        """Whether all of some rows were checked before."""
        return all(key in self._place for key in self._keys(cells, lines))

    def remember(self, steps: Steps, lines: Ints) -> None:
        """Adds rows that were evaluated elsewhere."""
        keys = self._keys(steps.cells, lines)
        new = list({key: i for i, key in enumerate(keys) if key not in self._place}.values())
        self._add([keys[i] for i in new], steps.take(np.array(new, dtype=np.int64)))

    def _add(self, keys: Sequence[bytes], steps: Steps) -> None:
        known = len(self._place)
        self._place.update({key: known + i for i, key in enumerate(keys)})
        parts = [steps] if self._steps is None else [self._steps, steps]
        self._steps = Steps.join(parts, axis=0)

    @staticmethod
    def _keys(cells: Floats, lines: Ints) -> list[bytes]:
        rows = np.ascontiguousarray(np.c_[lines, cells])
        return [row.tobytes() for row in rows]


@dataclass(frozen=True)
class LatentCorrection:
    """Moves the latent points of rows that violate a constraint, and decodes them again.

    Attributes:
        problem: Holds the decoder and the constraints.
        instances: The instances, encoded.
        lines: The lines of the rows.
        thorough: Take many gradient steps though a projection follows.
    """

    problem: Problem
    instances: EncodedInstances
    lines: Lines
    thorough: bool = False

    def __call__(self, tau: Floats, z: Tensor, rows: Floats, lines: Ints) -> Floats:
        """The rows, infeasible ones decoded again from corrected latent points."""
        if self.problem.search.enforce == "latent":
            return self._descended(tau, z.clone(), rows.copy(), lines)
        instance = self.lines.instance[lines]
        feasible = self.problem.system.feasible(rows, self.instances.cells[instance])
        violating = np.flatnonzero(~feasible)
        if not len(violating):
            return rows
        points = z[torch.as_tensor(violating, device=z.device)].clone()
        moved = self.correct(tau[violating], points, rows[violating], instance[violating])
        if not len(moved):
            return rows
        points = points[torch.as_tensor(moved, device=z.device)]
        violating = violating[moved]
        rows = rows.copy()
        rows[violating] = self._decoded(tau[violating], points, lines[violating])
        return rows

    def _decoded(self, tau: Floats, z: Tensor, lines: Ints) -> Floats:
        frozen = self.lines.frozen[lines] & (tau < 1.0)  # at tau=1 both copies end in one row
        label, instance = self.lines.label[lines], self.lines.instance[lines]
        decoder = self.problem.fitted.decoder
        return decoder.path_rows(self.instances, instance, tau, z, label, frozen)

    def _descended(self, tau: Floats, z: Tensor, rows: Floats, lines: Ints) -> Floats:
        """The paper's correction: gradient descent while the decoded row violates a constraint."""
        instance, active = self.lines.instance[lines], np.arange(len(rows))
        for _ in range(N_CORRECT):
            originals = self.instances.cells[instance[active]]
            active = active[~self.problem.system.feasible(rows[active], originals)]
            if not len(active):
                break
            at = torch.as_tensor(active, device=z.device)
            found = self._gradient(tau[active], z[at], rows[active], instance[active])
            if found is None:
                break
            z[at] -= ETA * found[1]
            rows[active] = self._decoded(tau[active], z[at], lines[active])
        return rows

    def _gradient(
        self, tau: Floats, z: Tensor, rows: Floats, instance: Ints, *, decoded: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """g of points, (m,), and its gradient, (m, h); None where no constraint has one.

        Unless the rows were `decoded` from these points, only their categories are used.
        """
        problem = self.problem
        # The gradient is needed whatever mode the caller is in.
        with torch.inference_mode(False), torch.enable_grad():
            point = z.clone().requires_grad_()
            values = problem.fitted.decoder.differentiable_rows(
                self.instances, instance, tau, point, rows, decoded=decoded
            )
            g = problem.system.penalty(values, self.instances.cells[instance])
            if not g.requires_grad:
                return None
            (gradient,) = torch.autograd.grad(g.sum(), point)
        return g.detach(), gradient

    def correct(self, tau: Floats, z: Tensor, rows: Floats, instance: Ints) -> Ints:
        """Moves `z` in place; returns which of its points were moved."""
        system = self.problem.system
        unprojected = any(isinstance(c, Custom) and c.project is None for c in system.constraints)
        thorough = self.thorough or self.problem.search.enforce == "polyak" or unprojected
        active = np.arange(len(rows))
        moved = np.zeros(len(rows), dtype=bool)
        for step in range(MANY_CORRECTIONS if thorough else CORRECTIONS):
            at = torch.as_tensor(active, device=z.device)
            found = self._gradient(
                tau[active], z[at], rows[active], instance[active], decoded=step == 0
            )
            if found is None:
                break
            g, gradient = found
            squared = gradient.square().sum(dim=1)
            open_ = ((g > 0) & (squared > 0)).cpu().numpy()
            if not open_.any():
                break
            shift = (g.to(z) / squared.clamp(min=1e-12))[:, None] * gradient
            length = shift.norm(dim=1, keepdim=True)
            shift = shift * (MAX_LENGTH / length.clamp(min=MAX_LENGTH))
            active, keep = active[open_], torch.as_tensor(open_, device=z.device)
            z[at[keep]] -= shift[keep]
            moved[active] = True
        return np.flatnonzero(moved)
