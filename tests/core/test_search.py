"""The search: `nearest` and `best` by definition, limits, candidates, queries, budgets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_minimal import simpler_rows

from lapace import Explainer, InputError, Search, datasets
from lapace.budget import Budget, limited
from lapace.classifier.outputs import log_odds
from lapace.constraints import System
from lapace.explainer import minimal
from lapace.explainer.minimal import UNUSUAL
from lapace.result import Counterfactuals, Explanation
from lapace.survival import LIKELY
from tests import worlds
from tests.worlds import CONSTRAINTS, predicted


@cache
def unusual_bank() -> worlds.World:
    """The bank, asked about people unlike any in its table."""
    here = worlds.bank()
    odd = here.instances.head(16).copy()
    odd["age"] = np.where(np.arange(16) % 2, 79, 18)
    odd["income"] = [0.1, 900.0, 250.5, 0.0] * 4
    odd["debt"] = pd.array([400, 0, 150, 90] * 4, dtype="Int64")
    odd.loc[::5, "home"] = "castle"
    return replace(here, instances=odd)


CALLS = [
    (worlds.bank, None, {}),
    (worlds.bank, None, {"constraints": CONSTRAINTS}),
    (worlds.bank, "approved", {"costs": {"income": 4.0, "age": np.inf}}),
    (worlds.bank, "approved", {"confidence": 0.8}),
    (worlds.bank, "approved", {"plausibility": 0.1}),
    (unusual_bank, None, {}),
    (worlds.seasons, 2, {}),
    (worlds.seasons, "any-other", {"constraints": ["rain <= original"]}),
    (worlds.signs, None, {}),
    (worlds.shop, None, {}),
    (worlds.post, None, {}),
    (worlds.farm, None, {}),
    (worlds.farm, None, {"constraints": ["sun <= original", "changes <= 2"]}),
]
each_call = pytest.mark.parametrize(
    "call", range(len(CALLS)), ids=[f"{w.__name__}-{t}-{c}" for w, t, c in CALLS]
)


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
        """At least as usual as 5% of the rows of the label, whatever the instance."""
        return self.density(instance, cells) >= UNUSUAL

    def odds(self, instance: int, cells: np.ndarray) -> np.ndarray:
        """The classifier's own odds of the label; NaN for labels alone."""
        model, frame = self.world.classifier, self.explanation.schema.frame(cells)
        codes = self.target_codes(instance, cells)
        if hasattr(model, "predict_proba"):
            return log_odds(model.predict_proba(frame), codes)
        if hasattr(model, "decision_function"):
            return model.decision_function(frame) * np.where(codes == 1, 1, -1)
        return np.full(len(cells), np.nan)

    def survival(self, instance: int, cells: np.ndarray) -> np.ndarray:
        codes, odds = self.target_codes(instance, cells), self.odds(instance, cells)
        return self.fitted.survival.estimate(self.explanation.schema, cells, codes, odds)[0]

    def sure(self, instance: int, cells: np.ndarray) -> np.ndarray:
        """Whether rows keep a margin, if there is one to keep."""
        if self.explanation.confidence is not None:
            return np.ones(len(cells), dtype=bool)
        return self.survival(instance, cells) >= LIKELY

    def acceptable(self, instance: int, cells: np.ndarray) -> np.ndarray:
        """What `best` asks of a row that is not at the edge: the classifier alone says it."""
        return self.ok(instance, cells) & self.sure(instance, cells)


def has_odds(world) -> bool:
    return any(hasattr(world().classifier, name) for name in ("predict_proba", "decision_function"))


@cache
def explained(call: int) -> tuple[Explanation, Judge]:
    world, target, settings = CALLS[call]
    explanation = worlds.explain(world(), target, **{"steps": 10, **settings})
    return explanation, Judge(world(), explanation)


@pytest.fixture
def unrounded(monkeypatch):
    """Explanations whose safe ends are as they were made minimal."""
    monkeypatch.setattr(minimal, "rounded", lambda cells, *_: cells)

    def explain_unrounded(call: int) -> tuple[Explanation, Judge]:
        return explained.__wrapped__(call)

    return explain_unrounded


def each_instance(rows: Counterfactuals) -> list[tuple[int, Counterfactuals]]:
    return [(int(i), rows.where(rows.instance == i)) for i in np.unique(rows.instance)]


# --- nearest -------------------------------------------------------------------------------------


