"""Tables, ids, labels, kinds, costs and constraints, read from files and options."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapace.apps.cli.outputs import warn
from lapace.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from lapace.apps.cli.options import Query, Training
    from lapace.apps.io import TableFile
    from lapace.constraints import Constraint
    from lapace.schema import Feature, Schema
    from lapace.table import Level, Table

STDIN = "-"
MOST_LABELS = 100  # different values a column of labels may hold
NAMELESS = (("Unnamed: 0",), ("",))  # a first column without a name, as R writes rows' names


# ------------------------------------------------------------------------------------------------
# Tables


def table_file(source: str) -> TableFile:
    """Opens a file, or standard input, which is kept on disk as long as it is read."""
    from lapace.apps.io import TableFile

    if Path(source).is_dir():
        raise InputError(f"'{source}' is a folder. Name a .csv or .parquet file in it.")
    if source != STDIN:
        return TableFile(source)
    copy = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the table is
    shutil.copyfileobj(sys.stdin.buffer, copy)
    table = TableFile(copy)
    weakref.finalize(table, copy.close)
    return table


def read_table(source: str, id_column: str | None, fitted_id: str | None = None) -> Table:
    """Reads a whole table.

    Args:
        source: A file, or `-` for standard input.
        id_column: The column that identifies the rows; it is taken out, and its values are the
            table's ids, called `id` unless another column is.
        fitted_id: The column that identified the training rows of an explainer, if one was named.
    """
    return _identified(table_file(source).read(), id_column, fitted_id)


def read_training(training: Training, sample: int | None = None, random_state: int = 0) -> Table:
    """Reads a training table, without rows that have no label.

    Args:
        training: The table and its columns.
        sample: How many rows are drawn, from a table that is never held whole; None for all.
        random_state: Seed of the sample.
    """
    if sample is None:
        table = read_table(training.train, training.identifier)
    elif sample < 1:
        raise InputError(f"--sample {sample} is not a number of rows: give a whole number from 1.")
    else:
        drawn = table_file(training.train).sample(sample, random_state)
        table = _identified(drawn, training.identifier)
    column = table.columns.get(training.label or "")
    gaps = 0 if column is None else int(column.missing.sum())
    if column is None or not gaps or gaps == len(table):
        return table
    warn(f"{gaps:,} of {len(table):,} rows have no label in '{training.label}' and are left out.")
    return table.take((~column.missing).nonzero()[0].tolist())


def instance_tables(
    source: str, query: Query, fitted_id: str | None, size: int | None = None
) -> tuple[int, Iterator[Table]]:
    """Reads the instances of a table that are asked about.

    Args:
        source: A file, or `-` for standard input.
        query: Which instances, and which column identifies them.
        fitted_id: As for `read_table`.
        size: How many rows a part has at most; None reads all of them as one part.

    Returns:
        How many instances there are, and their tables.
    """
    file, id_column = table_file(source), query.id_column
    if size is not None and not query.ids:
        return len(file), (_identified(part, id_column, fitted_id) for part in file.chunks(size))
    table = _identified(file.read(), id_column, fitted_id)
    if not query.ids:
        return len(table), iter([table])
    if id_column is None and fitted_id is not None and table.ids is None:
        raise InputError(
            f"The explainer's rows were identified by '{fitted_id}', and this table has no such "
            "column: --ids would count rows. Name the column of ids with --id."
        )
    rows = choose_rows(range(len(table)) if table.ids is None else table.ids, query.ids)
    chosen = table.take(rows)
    if table.ids is None:
        template = replace(chosen.template, index=("id",))
        chosen = replace(chosen, ids=tuple(rows), template=template)
    return len(rows), iter([chosen])


def choose_rows(names: Sequence[Any], ids: Sequence[str]) -> list[int]:
    """Returns the positions of rows, in the order of the ids asked for.

    Args:
        names: The rows' ids, or their positions.
        ids: Those asked for; each may be several, separated by commas.

    Examples:
        >>> choose_rows(["a", "b", "c"], ["c,a"])
        [2, 0]
    """
    from lapace.table import spelling

    rows_by_name: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows_by_name.setdefault(spelling(name), []).append(row)
    chosen = []
    for name in dict.fromkeys(n for text in ids for n in _split_names(text, rows_by_name)):
        rows = rows_by_name.get(name, [])
        if not rows:
            hint = (
                did_you_mean(name, rows_by_name) or " Is another column meant? Name it with --id."
            )
            raise InputError(f"No instance has the id '{name}'.{hint}")
        if len(rows) > 1:
            raise InputError(
                f"The id '{name}' is ambiguous: {len(rows)} rows have it. Make it unique, or name "
                "another column with --id."
            )
        chosen += rows
    return chosen


def _identified(frame: Any, id_column: str | None, fitted_id: str | None = None) -> Table:
    """A frame as a table, the column that identifies its rows taken out.

    Without an `id_column` it is `fitted_id`, if the table has it, or a first column without a name.
    """
    from lapace.schema.inference import no_column
    from lapace.table import read

    table = read(frame, id_column=id_column)
    if id_column is None:
        if fitted_id in table.names:
            id_column = fitted_id
        elif table.ids is None and table.names[:1] in NAMELESS:
            id_column = table.names[0]
        if id_column is None:
            return table
        table = read(frame, id_column=id_column)
    if table.template.index != (id_column,):  # neither a column nor the index of the frame
        raise no_column(id_column, table.names)
    gaps = sum(value is None or value != value for value in table.ids or ())  # noqa: PLR0124  NaN
    _check_gaps(gaps, "id", id_column)
    table = table.without([id_column])
    name = id_column if "id" in table.names else "id"
    return replace(table, template=replace(table.template, index=(name,)))


# ------------------------------------------------------------------------------------------------
# Columns


def read_labels(table: Table, name: str | None) -> list[Level]:
    """The column of labels, one plain value per row, of which at least two differ."""
    from lapace.table import Coded

    if name is None:
        raise InputError("To train a classifier, name the column of labels: --label COLUMN.")
    labels = column_values(table, name)
    column = table.columns[name]
    _check_gaps(int(column.missing.sum()), "label", name)
    is_number, different = not isinstance(column.values, Coded), len(set(labels))
    if different > MOST_LABELS or (is_number and any(label % 1 for label in labels)):
        raise InputError(
            f"Column '{name}' holds {different:,} different values: that is an amount, not a label "
            "(a word, a whole number or a truth value). Name another column, or make classes of it "
            "first."
        )
    if is_number:
        labels = [int(label) for label in labels]
    if not labels:
        raise InputError("The table has no rows. It needs at least a few hundred.")
    if different < 2:
        raise InputError(f"Column '{name}' has one label only, {labels[0]!r}: nothing to learn.")
    return labels


def column_values(table: Table, name: str) -> list[Any]:
    """A column's values; a missing one is None or NaN."""
    from lapace.schema.inference import no_column
    from lapace.table import Coded

    if name not in table.columns:
        raise no_column(name, table.names)
    values = table.columns[name].values
    cells: list[Any] = (values.cells if isinstance(values, Coded) else values).tolist()
    return cells


