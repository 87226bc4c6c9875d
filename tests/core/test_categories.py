"""The joint choice of categories, against loops over every combination."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load, save

from lapace import categories
from lapace.categories import CategoryTree
from lapace.errors import InputError

Codes = NDArray[np.int64]


def some_rows(rng: np.random.Generator, rows: int, widths: tuple[int, ...]) -> Codes:
    """Rows whose columns lean on a hidden cause, so that there is something to learn."""
    cause = rng.integers(0, 6, (rows, 1))
    noise = rng.integers(0, 50, (rows, len(widths)))
    mixed = np.where(rng.random(noise.shape) < 0.7, cause + np.arange(len(widths)), noise)
    return mixed % np.array(widths, dtype=np.int64)


def random_tree(rng: np.random.Generator, widths: tuple[int, ...]) -> CategoryTree:
    """Any forest with any tables, not only those that fit would find."""
    count = len(widths)
    order = rng.permutation(count)
    parents = np.full(count, -1, dtype=np.int64)
    for place, column in enumerate(order):
        if place and rng.random() < 0.9:
            parents[column] = order[rng.integers(place)]
    tables = tuple(
        np.log(rng.dirichlet(np.full(width, 0.3), widths[parent] if parent >= 0 else 1) + 1e-6)
        for width, parent in zip(widths, parents.tolist(), strict=True)
    )
    return CategoryTree(
        widths=widths,
        parents=parents,
        order=order,
        tables=tuple(table - np.logaddexp.reduce(table, 1, keepdims=True) for table in tables),
    )


def combinations(widths: tuple[int, ...]) -> Codes:
    return np.array(list(itertools.product(*map(range, widths))), dtype=np.int64)


def loop_marginals(tree: CategoryTree) -> list[NDArray[np.float64]]:
    """Every column's marginal by summing the probabilities of all combinations."""
    every = combinations(tree.widths)
    share = np.exp([loop_log_probability(tree, row, []) for row in every])
    return [
        np.array([share[every[:, j] == code].sum() for code in range(width)])
        for j, width in enumerate(tree.widths)
    ]


def loop_log_probability(
    tree: CategoryTree, row: Codes, marginals: list[NDArray[np.float64]]
) -> float:
    """The documented meaning, one cell at a time."""
    total = 0.0
    for j, code in enumerate(row.tolist()):
        parent = int(tree.parents[j])
        if not 0 <= code < tree.widths[j]:
            continue  # it says nothing
        if parent < 0:
            total += float(tree.tables[j][0, code])
        elif not 0 <= row[parent] < tree.widths[parent]:
            total += float(np.log(marginals[j][code]))
        else:
            total += float(tree.tables[j][row[parent], code])
    return total


def value_and_best(
    tree: CategoryTree, scores: NDArray[np.float64], kept: Codes, row: Codes
) -> tuple[float, float]:
    """The value of a row, and the best over all combinations that agree with the evidence."""
    marginals, starts = loop_marginals(tree), np.cumsum((0, *tree.widths))
    choices = [
        range(width) if code < 0 else [code]
        for width, code in zip(tree.widths, kept.tolist(), strict=True)
    ]

    def value(row: Any) -> float:
        own = sum(scores[starts[j] + code] for j, code in enumerate(row) if kept[j] < 0)
        return float(own + loop_log_probability(tree, np.array(row), marginals))

    return value(row), max(map(value, itertools.product(*choices)))


def plain_information(rows: Codes, one: int, two: int) -> float:
    """Mutual information less its chance value, by a loop over the cells."""
    first, second = rows[:, one], rows[:, two]
    total = 0.0
    for a, b in itertools.product(np.unique(first), np.unique(second)):
        both = np.mean((first == a) & (second == b))
        if both > 0:
            total += both * np.log(both / (np.mean(first == a) * np.mean(second == b)))
    chance = (len(np.unique(first)) - 1) * (len(np.unique(second)) - 1) / (2 * len(rows))
    return total - chance


