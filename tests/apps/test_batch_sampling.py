"""Training tables of any size: a stratified sample."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lapace import Explainer
from lapace.apps.batch.sampling import draw_sample
from lapace.apps.cli.commands import app
from lapace.errors import InputError


def table(count=4000):
    """Numbers, whole and in cents, dates and categories."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "age": rng.integers(20, 60, count),
            "income": rng.gamma(2.0, 2000.0, count).round(2),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, count), "D"),
            "home": rng.choice(["own", "rent"], count),
            "grade": pd.Categorical.from_codes(rng.integers(0, 3, count), ["a", "b", "c"], True),
        }
    )
    rows["label"] = np.where(rows["income"] > 9000, "rich", "poor")
    return rows


def write(folder, rows, files=3, group=500):
    folder.mkdir(exist_ok=True)
    for k, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        arrow = pa.Table.from_pandas(rows.iloc[part], preserve_index=False)
        pq.write_table(arrow, folder / f"part-{k}.parquet", row_group_size=group)
    return folder


def test_the_sample_is_stratified_and_the_same_for_a_seed(tmp_path):
    rows = table()
    folder = write(tmp_path / "in", rows)
    one = draw_sample(folder, 1000, label="label")
    assert (len(one.rows), one.total) == (1000, 4000)
    share = (rows["label"] == "rich").mean()
    counts = Counter(one.rows["label"].to_pylist())
    assert counts["rich"] == max(200, int(1000 * share))
    assert one.rows.equals(draw_sample(folder, 1000, label="label").rows)
    other = draw_sample(folder, 1000, label="label", random_state=1)
    assert not one.rows.equals(other.rows)
    assert Counter(other.rows["label"].to_pylist()) == counts
    drawn = set(one.rows["income"].to_pylist())
    assert drawn < set(rows["income"])
    alike = draw_sample(folder, 1000).rows["label"].to_pylist()
    assert abs(alike.count("rich") / 1000 - share) < 0.04


def test_small_labels_have_enough_rows_and_all_are_taken_where_there_are_few(tmp_path):
    rows = table()
    rows["label"] = np.where(np.arange(len(rows)) % 100 == 0, "rare", "common")
    folder = write(tmp_path / "in", rows)
    counts = Counter(draw_sample(folder, 500, label="label").rows["label"].to_pylist())
    assert counts == {"rare": 40, "common": 460}  # all there are of the rare ones
    assert len(draw_sample(folder, 10_000, label="label").rows) == 4000


def test_files_and_columns_that_cannot_be_used_are_named(tmp_path):
    folder = write(tmp_path / "in", table(600))
    with pytest.raises(InputError, match="Did you mean 'label'"):
        draw_sample(folder, 200, label="lable")
    pq.write_table(pa.table({"age": [30]}), folder / "part-9.parquet")
    with pytest.raises(InputError, match=r"part-9.parquet': It has no column 'label'"):
        draw_sample(folder, 200, label="label")
    (folder / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"broken.parquet' cannot be read"):
        draw_sample(folder, 200)


def test_fit_draws_from_files_of_any_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train", table(), files=1, group=4000)
    words = "fit train --sample 200 --label label --classifier mlp --drop since --n-prototypes 2"
    result = CliRunner().invoke(app, [*words.split(), "-o", "m.lapace"])
    assert result.exit_code == 0, result.stderr
    assert "Drew 200 of 4,000 rows." in result.stderr
    assert sum(Explainer.load("m.lapace").schema_["age"].histogram[1]) == 200
