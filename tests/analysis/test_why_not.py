"""Why not: against brute force over all sets of constraints; its sentences; its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, product
from typing import Any

import jsonschema
import numpy as np
import pytest

from lapace import Explainer, Explanation, Feature, InputError, Search
from lapace.budget import BudgetError
from lapace.classifier import Classifier
from lapace.constraints import System, parse
from lapace.explainer import oracle
from lapace.explainer.search import search
from lapace.result import WhyNot, json_schema
from lapace.schema import Schema
from lapace.why_not import drops
from lapace.why_not.relaxation import amount, relaxed, slack
from tests import worlds
from tests.worlds import quick

Row = dict[str, Any]


# --- a table of 147 possible rows -------------------------------------------------------------


COLUMNS = {
    "a": Feature("a", "continuous", lower=0, upper=6, integer=True),
    "b": Feature("b", "continuous", lower=0, upper=6, integer=True),
    "c": Feature("c", "categorical", categories=["x", "y", "z"]),
}
ROWS: list[Row] = [
    {"a": a, "b": b, "c": c} for a, b, c in product(range(7), range(7), ("x", "y", "z"))
]


def above_eight(rows: Sequence[Row]) -> list[str]:
    return ["yes" if r["a"] + r["b"] + 2 * (r["c"] == "z") > 8 else "no" for r in rows]


NEGATIVE = [row for row in ROWS if above_eight([row]) == ["no"]]


@cache
def lattice(rules: tuple[str, ...] = ()) -> Explainer:
    explainer = quick(above_eight, schema=COLUMNS, rules=rules)
    return explainer.fit([row for row in ROWS for _ in range(3)])


def with_classifier(classifier: Callable[[Sequence[Row]], list[str]], **fitted: Any) -> Explainer:
    """The explainer of the lattice with another classifier, or with something else learned."""
    found = lattice()
    explainer = quick(classifier, schema=COLUMNS)
    explainer.fitted_, explainer._report = replace(found.fitted_, **fitted), found.report_
    explainer.classifier_ = Classifier(classifier, found.schema_, found.classes_)
    return explainer


@dataclass(frozen=True)
class Spec:
    """A constraint and its slack, written out independently of the library."""

    text: str
    slack: Callable[[Row, Row], float]

    def holds(self, row: Row, original: Row) -> bool:
        return self.slack(row, original) <= 0


SPECS = [
    Spec("a <= 2", lambda r, _: max(0, r["a"] - 2)),
    Spec("a >= original + 2", lambda r, o: max(0, o["a"] + 2 - r["a"])),
    Spec("fixed a", lambda r, o: abs(r["a"] - o["a"])),
    Spec("b <= original", lambda r, o: max(0, r["b"] - o["b"])),
    Spec("b >= 3", lambda r, _: max(0, 3 - r["b"])),
    Spec("a + b <= 4", lambda r, _: max(0, r["a"] + r["b"] - 4)),
    Spec("b > a", lambda r, _: max(0, r["a"] - r["b"] + 1)),
    Spec("c == original", lambda r, o: float(r["c"] != o["c"])),
    Spec("c != original", lambda r, o: float(r["c"] == o["c"])),
    Spec("changes <= 1", lambda r, o: max(0, sum(r[k] != o[k] for k in r) - 1)),
    Spec("if c changes then a == 0", lambda r, o: r["a"] if r["c"] != o["c"] else 0),
]


def subsets(some: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """All subsets but the empty one, small ones first."""
    return chain.from_iterable(combinations(some, size) for size in range(1, len(some) + 1))


def random_specs(rng: np.random.Generator, least: int, most: int) -> list[Spec]:
    count = int(rng.integers(least, most + 1))
    return [SPECS[k] for k in rng.choice(len(SPECS), count, replace=False)]


def explain_with_reasons(
    explainer: Explainer,
    instances: Any,
    constraints: Sequence[Any] = (),
    target: Any = "yes",
    **settings: Any,
) -> Explanation:
    """The explanation with the reasons of instances without a counterfactual."""
    asked = {"target": target, "constraints": constraints, **worlds.searched(settings)}
    return explainer.why_not(explainer.explain(instances, **asked), max_queries=10**7)


# --- infeasible: against all rows ---------------------------------------------------------------


def smallest_contradiction(constraints: Sequence[Spec], original: Row) -> int:
    """The size of a smallest contradictory set; 0 where some row satisfies all."""
    holds = [np.array([spec.holds(row, original) for row in ROWS]) for spec in constraints]
    sizes = (len(some) for some in subsets(holds) if not np.logical_and.reduce(some).any())
    return next(sizes, 0)


def test_a_clash_is_a_smallest_contradictory_set():
    rng = np.random.default_rng(1)
    instances = [ROWS[k] for k in rng.choice(len(ROWS), 12, replace=False)]
    seen: list[int] = []
    for _ in range(20):
        constraints = random_specs(rng, 2, 5)
        by_text = {spec.text: spec for spec in constraints}
        try:
            explanation = explain_with_reasons(lattice(), instances, [*by_text], steps=2)
        except InputError:  # no row could satisfy them
            continue
        for i, status in enumerate(explanation.status):
            size = smallest_contradiction(constraints, instances[i])
            if status != "already_target":
                assert (status == "infeasible") == (size > 0), (status, constraints, instances[i])
            if status != "infeasible":
                continue
            why = explanation.why_not[i]
            clash = [by_text[text] for text in why.clash]
            # None of it is superfluous.
            assert smallest_contradiction(clash, instances[i]) == len(clash)
            assert len(clash) == size if size <= 2 else len(clash) >= size
            assert why.exact == (len(clash) <= 2)
            check_moves(why, clash, constraints, instances[i])
            seen.append(len(clash))
    assert {1, 2} <= set(seen)
    assert len(seen) > 20


def check_moves(why: WhyNot, clash: list[Spec], constraints: list[Spec], original: Row) -> None:
    """Each move is the least slack of a row that satisfies all other constraints."""
    moves = {move.constraint: move for move in why.moves}
    for spec in clash:
        others = [other for other in constraints if other is not spec]
        slacks = [
            spec.slack(r, original) for r in ROWS if all(o.holds(r, original) for o in others)
        ]
        assert (spec.text in moves) == bool(slacks)
        if slacks and moves[spec.text].by is not None:
            assert moves[spec.text].by == min(slacks), (moves, original, why)
        elif slacks:
            assert spec.text.startswith(("c ", "if "))
    assert (why.row in ROWS) == bool(moves)


def test_a_second_contradiction_is_mentioned():
    instances = [{"a": 3, "b": 3, "c": "x"}]
    constraints = ["fixed a", "a >= 4", "fixed b", "b >= 4"]
    why = explain_with_reasons(lattice(), instances, constraints)[0].why_not
    assert why is not None
    assert why.clash == ("fixed b", "b >= 4")
    assert why.moves == ()
    assert why.text == (
        "For this instance 'fixed b' and 'b >= 4' cannot hold together: no row is feasible. "
        "Whichever is left out, other constraints still contradict each other."
    )


# --- none found: against every set of constraints ---------------------------------------------


def smallest_drops(
    explainer: Explainer, instances: Any, constraints: Sequence[Any], **settings: Any
):
    """For each instance the sizes at which some set helps, by running explain without each set.

    Each search is handed the rows found without any constraint, as those of `why_not` are.
    """
    sizes: list[set[int]] = [set() for _ in range(len(instances))]
    helped: list[set[tuple[str, ...]]] = [set() for _ in range(len(instances))]
    search = worlds.searched(settings)
    free = Explainer.explain(explainer, instances, **search).nearest().frame
    for some in subsets(constraints):
        kept = [c for c in constraints if c not in some]
        explanation = Explainer.explain(
            explainer, instances, constraints=kept, candidates=free, **search
        )
        for i, status in enumerate(explanation.status):
            if status == "answered":
                sizes[i].add(len(some))
                helped[i].add(tuple(map(str, some)))
    return sizes, helped


def compare(
    explainer: Explainer, instances: Any, constraints: Sequence[Any], **settings: Any
) -> list[int]:
    """Checks every instance's WhyNot against brute force; returns the sizes of the dropped sets."""
    explanation = explain_with_reasons(explainer, instances, constraints, **settings)
    lacking = [i for i, status in enumerate(explanation.status) if status == "none_found"]
    if not lacking:
        return []
    some = explanation.schema.frame(explanation.instances[lacking])
    sizes, helped = smallest_drops(explainer, some, constraints, **settings)
    for k, i in enumerate(lacking):
        why = explanation.why_not[i]
        if len(constraints) not in sizes[k]:  # even without any constraint nothing is found
            assert why.drop == ()
            assert why.exact
            continue
        assert why.drop in helped[k], (why, helped[k])  # dropping it really helps
        assert len(why.drop) >= min(sizes[k])
        if min(sizes[k]) <= 2:
            assert len(why.drop) == min(sizes[k])
        if why.exact:
            assert len(why.drop) == min(sizes[k])
        check_row(explanation, i)
    return [len(explanation.why_not[i].drop) for i in lacking]


