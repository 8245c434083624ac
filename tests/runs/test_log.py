"""The log: torn ends are dropped, broken lines are named, one writer at a time."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from loadmaster.runs import log as log_module
from loadmaster.runs.log import BadRun, Line, Log, LogFollower, compute_digest, is_written, read_log

BASELINE = b'{"seq": 2, "t": 0, "evals": 0, "event": "baseline", "name": "x", "value": 1, '
IMPROVE = (
    b'{"seq": 2, "t": 0, "evals": 9, "event": "improve", "value": 1, "solver": "x", "gap": null, '
    b'"checked": true, "plan": "' + b"0" * 64 + b'", '
)
CHECKPOINT = b'{"seq": 2, "t": 0, "evals": 0, "event": "checkpoint", '


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    log = Log(path, create=True)
    for i in range(5):
        log.append("bound", i / 8, i, value=i, method="ü", proven_optimal=False)
    log.close()
    return path


def test_lines_are_numbered_and_come_back(path: Path) -> None:
    text = read_log(path)
    assert [line["seq"] for line in text.lines] == [0, 1, 2, 3, 4] and not text.torn
    assert text.lines[3] == {
        "seq": 3,
        "t": 0.375,
        "evals": 3,
        "event": "bound",
        "value": 3,
        "method": "ü",
        "proven_optimal": False,
        "digest": compute_digest(text.lines[3], text.lines[2]["digest"]),
    }
    assert text.ends[-1] == path.stat().st_size


def test_a_torn_end_is_dropped_wherever_it_is_cut(path: Path) -> None:
    data = path.read_bytes()
    whole = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in random.Random(1).sample(range(len(data)), 60):
        path.write_bytes(data[:cut])
        text = read_log(path)
        assert len(text.lines) == sum(end <= cut for end in whole)
        assert text.torn == (cut not in (0, *whole))
        log = Log(path)  # a writer goes on after the last whole line
        log.append("bound", 9, 9, value=9, method="", proven_optimal=True)
        log.close()
        lines = read_log(path).lines
        assert [line["seq"] for line in lines] == list(range(len(text.lines) + 1))


def test_a_last_line_of_garbage_is_torn_too(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\0\0\0\n")
    assert read_log(path).torn and len(read_log(path).lines) == 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b"[" * 10_000, "no JSON object"),
        (b'{"seq": 7, "t": 0, "evals": 0, "event": "bound"}', "its seq is 7 and must be 2"),
        (b'{"seq": 2, "t": -1, "evals": 0, "event": "export"}', "'t' is '-1' and must be a time"),
        (b'{"seq": 2, "t": 0, "evals": 0, "event": "dance"}', "unknown event 'dance'"),
        (b'{"seq": 2, "t": 0, "evals": true, "event": "stop"}', "'evals' is 'True'"),
        (BASELINE + b'"plan": "../../etc/passwd"}', "'plan' is"),
        (CHECKPOINT + b'"path": "checkpoints/../x"}', "'path' is"),
        (IMPROVE + b'"passed": 3}', "'passed' is '3' and must be a list of pairs"),
        (IMPROVE + b'"passed": [[1, 2], [3]]}', "must be a list of pairs"),
        (IMPROVE + b'"passed": [[-1, 2]]}', "must be a list of pairs"),
        (IMPROVE + b'"passed": [[1, 0.5]]}', "must be a list of pairs"),
        (b'{"seq": 2, "t": NaN, "evals": 0, "event": "stop"}', "'t' is 'nan'"),
    ],
)
def test_a_broken_line_elsewhere_is_an_error_with_its_number(path: Path, line: bytes, words: str) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line + b"\n", *lines[3:]]))
    with pytest.raises(BadRun, match="line 3") as caught:
        read_log(path)
    assert words in caught.value.message and caught.value.number == 3
    with pytest.raises(BadRun, match="line 3"):
        Log(path)


@pytest.mark.parametrize("passed", [b"", b'"passed": null, ', b'"passed": [[1, -2], [3, -4]], '])
def test_improvements_may_tell_of_others(path: Path, passed: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], IMPROVE + passed + b'"more": 0}\n', *lines[3:]]))
    assert read_log(path).lines[2]["event"] == "improve"


def test_a_missing_line_is_an_error(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(BadRun, match="line 3: its seq is 3 and must be 2"):
        read_log(path)


def test_one_writer_and_any_readers(path: Path) -> None:
    log = Log(path)
    with pytest.raises(BadRun, match="is being written by another process"):
        Log(path)
    assert len(read_log(path).lines) == 5
    log.close()
    log.close()
    Log(path).close()


# Another test of this process may have loaded JAX, which warns of every fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_child_does_not_hold_the_lock(path: Path) -> None:
    log = Log(path)
    ready, wait = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(wait[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    log.close()
    Log(path).close()  # though the child still lives
    os.write(wait[1], b"x")
    os.waitpid(pid, 0)
    for end in (*ready, *wait):
        os.close(end)


def test_numbers_that_json_lacks_become_null(path: Path) -> None:
    log = Log(path)
    log.append(
        "progress",
        3,
        3,
        best=None,
        bound=None,
        gap=None,
        evals_per_s=float("inf"),
        metrics={"loss": float("nan"), "rate": 0.5},
    )
    log.close()
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["evals_per_s"] is None and last["metrics"] == {"loss": None, "rate": 0.5}


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = Log(path), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(OSError, match="space"):
        log.append("bound", 9, 9, value=9, method="", proven_optimal=True)
    monkeypatch.undo()
    log.append("bound", 9, 9, value=9, method="", proven_optimal=True)
    log.close()
    assert len(read_log(path).lines) == 6


def _expected(path: Path) -> list[Line]:
    """What a follower keeps, by reading everything."""
    lines = read_log(path).lines
    return [line for line in lines if line["event"] in LogFollower.KEPT or line is lines[-1]]


def test_a_log_is_followed_through_appends_cuts_and_torn_ends(tmp_path: Path) -> None:
    path, rng = tmp_path / "log.jsonl", random.Random(4)
    Log(path, create=True).close()
    follower, cuts = LogFollower(path), 0
    for step in range(150):
        log = Log(path)
        if rng.random() < 0.2:
            cuts += 1
            log.cut(rng.randint(0, len(log.lines)))
        for _ in range(rng.randint(0, 4)):
            if rng.random() < 0.5:
                log.append("bound", step, step, value=rng.randint(0, 10**9), method="x", proven_optimal=False)
            else:
                log.append(
                    "progress", step, step, best=None, bound=None, gap=None, evals_per_s=step, metrics={}
                )
        log.close()
        if rng.random() < 0.3:  # half a line, which the next writer cuts off
            with path.open("ab") as file:
                file.write(rng.choice([b'{"seq": 1', b"{", b'{"seq"\n']))
        assert follower.read() == _expected(path)
        rates = [line["evals_per_s"] for line in read_log(path).lines if line["event"] == "progress"]
        assert follower.per_second == (rates[-1] if rates else None)
    assert cuts > 10


def test_a_log_that_is_read_in_pieces_is_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LogFollower(path).read()
    for size in (400, 257, 1000):
        monkeypatch.setattr(LogFollower, "CHUNK", size)
        assert LogFollower(path).read() == whole == read_log(path).lines


def test_a_log_that_can_not_be_followed_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    follower = LogFollower(path)
    assert len(follower.read()) == 5
    path.write_bytes(data + b"x\n" + data)
    with pytest.raises(BadRun, match="broken in line 6: it is no JSON object"):
        follower.read()
    path.write_bytes(data)  # mended
    assert len(follower.read()) == 5
    path.write_bytes(data.replace(b'"value": 3', b'"value": 3' + b"0" * 30))
    with pytest.raises(BadRun, match=r"line 4: 'value' is .* must be a whole"):
        follower.read()
    monkeypatch.setattr(LogFollower, "CHUNK", 64)
    with pytest.raises(BadRun, match="broken in line 1: it has more than 64 B"):
        follower.read()
    monkeypatch.setattr(LogFollower, "MOST_BYTES", 100)
    with pytest.raises(BadRun, match=r"can't be followed: .*larger than 100 B"):
        follower.read()
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))
    with pytest.raises(BadRun, match="is a link"):
        follower.read()


def test_whoever_looks_whether_it_is_written_keeps_no_writer_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    assert is_written(path) is False
    log = Log(path)
    assert is_written(path) is True
    log.close()
    assert is_written(path) is False
    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            fcntl.flock(looking, fcntl.LOCK_UN)

        monkeypatch.setattr(log_module.time, "sleep", sleep)
        Log(path).close()
        assert len(waited) == 1
