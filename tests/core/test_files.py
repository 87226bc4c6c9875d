"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import signal

import pytest

from lapace.errors import InputError
from lapace.files import read_json, temporary_path, write_json, write_whole
from tests.processes import python


def test_whole_or_not_at_all(tmp_path):
    path = tmp_path / "note.txt"

    def fail(temporary):
        temporary.write_text("half")
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".txt"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, fail)
    assert list(tmp_path.iterdir()) == []
    write_whole(path, lambda temporary: temporary.write_text("whole"))
    write_whole(path, lambda temporary: temporary.write_text("anew"))
    assert path.read_text() == "anew"
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]
    (tmp_path / "plain.txt").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_links_are_followed_and_permissions_kept_from_the_first_byte(tmp_path):
    path, link = tmp_path / "private.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    modes = []

    def write(temporary):
        modes.append(temporary.stat().st_mode & 0o777)
        temporary.write_text("new")

    write_whole(link, write)
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert modes == [0o600]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    out = tmp_path / "out.csv"
    killed = python("-c", KILLED, out)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.csv.")
    other = tmp_path / left.name.replace("out.csv", "other.csv")
    living = temporary_path(out)  # of this process, which is alive
    for path in (other, living):
        path.write_text("")
    write_whole(out, lambda path: path.write_text("whole"))
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", other.name, living.name}


KILLED = """
import os, signal, sys
from pathlib import Path
from lapace.files import write_whole

def write(path):
    path.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

write_whole(Path(sys.argv[1]), write)
"""


def test_json_says_what_it_should_have_held(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, None]})
    assert read_json(path, "a report") == {"a": [1, None]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, float("nan"))
    path.write_text("{")
    with pytest.raises(InputError, match=r"a\.json' could not be read as a report: Expecting"):
        read_json(path, "a report")
    with pytest.raises(InputError, match=r"There is no file '.*b.json' to read a report from"):
        read_json(tmp_path / "b.json", "a report")


def test_a_full_disk_names_the_file(tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device") as raised:
        write_whole(tmp_path / "out.csv", full)
    assert raised.value.filename == str(tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []
