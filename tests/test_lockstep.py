"""Searches in lockstep: what they ask at a time is one question, and one error ends all."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import worlds
from lapace.explainer import advice
from lapace.explainer.lockstep import in_lockstep
from lapace.explainer.oracle import Oracle
from lapace.paths import Steps


class Scripted:
    """Answers every row with its first cell as probability, and keeps what it was asked."""

    def __init__(self, known: tuple[float, ...] = ()) -> None:
        self.known, self.calls = set(known), []

    def knows(self, cells, lines):
        return {float(v) for v in cells[:, 0]} <= self.known

    def __call__(self, cells, lines):
        self.calls.append(cells[:, 0].tolist())
        none = np.zeros(len(lines), dtype=np.int64)
        return Steps.of(none + 0.5, cells, lines, none == 0, none == 0, cells[:, 0])


def asks(*questions):
    """A search that asks about some values at a time, and returns the answers."""

    def search(ask):
        found = []
        for values in questions:
            cells = np.array(values, dtype=float)[:, None]
            found.append(ask(cells, np.arange(len(values))).probability.tolist())
        return found

    return search


def test_what_is_asked_at_a_time_is_one_question():
    oracle = Scripted()
    found = in_lockstep(oracle, [asks([1, 2], [3]), asks([4]), asks([5], [6, 7], [8])])
    assert found == [[[1, 2], [3]], [[4]], [[5], [6, 7], [8]]]
    assert oracle.calls == [[1, 2, 4, 5], [3, 6, 7], [8]]


def test_what_is_known_costs_no_turn():
    oracle = Scripted(known=(1.0,))
    assert in_lockstep(oracle, [asks([1], [2]), asks([3])]) == [[[1], [2]], [[3]]]
    assert oracle.calls == [[1], [2, 3]]


def test_a_search_alone_needs_no_thread():
    seen = in_lockstep(Scripted(), [lambda ask: threading.current_thread()])
    assert seen == [threading.current_thread()]


@pytest.mark.parametrize("where", ["search", "question"])
def test_an_error_ends_all_searches(where):
    ended = []

    class Refusing(Scripted):
        def __call__(self, cells, lines):
            if where == "question":
                raise ValueError("no answer")
            return super().__call__(cells, lines)

    def waits(ask):
        try:
            asks([1], [2])(ask)
        finally:
            ended.append(True)

    def fails(ask):
        asks([3])(ask)
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        in_lockstep(Refusing(), [waits, fails])
    assert not [thread for thread in threading.enumerate() if thread.name == "lockstep"]
    assert ended == [True]


def test_picks_are_those_of_searches_one_after_the_other(monkeypatch):
    worlds.bank()  # fitted before calls are counted
    calls = []
    asked = Oracle._queried

    def counted(self, *rows):
        calls[-1] += 1
        return asked(self, *rows)

    def found():
        calls.append(0)
        return worlds.explain(worlds.bank(), detail="picks").minimal

    monkeypatch.setattr(Oracle, "_queried", counted)
    together = found()
    monkeypatch.setattr(advice, "in_lockstep", lambda ask, searches: [s(ask) for s in searches])
    alone = found()
    for pick in ("nearest", "best"):
        np.testing.assert_array_equal(together[pick].cells, alone[pick].cells)
    assert calls[0] < 0.8 * calls[1]
