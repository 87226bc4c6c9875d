"""Which rows a report needs, and what they show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from lapace import metrics
from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError
from lapace.metrics.neighbours import tree_columns
from lapace.metrics.synthetic import Utility
from lapace.report.record import Check, Cluster, ColumnFit, LabelFit, Look, Queries, Report, Rule
from lapace.report.thresholds import THRESHOLDS
from lapace.schema import Schema
from lapace.table import Level

TREES = 50  # of the quick forests that compare sampled with real rows
HELD_OUT = 2000  # rows kept from training, at most; a tenth of a small table
REAL = 4000  # real rows a quick forest learns from, at most
DRAWS = 200  # rows sampled for every label, at least; fewer each where labels are many
PEOPLE = 20  # instances whose paths are walked
LEAST_TEST, LEAST_ROWS, LEAST_SIDE = 50, 20, 30  # rows below which a measure says nothing
RARE = 50  # rows of a label under which all that is said of it is uncertain
TWINS = 0.1  # prototypes this near, in mean distances between rows of their label, are twins
LOOKS = 4  # features that tell a prototype from the others


@dataclass(frozen=True)
class Plan:
    """Which rows a report needs, decided before training.

    Attributes:
        train: Rows to train on.
        held_out: The others.
        real: Of the training rows, those a quick forest learns from.
        instances: Rows whose paths are walked: held-out ones, or training ones of a small table.
        targets: The label each of them walks to, as a position.
        draws: For each label the number of rows to sample.

    Examples:
        >>> plan(np.array([0, 1] * 500), 2).held_out.shape
        (100,)
    """

    train: Ints
    held_out: Ints
    real: Ints
    instances: Ints
    targets: Ints
    draws: Ints


def plan(codes: Ints, labels: int, *, seed: int = 0) -> Plan:
    """Divides a table's rows for a report.

    A tenth of every label's rows is held out, at most 2,000 in all; a label of fewer than 50 keeps
    its rows for training.

    Args:
        codes: Labels of all rows, as positions.
        labels: How many labels there are.
        seed: Of the choice.

    Examples:
        >>> found = plan(np.array([0] * 900 + [1] * 100), 2)
        >>> len(found.train), len(found.held_out), found.draws.tolist(), len(found.instances)
        (900, 100, [810, 200], 20)
    """
    order = np.random.default_rng(seed).permutation(len(codes))
    share = min(0.1, HELD_OUT / max(1, len(codes)))
    owns = [order[codes[order] == k] for k in range(labels)]
    kept = [own[: int(share * len(own))] for own in owns if len(own) >= RARE]
    held_out = np.sort(np.concatenate([*kept, np.empty(0, dtype=np.int64)])).astype(np.int64)
    train = np.setdiff1d(np.arange(len(codes)), held_out)
    rest = order[np.isin(order, train)]
    real = np.sort(rest[:REAL])
    least = int(np.clip(REAL // labels, 50, DRAWS))
    draws = np.maximum(np.bincount(codes[real], minlength=labels), least)
    pool = order[np.isin(order, held_out)] if len(held_out) >= LEAST_ROWS else rest
    instances = _in_turn(pool, codes)[:PEOPLE]
    onward = 1 + np.arange(len(instances)) // labels % max(1, labels - 1)  # each label in its turn
    targets = (codes[instances] + onward) % labels
    return Plan(train, held_out, real, instances, targets, draws)


def _in_turn(rows: Ints, codes: Ints) -> Ints:
    """Rows so ordered that every label has its turn."""
    turn = np.empty(len(rows), dtype=np.int64)
    for k in np.unique(codes[rows]):
        own = np.flatnonzero(codes[rows] == k)
        turn[own] = np.arange(len(own))
    return rows[np.argsort(turn, kind="stable")]


class Rows(NamedTuple):
    """Rows, and what the classifier says of them.

    Attributes:
        cells: The rows.
        codes: Their labels, as positions.
        probability: Of each label, (n, labels); None where unknown.

    Examples:
        >>> len(Rows(np.zeros((3, 2)), np.array([0, 1, 0])).cells)
        3
    """

    cells: Floats
    codes: Ints
    probability: Floats | None = None


class Centre(Protocol):
    """What a report needs to know of a prototype; the explainer's own have it all."""

    @property
    def number(self) -> int:
        """As in answers."""

    @property
    def label(self) -> int:
        """The label it stands for, as a position."""

    @property
    def cells(self) -> Floats:
        """Its row."""

    @property
    def members(self) -> int:
        """Training rows in its cluster."""

    @property
    def valid_before(self) -> bool:
        """Whether the centroid as trained was valid."""

    @property
    def valid(self) -> bool:
        """Whether it is now."""

    @property
    def probability(self) -> float:
        """Of its label; NaN where unknown."""

    @property
    def note(self) -> str:
        """What was done to it."""


