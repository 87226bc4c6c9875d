"""Where paths end: at the prototypes, and at a made-up person nearby."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.classifiers import Classifier
from lapace.explainer.fitting import Fitted
from lapace.explainer.judging import Judge
from lapace.explainer.people import People, Question
from lapace.metrics.space import search
from lapace.paths import Start

__all__ = ["Ends", "leading", "twins"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

NEAR = 10  # stand-ins shown to the classifier, of those nearest to a person, to find a good one
GATE = 0.002  # the least share of the target's rows that must be rarer for a twin to be walked


class Ends(NamedTuple):
    """Where some people's paths may end: at the prototypes, and at a stand-in near each person.

    Attributes:
        prototype: Its number; -1 for a stand-in.
        z: Its latent point.
        cells: Its row.
        label: Its label.
        valid: Whether the classifier accepted it: a prototype at `fit`, a stand-in just now.
        probability: Of its label; NaN where unknown.
        person: Who walks, line by line, in order.
        end: To which of the ends.
    """

    prototype: Ints
    z: torch.Tensor
    cells: Floats
    label: Ints
    valid: Bools
    probability: Floats
    person: Ints
    end: Ints

    @classmethod
    def of(
        cls, fitted: Fitted, classifier: Classifier, known: People, who: Ints, question: Question
    ) -> Ends:
        """The ends of some people, by their position in the query."""
        prototypes, stand_ins = fitted.prototypes, fitted.stand_ins
        neighbour, near, probability = _near(fitted, classifier, known, who, question)
        walker, prototype = np.nonzero(leading(fitted, known, who))
        # Pairs, not a matrix: everyone has a stand-in of their own.
        person = np.concatenate([walker, neighbour])
        end = np.concatenate([prototype, len(prototypes) + np.arange(len(near))])
        order = np.argsort(person, kind="stable")
        z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=fitted.decoder.device)
        return cls(
            np.array([p.number for p in prototypes] + [-1] * len(near), dtype=np.int64),
            torch.cat([z, stand_ins.z[torch.as_tensor(near, device=z.device)]]),
            np.concatenate([np.stack([p.cells for p in prototypes]), stand_ins.cells[near]]),
            np.array([*(p.label for p in prototypes), *stand_ins.label[near]], dtype=np.int64),
            np.array([p.valid for p in prototypes] + [True] * len(near)),
            np.concatenate([[p.probability for p in prototypes], probability]),
            person[order],
            end[order],
        )


def leading(fitted: Fitted, known: People, who: Ints) -> Bools:
    """Which prototypes people may walk to: (people, prototypes)."""
    usable = np.array([fitted.leads_to(p) for p in fitted.prototypes])
    end = np.array([p.label for p in fitted.prototypes])
    return usable & _wanted(known, who, end)


def _wanted(known: People, who: Ints, end: Ints) -> Bools:
    """Whether people want the labels that ends have: (people, ends)."""
    label, target = known.label[who, None], known.target[who, None]
    wanted: Bools = np.where(target >= 0, end == target, end != label)
    return wanted


def _near(
    fitted: Fitted, classifier: Classifier, known: People, who: Ints, question: Question
) -> tuple[Ints, Ints, Floats]:
    """People and the good stand-in nearest to each, with the probability of its label."""
    schema, stand_ins = known.reading.schema, fitted.stand_ins
    weights = schema.weights(question.costs)
    alike, group = np.unique(
        np.c_[known.label[who], known.target[who]], axis=0, return_inverse=True
    )
    person, near = [], []
    for k in range(len(alike)):  # those who want the same look among the same
        some = np.flatnonzero(group.ravel() == k)
        rows = np.flatnonzero(_wanted(known, who[some[:1]], stand_ins.label)[0])
        cells = known.reading.cells[who[some]]
        _, index = search(schema, cells, stand_ins.cells[rows], NEAR, weights=weights)
        person.append(np.repeat(some, index.shape[1]))
        near.append(rows[index].ravel())
    if not person:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
    people, candidates = np.concatenate(person), np.concatenate(near)
    judge = Judge(classifier, known, who[people], stand_ins.label[candidates], question)
    lines = np.arange(len(people))
    found = judge(np.ones(len(people)), stand_ins.cells[candidates], lines)
    good = np.flatnonzero(found.ok)
    _, at = np.unique(people[good], return_index=True)  # nearest first
    chosen = good[at]
    return people[chosen], candidates[chosen], found.probability[chosen]


def twins(fitted: Fitted, start: Start, person: Ints, label: Ints) -> Ints:
    """Lines that get a twin: their person's categories are typical enough of the label."""
    if not fitted.decoder.trees or not start.states.shape[1]:
        return np.empty(0, dtype=np.int64)
    typical = fitted.decoder.typical(start.schema, start.cells[person], label)
    return np.flatnonzero(typical >= 100 * GATE)
