"""No leak: random cases through projection, checked by a slow checker that shares no code with it.

The checker reads the parsed values and rows of plain Python values (labels, not codes; exact
fractions, not floats) and follows the words of docs/reference/constraints.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

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
    Transition,
    parse_all,
)
from lapace.constraints.program import solve
from lapace.errors import InputError
from lapace.schema import Feature, Schema
from lapace.table import Template

# ------------------------------------------------------------------------------------------------
# The slow checker


class Slow:
    """Checks one row for one instance, from the words of the documentation."""

    def __init__(self, schema, cells, instance):
        self.schema = schema
        self.row = self.labels(cells)
        self.instance = self.labels(instance)

    def labels(self, cells):
        out = {}
        for feature, cell in zip(self.schema.features, cells, strict=True):
            if np.isnan(cell):
                out[feature.name] = None
            elif feature.kind == "continuous":
                out[feature.name] = Fraction(repr(float(cell)))
            else:
                out[feature.name] = feature.levels[int(cell)]
        return out

    def kind(self, name):
        return self.schema[name].kind

    def satisfies(self, constraint):
        self.named, self.compared = set(), set()
        verdict = self.truth(constraint)
        if any(self.row[n] is None and self.instance[n] is not None for n in self.named):
            return False
        if any(self.row[n] is not None and self.instance[n] is None for n in self.compared):
            return False
        return verdict is not False

    def truth(self, c):
        """True, False or None for unknown."""
        if isinstance(c, Shorthand):
            relation = {"fixed": "==", "increasing": ">=", "decreasing": "<="}[c.word]
            return self.both([self.against_original(name, relation) for name in c.features])
        if isinstance(c, Comparison):
            pairs = zip(c.sides, c.relations, c.sides[1:], strict=False)
            return self.both([self.pair(*pair) for pair in pairs])
        if isinstance(c, Membership):
            self.named.add(c.feature)
            found = self.member(c)
            return (None if found is None else not found) if c.negated else found
        if isinstance(c, Changes):
            self.named.add(c.feature)
            return self.changed(c.feature)
        if isinstance(c, Transition):
            self.named.add(c.feature)
            before, after = self.instance[c.feature], self.row[c.feature]
            if before is None or after is None or not self.changed(c.feature):
                return True
            hit = any(self.is_value(c.feature, before, v) for v in c.before)
            return not (hit and any(self.is_value(c.feature, after, v) for v in c.after))
        if isinstance(c, ChangeLimit):
            count = sum(self.changed(name) for name in self.schema.names)
            return count <= c.most
        if isinstance(c, Conditional):
            when = self.both([self.truth(part) for part in c.when])
            then = self.both([self.truth(part) for part in c.then])
            return not (when is True and then is False)
        raise AssertionError(c)

    def both(self, truths):
        if False in truths:
            return False
        return None if None in truths else True

    def relate(self, a, relation, b):
        return {
            "==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b,
        }[relation]  # fmt: skip

    def changed(self, name):
        a, b = self.row[name], self.instance[name]
        if a is None or b is None:
            return (a is None) != (b is None)
        if self.kind(name) == "continuous":
            return abs(a - b) > Fraction(repr(self.schema[name].step)) / 2
        return a != b

    def is_value(self, name, label, value):
        """Whether a label is the one a literal names."""
        if self.kind(name) == "continuous":
            apart = abs(label - Fraction(repr(value)))
            loose = not self.schema[name].resolution and self.row[name] is label
            return apart <= (1.01e-9 * self.schema[name].span if loose else 0)
        if isinstance(value, str):
            return str(label) == value or (isinstance(label, bool) and str(label).lower() == value)
        try:
            return float(label) == value
        except ValueError:
            return False

    def member(self, c):
        label, own = self.row[c.feature], self.instance[c.feature]
        if c.original and label is None and own is None:
            return True
        if label is None:
            return None
        if c.original and own is not None and not self.changed(c.feature):
            return True
        return any(self.is_value(c.feature, label, v) for v in c.values)

    # -- comparing --------------------------------------------------------------------------------

    def numbered(self, name):
        """Whether a column's levels count as numbers."""
        feature = self.schema[name]
        if feature.kind == "continuous":
            return True
        if any(isinstance(level, str) for level in feature.levels):
            return False
        rising = list(feature.categories) == sorted(set(feature.categories))
        return feature.kind != "ordinal" or rising

    def category_word(self, side):
        word = side.word if isinstance(side, Linear) else None
        known = word in self.schema.names if word else False
        return word if known and self.kind(word) != "continuous" else None

    def pair(self, left, relation, right):
        mirror = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
        for a, b, way in ((left, right, relation), (right, left, mirror[relation])):
            name = self.category_word(a)
            if name is None:
                continue
            if isinstance(b, Category):
                return self.against(name, way, b.name)
            if isinstance(b, Linear) and not b.terms:
                return self.against(name, way, b.constant)
            if isinstance(b, Linear) and b.word:
                levels = self.schema[name].levels
                if any(self.is_value(name, level, b.word) for level in levels):
                    return self.against(name, way, b.word)
            if isinstance(b, Linear) and len(b.terms) == 1 and b.terms[0].original:
                term = b.terms[0]
                if term.feature == name and term.coefficient == 1 and b.constant == 0:
                    return self.against_original(name, way)
        return self.sums(left, relation, right)

    def place(self, name, label):
        """Where a label stands in its column's order."""
        if self.numbered(name):
            return Fraction(repr(float(label)))
        categories = self.schema[name].categories
        return categories.index(label) if label in categories else None

    def against(self, name, relation, value):
        self.named.add(name)
        label = self.row[name]
        if label is None:
            return None
        same = self.is_value(name, label, value)
        if relation in ("==", "!="):
            return same if relation == "==" else not same
        named = [lv for lv in self.schema[name].levels if self.is_value(name, lv, value)]
        bar = self.place(name, named[0]) if named else Fraction(repr(value))
        here = self.place(name, label)
        return None if here is None or bar is None else self.relate(here, relation, bar)

    def against_original(self, name, relation):
        self.named.add(name)
        label, own = self.row[name], self.instance[name]
        if relation == "==":
            return label == own
        if relation == "!=":
            return self.changed(name)
        self.compared.add(name)
        if self.kind(name) == "continuous":
            return self.line({name: 1}, {name: -1}, Fraction(0), relation)
        if label is None or own is None:
            return None
        here, bar = self.place(name, label), self.place(name, own)
        if here is None or bar is None:  # an unseen level is comparable with itself alone
            return label == own and relation in ("<=", ">=")
        return self.relate(here, relation, bar)

    def sums(self, left, relation, right):
        cells, own, constant = self.difference(left, right)
        if relation in ("==", "!=") and len(cells) == 1 and not constant and set(own) == set(cells):
            ((name, weight),) = cells.items()
            if own[name] == -weight and self.kind(name) == "continuous":
                return self.against_original(name, relation)
        return self.line(cells, own, constant, relation)

    def difference(self, left, right):
        """left - right: weights of the row, of the instance, and a constant."""
        cells, own = Counter(), Counter()
        for side, by in ((left, 1), (right, -1)):
            for term in side.terms:
                place = own if term.original else cells
                place[term.feature] += by * Fraction(repr(term.coefficient))
        constant = Fraction(repr(left.constant)) - Fraction(repr(right.constant))
        drop = lambda counter: {k: v for k, v in counter.items() if v}  # noqa: E731
        return drop(cells), drop(own), constant

    def line(self, cells, own, constant, relation):
        self.named |= set(cells) | set(own)
        if relation != "!=":
            self.compared |= set(cells) & set(own)
        total = constant
        for weights, values in ((cells, self.row), (own, self.instance)):
            for name, weight in weights.items():
                if values[name] is None:
                    return None
                number = values[name]
                if self.kind(name) != "continuous":
                    number = Fraction(repr(float(number)))
                total += weight * number
        loose = [n for n in cells if self.kind(n) == "continuous" and not self.schema[n].resolution]
        if not loose:
            return self.relate(total, relation, 0)
        noise = float(sum(abs(cells[n]) * Fraction(self.schema[n].span) for n in loose)) * 1.01e-9
        margin = max(float(abs(cells[n])) * self.schema[n].step for n in loose) - noise
        return {
            "<=": total <= noise, ">=": total >= -noise, "==": abs(total) <= noise,
            "<": total <= -margin, ">": total >= margin, "!=": abs(total) >= margin,
        }[relation]  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Random cases

