"""What the fit report is made from: rows held out, reconstructed, sampled, and paths traced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import System
from lapace.errors import warn
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import make_problem
from lapace.explainer.search import explain
from lapace.instances import query_rows
from lapace.report import LabelledRows, Queries, ReportInputs, Rule, Split

__all__ = ["collect_report_inputs"]


def collect_report_inputs(
    fitted: Fitted,
    classifier: Classifier,
    cells: Floats,
    codes: Ints,
    split: Split,
    *,
    n_prototypes: int,
    n_queries: Queries,
    seconds: float,
    random_state: int,
) -> ReportInputs:
    """Queries the classifier about what the report needs.

    Args:
        fitted: What was learned.
        classifier: The classifier, with a fresh count of queries.
        cells: All rows given to `fit`.
        codes: Their labels, as positions.
        split: Which of them were trained on, held out, and so on.
        n_prototypes: Prototypes wanted per label.
        n_queries: Rows queried so far.
        seconds: What fitting took.
        random_state: Seed of the samples.
    """
    decoder = fitted.decoder
    held_out, labels = cells[split.held_out], codes[split.held_out]
    sampled = _sampled(fitted, classifier, split, cells[:1], random_state)
    probability = classifier.predict_proba(held_out)
    system = System.of(fitted.rules, fitted.schema, check=False)
    rows = cells[split.real]
    holds = system.holds(rows, rows).sum(axis=0)
    crossings = _crossings(fitted, classifier, cells, split)
    return ReportInputs(
        schema=fitted.schema,
        labels=fitted.labels,
        codes=codes,
        n_prototypes=n_prototypes,
        recipe=fitted.recipe.name,
        prototypes=fitted.prototypes,
        real=LabelledRows(rows, codes[split.real]),
        held_out=LabelledRows(held_out, labels, probability),
        reconstructed=decoder.reconstruct(held_out, labels),
        sampled=sampled,
        crossings=crossings,
        rules=[
            Rule(str(rule), int(count), len(rows))
            for rule, count in zip(system.constraints, holds, strict=True)
        ],
        n_queries=replace(n_queries, report=classifier.n_queries),
        seconds=seconds,
        random_state=random_state,
    )


def _sampled(
    fitted: Fitted, classifier: Classifier, split: Split, known_row: Floats, random_state: int
) -> dict[int, LabelledRows]:
    """Rows drawn for each label; those the classifier raises on are left out, with a warning."""
    sampled: dict[int, LabelledRows] = {}
    refused: dict[tuple[int, int], str] = {}
    for k, mixture in enumerate(fitted.decoder.mixtures):
        if not len(mixture.means):
            continue
        drawn = fitted.decoder.sample(k, int(split.draws[k]), random_state)
        codes, likely, errors = query_rows(classifier, drawn, fitted.schema, known_row=known_row)
        kept = codes >= 0
        refused |= {(k, row): error for row, error in errors.items()}
        probability = likely[kept] if classifier.has_probability else None
        sampled[k] = LabelledRows(drawn[kept], codes[kept], probability)
    if refused:
        count = sum(len(rows.cells) for rows in sampled.values()) + len(refused)
        warn(
            f"The classifier raised an error on {len(refused):,} of {count:,} rows made up for the "
            f"report, which are left out. The first: {next(iter(refused.values()))} Rules that say "
            "which rows exist (rules=, --rule) keep counterfactuals to those it accepts."
        )
    return sampled


def _crossings(fitted: Fitted, classifier: Classifier, cells: Floats, split: Split) -> Ints:
    """How often unconstrained paths of a few instances leave the target again."""
    usable = np.array([bool(fitted.of_label(int(k))) for k in split.targets], dtype=bool)
    if not usable.any():
        return np.empty(0, dtype=np.int64)
    instances = fitted.schema.frame(cells[split.instances[usable]])
    targets = [fitted.labels[k] for k in split.targets[usable]]
    problem = make_problem(replace(fitted, rules=()), classifier, instances, target=targets)
    return explain(problem).crossings
