"""Problems of the suites, made by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from loadmaster.machine import Machine
from loadmaster.planner import NamedBuffers, PlanRequest, build_problem
from loadmaster.program import Program
from loadmaster.search.problem import Problem

AnyProblem = TypeVar("AnyProblem", bound=Problem)


def make_as(
    kind: type[AnyProblem],
    program: Program | NamedBuffers,
    machine: Machine | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    **parts: Any,
) -> AnyProblem:
    """The planner's problem of this class.

    Args:
      kind: a class of problems; of mapping and malloc-game, or a subclass of theirs.
      options: of the class, where no request has them: `{"invalid": "repair"}`.
      parts: of the request: `noise`, `tasks`, `base`, …
    """
    if options is not None:
        parts["problem_class"] = partial(kind, **options)
    made = build_problem(PlanRequest(program, machine, kind.kind, **parts))
    assert isinstance(made, kind)
    return made