KINDS = ["whole", "decimal", "money", "free", "ordinal", "grades", "flag", "bit", "words"]
WORDS = ["red", "green", "blue", "dark grey", "sand-coloured", "in"]
DEGREES = ["none", "school", "bachelor", "master", "doctor"]


def template(names):
    return Template("records", tuple(names), ("",) * len(names))


def random_schema(rng, small=False):
    features = []
    for i in range(int(rng.integers(2, 5 if small else 8))):
        kind = rng.choice(KINDS)
        name = f"{kind} {i}" if rng.random() < 0.2 else f"{kind}_{i}"
        if small and kind in ("free", "money"):
            kind = "whole"
        features.append(random_feature(name, kind, rng, small))
    return Schema(tuple(features), template([f.name for f in features]))


def random_feature(name, kind, rng, small):
    steps = int(rng.integers(*((2, 4) if small else (5, 40))))
    if kind == "decimal":
        step = float(rng.choice([0.1, 0.25, 0.5] if small else [0.01, 0.1, 0.25, 5.0]))
        low = round(float(rng.integers(0, 9)) * step, 2)
        return _continuous(name, low, round(low + steps * step, 2), step, rng)
    if kind == "money":
        high = float(rng.choice([2e3, 9e4, 1e6]))
        return _continuous(name, 0.0, high, float(rng.choice([0.01, 1.0, 50.0])), rng)
    if kind == "words":
        words = WORDS[: int(rng.integers(3, 4 if small else 7))]
        extra = ("violet",) if rng.random() < 0.3 else ()
        return Feature(name, "categorical", categories=tuple(words), extra=extra)
    low = int(rng.integers(-5, 20))
    return {
        "whole": lambda: _continuous(name, low, low + steps, 1.0, rng),
        "free": lambda: _continuous(name, low * 1.37, low * 1.37 + 7.5, 0.0, rng),
        "ordinal": lambda: Feature(name, "ordinal", categories=DEGREES[: int(rng.integers(3, 6))]),
        "grades": lambda: Feature(
            name, "ordinal", categories=[1, 2, 3, 5][: int(rng.integers(3, 5))]
        ),
        "flag": lambda: Feature(name, "binary", categories=["no", "yes"]),
        "bit": lambda: Feature(name, "binary", categories=[0, 1]),
    }[str(kind)]()


