"""The JSON API: an explainer's answers over HTTP.

`create_app` makes a FastAPI application, `serve` runs it. The words are the library's: what
`Explainer.explain` calls it, the question calls it, and what `Explanation.to_json` writes is what
is answered. Whatever goes wrong is answered with one sentence, `{"error": "…"}`, and nothing that
tells of this machine.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from typing import Any

try:
    import uvicorn
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError as error:
    raise ImportError("Serving needs fastapi and uvicorn: pip install 'lapace[serve]'.") from error

from lapace import __version__
from lapace.constraints import parse_all
from lapace.errors import ClassifierError, InputError
from lapace.explainer import Explainer, Search
from lapace.result import Explanation, why_not_to_json
from lapace.server.contract import components, described, examples, record, responses
from lapace.server.door import Door, checked, left, read_body
from lapace.server.questions import Limits, Question, read_question
from lapace.server.refusals import RefusedError, answered, dumps, refusal
from lapace.server.workers import Workers

__all__ = ["create_app", "run", "serve"]

WORKERS = 4  # answering at once, so that one slow question does not hold up the others
LOOSE = 64  # requests that may be inside beside those the queue and the workers hold
BROKEN = "Something went wrong inside the server. Its log says more."
GRACE = 10  # seconds that running questions get when the server stops

log = logging.getLogger(__name__)


def create_app(
    explainer: Explainer,
    *,
    token: str | None = None,
    cors: Sequence[str] = (),
    max_body: int = 1_000_000,
    max_instances: int = 100,
    max_steps: int = 100,
    queue: int = 64,
    timeout: float = 30.0,
    workers: int = WORKERS,
    loopback: bool = False,
) -> FastAPI:
    """An application that answers questions about one explainer.

    Args:
        explainer: Fitted.
        token: What `Authorization: Bearer …` must say, everywhere but at `/healthz`; None asks
            for nothing.
        cors: Origins whose pages may ask, such as `https://example.org`; `*` is all.
        max_body: Bytes of a question.
        max_instances: Instances in a question.
        max_steps: Steps of a path.
        queue: Questions that may wait; more are answered with 429.
        timeout: Seconds an answer may take; a question may wait twice as long before that.
        workers: Questions answered at once.
        loopback: Without a token, refuse whoever does not call this machine localhost.

    Examples:
        >>> import numpy as np
        >>> from lapace import Explainer
        >>> rows = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = Explainer(lambda rows: rows[:, 0] > 0, n_prototypes=1).fit(rows)
        >>> app = create_app(explainer, token="open-sesame")
        >>> sorted(app.openapi()["paths"])[:3]
        ['/healthz', '/v1/explain', '/v1/prototypes']
    """
    limits = Limits(max_body, max_instances, max_steps)
    token = None if token is None else checked(token)
    pool = Workers(
        size=_whole("workers", workers, 1),
        queue=_whole("queue", queue, 0),
        timeout=_seconds(timeout),
    )
    desk = _Desk(explainer, limits, pool)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    # The usual pages of documentation would load scripts from elsewhere; the document is enough.
    app = FastAPI(
        title="lapace",
        summary="Counterfactual explanations as picks from a latent path.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _broken)
    room = queue + workers + LOOSE
    app.add_middleware(Door, token=token, loopback=loopback, room=room)
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=_origins(cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    desk.furnish(app)
    document = app.openapi()  # kept by the app, and so are its parts
    document["components"] = components(explainer, limits, token=token is not None)
    if token is not None:
        document["security"] = [{"token": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return app


def serve(
    explainer: Explainer,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    cors: Sequence[str] = (),
    max_body: int = 1_000_000,
    max_instances: int = 100,
    max_steps: int = 100,
    queue: int = 64,
    timeout: float = 30.0,
    workers: int = WORKERS,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves an explainer until it is interrupted.

    Args:
        explainer: Fitted.
        host: Where to listen: this machine only, unless told otherwise.
        port: The port; 0 for any that is free.
        token: As in `create_app`, and so are those that follow.
        cors: Origins whose pages may ask.
        max_body: Bytes of a question.
        max_instances: Instances in a question.
        max_steps: Steps of a path.
        queue: Questions that may wait.
        timeout: Seconds an answer may take.
        workers: Questions answered at once.
        ready: Called with the address once it is open.
    """
    loopback = _is_loopback(host)
    if not loopback and token is None:
        log.warning("Whoever reaches %s may ask: there is no token.", host)
    app = create_app(
        explainer,
        token=token,
        cors=cors,
        max_body=max_body,
        max_instances=max_instances,
        max_steps=max_steps,
        queue=queue,
        timeout=timeout,
        workers=workers,
        loopback=loopback,
    )
    run(app, host, port, ready)


