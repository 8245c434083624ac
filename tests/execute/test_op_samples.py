"""Ops measured one by one: what counts as equal, what is kept on disk, what happens where nothing can be measured.

No test looks at real times: they come from samplers that make them up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.execute import measured_cache, op_samples, speeds
from loadmaster.execute.measured_cache import MeasuredCache, cache_folder, describe_device
from loadmaster.execute.op_samples import (
    DeviceSampler,
    DistinctOp,
    OpSamples,
    OwnCounter,
    Sample,
    TorchCounter,
    distinct_ops,
    launches_of,
    sample_ops,
    workspace_of,
)
from loadmaster.execute.speeds import QUICK_SIZES, LinkSpeed, Speeds, plausible_copies, quick_machine
from loadmaster.offload.kind import kernel_room
from loadmaster.offload.model import LIBRARIES
from loadmaster.program.importers.torch.captured import Captured, capture
from loadmaster.program.measured_costs import apply_costs
from loadmaster.program.program import COMPUTED

torch = pytest.importorskip("torch")
nn = torch.nn
CPU = torch.device("cpu")


class Layers(nn.Module):  # type: ignore[misc, name-defined]
    """Equal layers, then another one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


def captured_layers(layers: int = 3, *, training: bool = False) -> Captured:
    module: Any = Layers(layers)
    if training:
        module = Loss(module)
    return capture(module.train(training), (torch.zeros(8, 16),), name="layers", training=training)


class Loss(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Any) -> Any:
        return self.whole(x).square().mean()


class MadeUp:
    """A sampler whose times are the number of the measurement, or what a function says."""

    def __init__(self, time: Callable[[int, DistinctOp], int] | None = None, memory: int = 2**40) -> None:
        self.memory, self.kept_bytes, self.asked, self.rounds = memory, 0, [], 0  # type: ignore[var-annotated]
        self._time = time or (lambda count, op: 1_000_000_000 + len(op.ops))

    @contextmanager
    def running(self) -> Iterator[None]:
        self.rounds += 1
        yield

    def measure(self, op: DistinctOp) -> Sample:
        self.asked.append(op.name)
        return Sample(self._time(len(self.asked), op), 512 * len(op.ops))


def names(ops: Sequence[DistinctOp]) -> list[str]:
    return [str(op.call.target) for op in ops]


def test_equal_layers_are_one_op() -> None:
    few, many = (captured_layers(layers) for layers in (2, 7))
    ops = distinct_ops(many, CPU)
    assert [op.key for op in ops] == [op.key for op in distinct_ops(few, CPU)]
    assert names(ops) == ["aten.linear.default", "aten.relu.default", "aten.linear.default"]
    assert [len(op.ops) for op in ops] == [7, 7, 1]
    # Every op that is no view is one of them, once.
    every = sorted(op for each in ops for op in each.ops)
    assert every == np.flatnonzero(~many.program.op_view).tolist()
    sampler = MadeUp()
    found = sample_ops(many, "cpu", sampler=sampler)
    assert len(sampler.asked) == 3 + 3  # the first, the last and the longest four twice
    assert (found.distinct, found.measured, found.notes) == (3, 3, ())
    assert found.picoseconds[ops[0].ops].tolist() == [1_000_000_007] * 7
    assert found.op_workspace[ops[2].ops].tolist() == [512]
    assert not found.picoseconds[many.program.op_view].any()


def one_op(forward: Callable[..., Any], *inputs: Any) -> DistinctOp:
    """The last op of a function."""

    class Whole(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *given: Any) -> Any:
            return forward(*given)

    return distinct_ops(capture(Whole(), inputs, name="one"), CPU)[-1]


