"""Paths: rows anchored at instances, and tracing with scripted oracles, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.categories import CategoryTree
from lapace.model import LGMVAE, Mixture, Shape
from lapace.paths import Decoder, EncodedInstances, Lines, Steps, TracedPaths, trace
from lapace.paths import decoder as decoding
from lapace.schema import Feature, Schema

Row = dict[str, Any]

# ------------------------------------------------------------------------------------------------
# A table with every kind of column


def training_rows() -> list[Row]:
    rng = np.random.default_rng(0)
    instances: list[Row] = []
    for i in range(120):
        older = rng.random()
        instances.append(
            {
                "age": int(20 + 50 * older),
                "savings": 0.0 if rng.random() < 0.4 else round(float(rng.exponential(900)), 2),
                "ratio": float(rng.normal()),
                "hours": None if i % 7 == 0 else int(rng.integers(10, 60)),
                "size": ["small", "medium", "large"][int(rng.integers(3))],
                "home": "own" if rng.random() < older else "rent",
                "job": ["clerk", "cook", "nurse", "smith"][int(rng.integers(4))],
                "pet": [None, "cat", "dog"][int(rng.integers(3))],
                "badge": None if rng.random() < 0.5 else "yes",
                "planet": "earth",
            }
        )
    return instances


KINDS: dict[str, str | Feature] = {
    "size": Feature("size", "ordinal", categories=["small", "medium", "large"]),
    "planet": "categorical",
    "badge": "categorical",
}
TYPICAL: Row = {
    "age": 33, "savings": 0.0, "ratio": 0.25, "hours": 40, "size": "medium", "home": "rent",
    "job": "cook", "pet": "cat", "badge": "yes", "planet": "earth",
}  # fmt: skip


@cache
def schema() -> Schema:
    return Schema.infer(training_rows(), KINDS)


@cache
def untrained_decoder(trees: bool = False, follows_paper: bool = False, seed: int = 0) -> Decoder:
    """An untrained decoder with weights large enough to decide something."""
    columns = schema()
    shape = Shape(len(columns.numeric), columns.coding.widths, (2, 2), latent=3, hidden=8)
    torch.manual_seed(seed)
    model = LGMVAE(replace(shape, heads="sigmoid" if follows_paper else "softmax"))
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.6)
    model = model.eval().requires_grad_(False)
    mixtures = tuple(Mixture.of_prior(model.p_z(), part) for part in ((0, 1), (2, 3)))
    cells = columns.cells(training_rows())
    states, half = columns.coding.states(cells), len(cells) // 2
    parts = (states[:half], states[half:]) if trees else ()
    fitted = tuple(CategoryTree.fit(part, columns.coding.block_states) for part in parts)
    return Decoder(columns, model, mixtures, fitted, follows_paper=follows_paper)


def last_layer(model: LGMVAE) -> torch.nn.Linear:
    return cast(torch.nn.Linear, model.decoder[-1])


def biased(decoder: Decoder, **bias: float) -> Decoder:
    """The same decoder, strongly for or against some encoded columns: `job=...` its last state."""
    columns = {schema().names[f]: start + width - 1 for f, start, width in schema().coding.blocks}
    columns |= {f"{schema().names[f]}_missing": column for f, column in schema().coding.flags}
    model = LGMVAE(decoder.model.shape)
    model.load_state_dict(decoder.model.state_dict())
    for name, value in bias.items():
        last_layer(model).bias.data[columns[name]] += value
    return replace(decoder, model=model.eval().requires_grad_(False))


UNSEEN = {
    "job": "pilot", "home": "boat", "size": "huge", "pet": "yak", "badge": "gold", "planet": "mars",
}  # fmt: skip
UNUSUAL: dict[str, Row] = {
    "typical": TYPICAL,
    "age beyond the range": {**TYPICAL, "age": 99},
    "savings beyond the range": {**TYPICAL, "savings": 1e7},
    "age between two integers": {**TYPICAL, "age": 33.4},
    "savings finer than the resolution": {**TYPICAL, "savings": 12.3449},
    **{f"unseen {name}": {**TYPICAL, name: value} for name, value in UNSEEN.items()},
    **{
        f"missing {name}": {**TYPICAL, name: None}
        for name in ("hours", "age", "pet", "home", "job", "badge", "planet")
    },
}


def encode(
    decoder: Decoder, instances: Sequence[Row], fixed: Ints | None = None, excluded: Any = None
) -> EncodedInstances:
    reading = decoder.schema.read(list(instances))
    assert not reading.problems
    labels = np.zeros(len(instances), dtype=np.int64)
    return decoder.encode_instances(reading.schema, reading.cells, labels, fixed, excluded)


def rows_on_line(
    decoder: Decoder,
    start: EncodedInstances,
    tau: Any,
    end: Tensor | None = None,
    frozen: bool = False,
) -> Floats:
    """Each encoded instance at each tau on the line to `end`: (instances, taus, columns)."""
    end = decoder.model.centroids()[2] if end is None else end
    tau = np.atleast_1d(np.asarray(tau, dtype=np.float64))
    count = len(start.cells)
    instance, where = np.repeat(np.arange(count), len(tau)), np.tile(tau, count)
    share = torch.as_tensor(where, dtype=torch.float32)[:, None]
    z = (1 - share) * start.z[torch.as_tensor(instance)] + share * end
    labels = np.ones(len(instance), dtype=np.int64)
    rows = decoder.path_rows(start, instance, where, z, labels, np.full(len(instance), frozen))
    return rows.reshape(count, len(tau), -1)


def column(name: str) -> int:
    return schema().index(name)


ALL = list(UNUSUAL.values())
GRID = np.linspace(0, 1, 41)
PICKS = ("first", "middle", "last")


# -- start and endpoint --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_path_starts_exactly_at_the_instance(seed: int) -> None:
    decoder = untrained_decoder(seed=seed)
    start = encode(decoder, ALL)
    rows = rows_on_line(decoder, start, 0.0)
    np.testing.assert_array_equal(rows[:, 0], start.cells)


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_path_ends_at_the_prototype_for_every_instance(seed: int, trees: bool) -> None:
    """No missing value, none beyond the range, no unseen category: the row is the prototype's."""
    decoder = untrained_decoder(trees, seed=seed)
    start = encode(decoder, [*ALL, *training_rows()[:20]])
    end = decoder.model.centroids()[2]
    prototype = decoder.decode(end[None], np.ones(1, dtype=np.int64))
    last = rows_on_line(decoder, start, 1.0, end)[:, 0]
    np.testing.assert_allclose(last, np.repeat(prototype, len(last), axis=0), atol=1e-4)


