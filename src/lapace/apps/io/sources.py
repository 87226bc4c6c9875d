"""A table's file before it is read: its format, encoding and separator, and faults in its lines."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from lapace.errors import InputError, first_line

__all__ = ["Content", "TableSource", "ending_of"]

Content: TypeAlias = str | Path | BinaryIO

PARQUET, GZIP, UTF16 = b"PAR1", b"\x1f\x8b", (b"\xff\xfe", b"\xfe\xff")  # how such files begin
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
LONGEST = 10_000_000  # characters of a line, or of a field of several lines
CODE = re.compile(r"\s*0[0-9]+\s*")  # a number that begins with a zero: a postcode, not an amount
SOME_CODE = re.compile(r"\n0[0-9]+\s*\n")  # in a line for each cell
SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods", ".numbers")


@dataclass(frozen=True)
class TableSource:
    """A file of a table: where it is and how it is written.

    Attributes:
        name: The file's name in messages.
        content: A path, or an open file with a descriptor.
        format: `csv` or `parquet`.
        zipped: Whether it is compressed with gzip.
        encoding: The encoding of CSV.
        separator: The character between fields of CSV.
        codes: Columns of CSV in which some number begins with a zero, as postcodes do.
    """

    name: str
    content: Path | BinaryIO
    format: Literal["csv", "parquet"] = "csv"
    zipped: bool = False
    encoding: str = "utf-8-sig"
    separator: str = ","
    codes: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: Content) -> TableSource:
        """Looks at a file; refuses one that is not there, of another kind, or broken.

        Args:
            content: A path that ends in one of `ENDINGS`, or an open file with a descriptor.
        """
        if isinstance(content, str | Path):
            source = _file_at(Path(content))
        else:
            source = cls("Standard input", content)
        with source.open_bytes() as file:
            begin = file.read(4)
        if not begin:
            raise InputError(f"{source.name} is empty: it has no columns, and no rows.")
        if begin == PARQUET or source.format == "parquet":
            return replace(source, format="parquet")
        source = replace(source, zipped=begin.startswith(GZIP))
        with source.explaining_errors():
            with source.open_bytes() as file:
                if file.read(2) in UTF16:
                    source = replace(source, encoding="utf-16")
            with source.open_text() as lines:
                first = next(source.bounded(lines), "")
            return replace(source, separator=_separator(first))._checked()

    def open_bytes(self) -> BinaryIO:
        """Opens the content at its beginning, decompressed."""
        if isinstance(self.content, Path):
            opened: Any = self.content.open("rb")
        else:
            self.content.flush()
            opened = os.fdopen(os.dup(self.content.fileno()), "rb")
            opened.seek(0)
        if self.zipped:
            unzipped: Any = gzip.GzipFile(fileobj=opened)
            unzipped.myfileobj = opened  # closed with it
            opened = unzipped
        return cast(BinaryIO, opened)

    def open_text(self) -> TextIOWrapper:
        """Opens the content as text to look at: what cannot be decoded is replaced."""
        opened = cast(Any, self.open_bytes())
        return TextIOWrapper(opened, encoding=self.encoding, errors="replace", newline="")

    @contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Turns any error while the file is read into a sentence about the file."""
        try:
            yield
        except (ImportError, InputError):
            raise
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.name} could not be decompressed: {error}.") from None
        except UnicodeError as error:
            raise InputError(
                f"{self.name} is not in {self.encoding.removesuffix('-sig').upper()}. Save it as "
                "UTF-8 (in a spreadsheet: CSV UTF-8), or convert it: iconv -f WINDOWS-1252 -t "
                "UTF-8 OLD > NEW."
            ) from error
        except Exception as error:  # every library describes a broken file in its own way
            raise InputError(
                f"{self.name} could not be read as a table: {first_line(error)}"
            ) from error

    def bounded(self, lines: TextIOWrapper) -> Iterator[str]:
        """Yields the lines of a text; refuses one that would take gigabytes to hold."""
        number = 0
        while line := lines.readline(LONGEST):
            number += 1
            if len(line) >= LONGEST:
                raise InputError(
                    f"{self.name}: line {number} is longer than {LONGEST:,} characters. Is it a "
                    "table, with a line for each row?"
                )
            yield line

    def _checked(self) -> TableSource:
        """Returns the source with its columns of codes.

        Refuses CSV that pandas would mend in silence: a name used twice, a line cut short.
        """
        csv.field_size_limit(LONGEST)
        names: list[str] = []
        codes: set[int] = set()
        begin, end = 1, 0
        with self.open_text() as lines:
            reader = csv.reader(self.bounded(lines), delimiter=self.separator)
            for row in reader:
                begin, end = end + 1, reader.line_num
                if not row or (len(row) == 1 and row[0].isspace()):
                    continue  # empty lines are left out, as pandas does
                if len(row) != len(names or row):
                    raise self._ragged(begin, len(row), len(names))
                if not names:
                    names = row
                elif SOME_CODE.search("\n".join(["", *row, ""])):  # faster than cell by cell
                    codes |= {k for k, cell in enumerate(row) if CODE.fullmatch(cell)}
        for k, name in enumerate(names):
            if name and name in names[:k]:
                raise InputError(
                    f"{self.name} could not be read as a table: column '{name}' is in the table "
                    "twice. Rename one of them."
                )
        return replace(self, codes=tuple(names[k] for k in sorted(codes) if names[k]))

    def _ragged(self, line: int, fields: int, columns: int) -> InputError:
        """The error for a row with too many or too few fields, which begins at a line."""
        separator = "a comma" if self.separator == "," else repr(self.separator)
        hint = (
            f"Put a value with {separator} in it in double quotes."
            if fields > columns
            else "Is a value left out, a double quote never closed, or the file cut short?"
        )
        return InputError(
            f"{self.name} could not be read as a table: line {line} has {fields} "
            f"field{'s' * (fields != 1)}, and the first line names {columns} "
            f"column{'s' * (columns != 1)}. {hint}"
        )


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
    return TableSource(f"'{path.name}'", path, "parquet" if ending == ".parquet" else "csv")


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
