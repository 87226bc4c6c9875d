"""The fit report: its values, its verdicts, and that text, HTML and JSON say the same."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapace import metrics
from lapace.errors import InputError
from lapace.report import (
    THRESHOLDS,
    Check,
    ExplainedLabel,
    ExplainedRows,
    LabelledRows,
    Queries,
    Recognised,
    Report,
    ReportInputs,
    Rule,
    make_report,
    split,
)
from lapace.report.compute import recognised, share_check
from lapace.report.document import Cluster, ColumnFit, LabelFit
from lapace.schema import Schema

HOMES = ("flat", "boat", "house")


@dataclass(frozen=True)
class Prototype:
    number: int
    code: int
    cells: np.ndarray
    members: int
    valid_before: bool = True
    valid: bool = True
    probability: float = 0.9
    note: str = ""


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


def cells_of(rows: int, seed: int) -> np.ndarray:
    return SCHEMA.cells(table(rows, seed))


def codes_of(cells: np.ndarray) -> np.ndarray:
    return (cells[:, 0] > 35).astype(np.int64)


def explained(real: np.ndarray, rows: np.ndarray, **changes: object) -> ExplainedRows:
    """Thirty rows explained: each is handed a real row of the other label, which is near."""
    codes, every = codes_of(rows), np.ones(len(rows), dtype=bool)
    found = rows.copy()
    for k in (0, 1):
        others = real[codes_of(real) != k]
        apart = SCHEMA.pairwise_distances(rows[codes == k], others)
        found[codes == k] = others[apart.argmin(axis=1)]
    crossings = np.array([0] * 38 + [1, 2])
    fields = {
        "instances": rows,
        "targets": 1 - codes,
        "feasible": every,
        "answered": every,
        "nearest": found,
        "density": np.full(len(rows), 40.0),
        "survival": np.full(len(rows), np.nan),
        "returned": found,
        "instance": np.arange(len(rows)),
        "valid": every,
        "crossings": crossings,
    }
    return ExplainedRows(**{**fields, **changes})


def inputs(**changes: object) -> ReportInputs:
    """Of an invented fit on 1,000 rows that passes, small enough to check by hand."""
    real, held_out = cells_of(400, 1), cells_of(120, 2)
    rng = np.random.default_rng(4)
    reconstructed = held_out.copy()
    reconstructed[:, 0] += rng.normal(0, 2, len(reconstructed))
    reconstructed[::7, 2] = 0
    reconstructed[::11, 1] = np.nan
    prototypes = (
        Prototype(0, 0, np.array([10.0, 30, 0]), 100),
        Prototype(1, 0, np.array([20.0, 60, 1]), 100, valid_before=False, note="repaired: moved"),
        Prototype(2, 1, np.array([50.0, 30, 0]), 150, probability=math.nan),
        Prototype(3, 1, np.array([90.0, 60, 2]), 50),
    )
    fields = {
        "schema": SCHEMA,
        "labels": ("no", "yes"),
        "codes": codes_of(cells_of(1000, 5)),
        "n_prototypes": 2,
        "recipe": "default",
        "prototypes": prototypes,
        "real": LabelledRows(real, codes_of(real)),
        "held_out": LabelledRows(held_out, codes_of(held_out)),
        "reconstructed": reconstructed,
        "explained": explained(real, cells_of(60, 15)),
        "density": np.linspace(0.0, 100.0, len(held_out)),
        "recognised": Recognised(codes_of(held_out), codes_of(held_out)),
        "rules": (Rule("age >= 18", 1000, 1000),),
        "n_queries": Queries(labels=1000, centroids=4, repair=2, report=600),
        "seconds": 12.3,
    }
    return ReportInputs(**{**fields, **changes})


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(inputs())


def check(found: Report, name: str) -> Check:
    (only,) = [c for c in found.checks if c.threshold.name == name]
    return only


# --- thresholds ------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", THRESHOLDS.values(), ids=lambda t: t.name)
def test_the_whole_interval_decides(threshold):
    better = 0.001 if threshold.higher else -0.001
    limit, good, bad = threshold.limit, threshold.limit + better, threshold.limit - better
    assert threshold.judge(limit, limit) == "passes"  # the limit itself passes
    assert threshold.judge(*sorted((limit, good))) == "passes"
    assert threshold.judge(*sorted((bad, good))) == "unsure"
    assert threshold.judge(bad, bad) == "fails"


@pytest.mark.parametrize(
    ("name", "value", "low", "high", "verdict"),
    [
        ("answered", 1.0, 0.88, 1.0, "passes"),
        ("answered", 0.9, 0.75, 0.96, "unsure"),  # no margin is allowed in its favour
        ("answered", 0.5, 0.4, 0.6, "fails"),
        ("recrossing", 0.39, 0.22, 0.56, "unsure"),
        ("recrossing", 0.9, 0.8, 0.95, "fails"),
        ("closer", 0.93 - 0.90 + 0.97, None, None, "passes"),  # a little over 1 in floating point
        ("prototypes", 0, None, None, "fails"),
        ("rules", 0.005, None, None, "fails"),
        ("answered", None, None, None, "not measured"),
    ],
)
def test_verdicts_of_one_check(name, value, low, high, verdict):
    assert Check(THRESHOLDS[name], value, low, high).verdict == verdict


# --- the verdict -----------------------------------------------------------------------------


def of_checks(*checks: Check) -> Report:
    return Report("default", 0, 0, 0.0, Queries(), checks, *[()] * 6)


PASSES = Check(THRESHOLDS["answered"], 1.0)
UNSURE = Check(THRESHOLDS["usual"], 0.8, 0.7, 0.9)
FAILS = Check(THRESHOLDS["recognised"], 0.0)


@pytest.mark.parametrize(
    ("checks", "verdict", "headline"),
    [
        ((PASSES, PASSES), "passes", ": passes. All 2 checks pass."),
        ((PASSES, UNSURE), "unsure", ": unsure. Of 2 checks 1 is unsure"),
        ((UNSURE, UNSURE), "unsure", "Of 2 checks 2 are unsure."),
        ((PASSES, UNSURE, FAILS), "fails", ": fails. Of 3 checks 1 fails, 1 is unsure."),
    ],
)
def test_the_verdict_is_the_worst_of_the_checks(checks, verdict, headline):
    found = of_checks(*checks)
    assert found.verdict == verdict
    assert headline in found.headline
    assert str(found).startswith(found.headline)


def test_only_what_is_essential_must_be_measured():
    unmeasured = of_checks(PASSES, Check(THRESHOLDS["recrossing"], None, reason="3 paths"))
    assert unmeasured.verdict == "passes"
    assert unmeasured.advice == ()
    essential = of_checks(PASSES, Check(THRESHOLDS["usual"], None, reason="5 rows"))
    assert essential.verdict == "unsure"
    assert "not measured. 5 rows." in essential.advice[0]


def test_advice_comes_worst_first_and_only_where_needed():
    found = of_checks(UNSURE, PASSES, FAILS)
    first, second = found.advice
    assert first.endswith(f"Try: {FAILS.threshold.advice}")
    assert second.endswith("Too few rows were held out to tell: hand over more rows.")


def test_a_fit_without_problems_passes(report):
    assert report.verdict == "passes", report.advice
    assert len(report.checks) == len(THRESHOLDS)


# --- what comes back ------------------------------------------------------------------------------


def of_explained(**changes: object) -> Report:
    e = inputs()
    return make_report(replace(e, explained=e.explained._replace(**changes)))


def test_what_came_back_by_brute_force(report):
    e = inputs()
    found = e.explained
    for k, label in ((0, "no"), (1, "yes")):
        (mine,) = [x for x in report.explained if x.label == label]
        rows = np.flatnonzero(found.targets == k)
        real = e.real.cells[e.real.codes == k]
        away = SCHEMA.distance(found.instances[rows], found.nearest[rows])
        near = [float(SCHEMA.pairwise_distances(found.instances[[i]], real).min()) for i in rows]
        changed = [
            sum(
                not (a == b or (np.isnan(a) and np.isnan(b)))
                for a, b in zip(found.instances[i], found.nearest[i], strict=True)
            )
            for i in rows
        ]
        assert (mine.tried, mine.answered) == (len(rows), len(rows))
        assert mine.distance == pytest.approx(np.mean(away)) == pytest.approx(np.mean(near))
        assert mine.training_distance == pytest.approx(np.mean(near))
        assert mine.changed == np.median(changed)
        assert mine.density == 40.0
        assert mine.density_real == np.median(e.density[e.held_out.codes == k])
        assert mine.survival is None
        usual = metrics.Plausibility(SCHEMA, real, max_rows=2000)
        factor, of_real = usual.lof(found.nearest[rows]), usual.lof_of_rows()
        assert mine.lof == pytest.approx(np.median(factor))
        assert mine.lof_real == pytest.approx(np.median(of_real))
        assert mine.usual == pytest.approx((of_real >= np.median(factor)).mean())
        assert f"as usual as {100 * mine.usual:.0f}% of real rows" in mine.sentence
        assert mine.sentence in " ".join(str(report).split())
    assert check(report, "closer").value == pytest.approx(1.0)


def test_instances_without_a_counterfactual_are_counted():
    answered = np.arange(60) >= 30
    found = of_explained(answered=answered)
    assert check(found, "answered").value == 0.5
    assert check(found, "answered").verdict == found.verdict == "fails"
    assert sum(x.answered for x in found.explained) == 30
    # One for which the rules allow no row at all says nothing about the fit.
    fine = of_explained(answered=answered, feasible=answered)
    assert check(fine, "answered").value == 1.0
    assert sum(x.tried for x in fine.explained) == 30


def test_rows_the_classifier_labels_otherwise_fail():
    found = of_explained(valid=np.arange(60) % 4 > 0)
    assert check(found, "valid").value == 0.75
    assert check(found, "valid").verdict == "fails"


def test_strange_counterfactuals_fail():
    strange = np.array([[400.0, 79.0, 1.0]]) + np.zeros((60, 1))
    e = inputs()
    far = e.explained._replace(nearest=strange, returned=strange)
    found = make_report(replace(e, explained=far))
    assert check(found, "usual").verdict == "fails"
    assert check(found, "closer").verdict == "fails"
    assert min(x.usual for x in found.explained) == 0.0
    # Where another pick returned a usual one, the instance has it; the sentence is of the nearest.
    either = far._replace(
        returned=np.concatenate([strange, e.explained.nearest]),
        instance=np.tile(np.arange(60), 2),
        valid=np.ones(120, dtype=bool),
    )
    assert check(make_report(replace(e, explained=either)), "usual").verdict == "passes"


def test_recognising_labels_is_counted_beyond_chance():
    codes = np.repeat([0, 1, 2], [200, 100, 50])
    assert recognised(Recognised(codes, codes)).value == 1.0
    majority = recognised(Recognised(codes, np.zeros(350, dtype=np.int64)))
    assert majority.value == pytest.approx(0.0)
    assert majority.verdict == "fails"
    half = codes.copy()
    half[::2] = (half[::2] + 1) % 3
    found = recognised(Recognised(codes, half))
    assert found.value == pytest.approx((0.5 - 1 / 3) / (2 / 3))
    assert found.low < found.value < found.high
    assert recognised(Recognised(codes[:9], codes[:9])).value is None


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        flags = rng.random(60) < 0.85
        found = share_check("valid", flags, "")
        inside += found.low <= 0.85 <= found.high
    assert 0.83 <= inside / 200 <= 0.97


# --- numbers, against brute force ------------------------------------------------------------


def test_columns_by_brute_force(report):
    e = inputs()
    for i, (feature, column) in enumerate(zip(SCHEMA.features, report.columns, strict=True)):
        present = sorted(v for v in e.real.cells[:, i] if not np.isnan(v))
        if feature.numeric:
            usual = present[(len(present) - 1) // 2]
        else:
            usual = max(set(present), key=present.count)
        error = guess = 0.0
        for own, back in zip(e.held_out.cells[:, i], e.reconstructed[:, i], strict=True):
            for other, is_guess in ((back, False), (usual, True)):
                if np.isnan(own) or np.isnan(other):
                    gap = float(np.isnan(own) != np.isnan(other))
                elif feature.numeric:
                    gap = abs(own - other) / (feature.upper - feature.lower)
                else:
                    gap = float(own != other)
                error, guess = error + gap * (not is_guess), guess + gap * is_guess
        assert column.name == feature.name
        assert column.error == pytest.approx(error / 120)
        assert column.baseline == pytest.approx(guess / 120)
    ratio = sum(c.error for c in report.columns) / sum(c.baseline for c in report.columns)
    reconstruction = check(report, "reconstruction")
    assert reconstruction.value == pytest.approx(ratio)
    assert reconstruction.low < ratio < reconstruction.high


def test_clusters_by_hand(report):
    assert [c.state for c in report.clusters] == ["valid", "repaired", "valid", "valid"]
    assert [c.probability for c in report.clusters] == [0.9, 0.9, None, 0.9]
    assert [(x.clusters, x.prototypes) for x in report.labels] == [(2, 2), (2, 2)]
    assert check(report, "recrossing").value == 0.05


def test_refused_clusters_are_reported():
    prototypes = (
        Prototype(0, 0, np.array([10.0, 30, 0]), 200),
        Prototype(1, 1, np.array([60.0, 30, 0]), 100, False, False, 0.2, "dropped: no repair"),
    )
    found = make_report(inputs(prototypes=prototypes))
    assert found.clusters[1].state == "refused"
    assert check(found, "prototypes").verdict == found.verdict == "fails"
    assert check(found, "prototypes").where == "label 'yes'"
    assert "dropped: no repair" in " ".join(str(found).split())


def test_labels_with_few_rows_are_reported():
    codes = np.array([0] * 900 + [1] * 30 + [2] * 3)
    e = inputs(codes=codes, labels=("no", "yes", "maybe"), n_prototypes=3)
    found = make_report(e)
    assert found.warnings == (
        "Label 'no' has 900 rows and got 2 of the 3 clusters asked for.",
        "Label 'yes' has 30 rows and got 2 of the 3 clusters asked for.",
        "Label 'maybe' has 3 rows: too few for a prototype, so no path leads to it.",
    )
    uncertain = make_report(inputs(codes=codes[:930])).warnings
    assert uncertain == ("Label 'yes' has 30 rows: its values are uncertain.",)


def test_the_rule_most_rows_break_is_judged():
    rules = (Rule("age >= 18", 1000, 1000), Rule("income < 0", 5, 1000), Rule("x", 0, 0))
    found = make_report(inputs(rules=rules))
    assert check(found, "rules").value == 0.005
    assert check(found, "rules").verdict == "fails"
    assert check(found, "rules").where == "'income < 0'"
    assert not [c for c in make_report(inputs(rules=())).checks if c.threshold.name == "rules"]


def test_what_cannot_be_measured_says_why_and_is_never_nan():
    e = inputs()
    few = LabelledRows(e.held_out.cells[:10], e.held_out.codes[:10])
    nothing = explained(e.real.cells, cells_of(1, 6)[:0], crossings=np.zeros(3))
    found = make_report(
        replace(
            e,
            held_out=few,
            reconstructed=e.reconstructed[:10],
            density=e.density[:10],
            explained=nothing,
            recognised=Recognised(few.codes[:1], few.codes[:1]),
        )
    )
    reasons = {c.threshold.name: c.reason for c in found.checks if c.value is None}
    assert reasons == {
        "answered": "no instance could be explained",
        "valid": "no instance could be explained",
        "usual": "no label has 20 real rows to compare with",
        "closer": "no training row to compare with",
        "recognised": "rows of one label only",
        "reconstruction": "10 rows held out, 20 needed: hand over 200 or more",
        "recrossing": "3 paths computed, 20 needed",
    }
    assert found.verdict == "unsure"
    assert found.columns == ()
    assert "nan" not in json.dumps(found.to_json(), allow_nan=False).lower()
    assert "nan" not in str(found).lower()
    assert all(
        reason in " ".join(str(found).split()) for reason in ("3 paths computed", "hand over 200")
    )


def test_no_rows_held_out_and_rows_all_alike():
    e = inputs()
    empty = LabelledRows(e.held_out.cells[:0], e.held_out.codes[:0])
    none = make_report(
        replace(e, held_out=empty, reconstructed=e.reconstructed[:0], density=e.density[:0])
    )
    assert none.held_out == 0
    assert check(none, "reconstruction").value is None
    same = LabelledRows(np.repeat(e.real.cells[:1], 60, axis=0), np.repeat(e.real.codes[:1], 60))
    alike = make_report(
        replace(e, real=same, held_out=same, reconstructed=same.cells, density=e.density[:60])
    )
    assert check(alike, "reconstruction").reason == "the held-out rows are all alike"


def test_reconstructed_rows_must_be_those_held_out():
    with pytest.raises(InputError, match="Reconstruct exactly the held-out rows"):
        inputs(reconstructed=np.zeros((3, 3)))


# --- the split --------------------------------------------------------------------------------


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
    assert len(found.instances) <= 30
    wanted = min(20, len(codes))
    assert len(found.instances) >= wanted
    if held_out >= 20:
        assert set(found.instances) <= set(found.held_out)
    assert (found.targets == 1 - codes[found.instances]).all()
    again = split(codes, 2, random_state=3)
    assert np.array_equal(again.held_out, found.held_out)
    assert np.array_equal(again.instances, found.instances)


def test_labels_alternate():
    codes = np.repeat(np.arange(10), 100)
    found = split(codes, 10)
    assert np.bincount(codes[found.instances]).tolist() == [3] * 10
    assert (found.targets != codes[found.instances]).all()
    assert len(set(found.targets)) == 10
    small = split(np.repeat(np.arange(3), 19), 3)
    assert len(small.held_out) == 0
    assert set(small.instances) <= set(small.train)
    between = split(np.repeat(np.arange(3), 20), 3)  # held-out rows first, then training rows
    assert len(between.held_out) == 12
    assert set(between.held_out) <= set(between.instances)


# --- renderings ------------------------------------------------------------------------------


def test_text_says_what_html_says(report):
    text, page = " ".join(str(report).split()), report.to_html()
    for c in report.checks:
        assert c.threshold.question in text
        assert c.threshold.limits in text
        assert c.threshold.question in page
    for word in (
        "1,606 rows",
        "1,000 for labels",
        "2 for repair",
        "fitted in 12.3 s",
        "repaired: moved",
    ):
        assert word in text
        assert word in page
    assert "1,000 of 1,000 rows age >= 18" in text


def test_text_of_a_bad_fit_holds_every_line_of_advice():
    crossed = inputs().explained._replace(
        crossings=np.ones(40), answered=np.arange(60) >= 12, valid=np.zeros(60, dtype=bool)
    )
    found = make_report(inputs(explained=crossed))
    text = " ".join(str(found).split())
    assert len(found.advice) >= 2
    assert "What to try" in text
    assert {c.verdict for c in found.checks} == {"passes", "unsure", "fails"}
    for c in found.checks:
        told = f"{c.text}; needed {c.threshold.limits}."
        assert (told in text) == (c.verdict in ("fails", "unsure"))
        assert (f"{told} Try: {c.threshold.advice}" in text) == (c.verdict == "fails")
    assert text.startswith("Report on the explanations: fails.")


def test_wide_tables_show_their_worst_columns():
    columns = tuple(ColumnFit(f"c{i}", "continuous", i / 100, 1.0) for i in range(50))
    found = replace(of_checks(PASSES), columns=columns)
    assert "The worst 12 of 50 columns." in " ".join(str(found).split())
    assert "c49" in str(found)
    assert "c10 " not in str(found)
    assert len(found.to_json()["columns"]) == 50


class Tags(HTMLParser):
    """The tags of a page, and whether they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_escapes_whatever_it_is_handed():
    evil = '<script>alert("1")</script>&<b>'
    e = inputs(
        labels=("no", evil),
        rules=(Rule(evil, 1, 10),),
        recipe=evil,
    )
    first = Prototype(0, 1, np.array([10.0, 30, 0]), 9, note=evil)
    found = make_report(replace(e, prototypes=(first, *e.prototypes[1:])))
    found = replace(
        found,
        warnings=(evil,),
        columns=(ColumnFit(evil, "binary", 0.1, 0.2),),
    )
    page = found.to_html()
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    assert tags.seen == {"div", "style", "h3", "h4", "p", "ul", "li"} | tables
    assert tags.text.count(evil) >= 6
    assert found._repr_html_() == page
    assert page.startswith("<div")
    assert page.endswith("</div>")