def test_the_papers_path_starts_at_the_reconstruction() -> None:
    decoder = untrained_decoder(follows_paper=True)
    start = encode(decoder, training_rows()[1:7])
    assert not start.residual.any()
    means = decoder.model.decode(start.z).double().numpy()
    here = rows_on_line(decoder, start, 0.0)[:, 0]
    numeric = schema().numeric
    np.testing.assert_allclose(
        here[:, numeric], decoder.schema.coding.units(means[:, : len(numeric)])
    )
    job = {f: (s, w) for f, s, w in schema().coding.blocks}[column("job")]
    likeliest = means[:, job[0] : job[0] + job[1]].argmax(axis=1)
    assert here[:, column("job")].tolist() == likeliest.tolist()


# -- numbers along the path ----------------------------------------------------------------------


def test_numbers_carry_the_fading_residual() -> None:
    decoder = untrained_decoder()
    instances = [
        TYPICAL,
        UNUSUAL["age between two integers"],
        UNUSUAL["savings finer than the resolution"],
        *training_rows()[1:6],
    ]
    start = encode(decoder, instances)
    end = decoder.model.centroids()[3]
    rows = rows_on_line(decoder, start, GRID, end)
    for i, t in itertools.product(range(len(instances)), range(len(GRID))):
        share = torch.tensor(GRID[t], dtype=torch.float32)
        z = (1 - share) * start.z[i] + share * end
        encoded = schema().encode(start.cells[i : i + 1])
        residual = encoded - decoder.model.decode(start.z[i : i + 1]).double().numpy()
        means = decoder.model.decode(z[None]).double().numpy() + (1 - GRID[t]) * residual
        for k, j in enumerate(schema().numeric):
            feature, original = schema().features[j], start.cells[i, j]
            if np.isnan(original):
                continue
            value = schema().coding.units(means[:, : len(schema().numeric)])[0, k]
            snapped = schema().snap(start.cells[i : i + 1])[0, j]
            apart = min(abs(value - snapped), abs(value - original))
            most = max(feature.step / 2, feature.tolerance)
            expected = original if apart <= most and GRID[t] < 1 else value
            slack = feature.span * 1e-4 if not feature.resolution else 1e-9
            # The last bit may round to the next step, and so across the tolerance.
            if abs(rows[i, t, j] - expected) > slack and abs(apart - most) > 1.01 * feature.step:
                assert abs(rows[i, t, j] - expected) <= feature.step * 1.01
    ages = rows[:, :, column("age")]
    assert (ages[:, 0] == start.cells[:, column("age")]).all()


def test_rows_differ_from_the_instance_by_more_than_the_tolerance_or_not_at_all() -> None:
    columns = replace(
        schema(),
        features=tuple(
            replace(f, tolerance=f.span / 20) if f.kind == "continuous" else f
            for f in schema().features
        ),
    )
    plain, decoder = untrained_decoder(), replace(untrained_decoder(), schema=columns)
    instances = [*training_rows()[:20], UNUSUAL["savings finer than the resolution"]]
    cells, labels = columns.cells(instances), np.zeros(len(instances), dtype=np.int64)
    start = decoder.encode_instances(columns, cells, labels)
    rows = rows_on_line(decoder, start, np.linspace(0, 1, 100))
    before = rows_on_line(plain, encode(plain, instances), np.linspace(0, 1, 100))
    kept = 0
    for j, feature in enumerate(columns.features):
        if feature.kind == "continuous":
            apart = np.abs(rows[:, :-1, j] - start.cells[:, None, j])
            assert (apart[apart > 0] > feature.tolerance).all()
            kept += (rows[:, :-1, j] != before[:, :-1, j]).sum()
    assert kept > 100
    np.testing.assert_array_equal(rows[:, -1], before[:, -1])  # the prototype is as it was


