"""The explainer as its users meet it: any table, classifier, instance; picks mean what they say."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import worlds
from lapace import (
    CentroidWarning,
    ClassifierError,
    Explainer,
    Explanation,
    InputError,
    NotFittedError,
    Search,
)
from lapace.constraints import Custom
from lapace.explainer import search as searching
from lapace.result import json_schema
from worlds import QUICK, World

EVERYWHERE = [
    (worlds.bank, None),
    (worlds.seasons, 2),
    (worlds.digits, 3),
    (worlds.signs, None),
    (worlds.shop, None),
    (worlds.post, None),
    (worlds.rare, "a"),
]
everywhere = pytest.mark.parametrize(
    ("world", "target"), EVERYWHERE, ids=[world.__name__ for world, _ in EVERYWHERE]
)


def explained(world: World, target=None, **settings) -> Explanation:
    return world.explainer.explain(world.instances, target=target, **worlds.searched(settings))


def handed(world: World, classifier, tmp_path) -> Explainer:
    """The same explainer with another classifier in its hands."""
    world.explainer.save(tmp_path / "explainer.lapace")
    return Explainer.load(tmp_path / "explainer.lapace", classifier, device="cpu")


def arrays(answer: Explanation) -> dict[str, bytes]:
    """Everything an answer holds, bit for bit."""
    found = {
        k: repr(v.tolist()).encode() if v.dtype == object else v.tobytes()
        for k, v in vars(answer).items()
        if isinstance(v, np.ndarray)
    }
    found |= {f"picked {k}": v.tobytes() for k, v in answer.picked.items()}
    return found | {"words": repr((answer.status, answer.reason, answer.constraints)).encode()}


def asked(world: World, rows) -> list:
    """What the user's own classifier says about rows."""
    question = getattr(world.classifier, "predict", world.classifier)
    answer = question(rows)
    return [v.item() if hasattr(v, "item") else v for v in answer]


# --- every kind of table, label and classifier -----------------------------------------------


@everywhere
def test_everyone_is_answered(world, target):
    answer = explained(world(), target)
    assert set(answer.status) <= {"answered", "already_target"}
    assert answer.status.count("answered") >= len(answer) / 3
    for pick in (answer.first(), answer.middle(), answer.last(), answer.nearest()):
        assert pick.ok.all()
        assert not np.isnan(pick.distance).any()
        assert ((pick.density >= 0) & (pick.density <= 100)).all()


@everywhere
def test_the_classifier_asked_again_about_the_returned_rows_says_the_target(world, target):
    here = world()
    answer = explained(here, target)
    for pick in (answer.first(), answer.middle(), answer.last(), answer.nearest(), answer.at(0.3)):
        wanted = [answer.target[instance] for instance in pick.instance]
        said = asked(here, pick.rows)
        assert pick.valid.tolist() == [s == w for s, w in zip(said, wanted, strict=True)]


@everywhere
def test_every_stored_step_is_judged_as_it_is(world, target):
    here = world()
    answer = explained(here, target)
    _, steps, columns = answer.cells.shape
    flat = answer.cells.reshape(-1, columns)
    said = asked(here, answer.schema.frame(flat))  # in the training table's own kind
    wanted = np.repeat([answer.target[instance] for instance in answer.instance], steps)
    truth = np.array([s == w for s, w in zip(said, wanted.tolist(), strict=True)])
    np.testing.assert_array_equal(answer.valid.ravel() == 1, truth)
    assert answer.feasible.all()


@everywhere
def test_distance_is_the_schemas_and_step_zero_is_the_instance(world, target):
    answer = explained(world(), target)
    own = answer.instances[answer.instance]
    np.testing.assert_array_equal(answer.cells[:, 0], own)
    assert (answer.tau[:, 0] == 0).all()
    assert (answer.distance[:, 0] == 0).all()
    for step in (3, 11, 21):
        expected = [
            sum(
                _gap(feature, a, b)
                for feature, a, b in zip(answer.schema.features, x, y, strict=True)
            )
            for x, y in zip(own.tolist(), answer.cells[:, step].tolist(), strict=True)
        ]
        np.testing.assert_allclose(answer.distance[:, step], expected)


def _gap(feature, a: float, b: float) -> float:
    """DESIGN's distance, column by column."""
    if np.isnan(a) or np.isnan(b):
        return float(np.isnan(a) != np.isnan(b))
    if feature.numeric:
        return abs(a - b) / (feature.upper - feature.lower or 1.0)
    return float(a != b)


@everywhere
def test_answers_are_values_a_person_would_write(world, target):
    answer = explained(world(), target)
    own = answer.instances[answer.instance][:, None]
    for i, feature in enumerate(answer.schema.features):
        cells = answer.cells[:, 1:, i]
        moved = answer.schema.changed(own, answer.cells)[:, 1:, i] & ~np.isnan(cells)
        if feature.numeric:
            assert (cells[moved] >= feature.lower).all()
            assert (cells[moved] <= feature.upper).all()
        if feature.resolution:
            steps = cells[moved] / feature.resolution
            np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
        if feature.kind in ("binary", "categorical"):
            assert set(np.unique(cells[moved])) <= set(range(len(feature.categories)))
        # What is present never goes missing, and what did not move is the instance's own cell.
        assert not (np.isnan(cells) & ~np.isnan(own[:, :, i])).any()
        still = ~moved & ~np.isnan(cells)
        assert (cells[still] == np.broadcast_to(own[:, :, i], cells.shape)[still]).all()


@everywhere
def test_the_last_step_is_one_row_per_prototype_the_same_for_everyone(world, target):
    here = world()
    answer = explained(here, target)
    ends = {p.number: p.cells for p in here.explainer.prototypes_}
    last = answer.last()
    assert (last.tau == 1).all()
    for row, number in zip(last.cells, last.prototype, strict=True):
        np.testing.assert_array_equal(row, ends[number])


@everywhere
def test_rows_go_out_as_they_came_in(world, target):
    here = world()
    rows = explained(here, target).first().rows
    assert type(rows) is type(here.instances)
    if isinstance(rows, pd.DataFrame):
        assert rows.dtypes.to_dict() == here.instances.dtypes.to_dict()
    elif isinstance(rows, pl.DataFrame | pa.Table):
        assert rows.schema == here.instances.schema
    elif isinstance(rows, np.ndarray):
        assert rows.shape[1:] == here.instances.shape[1:]
        assert rows.dtype == here.instances.dtype
    else:
        assert [list(r) for r in rows] == [list(here.instances[0])] * len(rows)


@everywhere
def test_json_comes_back_whole_and_as_published(world, target):
    answer = explained(world(), target, steps=5)
    data = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    few = {**data, "instances": data["instances"][:4]}
    jsonschema.validate(few, json_schema())
    again = Explanation.from_json(data)
    assert arrays(again) == arrays(answer)
    assert again.n_queries == answer.n_queries
    assert [type(v) for v in again.labels] == [type(v) for v in answer.labels]


@pytest.mark.parametrize(
    "world", [worlds.bank, worlds.signs, worlds.shop], ids=lambda w: w.__name__
)
def test_probability_is_the_classifiers_own(world):
    here = world()
    answer = explained(here)
    assert not np.isnan(answer.probability).any()
    for pick in (answer.first(), answer.middle(), answer.last(), answer.at(0)):
        table = here.classifier.predict_proba(pick.rows)
        wanted = worlds.codes(answer, answer.target[pick.instance])
        expected = table[np.arange(len(pick)), wanted]
        np.testing.assert_allclose(pick.probability, expected, atol=1e-6)


@pytest.mark.parametrize("world", [worlds.seasons, worlds.post], ids=lambda w: w.__name__)
def test_without_probabilities_they_are_unknown(world):
    here = world()
    answer = here.explainer.explain(here.instances, target=here.explainer.classes_[0])
    assert np.isnan(answer.probability).all()


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas, "records"])
def test_people_may_come_in_another_kind_of_frame(convert):
    here = worlds.bank()
    plain = here.instances.assign(grade=here.instances["grade"].astype(str))
    if convert == "records":
        instances = json.loads(plain.to_json(orient="records"))
    else:
        instances = convert(plain)
    answer = here.explainer.explain(instances)
    assert type(answer.first().rows) is type(instances)
    assert arrays(answer) == arrays(explained(here))


def test_an_estimator_a_pipeline_and_a_callable_of_the_same_model_agree(tmp_path):
    here = worlds.bank()
    bare = handed(here, here.classifier.predict, tmp_path)
    answer, other = explained(here), bare.explain(here.instances)
    np.testing.assert_array_equal(answer.first().cells, other.first().cells)
    assert np.isnan(other.probability).all()


