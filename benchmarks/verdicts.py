"""What was aimed at in E2 and E3, and whether it was reached: worked out from the figures.

A target that is missed says so, with the pairs that miss it; one of which only some pairs have been
run is judged on those, and says how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from benchmarks.comparing import LINES, reaching
from benchmarks.e3 import METHODS
from benchmarks.figures import Figures, grid
from benchmarks.plan import Plan

__all__ = ["Verdict", "markdown", "verdicts"]

SLACK = 1e-9
PICKS = ("First", "Middle", "Last")


@dataclass(frozen=True)
class Verdict:
    """A target and what became of it.

    Attributes:
        target: What was aimed at.
        wanted: The bound, in words.
        reached: The figures.
        missed: Pairs that miss it.
        judged: Pairs there are figures of.

    Examples:
        >>> Verdict("validity", "100 %", "99.9 %", ("wine-RF",), ("wine-RF", "wine-NN")).text
        '**missed** on wine-RF'
        >>> Verdict("validity", "100 %", "100 %", (), ("wine-RF",)).text
        'met'
        >>> Verdict("validity", "100 %", "", (), ()).text
        'not run'
    """

    target: str
    wanted: str
    reached: str
    missed: tuple[str, ...]
    judged: tuple[str, ...]

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where nothing was run."""
        return None if not self.judged else not self.missed

    @property
    def text(self) -> str:
        """Met, missed and where, or not run."""
        if not self.judged:
            return "nothing to judge" if self.reached else "not run"
        if not self.missed:
            return "met"
        if len(self.missed) == len(self.judged) > 1:
            return "**missed** on every pair"
        return f"**missed** on {', '.join(self.missed)}"


def markdown(plan: Plan, table: pd.DataFrame) -> str:
    """The targets as a table.

    Args:
        plan: What was planned.
        table: The tidy table, all of it.
    """
    found = verdicts(plan, table)
    wanted = len([pair for pair in plan.pairs if pair.experiment == "e1"])
    lines = []
    for v in found:
        full = wanted if not v.target.startswith("E3") else len(_acted(plan))
        some = f" ({len(v.judged)} of {full} pairs)" if 0 < len(v.judged) < full else ""
        lines.append((v.target, v.wanted, v.reached, f"{v.text}{some}"))
    return grid(("target", "wanted, on every pair", "reached", ""), lines)


def verdicts(plan: Plan, table: pd.DataFrame) -> list[Verdict]:
    """All targets of E2 and E3.

    Args:
        plan: What was planned.
        table: The tidy table, all of it.
    """
    experiment = table["experiment"] if "experiment" in table else pd.Series(dtype=str)
    two, three = (Figures.of(table[experiment == name]) for name in ("e2", "e3"))
    pairs = [pair.name for pair in plan.pairs if pair.experiment == "e1"]
    return [
        _validity(two, pairs),
        _proximity(two, pairs),
        _plausibility(two, pairs),
        _diversity(two, pairs, "DRCE"),
        _diversity(two, pairs, "DiCE"),
        _lasting(two, pairs),
        _sure(two, pairs),
        _still(two, pairs),
        _first_still(two, pairs, "input_max_set_distance", "max-set-distance"),
        _first_still(two, pairs, "input_set_distance", "set distance"),
        _second(two, pairs),
        _faster(two, pairs),
        _easy(three, _acted(plan)),
        _hard(three, _acted(plan)),
        _obeyed(three, _acted(plan)),
    ]


def _acted(plan: Plan) -> list[str]:
    """Pairs E3 is about."""
    known = plan.act.constraints
    return [p.name for p in plan.pairs if p.experiment == "e1" and p.data in known]


# ------------------------------------------------------------------------------------------------
# E2


def _value(
    figures: Figures, pair: str, method: str, metric: str, recipe: str = "default", label: str = ""
) -> float:
    return figures.get(pair, recipe, metric, label, method).mean


