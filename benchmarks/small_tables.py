"""Small tables, fits good and broken, and their reports: `python -m benchmarks.small_tables`.

Tables of 100 to 5,000 rows with 2 to 10 labels are fitted as they are, without made-up rows, and
broken on purpose in three ways. Written down are the report's verdict, and what making up rows is
to reach. Settings and thresholds were chosen on some of the tables, the others are to report on.
Each fit is kept in the cache, so that a run that was stopped goes on where it ended.

| how | what is broken |
|---|---|
| `good` | nothing |
| `without` | nothing, but labels are not topped up with made-up rows |
| `shuffled` | the model is trained on labels in random order |
| `steps` | training stops after 20 steps |
| `swapped` | prototypes and their latent points are exchanged between labels, after the fit |
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets as bundled
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.figures import grid
from benchmarks.jobs import cached, collected, write
from benchmarks.provenance import environment
from lapace import Explainer, LapaceError, datasets
from lapace.explainer import estimator
from lapace.explainer.fit import Prototype, Trained
from lapace.training import DEFAULT

BROKEN = ("shuffled", "steps", "swapped")
HOWS = ("good", *BROKEN, "without")
RESULTS, CACHE = Path("benchmarks/results"), Path(".cache/benchmark/small-tables")
AGREEMENT, CENTROIDS, GOOD, FOUND = 0.8, 0.85, 0.8, 0.95  # what is aimed at
BAD = ("fails", "refused")
SAMPLED = 200  # rows sampled for a label
COUNTED = 20  # rows of a label from which its agreement counts
Rows = tuple[pd.DataFrame, NDArray[Any]]

# ------------------------------------------------------------------------------------------------
# Tables


class SmallTable(NamedTuple):
    """A small table.

    Attributes:
        name: Family, rows and labels.
        make: Makes the rows and their true labels from a seed.
        kind: The classifier that is explained.
        tuned_on: Whether settings and thresholds may be chosen on it.
    """

    name: str
    make: Callable[[int], Rows]
    kind: str
    tuned_on: bool


def _applicants(rows: int, labels: int, seed: int, later: int = 0) -> Rows:
    """Makes credit applications: numbers, categories, missing values, noise."""
    rng = np.random.default_rng(seed + later)
    amount = np.round(rng.lognormal(7.8, 0.8, rows), -1)
    job = rng.choice(["unskilled", "skilled", "management"], rows, p=[0.25, 0.6, 0.15])
    frame = pd.DataFrame(
        {
            "age": rng.integers(19, 75, rows),
            "amount": amount,
            "months": rng.choice([6, 12, 18, 24, 36, 48, 60], rows),
            "savings": np.where(rng.random(rows) < 0.15, np.nan, rng.gamma(1.2, 900, rows).round()),
            "status": rng.choice(["no", "overdrawn", "low", "high"], rows, p=[0.4, 0.3, 0.2, 0.1]),
            "history": rng.choice(["clean", "delays", "critical"], rows, p=[0.55, 0.15, 0.3]),
            "purpose": rng.choice(["car", "furniture", "tv", "education", "business"], rows),
            "job": job,
            "housing": rng.choice(["own", "rent", "free"], rows, p=[0.7, 0.2, 0.1]),
            "guarantor": rng.random(rows) < 0.1,
        }
    )  # fmt: skip
    score = (
        0.02 * (frame["age"] - 40)
        - 0.5 * np.log(amount / 2500)
        - 0.03 * (frame["months"] - 20)
        + 0.0004 * frame["savings"].fillna(400)
        + frame["status"].map({"no": 0.9, "overdrawn": -0.9, "low": -0.3, "high": 0.4})
        + frame["history"].map({"clean": 0.1, "delays": -0.5, "critical": 0.5})
        + (job == "management") * 0.3
        + 0.5 * frame["guarantor"]
        + rng.normal(0, 0.7, rows)
    )
    edges = np.quantile(score, np.linspace(0, 1, labels + 1)[1:-1] ** 1.4)
    return frame, np.searchsorted(edges, score)


def _points(rows: int, labels: int, seed: int, **settings: Any) -> Rows:
    """Makes a table of numbers alone; `share` makes the last label rare."""
    columns, share = settings.get("columns", 8), settings.get("share", 0.0)
    x, y = bundled.make_classification(
        rows,
        columns,
        n_informative=max(3, columns // 2),
        n_redundant=1,
        n_classes=labels,
        n_clusters_per_class=1 if labels > 3 else 2,
        flip_y=settings.get("noise", 0.02),
        weights=[*[(1 - share) / (labels - 1)] * (labels - 1), share] if share else None,
        class_sep=1.2,
        random_state=seed,
    )
    return pd.DataFrame(x.round(3), columns=[f"x{i}" for i in range(columns)]), y


def _part(rows: int, labels: int, seed: int, name: str, *, ours: bool = False) -> Rows:
    """Makes a random part of a table of scikit-learn, or of a data set of the package."""
    if ours:
        data = datasets.load(name)
        frame, target = data.train, np.asarray(data.train_labels)
    else:
        found = getattr(bundled, f"load_{name}")(as_frame=True)
        frame, target = found.data, found.target.to_numpy()
    if name == "diabetes":  # a regression's target is cut in equal parts
        target = np.searchsorted(np.quantile(target, np.linspace(0, 1, labels + 1)[1:-1]), target)
    some = np.random.default_rng(seed).permutation(len(frame))[:rows]
    varies = [c for c in frame if ours or frame[c].iloc[some].nunique() > 1]
    return frame[varies].iloc[some].reset_index(drop=True), target[some]


def classifier(kind: str, frame: pd.DataFrame, labels: NDArray[Any], seed: int) -> Any:
    """Fits a classifier as people do: a pipeline on the table's own columns."""
    numbers = [
        c for c in frame if pd.api.types.is_numeric_dtype(frame[c]) and frame[c].dtype != bool
    ]
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False),
         [c for c in frame if c not in numbers]),
    )  # fmt: skip
    kinds = {
        "forest": RandomForestClassifier(100, min_samples_leaf=2, random_state=seed),
        "boosted": HistGradientBoostingClassifier(max_iter=60, random_state=seed),
        "linear": LogisticRegression(max_iter=2000),
        "net": MLPClassifier((32,), alpha=0.1, max_iter=400, random_state=seed),
    }
    return make_pipeline(columns, kinds[kind]).fit(frame, labels)