# --- the meaning of picks, from the stored arrays --------------------------------------------


class Picked(NamedTuple):
    """One step of every path, to stand-ins as well."""

    tau: np.ndarray
    cells: np.ndarray
    ok: np.ndarray


def picked_rows(answer: Explanation, pick: str) -> Picked:
    paths, steps = np.arange(len(answer.instance)), answer.picked[pick]
    return Picked(*(a[paths, steps] for a in (answer.tau, answer.cells, answer.ok)))


def check_picks(answer: Explanation, steps: int, stable: bool = True) -> int:
    """DESIGN's sentences, path by path; how many paths had a good step."""
    grid = np.linspace(0, 1, steps + 1)
    # Paths to stand-ins mean the same by their picks, though these show the others alone.
    first, middle, last = (picked_rows(answer, name) for name in ("first", "middle", "last"))
    shown = np.flatnonzero(answer.prototype >= 0)
    for pick, rows in ((answer.first(), first), (answer.middle(), middle), (answer.last(), last)):
        assert pick.instance.tolist() == answer.instance[shown].tolist()
        np.testing.assert_array_equal(pick.cells, rows.cells[shown])
    good_paths = 0
    for path in range(len(answer.instance)):
        tau, ok = answer.tau[path], answer.ok[path]
        np.testing.assert_allclose(tau[: steps + 1], grid)
        on_grid = np.flatnonzero(ok[: steps + 1])
        if not len(on_grid):
            chosen = {int(answer.picked[name][path]) for name in ("first", "middle", "last")}
            assert len(chosen) == 1  # the best found is one row, and says that it is not good
            assert not first.ok[path]
            assert first.tau[path] > 0
            continue
        good_paths += 1
        begin = on_grid[0]
        if stable:
            begin = on_grid[-1]
            while ok[begin - 1]:
                begin -= 1
            # Going further never loses the answer.
            between = (tau >= first.tau[path]) & (tau <= tau[on_grid[-1]])
            assert ok[: steps + 1][between[: steps + 1]].all()
        assert first.ok[path]
        assert grid[begin - 1] < first.tau[path] <= grid[begin]
        assert last.ok[path]
        assert last.tau[path] == tau[ok & ~np.isnan(tau)].max()
        half = (first.tau[path] + 1) / 2
        place = steps + 2  # the grid, then the refined first, then the midpoint
        assert tau[place] == pytest.approx(half)
        assert middle.ok[path]
        if ok[place]:
            assert middle.tau[path] == tau[place]
        else:
            after = tau[ok & (tau > half)]
            assert middle.tau[path] == (after.min() if len(after) else last.tau[path])
    return good_paths


@everywhere
def test_picks_mean_what_they_say(world, target):
    answer = explained(world(), target, steps=12)
    assert check_picks(answer, 12) == len(answer.instance) > 0


LIMITS = ["fixed age", "income >= original", "home in {own, rent}", "changes <= 3"]


def test_picks_mean_what_they_say_under_constraints():
    answer = explained(worlds.bank(), constraints=LIMITS)
    good = check_picks(answer, 20)
    assert 0 < good < len(answer.instance)  # both kinds of path are there


def test_picks_mean_what_they_say_with_the_first_good_step_of_all():
    answer = explained(worlds.bank(), constraints=LIMITS, stable=False)
    assert check_picks(answer, 20, stable=False) > 0
    steady = explained(worlds.bank(), constraints=LIMITS)
    here, there = picked_rows(answer, "first"), picked_rows(steady, "first")
    assert (here.tau[here.ok] <= there.tau[here.ok]).all()


def test_first_is_refined_to_a_64th_of_a_step():
    """A grid 64 times as fine has the same row there, and no good row just before it."""
    here = worlds.signs()
    instances = here.instances[:6]
    coarse = here.explainer.explain(instances, search=Search(steps=10))
    fine = here.explainer.explain(instances, search=Search(steps=640))
    assert (coarse.prototype == -1).any()
    first = picked_rows(coarse, "first")
    place = np.rint(first.tau * 640).astype(int)
    paths = np.arange(len(place))
    np.testing.assert_allclose(first.tau, place / 640, atol=1e-9)
    assert fine.ok[paths, place].all()
    assert not fine.ok[paths, place - 1].any()
    np.testing.assert_allclose(fine.cells[paths, place], first.cells, atol=1e-5)


def test_crossings_count_how_often_the_label_is_lost_again():
    answer = explained(worlds.bank(), constraints=LIMITS)
    for path in range(len(answer.instance)):
        said = answer.valid[path, :21]
        lost = sum(a == 1 and b == 0 for a, b in pairwise(said))
        assert answer.crossings[path] == lost


@everywhere
def test_nearest_is_the_cheapest_good_row_of_any_path(world, target):
    answer = explained(world(), target)
    nearest = answer.nearest()
    tried = [i for i, s in enumerate(answer.status) if s == "answered"]
    assert nearest.instance.tolist() == tried
    for row, instance in enumerate(tried):
        mine = answer.instance == instance
        assert nearest.distance[row] == answer.distance[mine][answer.ok[mine]].min()


