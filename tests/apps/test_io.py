"""Tables in files: read and written whole and in chunks, and what is wrong with a file."""

from __future__ import annotations

import gzip
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapace import InputError
from lapace.apps.io import TableFile, file_parts, read_file, reading, write_frames
from lapace.table import read

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


LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table}


def use(monkeypatch, kind):
    """Reads with one library, as if no other were installed."""
    monkeypatch.setattr(reading, "LIBRARIES", (kind,))


def table_of(cells=CELLS):
    """A CSV of those columns."""
    return pd.DataFrame(cells).to_csv(index=False).encode()


@pytest.fixture(autouse=True)
def _short_scan(monkeypatch):
    monkeypatch.setattr(reading, "SCANNED", 5)


def joined(file, sizes):
    """All chunks, one below the other, and each checked for its size and numbering."""
    parts = list(file.chunks(sizes))
    for part in parts:
        assert part.index.tolist() == list(range(len(part)))
    return pd.concat(parts, ignore_index=True), [len(part) for part in parts]


@pytest.mark.parametrize("sizes", [[1], [3], [2, 5], [100]])
def test_chunks_of_csv_are_typed_as_the_whole(sizes):
    file, whole = TableFile(table_of()), read_file(table_of())
    assert len(file) == len(whole)
    found, lengths = joined(file, sizes)
    assert sum(lengths) == 12
    assert lengths[:-1] == [*sizes[:-1], *[sizes[-1]] * 12][: len(lengths) - 1]
    pd.testing.assert_frame_equal(found, whole, check_dtype=False)
    for chunk in file.chunks(sizes):
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
    content = text.encode()
    whole = read_file(content)
    found, _ = joined(TableFile(content), [size])
    one, other = (frame.to_csv(index=False) for frame in (found, whole))
    assert one == other


def test_every_spelling_of_a_file_gives_the_same(tmp_path):
    content = table_of()
    whole = read_file(content)
    text = content.decode()
    tabs = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    files = {
        "a.csv": content,
        "a.csv.gz": gzip.compress(content),
        "b.csv": text.encode("utf-16"),
        "c.csv": b"\xef\xbb\xbf" + content,
        "a.tsv": tabs.to_csv(index=False, sep="\t").encode(),
        "a.tsv.gz": gzip.compress(tabs.to_csv(index=False, sep="\t").encode()),
        "s.csv": tabs.to_csv(index=False, sep=";").encode("utf-16"),
        "p.csv": tabs.to_csv(index=False, sep="|").encode(),
    }
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        pd.testing.assert_frame_equal(read_file(path), whole)
        pd.testing.assert_frame_equal(read_file(data), whole)
        pd.testing.assert_frame_equal(joined(TableFile(path), [5])[0], whole, check_dtype=False)
        with path.open("rb") as opened:
            opened.seek(7)
            assert len(TableFile(opened)) == 12
            pd.testing.assert_frame_equal(TableFile(opened).take(range(12)), whole)


@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
@pytest.mark.parametrize(
    "data",
    [
        table_of(),
        gzip.compress(table_of()),
        table_of().decode().encode("utf-16"),
        pd.DataFrame(CELLS).to_parquet(),
    ],
    ids=["csv", "gz", "utf-16", "parquet"],
)
def test_other_libraries_cut_their_chunks_from_the_whole(kind, data, monkeypatch):
    use(monkeypatch, kind)
    parts = list(TableFile(data).chunks([5]))
    assert [len(part) for part in parts] == [5, 5, 2]
    assert all(isinstance(part, LIBRARIES[kind]) for part in parts)


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
    pd.testing.assert_frame_equal(joined(TableFile(path), [5])[0], pd.read_parquet(path))
    pl.DataFrame({"gaps": [1, None, 3, 4, 5, 6]}).write_parquet(path)
    parts = list(TableFile(path).chunks([2]))
    assert {str(part["gaps"].dtype) for part in parts} == {"float64"}, "as the whole file is read"
    frame.index = pd.Index([f"A-{i}" for i in range(12)], name="customer")
    frame.to_parquet(path)
    parts = list(TableFile(path).chunks([5]))
    assert pd.concat(parts).index.tolist() == frame.index.tolist()
    assert TableFile(path).take([7, 2]).index.tolist() == ["A-7", "A-2"]


