"""Plans and peers of the GPU suite on the device: the last two stages, row by row."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import PLANS, Folder, alone, free_host, told
from benchmarks.suites.gpu_plans import GRAPH, OURS, VARIANTS, Planned, budget, ordered, roomy, wanted
from loadmaster.plan import load_planned
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
        with told(f"capture {name}") as captured:
            workload = ready(name, arguments, device)
            if workload.captured.program.hash != about["hash"]:
                raise RuntimeError(f"'{name}' was captured differently than it was measured")
        if captured.failed:
            continue
        bench: Bench | None = None
        # A budget at a time, so that other models come to theirs between.
        for percent in dict.fromkeys(job[0].percent for job in jobs):
            urgency = _VARIANTS_URGENCY if name in VARIANTS else _PLANS_URGENCY.get(percent, _LATE)
            with alone(folder, urgency), told(f"execute {name}@{percent}"):
                for planned, graph in [job for job in jobs if job[0].percent == percent]:
                    what = f"{name}@{percent} {planned.solver}{GRAPH * graph}"
                    if left() < 0:
                        return print(f"time is up: {what} and what comes after it was not run", flush=True)
                    with told(f"  {what}"):
                        bench = bench or Bench(workload, folder.machine())
                        keep(folder, run_plan(bench, planned, graph, about, arguments, folder))
        del bench
        free_host(device)


def plan_jobs(name: str, arguments: argparse.Namespace, folder: Folder) -> list[tuple[Planned, bool]]:
    """(plan, whether as a CUDA graph) of a model; half of the memory and ours first."""
    chosen = set(wanted(name, arguments.percents, arguments.solvers))
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
    from benchmarks.suites.gpu_models import GPU_MODELS
    from benchmarks.suites.gpu_peer_bench import PeerBench
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
            with alone(folder, _PEERS_URGENCY.get(percent, _LATE)), told(f"peers of {name}@{percent}"):
                for peer in names:
                    if left() < 0:
                        return print(
                            f"time is up: {name}@{percent} {peer} and what comes after it was not run",
                            flush=True,
                        )
                    with told(f"  {name}@{percent} {peer}"):
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
    from benchmarks.suites.gpu_models import GPU_MODELS
    from benchmarks.suites.gpu_workload import prepare

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
    """Those that are asked for; all, with their variants, if none are."""
    from benchmarks.suites.gpu import NAMES

    known = (*NAMES, *VARIANTS)
    unknown = [name for name in arguments.models if name not in known]
    if unknown:
        sys.exit(f"error: there is no model '{unknown[0]}': use {', '.join(known)}")
    return list(arguments.models or known)
