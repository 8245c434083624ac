"""CP-SAT within a budget: what the solvers that are built on it share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.clock import engine_limit, engine_seconds
from loadmaster.errors import require
from loadmaster.host import cores
from loadmaster.search.linear import FREE, Linear
from loadmaster.search.solver import Meter

# ----------------------------------------------------------------------------
# The engines that solve one `Linear`: GLOP its relaxation, HiGHS and CP-SAT itself (OR-tools).

Float64 = npt.NDArray[np.float64]
TRUST = 1e-7
"""Relative error of a bound by HiGHS, whose tolerance of variables and rows is 1e-6."""
_SHIFT = 30
"""Multipliers are rounded to 2 ** -30 picoseconds."""


@dataclass(frozen=True)
class Answer:
    """What is known of one program."""

    bound: int
    """No solution below the cutoff has a smaller objective."""
    values: Float64 | None = None
    """Of the best solution."""
    doubt: int = 0
    """An optimum that is no further above the bound is the bound: the engine can't tell them apart."""
    closed: bool = False
    """Nothing better is below the cutoff."""


Heard = Callable[[Float64 | None, int | None], None]
"""Told of new values, or of a new bound, while an engine runs."""
Engine = Callable[[Linear, int, float, int, Heard], Answer]
"""(program, cutoff, seconds, threads, heard): solutions must be below the cutoff."""


def relaxed(linear: Linear, seconds: float) -> int:
    """The bound of the linear relaxation, true whatever the rounding errors of the engine."""
    return relaxation(linear, seconds)[0]


def relaxation(linear: Linear, seconds: float, engine: str = "GLOP") -> tuple[int, Float64 | None]:
    """That bound, and values of the variables that reach it, if the engine came so far."""
    if not len(linear.cost):
        return linear.constant, np.zeros(0)
    mathopt = require("ortools.math_opt.python.mathopt", "exact")
    unit = _unit(linear)
    result = mathopt.solve(
        _model(mathopt, linear, None),
        mathopt.SolverType[engine],
        params=mathopt.SolveParameters(time_limit=engine_limit(seconds)),
    )
    multipliers = np.zeros(len(linear.row_lower))
    if result.solutions and result.solutions[0].dual_solution is not None:
        for row, value in result.solutions[0].dual_solution.dual_values.items():
            multipliers[row.id] = value * unit
    values = None
    if result.termination.reason == mathopt.TerminationReason.OPTIMAL:
        values = _values(linear, result)
    return lagrangian(linear, multipliers), values


def lagrangian(linear: Linear, multipliers: Float64) -> int:
    """The bound that any multipliers of the rows give, in whole numbers throughout."""
    price = [round(float(value) * 2**_SHIFT) for value in multipliers]
    total: int = linear.constant << _SHIFT
    reduced = [cost << _SHIFT for cost in linear.cost.tolist()]
    variable, coefficient = linear.variable.tolist(), linear.coefficient.tolist()
    start = linear.row_start.tolist()
    limits = zip(linear.row_lower.tolist(), linear.row_upper.tolist(), strict=True)
    for row, (lower, upper) in enumerate(limits):
        limit = lower if price[row] > 0 else upper
        if price[row] == 0 or abs(limit) == FREE:
            continue
        total += price[row] * limit
        for i in range(start[row], start[row + 1]):
            reduced[variable[i]] -= price[row] * coefficient[i]
    total += sum(min(0, r) * most for r, most in zip(reduced, linear.upper.tolist(), strict=True))
    return -(-total >> _SHIFT)  # values are whole numbers: round up


def highs(linear: Linear, cutoff: int, seconds: float, threads: int, heard: Heard) -> Answer:
    """HiGHS, one thread. It says nothing before it ends."""
    mathopt = require("ortools.math_opt.python.mathopt", "exact")
    params = mathopt.SolveParameters(
        time_limit=engine_limit(seconds), relative_gap_tolerance=0.0, absolute_gap_tolerance=0.0
    )
    result = mathopt.solve(_model(mathopt, linear, cutoff), mathopt.SolverType.HIGHS, params=params)
    reasons, reason = mathopt.TerminationReason, result.termination.reason
    if reason in (reasons.INFEASIBLE, reasons.INFEASIBLE_OR_UNBOUNDED):  # nothing is unbounded
        return Answer(cutoff, closed=True)
    values = _values(linear, result) if result.solutions else None
    unit = _unit(linear)
    bound = result.termination.objective_bounds.dual_bound * unit  # without the constant
    if not math.isfinite(bound):
        return Answer(linear.constant, values)
    doubt = math.ceil(TRUST * abs(bound) + 1e-5 * unit)
    known = linear.constant + max(0, math.floor(bound) - doubt)
    return Answer(min(known, cutoff), values, 2 * doubt + 1, reason == reasons.OPTIMAL)


def _values(linear: Linear, result: Any) -> Float64:
    values = np.zeros(len(linear.cost))
    for variable, value in result.variable_values().items():
        values[variable.id] = value
    return values


def _unit(linear: Linear) -> int:
    """Picoseconds in which the engines of floating point see costs: the largest is 10 to 100."""
    return int(10 ** max(0, len(str(linear.cost.max(initial=0))) - 2))


