"""Pictures of results: a path, the latent map, the prototypes.

Every function draws plain results and returns the matplotlib `Axes`, to be changed, shown or
saved. A colour means a label; the colours suit all common kinds of colour vision, and every label
is also written out.
"""

from __future__ import annotations

try:
    from lapace.plots.fitted import prototypes
    from lapace.plots.latent import latent_map
    from lapace.plots.paths import path
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError("Pictures need matplotlib: pip install 'lapace[plots]'.") from error

__all__ = ["latent_map", "path", "prototypes"]
