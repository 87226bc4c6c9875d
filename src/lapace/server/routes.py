"""The routes of the API: what each path answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lapace.errors import ClassifierError, InputError
from lapace.explainer import Explainer
from lapace.result import Explanation, why_not_to_json
from lapace.server.http import read_body
from lapace.server.models import (
    REF,
    ErrorResponse,
    ExplainRequest,
    HealthResponse,
    Json,
    PrototypesResponse,
    ReportResponse,
    SchemaResponse,
    WhyNotResponse,
    component_schemas,
    parse_request,
    request_examples,
    request_models,
)
from lapace.server.work_queue import WorkQueue

__all__ = ["add_routes"]

INTERNAL_ERROR = "An error occurred inside the server. Its log says more."
CLASSIFIER_ERROR = "The classifier failed. The server's log says more."
ROW_ERROR = "The classifier failed on the row of this instance."
VERSION_1 = "Version 1 of this API is gone. Use /v2/…; GET /openapi.json lists the routes."
ERRORS_OF_GET = (401, 403, 429, 500)
ERRORS_OF_POST = (400, 401, 403, 408, 413, 415, 422, 429, 500, 502, 503, 504)
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}

ToJson: TypeAlias = Callable[[Explanation], dict[str, Any]]

log = logging.getLogger(__name__)


def add_routes(
    app: FastAPI, explainer: Explainer, queue: WorkQueue, *, limits: dict[str, int]
) -> None:
    """Adds the routes that explain with one explainer, and their bodies to the OpenAPI document.

    Args:
        app: The application.
        explainer: A fitted one.
        queue: Where explanations are computed.
        limits: Bytes of a `body`, `instances` in a request and `steps` of a path.
    """
    explain_model, why_not_model = request_models(
        explainer, max_instances=limits["instances"], max_steps=limits["steps"]
    )
    examples = request_examples(explainer)
    explanation = {"content": {"application/json": {"schema": {"$ref": f"{REF}Explanation"}}}}

    async def respond(request: Request, model: type[ExplainRequest], to_json: ToJson) -> Response:
        body = await read_body(request, limits["body"], queue.timeout)
        parsed = parse_request(model, body)
        content = await queue.run(
            lambda: _explain(explainer, parsed, to_json), lambda: _wait_for_disconnect(request)
        )
        return Response(content, media_type="application/json")

    @app.post("/v2/explain", **_described(explain_model, examples, explanation))
    async def explain(request: Request) -> Response:
        """Everything found for all instances, in the published format."""
        return await respond(request, explain_model, Explanation.to_json)

    @app.post("/v2/why-not", **_described(why_not_model, examples, {"model": WhyNotResponse}))
    async def why_not(request: Request) -> Response:
        """For every instance without a counterfactual: why, and which constraints to relax."""
        return await respond(request, why_not_model, why_not_to_json)

    @app.api_route("/v1/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def version_1() -> Response:
        raise HTTPException(410, VERSION_1)

    _add_get_routes(app, explainer, queue, limits)
    schemas = app.openapi()["components"]["schemas"]  # the app keeps the document it made
    schemas.update(component_schemas([explain_model, why_not_model]))


def _add_get_routes(
    app: FastAPI, explainer: Explainer, queue: WorkQueue, limits: dict[str, int]
) -> None:
    # A fitted explainer does not change, so these bodies are made once.
    schema_body = SchemaResponse.of(explainer, limits)
    prototypes_body = PrototypesResponse.of(explainer)
    report_body = ReportResponse(**explainer.report_.to_json())

    @app.get("/v2/schema", responses=_errors(ERRORS_OF_GET))
    async def schema() -> SchemaResponse:
        """Columns, labels, rules and limits."""
        return schema_body

    @app.get("/v2/prototypes", responses=_errors(ERRORS_OF_GET))
    async def prototypes() -> PrototypesResponse:
        """The endpoints of paths."""
        return prototypes_body

    @app.get("/v2/report", responses=_errors(ERRORS_OF_GET))
    async def report() -> ReportResponse:
        """What was learned, and whether to trust it."""
        return report_body

    @app.get("/healthz", responses={503: {"model": HealthResponse}})
    async def healthz(response: Response) -> HealthResponse:
        """How many requests run, wait and hang; 503 when all threads hang."""
        health = queue.health()
        response.status_code = 200 if health.status == "ok" else 503
        return health


def _described(model: type[BaseModel], examples: Json, response: Json) -> Json:
    """The OpenAPI description of a route that takes a body."""
    named = {name: {"summary": name, "value": value} for name, value in examples.items()}
    media = {"schema": {"$ref": f"{REF}{model.__name__}"}, "examples": named}
    body = {"required": True, "content": {"application/json": media}}
    return {
        "openapi_extra": {"requestBody": body},
        "responses": {200: response, **_errors(ERRORS_OF_POST)},
    }


def _errors(statuses: Iterable[int]) -> dict[int | str, Json]:
    """The OpenAPI description of errors."""
    return {
        status: {"model": ErrorResponse, "headers": RETRY_AFTER if status in (429, 503) else {}}
        for status in statuses
    }


async def _wait_for_disconnect(request: Request) -> None:
    """Returns when the client closes the connection; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _explain(explainer: Explainer, request: ExplainRequest, to_json: ToJson) -> bytes:
    """In a thread: explains, and writes the JSON, which takes time as well."""
    try:
        found = to_json(request.explain(explainer))
        _hide_classifier_errors(explainer, request, found["instances"])
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode("ascii")
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    except ClassifierError as error:
        # Its message may name addresses and files: for the log only.
        log.error("The classifier failed: %s", error)
        raise HTTPException(502, CLASSIFIER_ERROR) from None
    except Exception:
        log.exception("A request failed.")
        raise HTTPException(500, INTERNAL_ERROR) from None


def _hide_classifier_errors(
    explainer: Explainer, request: ExplainRequest, instances: list[Json]
) -> None:
    """Replaces what a classifier said when it raised on one instance's row."""
    malformed = [i for i, found in enumerate(instances) if found["status"] == "malformed"]
    unreadable = explainer.schema_.read(request.instances).problems if malformed else {}
    for i in malformed:
        if i not in unreadable:
            log.error("Instance %d: %s", i, instances[i]["reason"])
            instances[i]["reason"] = ROW_ERROR
