"""The command line: what the library does, in the library's own words.

Nothing here decides anything about explanations. Commands read options and tables, call the
library, print, and choose an exit code:

- 0: the command did what it was asked, also where some instances have no answer;
- 1: the report fails (`report`), or something unforeseen happened;
- 2: a mistake in what was asked, told in one sentence;
- 130: interrupted; nothing is left half-written.

What was asked for goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits.

    Args:
        arguments: What stands after `lapace`; by default what the shell handed over.
    """
    try:
        from lapace.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write("lapace: The command line needs typer: pip install 'lapace[cli]'.\n")
        sys.exit(2)
    app(None if arguments is None else list(arguments), prog_name="lapace")