def check_row(explanation: Explanation, i: int) -> None:
    """The row satisfies what is not dropped; the moves are at least its slack in what is."""
    why, original = explanation.why_not[i], explanation.instances[i : i + 1]
    assert why.row is not None
    cells = explanation.schema.cells([why.row])
    kept = [c for c in explanation.constraints if c not in why.drop]
    assert System.of(kept, explanation.schema, check=False).feasible(cells, original).all()
    assert tuple(m.constraint for m in why.moves) == why.drop
    for move in why.moves:
        system = System.of([move.constraint], explanation.schema, check=False)
        if move.by is not None:
            assert move.by >= slack(system, cells, original)[0, 0] - 1e-9
        assert move.text in why.text


@pytest.mark.parametrize(("enforce", "rounds", "every"), [("exact", 3, 15), ("latent", 3, 45)])
def test_drop_is_the_smallest_set_of_brute_force(enforce, rounds, every):
    rng = np.random.default_rng(2)
    instances = NEGATIVE[::every]
    sizes: list[int] = []
    for _ in range(rounds):
        constraints = [spec.text for spec in random_specs(rng, 2, 4)]
        try:
            sizes += compare(
                lattice(), instances, constraints, target="yes", steps=4, enforce=enforce
            )
        except InputError:  # no row could satisfy them
            continue
    assert {1, 2} <= set(sizes), sizes


