"""Whether why-nots are right: the relaxation named is applied, and three quarters of it.

Constraints are added that keep an instance from the answers it has, one after the other, until it
has none. Then `explainer.why_not` is asked, and what it says is tried: every constraint it names
relaxed by the amount it names, or dropped where it names none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.advice_case import Case
from benchmarks.advice_checks import Added
from benchmarks.advice_distances import derived, differing
from benchmarks.store import Measure
from lapace import InputError
from lapace.constraints import System, parse
from lapace.result import Explanation, WhyNot
from lapace.schema import Schema

__all__ = ["why_not"]

MOST = 5  # constraints added at most until there is no answer
LESS = 0.75  # of an amount


@dataclass(frozen=True)
class Limit:
    """A constraint of a number, written so that it can be relaxed by an amount.

    Attributes:
        kind: `changes`, `up` or `down` (against a number), `rise` or `fall` (against the instance),
            `fixed`.
        name: The column.
        value: The number it is compared with, or the changes allowed.
        unit: The least amount that matters: a resolution, or one change.
    """

    kind: str
    name: str
    value: float
    unit: float

    def text(self, by: float = 0.0) -> str:
        """As text, relaxed by an amount.

        Examples:
            >>> Limit("down", "debt", 100.0, 1.0).text(12)
            '`debt` <= 112'
            >>> Limit("rise", "income", 0.0, 1.0).text(5)
            '`income` >= original - 5'
            >>> Limit("fixed", "age", 0.0, 1.0).text(3), Limit("changes", "", 2, 1).text(1)
            ('abs(`age` - original) <= 3', 'changes <= 3')
        """
        name = f"`{self.name}`"
        match self.kind:
            case "changes":
                return f"changes <= {round(self.value + by)}"
            case "down" | "up":
                sign, word = (1, "<=") if self.kind == "down" else (-1, ">=")
                return f"{name} {word} {self.value + sign * by:.12g}"
            case "fall" | "rise":
                sign, word = ("+", "<=") if self.kind == "fall" else ("-", ">=")
                return (
                    f"{name} {word} original {sign} {by:.12g}" if by else f"{name} {word} original"
                )
        return f"abs({name} - original) <= {by:.12g}" if by else f"fixed {name}"


def why_not(case: Case) -> Iterator[Measure]:
    """Why-nots of instances that have an answer without the constraints."""
    rng, free = case.rng("why_not"), case.unruled
    found = free.nearest()
    answered = rng.permutation(np.unique(found.instance[found.ok]))
    lines: list[dict[str, Any]] = []
    for i in answered[: 4 * case.size.why_not]:
        if sum(1 for line in lines if "named" in line) >= case.size.why_not:
            break
        limits, explanation = _without_answer(case, int(i), rng)
        if explanation is not None:
            lines.append(_tried(case, int(i), limits, explanation))
    yield from _measures(lines)


def _measures(lines: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    yield Measure("asked", len(lines), len(lines))
    yield Measure.of("named", [line["named"] for line in lines])
    for metric in ("fails", "same_row", "obeys_everything"):
        yield Measure.of(metric, [line[metric] for line in lines if metric in line])
    less = [flag for line in lines for flag in line.get("less", ())]
    yield Measure.of("less_suffices", less)


def _without_answer(
    case: Case, i: int, rng: np.random.Generator
) -> tuple[list[Limit], Explanation | None]:
    """Constraints under which an instance has no answer; None where it keeps having one."""
    limits: list[Limit] = []
    if rng.random() < 0.5:
        limits.append(Limit("changes", "", int(rng.integers(1, 4)), 1.0))
    explanation = None
    for _ in range(MOST + 1):
        explanation = _explained(case, i, [limit.text() for limit in limits])
        if explanation is None:
            return limits, None
        if explanation.status[0] != "answered":
            return limits, explanation if limits else None
        further = _against(explanation, rng, limits)
        if further is None or len(limits) >= MOST:
            return limits, None
        limits.append(further)
    return limits, None


def _explained(case: Case, i: int, texts: Sequence[str]) -> Explanation | None:
    constraints = [Added("", text, lambda a, _: np.ones(len(a), dtype=bool)) for text in texts]
    try:
        return case.explain(case.frame.iloc[[i]], constraints, ruled=False)
    except InputError:  # no row of any instance can satisfy them
        return None


def _against(
    explanation: Explanation, rng: np.random.Generator, limits: Sequence[Limit]
) -> Limit | None:
    """A constraint that the present answer breaks: on one of the columns it changes."""
    found, schema = explanation.nearest(), explanation.schema
    row, original = found.cells[0], explanation.instances[0]
    taken = {limit.name for limit in limits}
    changed = differing(row, original) & ~derived(schema) & ~np.isnan(original)
    columns = [i for i in np.flatnonzero(changed) if schema.names[i] not in taken]
    if not columns:
        return None
    i = int(rng.choice(columns))
    feature, name = schema.features[i], schema.names[i]
    if feature.kind != "continuous" or rng.random() < 0.25:
        return Limit("fixed", name, 0.0, feature.step if feature.numeric else 1.0)
    up = row[i] > original[i]
    if rng.random() < 0.4:
        return Limit("fall" if up else "rise", name, 0.0, feature.step)
    middle = float(feature.snap(np.array((row[i] + original[i]) / 2)))
    if middle == row[i]:
        return Limit("fall" if up else "rise", name, 0.0, feature.step)
    return Limit("down" if up else "up", name, middle, feature.step)


# ------------------------------------------------------------------------------------------------
# What is said, tried


def _tried(case: Case, i: int, limits: Sequence[Limit], explanation: Explanation) -> dict[str, Any]:
    asked = case.explainer.why_not(explanation)
    if asked.status[0] == "answered":  # the search for why not found an answer after all
        return {"named": False, "obeys_everything": False}
    said = asked.why_not[0]
    by_text = {str(parse(limit.text())): limit for limit in limits}
    line: dict[str, Any] = {"named": bool(said.moves)}
    line["obeys_everything"] = _obeys(case, explanation, limits, said)
    if not said.moves:
        return line
    whole = {str(parse(move.constraint)): move.by for move in said.moves}
    if said.status == "infeasible":  # one of them is to be relaxed, the others stay
        text, by = next(iter(whole.items()))
        whole = {text: by}
    found = _explained(case, i, _relaxed(by_text, whole))
    line["fails"] = found is None or found.status[0] != "answered"
    if found is not None and not line["fails"] and said.row is not None:
        shown = _cells(found.schema, said.row)
        line["same_row"] = not differing(shown, found.nearest().cells[0]).any()
    again = [_explained(case, i, _relaxed(by_text, less)) for less in _lessened(by_text, whole)]
    line["less"] = [other is not None and other.status[0] == "answered" for other in again]
    return line


def _relaxed(by_text: Mapping[str, Limit], amounts: Mapping[str, float | None]) -> list[str]:
    """The constraints as text: those named relaxed, or dropped where no amount is named."""
    texts = []
    for text, limit in by_text.items():
        if text not in amounts:
            texts.append(limit.text())
        elif (by := amounts[text]) is not None:
            texts.append(limit.text(by))
    return texts


def _lessened(
    by_text: Mapping[str, Limit], amounts: Mapping[str, float | None]
) -> Iterator[dict[str, float | None]]:
    """For each amount the same with three quarters of it, where that is another amount."""
    for text, by in amounts.items():
        limit = by_text.get(text)
        if limit is None or not by:
            continue
        less = np.floor(LESS * by) if limit.kind == "changes" else LESS * by
        if by - less >= limit.unit * (1 - 1e-9):
            yield {**amounts, text: float(less)}


def _obeys(case: Case, explanation: Explanation, limits: Sequence[Limit], said: WhyNot) -> bool:
    """Whether the row that is shown obeys everything and has the target: then it is the answer."""
    if said.row is None:
        return False
    cells = _cells(explanation.schema, said.row)[None]
    judge = case.judge(explanation.schema, ruled=False)
    texts = [limit.text() for limit in limits]
    holds = System.of(texts, explanation.schema, check=False).feasible(
        cells, explanation.instances[:1]
    )
    return bool(holds[0] and judge.valid(cells)[0])


def _cells(schema: Schema, row: Mapping[str, Any]) -> Any:
    return schema.read([dict(row)]).cells[0]