@each_call
def test_nearest_is_ok_and_minimal(call):
    explanation, judge = explained(call)
    nearest = explanation.nearest()
    assert nearest.instance.tolist() == sorted(set(explanation.instance.tolist()))
    answered = {one.position for one in explanation if one.status == "answered"}
    assert set(nearest.instance[nearest.ok].tolist()) == answered
    tried = 0
    for i, row in zip(nearest.instance[nearest.ok], nearest.cells[nearest.ok], strict=True):
        assert judge.ok(i, row[None])[0]
        simpler = simpler_rows(explanation.schema, explanation.instances[i], row)
        assert not judge.ok(i, simpler).any()
        tried += len(simpler)
    assert tried >= len(answered) > 0


@each_call
def test_no_ok_row_of_an_explanation_takes_less_effort_than_nearest(call):
    explanation, _ = explained(call)
    compared = 0
    known = [explanation.all_steps(), explanation.best(), explanation.best(end="enough")]
    for i, rows in each_instance(explanation.nearest()):
        others = [other.where(other.ok & (other.instance == i)) for other in known]
        least = np.concatenate([other.effort for other in others])
        if rows.ok[0]:
            assert rows.effort[0] <= least.min(initial=np.inf) + 1e-9
            compared += 1
    assert compared > 3


@each_call
def test_rows_have_the_effort_of_the_schema(call):
    explanation, _ = explained(call)
    schema, costs = explanation.schema, explanation.costs or {}
    finite = {name: cost for name, cost in costs.items() if np.isfinite(cost)}
    for rows in (*explanation.minimal.values(), explanation.first(), explanation.at(0.3)):
        originals = explanation.instances[rows.instance]
        expected = schema.effort(originals, rows.cells, finite)
        np.testing.assert_allclose(rows.effort, expected)
        charged = rows.changed if not costs else 0 * rows.changed
        assert (rows.effort >= rows.distance + 0.2 * charged - 1e-5).all()


@each_call
def test_a_cell_that_counts_as_unchanged_is_the_instances_very_value(call):
    explanation, _ = explained(call)
    for rows in explanation.minimal.values():
        originals = explanation.instances[rows.instance]
        same = ~explanation.schema.differs(rows.cells, originals)
        np.testing.assert_array_equal(rows.cells[same], originals[same])
        assert same.any()


def test_no_best_row_takes_less_effort_than_nearest_under_few_changes():
    loans = datasets.load("loans", rows=1500)
    classifier = loans.classifier("boosting")
    explainer = worlds.quick(classifier, 3, schema=loans.schema).fit(loans.train)
    denied = loans.test[classifier.predict(loans.test) == "denied"].head(100)
    limits = ["changes <= 2", "months <= 60"]
    explanation = explainer.explain(denied, target="approved", constraints=limits)
    best, nearest = explanation.best(1), explanation.nearest()
    assert nearest.instance.tolist() == best.instance.tolist()
    assert best.ok.sum() > 50
    for end in (best, explanation.best(1, end="enough")):
        assert (nearest.effort <= end.effort + 1e-9)[end.ok].all()


@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("labels_alone", [False, True])
def test_few_changes_are_found_where_ends_of_ranges_suffice(most, labels_alone):
    """Of a linear model brute force knows who has an answer: the largest gains add up."""
    rows, sick = load_breast_cancer(return_X_y=True, as_frame=True)
    rows.columns = [f"c{k}" for k in range(rows.shape[1])]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3)).fit(rows[::2], sick[::2])
    classifier = model.predict if labels_alone else model
    explainer = worlds.quick(classifier, 3, learn_rules=False).fit(rows[::2])
    asked = rows[1::2][model.predict(rows[1::2]) == 0].head(40)
    explanation = explainer.explain(asked, target=1, constraints=[f"changes <= {most}"])
    ends = rows[::2].min().to_numpy(), rows[::2].max().to_numpy()
    weights = model[-1].coef_[0] / model[0].scale_
    gains = np.maximum(*((end - asked.to_numpy()) * weights for end in ends))
    possible = model.decision_function(asked) + np.sort(gains)[:, -most:].sum(axis=1) > 0
    answered = np.array(explanation.status, dtype=object) == "answered"
    assert possible.sum() > 15
    if labels_alone:  # it cannot know which change helps most
        assert (answered & possible).sum() > 0.8 * possible.sum()
    else:
        assert answered[possible].all()