def test_drop_may_have_three_or_more_constraints():
    instances = [{"a": 0, "b": 0, "c": "x"}, {"a": 1, "b": 0, "c": "y"}]
    constraints = ["a <= 1", "b <= 1", "c != z", "a + b <= 2", "2*a + b <= 3"]
    assert max(compare(lattice(), instances, constraints, target="yes", steps=8)) >= 3
    why = explain_with_reasons(lattice(), instances, constraints, steps=8).why_not[0]
    assert not why.exact
    assert "a smaller set might be enough" in why.text


def test_drop_is_that_of_brute_force_on_mixed_columns():
    here = worlds.bank()
    constraints = ["income <= 1.1*original", "debt >= original", "fixed home", "changes <= 2"]
    instances = here.instances.head(5)
    sizes = compare(here.explainer, instances, constraints, target="approved", steps=4)
    assert max(sizes) >= 1


@pytest.mark.parametrize("target", [0, "any-other"])
def test_drop_is_that_of_brute_force_with_three_labels(target):
    here = worlds.seasons()
    constraints = [
        "original - 4 <= warmth <= original + 4",
        "original - 5 <= rain <= original + 5",
        "fixed wind",
    ]
    sizes = compare(here.explainer, here.instances.head(8), constraints, target=target, steps=4)
    assert max(sizes) >= 1


