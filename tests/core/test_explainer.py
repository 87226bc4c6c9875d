"""Explainer: every kind of table, label, classifier and instance; picks by their definition."""

from __future__ import annotations

import copy
import io
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from test_paths import check_picks as check_definition

from lapace import (
    CentroidWarning,
    ClassifierError,
    Explainer,
    Explanation,
    InputError,
    NotFittedError,
    Search,
    progress,
)
from lapace.constraints import projection
from lapace.constraints.program import Solution
from lapace.explainer import search as search_module
from lapace.explainer.fit import standardised
from lapace.relations import warn_of_leaks
from lapace.result import PICKS, Counterfactuals, json_schema
from lapace.schema import Schema
from tests import worlds
from tests.worlds import CONSTRAINTS, World, predicted, quick

each_world = worlds.each(
    (worlds.bank, None),
    (worlds.seasons, 2),
    (worlds.digits, 3),
    (worlds.signs, None),
    (worlds.shop, None),
    (worlds.post, None),
    (worlds.rare, "a"),
)


def with_classifier(world: World, classifier, tmp_path) -> Explainer:
    """The same explainer with another classifier."""
    world.explainer.save(tmp_path / "explainer.lapace")
    return Explainer.load(tmp_path / "explainer.lapace", classifier, device="cpu")


def with_template(explanation: Explanation, template) -> Explanation:
    """The same explanation of instances that came in another kind of frame."""
    minimal = {k: replace(rows, template=template) for k, rows in explanation.minimal.items()}
    return replace(explanation, template=template, minimal=minimal)


def picks_of(explanation: Explanation, names: str) -> list[Counterfactuals]:
    """Picks by name."""
    return [getattr(explanation, name)() for name in names.split()]


# --- every kind of table, label and classifier -----------------------------------------------


@each_world
def test_every_instance_gets_counterfactuals_that_are_ok_and_of_the_instances_type(world, target):
    here = world()
    explanation = worlds.explained(here, target)
    assert set(explanation.status) <= {"answered", "already_target"}
    assert explanation.status.count("answered") >= len(explanation) / 3
    for pick in picks_of(explanation, "first middle last nearest"):
        assert pick.ok.all()
        assert not np.isnan(pick.distance).any()
        assert ((pick.density >= 0) & (pick.density <= 1)).all()
    rows = explanation.first().rows
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


@each_world
def test_valid_of_every_stored_step_is_what_the_classifier_predicts(world, target):
    here = world()
    explanation = worlds.explained(here, target)
    _, steps, columns = explanation.cells.shape
    flat = explanation.cells.reshape(-1, columns)
    labels = predicted(here, explanation.schema.frame(flat))  # in the training table's frame kind
    wanted = np.repeat([explanation.target[instance] for instance in explanation.instance], steps)
    truth = np.array([s == w for s, w in zip(labels, wanted.tolist(), strict=True)])
    np.testing.assert_array_equal(explanation.valid.ravel() == 1, truth)
    assert explanation.feasible.all()


@each_world
def test_step_zero_is_the_instance_and_the_last_step_the_prototype(world, target):
    here = world()
    explanation = worlds.explained(here, target)
    original = explanation.instances[explanation.instance]
    np.testing.assert_array_equal(explanation.cells[:, 0], original)
    for step in (0, 3, 21):
        expected = explanation.schema.distance(original, explanation.cells[:, step])
        np.testing.assert_allclose(explanation.distance[:, step], expected)
    ends = {p.number: p.cells for p in here.explainer.prototypes_}
    last = explanation.last()
    assert (last.tau == 1).all()
    for row, number in zip(last.cells, last.prototype, strict=True):
        np.testing.assert_array_equal(row, ends[number])


@pytest.mark.parametrize(
    "world", [worlds.bank, worlds.signs, worlds.shop], ids=lambda w: w.__name__
)
def test_probability_is_the_classifiers(world):
    here = world()
    explanation = worlds.explained(here)
    assert not np.isnan(explanation.probability).any()
    for pick in (explanation.first(), explanation.middle(), explanation.last(), explanation.at(0)):
        table = here.classifier.predict_proba(pick.rows)
        wanted = worlds.codes(explanation, explanation.target[pick.instance])
        expected = table[np.arange(len(pick)), wanted]
        np.testing.assert_allclose(pick.probability, expected, atol=1e-6)


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas, "records"])
def test_instances_may_come_in_another_kind_of_frame(convert):
    here = worlds.bank()
    plain = here.instances.assign(grade=here.instances["grade"].astype(str))
    if convert == "records":
        instances = json.loads(plain.to_json(orient="records"))
    else:
        instances = convert(plain)
    explanation = here.explainer.explain(instances)
    assert type(explanation.first().rows) is type(instances)
    expected = worlds.explained(here)
    assert with_template(explanation, expected.template) == expected


# --- the meaning of picks, from the stored arrays --------------------------------------------


class Picked(NamedTuple):
    """One step of every path."""

    tau: np.ndarray
    cells: np.ndarray
    ok: np.ndarray


def picked_rows(explanation: Explanation, pick: str) -> Picked:
    paths, steps = np.arange(len(explanation.instance)), explanation.picked[pick]
    return Picked(*(a[paths, steps] for a in (explanation.tau, explanation.cells, explanation.ok)))


def check_picks(explanation: Explanation, steps: int, stable: bool = True) -> int:
    """What is returned is what is stored, and that by definition; counts paths with an ok step."""
    for name in ("first", "middle", "last"):
        pick = getattr(explanation, name)()
        assert pick.instance.tolist() == explanation.instance.tolist()
        np.testing.assert_array_equal(pick.cells, picked_rows(explanation, name).cells)
    return check_definition(explanation.tau, explanation.ok, explanation.picked, steps, stable)


