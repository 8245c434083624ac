"""TFLite Micro's least arena, measured: the interpreter of the package `tflite-micro` is asked, where it is installed.

It is asked in a process of its own: in an arena that is too small it may crash.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from loadmaster.export.tflm_arena import (
    ALIGNMENT,
    HOST,
    Arena,
    Target,
    carried_offsets,
    compute_arena,
    damaged,
    round_up,
)
from loadmaster.export.tflm_file import MOST_ARENA, CannotRun, first_size
from loadmaster.program.importers.tflite.read import read_tflite

_CHILD = """
import os, sys, tempfile
from tflite_micro.python.tflite_micro import runtime
data = open(sys.argv[1], "rb").read()
answers = os.fdopen(os.dup(1), "w")
said = tempfile.TemporaryFile()
os.dup2(said.fileno(), 1)
os.dup2(said.fileno(), 2)
for line in sys.stdin:
    size, invoke = map(int, line.split())
    said.seek(0)
    said.truncate()
    try:
        interpreter = runtime.Interpreter.from_bytes(data, arena_size=size)
        if invoke:
            interpreter.invoke()
        answer = "yes"
    except Exception as error:
        said.seek(0)
        answer = " ".join(["no", *said.read().decode(errors="replace").split(), *str(error).split()])
    interpreter = None
    answers.write(answer + "\\n")
    answers.flush()
"""
_STEP = 8
_LONGEST = 160
CRASHES = "it crashes"


class _Asked:
    """A model in a process that says whether the interpreter starts in so many bytes."""

    def __init__(self, data: bytes, folder: str) -> None:
        self._path = Path(folder) / "model.tflite"
        self._path.write_bytes(data)
        self._process: subprocess.Popen[str] | None = None

    def starts(self, size: int, invoke: bool = False) -> bool:
        return self.answer(size, invoke) == "yes"

    def answer(self, size: int, invoke: bool = False) -> str:
        """'yes', 'no' and why not, or nothing if it crashed."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(self._path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{size} {int(invoke)}\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        if not answer:  # it crashed: the arena was too small, and the next size needs another process
            self.end()
        return answer

    def end(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process.wait()
            self._process = None


def measure_least(data: bytes, guess: int) -> int | None:
    """The least arena in which the interpreter starts and runs a model; None: in none.

    Args:
      data: the file.
      guess: about how much, such as `compute_arena` says: it saves time.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = _Asked(data, folder)
        try:
            high = max(round_up(guess), ALIGNMENT)
            while high <= MOST_ARENA and not asked.starts(high):
                high *= 2
            if high > MOST_ARENA:
                return None
            step, low = ALIGNMENT, high - ALIGNMENT
            while low > 0 and asked.starts(low):
                step *= 2
                high, low = low, max(0, low - step)
            while high - low > _STEP:
                middle = (low + high) // 2 // _STEP * _STEP
                low, high = (low, middle) if asked.starts(middle) else (middle, high)
            return high if asked.starts(high, invoke=True) else None
        finally:
            asked.end()


def find_hindrance(data: bytes, room: int) -> str:
    """Why the interpreter that is installed does not run a model; nothing if it does, or if none is installed.

    Args:
      data: the file.
      room: about how many bytes its tensors take.
    """
    if not can_measure():
        return ""
    with tempfile.TemporaryDirectory() as folder:
        asked = _Asked(data, folder)
        try:
            size = first_size(room)
            answer = asked.answer(size, invoke=True)
            while answer.startswith("no") and size < MOST_ARENA and re.search("arena|allocat", answer, re.I):
                size = min(8 * size, MOST_ARENA)
                answer = asked.answer(size, invoke=True)
        finally:
            asked.end()
    if answer == "yes":
        return ""
    return answer.removeprefix("no ")[:_LONGEST] if answer else CRASHES


def check_survives(data: bytes, room: int, name: str = "model") -> None:
    """Refuse a file that ends the interpreter's process, such as by a rank of zero, before it would end ours."""
    if find_hindrance(data, room) == CRASHES:
        raise CannotRun(
            f"TFLite Micro crashes when it runs '{name}'",
            object=name,
            remedy="export the model again, or give --no-verify",
        )


def measure_arena(data: bytes, computed: Arena) -> Arena:
    """What was computed with the least arena that was measured, where the interpreter can run the model."""
    return replace(computed, measured=measure_least(data, computed.total))


def can_measure() -> bool:
    """Whether the interpreter is installed."""
    from importlib.util import find_spec

    return find_spec("tflite_micro") is not None


def read_arena(data: bytes, target: Target = HOST, *, measure: bool = False, name: str = "model") -> Arena:
    """The arena of a file: with the offsets that it carries, and measured if that is asked for."""
    model = read_tflite(data, name)
    with damaged(name):
        computed = compute_arena(model, target, offsets=carried_offsets(model))
    return measure_arena(data, computed) if measure and target == HOST else computed
