"""Advice: could a person follow what `nearest` and `best` say, and what does it cost?

Each section writes a file of its own, a line as it is known; what is in the file is not done again.
The rulers are made here from the columns' percentiles, not from the library's own distance, so that
versions with other distances can be compared: an older lapace on the path writes the file before.

    python -m benchmarks.advice tables --jobs 2 --out after.csv
    PYTHONPATH=older/src python -m benchmarks.advice tables --jobs 2 --out before.csv
    python -m benchmarks.advice --summary before.csv after.csv

| section | figures |
|---|---|
| `tables` | the tables of `advice.toml`, three kinds of classifier: see `benchmarks.rulers` |
| `column` | a classifier that reads one column: changes in the others |
| `optimum` | `nearest` over the exact optimum of a logistic model, and over five real rows |
| `limits` | one constraint each: does an answer that was allowed before become dearer? |
| `stability` | how far `best` moves when the instance does, over its own distance: pairs of E2 |
| `queries` | rows that the classifier is asked about, by default and for `best` alone |
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lapace
from benchmarks import paper_metrics
from benchmarks.e2 import PERTURBATION_SEED
from benchmarks.figures import grid
from benchmarks.fits import fitted, setup_of
from benchmarks.jobs import shared_out
from benchmarks.optimum import Linear
from benchmarks.plan import Plan
from benchmarks.rulers import FIGURES, KINDS, PLAN, PUBLIC, Fit, Rulers, gaps, read_table
from lapace import Search
from lapace.arrays import Floats
from lapace.constraints import System
from lapace.result import Counterfactuals
from lapace.schema import Schema

Job: TypeAlias = tuple[str, ...]
Line: TypeAlias = dict[str, Any]

# ------------------------------------------------------------------------------------------------
# Sections: what each does for one job


def on_table(job: Job, count: int) -> list[Line]:
    """Returns the figures of `nearest` and `best(1)` of one table and kind of classifier."""
    start = perf_counter()
    fit = Fit.of_table(job[0], job[1], count)
    fitted_at = perf_counter()
    found = fit.explain()
    explained_at = perf_counter()
    rulers = Rulers(fit, found.schema, found.template)
    several = found.best(3)
    line: Line = {"table": job[0], "classifier": job[1], "tried": len(found)}
    for name, every in (("nearest", found.nearest()), ("best", found.best(1))):
        rows = every.where(every.ok)
        line[f"{name}_answered"] = len(np.unique(rows.instance))
        figures = rulers.figures(rows) if len(rows) else {}
        line |= {f"{name}_{key}": figures.get(key, np.nan) for key in FIGURES}
    line["best_ways"] = several.ok.sum() / max(1, line["best_answered"])
    line["queries"] = found.n_queries / len(found)
    line["fit_seconds"], line["seconds"] = fitted_at - start, explained_at - fitted_at
    return [line]


class OneColumn:
    """A classifier that reads one column, with the probabilities of a shallow logistic curve."""

    classes_ = np.array(["no", "yes"])

    def predict(self, frame: Any) -> Any:
        """Returns labels."""
        return np.where(np.asarray(frame["x0"], dtype=float) > 0.3, "yes", "no")

    def predict_proba(self, frame: Any) -> Floats:
        """Returns the probabilities of both labels."""
        p = 1 / (1 + np.exp(0.3 - np.asarray(frame["x0"], dtype=float)))
        return np.column_stack([1 - p, p])


def on_column(job: Job, count: int) -> list[Line]:
    """Returns the share of changes in columns that the classifier does not read."""
    rng, model = np.random.default_rng(0), OneColumn()
    frame = pd.DataFrame({
        f"x{k}": rng.choice(list("abcd"), 1000) if k % 3 == 2 else rng.normal(size=1000).round(3)
        for k in range(int(job[0].split()[0]))
    })  # fmt: skip
    given = model.predict if job[1] == "labels" else model
    fit = Fit.of(frame, model.predict(frame), given, count)
    found = fit.explain()
    line: Line = {"table": job[0], "given": job[1], "tried": len(found)}
    for name, rows in (("nearest", found.nearest()), ("best", found.best(1))):
        changed = rows.schema.changed(rows.instances[rows.instance], rows.cells)[rows.ok]
        line |= {f"{name}_answered": len(changed), f"{name}_changes": changed.sum(1).mean()}
        line[f"{name}_elsewhere"] = changed[:, 1:].sum() / changed.sum()
    return [line | {"queries": found.n_queries / len(found)}]


def on_optimum(job: Job, count: int) -> list[Line]:
    """Returns the effort of `nearest`, of the exact optimum and of real rows by instance."""
    frame, labels, _ = read_table(job[0])
    complete = frame.notna().all(axis=1).to_numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    fit = Fit.of(frame[complete], labels[complete], model, count, learn_rules=False)
    found = fit.explain()
    train, said = found.schema.cells(fit.train), model.predict(fit.train)
    linear = Linear(model, found.schema, train)
    rows, lines = found.nearest().where(found.nearest().ok), []
    for x, cells, i in zip(rows.instances[rows.instance], rows.cells, rows.instance, strict=True):
        sign = 1.0 if fit.targets[i] == model.classes_[1] else -1.0
        own = float(linear.efforts(x, cells[None]).sum())
        best = linear.optimum(x, sign)
        real = linear.real(x, sign, train[said == fit.targets[i]])
        line = {"table": job[0], "instance": i, "nearest": own, "optimum": best, "real": real}
        lines.append(line | {"over_optimum": own / best, "over_real": own / real})
    return lines


def constraints_of(schema: Schema, cells: Floats, seed: int) -> list[str]:
    """Returns six constraints on columns drawn at random."""
    rng = np.random.default_rng(seed)
    free = [i for i, f in enumerate(schema.features) if f.derived is None]
    a, b, c, d = rng.choice(free, 4, replace=False)
    x, y, z = rng.choice([i for i in free if schema.features[i].kind == "continuous"], 3)
    quantile = np.nanquantile(cells[:, x], [rng.uniform(0.2, 0.8)])
    most = float(schema.features[x].snap(quantile)[0])
    name = [f"`{f.name}`" for f in schema.features]
    return [
        f"fixed {name[a]}, {name[b]}", f"fixed {name[c]}, {name[d]}", f"{name[x]} <= {most!r}",
        f"increasing {name[y]}", f"decreasing {name[z]}", "changes <= 3",
    ]  # fmt: skip


def efforts_of(rows: Counterfactuals) -> Floats:
    """Returns the effort of every instance's ok row as the library counts it, NaN without any."""
    found, rows = np.full(len(rows.instances), np.nan), rows.where(rows.ok)
    found[rows.instance] = getattr(rows, "effort", rows.distance)
    return found


