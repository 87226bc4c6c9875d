"""One instance's explanation as a page to print or send, and as plain text.

`letter(explanation[i])` says in plain sentences what the answer is, up to three ways to the other
answer with before and after, what was kept fixed, how usual and how sure each way is, and what
all of it rests on. `Words` are what labels and columns are called in it. The page is one HTML file
without links to anything: it prints on A4 and reads on a phone.

```
words       words for labels and columns, changes between two rows
clauses     constraints in words
wording     sentences on a way, or on why there is none
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date as Date  # noqa: N812  `date` is what the argument is called
from functools import cached_property, partial
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from lapace.apps.letters import clauses, wording
from lapace.apps.letters.words import Change, Words, changes, file_name
from lapace.errors import InputError, import_extra
from lapace.files import write_whole
from lapace.result import Explanation, InstanceExplanation
from lapace.table import spelling

__all__ = ["Change", "Letter", "Way", "Words", "letter", "write_letters"]

WAYS = 3
# What a letter is written for: an instance that has its target already needs none.
LETTERS = ("answered", "none_found", "infeasible")


@dataclass(frozen=True)
class Way:
    """One way to the target.

    Attributes:
        changes: What changes, the largest change first.
        label: The answer reached.
        sure: Sentences on how sure it is.
        usual: How usual such a case is, in words; empty where that is not known.
        follows: What follows from the changes: columns that are computed from others.
    """

    changes: tuple[Change, ...]
    label: str
    sure: tuple[str, ...] = ()
    usual: str = ""
    follows: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Letter:
    """The content of a letter; `html` and `text` are its two forms.

    Attributes:
        name: The instance's identifier, or its position.
        predicted: What is predicted, in words; empty where that is not known.
        label: The answer.
        target: The answer asked about; empty for any other.
        status: As in `Explanation.status`.
        reason: Why there is no way, where there is none, in plain words.
        ways: Up to three, the cheapest first.
        fixed: Columns that were kept as they are, in words.
        limits: The other limits that were kept, a sentence each.
        rules: All constraints and rules, as text.
        detail: What the explanation itself says of the instance, for whoever looks into it.
        date: The day of the letter.
        provenance: What it rests on by name: hashes of files, a version.
    """

    name: str
    predicted: str
    label: str
    target: str
    status: str
    reason: str
    ways: tuple[Way, ...]
    fixed: tuple[str, ...]
    limits: tuple[str, ...]
    rules: tuple[str, ...]
    detail: str
    date: str
    provenance: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def html(self) -> str:
        """The letter as one self-contained page."""
        return self._rendered("letter.html.j2", autoescape=True)

    @cached_property
    def text(self) -> str:
        """The letter as plain text."""
        return self._rendered("letter.txt.j2", autoescape=False)

    def _repr_html_(self) -> str:
        return self.html

    def _rendered(self, name: str, *, autoescape: bool) -> str:
        jinja2: Any = import_extra("jinja2", "letters", "A letter")
        settings = {"autoescape": autoescape, "trim_blocks": True, "lstrip_blocks": True}
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, **settings)
        template = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
        rendered: str = environment.from_string(template).render(letter=self)
        return rendered


def letter(
    instance: InstanceExplanation,
    *,
    words: Words | str | Path | None = None,
    date: Date | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Letter:
    """One instance's explanation as a letter.

    Args:
        instance: One instance of an explanation, `explanation[0]`; a row of a table, no image.
        words: What is predicted and what labels and columns are called, or a TOML file of that.
        date: The day of the letter; today by default.
        provenance: What to say of the files it rests on, such as their hashes, by name.

    Examples:
        >>> from lapace import Explainer
        >>> numbers = np.random.default_rng(0).integers(0, 99, (200, 2)).tolist()
        >>> table = [{"income": income, "debt": debt} for income, debt in numbers]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> explanation = Explainer(bank, n_prototypes=2).fit(table).explain(
        ...     [{"income": 20, "debt": 60}], constraints=["fixed debt"])
        >>> print(letter(explanation[0], date=Date(2024, 12, 31)).text)
        What would have to change
        ...
    """
    if not isinstance(instance, InstanceExplanation):
        raise InputError(
            "A letter is about one instance of an explanation, such as explanation[0]. For all of "
            "them: letters.write_letters(explanation, folder)."
        )
    if instance.status == "malformed":
        raise InputError(f"Instance {instance.name} cannot be explained: {instance.reason}")
    whole = instance.explanation
    if whole.schema.shape is not None:
        raise InputError("A letter is about a row of a table. Draw an image with plots.path.")
    said = Words.of(words).checked(whole.labels, whole.schema.names)
    constraints = wording.constraints_of(whole)
    return Letter(
        name=spelling(instance.name),
        predicted=said.predicted,
        label=said.label(instance.label),
        target="" if instance.target is None else said.label(instance.target),
        status=instance.status,
        reason=wording.reason(instance, said),
        ways=_ways(instance, said),
        fixed=clauses.fixed(constraints, said),
        limits=clauses.limits(constraints, whole.schema, said),
        rules=whole.constraints,
        detail=instance.reason,
        date=(date or Date.today()).isoformat(),  # noqa: DTZ011  a letter's day is the reader's
        provenance=dict(provenance or {}),
    )


def _ways(instance: InstanceExplanation, words: Words) -> tuple[Way, ...]:
    if instance.status != "answered":
        return ()
    rows = instance.best(WAYS)
    ways = []
    for row in np.flatnonzero(rows.ok).tolist():
        before, after = rows.instances[rows.instance[row]], rows.cells[row]
        own, derived = changes(rows.schema, before, after, words)
        sure = wording.sure(rows, row, words)
        usual = wording.usual(rows.density[row], str(rows.mark[row]))
        ways.append(Way(own, words.label(rows.label[row]), sure, usual, derived))
    return tuple(ways)


def write_letters(
    explanation: Explanation,
    folder: str | Path,
    *,
    words: Words | str | Path | None = None,
    date: Date | None = None,
    provenance: Mapping[str, str] | None = None,
    taken: set[str] | None = None,
) -> list[Path]:
    """Writes a page and a text for every instance without the target label.

    Args:
        explanation: All instances; those that cannot be read get no letter.
        folder: Where to write `letter-ID.html` and `letter-ID.txt`; made if it does not exist.
        words: As in `letter`.
        date: As in `letter`.
        provenance: As in `letter`.
        taken: Names of letters written before, of other instances, which are not used again; those
            of the letters written are added.

    Returns:
        The pages written.
    """
    folder = Path(folder)
    written: list[Path] = []
    words = Words.of(words).checked(explanation.labels, explanation.schema.names)
    folder.mkdir(parents=True, exist_ok=True)
    taken = set() if taken is None else taken
    for instance in explanation:
        if instance.status not in LETTERS:
            continue
        one = letter(instance, words=words, date=date, provenance=provenance)
        plain = name = f"letter-{file_name(one.name) or instance.position}"
        others = count(2)
        while name in taken:  # ids that files cannot tell apart
            name = f"{plain}-{next(others)}"
        taken.add(name)
        for ending, content in ((".html", one.html), (".txt", one.text)):
            write = partial(Path.write_text, data=content, encoding="utf-8")
            write_whole(folder / f"{name}{ending}", write)
        written.append(folder / f"{name}.html")
    return written