def _check_gaps(count: int, what: str, column: str) -> None:
    if count:
        rows = "1 row has" if count == 1 else f"{count:,} rows have"
        raise InputError(f"{rows} no {what} in column '{column}'. Fill it in, or leave them out.")


def infer_schema(table: Table, labels: Sequence[Level] | None, training: Training) -> Schema:
    """Infers the schema of a training table from its content, a file and options.

    Args:
        table: The table, labels included.
        labels: The labels, where known: a column that says the same is refused.
        training: The options.
    """
    from lapace.schema import Schema
    from lapace.schema.features import ColumnsError

    aside = (training.identifier, training.label)
    overrides = {name: kind for name, kind in training.overrides.items() if name not in aside}
    if training.label is not None:
        table = table.without([training.label])
    try:
        return Schema.infer(table, overrides, labels=labels)
    except ColumnsError as error:
        raise InputError(error.text(_as_options)) from None


def _as_options(kinds: Mapping[str, str]) -> str:
    """The options that say what columns are.

    Examples:
        >>> _as_options({"ref": "id", "free text": "drop", "code": "categorical"})
        "--id ref --drop 'free text' --kind code=categorical"
    """
    return " ".join(
        shlex.join([f"--{kind}", name] if kind in ("drop", "id") else ["--kind", f"{name}={kind}"])
        for name, kind in kinds.items()
    )


