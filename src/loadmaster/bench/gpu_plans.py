"""Plans for a measured model under budgets, by solver; needs no GPU and no PyTorch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.plan import Plan
from loadmaster.problems.offload.heap import Kernels
from loadmaster.problems.offload.model import offload_model
from loadmaster.problems.offload.problem import Offload
from loadmaster.program.program import Program
from loadmaster.solvers.offload.holes import HOLES as HOLES
from loadmaster.solvers.offload.holes import leaving_holes, measured_kernels
from loadmaster.solvers.registry import make_solver, solver_names
from loadmaster.solvers.solver import Budget, solve
from loadmaster.units import UNLIMITED

PERCENTS = (50, 75, 30)
"""Of what the model needs, the most important first."""
PEER_SOLVERS = ("layerwise", "prefetch", "msa")
"""What others do, as plans for the same executor."""
SOLVERS = (*PEER_SOLVERS, "static", "spread", "auto")
OURS = ("auto",)
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

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "plan"}


def needed_bytes(program: Program, machine: Machine) -> int:
    """Bytes of fast memory with which nothing ever has to leave, workspace left out."""
    return offload_model(program, roomy(machine, UNLIMITED // 2)).needed


def roomy(machine: Machine, capacity: int) -> Machine:
    """The machine with another capacity of its fast memory."""
    return machine.with_capacity(machine.devices[0].memories[0], capacity)


def budget(need: int, percent: int, workspace: int) -> int:
    """A share of what the model needs with its workspace."""
    return (need + workspace) * percent // 100


def kernels_of(costs: Mapping[str, Any]) -> Kernels | None:
    """What a cost file says of kernels; none of a device whose memory is one arena."""
    return measured_kernels(costs["op_workspace"], int(costs["kept_bytes"]))


def plan_model(program: Program, machine: Machine, percent: int, solver: str, kernels: Kernels | None, *,
               need: int | None = None, seconds: float | None = None, evaluations: int | None = None,
               seed: int = 0) -> Planned:  # fmt: skip
    """One solver's plan under one budget, checked and simulated. `need`: of the model as it is, where the
    program computes its batch in slices. Rules that fill the memory to the last byte are too much for an
    allocator that leaves holes: they are followed with less of it until they fit."""
    workspace = 0 if kernels is None else kernels.kept + int(kernels.workspace.max(initial=0))
    capacity = budget(need or needed_bytes(program, machine), percent, workspace)
    about = (program.name, percent, solver, capacity)
    if solver not in solver_names("offload"):
        return Planned(*about, "skipped", note=f"there is no solver '{solver}'")
    began = time.perf_counter()
    limits = Budget(evaluations, seconds) if solver in OURS else Budget(None, None)
    shares = (0.0,) if percent >= 100 else HOLES

    def with_holes(share: float) -> Offload:
        return Offload(program, roomy(machine, capacity), reserve=workspace + int(share * capacity),
                       kernels=kernels if percent < 100 else None)  # fmt: skip

    try:
        problem, found = leaving_holes(
            with_holes,
            lambda each: solve(make_solver("offload", solver), each, limits, seed),
            shares,
        )
    except LoadmasterError as error:
        return Planned(*about, "refused", note=error.message)
    took = time.perf_counter() - began
    if found.decision is None:
        return Planned(*about, "no plan", seconds=took, evaluations=found.evaluations)
    plan = problem.plan(found.decision)
    if plan is None or problem.violations(plan):
        return Planned(*about, "refused by the checker", seconds=took)
    from loadmaster.simulate import simulate

    line = simulate(program, problem.machine, plan)
    moved = {(problem.machine.memory(link.source), problem.machine.memory(link.target)): int(count)
             for link, count in zip(problem.machine.links, line.link_bytes, strict=True)}  # fmt: skip
    fast, home = problem.model.fast, problem.model.home
    # Holes and workspace that not every op takes are no part of the budget's own bound.
    whole = Offload(
        program, roomy(machine, capacity), reserve=0 if kernels is None else kernels.kept
    )
    return Planned(*about, str(found.status), plan, line.total_ps, whole.bound().value, problem.limit_ps,
                   int(line.memory_peak[fast]), moved[home, fast], moved[fast, home],
                   found.evaluations, took)  # fmt: skip


def chosen_solvers(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Those that there are."""
    known = solver_names("offload")
    return tuple(name for name in names or SOLVERS if name in known)
