"""How columns of text are read: notations, what is named at once, files of columns."""

from __future__ import annotations

import datetime as dt
import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapace import Feature, InputError, Schema
from lapace.result.counterfactuals import records
from lapace.schema.notation import DATES, MARKS, Notation, guess
from lapace.schema.summary import remarks
from tests.core.test_table import assert_same

ROWS = 240


def one(values, override=None):
    """The feature of a single column."""
    overrides = None if override is None else {"x": override}
    return Schema.infer(pd.DataFrame({"x": list(values)}), overrides)["x"]


def amounts(rng, form):
    return [form.format(v) for v in rng.gamma(2.0, 900.0, ROWS)]


# --- notations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "example"),
    [
        (["€1,200", "€80"], "€1,234.56"),
        (["€1.200", "€80"], "€1.234,56"),
        (["1.234,50", "7,25"], "1.234,56"),
        (["1 200,5", "3,5"], "1 234,56"),
        (["1 200 kr", "80 kr"], "1 234,56 kr"),
        (["1\u00a0200\u00a0kr", "80\u00a0kr"], "1\u00a0234,56\u00a0kr"),
        (["12,5", "3,25"], "1234,56"),
        (["15%", "2.5%", "0%"], "1234.56%"),
        (["36 months", "60 months", "6 months"], "1234.56 months"),
        (["180cm", "175cm"], "1234.56cm"),
        (["12 A", "16 A"], "1234.56 A"),
        (["USD 5", "USD 1,200.50"], "USD 1,234.56"),
        (["-$5", "$7"], "$1,234.56"),
        (["17", "?", "n/a"], "1234.56"),
        (["2021-01-31", "2021-02-01"], "2024-12-31"),
        (["31/01/2021", "05/02/2021"], "31/12/2024"),
        (["01/31/2021", "02/05/2021"], "12/31/2024"),
        (["31/1/2021", "5/2/2021"], "31/1/2024"),
        (["1/31/2021", "2/5/2021"], "1/31/2024"),
        (["5.2.2021", "15.10.2021"], "31.1.2024"),
        (["5 Feb 2021", "15 Oct 2021"], "1 Dec 2024"),
        (["Feb 5, 2021", "Oct 15, 2021"], "Dec 1, 2024"),
        (["2021-01-31 08:15", "2021-02-01 00:00"], "2024-12-31 23:59"),
        (["2021-01-31T08:15:30"], "2024-12-31T23:59:59"),
    ],
)
def test_a_notation_is_guessed_and_reads_what_it_was_guessed_from(texts, example):
    found = guess(texts)
    assert found == Notation(example)
    assert all(found.number(text) is not None for text in texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["A11", "A12"],
        ["12A", "13A"],
        ["12ABC", "13ABC"],
        ["1st", "2nd"],
        ["00123", "12345"],
        ["01/02/2021", "03/04/2021"],  # day first, or month first?
        ["1/2/2021", "3/4/2021"],
        ["2", "3", "4", "5more"],  # a unit that not every value has is none
        ["15%", "2.5%", "0"],
        ["15%", "2.5 %"],
        ["€5", "7"],
        ["€1,200", "€1500"],
        ["-€5", "€-7"],
        ["+5%", "7%"],
        ["1\u00a0200 kr", "1 500 kr"],
        ["01/02/2021", "31/2/2021"],
        ["€5", "$7"],
        ["low", "high"],
        ["1.2.3", "4.5.6"],
        ["12 or so"],
        ["?", ""],
        [],
    ],
)
def test_what_has_no_notation(texts):
    assert guess(texts) is None


@pytest.mark.parametrize("example", ["", "12", "€", "1234.5.6", "31/31/2024", "A1234.56B9"])
def test_an_example_that_is_no_notation_is_refused(example):
    with pytest.raises(InputError, match="is not a notation"):
        Notation(example)


@given(
    st.decimals(-(10**9), 10**9, places=2, allow_nan=False),
    st.sampled_from(MARKS),
    st.sampled_from([("", ""), ("€", ""), ("", " €"), ("", "%"), ("USD ", "")]),
)
def test_numbers_are_read_back_as_they_are_written(value, marks, affixes):
    body = "1,234.56".translate({ord(","): marks[0], ord("."): marks[1]})
    notation = Notation(f"{affixes[0]}{body}{affixes[1]}")
    text = notation.text(float(value), decimals=2)
    assert notation.number(text) == float(value)