@dataclass(frozen=True)
class Evidence:
    """All that a report is made from.

    Attributes:
        schema: The columns.
        labels: The classifier's labels.
        codes: Labels of all rows of the table, as positions.
        wanted: Clusters wanted per label.
        recipe: How it was trained.
        prototypes: Every centroid, decoded and judged; refused ones too.
        real: Training rows and their labels, those of `Plan.real`.
        held_out: Held-out rows, their labels and probabilities.
        rebuilt: The held-out rows encoded and decoded.
        sampled: For each label that can be drawn from, as many rows as `Plan.draws` says, and what
            the classifier says of them.
        crossings: For each path walked, how often it leaves the target again.
        rules: On how many rows each rule holds.
        n_queries: Rows the classifier was asked about.
        seconds: What fitting took.
        warnings: Sentences that are to stand in the report.
        seed: Of the quick forests.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 200)[:, None]
        >>> codes = (rows[:, 0] > 1).astype(np.int64)
        >>> both = {k: Rows(rows[codes == k], codes[codes == k]) for k in (0, 1)}
        >>> seen = Rows(rows, codes)
        >>> evidence = Evidence(Schema.infer(rows), (False, True), codes, 5, "default", (), seen,
        ...                     seen, rows, both, np.zeros(40))
        >>> measure(evidence).utility.gap
        0.0
    """

    schema: Schema
    labels: tuple[Level, ...]
    codes: Ints
    wanted: int
    recipe: str
    prototypes: Sequence[Centre]
    real: Rows
    held_out: Rows
    rebuilt: Floats
    sampled: Mapping[int, Rows]
    crossings: Ints
    rules: Sequence[Rule] = ()
    n_queries: Queries = field(default_factory=Queries)
    seconds: float = 0.0
    warnings: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Arrays that do not belong together are refused."""
        if self.rebuilt.shape != self.held_out.cells.shape:
            raise InputError(
                f"There are {self.rebuilt.shape} rebuilt cells for {self.held_out.cells.shape} "
                "held-out ones. Rebuild exactly the held-out rows, in their order."
            )


# ------------------------------------------------------------------------------------------------
# Measuring


class _Found(NamedTuple):
    """A value for a check, what chance may account for, and whose it is."""

    value: float
    margin: float = 0.0
    where: str = ""


def measure(evidence: Evidence) -> Report:
    """Everything a report says, from plain arrays.

    Real and sampled rows are compared by quick forests of 50 trees on at most 4,000 rows each: a
    few seconds, however large the table.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 200)[:, None]
        >>> codes = (rows[:, 0] > 1).astype(np.int64)
        >>> both = {k: Rows(rows[codes == k], 1 - codes[codes == k]) for k in (0, 1)}
        >>> seen = Rows(rows, codes)
        >>> evidence = Evidence(Schema.infer(rows), (False, True), codes, 5, "default", (), seen,
        ...                     seen, rows, both, np.zeros(40))
        >>> report = measure(evidence)
        >>> report.verdict, [label.agreement for label in report.labels]
        ('fails', [0.0, 0.0])
    """
    said = _forests(evidence)
    labels = tuple(_label(evidence, k, said) for k in range(len(evidence.labels)))
    clusters = _clusters(evidence)
    found = {
        **_of_clusters(labels, clusters),
        **_of_samples(evidence, labels),
        **_of_forests(evidence, said),
        **_of_paths(evidence),
        **_of_rules(evidence),
        "reconstruction": _reconstruction(evidence),
    }
    return Report(
        recipe=evidence.recipe,
        rows=len(evidence.codes),
        held_out=len(evidence.held_out.cells),
        seconds=float(evidence.seconds),
        n_queries=evidence.n_queries,
        checks=_checks(found),
        labels=labels,
        clusters=clusters,
        columns=_columns(evidence),
        rules=tuple(evidence.rules),
        utility=None if isinstance(said, str) else _utility(evidence, said),
        paths=len(evidence.crossings),
        recrossed=int((evidence.crossings > 0).sum()),
        warnings=(*evidence.warnings, *_warnings(evidence, labels)),
    )


def _checks(found: Mapping[str, _Found | str]) -> tuple[Check, ...]:
    """Findings, or reasons why there are none, beside their thresholds, in the table's order."""
    checks = []
    for name, threshold in THRESHOLDS.items():
        if name in found:
            here = found[name]
            if isinstance(here, str):
                checks.append(Check(threshold, None, why=here))
            else:
                checks.append(Check(threshold, *here))
    return tuple(checks)


