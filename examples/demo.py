"""What `make demo` runs: train on made-up loans, explain one refusal, draw the pictures.

Everything here is what a user would write; only the printing is for show.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lapace import Explainer, datasets, plots

FAST = bool(os.environ.get("LAPACE_FAST"))  # fewer applications, for the tests
OUTPUT = Path("demo-output")

# Nobody is helped by being told to earn less, to be new at work, or to ask for more.
WISHES = ("income >= original", "years_employed >= original", "amount <= original")


def main() -> None:
    loans = datasets.load("loans", rows=1000) if FAST else datasets.load("loans")
    heading(f"{len(loans.train):,} loan applications, made up by the package itself")
    forest = loans.classifier("forest")
    right = (forest.predict(loans.test) == loans.test_labels).mean()
    say(
        f"A random forest learns to decide as the bank did. On {len(loans.test):,} applications "
        f"it has not seen it is right {right:.0%} of the time. It is the classifier to explain: "
        "from here on it is only asked, never opened."
    )

    heading("Learning what it approves of, and what it denies")
    explainer = Explainer(forest, rules=loans.rules, random_state=0)
    with progress_bar("training") as progress:
        explainer.fit(loans.train, progress=progress)

    heading("Can it be trusted?")
    print(explainer.report_)

    applicants = loans.test.head(50)
    answer = explainer.explain(applicants, target="approved", constraints=WISHES)
    instance = next(instance for instance in answer if instance.status == "answered")
    tell(instance)
    draw(explainer, instance)


def tell(instance: Any) -> None:
    """Prints one instance, and what would have to change on the nearest three paths."""
    heading(
        f"Applicant {instance.position} was {instance.label}. What would have been {instance.target}?"
    )
    say(", ".join(f"{name} {value}" for name, value in instance.row.items()) + ".")
    say(instance.reason)
    for number, prototype in enumerate(instance.prototypes[:3], 1):
        changes = instance.changes(prototype).to_dict("records")
        first = first_of(instance, prototype)
        sure = f", {first.probability[0]:.0%} sure" if first.probability[0] >= 0 else ""
        print(f"\n  Way {number}, towards prototype {prototype}: {instance.target}{sure}, if")
        for change in changes:
            name = change["feature"].replace("_", " ")
            print(f"    {name:<16}{change['before']:>12}  →  {change['after']}")
    print()
    say(
        "Each way is advice about change: were you as on the right, and otherwise as you are, this "
        "classifier would say yes. It was asked about exactly these rows. It is not the legal "
        "reason for a refusal, and no promise about a decision that instances will make."
    )
    say(f"Every way obeys, among others: {'; '.join(instance.explanation.constraints[:4])}.")


def first_of(instance: Any, prototype: int) -> Any:
    """Where the decision flips on the way to a prototype."""
    first = instance.explanation.first()
    return first.where((first.instance == instance.position) & (first.prototype == prototype))


def draw(explainer: Explainer, instance: Any) -> None:
    """Writes the pictures."""
    OUTPUT.mkdir(exist_ok=True)
    pictures = {
        "path.png": (plots.path(instance).figure, "the first way, step by step"),
        "prototypes.png": (
            plots.prototypes(explainer, instance.target, instance).figure,
            "typical cases beside this applicant",
        ),
        "latent-map.png": (
            plots.latent_map(explainer, instance).figure,
            "everyone as the model sees them, and the ways",
        ),
        "training.png": (plots.training_curves(explainer.history_), "how the training went"),
    }
    heading("Pictures")
    for name, (picture, words) in pictures.items():
        picture.savefig(OUTPUT / name, dpi=120)
        print(f"  {OUTPUT / name!s:<32}{words}")
    say(f"They are in {OUTPUT.resolve()}.")


# ------------------------------------------------------------------------------------------------
# Printing


def heading(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}")


def say(text: str) -> None:
    print(textwrap.fill(text, 92, initial_indent="  ", subsequent_indent="  "))


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar of rich's where rich is installed, else a line that grows."""
    if find_spec("rich") is None:
        yield plain_bar
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    with Progress(f"  {name}", BarColumn(40), TaskProgressColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(name)
        yield lambda _, done, total: bar.update(task, completed=done, total=total)


def plain_bar(name: str, done: int, total: int) -> None:
    filled = 40 * done // total
    end = "\n" if done >= total else ""
    print(
        f"\r  {name} {'█' * filled}{'░' * (40 - filled)} {done / total:4.0%}", end=end, flush=True
    )


if __name__ == "__main__":
    main()
