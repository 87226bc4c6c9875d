"""The fit report: its values, its verdicts, and that text, HTML and JSON say the same."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from benchmarks import small_tables
from lapace import Explainer, metrics
from lapace.errors import InputError
from lapace.explainer import estimator
from lapace.report import THRESHOLDS, Check, ExplainedLabel, Report, Rule, compute, split
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.training import DEFAULT
from tests import worlds
from tests.core.test_schema import brute_force

HOMES = ("flat", "boat", "house")


def table(rows: int, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [
        {
            "income": round(float(rng.gamma(2, 20)), 1),
            "age": None if rng.random() < 0.1 else int(rng.integers(18, 80)),
            "home": HOMES[rng.choice(3, p=[0.5, 0.3, 0.2])],
        }
        for _ in range(rows)
    ]


SCHEMA = Schema.infer(table(600))
REAL, INSTANCES = (SCHEMA.cells(table(rows, seed)) for rows, seed in ((400, 1), (60, 15)))


def codes_of(cells: np.ndarray) -> np.ndarray:
    return (cells[:, 0] > 35).astype(np.int64)


TARGETS = 1 - codes_of(INSTANCES)
EVERY = np.ones(60, dtype=bool)
BY_LABEL = {"no": REAL[codes_of(REAL) == 0], "yes": REAL[codes_of(REAL) == 1]}


def closest_real() -> np.ndarray:
    """The closest real row of the other label, for each of the sixty instances."""
    rows = INSTANCES.copy()
    for k, others in enumerate(BY_LABEL.values()):
        apart = SCHEMA.metric.pairwise(INSTANCES[k == TARGETS], others)
        rows[k == TARGETS] = others[apart.argmin(axis=1)]
    return rows


CLOSEST = closest_real()


def rows_for(instance: np.ndarray, cells: np.ndarray, valid: np.ndarray) -> Counterfactuals:
    return Counterfactuals.of(SCHEMA, INSTANCES, cells, instance, valid=valid)


def parts(cells=CLOSEST, answered=EVERY, feasible=EVERY, returned=None, best=None, **more):
    """The parts of a report on sixty explained instances: by target, and checks by name."""
    nearest = rows_for(np.arange(60), cells, EVERY).where(answered)
    rows = nearest if returned is None else returned
    by_target, checks = compute.explained_parts(
        nearest, nearest if best is None else best, rows, TARGETS, feasible, BY_LABEL, 0, **more
    )
    return by_target, {check.threshold.name: check for check in checks}


# --- thresholds and verdicts -----------------------------------------------------------------


@pytest.mark.parametrize("threshold", THRESHOLDS.values(), ids=lambda t: t.name)
def test_the_whole_interval_decides(threshold):
    better = 0.001 if threshold.higher else -0.001
    limit, good, bad = threshold.limit, threshold.limit + better, threshold.limit - better
    assert threshold.judge(limit, limit) == "passes"  # the limit itself passes
    assert threshold.judge(*sorted((limit, good))) == "passes"
    assert threshold.judge(*sorted((bad, good))) == "unsure"
    assert threshold.judge(bad, bad) == "fails"


def test_rounding_decides_nothing_and_an_unknown_value_is_not_measured():
    assert Check(THRESHOLDS["reconstruction"], 0.93 - 0.90 + 0.67).verdict == "passes"  # over 0.7
    assert Check(THRESHOLDS["answered"], None).verdict == "not measured"


def of_checks(*checks: Check) -> Report:
    return Report("default", 0, 0, 0.0, {}, checks, (), (), ())


PASSES = Check(THRESHOLDS["answered"], 1.0)
UNSURE = Check(THRESHOLDS["usual"], 0.8, 0.7, 0.9)
FAILS = Check(THRESHOLDS["recognised"], 0.0)


@pytest.mark.parametrize(
    ("checks", "verdict", "headline"),
    [
        ((PASSES, PASSES), "passes", ": passes. All 2 checks pass."),
        ((PASSES, UNSURE), "unsure", ": unsure. 1 of 2 checks pass."),
        ((PASSES, UNSURE, FAILS), "fails", ": fails. 1 of 3 checks pass."),
    ],
)
def test_the_verdict_is_the_worst_of_the_checks(checks, verdict, headline):
    found = of_checks(*checks)
    assert found.verdict == verdict
    assert found.headline.endswith(headline)
    assert str(found).startswith(found.headline)


def test_only_what_is_essential_must_be_measured():
    unmeasured = of_checks(PASSES, Check(THRESHOLDS["reconstruction"], None, reason="3 rows"))
    assert unmeasured.verdict == "passes"
    assert unmeasured.advice == ()
    essential = of_checks(PASSES, Check(THRESHOLDS["usual"], None, reason="5 rows"))
    assert essential.verdict == "unsure"
    assert "not measured. 5 rows." in essential.advice[0]


def test_advice_comes_worst_first_and_only_where_needed():
    first, second = of_checks(UNSURE, PASSES, FAILS).advice
    assert first.endswith(f"Try: {FAILS.threshold.advice}")
    # Of a large table thirty rows are explained, too: more rows alone would settle nothing.
    assert second.endswith(
        "Too few rows were measured to tell: fit with another random_state, which measures "
        "others, or with more rows."
    )


def of_targets(**checks: tuple[Check, ...]) -> Report:
    """A report on some targets, all of which together pass."""
    explained = [ExplainedLabel(label, 10, 10, None, None, own) for label, own in checks.items()]
    return replace(of_checks(PASSES), explained=tuple(explained))


BAD, FEW = Check(THRESHOLDS["answered"], 0.4, 0.2, 0.66), Check(THRESHOLDS["answered"], 1, 0.7, 1)


def test_verdicts_are_per_target():
    mixed = of_targets(approved=(PASSES,), refused=(BAD,))
    assert mixed.verdict_for("approved") == "passes"
    assert mixed.verdict_for("refused") == "fails"
    assert mixed.verdict == mixed.verdict_for("any-other") == "unsure"
    assert "passes for 'approved'; fails for 'refused'. " in mixed.headline
    assert mixed.advice_for("approved") == ()
    assert "(20 to 66%; target 'refused')" in mixed.advice[0]
    assert "needed at least 80%" in mixed.advice_for("refused")[0]
    assert [x["verdict"] for x in mixed.to_json()["explained"]] == ["passes", "fails"]
    assert of_targets(refused=(BAD,)).verdict == "fails"


def test_a_target_with_few_rows_is_judged_with_the_others_unless_it_is_worse():
    assert of_targets(rare=(FEW,)).verdict_for("rare") == "passes"
    worse = replace(FEW, value=0.75)
    assert of_targets(rare=(worse,)).verdict_for("rare") == "unsure"


# --- what comes back -------------------------------------------------------------------------


def test_what_came_back_by_brute_force():
    by_target, checks = parts()
    for k, found in enumerate(by_target):
        rows, real = np.flatnonzero(k == TARGETS), BY_LABEL[found.label]
        changed = [
            sum(
                not (a == b or (np.isnan(a) and np.isnan(b)))
                for a, b in zip(INSTANCES[i], CLOSEST[i], strict=True)
            )
            for i in rows
        ]
        usual = metrics.Plausibility(SCHEMA, real, max_rows=2000)
        factor, of_real = usual.lof(CLOSEST[rows]), usual.lof_of_rows()
        assert (found.tried, found.answered) == (len(rows), len(rows))
        assert found.changed == np.median(changed)
        assert found.usual == pytest.approx((of_real >= np.median(factor)).mean())
        assert f"as usual as {100 * found.usual:.0f}% of real rows" in found.sentence
    assert {check.verdict for check in checks.values()} == {"passes"}


def test_instances_without_a_counterfactual_are_counted():
    answered = np.arange(60) >= 30
    by_target, checks = parts(answered=answered)
    assert checks["answered"].value == 0.5
    assert checks["answered"].verdict == "fails"
    assert sum(x.answered for x in by_target) == 30
    # One for which the rules allow no row at all says nothing about the fit.
    by_target, checks = parts(answered=answered, feasible=answered)
    assert checks["answered"].value == 1.0
    assert sum(x.tried for x in by_target) == 30


def test_rows_the_classifier_labels_otherwise_fail():
    returned = rows_for(np.arange(60), CLOSEST, np.arange(60) % 4 > 0)
    _, checks = parts(returned=returned)
    assert checks["valid"].value == 0.75
    assert checks["valid"].verdict == "fails"


def test_strange_counterfactuals_fail():
    strange = np.array([[400.0, 79.0, 1.0]]) + np.zeros((60, 1))
    by_target, checks = parts(strange)
    assert checks["usual"].verdict == "fails"
    assert min(x.usual for x in by_target) == 0.0
    # Where another pick returned a usual one, the instance has it.
    both = np.concatenate([strange, CLOSEST]), np.ones(120, dtype=bool)
    _, checks = parts(strange, returned=rows_for(np.tile(np.arange(60), 2), *both))
    assert checks["usual"].verdict == "passes"


def test_best_is_judged_by_marks_refits_and_relations():
    rows = rows_for(np.arange(60), CLOSEST, EVERY)
    marks = np.where(np.arange(60) < 45, "edge", "").astype(object)
    _, checks = parts(
        best=replace(rows, mark=marks),
        kept=lambda rows: np.full(len(rows), 0.6),
        possible=lambda cells: np.isin(cells[:, 0], CLOSEST[:30, 0]),
    )
    assert (checks["unmarked"].value, checks["unmarked"].verdict) == (0.25, "fails")
    assert checks["survives"].value == pytest.approx(0.6)
    assert checks["survives"].verdict == "fails"
    assert checks["possible"].value == np.isin(CLOSEST[:, 0], CLOSEST[:30, 0]).mean()
    # A row that is rare keeps its label all the same.
    marks = np.where(np.arange(60) < 45, "unusual", "edge, unusual").astype(object)
    _, checks = parts(best=replace(rows, mark=marks))
    assert (checks["unmarked"].value, checks["unmarked"].verdict) == (0.75, "passes")
    by_target, checks = parts()
    assert "survives" not in checks
    assert [c.threshold.name for c in by_target[0].checks] == list(checks)


def test_of_labels_alone_no_margin_is_measured():
    rows = rows_for(np.arange(60), CLOSEST, EVERY)
    edge = replace(rows, mark=np.full(60, "edge", dtype=object))
    by_target, checks = parts(best=edge, has_margins=False)
    for check in (checks["unmarked"], *(of_checks(*x.checks).checks[3] for x in by_target)):
        assert check.threshold.name == "unmarked"
        assert (check.verdict, check.advice) == ("not measured", "")
        assert check.reason == "the classifier gives no odds, so no margin is known"
    report = worlds.post().explainer.report_
    assert {c.threshold.name for c in report.checks if c.value is None} == {"unmarked"}
    assert "1 not measured." in report.headline
    odds = {c.threshold.name: c for c in worlds.bank().explainer.report_.checks}
    assert odds["unmarked"].value is not None


def test_what_cannot_be_measured_says_why():
    none = rows_for(np.arange(60), CLOSEST, EVERY).where(~EVERY)
    _, checks = compute.explained_parts(none, none, none, TARGETS[:0], EVERY[:0], BY_LABEL, 0)
    checks += [
        compute.recognised_check(TARGETS[:1], TARGETS[:1]),
        compute.reconstruction_check(SCHEMA, REAL[:10], REAL[:10], REAL, 0),
    ]
    assert {c.threshold.name: c.reason for c in checks if c.value is None} == {
        "answered": "no instance could be explained",
        "valid": "no instance could be explained",
        "usual": "no label has 20 real rows to compare with",
        "unmarked": "no instance could be explained",
        "recognised": "rows of one label only",
        "reconstruction": "10 rows held out, 20 needed: fit with 200 or more",
    }
    found = of_checks(*checks)
    assert found.verdict == "unsure"
    assert "nan" not in str(found).lower()
    alike = np.repeat(REAL[:1], 60, axis=0)
    found = compute.reconstruction_check(SCHEMA, alike, alike, alike, 0)
    assert found.reason == "the held-out rows are all alike"


# --- the model -------------------------------------------------------------------------------


def test_recognising_labels_is_counted_beyond_chance():
    codes = np.repeat([0, 1, 2], [200, 100, 50])
    assert compute.recognised_check(codes, codes).value == 1.0
    majority = compute.recognised_check(codes, np.zeros(350, dtype=np.int64))
    assert majority.value == pytest.approx(0.0)
    assert majority.verdict == "fails"
    half = codes.copy()
    half[::2] = (half[::2] + 1) % 3
    found = compute.recognised_check(codes, half)
    assert found.value == pytest.approx((0.5 - 1 / 3) / (2 / 3))
    assert found.low < found.value < found.high


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        found = compute.share_check("valid", rng.random(60) < 0.85, "")
        inside += found.low <= 0.85 <= found.high
    assert 0.83 <= inside / 200 <= 0.97


def test_reconstruction_by_brute_force():
    rows = SCHEMA.cells(table(120, 2))
    reconstructed = rows.copy()
    reconstructed[:, 0] += np.random.default_rng(4).normal(0, 2, len(rows))
    reconstructed[::7, 2] = 0
    reconstructed[::11, 1] = np.nan
    usual = np.empty_like(rows)
    for i, feature in enumerate(SCHEMA.features):
        present = sorted(v for v in REAL[:, i] if not np.isnan(v))
        middle = present[(len(present) - 1) // 2]
        usual[:, i] = middle if feature.numeric else max(set(present), key=present.count)
    error, baseline = (
        brute_force(SCHEMA, rows, others, by_range=True).sum() for others in (reconstructed, usual)
    )
    found = compute.reconstruction_check(SCHEMA, rows, reconstructed, REAL, 0)
    assert found.value == pytest.approx(error / baseline)
    assert found.low < found.value < found.high


def test_valid_prototypes_are_counted_by_label():
    codes, valid = np.array([0, 1, 1]), np.array([True, False, False])
    found = compute.prototype_checks(codes, valid)
    assert {k: (check.value, check.verdict) for k, check in found.items()} == {
        0: (1.0, "passes"), 1: (0.0, "fails"),
    }  # fmt: skip


def test_labels_with_few_rows_are_reported():
    counts, clusters = np.array([900, 30, 3]), np.array([2, 2, 0])
    assert compute.label_warnings(("no", "yes", "maybe"), counts, clusters, 3) == (
        "Label 'no' has 900 rows and got 2 of the 3 clusters asked for.",
        "Label 'yes' has 30 rows and got 2 of the 3 clusters asked for.",
        "Label 'maybe' has 3 rows: too few for a prototype, so no path leads to it.",
    )


def test_the_rule_most_rows_break_is_judged():
    rules = (Rule("age >= 18", 1000, 1000), Rule("income < 0", 5, 1000), Rule("x", 0, 0))
    (found,) = compute.rule_checks(rules)
    assert (found.value, found.verdict, found.where) == (0.005, "fails", "'income < 0'")
    assert compute.rule_checks(()) == []


# --- the split -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [
        ((900, 100), 100),
        ((40, 60), 20),
        ((45, 5), 9),
        ((19, 15), 0),
        ((297_000, 3000), 2000),
        ((0, 500), 100),
    ],
)
def test_rows_are_split(sizes, held_out):
    codes = np.random.default_rng(0).permutation(np.repeat([0, 1], sizes))
    found = split(codes, 2, random_state=3)
    assert len(found.held_out) == held_out
    assert np.array_equal(np.sort([*found.train, *found.held_out]), np.arange(len(codes)))
    assert set(found.real) <= set(found.train)
    assert len(found.real) <= 4000
    assert len(found.instances) == min(30, held_out)
    assert set(found.instances) <= set(found.held_out)
    assert (found.targets == 1 - codes[found.instances]).all()
    again = split(codes, 2, random_state=3)
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


def test_labels_alternate():
    codes = np.repeat(np.arange(10), 100)
    found = split(codes, 10)
    assert np.bincount(codes[found.instances]).tolist() == [3] * 10
    assert (found.targets != codes[found.instances]).all()
    assert len(set(found.targets)) == 10


# --- text, HTML and JSON ---------------------------------------------------------------------

YES = ExplainedLabel("yes", 20, 18, 2.5, 0.41)
WHOLE = Report(
    "default", 1000, 100, 12.34, {"fit": 1002, "report": 604},
    (PASSES, UNSURE, FAILS), (YES,), (Rule("age >= 18", 900, 900),), ("Label 'yes' is rare.",),
)  # fmt: skip


def test_text_says_what_html_says():
    text, page = " ".join(str(WHOLE).split()), WHOLE.to_html()
    for words in (
        *(c.threshold.question for c in WHOLE.checks),
        *(c.threshold.limits for c in WHOLE.checks),
        "1,606 rows: 1,002 for the fit, 604 for this report",
        "fitted in 12.3 s",
        "41% of real rows",
        "900 of 900 rows",
        "What to try",
        FAILS.threshold.advice,
    ):
        assert words in text
        assert words in page
    assert YES.sentence.replace("'", "&#x27;") in page
    assert "Label 'yes' is rare." in text


class Tags(HTMLParser):
    """The tags of a page, and whether they close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_escapes_whatever_it_is_handed():
    evil = '<script>alert("1")</script>&<b>'
    found = replace(
        WHOLE,
        recipe=evil,
        warnings=(evil,),
        rules=(Rule(evil, 1, 10),),
        explained=(replace(YES, label=evil),),
        checks=(replace(FAILS, where=evil),),
    )
    page = found.to_html()
    tags = Tags(page)
    assert tags.open == []
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    assert tags.seen == {"div", "style", "h3", "h4", "p", "ul", "li"} | tables
    assert tags.text.count(evil) >= 6
    assert found._repr_html_() == page


