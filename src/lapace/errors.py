"""The errors and warnings lapace raises, and checks that raise them.

```
LapaceError
├── InputError        (also a ValueError)  a table, setting or constraint that cannot be used
├── NotFittedError    (also scikit-learn's) called before `fit`; of lapace.explainer
└── ClassifierError                        the classifier raised, or returned what cannot be used
CentroidWarning       (a UserWarning)      a prototype the classifier does not accept
```

Every message says what is wrong, where, and what to do about it. A missing extra is an ImportError.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from math import inf, nan
from numbers import Integral, Real
from pathlib import Path
from typing import Any

__all__ = [
    "CentroidWarning",
    "ClassifierError",
    "InputError",
    "LapaceError",
    "check_integer",
    "check_number",
    "did_you_mean",
    "first_line",
    "import_extra",
    "warn",
]


class LapaceError(Exception):
    """The root of everything lapace raises on purpose."""


class InputError(LapaceError, ValueError):
    """An argument or a file cannot be used; the message says what to change."""


class ClassifierError(LapaceError):
    """The classifier raised, or returned a wrong number of rows or an unknown label."""


class CentroidWarning(UserWarning):
    """A cluster's centroid is not labelled as its class by the classifier."""


def did_you_mean(name: object, options: Iterable[object]) -> str:
    """Returns the nearest known name, as the tail of an error sentence.

    Examples:
        >>> did_you_mean("incme", ["age", "income"])
        " Did you mean 'income'?"
        >>> did_you_mean("zzz", ["age", "income"])
        ''
    """
    texts = {str(option).lower(): str(option) for option in options}
    close = get_close_matches(str(name).lower(), texts, n=1, cutoff=0.6)
    return f" Did you mean '{texts[close[0]]}'?" if close else ""


def first_line(error: Exception) -> str:
    """Returns the first line of an exception's message, or else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def import_extra(module: str, extra: str, what: str) -> Any:
    """Imports an optional dependency, or raises an ImportError that says what to install.

    Examples:
        >>> import_extra("no_such_package", "extra", "A picture")
        Traceback (most recent call last):
        ImportError: A picture needs no_such_package: pip install 'lapace[extra]'.
    """
    try:
        return import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise ImportError(f"{what} needs {library}: pip install 'lapace[{extra}]'.") from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns, pointing at the first caller outside of lapace."""
    package = str(Path(__file__).parent)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_integer(name: str, value: Any, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
    """Returns a setting as an int; anything but a whole number is an `InputError`.

    Examples:
        >>> check_integer("steps", 0)
        Traceback (most recent call last):
        lapace.errors.InputError: steps is 0; it must be a whole number from 1 on.
    """
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if whole is None or whole < minimum:
        raise InputError(f"{name} is {value!r}; it must be a whole number from {minimum} on.")
    if whole > maximum:
        raise InputError(f"{name} is {value!r}; it must be at most {maximum}.")
    return whole


def check_number(name: str, value: Any, low: float = -inf, high: float = inf) -> float:
    """Returns a setting as a float; anything but a number within bounds is an `InputError`.

    Examples:
        >>> check_number("share", 1.5, 0, 1)
        Traceback (most recent call last):
        lapace.errors.InputError: share is 1.5; it must be a number from 0 to 1.
    """
    real = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    if low <= real <= high:
        return real
    bounds = f" from {low:g}" if low > -inf else ""
    bounds += "" if not bounds else " on" if high == inf else f" to {high:g}"
    raise InputError(f"{name} is {value!r}; it must be a number{bounds}.")
