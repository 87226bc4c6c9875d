"""Verdicts on the paper's claims about methods: Figure 4, the comparison (E2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.figures import NONE, Figure
from benchmarks.judging import (
    BASELINES,
    LAPACE,
    MODELS,
    NO,
    PARTLY,
    YES,
    Evidence,
    Finding,
    Verdict,
    claim,
    judged,
    mean,
    share,
)

__all__ = ["CLAIMS"]

CLAIMS: list[Finding] = []


SEVERAL = ("DiCE", "DRCE")


RANKED = {
    "validity": -1, "distance": 1, "lof": 1, "diversity": -1, "model_robustness": -1,
    "input_max_set_distance": 1, "seconds": 1,
}  # fmt: skip


@claim(CLAIMS, "Figure 4", "All methods but DiCE always find valid counterfactuals")
def validity(e: Evidence) -> Verdict:
    always = [n for n in BASELINES if e.mean(n, "validity") >= 1 - 1e-9]
    texts = [
        ", ".join(f"{pick} {100 * e.mean(pick, 'validity', r):.1f} %"
                  for pick in LAPACE)
        for r in MODELS
    ]  # fmt: skip
    fine = all(e.mean(p, "validity", "paper") >= 1 - 1e-9 for p in LAPACE)
    dice = e.mean("DiCE", "validity")
    others = len([n for n in always if n != "DiCE"]) == len(BASELINES) - 1
    if fine and others and dice >= 1 - 1e-9:
        return Verdict(
            *texts,
            PARTLY,
            "DiCE is always valid here too: its own package is "
            "run, the paper's is adapted from CARLA or RobustX",
        )
    return Verdict(*texts, YES if fine and others else NO, f"DiCE {100 * dice:.1f} %")


@claim(CLAIMS, "Figure 4", "NNCE and DRCE are consistently closest")
def closest(e: Evidence) -> Verdict:
    def two(pair: str) -> bool:
        rank = sorted(BASELINES, key=lambda n: e.get(n, "distance", pair))
        own = min(e.get(p, "distance", pair, "paper") for p in LAPACE)
        return set(rank[:2]) == {"NNCE", "DRCE"} and own > e.get(rank[1], "distance", pair)

    found = e.where(two)
    means = ", ".join(f"{n} {e.mean(n, 'distance'):.2f}" for n in BASELINES)
    ours = [
        f"nearest {e.mean('nearest', 'distance', r):.2f}, best {e.mean('best', 'distance', r):.2f}"
        for r in MODELS[1:]
    ]
    left = ", ".join(p for p in e.pairs if p not in found)
    because = f"not on {left}, where another method is second or closer" if left else ""
    return Verdict(f"{share(found, e.pairs)}: {means}", ours[0], judged(found, e.pairs), because)


@claim(CLAIMS, "Figure 4", "DiCE is competitively close on continuous-only data")
def dice_close(e: Evidence) -> Verdict:
    ratio = {own: mean(e.get("DiCE", "distance", p) / e.get("NNCE", "distance", p) for p in pairs)
             for own, pairs in (("continuous", e.continuous), ("mixed", e.mixed))}  # fmt: skip
    text = f"{ratio['continuous']:.1f} times NNCE's on continuous, {ratio['mixed']:.1f} on mixed"
    fine = ratio["continuous"] < ratio["mixed"] and ratio["continuous"] <= 1.5
    return Verdict(text, NONE, YES if fine else NO)


@claim(CLAIMS, "Figure 4", "First is comparably close")
def first_close(e: Evidence) -> Verdict:
    base = e.mean("NNCE", "distance")
    own = [e.mean("First", "distance", r) for r in MODELS]
    texts = [f"First {v:.2f}, {v / base:.1f} times NNCE's {base:.2f}" for v in own]
    others = [e.mean(n, "distance") for n in BASELINES]
    farther = own[0] > max(others)
    because = "farther than every baseline on average" if farther else ""
    return Verdict(*texts, NO if farther else YES, because)


@claim(CLAIMS, "Figure 4", "LAPACE is the most plausible on all data sets and models")
def plausible(e: Evidence) -> Verdict:
    def best(pick: str, recipe: str) -> list[str]:
        return e.where(
            lambda p: (
                round(e.get(pick, "lof", p, recipe), 2)
                <= round(min(e.get(n, "lof", p) for n in BASELINES), 2)
            )
        )

    texts = [
        "; ".join(f"{pick} on {share(best(pick, r), e.pairs)}, mean {e.mean(pick, 'lof', r):.2f}"
                  for pick in LAPACE)
        for r in MODELS
    ]  # fmt: skip
    found = best("Last", "paper")
    left = ", ".join(p for p in e.pairs if p not in found)
    face = e.mean("FACE", "lof")
    return Verdict(*texts, judged(found, e.pairs),
                   f"Last; not on {left}. FACE, whose answers are training rows, has {face:.2f}"
                   if left else "")  # fmt: skip


@claim(
    CLAIMS,
    "Figure 4",
    "It is more diverse than DiCE and DRCE on mixed data, less on continuous-only data",
)
def diverse(e: Evidence) -> Verdict:
    def above(pick: str, recipe: str, pairs: Sequence[str]) -> list[str]:
        return e.where(
            lambda p: (
                e.get(pick, "diversity", p, recipe) > max(e.get(n, "diversity", p) for n in SEVERAL)
            ),
            pairs,
        )

    texts = [
        f"Last above both on {share(above('Last', r, e.mixed), e.mixed)} with categories, "
        f"{share(above('Last', r, e.continuous), e.continuous)} without"
        for r in MODELS
    ]
    mixed, others = (above("Last", "paper", own) for own in (e.mixed, e.continuous))
    fine = len(mixed) == len(e.mixed) and not others
    return Verdict(*texts, YES if fine else PARTLY if mixed else NO)


@claim(CLAIMS, "Figure 4", "Last is 100 % robust to model changes")
def model_robust(e: Evidence) -> Verdict:
    shares = {r: [e.get("Last", "model_robustness", p, r) for p in e.pairs] for r in MODELS}
    texts = [f"{100 * mean(own):.2f} %, least {100 * min(own):.1f} %" for own in shares.values()]
    least = min(shares["paper"])
    return Verdict(*texts, YES if least >= 1 else PARTLY if least >= 0.95 else NO,
                   "" if least >= 1 else "a prototype near the boundary may be lost by a retrained "
                   "classifier: nothing in training keeps it away from there")  # fmt: skip


@claim(CLAIMS, "Abstract, Figure 4", "Last is perfectly robust to input changes")
def input_robust(e: Evidence) -> Verdict:
    largest = [max(e.get("Last", "input_max_set_distance", p, r) for p in e.pairs) for r in MODELS]
    return Verdict(*(f"{v:.3f}" for v in largest), YES if largest[0] <= 1e-9 else NO)


@claim(CLAIMS, "Figure 4", "Last is as close as RobXCE, more plausible and faster")
def robx(e: Evidence) -> Verdict:
    other = {m: e.mean("RobXCE", m) for m in ("distance", "lof", "seconds")}
    own = {r: {m: e.mean("Last", m, r) for m in other} for r in MODELS}
    texts = [
        f"distance {v['distance']:.2f} against {other['distance']:.2f}, LOF {v['lof']:.2f} against "
        f"{other['lof']:.2f}, {v['seconds']:.2f} s against {other['seconds']:.2f}"
        for v in own.values()
    ]
    its = own["paper"]
    near = its["distance"] <= 1.1 * other["distance"]
    better = its["lof"] < other["lof"] and its["seconds"] < other["seconds"]
    return Verdict(*texts, YES if near and better else PARTLY if better else NO,
                   "" if near else "plausibility, diversity and time are better; a centroid is far "
                   "from most instances, RobXCE's answers are not. The paper's RobXCE may start "
                   "from another base or ask for more stability")  # fmt: skip


@claim(CLAIMS, "Figure 4", "Last is more robust to input changes and more plausible than DRCE")
def drce(e: Evidence) -> Verdict:
    other = [e.mean("DRCE", m) for m in ("input_max_set_distance", "lof")]
    own = {r: [e.mean("Last", m, r) for m in ("input_max_set_distance", "lof")] for r in MODELS}
    texts = [
        f"input changes {v[0]:.3f} against {other[0]:.3f}, LOF {v[1]:.2f} against {other[1]:.2f}"
        for v in own.values()
    ]
    return Verdict(*texts, YES if all(a < b for a, b in zip(own["paper"], other, strict=True))
                   else NO)  # fmt: skip


@claim(CLAIMS, "Figure 4", "Robustness to model changes rises from First to Last")
def increases(e: Evidence) -> Verdict:
    def steady(pair: str) -> bool:
        first, middle, last = (e.get(n, "model_robustness", pair, "paper") for n in LAPACE)
        return first <= middle + 5e-4 and middle <= last + 5e-4

    texts = [
        " → ".join(f"{Figure(e.mean(n, 'model_robustness', r)):.1p} %"
                   for n in LAPACE)
        for r in MODELS
    ]  # fmt: skip
    found = e.where(steady)
    return Verdict(f"{texts[0]}, {share(found, e.pairs)}", texts[1], judged(found, e.pairs))


@claim(CLAIMS, "Abstract, Figure 4", "Paths trade proximity for plausibility")
def spectrum(e: Evidence) -> Verdict:
    """Judges whether distance grows and LOF falls from First over Middle to Last."""

    def curve(pair: str, metric: str, recipe: str) -> list[float]:
        return [e.get(n, metric, pair, recipe) for n in LAPACE]

    def traded(pair: str, recipe: str) -> bool:
        away, lof = (curve(pair, m, recipe) for m in ("distance", "lof"))
        # Not where figures are missing: no comparison with NaN holds.
        return all(a <= b for a, b in pairwise(away)) and all(a >= b for a, b in pairwise(lof))

    texts = []
    for recipe in MODELS:
        found = e.where(lambda p, r=recipe: traded(p, r))
        shown = ", ".join(
            f"{n} {e.mean(n, 'distance', recipe):.2f} at LOF {e.mean(n, 'lof', recipe):.2f}"
            for n in LAPACE
        )
        texts.append(f"{shown}; step by step on {share(found, e.pairs)}")
    found = e.where(lambda p: traded(p, "paper"))
    left = ", ".join(p for p in e.pairs if p not in found)
    because = f"on {left} the mean LOF does not fall at every step" if left else ""
    return Verdict(*texts, judged(found, e.pairs), because)


@claim(CLAIMS, "Section 4.2", "LAPACE has the best-balanced performance over all metrics")
def balanced(e: Evidence, mixed: bool = False) -> Verdict:
    """Judges the mean rank over seven metrics among the paper's methods; actionability has its own.

    Args:
        e: All figures.
        mixed: Only on the pairs with categories.
    """
    pairs = e.mixed if mixed else e.pairs

    def ranks(recipe: str) -> dict[str, float]:
        names = dict.fromkeys(BASELINES, "baselines") | dict.fromkeys(LAPACE, recipe)
        total = dict.fromkeys(names, 0.0)
        for metric, sign in RANKED.items():
            # One counterfactual has no diversity: it shares the last place.
            values = {n: sign * e.mean(n, metric, r, pairs) for n, r in names.items()}
            values = {n: math.inf if math.isnan(v) else v for n, v in values.items()}
            for name, own in values.items():
                better = sum(v < own for v in values.values())
                level = sum(v == own for v in values.values())
                total[name] += (better + (level + 1) / 2) / len(RANKED)
        return total

    texts, tops = [], []
    for recipe in MODELS:
        found = ranks(recipe)
        order = sorted(found, key=found.__getitem__)
        tops.append(order[: 2 if mixed else 1])  # competitive: among the first two
        texts.append("mean rank: " + ", ".join(f"{n} {found[n]:.1f}" for n in order[:4]))
    return Verdict(*texts, YES if set(tops[0]) & set(LAPACE) else NO,
                   ("on the pairs with categories, among the first two: " if mixed else "")
                   + "ranks of the means over pairs, among the paper's eight methods, on validity, "
                   "proximity, plausibility, diversity, both robustnesses and time")  # fmt: skip


@claim(
    CLAIMS,
    "Section 5",
    "With categories the model is less useful, its counterfactuals remain competitive",
)
def balanced_on_mixed(e: Evidence) -> Verdict:
    """Judges the mean rank on the pairs with categories."""
    return balanced(e, mixed=True)


@claim(CLAIMS, "Abstract, Figure 4", "LAPACE is second only to NNCE in time")
def fast(e: Evidence) -> Verdict:
    own = [e.mean("First", "seconds", r) for r in MODELS]
    others = {n: e.mean(n, "seconds") for n in BASELINES}
    faster = [n for n, v in others.items() if v < own[0]]
    face = others["FACE"] + e.mean("FACE", "fit_seconds")
    texts = [f"{v:.2f} s per 100" for v in own]
    listed = ", ".join(f"{n} {others[n]:.2f} s" for n in faster)
    ok = set(faster) <= {"NNCE"}
    with_graph = set(faster) <= {"NNCE", "FACE"} and face > own[0]
    return Verdict(*texts, YES if ok else PARTLY if with_graph else NO,
                   f"faster: {listed}. FACE with its graph built in the timed part takes "
                   f"{face:.1f} s; DRCE works on whole arrays here")  # fmt: skip


@claim(CLAIMS, "Figure 4", "Counterfactuals are synthetic, not training rows")
def private(e: Evidence) -> Verdict:
    texts = [f"Last {100 * e.mean('Last', 'copies', r):.1f} %" for r in MODELS]
    others = ", ".join(f"{n} {100 * e.mean(n, 'copies'):.0f} %" for n in ("NNCE", "FACE", "RobXCE"))
    fine = e.mean("Last", "copies", "paper") < 0.05
    return Verdict(*texts, YES if fine else NO,
                   f"answers that are training rows, cell by cell; {others}. A copy is a chance "
                   "hit among few distinct rows, not a stored row")  # fmt: skip