def on_limits(job: Job, count: int) -> list[Line]:
    """Returns how often `nearest` is dearer under a constraint that a free answer satisfies."""
    fit = Fit.of_table(job[0], "forest", count)
    free, lines = fit.explain(), []
    rows = free.nearest().where(free.nearest().ok)
    before = efforts_of(rows)
    schema = fit.explainer.schema_
    for constraint in constraints_of(schema, schema.cells(fit.train), 0):
        system = System.of([constraint], free.schema, check=False)
        held = rows.instance[system.feasible(rows.cells, rows.instances[rows.instance])]
        line: Line = {"table": job[0], "constraint": constraint, "tried": len(free)}
        line |= {"answered": len(rows), "held": len(held), "queries": free.n_queries / len(free)}
        for name, options in (("alone", {}), ("candidates", {"candidates": free})):
            found = fit.explain(constraints=[constraint], **options)
            after = efforts_of(found.nearest())
            line[f"{name}_answered"] = int(np.isfinite(after).sum())
            line[f"{name}_lost"] = np.isnan(after[held]).mean()
            line[f"{name}_dearer"] = (after[held] > 1.01 * before[held]).mean()
            line[f"{name}_queries"] = found.n_queries / len(found)
        lines.append(line)
    return lines


def on_stability(job: Job, count: int) -> list[Line]:
    """Returns how far `best` moves with the instance, on a pair of E2 and with its distance."""
    plan = Plan.read(Path(__file__).with_name("paper.toml"))
    jobs = plan.jobs(experiments=["e2"], pairs=["-".join(job)], recipes=["default"], repeats=1)
    own = replace(jobs[0], protocol=replace(jobs[0].protocol, instances=count))
    setup, explainer = setup_of(own), fitted(own).explainer
    rng = np.random.default_rng([PERTURBATION_SEED, own.seed])
    rounds, apart = plan.e2.n_perturbations, []
    cells = [setup.instances] + [
        paper_metrics.perturb(setup.wide, setup.instances, rng, plan.e2.scale)
        for _ in range(rounds)
    ]
    flipped = setup.classifier.predict(np.concatenate(cells), setup.wide) == setup.target
    search = Search(steps=own.protocol.steps, picks=("best",), n_best=1)
    found = []
    for part in cells:  # all have the same categories, so their schemas have the same levels
        rows = explainer.explain(
            setup.wide.frame(part), target=setup.data.target, search=search
        ).best(1)
        rows, whole = rows.where(rows.ok), np.full(part.shape, np.nan)
        whole[rows.instance] = rows.cells
        answered = np.zeros(len(part), dtype=bool)
        answered[rows.instance] = True
        found.append((whole, answered))
    first, answered = found[0]
    far = gaps(rows.schema, setup.instances, first).sum(axis=1)[answered].mean()
    for k, (other, has) in enumerate(found[1:], start=1):
        both = answered & has & ~flipped[k * len(has) : (k + 1) * len(has)]
        apart += gaps(rows.schema, first, other).sum(axis=1)[both].tolist()
    line: Line = {
        "table": job[0],
        "classifier": job[1],
        "tried": len(first),
        "answered": int(answered.sum()),
    }
    line |= {"compared": len(apart), "moved": np.mean(apart), "distance": far}
    return [line | {"moved_over_distance": np.mean(apart) / far}]