def test_of_a_word_for_several_columns_only_those_that_change_are_let_go():
    instance = [{"a": 1, "b": 1, "c": "x"}]  # a alone reaches 7
    why = explain_with_reasons(lattice(), instance, ["fixed b, c"], steps=8).why_not[0]
    assert why.drop == ("fixed b, c",)
    (move,) = why.moves
    assert move.by is None
    kept = "".join(name for name in "bc" if why.row[name] == instance[0][name])
    assert move.relaxed == (f"fixed {kept}" if kept else None)
    relaxed = {"target": "yes", "constraints": why.relax(["fixed b, c"])}
    again = lattice().explain(instance, search=Search(steps=8), **relaxed)
    assert again.status == ("answered",)


def test_rows_found_under_the_rules_are_candidates_of_the_other_searches(monkeypatch):
    searched = []

    def noted(problem, instance):
        searched.append((problem, search(problem, instance)))
        return searched[-1][1]

    monkeypatch.setattr(drops, "search", noted)
    instance, constraints = [{"a": 1, "b": 1, "c": "x"}], ["a <= 4", "b <= 4", "fixed c"]
    explanation = explain_with_reasons(lattice(), instance, constraints, steps=8)
    assert explanation.why_not[0].drop
    (free, result), *others = searched
    assert free.candidates is None
    assert free.system.constraints == ()
    assert len(others) > 2
    for problem, _ in others:
        rows = problem.candidates
        np.testing.assert_array_equal(rows.cells, result.rows["nearest"].steps.cells)
        assert rows.instance.tolist() == [0]


# --- rules ------------------------------------------------------------------------------------


def test_a_rule_is_dropped_only_if_no_constraint_helps():
    instance = [{"a": 1, "b": 1, "c": "x"}]
    rules = ("a <= 4", "fixed c")  # with b <= 4 no row has more than 8
    here = lattice(rules)
    explanation = explain_with_reasons(here, instance, ["b <= 4"], steps=8)
    assert explanation.constraints == (*rules, "b <= 4")
    _, helped = smallest_drops(lattice(), instance, [*rules, "b <= 4"], target="yes", steps=8)
    assert {("a <= 4",), ("b <= 4",)} <= helped[0]  # a rule would do as well
    assert explanation.why_not[0].drop == ("b <= 4",)
    all_rules = lattice((*rules, "b <= 4"))
    explanation = explain_with_reasons(all_rules, instance, ["a >= original"], steps=8)
    assert explanation.why_not[0].drop == ()
    assert "but the explainer's rules nothing is found" in explanation.why_not[0].text
    relaxed = all_rules.why_not(explanation, relax_rules=True).why_not[0]
    assert len(relaxed.drop) == 1
    assert relaxed.drop != ("a >= original",)


def test_of_a_contradiction_the_rules_stand():
    instance = [{"a": 4, "b": 1, "c": "x"}]
    here = with_classifier(above_eight, rules=(parse("a <= 4"),))
    explanation = explain_with_reasons(here, instance, ["a >= original + 2"], steps=8)
    why = explanation.why_not[0]
    assert set(why.clash) == {"a <= 4", "a >= original + 2"}
    assert [move.constraint for move in why.moves] == ["a >= original + 2"]
    assert "'a >= original + 2' would have to" in why.text
    assert "'a <= 4' would" not in why.text
    both = here.why_not(explanation, relax_rules=True).why_not[0]
    assert {move.constraint for move in both.moves} == {"a <= 4", "a >= original + 2"}


def test_a_contradiction_is_named_though_the_budget_is_spent(monkeypatch):
    instance = [{"a": 4, "b": 1, "c": "x"}]
    explanation = lattice().explain(
        instance, target="yes", constraints=["a >= original + 2", "a <= 4"]
    )

    def spent(*_, **__):
        raise BudgetError("The budget of 1 solver nodes is spent.")

    monkeypatch.setattr(System, "project", spent)
    why = lattice().why_not(explanation).why_not[0]
    assert set(why.clash) == {"a >= original + 2", "a <= 4"}
    assert why.text == explanation.reason[0]