@pytest.mark.parametrize("missing", [False, True])
def test_an_unseen_ordinal_level_is_left_halfway(missing: bool) -> None:
    """It has no place in the order, and it is not missing, whatever its flag is."""
    instances = training_rows()
    if missing:
        instances[5] = {**instances[5], "size": None}
    columns = Schema.infer(instances, KINDS)
    model = LGMVAE(Shape(len(columns.numeric), columns.coding.widths, (1, 1), latent=3, hidden=8))
    decoder = Decoder(columns, model.eval().requires_grad_(False), ())
    start = encode(decoder, [UNUSUAL["unseen size"]])
    size = rows_on_line(decoder, start, GRID, model.centroids()[1])[0, :, column("size")]
    assert (size == 3).tolist() == [tau < 0.5 for tau in GRID]
    assert set(size) <= {0.0, 1.0, 2.0, 3.0}


@given(st.integers(0, 4), st.floats(0, 1), st.sampled_from(list(UNUSUAL)), st.booleans())
@settings(max_examples=60)
def test_rows_keep_bounds_resolution_and_known_categories(
    seed: int, tau: float, instance: str, trees: bool
) -> None:
    decoder = untrained_decoder(trees) if trees else untrained_decoder(seed=seed)
    start = encode(decoder, [UNUSUAL[instance]])
    for frozen in (False, True):
        row = rows_on_line(decoder, start, tau, frozen=frozen)[0, 0]
        original = start.cells[0]
        for j, feature in enumerate(start.schema.features):
            if row[j] == original[j] or (np.isnan(row[j]) and np.isnan(original[j])):
                continue
            assert not np.isnan(row[j]), f"{feature.name} was present and went missing"
            if feature.numeric:
                assert feature.lower <= row[j] <= feature.upper
                if feature.resolution:
                    steps = row[j] / feature.resolution
                    assert steps == pytest.approx(round(steps), abs=1e-6)
            else:
                assert row[j] in range(len(feature.categories))


# -- missing values ------------------------------------------------------------------------------


def test_a_missing_number_appears_when_its_flag_fades() -> None:
    for bias, appears in ((-30.0, True), (30.0, False)):
        decoder = biased(untrained_decoder(), hours_missing=bias)
        start = encode(decoder, [UNUSUAL["missing hours"]])
        hours = rows_on_line(decoder, start, GRID)[0, :, column("hours")]
        missing = np.isnan(hours)
        assert missing[0]
        assert (not missing[-2]) == appears
        assert not missing[-1]  # the endpoint has no missing value
        assert (np.diff(missing.astype(int)) <= 0).all()  # never missing again


def test_a_number_missing_only_in_the_instance_appears_halfway() -> None:
    decoder = untrained_decoder()
    start = encode(decoder, [UNUSUAL["missing age"]])
    age = rows_on_line(decoder, start, GRID)[0, :, column("age")]
    assert np.isnan(age).tolist() == [tau < 0.5 for tau in GRID]


def test_a_missing_category_may_become_one() -> None:
    decoder = biased(untrained_decoder(), pet=-30.0, badge=-30.0)  # their last state is missing
    start = encode(decoder, [UNUSUAL["missing pet"], UNUSUAL["missing badge"]])
    rows = rows_on_line(decoder, start, GRID)
    pet, badge = rows[0, :, column("pet")], rows[1, :, column("badge")]
    for cells in (pet, badge):
        assert np.isnan(cells[0])
        assert not np.isnan(cells[-1])
        assert (np.diff(np.isnan(cells).astype(int)) <= 0).all()


@pytest.mark.parametrize("trees", [False, True])
def test_no_present_cell_goes_missing(trees: bool) -> None:
    decoder = biased(untrained_decoder(trees), pet=30.0, badge=30.0, hours_missing=30.0)
    instances = [TYPICAL, UNUSUAL["unseen pet"], UNUSUAL["unseen badge"]]
    start = encode(decoder, instances)
    assert not np.isnan(rows_on_line(decoder, start, GRID)).any()
    end = decoder.decode(decoder.model.centroids(), np.array([0, 0, 1, 1]))
    assert not np.isnan(end).any()


# -- unseen categories ---------------------------------------------------------------------------


