"""A table's file before it is read: its format, encoding and separator, and what is wrong in it."""

from __future__ import annotations

import csv
import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from lapace.errors import InputError, first_line

__all__ = ["Content", "TableSource", "ending_of"]

Content: TypeAlias = str | Path | bytes | BinaryIO

PARQUET, GZIP = b"PAR1", b"\x1f\x8b"  # the first bytes of such files
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods", ".numbers")


@dataclass(frozen=True)
class TableSource:
    """A file of a table: where it is and how it is written.

    Attributes:
        name: The file's name in messages.
        content: A path, the bytes, or an open file with a descriptor.
        format: `csv` or `parquet`.
        zipped: Whether it is compressed with gzip.
        encoding: The encoding of CSV.
        separator: The character between fields of CSV.
    """

    name: str
    content: Path | bytes | BinaryIO
    format: Literal["csv", "parquet"] = "csv"
    zipped: bool = False
    encoding: str = "utf-8-sig"
    separator: str = ","

    @classmethod
    def of(cls, content: Content) -> TableSource:
        """Looks at a file's first line; refuses a file that does not exist or is of another kind.

        Args:
            content: A path that ends in one of `ENDINGS`, or the content of such a file: bytes, or
                an open file with a descriptor.
        """
        if isinstance(content, str | Path):
            source = _file_at(Path(content))
        else:
            source = cls("Standard input", content)
        with source.open_bytes() as file:
            begins = file.read(4)
        if begins.startswith(GZIP) and not source.zipped:
            source = replace(source, zipped=True)
        elif begins == PARQUET and not isinstance(source.content, Path):
            source = replace(source, format="parquet")
        return source if source.format == "parquet" else source._with_notation()

    def _with_notation(self) -> TableSource:
        """The CSV file with its encoding and its separator."""
        with self.explaining_errors(), self.open_bytes() as file:
            utf16 = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        source = replace(self, encoding="utf-16") if utf16 else self
        with source.explaining_errors(), source.open_text("replace") as lines:
            return replace(source, separator=_separator(lines.readline()))

    def open_bytes(self) -> BinaryIO:
        """Opens the content at its beginning, decompressed."""
        if isinstance(self.content, bytes):
            opened: Any = BytesIO(self.content)
        elif isinstance(self.content, Path):
            opened = self.content.open("rb")
        else:
            opened = os.fdopen(os.dup(self.content.fileno()), "rb")
            opened.seek(0)
        if self.zipped:
            unzipped: Any = gzip.GzipFile(fileobj=opened)
            unzipped.myfileobj = opened  # closed with it
            opened = unzipped
        return cast(BinaryIO, opened)

    def open_text(self, errors: str = "strict") -> TextIOWrapper:
        """Opens the content as text, line ends as they are."""
        return TextIOWrapper(
            cast(Any, self.open_bytes()), encoding=self.encoding, errors=errors, newline=""
        )

    @contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Turns any error while the file is read into a sentence about the file."""
        try:
            yield
        except InputError:
            raise
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.name} could not be decompressed: {error}.") from None
        except Exception as error:  # every library describes a broken file in its own way
            if self.encoding == "utf-16" and isinstance(error, UnicodeError):
                raise InputError(
                    f"{self.name} could not be read as UTF-16: {error}. Save it as UTF-8."
                ) from None
            if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
                raise InputError(
                    f"{self.name} is not in UTF-8. Save it as UTF-8 (in a spreadsheet: CSV UTF-8), "
                    f"or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW."
                ) from error
            raise InputError(
                f"{self.name} could not be read as a table: {first_line(error)}"
            ) from error

    def check_lines(self) -> None:
        """Refuses CSV that readers would mend in silence: a name used twice, a line cut short."""
        csv.field_size_limit(sys.maxsize)  # else the module gives up at 131,072 characters
        with self.explaining_errors(), self.open_text("replace") as lines:
            reader = csv.reader(lines, delimiter=self.separator)
            rows = _numbered_rows(reader)
            try:
                names = next(rows, (1, []))[1]
                for line, row in rows:
                    if len(row) != len(names):
                        several = reader.line_num > line
                        last = next(rows, None) is None
                        raise self._ragged(line, len(row), len(names), several=several, last=last)
            except csv.Error:  # the reader of the table describes it better
                return
        for k, name in enumerate(names):
            if name and name in names[:k]:
                raise InputError(
                    f"{self.name} could not be read as a table: column '{name}' is in the table "
                    "twice. Rename one of them."
                )

    def _ragged(
        self, line: int, fields: int, columns: int, *, several: bool, last: bool
    ) -> InputError:
        """The error for a row with too many or too few fields.

        Args:
            line: The line at which the row begins.
            fields: How many fields the row has.
            columns: How many the first line names.
            several: Whether the row has several lines.
            last: Whether it is the last row.
        """
        if fields > columns:
            separator = "a comma" if self.separator == "," else repr(self.separator)
            has = (
                f"{fields} fields, and the first line names {columns} "
                f"column{'s' if columns > 1 else ''}. Put a value with {separator} in it in double "
                "quotes."
            )
        elif not last:
            has = f"{fields} of {columns} fields. Where a value is missing, leave its comma."
        elif several:
            has = f"{fields} of {columns} fields: a double quote may never be closed there."
        else:
            has = f"{fields} of {columns} fields: the file may be cut short."
        return InputError(f"{self.name} could not be read as a table: line {line} has {has}")


def _file_at(path: Path) -> TableSource:
    ending = ending_of(path)
    if ending not in ENDINGS:
        *others, last = ENDINGS
        sheet = " Save it as CSV first." if ending in SPREADSHEETS else ""
        raise InputError(
            f"'{path.name}' is not read: files end in {', '.join(others)} or {last}.{sheet}"
        )
    if not path.is_file():
        raise InputError(f"There is no file '{path.name}' in '{path.parent}'.")
    format_: Any = "parquet" if ending == ".parquet" else "csv"
    return TableSource(f"'{path.name}'", path, format_, zipped=ending.endswith(".gz"))


def ending_of(path: Path) -> str:
    """Returns a file's ending, `.gz` together with the one before it.

    Examples:
        >>> ending_of(Path("Orders.2024.CSV.gz")), ending_of(Path("orders.csv"))
        ('.csv.gz', '.csv')
    """
    ending = path.suffix.lower()
    return Path(path.stem).suffix.lower() + ending if ending == ".gz" else ending


def _separator(first: str) -> str:
    """The separator of a first line: a comma, unless it has none or fewer than semicolons."""
    counts = {mark: first.count(mark) for mark in (",", ";", "\t", "|")}
    semicolons = counts[";"] > counts[","] and '"' not in first
    return max(counts, key=counts.__getitem__) if not counts[","] or semicolons else ","


def _numbered_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows of CSV, each with the line it begins at; empty lines are left out, as readers do."""
    end = 0
    for row in reader:
        begin, end = end + 1, reader.line_num
        if row and not (len(row) == 1 and row[0].isspace()):
            yield begin, row