@each_world
def test_picks_follow_their_definition(world, target):
    explanation = worlds.explained(world(), target, steps=12)
    assert check_picks(explanation, 12) == len(explanation.instance) > 0


def test_picks_follow_their_definition_under_constraints_stable_or_not():
    assert check_picks(worlds.explained(worlds.bank(), constraints=CONSTRAINTS), 20) > 0
    explanation = worlds.explained(worlds.bank(), constraints=CONSTRAINTS, stable=False)
    assert check_picks(explanation, 20, stable=False) > 0
    stable = worlds.explained(worlds.bank(), constraints=CONSTRAINTS)
    earliest, last_run = picked_rows(explanation, "first"), picked_rows(stable, "first")
    assert (earliest.tau[earliest.ok] <= last_run.tau[earliest.ok]).all()


def test_first_is_refined_to_an_eighth_of_a_step():
    """A grid eight times as fine has the same row at that tau, and no ok row just before it."""
    here = worlds.signs()
    instances = here.instances[:6]
    coarse = here.explainer.explain(instances, search=Search(steps=10))
    fine = here.explainer.explain(instances, search=Search(steps=80))
    first = picked_rows(coarse, "first")
    place = np.rint(first.tau * 80).astype(int)
    paths = np.arange(len(place))
    np.testing.assert_allclose(first.tau, place / 80, atol=1e-9)
    assert fine.ok[paths, place].all()
    assert not fine.ok[paths, place - 1].any()
    np.testing.assert_allclose(fine.cells[paths, place], first.cells, atol=1e-5)