@everywhere
def test_one_row_per_person_tried_and_prototype_in_order(world, target):
    here = world()
    answer = explained(here, target)
    for pick in (answer.first(), answer.middle(), answer.last(), answer.at(0.5)):
        pairs = list(zip(pick.instance.tolist(), pick.prototype.tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        for instance, number in pairs:
            end = here.explainer.prototypes_[number]
            assert end.valid
            assert end.label == (answer.target[instance] if target is None else target)
            assert end.label == here.explainer.classes_[end.code]
    tried = {i for i, s in enumerate(answer.status) if s == "answered"}
    assert set(answer.instance.tolist()) == tried


# --- the path to a made-up instance nearby -----------------------------------------------------


@everywhere
def test_one_more_path_leads_to_a_made_up_person_whom_the_classifier_accepts(world, target):
    here = world()
    answer = explained(here, target)
    made_up = np.flatnonzero(answer.prototype == -1)
    assert len(made_up)
    tried, counts = np.unique(answer.instance[made_up], return_counts=True)
    assert (counts == 1).all()
    assert len(tried) >= len(set(answer.instance.tolist())) / 4  # not all have a good one near
    sampled = here.explainer.fitted_.sampled_endpoints
    for path in made_up:
        label = answer.target[answer.instance[path]] if target is None else target
        wanted = answer.labels.index(label)
        mine = sampled.cells[sampled.label == wanted]
        end = answer.cells[path, answer.tau[path] == 1]
        assert (mine == end[0]).all(axis=1).any()
        assert (answer.cells[path, 0] == answer.instances[answer.instance[path]]).all() or (
            np.isnan(answer.cells[path, 0]).any()
        )
    ends = answer.cells[made_up, answer.picked["last"][made_up]]
    said = asked(here, answer.schema.frame(ends))
    assert said == [answer.target[instance] for instance in answer.instance[made_up]]
    assert answer.ok[made_up, answer.picked["last"][made_up]].all()


@everywhere
def test_only_nearest_and_sparse_look_at_paths_to_made_up_instances(world, target):
    answer = explained(world(), target, sparse=True, steps=8)
    for pick in (answer.first(), answer.middle(), answer.last(), answer.at(0.4)):
        assert (pick.prototype >= 0).all()
        assert len(pick) == (answer.prototype >= 0).sum()
    for one in answer:
        assert -1 not in one.prototypes
        paths = answer.prototype[answer.instance == one.position]
        if -1 in paths:
            path = one.path(-1)
            assert (path.prototype == -1).all()
            assert path.tau[0] == 0
            assert path.tau[-1] == 1
    for pick in (answer.nearest(), answer.sparse()):
        assert len(pick) == len(set(answer.instance.tolist()))
        for instance, prototype, row in zip(pick.instance, pick.prototype, pick.cells, strict=True):
            path = np.flatnonzero((answer.instance == instance) & (answer.prototype == prototype))
            steps = answer.cells[path[0]]
            same = (steps == row) | (np.isnan(steps) & np.isnan(row))
            assert same.all(axis=1).any()


def test_for_some_the_nearest_answer_is_on_the_way_to_a_made_up_instance():
    nearer = 0
    for world, target in ((worlds.bank, None), (worlds.seasons, 2), (worlds.signs, None)):
        answer = explained(world(), target)
        nearest = answer.nearest()
        others = answer.prototype >= 0
        for instance, distance in zip(nearest.instance, nearest.distance, strict=True):
            mine = others & (answer.instance == instance)
            without = answer.distance[mine][answer.ok[mine]].min()
            assert distance <= without
            nearer += distance < without
    assert nearer > 10


def test_under_constraints_the_path_to_a_made_up_person_obeys_as_well():
    here = worlds.bank()
    answer = explained(here, constraints=["fixed age", "income >= original", "changes <= 3"])
    made_up = answer.prototype == -1
    assert made_up.any()
    good = answer.ok & made_up[:, None]
    assert good[made_up].any(axis=1).mean() > 0.5
    paths, steps = np.nonzero(good)
    rows, own = answer.cells[paths, steps], answer.instances[answer.instance[paths]]
    assert (rows[:, 0] == own[:, 0]).all()
    assert (rows[:, 1] >= own[:, 1]).all()
    unlike = (rows != own) & ~(np.isnan(rows) & np.isnan(own))
    assert (unlike.sum(axis=1) <= 3).all()
    said = np.array(asked(here, answer.schema.frame(rows)))
    wanted = np.array([answer.target[instance] for instance in answer.instance[paths]])
    assert (said == wanted).all()


def test_the_papers_recipe_walks_to_prototypes_alone():
    answer = explained(worlds.paper())
    assert (answer.prototype >= 0).all()
    assert len(worlds.paper().explainer.fitted_.sampled_endpoints.cells) == 0
    with pytest.raises(InputError):
        answer[int(answer.instance[0])].path(-1)


@pytest.mark.parametrize("constraint", ["home in {own, rent}", "income >= 40", "age <= 50"])
def test_the_end_is_the_same_for_everyone_where_the_constraint_names_nobody(constraint):
    """Twins, instances with gaps and instances beyond the range of training included."""
    here = worlds.bank()
    instances = here.instances.copy()
    instances.loc[0, "income"] = 12_345.6
    instances.loc[1, "home"] = None
    instances.loc[2, "debt"] = pd.NA
    answer = here.explainer.explain(instances, constraints=constraint)
    ends = answer.at(1.0)
    assert (ends.tau == 1).all()
    assert not np.isnan(ends.cells).any()
    for number in set(ends.prototype.tolist()):
        assert len(np.unique(ends.cells[ends.prototype == number], axis=0)) == 1


def test_the_papers_recipe_takes_its_picks_literally():
    here = worlds.paper()
    answer = explained(here)
    grid = np.linspace(0, 1, 21)
    first, middle, last = answer.first(), answer.middle(), answer.last()
    for path in range(len(answer.instance)):
        good = np.flatnonzero(answer.ok[path, :21])
        if len(good):
            assert first.tau[path] == pytest.approx(grid[good[0]])
            assert middle.tau[path] == pytest.approx((first.tau[path] + 1) / 2)
    assert (last.tau == 1).all()
    assert first.ok.any()
    # Its paths begin at the reconstruction, not at the instance.
    own = answer.instances[answer.instance]
    assert answer.schema.changed(own, answer.cells[:, 0]).any(axis=1).mean() > 0.5
    rebuilt = answer.schema.frame(answer.cells[:, 0])
    wanted = [answer.target[instance] for instance in answer.instance]
    said = [s == w for s, w in zip(asked(here, rebuilt), wanted, strict=True)]
    assert (answer.valid[:, 0] == 1).tolist() == said


# --- targets ---------------------------------------------------------------------------------


def test_target_may_be_a_label_or_one_per_instance():
    here = worlds.seasons()
    for wanted in (0, "0", np.int64(0)):
        assert set(explained(here, wanted).target.tolist()) == {0}
    each = [i % 3 for i in range(30)]
    for series in (each, tuple(each), np.array(each), pl.Series(each), pd.Series(each, index=each)):
        answer = explained(here, series)
        assert answer.target.tolist() == each
        for instance in range(30):
            labels = {here.explainer.prototypes_[p].label for p in answer[instance].prototypes}
            assert labels == (
                set() if answer.label[instance] == each[instance] else {each[instance]}
            )


def test_any_other_label_will_do():
    here = worlds.seasons()
    answer = explained(here, "any-other")
    assert set(answer.status) == {"answered"}
    assert answer.summary["target"].to_list() == ["any-other"] * 30
    for one in answer:
        ends = {here.explainer.prototypes_[p].label for p in one.prototypes}
        assert ends == {0, 1, 2} - {one.label}
    first = answer.first()
    said = asked(here, first.rows)
    assert all(
        s != answer.label[instance] for s, instance in zip(said, first.instance, strict=True)
    )


class Almanac:
    """The seasons with probabilities: most for what it says, little for the one before."""

    classes_ = (0, 1, 2)

    def predict(self, frame):
        return worlds.season(frame)

    def predict_proba(self, frame):
        said = np.array(worlds.season(frame))
        table = np.full((len(said), 3), 0.05)
        table[np.arange(len(said)), said] = 0.7
        table[np.arange(len(said)), (said + 1) % 3] = 0.25
        return table


def test_the_probability_of_any_other_label_is_all_but_ones_own(tmp_path):
    here, almanac = worlds.seasons(), Almanac()
    answer = handed(here, almanac, tmp_path).explain(here.instances, target="any-other")
    for pick in (answer.first(), answer.last(), answer.at(0)):
        table = almanac.predict_proba(pick.rows)
        own = table[np.arange(len(pick)), worlds.codes(answer, answer.label[pick.instance])]
        np.testing.assert_allclose(pick.probability, 1 - own, atol=1e-6)
    assert check_picks(answer, 20) == len(answer.instance)
    assert (answer.prototype == -1).any()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (None, "the target must be named: one of 0, 1, 2"),
        (7, "never predicts 7; known labels: 0, 1, 2"),
        ([0, 1], "There are 2 targets for 30 instances"),
        ([None] * 30, "never predicts None"),
    ],
)
def test_a_target_that_cannot_be_is_refused(target, sentence):
    with pytest.raises(InputError, match=sentence):
        explained(worlds.seasons(), target)


def test_a_misspelt_target_is_guessed():
    with pytest.raises(InputError, match="Did you mean 'approved'"):
        explained(worlds.bank(), "aproved")


def test_people_who_have_the_target_are_left_in_peace():
    here = worlds.bank()
    answer = explained(here, "approved")
    said = asked(here, here.instances)
    assert [s == "already_target" for s in answer.status] == [s == "approved" for s in said]
    instance = said.index("approved")
    assert answer[instance].reason == "The classifier already predicts 'approved'."
    assert instance not in answer.instance
    assert instance not in answer.nearest().instance
    assert answer[instance].prototypes == ()


# --- instances of every kind --------------------------------------------------------------------


@pytest.fixture
def crowd() -> pd.DataFrame:
    instances = worlds.applicants(10, 7)
    instances["income"] = instances["income"].astype(float)
    instances["married"] = instances["married"].astype(object)
    instances.loc[0, "income"] = np.inf
    instances.loc[1, "income"] = 12_345.6
    instances.loc[2, "home"] = "castle"
    instances.loc[3, "debt"] = pd.NA
    instances.loc[4, "income"] = np.nan
    instances.loc[5, "married"] = None
    instances.loc[6, "home"] = None
    return instances


def test_odd_people_are_answered_and_impossible_ones_named(crowd):
    here = worlds.bank()
    answer = here.explainer.explain(crowd)
    assert answer.status == ("malformed", *["answered"] * 9)
    assert answer[0].reason == "Column 'income' holds an infinity in row 0. Use a number or none."
    assert answer[0].label is None
    assert answer.first().ok.all()
    assert answer.at(0).rows.loc[lambda r: r.home == "castle"].shape[0] == 3
    assert (answer.at(0).rows["income"] == 12_345.6).any()
    assert answer[1].row["income"] == 12_345.6
    assert answer[2].row["home"] == "castle"
    assert answer[3].row["debt"] is None
    # A missing cell may be filled on the way; the prototype has no gaps.
    ends = answer.at(1)
    assert not np.isnan(ends.cells).any()
    jsonschema.validate(answer.to_json(), json_schema())
    again = Explanation.from_json(json.loads(json.dumps(answer.to_json())))
    assert arrays(again) == arrays(answer)


def test_a_malformed_person_does_not_change_the_others(crowd):
    here = worlds.bank()
    with_one = here.explainer.explain(crowd)
    without = here.explainer.explain(crowd.iloc[1:])
    assert with_one.status[1:] == without.status
    np.testing.assert_array_equal(with_one.instance, without.instance + 1)
    np.testing.assert_allclose(with_one.first().cells, without.first().cells, atol=1e-3)


def test_extra_columns_and_another_order_do_not_matter():
    here = worlds.bank()
    shuffled = here.instances.assign(hobby="chess", weight=70.0)[
        ["hobby", *here.instances.columns[::-1], "weight"]
    ]
    answer = here.explainer.explain(shuffled)
    assert arrays(answer) == arrays(explained(here))
    assert answer.first().rows.columns.tolist() == here.instances.columns[::-1].tolist()


