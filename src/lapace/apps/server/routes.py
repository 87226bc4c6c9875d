"""The routes of the JSON API."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial

import numpy as np
from anyio import CancelScope, move_on_after
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from lapace.apps.server.requests import BoundedRoute, ExplainRequest, Json, WhyNotRequest
from lapace.apps.server.work_queue import PAUSE, WorkQueue
from lapace.budget import Budget, BudgetError
from lapace.errors import ClassifierError, InputError
from lapace.explainer import Explainer
from lapace.result import Explanation, json_schema, why_not_to_json
from lapace.result.counterfactuals import records

__all__ = ["describing_routes", "explaining_routes", "health_routes"]

SEARCHING = 2 / 3  # share of the time for a request: what is found has to be written as well
MAX_RESPONSE = 50_000_000  # bytes; while it is written, it takes several times as much memory
MAX_UNREAD = 4 * MAX_RESPONSE  # bytes of all responses that clients have not read yet
PIECE = 2**16  # bytes of a response that are sent at a time
ROW_BYTES = 250  # of the verdicts on a row, about
BUDGET = "Lapace-Budget"  # a header that says what ended the search, where something did

CLASSIFIER_ERROR = "The classifier failed. The server's log says more."
ROW_ERROR = "The classifier failed on the row of this instance."

log = logging.getLogger(__name__)


class ErrorResponse(BaseModel):
    """Any error."""

    error: str = Field(description="One sentence.")


ERRORS: dict[int | str, Json] = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}


def explaining_routes(explainer: Explainer) -> APIRouter:
    """Returns the routes that search, each request in a thread of the queue."""
    router = APIRouter(prefix="/v3", route_class=BoundedRoute, responses=ERRORS)
    document: Json = {"content": {"application/json": {"schema": json_schema()}}}

    async def respond(request: Request, body: ExplainRequest) -> Response:
        state = request.app.state
        count, most = len(body.instances), state.limits["instances"]
        if count > most:
            raise HTTPException(422, f"There are {count:,} instances; send at most {most:,}.")
        seconds = SEARCHING * state.work_queue.timeout
        budget = Budget(state.limits["queries"], state.limits["nodes"], seconds)
        content = b""
        try:
            with CancelScope() as scope:
                watcher = asyncio.create_task(_cancel_when_gone(request, scope))
                try:
                    work = partial(_explain, explainer, body)
                    content = await state.work_queue.run(work, budget)
                finally:
                    watcher.cancel()
        finally:
            state.metrics.spent(budget.spent_queries, ended=bool(budget.ended))
        if state.unread + len(content) > MAX_UNREAD:
            sentence = f"Other responses are still being read. Try again in {PAUSE} seconds."
            raise HTTPException(503, sentence, {"Retry-After": str(PAUSE)})
        ended = {BUDGET: budget.ended} if budget.ended else {}
        return BoundedResponse(content, media_type="application/json", headers=ended)

    @router.post("/explain", responses={200: document})
    async def explain(request: Request, body: ExplainRequest) -> Response:
        """Explains the instances; the response is in the published format."""
        return await respond(request, body)

    @router.post("/why-not")
    async def why_not(request: Request, body: WhyNotRequest) -> Response:
        """Says why instances have no counterfactual, and which constraints to relax."""
        return await respond(request, body)

    return router


class BoundedResponse(Response):
    """A response that a client has to read in time, so that it does not stay in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends the response in pieces: each waits until most of those before are read."""
        start = {"type": "http.response.start", "status": self.status_code}
        state = scope["app"].state
        seconds = state.work_queue.timeout
        state.unread += len(self.body)
        try:
            with move_on_after(seconds) as reading:
                await send({**start, "headers": self.raw_headers})
                for begin in range(0, len(self.body), PIECE):
                    piece, more = self.body[begin : begin + PIECE], begin + PIECE < len(self.body)
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            state.unread -= len(self.body)
        if reading.cancelled_caught:
            log.warning("A client did not read its response within %g seconds.", seconds)


async def _cancel_when_gone(request: Request, scope: CancelScope) -> None:
    """Cancels the work for a client that closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body has been read: nothing else is received
    scope.cancel()


def _explain(explainer: Explainer, request: ExplainRequest) -> bytes:
    """Explains in a thread, and writes the JSON, which takes time as well."""
    try:
        explanation = request.explain(explainer)
        if isinstance(request, WhyNotRequest):
            document = why_not_to_json(explanation)
        else:
            _check_size(explanation)
            document = explanation.to_json()
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


def _check_size(explanation: Explanation) -> None:
    """Refuses an explanation whose JSON would be too large, before any of it is written."""
    rows = np.ones(len(explanation), dtype=np.int64)  # of each instance: its own, steps, minimal
    np.add.at(rows, explanation.instance, explanation.cells.shape[1])
    for found in explanation.minimal.values():
        np.add.at(rows, found.instance, 1)
    written = records(explanation.schema, explanation.instances)  # the others are about as long
    size = sum(
        n * (ROW_BYTES + len(json.dumps(list(row.values()))))
        for n, row in zip(rows.tolist(), written, strict=True)
    )
    if size > MAX_RESPONSE:
        raise HTTPException(
            413,
            f"The response would have about {size:,} bytes, and {MAX_RESPONSE:,} is the most. Send "
            "fewer instances or fewer steps.",
        )


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


def describing_routes(explainer: Explainer) -> APIRouter:
    """Returns the routes that describe the server and its explainer, which does not change."""
    router = APIRouter(responses=ERRORS)
    features = explainer.schema_.to_json()["features"]
    for feature in features:  # values and counts of training rows stay private
        del feature["ranks"], feature["usual"], feature["knots"], feature["histogram"]
    labels, rules = list(explainer.classes_), list(map(str, explainer.fitted_.rules))
    described = {"labels": labels, "rules": rules, "features": features}
    fit_report = explainer.report_.to_json()

    @router.get("/v3/schema")
    async def schema(request: Request) -> Json:
        """Columns, labels, rules and limits."""
        return {**described, "limits": request.app.state.limits}

    @router.get("/v3/report")
    async def report() -> Json:
        """The fit report: what was learned, and whether to trust it."""
        return fit_report

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> str:
        """Requests, seconds, queries and memory, as Prometheus reads them."""
        return str(request.app.state.metrics.text())

    return router


def health_routes(queue: WorkQueue) -> APIRouter:
    """Returns the two routes that need no token, for whoever looks after the server."""
    router = APIRouter(responses={503: {}})

    @router.get("/healthz")
    async def healthz(response: Response) -> dict[str, int]:
        """Alive: how many requests run, wait and hang; 503 when every thread hangs."""
        response.status_code = 503 if queue.stuck else 200
        return queue.counts()

    @router.get("/readyz")
    async def readyz(response: Response) -> dict[str, int]:
        """Ready for more: 503 when a further request would be refused."""
        response.status_code = 503 if queue.full or queue.stuck else 200
        return queue.counts()

    return router
