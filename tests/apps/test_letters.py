"""Letters: one instance's explanation as a page and as text."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from lapace import Explainer, InputError, Schema, letters
from lapace.apps.letters import clauses, wording
from lapace.constraints import parse
from tests import worlds

DAY = dt.date(2024, 12, 31)


def bank(rows):
    return np.where(rows["income"] > 2 * rows["debt"] + 400 * (rows["home"] != "own"), "yes", "no")


@cache
def explanation():
    """Some answered, one infeasible, one malformed, some with the target; one id is markup."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "income": rng.integers(10, 99, 300) * 30,
            "debt": rng.integers(0, 60, 300) * 20,
            "home": rng.choice(["own", "rent"], 300),
            "homeTown": rng.choice(["Bonn", "<b>Ulm</b>"], 300),
        }
    )
    explainer = Explainer(bank, n_prototypes=2, recipe=worlds.QUICK, device="cpu").fit(frame)
    ids = ["<i>x</i>", "a/b", "a b", *range(3, 29), "last"]
    instances = frame.astype({"income": float}).head(30).set_index(pd.Index(ids, name="id"))
    instances.iloc[-1, 0] = np.inf
    return explainer.explain(
        instances,
        target="yes",
        constraints=["fixed homeTown", "debt <= original", "home == original"],
    )


def notes(rows):
    return wording.notes(rows, 0, letters.Words())


def on_one_line(text):
    return re.sub(r"\s+", " ", unescape(text))


def answered():
    return next(i for i in explanation() if i.status == "answered")


