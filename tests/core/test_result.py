"""Results: picks that only select, tables and texts, and JSON that comes back whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapace import Counterfactuals, Explanation, InputError, Schema, WhyNot
from lapace.result import PICKS, STATUSES, json_schema
from lapace.table import read
from tests.damage import DAMAGE, damaged, places

HOMES = ("boat", "flat", "house")
KINDS = ("pandas", "polars", "pyarrow", "records")
SURVIVAL = ("survival", "survival_low", "survival_high")


def records(count: int) -> list[dict]:
    """Every kind of column; incomes to one decimal, some of them missing."""
    rng = np.random.default_rng(0)
    return [
        {
            "age": int(rng.integers(18, 80)),
            "income": None if i % 9 == 4 else round(float(rng.gamma(2, 20)), 1),
            "home": HOMES[i % 3],
            "owner": bool(i % 2),
        }
        for i in range(count)
    ]


def as_kind(rows: list[dict], kind: str):
    if kind == "records":
        return rows
    if kind == "pyarrow":
        return pa.Table.from_pylist(rows)
    return pd.DataFrame(rows) if kind == "pandas" else pl.DataFrame(rows)


SCHEMAS = {kind: Schema.infer(as_kind(records(200), kind)) for kind in KINDS}


def random_cells(schema: Schema, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows on the lattice, some cells missing."""
    cells = np.empty((*shape, 4))
    cells[..., 0] = rng.integers(18, 80, shape)
    cells[..., 1] = np.round(rng.uniform(0, 90, shape), 1)
    cells[..., 2] = rng.integers(0, 3, shape)
    cells[..., 3] = rng.integers(0, 2, shape)
    cells[..., 1][rng.random(shape) < 0.1] = np.nan
    return cells


def made_up(
    seed: int = 0,
    instances: int = 5,
    prototypes: int = 3,
    kind: str = "records",
    picks: tuple[str, ...] = PICKS,
) -> Explanation:
    """An explanation that no explainer made: any verdicts, any picks."""
    rng = np.random.default_rng(seed)
    schema = SCHEMAS[kind]
    status = tuple(rng.choice(STATUSES[:3] * 3 + STATUSES[3:], instances).tolist())
    tried = [i for i, s in enumerate(status) if s in STATUSES[:3]]
    instance = np.repeat(np.array(tried, dtype=np.int64), prototypes)
    size = 7
    tau = np.tile(np.r_[np.linspace(0, 1, 6), 0.35], (len(instance), 1))
    original = random_cells(schema, rng, instances)
    cells = random_cells(schema, rng, len(instance), size)
    cells[:, 0] = original[instance]
    gone = np.array([s == "malformed" for s in status], dtype=bool)
    label = np.where(gone, -1, rng.integers(0, 3, instances))
    on_path = [name for name in picks if name in ("first", "middle", "last")]
    picked = {name: rng.integers(1, 7, len(instance)) for name in on_path}
    probability = rng.random((len(instance), size))
    probability[rng.random(probability.shape) < 0.2] = np.nan
    names = np.array(["maybe", "no", "yes", None], dtype=object)
    explanation = Explanation(
        schema=schema,
        template=schema.template,
        labels=("maybe", "no", "yes"),
        instances=original,
        label=names[label],
        target=names[np.where(gone, -1, rng.integers(0, 3, instances))],
        status=status,
        reason=tuple(f"Because {i}." for i in range(instances)),
        constraints=("fixed age",),
        instance=instance,
        prototype=np.tile(np.arange(prototypes), len(tried)),
        tau=tau,
        cells=cells,
        predicted=rng.integers(-1, 3, (len(instance), size)),
        valid=rng.integers(-1, 2, (len(instance), size)).astype(np.int8),
        feasible=rng.random((len(instance), size)) < 0.7,
        probability=probability,
        density=rng.uniform(0, 1, (len(instance), size)),
        **{name: rng.random((len(instance), size)) for name in SURVIVAL},
        distance=schema.gaps(original[instance][:, None], cells).sum(axis=2),
        picked=picked,
        crossings=rng.integers(0, 3, len(instance)),
        n_queries=int(rng.integers(0, 999)),
        costs={"age": 2.0},
        confidence=0.75,
        plausibility=0.1,
        search={"steps": 6, "stable": True, "enforce": "exact", "picks": picks, "n_best": 3},
        minimal={},
    )
    minimal = {"nearest": np.array(tried, dtype=np.int64)}
    minimal["best"] = np.repeat(minimal["nearest"], rng.integers(1, 4, len(tried)))
    found = {
        name: minimal_rows(explanation, rng, minimal[name])
        for name in ("nearest", "best")
        if name in picks
    }
    if "best" in found:
        found["enough"] = enough_of(found["best"], rng)
    return replace(explanation, minimal=found)


