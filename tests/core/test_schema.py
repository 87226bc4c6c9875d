"""Columns: their kinds, reading and encoding rows and back, distances, histograms."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise, product

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from lapace.errors import InputError
from lapace.schema import Feature, Knots, Reading, Schema, inference
from lapace.schema.ranks import usual_width
from tests.core.test_table import assert_same

ROWS = 400
EDUCATION = ["none", "school", "bachelor", "master"]


def make_table(rows):
    """A table such as a bank's: long tails, spikes at zero, cents, missing values, every kind."""
    rng = np.random.default_rng(0)

    def gappy(values):
        return [None if gone else v for v, gone in zip(values, rng.random(rows) < 0.1)]  # noqa: B905

    income = np.round(np.exp(rng.normal(8, 1.0, rows)), 2)
    savings = np.where(rng.random(rows) < 0.6, 0.0, np.round(rng.exponential(9e3, rows), -2))
    return pd.DataFrame(
        {
            "income": income,
            "savings": savings,
            "age": rng.integers(18, 90, rows).astype("int8"),
            "kids": pd.array(gappy(rng.integers(0, 5, rows).tolist()), dtype="Int64"),
            "rate": pd.array(gappy((rng.integers(0, 40, rows) / 4).tolist()), dtype="Float64"),
            "noise": rng.normal(size=rows),
            "member": rng.random(rows) < 0.3,
            "insured": pd.array(gappy((rng.random(rows) < 0.5).tolist()), dtype="boolean"),
            "home": pd.Categorical(gappy(rng.choice(["own", "rent", "free"], rows).tolist())),
            "zone": pd.Categorical(rng.choice([10, 20, 30, 50], rows)),
            "education": pd.Categorical(rng.choice(EDUCATION, rows), EDUCATION, ordered=True),
            "job": rng.choice(["cook", "nurse"], rows).astype(object),
            "kind": ["applicant"] * rows,
            "year": np.full(rows, 2026),
        }
    )


TABLE = make_table(ROWS)
SCHEMA = Schema.infer(TABLE)
CELLS = SCHEMA.cells(TABLE)


def as_polars(frame):
    columns = {}
    for name in frame:
        values = [None if pd.isna(v) else v for v in frame[name].tolist()]
        dtype = {"age": pl.Int8, "education": pl.Enum(EDUCATION), "home": pl.Categorical}.get(name)
        columns[name] = pl.Series(values, dtype=dtype)
    return pl.DataFrame(columns)


def as_arrow(frame):
    columns = {}
    for name in frame:
        values = [None if pd.isna(v) else v for v in frame[name].tolist()]
        columns[name] = pa.array(values)
        if name in ("home", "zone"):
            columns[name] = columns[name].dictionary_encode()
    order = [EDUCATION.index(v) for v in frame["education"]]
    columns["education"] = pa.DictionaryArray.from_arrays(
        pa.array(order, pa.int32()), EDUCATION, ordered=True
    )
    return pa.table(columns)


def as_records(frame):
    return [
        {n: None if pd.isna(v) else v for n, v in row.items()} for row in frame.to_dict("records")
    ]


def one(values, **overrides):
    """The only feature of a table of one column."""
    return Schema.infer([{"x": v} for v in values], overrides or None)["x"]


def numbers(values, **overrides):
    return Schema.infer(pd.DataFrame({"x": values}), overrides or None)["x"]


# --- what columns are ------------------------------------------------------------------------


def test_kinds_and_resolutions_of_a_bank_table():
    found = {f.name: f.kind for f in SCHEMA.features}
    assert found == {
        "income": "continuous", "savings": "continuous", "age": "continuous",
        "kids": "continuous", "rate": "continuous", "noise": "continuous", "member": "binary",
        "insured": "binary", "home": "categorical", "zone": "categorical",
        "education": "ordinal", "job": "binary", "kind": "categorical", "year": "continuous",
    }  # fmt: skip
    resolutions = [SCHEMA[n].resolution for n in ("income", "savings", "age", "rate", "noise")]
    assert resolutions == [0.01, 100.0, 1.0, 0.25, 0.0]
    integer = {f.name for f in SCHEMA.features if f.integer}
    assert integer == {"savings", "age", "kids", "education", "year"}
    assert {f.name for f in SCHEMA.features if f.missing} == {"kids", "rate", "insured", "home"}
    assert SCHEMA["education"].categories == tuple(EDUCATION)
    assert SCHEMA["zone"].categories == (10, 20, 30, 50)
    assert SCHEMA["age"].lower == TABLE["age"].min()
    assert SCHEMA["age"].upper == TABLE["age"].max()
    assert SCHEMA.names == tuple(TABLE.columns)
    assert SCHEMA.shape is None


@pytest.mark.parametrize("convert", [lambda f: f, as_polars, as_arrow, as_records])
def test_every_frame_library_gives_the_same_schema_and_its_rows_back(convert):
    frame = convert(TABLE)
    loose = {"zone": "categorical"}  # no integer categories in polars or JSON: they are numbers
    schema = Schema.infer(
        frame, {**loose, "education": Feature("education", "ordinal", categories=EDUCATION)}
    )
    assert schema.features == SCHEMA.features
    np.testing.assert_array_equal(schema.cells(frame), CELLS)
    np.testing.assert_array_equal(SCHEMA.cells(frame), CELLS)
    assert_same(schema.frame(CELLS), frame)


@pytest.mark.parametrize(
    ("values", "kind", "categories"),
    [
        ([0, 1, 1, 0], "binary", (0, 1)),
        ([0.0, 1.0, None], "binary", (0, 1)),
        ([1, 2, 1], "continuous", ()),
        ([True, False], "binary", (False, True)),
        ([True, None, True], "categorical", (True,)),
        (["yes", "no", None], "binary", ("no", "yes")),
        (["a", "b", "c", "a"], "categorical", ("a", "b", "c")),
        (["", "x", "y"], "categorical", ("", "x", "y")),
        ([Decimal("1.5"), Decimal("2.25")], "continuous", ()),
    ],
    ids=str,
)
def test_kinds(values, kind, categories):
    feature = one(values)
    assert (feature.kind, feature.categories) == (kind, categories)
    assert feature.missing == (None in values)


@pytest.mark.parametrize(
    ("values", "resolution"),
    [
        (np.arange(50) / 100, 0.01),
        (np.arange(50) / 4, 0.25),
        (np.arange(50) * 100.0, 100.0),
        (np.arange(50) * 2.5, 2.5),
        (np.arange(50.0), 1.0),
        (np.cumsum(np.full(50, 0.1)), 0.1),  # what arithmetic leaves of tenths
        (np.arange(50) / 1e6, 1e-6),
        (np.arange(50) / 1e7, 0.0),  # finer than six decimals
        (np.arange(50) + 1e-7 * np.sin(np.arange(50)), 0.0),  # noise is not a lattice
        (np.random.default_rng(0).normal(size=50), 0.0),
        (np.arange(50) * 1e300, 0.0),
        (np.array([600.0, 1200.0, 1800.0]), 1.0),  # three values share a divisor by chance
        (np.zeros(5), 1.0),
        (np.array([1234.56, 99.99, 0.01], dtype=np.float32), 0.01),
        (np.arange(2**53 - 20, 2**53).astype(float), 1.0),
    ],
    ids=str,
)
def test_the_resolution_of_numbers(values, resolution):
    assert numbers(values).resolution == resolution


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (np.arange(1000) / 100, 0.04),  # quartiles a little under 5 apart, cents
        (np.arange(1000) * 10.0, 40.0),
        ([*np.arange(18, 90)] * 2, 0.0),  # one year matters
        (np.linspace(0, 1, 1000) ** 0.5, 0.00366),  # no resolution
        ([*np.arange(0, 1900, 100) + 0.01] * 9, 0.0),  # fewer than twenty values are choices
        ([0.0] * 80 + [*np.arange(20) * 5.0], 0.0),  # most are the same
        (np.exp(np.arange(1000) / 100).round(2), 17.82),  # the largest do not widen it
        ([7.0] * 30, 0.0),
    ],
    ids=range(8),
)
def test_the_tolerance_is_a_hundredth_of_the_quartiles_range_in_whole_steps(values, tolerance):
    assert numbers(values).tolerance == pytest.approx(tolerance, rel=1e-9)