def _continuous(name, low, high, step, rng):
    whole = step in (1.0, 5.0)
    return Feature(name, "continuous", whole, float(low), float(high), step,
                   missing=bool(rng.random() < 0.2))  # fmt: skip


def on_lattice(feature, rng):
    if feature.kind != "continuous":
        return float(rng.integers(len(feature.categories)))
    if not feature.resolution:
        return float(rng.uniform(feature.lower, feature.upper))
    steps = round((feature.upper - feature.lower) / feature.resolution)
    return round(feature.lower + feature.resolution * int(rng.integers(steps + 1)), 2)


def random_instance(schema, rng):
    cells = np.array([on_lattice(f, rng) for f in schema.features])
    for i, feature in enumerate(schema.features):
        if rng.random() < 0.05:
            cells[i] = np.nan
        elif rng.random() < 0.06:
            if feature.kind == "continuous":
                off = rng.choice([feature.upper + 3, feature.lower - 2.5, cells[i] + 0.313])
                cells[i] = round(float(off), 3)
            elif feature.extra:
                cells[i] = len(feature.categories)
    return cells


def random_point(schema, instance, rng):
    """What a decoder might propose for an instance: some cells original, none lost."""
    cells = np.array([on_lattice(f, rng) for f in schema.features])
    stay = rng.random(len(cells)) < rng.random()
    stay |= np.isnan(instance) & (rng.random(len(cells)) < 0.7)
    return np.where(stay, instance, cells)


def quoted(name):
    return f"`{name}`" if not name.replace("_", "a").isalnum() else name


def literal(feature, rng):
    level = feature.categories[int(rng.integers(len(feature.categories)))]
    if not isinstance(level, str):
        return str(level)
    plain = level.isalnum() and level != "in" and rng.random() < 0.7
    return level if plain else f'"{level}"'


def number(feature, rng):
    return repr(on_lattice(feature, rng)) if rng.random() < 0.9 else f"{feature.lower + 1.13:.2f}"