def _worst(name: str, found: Sequence[_Found]) -> _Found:
    """The finding that looks worst with its margin allowed."""
    threshold = THRESHOLDS[name]
    order = [threshold.favour(f.value, f.margin) for f in found]
    return found[int(np.argmin(order) if threshold.higher else np.argmax(order))]


def _share(flags: Bools, where: str = "") -> _Found:
    """A share of rows, with its standard error."""
    share = float(flags.mean())
    return _Found(share, math.sqrt(share * (1 - share) / len(flags)), where)


# -- clusters -------------------------------------------------------------------------------------


def _clusters(evidence: Evidence) -> tuple[Cluster, ...]:
    prototypes = evidence.prototypes
    if not prototypes:
        return ()
    cells = np.stack([p.cells for p in prototypes])  # (c, d)
    label = np.array([p.label for p in prototypes])
    even = {k: float(np.mean([p.members for p in prototypes if p.label == k])) for k in set(label)}
    near = {k: TWINS * _typical(evidence, k) for k in set(label)}
    apart = metrics.distances(evidence.schema, cells, cells)  # (c, c)
    np.fill_diagonal(apart, np.inf)
    apart[label[:, None] != label] = np.inf
    looks = _looks(evidence, cells, label)
    found = []
    for i, p in enumerate(prototypes):
        least = float(apart[i].min())
        twins = np.flatnonzero(apart[i, :i] <= near[p.label])
        found.append(
            Cluster(
                number=p.number,
                label=evidence.labels[p.label],
                members=int(p.members),
                share=float(p.members / even[p.label]) if even[p.label] else 0.0,
                valid_before=bool(p.valid_before),
                valid=bool(p.valid),
                probability=None if math.isnan(p.probability) else float(p.probability),
                note=p.note,
                looks=looks[i],
                apart=least if math.isfinite(least) else None,
                twin=prototypes[twins[0]].number if len(twins) else None,
            )
        )
    return tuple(found)


def _typical(evidence: Evidence, label: int) -> float:
    """Mean distance between two rows of a label; 0 where there are none to compare."""
    own = evidence.real.cells[evidence.real.codes == label][:1000]
    own = np.random.default_rng(evidence.seed).permutation(own)
    half = len(own) // 2
    if not half:
        return 0.0
    return float(evidence.schema.gaps(own[:half], own[half : 2 * half]).sum(axis=1).mean())


def _places(schema: Schema, rows: Floats, cells: Floats) -> Floats:
    """Numbers as the share of rows under them, so that long tails do not hide a difference."""
    places = np.where(np.isnan(cells), -1.0, cells)
    for i in schema.numeric:
        there = np.sort(rows[~np.isnan(rows[:, i]), i])
        sides = [np.searchsorted(there, cells[:, i], side) for side in ("left", "right")]
        share = (sides[0] + sides[1]) / max(1, 2 * len(there))
        places[:, i] = np.where(np.isnan(cells[:, i]), 0.5, share)
    return places


def _unlike(schema: Schema, place: Floats, others: Floats) -> Floats:
    """How much each feature sets a row apart from others, from 0 to 1: (d,)."""
    odd = (others != place).mean(axis=0) if len(others) else np.zeros(len(place))
    if len(others):
        numeric = schema.numeric
        odd[numeric] = np.abs(place[numeric] - others[:, numeric].mean(axis=0))
    return odd


