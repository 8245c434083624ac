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
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import MACHINE, MEASURED, PLANS, Folder, Step, alone, free, free_host, made
from benchmarks.suites.gpu_plans import (
    GRAPH,
    OURS,
    PERCENTS,
    SOLVERS,
    VARIANTS,
    Planned,
    budget,
    kernels_of,
    needed_bytes,
    ordered,
    plan_model,
    plans_to_make,
    roomy,
)
from loadmaster.execute.own_allocator import fewer_holes
from loadmaster.machine import Machine, load_machine
from loadmaster.plan import load_planned, save_plan
from loadmaster.program.program import Program
from loadmaster.program.storage import save
from loadmaster.units import PICOSECONDS

Left = Callable[[], float]
_LATE = 9
"""Urgency of what comes last."""
_PLANS_URGENCY = {50: 0, 75: 2, 30: 3, 100: 5}
_VARIANTS_URGENCY = 4
_PEERS_URGENCY = {50: 1}


def execute(arguments: argparse.Namespace, folder: Folder, left: Left) -> None:
    """Stage 3: plans on the device, a model at a time, the important ones first."""
    if arguments.device.startswith("cuda") and arguments.placement != "allocator":
        from loadmaster.execute.own_allocator import install

        print(f"own allocator: {install()}", flush=True)  # before anything uses CUDA
    from benchmarks.suites.gpu_execute import Bench
    from loadmaster.execute.op_times import checked_device

    device = checked_device(arguments.device)
    for name in models(arguments):
        about = folder.measured().get(name)
        if about is None:
            continue
        done, jobs = folder.done(retry=arguments.retry), plan_jobs(name, arguments, folder)
        jobs = [
            job for job in jobs if (f"{name}@{job[0].percent}", job[0].solver + GRAPH * job[1]) not in done
        ]
        for planned, _ in [job for job in jobs if job[0].simulated_ps < 0]:
            keep(
                folder,
                Row(
                    f"{name}@{planned.percent}",
                    -1.0,
                    "ps",
                    planned.status,
                    machine=folder.machine().name,
                    solver=planned.solver,
                    extra={"reason": planned.note},
                ),
            )
        jobs = [job for job in jobs if job[0].simulated_ps >= 0]
        if not jobs:
            continue
        with Step(f"capture {name}") as captured:
            workload = ready(name, arguments, device)
            if workload.captured.program.hash != about["hash"]:
                raise RuntimeError(f"'{name}' was captured differently than it was measured")
        if captured.failed:
            continue
        bench: Bench | None = None
        # A budget at a time, so that other models come to theirs between.
        for percent in dict.fromkeys(job[0].percent for job in jobs):
            urgency = _VARIANTS_URGENCY if name in VARIANTS else _PLANS_URGENCY.get(percent, _LATE)
            with alone(folder, urgency), Step(f"execute {name}@{percent}"):
                for planned, graph in [job for job in jobs if job[0].percent == percent]:
                    what = f"{name}@{percent} {planned.solver}{GRAPH * graph}"
                    if left() < 0:
                        return print(f"time is up: {what} and what comes after it was not run", flush=True)
                    with Step(f"  {what}"):
                        bench = bench or Bench(workload, folder.machine())
                        keep(folder, run_plan(bench, planned, graph, about, arguments, folder))
        del bench
        free_host(device)


def plan_jobs(name: str, arguments: argparse.Namespace, folder: Folder) -> list[tuple[Planned, bool]]:
    """(plan, whether as a CUDA graph) of a model; half of the memory and ours first."""
    chosen = set(plans_to_make(name, arguments.percents, arguments.solvers))
    lines = {(line["percent"], line["solver"]): line for line in folder.lines(PLANS) if line["model"] == name}
    found = ordered(
        [Planned(**line) for key, line in lines.items() if key in chosen and line["status"] != "skipped"],
        OURS,
    )
    graphs = (False, True) if arguments.cuda_graph else (False,)
    return [(each, graph) for each in found for graph in graphs if not graph or each.simulated_ps >= 0]


def run_plan(
    bench: Any,
    planned: Planned,
    graph: bool,
    about: dict[str, Any],
    arguments: argparse.Namespace,
    folder: Folder,
) -> Row:
    path = folder.plan_file(planned.model, planned.percent, planned.solver)
    program, decided = load_planned(
        path, folder.program(planned.model), roomy(bench.machine, planned.capacity)
    )
    baseline = about["eager"] * PICOSECONDS if about["eager"] > 0 else None
    row: Row = bench.run_plan(
        replace(planned, plan=decided, program=program),
        folder.costs(planned.model)["workspace_bytes"],
        graph=graph,
        repeats=arguments.repeats,
        baseline_ps=baseline,
    )
    return row


