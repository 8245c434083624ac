"""The CUDA backend's streams and events, without a GPU: no two accesses are ever unordered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from generate_offload import OffloadPlans, handover, machine_with

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from fake_cuda import FakeCuda, Witness, turning  # noqa: E402
from loadmaster.errors import Refused  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402

ROOM = 2**22


@pytest.fixture(scope="module")
def model() -> tuple[Any, Captured]:
    return turning(5)


@pytest.fixture(scope="module")
def three() -> tuple[Any, Captured]:
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
    return module, capture(module.eval(), (torch.zeros(64, 64),), name="three")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def witnessed(model: Any, cuda: FakeCuda, seed: int, placement: str, change: Any = None) -> Witness:
    module, captured = model
    plan = OffloadPlans(captured.program, seed).make(0.0)
    weights = dict(module.named_parameters())
    executor = Executor(captured, plan, machine_with(ROOM), "cuda", weights, placement=placement)
    x = torch.randn(64, 64)
    with torch.no_grad():
        wanted = module(x)
    with executor, Witness(cuda) as witness:
        if change is not None:
            executor._walk.script = change(executor.script)
        for _ in range(2):
            results = executor.run(x)
        assert all(torch.equal(a, b) for a, b in zip(results.outputs, wanted, strict=True))
        assert (results.peak_bytes, results.reserved_bytes) == (4000, 5000)
        assert results.seconds == 1e-3
    return witness


@pytest.mark.parametrize("placement", ["allocator", "arena"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_races(model: Any, cuda: FakeCuda, seed: int, placement: str) -> None:
    witness = witnessed(model, cuda, seed, placement)
    assert {access.stream for access in witness.accesses} == {0, 1, 2}
    assert witness.races() == []
    assert set(cuda.fractions) == {(ROOM + 2000) / 2**30, 1.0} and cuda.fractions[-1] == 1.0


def test_a_wait_that_is_left_out_is_a_race(model: Any, cuda: FakeCuda) -> None:
    def hasty(script: Any) -> Any:
        return replace(script, steps=tuple(replace(step, waits=()) for step in script.steps))

    assert witnessed(model, cuda, 0, "allocator", hasty).races()


def test_a_shortage_tells_what_to_do(three: Any, cuda: FakeCuda) -> None:
    (module, captured), (plan, _) = three, handover(three[1])
    weights = dict(module.named_parameters())

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    for placement, remedy in (
        ("allocator", "leaves holes between tensors"),
        ("arena", "leave kernels more room"),
    ):
        with Executor(captured, plan, machine_with(2**16), "cuda", weights, placement=placement) as executor:
            executor._walk.run = full  # type: ignore[method-assign]
            with pytest.raises(Refused, match=r"ran out of its 64\.00 KiB") as caught:
                executor.run(torch.zeros(64, 64))
        assert remedy in str(caught.value.remedy)


def test_room_given_away_under_a_copy_is_a_race(three: Any, cuda: FakeCuda) -> None:
    (module, captured), x = three, torch.randn(64, 64)
    weights, (plan, _) = dict(module.named_parameters()), handover(captured)
    for careless in (False, True):
        with (
            Executor(captured, plan, machine_with(2**16), "cuda", weights, placement="arena") as executor,
            Witness(cuda) as witness,
        ):
            if careless:
                steps = [
                    replace(step, fetches=tuple(replace(move, after=()) for move in step.fetches))
                    for step in executor.script.steps
                ]
                executor._walk.script = replace(executor.script, steps=tuple(steps))
            executor.run(x)
        assert bool(witness.races()) == careless
