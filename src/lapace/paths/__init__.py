r"""LAPACE: straight latent lines, decoded, and the steps that matter on them.

Algorithm 1 of the paper, for many instances at once: $z_\tau = (1 - \tau) z_x + \tau \mu_c$, decoded.
`Decoder` turns latent points into rows of the table, anchored at the instance so that a path begins
where they stand. `trace` walks all lines, asks a `Judge` about the rows, and finds where the last
unbroken run of good rows begins. What makes a row good, neither of them knows.
"""

from lapace.paths.decoder import Decoder, Start, block_states, states_of
from lapace.paths.walking import Judge, Lines, Steer, Steps, Traced, differ, trace

__all__ = [
    "Decoder",
    "Judge",
    "Lines",
    "Start",
    "Steer",
    "Steps",
    "Traced",
    "block_states",
    "differ",
    "states_of",
    "trace",
]
