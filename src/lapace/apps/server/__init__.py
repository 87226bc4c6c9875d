"""The JSON API: explanations over HTTP.

`create_app` makes a FastAPI application, `serve` runs it. A request has the arguments of
`Explainer.explain` as its fields, and the response is what `Explanation.to_json` writes. Every
error is answered with one sentence, `{"error": "…"}`, that reveals nothing about this machine.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

try:
    from fastapi import FastAPI
    from pydantic import BaseModel
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response

    from lapace.apps.server.metrics import Metrics
    from lapace.apps.server.running import run, run_workers
except ImportError as error:
    raise ImportError("Serving needs more packages: pip install 'lapace[serve]'.") from error

from lapace import __version__
from lapace.apps.server.http import (
    LOOPBACK_HOSTS,
    OPEN_PATHS,
    AccessMiddleware,
    error_response,
    read_body,
)
from lapace.apps.server.models import (
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
from lapace.apps.server.tokens import Tokens
from lapace.apps.server.work_queue import WorkQueue
from lapace.budget import Budget, BudgetError, limited
from lapace.errors import ClassifierError, InputError, check_integer, check_number
from lapace.explainer import Explainer
from lapace.result import Explanation, record, why_not_to_json

__all__ = ["create_app", "make_app", "run", "run_workers", "serve"]

UNQUEUED = 64  # requests in flight beside those that run or wait
SEARCHING = 2 / 3  # share of the time for a request: what is found has to be written as well
BUDGET = "Lapace-Budget"  # a header that says what ended the search, where something did

INTERNAL_ERROR = "An error occurred inside the server. Its log says more."
CLASSIFIER_ERROR = "The classifier failed. The server's log says more."
ROW_ERROR = "The classifier failed on the row of this instance."
ERRORS_OF_GET = (401, 403, 429, 500)
ERRORS_OF_POST = (400, 401, 403, 408, 413, 415, 422, 429, 500, 502, 503, 504)
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}

ToJson: TypeAlias = Callable[[Explanation], dict[str, Any]]

log = logging.getLogger(__name__)


def create_app(  # noqa: PLR0913  settings, by name
    explainer: Explainer,
    *,
    token: str | Mapping[str, str] | None = None,
    token_file: str | PathLike[str] | None = None,
    hosts: Sequence[str] = (),
    cors: Sequence[str] = (),
    max_body: int = 1_000_000,
    max_instances: int = 100,
    max_steps: int = 100,
    max_queries: int = 500_000,
    max_nodes: int = 100_000,
    queue: int = 64,
    timeout: float = 30.0,
    threads: int = 4,
    log_requests: bool = False,
    pages: str = "",
) -> FastAPI:
    """Makes an application that explains with one explainer.

    Args:
        explainer: A fitted one.
        token: What `Authorization: Bearer …` must carry on every path but `/healthz` and `/readyz`;
            several by the names of those who hold them. None asks for no token.
        token_file: A file with more of them, a line `name:token` each; it is read again when it
            changes.
        hosts: Names that the Host header may have; by default any.
        cors: Origins whose pages may send requests, such as `https://example.org`; `*` is all.
        max_body: Bytes of a request's body.
        max_instances: Instances in a request.
        max_steps: Steps of a path.
        max_queries: Rows the classifier may be queried about for one request.
        max_nodes: Branch-and-bound nodes the solver may visit for one request.
        queue: Requests that may wait; more are answered with 429.
        timeout: Seconds an explanation may take; a request may wait twice as long before that. The
            search ends at two thirds of it, with what was found by then.
        threads: Explanations computed at once, so that a slow one does not hold up the others; of
            three or more one client has all but one at most.
        log_requests: Log a line for every request: no one's data, the token's name at most.
        pages: The path under which pages for browsers will be added, `/workbench` say: with a token
            they are opened with a cookie from `login` under it.

    Examples:
        >>> import numpy as np
        >>> from lapace import Explainer
        >>> rows = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = Explainer(lambda rows: rows[:, 0] > 0, n_prototypes=1).fit(rows)
        >>> app = create_app(explainer, token="open-sesame")
        >>> sorted(app.openapi()["paths"])[:3]
        ['/healthz', '/metrics', '/readyz']
    """
    tokens = _tokens(token, token_file)
    _check_cors(cors)
    limits = {
        "body": check_integer("max_body", max_body),
        "instances": check_integer("max_instances", max_instances),
        "steps": check_integer("max_steps", max_steps, 2),
        "queries": check_integer("max_queries", max_queries),
        "nodes": check_integer("max_nodes", max_nodes),
    }
    work_queue = WorkQueue(
        threads=check_integer("threads", threads),
        queue=check_integer("queue", queue, 0),
        timeout=check_number("timeout", timeout, 0.001, 86_400),
    )
    # The usual pages of documentation would load scripts from elsewhere; the document is enough.
    app = FastAPI(
        title="lapace",
        summary="Counterfactual explanations as picks from a latent path.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.work_queue = work_queue
    app.state.metrics = Metrics(work_queue.counts)
    app.state.limits, app.state.tokens = limits, tokens
    app.add_exception_handler(HTTPException, _handle_error)
    app.add_exception_handler(Exception, _handle_error)
    app.add_middleware(
        AccessMiddleware,
        tokens=tokens,
        hosts=hosts,
        cors=cors,
        max_in_flight=queue + threads + UNQUEUED,
        metrics=app.state.metrics,
        log_requests=log_requests,
        pages=pages,
    )
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After", BUDGET, "X-Request-Id"],
        )
    _add_routes(app, explainer, work_queue, limits)
    if tokens is not None:
        document = app.openapi()  # kept by the app, and so is what is changed in it
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in OPEN_PATHS:
            for operation in document["paths"][path].values():
                operation["security"] = []
    return app


def serve(
    explainer: Explainer,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_: bool = False,
    ready: Callable[[str], None] | None = None,
    extend: Callable[[FastAPI], None] | None = None,
    **settings: Any,
) -> None:
    """Serves an explainer until it is interrupted.

    Args:
        explainer: A fitted one.
        host: The address to listen on; by default only this machine can connect. Any other needs a
            token.
        port: The port; 0 for any that is free.
        open_: Listen on other addresses without a token all the same.
        ready: Called with the server's URL once it listens.
        extend: Called with the application before it runs, to add pages to it.
        settings: Those of `create_app`.
    """
    app = make_app(explainer, host=host, open_=open_, **settings)
    if extend is not None:
        extend(app)
    run(app, host=host, port=port, ready=ready)


def make_app(
    explainer: Explainer, *, host: str = "127.0.0.1", open_: bool = False, **settings: Any
) -> FastAPI:
    """Makes the application that `serve` runs at an address, with the same settings.

    On loopback and without a token it answers only to names of loopback, unless hosts are named.
    """
    closed = settings.get("token") is not None or settings.get("token_file") is not None
    if check_address(host, closed=closed, open_=open_) and not (closed or open_):
        settings["hosts"] = settings.get("hosts") or (*LOOPBACK_HOSTS, host)
    return create_app(explainer, **settings)


def check_address(host: str, *, closed: bool, open_: bool) -> bool:
    """Refuses an address that other machines reach where no token is asked for.

    Args:
        host: The address to listen on.
        closed: Whether a token is asked for.
        open_: Whether none is meant to be.

    Returns:
        Whether only this machine reaches it.
    """
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not (loopback or closed or open_):
        raise InputError(
            f"There is no token: every machine that reaches '{host}' could send requests. Give one "
            "(--token-file, or LAPACE_TOKEN in the environment), or say that it is meant: --open."
        )
    return loopback


def _tokens(
    token: str | Mapping[str, str] | None, file: str | PathLike[str] | None
) -> Tokens | None:
    if token is None and file is None:
        return None
    if token is not None and not isinstance(token, str | Mapping):
        raise InputError("token must be a text of visible ASCII characters, without spaces.")
    named = {} if token is None else {"token": token} if isinstance(token, str) else token
    if not named and file is None:
        raise InputError("token holds none. Give one, or None to ask for none.")
    return Tokens(named, None if file is None else Path(file))


def _check_cors(cors: Sequence[str]) -> None:
    for origin in cors:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise InputError(f"cors holds '{origin}', not an origin such as https://example.org.")


async def _handle_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        log.error("A request failed.", exc_info=error)
        error = HTTPException(500, INTERNAL_ERROR)
    return error_response(error)


# ------------------------------------------------------------------------------------------------
# Routes


def _add_routes(
    app: FastAPI, explainer: Explainer, queue: WorkQueue, limits: dict[str, int]
) -> None:
    """Adds the routes that explain with one explainer, and their bodies to the OpenAPI document."""
    explain_model, why_not_model = request_models(
        explainer, max_instances=limits["instances"], max_steps=limits["steps"]
    )
    examples = request_examples(explainer)
    explanation = {"content": {"application/json": {"schema": {"$ref": f"{REF}Explanation"}}}}

    async def respond(request: Request, model: type[ExplainRequest], to_json: ToJson) -> Response:
        parsed = parse_request(model, await read_body(request, limits["body"], queue.timeout))

        async def disconnected() -> None:  # the body has been read: nothing else is received
            while (await request.receive())["type"] != "http.disconnect":
                pass

        budget = Budget(limits["queries"], limits["nodes"], SEARCHING * queue.timeout)

        try:
            content = await queue.run(
                lambda: _explain(explainer, parsed, to_json, budget),
                disconnected,
                client=request.scope.get("lapace.client", ""),
                cancel=budget.cancel,
            )
        finally:
            app.state.metrics.spent(budget.spent_queries, ended=bool(budget.ended))
        ended = {BUDGET: budget.ended} if budget.ended else {}
        return Response(content, media_type="application/json", headers=ended)

    @app.post("/v2/explain", **_described(explain_model, examples, explanation))
    async def explain(request: Request) -> Response:
        """Explains the instances; the response is in the published format."""
        return await respond(request, explain_model, Explanation.to_json)

    @app.post("/v2/why-not", **_described(why_not_model, examples, {"model": WhyNotResponse}))
    async def why_not(request: Request) -> Response:
        """Says why instances have no counterfactual, and which constraints to relax."""
        return await respond(request, why_not_model, why_not_to_json)

    _add_get_routes(app, explainer, queue, limits)
    schemas = app.openapi()["components"]["schemas"]  # the app keeps the document it made
    schemas.update(component_schemas([explain_model, why_not_model]))


def _add_get_routes(
    app: FastAPI, explainer: Explainer, queue: WorkQueue, limits: dict[str, int]
) -> None:
    # A fitted explainer does not change, so these bodies are made once.
    features = explainer.schema_.to_json()["features"]
    for feature in features:  # values and counts of training rows stay private
        del feature["ranks"], feature["knots"], feature["histogram"]
    labels, rules = list(explainer.classes_), list(map(str, explainer.fitted_.rules))
    schema_body = SchemaResponse(labels=labels, rules=rules, features=features, limits=limits)
    described = [
        {**vars(p), "row": record(explainer.schema_, p.cells)} for p in explainer.prototypes_
    ]
    prototypes_body = PrototypesResponse.model_validate({"prototypes": described})
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
        """The fit report: what was learned, and whether to trust it."""
        return report_body

    @app.get("/healthz", responses={503: {"model": HealthResponse}})
    @app.head("/healthz", include_in_schema=False)
    async def healthz(response: Response) -> HealthResponse:
        """Alive: how many requests run, wait and hang; 503 when the classifier hangs."""
        response.status_code = 503 if queue.status == "stuck" else 200
        return HealthResponse(status=queue.status, **queue.counts())

    @app.get("/readyz", responses={503: {"model": HealthResponse}})
    @app.head("/readyz", include_in_schema=False)
    async def readyz(response: Response) -> HealthResponse:
        """Ready for more: 503 when the queue is full, the classifier hangs or the server stops."""
        response.status_code = 503 if queue.full else 200
        return HealthResponse(status=queue.status, **queue.counts())

    @app.get("/metrics", responses=_errors(ERRORS_OF_GET), response_class=PlainTextResponse)
    @app.head("/metrics", response_class=PlainTextResponse, include_in_schema=False)
    async def metrics() -> str:
        """Requests, seconds, queries, the queue and memory, as Prometheus reads them."""
        text: str = app.state.metrics.text()
        return text


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


def _explain(
    explainer: Explainer, request: ExplainRequest, to_json: ToJson, budget: Budget
) -> bytes:
    """In a thread: explains, and writes the JSON, which takes time as well."""
    try:
        with limited(budget):
            document = to_json(request.explain(explainer))
            _hide_classifier_errors(explainer, request, document["instances"])
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    except BudgetError as error:
        raise HTTPException(
            503, f"{error} Send fewer instances or fewer constraints.", {"Retry-After": "1"}
        ) from None
    except ClassifierError as error:
        # Its message may name addresses, files and values: only where someone looks for it.
        log.error("The classifier failed. At the level DEBUG the log has its message.")
        log.debug("The classifier failed: %s", error)
        raise HTTPException(502, CLASSIFIER_ERROR) from None
    except Exception:
        log.exception("A request failed.")
        raise HTTPException(500, INTERNAL_ERROR) from None


def _hide_classifier_errors(
    explainer: Explainer, request: ExplainRequest, instances: list[Json]
) -> None:
    """Replaces what a classifier said when it raised on one instance's row."""
    malformed = [i for i, instance in enumerate(instances) if instance["status"] == "malformed"]
    unreadable = explainer.schema_.read(request.instances).problems if malformed else {}
    for i in malformed:
        if i not in unreadable:
            log.error("The classifier raised on the row of instance %d.", i)
            log.debug("Instance %d: %s", i, instances[i]["reason"])
            instances[i]["reason"] = ROW_ERROR