def minimal_rows(
    explanation: Explanation, rng: np.random.Generator, instance: np.ndarray
) -> Counterfactuals:
    """Rows of `nearest` or `best` that no explainer made, each instance's nearest first."""
    schema, instances, count = explanation.schema, explanation.instances, len(instance)
    cells = random_cells(schema, rng, count)
    distance = schema.gaps(instances[instance], cells).sum(axis=1)
    order = np.lexsort((distance, instance))
    marks = np.array(["", "edge", "unusual", "edge, unusual"], dtype=object)
    return Counterfactuals.of(
        schema,
        instances,
        cells[order],
        instance,
        valid=rng.random(count) < 0.8,
        template=explanation.template,
        prototype=rng.integers(-1, 3, count),
        label=np.array([*explanation.labels], dtype=object)[rng.integers(0, 3, count)],
        feasible=rng.random(count) < 0.8,
        probability=rng.random(count),
        density=rng.uniform(0, 1, count),
        rank=np.arange(count) - np.searchsorted(instance, instance),
        mark=marks[rng.integers(0, 4, count)],
        **{name: rng.random(count) for name in SURVIVAL},
    )


def enough_of(safe: Counterfactuals, rng: np.random.Generator) -> Counterfactuals:
    """The other ends of ways: some of their changes are undone, their ages lie in between."""
    before = safe.instances[safe.instance]
    cells = np.where(rng.random(safe.cells.shape) < 0.3, before, safe.cells)
    cells[:, 0] = np.round((before[:, 0] + cells[:, 0]) / 2)
    gone = safe.schema.gaps(before, cells).sum(axis=1)
    return replace(safe, cells=cells, distance=gone, effort=safe.schema.effort(before, cells))


def rebound(explanation: Explanation, **changes) -> Explanation:
    """The explanation with other instances or ids, in its minimal rows too."""
    new = replace(explanation, **changes)
    names = ("template", "instances", "ids")
    shared = {name: getattr(new, name) for name in names}
    return replace(new, minimal={k: replace(rows, **shared) for k, rows in new.minimal.items()})


seeds = st.integers(0, 10_000)


# --- picks -----------------------------------------------------------------------------------


@given(seeds)
def test_a_pick_is_the_chosen_step_of_each_path_in_order(seed):
    explanation = made_up(seed)
    for name in ("first", "middle", "last"):
        found = getattr(explanation, name)()
        assert found.instance.tolist() == explanation.instance.tolist()
        assert found.prototype.tolist() == explanation.prototype.tolist()
        for path, step in enumerate(explanation.picked[name]):
            np.testing.assert_array_equal(found.cells[path], explanation.cells[path, step])
            assert found.valid[path] == (explanation.valid[path, step] == 1)
            assert found.feasible[path] == explanation.feasible[path, step]
            assert found.distance[path] == explanation.distance[path, step]
            assert found.density[path] == explanation.density[path, step]


@given(seeds)
def test_nearest_is_one_minimal_row_per_instance_and_best_the_first_of_some(seed):
    explanation = made_up(seed)
    nearest, best = explanation.nearest(), explanation.best()
    assert nearest is explanation.minimal["nearest"]
    assert best is explanation.minimal["best"] is explanation.best(end="safe")
    assert explanation.best(end="enough") is explanation.minimal["enough"]
    for k in (1, np.int64(2), 3):
        some = explanation.best(k)
        for i in nearest.instance:
            mine = np.flatnonzero(best.instance == i)[:k]
            assert some.rank[some.instance == i].tolist() == list(range(len(mine)))
            np.testing.assert_array_equal(some.cells[some.instance == i], best.cells[mine])
        assert set(some.instance) == set(best.instance)
        other = explanation.best(k, end="enough")
        assert other.instance.tolist() == some.instance.tolist()
        assert other.rank.tolist() == some.rank.tolist()
        enough = explanation.minimal["enough"]
        np.testing.assert_array_equal(other.cells, enough.cells[enough.rank < k])


def test_best_is_asked_for_as_many_as_were_computed():
    explanation = made_up(3)
    for k in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match=f"k is {k!r}; it must be a whole number from 1"):
            explanation.best(k)
    for end, hint in (("sufe", r" Did you mean 'safe'\?"), (None, ""), ("first", "")):
        with pytest.raises(InputError, match=rf"end is {end!r}; .* 'safe' or at 'enough'\.{hint}"):
            explanation.best(end=end)
    with pytest.raises(InputError, match=r"Only the best 3 were computed.*Search\(n_best=4\)"):
        explanation.best(4)


