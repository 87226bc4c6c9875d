"""Pages that are not written here: notebooks, and Markdown files that lie elsewhere.

A notebook becomes a page of its cells and of the outputs stored in it, in the site's own style and
without a script. The test of the notebooks runs them and compares those outputs.
"""

import json
import os
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "research/advice.md": "benchmarks/results/advice.md",
}
EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with all files of the site."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook(json.loads(file.content_string), Path(file.src_uri).name)
        uri = file.src_uri.replace(".ipynb", ".md")
        files.append(File.generated(config, uri, content=page))
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


def notebook(cells: dict[str, Any], name: str) -> str:
    """A notebook as Markdown, its title first."""
    parts = [_cell(cell) for cell in cells["cells"]]
    parts.insert(1, f"This page is a notebook: [download it]({name}) and run it.")
    return "\n\n".join(parts) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    alt = cell["metadata"].get("alt", "")
    outputs = [_output(output, alt) for output in cell["outputs"]]
    return "\n\n".join([f"```python\n{source}\n```", *outputs])


def _output(output: dict[str, Any], alt: str) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        picture = "".join(data["image/png"]).strip()
        image = f'<img alt="{escape(alt)}" src="data:image/png;base64,{picture}">'
        return f'<div class="output">{image}</div>'
    if "text/html" in data:
        html = re.sub(r"\n\s*", "\n", "".join(data["text/html"])).replace("\n\n", "\n")
        return f'<div class="output" tabindex="0">{html}</div>'
    return f"```text\n{''.join(data['text/plain'])}\n```"
