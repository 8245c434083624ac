"""Measure GO beside its controls on graphs, families and machines that it was never trained on.

    python benchmarks/go_runs.py --seeds 0 1 2 3 4 --out rows.jsonl
    python benchmarks/go_runs.py --seconds 5 --out rows.jsonl
    python benchmarks/go_runs.py --cases gnmt-8@p100x8 --solvers large-neighbourhood go --evaluations 16 --out rows.jsonl
    python benchmarks/go_runs.py --record rows.jsonl

A job is one (case, solver, seed): 512 evaluations, of which the best after 16 and after 64 is kept too, or so many
processor seconds. A line is appended for each that ends; what the file has already is not run again. `--record`
writes results/go.json. What is held out is named in `loadmaster.graph.go.cases`; cases are of these alone, but for the
one of 80,484 ops, which shows how long planning takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_runs import done_in
from benchmarks.suites import Row
from benchmarks.suites.graph_run import Clocked
from loadmaster.clock import reading
from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.decoder import hinted_devices
from loadmaster.graph.go.cases import synthetic_case
from loadmaster.graph.large_neighbourhood import Space
from loadmaster.host import host, versions
from loadmaster.machine import load_machine
from loadmaster.planner import solve_checked
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State

EVALUATIONS, MARKS = 512, (16, 64, 512)
RESULTS = Path(__file__).parent / "results" / "go.json"
REAL = (
    "mamba:layers=4,chunks=3@a100-40x4",
    "llama:layers=4@a100-40x4",
    "amoebanet:cells=1@p100x4",
    "moe:layers=1@a100-40x4",
    "inception-b32@p100x2",
    "llama:layers=3@v100nv-x8",
    "mamba:layers=3,chunks=2@h100x8",
)
"""Held-out families; the last two on held-out machines."""
SYNTHETIC = (
    "watts_strogatz/3@p100x4",
    "barabasi_albert/0@p100x4",
    "stochastic_block/1@p100x4",
    "watts_strogatz/5@p100x4",
    "barabasi_albert/1@p100x4",
    "stochastic_block/3@p100x4",
    "watts_strogatz/6@v100nv-x8",
    "barabasi_albert/2@h100x8",
)
"""The same: the smaller graphs among the first seeds of each family."""
KNOWN = (
    "rnnlm-2:steps=8@p100x2",
    "gnmt-2:steps=6@p100x2",
    "gnmt-4:layers=3,steps=5@p100x4",
    "txl-2@p100x2",
    "txl-4:layers=3@p100x4",
    "wavenet-2x9@p100x2",
)
"""Families that GO is trained on: what the prototype of this search was measured with, beside held-out ones."""
LARGER = ("unet@a100-40x4", "llama@a100-40x4", "gnmt-8@p100x8")
"""Two more of held-out families, and the largest of the zoo, of a family that GO knows: run with fewer seeds."""


class CrossEntropy(Solver):
    """Probabilities of every group's device, moved towards the best of each batch, from the best hint."""

    name, problem_kind = "cross-entropy", "graph"
    summary = "cross-entropy over the devices of groups"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        space, rng = Space(problem), np.random.default_rng(seed)
        groups, devices, mode = np.arange(problem.groups), problem.devices, space.modes[0]

        def evaluate(rows: Any) -> Any:
            plain = np.stack([space.plain(row, mode) for row in rows])
            value = meter.evaluate_many(space.vectors(plain, np.full(len(plain), mode.within))).value
            return np.where(value < 0, np.iinfo(np.int64).max, value)

        drawn = hinted_devices(problem)
        value = evaluate(drawn)
        best, best_value = drawn[int(value.argmin())], int(value.min())
        noise = min(0.08, 4 / max(1, problem.groups))
        share = np.full((problem.groups, devices), noise / devices)
        share[groups, best] += 1 - noise
        while not meter.exhausted:
            drawn = (rng.random((32, problem.groups, 1)) > share.cumsum(axis=1)[None]).sum(axis=2)
            drawn = drawn.clip(0, devices - 1).astype(np.int32)
            value = evaluate(drawn)
            elite = np.argsort(value, kind="stable")[:5]
            if value[elite[0]] < best_value:
                best, best_value = drawn[elite[0]], int(value[elite[0]])
            often = np.zeros_like(share)
            for row in [*drawn[elite], best, best, best]:
                often[groups, row] += 1 / (3 + len(elite))
            share = (1 - noise) * (0.7 * share + 0.3 * often) + noise / devices
        return meter.solution()


def _peer() -> Solver:
    from benchmarks.peers.hdp.agent import Hdp

    return Hdp()


def _labelled(name: str, **options: Any) -> Callable[[], Solver]:
    return lambda: make_labelled("graph", name, options)


