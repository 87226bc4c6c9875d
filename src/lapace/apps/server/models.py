"""The bodies of requests and responses as pydantic models, made for one explainer.

Pydantic checks the shape of a request and this server's limits; whether a column, label or
constraint exists is decided by the library, with its messages. The OpenAPI document is made from
the same models. An explanation is described by the published JSON Schema, word for word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from itertools import islice
from math import isnan
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from lapace.apps.server.http import cut, read_json
from lapace.classifier import Label
from lapace.errors import InputError, did_you_mean
from lapace.explainer import ANY_OTHER, Explainer, Search
from lapace.result import PICKS, Explanation, WhyNot, json_schema, record
from lapace.schema import Feature, Schema

# And the models of responses, which only the routes need.
__all__ = ["ExplainRequest", "WhyNotRequest", "parse_request", "request_models"]

MAX_CONSTRAINTS = 100
MAX_CONSTRAINT_LENGTH = 1_000  # characters
MAX_NAMES = 1_000  # columns searched for the one that was meant
MAX_BEST = 10  # different ways for each instance
MAX_QUERIES = 50_000  # rows the classifier may be queried about to find the reasons
MAX_STARTS = 100  # rows a search starts from
REF = "#/components/schemas/"
Pick: TypeAlias = Literal["best", "nearest", "first", "middle", "last"]
SEARCH_FIELDS: dict[str, Any] = {
    field.name: (get_type_hints(Search)[field.name], field.default) for field in fields(Search)
} | {  # JSON has lists, no tuples
    "picks": (list[Pick], Field(list(PICKS), max_length=len(PICKS))),
    "n_best": (int, Field(Search().n_best, ge=1, le=MAX_BEST)),
    "n_starts": (int, Field(Search().n_starts, ge=1, le=MAX_STARTS)),
}

Json: TypeAlias = dict[str, Any]
Body = TypeVar("Body", bound="ExplainRequest")


def _sentence(error: ValidationError) -> str:
    """The first problem pydantic found, as one sentence that names the field."""
    problem = error.errors(include_url=False)[0]
    parts = [f"[{part}]" if isinstance(part, int) else f".{cut(part)}" for part in problem["loc"]]
    where, value = "".join(parts).removeprefix("."), problem["input"]
    if problem["type"] == "value_error":  # raised by a validator below, with a sentence
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing":
        return f"The request lacks the field '{where}'."
    if isinstance(value, list | dict):
        shown = f"a list of length {len(value):,}" if isinstance(value, list) else "an object"
    else:
        shown = cut(json.dumps(value, default=repr))
    must = re.sub(r"^\w+ should", "it must", problem["msg"].replace(" after validation", ""))
    must = re.sub(r"a valid dictionary.*", "an object", must)
    return f"{where or 'The body'} is {shown}; {must}."


# ------------------------------------------------------------------------------------------------
# Requests


class RequestModel(BaseModel):
    """An object in a request: null means the default, and an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in data.keys() - cls.model_fields.keys():
            hint = did_you_mean(name, cls.model_fields)
            if "search" in cls.model_fields and name in SEARCH_FIELDS:
                hint = " Put it into the object 'search'."
            raise InputError(f"The request has an unknown field '{cut(name)}'.{hint}")
        return {name: value for name, value in data.items() if value is not None}


class ExplainRequest(RequestModel):
    """The arguments of `Explainer.explain`."""

    instances: list[Json]
    target: Any = None
    constraints: list[Annotated[str, Field(max_length=MAX_CONSTRAINT_LENGTH)]] = Field(
        [], max_length=MAX_CONSTRAINTS
    )
    costs: dict[str, float] = {}
    confidence: float | None = Field(None, gt=0, le=1)
    plausibility: float | None = Field(None, ge=0, lt=100)
    search: RequestModel = RequestModel()

    def explain(self, explainer: Explainer) -> Explanation:
        """Calls `Explainer.explain` with what was requested."""
        return explainer.explain(
            self.instances,
            target=self.target,
            constraints=self.constraints,
            costs=self.costs,
            confidence=self.confidence,
            plausibility=self.plausibility,
            search=Search(**self.search.model_dump()),
        )


class WhyNotRequest(ExplainRequest):
    """The arguments of `Explainer.explain` and `Explainer.why_not`."""

    max_queries: int = Field(MAX_QUERIES, ge=0, le=MAX_QUERIES)

    def explain(self, explainer: Explainer) -> Explanation:
        """Calls `Explainer.explain`, then `Explainer.why_not`, with what was requested."""
        return explainer.why_not(super().explain(explainer), max_queries=self.max_queries)