# The family, how its tables are made, whether they were tuned on, and their rows and labels.
FAMILIES: tuple[tuple[str, Callable[..., Rows], bool, tuple[tuple[int, int], ...]], ...] = (
    ("applicants", _applicants, True, ((100, 2), (300, 3), (1000, 2), (2500, 5))),
    ("points", _points, True, ((150, 2), (400, 4), (1000, 10), (3000, 3))),
    ("iris", partial(_part, name="iris"), True, ((150, 3),)),
    ("diabetes", partial(_part, name="diabetes"), True, ((442, 3),)),
    ("loans", partial(_part, name="loans", ours=True), True, ((500, 2),)),
    ("rare", partial(_points, share=0.03), True, ((1500, 3),)),
    ("credit", partial(_applicants, later=1000), False, ((200, 2), (600, 5), (2000, 3), (5000, 2))),
    ("wide", partial(_points, columns=16, noise=0.05), False,
     ((120, 2), (500, 3), (1500, 6), (5000, 10))),
    ("wines", partial(_part, name="wine"), False, ((178, 3),)),
    ("cancer", partial(_part, name="breast_cancer"), False, ((569, 2),)),
    ("digits", partial(_part, name="digits"), False, ((1000, 10),)),
    ("diabetes", partial(_part, name="diabetes"), False, ((440, 2),)),
    ("scarce", partial(_points, share=0.02, columns=10), False, ((2000, 4),)),
    *((name, partial(_part, name=name, ours=True), False, ((rows, 2),))
      for name, rows in (("wine", 400), ("heloc", 800), ("compas", 1000), ("adult-full", 1500))),
)  # fmt: skip
KINDS = ("forest", "boosted", "linear", "net")
TABLES = tuple(
    SmallTable(name, partial(make, *size), KINDS[zlib.crc32(name.encode()) % 4], tuned_on)
    for family, make, tuned_on, sizes in FAMILIES
    for size in sizes
    for name in (f"{family}-{size[0]}-{size[1]}",)
)

