"""The L-GMVAE against the paper's formulas: loops, torch.distributions, SciPy, Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from lapace.model import LGMVAE, Gaussian, Mixture, Shape

SHAPES = {
    "mixed": Shape(3, (4, 1, 2), (2, 3, 1), latent=4, hidden=8),
    "numbers": Shape(5, (), (2, 3, 1), latent=2, hidden=8),
    "categories": Shape(0, (3, 1), (2, 3, 1), latent=3, hidden=8),
    "binary": Shape(2, (1, 1, 1), (2, 3, 1), latent=3, hidden=8),
    "paper": Shape(3, (4, 1, 2), (2, 3, 1), latent=4, hidden=8, heads="sigmoid"),
}
OWNERS = [0, 0, 1, 1, 1, 2]  # the label of each of the six clusters above


@pytest.fixture(params=SHAPES, name="model")
def any_model(request: pytest.FixtureRequest) -> LGMVAE:
    return made(SHAPES[request.param])


def made(shape: Shape) -> LGMVAE:
    """A model whose every weight is random, so that no bias or width is left at zero."""
    torch.manual_seed(0)
    model = LGMVAE(shape)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    return model.double()


def rows(shape: Shape, count: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Encoded rows with one category per block, labels, and clusters of those labels."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(count, shape.continuous))]
    for width in shape.widths:
        code = rng.integers(0, max(2, width), count)
        parts.append(code[:, None].astype(float) if width == 1 else np.eye(width)[code])
    labels = rng.integers(0, len(shape.clusters), count)
    starts = np.cumsum([0, *shape.clusters])
    clusters = [rng.integers(starts[y], starts[y + 1]) for y in labels]
    return torch.tensor(np.hstack(parts)), torch.tensor(labels), torch.tensor(clusters)


def gaussians(rng: np.random.Generator, *shape: int) -> Gaussian:
    return Gaussian(torch.tensor(rng.normal(size=shape)), torch.tensor(rng.normal(size=shape)))


def normal(gaussian: Gaussian) -> Normal:
    return Normal(gaussian.mean, (0.5 * gaussian.log_variance).exp())


# -- q(c|x,y) ------------------------------------------------------------------------------------


def test_clusters_of_other_labels_have_no_probability(model: LGMVAE) -> None:
    x, y, _ = rows(model.shape, 20)
    log_c = model.q_c(x, y)
    logits = model.cluster_network(torch.cat([x, torch.eye(3).double()[y]], dim=1))
    for i, label in enumerate(y.tolist()):
        clusters_of_label = [k for k, owner in enumerate(OWNERS) if owner == label]
        total = sum(math.exp(logits[i, k].item()) for k in clusters_of_label)
        for k in range(6):
            expected = math.exp(logits[i, k].item()) / total if k in clusters_of_label else 0.0
            assert log_c[i, k].exp().item() == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert [OWNERS[k] for k in model.clusters(x, y)] == y.tolist()


@pytest.mark.parametrize("follows_paper", [False, True])
def test_rows_of_a_label_without_clusters_are_encoded(follows_paper: bool) -> None:
    model = made(Shape(2, (3,), (2, 0, 3), latent=4, hidden=8))
    x = torch.randn(6, 5).double()
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    probability = model.q_c(x, y).exp()
    assert torch.allclose(probability.sum(dim=1), torch.ones(6).double())
    assert (probability[y == 0][:, 2:] == 0).all()
    assert (probability[y == 2][:, :2] == 0).all()
    assert model.encode(x, y, follows_paper=follows_paper).isfinite().all()


def test_encoding_takes_the_likeliest_cluster_or_all_of_them(model: LGMVAE) -> None:
    x, y, _ = rows(model.shape)
    probability = model.q_c(x, y).exp()
    likeliest = torch.eye(6).double()[probability.argmax(dim=1)]
    assert torch.equal(model.encode(x, y), model.q_z(x, likeliest, y).mean)
    assert torch.equal(model.encode(x, y, follows_paper=True), model.q_z(x, probability, y).mean)
    by_hand = model.latent_network(torch.cat([x, torch.eye(3).double()[y], likeliest], dim=1))
    assert torch.equal(model.encode(x, y), by_hand[:, : model.shape.latent])


# -- p(z|c) and p(x|z) ---------------------------------------------------------------------------


def test_the_prior_is_one_linear_layer_on_one_hots(model: LGMVAE) -> None:
    both = model.prior(torch.eye(6).double())
    prior = model.p_z()
    assert torch.allclose(torch.cat(prior, dim=1), both)
    assert torch.equal(model.centroids(), prior.mean)


def test_heads_are_softmax_per_block_and_sigmoid_for_width_one(model: LGMVAE) -> None:
    shape = model.shape
    z = torch.randn(5, shape.latent).double()
    out, row = model.logits(z).tolist(), model.decode(z).tolist()
    for logits, found in zip(out, row, strict=True):
        assert found[: shape.continuous] == logits[: shape.continuous]
        start = shape.continuous
        for width in shape.widths:
            block = logits[start : start + width]
            if width == 1 or shape.heads == "sigmoid":
                expected = [1 / (1 + math.exp(-v)) for v in block]
            else:
                expected = [math.exp(v) / sum(map(math.exp, block)) for v in block]
            assert found[start : start + width] == pytest.approx(expected)
            start += width


# -- Gaussians -----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=30)
def test_the_divergence_is_the_textbook_one(seed: int, dims: int) -> None:
    rng = np.random.default_rng(seed)
    q, p = gaussians(rng, 4, dims), gaussians(rng, 4, dims)
    expected = kl_divergence(normal(q), normal(p)).sum(dim=1)
    assert torch.allclose(q.divergence(p), expected, rtol=1e-9)
    assert torch.allclose(q.divergence(q), torch.zeros(4).double(), atol=1e-12)


# -- the losses ----------------------------------------------------------------------------------


def loop_reconstruction(model: LGMVAE, out: list[float], x: list[float], learned: bool) -> float:
    """-log p(x|z) of one row without the constants of the Gaussian, column by column."""
    shape, total = model.shape, 0.0
    for j in range(shape.continuous):
        if learned:
            sigma = math.exp(min(2.0, max(-4.0, model.log_sigma[j].item())))
            total += (x[j] - out[j]) ** 2 / (2 * sigma**2) + math.log(sigma)
        else:
            total += (x[j] - out[j]) ** 2
    start = shape.continuous
    for width in shape.widths:
        block = range(start, start + width)
        if width == 1 or shape.heads == "sigmoid":
            for j in block:
                p = 1 / (1 + math.exp(-out[j]))
                total -= x[j] * math.log(p) + (1 - x[j]) * math.log(1 - p)
        else:
            everything = sum(math.exp(out[j]) for j in block)
            total -= sum(x[j] * math.log(math.exp(out[j]) / everything) for j in block)
        start += width
    return total


def loop_divergence(q: Gaussian, p: Gaussian, i: int, k: int) -> float:
    total = 0.0
    for j in range(q.mean.shape[1]):
        q_mean, q_variance = q.mean[i, j].item(), math.exp(q.log_variance[i, j].item())
        p_mean, p_variance = p.mean[k, j].item(), math.exp(p.log_variance[k, j].item())
        total += 0.5 * (
            math.log(p_variance / q_variance)
            + (q_variance + (q_mean - p_mean) ** 2) / p_variance
            - 1
        )
    return total


def noise(shape: Shape, count: int, seed: int) -> Tensor:
    """What the loss will draw from a generator of that seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(count, shape.latent).double().normal_(generator=generator)


