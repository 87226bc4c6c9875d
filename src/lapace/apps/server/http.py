"""Requests before they are understood: who may send them, how bodies are read, how errors look.

A request that is not allowed, or that comes while too many are in flight, is answered before a byte
of its body is read. `/healthz` and `/readyz` are open to all: they reveal nothing about instances.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, NoReturn
from uuid import uuid4

from anyio import fail_after
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapace.apps.server.logs import REQUEST_ID
from lapace.apps.server.metrics import Metrics
from lapace.apps.server.tokens import Tokens

__all__ = ["SESSION_COOKIE", "AccessMiddleware", "cut", "error_response", "read_body", "read_json"]

OPEN_PATHS = ("/healthz", "/readyz")
SESSION_COOKIE = "lapace_session"
REQUEST = re.compile(r"[\w.-]{1,64}")  # an id of a request that is taken over
FOR_OTHERS = 32  # places in flight that one client leaves to others
SECURITY = {
    "Cache-Control": "no-store",  # responses describe instances
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
DISCARDED = 8_000_000  # bytes of a body too large that are still read, so that 413 arrives
MAX_NUMBER = 1e100  # squares of such numbers, and their multiples of any unit, are finite
MAX_SENTENCE = 600  # characters: a sentence may quote the request
requests_log = logging.getLogger("lapace.apps.server.requests")
NO_ROUTE = "There is no such path, or not for this method. GET /openapi.json lists the routes."


def error_response(error: HTTPException) -> JSONResponse:
    """The response to an error: `{"error": sentence}`, the one shape that all errors have.

    Examples:
        >>> error_response(HTTPException(429, "Try again later.", {"Retry-After": "2"})).body
        b'{"error":"Try again later."}'
    """
    sentence = NO_ROUTE if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": cut(sentence, MAX_SENTENCE)}, error.status_code, error.headers)


def cut(text: str, length: int = 80) -> str:
    """A text of at most this length."""
    return text if len(text) <= length else text[: length - 1] + "…"


class AccessMiddleware:
    """Checks Host, Origin, token and the number of requests in flight; counts and logs responses.

    Written by hand: dependencies of FastAPI run after the body has been read, and what Starlette
    and uvicorn have for hosts and concurrency responds in plain text, on `/healthz` too.

    Args:
        app: The application behind it.
        tokens: What `Authorization: Bearer …` must carry; None asks for no token.
        hosts: Names the Host header may have; empty for any. Without them a web page whose host
            name resolves to 127.0.0.1 (DNS rebinding) could send requests to a server on loopback.
        cors: Origins whose pages may send requests.
        max_in_flight: How many requests may be read or answered at once.
        metrics: Counts responses.
        log_requests: Log a line for every request.
        pages: The path under which there are pages for browsers. They may carry a session in a
            cookie instead of a token; those without one are sent to `login` under it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens | None = None,
        hosts: Sequence[str] = (),
        cors: Sequence[str] = (),
        max_in_flight: int,
        metrics: Metrics,
        log_requests: bool = False,
        pages: str = "",
    ) -> None:
        self.app = app
        self.tokens = tokens
        self.hosts = {host.lower() for host in hosts}
        self.cors = set(cors)
        self.max_in_flight = max_in_flight
        self.metrics = metrics
        self.log_requests = log_requests
        self.pages = pages
        self.in_flight: Counter[str] = Counter()  # by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request, or the opening of one websocket."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, start = Headers(scope=scope), monotonic()
        sent = headers.get("x-request-id", "")
        identifier = sent if REQUEST.fullmatch(sent) else uuid4().hex
        REQUEST_ID.set(identifier)
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers_sent = MutableHeaders(scope=message)
                for name, value in (*SECURITY.items(), ("X-Request-Id", identifier)):
                    headers_sent.setdefault(name, value)
            await send(message)

        app, client = self.app, ""
        if scope["path"] not in OPEN_PATHS:
            try:
                client = self._check(scope, headers)
                self._admit(client)
            except HTTPException as error:
                app = error_response(error)
        scope["lapace.client"] = client
        self.in_flight[client] += 1
        try:
            await app(scope, receive, send_with_headers)
        finally:
            self.in_flight[client] -= 1
            self.in_flight += Counter()  # drops clients without a request
            self._record(scope, client, status, monotonic() - start)

    def _record(self, scope: Scope, client: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.answered(route, status, seconds)
        if self.log_requests:
            fields = {"method": scope["method"], "route": route, "status": status}
            fields |= {"seconds": round(seconds, 4), "client": client}
            requests_log.info("request", extra={"fields": fields})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            scope["lapace.client"] = self._check(scope, headers)
        except HTTPException:
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # refused with 403
            return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> str:
        """The name of the token's holder, or else the address of the client."""
        host = headers.get("host", "")
        if self.hosts and re.sub(r":\d*$", "", host).lower() not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            raise HTTPException(403, f"The Host header must name this server: {names}.")
        if scope["type"] == "websocket" or scope.get("method") == "POST":
            origin = headers.get("origin")
            own = origin is not None and origin.partition("://")[2].lower() == host.lower()
            if origin is not None and not (own or {origin, "*"} & self.cors):
                raise HTTPException(403, "A page of another origin may not send requests here.")
        address = str((scope.get("client") or ("",))[0])
        if self.tokens is None:
            return address
        if self.pages and (
            scope["path"] == "/" or f"{scope['path']}/".startswith(self.pages + "/")
        ):
            return self._check_page(scope, headers) or address
        scheme, _, token = headers.get("authorization", "").partition(" ")
        name = self.tokens.find(token.strip())
        if name is None or scheme.lower() != "bearer":
            raise HTTPException(
                401,
                "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                {"WWW-Authenticate": "Bearer"},
            )
        return name

    def _check_page(self, scope: Scope, headers: Headers) -> str:
        """The name of the session's holder; empty for the login and its style, which are open."""
        assert self.tokens is not None
        login = f"{self.pages}/login"
        if scope["path"] in (login, f"{self.pages}/theme.css"):
            return ""
        cookies = cookie_parser(headers.get("cookie", ""))
        name = self.tokens.find_session(cookies.get(SESSION_COOKIE, ""))
        if name is not None:
            return name
        if scope["type"] == "http" and scope["method"] == "GET" and "/_" not in scope["path"]:
            raise HTTPException(303, "Log in first.", {"Location": login})
        raise HTTPException(401, "The session is missing or over. Log in again.")

    def _admit(self, client: str) -> None:
        """Refuses a request while too many are in flight: of all clients, or of this one."""
        own, total = self.in_flight[client], self.in_flight.total()
        if total >= self.max_in_flight or own >= max(1, self.max_in_flight - FOR_OTHERS):
            raise HTTPException(
                429,
                f"{total} requests are in flight. Try again in 1 second.",
                {"Retry-After": "1", "Connection": "close"},
            )


# ------------------------------------------------------------------------------------------------
# Bodies


async def read_body(request: Request, max_bytes: int, timeout: float) -> bytes:
    """The body of a request: plain JSON of at most `max_bytes`, received within `timeout` seconds.

    A larger body is not kept, but is read on for a while: a client that is still sending would
    otherwise see the connection break, and never the reason.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise HTTPException(415, "The body is compressed. Send it without Content-Encoding.")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "Send JSON, with the header Content-Type: application/json.")
    size, body, close = 0, bytearray(), {"Connection": "close"}
    try:
        with fail_after(timeout):
            async for part in request.stream():
                size += len(part)
                if size <= max_bytes:
                    body += part
                elif size > max_bytes + DISCARDED:
                    break
    except TimeoutError:
        sentence = f"The body did not arrive within {timeout:g} seconds. Send it faster or smaller."
        raise HTTPException(408, sentence, close) from None
    except ClientDisconnect:
        raise HTTPException(400, "The connection closed before the body was complete.") from None
    if size > max_bytes:
        sentence = f"The body is larger than {max_bytes:,} bytes. Send fewer instances at a time."
        raise HTTPException(413, sentence, close)
    return bytes(body)


def read_json(body: bytes) -> Any:
    """JSON, read more strictly than Python's own module does.

    It has to be UTF-8 without NaN, without numbers too large to compute with, without a name twice
    in one object and without half a surrogate pair.

    Examples:
        >>> read_json(b'{"age": 1, "age": 2}')
        Traceback (most recent call last):
        starlette.exceptions.HTTPException: 422: 'age' is twice in one object. Keep one of them.
    """
    try:
        data = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_read_object,
            parse_int=partial(_read_number, int),
            parse_float=partial(_read_number, float),
            parse_constant=_refuse_constant,
        )
        if b"\\u" in body:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"The body is not UTF-8 at byte {error.start}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise HTTPException(400, f"The body is not JSON at {where}: {error.msg}.") from None
    except RecursionError:
        raise HTTPException(400, "The body is nested too deeply.") from None
    except UnicodeEncodeError:
        raise HTTPException(422, "A string holds half a surrogate pair: no character.") from None
    return data


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise HTTPException(422, f"'{cut(name)}' is twice in one object. Keep one of them.")
    return members


def _read_number(kind: type[int] | type[float], digits: str) -> float:
    if abs(float(digits)) > MAX_NUMBER:  # of integers too: Python refuses to read very long ones
        sentence = f"The number {cut(digits, 20)} is too large: numbers go up to {MAX_NUMBER:g}."
        raise HTTPException(422, sentence)
    return kind(digits)


def _refuse_constant(word: str) -> NoReturn:
    raise HTTPException(400, f"The body is not JSON: JSON has no {word}. Send null for missing.")