def test_rules_that_contradict_each_other_are_named_and_stay():
    here = with_classifier(above_eight, rules=(parse("a >= original + 2"), parse("a <= 4")))
    explanation = explain_with_reasons(here, [{"a": 4, "b": 1, "c": "x"}])
    why = explanation.why_not[0]
    assert set(why.clash) == {"a >= original + 2", "a <= 4"}
    assert why.moves == ()
    assert why.text.endswith("These are rules of the explainer.")


# --- without constraints ----------------------------------------------------------------------


class Hesitant:
    """The bank's classifier, never more than 95 % sure."""

    def __init__(self) -> None:
        self.classes_ = worlds.bank().classifier.classes_

    def predict(self, rows):
        return worlds.bank().classifier.predict(rows)

    def predict_proba(self, rows):
        return 0.05 + 0.9 * worlds.bank().classifier.predict_proba(rows)


@cache
def hesitant():
    return quick(Hesitant()).fit(worlds.bank().train)


def test_without_constraints_the_highest_probability_is_reported():
    here = worlds.bank()
    explanation = explain_with_reasons(
        hesitant(), here.instances.head(6), target="approved", confidence=0.96
    )
    lacking = [i for i, s in enumerate(explanation.status) if s == "none_found"]
    assert lacking
    assert sorted(explanation.why_not) == lacking
    for i in lacking:
        why = explanation.why_not[i]
        assert (why.clash, why.drop, why.moves) == ((), (), ())
        assert why.text.startswith(explanation.reason[i] + " The highest probability reached is 0.")
        assert "; 0.96 is required." in why.text
        assert "Even without" not in why.text
        best = np.nanmax(explanation.probability[explanation.instance == i][:, 1:])
        named = float(why.text.split("probability reached is ")[1].split(";")[0])
        assert named <= best
        assert named == pytest.approx(best, abs=1e-3)
        again = hesitant().explain(here.instances.iloc[[i]], target="approved", confidence=named)
        assert again.status[0] in ("answered", "already_target")


def test_dropping_every_constraint_may_not_help():
    instances = worlds.bank().instances.head(6)
    explanation = explain_with_reasons(
        hesitant(), instances, ["fixed age"], "approved", confidence=0.96
    )
    why = next(iter(explanation.why_not.values()))
    assert (why.drop, why.moves, why.exact) == ((), (), True)
    assert "Even without any constraint nothing is found." in why.text


# --- queries: only where needed, batched, bounded ----------------------------------------------


def test_explain_computes_no_why_not():
    instances = [{"a": 0, "b": 0, "c": "x"}]
    explanation = lattice().explain(
        instances, target="yes", constraints=["a <= 1", "b <= 1", "fixed c"]
    )
    assert explanation.status == ("none_found",)
    assert explanation.why_not == {}
    again = lattice().why_not(explanation)
    assert set(again.why_not) == {0}
    assert again.n_queries > explanation.n_queries
    assert replace(again, why_not={}, n_queries=explanation.n_queries) == explanation
    answered = lattice().explain(NEGATIVE[:20], target="yes")
    again = lattice().why_not(answered)
    assert (again.why_not, again.n_queries) == ({}, answered.n_queries)


@pytest.mark.parametrize("max_queries", [0, 1, 50, 300])
def test_the_query_budget_is_never_exceeded_and_is_in_the_reason(max_queries):
    instances = NEGATIVE[:8]
    constraints = ["a <= 1", "b <= 1", "fixed c", "changes <= 1"]
    explanation = lattice().explain(instances, target="yes", constraints=constraints)
    lacking = [i for i, status in enumerate(explanation.status) if status == "none_found"]
    assert lacking
    again = lattice().why_not(explanation, max_queries=max_queries)
    assert again.n_queries - explanation.n_queries <= max_queries
    assert set(again.why_not) == set(lacking)
    if max_queries <= 1:
        assert all("query budget" in again.why_not[i].text for i in lacking)
        assert not any(again.why_not[i].exact for i in lacking)


