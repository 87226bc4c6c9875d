"""Classifiers at an address, queried over HTTP in JSON.

The request, a POST (null is a missing value):

    {"rows": [{"age": 31, "home": "rent", "debt": null}, ...]}

The response, one label for each row, bare or named; or probabilities with the classes of their
columns, of which the highest is the label unless labels are given as well:

    ["refused", ...]
    {"labels": ["refused", ...]}
    {"classes": ["approved", "refused"], "probabilities": [[0.2, 0.8], ...]}

It may refuse single rows, with a text each, and is then queried about the others again:

    {"errors": [null, "unknown postcode", ...]}

A service may be slow, wrong or gone: every request has a deadline, every response a largest size,
and whatever does not follow the above raises a `ClassifierError` that names the address without
its credentials.
"""

from __future__ import annotations

import asyncio
import json
import math
from asyncio import sleep
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lapace.classifiers.addresses import Address
from lapace.classifiers.outputs import (
    ModelOutput,
    are_probabilities,
    as_classes,
    as_probability,
    distinct_labels,
    short,
)
from lapace.errors import (
    ClassifierError,
    InputError,
    LapaceError,
    RowsError,
    check_number,
    import_extra,
)
from lapace.table import Table, Template, read

if TYPE_CHECKING:
    import httpx

ROWS = 1000  # in one request
CELLS = 200_000  # and cells, for tables as wide as images
LARGEST = 2**25  # bytes of one response
ATTEMPTS = 4  # of one request, all within its deadline
CONNECT = 5.0  # seconds to connect in, per attempt
PAUSE = 0.2  # seconds before the second attempt, doubled before each further one
JITTER = 0.5  # share of a pause that is added at random
MOST_FAILURES = 3  # in a row, each with its retries, before the service is left alone
REST = 30.0  # seconds it is left alone
REDIRECTS = 3
EXCERPT = 20_000  # bytes of a response searched for what a message may quote of it
REPEATED = 8  # characters of a credential that no label has by chance
TOLERANCE = 0.01  # how far a row's probabilities may be from summing to one
RETRIED = (429, 502, 503, 504)
MOVED = (301, 302, 307, 308)
HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "lapace",
}


class UnavailableError(ClassifierError):
    """The service is gone, busy, or too slow: it may be better later."""


class TooLargeError(ClassifierError):
    """The service refuses so many rows at once."""


