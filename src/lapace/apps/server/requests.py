"""Bodies of requests: read within limits, parsed strictly, and checked by pydantic models.

Pydantic checks the shape of a request; whether a column, label or constraint exists is decided by
the library, with its messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, get_args

from anyio import fail_after
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lapace.explainer import Explainer, Search
from lapace.files import unique_names
from lapace.result import Explanation

__all__ = ["BoundedRoute", "ExplainRequest", "WhyNotRequest", "read_json", "validation_sentence"]

MAX_CONSTRAINTS = 100
MAX_CONSTRAINT_LENGTH = 1_000  # characters
MAX_STEPS = 100  # steps of a path
MAX_BEST = 10  # different ways for each instance
MAX_QUERIES = 50_000  # rows the classifier may be queried about to find the reasons
MAX_STARTS = 100  # rows a search starts from
MAX_CANDIDATES = 1_000  # rows to be considered too, of all instances
MAX_CELL = 1_000  # characters of a value: a response repeats it at every step of every path
MAX_NUMBER = 1e100  # squares of such numbers, and their multiples of any unit, are finite
DISCARDED = 8_000_000  # bytes of a body too large that are still read, so that 413 arrives

Json: TypeAlias = dict[str, Any]
Pick: TypeAlias = Literal["best", "nearest", "first", "middle", "last"]


class RequestModel(BaseModel):
    """An object in a request: null means the default, and an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class SearchSettings(RequestModel):
    """The fields of `Search`."""

    steps: int = Field(Search().steps, ge=2, le=MAX_STEPS)
    picks: list[Pick] = Field([*get_args(Pick)], max_length=len(get_args(Pick)))
    n_best: int = Field(Search().n_best, ge=1, le=MAX_BEST)
    n_starts: int = Field(Search().n_starts, ge=1, le=MAX_STARTS)
    stable: bool = Search().stable
    enforce: Literal["exact", "latent"] = Search().enforce


class ExplainRequest(RequestModel):
    """The arguments of `Explainer.explain`."""

    instances: list[Json]
    target: Any = Field(None, description="A label, a list of labels, or any-other.")
    constraints: list[Annotated[str, Field(max_length=MAX_CONSTRAINT_LENGTH)]] = Field(
        [], max_length=MAX_CONSTRAINTS
    )
    costs: dict[str, float] = {}
    confidence: float | None = Field(None, gt=0, le=1)
    plausibility: float | None = Field(None, description="A share, from 0 to below 1.")
    candidates: list[Json] = Field(
        [],
        max_length=MAX_CANDIDATES,
        description="Rows to be considered too and made minimal, in the columns of the instances. "
        "In each, `instance` is the id of the instance that it is for, or its position, from 0.",
    )
    search: SearchSettings = Field(default_factory=SearchSettings.model_construct)

    @field_validator("instances", "candidates")
    @classmethod
    def _check_lengths(cls, rows: list[Json], field: ValidationInfo) -> list[Json]:
        for i, row in enumerate(rows):
            for name, value in row.items():
                if isinstance(value, str) and len(value) > MAX_CELL:
                    raise ValueError(
                        f"{str(field.field_name).removesuffix('s')} {i} has {len(value):,} "
                        f"characters in column '{name[:80]}'; send at most {MAX_CELL:,}"
                    )
        return rows

    def explain(self, explainer: Explainer) -> Explanation:
        """Calls `Explainer.explain` with what was requested."""
        return explainer.explain(
            self.instances,
            target=self.target,
            constraints=self.constraints,
            costs=self.costs,
            confidence=self.confidence,
            plausibility=self.plausibility,
            candidates=self.candidates or None,
            search=Search(**self.search.model_dump()),
        )


class WhyNotRequest(ExplainRequest):
    """The arguments of `Explainer.explain` and `Explainer.why_not`."""

    max_queries: int = Field(MAX_QUERIES, ge=0, le=MAX_QUERIES)

    def explain(self, explainer: Explainer) -> Explanation:
        """Calls `Explainer.explain`, then `Explainer.why_not`, with what was requested."""
        return explainer.why_not(super().explain(explainer), max_queries=self.max_queries)


def validation_sentence(error: RequestValidationError) -> str:
    """Returns the first problem that pydantic found as one sentence that names the field."""
    problem = error.errors()[0]
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]]
    where = "".join(parts).removeprefix(".").removeprefix("body.")
    return f"{where[:80]}: {problem['msg'].removeprefix('Value error, ')}."


# ------------------------------------------------------------------------------------------------
# Reading


class BoundedRoute(APIRoute):
    """A route whose bodies are read within limits.

    A request holds a place in the queue until its response has been read.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request that finds a place."""
        with scope["app"].state.work_queue.place():
            await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns FastAPI's handler, for which the body is read here."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return handle_bounded


class BoundedRequest(Request):
    """A request whose body is plain JSON of bounded size that arrives in time."""

    async def body(self) -> bytes:
        """Returns the body.

        A body too large is not kept, but is read on for a while: a client that is still sending
        would otherwise see the connection break, and never the reason.
        """
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if coding not in ("", "identity") or media_type != "application/json":
            sentence = "Send JSON that is not compressed, with Content-Type: application/json."
            raise HTTPException(415, sentence)
        max_bytes, timeout = self.app.state.limits["body"], self.app.state.work_queue.timeout
        size, body, close = 0, bytearray(), {"Connection": "close"}
        too_large = HTTPException(
            413, f"The body is larger than {max_bytes:,} bytes. Send fewer instances.", close
        )
        if int(self.headers.get("content-length", 0)) > max_bytes + DISCARDED:
            raise too_large  # at once: its end would not be read in any case
        try:
            with fail_after(timeout):
                async for part in self.stream():
                    size += len(part)
                    if size <= max_bytes:
                        body += part
                    elif size > max_bytes + DISCARDED:
                        break
        except TimeoutError:
            sentence = f"The body did not arrive within {timeout:g} seconds. Send it faster."
            raise HTTPException(408, sentence, close) from None
        except ClientDisconnect:
            raise HTTPException(400, "The connection closed before the body's end.") from None
        if size > max_bytes:
            raise too_large
        self._bytes = bytes(body)
        return self._bytes

    async def json(self) -> Any:
        """Returns the body as JSON."""
        return read_json(self._bytes)


def read_json(body: bytes) -> Any:
    """Reads JSON more strictly than Python's own module does.

    It has to be UTF-8 without NaN, without numbers too large to compute with, without a name twice
    in one object and without half a surrogate pair.

    Examples:
        >>> read_json(b'{"age": 1, "age": 2}')
        Traceback (most recent call last):
        starlette.exceptions.HTTPException: 400: The body is wrong: 'age' is twice in one object.
    """
    try:
        data = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=unique_names,
            parse_int=partial(_read_number, int),
            parse_float=partial(_read_number, float),
            parse_constant=_refuse_constant,
        )
        if b"\\u" in body:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:  # errors of JSON and UTF-8 are ValueErrors
        raise HTTPException(400, f"The body is wrong: {error}.") from None
    return data


def _read_number(kind: type[int] | type[float], digits: str) -> float:
    if abs(float(digits)) > MAX_NUMBER:  # also before Python refuses to read a very long integer
        raise ValueError(f"the number {digits[:20]} is too large, over {MAX_NUMBER:g}")
    return kind(digits)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"JSON has no {word}; send null for a missing value")
