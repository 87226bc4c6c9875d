"""The experiment on dense paths between digits: blends of two images, and the page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks import dense_digits


def test_blends_are_of_two_digits_of_different_labels():
    labels = np.arange(40) % 4
    images = np.zeros((40, 2, 2), dtype=np.float32)
    images[np.arange(40), labels // 2, labels % 2] = 1.0
    found, real = dense_digits.blended(images, labels, seed=0)
    np.testing.assert_array_equal(found[real == 1], images)
    blends = found[real == 0]
    assert len(blends) > 20
    assert ((blends > 0.29).sum(axis=(1, 2)) == 2).all()
    np.testing.assert_allclose(blends.sum(axis=(1, 2)), 1.0, rtol=1e-6)


def test_the_page_is_written_beside_the_table(tmp_path):
    lines = [
        (seed, method, "realism", label, value + seed / 100, 0.0, 10)
        for seed in (1, 3)
        for method, label, value in (
            ("references", "blends", 0.0),
            ("straight", "5 → 7, middle", 0.5),
            ("dense", "5 → 7, middle", 0.9),
        )
    ]
    table = pd.DataFrame(lines, columns=dense_digits.COLUMNS)
    table.to_csv(tmp_path / "digits.csv", index=False)
    assert dense_digits.main(["--render", "--out", str(tmp_path / "digits.csv")]) == 0
    text = (tmp_path / "digits.md").read_text(encoding="utf-8")
    assert "blends 0.02." in text
    assert "| 5 → 7, middle | 0.52 | 0.92 |" in text
