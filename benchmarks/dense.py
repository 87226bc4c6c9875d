"""Paths through dense regions beside straight ones: `python -m benchmarks.dense`.

Every candidate of `benchmarks.dense_candidates` on every pair and seed, with the same fit, the same
instances and the same ends; what `benchmarks.dense_ends` says about other ends; FACE beside them.

    python -m benchmarks.dense --quick                      # shows that everything runs
    python -m benchmarks.dense --minutes 20                 # as much as fits; again: the rest
    python -m benchmarks.dense --pair wine-RF --seed 11 --method straight dense
    python -m benchmarks.dense --digits --seed 11 12        # only the digits
    python -m benchmarks.dense --pictures                   # only the pictures
    python -m benchmarks.dense --render                     # only the page

What is done is appended to `dense.csv` method by method, so that a run that was stopped continues
where it was. Fits are kept in the cache. Settings of candidates were chosen on `TUNED`, pairs and
seeds that the page leaves out.

| metric | what |
|---|---|
| `density`, `lof` | along paths to prototypes, at 0 < τ < 1: mean over all steps |
| `density_worst`, `lof_worst` | the same at the worst step of each path |
| `density_ok`, `lof_ok` | the same at the worst ok step |
| `unseen` | share of those steps whose combination of categories no row of the target has |
| `recrossing` | share of the paths that reach the target and leave it again |
| `reached` | share of paths with an ok step |
| `first_…`, `middle_…`, `last_…`, `nearest_…` | distance, LOF and density of ok picks |
| `diversity` | mean distance between the Firsts of an instance |
| `ways` | different sets of features that the Firsts of an instance change |
| `shared` | share of the instances with a path that ends at the most frequent row |
| `seconds`, `queries` | outside the classifier, for first, middle and last; rows asked; per 100 |
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch

from benchmarks import dense_digits, dense_page
from benchmarks.dense_candidates import CANDIDATES, searched_by
from benchmarks.dense_ends import ENDS, chosen_ends, ended_by
from benchmarks.dense_page import DIGITS, blocks, page
from benchmarks.dense_pictures import both_paths
from benchmarks.e3 import drawn, infeasible
from benchmarks.figures import insert
from benchmarks.fits import Setup, setup_of
from benchmarks.plan import Actionability, Job, Pair, Plan
from benchmarks.store import Measure, append, write
from lapace import Explainer, Search, baselines, metrics
from lapace.arrays import Floats
from lapace.errors import CentroidWarning
from lapace.explainer import oracle
from lapace.result import Explanation

RESULTS, CACHE = Path("benchmarks/results"), Path(".cache/benchmark/dense")
DOCS = Path("docs/understand/paths.md")
SEEDS = (11, 12, 13, 14, 15)
TUNED = (("loans-RF", 1), ("heloc-RF", 1), ("compas-NN", 1))
COLUMNS = ("pair", "seed", "method", "metric", "label", "mean", "deviation", "count")
PICKS = ("first", "middle", "last")
FIVE, TEN = {"n_endpoints": 5}, {"n_endpoints": 10}
SAMPLED: dict[str, dict[str, Any]] = dict(
    zip(dense_page.SAMPLED, (FIVE, {**FIVE, "path": "dense"}, TEN), strict=True)
)
METHODS = (*CANDIDATES, *ENDS, *SAMPLED, "FACE", "E3")
EVERY = 2  # of the steps' LOF is taken: it costs more than the paths


def pairs() -> tuple[Pair, ...]:
    """The paper's eight, and the whole of adult."""
    known = Plan.read("benchmarks/paper.toml").pairs
    whole = [p for p in known if p.name == "adult-full-BT"]
    loans = Pair("loans-RF", "loans", "forest", "extra")
    return (*(p for p in known if p.experiment == "e1"), *whole, loans)


