"""All results as one self-contained HTML page: no script, no font, no file from elsewhere.

The page is the Markdown of every experiment, with pictures where the Markdown has a mark for one.
Only what our own Markdown uses is understood: headings, paragraphs, lists, tables, bold, emphasis,
code and links.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from html import escape

__all__ = ["html", "image", "page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1d2a33; --paper: #ffffff; --soft: #5f6f7a;
  --edge: #d5dbe0; --shade: #f4f6f8; --ours: #00796b; --papers: #8a5a00; --theirs: #3b6ea8;
  --missed: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf1; --paper: #14191d; --soft: #9aa8b2;
  --edge: #36424b; --shade: #1d252b; --ours: #4db6a4; --papers: #d9a441; --theirs: #7fb0e6;
  --missed: #ff8a80; } }
body { background: var(--paper); color: var(--ink); margin: 0 auto; padding: 1.5rem;
  max-width: 76rem; font: 16px/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; margin: 2rem 0 .6rem; }
h1 { border-top: 1px solid var(--edge); padding-top: 1.4rem; }
h1:first-of-type { border: 0; padding: 0; }
p, li { max-width: 50rem; }
a { color: var(--theirs); }
code { background: var(--shade); padding: .1em .3em; border-radius: 3px; font-size: .9em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--edge); padding: .28rem .6rem; text-align: left; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td:first-child { white-space: nowrap; }
td b { color: var(--ours); }
b.missed { color: var(--missed); }
.pictures { display: flex; flex-wrap: wrap; gap: 1.2rem 2rem; margin-top: 1.2rem; }
svg, img { max-width: 100%; height: auto; }
img { background: #ffffff; border-radius: 6px; }
""".strip()

IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
PICTURE = re.compile(r"<!-- picture: (\w+) -->")


def page(title: str, parts: Mapping[str, str], pictures: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        title: Of the page.
        parts: Markdown, by the name it is linked by, in order.
        pictures: HTML that replaces `<!-- picture: name -->`; a mark without one is left out.

    Examples:
        >>> text = page("Results", {"e9": "# Nine"}, {})
        >>> text.startswith("<!doctype html>"), '<h1 id="e9">Nine</h1>' in text
        (True, True)
    """
    body = []
    for name, text in parts.items():
        made = html(text, pictures)
        body.append(made.replace("<h1>", f'<h1 id="{escape(name)}">', 1))
    links = " · ".join(
        f'<a href="#{escape(name)}">{escape(_title(text))}</a>' for name, text in parts.items()
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<p>{links}</p>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def image(data: bytes, words: str) -> str:
    """A PNG inside the page.

    Examples:
        >>> image(b"x", "a picture")
        '<img alt="a picture" src="data:image/png;base64,eA=="/>'
    """
    text = base64.b64encode(data).decode()
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{text}"/>'


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


def html(text: str, pictures: Mapping[str, str] | None = None) -> str:
    r"""Our Markdown as HTML.

    Examples:
        >>> html("# A\n\nTwo *words* & **more**.")
        '<h1>A</h1>\n<p>Two <em>words</em> &amp; <b>more</b>.</p>'
        >>> html("- one\n- two")
        '<ul><li>one</li><li>two</li></ul>'
        >>> html("| a | b |\n| --- | --- |\n| 1 | **2** |").count("<td>")
        2
    """
    found = []
    for block in re.split(r"\n{2,}", text.strip()):
        mark = PICTURE.fullmatch(block.strip())
        if mark:
            found.append((pictures or {}).get(mark[1], ""))
        elif block.startswith("#"):
            level = len(block) - len(block.lstrip("#"))
            found.append(f"<h{level}>{_inline(block.lstrip('# '))}</h{level}>")
        elif block.startswith("|"):
            found.append(_table(block))
        elif block.startswith("- "):
            items = re.split(r"\n(?=- )", block)
            listed = "".join(f"<li>{_inline(item[2:])}</li>" for item in items)
            found.append(f"<ul>{listed}</ul>")
        elif block.strip():
            found.append(f"<p>{_inline(block)}</p>")
    return "\n".join(part for part in found if part)


def _table(block: str) -> str:
    rows = [
        [cell.strip() for cell in line.strip()[1:-1].split(" | ")] for line in block.splitlines()
    ]
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows[2:]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _inline(text: str) -> str:
    text = IMAGE.sub("", text)  # a file of its own, which one page cannot bring along
    text = escape(text.replace("\n", " "), quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    text = text.replace("<b>missed</b>", '<b class="missed">missed</b>')
    text = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', text)