def test_changes_that_cost_nothing_are_found_and_minimal():
    here = worlds.bank()
    for names in (["income"], here.instances.columns):
        explanation = worlds.explain(here, costs=dict.fromkeys(names, 0.0))
        judge, nearest = Judge(here, explanation), explanation.nearest()
        assert nearest.ok.all()
        assert len(nearest) == len(here.instances)
        assert (nearest.distance == 0).mean() > 0.8
        for i, row in zip(nearest.instance, nearest.cells, strict=True):
            simpler = simpler_rows(explanation.schema, explanation.instances[i], row)
            assert not judge.ok(i, simpler).any()


def test_a_pixel_is_not_undone_alone():
    here = worlds.digits()
    explanation = worlds.explain(here, 3, steps=6)
    nearest = explanation.nearest()
    for i, rows in each_instance(nearest):
        mine = explanation.instance == i
        steps = explanation.cells[mine][explanation.ok[mine]]
        differs = explanation.schema.differs(steps, rows.cells[0])
        assert (~differs.any(axis=1)).any()  # a whole image of a path
    assert nearest.ok.all()
    best = worlds.explain(here, "any-other").best(3)
    assert np.bincount(best.rank)[1:].sum() > 0


# --- best ----------------------------------------------------------------------------------------


@each_call
def test_marks_say_what_rows_lack(call):
    explanation, judge = explained(call)
    nearest, marks = explanation.nearest(), []
    for pick, rows in explanation.minimal.items():
        assert set(rows.instance) == set(nearest.instance)
        for i, mine in each_instance(rows):
            usual, sure = judge.usual(i, mine.cells), judge.sure(i, mine.cells)
            for k, mark in enumerate(mine.mark):
                assert ("edge" in mark) == (not sure[k])
                assert ("unusual" in mark) == (not usual[k])
            assert mine.ok.tolist() == judge.ok(i, mine.cells).tolist()
            assert mine.ok.all() == nearest.ok[nearest.instance == i][0]
            if pick == "best":
                marks += mine.mark.tolist()
    if has_odds(CALLS[call][0]):
        assert "" in marks
        assert sum("edge" in mark for mark in marks) < 0.35 * len(marks)
    else:
        assert all("edge" in mark for mark in marks)


@each_call
def test_of_labels_alone_survival_is_unknown(call):
    explanation, judge = explained(call)
    for rows in explanation.minimal.values():
        for i, mine in each_instance(rows):
            np.testing.assert_allclose(mine.survival, judge.survival(i, mine.cells), atol=1e-9)
        assert np.isnan(rows.survival).all() != has_odds(CALLS[call][0])


@each_call
def test_every_change_of_best_is_needed_before_it_is_rounded(call, unrounded):
    explanation, judge = unrounded(call)
    tried = 0
    for i, rows in each_instance(explanation.best()):
        for row, mark in zip(rows.cells[rows.ok], rows.mark[rows.ok], strict=True):
            simpler = simpler_rows(explanation.schema, explanation.instances[i], row)
            accepted = judge.ok if "edge" in mark else judge.acceptable
            assert accepted(i, row[None])[0]
            assert not accepted(i, simpler).any()
            tried += len(simpler)
    assert tried > 0


@each_call
def test_safe_ends_are_rounded_outward_and_stay_acceptable(call, unrounded):
    explanation, judge = explained(call)
    before, after, rounder = unrounded(call)[0].best(), explanation.best(), 0
    assert before.instance.tolist() == after.instance.tolist()
    assert ("edge" in "".join(after.mark)) <= ("edge" in "".join(before.mark))
    originals, schema = explanation.instances[after.instance], explanation.schema
    changed = schema.changed(originals, after.cells)
    np.testing.assert_array_equal(changed, schema.changed(originals, before.cells))
    numbers = np.array([f.kind == "continuous" and f.derived is None for f in schema.features])
    np.testing.assert_array_equal(before.cells[:, ~numbers], after.cells[:, ~numbers])
    gaps = [schema.metric.range_gaps(originals, rows.cells) for rows in (before, after)]
    assert (gaps[1] >= gaps[0] - 1e-9).all()
    most = np.array(
        [0.01 * (f.usual or f.span) / f.span if f.numeric else 0 for f in schema.features]
    )
    assert (gaps[1] - gaps[0] <= most + 1e-9).all()  # by less than the largest step
    for i, rows in each_instance(after):
        lost = ["edge" in mark for mark in rows.mark]
        assert (judge.acceptable(i, rows.cells) | lost)[rows.ok].all()
    for old, new in zip(
        before.cells[:, numbers].ravel(), after.cells[:, numbers].ravel(), strict=True
    ):
        if old != new:
            assert len(f"{new:.12g}") <= len(f"{old:.12g}")
            rounder += 1
    assert rounder > 0 or not changed[:, numbers].any() or CALLS[call][0] is worlds.post


