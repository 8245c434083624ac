"""OR-tools within a budget: the one place that builds, solves and stops its models.

Problems draw up models: a `Linear` (arrays, for GLOP, HiGHS or CP-SAT), or a `CpModel` of their own for
`run_cp_sat`. `python -m loadmaster.search.or_tools` is HiGHS on one `Linear` in a process of its own.
"""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import read_npz
from loadmaster.clock import engine_limit, engine_seconds
from loadmaster.errors import LoadmasterError, require
from loadmaster.host import cores
from loadmaster.search.solver import Meter, Status

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Group = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""(entries that are alike, (memory, variable that counts how many are there) …)."""
FREE = 2**62
"""As a limit of a row: none."""


@dataclass(frozen=True)
class Linear:
    """Minimise constant + cost @ v, 0 <= v <= upper, row_lower <= rows @ v <= row_upper."""

    cost: Int64
    """None is negative."""
    upper: Int64
    whole: npt.NDArray[np.bool_]
    """Variables that must be whole numbers; the others then are by themselves."""
    constant: int
    row_start: Int64
    variable: Int64
    coefficient: Int64
    row_lower: Int64
    row_upper: Int64
    fixed: Int64
    """[E] memories, -1 where variables decide."""
    groups: tuple[Group, ...]

    def chosen(self, values: npt.NDArray[np.float64]) -> Int64:
        """[E] the memories that values of the variables stand for."""
        memory = self.fixed.copy()
        for entries, counts in self.groups:
            places = [m for m, v in counts for _ in range(round(float(values[v])))]
            memory[list(entries)] = places
        return memory


@dataclass
class Draft:
    """A `Linear` in the making."""

    cost: list[int] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    constant: int = 0
    row_start: list[int] = field(default_factory=lambda: [0])
    variable: list[int] = field(default_factory=list)
    coefficient: list[int] = field(default_factory=list)
    row_lower: list[int] = field(default_factory=list)
    row_upper: list[int] = field(default_factory=list)

    def add(self, cost: Iterable[int], upper: int, whole: bool) -> list[int]:
        before = len(self.cost)
        self.cost += cost
        new = len(self.cost) - before
        self.upper += [upper] * new
        self.whole += [whole] * new
        return list(range(before, before + new))

    def row(self, terms: Iterable[tuple[int, int]], lower: int, upper: int) -> None:
        for variable, coefficient in terms:
            if coefficient:
                self.variable.append(variable)
                self.coefficient.append(coefficient)
        self.row_start.append(len(self.variable))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def linear(self, fixed: Int64, groups: Iterable[Group]) -> Linear:
        """What was drawn up so far."""
        return Linear(
            cost=np.array(self.cost, dtype=np.int64),
            upper=np.array(self.upper, dtype=np.int64),
            whole=np.array(self.whole, dtype=np.bool_),
            constant=self.constant,
            row_start=np.array(self.row_start, dtype=np.int64),
            variable=np.array(self.variable, dtype=np.int64),
            coefficient=np.array(self.coefficient, dtype=np.int64),
            row_lower=np.array(self.row_lower, dtype=np.int64),
            row_upper=np.array(self.row_upper, dtype=np.int64),
            fixed=fixed,
            groups=tuple(groups),
        )


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


Report = Callable[[Float64 | None, int | None], None]
"""Called with new values, or with a new bound, while an engine runs."""
Engine = Callable[[Linear, int, float, int, Report], Answer]
"""(program, cutoff, seconds, threads, report): solutions must be below the cutoff."""


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


def highs(linear: Linear, cutoff: int, seconds: float, threads: int, report: Report) -> Answer:
    """HiGHS, one thread. It reports nothing before it ends."""
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


def cp_sat(linear: Linear, cutoff: int, seconds: float, threads: int, report: Report) -> Answer:
    """CP-SAT, in whole numbers throughout; what it finds on its way is reported."""
    cp_model = require("ortools.sat.python.cp_model", "exact")
    model, variables, objective = cp_program(cp_model, linear)
    model.add(objective <= cutoff - 1 - linear.constant)
    model.minimize(objective)
    solver = _cp_solver(cp_model, threads, seconds)

    def found(value: Value) -> None:
        report(np.array([value(v) for v in variables], dtype=np.float64), None)

    def raised(bound: float) -> None:
        report(None, min(cutoff, linear.constant + _ceil(bound)))

    solver.best_bound_callback = raised
    status = solver.solve(model, _solution_callback(cp_model, found, None))
    if status == cp_model.INFEASIBLE:
        return Answer(cutoff, closed=True)
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = np.array([solver.value(v) for v in variables], dtype=np.float64)
    bound = linear.constant + max(0, _ceil(solver.best_objective_bound))
    return Answer(min(bound, cutoff), values, closed=status == cp_model.OPTIMAL)


ENGINES: dict[str, tuple[str, Engine]] = {"highs": ("HiGHS", highs), "cp-sat": ("CP-SAT", cp_sat)}
"""Option -> (name, engine)."""


RESERVE = 5.0
"""Seconds that a process of its own may take beyond its limit, to read, to presolve and to answer."""
_ARRAYS = [field.name for field in fields(Linear) if field.name not in ("constant", "groups")]


def solve_whole(linear: Linear, cutoff: int, seconds: float) -> Answer | None:
    """The best whole solution below the cutoff and a bound; None if HiGHS did not say.

    It runs in a process of its own: it may print, hold its time limit loosely or end with an error,
    and none of that is felt here.
    """
    file = io.BytesIO()
    np.savez(file, **{name: getattr(linear, name) for name in _ARRAYS})
    limit = engine_seconds(seconds)
    settings = {"cutoff": cutoff, "seconds": limit, "constant": linear.constant}
    try:
        worker = subprocess.run(
            [sys.executable, "-m", "loadmaster.search.or_tools"],
            input=json.dumps(settings).encode() + b"\n" + file.getvalue(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=None if limit is None else limit + RESERVE,
        )
        found = json.loads(worker.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None
    values = None if found["values"] is None else np.array(found["values"], dtype=np.float64)
    return Answer(int(found["bound"]), values, int(found["doubt"]), bool(found["closed"]))


def main() -> None:
    """That process. Standard input: a line of settings (JSON), then the program (npz). Standard output:
    whatever HiGHS prints, and as the last line what was found (JSON)."""
    given = sys.stdin.buffer
    settings = json.loads(given.readline())
    arrays = read_npz(given.read(), LoadmasterError)
    linear = Linear(**{name: arrays[name] for name in _ARRAYS}, constant=int(settings["constant"]), groups=())
    seconds = math.inf if settings["seconds"] is None else settings["seconds"]
    answer = highs(linear, settings["cutoff"], seconds, 1, lambda _values, _bound: None)
    values = None if answer.values is None else answer.values.tolist()
    found = {"bound": answer.bound, "values": values, "doubt": answer.doubt, "closed": answer.closed}
    print()
    print(json.dumps(found), flush=True)


Value = Callable[[Any], int]
"""The value of a variable of a model in one solution."""
WORK = 60.0
"""Where evaluations are counted and seconds are not: the same seed must give the same answer."""


@dataclass(frozen=True)
class CpResult:
    """What CP-SAT knows when it stops."""

    status: Status
    bound: int | None
    """No solution has a smaller objective; None: the model is wrong or infeasible, or has none."""
    value: Value
    """Of a variable in the best solution, where there is one."""


def run_cp_sat(
    model: Any,
    meter: Meter,
    seed: int,
    *,
    found: Callable[[Value], None] | None = None,
    work: float | None = None,
    share: float = 1.0,
) -> CpResult:
    """Solve a `CpModel` until `share` of what is left of the budget is used, or the meter is exhausted.

    Args:
      model: a `CpModel`; its objective, where it has one, is minimised.
      found: called with every solution, best so far last, to submit it to the meter.
      work: CP-SAT's own measure of effort, `max_deterministic_time`, about a second of one core.
        It then works alone, and the answer is the same on every computer. None: all cores, until
        the budget ends; `WORK` where that counts evaluations alone.
    """
    cp_model = require("ortools.sat.python.cp_model", "exact")
    if work is None and meter.budget.evaluations is not None and meter.budget.seconds is None:
        work = WORK
    solver = _cp_solver(cp_model, cores() if work is None else 1, meter.seconds_left, share)
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for the run to handle
    if work is not None:
        solver.parameters.max_deterministic_time = share * work

    def bounded(_: float) -> None:
        if meter.exhausted:
            solver.stop_search()

    solver.best_bound_callback = bounded
    code = solver.solve(model, _solution_callback(cp_model, found, lambda: meter.exhausted))
    names = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
    }
    status = names.get(code, Status.UNKNOWN)
    proved = code in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN) and model.has_objective()
    bound = _ceil(solver.best_objective_bound) if proved else None
    return CpResult(status, bound, solver.value)


def _cp_solver(cp_model: Any, workers: int, seconds: float | None, share: float = 1.0) -> Any:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    limit = engine_seconds(seconds)
    if limit is not None:
        solver.parameters.max_time_in_seconds = max(0.01, share * limit)
    return solver


def _solution_callback(
    cp_model: Any, found: Callable[[Value], None] | None, stop: Callable[[], bool] | None
) -> Any:
    class Found(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            if found is not None:
                found(self.value)
            if stop is not None and stop():
                self.stop_search()

    return Found()


def _ceil(bound: float) -> int:
    """Objectives are whole numbers, and bounds of them are given as floats."""
    return math.ceil(bound - 1e-6)


if __name__ == "__main__":
    main()
