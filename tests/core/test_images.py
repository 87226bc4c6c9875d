"""Images and many classes: arrays in, explanations and pictures out; training on images."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import matplotlib as mpl
import numpy as np
import pytest

from lapace import Explainer
from lapace.explainer.fit import range_coded
from lapace.schema import Feature, Schema
from lapace.training import DEFAULT, IMAGES, PAPER

mpl.use("Agg")

SIDE = 8
SMALL = replace(IMAGES, hidden=64, steps=500, batch=128)


def bars(count: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Images with a bright bar: upright, lying, or a diagonal one; greys in [0, 1]."""
    rng = np.random.default_rng(seed)
    images = 0.05 * rng.random((count, SIDE, SIDE))
    kinds, places = np.arange(count) % 3, rng.integers(2, SIDE - 2, count)
    bright = 0.7 + 0.3 * rng.random(count)
    for i, (kind, place) in enumerate(zip(kinds, places, strict=True)):
        if kind == 0:
            images[i, :, place] = bright[i]
        elif kind == 1:
            images[i, place] = bright[i]
        else:
            images[i, np.arange(SIDE), (np.arange(SIDE) + place - 4) % SIDE] = bright[i]
    images[:, 0, 0] = 0.0  # a pixel that never shows anything
    if dtype is np.uint8:
        return np.rint(images * 255).astype(np.uint8)
    return images.astype(dtype)


NAMES = np.array(["lying", "slanted", "upright"])


class Eye:
    """Reads bars: by how much darker the darkest column, row or diagonal is than the others."""

    classes_ = NAMES

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        assert rows.shape[1:] == (SIDE, SIDE)
        images = rows.astype(np.float64)
        step = np.arange(SIDE)
        slants = np.stack(
            [images[:, step, (step + k) % SIDE].mean(axis=1) for k in range(SIDE)], axis=1
        )
        scores = np.stack(
            [images.mean(axis=2).max(axis=1), slants.max(axis=1), images.mean(axis=1).max(axis=1)],
            axis=1,
        )
        odds = np.exp(12 * (scores - scores.max(axis=1, keepdims=True)))
        return odds / odds.sum(axis=1, keepdims=True)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return NAMES[self.predict_proba(rows).argmax(axis=1)]


@cache
def world() -> tuple[Explainer, np.ndarray]:
    explainer = Explainer(Eye(), n_prototypes=2, recipe=SMALL).fit(bars(600))
    return explainer, bars(9, seed=1)


# -- pixels are numbers of one scale --------------------------------------------------------------


def test_pixels_share_one_range_whatever_each_has_shown():
    schema = Schema.infer(bars(200))
    assert schema.shape == (SIDE, SIDE)
    assert {f.kind for f in schema.features} == {"continuous"}
    most = float(bars(200).max())
    assert {(f.lower, f.upper) for f in schema.features[1:]} == {(0.0, most)}
    assert schema.features[0].lower == 0.0  # and a pixel that never showed anything stays dark
    declared = Feature("x3", "continuous", lower=0.0, upper=9.0)
    assert Schema.infer(bars(200), {"x3": declared})["x3"].upper == 9.0


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_all_pixels_at_once_are_what_they_are_one_by_one(dtype):
    images = bars(60, dtype=dtype)
    schema = range_coded(Schema.infer(images))
    assert len(schema.coding._rank_maps) <= 2  # all but the pixels that are always dark
    rng = np.random.default_rng(0)
    cells, scores = schema.cells(images), rng.normal(0.5, 0.6, (40, SIDE * SIDE))
    wild = rng.normal(size=(40, SIDE * SIDE)) * 300

    def one_by_one(method, values):
        columns = zip(schema.features, values.T, strict=True)
        return np.stack([method(feature, column) for feature, column in columns], axis=1)

    for found, slow in (
        (schema.encode(cells), one_by_one(lambda f, v: f.knots.scores(v), cells)),
        (schema.decode(scores), one_by_one(lambda f, v: f.snap(f.knots.units(v)), scores)),
        (schema.coding.slopes(scores), one_by_one(lambda f, v: f.knots.slopes(v), scores)),
        (schema.snap(wild), one_by_one(lambda f, v: f.snap(v), wild)),
    ):
        np.testing.assert_array_equal(found, slow)
    assert not schema.changed(schema.decode(schema.encode(cells)), cells).any()


# -- from arrays to explanations ------------------------------------------------------------------


def test_rows_of_images_are_arrays_of_their_shape_and_dtype():
    explainer, instances = world()
    assert explainer.classes_.tolist() == NAMES.tolist()
    assert explainer.fitted_.decoder.model.shape.latent == 16
    explanation = explainer.explain(instances, target="upright")
    assert [explanation[i].label for i in range(3)] == ["upright", "lying", "slanted"]
    assert explanation.status[0] == "already_target"
    first = explanation.first()
    assert first.ok.all()
    rows = first.rows
    assert rows.shape == (len(first), SIDE, SIDE)
    assert rows.dtype == np.float32
    assert (Eye().predict(rows) == "upright").all()
    path = explanation[1].path()
    np.testing.assert_array_equal(path.cells[0], instances[1].reshape(-1).astype(np.float64))
    assert len(explanation[1].changes()["feature"]) > 0
    assert list(first.about["instance"]) == first.instance.tolist()
    assert [name for name in first.frame if name in explanation.schema.names] == list(
        explanation.schema.names
    )


def test_bytes_stay_bytes():
    images = bars(300, dtype=np.uint8)
    explainer = Explainer(Eye(), n_prototypes=1, recipe=SMALL).fit(images)
    rows = explainer.explain(images[:3], target="lying").middle().rows
    assert rows.dtype == np.uint8
    assert rows.shape[1:] == (SIDE, SIDE)
    assert explainer.sample("lying", 4).dtype == np.uint8


# -- training -------------------------------------------------------------------------------------


def test_the_default_recipe_becomes_that_of_images_on_images():
    assert DEFAULT.on(None) is DEFAULT
    assert DEFAULT.on((8, 8)) is IMAGES
    assert PAPER.on((8, 8)) is PAPER
    assert SMALL.on((8, 8)) is SMALL
