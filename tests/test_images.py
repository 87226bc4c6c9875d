"""Images and many classes: arrays in, explanations and pictures out; training on images."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt

from lapace import Explainer, InputError, plots
from lapace.constraints import Custom
from lapace.explainer.fit import range_coded
from lapace.result import Explanation
from lapace.schema import Feature, Schema
from lapace.training import DEFAULT, IMAGES, PAPER, History, Recipe, fit, partition
from tests.worlds import NARROW

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

    def __init__(self, flat: bool = False) -> None:
        self.flat = flat

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        if self.flat:
            assert rows.ndim == 2
            rows = rows.reshape(-1, SIDE, SIDE)
        assert rows.shape[1:] == (SIDE, SIDE)
        images = rows.astype(np.float64)
        step = np.arange(SIDE)
        slants = np.stack(
            [images[:, step, (step + k) % SIDE].mean(axis=1) for k in range(SIDE)], axis=1
        )
        scores = np.stack(
            [
                images.mean(axis=2).max(axis=1),
                slants.max(axis=1),
                images.mean(axis=1).max(axis=1),
            ],
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
    declared = Feature.continuous("x3", lower=0.0, upper=9.0)
    assert Schema.infer(bars(200), {"x3": declared})["x3"].upper == 9.0


def test_black_and_white_images_have_no_categories():
    schema = Schema.infer((bars(200) > 0.5).astype(np.uint8))
    assert schema.widths == ()
    assert {(f.lower, f.upper, f.integer) for f in schema.features} == {(0.0, 1.0, True)}


def test_an_infinite_pixel_is_named():
    images = bars(50)
    images[7, 1, 2] = np.inf
    with pytest.raises(InputError, match="'x10' holds an infinity in row 7"):
        Schema.infer(images)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_all_pixels_at_once_are_what_they_are_one_by_one(dtype):
    images = bars(60, dtype=dtype)
    schema = range_coded(Schema.infer(images))
    assert len(schema._scales._maps.groups) <= 2  # all but the pixels that are always dark
    rng = np.random.default_rng(0)
    cells, scores = schema.cells(images), rng.normal(0.5, 0.6, (40, SIDE * SIDE))
    wild = rng.normal(size=(40, SIDE * SIDE)) * 300

    def one_by_one(method, values):
        columns = zip(schema.features, values.T, strict=True)
        return np.stack([method(feature, column) for feature, column in columns], axis=1)

    for found, slow in (
        (schema.encode(cells), one_by_one(lambda f, v: f.knots.scores(v), cells)),
        (schema.decode(scores), one_by_one(lambda f, v: f.snap(f.knots.units(v)), scores)),
        (schema.slopes(scores), one_by_one(lambda f, v: f.knots.slopes(v), scores)),
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


def test_targets_by_label_by_instance_and_any_other():
    explainer, instances = world()
    each = ["lying", "slanted", "upright"] * 3
    explanation = explainer.explain(instances, target=each)
    assert explanation.target.tolist() == each
    for pick in (
        explanation.first(),
        explanation.middle(),
        explanation.last(),
        explanation.nearest(),
    ):
        assert pick.ok.all()
        assert (Eye().predict(pick.rows) == np.array(each)[pick.instance]).all()
    other = explainer.explain(instances, target="any-other").nearest()
    original = Eye().predict(instances)
    assert (Eye().predict(other.rows) != original[other.instance]).all()
    with pytest.raises(InputError, match="target must be named"):
        explainer.explain(instances)


def test_a_classifier_on_flat_arrays_is_explained_on_flat_arrays():
    flat = bars(400).reshape(400, -1)
    recipe = replace(NARROW, steps=300)
    explainer = Explainer(Eye(flat=True), n_prototypes=1, recipe=recipe).fit(flat)
    explanation = explainer.explain(flat[:3], target="slanted")
    assert explanation.nearest().rows.shape == (2, SIDE * SIDE)
    assert explanation.nearest().ok.all()


def test_bytes_stay_bytes():
    images = bars(300, dtype=np.uint8)
    explainer = Explainer(Eye(), n_prototypes=1, recipe=SMALL).fit(images)
    rows = explainer.explain(images[:3], target="lying").middle().rows
    assert rows.dtype == np.uint8
    assert rows.shape[1:] == (SIDE, SIDE)
    assert explainer.sample("lying", 4).dtype == np.uint8


def test_images_are_saved_and_read_back(tmp_path):
    explainer, instances = world()
    before = explainer.explain(instances, target="lying")
    explainer.save(tmp_path / "bars.lapace")
    after = Explainer.load(tmp_path / "bars.lapace", Eye()).explain(instances, target="lying")
    np.testing.assert_array_equal(after.cells, before.cells)
    before.to_json(tmp_path / "bars.json")
    again = Explanation.from_json(json.loads((tmp_path / "bars.json").read_text("utf-8")))
    np.testing.assert_allclose(again.nearest().rows, before.nearest().rows)
    assert again.nearest().rows.shape[1:] == (SIDE, SIDE)


def test_pictures_of_images():
    explainer, instances = world()
    assert len(plots.prototypes(explainer).images) == 6
    explanation = explainer.explain(instances, target="lying")
    assert plots.path(explanation[2]).get_title(loc="left") == "From slanted to lying"
    colours = np.repeat(instances[..., None], 3, axis=3)
    schema = Schema.infer(colours)
    _, ax = plt.subplots()
    plots.images.show(ax, schema, schema.cells(colours)[0], 0.0, 0.0, "black")
    assert ax.images[0].get_array().shape == (SIDE, SIDE, 3)
    plt.close("all")


def corner() -> Custom:
    """Nothing in the lower right corner."""
    places = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)[5:, 5:].ravel()

    def project(rows):
        rows[:, places] = np.minimum(rows[:, places], 0.01)
        return rows

    return Custom(
        "empty corner",
        lambda x: (x[:, torch.as_tensor(places)] - 0.01).clamp(min=0).sum(dim=1),
        lambda rows: (rows[:, places] <= 0.01).all(axis=1),
        project,
    )


def test_a_function_of_the_pixels_holds_on_every_step():
    explainer, instances = world()
    rule = corner()
    explanation = explainer.explain(instances[1:3], target="upright", constraints=[rule])
    assert explanation.feasible[explanation.tau > 0].all()
    steps = explanation.cells[explanation.tau > 0]
    assert rule.check(steps).all()
    assert explanation.nearest().ok.all()


def test_many_classes_of_a_table_by_name():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=600).round(2), "y": rng.normal(size=600).round(2)})
    names = np.array(["east", "north", "south", "west"])

    def quarter(rows):
        x, y = rows["x"].to_numpy(), rows["y"].to_numpy()
        return names[np.where(abs(x) > abs(y), np.where(x > 0, 0, 3), np.where(y > 0, 1, 2))]

    explainer = Explainer(quarter, n_prototypes=2, recipe=replace(DEFAULT, hidden=32)).fit(table)
    instances = table.head(12)
    for target in names:
        found = explainer.explain(instances, target=target)
        assert found.first().ok.all()
        assert (quarter(found.last().rows) == target).all()
    wanted = [names[(names.tolist().index(label) + 1) % 4] for label in quarter(instances)]
    assert (quarter(explainer.explain(instances, target=wanted).nearest().rows) == wanted).all()


# -- training -------------------------------------------------------------------------------------


def test_the_default_recipe_becomes_that_of_images_on_images():
    assert DEFAULT.on(None) is DEFAULT
    assert DEFAULT.on((8, 8)) is IMAGES
    assert PAPER.on((8, 8)) is PAPER
    assert SMALL.on((8, 8)) is SMALL


def plain_loop(recipe: Recipe, shape, x, y, c, seed: int, *, own: bool) -> History:
    """The default recipe's training, written out, with our own Adam or with torch's."""
    from lapace.model import LGMVAE, Terms
    from lapace.training import Adam, _batches, steps_for

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LGMVAE(shape)
    generator = torch.Generator().manual_seed(seed)
    adam = Adam(model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate, fused=True)
    history, steps = History(("step", "loss", *Terms._fields), []), steps_for(len(x), recipe.steps)
    for step, rows in enumerate(_batches(len(x), min(recipe.batch, len(x)), steps, generator)):
        warm = min(1.0, (step + 1) / (0.05 * steps))
        rate = recipe.rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate
        terms = model.fixed_cluster_terms(x[rows], y[rows], c[rows], generator)
        loss = terms.weighted(*recipe.weights)
        if own:
            adam.step(loss, torch.tensor(rate), clip=5.0)
        else:
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            history.lines.append((step, loss.item(), *(t.item() for t in terms)))
    return history


def test_training_is_the_plain_loop():
    from lapace.model import Shape

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = (x[:, 0] > 0).astype(np.int64)
    c = partition(x, y, (2, 2), 0)
    recipe, shape = replace(DEFAULT, hidden=16, batch=64, steps=150), Shape(4, (), (2, 2), 3, 16)
    rows = torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(c)
    _, history = fit(shape, recipe, *rows, random_state=3)
    _, again = fit(shape, recipe, *rows, random_state=3)
    np.testing.assert_array_equal(history.array, again.array)
    for own in (True, False):  # gradients written out and torch's Adam round otherwise
        expected = plain_loop(recipe, shape, *rows, 3, own=own).array
        np.testing.assert_allclose(history.array, expected, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(history.array[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.needs("gpu")
@pytest.mark.parametrize(
    "recipe", [DEFAULT, replace(PAPER, steps=1, epochs=6)], ids=["default", "paper"]
)
def test_recorded_steps_learn_what_plain_steps_do(monkeypatch, recipe):
    from lapace import training
    from lapace.model import Shape

    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 8))
    y = (x[:, 0] > 0).astype(np.int64)
    c = partition(x, y, (2, 2), 0)
    shape = Shape(8, (), (2, 2), 4, 64, recipe.heads)
    recipe = replace(recipe, hidden=64)
    rows = [
        torch.tensor(part, device="cuda", dtype=kind)
        for part, kind in ((x, torch.float32), (y, torch.int64), (c, torch.int64))
    ]
    _, recorded = fit(shape, recipe, *rows, random_state=3)
    monkeypatch.setattr(training, "WARM", np.inf)
    _, plain = fit(shape, recipe, *rows, random_state=3)
    np.testing.assert_allclose(recorded.array[:10], plain.array[:10], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(recorded.array[-1, 1], plain.array[-1, 1], rtol=0.05)