class Case(NamedTuple):
    """A pair and seed, its setup with the instances asked about, and an explainer fitted on it."""

    job: Job
    setup: Setup
    explainer: Explainer

    def explain(self, picks: tuple[str, ...], **settings: Any) -> Explanation:
        """What is found for all instances."""
        setup = self.setup
        search = Search(picks=picks, n_best=1, **settings)
        return self.explainer.explain(setup.frame, target=setup.data.target, search=search)


def case_of(pair: Pair, seed: int, instances: int, rows: int | None, cache: Path) -> Case:
    """A case, fitted or as it was kept."""
    plan = Plan.read("benchmarks/paper.toml")
    own = replace(plan.protocol, instances=instances, rows=rows)
    job = Job(pair, "default", seed, own, plan.limits, "e3", plan.e3)
    setup = setup_of(job)
    kept = cache / f"{pair.name}-{seed}-{rows or 'all'}.lapace"
    if not kept.exists():
        explainer = Explainer(setup.model, schema=setup.schema, random_state=seed)
        explainer.fit(setup.data.train)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{os.getpid()}-{kept.name}")
        explainer.save(part)
        part.replace(kept)
    return Case(job, setup, Explainer.load(kept, setup.model))


# ------------------------------------------------------------------------------------------------
# Measuring


def measured(case: Case, method: str) -> Iterator[Measure]:
    """All figures of one method."""
    if method in ("FACE", "E3"):
        yield from (_face if method == "FACE" else _constrained)(case)
        return
    around: Any = nullcontext()
    if method in CANDIDATES:
        around = searched_by(CANDIDATES[method])
    elif method in ENDS:
        around = ended_by(ENDS[method])
    own = SAMPLED.get(method, {})
    with around:
        found = case.explain(PICKS, **own)
        yield from along_paths(case.setup, found)
        for pick in PICKS:
            yield from _of_pick(case.setup, pick, getattr(found, pick)())
        yield from _different(found)
        yield from _cost(case, own)
        near = case.explain(("nearest",), detail="picks", **own)
        yield from _of_pick(case.setup, "nearest", near.nearest())
    if method == "straight":
        yield from chosen_ends(case.setup, found)


def along_paths(setup: Setup, found: Explanation) -> Iterator[Measure]:
    """Density, LOF and categories of the steps of paths that picks select from."""
    own = (found.prototype >= 0) | bool(found.search["n_endpoints"])
    inner = slice(1, 20)  # the instance and the endpoint are the same for every method
    cells, density = found.cells[own, inner], found.density[own, inner]
    ok = (found.valid[own, inner] == 1) & found.feasible[own, inner]
    some = slice(1, None, EVERY)  # tau = 0.1, 0.2, ..., 0.9
    lof = _lof(setup, cells[:, some])
    yield Measure.of("density", density)
    yield Measure.of("lof", lof)
    yield Measure.of("density_worst", density.min(axis=1))
    yield Measure.of("lof_worst", lof.max(axis=1))
    reached = ok[:, some].any(axis=1)
    worst = np.where(ok[:, some], lof, -np.inf).max(axis=1)[reached]
    yield Measure.of("lof_ok", worst)
    reached = ok.any(axis=1)
    yield Measure.of("density_ok", np.where(ok, density, np.inf).min(axis=1)[reached])
    tau = found.tau[own][0, inner]
    for step in (4, 9, 14):
        yield Measure.of("density", density[:, step], f"{tau[step]:.2g}")
        yield Measure.of("lof", _lof(setup, cells[:, step : step + 1]), f"{tau[step]:.2g}")
    yield Measure("recrossing", metrics.recrossing(found.valid[own, :21]), int(own.sum()))
    yield Measure.of("reached", (found.valid[own] == 1).any(axis=1))
    if found.schema.blocks:
        yield Measure.of("unseen", unseen(setup, found, cells.reshape(-1, cells.shape[2])))


def unseen(setup: Setup, found: Explanation, cells: Floats) -> Any:
    """Whether no training row of the target has the rows' combination of categories."""
    known = {row.tobytes() for row in found.schema.states(setup.target_rows)}
    return [row.tobytes() not in known for row in found.schema.states(cells)]


