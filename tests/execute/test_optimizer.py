"""A streamed step gives PyTorch's own numbers, and the optimizer around it stays PyTorch's own.

Where both sides go parameter by parameter (`fused=False`, or no fused form), numbers agree bit for bit. Where
both are fused, cutting moves the borders between vectors and the rest: then the last bit may differ.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fake_cuda import FakeCuda, Witness  # noqa: E402
from loadmaster.errors import BadMachine, Refused  # noqa: E402
from loadmaster.execute import optimizer as module  # noqa: E402
from loadmaster.execute.devices import CudaBackend  # noqa: E402
from loadmaster.execute.optimizer import Size, StreamedOptimizer, cut, stream_optimizer  # noqa: E402
from loadmaster.execute.pinned import HostMemory  # noqa: E402

ROOM = 3 * 1536
"""Some forty elements of Adam's four tensors fit into a chunk; the largest parameter has 391."""

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"maximize": True, "betas": (0.5, 0.9)}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.3, "amsgrad": True, "maximize": True}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adamax", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"betas": (0.5, 0.6), "weight_decay": 0.1}),
    ("ASGD", {"t0": 2, "weight_decay": 0.1}),
    ("Rprop", {}),
]
FUSED = [(name, options) for name, options in OPTIONS if name in module.FUSED["cpu"]]