def test_a_label_called_fails_is_not_coloured():
    page = replace(WHOLE, explained=(replace(YES, label="fails"),)).to_html()
    assert "<td>fails</td>" in page.split("<h4>Counterfactuals</h4>")[1]


def through_json(found: Report) -> Report:
    return Report.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))


SHARE = st.floats(0, 1)
MAYBE = st.none() | SHARE
COUNT = st.integers(0, 10**6)
TEXT = st.text(max_size=8)
LABEL = st.text(max_size=5) | st.integers(-5, 5) | st.booleans()
CHECKS = st.builds(
    Check, st.sampled_from(list(THRESHOLDS.values())), MAYBE, MAYBE, MAYBE, TEXT, TEXT
)
SOME_CHECKS = st.lists(CHECKS, max_size=2).map(tuple)
REPORTS = st.builds(
    Report,
    recipe=TEXT,
    rows=COUNT,
    held_out=COUNT,
    seconds=SHARE,
    n_queries=st.dictionaries(TEXT, COUNT, max_size=3),
    checks=st.lists(CHECKS, max_size=3).map(tuple),
    explained=st.lists(
        st.builds(ExplainedLabel, LABEL, COUNT, COUNT, MAYBE, MAYBE, SOME_CHECKS), max_size=4
    ).map(tuple),
    rules=st.lists(st.builds(Rule, TEXT, COUNT, COUNT), max_size=2).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
    accuracy=MAYBE,
    learned=st.lists(st.builds(Rule, TEXT, COUNT, COUNT), max_size=2).map(tuple),
)


