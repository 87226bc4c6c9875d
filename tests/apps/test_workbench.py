"""The workbench without a browser: what it says, what it asks the library, who may open it."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from queue import Queue

import httpx
import numpy as np
import pytest
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from lapace import Explainer, Explanation, Feature, InputError, Schema
from lapace.apps.server import create_app, run
from lapace.apps.workbench import PATH, add_workbench
from lapace.apps.workbench.access import POLICY, add_login
from lapace.apps.workbench.columns import describe, form_values, place, read_values
from lapace.apps.workbench.limits import (
    EFFORTS,
    LimitQuery,
    differences,
    loosened,
    loosening,
    make_query,
)
from lapace.apps.workbench.session import Session, Shared
from lapace.apps.workbench.ways import cards, chosen_way, name_of_way
from lapace.constraints import parse
from lapace.result import Move, WhyNot
from tests import worlds

LABELS = ["refused", "approved"]
COOKIE = "lapace_session"


def bank_schema() -> Schema:
    return worlds.bank().explainer.schema_


@pytest.fixture(scope="module")
def shared():
    world = worlds.bank()
    return Shared(world.explainer, world.instances, "approved", advisers=True)


@pytest.fixture(scope="module")
def explanation(shared):
    """Of one refused instance with more than one way."""
    session = Session(shared)
    for position in range(len(shared.names)):
        row = form_values(shared.schema, shared.rows.cells[position])
        session._explain({"row": row, "limits": {"target": shared.page["target"]}})
        found = session._last[1]
        if found.status == ("answered",) and len(found.best()) > 1 and len(found.instance):
            return found
    raise AssertionError("no instance has two ways")


def refused(shared) -> dict:
    """The values of an instance that is refused."""
    position = shared.decisions.index("refused")
    return form_values(shared.schema, shared.rows.cells[position])


# --- columns -----------------------------------------------------------------------------------


def test_columns_say_what_a_form_needs():
    loan = Feature("loan", "continuous", written="€1,234.56", lower=0, upper=100, resolution=0.5)
    day = Feature("start", "continuous", written="2024-12-31", lower=0, upper=20_000)
    home = Feature("home_type", "categorical", categories=["own", "rent"])
    rows = [
        {"loan": "€5", "start": "2020-01-01", "home_type": "own"},
        {"loan": "€9", "start": "2021-01-01", "home_type": "rent"},
    ]
    schema = Schema.infer(rows, {"loan": loan, "start": day, "home_type": home})
    rules = map(parse, ("fixed home_type", "increasing loan", "loan <= original", "start <= 9"))
    first, second, third = describe(schema, list(rules))
    assert (first["lock"], second["lock"]) == ("keep", "")
    for left, right, height in first["scale"]:  # shares of the whole, no counts
        assert 0 <= left < right <= 1
        assert 0 <= height <= 1
    assert [place(loan, value) for value in (-5, 50, 1e9)] == [0, 0.5, 1]
    assert (first["kind"], first["before"], first["step"]) == ("number", "€", 0.5)
    assert second["kind"] == "date"
    assert (third["label"], third["levels"], third["lock"]) == (
        "Home type",
        ["own", "rent"],
        "keep",
    )


def test_rows_survive_the_form(shared):
    for cells in shared.rows.cells:
        read, problems = read_values(shared.schema, form_values(shared.schema, cells), cells)
        assert not problems
        np.testing.assert_array_equal(read, cells)


@pytest.mark.parametrize(
    ("name", "value"),
    [("age", "old"), ("age", "1e999"), ("age", [1]), ("age", True), ("home", 7), ("home", "own"),
     ("start", "2024-02-30"), ("start", "soon")],
)  # fmt: skip
def test_what_cannot_be_read_is_said_by_field(name, value):
    days = Schema.infer([{"start": f"2024-01-{day:02}"} for day in range(1, 30)])
    schema = days if name == "start" else bank_schema()
    found = read_values(schema, {name: value}, np.full(len(schema.features), np.nan))[1]
    assert list(found) == [name]
    assert found[name].endswith(".")


@pytest.mark.parametrize(
    ("value", "tried", "sentence"),
    [
        ("-5", True, "This must be between 1 and 200."),
        ("201", True, "This must be between 1 and 200."),
        ("2.5", True, "This must be a whole number."),
        (None, True, "This is needed."),
        ("7", True, ""),
        ("250", True, ""),  # as it was
        ("-5", False, "This is too far from the values known here: 1 to 200."),
        ("2.5", False, "This must be a whole number."),
        (None, False, "This is needed."),
        ("230", False, ""),  # a fact may lie a little outside
        ("1e9", False, "This is too far from the values known here: 1 to 200."),
    ],
)
def test_values_outside_bounds_and_lattice_are_refused(value, tried, sentence):
    rows = [{"Quantity": k, "Region": "ab"[k % 2]} for k in [*range(1, 201)] * 2]
    schema, before = Schema.infer(rows), np.array([250.0, 0.0])
    form = {"Quantity": value, "Region": 0}
    found = read_values(schema, form, before, tried=tried)[1]
    assert found == ({"Quantity": sentence} if sentence else {})


# --- limits ------------------------------------------------------------------------------------


def test_limits_are_constraints_and_costs():
    said = {
        "age": {"mode": "keep", "high": "50"},
        "income": {"mode": "up", "low": "10.5", "high": "90", "effort": 4},
        "home": {"mode": "free", "levels": [0, 1]},
        "grade": {"mode": "down", "effort": 0},
        "debt": {"mode": "free", "effort": 2},
    }
    query = make_query({"features": said, "most": 2, "typed": ["debt<=30"]}, bank_schema(), LABELS)
    assert not query.problems
    assert query.constraints == (
        "fixed age",
        "increasing income",
        "income >= 10.5",
        "income <= 90",
        "home in {original, kin, own}",
        "decreasing grade",
        "changes <= 2",
        "debt <= 30",
    )
    assert query.costs == {"income": EFFORTS[4], "grade": EFFORTS[0]}
    assert query.sources["income <= 90"] == ("income", "high")
    assert query.target is None
    targets = [make_query({"target": n}, bank_schema(), LABELS).target for n in (1, 7)]
    assert targets == ["approved", None]
    assert make_query({}, bank_schema(), ["a", "b", "c"]).target == "any-other"
    days = [{"start day": f"2024-01-{day:02}", "is on": day % 2 == 0} for day in range(1, 30)]
    odd = {"start day": {"low": "2024-01-10"}, "is on": {"levels": [1]}}
    assert make_query({"features": odd}, Schema.infer(days), LABELS).constraints == (
        '`start day` >= "2024-01-10"',
        "`is on` in {original, True}",
    )
    said = {"age": 5, "income": {"mode": "?", "effort": 99, "levels": 3}, "nope": {"mode": "keep"}}
    rubbish = {"features": said, "most": "many", "typed": None}
    assert make_query(rubbish, bank_schema(), LABELS) == LimitQuery()


def test_mistakes_in_typed_limits_get_the_languages_sentences():
    typed = ["incme >= 3", "income >=", "x" * 2000, "income <= -5"]
    query = make_query({"typed": typed}, bank_schema(), LABELS)
    assert not query.constraints
    assert [place for place, _ in query.problems] == [f"typed:{line}" for line in typed]
    assert "Did you mean 'income'" in query.problems[0][1]
    assert "can never hold" in query.problems[3][1]
    said = {"age": {"low": "old"}, "income": {"mode": "free", "high": "-5"}}
    problems = dict(make_query({"features": said}, bank_schema(), LABELS).problems)
    assert problems["limit:age"] == "This must be a number."
    assert problems["limit:income"].startswith("No known value is within this limit. Kn")


def test_loosening_changes_the_visitors_limits_only():
    schema = bank_schema()
    limits = {
        "features": {"income": {"mode": "up", "high": "40"}},
        "most": 1,
        "typed": ["debt <= 9"],
    }
    query = make_query(limits, schema, LABELS)
    moves = (
        Move("income <= 40", 10.0, "", "income <= 50"),
        Move("increasing income", None, "", None),
        Move("changes <= 1", 1.0, "", "changes <= 2"),
        Move("debt <= 9", 3.0, "", "debt <= 12"),
        Move("fixed age", None, "'fixed age' is left out", None),
    )
    why = WhyNot("none_found", drop=("income <= 40",), moves=moves)
    own = loosening(why, query)
    assert own == list(moves[:4])
    start = np.full(len(schema.features), 30.0)
    after = loosened(limits, own, query, schema, start)
    assert after["features"]["income"] == {"mode": "free", "high": "50"}
    assert (after["most"], after["typed"]) == (2, ["debt <= 12"])
    assert limits["most"] == 1  # what was handed over stays as it was
    said = differences(query, make_query(after, schema, LABELS), schema)
    assert said == [
        {"now": "income may only go up and is at most 40", "then": "income is at most 50"},
        {
            "now": "at most 1 thing changes, debt is at most 9",
            "then": "at most 2 things change, debt is at most 12",
        },
    ]
    clash = replace(why, drop=(), clash=("income <= 40", "fixed age"))
    assert loosening(clash, query) == [moves[0]]  # one is enough
    unknown = replace(clash, moves=())
    assert loosening(unknown, query) == [Move("income <= 40", None, "")]


def test_what_stays_fixed_is_not_said_to_be_loosened():
    both, one = (make_query({"typed": [t]}, bank_schema(), LABELS)
                 for t in ("fixed age, home", "fixed home"))  # fmt: skip
    said = [{"now": "age stays as it is", "then": ""}]
    assert differences(both, one, bank_schema()) == said


def test_a_date_of_today_is_no_mistake():
    schema = Schema.infer([{"start": f"2024-01-{day:02}"} for day in range(1, 30)])
    assert read_values(schema, {"start": "2031-01-01"})[1] == {}
    tried = read_values(schema, {"start": "2031-01-01"}, np.array([19_730.0]), tried=True)[1]
    assert tried == {"start": "This must be between 2024-01-01 and 2024-01-29."}


@pytest.mark.parametrize(
    ("said", "move", "expected"),
    [
        (
            {"mode": "keep", "high": "5"},
            Move("fixed income", 12.0, "", "income <= 99"),
            ("18", "42"),
        ),
        ({"mode": "up"}, Move("increasing income", 12.0, "", "income <= 99"), ("18", None)),
        (
            {"mode": "up", "low": "20"},
            Move("increasing income", 12.0, "", "income <= 99"),
            ("20", None),
        ),
        ({"mode": "down"}, Move("decreasing income", 12.0, "", "income <= 99"), (None, "42")),
        ({"mode": "keep"}, Move("fixed income", None, "", None), (None, None)),
    ],
)
def test_a_direction_is_loosened_by_no_more_than_is_needed(said, move, expected):
    schema, limits = bank_schema(), {"features": {"income": said}}
    query = make_query(limits, schema, LABELS)
    after = loosened(limits, [move], query, schema, np.full(len(schema.features), 30.0))
    found = after["features"]["income"]
    assert (found["mode"], found.get("low"), found.get("high")) == ("free", *expected)


def test_a_list_is_loosened_by_the_category_that_is_needed():
    schema, limits = bank_schema(), {"features": {"home": {"mode": "free", "levels": [0]}}}
    query = make_query(limits, schema, LABELS)
    move = Move(query.constraints[0], None, "", "home in {original, kin, rent}")
    after = loosened(limits, [move], query, schema, np.zeros(len(schema.features)))
    assert after["features"]["home"]["levels"] == [0, 2]


# --- ways --------------------------------------------------------------------------------------


def unchanged(rows):
    """No step is judged."""
    return rows


def test_a_dial_needs_nothing_but_the_stored_result(explanation):
    stored = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    again, now = cards(stored, unchanged), cards(explanation, unchanged)
    assert again["cards"]
    assert [card["title"] for card in again["cards"]] == [card["title"] for card in now["cards"]]
    json.dumps(again, allow_nan=False)


def test_every_stop_is_ok_and_named(shared, explanation):
    judge = Session(shared)._judged
    found = cards(explanation, judge)["cards"]
    names, best, enough = set(), explanation.best(3), explanation.best(3, end="enough")
    for card in found:
        keys = [stop["key"] for stop in card["stops"]]
        assert len(set(keys)) == len(keys)
        rank = int(keys[card["start"]].removeprefix("best"))
        apart = explanation.schema.differs(best.cells[rank], enough.cells[rank]).any()
        assert keys[: card["start"]] == ([f"enough{rank}"] if apart else [])
        assert all(key.startswith("path") for key in keys[card["start"] + 1 :])
        assert sum(stop.get("surest", False) for stop in card["stops"]) <= 1
        assert all(stop["meaning"] or stop["name"].startswith("Step") for stop in card["stops"])
        names |= {stop["name"] for stop in card["stops"]}
        keeps = [stop["keeps"] for stop in card["stops"]]
        assert keeps == sorted(keeps)
        for stop in card["stops"]:
            only = chosen_way(explanation, stop["key"], judge)
            assert len(only.best()) == len(only.best(end="enough")) == 1
            assert only.best().ok.all()
            end = only.best(end="enough" if stop["key"].startswith("enough") else "safe")
            assert len(stop["changes"]) == end.changed[0]
            assert stop["effort"] == pytest.approx(end.effort[0], abs=6e-4)
            assert stop["label"] == "approved"
            ends = only.best().cells, only.best(end="enough").cells
            both = stop["key"] in (f"best{rank}", f"enough{rank}") and apart
            assert explanation.schema.differs(*ends).any() == both
            said = any(change["enough"] for change in stop["changes"] + stop["follows"])
            assert said == (both and stop["key"] == f"best{rank}")
    edge = np.array(["edge" in mark for mark in best.mark])
    assert {f"best{k}" for k in best.rank} == {c["stops"][c["start"]]["key"] for c in found}
    assert "Just enough" in names
    assert ("Recommended" in names) == bool((~edge).any())
    assert ("Best found" in names) == bool(edge.any())
    for key in ("best9", "enough9", "path999:0", "path0:999", "nearest", "best0; x", "", "best-1"):
        with pytest.raises(ValueError, match="no such way"):
            chosen_way(explanation, key, unchanged)
    assert {"End of the way", "Half-way"} & names
    ends = [card["stops"][-1]["key"] for card in found]
    assert len(set(ends)) == len(ends)  # ways do not share their path


def test_a_badge_does_not_contradict_what_stands_beside_it(explanation):
    for edges in ("none", "all", "unlikely"):

        def judged(rows, edges=edges):
            edge = {
                "none": np.zeros(len(rows), dtype=bool),
                "all": np.ones(len(rows), dtype=bool),
                "unlikely": rows.probability <= 0.8,
            }[edges]
            return replace(rows, mark=np.where(edge, "edge", "").astype(object))

        minimal = {pick: judged(rows) for pick, rows in explanation.minimal.items()}
        found = cards(replace(explanation, minimal=minimal), judged)["cards"]
        for stop in (stop for card in found for stop in card["stops"]):
            assert not (stop["edge"] and stop.get("surest"))
            assert not (stop["edge"] and stop["name"] == "Recommended")
            if edges == "unlikely":  # "only just" is about the chance, not the place on the dial
                assert stop["edge"] == (stop["chance"] <= 0.8)


def test_a_stop_less_sure_than_the_one_before_is_left_out(shared, explanation):
    judge = Session(shared)._judged
    before = cards(explanation, judge)["cards"]
    safe, enough = explanation.best(), explanation.best(end="enough")
    surer = replace(enough, survival=np.ones(len(enough)))
    other = replace(explanation, minimal={**explanation.minimal, "enough": surer})
    for card in cards(other, judge)["cards"]:
        assert card["start"] == 0  # what is recommended stays
    sure = replace(safe, survival=np.ones(len(safe)))
    other = replace(explanation, minimal={**explanation.minimal, "best": sure})
    shorter = cards(other, judge)["cards"]
    assert sum(len(c["stops"]) for c in shorter) < sum(len(c["stops"]) for c in before)
    for card in shorter:
        assert all(stop["keeps"] == 1 for stop in card["stops"][card["start"] :])

    def silent(rows):  # survival is not known: the chance decides
        rows = judge(rows)
        return replace(rows, **dict.fromkeys(("survival", "survival_low"), rows.survival * np.nan))

    minimal = {pick: silent(rows) for pick, rows in explanation.minimal.items()}
    for card in cards(replace(explanation, minimal=minimal), silent)["cards"]:
        chances = [stop["chance"] for stop in card["stops"]]
        assert chances == sorted(chances)


def test_of_labels_alone_no_stop_is_flagged():
    shared = Shared(worlds.post().explainer, worlds.post().instances, "dear", advisers=True)
    session, position = Session(shared), shared.decisions.index("cheap")
    row = form_values(shared.schema, shared.rows.cells[position])
    found = session.answer({"kind": "explain", "row": row, "limits": {}})
    assert found["cards"]
    json.dumps(found, allow_nan=False)
    for card in found["cards"]:
        assert card["stops"][card["start"]]["name"] == "Just enough"
        assert card["start"] == 0  # its ends are one
        for stop in card["stops"]:
            assert not stop["edge"]
            assert not stop.get("surest")
            assert stop["chance"] is stop["keeps"] is None


def test_every_stop_is_judged_as_picks_are(shared, explanation):
    session, far = Session(shared), 0
    for rows in (explanation.best(), explanation.nearest(), explanation.last()):
        judged = session._judged(rows)
        for name in ("density", "survival", "survival_low", "survival_high"):
            np.testing.assert_allclose(getattr(judged, name), getattr(rows, name), atol=0.02)
    for rows in (explanation.best(), explanation.nearest()):
        assert ["edge" in mark for mark in session._judged(rows).mark] == [
            "edge" in mark for mark in rows.mark
        ]
    assert np.isnan(explanation.density[explanation.ok]).any()  # steps that no pick chose
    for stop in (s for card in cards(explanation, session._judged)["cards"] for s in card["stops"]):
        assert stop["usual"]
        assert 0 <= stop["keepsLow"] <= stop["keeps"] <= stop["keepsHigh"] <= 1
        if stop["key"].startswith("path"):
            only = chosen_way(explanation, stop["key"], session._judged).best()
            assert not np.isnan([only.density[0], only.survival[0]]).any()
            far += not stop["edge"]
    assert far  # a step far along a path has a margin


def test_the_easiest_way_comes_first(explanation):
    best = explanation.best()
    turned = replace(best, effort=best.effort[::-1].copy())
    minimal = {**explanation.minimal, "best": turned}
    found = cards(replace(explanation, minimal=minimal), unchanged)["cards"]
    efforts = [card["stops"][card["start"]]["effort"] for card in found]
    assert efforts == sorted(efforts)


def test_ways_are_named_by_what_they_ask():
    names = ("income", "loan_amount", "savings", "debt")
    rows = [{**dict.fromkeys(names, 20 + i % 50), "grade": "ab"[i % 2]} for i in range(99)]
    schema = Schema.infer(rows, dict.fromkeys(names, "number"))
    before = schema.cells(rows[:1])[0]
    after = before.copy()
    after[schema.index("savings")] += 30
    after[schema.index("loan_amount")] -= 15
    assert name_of_way(schema, before, after) == "Higher savings, lower loan amount"
    after[schema.index("grade")] = 1
    after[schema.index("income")] += 1
    listed = "Grade: b, higher savings, lower loan amount"
    assert name_of_way(schema, before, after) == f"{listed}, higher income"
    after[schema.index("debt")] += 1
    assert name_of_way(schema, before, after) == f"{listed} and 2 more"


def test_the_page_has_no_words_of_machine_learning(shared, explanation):
    from importlib import resources

    scripts = resources.files("lapace.apps.workbench").joinpath("js").iterdir()
    texts = [script.read_text("utf-8") for script in scripts]
    templates = [
        part for text in texts for part in re.findall(r"template: `(.*?)`,\n", text, re.DOTALL)
    ]
    assert len(templates) > 8
    stops = [stop for card in cards(explanation, unchanged)["cards"] for stop in card["stops"]]
    bare = re.sub(r'="[^"]*"', "", "".join(templates))
    shown = re.sub(r"<[^>]*>|\{\{.*?\}\}", " ", bare, flags=re.DOTALL)
    shown += json.dumps([[stop["name"], stop["usual"]] for stop in stops])
    words = (
        "model classifier feature instance counterfactual prototype latent density percentile "
        "probability label target query"
    )
    assert not re.findall(rf"\b({words.replace(' ', '|')})s?\b", shown, re.IGNORECASE)


# --- sessions ----------------------------------------------------------------------------------


def test_rows_of_the_file_come_by_position_or_name(shared):
    session, page = Session(shared), shared.page
    assert page["cases"][page["first"]]["label"] == "refused"  # it has not the target
    assert page["labels"][page["target"]] == "approved"
    json.dumps(page, allow_nan=False)
    by_position = session.answer({"kind": "case", "id": 4, "position": 3})
    assert by_position["id"] == 4
    assert (
        session.answer({"kind": "case", "name": by_position["name"]})["values"]
        == by_position["values"]
    )
    for wrong in ({"position": 10**9}, {"name": "nope"}, {"position": -1}):
        assert session.answer({"kind": "case", **wrong})["problems"]


def test_a_decision_on_values_by_hand_agrees_with_the_classifier(shared):
    session, row = Session(shared), refused(shared)
    assert session.answer({"kind": "judge", "row": row})["label"] == "refused"
    rich = {**row, "income": "95"}
    found = session.answer(
        {"kind": "judge", "row": rich, "start": row, "limits": {"typed": ["income <= 90"]}}
    )
    assert (found["label"], found["reached"]) == ("approved", True)
    assert found["broken"] == ["income is at most 90"]
    assert found["chance"] > 0.5
    assert session.answer({"kind": "judge", "row": dict.fromkeys(row)})["problems"]
    assert session.answer({"kind": "judge", "row": "?"})["problems"]
    for value in ("-5", "", "0.01"):
        tried = {"kind": "judge", "row": {**row, "income": value}, "start": row}
        assert [place for place, _ in session.answer(tried)["problems"]] == ["income"]


def test_rules_are_said_in_words_each_column_alone(shared, monkeypatch):
    fitted = shared.explainer.fitted_
    rules = tuple(map(parse, ("fixed age, home", "2*debt <= income")))
    monkeypatch.setattr(shared.explainer, "fitted_", replace(fitted, rules=rules))
    monkeypatch.setitem(shared.__dict__, "page", None)
    fresh = Shared(shared.explainer, shared.instances, "approved", advisers=True)
    assert [rule["text"] for rule in fresh.page["rules"]] == [
        "age stays as it is and home stays as it is",
        "2 × debt is at most income",
    ]
    row = refused(fresh) | {"debt": "30", "home": 1}
    other = {**row, "home": 2, "income": "50"}
    for typed in ([], ["fixed home, debt"]):  # a rule and a limit may say the same
        question = {"kind": "judge", "row": other, "start": row, "limits": {"typed": typed}}
        found = Session(fresh).answer(question)
        assert found["broken"] == ["home stays as it is", "2 × debt is at most income"]


def test_explaining_is_the_librarys_own_answer(shared):
    session, row, other = Session(shared), refused(shared), Session(shared)
    before = json.dumps(shared.page)
    limits = {"features": {"age": {"mode": "keep"}, "income": {"effort": 3}}}
    found = session.answer({"kind": "explain", "id": 1, "row": row, "limits": limits})
    own = session._last[1]
    assert other._last is None  # visitors share nothing
    assert json.dumps(shared.page) == before
    with pytest.raises(InputError, match="Load it again"):
        session.answer({"kind": "__class__"})
    assert own.constraints[-1] == "fixed age"
    assert own.costs == {"income": 2.0}
    assert found["status"] == own.status[0]
    assert len(found["cards"]) == int(own.best().ok.sum())
    age = shared.schema.index("age")
    assert all(
        c["f"] != age for card in found["cards"] for stop in card["stops"] for c in stop["changes"]
    )


def shown_ways(reply: dict, schema: Schema) -> list[dict]:
    """The ways on the page as it sends them back: the values that each changes."""
    names = schema.names
    return [
        {names[change["f"]]: change["value"] for change in stop["changes"]}
        for card in reply["cards"]
        for stop in card["stops"]
        if stop["key"].startswith(("best", "enough"))
    ]


def test_ways_shown_before_are_candidates_of_the_next_question(shared, monkeypatch):
    session, row, schema = Session(shared), refused(shared), shared.schema
    given = []

    def explain(instances, *, candidates=None, **settings):
        given.append(candidates)
        return real(instances, candidates=candidates, **settings)

    real = shared.explainer.explain
    monkeypatch.setattr(shared.explainer, "explain", explain)
    question = {"kind": "explain", "name": "7", "row": row, "limits": {}}
    shown = shown_ways(session.answer(question), schema)
    assert given == [None]
    limits = {"features": {"age": {"mode": "keep"}}}
    found = session.answer({**question, "limits": limits, "shown": shown})
    assert {candidate["instance"] for candidate in given[1]} == {"7"}
    cells = np.stack([read_values(schema, {**row, **way})[0] for way in shown])
    handed = schema.cells([{k: v for k, v in c.items() if k != "instance"} for c in given[1]])
    np.testing.assert_array_equal(handed, cells)
    asked = len(given)
    session.answer({**question, "kind": "json", "limits": limits, "shown": shown})
    assert len(given) == asked  # the same question: nothing is searched for again
    fresh = Session(shared)  # as after a restart
    again = fresh.answer({**question, "limits": limits, "shown": shown})
    assert again["cards"] == found["cards"]
    unreadable = [1, {"nope": 1}, {"income": "much"}, {"income": [1]}]
    fresh.answer({**question, "limits": limits, "shown": [*unreadable, *shown[:1]]})
    assert len(given[-1]) == 1  # they are left out


def test_rows_are_called_by_the_column_that_identifies_them():
    train = [{"ref": f"r{i}", **row} for i, row in enumerate(worlds.post().train)]
    explainer = Explainer(
        worlds.postage, n_prototypes=1, recipe=worlds.QUICK, schema={"ref": "id"}, device="cpu"
    ).fit(train)
    shared = Shared(explainer, train[:20], "dear", advisers=True)
    position = shared.decisions.index("cheap")
    assert shared.names[position] == f"r{position}"
    row = form_values(shared.schema, shared.rows.cells[position])
    question, session = {"name": f"r{position}", "row": row}, Session(shared)
    found = session.answer({"kind": "explain", **question, "limits": {}})
    shown = shown_ways(found, shared.schema)
    again = {**question, "limits": {"most": 3}, "shown": shown}  # the ways shown are its candidates
    found = session.answer({"kind": "explain", **again})
    assert found["cards"]
    key = found["cards"][0]["stops"][0]["key"]
    assert f"Case r{position}" in session.answer({"kind": "letter", **again, "key": key})["html"]


def test_letters_and_files_are_about_the_chosen_plan(shared):
    session = Session(shared)
    message = {"row": refused(shared), "limits": {}, "name": "<b>4</b>"}
    card = session.answer({"kind": "explain", **message})["cards"][0]
    stop = card["stops"][-1]
    fresh = Session(shared)  # as after a restart: the same question has the same answer
    found = fresh.answer({"kind": "letter", **message, "key": stop["key"]})
    assert "&lt;b&gt;4" in found["html"]
    assert "<b>4" not in found["html"]
    assert re.fullmatch(r"letter-[\w-]+\.html", found["file"])
    for change in stop["changes"]:
        assert change["after"] in found["html"]
    assert fresh.answer({"kind": "letter", **message, "key": "best77"})["problems"]
    written = fresh.answer({"kind": "json", **message})
    assert Explanation.from_json(json.loads(written["text"])).status == ("answered",)


def test_where_nothing_fits_one_click_loosens_it(shared):
    session, row = Session(shared), refused(shared)
    keep = {name: {"mode": "keep"} for name in shared.schema.names if name != "income"}
    now = float(row["income"])
    limits = {"features": {**keep, "income": {"mode": "free", "high": str(now + 0.5)}}}
    found = session.answer({"kind": "explain", "row": row, "limits": limits})
    assert found["status"] in ("none_found", "infeasible")
    question = {"row": row, "limits": limits, "name": "7"}
    why = session.answer({"kind": "whynot", **question})
    assert [step["now"] for step in why["steps"]] == [f"income is at most {now + 0.5:.1f}"]
    promised = why["then"]["cards"][0]
    assert why["then"]["status"] == "answered"
    # What is said to follow is what the loosened question gives, also after a restart.
    loose = {**question, "limits": why["limits"], "shown": why["shown"]}
    again = Session(shared).answer({"kind": "explain", **loose})
    assert again["cards"] == why["then"]["cards"]
    stop = promised["stops"][0]
    bound = why["limits"]["features"]["income"]["high"]
    assert float(stop["changes"][0]["value"]) <= float(bound)
    assert why["shown"][0] == {"income": bound}  # the row that was named is a candidate


def test_values_tried_by_hand_become_the_way(shared):
    session, row = Session(shared), refused(shared)
    tried = {**row, "income": "90", "home": 1}
    assert session.answer({"kind": "judge", "row": tried, "start": row})["reached"]
    keep = {name: {"mode": "keep"} for name in shared.schema.names}
    exact = {"income": {"low": "90", "high": "90"}, "home": {"levels": [1], "must": True}}
    limits = {"features": {**keep, **exact}}
    way = {name: tried[name] for name in exact if tried[name] != row[name]}
    found = session.answer({"kind": "explain", "row": row, "limits": limits, "shown": [way]})
    (card,) = found["cards"]
    names = shared.schema.names
    shown = {names[c["f"]]: c["value"] for c in card["stops"][card["start"]]["changes"]}
    assert shown == way


def test_visitors_get_no_rows_of_a_file(shared):
    with pytest.raises(InputError, match="Only a page for advisers"):
        Shared(shared.explainer, shared.instances, "approved")
    page = Shared(shared.explainer, target="approved").page
    assert (page["cases"], page["advisers"]) == ([], False)


# --- who may open it ---------------------------------------------------------------------------


def address_of(app) -> str:
    """The address of an application that runs in a thread until the tests end."""
    ready = Queue()
    settings = {"port": 0, "ready": ready.put}
    threading.Thread(target=run, args=(app,), kwargs=settings, daemon=True).start()
    return ready.get(timeout=30)


@pytest.fixture(scope="module")
def page_address():
    """A server with the login, and a page in place of NiceGUI's."""
    app = create_app(worlds.post().explainer, token="open-sesame", pages=PATH)
    add_login(app)
    app.add_route(f"{PATH}/", lambda _: PlainTextResponse("the page"))
    app.add_route(f"{PATH}/_nicegui/x.js", lambda _: PlainTextResponse("script"))

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app.add_api_websocket_route(f"{PATH}/_nicegui_ws/socket.io/", socket)
    return address_of(app)