@pytest.mark.parametrize("pick", PICKS)
def test_a_pick_that_was_not_computed_says_so(pick):
    others = tuple(name for name in PICKS if name != pick)
    explanation = made_up(3, picks=others)
    assert all(len(getattr(explanation, name)()) for name in others)
    message = rf"The pick '{pick}' was not computed: .*Search\(picks=\(.*'{pick}'\)\)"
    with pytest.raises(InputError, match=message) as error:
        getattr(explanation, pick)()
    wanted = eval(str(error.value).split("picks=")[1].removesuffix(")."))
    assert set(wanted) == set(PICKS)
    instance = explanation[int(explanation.instance[0])]
    with pytest.raises(InputError, match=message):
        instance.changes(pick)
    again = Explanation.from_json(explanation.to_json())
    assert again == explanation
    with pytest.raises(InputError, match=message):
        getattr(again, pick)()
    alone = made_up(3, picks=(pick,))
    ends = {"best": ("best", "enough")}
    assert (*alone.picked, *alone.minimal) == ends.get(pick, (pick,))
    assert Explanation.from_json(alone.to_json()) == alone


@given(seeds, st.floats(0, 1))
def test_at_is_the_stored_step_nearest_tau(seed, tau):
    explanation = made_up(seed)
    found = explanation.at(tau)
    assert len(found) == len(explanation.instance)
    for path in range(len(found)):
        away = np.abs(explanation.tau[path] - tau)
        assert abs(found.tau[path] - tau) == np.nanmin(away)
    for wrong in (-0.01, 1.01, np.nan, np.inf):
        with pytest.raises(InputError, match="from 0, the instance, to 1"):
            explanation.at(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_picks_of_no_instances_are_empty_tables(kind):
    explanation = made_up(instances=0, kind=kind)
    for pick in (*(getattr(explanation, name)() for name in PICKS), explanation.at(0.5)):
        assert len(pick) == 0
        assert len(pick.rows) == len(pick.about) == len(pick.frame) == 0
    assert len(explanation) == 0
    assert list(explanation) == []
    assert repr(explanation) == "Explanation of 0 instances"


# --- counterfactuals -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_rows_about_and_frame_agree_with_each_other(kind):
    found = made_up(3, kind=kind).first()
    types = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table, "records": list}
    for table in (found.rows, found.about, found.frame):
        assert isinstance(table, types[kind])
        assert len(table) == len(found)
    rows, about, both = (_records(t) for t in (found.rows, found.about, found.frame))
    assert both == [{**a, **r} for a, r in zip(about, rows, strict=True)]
    assert list(both[0]) == [*rows[0], *about[0]], "the table's columns come first"
    assert [r["home"] for r in rows] == [HOMES[int(c)] for c in found.cells[:, 2]]
    assert [r["income"] for r in rows] == [None if np.isnan(c) else c for c in found.cells[:, 1]]
    assert [a["instance"] for a in about] == found.instance.tolist()
    assert [a["changed"] for a in about] == found.changed.tolist()
    assert list(about[0]) == [
        "instance", "prototype", "rank", "tau", "label", "valid", "feasible", "probability",
        "density", "survival", "survival_low", "survival_high", "distance",
        "effort", "changed", "mark", "features",
    ]  # fmt: skip


def _records(table) -> list[dict]:
    """Any table as records, whatever its library calls missing."""
    if isinstance(table, pa.Table):
        table = table.to_pylist()
    elif not isinstance(table, list):
        table = table.to_dict("records") if isinstance(table, pd.DataFrame) else table.to_dicts()
    return [
        {k: None if v is None or v is pd.NA or v != v else v for k, v in row.items()}
        for row in table
    ]


def test_changed_features_are_counted_and_named():
    schema = SCHEMAS["records"]
    instance = np.array([[30.0, 20.0, 0.0, 1.0], [40.0, np.nan, 1.0, 0.0]])
    rows = np.array([[31.0, 20.0, 2.0, 1.0], [40.0, 5.5, 1.0, 0.0], [30.0, 20.01, 0.0, 1.0]])
    found = Counterfactuals.of(
        schema, instance, rows, np.array([0, 1, 0]), valid=np.array([True, False, True])
    )
    assert found.changed.tolist() == [2, 1, 0]  # a hundredth is under the column's resolution
    assert [line["features"] for line in found.about] == ["age, home", "income", ""]
    moved = schema.metric.coordinates(rows) - schema.metric.coordinates(instance[[0, 1, 0]])
    age, income = moved[0, 0], moved[2, 1]
    np.testing.assert_allclose(found.distance, [age + 1, 1.0, income], atol=1e-12)
    # A fifth for each change; what is no change is no effort either.
    np.testing.assert_allclose(found.effort, [age + 1.4, 1.2, 0.0], atol=1e-12)
    spans = schema["age"].span, schema["income"].span
    ranged = schema.by_range().distance(instance[[0, 1, 0]], rows)
    np.testing.assert_allclose(ranged, [1 / spans[0] + 1, 1.0, 0.01 / spans[1]])
    assert found.ok.tolist() == [True, False, True]
    assert found.prototype.tolist() == [-1, -1, -1]
    assert np.isnan(found.tau).all()
    assert np.isnan(found.probability).all()
    assert np.isnan(found.density).all()
    assert np.isnan([found.survival, found.survival_low, found.survival_high]).all()
    assert (found.rank.tolist(), found.mark.tolist()) == ([0, 0, 0], ["", "", ""])


