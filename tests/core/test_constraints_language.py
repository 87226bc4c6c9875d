"""Text to values and back, files, and every error message about a text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapace.constraints import (
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Linear,
    Membership,
    Shorthand,
    System,
    Term,
    Transition,
    from_toml,
    parse,
    parse_all,
    read_file,
    to_toml,
)
from lapace.errors import InputError
from lapace.schema import Schema

# Text as it may be typed, and as it is printed.
FORMS = {
    "income>=original": "income >= original",
    "hours ≤ 50": "hours <= 50",
    "x = 3": "x == 3",
    "x ≠ -3.50": "x != -3.5",
    "20 <= hours <= 60": "20 <= hours <= 60",
    "0.8*original <= income < 1.2*original": "0.8*original <= income < 1.2*original",
    "2*rent+instalment<=0.4*income": "2*rent + instalment <= 0.4*income",
    "income/4 >= 2*(rent - 100) + rent": "0.25*income >= 3*rent - 200",
    "-x <= -(3 - y)": "-x <= y - 3",
    "1e-3*x <= 1e20": "0.001*x <= 1e+20",
    "rent <= 0.3*original(income)": "rent <= 0.3*original(income)",
    "original(age) + 1 >= age": "original + 1 >= age",
    "education in {'some college', bachelor, bachelor}": 'education in {"some college", bachelor}',
    "education not in {original, school}": "education not in {original, school}",
    'rate in {fixed, "original", "1"}': 'rate in {"fixed", "original", "1"}',
    "not education: {master, doctor} → {bachelor}": "not education: {master, doctor} -> bachelor",
    "0.8*original <= income <= 1.2*original": "0.8*original <= income <= 1.2*original",
    "if job changes then tenure == 0": "if job changes then tenure == 0",
    "if a > 3 and b in {x} then c == 0 and d changes": (
        "if a > 3 and b in {x} then c == 0 and d changes"
    ),
    "changes <= 3": "changes <= 3",
    "fixed age, sex, age": "fixed age, sex",
    "decreasing `debt (EUR)`": "decreasing `debt (EUR)`",
    "`capital-gain` <= 2*`a``b`": "`capital-gain` <= 2*`a``b`",
    "`2` <= 3": "`2` <= 3",
    "2nd_income <= 3": "2nd_income <= 3",
    "größe <= 3": "größe <= 3",
    "fixed <= 3": "`fixed` <= 3",
}


@pytest.mark.parametrize(("text", "canonical"), FORMS.items(), ids=FORMS)
def test_every_form_is_read_and_printed(text, canonical):
    constraint = parse(text)
    assert str(constraint) == canonical
    assert parse(canonical) == constraint
    assert str(parse(canonical)) == canonical


def test_values_are_what_they_say():
    assert parse("2*rent - 3 < income") == Comparison(
        (Linear((Term(2.0, "rent"),), -3.0), Linear((Term(1.0, "income"),))), ("<",)
    )
    assert parse('x == "y"') == Comparison((Linear((Term(1.0, "x"),)), Category("y")), ("==",))
    assert parse("x not in {original, a}") == Membership("x", ("a",), original=True, negated=True)
    assert parse("not x: a -> {b, 2}") == Transition("x", ("a",), ("b", 2.0))
    assert parse("changes <= 2") == ChangeLimit(2)
    assert parse("if x changes then y in {a}") == Conditional(
        (Changes("x"),), (Membership("y", ("a",)),)
    )
    assert parse("fixed a, b") == Shorthand("fixed", ("a", "b"))
    assert hash(parse("x <= 3")) == hash(parse("x<=3"))


def test_whether_it_mentions_the_original():
    row_alone = ["x <= 3", "x in {a}", "if x == a then y == 0"]
    relative = ["x <= original + 3", "x in {original}", "not x: a -> b", "x changes", "fixed x",
                "if x == a then y == original", "changes <= 3"]  # fmt: skip
    assert not any(parse(text).mentions_original for text in row_alone)
    assert all(parse(text).mentions_original for text in relative)


def test_notes_are_kept_apart():
    noted = parse("hours <= 50   # by law")
    assert noted.note == "by law"
    assert noted == parse("hours <= 50")
    assert str(noted) == "hours <= 50"
    assert parse('x == "a # b"').note == ""


def test_parse_all_takes_what_comes():
    one = parse("fixed age")
    assert parse_all("fixed age") == (one,) == parse_all(one) == parse_all(iter(["fixed age"]))
    assert parse_all([one, "x <= 3"]) == (one, parse("x <= 3"))


# -- any value there is prints to a text that reads back -------------------------------------------

names = st.one_of(st.sampled_from(["age", "income", "if", "original", "a b", "`", "3", "x-y", ""]),
                  st.text(max_size=5))  # fmt: skip
numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
weights = numbers.filter(bool)
values = st.one_of(st.text(max_size=6), numbers.map(lambda v: v + 0.0))


@st.composite
def linears(draw, columns):
    picks = draw(st.lists(st.tuples(columns, st.booleans()), max_size=3, unique=True))
    return Linear(tuple(Term(draw(weights), n, own) for n, own in picks), draw(numbers) + 0.0)


@st.composite
def comparisons(draw):
    columns = st.just(draw(names)) if draw(st.booleans()) else names
    first = Linear((Term(draw(weights), draw(columns)),))
    side = st.one_of(linears(columns), st.builds(Category, st.text(max_size=5)))
    others = draw(st.lists(side, min_size=1, max_size=2))
    ways = draw(st.sampled_from([("<", "<="), (">", ">="), ("==",)]))
    return Comparison((first, *others), tuple(draw(st.sampled_from(ways)) for _ in others))


@st.composite
def memberships(draw):
    picks = tuple(dict.fromkeys(draw(st.lists(values, max_size=3))))
    own = draw(st.booleans()) or not picks
    return Membership(draw(names), picks, own, draw(st.booleans()))


simples = st.one_of(comparisons(), memberships(), st.builds(Changes, names))
some_values = st.lists(values, min_size=1, max_size=3, unique=True).map(tuple)
some_names = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
some_simples = st.lists(simples, min_size=1, max_size=2).map(tuple)
constraints = st.one_of(
    simples,
    st.builds(Transition, names, some_values, some_values),
    st.builds(Conditional, some_simples, some_simples),
    st.builds(ChangeLimit, st.integers(0, 99)),
    st.builds(Shorthand, st.sampled_from(["fixed", "increasing", "decreasing"]), some_names),
)


@given(constraints)
def test_what_is_printed_reads_back(constraint):
    text = str(constraint)
    assert parse(text) == constraint
    assert str(parse(text)) == text


@given(st.lists(st.tuples(constraints, st.text(max_size=20)), max_size=4))
def test_files_read_back(pairs):
    noted = tuple(replace(constraint, note=note) for constraint, note in pairs)
    again = from_toml(to_toml(noted))
    assert again == noted
    assert [c.note for c in again] == [c.note for c in noted]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        constraint = parse(text)
    except InputError:
        return
    assert parse(str(constraint)) == constraint


# -- error messages --------------------------------------------------------------------------------

MESSAGES = {
    "": "The constraint is empty. Write one such as 'age == original'.",
    "x": "at character 2: expected a relation (<=, <, ==, !=, >, >=), found the end.",
    "income >> 3": "at character 9: expected a column, a number or 'original', found '>'.",
    "x <= y >= 3": "at character 1: a chain of relations must point one way",
    "x*y <= 3": "columns can be multiplied by numbers, not by each other. Declare a derived column",
    "x/y <= 3": "only a number other than 0 can divide.",
    "x <= 1e999": "at character 6: 1e999 is too large a number.",
    "1e200*1e200*x <= 3": "the numbers here are too large.",
    "x in a": "at character 6: expected '{', found 'a'. Values go in braces, as in {bachelor,",
    "x in {some-college}": "expected ',' or '}', found '-'. A category with other characters goes "
    'in quotes: "some college".',
    "x in {`a`}": "expected a category or a number, found 'a'. Categories go in double quotes.",
    "x in {}": "expected a category or a number, found '}'.",
    "x not 3": "expected 'in', found '3'.",
    "free sulfur <= 3": "expected a relation (<=, <, ==, !=, >, >=), found 'sulfur'. Names of "
    'several words go in backticks: `a name`; categories in quotes: "a name".',
    "fixed acidity <= 3": "expected the end of the constraint, found '<='. Names of several words",
    "x == with family": "expected the end of the constraint, found 'family'. Names of several",
    "not x -> 3": "expected ':', found '->'. A change that is ruled out reads 'not education: "
    "master -> bachelor'.",
    "not x: a -> {original}": "'original' has no place here.",
    "changes <= 2.5": "at character 12: expected a whole number of columns, found '2.5'.",
    "changes >= 2": "expected '<=', found '>='. A limit on changes reads 'changes <= 3'.",
    "original <= 3": "which column's original value is meant? Name a column beside it.",
    "a + `b c` <= original": "which column's original value is meant? Name original(a) or "
    "original(`b c`).",
    "x - x <= 3": "a comparison must name a column that can change.",
    "if a then b": "at character 6: expected a relation",
    "if a > 3": "at character 9: expected 'then', found the end.",
    "fixed if": "expected a column's name, found 'if'. If 'if' is a column, put it in backticks.",
    "`ab": "at character 1: this ` is never closed.",
    "x == 'ab": "at character 6: this ' is never closed.",
    "x $ 3": "at character 3: '$' has no meaning here. Names with such characters go in "
    "backticks: `capital-gain`.",
    "a <= 3 and b <= 3": "'and' cannot join constraints. Write two constraints.",
    "a <= 3 or b <= 3": "'or' cannot join constraints. Use 'in {…}' or 'if … then'.",
    "3 + abs(a) <= 2": "'abs(a) <= 3' is written -3 <= a <= 3.",
    "fixd age": "found 'age'. Did you mean 'fixed'?",
    "home in [own, rent]": "at character 6: Values go in braces: in {own, rent}.",
    "`a b` not in ('x y', z)": "Values go in braces: in {'x y', z}.",
    "income <= 3,5": "at character 9: Numbers have a point before decimals: 1234.56.",
    "x => 3": "'=>' is not a relation. Write '>='.",
    "x between 3 and 4": "'between' is written 3 <= x <= 4.",
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.items(), ids=MESSAGES)
def test_every_error_message(text, message):
    with pytest.raises(InputError) as raised:
        parse(text)
    assert message in str(raised.value)
    if text.strip() and not text.startswith("#"):
        assert str(raised.value).startswith(f"Cannot read the constraint '{text}' at character ")


def test_what_cannot_be_a_constraint_is_refused():
    text = "(" * 5000 + "x" + ")" * 5000 + " <= 3"
    with pytest.raises(InputError, match="it is nested too deeply"):
        parse(text)
    with pytest.raises(InputError, match="A constraint is a text such as 'age == original', not 3"):
        parse_all([3])


# -- files -----------------------------------------------------------------------------------------


def test_a_file_round_trip(tmp_path):
    path = tmp_path / "rules.toml"
    rules = parse_all(["fixed age", "hours <= 50 # by law", 'x == "a\\\\b"'])
    path.write_text(to_toml(rules), encoding="utf-8")
    assert read_file(path) == rules
    assert read_file(str(path))[1].note == "by law"
    assert '{ constraint = "hours <= 50", note = "by law" }' in path.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="There is no constraint file"):
        read_file(tmp_path / "none.toml")


BAD_FILES = {
    "version = ": "The constraint file is not TOML:",
    "constraints = []": "The constraint file must begin with: version = 2",
    "version = 2\nconstraint = []": "has a key 'constraint' that means nothing here. Did you "
    "mean 'constraints'?",
    "version = 2\nconstraints = 3": "must list its constraints",
    "version = 2\nconstraints = [3]": "entry 1 must be a text, or { constraint =",
    'version = 2\nconstraints = [{ nte = "a" }]': "has a key 'nte' that means nothing here. Did "
    "you mean 'note'?",
    'version = 2\nconstraints = ["fixed a", "x >"]': "entry 2: Cannot read the constraint 'x >'",
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items())
def test_errors_about_files(text, message):
    with pytest.raises(InputError) as raised:
        from_toml(text)
    assert message in str(raised.value)


# -- values as columns write them --------------------------------------------------------------


def test_values_are_read_in_the_notation_of_their_column():
    rows = [
        {"Sale price": f"£{9_000 * i:,}", "sold": f"{i % 28 + 1:02}/{i % 12 + 1:02}/2024",
         "rate": f"{i}%", "income": 1000 + 7 * i, "debt": "12k" if i % 2 else str(i)}
        for i in range(1, 101)
    ]  # fmt: skip
    schema = Schema.infer(rows, {"debt": {"written": "1.23456k"}})
    for text, number in {
        "`Sale price` <= £900,000": 900_000,
        "£90,000 <= `Sale price`": 90_000,
        '`Sale price` <= "£900,000"': 900_000,
        "`Sale price` <= £0.9m": None,
        "`Sale price` in {£900,000, £9,000}": 900_000,
        "sold >= 2024-02-01": None,
        "rate <= 15%": 15,
        "income <= 1,200": 1200,
        "income <= £1,200": 1200,
        "debt <= 12k": 12_000,
        "debt <= £12k": None,
    }.items():
        constraint = parse(text)
        assert parse(str(constraint)) == constraint
        if number is None:
            with pytest.raises(InputError, match=r"is not written as .* is, like "):
                System.of([constraint], schema)
            continue
        plain = re.sub(
            r"£\d+(?:,\d+)*|\"£.*\"|\d+/\d+/\d+|15%|1,200|12k", str(number), text, count=1
        )
        plain = plain.replace("£9,000", "9000")
        bound, same = System.of([text, plain], schema).bound
        assert repr(bound.formula) == repr(same.formula)
    assert parse("income in {1,700, 300}").values == (1, 700, 300)


def test_dates_are_compared_with_dates_alone():
    """A bare number or a fraction of them is no date: such a limit would hold for every row."""
    dates = [f"{i % 28 + 1:02}/{i % 12 + 1:02}/2024" for i in range(1, 101)]
    schema = Schema.infer([{"sold": text, "made": dates[-k]} for k, text in enumerate(dates)])
    cells = schema.cells([{"sold": text, "made": "01/01/2024"} for text in dates])
    day = [text.split("/")[::-1] for text in dates]
    for text, holds in {
        "sold >= 01/02/2024": [d >= ["2024", "02", "01"] for d in day],
        "sold - made <= 30": [d <= ["2024", "01", "31"] for d in day],
        "sold <= original + 30": [True for _ in day],
    }.items():
        assert System.of([text], schema).holds(cells, cells)[:, 0].tolist() == holds
    for text in ("12/2024", "12-2024", "1/12/24", "2024", "19754"):
        for constraint in (f"sold >= {text}", f"{text} <= sold", "sold in {2024}"):
            with pytest.raises(InputError, match=r"'sold' holds dates. .* like 31/12/2024, or"):
                System.of([constraint], schema)
