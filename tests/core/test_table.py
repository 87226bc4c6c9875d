"""Tables in and out: what goes in comes out as it was."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal as assert_polars_equal

from lapace.documents import plain, restore
from lapace.errors import InputError
from lapace.table import Coded, Template, plain_frame, read

NAMES = ["plain", "with space", "ünï©ode", 'it\'s "quoted"', "", "a,b\nc", "x" * 300]


def again(frame, rows=slice(None)):
    """A frame read and built once more, through a template that has been to JSON and back."""
    table = read(frame)
    template = restore(Template, json.loads(json.dumps(plain(table.template))), "the template")
    assert template == table.template
    return template.build({name: column.values[rows] for name, column in table.columns.items()})


def assert_same(built, frame):
    """Equal in the library's own eyes, dtypes and order included."""
    assert type(built) is type(frame)
    if isinstance(frame, pd.DataFrame):
        assert list(built.columns) == list(frame.columns)
        assert [str(t) for t in built.dtypes] == [str(t) for t in frame.dtypes]
        assert list(built.dtypes) == list(frame.dtypes)
        pd.testing.assert_frame_equal(built, frame, check_exact=True, check_column_type=False)
    elif isinstance(frame, pl.DataFrame):
        assert built.schema == frame.schema
        assert_polars_equal(built, frame, check_exact=True, categorical_as_str=True)
    elif isinstance(frame, pa.Table):
        assert built.schema == frame.schema
        assert built.to_pylist() == frame.to_pylist()
    elif isinstance(frame, list):
        assert built == frame
    else:
        np.testing.assert_array_equal(built, frame, strict=True)


# --- in and out, dtype by dtype --------------------------------------------------------------

STRINGS = ["rent", None, "own", "rent", "ünï"]
PANDAS = {
    **{t: pd.Series([1, 0, 100, 2, 3], dtype=t) for t in ("int8", "int16", "int64", "uint8")},
    **{t: pd.Series([1, None, 100, 2, 3], dtype=t) for t in ("Int8", "Int64", "UInt16")},
    "float32": pd.Series([0.1, np.nan, 1234.56, 2, 3], dtype="float32"),
    "float64": pd.Series([0.1, np.nan, 1234.56, 2, 1e300]),
    "Float32": pd.Series([0.1, None, 1234.56, 2, 3], dtype="Float32"),
    "Float64": pd.Series([0.1, None, 1234.56, 2, 3], dtype="Float64"),
    "bool": pd.Series([True, False, True, True, False]),
    "boolean": pd.Series([True, None, False, True, True], dtype="boolean"),
    "boolean objects": pd.Series([True, None, False, True, True], dtype=object),
    "default text": pd.Series(STRINGS),
    "objects": pd.Series(STRINGS, dtype=object),
    "string": pd.Series(STRINGS, dtype="string"),
    "category": pd.Series(STRINGS, dtype="category"),
    "category, one unused": pd.Series(pd.Categorical(STRINGS, ["z", "ünï", "rent", "own"])),
    "category, ordered": pd.Series(pd.Categorical(STRINGS, ["own", "ünï", "rent"], ordered=True)),
    "category of ints": pd.Series(pd.Categorical([3, 1, None, 3, 2])),
    "category of ints, ordered": pd.Series(pd.Categorical([3, 1, 2, 3, 2], [3, 2, 1], True)),
    "category of small ints": pd.Series([3, 1, 2, 3, 2], dtype="int8").astype("category"),
    "category of floats": pd.Series(pd.Categorical([0.5, 1.0, None, 0.5, 0.5])),
    "category of bools": pd.Series(pd.Categorical([True, False, None, True, True])),
    "category of objects": pd.Series(STRINGS, dtype=object).astype("category"),
    "category of string": pd.Series(STRINGS, dtype="string").astype("category"),
}

POLARS = {
    **{str(t): pl.Series([1, None, 100, 2], dtype=t) for t in (pl.Int8, pl.UInt16, pl.Int64)},
    "Float32": pl.Series([0.1, None, 1234.56, 2], dtype=pl.Float32),
    "Float64": pl.Series([0.1, None, 1234.56, 2]),
    "Boolean": pl.Series([True, None, False]),
    "String": pl.Series(STRINGS),
    "Categorical": pl.Series(STRINGS, dtype=pl.Categorical),
    "Enum": pl.Series(STRINGS, dtype=pl.Enum(["z", "rent", "own", "ünï"])),
}

