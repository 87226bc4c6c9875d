"""Pictures of results: a path, groups compared, the latent map, the prototypes.

Every function draws plain results and returns the matplotlib `Axes` (`cohort` a `Figure`), to be
changed, shown or saved. A colour means a label; the colours suit all common kinds of colour vision,
and every label is also written out.
"""

from __future__ import annotations

try:
    from lapace.plots.cohorts import cohort
    from lapace.plots.fitted import prototypes
    from lapace.plots.latent import latent_map
    from lapace.plots.paths import path
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError("Pictures need matplotlib: pip install 'lapace[plots]'.") from error

__all__ = ["cohort", "latent_map", "path", "prototypes"]
