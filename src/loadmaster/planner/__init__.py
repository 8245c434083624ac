"""The planner: from a program and a machine to a checked plan beside baselines and bound.

`request` is what to plan, `problems` makes its problem, `search` solves it, compares and writes the plan, and
`planner` is all of it in one call.
"""

from loadmaster.planner.capacity import (
    BadRequest,
    Bytes,
    Capacity,
    KernelRoom,
    Share,
    kernel_room,
    parse_capacity,
)
from loadmaster.planner.planner import (
    CheckedSolution,
    find_known,
    make_problem,
    plan,
    solve_checked,
    solve_request,
)
from loadmaster.planner.problems import KINDS, build_problem, make_offload
from loadmaster.planner.request import NamedBuffers, Objective, PinTexts, PlanRequest
from loadmaster.planner.result import Result, Row
from loadmaster.planner.search import SearchOptions, solve_problem

__all__ = [
    "KINDS",
    "BadRequest",
    "Bytes",
    "Capacity",
    "CheckedSolution",
    "KernelRoom",
    "NamedBuffers",
    "Objective",
    "PinTexts",
    "PlanRequest",
    "Result",
    "Row",
    "SearchOptions",
    "Share",
    "build_problem",
    "find_known",
    "kernel_room",
    "make_offload",
    "make_problem",
    "parse_capacity",
    "plan",
    "solve_checked",
    "solve_problem",
    "solve_request",
]
