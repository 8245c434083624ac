"""`log.jsonl`: one JSON object a line, appended by one writer, readable by anyone at any moment.

Every line has `seq` (from 0, no holes), `t` (seconds of running, stops excluded), `evals`,
`event` and `digest`, of itself and all lines before it: `replay` finds a figure that was changed.
A line is one `write`, so that a crash can tear the last one only: that one is dropped on reading.
A line that is broken elsewhere is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from loadmaster.errors import LoadmasterError
from loadmaster.files import naming, open_regular
from loadmaster.units import show_bytes

try:
    import fcntl
except ImportError:  # not everywhere; there, nothing keeps two writers apart
    fcntl = None  # type: ignore[assignment]

Line = dict[str, Any]
HASH = re.compile(r"[0-9a-f]{64}")
CHECKPOINT_PATH = re.compile(r"checkpoints/(0|[1-9][0-9]{0,11})")
DURABLE = {"improve", "choose", "bound", "checkpoint", "stop"}
"""Events after which the line is on the disk, not only with the operating system."""
_MOST_BYTES = 2**31
_MOST_WHOLE = 2**63
_LOOKS, _LOOK_SECONDS = 3, 0.01
"""So often, so far apart, a writer tries to get the lock."""

_EVENTS: dict[str, dict[str, str]] = {
    "start": {"utc": "text", "keys": "object", "from_checkpoint": "path?", "from_evals": "count"},
    "resume": {"utc": "text", "keys": "object", "from_checkpoint": "path?", "from_evals": "count"},
    "baseline": {"name": "text", "value": "whole", "plan": "hash"},
    "bound": {"value": "whole", "method": "text", "proven_optimal": "yes or no"},
    "improve": {
        "value": "whole",
        "plan": "hash",
        "solver": "text",
        "gap": "number?",
        "checked": "yes or no",
        "passed": "list of pairs?",
    },
    "choose": {"value": "whole", "plan": "hash", "solver": "text", "gap": "number?"},
    "progress": {
        "best": "whole?",
        "bound": "whole?",
        "gap": "number?",
        "evals_per_s": "number?",
        "metrics": "object",
    },
    "measure": {"evaluation": "count", "what": "text", "seconds": "list", "message": "text?"},
    "error": {"what": "text", "plan": "hash?", "message": "text"},
    "checkpoint": {"path": "path", "sha256": "hash", "verdict": "text"},
    "export": {"path": "text", "sha256": "hash", "verdict": "text"},
    "stop": {"utc": "text", "reason": "text", "best": "whole?", "bound": "whole?", "gap": "number?"},
}
"""Event -> its fields and what they hold; '?': or null."""


class BadRun(LoadmasterError):
    """A run folder that can't be read, written or resumed."""


@dataclass(frozen=True)
class LogText:
    """What a log file holds."""

    lines: list[Line]
    ends: list[int]
    """Bytes up to the end of each line."""
    torn: bool
    """Whether half a line comes after them."""


