"""Classifiers at an address, asked over HTTP in JSON.

Asked, with POST (null is a missing value):

    {"rows": [{"age": 31, "home": "rent", "debt": null}, ...]}

Answered, one label for each row, bare or named; or probabilities with the classes their columns
stand for, of which the highest is the label unless labels come along:

    ["refused", ...]
    {"labels": ["refused", ...]}
    {"classes": ["approved", "refused"], "probabilities": [[0.2, 0.8], ...]}

The other side may be slow, wrong, or gone: every request has a deadline, an answer has a largest
size, and what is not as above is said in a sentence that names the address without its secrets.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from base64 import b64encode
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np

from lapace.arrays import Floats
from lapace.classifiers.external import ModelOutput, python_values
from lapace.errors import ClassifierError, InputError
from lapace.table import Table, read

if TYPE_CHECKING:
    import httpx

__all__ = ["TOKEN", "HttpModel"]

TOKEN = "LAPACE_CLASSIFIER_TOKEN"
ROWS = 1000  # in one request
CELLS = 200_000  # and cells, for tables as wide as images
LARGEST = 2**25  # bytes of one answer
ATTEMPTS = 4  # of one request, all within its deadline
CONNECT = 5.0  # seconds to connect in, each time
PAUSE = 0.2  # seconds before the second attempt, doubled before each one after
LONGEST = 10.0  # seconds we wait where the other side asks us to
REDIRECTS = 3
AGAIN = (429, 502, 503, 504)
MOVED = (301, 302, 307, 308)

Label: TypeAlias = str | int | bool
T = TypeVar("T")


class HttpModel:
    """An address that answers about rows, as a question about a frame.

    Args:
        url: `http://` or `https://`; a name and password in it are sent as basic authentication.
        timeout: Seconds one request may take, from its first attempt to its last byte.
    """

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        if not _is_positive(timeout):
            raise InputError(f"timeout is {timeout!r}; it is a number of seconds above 0.")
        self.url = url
        self.timeout = float(timeout)
        self._httpx = _httpx()
        self._address = _address(url)
        try:
            self._httpx.URL(self._address)
        except self._httpx.InvalidURL as error:
            raise InputError(f"'{_shown(url)}' is not an address: {error}.") from None
        self._where = f"The classifier at {_shown(url)}"
        self._headers, self._secrets = self._authorization(url)
        self._lock = threading.Lock()
        self._context: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.url, self.timeout)

    def __repr__(self) -> str:
        return f"HttpModel({_shown(self.url)!r})"

    def __call__(self, frame: Any) -> ModelOutput:
        """What the other side says about the rows, asked a bounded number at a time."""
        return _finished(self._ask(read(frame)))

    async def _ask(self, table: Table) -> ModelOutput:
        columns = {name: python_values(table.columns[name]) for name in table.names}
        most = max(1, min(ROWS, CELLS // max(1, len(columns))))
        parts = []
        client = self._httpx.AsyncClient(
            verify=self._tls(),
            trust_env=False,
            headers=self._headers,
            follow_redirects=False,
            # Connecting has a limit of its own, so that it can be tried again; all the rest is
            # within the deadline of the request, however slowly it trickles in.
            timeout=self._httpx.Timeout(None, connect=min(CONNECT, self.timeout)),
        )
        async with client:
            for start in range(0, len(table), most):
                stop = min(start + most, len(table))
                rows = [
                    {name: cells[i] for name, cells in columns.items()} for i in range(start, stop)
                ]
                said = await self._request(client, _body(rows))
                parts.append(self._answer(said, len(rows)))
        return self._joined(parts)

    # -- one request ------------------------------------------------------------------------------

    async def _request(self, client: httpx.AsyncClient, body: bytes) -> Any:
        """The other side's JSON, within the deadline."""
        try:
            async with asyncio.timeout(self.timeout):
                status, kind, content = await self._attempts(client, body)
        except TimeoutError:
            raise ClassifierError(
                f"{self._where} did not answer within {self.timeout:g} s. Ask fewer instances at a "
                "time, or allow it more time."
            ) from None
        if status != 200:
            raise ClassifierError(
                f"{self._where} answered with status {status}{self._words(kind, content)}."
            )
        return self._json(kind, content)

    async def _attempts(self, client: httpx.AsyncClient, body: bytes) -> tuple[int, str, bytes]:
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            pause = PAUSE * 2**attempt
            try:
                response = await self._post(client, body)
            except self._httpx.TransportError as error:
                if last:
                    self._gone(error)
            else:
                status, headers, content = response
                if status not in AGAIN or last:
                    return status, headers.get("content-type", ""), content
                pause = max(pause, _retry_after(headers))
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _gone(self, error: Exception) -> NoReturn:
        why = str(error).strip(" .") or type(error).__name__
        raise ClassifierError(
            f"{self._where} could not be reached, or broke off, {ATTEMPTS} times: {why}. Check "
            "that it runs, and its address."
        ) from None

    async def _post(
        self, client: httpx.AsyncClient, body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One POST, led on within the same host at most."""
        address = self._address
        for _ in range(REDIRECTS + 1):
            async with client.stream("POST", address, content=body) as response:
                if response.status_code not in MOVED:
                    return response.status_code, response.headers, await self._content(response)
                address = self._next(address, response.headers.get("location", ""))
        raise ClassifierError(f"{self._where} redirects more than {REDIRECTS} times.")

    def _next(self, address: str, location: str) -> str:
        try:
            there = urljoin(address, location)
            allowed = bool(location) and _same_place(address, there)
        except ValueError:
            allowed = False
        if not allowed:
            raise ClassifierError(
                f"{self._where} redirects elsewhere, and is not followed there: instances's rows go "
                "to the address you named and to no other. Name the right address."
            )
        return there

    async def _content(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ClassifierError(f"{self._where} packs its answers, though asked not to.")
        parts, size = [], 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > LARGEST:
                raise ClassifierError(
                    f"{self._where} answered more than {LARGEST // 2**20} MiB, which is no answer "
                    "to so few rows."
                )
            parts.append(part)
        return b"".join(parts)

    # -- what came back ---------------------------------------------------------------------------

    def _json(self, kind: str, content: bytes) -> Any:
        try:
            return json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            pass
        page = "html" in kind or content.lstrip()[:1] == b"<"
        what = "a web page" if page else "something that is not JSON"
        raise ClassifierError(
            f"{self._where} answered {what}{'' if page else self._words(kind, content)}. It has to "
            "answer in JSON; check the address."
        )

    def _answer(self, said: Any, rows: int) -> ModelOutput:
        if isinstance(said, list):
            said = {"labels": said}
        if not isinstance(said, dict) or not said.keys() & {"labels", "probabilities"}:
            raise ClassifierError(
                f"{self._where} answered JSON with neither 'labels' nor 'probabilities'."
            )
        probability, classes = None, None
        if said.get("probabilities") is not None:
            classes = self._classes(said.get("classes"))
            probability = self._probability(said["probabilities"], rows, len(classes))
        labels = said.get("labels")
        if labels is None:
            if probability is None:
                raise ClassifierError(f"{self._where} answered null in place of labels.")
            labels = [(classes or ())[i] for i in probability.argmax(axis=1)]
        return ModelOutput(self._labels(labels, rows), probability, classes)

    def _labels(self, labels: Any, rows: int) -> list[Label]:
        if not isinstance(labels, list):
            raise ClassifierError(f"{self._where} answered 'labels' that are not a list.")
        if len(labels) != rows:
            raise ClassifierError(
                f"{self._where} answered {len(labels):,} labels for {rows:,} rows. It has to "
                "answer one label per row, in the rows' order."
            )
        strange = next((v for v in labels if not isinstance(v, str | int)), None)
        if strange is None and None not in labels:
            return labels
        whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in labels]
        if all(isinstance(v, str | int) for v in whole):
            return whole  # some languages write 1 as 1.0
        raise ClassifierError(
            f"{self._where} answered {_short(strange)} as a label; a label is text, a whole number "
            "or a boolean."
        )

    def _classes(self, classes: Any) -> tuple[Label, ...]:
        fine = (
            isinstance(classes, list)
            and all(isinstance(c, str | int) for c in classes)
            and len(set(classes)) == len(classes) > 1
        )
        if not fine:
            raise ClassifierError(
                f"{self._where} answered probabilities without 'classes', a list of the labels "
                "their columns stand for."
            )
        return tuple(classes)

    def _probability(self, said: Any, rows: int, width: int) -> Floats:
        try:
            found = np.array(said, dtype=np.float64)
        except (TypeError, ValueError):
            found = np.empty(0)
        if found.shape == (0,) and rows == 0:
            found = found.reshape(0, width)
        if found.shape != (rows, width):
            raise ClassifierError(
                f"{self._where} answered probabilities that are not one row of {width} numbers "
                f"for each of {rows:,} rows."
            )
        sums = found.sum(axis=1)
        if not (np.isfinite(found).all() and (found >= 0).all() and (abs(sums - 1) < 0.01).all()):
            raise ClassifierError(
                f"{self._where} answered probabilities that are no probabilities: each has to be "
                "between 0 and 1, and a row's have to sum up to 1."
            )
        return found

    def _joined(self, parts: list[ModelOutput]) -> ModelOutput:
        labels = [label for part in parts for label in part.labels]
        if not parts or any(part.probability is None for part in parts):
            return ModelOutput(labels)
        if len({part.classes for part in parts}) > 1:
            raise ClassifierError(f"{self._where} changes its classes from one answer to the next.")
        found = [part.probability for part in parts if part.probability is not None]
        return ModelOutput(labels, np.concatenate(found), parts[0].classes)

    # -- secrets and certificates -----------------------------------------------------------------

    def _authorization(self, url: str) -> tuple[dict[str, str], tuple[str, ...]]:
        """Headers of every request, and what must never be repeated from them."""
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "lapace",
        }
        parts = urlsplit(url)
        token = os.environ.get(TOKEN, "").strip()
        if parts.username is not None or parts.password is not None:
            name, password = parts.username or "", parts.password or ""
            basic = b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
            headers["authorization"] = f"Basic {basic}"
            return headers, tuple(filter(None, (password, unquote(password), basic)))
        if token:
            if not (token.isascii() and token.isprintable()):
                raise InputError(f"The token in {TOKEN} has signs that no header can carry.")
            headers["authorization"] = f"Bearer {token}"
        return headers, tuple(filter(None, (token,)))

    def _words(self, kind: str, content: bytes) -> str:
        """The beginning of what was said, for a sentence; without secrets it may have repeated."""
        text = content[:2000].decode("utf-8", errors="replace").strip()
        if "html" in kind or text.startswith("<") or not text:
            return ""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return f": {_short(text)}"

    def _tls(self) -> Any:
        """Certificates are read once: it takes longer than a small request."""
        if not self._address.startswith("https"):
            return False
        with self._lock:
            if self._context is None:
                self._context = self._httpx.create_ssl_context()
            return self._context


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise InputError(
            "A classifier at an address needs httpx: pip install 'lapace[http]'."
        ) from None
    return httpx


def _again(url: str, timeout: float) -> HttpModel:
    return HttpModel(url, timeout=timeout)


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Runs it here, or, where an event loop runs already (a notebook), in a thread beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _address(url: str) -> str:
    """The address without name and password, which go into a header."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in url):
        raise InputError(
            f"'{_shown(url)}' is not an address. Write http://host:port/path or https://host/path."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts._replace(netloc=host if port is None else f"{host}:{port}", fragment="").geturl()


def _shown(url: str) -> str:
    """An address as it may be told to anybody: no name, no password, no query."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _same_place(one: str, other: str) -> bool:
    """The same host, and the same door of it; from http to https is a better door."""
    a, b = urlsplit(one), urlsplit(other)
    if a.hostname != b.hostname or b.scheme not in ("http", "https") or b.username is not None:
        return False
    better = (a.scheme, b.scheme) == ("http", "https") and a.port is None and b.port is None
    return better or (a.scheme, a.port) == (b.scheme, b.port)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds the other side asks us to wait, within reason; a date is not reckoned with."""
    try:
        wanted = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return min(max(wanted, 0.0), LONGEST) if math.isfinite(wanted) else 0.0


def _body(rows: list[dict[str, Any]]) -> bytes:
    try:
        return json.dumps({"rows": rows}, allow_nan=False).encode()
    except ValueError:
        raise InputError("A row holds an infinite number, which JSON cannot say.") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short(value: Any, most: int = 120) -> str:
    text = " ".join(str(value if isinstance(value, str) else repr(value)).split())
    text = "".join(c for c in text if c.isprintable())
    return text if len(text) <= most else f"{text[:most]}…"
