"""The workbench: a page on which a visitor finds what would have to change, on the server's app.

`serve(explainer)` runs it beside the JSON API, `lapace serve M.lapace --page` does the same;
`serve(explainer, instances, advisers=True)`, or `--advisers --instances FILE`, lists a file's rows
and the fit report too. The pages are NiceGUI's, all assets come from installed packages, and the
visitor's state stays in the browser.

```
columns     columns and rows as the page shows them
limits      a visitor's limits as constraints and costs, and what to loosen
ways        an explanation as cards: names, stops of dials, paths
session     what the page asks and what it gets
access      login, logout, security headers
page        the visitor's page, on NiceGUI, and the fit report for advisers
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from lapace.apps import server
from lapace.apps.workbench.access import PATH
from lapace.apps.workbench.session import Shared
from lapace.classifier import Label
from lapace.errors import InputError
from lapace.explainer import Explainer

__all__ = ["PATH", "add_workbench", "serve"]


def add_workbench(
    app: FastAPI,
    explainer: Explainer,
    instances: Any = None,
    *,
    target: Label | None = None,
    advisers: bool = False,
) -> None:
    """Adds the workbench to an application made with `create_app(..., pages="/workbench")`.

    There can be one in a process.

    Args:
        app: The application.
        explainer: The one it serves.
        instances: Rows to choose from, as a table, for advisers only: everyone who may open the
            page can see them. Without any, visitors fill in a form.
        target: The label that visitors want, as a rule; each may choose another.
        advisers: Whether the page is for advisers: they see the instances and the fit report.
    """
    try:
        from lapace.apps.workbench.page import add_pages
    except ImportError as error:
        raise ImportError("The page needs nicegui: pip install 'lapace[workbench]'.") from error
    if target is not None and target not in list(explainer.classes_):
        known = ", ".join(map(repr, explainer.classes_))
        raise InputError(f"target is {target!r}, which is none of the labels: {known}.")
    if explainer.schema_.shape is not None:
        raise InputError("The page is about rows of a table, and this explainer is about images.")
    add_pages(app, Shared(explainer, instances, target, advisers))


def serve(
    explainer: Explainer,
    instances: Any = None,
    *,
    target: Label | None = None,
    advisers: bool = False,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    **settings: Any,
) -> None:
    """Serves the workbench and the JSON API until it is interrupted.

    Args:
        explainer: A fitted one.
        instances: As in `add_workbench`.
        target: As in `add_workbench`.
        advisers: As in `add_workbench`.
        host: As in `server.serve`.
        port: As in `server.serve`.
        ready: As in `server.serve`.
        settings: Others of `server.serve`.
    """
    app = server.make_app(explainer, host=host, pages=PATH, **settings)
    add_workbench(app, explainer, instances, target=target, advisers=advisers)
    server.run(app, host=host, port=port, ready=ready)
