"""Notations: the ways a column of text writes numbers and dates.

A notation is named by an example of itself: `€1,234.56`, `1.234,56 €`, `15%`, `36 months`,
`2024-12-31`, `31/12/2024`. Dates are numbers, in days since 1970-01-01. Two must be declared:
`1.23456k` (12k, 1.2m, 3bn) and `(1,234.56)` (negative amounts in brackets), or both: `(1.23456k)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property

import numpy as np

from lapace.errors import InputError

__all__ = ["DATES", "ISO_DATE", "Notation", "guess", "likely", "notation", "plain_number"]

ISO_DATE = "2024-12-31"
DATES = {  # a date as an example, and its format; the first that reads every value is taken
    ISO_DATE: "%Y-%m-%d",
    "2024-12-31 23:59": "%Y-%m-%d %H:%M",
    "2024-12-31 23:59:59": "%Y-%m-%d %H:%M:%S",
    "2024-12-31T23:59": "%Y-%m-%dT%H:%M",
    "2024-12-31T23:59:59": "%Y-%m-%dT%H:%M:%S",
    "2024/12/31": "%Y/%m/%d",
    "31.12.2024": "%d.%m.%Y",
    "31/12/2024": "%d/%m/%Y",
    "12/31/2024": "%m/%d/%Y",
    "31-12-2024": "%d-%m-%Y",
    "31 Dec 2024": "%d %b %Y",
    "Dec 31, 2024": "%b %d, %Y",
    "31.1.2024": "%-d.%-m.%Y",  # %-d: without a leading zero
    "31/1/2024": "%-d/%-m/%Y",
    "1/31/2024": "%-m/%-d/%Y",
    "1 Dec 2024": "%-d %b %Y",
    "Dec 1, 2024": "%b %-d, %Y",
}
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  dates of a table have no time zone
# Marks between thousands and before decimals, the likelier first.
SPACES = "\u00a0\u202f\u2009"  # between thousands, in some programs
MARKS: tuple[tuple[str, str], ...] = (
    *(("", "."), (",", "."), ("", ","), (".", ","), (" ", ","), (" ", "."), ("'", ".")),
    *((space, decimal) for space in SPACES for decimal in (",", ".")),
)
MONEY = re.compile(
    "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|SEK|SGD|TRY|USD|ZAR"
    "|Rs|kr|zł|Fr|[$¢£¤¥฿₠-⃀]|[A-Z]{1,2}[$]"
)
UNITS = re.compile(
    "[%‰°]|°[CF]|kg|g|mg|t|lbs?|oz|m|cm|mm|km|mi|ft|in|m²|m2|ha|l|ml|s|ms|min|h|hrs?|d|kW|MW|k?Wh|hp"
    "|[MG]?Hz|[kMGT]B|km/h|mph|CC"
)
SCALES = {"bn": 1e9, "m": 1e6, "k": 1e3}
SCALED = "1.23456"  # before k: 1234.56 in thousands
MISSING_WORDS = frozenset(("?", "-", "--", ".", "n/a", "na", "nan", "null", "none", "unknown"))
NUMBER = re.compile(
    r"(?P<sign>[-+−]?)(?P<prefix>[^\d\s.,'+−-]{0,4}\s?)(?P<inner>[-−]?)"
    rf"(?P<body>\d(?:[\d.,' {SPACES}]*\d)?)(?P<suffix>\s?[^\d]{{0,20}})"
)


@dataclass(frozen=True)
class Notation:
    """A way to write numbers, or dates.

    Attributes:
        example: 1234.56, or the last day of 2024, in this notation.

    Examples:
        >>> euros = Notation("1.234,56 €")
        >>> euros.number("2.500,5 €"), euros.text(1200, decimals=2)
        (2500.5, '1.200,00 €')
        >>> days = Notation("31/12/2024")
        >>> days.number("01/02/1970"), days.text(0)
        (31.0, '01/01/1970')
        >>> thousands = Notation("1.23456k")
        >>> thousands.number("1.2m"), [thousands.text(n) for n in (12_000, 2500, 1_170_000)]
        (1200000.0, ['12k', '2500', '1.17m'])
    """

    example: str

    def __post_init__(self) -> None:
        match = NUMBER.fullmatch(self._core)
        bodies = {_body(1234.56, 2, *marks) for marks in MARKS} | {"1234"}
        known = match is not None and (match["body"] in bodies or self._scales)
        if self.example not in DATES and not known:
            raise InputError(
                f"'{self.example}' is not a notation. Write 1234.56 in it, such as '€1,234.56', or "
                f"the last day of 2024, such as '{ISO_DATE}' or '31/12/2024'."
            )

    @property
    def _core(self) -> str:
        """The example without the brackets of negative amounts."""
        return self.example[1:-1] if self._in_brackets else self.example

    @property
    def _in_brackets(self) -> bool:
        return self.example.startswith("(") and self.example.endswith(")")

    @cached_property
    def _scales(self) -> bool:
        """Whether amounts are written in thousands, millions and billions."""
        return re.search(rf"(^|\D){SCALED}\s?[kK]$", self._core) is not None

    @cached_property
    def _parts(self) -> tuple[str, str, str, str]:
        """Prefix, mark between thousands, mark before decimals, suffix."""
        match = NUMBER.fullmatch(self._core)
        assert match is not None
        if self._scales:
            return match["prefix"], ",", ".", ""
        marks = next((m for m in MARKS if _body(1234.56, 2, *m) == match["body"]), ("", "."))
        return match["prefix"], *marks, match["suffix"]

    def number(self, text: str) -> float | None:
        """Returns the number a text spells; NaN where it says there is none, None for any other."""
        text = _plain_spaces(text).strip()
        if _says_missing(text):
            return np.nan
        if self.example in DATES:
            return _days(text, DATES[self.example])
        if self._in_brackets and (negative := re.fullmatch(r"(\D{0,4})\((.+)\)", text)):
            amount = notation(self._core).number(negative[1] + negative[2])
            return None if amount is None else -amount
        match, (prefix, thousands, decimal, suffix) = NUMBER.fullmatch(text), self._parts
        scale = SCALES.get(match["suffix"].strip().lower()) if match and self._scales else None
        if match is None or match["prefix"].strip() not in ("", prefix.strip()):
            return None
        if scale is None and match["suffix"].strip() not in ("", suffix.strip()):
            return None
        value = _value(match["body"], _plain_spaces(thousands), decimal)
        if value is None:
            return None
        value = float(f"{value * (scale or 1.0):.15g}")  # 1.1 * 1000 is a little over 1100
        return -value if match["sign"] in ("-", "−") or match["inner"] else value

    def text(self, value: float, decimals: int = 0) -> str:
        """Returns a number as this notation writes it."""
        if self.example in DATES:
            seconds = max(
                -62135596800, min(round(value * 86400.0), 253402300799)
            )  # years 1 to 9999
            form = DATES[self.example]
            written = (EPOCH + timedelta(seconds=seconds)).strftime(form.replace("%-", "%"))
            return re.sub(r"\b0", "", written) if "%-" in form else written
        if self._in_brackets:
            amount = notation(self._core).text(abs(value), decimals)
            return f"({amount})" if value < 0 else amount
        prefix, thousands, decimal, suffix = self._parts
        sign = "-" if value < 0 else ""
        if self._scales:
            return f"{sign}{prefix}{self._scaled(abs(value), decimals)}"
        if decimals == 1 and (_is_money(prefix) or _is_money(suffix)):
            decimals = 2
        return f"{sign}{prefix}{_body(abs(value), decimals, thousands, decimal)}{suffix}"

    def _scaled(self, value: float, decimals: int) -> str:
        """Returns a number in thousands, millions or billions where that is shorter, and exact."""
        plain = _body(value, decimals, "", ".")
        for letters, scale in SCALES.items():
            short = f"{value / scale:.3f}".rstrip("0").rstrip(".")
            exact = value >= scale and np.isclose(float(short) * scale, value, rtol=1e-12)
            if exact and len(short + letters) < len(plain):
                return short + (letters.upper() if self._core.endswith("K") else letters)
        return plain

    def writes(self, text: str) -> bool:
        """Returns whether a text is written in this notation in every part, its decimals apart.

        Examples:
            >>> percent = Notation("1234.56%")
            >>> [percent.writes(text) for text in ("5%", "5.0%", "5", "5 %")]
            [True, True, False, False]
        """
        value = self.number(text)
        if value is None or np.isnan(value):
            return False
        if self.example in DATES:
            return self.text(value) == text
        prefix, thousands, decimal, suffix = self._parts
        body = _body(abs(value), self._places(text), thousands, decimal)
        return text == f"{'-' if value < 0 else ''}{prefix}{body}{suffix}"

    def _places(self, text: str) -> int:
        """Returns how many decimals a text has."""
        fraction = re.search(rf"{re.escape(self._parts[2])}(\d+)\D*$", text)
        return len(fraction[1]) if fraction else 0

    def writes_all(self, texts: Sequence[str]) -> bool:
        """Returns whether texts are written in this notation; 1.000 beside 1,000 is in none."""
        if self.example in DATES or not all(map(self.writes, texts)):
            return all(map(self.writes, texts))
        places, mark = set(map(self._places, texts)), self._parts[1]
        return not (len(places) > 1 and 3 in places and mark and any(mark in t for t in texts))


@cache
def notation(example: str) -> Notation:
    """Returns the notation of an example, made once."""
    return Notation(example)


def guess(texts: Sequence[str]) -> Notation | None:
    """Returns the notation in which every one of some texts is written; None where there is none.

    A unit is one only if every text has it: `5 more` among plain numbers is a category. Words for
    missing values are passed over. Plain numbers have the notation `1234.56`; those with
    leading zeros are codes, and none.

    Examples:
        >>> guess(["€1,200", "€80", "?"]).example, guess(["15%", "2.5%"]).example
        ('€1,234.56', '1234.56%')
        >>> guess(["2021-03-01", "2021-03-31"]).example, guess(["03.04.2021"]).example
        ('2024-12-31', '31.12.2024')
        >>> guess(["A11", "A12"]), guess(["00123", "12345"]), guess(["03/04/2021", "01/02/2021"])
        (None, None, None)
    """
    present = _present(texts)
    reading = _reading(present)
    if {"31/12/2024", "12/31/2024"} <= {n.example for n in reading}:  # no day over 12
        return None
    # €1,200 beside €1500 is a thousand written in two ways, not €1.2.
    same = (n for n in reading if all(n.number(t) == reading[0].number(t) for t in present))
    return next((n for n in same if n.writes_all(present)), None)


def likely(texts: Sequence[str]) -> Notation | None:
    """Returns a notation that reads every text, however each is written; None where there is none.

    Such a notation has to be declared: 12k beside 900, (79) beside 80, a date that may begin with
    its day or its month.

    Examples:
        >>> likely(["900", "12k", "1.2m"]).example, likely(["80", "(79)"]).example
        ('1.23456k', '(1,234.56)')
        >>> likely(["£900", "(£1.2m)"]).example, likely(["03/04/2021"]).example
        ('(£1.23456k)', '31/12/2024')
        >>> likely(["2", "3", "5more"]), likely(["A11", "B7"]), likely(["007", "12k"])
        (None, None, None)
    """
    present = _present(texts)
    reading = [n for n in _reading(present) if n.example in DATES or _is_known(n)]
    if not reading and not any(re.match(r"0\d", text) for text in present):  # else they are codes
        money = next((m[0] for m in map(MONEY.search, present) if m), "")
        examples = (f"{money}{SCALED}k", f"({money}1,234.56)", f"({money}{SCALED}k)")
        reading = _that_read(present, map(notation, examples))
    return next(iter(reading), None)


def _is_known(way: Notation) -> bool:
    """Returns whether a notation has money, a known unit or nothing around its numbers."""
    unit = way._parts[-1].strip()
    return not unit or _is_money(unit) or UNITS.fullmatch(unit) is not None


def _present(texts: Sequence[str]) -> list[str]:
    return [text for text in map(str.strip, texts) if not _says_missing(text)]


def _reading(present: Sequence[str]) -> list[Notation]:
    """Returns the notations that read every one of some texts, the likelier first."""
    candidates = [notation(example) for example in DATES]
    matches = [NUMBER.fullmatch(text) for text in present]
    some = [m for m in matches if m and (m["prefix"] or m["suffix"])]
    affixed = next(iter(some or matches), None)
    if affixed and _is_affix(affixed["prefix"].strip(), _plain_spaces(affixed["suffix"])):
        bodies = [match["body"] for match in matches if match is not None]
        bodies = [_body(1234.56, 2, *marks) for marks in _likely_marks(affixed, bodies)]
        candidates += [notation(affixed["prefix"] + body + affixed["suffix"]) for body in bodies]
    return _that_read(present, candidates)


def _that_read(present: Sequence[str], ways: Iterable[Notation]) -> list[Notation]:
    return [n for n in ways if present and all(n.number(text) is not None for text in present)]


def _likely_marks(affixed: re.Match[str], bodies: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Returns the marks that numbers may have, the likelier first; none for codes."""
    if any(re.match(r"0\d", body) for body in bodies):
        return ()
    if not (_is_money(affixed["prefix"]) or _is_money(affixed["suffix"])):
        return MARKS
    # €1.234 is a thousand: money has two decimals.
    if all(re.fullmatch(r"\d{1,3}(\.\d{3})?", body) for body in bodies):
        return MARKS[3:4] if any("." in body for body in bodies) else MARKS[1:]
    return MARKS[1:] if all(body.isdigit() for body in bodies) else MARKS


