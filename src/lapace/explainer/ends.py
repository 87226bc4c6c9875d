"""Where paths end: at the prototypes, and at a made-up instance nearby."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.explainer.fitting import Fitted
from lapace.explainer.judging import Judge
from lapace.explainer.problem import Instances, Question
from lapace.metrics.neighbours import kneighbors
from lapace.paths import Start

__all__ = ["Ends", "leading", "twins"]


NEAR = 10  # stand-ins shown to the classifier, of those nearest to an instance, to find a good one
GATE = 0.002  # the least share of the target's rows that must be rarer for a twin to be walked


class Ends(NamedTuple):
    """Where some instances's paths may end: at the prototypes, and at a stand-in near each instance.

    Attributes:
        prototype: Its number; -1 for a stand-in.
        z: Its latent point.
        cells: Its row.
        label: Its label.
        valid: Whether the classifier accepted it: a prototype at `fit`, a stand-in just now.
        probability: Of its label; NaN where unknown.
        instance: Who walks, line by line, in order.
        end: To which of the ends.
    """

    prototype: Ints
    z: torch.Tensor
    cells: Floats
    label: Ints
    valid: Bools
    probability: Floats
    instance: Ints
    end: Ints

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        classifier: Classifier,
        known: Instances,
        instance: Ints,
        question: Question,
    ) -> Ends:
        """The ends of some instances, by their position in the query."""
        prototypes, stand_ins = fitted.prototypes, fitted.stand_ins
        neighbour, near, probability = _near(fitted, classifier, known, instance, question)
        walker, prototype = np.nonzero(leading(fitted, known, instance))
        # Pairs, not a matrix: everyone has a stand-in of their own.
        one = np.concatenate([walker, neighbour])
        end = np.concatenate([prototype, len(prototypes) + np.arange(len(near))])
        order = np.argsort(one, kind="stable")
        z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=fitted.decoder.device)
        return cls(
            np.array([p.number for p in prototypes] + [-1] * len(near), dtype=np.int64),
            torch.cat([z, stand_ins.z[torch.as_tensor(near, device=z.device)]]),
            np.concatenate([np.stack([p.cells for p in prototypes]), stand_ins.cells[near]]),
            np.array([*(p.label for p in prototypes), *stand_ins.label[near]], dtype=np.int64),
            np.array([p.valid for p in prototypes] + [True] * len(near)),
            np.concatenate([[p.probability for p in prototypes], probability]),
            one[order],
            end[order],
        )


def leading(fitted: Fitted, known: Instances, instance: Ints) -> Bools:
    """Which prototypes instances may walk to: (instances, prototypes)."""
    usable = np.array([fitted.leads_to(p) for p in fitted.prototypes])
    end = np.array([p.label for p in fitted.prototypes])
    return usable & _wanted(known, instance, end)


def _wanted(known: Instances, instance: Ints, end: Ints) -> Bools:
    """Whether instances want the labels that ends have: (instances, ends)."""
    label, target = known.label[instance, None], known.target[instance, None]
    wanted: Bools = np.where(target >= 0, end == target, end != label)
    return wanted


def _near(
    fitted: Fitted, classifier: Classifier, known: Instances, instance: Ints, question: Question
) -> tuple[Ints, Ints, Floats]:
    """Instances and the good stand-in nearest to each, with the probability of its label."""
    schema, stand_ins = known.reading.schema, fitted.stand_ins
    weights = schema.weights(question.costs)
    alike, group = np.unique(
        np.c_[known.label[instance], known.target[instance]], axis=0, return_inverse=True
    )
    one, near = [], []
    for k in range(len(alike)):  # those who want the same look among the same
        some = np.flatnonzero(group.ravel() == k)
        rows = np.flatnonzero(_wanted(known, instance[some[:1]], stand_ins.label)[0])
        cells = known.reading.cells[instance[some]]
        _, index = kneighbors(schema, cells, stand_ins.cells[rows], NEAR, weights=weights)
        one.append(np.repeat(some, index.shape[1]))
        near.append(rows[index].ravel())
    if not one:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
    instances, candidates = np.concatenate(one), np.concatenate(near)
    judge = Judge(classifier, known, instance[instances], stand_ins.label[candidates], question)
    lines = np.arange(len(instances))
    found = judge(np.ones(len(instances)), stand_ins.cells[candidates], lines)
    good = np.flatnonzero(found.ok)
    _, at = np.unique(instances[good], return_index=True)  # nearest first
    chosen = good[at]
    return instances[chosen], candidates[chosen], found.probability[chosen]


def twins(fitted: Fitted, start: Start, instance: Ints, label: Ints) -> Ints:
    """Lines that get a twin: their instance's categories are typical enough of the label."""
    if not fitted.decoder.trees or not start.states.shape[1]:
        return np.empty(0, dtype=np.int64)
    typical = fitted.decoder.typical(start.schema, start.cells[instance], label)
    return np.flatnonzero(typical >= 100 * GATE)