def is_forest(count: int, edges: tuple[tuple[int, int], ...]) -> bool:
    group = list(range(count))
    for one, two in edges:
        if group[one] == group[two]:
            return False
        old, new = group[one], group[two]
        group = [new if label == old else label for label in group]
    return True


# --- tables --------------------------------------------------------------------------------------


def test_tables_are_laplace_smoothed_frequencies() -> None:
    widths = (2, 3)
    rows = np.array([[0, 0]] * 5 + [[1, 1]] * 4 + [[1, 2]])
    tree = CategoryTree.fit(rows, widths)
    assert tree.parents.tolist() == [-1, 0]
    np.testing.assert_allclose(np.exp(tree.tables[0]), [[5.1 / 10.2, 5.1 / 10.2]])
    expected = [[5.1 / 5.3, 0.1 / 5.3, 0.1 / 5.3], [0.1 / 5.3, 4.1 / 5.3, 1.1 / 5.3]]
    np.testing.assert_allclose(np.exp(tree.tables[1]), expected)


# --- structure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_structure_is_the_best_of_all_forests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    widths = tuple(rng.integers(1, 5, 4).tolist())
    rows = some_rows(rng, int(rng.integers(5, 80)), widths)
    pairs = list(itertools.combinations(range(4), 2))
    gain = {pair: plain_information(rows, *pair) for pair in pairs}
    best = max(
        sum(gain[edge] for edge in edges)
        for size in range(4)
        for edges in itertools.combinations(pairs, size)
        if is_forest(4, edges)
    )
    tree = CategoryTree.fit(rows, widths)
    edges = [(min(j, p), max(j, p)) for j, p in enumerate(tree.parents.tolist()) if p >= 0]
    assert sum(gain[edge] for edge in edges) == pytest.approx(best, abs=1e-8)


def test_ties_go_to_the_lowest_columns() -> None:
    rng = np.random.default_rng(5)
    base = rng.integers(0, 23, 700)
    # the same column under other names: equal information but for the order of summation
    copies = np.column_stack([base, *(rng.permutation(23)[base] for _ in range(4))])
    tree = CategoryTree.fit(copies, (23,) * 5)
    assert tree.parents.tolist() == [-1, 0, 0, 0, 0]
    assert tree.order.tolist() == [0, 1, 2, 3, 4]


def test_the_order_of_rows_and_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    widths = (5, 3, 7, 2, 4)
    rows = some_rows(rng, 500, widths)
    tree = CategoryTree.fit(rows, widths)
    monkeypatch.setattr(categories, "CHUNK", 7)
    again = CategoryTree.fit(rng.permutation(rows), widths)
    for name, array in tree.to_arrays().items():
        np.testing.assert_array_equal(array, again.to_arrays()[name])


def test_missing_training_cells_count_for_no_table() -> None:
    rows = np.array([[0, 0], [0, 0], [1, 1], [1, 1], [-1, 1], [5, 0], [1, 7]])
    tree = CategoryTree.fit(rows, (2, 2))
    np.testing.assert_allclose(np.exp(tree.tables[0]), [[2.1 / 5.2, 3.1 / 5.2]])
    joint = [[2.1 / 2.2, 0.1 / 2.2], [0.1 / 2.2, 2.1 / 2.2]]
    np.testing.assert_allclose(np.exp(tree.tables[1]), joint)


# --- choice --------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple),
    share=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
)
def test_choose_is_the_best_of_all_combinations(
    seed: int, widths: tuple[int, ...], share: float
) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, widths)
    # scores weaker than the tables: what is far away in the tree has to matter
    scores = rng.normal(scale=0.7, size=(6, sum(widths)))
    # up to width + 1: some of what is kept is unknown to the tree
    codes = np.column_stack([rng.integers(0, width + 2, 6) for width in widths])
    kept = np.where(rng.random(codes.shape) < share, codes, -1)
    chosen = tree.choose(scores, kept)
    np.testing.assert_array_equal(chosen[kept >= 0], kept[kept >= 0])
    assert ((chosen >= 0) & ((chosen < np.array(widths)) | (kept >= 0))).all()
    for line, evidence, row in zip(scores, kept, chosen, strict=True):
        value, best = value_and_best(tree, line, evidence, row)
        assert value == pytest.approx(best, abs=1e-9)