class Model(nn.Module):
    """Parameters of many shapes and strides; `frozen` has no gradient, `late` only in later steps."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        shapes = {"large": (17, 23), "row": (5,), "number": (), "empty": (0, 3), "one": (1, 1), "late": (7,)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape).to(dtype)))
        self.turned = nn.Parameter(torch.randn(6, 11).to(dtype).t())
        self.images = nn.Parameter(torch.randn(2, 3, 5, 7).to(dtype, memory_format=torch.channels_last))
        self.holes = nn.Parameter(torch.randn(8, 6).to(dtype)[:, ::2])
        self.frozen = nn.Parameter(torch.randn(4).to(dtype), requires_grad=False)

    def backward(self, step: int) -> None:
        for number, (name, p) in enumerate(self.named_parameters()):
            if name == "frozen" or (name == "late" and step < 2):
                continue
            random = torch.Generator().manual_seed(100 * step + number)
            p.grad = torch.randn(p.shape, generator=random).to(p.dtype)
            if p.element_size() == 2:  # with different strides PyTorch's own kernels round differently
                p.grad = None if name == "holes" else torch.empty_like(p).copy_(p.grad)


def model(dtype: Any = torch.float32) -> Model:
    torch.manual_seed(0)
    return Model(dtype)


def two_groups(model: Model, name: str, options: dict[str, Any]) -> Any:
    first = [p for key, p in model.named_parameters() if key != "turned"]
    second = {"params": [model.turned], "lr": 0.2}
    return getattr(torch.optim, name)([{"params": first}, second], lr=0.1, **options)


def train(model: Model, optimizer: Any, steps: int = 5, begin: int = 0) -> Model:
    for step in range(begin, begin + steps):
        model.backward(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return model


def streamed(optimizer: Any, where: str = "device", room: Any = ROOM, **options: Any) -> StreamedOptimizer:
    return stream_optimizer(optimizer, "cpu", room=room, where=where, **options)


def late(seed: int) -> Callable[[], float]:
    rng = random.Random(seed)
    return lambda: rng.choice((0.0, 0.0, 0.0, 0.001))


def tensors(model: Model, optimizer: Any) -> dict[str, Any]:
    """All that a step may change, by name."""
    found = dict(model.named_parameters())
    for name, p in model.named_parameters():
        found |= {
            f"{name}/{key}": torch.as_tensor(value) for key, value in optimizer.state.get(p, {}).items()
        }
    return found


def assert_same(first: tuple[Model, Any], second: tuple[Model, Any], rounding: bool = False) -> None:
    found, wanted = tensors(*first), tensors(*second)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        assert found[name].stride() == value.stride() or name.startswith(("images", "turned", "holes")), name
        if rounding:
            torch.testing.assert_close(found[name], value, rtol=2e-6, atol=2e-6)
        else:
            assert torch.equal(found[name], value), name


def trained(name: str, options: dict[str, Any], dtype: Any = torch.float32) -> tuple[Model, Any]:
    plain = model(dtype)
    optimizer = two_groups(plain, name, options)
    return train(plain, optimizer), optimizer


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_numbers_are_pytorchs_own_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    chosen = options | ({"fused": False} if name in module.FUSED["cpu"] else {})
    for where in ("host", "device"):
        ours = model()
        optimizer = two_groups(ours, name, chosen)
        handle = streamed(optimizer, where, delay=late(1))
        train(ours, optimizer)
        assert_same((ours, optimizer), trained(name, chosen))
        assert handle.where == where and handle.host_seconds is handle.device_seconds is None
        handle.restore()


@pytest.mark.parametrize(("name", "options"), FUSED)
@pytest.mark.parametrize("fused", [True, None])
def test_fused_numbers_are_pytorchs_up_to_rounding(
    name: str, options: dict[str, Any], fused: bool | None
) -> None:
    """Also where PyTorch's own fused step is wrong or fails: it takes no notice of strides on a CPU, and
    knows no parameter that gets its first gradient late."""
    for where in ("host", "device"):
        ours = model()
        optimizer = two_groups(ours, name, options | {"fused": fused})
        streamed(optimizer, where)
        train(ours, optimizer)
        assert_same((ours, optimizer), trained(name, options | {"fused": False}), rounding=True)


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(name: str, dtype: Any) -> None:
    options = {} if name == "Adam" else {"momentum": 0.9}
    ours = model(dtype)
    optimizer = two_groups(ours, name, options)
    streamed(optimizer)
    train(ours, optimizer)
    assert_same((ours, optimizer), trained(name, options, dtype), rounding=dtype == torch.float64)


def test_two_types_in_one_chunk() -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).bfloat16(), nn.Linear(2, 3).double())
        return net, torch.optim.AdamW(net.parameters(), lr=0.1, fused=False)

    (ours, optimizer), (plain, wanted) = made(), made()
    streamed(optimizer, room=2**16)
    for step in range(3):
        for number, (p, q) in enumerate(zip(ours.parameters(), plain.parameters(), strict=True)):
            torch.manual_seed(10 * step + number)
            p.grad, q.grad = (torch.randn(p.shape).to(p.dtype),) * 2
        optimizer.step()
        wanted.step()
    assert_same((ours, optimizer), (plain, wanted))


@given(
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=6),
    room=st.integers(3 * 4 * 128, 2**14),
    where=st.sampled_from(["host", "device"]),
)
@settings(max_examples=40, deadline=None)
def test_any_shapes_in_any_room(shapes: list[list[int]], room: int, where: str) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(1)
        params = nn.ParameterList([torch.randn(shape) for shape in shapes])
        return params, torch.optim.Adam(params, lr=0.1, fused=False)

    (ours, optimizer), (plain, wanted) = made(), made()
    handle = streamed(optimizer, where, room)
    for _ in range(2):
        for p, q in zip(ours, plain, strict=True):
            p.grad, q.grad = (torch.randn(p.shape),) * 2
        optimizer.step()
        wanted.step()
    assert_same((ours, optimizer), (plain, wanted))
    handle.restore()


ITEMSIZES = st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=5)
SIZES = st.builds(Size, st.integers(1, 5000), ITEMSIZES.map(tuple), st.integers(1, 4000))


@given(sizes=st.lists(SIZES, min_size=1, max_size=8), slot=st.integers(640, 40_000))
@settings(max_examples=200, deadline=None)
def test_chunks_hold_every_element_once(sizes: list[Size], slot: int) -> None:
    chunks = cut(sizes, slot)
    reached = [0] * len(sizes)
    for chunk in chunks:
        assert chunk
        taken: list[tuple[int, int]] = []
        for piece in chunk:
            size = sizes[piece.parameter]
            assert piece.low == reached[piece.parameter] < piece.high <= size.elements
            assert piece.high - piece.low <= size.most
            reached[piece.parameter] = piece.high
            for offset, itemsize in zip(piece.offsets, size.itemsizes, strict=True):
                assert offset % 128 == 0
                taken.append((offset, offset + (piece.high - piece.low) * itemsize))
        taken.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))
        assert taken[-1][1] <= slot
    assert reached == [size.elements for size in sizes]


def test_a_large_parameter_fills_chunks_and_small_ones_share_one() -> None:
    small, large = Size(10, (4,) * 4, 10), Size(10_000, (4,) * 4, 10_000)
    chunks = cut([small, small, large, small], 16_384)
    assert [[piece.parameter for piece in chunk] for chunk in chunks][:2] == [[0, 1, 2], [2]]
    assert len(chunks) == 12


def test_too_little_room_is_refused() -> None:
    ours = model()
    optimizer = two_groups(ours, "Adam", {})
    streamed(optimizer, room=1000)
    with pytest.raises(Refused, match="at least 1,536 bytes"):
        train(ours, optimizer)


def test_a_given_block_is_used_and_nothing_beside() -> None:
    whole = torch.full((3 * ROOM,), 7, dtype=torch.uint8)
    blocks = []

    def room() -> Any:
        blocks.append(whole[ROOM + 5 : 2 * ROOM])
        return blocks[-1]

    ours = model()
    optimizer = two_groups(ours, "Adam", {"fused": False})
    streamed(optimizer, room=room)
    train(ours, optimizer)
    assert_same((ours, optimizer), trained("Adam", {"fused": False}))
    assert len(blocks) == 5 and (blocks[0] != 7).any()
    assert (whole[: ROOM + 5] == 7).all() and (whole[2 * ROOM :] == 7).all()
    optimizer = two_groups(ours, "Adam", {})
    streamed(optimizer, room=lambda: torch.zeros(1000))
    with pytest.raises(BadMachine, match="flat block of bytes"):
        train(ours, optimizer)


@pytest.mark.parametrize("where", ["host", "device"])
def test_versions_move_with_every_step(where: str) -> None:
    ours = model()
    optimizer = two_groups(ours, "Adam", {})
    streamed(optimizer, where)
    for step in range(2):
        before = {name: p._version for name, p in ours.named_parameters()}
        train(ours, optimizer, 1, begin=step)
        for name, p in ours.named_parameters():
            assert name == "empty" or (p._version > before[name]) == (name not in ("frozen", "late")), name


@pytest.mark.parametrize(("name", "options"), [("Adam", {"fused": False}), ("SGD", {"momentum": 0.9})])
def test_state_dict_in_the_middle(name: str, options: dict[str, Any]) -> None:
    """A streamed optimizer and PyTorch's own take over from one another."""
    options = {"fused": False, **options}
    ours = model()
    optimizer = two_groups(ours, name, options)
    streamed(optimizer)
    train(ours, optimizer, 3)
    saved = io.BytesIO()
    torch.save([ours.state_dict(), optimizer.state_dict()], saved)
    for again in (True, False):
        saved.seek(0)
        weights, states = torch.load(saved)
        other = model()
        other.load_state_dict(weights)
        optimizer = two_groups(other, name, options)
        if again:
            streamed(optimizer)
        optimizer.load_state_dict(states)
        train(other, optimizer, 2, begin=3)
        assert_same((other, optimizer), trained(name, options))


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_learning_rate_scheduler(order: str, where: str) -> None:
    def made(ours: bool) -> tuple[Any, Any]:
        net = model()
        optimizer = two_groups(net, "AdamW", {"fused": False})
        if ours and order == "before":
            streamed(optimizer, where)
            streamed(optimizer, where)  # a second time: the last counts
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if ours and order == "after":
            streamed(optimizer, where)
            streamed(optimizer, where)
        for step in range(5):
            train(net, optimizer, 1, begin=step)
            scheduler.step()  # a warning would be an error here
        return net, optimizer

    assert_same(made(True), made(False))


