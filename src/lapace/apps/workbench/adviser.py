"""Pages for the adviser: the fit report, the prototypes, and the rows of the file by groups."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from lapace import plots
from lapace.apps.cohorts import Cohort, group_names
from lapace.apps.workbench.access import PATH
from lapace.apps.workbench.session import DRAWING, Shared
from lapace.budget import current
from lapace.explainer import Search
from lapace.table import read

__all__ = ["add_pages", "cohort_body", "prototypes_body", "report_body"]

ROWS = 100  # rows of the file that a cohort takes
PART = 10  # of them that are explained at a time
LINKS = (("report", "Fit report"), ("prototypes", "Prototypes"), ("cohort", "Cohort"))


def add_pages(shared: Shared, run: Callable[..., Awaitable[Any]], head: str, icon: str) -> None:
    """Adds the adviser's pages to NiceGUI's.

    Args:
        shared: What all visitors share.
        run: Runs a call in the server's queue: `run(call, holder)`.
        head: What goes into each page's head.
        icon: Its icon.
    """

    @ui.page("/adviser", title="For advisers: the fit report", favicon=icon)
    @ui.page("/adviser/report", title="For advisers: the fit report", favicon=icon)
    def report() -> None:
        ui.add_head_html(head)
        with _frame("report"):
            _html(report_body(shared))

    @ui.page("/adviser/prototypes", title="For advisers: prototypes", favicon=icon)
    async def prototypes() -> None:
        ui.add_head_html(head)
        with _frame("prototypes"):
            _html(await run(lambda: prototypes_body(shared), "adviser"))

    @ui.page("/adviser/cohort", title="For advisers: cohort", favicon=icon)
    def groups() -> None:
        ui.add_head_html(head)
        with _frame("cohort"):
            _cohort_form(shared, run)


def _frame(here: str) -> ui.element:
    """The head of a page, and where its content goes."""
    links = "".join(
        f'<a href="{PATH}/adviser/{name}"{" aria-current=page" if name == here else ""}>{title}</a>'
        for name, title in LINKS
    )
    with ui.element("header").classes("top"):
        _html(
            f'<div class="brand"><a href="{PATH}/">← To the page</a></div>'
            f'<nav class="tabs" aria-label="Adviser">{links}</nav>'
        )
    return ui.element("div").classes("adviser")


def _html(text: str) -> ui.html:
    """Trusted HTML: everything in it that comes from data is escaped where it is made."""
    return ui.html(text, sanitize=False)


def report_body(shared: Shared) -> str:
    """The fit report."""
    return f"<h1>Fit report</h1>{_paper(shared.explainer.report_.to_html())}"


def _paper(body: str) -> str:
    """A part with colours of its own, which are for a light page."""
    return f'<div class="paper" tabindex="0">{body}</div>'


def prototypes_body(shared: Shared) -> str:
    """The prototypes as a picture, and as a table."""
    explainer, schema = shared.explainer, shared.explainer.schema_
    os.environ.setdefault("MPLBACKEND", "Agg")
    with DRAWING:
        picture = plots.svg(plots.prototypes(explainer))
    intro = (
        "<h1>Prototypes</h1><p>The typical cases of each decision that paths lead to, and how sure "
        "the classifier is of each.</p>"
        f'<figure role="img" aria-label="The prototypes of each decision">{picture}</figure>'
    )
    if schema.shape is not None:
        return intro
    head = "".join(f"<th>{escape(str(p.label))} {p.number}</th>" for p in explainer.prototypes_)
    rows = "".join(
        f"<tr><th>{escape(feature.name)}</th>"
        + "".join(f"<td>{escape(feature.text(p.cells[i]))}</td>" for p in explainer.prototypes_)
        + "</tr>"
        for i, feature in enumerate(schema.features)
    )
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f'{intro}<div class="wide" tabindex="0" role="region" aria-label="All values">{table}</div>'
    )


def _cohort_form(shared: Shared, run: Callable[..., Awaitable[Any]]) -> None:
    count = min(len(shared.names), ROWS)
    _html(
        "<h1>Cohort</h1><p>What has to change for the rows of the file, at what cost, and who gets "
        "no answer; compared between groups.</p>"
    )
    if not count:
        _html("<p>There is no file of rows: start with <code>--instances FILE</code>.</p>")
        return
    names = shared.schema.names if shared.schema.shape is None else ()
    with ui.element("div").classes("line"):
        _html('<label for="by">Compare by</label>')
        chosen = ui.element("select").props("id=by")
        with chosen:
            ui.element("option").props('value=""')._text = "all in one group"
            for k, name in enumerate(names):
                ui.element("option").props(f'value="{k}"')._text = name
        button = ui.element("button").classes("primary")
        with button:
            start = ui.element("span")
            start._text = f"Explain {count} rows"
    status = ui.element("p").props('role="status"').classes("quiet")
    place = _html("")
    by: list[str | None] = [None]

    def choose(event: GenericEventArguments) -> None:
        value = str(event.args)
        by[0] = names[int(value)] if value.isdecimal() and int(value) < len(names) else None

    async def compute() -> None:
        _say(status, f"Explaining {count} rows …")
        try:
            place.content = await run(lambda: cohort_body(shared, by[0]), "adviser")
            _say(status, "")
        except Exception as error:
            _say(status, str(error) or "It was not computed.")

    chosen.on("change", choose, js_handler="(event) => emit(event.target.value)")
    button.on("click", compute)


def _say(element: ui.element, text: str) -> None:
    element._text = text
    element.update()


def cohort_body(shared: Shared, by: str | None) -> str:
    """Returns the comparison of groups among the first rows of the file, as time allows."""
    rows, explainer = read(shared.instances), shared.explainer
    total, counted = min(len(rows), ROWS), 0
    compared = Cohort(explainer.schema_, by or "all")
    target = shared.target if shared.target is not None else _target(shared)
    for first in range(0, total, PART):
        explanation = explainer.explain(
            rows.take(range(first, min(first + PART, total))),
            target=target,
            search=Search(picks=("nearest",), n_best=1),
        )
        budget = current()
        if budget is not None and budget.ended:
            break
        compared.add(explanation, group_names(explanation, by))
        counted += len(explanation)
    body = ""
    if counted < total:
        body = (
            f'<p class="notice">Time ended after {counted} of {total} rows. What follows '
            "is about these alone; for all of them use <code>lapace cohort</code>.</p>"
        )
    return body + _paper(compared.to_html_body()) if counted else body


def _target(shared: Shared) -> Any:
    return None if len(shared.explainer.classes_) == 2 else "any-other"