def random_simple(schema, rng):
    """A comparison, membership or change: what may stand in a conditional."""
    feature = schema.features[int(rng.integers(len(schema.features)))]
    relation = str(
        rng.choice(["<=", "<", ">=", ">", "==", "!="], p=[0.25, 0.15, 0.25, 0.15, 0.1, 0.1])
    )
    if rng.random() < 0.1:
        return f"{quoted(feature.name)} changes"
    if feature.kind != "continuous":
        return about_categories(schema, feature, relation, rng)
    return about_numbers(schema, feature, relation, rng)


def about_categories(schema, feature, relation, rng):
    name, roll = quoted(feature.name), rng.random()
    order = feature.kind == "ordinal" or feature.categories == (0, 1)
    relation = relation if order or relation == "!=" else "=="
    if roll < 0.25:
        return f"{name} {relation} original"
    if roll < 0.65:
        values = {literal(feature, rng) for _ in range(int(rng.integers(1, 4)))}
        if rng.random() < 0.2:
            values.add("original")
        return f"{name} {'in' if rng.random() < 0.8 else 'not in'} {{{', '.join(sorted(values))}}}"
    numbers = not isinstance(feature.categories[0], str)
    alike = [f for f in schema.features if f.categories == feature.categories and f != feature]
    if alike and numbers and roll < 0.8:
        return f"{name} {relation} {quoted(alike[0].name)}"
    return f"{name} {relation} {literal(feature, rng)}"


def about_numbers(schema, feature, relation, rng):
    name = quoted(feature.name)
    low, high = sorted(on_lattice(feature, rng) for _ in range(2))
    values = ", ".join(number(feature, rng) for _ in range(3))
    own = " original," if rng.random() < 0.3 else ""
    part, more = rng.choice([0.25, 0.5]), rng.integers(1, 9)
    share, plus = rng.choice([0.5, 0.9, 1.1]), rng.integers(-3, 4)
    forms = [
        f"{name} {relation} original",
        f"{name} {relation} {number(feature, rng)}",
        f"{low!r} <= {name} <= {high!r}",
        f"{1 - part}*original - {more} <= {name} <= {1 + part}*original + {more}",
        f"{name} {rng.choice(['in', 'not in'])} {{{own} {values}}}",
        f"{name} {relation} {share}*original + {plus}",
        random_linear(schema, relation, rng),
        random_linear(schema, relation, rng),
    ]
    return forms[int(rng.integers(len(forms)))]


def random_linear(schema, relation, rng):
    numbers = [f for f in schema.features if f.kind == "continuous"]
    bits = [f for f in schema.features if f.categories and not isinstance(f.categories[0], str)]
    parts, near = [], 0.0
    count = int(rng.integers(1, min(3, len(numbers)) + 1))
    for i in rng.choice(len(numbers), count, replace=False):
        weight = float(rng.choice([1, 1, -1, 2, -0.4, 0.25]))
        parts.append(f"{weight}*{quoted(numbers[i].name)}")
        near += weight * on_lattice(numbers[i], rng)
    if bits and rng.random() < 0.2:
        parts.append(f"2*{quoted(bits[0].name)}")
        near += 2
    if rng.random() < 0.2:
        pick = numbers[int(rng.integers(len(numbers)))]
        parts.append(f"0.5*original({quoted(pick.name)})")
        near += 0.5 * on_lattice(pick, rng)
    # An equality over cents and large amounts is a number puzzle, not a constraint.
    puzzle = relation in ("==", "!=") and (rng.random() < 0.7 or any("money" in p for p in parts))
    relation = "<=" if puzzle else relation
    return f"{' + '.join(parts)} {relation} {round(near, int(rng.integers(3)))!r}"


def random_constraint(schema, rng):
    roll = rng.random()
    categories = [f for f in schema.features if f.kind != "continuous"]
    if roll < 0.1:
        return f"changes <= {rng.integers(1, 6)}"
    if roll < 0.2:
        picks = rng.choice(len(schema.features), int(rng.integers(1, 3)), replace=False)
        return "fixed " + ", ".join(quoted(schema.names[i]) for i in picks)
    if roll < 0.25:
        ordered = [f for f in schema.features if f.numeric]
        if ordered:
            pick = ordered[int(rng.integers(len(ordered)))]
            return f"{rng.choice(['increasing', 'decreasing'])} {quoted(pick.name)}"
    if roll < 0.35 and categories:
        pick = categories[int(rng.integers(len(categories)))]
        return f"not {quoted(pick.name)}: {literal(pick, rng)} -> {literal(pick, rng)}"
    if roll < 0.5:
        when = " and ".join(random_simple(schema, rng) for _ in range(1 + (rng.random() < 0.2)))
        then = " and ".join(random_simple(schema, rng) for _ in range(1 + (rng.random() < 0.2)))
        return f"if {when} then {then}"
    return random_simple(schema, rng)


