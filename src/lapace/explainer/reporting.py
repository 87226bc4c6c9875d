"""What the report is made from: rows held out, rebuilt, sampled and walked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System
from lapace.explainer.asking import answer
from lapace.explainer.fitting import Fitted
from lapace.explainer.problem import Question
from lapace.report import LabelledRows, Queries, ReportInputs, Rule, Split

__all__ = ["evidence"]


def evidence(
    fitted: Fitted,
    classifier: Classifier,
    cells: Floats,
    codes: Ints,
    plan: Split,
    *,
    wanted: int,
    rules: Sequence[str | Constraint],
    n_queries: Queries,
    seconds: float,
    seed: int,
) -> ReportInputs:
    """Asks the classifier what a report needs, and no more.

    Args:
        fitted: What was learned.
        classifier: The black box.
        cells: All rows handed to `fit`.
        codes: Their labels.
        plan: Which of them were trained on, held out, and so on.
        wanted: Clusters wanted per label.
        rules: What every answer has to obey.
        n_queries: Rows asked about so far.
        seconds: What fitting took.
        seed: Of the samples.
    """
    box, decoder = classifier.with_fresh_count(), fitted.decoder
    held_out, own = cells[plan.held_out], codes[plan.held_out]
    sampled = {}
    for k, mixture in enumerate(decoder.mixtures):
        if len(mixture.means):
            drawn = decoder.sample(k, int(plan.draws[k]), seed)
            sampled[k] = LabelledRows(drawn, *box.query(drawn))
    known = LabelledRows(held_out, own, box.predict_proba(held_out))
    system = System.of(rules, fitted.schema, check=False)
    rows = cells[plan.real]
    holds = system.holds(rows, rows).sum(axis=0)
    crossings = _crossings(fitted, box, cells, plan)
    return ReportInputs(
        schema=fitted.schema,
        labels=fitted.labels,
        codes=codes,
        n_prototypes=wanted,
        recipe=fitted.recipe.name,
        prototypes=fitted.prototypes,
        real=LabelledRows(rows, codes[plan.real]),
        held_out=known,
        reconstructed=decoder.rebuild(held_out, own),
        sampled=sampled,
        crossings=crossings,
        rules=[
            Rule(str(rule), int(count), len(rows))
            for rule, count in zip(system.constraints, holds, strict=True)
        ],
        n_queries=Queries(
            n_queries.labels, n_queries.centroids, n_queries.repair, report=box.n_queries
        ),
        seconds=seconds,
        random_state=seed,
    )


def _crossings(fitted: Fitted, box: Classifier, cells: Floats, plan: Split) -> Ints:
    """How often the paths of a few instances leave the target again."""
    can = np.array([bool(fitted.of_label(int(k))) for k in plan.targets], dtype=bool)
    if not can.any():
        return np.empty(0, dtype=np.int64)
    instances = fitted.schema.frame(cells[plan.instances[can]])
    targets = [fitted.labels[k] for k in plan.targets[can]]
    return answer(fitted, box, instances, Question(targets)).crossings
