"""`Desk`: a worker's side. It holds the problem, made once from the files of a run, and answers.

| `do` | is given | answers |
| --- | --- | --- |
| score | decisions, the number of the first | values, rewards |
| measure | a plan | every value of the repeats, and why it failed if it did |
| once | the same | one value |
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np

from loadmaster import __version__
from loadmaster.errors import LoadmasterError
from loadmaster.machine.text import standalone_text
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan.json import plan_from_json
from loadmaster.program.storage import save as save_program
from loadmaster.runs.workers.pool import Array, Message, packed, unpacked
from loadmaster.search.evaluator import CommandEvaluator, EvaluationError, Gauge
from loadmaster.search.problem import COST_MODEL, BatchProblem, Problem, keys
from loadmaster.search.registry import load_problem

VERSION = f"{__version__}, cost model {COST_MODEL}"


def setup_of(problem: Problem) -> bytes:
    """What a desk is made from: the problem's files, and the command where one measures."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as name:
        folder = Path(name)
        save_program(problem.program, folder / "program.npz")
        (folder / "machine.toml").write_text(standalone_text(problem.machine), encoding="utf-8")
        problem.save(folder)
        about = json.dumps({"keys": keys(problem)}, default=str)
        (folder / "run.json").write_text(about, encoding="utf-8")
        files = {path.name: np.frombuffer(path.read_bytes(), np.uint8) for path in folder.iterdir()}
    return packed({"version": VERSION, "command": _command_of(problem)}, files)


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


class Desk:
    """Made from what `setup_of` wrote."""

    def __init__(self, setup: bytes) -> None:
        about, files = unpacked(setup)
        if about["version"] != VERSION:
            raise LoadmasterError(
                f"this worker has Loadmaster {VERSION}, and the run has {about['version']}",
                object="worker",
                number=VERSION,
                remedy="install the same",
            )
        with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
            for name, content in files.items():
                (Path(folder) / Path(name).name).write_bytes(content.tobytes())
            self.problem = load_problem(Path(folder))
        if about["command"] is not None:
            measured = cast(MeasuredMapping, self.problem)
            evaluator = CommandEvaluator(about["command"]["text"], about["command"]["timeout_s"])
            evaluator.bind(measured.program, measured.machine)
            measured.gauge = Gauge(evaluator, measured.gauge.repeats, measured.gauge.warmups)

    def answer(self, request: bytes) -> bytes:
        """The reply; an error is told in it, so that only what kills a worker counts as its death."""
        try:
            about, arrays = unpacked(request)
            reply = self._score(about, arrays) if about["do"] == "score" else self._measured(about)
            return packed(reply.about, reply.arrays)
        except Exception as error:
            return packed({"error": f"{type(error).__name__}: {error}"})

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