@each_call
def test_enough_is_minimal_among_ok_rows_and_changes_part_of_what_safe_changes(call):
    explanation, judge = explained(call)
    safe, enough = explanation.best(), explanation.best(end="enough")
    schema, tried, smaller = explanation.schema, 0, 0
    assert enough.instance.tolist() == safe.instance.tolist()
    assert enough.rank.tolist() == safe.rank.tolist()
    assert enough.ok.tolist() == safe.ok.tolist()
    if explanation.confidence is not None or not has_odds(CALLS[call][0]):
        np.testing.assert_array_equal(enough.cells, safe.cells)
        return
    originals = explanation.instances[safe.instance]
    by_enough, by_safe = (schema.changed(originals, rows.cells) for rows in (enough, safe))
    assert (by_enough <= by_safe).all()
    farther = schema.gaps(originals, enough.cells) - schema.gaps(originals, safe.cells)
    assert (farther <= 1e-9).all()
    words = schema.coding.categorical
    there = np.where(by_enough, safe.cells, originals)[:, words]
    np.testing.assert_array_equal(enough.cells[:, words], there)
    for row, i in zip(enough.cells[enough.ok], enough.instance[enough.ok], strict=True):
        simpler = simpler_rows(schema, explanation.instances[i], row)
        assert not judge.ok(int(i), simpler).any()
        tried += len(simpler)
    smaller = (enough.effort < safe.effort - 1e-6)[enough.ok].mean()
    assert tried > 0
    assert smaller > 0.5


@each_call
def test_best_ways_are_different(call):
    explanation, _ = explained(call)
    several = 0
    for i, rows in each_instance(explanation.best()):
        assert rows.rank.tolist() == list(range(len(rows)))
        assert len(rows) <= 3
        original = explanation.instances[i]
        for a, b in combinations(rows.cells, 2):
            of_a, of_b = (explanation.schema.changed(original, row) for row in (a, b))
            apart = (of_a & ~of_b).any() and (of_b & ~of_a).any()
            categories = explanation.schema.coding.categorical
            assert apart or explanation.schema.changed(a, b)[categories].any()
            several += 1
    if "constraints" not in CALLS[call][2] and CALLS[call][0] is not worlds.seasons:
        assert several > 0  # most changes to summer need warmth alone


@each_call
def test_best_ways_come_cheapest_first(call, unrounded):
    """Up to a twentieth, within which fewer changes come first; density makes a way dearer."""
    explanation, _ = unrounded(call)
    compared = 0
    for _, rows in each_instance(explanation.best()):
        price = rows.effort * np.where(rows.density < UNUSUAL, 1.5, 1.0)
        for k in range(1, len(rows)):
            assert price[k - 1] <= 1.05 * price[k] + 1e-9
            if price[k] < price[k - 1] - 1e-9:
                assert rows.changed[k - 1] <= rows.changed[k]
            compared += 1
    assert compared > 0 or "constraints" in CALLS[call][2] or CALLS[call][0] is worlds.seasons


@pytest.mark.parametrize("n_best", [1, 2, 5])
def test_as_many_ways_are_looked_for_as_n_best_says(n_best):
    explanation = worlds.explain(worlds.bank(), n_best=n_best, steps=10)
    best = explanation.best()
    counts = [len(rows) for _, rows in each_instance(best)]
    assert max(counts) <= n_best
    assert n_best == 5 or max(counts) == n_best
    assert explanation.best(1).instance.tolist() == explanation.nearest().instance.tolist()


# --- limits and candidates -----------------------------------------------------------------------

each_limited = worlds.each(
    (worlds.bank, "approved"), (worlds.seasons, "any-other"), (worlds.shop, 1)
)