def test_columns_called_like_ours_stay_apart():
    names = ("instance", "lapace_instance", "tau", "id", "lapace_id")
    table = [{name: float(i + k) for k, name in enumerate(names)} for i in range(60)]
    for kind in KINDS:
        schema = Schema.infer(as_kind(table, kind))
        cells = schema.cells(as_kind(table[:2], kind))
        found = Counterfactuals.of(
            schema, cells, cells[::-1], np.arange(2), valid=np.ones(2, bool), ids=("p", "q")
        )
        frame = found.frame
        columns = list(frame[0]) if kind == "records" else read(frame).names
        assert len(set(columns)) == len(columns)
        first = 0 if kind == "pandas" else 1  # pandas has the id as its index
        assert tuple(columns[first : first + 5]) == names
        line = _records(frame)[0]
        assert line["lapace_lapace_instance"] == 0
        assert (line["instance"], line["lapace_instance"], line["tau"]) == (1, 2, 3)
        assert line["lapace_tau"] is None
        assert line.get("lapace_lapace_id") == (None if kind == "pandas" else "p")


# --- instances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_summary_is_one_line_per_instance(kind):
    explanation = made_up(3, instances=9, kind=kind)
    lines = _records(explanation.summary)
    assert len(lines) == len(explanation) == 9
    for line, instance in zip(lines, explanation, strict=True):
        assert line["status"] == instance.status
        assert line["reason"] == instance.reason
        assert line["label"] == instance.label
        assert line["target"] == instance.target
    assert any(line["label"] is None for line in lines) == ("malformed" in explanation.status)


def test_repr_counts_and_names():
    explanation = made_up(1, instances=12)
    text = repr(explanation)
    for status in set(explanation.status):
        assert f"{explanation.status.count(status)} {status.replace('_', ' ')}" in text
    instance = explanation[0]
    assert repr(instance).startswith(
        f"Instance 0: {instance.label} → {instance.target}: {instance.status}."
    )
    named = replace(explanation, ids=tuple("abcdefghijkl"))[2]
    assert repr(named).startswith("Instance c: ")
    with pytest.raises(InputError, match="Instance c has no path"):
        named.path(99)


# --- slices, equality, notebooks -----------------------------------------------------------------


@settings(max_examples=25)
@given(seeds, st.lists(st.integers(0, 7), max_size=9))
def test_a_slice_is_an_explanation_of_those_instances(seed, positions):
    whole = rebound(made_up(seed, instances=8), ids=tuple("abcdefgh"))
    mask = np.isin(np.arange(8), positions)
    for key, chosen in (
        (positions, positions),
        (np.array(positions, dtype=np.int64), positions),
        (mask, np.flatnonzero(mask).tolist()),
        (slice(2, 7, 2), [2, 4, 6]),
        (slice(-3, None), [5, 6, 7]),
    ):
        part = whole[key]
        assert len(part) == len(chosen)
        assert part.n_queries == whole.n_queries
        for new, old in zip(part, chosen, strict=True):
            one = whole[old]
            assert (new.id, new.label, new.target) == (one.id, one.label, one.target)
            assert (new.status, new.reason, new.row) == (one.status, one.reason, one.row)
            assert new.prototypes == one.prototypes
            for prototype in new.prototypes:
                left, right = new.path(prototype), one.path(prototype)
                np.testing.assert_array_equal(left.cells, right.cells)
                assert left.label.tolist() == right.label.tolist()
                assert set(left.instance.tolist()) == {new.position}
        for name in ("nearest", "best", "enough"):
            rows, found = whole.minimal[name], part.minimal[name]
            expected = [k for i in chosen for k in np.flatnonzero(rows.instance == i)]
            np.testing.assert_array_equal(found.cells, rows.cells[expected])
            assert found.mark.tolist() == rows.mark[expected].tolist()
            assert found._row_ids == tuple(whole.ids[i] for i in rows.instance[expected])
        assert Explanation.from_json(part.to_json()).to_json() == part.to_json()


def test_a_slice_keeps_reasons_and_why_nots_with_their_instances():
    whole = made_up(1, instances=12)
    lost = next(i for i, status in enumerate(whole.status) if status == "none_found")
    whole = replace(whole, why_not={lost: WhyNot("none_found", text="Why.")}, request=object())
    part = whole[lost : lost + 2]
    assert part[0].why_not.text == "Why."
    assert list(part.why_not) == [0]
    assert whole[[i for i in range(12) if i != lost]].why_not == {}
    assert part.request is whole.request
    for wrong in ([12], [-13], np.ones(3, dtype=bool), 12, -13):
        with pytest.raises(IndexError):
            whole[wrong]
    assert (whole[-1].position, whole[np.int64(2)].position) == (11, 2)


