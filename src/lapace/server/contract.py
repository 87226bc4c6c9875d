"""The OpenAPI document: the endpoints in the table's own columns, with examples that work.

Examples are made of the served explainer's own prototypes and labels, so each can be sent as it
stands. What an answer looks like is the published JSON Schema, taken over word for word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from lapace.explainer import ANY_OTHER, Explainer, Prototype
from lapace.result import json_schema
from lapace.schema import Feature, Schema
from lapace.server.questions import LONGEST_CONSTRAINT, MOST_CONSTRAINTS, Limits
from lapace.table import Template

__all__ = ["components", "described", "examples", "record", "responses"]

Json: TypeAlias = dict[str, Any]

REFUSALS = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "Without a token the server answers its own machine only.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not plain JSON, or does not say so.",
    422: "The question cannot be answered; the sentence says what to change.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "Something went wrong inside; the server's log says what.",
    502: "The classifier failed; the server's log says how.",
    503: "The classifier hangs, or the server is stopping.",
    504: "The answer took too long.",
}
ALWAYS = (401, 403, 429, 500)
HEADERS = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}


def record(schema: Schema, prototype: Prototype) -> Json:
    """A prototype's row by column, in plain values.

    Args:
        schema: The columns.
        prototype: One of the explainer's.
    """
    whole = tuple("integer" if f.integer else "number" for f in schema.features)
    template = Template("records", schema.names, whole)
    row: Json = schema.frame(prototype.cells[None], template)[0]
    return row


def responses(answer: str, *, asked: bool) -> dict[int | str, Json]:
    """What an endpoint may answer.

    Args:
        answer: The name of the schema of what it answers if all is well.
        asked: Whether a body is read and the classifier asked.

    Examples:
        >>> sorted(responses("Report", asked=False))
        [200, 401, 403, 429, 500]
    """
    codes = REFUSALS if asked else ALWAYS
    found: dict[int | str, Json] = {200: {"description": "The answer.", **_content(answer)}}
    for code in codes:
        headers = {"headers": HEADERS} if code in (429, 503) else {}
        found[code] = {"description": REFUSALS[code], **_content("Error"), **headers}
    return found


def described(question: Mapping[str, Json]) -> Json:
    """The body of a question, with examples by name."""
    shown = {name: {"summary": name, "value": value} for name, value in question.items()}
    media = {"schema": {"$ref": "#/components/schemas/Question"}, "examples": shown}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


def _content(name: str) -> Json:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


# ------------------------------------------------------------------------------------------------
# Examples


def examples(explainer: Explainer) -> dict[str, Json]:
    """Questions that this explainer answers, by what they show."""
    schema = explainer.schema_
    walked = [p for p in explainer.prototypes_ if explainer.fitted_.is_endpoint(p)]
    if not walked:
        return {}
    target = walked[0].label
    start = next((p for p in explainer.prototypes_ if p.label != target), walked[0])
    instance, wanted = record(schema, start), target
    name = f"`{schema.names[0]}`"
    return {
        "one instance": {"instances": [instance], "target": wanted},
        "any other label, in few steps": {
            "instances": [instance],
            "target": ANY_OTHER,
            "steps": 5,
            "detail": "picks",
        },
        "under constraints": {
            "instances": [instance],
            "target": wanted,
            "constraints": [f"fixed {name}", "changes <= 6"],
            "costs": {schema.names[-1]: 2.0},
            "sparse": True,
        },
        "each their own target": {
            "instances": [instance, record(schema, walked[0])],
            "target": [wanted, wanted],
            "stable": False,
        },
    }


# ------------------------------------------------------------------------------------------------
# Schemas


def components(explainer: Explainer, limits: Limits, *, token: bool) -> Json:
    """Everything the endpoints refer to."""
    named: Json = {
        "Error": _object({"error": {"type": "string", "description": "One sentence."}}),
        "Question": _question(explainer, limits),
        "WhyNot": _why_not(),
        "Schema": _columns(),
        "Prototypes": _prototypes(),
        "Report": {
            "type": "object",
            "required": ["format", "version", "verdict", "checks"],
            "properties": {"verdict": {"enum": ["passes", "usable with care", "fails"]}},
        },
        "Health": _health(),
        **_published(),
    }
    found: Json = {"schemas": named}
    if token:
        found["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found


def _published() -> Json:
    """The JSON Schema of an explanation with its parts under names of their own."""
    whole = _renamed(json_schema())
    parts = {f"Explanation-{name}": part for name, part in whole.pop("$defs").items()}
    kept = {key: value for key, value in whole.items() if key not in ("$schema", "$id")}
    return {"Explanation": kept, **parts}


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part) for part in value]
    if isinstance(value, str) and value.startswith("#/$defs/"):
        return value.replace("#/$defs/", "#/components/schemas/Explanation-")
    return value


def _object(properties: Json, *optional: str, **more: Any) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties, **more}


def _question(explainer: Explainer, limits: Limits) -> Json:
    columns = {f.name: _cell(f) for f in explainer.schema_.features}
    label = {"enum": [*explainer.classes_, ANY_OTHER]}
    text = {"type": "string", "maxLength": LONGEST_CONSTRAINT}
    properties: Json = {
        "instances": {
            "type": "array",
            "maxItems": limits.instances,
            "items": _object(columns),
            "description": "One object for each instance, by column; null is missing.",
        },
        "target": {
            "anyOf": [label, {"type": "array", "items": {"enum": list(explainer.classes_)}}],
            "description": "The label wanted, one for each instance, or any other.",
        },
        "constraints": {"type": "array", "maxItems": MOST_CONSTRAINTS, "items": text},
        "costs": {
            "type": "object",
            "properties": {n: {"type": "number", "minimum": 0} for n in columns},
            "additionalProperties": False,
        },
        "steps": {"type": "integer", "minimum": 2, "maximum": limits.steps, "default": 20},
        "detail": {"enum": ["path", "picks"], "default": "path"},
        "enforce": {"enum": ["exact", "naive", "latent"], "default": "exact"},
        "sparse": {"type": "boolean", "default": False},
        "stable": {"type": "boolean", "default": True},
        "confidence": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    }
    optional = [name for name in properties if name != "instances"]
    return _object(properties, *optional, additionalProperties=False)


def _cell(feature: Feature) -> Json:
    """What an instance may have in a column: more than was seen in training."""
    told = {"description": feature.description} if feature.description else {}
    if feature.kind == "continuous":
        return {"type": ["number", "null"], **told}
    seen = ", ".join(map(str, feature.categories[:20]))
    return {"type": ["string", "number", "boolean", "null"], "description": f"Such as {seen}."}


def _why_not() -> Json:
    instance = _object(
        {
            "instance": {"type": "integer", "description": "Position in the question."},
            "status": {"type": "string"},
            "reason": {"type": "string"},
            "why_not": {
                "type": ["object", "null"],
                "description": "null where there is an answer.",
            },
        }
    )
    head = {"format": {"const": "lapace/why-not"}, "version": {"const": 1}}
    return _object({**head, "instances": {"type": "array", "items": instance}})


def _columns() -> Json:
    return _object(
        {
            "labels": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/Explanation-label"},
            },
            "rules": {"type": "array", "items": {"type": "string"}},
            "features": {"type": "array", "items": {"type": "object"}},
            "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        }
    )


def _prototypes() -> Json:
    one = _object(
        {
            "number": {"type": "integer"},
            "label": {"$ref": "#/components/schemas/Explanation-label"},
            "valid": {"type": "boolean"},
            "probability": {"type": ["number", "null"]},
            "members": {"type": "integer"},
            "note": {"type": "string"},
            "row": {"type": "object"},
        }
    )
    return _object({"prototypes": {"type": "array", "items": one}})


def _health() -> Json:
    counts = {name: {"type": "integer"} for name in ("running", "waiting", "stuck")}
    return _object({"status": {"enum": ["ok", "stuck"]}, **counts})