@given(st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)), st.sampled_from(sorted(DATES)))
def test_dates_are_read_back_as_they_are_written(day, example):
    days = float((day - dt.date(1970, 1, 1)).days)
    assert Notation(example).number(Notation(example).text(days)) == days


ways = st.one_of(
    st.sampled_from(sorted(DATES)),
    st.builds(
        lambda marks, around: f"{around[0]}1{marks[0]}234{marks[1]}56{around[1]}",
        st.sampled_from(MARKS),
        st.sampled_from(
            [
                ("", ""),
                ("", "more"),
                ("", "%"),
                ("", " %"),
                ("€", ""),
                ("", "\u00a0€"),
                ("USD ", ""),
            ]
        ),
    ),
)
cell = st.tuples(st.integers(0, 2), st.integers(-40_000, 40_000))


@given(st.lists(ways, min_size=1, max_size=3), st.lists(cell, min_size=1, max_size=30))
@example(["1234.56", "1234.56more"], [(0, 2), (0, 3), (0, 4), (1, 5)])
@example(["1,234.56", "1.234,56"], [(0, 0), (0, 1000), (1, 1000)])
def test_every_cell_is_written_back_as_it_came(ways, cells):
    texts = [Notation(ways[way % len(ways)]).text(float(number)) for way, number in cells]
    frame = pd.DataFrame({"x": texts})
    schema = Schema.infer(frame)
    read = schema.cells(frame)
    if schema["x"].written or schema["x"].kind != "continuous":  # plain numbers are not spelt
        assert schema.frame(read)["x"].tolist() == texts


# --- columns ---------------------------------------------------------------------------------


def test_amounts_are_numbers_and_come_back_as_they_were_written():
    rng = np.random.default_rng(0)
    texts = amounts(rng, "€{:,.2f}")
    frame = pd.DataFrame({"price": texts, "rate": [f"{v}%" for v in rng.integers(0, 40, ROWS)]})
    schema = Schema.infer(frame)
    assert [f.kind for f in schema.features] == ["continuous"] * 2
    assert schema["price"].resolution == 0.01
    assert schema["rate"].text(15) == "15%"
    reading = schema.read(frame)
    pd.testing.assert_frame_equal(schema.frame(reading.cells), frame)
    plain = schema.as_numbers().frame(reading.cells[:1])
    assert plain["price"].tolist() == [float(texts[0].strip("€").replace(",", ""))]
    assert schema.read(pd.DataFrame({"price": ["1,200"], "rate": ["3.5"]})).cells.tolist() == [
        [1200, 3.5]
    ]
    assert "not a number" in schema.read(pd.DataFrame({"price": ["dear"], "rate": [1]})).problems[0]
    day = Schema.infer(pd.DataFrame({"day": [f"{1 + k % 28:02}/03/2024" for k in range(ROWS)]}))
    assert "not a date." in day.read(pd.DataFrame({"day": ["32/03/2024"]})).problems[0]


DAYS = [dt.date(2021, 1, 1) + dt.timedelta(days=3 * i) for i in range(ROWS)]
MOMENTS = [dt.datetime(2021, 1, 1, 8, 30) + dt.timedelta(hours=7 * i) for i in range(ROWS)]  # noqa: DTZ001


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"x": pd.to_datetime(DAYS)}),
        pd.DataFrame({"x": pd.to_datetime(MOMENTS).tz_localize("Europe/Berlin")}),
        pd.DataFrame({"x": DAYS}, dtype=object),
        pd.DataFrame({"x": [str(day) for day in DAYS]}),
        pl.DataFrame({"x": DAYS}),
        pl.DataFrame({"x": MOMENTS}),
        pa.table({"x": DAYS}),
        pa.table({"x": pa.array(MOMENTS, pa.timestamp("ms"))}),
        [{"x": day} for day in DAYS],
        [{"x": moment} for moment in MOMENTS],
    ],
    ids=lambda frame: f"{type(frame).__module__.split('.')[0]}",
)
def test_dates_are_numbers_in_days_and_come_back_as_dates(frame):
    schema = Schema.infer(frame)
    assert schema["x"].is_date
    cells = schema.cells(frame)
    first = cells[0, 0] - (dt.date(2021, 1, 1) - dt.date(1970, 1, 1)).days
    assert first == 0 or 0.25 < first < 0.4
    assert schema["x"].text(cells[0, 0])[:10] == "2021-01-01"
    assert_same(schema.frame(cells), frame)
    missing = np.full((1, 1), np.nan)
    assert np.isnan(schema.cells(schema.frame(np.vstack([cells, missing])))[-1, 0])