def test_why_not_works_after_a_round_trip_through_json():
    instances = NEGATIVE[::18]
    constraints = ["a <= 2", "b <= original", "c == original", "changes <= 1"]
    settings = {"constraints": constraints, "costs": {"a": 2.0}, "search": Search(steps=8)}
    explanation = lattice().explain(instances, target="yes", **settings)
    again = Explanation.from_json(json.loads(json.dumps(explanation.to_json())))
    assert again.request is None
    assert lattice().why_not(again).why_not == lattice().why_not(explanation).why_not != {}


def test_another_explainers_explanation_is_refused():
    explanation = worlds.post().explainer.explain(worlds.post().instances[:2])
    with pytest.raises(InputError, match="not one of this explainer's"):
        lattice().why_not(explanation)


@pytest.mark.parametrize(
    "constraints",
    [
        ["a <= 1", "b <= 1", "fixed c"],
        ["changes <= 1", "b <= original"],
        ["decreasing a", "b <= 2"],
    ],
    ids=str,
)
def test_applying_the_relaxation_gives_the_row_shown(constraints):
    instances = NEGATIVE[::7]
    explanation = explain_with_reasons(lattice(), instances, constraints, steps=8)
    assert explanation.why_not
    relaxed = 0
    for i, why in explanation.why_not.items():
        if why.status != "none_found" or not why.drop:
            continue
        again = explain_with_reasons(lattice(), [instances[i]], why.relax(constraints), steps=8)
        assert again.status == ("answered",)
        np.testing.assert_array_equal(again.nearest().cells, explanation.schema.cells([why.row]))
        relaxed += any(move.relaxed is not None for move in why.moves)
    assert relaxed


def test_searches_end_with_the_query_budget_and_say_so():
    constraints = [*(f"a + {k}*b <= {4 + k}" for k in range(1, 25)), "c != z"]
    explanation = lattice().explain(
        NEGATIVE[:3], target="yes", constraints=constraints, search=Search(steps=4)
    )
    again = lattice().why_not(explanation, max_queries=6000)
    assert again.n_queries - explanation.n_queries <= 6000
    greedy = [why for why in again.why_not.values() if len(why.drop) > 1]
    assert greedy
    for why in greedy:
        assert not why.exact
        assert "a smaller set might be enough, because not all were tried" in why.text


def test_why_not_of_an_instance_does_not_depend_on_the_others():
    instances = NEGATIVE[::18]
    constraints = ["a <= 2", "b <= original", "c == original", "changes <= 1", "a >= original + 2"]
    together = explain_with_reasons(lattice(), instances, constraints, steps=8)
    assert {"none_found", "infeasible"} <= set(together.status)
    for i, instance in enumerate(instances):
        alone = explain_with_reasons(lattice(), [instance], constraints, steps=8)
        assert alone.status[0] == together.status[i]
        assert alone.why_not.get(0) == together.why_not.get(i)


def test_a_classifier_may_raise_on_rows_a_constraint_excludes(monkeypatch):
    monkeypatch.setattr(oracle, "MAX_REFUSED", 0)

    def picky(rows: Sequence[Row]) -> list[str]:
        if any(r["a"] > 3 for r in rows):
            raise ValueError("a is out of range")
        return above_eight(rows)

    instance, constraints = [{"a": 1, "b": 1, "c": "x"}], ["a <= 3", "b <= 1", "fixed c"]
    why = explain_with_reasons(with_classifier(picky), instance, constraints).why_not[0]
    assert "a <= 3" not in why.drop
    assert not why.exact or len(why.drop) == 1


# --- stored with the explanation --------------------------------------------------------------