def test_a_tolerance_that_is_declared():
    price = Feature("x", "continuous", tolerance=0.05)
    assert numbers([1.0, 2.5, 54.5], x=price).tolerance == 0.05
    assert numbers(np.arange(1000) / 100, x=Feature("x", "continuous", tolerance=0)).tolerance == 0


def test_constant_columns():
    frame = pd.DataFrame({"number": [7.5] * 9, "text": ["same"] * 9, "gappy": [None, *"ssssssss"]})
    schema = Schema.infer(frame)
    assert [f.kind for f in schema.features] == ["continuous", "categorical", "categorical"]
    assert [f.width for f in schema.features] == [0, 0, 1]
    assert schema["number"].span == 1.0
    cells = schema.cells(frame)
    np.testing.assert_array_equal(schema.decode(schema.encode(cells)), cells)
    anything = np.random.default_rng(0).normal(size=(20, schema.coding.width)) * 10
    assert (schema.decode(anything)[:, :2] == [7.5, 0.0]).all()
    assert schema.distance(cells, cells + np.array([1, 0, 0])).tolist() == [1.0] * 9


def test_thousands_of_categories():
    rng = np.random.default_rng(0)
    common = [f"town {i}" for i in range(64)]
    values = [*common * 20, *(f"village {i}" for i in range(900))]
    rng.shuffle(values)
    frame = pd.DataFrame({"place": values})
    schema = Schema.infer(frame)
    assert schema["place"].categories == tuple(sorted(common))
    assert schema.coding.width == 64
    reading = schema.read(frame)
    assert len(reading.schema["place"].levels) == 964
    assert reading.problems == {}
    pd.testing.assert_frame_equal(reading.schema.frame(reading.cells), frame)
    encoded = reading.schema.encode(reading.cells)
    rare = frame["place"].str.startswith("village").to_numpy()
    assert (encoded.sum(axis=1) == ~rare).all()


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ([f"id-{i}" for i in range(60)], "holds 60 different values in 60 rows, as names or free"),
        ([f"{i // 2}, and more" for i in range(119)], "holds 60 different values in 119 rows"),
        ([*(str(i * 7) for i in range(60)), "ask Ann"], "holds numbers, but in 1 rows other text"),
        (range(100, 160), "only counts the rows. Drop it (schema={'x': 'drop'}), let it identify"),
        (list(range(60))[::-1], "only counts the rows"),
        ([None, None], "has no value in any row. Drop it (schema={'x': 'drop'})."),
        ([1.5, math.inf, 2.0], "holds an infinity in row 1. Use a number or none."),
        ([1, "one", 2], "mixes numbers and text."),
        ([1, [2]], "mixes numbers and text"),
        ([dt.timedelta(hours=3)], "holds times of day or durations. Turn it into a number (minu"),
        ([[1], [2]], "holds values that are neither numbers nor text. Convert or drop it."),
        ([2**53, 1, 2], "holds a whole number of 2^53 or more in row 0, too large to be exact."),
        ([10**400, 1], "holds an infinity in row 0"),
        ([-1.5e308, 1.5e308], "reaches from -1.5e+308 to 1.5e+308, too far to compute with."),
    ],
    ids=lambda v: str(v)[:30],
)
def test_columns_that_are_refused(column, sentence):
    with pytest.raises(InputError) as error:
        one(column)
    assert str(error.value).startswith(f"Column 'x' {sentence}")


def test_small_tables_and_gaps_are_not_taken_for_identifiers():
    assert one([f"id-{i}" for i in range(49)]).kind == "categorical"
    assert one(range(49)).kind == "continuous"
    assert one([*range(60), None]).kind == "continuous"
    assert one(range(0, 120, 2)).kind == "continuous"
    assert one([float(i) for i in range(60)]).kind == "continuous"


def test_a_schema_cannot_be_inferred_without_rows_or_columns():
    for table in (pd.DataFrame({"x": []}), pl.DataFrame({"x": []}), [], np.empty((0, 2))):
        with pytest.raises(InputError, match=r"^The table has no rows\. It needs at least a few"):
            Schema.infer(table)
    for table in (pd.DataFrame(index=range(3)), np.empty((3, 0)), [{}, {}]):
        with pytest.raises(InputError, match=r"^The table has no columns\.$"):
            Schema.infer(table)


# --- overrides -------------------------------------------------------------------------------


def test_a_wide_table_is_refused_at_once_unless_its_rows_are_images(monkeypatch):
    wide = np.random.default_rng(0).integers(0, 2, (60, 1001))
    with pytest.raises(
        InputError, match=r"^The table has 1,001 columns; at most 1,000 can be used"
    ):
        Schema.infer(wide)
    dropped = Schema.infer(pd.DataFrame(wide).add_prefix("c"), {"c7": "drop"})
    assert len(dropped.names) == 1000
    monkeypatch.setattr(inference, "MOST_CATEGORIES", 1999)
    with pytest.raises(
        InputError, match=r"^The table has 2,000 categories in all columns together"
    ):
        Schema.infer(wide[:, :1000])
    monkeypatch.setattr(inference, "MOST_COLUMNS", 10)
    assert Schema.infer(np.random.default_rng(0).random((20, 4, 4))).shape == (4, 4)


def test_a_kind_may_be_named():
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0, 1, 0], "c": [5, 5, 7], "d": ["x", "y", "z"]})
    kinds = {"a": "categorical", "b": "continuous", "c": "binary", "d": "categorical"}
    schema = Schema.infer(frame, kinds)
    assert {f.name: f.kind for f in schema.features} == kinds
    assert schema["a"].categories == (1, 2, 3)
    assert schema["b"].upper == 1.0
    assert schema["c"].categories == (5, 7)
    assert Schema.infer(frame, {"a": "ordinal"})["a"].categories == (1, 2, 3)
    many = Schema.infer(pd.DataFrame({"x": np.arange(300) % 100}), {"x": "ordinal"})
    assert many["x"].categories == tuple(range(100))  # an ordinal keeps all its levels
    truths = Schema.infer(pd.DataFrame({"x": [True, False]}), {"x": "continuous"})
    assert truths.frame(np.array([[0.0], [1.0]]))["x"].tolist() == [False, True]
    cells = schema.cells(frame)
    pd.testing.assert_frame_equal(schema.frame(schema.decode(schema.encode(cells))), frame)