def test_a_date_that_cannot_be_told_is_named_by_an_example():
    texts = ["01/02/2021", "03/04/2021", "11/12/2021"] * 20
    assert one(texts).kind == "categorical"
    day_first = one(texts, Feature("x", "continuous", written="31/12/2024"))
    assert day_first.text(day_first.lower) == "01/02/2021"
    with pytest.raises(InputError, match="--kind 'x=date:31/12/2024'"):
        one(texts, "date")
    with pytest.raises(InputError, match="by the schema it is categorical"):
        one(DAYS, "categorical")


def test_numbers_as_text_with_words_for_missing_ones():
    found = one([*(str(i * 7 % 90) for i in range(ROWS)), "?", "n/a"])
    assert (found.kind, found.missing, found.written) == ("continuous", True, "")
    assert one(["1", "2", "3"] * 30).kind == "categorical"  # a code, perhaps: it is proposed
    assert one(["1", "2", "3"] * 30, "number").kind == "continuous"


def test_numbers_with_leading_zeros_are_codes_however_many_there_are():
    assert one([f"{i * 37 % 50:05}" for i in range(ROWS)]).kind == "categorical"


def test_a_few_numbers_that_are_no_lattice_are_a_set():
    rng = np.random.default_rng(1)
    powers = one(rng.choice([2, 4, 8, 16], ROWS))
    assert (powers.kind, powers.categories) == ("ordinal", (2, 4, 8, 16))
    assert one(rng.choice([0.5, 1.0, 2.5, 10.0], ROWS)).categories == (0.5, 1, 2.5, 10)
    assert one(rng.choice([12, 24, 36, 48], ROWS)).kind == "continuous"
    assert one([*rng.choice([0, 1, 2, 3], ROWS), 11]).kind == "continuous"  # one row is no set


def test_one_value_off_the_lattice_leaves_the_resolution():
    rng = np.random.default_rng(2)
    cents = np.round(rng.gamma(2.0, 30.0, ROWS), 2)
    assert one([*cents, 33.333333]).resolution == 0.01
    assert one([*cents, *(33.333333 + np.arange(9))]).resolution == 1e-6
    # Nine rows in ten are zero: a hundredth of all rows is then a tenth of what matters.
    rare = np.append(np.zeros(9 * ROWS), cents[:200])
    assert one([*rare, *(33.333333 + np.arange(9))]).resolution == 1e-6
    assert one(rng.normal(size=ROWS)).resolution == 0.0


# --- all at once -----------------------------------------------------------------------------


def test_all_columns_that_need_a_word_are_named_at_once():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "order": range(ROWS),
            "age": rng.integers(18, 80, ROWS),
            "customer_id": rng.permutation(9 * ROWS)[:ROWS],
            "ID": rng.integers(10**6, 10**7, ROWS // 10 * 9).tolist() + [4711] * (ROWS // 10),
            "notes": [f"called about bill number {i}" for i in range(ROWS)],
            "key": [f"K-{i:06}" for i in range(ROWS)],
            "nothing": None,
            "verdict": np.where(np.arange(ROWS) % 2, 1, 0),
        }
    )
    labels = np.where(np.arange(ROWS) % 2, "good", "bad").tolist()
    with pytest.raises(InputError) as raised:
        Schema.infer(frame, labels=labels)
    lines = str(raised.value).splitlines()
    assert lines[0] == "7 columns cannot be used as they are:"
    for name, words in {
        "order": "only counts the rows.",
        "customer_id": "different numbers in 240 rows, as identifiers do.",
        "ID": "different numbers in 240 rows, as identifiers do.",
        "notes": "as names or free text do.",
        "key": "as names or free text do.",
        "nothing": "has no value in any row.",
        "verdict": "says the same as the label in every row.",
    }.items():
        (line,) = [line for line in lines if line.startswith(f"  Column '{name}' ")]
        assert f"{words} Drop it (schema={{'{name}': 'drop'}})" in line
    assert "--" not in str(raised.value)  # options are the command line's words
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    dropped = eval(lines[-1].removeprefix("To drop all of them: schema="))
    assert set(dropped) == set(frame) - {"age"}
    kinds = {**dropped, "verdict": "binary", "key": "id"}
    schema = Schema.infer(frame, kinds, labels=labels)
    assert schema.names == ("age", "verdict")
    assert Schema.infer(frame.set_index("key"), kinds, labels=labels) == schema