def test_a_label_called_fails_is_not_coloured():
    e = make_report(inputs(labels=("fails", "passes")))
    body = e.to_html().split("</style>")[1].split("<h4>Prototypes</h4>")[1]
    assert "<td>fails</td>" in body
    assert "class=" not in body.replace('class="scroll"', "")


# --- JSON ------------------------------------------------------------------------------------


def through_json(found: Report) -> Report:
    return Report.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))


def test_json_round_trip_keeps_everything(report, tmp_path):
    assert through_json(report) == report
    assert str(through_json(report)) == str(report)
    assert json.dumps(through_json(report).to_json()) == json.dumps(report.to_json())
    path = tmp_path / "report.json"
    data = report.to_json(path)
    assert data["verdict"] == "passes"
    assert {c["verdict"] for c in data["checks"]} == {"passes"}
    assert Report.from_json(path) == Report.from_json(str(path)) == report


SHARE = st.floats(0, 1)
MAYBE = st.none() | SHARE
COUNT = st.integers(0, 10**6)
TEXT = st.text(max_size=8)
LABEL = st.text(max_size=5) | st.integers(-5, 5) | st.booleans()
CHECKS = st.builds(
    Check, st.sampled_from(list(THRESHOLDS.values())), MAYBE, MAYBE, MAYBE, TEXT, TEXT
)
EXPLAINED = st.builds(ExplainedLabel, LABEL, COUNT, COUNT, *[MAYBE] * 9)
CLUSTERS = st.builds(Cluster, COUNT, LABEL, COUNT, st.booleans(), st.booleans(), MAYBE, TEXT)
LABELS = st.builds(LabelFit, LABEL, COUNT, COUNT, COUNT, COUNT)
KINDS = st.sampled_from(["continuous", "ordinal", "binary", "categorical"])
REPORTS = st.builds(
    Report,
    recipe=TEXT,
    rows=COUNT,
    held_out=COUNT,
    seconds=SHARE,
    n_queries=st.builds(Queries, COUNT, COUNT, COUNT, COUNT, COUNT),
    checks=st.lists(CHECKS, max_size=3).map(tuple),
    explained=st.lists(EXPLAINED, max_size=4).map(tuple),
    labels=st.lists(LABELS, max_size=2).map(tuple),
    clusters=st.lists(CLUSTERS, max_size=2).map(tuple),
    columns=st.lists(st.builds(ColumnFit, TEXT, KINDS, SHARE, SHARE), max_size=2).map(tuple),
    rules=st.lists(st.builds(Rule, TEXT, COUNT, COUNT), max_size=2).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
)


