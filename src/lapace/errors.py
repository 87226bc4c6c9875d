"""What can go wrong, as a small tree.

```
LapaceError
├── InputError        (also a ValueError)  a table, setting or constraint that cannot be used
├── NotFittedError                         asked before `fit`
└── ClassifierError                        the black box raised, or answered nonsense
CentroidWarning       (a UserWarning)      a prototype the classifier does not accept
```

Every message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "CentroidWarning",
    "ClassifierError",
    "InputError",
    "LapaceError",
    "NotFittedError",
    "did_you_mean",
]


class LapaceError(Exception):
    """The root of everything lapace raises on purpose."""


class InputError(LapaceError, ValueError):
    """Something handed in cannot be used; the message says what to change."""


class NotFittedError(LapaceError):
    """`fit` has to come first."""


class ClassifierError(LapaceError):
    """The classifier raised, answered with the wrong length, or with a label nobody knows."""


class CentroidWarning(UserWarning):
    """A cluster's centroid is not labelled as its class by the classifier."""


def did_you_mean(name: object, options: Iterable[object]) -> str:
    """The nearest known name, as the tail of an error sentence.

    Examples:
        >>> did_you_mean("incme", ["age", "income"])
        " Did you mean 'income'?"
        >>> did_you_mean("zzz", ["age", "income"])
        ''
    """
    texts = {str(option).lower(): str(option) for option in options}
    close = get_close_matches(str(name).lower(), texts, n=1, cutoff=0.6)
    return f" Did you mean '{texts[close[0]]}'?" if close else ""