@each_world
def test_picks_have_one_row_per_instance_and_prototype_in_order(world, target):
    here = world()
    explanation = worlds.explained(here, target)
    for pick in (*picks_of(explanation, "first middle last"), explanation.at(0.5)):
        pairs = list(zip(pick.instance.tolist(), pick.prototype.tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        for instance, number in pairs:
            end = here.explainer.prototypes_[number]
            assert end.valid
            assert end.label == (explanation.target[instance] if target is None else target)
            assert end.label == here.explainer.classes_[end.code]
    tried = {i for i, s in enumerate(explanation.status) if s == "answered"}
    assert set(explanation.instance.tolist()) == tried


# --- endpoints -------------------------------------------------------------------------------


@each_world
def test_every_path_leads_to_a_prototype(world, target):
    explanation = worlds.explained(world(), target)
    numbers = {p.number for p in world().explainer.prototypes_}
    assert set(explanation.prototype.tolist()) <= numbers
    for pick in ("nearest", "best"):  # a row off the paths names the path that comes closest
        rows = getattr(explanation, pick)()
        assert set(rows.prototype.tolist()) <= numbers


@pytest.mark.parametrize("constraint", ["home in {own, rent}", "income >= 40", "age <= 50"])
def test_the_endpoint_is_the_same_for_all_where_no_constraint_refers_to_the_instance(constraint):
    """Frozen-category lines, missing values and values beyond the training range included."""
    here = worlds.bank()
    instances = here.instances.copy()
    instances.loc[0, "income"] = 12_345.6
    instances.loc[1, "home"] = None
    instances.loc[2, "debt"] = pd.NA
    explanation = here.explainer.explain(instances, constraints=constraint)
    ends = explanation.at(1.0)
    assert (ends.tau == 1).all()
    assert not np.isnan(ends.cells).any()
    for number in set(ends.prototype.tolist()):
        assert len(np.unique(ends.cells[ends.prototype == number], axis=0)) == 1


def test_the_papers_recipe_takes_its_picks_literally_from_paths_to_prototypes_only():
    here = worlds.paper()
    explanation = worlds.explained(here)
    assert len(here.explainer.fitted_.samples.cells) == 0
    with pytest.raises(InputError):
        explanation[int(explanation.instance[0])].path(-1)
    grid = np.linspace(0, 1, 21)
    first, middle, last = picks_of(explanation, "first middle last")
    for path in range(len(explanation.instance)):
        ok_rows = np.flatnonzero(explanation.ok[path, :21])
        if len(ok_rows):
            assert first.tau[path] == pytest.approx(grid[ok_rows[0]])
            assert middle.tau[path] == pytest.approx((first.tau[path] + 1) / 2)
    assert (last.tau == 1).all()
    assert first.ok.any()
    # Its paths start at the reconstruction, not at the instance.
    original = explanation.instances[explanation.instance]
    assert explanation.schema.changed(original, explanation.cells[:, 0]).any(axis=1).mean() > 0.5
    rebuilt = explanation.schema.frame(explanation.cells[:, 0])
    wanted = [explanation.target[instance] for instance in explanation.instance]
    valid = [s == w for s, w in zip(predicted(here, rebuilt), wanted, strict=True)]
    assert (explanation.valid[:, 0] == 1).tolist() == valid


# --- targets ---------------------------------------------------------------------------------


def test_any_other_label_may_be_the_target():
    here = worlds.seasons()
    explanation = worlds.explained(here, "any-other")
    assert set(explanation.status) == {"answered"}
    assert explanation.summary["target"].to_list() == ["any-other"] * 30
    for one in explanation:
        ends = {here.explainer.prototypes_[p].label for p in one.prototypes}
        assert ends == {0, 1, 2} - {one.label}
    first = explanation.first()
    labels = predicted(here, first.rows)
    assert all(
        s != explanation.label[instance] for s, instance in zip(labels, first.instance, strict=True)
    )


def test_instances_already_at_the_target_have_no_paths():
    here = worlds.bank()
    explanation = worlds.explained(here, "approved")
    labels = predicted(here, here.instances)
    assert [s == "already_target" for s in explanation.status] == [s == "approved" for s in labels]
    instance = labels.index("approved")
    assert explanation[instance].reason == "The classifier already predicts 'approved'."
    assert instance not in explanation.instance
    assert instance not in explanation.nearest().instance
    assert explanation[instance].prototypes == ()


# --- instances of every kind --------------------------------------------------------------------


@pytest.fixture
def unusual() -> pd.DataFrame:
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


def test_unusual_instances_are_explained_and_malformed_ones_named(unusual):
    here = worlds.bank()
    explanation = here.explainer.explain(unusual)
    assert explanation.status == ("malformed", *["answered"] * 9)
    assert (
        explanation[0].reason == "Column 'income' holds an infinity in row 0. Use a number or none."
    )
    assert explanation[0].label is None
    assert explanation.first().ok.all()
    assert explanation.at(0).rows.loc[lambda r: r.home == "castle"].shape[0] == 3
    assert (explanation.at(0).rows["income"] == 12_345.6).any()
    assert explanation[1].row["income"] == 12_345.6
    assert explanation[2].row["home"] == "castle"
    assert explanation[3].row["debt"] is None
    # A missing cell may be filled along the path; the prototype has none.
    ends = explanation.at(1)
    assert not np.isnan(ends.cells).any()
    jsonschema.validate(explanation.to_json(), json_schema())
    again = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    assert again == explanation


def test_extra_columns_and_another_order_do_not_matter():
    here = worlds.bank()
    shuffled = here.instances.assign(hobby="chess", weight=70.0)[
        ["hobby", *here.instances.columns[::-1], "weight"]
    ]
    explanation = here.explainer.explain(shuffled)
    expected = worlds.explained(here)
    assert with_template(explanation, expected.template) == expected
    assert explanation.first().rows.columns.tolist() == here.instances.columns[::-1].tolist()


@each_world
def test_no_instances_give_an_empty_explanation(world, target):
    here = world()
    none = here.instances[:0]
    explanation = here.explainer.explain(none, target=target)
    assert len(explanation) == 0
    assert len(explanation.summary) == 0
    for pick in (*picks_of(explanation, "first nearest best"), explanation.at(0.5)):
        assert len(pick) == len(pick.rows) == len(pick.frame) == 0
    data = json.loads(json.dumps(explanation.to_json()))
    jsonschema.validate(data, json_schema())
    assert len(Explanation.from_json(data).nearest()) == 0


def edge_case_tables() -> dict[str, tuple]:
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
        "one category": (words[["a"]], lambda r: (r["a"] == "x").to_numpy()),
        "categories only": (words, lambda r: ((r["a"] == "x") | (r["b"] == "p")).to_numpy()),
        "more categories than are proposed": (crowded, lambda r: (r["n"] > 0).to_numpy()),
        "extension types, repeated index": (modern, lambda r: (r["n"] > 0).to_numpy()),
        "two distinct rows": (
            np.repeat([[0.0, 1.0], [1.0, 2.0]], 50, axis=0),
            lambda r: r[:, 0] > 0.5,
        ),
        "bytes": (day, lambda r: r[:, 2, 2] > 128),
    }


@pytest.mark.filterwarnings("ignore:Column 'n' alone gives the classifier's label")
@pytest.mark.parametrize("name", edge_case_tables())
def test_edge_case_tables_are_explained(name, tmp_path):
    train, classifier = edge_case_tables()[name]
    explainer = quick(classifier).fit(train)
    explanation = explainer.explain(train[:20])
    assert set(explanation.status) == {"answered"}
    nearest = explanation.nearest()
    labels = np.asarray(classifier(nearest.rows)).tolist()
    assert labels == [explanation.target[instance] for instance in nearest.instance]
    explainer.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", classifier, device="cpu")
    assert again.explain(train[:20]) == explanation
    if name != "more categories than are proposed":
        return
    # Categories too rare to be proposed are kept, but never proposed.
    town = explainer.schema_["town"]
    assert set(town.levels) == set(train["town"])
    assert len(town.categories) == 64
    rare_instances = train[train["town"].isin(town.extra)].head(10)
    explanation = explainer.explain(rare_instances)
    assert explanation.at(0).rows["town"].isin(town.extra).all()
    assert explanation.nearest().ok.all()
    for pick in picks_of(explanation, "first last nearest all_steps"):
        original = rare_instances["town"].to_numpy()[pick.instance]
        rows = pick.rows["town"].to_numpy()
        assert ((rows == original) | np.isin(rows, town.categories)).all()


# --- the label among the features --------------------------------------------------------------


def leak_warnings(table, words, codes) -> list[str]:
    schema = Schema.infer(table)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_leaks(schema, schema.cells(table), words, codes)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize(
    ("words", "agreement", "warned"),
    [
        (("stay", "gone"), 0.8, True),  # as a fair classifier agrees with the truth
        (("stay", "gone"), 0.6, False),
        ((0, 1), 0.95, True),
        ((False, True), 0.8, False),  # many a feature is 0 or 1
        ((0, 1, 2), 0.95, True),  # read as numbers
    ],
)
def test_a_label_among_the_features_is_warned_of(words, agreement, warned):
    rng = np.random.default_rng(0)
    codes = np.arange(400) % len(words)
    known = np.where(rng.random(400) < agreement, codes, (codes + 1) % len(words))
    table = pd.DataFrame({"income": rng.normal(size=400), "outcome": [words[k] for k in known]})
    start = "Column 'outcome' has exactly the classifier's labels as"
    found = leak_warnings(table, words, codes)
    assert [text.startswith(start) for text in found] == [True] * warned


@pytest.mark.parametrize(
    ("column", "given"),
    [
        (lambda codes, noise: np.where(codes == 1, noise * 900, np.nan), "96%"),  # blank if refused
        (lambda codes, noise: codes * noise * 900, "96%"),  # zero if refused
        (
            lambda codes, noise: np.where(codes == 1, "closed", np.where(noise < 0.5, "a", "b")),
            "96%",
        ),
        (lambda codes, noise: codes + 3 * noise, ""),  # informative, as a feature may be
    ],
)
def test_a_column_that_alone_gives_the_label_is_warned_of(column, given):
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 200)
    known = np.where(np.arange(400) % 25, codes, 1 - codes)  # 4% of the rows are otherwise
    noise = rng.uniform(0.1, 1, 400)
    table = pd.DataFrame({"age": noise, "rent": noise[::-1], "paid out": column(known, noise)})
    start = f"Column 'paid out' alone gives the classifier's label in {given} of the rows"
    found = leak_warnings(table, ("refused", "paid"), codes)
    assert [text.startswith(start) for text in found] == [True] * bool(given)
    assert all("--drop 'paid out'" in text for text in found)


