"""The JSON API: explanations over HTTP.

`create_app` makes a FastAPI application, `serve` runs it. A request has the arguments of
`Explainer.explain` as its fields, and the response is what `Explanation.to_json` writes. Every
error is answered with one sentence, `{"error": "…"}`, that reveals nothing about this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

try:
    from fastapi import Depends, FastAPI
    from fastapi.exceptions import RequestValidationError
    from fastapi.security import HTTPBearer
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    from lapace.apps.server.running import run, run_workers
except ImportError as error:
    raise ImportError("Serving needs more packages: pip install 'lapace[serve]'.") from error

from lapace import __version__
from lapace.apps.server.access import (
    LOOPBACK_HOSTS,
    AccessMiddleware,
    Tokens,
    error_response,
    read_tokens,
)
from lapace.apps.server.monitoring import Metrics
from lapace.apps.server.requests import MAX_STEPS, validation_sentence
from lapace.apps.server.routes import describing_routes, explaining_routes, health_routes
from lapace.apps.server.work_queue import WorkQueue
from lapace.errors import InputError, check_integer, check_number
from lapace.explainer import Explainer

__all__ = ["create_app", "make_app", "run", "run_workers", "serve"]

MAX_NODES = 100_000  # branch-and-bound nodes the solver may visit for one request


def create_app(
    explainer: Explainer,
    *,
    token: str | Mapping[str, str] | None = None,
    token_file: str | PathLike[str] | None = None,
    hosts: Sequence[str] = (),
    max_body: int = 1_000_000,
    max_instances: int = 100,
    max_queries: int = 500_000,
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
        token_file: A file with more of them, a line `name:token` each.
        hosts: Names that the Host header may have; by default any.
        max_body: Bytes of a request's body.
        max_instances: Instances in a request.
        max_queries: Rows the classifier may be queried about for one request.
        queue: Requests that may wait; more are answered with 503.
        timeout: Seconds an explanation may take; a request may wait as long before that. The
            search ends at two thirds of it, with what was found by then.
        threads: Explanations computed at once.
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
    # The usual pages of documentation would load scripts from elsewhere; the document is enough.
    app = FastAPI(
        title="lapace",
        summary="Counterfactual explanations as picks from a latent path.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.work_queue = WorkQueue(
        threads=check_integer("threads", threads),
        queue=check_integer("queue", queue, 0),
        timeout=check_number("timeout", timeout, 0.001, 86_400),
    )
    app.state.limits = {
        "body": check_integer("max_body", max_body),
        "instances": check_integer("max_instances", max_instances),
        "queries": check_integer("max_queries", max_queries),
        "nodes": MAX_NODES,
        "steps": MAX_STEPS,
    }
    app.state.metrics, app.state.tokens, app.state.unread = Metrics(), tokens, 0
    app.add_exception_handler(HTTPException, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_error)
    app.add_middleware(
        AccessMiddleware,
        tokens=tokens,
        hosts=hosts,
        metrics=app.state.metrics,
        log_requests=log_requests,
        pages=pages,
    )
    # The middleware checks the token; this only says so in the OpenAPI document.
    documented = [] if tokens is None else [Depends(HTTPBearer(auto_error=False))]
    for router in (explaining_routes(explainer), describing_routes(explainer)):
        app.include_router(router, dependencies=documented)
    app.include_router(health_routes(app.state.work_queue))
    return app


def serve(
    explainer: Explainer,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_: bool = False,
    ready: Callable[[str], None] | None = None,
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
        settings: Those of `create_app`.
    """
    run(make_app(explainer, host=host, open_=open_, **settings), host=host, port=port, ready=ready)


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
    named = {} if token is None else token if isinstance(token, Mapping) else {"token": token}
    return Tokens({**({} if file is None else read_tokens(Path(file))), **named})


async def _handle_error(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = HTTPException(422, validation_sentence(error))
    assert isinstance(error, HTTPException)
    return error_response(error)
