"""Calls of one model by several threads at once, joined into one where that changes no output.

A search queries its classifier some fifty times about a few rows, and most of such a call is the
same however many rows it has. Requests that are answered at the same time therefore share calls:

    calls = SharedCalls(model)
    with calls.shared():  # in each thread
        explanation = explainer.explain(rows)

Only models of which `answers_by_row` are called so: a row's output is then the same, bit for bit,
whichever rows stand beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.classifiers.decisions import ThresholdClassifier
from lapace.classifiers.matrices import MatrixClassifier

__all__ = ["SharedCalls", "answers_by_row", "current_calls"]

ROWS = 500  # a call of more is made alone: it takes long, and would hold up the others
PATIENCE = 0.003  # seconds that a call waits for those of other threads

# Classes of scikit-learn that compute each row apart, in an order of their own. Others multiply
# matrices, and how those are rounded depends on how many rows there are.
BY_ROW = {
    "DecisionTreeClassifier",
    "ExtraTreesClassifier",
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    "MaxAbsScaler",
    "MinMaxScaler",
    "OneHotEncoder",
    "OrdinalEncoder",
    "RandomForestClassifier",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
}
METHODS = {"reshape", "to_numpy", "to_pandas"}  # of frames, as `train` has them in its pipelines


def answers_by_row(model: Any) -> bool:
    """Whether a row's output does not depend on the rows beside it, by what the model is made of.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> answers_by_row(DecisionTreeClassifier()), answers_by_row(LogisticRegression())
        (True, False)
    """
    if isinstance(model, ThresholdClassifier):
        return answers_by_row(model.classifier)
    if isinstance(model, MatrixClassifier):
        return model.device is None and answers_by_row(model.model)
    if isinstance(model, str):  # of a pipeline's steps
        return model in ("passthrough", "drop")
    kind = type(model)
    if kind.__module__.split(".")[0] != "sklearn":
        return False
    if kind.__name__ == "Pipeline":
        return all(answers_by_row(step) for _, step in model.steps)
    if kind.__name__ == "ColumnTransformer":
        return all(map(answers_by_row, [*(t[1] for t in model.transformers), model.remainder]))
    if kind.__name__ == "FunctionTransformer":
        called = model.func
        return isinstance(called, methodcaller) and called.__reduce__()[1][0] in METHODS
    return kind.__name__ in BY_ROW and getattr(model, "init", None) is None


@dataclass(eq=False)
class _Call:
    """One thread's call: which others it can be joined with, its rows, and what came of it."""

    key: Hashable
    cells: Floats
    taken: bool = False
    done: bool = False
    output: Any = None  # None where it is to be made alone


class SharedCalls:
    """Joins the calls of one model that several threads make at the same time.

    A call waits while another runs, or for a few milliseconds where other threads are likely to
    call as well, and then all that wait are made as one. Where that raises, each is made alone.

    Args:
        model: One that `answers_by_row`.
        patience: Seconds that a call waits for others.

    Examples:
        >>> calls = SharedCalls(abs)
        >>> calls.call("key", np.array([[-1.0]]), abs).tolist()
        [[1.0]]
    """

    def __init__(self, model: Any, patience: float = PATIENCE) -> None:
        self.model = model
        self.patience = patience
        self._turn = threading.Condition()
        self._waiting: list[_Call] = []
        self._busy = False
        self._threads = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Meanwhile calls of the model in this thread are joined with those of others."""
        token = _current.set(self)
        with self._turn:
            self._threads += 1
        try:
            yield
        finally:
            with self._turn:
                self._threads -= 1
                self._turn.notify_all()
            _current.reset(token)

    def call(self, key: Hashable, cells: Floats, function: Callable[[Floats], Any]) -> Any:
        """What `function` returns for these rows, computed together with rows of other threads.

        Args:
            key: Calls with the same key may be joined.
            cells: The rows, (n, d).
            function: Returns one entry for each row.
        """
        if len(cells) > ROWS:
            return function(cells)
        mine = _Call(key, cells)
        with self._turn:
            self._waiting.append(mine)
            self._turn.notify_all()
            self._turn.wait_for(lambda: mine.done or not (self._busy or mine.taken))
            self._busy = self._busy or not mine.done
        if mine.done:
            return function(cells) if mine.output is None else mine.output
        joined = [mine]
        try:
            joined = self._joined(mine)
            output = function(np.concatenate([call.cells for call in joined]))
            begin = 0
            for call in joined:
                call.output = output[begin : begin + len(call.cells)]
                begin += len(call.cells)
        except BaseException:
            if len(joined) == 1:
                raise
        finally:
            with self._turn:
                for call in joined:
                    call.done = True
                self._waiting = [call for call in self._waiting if not call.done]
                self._busy = False
                self._turn.notify_all()
        return function(cells) if mine.output is None else mine.output

    def _joined(self, mine: _Call) -> list[_Call]:
        """A call and those of other threads that can be made with it, after a short wait."""
        with self._turn:
            self._turn.wait_for(lambda: len(self._waiting) >= self._threads, self.patience)
            joined = [call for call in self._waiting if call.key == mine.key]
            for call in joined:
                call.taken = True
                self._waiting.remove(call)
        return joined


_current: ContextVar[SharedCalls | None] = ContextVar("shared_calls", default=None)


def current_calls(model: Any) -> SharedCalls | None:
    """What joins the calls of a model in this thread, if anything does."""
    calls = _current.get()
    return calls if calls is not None and calls.model is model else None
