"""PPCEF: gradient descent towards the target where a normalizing flow says rows are dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.baselines.problem import (
    BaselineProblem,
    Constraints,
    SchemaLike,
    TrainingIndex,
    number_bounds,
)
from lapace.arrays import Bools, Floats, Ints
from lapace.errors import import_extra
from lapace.result import Counterfactuals
from lapace.schema import Schema

CHUNK = 256  # rows optimised together; always as many, so that no row depends on the others
BATCH = 256  # rows of a training step
HIDDEN = 64  # units in each of two layers, of the flow's transforms and of the student
ALPHA = 100.0  # weight of validity and density against distance
NOISE = 0.01, 0.1  # on numbers and on categories in training: a lattice has no density
MARGINS = (0.01, 0.1, 0.25, 0.45)  # of probability, asked of the network one after the other


@dataclass(eq=False)
class PPCEF:
    r"""The nearest valid and dense row gradient descent finds (Wielopolski et al., 2024).

    A masked autoregressive flow of the table, conditional on the classifier's label, is trained
    once. From each instance $x$ with target $y'$ gradient descent looks for the $x'$ with the least

    $$\|x' - x\|_2 + \alpha \big[\max(p(y \ne y' \mid x') + \epsilon - p(y' \mid x'), 0)
      + \max(\delta - \log p_{flow}(x' \mid y'), 0)\big],$$

    where $\delta$ is the median of $\log p_{flow}$ over the target's training rows. Numbers are
    shares of their range; categories are relaxed for the first half of the steps, then rounded, and
    numbers alone move on. The iterate with the smallest loss counts.

    The method needs gradients, and a classifier here can only be asked to predict. `network` may
    hand them over; else a student, a small network fitted to the classifier's answers on the
    training rows, stands in for it. Where the classifier refuses what the network accepts, the
    descent is repeated with a larger $\epsilon$. Constraints are satisfied afterwards, by exact
    projection.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of the networks.
        network: The classifier as a differentiable function: rows as `encode` codes them, (n,
            width), to the probability of each label, (n, labels), in the order of its labels.
        steps: Of a descent.
        rate: Adam's learning rate in a descent.
        training_steps: Of the flow and of the student.

    Examples:
        >>> table = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(200)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = PPCEF(predict, steps=60, training_steps=150).fit(table)
        >>> found = method.counterfactuals([{"age": 30, "home": "a"}], target="yes")
        >>> predict(found.rows)
        ['yes']
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    network: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)
    steps: int = 500
    rate: float = 0.02
    training_steps: int = 1500

    def fit(self, X: Any) -> PPCEF:
        """Queries the classifier about the training rows and trains the flow, and the student."""
        zuko = import_extra("zuko", "flows", "PPCEF")
        training = TrainingIndex.of(self.classifier, X, self.schema)
        rows = np.repeat(training.rows, training.counts, axis=0)
        codes = np.repeat(training.codes, training.counts)
        x, labels = tensor(encode(training.schema, rows)), len(training.classifier.labels)
        context = nn.functional.one_hot(torch.as_tensor(codes), labels).double()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.random_state)
            flow = zuko.flows.MAF(x.shape[1], labels, transforms=3, hidden_features=[HIDDEN] * 2)
            self.flow_ = Flow.trained(flow, x, context, self._noise(training.schema), self)
            self.student_ = self.network or self._student(training, x, codes)
            density = self.flow_.log_density(x, context).numpy()
        median = [np.median(density[codes == k]) if (codes == k).any() else -np.inf
                  for k in range(labels)]  # fmt: skip
        self.median_density_ = np.array(median)
        self.training_ = training
        return self

    @staticmethod
    def _noise(schema: Schema) -> Tensor:
        numbers = len(schema.numeric)
        return tensor(np.where(np.arange(schema.coding.width) < numbers, *NOISE))

    def _student(self, training: TrainingIndex, x: Tensor, codes: Ints) -> nn.Module:
        """A network fitted to the classifier's probabilities, or to its labels."""
        labels = len(training.classifier.labels)
        wanted = nn.functional.one_hot(torch.as_tensor(codes), labels).double()
        if training.probability is not None:
            wanted = tensor(np.repeat(training.probability, training.counts, axis=0))
        layers = nn.Sequential(
            *(nn.Linear(x.shape[1], HIDDEN), nn.ReLU()),
            *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            *(nn.Linear(HIDDEN, labels), nn.Softmax(dim=1)),
        ).double()

        def loss(rows: Tensor) -> Tensor:
            log: Tensor = layers(x[rows]).clamp(min=1e-9).log()
            return -(wanted[rows] * log).sum(dim=1).mean()

        train(layers, loss, len(x), self.training_steps, rate=3e-3)
        return layers

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """One row per instance, where there is one; `reasons` has the others."""
        problem = BaselineProblem.of(self, X, target, constraints)
        found, left = [], problem.tried
        for margin in MARGINS:
            if not len(left):
                break
            cells = self._descended(problem, left, margin)
            cells = problem.system.project(cells, problem.cells[left]).cells
            ok = problem.evaluate(cells, left).ok
            found.append((cells[ok], left[ok]))
            left = left[~ok]
        return problem.accepted(found, "No row the descent leads to is valid and feasible.")

    def _descended(self, problem: BaselineProblem, some: Ints, margin: float) -> Floats:
        """Where descents from some instances end, as rows."""
        schema, cells = problem.training.schema, problem.cells[some]
        start, movable = encode(schema, cells), movable_places(problem.schema, schema, cells)
        target, end = self._targets(problem, some, start), np.empty_like(start)
        for begin in range(0, len(some), CHUNK):
            part = np.arange(begin, min(begin + CHUNK, len(some)))
            full = np.resize(part, CHUNK)  # always as many rows
            search = _Descent(tensor(start[full]), target[full], movable[full], margin)
            end[part] = self._descend(search, schema)[: len(part)]
        found = decode(schema, end)
        # A cell that did not move is the instance's own, also where the coding cannot tell it.
        still = ~schema.differs(decode(schema, start), found)
        return np.where(still, cells, found)

    def _targets(self, problem: BaselineProblem, some: Ints, start: Floats) -> Ints:
        """The code of each target; where any other label will do, the most probable one."""
        with torch.no_grad():
            probability = self.student_(tensor(start)).numpy().copy()
        probability[np.arange(len(some)), problem.instances.label_code[some]] = -1.0
        target = problem.instances.target_code[some]
        return np.where(target >= 0, target, probability.argmax(axis=1))

    def _descend(self, search: _Descent, schema: Schema) -> Floats:
        """The iterate with the smallest loss of each descent; categories whole."""
        x = search.start.clone().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        labels = len(self.median_density_)
        context = nn.functional.one_hot(torch.as_tensor(search.target), labels).double()
        floor, blocks = tensor(self.median_density_)[search.target], schema.coding.blocks
        movable = torch.as_tensor(search.movable)
        best, least = search.start.clone(), torch.full((len(x),), torch.inf)
        for step in range(self.steps + 1):
            whole = not blocks or step > self.steps // 2
            if blocks and step == self.steps // 2 + 1:  # from here on categories stay
                x.data = tensor(encode(schema, decode(schema, x.detach().numpy())))
                x.data = torch.where(movable, x.data, search.start)
                movable = movable & (torch.arange(x.shape[1]) < len(schema.numeric))
            loss = self._loss(x, search, context, floor)
            if whole:
                better = loss.detach() < least
                best[better], least[better] = x.detach()[better], loss.detach()[better].float()
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            x.grad = torch.where(movable, gradient.nan_to_num(), 0.0)
            optimizer.step()
            schedule.step()
            x.data = torch.where(movable, x.data.clamp(0, 1), x.data)
        return best.numpy()

    def _loss(self, x: Tensor, search: _Descent, context: Tensor, floor: Tensor) -> Tensor:
        probability = self.student_(x)  # (rows, labels)
        own = (probability * context).sum(dim=1)
        other = (probability - 2 * context).amax(dim=1)
        invalid = (other + search.margin - own).clamp(min=0)
        sparse = (floor - self.flow_.log_density(x, context, gradient=True)).clamp(min=0)
        away = torch.sqrt(((x - search.start) ** 2).sum(dim=1) + 1e-12)
        return away + ALPHA * (invalid + sparse)


