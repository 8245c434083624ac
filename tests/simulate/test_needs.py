"""What a program needs, against the simulator and against figures known beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from generate import random_machine, random_program
from generate_plan import random_plan
from loadmaster.errors import BadPlan
from loadmaster.machine import load_machine
from loadmaster.program import Builder, TieKind
from loadmaster.program.importers import import_model
from loadmaster.program.zoo import load_workload
from loadmaster.simulate import simulate
from loadmaster.simulate.bounds import time_bounds
from loadmaster.simulate.needs import compute_balance, find_largest, live_peak, needs

# Model -> (ops, weight bytes, multiply-adds of convolutions and products, peak, at op).
LIGHT = {
    "bvlc_alexnet": (24, 243_860_896, 654_560_384, 2_239_488, 1),
    "densenet121": (668, 32_584_608, 2_834_161_664, 8_429_568, 62),
    "inception_v1": (143, 27_994_208, 1_431_556_352, 6_422_528, 1),
    "inception_v2": (371, 44_939_168, 2_018_851_840, 6_422_528, 1),
    "resnet50": (176, 102_440_608, 4_089_184_256, 9_633_792, 13),
    "shufflenet": (203, 5_680_608, 124_664_528, 3_110_912, 5),
    "squeezenet": (66, 4_941_984, 349_151_936, 6_308_352, 1),
    "vgg19": (46, 574_668_960, 19_632_062_464, 25_690_112, 1),
    "zfnet512": (22, 349_002_144, 1_481_727_008, 9_124_608, 1),
}


@pytest.mark.parametrize("name", LIGHT)
def test_real_models(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    program = import_model(str(folder / f"light_{name}.onnx"))
    total = needs(program)
    ops, weights, multiply_adds, peak, op = LIGHT[name]
    assert (total.ops, total.bytes_of["weight"]) == (ops, weights)
    assert total.flops_of["matrix"] == 2 * multiply_adds
    assert (total.peak.bytes, total.peak.op) == (peak, op)
    sizes = [int(program.storage_bytes[tensor]) for tensor in total.peak.tensors]
    assert sum(sizes) == peak and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "bert"])
def test_the_peak_is_what_one_memory_holds(name: str) -> None:
    program, arena = load_workload(name), load_machine("arena:1MiB")
    total = needs(program)
    held = int(simulate(program, arena).memory_peak[arena.home[0]])
    assert total.peak.bytes + total.persistent == held


@pytest.mark.parametrize("seed", range(200))
def test_the_peak_is_what_one_memory_holds_for_any_program(seed: int) -> None:
    program, arena = random_program(np.random.default_rng(seed)), load_machine("arena:1MiB")
    program = replace(program, costs=None)
    total = needs(program)
    held = int(simulate(program, arena).memory_peak[arena.home[0]])
    assert total.peak.bytes + total.persistent == held


@pytest.mark.parametrize("seed", range(150))
def test_no_plan_without_fusion_beats_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program, machine = random_program(rng), random_machine(rng)
    if program.costs is not None and program.costs.shape[1] != len(machine.devices):
        program = replace(program, costs=None)
    bounds = time_bounds(program, machine)
    assert max(bounds.compute, bounds.traffic) <= max(bounds.together, 0)
    plan = random_plan(rng, program, machine, valid_only=True).changed(fusion=None)
    try:
        timeline = simulate(program, machine, plan)
    except BadPlan:
        pytest.skip("this plan can't run")
    assert bounds.together <= timeline.total_ps


@pytest.mark.parametrize("seed", range(40))
def test_bounds_in_64_bits_are_those_of_pythons_integers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng([seed, 5])
    program, machine = random_program(rng), random_machine(rng)
    if program.costs is not None and program.costs.shape[1] != len(machine.devices):
        program = replace(program, costs=None)
    quick = time_bounds(program, machine)
    monkeypatch.setattr("loadmaster.simulate.bounds._SMALL", -1)
    assert quick == time_bounds(program, machine)


def test_a_bound_may_pass_64_bits() -> None:
    build = Builder("long")
    loop = build.loop(2**40)
    y = build.tensor("y", bytes=1, kind="output")
    build.op("a", "matmul", writes=[y], matrix=2**59, loop=loop)
    program, machine = build.build(), load_machine("nnp-i")
    once = time_bounds(replace(program, loop_trips=np.array([1], dtype=np.int64)), machine)
    assert once.together > 2**42
    assert time_bounds(program, machine).together == once.together * 2**40 > 2**63


def test_the_bound_is_reached_where_all_fits_the_fastest_memory() -> None:
    build = Builder("chain")
    before = build.tensor("w", shape=(1000,), dtype="i8", kind="weight")
    for i in range(5):
        after = build.tensor(f"y{i}", shape=(1000,), dtype="i8", kind="output" if i == 4 else "activation")
        build.op(f"op{i}", "relu", reads=[before], writes=[after], vector=1000)
        before = after
    program, machine = build.build(), load_machine("nnp-i")
    from loadmaster.mapping.first_fit import first_fit

    timeline = simulate(program, machine, first_fit(program, machine))
    assert timeline.total_ps == time_bounds(program, machine).together


def test_tied_tensors_count_once_and_loops_count_often() -> None:
    build = Builder("tied")
    loop = build.loop(10)
    x = build.tensor("x", bytes=100, kind="input")
    y = build.tensor("y", bytes=60)
    z = build.tensor("z", bytes=80, kind="output")
    build.op("a", "relu", reads=[x], writes=[y], vector=7, loop=loop)
    op = build.op("b", "relu", reads=[y], writes=[z], vector=1)
    build.tie(TieKind.INPLACE, y, z, op)
    total = needs(build.build())
    assert total.flops_of == {"matrix": 0, "vector": 71, "transcendental": 0}
    assert total.traffic == 10 * 160 + 140
    assert (total.peak.bytes, total.peak.op, total.peak.tensors) == (180, 0, (x, z))


def test_a_program_of_nothing() -> None:
    program = Builder("empty").build()
    total = needs(program)
    assert (total.peak.bytes, total.peak.op, total.peak.tensors) == (0, -1, ())
    assert total.intensity == 0.0 and find_largest(program, 10) == [] and live_peak(program).bytes == 0
    assert time_bounds(program, load_machine("nnp-i")).together == 0
    assert len(compute_balance(program, load_machine("nnp-i"))) == 3
