"""`loadmaster bench gpu`: models under a budget on a CUDA device, measured: our plan, plans that do
what others do, and peers with hooks. `--quick` runs the tiny models where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from loadmaster.bench import Case, Options, Row
from loadmaster.errors import LoadmasterError

NAMES = ("llama", "moe", "bert", "vit", "unet", "resnet50", "gpt_train", "resnet50_train")
_QUICK = ("llama", "gpt_train")
_QUICK_SOLVERS = ("prefetch", "auto")
_SECONDS = 30.0


def run_model(name: str, options: Options, seed: int) -> Iterator[Row]:
    """Measure, plan for every budget, execute."""
    if options.quick and name not in _QUICK and not options.cases:
        return
    from loadmaster.bench.gpu_execute import Bench, ordered
    from loadmaster.bench.gpu_models import GPU_MODELS
    from loadmaster.bench.gpu_peers import peer_names
    from loadmaster.bench.gpu_plans import OURS, PERCENTS, chosen_solvers, plan_model
    from loadmaster.bench.gpu_workload import measure_model, prepare
    from loadmaster.execute.clock import Clock, checked_device
    from loadmaster.execute.cost_file import with_times
    from loadmaster.execute.measured_machine import machine_toml
    from loadmaster.execute.speeds import Effort, measure_speeds
    from loadmaster.machine.presets import load_machine, preset_text
    from loadmaster.machine.toml import parse_machine
    from loadmaster.solvers.offload.holes import measured_kernels

    device = checked_device("cpu" if options.quick and not _has_cuda() else "cuda")
    effort = Effort(64, 64, 2**20, 2**20, 1) if options.quick else None
    base = load_machine("h200")
    machine = parse_machine(machine_toml(measure_speeds(Clock(device), effort), base, "measured"), "measured", preset_text)  # fmt: skip
    model = GPU_MODELS[name]
    workload = prepare(name, partial(model.build, "tiny" if options.quick else "full"), device,
                       training=model.training)  # fmt: skip
    measured = measure_model(workload, passes=3 if options.quick else 7)
    program = with_times(workload.captured.program, measured.times)
    workspace, baseline = measured.times.workspace_bytes, measured.eager.seconds * 1e12
    kernels = measured_kernels(measured.times.op_workspace.tolist(), measured.times.kept_bytes)
    percents = (50,) if options.quick else PERCENTS
    solvers = chosen_solvers(options.solvers or (_QUICK_SOLVERS if options.quick else ()))
    plans = [plan_model(program, machine, percent, solver, kernels, seed=seed,
                        seconds=1.0 if options.quick else _SECONDS)
             for percent in percents for solver in solvers]  # fmt: skip
    bench = Bench(workload, machine)
    for planned in ordered(plans, OURS):
        if planned.plan is None:
            yield Row(f"{name}@{planned.percent}", -1.0, "ps", planned.status, machine=machine.name,
                      solver=planned.solver, seed=seed, extra={"reason": planned.note})  # fmt: skip
        else:
            yield bench.run_plan(planned, workspace, baseline_ps=baseline)
    known = {planned.percent: planned for planned in plans if planned.plan is not None}
    for percent, planned in known.items():
        for peer in peer_names(workload.training):
            if peer != "eager" and not options.solvers:
                yield bench.run_peer(peer, percent, planned.capacity, measured.activation_bytes,
                                     baseline_ps=baseline, bound_ps=float(planned.bound_ps))  # fmt: skip


def _has_cuda() -> bool:
    from loadmaster.errors import require

    return bool(require("torch", "torch").cuda.is_available())


def _case(name: str, options: Options, seed: int) -> Iterator[Row]:
    try:
        yield from run_model(name, options, seed)
    except LoadmasterError as error:
        if not options.quick:
            raise
        yield Row(name, 0.0, "ps", "skipped", seed=seed, extra={"reason": error.message})


CASES: dict[str, Case] = {name: partial(_case, name) for name in NAMES}
