"""Whether the advice is worth following, measured independently: `python -m benchmarks.advice`.

On every table, with every classifier and seed: is `nearest` minimal, does a further constraint
bring a closer answer, how do `nearest` and `best` compare with other methods, do they survive
retraining, and what do they cost. The checks ask the classifier themselves and take nothing from
the explainer; `benchmarks.advice_parts` says what each part does.

    python -m benchmarks.advice --quick                           # shows that everything runs
    python -m benchmarks.advice --processes 16 --minutes 8        # as much as fits; again: the rest
    python -m benchmarks.advice --pair loans-RF --part minimal added --seed 11
    python -m benchmarks.advice --render                          # only the page

What is done is appended to `advice.csv` part by part, so a run that was stopped continues where it
was. A line carries a hash of the library's code: figures of other code are kept, but neither shown
nor taken for done. Lines whose metric begins with `case_` name what missed a target, to be looked
at. Public tables come from published packages (`benchmarks.public`); those that
cannot be had are left out with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import torch

import lapace
from benchmarks import advice_parts as parts
from benchmarks import public, tables
from benchmarks.advice_case import Case, Size
from benchmarks.advice_page import page
from benchmarks.plan import Pair, Plan
from benchmarks.store import Measure, append, write
from lapace import Explainer
from lapace.datasets import Dataset
from lapace.errors import CentroidWarning, LapaceError

RESULTS, CACHE = Path("benchmarks/results"), Path(".cache/benchmark")
SEEDS = (11, 12, 13, 14, 15)
COLUMNS = (
    "pair", "seed", "part", "method", "metric", "label", "mean", "deviation", "count", "size",
    "code",
)  # fmt: skip
PARTS: Mapping[str, Callable[[Case], Iterator[Measure]]] = {
    "minimal": parts.minimal,
    "added": parts.added_constraint,
    "queries": parts.queries,
    "beside": parts.beside,
    "survival": parts.survival,
}
QUICK = Size(
    instances=6, added=6, models=3, rows=400,
)  # fmt: skip


def _own(data: str, classifier: str) -> Pair:
    short = {"forest": "RF", "mlp": "NN", "boosting": "BT"}[classifier]
    return Pair(f"{data}-{short}", data, classifier, "extra")  # type: ignore[arg-type]


# Tables that no default was chosen on: with scikit-learn, or in a published package.
PUBLIC = tuple(
    _own(data, classifier)
    for data, classifier in {
        "iris": "forest", "diabetes": "forest", "cancer": "forest", "cultivars": "mlp",
        "digits": "forest", "mortgages": "boosting", "work": "forest", "pensions": "boosting",
        "prison": "mlp", "marriages": "forest", "contraception": "boosting", "heart": "mlp",
        "german": "forest", "penguins": "forest",
    }.items()
)  # fmt: skip
MADE = (
    _own("loans", "forest"), _own("loans", "mlp"),
    _own("credit-a", "forest"), _own("credit-b", "mlp"),
)  # fmt: skip


@cache
def pairs() -> tuple[Pair, ...]:
    """The paper's eight pairs, tables made here, and public ones."""
    paper = [p for p in Plan.read("benchmarks/paper.toml").pairs if p.experiment == "e1"]
    return (*paper, *MADE, *PUBLIC)


# ------------------------------------------------------------------------------------------------
# Jobs


@dataclass(frozen=True)
class AdviceJob:
    """The parts that are left of one pair and seed."""

    pair: Pair
    seed: int
    parts: tuple[str, ...]
    size: Size
    out: Path
    end: float  # no part is begun after this, in seconds since the epoch

    def key(self, part: str) -> tuple[str, int, str, str, str]:
        """What a part's results are kept under."""
        return self.pair.name, self.seed, part, hash_of(self.size), code()


@cache
def code() -> str:
    """A hash of the library's source."""
    source = hashlib.sha256()
    for path in sorted(Path(lapace.__file__).parent.rglob("*.py")):
        source.update(path.read_bytes())
    return source.hexdigest()[:8]


def hash_of(size: Size) -> str:
    """A hash of how much is measured."""
    return hashlib.sha256(repr(sorted(asdict(size).items())).encode()).hexdigest()[:8]


def load(pair: Pair, seed: int, rows: int | None) -> Dataset:
    """A pair's data set, split by a seed."""
    if pair.data not in public.TABLES:
        return tables.load(pair, seed, rows)
    data = public.load(pair.data, seed)
    return data if rows is None else tables.head(data, rows)