def random_limits(explanation: Explanation, rng: np.random.Generator) -> list[str]:
    """A few bounds, directions, fixed columns, sets of categories, and a limit on changes."""
    schema, limits = explanation.schema, []
    for i in rng.choice(len(schema.features), 2, replace=False):
        feature = schema.features[i]
        values = explanation.instances[:, i]
        if rng.random() < 0.3:
            limits.append(f"fixed {feature.name}")
        elif feature.kind == "continuous" and rng.random() < 0.5:
            bound = np.nanquantile(values, rng.choice([0.1, 0.9]), method="nearest")
            limits.append(
                f"{feature.name} {'>=' if bound < np.nanmedian(values) else '<='} {bound:g}"
            )
        elif feature.kind == "continuous":
            limits.append(f"{feature.name} {rng.choice(['>=', '<='])} original")
        elif feature.kind == "categorical":
            levels = rng.permutation(np.array(feature.categories, dtype=object))[1:]
            limits.append(f"{feature.name} in {{{', '.join(map(str, levels))}}}")
    if rng.random() < 0.6 or not limits:
        limits.append(f"changes <= {rng.integers(1, 4)}")
    return limits


def complied(before: Explanation, after: Explanation) -> list[float]:
    """Compares `nearest` where that of `before` satisfies the constraints of `after`.

    Returns how many times the effort it is then.
    """
    system = System.of(after.constraints, after.schema, check=False)
    rows, now = before.nearest(), after.nearest()
    holds = system.feasible(rows.cells, rows.instances[rows.instance])
    rows, times = rows.where(rows.ok & holds), []
    for i, one in each_instance(rows):
        mine = now.instance == i
        assert now.ok[mine].all()
        times.append(float(now.effort[mine][0] / one.effort[0]))
    return times


def kept_margins(before: Explanation, after: Explanation) -> int:
    """Checks that a way that keeps a margin and satisfies the constraints is not lost."""
    system, count = System.of(after.constraints, after.schema, check=False), 0
    rows, now = before.best(), after.best(1)
    holds = system.feasible(rows.cells, rows.instances[rows.instance])
    sure = np.array(["edge" not in mark for mark in rows.mark], dtype=bool)
    for i in np.unique(rows.instance[rows.ok & holds & sure]):
        assert "edge" not in now.mark[now.instance == i][0]
        count += 1
    return count


@each_limited
def test_candidates_that_satisfy_the_constraints_never_get_worse(world, target):
    here, count, more, margins = world(), 0, 0, 0
    free = worlds.explain(here, target, steps=8)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        limits, further = random_limits(free, rng), random_limits(free, rng)
        # With an earlier explanation at hand, as the page has it, one limit after the other.
        again = worlds.explain(here, target, steps=8, constraints=limits, candidates=free)
        times = complied(free, again)
        assert max(times, default=0) <= 1 + 1e-9
        count += len(times)
        margins += kept_margins(free, again)
        both = [*limits, *further]
        third = worlds.explain(here, target, steps=8, constraints=both, candidates=again)
        times = complied(again, third)
        assert max(times, default=0) <= 1 + 1e-9
        more += len(times)
    assert count > 40
    assert more > 10
    assert (margins > 20) == has_odds(world)


@each_limited
def test_without_candidates_a_limit_seldom_makes_worse_what_already_complied(world, target):
    here, times = world(), []
    free = worlds.explain(here, target, steps=8)
    for seed in range(8):
        limits = random_limits(free, np.random.default_rng(seed))
        times += complied(free, worlds.explain(here, target, steps=8, constraints=limits))
    assert np.mean(np.array(times) > 1.01) <= 0.1
    assert np.mean(times) < 1.02


@each_limited
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
        for rows in explanation.minimal.values():
            assert (rows.changed[rows.ok] <= k).all()
        before = answered
    assert before.any()


def test_candidates_may_be_a_table_that_names_its_instances():
    here = worlds.bank()
    plain = worlds.explain(here, "approved")
    nearest, tried = plain.nearest(), np.flatnonzero(worlds.answered(plain))
    assert worlds.explain(here, "approved", candidates=nearest.frame).status == plain.status
    # One person's way, closer than what was found, is found again: only for whom it is given.
    cheap = here.instances.iloc[tried[:1]].assign(income=here.instances["income"].max() + 30.0)
    index = [f"c{k}" for k in range(len(here.instances))]
    for instances, name in (
        (here.instances, int(tried[0])),
        (here.instances.set_axis(index), f"c{tried[0]}"),
    ):
        explanation = here.explainer.explain(
            instances,
            target="approved",
            candidates=cheap.assign(instance=name),
            constraints=["fixed age, debt, home, married, grade"],
            search=Search(n_starts=1),
        )
        rows = explanation.nearest()
        mine = rows.where(rows.instance == tried[0])
        assert mine.ok.all()
        assert mine.changed.tolist() == [1]
        assert mine.rows["income"].iloc[0] <= cheap["income"].iloc[0]