def _model(mathopt: Any, linear: Linear, cutoff: int | None) -> Any:
    """As MathOpt takes it, but for the constant; without a cutoff, the relaxation."""
    unit = _unit(linear)
    proto = require("ortools.math_opt.model_pb2", "exact").ModelProto()
    count, rows = len(linear.cost), len(linear.row_lower)
    proto.variables.ids.extend(range(count))
    proto.variables.lower_bounds.extend([0.0] * count)
    proto.variables.upper_bounds.extend(linear.upper.astype(np.float64).tolist())
    proto.variables.integers.extend((linear.whole & (cutoff is not None)).tolist())
    priced = np.flatnonzero(linear.cost)
    price = (linear.cost[priced] / unit).tolist()
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(price)
    limits, matrix = proto.linear_constraints, proto.linear_constraint_matrix
    limits.ids.extend(range(rows))
    limits.lower_bounds.extend(np.where(linear.row_lower == -FREE, -np.inf, linear.row_lower).tolist())
    limits.upper_bounds.extend(np.where(linear.row_upper == FREE, np.inf, linear.row_upper).tolist())
    row = np.repeat(np.arange(rows), np.diff(linear.row_start))
    order = np.lexsort((linear.variable, row))
    matrix.row_ids.extend(row[order].tolist())
    matrix.column_ids.extend(linear.variable[order].tolist())
    matrix.coefficients.extend(linear.coefficient[order].astype(np.float64).tolist())
    if cutoff is not None:
        limits.ids.append(rows)
        limits.lower_bounds.append(-np.inf)
        limits.upper_bounds.append((cutoff - 0.5 - linear.constant) / unit)
        matrix.row_ids.extend([rows] * len(priced))
        matrix.column_ids.extend(priced.tolist())
        matrix.coefficients.extend(price)
    return mathopt.Model.from_model_proto(proto)


def cp_program(cp_model: Any, linear: Linear) -> tuple[Any, list[Any], Any]:
    """(CP-SAT model without an objective, variables, the objective less its constant)"""
    model = cp_model.CpModel()
    variables = [model.new_int_var(0, most, "") for most in linear.upper.tolist()]
    row_of = zip(
        linear.row_start[:-1].tolist(),
        linear.row_start[1:].tolist(),
        linear.row_lower.tolist(),
        linear.row_upper.tolist(),
        strict=True,
    )
    for begin, end, lower, upper in row_of:
        terms = [variables[v] for v in linear.variable[begin:end].tolist()]
        weighted = cp_model.LinearExpr.weighted_sum(terms, linear.coefficient[begin:end].tolist())
        model.add_linear_constraint(weighted, lower, upper)
    return model, variables, cp_model.LinearExpr.weighted_sum(variables, linear.cost.tolist())


def cp_sat(linear: Linear, cutoff: int, seconds: float, threads: int, heard: Heard) -> Answer:
    """CP-SAT, in whole numbers throughout; what it finds on its way is heard."""
    cp_model = require("ortools.sat.python.cp_model", "exact")
    model, variables, objective = cp_program(cp_model, linear)
    model.add(objective <= cutoff - 1 - linear.constant)
    model.minimize(objective)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = threads
    limit = engine_seconds(seconds)
    if limit is not None:
        solver.parameters.max_time_in_seconds = max(0.01, limit)

    class Found(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            heard(np.array([self.value(v) for v in variables], dtype=np.float64), None)

    def raised(bound: float) -> None:
        heard(None, min(cutoff, linear.constant + math.ceil(bound - 1e-6)))

    solver.best_bound_callback = raised
    status = solver.solve(model, Found())
    if status == cp_model.INFEASIBLE:
        return Answer(cutoff, closed=True)
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = np.array([solver.value(v) for v in variables], dtype=np.float64)
    bound = linear.constant + max(0, math.ceil(solver.best_objective_bound - 1e-6))
    return Answer(min(bound, cutoff), values, closed=status == cp_model.OPTIMAL)


ENGINES: dict[str, tuple[str, Engine]] = {"highs": ("HiGHS", highs), "cp-sat": ("CP-SAT", cp_sat)}
"""Option -> (name, engine)."""


WORK = 60.0
"""Where evaluations are counted and seconds are not: the same seed must give the same answer."""


def make_cp_solver(
    cp_model: Any, meter: Meter, seed: int, work: float | None = None, share: float = 1.0
) -> Any:
    """A `CpSolver` that may use `share` of what is left.

    Args:
      work: CP-SAT's own measure of effort, `max_deterministic_time`, about a second of one core.
        It then works alone, and the answer is the same on every computer. None: all cores, until
        the budget ends; `WORK` where that counts evaluations alone.
    """
    if work is None and meter.budget.evaluations is not None and meter.budget.seconds is None:
        work = WORK
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for the run to hear
    if work is None:
        solver.parameters.num_workers = cores()
    else:
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = share * work
    limit = engine_seconds(meter.seconds_left)
    if limit is not None:
        solver.parameters.max_time_in_seconds = max(0.01, share * limit)
    return solver