def test_a_column_that_would_be_refused_may_be_kept():
    assert one(range(60), x="continuous").kind == "continuous"
    assert len(one([f"id-{i}" for i in range(60)], x="categorical").categories) == 60
    mixed = one([1, "one", 2.5, None], x="categorical")
    assert mixed.categories == (1, 2.5, "one")


@pytest.mark.parametrize(
    ("values", "override", "sentence"),
    [
        ([1, 2], "numeric", "'numeric' is not a kind of column. Did you mean 'number'?"),
        (
            [1, 2],
            "text",
            "'text' is not a kind of column. There are: number, date, ordinal, binary",
        ),
        (["1", "b"], "continuous", "Column 'x' holds 'b' in row 1, not a number."),
        ("abc", "ordinal", "Column 'x' cannot be ordinal without its order. Name it, least first"),
        ([1, 1, 1], "binary", "Column 'x' cannot be binary with 1 category."),
        ([1, 2], Feature("y", "continuous"), "The override for column 'x' is a Feature named"),
        (
            ["S", "M", "L"],
            Feature("x", "ordinal", categories=["small", "large"]),
            "Column 'x' holds none of the categories given for it; it holds 'L', 'M', 'S'.",
        ),
        (
            ["very low", "low", "high"],
            Feature("x", "ordinal", categories=["vry low", "low", "high"]),
            "Column 'x' holds 'very low', which is not among the categories given. Did you mean",
        ),
        (
            [1, 2, 3, 4, 5, 6],
            Feature("x", "ordinal", categories=[1]),
            "Column 'x' holds 2, 3, 4 and 2 more, w",
        ),
        (
            [5, 6],
            Feature("x", "binary", categories=(False, True)),
            "Column 'x' holds 5 in row 0, neither true nor false.",
        ),
        (
            ["a", 1],
            Feature("x", "categorical", categories=[1, 2]),
            "Column 'x' holds 'a' in row 0, not a numb",
        ),
        ([1.5, math.inf], "categorical", "Column 'x' holds an infinity in row 1."),
        (
            [1.5, 2.5],
            Feature("x", "continuous", lower=1.2, upper=1.8, integer=True),
            "Column 'x' has no multiple of 1 between 1.2 and 1.8.",
        ),
        ([1.5, 9.5], Feature("x", "continuous", lower=20), "Column 'x' has bounds 20 > 9.5."),
    ],
    ids=str,
)
def test_overrides_that_are_refused(values, override, sentence):
    with pytest.raises(InputError) as error:
        one(values, x=override)
    assert str(error.value).startswith(sentence)


def test_a_category_that_is_given_may_never_occur_and_one_that_occurs_may_be_left_out():
    feature = one(
        ["low", "high", None], x=Feature("x", "ordinal", categories=["low", "middle", "high"])
    )
    assert feature.categories == ("low", "middle", "high")
    assert feature.missing
    assert one(
        ["a", "b", "c"], x=Feature("x", "categorical", categories=["a", "c"])
    ).categories == ("a", "c")


def test_an_override_for_a_column_that_is_not_there():
    with pytest.raises(InputError, match=r"^Column 'incme' is not in the table\. Did you mean 'in"):
        Schema.infer(TABLE, {"incme": "continuous"})


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("ordinal", {}, "is ordinal and needs categories"),
        ("categorical", {"categories": (1, True)}, "has the category True twice"),
        ("categorical", {"categories": ("a", None)}, "lists a missing value among its categories"),
        ("categorical", {"categories": (1.5, math.nan)}, "lists a missing value"),
        ("binary", {"categories": tuple("abc")}, "cannot be binary with 3 categories"),
        ("binary", {"categories": (0, 1), "tolerance": 1.0}, "every change of it counts"),
        ("continuous", {"lower": 3, "upper": 1}, "has bounds 3 > 1"),
        ("continuous", {"upper": math.inf}, "has an infinite bound"),
        ("continuous", {"resolution": -1.0}, "has a resolution of -1"),
        ("continuous", {"tolerance": -1.0}, "has a tolerance of -1; it must be a number from 0 on"),
        (
            "continuous",
            {"lower": 0, "upper": 9, "tolerance": 9.0},
            "a tolerance of 9, as wide as its whole",
        ),
        ("continuous", {"integer": True, "resolution": 0.5}, "cannot be multiples of 0.5"),
        ("continuous", {"categories": ("a",)}, "is continuous and has no categories"),
    ],
)
def test_features_that_are_refused(kind, settings, sentence):
    with pytest.raises(InputError) as error:
        Feature("x", kind, **settings)
    assert str(error.value).startswith("Column 'x' ")
    assert sentence in str(error.value)


def test_bounds_and_resolution_that_are_given():
    values = np.round(np.random.default_rng(0).normal(50, 10, 200), 2)
    seen = numbers(values)
    assert (seen.lower, seen.upper) == (values.min(), values.max())
    bounded = numbers(values, x=Feature("x", "continuous", lower=18, upper=65.005))
    assert (bounded.lower, bounded.upper, bounded.resolution) == (18.0, 65.0, 0.01)
    half = numbers(values, x=Feature("x", "continuous", upper=65))
    assert (half.lower, half.upper) == (values.min(), 65.0)
    coarse = numbers(values, x=Feature("x", "continuous", resolution=5))
    assert coarse.lower % 5 == coarse.upper % 5 == 0
    assert coarse.lower - 2.5 <= values.min() <= coarse.lower + 2.5
    whole = numbers(values, x=Feature("x", "continuous", lower=17.5, integer=True))
    assert (whole.lower, whole.resolution, whole.integer) == (18.0, 1.0, True)
    tenths = numbers(values, x=Feature("x", "continuous", lower=0.3, resolution=0.1))
    assert tenths.lower == 0.3


def test_cells_as_text():
    assert SCHEMA["income"].text(1234.5) == "1,234.50"
    assert SCHEMA["income"].text(1234.0) == "1,234"
    assert SCHEMA["savings"].text(12300.0) == "12,300"
    assert SCHEMA["noise"].text(0.123456) == "0.1235"
    assert SCHEMA["noise"].text(12345.678) == "12,346"
    fine = Feature("smoothness", "continuous", resolution=1e-6)
    assert [fine.text(x) for x in (0.3001, 2.0000001, 1e-9)] == ["0.3001", "2", "0"]
    assert SCHEMA["age"].text(math.nan) == "missing"
    assert SCHEMA["education"].text(2.0) == "bachelor"
    assert SCHEMA["member"].text(1.0) == "True"
    assert SCHEMA["zone"].text(3.0) == "50"
    assert (
        SCHEMA.read([{**as_records(TABLE)[0], "home": "boat"}]).schema["home"].text(3.0) == "boat"
    )


# --- frames and cells ------------------------------------------------------------------------


def test_arrays_return_as_they_came():
    images = np.random.default_rng(0).integers(0, 256, (80, 2, 3)).astype(np.uint8)
    schema = Schema.infer(images)
    assert schema.shape == (2, 3)
    assert {f.tolerance for f in schema.features} == {0.0}
    assert schema.by_range() == schema
    np.testing.assert_array_equal(schema.frame(schema.cells(images)), images, strict=True)
    flat = schema.read(images.reshape(80, 6))
    np.testing.assert_array_equal(flat.cells, schema.cells(images))
    assert schema.frame(flat.cells, flat.template).shape == (80, 6)