@pytest.mark.parametrize("gap", [np.nan, None])
def test_a_column_that_is_blank_for_one_label_only_is_refused(gap):
    labels = [("good", "bad", "worse")[i % 3] for i in range(ROWS)]
    value = {"paid": [gap if label == "bad" else f"£{i}" for i, label in enumerate(labels)]}
    with pytest.raises(
        InputError, match=r"'paid' is blank exactly where the label is 'bad'\. Drop"
    ):
        Schema.infer(pd.DataFrame({"age": range(18, 18 + ROWS), **value}), labels=labels)
    many = [f"label {i}" for i in range(ROWS)]  # each label has one row, so each column is so
    assert Schema.infer(pd.DataFrame({"paid": value["paid"]}), labels=many).names == ("paid",)
    labels[1] = "good"  # blank once where it should not be: a leak that `fit` warns of
    schema = Schema.infer(pd.DataFrame(value), labels=labels)
    assert schema.names == ("paid",)


def test_many_texts_are_remarked_upon_and_long_ones_are_seen_to_be_cut():
    texts = [f"leave it with the neighbour at number {i % 70}" for i in range(700)]
    schema = Schema.infer(pd.DataFrame({"remark": texts}))
    assert "'remark' holds 64 texts or more" in str(schema)
    assert "leave it with the neigh…" in str(schema)
    dates = pd.date_range("2024-01-05", periods=100).strftime("%Y-%m-%d")
    assert 'kind = "date"' in Schema.infer(pd.DataFrame({"ordered": dates})).to_toml()


# --- what is shown, and files ----------------------------------------------------------------


def mixed():
    rng = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "price": amounts(rng, "€{:,.2f}"),
            "start": pd.to_datetime(DAYS),
            "grade": rng.choice(["low", "medium", "high"], ROWS),
            "code": rng.choice(["1", "2", "3"], ROWS),
            "ram": rng.choice([2, 4, 8, 16], ROWS),
            "home town": rng.choice(["Bonn", "Ulm", 'the "Hof"'], ROWS),
            "same": 7,
            "debt": np.where(rng.random(ROWS) < 0.2, np.nan, rng.integers(0, 99, ROWS)),
        }
    )


def test_a_schema_shows_how_the_table_was_read():
    schema = Schema.infer(mixed())
    shown = str(schema).splitlines()
    assert shown[0].split() == ["column", "read", "as", "values", "missing"]
    by_name = {line.split("  ")[0]: line for line in shown}
    assert "€" in by_name["price"]
    assert "date" in by_name["start"]
    assert "2021-01-01 to 2022-12-19" in by_name["start"]
    assert "some" in by_name["debt"]
    assert "2 < 4 < 8 < 16" in by_name["ram"]
    assert remarks(schema.features) == [
        "'code' holds numbers as text; in columns.toml: kind = \"number\" under [columns.code]",
        "'same' is the same in every row; in columns.toml: kind = \"drop\" under [columns.same]",
    ]