class Balance(HTMLParser):
    """Whether every element that is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_a_letter_says_what_the_explanation_says():
    instance = answered()
    found = letters.letter(instance, date=DAY)
    best = explanation()[[instance.position]].best(3)
    assert len(found.ways) == best.ok.sum() >= 1
    changed = [{c.name for c in way.changes} for way in found.ways]
    names = [
        set(text.replace("homeTown", "home town").split(", ")) for text in best.about["features"]
    ]
    assert changed == names
    assert found.fixed == ("home town", "home")
    assert found.limits == ("debt may only go down",)
    change = found.ways[0].changes[0]
    for text in map(on_one_line, (found.html, found.text)):
        for said in (change.before, change.after, "31 December 2024", "not the legal reason"):
            assert said in text


def test_what_is_for_the_file_is_in_the_annex_and_not_in_the_letter(tmp_path):
    instance = answered()
    made = {"Decided with": "forest, sha256 12ab"}
    whole = explanation()[[instance.position]]
    (page,) = letters.write_letters(
        whole, tmp_path, date=DAY, words=letters.Words(sender="A bank"), with_annex=True,
        provenance=made,
    )  # fmt: skip
    sent = page.read_text() + page.with_suffix(".txt").read_text()
    kept = unescape((tmp_path / page.name.replace("letter-", "annex-")).read_text())
    best = whole.best(3)
    usual = f">{100 * best.density[0]:.0f} of 100<"
    figures = (f"{best.effort[0]:.3f}", usual)
    for text in (*whole.constraints, "sha256 12ab", whole.reason[0], *figures):
        assert text in kept
        assert text not in unescape(sent)
    assert np.isnan(best.survival).all()
    assert np.isnan(best.probability).all()
    assert "<td>–</td>" in kept, "a figure that is not known is a dash"
    assert not re.search(r"\bnan\b", kept + sent)
    assert "<svg" in kept
    assert "<svg" not in sent
    first = best.about["features"].iloc[0].split(", ")
    assert all(f"<!-- {name} -->" in kept for name in first), "the picture has what changes"
    for part in ("A bank", "Dear Sir or Madam,"):
        assert part in sent
    balance = Balance()
    balance.feed(re.sub(r"(?s)<svg.*</svg>", "", kept.replace("<=", "")))
    assert not balance.open


@pytest.mark.needs("browser")
@pytest.mark.parametrize(
    ("columns", "fixed", "enough"),
    [(3, 3, ""), (4, 60, ""), (6, 12, ""), (3, 12, "1,400"), (6, 12, "1,400")],
)
def test_a_letter_is_one_page_and_no_heading_ends_a_page(columns, fixed, enough, tmp_path):
    """Of three ways as many are shown as there is room for; columns are described once."""
    described = "Net of tax, each month, on average over the three months before the application."
    changes = tuple(
        letters.Change(f"monthly income {i}", "1,250", "2,000", "up", described, i, enough)
        for i in range(columns)
    )
    way = letters.Way(changes, "yes", ("The system is then 65% sure of “yes”.",), changes[:1])
    one = replace(
        letters.letter(answered(), date=DAY, words=letters.Words(sender="A bank\nA street")),
        ways=letters._ways_of_a_page((way,) * 3),
        fixed=("a column that stays",) * fixed,
    )
    assert len(one.ways) == (2 if columns == 6 else 3)
    assert one.html.count(described) == columns
    (tmp_path / "letter.html").write_text(one.html, encoding="utf-8")
    printed = tmp_path / "letter.pdf"
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", f"--print-to-pdf={printed}", "letter.html"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert re.findall(rb"/Type\s*/Pages.*?/Count (\d+)", printed.read_bytes(), re.DOTALL) == [b"1"]
    assert re.search(r"h1, h2, thead \{ break-after: avoid", one.html)


def test_a_page_is_whole_and_needs_nothing_else():
    found = letters.letter(answered(), date=DAY)
    balance = Balance()
    balance.feed(found.html)
    assert not balance.open
    assert not balance.wrong
    assert not re.search(r"<(script|link|img|iframe)|@import|url\(http", found.html)
    assert not re.search(r'(?:src|href)="[^"#]', found.html)
    named = letters.letter(explanation()[0], date=DAY)
    assert "<i>x</i>" not in named.html, "an id is no markup"
    assert "&lt;i&gt;x&lt;/i&gt;" in named.html
    assert "<i>x</i>" in named.text


def test_letters_are_written_for_those_who_have_not_the_target(tmp_path):
    whole = explanation()
    written = letters.write_letters(whole, tmp_path / "new" / "letters", date=DAY)
    wanted = [i for i in whole if i.status in ("answered", "none_found", "infeasible")]
    assert len(written) == len(wanted) == len(set(written)) > 3
    assert all(path.with_suffix(".txt").stat().st_size > 200 for path in written)
    assert {path.parent for path in written} == {tmp_path / "new" / "letters"}
    assert not any(re.search(r"[<>/ ]", path.name) for path in written)


def test_without_a_way_the_letter_says_why():
    hard = worlds.post()
    instances = [row for row in hard.instances if worlds.postage([row]) == ["cheap"]][:3]
    whole = hard.explainer.explain(instances, target="dear", constraints=["changes <= 0"])
    found = letters.letter(whole[0], date=DAY)
    assert not found.ways
    assert found.reason.startswith("Many changes were tried within the limits below")
    for text in map(on_one_line, (found.text, found.html)):
        assert "No way to “dear” was found." in text
        assert found.reason in text
        assert "You can ask whether one of the limits can be loosened" in text
        assert "These limits were set: at most 0 things change." in text
        assert "limits were kept" not in text
        assert whole.reason[0] not in text
    assert whole.reason[0] in unescape(letters.annex(whole[0]))
    why = letters.letter(hard.explainer.why_not(whole)[0], date=DAY).reason
    assert re.search(
        r"different if “at most 0 things change” became “at most \d things? changes?”", why
    )
    limits = ["weight <= original - 5", "weight >= 0.99*original", "fixed stamp"]
    clash = hard.explainer.explain(instances[:1], target="dear", constraints=limits)
    for instance in (clash[0], hard.explainer.why_not(clash)[0]):
        assert instance.status == "infeasible"
        assert (
            "“weight has to fall by at least 5” and “weight is at least 0.99 × today's weight” "
            "contradict each other." in letters.letter(instance, date=DAY).reason
        )
    there = hard.explainer.explain(instances, target="cheap")
    assert "nothing has to change" in letters.letter(there[0], date=DAY).text


def test_a_letter_speaks_to_a_person_not_to_an_engineer():
    """Neither the system's words nor a choice where there is one way only."""
    seen, world = set(), worlds.bank()
    free = world.explainer.explain(world.instances.head(15))
    for instance in [*explanation()[:15], *free]:
        if instance.status in ("answered", "none_found", "infeasible"):
            found = letters.letter(instance, date=DAY)
            page = re.sub(r"<style>.*?</style>|<[^>]+>", " ", found.html, flags=re.DOTALL)
            for text in map(on_one_line, (page, found.text)):
                assert not re.search(r"(?i)\b(model|probabilit|classifier|instance)", text)
                several = len(found.ways) > 1
                assert ("any one of them is enough" in text.lower()) == several
                assert ("debt may only go down" in text) == (instance.explanation is not free)
            seen.add(len(found.ways))
    assert {1, 2} <= seen or {1, 3} <= seen