def test_columns_in_any_order_and_extra_ones():
    frame = TABLE[TABLE.columns[::-1]].assign(
        label=1, when=pd.Timestamp("2020-01-01"), things=[[1]] * ROWS
    )
    reading = SCHEMA.read(frame)
    assert isinstance(reading, Reading)
    np.testing.assert_array_equal(reading.cells, CELLS)
    assert reading.template.names == SCHEMA.names[::-1]
    assert reading.schema is SCHEMA
    back = reading.schema.frame(reading.cells, reading.template)
    pd.testing.assert_frame_equal(back, TABLE[TABLE.columns[::-1]])


def test_a_reading_has_the_ids_of_its_rows():
    rows = TABLE.head(2).assign(id=["A7", "B8"])
    assert SCHEMA.read(rows).ids == SCHEMA.read(rows.set_index("id")).ids == ("A7", "B8")
    assert SCHEMA.read(as_records(rows)).ids == ("A7", "B8")
    assert SCHEMA.read(TABLE.head(2)).ids is None
    assert SCHEMA.read(rows[rows["id"] == "B8"]).ids == ("B8",)  # what is filtered keeps its ids
    assert SCHEMA.read(TABLE.iloc[[3, 1]]).ids == (3, 1)
    named = Schema.infer(rows, {"id": "categorical"})  # there it is a feature
    assert named.read(rows).ids is None
    assert named.read(rows[rows["id"] == "B8"]).ids == (1,)
    declared = Schema.infer(rows.rename(columns={"id": "ref"}), {"ref": "id"})
    assert "ref" not in declared.names
    for table in (rows.rename(columns={"id": "ref"}), rows.set_index("id").rename_axis("ref")):
        assert declared.read(table).ids == ("A7", "B8")
        assert declared.as_numbers().read(table).template.index == ("ref",)


def test_columns_that_are_missing_or_misspelt():
    with pytest.raises(InputError, match=r"^The table lacks column 'income'\.$"):
        SCHEMA.read(TABLE.drop(columns="income"))
    with pytest.raises(InputError, match=r"'income'\. Is it the one called 'Incme'\?$"):
        SCHEMA.read(TABLE.rename(columns={"income": "Incme"}))
    with pytest.raises(
        InputError, match=r"^Column 'agee' is not in the table\. Did you mean 'age'"
    ):
        SCHEMA.index("agee")
    schema = Schema.infer([{f"c{k}": 1.5 * row for k in range(12)} for row in range(3)])
    listed = r"also lacks 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7' and 4 more\.$"
    with pytest.raises(InputError, match=rf"^The table lacks column 'c0'\. It {listed}"):
        schema.read([{"zzzzz": 1}])


def test_arrays_of_the_wrong_width():
    schema = Schema.infer(np.random.default_rng(0).normal(size=(9, 3)))
    with pytest.raises(InputError, match=r"^The array has 4 columns; there should be 3\.$"):
        schema.read(np.zeros((2, 4)))
    with pytest.raises(InputError, match=r"^An array has no column names, and this schema has\. P"):
        SCHEMA.read(np.zeros((2, 14)))
    with pytest.raises(InputError, match=r"^An array has no column names"):
        SCHEMA.cells(np.zeros((2, 3)))


def test_tables_without_rows():
    for empty in (TABLE[:0], as_polars(TABLE)[:0], as_arrow(TABLE)[:0], []):
        reading = SCHEMA.read(empty)
        assert reading.cells.shape == (0, 14)
        assert reading.problems == {}
        assert len(reading.schema.frame(reading.cells, reading.template)) == 0
        assert SCHEMA.decode(SCHEMA.encode(reading.cells)).shape == (0, 14)
        assert SCHEMA.distance(reading.cells, reading.cells).shape == (0,)
    assert Schema.infer(np.array([[1.5], [2.5]])).read(np.empty((0, 1))).cells.shape == (0, 1)


def test_an_unseen_category_is_kept_and_never_proposed():
    frame = TABLE.iloc[:3].astype({"home": object, "education": object, "job": object})
    frame["home"] = ["boat", "tent", "boat"]
    frame["education"] = ["phd", "school", "phd"]
    frame["job"] = ["cook", "judge", "nurse"]
    for table in (frame, as_records(frame), pl.DataFrame(as_records(frame))):
        reading = SCHEMA.read(table)
        assert reading.problems == {}
        wide = reading.schema
        assert wide["home"].extra == ("boat", "tent") or wide["home"].extra == ("tent", "boat")
        assert wide["home"].categories == SCHEMA["home"].categories
        assert wide["education"].extra == ("phd",)
        back = wide.frame(reading.cells, reading.template)
        for name in ("home", "education", "job"):
            found = [r[name] for r in back] if isinstance(back, list) else back[name].to_list()
            assert found == frame[name].tolist()
        encoded = wide.encode(reading.cells)
        assert encoded.shape[1] == SCHEMA.coding.width
        for name in ("home", "job"):
            _, start, width = next(b for b in wide.coding.blocks if b[0] == wide.index(name))
            assert (
                encoded[frame[name].isin(["boat", "tent", "judge"]), start : start + width] == 0
            ).all()
        place = wide.numeric.tolist().index(wide.index("education"))
        assert encoded[[0, 2], place].tolist() == [0.0, 0.0]
        assert (wide.decode(encoded)[:, wide.index("education")] <= 3).all()
        np.testing.assert_array_equal(wide.snap(reading.cells)[:, 10], reading.cells[:, 10])
    # In the training table's own kind as well, its dtypes widened as little as can be.
    back = reading.schema.frame(reading.cells)
    assert back["home"].tolist() == ["boat", "tent", "boat"]
    assert back["home"].dtype.categories[:3].tolist() == ["free", "own", "rent"]


def test_unseen_levels_are_kept_as_their_column_would_write_them():
    texts = Schema.infer([{"x": "1"}, {"x": "2"}, {"x": "a"}])
    assert texts.read([{"x": 7.0}, {"x": "7"}]).schema["x"].extra == ("7",)
    numbers_ = Schema.infer([{"x": 1}, {"x": 2}], {"x": "categorical"})
    reading = numbers_.read([{"x": "7.0"}, {"x": 7}, {"x": 2.5}, {"x": ""}, {"x": True}])
    assert reading.schema["x"].extra in ((7, 2.5), (2.5, 7))
    assert reading.cells.ravel()[4] == 0.0
    assert math.isnan(reading.cells[3, 0])
    truths = Schema.infer([{"x": True}, {"x": True}])
    for false in (False, 0, "False", "FALSE"):
        assert truths.read([{"x": false}]).schema["x"].extra == (False,)
    assert truths.cells([{"x": " "}]).ravel().tolist() == pytest.approx([math.nan], nan_ok=True)
    mixed = Schema.infer([{"x": 1}, {"x": "a"}], {"x": "categorical"})
    assert mixed.read([{"x": 2.5}, {"x": "b"}]).schema["x"].extra == (2.5, "b")


