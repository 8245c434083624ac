"""The GPU suite in three stages, so that little time on the GPU is needed. Each goes on where it was left.

    python benchmarks/gpu_runs.py measure --folder gpu          # on the GPU: machine, programs, op times
    python benchmarks/gpu_runs.py plan --folder gpu             # anywhere, without PyTorch: plans
    python benchmarks/gpu_runs.py execute --folder gpu          # on the GPU: plans and peers
    python benchmarks/record.py gpu --rows gpu/rows.jsonl

`--models`, `--percents` and `--solvers` narrow each of them, `--most-seconds` ends a stage in time.
The folder holds `machine.toml`, `speeds.json`, `MODEL.npz`, `MODEL.costs.json`, `measured.jsonl`,
`plans/`, `plans.jsonl` and `rows.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadmaster.bench.gpu_plans import (
    GRAPH,
    OURS,
    PERCENTS,
    SOLVERS,
    Planned,
    kernels_of,
    plan_model,
    roomy,
)
from loadmaster.host import host, versions
from loadmaster.machine import Machine, load_machine
from loadmaster.plan import load_plan, save_plan
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.program import Program
from loadmaster.program.storage import load, save

MACHINE = "machine.toml"


class Folder:
    """What the stages hand to each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "plans").mkdir(parents=True, exist_ok=True)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.path / name
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # torn when the computer stopped

    def append(self, name: str, content: dict[str, Any]) -> None:
        path = self.path / name
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def measured(self) -> dict[str, dict[str, Any]]:
        return {line["model"]: line for line in self.lines("measured.jsonl")}

    def machine(self) -> Machine:
        return load_machine(str(self.path / MACHINE))

    def costs(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / f"{model}.costs.json").read_text())
        return found

    def program(self, model: str) -> Program:
        """The model's program with its measured costs."""
        return apply_costs(
            load(self.path / f"{model}.npz"), read_costs(self.path / f"{model}.costs.json")
        )

    def plan_file(self, model: str, percent: int, solver: str) -> Path:
        return self.path / "plans" / f"{model}-{percent}-{solver}.json"


def measure(arguments: argparse.Namespace, folder: Folder, left: Callable[[], float]) -> None:
    """Stage 1: the machine and every model with everything resident."""
    from loadmaster.bench.gpu_workload import measure_model
    from loadmaster.execute.clock import Clock, checked_device
    from loadmaster.execute.cost_file import cost_document, write_cost_file
    from loadmaster.execute.measured_machine import machine_toml
    from loadmaster.execute.speeds import measure_speeds

    device = checked_device(arguments.device)
    if not (folder.path / MACHINE).exists():
        speeds = measure_speeds(Clock(device))
        base = load_machine("h200") if device.type == "cuda" else None
        (folder.path / "speeds.json").write_text(json.dumps(asdict(speeds)), encoding="utf-8")
        (folder.path / MACHINE).write_text(machine_toml(speeds, base), encoding="utf-8")
        print((folder.path / MACHINE).read_text(), flush=True)
    machine = folder.machine()
    slowdown = json.loads((folder.path / "speeds.json").read_text())["slowdown"]
    for name in models(arguments):
        if name in folder.measured():
            continue
        if left() < 0:
            return print("time is up", flush=True)
        with told(f"measure {name}"):
            workload = ready(name, arguments, device)
            program = workload.captured.program
            need = whole_need(name, arguments, device, program, machine)
            with alone(folder):
                found = measure_model(workload)
                free(device)
            save(program, folder.path / f"{name}.npz")
            document = cost_document(program, found.times, machine.devices[0].name, slowdown)
            write_cost_file(document, folder.path / f"{name}.costs.json")
            line = {
                "model": name, "ops": program.n_ops, "hash": program.hash, "training": workload.training,
                "need": need, "workspace": found.times.workspace_bytes,
                "kept": found.times.kept_bytes, "weights": found.weight_bytes,
                "activations": found.activation_bytes, "eager": found.eager.seconds,
                "eager_status": found.eager.status, "eager_peak": found.eager.allocated,
                "player": found.times.eager_seconds, "graph": found.times.graph_seconds,
                "marked": found.times.marked_seconds, "player_peak": found.times.peak_bytes,
                "notes": found.times.notes, "made": made(),
            }  # fmt: skip
            folder.append("measured.jsonl", line)
            print(json.dumps({key: value for key, value in line.items() if key != "made"}), flush=True)  # fmt: skip
        free(device)


