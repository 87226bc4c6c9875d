"""The grid of readings: which reading of the paper's text comes to its figures?

The paper leaves open how numbers are scaled, whether the reconstruction is summed or averaged over
columns, whether KL(z) is summed or averaged over dimensions, and whether KL(c) is of each row, as
printed, or of a batch. Every combination is trained on the paper's split, where the test rows are
cut from those the classifier was trained on, and evaluated as in E1 with forests of several depths.
The models of all readings of one pair and seed are trained side by side, as one stack of weights:
Adam treats every weight alone, so each is trained as if it were alone.

    python -m benchmarks.readings    # which classifiers come near the paper's two columns
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F  # noqa: N812  as torch names it

from benchmarks import paper_metrics
from benchmarks.fits import Setup, paper_split, setup_of
from benchmarks.jobs import Measure
from benchmarks.plan import Job, Plan, Readings
from lapace.arrays import Floats
from lapace.classifier import Classifier
from lapace.explainer.fit import range_coded, standardised
from lapace.model import LGMVAE, Gaussian, Mixture, Shape
from lapace.schema import Schema
from lapace.training import CHECKS, PAPER

__all__ = ["CANDIDATES", "combinations", "measure", "train"]

# Classifiers tried, by scikit-learn's settings: which have the paper's accuracy and its "real"?
CANDIDATES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "forest": {
        **{f"depth {d}": {"max_depth": d} for d in (3, 4, 5, 6, 8, 10, 14)},
        "full depth": {"max_depth": None},
    },
    "mlp": {
        "20, 20": {},
        "50": {"hidden_layer_sizes": (50,)},
        "100": {"hidden_layer_sizes": (100,)},
        "50, 50": {"hidden_layer_sizes": (50, 50)},
        "100, 100": {"hidden_layer_sizes": (100, 100)},
        "200, 200": {"hidden_layer_sizes": (200, 200)},
    },
}
CHOICE_SEEDS = (1, 2)  # the classifiers are chosen on these splits, which no figure is of
FIELDS = ("numbers", "error", "kl_z", "kl_c")
Reading = dict[str, str]


def combinations(grid: Readings) -> dict[str, Reading]:
    """Returns every reading by its name.

    Examples:
        >>> len(combinations(Readings()))
        16
        >>> next(iter(combinations(Readings())))
        'standardised, error summed, KL(z) summed, KL(c) per row'
    """
    found = {}
    for values in product(*(getattr(grid, name) for name in FIELDS)):
        own = dict(zip(FIELDS, values, strict=True))
        found["{numbers}, error {error}, KL(z) {kl_z}, KL(c) per {kl_c}".format_map(own)] = own
    return found


def measure(job: Job) -> Iterator[Measure]:
    """Yields, for every reading, the gap by each depth of the forests, and what clusters do."""
    grid = job.details
    assert isinstance(grid, Readings)
    setup = _matched(job)
    yield Measure.of("accuracy", _predicted(setup) == np.asarray(setup.data.test_labels))
    inner = paper_split(setup, job.seed)
    named = combinations(grid)
    real = dict(_accuracies(inner, inner.train, inner.codes, grid, job.seed))
    for depth, share in real.items():
        yield Measure(f"real@{depth}", share, len(inner.test))
    codings = {"standardised": standardised(inner.schema, inner.train),
               "min-max": range_coded(inner.schema)}  # fmt: skip
    schemas = [codings[own["numbers"]] for own in named.values()]
    models = train(job, inner, list(named.values()), schemas)
    for (name, _), schema, model in zip(named.items(), schemas, models, strict=True):
        cells, codes = _sampled(model, schema, inner, job.seed)
        for depth, share in _accuracies(inner, cells, codes, grid, job.seed):
            yield Measure(f"synthetic@{depth}", share, len(inner.test), name)
            yield Measure(f"gap@{depth}", real[depth] - share, len(inner.test), name)
        yield from (replace(m, label=name) for m in _clusters(model, schema, inner))


def _matched(job: Job) -> Setup:
    """The job's setup, with the classifier that comes near the paper's two columns."""
    setup = setup_of(job)
    name = job.pair.matched
    if not name:
        return setup
    return _with_classifier(setup, job, CANDIDATES[job.pair.classifier][name])


def _with_classifier(setup: Setup, job: Job, settings: Mapping[str, Any]) -> Setup:
    model = setup.data.classifier(job.pair.classifier, random_state=job.seed, **settings)
    classifier = Classifier(model, setup.schema)
    codes = classifier.fit_labels(setup.train)
    target, test = classifier.code(setup.data.target), classifier.predict(setup.test, setup.wide)
    return replace(setup, model=model, classifier=classifier, codes=codes, test_codes=test,
                   target=target)  # fmt: skip


def _predicted(setup: Setup) -> Any:
    return np.asarray(setup.model.predict(setup.data.test))


def _accuracies(
    setup: Setup, cells: Floats, codes: Any, grid: Readings, seed: int
) -> Iterator[tuple[int, float]]:
    """Yields the accuracy on held-out rows of forests of each depth, trained on some rows."""
    nothing = setup.train[:0], setup.codes[:0]
    for depth in grid.depths:
        found = paper_metrics.utility(
            setup.schema, nothing, (cells, codes), (setup.test, setup.test_codes),
            trees=grid.trees, random_state=seed, max_depth=depth or None,
        )  # fmt: skip
        yield depth, found.synthetic


# ------------------------------------------------------------------------------------------------
# Training side by side


class _Loss(nn.Module):
    """The paper's weighted loss on a batch, with the noise and the reading handed in."""

    def __init__(self, model: LGMVAE, weights: tuple[float, float, float]) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def forward(
        self, x: Tensor, y: Tensor, noise: Tensor, averaged: Tensor, averaged_z: Tensor, row: Tensor
    ) -> Tensor:
        """Returns the loss; the last three arguments are 1 where a reading averages, or is per row.

        Averaged, squared errors are averaged over numbers and cross-entropies over categories.
        """
        model, numbers = self.model, self.model.shape.continuous
        log_c = model.q_c(x, y)
        pi = log_c.exp()  # (n, K)
        q = model.q_z(x, pi, y)
        out = model.logits(q.mean + noise * (0.5 * q.log_variance).exp())
        error = ((x[:, :numbers] - out[:, :numbers]) ** 2).sum(dim=1)
        cost = F.binary_cross_entropy_with_logits(
            out[:, numbers:], x[:, numbers:], reduction="none"
        ).sum(dim=1)
        means = error / max(1, numbers) + cost / max(1, x.shape[1] - numbers)
        reconstruction = (averaged * means + (1 - averaged) * (error + cost)).mean()
        each = Gaussian(q.mean[:, None], q.log_variance[:, None]).divergence(model.p_z())  # (n, K)
        divergence = (pi * each).sum(dim=1).mean()
        divergence = divergence * (averaged_z / model.shape.latent + 1 - averaged_z)
        sizes = model.mask.sum(dim=1).to(x.dtype)
        of_rows = (pi * log_c.masked_fill(~model.mask[y], 0.0)).sum(dim=1) + sizes[y].log()
        kl_c = row * of_rows.mean() + (1 - row) * model.usage_divergence(pi, y)
        of_c, of_z, of_x = self.weights
        return of_c * kl_c + of_z * divergence + of_x * reconstruction


