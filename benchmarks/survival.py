"""Survival: the estimate for counterfactuals against classifiers that really were retrained.

For every table and kind of classifier an explainer explains test rows. Its counterfactuals are put
to 20 classifiers of the same kind, each trained on a bootstrap sample of the training rows. The
share that keeps a row's label is its observed survival. The calibration is fitted, and was chosen
among the `CANDIDATES`, on the tables `CHOSEN_ON`; the page reports on twelve others.

    python -m benchmarks.survival --workers 16      # some minutes; what is done is not done again
    python -m benchmarks.survival --render          # only the table, the page and the constants
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.figures import grid
from benchmarks.jobs import collected
from benchmarks.plan import Pair
from benchmarks.tables import load
from lapace import Explainer, datasets
from lapace.arrays import Bools, Floats
from lapace.classifier.outputs import score_odds
from lapace.datasets import Dataset
from lapace.survival import Calibration, Survival, interval
from lapace.training import DEFAULT

MODELS = 20  # refitted classifiers
SEED = 12
INSTANCES, ROWS = 30, 100  # test rows explained; rows of one pick kept, at most; more to calibrate
TAUS = (0.2, 0.4, 0.6, 0.8)  # of rows between
KINDS = ("logistic", "forest", "boosting", "mlp", "svc")  # the last has a decision function alone
CHOSEN_ON = ("loans", "wine", "heloc", "cancer", "codes", "diabetes", "six", "scarce")
REPORTED = (
    "adult", "compas", "german", "mortgages", "pensions", "prison", "work", "marriages", "penguins",
    "digits", "satimage", "rare",
)  # fmt: skip
RARE = ("scarce", "rare")  # 98 to 2, predicted from a probability of 0.2 on
# Tables and classifiers as they come; those of other tables are small.
FULL = ("loans", "wine", "heloc", "cancer", "codes", *RARE)
SMALL: dict[str, dict[str, Any]] = {
    "forest": {"n_estimators": 50}, "boosting": {"max_iter": 40}, "mlp": {"max_iter": 80},
}  # fmt: skip
# Rows are asked for, not good ones: a short fit will do.
RECIPE = replace(
    DEFAULT, hidden=32, batch=64, rate=8e-3, steps=1, epochs=20, patience=0.75, enough=0
)
BEST = (("rare", "logistic"), ("satimage", "forest"), ("mortgages", "svc"), ("digits", "mlp"))

# ------------------------------------------------------------------------------------------------
# Rows, and what retrained classifiers say of them


@dataclass(frozen=True)
class FromFifth:
    """A class of a user's own: it predicts the second label from a probability of 0.2 on."""

    model: Any

    @property
    def classes_(self) -> Any:
        """The labels."""
        return self.model.classes_

    def predict_proba(self, rows: Any) -> Any:
        """Returns the model's probabilities."""
        return self.model.predict_proba(rows)

    def predict(self, rows: Any) -> Any:
        """Returns labels."""
        return self.classes_[(self.predict_proba(rows)[:, 1] >= 0.2).astype(int)]


def trained(kind: Any, data: Dataset, rows: Any, seed: int) -> Any:
    """Returns a classifier of a kind, trained on some of the training rows."""
    table, labels = data.train.iloc[rows].reset_index(drop=True), data.train_labels[rows]
    fit = partial(datasets.train, schema=data.schema, frame=table, labels=labels)
    if kind in ("logistic", "svc"):
        encoding = fit("forest", n_estimators=1, max_depth=1)[:-1]
        weight = "balanced" if data.name in RARE else None
        last = SVC(class_weight=weight) if kind == "svc" else LogisticRegression(max_iter=1000)
        model = make_pipeline(*encoding, StandardScaler(), last).fit(table, labels)
    else:
        model = fit(
            kind, random_state=seed, **({} if data.name in (*FULL, *CHOSEN_ON) else SMALL[kind])
        )
    return FromFifth(model) if data.name in RARE and kind != "svc" else model


