"""Access to the page: login, logout, and the headers that restrict what a browser may do."""

from __future__ import annotations

from html import escape
from importlib import resources
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PATH", "POLICY", "PageHeaders", "add_login"]

PATH = "/workbench"
MAX_LOGIN = 10_000  # bytes
SESSION = 12 * 3600  # seconds that a browser stays logged in
# NiceGUI writes scripts and styles into its page, and Vue compiles templates there: both need the
# `unsafe` words. Everything else is shut, and no foreign origin is named.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "frame-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
LOGIN_POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


class PageHeaders:
    """Gives responses under the page's path the policy that its scripts need.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(f"{PATH}/"):
            await self.app(scope, receive, send)
            return

        secure = "https" in (scope["scheme"], Headers(scope=scope).get("x-forwarded-proto"))

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = LOGIN_POLICY if path == LOGIN else POLICY
                # With `no-referrer` a browser says that a form's origin is null.
                headers["Referrer-Policy"] = "same-origin"
                if secure and "set-cookie" in headers:
                    headers["set-cookie"] += "; secure"
            await send(message)

        await self.app(scope, receive, send_with_policy)


LOGIN = f"{PATH}/login"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in</title><link rel="stylesheet" href="{path}/theme.css"></head>
<body class="login"><main>
<h1>Log in</h1>
<p>Enter the access code you were given. It stays in this browser for half a day.</p>
<form method="post" action="{path}/login">
<label for="token">Access code</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
{problem}
<button class="primary">Log in</button>
</form></main></body></html>
"""


def add_login(app: FastAPI) -> None:
    """Adds the login, the logout, the headers, and redirects from `/` to the page."""
    _add_middleware(app)
    # It is needed before anyone is logged in, so it lies beside the login and not behind it.
    style = resources.files(__package__).joinpath("theme.css").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    @app.get(PATH, include_in_schema=False)
    async def home() -> Response:
        return RedirectResponse(f"{PATH}/", 307)

    @app.get(f"{PATH}/theme.css", include_in_schema=False)
    async def theme() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get(LOGIN, include_in_schema=False)
    async def login_page() -> Response:
        if app.state.tokens is None:
            return RedirectResponse(f"{PATH}/", 303)
        return _login_page("")

    @app.post(LOGIN, include_in_schema=False)
    async def login(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_LOGIN:
                return _login_page("This is too long.", 413)
        code = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        name = None if app.state.tokens is None else app.state.tokens.find(code)
        if name is None:
            return _login_page("This access code is not known.", 401)
        request.session["client"] = name
        return RedirectResponse(f"{PATH}/", 303)

    @app.post(f"{PATH}/logout", include_in_schema=False)
    async def logout(request: Request) -> Response:
        request.session.clear()
        return RedirectResponse(LOGIN, 303)


def _login_page(problem: str, status: int = 200) -> Response:
    shown = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    return HTMLResponse(PAGE.format(path=PATH, problem=shown), status)


def _add_middleware(app: FastAPI) -> None:
    """Adds the headers, and signed sessions that end when a token changes."""
    if app.state.tokens is not None:
        app.add_middleware(
            SessionMiddleware,
            secret_key=app.state.tokens.secret,
            session_cookie="lapace_session",
            max_age=SESSION,
            same_site="strict",
        )
    app.add_middleware(PageHeaders)
