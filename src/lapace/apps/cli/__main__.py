"""`python -m lapace.apps.cli`: the same as `lapace`."""

from __future__ import annotations

from lapace.apps.cli import main

if __name__ == "__main__":
    main()
