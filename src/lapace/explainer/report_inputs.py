"""What the fit report is made from: rows held out, explained, reconstructed, sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import System
from lapace.errors import warn
from lapace.explainer.assemble import explain
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import Search, make_problem
from lapace.explainer.top_up import mix_neighbours
from lapace.instances import query_rows
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

PICKS = ("nearest", "first", "middle", "last")  # what is queried about again
STEPS = 10  # of a path: half of what users get, so that the report needs fewer queries
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
        held_out=LabelledRows(held_out, labels, probability),
        reconstructed=decoder.reconstruct(held_out, labels),
        sampled=sampled,
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


def _explained(
    fitted: Fitted, classifier: Classifier, cells: Floats, split: Split
) -> ExplainedRows:
    """Instances of every label explained, and the rows that came back queried about again."""
    usable = np.array([bool(fitted.of_label(int(k))) for k in split.targets], dtype=bool)
    rows, targets = cells[split.instances[usable]], split.targets[usable]
    none = np.empty(0)
    if not len(rows):
        no = none > 0
        return ExplainedRows(rows, targets, no, no, rows, none, none, rows, targets, no, targets)
    labels = [fitted.labels[k] for k in targets]
    frame, search = fitted.schema.frame(rows), Search(steps=STEPS, picks=PICKS)
    problem = make_problem(fitted, classifier, frame, target=labels, search=search)
    found = explain(problem)
    status, nearest = np.array(found.status), found.nearest()
    picks = [nearest, found.first(), found.middle(), found.last()]
    returned = np.concatenate([pick.cells[pick.valid] for pick in picks])
    instance = np.concatenate([pick.instance[pick.valid] for pick in picks])
    codes, _, _ = query_rows(classifier, returned, found.schema, known_row=cells[:1])
    at = nearest.instance
    closest, density, survives = rows.copy(), np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    closest[at], density[at], survives[at] = nearest.cells, nearest.density, nearest.survival
    return ExplainedRows(
        instances=rows,
        targets=targets,
        feasible=~np.isin(status, ("infeasible", "malformed", "already_target")),
        answered=status == "answered",
        nearest=closest,
        density=density,
        survival=survives,
        returned=returned,
        instance=instance,
        valid=codes == targets[instance],
        crossings=found.crossings,
    )


def _recognised(
    fitted: Fitted, classifier: Classifier, cells: Floats, codes: Ints, split: Split, seed: int
) -> Recognised:
    """Rows the model was not trained on: held-out ones, and made-up ones where those are few."""
    decoder = fitted.decoder
    known = np.array([len(mixture.means) > 0 for mixture in decoder.mixtures])
    rows, labels = cells[split.held_out], codes[split.held_out]
    if len(rows) < RECOGNISED and fitted.schema.shape is None:
        start = _evenly(codes[split.train], RECOGNISED // max(1, int(known.sum())))
        mixed = mix_neighbours(fitted.schema, cells[split.train], RECOGNISED, seed, start)
        found, _, _ = query_rows(classifier, mixed, fitted.schema, known_row=cells[:1])
        rows, labels = np.concatenate([rows, mixed]), np.concatenate([labels, found])
    kept = (labels >= 0) & known[labels]
    return Recognised(labels[kept], decoder.likeliest_labels(rows[kept]))


def _evenly(codes: Ints, most: int) -> Ints:
    """Positions of rows, so many of each label at most."""
    return np.sort(np.concatenate([np.flatnonzero(codes == k)[:most] for k in np.unique(codes)]))
