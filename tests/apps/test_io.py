"""Tables in files: read and written whole and in chunks, and what is wrong with a file."""

from __future__ import annotations

import gzip
import io
import sys
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from tempfile import TemporaryFile

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapace import InputError
from lapace.apps.io import TableFile, csv_parts, read_file, reading, sources, write_frames

CELLS = {
    "whole": [str(i) for i in range(12)],
    "gaps": ["1", "", "3", *["4"] * 9],
    "late_decimal": [*["5"] * 11, "5.5"],
    "late_text": ["007", *["8"] * 10, "A9"],
    "truth": ["True", "False"] * 6,
    "late_gap": ["True"] * 11 + [""],
    "late_truth": ["1"] * 11 + ["True"],
    "nothing": [""] * 12,
    "late_word": [""] * 11 + ["red, dark"],
    "quoted": ['say "hi"', *["two\nlines"] * 11],
    "large": ["9007199254740993"] * 12,
}
CSV = pd.DataFrame(CELLS).to_csv(index=False).encode()


OPENED = ExitStack()


@pytest.fixture(autouse=True)
def _short_scan(monkeypatch):
    monkeypatch.setattr(reading, "SCANNED", 5)
    with OPENED:
        yield


@contextmanager
def _open(content):
    with TemporaryFile() as file:
        file.write(content)
        yield file


def stream(content):
    """An open file with that content, as standard input is kept, until the test ends."""
    return OPENED.enter_context(_open(content))


def joined(file, size):
    """All chunks, one below the other, and each checked for its size and numbering."""
    parts = list(file.chunks(size))
    for part in parts:
        assert part.index.tolist() == list(range(len(part)))
        assert len(part) <= size
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("size", [1, 5, 100])
def test_chunks_of_csv_are_typed_as_the_whole(size):
    file, whole = TableFile(stream(CSV)), read_file(stream(CSV))
    assert len(file) == len(whole) == 12
    pd.testing.assert_frame_equal(joined(file, size), whole, check_dtype=False)
    for chunk in file.chunks(size):
        for name in ("whole", "gaps", "late_decimal", "late_text", "late_truth", "large"):
            assert chunk[name].dtype == whole[name].dtype, name


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.sampled_from(["", "1", "2.5", "True", "x", "-3", "1e9", "é"])] * 3),
        min_size=1,
        max_size=14,
    ),
    st.integers(1, 6),
)
def test_any_cells_come_out_of_chunks_as_out_of_the_whole(rows, size):
    text = "a,b,c\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows if a + b + c)
    file = stream(text.encode())
    one, other = (f.to_csv(index=False) for f in (joined(TableFile(file), size), read_file(file)))
    assert one == other


def test_every_spelling_of_a_file_gives_the_same(tmp_path):
    whole, text = read_file(stream(CSV)), CSV.decode()
    table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    tabs = table.to_csv(index=False, sep="\t").encode()
    files = {
        "a.csv": CSV,
        "a.csv.gz": gzip.compress(CSV),
        "b.csv": text.encode("utf-16"),
        "c.csv": b"\xef\xbb\xbf" + CSV,
        "a.tsv": tabs,
        "a.tsv.gz": gzip.compress(tabs),
        "s.csv": table.to_csv(index=False, sep=";").encode("utf-16"),
        "p.csv": table.to_csv(index=False, sep="|").encode(),
    }
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        pd.testing.assert_frame_equal(read_file(path), whole)
        pd.testing.assert_frame_equal(read_file(stream(data)), whole)
        pd.testing.assert_frame_equal(joined(TableFile(path), 5), whole, check_dtype=False)


def test_parquet_comes_in_chunks_too(tmp_path):
    frame = pd.DataFrame(
        {
            "whole": range(12),
            "gaps": pd.array([1, None, *range(10)], dtype="Int64"),
            "size": pd.Categorical(["s", "m"] * 6, ["s", "m"], ordered=True),
            "day": pd.date_range("2024-01-01", periods=12),
        }
    )
    path = tmp_path / "a.parquet"
    frame.astype({"gaps": "float64"}).to_parquet(path)
    pd.testing.assert_frame_equal(joined(TableFile(path), 5), pd.read_parquet(path))
    pl.DataFrame({"gaps": [1, None, 3, 4, 5, 6]}).write_parquet(path)
    parts = list(TableFile(path).chunks(2))
    assert {str(part["gaps"].dtype) for part in parts} == {"float64"}, "as the whole file is read"
    frame.index = pd.Index([f"A-{i}" for i in range(12)], name="customer")
    frame.to_parquet(path)
    assert pd.concat(list(TableFile(path).chunks(5))).index.tolist() == frame.index.tolist()


