"""Why an instance has no counterfactual: the smallest relaxation of the constraints that gives one.

```
contradictory  no row is feasible: which constraints contradict each other, and how each would move
drops          rows are feasible, none is valid: the constraints without which a search succeeds
relaxation     how far a constraint is from holding for a row, and the constraint that admits it
```

Every relaxation that `drops` names was searched under. Its searches also start from the rows found
under the rules alone, so hand its row to `explain` as a candidate to be sure to get it.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from lapace.budget import Budget, limited
from lapace.classifier import Classifier
from lapace.constraints import System, parse_all
from lapace.errors import InputError
from lapace.explainer.assemble import with_rows
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import LabelledInstances, Problem, Search
from lapace.model import few_threads
from lapace.paths import take_rows
from lapace.result import Explanation
from lapace.schema import Reading
from lapace.why_not.contradictory import explain_contradictions
from lapace.why_not.drops import DropSearch

__all__ = ["with_why_not"]


def with_why_not(
    fitted: Fitted,
    classifier: Classifier,
    explanation: Explanation,
    max_queries: int,
    *,
    relax_rules: bool = False,
) -> Explanation:
    """Returns the explanation with `why_not` filled for instances without a counterfactual.

    Args:
        fitted: What `fit` learned.
        classifier: The classifier, with a fresh count of queries.
        explanation: What `explain` returned.
        max_queries: Rows the classifier may be queried about.
        relax_rules: Whether the explainer's rules may be relaxed as well.
    """
    begin = perf_counter()
    problem = _problem_of(fitted, classifier, explanation)
    with few_threads(fitted.decoder.model.shape), limited(Budget(queries=max_queries)):
        why = explain_contradictions(problem, explanation, relax_rules=relax_rules)
        drops = DropSearch(problem, explanation, relax_rules=relax_rules)
        why |= drops.explained()
        for rows in drops.answers:
            new = np.array([explanation.status[i] != "answered" for i in rows.instance])
            explanation = with_rows(problem, explanation, take_rows(rows, new))
    return replace(
        explanation,
        why_not=dict(sorted(why.items())),
        n_queries=explanation.n_queries + classifier.n_queries,
        seconds={**explanation.seconds, "why_not": perf_counter() - begin},
    )


def _problem_of(fitted: Fitted, classifier: Classifier, explanation: Explanation) -> Problem:
    """Returns the problem that an explanation solves, searched in the same way."""
    theirs = (tuple(explanation.labels), explanation.schema.names)
    if theirs != (fitted.labels, fitted.schema.names):
        raise InputError(
            "This explanation is not one of this explainer's: its labels or columns differ."
        )
    # JSON leaves out what only encoding needs.
    features = tuple(
        replace(feature, knots=known.knots)
        for feature, known in zip(explanation.schema.features, fitted.schema.features, strict=True)
    )
    schema = replace(explanation.schema, features=features)
    rules = {rule: rule for rule in fitted.rules}  # a text does not say that it was learned
    constraints = [rules.get(c, c) for c in parse_all(explanation.constraints)]
    system = System.of(constraints, schema, check=False)
    codes = {label: code for code, label in enumerate(fitted.labels)}
    label, target = (
        np.array([codes.get(value, -1) for value in values], dtype=np.int64)
        for values in (explanation.label, explanation.target)
    )
    reading = Reading(schema, explanation.instances, {}, explanation.template, explanation.ids)
    unknown = np.full((len(label), len(fitted.labels)), np.nan)
    instances = LabelledInstances(reading, label, unknown, target, malformed={})
    try:
        settings = Search(**explanation.search)  # so that it finds what `explain` would
    except TypeError:
        raise InputError(
            "This explanation was made by another version of lapace. Explain again, then ask why "
            "not."
        ) from None
    return Problem(
        fitted,
        classifier,
        instances,
        system,
        replace(settings, picks=("nearest",)),
        explanation.costs,
        explanation.confidence,
        explanation.plausibility,
    )
