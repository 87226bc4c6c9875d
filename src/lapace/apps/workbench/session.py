"""Questions of the page and the replies: plain values in and out, no web framework.

`Shared` is the same for all visitors and never changes. A `Session` belongs to one open page: it
keeps that page's last explanation, so that a letter about it needs no second search, and nothing
else; where it is gone (the server was started again), the same question gives the same answer. So
the ways that the page shows already are part of its question, as `shown`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from lapace.apps.letters import letter
from lapace.apps.letters.clauses import in_words
from lapace.apps.letters.wording import needed_moves
from lapace.apps.letters.words import file_name
from lapace.apps.workbench.columns import PLAIN, Json, describe, form_values, read_values
from lapace.apps.workbench.limits import (
    LimitQuery,
    differences,
    loosened,
    loosening,
    make_query,
)
from lapace.apps.workbench.ways import WAYS, cards, chosen_way
from lapace.arrays import Floats
from lapace.budget import Budget, current
from lapace.classifier.outputs import score_odds
from lapace.constraints import Shorthand, System, parse, parse_all
from lapace.errors import ClassifierError, InputError
from lapace.explainer import Explainer, Search
from lapace.result import Counterfactuals, Explanation, record
from lapace.schema import Reading, Schema
from lapace.table import spelling

__all__ = ["Session", "Shared"]

LISTED = 1_000  # rows of the file that the page lists
SHOWN = 20  # ways shown already that a question may name
ROUNDS = 3  # of loosening until there is a way
MAX_QUERIES = 50_000  # rows the classifier may be queried about to find out why nothing fits
REASONS = 0.7  # share of a message's time for the reasons: the answer that follows needs the rest
SEARCH = Search(n_best=WAYS)


@dataclass(frozen=True)
class Shared:
    """The explainer, the rows and the target that all visitors share.

    Attributes:
        explainer: A fitted one.
        instances: Rows to choose from, a table of any kind; None for none.
        target: The label most visitors want; None to leave it to them.
        advisers: Whether the page is for advisers, who may see the rows and the fit report.
    """

    explainer: Explainer
    instances: Any = None
    target: Any = None
    advisers: bool = False

    def __post_init__(self) -> None:
        if self.instances is not None and not self.advisers:
            raise InputError("Only a page for advisers lists instances: advisers=True.")

    @cached_property
    def rows(self) -> Reading:
        """The rows of the file, which visitors may choose from."""
        return self.explainer.schema_.read([] if self.instances is None else self.instances)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The ids of the rows, or numbers from 1."""
        ids = range(1, len(self.rows.cells) + 1) if self.rows.ids is None else self.rows.ids
        return tuple(map(spelling, ids))

    @cached_property
    def labels(self) -> list[Any]:
        """The classifier's labels."""
        labels: list[Any] = self.explainer.classes_.tolist()
        return labels

    @property
    def schema(self) -> Schema:
        """The columns, with levels that only the file's rows have."""
        return self.rows.schema

    @cached_property
    def decisions(self) -> list[str | None]:
        """The classifier's labels of the rows that the page lists; None where it has none."""
        cells = self.rows.cells[:LISTED]
        if not len(cells):
            return []
        labels, unreadable = self.labels, self.rows.problems
        try:
            codes = self.explainer.classifier_.with_fresh_count().predict(cells, self.schema)
        except ClassifierError:  # on one of them: the page shows each one's decision when chosen
            return [None] * len(cells)
        return [
            None if i in unreadable else str(labels[code]) for i, code in enumerate(codes.tolist())
        ]

    @cached_property
    def page(self) -> Json:
        """The values that the page needs to begin with."""
        rules, schema = self.explainer.fitted_.rules, self.schema
        return {
            "columns": describe(schema, rules),
            "labels": list(map(str, self.labels)),
            "target": None if self.target is None else self.labels.index(self.target),
            "rules": [{"text": in_words(rule, schema, PLAIN), "note": rule.note} for rule in rules],
            "cases": [
                {"name": name, "label": label}
                for name, label in zip(self.names, self.decisions, strict=False)
            ],
            "advisers": self.advisers,
            "unlisted": max(0, len(self.names) - LISTED),
            "first": self._first,
            "caution": self.explainer.report_.verdict_for(self.target) == "fails",
            "fingerprint": self._fingerprint,
        }

    @property
    def _first(self) -> int:
        """The row to begin with: the first without the target label."""
        others = (None, None if self.target is None else str(self.target))
        return next((i for i, label in enumerate(self.decisions) if label not in others), 0)

    @property
    def _fingerprint(self) -> str:
        """A text that differs for other columns: what a browser keeps is then dropped."""
        features = [{**f, "knots": None} for f in self.schema.to_json()["features"]]
        text = json.dumps(features)
        return sha256(f"{text}{self.explainer.classes_}".encode()).hexdigest()[:16]


