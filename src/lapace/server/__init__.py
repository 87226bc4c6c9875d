"""The JSON API: explanations over HTTP.

`create_app` makes a FastAPI application, `serve` runs it. A request has the arguments of
`Explainer.explain` as its fields, and the response is what `Explanation.to_json` writes. Every
error is answered with one sentence, `{"error": "…"}`, that reveals nothing about this machine.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

try:
    import uvicorn
    from fastapi import FastAPI
    from pydantic import AfterValidator, ConfigDict, Field, ValidationError, validate_call
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError as error:
    raise ImportError("Serving needs fastapi and uvicorn: pip install 'lapace[serve]'.") from error

from lapace import __version__
from lapace.errors import InputError
from lapace.explainer import Explainer
from lapace.server.http import AccessMiddleware, error_response
from lapace.server.models import sentence_of
from lapace.server.routes import INTERNAL_ERROR, add_routes
from lapace.server.work_queue import WorkQueue

__all__ = ["create_app", "run", "serve"]

UNQUEUED = 64  # requests in flight beside those that run or wait
GRACE = 10  # seconds that running requests get when the server stops

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


def _check_token(token: str) -> str:
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            "token must consist of ASCII letters, digits and punctuation, without spaces: a header "
            "carries nothing else."
        )
    return token


def _check_origin(origin: str) -> str:
    if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
        raise InputError(
            f"'{origin}' is not an origin. Give one such as https://example.org, without a path."
        )
    return origin


Token = Annotated[str, AfterValidator(_check_token)]
Origin = Annotated[str, AfterValidator(_check_origin)]
Count = Annotated[int, Field(ge=1)]


def _validated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Checks keyword arguments against their annotations; a wrong one raises `InputError`."""
    checked = validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(function)

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return checked(*args, **kwargs)
        except ValidationError as error:
            if error.title != function.__name__:  # not about these arguments
                raise
            raise InputError(sentence_of(error)) from None

    return call


@_validated
def create_app(
    explainer: Explainer,
    *,
    token: Token | None = None,
    cors: Sequence[Origin] = (),
    max_body: Count = 1_000_000,
    max_instances: Count = 100,
    max_steps: Annotated[int, Field(ge=2)] = 100,
    queue: Annotated[int, Field(ge=0)] = 64,
    timeout: Annotated[float, Field(gt=0, lt=86_400)] = 30.0,
    workers: Count = 4,
    loopback: bool = False,
) -> FastAPI:
    """Makes an application that explains with one explainer.

    Args:
        explainer: A fitted one.
        token: What `Authorization: Bearer …` must carry on every path but `/healthz`; None asks for
            no token.
        cors: Origins whose pages may send requests, such as `https://example.org`; `*` is all.
        max_body: Bytes of a request's body.
        max_instances: Instances in a request.
        max_steps: Steps of a path.
        queue: Requests that may wait; more are answered with 429.
        timeout: Seconds an explanation may take; a request may wait twice as long before that.
        workers: Explanations computed at once, so that a slow one does not hold up the others.
        loopback: Without a token, refuse requests whose Host header does not name this machine's
            loopback interface.

    Examples:
        >>> import numpy as np
        >>> from lapace import Explainer
        >>> rows = np.random.default_rng(0).normal(size=(300, 2))
        >>> explainer = Explainer(lambda rows: rows[:, 0] > 0, n_prototypes=1).fit(rows)
        >>> app = create_app(explainer, token="open-sesame")
        >>> sorted(app.openapi()["paths"])[:3]
        ['/healthz', '/v2/explain', '/v2/prototypes']
    """
    # The usual pages of documentation would load scripts from elsewhere; the document is enough.
    app = FastAPI(
        title="lapace",
        summary="Counterfactual explanations as picks from a latent path.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)
    max_in_flight = queue + workers + UNQUEUED
    app.add_middleware(
        AccessMiddleware, token=token, loopback=loopback, max_in_flight=max_in_flight
    )
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    limits = {"body": max_body, "instances": max_instances, "steps": max_steps}
    work_queue = WorkQueue(workers=workers, queue=queue, timeout=timeout)
    add_routes(app, explainer, work_queue, limits=limits)
    if token is not None:
        document = app.openapi()  # kept by the app, and so is what is changed in it
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return app


def serve(
    explainer: Explainer,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    token: str | None = None,
    **settings: Any,
) -> None:
    """Serves an explainer until it is interrupted.

    Args:
        explainer: A fitted one.
        host: The address to listen on; by default only this machine can connect.
        port: The port; 0 for any that is free.
        ready: Called with the server's URL once it listens.
        token: As in `create_app`.
        settings: The other settings of `create_app`.
    """
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not loopback and token is None:
        log.warning("There is no token: every machine that reaches %s may send requests.", host)
    app = create_app(explainer, token=token, loopback=loopback, **settings)
    run(app, host=host, port=port, ready=ready)


@_validated
def run(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Runs an application until it is interrupted; running requests are answered first.

    Args:
        app: From `create_app`, perhaps with more routes.
        host: The address to listen on.
        port: The port; 0 for any that is free.
        ready: Called with the server's URL once it listens.
    """
    with _listen(host, port) as listener:
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
            ready(f"http://{shown}:{listener.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # the usual way to stop it
            uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(
            f"Port {port} of {host} cannot be opened: {error.strerror}. Try another."
        ) from None
    # Accepted connections inherit this; without it the last packet of a response waits for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error)


async def _internal_error(_: Request, error: Exception) -> Response:
    log.error("A request failed.", exc_info=error)
    return error_response(HTTPException(500, INTERNAL_ERROR))
