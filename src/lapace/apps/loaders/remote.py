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
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lapace.apps.loaders.addresses import Address
from lapace.apps.loaders.external import as_classes, as_output
from lapace.classifier.outputs import ModelOutput, short
from lapace.errors import (
    ClassifierError,
    InputError,
    LapaceError,
    RowsError,
    check_number,
    import_extra,
)
from lapace.table import Template, read

if TYPE_CHECKING:
    import httpx

ROWS = 1000  # in one request
CELLS = 200_000  # and cells, for tables as wide as images
LARGEST = 2**25  # bytes of one response
ATTEMPTS = 4  # of one request, all within its deadline
CONNECT = 5.0  # seconds to connect in, per attempt
PAUSE = 0.2  # seconds before the second attempt, doubled before each further one
EXCERPT = 20_000  # bytes of a response searched for what a message may quote of it
REPEATED = 8  # characters of a credential that no label has by chance
RETRIED = (429, 502, 503, 504)
HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "lapace",
}


class UnavailableError(ClassifierError):
    """The service is gone or busy: it may be better later.

    Attributes:
        retry_after: The seconds it asks to wait; 0 where it asks for none.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


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
        self._stamina = import_extra("stamina", "http", "A classifier at an address")
        self._address = Address.parse(url, self._httpx)
        self._name = f"The classifier at {self._address.shown}"
        # Certificates are read once: it takes longer than a small request.
        https = self._address.url.scheme == "https"
        self._verify = self._httpx.create_ssl_context() if https else False
        self._most = ROWS  # fewer once the service has refused as many

    def __reduce__(self) -> tuple[Any, ...]:
        return HttpModel, (self.url, self.timeout)

    def __repr__(self) -> str:
        return f"HttpModel({self._address.shown!r})"

    def __call__(self, frame: Any) -> ModelOutput:
        """Returns the service's output, requested a bounded number of rows at a time."""
        from anyio.from_thread import start_blocking_portal

        table = read(frame)
        kinds = tuple(table.columns[name].kind for name in table.names)
        values = {name: column.values for name, column in table.columns.items()}
        rows = Template("records", table.names, kinds).build(values)
        # In a thread with an event loop of its own: a notebook's thread runs one already.
        with start_blocking_portal() as portal:
            output: ModelOutput = portal.call(self._query, rows, len(kinds))
        return output

    async def _query(self, rows: list[dict[str, Any]], width: int) -> ModelOutput:
        client = self._httpx.AsyncClient(
            verify=self._verify,
            trust_env=False,
            headers=HEADERS | self._address.authorization,
            follow_redirects=False,
            # Connecting has its own limit, so that it can be retried; everything else is within
            # the deadline of the request, however slowly the bytes come.
            timeout=self._httpx.Timeout(None, connect=min(CONNECT, self.timeout)),
        )
        parts: list[ModelOutput] = []
        n_answered = 0
        async with client:
            while n_answered < len(rows):
                most = max(1, min(ROWS, self._most, CELLS // max(1, width)))
                some = rows[n_answered : n_answered + most]
                try:
                    returned = await self._request(client, _body(some))
                except TooLargeError:
                    if len(some) == 1:
                        raise
                    self._most = len(some) // 2  # from now on
                    continue
                parts.append(self._output(returned, len(some), n_answered))
                n_answered += len(some)
        return self._joined(parts)

    def _error(self, what: str) -> ClassifierError:
        return ClassifierError(f"{self._name} {what}")

    # -- one request ------------------------------------------------------------------------------

    async def _request(self, client: httpx.AsyncClient, body: bytes) -> Any:
        """Returns the service's JSON, tried for several times within the deadline."""
        deadline = monotonic() + self.timeout

        def retried(error: Exception) -> bool | float:
            if not isinstance(error, UnavailableError):
                return False
            if error.retry_after > deadline - monotonic():
                return False  # it would come to nothing
            return error.retry_after or True

        attempts = self._stamina.retry_context(
            retried, attempts=ATTEMPTS, timeout=None, wait_initial=PAUSE, wait_jitter=PAUSE
        )
        try:
            async with asyncio.timeout(self.timeout):
                async for attempt in attempts:
                    with attempt:
                        return await self._post(client, body)
        except TimeoutError:
            raise UnavailableError(
                f"{self._name} did not respond within {self.timeout:g} s. Query fewer instances at "
                "a time, or raise the timeout."
            ) from None

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> Any:
        """Makes one POST, and returns its JSON."""
        try:
            async with client.stream("POST", self._address.url, content=body) as response:
                content = await self._content(response)
        except self._httpx.TransportError as error:
            why = self._address.hide(str(error)).strip(" .") or type(error).__name__
            raise UnavailableError(
                f"{self._name} could not be reached, or broke off: {why}. Check that it runs, and "
                "its address."
            ) from None
        excerpt = self._excerpt(response, content)
        if response.status_code != 200:
            self._refuse_status(response, excerpt)
        try:
            return json.loads(content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise self._error(f"did not respond with JSON{excerpt}. Check the address.") from None

    def _refuse_status(self, response: httpx.Response, excerpt: str) -> NoReturn:
        status = response.status_code
        said = f"{self._name} responded with status {status}{excerpt}."
        if status in RETRIED:
            text = response.headers.get("retry-after", "")
            asked = float(text) if text.isdecimal() else 0.0
            later = f" It asks to try again in {asked:g} s." if asked else ""
            raise UnavailableError(f"{said}{later}", asked)
        if 300 <= status < 400:
            raise self._error(
                "redirects elsewhere, and is not followed: instances are sent to the address you "
                "named and to no other. Name the right address."
            )
        raise (TooLargeError if status == 413 else ClassifierError)(said)

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
        """Returns the beginning of a response, for a message, without credentials in it."""
        text = content[:EXCERPT].decode("utf-8", errors="replace").strip()
        if "html" in response.headers.get("content-type", "") or text.startswith("<"):
            return ": a web page"
        text = self._address.hide(text)[: EXCERPT // 4]  # far from where one may be cut in two
        return f": {short(text)}" if text else ""

    # -- the response -----------------------------------------------------------------------------

    def _output(self, data: Any, rows: int, begin: int = 0) -> ModelOutput:
        """Checks a response's JSON; its labels go into messages and results.

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
        refused = {
            begin + i: f"{self._name} refused this row: {short(self._address.hide(str(text)))}"
            for i, text in enumerate(errors)
            if text is not None
        }
        if refused:
            raise RowsError(f"{self._name} refused {len(refused)} of {rows} rows.", refused)

    def _checked(self, data: Any, rows: int) -> ModelOutput:
        named = data if isinstance(data, dict) else {"labels": data}
        labels, scores = named.get("labels"), named.get("probabilities")
        if labels is None and scores is None:
            raise self._error("responded with neither 'labels' nor 'probabilities'.")
        if scores is None:
            return as_output(labels, None, None, rows, self._name)
        classes = as_classes(named.get("classes"))
        if classes is None:
            raise self._error(
                "returned probabilities without 'classes', a list of their columns' labels."
            )
        output = as_output(labels, scores, classes, rows, self._name)
        if output.probability is None:
            raise self._error(
                "returned scores that are no probabilities: each has to be between 0 and 1, and a "
                "row's have to sum up to 1."
            )
        return output

    def _joined(self, parts: list[ModelOutput]) -> ModelOutput:
        labels = [label for part in parts for label in part.labels]
        probabilities = [part.probability for part in parts if part.probability is not None]
        if not parts or len(probabilities) < len(parts):
            return ModelOutput(labels)
        if len({part.classes for part in parts}) > 1:
            raise self._error("changes its classes between responses.")
        return ModelOutput(labels, np.concatenate(probabilities), parts[0].classes)


def _body(rows: list[dict[str, Any]]) -> bytes:
    try:
        return json.dumps({"rows": rows}, allow_nan=False).encode()
    except ValueError:
        raise InputError("A row holds an infinite number, which JSON cannot hold.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
