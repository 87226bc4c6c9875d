"""What the server says when it does not answer: a status and one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

__all__ = ["RefusedError", "answered", "refusal"]

LONGEST = 600  # characters of a sentence: what was sent may be repeated in it


class RefusedError(Exception):
    """A question that is not answered, and why.

    Examples:
        >>> raise RefusedError(422, "steps is 1; it must be a whole number from 2 on.")
        Traceback (most recent call last):
        lapace.server.refusals.RefusedError: steps is 1; it must be a whole number from 2 on.
    """

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The same as an answer over HTTP."""
        return refusal(self.status, self.sentence, self.headers)


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """`{"error": "…"}`, the one shape every refusal has.

    Examples:
        >>> refusal(429, "Ask again later.", {"Retry-After": "2"}).body
        b'{"error":"Ask again later."}'
    """
    if len(sentence) > LONGEST:
        sentence = sentence[: LONGEST - 2] + " …"
    return answered(dumps({"error": sentence}), status, headers)


def answered(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that has been written already, as an answer over HTTP."""
    return Response(body, status, dict(headers or {}), media_type="application/json")


def dumps(value: Any) -> bytes:
    """JSON without spaces, in ASCII; NaN would not be JSON, and is an error."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
