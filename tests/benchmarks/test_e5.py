"""E5 from end to end: three digits, both recipes, predicted and true labels."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks import e5
from benchmarks.digits_page import gallery, page
from lapace import LapaceError
from lapace.training import IMAGES


def test_the_experiment_runs_from_end_to_end_on_a_few_digits(tmp_path, monkeypatch, missing):
    try:
        digits = e5.read(quick=True)
    except LapaceError as error:
        missing("data", f"mnist-5k could not be fetched ({error})")
    train, test = (
        np.stack([np.flatnonzero(truth == digit)[:count] for digit in (1, 5, 7)], axis=1).ravel()
        for truth, count in ((digits.truth, 250), (digits.test_truth, 20))
    )
    few = replace(
        digits,
        train=digits.train[train],
        truth=digits.truth[train],
        test=digits.test[test],
        test_truth=digits.test_truth[test],
    )
    monkeypatch.setattr(e5, "read", lambda quick: few)
    recipes = {
        "default": replace(IMAGES, hidden=64, steps=500, batch=128, rate=4e-3),
        "paper": replace(e5.RECIPES["paper"], hidden=64, steps=1, epochs=4),
    }
    settings = replace(
        e5.QUICK, instances=4, fewer=2, near=20, fives=3, n_prototypes=1, epochs=6, recipes=recipes
    )
    before = plt.get_fignums()  # other tests may have left some
    run = {"quick": True, "device": "cpu", "seeds": [0], "settings": settings}
    said = []
    assert e5.main_e5(tmp_path, tmp_path, **run, say=said.append) == 0, said
    table = e5.read_figures(tmp_path / "e5.csv")
    assert tuple(table.columns) == e5.COLUMNS
    assert table["seed"].dtype.kind == table["count"].dtype.kind == "i"
    done = set(zip(table["labels"], table["recipe"], strict=True))
    assert done == {("predictions", ""), ("predictions", "default"), ("truth", "paper")}
    assert "| valid prototypes | 3 of 3 |" in "\n".join(page(table, few.name))
    dash = table[table["label"] == "dash: exact"].set_index("metric")["value"]
    assert dash["brightest in the dash, sevens"].dropna().max() <= 0.01
    ok = table[table["metric"] == "first ok, paths"]
    assert (ok.loc[ok["recipe"] == "default", "value"] == 1).all()
    shown = [
        line.split("](")[1].rstrip(")")
        for line in gallery(table, few.name).splitlines()
        if line.startswith("![")
    ]
    assert shown
    for name in shown:
        assert (tmp_path / name).stat().st_size > 500, name
    assert plt.get_fignums() == before
    assert e5.main_e5(tmp_path, tmp_path, **run) == 0  # nothing is left to do
    pd.testing.assert_frame_equal(e5.read_figures(tmp_path / "e5.csv"), table)