def plan(arguments: argparse.Namespace, folder: Folder, left: Callable[[], float]) -> None:
    """Stage 2: plans for every budget by every solver; 100 % is for comparing executors."""
    machine = folder.machine()
    done = {(line["model"], line["percent"], line["solver"]) for line in folder.lines("plans.jsonl")}  # fmt: skip
    wanted = [(percent, solver) for percent in arguments.percents for solver in arguments.solvers]
    for percent, solver in [*wanted, (100, "all-resident")]:
        for name in folder.measured():
            if (name, percent, solver) in done or (
                arguments.models and name not in arguments.models
            ):
                continue
            if left() < 0:
                return print("time is up", flush=True)
            with told(f"plan {name} {percent} % {solver}"):
                program, costs = folder.program(name), folder.costs(name)
                found = plan_model(program, machine, percent, solver, kernels_of(costs),
                                   need=folder.measured()[name]["need"],
                                   seconds=arguments.seconds, evaluations=arguments.evaluations)  # fmt: skip
                if found.plan is not None:
                    save_plan(found.plan, program, roomy(machine, found.capacity),
                              folder.plan_file(name, percent, solver))  # fmt: skip
                folder.append("plans.jsonl", {**found.as_dict(), "model": name})
                over = found.simulated_ps / found.bound_ps - 1 if found.bound_ps else 0
                print(f"  {found.status}: {found.simulated_ps / 1e9:.2f} ms, {over:.1%} above the bound, "
                      f"ops alone {found.limit_ps / 1e9:.2f} ms, {found.seconds:.1f} s {found.note}", flush=True)  # fmt: skip


def execute(arguments: argparse.Namespace, folder: Folder, left: Callable[[], float]) -> None:
    """Stage 3: plans and peers on the device, a model at a time, the important ones first."""
    from loadmaster.bench.gpu_execute import Bench, ordered
    from loadmaster.bench.gpu_peers import peer_names
    from loadmaster.execute.clock import checked_device

    device, machine = checked_device(arguments.device), folder.machine()
    done = {(line["job"][0], line["job"][1]) for line in folder.lines("rows.jsonl")}
    planned = [line for line in folder.lines("plans.jsonl") if line["status"] not in ("skipped", "refused", "no plan")]  # fmt: skip
    refused = [line for line in folder.lines("plans.jsonl") if line["status"] in ("refused", "no plan")]  # fmt: skip
    for name, about in folder.measured().items():
        if arguments.models and name not in arguments.models:
            continue
        program, workspace = folder.program(name), folder.costs(name)["workspace_bytes"]
        mine = [Planned(**{**line, "model": program.name}) for line in planned
                if line["model"] == name and line["percent"] in (*arguments.percents, 100)
                and line["solver"] in (*arguments.solvers, "all-resident")]  # fmt: skip
        jobs = [(p.percent, p.solver, graph) for p in ordered(mine, OURS) for graph in (False, True)
                if not graph or (arguments.cuda_graph and p.percent in arguments.graphs and (p.solver in OURS or p.percent == 100))]  # fmt: skip
        budgets = {p.percent: (p.capacity, p.bound_ps) for p in mine}
        peers = [(percent, peer) for percent in arguments.percents if percent in budgets and percent in arguments.peers
                 for peer in peer_names(about["training"]) if peer != "eager"]  # fmt: skip
        left_over = [
            job for job in jobs if (f"{name}@{job[0]}", job[1] + GRAPH * job[2]) not in done
        ]
        if not left_over and all((f"{name}@{percent}", peer) in done for percent, peer in peers):
            continue
        if left() < 0:
            return print("time is up", flush=True)
        workload = None
        with told(f"capture {name}"):
            workload = ready(name, arguments, device)
            if workload.captured.program.hash != about["hash"]:
                raise RuntimeError(f"'{name}' was captured differently than it was measured")
        if workload is None:
            continue
        with alone(folder), told(f"make {name} ready"):
            bench = Bench(workload, machine)
        baseline = about["eager"] * 1e12 if about["eager"] > 0 else None
        by_key = {(p.percent, p.solver): p for p in mine}
        # A budget at a time, so that other models come to theirs between.
        for share in dict.fromkeys(
            [job[0] for job in left_over] + [percent for percent, _ in peers]
        ):
            with alone(folder), told(f"execute {name}@{share}"):
                for _, solver, graph in [job for job in left_over if job[0] == share]:
                    if left() < 0:
                        return print("time is up", flush=True)
                    each = by_key[share, solver]
                    with told(f"  {name}@{share} {solver}{GRAPH * graph}"):
                        decided = load_plan(folder.plan_file(name, share, solver), program,
                                            roomy(machine, each.capacity))  # fmt: skip
                        row = bench.run_plan(replace(each, plan=decided, model=name), workspace, graph=graph,
                                             repeats=arguments.repeats, baseline_ps=baseline)  # fmt: skip
                        keep(folder, row)
                for _, peer in [each for each in peers if each[0] == share]:
                    if (f"{name}@{share}", peer) in done:
                        continue
                    if left() < 0:
                        return print("time is up", flush=True)
                    capacity, bound = budgets[share]
                    with told(f"  {name}@{share} {peer}"):
                        keep(folder, bench.run_peer(peer, share, capacity, about["activations"],
                                                    baseline_ps=baseline, bound_ps=float(bound)))  # fmt: skip
        del bench
        free(device)
    for line in refused:
        print(f"not run: {line['model']}@{line['percent']} {line['solver']}: {line['note']}")


