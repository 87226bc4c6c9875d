"""JSON documents in and out: the types say what a document holds.

`plain` turns dataclasses, structs and arrays into plain JSON values, `restore` turns plain values
back and refuses whatever does not fit the types, and `schema_of` writes the JSON Schema of a type.
A class whose documents must not hold unknown fields derives from `Document`.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import msgspec
import numpy as np

from lapace.errors import InputError

__all__ = ["Document", "plain", "restore", "schema_of"]

T = TypeVar("T")


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of documents and their parts, which refuse unknown fields.

    Examples:
        >>> class Point(Document):
        ...     x: float
        ...     y: float = 0.0
        >>> plain(Point(x=1.0)), restore(Point, {"x": 2}, "a point")
        ({'x': 1.0, 'y': 0.0}, Point(x=2.0, y=0.0))
    """


def plain(value: Any) -> dict[str, Any]:
    """Returns a dataclass, struct or dictionary as plain JSON values, whatever is nested in it.

    Numbers that JSON does not have become None: NaN is an unknown value, infinity an unbounded one.

    Examples:
        >>> plain({"rows": (1, 2), "share": np.float64(0.5), "cells": np.array([[1.0, np.nan]])})
        {'rows': [1, 2], 'share': 0.5, 'cells': [[1.0, None]]}
    """
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_to_plain))
    return values


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def restore(kind: type[T], data: Any, what: str) -> T:
    """Returns plain JSON values as the dataclass or struct they were made from.

    Args:
        kind: The type to restore.
        data: The values, as `plain` returned them or as a file held them.
        what: The document in words, for the message where it does not fit.

    Raises:
        InputError: The values do not fit the type; the message names the place.

    Examples:
        >>> restore(tuple[int, ...], [1, 2], "the list")
        (1, 2)
        >>> restore(tuple[int, ...], [1, "2"], "the list")
        Traceback (most recent call last):
        lapace.errors.InputError: The list is damaged: Expected `int`, got `str`, at [1].
    """
    try:
        return msgspec.convert(data, kind, dec_hook=_to_numpy, str_keys=True)
    except (msgspec.ValidationError, OverflowError) as error:
        problem, _, place = str(error).partition(" - at `$")
        where = f", at {place.strip('.`')}" if place else ""
        sentence = f"{what[:1].upper()}{what[1:]} is damaged: {problem.rstrip('.')}{where}."
        raise InputError(sentence) from None


def _to_numpy(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        dtype = kind.__args__[1].__args__[0]
        return np.array(value, dtype=dtype)
    raise NotImplementedError(f"documents do not hold {kind}")


def schema_of(kind: Any, address: str, title: str) -> dict[str, Any]:
    """Returns the JSON Schema of a type, with its docstrings as descriptions.

    Args:
        kind: A class derived from `Document`.
        address: The schema's `$id`.
        title: The schema's title.

    Examples:
        >>> class Share(Document):
        ...     "A share of rows."
        ...     value: float
        >>> found = schema_of(Share, "https://example.org/share.json", "share")
        >>> found["required"], found["description"]
        (['value'], 'A share of rows.')
    """
    _, parts = msgspec.json.schema_components([kind], schema_hook=_schema_of_array)
    for part in parts.values():
        if text := part.get("description"):
            part["description"] = inspect.cleandoc(text).split("\n\nExamples:")[0]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": address}
    return {**head, **parts.pop(kind.__name__), "title": title, "$defs": parts}


def _schema_of_array(kind: Any) -> dict[str, Any]:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        return {"type": "array"}
    raise NotImplementedError(f"documents do not hold {kind}")