@given(REPORTS)
def test_any_report_survives_json_and_can_be_shown(found):
    assert through_json(found) == found
    assert str(found).startswith("Report on the explanations: ")
    tags = Tags()
    tags.feed(found.to_html())
    assert tags.open == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"format": "something"}, "not a report"),
        ({"version": 1}, "version 1; this lapace reads 3 and 4"),
        ({"version": 99}, "version 99; this lapace reads"),
        ({"clusters": [{"number": 1}]}, r"damaged: .*`label`, at clusters\[0\]"),
        ({"checks": [3]}, r"damaged: .*got `int`, at checks\[0\]"),
    ],
)
def test_json_that_is_no_report_is_refused(report, damage, message):
    with pytest.raises(InputError, match=message):
        Report.from_json({**report.to_json(), **damage})


def test_a_report_of_version_3_is_read(report):
    data = {**report.to_json(), "version": 3, "figures": [], "utility": None, "paths": 40}
    data["labels"] = [{**label, "agreement": 0.9} for label in data["labels"]]
    assert Report.from_json(data) == report


def test_json_without_a_field_and_files_that_are_none(report, tmp_path):
    data = report.to_json()
    del data["n_queries"]
    with pytest.raises(InputError, match="damaged"):
        Report.from_json(data)
    with pytest.raises(InputError, match="There is no file"):
        Report.from_json(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="not a report"):
        Report.from_json([1, 2])
