"""Small tables, fits good and broken, and their reports: `python -m benchmarks.small_tables`.

Every table of `benchmarks.small_worlds` is fitted as it is, without made-up rows, and broken on
purpose in three ways. Written down are the report's verdict, the values it judges, and what making
up rows is to reach. Each fit is a job of its own, kept in the cache as it is done, so that a run
that was stopped goes on where it ended; any number of processes.

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
import json
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch

from benchmarks.figures import grid
from benchmarks.small_worlds import TABLES, SmallTable, classifier
from benchmarks.store import write
from lapace import Explainer, LapaceError
from lapace.explainer import estimator
from lapace.explainer.fit import Prototype, Trained
from lapace.report import THRESHOLDS, Check, Threshold
from lapace.training import DEFAULT

BROKEN = ("shuffled", "steps", "swapped")
HOWS = ("good", *BROKEN, "without")
RESULTS, CACHE = Path("benchmarks/results"), Path(".cache/benchmark/small-tables")
AGREEMENT, CENTROIDS, GOOD, FOUND = 0.8, 0.85, 0.8, 0.95  # what is aimed at
BAD = ("fails", "refused")
SAMPLED = 200  # rows sampled for a label
COUNTED = 20  # rows of a label from which its agreement counts


# ------------------------------------------------------------------------------------------------
# One fit


def _shuffled(
    schema: Any, cells: Any, codes: Any, *, made_up: Any, random_state: int, **more: Any
) -> Any:
    """`fit_model` on labels in random order."""
    rng = np.random.default_rng(random_state)
    if made_up is not None:
        made_up = made_up._replace(codes=rng.permutation(made_up.codes))
    more |= {"made_up": made_up, "random_state": random_state}
    return _FIT(schema, cells, rng.permutation(codes), **more)


def _swapped(trained: Trained, classifier: Any, cells: Any) -> tuple[Prototype, ...]:
    """`judge_centroids`, then every prototype has the row and latent point of another label's."""
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
    """An explainer of a table's classifier, good or broken."""
    frame, labels = table.make(seed)
    recipe = {"steps": replace(DEFAULT, steps=20), "without": replace(DEFAULT, enough=0)}
    explainer = Explainer(
        classifier(table.kind, frame, labels, seed),
        recipe=recipe.get(how, DEFAULT),
        device="cpu",
        random_state=seed,
    )
    broken = {"shuffled": ("fit_model", _shuffled), "swapped": ("judge_centroids", _swapped)}
    if how in broken:
        with patch.object(estimator, *broken[how]):
            return explainer.fit(frame)
    return explainer.fit(frame)


