"""The documentation as it is built: complete, without a broken link, and readable in a browser.

`LAPACE_SCREENSHOTS=folder` keeps a picture of every page, at the widths of a laptop and a phone.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from html import unescape
from shutil import which
from types import FunctionType
from urllib.parse import unquote

import pytest

import lapace
from tests.processes import ROOT, python, served

LAPTOP, PHONE = (1280, 900), (390, 844)
PATIENCE = 180_000  # milliseconds: the machine may be busy
# One page of each kind is searched for accessibility faults; all are measured.
KINDS = (
    *("", "start/tutorial/", "how-to/report/", "how-to/serving/", "reference/constraints/"),
    *("reference/api/", "research/reproducing/"),
)
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """() => [...document.querySelectorAll('pre > code')]
    .filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => code.innerText.split('\\n').sort((a, b) => b.length - a.length)[0])"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; building it warns of nothing."""
    folder = tmp_path_factory.mktemp("site")
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def html_pages(site):
    """Every page by its address, without those that no link leads to."""
    found = {path.parent.relative_to(site).as_posix(): path for path in site.rglob("index.html")}
    return {"" if name == "." else f"{name}/": path for name, path in sorted(found.items())}


def reference_names() -> list[str]:
    """The public names, and the classes and functions of those that are modules."""
    names = []
    for name in set(lapace.__all__) - {"__version__"}:
        value = getattr(lapace, name)
        inner = getattr(value, "__all__", ()) if inspect.ismodule(value) else ()
        kinds = (type, FunctionType)
        home = value.__name__.removeprefix("lapace.") if inspect.ismodule(value) else name
        names += [home, *(f"{home}.{n}" for n in inner if isinstance(getattr(value, n), kinds))]
    return names


def test_the_reference_has_every_public_name(site):
    reference = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in reference_names() if f'id="lapace.{name}"' not in reference] == []


def test_no_link_is_broken_and_nothing_comes_from_elsewhere(site):
    pages = html_pages(site)
    assert len(pages) > 25
    texts = {page: page.read_text(encoding="utf-8") for page in pages.values()}
    anchors = {page: {"", *re.findall(r'\bid="([^"]+)"', text)} for page, text in texts.items()}
    loads = r'<(?:script|img|source|link)(?![^>]*canonical)[^>]*\b(?:src|href)="(?:https?:)?//'
    broken = [str(page) for page, text in texts.items() if re.search(loads, text)]
    for page, text in texts.items():
        for url in map(unescape, re.findall(r'\b(?:href|src)="([^"]*)"', text)):
            if re.match(r"[a-z]+:", url):
                continue
            path, _, anchor = url.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or unquote(anchor) not in anchors.get(target, {anchor}):
                broken.append(f"{page.relative_to(site)}: {url}")
    assert broken == []


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("currency", "reference/tables/"),
        ("leak", "how-to/prepare-csv/"),
        ("date", "how-to/prepare-csv/"),
        ("missing", "reference/tables/"),
        ("threshold", "how-to/classifiers/"),
    ],
)
def test_search_finds_what_users_look_for(site, word, page):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pattern = re.compile(rf"\b{word}", re.IGNORECASE)
    places = [
        entry["location"]
        for entry in index["docs"]
        if pattern.search(f"{entry['title']} {entry['text']}")
    ]
    assert any(place.startswith(page) for place in places), places


def test_no_escape_of_markdown_is_left_over(site):
    """Such as `\\|`, which some tables showed, or a link that was not one."""
    for name, page in html_pages(site).items():
        text = page.read_text(encoding="utf-8")
        body = text.partition("<article")[2].partition("</article>")[0]
        prose = re.sub(r"<(pre|math|style)\b.*?</\1>", "", body, flags=re.DOTALL)
        prose = unescape(re.sub(r"<[^>]+>", "", prose))
        assert re.findall(r".{0,30}(?:\\\||\]\([\w./#-]+\)).{0,30}", prose) == [], name


@pytest.fixture(scope="module")
def address(site):
    """The site, served."""
    with served(site) as root:
        yield f"{root}/"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        chromium = playwright.chromium.launch(executable_path=which("chromium"), args=flags)
        yield chromium
        chromium.close()


@pytest.mark.needs("browser")
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_every_page_fits_the_screen(site, address, browser, size):
    # Scripts load a search index each time, and are only needed to make wide tables scroll.
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, java_script_enabled=False)
    scripted = browser.new_context(viewport=viewport)
    for one in (context, scripted):
        one.set_default_timeout(PATIENCE)
    page, again, wrong = context.new_page(), scripted.new_page(), []
    for name in html_pages(site):
        page.goto(address + name, wait_until="domcontentloaded")
        if page.evaluate(WIDER) > 0:
            again.goto(address + name, wait_until="load")
            if again.evaluate(WIDER) > 0:
                wrong.append(f"{name or 'home'} is wider than the screen")
        if size == LAPTOP:
            wrong += [f"{name}: {line}" for line in page.evaluate(CUT)]
        if folder := os.environ.get("LAPACE_SCREENSHOTS"):
            file = (name.strip("/") or "home").replace("/", "-")
            page.screenshot(path=f"{folder}/{file}-{size[0]}.png", full_page=True)
    context.close()
    scripted.close()
    assert wrong == []


@pytest.mark.needs("browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(address, browser, scheme):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(
        viewport={"width": LAPTOP[0], "height": LAPTOP[1]},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    for name in KINDS:
        page.goto(address + name)
        for fault in Axe().run(page).response["violations"]:
            if fault["impact"] in ("serious", "critical"):
                nodes = [node["html"][:120] for node in fault["nodes"][:3]]
                faults.append((name, fault["id"], nodes))
    context.close()
    assert faults == []