# --- labels with few rows --------------------------------------------------------------------


def test_a_rare_label_gets_fewer_clusters_and_the_rarest_none_and_is_refused():
    explainer = worlds.rare().explainer
    assert explainer.classes_.tolist() == ["a", "b", "c"]
    assert [p.label for p in explainer.prototypes_] == ["a"] * 5 + ["b"]
    assert all(p.valid for p in explainer.prototypes_)
    with pytest.raises(InputError, match="no valid prototype of label 'c'"):
        worlds.explained(worlds.rare(), "c")
    with pytest.raises(InputError, match="too few training rows to draw from"):
        explainer.sample("c", 3)


# --- classifiers that fail -------------------------------------------------------------------


class FailingClassifier:
    """Postage; raises where broken or given an unknown weight."""

    def __init__(self, unknown=(), broken=False):
        self.unknown, self.broken = set(unknown), broken

    def predict(self, rows):
        if self.broken or any(r["weight"] in self.unknown for r in rows):
            raise KeyError("no such weight")
        return worlds.postage(rows)


@pytest.mark.parametrize("instance", [[2], [0, 1, 2, 3, 4]])
def test_an_instance_the_classifier_raises_on_is_malformed_and_costs_no_others(instance, tmp_path):
    instances = copy.deepcopy(worlds.post().instances[:5])
    for i in instance:
        instances[i]["weight"] = 777
    explanation = with_classifier(
        worlds.post(), FailingClassifier(unknown={777}), tmp_path
    ).explain(instances)
    assert [i for i, s in enumerate(explanation.status) if s == "malformed"] == instance
    assert explanation.status.count("answered") == 5 - len(instance)
    assert (
        "raised KeyError when queried with 1 row: 'no such weight'"
        in explanation[instance[0]].reason
    )
    assert explanation.first().ok.all()


@pytest.mark.parametrize("count", [1, 5])
def test_a_classifier_that_raises_on_every_row_is_an_error(count, tmp_path):
    classifier = FailingClassifier()
    explainer = with_classifier(worlds.post(), classifier, tmp_path)
    classifier.broken = True
    with pytest.raises(ClassifierError, match="raised KeyError"):
        explainer.explain(worlds.post().instances[:count])
    classifier.broken = False
    assert set(explainer.explain(worlds.post().instances[:count]).status) == {"answered"}


def test_a_failed_fit_leaves_the_explainer_unfitted():
    explainer = Explainer(FailingClassifier(broken=True))
    with pytest.raises(ClassifierError, match="raised KeyError"):
        explainer.fit(worlds.post().train)
    with pytest.raises(NotFittedError):
        explainer.explain(worlds.post().instances)


# --- constraints, costs, confidence ----------------------------------------------------------


def test_status_distinguishes_infeasible_from_none_found():
    here = worlds.bank()
    explanation = worlds.explained(here, constraints=["fixed income", "income >= 30"])
    poor = (here.instances["income"] < 30).to_numpy()
    assert [s == "infeasible" for s in explanation.status] == poor.tolist()
    instance = int(np.flatnonzero(poor)[0])
    assert explanation[instance].reason == (
        "For this instance 'fixed income' and 'income >= 30' cannot hold together: "
        "no row is feasible."
    )
    first = explanation.first()
    mine = first.where(first.instance == instance)
    assert len(mine)  # never hidden
    assert not mine.feasible.any()
    assert not explanation.feasible[np.isin(explanation.instance, np.flatnonzero(poor)), 1:].any()
    nothing = worlds.explained(here, constraints=["changes <= 0"])
    assert set(nothing.status) == {"none_found"}
    assert "and satisfies the constraints" in nothing[0].reason
    assert not nothing.first().valid.any()
    jsonschema.validate(nothing.to_json(), json_schema())


def test_rules_hold_in_every_call_and_are_checked_at_fit():
    train = worlds.letters(300, 0)
    explainer = quick(worlds.postage, 1, rules=["fixed stamp"]).fit(train)
    instances = worlds.letters(12, 3)
    for constraints in ([], ["speed >= original"]):
        explanation = explainer.explain(instances, constraints=constraints)
        assert explanation.constraints == ("fixed stamp", *constraints)
        for row, instance in zip(
            explanation.nearest().rows, explanation.nearest().instance, strict=True
        ):
            assert row["stamp"] == instances[instance]["stamp"]
    with pytest.raises(InputError, match="Did you mean 'stamp'"):
        Explainer(worlds.postage, rules=["fixed stmp"]).fit(train)


