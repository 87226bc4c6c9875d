"""Addresses of classifiers. Their credentials appear in no message, log or file."""

from __future__ import annotations

import logging
import os
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapace.errors import InputError

if TYPE_CHECKING:
    import httpx

TOKEN = "LAPACE_CLASSIFIER_TOKEN"
HIDDEN = "…"
HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Address:
    """The address of a classifier, and the credentials that are sent along.

    Attributes:
        url: Without user name, password and fragment.
        shown: As messages name it.
        authorization: A header, where there is a password or a token.
        has_credentials: Whether a service could repeat credentials; a query may hold a key.
    """

    url: httpx.URL
    shown: str
    authorization: dict[str, str]
    has_credentials: bool


def read_address(text: str, httpx_module: Any) -> Address:
    """Reads an address; the environment's token goes with an address without a password."""
    shown = without_secrets(text)
    try:
        url: httpx.URL = httpx_module.URL(text)
        valid = url.host and (url.port or 0) < 2**16 and not any(map(str.isspace, text))
    except (httpx_module.InvalidURL, ValueError):
        valid = False
    if not valid:
        raise InputError(
            f"'{shown}' is not an address. Write http://host:port/path or https://host/path; in a "
            "user name or password write / ? # @ as %2F %3F %23 %40."
        )
    header = {}
    if url.userinfo:
        basic = b64encode(f"{url.username}:{url.password}".encode()).decode()
        header = {"authorization": f"Basic {basic}"}
    elif token := os.environ.get(TOKEN, "").strip():
        if not (token.isascii() and token.isprintable()):
            raise InputError(f"The token in {TOKEN} has characters that no header can carry.")
        header = {"authorization": f"Bearer {token}"}
    _hide_in_logs()
    plain = url.copy_with(userinfo=b"", fragment=None)
    return Address(plain, shown, header, bool(header or url.query))


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
    before_query = re.split("[?#]", rest, maxsplit=1)[0]
    authority = before_query.partition("/")[0]
    host = authority.rpartition("@")[2]
    # An @ behind the host may be the end of a password, and the "host" its beginning.
    if "@" in rest[len(authority) :] or not HOST.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{host}{before_query[len(authority) :]}"


def hide_addresses(text: str, words: Iterable[str] = ()) -> str:
    """Returns a message with every address in it as `without_secrets` shows it.

    Args:
        text: The message.
        words: Texts that may be in it and may hold an address, such as a command's arguments.

    Examples:
        >>> hide_addresses("Unknown: 'http://me:secret@host/a?key=1'.")
        "Unknown: 'http://host/a'."
    """
    for word in sorted(words, key=len, reverse=True):
        if "://" in word or "@" in word:
            address = re.sub("^--?[a-z-]+=", "", word)
            shown = without_secrets(address)
            # A message may have single blanks only, and one about a file its last part only.
            parts = [part for part in re.split("/+", address) if part and part not in shown]
            for hidden in (address, *parts):
                replacement = shown if hidden == address else HIDDEN
                for spelled in (hidden, " ".join(hidden.split())):
                    text = text.replace(spelled, replacement)
    pattern = r"[a-z][a-z0-9+.-]*://[^\s'\"]*[^\s'\".,;:!?)]"
    return re.sub(pattern, lambda m: without_secrets(m[0]), text, flags=re.IGNORECASE)


def _hide_in_record(record: logging.LogRecord) -> bool:
    """Leaves only scheme, host and path of the addresses in httpx's log of requests."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            without_secrets(str(value)) if type(value).__name__ == "URL" else value
            for value in record.args
        )
    return True


def _hide_in_logs() -> None:
    logging.getLogger("httpx").addFilter(_hide_in_record)  # adding it again changes nothing
    if not logging.getLogger("stamina").handlers:  # else Python prints each retry
        logging.getLogger("stamina").addHandler(logging.NullHandler())
