"""The planner: from a program and a machine to a checked plan beside baselines and bound.

`planner` chooses and makes the problem of a request and is all of it in one call, `search` solves it, compares and
writes the plan, `fitting` says whether a program fits at all, and `source` reads models by their names.
"""

from loadmaster.allocation.auto import NamedBuffers
from loadmaster.offload.kind import KernelRoom, kernel_room, make_offload
from loadmaster.planner.planner import (
    KINDS,
    CheckedSolution,
    build_problem,
    find_known,
    make_problem,
    plan,
    solve_checked,
    solve_request,
)
from loadmaster.planner.result import Result
from loadmaster.planner.search import SearchOptions, solve_problem
from loadmaster.search.kind import Row
from loadmaster.search.request import (
    BadRequest,
    Bytes,
    Capacity,
    Objective,
    PinTexts,
    PlanRequest,
    Share,
    parse_capacity,
)

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