@given(REPORTS)
def test_any_report_survives_json_and_can_be_shown(found):
    assert through_json(found) == found
    assert str(found).startswith("Report on the explanations: ")
    assert Tags(found.to_html()).open == []


def test_a_report_is_written_and_read(tmp_path):
    path = tmp_path / "report.json"
    data = WHOLE.to_json(path)
    assert data["verdict"] == "fails"
    assert [c["verdict"] for c in data["checks"]] == ["passes", "unsure", "fails"]
    assert Report.from_json(path) == Report.from_json(str(path)) == WHOLE
    with pytest.raises(InputError, match="There is no file"):
        Report.from_json(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"format": "something"}, "not a report"),
        ({"version": 1}, "version 1; this lapace reads 7"),
        ({"version": 99}, "version 99; this lapace reads"),
        ({"rules": [{"text": "x"}]}, r"damaged: .*`holds`, at rules\[0\]"),
        ({"checks": [3]}, r"damaged: .*got `int`, at checks\[0\]"),
        ({"n_queries": None}, r"damaged: .*at n_queries"),
    ],
)
def test_json_that_is_no_report_is_refused(damage, message):
    with pytest.raises(InputError, match=message):
        Report.from_json({**WHOLE.to_json(), **damage})


# --- of a fit --------------------------------------------------------------------------------

