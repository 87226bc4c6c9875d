"""From bytes to a question the library can be asked, or one sentence that says what is wrong.

JSON is read strictly: UTF-8, no NaN, no number too large to compute with, no name twice in an
object, no half of a surrogate pair. What a column holds and what a setting may be is the library's
to say; here only the shape is looked at, so that nothing but texts, numbers, true, false and null
gets through.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from lapace.errors import InputError, did_you_mean
from lapace.schema import Schema
from lapace.server.refusals import RefusedError

__all__ = ["OPTIONS", "Limits", "Question", "read_question"]

# What `Explainer.explain` takes beside the instances, by the same names.
OPTIONS = (
    "target", "constraints", "costs", "steps", "detail", "enforce", "sparse", "stable",
    "confidence",
)  # fmt: skip
LARGEST = 1e100  # of numbers: their squares, and their multiples of any unit, are numbers too
MOST_CONSTRAINTS = 100
LONGEST_CONSTRAINT = 1_000  # characters
MOST_NAMES = 1_000  # columns looked at for the one that was meant


@dataclass(frozen=True)
class Limits:
    """How much may be asked at once.

    Attributes:
        body: Bytes of a question.
        instances: Instances in a question.
        steps: Steps of a path.

    Examples:
        >>> Limits().instances
        100
    """

    body: int = 1_000_000
    instances: int = 100
    steps: int = 100

    def __post_init__(self) -> None:
        """Limits nobody could keep are refused."""
        for name, least in (("body", 1), ("instances", 1), ("steps", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(
                    f"max_{name} is {value!r}; it must be a whole number from {least} on."
                )


class Question(NamedTuple):
    """Who is asked about, and the settings that were given.

    Examples:
        >>> Question([{"age": 40}], {"steps": 10}).options
        {'steps': 10}
    """

    instances: list[dict[str, Any]]
    options: dict[str, Any]


def read_question(body: bytes, schema: Schema, limits: Limits) -> Question:
    """A question as it came in.

    Args:
        body: JSON.
        schema: The columns instances have.
        limits: How much may be asked.

    Examples:
        >>> schema = Schema.infer([{"age": 31}, {"age": 44}])
        >>> read_question(b'{"instances": [{"age": 40, "name": "x"}]}', schema, Limits())
        Question(instances=[{'age': 40}], options={})
    """
    data = _read(body)
    if not isinstance(data, dict):
        _wrong(
            f'The question is {_kind(data)}; it must be an object such as {{"instances": [...]}}.'
        )
    for name in data:
        if name not in ("instances", *OPTIONS):
            hint = did_you_mean(name, ("instances", *OPTIONS))
            _wrong(f"The question has an entry {_quoted(name)} that means nothing here.{hint}")
    if "instances" not in data:
        _wrong("The question does not say whom it is about: 'instances' is missing.")
    instances = _instances(data["instances"], schema, limits)
    options = {name: data[name] for name in OPTIONS if data.get(name) is not None}
    _check_target(options.get("target"))
    _check_constraints(options.get("constraints", ()))
    _check_costs(options.get("costs", {}))
    steps = options.get("steps")
    if isinstance(steps, int) and steps > limits.steps:
        _wrong(f"steps is {steps}; this server takes at most {limits.steps:,}.")
    return Question(instances, options)


# ------------------------------------------------------------------------------------------------
# JSON


def _read(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"The body is not UTF-8 at byte {error.start}.") from None
    try:
        data = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RefusedError(400, f"The body is not JSON at {where}: {error.msg}.") from None
    except RecursionError:
        raise RefusedError(400, "The body is nested too deeply.") from None
    if "\\u" in text:
        _refuse_surrogates(data)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        _wrong(f"{_quoted(twice)} is there twice in one object. Keep one of them.")
    return found


def _integer(digits: str) -> int:
    if len(digits) > 101:  # so many digits and a sign; Python itself refuses thousands
        _too_large(digits)
    return int(digits)


def _decimal(digits: str) -> float:
    value = float(digits)
    if abs(value) > LARGEST:
        _too_large(digits)
    return value


def _too_large(digits: str) -> NoReturn:
    shown = digits if len(digits) <= 20 else f"{digits[:20]}…"
    _wrong(f"The number {shown} is too large to compute with: numbers go to {LARGEST:g}.")


def _constant(word: str) -> NoReturn:
    raise RefusedError(
        400, f"The body is not JSON: it has no {word}. Say null for what is missing."
    )


def _refuse_surrogates(data: Any) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _wrong("A text holds half of a surrogate pair, which is no character.")


# ------------------------------------------------------------------------------------------------
# Shapes


def _instances(instances: Any, schema: Schema, limits: Limits) -> list[dict[str, Any]]:
    """Everyone's known columns; others are left aside, as the library does."""
    if not isinstance(instances, list):
        _wrong(
            f"instances is {_kind(instances)}; it must be a list of objects, one for each instance."
        )
    if len(instances) > limits.instances:
        _wrong(
            f"There are {len(instances):,} instances; this server answers at most {limits.instances:,} at "
            "a time. Ask in parts."
        )
    for i, instance in enumerate(instances):
        if not isinstance(instance, dict):
            _wrong(f"instances[{i}] is {_kind(instance)}; it must be an object of columns.")
    known = set(schema.names)
    given = dict.fromkeys(name for instance in instances for name in instance)
    if instances and not known <= given.keys():
        # The library has a sentence for this; it need not look at more than the names.
        schema.read([dict.fromkeys([*(known & given.keys()), *_some(given)])])
    for i, instance in enumerate(instances):
        for name in known & instance.keys():
            if isinstance(instance[name], dict | list):
                _wrong(
                    f"instances[{i}] has {_kind(instance[name])} in column {_quoted(name)}; it must be "
                    "a text, a number, true, false or null."
                )
    return [{n: instance[n] for n in schema.names if n in instance} for instance in instances]


