"""Collects the inputs of a fit report: rows explained, reconstructed and recognised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifier import Classifier
from lapace.constraints import System
from lapace.explainer.fit import Fitted
from lapace.explainer.oracle import query_rows
from lapace.explainer.problem import Search, make_problem
from lapace.explainer.search import explain
from lapace.explainer.top_up import mix_neighbours
from lapace.report import (
    ExplainedRows,
    LabelledRows,
    Queries,
    Recognised,
    ReportInputs,
    Rule,
    Split,
)

__all__ = ["collect_report_inputs"]

PICKS = ("nearest", "first", "middle", "last")  # picks whose rows are queried again
STEPS = 10  # steps of a path: half of the default, so that the report needs fewer queries
RECOGNISED = 300  # rows whose label the model has to recognise, at least


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
    """Explains held-out rows and queries the classifier for the report.

    Args:
        fitted: The fitted parts of the explainer.
        classifier: The classifier, with a fresh count of queries.
        cells: All rows given to `fit`.
        codes: Their labels, as positions.
        split: The rows trained on, held out and explained.
        n_prototypes: Prototypes wanted per label.
        n_queries: Rows queried so far.
        seconds: Seconds that fitting took.
        random_state: Seed of made-up rows.
    """
    decoder = fitted.decoder
    held_out, labels = cells[split.held_out], codes[split.held_out]
    system = System.of(fitted.rules, fitted.schema, check=False)
    rows = cells[split.real]
    holds = system.holds(rows, rows).sum(axis=0)
    recognised = _recognised(fitted, classifier, cells, codes, split, random_state)
    explained = _explained(fitted, classifier, cells, split)
    return ReportInputs(
        schema=fitted.schema,
        labels=fitted.labels,
        codes=codes,
        n_prototypes=n_prototypes,
        recipe=fitted.recipe.name,
        prototypes=fitted.prototypes,
        real=LabelledRows(rows, codes[split.real]),
        held_out=LabelledRows(held_out, labels),
        reconstructed=decoder.reconstruct(held_out, labels),
        explained=explained,
        density=decoder.density(fitted.schema, held_out, labels),
        recognised=recognised,
        rules=[
            Rule(str(rule), int(count), len(rows))
            for rule, count in zip(system.constraints, holds, strict=True)
        ],
        n_queries=replace(n_queries, report=classifier.n_queries),
        seconds=seconds,
        random_state=random_state,
    )


def _explained(
    fitted: Fitted, classifier: Classifier, cells: Floats, split: Split
) -> ExplainedRows:
    """Explains instances of every label, and queries again about the rows that came back."""
    usable = np.array([bool(fitted.of_label(int(k))) for k in split.targets], dtype=bool)
    rows, targets = cells[split.instances[usable]], split.targets[usable]
    none = np.empty(0)
    if not len(rows):
        no = none > 0
        return ExplainedRows(rows, targets, no, no, rows, none, none, rows, targets, no, targets)
    labels = [fitted.labels[k] for k in targets]
    frame, search = fitted.schema.frame(rows), Search(steps=STEPS, picks=PICKS)
    problem = make_problem(fitted, classifier, frame, target=labels, search=search)
    explanation = explain(problem)
    status, nearest = np.array(explanation.status), explanation.nearest()
    picks = [nearest, explanation.first(), explanation.middle(), explanation.last()]
    returned = np.concatenate([pick.cells[pick.valid] for pick in picks])
    instance = np.concatenate([pick.instance[pick.valid] for pick in picks])
    codes, _, _ = query_rows(classifier, returned, explanation.schema, known_row=cells[:1])
    closest, density, survival = rows.copy(), np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    closest[nearest.instance] = nearest.cells
    density[nearest.instance] = nearest.density
    survival[nearest.instance] = nearest.survival
    return ExplainedRows(
        instances=rows,
        targets=targets,
        feasible=~np.isin(status, ("infeasible", "malformed", "already_target")),
        answered=status == "answered",
        nearest=closest,
        density=density,
        survival=survival,
        returned=returned,
        instance=instance,
        valid=codes == targets[instance],
        crossings=explanation.crossings,
    )


def _recognised(
    fitted: Fitted, classifier: Classifier, cells: Floats, codes: Ints, split: Split, seed: int
) -> Recognised:
    """Labels held-out rows, and made-up rows where those are few, by classifier and model."""
    decoder = fitted.decoder
    modelled = np.array([len(mixture.means) > 0 for mixture in decoder.mixtures])
    rows, labels = cells[split.held_out], codes[split.held_out]
    if len(rows) < RECOGNISED and fitted.schema.shape is None:
        start = _evenly(codes[split.train], RECOGNISED // max(1, int(modelled.sum())))
        mixed = mix_neighbours(fitted.schema, cells[split.train], RECOGNISED, seed, start)
        mixed_labels, _, _ = query_rows(classifier, mixed, fitted.schema, known_row=cells[:1])
        rows, labels = np.concatenate([rows, mixed]), np.concatenate([labels, mixed_labels])
    kept = (labels >= 0) & modelled[labels]
    return Recognised(labels[kept], decoder.likeliest_labels(rows[kept]))


def _evenly(codes: Ints, most: int) -> Ints:
    """Returns the positions of at most `most` rows of each label."""
    return np.sort(np.concatenate([np.flatnonzero(codes == k)[:most] for k in np.unique(codes)]))
