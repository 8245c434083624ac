"""Planned runs without a GPU: results that kernels put elsewhere come to their places, and next time are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


from fake_cuda import FakeCuda, Witness, turning  # noqa: E402
from generate_offload import OffloadPlans, machine_with  # noqa: E402
from loadmaster import _core  # noqa: E402
from loadmaster.errors import BadMachine, Refused  # noqa: E402
from loadmaster.execute import own_allocator  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.execute.placement import Planned  # noqa: E402
from loadmaster.execute.script import Call, FastResidency, Script, Step  # noqa: E402

BYTES = 4096


class Kernels:
    """Steps with two results each, and kernels that ask the allocator for them."""

    def __init__(self) -> None:
        residencies = (
            FastResidency(0, 0, 0, BYTES, 0),
            FastResidency(1, 0, 1, BYTES, BYTES),
            FastResidency(2, 1, 1, BYTES, 0),
        )
        call = Call(0, print, (), {}, ())
        steps = tuple(Step((), (), call, made, (), (), ()) for made in ((0, 1), (2,)))
        self.own = _core.OwnAllocator(2**20)
        script = Script((), steps, (), residencies, (), 0, (), 0)
        self.planned = Planned(
            script, [BYTES] * 3, 2**16, torch.device("cpu"), 0, None, "op{}".format, self.own
        )

    def make(self, value: int, size: int = BYTES) -> Any:
        low = self.own.alloc(size) - self.planned._base
        return self.planned._block[low : low + size].fill_(value)

    def made(self, value: int) -> Any:
        """As a kernel's own tensor: its storage begins with it."""
        return Owned(self.make(value))


class Owned:
    """A slice of the arena as the allocator's tensor would be."""

    def __init__(self, row: Any) -> None:
        self.row = row
        self.shape, self.dtype = row.shape, row.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=self.row.data_ptr, nbytes=lambda: self.row.nbytes)

    def as_strided(self, size: Any, stride: Any, offset: int) -> Any:
        return self.row.as_strided(size, stride, self.row.storage_offset() + offset)


def values_of(made: list[Any]) -> list[int]:
    return [int(each[0]) for each in (e.row if isinstance(e, Owned) else e for e in made)]


def places(kernels: Kernels, made: list[Any]) -> list[int]:
    return [each.data_ptr() - kernels.planned._base for each in made]


def test_results_that_changed_places_change_back_and_are_right_next_time() -> None:
    kernels = Kernels()
    for run in range(2):
        kernels.planned.at(0)
        second, first = kernels.made(2), kernels.made(1)
        assert places(kernels, [first, second]) == ([BYTES, 0] if run == 0 else [0, BYTES])
        found = kernels.planned.put((0, 1), [first, second])
        assert values_of(found) == [1, 2] and places(kernels, found) == [0, BYTES]
        with kernels.planned.running():
            pass  # leaves the plan's steps


def test_a_result_that_is_no_allocation_is_copied() -> None:
    kernels = Kernels()
    kernels.planned.at(1)
    elsewhere = torch.full((BYTES,), 7, dtype=torch.uint8)
    (found,) = kernels.planned.put((2,), [elsewhere])
    assert values_of([found]) == [7] and places(kernels, [found]) == [0]


def test_what_a_library_keeps_is_refused() -> None:
    kernels = Kernels()
    kernels.planned.at(0)
    kernels.make(3, 100)
    with pytest.raises(Refused, match="'op0' keeps 512 B"):
        kernels.planned.at(1)
    kernels = Kernels()
    kernels.planned.at(1)
    kernels.make(3)  # it has the place of the result
    with pytest.raises(Refused, match="'op1' keeps"):
        kernels.planned.put((2,), [kernels.made(4)])


def test_peaks_count_residencies_temporaries_and_libraries() -> None:
    kernels = Kernels()
    kernels.planned._kept = 10
    kernels.planned.at(0)
    kernels.own.free(kernels.own.alloc(600))
    assert kernels.planned.peaks() == (10 + 2 * BYTES + 1024, 10 + 2**16 - 512 + 512)


@pytest.fixture(scope="module")
def net() -> tuple[Any, Any]:
    return turning(4)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A device whose kernels know nothing of the allocator: every result is copied to its place."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setattr(own_allocator, "_KEPT", [fake])
    monkeypatch.setattr(own_allocator, "compute", lambda _: own_allocator.Compute(None, 512, 0))
    for name in ("memory_allocated", "reset_peak_memory_stats", "set_per_process_memory_fraction"):
        monkeypatch.setattr(torch.cuda, name, None)  # not there with another allocator
    return fake


@pytest.mark.parametrize("seed", range(3))
def test_a_planned_run_gives_what_the_module_gives(net: Any, cuda: FakeCuda, seed: int) -> None:
    module, captured = net
    plan = OffloadPlans(captured.program, seed).make(0.0)
    weights, room = dict(module.named_parameters()), 2**22
    with Executor(captured, plan, machine_with(room), "cuda", weights, capacity=room) as executor:
        assert executor.placement == "planned"
        with Witness(cuda) as witness:
            for _ in range(2):
                x = torch.randn(64, 64)
                results = executor.run(x)
                with torch.no_grad():
                    wanted = module(x)
                assert all(torch.equal(a, b) for a, b in zip(results.outputs, wanted, strict=True))
        assert witness.races() == []
        assert results.peak_bytes == executor.script.peak + 512 and results.reserved_bytes <= room
    short = executor.script.peak + 511  # libraries have 512
    with pytest.raises(BadMachine, match="512 B are kept by libraries, and it may have"):
        Executor(captured, plan, machine_with(room), "cuda", weights, capacity=short)
    with pytest.raises(BadMachine, match="our allocator in place of PyTorch's"):
        Executor(captured, plan, machine_with(room), "cuda", weights, placement="allocator")


def test_a_process_that_used_cuda_keeps_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda().install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert own_allocator.install() is False and own_allocator.current() is None


def test_shortages_are_known_in_any_words() -> None:
    error = RuntimeError("capture failed")
    error.__context__ = RuntimeError("loadmaster: no room for 7 bytes")
    assert own_allocator.is_shortage(error) and not own_allocator.is_shortage(RuntimeError("no"))
    assert own_allocator.is_shortage(torch.OutOfMemoryError("full"))
