"""Bearer tokens: several, by name, compared in constant time."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from lapace.errors import InputError

__all__ = ["Tokens", "read_tokens"]

NAME = re.compile(r"[\w.-]{1,64}")
TOKEN = re.compile(r"[!-~]+")  # what a header can carry


class Tokens:
    """Tokens that open the server.

    Args:
        named: The tokens by the name of whoever holds each.

    Examples:
        >>> tokens = Tokens({"alice": "open-sesame"})
        >>> tokens.find("open-sesame"), tokens.find("wrong")
        ('alice', None)
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        if not named:
            raise InputError("token holds none. Give one, or None to ask for none.")
        for name, token in named.items():
            if not (isinstance(token, str) and TOKEN.fullmatch(token)):
                raise InputError(
                    "token must be a text of visible ASCII characters, without spaces."
                )
            if not NAME.fullmatch(name):
                raise InputError(f"'{name}' names no token: use letters, digits, . _ and -.")
        self._digests = {name: _digest(token) for name, token in named.items()}

    def find(self, token: str) -> str | None:
        """Returns the name of the token's holder; None where it is none of the tokens.

        All are compared, and digests have one length, so that the time taken says nothing.
        """
        sent, holder = _digest(token), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(sent, digest):
                holder = name
        return holder

    @property
    def secret(self) -> str:
        """A key to sign sessions with, which changes with the tokens."""
        return _digest(repr(sorted(self._digests.items()))).hex()


def read_tokens(file: Path) -> dict[str, str]:
    """Returns the tokens in a file by name: a line each, `name:token`; # begins a comment."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The file of tokens '{file.name}' could not be read: {error}") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = text.partition(":")
        if not (NAME.fullmatch(name) and TOKEN.fullmatch(token)) or name in tokens:
            raise InputError(
                f"Line {number} of the file of tokens '{file.name}' is not understood. Write "
                "name:token, each name once, the token in visible ASCII characters."
            )
        tokens[name] = token
    if not tokens:
        raise InputError(f"The file of tokens '{file.name}' has none. Write lines of name:token.")
    return tokens


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