def _lof(setup: Setup, cells: Floats) -> Floats:
    found: Floats = setup.plausibility.lof(cells.reshape(-1, cells.shape[-1]))
    return found.reshape(cells.shape[:-1])


def _of_pick(setup: Setup, name: str, rows: Any) -> Iterator[Measure]:
    ok = rows.where(rows.ok)
    yield Measure.of(f"{name}_distance", ok.distance)
    yield Measure.of(f"{name}_lof", setup.plausibility.lof(ok.cells))
    yield Measure.of(f"{name}_density", ok.density)
    yield Measure.of(f"{name}_ok", rows.ok)


def _different(found: Explanation) -> Iterator[Measure]:
    """How the Firsts of an instance differ, and how many instances share where a path ends."""
    first, last = found.first(), found.last()
    ok = first.where(first.ok)
    yield Measure("diversity", metrics.diversity(ok), len(found))
    changed = found.schema.changed(found.instances[ok.instance], ok.cells)
    ways = [len(np.unique(changed[ok.instance == i], axis=0)) for i in np.unique(ok.instance)]
    yield Measure.of("ways", ways)
    ends = {(int(i), row.tobytes()) for i, row in zip(last.instance, last.cells, strict=True)}
    most = Counter(row for _, row in ends).most_common(1)[0][1]
    yield Measure("shared", most / len(np.unique(last.instance)), len(found))


def _cost(case: Case, own: Mapping[str, Any]) -> Iterator[Measure]:
    """Processor time outside the classifier for first, middle and last: the least of three."""
    each, spent = 100 / len(case.setup.instances), []
    # The clock of the processor everywhere: other processes share the machine.
    with patch.object(oracle, "perf_counter", time.process_time):
        for _ in range(3):
            begin = time.process_time()
            found = case.explain(PICKS, detail="picks", **own)
            spent.append(time.process_time() - begin - found.seconds.get("classifier", 0.0))
    yield Measure("seconds", min(spent) * each, 3)
    yield Measure("queries", found.n_queries * each, 1)


def _face(case: Case) -> Iterator[Measure]:
    setup = case.setup
    face = baselines.FACE(setup.model, schema=setup.schema).fit(setup.data.train)
    found = face.counterfactuals(setup.frame, target=setup.data.target)
    yield from _of_pick(setup, "last", found)


def _constrained(case: Case) -> Iterator[Measure]:
    """E3 again: each instance under its own constraints, by both kinds of path."""
    details = case.job.details
    if not isinstance(details, Actionability) or case.job.pair.data not in details.constraints:
        return
    setup = replace(case.setup, instances=case.setup.instances[: details.instances])
    for setting in ("easy", "hard"):
        texts = drawn(case.job, setup, hard=setting == "hard")
        own = [
            (setup.wide.frame(row[None]), text)
            for row, text in zip(setup.instances, texts, strict=True)
            if not infeasible(setup, text, row)
        ]
        for path in ("straight", "dense"):
            search, satisfied, lof = Search(picks=PICKS, path=path), [], []
            for frame, text in own:
                found = case.explainer.explain(
                    frame, target=setup.data.target, constraints=text, search=search
                )
                ok = (found.valid == 1) & found.feasible
                satisfied.append(bool(ok.any()))
                lof.extend(setup.plausibility.lof(found.cells[ok]).tolist())
            yield Measure.of("satisfied", satisfied, f"{setting}, {path}")
            yield Measure.of("constrained_lof", lof, f"{setting}, {path}")


# ------------------------------------------------------------------------------------------------
# Running


def read(out: Path) -> pd.DataFrame:
    """All lines so far."""
    if not out.exists():
        return pd.DataFrame(columns=COLUMNS)
    return pd.read_csv(out, dtype={"label": str}, keep_default_na=False, na_values=["nan"])