def test_the_default_loss_term_by_term(model: LGMVAE) -> None:
    x, y, c = rows(model.shape)
    terms = model.fixed_cluster_terms(x, y, c, torch.Generator().manual_seed(3))
    q, p = model.q_z(x, torch.eye(6).double()[c], y), model.p_z()
    z = q.mean + noise(model.shape, 7, 3) * (0.5 * q.log_variance).exp()
    out, log_c = model.logits(z), model.q_c(x, y)
    rec = [loop_reconstruction(model, out[i].tolist(), x[i].tolist(), True) for i in range(7)]
    kl_z = [loop_divergence(q, p, i, int(c[i])) for i in range(7)]
    cross = [-log_c[i, c[i]].item() for i in range(7)]
    expected = [sum(part) / 7 for part in (rec, kl_z, cross)]
    assert [t.item() for t in terms] == pytest.approx(expected)
    loss = 1.0 * expected[2] + 0.3 * expected[1] + 1.0 * expected[0]
    assert terms.weighted(1.0, 0.3, 1.0).item() == pytest.approx(loss)


def test_the_papers_loss_term_by_term(model: LGMVAE) -> None:
    x, y, _ = rows(model.shape)
    y = torch.where(y == 2, 0, y)  # a label absent from the batch counts nothing
    terms = model.paper_terms(x, y, torch.Generator().manual_seed(4))
    pi = model.q_c(x, y).exp()
    q, p = model.q_z(x, pi, y), model.p_z()
    z = q.mean + noise(model.shape, 7, 4) * (0.5 * q.log_variance).exp()
    out = model.logits(z)
    rec = [loop_reconstruction(model, out[i].tolist(), x[i].tolist(), False) for i in range(7)]
    kl_z = [
        sum(pi[i, k].item() * loop_divergence(q, p, i, k) for k in range(6) if OWNERS[k] == y[i])
        for i in range(7)
    ]
    kl_c = 0.0  # of each label's mean responsibilities, by the label's share
    for label in set(y.tolist()):
        own = [k for k, owner in enumerate(OWNERS) if owner == label]
        mean = [pi[y == label, k].mean().item() for k in own]
        share = (y == label).double().mean().item()
        kl_c += share * sum(m * math.log(m * len(own)) for m in mean)
    assert [t.item() for t in terms] == pytest.approx([sum(rec) / 7, sum(kl_z) / 7, kl_c])


