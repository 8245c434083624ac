"""Reading takes regular files of a stated size alone; writing replaces a file whole or leaves it."""

from __future__ import annotations

import ast
import errno
import os
import socket
import stat
from pathlib import Path

import pytest

import loadmaster
from loadmaster.errors import LoadmasterError
from loadmaster.files import check_replaceable, open_regular, read_regular, replacing


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "four"
    path.write_bytes(b"1234")
    assert read_regular(path, 4) == b"1234"
    with pytest.raises(OSError, match=r"larger than 3 B") as caught:
        read_regular(path, 3)
    assert caught.value.filename == str(path)
    # A file of the system that says to have no bytes, and has some.
    with pytest.raises(OSError, match=r"larger than 3 B"):
        read_regular("/proc/self/status", 3)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name, kind in (("pipe", "a pipe"), ("socket", "a socket"), ("link", "a pipe")):
        with pytest.raises(OSError, match=f"it is {kind} and no regular file"):
            open_regular(tmp_path / name, 10)  # would wait for ever
    with pytest.raises(OSError, match="it is a device"):
        read_regular("/dev/zero", 10)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 10)
    for name in ("nul\0l", "\ud800"):
        with pytest.raises(OSError, match="no file can have this name"):
            read_regular(tmp_path / name, 10)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_temporary_files_are_new_and_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        names = set()
        for _ in range(3):
            with replacing(tmp_path / "file") as temporary:
                assert temporary.is_file() and temporary.parent == tmp_path
                names.add(temporary.name)
        assert len(names) == 3
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_a_name_that_is_taken_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.files.secrets.token_hex", lambda _: "guessed")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".loadmaster-guessed.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError), replacing(tmp_path / "file") as temporary:
        temporary.write_text("theirs")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / ".loadmaster-guessed.tmp").is_symlink()  # not ours to remove


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name, to in (("to_file", "file"), ("to_pipe", "pipe"), ("to_nothing", "none")):
        (tmp_path / name).symlink_to(tmp_path / to)
    before = sorted(each.name for each in tmp_path.iterdir())
    kinds = {
        "pipe": "a pipe",
        "folder": "a folder",
        "to_file": "a link",
        "to_pipe": "a link",
        "to_nothing": "a link",
    }
    for name, kind in kinds.items():
        with pytest.raises(LoadmasterError, match=f"is {kind}: give the name of a regular file"):
            check_replaceable(tmp_path / name)
        with pytest.raises(LoadmasterError, match=f"is {kind}"), replacing(tmp_path / name) as temporary:
            temporary.write_text("never")
    with pytest.raises(LoadmasterError, match="is a device"):
        check_replaceable(Path("/dev/null"))
    with pytest.raises(LoadmasterError, match="no file can be named"):
        check_replaceable(tmp_path / "\ud800")
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_without_room_is_told_with_the_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(OSError, match=os.strerror(number)) as caught, replacing(path):
            raise OSError(number, os.strerror(number))
        assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "no" / "file"):
        raise AssertionError("there is no folder to write into")
    assert caught.value.filename == str(tmp_path / "no" / "file")
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        (tmp_path / "other").read_text()  # another file's error keeps its own name
    assert caught.value.filename == str(tmp_path / "other")
    assert not list(tmp_path.iterdir())


def test_text_that_no_file_can_hold_is_refused_with_the_name(tmp_path: Path) -> None:
    with (
        pytest.raises(LoadmasterError, match=r"file' can't be written: '\\ud800' is a character"),
        replacing(tmp_path / "file") as temporary,
    ):
        temporary.write_text("a\ud800", encoding="utf-8")
    assert not list(tmp_path.iterdir())


WRITERS = {"files.py", "runs/checkpoint.py"}
"""They open for writing themselves; a checkpoint is a folder that is renamed as a whole."""
NEW_FOLDERS = {
    "search/evaluator.py",  # a temporary folder that is ours alone
    "runs/workers/server.py",
    "learn/training.py",
    "export/tflm_measure.py",  # a copy for the interpreter, in a folder of its own
    "allocation/problem.py",  # `Problem.save`: a run's folder that was made a moment ago
    "mapping/problem.py",
    "mapping/measured.py",
    "graph/problem.py",
    "malloc_game/problem.py",
    "offload/measured.py",
    "offload/problem.py",
    "order/problem.py",
}


def test_every_writer_replaces_files_whole() -> None:
    root = Path(loadmaster.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _writes(node):
                found.add(name)
    assert found == WRITERS | NEW_FOLDERS


def _writes(call: ast.Call) -> bool:
    """Whether it writes a file that did not come from `replacing`, which calls it `temporary`."""
    function = ast.unparse(call.func)
    of, _, name = function.rpartition(".")
    if name in ("write_text", "write_bytes"):
        return of not in ("temporary", "")
    modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
    for_writing = any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)
    if name == "open":
        return of != "temporary" and ((of == "os" and "O_CREAT" in ast.unparse(call)) or for_writing)
    return False