@given(seeds)
def test_explanations_compare_by_what_their_json_holds(seed):
    one, other = made_up(seed), made_up(seed)
    assert one == replace(other, seconds={"total": 3.0}, request=object())
    assert one[0] == other[0]
    assert one != replace(other, n_queries=other.n_queries + 1)
    assert one != replace(other, reason=("", *other.reason[1:]))
    assert one != replace(other, instances=other.instances + 1)
    assert one != one.to_json()
    if len(one.instance):
        assert one != replace(other, tau=other.tau / 2)
        assert one != replace(other, minimal={**other.minimal, "best": other.nearest()})
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


# --- identifiers -----------------------------------------------------------------------------


def queried(kind: str, ids) -> Explanation:
    """An explanation of five instances of a table that identifies its rows."""
    rows = records(5)
    if kind == "pandas":
        table = pd.DataFrame(rows, index=pd.Index(ids, name="customer"))
    else:
        table = as_kind([{"id": i, **row} for i, row in zip(ids, rows, strict=True)], kind)
    reading = SCHEMAS[kind].read(table)
    explanation = rebound(made_up(3, kind=kind), template=reading.template, ids=reading.ids)
    assert explanation.ids == tuple(ids)
    return explanation


@pytest.mark.parametrize("kind", KINDS)
def test_frames_carry_the_ids_of_the_instances(kind):
    ids = ["A", "B", "C", "D", "E"]
    explanation = queried(kind, ids)
    first = explanation.first()
    repeated = [ids[i] for i in first.instance]
    assert len(repeated) > len(set(repeated))
    path = explanation[int(first.instance[0])].path()
    assert explanation[int(first.instance[0])].id == repeated[0]
    for table, expected in (
        (explanation.summary, ids),
        (first.about, repeated),
        (first.frame, repeated),
        (path.frame, repeated[:1] * len(path)),
    ):
        if kind == "pandas":
            assert table.index.tolist() == expected
            assert table.index.name == "customer"
            assert "id" not in table.columns
        else:
            assert [row["id"] for row in _records(table)] == expected
            assert next(iter(_records(table)[0])) == "id"
    if kind == "pandas":
        assert first.rows.index.tolist() == repeated
    assert tuple(_records(first.rows)[0]) == explanation.schema.names


@pytest.mark.parametrize("kind", KINDS)
def test_json_keeps_ids(kind):
    explanation = queried(kind, [7, 8, 9, 10, 2**60 + 1])
    data = json.loads(json.dumps(explanation.to_json()))
    jsonschema.validate(data, json_schema())
    again = Explanation.from_json(data)
    assert again == explanation
    assert again.ids == (7, 8, 9, 10, 2**60 + 1)
    assert _records(again.summary) == _records(explanation.summary)
    assert "id" not in made_up(3, kind=kind).to_json()["instances"][0]
    del data["instances"][0]["id"]
    with pytest.raises(InputError, match="some instances have an id and some have none"):
        Explanation.from_json(data)


def test_ids_of_several_parts():
    explanation = rebound(made_up(3, kind="pandas"), ids=tuple((n, 1) for n in "abcde"))
    template = replace(explanation.template, index=("branch", None))
    explanation = rebound(explanation, template=template)
    again = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    assert again == explanation
    assert list(again.summary.index.names) == ["branch", None]
    assert again.summary.index.tolist() == [(n, 1) for n in "abcde"]


# --- any other label ---------------------------------------------------------------------------


def test_any_other_says_which_label_was_reached():
    explanation = one_path()
    explanation = replace(
        explanation,
        target=np.array([None], dtype=object),
        predicted=np.array([[1, 0, 0, 2, 2, 2, -1]]),
        valid=np.array([[0, 1, 1, 1, 1, 1, 1]], dtype=np.int8),
        distance=np.array([[0.0, 3.0, 2.0, 1.0, 4.0, 5.0, 0.5]]),
    )
    instance = explanation[0]
    assert (instance.target, instance.wanted) == (None, "any-other")
    assert repr(instance).startswith("Instance 0: no → any-other: answered.")
    assert explanation.summary[0]["target"] == "any-other"
    assert {line["label"] for line in instance.changes("first")} == {"yes"}
    assert explanation.first().about[0]["label"] == "yes"
    again = Explanation.from_json(explanation.to_json())
    assert again == explanation
    steps = explanation.to_json()["instances"][0]["paths"][0]["steps"]
    assert [s["label"] for s in steps] == ["no", "maybe", "maybe", "yes", "yes", "yes", None]


