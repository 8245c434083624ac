"""Hardware in the loop on the GPU: agents that learn from measured times, under a budget of memory.

    python benchmarks/gpu_runs.py measure --folder gpu    # on the GPU: machine, programs, op times
    python benchmarks/gpu_loop.py prepare --folder gpu    # anywhere: the simulator's best plans
    python benchmarks/gpu_loop.py compile --folder gpu    # where it will run: EGRL's networks, on the CPU
    python benchmarks/gpu_loop.py measure --folder gpu    # on the GPU: searches with measured rewards
    python benchmarks/record.py gpu --rows gpu/rows.jsonl gpu/loop.jsonl

`refined` measures the simulator's best plans and changes of them; `egrl`, `ageing-evolution` and
`annealing` see nothing but measured rewards. Winners are measured again, in turns with what they are
compared with. `--limit` seconds are shared by the models; rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpu_runs import Folder, alone, free, made, ready, told
from loadmaster.bench import Row
from loadmaster.bench.gpu_loop import MAPPED, SEARCHES, Loop, loop_rows
from loadmaster.bench.gpu_plans import HOLES, budget, kernels_of, roomy
from loadmaster.errors import LoadmasterError
from loadmaster.plan import load_plan
from loadmaster.problems.mapping import Mapping
from loadmaster.problems.offload.measured import options_of
from loadmaster.problems.offload.problem import Offload
from loadmaster.solvers.offload.refined import Archive, Refined
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, solve

MODELS = ("llama", "gpt_train")
ROWS = "loop.jsonl"


def prepared_file(folder: Folder, model: str, percent: int) -> Path:
    return folder.path / "plans" / f"{model}-{percent}-loop.npz"


def prepare(arguments: argparse.Namespace, folder: Folder) -> None:
    """The simulator's champion and other plans worth measuring; no GPU, no PyTorch."""
    for name in arguments.models:
        path = prepared_file(folder, name, arguments.percent)
        if path.exists():
            continue
        with told(f"prepare {name} {arguments.percent} %"):
            archive, found, holes = candidates_for(folder, name, arguments)
            recorded = folder.plan_file(name, arguments.percent, "auto")
            if recorded.exists():  # of gpu_runs.py: the champion, if it is the better one
                known = archive.decision(load_plan(recorded, archive.program, archive.machine))
                found = sorted([known, *found], key=lambda each: archive.evaluate(each) or 2**62)
            np.savez(path, *found, holes=holes)
            values = [archive.evaluate(each) or 0 for each in found]
            print("  " + ", ".join(f"{value / 1e9:.2f}" for value in values) + " ms simulated")


def candidates_for(folder: Folder, name: str, arguments: argparse.Namespace) -> tuple[Archive, list[Any], float]:  # fmt: skip
    """With as little room left to holes as lets a plan be found."""
    solver = Refined(simulated=10**9, seconds=arguments.seconds, kept=arguments.kept)
    for holes in HOLES:
        archive = Archive(posed(folder, name, arguments, holes))
        try:
            return archive, solver.prepared(archive, arguments.seed), holes
        except LoadmasterError as error:
            print(f"  {holes:.0%} for holes: {error.message}")
    raise SystemExit(f"error: no plan for '{name}'")


def compile_agents(arguments: argparse.Namespace, folder: Folder) -> None:
    """EGRL's networks take a minute to compile; they are kept in the folder. It may run beside others."""
    for name in arguments.models:
        with told(f"compile {name}"):
            about = posed(folder, name, arguments)
            # With noise, so that no bound ends it early.
            problem = Mapping(about.program, about.machine, invalid="repair", noise=0.01)
            agent = make_solver("mapping", "egrl", dict(MAPPED["egrl"]))
            print(f"  {solve(agent, problem, Budget(40)).evaluations} simulated evaluations")


def posed(folder: Folder, name: str, arguments: argparse.Namespace, holes: float = 0.0) -> Offload:
    """The problem of `gpu_runs.py plan`: kernels have their room, and a GPU's allocator leaves holes."""
    need, kernels = folder.measured()[name]["need"], kernels_of(folder.costs(name))
    workspace = 0 if kernels is None else kernels.kept + int(kernels.workspace.max(initial=0))
    capacity = budget(need, arguments.percent, workspace)
    return Offload(folder.program(name), roomy(folder.machine(), capacity),
                   reserve=workspace + int(holes * capacity), kernels=kernels)  # fmt: skip


