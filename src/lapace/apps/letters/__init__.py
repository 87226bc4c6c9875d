"""One instance's explanation as a page to print or send, and as plain text.

`letter(explanation[i])` says in plain sentences what was decided, up to three ways to the other
answer with before and after, what stays, what the figures mean, what happens next and whom to ask.
`Words` are what labels and columns are called in it, its sender and its greeting. The page is one
HTML file without links to anything: it prints on A4 and reads on a phone. `annex(explanation[i])`
is a page for the file: constraints as code, figures, the path's picture, hashes.

```
words       words for labels and columns, changes between two rows
clauses     constraints in words
wording     sentences on a way, or on why there is none
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date as Date  # noqa: N812  `date` is what the argument is called
from functools import cached_property, partial
from itertools import accumulate, count
from math import isnan
from pathlib import Path
from typing import Any

from lapace.apps.letters import clauses, wording
from lapace.apps.letters.words import Change, Words, changes, file_name
from lapace.errors import InputError, import_extra
from lapace.files import write_whole
from lapace.result import Counterfactuals, Explanation, InstanceExplanation
from lapace.table import spelling
from lapace.why_not.relaxation import joined

__all__ = ["Change", "Letter", "Way", "Words", "annex", "letter", "write_letters"]

# What one page has room for; the annex has everything.
WAYS, LINES, LISTED = 3, 20, 12
# What a letter is written for: an instance that has its target already needs none.
LETTERS = ("answered", "none_found", "infeasible")


@dataclass(frozen=True)
class Way:
    """One way to the target.

    Attributes:
        changes: What changes, the largest change first.
        label: The answer reached.
        notes: Sentences on how sure it is, and words of caution.
        follows: What follows from the changes: columns that are computed from others.
        edge: Whether it only just leads there, so that it should not be relied on.
    """

    changes: tuple[Change, ...]
    label: str
    notes: tuple[str, ...] = ()
    follows: tuple[Change, ...] = ()
    edge: bool = False

    @property
    def has_ends(self) -> bool:
        """Whether less than the safe values is just enough."""
        return any(change.enough for change in self.changes + self.follows)


@dataclass(frozen=True)
class Letter:
    """The content of a letter; `html` and `text` are its two forms.

    Attributes:
        name: The instance's identifier, or its position.
        label: The answer.
        target: The answer asked about; empty for any other.
        status: As in `Explanation.status`.
        reason: Why there is no way, where there is none, in plain words.
        ways: Up to three, as many as a page has room for, the cheapest first.
        fixed: Columns that may not change, in words.
        limits: The other limits that were kept, in words.
        figures: What the figures of the ways mean; empty where they have none.
        date: The day of the letter, as it is written there.
        words: Its sender, greeting, contact and next steps.
    """

    name: str
    label: str
    target: str
    status: str
    reason: str
    ways: tuple[Way, ...]
    fixed: tuple[str, ...]
    limits: tuple[str, ...]
    figures: str
    date: str
    words: Words

    @property
    def first_sentences(self) -> tuple[str, ...]:
        """The decision, and whether there are ways to another answer."""
        goal = f"“{self.target}”" if self.target else "another answer"
        about = f"{self.words.predicted}: the" if self.words.predicted else "The"
        decided = f"{about} computer system's answer in your case is “{self.label}”."
        if self.status == "already_target":
            return (f"{decided} That is already the answer wanted: nothing has to change.",)
        if not self.ways:
            return f"{decided} No way to {goal} was found.", self.reason
        many = ("a way", "two different ways", "three different ways")[len(self.ways) - 1]
        shown = f"This letter shows {many} to {goal}"
        if not self.reliable:
            return (f"{decided} {shown}, but no way was found that you can rely on.",)
        enough = "" if len(self.ways) == 1 else "; any one of them is enough"
        return (f"{decided} {shown}{enough}.",)

    @property
    def reliable(self) -> bool:
        """Whether one of the ways does more than only just lead there."""
        return not all(way.edge for way in self.ways)

    @property
    def sections(self) -> dict[str, str]:
        """The texts below the ways, by heading."""
        stays = ["Everything else stays as it is."] if self.ways else []
        stays += [f"These may not change: {joined(_listed(self.fixed))}."] if self.fixed else []
        limits = "These limits were kept" if self.ways else "These limits were set"
        stays += [f"{limits}: {'; '.join(_listed(self.limits))}."] if self.limits else []
        contact = self.words.contact.rstrip(". ") or "The sender of this letter"
        sections = {
            "Just enough": wording.ENDS if any(way.has_ends for way in self.ways) else "",
            "What stays": " ".join(stays),
            "The figures": self.figures,
            "What happens next": wording.next_steps(
                self.status, self.words, reliable=self.reliable
            ),
            "Questions": f"{contact}. Please name case {self.name}.",
        }
        return {heading: text for heading, text in sections.items() if text}

    @cached_property
    def html(self) -> str:
        """The letter as one self-contained page."""
        return _rendered("letter.html.j2", letter=self)

    @cached_property
    def text(self) -> str:
        """The letter as plain text."""
        return _rendered("letter.txt.j2", letter=self)

    def _repr_html_(self) -> str:
        return self.html


def _rendered(template: str, **values: Any) -> str:
    jinja2: Any = import_extra("jinja2", "letters", "A letter")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, ""),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rendered: str = environment.get_template(template).render(values, notice=wording.NOTICE)
    return rendered


def letter(
    instance: InstanceExplanation,
    *,
    words: Words | str | Path | None = None,
    date: Date | None = None,
) -> Letter:
    """One instance's explanation as a letter.

    Args:
        instance: One instance of an explanation, `explanation[0]`; a row of a table, no image.
        words: What labels and columns are called, who sends the letter and how it greets, or a
            TOML file of that.
        date: The day of the letter; today by default.

    Examples:
        >>> import numpy as np
        >>> from lapace import Explainer
        >>> numbers = np.random.default_rng(0).integers(0, 99, (200, 2)).tolist()
        >>> table = [{"income": income, "debt": debt} for income, debt in numbers]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> explanation = Explainer(bank, n_prototypes=2).fit(table).explain(
        ...     [{"income": 20, "debt": 60}], constraints=["fixed debt"])
        >>> print(letter(explanation[0], date=Date(2024, 12, 31)).text)
        31 December 2024
        Case 0
        ...
    """
    _check(instance)
    whole = instance.explanation
    said = Words.of(words).checked(whole.labels, whole.schema.names)
    constraints = wording.constraints_of(whole)
    safe, enough = _ways(instance)
    ways = tuple(_way(safe, enough, row, said) for row in range(len(safe)))
    return Letter(
        name=spelling(instance.name),
        label=said.label(instance.label),
        target="" if instance.target is None else said.label(instance.target),
        status=instance.status,
        reason=wording.reason(instance, said),
        ways=_ways_of_a_page(ways),
        fixed=clauses.fixed(constraints, whole.schema, said),
        limits=clauses.limits(constraints, whole.schema, said),
        figures=wording.figures(safe),
        date=_day(date),
        words=said,
    )


def _check(instance: InstanceExplanation) -> None:
    """Refuses what no letter can be about."""
    if not isinstance(instance, InstanceExplanation):
        raise InputError(
            "A letter is about one instance of an explanation, such as explanation[0]. For all of "
            "them: letters.write_letters(explanation, folder)."
        )
    if instance.status == "malformed":
        raise InputError(f"Instance {instance.name} cannot be explained: {instance.reason}")
    if instance.explanation.schema.shape is not None:
        raise InputError("A letter is about a row of a table. Draw an image with plots.path.")


def _day(date: Date | None) -> str:
    day = date or Date.today()  # noqa: DTZ011  a letter's day is the reader's
    return f"{day.day} {day:%B %Y}"


def _ways(instance: InstanceExplanation) -> tuple[Counterfactuals, Counterfactuals]:
    """Returns both ends of the ways that a letter shows: none where the search found none."""
    safe, enough = instance.best(WAYS), instance.best(WAYS, end="enough")
    shown = safe.ok & (instance.status == "answered")
    return safe.where(shown), enough.where(shown)


def _way(safe: Counterfactuals, enough: Counterfactuals, row: int, words: Words) -> Way:
    before, ends = safe.instances[safe.instance[row]], (safe.cells[row], enough.cells[row])
    own, derived = changes(safe.schema, before, ends[0], words, ends[1])
    way = Way(own, words.label(safe.label[row]), (), derived, bool(wording.at_edge(safe)[row]))
    return replace(way, notes=wording.notes(safe, row, words, has_ends=way.has_ends))


def _ways_of_a_page(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """Returns the first ways that a page has room for, at least one."""
    lines = accumulate(
        len(way.changes + way.follows) + len(way.notes) + way.has_ends for way in ways
    )
    return tuple(way for way, line in zip(ways, lines, strict=True) if line <= LINES) or ways[:1]


def _listed(texts: tuple[str, ...]) -> list[str]:
    others = len(texts) - LISTED
    return [*texts[:LISTED], f"{others} others"] if others > 1 else list(texts)


def annex(
    instance: InstanceExplanation,
    *,
    date: Date | None = None,
    provenance: Mapping[str, str] | None = None,
) -> str:
    """The technical annex to a letter, as one self-contained page for the file.

    It has the columns' own names: constraints and rules as code, the figures of each way, the
    picture of a path and what all of it rests on.

    Args:
        instance: As in `letter`.
        date: As in `letter`.
        provenance: What to say of the files it rests on, such as their hashes, by name.
    """
    from lapace import plots
    from lapace.plots.style import svg

    _check(instance)
    drawable = instance.status in ("answered", "none_found") and instance.prototypes
    return _rendered(
        "annex.html.j2",
        name=spelling(instance.name),
        instance=instance,
        rows=_ways(instance)[0],
        figure=_figure,
        picture=svg(plots.path(instance).figure) if drawable else "",
        date=_day(date),
        provenance=provenance or {},
    )


def _figure(form: str, *values: float) -> str:
    """Writes figures of the annex; a dash where one is not known."""
    return "–" if any(map(isnan, values)) else form.format(*values)


def write_letters(
    explanation: Explanation,
    folder: str | Path,
    *,
    words: Words | str | Path | None = None,
    date: Date | None = None,
    with_annex: bool = False,
    provenance: Mapping[str, str] | None = None,
    taken: set[str] | None = None,
) -> list[Path]:
    """Writes a page and a text for every instance without the target label.

    Args:
        explanation: All instances; those that cannot be read get no letter.
        folder: Where to write `letter-ID.html` and `letter-ID.txt`; made if it does not exist.
        words: As in `letter`.
        date: As in `letter`.
        with_annex: Whether to write `annex-ID.html` as well.
        provenance: As in `annex`.
        taken: Names of letters written before, of other instances, which are not used again; those
            of the letters written are added.

    Returns:
        The pages written, without annexes.
    """
    folder = Path(folder)
    written: list[Path] = []
    words = Words.of(words).checked(explanation.labels, explanation.schema.names)
    folder.mkdir(parents=True, exist_ok=True)
    taken = set() if taken is None else taken
    for instance in explanation:
        if instance.status not in LETTERS:
            continue
        one = letter(instance, words=words, date=date)
        plain = name = file_name(one.name) or str(instance.position)
        others = count(2)
        while name in taken:  # ids that files cannot tell apart
            name = f"{plain}-{next(others)}"
        taken.add(name)
        pages = {f"letter-{name}.html": one.html, f"letter-{name}.txt": one.text}
        if with_annex:
            pages[f"annex-{name}.html"] = annex(instance, date=date, provenance=provenance)
        for file, content in pages.items():
            write_whole(folder / file, partial(Path.write_text, data=content, encoding="utf-8"))
        written.append(folder / f"letter-{name}.html")
    return written