def test_costs_weigh_the_distance_and_move_the_nearest():
    here = worlds.bank()
    costs = {"income": 50.0, "grade": 0.0}
    explanation = worlds.explained(here, costs=costs)
    nearest = explanation.nearest()
    expected = explanation.schema.distance(
        explanation.instances[nearest.instance], nearest.cells, costs
    )
    np.testing.assert_allclose(nearest.distance, expected)
    plain = worlds.explained(here).nearest()
    income = explanation.schema.index("income")
    moved = [
        np.abs(pick.cells[:, income] - pick.instances[pick.instance, income]).mean()
        for pick in (nearest, plain)
    ]
    assert moved[0] < moved[1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"costs": {"incme": 2.0}}, "Did you mean 'income'"),
        ({"costs": {"income": -1.0}}, "must be zero or more"),
        ({"costs": {"age": "x"}}, "cost of 'age'"),
        ({"costs": 3}, "costs"),
        ({"steps": 1}, "whole number from 2 on"),
        ({"enforce": "exat"}, "it is 'exact' or 'latent'.*Did you mean 'exact'"),
        ({"enforce": None}, "it is 'exact' or 'latent'"),
        ({"enforce": 3}, "it is 'exact' or 'latent'"),
        ({"picks": ("nearest", "frist")}, "no pick 'frist'.*Did you mean 'first'"),
        ({"picks": (3,)}, "no pick 3"),
        ({"n_best": 0}, "n_best"),
        ({"n_starts": 101}, "n_starts is 101; it must be at most 100"),
        ({"plausibility": 5}, "plausibility is 5; it is a share.*the 5th percentile write 0.05"),
        ({"plausibility": 1}, "a share between 0 and 1"),
        ({"confidence": 64}, "confidence is 64; it is a probability.*for 90% write 0.9"),
        ({"stable": 1}, "stable"),
        ({"confidence": 0}, "probability"),
        ({"confidence": "x"}, "confidence"),
        ({"constraints": ["incme > 3"]}, "Did you mean 'income'"),
        ({"target": "opposite"}, "With two labels leave target out.*target='any-other'"),
        ({"constraints": {"age": 3}}, "Constraints"),
    ],
    ids=str,
)
def test_invalid_arguments_of_explain_are_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        worlds.explained(worlds.bank(), **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n_prototypes": 0}, "whole number from 1 on"),
        ({"n_latent": 0}, "n_latent"),
        ({"random_state": "x"}, "random_state"),
        ({"recipe": "papre"}, "There are: default, paper"),
        ({"device": "abacus"}, "There is no device 'abacus'"),
        ({"schema": {"wieght": "continuous"}}, "Did you mean 'weight'"),
        ({"rules": 3}, "Constraints"),
    ],
    ids=str,
)
def test_invalid_parameters_are_refused_by_fit(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        quick(worlds.postage, **settings).fit(worlds.post().train)


def test_confidence_is_the_least_probability_of_a_valid_row():
    here = worlds.bank()
    explanation = worlds.explained(here, confidence=0.9)
    first = explanation.first()
    assert first.ok.any()
    probability = here.classifier.predict_proba(first.rows)[
        np.arange(len(first)), worlds.codes(explanation, explanation.target[first.instance])
    ]
    assert first.valid.tolist() == (probability >= 0.9).tolist()
    assert check_picks(explanation, 20) > 0


def test_a_confidence_never_reached_is_in_the_reason_and_needs_probabilities():
    here = worlds.bank()
    for settings in ({}, {"constraints": ["fixed income"]}):
        explanation = worlds.explained(here, confidence=0.9999, **settings)
        nearest = explanation.nearest()
        sure = here.classifier.predict_proba(nearest.where(nearest.ok).rows).max(axis=1)
        assert len(sure)
        assert (sure >= 0.9999).all()
    unsure = [i for i, status in enumerate(explanation.status) if status == "none_found"]
    assert unsure
    assert not nearest.ok[np.isin(nearest.instance, unsure)].any()
    assert all("with probability 0.9999 and" in explanation[i].reason for i in unsure)
    with pytest.raises(InputError, match="needs a classifier with predict_proba"):
        worlds.explained(worlds.post(), confidence=0.9)


# --- a pure function -------------------------------------------------------------------------


def test_an_argument_of_one_call_never_leaks_into_the_next():
    here = worlds.bank()
    before = worlds.explain(here)
    worlds.explain(
        here, "approved", constraints=CONSTRAINTS, costs={"income": 9.0, "age": np.inf}, steps=5
    )
    worlds.explain(
        here,
        confidence=0.8,
        stable=False,
        picks=("best",),
        n_best=2,
        plausibility=0.2,
        candidates=before,
    )
    odd = here.instances.copy()
    odd.loc[0, "home"] = "castle"
    here.explainer.explain(odd)
    assert worlds.explain(here) == before
    assert here.explainer.schema_["home"].extra == ()
    assert here.explainer.rules == ()


def test_explain_changes_neither_the_instances_nor_the_explainer():
    here = worlds.bank()
    instances, before = here.instances.copy(deep=True), learned(here.explainer)
    worlds.explain(here, constraints=CONSTRAINTS)
    here.explainer.sample("approved", 20, verified=True)
    pd.testing.assert_frame_equal(here.instances, instances)
    assert learned(here.explainer) == before
    image = worlds.digits()
    copied = image.instances.copy()
    worlds.explain(image, 3)
    np.testing.assert_array_equal(image.instances, copied)
    records = copy.deepcopy(worlds.post().instances)
    worlds.explain(worlds.post())
    assert worlds.post().instances == records


def learned(explainer: Explainer) -> str:
    """Everything learned, as text: NaN is not equal to itself."""
    fitted = explainer.fitted_
    weights = {n: v.numpy().tobytes() for n, v in fitted.decoder.model.state_dict().items()}
    prototypes = [(p.cells.tobytes(), p.z.tobytes(), p.valid, p.probability)
                  for p in fitted.prototypes]  # fmt: skip
    report = {**explainer.report_.to_json(), "seconds": 0}
    return repr((weights, prototypes, fitted.schema.to_json(), report))


def test_eight_threads_get_the_same_explanations():
    here = worlds.bank()
    calls = [
        {},
        {"target": "approved"},
        {"constraints": CONSTRAINTS},
        {"costs": {"income": 5.0}, "n_best": 2},
    ]
    alone = [worlds.explain(here, **call) for call in calls]
    barrier = threading.Barrier(8)

    def explain_one(k: int) -> Explanation:
        barrier.wait()
        return worlds.explain(here, **calls[k % 4])

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(explain_one, range(8)))
    for k, found in enumerate(together):
        assert found == alone[k % 4]