NUMBERS = ("income", "annualIncome", "a", "b", "hours", "age", "bmi", "drugs", "x", "price", "rent")
TABLE = Schema.infer(
    [
        {**dict.fromkeys((*NUMBERS, "tenure"), i % 50), "home": "own", "job": "cook"}
        for i in range(99)
    ],
    {"home": "categorical", "job": "categorical"},
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("income >= original", "income may only go up"),
        ("original >= annualIncome", "annual income may only go down"),
        ("increasing a, b", "a may only go up|b may only go up"),
        ("20 <= hours < 60", "hours is at least 20 and is less than 60"),
        ("changes <= 3", "at most 3 things change"),
        ("changes <= 1", "at most 1 thing changes"),
        ("home in {own, rent}", "home is own or rent"),
        ("home not in {kin}", "home is not kin"),
        ("home in {original, own}", "home stays as it is or becomes own"),
        ("not home: {own, kin} -> rent", "home does not go from own or kin to rent"),
        ("fixed age", ""),
        ("age == original", ""),
        ("bmi >= original - 3", "bmi may fall by at most 3"),
        ("original - 3 <= bmi <= original", "bmi may fall by at most 3 and may only go down"),
        ("original <= drugs <= original + 1", "drugs may only go up and may rise by at most 1"),
        ("x >= original + 2", "x has to rise by at least 2"),
        ("2*x <= 2*original - 8", "x has to fall by at least 4"),
        ('home != "my own"', "home is not my own"),
        ("0.9*original <= price", "price is at least 0.9 × today's price"),
        ("2*rent <= income", "2 × rent is at most income"),
        ("a - original(b) <= 3", "a − today's b is at most 3"),
        ("if job changes then tenure <= original", "if job changes, then tenure may only go down"),
        ('if home == "own" then rent == 0', "if home is own, then rent is exactly 0"),
    ],
)
def test_constraints_are_said_in_words(text, words):
    """As limits that were kept, and as one that has to give way."""
    found = clauses.limits([parse(text)], TABLE, letters.Words())
    assert found == (tuple(words.split("|")) if words else ())
    if words and not re.search(r" and |\|", words):  # of one clause
        assert clauses.in_words(parse(text), TABLE, letters.Words()) == words


def test_amounts_have_units_categories_are_no_columns_and_notes_are_reasons():
    schema = worlds.bank().explainer.schema_
    kept = [
        parse("income >= original - 1.5 # three months"),
        parse("home == own"),
        parse("grade >= mid"),
        parse("fixed age, married # cannot change"),
    ]
    words = letters.Words(columns={"grade": "rating"})
    assert clauses.limits(kept, schema, words) == (
        "income may fall by at most 1.5 (three months)",
        "home is own",
        "rating is at least mid",
    )
    assert clauses.fixed(kept, schema, words) == ("age (cannot change)", "married (cannot change)")