def test_rows_are_taken_and_drawn_without_the_others(tmp_path):
    file, whole = TableFile(table_of()), read_file(table_of())
    taken = file.take([11, 0, 6])
    pd.testing.assert_frame_equal(
        taken, whole.iloc[[11, 0, 6]].reset_index(drop=True), check_dtype=False
    )
    drawn = file.sample(6, random_state=1)["whole"].tolist()
    assert len(set(drawn)) == 6
    assert drawn == sorted(drawn)
    assert drawn == file.sample(6, random_state=1)["whole"].tolist()
    assert drawn != file.sample(6, random_state=2)["whole"].tolist()
    assert len(file.sample(99)) == 12


def test_a_table_without_rows_is_one_empty_chunk():
    for data in (b"a,b\n", pd.DataFrame({"a": [], "b": []}).to_parquet()):
        assert [chunk.shape for chunk in TableFile(data).chunks([5])] == [(0, 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "could not be read as a table"),
        ("a;b\n\u00fc;2\n".encode("cp1252"), "is not in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16") + b"\n", "line 3 .* cut short"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], "could not be decompressed"),
        (b"\x1f\x8bnot really", "could not be decompressed"),
        (b"PAR1 and then nothing", "could not be read as a table"),
    ],
)
def test_a_broken_file_is_refused_before_its_first_chunk(content, message):
    with pytest.raises(InputError, match=message):
        next(TableFile(content).chunks([5]))
    with pytest.raises(InputError, match=message):
        read_file(content)


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


@pytest.mark.parametrize("count", [1, 2, 6, 9])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_parts_make_the_file_that_the_whole_makes(count, ending, tmp_path):
    whole, frames = frames_of(count)
    path = tmp_path / f"out{ending}"
    path.write_bytes(b"".join(file_parts(frames, ending, integers=("prototype",))))
    write_frames([whole], tmp_path / f"whole{ending}")
    pd.testing.assert_frame_equal(read_file(path), read_file(tmp_path / f"whole{ending}"))
    if ending == ".csv":
        assert path.read_bytes() == whole.to_csv(index=False).encode()


@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_parts_of_other_frames(kind, ending, monkeypatch):
    use(monkeypatch, kind)
    frames = [read_file(b"a,b\n1,x\n"), read_file(b"a,b\n2,y\n3,z\n")]
    use(monkeypatch, "pandas")
    found = read_file(b"".join(file_parts(frames, ending)))
    assert found["a"].tolist() == [1, 2, 3]
    assert found["b"].tolist() == ["x", "y", "z"]


def test_parts_are_out_as_soon_as_their_frame_is():
    made = []

    def frames():
        for frame in frames_of(3)[1]:
            made.append(frame)
            yield frame

    for ending in (".csv", ".csv.gz"):
        made.clear()
        parts = file_parts(frames(), ending)
        assert next(parts)
        assert len(made) == 1


def test_nothing_found_is_a_file_without_rows(tmp_path):
    empty = frames_of(1)[0].head(0)
    for ending in (".csv", ".parquet"):
        path = Path(tmp_path, f"none{ending}")
        path.write_bytes(b"".join(file_parts([empty, empty], ending)))
        assert read_file(path).shape == (0, 4)


# --- files -----------------------------------------------------------------------------------

INSTANCES = pd.DataFrame(
    {"age": [31, 44, 29], "rate": [0.1, 2.5, None], "home é": ["own", "rent", None]}
)


def convert(frame, kind):
    columns = {n: [None if pd.isna(v) else v for v in frame[n]] for n in frame}
    return {"pandas": frame, "polars": pl.DataFrame(columns), "pyarrow": pa.table(columns)}[kind]


@pytest.mark.parametrize("kind", LIBRARIES)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_files_come_back_as_they_were(tmp_path, kind, suffix, monkeypatch):
    use(monkeypatch, kind)
    frame = convert(INSTANCES, kind)
    path = tmp_path / f"instances{suffix}"
    write_frames([frame], path)
    back = read_file(str(path))
    assert isinstance(back, LIBRARIES[kind])
    assert read(back).names == read(frame).names
    for name, column in read(frame).columns.items():
        other = read(back).columns[name]
        assert other.kind == column.kind
        if name == "home é":
            gone = "" if kind == "pyarrow" and suffix != ".parquet" else None
            assert [other.values.levels[c] if c >= 0 else None for c in other.values.codes] == [
                "own",
                "rent",
                gone,
            ]
        else:
            np.testing.assert_array_equal(other.values, column.values)


def test_a_long_csv_has_one_type_per_column(tmp_path):
    # pandas reads such a file in pieces, and guesses anew for each, unless low_memory is off.
    path = tmp_path / "long.csv"
    path.write_text("x,y\n" + "1,1\n" * 300_000 + "a,1\n" * 10)
    column = read(read_file(path)).columns["x"]
    assert column.kind == "text"
    assert column.values.levels == ("1", "a")


