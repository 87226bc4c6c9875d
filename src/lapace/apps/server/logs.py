"""Log lines as JSON, with the request they belong to and with no one's data.

A line has the time, the level, the message and the request's id; an exception adds its type and
where it was raised, never its text, which may quote a row.
"""

from __future__ import annotations

import json
import logging
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

__all__ = ["REQUEST_ID", "JsonLines"]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


class JsonLines(logging.Formatter):
    """A log record as one line of JSON.

    Examples:
        >>> record = logging.LogRecord("lapace", logging.INFO, "", 1, "ready", None, None)
        >>> sorted(json.loads(JsonLines().format(record)))
        ['level', 'message', 'time']
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower()}
        line["message"] = record.getMessage()
        if request := REQUEST_ID.get():
            line["request"] = request
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = [f"{frame.name}:{frame.lineno}" for frame in last]
            line["error"] = " in ".join([type(error).__name__, *where])
        return json.dumps(line)