def test_wrong_dtypes_that_mean_the_same():
    row = as_records(TABLE)[0]
    kinds = {"age": str, "income": str, "zone": str, "member": str, "year": float}
    written = {n: kinds[n](v) if n in kinds else v for n, v in row.items()}
    for text in (
        written,
        {**written, "zone": f"{row['zone']}.0", "member": str(row["member"]).lower()},
    ):
        np.testing.assert_array_equal(SCHEMA.cells([text]), CELLS[:1])
    numbers_ = {**row, "member": float(row["member"]), "zone": float(row["zone"])}
    np.testing.assert_array_equal(SCHEMA.cells([numbers_]), CELLS[:1])
    codes = Schema.infer([{"x": "1"}, {"x": "2"}, {"x": "3"}])
    assert codes.cells(pd.DataFrame({"x": [3, None]}))[0] == 2.0
    assert codes.cells(pd.DataFrame({"x": pd.Categorical([2.0])}))[0] == 1.0
    blank = SCHEMA.read([{**row, "kids": " ", "age": "  31 ", "income": "1e3"}])
    assert blank.problems == {}
    assert math.isnan(blank.cells[0, 3])
    assert blank.cells[0, [0, 2]].tolist() == [1000.0, 31.0]


def test_a_row_with_a_problem_costs_no_other():
    frame = TABLE.iloc[:6].astype(object)
    frame.loc[1, "income"] = math.inf
    frame.loc[2, "age"] = "old"
    frame.loc[3, "zone"] = "north"
    frame.loc[4, "member"] = "maybe"
    frame.loc[5, "member"] = 2
    reading = SCHEMA.read(frame)
    assert reading.problems == {
        1: "Column 'income' holds an infinity in row 1. Use a number or none.",
        2: "Column 'age' holds 'old' in row 2, not a number.",
        3: "Column 'zone' holds 'north' in row 3, not a number.",
        4: "Column 'member' holds 'maybe' in row 4, neither true nor false.",
        5: "Column 'member' holds 2 in row 5, neither true nor false.",
    }
    np.testing.assert_array_equal(reading.cells[0], CELLS[0])
    assert not np.isinf(reading.cells).any()
    with pytest.raises(InputError, match=r"^Column 'income' holds an infinity in row 1\. Use a nu"):
        SCHEMA.cells(frame)
    named = SCHEMA.read(as_records(frame.assign(id=list("ABCDEF"))))
    assert named.problems[4] == "Column 'member' holds 'maybe' in row E, neither true nor false."


def test_a_whole_column_of_the_wrong_kind():
    frame = TABLE.assign(age=pd.Timestamp("2020-01-01"))
    with pytest.raises(InputError, match=r"^Column 'age' holds dates, and by the schema"):
        SCHEMA.read(frame)
    with pytest.raises(InputError, match=r"^Column 'age' holds values that are neither"):
        SCHEMA.read(TABLE.assign(age=[[1]] * ROWS))


def test_a_column_missing_altogether_in_a_query():
    # Such a column has no text in it for the library to see, and comes as floats or nulls.
    for empty in (np.nan, None):
        reading = SCHEMA.read(TABLE.assign(home=empty, job=empty, age=empty))
        assert reading.problems == {}
        columns = [SCHEMA.index(n) for n in ("home", "job", "age")]
        assert np.isnan(reading.cells[:, columns]).all()
        found = reading.cells.copy()
        found[:, columns] = [1.0, 1.0, 31.0]
        back = reading.schema.frame(found, reading.template)
        assert [set(back[name]) for name in ("home", "job", "age")] == [{"own"}, {"nurse"}, {31}]


@pytest.mark.parametrize("pair", [(0.0, 5e-324), (1e16, 1e16 + 2), (1e308, 1.5e308)])
def test_two_numbers_very_near_or_very_large(pair):
    frame = pd.DataFrame({"x": np.repeat(pair, 20)})
    schema = Schema.infer(frame)
    np.testing.assert_array_equal(schema.decode(schema.encode(schema.cells(frame))), frame)
    assert sum(schema["x"].histogram[1]) == 40


def test_whole_numbers_are_exact_up_to_the_last_that_can_be():
    top = 2**53 - 1
    columns = {"x": [top, 1, -top]}
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        schema = Schema.infer(frame)
        back = schema.frame(schema.decode(schema.encode(schema.cells(frame))))
        assert schema.cells(back).ravel().tolist() == [top, 1, -top]
        reading = schema.read([{"x": 2**53 + 1}, {"x": 5}])
        assert list(reading.problems) == [0]


def test_minus_zero_is_zero():
    schema = Schema.infer(pd.DataFrame({"x": [-0.0, 1.5, -0.4, 0.1]}))
    cells = schema.cells([{"x": -0.0}])
    for zero in (cells, schema.decode(schema.encode(cells)), schema.snap(np.array([[-0.01]]))):
        assert math.copysign(1, zero[0, 0]) == 1
    assert schema["x"].text(schema.snap(np.array([[-0.01]]))[0, 0]) == "0"


# --- the matrix the network sees -------------------------------------------------------------


def test_the_order_of_the_matrix():
    assert [SCHEMA.features[i].name for i in SCHEMA.numeric] == [
        "income", "savings", "age", "kids", "rate", "noise", "education", "year",
    ]  # fmt: skip
    assert [(SCHEMA.features[i].name, w) for i, _, w in SCHEMA.coding.blocks] == [
        ("member", 1), ("insured", 3), ("home", 4), ("zone", 4), ("job", 1),
    ]  # fmt: skip
    assert [SCHEMA.features[i].name for i, _ in SCHEMA.coding.flags] == ["kids", "rate"]
    assert SCHEMA.coding.widths == (1, 3, 4, 4, 1, 1, 1)
    assert SCHEMA.coding.width == SCHEMA.encode(CELLS).shape[1] == 8 + 15
    starts = [start for _, start, _ in SCHEMA.coding.blocks] + [
        column for _, column in SCHEMA.coding.flags
    ]
    assert starts == (8 + np.cumsum([0, *SCHEMA.coding.widths[:-1]])).tolist()
    assert len(SCHEMA.numeric) + len(SCHEMA.coding.categorical) == len(SCHEMA.features)


def test_blocks_hold_one_one_each():
    encoded = SCHEMA.encode(CELLS)
    for i, start, width in SCHEMA.coding.blocks:
        block = encoded[:, start : start + width]
        assert set(np.unique(block)) <= {0.0, 1.0}
        if width > 1:
            assert (block.sum(axis=1) == 1).all()
            gone = np.isnan(CELLS[:, i])
            assert (block.argmax(axis=1)[gone] == len(SCHEMA.features[i].categories)).all()
    for i, column in SCHEMA.coding.flags:
        np.testing.assert_array_equal(encoded[:, column] == 1, np.isnan(CELLS[:, i]))
        assert (encoded[np.isnan(CELLS[:, i]), SCHEMA.numeric.tolist().index(i)] == 0).all()


def test_a_spike_has_an_interval_of_scores():
    values = np.array([0.0] * 700 + [5.0] * 100 + np.arange(10.0, 2010.0, 10.0).tolist())
    knots = Knots.fit(values)
    zero = int(np.flatnonzero(knots.values == 0.0)[0])
    interval = np.linspace(knots.low[zero], knots.high[zero], 1000)
    schema = Schema.infer(pd.DataFrame({"x": values}))
    assert (schema.decode(interval[:, None]) == 0.0).all()
    assert (schema.decode(np.array([[-50.0], [-3.0]])) == 0.0).all()
    five = int(np.flatnonzero(knots.values == 5.0)[0])
    inside = np.linspace(knots.low[five], knots.high[five], 100)
    assert (schema.decode(inside[:, None]) == 5.0).all()
    # Values never seen, between the spike and its neighbour, still decode to themselves.
    between = np.array([[15.0], [25.0], [1995.0]])
    np.testing.assert_array_equal(schema.decode(schema.encode(between)), between)