# -- the mixture ---------------------------------------------------------------------------------


def mixture(rng: np.random.Generator, count: int, dims: int) -> Mixture:
    weights = rng.dirichlet(np.ones(count))
    scales = np.tril(rng.normal(size=(count, dims, dims)) * 0.3)
    scales[:, np.arange(dims), np.arange(dims)] = rng.uniform(0.3, 1.5, (count, dims))
    values = (np.log(weights), rng.normal(size=(count, dims)) * 2, scales, [])
    return Mixture(*(torch.tensor(v, dtype=torch.float32) for v in values))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=30)
def test_the_mixtures_density_is_scipys(seed: int, count: int, dims: int) -> None:
    rng = np.random.default_rng(seed)
    found = mixture(rng, count, dims)
    z = rng.normal(size=(6, dims)) * 2
    total = np.zeros(6)
    for k in range(count):
        scale = found.scales[k].double().numpy()
        shape = multivariate_normal(found.means[k].double().numpy(), scale @ scale.T)
        total += np.exp(found.log_weights[k].item()) * shape.pdf(z)
    points = torch.tensor(z, dtype=torch.float32)
    np.testing.assert_allclose(found.log_density(points), np.log(total), rtol=1e-3, atol=1e-3)


def test_a_narrow_mixture_away_from_zero_keeps_its_digits() -> None:
    """The squares of the means cancel in the density; what is left must still be exact enough."""
    scales = 0.05 * torch.eye(3).expand(2, 3, 3)
    means = torch.tensor([[5.0, -5.0, 5.0], [6.0, -5.0, 5.0]])
    found = Mixture(torch.tensor([0.5, 0.5]).log(), means, scales, torch.empty(0))
    z = means[:1] + torch.tensor([[0.05, 0.0, -0.1]])
    exact = multivariate_normal(means[0].double().numpy(), 0.05**2 * np.eye(3))
    expected = exact.logpdf(z[0].double().numpy()) + math.log(0.5)
    assert found.log_density(z).item() == pytest.approx(expected, abs=0.02)


def test_draws_have_the_mixtures_mean_and_covariance() -> None:
    found = mixture(np.random.default_rng(5), 3, 2)
    z = found.sample(200_000, torch.Generator().manual_seed(0)).double()
    weights = found.log_weights.double().exp()
    mean = weights @ found.means.double()
    within = torch.einsum("k,kij,klj->il", weights, *[found.scales.double()] * 2)
    apart = found.means.double() - mean
    covariance = within + torch.einsum("k,ki,kj->ij", weights, apart, apart)
    assert z.shape == (200_000, 2)
    assert torch.allclose(z.mean(dim=0), mean, atol=0.03)
    assert torch.allclose(z.T.cov(), covariance, atol=0.1)


def test_the_share_below_counts_training_rows_that_are_less_dense() -> None:
    rng = np.random.default_rng(8)
    plain = mixture(rng, 2, 3)
    training = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32)
    typical = plain.log_density(training).sort().values
    found = Mixture(plain.log_weights, plain.means, plain.scales, typical)
    z = torch.tensor(rng.normal(size=(25, 3)), dtype=torch.float32)
    for point, share in zip(z, found.share_below(z).tolist(), strict=True):
        here = found.log_density(point[None]).item()
        assert share == sum(t < here for t in typical.tolist()) / 40
    far = found.share_below(torch.full((1, 3), 50.0))
    assert far.tolist() == [0.0]


def test_a_labels_part_of_the_prior_weighs_its_clusters_equally() -> None:
    rng = np.random.default_rng(9)
    prior = Gaussian(*(t.float() for t in gaussians(rng, 6, 3)))
    found = Mixture.of_prior(prior, range(2, 5))
    z = torch.randn(4, 3)
    each = [normal(Gaussian(prior.mean[k], prior.log_variance[k])) for k in (2, 3, 4)]
    density = sum(n.log_prob(z).sum(dim=1).exp() for n in each) / 3  # type: ignore[no-untyped-call]
    assert torch.allclose(found.log_density(z), torch.as_tensor(density).log(), atol=1e-4)
