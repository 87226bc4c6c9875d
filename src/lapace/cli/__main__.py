"""`python -m lapace.cli`: the same as `lapace`."""

from __future__ import annotations

from lapace.cli import main

if __name__ == "__main__":
    main()
