"""Small networks of two hidden layers, of which many are fitted and evaluated as one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lapace.arrays import Ints
from lapace.training import Adam

__all__ = ["Float32s", "Networks", "Schedule", "agree"]

DECAY = 1e-3
RISE, START, END = 0.3, 1 / 25, 1 / 25e4  # of the steps; of the largest step size, first and last

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Schedule:
    """How networks are fitted.

    Attributes:
        hidden: Units of a hidden layer.
        epochs: Passes over the rows.
        steps: Fewest and most steps, whatever the rows.
        batch: Rows in a step.
        rate: The largest step size.
    """

    hidden: int
    epochs: int
    steps: tuple[int, int]
    batch: int
    rate: float


@dataclass(frozen=True, eq=False)
class Networks:
    """Networks of the same size, each with weights of its own.

    Attributes:
        weights: Of each layer, (networks, in, out).
        biases: The same, (networks, 1, out).
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.weights[0])

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return int(self.biases[-1].shape[-1])

    @classmethod
    def fit(
        cls,
        x: Float32s,
        wanted: NDArray[Any],
        samples: Ints,
        n_labels: int,
        training: Schedule,
        *,
        random_state: int,
    ) -> Networks:
        """Fits each network to its own sample of the rows.

        Args:
            x: The rows.
            wanted: Their labels as positions, (rows,), or probabilities, (rows, labels).
            samples: The rows of each network, (networks, size).
            n_labels: How many labels there are.
            training: How.
            random_state: Seed of everything random.
        """
        generator = torch.Generator().manual_seed(random_state)
        count, size = samples.shape
        sizes = _sizes(x.shape[1], training.hidden, n_labels)
        weights = [
            nn.Parameter(torch.randn(count, a, b, generator=generator) * (2 / max(a, 1)) ** 0.5)
            for a, b in pairwise(sizes)
        ]
        biases = [nn.Parameter(torch.zeros(count, 1, after)) for after in sizes[1:]]
        rows, goals, drawn = map(torch.from_numpy, (x, wanted, samples))
        batch = min(training.batch, size)
        steps = int(np.clip(training.epochs * size // batch, *training.steps))
        optimizer, rate = Adam([*weights, *biases]), torch.zeros(())
        for step in range(steps):
            at = drawn.gather(1, torch.randint(size, (count, batch), generator=generator))
            logits = _logits(weights, biases, rows[at])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), goals[at].flatten(0, 1))
            share, momentum = _one_cycle(step, steps)
            rate.fill_(training.rate * share)
            optimizer.step(loss * count, rate, momentum=momentum, decay=DECAY)
        optimizer.release()
        return cls(tuple(p.detach() for p in weights), tuple(p.detach() for p in biases))

    def probability(self, x: Float32s) -> Float32s:
        """Each network's probability of each label, (networks, rows, labels)."""
        with torch.inference_mode():
            values = torch.from_numpy(np.ascontiguousarray(x)).expand(len(self), *x.shape)
            found: Float32s = _logits(self.weights, self.biases, values).softmax(dim=2).numpy()
        return found

    # -- as arrays --------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays by name, for a file."""
        return {
            f"{name}.{k}": value.numpy()
            for name, values in (("weight", self.weights), ("bias", self.biases))
            for k, value in enumerate(values)
        }

    @staticmethod
    def shapes(count: int, width: int, hidden: int, n_labels: int) -> dict[str, tuple[int, ...]]:
        """The shapes of `arrays`, by name."""
        found: dict[str, tuple[int, ...]] = {}
        for k, (before, after) in enumerate(pairwise(_sizes(width, hidden, n_labels))):
            found |= {f"weight.{k}": (count, before, after), f"bias.{k}": (count, 1, after)}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Networks:
        """The inverse of `arrays`, which have been checked."""
        weights, biases = (
            tuple(torch.from_numpy(arrays[f"{name}.{k}"]) for k in range(3))
            for name in ("weight", "bias")
        )
        return cls(weights, biases)


def agree(
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    whole: Collection[str] = (),
) -> bool:
    """Whether arrays from a file are finite and have these names, shapes and types.

    Args:
        arrays: By name.
        shapes: What they have to be.
        whole: Names of those of whole numbers (int32); all others are float32.
    """
    return (
        {name: array.shape for name, array in arrays.items()} == dict(shapes)
        and all(np.isfinite(array).all() for array in arrays.values())
        and all(a.dtype == (np.int32 if n in whole else np.float32) for n, a in arrays.items())
    )


def _one_cycle(step: int, steps: int) -> tuple[float, float]:
    """The share of the largest step size, and the momentum, of a step: up, then down to nothing."""
    top, last = RISE * steps - 1, steps - 1
    rising = step <= top
    turn = step / top if rising else (step - top) / (last - top)
    cosine = (1 + math.cos(math.pi * turn)) / 2  # from 1 to 0
    if rising:
        return 1 + (START - 1) * cosine, 0.85 + 0.1 * cosine
    return END + (1 - END) * cosine, 0.95 - 0.1 * cosine


def _sizes(width: int, hidden: int, n_labels: int) -> list[int]:
    return [width, hidden, hidden, n_labels]


def _logits(weights: Any, biases: Any, values: Tensor) -> Tensor:
    *inner, last = zip(weights, biases, strict=True)
    for weight, bias in inner:
        values = torch.baddbmm(bias, values, weight).relu_()
    return torch.baddbmm(last[1], values, last[0])