def test_labels_and_columns_have_words(tmp_path):
    file = tmp_path / "words.toml"
    file.write_text(
        'predicted = "A loan"\nsender = "A bank\\nA street"\ngreeting = "Dear Ms <b>A</b>,"\n'
        'contact = "Ms B, 12."\nnext_steps = "Apply again."\n'
        '[labels]\nyes = "granted"\nno = "refused"\n'
        '[columns]\nincome = "what you earn"\n'
    )
    found = letters.letter(answered(), words=file)
    assert (found.label, found.target) == ("refused", "granted")
    text = found.text
    assert text.startswith("A bank\nA street\n\n")
    for said in (
        "A loan: the computer system's answer in your case is “refused”.", "Dear Ms <b>A</b>,",
        f"Questions Ms B, 12. Please name case {found.name}.", "What happens next Apply again.",
    ):  # fmt: skip
        assert said in on_one_line(text)
    assert "Dear Ms &lt;b&gt;A&lt;/b&gt;," in found.html
    for broken, says in {
        'labls = "x"': "Did you mean 'labels'",
        "[labels]\nyse = 'x'": "the label 'yse'",
        "[columns]\ndebts = 'x'": "Did you mean 'debt'",
        "[labels]\nyes = 3": "is damaged: Expected `str`, got `int`",
        "[labels": "could not be read",
    }.items():
        file.write_text(broken)
        with pytest.raises(InputError, match=says):
            letters.letter(answered(), words=file)


def test_on_the_edge_no_figure_is_praised():
    found = explanation()[[answered().position]].best(1)
    likely = {"probability": 0.58, "survival": 0.94, "survival_low": 0.87, "survival_high": 1.0}
    rows = replace(found, **{name: np.full(len(found), v) for name, v in likely.items()})
    calm = replace(rows, mark=np.full(len(found), "", dtype=object))
    assert notes(calm)[0] == (
        "The system is then 58% sure of “yes”. About 94 of 100 later versions of the "
        "system give the same answer."
    )
    assert "how likely it is that you can make a change" in wording.figures(calm)
    silent = replace(calm, probability=np.full(len(found), np.nan))
    assert notes(silent)[0] == "About 94 of 100 later versions of the system give the same answer."
    assert wording.figures(silent)
    edge = replace(rows, mark=np.full(len(found), "edge", dtype=object))
    assert notes(edge)[0].startswith("This way only just leads there")
    assert not re.search(r"\d", notes(edge)[0])
    assert not wording.figures(edge)
    certain = replace(calm, survival=np.full(len(found), 1.0))
    assert notes(certain)[0].endswith(
        "Nearly all later versions of the system give the same answer."
    )
    rare = replace(calm, density=np.full(len(found), 0.02))
    assert notes(rare)[1].endswith("be careful with this way.")


def test_a_long_way_is_called_one():
    found = explanation()[[answered().position]].best(1)
    cells, instances = found.cells.copy(), found.instances.copy()
    income = found.schema.features[0]
    cells[:, 0], instances[:, 0] = income.upper, income.upper - 30
    short = replace(found, cells=cells, instances=instances)
    assert not any("long way" in note for note in notes(short))
    instances[:, 0] = income.lower
    far = replace(short, instances=instances)
    assert notes(far)[-1] == (
        "This is a long way: more than half of all cases lie between the two values of income."
    )
    assert wording.notes(far, 0, letters.Words(), has_ends=True)[-1].endswith(
        "lie between today's and the safer value of income."
    )
    # Cases are counted, however far the values are apart.
    sparse = replace(income, ranks=((income.lower, income.upper), (0.3, 0.7)))
    features = (sparse, *found.schema.features[1:])
    rare = replace(far, schema=replace(found.schema, features=features))
    assert not any("long way" in note for note in notes(rare))


