"""Addresses of classifiers, and the credentials in them that nothing may repeat."""

from __future__ import annotations

import html
import json
import logging
import os
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

from lapace.errors import InputError

if TYPE_CHECKING:
    import httpx

TOKEN = "LAPACE_CLASSIFIER_TOKEN"
HIDDEN = "…"
HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE)
SHORTEST = 4  # characters of a query's value that may be a key; "2" is none


@dataclass(frozen=True)
class Address:
    """The address of a classifier, and the credentials that are sent along.

    Attributes:
        url: Without user name, password and fragment.
        shown: As messages name it.
        authorization: A header, where there are credentials.
        secrets: Every spelling of a credential, longest first.
    """

    url: httpx.URL = field(repr=False)
    shown: str
    authorization: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str, httpx_module: Any) -> Address:
        """Reads an address; the environment's token goes with an address without a password."""
        shown = without_secrets(text)
        try:
            parsed: httpx.URL = httpx_module.URL(text)
            valid = parsed.host and (parsed.port or 0) < 2**16 and not any(map(str.isspace, text))
        except (httpx_module.InvalidURL, ValueError):
            valid = False
        if not valid:
            raise InputError(
                f"'{shown}' is not an address. Write http://host:port/path or https://host/path; "
                "in a user name or password write / ? # @ as %2F %3F %23 %40."
            )
        query = parsed.query.decode("ascii", "replace")
        secrets = [query, *(value for _, value in parse_qsl(query)), *re.findall("=([^&]*)", query)]
        secrets = [text for text in secrets if len(text) >= SHORTEST]
        header = {}
        if parsed.userinfo:
            basic = b64encode(f"{parsed.username}:{parsed.password}".encode()).decode()
            raw = parsed.userinfo.decode("ascii", "replace")
            secrets += [basic, raw, *raw.split(":", 1), parsed.username, parsed.password or ""]
            header = {"authorization": f"Basic {basic}"}
        elif token := os.environ.get(TOKEN, "").strip():
            if not (token.isascii() and token.isprintable()):
                raise InputError(f"The token in {TOKEN} has characters that no header can carry.")
            secrets.append(token)
            header = {"authorization": f"Bearer {token}"}
        _quiet_requests()
        url = parsed.copy_with(userinfo=b"", fragment=None)
        return cls(url, shown, header, _spellings(secrets))

    def hide(self, text: str) -> str:
        """Returns a text of the service or of a library without the credentials in it."""
        for secret in self.secrets:
            text = re.sub(re.escape(secret), HIDDEN, text, flags=re.IGNORECASE)
        return text


def without_secrets(url: str) -> str:
    """Returns an address as messages show it: scheme, host and path.

    Where host and password cannot be separated for certain, both are left out.

    Examples:
        >>> without_secrets("https://me:secret@host/predict?key=secret")
        'https://host/predict'
        >>> without_secrets("https://me:sec/ret@host/predict")
        'https://…'
    """
    scheme, colon, rest = url.partition("://")
    if not (colon and re.fullmatch(r"[a-z][a-z0-9+.-]{0,9}", scheme, re.IGNORECASE)):
        return HIDDEN
    before = re.split("[?#]", rest, maxsplit=1)[0]
    authority = before.partition("/")[0]
    host = authority.rpartition("@")[2]
    # An @ behind the host may be the end of a password, and the "host" its beginning.
    if "@" in rest[len(authority) :] or not HOST.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{host}{before[len(authority) :]}"


def hide_addresses(text: str, words: Iterable[str] = ()) -> str:
    """Returns a message with every address in it as `without_secrets` shows it.

    Args:
        text: The message.
        words: Texts that may be in it and may hold an address, such as a command's arguments.

    Examples:
        >>> hide_addresses("Unknown: 'http://me:secret@host/a?key=1'.")
        "Unknown: 'http://host/a'."
        >>> hide_addresses("Listening at http://127.0.0.1:8000; stop with Ctrl-C.")
        'Listening at http://127.0.0.1:8000; stop with Ctrl-C.'
    """
    for word in sorted(words, key=len, reverse=True):
        if "://" in word or "@" in word:
            address = re.sub("^--?[a-z-]+=", "", word)
            shown = without_secrets(address)
            for spelled in (address, " ".join(address.split())):
                text = text.replace(spelled, shown)
            for part in re.split("/+", address):  # a message about a file names the last one only
                if part and part not in shown:
                    text = text.replace(part, HIDDEN).replace(" ".join(part.split()), HIDDEN)
    return re.sub(
        r"[a-z][a-z0-9+.-]*://[^\s'\"]*[^\s'\".,;:!?)]",
        lambda m: without_secrets(m[0]),
        text,
        flags=re.IGNORECASE,
    )


def _spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Returns secrets as they are and as URLs, JSON, HTML and headers write them, longest first."""
    spellings = set()
    for text in secrets:
        for secret in {text, unquote(text), unquote_plus(text)}:
            spellings |= {
                secret,
                quote(secret, safe=""),
                quote(secret),
                quote_plus(secret),
                json.dumps(secret)[1:-1],
                json.dumps(json.dumps(secret)[1:-1])[1:-1],  # JSON quoted in JSON
                html.escape(secret),
                b64encode(secret.encode("utf-8", "replace")).decode(),
            }
    return tuple(sorted(spellings - {""}, key=lambda secret: (-len(secret), secret)))


def _hide_in_record(record: logging.LogRecord) -> bool:
    """Leaves only scheme, host and path of the addresses in httpx's log of requests."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            without_secrets(str(value)) if type(value).__name__ == "URL" else value
            for value in record.args
        )
    return True


def _quiet_requests() -> None:
    logging.getLogger("httpx").addFilter(_hide_in_record)  # adding it again changes nothing
    if not logging.getLogger("stamina").handlers:  # else Python prints each retry
        logging.getLogger("stamina").addHandler(logging.NullHandler())
