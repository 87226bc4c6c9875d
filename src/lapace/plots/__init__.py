"""Pictures of results, for instances: one path, the latent map, the prototypes, the training.

Every function draws plain results and returns the matplotlib `Axes` or `Figure`, so that it can be
changed, shown or saved. Colour stands for labels; the colours can be told apart by instances who see
few of them, and every label is also written out.
"""

from __future__ import annotations

try:
    from lapace.plots.latent import illustration, latent_map
    from lapace.plots.learned import prototypes, training_curves
    from lapace.plots.paths import path
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError("Pictures need matplotlib: pip install 'lapace[plots]'.") from error

__all__ = ["illustration", "latent_map", "path", "prototypes", "training_curves"]