def _usual(schema: Schema, rows: Floats) -> Floats:
    """The middle value of each number and the commonest category; NaN where missing is usual."""
    usual = np.full(len(schema.features), np.nan)
    for i, feature in enumerate(schema.features):
        there = np.sort(rows[~np.isnan(rows[:, i]), i])
        if len(there) <= len(rows) / 2:
            continue
        values, counts = np.unique(there, return_counts=True)
        middle = there[(len(there) - 1) // 2]
        usual[i] = middle if feature.numeric else values[counts.argmax()]
    return usual


def _looks(evidence: Evidence, cells: Floats, label: Ints) -> list[tuple[Look, ...]]:
    """What tells each prototype from its label's others, or an only one from the table."""
    schema, rows = evidence.schema, evidence.real.cells
    if schema.shape:  # four pixels tell nobody anything
        return [()] * len(cells)
    places, everyone = _places(schema, rows, cells), _places(schema, rows, rows)
    usual = {k: _usual(schema, rows[evidence.real.codes == k]) for k in set(label)}
    found = []
    for i, k in enumerate(label):
        others = np.flatnonzero((label == k) & (np.arange(len(label)) != i))
        odd = _unlike(schema, places[i], places[others] if len(others) else everyone)
        beside = usual[k] if len(others) else _usual(schema, rows)
        chosen = [j for j in np.argsort(-odd, kind="stable")[:LOOKS] if odd[j] > 0]
        features = [(schema.features[j], float(cells[i, j]), float(beside[j])) for j in chosen]
        found.append(tuple(Look(f.name, f.text(own), f.text(us)) for f, own, us in features))
    return found


def _of_clusters(
    labels: Sequence[LabelFit], clusters: Sequence[Cluster]
) -> dict[str, _Found | str]:
    rare = [repr(x.label) for x in labels if not x.clusters]
    found: dict[str, _Found | str] = {"rare": _Found(len(rare), where=", ".join(rare))}
    if not clusters:
        return found
    refused = [str(c.number) for c in clusters if not c.valid]
    twins = [f"{c.number} and {c.twin}" for c in clusters if c.twin is not None]
    least = [_Found(x.prototypes, where=f"label {x.label!r}") for x in labels if x.clusters]
    share = [_Found(c.share, where=f"cluster {c.number}") for c in clusters]
    return {
        **found,
        "prototypes": _worst("prototypes", least),
        "valid": _Found(
            1 - len(refused) / len(clusters), where="refused: " * bool(refused) + ", ".join(refused)
        ),
        "valid_before": _Found(sum(c.valid_before for c in clusters) / len(clusters)),
        "usage": _worst("usage", share),
        "duplicates": _Found(len(twins), where=", ".join(twins)),
    }


# -- samples --------------------------------------------------------------------------------------


def _label(evidence: Evidence, k: int, said: tuple[Ints, Ints] | str) -> LabelFit:
    test = evidence.held_out.codes == k
    own = [p for p in evidence.prototypes if p.label == k]
    drawn = evidence.sampled.get(k)
    recalls: list[float | None] = [None, None]
    if not isinstance(said, str) and test.sum() >= LEAST_ROWS:
        recalls = [float((side[test] == k).mean()) for side in said]
    there = drawn is not None and len(drawn.cells) > 0
    ks, surer = _certainty(evidence, k)
    return LabelFit(
        label=evidence.labels[k],
        rows=int((evidence.codes == k).sum()),
        held_out=int(test.sum()),
        clusters=len(own),
        prototypes=sum(p.valid for p in own),
        sampled=len(drawn.cells) if drawn else 0,
        agreement=float((drawn.codes == k).mean()) if drawn and there else None,
        ks=ks,
        surer=surer,
        recall_real=recalls[0],
        recall_sampled=recalls[1],
    )


def _certainty(evidence: Evidence, k: int) -> tuple[float | None, float | None]:
    """KS distance of a label's probability on sampled and real rows, two- and one-sided."""
    drawn, real = evidence.sampled.get(k), evidence.held_out
    if drawn is None or drawn.probability is None or real.probability is None:
        return None, None
    own, theirs = np.sort(real.probability[real.codes == k, k]), np.sort(drawn.probability[:, k])
    if min(len(own), len(theirs)) < LEAST_SIDE:
        return None, None
    below = [np.searchsorted(side, own, "right") / len(side) for side in (own, theirs)]
    return metrics.ks(theirs, own), float(max(0.0, (below[0] - below[1]).max()))


def _of_samples(evidence: Evidence, labels: Sequence[LabelFit]) -> dict[str, _Found | str]:
    agreement = [
        _share(evidence.sampled[k].codes == k, f"label {x.label!r}")
        for k, x in enumerate(labels)
        if x.agreement is not None
    ]
    # If nothing differed, the one-sided distance would still be about this, by chance.
    surer = [
        _Found(x.surer, 0.63 * math.sqrt(1 / x.sampled + 1 / x.held_out), f"label {x.label!r}")
        for x in labels
        if x.surer is not None
    ]
    why = f"no label has {LEAST_SIDE} rows held out"
    if evidence.held_out.probability is None:
        why = "the classifier offers no probabilities"
    return {
        "agreement": _worst("agreement", agreement) if agreement else "no rows could be sampled",
        "surer": _worst("surer", surer) if surer else why,
    }


def _forests(evidence: Evidence) -> tuple[Ints, Ints] | str:
    """What forests trained on real and on sampled rows say of the held-out rows, or why nothing."""
    real, test = evidence.real, evidence.held_out
    if len(test.cells) < LEAST_TEST:
        return _too_few(len(test.cells), LEAST_TEST)
    counts = np.bincount(real.codes, minlength=len(evidence.labels))
    drawn = {k: rows.cells[: counts[k]] for k, rows in evidence.sampled.items()}
    if not sum(map(len, drawn.values())):
        return "no rows could be sampled"
    cells = np.concatenate(list(drawn.values()))
    # Rows carry the label they were drawn for, whatever the classifier says: as in the paper.
    codes = np.repeat(list(drawn), [len(rows) for rows in drawn.values()])
    schema, said = evidence.schema, []
    for rows, label in ((real.cells, real.codes), (cells, codes)):
        forest = RandomForestClassifier(TREES, random_state=evidence.seed)
        forest.fit(tree_columns(schema, rows), label)
        said.append(forest.predict(tree_columns(schema, test.cells)))
    return said[0], said[1]


def _too_few(rows: int, least: int) -> str:
    return f"{rows} rows held out, {least} needed: hand over {10 * least:,} or more"


def _utility(evidence: Evidence, said: tuple[Ints, Ints]) -> Utility:
    found = [metrics.agreement(evidence.held_out.codes, side) for side in said]
    balanced = [float(np.mean(list(each.by_label.values()))) for each in found]
    return Utility(found[0].overall, found[1].overall, *balanced)


def _of_forests(evidence: Evidence, said: tuple[Ints, Ints] | str) -> dict[str, _Found | str]:
    if isinstance(said, str):
        return {"utility": said, "balanced": said}
    wanted, utility = evidence.held_out.codes, _utility(evidence, said)
    lost = (said[0] == wanted).astype(float) - (said[1] == wanted)  # (m,) row by row
    present = np.unique(wanted)
    each = [lost[wanted == k].var() / (wanted == k).sum() for k in present]
    return {
        "utility": _Found(utility.gap, math.sqrt(lost.var() / len(lost))),
        "balanced": _Found(utility.balanced_gap, math.sqrt(sum(each)) / len(present)),
    }


# -- columns, paths, rules ------------------------------------------------------------------------


def _losses(evidence: Evidence) -> tuple[Floats, Floats]:
    """Per column the mean distance lost in reconstruction, and by always saying the usual."""
    schema, rows = evidence.schema, evidence.held_out.cells
    usual = _usual(schema, evidence.real.cells)
    return (
        schema.gaps(rows, evidence.rebuilt).mean(axis=0),
        schema.gaps(rows, usual[None]).mean(axis=0),
    )


def _columns(evidence: Evidence) -> tuple[ColumnFit, ...]:
    if len(evidence.held_out.cells) < LEAST_ROWS:
        return ()
    lost = zip(evidence.schema.features, *_losses(evidence), strict=True)
    return tuple(ColumnFit(f.name, f.kind, float(error), float(guess)) for f, error, guess in lost)


def _reconstruction(evidence: Evidence) -> _Found | str:
    if len(evidence.held_out.cells) < LEAST_ROWS:
        return _too_few(len(evidence.held_out.cells), LEAST_ROWS)
    error, guess = (side.sum() for side in _losses(evidence))
    return _Found(float(error / guess)) if guess else "the held-out rows are all alike"


def _of_paths(evidence: Evidence) -> dict[str, _Found | str]:
    count = len(evidence.crossings)
    if count < LEAST_ROWS:
        return {"recrossing": f"{count} paths walked, {LEAST_ROWS} needed"}
    return {"recrossing": _share(evidence.crossings > 0)}


def _of_rules(evidence: Evidence) -> dict[str, _Found | str]:
    found = [_Found(r.share, where=f"'{r.text}'") for r in evidence.rules if r.share is not None]
    return {"rules": _worst("rules", found)} if found else {}


def _warnings(evidence: Evidence, labels: Sequence[LabelFit]) -> list[str]:
    """What is scarce, label by label."""
    told = []
    for x in labels:
        instance = f"Label {x.label!r} has {x.rows:,} row{'s' * (x.rows != 1)}"
        if not evidence.prototypes or (x.clusters >= evidence.wanted and x.rows >= RARE):
            continue
        if not x.clusters:
            told.append(f"{instance}: too few for a prototype, so nobody can be led to it.")
        elif x.clusters < evidence.wanted:
            told.append(
                f"{instance} and got {x.clusters} of the {evidence.wanted} clusters wanted."
            )
        else:
            told.append(f"{instance}: what is said of it is uncertain.")
    return told
