"""Every metric against loops: missing values, unseen levels, ties, and no rows at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import LocalOutlierFactor

from lapace import metrics
from lapace.classifier import Classifier
from lapace.errors import ClassifierError, InputError
from lapace.metrics import Plausibility
from lapace.result import Counterfactuals
from lapace.schema import Feature, Schema, distance
from tests.core.test_schema import brute_force

SEEDS = st.integers(0, 10_000)


def cases(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """Thirty cases each: the properties here are numeric and seeded."""
    return lambda test: settings(max_examples=30)(given(*strategies)(test))


SIZES = ["small", "medium", "large", "huge"]


# ------------------------------------------------------------------------------------------------
# A table of every kind


def table(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Numbers with gaps, whole numbers, an ordinal, a yes or no, a category with gaps."""
    savings = rng.normal(size=rows).round(2)
    job = rng.choice(["cook", "clerk", "nurse", "smith"], rows).astype(object)
    savings[rng.random(rows) < 0.15] = np.nan
    job[rng.random(rows) < 0.15] = None
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "savings": savings,
            "size": rng.choice(SIZES, rows),
            "owner": rng.choice(["no", "yes"], rows),
            "job": job,
        }
    )


TRAIN = table(np.random.default_rng(0), 300)
SCHEMA = Schema.infer(TRAIN, {"size": Feature("size", "ordinal", categories=SIZES)})
NEW = {"age": [18, 44], "savings": [0.5, np.nan], "size": ["tiny", "huge"],
       "owner": ["no", "yes"], "job": ["pilot", "diver"]}  # fmt: skip
WIDE = SCHEMA.read(pd.DataFrame(NEW)).schema  # with a size and two jobs unseen in training


def cells_of(seed: int, rows: int) -> np.ndarray:
    """Rows with missing values; some have a level or a number outside what training saw."""
    rng = np.random.default_rng(seed)
    cells = SCHEMA.cells(table(rng, max(rows, 1)))[:rows]
    cells[rng.random(rows) < 0.1, :2] = [150.0, 9.5]
    new = rng.random(rows) < 0.2
    cells[new, 4] = rng.integers(4, 6, rows)[new]
    cells[rng.random(rows) < 0.2, 2] = 4
    return cells


def far(a: np.ndarray, b: np.ndarray) -> float:
    """The distance, by brute force."""
    return brute_force(WIDE, a[None], b[None]).sum()


def counterfactuals_of(seed: int, instances: int, count: int) -> Counterfactuals:
    """Random counterfactuals of random instances; some instances have several, some none."""
    rng = np.random.default_rng(seed)
    rows, cells = cells_of(seed + 1, instances), cells_of(seed + 2, count)
    instance = rng.integers(0, max(instances, 1), count)
    kept = rng.random((count, 5)) < 0.4  # part of the instance's row stays
    cells = np.where(kept, rows[instance], cells) if instances else cells
    return Counterfactuals.of(
        WIDE,
        rows,
        cells,
        instance,
        valid=rng.random(count) < 0.6,
        feasible=rng.random(count) < 0.7,
        density=np.where(rng.random(count) < 0.3, np.nan, rng.uniform(0, 1, count)),
    )


COUNTERFACTUALS = st.builds(counterfactuals_of, SEEDS, st.integers(1, 5), st.integers(0, 12))
EMPTY = counterfactuals_of(0, 3, 0)