def test_an_unseen_category_stays_while_no_known_one_is_stronger() -> None:
    """The known categories share what the unknown one has lost: a block of zeros comes in."""
    decoder = untrained_decoder()
    for instance, name in (("unseen job", "job"), ("unseen home", "home")):
        start = encode(decoder, [UNUSUAL[instance]])
        j = column(name)
        first, width = next((s, w) for f, s, w in schema().coding.blocks if f == j)
        end = decoder.model.centroids()[2]
        for tau in np.linspace(0.02, 0.98, 49):
            share = torch.tensor(tau, dtype=torch.float32)
            z = (1 - share) * start.z + share * end
            now, then = (decoder.model.decode(p).double().numpy()[0] for p in (z, start.z))
            p, q = now[first : first + width], then[first : first + width]
            if width == 1:
                p, q = np.array([1 - p[0], p[0]]), np.array([1 - q[0], q[0]])
            known = p - (1 - tau) * q  # sums to tau
            assert known.sum() == pytest.approx(tau, abs=1e-6)
            if abs(known.max() - (1 - tau)) < 1e-4:
                continue
            cell = rows_on_line(decoder, start, tau, end)[0, 0, j]
            expected = start.cells[0, j] if 1 - tau > known.max() else known.argmax()
            assert cell == expected


# -- the choice of categories --------------------------------------------------------------------


def anchored_scores(
    decoder: Decoder, start: EncodedInstances, i: int, tau: float, z: Tensor
) -> list[Floats]:
    """The score of each state of each block, for an instance without unknown states."""
    least = decoding.MIN_PROBABILITY if decoder.trees else 1e-9
    encoded = schema().encode(start.cells[i : i + 1])[0]
    now, then = (decoder.model.decode(p[None]).double().numpy()[0] for p in (z, start.z[i]))
    means = now + (1 - tau) * (encoded - then)
    blocks = []
    for block, (feature, first, width) in enumerate(schema().coding.blocks):
        part = means[first : first + width]
        part = np.array([1 - part[0], part[0]]) if width == 1 else part
        scores = np.log(np.maximum(part, least))
        original = start.states[i, block]
        scores[original] += decoding.ORIGINAL_BONUS * (1 - tau)
        if schema().features[feature].missing and original != len(scores) - 1:
            scores[-1] = -np.inf
        blocks.append(scores)
    return blocks


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
def test_categories_are_the_best_of_all_combinations(trees: bool, constrained: bool) -> None:
    decoder = untrained_decoder(trees)
    instances = training_rows()[:12]
    rng = np.random.default_rng(1)
    widths = schema().coding.block_states
    fixed = excluded = None
    if constrained:
        original = encode(decoder, instances).states
        fixed = np.where(rng.random(original.shape) < 0.3, original, -1)
        excluded = rng.random((12, sum(widths))) < 0.2
    start = encode(decoder, instances, fixed, excluded)
    end = decoder.model.centroids()[2]
    combinations = np.array(list(itertools.product(*map(range, widths))))
    for tau in (0.1, 0.5, 0.9):
        chosen = schema().coding.states(rows_on_line(decoder, start, tau, end)[:, 0])
        for i in range(12):
            share = torch.tensor(tau, dtype=torch.float32)
            blocks = anchored_scores(decoder, start, i, tau, (1 - share) * start.z[i] + share * end)
            scores = np.concatenate(blocks)
            if excluded is not None and fixed is not None:
                scores[excluded[i]] = -np.inf
            stops = np.cumsum(widths)
            score = np.zeros(len(combinations))
            for block, (last, width) in enumerate(zip(stops, widths, strict=True)):
                fixed_state = -1 if fixed is None else fixed[i, block]
                if fixed_state >= 0:
                    score[combinations[:, block] != fixed_state] = -np.inf
                else:
                    score += scores[last - width : last][combinations[:, block]]
            tree = decoder.trees[1] if trees else None
            for j, parent in enumerate(tree.parents if tree else ()):
                above = combinations[:, parent] if parent >= 0 else 0
                score = score + tree.tables[j][above, combinations[:, j]]
            if not np.isfinite(score.max()):
                continue  # everything is excluded: left to the projection
            place = np.flatnonzero((combinations == chosen[i]).all(axis=1))[0]
            assert score[place] == pytest.approx(score.max(), abs=1e-4)


def test_a_frozen_category_line_keeps_every_category() -> None:
    decoder = untrained_decoder(trees=True)
    start = encode(decoder, ALL)
    frozen_line, line = (
        rows_on_line(decoder, start, GRID, frozen=frozen) for frozen in (True, False)
    )
    categorical, numeric = schema().coding.categorical, schema().numeric
    original = np.broadcast_to(
        start.cells[:, None, categorical], frozen_line[:, :, categorical].shape
    )
    np.testing.assert_array_equal(frozen_line[:, :, categorical], original)
    np.testing.assert_array_equal(frozen_line[:, :, numeric], line[:, :, numeric])
    assert not np.array_equal(line[:, :, categorical], original, equal_nan=True)


# -- density and samples -------------------------------------------------------------------------


