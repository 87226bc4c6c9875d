"""Two measurements of advice side by side: `python -m benchmarks.compare BEFORE.csv AFTER.csv`.

Only pairs, seeds and parts that both files have count, in each file those of its newest code; a
ratio under 1 is closer. `shift_50` is the median of the largest shift of a number, in percentiles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.advice import read
from benchmarks.advice_page import Results
from benchmarks.figures import NONE, grid

METHODS = ("nearest", "best(1)", "best(3)", "simplest", "NNCE", "RobXCE")


def both(before: Path, after: Path) -> tuple[Results, Results]:
    """The lines of what both files have measured."""
    keys = ["pair", "seed", "part"]
    tables = [t[t["code"] == t["code"].iloc[-1]] for t in (read(before), read(after))]
    one, two = (pd.MultiIndex.from_frame(t.loc[t["metric"] == "seconds", keys]) for t in tables)
    own = [t[pd.MultiIndex.from_frame(t[keys]).isin(one.intersection(two))] for t in tables]
    return Results(own[0]), Results(own[1])


def ratios(a: Results, b: Results, one: tuple[str, ...], two: tuple[str, ...] = ()) -> str:
    """The geometric mean over pairs of a figure of `b` over one of `a`; pairs better and worse."""
    found = [b.of(p).geometric(*(two or one)) / a.of(p).geometric(*one) for p in a.pairs]
    known = np.array([ratio for ratio in found if not math.isnan(ratio)])
    if not len(known):
        return NONE
    better, worse = (known < 0.99).sum(), (known > 1.01).sum()  # by over 1 %
    return f"{np.exp(np.log(known).mean()):.3f} ({better} better, {worse} worse of {len(known)})"


def sides(a: Results, b: Results, *figure: str) -> tuple[str, ...]:
    """The means over pairs of a figure before and after."""
    found = [[r.of(pair).share(*figure).mean for pair in r.pairs] for r in (a, b)]
    known = [np.array([v for v in values if not math.isnan(v)]) for values in found]
    return tuple(f"{values.mean():.3f}" if len(values) else NONE for values in known)


def distances(a: Results, b: Results) -> Iterator[tuple[str, ...]]:
    names = ("distance_geo", "range_distance_geo")
    for method in METHODS:
        yield method, *(ratios(a, b, ("beside", name, "", method)) for name in names)
    yield "nearest, under rules", *(ratios(a, b, ("minimal", name, "free")) for name in names)
    methods = [[("beside", n, "", m) for m in ("simplest", "nearest")] for n in names]
    for word, found in (("before", a), ("after", b)):
        yield f"nearest over simplest, {word}", *(ratios(found, found, *two) for two in methods)
    searches = [[("queries", n, "", m) for m in ("default", "few")] for n in names]
    yield "few queries over default, after", *(ratios(b, b, *two) for two in searches)


def counts(a: Results, b: Results) -> Iterator[tuple[str, ...]]:
    for words, *figure in (
        ("answered without rules", "beside", "answered", "", "nearest"),
        ("… under rules", "minimal", "answered", "free"),
        ("… under an added constraint", "added", "answered"),
        ("a constraint brings a closer answer", "added", "closer"),
        ("… closer by more than 5 %", "added", "closer_5"),
        ("… a worse one, or none, though the earlier complies", "added", "farther_though_obeyed"),
        ("1-minimal without it", "minimal", "minimal", "free"),
        ("1-minimal under it", "added", "minimal"),
    ):
        yield words, a.share(*figure).text, b.share(*figure).text  # type: ignore[arg-type]


def lof(a: Results, b: Results) -> Iterator[tuple[str, ...]]:
    places = {"": "mean", "_50": "median", "_95": "95th percentile"}
    methods = (("real rows", ""), ("best(1)", ""), ("best(1)", "unmarked"))
    for kind, words in (("lof", "in percentiles"), ("range_lof", "over range")):
        real = ("beside", f"{kind}_95", "", "real rows")
        for (method, label), (place, word) in product(methods, places.items()):
            own = ("beside", f"{kind}{place}", label, method)
            within = [f" ({_within(found, own, real)})" for found in (a, b)]
            what = f"{label or 'all'} {method}, {word}, {words}"
            yield what, *map(str.__add__, sides(a, b, *own), within)


def _within(found: Results, own: tuple[str, ...], real: tuple[str, ...]) -> str:
    shares = [[found.of(pair).share(*f).mean for f in (own, real)] for pair in found.pairs]
    known = [x <= 1.2 * y for x, y in shares if not math.isnan(x + y)]
    return f"{sum(known)} of {len(known)} within"


def rest(a: Results, b: Results) -> Iterator[tuple[str, ...]]:
    for name in ("paths", "nearest", "default", "few"):
        yield f"queries per instance, {name}", *sides(a, b, "queries", "rows", "", name)
    yield "… simplest", *sides(a, b, "beside", "queries", "", "simplest")
    for metric, method in product(("changes", "shift_50", "shift_90"), METHODS[:4]):
        yield f"{metric}, {method}", *sides(a, b, "beside", metric, "", method)
    for method in ("nearest", "best(1)"):
        yield f"survives retraining, {method}", *sides(a, b, "survival", "survives", "", method)


def page(a: Results, b: Results) -> str:
    out = [f"Pairs: {len(a.pairs)}; seeds: {a.table['seed'].nunique()}."]
    out += [grid(("after over before", "distance in percentiles", "over range"), distances(a, b))]
    titles = ("Answers, constraints", "LOF, pairs within 1.2 x real rows' 95th", "The rest")
    for title, table in zip(titles, (counts, lof, rest), strict=True):
        out += [f"## {title}", grid(("what", "before", "after"), table(a, b))]
    return "\n\n".join(out)


if __name__ == "__main__":
    print(page(*both(Path(sys.argv[1]), Path(sys.argv[2]))))
