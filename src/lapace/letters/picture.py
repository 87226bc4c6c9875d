"""The whole path of an instance as an image for a letter, and the same in words."""

from __future__ import annotations

from lapace.result import InstanceExplanation

__all__ = ["path_picture"]


def path_picture(instance: InstanceExplanation) -> tuple[str, str]:
    """The path as an SVG element and a sentence; both empty where there is no path to draw."""
    if instance.status not in ("answered", "none_found") or not instance.prototypes:
        return "", ""
    from lapace import plots

    target = "another decision" if instance.target is None else f"“{instance.target}”"
    sentence = (
        f"How each value changes step by step from the case as it is, decided “{instance.label}”, "
        f"to a typical case decided {target}, and where the decision changes."
    )
    return plots.svg(plots.path(instance)), sentence