def average(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def distinct(cells: np.ndarray) -> np.ndarray:
    return cells[metrics.distinct_rows(cells)[0]]


def same(found: float, expected: float) -> bool:
    return found == pytest.approx(expected, abs=1e-9, nan_ok=True)


# ------------------------------------------------------------------------------------------------
# Rows laid out


@cases(SEEDS, st.integers(0, 12))
def test_distinct_rows(seed: int, rows: int) -> None:
    cells = cells_of(seed, rows)
    cells = np.concatenate([cells, cells[::2], -0.0 * cells[:1], 0.0 * cells[:1]])
    kept: list[np.ndarray] = []
    for row in cells:
        if not any(np.array_equal(row, other, equal_nan=True) for other in kept):
            kept.append(row)
    assert np.array_equal(distinct(cells), np.reshape(kept, (-1, 5)), equal_nan=True)


@cases(
    SEEDS,
    st.integers(1, 9),
    st.integers(1, 10),
    st.integers(1, 30),
    st.dictionaries(st.sampled_from(WIDE.names), st.floats(0, 9)),
    st.booleans(),
)
def test_neighbours_by_costs_block_by_block(seed, n, k, block, costs, exclude_self) -> None:
    rows = cells_of(seed, n)
    cells = rows if exclude_self else cells_of(seed + 1, 2)
    settings = {"weights": WIDE.weights(costs), "exclude_self": exclude_self}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance, "BLOCK", block)
        found, index = metrics.kneighbors(WIDE, cells, rows, k, **settings)
    assert found.shape == index.shape == (len(cells), min(k, n - exclude_self))
    for i, cell in enumerate(cells):
        each = np.array([WIDE.distance(cell[None], row[None], costs)[0] for row in rows])
        others = np.delete(each, i) if exclude_self else each
        assert not exclude_self or i not in index[i]
        assert len(set(index[i])) == len(index[i])
        assert np.allclose(found[i], np.sort(others)[:k], atol=1e-9)
        assert np.allclose(found[i], each[index[i]], atol=1e-9)


# ------------------------------------------------------------------------------------------------
# Counterfactuals by themselves


@cases(COUNTERFACTUALS, st.booleans())
def test_validity_and_satisfaction(counterfactuals: Counterfactuals, all_tried: bool) -> None:
    tried = (
        range(len(counterfactuals.instances))
        if all_tried
        else sorted(set(counterfactuals.instance.tolist()))
    )
    by_instance = {
        i: [j for j, instance in enumerate(counterfactuals.instance) if instance == i]
        for i in tried
    }
    valid, feasible = counterfactuals.valid, counterfactuals.feasible
    share = metrics.validity(counterfactuals, tried=tried if all_tried else None)
    assert same(share.instances, average([any(valid[rows]) for rows in by_instance.values()]))
    assert same(share.counterfactuals, average(list(valid)))
    share = metrics.satisfaction(counterfactuals, tried=tried if all_tried else None)
    ok = [any(valid[j] and feasible[j] for j in rows) for rows in by_instance.values()]
    assert same(share.instances, average(ok))
    assert same(share.counterfactuals, average(list(feasible)))


@cases(COUNTERFACTUALS)
def test_proximity_and_sparsity(counterfactuals: Counterfactuals) -> None:
    pairs = [
        (counterfactuals.instances[w], c)
        for w, c in zip(counterfactuals.instance, counterfactuals.cells, strict=True)
    ]
    assert same(metrics.proximity(counterfactuals), average([far(a, b) for a, b in pairs]))
    changes = []
    for a, b in pairs:
        different = 0
        for feature, x, y in zip(WIDE.features, a, b, strict=True):
            half = feature.step / 2 if feature.numeric else 0.0
            gone = math.isnan(x) or math.isnan(y)
            different += math.isnan(x) != math.isnan(y) if gone else abs(x - y) > half
        changes.append(different)
    assert same(metrics.sparsity(counterfactuals), average(changes))


@cases(COUNTERFACTUALS)
def test_diversity(counterfactuals: Counterfactuals) -> None:
    means = []
    for instance in range(len(counterfactuals.instances)):
        rows = counterfactuals.cells[counterfactuals.instance == instance]
        between = [far(a, b) for a, b in combinations(rows, 2)]
        if between:
            means.append(average(between))
    assert same(metrics.diversity(counterfactuals), average(means))


# ------------------------------------------------------------------------------------------------
# Plausibility