def test_rows_are_drawn_without_the_others():
    file = TableFile(stream(CSV))
    drawn = file.sample(6, random_state=1)["whole"].tolist()
    assert len(set(drawn)) == 6
    assert drawn == sorted(drawn)
    assert drawn == file.sample(6, random_state=1)["whole"].tolist()
    assert drawn != file.sample(6, random_state=2)["whole"].tolist()
    assert len(file.sample(99)) == 12


def test_a_table_without_rows_is_one_empty_chunk():
    for data in (b"a,b\n", pd.DataFrame({"a": [], "b": []}).to_parquet()):
        assert [chunk.shape for chunk in TableFile(stream(data)).chunks(5)] == [(0, 2)]


def test_a_long_csv_has_one_type_per_column(tmp_path):
    # pandas reads such a file in pieces, and guesses anew for each, unless low_memory is off.
    path = tmp_path / "long.csv"
    path.write_text("x,y\n" + "1,1\n" * 300_000 + "a,1\n" * 10)
    assert set(read_file(path)["x"]) == {"1", "a"}


WHOLE = pd.DataFrame({"age": [31]}).to_parquet()
BROKEN = {
    b"": "is empty: it has no columns",
    "a;b\n\u00fc;2\n".encode("cp1252"): "is not in UTF-8. Save it as UTF-8",
    gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9]: "could not be decompressed",
    b"\x1f\x8bnot really": "could not be decompressed",
    b"PAR1 and then nothing": "could not be read as a table",
    WHOLE[:-20]: "could not be read as a table",
    b"a,b,a\n1,2,3\n": "column 'a' is in the table twice. Rename one of them.",
    b"a,b,c\n1,2,3\n4,5": "line 3 has 2 fields, and the first line names 3 columns. Is a value",
    b"a,b\r\n1,2\r\n\r\n3,4,5\r\n": "line 4 has 3 fields, and the first line names 2 columns. Put",
    b"a;b\n1;2;3\n": "Put a value with ';' in it in double quotes.",
    b"a,b\n" + b"x" * 200_000 + b",1\nshort\n": "line 3 has 1 field, and",
    b"a\n1,5\n": "line 2 has 2 fields, and the first line names 1 column. Put a value with a comma",
    b'a,b\n"x\ny",2\n"z,3\n4,5\n': "line 4 has 1 field, and the first line names 2 columns.",
}


@pytest.mark.parametrize(("content", "sentence"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_file_is_refused_before_its_first_chunk(content, sentence, tmp_path):
    path = tmp_path / f"it.{'parquet' if content.startswith(b'PAR1') else 'csv'}"
    path.write_bytes(content)
    for source, name in ((path, f"'{path.name}'"), (stream(content), "Standard input")):
        for read in (read_file, lambda source: next(TableFile(source).chunks(5))):
            with pytest.raises(InputError) as raised:
                read(source)
            assert str(raised.value).startswith(name)
            assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ('\ufeffa,b\n1,"x, y"\n\n2,"two\nlines"\n', (2, 2)),
        ("a,b\r\n1,\r\n,2", (2, 2)),
        (",a\n0,1\n", (1, 2)),
        ("a,b\n1,2\n  \n", (1, 2)),
        (f"a,b\n{'x' * 200_000},1\n", (1, 2)),
    ],
)
def test_commas_lines_and_marks_that_belong_are_no_fault(text, shape):
    assert read_file(stream(text.encode())).shape == shape


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    for name in ("instances.csv", "folder.csv"):
        with pytest.raises(InputError, match=rf"^There is no file '{name}' in '"):
            read_file(tmp_path / name)
    for name in ("instances.xlsx", "instances", "instances.csv.xz"):
        with pytest.raises(InputError, match=rf"^'{name}' is not read: files end in \.csv, \.tsv"):
            read_file(tmp_path / name)
    with pytest.raises(InputError, match=r"\.parquet\. Save it as CSV first\.$"):
        read_file(tmp_path / "instances.xlsx")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas: pip install 'lapace\[pandas\]'"):
        read_file(stream(CSV))


def test_codes_keep_their_leading_zeros_whole_and_in_chunks():
    text = "postcode,day,amount,share\n01234,01/02/2024,7,0.5\n99999,03/02/2024,0,0\n,,10,00\n"
    for frame in (read_file(stream(text.encode())), joined(TableFile(stream(text.encode())), 1)):
        assert frame["postcode"].fillna("").tolist() == ["01234", "99999", ""]
        assert frame["share"].tolist() == ["0.5", "0", "00"]
        assert frame["amount"].tolist() == [7, 0, 10]
    quoted = 'id;code\n1;"0042"\n2;17\n'
    assert read_file(stream(quoted.encode()))["code"].tolist() == ["0042", "17"]


