"""JSON documents damaged in one place each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

# What is put into a place; KeyError takes away what is there.
DAMAGE = (KeyError, None, -1, 10**30, 1.5, "x", True, [], {}, [[1]])


def places(value: Any, most: int | None = None) -> Iterator[Place]:
    """Every place inside a document; of each list the first `most` items only."""
    if not isinstance(value, dict | list):
        return
    inside = value.items() if isinstance(value, dict) else enumerate(value[:most])
    for key, item in inside:
        yield (key,)
        yield from ((key, *rest) for rest in places(item, most))


def damaged(data: Any, place: Place, value: Any) -> Any:
    """A copy of the document with another value in a place."""
    data = inner = copy.deepcopy(data)
    for key in place[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return data