def _theirs(figures: Figures, pair: str, metric: str, but: Sequence[str] = ()) -> dict[str, float]:
    """A metric of every baseline there is."""
    found = {
        line.name: _value(figures, pair, line.method, metric, "baselines")
        for line in LINES
        if line.theirs and line.name not in but
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _judged(
    target: str,
    wanted: str,
    pairs: Iterable[str],
    margin: Callable[[str], float],
    text: Callable[[str], str],
) -> Verdict:
    """A target every pair is held to: a negative margin misses it, NaN means there is none.

    Shown is the pair with the least margin.
    """
    found = {pair: margin(pair) for pair in pairs}
    found = {pair: value for pair, value in found.items() if not math.isnan(value)}
    if not found:
        return Verdict(target, wanted, "", (), ())
    worst = min(found, key=lambda pair: found[pair])
    missed = tuple(pair for pair, value in found.items() if value < -SLACK)
    return Verdict(target, wanted, f"{worst}: {text(worst)}", missed, tuple(found))


def _validity(figures: Figures, pairs: Sequence[str]) -> Verdict:
    missed, judged, parts = [], [], []
    for pair in pairs:
        found = [figures.get(pair, "default", "valid_answers", method=p) for p in PICKS]
        if all(f.count for f in found):
            judged.append(pair)
            if any(f.hits < f.count for f in found):
                missed.append(pair)
    for pick in PICKS:
        known = [figures.get(p, "default", "valid_answers", method=pick) for p in judged]
        hits, count = sum(f.hits for f in known), sum(f.count for f in known)
        parts.append(f"{pick} {hits:,} of {count:,}")
    wanted = "every answer of First, Middle and Last valid"
    reached = "; ".join(parts) if judged else ""
    return Verdict("validity", wanted, reached, tuple(missed), tuple(judged))


def _proximity(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def name(pair: str) -> str:
        mixed = figures.get(pair, "default", "mixed").mean > 0
        return "sparse" if mixed else "nearest"

    def both(pair: str) -> tuple[float, float]:
        own = _value(figures, pair, name(pair), "paired_distance")
        return own, _value(figures, pair, name(pair), "paired_nnce")

    return _judged(
        "proximity, one answer each",
        "nearest, or sparse where there are categories, no farther than NNCE, paired",
        pairs,
        lambda pair: both(pair)[1] / both(pair)[0] - 1 if both(pair)[0] else math.nan,
        lambda pair: f"{name(pair)} {both(pair)[0]:.3f}, NNCE {both(pair)[1]:.3f}",
    )


def _plausibility(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def margin(pair: str) -> float:
        theirs = _theirs(figures, pair, "lof")
        ours = max(_value(figures, pair, pick, "lof") for pick in ("Middle", "Last"))
        return min(theirs.values()) - ours if theirs else math.nan

    def text(pair: str) -> str:
        theirs = _theirs(figures, pair, "lof")
        name = min(theirs, key=lambda n: theirs[n])
        middle, last = (_value(figures, pair, pick, "lof") for pick in ("Middle", "Last"))
        return f"Middle {middle:.2f}, Last {last:.2f}, {name} {theirs[name]:.2f}"

    wanted = "Middle and Last below every baseline"
    return _judged("plausibility (LOF)", wanted, pairs, margin, text)


def _diversity(figures: Figures, pairs: Sequence[str], other: str) -> Verdict:
    def theirs(pair: str, metric: str) -> float:
        return _value(figures, pair, other, metric, "baselines")

    def margin(pair: str) -> float:
        if other == "DiCE" and not theirs(pair, "lof") < 1.5:
            return math.nan
        return _value(figures, pair, "Last", "diversity") - theirs(pair, "diversity")

    def text(pair: str) -> str:
        own = _value(figures, pair, "Last", "diversity"), _value(figures, pair, "Last", "lof")
        each = theirs(pair, "answers_each")
        return (
            f"Last {own[0]:.2f} at LOF {own[1]:.2f}, {other} {theirs(pair, 'diversity'):.2f} at "
            f"{theirs(pair, 'lof'):.2f} ({each:.1f} answers each)"
        )

    where = " where its LOF is below 1.5" if other == "DiCE" else ""
    wanted = f"Last above {other}{where}"
    found = _judged(f"diversity beside {other}", wanted, pairs, margin, text)
    known = [lof for lof in (theirs(pair, "lof") for pair in pairs) if not math.isnan(lof)]
    if known and not found.judged:
        found = replace(found, reached=f"its LOF is {min(known):.2f} or more")
    return found


def _lasting(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def share(pair: str) -> float:
        return _value(figures, pair, "Last", "model_robustness")

    return _judged(
        "robustness to model changes, Last",
        "100 %",
        pairs,
        lambda pair: share(pair) - 1,
        lambda pair: f"{100 * share(pair):.2f} %",
    )


def _sure(figures: Figures, pairs: Sequence[str]) -> Verdict:
    known = {
        pair: (reaching(figures, pair), _value(figures, pair, "First", "model_robustness"))
        for pair in pairs
        if figures.get(pair, "default", "model_robustness", method="First").repeats
    }
    missed = tuple(pair for pair, (least, _) in known.items() if least is None)
    parts = [
        f"{pair} {100 * plain:.0f} % plain, "
        + (f"at {least:g}" if least else "enough" if least == 0 else "never")
        for pair, (least, plain) in known.items()
    ]
    wanted = "First reaches 95 % at a required confidence, with everyone answered"
    return Verdict(
        "robustness to model changes, First", wanted, "; ".join(parts), missed, tuple(known)
    )


def _still(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def far(pair: str) -> float:
        return _value(figures, pair, "Last", "input_max_set_distance")

    return _judged(
        "robustness to input changes, Last",
        "0",
        pairs,
        lambda pair: -far(pair),
        lambda pair: f"{far(pair):.4f}",
    )


def _first_still(figures: Figures, pairs: Sequence[str], metric: str, words: str) -> Verdict:
    def both(pair: str) -> tuple[float, float]:
        own = _value(figures, pair, "First", metric)
        return own, _value(figures, pair, "DRCE", metric, "baselines")

    return _judged(
        f"robustness to input changes, First, {words}",
        "no worse than DRCE",
        pairs,
        lambda pair: both(pair)[1] - both(pair)[0],
        lambda pair: f"First {both(pair)[0]:.3f}, DRCE {both(pair)[1]:.3f}",
    )


def _second(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def others(pair: str) -> dict[str, float]:
        return _theirs(figures, pair, "seconds", but=("NNCE",))

    def own(pair: str) -> float:
        return _value(figures, pair, "First", "seconds")

    def margin(pair: str) -> float:
        return min(others(pair).values()) / own(pair) - 1 if others(pair) else math.nan

    def text(pair: str) -> str:
        name = min(others(pair), key=lambda n: others(pair)[n])
        return f"{own(pair):.2f} s, {name} {others(pair)[name]:.2f} s per 100 instances"

    wanted = "faster than every baseline but NNCE"
    return _judged("runtime", wanted, pairs, margin, text)


def _faster(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def ratio(pair: str) -> float:
        theirs = _value(figures, pair, "DiCE", "seconds", "baselines")
        return theirs / _value(figures, pair, "First", "seconds")

    return _judged(
        "runtime beside DiCE",
        "at least 50 times faster",
        pairs,
        lambda pair: ratio(pair) - 50,
        lambda pair: f"{ratio(pair):.0f} times",
    )


# ------------------------------------------------------------------------------------------------
# E3


def _satisfied(figures: Figures, pair: str, method: str, setting: str) -> float:
    return _value(figures, pair, method, "satisfied", label=setting)


def _easy(figures: Figures, pairs: Sequence[str]) -> Verdict:
    return _judged(
        "E3, easy constraints",
        "1.00 with exact",
        pairs,
        lambda pair: _satisfied(figures, pair, "LAPACE-exact", "easy") - 1,
        lambda pair: f"{_satisfied(figures, pair, 'LAPACE-exact', 'easy'):.3f}",
    )


def _hard(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def others(pair: str) -> dict[str, float]:
        names = [name for name in METHODS if name != "LAPACE-exact"]
        found = {name: _satisfied(figures, pair, name, "hard") for name in names}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def own(pair: str) -> float:
        return _satisfied(figures, pair, "LAPACE-exact", "hard")

    def text(pair: str) -> str:
        name = max(others(pair), key=lambda n: others(pair)[n])
        return f"exact {own(pair):.3f}, {name} {others(pair)[name]:.3f}"

    return _judged(
        "E3, hard constraints",
        "exact no worse than any other method",
        pairs,
        lambda p: own(p) - max(others(p).values()) if others(p) else math.nan,
        text,
    )


def _obeyed(figures: Figures, pairs: Sequence[str]) -> Verdict:
    def least(pair: str) -> float:
        found = [
            _value(figures, pair, "LAPACE-exact", "feasible_points", label=setting)
            for setting in ("easy", "hard")
        ]
        return math.nan if any(map(math.isnan, found)) else min(found)

    return _judged(
        "E3, points that obey",
        "every point of exact",
        pairs,
        lambda pair: least(pair) - 1,
        lambda pair: f"{100 * least(pair):.2f} %",
    )