ARROW = {
    **{str(t): pa.array([1, None, 100, 2], t) for t in (pa.int8(), pa.uint32(), pa.int64())},
    **{str(t): pa.array([0.1, None, 99.5], t) for t in (pa.float32(), pa.float64())},
    "bool": pa.array([True, None, False]),
    "string": pa.array(STRINGS),
    "large_string": pa.array(STRINGS, pa.large_string()),
    "dictionary": pa.array(STRINGS).dictionary_encode(),
    "dictionary, large": pa.array(STRINGS, pa.large_string()).dictionary_encode(),
    "dictionary of ints": pa.array([30, None, 10, 30], pa.int16()).dictionary_encode(),
    "dictionary, ordered": pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 1], pa.int32()), ["low", "high"], ordered=True
    ),
}


LIBRARIES = {"pandas": (pd.DataFrame, PANDAS), "polars": (pl.DataFrame, POLARS)}
LIBRARIES["pyarrow"] = pa.table, ARROW


@pytest.mark.parametrize(
    ("library", "name"),
    [(library, name) for library in LIBRARIES for name in LIBRARIES[library][1]],
)
def test_columns_come_out_as_they_went_in(library, name):
    make, columns = LIBRARIES[library]
    frame = make({"first": np.arange(len(columns[name])), name: columns[name]})
    assert_same(again(frame), frame)
    assert_same(again(frame, slice(0)), frame[:0])


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3), (0, 3), (0, 2, 3)])
def test_arrays_come_out_as_they_went_in(dtype, shape):
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    assert_same(again(array), array)
    assert read(array).template.shape == (shape[1:] if len(shape) > 2 else None)


def test_records_come_out_as_they_went_in():
    records = [
        {"age": 31, "rate": 0.5, "home": "own", "member": True, "code": None},
        {"age": None, "rate": 2.0, "home": None, "member": None, "code": "x"},
    ]
    built = again(records)
    assert built == records
    assert [type(v) for v in built[0].values()] == [int, float, str, bool, type(None)]
    table = read(records)
    assert table.template.dtypes == ("integer", "number", "text", "boolean", "text")
    assert again([{"a": 1}, {"b": "x"}]) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


COLUMNS = st.one_of(
    st.lists(st.none() | st.integers(-(2**52), 2**52), min_size=6, max_size=6),
    st.lists(st.none() | st.floats(allow_nan=False, width=64), min_size=6, max_size=6),
    st.lists(st.none() | st.booleans(), min_size=6, max_size=6),
    st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=4), min_size=6, max_size=6),
)


@given(st.dictionaries(st.sampled_from(NAMES), COLUMNS, min_size=1))
def test_any_table_comes_out_as_it_went_in(columns):
    frame = pl.DataFrame(columns, strict=False)
    frame = frame.select(pl.exclude(pl.Null))  # what all-missing columns are has its own test
    assert_same(again(frame), frame)
    arrow = pa.table({n: pa.array(frame[n].to_list()) for n in frame.columns})
    assert_same(again(arrow), arrow)
    dtypes = {pl.Int64: "Int64", pl.Float64: "Float64", pl.Boolean: "boolean", pl.String: "string"}
    nullable = pd.DataFrame(
        {n: pd.array(frame[n].to_list(), dtype=dtypes[frame[n].dtype]) for n in frame.columns}
    )
    assert_same(again(nullable), nullable)


def test_a_written_decimal_of_32_bits_is_that_decimal():
    values = np.array([0.1, 0.3, 1234.56, 99.99, 7.0, 1 / 3], dtype=np.float32)
    for frame in (pl.DataFrame({"x": values}), pd.DataFrame({"x": values}), values[:, None]):
        (column,) = read(frame).columns.values()
        assert column.values[:5].tolist() == [0.1, 0.3, 1234.56, 99.99, 7.0]
        assert column.values[5] == values[5].astype(float)


