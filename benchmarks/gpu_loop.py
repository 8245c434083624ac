"""Hardware in the loop on the GPU: agents that learn from measured times, under a budget of memory.

    python benchmarks/gpu_runs.py measure --folder gpu    # on the GPU: machine, programs, op times
    python benchmarks/gpu_loop.py prepare --folder gpu    # anywhere: the simulator's best plans
    python benchmarks/gpu_loop.py measure --folder gpu    # on the GPU: searches with measured rewards
    python benchmarks/record.py gpu --rows gpu/rows.jsonl gpu/loop.jsonl --fresh

`refined` measures the simulator's best plans and changes of them, `anneal` anneals from the best of them;
`egrl`, `ageing-evolution` and `annealing` see nothing but measured rewards of static maps, and begin with the
simulator's static plan beside their usual first maps. All have the same evaluations and seconds; their
best are measured again in turns with the simulator's plan. Rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import Folder, Step, alone, free_host
from benchmarks.suites.gpu_loop import SEARCHES, Loop, loop_rows
from benchmarks.suites.gpu_plans import budget, kernels_of, roomy
from benchmarks.suites.gpu_stages import all_need, ready
from loadmaster.execute.own_allocator import fewer_holes
from loadmaster.offload.measured import Archive, Refined
from loadmaster.offload.problem import Offload, options_of
from loadmaster.plan import load_planned
from loadmaster.planner import KernelRoom, make_offload

MODELS = ("llama", "bert")
ROWS = "loop.jsonl"
URGENCY = 6
THREADS = 4
"""For agents that learn beside what is measured."""


def prepared_file(folder: Folder, model: str, percent: int) -> Path:
    return folder.path / "plans" / f"{model}-{percent}-loop.npz"


def prepare(arguments: argparse.Namespace, folder: Folder) -> None:
    """The simulator's champion and other plans worth measuring; no GPU, no PyTorch."""
    for name in arguments.models:
        path = prepared_file(folder, name, arguments.percent)
        if path.exists():
            continue
        with Step(f"prepare {name} {arguments.percent} %"):
            archive = Archive(load_offload(folder, name, arguments))
            found = Refined(simulated=10**9, seconds=arguments.seconds, kept=arguments.kept).prepared(
                archive, arguments.seed
            )
            recorded = folder.plan_file(name, arguments.percent, "auto")
            if recorded.exists():  # of gpu_runs.py: the champion, if it is the better one
                program, known = load_planned(recorded, archive.program, archive.machine)
                if program.repeats is None:  # searches here are of the program in which all runs once
                    found = sorted(
                        [archive.decision(known), *found], key=lambda each: archive.evaluate(each) or 2**62
                    )
            np.savez(path, *found)
            values = [archive.evaluate(each) or 0 for each in found]
            print("  " + ", ".join(f"{value / 1e9:.2f}" for value in values) + " ms simulated")


def load_offload(folder: Folder, name: str, arguments: argparse.Namespace) -> Offload:
    """The problem of `gpu_runs.py plan`."""
    capacity = budget(all_need(folder.measured()[name]), arguments.percent)
    room = KernelRoom(kernels_of(folder.costs(name)))
    return make_offload(folder.program(name), roomy(folder.machine(), capacity), room)


def measure(arguments: argparse.Namespace, folder: Folder) -> None:
    if arguments.device.startswith("cuda") and arguments.placement != "allocator":
        from loadmaster.execute.own_allocator import install

        print(f"own allocator: {install()}", flush=True)  # before anything uses CUDA
    from benchmarks.suites.gpu_execute import Bench
    from loadmaster.execute.evaluator import ExecutorEvaluator
    from loadmaster.execute.op_times import checked_device

    device, began = checked_device(arguments.device), time.monotonic()
    for name in arguments.models:
        case, done = f"{name}@{arguments.percent}", folder.done(ROWS)
        searches = [each for each in arguments.searches if (case, f"{each}+hardware") not in done]
        if not searches:
            continue
        with Step(f"capture {name}") as captured:
            workload = ready(name, arguments, device)
        if captured.failed:
            continue
        with np.load(prepared_file(folder, name, arguments.percent)) as file:
            candidates = [file[key] for key in file.files]
        about = load_offload(folder, name, arguments)
        with alone(folder, URGENCY), Step(f"loop {case}"):
            bench = Bench(workload, folder.machine())
            evaluator = ExecutorEvaluator(
                workload.captured,
                about.machine,
                device,
                bench.weights,
                bench.host_inputs,
                workspace=folder.costs(name)["workspace_bytes"],
                kernels=about.kernels,
                graph=arguments.cuda_graph,
            )
            loop = Loop(
                case,
                about.program,
                about.machine,
                evaluator,
                candidates,
                options_of(about),
                arguments.evaluations,
                arguments.seconds,
                arguments.repeats,
                arguments.times,
                arguments.together,
            )
            loop_rows(
                loop,
                searches,
                lambda: arguments.most_seconds - (time.monotonic() - began),
                partial(keep, folder),
            )
            evaluator.close()
            del bench, evaluator, loop
            free_host(device)


def keep(folder: Folder, row: Row) -> None:
    folder.keep(row, ROWS)
    extra: dict[str, Any] = row.extra
    if row.status != "ok":
        print(f"    {row.solver}: {row.status}, {extra.get('reason')}", flush=True)
        return
    low, high = extra["speedup_interval"]
    first, best = ((extra[key] or 0) / 1e9 for key in ("first_ps", "best_ps"))
    print(
        f"    {row.solver}: first {first:.2f}, best {best:.2f}, re-measured {row.value / 1e9:.2f} ms against "
        f"{(row.baseline or 0) / 1e9:.2f} ms, {extra['speedup']:.4f} × ({low:.4f} to {high:.4f}), "
        f"{row.evaluations} evaluations in {extra['search_seconds']:.0f} s, {extra['measurements']} measurements, "
        f"{extra['failures']} failures, {row.seconds:.0f} s",
        flush=True,
    )


def main() -> int:
    fewer_holes()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("stage", choices=["prepare", "measure"])
    add("--folder", type=Path, default=Path("gpu"))
    add("--models", nargs="+", default=list(MODELS))
    add("--searches", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    add("--percent", type=int, default=50)
    add("--size", default="full", help="full or tiny")
    add("--device", default="cuda", help="cuda or cpu")
    add("--evaluations", type=int, default=30, help="of each search, at most")
    add("--seconds", type=float, default=60.0, help="of each search, simulated or measured, at most")
    add("--most-seconds", type=float, default=1e9, help="begin no search after that")
    add("--repeats", type=int, default=2, help="measured passes of a plan")
    add("--times", type=int, default=20, help="measured passes of a winner")
    add("--together", type=int, default=4, help="of those in a row")
    add("--cuda-graph", action="store_true", help="each plan as a CUDA graph")
    add("--placement", help="allocator: leave PyTorch its own; default: the plan's offsets")
    add("--kept", type=int, default=12, help="simulated plans to measure")
    add("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # On few cores: the GPU's time is what is measured, and the host's too.
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:THREADS] if arguments.stage == "measure" else cores[-THREADS:])
    stages = {"prepare": prepare, "measure": measure}
    stages[arguments.stage](arguments, Folder(arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