def load_table(name: str) -> Dataset:
    """Returns a table, with fewer training rows where it is large."""
    most = 3000 if name in FULL else 1500 if name in CHOSEN_ON else 600
    return load(Pair(name, name, "forest", impute=name == "heloc"), SEED, most)


def explained(name: str, kind: str) -> tuple[Dataset, Explainer, Any, Callable[[Any], Bools]]:
    """Explains test rows; returns also a function that puts rows to the retrained classifiers."""
    warnings.simplefilter("ignore")
    data, rng = load_table(name), np.random.default_rng(SEED)
    count = len(data.train)
    model = trained(kind, data, np.arange(count), SEED)
    explainer = Explainer(
        model,
        recipe=DEFAULT if name in FULL else RECIPE,
        schema=data.schema,
        random_state=SEED,
        device="cpu",
    ).fit(data.train)
    count_asked = 2 * INSTANCES if name in CHOSEN_ON else INSTANCES
    found = explainer.explain(data.test.head(count_asked), target="any-other")

    def votes(frame: Any) -> Bools:
        label, kept = np.asarray(model.predict(frame)), []
        for number in range(MODELS):
            again = trained(kind, data, rng.integers(0, count, count), 100 + number)
            kept.append(np.asarray(again.predict(frame)) == label)
        return np.array(kept)

    return data, explainer, found, votes