def odd():
    """A table of what new users' tables have: one column for each, and the lines that mend them."""
    rng = np.random.default_rng(5)
    amounts = [*(f"{n}" for n in range(300, 400)), *(f"{n / 10:g}k" for n in range(10, 150))]
    losses = [f"({n})" if n % 3 == 0 else f"{n:,}" for n in range(900, 900 + ROWS)]
    columns = {
        "home": (np.resize(["Yes", "yes", "YES ", "No", "Yes"], ROWS), "ignore_case = true"),
        "home town": (np.resize(["London", "london ", "Leeds"], ROWS), "ignore_case = true"),
        "plan": (np.resize(["basic", "  ", "pro"], ROWS), 'missing_values = [""]'),
        "age": (np.where(np.arange(ROWS) % 9, rng.integers(18, 80, ROWS), -999),
                "missing_values = [-999]"),
        "pay": (np.where(np.arange(ROWS) % 9, 100 * rng.integers(8, 80, ROWS), -999),
                "missing_values = [-999]"),
        "grade": (np.resize([2, 4, 8, 9999], ROWS), "missing_values = [9999]"),
        "built": ([f"{n:,}" for n in rng.integers(1950, 2020, ROWS)], 'written = "1234"'),
        "debt": (np.resize(["900", "12k", "1.2m", "7", "55"], ROWS), 'written = "1.23456k"'),
        "loan": (amounts, 'written = "1.23456k"'),
        "gain": (np.resize(["£80", "(£79)", "£1,200"], ROWS), 'written = "(£1,234.56)"'),
        "profit": (losses, 'written = "(1,234.56)"'),
        "since": ([f"{n % 12 + 1:02}/{n % 7 + 1:02}/{2000 + n % 20}" for n in range(ROWS)],
                  'written = "31/12/2024"'),
    }  # fmt: skip
    frame = pd.DataFrame({name: cells for name, (cells, _) in columns.items()})
    return frame, {name: line for name, (_, line) in columns.items()}


def test_each_odd_column_has_one_message_with_the_line_that_mends_it(tmp_path):
    frame, lines = odd()
    refused = ["loan", "profit", "since"]
    with pytest.raises(InputError) as raised:
        Schema.infer(frame)
    for name in refused:
        (line,) = [line for line in str(raised.value).splitlines() if f"n '{name}'" in line]
        first = {"loan": "1k", "profit": "(900)", "since": "01/01/2000"}[name]
        assert f"not all written alike ('{first}', " in line
        assert f"in columns.toml: {lines[name]} under [columns.{name}]. Say how it is" in line
    used = frame.drop(columns=refused)
    schema = Schema.infer(used)
    said = remarks(schema.features)
    assert len(said) == len(used.columns)
    for name, text in zip(used, said, strict=True):
        key = f'"{name}"' if " " in name else name
        assert text.startswith(f"'{name}' ")
        assert text.endswith(f"in columns.toml: {lines[name]} under [columns.{key}]"), text

    # The lines work in a file that `to_toml` wrote, in place of one that says otherwise, and alone.
    written, alone = schema.to_toml(), "version = 1\n"
    for name, line in lines.items():
        section = f'[columns."{name}"]\n' if " " in name else f"[columns.{name}]\n"
        alone += f"{section}{line}\n"
        before, _, rest = written.partition(section)
        own, gap, after = rest.partition("\n\n")
        own = re.sub(f"(?m)^{line.split()[0]} = .*\n?", "", own)
        written = f"{before}\n{section}{line}\n{own}{gap}{after}"
    for text in (alone, written):
        path = tmp_path / "columns.toml"
        path.write_text(text)
        mended = Schema.infer(frame, path)
        assert remarks(mended.features) == []
        assert mended["home"].levels == ("No", "Yes")
        assert mended["home town"].levels == ("Leeds", "London")
        assert mended["plan"].levels == ("basic", "pro")
        assert mended["plan"].missing
        assert mended["age"].lower >= 18
        assert mended["pay"].resolution == 100  # -999 counts for nothing
        assert mended["grade"].upper <= 8
        assert mended["built"].text(2014) == "2014"
        assert [mended["debt"].text(n) for n in (12e3, 1.2e6, 950)] == ["12k", "1.2m", "950"]
        assert mended["gain"].lower == -79
        assert mended["gain"].text(-1200) == "(£1,200)"
        assert mended["since"].is_date
        assert np.isnan(mended.cells(frame)).any(axis=0).tolist() == [
            *[False] * 2, *[True] * 4, *[False] * 6
        ]  # fmt: skip