def measure(arguments: argparse.Namespace, folder: Folder) -> None:
    from loadmaster.bench.gpu_execute import Bench
    from loadmaster.execute.clock import checked_device
    from loadmaster.execute.evaluator import ExecutorEvaluator

    device, machine, started = checked_device(arguments.device), folder.machine(), time.monotonic()
    done = {tuple(line["job"]) for line in folder.lines(ROWS)}
    for number, name in enumerate(arguments.models):
        case = f"{name}@{arguments.percent}"
        searches = [
            each for each in arguments.searches if (case, f"{each}+hardware", 0) not in done
        ]
        if not searches:
            continue
        workload = ready(name, arguments, device)
        with alone(folder), told(f"loop {case}"):
            # Models share the time that is left.
            now = time.monotonic()
            started = now if not number else started  # until now others may have had the device
            end = now + (started + arguments.limit - now) / (len(arguments.models) - number)
            with np.load(prepared_file(folder, name, arguments.percent)) as file:
                candidates = [file[key] for key in file.files if key != "holes"]
                about = posed(folder, name, arguments, float(file["holes"]))
            bench = Bench(workload, machine)
            evaluator = ExecutorEvaluator(
                bench.workload.captured, about.machine, device, bench.weights, bench.host_inputs,
                workspace=folder.costs(name)["workspace_bytes"], kernels=about.kernels, graph=arguments.cuda_graph)  # fmt: skip
            loop = Loop(case, about.program, about.machine, evaluator, candidates, options_of(about),
                        arguments.evaluations, arguments.repeats, arguments.times, arguments.together)  # fmt: skip
            print(f"  ready, {end - time.monotonic():.0f} s for its searches", flush=True)
            left = partial(lambda end: end - time.monotonic(), end)
            loop_rows(loop, searches, left, partial(keep, folder))
            evaluator.close()
            del bench, evaluator, loop
            free(device)


def keep(folder: Folder, row: Row) -> None:
    folder.append(ROWS, {"job": [row.case, row.solver, row.seed], "made": made(), "rows": [row.as_dict()]})  # fmt: skip
    extra: dict[str, Any] = row.extra
    if row.status != "ok":
        print(f"    {row.solver}: {row.status}, {extra.get('reason')}", flush=True)
        return
    low, high = extra["speedup_interval"]
    print(f"    {row.solver}: {row.value / 1e9:.2f} ms against {(row.baseline or 0) / 1e9:.2f} ms, "
          f"{extra['speedup']:.4f} × ({low:.4f} to {high:.4f}), simulated {extra['simulated_ps'] / 1e9:.2f} ms, "
          f"{row.evaluations} evaluations, {extra['measurements']} measurements, {extra['failures']} failures, "
          f"{row.seconds:.0f} s", flush=True)  # fmt: skip


def main() -> int:
    # Blocks of odd sizes come and go: without this the allocator needs room for holes.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stage", choices=["prepare", "compile", "measure"])
    parser.add_argument("--folder", type=Path, default=Path("gpu"))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    parser.add_argument("--percent", type=int, default=50)
    parser.add_argument("--size", default="full", help="full or tiny")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for all models")
    parser.add_argument("--evaluations", type=int, default=60, help="of each search, at most")
    parser.add_argument("--repeats", type=int, default=2, help="measured passes of a plan")
    parser.add_argument("--times", type=int, default=20, help="measured passes of a winner")
    parser.add_argument("--together", type=int, default=4, help="of those in a row")
    parser.add_argument("--cuda-graph", action="store_true", help="each plan as a CUDA graph")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each simulated search")
    parser.add_argument("--kept", type=int, default=12, help="simulated plans to measure")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Folder(arguments.folder)
    # Agents learn on the CPU: the GPU's memory and time are what is measured.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str((arguments.folder / "jax").resolve()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    {"prepare": prepare, "compile": compile_agents, "measure": measure}[arguments.stage](
        arguments, folder
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
