"""From words on a command line to what the library takes: tables, labels, kinds, classifiers."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapace.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from lapace.constraints import Constraint
    from lapace.explainer import Explainer
    from lapace.schema import Feature
    from lapace.table import Level, Table

__all__ = [
    "STDIN",
    "classifier_of",
    "constraints_of",
    "costs_of",
    "kinds_of",
    "labels_of",
    "less",
    "one_instance",
    "opened",
    "read_table",
    "target_of",
]

STDIN = "-"
MOST_LABELS = 100  # whole numbers a column of labels may hold


def read_table(source: str) -> Table:
    """A table from a file, or from standard input."""
    from lapace.table import read, read_file

    if source == STDIN:
        return read(read_file(sys.stdin.buffer.read()))
    if Path(source).is_dir():
        raise InputError(f"'{source}' is a folder. Name a .csv or .parquet file in it.")
    return read(read_file(source))


def one_instance(table: Table, instance: int | None) -> Table:
    """Only the row asked for."""
    if instance is None:
        return table
    if not 0 <= instance < len(table):
        raise InputError(
            f"There is no instance {instance}: the table has {len(table)} rows, counted from 0."
        )
    return table.take([instance])


def labels_of(table: Table, name: str) -> list[Level]:
    """The label column, one plain value per row."""
    from lapace.table import Coded

    column = _column(table, name)
    gaps = int(column.missing.sum())
    if gaps:
        rows = "1 row has" if gaps == 1 else f"{gaps:,} rows have"
        raise InputError(f"{rows} no label in column '{name}'. Fill it in, or leave them out.")
    if isinstance(column.values, Coded):
        return [column.values.levels[code] for code in column.values.codes.tolist()]
    if (column.values % 1).any():
        raise InputError(
            f"Column '{name}' holds fractions, and a label is a word, a whole number or a truth "
            "value. Name another column, or make classes of it first."
        )
    labels: list[Level] = [int(value) for value in column.values.tolist()]
    if len(set(labels)) > MOST_LABELS:
        raise InputError(
            f"Column '{name}' holds {len(set(labels)):,} different numbers: that is an amount, not "
            "a label. Name another column, or make classes of it first."
        )
    return labels


def _column(table: Table, name: str) -> Any:
    if name not in table.columns:
        hint = did_you_mean(name, table.names) or f" There are: {_listed(table.names)}."
        raise InputError(f"Column '{name}' is not in the table.{hint}")
    return table.columns[name]


def less(table: Table, names: Sequence[str]) -> Table:
    """The table without columns that must be in it."""
    for name in names:
        _column(table, name)
    return table.without(names)


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def kinds_of(texts: Sequence[str]) -> dict[str, str | Feature]:
    """Overrides of columns' kinds, as `Explainer(schema=...)` takes them.

    Examples:
        >>> kinds = kinds_of(["postcode=categorical", "grade=ordinal:low<mid<high"])
        >>> kinds["postcode"], kinds["grade"].categories
        ('categorical', ('low', 'mid', 'high'))
    """
    from lapace.schema import Feature

    kinds: dict[str, str | Feature] = {}
    for text in texts:
        found = re.fullmatch(r"(?P<name>.+?)=(?:(?P<kind>\w+)|ordinal:(?P<order>.+))", text)
        if found is None:
            raise InputError(
                f"--kind '{text}' is not understood. Write column=kind, such as "
                "'postcode=categorical', or 'grade=ordinal:low<mid<high'."
            )
        order = found["order"]
        kinds[found["name"]] = (
            found["kind"] if order is None else Feature.ordinal(found["name"], _levels(order))
        )
    return kinds


def _levels(order: str) -> list[Level]:
    """Words, or numbers where all of them are."""
    words = [word.strip() for word in order.split("<")]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return list(words)
    return [int(number) if number % 1 == 0 else number for number in numbers]


def costs_of(listed: str | None, single: Sequence[str]) -> dict[str, float] | None:
    """Costs by column, as `explain(costs=...)` takes them.

    Examples:
        >>> costs_of("income=2, age=impossible", ["hours, weekly=0.5"])
        {'income': 2.0, 'age': inf, 'hours, weekly': 0.5}
    """
    texts = [*(listed.split(",") if listed else ()), *single]
    costs: dict[str, float] = {}
    for text in texts:
        name, _, cost = text.strip().rpartition("=")
        try:
            costs[name.strip()] = float("inf" if cost.strip() == "impossible" else cost)
        except ValueError:
            name = ""
        if not name:
            hint = " A column with a comma in its name goes in --cost NAME=VALUE."
            cut = "=" not in text and text not in single and "," in (listed or "")
            raise InputError(
                f"The cost '{text.strip()}' is not understood. Write column=number, such as "
                f"'income=2', or 'age=impossible'.{hint if cut else ''}"
            )
    return costs or None


def target_of(explainer: Explainer, text: str | None) -> Any:
    """The label a word stands for: labels may be numbers or truth values."""
    if text is None:
        return None
    known = {str(label): label for label in explainer.classes_}
    if text.lower() in ("true", "false"):  # as files write them, in any case
        truths = {str(label).lower(): label for label in known.values() if label in (True, False)}
        return known.get(text, truths.get(text.lower(), text))
    return known.get(text, text)


def constraints_of(files: Sequence[Path], texts: Sequence[str]) -> list[str | Constraint]:
    """Constraints from files, and those said on the line."""
    from lapace.constraints import read_file

    return [*(constraint for path in files for constraint in read_file(path)), *texts]


def opened(
    path: Path,
    classifier: str | None,
    trust: Sequence[str],
    unsafe_pickle: bool,
    timeout: float,
    device: str | None = None,
) -> Explainer:
    """A fitted explainer with its classifier: the one it refers to, or the one named."""
    from lapace.explainer import Explainer

    if classifier is None:
        return Explainer.load(path, trust=trust, device=device)
    return Explainer.load(
        path, classifier_of(classifier, trust, unsafe_pickle, timeout), device=device
    )


def classifier_of(spec: str, trust: Sequence[str], unsafe_pickle: bool, timeout: float) -> Any:
    """A classifier by its file, module or address."""
    from lapace.classifiers import load_classifier

    return load_classifier(spec, trust=tuple(trust), unsafe_pickle=unsafe_pickle, timeout=timeout)
