"""`Evaluator`: whatever measures a plan, in place of the simulator.

Any callable that takes a plan and returns seconds is taken for one; `CommandEvaluator` makes one of a
command. A failure is an `EvaluationError`: it costs one evaluation and not the run.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from loadmaster.errors import LoadmasterError
from loadmaster.host import command_line
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import standalone_text
from loadmaster.plan.json import plan_to_json
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import save

EXECUTOR = "executor:"
"""Begins the names of evaluators that run plans on a device of this computer."""
_TAIL_BYTES = 4096
_STDERR_LINES = 4


class EvaluationError(LoadmasterError):
    """A measurement failed."""


class Evaluator(ABC):
    """Measures a plan. `__call__` is all that it must have; `batch` and `baseline` are used where a class has
    its own."""

    name: str = ""
    """What stands for it in a run's keys; by default its class's."""
    boards: int = 1
    """Over which `batch` goes in turn: plan k on board k modulo `boards`."""

    @abstractmethod
    def __call__(self, plan: Plan, /) -> float:
        """Seconds; raises `EvaluationError` when it failed."""

    def bind(self, program: Program, machine: Machine) -> None:  # noqa: B027
        """Say what the plans to come are about: called once before the first."""

    def batch(self, plans: Sequence[Plan]) -> Sequence[float]:
        """Seconds of each; a value that is not positive is a failure of that plan."""
        raise NotImplementedError

    def baseline(self, board: int = 0) -> float:
        """Seconds of the plan of the hardware's own compiler."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027
        """Let go of the hardware."""


class FunctionEvaluator(Evaluator):
    """A callable that takes a plan and returns seconds."""

    def __init__(self, function: Callable[[Plan], float]) -> None:
        self._function = function
        named = function if inspect.isroutine(function) else type(function)
        self.name = named.__qualname__

    def __call__(self, plan: Plan, /) -> float:
        return self._function(plan)


Measures = Evaluator | Callable[[Plan], float]
"""What users give to measure plans."""


def as_evaluator(given: Measures) -> Evaluator:
    """An evaluator as it is; any other callable as one."""
    return given if isinstance(given, Evaluator) else FunctionEvaluator(given)


def seconds_of(value: object, who: str) -> float:
    """A latency, if it is one."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise EvaluationError(
            f"evaluator '{who}' gave {str(value)[:60]!r} for a latency",
            object=who,
            number=str(value)[:60],
            remedy="give seconds above 0",
        )
    return seconds


def evaluator_name(given: Measures) -> str:
    """What stands for it in a run's keys."""
    evaluator = as_evaluator(given)
    return evaluator.name or type(evaluator).__qualname__


