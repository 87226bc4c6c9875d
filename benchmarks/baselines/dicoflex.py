"""DiCoFlex: rows drawn from a flow conditional on the instance, trained on nearest rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.baselines.ppcef import HIDDEN, Flow, decode, encode, movable_places, tensor, train
from benchmarks.baselines.problem import BaselineProblem, Constraints, SchemaLike, TrainingIndex
from lapace.arrays import Floats, Ints
from lapace.errors import import_extra
from lapace.result import Counterfactuals

NORMS = (0.01, 2.0)  # a small one counts changed columns
NOISE = 0.01, 0.08  # on the numbers and on the categories of rows in training
SHAKE = 0.001  # noise on the numbers of instances in training
SPARE = 5  # rows drawn beyond those that are kept


@dataclass(eq=False)
class DiCoFlex:
    r"""The densest of a few rows drawn from a conditional flow (Furman et al., 2025).

    For training rows $x$, labels $y'$ that they do not have and norms $p$, the `neighbours` nearest
    training rows $x'$ that the classifier gives $y'$ are found. A masked autoregressive flow learns
    $p_\theta(x' \mid x, y', p)$ from these pairs. It is sampled once for an instance; the search
    asks nothing of the classifier, so rows may be invalid, and those are left out.

    Numbers of the authors' code are kept: 16 neighbours, norms 0.01 and 2, five transforms of two
    layers with 64 units, noise, Adam at 0.001, temperature 0.8. Other than there, training takes a
    fixed number of steps on batches of 256 pairs, at most `conditions` training rows are instances,
    and features that may not change are left to constraints, by exact projection, instead of masks
    that are fixed before training.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of the flow and the draws.
        count: Rows per instance, at most.
        norm: The $p$ that rows are drawn for.
        temperature: Scale of the draws before the flow.
        neighbours: Rows an instance is paired with in training, for each label and norm.
        conditions: Training rows that are instances in training, at most.
        training_steps: Of the flow.

    Examples:
        >>> table = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(200)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = DiCoFlex(predict, training_steps=200).fit(table)
        >>> found = method.counterfactuals([{"age": 30, "home": "a"}], target="yes")
        >>> set(predict(found.rows))
        {'yes'}
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    count: int = 5
    norm: float = 2.0
    temperature: float = 0.8
    neighbours: int = 16
    conditions: int = 2000
    training_steps: int = 3000

    def fit(self, X: Any) -> DiCoFlex:
        """Queries the classifier about the training rows and trains the flow."""
        zuko = import_extra("zuko", "flows", "DiCoFlex")
        training = TrainingIndex.of(self.classifier, X, self.schema)
        x = tensor(encode(training.schema, np.repeat(training.rows, training.counts, axis=0)))
        codes = torch.as_tensor(np.repeat(training.codes, training.counts))
        numbers = torch.arange(x.shape[1]) < len(training.schema.numeric)
        noise = torch.where(numbers, *NOISE).double()
        self.labels_ = len(training.classifier.labels)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.random_state)
            instance, near, label, norm = map(torch.cat, zip(*self._pairs(x, codes), strict=True))
            flow = zuko.flows.MAF(
                x.shape[1],
                x.shape[1] + self.labels_ + 1,
                transforms=5,
                hidden_features=[HIDDEN] * 2,
            ).double()
            scale = (x.std(dim=0, correction=0) ** 2 + noise**2).sqrt()
            self.flow_ = Flow(flow, x.mean(dim=0), scale)

            def loss(some: Tensor) -> Tensor:
                start, goal = x[instance[some]], x[near[some]]
                start = start + SHAKE * numbers * torch.randn_like(start)
                context = self._context(start, label[some], norm[some])
                moved = goal + noise * torch.randn_like(goal)
                return -self.flow_.log_density(moved, context, gradient=True).mean()

            train(flow, loss, len(instance), self.training_steps, rate=1e-3)
        self.training_ = training
        return self

    def _pairs(self, x: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yields positions of instances and of their nearest rows, the rows' label, the norm."""
        drawn = torch.randperm(len(x))[: self.conditions]
        for code in range(self.labels_):
            rows, some = torch.where(codes == code)[0], drawn[codes[drawn] != code]
            count = min(self.neighbours, len(rows))
            for norm in NORMS if count else ():
                near = torch.cdist(x[some], x[rows], p=norm).topk(count, largest=False).indices
                pairs = some.repeat_interleave(count)
                same = torch.full_like(pairs, code), torch.full((len(pairs),), norm).double()
                yield pairs, rows[near.ravel()], *same

    def _context(self, start: Tensor, label: Tensor, norm: Tensor) -> Tensor:
        wanted = nn.functional.one_hot(label, self.labels_).double()
        return torch.cat([start, wanted, norm[:, None]], dim=1)

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """Up to `count` rows per instance; `reasons` has the instances without one."""
        problem = BaselineProblem.of(self, X, target, constraints)
        some = np.repeat(problem.tried, self.count)
        cells = self._drawn(problem, problem.tried).reshape(len(some), problem.cells.shape[1])
        cells = problem.system.project(cells, problem.cells[some]).cells
        return problem.accepted([(cells, some)], "No row that was drawn is valid and feasible.")

    def _drawn(self, problem: BaselineProblem, some: Ints) -> Floats:
        """Returns the densest rows of one draw for each instance, (instances, count, columns)."""
        schema, cells = problem.training.schema, problem.cells[some]
        start = encode(schema, cells)
        label = torch.as_tensor(self._targets(problem, some))
        context = self._context(tensor(start), label, torch.full((len(some),), self.norm).double())
        generator = torch.Generator().manual_seed(self.random_state)
        size = (self.count + SPARE, 1, start.shape[1])  # the same for every instance
        noise = self.temperature * torch.randn(size, generator=generator).double()
        with torch.no_grad():
            given = self.flow_.flow(context)
            x = given.transform.inv(noise.expand(-1, len(some), -1))  # (draws, instances, width)
            dense = given.log_prob(x).topk(self.count, dim=0).indices
            x = (x * self.flow_.scale + self.flow_.mean).gather(
                0, dense[..., None].expand(-1, -1, x.shape[2])
            )
        movable = movable_places(problem.schema, schema, cells)
        end = np.where(movable, x.clamp(0, 1).numpy(), start).transpose(1, 0, 2)
        found = decode(schema, end.reshape(-1, end.shape[2]))
        # A cell that did not move is the instance's own, also where the coding cannot tell it.
        still = ~schema.differs(np.repeat(decode(schema, start), self.count, axis=0), found)
        return np.where(still, np.repeat(cells, self.count, axis=0), found)

    @staticmethod
    def _targets(problem: BaselineProblem, some: Ints) -> Ints:
        """Returns the code of each target; where any other label will do, the most frequent."""
        training, own = problem.training, problem.instances.label_code[some]
        rows = np.bincount(training.codes, training.counts, len(training.classifier.labels))
        others = np.repeat(rows[None], len(some), axis=0)
        others[np.arange(len(some)), own] = -1
        target = problem.instances.target_code[some]
        return np.where(target >= 0, target, others.argmax(axis=1))