def gather(job: tuple[str, str], cache: Path) -> None:
    """Keeps counterfactuals, what the classifier says of them, and the votes."""
    data, explainer, found, votes = explained(*job)
    rng, wide = np.random.default_rng(SEED), data.schema.read(data.test).schema
    picks = [(ROWS, getattr(found, pick)()) for pick in ("nearest", "first", "middle", "last")]
    picks += [(ROWS // len(TAUS), found.at(tau)) for tau in TAUS]
    parts = [(pick.cells[pick.valid], most) for most, pick in picks]
    cells = np.concatenate([c[rng.permutation(len(c))[:most]] for c, most in parts])
    frame = found.schema.frame(cells)
    rows, classifier = wide.cells(frame), explainer.classifier_
    asked, given = classifier.query(rows, wide), classifier.query(data.schema.cells(data.train))
    if asked.scores is None or given.scores is None:
        raise ValueError("the classifier has no odds")
    _write(
        cache / "{}-{}.npz".format(*job),
        codes=asked.codes,
        scores=asked.scores,
        train_codes=given.codes,
        train_scores=given.scores,
        votes=votes(frame),
    )


def gather_best(job: tuple[str, str], cache: Path) -> None:
    """Keeps what `best` says of its first ways, and the votes on them."""
    _, _, found, votes = explained(*job)
    best = found.best(1)
    best = best.where(best.valid)
    _write(
        cache / "best-{}-{}.npz".format(*job),
        distance=best.distance,
        changes=best.changed,
        said=best.survival,
        margin=np.array(["edge" not in mark for mark in best.mark]),
        found=votes(best.rows).mean(axis=0),
    )


def _write(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **arrays)
    part.replace(path)


# ------------------------------------------------------------------------------------------------
# Calibrations, and how good they are


@dataclass(frozen=True, eq=False)
class Record:
    """A pair's rows.

    Attributes:
        table: The table's name.
        kind: Of classifier.
        odds: The classifier's log-odds, from its threshold and against the next label.
        agreement: The slope of a forest's agreement with the classifier in them.
        spread: Their root mean square on training rows.
        votes: Whether each retrained classifier keeps the label, (classifiers, n).
    """

    table: str
    kind: str
    odds: Floats
    agreement: float
    spread: float
    votes: Any

    @property
    def survival(self) -> Floats:
        """The share of retrained classifiers that keep the label."""
        return np.asarray(self.votes.mean(axis=0))


def record_of(name: str, kind: str, path: Path) -> Record | None:
    """Finds the agreement as `Explainer.fit` does; None where scores do not tell labels."""
    found, data = np.load(path), load_table(name)
    codes, known = found["train_codes"], found["train_scores"]
    cells = data.schema.cells(data.train)
    labels = tuple(range(known.shape[1]))
    model = Survival.fit(labels, data.schema, cells, codes, lambda _: known, random_state=SEED)
    if not model.is_known:
        return None
    given = score_odds(known, codes) - model.zero[codes]
    odds = score_odds(found["scores"], found["codes"]) - model.zero[found["codes"]]
    spread = float(np.sqrt((given**2).mean()))
    return Record(name, kind, odds, model.agreement, spread, found["votes"])


# By name, the simplest first: what a curve reads.
CANDIDATES: dict[str, Callable[[Record], Floats]] = {
    "log-odds": lambda r: r.odds,
    "log-odds over their root mean square": lambda r: r.odds / r.spread,
    "log-odds times agreement": lambda r: r.odds * r.agreement,
}
SHIPPED = "log-odds times agreement"
WEIGHTS = np.geomspace(0.5, 50, 61)


def curve(x: Sequence[Floats], y: Sequence[Floats]) -> Floats:
    """Slope and intercept of a logistic curve through shares, every pair weighing alike."""
    values, shares = np.concatenate(x), np.concatenate(y)
    weight = np.concatenate([np.full(len(part), 1000 / len(part)) for part in x])
    unit = values.std()
    model = LogisticRegression(C=3.0, max_iter=5000).fit(
        np.concatenate([values, values])[:, None] / unit,
        np.repeat([1, 0], len(values)),
        np.concatenate([shares, 1 - shares]) * np.tile(weight, 2),
    )
    return np.append(model.coef_[0] / unit, model.intercept_)


def calibrated(records: Sequence[Record], read: Callable[[Record], Floats]) -> Calibration:
    """The curve, and the greatest weight at which intervals cover 90% of the rows of pairs."""
    x, y = [read(r) for r in records], [r.survival for r in records]
    coefficients, best = curve(x, y).round(3), float(WEIGHTS[0])
    for weight in WEIGHTS.round(2).tolist():
        found = Calibration(coefficients, weight)
        each = [covers(interval(*found(part)), own).mean() for part, own in zip(x, y, strict=True)]
        best = weight if np.mean(each) >= 0.9 else best
    return Calibration(coefficients, best)


def covers(estimate: tuple[Floats, Floats, Floats], observed: Floats) -> Bools:
    """Whether the intervals of an estimate hold what was observed."""
    inside: Bools = (observed >= estimate[1] - 1e-9) & (observed <= estimate[2] + 1e-9)
    return inside


def shipped(records: Sequence[Record]) -> Calibration:
    """What ships, fitted on the tables it was chosen on."""
    return calibrated([r for r in records if r.table in CHOSEN_ON], CANDIDATES[SHIPPED])


def scores(estimate: tuple[Floats, Floats, Floats], observed: Floats) -> dict[str, float]:
    """Returns the figures of one pair or table.

    Args:
        estimate: Of each row's survival, and both ends of its interval.
        observed: The share of retrained classifiers that kept the label.
    """
    mean, low, high = estimate
    return {
        "rows": len(observed),
        "predicted": mean.mean(),
        "observed": observed.mean(),
        "error": abs(mean.mean() - observed.mean()),
        "mse": ((mean - observed) ** 2).mean(),
        "covered": covers(estimate, observed).mean(),
        "width": (high - low).mean(),
    }


def judged(records: Sequence[Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the figures of every reported pair in each setting, and those rows' estimates."""
    lines, rows, known = [], [], shipped(records)
    for r in (r for r in records if r.table in REPORTED):
        half, others = np.split(r.votes, 2)
        own = known(CANDIDATES[SHIPPED](r))
        votes = half.sum(axis=0), (~half).sum(axis=0)
        for setting, (kept, lost), observed in (
            ("as it is", own, r.survival),
            ("retrain", (own[0] + votes[0], own[1] + votes[1]), others.mean(axis=0)),
        ):
            estimate = interval(kept, lost)
            names = {"table": r.table, "kind": r.kind, "setting": setting}
            lines.append({**names, **scores(estimate, observed)})
            columns = {"estimate": estimate[0], "observed": observed}
            rows.append(pd.DataFrame({**names, **columns}))
    return pd.DataFrame(lines), pd.concat(rows, ignore_index=True)


def compared(records: Sequence[Record]) -> pd.DataFrame:
    """Returns the candidates' figures, each fitted on `CHOSEN_ON`, on the reported pairs."""
    lines = []
    for name, read in CANDIDATES.items():
        found = calibrated([r for r in records if r.table in CHOSEN_ON], read)
        for part, tables in (("chosen on", CHOSEN_ON), ("reported", REPORTED)):
            own = [r for r in records if r.table in tables]
            each = [scores(interval(*found(read(r))), r.survival) for r in own]
            lines.append({"candidate": name, "tables": part, **pd.DataFrame(each).mean()})
    return pd.DataFrame(lines)


# ------------------------------------------------------------------------------------------------
# The page and the constants

ABOUT = """
Counterfactuals of at most {instances} test rows of each of {pairs} pairs of a table and a kind of
classifier: nearest, first, middle, last and
rows between. Observed: the share of {models} classifiers of the same kind ({kinds}), each trained
on a bootstrap sample of the training rows, that keep the row's label. Predicted: by the calibration
that ships, which was chosen and fitted on other tables ({chosen}). *rare* has 98 rows of one label
to 2 of the other, and its classifiers, of a user's own class, predict from a probability of 0.2 on.
*satimage* has six labels, *digits* ten. *Before*: what the five networks and two scaled log-odds
that this estimate replaced said of the same rows; their code is gone, and the figures are kept. It
had been fitted for another kind of retraining, on 80% of the rows without repeats, which changes a
classifier less: a part of its error is that. No explainer could be fitted for {missing}.
"""
ABOUT_CANDIDATES = """
Means over pairs. Each candidate is a logistic curve in what it is named after, fitted on the tables
it was chosen on. Only the lines of reported tables are a test.
"""
ABOUT_RETRAIN = """
Half of the retrained classifiers stand for the ten that `fit` makes and update the estimate;
observed is the share of the other half.
"""
ABOUT_BEST = """
The first way of `best` for every test row. *Said*: its mean survival. *Found*: the share of 20
retrained classifiers that keep the label. *Margin*: rows that keep one.
"""


def page(
    table: pd.DataFrame, rows: pd.DataFrame, candidates: pd.DataFrame, best: pd.DataFrame
) -> str:
    """The figures beside their targets, as Markdown."""
    done = set(zip(table.table, table.kind, strict=True))
    missing = [f"{n}-{k}" for n, k in product(REPORTED, KINDS) if (n, k) not in done]
    about = {"instances": INSTANCES, "models": MODELS, "kinds": ", ".join(KINDS)}
    about |= {"pairs": len(done), "missing": ", ".join(missing) or "none"}
    own, own_rows = table[table.setting == "as it is"], rows[rows.setting == "as it is"]
    by_table = _by(own, "table")
    right, covered = int((by_table.error <= 0.05).sum()), own.covered.mean()
    pairs = int((own.error <= 0.05).sum())
    before = int(((by_table.before - by_table.observed).abs() <= 0.05).sum())
    targets = [
        (
            "error of a table's mean at most 0.05, on ten of twelve",
            f"{right} of {len(by_table)}",
            f"{before} of {len(by_table)}",
            "met" if right >= 10 else "**missed**",
        ),
        (
            "90% intervals cover at least 85%",
            f"{covered:.3f}",
            f"{own.before_covered.mean():.3f}",
            "met" if covered >= 0.85 else "**missed**",
        ),
        ("pairs whose mean errs by at most 0.05", f"{pairs} of {len(own)}",
         f"{int(((own.before - own.observed).abs() <= 0.05).sum())} of {len(own)}", ""),
        ("mean squared error", f"{own.mse.mean():.4f}", f"{own.before_mse.mean():.4f}", ""),
    ]  # fmt: skip
    bins = own_rows.assign(bin=np.minimum((own_rows.estimate * 10).astype(int), 9)).groupby("bin")
    reliability = [
        (f"{b / 10:.1f} to {b / 10 + 0.1:.1f}", f"{len(g):,}", f"{g.estimate.mean():.3f}",
         f"{g.observed.mean():.3f}") for b, g in bins
    ]  # fmt: skip
    texts = [
        "# How sure: predicted and observed survival",
        ABOUT.format(chosen=", ".join(CHOSEN_ON), **about),
        "## Targets",
        grid(("target", "now", "before", ""), targets),
        "## Reliability",
        grid(("estimate", "rows", "predicted", "observed"), reliability),
        "## By table",
        _figures(by_table),
        "## By kind of classifier",
        _figures(_by(own, "kind")),
        "## Pairs",
        _figures(own.drop(columns="setting")),
        "## Candidates",
        ABOUT_CANDIDATES,
        _figures(candidates),
        "## With `fit(X, y, retrain=...)`",
        ABOUT_RETRAIN,
        _figures(_by(table[table.setting == "retrain"], "table")),
        "## What it means for `best`",
        ABOUT_BEST,
        _figures(best),
    ]
    return "\n\n".join(t.strip() if "|" in t else " ".join(t.split()) for t in texts) + "\n"


def _by(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Means over the pairs of each table or kind; the error is that of the mean."""
    found = table.drop(columns="setting").groupby(name, sort=False).mean(numeric_only=True)
    return found.assign(error=(found.predicted - found.observed).abs()).reset_index()


def _figures(table: pd.DataFrame) -> str:
    table = table.drop(columns="rows", errors="ignore").dropna(axis=1, how="all")
    texts = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in line]
        for line in table.itertuples(index=False)
    ]
    return grid([str(name).replace("_", " ") for name in table], texts)


def constants(records: Sequence[Record]) -> str:
    """`calibration.toml`."""
    found = shipped(records)
    return (
        "# Written by `python -m benchmarks.survival`, which says what the numbers mean.\n"
        f"coefficients = {found.coefficients.tolist()}\nweight = {found.weight}\n"
    )


def write(cache: Path, out: Path, package: Path) -> None:
    """Writes the tables, the page and the constants, from what was gathered."""
    paths = [(n, k, cache / f"{n}-{k}.npz") for n, k in product((*CHOSEN_ON, *REPORTED), KINDS)]
    every = [record_of(*each) for each in paths if each[-1].exists()]
    records = [record for record in every if record is not None]
    package.write_text(constants(records), encoding="utf-8")
    table, rows = judged(records)
    keys, kept = ["table", "kind", "setting"], out / "survival.csv"
    before = pd.read_csv(kept)[[*keys, "before", "before_mse", "before_covered"]]
    table = table.merge(before, how="left", on=keys)
    table.round(5).to_csv(kept, index=False)
    candidates = compared(records)
    lines = []
    for name, kind in BEST:
        if (cache / f"best-{name}-{kind}.npz").exists():
            found = np.load(cache / f"best-{name}-{kind}.npz")
            means = {key: float(found[key].mean()) for key in found.files}
            lines.append({"table": name, "kind": kind, "version": "now", **means})
    kept = out / "survival-best.csv"
    old = pd.read_csv(kept).query("version == 'before'")
    best = pd.concat([old, pd.DataFrame(lines)]).sort_values(["table", "kind", "version"])
    best.round(5).to_csv(kept, index=False)
    (out / "survival.md").write_text(page(table, rows, candidates, best), encoding="utf-8")


def main() -> None:
    """Gathers what is missing, then writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--render", action="store_true", help="run nothing, only write")
    parser.add_argument("--cache", type=Path, default=Path(".cache/benchmark/survival"))
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--constants", type=Path, default=Path("src/lapace/calibration.toml"))
    chosen = parser.parse_args()
    for work, jobs, name in (
        (gather, list(product((*CHOSEN_ON, *REPORTED), KINDS)), "{}-{}.npz"),
        (gather_best, BEST, "best-{}-{}.npz"),
    ):
        left = [job for job in jobs if not (chosen.cache / name.format(*job)).exists()]
        if not chosen.render:
            collected(partial(work, cache=chosen.cache), left, chosen.workers)
    write(chosen.cache, chosen.out, chosen.constants)


if __name__ == "__main__":
    main()