class CommandEvaluator(Evaluator):
    """Runs a command for each plan, without a shell.

    The plan's JSON is its standard input, and a file whose path takes the place of `{plan}`; the
    variables LOADMASTER_PROGRAM and LOADMASTER_MACHINE name files with the program (.npz) and the
    machine (.toml). The last line of its standard output is the latency in seconds, or
    `{"latency_s": …}`.
    """

    def __init__(self, command: str, timeout_s: float = 60.0) -> None:
        self.command, self.timeout_s = command, _checked_timeout(timeout_s)
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise EvaluationError(
                f"evaluator '{command}' can't be split into words: {error}",
                object=command,
                remedy="close its quotes",
            ) from None
        if not self._words or shutil.which(self._words[0]) is None:
            first = self._words[0] if self._words else ""
            raise EvaluationError(
                f"evaluator '{command}': there is no command '{first}'",
                object=command,
                remedy="give a program that can be run, such as ./measure.sh after chmod +x",
            )
        if os.name != "posix":
            raise EvaluationError(
                "commands measure on POSIX systems only", object=command, remedy="give a Python callable"
            )
        self.name = shlex.join(command_line(self._words))
        """The command without absolute paths, as runs show it."""
        self.portable = command_line(self._words) == self._words
        """Whether the name is all of it: then a run's folder may record the command."""
        self._bound: tuple[Program, Machine] | None = None
        self._folder: Path | None = None

    def bind(self, program: Program, machine: Machine) -> None:
        """Say what the plans to come are about."""
        self.close()
        self._bound = (program, machine)

    def __call__(self, plan: Plan, /) -> float:
        if self._bound is None:
            raise ValueError("bind(program, machine) comes before the first plan")
        folder = self._files(*self._bound)
        file = folder / "plan.json"
        file.write_text(plan_to_json(plan, *self._bound), encoding="utf-8")
        words = [word.replace("{plan}", str(file)) for word in self._words]
        about = {
            "LOADMASTER_PROGRAM": str(folder / "program.npz"),
            "LOADMASTER_MACHINE": str(folder / "machine.toml"),
        }
        # Files and not pipes: what a command leaves running can't hold us up, nor fill a pipe.
        with (
            file.open("rb") as stdin,
            (folder / "stdout").open("w+b") as stdout,
            (folder / "stderr").open("w+b") as stderr,
        ):
            try:
                process = subprocess.Popen(
                    words,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=os.environ | about,
                    start_new_session=True,
                )
            except OSError as error:
                raise self._failure(f"can't be started: {error.strerror}", stderr) from None
            in_time = _finished(process, self.timeout_s)
            code = process.returncode
            if not in_time:
                raise self._failure(f"was stopped after {self.timeout_s:g} s", stderr)
            if code != 0:
                how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
                raise self._failure(how, stderr)
            return self._latency(stdout, stderr)

    def close(self) -> None:
        """Remove its files; a later call makes them again."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _files(self, program: Program, machine: Machine) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="loadmaster-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            save(program, self._folder / "program.npz")
            (self._folder / "machine.toml").write_text(standalone_text(machine), encoding="utf-8")
        return self._folder

    def _latency(self, stdout: BinaryIO, stderr: BinaryIO) -> float:
        lines = _last_lines(stdout)
        if not lines:
            raise self._failure("printed nothing", stderr)
        value: object = lines[-1]
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(lines[-1])
            value = document.get("latency_s") if isinstance(document, dict) else value
        return seconds_of(value, self.name)

    def _failure(self, what: str, stderr: BinaryIO) -> EvaluationError:
        said = " / ".join(_last_lines(stderr)[-_STDERR_LINES:])
        return EvaluationError(
            f"evaluator '{self.name}' {what}{f' ({said})' if said else ''}",
            object=self.name,
            number=what,
            remedy="try it alone with a plan on its standard input",
        )


class RecordedEvaluator(Evaluator):
    """What a run folder says of its evaluator, and nothing that could run it.

    A folder may come from anyone, so that it names a command is no reason to run one. Who wants
    to measure again gives the evaluator again (`Measuring.measure_with`, `--evaluator`).
    """

    def __init__(self, name: str, command: str | None = None, timeout_s: float = 60.0) -> None:
        self.name, self.command, self.timeout_s = name, command, _checked_timeout(timeout_s)
        self.portable = command is not None

    def __call__(self, plan: Plan, /) -> float:
        raise EvaluationError(
            f"evaluator '{self.name}' is only recorded in a run, and what a run names is not run",
            object=self.name,
            remedy="give the evaluator again",
        )


def _checked_timeout(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 < seconds <= threading.TIMEOUT_MAX):
        raise ValueError("timeout_s must be a number of seconds above 0")
    return seconds


def _finished(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait; whether it ended in time. Nothing of its group is left, whatever happens here."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        _kill_group(process)

    # A timer, since waiting with a time-out polls, up to 50 ms too long.
    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    timer.start()
    try:
        process.wait()
        return not late.is_set()
    finally:
        timer.cancel()
        _kill_group(process)
        process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_lines(file: BinaryIO) -> list[str]:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _TAIL_BYTES))
    text = file.read().decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class Measurement:
    """The repeats of one plan on one board, warm-ups left out."""

    seconds: tuple[float, ...]
    fault: str | None = None
    """Why it failed; what was measured before that is kept."""
    board: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Gauge:
    """Measures plans. A failure is a fault of that plan alone."""

    def __init__(self, given: Measures, repeats: int = 5, warmups: int = 2) -> None:
        if repeats < 1 or warmups < 0:
            raise ValueError("repeats must be at least 1 and warmups at least 0")
        self.evaluator, self.repeats, self.warmups = as_evaluator(given), repeats, warmups
        self.name, kind = evaluator_name(self.evaluator), type(self.evaluator)
        self._batches = kind.batch is not Evaluator.batch
        self._has_baseline = kind.baseline is not Evaluator.baseline
        self.boards = self.evaluator.boards if self._batches else 1

    def once(self, plan: Plan) -> float:
        """One measurement."""
        return self._seconds(lambda: self.evaluator(plan))

    def baseline_once(self, plan: Plan) -> float:
        """One measurement of the hardware's own compiler, of `plan` if it has none."""
        return self._baseline_of(0) if self._has_baseline else self.once(plan)

    def _baseline_of(self, board: int) -> float:
        own = self.evaluator.baseline
        return self._seconds(own if self.boards == 1 else lambda: own(board))

    def measure(self, plans: Sequence[Plan]) -> Iterator[Measurement]:
        """In the order of the plans, one after another where there is no `batch`."""
        if not self._batches:
            for plan in plans:
                yield self._repeated(partial(self.once, plan))
            return
        rounds: list[list[float | str]] = []
        for _ in range(self.warmups + self.repeats if plans else 0):
            rounds.append(self._together(plans))
            if all(isinstance(value, str) for value in rounds[-1]):
                break  # nothing is left to repeat
        for k in range(len(plans)):
            yield self._collected([values[k] for values in rounds], k % self.boards)

    def measure_baseline(self, plan: Plan) -> list[Measurement]:
        """One for each board."""
        if not self._has_baseline:
            return list(self.measure([plan] * self.boards))
        return [
            replace(self._repeated(partial(self._baseline_of, board)), board=board)
            for board in range(self.boards)
        ]

    def _repeated(self, measure: Callable[[], float]) -> Measurement:
        values: list[float | str] = []
        for _ in range(self.warmups + self.repeats):
            try:
                values.append(measure())
            except EvaluationError as error:
                values.append(error.message)
                break  # it may be slow to fail: once is enough
        return self._collected(values)

    def _together(self, plans: Sequence[Plan]) -> list[float | str]:
        values: list[float | str] = []
        try:
            given = list(self.evaluator.batch(plans))
            if len(given) != len(plans):
                raise EvaluationError(
                    f"evaluator '{self.name}' gave {len(given)} values for {len(plans)} plans",
                    object=self.name,
                    number=len(given),
                    remedy="give one for each",
                )
        except Exception as error:
            return [_message(error)] * len(plans)
        for value in given:
            try:
                values.append(seconds_of(value, self.name))
            except EvaluationError as error:
                values.append(error.message)
        return values

    def _collected(self, values: Sequence[float | str], board: int = 0) -> Measurement:
        fault = next((value for value in values if isinstance(value, str)), None)
        kept = tuple(value for value in values[self.warmups :] if not isinstance(value, str))
        return Measurement(kept, fault, board)

    def _seconds(self, measure: Callable[[], object]) -> float:
        try:
            value = measure()
        except EvaluationError:
            raise
        except Exception as error:  # a bug in it costs an evaluation too; many in a row end the run
            raise EvaluationError(
                f"evaluator '{self.name}' raised {_message(error)}",
                object=self.name,
                remedy="raise EvaluationError where hardware fails",
            ) from error
        return seconds_of(value, self.name)


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, EvaluationError) else f"{type(error).__name__}: {error}"
