"""The idea in one picture: `python examples/illustration.py [where.png]`.

A made-up table of two numbers: six arms of a whirl, every other one approved. A classifier, and
what lapace makes of both, in three panels; `lapace.benchmark.e6` has how. The picture opens the
README.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lapace.benchmark.e6 import ROWS, draw, save

FAST = bool(os.environ.get("LAPACE_FAST"))  # fewer rows, for the tests


def main(where: Path) -> None:
    drawn = draw(600 if FAST else ROWS, seed=1)
    save(drawn.figure, where)
    print(f"Three panels are in {where}: {drawn.instance.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "illustration.png"))
