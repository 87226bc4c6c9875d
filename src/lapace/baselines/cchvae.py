"""C-CHVAE: growing spheres around the instance's code in the latent space of a VAE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch

from lapace.arrays import Floats, Ints
from lapace.baselines.ground import Asked, Found, Ground, Kinds, ground_of, number, whole
from lapace.model import LGMVAE, Shape
from lapace.result import Counterfactuals
from lapace.training import DEFAULT, Recipe
from lapace.training import fit as train_model

__all__ = ["CCHVAE"]

ROWS = 100_000  # decoded rows asked about at once


@dataclass(eq=False)
class CCHVAE:
    r"""The nearest of the first points around the instance's code that decode to what is wanted.

    A variational autoencoder of the table, one Gaussian for everybody, is trained once. Around the
    instance's code points are drawn from shells, each as thick as the last and farther out, until
    some point of a shell, decoded, is labelled as wanted:

    $$z = z_x + r\, u, \quad \|u\| = 1, \quad (t - 1)\,\delta < r \le t\,\delta,
      \quad t = 1, 2, \dots$$

    Nothing is held fixed (the method's "conditional" part), as in the comparison it is used for.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Of the network and the draws.
        latent: Dimensions of the latent space; None: as many as columns, at most 10.
        recipe: How the network is trained; by default as the explainer's own is.
        samples: Points drawn from each shell.
        step: Thickness of a shell, in the prior's standard deviations.
        shells: How many are searched, at most.

    Examples:
        >>> table = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(200)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> quick = Recipe(hidden=16, batch=32, epochs=10)
        >>> method = CCHVAE(say, recipe=quick).fit(table)
        >>> answers = method.counterfactuals([{"age": 30, "home": "a"}], target="yes")
        >>> say(answers.rows)
        ['yes']
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0
    latent: int | None = None
    recipe: Recipe = DEFAULT
    samples: int = 100
    step: float = 0.25
    shells: int = 60

    def __post_init__(self) -> None:
        if self.latent is not None:
            whole("latent", self.latent)
        for name in ("samples", "shells"):
            whole(name, getattr(self, name))
        number("step", self.step, 1e-6)

    def fit(self, train: Any) -> CCHVAE:
        """Asks the classifier about the training rows and trains the autoencoder."""
        ground = Ground.of(self.classifier, train, self.schema)
        schema = ground.schema
        rows = np.repeat(ground.rows, ground.counts, axis=0)
        shape = Shape(
            continuous=len(schema.numeric),
            widths=schema.widths,
            clusters=(1,),  # one label with one cluster: a plain VAE
            latent=self.latent or min(10, len(schema.features)),
            hidden=self.recipe.hidden,
        )
        x = torch.as_tensor(schema.encode(rows), dtype=torch.float32)
        nothing = torch.zeros(len(x), dtype=torch.int64)
        model, _ = train_model(shape, self.recipe, x, nothing, nothing, seed=self.seed)
        self.model_: LGMVAE = model
        self.ground_ = ground
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """One row for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        cells, instance, _ = self.search(asked)
        reason = (
            f"No decoded point within {self.shells * self.step:g} standard deviations was "
            "labelled as wanted."
        )
        return asked.answered(cells, instance, dict.fromkeys(asked.tried.tolist(), reason))

    def search(self, asked: Asked) -> tuple[Floats, Ints, Floats]:
        """Rows, for whom they are, and the outer radius of the shell each was found in."""
        schema, rng = asked.schema, np.random.default_rng(self.seed)
        code = self._codes(asked)  # (instances, h)
        scale = (0.5 * self.model_.p_z().log_variance[0]).exp().numpy()
        best = np.full(asked.instances.shape, np.nan)
        radius = np.full(len(asked.instances), np.nan)
        left = asked.tried
        for shell in range(self.shells if len(left) else 0):
            # Everyone looks in the same directions, so that company changes nobody's answer.
            draw = shell_points(
                rng, self.samples, code.shape[1], shell * self.step, (shell + 1) * self.step
            )
            size = max(1, ROWS // self.samples)
            for begin in range(0, len(left), size):
                part = left[begin : begin + size]
                z = (code[part, None] + draw * scale).reshape(-1, code.shape[1])
                cells, instance = self._rows(asked, z), np.repeat(part, self.samples)
                good = asked.says(cells, instance)
                cells, instance = cells[good], instance[good]
                far = schema.gaps(asked.instances[instance], cells).sum(axis=1)
                order = np.lexsort((far, instance))
                first = order[np.unique(instance[order], return_index=True)[1]]
                best[instance[first]] = cells[first]
                radius[instance[first]] = (shell + 1) * self.step
            left = left[np.isnan(radius[left])]
            if not len(left):
                break
        found = np.flatnonzero(~np.isnan(radius))
        return best[found], found, radius[found]

    def _codes(self, asked: Asked) -> Floats:
        """The latent means of everyone; of those not tried they are not used."""
        x = torch.as_tensor(
            np.nan_to_num(asked.schema.encode(asked.instances)), dtype=torch.float32
        )
        with torch.no_grad():
            z = self.model_.encode(x, torch.zeros(len(x), dtype=torch.int64))
        return z.double().numpy()

    def _rows(self, asked: Asked, z: Floats) -> Floats:
        """Latent points as rows on the lattice."""
        with torch.no_grad():
            x = self.model_.decode(torch.as_tensor(z, dtype=torch.float32))
        return asked.ground.schema.decode(x.double().numpy())


def shell_points(
    rng: np.random.Generator, count: int, dims: int, low: float, high: float
) -> Floats:
    """Points drawn evenly from the shell between two radii, (count, dims).

    Examples:
        >>> points = shell_points(np.random.default_rng(0), 500, 3, 1.0, 1.5)
        >>> size = np.linalg.norm(points, axis=1)
        >>> bool(size.min() >= 1.0), bool(size.max() <= 1.5)
        (True, True)
    """
    direction = rng.standard_normal((count, dims))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    # Even in volume: r^h is uniform between the two radii's.
    share = rng.uniform(0, 1, (count, 1))
    ratio = low / high
    radius: Floats = high * (ratio**dims + share * (1 - ratio**dims)) ** (1 / dims)
    return direction * np.clip(radius, low, high)
