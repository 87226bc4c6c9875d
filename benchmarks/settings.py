"""What each experiment depends on beside the protocol: small records, read from the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Act", "Compare", "Details", "Sweep", "Walk"]


@dataclass(frozen=True)
class Compare:
    """The eight-metric benchmark, E2.

    Attributes:
        models: Classifiers retrained, each on its own selection of the data set.
        share: Of the data set's rows in a selection.
        rounds: Perturbations of every instance.
        scale: Their max-norm, in units of each column's range.
        confidences: Required probabilities First is also asked for, on the same fit.
        methods: Baselines, by their names in `lapace.baselines`.
        answers: How many are asked of a baseline that can give several.
        most: Instances at most, for some methods; all of the protocol's for the others.
        perturbed: Instances at most whose perturbations are answered, for some methods.

    Examples:
        >>> Compare().models, Compare(perturbed={"DiCE": 10}).perturbed["DiCE"]
        (20, 10)
    """

    models: int = 20
    share: float = 0.8
    rounds: int = 10
    scale: float = 0.02
    confidences: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
    methods: tuple[str, ...] = ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE", "CCHVAE")
    answers: int = 5
    most: Mapping[str, int] = field(default_factory=dict, hash=False)
    perturbed: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Act:
    """The actionability experiment, E3.

    Attributes:
        count: Constraints drawn for each instance.
        held: Features that keep the instance's own value in the hard setting.
        low: Quantile that the hard setting's ranges begin at.
        high: Quantile that they end at.
        repeats: Of the protocol's seeds, how many.
        constraints: What is drawn from, for each data set.

    Examples:
        >>> Act(constraints={"wine": ("pH <= 3.6",)}).count
        5
    """

    count: int = 5
    held: int = 3
    low: float = 0.1
    high: float = 0.9
    repeats: int = 5
    constraints: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Walk:
    """Points of paths, E4.

    Attributes:
        repeats: Of the protocol's seeds, how many. Prototypes of different fits are different
            things, so their curves are not averaged over fits.

    Examples:
        >>> Walk().repeats
        1
    """

    repeats: int = 1


@dataclass(frozen=True)
class Sweep:
    """The number of clusters, swept.

    Attributes:
        clusters: Per label.
        pairs: By name.
        repeats: Of the protocol's seeds, how many.
        compare: How answers are measured, as in E2.

    Examples:
        >>> Sweep().clusters
        (2, 3, 5, 8, 12)
    """

    clusters: tuple[int, ...] = (2, 3, 5, 8, 12)
    pairs: tuple[str, ...] = ()
    repeats: int = 2
    compare: Compare = field(default_factory=Compare)


Details: TypeAlias = Compare | Act | Walk
