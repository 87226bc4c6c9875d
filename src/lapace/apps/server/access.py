"""Access to the server: Host, Origin and token are checked before a byte of a body is read.

`/healthz` and `/readyz` are open to all: they reveal nothing about instances.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from time import monotonic
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from lapace.apps.server.monitoring import REQUEST_ID, Metrics
from lapace.apps.server.tokens import Tokens

__all__ = ["LOOPBACK_HOSTS", "AccessMiddleware", "error_response"]

OPEN_PATHS = ("/healthz", "/readyz")
REQUEST = re.compile(r"[\w.-]{1,64}")  # an id of a request that is taken over
SECURITY = {
    "Cache-Control": "no-store",  # responses describe instances
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
MAX_SENTENCE = 600  # characters: a sentence may quote the request
NO_ROUTE = "There is no such path, or not for this method. GET /openapi.json lists the routes."
STOPPING = "The server is stopping. Try again in 5 seconds, or another one."

requests_log = logging.getLogger("lapace.apps.server.requests")


def error_response(error: HTTPException) -> JSONResponse:
    """Returns the response to an error: `{"error": sentence}`, the one shape of all errors.

    Examples:
        >>> error_response(HTTPException(503, "Try again later.", {"Retry-After": "2"})).body
        b'{"error":"Try again later."}'
    """
    sentence = NO_ROUTE if error.status_code in (404, 405) else error.detail
    if len(sentence) > MAX_SENTENCE:
        sentence = sentence[: MAX_SENTENCE - 1] + "…"
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


class AccessMiddleware:
    """Checks Host, Origin and token; counts and logs responses; answers what a stop cuts short.

    Written by hand: dependencies of FastAPI run after the body has been read, and Starlette's
    middleware for hosts responds in plain text, on `/healthz` too.

    Args:
        app: The application behind it.
        tokens: What `Authorization: Bearer …` must carry; None asks for no token.
        hosts: Names the Host header may have; empty for any. Without them a web page whose host
            name resolves to 127.0.0.1 (DNS rebinding) could send requests to a server on loopback.
        metrics: Counts responses.
        log_requests: Log a line for every request.
        pages: The path under which there are pages for browsers. They may carry a session instead
            of a token; those without one are sent to `login` under it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens | None = None,
        hosts: Sequence[str] = (),
        metrics: Metrics,
        log_requests: bool = False,
        pages: str = "",
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.hosts = {host.lower() for host in hosts}
        self.metrics = metrics
        self.log_requests = log_requests
        self.pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request, or the opening of one websocket."""
        app, client = self.app, ""
        if scope["type"] in ("http", "websocket") and scope["path"] not in OPEN_PATHS:
            try:
                client = self._check(scope, Headers(scope=scope))
            except HTTPException as error:
                refused = WebSocketClose(1008)  # which a client sees as 403
                app = refused if scope["type"] == "websocket" else error_response(error)
        if scope["type"] == "http":
            await self._respond(app, client, scope, receive, send)
        else:
            await app(scope, receive, send)

    async def _respond(
        self, app: ASGIApp, client: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        start, status = monotonic(), 0
        sent = Headers(scope=scope).get("x-request-id", "")
        identifier = sent if REQUEST.fullmatch(sent) else uuid4().hex
        REQUEST_ID.set(identifier)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in (*SECURITY.items(), ("X-Request-Id", identifier)):
                    headers.setdefault(name, value)
            await send(message)

        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and the time for running requests is up
            if status:
                raise
            stopping = HTTPException(503, STOPPING, {"Retry-After": "5"})
            await error_response(stopping)(scope, receive, send_with_headers)
        finally:
            seconds, route = monotonic() - start, getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, status or 500, seconds)
            if self.log_requests:
                fields = {"method": scope["method"], "route": route, "status": status or 500}
                fields |= {"seconds": round(seconds, 4), "client": client}
                requests_log.info("request", extra={"fields": fields})

    def _check(self, scope: Scope, headers: Headers) -> str:
        """Returns the name of the token's holder, empty without tokens; raises where refused."""
        host = headers.get("host", "")
        if self.hosts and re.sub(r":\d*$", "", host).lower() not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            raise HTTPException(403, f"The Host header must name this server: {names}.")
        if scope["type"] == "websocket" or scope.get("method") == "POST":
            origin = headers.get("origin")
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                raise HTTPException(403, "A page of another origin may not send requests here.")
        path = scope["path"]
        if self.tokens is None:
            return ""
        if self.pages and (path == "/" or f"{path}/".startswith(self.pages + "/")):
            return self._check_page(scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        name = self.tokens.find(token.strip())
        if name is None or scheme.lower() != "bearer":
            raise HTTPException(
                401,
                "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                {"WWW-Authenticate": "Bearer"},
            )
        return name

    def _check_page(self, scope: Scope) -> str:
        """Returns the name of the session's holder; the login and its style are open."""
        login = f"{self.pages}/login"
        if scope["path"] in (login, f"{self.pages}/theme.css"):
            return ""
        name = scope.get("session", {}).get("client")
        if name is not None:
            return str(name)
        if scope["type"] == "http" and scope["method"] == "GET" and "/_" not in scope["path"]:
            raise HTTPException(303, "Log in first.", {"Location": login})
        raise HTTPException(401, "The session is missing or over. Log in again.")
