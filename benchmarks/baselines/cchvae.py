"""C-CHVAE: growing spheres around the instance's code in the latent space of a VAE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks.baselines.problem import (
    BaselineProblem,
    Constraints,
    SchemaLike,
    TrainingIndex,
)
from lapace.arrays import Floats, Ints, batches, first_of_each
from lapace.model import LGMVAE, Shape
from lapace.result import Counterfactuals
from lapace.training import DEFAULT, Recipe
from lapace.training import fit as train_model

ROWS = 100_000  # decoded rows queried at once


@dataclass(eq=False)
class CCHVAE:
    r"""The nearest of the first points around the instance's code that decode to the target.

    A variational autoencoder of the table with one Gaussian prior is trained once. Points are
    drawn around the instance's code from shells of equal thickness and growing radius, until some
    point of a shell, decoded, is labelled as the target:

    $$z = z_x + r\, u, \quad \|u\| = 1, \quad (t - 1)\,\delta < r \le t\,\delta,
      \quad t = 1, 2, \dots$$

    The method's "conditional" part, holding immutable features fixed, is left to constraints: a
    decoded point that violates one is not accepted.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of the network and the draws.
        recipe: How the network is trained; by default as the explainer's.
        samples: Points drawn from each shell.
        step: Thickness of a shell, in the prior's standard deviations.
        shells: How many are searched, at most.

    Examples:
        >>> table = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(200)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> quick = Recipe(hidden=16, batch=32, steps=60)
        >>> method = CCHVAE(predict, recipe=quick).fit(table)
        >>> found = method.counterfactuals([{"age": 30, "home": "a"}], target="yes")
        >>> predict(found.rows)
        ['yes']
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    recipe: Recipe = DEFAULT
    samples: int = 100
    step: float = 0.25
    shells: int = 60

    def fit(self, X: Any) -> CCHVAE:
        """Queries the classifier about the training rows and trains the autoencoder."""
        training = TrainingIndex.of(self.classifier, X, self.schema)
        schema = training.schema
        shape = Shape(
            continuous=len(schema.numeric),
            widths=schema.coding.widths,
            clusters=(1,),  # one label with one cluster: a plain VAE
            latent=min(10, len(schema.features)),
            hidden=self.recipe.hidden,
        )
        rows = np.repeat(training.rows, training.counts, axis=0)
        x = torch.as_tensor(schema.encode(rows), dtype=torch.float32)
        label = torch.zeros(len(x), dtype=torch.int64)
        self.model_: LGMVAE
        self.model_, _ = train_model(
            shape, self.recipe, x, label, label, random_state=self.random_state
        )
        self.training_ = training
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """One row per instance, where there is one; `reasons` has the others."""
        problem = BaselineProblem.of(self, X, target, constraints)
        cells, instance, _ = self.search(problem)
        reach = f"{self.shells * self.step:g} standard deviations"
        reason = f"No decoded point within {reach} is valid and feasible."
        return problem.accepted([(cells, instance)], reason)

    def search(self, problem: BaselineProblem) -> tuple[Floats, Ints, Floats]:
        """Rows, the instances they are for, and the outer radius of the shell each comes from."""
        rng, left = np.random.default_rng(self.random_state), problem.tried
        code = self._encode(problem)  # (instances, h)
        scale = (0.5 * self.model_.p_z().log_variance[0]).exp().numpy()
        best, radius = np.full(problem.cells.shape, np.nan), np.full(len(problem.cells), np.nan)
        for shell in range(self.shells if len(left) else 0):
            # The same directions for every instance, so that none depends on the others.
            low, high = shell * self.step, (shell + 1) * self.step
            draw = shell_points(rng, self.samples, code.shape[1], low, high)
            for batch in batches(len(left), ROWS, self.samples):
                part = left[batch]
                z = (code[part, None] + draw * scale).reshape(-1, code.shape[1])
                rows = problem.evaluate(self._decode(problem, z), np.repeat(part, self.samples))
                rows = rows.where(rows.ok)
                first = first_of_each(rows.instance, rows.distance)
                best[rows.instance[first]], radius[rows.instance[first]] = rows.cells[first], high
            left = left[np.isnan(radius[left])]
            if not len(left):
                break
        found = np.flatnonzero(~np.isnan(radius))
        return best[found], found, radius[found]

    def _encode(self, problem: BaselineProblem) -> Floats:
        """The latent means of all instances; those of malformed ones are not used."""
        cells = np.nan_to_num(problem.schema.encode(problem.cells))
        x, label = torch.as_tensor(cells, dtype=torch.float32), torch.zeros(len(cells)).long()
        with torch.no_grad():
            return self.model_.encode(x, label).double().numpy()

    def _decode(self, problem: BaselineProblem, z: Floats) -> Floats:
        """Latent points as rows on the lattice."""
        with torch.no_grad():
            x = self.model_.decode(torch.as_tensor(z, dtype=torch.float32))
        return problem.training.schema.decode(x.double().numpy())


def shell_points(
    rng: np.random.Generator, count: int, dims: int, low: float, high: float
) -> Floats:
    """Points drawn evenly from the shell between two radii, (count, dims).

    Examples:
        >>> points = shell_points(np.random.default_rng(0), 500, 3, 1.0, 1.5)
        >>> radius = np.linalg.norm(points, axis=1)
        >>> bool(radius.min() >= 1.0), bool(radius.max() <= 1.5)
        (True, True)
    """
    direction = rng.standard_normal((count, dims))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    # Even in volume: r^h is uniform between the two radii's.
    share = rng.uniform(0, 1, (count, 1))
    ratio = low / high
    radius: Floats = high * (ratio**dims + share * (1 - ratio**dims)) ** (1 / dims)
    return direction * np.clip(radius, low, high)
