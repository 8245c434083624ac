"""A process that tries inputs, one after another, within limits.

It is told what to try in lines of JSON on standard input and answers in lines on standard output. The number
of the input at hand is in a file that the runner reads too: if the process dies, that input did it.

    {"reader": "plan", "seed": 0, "first": 0, "last": 500}      ->  {"finding": {…}} …  {"done": true}
"""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError

from .readers import Made

PROGRESS = struct.Struct("<4q2d")
"""The input at hand; how many were tried, accepted and refused; the most seconds that one took, and all of them."""
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Limits:
    """For one input."""

    seconds: float = 5.0
    """Of processor time."""
    memory: int = 2**30
    """Bytes beyond what the process has when the input is begun; 0: not limited."""


def tried(made: Made, data: bytes, place: Path, limits: Limits) -> dict[str, Any]:
    """What came of one input: {"answer": "accepted" or "refused"}, or a finding with its trace."""
    begun = time.process_time()
    _limit(limits)
    found: dict[str, Any] = {"answer": "accepted"}
    try:
        made.read(data, place)
    except LoadmasterError as error:
        found = {"answer": "refused", "message": error.message}
        cause = _out_of_memory(error)
        if cause is not None:
            found = _finding("memory", cause)
        elif "\n" in error.message:
            found = _finding("two lines", error)
    except Exception as error:
        known = type(error).__name__ in made.reader.answers
        kind = "memory" if isinstance(error, MemoryError) else "exception"
        found = {"answer": "refused", "message": str(error)} if known else _finding(kind, error)
    finally:
        _unlimit()
    seconds = time.process_time() - begun
    if "kind" not in found and seconds > limits.seconds:
        found = {"kind": "slow", "where": "", "detail": f"{seconds:.1f} s", "trace": ""}
    return {**found, "seconds": seconds}


def _out_of_memory(error: BaseException) -> BaseException | None:
    """A reader that words the limit's own error would take the memory where there is no limit."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _finding(kind: str, error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}loadmaster{os.sep}" in frame.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    trace = "".join(traceback.format_exception(error))
    return {"kind": kind, "where": where, "detail": text, "trace": trace[-20_000:]}


def _limit(limits: Limits) -> None:
    # Above the limit there is still time to say where it hangs; then the kernel ends the process.
    spent = time.process_time() + limits.seconds + 2
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent), resource.RLIM_INFINITY))
    if limits.memory:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def _unlimit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def emptied(place: Path) -> Path:
    """The folder without what an input left in it."""
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    return place


def prepare(sanitized: bool) -> None:
    """What holds for the whole process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # NumPy warns where numbers wrap round: behind a reader that must not happen.
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)
    if not sanitized:  # the sanitizers have handlers of their own
        faulthandler.enable()
        faulthandler.register(signal.SIGXCPU, chain=True)


def main() -> None:
    """Serve the runner until it closes the pipe."""
    progress_path, seconds, memory, sanitized = sys.argv[1:5]
    limits = Limits(float(seconds), int(memory))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    prepare(sanitized == "1")
    parent = str(SHARED) if SHARED.is_dir() else None  # files in memory: disks are slow to flush
    known: dict[str, Made] = {}
    with (
        tempfile.TemporaryDirectory(prefix="loadmaster-fuzz-", dir=parent) as name,
        Path(progress_path).open("r+b") as file,
        mmap.mmap(file.fileno(), PROGRESS.size) as progress,
    ):
        place = Path(name)
        os.environ["TMPDIR"] = tempfile.tempdir = str(place)
        os.chdir(place)
        for line in sys.stdin:
            order = json.loads(line)
            if order["reader"] not in known:
                known[order["reader"]] = Made(order["reader"], emptied(place))
            made = known[order["reader"]]
            counts, slowest, begun = [0, 0, 0], 0.0, time.process_time()
            for number in range(order["first"], order["last"]):
                spent = time.process_time() - begun
                PROGRESS.pack_into(progress, 0, number, *counts, slowest, spent)
                data = made.input(order["seed"], number)
                found = tried(made, data, emptied(place), limits)
                slowest = max(slowest, found["seconds"])
                counts[0] += 1
                if "kind" in found:
                    del found["seconds"]
                    print(json.dumps({"finding": {"number": number, **found}}), file=answers)
                else:
                    counts[1 if found["answer"] == "accepted" else 2] += 1
                if number % 500 == 0:
                    gc.collect()
            spent = time.process_time() - begun
            PROGRESS.pack_into(progress, 0, -1, *counts, slowest, spent)
            print(json.dumps({"done": True}), file=answers)


if __name__ == "__main__":
    main()
