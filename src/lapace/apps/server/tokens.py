"""Bearer tokens: several, by name, compared in constant time, from a file that may change."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from time import monotonic, time

from lapace.errors import InputError

__all__ = ["Tokens", "read_tokens"]

NAME = re.compile(r"[\w.-]{1,64}")
TOKEN = re.compile(r"[!-~]+")  # what a header can carry
SESSION = 12 * 3600  # seconds that a browser stays logged in
REREAD = 1.0  # seconds between two looks at a file of tokens

log = logging.getLogger(__name__)


class Tokens:
    """Tokens that open the server, by the name of whoever holds each.

    Args:
        named: Tokens by the name of whoever holds them.
        file: A file of tokens as `read_tokens` reads it, beside them; it is read again when it
            changes, and kept as it was where it cannot be read.

    Examples:
        >>> tokens = Tokens({"alice": "open-sesame"})
        >>> tokens.find("open-sesame"), tokens.find("wrong")
        ('alice', None)
    """

    def __init__(self, named: Mapping[str, str], file: Path | None = None) -> None:
        self._named = _digests(named)
        self._file = file
        self._from_file = {} if file is None else _digests(read_tokens(file))
        self._seen = None if file is None else _stamp(file)
        self._looked = monotonic()

    def find(self, token: str) -> str | None:
        """The name of the token's holder; None where it is none of the tokens.

        All are compared, and digests have one length, so that the time taken says nothing.
        """
        self._reread()
        digest, holder = _digest(token), None
        for name, known in (*self._named.items(), *self._from_file.items()):
            if hmac.compare_digest(digest, known):
                holder = name
        return holder

    def open_session(self, token: str, seconds: int = SESSION) -> str | None:
        """Returns a cookie's value that replaces the token in a browser; None for a wrong token.

        The value says how long it is valid, signed with the token's digest: nothing is stored
        here, the token cannot be read from it, and it ends with the token.
        """
        if self.find(token) is None:
            return None
        until = str(int(time()) + seconds)
        return f"{until}.{_signature(_digest(token), until)}"

    def find_session(self, session: str) -> str | None:
        """The name of the holder of the token that a session was opened with; None for none."""
        until, _, signature = session.partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) < 12 and int(until) > time()):
            return None
        self._reread()
        holder = None
        for name, known in (*self._named.items(), *self._from_file.items()):
            if hmac.compare_digest(signature.encode(), _signature(known, until).encode()):
                holder = name
        return holder

    def _reread(self) -> None:
        if self._file is None or monotonic() - self._looked < REREAD:
            return
        self._looked = monotonic()
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._from_file = _digests(read_tokens(self._file))
            log.warning("The file of tokens was read again: %d tokens.", len(self._from_file))
        except InputError as error:
            log.error("The file of tokens has changed, and the old tokens stay: %s", error)


def read_tokens(file: Path) -> dict[str, str]:
    """The tokens in a file by name: a line each, `name:token`; # begins a comment."""
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


def _digests(named: Mapping[str, str]) -> dict[str, bytes]:
    for name, token in named.items():
        if not (isinstance(token, str) and TOKEN.fullmatch(token)):
            raise InputError("token must be a text of visible ASCII characters, without spaces.")
        if not NAME.fullmatch(name):
            raise InputError(f"'{name}' names no token: use letters, digits, . _ and -.")
    return {name: _digest(token) for name, token in named.items()}


def _signature(digest: bytes, until: str) -> str:
    return hmac.new(digest, f"lapace session until {until}".encode("ascii"), "sha256").hexdigest()


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