def test_a_misspelt_column_is_named():
    here = worlds.bank()
    with pytest.raises(InputError, match=r"lacks column 'income'\. Is it the one called 'incme'"):
        here.explainer.explain(here.instances.rename(columns={"income": "incme"}))


@everywhere
def test_nobody_gets_an_empty_answer(world, target):
    here = world()
    nobody = here.instances[:0]
    for detail in ("path", "picks"):
        answer = here.explainer.explain(
            nobody, target=target, search=Search(detail=detail, sparse=True)
        )
        assert len(answer) == 0
        assert len(answer.summary) == 0
        for pick in (answer.first(), answer.nearest(), answer.at(0.5), answer.sparse()):
            assert len(pick) == len(pick.rows) == len(pick.frame) == 0
        data = json.loads(json.dumps(answer.to_json()))
        jsonschema.validate(data, json_schema())
        assert len(Explanation.from_json(data).nearest()) == 0


def test_one_person_alone():
    here = worlds.bank()
    answer = here.explainer.explain(here.instances.iloc[[3]])
    assert len(answer) == 1
    assert answer.status == ("answered",)
    assert set(answer.first().instance.tolist()) == {0}
    everyone = explained(here)[3]
    assert answer[0].prototypes == everyone.prototypes


def test_a_table_that_is_none_is_refused():
    with pytest.raises(InputError, match="not a table"):
        worlds.bank().explainer.explain(7)


def strange_tables() -> dict[str, tuple]:
    """Tables at the edge of what can be learned, each with a classifier on it."""
    rng = np.random.default_rng(0)
    words = pd.DataFrame({"a": rng.choice(list("xyz"), 300), "b": rng.choice(list("pq"), 300)})
    towns = [f"town {i}" for i in rng.integers(0, 150, 500)]
    crowded = pd.DataFrame({"n": rng.normal(size=500), "town": towns})
    modern = pd.DataFrame(
        {
            "n": rng.normal(size=200),
            "s": pd.array(rng.choice(["u", "v", "w"], 200), dtype="string"),
            "t": pd.array(rng.choice([True, False, None], 200), dtype="boolean"),
            "constant": 3.0,
        },
        index=rng.integers(0, 9, 200),
    )
    night = rng.integers(0, 64, (200, 4, 4), dtype=np.uint8)
    day = night + 160 * rng.integers(0, 2, (200, 1, 1), dtype=np.uint8)
    return {
        "one number": (rng.normal(size=(200, 1)), lambda r: r[:, 0] > 0),
        "one word": (words[["a"]], lambda r: (r["a"] == "x").to_numpy()),
        "words only": (words, lambda r: ((r["a"] == "x") | (r["b"] == "p")).to_numpy()),
        "more towns than may be proposed": (crowded, lambda r: (r["n"] > 0).to_numpy()),
        "an index that is none": (modern, lambda r: (r["n"] > 0).to_numpy()),
        "two rows, again and again": (
            np.repeat([[0.0, 1.0], [1.0, 2.0]], 50, axis=0),
            lambda r: r[:, 0] > 0.5,
        ),
        "bytes": (day, lambda r: r[:, 2, 2] > 128),
    }


@pytest.mark.parametrize("name", strange_tables())
def test_strange_tables_are_explained_all_the_same(name, tmp_path):
    train, classifier = strange_tables()[name]
    explainer = Explainer(classifier, n_prototypes=2, recipe=QUICK, device="cpu").fit(train)
    answer = explainer.explain(train[:20])
    assert set(answer.status) == {"answered"}
    nearest = answer.nearest()
    said = np.asarray(classifier(nearest.rows)).tolist()
    assert said == [answer.target[instance] for instance in nearest.instance]
    explainer.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", classifier, device="cpu")
    assert arrays(again.explain(train[:20])) == arrays(answer)


def test_categories_too_rare_to_be_proposed_are_kept_but_never_proposed():
    train, classifier = strange_tables()["more towns than may be proposed"]
    explainer = Explainer(classifier, n_prototypes=2, recipe=QUICK, device="cpu").fit(train)
    town = explainer.schema_["town"]
    assert set(town.levels) == set(train["town"])
    assert len(town.categories) == 64
    rare_instances = train[train["town"].isin(town.extra)].head(10)
    answer = explainer.explain(rare_instances)
    assert answer.at(0).rows["town"].isin(town.extra).all()
    assert (answer.prototype == -1).any()
    with_one = answer[int(answer.instance[answer.prototype == -1][0])]
    for pick in (answer.first(), answer.last(), answer.nearest(), with_one.path(-1)):
        own = rare_instances["town"].to_numpy()[pick.instance]
        rows = pick.rows["town"].to_numpy()
        assert ((rows == own) | np.isin(rows, town.categories)).all()


def test_numbers_may_be_spelt_out():
    here = worlds.seasons()
    instances = pl.DataFrame(
        {"warmth": ["-3.5", "x", None, "1e3"], "rain": ["3", "4", "5", "6"], "wind": ["east"] * 4}
    )
    answer = here.explainer.explain(instances, target=2)
    assert answer.status[1] == "malformed"
    assert answer[1].reason == "Column 'warmth' holds 'x' in row 1, not a number."
    assert answer[0].row == {"warmth": -3.5, "rain": 3, "wind": "east"}


# --- the label among the features --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "agreement", "share", "warned"),
    [
        (("stay", "gone"), 1.0, 0.5, True),
        (("stay", "gone"), 0.8, 0.5, True),  # as a fair classifier agrees with the truth
        (("stay", "gone"), 0.6, 0.5, False),
        ((0, 1), 0.95, 0.5, True),
        ((0, 1), 0.8, 0.5, False),  # many a feature is 0 or 1
        ((False, True), 0.8, 0.5, False),
        ((0, 1, 2), 0.95, 0.5, True),  # read as numbers
        (("stay", "gone"), None, 0.03, False),  # two rare things agree by chance
    ],
)
def test_a_label_among_the_features_is_warned_of(words, agreement, share, warned):
    rng = np.random.default_rng(0)
    income = rng.permutation(np.linspace(0, 1, 400))
    code = (income < share).astype(int) + (len(words) > 2) * (income < share / 2)
    other = (code + 1) % len(words) if agreement is not None else (rng.random(400) < share) * 1
    known = np.where(rng.random(400) < (agreement or 0.0), code, other)
    table = pd.DataFrame({"income": income, "answer": [words[k] for k in known]})

    def classifier(frame):
        low = frame["income"].to_numpy() < share
        lower = (frame["income"].to_numpy() < share / 2) & (len(words) > 2)
        return [words[k] for k in low.astype(int) + lower]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Explainer(classifier, n_prototypes=1, recipe=QUICK, device="cpu").fit(table)
    said = [str(w.message) for w in told if "the classifier's labels" in str(w.message)]
    assert len(said) == warned
    assert not warned or said[0].startswith(
        "Column 'answer' has exactly the classifier's labels as"
    )


# --- labels with few rows --------------------------------------------------------------------


def test_a_rare_label_gets_fewer_clusters_and_the_rarest_none():
    explainer = worlds.rare().explainer
    assert explainer.classes_.tolist() == ["a", "b", "c"]
    assert [p.label for p in explainer.prototypes_] == ["a"] * 5 + ["b"]
    assert all(p.valid for p in explainer.prototypes_)


def test_people_of_a_label_without_clusters_are_answered():
    here = worlds.rare()
    answer = explained(here, "a")
    assert answer.label.tolist() == ["c"] * 3 + ["b"] * 7 + ["a"] * 4
    assert answer.status == ("answered",) * 10 + ("already_target",) * 4
    assert not np.isnan(answer.cells).any()
    to_b = explained(here, "b")
    assert to_b.status == ("answered",) * 3 + ("already_target",) * 7 + ("answered",) * 4


def test_the_rarest_label_cannot_be_a_target_and_that_is_said():
    with pytest.raises(InputError, match="no valid prototype of label 'c'"):
        explained(worlds.rare(), "c")
    with pytest.raises(InputError, match="too few training rows to draw from"):
        worlds.rare().explainer.sample("c", 3)


def test_one_in_a_hundred_is_enough():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(1000, 2))
    bar = np.sort(rows[:, 0])[-10]
    explainer = Explainer(lambda r: r[:, 0] >= bar, n_prototypes=5, recipe=QUICK).fit(rows)
    assert sum(p.label == 1 for p in explainer.prototypes_) == 1
    answer = explainer.explain(rows[:20], target=True)
    assert set(answer.status) <= {"answered", "already_target"}
    assert (answer.nearest().rows[:, 0] >= bar).all()


