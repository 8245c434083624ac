"""The suite `simulate`: how fast plans are timed, programs saved and help shown."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.suites import Case, Options, Row
from loadmaster.host import cores
from loadmaster.machine import load_machine
from loadmaster.plan import Plan
from loadmaster.program import Builder, Program, TieKind, load, save
from loadmaster.program.zoo import is_cached, load_workload
from loadmaster.simulate import Simulator, get_simulator

Int32 = npt.NDArray[np.int32]


def static_mapping(options: Options, seed: int) -> Iterator[Row]:
    """Whole-life mappings of ResNet-101 on one core, and what a second core adds."""
    program, machine = load_workload("resnet101"), load_machine("nnp-i")
    timer = get_simulator(program, machine)
    batch = 4096 if options.quick else 16384
    # The kernel takes its time to move a new thread to the other core, so short runs tell little.
    shape = (batch, program.n_tensors)
    memory = np.random.default_rng(seed).integers(0, len(machine.memories), shape, dtype=np.int8)
    both = cores() >= 2
    alone: list[float] = []
    ratios: list[float] = []
    # Interleaved, so that what else runs on this computer slows down both alike.
    for _ in range(7 if options.quick else 15):
        alone.append(_seconds(lambda: timer.run_static(memory, threads=1)))
        if both:
            ratios.append(alone[-1] / _seconds(lambda: timer.run_static(memory, threads=2)))
    work = batch * program.n_ops / 10**6
    rate = work / statistics.median(alone)
    yield _judged(
        "static-mapping",
        rate,
        "M op-evaluations/s",
        10,
        more_is_better=True,
        machine="nnp-i",
        seed=seed,
        evaluations=batch * len(alone),
        seconds=sum(alone),
        extra={"best": work / min(alone)},
    )
    if both:
        ratio = statistics.median(ratios)
        yield _judged(
            "static-mapping-2-threads",
            ratio,
            "×",
            1.8,
            more_is_better=True,
            machine="nnp-i",
            seed=seed,
            evaluations=batch * len(ratios),
            baseline=1.0,
            seconds=sum(alone),
            extra={"best": max(ratios)},
        )


def placement_by_layer(options: Options, seed: int) -> Iterator[Row]:
    """One evaluation of GNMT with its layers spread over eight devices."""
    yield from _placement("gnmt-by-layer", layers_in_turn, options, seed)


def placement_at_random(options: Options, seed: int) -> Iterator[Row]:
    """One evaluation of GNMT with every op anywhere: the most transfers there can be."""
    yield from _placement("gnmt-random", anywhere, options, seed)


def _placement(
    case: str, place: Callable[[Program, int, int], Int32], options: Options, seed: int
) -> Iterator[Row]:
    # To trace all of GNMT takes half a minute.
    model = "gnmt-8:steps=5" if options.quick and not is_cached("gnmt-8") else "gnmt-8"
    program, machine = load_workload(model), load_machine("p100x8")
    timer: Simulator = get_simulator(program, machine)
    generator = np.random.default_rng(seed)
    device = place(program, len(machine.devices), seed)
    plan = Plan.of(device=device, queue="priority", priority=generator.random(program.n_ops))
    timeline = timer.run(plan)
    started = time.process_time()
    times = [_seconds(lambda: timer.run(plan)) for _ in range(9)]
    busy = time.process_time() - started
    yield _judged(
        case,
        1e3 * statistics.median(times),
        "ms",
        50,
        machine="p100x8",
        seed=seed,
        evaluations=len(times),
        seconds=sum(times),
        extra={
            "model": model,
            "ops": program.n_ops,
            "best": 1e3 * min(times),
            "processor": 1e3 * busy / len(times),
            "transfers": len(timeline.transfers),
            "time": timeline.seconds,
        },
    )


def layers_in_turn(program: Program, devices: int, seed: int) -> Int32:
    """[n] a device per op: the layers, in order of appearance, in runs of equal number."""
    layer_of: dict[str, int] = {}
    layer = np.array(
        [layer_of.setdefault(path.partition("/")[0], len(layer_of)) for path in program.op_scope.values],
        dtype=np.int64,
    )[program.op_scope.codes]
    return (layer * devices // len(layer_of)).astype(np.int32)[bundles(program)]


def anywhere(program: Program, devices: int, seed: int) -> Int32:
    """[n] a random device per op."""
    device = np.random.default_rng(seed).integers(0, devices, program.n_ops, dtype=np.int32)
    return device[bundles(program)]


def bundles(program: Program) -> Int32:
    """[n] for each op the smallest op that must be on the same device: hard groups, and what is
    written over what another op wrote."""
    bundle = np.arange(program.n_ops, dtype=np.int32)

    def find(op: int) -> int:
        while bundle[op] != op:
            bundle[op] = bundle[bundle[op]]
            op = int(bundle[op])
        return op

    def join(a: int, b: int) -> None:
        a, b = find(a), find(b)
        bundle[max(a, b)] = min(a, b)

    first: dict[int, int] = {}
    for op in np.flatnonzero(program.op_group >= 0).tolist():
        join(first.setdefault(int(program.op_group[op]), op), op)
    for tie in np.flatnonzero(program.tie_kind == TieKind.INPLACE).tolist():
        source = int(program.tensor_alias[program.tie_source[tie]])
        writer = int(program.producer[source])
        home = first.get(int(program.tensor_group[source]), -1) if writer < 0 else writer
        if home >= 0:
            join(home, int(program.tie_at[tie]))
    return np.array([find(op) for op in range(program.n_ops)], dtype=np.int32)


def saving(options: Options, seed: int) -> Iterator[Row]:
    """A program of 80,000 ops to a file and back."""
    program = _long_chain(80_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.npz"
        times = {"save": [_seconds(lambda: save(program, path)) for _ in range(3)]}
        times["load"] = [_seconds(lambda: load(path)) for _ in range(3)]
        size = path.stat().st_size
    for verb, seconds in times.items():
        yield _judged(
            f"{verb}-80000-ops",
            statistics.median(seconds),
            "s",
            2,
            seed=seed,
            evaluations=len(seconds),
            seconds=sum(seconds),
            extra={"bytes": size},
        )


def _long_chain(ops: int) -> Program:
    build = Builder("chain")
    before = build.tensor("x", shape=(64, 1024), dtype="f32", kind="input")
    for i in range(ops):
        weight = build.tensor(f"w{i}", shape=(1024, 1024), dtype="f32", kind="weight")
        kind = "output" if i == ops - 1 else "activation"
        after = build.tensor(f"y{i}", shape=(64, 1024), dtype="f32", kind=kind)
        build.op(
            f"layer{i // 100}/cell{i}",
            "matmul",
            reads=[before, weight],
            writes=[after],
            matrix=2 * 64 * 1024 * 1024,
            scope=f"layer{i // 100}",
        )
        before = after
    return build.build()


def help_text(options: Options, seed: int) -> Iterator[Row]:
    """`loadmaster --help`, interpreter and all."""
    code = "from loadmaster.cli.main import main; main()"
    command = [sys.executable, "-c", code, "--help"]
    times = [_seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(5)]
    yield _judged(
        "help",
        statistics.median(times),
        "s",
        0.3,
        seed=seed,
        evaluations=len(times),
        seconds=sum(times),
        extra={"best": min(times)},
    )


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _judged(
    case: str,
    value: float,
    unit: str,
    target: float,
    *,
    more_is_better: bool = False,
    machine: str | None = None,
    seed: int = 0,
    evaluations: int = 0,
    seconds: float = 0.0,
    baseline: float | None = None,
    extra: dict[str, object],
) -> Row:
    """A row with its target: at least, or below."""
    met = value >= target if more_is_better else value < target
    goal = f"{'>=' if more_is_better else '<'} {target} {unit}"
    return Row(
        case,
        value,
        unit,
        "met" if met else "missed",
        machine=machine,
        seed=seed,
        evaluations=evaluations,
        seconds=seconds,
        baseline=baseline,
        extra={"target": goal, **extra},
    )


CASES: dict[str, Case] = {
    "static-mapping": static_mapping,
    "gnmt-by-layer": placement_by_layer,
    "gnmt-random": placement_at_random,
    "save-and-load": saving,
    "help": help_text,
}
