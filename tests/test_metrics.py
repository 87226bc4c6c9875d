"""Every metric against loops: missing values, unseen levels, ties, and no rows at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import LocalOutlierFactor

from lapace import metrics
from lapace.classifiers import Classifier
from lapace.errors import ClassifierError, InputError
from lapace.metrics import Plausibility, Reference, neighbours
from lapace.result import Counterfactuals
from lapace.schema import Feature, Schema

SEEDS = st.integers(0, 10_000)


def cases(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """Thirty cases each: the properties here are numeric and seeded."""
    return lambda test: settings(max_examples=30)(given(*strategies)(test))


SIZES = ["small", "medium", "large", "huge"]


# ------------------------------------------------------------------------------------------------
# A table of every kind, and the distance once more, by hand


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
SCHEMA = Schema.infer(TRAIN, {"size": Feature.ordinal("size", SIZES)})
READ = SCHEMA.read(
    pd.DataFrame(
        {
            "age": [18, 44],
            "savings": [0.5, np.nan],
            "size": ["tiny", "huge"],
            "owner": ["no", "yes"],
            "job": ["pilot", "diver"],
        }
    )
)
WIDE = READ.schema  # with a size and two jobs unseen in training


def cells_of(seed: int, rows: int) -> np.ndarray:
    """Rows with missing values; some have a level or a number outside what training saw."""
    rng = np.random.default_rng(seed)
    cells = SCHEMA.cells(table(rng, max(rows, 1)))[:rows]
    cells[rng.random(rows) < 0.1, :2] = [150.0, 9.5]
    new = rng.random(rows) < 0.2
    cells[new, 4] = rng.integers(4, 6, rows)[new]
    cells[rng.random(rows) < 0.2, 2] = 4
    return cells


def far(a: np.ndarray, b: np.ndarray, schema: Schema = WIDE) -> float:
    """The distance, feature by feature."""
    total = 0.0
    for feature, x, y in zip(schema.features, a, b, strict=True):
        if math.isnan(x) or math.isnan(y):
            total += math.isnan(x) != math.isnan(y)
        elif not feature.numeric or (feature.name == "size" and max(x, y) >= len(SIZES)):
            total += x != y
        else:
            total += abs(percentile_by_hand(feature, x) - percentile_by_hand(feature, y))
    return total


def percentile_by_hand(feature: Feature, value: float) -> float:
    """The percentile between two neighbouring support points, or beyond the last."""
    points = list(zip(*feature.ranks, strict=True))
    (least, bottom), (greatest, top) = points[0], points[-1]
    if value <= least or value >= greatest:
        end, share = (least, bottom) if value <= least else (greatest, top)
        return share + (value - end) / ((feature.upper - feature.lower) or 1.0)
    (low, p), (high, q) = next(
        pair for pair in pairwise(points) if pair[0][0] <= value <= pair[1][0]
    )
    return p + (q - p) * (value - low) / (high - low)


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
        density=np.where(rng.random(count) < 0.3, np.nan, rng.uniform(0, 100, count)),
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


@cases(SEEDS, st.integers(0, 8), st.integers(0, 8))
def test_distances_are_those_of_the_schema(seed: int, n: int, m: int) -> None:
    a, b = cells_of(seed, n), cells_of(seed + 1, m)
    found = WIDE.pairwise_distances(a, b)
    assert found.shape == (n, m)
    for i, j in product(range(n), range(m)):
        assert found[i, j] == pytest.approx(far(a[i], b[j]), abs=1e-9)
        assert WIDE.distance(a[[i]], b[[j]])[0] == pytest.approx(far(a[i], b[j]), abs=1e-9)
    assert (WIDE.pairwise_distances(a, a).diagonal() == 0.0).all()  # exactly: copies are counted


@pytest.mark.parametrize("columns", [["age", "savings"], ["owner", "job"], ["owner"], ["size"]])
def test_distances_on_tables_of_one_kind(columns: list[str]) -> None:
    schema = Schema.infer(TRAIN[columns], {"size": SCHEMA["size"]} if "size" in columns else None)
    a, b = schema.cells(TRAIN[columns].head(7)), schema.cells(TRAIN[columns].tail(5))
    found = schema.pairwise_distances(a, b)
    expected = [[far(x, y, schema) for y in b] for x in a]
    assert np.allclose(found, expected, atol=1e-12)


@cases(SEEDS, st.integers(0, 12))
def test_distinct_rows(seed: int, rows: int) -> None:
    cells = cells_of(seed, rows)
    cells = np.concatenate([cells, cells[::2], -0.0 * cells[:1], 0.0 * cells[:1]])
    kept: list[np.ndarray] = []
    for row in cells:
        if not any(np.array_equal(row, other, equal_nan=True) for other in kept):
            kept.append(row)
    assert np.array_equal(distinct(cells), np.reshape(kept, (-1, 5)), equal_nan=True)


@cases(SEEDS, st.integers(0, 6), st.integers(0, 9), st.integers(1, 12))
def test_nearest_rows(seed: int, n: int, m: int, k: int) -> None:
    cells, rows = cells_of(seed, n), cells_of(seed + 1, m)
    expected = [sorted(far(cell, row) for row in rows)[:k] for cell in cells]
    found, _ = metrics.kneighbors(WIDE, cells, rows, k)
    assert found.shape == (n, min(k, m))
    assert np.allclose(found, np.reshape(expected, found.shape), atol=1e-9)


@cases(
    SEEDS,
    st.integers(1, 9),
    st.integers(1, 5),
    st.dictionaries(st.sampled_from(WIDE.names), st.floats(0, 9)),
)
def test_neighbours_by_costs_are_nearest_in_the_distance_of_the_schema(
    seed: int, n: int, k: int, costs: dict[str, float]
) -> None:
    cells, rows = cells_of(seed, 2), cells_of(seed + 1, n)
    found, index = metrics.kneighbors(WIDE, cells, rows, k, weights=WIDE.weights(costs))
    for cell, distances, places in zip(cells, found, index, strict=True):
        expected = [WIDE.distance(cell[None], row[None], costs)[0] for row in rows]
        assert np.allclose(distances, sorted(expected)[:k], atol=1e-9)
        assert np.allclose(distances, np.array(expected)[places], atol=1e-9)


@cases(SEEDS, st.integers(1, 9), st.integers(1, 10), st.integers(1, 30))
def test_neighbours_block_by_block_without_themselves(
    seed: int, n: int, k: int, block: int
) -> None:
    rows = cells_of(seed, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "BLOCK", block)
        found, index = metrics.kneighbors(WIDE, rows, rows, k, exclude_self=True)
    assert found.shape == index.shape == (n, min(k, n - 1))
    for i, row in enumerate(rows):
        assert i not in index[i]
        assert len(set(index[i])) == len(index[i])
        others = sorted(far(row, rows[j]) for j in range(n) if j != i)
        assert np.allclose(found[i], others[:k], atol=1e-9)
        assert np.allclose(found[i], [far(row, rows[j]) for j in index[i]], atol=1e-9)


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
def test_satisfaction_by_another_check(counterfactuals: Counterfactuals) -> None:
    older = [
        c[0] >= counterfactuals.instances[w][0]
        for c, w in zip(counterfactuals.cells, counterfactuals.instance, strict=True)
    ]
    share = metrics.satisfaction(
        counterfactuals, check=lambda rows, originals: rows[:, 0] >= originals[:, 0]
    )
    assert same(share.counterfactuals, average(older))
    instances = sorted(set(counterfactuals.instance.tolist()))
    ok = counterfactuals.valid & np.array(older, dtype=bool)
    assert same(
        share.instances, average([any(ok[counterfactuals.instance == i]) for i in instances])
    )


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
def test_share_of_change_on_numbers(counterfactuals: Counterfactuals) -> None:
    on_numbers = on_all = 0.0
    for instance, cell in zip(counterfactuals.instance, counterfactuals.cells, strict=True):
        one = counterfactuals.instances[instance].copy()
        for i, feature in enumerate(WIDE.features):
            moved = one.copy()
            moved[i] = cell[i]
            on_all += far(one, moved)
            on_numbers += far(one, moved) if feature.kind in ("continuous", "ordinal") else 0.0
    expected = on_numbers / on_all if on_all else math.nan
    assert same(metrics.number_share(counterfactuals), expected)


def test_no_change_has_no_share() -> None:
    instance = cells_of(5, 1)
    unmoved = Counterfactuals.of(WIDE, instance, instance, np.array([0]), valid=np.array([True]))
    assert math.isnan(metrics.number_share(unmoved))
    assert metrics.proximity(unmoved) == metrics.sparsity(unmoved) == 0.0
    assert metrics.range_proximity(unmoved) == 0.0


@cases(COUNTERFACTUALS)
def test_diversity(counterfactuals: Counterfactuals) -> None:
    means = []
    for instance in range(len(counterfactuals.instances)):
        rows = counterfactuals.cells[counterfactuals.instance == instance]
        between = [far(a, b) for a, b in combinations(rows, 2)]
        if between:
            means.append(average(between))
    assert same(metrics.diversity(counterfactuals), average(means))


def test_diversity_of_one_counterfactual_each_is_nan() -> None:
    instances = cells_of(1, 4)
    one_each = Counterfactuals.of(
        WIDE, instances, instances, np.arange(4), valid=np.ones(4, dtype=bool)
    )
    assert math.isnan(metrics.diversity(one_each))


@cases(SEEDS, st.integers(0, 8))
def test_spread(seed: int, rows: int) -> None:
    cells = cells_of(seed, rows)
    between = [far(a, b) for a, b in combinations(cells, 2)]
    assert same(metrics.spread(WIDE, cells), average(between))


def test_pairs_are_measured_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(2, 9)
    whole = metrics.spread(WIDE, cells)
    monkeypatch.setattr(neighbours, "CHUNK", 7)
    assert metrics.spread(WIDE, cells) == pytest.approx(whole)


@cases(
    st.integers(0, 6).flatmap(
        lambda steps: st.lists(
            st.lists(st.sampled_from([True, False, None]), min_size=steps, max_size=steps)
        )
    )
)
def test_recrossing(paths: list[list[bool | None]]) -> None:
    left = []
    for path in paths:
        queried = [flag for flag in path if flag is not None]
        if True in queried:
            left.append(False in queried[queried.index(True) :])
    assert same(metrics.recrossing(paths), average(left))
    codes = [[-1 if flag is None else int(flag) for flag in path] for path in paths]
    assert same(metrics.recrossing(np.array(codes, dtype=np.int8)), average(left))


# ------------------------------------------------------------------------------------------------
# Plausibility


def lof_by_hand(cell: np.ndarray, rows: np.ndarray, k: int) -> tuple[float, float]:
    """LOF by its definition: the least and the most it can be, whichever tied rows are taken."""
    k = min(k, len(rows) - 1)

    def neighbours(x: np.ndarray, skip: int = -1) -> tuple[float, list[int], list[int]]:
        """The k-th distance, the rows surely nearer, and those that tie for the other places."""
        to = {j: far(x, row) for j, row in enumerate(rows) if j != skip}
        kth = sorted(to.values())[k - 1]
        nearer = [j for j in to if to[j] < kth - 1e-9]
        return kth, nearer, [j for j in to if abs(to[j] - kth) <= 1e-9]

    around = {i: neighbours(row, i) for i, row in enumerate(rows)}

    def bounds(sure: list[float], tied: list[float]) -> tuple[float, float]:
        """Least and greatest mean of k values: all the sure ones, the rest out of the tied."""
        free = k - len(sure)
        ranked = sorted(tied)
        return average(sure + ranked[:free]), average(sure + ranked[len(tied) - free :])

    def reach(x: np.ndarray, skip: int = -1) -> tuple[float, float]:
        _, nearer, tied = around[skip] if skip >= 0 else neighbours(x)
        sure, perhaps = ([max(far(x, rows[j]), around[j][0]) for j in js] for js in (nearer, tied))
        return bounds(sure, perhaps)

    least_lrd, most_lrd = zip(
        *((1 / high, 1 / low) for low, high in (reach(row, i) for i, row in enumerate(rows))),
        strict=True,
    )
    _, nearer, tied = neighbours(cell)
    least, most = (
        bounds([lrd[j] for j in nearer], [lrd[j] for j in tied])[end]
        for end, lrd in enumerate((least_lrd, most_lrd))
    )
    near, away = reach(cell)
    return least * near, most * away


@cases(SEEDS, st.integers(2, 20), st.integers(0, 4))
def test_lof(seed: int, n: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    rows, cells = cells_of(seed, n), cells_of(seed + 1, m)
    # Ages and savings off the lattice: no two distances tie, so there is one right value.
    for part in (rows, cells):
        part[:, 0] = rng.uniform(18, 79, len(part))
        part[:, 1] = np.where(np.isnan(part[:, 1]), np.nan, rng.uniform(-2, 2, len(part)))
    for cell, score in zip(cells, Plausibility(WIDE, rows, n_neighbors=5).lof(cells), strict=True):
        least, most = lof_by_hand(cell, rows, 5)
        assert least == pytest.approx(most)
        assert score == pytest.approx(least, rel=1e-6)


@cases(SEEDS, st.integers(2, 20))
def test_lof_among_ties(seed: int, n: int) -> None:
    rows, cells = cells_of(seed, n), cells_of(seed + 1, 3)
    rows[:, :2] = cells[:, :2] = 0.0  # only levels are left: almost all distances tie
    usual = Plausibility(WIDE, rows, n_neighbors=5)
    for cell, score in zip(cells, usual.lof(cells), strict=True):
        if len(usual.rows) > 1:
            least, most = lof_by_hand(cell, usual.rows, 5)
            assert least - 1e-6 <= score <= most + 1e-6


def test_lof_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    rows = distinct(cells_of(0, 300))
    cells = cells_of(1, 50)
    rows[:, 0], cells[:, 0] = rng.uniform(18, 79, len(rows)), rng.uniform(18, 79, 50)
    peer = LocalOutlierFactor(n_neighbors=20, novelty=True, metric="precomputed")
    peer.fit(WIDE.pairwise_distances(rows, rows))
    expected = -peer.score_samples(WIDE.pairwise_distances(cells, rows))
    assert np.allclose(Plausibility(WIDE, rows).lof(cells), expected, rtol=1e-9)


def test_repeated_rows_do_not_move_lof() -> None:
    rows, cells = cells_of(0, 60), cells_of(1, 10)
    once = Plausibility(WIDE, rows).lof(cells)
    often = Plausibility(WIDE, np.concatenate([rows, *[rows[:5]] * 30])).lof(cells)
    assert np.array_equal(once, often)
    assert often.max() < 10


def test_isolation_by_descending_the_trees() -> None:
    rows, cells = cells_of(0, 80), cells_of(1, 12)
    usual = Plausibility(WIDE, rows, random_state=3)
    forest, points = usual._forest, neighbours.tree_columns(WIDE, cells).astype(np.float32)

    def expected_depth(n: int) -> float:
        """Mean depth of an unsuccessful search in a binary tree of n rows."""
        if n <= 1:
            return 0.0
        return 1.0 if n == 2 else 2 * (math.log(n - 1) + np.euler_gamma) - 2 * (n - 1) / n

    for point, score in zip(points, usual.isolation(cells), strict=True):
        depths = []
        for tree in forest.estimators_:
            inner, node, depth = tree.tree_, 0, 0
            while inner.children_left[node] != -1:
                left = point[inner.feature[node]] <= inner.threshold[node]
                node = (inner.children_left if left else inner.children_right)[node]
                depth += 1
            depths.append(depth + expected_depth(int(inner.n_node_samples[node])))
        sampled = min(256, len(usual.rows))
        assert score == pytest.approx(2 ** (-average(depths) / expected_depth(sampled)), rel=1e-6)


@cases(SEEDS, st.integers(1, 10), st.integers(0, 5), st.integers(1, 12))
def test_knn_distance(seed: int, n: int, m: int, k: int) -> None:
    rows, cells = cells_of(seed, n), cells_of(seed + 1, m)
    usual = Plausibility(WIDE, rows)
    expected = [average(sorted(far(cell, row) for row in usual.rows)[:k]) for cell in cells]
    assert np.allclose(usual.knn(cells, k), expected, atol=1e-9)


def test_nothing_to_compare_with_is_nan() -> None:
    cells = cells_of(1, 3)
    nothing, one = Plausibility(WIDE, cells[:0]), Plausibility(WIDE, cells[[0, 0, 0]])
    for scores in (nothing.lof, nothing.isolation, nothing.knn, one.lof, one.isolation):
        assert np.isnan(scores(cells)).all()
    assert one.knn(cells)[0] == 0.0
    assert len(one.rows) == 1
    for scores in (one.lof, one.isolation, one.knn):
        assert scores(cells[:0]).shape == (0,)


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


@cases(SEEDS, st.integers(0, 20), st.integers(0, 6), st.sampled_from([0.8, 0.95]))
def test_model_robustness(seed: int, models: int, counterfactuals: int, confidence: float) -> None:
    flags = np.random.default_rng(seed).random((models, counterfactuals)) < 0.7
    found = metrics.model_robustness(flags, confidence)
    assert same(found.mean, average([bool(f) for row in flags for f in row]))
    assert len(found.by_model) == models
    assert len(found.by_counterfactual) == len(found.low) == len(found.high) == counterfactuals
    for r in range(models):
        assert same(found.by_model[r], average(flags[r].tolist()))
    for j in range(counterfactuals):
        assert same(found.by_counterfactual[j], average(flags[:, j].tolist()))
        if models:
            test = binomtest(int(flags[:, j].sum()), models)
            low, high = test.proportion_ci(confidence, method="wilson")
            assert found.low[j] == pytest.approx(low, abs=1e-9)
            assert found.high[j] == pytest.approx(high, abs=1e-9)
        else:
            assert math.isnan(found.low[j])
            assert math.isnan(found.high[j])


def by_age(limit: float, below: str = "no", above: str = "yes"):
    return lambda frame: np.where(frame["age"] >= limit, above, below)


def test_votes_compare_labels_not_codes() -> None:
    counterfactuals = counterfactuals_of(1, 3, 10)
    reference = Reference(TRAIN, by_age(40), SCHEMA)
    newcomer = SimpleNamespace(
        predict=by_age(50, below="a new label"), classes_=np.array(["a new label", "no", "yes"])
    )
    found = metrics.votes(counterfactuals, reference.classifier, [by_age(60), newcomer])
    for j, age in enumerate(counterfactuals.cells[:, 0]):
        label = "yes" if age >= 40 else "no"
        assert found[0, j] == (label == ("yes" if age >= 60 else "no"))
        assert found[1, j] == (label == ("yes" if age >= 50 else "a new label"))
    assert metrics.votes(counterfactuals, reference.classifier, []).shape == (0, 10)
    assert metrics.votes(EMPTY, reference.classifier, [by_age(60)]).shape == (1, 0)


def input_robustness_by_hand(before, after, flipped) -> dict[str, float]:
    single, sets, largest = [], [], []
    counts = {"compared": 0, "flipped": 0, "lost": 0}
    for counterfactuals, flips in zip(after, flipped, strict=True):
        for instance in range(len(before.instances)):
            old = before.cells[before.ok & (before.instance == instance)]
            new = counterfactuals.cells[counterfactuals.ok & (counterfactuals.instance == instance)]
            if not len(old):
                continue
            if flips[instance]:
                counts["flipped"] += 1
            elif not len(new):
                counts["lost"] += 1
            else:
                counts["compared"] += 1
                forth = [min(far(a, b) for b in new) for a in old]
                back = [min(far(a, b) for a in old) for b in new]
                sets.append(average(forth) / 2 + average(back) / 2)
                largest.append(max(*forth, *back))
                if len(old) == len(new) == 1:
                    single.append(far(old[0], new[0]))
    means = {"distance": single, "set_distance": sets, "max_set_distance": largest}
    return {name: average(values) for name, values in means.items()} | counts


@cases(SEEDS, st.integers(1, 4), st.integers(0, 10), st.integers(0, 3))
def test_input_robustness(seed: int, instances: int, counterfactuals: int, rounds: int) -> None:
    before = counterfactuals_of(seed, instances, counterfactuals)
    after = [
        counterfactuals_of(seed + 10 * r, instances, counterfactuals) for r in range(1, rounds + 1)
    ]
    flipped = np.random.default_rng(seed).random((rounds, instances)) < 0.3
    found = metrics.input_robustness(before, after, flipped)
    expected = input_robustness_by_hand(before, after, flipped)
    assert set(expected) == set(found._fields)
    for name, value in expected.items():
        assert same(getattr(found, name), value), name
    unflipped = metrics.input_robustness(before, after)
    assert unflipped.flipped == 0
    assert unflipped.compared >= found.compared


def test_the_same_counterfactuals_for_perturbed_instances_are_perfectly_stable() -> None:
    before = counterfactuals_of(4, 4, 12)
    found = metrics.input_robustness(before, [before, before])
    assert found.set_distance == found.max_set_distance == 0.0
    assert found.compared == 2 * len(set(before.instance[before.ok].tolist()))


def test_levels_met_in_one_round_only_are_compared_by_name() -> None:
    frame = TRAIN.head(1)
    before, after = (
        SCHEMA.read(pd.concat([frame.assign(job=job), frame])) for job in ("pilot", "diver")
    )
    assert before.cells[0, 4] == after.cells[0, 4] == 4  # one code, two meanings
    old, new = (
        Counterfactuals.of(
            reading.schema,
            reading.cells,
            reading.cells[:1],
            np.array([0]),
            valid=np.array([True]),
        )
        for reading in (before, after)
    )
    assert metrics.input_robustness(old, [new]).distance == 1.0
    assert metrics.input_robustness(old, [old]).distance == 0.0


@cases(SEEDS, st.integers(0, 10), st.sampled_from([0.0, 0.001, 0.02, 0.1]))
def test_perturbed_instances_stay_near_and_on_the_lattice(
    seed: int, rows: int, scale: float
) -> None:
    cells = cells_of(seed, rows)
    moved = metrics.perturb(WIDE, cells, np.random.default_rng(seed), scale)
    assert moved.shape == cells.shape
    for before, after in zip(cells, moved, strict=True):
        for feature, x, y in zip(WIDE.features, before, after, strict=True):
            if not feature.numeric or math.isnan(x):
                assert x == y or (math.isnan(x) and math.isnan(y))
            else:
                assert abs(x - y) <= scale * feature.span + 1e-9
                assert min(feature.lower, x) <= y <= max(feature.upper, x)
                steps = y / feature.resolution
                assert steps == pytest.approx(round(steps), abs=1e-6)
    again = metrics.perturb(WIDE, cells, np.random.default_rng(seed), scale)
    assert np.array_equal(moved, again, equal_nan=True)


def test_perturbation_reaches_every_step_and_moves_nothing_else() -> None:
    instances = np.repeat(cells_of(8, 1), 500, axis=0)
    instances[:, :3] = [50.0, 0.30, 1.0]
    moved = metrics.perturb(WIDE, instances, np.random.default_rng(0), scale=0.02)
    assert set(moved[:, 0]) == {49.0, 50.0, 51.0}  # 0.02 of 61 years
    assert (moved[:, 2] == 1.0).all()  # one level of four is more than 0.02
    assert moved[:, 1].std() > 0
    assert all(value == round(value, 2) for value in moved[:, 1])
    assert np.array_equal(moved[:, 3:], instances[:, 3:], equal_nan=True)


def test_values_outside_the_range_or_the_levels_are_not_pulled_in() -> None:
    instance = cells_of(8, 1)
    instance[0, :3] = [120.0, 0.0, 4.0]  # outside the range, a level unseen in training
    instances = np.repeat(instance, 200, axis=0)
    moved = metrics.perturb(WIDE, instances, np.random.default_rng(0), scale=0.5)
    assert moved[:, 0].min() >= 120.0 - 0.5 * WIDE.features[0].span
    assert moved[:, 0].max() == 120.0
    assert (moved[:, 2] == 4.0).all()


# ------------------------------------------------------------------------------------------------
# The generator


@cases(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd"))))
def test_agreement(pairs: list[tuple[str, str]]) -> None:
    found = metrics.agreement([w for w, _ in pairs], [s for _, s in pairs])
    assert same(found.overall, average([w == s for w, s in pairs]))
    assert set(found.by_label) == {w for w, _ in pairs}
    for label, share in found.by_label.items():
        assert same(share, average([w == s for w, s in pairs if w == label]))


def labelled(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    cells = cells_of(seed, rows)
    return cells, np.where((cells[:, 0] > 60) & (cells[:, 3] == 1), "rare", "usual")


def test_utility() -> None:
    real, test = labelled(0, 200), labelled(1, 150)
    noise = np.random.default_rng(0)
    synthetic = (real[0], noise.permutation(real[1]))
    found = metrics.utility(WIDE, real, synthetic, test, trees=15, random_state=4)
    for (rows, labels), plain, balanced in (
        (real, found.real, found.balanced_real),
        (synthetic, found.synthetic, found.balanced_synthetic),
    ):
        forest = RandomForestClassifier(15, random_state=4)
        said = forest.fit(neighbours.tree_columns(WIDE, rows), labels).predict(
            neighbours.tree_columns(WIDE, test[0])
        )
        right = [a == b for a, b in zip(said, test[1], strict=True)]
        recalls = [
            average([a == b for a, b in zip(said, test[1], strict=True) if b == label])
            for label in sorted(set(test[1]))
        ]
        assert plain == pytest.approx(average(right))
        assert balanced == pytest.approx(average(recalls))
    assert found.gap == found.real - found.synthetic
    assert found.balanced_gap == found.balanced_real - found.balanced_synthetic > 0.2
    assert metrics.utility(WIDE, real, real, test, trees=5).gap == 0.0


def test_utility_without_rows_is_nan() -> None:
    real, nothing = labelled(0, 30), labelled(0, 0)
    found = metrics.utility(WIDE, real, nothing, real, trees=3)
    assert found.real > 0.9
    assert math.isnan(found.synthetic)
    assert math.isnan(metrics.utility(WIDE, real, real, nothing, trees=3).real)


def test_trees_see_missing_and_new_levels_apart() -> None:
    rows = np.repeat(cells_of(0, 1), 4, axis=0)
    rows[:, 1], rows[:, 4] = [np.nan, 0.0, 0.0, 0.0], [0.0, 1.0, np.nan, 5.0]
    columns = neighbours.tree_columns(WIDE, rows)
    assert columns.shape == (4, 4 + 4)  # four numbers and pairs, one block of four jobs
    assert columns[0, 1] == -1.0
    assert columns[1, 1] >= 0.0
    assert columns[:, 4:].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0] * 4, [0] * 4]


def test_detection_by_counting_pairs() -> None:
    real, synthetic = cells_of(0, 70), cells_of(1, 50)
    synthetic[:, 0] = np.minimum(synthetic[:, 0] + 10, 79)
    rows = neighbours.tree_columns(WIDE, np.concatenate([real, synthetic]))
    is_synthetic = np.array([0] * 70 + [1] * 50)
    scores = np.empty(120)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=2).split(rows, is_synthetic):
        model = HistGradientBoostingClassifier(early_stopping=False, random_state=2)
        scores[test] = model.fit(rows[train], is_synthetic[train]).predict_proba(rows[test])[:, 1]
    wins = [(s > r) + (s == r) / 2 for s in scores[70:] for r in scores[:70]]
    assert metrics.detection(WIDE, real, synthetic, random_state=2) == pytest.approx(average(wins))


def test_detection_at_its_ends() -> None:
    rows = cells_of(0, 400)
    assert 0.4 < metrics.detection(WIDE, rows[:200], rows[200:]) < 0.6
    older = rows[:200].copy()
    older[:, 0] += 100
    assert metrics.detection(WIDE, rows[200:], older) == 1.0
    assert math.isnan(metrics.detection(WIDE, rows[:4], rows[4:]))


@cases(*[st.lists(st.integers(0, 8).map(lambda v: v / 8), max_size=12)] * 2)
def test_ks(a: list[float], b: list[float]) -> None:
    if not a or not b:
        assert math.isnan(metrics.ks(a, b))
        return
    gaps = [abs(average([v <= t for v in a]) - average([v <= t for v in b])) for t in a + b]
    assert metrics.ks(a, b) == pytest.approx(max(gaps))


def test_ks_of_one_value_each_without_a_warning() -> None:
    assert metrics.ks([0.5], [0.7]) == metrics.ks([0.5], [0.7], "greater") == 1.0
    assert metrics.ks([0.7], [0.5], "greater") == 0.0


@cases(SEEDS, st.integers(0, 6), st.integers(1, 8), st.integers(0, 6))
def test_privacy(seed: int, counterfactuals: int, train: int, fresh: int) -> None:
    rows, held_out = cells_of(seed, train), cells_of(seed + 1, fresh)
    cells = np.concatenate([cells_of(seed + 2, counterfactuals), rows[:1]])
    found = metrics.privacy(WIDE, cells, rows, held_out)
    ours, theirs = (
        [min(far(cell, row) for row in rows) for cell in part] for part in (cells, held_out)
    )
    assert same(found.distance, float(np.median(ours)))
    assert same(found.held_out, float(np.median(theirs)) if theirs else math.nan)
    assert same(found.copies, average([d < 1e-12 for d in ours]))
    assert same(found.held_out_copies, average([d < 1e-12 for d in theirs]))
    if theirs and found.held_out > 0:
        assert found.ratio == pytest.approx(found.distance / found.held_out)


def test_privacy_where_held_out_rows_are_copies() -> None:
    rows = cells_of(0, 6)
    assert metrics.privacy(WIDE, cells_of(1, 3), rows, rows).ratio == math.inf
    assert math.isnan(metrics.privacy(WIDE, rows, rows, rows).ratio)
    nothing = metrics.privacy(WIDE, rows[:0], rows, rows[:0])
    assert all(math.isnan(value) for value in nothing)


# ------------------------------------------------------------------------------------------------
# Everything at once


ALWAYS = {
    "validity",
    "valid_counterfactuals",
    "satisfaction",
    "feasible_counterfactuals",
    "distance",
    "range_distance",
    "changed",
    "number_share",
    "category_share",
    "lof",
    "lof_median",
    "isolation",
    "knn_distance",
    "density",
    "density_median",
    "diversity",
    "training_distance",
    "copies",
}


def test_evaluate_as_the_readme_has_it() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    found = metrics.evaluate(counterfactuals, classifier=by_age(40), reference=TRAIN)
    assert set(found) == ALWAYS
    assert all(isinstance(value, float) for value in found.values())
    ok = counterfactuals.where(counterfactuals.ok)
    assert found["validity"] == metrics.validity(counterfactuals).instances
    assert found["satisfaction"] == metrics.satisfaction(counterfactuals).instances
    assert found["distance"] == metrics.proximity(ok)
    assert found["range_distance"] == metrics.range_proximity(ok) != found["distance"]
    assert found["diversity"] == metrics.diversity(ok)
    assert found["number_share"] + found["category_share"] == pytest.approx(1.0)
    train = SCHEMA.cells(TRAIN)
    nearest = [min(far(cell, row) for row in train) for cell in ok.cells]
    assert found["training_distance"] == pytest.approx(np.median(nearest))


def test_plausibility_is_measured_among_rows_of_the_counterfactuals_own_label() -> None:
    counterfactuals = counterfactuals_of(3, 5, 40)
    ok = counterfactuals.where(counterfactuals.ok)
    train = SCHEMA.cells(TRAIN)
    found = metrics.evaluate(counterfactuals, classifier=by_age(40), reference=TRAIN)
    both = [train[train[:, 0] < 40], train[train[:, 0] >= 40]]
    usual_of = [Plausibility(WIDE, rows) for rows in both]
    lof, knn, isolation = [], [], []
    for cell in ok.cells:
        usual = usual_of[int(cell[0] >= 40)]
        lof += usual.lof(cell[None]).tolist()
        isolation += usual.isolation(cell[None]).tolist()
        knn.append(average(sorted(far(cell, row) for row in usual.rows)[:5]))
    assert found["lof"] == pytest.approx(average(lof))
    assert found["lof_median"] == pytest.approx(np.median(lof))
    assert found["isolation"] == pytest.approx(average(isolation))
    assert found["knn_distance"] == pytest.approx(average(knn))


def test_evaluate_everything() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    moved = metrics.perturb(WIDE, counterfactuals.instances, np.random.default_rng(0), 0.1)
    again = [
        Counterfactuals.of(
            WIDE,
            moved,
            counterfactuals.cells,
            counterfactuals.instance,
            valid=counterfactuals.valid,
        )
        for _ in range(2)
    ]
    reference = Reference(TRAIN, by_age(40), SCHEMA)
    extras = {
        "held_out": TRAIN.sample(50, random_state=0),
        "retrained": [by_age(45), by_age(35)],
        "perturbed": again,
        "steps": [[False, True, True], [False, True, False]],
    }
    found = metrics.evaluate(counterfactuals, reference=reference, **extras)
    assert set(found) - ALWAYS == {
        "held_out_distance",
        "held_out_copies",
        "privacy_ratio",
        "model_robustness",
        "input_distance",
        "input_set_distance",
        "input_max_set_distance",
        "input_compared",
        "input_flipped",
        "input_lost",
        "recrossing",
    }
    assert found["held_out_copies"] == 1.0
    assert found["recrossing"] == 0.5
    ages = counterfactuals.cells[counterfactuals.ok, 0]
    still = [(age >= 40) == (age >= limit) for limit in (45, 35) for age in ages]
    assert found["model_robustness"] == pytest.approx(average(still))
    over = (counterfactuals.instances[:, 0] >= 40) != (moved[:, 0] >= 40)
    expected = input_robustness_by_hand(counterfactuals, again, [over, over])
    for name, value in expected.items():
        assert same(found[f"input_{name}"], value), name
    plain = metrics.evaluate(counterfactuals, classifier=by_age(40), reference=TRAIN)
    assert {name: found[name] for name in ALWAYS} == pytest.approx(plain, nan_ok=True)


def test_evaluate_nothing_without_a_warning() -> None:
    moved = Counterfactuals.of(
        WIDE, EMPTY.instances, EMPTY.cells, EMPTY.instance, valid=EMPTY.valid
    )
    found = metrics.evaluate(
        EMPTY, classifier=by_age(40), reference=TRAIN, retrained=[by_age(50)], perturbed=[moved]
    )
    counts = {"input_compared", "input_flipped", "input_lost"}
    assert all(found[name] == 0 for name in counts)
    assert all(math.isnan(value) for name, value in found.items() if name not in counts)
    assert metrics.evaluate(EMPTY, tried=[0, 1], classifier=by_age(40), reference=TRAIN)[
        "validity"
    ] == pytest.approx(0.0)


def test_one_counterfactual() -> None:
    counterfactuals = counterfactuals_of(0, 1, 1)
    alone = Counterfactuals.of(
        WIDE,
        counterfactuals.instances,
        counterfactuals.cells,
        counterfactuals.instance,
        valid=np.array([True]),
    )
    found = metrics.evaluate(alone, classifier=by_age(40), reference=TRAIN)
    unknown = {name for name, value in found.items() if math.isnan(value)}
    assert unknown == {"diversity", "density", "density_median"}


def test_levels_new_to_counterfactuals_and_to_reference_are_kept_apart() -> None:
    reading = SCHEMA.read(TRAIN.head(1).assign(job="pilot"))
    one = Counterfactuals.of(
        reading.schema, reading.cells, reading.cells, np.array([0]), valid=np.array([True])
    )
    divers, pilots = (pd.concat([TRAIN, TRAIN.head(1).assign(job=j)]) for j in ("diver", "pilot"))
    for table_, copies in ((divers, 0.0), (pilots, 1.0)):
        reference = Reference(table_, by_age(40), SCHEMA)
        assert reference.cells[-1, 4] == reading.cells[0, 4]  # the same code, whatever it means
        assert metrics.evaluate(one, reference=reference)["copies"] == copies
        assert metrics.evaluate(one, classifier=by_age(40), reference=table_)["copies"] == copies


def test_a_level_only_held_out_rows_have_is_not_taken_for_a_missing_value() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    row = TRAIN.head(1)
    reference = pd.concat([TRAIN, row.assign(job=None)])
    for job, copies in ((None, 1.0), ("astronaut", 0.0)):
        extras = {"classifier": by_age(40), "held_out": row.assign(job=job)}
        found = metrics.evaluate(counterfactuals, reference=reference, **extras)
        assert found["held_out_copies"] == copies


def test_a_level_new_to_a_prepared_reference_is_not_taken_for_a_missing_value() -> None:
    reading = SCHEMA.read(TRAIN.head(1).assign(job="pilot"))
    one = Counterfactuals.of(
        reading.schema, reading.cells, reading.cells, np.array([0]), valid=np.array([True])
    )
    table_ = pd.concat([TRAIN, TRAIN.head(1).assign(job=None)])
    narrow, wide = (Reference(table_, by_age(40), s) for s in (SCHEMA, reading.schema))
    expected = metrics.evaluate(one, reference=wide)
    assert metrics.evaluate(one, reference=narrow) == pytest.approx(expected, nan_ok=True)


def test_a_wrapped_classifier_is_taken_and_its_count_left_alone() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    classifier = Classifier(by_age(40), SCHEMA)
    found = metrics.evaluate(
        counterfactuals, classifier=classifier, reference=TRAIN
    )  # labels not known
    classifier.fit_labels(SCHEMA.cells(TRAIN))
    again = metrics.evaluate(counterfactuals, classifier=classifier, reference=TRAIN)
    assert classifier.n_queries == len(TRAIN)
    assert again == pytest.approx(found, nan_ok=True)


def test_what_is_wrong_is_said() -> None:
    counterfactuals = counterfactuals_of(3, 5, 20)
    with pytest.raises(InputError, match="hand over the classifier"):
        metrics.evaluate(counterfactuals, reference=TRAIN)
    broken = TRAIN.assign(age=np.where(np.arange(300) == 7, np.inf, TRAIN["age"]))
    with pytest.raises(InputError, match="row 7"):
        metrics.evaluate(counterfactuals, classifier=by_age(40), reference=broken)
    reference = Reference(TRAIN, by_age(40), SCHEMA)
    with pytest.raises(ClassifierError, match="predicted for no training row"):
        metrics.evaluate(counterfactuals, reference=reference, retrained=[by_age(50, below="new")])


def test_every_public_name_has_an_example() -> None:
    for name in metrics.__all__:
        assert ">>>" in (getattr(metrics, name).__doc__ or ""), name


def test_smallest_breaks_ties_by_position():
    rng = np.random.default_rng(0)
    for values in (rng.integers(0, 5, (20, 100)).astype(float), rng.random((20, 100))):
        for k in (0, 1, 3, 12, 50, 100):
            least, index = neighbours.smallest(values, k)
            expected = np.argsort(values, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(index, expected)
            np.testing.assert_array_equal(least, np.take_along_axis(values, expected, axis=1))


def test_distinct_rows_are_counted_and_missing_equals_missing():
    cells = np.array([[1.0, np.nan], [0.0, 2.0], [1.0, np.nan], [-0.0, 2.0], [3.0, 2.0]])
    first, counts = metrics.distinct_rows(cells)
    assert first.tolist() == [0, 1, 4]
    assert counts.tolist() == [2, 2, 1]