def test_what_tells_ops_apart() -> None:
    x, y, count = torch.zeros(8, 16), torch.zeros(16, 8), torch.zeros(8, 16, dtype=torch.int64)
    forms: list[Any] = [
        (lambda x: x * 2, x),
        (lambda x: x * 3, x),
        (lambda x: x * 2.0, x),
        (lambda x: x * 2, y),
        (lambda y: y.t() * 2, y),
        (lambda x: x * 2, count),
        (lambda x: x + 2, x),
        (lambda x: x * x, x),
        (lambda a, b: a * b, x, x.clone()),
        (lambda x: x[:, 1:] * 2, x),
        (lambda x: x[:, :15] * 2, x),
    ]
    keys = [one_op(*form).key for form in forms]
    assert all(len(key) == 32 for key in keys) and len(set(keys)) == len(keys)
    # Rows of a table that begin at other places are alike, if they are as well aligned.
    wide = torch.zeros(64, 64)
    assert one_op(lambda x: x[1:9] * 2, wide).key == one_op(lambda x: x[9:17] * 2, wide).key
    assert one_op(lambda x: x[1:9, 1:] * 2, wide).key != one_op(lambda x: x[1:9, :63] * 2, wide).key


def test_devices_are_the_one_that_is_measured() -> None:
    op = one_op(lambda x: x + torch.arange(16, device=x.device), torch.zeros(16))
    made = distinct_ops(capture(Arange(), (torch.zeros(16),), name="net"), CPU)[0]
    assert op.key and made.key and made.call.kwargs["device"] == CPU