def connects(address: str, headers: dict[str, str]) -> bool:
    """Whether a websocket is accepted."""
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = f"{address.replace('http', 'ws')}{PATH}/_nicegui_ws/socket.io/"
    try:
        with connect(url, additional_headers=headers, proxy=None):
            pass
    except InvalidStatus as error:
        return error.response.status_code != 403
    return True


@pytest.fixture
def client(page_address):
    with httpx.Client(base_url=page_address) as found:
        yield found


def test_the_page_needs_a_login_and_its_websocket_too(page_address, client):
    for path in ("/", PATH, f"{PATH}/", f"{PATH}/report"):
        assert client.get(path).headers["location"] == f"{PATH}/login"
    assert client.get(f"{PATH}/_nicegui/x.js").status_code == 401
    assert not connects(page_address, {})
    assert client.get(f"{PATH}/login").status_code == 200
    wrong = client.post(f"{PATH}/login", data={"token": "<script>"})
    assert (wrong.status_code, "<script>" in wrong.text) == (401, False)
    assert client.post(f"{PATH}/login", content=b"token=" + b"x" * 20_000).status_code == 413
    foreign = {"Origin": "https://evil.example"}
    assert client.post(f"{PATH}/login", data={"token": "x"}, headers=foreign).status_code == 403

    right = client.post(f"{PATH}/login", data={"token": "open-sesame"})
    assert right.status_code == 303
    said = right.headers["set-cookie"].lower()
    assert all(word in said for word in ("httponly", "samesite=strict", "max-age=43200"))
    assert "secure" not in said
    behind = {"X-Forwarded-Proto": "https"}
    code = {"token": "open-sesame"}
    again = httpx.post(f"{page_address}{PATH}/login", data=code, headers=behind)
    assert again.headers["set-cookie"].lower().endswith("; secure")
    cookie = {"Cookie": f"{COOKIE}={right.cookies[COOKIE]}"}
    assert client.get(f"{PATH}/").text == "the page"
    assert connects(page_address, cookie)
    assert not connects(page_address, cookie | foreign)
    forged = right.cookies[COOKIE].replace(".", "x.", 1)
    assert not connects(page_address, {"Cookie": f"{COOKIE}={forged}"})
    # The cookie opens pages, not the API: a page of another origin cannot use it there.
    assert client.get("/v3/report").status_code == 401
    assert client.post("/v3/explain", json={"instances": []}).status_code == 401
    assert client.get(f"{PATH}x").status_code == 401
    client.post(f"{PATH}/logout")
    assert COOKIE not in client.cookies
    assert client.get(f"{PATH}/").status_code == 303


def test_the_page_names_no_foreign_origin_and_cannot_be_framed(client):
    client.post(f"{PATH}/login", data={"token": "open-sesame"})
    response = client.get(f"{PATH}/")
    assert response.headers["content-security-policy"] == POLICY
    assert response.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in POLICY
    assert not re.search(r"https?:|\*", POLICY)
    assert "unsafe" not in client.get(f"{PATH}/login").headers["content-security-policy"]
    api = client.get("/healthz").headers["content-security-policy"]
    assert api == "default-src 'none'; frame-ancestors 'none'"


def test_an_unknown_target_and_images_are_refused():
    app = create_app(worlds.post().explainer, pages=PATH)
    with pytest.raises(InputError, match="about rows of a table"):
        add_workbench(app, worlds.digits().explainer)
    with pytest.raises(InputError, match="none of the labels: 'cheap', 'dear'"):
        add_workbench(app, worlds.post().explainer, target="free")
