"""The page: one element that the browser draws, and messages between it and a `Session`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from nicegui import core, ui
from nicegui.events import GenericEventArguments
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from lapace.apps.workbench.access import PATH, add_login
from lapace.apps.workbench.columns import Json
from lapace.apps.workbench.session import Session, Shared
from lapace.budget import Budget, BudgetError
from lapace.errors import ClassifierError, InputError

__all__ = ["WorkbenchElement", "add_pages"]

TITLE = "What would have to change?"
HEAD = f"""
<link rel="stylesheet" href="{PATH}/theme.css">
<meta name="description" content="Find out what would have to change for another decision.">
"""
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='8' fill='%23115e59'/%3E%3Cpath d='M7 23c7 0 5-14 18-14'"
    " fill='none' stroke='white' stroke-width='3' stroke-linecap='round'/%3E"
    "%3Ccircle cx='7' cy='23' r='3' fill='white'/%3E%3C/svg%3E"
)
REPORT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The fit report</title><link rel="icon" href="{icon}">
<link rel="stylesheet" href="{path}/theme.css"></head>
<body class="adviser"><p><a href="{path}/">← To the page</a></p>
<h1>Fit report</h1><main class="paper" tabindex="0">{report}</main></body></html>
"""
WAIT = 120.0  # seconds that a page waits for its socket before its session is forgotten
BUSY = "Many visitors are asking at the moment. Try again in a few seconds."
FAILED = "Something went wrong here. Try again, or ask an adviser."
TOO_LONG = "This took too long. Try fewer limits, or try again later."

log = logging.getLogger(__name__)


class WorkbenchElement(ui.element, component="workbench.js", esm={"lapace-workbench": "js"}):
    """The visitor's page: one element that the browser draws and whose state it keeps.

    Args:
        page: What it needs to begin with.
        on_message: Called with what the page asks.
    """

    def __init__(self, page: Json, on_message: Callable[[GenericEventArguments], Any]) -> None:
        super().__init__()
        self._props["page"] = page
        self.on("ask", on_message)


def add_pages(app: FastAPI, shared: Shared) -> None:
    """Adds the pages to an application made with `create_app(..., pages="/workbench")`.

    NiceGUI has one set of pages in a process, so there can be one workbench in it.

    Args:
        app: The application.
        shared: What all visitors share.
    """
    if core.app.config.has_run_config:
        raise InputError("This process has a workbench already. Start another process for more.")
    page = shared.page | {"path": PATH, "login": app.state.tokens is not None}
    add_login(app)
    if shared.advisers:
        report = REPORT.format(path=PATH, icon=ICON, report=shared.explainer.report_.to_html())

        @app.get(f"{PATH}/report", include_in_schema=False)
        async def adviser() -> Response:
            return HTMLResponse(report)

    @ui.page("/", title=TITLE, favicon=ICON)
    def visitor() -> None:
        ui.add_head_html(HEAD)
        session = Session(shared)
        client = ui.context.client
        asked: dict[str, Budget] = {}

        async def reply(event: GenericEventArguments) -> None:
            message = event.args if isinstance(event.args, dict) else {}
            text = await answer(app.state, session, message, asked)
            if not client.is_deleted:
                element.run_method("receive", text)

        element = WorkbenchElement(page, reply)

        def stop() -> None:
            for budget in asked.values():
                budget.cancel()

        client.on_delete(stop)

    ui.run_with(
        app,
        mount_path=PATH,
        title=TITLE,
        favicon=ICON,
        language="en-US",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=WAIT,
        message_history_length=20,
        show_welcome_message=False,
        storage_secret=None,
    )
    # Origins are checked before anything comes here; no response may invite other ones.
    core.sio.eio.cors_allowed_origins = []


async def answer(state: State, session: Session, message: Json, asked: dict[str, Budget]) -> str:
    """Returns the reply to a message as JSON text, worked out in the server's own queue.

    Args:
        state: The application's state: its queue, limits and metrics.
        session: The page's session.
        message: What the page asks.
        asked: The budgets of the page's open messages, by kind; a newer one ends the one before.
    """
    kind = str(message.get("kind"))
    if before := asked.get(kind):
        before.cancel()
    share = 0.3 if kind == "whynot" else 0.6  # the reasons come after a search
    seconds = share * state.work_queue.timeout
    asked[kind] = budget = Budget(state.limits["queries"], state.limits["nodes"], seconds)
    try:
        with state.work_queue.place():
            reply: str = await state.work_queue.run(
                lambda: json.dumps(session.answer(message)), budget
            )
            return reply
    except Exception as error:
        said = _sentence(error, replaced=asked.get(kind) is not budget)
        return json.dumps({"kind": kind, "id": message.get("id"), "failed": said})
    finally:
        state.metrics.spent(budget.spent_queries, ended=bool(budget.ended))
        if asked.get(kind) is budget:
            del asked[kind]


def _sentence(error: Exception, *, replaced: bool) -> str:
    """Says why there is no reply; empty where a newer message has ended this one."""
    if isinstance(error, HTTPException):
        return BUSY if error.status_code == 503 else TOO_LONG
    if isinstance(error, BudgetError):
        return "" if replaced else TOO_LONG
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ClassifierError):
        log.error("The classifier failed. At the level DEBUG the log has its message.")
        log.debug("The classifier failed: %s", error)
    else:
        log.error("A page's message failed.", exc_info=error)
    return FAILED