class Arange(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return x + torch.arange(16, device=x.device)


def test_what_does_not_fit_or_fails_is_computed() -> None:
    captured = captured_layers()
    ops = distinct_ops(captured, CPU)

    def time(count: int, op: DistinctOp) -> int:
        if "relu" in str(op.call.target):
            raise RuntimeError("made-up values won't do\nand more lines")
        return 10**9

    found = sample_ops(captured, "cpu", sampler=MadeUp(time, memory=ops[2].bytes))
    first, relu, last = (found.picoseconds[op.ops].tolist() for op in ops)
    assert first == relu == [COMPUTED] * 3 and last == [10**9]
    assert len(found.notes) == 2 and "made-up values won't do" in found.notes[1]
    assert found.notes[0].startswith(f"the time of '{ops[0].name}' and 2 like it is computed: it needs")
    costs = found.costs(captured.program, "gpu")
    assert costs.picoseconds.count(None) == 6 and costs.picoseconds.count(10**9) == 1
    program = apply_costs(captured.program, costs, "gpu")
    assert program.costs is not None
    assert program.costs[ops[0].ops].tolist() == [[COMPUTED]] * 3


def test_samples_are_costs_and_room_for_kernels() -> None:
    captured = captured_layers()
    sampler = MadeUp()
    sampler.kept_bytes = 2**26
    found = sample_ops(captured, "cpu", sampler=sampler)
    costs = found.costs(captured.program, "gpu")
    assert apply_costs(captured.program, costs, "gpu").costs is not None
    room = kernel_room(captured.program.n_ops, costs, "cuda")
    assert room.kernels is not None and room.kept == 2**26
    assert room.needed == found.workspace_bytes == 2**26 + 512 * 3
    assert room.kernels.workspace.tolist() == found.op_workspace.tolist()


def test_ops_that_run_again_are_known() -> None:
    captured = captured_layers(training=True)
    relus = [op for op, kind in enumerate(captured.program.op_kind) if kind == "relu"]
    again = captured.repeated(relus[:1])
    assert len(distinct_ops(again, CPU)) == len(distinct_ops(captured, CPU))
    assert sample_ops(again, "cpu", sampler=MadeUp()).picoseconds.shape == (captured.program.n_ops + 1,)


def test_unsteady_times_are_measured_again_and_not_kept(tmp_path: Path) -> None:
    captured = captured_layers()
    # The device wakes up: the first round is slow at first.
    waking = MadeUp(lambda count, op: 10**10 if count == 1 else 10**9)
    found = sample_ops(captured, "cpu", cache=tmp_path, sampler=waking)
    assert waking.rounds == 2 and len(waking.asked) == 12 and not found.notes
    assert set(found.picoseconds.tolist()) == {10**9} and len(list(tmp_path.iterdir())) == 1
    other = tmp_path / "other"
    wild = MadeUp(lambda count, op: 10**9 * 2**count)
    found = sample_ops(captured, "cpu", cache=other, sampler=wild)
    assert wild.rounds == 2 and "times as long" in found.notes[0] and not other.exists()
    assert (found.picoseconds >= 10**9).all()
    # Half a microsecond is nothing, whatever the factor.
    short = MadeUp(lambda count, op: 100_000 * count)
    assert not sample_ops(captured, "cpu", sampler=short).notes and short.rounds == 1


def test_what_was_slow_once_counts_by_its_best() -> None:
    captured = captured_layers(training=True)
    ops = distinct_ops(captured, CPU)
    middle = len(ops) // 2

    def slow(*numbers: int) -> Callable[[int, DistinctOp], int]:
        return lambda number, op: 10**9 * (20 if number in numbers else 1)

    # Something else used the device while an op in the middle was measured: two more are needed that agree.
    sampler = MadeUp(slow(middle))
    found = sample_ops(captured, "cpu", sampler=sampler)
    assert sampler.rounds == 1 and sampler.asked.count(ops[middle - 1].name) == 3
    assert not found.notes and set(found.picoseconds.tolist()) == {10**9, 0}
    # Two slow measurements that agree are how long it takes, as far as anybody can know.
    sampler = MadeUp(slow(middle, len(ops) + 3))
    found = sample_ops(captured, "cpu", sampler=sampler)
    assert found.picoseconds[ops[middle - 1].ops].tolist() == [20 * 10**9] * len(ops[middle - 1].ops)


def test_a_failure_of_the_second_round_loses_nothing() -> None:
    captured = captured_layers()

    def time(number: int, op: DistinctOp) -> int:
        if number > 7:
            raise RuntimeError("out of memory")
        return 10**10 if number == 1 else 10**9

    found = sample_ops(captured, "cpu", sampler=MadeUp(time))
    assert (found.measured, found.distinct) == (3, 3) and set(found.picoseconds.tolist()) == {10**9}
    assert found.notes == ()


def test_known_ops_are_not_measured_again(tmp_path: Path) -> None:
    said: list[str] = []
    first = sample_ops(captured_layers(2), "cpu", cache=tmp_path, sampler=MadeUp(), say=said.append)
    again = MadeUp()
    second = sample_ops(captured_layers(2), "cpu", cache=tmp_path, sampler=again, say=said.append)
    assert not again.asked and not again.rounds and second.measured == 0
    assert second.picoseconds.tolist() == first.picoseconds.tolist()
    assert second.op_workspace.tolist() == first.op_workspace.tolist()
    assert said == ["measuring 3 distinct ops of 5"]
    # Another model shares some of them.
    sampler = MadeUp()
    sample_ops(captured_layers(2, training=True), "cpu", cache=tmp_path, sampler=sampler, say=said.append)
    assert "1 more are known" in said[-1] and "relu" not in sampler.asked
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("ops-") and len(json.loads(file.read_text())["content"]["ops"]) > 3


def test_what_libraries_keep_is_known_later(tmp_path: Path) -> None:
    sampler = MadeUp()
    sampler.kept_bytes = 12345
    captured = captured_layers(2)
    assert sample_ops(captured, "cpu", cache=tmp_path, sampler=sampler).kept_bytes == 12345
    assert sample_ops(captured, "cpu", cache=tmp_path, sampler=MadeUp()).kept_bytes == 12345


def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    cache = MeasuredCache(tmp_path, "ops", {"device": "x"})
    one, other = {"a" * 32: Sample(5, 0)}, {"b" * 32: Sample(6, 512)}
    assert (
        op_samples.write_samples(cache, one, 7) is None and op_samples.write_samples(cache, other, 3) is None
    )
    assert op_samples.read_samples(cache) == ({**one, **other}, 7)


def test_other_versions_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = captured_layers(2)
    sample_ops(captured, "cpu", cache=tmp_path, sampler=MadeUp())
    monkeypatch.setattr(torch, "__version__", "99.0")
    later = MadeUp()
    sample_ops(captured, "cpu", cache=tmp_path, sampler=later)
    monkeypatch.setattr(measured_cache, "FORMAT", 99)
    latest = MadeUp()
    sample_ops(captured, "cpu", cache=tmp_path, sampler=latest)
    assert later.asked and latest.asked and len(list(tmp_path.iterdir())) == 3
    threads = describe_device(CPU)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert describe_device(CPU) != threads and "77" in describe_device(CPU).values()


def spoilt(document: Any) -> Iterator[bytes]:
    """Files that can't be what was written."""
    text = json.dumps(document)
    key = next(iter(document["content"]["ops"]))
    yield b""
    yield b"\xff\xfe"
    yield text[:-20].encode()
    yield b"[" * 100_000
    yield json.dumps([]).encode()
    yield json.dumps(document | {"loadmaster_measured": 2}).encode()
    yield json.dumps(document | {"what": "speeds"}).encode()
    yield json.dumps(document | {"about": {}}).encode()
    yield json.dumps(document | {"content": 3}).encode()
    for content in (
        {"ops": []},
        {"ops": {key: 3}},
        {"kept_bytes": -1},
        {"kept_bytes": 2**60},
        {"kept_bytes": "x"},
    ):
        yield json.dumps(document | {"content": document["content"] | content}).encode()
    hostile: list[Any] = [
        [5],
        [5, 6, 7],
        [-1, 0],
        [0, 0],
        [5, -1],
        [True, 0],
        [1.5, 0],
        ["5", 0],
        [None, None],
        [2**62, 0],
        [5, 2**62],
        [[5], 0],
    ]
    for value in hostile:
        yield json.dumps(document | {"content": {"kept_bytes": 0, "ops": {key: value}}}).encode()
    yield json.dumps(document | {"content": {"kept_bytes": 0, "ops": {"../../x": [5, 0]}}}).encode()
    yield text.replace("[10", "[1e999, 10", 1).encode()


def test_damaged_and_hostile_files_are_written_anew(tmp_path: Path) -> None:
    captured = captured_layers(2)
    sample_ops(captured, "cpu", cache=tmp_path, sampler=MadeUp())
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    for number, bad in enumerate(spoilt(json.loads(good))):
        file.write_bytes(bad)
        sampler = MadeUp()
        found = sample_ops(captured, "cpu", cache=tmp_path, sampler=sampler)
        assert len(sampler.asked) == 6 and not found.notes, number
        assert file.read_bytes() == good, number


def test_too_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MeasuredCache(tmp_path, "ops", {"device": "x"})
    op_samples.write_samples(cache, {"a" * 32: Sample(5, 0)}, 7)
    monkeypatch.setattr(measured_cache, "_MOST_BYTES", 50)
    assert op_samples.read_samples(cache) == ({}, 0)
    assert "larger" in str(op_samples.write_samples(cache, {"a" * 32: Sample(5, 0)}, 7))
    monkeypatch.undo()
    monkeypatch.setattr(op_samples, "_MOST_ENTRIES", 2)
    many = {f"{number:032x}": Sample(5, 0) for number in range(5)}
    op_samples.write_samples(cache, many, 7)
    assert list(op_samples.read_samples(cache)[0]) == list(many)[-2:]


def test_a_folder_that_can_not_be_written_ends_nothing(tmp_path: Path) -> None:
    there = tmp_path / "file"
    there.write_text("")
    found = sample_ops(captured_layers(2), "cpu", cache=there, sampler=MadeUp())
    assert "are not kept" in found.notes[0] and (found.picoseconds >= 0).all()
    cache = MeasuredCache(tmp_path, "ops", describe_device(CPU))
    cache.path.symlink_to(there)
    found = sample_ops(captured_layers(2), "cpu", cache=tmp_path, sampler=MadeUp())
    assert "are not kept" in found.notes[0] and there.read_text() == ""


def test_ops_of_other_libraries_are_not_kept(tmp_path: Path) -> None:
    with torch.library._scoped_library("loadmaster_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        class Net(nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                return torch.ops.loadmaster_test.twice(torch.relu(x))

        captured = capture(Net(), (torch.zeros(4),), name="net")
        for asked in (["relu", "twice", "relu", "twice"], ["twice", "twice"]):
            sampler = MadeUp()
            sample_ops(captured, "cpu", cache=tmp_path, sampler=sampler)
            assert sampler.asked == asked


def test_where_measurements_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOADMASTER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "loadmaster"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/loadmaster")
    monkeypatch.setenv("LOADMASTER_CACHE", "/y")
    assert cache_folder() == Path("/y")


def test_names_of_files_are_plain(tmp_path: Path) -> None:
    for device in ("../../etc/passwd", "NVIDIA H200 \x00\n", "", "x" * 5000, "\ud800"):
        path = MeasuredCache(tmp_path, "ops", {"device": device}).path
        assert path.parent == tmp_path and len(path.name) < 100 and path.name.endswith(".json")


def test_how_often_an_op_runs() -> None:
    assert [launches_of(seconds) for seconds in (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1.0)] == [
        200,
        200,
        100,
        10,
        5,
        5,
    ]


class Held:
    """Allocations of a kernel, in order, from our own allocator on host memory."""

    def __init__(self, own: Any, temporaries: Sequence[int], results: Sequence[int], *, early: bool) -> None:
        self.own, self.temporaries, self.results, self.early = own, temporaries, results, early

    def __call__(self) -> Any:
        made = [self.own.alloc(size) for size in self.results] if self.early else []
        taken = [self.own.alloc(size) for size in self.temporaries]
        for address in taken:
            self.own.free(address)
        if not self.early:
            made = [self.own.alloc(size) for size in self.results]
        return Freed(self.own, made)


class Freed:
    def __init__(self, own: Any, addresses: list[int]) -> None:
        self.own, self.addresses = own, addresses

    def __del__(self) -> None:
        for address in self.addresses:
            self.own.free(address)


@pytest.mark.parametrize("early", [True, False])
def test_workspace_is_what_kernels_ask_for(early: bool) -> None:
    own = _core.OwnAllocator(2**24)
    counter = OwnCounter(own)
    kept = own.alloc(10_000)  # operands, and what libraries keep
    for size in (70_000, 5000, 900):
        own.free(own.alloc(size))  # what lies about is not counted
    for temporaries, results in (((), (100, 3000)), ((513, 60_000), (4096,)), ((100_000,), (700, 50_000))):
        held = own.held
        found = workspace_of(counter, Held(own, temporaries, results, early=early), results, lambda: None)
        asked = sum(-(-size // 512) * 512 for size in temporaries)
        made = sum(-(-size // 512) * 512 for size in results)
        assert found == (asked if early else max(0, asked - made))
        assert own.held == held
    own.free(kept)


def test_results_larger_than_the_program_knows_are_workspace() -> None:
    own = _core.OwnAllocator(2**24)
    work = Held(own, (), (10_240,), early=True)
    assert workspace_of(OwnCounter(own), work, (1024,), lambda: None) == 10_240 - 1024
    work = Held(own, (4096,), (), early=True)
    assert workspace_of(OwnCounter(own), work, (10_240,), lambda: None) == 4096


class FakeStats:
    """What `torch.cuda` tells of PyTorch's own allocator."""

    def __init__(self, backend: str = "native", exact: bool = True) -> None:
        self.now, self.peak, self.backend, self.exact = 1000, 1000, backend, exact

    def get_allocator_backend(self) -> str:
        return self.backend

    def memory_stats(self, device: Any) -> dict[str, int]:
        if self.backend == "pluggable":
            raise RuntimeError("no stats")
        block = 2**20  # of the large pool
        stats = {"allocated_bytes.all.current": self.now // block * block + block}
        stats["allocated_bytes.all.peak"] = self.peak // block * block + block
        if self.exact:
            stats |= {"requested_bytes.all.current": self.now, "requested_bytes.all.peak": self.peak}
        return stats

    def reset_peak_memory_stats(self, device: Any) -> None:
        if self.backend == "pluggable":
            raise RuntimeError("no stats")
        self.peak = self.now

    def empty_cache(self) -> None: ...

    def work(self) -> None:
        self.now += 700  # a result
        self.peak = max(self.peak, self.now + 300)


def test_pytorchs_allocator_counts_what_was_asked_for() -> None:
    cuda = FakeStats()
    assert workspace_of(TorchCounter(cuda, CPU), cuda.work, (700,), lambda: None) == 300
    old = FakeStats(exact=False)
    assert TorchCounter(old, CPU).grain == 512
    other = FakeStats("pluggable")
    assert workspace_of(TorchCounter(other, CPU), other.work, (700,), lambda: None) == 0


def test_libraries_that_were_there_before_still_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = captured_layers(2)
    cuda = SimpleNamespace(type="cuda", index=0)
    monkeypatch.setattr(op_samples, "checked_device", lambda name: cuda)
    monkeypatch.setattr(op_samples, "distinct_ops", lambda captured, device: [])
    assert sample_ops(captured, "cuda", sampler=MadeUp()).kept_bytes == LIBRARIES


class Beats:
    """A clock by which calls take the times that it is given, one after another."""

    def __init__(self, *times: float) -> None:
        self.torch, self.device, self.is_cuda = torch, CPU, False
        self._times, self.launches = cycle(times), 0

    def wait(self) -> None: ...

    def seconds(
        self, work: Callable[[], object], *, repeats: int, warmups: int, ahead: bool = False
    ) -> list[float]:
        for _ in range(warmups + repeats):
            work()
        self.launches += repeats
        return [next(self._times) for _ in range(repeats)]


def sampler_by(*times: float) -> tuple[DeviceSampler, Beats]:
    sampler, beats = DeviceSampler(CPU, memory=2**30), Beats(*times)
    sampler.clock = beats  # type: ignore[assignment]
    return sampler, beats


def test_small_ops_go_round_in_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, beats = sampler_by(2e-6, 5e-6, 1e-6, 3e-6)
    op = one_op(lambda x: x * 2, torch.zeros(512, 512))
    operands: set[int] = set()
    real = op_samples.called
    monkeypatch.setattr(
        op_samples,
        "called",
        lambda call, values: (operands.add(next(iter(values.values())).data_ptr()), real(call, values))[1],
    )
    with sampler.running():
        assert sampler.measure(op) == Sample(10**6, 0)  # the shortest, on a CPU
        assert len(operands) == 64 and beats.launches == 1 + 200  # 2 MiB each, 128 MiB in all
        operands.clear()
        sampler.memory = 3 * op.bytes  # room for one set and half as much
        sampler.measure(op)
        assert len(operands) == 1


def test_a_busy_cpu_is_not_measured_for_long() -> None:
    sampler, beats = sampler_by(2e-6, 0.03, 0.02, 0.01)
    op = one_op(lambda x: x * 2, torch.zeros(8))
    with sampler.running():
        assert sampler.measure(op) == Sample(20 * 10**9, 0)
    assert beats.launches == 1 + 2  # of the 200 that would be made if each took as long as the first


def test_measuring_draws_none_of_the_users_numbers() -> None:
    captured = capture(nn.Dropout(0.5), (torch.zeros(64),), name="net")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    sample_ops(captured, "cpu")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("training", [False, True])
def test_a_training_step_is_measured(training: bool, tmp_path: Path) -> None:
    captured = captured_layers(2, training=training)
    found = sample_ops(captured, "cpu", cache=tmp_path)
    check_measured(found, captured)


def check_measured(found: OpSamples, captured: Captured) -> None:
    """Every op has a time, whatever it is."""
    computed = [note for note in found.notes if "computed" in note]
    assert not computed and found.kept_bytes == 0 and not found.op_workspace.any()
    assert ((found.picoseconds > 0) == ~captured.program.op_view).all()
    assert apply_costs(captured.program, found.costs(captured.program, "cpu")).costs is not None


@pytest.mark.parametrize("training", [False, True])
def test_a_decoder_is_measured(training: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        use_cache=False,
    )

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.whole = transformers.LlamaForCausalLM(config)

        def forward(self, words: Any, mask: Any) -> Any:
            found = self.whole(input_ids=words, attention_mask=mask, use_cache=False).logits
            return found.float().square().mean() if self.training else found

    with torch.device("meta"):
        module = Decoder().train(training)
    inputs = (torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 1, 16, 16))
    captured = capture(module, inputs, name="decoder", training=training)
    ops = distinct_ops(captured, CPU)
    assert len(ops) < int((~captured.program.op_view).sum()) / 3
    check_measured(sample_ops(captured, "cpu"), captured)


# The computer as a machine.


def seconds_at(*rates: float) -> Callable[[int], float]:
    """Copies of both sizes at given rates, measurement by measurement."""
    turns = cycle(rates)
    return lambda size: size / next(turns)


def test_links_are_measured_again_where_they_can_not_be() -> None:
    small, large = QUICK_SIZES
    assert plausible_copies("a to b", seconds_at(40e9, 50e9), rising=True) == [small / 40e9, large / 50e9]
    again = seconds_at(40e9, 5e15, 40e9, 50e9)
    assert plausible_copies("a to b", again, rising=True) == [small / 40e9, large / 50e9]
    for rates in ((40e9, 5e12), (1e7, 2e7)):
        with pytest.raises(LoadmasterError, match=r"link from a to b .* GB/s"):
            plausible_copies("a to b", seconds_at(*rates), rising=True)
    busy = seconds_at(40e9, 1e7, 1e7, 50e9)  # something else ran, now beside the one, now beside the other
    assert plausible_copies("a to b", busy, rising=True) == [small / 40e9, large / 50e9]
    assert plausible_copies("a to b", seconds_at(60e9, 30e9), rising=False)[1] == large / 30e9
    for rates in ((60e9, 30e9), (0.1e9, 30e9)):  # to the end something else runs beside the one
        found = plausible_copies("a to b", seconds_at(*rates), rising=True)
        assert found == [pytest.approx(small / 30e9), large / 30e9]


LINK = LinkSpeed(54.3e9, 8e-6, 49e9, QUICK_SIZES, (2e-5, 2e-3))
RATES = {"f32": 5e13, "f16": 7e14, "bf16": 7.8e14}
SPEEDS = Speeds("cpu", "cpu", 2**34, 2**33, 2**34, LINK, replace(LINK, bandwidth=52e9), 4e12, RATES, 2e-6, {})


def test_this_computer_is_measured_once(tmp_path: Path) -> None:
    asked: list[Any] = []

    def measure(clock: Any) -> Speeds:
        asked.append(clock)
        return SPEEDS

    first = quick_machine("cpu", cache=tmp_path, measure=measure)
    again = quick_machine("cpu", cache=tmp_path, measure=measure)
    assert len(asked) == 1 and first.rules.reach == "first" and len(first.memories) == 2
    assert [link.bandwidth for link in again.links] == [54_300_000_000, 52_000_000_000]
    assert again.links == first.links and again.devices == first.devices
    assert again.links[0].latency == 8_000_000 and again.devices[0].launch == 2_000_000
    (file,) = tmp_path.iterdir()
    good = json.loads(file.read_text())
    bad: list[dict[str, Any]] = [
        {"to_device": [1e9, 0.0]},
        {"to_device": [1e30, 0.0, 1e9]},
        {"to_host": [0.0, 0.0, 1e9]},
        {"to_host": [1e9, 1e9, 1e9]},
        {"to_host": "fast"},
        {"memory": 0.0},
        {"memory": -1e9},
        {"launch": 1e9},
        {"launch": True},
        {"matrix": {}},
        {"matrix": RATES | {"f32": "1"}},
        {"matrix": RATES | {"f32": 0.0}},
    ]
    for content in bad:
        file.write_text(json.dumps(good | {"content": good["content"] | content}))
        asked.clear()
        assert quick_machine("cpu", cache=tmp_path, measure=measure).links == first.links
        assert asked and json.loads(file.read_text()) == good, content


def test_another_computer_measures_its_own_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_machine("cpu", cache=tmp_path, measure=lambda clock: SPEEDS)
    monkeypatch.setattr(speeds.platform, "node", lambda: "elsewhere")
    quick_machine("cpu", cache=tmp_path, measure=lambda clock: SPEEDS)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cpu_is_measured_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "_LEAST_RATE", 0.0)  # however busy it is
    monkeypatch.setattr(speeds, "QUICK", {"cpu": speeds.Effort(32, 32, 2**16, 2**16, 1)})
    machine = quick_machine("cpu")
    assert machine.rules.reach == "first" and len(machine.links) == 2 and machine.devices[0].launch >= 0
