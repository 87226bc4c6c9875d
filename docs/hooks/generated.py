"""Pages that are not written here, but are Markdown files that lie elsewhere."""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "research/advice.md": "benchmarks/results/advice.md",
}
EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with all files of the site."""
    for uri, source in SOURCES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=relinked(text, uri)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page: the empty corner of a table is no header."""
    return EMPTY_HEADER.sub(r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Called by mkdocs with every finished page: names the theme's dialog for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search the pages"')


def relinked(text: str, uri: str) -> str:
    """The text of a file of the repository, with its links to pages of the site.

    Links to other files stay as text, since the site does not have them.
    """

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        if not target.startswith("docs/"):
            return words
        return f"[{words}]({os.path.relpath(target[len('docs/') :], Path(uri).parent)})"

    return LINK.sub(link, text)
