"""E6, the illustration: the paper's first figure, in two dimensions.

`examples/illustration.py` draws it; the picture is kept beside the figures.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from benchmarks.plan import Job
from benchmarks.store import Measure

__all__ = ["measure"]

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "illustration.py"


def measure(job: Job, picture: Path) -> list[Measure]:
    """Draws the picture, and measures how many denied instances get a counterfactual.

    Args:
        job: Its seed and rows.
        picture: Where the picture goes.
    """
    import matplotlib.pyplot as plt

    example = runpy.run_path(str(EXAMPLE))
    rows = example["ROWS"]
    drawn = example["draw"](min(rows, job.protocol.rows or rows), job.seed)
    example["save"](drawn.figure, picture)
    plt.close(drawn.figure)
    explanation = drawn.explainer.explain(drawn.denied[:100], target="approved")
    answered = [status == "answered" for status in explanation.status]
    return [
        Measure.of("prototypes_valid", [p.valid for p in drawn.explainer.prototypes_]),
        Measure.of("validity", answered, method="First"),
    ]
