"""A worker's side: messages, and `Server`, which answers requests about a problem, or about a function
that a training needs many times (`FUNCTIONS`).

| `do` | is given | answers |
| --- | --- | --- |
| score | decisions, the number of the first | values, rewards |
| measure | a plan | every value of the repeats, and why it failed if it did |
| once | the same | one value |
| search | a solver, a seed, evaluations | the decision that it found, its value |
| call | what the function takes | what it gives |

`main` is a worker in a process of its own: the first message on standard input is the problem
(`pack_problem`) or the function (`pack_function`), each one after it a request; the end of the input ends
the process.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from loadmaster import __version__
from loadmaster.arrays import Message, json_entry, read_npz
from loadmaster.errors import LoadmasterError
from loadmaster.machine.presets import standalone_text
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan.json import plan_from_json
from loadmaster.program.storage import save as save_program
from loadmaster.search.evaluator import CommandEvaluator, EvaluationError, Gauge
from loadmaster.search.problem import COST_MODEL, BatchProblem, Problem, keys
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.solver import Budget, solve

Array = npt.NDArray[Any]
_ABOUT = "about.json"
_LENGTH = 8
"""Bytes of a message's length, which goes before it."""


def pack(about: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """A message as bytes."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(dict(about)).encode(), np.uint8)
    np.savez(file, allow_pickle=False, **{_ABOUT: text}, **(arrays or {}))
    return file.getvalue()


def unpack(data: bytes) -> Message:
    """The inverse of `pack`."""
    arrays = read_npz(data, _refuse)
    about = json_entry(arrays, _ABOUT, _refuse)
    if not isinstance(about, dict):
        raise _refuse("its text is no JSON object")
    del arrays[_ABOUT]
    return Message(about, arrays)


def _refuse(reason: str) -> LoadmasterError:
    return LoadmasterError(
        f"a message between a run and its workers can't be read: {reason}",
        object="worker",
        remedy="start the run and its workers again with one version",
    )


def write_message(file: IO[bytes], data: bytes) -> None:
    """Its length, then itself."""
    file.write(len(data).to_bytes(_LENGTH, "big"))
    file.write(data)
    file.flush()


def read_message(file: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = file.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    data = file.read(length)
    return data if len(data) == length else None


VERSION = f"{__version__}, cost model {COST_MODEL}"


def pack_problem(problem: Problem) -> bytes:
    """What a server is made from: the problem's files, and the command where one measures."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as name:
        folder = Path(name)
        save_program(problem.program, folder / "program.npz")
        (folder / "machine.toml").write_text(standalone_text(problem.machine), encoding="utf-8")
        problem.save(folder)
        about = json.dumps({"keys": keys(problem)}, default=str)
        (folder / "run.json").write_text(about, encoding="utf-8")
        files = {path.name: np.frombuffer(path.read_bytes(), np.uint8) for path in folder.iterdir()}
    return pack({"version": VERSION, "command": _command_of(problem)}, files)


def _command_of(problem: Problem) -> dict[str, Any] | None:
    if not isinstance(problem, MeasuredMapping):
        return None
    evaluator = problem.gauge.evaluator
    if not isinstance(evaluator, CommandEvaluator):
        raise LoadmasterError(
            f"evaluator '{problem.gauge.name}' is no command, and can't be sent to workers",
            object=problem.gauge.name,
            remedy="give a command that measures",
        )
    return {"text": evaluator.command, "timeout_s": evaluator.timeout_s}


FUNCTIONS = {
    "egrl": "loadmaster.mapping.egrl.evolution_strategies:make_judge",
    "muzero": "loadmaster.malloc_game.muzero.training:make_judge",
    "go": "loadmaster.graph.go.training:make_searcher",
}
"""Name -> 'module:maker' of what trainings have done by workers; a maker takes a `Message`."""
Function = Callable[[Message], Message]


def pack_function(name: str, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """What a server is made from that answers with one of `FUNCTIONS`, made from `about` and `arrays`."""
    return pack({"version": VERSION, "function": name, **about}, arrays)


class Server:
    """Made from what `pack_problem` or `pack_function` wrote."""

    def __init__(self, setup: bytes) -> None:
        about, files = unpack(setup)
        if about["version"] != VERSION:
            raise LoadmasterError(
                f"this worker has Loadmaster {VERSION}, and the run has {about['version']}",
                object="worker",
                number=VERSION,
                remedy="install the same",
            )
        self._answer: Function
        if "function" in about:
            module, _, maker = FUNCTIONS[about["function"]].partition(":")
            self._answer = getattr(import_module(module), maker)(Message(about, files))
        else:
            self._answer = _Evaluations(about, files)

    def answer(self, request: bytes) -> bytes:
        """The reply; an error is told in it, so that only what kills a worker counts as its death."""
        try:
            return pack(*self._answer(unpack(request)))
        except Exception as error:
            return pack({"error": f"{type(error).__name__}: {error}"})


def search_island(problem: Problem, about: Mapping[str, Any]) -> Message:
    """One search by itself: {'value', 'evaluations'} and the decision, if any was found."""
    solver = make_labelled(problem.kind, about["solver"], about["options"])
    found = solve(solver, problem, Budget(about["evaluations"]), about["seed"])
    decision = {} if found.decision is None else {"decision": np.asarray(found.decision)}
    return Message({"value": found.value, "evaluations": found.evaluations}, decision)


class _Evaluations:
    """Evaluations of a problem, made from its files."""

    def __init__(self, about: dict[str, Any], files: dict[str, Array]) -> None:
        with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
            for name, content in files.items():
                (Path(folder) / Path(name).name).write_bytes(content.tobytes())
            self.problem = load_problem(Path(folder))
        if about["command"] is not None:
            measured = cast(MeasuredMapping, self.problem)
            evaluator = CommandEvaluator(about["command"]["text"], about["command"]["timeout_s"])
            evaluator.bind(measured.program, measured.machine)
            measured.gauge = Gauge(evaluator, measured.gauge.repeats, measured.gauge.warmups)

    def __call__(self, request: Message) -> Message:
        about, arrays = request
        if about["do"] == "search":
            return search_island(self.problem, about)
        return self._score(about, arrays) if about["do"] == "score" else self._measured(about)

    def _score(self, about: dict[str, Any], arrays: dict[str, Array]) -> Message:
        problem = cast(BatchProblem, self.problem)
        scores = problem.score(arrays["decisions"], int(about["first"]))
        failed = {} if scores.failed is None else {"failed": scores.failed}
        return Message({}, {"value": scores.value, "reward": scores.reward, **failed})

    def _measured(self, about: dict[str, Any]) -> Message:
        problem = cast(MeasuredMapping, self.problem)
        plan = plan_from_json(about["plan"], problem.program, problem.machine)
        if about["do"] == "measure":
            found = next(problem.gauge.measure([plan]))
            return Message({"seconds": found.seconds, "fault": found.fault}, {})
        try:
            return Message({"seconds": [problem.gauge.once(plan)], "fault": None}, {})
        except EvaluationError as error:
            return Message({"seconds": [], "fault": error.message}, {})


def main() -> None:
    """Serve till the input ends."""
    # Whatever else prints must not end up between messages.
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    setup = read_message(stdin)
    if setup is None:
        return
    try:
        server = Server(setup)
    except LoadmasterError as error:
        write_message(stdout, pack({"error": error.message}))
        return
    write_message(stdout, pack({}))
    while (request := read_message(stdin)) is not None:
        write_message(stdout, server.answer(request))