def test_samples_repeat_by_seed_and_are_rows_of_the_table() -> None:
    decoder = untrained_decoder()
    one, two, other = (decoder.sample(1, 400, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other, equal_nan=True)
    assert decoder.sample(0, 0, 0).shape == (0, len(schema().features))
    for j, feature in enumerate(schema().features):
        cells = one[~np.isnan(one[:, j]), j]
        assert feature.missing or len(cells) == 400
        if feature.numeric:
            assert ((cells >= feature.lower) & (cells <= feature.upper)).all()
        else:
            assert set(cells) <= set(range(len(feature.categories)))


def test_sampled_categories_have_the_decoders_probabilities() -> None:
    rng = np.random.default_rng(0)
    shares = np.tile([0.2, 0.5, 0.3, 0.8, 0.1, 0.9], (20_000, 1))
    drawn = decoding._draw(shares, (3, 1, 2), rng)
    assert drawn.mean(axis=0).tolist() == pytest.approx([0.2, 0.5, 0.3, 0.8, 0.1, 0.9], abs=0.02)
    assert (drawn[:, :3].sum(axis=1) == 1).all()
    assert (drawn[:, 4:].sum(axis=1) == 1).all()
    assert abs(np.corrcoef(drawn[:, 1], drawn[:, 3])[0, 1]) < 0.03


# ------------------------------------------------------------------------------------------------
# Tracing, with rows that are their position and oracles that follow a script


@dataclass
class PositionDecoder:
    """A decoder whose rows are their position: tau and the latent point."""

    follows_paper: bool = False

    def path_rows(
        self, start: Any, instance: Ints, tau: Floats, z: Tensor, labels: Ints, frozen: Any
    ) -> Floats:
        assert ((tau > 0) & (tau < 1)).all()  # both ends are known and never decoded
        return np.stack([tau, z[:, 0].double().numpy(), frozen.astype(float)], axis=1)


Script = Callable[[float], bool]


@dataclass
class ScriptedOracle:
    """Ok where the script of a line is true; records every call."""

    scripts: Sequence[Script]
    feasible: Callable[[int, float], bool] = lambda line, tau: True
    probability: Callable[[int, float], float] = lambda line, tau: np.nan
    moved: float = 0.0
    calls: list[list[tuple[int, float]]] = field(default_factory=list)

    def __call__(self, tau: Floats, cells: Floats, lines: Ints) -> Steps:
        pairs = [(int(k), float(t)) for k, t in zip(lines, tau, strict=True)]
        self.calls.append(pairs)
        np.testing.assert_array_equal(cells[:, 0], tau)
        return self.evaluate(pairs, cells + self.moved)

    def evaluate(self, pairs: Sequence[tuple[int, float]], cells: Floats) -> Steps:
        return Steps(
            np.array([t for _, t in pairs]),
            cells,
            np.array([self.scripts[k](t) for k, t in pairs], dtype=np.int64),
            np.array([self.scripts[k](t) for k, t in pairs], dtype=np.int8),
            np.array([self.feasible(k, t) for k, t in pairs], dtype=bool),
            np.array([self.probability(k, t) for k, t in pairs], dtype=np.float64),
            np.full(len(pairs), np.nan),
        )

    def queried(self, line: int) -> list[float]:
        return sorted(t for call in self.calls for k, t in call if k == line)

    def ok(self, line: int, tau: float) -> bool:
        """Whether a row is ok; the instance never is."""
        return tau > 0 and self.scripts[line](tau) and self.feasible(line, tau)


def traced_by(
    oracle: ScriptedOracle,
    steps: int = 20,
    instance: Sequence[int] | None = None,
    prototype: Sequence[int] | None = None,
    frozen: Sequence[bool] | None = None,
    weights: Floats | None = None,
    follows_paper: bool = False,
    curve: Tensor | None = None,
    **how: Any,
) -> TracedPaths:
    count = len(oracle.scripts)
    origin = np.arange(count) if instance is None else np.array(instance)
    instances = int(origin.max(initial=-1)) + 1
    endpoint = np.zeros(count, dtype=np.int64) if prototype is None else np.array(prototype)
    start: Any = SimpleNamespace(
        schema=SimpleNamespace(gaps=lambda a, b: np.abs(a - b)),
        cells=np.zeros((instances, 3)),
        z=torch.zeros(instances, 1),
    )
    before = oracle.evaluate([(k, 0.0) for k in range(count)], np.zeros((count, 3)))
    before.valid[:] = 0
    lines = Lines(
        origin,
        endpoint,
        np.zeros(count, dtype=bool) if frozen is None else np.array(frozen),
        torch.arange(1.0, 2.0 + int(endpoint.max(initial=0)))[:, None],
        np.ones(count, dtype=np.int64),
        curve,
    )
    after = oracle.evaluate([(k, 1.0) for k in range(count)], np.tile([1.0, 1.0, 0.0], (count, 1)))
    how["weights"] = np.ones(3) if weights is None else weights
    decoder: Any = PositionDecoder(follows_paper)
    return trace(decoder, start, lines, before, after, oracle, steps=steps, **how)


def tau_of(traced: TracedPaths, pick: str, path: int = 0) -> float:
    return float(traced.steps.tau[path, getattr(traced, pick)[path]])


def is_ok(traced: TracedPaths, pick: str, path: int = 0) -> bool:
    return bool(traced.steps.ok[path, getattr(traced, pick)[path]])


def above(threshold: float) -> Script:
    return lambda tau: tau >= threshold


def between(*spans: tuple[float, float]) -> Script:
    return lambda tau: any(low <= tau <= high for low, high in spans)


def never(tau: float) -> bool:
    return False


@st.composite
def scripts(draw: Any) -> Script:
    """A label that flips at up to five places of the path."""
    cuts = sorted(draw(st.lists(st.floats(0.001, 0.999), max_size=5)))
    begins = draw(st.booleans())
    return lambda tau: begins ^ (sum(cut <= tau for cut in cuts) % 2 == 1)


def run_start(ok: Sequence[bool], stable: bool) -> int | None:
    """The start of the last unbroken run of ok steps, or the first ok step."""
    ok_steps = [i for i, o in enumerate(ok) if o]
    if not ok_steps:
        return None
    if not stable:
        return ok_steps[0]
    start = ok_steps[-1]
    while start > 0 and ok[start - 1]:
        start -= 1
    return start


def check_picks(
    tau: Floats, ok: Any, picked: dict[str, Ints], steps: int, stable: bool = True
) -> int:
    """The definition of picks, path by path; returns how many paths have an ok step."""
    grid, place = np.linspace(0, 1, steps + 1), steps + 2  # the grid, first, then the midpoint
    ok_paths = 0
    for path, (taus, good) in enumerate(zip(tau, ok, strict=True)):
        chosen = [int(picked[name][path]) for name in PICKS]
        first, middle, last = taus[chosen]
        np.testing.assert_allclose(taus[: steps + 1], grid)
        on_grid = np.flatnonzero(good[: steps + 1])
        if not len(on_grid):
            assert len(set(chosen)) == 1  # the best found is one row, marked as not ok
            assert not good[chosen[0]]
            assert first > 0
            continue
        ok_paths += 1
        start = run_start(good[: steps + 1], stable)
        assert good[chosen].all()
        assert grid[start - 1] < first
        assert last == taus[good].max()
        if stable:  # whatever was evaluated between first and last is ok
            assert good[(taus >= first) & (taus <= last)].all()
            assert first <= grid[on_grid[-1]]  # a midpoint that is not ok may have moved it on
        else:
            assert first <= grid[start]
        half = (first + 1) / 2
        if half >= grid[min(on_grid[-1] + 1, steps)] - 1e-12:  # beyond a step that is not ok
            assert middle == last
            continue
        assert taus[place] == pytest.approx(half)
        if good[place]:
            assert middle == taus[place]
        else:
            after = taus[good & (taus > half)]
            assert middle == (after.min() if len(after) else last)
    return ok_paths


# -- first ---------------------------------------------------------------------------------------


@given(st.lists(scripts(), min_size=1, max_size=4), st.integers(2, 12))
@settings(max_examples=150)
def test_every_step_from_first_to_the_end_of_its_run_is_ok(many: list[Script], steps: int) -> None:
    oracle = ScriptedOracle(many)
    traced = traced_by(oracle, steps)
    grid = [i / steps for i in range(steps + 1)]
    for path in range(len(many)):
        ok = [oracle.ok(path, tau) for tau in grid]
        start = run_start(ok, stable=True)
        assert is_ok(traced, "first", path) == (start is not None)
        if start is None:
            continue
        found = tau_of(traced, "first", path)
        assert grid[start - 1] < found
        queried = [t for call in oracle.calls for k, t in call if k == path]
        last = max(tau for tau, o in zip(grid, ok, strict=True) if o)
        assert all(oracle.ok(path, t) for t in queried if found <= t <= last)
        if found > grid[start] + 1e-12:  # a midpoint that is not ok moved it on
            assert any(grid[start] < t < found and not oracle.ok(path, t) for t in queried)
            continue
        before = max([t for t in queried if t < found], default=0.0)
        assert not oracle.ok(path, before)
        inside = [grid[start - 1] + k / 8 / steps for k in range(1, 9)]
        fine = [oracle.ok(path, t) for t in inside]
        if fine == sorted(fine):  # a single crossing, which is found exactly
            assert found == pytest.approx(inside[fine.index(True)], abs=1e-9)


@given(st.lists(scripts(), min_size=1, max_size=4), st.integers(2, 12))
@settings(max_examples=100)
def test_unstable_first_is_the_first_ok_row_that_was_queried(
    many: list[Script], steps: int
) -> None:
    oracle = ScriptedOracle(many)
    traced = traced_by(oracle, steps, stable=False)
    grid = [i / steps for i in range(steps + 1)]
    for path in range(len(many)):
        start = run_start([oracle.ok(path, tau) for tau in grid], stable=False)
        assert is_ok(traced, "first", path) == (start is not None)
        if start is None:
            continue
        found = tau_of(traced, "first", path)
        assert grid[start - 1] < found <= grid[start] + 1e-12
        assert not any(oracle.ok(path, t) for t in oracle.queried(path) if t < found)


def test_a_row_that_is_valid_but_not_feasible_is_not_ok() -> None:
    oracle = ScriptedOracle([above(0.2)], feasible=lambda line, tau: tau >= 0.7)
    assert tau_of(traced_by(oracle), "first") == pytest.approx(0.7, abs=1e-9)
    oracle = ScriptedOracle([above(0.2)], feasible=lambda line, tau: tau <= 0.71)
    traced = traced_by(oracle)
    assert tau_of(traced, "first") == pytest.approx(0.2, abs=1 / 8 / 20)
    assert tau_of(traced, "last") == pytest.approx(0.7)


# -- middle and last -----------------------------------------------------------------------------


@given(st.lists(scripts(), min_size=1, max_size=4), st.integers(2, 12), st.booleans())
@settings(max_examples=150)
def test_middle_and_last_by_looking_at_every_stored_step(
    many: list[Script], steps: int, stable: bool
) -> None:
    oracle = ScriptedOracle(many)
    traced = traced_by(oracle, steps, stable=stable)
    tau, ok = traced.steps.tau, traced.steps.ok
    for path, taus in enumerate(tau.tolist()):
        assert [oracle.ok(path, t) for t in taus] == ok[path].tolist()
    check_picks(tau, ok, {pick: getattr(traced, pick) for pick in PICKS}, steps, stable)


def test_a_midpoint_beyond_a_step_that_is_not_ok_is_not_evaluated() -> None:
    oracle = ScriptedOracle([between((0.5, 0.5), (0.74, 0.76))])
    traced = traced_by(oracle, steps=10)
    for pick in PICKS:
        assert tau_of(traced, pick) == pytest.approx(0.5)
    assert not any(tau == pytest.approx(0.75) for call in oracle.calls for _, tau in call)


def test_where_only_the_prototype_is_ok_all_picks_are_the_prototype() -> None:
    oracle = ScriptedOracle([between((1.0, 1.0))])
    traced = traced_by(oracle, steps=5)
    for pick in PICKS:
        assert tau_of(traced, pick) == 1.0
        assert is_ok(traced, pick)
        np.testing.assert_array_equal(
            traced.steps.cells[0, getattr(traced, pick)[0]], [1.0, 1.0, 0.0]
        )
    assert len(oracle.calls) == 4  # the grid and three halvings; no midpoint to query


# -- the paper's picks ---------------------------------------------------------------------------


@given(scripts(), st.integers(2, 12))
@settings(max_examples=80)
def test_the_papers_picks_are_taken_from_the_grid(script: Script, steps: int) -> None:
    oracle = ScriptedOracle([script])
    traced = traced_by(oracle, steps, follows_paper=True)
    grid = [i / steps for i in range(steps + 1)]
    assert tau_of(traced, "last") == 1.0
    ok_taus = [tau for tau in grid if oracle.ok(0, tau)]
    if ok_taus:
        assert tau_of(traced, "first") == pytest.approx(ok_taus[0])
        assert tau_of(traced, "middle") == pytest.approx((ok_taus[0] + 1) / 2)
    assert len(oracle.queried(0)) <= steps  # the inner grid and one midpoint


# -- no ok row -----------------------------------------------------------------------------------


@given(st.integers(2, 9), st.data())
@settings(max_examples=80)
def test_without_an_ok_row_the_best_found_is_picked(steps: int, data: Any) -> None:
    chance = [data.draw(st.sampled_from([0.1, 0.2, 0.3, np.nan])) for _ in range(steps + 1)]
    feasible = [data.draw(st.booleans()) for _ in range(steps + 1)]
    oracle = ScriptedOracle(
        [never],
        feasible=lambda line, tau: feasible[round(tau * steps)],
        probability=lambda line, tau: chance[round(tau * steps)],
    )
    traced = traced_by(oracle, steps)

    def rank(i: int) -> tuple[bool, float, int]:
        return feasible[i], 0.0 if np.isnan(chance[i]) else chance[i], i

    expected = max(range(1, steps + 1), key=rank) / steps
    for pick in PICKS:
        assert tau_of(traced, pick) == pytest.approx(expected)
        assert not is_ok(traced, pick)


def test_a_row_equal_to_the_instance_is_never_picked() -> None:
    """Near the start rows equal the instance, and have the highest probability."""

    class UnchangedAtFirst(ScriptedOracle):
        def evaluate(self, pairs: Sequence[tuple[int, float]], cells: Floats) -> Steps:
            still = np.array([t < 0.5 for _, t in pairs])[:, None]
            return super().evaluate(pairs, np.where(still, 0.0, cells))

    oracle = UnchangedAtFirst([never], probability=lambda line, tau: 0.9 - 0.5 * tau)
    traced = traced_by(oracle, steps=10)
    for pick in PICKS:
        assert tau_of(traced, pick) == pytest.approx(0.5)
        assert traced.steps.cells[0, getattr(traced, pick)[0]].any()


# -- what is queried, stored and counted ---------------------------------------------------------


def test_lines_are_queried_in_five_large_calls() -> None:
    oracle = ScriptedOracle([above(0.31), above(0.77), never, between((1.0, 1.0)), above(0.0)])
    traced_by(oracle, steps=10)
    grid, *halvings, middle = oracle.calls
    assert len(grid) == 5 * 9
    assert [[k for k, _ in call] for call in halvings] == [[0, 1, 3, 4]] * 3
    assert [k for k, _ in middle] == [0, 1, 4]  # a first at the prototype has no midpoint


def test_a_path_stores_grid_first_and_midpoint_as_evaluated() -> None:
    oracle = ScriptedOracle([above(0.31)], moved=0.5, probability=lambda line, tau: tau / 2)
    traced = traced_by(oracle, steps=10)
    first, middle = traced.steps.tau[0, 11:]
    assert traced.steps.tau[0, :11].tolist() == pytest.approx([i / 10 for i in range(11)])
    assert first == tau_of(traced, "first")
    assert middle == pytest.approx((first + 1) / 2)
    assert traced.steps.cells.shape == (1, 13, 3)
    np.testing.assert_allclose(traced.steps.cells[0, 1:10, 0], np.arange(1, 10) / 10 + 0.5)
    assert traced.steps.cells[0, 11, 0] == pytest.approx(first + 0.5)
    assert traced.steps.cells[0, 12, 0] == pytest.approx(middle + 0.5)
    np.testing.assert_array_equal(traced.steps.cells[0, 0], 0.0)  # the instance, unchanged
    np.testing.assert_allclose(traced.steps.probability, traced.steps.tau / 2)


@given(st.lists(scripts(), min_size=1, max_size=4), st.integers(2, 12))
@settings(max_examples=60)
def test_crossings_count_how_often_the_label_is_lost(many: list[Script], steps: int) -> None:
    traced = traced_by(ScriptedOracle(many, feasible=lambda line, tau: tau > 0.7), steps)
    for path, script in enumerate(many):
        label = [False] + [script(i / steps) for i in range(1, steps + 1)]
        lost = sum(a and not b for a, b in itertools.pairwise(label))
        assert traced.crossings[path] == lost


def test_rows_are_corrected_before_they_are_evaluated() -> None:
    """The ends are known: only rows between them are corrected, on their own lines."""
    seen: list[tuple[int, float]] = []

    def correct(tau: Floats, z: Tensor, cells: Floats, lines: Ints) -> Floats:
        np.testing.assert_allclose(cells[:, 1], z[:, 0])
        seen.extend(zip(lines.tolist(), tau.tolist(), strict=True))
        return cells + np.array([0.0, 0.0, 7.0])

    oracle = ScriptedOracle([above(0.31), never])
    traced = traced_by(oracle, steps=10, correct=correct)
    assert seen == [pair for call in oracle.calls for pair in call]
    np.testing.assert_array_equal(traced.steps.cells[0, [0, 10], 2], 0.0)
    np.testing.assert_array_equal(np.delete(traced.steps.cells[0], [0, 10], axis=0)[:, 2], 7.0)


def test_lines_are_straight_or_follow_their_curve() -> None:
    how: dict[str, Any] = {"steps": 4, "instance": [0, 0], "prototype": [0, 1]}  # at 1 and at 2
    straight = traced_by(ScriptedOracle([above(0.5)] * 2), **how).steps.cells[:, 1:4, 1]
    np.testing.assert_allclose(straight, [[0.25, 0.5, 0.75], [0.5, 1.0, 1.5]], rtol=1e-6)
    curve = torch.tensor([[0.0, 5.0, 1.0], [0.0, -3.0, 2.0]])[:, :, None]
    bent = traced_by(ScriptedOracle([above(0.5)] * 2), curve=curve, **how).steps.cells[:, 1:4, 1]
    np.testing.assert_allclose(bent, [[2.5, 5.0, 3.0], [-1.5, -3.0, -0.5]], rtol=1e-6)


# -- frozen-category lines -----------------------------------------------------------------------


def test_of_a_line_and_its_frozen_line_the_one_with_the_cheaper_first_is_kept() -> None:
    """Rows cost their tau, so the earlier first is the cheaper one."""
    scripts = [above(0.4), above(0.6), above(0.3), above(0.1), never, above(0.9)]
    oracle = ScriptedOracle([*scripts, above(0.4), above(0.4), never, never])
    traced = traced_by(
        oracle,
        instance=[0, 1, 2, 0, 1, 2, 3, 3, 4, 4],
        prototype=[0] * 10,
        frozen=[False, False, False, True, True, True, True, False, True, False],
        weights=np.array([1.0, 1.0, 0.0]),
    )
    assert traced.lines.tolist() == [3, 1, 2, 7, 9]  # of equal ones that which is not frozen
    firsts = [tau_of(traced, "first", path) for path in range(3)]
    assert firsts == pytest.approx([0.1, 0.6, 0.3], abs=1 / 8 / 20)


@given(st.lists(scripts(), min_size=2, max_size=5), st.booleans())
@settings(max_examples=60)
def test_a_path_does_not_depend_on_the_paths_beside_it(many: list[Script], stable: bool) -> None:
    together = traced_by(ScriptedOracle(many), 8, stable=stable)
    for path, script in enumerate(many):
        alone = traced_by(ScriptedOracle([script]), 8, stable=stable)
        for pick in PICKS:
            assert getattr(together, pick)[path] == getattr(alone, pick)[0]
        np.testing.assert_array_equal(together.steps.tau[path], alone.steps.tau[0])


# -- steps ---------------------------------------------------------------------------------------