def keep(folder: Folder, row: Any) -> None:
    folder.append("rows.jsonl", {"job": [row.case, row.solver, row.seed], "made": made(), "rows": [row.as_dict()]})  # fmt: skip
    told_row = {
        key: row.extra.get(key) for key in ("difference", "equal", "largest_difference", "reason")
    }
    print(f"    {row.status}: {row.value / 1e9:.2f} ms, peak {(row.extra.get('peak') or 0) / 2**30:.2f} of "
          f"{(row.extra.get('capacity') or 0) / 2**30:.2f} GiB, {told_row}", flush=True)  # fmt: skip


def ready(name: str, arguments: argparse.Namespace, device: Any) -> Any:
    """A model of the suite, captured for the device."""
    from loadmaster.bench.gpu_models import GPU_MODELS
    from loadmaster.bench.gpu_workload import prepare

    model = GPU_MODELS[name]
    return prepare(name, lambda: model.build(arguments.size), device, training=model.training,
                   batch_slices=model.batch_slices)  # fmt: skip


def whole_need(name: str, arguments: argparse.Namespace, device: Any, program: Program, machine: Machine) -> int:  # fmt: skip
    """What a model needs whose batch is computed as one."""
    from loadmaster.bench.gpu_models import GPU_MODELS
    from loadmaster.bench.gpu_plans import needed_bytes
    from loadmaster.bench.gpu_workload import prepare

    model = GPU_MODELS[name]
    if model.batch_slices > 1:
        program = prepare(name, lambda: model.build(arguments.size), device, training=model.training).captured.program  # fmt: skip
    return needed_bytes(program, machine)


@contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """Models can be captured side by side; one is measured at a time."""
    import fcntl

    with (folder.path / "device.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def models(arguments: argparse.Namespace) -> list[str]:
    from loadmaster.bench.gpu_models import GPU_MODELS

    unknown = [name for name in arguments.models if name not in GPU_MODELS]
    if unknown:
        sys.exit(f"error: there is no model '{unknown[0]}': use {', '.join(GPU_MODELS)}")
    return list(arguments.models or GPU_MODELS)


def made() -> dict[str, Any]:
    """Computer and versions, PyTorch's and the GPU's too."""
    import importlib.metadata

    found: dict[str, Any] = {"versions": dict(versions()), "host": dict(host())}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["versions"]["torch"] = importlib.metadata.version("torch")
        if torch.cuda.is_available():
            found["host"]["gpu"] = torch.cuda.get_device_name()
    return found


def free(device: Any) -> None:
    import gc

    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
        # Pinned memory of the last model would not be given back otherwise.
        getattr(torch._C, "_host_emptyCache", lambda: None)()


class told:
    """A context that says what is done and how long it took; an error is shown, and the next goes on."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.began = time.perf_counter()
        print(f"{self.what} …", flush=True)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is not None and issubclass(kind, Exception):
            print("".join(traceback.format_exception(kind, error, trace)[-6:]), flush=True)
            print(f"{self.what}: FAILED", flush=True)
            return True
        print(f"{self.what}: {time.perf_counter() - self.began:.1f} s", flush=True)
        return False


def main() -> int:
    # Blocks of odd sizes come and go: without this the allocator needs room for holes.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stage", choices=["measure", "plan", "execute"])
    parser.add_argument("--folder", type=Path, default=Path("gpu"))
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--percents", nargs="+", type=int, default=list(PERCENTS))
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS))
    parser.add_argument("--size", default="full", help="full or tiny")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument(
        "--peers", nargs="*", type=int, default=list(PERCENTS), help="budgets of peers"
    )
    parser.add_argument(
        "--graphs", nargs="*", type=int, default=[*PERCENTS, 100], help="of CUDA graphs"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each search")
    parser.add_argument("--evaluations", type=int, help="for each search")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cuda-graph", action="store_true", help="run the best plans as CUDA graphs too"
    )
    parser.add_argument(
        "--most-seconds", type=float, default=1e9, help="begin nothing new after that"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    stage = {"measure": measure, "plan": plan, "execute": execute}[arguments.stage]
    stage(arguments, Folder(arguments.folder), lambda: arguments.most_seconds - (time.monotonic() - began))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
