"""Results: picks that only select, words an instance reads, and JSON that comes back whole."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields, replace

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapace import Counterfactuals, Explanation, InputError, Schema
from lapace.result import STATUSES, json_schema

HOMES = ("boat", "flat", "house")
KINDS = ("pandas", "polars", "pyarrow", "records")


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
    sparse: bool = True,
) -> Explanation:
    """An explanation that no explainer made: any verdicts, any picks."""
    rng = np.random.default_rng(seed)
    schema = SCHEMAS[kind]
    status = tuple(rng.choice(STATUSES[:3] * 3 + STATUSES[3:], instances).tolist())
    tried = [i for i, s in enumerate(status) if s in STATUSES[:3]]
    instance = np.repeat(np.array(tried, dtype=np.int64), prototypes)
    size = 7 + sparse
    tau = np.tile(np.r_[np.linspace(0, 1, 6), 0.35], (len(instance), 1))
    if sparse:
        tau = np.c_[tau, np.full(len(instance), np.nan)]
    own = random_cells(schema, rng, instances)
    cells = random_cells(schema, rng, len(instance), size)
    cells[:, 0] = own[instance]
    gone = np.array([s == "malformed" for s in status], dtype=bool)
    label = np.where(gone, -1, rng.integers(0, 3, instances))
    picks = ("first", "middle", "last") + (("sparse",) if sparse else ())
    picked = {name: rng.integers(1, 7, len(instance)) for name in picks}
    if sparse:
        picked["sparse"] = np.full(len(instance), 7)
    probability = rng.random((len(instance), size))
    probability[rng.random(probability.shape) < 0.2] = np.nan
    names = np.array(["maybe", "no", "yes", None], dtype=object)
    return Explanation(
        schema=schema,
        template=schema.template,
        labels=("maybe", "no", "yes"),
        instances=own,
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
        density=rng.uniform(0, 100, (len(instance), size)),
        density_before=rng.uniform(0, 100, (len(instance), size)),
        distance=schema.gaps(own[instance][:, None], cells).sum(axis=2),
        picked=picked,
        crossings=rng.integers(0, 3, len(instance)),
        n_queries=int(rng.integers(0, 999)),
    )


def same(a: Explanation, b: Explanation) -> None:
    """Equal in every field, types of arrays included."""
    for field in fields(Explanation):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "schema":  # training's own knowledge is not published
            assert [replace(f, histogram=((), ())) for f in left.features] == [
                replace(f, histogram=((), ())) for f in right.features
            ]
        elif field.name == "picked":
            assert list(left) == list(right)
            for name in left:
                np.testing.assert_array_equal(left[name], right[name])
        elif isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


seeds = st.integers(0, 10_000)


# --- picks -----------------------------------------------------------------------------------


@given(seeds)
def test_a_pick_is_the_chosen_step_of_each_path_in_order(seed):
    answer = made_up(seed)
    for name in ("first", "middle", "last"):
        found = getattr(answer, name)()
        assert found.instance.tolist() == answer.instance.tolist()
        assert found.prototype.tolist() == answer.prototype.tolist()
        for path, step in enumerate(answer.picked[name]):
            np.testing.assert_array_equal(found.cells[path], answer.cells[path, step])
            assert found.valid[path] == (answer.valid[path, step] == 1)
            assert found.feasible[path] == answer.feasible[path, step]
            assert found.distance[path] == answer.distance[path, step]
            assert found.density[path] == answer.density[path, step]


@given(seeds)
def test_nearest_is_the_good_row_of_least_distance_on_any_path(seed):
    answer = made_up(seed)
    found = answer.nearest()
    assert found.instance.tolist() == sorted(set(answer.instance.tolist()))
    for k, instance in enumerate(found.instance):
        good = [
            answer.distance[path, step]
            for path in np.flatnonzero(answer.instance == instance)
            for step in range(7)  # the eighth is the sparse row, which lies on no path
            if answer.valid[path, step] == 1 and answer.feasible[path, step]
        ]
        if good:
            assert found.ok[k]
            assert found.distance[k] == min(good)
        else:
            assert not found.ok[k]
            firsts = answer.first().where(answer.instance == instance)
            assert any(np.array_equal(found.cells[k], row, equal_nan=True) for row in firsts.cells)
            assert found.feasible[k] == firsts.feasible.any()  # obeying comes before hoping


@given(seeds)
def test_sparse_is_the_cheapest_sparse_row(seed):
    answer = made_up(seed)
    found = answer.sparse()
    assert found.instance.tolist() == sorted(set(answer.instance.tolist()))
    step = 7
    for k, instance in enumerate(found.instance):
        rows = np.flatnonzero(answer.instance == instance)
        good = rows[answer.ok[rows, step]]
        assert found.ok[k] == (len(good) > 0)
        if len(good):
            assert found.distance[k] == answer.distance[good, step].min()


def test_sparse_has_to_be_asked_for():
    with pytest.raises(InputError, match="sparse=True"):
        made_up(sparse=False).sparse()


@given(seeds, st.floats(0, 1))
def test_at_is_the_stored_step_nearest_tau(seed, tau):
    answer = made_up(seed)
    found = answer.at(tau)
    assert len(found) == len(answer.instance)
    for path in range(len(found)):
        away = np.abs(answer.tau[path] - tau)
        assert abs(found.tau[path] - tau) == np.nanmin(away)


@pytest.mark.parametrize("tau", [-0.01, 1.01, np.nan, np.inf])
def test_tau_goes_from_the_person_to_the_prototype(tau):
    with pytest.raises(InputError, match="from 0, the instance, to 1"):
        made_up().at(tau)


def test_ok_is_valid_and_feasible_and_unasked_is_not_ok():
    answer = made_up()
    assert (answer.valid == -1).any()
    assert not answer.ok[answer.valid != 1].any()
    assert not answer.ok[~answer.feasible].any()
    assert answer.ok.sum() == ((answer.valid == 1) & answer.feasible).sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_picks_of_nobody_are_empty_tables(kind):
    answer = made_up(instances=0, kind=kind, sparse=False)
    picks = [answer.first(), answer.middle(), answer.last(), answer.nearest(), answer.at(0.5)]
    for pick in picks:
        assert len(pick) == 0
        assert len(pick.rows) == len(pick.about) == len(pick.frame) == 0
    assert len(answer) == 0
    assert list(answer) == []
    assert repr(answer) == "Explanation of 0 instances: nobody; 0 paths"


def test_an_explanation_counts_paths_to_somebody_nearby_apart():
    assert repr(made_up(instances=1)) == "Explanation of 1 instance: 1 already target; 0 paths"
    answer = made_up(instances=5, prototypes=3)
    paths = len(answer.instance)
    assert re.fullmatch(rf"Explanation of 5 instances: [\w ,]+; {paths} paths", repr(answer))
    nearby = replace(answer, prototype=np.where(answer.prototype == 1, -1, answer.prototype))
    moved = int((answer.prototype == 1).sum())
    assert moved > 0
    assert repr(nearby).endswith(f"; {paths - moved} paths, {moved} more to somebody nearby")
    someone = replace(answer[int(answer.instance[0])], called=13)
    assert repr(someone).startswith("Instance 13: ")
    with pytest.raises(InputError, match="Instance 13 has no path to prototype 99"):
        someone.path(99)


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
    assert [r["home"] for r in rows] == [HOMES[int(c)] for c in found.cells[:, 2]]
    assert [r["income"] for r in rows] == [None if np.isnan(c) else c for c in found.cells[:, 1]]
    assert [a["instance"] for a in about] == found.instance.tolist()
    assert [a["changed"] for a in about] == found.changed.tolist()
    assert list(about[0]) == [
        "instance", "prototype", "tau", "label", "valid", "feasible", "probability", "density",
        "density_before", "distance", "changed", "features",
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
    spans = schema["age"].span, schema["income"].span
    expected = [1 / spans[0] + 1, 1.0, 0.01 / spans[1]]
    np.testing.assert_allclose(found.distance, expected)
    assert found.ok.tolist() == [True, False, True]
    assert found.prototype.tolist() == [-1, -1, -1]
    assert np.isnan(found.tau).all()
    assert np.isnan(found.probability).all()
    assert np.isnan(found.density).all()


def test_distance_is_measured_on_cells_not_on_codes_read_again():
    """Codes of a category must not be taken for the numbers that the categories are."""
    table = np.stack([np.arange(60) % 3 * 10 + 5, np.arange(60.0)], axis=1)
    schema = Schema.infer(table, {"x0": "categorical", "x1": "continuous"})
    instances, rows = np.array([[0.0, 3.0]]), np.array([[2.0, 3.0]])
    found = Counterfactuals.of(schema, instances, rows, np.array([0]), valid=np.array([True]))
    assert found.distance.tolist() == [1.0]


def test_columns_called_like_ours_stay_apart():
    table = [{"instance": i % 7, "tau": float(i), "home": HOMES[i % 3]} for i in range(60)]
    schema = Schema.infer(table)
    cells = schema.cells(table[:2])
    found = Counterfactuals.of(schema, cells, cells[::-1], np.arange(2), valid=np.ones(2, bool))
    line = found.frame[0]
    assert (line["answer_instance"], line["instance"], line["tau"]) == (0, 1, 1.0)
    assert np.isnan(line["answer_tau"])


@given(seeds)
def test_picks_carry_the_reasons_of_instances_without_an_ok_row(seed):
    explanation = made_up(seed)
    for rows in (explanation.first(), explanation.nearest(), explanation.first().where([])):
        assert rows.reasons == {
            one.position: explanation.reason[one.position]
            for one in explanation
            if one.status != "answered"
        }


@given(seeds)
def test_where_keeps_some_answers_and_all_instances(seed):
    found = made_up(seed).first()
    mask = found.ok
    some = found.where(mask)
    assert len(some) == mask.sum()
    assert some.ok.all()
    assert some.instance.tolist() == found.instance[mask].tolist()
    np.testing.assert_array_equal(some.cells, found.cells[mask])
    assert some.instances is found.instances


def test_values_are_frozen():
    answer = made_up()
    with pytest.raises(AttributeError):
        answer.labels = ()
    with pytest.raises(AttributeError):
        answer.first().tau = None


# --- instances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_people_is_one_line_per_instance(kind):
    answer = made_up(3, instances=9, kind=kind)
    lines = _records(answer.summary)
    assert len(lines) == len(answer) == 9
    for line, instance in zip(lines, answer, strict=True):
        assert line["status"] == instance.status
        assert line["reason"] == instance.reason
        assert line["label"] == instance.label
        assert line["target"] == instance.target
    assert any(line["label"] is None for line in lines) == ("malformed" in answer.status)


def test_people_are_counted_from_both_ends():
    answer = made_up(instances=4)
    assert answer[-1].position == 3
    assert answer[np.int64(2)].position == 2
    for wrong in (4, -5):
        with pytest.raises(IndexError, match="the query had 4"):
            answer[wrong]


def test_repr_counts_and_names():
    answer = made_up(1, instances=12)
    text = repr(answer)
    for status in set(answer.status):
        assert f"{answer.status.count(status)} {status.replace('_', ' ')}" in text
    instance = answer[0]
    assert repr(instance).startswith(
        f"Instance 0: {instance.label} → {instance.target}: {instance.status}."
    )


def one_path(**changes) -> Explanation:
    """A path by hand: age moves from τ=0.4 on for good, after a first try; home at 0.8."""
    answer = made_up(instances=1, prototypes=1, sparse=False)
    own = np.array([30.0, np.nan, 0.0, 1.0])
    steps = np.tile(own, (7, 1))
    steps[:, 0] = [30, 33, 30, 36, 38, 40, 30]  # τ = 0, 0.2, 0.4, 0.6, 0.8, 1, and 0.35 beside them
    steps[4:6, 2] = 2
    steps[3:6, 1] = 1234.5
    return replace(
        answer,
        status=("answered",),
        instance=np.array([0]),
        prototype=np.array([2]),
        instances=own[None],
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
        density=np.full((1, 7), 50.0),
        density_before=np.full((1, 7), 60.0),
        picked={"first": np.array([4]), "middle": np.array([5]), "last": np.array([5]), **changes},
        crossings=np.array([0]),
    )


def test_changes_says_before_after_and_from_where():
    assert one_path()[0].changes() == [
        {"feature": "age", "before": "30", "after": "38", "from_tau": 0.6},
        {"feature": "income", "before": "missing", "after": "1,234.5", "from_tau": 0.6},
        {"feature": "home", "before": "boat", "after": "house", "from_tau": 0.8},
    ]
    assert one_path()[0].changes(2, pick="last")[0]["after"] == "40"


def test_changes_of_a_row_that_is_the_persons_own_are_none():
    assert one_path(first=np.array([2]))[0].changes() == []


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_changes_come_as_the_persons_kind_of_frame(kind):
    answer = made_up(3, kind=kind)
    instance = next(p for p in answer if p.status in STATUSES[:3])
    table = _records(instance.changes())
    own = answer.instances[instance.position]
    row = instance.path(instance.prototypes[0])
    assert list(table[0]) == ["feature", "before", "after", "from_tau"]
    assert len(row) == 7
    assert {line["feature"] for line in table} <= set(answer.schema.names)
    assert all(line["before"] != line["after"] for line in table)
    assert np.isnan(own[1]) == any(line["before"] == "missing" for line in table)


def test_a_path_is_every_step_in_order_of_tau():
    path = one_path()[0].path(2)
    assert path.tau.tolist() == [0.0, 0.2, 0.35, 0.4, 0.6, 0.8, 1.0]
    assert path.cells[:, 0].tolist() == [30, 33, 30, 30, 36, 38, 40]
    assert set(path.instance.tolist()) == {0}
    assert len(made_up(3)[0].path().tau) == 7  # the sparse row lies on no path


def test_prototypes_are_those_of_the_nearest_good_first_first():
    answer = made_up(5, instances=8)
    for instance in answer:
        paths = np.flatnonzero(answer.instance == instance.position)
        first = answer.first().where(answer.instance == instance.position)
        keys = [(not first.ok[k], first.distance[k]) for k in range(len(paths))]
        order = sorted(range(len(paths)), key=lambda k: keys[k])
        assert instance.prototypes == tuple(first.prototype[k] for k in order)
        if len(paths):
            np.testing.assert_array_equal(
                instance.path().cells, instance.path(instance.prototypes[0]).cells
            )


def test_what_is_not_there_is_said():
    answer = made_up(1, instances=12)
    nowhere = next(p for p in answer if p.status == "already_target")
    with pytest.raises(InputError, match=rf"Instance {nowhere.position} has no paths: Because"):
        nowhere.path()
    with pytest.raises(InputError, match="has no paths"):
        nowhere.changes()
    somebody = next(p for p in answer if p.status == "answered")
    with pytest.raises(InputError, match=r"no path to prototype 9. There are: 0, 1, 2\."):
        somebody.path(9)
    with pytest.raises(InputError, match=r"no pick 'furst'. There are: first, middle, last"):
        somebody.changes(pick="furst")


def test_a_persons_row_is_in_the_tables_own_words():
    answer = one_path()
    assert answer[0].row == {"age": 30, "income": None, "home": "boat", "owner": True}
    assert type(answer[0].row["age"]) is int


# --- JSON ------------------------------------------------------------------------------------


def test_the_published_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@settings(max_examples=40)
@given(seeds, st.integers(0, 6), st.sampled_from(KINDS), st.booleans())
def test_json_round_trip(seed, instances, kind, sparse):
    answer = made_up(seed, instances=instances, kind=kind, sparse=sparse)
    text = json.dumps(answer.to_json(), allow_nan=False)
    again = Explanation.from_json(json.loads(text))
    if len(answer.instance):
        same(answer, again)
        assert again.to_json() == answer.to_json()
    for name in ("first", "middle", "last", "nearest"):
        one, other = getattr(answer, name)(), getattr(again, name)()
        np.testing.assert_array_equal(one.cells, other.cells)
    np.testing.assert_array_equal(answer.at(0.4).tau, again.at(0.4).tau)
    assert _records(answer.summary) == _records(again.summary)


@pytest.mark.parametrize("instances", [0, 1, 12])
def test_json_is_what_the_published_schema_says(instances):
    answer = made_up(1, instances=instances)
    data = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    jsonschema.validate(data, json_schema())
    if instances == 12:
        assert set(answer.status) == set(STATUSES)  # everything that can be in it is in it
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(_damaged(data, ("instances", 0, "status"), "fine"), json_schema())


def test_json_file_round_trip(tmp_path):
    answer = made_up(4)
    file = tmp_path / "answer.json"
    assert json.loads(json.dumps(answer.to_json(file))) == json.loads(file.read_text())
    same(answer, Explanation.from_json(file))
    same(answer, Explanation.from_json(str(file)))
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


def test_json_keeps_booleans_and_numbers_apart():
    answer = made_up(4)
    names = {"maybe": False, "no": True, "yes": 7, None: None}
    label, target = (
        np.array([names[v] for v in array], dtype=object) for array in (answer.label, answer.target)
    )
    answer = replace(answer, labels=(False, True, 7), label=label, target=target)
    again = Explanation.from_json(json.loads(json.dumps(answer.to_json())))
    assert [type(label) for label in again.labels] == [bool, bool, int]
    assert again.label.tolist() == answer.label.tolist()


def test_writing_json_fails_without_a_trace(tmp_path):
    file = tmp_path / "answer.json"
    file.write_text("precious")
    broken = replace(made_up(4), reason=tuple(object() for _ in range(5)))
    with pytest.raises(TypeError):
        broken.to_json(file)
    assert file.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


@pytest.mark.parametrize("length", [0, 1, 17, 100, 1000, -1])
def test_a_truncated_file_is_refused(tmp_path, length):
    file = tmp_path / "answer.json"
    made_up(4).to_json(file)
    file.write_text(file.read_text()[:length])
    with pytest.raises(InputError, match="could not be read"):
        Explanation.from_json(file)


def test_a_file_that_is_no_explanation_is_refused(tmp_path):
    file = tmp_path / "answer.json"
    with pytest.raises(InputError, match="There is no file"):
        Explanation.from_json(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="could not be read"):
        Explanation.from_json(file)
    for foreign in ({}, [], 3, None, {"format": "else"}):
        file.write_text(json.dumps(foreign))
        with pytest.raises(InputError, match="not a lapace explanation"):
            Explanation.from_json(file)


def test_a_newer_version_is_refused_by_name():
    data = {**made_up(4).to_json(), "version": 99}
    with pytest.raises(InputError, match="of version 99"):
        Explanation.from_json(data)


def _places(value, path=()):
    """Every place in a JSON document."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _places(item, (*path, i))


def _damaged(data, path, value):
    if not path:
        return value
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


DAMAGE = (KeyError, None, -1, 10**30, 1.5, "x", True, [], {}, [[1]])


def test_damaged_json_is_refused_or_still_works():
    """Wherever a document is hurt, a sentence comes out, or an explanation one can use."""
    rng = np.random.default_rng(0)
    data = json.loads(json.dumps(made_up(4, instances=3, prototypes=2).to_json()))
    places = [p for p in _places(data) if p]
    refused = 0
    chosen = [p for p in places if len(p) <= 4 or "steps" not in p]
    rest = [p for p in places if p not in set(chosen)]
    chosen += [rest[i] for i in rng.choice(len(rest), 60, replace=False)]
    for place in chosen:
        for value in DAMAGE:
            try:
                found = Explanation.from_json(_damaged(data, place, value))
            except InputError:
                refused += 1
                continue
            for pick in (found.first, found.middle, found.last, found.nearest):
                assert len(pick().about) == len(pick())
            assert len(found.at(0.5).rows) == (found.prototype >= 0).sum()
            assert len(found.summary) == len(found)
    assert refused > len(chosen)
