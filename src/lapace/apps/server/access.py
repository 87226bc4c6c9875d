"""Access to the server: Host, Origin and token are checked before a byte of a body is read.

There may be several tokens, by name. `/healthz` and `/readyz` are open to all: they reveal nothing
about instances.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from lapace.apps.server.monitoring import REQUEST_ID, Metrics
from lapace.errors import InputError

__all__ = ["LOOPBACK_HOSTS", "AccessMiddleware", "Tokens", "error_response", "read_tokens"]

OPEN_PATHS = ("/healthz", "/readyz")
NAME = re.compile(r"[\w.-]{1,64}")  # of a token's holder, or the id of a request
TOKEN = re.compile(r"[!-~]+")  # what a header can carry
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
INTERNAL_ERROR = "An error occurred inside the server. Its log says more."
STOPPING = "The server is stopping. Try again in 5 seconds, or another one."

log = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class AccessMiddleware:
    """Checks Host, Origin and token; counts and logs responses; answers what fails or is cut short.

    Written by hand: dependencies of FastAPI run after the body has been read, and Starlette's
    middleware for hosts responds in plain text, on `/healthz` too.

    Attributes:
        app: The application behind it.
        tokens: What `Authorization: Bearer …` must carry; None asks for no token.
        hosts: Names the Host header may have; empty for any. Without them a web page whose host
            name resolves to 127.0.0.1 (DNS rebinding) could send requests to a server on loopback.
        metrics: Counts responses.
        log_requests: Log a line for every request.
        pages: The path under which there are pages for browsers. They may carry a session instead
            of a token; those without one are sent to `login` under it.
    """

    app: ASGIApp
    tokens: Tokens | None
    hosts: Sequence[str]
    metrics: Metrics
    log_requests: bool
    pages: str

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
        identifier = sent if NAME.fullmatch(sent) else uuid4().hex
        REQUEST_ID.set(identifier)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in (*SECURITY.items(), ("X-Request-Id", identifier)):
                    headers.setdefault(name, value)
            await send(message)

        failure: HTTPException | None = None
        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and the time for running requests is up
            failure = HTTPException(503, STOPPING, {"Retry-After": "5"})
        except Exception:
            log.exception("A request failed.")
            failure = HTTPException(500, INTERNAL_ERROR)
        if failure is not None and not status:
            await error_response(failure)(scope, receive, send_with_headers)
        seconds, route = monotonic() - start, getattr(scope.get("route"), "path", "other")
        self.metrics.answered(route, status, seconds)
        if self.log_requests:
            fields = {"method": scope["method"], "route": route, "status": status}
            fields |= {"seconds": round(seconds, 4), "client": client}
            requests_log.info("request", extra={"fields": fields})

    def _check(self, scope: Scope, headers: Headers) -> str:
        """Returns the name of the token's holder, empty without tokens; raises where refused."""
        host = headers.get("host", "")
        hosts = sorted({name.lower() for name in self.hosts})
        if hosts and re.sub(r":\d*$", "", host).lower() not in hosts:
            names = ", ".join(hosts)
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
        raise HTTPException(401, "There is no session, or it has ended. Log in again.")


# ------------------------------------------------------------------------------------------------
# Tokens


class Tokens:
    """Tokens that open the server.

    Args:
        named: The tokens by the name of whoever holds each.

    Examples:
        >>> tokens = Tokens({"alice": "open-sesame"})
        >>> tokens.find("open-sesame"), tokens.find("wrong")
        ('alice', None)
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        if not named:
            raise InputError("token is empty. Give one, or None if no token is needed.")
        for name, token in named.items():
            if not (isinstance(token, str) and TOKEN.fullmatch(token)):
                raise InputError(
                    "token must be a text of visible ASCII characters, without spaces."
                )
            if not NAME.fullmatch(name):
                raise InputError(f"'{name}' cannot name a token: use letters, digits, . _ and -.")
        self._digests = {name: _digest(token) for name, token in named.items()}

    def find(self, token: str) -> str | None:
        """Returns the name of the token's holder; None where it is none of the tokens.

        All are compared, and digests have one length, so that the time taken says nothing.
        """
        sent, holder = _digest(token), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(sent, digest):
                holder = name
        return holder

    @property
    def secret(self) -> str:
        """A key to sign sessions with, which changes with the tokens."""
        return _digest(repr(sorted(self._digests.items()))).hex()


def read_tokens(file: Path) -> dict[str, str]:
    """Returns the tokens in a file by name: a line each, `name:token`; # begins a comment."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "it is not UTF-8")
        raise InputError(f"The file of tokens '{file.name}' could not be read: {reason}.") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = text.partition(":")
        if not (NAME.fullmatch(name) and TOKEN.fullmatch(token)) or name in tokens:
            raise InputError(
                f"Line {number} of the file of tokens '{file.name}' cannot be read. Write "
                "name:token, each name once, the token in visible ASCII characters."
            )
        tokens[name] = token
    if not tokens:
        raise InputError(
            f"The file of tokens '{file.name}' has no token. Write lines of name:token."
        )
    return tokens


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