def test_closure_and_hooks() -> None:
    told: list[str] = []

    def made(ours: bool) -> tuple[Any, Any]:
        net = model()
        optimizer = two_groups(net, "Adam", {"fused": False})
        if ours:
            streamed(optimizer)
        optimizer.register_step_pre_hook(lambda *_: told.append("pre"))
        optimizer.register_step_post_hook(lambda *_: told.append("post"))

        def closure() -> Any:
            told.append("closure")
            optimizer.zero_grad()
            loss = sum((p.double() ** 2).sum() for p in net.parameters())
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        assert losses == sorted(losses, reverse=True)
        return net, optimizer

    assert_same(made(True), made(False))
    assert told == ["pre", "closure", "post"] * 6


def test_a_group_that_is_added_later() -> None:
    def made(ours: bool) -> tuple[Any, Any]:
        net = model()
        optimizer = torch.optim.Adam([net.large, net.row], lr=0.1, fused=False)
        if ours:
            streamed(optimizer)
        train(net, optimizer, 2)
        optimizer.add_param_group({"params": [net.turned, net.late], "lr": 0.3})
        return train(net, optimizer, 3, begin=2), optimizer

    assert_same(made(True), made(False))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_grad_scaler(fused: bool, name: str) -> None:
    """Fused updates unscale by themselves, and leave unscaled gradients; a step with an infinity is none."""

    def made(ours: bool) -> tuple[Any, Any, list[Any]]:
        net = model()
        optimizer = torch.optim.__dict__[name]([net.large, net.row, net.turned], lr=0.1, fused=fused)
        if ours:
            streamed(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        grads = []
        for step in range(4):
            net.backward(step)
            net.turned.grad = net.turned.grad.t().contiguous().t()  # PyTorch's own minds no strides
            if step == 1:
                net.large.grad[3, 4] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            grads += [net.large.grad.clone(), net.turned.grad.clone()]
        return net, optimizer, grads

    (*ours, found), (*plain, wanted) = made(True), made(False)
    assert_same(tuple(ours), tuple(plain), rounding=fused)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_sparse_and_complex_gradients_step_on_the_host() -> None:
    def made(ours: bool) -> tuple[Any, Any]:
        torch.manual_seed(0)
        net = nn.ParameterDict(
            {"a": torch.randn(9, 3), "b": torch.randn(4, dtype=torch.cfloat), "c": torch.randn(3)}
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if ours:
            streamed(optimizer)
        for _ in range(2):
            for p in net.values():
                p.grad = torch.randn_like(p)
            net["a"].grad = torch.sparse_coo_tensor([[1, 4]], torch.ones(2, 3), (9, 3))
            optimizer.step()
        return net, optimizer

    assert_same(made(True), made(False))


def test_optimizers_that_are_not_elementwise_stay_pytorchs() -> None:
    class Other(torch.optim.Adam):
        pass

    params = [nn.Parameter(torch.randn(4, 4))]
    for optimizer in (torch.optim.LBFGS(params), torch.optim.Adafactor(params), Other(params)):
        handle = streamed(optimizer)
        assert handle.where == "host" and handle.host_only is not None
        assert "step" not in vars(optimizer)
        handle.restore()
    optimizer = torch.optim.Adam(params, differentiable=True)
    assert streamed(optimizer).host_only == "its step is differentiable"
    with pytest.raises(BadMachine, match="use auto, host, device"):
        streamed(optimizer, "gpu")


@pytest.mark.parametrize(
    ("times", "chosen"), [((5, 3, 4, 2), "device"), ((5, 9, 3, 4), "host"), ((1, 1, 1, 1), "host")]
)
def test_auto_takes_the_faster_place(times: tuple[int, ...], chosen: str) -> None:
    now, reads = 0.0, 0

    def clock() -> float:
        nonlocal now, reads
        now += times[reads // 2] if reads % 2 else 100.0
        reads += 1
        return now

    rooms: list[int] = []

    def room() -> Any:
        rooms.append(reads)
        return torch.empty(ROOM, dtype=torch.uint8)

    ours = model()
    optimizer = two_groups(ours, "Adam", {"fused": False})
    handle = streamed(optimizer, "auto", room, clock=clock)
    train(ours, optimizer, 3)
    assert handle.where == "auto"
    train(ours, optimizer, 2, begin=3)
    assert handle.where == chosen and reads == 8
    assert (handle.host_seconds, handle.device_seconds) == (min(times[::2]), min(times[1::2]))
    assert rooms == [3, 7, *([8] if chosen == "device" else [])]  # the second and fourth step, and the fifth
    assert_same((ours, optimizer), trained("Adam", {"fused": False}))


def test_restored_steps_are_pytorchs() -> None:
    ours = model()
    optimizer = two_groups(ours, "Adam", {"fused": False})
    handle = streamed(optimizer)
    train(ours, optimizer, 3)
    handle.restore()
    assert "step" not in vars(optimizer)
    train(ours, optimizer, 2, begin=3)
    assert_same((ours, optimizer), trained("Adam", {"fused": False}))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop"])
def test_nothing_races_on_streams(name: str, cuda: FakeCuda) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if name != "Adam" else {}
    if name != "RMSprop":
        options["fused"] = False
    block = torch.empty(ROOM, dtype=torch.uint8)
    ours = model()
    optimizer = two_groups(ours, name, options)
    stream_optimizer(optimizer, "cuda", room=lambda: block, where="device")
    with Witness(cuda) as witness:
        train(ours, optimizer)
    assert {access.stream for access in witness.accesses} == {0, 1, 2}
    assert witness.races() == []
    assert_same((ours, optimizer), trained(name, options))


@pytest.mark.parametrize("missing", ["wait", "mark", "after"])
def test_races_would_be_seen(missing: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "after":
        copy = CudaBackend.copy
        monkeypatch.setattr(
            CudaBackend,
            "copy",
            lambda backend, row, inward, target, source, after: copy(
                backend, row, inward, target, source, ()
            ),
        )
    else:
        monkeypatch.setattr(CudaBackend, missing, lambda *_, **__: None)
    block = torch.empty(ROOM, dtype=torch.uint8)
    ours = model()
    optimizer = two_groups(ours, "Adam", {"fused": False})
    stream_optimizer(optimizer, "cuda", room=lambda: block, where="device")
    with Witness(cuda) as witness:
        train(ours, optimizer, 1)
    assert witness.races()


def test_states_move_to_pinned_memory(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be pinned here, so it is enough that they move into its rows, and can be saved."""
    pinned: set[int] = set()

    class Rows(HostMemory):
        def _new(self, count: int) -> Any:
            row = torch.empty(count, dtype=torch.uint8)
            pinned.add(row.untyped_storage().data_ptr())
            return row

    def is_pinned(tensor: Any) -> bool:
        return tensor.untyped_storage().data_ptr() in pinned

    monkeypatch.setattr(module, "HostMemory", Rows)
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    monkeypatch.setattr(CudaBackend, "pinned", True)
    plain_init = CudaBackend.__init__

    def pins(backend: Any, device: Any) -> None:
        plain_init(backend, device)
        backend.pinned = True

    monkeypatch.setattr(CudaBackend, "__init__", pins)
    ours = model()
    ours.row = nn.Parameter(ours.row.detach().bfloat16())
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.1, fused=False)
    stream_optimizer(optimizer, "cuda", room=ROOM, where="device")
    train(ours, optimizer, 4)
    rows = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert len(rows) == 18 and all(is_pinned(row) for row in rows if row.numel())
    assert len(pinned) == 2  # one for each type
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    optimizer.load_state_dict(torch.load(saved))
    train(ours, optimizer, 1, begin=4)
    assert all(is_pinned(optimizer.state[p]["exp_avg"]) for p in (ours.large, ours.row))
    plain = model()
    plain.row = nn.Parameter(plain.row.detach().bfloat16())
    wanted = torch.optim.AdamW(plain.parameters(), lr=0.1, fused=False)
    assert_same((ours, optimizer), (train(plain, wanted), wanted))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("where", ["device", "auto"])
@pytest.mark.parametrize("room", [ROOM, module.STREAM_BYTES])
def test_on_a_gpu(name: str, options: dict[str, Any], where: str, room: int) -> None:
    ours = model()
    optimizer = two_groups(ours, name, options)
    handle = stream_optimizer(optimizer, "cuda", room=room, where=where)
    train(ours, optimizer)
    assert handle.where in ("host", "device")
    found, wanted = tensors(ours, optimizer), tensors(*trained(name, options))
    for key, value in wanted.items():
        assert found[key].device.type == "cpu"
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-5)
    states = [value for key, value in optimizer.state[ours.large].items() if key not in module.SCALARS]
    assert all(value.is_pinned() for value in states)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fused", [True, None, False])
def test_many_chunks_on_a_gpu(fused: bool | None) -> None:
    """300 MB of tensors through 12 MB, in pinned memory, so that copies and updates overlap."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(size).pin_memory()) for size in (12_345_678, 5, 3_000_001, 4_000_000)]
    plain = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer = torch.optim.AdamW(params, lr=0.1, fused=fused)
    wanted = torch.optim.AdamW(plain, lr=0.1, fused=False)
    stream_optimizer(optimizer, "cuda", room=12 * 2**20, where="device")
    for _ in range(4):
        for p, q in zip(params, plain, strict=True):
            q.grad = torch.randn(q.shape)
            p.grad = q.grad.pin_memory()
        optimizer.step()
        wanted.step()
        for p, q in zip(params, plain, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_a_trial_that_fails_is_tried_again() -> None:
    room = [torch.zeros(9), torch.zeros(9), torch.empty(ROOM, dtype=torch.uint8)]
    ours = model()
    optimizer = two_groups(ours, "Adam", {"fused": False})
    handle = streamed(optimizer, "auto", lambda: room[0])
    train(ours, optimizer, 1)
    ours.backward(1)
    for _ in range(2):
        with pytest.raises(BadMachine):
            optimizer.step()
        room.pop(0)
    assert handle.where == "auto" and handle.device_seconds is None
    train(ours, optimizer, 4, begin=1)
    assert handle.where in ("host", "device") and handle.device_seconds is not None
    for p in (ours.large, ours.row):
        assert optimizer.state[p]["step"] == 5