def case_of(job: AdviceJob) -> Case:
    """A model and an explainer, fitted; the explainer is kept for the other parts."""
    data = load(job.pair, job.seed, job.size.rows)
    model = data.classifier(job.pair.classifier, random_state=job.seed)
    kept = CACHE / "fits" / f"{job.pair.name}-{job.seed}-{job.size.rows}-{code()}.lapace"
    if kept.exists():
        explainer = Explainer.load(kept, model)
    else:
        explainer = Explainer(model, schema=data.schema, random_state=job.seed)
        explainer.fit(data.train)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{os.getpid()}-{kept.name}")
        explainer.save(part)
        part.replace(kept)
    return Case(data, job.pair.classifier, job.seed, job.size, model, explainer)


def run(job: AdviceJob) -> list[str]:
    """Measures what is left of a pair and seed, appending each part as it is done."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = []
    start, case = time.process_time(), None
    for part in job.parts:
        if time.time() > job.end:
            break
        try:
            case = case or case_of(job)
            found = list(PARTS[part](case))
        except (LapaceError, ImportError) as error:
            lines.append(f"{job.pair.name} {job.seed} {part}: left out. {error}")
            add(job, part, [Measure("left_out", 1.0, 1, str(error).partition("\n")[0])])
            continue
        except Exception:  # one part's failure must not cost the others
            lines.append(f"{job.pair.name} {job.seed} {part}: failed.\n{traceback.format_exc()}")
            continue
        seconds, start = time.process_time() - start, time.process_time()
        add(job, part, [*found, Measure("seconds", seconds, 1)])
        lines.append(f"{job.pair.name} {job.seed} {part}: {seconds:.0f} s")
    return lines


def add(job: AdviceJob, part: str, found: Iterable[Measure]) -> None:
    """Adds the lines of one part to the table."""
    pair, seed, _, size, state = job.key(part)
    lines = (
        (pair, seed, part, m.method, m.metric, m.label, *m.figures, size, state) for m in found
    )
    append(job.out, COLUMNS, lines)


def read(out: Path) -> pd.DataFrame:
    """All lines so far, of all code."""
    if not out.exists():
        return pd.DataFrame(columns=COLUMNS)
    text = dict.fromkeys(("method", "label", "size", "code"), str)
    missing = {name: ["nan"] for name in ("mean", "deviation")}
    return pd.read_csv(out, dtype=text, keep_default_na=False, na_values=missing)


def done(table: pd.DataFrame) -> set[tuple[Any, ...]]:
    """Parts that need not be run again."""
    ended = table[table["metric"] == "seconds"]
    keys = ended[["pair", "seed", "part", "size", "code"]]
    return set(keys.itertuples(index=False, name=None))


def jobs(chosen: argparse.Namespace, size: Size, out: Path) -> Iterator[AdviceJob]:
    """What is left to do: every pair with the first seed, then with the second."""
    finished, end = done(read(out)), time.time() + 60 * chosen.minutes
    for seed in chosen.seed:
        for pair in pairs():
            if chosen.pair and pair.name not in chosen.pair:
                continue
            job = AdviceJob(pair, seed, (), size, out, end)
            wanted = [p for p in PARTS if not chosen.part or p in chosen.part]
            left = tuple(part for part in wanted if job.key(part) not in finished)
            if left:
                yield replace(job, parts=left)


def run_all(left: Sequence[AdviceJob], processes: int) -> int:
    """Runs jobs in as many processes; how many parts failed."""
    failed = 0
    if processes == 1:
        for job in left:
            failed += _told(run(job))
        return failed
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), max_tasks_per_child=4
    ) as pool:
        waiting = {pool.submit(run, job) for job in left}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            failed += sum(_told(future.result()) for future in ended)
    return failed


def _told(lines: Iterable[str]) -> int:
    failed = 0
    for line in lines:
        print(line, flush=True)
        failed += ": failed." in line
    return failed


def render(out: Path) -> None:
    """Writes the page of the newest code's lines in the table."""
    table = read(out)
    own = table[table["code"] == table["code"].iloc[-1]] if len(table) else table
    write(out.with_suffix(".md"), page(own))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.advice", description=__doc__)
    names = [pair.name for pair in pairs()]
    parser.add_argument("--pair", nargs="+", choices=names, default=[], metavar="PAIR")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=[])
    parser.add_argument("--seed", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="no part is begun after this")
    parser.add_argument("--quick", action="store_true", help="few rows, into the cache")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the page")
    parser.add_argument("-o", "--out", type=Path, help="the table; the page goes beside it")
    chosen = parser.parse_args(arguments)
    out = chosen.out or (CACHE / "quick" if chosen.quick else RESULTS) / "advice.csv"
    warnings.simplefilter("ignore", CentroidWarning)
    failed = 0
    if not chosen.render:
        left = list(jobs(chosen, QUICK if chosen.quick else Size(), out))
        failed = run_all(left, chosen.processes)
    render(out)
    print(f"Wrote {out} and {out.with_suffix('.md')}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
