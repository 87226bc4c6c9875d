"""Explaining: from instances to an `Explanation`, in few large calls of the classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System, parse_all
from lapace.errors import ClassifierError, InputError
from lapace.explainer.ends import leading
from lapace.explainer.fitting import Fitted
from lapace.explainer.judging import refuse_if_gone
from lapace.explainer.problem import Instances, Question, is_tried, meet
from lapace.explainer.searching import Part, search
from lapace.explainer.whynot import Case, Found, why_not
from lapace.paths import Steps
from lapace.result import Explanation, WhyNot

__all__ = ["answer"]

Progress: TypeAlias = Callable[[str, int, int], None]

ROWS = 50_000  # rows in work at a time, so that memory does not grow with the query


def answer(
    fitted: Fitted,
    classifier: Classifier,
    instances: Any,
    question: Question,
    progress: Progress | None = None,
) -> Explanation:
    """Everything found for everyone.

    Args:
        fitted: What `fit` left behind.
        classifier: The black box, with a count of its own.
        instances: A table.
        question: What they want.
        progress: Called with what is done, how far, and of how much.
    """
    if question.confidence is not None and not classifier.has_probability:
        raise InputError(
            "confidence needs a classifier with predict_proba, and this one has none. Leave it out."
        )
    start = perf_counter()
    known = meet(fitted, classifier, instances, question)
    tried = np.flatnonzero(is_tried(known))
    paths = int(leading(fitted, known, tried).sum()) + len(tried)  # one to a stand-in, at most
    sheet = _Sheet(fitted, known, question, paths)
    size = max(1, ROWS // (question.steps * max(1, len(fitted.prototypes))))
    for begin in range(0, len(tried), size):
        part = search(fitted, classifier, known, tried[begin : begin + size], question)
        if part is not None:
            sheet.add(part)
        if progress:
            progress("explaining", min(begin + size, len(tried)), len(tried))
    found = _explanation(fitted, classifier, known, question, sheet.whole())
    return replace(found, seconds={**known.spent, "total": perf_counter() - start})


class _Sheet:
    """All paths' columns, made once at their full size, so that no part is held twice."""

    def __init__(self, fitted: Fitted, known: Instances, question: Question, paths: int) -> None:
        steps = (question.steps + 3) if (question.every or not fitted.recipe.given) else 7
        steps += question.sparse
        self.known = known
        self.weights = known.reading.schema.weights(question.costs)
        self.filled = 0
        wide, deep = (paths, steps), (paths, steps, len(known.reading.schema.features))
        self.columns: dict[str, NDArray[Any]] = {
            **{
                name: np.empty(paths, dtype=np.int64)
                for name in ("instance", "prototype", "crossings")
            },
            **{name: np.empty(paths, dtype=np.int64) for name in ("first", "middle", "last")},
            **{name: np.empty(wide) for name in ("tau", "probability", "density", "distance")},
            "before": np.empty(wide),
            "cells": np.empty(deep),
            "valid": np.empty(wide, dtype=np.int8),
            "feasible": np.empty(wide, dtype=np.bool_),
        }
        if question.sparse:
            self.columns["sparse"] = np.empty(paths, dtype=np.int64)

    def add(self, part: Part) -> None:
        """Writes the next paths."""
        rows = slice(self.filled, self.filled + len(part.instance))
        schema, instances = self.known.reading.schema, self.known.reading.cells
        gaps = schema.gaps(instances[part.instance][:, None], part.steps.cells)
        found = {
            **part.steps._asdict(),
            **part._asdict(),
            "distance": gaps @ self.weights,
        }
        for name, column in self.columns.items():
            column[rows] = found[name]
        self.filled = rows.stop

    def whole(self) -> dict[str, NDArray[Any]]:
        """The columns as far as they are filled."""
        return {name: column[: self.filled] for name, column in self.columns.items()}


def _explanation(
    fitted: Fitted,
    classifier: Classifier,
    known: Instances,
    question: Question,
    columns: dict[str, NDArray[Any]],
) -> Explanation:
    schema, cells, _, template, ids = known.reading
    ok = (columns["valid"] == 1) & columns["feasible"]
    clashes = _Clashes(known.system)
    status, reason = _statuses(fitted, known, question, columns, ok, clashes)
    absent = _why_not(fitted, classifier, known, question, columns, status, reason, clashes)
    picks = ("first", "middle", "last", "sparse")
    picked = {name: columns.pop(name) for name in picks if name in columns}
    before = columns.pop("before")
    names = np.array([*fitted.labels, None], dtype=object)
    # Until steps carry the label predicted: where they are valid it is the target.
    predicted = np.where(columns["valid"] == 1, known.target[columns["instance"], None], -1)
    columns["density_before"] = np.where(np.isnan(before), columns["density"], before)
    return Explanation(
        schema=schema,
        template=template,
        labels=fitted.labels,
        instances=cells,
        label=names[known.label],
        target=names[known.target],
        status=status,
        reason=reason,
        constraints=tuple(map(str, known.system.constraints)),
        picked=picked,
        predicted=predicted,
        ids=ids,
        costs=None if question.costs is None else dict(question.costs),
        confidence=question.confidence,
        n_queries=classifier.n_queries,
        why_not=absent,
        **cast(dict[str, Any], columns),
    )