def test_scores_are_the_mid_ranks_of_the_method():
    values = np.array([3.0] * 20 + [1.0] * 50 + [7.0] * 30)
    mid = ndtri(np.array([0.25, 0.6, 0.85]))
    share = np.array([0.5, 0.2, 0.3])
    expected = (mid - share @ mid) / np.sqrt(share @ (mid - share @ mid) ** 2)
    knots = Knots.fit(values)
    np.testing.assert_allclose(knots.scores(np.array([1.0, 3.0, 7.0])), expected)
    np.testing.assert_allclose(knots.scores(np.array([-9.0, 99.0])), expected[[0, 2]])


def test_a_nearly_constant_column_does_not_dominate():
    values = np.zeros(100_000)
    values[0] = 1e6
    schema = Schema.infer(pd.DataFrame({"x": values}))
    encoded = schema.encode(np.array([[0.0], [1e6]]))
    assert np.abs(encoded).max() < 20
    assert schema.decode(encoded).ravel().tolist() == [0.0, 1e6]


def test_missing_where_training_had_none():
    cells = np.full((1, len(SCHEMA.features)), np.nan)
    encoded = SCHEMA.encode(cells)
    assert not np.isnan(encoded).any()
    decoded = SCHEMA.decode(encoded)[0]
    for cell, feature in zip(decoded, SCHEMA.features, strict=True):
        assert np.isnan(cell) == feature.missing, feature.name
    row = SCHEMA.frame(cells)
    assert row.isna().all(axis=None)
    np.testing.assert_array_equal(SCHEMA.cells(row), cells)


# --- properties ------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "c", "dé", ""])


@st.composite
def columns(draw, rows):
    kind = draw(st.sampled_from(["int", "cents", "quarters", "free", "spiked", "bool", "text"]))
    cells = {
        "int": st.integers(-(10**6), 10**6),
        "cents": st.integers(-(10**9), 10**9).map(lambda v: v / 100),
        "quarters": st.integers(0, 4000).map(lambda v: v / 4),
        "free": st.floats(-1e6, 1e6),
        "spiked": st.sampled_from([0.0, 0.0, 0.0, 1.5]) | st.floats(0, 1e6),
        "bool": st.booleans(),
        "text": WORDS,
    }[kind]
    if draw(st.booleans()):
        cells = st.none() | cells
    values = draw(st.lists(cells, min_size=rows, max_size=rows))
    return values if any(v is not None for v in values) else [*values[1:], "only"]


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 30))
    names = draw(st.lists(st.sampled_from("pqrst uvwxyz"), min_size=1, max_size=5, unique=True))
    return {name: draw(columns(rows)) for name in names}


@given(tables(), st.sampled_from([pl.DataFrame, pa.table, pd.DataFrame]))
def test_decode_inverts_encode(table, library):
    schema = Schema.infer(library(table))
    cells = schema.cells(library(table))
    decoded = schema.decode(schema.encode(cells))
    assert not schema.changed(cells, decoded).any()
    assert (schema.by_range().distance(cells, decoded) <= 1e-6 * len(schema.features)).all()
    np.testing.assert_array_equal(schema.decode(schema.encode(decoded)), decoded)
    rows = schema.cells(schema.frame(decoded))
    np.testing.assert_array_equal(rows, decoded)


@given(tables())
def test_json_is_exact(table):
    schema = Schema.infer(
        [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    )
    text = json.dumps(schema.to_json(), allow_nan=False)
    back = Schema.from_json(json.loads(text))
    assert back == schema
    assert back.template == schema.template
    for one_, two in zip(back.features, schema.features, strict=True):
        assert [type(v) for v in one_.levels] == [type(v) for v in two.levels]
        if two.knots is None:
            assert one_.knots is None
        else:
            for a, b in zip(one_.knots, two.knots, strict=True):
                np.testing.assert_array_equal(a, b, strict=True)
    assert json.dumps(back.to_json()) == text


@given(tables(), st.integers(0, 2**32 - 1))
def test_whatever_the_network_returns_decodes_to_a_valid_row(table, seed):
    schema = Schema.infer(pl.DataFrame(table))
    noise = np.random.default_rng(seed).normal(size=(20, schema.coding.width)) * 3
    cells = schema.decode(noise)
    np.testing.assert_array_equal(schema.snap(cells), cells)
    for column, feature in zip(cells.T, schema.features, strict=True):
        present = column[~np.isnan(column)]
        assert feature.missing or len(present) == 20
        top = feature.upper if feature.kind == "continuous" else len(feature.categories) - 1
        assert ((present >= feature.lower) & (present <= top)).all()
    assert schema.read(schema.frame(cells)).problems == {}


# --- distance --------------------------------------------------------------------------------


def brute_force(schema, a, b, by_range=False):
    """The terms of the distance, cell by cell, or those of the paper's, `by_range`."""
    terms = np.zeros(a.shape)
    for i, j in np.ndindex(*a.shape):
        feature, x, y = schema.features[j], a[i, j], b[i, j]
        placed = feature.kind == "continuous"
        placed |= feature.kind == "ordinal" and max(x, y) < len(feature.categories)
        if math.isnan(x) or math.isnan(y):
            terms[i, j] = float(math.isnan(x) != math.isnan(y))
        elif placed and feature.ranks[0] and not by_range:
            terms[i, j] = passed(feature, x, y)
        elif placed:
            terms[i, j] = abs(x - y) / span(feature)
        else:
            terms[i, j] = float(x != y)
    return terms


def span(feature):
    if feature.kind == "ordinal":
        return len(feature.categories) - 1
    return (feature.upper - feature.lower) or 1.0


def passed(feature, x, y):
    """From one support point to the next the larger of two shares: of the rows, of the width."""
    values, shares = feature.ranks
    low, high = sorted((x, y))
    points = [low, *(v for v in values if low < v < high), high]
    width = feature.usual or span(feature)
    return sum(
        max(np.interp(q, values, shares) - np.interp(p, values, shares), (q - p) / width)
        for p, q in pairwise(points)
    )


def mid_rank(column, value):
    """The share of the rows under a value, half of its equals included, counted one by one."""
    return sum((v < value) + (v == value) / 2 for v in column) / len(column)


# Columns with few different values, some of them often, in which every value is a support point.
FEW = st.lists(st.sampled_from([-7.5, 0.0, 0.25, 1.0, 3.0, 40.0, 1e6]), min_size=1, max_size=99)


@given(FEW)
def test_a_numbers_distance_is_the_share_of_rows_passed_and_at_least_of_the_usual_range(column):
    schema = Schema.infer(np.array(column)[:, None], {"x0": "continuous"})
    seen, width = np.unique(column), schema["x0"].usual or schema["x0"].span
    assert schema["x0"].ranks[0] == tuple(seen)
    np.testing.assert_allclose(schema["x0"].ranks[1], [mid_rank(column, v) for v in seen])
    for x, y in product(seen, seen):
        between = [v for v in seen if min(x, y) <= v <= max(x, y)]
        expected = sum(
            max(mid_rank(column, q) - mid_rank(column, p), (q - p) / width)
            for p, q in pairwise(between)
        )
        apart = schema.distance(np.array([[x]]), np.array([[y]]))[0]
        assert apart == pytest.approx(expected, abs=1e-11, rel=1e-9)


@given(FEW | st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_the_usual_range_has_nine_tenths_of_the_rows_and_of_those_beside_a_spike(column):
    width = usual_width(np.array(column))
    ordered = sorted(column)
    inner = np.quantile(ordered, 0.95) - np.quantile(ordered, 0.05)
    assert width >= inner * (1 - 1e-9)
    assert width <= (ordered[-1] - ordered[0]) * (1 + 1e-9)
    assert (width > 0) == (ordered[0] < ordered[-1])  # a column that varies has a usual range
    counts = Counter(column)
    if max(counts.values()) < 0.05 * len(column):
        assert width == pytest.approx(inner, rel=1e-9)


@pytest.mark.parametrize("share", [0.06, 0.5, 0.97])
def test_a_spike_at_zero_does_not_narrow_the_usual_range(share):
    """Savings, of which most have none: those who have some say what is usual."""
    rng = np.random.default_rng(0)
    some = rng.uniform(1000, 2000, 1000)
    column = np.concatenate([some, np.zeros(int(1000 * share / (1 - share)))])
    assert usual_width(column) == pytest.approx(1950, rel=0.02)
    away = np.concatenate([some, np.full(int(1000 * share / (1 - share)), 5000.0)])
    assert usual_width(away) == pytest.approx(5000 - 1050, rel=0.02)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=200), st.floats(-3, 3), st.floats(-3, 3))