def one_path(**changes) -> Explanation:
    """A path by hand: age moves from τ=0.4 on to stay, after a first try; home at 0.8."""
    explanation = made_up(instances=1, prototypes=1, picks=("first", "middle", "last"))
    original = np.array([30.0, np.nan, 0.0, 1.0])
    steps = np.tile(original, (7, 1))
    steps[:, 0] = [30, 33, 30, 36, 38, 40, 30]  # τ = 0, 0.2, 0.4, 0.6, 0.8, 1, and 0.35 beside them
    steps[4:6, 2] = 2
    steps[3:6, 1] = 1234.5
    return replace(
        explanation,
        status=("answered",),
        instance=np.array([0]),
        prototype=np.array([2]),
        instances=original[None],
        label=np.array(["no"], dtype=object),
        target=np.array(["yes"], dtype=object),
        predicted=np.full((1, 7), 2),
        tau=np.array([[0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.35]]),
        cells=steps[None],
        **{
            name: np.ones((1, 7), dtype=dtype)
            for name, dtype in (("valid", np.int8), ("feasible", bool), ("distance", float))
        },
        probability=np.full((1, 7), 0.5),
        density=np.full((1, 7), 0.5),
        **{name: np.full((1, 7), 0.8) for name in SURVIVAL},
        picked={"first": np.array([4]), "middle": np.array([5]), "last": np.array([5]), **changes},
        crossings=np.array([0]),
    )


def test_changes_says_before_after_and_from_where():
    assert one_path()[0].changes("first") == [
        {"feature": "age", "before": "30", "after": "38"},
        {"feature": "income", "before": "missing", "after": "1,234.5"},
        {"feature": "home", "before": "boat", "after": "house"},
    ]
    assert one_path()[0].changes("last", prototype=2)[0]["after"] == "40"
    assert one_path(first=np.array([2]))[0].changes("first") == []  # equal to the instance
    assert one_path()[0].row == {"age": 30, "income": None, "home": "boat", "owner": True}
    path = one_path()[0].path(2)
    assert path.tau.tolist() == [0.0, 0.2, 0.35, 0.4, 0.6, 0.8, 1.0]
    assert path.cells[:, 0].tolist() == [30, 33, 30, 30, 36, 38, 40]


def test_changes_of_nearest_are_those_of_its_row():
    explanation = made_up(3)
    for instance in explanation:
        rows = explanation.nearest()
        mine = rows.where(rows.instance == instance.position)
        if len(mine):
            table = instance.changes("nearest")
            assert [line["feature"] for line in table] == [
                name for name in mine.about[0]["features"].split(", ") if name
            ]
            assert all(list(line) == ["feature", "before", "after"] for line in table)
            ages = [line["after"] for line in table if line["feature"] == "age"]
            assert ages in ([], [f"{mine.cells[0, 0]:.0f}"])
        with pytest.raises(InputError, match=rf"no nearest row {len(mine)}: Because"):
            instance.changes("nearest", rank=len(mine))
        np.testing.assert_array_equal(instance.nearest().cells, mine.cells)


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_best_are_those_of_both_its_ends(kind):
    explanation, unchanged = made_up(3, kind=kind), 0
    best, schema = explanation.best(), explanation.schema
    for instance in explanation:
        mine = np.flatnonzero(best.instance == instance.position)
        for rank, row in enumerate(mine):
            table = _records(instance.changes(rank=rank))
            before = explanation.instances[instance.position]
            ends = {"before": before, "enough": explanation.minimal["enough"].cells[row]}
            ends["safe"] = best.cells[row]
            changed = np.flatnonzero(schema.changed(before, best.cells[row]))
            assert [line["feature"] for line in table] == [schema.names[i] for i in changed]
            for line, i in zip(table, changed, strict=True):
                assert list(line) == ["feature", "before", "enough", "safe"]
                for name, cells in ends.items():
                    assert line[name] == schema.features[i].text(cells[i])
                if not schema.changed(before, ends["enough"])[i]:  # what enough leaves as it is
                    assert line["enough"] == line["before"]
                    unchanged += 1
        with pytest.raises(InputError, match=rf"no best row {len(mine)}: Because"):
            instance.changes(rank=len(mine))
        for end, rows in (("safe", best), ("enough", explanation.minimal["enough"])):
            np.testing.assert_array_equal(instance.best(end=end).cells, rows.cells[mine])
        if len(mine):
            assert _records(instance.changes()) == _records(instance.changes("best", rank=0))
    assert unchanged > 3


def test_all_steps_are_every_path_in_order():
    explanation = made_up(3)
    found = explanation.all_steps()
    paths = [
        one.path(p)
        for one in explanation
        for p in (0, 1, 2)
        if (explanation.instance == one.position).any()
    ]
    for name in ("cells", "tau", "instance", "prototype", "distance"):
        expected = np.concatenate([getattr(path, name) for path in paths])
        np.testing.assert_array_equal(getattr(found, name), expected)