class HttpModel:
    """A service at an address, as a function from a frame to a `ModelOutput`.

    Args:
        url: `http://` or `https://`; a user name and password are sent as basic authentication.
        timeout: Seconds one request may take, from its first attempt to its last byte.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self.url = url
        self.timeout = check_number("timeout", timeout, 0.001, 86_400)
        self._httpx = import_extra("httpx", "http", "A classifier at an address")
        self._address = Address.parse(url, self._httpx)
        self._name = f"The classifier at {self._address.shown}"
        # Certificates are read once: it takes longer than a small request.
        https = self._address.url.scheme == "https"
        self._verify = self._httpx.create_ssl_context() if https else False
        self._most = ROWS  # fewer once the service has refused as many
        self._breaker = CircuitBreaker()

    def __reduce__(self) -> tuple[Any, ...]:
        return HttpModel, (self.url, self.timeout)

    def __repr__(self) -> str:
        return f"HttpModel({self._address.shown!r})"

    def __call__(self, frame: Any) -> ModelOutput:
        """The service's output for the rows, requested a bounded number of rows at a time."""
        from anyio.from_thread import start_blocking_portal

        # In a thread with an event loop of its own: a notebook's thread runs one already.
        with start_blocking_portal() as portal:
            output: ModelOutput = portal.call(self._query, read(frame))
        return output

    async def _query(self, table: Table) -> ModelOutput:
        kinds = tuple(table.columns[name].kind for name in table.names)
        values = {name: column.values for name, column in table.columns.items()}
        rows = Template("records", table.names, kinds).build(values)
        most, parts = min(ROWS, CELLS // max(1, len(kinds))), []
        client = self._httpx.AsyncClient(
            verify=self._verify,
            trust_env=False,
            headers=HEADERS | self._address.authorization,
            follow_redirects=False,
            # Connecting has its own limit, so that it can be retried; everything else is within
            # the deadline of the request, however slowly the bytes come.
            timeout=self._httpx.Timeout(None, connect=min(CONNECT, self.timeout)),
        )
        self._breaker.check(self._error)
        try:
            async with client:
                begin = 0
                while begin < len(rows):
                    some = rows[begin : begin + min(most, self._most)]
                    try:
                        returned = await self._request(client, _body(some))
                    except TooLargeError:  # fewer at a time from now on
                        if len(some) == 1:
                            raise
                        self._most = max(1, len(some) // 2)
                        continue
                    parts.append(self._output(returned, len(some), begin))
                    begin += len(some)
        except ClassifierError as error:
            if isinstance(error, UnavailableError):
                self._breaker.failed()
            raise
        self._breaker.worked()
        return self._joined(parts)

    def _error(self, what: str) -> ClassifierError:
        return ClassifierError(f"{self._name} {what}")

    # -- one request ------------------------------------------------------------------------------

    async def _request(self, client: httpx.AsyncClient, body: bytes) -> Any:
        """The service's JSON, within the deadline."""
        try:
            async with asyncio.timeout(self.timeout):
                response, content = await self._with_retries(client, body)
        except TimeoutError:
            raise UnavailableError(
                f"{self._name} did not respond within {self.timeout:g} s. Query fewer instances at "
                "a time, or raise the timeout."
            ) from None
        excerpt = self._excerpt(response, content)
        if response.status_code != 200:
            kind = {413: TooLargeError, **dict.fromkeys(RETRIED, UnavailableError)}.get(
                response.status_code, ClassifierError
            )
            asked = _retry_after(response.headers)
            later = f" It asks to try again in {asked:g} s." if asked else ""
            raise kind(
                f"{self._name} responded with status {response.status_code}{excerpt}.{later}"
            )
        try:
            return json.loads(content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise self._error(f"did not respond with JSON{excerpt}. Check the address.") from None

    async def _with_retries(
        self, client: httpx.AsyncClient, body: bytes
    ) -> tuple[httpx.Response, bytes]:
        """The first response that is not a temporary failure, or else the last one."""
        deadline = monotonic() + self.timeout
        for attempt in range(1, ATTEMPTS + 1):
            pause = PAUSE * 2 ** (attempt - 1)
            try:
                response, content = await self._post(client, body)
            except self._httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    why = self._address.hide(str(error)).strip(" .") or type(error).__name__
                    raise UnavailableError(
                        f"{self._name} could not be reached, or broke off, {ATTEMPTS} times: "
                        f"{why}. Check that it runs, and its address."
                    ) from None
            else:
                asked = _retry_after(response.headers)
                too_long = asked > deadline - monotonic()  # it would come to nothing
                if response.status_code not in RETRIED or attempt == ATTEMPTS or too_long:
                    break
                pause = max(pause, asked)
            # Clients that failed at once should not all come back at once.
            await sleep(pause * (1 + JITTER * random()))
        return response, content

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> tuple[httpx.Response, bytes]:
        """One POST; redirects are followed within the same host only."""
        address = self._address.url
        for _ in range(REDIRECTS + 1):
            async with client.stream("POST", address, content=body) as response:
                if response.status_code not in MOVED:
                    return response, await self._content(response)
                moved, location = response.next_request, response.headers.get("location")
                if not (moved and location and _same_origin(address, moved.url)):
                    raise self._error(
                        "redirects elsewhere, and is not followed: instances are sent to the "
                        "address you named and to no other. Name the right address."
                    )
                address = moved.url
        raise self._error(f"redirects more than {REDIRECTS} times.")

    async def _content(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise self._error("compresses its responses, against the request.")
        content = bytearray()
        async for part in response.aiter_raw():
            content += part
            if len(content) > LARGEST:
                raise self._error(
                    f"responded with more than {LARGEST // 2**20} MiB, too much for so few rows."
                )
        return bytes(content)

    def _excerpt(self, response: httpx.Response, content: bytes) -> str:
        """The beginning of a response, for a message; without credentials it may repeat."""
        text = content[:EXCERPT].decode("utf-8", errors="replace").strip()
        if "html" in response.headers.get("content-type", "") or text.startswith("<"):
            return ": a web page"
        text = self._address.hide(text)[: EXCERPT // 4]  # far from where one may be cut in two
        return f": {short(text)}" if text else ""

    # -- the response -----------------------------------------------------------------------------

    def _output(self, data: Any, rows: int, begin: int = 0) -> ModelOutput:
        """A response's JSON, checked; its labels go into messages and results.

        Args:
            data: The JSON.
            rows: How many were sent.
            begin: The position of the first of them, for errors of single rows.
        """
        try:
            self._refuse_rows(data, rows, begin)
            output = self._checked(data, rows)
        except RowsError:
            raise
        except LapaceError as error:
            raise type(error)(self._address.hide(str(error))) from None
        texts = {
            label for label in (*output.labels, *(output.classes or ())) if isinstance(label, str)
        }
        if any(len(s) >= REPEATED and s in text for s in self._address.secrets for text in texts):
            raise self._error("returns labels that repeat the credentials it was sent.")
        return output

    def _refuse_rows(self, data: Any, rows: int, begin: int) -> None:
        """Raises where the service says of single rows that it could not answer them."""
        errors = data.get("errors") if isinstance(data, dict) else None
        if errors is None:
            return
        if not (isinstance(errors, list) and len(errors) == rows):
            raise self._error("returned 'errors' that are not a list with one entry for each row.")
        found = {
            begin + i: f"{self._name} refused this row: {short(self._address.hide(str(text)))}"
            for i, text in enumerate(errors)
            if text is not None
        }
        if found:
            raise RowsError(f"{self._name} refused {len(found)} of {rows} rows.", found)

    def _checked(self, data: Any, rows: int) -> ModelOutput:
        found = data if isinstance(data, dict) else {"labels": data}
        labels, scores = found.get("labels"), found.get("probabilities")
        if labels is None and scores is None:
            raise self._error("responded with neither 'labels' nor 'probabilities'.")
        probability, classes = None, None
        if scores is not None:
            classes = as_classes(found.get("classes"))
            if classes is None:
                raise self._error(
                    "returned probabilities without 'classes', a list of their columns' labels."
                )
            probability = as_probability(scores, rows, len(classes), self._name)
            if not are_probabilities(probability, TOLERANCE):
                raise self._error(
                    "returned scores that are no probabilities: each has to be between 0 and 1, "
                    "and a row's have to sum up to 1."
                )
            if labels is None:
                labels = [classes[i] for i in probability.argmax(axis=1)]
        distinct, position = distinct_labels(labels, rows, model=self._name)
        return ModelOutput([distinct[i] for i in position], probability, classes)

    def _joined(self, parts: list[ModelOutput]) -> ModelOutput:
        labels = [label for part in parts for label in part.labels]
        found = [part.probability for part in parts if part.probability is not None]
        if not parts or len(found) < len(parts):
            return ModelOutput(labels)
        if len({part.classes for part in parts}) > 1:
            raise self._error("changes its classes between responses.")
        return ModelOutput(labels, np.concatenate(found), parts[0].classes)


def _same_origin(address: httpx.URL, other: httpx.URL) -> bool:
    """The same host, scheme and port; or from http to https, each at its default port."""
    upgraded = (address.scheme, other.scheme) == ("http", "https") and not (
        address.port or other.port
    )
    same = (address.scheme, address.port) == (other.scheme, other.port)
    return address.host == other.host and not other.userinfo and (same or upgraded)


def _retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a Retry-After header asks for, as a number or as a date; 0 for none."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


class CircuitBreaker:
    """Stops queries of a service that has failed several times in a row, for a while.

    Without it, every part of a search would wait for its own deadline.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def check(self, error: Callable[[str], ClassifierError]) -> None:
        """Raises while the service is not queried."""
        left = self._until - monotonic()
        if left > 0:
            raise error(
                f"failed {self._failures} times in a row, and is not queried for {left:.0f} s more."
            )

    def failed(self) -> None:
        """Counts a failure; after the last one the service is left alone."""
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._until = monotonic() + REST

    def worked(self) -> None:
        """Forgets failures."""
        self._failures, self._until = 0, 0.0


def _body(rows: list[dict[str, Any]]) -> bytes:
    try:
        return json.dumps({"rows": rows}, allow_nan=False).encode()
    except ValueError:
        raise InputError("A row holds an infinite number, which JSON cannot hold.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
