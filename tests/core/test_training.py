"""Training: clusters by k-means, the two loops, early stopping, and the latent densities."""

from __future__ import annotations

import itertools
import math
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lapace import training
from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.model import LGMVAE, Shape
from lapace.training import DEFAULT, PAPER, Recipe, cluster_counts, densities, fit, partition

SHAPE = Shape(3, (3, 1), (2, 3, 1), latent=3, hidden=16)
SIZES = (60, 70, 30)
SMALL = replace(DEFAULT, hidden=16)
SMALL_PAPER = replace(PAPER, hidden=16, batch=32, rate=5e-3, steps=60, epochs=0, patience=0.25)
PAPER_SHAPE = replace(SHAPE, heads="sigmoid")

Rows = tuple[Tensor, Tensor, Tensor]


def instances() -> tuple[Floats, Ints]:
    """Rows of three labels that lie apart, with one category per block."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), SIZES)
    numbers = rng.normal(size=(len(labels), 3)) * 0.5 + labels[:, None]
    first = np.eye(3)[(labels + (rng.random(len(labels)) < 0.2)) % 3]
    second = rng.random((len(labels), 1)) < 0.3 + 0.2 * labels[:, None]
    return np.hstack([numbers, first, second]), labels


@pytest.fixture(name="rows")
def some_rows() -> Rows:
    x, y = instances()
    c = partition(x, y, SHAPE.clusters, random_state=0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(c)


@pytest.fixture(name="_quick", autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "steps_for", lambda rows, most: 60)


def weights_of(model: LGMVAE) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


# -- recipes -------------------------------------------------------------------------------------


def test_recipes_are_found_by_name_or_taken_as_they_are() -> None:
    assert Recipe.of("default") is DEFAULT
    assert Recipe.of("paper") is PAPER
    assert Recipe.of(SMALL_PAPER) is SMALL_PAPER
    with pytest.raises(InputError, match=r"There is no recipe 'papr'\. There are: default, paper"):
        Recipe.of("papr")


# -- how many clusters ---------------------------------------------------------------------------


def test_the_number_of_clusters_by_example() -> None:
    y = np.repeat(np.arange(7), [4, 5, 19, 20, 49, 50, 500])
    assert cluster_counts(y, 7, 5, [500] * 7) == (0, 1, 1, 2, 4, 5, 5)
    assert cluster_counts(y, 7, 5, [3] * 7) == (0, 1, 1, 2, 3, 3, 3)  # no more than distinct rows
    assert cluster_counts(y, 8, 2, [9] * 8)[-1] == 0  # a label without rows


# -- which cluster -------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(10, 120), st.booleans())
@settings(max_examples=20)
def test_no_cluster_has_too_few_rows(seed: int, count: int, size: int, lopsided: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 2))
    if lopsided:  # most rows in one group, a few far apart from each other
        x[: size - count] *= 0.01
        x[size - count :] *= 100
    c = partition(x, np.zeros(size, dtype=np.int64), (count,), random_state=0)
    sizes = np.bincount(c, minlength=count)
    assert len(sizes) == count
    assert sizes.min() >= int(0.5 * size / count)


def test_clusters_belong_to_one_label_and_are_numbered_consecutively() -> None:
    x, y = instances()
    shuffled = np.random.default_rng(1).permutation(len(y))
    c = partition(x[shuffled], y[shuffled], (2, 3, 1), random_state=0)
    owners = np.array([0, 0, 1, 1, 1, 2])
    assert np.array_equal(owners[c], y[shuffled])
    assert np.unique(c).tolist() == list(range(6))
    again = partition(x[shuffled], y[shuffled], (2, 3, 1), random_state=0)
    assert np.array_equal(c, again)
    without = partition(x, y, (2, 0, 3), random_state=0)  # a label without clusters has no number
    assert set(without[y == 0]) == {0, 1}
    assert set(without[y == 2]) == {2, 3, 4}


# -- the loops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [SMALL, SMALL_PAPER], ids=lambda r: r.name)
def test_a_fit_repeats_bit_for_bit_and_restores_the_generator(rows: Rows, recipe: Recipe) -> None:
    shape = replace(SHAPE, heads=recipe.heads)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    one, history = fit(shape, recipe, *rows, random_state=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    torch.manual_seed(99)  # the global generator has no effect
    two, again = fit(shape, recipe, *rows, random_state=5)
    assert same(weights_of(one), weights_of(two))
    assert history.array.tolist() == again.array.tolist()
    other, _ = fit(shape, recipe, *rows, random_state=6)
    assert not same(weights_of(one), weights_of(other))
    assert not one.training
    assert not any(weights.requires_grad for weights in one.parameters())


def test_the_fixed_loop_records_means_of_a_few_steps_and_the_last(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, every = fit(SHAPE, SMALL, *rows, random_state=0)
    monkeypatch.setattr(training, "CHECKS", 4)
    calls: list[tuple[str, int, int]] = []
    _, history = fit(SHAPE, SMALL, *rows, random_state=0, progress=lambda *call: calls.append(call))
    assert calls == [("training", n, 60) for n in (15, 30, 45, 60)]
    assert history.array[:, 0].tolist() == [15, 30, 45, 60]
    means = every.array[:, 1:].reshape(4, 15, 4).mean(axis=1)
    np.testing.assert_allclose(history.array[:, 1:], means, rtol=1e-5, atol=1e-5)


def test_training_is_the_plain_loop(rows: Rows) -> None:
    """The default recipe written out, with plain Adam instead of the fused one."""
    recipe = replace(SMALL, batch=64)
    _, history = fit(SHAPE, recipe, *rows, random_state=3)
    torch.manual_seed(3)
    model, generator = LGMVAE(SHAPE), torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step, which in enumerate(training._batches(len(rows[0]), 64, 60, generator)):
        rate = recipe.rate * min(1.0, (step + 1) / 3) * 0.5 * (1 + math.cos(math.pi * step / 60))
        optimizer.param_groups[0]["lr"] = rate
        terms = model.fixed_cluster_terms(*(part[which] for part in rows), generator)
        loss = terms.weighted(*recipe.weights)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append([loss.item(), *(term.item() for term in terms)])
    assert history.array[:, 0].tolist() == list(range(1, 61))
    np.testing.assert_allclose(history.array[:, 1:], losses, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(history.array[0, 1:], losses[0], rtol=1e-5, atol=1e-6)


def test_every_pass_is_a_new_permutation_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = [rows.tolist() for rows in training._batches(10, 5, 6, generator)]
    passes = [seen[i] + seen[i + 1] for i in range(0, 6, 2)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    odd = [rows.tolist() for rows in training._batches(7, 3, 9, generator)]
    assert all(len(set(batch)) == 3 for batch in odd)


@pytest.mark.parametrize(
    "shape",
    [Shape(3, (), (2, 3, 1), 2, 16), Shape(0, (3, 1), (2, 3, 1), 2, 16)],
    ids=["numbers only", "categories only"],
)
def test_tables_of_one_kind_of_column_can_be_learned(rows: Rows, shape: Shape) -> None:
    x, y, c = rows
    part = x[:, :3] if shape.continuous else x[:, 3:]
    for recipe in (SMALL, SMALL_PAPER):
        _, history = fit(shape, recipe, part, y, c, random_state=0)
        assert history.array[-2:, 1].mean() < history.array[:2, 1].mean()


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_small_layers_train_on_one_thread_and_other_threads_keep_theirs(
    rows: Rows, fails: bool
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    seen: list[int] = []
    beside: list[int] = []

    def watch(what: str, done: int, total: int) -> None:
        seen.append(torch.get_num_threads())
        other = threading.Thread(target=lambda: beside.append(torch.get_num_threads()))
        other.start()
        other.join()
        if fails:
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
            fit(SHAPE, SMALL, *rows, random_state=0, progress=watch)
        assert set(seen) == {1}
        assert set(beside) == {3}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# -- early stopping ------------------------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> list[dict[str, Tensor]]:
    """Patches the validation losses, pass by pass; returns the weights at each."""
    snapshots: list[dict[str, Tensor]] = []
    script = itertools.chain(losses, itertools.repeat(1e9))

    def validation(model: LGMVAE, *rest: Any) -> float:
        snapshots.append(weights_of(model))
        return next(script)

    monkeypatch.setattr(training, "_validation", validation)
    return snapshots


@pytest.mark.parametrize(
    ("losses", "best", "passes"),
    [
        ([5.0, 4.0, 3.0, 3.5, 3.4, 3.3], 2, 6),  # stops three passes after the best
        ([5.0, 1.0, 2.0, 2.0, 0.5, 0.6, 0.7, 0.8], 4, 8),  # a late best starts the waiting anew
        ([1.0, 2.0, 3.0, 4.0], 0, 4),  # the first pass was the best
        ([1.0, 1.0, 1.0, 1.0], 0, 4),  # an equal loss is no improvement
        ([float(-i) for i in range(12)], 11, 12),  # never stops early
    ],
)
def test_early_stopping_keeps_the_best_weights(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, losses: list[float], best: int, passes: int
) -> None:
    snapshots = scripted(monkeypatch, losses)
    monkeypatch.setattr(training, "CHECKS", 12)  # every five steps
    calls: list[tuple[str, int, int]] = []
    model, history = fit(
        PAPER_SHAPE, SMALL_PAPER, *rows, random_state=0, progress=lambda *call: calls.append(call)
    )
    assert len(snapshots) == len(history.lines) == passes
    assert same(weights_of(model), snapshots[best])
    assert not any(
        same(snapshots[best], other) for other in snapshots if other is not snapshots[best]
    )
    assert history.names[-1] == "validation"
    assert history.array[:, -1].tolist() == losses[:passes]
    assert calls[:passes] == [("training", 5 * (n + 1), 60) for n in range(passes)]
    assert calls[-1] == ("training", 60, 60)
    assert history.array[:, 0].tolist() == [5 * (n + 1) for n in range(passes)]


def test_the_validation_rows_are_a_tenth_and_never_trained_on(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, c = rows
    x = x.clone()
    x[:, 0] = torch.arange(len(x)) / len(x)  # a name for every row
    trained: set[float] = set()
    held: set[float] = set()
    terms = LGMVAE.paper_terms

    def watched(self: LGMVAE, x: Tensor, *rest: Any) -> Any:
        (trained if torch.is_grad_enabled() else held).update(x[:, 0].tolist())
        return terms(self, x, *rest)

    monkeypatch.setattr(LGMVAE, "paper_terms", watched)
    fit(PAPER_SHAPE, SMALL_PAPER, x, y, c, random_state=0)
    assert len(held) == len(x) // 10
    assert len(trained) == len(x) - len(held)
    assert not trained & held


# -- density -------------------------------------------------------------------------------------


def test_densities_are_mixtures_around_each_labels_rows(rows: Rows) -> None:
    x, y, c = rows
    model, _ = fit(SHAPE, SMALL, x, y, c, random_state=0)
    found, _ = densities(model, SMALL, x, y, c, random_state=0)
    assert len(found) == 3
    for label, mixture in enumerate(found):
        latent = model.encode(x[y == label], y[y == label])
        assert mixture.log_weights.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
        assert (mixture.scales.diagonal(dim1=1, dim2=2) > 0).all()
        assert torch.equal(mixture.typical, mixture.log_density(latent).sort().values)
        ranks = mixture.share_below(latent).sort().values
        even = torch.arange(len(latent)).double() / len(latent)
        assert torch.allclose(ranks, even, atol=1 / len(latent) + 1e-5)
        far = latent.mean(dim=0, keepdim=True) + 100
        assert mixture.share_below(far).item() == 0.0


def test_a_single_gaussian_has_the_mean_and_covariance_of_one_draw_per_row(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, c = rows
    model, _ = fit(SHAPE, SMALL, x, y, c, random_state=0)
    monkeypatch.setattr(training, "GAUSSIANS", 1)
    found = densities(model, SMALL, x, y, c, random_state=4)[0][2]
    rows_of_label = y == 2
    one_hot = torch.eye(6)[c[rows_of_label]]
    q = model.q_z(x[rows_of_label], one_hot, y[rows_of_label])
    z = q.mean + training.SPREAD * (q.sample(torch.Generator().manual_seed(4)) - q.mean)
    assert torch.allclose(found.means[0], z.mean(dim=0), atol=1e-5)
    covariance = torch.cov(z.T, correction=0) + 1e-4 * torch.eye(3)
    assert torch.allclose(found.scales[0] @ found.scales[0].T, covariance, atol=1e-5)


def test_a_handful_of_rows_still_has_a_density() -> None:
    shape = Shape(3, (3, 1), (1, 1), latent=8, hidden=16)
    x, y = instances()
    few = np.r_[:6, 60:100]
    parts = (
        torch.tensor(x[few], dtype=torch.float32),
        torch.tensor(y[few]),
        torch.tensor(partition(x[few], y[few], (1, 1), 0)),
    )
    model, _ = fit(shape, SMALL, *parts, random_state=0)
    small = densities(model, SMALL, *parts, random_state=0)[0][0]
    z = small.sample(2000, torch.Generator().manual_seed(0))
    latent = model.encode(parts[0][:6], parts[1][:6])
    assert small.log_density(latent).isfinite().all()
    assert (z.mean(dim=0) - latent.mean(dim=0)).abs().max() < 1.5
    assert 0.05 < z.std(dim=0).min() < z.std(dim=0).max() < 3


def test_the_density_of_a_label_without_clusters_is_zero(rows: Rows) -> None:
    x, y, _ = rows
    shape = replace(SHAPE, clusters=(2, 0, 1))
    kept = y != 1
    c = torch.tensor(partition(x.double().numpy(), y.numpy(), shape.clusters, 0))
    model, _ = fit(shape, SMALL, x[kept], y[kept], c[kept], random_state=0)
    found, _ = densities(model, SMALL, x[kept], y[kept], c[kept], random_state=0)
    assert [len(mixture.means) > 0 for mixture in found] == [True, False, True]
    assert found[1].share_below(torch.zeros(2, 3)).tolist() == [0.0, 0.0]


def test_the_papers_density_is_its_prior(rows: Rows) -> None:
    x, y, _ = rows
    model, _ = fit(PAPER_SHAPE, SMALL_PAPER, *rows, random_state=0)
    found, _ = densities(model, SMALL_PAPER, x, y, model.clusters(x, y), random_state=0)
    prior = model.p_z()
    assert torch.equal(found[1].means, prior.mean[2:5])
    assert found[1].log_weights.tolist() == pytest.approx([-math.log(3)] * 3)
    variances = (found[1].scales @ found[1].scales.transpose(1, 2)).diagonal(dim1=1, dim2=2)
    assert torch.allclose(variances, prior.log_variance[2:5].exp())
    latent = model.encode(x[y == 1], y[y == 1], follows_paper=True)
    assert torch.equal(found[1].typical, found[1].log_density(latent).sort().values)
