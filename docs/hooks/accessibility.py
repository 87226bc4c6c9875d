"""What the site generator leaves wrong for screen readers."""

import re
from typing import Any

EMPTY_HEADER = re.compile(r"<th([^>]*)></th>")


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page: the empty corner of a table is no header."""
    return EMPTY_HEADER.sub(r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Called by mkdocs with every finished page: names the theme's dialog for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search the pages"')