class _Clashes:
    """Why nobody can obey, asked once for instances alike in what the constraints look at."""

    def __init__(self, system: System) -> None:
        self.system = system
        named = {c for bound in system.bound for c in (*bound.columns, *bound.compared)}
        self.columns = np.array(sorted(named), dtype=np.int64)
        self.found: dict[bytes, tuple[Constraint, ...]] = {}

    def of(self, instance: Floats) -> tuple[Constraint, ...]:
        """A smallest set of constraints that cannot hold together for this instance."""
        key = instance[self.columns].tobytes()
        if key not in self.found:
            self.found[key] = self.system.contradiction(instance)
        return self.found[key]


def _statuses(
    fitted: Fitted,
    known: Instances,
    question: Question,
    columns: dict[str, NDArray[Any]],
    ok: Bools,
    clashes: _Clashes,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    count = len(known.label)
    sure = f" with probability {question.confidence:g}" if question.confidence else ""
    under = " and obeys the constraints" if len(known.system) else ""
    instance, led = columns["instance"], columns["prototype"] >= 0
    paths = np.bincount(instance, weights=led, minlength=count).astype(np.int64)
    good = np.bincount(instance, weights=ok.any(axis=1) & led, minlength=count).astype(np.int64)
    near = set(instance[ok.any(axis=1) & ~led].tolist())
    status, reason = [], []
    for i in range(count):
        target = known.target[i]
        wanted = f"'{fitted.labels[target]}'" if target >= 0 else "another label"
        if i in known.trouble:
            status.append("malformed")
            reason.append(known.trouble[i])
        elif known.there[i]:
            status.append("already_target")
            reason.append(f"The classifier already says {wanted}.")
        elif i in known.impossible:
            status.append("infeasible")
            clash = clashes.of(known.reading.cells[i])
            told = " and ".join(f"'{c}'" for c in clash) or "the constraints"
            both = " together" if len(clash) != 1 else ""
            reason.append(f"For this instance {told} cannot hold{both}: no row obeys.")
        elif good[i]:
            status.append("answered")
            reason.append(f"{good[i]} of {paths[i]} paths lead to {wanted}.")
        elif i in near:
            status.append("answered")
            reason.append(
                f"No path to a prototype leads to {wanted}{under}; one to somebody nearby does."
            )
        else:
            status.append("none_found")
            reason.append(f"No row of {paths[i]} paths is labelled {wanted}{sure}{under}.")
    return tuple(status), tuple(reason)


def _why_not(
    fitted: Fitted,
    classifier: Classifier,
    known: Instances,
    question: Question,
    columns: dict[str, NDArray[Any]],
    status: tuple[str, ...],
    reason: tuple[str, ...],
    clashes: _Clashes,
) -> dict[int, WhyNot]:
    """What stands in the way of those without an answer; nothing is done where nobody is."""
    absent = [i for i, s in enumerate(status) if s in ("none_found", "infeasible")]
    if not absent:
        return {}
    # Whether a path has a good row is the same with and without the steps that picks do not need.
    brief = replace(question, every=False, sparse=False)
    size = max(1, ROWS // (question.steps * max(1, len(fitted.prototypes))))

    def again(system: System, instance: Ints) -> Found | None:
        other = known._replace(system=system, impossible=set(), spent={})
        chunks = [instance[begin : begin + size] for begin in range(0, len(instance), size)]
        try:
            parts = [search(fitted, classifier, other, chunk, brief) for chunk in chunks]
        except ClassifierError as error:  # a rule may be there to keep such rows from it
            refuse_if_gone(classifier, known, instance, error)
            return None
        walked = [Found.of(part.instance, part.steps) for part in parts if part is not None]
        return Found.join([seen.some(instance[:0]), *walked])

    mine = np.isin(columns["instance"], absent)
    seen = Found.of(
        columns["instance"][mine], Steps(*(columns[name][mine] for name in Steps._fields))
    )
    case = Case(
        system=known.system,
        rules=frozenset(parse_all(question.constraints[: question.rules])),
        instances=known.reading.cells,
        status=status,
        reason=reason,
        clash=clashes.of,
        seen=seen,
        weights=known.reading.schema.weights(question.costs),
        confidence=question.confidence,
        labels=len(fitted.labels),
    )
    with known.timed("why_not"):
        return why_not(case, again)
