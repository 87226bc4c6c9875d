"""Survival: the estimate for counterfactuals against classifiers that really were retrained.

For each pair and seed an explainer is fitted and explains test rows; its nearest, first, middle and
last rows and rows between them are put to 20 classifiers of the same kind, each trained on its own
80 % of the data set. The share that keeps a row's label is its observed survival. Then the ensemble
is fitted, a calibration is fitted on the other data sets, and its estimates are compared.

    python -m benchmarks.survival --workers 16      # some minutes; what is done is not done again
    python -m benchmarks.survival --render          # only the table and the page
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from benchmarks.figures import grid
from benchmarks.jobs import shared_out
from benchmarks.plan import Pair
from benchmarks.tables import load, retrained
from lapace import Explainer
from lapace.arrays import Floats
from lapace.report import split
from lapace.survival import LEVELS, Calibration, Survival, share_kept

MODELS, SHARE = 20, 0.8  # retrained classifiers, and the share of the rows each is trained on
INSTANCES, ROWS = 120, 300  # test rows explained; rows of one kind kept, at most
TAUS = (0.2, 0.4, 0.6, 0.8)  # of the rows between
SEEDS = (12, 13)
NEAR = 400  # rows on either side of a level of the estimate that its interval is made of
KINDS = {"RF": "forest", "NN": "mlp", "BT": "boosting"}
SETTINGS: dict[str, dict[str, Any]] = {
    "adult": {"balanced": True},
    "compas": {"balanced": True},
    "heloc": {"impute": True},
}
REPORTED = tuple(
    f"{name}-{kind}"
    for name in ("heloc", "wine", "adult", "compas", "loans")
    for kind in ("RF", "NN")
)
# Only to calibrate on: other tables, other classifiers.
OTHERS = (
    "loans-BT", "wine-BT", "heloc-BT", "compas-BT", "cancer-RF", "cancer-NN", "columns-RF",
    "columns-NN", "codes-RF", "codes-BT", "digits-RF",
)  # fmt: skip
ALL = (*REPORTED, *OTHERS)


def pair_of(name: str) -> Pair:
    """A pair by its name."""
    data, kind = name.rsplit("-", 1)
    return Pair(name, data, KINDS[kind], **SETTINGS.get(data, {}))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------
# Rows, and what retrained classifiers say of them


@dataclass(frozen=True, eq=False)
class Rows:
    """A pair's rows for one seed.

    Attributes:
        pair: Its name.
        seed: Of the split.
        signals: What a calibration reads, (n, 2).
        probability: The classifier's.
        votes: Whether each retrained classifier keeps the label, (classifiers, n).
    """

    pair: str
    seed: int
    signals: Floats
    probability: Floats
    votes: Any

    @property
    def data(self) -> str:
        """The data set's name."""
        return self.pair.rsplit("-", 1)[0]

    @property
    def survival(self) -> Floats:
        """The share of retrained classifiers that keep the label."""
        return np.asarray(self.votes.mean(axis=0))


