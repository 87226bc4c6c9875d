"""Credentials of a classifier's address: no message, file, log or result repeats them."""

from __future__ import annotations

import logging
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_cli_outputs import here as here  # noqa: PLC0414  a fixture
from test_cli_outputs import small
from test_loaders import zip_members
from test_remote import server as server  # noqa: PLC0414  a fixture
from typer.testing import CliRunner

from lapace.apps.cli.commands import app
from lapace.apps.loaders import load_classifier, refer_to, remote
from lapace.apps.loaders.addresses import TOKEN, hide_addresses, without_secrets
from lapace.errors import LapaceError

# Whatever a person may have for a password, marked so that it is in no message by chance.
SECRETS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
).map(lambda text: f"Zq{text}qZ{text}Qz")
MARK = "Zq"
AWKWARD = [
    f"Zq-{text}-secret" for text in ("a/b", "#", "?", "@", "%2F", ":8/", "\x1b[31m", " ", "'")
]


def awkward(function):
    """The same test with secrets that URLs and messages trip over."""
    for secret in AWKWARD:
        function = example(secret)(function)
    return function


def addresses(secret: str) -> list[str]:
    """The secret everywhere an address may have one, quoted as it should be and as it is typed."""
    found = []
    for text in (secret, quote(secret, safe="")):
        found += [
            f"http://me:{text}@127.0.0.1:1/predict",
            f"https://{text}:x@127.0.0.1:1/predict",
            f"http://{text}@127.0.0.1:1/predict",
            f"http://me:{text}@127.0.0.1:1/predict?api_key={text}&v=2",
            f"http://127.0.0.1:1/predict?api_key={text}",
            f"http://127.0.0.1:1/predict#{text}",
            f"htp://me:{text}@127.0.0.1/predict",
            f"http:/me:{text}@127.0.0.1/model.onnx",
            f"me:{text}@127.0.0.1",
        ]
    return found


def said(call) -> str:
    """What a call says when it refuses, its causes included; else what it returns, as text."""
    try:
        return repr(call())
    except LapaceError as error:
        return f"{error} {error.__cause__!r}"


@given(SECRETS)
@awkward
def test_no_address_is_repeated_with_its_credentials(secret):
    for url in addresses(secret):
        shown = [without_secrets(url), said(lambda url=url: load_classifier(url))]
        shown += [
            said(lambda url=url: refer_to("m.lapace", url)),
            hide_addresses(f"'{url}'", [url]),
        ]
        assert not [text for text in shown if MARK in text], url


@pytest.mark.parametrize("body", ["you sent {}", '{{"labels": [["{}"]]}}'])
@pytest.mark.parametrize("status", [200, 403, 503])
def test_what_a_service_says_is_quoted_only_where_no_credentials_were_sent(
    body, status, server, monkeypatch
):
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    text = body.format("Zq-secret")
    server.reply = lambda rows: (status, text)
    row = small()[0].head(1)
    if status != 200:
        assert MARK in said(lambda: load_classifier(server.url).predict(row))
    for url in (
        server.url.replace("http://", "http://me:Zq-secret@"),
        f"{server.url}?key=Zq-secret",
    ):
        message = said(lambda url=url: load_classifier(url).predict(row))
        assert server.url in message
        assert MARK not in message
    monkeypatch.setenv(TOKEN, "Zq-secret")
    assert MARK not in said(lambda: load_classifier(server.url).predict(row))


def test_requests_are_logged_without_credentials(server, caplog):
    url = server.url.replace("http://", "http://me:Zqsecret@") + "?api_key=Zqkey"
    with caplog.at_level(logging.DEBUG), suppress(LapaceError):
        load_classifier(url).predict(small()[0].head(1))
    assert "HTTP Request: POST" in caplog.text
    assert MARK not in caplog.text


# --- the command line ----------------------------------------------------------------------------


def run(*words):
    """Everything a command prints."""
    found = CliRunner().invoke(app, [*map(str, words)], prog_name="lapace")
    return found.stdout + found.stderr


@pytest.mark.parametrize("secret", ["Zqplain", *AWKWARD])
def test_no_command_prints_a_secret(secret, here, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    for url in addresses(secret)[:: 3 if secret != "Zqplain" else 1]:
        shown = run("explain", "m.lapace", "instances.csv", "--classifier", url)
        shown += run("explain", "m.lapace", url)
        shown += run("explain", "m.lapace", "instances.csv", url)
        shown += run("explain", "m.lapace", "instances.csv", "-o", url)
        shown += run("report", "m.lapace", f"--classifier={url}")
        shown += run("serve", "m.lapace", f"--port={url}")
        assert MARK not in shown, url


def test_the_closing_hint_of_fit_has_no_secret(here, server):
    server.reply = lambda rows: {"labels": ["no" if r["a"] < r["b"] else "yes" for r in rows]}
    small()[0].to_csv("train.csv", index=False)
    url = server.url.replace("http://", "http://me:Zqsecret@") + "?api_key=Zqkey"
    shown = run("fit", "train.csv", "--classifier", url, "-o", "other.lapace")
    assert f"--classifier {server.url}" in shown
    assert MARK not in shown
    kept = b"".join(zip_members(here / "other.lapace").values())
    assert server.url.encode() in kept
    assert b"Zqsecret" not in kept
    assert b"Zqkey" not in kept