class _Descent(NamedTuple):
    """Descents of one size."""

    start: Tensor  # (rows, width)
    target: Ints
    movable: Bools  # (rows, width)
    margin: float


class Flow(NamedTuple):
    """A trained flow, and the scale of what goes in."""

    flow: nn.Module
    mean: Tensor
    scale: Tensor

    @classmethod
    def trained(
        cls, flow: nn.Module, x: Tensor, context: Tensor, noise: Tensor, settings: PPCEF
    ) -> Flow:
        """Fits a flow to rows and labels."""
        scale = (x.std(dim=0, correction=0) ** 2 + noise**2).sqrt()
        found = cls(flow.double(), x.mean(dim=0), scale)

        def loss(rows: Tensor) -> Tensor:
            moved = x[rows] + noise * torch.randn_like(x[rows])
            return -found.log_density(moved, context[rows], gradient=True).mean()

        train(flow, loss, len(x), settings.training_steps, rate=2e-3)
        return found

    def log_density(self, x: Tensor, context: Tensor, *, gradient: bool = False) -> Tensor:
        """The logarithm of the density of rows given one-hot labels, up to a constant."""
        with torch.set_grad_enabled(gradient):
            found: Tensor = self.flow(context).log_prob((x - self.mean) / self.scale)
        return found


