"""The command line of lapace.

Commands read options and tables, call the library, print, and choose an exit code:

- 0: success, also where some instances have no counterfactual;
- 1: the report fails (`report`), or an unexpected error;
- 2: wrong input, explained in one sentence;
- 130: interrupted; 143: terminated; 129: the terminal was closed; 141: the reader of standard
  output has gone.

Results go to standard output, everything else to standard error. Output files are written whole or
not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits.

    Args:
        arguments: The words after `lapace`; by default those of the process.
    """
    try:
        from lapace.apps.cli.commands import app
        from lapace.apps.cli.outputs import keep_native_output_apart
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write("lapace: The command line needs typer: pip install 'lapace[cli]'.\n")
        sys.exit(2)
    keep_native_output_apart()
    app(arguments, prog_name="lapace")