def test_many_instances_are_searched_in_chunks(monkeypatch):
    here = worlds.bank()
    whole = worlds.explained(here)
    monkeypatch.setattr(search_module, "ROWS", 1000)
    seen = []
    parts = here.explainer.explain(here.instances, progress=lambda *done: seen.append(done))
    assert len(seen) == 5
    assert seen[-1] == ("explaining", 40, 40)
    assert parts.status == whole.status
    np.testing.assert_array_equal(parts.instance, whole.instance)
    np.testing.assert_array_equal(parts.prototype, whole.prototype)
    same = np.isclose(parts.first().cells, whole.first().cells, atol=1e-6, equal_nan=True)
    assert same.mean() > 0.99  # the products of other batches may round otherwise


def test_queries_are_counted(tmp_path):
    here, rows = worlds.post(), []

    def counting(table):
        rows.extend(table)
        return worlds.postage(table)

    explainer = with_classifier(here, counting, tmp_path)
    rows.clear()
    assert explainer.explain(here.instances).n_queries == len(rows) > len(here.instances)


# --- prototypes the classifier rejects -------------------------------------------------------


def half_memorized() -> tuple[np.ndarray, object]:
    """A label in two regions, in one of which the classifier gives it to training rows only."""
    rng = np.random.default_rng(0)
    other = rng.uniform(-4, 4, (300, 2))
    region = rng.normal((10, 10), 0.5, (100, 2))
    memorized = rng.normal((-10, 10), 0.5, (100, 2))
    seen = {row.tobytes() for row in memorized}

    def classifier(points):
        inside = (points > 5).all(axis=1)
        known = [row.tobytes() in seen for row in np.ascontiguousarray(points)]
        return np.where(inside | known, "land", "sea")

    return np.concatenate([other, region, memorized]), classifier


def test_a_centroid_the_classifier_rejects_is_named_and_never_used():
    rows, classifier = half_memorized()
    with pytest.warns(CentroidWarning, match=r"cluster \d \(class 'land'\) is not labelled 'land'"):
        explainer = quick(classifier).fit(rows)
    land = [p for p in explainer.prototypes_ if p.label == "land"]
    assert sorted(p.valid for p in land) == [False, True]
    rejected = next(p for p in land if not p.valid)
    assert rejected.note.startswith("dropped")
    explanation = explainer.explain(rows[:10], target="land")
    assert rejected.number not in explanation.prototype
    assert set(explanation.status) == {"answered"}
    assert set(classifier(explanation.last().rows).tolist()) == {"land"}


def test_a_label_whose_centroids_are_all_rejected_is_refused():
    rows = np.random.default_rng(0).normal(size=(200, 2))
    seen = {row.tobytes() for row in rows[:50]}

    def memorizing(points):
        return [row.tobytes() in seen for row in np.ascontiguousarray(points)]

    with pytest.raises(InputError, match="No prototype of class True is labelled True"):
        quick(memorizing).fit(rows)


def test_the_papers_recipe_keeps_a_rejected_centroid_and_warns():
    rows, classifier = half_memorized()
    with pytest.warns(CentroidWarning, match="is not labelled"):
        explainer = quick(classifier, recipe=worlds.QUICK_PAPER, random_state=1).fit(rows)
    rejected = [p.number for p in explainer.prototypes_ if not p.valid and p.label == "land"]
    explanation = explainer.explain(rows[:3], target="land")
    assert set(rejected) & set(explanation.prototype.tolist())


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
    assert set(predicted(here, rows)) == {label}


# --- the protocol of baselines ---------------------------------------------------------------


@pytest.mark.parametrize("pick", PICKS)
def test_counterfactuals_are_one_of_the_picks(pick):
    here = worlds.post()
    found = here.explainer.counterfactuals(here.instances, target="dear", pick=pick)
    expected = getattr(worlds.explained(here, "dear", picks=(pick,), n_best=1), pick)()
    np.testing.assert_array_equal(found.cells, expected.cells)
    assert found.ok.all()


def test_samples_that_cannot_be_verified_are_left_out_and_counted(tmp_path):
    class Switched:
        strict = False

        def predict(self, rows):
            labels = list(worlds.postage(rows))
            if self.strict:  # of every table, the first two rows are refused
                labels[:2] = ["cheap"] * len(labels[:2])
            return labels

    classifier = Switched()
    explainer = with_classifier(worlds.post(), classifier, tmp_path)
    classifier.strict = True
    with pytest.warns(UserWarning, match="2 of 20 rows are still not labelled 'dear': 18 are"):
        rows = explainer.sample("dear", 20, verified=True)
    assert len(rows) == 18
    assert set(worlds.postage(rows)) == {"dear"}
    assert len(explainer.sample("dear", 20)) == 20