def train(
    module: nn.Module, loss: Callable[[Tensor], Tensor], rows: int, steps: int, *, rate: float
) -> None:
    """Adam with cosine decay on random batches; the weights are constants afterwards."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        value = loss(torch.randint(rows, (min(BATCH, rows),)))
        optimizer.zero_grad()
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(module.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    module.eval().requires_grad_(False)


# ------------------------------------------------------------------------------------------------
# Coding


def encode(schema: Schema, cells: Floats) -> Floats:
    """Rows as shares of each number's range, then categories as in `Schema.encode`.

    A missing number, or an unknown level of an ordinal, is in the middle.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 41, "home": "ab"[i % 2]} for i in range(100)])
        >>> encode(schema, np.array([[30.0, 1.0]]))
        array([[0.25, 1.  ]])
    """
    encoded = schema.encode(cells)
    low, high = number_bounds([schema.features[i] for i in schema.numeric])
    span = np.where(high > low, high - low, 1.0)
    share = (cells[:, schema.numeric] - low) / span
    encoded[:, : len(low)] = np.where(schema.coding.unplaced(cells), 0.5, share)
    return encoded


def decode(schema: Schema, encoded: Floats) -> Floats:
    """Rows on the schema's lattice; the inverse of `encode`."""
    cells = schema.decode(encoded)
    low, high = number_bounds([schema.features[i] for i in schema.numeric])
    values = low + encoded[:, : len(low)] * (high - low)
    missing = np.isnan(cells[:, schema.numeric])
    cells[:, schema.numeric] = np.where(missing, np.nan, values)
    return schema.snap(cells)


def movable_places(wide: Schema, schema: Schema, cells: Floats) -> Bools:
    """Which places of the coding may move: all but missing numbers and their flags."""
    movable = np.ones((len(cells), schema.coding.width), dtype=bool)
    numbers = len(schema.numeric)
    movable[:, :numbers] = ~wide.coding.unplaced(cells)
    for _, column in schema.coding.flags:
        movable[:, column] = False
    return movable


def tensor(array: Any) -> Tensor:
    return torch.as_tensor(array, dtype=torch.float64)


def network_of(pipeline: Any, schema: Schema, frame: Any) -> Callable[[Tensor], Tensor]:
    """The probabilities of a pipeline that ends in scikit-learn's `MLPClassifier`.

    The steps before it (scaling, one column per category, an indicator of missing values) are
    affine in PPCEF's coding; their matrix is found by regression on some rows, exactly.

    Args:
        pipeline: Fitted.
        schema: The columns.
        frame: Rows the affine map is found on; enough of them that every category occurs.

    Returns:
        From rows as `encode` codes them to the probability of each label.
    """
    encoded = encode(schema, schema.cells(frame))
    inputs = np.asarray(pipeline[:-1].transform(frame))
    ones = np.column_stack([encoded, np.ones(len(encoded))])
    found = np.linalg.lstsq(ones, inputs, rcond=None)[0]  # (width + 1, inputs)
    if not np.allclose(ones @ found, inputs, atol=1e-6):
        raise ValueError("The steps before the network are not affine.")
    mlp = pipeline[-1]
    affine, shift = torch.as_tensor(found[:-1]), torch.as_tensor(found[-1])
    layers = [
        (torch.as_tensor(w), torch.as_tensor(b))
        for w, b in zip(mlp.coefs_, mlp.intercepts_, strict=True)
    ]

    def probability(x: Tensor) -> Tensor:
        hidden = x @ affine + shift
        for weights, bias in layers[:-1]:
            hidden = torch.relu(hidden @ weights + bias)
        weights, bias = layers[-1]
        scores = hidden @ weights + bias  # (rows, labels); of two labels only the second's
        if scores.shape[1] > 1:
            return scores.softmax(dim=1)
        second = torch.sigmoid(scores)
        return torch.cat([1 - second, second], dim=1)

    return probability