def test_lof_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    rows = distinct(cells_of(0, 300))
    cells = cells_of(1, 50)
    rows[:, 0], cells[:, 0] = rng.uniform(18, 79, len(rows)), rng.uniform(18, 79, 50)
    for some, k in ((rows, 20), (rows[:8], 5), (rows[:3], 2)):
        peer = LocalOutlierFactor(n_neighbors=k, novelty=True, metric="precomputed")
        peer.fit(WIDE.metric.pairwise(some, some))
        expected = -peer.score_samples(WIDE.metric.pairwise(cells, some))
        found = Plausibility(WIDE, some, n_neighbors=k).lof(cells)
        assert np.allclose(found, expected, rtol=1e-9)


def test_nothing_to_compare_with_is_nan() -> None:
    cells = cells_of(1, 3)
    for rows in (cells[:0], cells[[0, 0, 0]]):
        assert np.isnan(Plausibility(WIDE, rows).lof(cells)).all()
        assert np.isnan(Plausibility(WIDE, rows).lof_of_rows()).all()
    assert len(Plausibility(WIDE, cells[[0, 0, 0]]).rows) == 1
    assert Plausibility(WIDE, cells).lof(cells[:0]).shape == (0,)
    unmoved = Counterfactuals.of(WIDE, cells, cells, np.arange(3), valid=np.ones(3, dtype=bool))
    assert math.isnan(metrics.diversity(unmoved))
    assert metrics.proximity(unmoved) == metrics.sparsity(unmoved) == 0.0


def test_many_rows_are_thinned_to_a_sample() -> None:
    rows = cells_of(0, 200)
    thin = Plausibility(WIDE, rows, max_rows=50)
    assert len(thin.rows) == len(distinct(thin.rows)) == 50
    assert {tuple(r) for r in np.nan_to_num(thin.rows)} <= {tuple(r) for r in np.nan_to_num(rows)}
    assert len(Plausibility(WIDE, rows, max_rows=None).rows) == len(distinct(rows))


@cases(st.lists(st.just(math.nan) | st.floats(0, 100)))
def test_mean_and_median_of_the_scores_that_are_known(scores: list[float]) -> None:
    known = sorted(score for score in scores if not math.isnan(score))
    assert same(metrics.mean(scores), average(known))
    half = len(known) // 2
    middle = (known[half] + known[-half - 1]) / 2 if known else math.nan
    assert same(metrics.median(scores), middle)


# ------------------------------------------------------------------------------------------------
# Robustness


def by_age(limit: float, below: str = "no"):
    return lambda frame: np.where(frame["age"] >= limit, "yes", below)


def test_votes_compare_labels_not_codes() -> None:
    counterfactuals = counterfactuals_of(1, 3, 10)
    classifier = Classifier(by_age(40), SCHEMA, ("no", "yes"))
    newcomer = SimpleNamespace(
        predict=by_age(50, below="a new label"), classes_=np.array(["a new label", "no", "yes"])
    )
    found = metrics.votes(counterfactuals, classifier, [by_age(60), newcomer])
    for j, age in enumerate(counterfactuals.cells[:, 0]):
        label = "yes" if age >= 40 else "no"
        assert found[0, j] == (label == ("yes" if age >= 60 else "no"))
        assert found[1, j] == (label == ("yes" if age >= 50 else "a new label"))
    assert metrics.votes(counterfactuals, classifier, []).shape == (0, 10)
    assert metrics.votes(EMPTY, classifier, [by_age(60)]).shape == (1, 0)


# ------------------------------------------------------------------------------------------------
# Everything at once


ALWAYS = {
    "validity", "valid_counterfactuals", "satisfaction", "feasible_counterfactuals", "distance",
    "range_distance", "changed", "lof", "lof_median", "density", "density_median", "diversity",
    "training_distance", "copies",
}  # fmt: skip
evaluate = partial(metrics.evaluate, classifier=by_age(40), reference=TRAIN)


