"""Made-up rows: what they are, who gets them, and that real rows stay the measure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lapace.classifier import Classifier
from lapace.constraints import parse_all
from lapace.explainer.top_up import mix_neighbours, top_up
from lapace.schema import Schema
from lapace.training import DEFAULT, IMAGES, PAPER
from tests import worlds

SMALL = replace(DEFAULT, hidden=32, batch=256, steps=900, enough=600)


def labelled(frame, classifier):
    schema = Schema.infer(frame)
    cells = schema.cells(frame)
    asked = Classifier(classifier, schema)
    return schema, cells, asked, asked.fit_labels(cells)


@pytest.fixture(scope="module")
def bank():
    frame = worlds.applicants(220, 5)
    return labelled(frame, worlds.credit_model(frame, worlds.decisions(frame)))


@pytest.fixture(scope="module")
def small():
    """Two numbers, three labels, of which one is rare; fitted with made-up rows and without."""
    train = np.random.default_rng(1).normal(size=(240, 3)).round(2)

    def grade(rows):
        return np.where(rows[:, 0] > 1.2, "high", np.where(rows[:, 0] > 0.3 * rows[:, 1], "b", "a"))

    fits = [worlds.quick(grade, recipe=replace(SMALL, enough=n)).fit(train) for n in (0, 600)]
    return train, grade, *fits


def test_every_short_label_is_filled_and_labelled_by_the_classifier(bank):
    schema, cells, classifier, codes = bank
    sizes = np.bincount(codes)
    enough = int(sizes.max())
    made = top_up(schema, classifier, cells, codes, enough=enough, random_state=0)
    assert np.bincount(made.codes, minlength=2).tolist() == (enough - sizes).tolist()
    assert (classifier.predict(made.cells) == made.codes).all()


def test_no_label_with_enough_rows_gets_any(bank):
    schema, cells, classifier, codes = bank
    asked = classifier.with_fresh_count()
    least = int(np.bincount(codes).min())
    made = top_up(schema, asked, cells, codes, enough=least, random_state=0)
    assert len(made.cells) == len(made.codes) == asked.n_queries == 0


def test_made_up_rows_are_rows_the_table_could_have(bank):
    schema, cells, classifier, codes = bank
    made = top_up(schema, classifier, cells, codes, enough=600, random_state=0).cells
    assert np.array_equal(schema.snap(made), made, equal_nan=True)
    for i, feature in enumerate(schema.features):
        seen = cells[~np.isnan(cells[:, i]), i]
        present = made[~np.isnan(made[:, i]), i]
        assert seen.min() <= present.min() <= present.max() <= seen.max()
        assert np.isnan(made[:, i]).any() <= feature.missing
    assert np.isnan(made).any()  # missing values are mixed too
    # On a line between two rows: most are no copy of a real row.
    copies = (schema.metric.pairwise(made, cells).min(axis=1) == 0).mean()
    assert copies < 0.2


def test_a_missing_number_is_not_mixed_as_if_it_were_the_middle():
    rows = np.array([[90.0, 0.5], [np.nan, 0.5], [91.0, 0.5], [np.nan, 0.25], [10.0, 0.75]] * 9)
    schema = Schema.infer(rows)
    near_ninety = rows[rows[:, 0] != 10.0]
    mixed = mix_neighbours(schema, near_ninety, 200, random_state=0)
    assert set(mixed[~np.isnan(mixed[:, 0]), 0]) <= {90.0, 91.0}
    assert np.isnan(mixed[:, 0]).any()


def test_a_label_the_classifier_hardly_ever_gives_is_given_up():
    rows = np.random.default_rng(0).normal(size=(400, 4))
    known = {row.tobytes() for row in rows[:30]}

    def memory(table):
        return np.array([row.tobytes() in known for row in table])

    schema, cells, asked, codes = labelled(rows, memory)
    fresh = asked.with_fresh_count()
    made = top_up(schema, fresh, cells, codes, enough=1000, random_state=0)
    assert (made.codes == 1).sum() == 0  # between two rows there is none that it remembers
    assert fresh.n_queries < 4000


def test_a_classifier_that_refuses_strange_rows_costs_no_fit():
    rows = np.random.default_rng(0).integers(0, 9, (300, 3)).astype(float)
    known = {row.tobytes() for row in rows}

    def strict(table):
        if any(row.tobytes() not in known for row in table):
            raise ValueError("no such row")
        return table[:, 0] > 6

    schema, cells, asked, codes = labelled(rows, strict)
    made = top_up(schema, asked, cells, codes, enough=1000, random_state=0)
    assert len(made.cells) == 0


def test_rules_that_every_row_satisfies_hold_on_made_up_rows():
    rng = np.random.default_rng(0)
    one_hot = np.eye(4)[rng.integers(0, 4, 200)]
    rows = np.column_stack([one_hot, rng.normal(size=200).round(2)])
    schema, cells, asked, codes = labelled(rows, lambda table: table[:, 4] > 1)
    tied = parse_all(["x0 + x1 + x2 + x3 == 1", "x4 <= 0"])
    made = top_up(schema, asked, cells, codes, enough=400, random_state=0, rules=tied)
    assert (made.cells[:, :4].sum(axis=1) == 1).all()
    assert (made.cells[:, 4] > 0).any()  # real rows violate this one as well
    assert len(made.cells) > 300


def test_a_fit_counts_its_queries_and_its_real_rows_alone(small):
    train, _, without, with_made_up = small
    spent = [fit.report_.n_queries["fit"] for fit in (without, with_made_up)]
    assert len(train) < spent[0] < spent[1]
    for one, other in zip(without.prototypes_, with_made_up.prototypes_, strict=True):
        assert (one.label, one.members) == (other.label, other.members)
    held_out = with_made_up.report_.held_out
    assert sum(p.members for p in with_made_up.prototypes_) == len(train) - held_out


def test_densities_are_among_real_rows(small):
    train, grade, _, explainer = small
    decoder, codes = explainer.fitted_.decoder, {v: k for k, v in enumerate(explainer.classes_)}
    labels = np.array([codes[v] for v in grade(train)])
    assert set(decoder.samplers) == {0, 1, 2}
    assert all(len(m.typical) <= np.bincount(labels)[k] for k, m in enumerate(decoder.mixtures))
    density = decoder.density(decoder.schema, decoder.schema.cells(train), labels)
    assert 0.4 < np.median(density) < 0.6


def test_the_papers_recipe_and_images_are_not_topped_up():
    assert PAPER.enough == IMAGES.enough == 0
    assert not worlds.paper().explainer.fitted_.decoder.samplers
    images = np.ones((60, 4, 4)) * np.random.default_rng(0).random((60, 1, 1))
    explainer = worlds.quick(
        lambda rows: rows.mean(axis=(1, 2)) > 0.5, 1, recipe=replace(SMALL, steps=300)
    )
    assert not explainer.fit(images).fitted_.decoder.samplers
