"""Pictures: they show what the result holds, texts do not overlap, nothing needs torch."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from sklearn.decomposition import PCA

from lapace import InputError, cohorts, plots
from lapace.plots.fitted import _contrast
from lapace.plots.paths import DrawnPath
from lapace.plots.style import colour
from tests import worlds
from tests.processes import python


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def explainer():
    return worlds.bank().explainer


@pytest.fixture(scope="module")
def explanation(explainer):
    return explainer.explain(worlds.bank().instances.head(30), target="approved")


@pytest.fixture(scope="module")
def instance(explanation):
    answered = (one for one in explanation if one.status == "answered")
    return next(one for one in answered if 0.2 < DrawnPath.of(one, None).tau < 0.8)


def changes(instance, pick):
    return instance.changes(pick).to_dict("records")


def words(ax):
    return [text.get_text() for text in ax.texts if text.get_text()]


def overlaps(figure):
    """Pairs of texts that overlap, and texts that leave the picture."""
    figure.canvas.draw()
    for ax in figure.axes:  # tick labels are matplotlib's own affair, and it keeps spare ones
        ax.tick_params(labelleft=False, labelbottom=False)
    texts = [t for t in figure.findobj(plt.Text) if t.get_text().strip() and t.get_visible()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts]
    frame = figure.bbox.padded(2)
    out = [a for a, box in boxes if frame.count_contains(box.corners()) < 4]
    return [(a, b) for (a, p), (b, q) in combinations(boxes, 2) if p.padded(-1).overlaps(q)] + out


# --- one instance's path ------------------------------------------------------------------------


def test_a_path_says_what_changes(instance):
    ax = plots.path(instance)
    shown = words(ax)
    first = changes(instance, "first")
    for change in first:
        assert change["feature"] in shown
        assert str(change["before"]) in shown
        assert any(word.endswith(str(change["after"])) for word in shown)
    assert ax.get_title(loc="left") == "From refused to approved"
    assert any(f"with {len(first)} change" in word for word in shown)
    row = instance.row
    for change in first:
        if change["feature"] in ("income", "debt"):
            arrow = "▲" if float(change["after"]) > row[change["feature"]] else "▼"
            assert f"{arrow} {change['after']}" in shown


def test_what_the_best_answer_changes_comes_first(instance):
    shown, best = words(plots.path(instance)), changes(instance, "best")
    names = [change["feature"] for change in best]
    assert len(DrawnPath.of(instance, None).needed()) == len(names) > 0
    places = [shown.index(name) for name in names]
    others = [k for k, word in enumerate(shown) if word in set(instance.row) - set(names)]
    assert not others or max(places) < min(others)
    for change in best:
        for end in {change["enough"], change["safe"]} - {change["before"]}:
            assert any(word.endswith(str(end)) for word in shown)
    for end in ("enough", "safe"):
        (probability,) = instance.best(1, end=end).probability
        assert f"{probability:.0%}" in shown


def test_both_ends_of_the_best_answer_are_drawn_where_they_differ(instance):
    shown = words(plots.path(instance))
    assert [e.title for e in DrawnPath.of(instance, None).ends] == ["just enough", "safe"]
    assert {"just enough", "safe"} <= set(shown)
    explanation, position = instance.explanation, instance.position
    best = explanation.minimal["best"]
    same = replace(explanation, minimal={**explanation.minimal, "enough": best})[position]
    ax = plots.path(same)
    assert "best answer" in words(ax)
    assert not {"just enough", "safe"} & set(words(ax))
    assert ax.get_xlim() == (0, 100)
    first = {"first": explanation.picked["first"]}
    for minimal, title in (({"nearest": best}, "best answer"), ({}, None)):
        one = replace(explanation, minimal=minimal, picked=first)[position]
        assert ("best answer" in words(plots.path(one))) == (title is not None)
    # What need not change for the one end is a dash there.
    enough = replace(best, cells=explanation.instances[best.instance])
    stays = replace(explanation, minimal={**explanation.minimal, "enough": enough})[position]
    plain, dashes = (words(plots.path(one)).count("–") for one in (instance, stays))
    assert dashes > plain
    assert overlaps(plots.path(stays).figure) == []


def test_the_flip_is_drawn_at_first(instance):
    ax = plots.path(instance)
    first = instance.explanation.first()
    (row,) = np.flatnonzero(
        (first.instance == instance.position) & (first.prototype == instance.prototypes[0])
    )
    steps = [patch for patch in ax.patches if patch.get_height() > 0.5]  # not the bars of answers
    left, right = (f(patch.get_x() + w * patch.get_width() for patch in steps)
                   for f, w in ((min, 0), (max, 1)))  # fmt: skip
    marks = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "v"]
    assert marks == pytest.approx([left + (right - left) * first.tau[row]])


def test_a_path_to_another_prototype(instance):
    other = instance.prototypes[-1]
    assert any(f"to prototype {other}:" in word for word in words(plots.path(instance, other)))
    with pytest.raises(InputError, match="no path to prototype 99"):
        plots.path(instance, 99)


def test_nothing_overlaps(explanation):
    drawn = 0
    for one in explanation:
        for prototype in one.prototypes if one.status == "answered" else ():
            assert overlaps(plots.path(one, prototype).figure) == []
            plt.close("all")
            drawn += 1
    assert drawn > 10


def test_lines_appear_only_where_there_is_something_to_show(instance):
    explanation, position = instance.explanation, instance.position
    unknown = np.full_like(explanation.probability, np.nan)
    quiet = plots.path(replace(explanation, probability=unknown)[position])
    broken = {"valid": np.ones_like(explanation.valid), "feasible": explanation.valid & False}
    infeasible = plots.path(replace(explanation, **broken)[position])
    for ax, probability, word in ((quiet, False, False), (infeasible, True, True)):
        assert any(w.startswith("probability of") for w in words(ax)) == probability
        assert ("infeasible" in words(ax)) == word


def test_a_path_without_an_ok_step_says_so(instance):
    explanation = instance.explanation
    never = replace(explanation, valid=np.zeros_like(explanation.valid))[instance.position]
    ax = plots.path(never)
    assert any(word.startswith("No step of this path is valid and feasible") for word in words(ax))
    assert "closest found" in words(ax)
    assert "at the flip" not in words(ax)
    assert "approved" not in words(ax)
    assert not [line for line in ax.lines if line.get_marker() == "v"]
    assert overlaps(ax.figure) == []


def test_a_whole_explanation_is_not_one_instance(explainer, explanation, instance):
    draw = {"path": plots.path, "latent_map": lambda one: plots.latent_map(explainer, one)}
    for name, function in draw.items():
        with pytest.raises(
            InputError, match=rf"plots\.{name} draws one instance.*explanation\[0\]"
        ):
            function(explanation)
        with pytest.raises(InputError, match="not a dict"):
            function({"income": 3})


def test_an_instance_is_called_by_its_id(explainer, instance):
    ids = tuple(1234 - instance.position + i for i in range(len(instance.explanation)))
    called = replace(instance.explanation, ids=ids)[instance.position]
    assert any(word.startswith("Instance 1234,") for word in words(plots.path(called)))
    long = replace(instance.explanation, ids=("5f0c1d7a-9c3e-4f51-8a52-6f4f2b1a7e90",) * len(ids))
    assert overlaps(plots.path(long[instance.position]).figure) == []


def test_under_any_other_the_labels_reached_are_named():
    instance = worlds.explained(worlds.seasons(), "any-other")[0]
    path, (best,) = instance.path(), instance.best(1).label
    ax = plots.path(instance)
    reached = path.label[path.ok][0]
    assert ax.get_title(loc="left") == f"From {instance.label} to {reached}"
    shown = words(ax)
    assert {str(reached), str(best)} <= set(shown)
    assert not any(word == f"not {instance.label}" for word in shown)
    explanation = instance.explanation
    never = replace(explanation, valid=np.zeros_like(explanation.valid))[instance.position]
    assert plots.path(never).get_title(loc="left") == f"Away from {instance.label}"


def test_a_long_table_shows_the_largest_changes_and_counts_the_others():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 20)).round(2)
    explainer = worlds.quick(lambda x: (x.sum(axis=1) > 0).astype(int), 1).fit(table)
    one = explainer.explain(np.full((1, 20), -1.0))[0]
    ax = plots.path(one)
    changed = len(one.changes("first"))
    assert changed > 14
    assert any(f"with {changed} changes" in word for word in words(ax))
    assert any("smaller change" in word for word in words(ax))
    assert overlaps(ax.figure) == []


def test_a_dollar_begins_no_formula(instance):
    explanation = instance.explanation
    names = {label: f"$ {label[:3]} $\\frac$" for label in explanation.labels}
    label, target = (
        np.array([names[v] for v in a], object) for a in (explanation.label, explanation.target)
    )
    rich = replace(explanation, labels=tuple(names.values()), label=label, target=target)
    rich = rich[instance.position]
    assert overlaps(plots.path(rich).figure) == []


def test_images_become_a_strip():
    world = worlds.digits()
    explainer, image = world.explainer, world.instances[:1]
    label = world.classifier(image).tolist()[0]
    target = (label + 1) % 10
    one = explainer.explain(image, target=target)[0]
    ax = plots.path(one)
    assert 11 <= len(ax.images) <= 12
    np.testing.assert_allclose(ax.images[0].get_array(), image[0])
    # The same grey means the same everywhere: no image is stretched to its own darkest pixel.
    assert len({picture.get_clim() for picture in ax.images}) == 1
    assert words(ax).count("the flip") == 1
    edges = [to_hex(patch.get_edgecolor()).upper() for patch in ax.patches]
    assert (edges[0], edges[-1]) == (colour(label), colour(target))
    assert overlaps(ax.figure) == []
    ax = plots.prototypes(explainer)
    shown = [picture.get_array() for picture in ax.images]
    for picture, prototype in zip(shown, explainer.prototypes_, strict=True):
        np.testing.assert_allclose(picture, prototype.cells.reshape(8, 8))
    assert overlaps(ax.figure) == []
    assert len(plots.prototypes(explainer, label=1).images) == 1


# --- the latent map ---------------------------------------------------------------------------


def latent(explainer, instance=None, width=6):
    """Plain arrays as an explainer gives them."""
    rng = np.random.default_rng(0)
    owner = np.array([p.code for p in explainer.prototypes_])
    record = {
        "labels": np.array(explainer.classes_, dtype=object),
        "z": rng.normal(size=(300, width)) * np.arange(width, 0, -1),
        "label": rng.integers(0, 2, 300),
        "prototype_z": rng.normal(size=(len(owner), width)),
        "prototype_label": owner,
        "prototype_number": np.array([p.number for p in explainer.prototypes_]),
        "prototype_valid": np.array([p.valid for p in explainer.prototypes_]),
    }
    return record if instance is None else {**record, "instance_z": rng.normal(size=width)}


def offsets(ax):
    return [c.get_offsets().data for c in ax.collections if len(c.get_offsets())]


def test_the_map_shows_the_first_two_principal_components(explainer):
    record = latent(explainer)
    ax = plots.latent_map(record)
    expected = PCA(2).fit_transform(record["z"])
    seen = offsets(ax)[0]
    order = np.random.default_rng(0).permutation(len(expected))
    np.testing.assert_allclose(np.abs(seen), np.abs(expected[order]), atol=1e-8)
    shares = PCA(2).fit(record["z"]).explained_variance_ratio_
    assert ax.get_xlabel() == f"principal component 1 ({shares[0]:.0%} of the variance)"


def test_a_few_codes_far_out_do_not_shrink_the_map(explainer):
    record = latent(explainer)
    usual = plots.latent_map(record).get_xlim()
    record["z"] = record["z"].copy()
    record["z"][0] *= 50
    wide = plots.latent_map(record).get_xlim()
    assert np.ptp(wide) < 3 * np.ptp(usual)


def test_the_map_shows_every_prototype_by_its_number(explainer):
    record = latent(explainer)
    *numbers, share = words(plots.latent_map(record))
    assert numbers == [str(p.number) for p in explainer.prototypes_]
    assert re.fullmatch(r"These two directions show \d+% of the spread of all codes\.", share)
    record["prototype_valid"] = np.arange(len(explainer.prototypes_)) > 0
    ax = plots.latent_map(record)
    assert words(ax)[:-1] == [str(p.number) for p in explainer.prototypes_[1:]]
    assert "refused prototype" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_rings_lie_on_the_lines_where_the_decision_flips(explainer, instance):
    record = latent(explainer, instance, width=2)
    ax = plots.latent_map(record, instance)
    numbers = record["prototype_number"].tolist()
    for prototype in instance.prototypes:
        tau = DrawnPath.of(instance, prototype).tau
        end = record["prototype_z"][numbers.index(prototype)]
        ring = (1 - tau) * record["instance_z"] + tau * end
        assert any(np.allclose(found, ring[None]) for found in offsets(ax))
    assert len(ax.lines) == len(instance.prototypes)
    assert ax.get_xlabel() == "latent dimension 1"  # two dimensions are shown as they are
    assert overlaps(ax.figure) == []
    with pytest.raises(InputError, match="hold no instance"):
        plots.latent_map(latent(explainer), instance)


def test_the_map_takes_its_arrays_from_an_explainer(explainer, instance):
    calls = []

    def latent_map(one=None):
        calls.append(one)
        return latent(explainer, one)

    ax = plots.latent_map(SimpleNamespace(latent_map=latent_map), instance)
    assert calls == [instance]
    assert f"instance {instance.position}" in [t.get_text() for t in ax.get_legend().get_texts()]


# --- prototypes -------------------------------------------------------------------------------


def test_prototypes_are_written_out(explainer):
    ax = plots.prototypes(explainer)
    shown = words(ax)
    for prototype in explainer.prototypes_:
        assert str(prototype.number) in shown
        assert f"{prototype.probability:.0%}" in shown
        for feature, cell in zip(explainer.schema_.features, prototype.cells, strict=True):
            assert feature.text(cell) in shown
    assert shown.count("approved") == shown.count("refused") == 3
    assert overlaps(ax.figure) == []
    refused = replace(explainer.prototypes_[0], valid=False)
    bank = SimpleNamespace(**{n: getattr(explainer, n) for n in ("schema_", "classes_")})
    bank.prototypes_ = (refused,)
    assert words(plots.prototypes(bank, "approved")).count("refused") == 1  # not the label


def test_prototypes_of_one_label(explainer):
    ax = plots.prototypes(explainer, "approved")
    assert words(ax).count("approved") == 3
    assert overlaps(ax.figure) == []
    with pytest.raises(
        InputError, match=r"no prototypes of 'maybe'\. The labels are 'approved', '"
    ):
        plots.prototypes(explainer, "maybe")


def test_shades_say_more_less_or_other(explainer):
    schema = explainer.schema_  # age, income, debt, home, married, grade
    cells = np.array([[50, 50, 30, 0, 0, 1], [50, 90, 30, 0, 0, 1], [50, 9, 30, 1, 0, 1]], float)
    contrast = _contrast(schema, cells)
    assert contrast[2, 1] < -0.4 < 0.4 < contrast[1, 1]
    assert np.isnan(contrast[2, 3])
    assert not contrast[:, [0, 2, 4, 5]].any()
    assert not contrast[:2, 3].any()


# --- what it needs ----------------------------------------------------------------------------


def test_without_matplotlib_the_extra_is_named():
    done = python("-c", "import sys; sys.modules['matplotlib'] = None; import lapace.plots")
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: Pictures need matplotlib: pip install 'lapace[plots]'."
    )


# --- effort, notes --------------------------------------------------------------------------------


def bars(ax):
    """Widths of the bars under answers, by their place from the top."""
    thin = [p for p in ax.patches if abs(p.get_height()) == pytest.approx(0.08)]
    return [(round(p.get_y(), 2), p.get_width()) for p in thin]


def test_bars_tell_a_hard_change_from_an_easy_one(explanation, instance):
    best = explanation[[instance.position]].best(1)
    weights = best.schema.weights(None)
    parts = best.schema.change_efforts(best.instances[best.instance], best.cells, weights)[0]
    wanted = sorted(parts[parts > 0] / best.effort[0], reverse=True)
    drawn = bars(plots.path(instance))
    whole, shares = drawn[::2], drawn[1::2]
    assert [y for y, _ in whole] == [y for y, _ in shares]
    assert [width / full for (_, width), (_, full) in zip(shares, whole, strict=True)] == (
        pytest.approx(wanted)
    )


def test_a_description_is_written_below_the_table(instance):
    schema = instance.explanation.schema
    changed = next(iter(DrawnPath.of(instance, None).needed()))
    features = list(schema.features)
    features[changed] = replace(features[changed], description="What it is.")
    described = replace(instance.explanation, schema=replace(schema, features=tuple(features)))
    assert "What it is." in " ".join(words(plots.path(described[instance.position])))


def test_what_follows_from_other_columns_is_not_called_unchanged(instance):
    schema, drawn = instance.explanation.schema, DrawnPath.of(instance, None)
    moved = schema.differs(drawn.original, drawn.steps.cells).any(axis=0)
    column = next(i for i in np.flatnonzero(moved) if i not in drawn.needed())
    features = list(schema.features)
    source = next(f.name for f in features if f.kind == "continuous" and f != features[column])
    features[column] = replace(features[column], derived=f"2 * {source}")
    derived = replace(instance.explanation, schema=replace(schema, features=tuple(features)))
    shown = "\n".join(words(plots.path(derived[instance.position])))
    name = features[column].name.replace("_", " ")[:20]
    assert re.search(rf"^Follows from the others: {name}", shown, flags=re.MULTILINE)
    unchanged = re.search(r"^Unchanged throughout: (.*)$", shown, flags=re.MULTILINE)
    assert unchanged is None or name not in unchanged[1]


def test_groups_are_drawn_with_their_intervals_and_features(explanation):
    groups = ["left", "right"] * (len(explanation) // 2) + ["left"] * (len(explanation) % 2)
    compared = cohorts.cohort(explanation, groups)
    figure = plots.cohort(compared)
    features, share, cost = figure.axes
    assert [t.get_text() for t in share.get_yticklabels()] == list(compared.names)
    dots = [line for line in cost.lines if line.get_marker() == "o"]
    assert [d.get_xdata()[0] for d in dots] == pytest.approx(compared.costs["cost"].tolist())
    cells = {tuple(t.get_position()): t.get_text() for t in features.texts}
    shown = [t.get_text() for t in features.get_yticklabels()]
    columns = compared.features[["feature", "group", "share"]]
    for name, group, value in columns.itertuples(index=False):
        place = list(compared.names).index(group), shown.index(name.replace("_", " "))
        assert cells.pop(place) == f"{value:.0%}"
    assert not cells
    alone = plots.cohort(cohorts.cohort(explanation))
    assert alone.axes[0].get_title(loc="left") == "What changes, how often"