def train(job: Job, setup: Setup, readings: list[Reading], schemas: list[Schema]) -> list[LGMVAE]:
    """Trains a model for each reading, as `recipe="paper"` is trained, all of them together."""
    paper = job.pair.paper
    assert paper is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    labels = len(setup.classifier.labels)
    shape = Shape(
        len(setup.schema.numeric), schemas[0].coding.widths,
        (job.protocol.n_prototypes,) * labels, paper.n_latent, PAPER.hidden, PAPER.heads,
    )  # fmt: skip
    encoded = {id(s): s.encode(setup.train) for s in schemas}
    x = torch.tensor(np.stack([encoded[id(s)] for s in schemas]), dtype=torch.float32).to(device)
    y = torch.as_tensor(setup.codes, device=device)
    losses = []
    for _ in readings:  # all start from the same weights
        torch.manual_seed(job.seed)
        losses.append(_Loss(LGMVAE(shape), paper.weights).to(device))
    params, buffers = stack_module_state(losses)
    base = copy.deepcopy(losses[0]).to("meta")
    which = [
        torch.tensor([float(own[name] == value) for own in readings], device=device)
        for name, value in (("error", "averaged"), ("kl_z", "averaged"), ("kl_c", "row"))
    ]

    def one(p: Any, b: Any, x: Tensor, y: Tensor, noise: Tensor, *options: Tensor) -> Any:
        return functional_call(base, (p, b), (x, y, noise, *options))

    each = vmap(one, in_dims=(0, 0, 0, None, None, 0, 0, 0))
    rng = torch.Generator(device).manual_seed(job.seed)
    order = torch.randperm(len(y), generator=rng, device=device)
    held, kept = order.tensor_split([max(1, len(order) // 10)])
    batch = min(paper.batch, len(kept))
    steps = max(job.limits.steps, job.limits.epochs * -(-len(kept) // batch))
    grid = job.details
    steps = min(steps, (isinstance(grid, Readings) and grid.max_steps) or steps)
    optimizer = torch.optim.Adam(params.values(), lr=paper.rate, fused=True)
    fixed = torch.randn((len(held), paper.n_latent), generator=rng, device=device)
    best = torch.full((len(readings),), torch.inf, device=device)
    best_step = torch.zeros(len(readings), device=device)
    weights = {name: value.detach().clone() for name, value in params.items()}
    left = kept[:0]
    for step in range(1, steps + 1):
        if len(left) < batch:
            left = kept[torch.randperm(len(kept), generator=rng, device=device)]
        rows, left = left[:batch], left[batch:]
        noise = torch.randn((batch, paper.n_latent), generator=rng, device=device)
        optimizer.zero_grad()
        each(params, buffers, x[:, rows], y[rows], noise, *which).sum().backward()
        optimizer.step()
        if step % max(1, steps // CHECKS) and step < steps:
            continue
        with torch.no_grad():
            loss = each(params, buffers, x[:, held], y[held], fixed, *which)
        going = step - best_step < PAPER.patience * steps
        better = (loss < best) & going
        best, best_step = torch.where(better, loss, best), torch.where(better, step, best_step)
        for name, value in params.items():
            mark = better.reshape(-1, *[1] * (value.ndim - 1))
            weights[name] = torch.where(mark, value.detach(), weights[name])
        if not bool((step - best_step < PAPER.patience * steps).any()):
            break
    return [_model(shape, weights, k) for k in range(len(readings))]


def _model(shape: Shape, weights: Mapping[str, Tensor], k: int) -> LGMVAE:
    model = LGMVAE(shape)
    own = {name.removeprefix("model."): value[k].cpu() for name, value in weights.items()}
    model.load_state_dict(own, strict=False)  # buffers follow from the shape
    return model.eval().requires_grad_(False)


# ------------------------------------------------------------------------------------------------
# Measuring


def _members(model: LGMVAE, code: int) -> list[int]:
    counts = model.shape.clusters
    return list(range(sum(counts[:code]), sum(counts[: code + 1])))


def _rows(model: LGMVAE, schema: Schema, z: Tensor) -> Floats:
    with torch.inference_mode():
        return schema.decode(model.decode(z).double().numpy())


def _sampled(model: LGMVAE, schema: Schema, setup: Setup, seed: int) -> tuple[Floats, Any]:
    """Rows drawn from p(z|c), as many of each label as there are real ones."""
    rng, cells, codes = torch.Generator().manual_seed(seed), [], []
    for code in range(len(setup.classifier.labels)):
        count = int((setup.codes == code).sum())
        z = Mixture.of_prior(model.p_z(), _members(model, code)).sample(count, rng)
        cells.append(_rows(model, schema, z))
        codes.append(np.full(count, code))
    return np.concatenate(cells), np.concatenate(codes)


def _clusters(model: LGMVAE, schema: Schema, setup: Setup) -> Iterator[Measure]:
    """Yields whether centroids are valid, whether clusters are used, and whether they differ."""
    counts = model.shape.clusters
    owner = np.repeat(np.arange(len(counts)), counts)
    cells = _rows(model, schema, model.centroids())
    yield Measure.of("centroids", setup.classifier.predict(cells) == owner)
    spreads = [paper_metrics.spread(setup.schema, cells[owner == k]) for k in range(len(counts))]
    yield Measure("spread", float(np.mean(spreads)), len(cells))
    x = torch.as_tensor(schema.encode(setup.train), dtype=torch.float32)
    with torch.inference_mode():
        pi = model.q_c(x, torch.as_tensor(setup.codes)).exp().numpy()
    hard = np.bincount(pi.argmax(axis=1), minlength=len(owner))
    shares = [hard[owner == k].min() * counts[k] / max(1, hard[owner == k].sum())
              for k in range(len(counts))]  # fmt: skip
    yield Measure("least_used", float(min(shares)), len(cells))


def main() -> None:
    """Prints how near each classifier comes to the paper's accuracy and "real", by pair."""
    plan = Plan.read("benchmarks/paper.toml")
    for pair in (p for p in plan.pairs if p.reported is not None and p.paper is not None):
        known, away = pair.reported, {}
        assert known is not None
        for name, settings in CANDIDATES[pair.classifier].items():
            lines = []
            for seed in CHOICE_SEEDS:
                job = Job(pair, "paper", seed, plan.protocol, plan.limits, "grid", plan.readings)
                setup = _with_classifier(setup_of(job), job, settings)
                accuracy = (_predicted(setup) == np.asarray(setup.data.test_labels)).mean()
                inner = paper_split(setup, seed)
                real = _accuracies(inner, inner.train, inner.codes, plan.readings, seed)
                lines.append([accuracy, *(share for _, share in real)])
            accuracy, *real = 100 * np.mean(lines, axis=0)
            off = abs(accuracy - known.accuracy) + min(abs(r - known.real) for r in real)
            away[name] = off
            shown = ", ".join(f"{r:.1f}" for r in real)
            sys.stdout.write(
                f"{pair.name}, {name}: accuracy {accuracy:.1f} ({known.accuracy:.1f}), real "
                f"{shown} ({known.real:.1f}), off by {off:.1f}\n"
            )
        sys.stdout.write(f"{pair.name}: {min(away, key=away.__getitem__)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