def test_a_class_never_predicted_has_no_prototype_and_does_no_harm():
    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.normal(size=(400, 2)).round(2), columns=["a", "b"])

    class Three:
        classes_ = np.array(["no", "review", "yes"])

        def predict(self, frame):
            score = frame["a"] + frame["b"]
            seldom = (score > 0.4999) & (score < 0.49999)  # between two steps of the lattice
            return np.where(seldom, "review", np.where(score > 0.5, "yes", "no"))

    found = quick(Three()).fit(train)
    assert found.classes_.tolist() == ["no", "review", "yes"]
    assert {p.label for p in found.prototypes_} == {"no", "yes"}
    assert any("review" in warning for warning in found.report_.warnings)
    with pytest.raises(InputError, match="no valid prototype of label 'review'"):
        found.explain(train.head(2), target="review")


def test_a_fit_repeats_by_its_random_state_reports_progress_and_is_silent(capfd):
    train, made, seen = worlds.letters(200, 0), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in (3, 3, 4):
            explainer = quick(worlds.postage, 1, random_state=seed)
            seen.clear()
            made.append(explainer.fit(train, progress=lambda *x: seen.append(x)))
            assert made[-1] is explainer
        worlds.explain(worlds.post())
    assert capfd.readouterr() == ("", "")
    one, two, other = map(learned, made)
    assert one == two != other
    assert seen[-1][0] == "training"
    assert seen[-1][1] == seen[-1][2] > 0
    assert [x[1] for x in seen] == sorted(x[1] for x in seen)


def test_a_random_state_may_be_none_or_a_generator(tmp_path):
    train = worlds.letters(200, 0)

    def fitted(random_state):
        return quick(worlds.postage, 1).set_params(random_state=random_state).fit(train)

    np.random.seed(5)  # noqa: NPY002  None is numpy's own state, as in scikit-learn
    one, other = fitted(None), fitted(None)
    assert learned(one) != learned(other)
    np.random.seed(5)  # noqa: NPY002
    assert learned(fitted(None)) == learned(one)
    rng = np.random.default_rng(1)
    assert learned(fitted(rng)) == learned(fitted(np.random.default_rng(1)))
    rows = [one.sample("cheap", 3, random_state=seed) for seed in (rng, rng)]
    assert rows[0] != rows[1]
    one.save(tmp_path / "post.lapace")
    again = Explainer.load(tmp_path / "post.lapace", worlds.postage)
    assert learned(fitted(again.random_state)) == learned(one), "the seed that was drawn is kept"