def test_evaluate_as_the_readme_has_it() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    found = evaluate(counterfactuals)
    assert set(found) == ALWAYS
    assert all(isinstance(value, float) for value in found.values())
    ok = counterfactuals.where(counterfactuals.ok)
    assert found["validity"] == metrics.validity(counterfactuals).instances
    assert found["satisfaction"] == metrics.satisfaction(counterfactuals).instances
    assert found["distance"] == metrics.proximity(ok)
    ranges = WIDE.by_range().distance(ok.instances[ok.instance], ok.cells)
    assert found["range_distance"] == pytest.approx(ranges.mean()) != found["distance"]
    assert found["diversity"] == metrics.diversity(ok)
    train = SCHEMA.cells(TRAIN)
    nearest = [min(far(cell, row) for row in train) for cell in ok.cells]
    assert found["training_distance"] == pytest.approx(np.median(nearest))


def test_plausibility_is_measured_among_rows_of_the_counterfactuals_own_label() -> None:
    counterfactuals = counterfactuals_of(3, 5, 40)
    ok = counterfactuals.where(counterfactuals.ok)
    train = SCHEMA.cells(TRAIN)
    found = evaluate(counterfactuals)
    both = [train[train[:, 0] < 40], train[train[:, 0] >= 40]]
    usual_of = [Plausibility(WIDE, rows) for rows in both]
    lof = [usual_of[int(cell[0] >= 40)].lof(cell[None])[0] for cell in ok.cells]
    assert found["lof"] == pytest.approx(average(lof))
    assert found["lof_median"] == pytest.approx(np.median(lof))


def test_evaluate_everything() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    found = evaluate(counterfactuals, retrained=[by_age(45), by_age(35)])
    assert set(found) - ALWAYS == {"model_robustness"}
    ages = counterfactuals.cells[counterfactuals.ok, 0]
    still = [(age >= 40) == (age >= limit) for limit in (45, 35) for age in ages]
    assert found["model_robustness"] == pytest.approx(average(still))
    plain = evaluate(counterfactuals)
    assert {name: found[name] for name in ALWAYS} == pytest.approx(plain, nan_ok=True)


def test_evaluate_nothing_without_a_warning() -> None:
    found = evaluate(EMPTY, retrained=[by_age(50)])
    assert all(math.isnan(value) for value in found.values())
    assert evaluate(EMPTY, tried=[0, 1])["validity"] == 0.0


def test_levels_new_to_counterfactuals_and_to_reference_are_kept_apart() -> None:
    reading = SCHEMA.read(TRAIN.head(1).assign(job="pilot"))
    one = Counterfactuals.of(
        reading.schema, reading.cells, reading.cells, np.array([0]), valid=np.array([True])
    )
    divers, pilots = (pd.concat([TRAIN, TRAIN.head(1).assign(job=j)]) for j in ("diver", "pilot"))
    for table_, copies in ((divers, 0.0), (pilots, 1.0)):
        assert evaluate(one, reference=table_)["copies"] == copies


def test_a_wrapped_classifier_is_taken_and_its_count_left_alone() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    classifier = Classifier(by_age(40), SCHEMA)
    found = evaluate(counterfactuals, classifier=classifier)  # labels not known
    classifier.fit_labels(SCHEMA.cells(TRAIN))
    again = evaluate(counterfactuals, classifier=classifier)
    assert classifier.n_queries == len(TRAIN)
    assert again == pytest.approx(found, nan_ok=True)


def test_what_is_wrong_is_said() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    broken = TRAIN.assign(age=np.where(np.arange(300) == 7, np.inf, TRAIN["age"]))
    with pytest.raises(InputError, match="row 7"):
        evaluate(counterfactuals, reference=broken)
    with pytest.raises(ClassifierError, match="predicted for no training row"):
        evaluate(counterfactuals, retrained=[by_age(50, below="new")])


def test_smallest_breaks_ties_by_position():
    rng = np.random.default_rng(0)
    for values in (rng.integers(0, 5, (20, 100)).astype(float), rng.random((20, 100))):
        for k in (0, 1, 3, 12, 50, 100):
            least, index = distance.smallest(values, k)
            expected = np.argsort(values, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(index, expected)
            np.testing.assert_array_equal(least, np.take_along_axis(values, expected, axis=1))
