"""Makes the report of a fit: explains held-out rows, and measures what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifier import Classifier, query_rows
from lapace.constraints import System
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import Search, make_problem
from lapace.explainer.search import explain
from lapace.explainer.top_up import mix_neighbours
from lapace.relations import LearnedRule
from lapace.report import compute
from lapace.report.checks import THRESHOLDS
from lapace.report.compute import Split
from lapace.report.document import Report, Rule
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["make_report"]

PICKS = ("nearest", "best", "first", "middle", "last")  # picks whose rows are queried again
STEPS = 10  # steps of a path: half of the default, so that the report needs fewer queries
RECOGNISED = 300  # rows whose label the model has to recognise, at least


def make_report(
    fitted: Fitted,
    classifier: Classifier,
    cells: Floats,
    codes: Ints,
    split: Split,
    *,
    n_prototypes: int,
    n_queries: int,
    seconds: float,
    accuracy: float | None,
    random_state: int,
    relations: Sequence[LearnedRule] = (),
    refits: Sequence[Classifier] = (),
) -> Report:
    """Explains held-out rows, queries the classifier, and makes the report.

    Args:
        fitted: The fitted parts of the explainer.
        classifier: The classifier, with a fresh count of queries.
        cells: All rows given to `fit`.
        codes: Their labels, as positions.
        split: The rows trained on, held out and explained.
        n_prototypes: Prototypes wanted per label.
        n_queries: Rows that fitting queried.
        seconds: Seconds that fitting took.
        accuracy: The classifier's accuracy, where the true labels are known.
        random_state: Seed of made-up rows and of samples.
        relations: What every training row satisfies, whether it is a rule or not.
        refits: Retrained classifiers that the search does not know.
    """
    schema, decoder, labels = fitted.schema, fitted.decoder, fitted.labels
    held_out, held_out_codes = cells[split.held_out], codes[split.held_out]
    real, real_codes = cells[split.real], codes[split.real]
    system = System.of(fitted.declared, schema, check=False)
    holds = system.holds(real, real).sum(axis=0).tolist()
    rules = tuple(
        Rule(str(rule), count, len(real))
        for rule, count in zip(system.constraints, holds, strict=True)
    )
    likeliest = _likeliest(fitted, classifier, cells, codes, split, random_state)
    usable = np.array([bool(fitted.of_label(int(k))) for k in split.targets], dtype=bool)
    rows, targets = cells[split.instances[usable]], split.targets[usable]
    explanation = explain(
        make_problem(
            fitted,
            classifier,
            schema.frame(rows),
            target=[labels[k] for k in targets],
            search=Search(steps=STEPS, picks=PICKS, n_best=1),
        )
    )
    status, nearest = np.array(explanation.status, dtype=object), explanation.nearest()
    learned = [rule.constraint for rule in relations if rule.constraint is not None]
    known = System.of(learned, explanation.schema, check=False).strict
    by_target, checks = compute.explained_parts(
        nearest.where(status[nearest.instance] == "answered"),
        explanation.best(1),
        _returned(explanation, classifier, targets, cells[:1]),
        targets,
        ~np.isin(status, ("infeasible", "malformed", "already_target")),
        {label: real[real_codes == k] for k, label in enumerate(labels)},
        random_state,
        has_margins=fitted.survival.is_known,
        kept=partial(_share_kept, explanation.schema, refits) if refits else None,
        possible=(lambda rows: known.feasible(rows, rows)) if learned else None,
    )
    clusters = np.array([p.code for p in fitted.prototypes], dtype=np.int64)
    prototypes = np.array([p.cells for p in fitted.prototypes]).reshape(-1, cells.shape[1])
    judged, _ = query_rows(classifier, prototypes, schema, known_row=cells[:1])
    reconstructed = decoder.reconstruct(held_out, held_out_codes)
    valid = compute.prototype_checks(clusters, judged.codes == clusters)
    by_target = tuple(
        replace(x, checks=(valid[labels.index(x.label)], *x.checks)) for x in by_target
    )
    fewest = min(valid, key=lambda k: valid[k].value or 0.0)
    checks += [
        replace(valid[fewest], where=f"label {labels[fewest]!r}"),
        compute.recognised_check(*likeliest),
        compute.reconstruction_check(schema, held_out, reconstructed, real, random_state),
        *compute.rule_checks(rules),
    ]
    order = list(THRESHOLDS)
    n_rows, n_clusters = (np.bincount(k, minlength=len(labels)) for k in (codes, clusters))
    return Report(
        recipe=fitted.recipe.name,
        rows=len(codes),
        held_out=len(held_out),
        seconds=seconds,
        n_queries={"fit": n_queries, "report": classifier.n_queries},
        checks=tuple(sorted(checks, key=lambda check: order.index(check.threshold.name))),
        explained=by_target,
        rules=rules,
        warnings=compute.label_warnings(labels, n_rows, n_clusters, n_prototypes),
        accuracy=accuracy,
        learned=tuple(Rule(rule.text, rule.support, rule.support) for rule in fitted.learned),
    )


def _share_kept(schema: Schema, refits: Sequence[Classifier], rows: Counterfactuals) -> Floats:
    """Returns the share of refits that give rows the label they have."""
    each = []
    for classifier in refits:
        labels = np.array(classifier.labels, dtype=object)
        each.append(labels[classifier.predict(rows.cells, schema)] == rows.label)
    return np.asarray(np.mean(each, axis=0), dtype=np.float64)


def _returned(
    explanation: Explanation, classifier: Classifier, targets: Ints, known_row: Floats
) -> Counterfactuals:
    """Queries the classifier again about the rows that any pick returned as valid."""
    picks: list[Counterfactuals] = [getattr(explanation, pick)() for pick in PICKS]
    rows = reduce(Counterfactuals.joined, (pick.where(pick.valid) for pick in picks))
    found, _ = query_rows(classifier, rows.cells, explanation.schema, known_row=known_row)
    return replace(rows, valid=found.codes == targets[rows.instance])


def _likeliest(
    fitted: Fitted, classifier: Classifier, cells: Floats, codes: Ints, split: Split, seed: int
) -> tuple[Ints, Ints]:
    """Returns labels of held-out rows, by the classifier and by the model.

    Where held-out rows are few, made-up rows are labelled too.
    """
    decoder = fitted.decoder
    modelled = np.array([len(mixture.means) > 0 for mixture in decoder.mixtures])
    rows, labels = cells[split.held_out], codes[split.held_out]
    if len(rows) < RECOGNISED and fitted.schema.shape is None:
        trained, most = codes[split.train], RECOGNISED // max(1, int(modelled.sum()))
        of_labels = (np.flatnonzero(trained == k)[:most] for k in np.unique(trained))
        start = np.sort(np.concatenate(list(of_labels)))
        mixed = mix_neighbours(fitted.schema, cells[split.train], RECOGNISED, seed, start)
        found, _ = query_rows(classifier, mixed, fitted.schema, known_row=cells[:1])
        rows, labels = np.concatenate([rows, mixed]), np.concatenate([labels, found.codes])
    kept = (labels >= 0) & modelled[labels]
    return labels[kept], decoder.likeliest_labels(rows[kept])