def run(app: FastAPI, host: str, port: int, ready: Callable[[str], None] | None = None) -> None:
    """Runs an application until it is interrupted; what is being answered is answered first.

    Args:
        app: From `create_app`, perhaps with more on it.
        host: Where to listen.
        port: The port; 0 for any that is free.
        ready: Called with the address once it is open.
    """
    with _listening(host, port) as door:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{door.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # how one stops it
            uvicorn.Server(config).run(sockets=[door])


def _listening(host: str, port: int) -> socket.socket:
    if _whole("port", port, 0) > 65_535:
        raise InputError(f"port is {port}; ports go up to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(
            f"Port {port} of {host} cannot be opened: {error.strerror}. Try another."
        ) from None
    # The lines it accepts inherit this; without it the last packet of an answer waits for 40 ms.
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return door


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _origins(cors: Sequence[str]) -> list[str]:
    if isinstance(cors, str):
        cors = [cors]
    for origin in cors:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise InputError(
                f"'{origin}' is not an origin. Say, for example, https://example.org, without a "
                "path."
            )
    return list(cors)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number from {least} on.")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86_400:
        raise InputError(f"timeout is {value!r}; it must be a number of seconds over 0.")
    return float(value)


# ------------------------------------------------------------------------------------------------
# Endpoints


class _Desk:
    """Where questions about one explainer are answered."""

    def __init__(self, explainer: Explainer, limits: Limits, workers: Workers) -> None:
        self.explainer = explainer
        self.limits = limits
        self.workers = workers
        # An explainer is frozen once fitted, and so is what there is to say about it.
        self.report = dumps(explainer.report_.to_json())
        self.schema = dumps(_schema(explainer, limits))
        self.prototypes = dumps(_prototypes(explainer))

    def furnish(self, app: FastAPI) -> None:
        """Puts the endpoints on an application."""
        asked = examples(self.explainer)
        for path, ask, answer, told in (
            ("/v1/explain", self.explain, "Explanation", "What would have to change."),
            ("/v1/why-not", self.why_not, "WhyNot", "Why some have no answer, and what helps."),
        ):
            app.add_api_route(
                path,
                ask,
                methods=["POST"],
                summary=told,
                response_class=Response,
                responses=responses(answer, asked=True),
                openapi_extra=described(asked),
            )
        for path, body, answer, told in (
            ("/v1/schema", self.schema, "Schema", "Columns, labels, rules and limits."),
            ("/v1/prototypes", self.prototypes, "Prototypes", "What paths lead to."),
            ("/v1/report", self.report, "Report", "What was learned, and whether to trust it."),
        ):
            app.add_api_route(
                path,
                _constant(body),
                methods=["GET"],
                name=answer.lower(),
                summary=told,
                response_class=Response,
                responses=responses(answer, asked=False),
            )
        health = responses("Health", asked=False)[200]
        app.add_api_route(
            "/healthz",
            self.health,
            methods=["GET"],
            summary="Whether there is anybody to answer.",
            response_class=Response,
            responses={200: health, 503: {**health, "description": "Nobody is left."}},
        )

    async def explain(self, request: Request) -> Response:
        """Everything found for everyone, in the published format."""
        return await self._ask(request, lambda answer: answer.to_json())

    async def why_not(self, request: Request) -> Response:
        """For everyone without an answer: why, and which constraint to give up."""
        return await self._ask(request, why_not_to_json)

    async def health(self) -> Response:
        """How busy the server is; 503 when nobody is left to answer."""
        load = self.workers.load()
        status = "ok" if load.able else "stuck"
        told = {
            "status": status,
            "running": load.running,
            "waiting": load.waiting,
            "stuck": load.stuck,
        }
        return answered(dumps(told), 200 if load.able else 503)

    async def _ask(self, request: Request, form: Callable[[Explanation], Any]) -> Response:
        body = await read_body(request, self.limits.body, self.workers.timeout)
        schema = self.explainer.schema_
        try:
            question = read_question(body, schema, self.limits)
        except InputError as error:
            raise RefusedError(422, str(error)) from None
        return answered(
            await self.workers.answer(lambda: self._answer(question, form), lambda: left(request))
        )

    def _answer(self, question: Question, form: Callable[[Explanation], Any]) -> bytes:
        """In a thread: the explanation and its JSON, which takes time as well."""
        try:
            names = [field.name for field in fields(Search)]
            options = {k: v for k, v in question.options.items() if k not in names}
            search = Search(**{k: v for k, v in question.options.items() if k in names})
            answer = self.explainer.explain(question.instances, search=search, **options)
            return dumps(self._discreet(form(answer), question))
        except InputError as error:
            raise RefusedError(422, str(error)) from None
        except ClassifierError as error:
            # Its message may tell of addresses and files, which are nobody's business.
            log.error("The classifier failed: %s", error)
            raise RefusedError(
                502, "The classifier did not answer as it should. The server's log says more."
            ) from None
        except Exception:
            log.exception("A question broke the server.")
            raise RefusedError(500, BROKEN) from None

    def _discreet(self, told: dict[str, Any], question: Question) -> dict[str, Any]:
        """The answer without what a classifier said when it raised on an instance's row."""
        raised = [i for i, p in enumerate(told["instances"]) if p["status"] == "malformed"]
        problems = self.explainer.schema_.read(question.instances).problems if raised else {}
        for i in raised:
            if i not in problems:
                log.error("Instance %d: %s", i, told["instances"][i]["reason"])
                told["instances"][i]["reason"] = "The classifier cannot judge this instance's row."
        return told


def _constant(body: bytes) -> Callable[[], Any]:
    async def tell() -> Response:
        return answered(body)

    return tell


def _schema(explainer: Explainer, limits: Limits) -> dict[str, Any]:
    """The columns as anybody may know them: without values and counts of training rows."""
    private = ("knots", "histogram")
    features = explainer.schema_.to_json()["features"]
    return {
        "labels": list(explainer.classes_),
        "rules": [str(rule) for rule in parse_all(explainer.rules)],
        "features": [{k: v for k, v in f.items() if k not in private} for f in features],
        "limits": {"body": limits.body, "instances": limits.instances, "steps": limits.steps},
    }


def _prototypes(explainer: Explainer) -> dict[str, Any]:
    told = [
        {
            "number": p.number,
            "label": p.label,
            "valid": bool(p.valid),
            "probability": None if p.probability != p.probability else float(p.probability),
            "members": int(p.members),
            "note": p.note,
            "row": record(explainer.schema_, p),
        }
        for p in explainer.prototypes_
    ]
    return {"prototypes": told}


# ------------------------------------------------------------------------------------------------
# Whatever goes wrong


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return error.response()


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "There is nothing here. GET /openapi.json says what there is.",
        405: "This is asked with another method. GET /openapi.json says which.",
    }
    told = sentences.get(error.status_code, "The request cannot be answered.")
    return refusal(error.status_code, told, error.headers)


async def _broken(_: Request, error: Exception) -> Response:
    log.error("A question broke the server.", exc_info=error)
    return refusal(500, BROKEN)