# --- kinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 3], "integer"),
        ([np.int8(3), None, 4], "integer"),
        ([1, 2.5, None], "number"),
        ([Decimal("1.5"), None], "number"),
        ([True, None, False], "boolean"),
        (["a", None, np.str_("b")], "text"),
        ([None, None], "text"),
        ([1, "a"], "mixed"),
        ([True, 1], "mixed"),
        ([1, [2]], "mixed"),
        ([[1], [2, 3]], "other"),
        ([b"a", b"b"], "other"),
        ([dt.date(2020, 1, 1), None], "date"),
        ([np.datetime64("2020-01-01"), None], "date"),
        ([dt.timedelta(1), None], "duration"),
        ([dt.time(1), None], "duration"),
    ],
    ids=str,
)
def test_the_kinds_of_objects(values, kind):
    column = read([{"x": v} for v in values]).columns["x"]
    assert column.kind == kind
    assert column.missing.tolist() == [v is None for v in values]
    objects = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    assert read(objects).columns["x"].kind == kind


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series([dt.date(2020, 1, 1)]), "date"),
        (pl.Series([dt.timedelta(1)]), "duration"),
        (pl.Series([[1, 2]]), "other"),
        (pl.Series([object()], dtype=pl.Object), "other"),
        (pl.Series([None], dtype=pl.Null), "text"),
        (pa.array([dt.datetime(2020, 1, 1)]), "date"),  # noqa: DTZ001
        (pa.array([b"a"]), "other"),
        (pa.nulls(3), "text"),
        (pd.Series(pd.to_datetime(["2020-01-01", None])).astype("category"), "date"),
        (pd.Series(pd.to_timedelta([1, 2])), "duration"),
        (pd.cut(pd.Series([1.0, 2.0]), 2), "other"),
        (pd.Series([1 << 70, 2]), "integer"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_kinds_of_typed_columns(column, kind):
    library = {pd.Series: pd.DataFrame, pl.Series: pl.DataFrame}.get(type(column), pa.table)
    table = read(library({"x": column}))
    assert table.columns["x"].kind == kind
    plain(table.template)


@pytest.mark.parametrize("none", [None, np.nan, pd.NA, pd.NaT], ids=str)
def test_missing_is_missing_however_it_is_written(none):
    for values in ([1, none], ["a", none], [True, none], [1, "a", none]):
        column = read(pd.DataFrame({"x": pd.Series(values, dtype=object)})).columns["x"]
        assert column.missing.tolist() == [False] * (len(values) - 1) + [True]
    assert math.isnan(read([{"x": 1.5}, {"x": none}]).columns["x"].values[1])
    for frame in (pl.DataFrame({"x": [1.5, math.nan]}), pa.table({"x": [1.5, math.nan]})):
        assert read(frame).columns["x"].missing.tolist() == [False, True]


def test_ordered_categories_bring_their_order():
    codes = pa.array([1, 2])
    for ordered in (True, False):
        frames = [
            pd.DataFrame({"x": pd.Categorical(["b", "a"], ["c", "b", "a"], ordered=ordered)}),
            pl.DataFrame(
                {"x": pl.Series(["b"], dtype=pl.Enum([*"cba"]) if ordered else pl.Categorical)}
            ),
            pa.table({"x": pa.DictionaryArray.from_arrays(codes, [*"cba"], ordered=ordered)}),
        ]
        for frame in frames:
            assert read(frame).columns["x"].ordered == (("c", "b", "a") if ordered else None)


def test_a_null_among_the_values_of_an_arrow_dictionary_is_missing():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    column = read(pa.table({"x": array})).columns["x"]
    assert column.kind == "text"
    assert column.missing.tolist() == [False, True, False]


def test_what_a_mask_hides_is_missing():
    array = np.ma.masked_equal(np.array([[1.0, 2.0], [3.0, 2.0]]), 2.0)
    assert read(array).columns["x1"].missing.tolist() == [True, True]


# --- out, where the dtype is too small -------------------------------------------------------


def built(frame, values):
    """A column of values put in the place of the only column of a frame."""
    return read(frame).template.build({"x": values})


FEW = np.array([1.0, 300.0])
HALF = np.array([1.5, 2.0])
GAP = np.array([1.0, np.nan])
TEXT = Coded(np.array([1, -1]), ("own", "rent"))


@pytest.mark.parametrize(
    ("values", "pandas", "nullable", "polars", "arrow"),
    [
        (FEW, "int64", "Int64", pl.Int64, pa.int64()),
        (HALF, "float64", "Float64", pl.Float64, pa.float64()),
        (GAP, "float64", "Int8", pl.Int8, pa.int8()),
        (TEXT, str(pd.Series(["a"]).dtype), str(pd.Series(["a"]).dtype), pl.String, pa.string()),
    ],
)
def test_a_small_integer_gives_way(values, pandas, nullable, polars, arrow):
    wanted = ["rent", None] if isinstance(values, Coded) else values.tolist()
    for frame, dtype in (
        (pd.DataFrame({"x": pd.Series([1], dtype="int8")}), pandas),
        (pd.DataFrame({"x": pd.Series([1], dtype="Int8")}), nullable),
        (pl.DataFrame({"x": pl.Series([1], dtype=pl.Int8)}), polars),
        (pa.table({"x": pa.array([1], pa.int8())}), arrow),
    ):
        column = built(frame, values)["x"]
        assert str(column.type if dtype is arrow else column.dtype) == str(dtype)
        assert [None if pd.isna(v) else v for v in _list(column)] == [
            None if pd.isna(v) else v for v in wanted
        ]


def test_an_integer_array_gives_way():
    small = np.array([[1]], dtype=np.int8)
    template = read(small).template
    assert template.build({"x0": FEW}).dtype == np.int64
    assert template.build({"x0": HALF}).ravel().tolist() == [1.5, 2.0]
    assert np.isnan(template.build({"x0": GAP})[1, 0])
    truths = read(np.array([[True]])).template
    assert truths.build({"x0": np.array([0.0, 1.0])}).dtype == bool
    assert truths.build({"x0": GAP}).dtype == np.float64
    with pytest.raises(InputError, match=r"An array holds numbers only, and one of the columns"):
        template.build({"x0": TEXT})


def test_truth_values_give_way():
    flags = [
        pd.DataFrame({"x": [True]}),
        pd.DataFrame({"x": pd.Series([True], dtype="boolean")}),
        pl.DataFrame({"x": [True]}),
        pa.table({"x": [True]}),
    ]
    for frame in flags:
        for values in (np.array([0.0, 1.0]), Coded(np.array([0, 1]), ("False", "True", "?"))):
            column = read(built(frame, values)).columns["x"]
            assert column.kind == "boolean"
            assert built(frame, values)["x"].to_numpy().tolist() == [False, True]
        assert read(built(frame, FEW)).columns["x"].kind == "integer"
        assert read(built(frame, TEXT)).columns["x"].kind == "text"
    missing = built(flags[0], np.array([1.0, np.nan]))["x"]
    assert missing.tolist() == [True, None]


CENTS = [Decimal("1.25"), None, Decimal("-3.00")]
PLAIN = {  # types that are read, and come back as the plain type of the same content
    "decimals": pd.DataFrame({"x": pd.Series(CENTS, dtype=object)}),
    "arrow decimals": pd.DataFrame(
        {"x": pd.Series(CENTS, dtype=pd.ArrowDtype(pa.decimal128(10, 2)))}
    ),
    "polars decimals": pl.DataFrame({"x": pl.Series(CENTS, dtype=pl.Decimal(10, 2))}),
    "pyarrow decimals": pa.table({"x": pa.array(CENTS, pa.decimal256(40, 2))}),
    "records of decimals": [{"x": cent} for cent in CENTS],
    "sparse": pd.DataFrame({"x": pd.arrays.SparseArray([1.25, np.nan, -3.0])}),
    "half": pa.table({"x": pa.array(np.array([1.25, np.nan, -3.0], dtype="float16"))}),
    "pandas half": pd.DataFrame({"x": np.array([1.25, np.nan, -3.0], dtype="float16")}),
    "arrow in pandas": pd.DataFrame({"x": pd.Series([1.25, None, -3.0], dtype="float[pyarrow]")}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_decimals_and_other_rare_numbers_come_back_as_plain_numbers(name):
    frame = PLAIN[name]
    back = again(frame)
    assert type(back) is type(frame)
    column = [row["x"] for row in back] if isinstance(back, list) else _list(back["x"])
    assert [None if pd.isna(v) else v for v in column] == [1.25, None, -3.0]


def test_arrow_columns_of_pandas_come_back_as_its_own_nullable_ones():
    columns = {"int8": [1, None], "bool": [True, None], "string": ["a", None]}
    frame = pd.DataFrame({n: pd.Series(v, dtype=f"{n}[pyarrow]") for n, v in columns.items()})
    assert [str(dtype) for dtype in again(frame).dtypes] == ["Int64", "boolean", "string"]
    older = Template("pandas", ("day", "n"), ("arrow:timestamp[us]", "arrow:int8"))
    built = older.build({"day": np.array([1.0]), "n": np.array([7.0])})
    assert built.to_dict("records") == [{"day": pd.Timestamp("1970-01-02"), "n": 7}]


def _list(column):
    return column.to_pylist() if isinstance(column, pa.ChunkedArray) else column.to_list()


def test_numbers_go_into_text_without_a_trailing_point():
    text = pd.DataFrame({"x": pd.Series(["31"], dtype="string")})
    frames = (text, pl.DataFrame({"x": ["31"]}), pa.table({"x": ["31"]}))
    for frame in frames:
        column = built(frame, np.array([44.0, 2.5, np.nan]))["x"]
        assert [v if isinstance(v, str) else None for v in _list(column)] == ["44", "2.5", None]


def test_a_new_level_joins_the_categories():
    values = Coded(np.array([2, 0]), ("own", "rent", "boat"))
    frames = (
        pd.DataFrame({"x": pd.Categorical(["own"], ["own", "rent"])}),
        pl.DataFrame({"x": pl.Series(["own"], dtype=pl.Enum(["own", "rent"]))}),
        pa.table({"x": pa.array(["own"]).dictionary_encode()}),
    )
    for frame in frames:
        column = built(frame, values)["x"]
        assert _list(column) == ["boat", "own"]
    assert list(built(frames[0], values)["x"].cat.categories) == ["own", "rent", "boat"]
    assert built(frames[1], values)["x"].dtype == pl.Enum(["own", "rent", "boat"])
    numbers = pd.DataFrame({"x": pd.Categorical([1, 2])})
    assert built(numbers, values)["x"].tolist() == ["boat", "own"]
    assert built(numbers, Coded(np.array([0, 1]), ("1", "2")))["x"].tolist() == [1, 2]


def test_columns_of_missing_values_only():
    gone = Coded(np.array([-1, -1]), ())
    for name, column in PANDAS.items():
        assert built(pd.DataFrame({"x": column}), gone)["x"].isna().all(), name
    for column in POLARS.values():
        assert built(pl.DataFrame({"x": column}), gone)["x"].to_list() == [None, None]
    for column in ARROW.values():
        assert built(pa.table({"x": column}), gone)["x"].to_pylist() == [None, None]
    assert built(pl.DataFrame({"x": [None]}), TEXT)["x"].to_list() == ["rent", None]
    assert built(pa.table({"x": pa.nulls(1)}), TEXT)["x"].to_pylist() == ["rent", None]


# --- names -----------------------------------------------------------------------------------


def test_a_name_that_is_there_twice():
    for frame in (
        pd.DataFrame([[1, 2]], columns=["age", "age"]),
        pa.table([pa.array([1]), pa.array([2])], names=["age", "age"]),
    ):
        with pytest.raises(InputError, match=r"^Column 'age' is in the table twice\. Rename one"):
            read(frame)


@pytest.mark.parametrize("name", [0, None, ("a", 1)])
def test_names_that_are_not_text(name):
    for frame in (pd.DataFrame([[1]], columns=pd.Index([name], tupleize_cols=False)), [{name: 2}]):
        with pytest.raises(InputError, match=r"^Column names must be text, but one is .*\. Ren"):
            read(frame)


# --- what is not a table ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        ({"a": [1]}, r"A dict is not a table\. Pass a pandas, polars or pyarrow frame, a nu"),
        (3, r"A int is not a table\."),
        ("instances.csv", r"A str is not a table\."),
        (pd.Series([1]), r"A Series is not a table\."),
        (
            pl.LazyFrame({"a": [1]}),
            r"A LazyFrame is not a table\. .* Call its collect\(\) first\.$",
        ),
        ([[1, 2]], r"Record 0 is a list, not a dict of columns\."),
        ([{"a": 1}, 7], r"Record 1 is a int, not a dict of columns\."),
        (np.arange(3), r"An array of shape \(3,\) and type int64 is not a table\. Pass numb"),
        (np.array([["a"]]), r"An array of shape \(1, 1\) and type <U1 is not a table"),
        (np.array([[1j]]), r"type complex128 is not a table"),
    ],
    ids=str,
)
def test_what_is_not_a_table(thing, sentence):
    with pytest.raises(InputError, match=sentence):
        read(thing)


# --- identifiers -----------------------------------------------------------------------------


def test_a_pandas_index_identifies_the_rows_and_comes_back():
    for index in (
        pd.Index(["p", "q"], name="customer"),
        pd.Index([7, 9]),
        pd.RangeIndex(5, 7),
        pd.to_datetime(["2020-01-01", "2020-02-01"]),
        pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["branch", None]),
    ):
        frame = pd.DataFrame({"x": [1, 2]}, index=index)
        table = read(frame)
        assert table.ids == tuple(index)
        assert table.template.index == tuple(index.names)
        built = table.template.build({"x": table.columns["x"].values}, ids=table.ids)
        pd.testing.assert_frame_equal(built, frame, check_index_type=False, check_freq=False)
        assert table.take([1]).ids == (index[1],)
        assert_same(again(frame), frame.reset_index(drop=True))  # built without ids
    assert read(pd.DataFrame({"x": [1, 2]})).ids is None  # the default index identifies nothing