def random_texts(schema, rng, most=8, also=()):
    """Up to `most` constraints that some row satisfies, and others `also`."""
    while True:
        texts = [random_constraint(schema, rng) for _ in range(int(rng.integers(1, most + 1)))]
        try:
            System.of([*texts, *also], schema)
        except InputError as error:
            if "can never hold" not in str(error):
                raise
        else:
            return texts


def random_system(schema, rng, most=8):
    return System.of(random_texts(schema, rng, most), schema, check=False)


# ------------------------------------------------------------------------------------------------
# Looking for leaks


def every_row(schema, instance):
    """All rows a tiny schema allows for an instance, original cells included."""
    choices = []
    for feature, own in zip(schema.features, instance, strict=True):
        if feature.kind == "continuous":
            steps = round((feature.upper - feature.lower) / feature.resolution)
            values = [round(feature.lower + feature.resolution * k, 4) for k in range(steps + 1)]
        else:
            values = [float(k) for k in range(len(feature.categories))]
        if np.isnan(own) or own not in values:
            values.append(own)
        choices.append(values)
    return np.array(list(itertools.product(*choices)))


def violated(system, row, instance):
    """The constraints that a row violates by the slow checker."""
    slow = Slow(system.schema, row, instance)
    return [str(c) for c in system.constraints if not slow.satisfies(c)]


def row_problems(system, row, instance, feasible):
    """What is wrong with a row of which it is said whether it is feasible, in words."""
    broken = violated(system, row, instance)
    if feasible == bool(broken):
        yield f"feasible={feasible}, violated={broken}: {row} for {instance}"
    for feature, cell, own in zip(system.schema.features, row, instance, strict=True):
        if problem := _cell_problem(feature, cell, own):
            yield f"{feature.name}: {problem} ({cell}, own {own})"


def problems(system, before, after, instances):
    """What is wrong with projected rows, in words."""
    found = []
    for point, row, instance, ok in zip(
        before, after.cells, instances, after.feasible, strict=True
    ):
        if point.tobytes() != row.tobytes() and not violated(system, point, instance):
            found.append(f"a feasible row was touched: {point} -> {row}")
        found += row_problems(system, row, instance, ok)
    return found


def _cell_problem(feature, cell, own):
    if cell == own or (np.isnan(cell) and np.isnan(own)):
        return None
    if np.isnan(cell):
        return "a value was lost"
    if feature.kind != "continuous":
        return None if cell in range(len(feature.categories)) else "no category"
    if not feature.lower <= cell <= feature.upper:
        return "out of bounds"
    if feature.resolution:
        steps = Fraction(repr(float(cell))) / Fraction(repr(feature.resolution))
        return None if steps.denominator == 1 else "off the lattice"
    return None


def run(count, seed=0, each=5):
    """Sends `count` random cases through; gives the problems found and some counts."""
    rng = np.random.default_rng(seed)
    found, tally = [], Counter()
    while tally["cases"] < count:
        schema = random_schema(rng)
        system = random_system(schema, rng)
        instances = np.array([random_instance(schema, rng) for _ in range(each)])
        points = np.array([random_point(schema, instance, rng) for instance in instances])
        before = points.copy()
        after = system.project(points, instances)
        assert points.tobytes() == before.tobytes(), "the caller's rows were written to"
        wrong = problems(system, points, after, instances)
        found += [f"{p} [{'; '.join(map(str, system.constraints))}]" for p in wrong]
        tally["cases"] += each
        tally["feasible"] += int(after.feasible.sum())
        tally["feasible before"] += int(system.feasible(points, instances).sum())
        tally["proved infeasible"] += int(after.proved_infeasible.sum())
        tally["unsolved"] += int((~after.feasible & ~after.proved_infeasible).sum())
        tally["programs"] += after.n_programs
    return found, tally


