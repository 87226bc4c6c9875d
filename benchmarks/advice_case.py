"""What every part of the measurement of advice starts from: a model, an explainer, instances."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.advice_checks import Added, Judge
from benchmarks.advice_distances import Outliers, Percentiles, Scale
from lapace import Explainer, Search
from lapace.arrays import Floats
from lapace.constraints import parse_all
from lapace.datasets import Dataset, TrainedKind
from lapace.result import Explanation
from lapace.schema import Schema

__all__ = ["ALL", "PATHS", "USUAL", "Case", "Size"]

PATHS = ("first", "middle", "last")
USUAL = (*PATHS, "nearest")
ALL = (*USUAL, "best")


@dataclass(frozen=True)
class Size:
    """How much is measured on one pair with one seed."""

    instances: int = 40
    added: int = 18  # pairs of an instance and a constraint
    counted: int = 20  # instances whose queries are counted
    models: int = 20  # retrained
    rows: int | None = None  # training rows at most


@dataclass(frozen=True, eq=False)
class Case:
    """One table, classifier and seed: the model, the explainer, and the instances."""

    data: Dataset
    kind: TrainedKind
    seed: int
    size: Size
    model: Any
    explainer: Explainer

    @property
    def target(self) -> Any:
        """The label wanted."""
        return self.data.target

    @property
    def rules(self) -> tuple[str, ...]:
        """What every counterfactual obeys."""
        return tuple(self.data.rules)

    @cached_property
    def frame(self) -> Any:
        """The test rows without the target that are explained."""
        other = np.asarray(self.model.predict(self.data.test)) != self.target
        return self.data.test[other].head(self.size.instances).reset_index(drop=True)

    @cached_property
    def train(self) -> Floats:
        """Training rows as cells."""
        return self.data.schema.cells(self.data.train)

    @cached_property
    def target_rows(self) -> Floats:
        """Training rows the model gives the target."""
        rows: Floats = self.train[np.asarray(self.model.predict(self.data.train)) == self.target]
        return rows

    @cached_property
    def scales(self) -> dict[str, Scale | None]:
        """What numbers are measured on, by the name of the distance."""
        return {"distance": Percentiles(self.data.schema, self.train), "range_distance": None}

    @cached_property
    def own(self) -> Scale | None:
        """The scale the library itself goes by: percentiles."""
        return self.scales["distance"]

    @cached_property
    def outliers(self) -> dict[str, Outliers]:
        """How unusual rows are among those, by either distance."""
        names = {"lof": "distance", "range_lof": "range_distance"}
        schema, rows = self.data.schema, self.target_rows
        return {name: Outliers(schema, rows, self.scales[of]) for name, of in names.items()}

    @cached_property
    def ruled(self) -> Explainer:
        """The explainer with the table's rules as its own."""
        explainer = copy(self.explainer)
        explainer.fitted_ = replace(self.explainer.fitted_, rules=parse_all(self.rules))
        return explainer

    @cached_property
    def free(self) -> Explanation:
        """All picks, under the table's own rules."""
        return self.explain(self.frame, picks=ALL)

    @cached_property
    def unruled(self) -> Explanation:
        """The same without rules: training rows of other people break most of them."""
        return self.explain(self.frame, picks=ALL, ruled=False) if self.rules else self.free

    def explain(
        self,
        frame: Any,
        constraints: Sequence[Added] = (),
        *,
        picks: Sequence[str] = USUAL,
        confidence: float | None = None,
        ruled: bool = True,
        search: Search | None = None,
    ) -> Explanation:
        """What the explainer finds, under the table's rules and further constraints."""
        explainer = self.ruled if ruled else self.explainer
        return explainer.explain(
            frame,
            target=self.target,
            constraints=[constraint.text for constraint in constraints],
            confidence=confidence,
            search=search or Search(picks=tuple(picks)),
        )

    def judge(
        self,
        schema: Schema,
        extra: Sequence[Added] = (),
        confidence: float | None = None,
        ruled: bool = True,
    ) -> Judge:
        """Who says whether rows are ok."""
        rules = self.rules if ruled else ()
        return Judge(self.model, self.target, schema, rules, extra, confidence)

    def rng(self, part: str) -> np.random.Generator:
        """Randomness of one part."""
        return np.random.default_rng([self.seed, *part.encode()])