class Stream(io.StringIO):
    """A standard error that is a terminal or not, and keeps what is written."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    ("kind", "is_shown"), [("terminal", True), ("notebook", True), ("file", False)]
)
def test_progress_is_shown_to_a_person_after_five_seconds(kind, is_shown, monkeypatch):
    stream, seconds = Stream(is_terminal=kind == "terminal"), iter([0.0, 4.9, 5.0, 9.0])
    if kind == "notebook":
        monkeypatch.setattr(Stream, "__module__", "ipykernel.iostream")
    monkeypatch.setattr(progress.sys, "stderr", stream)
    monkeypatch.setattr(progress, "perf_counter", lambda: next(seconds))
    show = progress.progress_line()
    assert (show is not None) == is_shown
    for done in (10, 50, 100) if show else ():
        show("training", done, 100)
    assert stream.getvalue() == ("\rtraining: 50%\rtraining: 100%\n" if is_shown else "")


def test_a_fit_shows_progress_unless_told_otherwise(monkeypatch):
    stream, train = Stream(is_terminal=True), worlds.letters(200, 0)
    monkeypatch.setattr(progress.sys, "stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    explainer = quick(worlds.postage, 1)
    for other in (False, lambda *_: None):
        explainer.fit(train, progress=other)
        assert stream.getvalue() == ""
    explainer.fit(train)
    assert stream.getvalue().endswith("training: 100%\n")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("features_to_vary", r'constraints=\["fixed age'),
        ("permitted_range", r'constraints=\["age >= 20"'),
        ("total_CFs", r"\.best\(3\)"),
        ("desired_class", 'target="any-other"'),
        ("desired_range", "binned"),
        ("constraint", "Did you mean 'constraints'"),
    ],
)
def test_words_of_dice_are_answered_with_ours(word, sentence):
    here = worlds.bank()
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}'.*{sentence}"):
        here.explainer.explain(here.instances, **{word: "opposite"})


# --- regressions -------------------------------------------------------------------------------


class RaisesWithin:
    """A classifier that raises on a range of incomes no instance has, only rows of paths."""

    def __init__(self, model, least, most) -> None:
        self.model, self.least, self.most = model, least, most

    def predict(self, frame):
        if ((frame["income"] > self.least) & (frame["income"] < self.most)).any():
            raise ValueError("no such income")
        return self.model.predict(frame)


def test_a_row_the_classifier_raises_on_costs_no_other_rows(tmp_path):
    world = worlds.bank()
    target = "approved"
    first = worlds.explained(world, target).first()
    least, most = np.quantile(first.cells[:, 1], [0.5, 0.52])
    income = world.instances["income"]
    instances = world.instances[(income <= least) | (income >= most)].head(12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        explainer = with_classifier(world, RaisesWithin(world.classifier, least, most), tmp_path)
    explanation = explainer.explain(instances, target=target)
    assert "answered" in explanation.status
    assert (explanation.predicted[:, 1:-2] == -1).any()  # some rows were refused
    ok_rows = explanation.first().where(explanation.first().ok)
    assert len(ok_rows)
    assert not ((ok_rows.cells[:, 1] > least) & (ok_rows.cells[:, 1] < most)).any()


@worlds.each((worlds.bank, None), (worlds.seasons, 2), (worlds.digits, 7))
def test_a_pick_has_the_same_figures_among_all_steps(world, target):
    """Also where the refined first, or the midpoint, has the tau of a step of the grid."""
    explanation = worlds.explain(world(), target, steps=4)
    steps, compared = explanation.all_steps(), 0
    for name in ("first", "middle", "last"):
        pick = getattr(explanation, name)()
        for k in range(len(pick)):
            same = (steps.instance == pick.instance[k]) & (steps.prototype == pick.prototype[k])
            same &= steps.tau == pick.tau[k]
            assert same.sum() == 1
            for figure in ("density", "survival", "survival_low", "survival_high"):
                found = getattr(steps, figure)[same], getattr(pick, figure)[[k]]
                np.testing.assert_array_equal(*found)
            compared += 1
    assert compared > 20


def test_density_is_that_of_the_returned_row():
    world = worlds.bank()
    explanation = worlds.explained(world, "approved", constraints=["changes <= 2"])
    decoder = world.explainer.fitted_.decoder
    for pick in (explanation.first(), explanation.nearest(), explanation.best()):
        label = np.full(len(pick), world.explainer.classes_.tolist().index("approved"))
        np.testing.assert_allclose(pick.density, decoder.density(pick.schema, pick.cells, label))


def test_instances_of_the_target_label_below_the_confidence_are_explained():
    world = worlds.bank()
    plain = worlds.explained(world, "approved")
    column = list(world.classifier.classes_).index("approved")
    sure = world.classifier.predict_proba(world.instances)[:, column]
    level = float(np.median(sure[[s == "already_target" for s in plain.status]]))
    explanation = worlds.explained(world, "approved", confidence=level)
    for status, before, p in zip(explanation.status, plain.status, sure, strict=True):
        if before == "already_target":
            assert (status == "already_target") == (p >= level)
    ok_rows = explanation.first().where(explanation.first().ok)
    assert (ok_rows.probability >= level).all()


def test_whether_a_constraint_can_hold_is_decided_for_each_instance():
    world = worlds.bank()
    instances = world.instances.head(2).assign(age=[79, 30])
    alone = world.explainer.explain(instances, constraints=["age >= original + 5"])
    assert alone.status[0] == "infeasible" != alone.status[1]
    assert alone[0].reason.startswith("For this instance 'age >= original + 5' cannot hold: ")
    instances = instances.assign(age=[85, 30])
    with pytest.raises(InputError, match="can never hold"):
        world.explainer.explain(world.instances, target="approved", constraints=["age >= 84"])
    explanation = world.explainer.explain(
        instances, target="approved", constraints=["age >= 84", "fixed age"]
    )
    assert explanation.status[1] in ("infeasible", "already_target")
    assert explanation.status[0] != "infeasible"


# --- identifiers and slices ------------------------------------------------------------------


def test_the_index_of_the_instances_is_kept():
    here = worlds.bank()
    index = pd.Index([f"c{i}" for i in range(len(here.instances))], name="customer")
    plain = worlds.explained(here)
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
    explanation = here.explainer.explain(table, target=2)
    assert explanation.summary["id"].to_list() == ids
    assert explanation.nearest().frame.columns[0] == "id"
    assert "id" not in explanation.nearest().rows.columns
    again = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    assert again == explanation


# -- how the paper's recipe codes numbers --------------------------------------------------------


def test_numbers_are_standardised_and_decode_to_themselves():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "amount": rng.lognormal(6, 1, 200).round(2),
            "count": rng.integers(0, 9, 200),
            "constant": np.full(200, 3.0),
            "kind": rng.choice(["a", "b"], 200),
        }
    )
    table.loc[:4, "amount"] = np.nan
    schema = Schema.infer(table)
    cells = schema.cells(table)
    coded = standardised(schema, cells)
    encoded = coded.encode(cells)
    known = ~np.isnan(cells[:, 0])
    for column in (0, 1):
        values = encoded[known, column]
        truth = cells[known, schema.numeric[column]]
        assert np.corrcoef(values, truth)[0, 1] == pytest.approx(1.0)  # a straight line
        everyone = cells[~np.isnan(cells[:, schema.numeric[column]]), schema.numeric[column]]
        assert values == pytest.approx((truth - everyone.mean()) / everyone.std())
    assert (encoded[:, 2] == 0).all()
    assert np.array_equal(coded.decode(encoded), cells, equal_nan=True)


def test_an_instance_whose_programs_are_not_solved_says_so(monkeypatch):
    here = worlds.bank()
    wanted = ["age + debt == 47", "2*age - 3*debt == -31", "changes <= 2"]
    few = here.instances.head(8)
    plenty = here.explainer.explain(few, target="approved", constraints=wanted)
    monkeypatch.setattr(projection, "solve", lambda *_, **__: Solution("unsolved"))
    scarce = here.explainer.explain(few, target="approved", constraints=wanted)
    spent = [i for i, reason in enumerate(scarce.reason) if "limit of nodes" in reason]
    assert spent
    assert {scarce.status[i] for i in spent} == {"none_found"}
    assert not any("limit of nodes" in reason for reason in plenty.reason)
    assert "infeasible" not in scarce.status  # that comes from a proof alone