def test_a_label_alone_cannot_be_explained():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(InputError, match="gives all 60 training rows the label 1"):
        Explainer(lambda r: np.ones(len(r), dtype=int)).fit(rows)
    few = lambda r: r[:, 0] >= np.sort(rows[:, 0])[-3]  # noqa: E731
    with pytest.raises(InputError, match="Only one label has enough rows"):
        Explainer(few).fit(rows)


# --- classifiers that fail -------------------------------------------------------------------


class Moody:
    """Calculates postage, but has its days."""

    def __init__(self, refused=(), broken=False, answer=None):
        self.refused, self.broken, self.answer = set(refused), broken, answer

    def predict(self, rows):
        if self.broken or any(r["weight"] in self.refused for r in rows):
            raise KeyError("no such weight")
        return worlds.postage(rows) if self.answer is None else self.answer(rows)


@pytest.mark.parametrize("instance", [[2], [0], [4], [0, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4]])
def test_whom_the_classifier_refuses_is_malformed_and_costs_nobody_else(instance, tmp_path):
    instances = copy.deepcopy(worlds.post().instances[:5])
    for i in instance:
        instances[i]["weight"] = 777
    answer = handed(worlds.post(), Moody(refused={777}), tmp_path).explain(instances)
    assert [i for i, s in enumerate(answer.status) if s == "malformed"] == instance
    assert answer.status.count("answered") == 5 - len(instance)
    assert "raised KeyError when queried with 1 row: 'no such weight'" in answer[instance[0]].reason
    assert answer.first().ok.all()


@pytest.mark.parametrize("count", [1, 5])
def test_a_classifier_that_refuses_everyone_is_at_fault_itself(count, tmp_path):
    classifier = Moody()
    explainer = handed(worlds.post(), classifier, tmp_path)
    classifier.broken = True
    with pytest.raises(ClassifierError, match="raised KeyError"):
        explainer.explain(worlds.post().instances[:count])
    classifier.broken = False
    assert set(explainer.explain(worlds.post().instances[:count]).status) == {"answered"}


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (lambda rows: worlds.postage(rows)[1:], "returned 4 labels for 5 rows"),
        (lambda rows: [[0.1, 0.9]] * len(rows), "as if they were probabilities"),
        (lambda rows: [0.5] * len(rows), "a fraction, as a label"),
        (lambda rows: [None] * len(rows), "None as a label"),
        (lambda rows: ["fair"] * len(rows), "'fair', which it predicted for no training row"),
        (lambda rows: None, "for 5 rows"),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_classifiers_fault(reply, sentence, tmp_path):
    classifier = Moody()
    explainer = handed(worlds.post(), classifier, tmp_path)
    classifier.answer = reply
    with pytest.raises(ClassifierError, match=sentence):
        explainer.explain(worlds.post().instances[:5])


def test_a_label_unknown_to_training_makes_one_person_malformed(tmp_path):
    def reply(rows):
        return ["odd" if r["weight"] == 777 else worlds.postage([r])[0] for r in rows]

    instances = copy.deepcopy(worlds.post().instances[:4])
    instances[1]["weight"] = 777
    answer = handed(worlds.post(), Moody(answer=reply), tmp_path).explain(instances)
    assert answer.status == ("answered", "malformed", "answered", "answered")
    assert "'odd', which it predicted for no" in answer[1].reason


@pytest.mark.parametrize("classifier", [7, "model", None, Moody])
def test_what_is_no_classifier_is_refused(classifier):
    with pytest.raises(InputError, match=r"not a classifier"):
        Explainer(classifier).fit(worlds.post().train)


def test_a_failing_fit_leaves_nothing_behind():
    explainer = Explainer(Moody(broken=True))
    with pytest.raises(ClassifierError, match="raised KeyError"):
        explainer.fit(worlds.post().train)
    with pytest.raises(NotFittedError):
        explainer.explain(worlds.post().instances)


# --- constraints, costs, confidence ----------------------------------------------------------


def test_constraints_hold_on_every_good_row():
    here = worlds.bank()
    answer = explained(here, constraints=LIMITS)
    assert answer.constraints == tuple(LIMITS)
    for pick in (answer.first(), answer.middle(), answer.last(), answer.nearest()):
        rows, own = pick.rows, here.instances.iloc[pick.instance].reset_index(drop=True)
        changed = np.zeros(len(rows), dtype=int)
        for name in rows.columns:
            both_gone = rows[name].isna() & own[name].isna()
            equal = (rows[name].astype(object) == own[name].astype(object)) | both_gone
            changed += ~equal.to_numpy(dtype=bool)
        obeys = (
            (rows["age"] == own["age"])
            & (rows["income"] >= own["income"])
            & (rows["home"].isin(["own", "rent"]) | rows["home"].isna())  # missing is not known
            & (changed <= 3)
        )
        assert pick.feasible.tolist() == obeys.tolist()
        assert pick.changed.tolist() == changed.tolist()
        said = np.array(asked(here, rows))
        wanted = np.array([answer.target[instance] for instance in pick.instance])
        assert pick.valid.tolist() == (said == wanted).tolist()


def test_statuses_tell_the_impossible_from_the_not_found():
    here = worlds.bank()
    answer = explained(here, constraints=["fixed income", "income >= 30"])
    poor = (here.instances["income"] < 30).to_numpy()
    assert [s == "infeasible" for s in answer.status] == poor.tolist()
    instance = int(np.flatnonzero(poor)[0])
    assert answer[instance].reason == (
        "For this instance 'fixed income' and 'income >= 30' cannot hold together: no row is feasible."
    )
    first = answer.first()
    mine = first.where(first.instance == instance)
    assert len(mine)  # never hidden
    assert not mine.feasible.any()
    assert not answer.feasible[np.isin(answer.instance, np.flatnonzero(poor)), 1:].any()
    nothing = explained(here, constraints=["changes <= 0"])
    assert set(nothing.status) == {"none_found"}
    assert "and satisfies the constraints" in nothing[0].reason
    assert not nothing.first().valid.any()
    jsonschema.validate(nothing[0].explanation.to_json()["instances"][0], _part("instance"))


def _part(name: str) -> dict:
    whole = json_schema()
    return {"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]}


def test_one_constraint_alone_can_be_impossible_for_one_instance():
    here = worlds.bank()
    instances = here.instances.copy()
    instances.loc[0, "age"] = 79
    answer = here.explainer.explain(instances.head(2), constraints=["age >= original + 5"])
    assert answer.status[0] == "infeasible"
    assert answer[0].reason.startswith("For this instance 'age >= original + 5' cannot hold: ")


def test_a_constraint_that_nobody_can_keep_is_refused():
    with pytest.raises(InputError, match="can never hold together"):
        explained(worlds.bank(), constraints=["income <= 10", "income >= 30"])


def test_one_constraint_need_not_be_a_list():
    here = worlds.bank()
    alone = explained(here, constraints="fixed age")
    assert arrays(alone) == arrays(explained(here, constraints=["fixed age"]))
    assert alone.constraints == ("fixed age",)


def test_rules_hold_in_every_call_and_are_checked_at_fit():
    train = worlds.letters(300, 0)
    explainer = Explainer(
        worlds.postage, n_prototypes=1, recipe=QUICK, rules=["fixed stamp"], device="cpu"
    ).fit(train)
    instances = worlds.letters(12, 3)
    for constraints in ([], ["speed >= original"]):
        answer = explainer.explain(instances, constraints=constraints)
        assert answer.constraints == ("fixed stamp", *constraints)
        for row, instance in zip(answer.nearest().rows, answer.nearest().instance, strict=True):
            assert row["stamp"] == instances[instance]["stamp"]
    with pytest.raises(InputError, match="Did you mean 'stamp'"):
        Explainer(worlds.postage, rules=["fixed stmp"]).fit(train)


def test_a_constraint_may_be_a_function():
    light = Custom("light", lambda x: x[:, 0] - 250, lambda x: x[:, 0] <= 250)
    here = worlds.post()
    answer = explained(here, "dear", constraints=[light])
    weights = np.array([r["weight"] for r in answer.last().rows])
    assert answer.last().feasible.tolist() == (weights <= 250).tolist()
    assert answer.constraints == ("custom: light",)


def test_costs_weigh_the_distance_and_move_the_nearest():
    here = worlds.bank()
    costs = {"income": 50.0, "grade": 0.0}
    answer = explained(here, costs=costs)
    nearest = answer.nearest()
    expected = answer.schema.distance(answer.instances[nearest.instance], nearest.cells, costs)
    np.testing.assert_allclose(nearest.distance, expected)
    plain = explained(here).nearest()
    income = answer.schema.index("income")
    moved = [
        np.abs(pick.cells[:, income] - pick.instances[pick.instance, income]).mean()
        for pick in (nearest, plain)
    ]
    assert moved[0] < moved[1]


def test_an_infinite_cost_holds_a_column():
    here = worlds.bank()
    answer = explained(here, costs={"age": np.inf})
    good = answer.first().where(answer.first().ok)
    assert len(good)
    np.testing.assert_array_equal(good.cells[:, 0], good.instances[good.instance, 0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"costs": {"incme": 2.0}}, "Did you mean 'income'"),
        ({"costs": {"income": -1.0}}, "must be zero or more"),
        ({"costs": {"income": np.nan}}, "must be zero or more"),
        ({"steps": 1}, "whole number from 2 on"),
        ({"steps": 2.5}, "whole number from 2 on"),
        ({"detail": "all"}, "'path' or 'picks'"),
        ({"confidence": 0}, "probability"),
        ({"confidence": 1.1}, "probability"),
        ({"constraints": ["incme > 3"]}, "Did you mean 'income'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        explained(worlds.bank(), **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_prototypes": 0}, "whole number from 1 on"),
        ({"n_prototypes": 2.0}, "whole number from 1 on"),
        ({"recipe": "papre"}, "There are: default, paper"),
        ({"device": "abacus"}, "There is no device 'abacus'"),
        ({"schema": {"wieght": "continuous"}}, "Did you mean 'weight'"),
    ],
)
def test_a_fit_that_cannot_work_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Explainer(worlds.postage, **settings).fit(worlds.post().train)


