"""The Mapping problem as the planner sees it: with the time of a pass, or with bytes moved, as its value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, ClassVar

from loadmaster.errors import MissingPackage
from loadmaster.machine.machine import Machine
from loadmaster.mapping.bytes_moved import BYTES, bound_bytes, bytes_machine, moved_bytes
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.model import weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.mapping.search import GREY_BOX, WHITE_BOX, can_prove
from loadmaster.program.program import Program
from loadmaster.search.champion import Leaders, remeasure
from loadmaster.search.kind import (
    Bounded,
    Facts,
    Found,
    Headline,
    Known,
    ProblemKind,
    Row,
    Say,
    headline_text,
    known_values,
    solve_known,
)
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Decision, recorded_row
from loadmaster.search.registry import make_labelled
from loadmaster.search.request import BadRequest, Objective, PlanRequest, ProblemEvaluator
from loadmaster.search.solver import Budget, Solution, Status, solve
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes

KNOWN = ("all-slowest", "compiler", "density")
FIRMWARE = ("one-arena", "greedy-by-size")
"""What runtimes on microcontrollers do: for models of theirs."""


class MappingKind(ProblemKind[Mapping]):
    """Maps by the time of a pass, simulated or measured by an evaluator."""

    name = "mapping"
    accepts = frozenset({"pins", "noise", "evaluator", "keep_order", "problem_class"})
    by_clock = ("auto", "exact")
    white_box: ClassVar[Collection[str]] = WHITE_BOX
    grey_box: ClassVar[Collection[str]] = GREY_BOX
    settles: ClassVar[tuple[str, ...]] = ("result",)
    shows_itself = True
    space = "maps: one memory for each tensor's whole life, in the program's order"
    left_out = "copies, tiles, other orders"
    before = ("one-arena", "compiler")  # the first is known of models for microcontrollers alone

    def make(self, request: PlanRequest) -> Mapping:
        if request.evaluator is not None:
            return _make_measured(request)
        machine = request.own_machine
        program = request.load_program(machine)
        pins = request.resolve_pins(program, machine)
        try:
            seed = request.seed if request.noise else 0
            make: Callable[..., Mapping] = request.problem_class or Mapping
            return make(program, machine, noise=request.noise, noise_seed=seed, pins=pins)
        except ValueError as error:
            raise BadRequest(str(error), object="--noise", number=request.noise, remedy="give 0.02") from None

    def describe(self, problem: Mapping, source: str) -> str:
        memories = [problem.machine.memories[number] for number in problem.memories]
        sizes = ", ".join(f"{memory.name} {show_bytes(memory.capacity)}" for memory in memories)
        live = int(problem.live.sum())
        return (
            f"{source} on {problem.machine.name.removesuffix(BYTES)}: {problem.nodes:,} nodes, {live:,} tensors to place "
            f"({show_bytes(int(problem.entries.bytes.sum()))}) in {sizes}"
        )

    def known(self, problem: Mapping, source: str, seconds: float = math.inf) -> list[Known]:
        """Maps of known methods; `source` says whether the model is one for microcontrollers."""
        more = FIRMWARE if source.lower().endswith(".tflite") else ()
        found = known_values(problem, (*KNOWN, *more), seconds)
        problem.leaders = Leaders()  # what was measured here is not the solver's
        return found

    def facts(self, problem: Mapping, found: Found) -> Facts:
        """How full each memory gets, beside what the user has today."""
        facts = Facts({"nodes": problem.nodes, "tensors": int(problem.live.sum())})
        if found.plan is None:
            return facts
        ours = simulate(problem.program, problem.machine, found.plan).memory_peak
        decision = problem.compiler
        if found.before is not None and found.before.decision is not None:
            decision = found.before.decision
        first = simulate(problem.program, problem.machine, problem.plan(decision)).memory_peak
        facts.places = [
            {
                "what": "memory",
                "name": problem.machine.memories[number].name,
                "peak_bytes": int(ours[number]),
                "before_peak_bytes": int(first[number]),
                "capacity_bytes": problem.machine.memories[number].capacity,
            }
            for number in problem.memories
        ]
        return facts

    def not_decided(self, problem: Mapping) -> str | None:
        machine = problem.machine
        links = {(link.source, link.target) for link in machine.links}
        if not links:
            return None
        both = any((target, source) in links for source, target in links)
        playable = both and len(machine.memories) == 2 and problem.unit == "ps"
        remedy = "; --problem malloc-game decides them" if playable else ""
        return f"copies over the links of {machine.name.removesuffix(BYTES)} were not decided{remedy}"

    def bound(self, problem: Mapping, seconds: float = math.inf) -> Bound:
        """Of times without noise: the recorded one, else that of the linear relaxation, else one that needs
        no package."""
        if isinstance(problem, MeasuredMapping):
            return problem.bound()  # nothing is proven about hardware
        plain = _without_noise(problem)
        if recorded_row(plain.program, plain.machine) is not None and not plain.pins:
            return plain.bound()  # what is on record knows no pins
        if can_prove(plain):
            from loadmaster.mapping.exact import linear_bound

            with contextlib.suppress(MissingPackage):
                return max(plain.bound(), linear_bound(plain), key=lambda bound: bound.value)
        return weights_bound(plain)

    def measure_again(self, problem: Mapping, solver: str, seed: int, say: Say) -> Headline | None:
        if problem.repeatable:
            return None
        say("measuring the best maps again, in turns with the compiler's")
        champion, measured = remeasure(problem, seed=seed), isinstance(problem, MeasuredMapping)
        value = round(champion.winner.time_ps.middle) if measured else champion.simulated_ps
        note = headline_text(champion, measured, "compiler")
        return Headline(champion, champion.winner.decision, value, note, "compiler" if measured else None)

    def find_optimum(
        self, problem: Mapping, solver: str, solution: Solution, seconds: float, say: Say
    ) -> Row | None:
        """What is on record, else what the exact solver finds in so many seconds."""
        if isinstance(problem, MeasuredMapping):
            return None
        row = recorded_row(problem.program, problem.machine)
        if row is not None and not problem.pins:
            status = "optimal" if row["best"] <= row["bound"] else "best on record"
            name = "optimum" if status == "optimal" else "exact"
            return Row("reference", name, int(row["best"]), f"{status}, {row['method']}, on record")
        plain, proven = _without_noise(problem), solution.status == Status.OPTIMAL
        if proven or solver in ("auto", "exact") or not seconds or not can_prove(plain):
            return None
        say(f"seeking the optimum for up to {seconds:g} s, for comparison")
        exact = Bounded(make_labelled("mapping", "exact"), solution.bound)
        found = solve(exact, plain, Budget(seconds=seconds))
        if found.bound.value > solution.bound.value:
            solution.bound = found.bound
        name, status = "optimum" if found.status == Status.OPTIMAL else "exact", str(found.status)
        return Row(
            "reference",
            name,
            found.value,
            f"{status}, {found.bound.method}",
            seconds=found.seconds,
            decision=found.decision if problem.repeatable else None,
        )


def _make_measured(request: PlanRequest) -> MeasuredMapping:
    machine, evaluator = request.own_machine, request.evaluator
    assert evaluator is not None
    if isinstance(evaluator, ProblemEvaluator):
        # A map says what lies where between uses; the executor brings it to where ops work.
        made = evaluator.prepare(request)
        return MeasuredMapping(
            made.program,
            made.machine.with_reach("all"),
            evaluator.evaluator(made),
            repeats=request.repeats,
            warmups=evaluator.warmups,
        )
    program = request.load_program(machine)
    pins = request.resolve_pins(program, machine)
    _check_measurable(request, pins)
    return MeasuredMapping(program, machine, evaluator, repeats=request.repeats)


def _check_measurable(request: PlanRequest, pins: Pins) -> None:
    if request.noise:
        raise BadRequest(
            "--noise is for simulated times and --evaluator measures",
            object="--noise",
            remedy="give one of them",
        )
    if pins or request.objective == Objective.BYTES_MOVED:
        raise BadRequest(
            "--evaluator measures times of maps without pins",
            object="--evaluator",
            remedy="leave --pin and --objective out",
        )


def _without_noise(problem: Mapping) -> Mapping:
    """The same with simulated times as they are."""
    return problem if problem.repeatable else Mapping(problem.program, problem.machine, pins=problem.pins)


class BytesMoved(Mapping):
    """Maps on a machine that counts bytes, for one that has times."""

    def __init__(self, program: Program, machine: Machine, pins: Pins) -> None:
        super().__init__(program, bytes_machine(machine), pins=pins)
        self.real = machine


class BytesMovedKind(MappingKind):
    """Maps by the bytes that go through the slowest memory."""

    accepts = MappingKind.accepts - {"problem_class"}
    white_box = ()
    settles = ("baseline", "result")
    shows_itself = False
    bound_row = "always"

    def make(self, request: PlanRequest) -> BytesMoved:
        machine = request.own_machine
        program = request.load_program(machine)
        pins = request.resolve_pins(program, machine)
        if request.evaluator is not None:
            _check_measurable(request, pins)
        return BytesMoved(program, machine, pins)

    def describe(self, problem: Mapping, source: str) -> str:
        home = problem.machine.memories[problem.machine.home[0]].name
        return (
            f"{super().describe(problem, source)}; fewest bytes through {home}, each of which counts as a "
            "nanosecond"
        )

    def known(self, problem: Mapping, source: str, seconds: float = math.inf) -> list[Known]:
        return solve_known(problem, KNOWN, seconds)

    def facts(self, problem: Mapping, found: Found) -> Facts:
        return Facts({"nodes": problem.nodes})

    def machine(self, problem: Mapping) -> Machine:
        assert isinstance(problem, BytesMoved)
        return problem.real

    def unit(self, problem: Mapping) -> str:
        return "bytes"

    def row_in_unit(self, problem: Mapping, row: Row, decision: Decision | None) -> Row:
        """With bytes moved as its value, and its time on the real machine."""
        if decision is None:
            return replace(row, value=None)
        legal = problem.rectify(decision[None])[2][0]
        moved = moved_bytes(problem.program, problem.machine, problem.tensor_memories(legal))
        seconds = simulate(problem.program, self.machine(problem), problem.plan(decision)).seconds
        return replace(row, value=moved, extra={"seconds": seconds})

    def bound_in_unit(self, problem: Mapping, bound: Bound) -> Bound:
        return Bound(bound_bytes(problem.program, problem.machine, bound.value), bound.method)

    def row_figures(self, problem: Mapping, value: int | None) -> dict[str, Any]:
        return {"seconds": None}

    def measure_again(self, problem: Mapping, solver: str, seed: int, say: Say) -> Headline | None:
        return None

    def find_optimum(
        self, problem: Mapping, solver: str, solution: Solution, seconds: float, say: Say
    ) -> Row | None:
        return None


KIND = MappingKind()
BYTES_MOVED = BytesMovedKind()