def measure(name: str, seed: int, how: str) -> dict[str, Any]:
    """One line: the verdict, and the figures it comes from."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (table,) = (t for t in TABLES if t.name == name)
    line: dict[str, Any] = {"table": name, "classifier": table.kind, "tuned_on": table.tuned_on}
    line |= {"seed": seed, "how": how}
    start = time.process_time()
    try:
        explainer = fit(table, seed, how)
    except LapaceError as error:  # refused by `fit` itself: no explainer at all
        seconds = round(time.process_time() - start, 1)
        return {**line, "verdict": "refused", "failed": str(error)[:80], "seconds": seconds}
    return {**line, **figures(explainer), "seconds": round(time.process_time() - start, 1)}


def figures(explainer: Explainer) -> dict[str, Any]:
    """Figures of a fit: of its report, and how the classifier labels rows sampled for a label."""
    report = explainer.report_
    prototypes, members = explainer.prototypes_, Counter[Any]()
    for prototype in prototypes:
        members[prototype.label] += prototype.members
    agreement = [_agreement(explainer, k) for k, n in members.items() if n >= COUNTED]
    values: dict[str, Any] = {}
    for check in report.checks:
        values[check.threshold.name] = check.value
        values[f"{check.threshold.name}_low"] = check.low
        values[f"{check.threshold.name}_high"] = check.high
    return {
        **_verdicts(report.checks),
        "rows": report.rows,
        "labels": len(explainer.classes_),
        "agreement": min(agreement, default=None),
        "short_labels": sum(share < AGREEMENT for share in agreement),
        "counted_labels": len(agreement),
        "centroids": len(prototypes),
        "centroids_before": sum(bool(p.valid_before) for p in prototypes),
        "lof": _mean([x.lof for x in report.explained]),
        "lof_real": _mean([x.lof_real for x in report.explained]),
        "changed": _mean([x.changed for x in report.explained]),
        "made_up_queries": report.n_queries["made_up"],
        "report_queries": report.n_queries["report"],
        **values,
    }


def _agreement(explainer: Explainer, label: Any) -> float:
    """Returns the share of the rows sampled for a label to which the classifier gives it."""
    classifier = explainer.classifier_
    cells = explainer.schema_.cells(explainer.sample(label, SAMPLED))
    return float((classifier.predict(cells) == classifier.code(label)).mean())


def _verdicts(checks: Sequence[Check]) -> dict[str, str]:
    """The verdict as `Report.verdict` gives it, and by which checks."""
    failed = [c.threshold.name for c in checks if c.verdict == "fails"]
    unknown = [c for c in checks if c.verdict == "not measured" and c.threshold.essential]
    unsure = [c.threshold.name for c in checks if c.verdict == "unsure" or c in unknown]
    verdict = "fails" if failed else "unsure" if unsure else "passes"
    return {"verdict": verdict, "failed": " ".join(failed), "unsure": " ".join(unsure)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# ------------------------------------------------------------------------------------------------
# All of them


def jobs(seeds: int, broken_seeds: int) -> list[tuple[str, int, str]]:
    """Table, seed and how, the longest fits first; good fits have more seeds than broken ones."""
    counts = {"good": seeds, **dict.fromkeys((*BROKEN, "without"), broken_seeds)}
    order = sorted(TABLES, key=lambda t: -int(t.name.rsplit("-", 1)[1]))
    return [(t.name, seed, how) for how in HOWS for t in order for seed in range(counts[how])]


def run(wanted: Sequence[tuple[str, int, str]], cache: Path, workers: int, seconds: float) -> None:
    """Runs the jobs that are not in the cache, until the time is up."""
    start = time.perf_counter()
    left = [job for job in wanted if not _path(cache, job).exists()]
    print(f"{len(wanted) - len(left)} of {len(wanted)} fits are already done.", flush=True)
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(_kept, cache, job): job for job in left}
        for number, done in enumerate(as_completed(waiting), start=1):
            error = done.exception()
            if error is not None and not done.cancelled():
                print(f"Failed: {waiting[done]}: {error!r}", flush=True)
            if number % 20 == 0:
                print(
                    f"{number} of {len(left)} after {time.perf_counter() - start:.0f} s", flush=True
                )
            if time.perf_counter() - start > seconds:
                print("The time is up; run again for the rest.", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                break


def _kept(cache: Path, job: tuple[str, int, str]) -> None:
    write(_path(cache, job), json.dumps(measure(*job)))


def _path(cache: Path, job: tuple[str, int, str]) -> Path:
    return cache / "{}.{}.{}.json".format(*job)


def collect(wanted: Sequence[tuple[str, int, str]], cache: Path) -> pd.DataFrame:
    """All lines that are done, as a table."""
    paths = [_path(cache, job) for job in wanted]
    return pd.DataFrame([json.loads(p.read_text()) for p in paths if p.exists()])


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with verdicts by the thresholds the library has now."""
    lines: list[dict[Any, Any]] = table.to_dict("records")
    for line in lines:
        if line["verdict"] != "refused":
            checks = [_check(threshold, line) for threshold in THRESHOLDS.values()]
            line.update(_verdicts([check for check in checks if check is not None]))
    return pd.DataFrame(lines)


def _check(threshold: Threshold, line: dict[str, Any]) -> Check | None:
    """A check as it was measured; None where the report had none."""
    ends = (line.get(f"{threshold.name}{end}") for end in ("", "_low", "_high"))
    value, low, high = (None if end is None or np.isnan(end) else end for end in ends)
    if value is None and not threshold.essential:
        return None
    return Check(threshold, value, low, high)


# ------------------------------------------------------------------------------------------------
# The page

INTRODUCTION = """\
Made by `python -m benchmarks.small_tables` with {versions}. Tables of 100
to 5,000 rows with 2 to 10 labels: generated ones, scikit-learn's, and random parts of the package's
data sets, each with one kind of classifier (`benchmarks/small_worlds.py`). The report's thresholds
and the way rows are made up were chosen on the tables under *Tuned on*; what counts are the others.
"""
LEGEND = """\
Means over seeds; in brackets without made-up rows. *Agreement*: of the worst label of 20 rows or
more. *Centroids*: valid before repair. *LOF*: of the nearest counterfactuals, and of real rows.
*Distance*: over that of the nearest training row, the median.
"""


def page(table: pd.DataFrame, versions: str) -> str:
    """What the fits show, as Markdown: tables that were tuned on apart from the others."""
    parts = ["# Small tables\n", INTRODUCTION.format(versions=versions)]
    for title, tuned_on in (("Reported on", False), ("Tuned on", True)):
        mine = table[table["tuned_on"] == tuned_on]
        if len(mine):
            parts += [f"## {title}\n", _targets(mine), _counts(mine), LEGEND, _fits(mine)]
    return "\n".join(parts)


