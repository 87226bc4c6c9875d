"""The picks `nearest` and `best`: minimal, different, with a margin or marked."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lapace.constraints import System
from lapace.explainer.advice import RARE
from lapace.explainer.survival import LIKELY
from lapace.result import Counterfactuals, Explanation
from test_explainer import CONSTRAINTS, predicted
from tests import worlds

CALLS = [
    (worlds.bank, None, {}),
    (worlds.bank, None, {"constraints": CONSTRAINTS}),
    (worlds.bank, "approved", {"costs": {"income": 4.0, "age": np.inf}, "detail": "picks"}),
    (worlds.bank, "approved", {"confidence": 0.8}),
    (worlds.bank, "approved", {"plausibility": 10}),
    (worlds.seasons, 2, {}),
    (worlds.seasons, "any-other", {"constraints": ["rain <= original"]}),
    (worlds.signs, None, {}),
    (worlds.shop, None, {}),
    (worlds.post, None, {}),
]
each_call = pytest.mark.parametrize(
    ("world", "target", "call"), CALLS, ids=[f"{w.__name__}-{t}-{c}" for w, t, c in CALLS]
)


def simpler_rows(explanation: Explanation, instance: int, row: np.ndarray) -> np.ndarray:
    """The row with one change undone, or with one number a twentieth or a resolution back."""
    original, found = explanation.instances[instance], []
    for i in np.flatnonzero(explanation.schema.changed(original, row)):
        feature, before, after = explanation.schema.features[i], original[i], row[i]
        values = [before]
        placed = not explanation.schema.unseen(original[None])[0, i]
        if feature.numeric and placed and not np.isnan([before, after]).any():
            back = max(abs(before - after) / 20, feature.step)
            values += feature.snap(np.array([after + np.sign(before - after) * back])).tolist()
        found += [np.where(np.arange(len(row)) == i, value, row) for value in values]
    rows = np.array(found).reshape(-1, len(row))
    return rows[explanation.schema.changed(rows, row).any(axis=1)]


class Judge:
    """Whether rows are ok, and good enough for `best`, from the definitions."""

    def __init__(self, world, explanation: Explanation) -> None:
        self.world, self.explanation = world, explanation
        self.system = System.of(explanation.constraints, explanation.schema, check=False)
        self.fitted = world.explainer.fitted_

    def label(self, cells: np.ndarray) -> list:
        return predicted(self.world, self.explanation.schema.frame(cells))

    def target_codes(self, instance: int, cells: np.ndarray) -> np.ndarray:
        target = self.explanation.target[instance]
        labels = self.label(cells) if target is None else [target] * len(cells)
        return worlds.codes(self.explanation, labels)

    def probability(self, instance: int, cells: np.ndarray) -> np.ndarray:
        if not hasattr(self.world.classifier, "predict_proba"):
            return np.full(len(cells), np.nan)
        each = self.world.classifier.predict_proba(self.explanation.schema.frame(cells))
        return each[np.arange(len(cells)), self.target_codes(instance, cells)]

    def density(self, instance: int, cells: np.ndarray) -> np.ndarray:
        codes = self.target_codes(instance, cells)
        return self.fitted.decoder.density(self.explanation.schema, cells, codes)

    def ok(self, instance: int, cells: np.ndarray) -> np.ndarray:
        whole, target = self.explanation, self.explanation.target[instance]
        labels = self.label(cells)
        reached = [v != whole.label[instance] if target is None else v == target for v in labels]
        original = np.repeat(whole.instances[instance][None], len(cells), axis=0)
        ok = np.array(reached, dtype=bool) & self.system.feasible(cells, original)
        if whole.confidence is not None:
            ok &= self.probability(instance, cells) >= whole.confidence
        if whole.plausibility is not None:
            ok &= self.density(instance, cells) >= whole.plausibility
        return ok

    def usual(self, instance: int, cells: np.ndarray) -> np.ndarray:
        """At least as usual as the 5th percentile, or as the instance, among rows of its label."""
        codes = self.target_codes(instance, cells)
        own = np.repeat(self.explanation.instances[[instance]], len(cells), axis=0)
        own, found = (
            self.fitted.decoder.density(self.explanation.schema, rows, codes)
            for rows in (own, cells)
        )
        return found >= np.minimum(RARE, own)

    def sure(self, instance: int, cells: np.ndarray) -> np.ndarray:
        if self.explanation.confidence is not None:
            return np.ones(len(cells), dtype=bool)
        probability = self.probability(instance, cells)
        codes = self.target_codes(instance, cells)
        arguments = (self.explanation.schema, cells, codes, probability)
        if len(self.fitted.labels) > 2 and not np.isnan(probability).any():
            return self.fitted.has_margin(*arguments)  # against the next label
        if not np.isnan(probability).any():
            return probability >= self.fitted.margins[codes]
        survival, _, _ = self.fitted.survival(*arguments)
        return survival >= LIKELY

    def acceptable(self, instance: int, cells: np.ndarray) -> np.ndarray:
        """What `best` asks of a row without a mark."""
        ok = self.ok(instance, cells) & self.sure(instance, cells)
        return ok & self.usual(instance, cells)


def explained(world, target, call) -> tuple[Explanation, Judge]:
    explanation = worlds.explained(world(), target, **{"steps": 10, **call})
    return explanation, Judge(world(), explanation)


def each_instance(rows: Counterfactuals) -> list[tuple[int, Counterfactuals]]:
    return [(int(i), rows.where(rows.instance == i)) for i in np.unique(rows.instance)]


@each_call
def test_nearest_is_ok_and_minimal(world, target, call):
    explanation, judge = explained(world, target, call)
    nearest = explanation.nearest()
    assert nearest.instance.tolist() == sorted(set(explanation.instance.tolist()))
    answered = {one.position for one in explanation if one.status == "answered"}
    assert set(nearest.instance[nearest.ok].tolist()) == answered
    tried = 0
    for i, row in zip(nearest.instance[nearest.ok], nearest.cells[nearest.ok], strict=True):
        assert judge.ok(i, row[None])[0]
        simpler = simpler_rows(explanation, i, row)
        assert not judge.ok(i, simpler).any()
        tried += len(simpler)
    assert tried >= len(answered) > 0
    # No ok step of any path is closer.
    for i, rows in each_instance(nearest):
        steps = explanation.distance[(explanation.instance == i)[:, None] & explanation.ok]
        assert rows.distance[0] <= steps.min(initial=np.inf) + 1e-9 or not rows.ok[0]


def test_a_pixel_is_not_undone_alone():
    here = worlds.digits()
    explanation = worlds.explain(here, 3, steps=6)
    nearest = explanation.nearest()
    for i, rows in each_instance(nearest):
        mine = explanation.instance == i
        steps = explanation.cells[mine][explanation.ok[mine]]
        assert (steps == rows.cells[0]).all(axis=1).any()  # a whole image of a path
    assert nearest.ok.all()


@each_call
def test_best_rows_keep_a_margin_and_a_floor_or_are_marked(world, target, call):
    explanation, judge = explained(world, target, call)
    best, nearest = explanation.best(), explanation.nearest()
    assert set(best.instance) == set(nearest.instance)
    marks = set()
    for i, rows in each_instance(best):
        usual = judge.usual(i, rows.cells)
        sure = judge.sure(i, rows.cells)
        for k, mark in enumerate(rows.mark):
            assert ("edge" in mark) == (not sure[k])
            assert ("unusual" in mark) == (not usual[k])
        marks |= set(rows.mark)
        if rows.mark[0]:
            assert len(rows) == 1  # a marked row is given only where there is no other
        assert rows.ok.tolist() == judge.ok(i, rows.cells).tolist()
        assert rows.ok.all() == nearest.ok[nearest.instance == i][0]
    assert "" in marks


@each_call
def test_best_rows_are_minimal_among_the_acceptable(world, target, call):
    explanation, judge = explained(world, target, call)
    tried = 0
    for i, rows in each_instance(explanation.best()):
        for row, mark in zip(rows.cells, rows.mark, strict=True):
            simpler = simpler_rows(explanation, i, row)
            if mark == "" and len(simpler):
                assert not judge.acceptable(i, simpler).any()
                tried += 1
    assert tried > 0


@each_call
def test_best_ways_are_different_and_in_order_of_distance(world, target, call):
    explanation, _ = explained(world, target, call)
    several = 0
    for i, rows in each_instance(explanation.best()):
        assert rows.rank.tolist() == list(range(len(rows)))
        assert len(rows) <= 3
        assert (np.diff(rows.distance) >= 0).all()
        original = explanation.instances[i]
        for a, b in combinations(rows.cells, 2):
            of_a, of_b = (explanation.schema.changed(original, row) for row in (a, b))
            apart = (of_a & ~of_b).any() and (of_b & ~of_a).any()
            categories = explanation.schema.categorical
            assert apart or explanation.schema.changed(a, b)[categories].any()
            several += 1
    if not call.get("constraints"):
        assert several > 0


@pytest.mark.parametrize("n_best", [1, 2, 5])
def test_as_many_ways_are_looked_for_as_n_best_says(n_best):
    explanation = worlds.explain(worlds.bank(), n_best=n_best, steps=10)
    best = explanation.best()
    counts = [len(rows) for _, rows in each_instance(best)]
    assert max(counts) <= n_best
    assert n_best == 5 or max(counts) == n_best
    assert explanation.best(1).instance.tolist() == explanation.nearest().instance.tolist()


@pytest.mark.parametrize(
    ("world", "target"),
    [(worlds.bank, None), (worlds.seasons, 2), (worlds.shop, None)],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("also", [False, True], ids=["alone", "with another constraint"])
def test_allowing_more_changes_never_loses_an_answer(world, target, also):
    here = world()
    names = here.explainer.schema_.names
    rest = [f"{names[0]} >= original"] if also else []
    before = np.zeros(len(here.instances), dtype=bool)
    for k in range(1, len(names) + 1):
        limits = [*rest, f"changes <= {k}"]
        explanation = worlds.explain(here, target, constraints=limits, steps=8)
        answered = worlds.answered(explanation)
        assert not (before & ~answered).any()
        for rows in (explanation.nearest(), explanation.best()):
            assert (rows.changed[rows.ok] <= k).all()
        before = answered
    assert before.any()


def test_picks_left_out_are_not_computed_and_cost_nothing():
    here = worlds.bank()
    queries = {
        picks: worlds.explain(here, picks=picks, detail="picks").n_queries
        for picks in [("first",), ("nearest",), ("best", "nearest", "first", "middle", "last")]
    }
    assert queries["first",] < queries["best", "nearest", "first", "middle", "last"]
    assert queries["nearest",] < queries["best", "nearest", "first", "middle", "last"]
    alone = worlds.explain(here, picks=("nearest",))
    whole = worlds.explained(here)
    assert alone.picked == {}
    assert list(alone.minimal) == ["nearest"]
    assert alone.status == whole.status


def test_an_answer_off_the_paths_is_told_apart():
    explanation = worlds.explained(worlds.bank(), "approved", constraints=["changes <= 1"])
    reached = set(explanation.instance[explanation.ok.any(axis=1)].tolist())
    off = [one for one in explanation if one.status == "answered" and one.position not in reached]
    assert off
    for one in off:
        assert one.reason.endswith("a row off the paths does.")
        assert len(one.changes()) == 1
        assert "from_tau" not in one.changes().columns


def test_plausibility_is_the_least_density_of_an_ok_row():
    here = worlds.bank()
    plain = worlds.explained(here, "approved", steps=10)
    explanation = worlds.explain(here, "approved", plausibility=30, steps=10)
    assert explanation.plausibility == 30
    assert (plain.density[plain.ok] < 30).any()
    assert (explanation.density[explanation.ok] >= 30).all()
    for pick in ("first", "middle", "last", "nearest", "best"):
        rows = getattr(explanation, pick)()
        assert rows.ok.any()
        assert (rows.density[rows.ok] >= 30).all()


def test_there_are_several_ways_without_a_student_too():
    here = worlds.digits()
    assert here.explainer.fitted_.student is None
    best = worlds.explain(here, "any-other", detail="picks").best(3)
    assert np.bincount(best.rank)[1:].sum() > 0