def test_a_column_named_id_identifies_the_rows_exactly():
    large = 2**60 + 1  # no float has it
    rows = [{"id": large, "x": 1}, {"id": 2, "x": 3}]
    for frame in (rows, pd.DataFrame(rows), pl.DataFrame(rows), pa.Table.from_pylist(rows)):
        table = read(frame)
        assert table.ids == (large, 2)
        assert table.template.index == ("id",)
        assert table.names == ("id", "x")
        assert table.without(["id"]).ids == (large, 2)
        assert read(frame, id_column="x").ids == (1, 3)
        assert read(frame, id_column="y").ids is None
    indexed = pd.DataFrame(rows, index=["p", "q"])
    assert read(indexed).ids == read(indexed, id_column="y").ids == ("p", "q")
    assert read(indexed, id_column="id").ids == (large, 2)
    assert read(np.zeros((2, 2))).ids is None


def test_reading_leaves_the_frame_alone():
    frame = pd.DataFrame({"x": [1.5, -0.0], "y": ["a", "b"]})
    kept = frame.copy()
    read(frame).columns["x"].values[:] = 9.0
    pd.testing.assert_frame_equal(frame, kept)


# --- select, plain frames, side by side ------------------------------------------------------


def test_select_keeps_the_order_of_the_table():
    template = Template("pandas", ("a", "b", "c"), ("int64", "bool", "object"))
    assert template.select(["c", "a"]) == Template("pandas", ("a", "c"), ("int64", "object"))
    images = read(np.zeros((1, 2, 2))).template
    assert images.select(images.names) == images
    assert images.select(["x0"]).shape is None


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "records", "array"])
def test_plain_frames(kind):
    columns = {
        "instance": np.array([0, 1]),
        "ok": np.array([True, False]),
        "tau": np.array([0.5, 1.0]),
        "why": np.array(["", "no"], dtype=object),
    }
    frame = plain_frame(kind, columns)
    wanted = {"array": pd.DataFrame, "pandas": pd.DataFrame, "polars": pl.DataFrame}
    assert isinstance(frame, wanted.get(kind, pa.Table if kind == "pyarrow" else list))
    table = read(frame)
    assert [c.kind for c in table.columns.values()] == ["integer", "boolean", "number", "text"]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": pd.Series([1, 2], dtype="Int8")}),
        pl.DataFrame({"a": pl.Series([1, 2], dtype=pl.Int8)}),
        pa.table({"a": pa.array([1, 2], pa.int8())}),
        [{"a": 1}, {"a": 2}],
        np.array([[[1]], [[2]]], dtype=np.int8),
    ],
    ids=["pandas", "polars", "pyarrow", "records", "images"],
)
def test_plain_columns_go_after_the_tables_own(frame):
    table = read(frame)
    columns = {name: column.values for name, column in table.columns.items()}
    joined = read(table.template.build(columns, after={"instance": np.array([7, 8])}))
    assert joined.names == ("x0" if isinstance(frame, np.ndarray) else "a", "instance")
    assert [c.values.tolist() for c in joined.columns.values()] == [[1.0, 2.0], [7.0, 8.0]]
    if not isinstance(frame, np.ndarray):
        assert joined.template.dtypes[0] == table.template.dtypes[0]


def test_an_array_user_without_pandas_gets_records(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert plain_frame("array", {"instance": np.array([3])}) == [{"instance": 3}]


def test_a_frame_shares_no_memory_with_the_plain_columns():
    tau = np.array([0.5, 1.0])
    frame = plain_frame("pandas", {"tau": tau})
    frame.loc[0, "tau"] = 9.0
    assert tau.tolist() == [0.5, 1.0]