def test_a_way_has_what_is_just_enough_and_what_is_safer():
    whole = worlds.explained(worlds.bank(), "approved")
    sure = [i for i in whole if i.status == "answered" and not wording.at_edge(i.best(1)).any()]
    alone, seen = whole[[sure[0].position]], set()
    enough = alone.minimal["enough"]
    as_now = replace(enough, cells=alone.instances[enough.instance])  # all of it can stay
    for instance in (*sure, replace(alone, minimal={**alone.minimal, "enough": as_now})[0]):
        sent = letters.letter(instance, date=DAY)
        lines = [line.strip(" -") for line in sent.text.splitlines() if line.startswith("  - ")]
        page = on_one_line(re.sub(r"<[^>]+>", " ", sent.html))
        table = instance.changes().to_dict("records")
        assert len(table) == len(sent.ways[0].changes)
        apart = any(change["enough"] != change["safe"] for change in table)
        for name, before, enough, safe in (change.values() for change in table):
            stays = enough == before
            said = f"{before} can stay" if stays else f"from {before} to {enough} is just enough"
            both = f"{said}; {safe} is safer"
            assert f"{name}: {f'from {before} to {safe}' if enough == safe else both}" in lines
            cells = [before, *(["as now" if stays else enough] if apart else []), safe]
            arrow = "(?:[▲▼] )?"
            pattern = rf"{name} {' '.join(arrow + re.escape(cell) for cell in cells)}"
            assert re.search(pattern, page), (pattern, page)
            seen.add((enough == safe, stays))
        assert ("With the safer values the system is " in page) == sent.ways[0].has_ends == apart
        assert ("Just enough" in sent.sections) == any(way.has_ends for way in sent.ways)
    assert {(False, False), (False, True)} <= seen
    derived = letters.Change("rate", "9", "5", "down", "", 3, "7")
    way = replace(sent.ways[0], follows=(derived,))
    said = "Then rate is 7 or, with the safer values, 5, instead of 9."
    for text in (replace(sent, ways=(way,)).html, replace(sent, ways=(way,)).text):
        assert said in on_one_line(text)


def test_of_labels_alone_the_letter_says_once_that_the_edge_is_not_known():
    sent = letters.letter(answered(), words=letters.Words(next_steps="Apply again."), date=DAY)
    assert sent.reliable
    assert {mark.split(",")[0] for mark in explanation().best().mark} == {"edge"}
    text = on_one_line(sent.text)
    assert "Apply again." in text
    assert text.count("not how sure it is of it") == 1
    assert not any(way.edge or way.has_ends for way in sent.ways)
    assert not re.search(r"only just|do not rely|nan\b|later versions", text)


def test_nobody_is_sent_along_a_way_at_the_edge():
    words = letters.Words(next_steps="Apply again.")
    whole = explanation()[[answered().position]]
    found = whole.best(3)
    found = replace(found, survival=np.full(len(found), 0.8))
    unusual = replace(found, mark=np.full(len(found), "unusual", dtype=object))
    sent = letters.letter(
        replace(whole, minimal={**whole.minimal, "best": unusual})[0], words=words
    )
    assert sent.reliable  # it is a note
    assert "Apply again." in sent.text
    assert "Few cases with that answer look like this one" in on_one_line(sent.text)
    edge = replace(found, mark=np.full(len(found), "edge", dtype=object))
    sent = letters.letter(replace(whole, minimal={**whole.minimal, "best": edge})[0], words=words)
    text = on_one_line(sent.text)
    assert "no way was found that you can rely on" in text
    assert "Ask before you change anything." in text
    assert "Apply again." not in text


def test_what_no_letter_is_about():
    whole = explanation()
    world = worlds.digits()
    with pytest.raises(InputError, match="about a row of a table"):
        letters.letter(world.explainer.explain(world.instances[:1], target="any-other")[0])
    with pytest.raises(InputError, match="one instance of an explanation"):
        letters.letter(whole)
    with pytest.raises(InputError, match="cannot be explained: Column 'income' holds an infinity"):
        letters.letter(whole[-1])