def test_candidates_that_are_not_ok_are_ignored_and_all_are_checked():
    here = worlds.bank()
    plain = worlds.explain(here, "approved", constraints=CONSTRAINTS)
    tried = np.flatnonzero(worlds.answered(plain))
    same = here.instances.iloc[tried].assign(instance=tried)  # the instances themselves
    first, wrong = (worlds.explain(here, "approved").first().frame for _ in range(2))
    wrong["age"] = 79  # violates `fixed age`
    for candidates in (same, first, wrong):
        explanation = worlds.explain(
            here, "approved", constraints=CONSTRAINTS, candidates=candidates
        )
        judge = Judge(here, explanation)
        for i, rows in each_instance(explanation.nearest()):
            assert rows.ok.tolist() == judge.ok(i, rows.cells).tolist()
            assert rows.changed[0] > 0


def test_candidates_that_cannot_be_read_are_refused():
    here = worlds.bank()
    explain, rows = here.explainer.explain, here.instances
    known = worlds.explained(here, "approved")
    frame = known.nearest().frame
    for candidates, sentence in [
        (rows, "candidates need a column 'instance'"),
        (frame.assign(instance=99), "an instance that is not in the query: '99'"),
        (frame.assign(instance="Ann"), "an instance that is not in the query: 'Ann'"),
        (frame.drop(columns="income"), "lacks column 'income'"),
        (frame.assign(income="much"), "Column 'income' holds 'much'"),
        (frame.assign(home="tent"), "a category that neither training nor the instances have"),
        (known[:5], "an explanation of other instances"),
        (worlds.explained(worlds.shop(), 1), "an explanation of other instances"),
        (7, "not a table"),
    ]:
        with pytest.raises(InputError, match=sentence):
            explain(rows, target="approved", candidates=candidates)


# --- the same rows, fewer queries ----------------------------------------------------------------


@each_call
def test_fewer_picks_take_fewer_queries_and_best_has_the_same_rows(call):
    world, target, settings = CALLS[call]
    settings = {"steps": 10, **settings}
    whole, _ = explained(call)
    best = worlds.explain(world(), target, **settings, picks=("best",))
    nearest = worlds.explain(world(), target, **settings, picks=("nearest", "first"))
    assert (*best.minimal, *best.picked) == ("best", "enough")
    assert (*nearest.minimal, *nearest.picked) == ("nearest", "first")
    assert best.status == whole.status == nearest.status
    assert best.n_queries < whole.n_queries
    assert nearest.n_queries < whole.n_queries
    for end in ("safe", "enough"):
        np.testing.assert_array_equal(best.best(end=end).cells, whole.best(end=end).cells)
    # The ends of ways are more rows that `nearest` is compared with.
    times = whole.nearest().effort / nearest.nearest().effort
    assert 0.95 <= np.mean(times) <= 1.01
    np.testing.assert_array_equal(nearest.first().cells, whole.first().cells)


def test_picks_on_paths_alone_make_nothing_minimal():
    whole = worlds.explain(worlds.bank())
    first = worlds.explain(worlds.bank(), picks=("first",))
    assert first.minimal == {}
    assert first.n_queries < whole.n_queries / 2
    np.testing.assert_array_equal(first.first().cells, whole.first().cells)


def test_a_constraint_costs_no_second_search():
    for world, target, limit in [
        (worlds.bank, None, "fixed age"),
        (worlds.shop, 1, "member in {True}"),
    ]:
        free = worlds.explain(world(), target)
        limited_ = worlds.explain(world(), target, constraints=[limit])
        assert limited_.n_queries <= 1.1 * free.n_queries


@pytest.mark.parametrize("constraints", [[], CONSTRAINTS], ids=["free", "constrained"])
def test_an_instance_gets_the_same_rows_alone_and_again(constraints):
    here = worlds.bank()
    whole = worlds.explain(here, constraints=constraints)
    assert worlds.explain(here, constraints=constraints) == whole
    same = []
    for i in range(0, len(here.instances), 4):
        one = here.explainer.explain(here.instances.iloc[[i]], constraints=constraints)
        mine = whole.instance == i
        assert one.status == whole.status[i : i + 1]
        np.testing.assert_array_equal(one.prototype, whole.prototype[mine])
        same.append(np.isclose(one.cells, whole.cells[mine], atol=1e-6, equal_nan=True))
        for pick, rows in whole.minimal.items():
            mine = rows.where(rows.instance == i)
            np.testing.assert_allclose(one.minimal[pick].cells, mine.cells)
            np.testing.assert_array_equal(one.minimal[pick].effort, mine.effort)
    alike = np.concatenate(same).all(axis=2)
    assert alike.mean() > 0.98  # products of other batches may round otherwise