@pytest.mark.parametrize(
    "content", ["x" * 3_000, "a,b\n1," + "2" * 3_000, 'a,b\n1,"' + "2\n" * 3_000]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_line_is_bounded_before_it_is_held(content, zipped, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST", 1_000)
    data = content.encode()
    with pytest.raises(InputError, match=r"longer than 1,000 characters|larger than field limit"):
        read_file(stream(gzip.compress(data) if zipped else data))


# --- writing -------------------------------------------------------------------------------------


def frames_of(count):
    """Frames whose first ones show least of what their columns hold."""
    whole = pd.DataFrame(
        {
            "prototype": np.array([None, None, None, 2, None, 4], dtype=object),
            "note": [None, None, 'a, "b"', None, "c\nd", ""],
            "value": [np.nan, np.nan, 1.5, 2.0, 3.0, 4.0],
            "ok": [True, False] * 3,
        }
    )
    cuts = np.linspace(0, 6, count + 1).astype(int)
    return whole, [whole.iloc[a:b].reset_index(drop=True) for a, b in pairwise(cuts)]


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_parts_make_the_file_that_the_whole_makes(count, ending, tmp_path):
    whole, frames = frames_of(count)
    write_frames(frames, tmp_path / f"out{ending}", integers=("prototype",))
    write_frames([whole], tmp_path / f"whole{ending}")
    one, other = (read_file(tmp_path / f"{name}{ending}") for name in ("out", "whole"))
    pd.testing.assert_frame_equal(one, other)
    if ending == ".csv":
        assert (tmp_path / "out.csv").read_bytes() == whole.to_csv(index=False).encode()
    write_frames([whole.head(0)] * 2, tmp_path / f"none{ending}")
    assert read_file(tmp_path / f"none{ending}").shape == (0, 4)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.Table.from_pydict])
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".CSV"])
def test_frames_of_any_kind_come_back_as_they_were(make, ending, tmp_path):
    path = tmp_path / f"out{ending}"
    write_frames([make({"a": [1], "b é": ["x"]}), make({"a": [2, 3], "b é": ["y", None]})], path)
    back = read_file(path)
    assert back["a"].tolist() == [1, 2, 3]
    assert back["b é"].fillna("").tolist() == ["x", "y", ""]


def test_parts_are_out_as_soon_as_their_frame_is():
    frames = iter(frames_of(3)[1])
    assert next(csv_parts(frames)).count("\n") == 3
    assert len(list(frames)) == 2


def test_files_that_cannot_be_written(tmp_path):
    frame = pd.DataFrame({"age": [31]})
    with pytest.raises(InputError, match=r"^'instances\.txt' is not written: files end in \.csv, "):
        write_frames([frame], tmp_path / "instances.txt")
    with pytest.raises(InputError, match=r"^A list is not written\. Pass a pandas, polars or"):
        write_frames([[{"a": 1}]], tmp_path / "instances.csv")
    with pytest.raises(InputError, match=r"^There is no folder '.*nowhere' to write 'instances\."):
        write_frames([frame], tmp_path / "nowhere" / "instances.csv")
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "instances.parquet"
    write_frames([frame], path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"^'instances\.parquet' could not be written: \S"):
        write_frames([pd.DataFrame({"x": [1, "a", object()]})], path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["instances.parquet"]


def test_a_named_index_is_written_and_another_is_not(tmp_path):
    for suffix in (".csv", ".parquet"):
        path = tmp_path / f"instances{suffix}"
        write_frames([pd.DataFrame({"x": [1, 2]}, index=pd.Index(["p", "q"], name="id"))], path)
        assert read_file(path).to_dict("list") == {"id": ["p", "q"], "x": [1, 2]}
        write_frames([pd.DataFrame({"x": [1, 2]}, index=["p", "q"])], path)
        assert read_file(path).to_dict("list") == {"x": [1, 2]}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.Table.from_pydict])
def test_a_spreadsheet_computes_nothing_of_a_safe_file(make, tmp_path):
    path = tmp_path / "out.csv"
    cells = ["=cmd|' /C calc'!A0", "@A1", "-2+3", "\t=1", "-5", "+1.5 %", "plain", None]
    frame = make({"=name": cells, "n": [-1] * 8})
    write_frames([frame], path, safe=True)
    back = pd.read_csv(path)
    assert list(back) == ["'=name", "n"]
    assert back["'=name"].fillna("").tolist() == [
        "'=cmd|' /C calc'!A0", "'@A1", "'-2+3", "'\t=1", "-5", "+1.5 %", "plain", ""
    ]  # fmt: skip
    assert back["n"].tolist() == [-1] * 8
    write_frames([frame], path)
    assert pd.read_csv(path)["=name"].fillna("").tolist() == [*cells[:-1], ""]


def test_whole_numbers_beside_gaps_are_written_as_such(tmp_path):
    frame = pd.DataFrame({"age": [68.0, None], "height": [1.0, None]})
    assert "".join(csv_parts([frame], ["age"])) == "age,height\n68,1.0\n,\n"