def _targets(table: pd.DataFrame) -> str:
    good, broken = table[table["how"] == "good"], table[table["how"].isin(BROKEN)]
    fine = good[good["verdict"] != "refused"]
    labels, short = int(fine["counted_labels"].sum()), int(fine["short_labels"].sum())
    rows = [("target", "aimed at", "found", "verdict")]
    agreed = f"{labels - short} of {labels} labels; the least {fine['agreement'].min():.2f}"
    asked = f"sampled rows labelled as asked, for every label of {COUNTED} rows or more"
    rows.append((asked, f"at least {AGREEMENT}", agreed, _reached(short == 0)))
    for what, aim, part, whole in (
        (
            "centroids valid before repair, in all",
            CENTROIDS,
            fine["centroids_before"].sum(),
            fine["centroids"].sum(),
        ),
        ("good fits that pass", GOOD, (good["verdict"] == "passes").sum(), len(good)),
        ("broken fits that fail", FOUND, broken["verdict"].isin(BAD).sum(), len(broken)),
    ):
        share = part / max(1, whole)
        found = f"{100 * share:.1f} % ({part:.0f} of {whole:.0f})"
        rows.append((what, f"at least {100 * aim:.0f} %", found, _reached(share >= aim)))
    return grid(rows[0], rows[1:]) + "\n"


def _reached(reached: bool) -> str:
    return "reached" if reached else "missed"


def _counts(table: pd.DataFrame) -> str:
    """How often each verdict, and by which checks, for each way to fit."""
    verdicts = ("passes", "unsure", "fails", "refused")
    rows = [("how", "fits", *verdicts, "by which checks")]
    for how in HOWS:
        mine = table[table["how"] == how]
        failing = mine[mine["verdict"] == "fails"]["failed"].str.split().explode().value_counts()
        unsure = mine[mine["verdict"] == "unsure"]["unsure"].str.split().explode().value_counts()
        why = [f"{name} {n}" for name, n in failing.items()]
        why += [f"unsure of {name} {n}" for name, n in unsure.items()]
        counts = [str(int((mine["verdict"] == v).sum())) for v in verdicts]
        rows.append((how, str(len(mine)), *counts, ", ".join(why)))
    return grid(rows[0], rows[1:]) + "\n"


def _fits(table: pd.DataFrame) -> str:
    """Table by table: good fits, and without made-up rows in brackets."""
    rows = [
        ("table", "classifier", "agreement", "centroids", "LOF", "real", "distance", "changes",
         "CPU s"),
    ]  # fmt: skip
    table = table[table["verdict"] != "refused"]
    table = table.assign(share=table["centroids_before"] / table["centroids"])
    columns = {"agreement": 2, "share": 2, "lof": 2, "lof_real": 2, "closer": 2, "changed": 1,
               "seconds": 0}  # fmt: skip
    for name, mine in table.groupby("table", sort=False):
        means = mine.groupby("how")[list(columns)].mean()
        if "good" not in means.index:
            continue
        cells = []
        for column, digits in columns.items():
            text = f"{means.loc['good', column]:.{digits}f}"
            if "without" in means.index and column != "lof_real":
                text += f" ({means.loc['without', column]:.{digits}f})"
            cells.append(text)
        rows.append((str(name), str(mine["classifier"].iloc[0]), *cells))
    return grid(rows[0], rows[1:]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing and writes the table and the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.small_tables", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of good fits (default: 3)")
    parser.add_argument("--broken-seeds", type=int, default=1, help="of the others (default: 1)")
    parser.add_argument("--table", nargs="+", default=[], help="only tables whose names start so")
    parser.add_argument("--render", action="store_true", help="fit nothing, judge what is kept")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new fit after so long")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    wanted = [
        job
        for job in jobs(chosen.seeds, chosen.broken_seeds)
        if not chosen.table or any(job[0].startswith(name) for name in chosen.table)
    ]
    path = chosen.out / "small-tables.csv"
    if chosen.render:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""])
        versions = (chosen.out / "small-tables.md").read_text().partition(".small_tables` with ")[2]
        versions = versions.partition(". Tables")[0]
    else:
        run(wanted, chosen.cache, chosen.workers, chosen.seconds)
        table = collect(wanted, chosen.cache)
        packages = [f"{n} {version(n).partition('+')[0]}" for n in ("scikit-learn", "torch")]
        versions = ", ".join([f"Python {platform.python_version()}", *packages])
    table = judged(table)
    write(path, table.to_csv(index=False, float_format="%.4g"))
    write(chosen.out / "small-tables.md", page(table, versions))


if __name__ == "__main__":
    main()