@each_call
def test_few_steps_and_starts_need_few_queries(call):
    world, target, settings = CALLS[call]
    most = worlds.explain(world(), target, **settings)
    few = worlds.explain(world(), target, **settings, steps=5, n_starts=3)
    assert few.n_queries < 0.75 * most.n_queries
    if not settings:
        assert few.n_queries <= 270 * len(few)
        assert most.n_queries <= 450 * len(most)


def test_budgets_end_a_search_and_say_so():
    here = worlds.bank()
    with limited(Budget()) as outer, limited(Budget()) as inner:
        whole = worlds.explain(here, "approved")
    assert outer.spent_queries == inner.spent_queries == whole.n_queries
    assert outer.ended == inner.ended == ""
    half = whole.n_queries // 2
    for budgets in [(Budget(), Budget(queries=half)), (Budget(queries=half), Budget())]:
        with limited(budgets[0]), limited(budgets[1]):
            some = worlds.explain(here, "approved")
        ended = f"The budget of {half:,} queries is spent."
        assert ended in {budget.ended for budget in budgets}
        assert {budget.spent_queries for budget in budgets} == {some.n_queries}
        assert some.n_queries <= half
        cut = [i for i, reason in enumerate(some.reason) if reason.startswith(ended)]
        assert cut
        assert len(cut) < worlds.answered(whole).sum() or budgets[0].ended
        for i in cut:
            assert some.status[i] == "none_found"
            assert some.reason[i].endswith("The search for this instance did not finish.")
        others = [i for i in range(len(some)) if i not in cut]
        assert [some.status[i] for i in others] == [whole.status[i] for i in others]
        assert not set(cut) & set(some.nearest().instance.tolist())


# --- reasons, plausibility, privacy --------------------------------------------------------------


def test_an_answer_off_the_paths_is_told_apart():
    explanation = worlds.explained(worlds.bank(), "approved", constraints=["changes <= 1"])
    reached = set(explanation.instance[explanation.ok.any(axis=1)].tolist())
    off = [one for one in explanation if one.status == "answered" and one.position not in reached]
    assert off
    for one in off:
        assert one.reason.endswith("a row off the paths does.")
        assert len(one.changes()) == 1


def test_plausibility_is_the_least_density_of_an_ok_row():
    here = worlds.bank()
    plain = worlds.explained(here, "approved", steps=10)
    explanation = worlds.explain(here, "approved", plausibility=0.3, steps=10)
    assert explanation.plausibility == 0.3
    assert (plain.first().density < 0.3).any()
    ok, decoder = explanation.cells[explanation.ok], here.explainer.fitted_.decoder
    label = np.full(len(ok), here.explainer.fitted_.labels.index("approved"))
    assert (decoder.density(explanation.schema, ok, label) >= 0.3).all()
    for pick in ("first", "middle", "last", "nearest", "best"):
        rows = getattr(explanation, pick)()
        assert rows.ok.any()
        assert (rows.density[rows.ok] >= 0.3).all()


def test_no_training_row_is_searched_from_or_returned():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(300, 3))  # no two rows share a value
    explainer = worlds.quick(lambda rows: rows.sum(axis=1) > 0).fit(train)
    explanation = explainer.explain(rng.normal(size=(20, 3)))
    for rows in (
        explainer.fitted_.samples.cells,
        explanation.nearest().cells,
        explanation.best().cells,
        explanation.last().cells,
    ):
        near = np.isclose(rows[:, None], train, atol=1e-6).all(axis=2)
        assert not near.any()


# ------------------------------------------------------------------------------------------------
# Local optima, and several ways


WEIGHTS = np.array([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])


@cache
def linear() -> tuple[Explainer, pd.DataFrame]:
    """An explainer of a linear rule on six numbers, and instances it refuses."""
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(600, 6)).round(2))
    table.columns = [f"x{i}" for i in range(6)]
    explainer = Explainer(accepted).fit(table)
    return explainer, table[~accepted(table)].head(30)


def accepted(rows: pd.DataFrame) -> np.ndarray:
    return rows.to_numpy(dtype=float) @ WEIGHTS > 1