class Session:
    """One open page.

    Args:
        shared: What all visitors share.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._last: tuple[str, Explanation] | None = None

    def answer(self, message: Mapping[str, Any]) -> Json:
        """The reply to a message of the page, of the same `kind`.

        What the visitor can mend comes back as `problems`, each with the place and a sentence.
        """
        kinds: dict[str, Callable[[Mapping[str, Any]], Json]] = {
            "case": self._case,
            "judge": self._judge,
            "explain": self._explain,
            "whynot": self._why_not,
            "letter": self._letter,
            "json": self._json,
        }
        kind = str(message.get("kind"))
        if kind not in kinds:
            raise InputError("The page sent something unknown. Load it again.")
        try:
            reply = kinds[kind](message)
        except _ProblemsError as error:
            reply = {"problems": error.problems}
        return {"kind": kind, "id": message.get("id"), **reply}

    # -- rows -------------------------------------------------------------------------------------

    def _case(self, message: Mapping[str, Any]) -> Json:
        """A row of the file: by its position, or by its name."""
        rows, names, name = self.shared.rows, self.shared.names, message.get("name")
        if name is None:
            position = int(message.get("position") or 0)
        else:
            position = names.index(str(name)) if str(name) in names else -1
        if not 0 <= position < len(names):
            raise _ProblemsError(("name", f"There is no row “{name or position}”."))
        if position in rows.problems:
            raise _ProblemsError(("name", f"This row cannot be read: {rows.problems[position]}"))
        values = form_values(rows.schema, rows.cells[position])
        return {"position": position, "name": names[position], "values": values}

    def _judge(self, message: Mapping[str, Any]) -> Json:
        """The decision on a row, and which limits it breaks, where it started from another."""
        shared, schema = self.shared, self.shared.schema
        start = self._known(message.get("start"))
        known = self._known(message.get("base")) if start is None else start
        cells = self._cells(message.get("row"), known, tried=start is not None)
        cells = schema.derive(cells[None], None if known is None else known[None])[0]
        query = make_query(message.get("limits") or {}, schema, shared.labels)
        rows = cells[None] if start is None else np.stack([cells, start])
        classifier = shared.explainer.classifier_.with_fresh_count()
        try:
            codes, likely, _ = classifier.query(rows, schema)
        except ClassifierError:
            raise _ProblemsError(("row", "No decision can be made on these values.")) from None
        wanted = np.array([label == query.target for label in shared.labels])
        if not wanted.any():  # any label but the row's own
            wanted = np.arange(len(wanted)) != codes[-1]
        return {
            "label": str(shared.labels[codes[0]]),
            "chance": None if likely is None else round(float(likely[0, wanted].sum()), 4),
            "reached": bool(wanted[codes[0]]),
            "values": form_values(schema, cells),
            "broken": [] if start is None else self._broken(cells, start, query),
        }

    def _broken(self, cells: Floats, start: Floats, query: LimitQuery) -> list[str]:
        """The limits and rules that a row does not keep, in words, a sentence for each column."""
        rules, schema = self.shared.explainer.fitted_.rules, self.shared.schema
        every = parse_all([*rules, *query.constraints])
        short = [c for c in every if isinstance(c, Shorthand)]
        alone = [replace(c, features=(name,)) for c in short for name in c.features]
        system = System.of([*alone, *(c for c in every if c not in short)], schema, check=False)
        holds = system.holds(cells[None], start[None])[0]
        broken = [c for c, held in zip(system.constraints, holds, strict=True) if not held]
        return list(dict.fromkeys(in_words(c, schema, PLAIN) for c in broken))

    def _known(self, values: Any) -> Floats | None:
        """The row that a form began with, whatever it holds."""
        return read_values(self.shared.schema, values)[0] if isinstance(values, Mapping) else None

    def _cells(self, values: Any, known: Floats | None, *, tried: bool = False) -> Floats:
        """Reads a row of the page; what cannot be used of it is said by column."""
        if not isinstance(values, Mapping):
            raise _ProblemsError(("row", "Choose a row, or fill in the form."))
        cells, problems = read_values(self.shared.schema, values, known, tried=tried)
        if problems:
            raise _ProblemsError(*problems.items())
        if np.isnan(cells).all():
            raise _ProblemsError(("row", "Fill in the form first: every field is empty."))
        return cells

    # -- explanations -----------------------------------------------------------------------------

    def _explained(self, message: Mapping[str, Any]) -> tuple[Explanation, LimitQuery]:
        shared = self.shared
        limits = message.get("limits") or {}
        query = make_query(limits, shared.schema, shared.labels)
        if query.problems:
            raise _ProblemsError(*query.problems)
        cells = self._cells(message.get("row"), self._known(message.get("base")))
        name = message.get("name")
        values = form_values(shared.schema, cells)
        shown = self._shown(message.get("shown"), values)
        key = json.dumps(
            [values, limits, name, [form_values(shared.schema, way) for way in shown]],
            sort_keys=True,
        )
        if self._last is not None and self._last[0] == key:
            return self._last[1], query
        row = record(shared.schema, cells)
        id_column = str(next(iter(shared.schema.template.index), "id"))
        if id_column not in row:
            row = {id_column: str(name or "your own")[:100], **row}
        try:
            explanation = self._searched(row, query, shown)
        except InputError as error:  # limits that contradict the rules for every row
            raise _ProblemsError(("limits", str(error))) from None
        self._last = (key, explanation)
        return explanation, query

    def _searched(self, row: Json, query: LimitQuery, shown: Sequence[Floats]) -> Explanation:
        """Searches for ways of one row; ways shown before that are within the limits stay."""
        schema, candidates = self.shared.schema, None
        if shown and query.constraints and "instance" not in schema.names:
            ids = schema.read([row]).ids
            of = 0 if ids is None else ids[0]
            candidates = [{**record(schema, cells), "instance": of} for cells in shown]
        return self.shared.explainer.explain(
            [row],
            target=query.target,
            constraints=query.constraints,
            costs=query.costs or None,
            candidates=candidates,
            search=SEARCH,
        )

    def _shown(self, ways: Any, values: Json) -> list[Floats]:
        """Reads the ways that the page shows already, each as the values that it changes.

        What cannot be read is left out: it came from another version of the page, or of the table.
        """
        schema, rows = self.shared.schema, []
        start = read_values(schema, values)[0]
        for way in (ways if isinstance(ways, list) else [])[:SHOWN]:
            if isinstance(way, Mapping) and set(way) <= set(schema.names):
                cells, problems = read_values(schema, {**values, **way}, start, tried=True)
                if not problems:
                    rows.append(schema.derive(cells[None], start[None])[0])
        return rows

    def _explain(self, message: Mapping[str, Any]) -> Json:
        explanation, _ = self._explained(message)
        return cards(explanation, self._judged)

    def _judged(self, rows: Counterfactuals) -> Counterfactuals:
        """Returns rows with the figures that a search has for its picks only."""
        fitted = self.shared.explainer.fitted_
        classifier = self.shared.explainer.classifier_.with_fresh_count()
        codes, _, scores = classifier.query(rows.cells, rows.schema)
        odds = np.full(len(rows), np.nan) if scores is None else score_odds(scores, codes)
        survival, low, high = fitted.survival.estimate(rows.schema, rows.cells, codes, odds)
        density = fitted.decoder.density(rows.schema, rows.cells, codes)
        edge = ~fitted.survival.has_margin(rows.schema, rows.cells, codes, odds)
        return replace(
            rows,
            density=density,
            survival=survival,
            survival_low=low,
            survival_high=high,
            mark=np.where(edge, "edge", "").astype(object),
        )

    def _why_not(self, message: Mapping[str, Any]) -> Json:
        """Returns what to loosen, and the answer that then follows, searched for here and now.

        The row that `why_not` names is a candidate of that search, so the page shows what it says.
        """
        explanation, query = self._explained(message)
        if explanation.status[0] not in ("none_found", "infeasible"):
            raise _ProblemsError(("limits", "There is a way already."))
        schema, first, clash = self.shared.schema, query, tuple[str, ...]()
        question = {**message, "limits": message.get("limits") or {}}
        for _ in range(ROUNDS):
            with (current() or Budget()).share(REASONS):
                asked = self.shared.explainer.why_not(explanation, max_queries=MAX_QUERIES)
            start, why, row = asked.instances[0], asked.why_not.get(0), None
            if why is None:  # a row was found after all
                row = asked.nearest().cells[0]
            else:
                clash, moves = clash or why.clash, loosening(why, query)
                if not moves:
                    break
                question["limits"] = loosened(question["limits"], moves, query, schema, start)
                if why.row is not None:
                    row = schema.cells([dict(why.row)])[0]
            if row is not None:
                question["shown"] = [_changes(schema, start, row), *(question.get("shown") or ())]
            explanation, query = self._explained(question)
            if explanation.status[0] == "answered":
                break
        steps = differences(first, query, schema)
        if not steps and why is not None and not (why.exact or needed_moves(why)):
            raise _ProblemsError(("limits", "The search for what stands in the way took too long."))
        rules = [move.constraint for move in needed_moves(why)] if why and not steps else clash
        return {
            "steps": steps,
            "rules": [in_words(parse(text), schema, PLAIN) for text in rules],
            "limits": question["limits"],
            "shown": question.get("shown") or [],
            "then": self._explain(question) if steps or why is None else None,
        }

    # -- what is kept -----------------------------------------------------------------------------

    def _letter(self, message: Mapping[str, Any]) -> Json:
        """The letter about one stop of one dial."""
        explanation, _ = self._explained(message)
        try:
            chosen = chosen_way(explanation, str(message.get("key")), self._judged)
        except ValueError:
            sentence = "This plan can no longer be found. Search again."
            raise _ProblemsError(("key", sentence)) from None
        page = letter(chosen[0])
        return {"html": page.html, "file": f"letter-{file_name(page.name) or 'plan'}.html"}

    def _json(self, message: Mapping[str, Any]) -> Json:
        explanation, _ = self._explained(message)
        name = file_name(str(message.get("name") or "")) or "plan"
        text = json.dumps(explanation.to_json(), indent=1)
        return {"text": text, "file": f"explanation-{name}.json"}


class _ProblemsError(Exception):
    """Mistakes that the visitor can mend: the place of each, and a sentence."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__("; ".join(sentence for _, sentence in problems))
        self.problems = list(map(list, problems))


def _changes(schema: Schema, start: Floats, row: Floats) -> Json:
    """The values that a row changes, as the page sends a way that it shows."""
    before, after = form_values(schema, start), form_values(schema, row)
    own = [f.name for f in schema.features if f.derived is None]
    return {name: after[name] for name in own if after[name] != before[name]}