def on_queries(job: Job, count: int) -> list[Line]:
    """Returns the rows asked about for an instance, by default and for `best` alone."""
    if job[0] == "loans":
        fit = Fit.of_table(job[0], job[1], count)
    else:
        columns = int(job[0].split()[0])
        values, classes = make_classification(
            2000, columns, n_informative=columns // 3, random_state=0
        )
        frame = pd.DataFrame(values.round(3), columns=[f"x{k}" for k in range(columns)])
        fit = Fit.of(frame, np.array(["no", "yes"])[classes], job[1], count)
    line: Line = {"table": job[0], "classifier": job[1], "tried": len(fit.instances)}
    for name, search in (("all", None), ("best_alone", Search(picks=("best",)))):
        start = perf_counter()
        found = fit.explain(search=search)
        line[f"{name}_seconds"] = (perf_counter() - start) / len(found)
        line[f"{name}_queries"] = found.n_queries / len(found)
        line[f"{name}_answered"] = found.status.count("answered")
    return [line]


PAIRS: list[Job] = list(product(("wine", "compas", "heloc", "adult"), ("RF", "NN")))
WIDE = product(("33 columns", "60 columns"), ("logistic", "boosting"))
# By section: its jobs, how many instances each has, and what it does for one.
SECTIONS: dict[str, tuple[list[Job], int, Callable[[Job, int], list[Line]]]] = {
    "tables": (list(product((*PUBLIC, *PLAN["own"]), KINDS)), 60, on_table),
    "column": (
        list(product(("5 columns", "10 columns", "30 columns"), ("labels", "probabilities"))),
        60,
        on_column,
    ),
    "optimum": ([("cancer",), ("wine",), ("heloc",)], 60, on_optimum),
    "limits": ([(n,) for n in ("loans", "attrition", "HMDA", "wine", "cancer")], 30, on_limits),
    "stability": (PAIRS, 40, on_stability),
    "queries": ([("loans", "forest"), *WIDE], 30, on_queries),
}