def optimum(explainer: Explainer, original: np.ndarray, needed: int = 1000) -> float:
    """The least effort of an accepted row: a dynamic programme over gains in score."""
    width = (1 - original @ WEIGHTS) / (needed - len(WEIGHTS))
    least = np.r_[0.0, np.full(needed, np.inf)]  # effort for each gain, in steps of `width`
    for column, feature in enumerate(explainer.schema_.features):
        values = np.arange(feature.lower, feature.upper + 0.005, 0.01).round(2)
        rows = np.tile(original, (len(values), 1))
        rows[:, column] = values
        cost = explainer.schema_.effort(np.tile(original, (len(values), 1)), rows)
        gain = np.floor((values - original[column]) * WEIGHTS[column] / width).astype(int)
        before, least = least, least.copy()
        for step, more in zip(gain[gain > 0], cost[gain > 0], strict=True):
            np.minimum.at(least, np.minimum(np.arange(needed + 1) + step, needed), before + more)
    return float(least[needed])


def test_nearest_comes_close_to_the_optimum_of_a_linear_rule():
    explainer, instances = linear()
    nearest = explainer.explain(instances, target=True, search=Search(picks=("nearest",))).nearest()
    best = [optimum(explainer, row) for row in instances.to_numpy()]
    assert (nearest.effort >= np.array(best) * 0.97).all()
    assert nearest.effort.mean() <= 1.15 * np.mean(best)
    assert np.median(nearest.effort / best) <= 1.1


def test_any_other_label_is_hardly_farther_than_the_closest_single_one():
    world = worlds.seasons()
    free = worlds.explain(world, "any-other").nearest()
    single = np.full(len(free.instance), np.inf)
    for label in world.explainer.classes_:
        rows = worlds.explain(world, label).nearest()
        rows = rows.where(rows.valid)
        place = np.searchsorted(free.instance, rows.instance)
        single[place] = np.minimum(single[place], rows.effort)
    assert free.effort.mean() <= 1.02 * single.mean()


def test_half_of_the_instances_have_three_ways_where_one_feature_can_replace_another():
    explainer, instances = linear()
    best = explainer.explain(instances, target=True).best(3)
    ways = np.bincount(np.asarray(best.about["instance"]), minlength=len(instances))
    assert (ways >= 3).mean() >= 0.5


# ------------------------------------------------------------------------------------------------
# What the classifier does not read


class OneColumn:
    """A classifier that reads one column of five; with probabilities, if wanted."""

    classes_ = ("no", "yes")

    def __init__(self, column: int, *, probabilities: bool) -> None:
        self.column = column
        if probabilities:
            self.predict_proba = self._predict_proba

    def _predict_proba(self, rows: pd.DataFrame) -> np.ndarray:
        read = rows.iloc[:, self.column]
        is_number = pd.api.types.is_numeric_dtype(read)
        score = read.to_numpy(float) / 2 if is_number else np.where(read == "b", 3.0, -3.0)
        chance = 1 / (1 + np.exp(-score))
        return np.stack([1 - chance, chance], axis=1)

    def predict(self, rows: pd.DataFrame) -> np.ndarray:
        return np.where(self._predict_proba(rows)[:, 1] > 0.5, "yes", "no")


@pytest.mark.filterwarnings("ignore:Column '.*' alone gives the classifier's label")
@pytest.mark.parametrize("probabilities", [False, True], ids=["labels", "odds"])
@pytest.mark.parametrize("column", range(5))
def test_a_column_that_the_classifier_does_not_read_is_never_changed(column, probabilities):
    """All columns go together, so a row with one of them changed alone is unusual."""
    rng = np.random.default_rng(column)
    cause = rng.normal(size=500)
    table = pd.DataFrame(
        {
            "a": (4 * cause + rng.normal(size=500)).round(2),
            "b": np.rint(6 * cause + rng.normal(size=500)),
            "c": np.where(cause + rng.normal(0, 0.3, 500) > 0, "b", "a").astype(object),
            "d": 3 * cause + rng.normal(size=500),
            "e": np.where(cause + rng.normal(0, 0.3, 500) > 0.3, "b", "c").astype(object),
        }
    )
    classifier = OneColumn(column, probabilities=probabilities)
    explainer = worlds.quick(classifier, 2).fit(table)
    explanation = explainer.explain(table.head(60), target="yes")
    assert set(explanation.status) <= {"answered", "already_target"}
    for rows in explanation.minimal.values():
        features = set(rows.about["features"])
        assert features == {table.columns[column]}
        assert len(rows) == len(explanation.nearest())  # there is one way