def read_log(path: Path) -> LogText:
    """All whole lines; raises `BadRun` with the number of the first that makes no sense."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadRun(
                f"log '{path}' is larger than 2 GiB",
                object=str(path),
                number=path.stat().st_size,
                remedy="check the file",
            )
        data = path.read_bytes()
    except OSError as error:
        raise BadRun(
            f"log '{path}' can't be read: {error.strerror}",
            object=str(path),
            remedy="give the folder of a run",
        ) from None
    pieces = data.split(b"\n")
    lines: list[Line] = []
    ends: list[int] = []
    for number, piece in enumerate(pieces[:-1], start=1):
        line = _parsed(piece)
        if line is None and number == len(pieces) - 1 and not pieces[-1]:
            return LogText(lines, ends, torn=True)
        fault = "it is no JSON object" if line is None else _fault(line, number - 1)
        if line is None or fault is not None:
            raise BadRun(
                f"log '{path}' is broken in line {number}: {fault}",
                object=str(path),
                number=number,
                remedy="restore the file from a copy",
            )
        lines.append(line)
        ends.append((ends[-1] if ends else 0) + len(piece) + 1)
    return LogText(lines, ends, torn=bool(pieces[-1]))


def compute_digest(line: Line, before: str) -> str:
    """Of a line's other fields and the digest of the line before it ('' for the first).

    Against accidents and hasty hands: whoever computes digests anew can still write any log.
    """
    fields = {name: value for name, value in line.items() if name != "digest"}
    text = before + json.dumps(fields, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _parsed(piece: bytes) -> Line | None:
    try:
        value = json.loads(piece)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fault(line: Line, seq: int) -> str | None:
    if line.get("seq") != seq:
        return f"its seq is {line.get('seq')!r} and must be {seq}"
    fields = {"t": "time", "evals": "count", **_EVENTS.get(str(line.get("event")), {})}
    if str(line.get("event")) not in _EVENTS:  # a list or an object has no place in a table
        return f"it has the unknown event {line.get('event')!r}"
    for name, kind in fields.items():
        if not _holds(line.get(name), kind):
            return f"'{name}' is {str(line.get(name))[:40]!r} and must be a {kind.rstrip('?')}"
    return None


def _holds(value: Any, kind: str) -> bool:
    if value is None:
        return kind.endswith("?")
    match kind.rstrip("?"):
        case "text":
            return isinstance(value, str)
        case "object":
            return isinstance(value, dict)
        case "list":
            return isinstance(value, list) and all(_holds(item, "number") for item in value)
        case "list of pairs":  # evaluations and a value
            return isinstance(value, list) and all(
                isinstance(pair, list)
                and len(pair) == 2
                and _holds(pair[0], "count")
                and _holds(pair[1], "whole")
                for pair in value
            )
        case "yes or no":
            return isinstance(value, bool)
        case "hash":
            return isinstance(value, str) and HASH.fullmatch(value) is not None
        case "path":
            return isinstance(value, str) and CHECKPOINT_PATH.fullmatch(value) is not None
        case "whole":
            return type(value) is int and abs(value) < _MOST_WHOLE
        case "count":
            return type(value) is int and 0 <= value < _MOST_WHOLE
        case "time":
            return type(value) in (int, float) and math.isfinite(value) and value >= 0
        case _:
            return type(value) in (int, float) and math.isfinite(value)


class LogFollower:
    """A log that somebody else is writing, read as it grows: each look takes what is new.

    Of what was read it keeps the lines that tell how the run stands, not every checkpoint and measurement.
    """

    KEPT = frozenset({"start", "resume", "baseline", "bound", "improve", "choose", "error", "stop"})
    MOST_BYTES = 2**28
    CHUNK = 2**22

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._kept: list[Line] = []
        self._last: Line | None = None
        self._count = self._end = 0
        self._tail = b""
        """The last line that was read. It has the digest of all before it: as long as it is there, so are they."""
        self.per_second: float | None = None
        """Evaluations a second, as the latest line of progress has it."""

    def read(self) -> list[Line]:
        """The lines that are kept and the latest one, of a log as it is now."""
        if self._path.is_symlink():
            raise BadRun(
                f"log '{self._path}' is a link", object=str(self._path), remedy="put the file itself there"
            )
        try:
            with open_regular(self._path, self.MOST_BYTES) as file:
                file.seek(self._end - len(self._tail))
                if file.read(len(self._tail)) != self._tail:  # 'resume' has cut it off, or it is another file
                    self._forget()
                    file.seek(0)
                self._take(file)
        except OSError as error:
            raise BadRun(
                f"log '{self._path}' can't be followed: {error.strerror}",
                object=str(self._path),
                remedy="see 'loadmaster runs'",
            ) from None
        known = self._last is None or (self._kept and self._kept[-1] is self._last)
        return [*self._kept] if known or self._last is None else [*self._kept, self._last]

    def _take(self, file: BinaryIO) -> None:
        rest = b""
        while chunk := file.read(self.CHUNK):
            *pieces, rest = (rest + chunk).split(b"\n")
            for number, piece in enumerate(pieces, 1):
                line = _parsed(piece)
                if line is None and number == len(pieces) and not rest and not file.read(1):
                    return  # torn, or not whole yet
                self._add(piece, line)
            if len(rest) > self.CHUNK:
                raise self._broken(f"it has more than {show_bytes(self.CHUNK)}")

    def _add(self, piece: bytes, line: Line | None) -> None:
        fault = "it is no JSON object" if line is None else _fault(line, self._count)
        if line is None or fault is not None:
            raise self._broken(fault)
        self._count, self._end, self._tail = self._count + 1, self._end + len(piece) + 1, piece + b"\n"
        self._last = line
        if line["event"] in self.KEPT:
            self._kept.append(line)
        elif line["event"] == "progress":
            self.per_second = line.get("evals_per_s")

    def _broken(self, fault: str | None) -> BadRun:
        number = self._count + 1
        self._forget()
        return BadRun(
            f"log '{self._path}' is broken in line {number}: {fault}",
            object=str(self._path),
            number=number,
            remedy="restore the file from a copy",
        )


def is_written(path: Path) -> bool | None:
    """Whether a process has a log open for writing; None where that can't be known."""
    if fcntl is None:
        return None  # type: ignore[unreachable]
    with open_regular(path, _MOST_BYTES) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment: closing lets it go
        except BlockingIOError:
            return True
        except OSError:
            return None  # a file system without locks
        return False