SOLVERS: dict[str, Callable[[], Solver]] = {
    "go": _labelled("go"),
    "go, first plans alone": _labelled("go", changes=False),
    "go, changes alone": _labelled("go", look_ahead=False),
    "go, untrained": _labelled("go", init="none"),
    "large-neighbourhood": _labelled("large-neighbourhood"),
    "large-neighbourhood, no screen": _labelled("large-neighbourhood", screen=1),
    "cross-entropy": CrossEntropy,
    "anneal-seeded": _labelled("anneal", start="seeds"),
    "brkga-seeded": _labelled("brkga", start="seeds"),
    "annealing-chains": _labelled("annealing-chains"),
    "classical": _labelled("classical"),
    "paper": _labelled("paper"),
    "hdp": _peer,
}
SLOW = ("paper", "hdp")
"""They learn on the graph: run with the first seed alone."""
ONCE = ("classical", *SLOW)


def load(case: str) -> GraphOptimization:
    """The problem of 'MODEL@MACHINE' or 'FAMILY/SEED@MACHINE'."""
    name, _, machine = case.partition("@")
    family, slash, seed = name.partition("/")
    if slash:
        return GraphOptimization(*synthetic_case(family, int(seed), machine))
    return GraphOptimization(load_model(name), load_machine(machine))


def best_of_hints(problem: GraphOptimization) -> int | None:
    """The best of the eight hints with fusion within devices: what all ratios are to."""
    space = Space(problem)
    plain = np.stack([space.plain(device, space.modes[0]) for device in hinted_devices(problem)])
    value = problem.score(space.vectors(plain, np.full(len(plain), space.modes[0].within))).value
    fits = value[(value >= 0) & (value < UNFIT)]
    return int(fits.min()) if len(fits) else None


def run(
    case: str, problem: GraphOptimization, hints: int | None, name: str, seed: int, limits: Budget
) -> Row:
    """One solver with one seed; the checker passes the plan before it is a row. Seconds are the processor's: the
    computer may have other work."""
    observer, started = Clocked(), time.process_time()
    if name == "classical":
        limits = Budget(None, limits.seconds)
    with reading(time.process_time):
        found = solve_checked(problem, SOLVERS[name](), limits, seed, observer=observer)
    value = found.solution.value
    marks = {
        str(mark): min((best for number, best, _ in observer.curve if number <= mark), default=None)
        for mark in MARKS
    }
    return Row(
        case,
        float(-1 if value is None else value),
        "ps",
        found.status,
        machine=problem.machine.name,
        solver=name,
        seed=seed,
        evaluations=found.solution.evaluations,
        seconds=time.process_time() - started,
        baseline=None if hints is None else float(hints),
        bound=float(found.solution.bound.value),
        gap=found.solution.gap,
        extra={
            "ops": problem.program.n_ops,
            "groups": problem.groups,
            "devices": problem.devices,
            "best_after": marks,
            "limit": {"evaluations": limits.evaluations, "seconds": limits.seconds},
            "first_plan_seconds": observer.curve[0][2] if observer.curve else None,
        },
    )


def record(path: Path) -> int:
    """Rows of a file into results/go.json; later ones take the place of earlier ones."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = {tuple(line["job"]): line["rows"][0] for line in lines}
    order = {name: number for number, name in enumerate((*REAL, *SYNTHETIC, *KNOWN, *LARGER))}
    kept = sorted(
        rows.items(),
        key=lambda each: (
            order.get(each[0][0], len(order)),
            list(SOLVERS).index(each[1]["solver"]),
            each[0][1:],
        ),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=RESULTS.parent,
    )
    about = {
        "suite": "go",
        "commit": commit.stdout.strip(),
        "command": "python benchmarks/go_runs.py --seeds 0 1 2 3 4 --out rows.jsonl",
        **lines[-1]["made"],
    }
    RESULTS.write_text(
        json.dumps({**about, "rows": [row for _, row in kept]}, indent=1) + "\n", encoding="utf-8"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="*", default=[*REAL, *SYNTHETIC])
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--seconds", type=float, help="processor seconds in place of evaluations")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--record", type=Path, help="write results/go.json from these lines")
    arguments = parser.parse_args()
    if arguments.record is not None:
        return record(arguments.record)
    done = done_in(arguments.out)
    limits = Budget(None if arguments.seconds else arguments.evaluations, arguments.seconds)
    limited = f", {arguments.seconds:g} s" if arguments.seconds else ""
    for case in arguments.cases:
        jobs = [
            (case, name, seed)
            for seed in arguments.seeds
            for name in arguments.solvers
            if name not in ONCE or seed == arguments.seeds[0]
        ]
        jobs = [job for job in jobs if (job[0], job[1] + limited, job[2]) not in done]
        if not jobs:
            continue
        problem = load(case)
        hints = best_of_hints(problem)
        for job in jobs:
            try:
                row = run(case, problem, hints, *job[1:], limits)
            except LoadmasterError as error:
                print(f"failed: {job}: {error}", flush=True)  # the others go on
                continue
            made = {"versions": versions(), "host": host()}
            named = [job[0], job[1] + limited, job[2]]
            line = json.dumps({"job": named, "made": made, "rows": [row.as_dict()]})
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            ratio = row.value / hints if hints and row.value > 0 else float("nan")
            print(f"{job}: {ratio:.3f} of best-of-8, {row.seconds:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