def test_prototypes_are_those_of_the_nearest_ok_step_first():
    explanation = made_up(5, instances=8)
    for instance in explanation:
        paths = np.flatnonzero(explanation.instance == instance.position)
        least = [
            min(explanation.distance[path][explanation.ok[path]], default=np.inf) for path in paths
        ]
        order = sorted(range(len(paths)), key=lambda k, least=least: least[k])
        assert instance.prototypes == tuple(explanation.prototype[paths[k]] for k in order)
        if len(paths):
            np.testing.assert_array_equal(
                instance.path().cells, instance.path(instance.prototypes[0]).cells
            )


def test_what_is_not_there_is_said():
    explanation = made_up(1, instances=12)
    settled = next(p for p in explanation if p.status == "already_target")
    with pytest.raises(InputError, match=rf"Instance {settled.position} has no paths: Because"):
        settled.path()
    with pytest.raises(InputError, match="has no paths"):
        settled.changes("first")
    with pytest.raises(InputError, match=r"has no best row 0: Because"):
        settled.changes()
    answered = next(p for p in explanation if p.status == "answered")
    with pytest.raises(InputError, match=r"no path to prototype 9. There are: 0, 1, 2\."):
        answered.path(9)
    with pytest.raises(InputError, match=r"no pick 'furst'\. There are: best.* mean 'first'"):
        answered.changes(pick="furst")


# --- JSON ------------------------------------------------------------------------------------