class Log:
    """The one writer of a log. A second one is refused while this process lives."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        self._path = path
        self._fd = os.open(path, flags, 0o644)
        self._mutex = threading.Lock()
        try:
            _lock(self._fd, path)
            text = read_log(path)
            if text.torn:
                os.ftruncate(self._fd, text.ends[-1] if text.ends else 0)
        except BaseException:
            os.close(self._fd)
            raise
        self.lines: list[Line] = text.lines
        """Those that were there when it was opened, less what was cut off."""
        self._ends = text.ends
        self._t = max((line["t"] for line in text.lines), default=0.0)
        self._continue_after(text.lines)
        _open_logs.add(self)

    def _continue_after(self, lines: list[Line]) -> None:
        self._seq = len(lines)
        self._digest = str(lines[-1].get("digest", "")) if lines else ""

    def cut(self, count: int) -> None:
        """Keep the first lines of those that were there when it was opened; the time stays spent."""
        with self._mutex:
            os.ftruncate(self._fd, self._ends[count - 1] if count else 0)
            os.fsync(self._fd)
            self.lines = self.lines[:count]
            self._continue_after(self.lines)

    def append(self, event: str, t: float, evals: int, **fields: Any) -> None:
        """Write one line. After the events in `DURABLE` it is on the disk."""
        with self._mutex:
            self._t = max(self._t, round(t, 6))
            line = {"seq": self._seq, "t": self._t, "evals": evals, "event": event, **fields}
            line = json.loads(json.dumps(_finite(line), ensure_ascii=False))
            line["digest"] = compute_digest(line, self._digest)
            data = (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8")
            end = os.fstat(self._fd).st_size
            with naming(self._path):
                if os.write(self._fd, data) != len(data):  # a full disk
                    os.ftruncate(self._fd, end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._seq, self._digest = self._seq + 1, line["digest"]
                if event in DURABLE:
                    os.fsync(self._fd)

    def close(self) -> None:
        """Let another writer in."""
        if self in _open_logs:
            _open_logs.discard(self)
            os.close(self._fd)


def _lock(fd: int, path: Path) -> None:
    if fcntl is None:
        return  # type: ignore[unreachable]
    for left in reversed(range(_LOOKS)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if left:  # somebody may only be looking (`is_written`)
                time.sleep(_LOOK_SECONDS)
                continue
            raise BadRun(
                f"run '{path.parent.name}' is being written by another process",
                object=str(path.parent),
                remedy="wait for it, or stop it",
            ) from None
        except OSError:
            return  # a file system without locks


def _finite(value: Any) -> Any:
    """JSON has no NaN and no NumPy numbers."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


_open_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _forget_logs() -> None:
    # A forked worker that outlives its parent must not hold the parent's lock.
    for log in list(_open_logs):
        with contextlib.suppress(OSError):
            os.close(log._fd)
    _open_logs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_logs)