# ------------------------------------------------------------------------------------------------
# Options


def parse_kinds(texts: Iterable[str]) -> dict[str, str | Feature]:
    """Parses overrides of columns' kinds, as `Explainer(schema=...)` takes them.

    Examples:
        >>> kinds = parse_kinds(["postcode=categorical", "grade=ordinal:low<mid<high"])
        >>> kinds["postcode"], kinds["grade"].categories
        ('categorical', ('low', 'mid', 'high'))
        >>> parse_kinds(["start=date:31/12/2024"])["start"].written
        '31/12/2024'
    """
    from lapace.schema import Feature

    kinds: dict[str, str | Feature] = {}
    for text in texts:
        parts = re.fullmatch(r"(?P<name>.+?)=(?P<kind>\w+)(?::(?P<more>.+))?", text)
        if parts is None or (parts["more"] and parts["kind"] not in ("ordinal", "date", "number")):
            raise InputError(
                f"--kind '{text}' is not understood. Write column=kind, such as "
                "'postcode=categorical', 'grade=ordinal:low<mid<high' or 'start=date:31/12/2024'."
            )
        name, kind, more = parts["name"], parts["kind"], parts["more"]
        if more is None:
            kinds[name] = kind
        elif kind == "ordinal":
            kinds[name] = Feature(name, "ordinal", categories=tuple(_levels(more)))
        else:
            kinds[name] = Feature(name, "continuous", written=more)
    return kinds


def _levels(order: str) -> list[Level]:
    """The levels of an order: numbers where all of them are, else words."""
    words = [word.strip() for word in order.split("<")]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return list(words)
    return [int(number) if number % 1 == 0 else number for number in numbers]


def parse_costs(texts: Iterable[str]) -> dict[str, float] | None:
    """Parses costs by column, as `explain(costs=...)` takes them.

    Examples:
        >>> parse_costs(["income=2", "age=impossible"])
        {'income': 2.0, 'age': inf}
        >>> parse_costs(["`Loan amount`=2"])  # as constraints write it
        {'Loan amount': 2.0}
    """
    costs: dict[str, float] = {}
    for text in texts:
        name, _, cost = text.rpartition("=")
        try:
            costs[_unquoted(name)] = float("inf" if cost == "impossible" else cost)
        except ValueError:
            raise InputError(
                f"The cost '{text}' is not understood. Write column=number, such as 'income=2', or "
                "'age=impossible'."
            ) from None
    return costs or None


def parse_label(labels: Iterable[Any], text: str | None) -> Any:
    """Returns the label that a text spells, True and False in any case; else the text.

    Examples:
        >>> parse_label([1, 2], "2"), parse_label([False, True], "true"), parse_label([1, 2], "3")
        (2, True, '3')
    """
    if text is None:
        return None
    by_text = {str(label): label for label in labels}
    truths = {str(label).lower(): label for label in by_text.values() if label in (True, False)}
    return by_text.get(text, truths.get(text.lower(), text))


def _split_names(text: str, known: Collection[str]) -> list[str]:
    """A name, which may have commas in it, or several names between commas."""
    return [text] if text in known else [_unquoted(name) for name in text.split(",")]


def _unquoted(name: str) -> str:
    """A name without the backticks that constraints may need around it."""
    quoted = re.fullmatch(r"\s*`(.*)`\s*", name)
    return quoted[1].replace("``", "`") if quoted else name.strip()


def all_fixed_but(text: str, schema: Schema) -> Constraint:
    """The constraint that only some columns, named with commas between, may change."""
    from lapace.constraints import Shorthand

    free = _split_names(text, schema.names)
    for name in free:
        schema.index(name)
    others = [f.name for f in schema.features if f.name not in free and f.derived is None]
    if not others:
        raise InputError(f"--free '{text}' names every column: leave it out.")
    return Shorthand("fixed", tuple(others))


def read_constraints(files: Iterable[Path], texts: Iterable[str]) -> list[str | Constraint]:
    """Constraints from files, then those of the command line."""
    from lapace.constraints import read_file

    return [*(constraint for path in files for constraint in read_file(path)), *texts]