# ------------------------------------------------------------------------------------------------
# Tests


@pytest.mark.parametrize("seed", range(4))
def test_nothing_leaks(seed):
    found, tally = run(800, seed=seed)
    assert not found, "\n".join(found[:5])
    # The cases must be worth something: many start out broken, most of them can be mended, some
    # provably not, and next to none is left open.
    assert tally["feasible before"] < 0.4 * tally["cases"]
    assert tally["feasible"] > 0.6 * tally["cases"]
    assert tally["proved infeasible"] > 0.05 * tally["cases"]
    assert tally["programs"] > 0.05 * tally["cases"]
    assert tally["unsolved"] <= 0.002 * tally["cases"]


def tiny_cases(seed, count):
    """Small schemas whose rows can all be listed: system, instance, point, feasible rows."""
    rng = np.random.default_rng(seed)
    while count:
        schema = random_schema(rng, small=True)
        system = random_system(schema, rng, 6)
        instance = random_instance(schema, rng)
        rows = every_row(schema, instance)
        if len(rows) <= 3000:
            count -= 1
            ok = system.feasible(rows, np.repeat(instance[None], len(rows), axis=0))
            yield system, instance, random_point(schema, instance, rng), rows[ok]


def test_feasibility_is_decided_as_by_listing_all_rows():
    impossible = 0
    for system, instance, point, feasible in tiny_cases(11, 300):
        after = system.project(point[None], instance[None])
        texts = [str(c) for c in system.constraints]
        assert after.feasible[0] == bool(len(feasible)), (texts, instance, point)
        assert after.proved_infeasible[0] != bool(len(feasible)), (texts, instance, point)
        impossible += not len(feasible)
    assert impossible > 20


def test_programs_find_the_nearest_row():
    compared = 0
    for system, instance, point, feasible in tiny_cases(12, 200):
        schema = system.schema
        if not len(feasible):
            continue
        outcome = solve(schema, system.bound, instance, point)
        assert outcome.status == "solved"
        best = schema.distance(feasible, np.repeat(point[None], len(feasible), axis=0)).min()
        mine = schema.distance(outcome.cells[None], point[None])[0]
        # From an original value off the lattice distances are taken from the nearest lattice point.
        odd = [system.schema.features[c].resolution for c in range(len(instance))
               if schema.features[c].kind == "continuous" and point[c] == instance[c]
               and schema.snap(instance[None])[0, c] != instance[c]]  # fmt: skip
        assert mine == pytest.approx(best, abs=1e-6 + sum(odd))
        compared += mine > 0
    assert compared > 60


def test_constraints_that_are_refused_have_no_feasible_row():
    """And the others have one, if they do not mention the instance."""
    rng = np.random.default_rng(14)
    refused = []
    for _ in range(120):
        schema = random_schema(rng, small=True)
        rows = every_row(schema, np.array([on_lattice(f, rng) for f in schema.features]))
        texts = parse_all([random_constraint(schema, rng) for _ in range(8)])
        absolute = [c for c in texts if not c.mentions_original]
        system = System.of(absolute, schema, check=False)
        try:
            System.of(absolute, schema)
            refused.append(False)
        except InputError:
            refused.append(True)
        assert system.feasible(rows, rows).any() != refused[-1], texts
    assert 10 < sum(refused) < 110


def test_contradictions_are_smallest():
    sizes = Counter()
    for system, instance, _, feasible in tiny_cases(15, 150):
        found = system.contradiction(instance)
        assert bool(found) != bool(len(feasible))
        if not found:
            continue
        rows = every_row(system.schema, instance)
        holds = system.holds(rows, np.repeat(instance[None], len(rows), axis=0))  # (rows, m)

        def clashes(some, holds=holds, system=system):
            picked = [system.constraints.index(c) for c in some]
            return not holds[:, picked].all(axis=1).any()

        assert clashes(found)
        for size in range(1, len(found)):
            smaller = [s for s in itertools.combinations(system.constraints, size) if clashes(s)]
            assert size > 2 or not smaller, "sets of one and two are found for certain"
        assert not any(clashes([c for c in found if c != left]) for left in found)
        sizes[len(found)] += 1
        rest = system.without(found[:1])
        assert len(rest) == len(system) - 1
    assert sizes[1] > 2
    assert sizes[2] > 2