def _some(names: Iterable[str]) -> list[str]:
    return [name for name, _ in zip(names, range(MOST_NAMES), strict=False)]


def _check_target(target: Any) -> None:
    for i, label in enumerate(target if isinstance(target, list) else [target]):
        if isinstance(label, dict | list) or (label is None and target is not None):
            where = f"target[{i}]" if isinstance(target, list) else "target"
            _wrong(f"{where} is {_kind(label)}; it must be a label.")


def _check_constraints(constraints: Any) -> None:
    listed = [constraints] if isinstance(constraints, str) else constraints
    if not isinstance(listed, list | tuple):
        _wrong(f"constraints is {_kind(listed)}; it must be a list of texts.")
    if len(listed) > MOST_CONSTRAINTS:
        _wrong(f"There are {len(listed):,} constraints; at most {MOST_CONSTRAINTS} are taken.")
    for i, constraint in enumerate(listed):
        if not isinstance(constraint, str):
            _wrong(f"constraints[{i}] is {_kind(constraint)}; it must be a text.")
        if len(constraint) > LONGEST_CONSTRAINT:
            _wrong(
                f"constraints[{i}] has {len(constraint):,} characters; at most "
                f"{LONGEST_CONSTRAINT:,} are read."
            )


def _check_costs(costs: Any) -> None:
    if not isinstance(costs, dict):
        _wrong(f'costs is {_kind(costs)}; it must be an object such as {{"income": 2.0}}.')
    for name, cost in costs.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            _wrong(f"The cost of {_quoted(name)} is {_kind(cost)}; it must be a number.")
        costs[name] = float(cost)


def _wrong(sentence: str) -> NoReturn:
    raise RefusedError(422, sentence)


def _quoted(name: str) -> str:
    return f"'{name if len(name) <= 80 else name[:79] + '…'}'"


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value), "a number")