def test_a_forbidden_category_is_never_chosen_and_evidence_outranks_it() -> None:
    rng = np.random.default_rng(11)
    tree = random_tree(rng, (3, 4, 3))
    scores = rng.normal(size=(200, 10))
    scores[:, [0, 4, 9]] = -np.inf
    chosen = tree.choose(scores)
    assert not (chosen == np.array([0, 1, 2])).any()
    kept = tree.choose(scores, np.tile([0, -1, -1], (200, 1)))
    assert (kept[:, 0] == 0).all()
    assert not (kept[:, 1:] == np.array([1, 2])).any()


def test_ties_go_to_the_lowest_code() -> None:
    tree = CategoryTree.fit(np.empty((0, 3), dtype=np.int64), (2, 3, 4))
    assert tree.choose(np.zeros((2, 9))).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert tree.choose(np.array([[1, 1, 0, 2, 2, 0, 0, 3, 3]])).tolist() == [[0, 1, 2]]


def test_a_row_is_chosen_alike_alone_and_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(13)
    widths = (5, 3, 7, 2)
    tree = CategoryTree.fit(some_rows(rng, 200, widths), widths)
    scores = rng.normal(size=(300, sum(widths)))
    codes = some_rows(rng, 300, widths)
    kept = np.where(rng.random(codes.shape) < 0.3, codes, -1)
    together = tree.choose(scores, kept)
    alone = [tree.choose(scores[i : i + 1], kept[i : i + 1])[0] for i in range(300)]
    np.testing.assert_array_equal(together, alone)
    monkeypatch.setattr(categories, "CHUNK", 7)
    np.testing.assert_array_equal(together, tree.choose(scores, kept))


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("widths", [(), (1,), (3,), (1, 1), (1, 4, 1), (2, 3)])
def test_small_shapes_work(rows: int, widths: tuple[int, ...]) -> None:
    codes = some_rows(np.random.default_rng(17), rows, widths)
    tree = CategoryTree.fit(codes, widths)
    likeliest = max(loop_log_probability(tree, row, []) for row in combinations(widths))
    for n in (0, 1, 3):
        scores = np.zeros((n, sum(widths)))
        chosen = tree.choose(scores)
        assert chosen.shape == (n, len(widths))
        assert chosen.dtype == np.int64
        for row in chosen:  # with equal scores the tree's own mode is chosen
            assert loop_log_probability(tree, row, []) == pytest.approx(likeliest)


# --- saving --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), widths=st.lists(st.integers(1, 5), max_size=5).map(tuple))
def test_arrays_come_back_from_a_file_bit_for_bit(seed: int, widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, widths)
    again = CategoryTree.from_arrays(load(save(tree.to_arrays())))
    assert again.widths == tree.widths
    for name, array in tree.to_arrays().items():
        np.testing.assert_array_equal(array, again.to_arrays()[name])
        assert array.dtype == again.to_arrays()[name].dtype
    scores = rng.normal(size=(8, sum(widths)))
    chosen = tree.choose(scores)
    np.testing.assert_array_equal(chosen, again.choose(scores))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("widths", np.array([2, 0])),
        ("widths", np.array([2, 2, 2])),
        ("widths", np.array([2**62, 2])),
        ("widths", np.array([-2, -2])),
        ("parents", np.array([1, 0])),
        ("parents", np.array([-1, 9])),
        ("parents", np.array([-1, -2])),
        ("order", np.array([0, 0])),
        ("order", np.array([1, 0])),
        ("tables", np.zeros(3)),
        ("tables", np.full(6, np.nan)),
    ],
)
def test_damaged_arrays_are_refused(name: str, value: NDArray[Any]) -> None:
    tree = CategoryTree.fit(np.array([[0, 0], [0, 0], [1, 1], [1, 1]]), (2, 2))
    assert tree.parents.tolist() == [-1, 0]
    with pytest.raises(InputError, match="category tree is damaged"):
        CategoryTree.from_arrays({**tree.to_arrays(), name: value})
