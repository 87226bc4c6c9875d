"""Metrics that only the experiments use, against loops."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from benchmarks import paper_metrics
from benchmarks.paper_metrics import tree_columns
from lapace.result import Counterfactuals
from tests.analysis.test_metrics import (
    SCHEMA,
    SEEDS,
    TRAIN,
    WIDE,
    average,
    cases,
    cells_of,
    counterfactuals_of,
    far,
    same,
)


@cases(SEEDS, st.integers(0, 8))
def test_spread(seed: int, rows: int) -> None:
    cells = cells_of(seed, rows)
    between = [far(a, b) for a, b in combinations(cells, 2)]
    assert same(paper_metrics.spread(WIDE, cells), average(between))


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
    assert same(paper_metrics.recrossing(paths), average(left))
    codes = [[-1 if flag is None else int(flag) for flag in path] for path in paths]
    assert same(paper_metrics.recrossing(np.array(codes, dtype=np.int8)), average(left))


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
    found = paper_metrics.input_robustness(before, after, flipped)
    expected = input_robustness_by_hand(before, after, flipped)
    assert {*expected, "by_instance"} == set(found._fields)
    if found.compared:  # the mean of instances, each weighted by its comparisons
        assert np.nanmin(found.by_instance) <= found.max_set_distance + 1e-12
        assert found.max_set_distance <= np.nanmax(found.by_instance) + 1e-12
    for name, value in expected.items():
        assert same(getattr(found, name), value), name
    unflipped = paper_metrics.input_robustness(before, after)
    assert unflipped.flipped == 0
    assert unflipped.compared >= found.compared


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
    assert paper_metrics.input_robustness(old, [new]).distance == 1.0
    assert paper_metrics.input_robustness(old, [old]).distance == 0.0


@cases(SEEDS, st.integers(0, 10), st.sampled_from([0.0, 0.001, 0.02, 0.1]))
def test_perturbed_instances_stay_near_and_on_the_lattice(
    seed: int, rows: int, scale: float
) -> None:
    cells = cells_of(seed, rows)
    moved = paper_metrics.perturb(WIDE, cells, np.random.default_rng(seed), scale)
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
    again = paper_metrics.perturb(WIDE, cells, np.random.default_rng(seed), scale)
    assert np.array_equal(moved, again, equal_nan=True)


def test_perturbation_reaches_every_step_and_moves_nothing_else() -> None:
    instances = np.repeat(cells_of(8, 1), 500, axis=0)
    instances[:, :3] = [50.0, 0.30, 1.0]
    moved = paper_metrics.perturb(WIDE, instances, np.random.default_rng(0), scale=0.02)
    assert set(moved[:, 0]) == {49.0, 50.0, 51.0}  # 0.02 of 61 years
    assert (moved[:, 2] == 1.0).all()  # one level of four is more than 0.02
    assert moved[:, 1].std() > 0
    assert all(value == round(value, 2) for value in moved[:, 1])
    assert np.array_equal(moved[:, 3:], instances[:, 3:], equal_nan=True)


@cases(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd"))))
def test_agreement(pairs: list[tuple[str, str]]) -> None:
    found = paper_metrics.agreement([w for w, _ in pairs], [s for _, s in pairs])
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
    found = paper_metrics.utility(WIDE, real, synthetic, test, trees=15, random_state=4)
    for (rows, labels), plain, balanced in (
        (real, found.real, found.balanced_real),
        (synthetic, found.synthetic, found.balanced_synthetic),
    ):
        forest = RandomForestClassifier(15, random_state=4)
        said = forest.fit(tree_columns(WIDE, rows), labels).predict(tree_columns(WIDE, test[0]))
        right = [a == b for a, b in zip(said, test[1], strict=True)]
        recalls = [
            average([a == b for a, b in zip(said, test[1], strict=True) if b == label])
            for label in sorted(set(test[1]))
        ]
        assert plain == pytest.approx(average(right))
        assert balanced == pytest.approx(average(recalls))
    assert found.gap == found.real - found.synthetic
    assert found.balanced_gap == found.balanced_real - found.balanced_synthetic > 0.2
    assert paper_metrics.utility(WIDE, real, real, test, trees=5).gap == 0.0


def test_trees_see_missing_and_new_levels_apart() -> None:
    rows = np.repeat(cells_of(0, 1), 4, axis=0)
    rows[:, 1], rows[:, 4] = [np.nan, 0.0, 0.0, 0.0], [0.0, 1.0, np.nan, 5.0]
    columns = tree_columns(WIDE, rows)
    assert columns.shape == (4, 4 + 4)  # four numbers and pairs, one block of four jobs
    assert columns[0, 1] == -1.0
    assert columns[1, 1] >= 0.0
    assert columns[:, 4:].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0] * 4, [0] * 4]