# ------------------------------------------------------------------------------------------------
# One fit


def shuffled(
    schema: Any, cells: Any, codes: Any, *, made_up: Any, random_state: int, **more: Any
) -> Any:
    """Calls `fit_model` on labels in random order."""
    rng = np.random.default_rng(random_state)
    if made_up is not None:
        made_up = made_up._replace(codes=rng.permutation(made_up.codes))
    more |= {"made_up": made_up, "random_state": random_state}
    return _FIT(schema, cells, rng.permutation(codes), **more)


def swapped(trained: Trained, classifier: Any, cells: Any) -> tuple[Prototype, ...]:
    """Calls `judge_centroids`, then exchanges rows and latent points between labels."""
    prototypes = _PROTOTYPES(trained, classifier, cells)
    n_labels = len(classifier.labels)
    valid = [p for p in prototypes if p.valid]

    def other(prototype: Any) -> Any:
        far = sorted(valid, key=lambda p: ((p.code - prototype.code - 1) % n_labels, p.number))
        same = [p for p in far if p.code == far[0].code]
        return same[prototype.number % len(same)]

    return tuple(replace(p, cells=other(p).cells, z=other(p).z) for p in prototypes)


_FIT, _PROTOTYPES = estimator.fit_model, estimator.judge_centroids


def fit(table: SmallTable, seed: int, how: str) -> Explainer:
    """Fits an explainer of a table's classifier, good or broken."""
    frame, labels = table.make(seed)
    recipe = {"steps": replace(DEFAULT, steps=20), "without": replace(DEFAULT, enough=0)}
    explainer = Explainer(
        classifier(table.kind, frame, labels, seed),
        recipe=recipe.get(how, DEFAULT),
        device="cpu",
        random_state=seed,
    )
    broken = {"shuffled": ("fit_model", shuffled), "swapped": ("judge_centroids", swapped)}
    if how in broken:
        with patch.object(estimator, *broken[how]):
            return explainer.fit(frame)
    return explainer.fit(frame)


def measure(job: tuple[str, int, str], cache: Path) -> dict[str, Any]:
    """Returns the line of one fit, its verdict and figures; fits and keeps it if it is new."""
    found: dict[str, Any] = cached(cache / "{}.{}.{}.json".format(*job), partial(_measured, *job))
    return found


