"""Notations: the ways a column of text writes numbers and dates; and words that have an order.

A notation is named by an example of itself: `€1,234.56`, `1.234,56 €`, `15%`, `36 months`,
`2024-12-31`, `31/12/2024`. Dates are numbers, in days since 1970-01-01.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property

import numpy as np

from lapace.errors import InputError

__all__ = [
    "DATES",
    "ISO_DATE",
    "MISSING_WORDS",
    "Notation",
    "guess",
    "notation",
    "order_of",
    "plain_number",
]

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
}
# Marks between thousands and before decimals, the likelier first.
MARKS = (("", "."), (",", "."), ("", ","), (".", ","), (" ", ","), (" ", "."), ("'", "."))
SPACES = "\u00a0\u202f\u2009"  # spaces that other programs put between thousands
_MONEY = (
    "AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF INR JPY KRW MXN NOK NZD PLN SEK SGD TRY USD ZAR "
    "Rs kr zł Fr"
)
_MEASURES = (
    "% ‰ ° °C °F kg g mg t lb lbs oz m cm mm km mi ft in m² m2 ha sqft l ml s ms min h hr hrs d "
    "W kW MW Wh kWh hp bhp PS V A Hz MHz GHz B kB MB GB TB bar psi cc CC kmpl mpg kmph km/h mph"
)
CURRENCIES, UNITS = frozenset(_MONEY.split()), frozenset(_MEASURES.split())
MISSING_WORDS = frozenset(("?", "-", "--", ".", "n/a", "na", "nan", "null", "none", "unknown"))
NUMBER = re.compile(
    r"(?P<sign>[-+−]?)(?P<prefix>[^\d\s.,'+−-]{0,4}\s?)(?P<inner>[-−]?)"
    r"(?P<body>\d(?:[\d.,' ]*\d)?)(?P<suffix>\s?[^\d]{0,20})"
)
BIN = re.compile(r"\s*([<≤>≥]?)=?\s*(-?\d+(?:\.\d+)?)\s*(?:[-–+]|to\b|$)")  # 18-25, <18, 41+
# Words that have an order, least first; a column may hold some of them.
SCALES = tuple(
    tuple(words.split("|"))
    for words in (
        "none|very low|low|medium low|medium|mid|moderate|medium high|high|very high|critical",
        "tiny|small|medium|large|extra large|huge",
        "xxs|xs|s|m|l|xl|xxl|xxxl",
        "never|rarely|seldom|sometimes|often|usually|always",
        "very poor|poor|bad|fair|average|typical|ok|good|very good|excellent|outstanding",
        "very bad|bad|ok|good|very good|excellent",
        "strongly disagree|disagree|neutral|agree|strongly agree",
        "very dissatisfied|dissatisfied|neutral|satisfied|very satisfied",
        "bronze|silver|gold|platinum|diamond",
        "little|moderate|quite rich|rich",
        "short|medium|long",
        "low|middle|high",
        "child|teenager|young|adult|middle-aged|senior|old",
        "junior|intermediate|senior|lead|principal",
        "no|basic|primary|secondary|high school|college|bachelor|master|doctorate|phd",
        "first|second|third|fourth|fifth",
        "weak|moderate|strong|very strong",
    )
)
MINUS = ("-", "−")
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  dates of a table have no time zone


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
    """

    example: str

    def __post_init__(self) -> None:
        if self.example in DATES:
            return
        parts = _taken_apart(self.example)
        if parts is None or parts[1] not in {_body(1234.56, 2, *m) for m in MARKS} | {"1234"}:
            raise InputError(
                f"'{self.example}' is no notation. Write 1234.56 in it, such as '€1,234.56', or "
                f"the last day of 2024, such as '{ISO_DATE}' or '31/12/2024'."
            )

    @property
    def is_date(self) -> bool:
        """Whether it writes dates."""
        return self.example in DATES

    @cached_property
    def _parts(self) -> tuple[str, str, str, str]:
        """Prefix, mark between thousands, mark before decimals, suffix."""
        prefix, body, suffix = _taken_apart(self.example) or ("", "", "")
        marks = next((m for m in MARKS if _body(1234.56, 2, *m) == body), ("", "."))
        return prefix, *marks, suffix

    def number(self, text: str) -> float | None:
        """Returns the number a text spells; NaN where it says there is none, None for any other."""
        text = _plain_spaces(text)
        if not text or text.lower() in MISSING_WORDS:
            return np.nan
        if self.is_date:
            return _days(text, DATES[self.example])
        match, (prefix, thousands, decimal, suffix) = NUMBER.fullmatch(text), self._parts
        if match is None or match["prefix"].strip() not in ("", prefix.strip()):
            return None
        if match["suffix"].strip() not in ("", suffix.strip()):
            return None
        value = _value(match["body"], thousands, decimal)
        negative = match["sign"] in MINUS or match["inner"] in MINUS
        return -value if value is not None and negative else value

    def text(self, value: float, decimals: int = 0) -> str:
        """Returns a number as this notation writes it."""
        if self.is_date:
            return _date(value).strftime(DATES[self.example])
        prefix, thousands, decimal, suffix = self._parts
        if decimals == 1 and (_is_currency(prefix.strip()) or _is_currency(suffix.strip())):
            decimals = 2
        sign = "-" if value < 0 else ""
        return f"{sign}{prefix}{_body(abs(value), decimals, thousands, decimal)}{suffix}"


