r"""LAPACE: latent lines, decoded, and the steps picked from them.

Algorithm 1 of the paper, for many instances at once: $z_\tau = (1 - \tau) z_x + \tau \mu_c$,
decoded. `Decoder` turns latent points into rows of the table, anchored so that a path starts at the
instance itself. `trace` evaluates every line with a function it is handed and finds where the last
unbroken run of ok rows begins; it knows neither classifiers nor constraints. `dense_lines` bends
the lines of images towards the data of the target.
"""

from lapace.paths.decoder import Decoder, EncodedInstances
from lapace.paths.dense import dense_curves, dense_lines
from lapace.paths.steps import Steps, join_rows, rows_differ, take_rows
from lapace.paths.tracing import Correct, Evaluate, Lines, TracedPaths, pairs_of, trace

__all__ = [
    "Correct",
    "Decoder",
    "EncodedInstances",
    "Evaluate",
    "Lines",
    "Steps",
    "TracedPaths",
    "dense_curves",
    "dense_lines",
    "join_rows",
    "pairs_of",
    "rows_differ",
    "take_rows",
    "trace",
]