def test_why_not_is_in_the_explanation_and_in_json(tmp_path):
    instances = [*NEGATIVE[::18], {"a": 6, "b": 6, "c": "z"}]
    constraints = ["a <= 2", "b <= original", "a >= original + 2", "c == original"]
    explanation = explain_with_reasons(lattice(), instances, constraints, steps=4)
    lacking = {i for i, s in enumerate(explanation.status) if s in ("none_found", "infeasible")}
    assert {explanation.status[i] for i in lacking} == {"none_found", "infeasible"}
    assert set(explanation.why_not) == lacking != set(range(len(instances)))
    for i, instance in enumerate(explanation):
        assert instance.why_not == explanation.why_not.get(i)
        if instance.why_not is not None:
            assert instance.why_not.status == instance.status
            assert str(instance.why_not).startswith(instance.reason)
    data = explanation.to_json(tmp_path / "explanation.json")
    jsonschema.validate(data, json_schema())
    jsonschema.validate(json.loads((tmp_path / "explanation.json").read_text()), json_schema())
    again = Explanation.from_json(tmp_path / "explanation.json")
    assert again.why_not == explanation.why_not
    assert again.to_json() == data


# --- words ------------------------------------------------------------------------------------

WORDS = Schema.infer(
    [
        {
            "age": 18 + k % 60,
            "income": 100 * (k % 90),
            "share": (k % 100) / 100,
            "size": k * 0.37 % 1.0,
            "job": ["clerk", "cook", "nurse"][k % 3],
            "level": ["school", "bachelor", "master"][k % 3],
        }
        for k in range(900)
    ],
    {"level": Feature("level", "ordinal", categories=["school", "bachelor", "master"])},
)
ORIGINAL = {
    "age": 30,
    "income": 2000,
    "share": 0.5,
    "size": 0.25,
    "job": "cook",
    "level": "bachelor",
}


@pytest.mark.parametrize(
    ("constraint", "point", "by", "instead"),
    [
        ("income <= 1000", {"income": 2200}, 1200, "income <= 2200"),
        ("income >= original", {"income": 1500}, 500, "income >= original - 500"),
        ("20 <= age <= 40", {"age": 18}, 2, "18 <= age <= 42"),
        ("age == original", {"age": 33}, 3, "original - 3 <= age <= original + 3"),
        ("size <= 0.125", {"size": 0.25}, 0.125, "size <= 0.25"),
        ("income <= 30*age", {"age": 21}, 1370, "income <= 30*age + 1370"),
        ("0.75*original <= income <= 1.25*original", {"income": 2800}, 300,
         "0.75*original - 300 <= income <= 1.25*original + 300"),
        ("job == original", {"job": "nurse"}, None, None),
        ("job in {clerk, cook}", {"job": "nurse"}, None, "job in {clerk, cook, nurse}"),
        ("job not in {clerk, nurse}", {"job": "nurse"}, None, "job not in {clerk}"),
        ("not job: cook -> nurse", {"job": "nurse"}, None, None),
        ("level >= master", {"level": "school"}, None, None),
        ("changes <= 1", {"age": 31, "income": 0, "job": "nurse"}, 2, "changes <= 3"),
        ("fixed age", {"age": 35}, 5, "original - 5 <= age <= original + 5"),
        ("increasing income", {"income": 1900}, 100, "income >= original - 100"),
        ("fixed age, job", {"age": 35}, None, "fixed job"),
        ("if job changes then income >= 3000", {"job": "nurse"}, None, None),
        ("fixed age", {"age": None}, None, None),
        ("age <= 30", {}, 0, "age <= 30"),
    ],
)  # fmt: skip
def test_the_relaxed_constraint_admits_the_row(constraint, point, by, instead):
    row, original = (WORDS.cells([r])[0] for r in (ORIGINAL | point, ORIGINAL))
    far = amount(parse(constraint), WORDS, row, original)
    assert far == (by if by is None else pytest.approx(by))
    found = relaxed(parse(constraint), WORDS, far, row, original)
    assert (None if found is None else str(found)) == instead
    if found is not None:
        assert System.of([found], WORDS).feasible(row[None], original[None]).all()