def test_confidence_is_the_probability_every_answer_has():
    here = worlds.bank()
    answer = explained(here, confidence=0.9)
    first = answer.first()
    assert first.ok.any()
    own = here.classifier.predict_proba(first.rows)[
        np.arange(len(first)), worlds.codes(answer, answer.target[first.instance])
    ]
    assert first.valid.tolist() == (own >= 0.9).tolist()
    assert check_picks(answer, 20) > 0


def test_confidence_nobody_reaches_is_said():
    answer = explained(worlds.bank(), confidence=1.0)
    assert set(answer.status) == {"none_found"}
    assert "with probability 1" in answer[0].reason


def test_confidence_needs_probabilities():
    with pytest.raises(InputError, match="needs a classifier with predict_proba"):
        explained(worlds.post(), confidence=0.9)


# --- less detail, fewer features -------------------------------------------------------------


@pytest.mark.parametrize("constraints", [[], LIMITS], ids=["free", "limited"])
@pytest.mark.parametrize("stable", [True, False])
def test_picks_alone_ask_less_and_keep_their_word(constraints, stable):
    here = worlds.bank()
    whole = explained(here, constraints=constraints, stable=stable)
    picks = explained(here, constraints=constraints, stable=stable, detail="picks")
    assert picks.n_queries < whole.n_queries
    assert picks.status == whole.status
    np.testing.assert_array_equal(picks.instance, whole.instance)
    assert picks.first().ok.tolist() == whole.first().ok.tolist()
    np.testing.assert_array_equal(picks.last().cells, whole.last().cells)
    np.testing.assert_array_equal(picks.prototype, whole.prototype)
    ends = [picked_rows(answer, "last").cells for answer in (picks, whole)]
    np.testing.assert_array_equal(*ends)  # of stand-ins too
    first = picked_rows(picks, "first")
    for path in np.flatnonzero(first.ok):
        # The step before first was asked, and is not good.
        tau, ok = picks.tau[path], picks.ok[path]
        before = tau < first.tau[path]
        assert before.any()
        assert not ok[before][tau[before].argmax()]
        assert (picks.valid[path] >= 0).all()
    first = picks.first()
    said = np.array(asked(here, first.rows))
    wanted = np.array([picks.target[instance] for instance in first.instance])
    assert first.valid.tolist() == (said == wanted).tolist()


def test_the_sparse_row_changes_less_and_is_still_good():
    here = worlds.bank()
    answer = explained(here, constraints=["fixed age"], sparse=True)
    sparse, nearest = answer.sparse(), answer.nearest()
    assert sparse.instance.tolist() == nearest.instance.tolist()
    good = sparse.ok
    assert good.mean() > 0.8
    said = np.array(asked(here, sparse.rows))
    wanted = np.array([answer.target[instance] for instance in sparse.instance])
    assert sparse.valid.tolist() == (said == wanted).tolist()
    assert (sparse.cells[good][:, 0] == sparse.instances[sparse.instance[good], 0]).all()
    # On every path it is what is left of the nearest row: each cell is that row's or the instance's.
    own = answer.instances[answer.instance]
    good_paths = answer.ok.any(axis=1)
    assert good_paths.any()
    for path in np.flatnonzero(good_paths):
        cost = np.where(
            answer.ok[path] & ~np.isnan(answer.tau[path]), answer.distance[path], np.inf
        )
        nearest_row = answer.cells[path, cost.argmin()]
        left = answer.cells[path, answer.picked["sparse"][path]]
        changed = answer.schema.changed(left, own[path])
        assert not (answer.schema.changed(left, nearest_row) & changed).any()
        assert changed.sum() <= answer.schema.changed(nearest_row, own[path]).sum()
    assert (sparse.distance <= nearest.distance).all()
    assert sparse.changed.sum() < nearest.changed.sum()
    one = answer[int(sparse.instance[good][0])]
    told = one.changes(int(sparse.prototype[good][0]), pick="sparse")
    assert len(told) == sparse.changed[good][0]
    assert ((told["from_tau"] > 0) & (told["from_tau"] <= 1)).all()
    assert check_picks(answer, 20) > 0
    jsonschema.validate(answer.to_json()["instances"][0], _part("instance"))


def test_sparse_is_there_only_where_asked_for():
    with pytest.raises(InputError, match="sparse=True"):
        explained(worlds.bank()).sparse()


# --- a pure function -------------------------------------------------------------------------


@everywhere
def test_the_same_call_answers_bit_for_bit_the_same(world, target):
    assert arrays(explained(world(), target)) == arrays(explained(world(), target))


def test_an_argument_of_one_call_never_leaks_into_the_next():
    here = worlds.bank()
    before = arrays(explained(here))
    explained(here, "approved", constraints=LIMITS, costs={"income": 9.0, "age": np.inf}, steps=5)
    explained(here, confidence=0.8, detail="picks", stable=False, sparse=True)
    odd = here.instances.copy()
    odd.loc[0, "home"] = "castle"
    here.explainer.explain(odd)
    assert arrays(explained(here)) == before
    assert here.explainer.schema_["home"].extra == ()
    assert here.explainer.rules == ()


def test_neither_people_nor_explainer_are_touched():
    here = worlds.bank()
    instances, weights = here.instances.copy(deep=True), _weights(here.explainer)
    explained(here, constraints=LIMITS, sparse=True)
    here.explainer.sample("approved", 20, verified=True)
    pd.testing.assert_frame_equal(here.instances, instances)
    assert _weights(here.explainer) == weights
    image = worlds.digits()
    copied = image.instances.copy()
    explained(image, 3)
    np.testing.assert_array_equal(image.instances, copied)
    records = copy.deepcopy(worlds.post().instances)
    explained(worlds.post())
    assert worlds.post().instances == records


def _weights(explainer: Explainer) -> list:
    fitted = explainer.fitted_
    state = fitted.decoder.model.state_dict()
    return [
        {name: value.numpy().tobytes() for name, value in state.items()},
        [(p.cells.tobytes(), p.z.tobytes(), p.valid, p.probability) for p in fitted.prototypes],
        fitted.schema.to_json(),
        explainer.report_.to_json(),
    ]


def test_eight_threads_get_the_same_answers():
    here = worlds.bank()
    calls = [
        {},
        {"target": "approved"},
        {"constraints": LIMITS},
        {"costs": {"income": 5.0}, "sparse": True},
    ]
    alone = [arrays(explained(here, **call)) for call in calls]
    barrier = threading.Barrier(8)

    def ask(k: int) -> dict[str, bytes]:
        barrier.wait()
        return arrays(explained(here, **calls[k % 4]))

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    for k, found in enumerate(together):
        assert found == alone[k % 4]


def test_a_large_query_is_walked_in_parts(monkeypatch):
    here = worlds.bank()
    whole = explained(here)
    monkeypatch.setattr(searching, "ROWS", 1000)
    seen = []
    parts = here.explainer.explain(here.instances, progress=lambda *done: seen.append(done))
    assert len(seen) == 5
    assert seen[-1] == ("explaining", 40, 40)
    assert parts.status == whole.status
    np.testing.assert_array_equal(parts.instance, whole.instance)
    np.testing.assert_array_equal(parts.prototype, whole.prototype)
    same = np.isclose(parts.first().cells, whole.first().cells, atol=1e-6, equal_nan=True)
    assert same.mean() > 0.99  # the products of other batches may round otherwise


