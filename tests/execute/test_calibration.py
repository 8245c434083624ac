"""Calibration: lines through measured copies, times that add up, machines that can be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import BadProgram, LoadmasterError
from loadmaster.execute import speeds as speeds_module
from loadmaster.execute.op_times import Clock, agreeing, checked_device, corrected, median
from loadmaster.execute.speeds import (
    Effort,
    LinkSpeed,
    Speeds,
    fit,
    fit_link,
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


SIZES = [2**power for power in range(16, 31, 2)]


def copies(bandwidth: float, **wrong: float) -> list[float]:
    """Seconds of copies on a link; those of some sizes (by power of two) are so many times as long."""
    factor = {2 ** int(power[1:]): value for power, value in wrong.items()}
    return [(5e-6 + size / bandwidth) * factor.get(size, 1.0) for size in SIZES]


def test_no_line_is_faster_than_the_best_copy() -> None:
    latency, bandwidth, seconds = fit_link("a link", SIZES, lambda: copies(54e9))
    assert latency == pytest.approx(5e-6) and seconds == tuple(copies(54e9))
    assert bandwidth == max(size / each for size, each in zip(SIZES, seconds, strict=True)) < 54e9


def test_copies_that_contradict_each_other_are_measured_again_and_then_refused() -> None:
    # The small copies took as long as the large one, once: a busy CPU's line is of 909 TiB/s then.
    busy = [[0.2] * len(SIZES), copies(10e9, p24=1.5), copies(10e9)]
    runs = iter(busy)
    assert fit(SIZES, busy[0])[1] > 1e14
    _, bandwidth, _ = fit_link("host to device", SIZES, lambda: next(runs))
    assert bandwidth == pytest.approx(10e9, rel=0.05)
    # Each size's shortest time counts: other work only adds.
    runs = iter([copies(10e9, p28=9.0, p30=9.0), copies(10e9, p16=5.0, p18=7.0)])
    assert fit_link("host to device", SIZES, lambda: next(runs))[1] == pytest.approx(10e9, rel=0.01)
    with pytest.raises(LoadmasterError, match=r"copies from device to host contradict .* nothing else runs"):
        fit_link("device to host", SIZES, lambda: [0.2] * len(SIZES))


def passes(*wholes: float) -> Any:
    """Marked passes of four ops, one of them a view, that take so long each."""
    return np.array([[0.5 * whole, 0.0, 0.3 * whole, 0.2 * whole] for whole in wholes])


def test_a_graph_that_is_too_fast_is_measured_again_and_then_left_out() -> None:
    marks, graphs = iter([passes(1.0, 1.0, 1.1)] * 2), iter([0.2, 0.9])
    marked, whole, notes = agreeing(lambda: next(marks), lambda: next(graphs))
    assert whole == 0.9 and notes == [] and marked.shape == (3, 4)
    _, whole, notes = agreeing(lambda: passes(1.0, 1.0, 1.1), lambda: 0.2)
    assert whole is None and "the graph's time is not used" in notes[0]
    # Marks cost up to 2 µs each: a graph of tiny ops may well take a fraction of what they add up to.
    assert agreeing(lambda: passes(7e-6, 7e-6), lambda: 1e-6)[1:] == (1e-6, [])
    assert agreeing(lambda: passes(1.0, 1.0), lambda: None)[1:] == (None, [])


def test_passes_that_share_the_device_are_measured_again_and_then_refused() -> None:
    marks = iter([passes(1.0, 2.0, 2.2), passes(1.0, 1.1, 5.0)])  # one slow pass is no matter
    assert agreeing(lambda: next(marks), lambda: 0.9)[1] == 0.9
    with pytest.raises(LoadmasterError, match=r"2\.0 times as long .* no other process"):
        agreeing(lambda: passes(1.0, 2.0, 2.2), lambda: 0.9)


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


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(speeds_module, "_copy_seconds", lambda *given: 1e-6 + given[3] / 1e10)
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
