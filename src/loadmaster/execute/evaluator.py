"""`ExecutorEvaluator`: plans are run by the executor, and what they take is their value.

Weights lie in host memory once for all plans, since pinning takes long; so do inputs and whatever a
plan copies out. A plan keeps the device until the next one comes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.execute import own_allocator
from loadmaster.execute.executor import Executor
from loadmaster.execute.pinned import HostMemory, HostWeights, add_rooms, host_weights, shared_rows
from loadmaster.machine.machine import Machine
from loadmaster.offload.kind import make_simulated
from loadmaster.offload.model import Kernels
from loadmaster.offload.problem import SQUEEZES, Offload
from loadmaster.offload.residencies import gaps_of_mapping
from loadmaster.plan.plan import HOME, Plan
from loadmaster.planner.source import ModelSource
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.program import Program
from loadmaster.search.evaluator import EXECUTOR, CommandEvaluator, EvaluationError, Evaluator
from loadmaster.search.problem import Problem
from loadmaster.search.request import BadRequest, Objective, PlanRequest, ProblemEvaluator

if TYPE_CHECKING:
    from loadmaster.execute.ready import Ready


class ExecutorEvaluator(Evaluator):
    """Runs plans for a captured model on a device.

    Plans with copies are run as they are. One without, of the Mapping problem, says what stays in
    fast memory for life: what it leaves at home is copied in for each use.
    `capacity`: bytes of fast memory that a run may have (default: the machine's); `workspace`: what
    kernels need of it beside the plan; `kernels`: the same op by op, so that what streams beside a map
    leaves each its room; `warmups`: passes that don't count when a plan comes on;
    `graph`: each plan as one CUDA graph.
    """

    def __init__(
        self,
        captured: Captured,
        machine: Machine,
        device: Any,
        weights: Mapping[str, Any] | HostWeights,
        inputs: Sequence[Any],
        *,
        capacity: int | None = None,
        workspace: int = 0,
        kernels: Kernels | None = None,
        warmups: int = 1,
        graph: bool = False,
    ) -> None:
        self.name = f"executor:{device}"
        self.captured, self.device = captured, device
        self._memory = HostMemory(pinned=str(device).startswith("cuda"))
        if not isinstance(weights, HostWeights):
            weights = host_weights(captured, weights, self._memory)
        self._weights, self._inputs = (HostWeights(dict(weights.rows), weights.layouts), tuple(inputs))
        self.capacity, self.workspace, self.graph = capacity, workspace, graph
        self._kernels, self._warmups = kernels, warmups
        self._about: tuple[Program, Machine] = (captured.program, machine)
        self._offload: Offload | None = None
        self._executor: Executor | None = None
        self._running, self._shared = "", False
        self.peak_bytes = 0
        """Most fast memory that any plan had in use."""

    def bind(self, program: Program, machine: Machine) -> None:
        """Say what the plans to come are about: the captured program, with costs or without."""
        own = self.captured.program
        if program.op_name != own.op_name or not np.array_equal(program.storage_bytes, own.storage_bytes):
            raise EvaluationError(
                f"'{program.name}' is not the program that was captured",
                object=program.name,
                number=program.n_ops,
                remedy="plan for the captured program",
            )
        self.close()
        self._about, self._offload = (program, machine), None

    def __call__(self, plan: Plan, /) -> float:
        """Seconds of one pass."""
        try:
            if self._running != plan.hash:
                self._come_on(plan)
            assert self._executor is not None
            found = self._executor.run(*self._inputs)
        except (LoadmasterError, RuntimeError) as error:
            fault = error.message if isinstance(error, LoadmasterError) else str(error).split("\n")[0]
        else:
            self.peak_bytes = max(self.peak_bytes, found.peak_bytes)
            return found.seconds
        # Only now nothing of the error holds the device's memory any more.
        self.close()
        raise EvaluationError(
            fault, object=self.name, number=plan.hash[:12], remedy="plan for a smaller capacity"
        )

    def close(self) -> None:
        """Give the device's memory back; a later call takes it again."""
        executor, self._executor, self._running = self._executor, None, ""
        if executor is not None:
            executor.close()
            del executor
        gc.collect()  # after a failure, what was half made

    def _come_on(self, plan: Plan) -> None:
        """Another plan takes the device."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        mine = plan.copies is None
        followed = self._streamed(plan) if mine else plan
        machine = self._about[1]
        if mine and not self._shared:  # maps copy almost everything out
            self._shared = True
            self._weights.rows.update(shared_rows(self.captured, self._memory) | self._weights.rows)
        add_rooms(self._weights, self.captured, followed, machine.reach[0][0], self._memory)
        self._executor = Executor(
            self.captured,
            followed,
            machine,
            self.device,
            self._weights,
            capacity=self.capacity,
            workspace=self.workspace,
            graph=self.graph,
            checked=not mine,
        )
        for _ in range(self._warmups):
            self._executor.run(*self._inputs)
        self._running = plan.hash

    def _streamed(self, plan: Plan) -> Plan:
        """The plan in which what is not in fast memory for life comes for each use and leaves after it."""
        if self._offload is None:
            program, machine = self._about
            room = machine.memories[machine.reach[0][0]].capacity
            # A machine that has less than the capacity leaves room for kernels already.
            spare = 0 if self.capacity is None else self.capacity - room
            reserve = max(0, self.workspace - spare) if self._kernels is None else 0
            self._offload = Offload(program, machine, reserve=reserve, kernels=self._kernels)
        memory = np.full(self.captured.program.n_tensors, HOME, dtype=np.int64)
        for row in plan.residency_rows:
            memory[row.tensor] = row.memory
        keep = gaps_of_mapping(self._offload.model, memory)
        for squeeze in SQUEEZES:  # until offsets are found quickly
            made = self._offload.scheduled(self._offload.vector(keep, squeeze=squeeze))
            found = self._offload.with_offsets(made, seconds=0.0)
            if found is not None:
                return found
        raise EvaluationError(
            "no offsets were found beside what streams in and out",
            object=self.name,
            number=plan.hash[:12],
            remedy="use another map",
        )


# `ExecutorLoop`: the executor as what measures the planner's plans, on a device of this computer.

KINDS = ("offload", "mapping")


def choose_evaluator(
    text: str, source: ModelSource, timeout_s: float, say: Callable[[str], None]
) -> Evaluator | ExecutorLoop:
    """What measures plans of a model: 'executor:DEVICE' runs them here, anything else is a command."""
    if not text.startswith(EXECUTOR):
        return CommandEvaluator(text, timeout_s)
    device = text.removeprefix(EXECUTOR)
    return ExecutorLoop(source.name, device, training=source.training, split_over=source.split_over, say=say)


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
        return ModelSource(self.source).machine(name)

    def captured_for(self, machine: Machine | None) -> str | None:
        return self.device

    def load(self, machine: Machine | None = None) -> Program:
        """The program as the executor runs it."""
        from loadmaster.execute.ready import make_ready

        self._ready = make_ready(
            self.source, self.device, weights="random", training=self._training, split_over=self._split_over
        )
        return self._ready.captured.program

    def prepare(self, request: PlanRequest) -> Offload:
        return make_simulated(request, recompute=False)

    def evaluator(self, problem: Problem) -> Evaluator:
        """Runs plans of an offload problem, or of a map of the same program."""
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
