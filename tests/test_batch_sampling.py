"""Training tables of any size: a stratified sample, and a schema of all rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lapace import Explainer, Feature, Schema
from lapace.batch import Engine
from lapace.batch.sampling import draw_sample, schema_of_all_rows
from lapace.cli.commands import app
from lapace.errors import InputError

LOOP = Engine(ray=False)


def table(count=4000):
    """Numbers, whole and in cents, dates, categories; a few rows with what a sample may miss."""
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
    rows.loc[7, "age"] = 103
    rows.loc[11, "income"] = 123456.78
    rows.loc[13, "home"] = "boat"
    rows.loc[17, "home"] = None
    rows.loc[19, "age"] = 17
    return rows


def write(folder, rows, files=3, group=500):
    folder.mkdir(exist_ok=True)
    for k, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        arrow = pa.Table.from_pandas(rows.iloc[part], preserve_index=False)
        pq.write_table(arrow, folder / f"part-{k}.parquet", row_group_size=group)
    return folder


def infer(rows):
    return Schema.infer(rows.drop(columns="label"))


def test_the_sample_is_stratified_and_the_same_for_a_seed(tmp_path):
    rows = table()
    folder = write(tmp_path / "in", rows)
    one = draw_sample(folder, 1000, label="label", engine=LOOP)
    assert (len(one.rows), one.total) == (1000, 4000)
    share = (rows["label"] == "rich").mean()
    counts = Counter(one.rows["label"].to_pylist())
    assert counts["rich"] == max(200, int(1000 * share))
    assert one.rows.equals(draw_sample(folder, 1000, label="label", engine=LOOP).rows)
    other = draw_sample(folder, 1000, label="label", random_state=1, engine=LOOP)
    assert not one.rows.equals(other.rows)
    assert Counter(other.rows["label"].to_pylist()) == counts
    drawn = set(one.rows["income"].to_pylist())
    assert drawn < set(rows["income"])
    alike = draw_sample(folder, 1000, engine=LOOP).rows["label"].to_pylist()
    assert abs(alike.count("rich") / 1000 - share) < 0.04


def test_small_labels_have_enough_rows_and_all_are_taken_where_there_are_few(tmp_path):
    rows = table()
    rows["label"] = np.where(np.arange(len(rows)) % 100 == 0, "rare", "common")
    folder = write(tmp_path / "in", rows)
    counts = Counter(draw_sample(folder, 500, label="label", engine=LOOP).rows["label"].to_pylist())
    assert counts == {"rare": 40, "common": 460}  # all there are of the rare ones
    assert len(draw_sample(folder, 10_000, label="label", engine=LOOP).rows) == 4000


def test_a_schema_of_all_rows_is_the_one_of_the_whole_table(tmp_path):
    rows = table()
    sample = draw_sample(write(tmp_path / "in", rows), 10_000, label="label", engine=LOOP)
    arrow = sample.rows.drop_columns(["label"])
    whole = Schema.infer(arrow)
    assert schema_of_all_rows(sample, whole) == whole


def test_what_the_sample_misses_is_in_the_schema(tmp_path):
    rows = table()
    sample = draw_sample(write(tmp_path / "in", rows), 300, label="label", engine=LOOP)
    small = Schema.infer(sample.rows.drop_columns(["label"]))
    assert "boat" not in small["home"].categories
    assert small["age"].upper < 103
    found, whole = schema_of_all_rows(sample, small), infer(rows)
    for name in ("age", "income", "since", "grade"):
        for setting in ("kind", "lower", "upper", "resolution", "missing", "histogram"):
            assert getattr(found[name], setting) == getattr(whole[name], setting), (name, setting)
    assert found["home"] == whole["home"]
    assert (found["home"].kind, found["home"].missing) == ("categorical", True)
    # The extremes can be encoded and decoded, too.
    cells = found.cells(rows.loc[[7, 11, 19]].drop(columns="label"))
    again = found.decode(found.encode(cells))
    assert again[:, 0].tolist() == [103, cells[1, 0], 17]
    assert again[1, 1] == 123456.78


def test_what_was_declared_of_a_column_stays(tmp_path):
    rows = table()
    sample = draw_sample(write(tmp_path / "in", rows), 300, label="label", engine=LOOP)
    declared = {
        "age": Feature.continuous("age", lower=18, upper=90),
        "income": {"upper": 50_000.0},
        "home": {"categories": ["own", "rent"]},
    }
    small = Schema.infer(sample.rows.drop_columns(["label"]), declared)
    found = schema_of_all_rows(sample, small, declared)
    assert (found["age"].lower, found["age"].upper) == (18, 90)
    assert found["income"].upper == 50_000
    assert found["income"].lower == infer(rows)["income"].lower
    assert found["home"].categories == ("own", "rent")


def test_rows_that_cannot_be_used_are_named_with_their_file(tmp_path):
    rows = table(600)
    folder = write(tmp_path / "in", rows)
    sample = draw_sample(folder, 200, label="label", engine=LOOP)
    small = Schema.infer(sample.rows.drop_columns(["label"]))
    bad = rows.iloc[:50].assign(income=np.inf)
    pq.write_table(pa.Table.from_pandas(bad, preserve_index=False), folder / "part-9.parquet")
    again = draw_sample(folder, 200, label="label", engine=LOOP)
    with pytest.raises(InputError, match=r"part-9.parquet': Column 'income' holds an infinity"):
        schema_of_all_rows(again, small)
    with pytest.raises(InputError, match="Did you mean 'label'"):
        draw_sample(folder, 200, label="lable", engine=LOOP)
    (folder / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"broken.parquet' cannot be read"):
        draw_sample(folder, 200, engine=LOOP)


def test_fit_draws_from_files_of_any_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train", table(), files=1, group=4000)
    words = "fit train --sample 200 --label label --classifier mlp --drop since --n-prototypes 2"
    words += " --kind income=number"  # it decides the label, and so has to be meant
    result = CliRunner().invoke(app, [*words.split(), "-o", "m.lapace"])
    assert result.exit_code == 0, result.stderr
    assert "Drew 200 of 4,000 rows." in result.stderr
    schema = Explainer.load("m.lapace").schema_
    assert (schema["age"].lower, schema["age"].upper) == (17, 103)
    assert "boat" in schema["home"].categories
    assert sum(schema["age"].histogram[1]) == 4000
