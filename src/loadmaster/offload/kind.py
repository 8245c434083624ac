"""The offload problem as the planner sees it: measured times, room for kernels, capacities as shares, ops that run
again."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError, NoAnswer
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.msa import MSA_STEPS
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.offload.model import Kernels, measured_kernels, offload_model, unmeasured_kernels
from loadmaster.offload.problem import Offload, options_of
from loadmaster.offload.repeats import with_repeats
from loadmaster.offload.search import WHITE_BOX
from loadmaster.program.measured_costs import MeasuredCosts, apply_costs
from loadmaster.program.program import Program
from loadmaster.program.repeats import AGAIN, Repeated, repeat
from loadmaster.search.champion import Leaders, remeasure
from loadmaster.search.kind import (
    Facts,
    Found,
    Headline,
    Known,
    ProblemKind,
    Say,
    headline_text,
    known_values,
    traffic_numbers,
)
from loadmaster.search.pins import Pins
from loadmaster.search.registry import make_solver
from loadmaster.search.request import (
    BadRequest,
    Bytes,
    Capacity,
    PlanRequest,
    ProblemEvaluator,
    Share,
    with_bytes,
)
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate
from loadmaster.units import UNLIMITED, show_bytes, show_time

KNOWN = ("all-resident", "layerwise", "prefetch", "msa")
MEASURED = 100
"""Evaluations where hardware measures, if the user gives none."""
AT_ONCE = 4
"""Measurements of a plan in a row: going over to another one takes long."""
PROBE = Budget(evaluations=200, seconds=10.0)
"""For comparing programs in which other ops run again."""


class OffloadKind(ProblemKind[Offload]):
    """Offload plans by the time of a pass, simulated or measured."""

    name = "offload"
    accepts = frozenset({"pins", "costs", "shares", "recompute", "evaluator", "keep_order"})
    by_clock = ("auto",)
    white_box = WHITE_BOX
    space = "copies in and out of the first memory, in the program's order, with the ops run again that were chosen"
    left_out = "tiles, other orders, other ops run again"
    before = ("all-resident", "layerwise")

    def make(self, request: PlanRequest) -> Offload:
        evaluator, plain = request.evaluator, make_simulated(request)
        if evaluator is None:
            return plain
        made, warmups = evaluator, 2
        if isinstance(evaluator, ProblemEvaluator):
            made, warmups = evaluator.evaluator(plain), evaluator.warmups
        assert not isinstance(made, ProblemEvaluator)
        return MeasuredOffload(
            plain.program, plain.machine, made, repeats=request.repeats, warmups=warmups, **options_of(plain)
        )

    def describe(self, problem: Offload, source: str) -> str:
        model, memory = problem.model, problem.machine.memories[problem.model.fast]
        to_kernels = problem.for_kernels
        left = f", {show_bytes(to_kernels)} of it left to kernels" if to_kernels else ""
        return (
            f"{source} on {problem.machine.name}: {model.steps:,} steps, {model.gaps:,} decisions about "
            f"{model.items:,} tensors; it needs {show_bytes(model.needed)} at once, {memory.name} has "
            f"{show_bytes(memory.capacity)}{left}"
        )

    def known(self, problem: Offload, source: str, seconds: float = math.inf) -> list[Known]:
        found, until = list[Known](), now() + seconds
        for name in KNOWN:
            if (found and now() >= until) or (name == "msa" and problem.model.steps > MSA_STEPS):
                break
            with contextlib.suppress(LoadmasterError):  # a rule that can't be followed here is no baseline
                found += known_values(problem, [name])
        if isinstance(problem, MeasuredOffload):
            problem.leaders = Leaders()  # what was measured here is not the solver's
        return found

    def facts(self, problem: Offload, found: Found) -> Facts:
        """What the plan moves and runs again, where it waits, and how full the fast memory gets."""
        model, machine = problem.model, problem.machine
        again = _repeat_numbers(problem)
        facts = Facts(
            {
                "steps": model.steps,
                "gaps": model.gaps,
                "needed_bytes": model.needed,
                "ops_picoseconds": problem.limit_ps,
                **again,
            }
        )
        if found.plan is None:
            return facts
        timeline = simulate(problem.program, machine, found.plan)
        over = {
            (machine.memory(link.source), machine.memory(link.target)): int(count)
            for link, count in zip(machine.links, timeline.link_bytes, strict=True)
        }
        moved = traffic_numbers(machine, found.plan, timeline, model.fast)
        moved |= {"bytes_in": over[model.home, model.fast], "bytes_out": over[model.fast, model.home]}
        facts.numbers |= moved
        facts.notes.append(
            f"{machine.memories[model.fast].name}: peak {show_bytes(moved['fast_peak_bytes'])} of "
            f"{show_bytes(moved['fast_capacity_bytes'])}; {moved['copies']:,} copies, "
            f"{show_bytes(moved['bytes_in'])} in and {show_bytes(moved['bytes_out'])} out, "
            f"{show_time(moved['stall_picoseconds'])} of waiting for them"
        )
        if problem.program.repeats is not None:
            took, all_ops = again["repeat_picoseconds"], problem.limit_ps
            facts.notes.append(
                f"{again['repeats']:,} ops run again in the backward pass, which takes {show_time(took)} of the "
                f"ops' {show_time(all_ops)}; the bound is for these, with any others at least "
                f"{show_time(all_ops - took)}"
            )
        if problem.kernels is not None and problem.program.costs is None:
            measure = f"; measure it with: {found.calibrate}" if found.calibrate else ""
            facts.notes.append(
                f"what kernels take for themselves is not known without --costs: {show_bytes(problem.for_kernels)} "
                f"are left to libraries, nothing to ops{measure}"
            )
        return facts

    def explain(
        self, problem: Offload, solution: Solution, seconds: float, seed: int
    ) -> LoadmasterError | None:
        """Where nothing fits, what all plans begin with is mostly too large for the slow memory."""
        home = problem.machine.memories[problem.model.home]
        nothing = problem.plan(problem.vector(np.zeros(problem.gaps, dtype=bool)))
        if nothing is None or solution.interrupted:
            return None
        needed = int(simulate(problem.program, problem.machine, nothing).memory_peak[problem.model.home])
        if needed <= home.capacity:
            return None
        return NoAnswer(
            f"{problem.program.name}: no plan that fits was found in {solution.evaluations:,} evaluations; one that "
            f"keeps nothing in fast memory needs {show_bytes(needed)} of '{home.name}', which has "
            f"{show_bytes(home.capacity)}",
            object=home.name,
            number=needed,
            remedy=f"give --capacity {home.name}={needed}, or a smaller model",
        )

    def default_search(self, problem: Offload) -> tuple[str, int | None]:
        return ("refined", MEASURED) if isinstance(problem, MeasuredOffload) else ("auto", None)

    def row_figures(self, problem: Offload, value: int | None) -> dict[str, Any]:
        return {"over_ops": value / problem.limit_ps if value and problem.limit_ps else None}

    def measure_again(self, problem: Offload, solver: str, seed: int, say: Say) -> Headline | None:
        """What `refined` found is only taken if it is surely faster than what it began with."""
        if not isinstance(problem, MeasuredOffload):
            return None
        say("measuring the best plans again, in turns with the one that the search began with")
        champion = remeasure(problem, seed=seed, together=AT_ONCE)
        refined = solver == "refined"
        note = headline_text(champion, True, "the simulator's best" if refined else "belady")
        if refined and not champion.gained:
            note += "; that is not surely faster, so the simulator's best is the plan"
            return Headline(champion, problem.baseline, round(champion.baseline.time_ps.middle), note)
        winner = champion.winner
        return Headline(champion, winner.decision, round(winner.time_ps.middle), note)


def make_simulated(request: PlanRequest, recompute: bool | None = None) -> Offload:
    """The problem with measured times if there are any, room for kernels, and capacities as shares of what is
    needed. To recompute (None: if the request does): about the program with those ops run again that let the
    quickest plans be found."""
    machine = request.own_machine
    program = request.load_program(machine)
    pins = request.resolve_pins(program, machine)
    measured = request.read_costs()
    if measured is not None:
        program = apply_costs(program, measured, machine.devices[0].name)
    room = kernel_room(program.n_ops, measured, request.captured_for(machine))
    machine = with_shares(machine, request.capacity, program, room.needed)
    make = partial(make_offload, machine=machine, room=room, pins=pins)
    if not (request.recomputes(program) if recompute is None else recompute):
        return make(repeat(program, []))
    request.say(f"seeking ops of '{program.name}' to run again")
    auto = make_solver("offload", "auto")
    return with_repeats(program, make, lambda each: solve(auto, each, PROBE)).problem


def _repeat_numbers(problem: Offload) -> dict[str, Any]:
    """How many ops run again, and how long that takes."""
    repeats = problem.program.repeats
    if repeats is None:
        return {"repeats": 0, "repeat_picoseconds": 0}
    again = np.array([name.endswith(AGAIN) for name in problem.program.op_name])
    return {
        "repeats": len(repeats.ops),
        "repeat_picoseconds": int(problem.duration[again[problem.model.step_op]].sum()),
    }


@dataclass(frozen=True, eq=False)
class KernelRoom:
    """What kernels take beside the tensors of a program: one answer for planning and for running."""

    kernels: Kernels | None = None
    """What a plan leaves to each op and to libraries"""
    reserve: int = 0
    """What it leaves all the time, where no more is known than one number"""
    needed: int = 0
    """What counts into the bytes that a program needs with nothing ever leaving"""
    kept: int = 0
    """What a run has to have beside the peak of a plan that leaves ops their room"""


def make_offload(
    program: Program | Repeated, machine: Machine, room: KernelRoom, pins: Pins | None = None
) -> Offload:
    """The problem with room for kernels. Where ops run again (`repeat`), `room` is that of the base program:
    each has the workspace of the op that it repeats."""
    kernels = room.kernels
    if isinstance(program, Repeated):
        kernels = kernels and replace(kernels, workspace=kernels.workspace[program.origin])
        program = program.program
    return Offload(program, machine, reserve=room.reserve, kernels=kernels, pins=pins)


def kernel_room(ops: int, measured: MeasuredCosts | None, device: str | None) -> KernelRoom:
    """For a program of so many ops: what was measured, else what any run takes on the device that it was
    captured for (None: it is not known)."""
    if measured is None:
        if device is None or device.partition(":")[0] != "cuda":
            return KernelRoom()
        known = unmeasured_kernels(ops)
        return KernelRoom(known, needed=known.kept + known.spare, kept=known.kept)
    kernels = measured_kernels(measured.op_workspace, measured.kept_bytes)
    everything = measured.workspace_bytes
    if kernels is None:
        return KernelRoom(None, everything, everything, everything)
    return KernelRoom(kernels, needed=everything, kept=measured.kept_bytes)


def with_shares(machine: Machine, capacity: Capacity, program: Program, reserve: int) -> Machine:
    """The machine with those capacities that are shares of what a program needs, `reserve` bytes for
    kernels included."""
    for memory, size in capacity.items():
        if isinstance(size, Share):
            machine = with_bytes(machine, {memory: _share_bytes(machine, memory, size, program, reserve)})
    return machine


def _share_bytes(machine: Machine, memory: str, share: Share, program: Program, reserve: int) -> Bytes:
    fast, text = machine.memories[machine.reach[0][0]].name, f"{memory}={share}"
    if memory != fast:
        raise BadRequest(
            f"--capacity '{text}' is no share of '{fast}'",
            object="--capacity",
            number=text,
            remedy=f"write {fast}=50%",
        )
    if program.repeats is not None:
        raise BadRequest(
            f"ops of '{program.name}' run again: shares are of what it needs without that",
            object="--capacity",
            number=text,
            remedy="give the capacity in bytes, or the model itself",
        )
    roomy = machine.with_capacity(fast, UNLIMITED)
    return Bytes(int((offload_model(program, roomy).needed + reserve) * share.part))


KIND = OffloadKind()