def peers(arguments: argparse.Namespace, folder: Folder, left: Left) -> None:
    """Stage 4: what others do, on the device."""
    from benchmarks.suites.gpu_execute import PeerBench
    from benchmarks.suites.gpu_models import GPU_MODELS
    from benchmarks.suites.gpu_peers import peer_names
    from loadmaster.execute.op_times import checked_device

    device, machine = checked_device(arguments.device), folder.machine()
    bounds: dict[tuple[str, int], float] = {}
    for line in folder.lines(PLANS):
        if line["solver"] in OURS:
            bounds[line["model"], line["percent"]] = float(line["bound_ps"])
    for name in models(arguments):
        about = folder.measured().get(name)
        if about is None or name in VARIANTS:
            continue
        done, model, bench = folder.done(retry=arguments.retry), GPU_MODELS[name], None
        for percent in [each for each in arguments.percents if each < 100]:
            names = [
                peer
                for peer in peer_names(about["training"])
                if peer != "eager"
                and (f"{name}@{percent}", peer) not in done
                and (not arguments.peers or peer in arguments.peers)
            ]
            if not names:
                continue
            with alone(folder, _PEERS_URGENCY.get(percent, _LATE)), Step(f"peers of {name}@{percent}"):
                for peer in names:
                    if left() < 0:
                        return print(
                            f"time is up: {name}@{percent} {peer} and what comes after it was not run",
                            flush=True,
                        )
                    with Step(f"  {name}@{percent} {peer}"):
                        bench = bench or PeerBench(
                            name,
                            partial(model.build, arguments.size),
                            device,
                            training=model.training,
                            machine=machine.name,
                        )
                        keep(
                            folder,
                            bench.row(
                                peer,
                                percent,
                                budget(all_need(about), percent),
                                about["activations"],
                                repeats=arguments.repeats,
                                baseline_ps=about["eager"] * PICOSECONDS if about["eager"] > 0 else None,
                                bound_ps=bounds.get((name, percent), 0.0),
                            ),
                        )
        del bench
        free_host(device)


def keep(folder: Folder, row: Row) -> None:
    folder.keep(row)
    about = {key: row.extra.get(key) for key in ("difference", "equal", "largest_difference", "reason")}
    print(
        f"    {row.status}: {row.value / 1e9:.2f} ms, peak {(row.extra.get('peak') or 0) / 2**30:.2f} of "
        f"{(row.extra.get('capacity') or 0) / 2**30:.2f} GiB, {about}",
        flush=True,
    )


def ready(name: str, arguments: argparse.Namespace, device: Any) -> Any:
    """A model of the suite, captured for the device."""
    from benchmarks.suites.gpu_execute import prepare
    from benchmarks.suites.gpu_models import GPU_MODELS

    model = GPU_MODELS[name]
    return prepare(
        name,
        partial(model.build, arguments.size),
        device,
        training=model.training,
        batch_slices=model.batch_slices,
    )


def all_need(about: dict[str, Any]) -> int:
    """What a model needs with its kernels, as measured."""
    return int(about["need"]) + int(about["workspace"])


def models(arguments: argparse.Namespace) -> list[str]:
    """Those that are named; all, with their variants, if none are."""
    from benchmarks.suites.gpu import NAMES

    known = (*NAMES, *VARIANTS)
    unknown = [name for name in arguments.models if name not in known]
    if unknown:
        sys.exit(f"error: there is no model '{unknown[0]}': use {', '.join(known)}")
    return list(arguments.models or known)


def measure(arguments: argparse.Namespace, folder: Folder, left: Left) -> None:
    """Stage 1: the machine and every model with everything resident."""
    from benchmarks.suites.gpu_execute import measure_model
    from loadmaster.execute.op_times import checked_device, cost_document, write_cost_file

    device = checked_device(arguments.device)
    for name in models(arguments):
        if name in folder.measured():
            continue
        if left() < 0:
            return print(f"time is up: '{name}' was not measured", flush=True)
        with Step(f"measure {name}"):
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
    from loadmaster.execute.op_times import Clock
    from loadmaster.execute.speeds import machine_toml, measure_speeds

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
        for percent, solver in plans_to_make(name, arguments.percents, arguments.solvers)
    ]
    place = {percent: number for number, percent in enumerate(arguments.percents)}
    for percent, solver, name in sorted(jobs, key=lambda job: place.get(job[0], len(place))):
        if (name, percent, solver) in done:
            continue
        if left() < 0:
            return print(f"time is up: no plan for {name} {percent} % {solver} and later ones", flush=True)
        with Step(f"plan {name} {percent} % {solver}"):
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
    from benchmarks.suites.gpu_execute import prepare
    from benchmarks.suites.gpu_models import GPU_MODELS

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
