"""Cells as variables of a program: numbers on lattices, choices among categories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, gcd, isnan, lcm

from lapace.arrays import Floats
from lapace.constraints.nodes import MISSING, UNSEEN
from lapace.schema import Feature

__all__ = ["Choice", "Number", "divisor", "ends_of", "is_odd", "nearest_to", "slot_of"]


LARGEST = 1e9  # coefficients beyond this are not trusted to be whole


@dataclass
class Number:
    """A cell's value as a sum over variables, and when it is not known."""

    terms: dict[int, float]
    constant: float
    low: float
    high: float
    step: float  # its values lie on constant + step * whole numbers; 0 for none
    unknown: tuple[int, ...] = ()  # binaries: it is missing where one of them is 1


@dataclass
class Choice:
    """A column of categories: the binary of each slot that can be chosen."""

    options: dict[int, int]
    levels: int

    def number(self, worth: Floats) -> Number:
        """What the chosen level counts."""
        counted = {slot: var for slot, var in self.options.items() if slot < len(worth)}
        terms = {var: float(worth[s]) for s, var in counted.items() if not isnan(worth[s])}
        unknown = tuple(var for var in self.options.values() if var not in terms)
        values = [*terms.values(), *([0.0] if unknown or not terms else [])]
        return Number(terms, 0.0, min(values), max(values), divisor(values) or 1.0, unknown)


def slot_of(code: float, levels: int) -> int:
    """Where a code stands in a `Table` of so many levels."""
    if isnan(code):
        return levels + MISSING
    return int(code) if code < levels else levels + UNSEEN


def ends_of(feature: Feature) -> tuple[float, float]:
    """The least and greatest values an answer may have, on the lattice."""
    step = feature.resolution
    if not step:
        return feature.lower, feature.upper
    low, high = ceil(feature.lower / step - 1e-9), floor(feature.upper / step + 1e-9)
    if low > high:  # no lattice point inside the bounds: they are all there is
        return feature.lower, feature.lower
    return low * step, high * step


def nearest_to(feature: Feature, value: float, low: float, high: float) -> float:
    """The value between the ends, on the lattice, that is nearest."""
    value = min(max(value, low), high)
    if not feature.resolution:
        return value
    return low + round((value - low) / feature.resolution) * feature.resolution


def is_odd(feature: Feature, value: float, low: float, high: float) -> bool:
    """Whether a value could not be proposed: out of bounds, or off the lattice."""
    near = nearest_to(feature, value, low, high)
    return abs(near - value) > 1e-6 * feature.step


@lru_cache(maxsize=4096)
def _fraction(value: float) -> Fraction:
    """A decimal number as written, 0.1 as one tenth."""
    return Fraction(repr(abs(value)))


def divisor(values: Iterable[float]) -> float:
    """The greatest number all of these are multiples of; 0 where it is too small to trust."""
    fractions = [_fraction(float(f"{v:.12g}")) for v in values if v]
    if not fractions:
        return 0.0
    below = lcm(*(f.denominator for f in fractions))
    top = gcd(*(int(f * below) for f in fractions))
    found = Fraction(top, below)
    return float(found) if max(fractions) <= found * int(LARGEST) else 0.0