def add(out: Path, pair: str, seed: int, method: str, found: Iterable[Measure]) -> None:
    """Adds the lines of one method to the table."""
    append(out, COLUMNS, ((pair, seed, method, m.metric, m.label, *m.figures) for m in found))


def run(chosen: argparse.Namespace, out: Path) -> None:
    """Runs what is left: every pair with the first seed, then with the second."""
    end = time.time() + 60 * chosen.minutes
    rows, instances = (400, 6) if chosen.quick else (None, chosen.instances)
    for seed in chosen.seed:
        for pair in pairs():
            if chosen.pair and pair.name not in chosen.pair:
                continue
            known = read(out)
            done = set(known[(known["pair"] == pair.name) & (known["seed"] == seed)]["method"])
            left = [name for name in chosen.method if name not in done]
            if not left or time.time() > end:
                continue
            case = case_of(pair, seed, instances, rows, chosen.cache)
            for method in left:
                begin = time.process_time()
                add(out, pair.name, seed, method, measured(case, method))
                seconds = time.process_time() - begin
                print(f"{pair.name} {seed} {method}: {seconds:.1f} s", flush=True)


def run_digits(out: Path, cache: Path, seed: int, quick: bool) -> None:
    """Fits the digits and measures paths of images; keeps some of them, to be drawn."""
    case = dense_digits.DigitCase(quick, seed)
    add(out, DIGITS, seed, "references", dense_digits.references(case))
    for method in dense_digits.METHODS:
        add(out, DIGITS, seed, method, dense_digits.measured(case, method))
        print(f"{DIGITS} {seed} {method}", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"paths-digits-{seed}.npz"
    np.savez_compressed(kept, **dense_digits.shown(case, ("straight", "dense")))


def draw(chosen: argparse.Namespace, out: Path) -> None:
    """Draws the illustration, and the digits that were kept."""
    images = Path("docs/images") if out.parent == RESULTS else out.parent
    both_paths(images / "paths.png", 400 if chosen.quick else 2400)
    kept = chosen.cache / f"paths-digits-{chosen.seed[0]}.npz"
    if kept.exists():
        with np.load(kept) as arrays:
            dense_digits.picture(arrays, images / "paths-digits.png")


def render(out: Path) -> None:
    """Writes the page of what the table holds, but for what settings were chosen on."""
    table = read(out)
    tuned = [key in TUNED for key in zip(table["pair"], table["seed"], strict=True)]
    shown = table[~np.array(tuned, dtype=bool)]
    write(out.with_suffix(".md"), page(shown))
    if out.parent == RESULTS:
        text = DOCS.read_text(encoding="utf-8")
        for name, block in blocks(shown).items():
            text = insert(text, name, block)
        write(DOCS, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for, and writes the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.dense", description=__doc__)
    names = [pair.name for pair in pairs()]
    parser.add_argument("--pair", nargs="+", choices=names, default=names[:-1], metavar="PAIR")
    parser.add_argument("--seed", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=1e6, help="no pair is begun after this")
    parser.add_argument("--quick", action="store_true", help="few rows, into the cache")
    parser.add_argument("--digits", action="store_true", help="only the digits")
    parser.add_argument("--pictures", action="store_true", help="only draw the pictures")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the page")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where fits are kept")
    parser.add_argument("-o", "--out", type=Path, help="the table; the page goes beside it")
    chosen = parser.parse_args(arguments)
    out = chosen.out or (CACHE / "quick" if chosen.quick else RESULTS) / "dense.csv"
    warnings.simplefilter("ignore", CentroidWarning)
    torch.set_num_threads(1)
    if chosen.pictures:
        draw(chosen, out)
    elif chosen.digits:
        for seed in chosen.seed:
            run_digits(out, chosen.cache, seed, chosen.quick)
    elif not chosen.render:
        run(chosen, out)
    render(out)
    print(f"Wrote {out} and {out.with_suffix('.md')}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