def plain_number(text: str) -> float | None:
    """Returns the number that a text spells plainly; NaN for blank text, None for others."""
    if not text.strip():
        return np.nan
    try:
        number = float(text)
    except ValueError:
        return None
    return None if np.isnan(number) else number


# ------------------------------------------------------------------------------------------------
# Parts


def _plain_spaces(text: str) -> str:
    return re.sub(f"[{SPACES}]", " ", text)


def _says_missing(text: str) -> bool:
    return not text or text.lower() in MISSING_WORDS


def _is_affix(prefix: str, suffix: str) -> bool:
    """Returns whether the text around numbers is money or a unit; in A11 and 12A it is a code.

    Right after a number a unit is a known one or a word in lower case; after a space it may be any.
    """
    unit = suffix.strip()
    known = not unit or UNITS.fullmatch(unit) or _is_money(unit) or re.fullmatch("[a-z]{3,}", unit)
    spaced = suffix.startswith(" ") and re.fullmatch(r"[^\W_]{3,}|[^\s<>=+_-]{1,4}", unit)
    return (not prefix or _is_money(prefix)) and bool(known or spaced)


def _is_money(affix: str) -> bool:
    return MONEY.fullmatch(affix.strip()) is not None


@cache
def _shape(thousands: str, decimal: str) -> re.Pattern[str]:
    groups = rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})*" if thousands else r"\d+"
    return re.compile(rf"{groups}(?:{re.escape(decimal)}\d+)?|\d+(?:{re.escape(decimal)}\d+)?")


def _value(body: str, thousands: str, decimal: str) -> float | None:
    if _shape(thousands, decimal).fullmatch(body) is None:
        return None
    digits = body.replace(thousands, "") if thousands else body
    return float(digits.replace(decimal, "."))


def _body(value: float, decimals: int, thousands: str, decimal: str) -> str:
    plain = f"{value:,.{decimals}f}"
    return plain.translate({ord(","): thousands, ord("."): decimal})


def _days(text: str, form: str) -> float | None:
    try:
        moment = datetime.strptime(text, form.replace("%-", "%"))  # noqa: DTZ007
        return (moment - EPOCH) / timedelta(days=1)
    except ValueError:
        return None
