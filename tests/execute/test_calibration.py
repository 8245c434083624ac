"""Calibration: lines through measured copies, times that add up, machines that can be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import BadProgram, LoadmasterError
from loadmaster.execute.op_times import Clock, checked_device, corrected, median
from loadmaster.execute.speeds import (
    Effort,
    LinkSpeed,
    Speeds,
    fit,
    machine_toml,
    measure_links,
    measure_speeds,
)
from loadmaster.machine import load_machine

LINK = LinkSpeed(54.3e9, 8e-6, 49e9, (2**16, 2**30), (9e-6, 0.02))
SPEEDS = Speeds(
    'Some "GPU" 3000',
    "cuda",
    150 * 2**30,
    140 * 2**30,
    2**37,
    LINK,
    replace(LINK, bandwidth=52e9),
    4.3e12,
    {"f32": 5e13, "f16": 7e14, "bf16": 7.8e14},
    2.1e-6,
    {"matrix": 1.01, "memory": 1.04},
)


@pytest.mark.parametrize("latency", [0.0, 5e-6, 40e-6])
@pytest.mark.parametrize("bandwidth", [1e9, 54e9])
def test_the_line_is_found_again(latency: float, bandwidth: float) -> None:
    sizes = [2**power for power in range(16, 31, 2)]
    noise = np.random.default_rng(3).normal(1, 0.002, len(sizes))
    found = fit(sizes, [(latency + n / bandwidth) * each for n, each in zip(sizes, noise, strict=True)])
    assert found[0] == pytest.approx(latency, abs=1e-6, rel=0.1)
    assert found[1] == pytest.approx(bandwidth, rel=0.03)


def test_a_line_has_no_latency_below_zero() -> None:
    latency, bandwidth = fit([10, 1000], [1e-9, 1e-6])
    assert latency == 0 and bandwidth > 0


def test_corrected_times_add_up_to_the_pass_without_marks() -> None:
    raw = np.array([3e-6, 0.0, 1e-3, 2e-6, 5e-4])
    for whole in (raw.sum() - 4e-6, raw.sum() * 0.5, raw.sum() * 1.1):
        found = corrected(raw, whole)
        assert found.sum() == pytest.approx(whole)
        assert found[1] == 0 and (found[raw > 0] > 0).all()
    # Four marks cost 1 µs each: it is taken from every op, not in proportion to its time.
    assert corrected(raw, raw.sum() - 4e-6) == pytest.approx(raw - [1e-6, 0, 1e-6, 1e-6, 1e-6])
    assert (corrected(np.zeros(2), 1.0) == 0).all()


def test_the_median_is_a_measured_value() -> None:
    assert median([3.0, 1.0]) == 1.0 and median([5.0, 1.0, 2.0]) == 2.0


def test_a_measured_machine_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(machine_toml(SPEEDS), encoding="utf-8")
    machine = load_machine(str(path))
    assert machine.name == "some-gpu-3000"
    assert machine.reach == ((0, 1),) and machine.memories[0].name == "hbm"
    assert [link.bandwidth for link in machine.links] == [54_300_000_000, 52_000_000_000]
    assert machine.links[0].latency == 8_000_000 and machine.devices[0].launch == 2_100_000
    assert machine.memories[0].capacity < SPEEDS.total
    assert machine.devices[0].rates["matrix"]["bf16"] == 780_000_000_000_000
    assert machine.rules.copies == "free" and machine.rules.overlap == 0
    assert path.read_text().count("measured") > 10


def test_the_base_gives_names_and_what_was_not_measured(tmp_path: Path) -> None:
    base, path = load_machine("h200"), tmp_path / "machine.toml"
    path.write_text(machine_toml(SPEEDS, base, "mine"), encoding="utf-8")
    machine = load_machine(str(path))
    assert machine.name == "mine"
    assert machine.devices[0].rates["matrix"]["f8"] == base.devices[0].rates["matrix"]["f8"]
    assert machine.devices[0].rates["vector"] == base.devices[0].rates["vector"]
    assert machine.devices[0].rates["matrix"]["f32"] == 50_000_000_000_000


def test_devices_that_are_not_there_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(LoadmasterError, match="use cuda or cpu"):
        checked_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(LoadmasterError, match="no CUDA device"):
            checked_device("cuda")


def test_a_cpu_is_measured() -> None:
    torch = pytest.importorskip("torch")
    clock = Clock(torch.device("cpu"))
    speeds = measure_speeds(clock, Effort(64, 64, 2**20, 2**18, 1))
    assert speeds.memory > 0 and min(speeds.matrix.values()) > 0 and speeds.launch > 0
    assert len(measure_links(clock, largest=2**18, repeats=1)[0].sizes) == 2


class Tiny:
    """A captured model of two layers, its weights and its input."""

    def __init__(self) -> None:
        torch = pytest.importorskip("torch")
        from loadmaster.program.importers.torch.captured import capture

        self.module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
        self.input = torch.randn(5, 8)
        self.weights = {name: p.detach() for name, p in self.module.named_parameters()}
        self.captured: Any = capture(self.module, (self.input,), name="tiny")
        self.device = torch.device("cpu")


def test_ops_are_timed_in_place() -> None:
    from loadmaster.execute.op_times import arguments, measure_ops, player

    torch = pytest.importorskip("torch")
    tiny = Tiny()
    values = arguments(tiny.captured, tiny.weights, [tiny.input])
    seen: list[tuple[int, bool]] = []
    with torch.no_grad():
        (found,) = player(tiny.captured, lambda op, after: seen.append((op, after))).run(*values)
        assert torch.equal(found, tiny.module(tiny.input))
    assert seen == [(op, after) for op in range(tiny.captured.program.n_ops) for after in (False, True)]
    times = measure_ops(tiny.captured, tiny.weights, [tiny.input], tiny.device, passes=3)
    views = tiny.captured.program.op_view
    assert (times.picoseconds[views] == 0).all() and (times.picoseconds[~views] > 0).all()
    assert times.picoseconds.sum() == pytest.approx(times.whole_seconds * 1e12, rel=1e-6)
    assert times.workspace_bytes == 0 and times.graph_seconds is None
    assert times.marked_seconds > 0


def test_a_weight_without_a_value_is_named() -> None:
    from loadmaster.execute.op_times import arguments

    tiny = Tiny()
    name = next(iter(tiny.weights))
    with pytest.raises(BadProgram, match=name):
        arguments(tiny.captured, {k: v for k, v in tiny.weights.items() if k != name}, [tiny.input])


def test_slices_of_weights_are_taken_by_rows() -> None:
    from loadmaster.execute.op_times import arguments
    from loadmaster.program.program import TensorKind

    weight = np.arange(10)
    given = [
        SimpleNamespace(node="w", kind=TensorKind.WEIGHT, source="w", tensor=0, rows=(2, 5)),
        SimpleNamespace(node="x", kind=TensorKind.INPUT, source="", tensor=1, rows=None),
    ]
    nodes = [SimpleNamespace(op="placeholder", name=name) for name in ("w", "flag", "x")]
    captured = SimpleNamespace(given=given, constants={}, graph=SimpleNamespace(nodes=nodes))
    found = arguments(captured, {"w": weight}, ["input"])
    assert found[0].tolist() == [2, 3, 4] and found[1:] == [None, "input"]
