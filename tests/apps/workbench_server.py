"""Serves the workbench of a small explainer: `python -m tests.workbench_server loans 0 [token]`.

It prints its address once it listens. `visitors` has no rows and is not for advisers.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from lapace import Explainer, datasets
from lapace.apps import workbench
from tests import worlds

TOWNS = tuple(f"{town} <town>" for town in "ABCDEFGHIJ")  # ten levels, which have to be escaped


@worlds.once
def loans() -> tuple[Explainer, Any, Any]:
    """The package's own loans; where the documentation's pictures are made, a fit that is good."""
    good = "LAPACE_PICTURES" in os.environ
    found = datasets.load("loans", rows=3000 if good else 900)
    classifier = found.classifier("boosting")
    explainer = Explainer(
        classifier,
        n_prototypes=3 if good else 2,
        recipe="default" if good else worlds.QUICK,
        rules=found.rules,
        schema=found.schema,
        device="cpu",
    )
    start = 119 if good else 0  # in the pictures the page opens with a case that has three ways
    return explainer.fit(found.train), found.test[start : start + 40], "approved"


@worlds.once
def clinic() -> tuple[Explainer, Any, Any]:
    """Missing values, a category of ten levels, dates, amounts, and three labels."""
    import pandas as pd

    rng = np.random.default_rng(0)
    count = 640
    frame = pd.DataFrame(
        {
            "weight": np.where(
                rng.random(count) < 0.15, np.nan, rng.normal(80, 15, count).round(1)
            ),
            "steps_a_day": rng.integers(500, 15_000, count) // 100 * 100,
            "town": rng.choice(TOWNS, count),
            "smoker": rng.choice(
                np.array(["no", "yes", None], dtype=object), count, p=[0.6, 0.3, 0.1]
            ),
            "joined": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 900, count), "D"),
        }
    )
    frame["joined"] = frame["joined"].dt.strftime("%Y-%m-%d")

    def rate(rows: Any) -> Any:
        weight = rows["weight"].fillna(95).to_numpy()
        score = weight / 10 - rows["steps_a_day"].to_numpy() / 2500
        score += 2.0 * (rows["smoker"] == "yes").to_numpy()
        score += 0.1 * rows["town"].map(TOWNS.index).to_numpy()
        return np.select([score > 9, score > 6], ["high", "middle"], "low")

    explainer = Explainer(rate, n_prototypes=2, recipe=worlds.QUICK, device="cpu")
    return explainer.fit(frame[:600]), frame[600:], "low"


def post() -> tuple[Explainer, Any, Any]:
    """The quickest to fit."""
    world = worlds.post()
    return world.explainer, world.instances, None


def visitors() -> tuple[Explainer, Any, Any]:
    """The loans, for those whom the decisions are about."""
    return loans()[0], None, "approved"


def main(name: str, port: str, token: str | None = None) -> None:
    explainer, instances, target = {
        "loans": loans,
        "clinic": clinic,
        "post": post,
        "visitors": visitors,
    }[name]()
    workbench.serve(
        explainer,
        instances,
        target=target,
        advisers=instances is not None,
        port=int(port),
        token=token,
        timeout=300.0,  # however busy the machine is
        ready=lambda address: print(address, flush=True),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
