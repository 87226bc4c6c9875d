"""Dense paths, which images take: the same ends as straight lines, another way between."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch

from lapace import plots
from lapace.explainer import search
from lapace.paths import dense_curves
from lapace.paths.dense import NOISE, denoised
from tests import worlds

PICKS = ("first", "middle", "last")


def test_paths_of_images_are_dense_and_keep_their_ends():
    world = worlds.digits()
    found = worlds.explained(world, 7, steps=8, picks=PICKS)
    np.testing.assert_array_equal(found.cells[:, 0], found.instances[found.instance])
    ends = {p.number: p.cells for p in world.explainer.prototypes_}
    for path in np.flatnonzero(found.prototype >= 0):
        np.testing.assert_allclose(found.cells[path, 8], ends[int(found.prototype[path])])
    with patch.object(search, "dense_lines", lambda _, instances, lines: (instances, lines)):
        straight = worlds.explain(world, 7, steps=8, picks=PICKS)
    np.testing.assert_array_equal(straight.cells[:, 8], found.cells[:, 8])
    assert (straight.cells[:, 1:8] != found.cells[:, 1:8]).any()


def test_the_latent_map_has_the_curves_of_images_alone():
    table, images = worlds.signs(), worlds.digits()
    straight = worlds.explained(table, steps=4, picks=PICKS)
    assert "path_z" not in table.explainer.latent_map(straight[int(straight.instance[0])])
    dense = worlds.explained(images, 7, steps=8, picks=PICKS)
    one = dense[int(dense.instance[0])]
    known = images.explainer.latent_map(one)
    assert known["path_z"].shape[::2] == known["prototype_z"].shape
    np.testing.assert_allclose(known["path_z"][:, -1], known["prototype_z"])
    assert plots.latent_map(known, one).lines


def test_dense_curves_keep_their_ends_and_lie_where_the_target_is_denser():
    world = worlds.signs()
    decoder = world.explainer.fitted_.decoder
    cells = world.explainer.schema_.cells(world.train[:60])
    start = decoder.encode(cells, np.zeros(60, dtype=np.int64))
    end = decoder.encode(cells[::-1].copy(), np.ones(60, dtype=np.int64))
    curve = dense_curves(decoder, start, end, np.ones(60, dtype=np.int64))
    np.testing.assert_array_equal(curve[:, 0], start)
    np.testing.assert_array_equal(curve[:, -1], end)
    steps = (curve[:, 1:] - curve[:, :-1]).norm(dim=2)
    assert (steps.std(dim=1) < 0.2 * steps.mean(dim=1)).all()
    density = decoder.mixtures[1].log_density
    late = slice(6, 10)
    line = torch.lerp(start[:, None], end[:, None], torch.linspace(0, 1, 11)[:, None])
    bent, straight = (density(c[:, late].reshape(-1, c.shape[2])).mean() for c in (curve, line))
    assert bent > straight


def test_denoised_is_the_posterior_mean_of_brute_force():
    mixture = worlds.signs().explainer.fitted_.decoder.mixtures[0]
    z = mixture.sample(4, torch.Generator().manual_seed(0)) * 1.5
    draws = mixture.sample(400_000, torch.Generator().manual_seed(1))
    covariance = mixture.scales @ mixture.scales.transpose(1, 2)
    variance = NOISE * float(covariance.diagonal(dim1=1, dim2=2).mean())
    weight = (-torch.cdist(z, draws).square() / (2 * variance)).softmax(dim=1)
    np.testing.assert_allclose(denoised(mixture, z), weight @ draws, atol=0.03)
