"""Files of what was measured: whole or not at all, whoever writes, whatever is in the way."""

import json
import os
import subprocess
import sys
import threading

import pytest

from torch_galley.core.errors import ToolError
from torch_galley.core.notes import Notes, cache_folder
from torch_galley.core.store import read_record

BROKEN = ["", "{", '{"galley": "rates", "format": 1}', '{"galley": "rates", "format": 1, "entr']
FOREIGN = ['{"name": "mine"}', "[1, 2]", '{"galley": "decisions", "format": 1, "entries": {}}']


@pytest.fixture
def file(tmp_path):
    return Notes(tmp_path / "deep" / "rates.json", "rates")


def test_entries_come_back_and_stay(file):
    assert file.read() == ({}, None)
    file.add({"a": {"call": 1.0}})
    file.add({"b": {"call": 2.0}})
    file.add({"a": {"call": 3.0}})
    assert file.read() == ({"a": {"call": 3.0}, "b": {"call": 2.0}}, None)
    assert sorted(p.name for p in file.path.parent.iterdir()) == [".rates.json.lock", "rates.json"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_told_of_and_replaced(file, text):
    file.path.parent.mkdir()
    file.path.write_text(text)
    entries, problem = file.read()
    assert entries == {}
    assert problem is not None
    assert problem.startswith(f"{file.path} is broken: ")
    file.add({"a": 1})
    assert file.read() == ({"a": 1}, None)


@pytest.mark.parametrize("text", [*FOREIGN, '{"galley": "rates", "format": 99, "entries": {}}'])
def test_a_foreign_file_is_told_of_and_left_alone(file, text):
    file.path.parent.mkdir()
    file.path.write_text(text)
    entries, problem = file.read()
    assert entries == {}
    assert problem is not None
    with pytest.raises(ToolError, match=r"is no file of rates|has another format than 1"):
        file.add({"a": 1})
    assert file.path.read_text() == text


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ToolError, match=r"can't write .*rates.json: .*\n  hint: name another"):
        Notes(tmp_path / "taken" / "rates.json", "rates").add({"a": 1})


def test_threads_lose_nothing(file):
    threads = [threading.Thread(target=file.add, args=({str(n): n},)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read() == ({str(n): n for n in range(16)}, None)


def test_two_processes_lose_nothing(file):
    program = """
import sys
from pathlib import Path
from torch_galley.core.notes import Notes
for n in range(20):
    Notes(Path(sys.argv[1]), "rates").add({f"{sys.argv[2]}{n}": n})
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(file.path), name]) for name in "ab"
    ]
    while any(writer.poll() is None for writer in writers):
        assert file.read()[1] is None  # never half a file
    assert [writer.wait() for writer in writers] == [0, 0]
    assert file.read()[0] == {f"{name}{n}": n for name in "ab" for n in range(20)}
    json.loads(file.path.read_text())


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "torch-galley"
    assert cache_folder("else/where").parts == ("else", "where")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / ".cache" / "torch-galley"


def test_what_is_no_plain_file_is_told_of_at_once(file):
    file.path.parent.mkdir()
    os.mkfifo(file.path)
    assert file.read() == ({}, f"{file.path} is no plain file")
    file.path.unlink()
    file.path.symlink_to("/dev/zero")
    assert file.read() == ({}, f"{file.path} is no plain file")
    with pytest.raises(ToolError, match="is no plain file"):
        file.add({"a": 1})
    assert file.path.is_symlink()


def test_deep_nesting_is_told_of(file):
    file.path.parent.mkdir()
    file.path.write_text("[" * 200_000)
    assert file.read() == ({}, f"{file.path} is broken: it is nested too deeply")
    with pytest.raises(ToolError, match="nested too deeply"):
        read_record(file.path.parent, file.path.stem)
