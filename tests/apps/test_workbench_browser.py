"""The workbench end to end, in a real Chromium, at the widths of a laptop and of a phone.

`LAPACE_SCREENSHOTS=folder` keeps what was seen; `LAPACE_PICTURES=folder` makes the pictures of the
documentation anew.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import pytest
from test_server import until
from test_server_under_fire import free_port, nginx

from lapace import Explanation

pytestmark = pytest.mark.needs("browser")

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).parent / "workbench_server.py"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
LAPTOP, PHONE = (1280, 800), (390, 844)
PATIENCE = 120_000  # milliseconds: the machine may be busy


@contextmanager
def server(name: str, *settings: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a workbench in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    command = [sys.executable, str(SERVER), name, *(settings or ("0",))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            address = child.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            yield address, child
        finally:
            child.kill()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=which("chromium"), args=[*FLAGS])
        yield chromium
        chromium.close()


class Visitor:
    """One browser window, which notes all that must not happen."""

    def __init__(self, browser, address, size, **settings):
        self.address = address
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce", **settings
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.width = size[0]
        self.errors, self.foreign, self.sent, self.replies = [], [], [], []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)
        self.page.on("websocket", self._listen)

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _request(self, request):
        if not request.url.startswith((self.address, "data:", "blob:", "about:")):
            self.foreign.append(request.url)

    def _listen(self, socket):
        socket.on("framesent", self._frame)
        socket.on("framereceived", self._reply)

    def _reply(self, data):
        if re.search(r"kind\W+explain", str(data)):
            self.replies.append(str(data))

    def _frame(self, data):
        if '"event"' in str(data):  # what the page asks; others keep the connection alive
            self.sent.append(str(data))

    def open(self, path="/"):
        self.page.goto(self.address + path)

    def settled(self):
        """Waits until the page is no longer busy."""
        self.page.wait_for_selector('.bench[aria-busy="false"]')
        self.page.wait_for_function(
            "() => !/moment|ing …|ing the/.test(document.querySelector('.state').innerText)"
        )

    @property
    def cards(self):
        return self.page.locator("article.card")

    def unfold(self):
        """On a phone the limits are folded away at first."""
        fold = self.page.locator("#limits .fold")
        if fold.is_visible() and fold.get_attribute("aria-expanded") == "false":
            fold.click()

    def look(self, name):
        """Keeps a picture where one is wanted, and looks for accessibility faults."""
        from axe_playwright_python.sync_playwright import Axe

        if folder := os.environ.get("LAPACE_SCREENSHOTS"):
            self.page.screenshot(path=f"{folder}/{name}-{self.width}.png", full_page=True)
        found = Axe().run(self.page).response["violations"]
        serious = [
            (fault["id"], [node["html"][:120] for node in fault["nodes"][:3]])
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]
        assert not serious, serious
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert self.page.evaluate(wide) <= 0, "the page is wider than the screen"

    def picture(self, name):
        """Makes the picture of the documentation anew, where that is wanted."""
        if folder := os.environ.get("LAPACE_PICTURES"):
            self.page.screenshot(path=f"{folder}/{name}")

    def close(self):
        assert not self.errors, self.errors
        assert not self.foreign, self.foreign
        self.context.close()


def test_a_visitor_finds_keeps_and_prints_a_plan(browser):
    with server("loans") as (address, _):
        for size, colours in ((LAPTOP, "light"), (PHONE, "dark")):
            visitor = Visitor(browser, address, size, color_scheme=colours)
            visitor.open()
            visitor.cards.first.wait_for()
            visitor.settled()
            verdict = visitor.page.locator(".verdict")
            assert "denied" in verdict.inner_text()
            assert "approved" in verdict.locator(".wanted option:checked").inner_text()
            visitor.look("loans")
            _see_the_limits(visitor)
            visitor.picture("workbench.png" if size == LAPTOP else "workbench-phone.png")
            _move_the_dial(visitor)
            _keep_and_compare(visitor)
            _keep_the_job(visitor)
            _print(visitor)
            _try_values(visitor)
            _values_that_cannot_be(visitor)
            _limits_that_cannot_hold(visitor)
            _reload(visitor)
            _adviser(visitor)
            visitor.close()


def _see_the_limits(visitor):
    """No box scrolls inside the page, and on a laptop the first screen has the limits."""
    boxes = visitor.page.evaluate(
        """() => [...document.querySelectorAll('.bench aside, .bench aside *')]
            .filter((box) => box.scrollHeight > box.clientHeight + 1)
            .filter((box) => /auto|scroll/.test(getComputedStyle(box).overflowY)).length"""
    )
    assert boxes == 0
    if visitor.width == LAPTOP[0]:
        limits = visitor.page.locator(".limit .toggle")
        ends = [
            limit.bounding_box()["y"] + limit.bounding_box()["height"] for limit in limits.all()
        ]
        assert len(ends) == 12
        assert max(ends) <= LAPTOP[1]


def _move_the_dial(visitor):
    """At once, in the browser: nothing is asked of the server."""
    card, asked = visitor.cards.first, len(visitor.sent)
    dial = card.locator(".dial input")
    dial.focus()
    dial.press("Home")
    assert "denied" in card.locator(".flip").inner_text()
    assert "as it is today" in card.inner_text()
    seen = set()
    for _ in range(int(dial.get_attribute("max"))):
        dial.press("ArrowRight")
        assert "approved" in card.locator(".flip").inner_text()
        seen.add(card.locator(".changes").inner_text())
        count = card.locator(".changes li").count()
        assert f"· {count} change" in card.locator(".head .quiet").first.inner_text()
        if "only just" in card.locator(".flip").inner_text():
            assert not card.locator(".badge").count()
            assert "Likely to last" not in card.inner_text()
    assert len(seen) > 1
    assert len(visitor.sent) == asked


def _keep_the_job(visitor):
    """A limit is obeyed, and the page says at once, before any reply, that it is at work."""
    visitor.unfold()
    button = visitor.page.get_by_role("button", name="Keep Employment as it is")
    turns = visitor.page.evaluate(
        """async (button) => {
            let turns = 0;
            const state = document.querySelector('.state');
            button.click();
            while (!/moment|Looking/.test(state.innerText) && ++turns < 99)
                await new Promise((resolve) => setTimeout(resolve, 0));
            return turns;
        }""",
        button.element_handle(),
    )
    assert turns < 5  # of the browser's own loop: no server was asked
    assert button.get_attribute("aria-pressed") == "true"
    visitor.settled()
    assert re.search(
        r'shown\\*":\[\{', visitor.sent[-1]
    )  # ways it may keep are part of the question
    for card in visitor.cards.all():
        assert "Employment" not in card.locator("h3").inner_text()
        assert "Employment" not in card.locator(".changes").inner_text()


def _keep_and_compare(visitor):
    page, card = visitor.page, visitor.cards.first
    dial = card.locator(".dial input")
    dial.focus()
    for stop in (("Home", "ArrowRight"), ("End",)):
        for key in stop:
            dial.press(key)
        card.get_by_role("button", name="Bookmark").click()
    boxes = page.locator(".plans input")
    assert boxes.count() == 2
    for box in boxes.all():
        box.check()
    table = page.locator("table.compare").inner_text()
    assert "approved" in table
    assert "Chance" in table
    follows = [
        re.split(" follows: | → ", line) for line in card.locator(".follow").all_inner_texts()
    ]
    assert follows
    assert all(text in table for line in follows for text in line)
    with page.expect_download() as waited:
        page.get_by_role("button", name="Data file").first.click()
    data = json.loads(Path(waited.value.path()).read_text("utf-8"))
    assert Explanation.from_json(data).status == ("answered",)
    visitor.look("loans-kept")


def _print(visitor):
    page = visitor.page
    visitor.cards.first.get_by_role("button", name="Print").click()
    page.locator("dialog iframe").wait_for()
    letter = page.frame_locator("dialog iframe")
    assert "What would have to change" in letter.locator("h1").inner_text()
    assert "employment" in letter.locator("body").inner_text()
    visitor.look("loans-letter")
    with page.expect_download() as waited:
        page.get_by_role("button", name="Download").click()
    assert waited.value.suggested_filename.endswith(".html")
    page.frame_locator("dialog iframe").locator("body").click()
    page.keyboard.press("Escape")  # also while the letter has the focus
    page.locator("dialog").wait_for(state="detached")
    assert "Letter to print" in page.evaluate("document.activeElement.innerText")


def _try_values(visitor):
    page, card = visitor.page, visitor.cards.first
    card.locator(".dial input").press("Home")
    for expected in ("denied", "approved"):  # today, then at the end of the way
        card.get_by_role("button", name="Try your own values").click()
        page.locator("dialog .flip").wait_for()
        assert expected in page.locator("dialog .flip").inner_text()
        if expected == "denied":
            page.get_by_role("button", name="Close").click()
            card.locator(".dial input").press("End")
    amount = page.get_by_role("dialog").get_by_label("Amount")
    before = page.locator("#try-instalment").input_value()
    amount.fill("20000")
    amount.press("Tab")
    page.wait_for_function(
        "(old) => document.querySelector('#try-instalment').value !== old", arg=before
    )
    visitor.look("loans-try")
    assert page.locator("#try-age").is_disabled()  # by the rules
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    assert "Try your own values" in page.evaluate("document.activeElement.innerText")


def _values_that_cannot_be(visitor):
    """They are refused beside their field and above the form, whatever is scrolled to."""
    page, card = visitor.page, visitor.cards.first
    card.get_by_role("button", name="Try your own values").click()
    page.locator("dialog .flip").wait_for()
    make = page.get_by_role("button", name="Make this my way")
    field = page.locator("dialog .field", has=page.locator("#try-savings"))
    said = page.locator("dialog .outcome .problem")
    for value, words in (
        ("-5", "This must be between"),
        ("", "This is needed."),
        ("1e200", "This number is too large."),
    ):
        page.locator("#try-savings").fill(value)
        make.click()
        field.get_by_text(words).wait_for()
        said.get_by_text("Savings: " + words).wait_for()
        box = said.bounding_box()
        assert box["y"] > 0
        assert box["y"] + box["height"] < page.viewport_size["height"]
        assert page.locator("dialog").count() == 1
    visitor.look("loans-refused")
    page.get_by_role("button", name="Close").click()
    card.locator(".dial input").press("Home")
    card.get_by_role("button", name="Try your own values").click()
    page.locator("dialog .flip.no").wait_for()
    make.click()
    said.get_by_text("This would not lead to “approved”").wait_for()
    page.get_by_role("button", name="Close").click()
    card.locator(".dial input").press("End")
    card.get_by_role("button", name="Try your own values").click()
    page.locator("dialog .flip.yes").wait_for()
    make.click()
    page.locator("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.id") == "ways"
    assert visitor.cards.count() == 1
    assert "Your own values" in visitor.cards.first.inner_text()
    if visitor.width == LAPTOP[0]:  # one way has the width of three
        shares = [page.locator(part).bounding_box()["width"] for part in ("article.card", "#ways")]
        assert shares[0] > 0.95 * shares[1]
    visitor.look("loans-own-values")
    visitor.unfold()
    page.locator("#limits").get_by_role("button", name="Remove all my limits").click()
    visitor.settled()


def _limits_that_cannot_hold(visitor):
    page = visitor.page
    visitor.unfold()
    page.get_by_text("Write a limit yourself").click()
    for line, sentence in (("incme >= original", "Did you mean 'income'"), ("income => 2", "=> 2")):
        page.locator("#typed").fill(line)
        page.locator("#typed").press("Enter")
        page.locator("#typed-help.problem", has_text=sentence).wait_for()
        assert page.locator("#typed").input_value() == line  # to be mended
    page.get_by_role("button", name="More limits on Savings").click()
    page.locator("#limit-savings .bounds input").last.fill("-5")
    page.locator("#limit-savings .bounds input").last.press("Tab")
    page.locator(".limit .problem", has_text="No known value is within this limit").wait_for()
    page.locator("#limit-savings .bounds input").last.fill("")
    page.locator("#limit-savings .bounds input").last.press("Tab")
    page.locator("#typed").fill("changes <= 0")
    page.get_by_role("button", name="Add").click()
    button = page.get_by_role("button", name="Loosen and search again")
    button.wait_for()
    visitor.look("loans-nothing")
    assert "changes <=" not in page.locator(".empty").inner_text()  # in words
    promised = page.locator(".promise strong").inner_text()
    button.click()
    visitor.cards.first.wait_for()
    visitor.settled()
    changes = visitor.cards.first.locator(".changes li")
    for change in changes.all():
        name = change.locator("span.what").inner_text().split(" ·")[0]
        assert f"{name} {change.locator('.values').inner_text().replace('→', ' → ')}" in promised
    assert promised.count("→") == changes.count()
    if visitor.width == PHONE[0]:  # what is said at the foot of a phone fits it
        page.locator("#you").evaluate("(you) => you.scrollIntoView()")
        pill = page.locator(".pill")
        pill.wait_for()
        pill.evaluate(
            """(pill) => pill.replaceChildren(
                'Today: denied. No way found within these limits. Look ↓')"""
        )
        box = pill.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE[0]


def _reload(visitor):
    """All of it is still there, without a new search."""
    before = visitor.page.locator("#ways").inner_text()
    visitor.sent.clear()
    visitor.page.reload()
    visitor.cards.first.wait_for()
    assert visitor.page.locator(".plans li").count() == 2
    assert visitor.page.locator("#ways .cards").inner_text() in before
    assert not visitor.sent


def _adviser(visitor):
    visitor.page.get_by_role("link", name="For advisers").click()
    visitor.page.get_by_role("heading", name="Fit report").first.wait_for()
    visitor.look("adviser-report")


def test_visitors_fill_in_a_form_and_see_no_one_elses_rows(browser):
    with server("visitors") as (address, _):
        visitor = Visitor(browser, address, LAPTOP)
        page = visitor.page
        visitor.open()
        page.get_by_text("Fill in your details to begin").first.wait_for()
        assert page.locator("#case").count() == 0
        assert page.get_by_role("link", name="For advisers").count() == 0
        assert page.request.get(f"{address}/workbench/report").status == 404
        numbers = {"age": "-5", "dependants": "1", "years_employed": "2", "income": "1500",
                   "savings": "500", "debt_ratio": "0.4", "past_due": "0", "credit_score": "600",
                   "amount": "9000", "months": "48"}  # fmt: skip
        for name, value in numbers.items():
            page.locator(f"#you-{name}").fill(value)
        for name in ("education", "employment", "housing", "guarantor", "purpose"):
            page.locator(f"#you-{name}").select_option(index=1)
        page.locator("#you-months").fill("")
        page.get_by_role("button", name="Show the decision").click()
        page.locator("#you .problem", has_text="This is needed.").wait_for()
        assert page.evaluate("document.activeElement.id") == "you-months"
        page.locator("#you-months").fill("48")
        page.get_by_role("button", name="Show the decision").click()
        page.locator("#you .problem", has_text="too far from the values known").wait_for()
        visitor.look("visitor-form")
        page.locator("#you-age").fill("35")
        page.get_by_role("button", name="Show the decision").click()
        page.locator("#limits").wait_for()
        visitor.settled()
        visitor.look("visitor")
        assert page.locator(".verdict .decision").first.inner_text() in ("denied", "approved")
        assert page.locator("#you .problem").count() == 0
        _forget_during_a_search(visitor)
        visitor.close()


def _forget_during_a_search(visitor):
    """The reply that is on its way does not bring back what is forgotten."""
    page, before = visitor.page, len(visitor.replies)
    page.evaluate(
        """async () => {
            const turn = () => new Promise((resolve) => setTimeout(resolve, 5));
            document.querySelector('.limit .toggle').click();
            while (!/Looking/.test(document.querySelector('.state').innerText)) await turn();
            for (const words of ['Forget everything', 'Forget them']) {
                const buttons = [...document.querySelectorAll('#kept button')];
                buttons.find((button) => button.innerText.startsWith(words)).click();
                await turn();
            }
        }"""
    )
    while len(visitor.replies) == before:
        page.wait_for_timeout(100)
    page.wait_for_timeout(200)
    assert page.locator(".parts.begin").count() == 1
    assert not visitor.cards.count()
    assert "1500" not in page.evaluate("() => Object.values(localStorage).join()")


def test_missing_values_ten_levels_and_a_login(browser):
    with server("clinic", "0", "open-sesame") as (address, _):
        for size in (LAPTOP, PHONE):
            _visit_the_clinic(Visitor(browser, address, size))


def _visit_the_clinic(visitor):
    page = visitor.page
    visitor.open()
    page.wait_for_url("**/workbench/login")
    visitor.look("login")
    page.get_by_label("Access code").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("This access code is not known.").wait_for()
    visitor.errors.clear()  # the browser notes the 401
    page.get_by_label("Access code").fill("open-sesame")
    page.get_by_role("button", name="Log in").click()
    visitor.cards.first.wait_for()
    visitor.settled()
    visitor.look("clinic")

    page.locator("#case").select_option("own")
    page.locator("#you-weight").fill("")
    page.locator("#you-steps_a_day").fill("900")
    page.locator("#you-town").select_option(label="J <town>")
    page.locator("#you-smoker").select_option(label="not known")
    page.locator("#you-joined").fill("2021-03-04")
    page.locator("#you-joined").press("Tab")
    visitor.settled()
    visitor.cards.first.wait_for()
    assert page.locator(".verdict .decision").first.inner_text() == "high"
    visitor.unfold()
    page.get_by_role("button", name="More limits on Town").click()
    for town in "ABCDEFGHI":
        page.locator("#limit-town").get_by_label(f"{town} <town>").uncheck()
    page.get_by_role("button", name="More limits on Steps a day").click()
    page.get_by_role("slider", name="Greatest Steps a day").focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    page.locator("#limit-steps_a_day select").select_option(label="very hard")
    visitor.settled()
    visitor.look("clinic-limits")
    shown = page.locator("#limits").inner_text()
    assert "1 of 10 possible" in shown or "0 of 10 possible" in shown
    assert "very hard" in shown
    page.locator("#target").select_option(label="middle")
    visitor.settled()
    assert "middle" in page.locator(".wanted option:checked").inner_text()
    for card in visitor.cards.all():
        assert "middle" in card.locator(".flip").inner_text()
        assert "Town" not in card.inner_text()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/workbench/login")
    assert page.evaluate("Object.keys(localStorage).filter((k) => /workbench/.test(k)).length") == 0
    visitor.close()


def test_visitors_are_apart_and_a_restart_loses_nothing(browser):
    with server("post") as (address, _):
        one, other = (Visitor(browser, address, LAPTOP) for _ in range(2))
        for visitor in (one, other):
            visitor.open()
            visitor.cards.first.wait_for()
            visitor.settled()
        one.page.locator("#case").select_option("own")
        one.page.locator("#you-weight").fill("123")
        one.page.locator("#you-weight").press("Tab")
        one.settled()
        one.cards.first.get_by_role("button", name="Bookmark").click()
        assert "123" in one.page.content()
        assert "123" not in other.page.locator("#you").inner_text()
        assert other.page.locator(".plans li").count() == 0
        other.page.reload()
        other.cards.first.wait_for()
        assert "123" not in other.page.locator("#you").inner_text()
        other.close()
    port = address.rpartition(":")[2]
    one.page.wait_for_timeout(200)
    with server("post", port):
        one.page.wait_for_function("() => window.did_handshake && window.socket?.connected")
        one.cards.first.wait_for()
        assert one.page.locator("#you-weight").input_value() == "123"
        assert one.page.locator(".plans li").count() == 1
        one.page.locator("#you-weight").fill("150")
        one.page.locator("#you-weight").press("Tab")
        one.settled()
        assert one.cards.count()
        one.page.get_by_role("button", name="Forget everything").click()
        one.page.get_by_role("button", name="Keep them").click()
        assert one.page.locator(".plans li").count() == 1
        one.page.get_by_role("button", name="Forget everything").click()
        one.page.get_by_role("button", name="Forget them").click()
        one.page.get_by_text("What you entered is forgotten.").wait_for()
        one.cards.first.wait_for()
        assert one.page.locator(".plans li").count() == 0
        assert one.page.locator("#case").input_value() == "0"
        kept = one.page.evaluate("() => Object.values(localStorage).join()")
        assert '"weight":"150"' not in kept
    one.errors.clear()  # the browser notes that the connection was lost
    one.close()


@pytest.mark.needs("nginx")
def test_the_reverse_proxy_on_the_page_lets_the_websocket_pass(browser, tmp_path):
    port = free_port()
    around = f"server {{ listen 127.0.0.1:{port};\n{{}}}}"
    with (
        server("post") as (address, _),
        nginx(tmp_path, "workbench.md", {"http://127.0.0.1:8000": address}, around),
    ):
        until(lambda: connects(port))
        visitor = Visitor(browser, f"http://127.0.0.1:{port}", PHONE)
        visitor.open("/workbench/")
        visitor.cards.first.wait_for()  # it was asked for and came through the websocket
        visitor.settled()
        assert visitor.sent
        visitor.close()


def connects(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
