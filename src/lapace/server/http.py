"""Requests before they are understood: who may send them, how bodies are read, how errors look.

A request that is not allowed, or that comes while too many are in flight, is answered before a byte
of its body is read. `/healthz` is open to all: it reveals nothing about instances or the model.
"""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import Any, NoReturn

from anyio import fail_after
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessMiddleware", "cut", "error_response", "read_body", "read_json"]

OPEN_PATH = "/healthz"
LOOPBACK = re.compile(r"(localhost|\[::1\]|127(\.\d{1,3}){3})(:\d*)?", re.IGNORECASE)
DISCARDED = 8_000_000  # bytes of a body too large that are still read, so that 413 arrives
MAX_NUMBER = 1e100  # squares of such numbers, and their multiples of any unit, are finite
MAX_SENTENCE = 600  # characters: a sentence may quote the request
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
    """Checks the token, the Host header and the number of requests in flight.

    Written by hand: dependencies of FastAPI run after the body has been read, and what Starlette
    and uvicorn have for hosts and concurrency responds in plain text, on `/healthz` too.

    Args:
        app: The application behind it.
        token: What `Authorization: Bearer …` must carry; None asks for no token.
        loopback: Without a token, refuse requests whose Host header is not a name of the loopback
            interface. A web page whose host name resolves to 127.0.0.1 (DNS rebinding) could
            send requests otherwise.
        max_in_flight: How many requests may be read or answered at once.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, loopback: bool, max_in_flight: int
    ) -> None:
        self.app = app
        self.digest = None if token is None else _digest(token)
        self.loopback = loopback and token is None
        self.max_in_flight = max_in_flight
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")  # responses describe instances
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        app = self.app
        if scope["path"] != OPEN_PATH:
            try:
                self._check(Headers(scope=scope))
            except HTTPException as error:
                app = error_response(error)
        self.in_flight += 1
        try:
            await app(scope, receive, send_with_headers)
        finally:
            self.in_flight -= 1

    def _check(self, headers: Headers) -> None:
        if self.loopback and not LOOPBACK.fullmatch(headers.get("host", "")):
            raise HTTPException(
                403,
                "Without a token this server answers only requests to localhost or 127.0.0.1. "
                "Start it with a token to use it under another host name.",
            )
        if self.digest is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            # Digests have one length, so the time of comparing them does not depend on the token's.
            same = hmac.compare_digest(_digest(token.strip()), self.digest)
            if not (same and scheme.lower() == "bearer"):
                raise HTTPException(
                    401,
                    "The token is missing or wrong. Send the header Authorization: Bearer TOKEN.",
                    {"WWW-Authenticate": "Bearer"},
                )
        if self.in_flight >= self.max_in_flight:
            raise HTTPException(
                429,
                f"{self.in_flight} requests are in flight. Try again in 1 second.",
                {"Retry-After": "1", "Connection": "close"},
            )


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


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
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise HTTPException(422, f"'{cut(name)}' is twice in one object. Keep one of them.")
    return found


def _read_number(kind: type[int] | type[float], digits: str) -> float:
    if abs(float(digits)) > MAX_NUMBER:  # of integers too: Python refuses to read very long ones
        sentence = f"The number {cut(digits, 20)} is too large: numbers go up to {MAX_NUMBER:g}."
        raise HTTPException(422, sentence)
    return kind(digits)


def _refuse_constant(word: str) -> NoReturn:
    raise HTTPException(400, f"The body is not JSON: JSON has no {word}. Send null for missing.")
