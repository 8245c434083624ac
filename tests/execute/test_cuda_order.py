"""The CUDA backend's streams and events, without a GPU: no two accesses are ever unordered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from generate_offload import OffloadPlans, handover, machine_with

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from fake_cuda import FakeCuda, Stream, Witness, turning  # noqa: E402
from fit_cases import prepared_graph  # noqa: E402
from loadmaster.errors import Refused  # noqa: E402
from loadmaster.execute import own_allocator  # noqa: E402
from loadmaster.execute import session as session_module  # noqa: E402
from loadmaster.execute.calls import TRIED_CALLS, WARM_CALLS, CallExecutor, Rows  # noqa: E402
from loadmaster.execute.compile_backend import compile_graph  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.execute.session import DeviceThread, Session  # noqa: E402
from loadmaster.offload.kind import KernelRoom, make_offload  # noqa: E402
from loadmaster.offload.repeats import quick  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402
from loadmaster.program.importers.torch.compiled import Prepared, Role  # noqa: E402
from loadmaster.program.program import TensorKind  # noqa: E402
from loadmaster.program.repeats import repeat  # noqa: E402

ROOM = 2**22


@pytest.fixture(scope="module")
def model() -> tuple[Any, Captured]:
    return turning(5)


@pytest.fixture(scope="module")
def three() -> tuple[Any, Captured]:
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
    return module, capture(module.eval(), (torch.zeros(64, 64),), name="three")


@pytest.fixture(scope="module")
def step() -> tuple[Any, Prepared]:
    """A module, and its training step as one graph."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 1))
    return module, prepared_graph(lambda x: module(x), torch.randn(8, 16), training=True)