def gather(job: tuple[str, int], cache: Path) -> None:
    """Explains test rows and keeps the rows found, what is known of them, and the votes."""
    warnings.simplefilter("ignore")
    (name, seed), pair = job, pair_of(job[0])
    data = load(pair, seed)
    model = data.classifier(pair.classifier, random_state=seed)
    explainer = Explainer(model, schema=data.schema, random_state=seed).fit(data.train)
    found = explainer.explain(data.test.head(INSTANCES), target="any-other")
    picks = [(ROWS, getattr(found, kind)()) for kind in ("nearest", "first", "middle", "last")]
    picks += [(ROWS // len(TAUS), found.at(tau)) for tau in TAUS]
    rng, wide = np.random.default_rng(seed), data.schema.read(data.test).schema
    cells = [wide.cells(found.schema.frame(pick.cells[pick.valid])) for _, pick in picks]
    most = [count for count, _ in picks]
    rows = np.concatenate(
        [c[rng.permutation(len(c))[:m]] for c, m in zip(cells, most, strict=True)]
    )
    classifier, labels = explainer.classifier_, np.unique(data.train_labels)
    asked, trained = classifier.query(rows, wide), classifier.query(data.schema.cells(data.train))
    assert asked.probability is not None
    frame, votes = wide.frame(rows), []
    for number in range(MODELS):
        again = retrained(data, pair.classifier, seed=100 * seed + number, share=SHARE)
        votes.append(np.asarray(again.predict(frame)) == labels[asked.codes])
    path = cache / f"{name}-{seed}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        rows=rows,
        codes=asked.codes,
        probability=asked.probability[np.arange(len(rows)), asked.codes],
        train_codes=trained.codes,
        train_probability=trained.probability,
        votes=np.array(votes),
    )
    part.replace(path)


def rows_of(name: str, seed: int, path: Path) -> Rows:
    """Fits the ensemble as `fit(X)` does, and reads the signals of the rows gathered."""
    found, data = np.load(path), load(pair_of(name), seed)
    codes, known = found["train_codes"], found["train_probability"]
    parts = split(codes, known.shape[1], random_state=seed)
    model = Survival.unknown(tuple(range(known.shape[1]))).fit(
        data.schema,
        data.schema.cells(data.train),
        codes,
        parts.train,
        parts.held_out,
        lambda _: known[parts.held_out],
        random_state=seed,
    )
    wide, probability = data.schema.read(data.test).schema, found["probability"]
    signals = model.signals(wide, found["rows"], found["codes"], probability)
    return Rows(name, seed, signals, probability, found["votes"])


# ------------------------------------------------------------------------------------------------
# Calibrations, and how good they are

# By name: the signals read, and what the user has.
SETTINGS_READ = {"probability": ([0, 1], "probabilities"), "labels": ([1], "labels alone")}


def curve(x: Sequence[Floats], y: Sequence[Floats]) -> Floats:
    """Coefficients and intercept of a logistic curve through shares, every pair weighing alike."""
    values, shares = np.concatenate(x), np.concatenate(y)
    weight = np.concatenate([np.full(len(part), 1000 / len(part)) for part in x])
    unit = values.std(axis=0)
    model = LogisticRegression(C=3.0, max_iter=5000).fit(
        np.concatenate([values, values]) / unit,
        np.repeat([1, 0], len(values)),
        np.concatenate([shares, 1 - shares]) * np.tile(weight, 2),
    )
    return np.append(model.coef_[0] / unit, model.intercept_)


def calibrated(records: Sequence[Rows], columns: Sequence[int]) -> Calibration:
    """The curve, and at each level of its estimate the narrowest interval of 90 % of the rows."""
    x, y = [r.signals[:, columns] for r in records], [r.survival for r in records]
    coefficients = curve(x, y)
    estimate = expit(np.concatenate(x) @ coefficients[:-1] + coefficients[-1])
    order = np.argsort(estimate)
    estimate, observed = estimate[order], np.concatenate(y)[order]
    ends = []
    for level in LEVELS:
        at = int(np.clip(np.searchsorted(estimate, level), NEAR, len(estimate) - NEAR))
        ends.append(_narrowest(observed[at - NEAR : at + NEAR]))
    low, high = np.maximum.accumulate(np.array(ends)).T  # surer rows have no lower intervals
    return Calibration(coefficients, low, high)


def _narrowest(values: Floats, share: float = 0.9) -> tuple[float, float]:
    values = np.sort(values)
    count = math.ceil(share * len(values))
    widths = values[count - 1 :] - values[: len(values) - count + 1]
    ties = np.flatnonzero(widths <= widths.min() + 1e-9)
    start = ties[len(ties) // 2]
    return float(values[start]), float(values[start + count - 1])


def judged(records: Sequence[Rows], reported: Sequence[Rows]) -> pd.DataFrame:
    """Every reported pair under calibrations fitted on the other data sets, a line per setting."""
    lines = []
    for data in dict.fromkeys(r.data for r in reported):
        others = [r for r in records if r.data != data]
        alone = curve([_logit(r)[:, None] for r in others], [r.survival for r in others])
        for setting, (columns, _) in SETTINGS_READ.items():
            calibration = calibrated(others, columns)
            for pair in dict.fromkeys(r.pair for r in reported if r.data == data):
                own = [r for r in reported if r.pair == pair]
                signals = np.concatenate([r.signals[:, columns] for r in own])
                observed = np.concatenate([r.survival for r in own])
                known = np.concatenate([_logit(r) for r in own])
                plain = expit(alone[0] * known + alone[1])
                found = calibration(signals)
                lines.append({"pair": pair, "setting": setting, **scores(*found, observed, plain)})
    return pd.DataFrame(lines)


def _logit(rows: Rows) -> Floats:
    p = np.clip(rows.probability, 1e-4, 1 - 1e-4)
    return np.log(p) - np.log(1 - p)


def scores(
    estimate: Floats, low: Floats, high: Floats, observed: Floats, plain: Floats
) -> dict[str, float]:
    """Returns the figures of one pair.

    Args:
        estimate: Of each row's survival.
        low: Lower end of its interval.
        high: Upper end.
        observed: The share of retrained classifiers that kept the label.
        plain: The estimate of a logistic curve in the probability alone.
    """
    at = np.minimum((10 * estimate).astype(int), 9)
    apart = np.abs(np.bincount(at, estimate - observed, 10)).sum() / len(at)
    inside = (observed >= low - 1e-9) & (observed <= high + 1e-9)
    noise = (observed * (1 - observed)).mean()
    return {
        "rows": len(observed),
        "mae": np.abs(estimate - observed).mean(),
        "predicted": estimate.mean(),
        "observed": observed.mean(),
        "error": abs(estimate.mean() - observed.mean()),
        "bin_error": apart,
        "covered": inside.mean(),
        "width": (high - low).mean(),
        "brier": ((estimate - observed) ** 2).mean() + noise,
        "brier_curve": ((plain - observed) ** 2).mean() + noise,
    }


def retrained_votes(rows: Rows) -> dict[str, float]:
    """Returns the figures of `fit(retrain=...)`: half of the classifiers against the other half."""
    half, other = np.split(rows.votes, 2)
    estimate = share_kept(half.sum(axis=0), len(half))
    return scores(*estimate, other.mean(axis=0), np.full(rows.votes.shape[1], np.nan))


# ------------------------------------------------------------------------------------------------
# The page and the constants

TARGETS = (
    ("error", "error of a pair's mean estimate, at most 5 points", "max", 0.05),
    ("bin_error", "mean error within ten bins of the estimate, at most 5 points", "max", 0.05),
    ("covered", "90 % intervals cover at least 85 %", "min", 0.85),
    ("width", "mean width of the intervals at most 0.3", "mean", 0.3),
)
ABOUT = """
Counterfactuals of {instances} test rows of every pair and seed {seeds}: nearest, first, middle,
last and rows between. Observed: the share of {models} classifiers of the same kind, each trained on
its own {share:.0%} of the data set, that keep the row's label. Predicted: by a calibration that was
fitted on the other data sets alone (and on {others}). Ensemble and signals were chosen on seed 12,
so its figures flatter them a little. Gathered for one seed alone: {once}. What ships with the
package is fitted on all of them. *By the probability alone*: a logistic curve in the log-odds of
the classifier's probability, fitted on the same other data sets.
"""
ABOUT_EXACT = (
    "{} of the retrained classifiers stand for those that `fit` makes; observed is the share of "
    "the others, which is as uncertain as the estimate."
)
COLUMNS = {
    "pair": "pair", "rows": "rows", "mae": "absolute error", "predicted": "predicted",
    "observed": "observed", "error": "error", "bin_error": "error by bin", "covered": "covered",
    "width": "width", "brier": "Brier", "brier_curve": "by the probability alone",
}  # fmt: skip


def page(table: pd.DataFrame, exact: pd.DataFrame, records: Sequence[Rows]) -> str:
    """The figures beside their targets, as Markdown."""
    others = sorted({r.pair for r in records} - {*REPORTED})
    parts = ["# How sure: predicted and observed survival"]
    about = {"instances": INSTANCES, "seeds": " and ".join(map(str, SEEDS)), "models": MODELS}
    seeds = Counter(r.pair for r in records)
    once = [pair for pair, count in seeds.items() if count < len(SEEDS)] or ["none"]
    more = {"share": SHARE, "others": ", ".join(others), "once": ", ".join(once)}
    parts.append(ABOUT.format(**about, **more).strip().replace("\n", " "))
    lines = []
    for key, text, over, bound in TARGETS:
        cells = []
        for setting in SETTINGS_READ:
            values = table[table.setting == setting].set_index("pair")[key]
            value = getattr(values, over)()
            met = value >= bound if over == "min" else value <= bound
            worst = "" if over == "mean" else f" ({getattr(values, f'idx{over}')()})"
            cells.append(f"{value:.3f}{worst}, {'met' if met else '**missed**'}")
        lines.append((text, *cells))
    cells = []
    for setting in SETTINGS_READ:
        own = table[table.setting == setting]
        won = int((own.brier < own.brier_curve).sum())
        verdict = "met" if won == len(own) else "**missed**"
        cells.append(
            f"{own.brier.mean():.4f} against {own.brier_curve.mean():.4f}, better on {won} of "
            f"{len(own)}, {verdict}"
        )
    lines.append(("Brier score better than by the probability alone, on every pair", *cells))
    heads = [text for _, text in SETTINGS_READ.values()]
    parts += ["## Targets", grid(("target", *heads), lines)]
    for setting, (_, text) in SETTINGS_READ.items():
        parts += [f"## With {text}", _figures(table[table.setting == setting])]
    parts += [
        "## With `fit(X, y, retrain=...)`",
        ABOUT_EXACT.format(MODELS // 2),
        _figures(exact),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(table: pd.DataFrame) -> str:
    names = [name for name in COLUMNS if not table[name].isna().all()]
    rows = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in line]
        for line in table[names].itertuples(index=False)
    ]
    return grid([COLUMNS[name] for name in names], rows)


def constants(records: Sequence[Rows]) -> str:
    """`calibration.toml`: fitted on everything."""
    parts = ["# Written by `python -m benchmarks.survival`, which says what the numbers mean.\n"]
    for setting, (columns, _) in SETTINGS_READ.items():
        found = calibrated(records, columns)._asdict()
        lines = [f"{name} = {np.round(values, 3).tolist()}" for name, values in found.items()]
        parts.append("\n".join([f"[{setting}]", *lines]) + "\n")
    return "\n".join(parts)


def write(cache: Path, out: Path, package: Path) -> None:
    """Writes the table, the page and the constants, from what was gathered."""
    paths = [(name, seed, cache / f"{name}-{seed}.npz") for name, seed in product(ALL, SEEDS)]
    records = [rows_of(*each) for each in paths if each[-1].exists()]
    reported = [rows for rows in records if rows.pair in REPORTED]
    table = judged(records, reported)
    exact = pd.DataFrame([{"pair": r.pair, **retrained_votes(r)} for r in reported])
    over = {name: "sum" if name == "rows" else "mean" for name in exact.columns[1:]}
    exact = exact.groupby("pair", sort=False).agg(over).reset_index()
    both = pd.concat([table, exact.assign(setting="retrain")], ignore_index=True)
    both.round(5).to_csv(out / "survival.csv", index=False)
    (out / "survival.md").write_text(page(table, exact, records), encoding="utf-8")
    package.write_text(constants(records), encoding="utf-8")


def main() -> None:
    """Gathers what is missing, then writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs="+", default=ALL)
    parser.add_argument("--seed", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--render", action="store_true", help="run nothing, only write")
    parser.add_argument("--cache", type=Path, default=Path(".cache/benchmark/survival"))
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--constants", type=Path, default=Path("src/lapace/calibration.toml"))
    chosen = parser.parse_args()
    left = [
        job
        for job in product(chosen.pair, chosen.seed)
        if not chosen.render and not (chosen.cache / "{}-{}.npz".format(*job)).exists()
    ]
    work = partial(gather, cache=chosen.cache)
    for job, _, error in shared_out(work, left, chosen.workers):
        print(*job, error or "done", flush=True)
    write(chosen.cache, chosen.out, chosen.constants)


if __name__ == "__main__":
    main()