def test_neither_a_tail_nor_an_empty_stretch_is_free(column, x, y):
    schema = Schema.infer(np.array(column)[:, None], {"x0": "continuous"})
    feature, ends = schema["x0"], (min(column), max(column))
    low, high = sorted(ends[0] + share * (ends[1] - ends[0]) for share in (x, y))
    apart = schema.distance(np.array([[low]]), np.array([[high]]))[0]
    if feature.usual:
        assert apart >= (high - low) / feature.usual * (1 - 1e-6) - 1e-9
    rows_passed = np.diff(np.interp([low, high], *feature.ranks))[0]
    assert apart >= rows_passed * (1 - 1e-6) - 1e-9


def test_a_long_tail_and_a_gap_cost_what_they_are_of_the_usual_range():
    turnover = np.concatenate([np.linspace(10, 110, 99), [13_000.0]])  # one outlier
    two_groups = np.repeat([0.0, 1.0, 99.0, 100.0], 25)  # nobody in between
    schema = Schema.infer(np.c_[turnover, two_groups], dict.fromkeys(("x0", "x1"), "continuous"))
    tail = schema.distance(np.array([[110.0, 0.0]]), np.array([[1310.0, 0.0]]))[0]
    assert tail == pytest.approx(1200 / schema["x0"].usual, rel=1e-6)
    assert tail > 12
    gap = schema.distance(np.array([[10.0, 20.0]]), np.array([[10.0, 80.0]]))[0]
    assert gap == pytest.approx(0.6, abs=0.01)


def test_many_values_keep_about_a_hundred_support_points_and_every_spike():
    rng = np.random.default_rng(0)
    column = np.concatenate([rng.lognormal(9, 2, 9000).round(2), [0.0] * 800, [5.0] * 200])
    schema = Schema.infer(column[:, None])
    values, shares = schema["x0"].ranks
    assert 90 <= len(values) <= 103
    assert {0.0, 5.0, column.min(), column.max()} <= set(values)
    expected = [mid_rank(column, v) for v in values]
    np.testing.assert_allclose(shares, expected, atol=1e-11)
    some = rng.choice(column, 200)
    found = np.interp(some, values, shares)
    np.testing.assert_allclose(found, [mid_rank(column, v) for v in some], atol=0.0102)


NUMBERS = st.floats(-1e9, 1e9)


@given(
    st.lists(NUMBERS, min_size=1, max_size=300),
    st.lists(NUMBERS, min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_percentiles_rise_strictly_and_add_up_along_a_column(column, others, seed):
    repeated = np.random.default_rng(seed).choice(column, 500)
    schema = Schema.infer(repeated[:, None], {"x0": "continuous"})
    values = np.unique(np.concatenate([repeated, others]))
    # Nearer than rounding nothing can be told apart.
    span = schema["x0"].span
    apart = np.diff(values) > 1e-6 * max(span, np.abs(values).max())
    coordinates = schema.metric.coordinates(values[:, None])[:, 0]
    assert (np.diff(coordinates) >= -1e-15).all()
    assert (np.diff(coordinates)[apart] > 0).all()
    low, middle, high = np.sort(others)[:, None, None]
    whole = schema.distance(low, high)
    assert schema.distance(high, low) == whole
    parts = schema.distance(low, middle) + schema.distance(middle, high)
    assert parts == pytest.approx(whole, rel=1e-9, abs=1e-9)


def test_a_file_without_ranks_is_read_as_change_over_range():
    schema = Schema.infer(np.array([[0.0], [1.5], [40.0]]))
    data = schema.to_json()
    for feature in data["features"]:
        del feature["ranks"]
    assert Schema.from_json(data) == schema.by_range()


@pytest.mark.parametrize(
    "ranks",
    [[], None, [[1.0], []], [[2.0, 1.0], [0.1, 0.2]], [[1.0, 2.0], [0.2, 0.2]], [["a"], ["b"]]],
)
def test_ranks_that_are_none_are_refused(ranks):
    data = Schema.infer(np.array([[0.0], [1.5], [40.0]])).to_json()
    data["features"][0]["ranks"] = ranks
    with pytest.raises(InputError, match=r"The schema is damaged: .*, at features\[0\]"):
        Schema.from_json(data)


@pytest.mark.parametrize("usual", [-1.0, None, "wide", 1e999])
def test_a_usual_range_that_is_none_is_refused(usual):
    data = Schema.infer(np.array([[0.0], [1.5], [40.0]])).to_json()
    data["features"][0]["usual"] = usual
    with pytest.raises(InputError, match=r"The schema is damaged: .*, at features\[0\]"):
        Schema.from_json(data)


def test_effort_is_the_distance_and_a_fifth_for_each_change():
    rng = np.random.default_rng(0)
    before = CELLS
    after = np.where(rng.random(CELLS.shape) < 0.5, CELLS, CELLS[rng.permutation(ROWS)])
    after[:, SCHEMA.index("income")] += 0.004  # under its resolution: no change
    changed = SCHEMA.changed(before, after)
    costs = {"income": 2.5, "home": 0, "education": 0.5}
    for given_costs in (None, costs):
        weights = np.array([(given_costs or {}).get(name, 1.0) for name in SCHEMA.names])
        terms = brute_force(SCHEMA, before, after) * weights + 0.2 * np.minimum(weights, 1)
        expected = (terms * changed).sum(axis=1)
        np.testing.assert_allclose(SCHEMA.effort(before, after, given_costs), expected)
        parts = SCHEMA.change_efforts(before, after, SCHEMA.weights(given_costs))
        assert (parts[~changed] == 0).all()
    assert (SCHEMA.effort(before, before) == 0).all()


def test_a_cell_that_does_not_differ_becomes_the_instances_very_value():
    before = CELLS[:50].copy()
    before[:, SCHEMA.index("income")] += 0.003  # off the column's lattice
    after = CELLS[50:100].copy()
    after[:, SCHEMA.index("income")] = before[:, SCHEMA.index("income")] - 0.003
    same = SCHEMA.same_where_unchanged(after, before)
    differs = SCHEMA.differs(after, before)
    assert not differs[:, SCHEMA.index("income")].any()
    np.testing.assert_array_equal(same[differs], after[differs])
    np.testing.assert_array_equal(same[~differs], before[~differs])


def test_distance_is_the_sum_over_columns():
    rng = np.random.default_rng(0)
    frame = TABLE.astype({"education": object, "home": object})
    frame.loc[::7, "education"] = "phd"
    frame.loc[::5, "home"] = "boat"
    reading = SCHEMA.read(frame)
    schema, a = reading.schema, reading.cells
    b = a[rng.permutation(ROWS)]
    ranged = brute_force(schema, a, b, by_range=True)
    np.testing.assert_allclose(schema.metric.range_gaps(a, b), ranged)
    np.testing.assert_allclose(schema.by_range().gaps(a, b), ranged)
    np.testing.assert_allclose(schema.by_range().distance(a, b), ranged.sum(axis=1))
    expected = brute_force(schema, a, b)
    np.testing.assert_allclose(schema.gaps(a, b), expected, atol=1e-12)
    np.testing.assert_allclose(schema.distance(a, b), expected.sum(axis=1))
    costs = {"income": 2.5, "home": 0, "education": 3}
    weights = np.array([costs.get(n, 1.0) for n in schema.names])
    np.testing.assert_allclose(schema.distance(a, b, costs), expected @ weights)
    np.testing.assert_array_equal(schema.weights(costs), weights)
    np.testing.assert_array_equal(schema.weights(None), np.ones(14))
    assert (schema.distance(a, a) == 0).all()
    np.testing.assert_allclose(schema.distance(a, b), schema.distance(b, a))
    cube = schema.gaps(a[:5, None], b[None, :7])
    np.testing.assert_allclose(cube[3, 4], brute_force(schema, a[[3]], b[[4]])[0])


# Codes 3 and 4 (2 to 4 for the pair) are levels unseen in training.
MET = (
    replace(
        Feature("number", "continuous", lower=1, upper=3.5),
        ranks=((1.0, 1.5, 3.5), (0.1, 0.6, 0.9)),
    ),
    Feature("constant", "continuous", lower=2, upper=2),
    replace(
        Feature("grade", "ordinal", categories=["low", "mid", "high"]),
        extra=("top", "odd"),
        ranks=((0.0, 1.0, 2.0), (0.3, 0.7, 0.95)),
    ),
    replace(Feature("size", "ordinal", categories=["S", "M", "L"]), extra=("XL", "XXL")),
    replace(Feature("pair", "binary", categories=["no", "yes"]), extra=("maybe", "never", "often")),
    replace(
        Feature("home", "categorical", categories=["own", "rent", "free"]), extra=("boat", "tent")
    ),
)
CELL = st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0, 4.0])
ROWS_MET = st.lists(st.tuples(*[CELL] * len(MET)), max_size=6).map(
    lambda rows: np.array(rows, dtype=float).reshape(-1, len(MET))
)
COSTS = st.dictionaries(st.sampled_from([f.name for f in MET]), st.floats(0, 9))


