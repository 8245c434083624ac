"""How `plan` decides fusion, placement and order on several devices, beside known plans and a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.plan_graph_show import Before, Compared, shown
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import say
from loadmaster.errors import Refused
from loadmaster.graph import TASKS, Base, GraphOptimization
from loadmaster.graph.auto import BY_CLOCK
from loadmaster.graph.expert import expert_placement
from loadmaster.machine import Machine
from loadmaster.plan import Plan
from loadmaster.program import Program
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Decision
from loadmaster.search.solver import Solution


def graph_problem(
    program: Program,
    machine: Machine,
    tasks: str | None,
    groups: str,
    base: Sequence[str],
    pins: Pins | None = None,
) -> GraphOptimization:
    """The problem that the options describe, if it has a plan at all."""
    chosen = TASKS if tasks is None else tuple(task.strip() for task in tasks.split(","))
    if len(machine.devices) == 1 and "placement" in chosen:
        raise Usage(
            f"machine '{machine.name}' has one device: there is nothing to place",
            object="--tasks",
            number=1,
            remedy="give --tasks fusion,schedule, or --machine p100x4",
        )
    problem = GraphOptimization(program, machine, tasks=chosen, groups=groups, base=_base(base), pins=pins)
    if problem.no_plan is not None:
        raise Refused(
            f"no plan of '{program.name}' fits '{machine.name}': {problem.no_plan}",
            object=program.name,
            remedy="give a larger machine, or --capacity",
        )
    return problem


def _base(texts: Sequence[str]) -> Base:
    """'fusion=none,placement=single' and the like."""
    given: dict[str, str] = {}
    for text in (part for each in texts for part in each.split(",")):
        name, equals, value = text.strip().partition("=")
        if not equals or name not in ("fusion", "placement", "schedule"):
            raise Usage(
                f"--base '{text}' is not PART=NAME",
                object="--base",
                number=text,
                remedy="write --base fusion=none,placement=single,schedule=fifo",
            )
        given[name] = value.replace("-", "_")
    return Base(**given)


def plan_graph(problem: GraphOptimization, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell."""
    wanted = completed(wanted, BY_CLOCK)
    solver = chosen_solver("graph", str(wanted.solver), wanted.options)
    say(_head(problem, source))
    before = _known_plans(problem)
    fitting: dict[str, Decision] = {each.name: each.vector for each in before if each.over == 0}
    solution = solved(solver, problem, problem.bound(), wanted, fitting)
    plan = _kept(problem, solution, wanted)
    compared = Compared(problem, source, solver.name, solution, before, plan, wanted.out)
    return replace(shown(compared), error=ended_badly(problem, solution))


def _head(problem: GraphOptimization, source: str) -> str:
    """What will be decided, in one line."""
    return (
        f"{source} on {problem.machine.name}: {', '.join(problem.tasks)} of {problem.nodes:,} ops in "
        f"{problem.groups:,} groups on {problem.devices} device{'s' if problem.devices > 1 else ''}; base: {_base_text(problem)}"
    )


def _base_text(problem: GraphOptimization) -> str:
    base = problem.base
    placement = base.placement if isinstance(base.placement, str) else "given"
    return f"fusion {base.fusion}, placement {placement}, schedule {base.schedule}"


def _known_plans(problem: GraphOptimization) -> list[Before]:
    """The base plan, the expert's placement in it, and the base plan by critical path."""
    vectors: dict[str, Any] = {"base": problem.vector()}
    made = {
        "base": _base_text(problem),
        "expert": "base with whole layers on neighbours",
        "critical-path": "base, the longest way to the end first",
    }
    if "placement" in problem.tasks and problem.base.placement != "expert":
        group = np.full(problem.program.n_ops, -1, dtype=np.int32)
        group[problem.node_op] = problem.node_group
        expert = expert_placement(problem.program, group, problem.groups, problem.devices)
        if expert is not None:
            vectors["expert"] = problem.vector(device=expert)
    if "schedule" in problem.tasks and problem.base.schedule != "critical_path":
        vectors["critical-path"] = problem.vector(schedule=np.zeros(problem.nodes))
    time, over, fault = problem.measure(np.stack(list(vectors.values())))
    return [
        Before(name, vector, None if fault[row, 0] else int(time[row]), int(over[row].sum()), made[name])
        for row, (name, vector) in enumerate(vectors.items())
    ]


def _kept(problem: GraphOptimization, solution: Solution, wanted: Wanted) -> Plan | None:
    """The checked plan, in a file if one is wanted."""
    if solution.decision is not None:
        return written(problem, solution.decision, wanted.out)
    plan: Plan | None = solution.extra.get("plan")  # of an earlier session, checked there
    if plan is not None and wanted.out is not None:
        from loadmaster.cli.files import writing
        from loadmaster.plan import save_plan

        with writing(wanted.out):
            save_plan(plan, problem.program, problem.machine, wanted.out)
    return plan