@pytest.mark.parametrize("kind", LIBRARIES)
def test_broken_files_say_so(tmp_path, kind, monkeypatch):
    use(monkeypatch, kind)
    whole = tmp_path / "whole.parquet"
    write_frames([INSTANCES], whole)
    (tmp_path / "short.parquet").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "text.parquet").write_text("age,home\n31,own\n")
    for name in ("short.parquet", "empty.parquet", "empty.csv", "text.parquet"):
        with pytest.raises(InputError, match=rf"^'{name}' could not be read as a table: \S"):
            read_file(tmp_path / name)


RAGGED = {
    "a,b,a\n1,2,3\n": "column 'a' is in the table twice. Rename one of them.",
    "a,b,c\n1,2,3\n4,5": "line 3 has 2 of 3 fields: the file may be cut short.",
    "a,b,c\n1,2\n4,5,6\n": "line 2 has 2 of 3 fields. Where a value is missing, leave its comma.",
    "a,b\r\n1,2\r\n\r\n3,4,5\r\n": "line 4 has 3 fields, and the first line names 2 columns. Put",
    f"a,b\n{'x' * 200_000},1\nshort\n": "line 3 has 1 of 2 fields",
    "a\n1,5\n": "line 2 has 2 fields, and the first line names 1 column. Put a value",
    'a,b\n"x\ny",2\n"z,3\n4,5\n': "line 4 has 1 of 2 fields: a double quote may never be closed",
}


@pytest.mark.parametrize(("text", "sentence"), RAGGED.items(), ids=range(len(RAGGED)))
def test_what_readers_would_mend_in_silence_is_refused(tmp_path, text, sentence):
    (tmp_path / "instances.csv").write_bytes(text.encode())
    with pytest.raises(InputError) as raised:
        read_file(tmp_path / "instances.csv")
    assert str(raised.value).startswith(f"'instances.csv' could not be read as a table: {sentence}")
    with pytest.raises(InputError) as raised:
        read_file(text.encode())
    assert str(raised.value).startswith(f"Standard input could not be read as a table: {sentence}")


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
    assert read_file(text.encode()).shape == shape


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"^There is no file 'instances\.csv' in '"):
        read_file(tmp_path / "instances.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"^There is no file 'folder\.csv' in '"):
        read_file(tmp_path / "folder.csv")
    for name in ("instances.xlsx", "instances", "instances.csv.xz"):
        with pytest.raises(InputError, match=rf"^'{name}' is not read: files end in \.csv, \.tsv"):
            read_file(tmp_path / name)
    with pytest.raises(InputError, match=r"\.parquet\. Save it as CSV first\.$"):
        read_file(tmp_path / "instances.xlsx")


def test_a_library_that_is_not_there(tmp_path, monkeypatch):
    write_frames([INSTANCES], tmp_path / "instances.csv")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs a dataframe library: pip install 'lapace\[pan"):
        read_file(tmp_path / "instances.csv")


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"^'instances\.txt' is not written: files end in \.csv, "):
        write_frames([INSTANCES], tmp_path / "instances.txt")
    with pytest.raises(InputError, match=r"^A list is not written\. Hand over a pandas, polars or"):
        write_frames([[{"a": 1}]], tmp_path / "instances.csv")
    with pytest.raises(
        InputError, match=r"^There is no folder '.*nowhere' to write 'instances\.csv' i"
    ):
        write_frames([INSTANCES], tmp_path / "nowhere" / "instances.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_named_index_is_written_and_another_is_not(tmp_path):
    for suffix in (".csv", ".parquet"):
        path = tmp_path / f"instances{suffix}"
        write_frames([pd.DataFrame({"x": [1, 2]}, index=pd.Index(["p", "q"], name="id"))], path)
        assert read_file(path).to_dict("list") == {"id": ["p", "q"], "x": [1, 2]}
        write_frames([pd.DataFrame({"x": [1, 2]}, index=["p", "q"])], path)
        assert read_file(path).to_dict("list") == {"x": [1, 2]}


def test_an_error_leaves_no_half_file_and_the_old_one_whole(tmp_path):
    path = tmp_path / "instances.parquet"
    write_frames([INSTANCES], path)
    before = path.read_bytes()
    odd = pd.DataFrame({"x": [1, "a", object()]})
    with pytest.raises(InputError, match=r"^'instances\.parquet' could not be written: \S"):
        write_frames([odd], path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["instances.parquet"]
