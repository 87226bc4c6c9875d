"""The whole path of an instance as an image for a letter, and the same in words."""

from __future__ import annotations

import re

from lapace.result import InstanceExplanation

__all__ = ["path_picture"]

WIDTH = 8.0  # inches of a picture that a page shows on about seven

# What the picture says to those who know the field, and what to those who do not: whole sentences
# and headings, so that no value is touched.
PLAIN = {
    r"^instance$": "now",
    r"^best answer$": "the first way",
    r"^at the flip$": "at the turn",
    r"^probability of ": "how sure of ",
    r"^also changed at the flip": "also changed at the turn",
    r"^changed only after the flip$": "changed only after the turn",
    r"^Instance (.+), on the path to (?:prototype \d+|a sampled endpoint): the decision flips": (
        r"Case \1, on the way to a typical case: the decision turns"
    ),
    r"^No step of this path is valid and feasible;": "No step of this way leads there;",
}


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
    drawn = plots.path(instance, width=WIDTH)
    for text in drawn.texts:
        said = text.get_text()
        for word, plain in PLAIN.items():
            said = re.sub(word, plain, said)
        text.set_text(said)
    return plots.svg(drawn), sentence