quick = partial(worlds.quick, recipe=replace(DEFAULT, hidden=32, batch=256, steps=600, enough=300))


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(300, 4)).round(2)


def label(cells) -> np.ndarray:
    return np.where(cells[:, 0] + cells[:, 1] > 0, "yes", "no")


def fitted(classifier=label, **settings) -> Explainer:
    return quick(classifier, **settings).fit(rows())


@pytest.fixture(scope="module")
def good() -> tuple[Explainer, list[int]]:
    queried = []

    def counted(cells):
        queried.append(len(cells))
        return label(cells)

    return fitted(counted), queried.copy()


def values(explainer: Explainer) -> dict[str, float | None]:
    return {c.threshold.name: c.value for c in explainer.report_.checks}


def test_a_good_fit_passes_because_of_what_comes_back(good):
    explainer, queried = good
    report, found = explainer.report_, values(explainer)
    assert report.verdict == "passes", report.advice
    measured = set(THRESHOLDS) - {"rules", "survives", "possible"}
    assert set(found) == measured
    assert found["answered"] == found["valid"] == 1.0
    assert found["recognised"] > 0.5
    assert [x.label for x in report.explained] == ["no", "yes"]
    assert sum(x.tried for x in report.explained) == 30
    assert sum(report.n_queries.values()) == sum(queried)
    assert report.n_queries["report"] < 10_000  # about 320 for each of the 30 instances