def test_a_missing_cell_is_handed_on_as_the_table_marks_it_but_empty_to_a_model_trained_here():
    frame = pd.DataFrame({"age": [31, -999, 44], "plan": ["a", "?", "b"], "cm": [1.5, 2.5, -999]})
    marks = {"age": {"missing_values": -999}, "plan": {"missing_values": ["?"]},
             "cm": {"missing_values": [-999]}}  # fmt: skip
    schema = Schema.infer(frame, marks)
    cells = schema.cells(frame)
    assert np.isnan(cells).sum(axis=0).tolist() == [1, 1, 1]
    pd.testing.assert_frame_equal(schema.frame(cells), frame)
    trained = schema.as_numbers()
    assert trained.frame(cells).isna().sum().tolist() == [1, 1, 1]
    np.testing.assert_array_equal(trained.cells(frame), cells)
    again = Schema.from_json(trained.to_json())
    assert again == trained
    assert records(schema, cells)[1] == {"age": None, "plan": None, "cm": 2.5}  # as JSON has it


def test_json_has_dates_as_they_came_and_amounts_as_numbers():
    table = [
        {"since": f"{k % 28 + 1:02}/03/2019", "rate": f"{k / 10}%", "fee": f"£{k}"}
        for k in range(60)
    ]
    schema = Schema.infer(table)
    row = {"since": "14/03/2019", "rate": 1.3, "fee": 13}  # of decimals, too
    assert records(schema, schema.cells(table))[13] == row


def test_like_categories_are_one_also_where_a_spelling_is_new():
    schema = Schema.infer([{"town": t} for t in ("Ulm", "ULM", "Ulm", "Bonn")],
                          {"town": {"ignore_case": True}})  # fmt: skip
    reading = schema.read([{"town": "ulm "}, {"town": "Köln"}])
    assert reading.schema["town"].levels == ("Bonn", "Ulm", "Köln")
    assert reading.cells.ravel().tolist() == [1, 2]


def test_years_have_no_mark_between_thousands():
    assert one(np.arange(ROWS) % 30 + 1990).text(2014) == "2014"
    assert one(np.arange(1900, 1900 + 7 * ROWS, 7)).text(2014) == "2,014"


def test_a_file_of_columns_says_the_same_when_it_is_handed_over(tmp_path):
    frame = mixed()
    schema = Schema.infer(frame)
    path = tmp_path / "schema.toml"
    schema.to_toml(path)
    assert Schema.infer(frame, path).features == schema.features
    edited = path.read_text().replace('"high", "low", "medium"', '"low", "medium", "high"')
    edited = edited.replace(
        'kind = "categorical"\ncategories = ["low"', 'kind = "ordinal"\ncategories = ["low"'
    )
    edited = edited.replace("[columns.same]", '[columns.same]\ndescription = "Seven."\nunit = "km"')
    path.write_text(edited)
    again = Schema.infer(frame, str(path))
    assert again["grade"].categories == ("low", "medium", "high")
    assert again["grade"].kind == "ordinal"
    assert again["same"].text(7) == "7 km"
    assert again["same"].description == "Seven."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 1\n[columns.x", "is not TOML"),
        ("version = 2\n[columns.x]\nkind = 'drop'", "is not a file of columns"),
        ("version = 1\n[columns.x]\nkid = 'drop'", "has no setting 'kid'. Did you mean 'kind'"),
        ("version = 1\n[columns]\nx = 3", "must be a table of settings"),
        ("version = 1\n[columns.x]\nkind = 'nmber'\nunit = 'km'", "is not a kind of column"),
        ("version = 1\n[columns.x]\nkind = 'ordinal'\ncategories = [1, 1]", "category 1 twice"),
        ("version = 1\n[columns.x]\nkind = 'number'\nlower = 'soon'", "lower = 'soon'"),
        ("version = 1\n[columns.x]\nlower = [1]", "Expected `float`, got `array`, at lower"),
    ],
)
def test_a_file_of_columns_that_is_refused(text, says, tmp_path):
    with pytest.raises(InputError, match=r"no schema file 'gone\.toml'"):
        Schema.infer([{"x": 1}], "gone.toml")
    (tmp_path / "columns.toml").write_text(text)
    with pytest.raises(InputError, match=says):
        Schema.infer([{"x": 1}, {"x": 2}], tmp_path / "columns.toml")
