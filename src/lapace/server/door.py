"""What every request passes before it is looked at, and every answer on its way out.

Whoever may not come in, or comes when too many are inside, is told so before a byte of the body is
read. `/healthz` is open to all: it says nothing about anybody.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapace.errors import InputError
from lapace.server.refusals import RefusedError

__all__ = ["Door", "checked", "left", "read_body"]

OPEN = "/healthz"
THROWN_AWAY = 8_000_000  # bytes of a body too large that are still read, so that 413 is heard
LOOPBACK = re.compile(r"localhost|::1|127(\.\d{1,3}){3}")


class Door:
    """Lets in who has the token, calls this server by its name, and finds room inside.

    Args:
        app: What lies behind the door.
        token: What `Authorization: Bearer …` must say; None lets everybody in.
        loopback: Without a token, let in only who asks for this machine by one of its own names.
            Without it a page from elsewhere, whose name was made to point here, could ask.
        room: How many requests may be inside at once.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, loopback: bool, room: int) -> None:
        self.app = app
        self.secret = None if token is None else _digest(token)
        self.loopback = loopback and token is None
        self.room = room
        self.inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")  # answers are about instances
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        if scope["path"] == OPEN:
            await self.app(scope, receive, send_on)
            return
        try:
            self._admit(Headers(scope=scope))
        except RefusedError as refused:
            await refused.response()(scope, receive, send_on)
            return
        self.inside += 1
        try:
            await self.app(scope, receive, send_on)
        finally:
            self.inside -= 1

    def _admit(self, headers: Headers) -> None:
        if self.loopback and not LOOPBACK.fullmatch(_name(headers.get("host", ""))):
            raise RefusedError(
                403,
                "This server is for its own machine only, by the name localhost or 127.0.0.1. To "
                "let others in, start it with a token.",
            )
        if self.secret is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            # Digests are of one length, so comparing them says nothing about the token's.
            same = hmac.compare_digest(_digest(token.strip()), self.secret)
            if not (same and scheme.lower() == "bearer"):
                raise RefusedError(
                    401,
                    "This server wants its token: Authorization: Bearer TOKEN.",
                    {"WWW-Authenticate": "Bearer"},
                )
        if self.inside >= self.room:
            raise RefusedError(
                429,
                f"{self.inside} requests are being read or answered. Ask again in 1 second.",
                {"Retry-After": "1", "Connection": "close"},
            )


def checked(token: str) -> str:
    """A token that a header can carry."""
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise InputError("The token must be a text of plain letters, digits and signs.")
    if " " in token:
        raise InputError("The token must not hold a space: a header could not carry it.")
    return token


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


# ------------------------------------------------------------------------------------------------
# Bodies


async def read_body(request: Request, most: int, timeout: float) -> bytes:
    """The body, if it is plain JSON of a fair size that comes in time.

    A body too large is not kept, but read on for a while: a client that is still sending would
    otherwise see the connection break and never the reason.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise RefusedError(415, "The body is compressed; this server reads it plain.")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise RefusedError(415, "The body must be JSON and say so: Content-Type: application/json.")
    size, parts = 0, []
    try:
        async with asyncio.timeout(timeout):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif size > most + THROWN_AWAY:
                    break
                else:
                    parts.clear()
    except TimeoutError:
        raise RefusedError(
            408, f"The body did not come within {timeout:g} seconds.", {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "The body broke off.") from None
    if size > most:
        raise RefusedError(
            413,
            f"The body is larger than {most:,} bytes. Ask about fewer instances at a time.",
            {"Connection": "close"},
        )
    return b"".join(parts)


async def left(request: Request) -> None:
    """Done when the other side hangs up; the body must have been read."""
    receive: Awaitable[Any]
    while True:
        receive = request.receive()
        if (await receive)["type"] == "http.disconnect":
            return
