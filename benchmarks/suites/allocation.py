"""The allocation suite: other projects' real instances, generated ones, and every solver on them.

Real instances are read from `--data DIR` or `$LOADMASTER_DATA`; they are not ours to ship. Where
there are none, the suite says where they are published and runs on generated ones alone.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.omnimalloc import OmniMalloc
from benchmarks.suites import Options, Row
from benchmarks.suites.packings import perfect_packing, training_like
from benchmarks.suites.problems import make_as
from benchmarks.suites.pypto import read_pools
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.buffers_csv import read_buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import LoadmasterError, MissingPackage
from loadmaster.planner import CheckedSolution, NamedBuffers, solve_checked
from loadmaster.search.solver import Budget, Status

PUBLISHED = {
    "minimalloc": "google/minimalloc (benchmarks/challenging)",
    "idealloc": "cappadokes/idealloc (benchmarks)",
    "iopddl": "google/iopddl",
    "pypto": "tonibohnlein/dsa-solver (benchmarks/pypto)",
    "mediapipe-tflite": "the models inside the mediapipe 0.10.14 wheel",
}
CAPACITY = 1_048_576
BASELINES = ("first-fit", "xla-best-fit", "tvm-hill-climb", "vela-hill-climb", "cp-sat", OmniMalloc.name)


def data_folder(options: Options) -> Path | None:
    """The folder with the real instances, if there is one."""
    given = options.data or os.environ.get("LOADMASTER_DATA")
    if not given:
        return None
    for folder in (Path(given) / "allocation", Path(given)):
        if (folder / "minimalloc").is_dir():
            return folder
    raise LoadmasterError(
        f"'{given}' has no folder 'minimalloc' or 'allocation/minimalloc'",
        object=str(given),
        remedy="give the folder that holds the instances",
    )


def _instances(options: Options, folder: str, pattern: str) -> list[tuple[str, Buffers]]:
    root = data_folder(options)
    if root is None:
        return []
    paths = sorted((root / folder).glob(pattern))
    return [(path.name.split(".")[0], read_buffers(path)[0]) for path in paths]


def _missing(case: str, folder: str) -> Row:
    return Row(
        case,
        0.0,
        "bytes",
        "skipped",
        extra={"reason": "no instances: give --data DIR", "published": PUBLISHED[folder]},
    )


def _solved(case: str, buffers: Buffers, capacity: int | None, name: str, seconds: float, seed: int) -> Row:
    """One solver on one instance; the checker passes the placement before it is a row."""
    problem = make_as(Allocation, NamedBuffers(case, buffers, capacity))
    try:
        solver = OmniMalloc() if name == OmniMalloc.name else "auto" if name == "ours" else name
        found = solve_checked(problem, solver, Budget(seconds=seconds), seed)
    except MissingPackage as error:
        return Row(case, 0.0, "bytes", "skipped", solver=name, extra={"reason": error.message})
    solution = found.solution
    if _refused(problem, found):
        value = float(solution.value or 0)
        return Row(case, value, "bytes", "refused by the checker", solver=name, seconds=found.seconds)
    return Row(
        case,
        float(solution.value if solution.value is not None else -1),
        "bytes",
        str(solution.status),
        solver=name,
        seed=seed,
        evaluations=solution.evaluations,
        seconds=found.seconds,
        bound=float(solution.bound.value),
        gap=solution.gap,
        extra={
            "buffers": len(problem.buffers),
            "capacity": problem.capacity,
            **{k: v for k, v in solution.metrics.items() if isinstance(v, int | float)},
        },
    )


def _refused(problem: Allocation, found: CheckedSolution) -> bool:
    """Whether the checker refuses a placement; of very many buffers, the checker of offsets."""
    decision = found.solution.decision
    if decision is not None and len(problem.buffers) > 100_000:
        return bool(problem.offset_violations(decision))
    return bool(found.violations)


def _solvers(options: Options, few: bool = False) -> tuple[str, ...]:
    if options.solvers:
        return options.solvers
    return ("ours",) if few or options.quick else ("ours", *BASELINES)


def fit(options: Options, seed: int) -> Iterator[Row]:
    """MiniMalloc's eleven at their capacity."""
    found = _instances(options, "minimalloc", "[A-K].*.csv")
    if not found:
        yield _missing("fit", "minimalloc")
    for name, buffers in found:
        for solver in _solvers(options):
            if solver in ("ours", "exact", "cp-sat"):  # the others do not aim at a capacity
                yield _solved(
                    f"fit/{name}", buffers, CAPACITY, solver, 2.0 if solver == "ours" else 10.0, seed
                )