def test_rows_asked_are_counted():
    here = worlds.post()
    count = 0

    def counting(rows):
        nonlocal count
        count += len(rows)
        return worlds.postage(rows)

    explainer = Explainer(counting, n_prototypes=1, recipe=QUICK, device="cpu").fit(here.train)
    count = 0
    answer = explainer.explain(here.instances)
    assert answer.n_queries == count > len(here.instances)
    assert explainer.report_ is explainer.report_


def test_the_same_seed_fits_the_same_explainer():
    train = worlds.letters(200, 0)
    made = [
        Explainer(
            worlds.postage, n_prototypes=1, recipe=QUICK, random_state=seed, device="cpu"
        ).fit(train)
        for seed in (3, 3, 4)
    ]
    weights = [repr(_weights(e)[:3]) for e in made]  # NaN is not equal to itself
    assert weights[0] == weights[1] != weights[2]


def test_training_reports_its_progress():
    seen = []
    explainer = Explainer(worlds.postage, n_prototypes=1, recipe=QUICK, device="cpu")
    assert explainer.fit(worlds.letters(200, 0), progress=lambda *x: seen.append(x)) is explainer
    assert seen[-1][0] == "training"
    assert seen[-1][1] == seen[-1][2] > 0
    assert [x[1] for x in seen] == sorted(x[1] for x in seen)


# --- before fit ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.explain([]),
        lambda e: e.counterfactuals([]),
        lambda e: e.sample("yes", 1),
        lambda e: e.save("nowhere.lapace"),
        lambda e: e.classes_,
        lambda e: e.schema_,
        lambda e: e.prototypes_,
        lambda e: e.report_,
        lambda e: e.history_,
        lambda e: e.latent_map(),
    ],
)
def test_fit_comes_first(use):
    with pytest.raises(NotFittedError, match=r"Call fit\(X\) first"):
        use(Explainer(worlds.postage))


def test_the_constructor_only_keeps_its_arguments():
    explainer = Explainer(
        "anything", n_prototypes=-3, recipe="nonsense", rules=["x"], device="abacus"
    )
    assert (explainer.classifier, explainer.n_prototypes, explainer.recipe) == (
        "anything",
        -3,
        "nonsense",
    )
    assert [name for name in vars(explainer) if name.endswith("_")] == []


# --- prototypes the classifier refuses -------------------------------------------------------


def islands() -> tuple[np.ndarray, object]:
    """One label in two places; on the second the classifier knows the training rows alone."""
    rng = np.random.default_rng(0)
    sea = rng.uniform(-4, 4, (300, 2))
    solid = rng.normal((10, 10), 0.5, (100, 2))
    mirage = rng.normal((-10, 10), 0.5, (100, 2))
    rows = np.concatenate([sea, solid, mirage])
    seen = {row.tobytes() for row in mirage}

    def lookout(points):
        on_land = (points > 5).all(axis=1)
        dreamt = [row.tobytes() in seen for row in np.ascontiguousarray(points)]
        return np.where(on_land | dreamt, "land", "sea")

    return rows, lookout


def test_a_centroid_the_classifier_refuses_is_named_and_never_used():
    rows, lookout = islands()
    with pytest.warns(CentroidWarning, match=r"cluster \d \(class 'land'\) is not labelled 'land'"):
        explainer = Explainer(lookout, n_prototypes=2, recipe=QUICK, device="cpu").fit(rows)
    land = [p for p in explainer.prototypes_ if p.label == "land"]
    assert sorted(p.valid for p in land) == [False, True]
    refused = next(p for p in land if not p.valid)
    assert refused.note.startswith("dropped")
    answer = explainer.explain(rows[:10], target="land")
    assert refused.number not in answer.prototype
    assert set(answer.status) == {"answered"}
    assert lookout(answer.last().rows).tolist() == ["land"] * len(answer.instance)


def test_a_label_whose_every_centroid_is_refused_cannot_be_learned():
    rows = np.random.default_rng(0).normal(size=(200, 2))
    seen = {row.tobytes() for row in rows[:50]}

    def memory(points):
        return [row.tobytes() in seen for row in np.ascontiguousarray(points)]

    with (
        pytest.warns(CentroidWarning),
        pytest.raises(InputError, match="No prototype of class True is labelled True"),
    ):
        Explainer(memory, n_prototypes=2, recipe=QUICK).fit(rows)


def test_the_papers_recipe_walks_to_a_refused_centroid_but_says_so():
    rows, lookout = islands()
    with pytest.warns(CentroidWarning, match="is not labelled"):
        explainer = Explainer(
            lookout, n_prototypes=2, recipe=worlds.QUICK_PAPER, device="cpu", random_state=1
        ).fit(rows)
    assert not all(p.valid for p in explainer.prototypes_)


# --- samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world", [worlds.bank, worlds.seasons, worlds.digits], ids=lambda w: w.__name__
)
def test_verified_samples_have_their_label(world):
    here = world()
    label = here.explainer.classes_[1]
    rows = here.explainer.sample(label, 60, verified=True)
    assert type(rows) is type(here.train)
    assert len(rows) == 60
    assert set(asked(here, rows)) == {label}


def test_samples_look_like_the_table_and_follow_their_seed():
    here = worlds.bank()
    one, same, other = (here.explainer.sample("refused", 50, random_state=s) for s in (1, 1, 2))
    pd.testing.assert_frame_equal(one, same)
    assert not one.equals(other)
    assert one.dtypes.to_dict() == here.train.dtypes.to_dict()
    assert set(one["home"].dropna()) <= set(worlds.HOMES)
    assert one["income"].between(here.train["income"].min(), here.train["income"].max()).all()
    assert len(here.explainer.sample("refused", 0)) == 0


def test_samples_that_cannot_be_verified_are_refused(tmp_path):
    class Turncoat:
        strict = False

        def predict(self, rows):
            return ["cheap"] * len(rows) if self.strict else worlds.postage(rows)

    classifier = Turncoat()
    explainer = handed(worlds.post(), classifier, tmp_path)
    classifier.strict = True
    with pytest.raises(InputError, match="20 of 20 rows are still not labelled 'dear'"):
        explainer.sample("dear", 20, verified=True)
    assert len(explainer.sample("dear", 20)) == 20


@pytest.mark.parametrize("count", [-1, 2.5, "3", None])
def test_a_number_of_samples_is_a_number(count):
    with pytest.raises(InputError, match="whole number from 0 on"):
        worlds.bank().explainer.sample("approved", count)


# --- the protocol of baselines ---------------------------------------------------------------


@pytest.mark.parametrize("pick", ["first", "middle", "last", "nearest", "sparse"])
def test_counterfactuals_are_one_of_the_picks(pick):
    here = worlds.post()
    found = here.explainer.counterfactuals(here.instances, target="dear", pick=pick)
    expected = getattr(explained(here, "dear", sparse=True), pick)()
    np.testing.assert_array_equal(found.cells, expected.cells)
    assert found.ok.all()


def test_there_is_no_other_pick():
    with pytest.raises(InputError, match="no pick 'best'"):
        worlds.post().explainer.counterfactuals(worlds.post().instances, pick="best")


# --- what an instance reads ---------------------------------------------------------------------


def test_changes_tell_from_where_on_a_feature_stays_changed():
    answer = explained(worlds.bank())
    instance = answer[0]
    path = instance.path()
    index = int(np.flatnonzero((answer.instance == 0) & (answer.prototype == path.prototype[0]))[0])
    first = answer.first()
    table = instance.changes()
    names = list(answer.schema.names)
    different = answer.schema.changed(answer.instances[0], first.cells[index])
    assert table["feature"].tolist() == [n for n, d in zip(names, different, strict=True) if d]
    for line in table.to_dict("records"):
        i = names.index(line["feature"])
        feature = answer.schema.features[i]
        assert line["before"] == feature.text(answer.instances[0, i])
        assert line["after"] == feature.text(first.cells[index, i])
        moved = answer.schema.changed(answer.instances[:1], path.cells)[:, i]
        on_the_way = (path.tau >= line["from_tau"]) & (path.tau <= first.tau[index])
        assert moved[on_the_way].all()
        before = path.tau < line["from_tau"]
        assert not moved[before][-1]


def test_a_path_goes_from_the_person_to_the_prototype():
    here = worlds.bank()
    instance = explained(here)[2]
    for number in instance.prototypes:
        path = instance.path(number)
        assert path.tau[0] == 0
        assert path.tau[-1] == 1
        assert (np.diff(path.tau) >= 0).all()
        assert len(path) == 23
        np.testing.assert_array_equal(path.cells[0], path.instances[2])
        np.testing.assert_array_equal(path.cells[-1], here.explainer.prototypes_[number].cells)
        assert list(path.frame.columns[-6:]) == list(here.instances.columns)


