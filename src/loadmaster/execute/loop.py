"""`ExecutorLoop`: the executor as what measures the planner's plans, on a device of this computer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.execute import own_allocator
from loadmaster.machine.machine import Machine
from loadmaster.offload.problem import Offload
from loadmaster.planner.capacity import BadRequest
from loadmaster.planner.request import Objective, PlanRequest, ProblemEvaluator
from loadmaster.program.program import Program
from loadmaster.search.evaluator import Evaluator
from loadmaster.search.problem import Problem

if TYPE_CHECKING:
    from loadmaster.execute.ready import Ready

KINDS = ("offload", "mapping")


class ExecutorLoop(ProblemEvaluator):
    """Where the program comes from (`ProgramSource`) and what measures its plans: a PyTorch 'module:function',
    captured for a device, with made-up weights."""

    def __init__(
        self,
        source: str,
        device: str,
        *,
        training: bool = False,
        split_over: int | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.source, self.device, self._say = source, device, say
        self._training, self._split_over = training, split_over
        self._ready: Ready | None = None

    def check(self, kind: str, request: PlanRequest) -> None:
        """Refuse what can't be run; the device is made ready."""
        if kind not in KINDS:
            raise BadRequest(
                f"the executor runs plans of offload and mapping, not of {kind}",
                object="--evaluator",
                number=kind,
                remedy="give --machine h200, or --problem offload",
            )
        if request.noise or request.pins or request.objective != Objective.TIME:
            raise BadRequest(
                "the executor measures the time of plans without pins",
                object="--evaluator",
                remedy="leave --noise, --pin and --objective out",
            )
        own_allocator.fewer_holes()  # only before PyTorch is first imported
        from loadmaster.execute.executor import backend_for

        if self.device != "cpu":
            own_allocator.install()  # only before CUDA is first used
        backend_for(self.device).close()  # no device: said before anything is made
        if Path(self.source).exists() or ":" not in self.source:
            raise BadRequest(
                f"the executor runs PyTorch modules, and '{self.source}' is no module:function",
                object=self.source,
                remedy="give a function that returns (nn.Module, inputs)",
            )

    def machine(self, name: str | None) -> Machine:
        raise BadRequest("the executor needs a machine", object="--machine", remedy="give --machine h200")

    def captured_for(self, machine: Machine | None) -> str | None:
        return self.device

    def load(self, machine: Machine | None = None) -> Program:
        """The program as the executor runs it."""
        from loadmaster.execute.ready import make_ready

        self._ready = make_ready(
            self.source, self.device, weights="random", training=self._training, split_over=self._split_over
        )
        return self._ready.captured.program

    def evaluator(self, problem: Problem) -> Evaluator:
        """Runs plans of an offload problem, or of a map of the same program."""
        from loadmaster.execute.evaluator import ExecutorEvaluator

        assert isinstance(problem, Offload) and self._ready is not None
        ready, repeats = self._ready, problem.program.repeats
        captured = ready.captured if repeats is None else ready.captured.repeated(repeats.ops)
        self._say(f"weights of '{self.source}' are made up and laid into host memory")
        return ExecutorEvaluator(
            captured,
            problem.machine,
            self.device,
            ready.weights,
            ready.inputs,
            workspace=problem.reserve,
            kernels=problem.kernels,
        )