def request_models(
    explainer: Explainer, *, max_instances: int, max_steps: int
) -> tuple[type[ExplainRequest], type[WhyNotRequest]]:
    """The models of requests to one explainer: its columns, its labels, this server's limits.

    Args:
        explainer: A fitted one.
        max_instances: Instances in a request.
        max_steps: Steps of a path.

    Examples:
        >>> rows = [{"age": n % 9, "home": "own"} for n in range(99)]
        >>> explainer = Explainer(lambda rows: [row["age"] > 4 for row in rows]).fit(rows)
        >>> model, _ = request_models(explainer, max_instances=9, max_steps=50)
        >>> model(instances=[{"age": 3, "home": "own", "name": "x"}]).instances
        [{'age': 3, 'home': 'own'}]
    """
    # Shapes go into `Field` and not into `Annotated`: typing hands out one type for equal metadata,
    # and to it the labels of one explainer, 0 and 1, equal those of another, false and true.
    schema, labels = explainer.schema_, list(explainer.classes_)
    cells = {feature.name: _cell_schema(feature) for feature in schema.features}
    row: Json = {"type": "object", "required": list(cells), "properties": cells}
    several = {"type": "array", "items": {"enum": labels}}
    target: Json = {"anyOf": [{"enum": [*labels, ANY_OTHER]}, several]}
    weights = {name: {"type": "number", "minimum": 0} for name in cells}
    costs: Json = {"properties": weights, "additionalProperties": False}
    steps = (int, Field(min(Search().steps, max_steps), ge=2, le=max_steps))
    search = create_model(
        "SearchSettings", __base__=RequestModel, **{**SEARCH_FIELDS, "steps": steps}
    )
    narrowed: Json = {
        "instances": (
            Annotated[list[Json], BeforeValidator(partial(_select_columns, schema))],
            Field(max_length=max_instances, json_schema_extra={"items": row}),
        ),
        "target": (Any, Field(None, json_schema_extra=target)),
        "costs": (dict[str, float], Field({}, json_schema_extra=costs)),
        "search": (search, search()),
    }
    return (
        create_model("ExplainRequest", __base__=ExplainRequest, **narrowed),
        create_model("WhyNotRequest", __base__=WhyNotRequest, **narrowed),
    )


def parse_request(model: type[Body], body: bytes) -> Body:
    """The request in a body of JSON, or 400 or 422 with a sentence about what is wrong."""
    data = read_json(body)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise HTTPException(422, _sentence(error)) from None


def _cell_schema(feature: Feature) -> Json:
    """Returns the JSON Schema of an instance's cell, which may hold more than training rows."""
    if feature.kind == "continuous":
        return {"type": ["number", "null"], "description": feature.description}
    some = ", ".join(map(str, feature.categories[:20]))
    return {"type": ["string", "number", "boolean", "null"], "description": f"Such as {some}."}


def _select_columns(schema: Schema, rows: Any) -> Any:
    """The schema's columns of every row; a column that no row has, or a nested cell, is refused."""
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        return rows
    known, sent = set(schema.names), dict.fromkeys(name for row in rows for name in row)
    if rows and not known <= sent.keys():
        # The library has a sentence for this, and needs the names only.
        schema.read([dict.fromkeys([*(known & sent.keys()), *islice(sent, MAX_NAMES)])])
    for i, row in enumerate(rows):
        for name in known & row.keys():
            if isinstance(row[name], dict | list):
                where = f"instances[{i}].{cut(name)}"
                raise InputError(f"{where} must be a string, a number, true, false or null.")
    return [{name: row[name] for name in schema.names if name in row} for row in rows]


# ------------------------------------------------------------------------------------------------
# Responses


class ErrorResponse(BaseModel):
    """Any error."""

    error: str = Field(description="One sentence.")


class HealthResponse(BaseModel):
    """How busy the server is."""

    status: Literal["ok", "stuck", "stopping"]
    running: int
    waiting: int
    stuck: int = Field(description="Requests that timed out and still hang in the classifier.")


class SchemaResponse(BaseModel):
    """Columns, labels, rules and limits."""

    labels: list[Label]
    rules: list[str]
    features: list[Json]
    limits: dict[str, int]


class PrototypeResponse(BaseModel):
    """A cluster's centroid, decoded and classified."""

    number: int
    label: Label
    valid: bool
    probability: Annotated[float | None, BeforeValidator(lambda p: None if isnan(p) else p)]
    members: int
    note: str
    row: Json


class PrototypesResponse(BaseModel):
    """The endpoints of paths."""

    prototypes: list[PrototypeResponse]


class ReportResponse(BaseModel):
    """The fit report."""

    model_config = ConfigDict(extra="allow")

    format: str
    version: int
    verdict: Literal["passes", "unsure", "fails"]
    checks: Any


class InstanceWhyNot(BaseModel):
    """Why one instance has no counterfactual."""

    instance: int = Field(description="Position in the request.")
    status: str
    reason: str
    why_not: WhyNot | None = Field(description="null where there is a counterfactual.")


class WhyNotResponse(BaseModel):
    """Why instances have no counterfactual."""

    format: Literal["lapace/why-not"]
    version: int
    instances: list[InstanceWhyNot]


# ------------------------------------------------------------------------------------------------
# The OpenAPI document


def component_schemas(models: Iterable[type[BaseModel]]) -> Json:
    """The schemas of requests and of an explanation, for the components of the document."""
    _, document = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF + "{model}"
    )
    explanation = json.loads(json.dumps(json_schema()).replace("#/$defs/", f"{REF}Explanation-"))
    parts = {f"Explanation-{name}": part for name, part in explanation.pop("$defs").items()}
    del explanation["$schema"], explanation["$id"]
    return {**document["$defs"], "Explanation": explanation, **parts}


def request_examples(explainer: Explainer) -> dict[str, Json]:
    """Requests that can be sent to this explainer as they are, by what they show."""
    names, prototypes = explainer.schema_.names, explainer.prototypes_
    end = next((p for p in prototypes if p.valid), None)
    if end is None:
        return {}
    start = next((p for p in prototypes if p.label != end.label), end)
    rows = [record(explainer.schema_, prototype.cells) for prototype in (start, end)]
    one: Json = {"instances": rows[:1], "target": end.label}
    quick = {
        "target": ANY_OTHER,
        "search": {"steps": 5, "n_starts": 3, "picks": ["nearest"]},
    }
    limited = {"constraints": [f"fixed `{names[0]}`", "changes <= 6"], "costs": {names[-1]: 2.0}}
    several = {"instances": rows, "target": [end.label, end.label]}
    return {
        "one instance": one,
        "any other label, in few steps": one | quick,
        "under constraints": one | limited,
        "one target for each instance": {**several, "search": {"stable": False, "n_best": 2}},
    }
