"""Classifiers at an address, queried over HTTP in JSON.

The request, a POST (null is a missing value):

    {"rows": [{"age": 31, "home": "rent", "debt": null}, ...]}

The response, one label for each row, bare or named; or probabilities with the classes of their
columns, of which the highest is the label unless labels are given as well:

    ["refused", ...]
    {"labels": ["refused", ...]}
    {"classes": ["approved", "refused"], "probabilities": [[0.2, 0.8], ...]}

A service may be slow, wrong or gone: every request has a deadline, every response a largest size,
and whatever does not follow the above raises a `ClassifierError` that names the address without
its credentials. What a service says is quoted only where no credentials were sent: it may repeat
them.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from lapace.apps.loaders.addresses import read_address
from lapace.apps.loaders.external import as_classes, as_output
from lapace.classifier.outputs import ModelOutput, short
from lapace.errors import ClassifierError, InputError, check_number, import_extra
from lapace.table import Template, read

if TYPE_CHECKING:
    import httpx

ROWS = 1000  # in one request
LARGEST = 2**25  # bytes of one response
ATTEMPTS = 5  # of one request, all within its deadline
CONNECT = 5.0  # seconds to connect in, per attempt
PAUSE = 0.2  # seconds before the second attempt, doubled before each further one
EXCERPT = 1_000  # bytes of a response, of which a message may quote the first line
TOO_LARGE = 413
RETRIED = (429, 502, 503, 504)
HEADERS = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "lapace",
}


class UnavailableError(ClassifierError):
    """The service is gone or busy: it may be better later."""


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
        self._address = read_address(url, self._httpx)
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
            outputs: list[ModelOutput] = portal.call(self._query, rows)
        labels = [label for output in outputs for label in output.labels]
        probabilities = [o.probability for o in outputs if o.probability is not None]
        if not outputs or len(probabilities) < len(outputs):
            return ModelOutput(labels)
        if len({output.classes for output in outputs}) > 1:
            raise self._error("changes its classes between responses.")
        return ModelOutput(labels, np.concatenate(probabilities), outputs[0].classes)

    async def _query(self, rows: list[dict[str, Any]]) -> list[ModelOutput]:
        client = self._httpx.AsyncClient(
            verify=self._verify,
            trust_env=False,
            headers=HEADERS | self._address.authorization,
            follow_redirects=False,
            # Connecting has its own limit, so that it can be retried; everything else is within
            # the deadline of the request, however slowly the bytes come.
            timeout=self._httpx.Timeout(None, connect=min(CONNECT, self.timeout)),
        )
        outputs: list[ModelOutput] = []
        first = 0
        async with client:
            while first < len(rows):
                some = rows[first : first + min(ROWS, self._most)]
                try:
                    returned = await self._request(client, _body(some))
                except TooLargeError:
                    if len(some) == 1:
                        raise
                    self._most = len(some) // 2  # from now on
                    continue
                outputs.append(self._output(returned, len(some)))
                first += len(some)
        return outputs

    def _error(self, what: str) -> ClassifierError:
        return ClassifierError(f"{self._name} {what}")

    # -- one request ------------------------------------------------------------------------------

    async def _request(self, client: httpx.AsyncClient, body: bytes) -> Any:
        """Returns the service's JSON, tried for several times within the deadline."""
        attempts = self._stamina.retry_context(
            UnavailableError, attempts=ATTEMPTS, timeout=None, wait_initial=PAUSE, wait_jitter=PAUSE
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
        content = bytearray()
        try:
            async with client.stream("POST", self._address.url, content=body) as response:
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > LARGEST:
                        raise self._error(f"responded with more than {LARGEST // 2**20} MiB.")
        except self._httpx.TransportError as error:
            why = self._quoted(str(error).strip(" ."))
            raise UnavailableError(
                f"{self._name} could not be reached, or broke off{why}. Check that it runs, and "
                "its address."
            ) from None
        excerpt = self._quoted(content[:EXCERPT].decode("utf-8", errors="replace").strip())
        if response.status_code != 200:
            self._refuse_status(response.status_code, excerpt)
        try:
            return json.loads(content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise self._error(f"did not respond with JSON{excerpt}. Check the address.") from None

    def _refuse_status(self, status: int, excerpt: str) -> NoReturn:
        if 300 <= status < 400:
            raise self._error(
                "redirects elsewhere, and is not followed: instances are sent to the address you "
                "named and to no other. Name the right address."
            )
        kind = UnavailableError if status in RETRIED else ClassifierError
        kind = TooLargeError if status == TOO_LARGE else kind
        raise kind(f"{self._name} responded with status {status}{excerpt}.")

    def _quoted(self, text: str) -> str:
        """Returns the tail of a message that quotes a text of the service or of a library."""
        if self._address.has_credentials or not text:
            return ""
        return ": a web page" if text.startswith("<") else f": {short(text)}"

    # -- the response -----------------------------------------------------------------------------

    def _output(self, data: Any, rows: int) -> ModelOutput:
        """Checks a response's JSON for some rows."""
        named = data if isinstance(data, dict) else {"labels": data}
        labels, scores = named.get("labels"), named.get("probabilities")
        classes = as_classes(named.get("classes"))
        if labels is None and scores is None:
            raise self._error("responded with neither 'labels' nor 'probabilities'.")
        if scores is not None and classes is None:
            raise self._error(
                "returned probabilities without 'classes', a list of their columns' labels."
            )
        if isinstance(labels, list) and any(isinstance(label, list | dict) for label in labels):
            raise self._error("returned labels that are not text, whole numbers or booleans.")
        output = as_output(
            labels, scores, classes if scores is not None else None, rows, self._name
        )
        if scores is not None and output.probability is None:
            raise self._error(
                "returned scores that are not probabilities: each has to be between 0 and 1, and a "
                "row's have to sum up to 1."
            )
        return output


def _body(rows: list[dict[str, Any]]) -> bytes:
    try:
        return json.dumps({"rows": rows}, allow_nan=False).encode()
    except ValueError:
        raise InputError("A row holds an infinite number, which JSON cannot hold.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