# ------------------------------------------------------------------------------------------------
# Files, summaries, the command line


def add(lines: Sequence[Line], path: Path) -> None:
    """Adds lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines_frame = pd.DataFrame(lines).round(5)
    lines_frame.to_csv(path, mode="a", header=not path.exists(), index=False)


def done(path: Path, width: int) -> set[Job]:
    """Returns the jobs that a file has lines of; their names are its first columns."""
    if not path.exists():
        return set()
    return set(pd.read_csv(path, dtype=str).iloc[:, :width].itertuples(index=False, name=None))


def quietly(work: Callable[[Job, int], list[Line]], count: int, job: Job) -> list[Line]:
    """Does a job without warnings, which would be about tables we know."""
    warnings.simplefilter("ignore")
    return work(job, count)


def summary(files: Sequence[Path]) -> str:
    """Returns Markdown: means over the lines that all files have, before → after."""
    tables = [pd.read_csv(path) for path in files]
    keys = [n for n in tables[0] if not pd.api.types.is_numeric_dtype(tables[0][n])]
    keys += [n for n in ("instance",) if n in tables[0]]
    frames = [table.set_index(keys) for table in tables]
    shared = frames[0].index
    for other in frames[1:]:
        shared = shared.intersection(other.index)
    frames = [frame.loc[shared] for frame in frames]
    name = shared.get_level_values(0)
    groups = {str(n): name == n for n in name.unique()}
    if "best_effort" in frames[0]:
        public = name.isin(PUBLIC)
        groups = {"public tables": public, "own tables": ~public}
    lines = []
    for column in frames[0]:
        line = [column.replace("_", " ")]
        for chosen in groups.values():
            parts = [frame.loc[chosen, column] for frame in frames if column in frame]
            text = " → ".join(f"{part.mean():.3g}" for part in parts)
            if column.endswith("_effort") and len(parts) == 2:
                text += f" (×{np.exp(np.log(parts[1] / parts[0]).mean()):.2f})"
            line.append(text)
        lines.append(line)
    head = [f"{group} ({chosen.sum()})" for group, chosen in groups.items()]
    return grid(["mean over lines", *head], lines)


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    command = argparse.ArgumentParser("python -m benchmarks.advice", description=__doc__)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("section", nargs="?", choices=SECTIONS)
    command.add_argument("--out", type=Path, help="the file that gets the lines")
    command.add_argument("--jobs", type=int, default=1, help="processes")
    command.add_argument("--tables", nargs="+", help="only jobs whose first name is one of these")
    command.add_argument("--classifiers", nargs="+", help="only jobs whose second name is")
    command.add_argument("--instances", type=int, help="of each job")
    command.add_argument("--summary", nargs="+", type=Path, metavar="FILE", help="one file or two")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what a section has left to do, or prints a summary of files."""
    chosen = parser().parse_args(arguments)
    if chosen.summary:
        print(summary(chosen.summary))
        return 0
    if not (chosen.section and chosen.out):
        parser().error("name a section and the file it writes (--out), or files for --summary")
    jobs, count, work = SECTIONS[chosen.section]
    before = done(chosen.out, len(jobs[0]))
    left = [
        job
        for job in jobs
        if job not in before
        and (not chosen.tables or job[0] in chosen.tables)
        and (not chosen.classifiers or job[-1] in chosen.classifiers)
    ]
    print("lapace in", Path(lapace.__file__).parent, "has jobs to do:", len(left), flush=True)
    failed = 0
    work = partial(quietly, work, chosen.instances or count)
    for job, lines, error in shared_out(work, left, chosen.jobs):
        print(*job, error or "done", flush=True)
        failed += bool(error)
        if lines:
            add(lines, chosen.out)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
