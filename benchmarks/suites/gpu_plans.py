"""Plans for a measured model under budgets, by solver; needs no GPU and no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.offload.model import Kernels, measured_kernels, offload_model
from loadmaster.offload.problem import Offload
from loadmaster.offload.repeats import with_repeats
from loadmaster.plan import Plan
from loadmaster.planner import CheckedSolution, KernelRoom, make_offload, solve_checked
from loadmaster.program.program import Program
from loadmaster.search.registry import solver_labels
from loadmaster.search.solver import Budget
from loadmaster.units import PICOSECONDS, UNLIMITED

PERCENTS = (50, 75, 30)
"""Of what the model needs, the most important first."""
PEER_SOLVERS = ("layerwise", "prefetch", "msa")
"""What others do, as plans for the same executor."""
OURS = ("auto",)
COPIES = "auto-copies"
"""Ours if nothing may be computed twice; of programs without a backward pass `auto` is that already."""
SOLVERS = ("auto", COPIES, *PEER_SOLVERS)
RESIDENT = (100, "all-resident")
"""For comparing the executor with the ordinary run."""
RULES = (*PEER_SOLVERS, RESIDENT[1])
"""They take what they need; all others get the seconds and evaluations of a search."""
VARIANTS = (
    "llama-small-batch",
    "llama-large-batch",
    "bert-large-batch",
    "vit-large-batch",
    "moe-large-batch",
    "unet-large-batch",
)
"""Models with other batches: under half of the memory alone, and no part of the targets."""
VARIANT_SOLVERS = ("auto", "prefetch", "msa")
_BESIDE = 2**28
GRAPH = "+graph"
"""Ends the name of a solver whose plan ran as one CUDA graph."""


@dataclass(frozen=True)
class Planned:
    """One plan and what is predicted of it."""

    model: str
    percent: int
    solver: str
    capacity: int
    """The budget."""
    status: str
    plan: Plan | None = None
    simulated_ps: int = -1
    bound_ps: int = 0
    limit_ps: int = 0
    """Time of the ops alone."""
    peak: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    note: str = ""
    half_ps: int = 0
    """What it takes to copy half of what the model needs into fast memory."""
    repeats: tuple[int, ...] = ()
    """Ops of the model's program that the plan runs again; its file says so too."""
    program: Program | None = None
    """What the plan is about: the model's program, with these ops in it."""

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("plan", "program")}


def needed_bytes(program: Program, machine: Machine) -> int:
    """Bytes of fast memory with which nothing ever has to leave, workspace left out."""
    return offload_model(program, roomy(machine, UNLIMITED // 2)).needed


def roomy(machine: Machine, capacity: int) -> Machine:
    """The machine with another capacity of its fast memory."""
    return machine.with_capacity(machine.devices[0].memories[0], capacity)


def budget(need: int, percent: int) -> int:
    """A share of what the model needs with its kernels; all of it has some room beside, so that everything
    that it needs finds its place."""
    return need * percent // 100 + (need // 50 + _BESIDE if percent >= 100 else 0)


def kernels_of(costs: Mapping[str, Any]) -> Kernels | None:
    """What a cost file says of kernels; none of a device whose memory is one arena."""
    return measured_kernels(costs["op_workspace"], int(costs["kept_bytes"]))


def plans_to_make(model: str, percents: Sequence[int], solvers: Sequence[str]) -> list[tuple[int, str]]:
    """(percent, solver) of the plans of a model, in this order; a variant has few."""
    if model in VARIANTS:
        percents = [percent for percent in percents if percent == 50]
        return [(percent, solver) for percent in percents for solver in solvers if solver in VARIANT_SOLVERS]
    return [*((percent, solver) for percent in percents for solver in solvers), RESIDENT]


def plan_model(
    program: Program,
    machine: Machine,
    percent: int,
    solver: str,
    kernels: Kernels | None,
    *,
    need: int | None = None,
    seconds: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
) -> Planned:
    """One solver's plan under one budget, checked and simulated. `need`: what the model needs with its kernels,
    where that is not what program and kernels say (its batch is computed in slices)."""
    if need is None:
        need = needed_bytes(program, machine) + (
            0 if kernels is None else kernels.kept + int(kernels.workspace.max(initial=0))
        )
    capacity = budget(need, percent)
    about = (program.name, percent, solver, capacity)
    name, training = solver.replace(COPIES, "auto"), bool(program.op_backward.any())
    if name not in solver_labels("offload"):
        return Planned(*about, "skipped", note=f"there is no solver '{solver}'")
    if solver == COPIES and not training:
        return Planned(*about, "skipped", note="nothing could run again: 'auto' copies already")
    limits = Budget() if solver in RULES else Budget(evaluations, seconds)
    small, again = roomy(machine, capacity), solver in OURS and training
    make = partial(make_offload, machine=small, room=KernelRoom(kernels))

    def solved(problem: Offload) -> CheckedSolution:
        return solve_checked(problem, name, limits, seed)

    began = now()
    try:
        if again:
            best = with_repeats(program, make, lambda problem: solved(problem).solution)
            problem, checked = best.problem, CheckedSolution(best.problem, best.solution, now() - began)
        else:
            problem = make(program)
            checked = solved(problem)
    except LoadmasterError as error:
        return Planned(*about, "refused", note=error.message)
    found, plan, took = checked.solution, checked.plan, checked.seconds
    if found.decision is None:
        return Planned(
            *about, "no plan", seconds=took, evaluations=found.evaluations, note="none of its plans fits"
        )
    if plan is None or checked.violations:
        return Planned(*about, "refused by the checker", seconds=took)
    line = checked.timeline
    moved = {
        (small.memory(link.source), small.memory(link.target)): int(count)
        for link, count in zip(small.links, line.link_bytes, strict=True)
    }
    fast, home = problem.model.fast, problem.model.home
    # Room that not every op takes is no part of the budget's own bound. Where ops may run again nothing has
    # to be kept, so nothing has to move: what remains is each op once.
    whole = Offload(program, small, reserve=0 if kernels is None else kernels.kept)
    repeats = problem.program.repeats
    return Planned(
        *about,
        str(found.status),
        plan,
        line.total_ps,
        whole.limit_ps if again else whole.bound().value,
        whole.limit_ps,
        int(line.memory_peak[fast]),
        moved[home, fast],
        moved[fast, home],
        found.evaluations,
        took,
        half_ps=_copied_ps(machine, home, fast, need // 2),
        repeats=() if repeats is None else repeats.ops,
        program=problem.program,
    )


def _copied_ps(machine: Machine, source: int, target: int, count: int) -> int:
    names = [memory.name for memory in machine.memories]
    link = next(
        each for each in machine.links if (each.source, each.target) == (names[source], names[target])
    )
    return int(count / link.bandwidth * PICOSECONDS)


def ordered(plans: Sequence[Planned], ours: Sequence[str]) -> list[Planned]:
    """The most important first: a budget of half, ours, then what it is compared with."""
    urgency: Mapping[int, int] = {50: 0, 75: 1, 30: 2}
    return sorted(plans, key=lambda p: (urgency.get(p.percent, 9), p.solver not in ours))
