"""Formulas as MathML, made when the pages are built: browsers draw it themselves, no script."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves in a page for each formula.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page."""
    return FORMULA.sub(_drawn, html)


def _drawn(found: re.Match[str]) -> str:
    tag, formula = found[1], unescape(found[2])
    return convert(formula, display="block" if tag == "div" else "inline")