def _measured(name: str, seed: int, how: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    (table,) = (t for t in TABLES if t.name == name)
    line = {"table": name, "classifier": table.kind, "tuned_on": table.tuned_on, "seed": seed}
    start = time.process_time()
    try:
        line |= {"how": how, **_figures(fit(table, seed, how))}
    except LapaceError as error:  # refused by `fit` itself: no explainer at all
        line |= {"how": how, "verdict": "refused", "failed": str(error)[:80]}
    return line | {"seconds": round(time.process_time() - start, 1)}


def _figures(explainer: Explainer) -> dict[str, Any]:
    """Returns figures of the report, and how the classifier labels rows sampled for a label."""
    report, prototypes, members = explainer.report_, explainer.prototypes_, Counter[Any]()
    for prototype in prototypes:
        members[prototype.label] += prototype.members
    agreement = [_agreement(explainer, k) for k, n in members.items() if n >= COUNTED]
    checks = report.checks
    unknown = [c for c in checks if c.verdict == "not measured" and c.threshold.essential]
    unsure = [c.threshold.name for c in checks if c.verdict == "unsure" or c in unknown]
    return {
        "verdict": report.verdict,
        "failed": " ".join(c.threshold.name for c in checks if c.verdict == "fails"),
        "unsure": " ".join(unsure),
        "agreement": min(agreement, default=None),
        "short_labels": sum(share < AGREEMENT for share in agreement),
        "counted_labels": len(agreement),
        "centroids": len(prototypes),
        "centroids_before": sum(bool(p.valid_before) for p in prototypes),
    }


def _agreement(explainer: Explainer, label: Any) -> float:
    """Returns the share of the rows sampled for a label to which the classifier gives it."""
    asked = explainer.classifier_
    cells = explainer.schema_.cells(explainer.sample(label, SAMPLED))
    return float((asked.predict(cells) == asked.code(label)).mean())


# ------------------------------------------------------------------------------------------------
# The page

INTRODUCTION = """\
Made by `python -m benchmarks.small_tables` with {versions}. Tables of 100
to 5,000 rows with 2 to 10 labels: generated ones, scikit-learn's, and random parts of the package's
data sets, each with one kind of classifier. The report's thresholds and the way rows are made up
were chosen on the tables under *Tuned on*; what counts are the others."""


def page(table: pd.DataFrame, made_with: str) -> str:
    """Returns what the fits show: tables that were tuned on apart from the others."""
    parts = ["# Small tables", INTRODUCTION.format(versions=made_with)]
    for title, tuned_on in (("Reported on", False), ("Tuned on", True)):
        mine = table[table["tuned_on"] == tuned_on]
        if len(mine):
            parts += [f"## {title}", _targets(mine), _counts(mine)]
    return "\n\n".join(parts) + "\n"


def _targets(table: pd.DataFrame) -> str:
    good, broken = table[table["how"] == "good"], table[table["how"].isin(BROKEN)]
    fine = good[good["verdict"] != "refused"]
    labels, short = int(fine["counted_labels"].sum()), int(fine["short_labels"].sum())
    asked = f"sampled rows labelled as asked, for every label of {COUNTED} rows or more"
    agreed = f"{labels - short} of {labels} labels; the least {fine['agreement'].min():.2f}"
    rows = [(asked, f"at least {AGREEMENT}", agreed, _reached(short == 0))]
    centroids = fine["centroids_before"].sum(), fine["centroids"].sum()
    for what, aim, part, whole in (
        ("centroids valid before repair, in all", CENTROIDS, *centroids),
        ("good fits that pass", GOOD, (good["verdict"] == "passes").sum(), len(good)),
        ("broken fits that fail", FOUND, broken["verdict"].isin(BAD).sum(), len(broken)),
    ):
        share = part / max(1, whole)
        found = f"{100 * share:.1f} % ({part:.0f} of {whole:.0f})"
        rows.append((what, f"at least {100 * aim:.0f} %", found, _reached(share >= aim)))
    return grid(("target", "aimed at", "found", "verdict"), rows)


def _reached(reached: bool) -> str:
    return "reached" if reached else "missed"


def _counts(table: pd.DataFrame) -> str:
    """Returns how often each verdict, and by which checks, for each way to fit."""
    verdicts, rows = ("passes", "unsure", "fails", "refused"), []
    for how in HOWS:
        mine = table[table["how"] == how]
        why = []
        for verdict, column, text in (("fails", "failed", ""), ("unsure", "unsure", "unsure of ")):
            names = mine.loc[mine["verdict"] == verdict, column].str.split().explode()
            why += [f"{text}{name} {n}" for name, n in names.value_counts().items()]
        counts = [str(int((mine["verdict"] == v).sum())) for v in verdicts]
        agreement = f"{mine['agreement'].mean():.2f}"
        rows.append((how, str(len(mine)), *counts, agreement, ", ".join(why)))
    return grid(("how", "fits", *verdicts, "agreement of the worst label", "by which checks"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits what is missing and writes the table and the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.small_tables", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of good fits (default: 3)")
    parser.add_argument("--table", nargs="+", default=[], help="only tables whose names start so")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    counts = {how: chosen.seeds if how == "good" else 1 for how in HOWS}
    jobs = [
        (table.name, seed, how)
        for how in HOWS
        for table in TABLES
        for seed in range(counts[how])
        if not chosen.table or table.name.startswith(tuple(chosen.table))
    ]
    lines = collected(partial(measure, cache=chosen.cache), jobs, chosen.workers)
    table = pd.DataFrame(list(lines.values()))
    write(chosen.out / "small-tables.csv", table.to_csv(index=False, float_format="%.4g"))
    write(chosen.out / "small-tables.md", page(table, environment()))


if __name__ == "__main__":
    main()