def test_the_library_is_silent(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Explainer(worlds.postage, n_prototypes=1, recipe=QUICK, device="cpu").fit(
            worlds.letters(200, 0)
        )
        explained(worlds.post())
    assert capfd.readouterr() == ("", "")


# --- found by strangers ------------------------------------------------------------------------


class Skittish:
    """A classifier that raises where nobody stands, only on rows a path passes."""

    def __init__(self, model, least, most) -> None:
        self.model, self.least, self.most = model, least, most

    def predict(self, frame):
        if ((frame["income"] > self.least) & (frame["income"] < self.most)).any():
            raise ValueError("no such income")
        return self.model.predict(frame)


def test_a_row_the_classifier_raises_on_along_a_path_costs_nobody_else(tmp_path):
    world = worlds.bank()
    target = "approved"
    first = explained(world, target).first()
    least, most = np.quantile(first.cells[:, 1], [0.5, 0.52])
    rows = world.instances["income"]
    world_instances = world.instances[(rows <= least) | (rows >= most)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        skittish = handed(world, Skittish(world.classifier, least, most), tmp_path)
    answer = skittish.explain(world_instances, target=target)
    assert "answered" in answer.status
    good = answer.first().where(answer.first().ok)
    assert len(good)
    assert not ((good.cells[:, 1] > least) & (good.cells[:, 1] < most)).any()


def test_density_is_that_of_the_row_itself():
    world = worlds.bank()
    answer = explained(world, "approved", constraints=["changes <= 2"], sparse=True)
    decoder = world.explainer.fitted_.decoder
    for pick in (answer.first(), answer.last(), answer.sparse()):
        label = np.full(len(pick), world.explainer.classes_.tolist().index("approved"))
        own = decoder.density(pick.schema, pick.cells, label)
        np.testing.assert_allclose(pick.density, own)


def test_clusters_do_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(0)
    rows = [{"x": 0.0, "y": 0.0}] * 2500
    rows += [{"x": float(a), "y": float(b)} for a, b in rng.normal(5, 1, (500, 2)).round(2)]
    rows += [{"x": float(a), "y": float(b)} for a, b in rng.normal(-5, 1, (500, 2)).round(2)]

    def side(table):
        return ["left" if row["x"] < -1 else "right" for row in table]

    found = Explainer(side, n_prototypes=3, recipe=QUICK, device="cpu").fit(rows)
    assert sorted(p.code for p in found.prototypes_) == [0, 0, 0, 1, 1, 1]


def test_whoever_has_the_label_without_the_confidence_is_led_to_it():
    world = worlds.bank()
    plain = explained(world, "approved")
    column = list(world.classifier.classes_).index("approved")
    sure = world.classifier.predict_proba(world.instances)[:, column]
    level = float(np.median(sure[[s == "already_target" for s in plain.status]]))
    answer = explained(world, "approved", confidence=level)
    for status, before, p in zip(answer.status, plain.status, sure, strict=True):
        if before == "already_target":
            assert (status == "already_target") == (p >= level)
    good = answer.first().where(answer.first().ok)
    assert (good.probability >= level).all()


def test_a_label_the_model_knows_but_never_gives_has_no_prototype_and_no_harm():
    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.normal(size=(400, 2)).round(2), columns=["a", "b"])

    class Three:
        classes_ = np.array(["no", "review", "yes"])

        def predict(self, frame):
            score = frame["a"] + frame["b"]
            seldom = (score > 0.4999) & (score < 0.49999)  # between two steps of the lattice
            return np.where(seldom, "review", np.where(score > 0.5, "yes", "no"))

    found = Explainer(Three(), n_prototypes=2, recipe=QUICK, device="cpu").fit(train)
    assert found.classes_.tolist() == ["no", "review", "yes"]
    assert {p.label for p in found.prototypes_} == {"no", "yes"}
    assert any("review" in warning for warning in found.report_.warnings)
    with pytest.raises(InputError, match="no valid prototype of label 'review'"):
        found.explain(train.head(2), target="review")


@pytest.mark.parametrize(
    "settings",
    [
        {"random_state": "x"}, {"random_state": -1}, {"random_state": 1.5}, {"random_state": True}, {"random_state": 2**70},
        {"n_latent": 0}, {"n_latent": -1}, {"n_latent": 2.5}, {"n_prototypes": True}, {"rules": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_of_the_explainer_that_cannot_work_gets_a_sentence(settings):
    world = worlds.bank()
    name = "Constraints" if "rules" in settings else next(iter(settings))
    with pytest.raises(InputError, match=name):
        Explainer(world.classifier, device="cpu", **settings).fit(world.train)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"confidence": "x"}, "confidence"), ({"sparse": None}, "sparse"),
        ({"stable": 1}, "stable"),
        ({"costs": 3}, "costs"), ({"costs": {"age": "x"}}, "cost of 'age'"),
        ({"costs": {"age": None}}, "cost of 'age'"), ({"constraints": {"age": 3}}, "Constraints"),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_of_a_question_that_cannot_work_gets_a_sentence(settings, word):
    with pytest.raises(InputError, match=word):
        explained(worlds.bank(), "approved", **settings)


def test_numpy_whole_numbers_are_whole_numbers():
    answer = explained(worlds.bank(), "approved", steps=np.int64(5))
    assert answer.tau.shape[1] == 5 + 3


def test_a_limit_only_some_person_could_keep_is_decided_person_by_instance():
    world = worlds.bank()
    instances = world.instances.head(2).assign(age=[85, 30])
    with pytest.raises(InputError, match="can never hold"):
        world.explainer.explain(world.instances, target="approved", constraints=["age >= 84"])
    answer = world.explainer.explain(
        instances, target="approved", constraints=["age >= 84", "fixed age"]
    )
    assert answer.status[1] in ("infeasible", "already_target")
    assert answer.status[0] != "infeasible"


def test_what_is_typed_into_a_notebook_prints_in_a_line():
    world = worlds.bank()
    answer = explained(world, "approved")
    for thing in (answer, answer.first(), answer[0], world.explainer, world.explainer.schema_):
        assert len(repr(thing)) < 500
    assert repr(Explainer(world.classifier)).endswith("not fitted")
    assert f"{len(answer.first())} of" in repr(answer.first())


def test_a_path_shows_no_step_twice():
    world = worlds.bank()
    for detail in ("path", "picks"):
        answer = explained(world, "approved", detail=detail)
        instance = next(p for p in answer if p.status == "answered")
        for prototype in instance.prototypes:
            assert (np.diff(instance.path(prototype).tau) > 0).all()


def test_what_changes_can_be_read_of_the_one_answer_picks_too():
    world = worlds.bank()
    answer = explained(world, "approved", sparse=True)
    for pick, rows in (("nearest", answer.nearest()), ("sparse", answer.sparse())):
        good = rows.where(rows.ok)
        for instance, changed in zip(good.instance, good.changed, strict=True):
            assert len(answer[int(instance)].changes(pick=pick)) == changed


# --- identifiers and slices ------------------------------------------------------------------


def test_the_index_of_the_instances_is_kept():
    here = worlds.bank()
    index = pd.Index([f"c{i}" for i in range(len(here.instances))], name="customer")
    plain = explained(here)
    named = here.explainer.explain(here.instances.set_axis(index))
    assert named.ids == tuple(index)
    assert named.summary.index.equals(index)
    assert named.first().rows.index.tolist() == [index[i] for i in named.first().instance]
    np.testing.assert_array_equal(named.cells, plain.cells)
    assert repr(named[3]).startswith("Instance c3: ")


def test_an_id_column_is_kept_and_no_feature():
    here = worlds.seasons()
    ids = [2**60 + i for i in range(len(here.instances))]
    table = here.instances.with_columns(id=pl.Series(ids))
    answer = here.explainer.explain(table, target=2)
    assert answer.summary["id"].to_list() == ids
    assert answer.nearest().frame.columns[0] == "id"
    assert "id" not in answer.nearest().rows.columns
    again = Explanation.from_json(json.loads(json.dumps(answer.to_json())))
    assert again == answer


def test_a_slice_is_what_explaining_those_instances_gives():
    here = worlds.bank()
    whole, part = explained(here), here.explainer.explain(here.instances.iloc[4:9])
    some = whole[4:9]
    assert some.status == part.status
    assert some.label.tolist() == part.label.tolist()
    np.testing.assert_array_equal(some.instance, part.instance)
    np.testing.assert_allclose(some.tau, part.tau)