def test_a_document_of_an_earlier_lapace_is_valid_and_read_back():
    file = Path(__file__).parent / "data" / "explanation-4.json"
    data = json.loads(file.read_text())
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(data, json_schema())
    again = Explanation.from_json(file)
    assert again.to_json() == data
    assert again == made_up(4, instances=3, prototypes=1)
    assert json_schema()["properties"]["version"] == {"enum": [data["version"]]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(damaged(data, ("instances", 0, "status"), "fine"), json_schema())


@settings(max_examples=40)
@given(seeds, st.sampled_from([0, 1, 6, 12]), st.sampled_from(KINDS))
def test_json_round_trip(seed, instances, kind):
    explanation = made_up(seed, instances=instances, kind=kind)
    text = json.dumps(explanation.to_json(), allow_nan=False)
    again = Explanation.from_json(json.loads(text))
    jsonschema.validate(json.loads(text), json_schema())
    assert again == explanation
    if len(explanation.instance):
        assert again.valid.dtype == explanation.valid.dtype
        for name in ("tau", "cells", "predicted", "valid", "feasible", "density", "survival"):
            np.testing.assert_array_equal(getattr(again, name), getattr(explanation, name))
    for name in PICKS:
        one, other = getattr(explanation, name)(), getattr(again, name)()
        np.testing.assert_array_equal(one.cells, other.cells)
    np.testing.assert_array_equal(explanation.at(0.4).tau, again.at(0.4).tau)
    assert _records(explanation.summary) == _records(again.summary)


def test_json_has_null_for_the_prototype_of_a_row_without_a_path():
    explanation = made_up(3, kind="records")
    data, nulls = explanation.to_json(), 0
    jsonschema.validate(data, json_schema())
    for name in ("nearest", "best", "enough"):
        rows = explanation.minimal[name]
        found = [row["prototype"] for one in data["instances"] for row in one[name]]
        assert found == [None if p < 0 else p for p in rows.prototype]
        assert [a["prototype"] for a in rows.about] == found
        nulls += found.count(None)
    assert nulls
    again = Explanation.from_json(data)
    assert again.best().prototype.tolist() == explanation.best().prototype.tolist()
    place = ("instances", int(explanation.instance[0]), "paths", 0, "prototype")
    with pytest.raises(InputError, match="is damaged"):  # a path leads to a prototype
        Explanation.from_json(damaged(data, place, None))


def test_a_way_without_its_other_end_is_refused():
    data = json.loads(json.dumps(made_up(3).to_json()))
    one = next(one for one in data["instances"] if one["enough"])
    one["enough"].pop()
    with pytest.raises(InputError, match="damaged: a way of best lacks one of its ends"):
        Explanation.from_json(data)


def test_json_has_both_ends_and_the_effort_of_rows():
    explanation = made_up(3)
    data = json.loads(json.dumps(explanation.to_json()))
    assert data["version"] == 4
    again = Explanation.from_json(data)
    for name in ("nearest", "best", "enough"):
        rows = explanation.minimal[name]
        efforts = [row["effort"] for one in data["instances"] for row in one[name]]
        assert efforts == rows.effort.tolist()
        np.testing.assert_array_equal(again.minimal[name].effort, rows.effort)
        np.testing.assert_array_equal(again.minimal[name].cells, rows.cells)
        assert again.minimal[name].rank.tolist() == rows.rank.tolist()


def test_json_keeps_the_options_of_the_query():
    explanation = made_up(4)
    data = json.loads(json.dumps(explanation.to_json()))
    search = {**explanation.search, "picks": list(PICKS)}
    numbers = {"costs": {"age": 2.0}, "confidence": 0.75, "plausibility": 0.1}
    assert data["options"] == {**numbers, "search": search}
    assert Explanation.from_json(data).search == explanation.search
    fixed = replace(explanation, costs={"age": np.inf, "income": np.int64(3)})
    text = json.dumps(fixed.to_json(), allow_nan=False)
    jsonschema.validate(json.loads(text), json_schema())
    assert Explanation.from_json(json.loads(text)) == fixed
    plain = Explanation.from_json(replace(explanation, costs=None, confidence=None).to_json())
    assert (plain.costs, plain.confidence, plain.request) == (None, None, None)


def test_json_keeps_booleans_and_numbers_apart():
    explanation = made_up(4)
    names = {"maybe": False, "no": True, "yes": 7, None: None}
    label = np.array([names[v] for v in explanation.label], dtype=object)
    other = replace(explanation, labels=(False, True, 7), label=label, target=label, minimal={})
    other = replace(other, search={**other.search, "picks": ("first", "middle", "last")})
    again = Explanation.from_json(json.loads(json.dumps(other.to_json())))
    assert [type(label) for label in again.labels] == [bool, bool, int]
    assert list(map(type, again.label)) == list(map(type, label))
    assert list(map(type, again.first().label)) == list(map(type, other.first().label))


def test_json_is_written_to_a_file_whole_or_not_at_all(tmp_path):
    explanation, file = made_up(4), tmp_path / "explanation.json"
    with pytest.raises(InputError, match="There is no file"):
        Explanation.from_json(file)
    assert explanation.to_json(file) == json.loads(file.read_text())
    assert Explanation.from_json(file) == Explanation.from_json(str(file)) == explanation
    whole = file.read_text()
    with pytest.raises(TypeError):
        replace(explanation, reason=tuple(object() for _ in range(5))).to_json(file)
    assert file.read_text() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["explanation.json"]
    for content in (b"", whole[:1000].encode(), whole[:-1].encode(), b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="could not be read"):
            Explanation.from_json(file)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("format",), "else", "This is not a lapace explanation"),
        (("version",), 3, "of format version 3, and this lapace reads version 4"),
        (("version",), 99, "of format version 99, and this lapace reads version 4"),
        (("extra",), 1, "is damaged: Object contains unknown field `extra`"),
        (("instances", 1, "status"), "fine", r"damaged: .*'fine', at instances\[1\]\.status"),
        (("instances", 1, "label"), "perhaps", "the classifier has no label 'perhaps'"),
        (("instances", 1, "row", 2), "tent", "column 'home' of a row holds no value of it"),
        (("schema", "features", 0, "kind"), "odd", r"'odd', at schema\.features\[0\]\.kind"),
        (("options", "search", "picks"), ["furst"], "picks is .*there are best, nearest"),
        (("template", "names"), ["age"], "template does not have the columns of the schema"),
        (("options", "costs"), {"agee": 2.0}, "damaged: Column 'agee' is not in the table"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_with_the_place(place, value, message):
    data = made_up(1, instances=12).to_json()
    with pytest.raises(InputError, match=message):
        Explanation.from_json(damaged(data, place, value))
    for foreign in ({}, [], 3, None):
        with pytest.raises(InputError, match="not a lapace explanation"):
            Explanation.from_json(foreign)


def test_damaged_json_is_refused_or_still_works():
    """Wherever a document is hurt, a sentence comes out, or an explanation one can use."""
    rng = np.random.default_rng(0)
    data = json.loads(json.dumps(made_up(4, instances=3, prototypes=2).to_json()))
    refused, every = 0, list(places(data))
    chosen = [p for p in every if len(p) <= 4 or "steps" not in p]
    rest = [p for p in every if p not in set(chosen)]
    chosen += [rest[i] for i in rng.choice(len(rest), 60, replace=False)]
    for place in chosen:
        for value in DAMAGE:
            try:
                found = Explanation.from_json(damaged(data, place, value))
            except InputError:
                refused += 1
                continue
            for pick in found.picked:
                rows = getattr(found, pick)()
                assert len(rows.about) == len(rows)
            for rows in found.minimal.values():
                assert len(rows.about) == len(rows)
            assert "best" not in found.minimal or set(found.best(1).rank) <= {0}
            assert len(found.at(0.5).rows) == (found.prototype >= 0).sum()
            assert len(found.summary) == len(found)
    assert refused > len(chosen)
