"""Readings of the paper's loss that only experiments use, against loops and the library's own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.losses import PaperLoss, gumbel_draw
from lapace.training import fit
from tests.core.test_model import OWNERS, SHAPES, made, rows
from tests.core.test_training import PAPER_SHAPE, SMALL_PAPER, instances


def seeded():
    return torch.Generator().manual_seed(4)


@pytest.fixture(params=SHAPES, name="model")
def any_model(request):
    return made(SHAPES[request.param])


def test_without_options_it_is_the_librarys_loss(model):
    x, y, _ = rows(model.shape)
    ours, theirs = model.paper_terms(x, y, seeded()), PaperLoss()(model, x, y, seeded())
    assert [t.item() for t in theirs] == [t.item() for t in ours]


def test_kl_c_per_row_is_that_of_every_rows_responsibilities(model):
    x, y, _ = rows(model.shape)
    pi, expected = model.q_c(x, y).exp(), 0.0
    for i in range(7):
        own = [k for k, owner in enumerate(OWNERS) if owner == y[i]]
        expected += sum(pi[i, k].item() * math.log(pi[i, k].item() * len(own)) for k in own) / 7
    assert PaperLoss(kl_c="row")(model, x, y, seeded()).kl_c.item() == pytest.approx(expected)


def test_a_gumbel_draw_is_one_cluster_of_the_label_as_often_as_probable():
    log_c = torch.tensor([[0.2, 0.5, 0.3, 0.0]]).log().repeat(20_000, 1).requires_grad_()
    drawn = gumbel_draw(log_c, torch.Generator().manual_seed(0))
    assert drawn.detach().unique().tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert drawn.mean(dim=0).tolist() == pytest.approx([0.2, 0.5, 0.3, 0.0], abs=0.02)
    (gradient,) = torch.autograd.grad(drawn[:, 0].sum(), log_c)
    assert (gradient[:, 0] > 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "loss",
    [PaperLoss("row"), PaperLoss(draw=True), PaperLoss("row", draw=True)],
    ids=str,
)
def test_every_reading_learns_something_else(loss):
    x, y = instances()
    data = torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(y)
    plain, _ = fit(PAPER_SHAPE, SMALL_PAPER, *data, random_state=0)
    with loss.in_use():
        other, history = fit(PAPER_SHAPE, SMALL_PAPER, *data, random_state=0)
    assert not torch.equal(plain.centroids(), other.centroids())
    assert history.array[-2:, 1].mean() < history.array[:2, 1].mean()
    assert np.isfinite(history.array).all()


def test_kl_c_per_row_pulls_every_row_to_uniform_and_per_batch_does_not():
    x, y = instances()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    entropy = {}
    for kl_c in ("row", "batch"):
        recipe = replace(SMALL_PAPER, weights=(1.0, 0.1, 1.0), steps=1000, patience=1)
        with PaperLoss(kl_c).in_use():
            model, _ = fit(PAPER_SHAPE, recipe, x, y, y, random_state=0)
        pi = model.q_c(x, y)[y == 1].exp()[:, 2:5]
        entropy[kl_c] = float(-(pi * pi.clamp(min=1e-12).log()).sum(dim=1).mean())
        assert pi.mean(dim=0).min() > 0.1  # no cluster is lost either way
    assert entropy["row"] > 0.9 * math.log(3)
    assert entropy["batch"] < 0.7 * math.log(3)
