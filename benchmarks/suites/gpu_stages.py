"""The GPU suite in four stages, so that little time on the GPU is needed; each goes on where it was left.

    measure    on the GPU: the machine, programs, op times
    plan       anywhere, without PyTorch: plans
    execute    on the GPU: plans, with Loadmaster's own allocator
    peers      on the GPU: what others do, with PyTorch's

`main` is what `benchmarks/gpu_runs.py` and `loadmaster bench gpu` call. Models of one stage can run in
processes side by side: they capture at once and take turns on the device, the most important first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.suites.gpu_folder import MACHINE, MEASURED, PLANS, Folder, alone, free, free_host, made, told
from benchmarks.suites.gpu_on_device import Left, all_need, execute, models, peers, ready
from benchmarks.suites.gpu_plans import PERCENTS, SOLVERS, kernels_of, needed_bytes, plan_model, roomy, wanted
from loadmaster.execute.own_allocator import fewer_holes
from loadmaster.machine import Machine, load_machine
from loadmaster.plan import save_plan
from loadmaster.program.program import Program
from loadmaster.program.storage import save


def measure(arguments: argparse.Namespace, folder: Folder, left: Left) -> None:
    """Stage 1: the machine and every model with everything resident."""
    from benchmarks.suites.gpu_workload import measure_model
    from loadmaster.execute.op_times import checked_device, cost_document, write_cost_file

    device = checked_device(arguments.device)
    for name in models(arguments):
        if name in folder.measured():
            continue
        if left() < 0:
            return print(f"time is up: '{name}' was not measured", flush=True)
        with told(f"measure {name}"):
            workload = ready(name, arguments, device)
            program = workload.captured.program
            as_one = whole(name, arguments, device, program)
            with alone(folder):
                machine, slowdown = measured_machine(folder, device)
                found = measure_model(workload)
                free(device)
            save(program, folder.path / f"{name}.npz")
            document = cost_document(program, found.times, machine.devices[0].name, slowdown)
            write_cost_file(document, folder.path / f"{name}.costs.json")
            line = {
                "model": name,
                "ops": program.n_ops,
                "hash": program.hash,
                "training": workload.training,
                "need": needed_bytes(as_one, machine),
                "workspace": found.times.workspace_bytes,
                "kept": found.times.kept_bytes,
                "weights": found.weight_bytes,
                "activations": found.activation_bytes,
                "eager": found.eager.seconds,
                "eager_status": found.eager.status,
                "eager_peak": found.eager.allocated,
                "player": found.times.eager_seconds,
                "graph": found.times.graph_seconds,
                "marked": found.times.marked_seconds,
                "player_peak": found.times.peak_bytes,
                "notes": found.times.notes,
                "made": made(),
            }
            folder.append(MEASURED, line)
            print(json.dumps({key: value for key, value in line.items() if key != "made"}), flush=True)
        free_host(device)


def measured_machine(folder: Folder, device: Any) -> tuple[Machine, Any]:
    """The machine as measured, now if need be, and how much copies slow ops down. Call it `alone`."""
    from loadmaster.execute.measured_machine import machine_toml
    from loadmaster.execute.op_times import Clock
    from loadmaster.execute.speeds import measure_speeds

    if not (folder.path / MACHINE).exists():
        speeds = measure_speeds(Clock(device))
        base = load_machine("h200") if device.type == "cuda" else None
        (folder.path / "speeds.json").write_text(json.dumps(asdict(speeds)), encoding="utf-8")
        (folder.path / MACHINE).write_text(machine_toml(speeds, base), encoding="utf-8")
        print((folder.path / MACHINE).read_text(), flush=True)
    return folder.machine(), json.loads((folder.path / "speeds.json").read_text())["slowdown"]


def plan(arguments: argparse.Namespace, folder: Folder, left: Left) -> None:
    """Stage 2: plans for every budget by every solver; 100 % is for comparing executors."""
    machine = folder.machine()
    done = {(line["model"], line["percent"], line["solver"]) for line in folder.lines(PLANS)}
    known = {name: about for name, about in folder.measured().items() if name in models(arguments)}
    jobs = [
        (percent, solver, name)
        for name in known
        for percent, solver in wanted(name, arguments.percents, arguments.solvers)
    ]
    place = {percent: number for number, percent in enumerate(arguments.percents)}
    for percent, solver, name in sorted(jobs, key=lambda job: place.get(job[0], len(place))):
        if (name, percent, solver) in done:
            continue
        if left() < 0:
            return print(f"time is up: no plan for {name} {percent} % {solver} and later ones", flush=True)
        with told(f"plan {name} {percent} % {solver}"):
            found = plan_model(
                folder.program(name),
                machine,
                percent,
                solver,
                kernels_of(folder.costs(name)),
                need=all_need(known[name]),
                seconds=arguments.seconds,
                evaluations=arguments.evaluations,
            )
            if found.plan is not None and found.program is not None:
                save_plan(
                    found.plan,
                    found.program,
                    roomy(machine, found.capacity),
                    folder.plan_file(name, percent, solver),
                )
            folder.append(PLANS, {**found.as_dict(), "model": name})
            over = found.simulated_ps / found.bound_ps - 1 if found.bound_ps else 0
            print(
                f"  {found.status}: {found.simulated_ps / 1e9:.2f} ms, {over:.1%} above the bound, "
                f"ops alone {found.limit_ps / 1e9:.2f} ms, {len(found.repeats)} ops run again, "
                f"{found.seconds:.1f} s {found.note}",
                flush=True,
            )


def whole(name: str, arguments: argparse.Namespace, device: Any, sliced: Program) -> Program:
    """The program of a model whose batch is computed as one."""
    from benchmarks.suites.gpu_models import GPU_MODELS
    from benchmarks.suites.gpu_workload import prepare

    model = GPU_MODELS[name]
    if model.batch_slices == 1:
        return sliced
    return prepare(
        name, partial(model.build, arguments.size), device, training=model.training
    ).captured.program


STAGES = {"measure": measure, "plan": plan, "execute": execute, "peers": peers}


def main(words: Sequence[str] | None = None) -> int:
    fewer_holes()
    # Without this cuBLAS is no kernel that adds in a fixed order; it is the size it has anyway.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    parser = argparse.ArgumentParser(description="The GPU suite, stage by stage.")
    add = parser.add_argument
    add("stage", choices=list(STAGES))
    add("--folder", type=Path, default=Path("gpu"))
    add("--models", nargs="*", default=[], help="default: all, and their variants")
    add("--percents", nargs="+", type=int, default=list(PERCENTS), help="budgets")
    add("--solvers", nargs="+", default=list(SOLVERS), help="whose plans")
    add("--peers", nargs="*", default=[], help="only these peers")
    add("--size", default="full", help="full or tiny")
    add("--device", default="cuda", help="cuda or cpu")
    add("--seconds", type=float, default=60.0, help="for each search")
    add("--evaluations", type=int, help="for each search")
    add("--repeats", type=int, default=5, help="measured passes; the median counts")
    add("--cuda-graph", action="store_true", help="run each plan as a CUDA graph too")
    add("--placement", help="allocator: leave PyTorch its own; default: the plan's offsets")
    add("--retry", action="store_true", help="run again what failed")
    add("--most-seconds", type=float, default=1e9, help="begin nothing new after that")
    arguments = parser.parse_args(words)
    began = time.monotonic()
    STAGES[arguments.stage](
        arguments, Folder(arguments.folder), lambda: arguments.most_seconds - (time.monotonic() - began)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