@given(ROWS_MET, ROWS_MET, st.none() | COSTS)
def test_pairwise_distances_are_the_distance_of_each_pair(a, b, costs):
    whole = Schema(MET, SCHEMA.template.select(SCHEMA.names[: len(MET)]))
    ranged = whole.by_range()
    assert ranged.by_range() == ranged
    weights = whole.weights(costs)
    for schema in (whole, ranged):
        found = schema.metric.pairwise(a, b, None if costs is None else weights)
        assert found.shape == (len(a), len(b))
        for i, j in np.ndindex(*found.shape):
            terms = brute_force(whole, a[[i]], b[[j]], by_range=schema is ranged)[0] @ weights
            assert found[i, j] == pytest.approx(terms, abs=1e-12)
            apart = schema.distance(a[[i]], b[[j]], costs)[0]
            assert found[i, j] == pytest.approx(apart, abs=1e-12)


def test_changed_is_by_more_than_half_a_step():
    span = SCHEMA["noise"].span
    for name, by, changes in [
        ("income", 0.004, False), ("income", 0.006, True), ("savings", 49, False),
        ("noise", 4e-7 * span, False), ("noise", 6e-7 * span, True), ("age", math.nan, True),
        ("job", 1, True), ("education", -1, True),
    ]:  # fmt: skip
        other = CELLS[:1].copy()
        other[0, SCHEMA.index(name)] += by
        for a, b in ((CELLS[:1], other), (other, CELLS[:1])):
            assert SCHEMA.changed(a, b).tolist() == [[changes and n == name for n in SCHEMA.names]]
    nothing = np.full((1, 14), np.nan)
    assert not SCHEMA.changed(nothing, nothing).any()


def test_costs_that_do_not_fit():
    for cost in (-1, math.nan, math.inf):
        with pytest.raises(InputError, match=rf"^The cost of 'age' is {cost}; it must be zero or"):
            SCHEMA.distance(CELLS, CELLS, {"age": cost})
    with pytest.raises(
        InputError, match=r"^Column 'agee' is not in the table\. Did you mean 'age'"
    ):
        SCHEMA.distance(CELLS, CELLS, {"agee": 2})


# --- arrays ----------------------------------------------------------------------------------


def test_an_array_is_read_as_a_table():
    table = np.array([[3.0], [5.0], [7.0], [5.0]])
    schema = Schema.infer(table, {"x0": "categorical"})
    cells = schema.cells(table)
    assert cells.ravel().tolist() == [0.0, 1.0, 2.0, 1.0]
    assert schema.frame(cells).tolist() == table.tolist()
    with pytest.raises(InputError, match="infinity in row 1"):
        Schema.infer(np.array([[1.5], [2.5]])).cells(np.array([[1.0], [math.inf]]))


# --- histograms ------------------------------------------------------------------------------


def test_histograms_single_out_no_row():
    for feature in SCHEMA.features:
        edges, counts = feature.histogram
        assert all(count == 0 or count >= 5 for count in counts), feature.name
        if feature.numeric:
            present = ~np.isnan(CELLS[:, SCHEMA.index(feature.name)])
            assert sum(counts) == present.sum()
            assert len(edges) == len(counts) + 1
        else:
            assert len(counts) == len(feature.categories)
    rare = one([*["a"] * 20, "b", "c"])
    assert rare.histogram == ((), (20, 0, 0))
    assert one([1.5, 2.5, 9.5]).histogram == ((1.5, 9.5), (3,))
    tail = one([*[1.0] * 50, *[2.5] * 50, 1000.0]).histogram
    assert sum(tail[1]) == 101
    assert min(tail[1]) >= 5


@pytest.mark.parametrize("name", ["income", "savings", "age", "rate", "noise", "education"])
def test_slopes_are_those_of_a_line_through_the_middles(name):
    """Against differences of plain interpolation; not flat at a spike or beyond the ends."""
    knots = SCHEMA[name].knots
    middles = (knots.mid[1:] + knots.mid[:-1]) / 2
    up, down = (np.interp(middles + h, knots.mid, knots.values) for h in (1e-7, -1e-7))
    np.testing.assert_allclose(knots.slopes(middles), (up - down) / 2e-7, rtol=1e-3)
    beyond = knots.slopes(np.array([knots.mid[0] - 5, knots.mid[-1] + 5]))
    np.testing.assert_allclose(beyond, knots.slopes(middles[[0, -1]]))