def least(options: Options, seed: int) -> Iterator[Row]:
    """MiniMalloc's eleven: the least capacity."""
    found = _instances(options, "minimalloc", "[A-K].*.csv")
    if not found:
        yield _missing("least", "minimalloc")
    for name, buffers in found:
        for solver in _solvers(options):
            limit = 2.0 if options.quick else 10.0
            yield _solved(f"least/{name}", buffers, None, solver, limit, seed)


def mobile(options: Options, seed: int) -> Iterator[Row]:
    """Fourteen mobile models."""
    found = _instances(options, "mediapipe-tflite", "*.csv")
    if not found:
        yield _missing("mobile", "mediapipe-tflite")
    for name, buffers in found:
        for solver in _solvers(options, few=True):
            yield _solved(f"mobile/{name}", buffers, None, solver, 1.0, seed)


def large(options: Options, seed: int) -> Iterator[Row]:
    """Training graphs of thousands of buffers, and a generated million."""
    for folder, pattern in (("idealloc", "*.csv"), ("iopddl", "*_min.csv")):
        found = _instances(options, folder, pattern)
        if not found:
            yield _missing(f"large/{folder}", folder)
        for name, buffers in found:
            limit = 1.0 if len(buffers) < 30_000 else 3.0
            for solver in _solvers(options):
                if solver in ("ours", "large", "first-fit", "xla-best-fit") or len(buffers) < 2_000:
                    yield _solved(f"large/{name}", buffers, None, solver, limit, seed)
    count = 20_000 if options.quick else 1_000_000
    buffers = training_like(np.random.default_rng(seed), count)
    yield _solved(f"large/generated-{count}", buffers, None, "ours", 15.0, seed)


def pypto(options: Options, seed: int) -> Iterator[Row]:
    """NPU kernels: pools with capacities, alignment, reserved ranges and pairs to keep apart."""
    root = data_folder(options)
    if root is None:
        yield _missing("pypto", "pypto")
        return
    pools = read_pools(root / "pypto")
    for apart in (False, True):
        chosen = pools[:: 20 if options.quick else 1]
        yield _many(
            f"pypto/{'apart' if apart else 'plain'}", [pool.problem(apart=apart) for pool in chosen], seed
        )


def perfect(options: Options, seed: int) -> Iterator[Row]:
    """Generated perfect packings, seeds that were not used in tuning: at least 95 % in 1 s each."""
    count = 20 if options.quick else 200
    for kind in ("guillotine", "pinwheel"):
        problems = []
        for number in range(count):
            rng = np.random.default_rng([seed, 1_000_000 + number])
            buffers, height = perfect_packing(rng, int(rng.integers(50, 501)), kind)
            problems.append(make_as(Allocation, NamedBuffers(f"{kind}-{number}", buffers, height)))
        yield _many(f"perfect/{kind}", problems, seed, target=0.95)


def _many(case: str, problems: list[Allocation], seed: int, target: float | None = None) -> Row:
    """Many small problems as one row: the share that is solved, and the times."""
    times, solved, refused, evaluations = [], 0, 0, 0
    for problem in problems:
        found = solve_checked(problem, "auto", Budget(seconds=1.0), seed)
        solution = found.solution
        times.append(found.seconds)
        evaluations += solution.evaluations
        fits = problem.capacity is not None and solution.decision is not None
        solved += fits or solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
        refused += _refused(problem, found)
    share = solved / max(1, len(problems))
    status = (
        "refused by the checker"
        if refused
        else "solved"
        if target is None
        else "met"
        if share >= target
        else "missed"
    )
    extra = {"problems": len(problems), "median_ms": 1e3 * statistics.median(times), "longest_s": max(times)}
    return Row(
        case,
        share,
        "solved",
        status,
        solver="ours",
        seed=seed,
        evaluations=evaluations,
        seconds=sum(times),
        extra=extra | ({} if target is None else {"target": f"at least {target:.0%}"}),
    )


CASES: dict[str, Callable[[Options, int], Iterator[Row]]] = {
    "fit": fit,
    "least": least,
    "mobile": mobile,
    "pypto": pypto,
    "perfect": perfect,
    "large": large,
}