def test_labels_in_random_order_are_not_recognised(monkeypatch):
    monkeypatch.setattr(estimator, "fit_model", small_tables.shuffled)
    broken = fitted()
    assert abs(values(broken)["recognised"]) < 0.35
    assert broken.report_.verdict == "fails"


def test_exchanged_prototypes_are_noticed_though_they_claim_to_be_valid(monkeypatch):
    monkeypatch.setattr(estimator, "judge_centroids", small_tables.swapped)
    broken = fitted()
    assert values(broken)["prototypes"] == 0
    assert broken.report_.verdict == "fails"


def test_rules_hold_while_the_report_explains():
    explainer = fitted(rules=["x0 == original"])
    assert values(explainer)["answered"] > 0.5
    assert values(explainer)["valid"] == 1.0
    impossible = fitted(rules=["x0 == original", "x1 == original"])  # nothing else matters
    assert values(impossible)["answered"] == 0.0
    assert impossible.report_.verdict == "fails"


def test_a_label_that_no_path_leads_to_is_not_asked_for():
    rare = np.sort(rows()[:, 0])[-3]
    explainer = fitted(lambda cells: np.where(cells[:, 0] >= rare, "rare", label(cells)))
    assert {x.label for x in explainer.report_.explained} == {"no", "yes"}


