"""How far a constraint would have to be relaxed to admit a row, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapace.arrays import Floats
from lapace.constraints import (
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Membership,
    Shorthand,
    System,
    Transition,
)
from lapace.constraints.binding import bind
from lapace.constraints.language import MIRROR, Linear
from lapace.constraints.logic import Candidates
from lapace.result import Move
from lapace.schema import Feature, Schema
from lapace.schema.features import on_lattice

__all__ = ["changes_text", "joined", "quoted", "relaxation", "scales"]


FEW = 5  # changes a sentence names


def relaxation(constraint: Constraint, schema: Schema, row: Floats, original: Floats) -> Move:
    """How far a constraint is from admitting a row.

    Args:
        constraint: One that the row breaks, or keeps after all.
        schema: What the columns are.
        row: Cells (d,).
        original: Cells of the instance the row is for, (d,).

    Examples:
        >>> from lapace.constraints import parse
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> row, original = np.array([25.0, 52.0]), np.array([30.0, 50.0])
        >>> relaxation(parse("hours <= 40"), schema, row, original).text
        "'hours <= 40' would have to allow 12 more"
        >>> relaxation(parse("age >= original"), schema, row, original).text
        "'age >= original' would have to allow 5 less"
    """
    by, demand = _RowText(schema, row, original).relaxation(constraint)
    return Move(str(constraint), by, f"'{constraint}' {demand}")


def scales(system: System) -> Floats:
    """What the slack of each constraint is divided by, so that different ones can be added up.

    The widest range of the numbers a constraint names; of a limit on changes, all columns there
    are; of anything else 1.
    """
    features = system.schema.features
    found = []
    for bound in system.bound:
        if isinstance(bound.constraint, ChangeLimit):
            found.append(float(len(features)))
        else:
            spans = [features[c].span for c in bound.columns if features[c].numeric]
            found.append(max(spans, default=1.0))
    return np.array(found)


def quoted(constraints: Sequence[object]) -> str:
    """Constraints in quotes, as a list in a sentence.

    Examples:
        >>> quoted(["fixed age", "hours <= 40", "age > 20"])
        "'fixed age', 'hours <= 40' and 'age > 20'"
    """
    return joined([f"'{c}'" for c in constraints])


def joined(texts: Sequence[str], word: str = "and") -> str:
    """Texts as a list in a sentence."""
    texts = list(texts)
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def changes_text(schema: Schema, row: Floats, original: Floats) -> str:
    """What differs from the instance, a few columns of it: `age 30 → 40 and job cook → nurse`."""
    different = np.flatnonzero(schema.changed(original, row))
    features = [schema.features[i] for i in different]
    texts = [
        f"{f.name} {f.text(original[i])} → {f.text(row[i])}"
        for f, i in zip(features, different, strict=True)
    ]
    if len(texts) > FEW + 1:
        texts = [*texts[:FEW], f"{len(texts) - FEW} more"]
    return joined(texts)


# ------------------------------------------------------------------------------------------------
# Each form


class _RowText:
    """What constraints would have to allow for one row of one instance."""

    def __init__(self, schema: Schema, row: Floats, original: Floats) -> None:
        self.schema = schema
        self.row = row
        self.original = original
        self.rows = Candidates(schema, row[None], original[None])

    def relaxation(self, constraint: Constraint) -> tuple[float | None, str]:
        """How far, where that is a number, and what the constraint would have to do."""
        bound = bind(constraint, self.schema)
        if bound.holds(self.rows)[0]:
            return 0.0, "holds on this row all the same"
        named = list({*bound.columns, *bound.compared})
        gone = np.isnan(self.row[named]) != np.isnan(self.original[named])
        if gone.any():  # what is missing is not far from anything
            columns = [named[i] for i in np.flatnonzero(gone)]
            return None, f"would have to allow {self._now(columns)}"
        match constraint:
            case Comparison():
                return self._comparison(constraint)
            case ChangeLimit(relation):
                return self._counted(constraint, relation)
            case Shorthand():
                return self._shorthand(constraint)
            case Conditional():
                return self._conditional(constraint)
            case Membership(name) | Transition(name) | Changes(name):
                column = self.schema.index(name)
                by = self._slack(constraint) if self._is_number(column) else None
                return by, f"would have to allow {self._now([column])}"
            case _:
                return None, "would have to allow this row"

    def _slack(self, constraint: Constraint) -> float:
        slack = System.of([constraint], self.schema, check=False)
        far = slack.slack(self.row[None], self.original[None])[0, 0]
        return float(f"{far:.12g}")  # 0.1 + 0.2 is 0.3 here too

    def _is_number(self, column: int) -> bool:
        return self.schema.features[column].numeric

    def _now(self, columns: Sequence[int]) -> str:
        """What the row has there."""
        features = [self.schema.features[c] for c in columns]
        return joined(
            [f"{f.name} {f.text(self.row[c])}" for f, c in zip(features, columns, strict=True)]
        )

    # -- comparisons ------------------------------------------------------------------------------

    def _comparison(self, comparison: Comparison) -> tuple[float | None, str]:
        sides, relations = comparison.sides, comparison.relations
        for left, relation, right in zip(sides, relations, sides[1:], strict=False):
            part = Comparison((left, right), (relation,))
            bound = bind(part, self.schema)
            if bound.holds(self.rows)[0]:
                continue
            if all(self.schema.features[c].kind != "continuous" for c in bound.columns):
                return self._categories(part, bound.columns)
            number_first = isinstance(left, Linear) and not left.terms  # 20 <= hours: hours >= 20
            return self._numbers(part, MIRROR[relation] if number_first else relation)
        return None, "would have to allow this row"  # pragma: no cover (some part is broken)

    def _numbers(self, part: Comparison, relation: str) -> tuple[float | None, str]:
        """One relation between numbers."""
        far = self._slack(part)
        text = _written(far, self._subject(part))
        match relation:
            case "<=" | "<":
                return far, f"would have to allow {text} more"
            case ">=" | ">":
                return far, f"would have to allow {text} less"
            case "==":
                return far, f"would have to allow a difference of {text}"
        columns = [self.schema.index(name) for name in part.words]
        return None, f"would have to allow {self._now(columns)}"

    def _categories(self, part: Comparison, columns: Sequence[int]) -> tuple[float | None, str]:
        """Levels of one ordinal can be counted; other categories cannot."""
        words = f"would have to allow {self._now(columns)}"
        if len(columns) > 1 or not self._is_number(columns[0]):
            return None, words
        far = self._slack(part)
        return far, f"{words}, {far:.0f} level{'s' * (far != 1)} off"

    def _subject(self, part: Comparison) -> Feature:
        """The column whose numbers a relation is about: a way of writing them."""
        own = [t.feature for t in part.terms if abs(t.coefficient) == 1 and not t.original]
        return self.schema[own[0] if own else part.words[0]]

    # -- the rest ---------------------------------------------------------------------------------

    def _counted(self, limit: ChangeLimit, relation: str) -> tuple[float, str]:
        far = self._slack(limit)
        many = int(self.schema.changed(self.row, self.original).sum())
        if relation == "==":
            return far, f"would have to allow {many} change{'s' * (many != 1)}"
        word = "more" if relation in ("<=", "<") else "fewer"
        return far, f"would have to allow {far:.0f} {word}"

    def _shorthand(self, shorthand: Shorthand) -> tuple[float | None, str]:
        """Column by column: `fixed age, job` may be broken by one of them or by both."""
        by: list[float | None] = []
        texts = []
        for name in shorthand.features:
            alone = Shorthand(shorthand.word, (name,))
            if bind(alone, self.schema).holds(self.rows)[0]:
                continue
            column, feature = self.schema.index(name), self.schema[name]
            by.append(self._slack(alone) if self._is_number(column) else None)
            if feature.kind != "continuous":
                texts.append(f"{name} to become {feature.text(self.row[column])}")
                continue
            ways = {"fixed": "change", "increasing": "fall", "decreasing": "rise"}
            texts.append(f"{name} to {ways[shorthand.word]} by {_written(by[-1] or 0.0, feature)}")
        return by[0] if len(by) == 1 else None, f"would have to allow {joined(texts)}"

    def _conditional(self, conditional: Conditional) -> tuple[float | None, str]:
        """What follows `then` is what would have to move."""
        broken = [
            part for part in conditional.then if not bind(part, self.schema).holds(self.rows)[0]
        ]
        if len(broken) != 1:
            columns = sorted({c for part in broken for c in bind(part, self.schema).columns})
            return None, f"would have to allow {self._now(columns)}"
        by, demand = self.relaxation(broken[0])
        return by, f"{demand} than '{broken[0]}'" if demand.endswith(("more", "less")) else demand


def _written(number: float, feature: Feature) -> str:
    """Like a value of the column where it lies on its lattice, else with a few digits."""
    lattice = feature.kind == "continuous" and feature.resolution
    if lattice and np.isclose(on_lattice(np.array(number), feature.resolution), number):
        return feature.text(number)
    return Feature.continuous(feature.name).text(number)