@cache
def notation(example: str) -> Notation:
    """Returns the notation of an example, made once."""
    return Notation(example)


def guess(texts: Sequence[str]) -> Notation | None:
    """Returns the notation that reads every one of some texts; None where there is none.

    Words for missing values are passed over. Plain numbers have the notation `1234.56`; those with
    leading zeros are codes, and none.

    Examples:
        >>> guess(["€1,200", "€80", "?"]).example, guess(["15%", "2.5%"]).example
        ('€1,234.56', '1234.56%')
        >>> guess(["2021-03-01", "2021-03-31"]).example, guess(["03.04.2021"]).example
        ('2024-12-31', '31.12.2024')
        >>> guess(["A11", "A12"]), guess(["00123", "12345"]), guess(["03/04/2021", "01/02/2021"])
        (None, None, None)
    """
    plain = [_plain_spaces(t) for t in texts]
    present = [t for t in plain if t and t.lower() not in MISSING_WORDS]
    return (_guess_date(present) or _guess_number(present)) if present else None


def _guess_date(texts: Sequence[str]) -> Notation | None:
    if not all(re.search(r"\d.*\D.*\d", text) and len(text) >= 8 for text in texts[:20]):
        return None
    read = [
        example
        for example, form in DATES.items()
        if all(_days(text, form) is not None for text in texts)
    ]
    ambiguous = {"31/12/2024", "12/31/2024"} <= set(read)  # no day over 12
    return Notation(read[0]) if read and not ambiguous else None


def _guess_number(texts: Sequence[str]) -> Notation | None:
    parts = [part for part in map(_taken_apart, texts) if part is not None]
    affixes = {(a.strip(), b.strip()) for a, _, b in parts} - {("", "")}
    alike = len(affixes) <= 1 and all(_is_affix(*affix) for affix in affixes)
    if len(parts) < len(texts) or not alike:
        return None
    prefix, suffix = next(((a, b) for a, _, b in parts if a.strip() or b.strip()), ("", ""))
    bodies = [body for _, body, _ in parts]
    if any(re.match(r"0\d", body) for body in bodies):
        return None
    money = _is_currency(prefix.strip()) or _is_currency(suffix.strip())
    # €1.234 is a thousand: money has two decimals.
    thousandths = money and all(re.fullmatch(r"\d{1,3}|\d{1,3}\.\d{3}", b) for b in bodies)
    points = thousandths and any("." in body for body in bodies)
    marks = [mark for mark in MARKS if mark[0] == "." or not points]
    for thousands, decimal in marks:
        if all(_value(body, thousands, decimal) is not None for body in bodies):
            if money and not thousands and all(b.isdigit() for b in bodies):
                thousands = ","  # noqa: PLW2901  as such amounts are written where they are large
            return Notation(f"{prefix}{_body(1234.56, 2, thousands, decimal)}{suffix}")
    return None


def plain_number(text: str) -> float | None:
    """Returns the number that a text spells plainly; NaN for blank text, None for others."""
    if not text.strip():
        return np.nan
    try:
        number = float(text)
    except ValueError:
        return None
    return None if np.isnan(number) else number


def order_of(texts: Sequence[str]) -> list[str] | None:
    """Returns levels in the order of a scale of words, or of the numbers they begin with."""
    if len(texts) < 3:
        return None
    plain = {text: re.sub(r"[_\s-]+", " ", text).strip().lower() for text in texts}
    for scale in SCALES:
        if set(plain.values()) <= set(scale) and len(set(plain.values())) == len(texts):
            return sorted(texts, key=lambda text: scale.index(plain[text]))
    # Bins: below the first and above the last bound there is a sign.
    bins = {text: BIN.match(text) for text in texts}
    bounds = {t: (float(m[2]), 1 if m[1] not in ("<", "≤") else -1) for t, m in bins.items() if m}
    return sorted(texts, key=bounds.get) if len({*bounds.values()}) == len(texts) else None  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------
# Parts


def _plain_spaces(text: str) -> str:
    return re.sub(f"[{SPACES}]", " ", text).strip()


def _taken_apart(text: str) -> tuple[str, str, str] | None:
    """Returns prefix, digits with their marks, and suffix; None where a text is no number."""
    match = NUMBER.fullmatch(text)
    return None if match is None else (match["prefix"], match["body"], match["suffix"])


def _is_affix(prefix: str, suffix: str) -> bool:
    """Returns whether the text around numbers is a unit; A11 and 2nd are codes and words."""
    before = not prefix or _is_currency(prefix)
    word = re.fullmatch(r"[^\W\d_]{3,}[^\W\d_ ]*", suffix)  # 36 months
    return before and (not suffix or suffix in UNITS or _is_currency(suffix) or bool(word))


def _is_currency(text: str) -> bool:
    return text in CURRENCIES or any(unicodedata.category(c) == "Sc" for c in text)


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
        return (datetime.strptime(text, form) - EPOCH) / timedelta(days=1)  # noqa: DTZ007
    except ValueError:
        return None


def _date(days: float) -> datetime:
    seconds = round(days * 86400.0)
    return EPOCH + timedelta(seconds=max(-62135596800, min(seconds, 253402300799)))
