"""Dense paths: the same ends and guarantees as straight ones, another way between."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import dense, dense_page
from benchmarks.dense_candidates import CANDIDATES, at, even, searched_by
from benchmarks.dense_digits import blended
from benchmarks.dense_ends import ENDS, ended_by, ranks
from lapace import Explanation, InputError, Search, plots
from lapace.explainer.problem import make_problem
from lapace.model import NOISE
from lapace.paths import dense_curves
from tests import worlds

PICKS = ("first", "middle", "last")
WORLDS = (worlds.bank, worlds.seasons)


def targets(world):
    return 1 if world is worlds.seasons() else None


@pytest.mark.parametrize("make", WORLDS)
def test_dense_paths_have_the_ends_of_straight_ones(make):
    world = make()
    straight = worlds.explained(world, targets(world), steps=8, picks=PICKS)
    dense = worlds.explained(world, targets(world), steps=8, picks=PICKS, path="dense")
    assert straight.instance.tolist() == dense.instance.tolist()
    assert straight.prototype.tolist() == dense.prototype.tolist()
    np.testing.assert_array_equal(dense.cells[:, 0], dense.instances[dense.instance])
    np.testing.assert_array_equal(straight.cells[:, 8], dense.cells[:, 8])
    assert (straight.cells[:, 1:8] != dense.cells[:, 1:8]).any()


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("detail", ["path", "picks"])
def test_every_row_of_a_dense_path_was_asked_and_is_what_it_says(make, detail):
    world = make()
    found = worlds.explained(world, targets(world), steps=8, path="dense", detail=detail)
    classifier = world.explainer.classifier_
    for pick in (*PICKS, "nearest", "best"):
        rows = getattr(found, pick)()
        assert len(rows)
        codes = classifier.predict(rows.cells, found.schema)
        wanted = worlds.codes(found, found.target)[rows.instance]
        np.testing.assert_array_equal(rows.valid, codes == wanted)
        if pick != "last":
            assert rows.ok.mean() > 0.9
    assert worlds.answered(found).sum() == len(np.unique(found.instance))


def test_going_further_than_first_never_loses_the_answer_on_a_dense_path():
    found = worlds.explained(worlds.seasons(), 1, steps=12, picks=PICKS, path="dense")
    first = found.first()
    own = np.flatnonzero(found.prototype >= 0)
    for path, tau, ok in zip(own, first.tau, first.ok, strict=True):
        later = found.tau[path, :13] >= tau - 1e-9
        assert ok
        assert (found.valid[path, :13][later] == 1).all()


def test_middle_is_half_way_from_first_on_a_dense_path():
    found = worlds.explained(worlds.signs(), steps=8, picks=PICKS, path="dense")
    first, middle = found.first(), found.middle()
    np.testing.assert_allclose(middle.tau, (first.tau + 1) / 2)


def test_constraints_hold_on_dense_paths():
    constraints = ["age == original", "income <= 90", "home != kin", "changes <= 4"]
    found = worlds.explain(worlds.bank(), constraints=constraints, steps=6, path="dense")
    assert worlds.answered(found).any()
    rows = found.nearest()
    ok = rows.where(rows.ok)
    frame, originals = ok.rows, worlds.bank().instances.iloc[ok.instance]
    assert (frame["age"].to_numpy() == originals["age"].to_numpy()).all()
    assert (frame["income"] <= 90).all()
    assert (ok.changed <= 4).all()


def test_every_label_has_its_own_density():
    world = worlds.seasons()
    search = Search(steps=6, path="dense", picks=PICKS)
    found = world.explainer.explain(world.instances, target="any-other", search=search)
    alone = world.explainer.explain(world.instances, target=2, search=search)
    for path in np.flatnonzero(alone.prototype >= 0):
        same = (found.instance == alone.instance[path]) & (found.prototype == alone.prototype[path])
        np.testing.assert_array_equal(found.cells[same][0, :7], alone.cells[path, :7])


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
    np.testing.assert_allclose(mixture.denoised(z), weight @ draws, atol=0.03)


def test_the_residual_of_a_dense_path_fades_as_a_square():
    decoder = worlds.signs().explainer.fitted_.decoder
    cells = worlds.signs().explainer.schema_.cells(worlds.signs().train[:2])
    encoded = decoder.encode_instances(decoder.schema, cells, np.zeros(2, dtype=np.int64))
    tau, row = np.array([0.0, 0.5, 1.0]), np.zeros(3, dtype=np.int64)
    for fading, half in ((1.0, 0.5), (2.0, 0.25)):
        left = encoded._replace(fading=fading).residual_at(row, tau)
        np.testing.assert_allclose(left, encoded.residual[0] * np.array([[1.0], [half], [0.0]]))


def test_the_latent_map_has_the_way_of_dense_paths():
    world = worlds.signs()
    straight = worlds.explained(world, steps=4, picks=PICKS)
    dense = worlds.explained(world, steps=4, picks=PICKS, path="dense")
    one = int(dense.instance[0])
    assert "path_z" not in world.explainer.latent_map(straight[one])
    known = world.explainer.latent_map(dense[one])
    assert known["path_z"].shape[::2] == known["prototype_z"].shape
    np.testing.assert_allclose(known["path_z"][:, -1], known["prototype_z"])
    assert plots.latent_map(known, dense[one]).lines


def test_the_papers_recipe_is_straight_whatever_is_asked():
    world = worlds.paper()
    straight = worlds.explained(world, steps=6)
    dense = worlds.explain(world, steps=6, path="dense")
    np.testing.assert_array_equal(straight.cells, dense.cells)


def test_the_path_is_kept_with_the_explanation():
    found = worlds.explain(worlds.post(), steps=4, path="dense", picks=("first",))
    again = Explanation.from_json(json.loads(json.dumps(found.to_json())))
    assert found.search["path"] == again.search["path"] == "dense"
    np.testing.assert_array_equal(found.cells, again.cells)


def test_an_unknown_path_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"path is 'dens'; it is 'straight' or 'dense'\..*'dense'"):
        Search(path="dens")


# ------------------------------------------------------------------------------------------------
# Endpoints of one's own


@pytest.mark.parametrize("make", WORLDS)
@pytest.mark.parametrize("detail", ["path", "picks"])
def test_every_instance_has_endpoints_of_its_own_and_picks_have_them(make, detail):
    world = make()
    found = worlds.explain(world, targets(world), steps=6, n_endpoints=4, detail=detail)
    own = np.unique(found.instance)
    assert len(found.instance) == 4 * len(own) > 0
    assert found.prototype.tolist() == [-1, -2, -3, -4] * len(own)
    classifier = world.explainer.classifier_
    for pick in (*PICKS, "nearest", "best"):
        rows = getattr(found, pick)()
        assert pick not in PICKS or len(rows) == len(found.instance)
        codes = classifier.predict(rows.cells, found.schema)
        wanted = worlds.codes(found, found.target)[rows.instance]
        np.testing.assert_array_equal(rows.valid, codes == wanted)
        assert rows.ok.mean() > 0.9
    last = found.last()
    assert list(last.about["rank"]) == [0, 1, 2, 3] * len(own)
    assert np.isfinite(last.density).all()
    ends = {row.tobytes() for row in last.cells}
    assert len(ends) > len(world.explainer.prototypes_)
    for i in own:
        assert len(np.unique(last.cells[last.instance == i], axis=0)) == 4


def test_own_endpoints_are_ordered_by_what_their_paths_cost():
    world = worlds.signs()
    found = worlds.explain(world, steps=4, n_endpoints=5, picks=PICKS)
    decoder, last = world.explainer.fitted_.decoder, found.last()
    label = worlds.codes(found, found.label)[last.instance]
    start = decoder.encode(found.instances[last.instance], label)
    code = worlds.codes(found, last.label)
    sampled = world.explainer.fitted_.sampled_endpoints
    cost = []
    for k, row in enumerate(last.cells):
        which = int(np.flatnonzero((sampled.cells == row).all(axis=1))[0])
        line = [torch.lerp(start[k], sampled.z[which], t)[None] for t in (0.25, 0.5, 0.75)]
        along = [decoder.percentile(z, code[k : k + 1])[0] for z in line] + [last.density[k]]
        cost.append(last.distance[k] / np.maximum(np.mean(along) / 100, 0.01))
    cost = np.array(cost) / np.maximum(last.probability, 0.01)
    for i in np.unique(last.instance):
        assert (np.diff(cost[last.instance == i]) >= -1e-6).all()


def test_own_endpoints_under_constraints_and_with_any_other_label():
    constraints = ["age == original", "changes <= 3"]
    found = worlds.explain(worlds.bank(), constraints=constraints, steps=6, n_endpoints=3)
    assert worlds.answered(found).sum() == len(np.unique(found.instance)) > 0
    assert repr(found).endswith(f"; {len(found.instance)} paths to sampled endpoints")
    assert not any("prototype" in reason for reason in found.reason)
    first = found.first()
    ok = first.where(first.ok)
    assert len(ok)
    assert (ok.changed <= 3).all()
    np.testing.assert_array_equal(ok.cells[:, 0], found.instances[ok.instance, 0])
    world = worlds.seasons()
    search = Search(steps=4, n_endpoints=6, picks=PICKS)
    any_other = world.explainer.explain(world.instances, target="any-other", search=search)
    assert (any_other.last().label != any_other.label[any_other.last().instance]).all()


def test_own_endpoints_survive_json_and_can_be_asked_for_and_drawn():
    world = worlds.signs()
    found = worlds.explain(world, steps=4, n_endpoints=3, path="dense")
    again = Explanation.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    one = found[int(found.instance[0])]
    assert sorted(one.prototypes) == [-3, -2, -1]
    steps = one.path(-2)
    np.testing.assert_array_equal(steps.cells[-1], one.endpoints.cells[1])
    assert one.path().prototype[0] == one.prototypes[0]
    assert len(one.changes("first", prototype=-3))
    known = world.explainer.latent_map(one)
    assert known["endpoint_z"].shape == (3, known["z"].shape[1])
    np.testing.assert_allclose(known["path_z"][:, -1], known["endpoint_z"])
    assert len(plots.latent_map(known, one).lines) >= 3
    assert plots.path(one)


def test_the_papers_recipe_has_no_endpoints_of_ones_own():
    with pytest.raises(InputError, match="no sampled endpoints"):
        worlds.explain(worlds.paper(), n_endpoints=2)


# ------------------------------------------------------------------------------------------------
# The benchmark


@pytest.mark.parametrize("name", [*CANDIDATES, *ENDS])
def test_every_candidate_keeps_the_ends(name):
    world = worlds.bank()
    own = searched_by(CANDIDATES[name]) if name in CANDIDATES else ended_by(ENDS[name])
    straight = worlds.explained(world, steps=4, picks=PICKS)
    with own:
        found = worlds.explain(world, steps=4, picks=PICKS)
    np.testing.assert_array_equal(found.cells[:, 0], straight.cells[:, 0])
    assert found.instance.tolist() == straight.instance.tolist()
    if name in CANDIDATES:
        np.testing.assert_array_equal(found.cells[:, 4], straight.cells[:, 4])
    same = np.array_equal(found.cells, straight.cells, equal_nan=True)
    assert same == (name == "straight")


def test_a_curve_is_cut_into_equal_lengths():
    corner = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]]])
    points = even(corner, 4)
    steps = (points[0, 1:] - points[0, :-1]).norm(dim=1)
    np.testing.assert_allclose(steps, 1.0, rtol=1e-5)
    rows = np.zeros(3, dtype=np.int64)
    found = at(points, rows, np.array([0.0, 0.875, 1.0]))
    np.testing.assert_allclose(found, [[0, 0], [3, 0.5], [3, 1]], atol=1e-6)


def made_table(**changes):
    lines = []
    for seed, shift in ((11, 0.0), (12, 0.02)):
        for method in ("straight", "dense", "FACE"):
            values = dict.fromkeys(dense_page.SIGNS, 1.0 + shift)
            if method == "dense":
                values |= {name: v + changes.get(name, 0.0) for name, v in values.items()}
            values["last_lof"] = 1.1
            for metric, value in values.items():
                lines.append(("wine-RF", seed, method, metric, "", value, 0.0, 10))
    names = ("pair", "seed", "method", "metric", "label", "mean", "deviation", "count")
    return pd.DataFrame(lines, columns=names)


def test_the_rule_decides_by_density_lof_and_time():
    better = {name: 0.1 * dense_page.SIGNS[name] for name in dense_page.BETTER}
    assert "**dense**" in dense_page.page(made_table(**better))
    assert "**straight**" in dense_page.page(made_table())
    assert "**straight**" in dense_page.page(made_table(**better, nearest_distance=0.5))
    assert "**straight**" in dense_page.page(made_table(**better, seconds=0.6))
    text = dense_page.page(made_table(**better))
    assert "below FACE's on 1 of 1 pairs with straight paths, on 1 with dense ones" in text


def test_blends_are_of_two_digits_of_different_labels():
    labels = np.arange(40) % 4
    images = np.zeros((40, 2, 2), dtype=np.float32)
    images[np.arange(40), labels // 2, labels % 2] = 1.0
    found, real = blended(images, labels, seed=0)
    np.testing.assert_array_equal(found[real == 1], images)
    blends = found[real == 0]
    assert len(blends) > 20
    assert ((blends > 0.29).sum(axis=(1, 2)) == 2).all()
    np.testing.assert_allclose(blends.sum(axis=(1, 2)), 1.0, rtol=1e-6)


def test_endpoints_are_ranked_within_their_instance():
    group, cost = np.array([0, 0, 0, 1, 1]), np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    assert ranks(group, cost).tolist() == [2, 0, 1, 1, 0]


def test_the_page_is_written_beside_the_table(tmp_path):
    table = made_table()
    table.to_csv(tmp_path / "dense.csv", index=False)
    assert dense.main(["--render", "--out", str(tmp_path / "dense.csv")]) == 0
    assert "## The decision" in (tmp_path / "dense.md").read_text(encoding="utf-8")


def test_problems_are_made_with_the_path_that_is_asked_for():
    world = worlds.signs()
    problem = make_problem(
        world.explainer.fitted_,
        world.explainer.classifier_,
        world.instances,
        search=Search(path="dense"),
    )
    assert problem.search.path == "dense"
