"""Instances: read, queried in one call, targets parsed; broken rows cost no others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from lapace import InputError, Schema
from lapace.classifier import Classifier, query_rows
from lapace.errors import ClassifierError, check_integer, check_number
from lapace.explainer.problem import ANY_OTHER, read_instances

TABLE = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(80)]
SCHEMA = Schema.infer(TABLE)
KNOWN = SCHEMA.cells(TABLE[:1])


class Recorder:
    """Labels by age; raises on a home it does not know; keeps the sizes of its calls."""

    def __init__(self, labels=("no", "yes")):
        self.labels, self.calls, self.broken = labels, [], False

    def predict(self, rows):
        self.calls.append(len(rows))
        if self.broken:
            raise RuntimeError("out of order")
        cuts = np.linspace(20, 60, len(self.labels) + 1)[1:-1]
        for row in rows:
            {"a": 1, "b": 2}[row["home"]]
        return [self.labels[int(np.searchsorted(cuts, r["age"], side="right"))] for r in rows]


class Sure(Recorder):
    def predict_proba(self, rows):
        share = np.array([(row["age"] - 20) / 40 for row in rows])
        return np.column_stack([1 - share, share])


def classifier_of(model):
    classifier = Classifier(model, SCHEMA)
    classifier.fit_labels(SCHEMA.cells(TABLE))
    model.calls.clear()
    return classifier


def read(X, target=None, model=None):
    return read_instances(X, SCHEMA, classifier_of(model or Recorder()), target, known_row=KNOWN)


ROWS = [{"age": 25, "home": "a"}, {"age": 50, "home": "b"}, {"age": 30, "home": "a"}]


# ------------------------------------------------------------------------------------------------
# Reading and querying


def test_instances_are_queried_in_one_call():
    model = Recorder()
    found = read(ROWS, "yes", model)
    assert model.calls == [3]
    assert found.label_code.tolist() == [0, 1, 0]
    assert found.already_target.tolist() == [False, True, False]
    assert np.isnan(found.probability).all()
    assert len(found) == 3
    assert found.malformed == {}


def test_malformed_rows_cost_no_others():
    rows = [ROWS[0], {"age": np.inf, "home": "a"}, {"age": 30, "home": "boat"}, ROWS[1]]
    found = read(rows, "yes", Sure())
    assert list(found.malformed) == [1, 2]
    assert "age" in found.malformed[1]
    assert "boat" in found.malformed[2]
    assert found.label_code.tolist() == [0, -1, -1, 1]
    assert np.isnan(found.probability).any(axis=1).tolist() == [False, True, True, False]
    assert found.schema["home"].extra == ("boat",)


def test_rows_the_classifier_raises_on_are_found_by_halving():
    model = Recorder()
    rows = [{"age": 25, "home": "boat" if i == 37 else "a"} for i in range(64)]
    found = read(rows, "yes", model)
    assert list(found.malformed) == [37]
    # Six halvings, each two parts, the row once more, and a known row for each of the eight calls
    # that raised.
    assert len(model.calls) == 1 + 2 * 6 + 1 + 8
    assert model.calls.count(1) == 2 + 1 + 8


@pytest.mark.parametrize("count", [1, 3])
def test_a_classifier_that_recovers_has_refused_no_row(count):
    class Recovers(Recorder):
        left = 0

        def predict(self, rows):
            self.broken, self.left = self.left > 0, self.left - 1
            return super().predict(rows)

    model = Recovers()
    classifier = classifier_of(model)
    model.left = 1  # the next call fails, those after it do not
    found = read_instances(ROWS[:count], SCHEMA, classifier, "yes", known_row=KNOWN)
    assert found.malformed == {}
    assert found.label_code.tolist() == [0, 1, 0][:count]


def test_a_classifier_that_raises_on_a_known_row_is_broken_itself():
    model = Recorder()
    classifier = classifier_of(model)
    model.broken = True
    with pytest.raises(ClassifierError, match="out of order"):
        read_instances(ROWS, SCHEMA, classifier, "yes", known_row=KNOWN)
    assert model.calls == [3, 1]


def test_a_bound_on_refused_rows_ends_the_halving():
    model = Recorder()
    classifier = classifier_of(model)
    reading = SCHEMA.read([{"age": 25, "home": "boat"}] * 16)
    with pytest.raises(ClassifierError, match="boat"):
        query_rows(classifier, reading.cells, reading.schema, known_row=KNOWN, max_refused=3)
    found, refused = query_rows(classifier, reading.cells, reading.schema, known_row=KNOWN)
    assert (found.codes == -1).all()
    assert np.isnan(found.scores).all()
    assert sorted(refused) == list(range(16))


# ------------------------------------------------------------------------------------------------
# Targets


@pytest.mark.parametrize(
    "target",
    [
        ["yes", "no", "yes"],
        ("yes", "no", "yes"),
        np.array(["yes", "no", "yes"]),
        pd.Series(["yes", "no", "yes"]),
        pl.Series(["yes", "no", "yes"]),
        {"x": "yes", "y": "no", "z": "yes"}.values(),
    ],
    ids=lambda target: type(target).__name__,
)
def test_one_target_per_instance_in_any_sequence(target):
    assert read(ROWS, target).target_code.tolist() == [1, 0, 1]


def test_any_other_label_is_a_target_of_all_or_of_some():
    model = Recorder(("a", "b", "c"))
    assert read(ROWS, ANY_OTHER, model).target_code.tolist() == [-1, -1, -1]
    found = read(ROWS, ["c", ANY_OTHER, "a"], Recorder(("a", "b", "c")))
    assert found.target_code.tolist() == [2, -1, 0]


def test_a_label_named_any_other_is_that_label():
    found = read(ROWS, ANY_OTHER, Recorder((ANY_OTHER, "rest")))
    assert found.target_code.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"yes", "no"}, "target is a set, which has no order; give one label, a sequence with one"),
        ({"yes", "no"}, 'one label per instance, or "any-other".'),
        (frozenset({"yes"}), "target is a frozenset"),
        ({"yes": 1, "no": 2, "maybe": 3}, "target is a dict, which has no order"),
        ({"yes": 1}.keys(), "target is a dict_keys"),
        (
            pd.DataFrame({"target": ["yes"] * 3}),
            "target is a DataFrame with 2 dimensions; give one",
        ),
        (
            pl.DataFrame({"target": ["yes"] * 3}),
            "target is a DataFrame with 2 dimensions; give one",
        ),
        (np.array([["yes"], ["no"], ["yes"]]), "target is a ndarray with 2 dimensions"),
        (["yes", "no"], "There are 2 targets for 3 instances; give one label"),
        ("maybe", "maybe"),
        (["yes", "no", "ye"], "Did you mean 'yes'"),
    ],
)
def test_targets_that_cannot_be_used_are_refused(target, words):
    with pytest.raises(InputError) as refused:
        read(ROWS, target)
    assert words in str(refused.value)


def test_with_three_classes_a_target_is_needed():
    with pytest.raises(InputError, match="3 labels, so the target must be named: one of 'a', 'b'"):
        read(ROWS, None, Recorder(("a", "b", "c")))


def test_reaching_the_target_and_its_probability():
    found = read(ROWS, ["b", ANY_OTHER, "c"], Recorder(("a", "b", "c")))
    assert found.label_code.tolist() == [0, 2, 0]
    instance = np.array([0, 0, 1, 1, 2, 2])
    reached = found.reaches_target(np.array([1, 2, 2, 0, 2, -1]), instance)
    assert reached.tolist() == [True, False, False, True, True, False]
    probability = np.tile([0.2, 0.3, 0.5], (6, 1))
    np.testing.assert_allclose(
        found.target_probability(probability, instance), [0.3, 0.3, 0.5, 0.5, 0.5, 0.5]
    )


# ------------------------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize("value", [0, 2.0, True, np.True_, "3", None, np.float64(3)])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InputError, match=r"count is .*; it must be a whole number from 1 on\."):
        check_integer("count", value)


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), True, "0.5", None])
def test_numbers_out_of_bounds_are_refused(value):
    with pytest.raises(InputError, match=r"share is .*; it must be a number from 0 to 1\."):
        check_number("share", value, 0, 1)