@pytest.mark.filterwarnings("ignore:Column 'x0' alone gives the classifier's label")
def test_a_table_of_forty_rows_does_not_pass():
    cells = np.random.default_rng(0).normal(size=(40, 3)).round(2)
    cells[:20, 0] = np.abs(cells[:20, 0])
    cells[20:, 0] = -np.abs(cells[20:, 0])
    label = lambda rows: np.where(rows[:, 0] > 0, "yes", "no")  # noqa: E731
    report = quick(label, 1).fit(cells).report_
    assert report.verdict != "passes"
    assert sum(x.tried for x in report.explained) <= report.held_out == 8
    cells[:2, 0] *= -1  # 18 rows of a label: none of them is held out
    report = quick(label, 1).fit(cells).report_
    assert report.verdict != "passes"


def test_the_report_counts_rows_that_break_what_every_row_keeps():
    rng = np.random.default_rng(0)
    low = rng.gamma(4.0, 10.0, 400).round(1)
    table = pd.DataFrame({"low": low, "high": (low + rng.gamma(1.0, 5.0, 400)).round(1)})
    gap = lambda t: np.where(t["high"] - t["low"] < 4, "near", "far")  # noqa: E731
    on, off = (quick(gap, learn_rules=v).fit(table) for v in (True, False))
    assert values(on)["possible"] == 1.0
    assert values(off)["possible"] <= 1.0
    assert on.report_.learned == (Rule("low <= high", *[on.rules_[0].support] * 2),)
    assert off.report_.learned == ()
    assert "low <= high" in str(on.report_)


def test_best_is_judged_by_refits_that_the_search_does_not_know():
    def retrain(X, y, random_state):
        return LogisticRegression(random_state=random_state).fit(X, y)

    true = label(rows() + np.random.default_rng(5).normal(size=(300, 4)) / 2)
    report = quick(retrain(rows(), true, 0)).fit(rows(), true, retrain=retrain).report_
    (survives,) = (c for c in report.checks if c.threshold.name == "survives")
    assert 0.5 < survives.value <= 1.0


def test_explaining_with_a_failed_report_warns(good, tmp_path):
    report = good[0].report_
    worst = tuple(replace(c, value=0.0, low=0, high=0) for c in report.explained[1].checks)
    explained = (report.explained[0], replace(report.explained[1], checks=worst))
    failing = replace(report, explained=explained)  # for the second target alone
    good[0].save(tmp_path / "good.lapace")
    explainer = Explainer.load(tmp_path / "good.lapace", label, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(rows(1)[:2])
    explainer._report = failing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(rows(1)[:20], target="no")
    with pytest.warns(UserWarning, match="explainer fails for target 'yes'") as caught:
        explainer.explain(rows(1)[:20])
    assert failing.advice_for("yes")[0] in str(caught[0].message)
