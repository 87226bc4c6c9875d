"""The pages: one element that the browser draws, and messages between it and a `Session`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from nicegui import core, ui
from nicegui.events import GenericEventArguments
from starlette.exceptions import HTTPException

from lapace.apps.server.work_queue import WorkQueue
from lapace.apps.workbench import adviser
from lapace.apps.workbench.access import PATH, PageHeaders, add_login
from lapace.apps.workbench.columns import Json
from lapace.apps.workbench.session import Session, Shared
from lapace.budget import Budget, BudgetError, limited
from lapace.errors import ClassifierError, InputError

__all__ = ["WorkError", "WorkbenchElement", "add_pages"]

TITLE = "What would have to change?"
HEAD = f"""
<link rel="stylesheet" href="{PATH}/theme.css">
<meta name="description" content="Find out what would have to change for another decision.">
<script>
try {{
  const theme = localStorage.getItem("lapace-theme");
  if (theme) document.documentElement.dataset.theme = theme;
}} catch (error) {{ /* a browser that keeps nothing */ }}
</script>
"""
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E"
    "%3Crect width='32' height='32' rx='8' fill='%23115e59'/%3E%3Cpath d='M7 23c7 0 5-14 18-14'"
    " fill='none' stroke='white' stroke-width='3' stroke-linecap='round'/%3E"
    "%3Ccircle cx='7' cy='23' r='3' fill='white'/%3E%3C/svg%3E"
)
WAIT = 120.0  # seconds that a page waits for its socket before its session is forgotten
BUSY = "Many are asking at the moment."
FAILED = "Something went wrong here. Try again, or ask an adviser."
GONE = "The caller has gone."
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

    def send(self, text: str) -> None:
        """Hands a reply, as JSON text, to the page."""
        self.run_method("receive", text)


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
    work = Work(app)
    add_login(app)

    @ui.page("/", title=TITLE, favicon=ICON)
    def visitor() -> None:
        ui.add_head_html(HEAD)
        session = Session(shared)
        client = ui.context.client
        asked: dict[str, Budget] = {}

        async def answer(event: GenericEventArguments) -> None:
            message = event.args if isinstance(event.args, dict) else {}
            kind = str(message.get("kind"))
            text = await work.answer(session, message, kind, asked, _holder(client))
            if not client.is_deleted:
                element.send(text)

        element = WorkbenchElement(page, answer)

        def stop() -> None:
            for budget in asked.values():
                budget.cancel()

        client.on_delete(stop)

    adviser.add_pages(shared, work.run, HEAD, ICON)
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
    app.add_middleware(PageHeaders)


def _holder(client: Any) -> str:
    """Returns whose turn a call takes: the token's name or the address, as for requests."""
    scope = (client.environ or {}).get("asgi.scope", {})
    return str(scope.get("lapace.client", ""))


class Work:
    """Runs what pages ask for in the server's own queue, within its budgets.

    Args:
        app: The application.
    """

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.queue: WorkQueue = app.state.work_queue

    def budget(self, kind: str = "") -> Budget:
        """Returns the budget of one message: that of a request, with less time for reasons."""
        limits, share = self.app.state.limits, 0.4 if kind == "whynot" else 0.8
        return Budget(limits["queries"], limits["nodes"], share * self.queue.timeout)

    async def run(self, call: Callable[[], Any], holder: str, budget: Budget | None = None) -> Any:
        """Makes a call in a thread of the queue and returns its result; or raises `WorkError`."""
        budget = budget or self.budget()
        results: list[Any] = []

        def within() -> bytes:
            with limited(budget):
                results.append(call())
            return b""

        try:
            await self.queue.run(within, client=holder, cancel=budget.cancel)
        except HTTPException as error:
            busy = error.status_code == 429
            again = (error.headers or {}).get("Retry-After", "")
            said = f"{BUSY} Try again in {again} seconds." if busy else TOO_LONG
            raise WorkError(said) from None
        except BudgetError:
            raise WorkError("" if budget.ended == GONE else TOO_LONG) from None
        except InputError as error:
            raise WorkError(str(error)) from None
        except ClassifierError as error:
            log.error("The classifier failed. At the level DEBUG the log has its message.")
            log.debug("The classifier failed: %s", error)
            raise WorkError(FAILED) from None
        except Exception:
            log.exception("A page's message failed.")
            raise WorkError(FAILED) from None
        finally:
            self.app.state.metrics.spent(budget.spent_queries, ended=bool(budget.ended))
        return results[0]

    async def answer(
        self, session: Session, message: Json, kind: str, asked: dict[str, Budget], holder: str
    ) -> str:
        """A reply as JSON text; a newer message of a kind ends the one before it."""
        if before := asked.get(kind):
            before.cancel()
        asked[kind] = budget = self.budget(kind)
        try:
            reply = await self.run(lambda: json.dumps(session.answer(message)), holder, budget)
        except WorkError as error:
            failed = {"kind": kind, "id": message.get("id"), "failed": str(error)}
            reply = json.dumps(failed)
        finally:
            if asked.get(kind) is budget:
                del asked[kind]
        return str(reply)


class WorkError(Exception):
    """A page gets no reply; the message says why, and is empty if it no longer waits."""