@pytest.fixture(scope="module")
def net() -> tuple[Any, Prepared]:
    """A module, and its inference as one graph."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 5))
    return module, prepared_graph(module, torch.randn(8, 16))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setattr(session_module, "_THREADS", {})  # those of other tests have other streams
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


def train(
    step: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, seed: int, *, on_device: bool = True
) -> tuple[Witness, list[int]]:
    """Training steps of a fitted model whose weights are on the device, with all that a caller does between them; and
    how often each step waited for the device. `on_device`: so do results."""
    stream = Stream(cuda)
    monkeypatch.setattr(own_allocator, "compute", lambda device: SimpleNamespace(stream=stream))
    monkeypatch.setattr(own_allocator, "make_workspaces", lambda device, stream: None)
    module, prepared = step
    roles = [Role(TensorKind.WEIGHT, name, held=True) for name in prepared.primals]
    sinks = range(len(prepared.leaves)) if on_device else ()
    captured = prepared.captured("net", roles, sinks=sinks, hold_tangents=True)
    plan = OffloadPlans(captured.program, seed).make(0.0)
    session = Session("net", torch.device("cuda"), machine_with(ROOM), ROOM)
    with monkeypatch.context() as patch:
        patch.setattr(own_allocator, "current", lambda: session)  # it is installed
        session.on_thread(int)
    shapes = {
        node.name: tuple(node.meta["val"].shape) for node in prepared.graph.nodes if node.op == "placeholder"
    }
    weights = {tuple(each.shape): each for each in module.parameters()}
    witness, inner, waits = Witness(cuda), Witness(cuda), []
    inner.accesses = witness.accesses  # a mode is one thread's
    executor = session.on_thread(
        lambda: CallExecutor(
            captured,
            plan,
            machine_with(ROOM),
            "cuda",
            [weights.get(shapes[name], torch.zeros(8, 16)) for name in prepared.primals],
            Rows(pinned=False),
            ahead=session.goes_ahead,
            placement="arena",
        )
    )
    with witness:
        session.on_thread(inner.__enter__)
        for _ in range(WARM_CALLS + TRIED_CALLS + 3):
            before = cuda.waits
            x = torch.randn(8, 16)
            args = [weights.get(shapes[name], x) for name in prepared.primals]
            wanted = torch.autograd.grad(module(x).sum(), list(module.parameters()))
            (found,) = session.on_thread(executor.forward, args)
            tangent = torch.ones_like(found)
            gradients = session.on_thread(executor.backward, args, [tangent])
            with torch.no_grad():
                for name, gradient in zip(prepared.primals, gradients, strict=True):
                    if gradient is not None:
                        weights[shapes[name]].sub_(gradient, alpha=0.1)
            mine = [each for each in gradients if each is not None]
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, wanted, strict=True))
            for each in (x, tangent, found, *mine):
                each.zero_()
            waits.append(cuda.waits - before)
        session.on_thread(inner.__exit__, None, None, None)
    session.on_thread(executor.close)
    return witness, waits


@pytest.mark.parametrize("seed", range(3))
def test_training_goes_ahead_of_the_device_and_nothing_races(
    step: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    witness, waits = train(step, cuda, monkeypatch, seed)
    assert len({access.stream for access in witness.accesses}) == 4  # the caller's, plans', two of copies
    assert witness.races() == []
    assert all(waits[: WARM_CALLS + TRIED_CALLS]) and not any(waits[WARM_CALLS + TRIED_CALLS :])


def test_results_on_the_host_are_waited_for(
    step: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, waits = train(step, cuda, monkeypatch, 0, on_device=False)
    assert all(waits) and witness.races() == []


def infer(
    net: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, plan_of: Any, *, there: bool = True
) -> tuple[Witness, list[int], CallExecutor]:
    """Calls of a fitted model with inputs that the caller has on the device and changes at once; how often each waited.
    `there`: the executor knows that they are."""
    stream = Stream(cuda)
    monkeypatch.setattr(own_allocator, "compute", lambda device: SimpleNamespace(stream=stream))
    monkeypatch.setattr(own_allocator, "make_workspaces", lambda device, stream: None)
    monkeypatch.setattr(CallExecutor, "_is_there", staticmethod(lambda value: there))
    module, prepared = net
    nodes = {
        node.name: tuple(node.meta["val"].shape) for node in prepared.graph.nodes if node.op == "placeholder"
    }
    weights = {tuple(each.shape): each.detach() for each in module.parameters()}
    roles = [
        Role(TensorKind.WEIGHT, name) if nodes[name] in weights else Role(TensorKind.INPUT)
        for name in prepared.primals
    ]
    captured = prepared.captured("net", roles, sinks=range(len(prepared.leaves)))
    session = Session("net", torch.device("cuda"), machine_with(ROOM), ROOM)
    with monkeypatch.context() as patch:
        patch.setattr(own_allocator, "current", lambda: session)  # it is installed
        session.on_thread(int)

    def args(x: Any) -> list[Any]:
        return [weights.get(nodes[name], x) for name in prepared.primals]

    made = session.on_thread(
        lambda: CallExecutor(
            captured,
            plan_of(captured.program),
            machine_with(ROOM),
            "cuda",
            args(torch.zeros(8, 16)),
            Rows(pinned=False),
            ahead=session.goes_ahead,
            placement="arena",
        )
    )
    witness, inner, waits = Witness(cuda), Witness(cuda), []
    inner.accesses = witness.accesses  # a mode is one thread's
    with witness, torch.no_grad():
        session.on_thread(inner.__enter__)
        for _ in range(WARM_CALLS + TRIED_CALLS + 3):
            before, x = cuda.waits, torch.randn(8, 16)
            wanted = module(x)
            (found,) = session.on_thread(made.forward, args(x))
            assert torch.allclose(found, wanted, atol=1e-6)
            for each in (x, found):
                each.zero_()
            waits.append(cuda.waits - before)
        session.on_thread(inner.__exit__, None, None, None)
    session.on_thread(made.close)
    return witness, waits, made


def all_resident(program: Any) -> Any:
    problem = make_offload(repeat(program, []), machine_with(ROOM), KernelRoom())
    return problem.plan(quick(problem).decision)


def test_inference_goes_ahead_of_the_device_if_it_reads_nothing_on_the_host(
    net: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, waits, _ = infer(net, cuda, monkeypatch, all_resident)
    assert witness.races() == []
    assert all(waits[: WARM_CALLS + TRIED_CALLS]) and not any(waits[WARM_CALLS + TRIED_CALLS :])


def test_inputs_on_the_host_are_waited_for(net: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    witness, waits, _ = infer(net, cuda, monkeypatch, all_resident, there=False)
    assert all(waits) and witness.races() == []


@pytest.mark.parametrize("seed", range(3))
def test_weights_that_come_from_the_host_are_waited_for(
    net: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    witness, waits, made = infer(
        net, cuda, monkeypatch, lambda program: OffloadPlans(program, seed).make(0.0)
    )
    assert witness.races() == [] and all(waits) is bool(made._streamed)


def test_a_caller_that_is_not_waited_for_is_a_race(
    step: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: None)
    assert train(step, cuda, monkeypatch, 0)[0].races()


@pytest.mark.parametrize(
    ("whole", "reads", "traced", "waits"),
    [
        (True, True, False, 1),
        (True, False, False, 0),  # nothing on the host is read: nobody has to wait
        (False, True, False, 0),  # each graph has waited by itself
        (True, True, True, 0),  # a new graph comes, and perhaps Python after it
    ],
)
def test_a_call_that_is_one_graph_is_waited_for_at_its_end(
    cuda: FakeCuda, whole: bool, reads: bool, traced: bool, waits: int
) -> None:
    session, waited = Session("net", torch.device("cuda"), machine_with(ROOM), ROOM), []
    stream = SimpleNamespace(synchronize=lambda: waited.append(session.defers))
    with ThreadPoolExecutor(1) as pool:
        session._thread, session.is_whole = DeviceThread(pool, 0, stream), whole
        with session.deferring():
            assert session.defers is whole
            if traced:
                module = torch.fx.symbolic_trace(lambda size: torch.zeros(size))
                next(iter(module.graph.nodes)).meta["example_value"] = 3
                compile_graph(session, module, [3])  # compiled when it is called
            session.reads_host = reads
        assert len(waited) == waits and not session.defers
