"""`fit` on a GPU: results in the block, and the memory that the process really takes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import same  # noqa: E402
from loadmaster.execute import own_allocator  # noqa: E402
from loadmaster.search.solver import Budget  # noqa: E402

if not torch.cuda.is_available() or not own_allocator.install():
    pytest.skip("needs a CUDA device that nothing has used yet", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)
WIDTH, ROWS = 2048, 4096
SEARCH = Budget(evaluations=200)
"""The clock stands still in tests: seconds would never end."""
SPARE = 2**22
"""Bytes: the driver gives memory in pages of 2 MiB."""


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    own_allocator.current().release()  # type: ignore[union-attr]


class Wide(nn.Module):  # type: ignore[misc]
    """Forty layers of 16 MiB and results of 16 MiB, or a loss."""

    def __init__(self, *, with_loss: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(40))
        self.with_loss = with_loss

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean() if self.with_loss else (x, x.mean(1))


def inputs(seed: int) -> Any:
    made = torch.randn(ROWS // 2, WIDTH, generator=torch.Generator().manual_seed(seed))
    return made.to("cuda")


def fitted(memory: int, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    plain = Wide().eval()
    model = loadmaster.fit(
        copy.deepcopy(plain), (inputs(0).cpu(),), memory=memory, search=SEARCH, quiet=True, **options
    )
    return plain.to("cuda"), model


def without_plans() -> int:
    """What the process has on the device for its context and for the caller's tensors."""
    made, own = own_allocator.compute(torch.device("cuda", 0)), own_allocator.current()
    assert own is not None
    return made.bare_bytes + own.held - made.kept_bytes


@contextmanager
def watched(found: list[int]) -> Iterator[None]:
    """The most that the process had on the device meanwhile is appended to `found`."""
    over, most = threading.Event(), [0]

    def look() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], own_allocator.used_bytes(torch.device("cuda", 0)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        found.append(most[0])


@torch.no_grad()
@pytest.mark.parametrize("keeps", [False, True])
def test_results_in_the_block_are_right_whoever_keeps_them(keeps: bool) -> None:
    plain, model = fitted(640 * 2**20)
    expected = [plain(inputs(seed)) for seed in range(3)]
    kept: list[Any] = []
    for turn in range(9):
        found = model(inputs(turn % 3))
        assert same(tuple(found), tuple(expected[turn % 3])), turn
        model.fitted.wait_for_plan()
        if keeps and turn > 3:
            kept.append((turn % 3, found[0][1:]))
        del found
    for seed, found in kept:
        assert torch.equal(found, expected[seed][0][1:])
    graph = model.fitted.session.graphs[0]
    assert graph.lends is not keeps and (graph.delivered_bytes > 0) is keeps
    last = model(inputs(1))
    del model, graph
    torch._dynamo.reset()
    filled = [torch.full((2**22,), float(n), device="cuda") for n in range(20)]
    assert same(tuple(last), tuple(expected[1])), "the block is there as long as a result in it is"
    del filled


@torch.no_grad()
@pytest.mark.parametrize("keeps", [False, True])
def test_the_process_takes_no_more_than_the_memory(keeps: bool) -> None:
    memory, most = 640 * 2**20, list[int]()
    torch.manual_seed(0)
    model, x = Wide().eval(), [inputs(seed) for seed in range(2)]
    before = without_plans()
    with watched(most):
        model = loadmaster.fit(model, (x[0].cpu(),), memory=memory, search=SEARCH, quiet=True)
        found = None
        for turn in range(8):
            if not keeps:
                found = None
            found = model(x[turn % 2])
            model.fitted.wait_for_plan()
        torch.cuda.synchronize()
    assert found is not None
    assert most[0] - before <= memory + SPARE, f"{(most[0] - before) / 2**20:.1f} MiB"


def test_a_training_step_takes_no_more_than_the_memory() -> None:
    memory, most = 800 * 2**20, list[int]()
    torch.manual_seed(0)
    model, x = Wide(with_loss=True), inputs(0)  # what the caller computes of results is no part of the memory
    optimizer = torch.optim.AdamW(model.parameters())
    before = without_plans()
    with watched(most):
        model = loadmaster.fit(
            model, (x.cpu(),), memory=memory, optimizer=optimizer, search=SEARCH, quiet=True
        )
        for _ in range(5):
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.fitted.wait_for_plan()
        torch.cuda.synchronize()
    assert most[0] - before <= memory + SPARE, f"{(most[0] - before) / 2**20:.1f} MiB"


def test_training_that_nobody_waits_for_is_right() -> None:
    """Calls return before the device is done: what the caller gives and takes is changed at once."""

    def losses(model: Any, optimizer: Any) -> list[float]:
        found = []
        for turn in range(12):
            x = inputs(turn)
            loss = model(x)[0].square().mean()
            loss.backward()
            x.zero_()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach().clone())
            loss.detach().zero_()
        return [each.item() for each in found]

    torch.manual_seed(0)
    plain = Wide()
    model, memory = copy.deepcopy(plain), 3 * 2**30
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model = loadmaster.fit(
        model, (inputs(0),), memory=memory, optimizer=optimizer, weights="device", search=SEARCH, quiet=True
    )
    model.fitted.wait_for_plan()
    found = losses(model, optimizer)
    assert model.fitted.session.graphs[0]._executor._ahead
    plain.to("cuda")
    expected = losses(plain, torch.optim.SGD(plain.parameters(), 0.1))
    assert found == pytest.approx(expected, rel=1e-4)


def fused_calls(model: Any) -> set[str]:
    graph = model.fitted.session.graphs[0].prepared.graph
    return {str(node.target) for node in graph.nodes if "attention" in str(node.target)}


class Masked(nn.Module):  # type: ignore[misc]
    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.project, self.make = nn.Linear(256, 256), make

    def forward(self, x: Any) -> Any:
        heads = self.project(x).unflatten(-1, (4, 64)).transpose(1, 2)
        mask = self.make(x)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["none", "bool", "expanded"])
def test_attention_with_a_mask_is_one_op(kind: str) -> None:
    def make(x: Any) -> Any:
        seen = x[:, None, None, :, 0] > -10
        return None if kind == "none" else seen.expand(-1, 1, x.shape[1], -1) if kind == "expanded" else seen

    model = Masked(make).to(torch.bfloat16).eval()
    x = torch.randn(4, 128, 256, dtype=torch.bfloat16)
    expected = copy.deepcopy(model).to("cuda")(x.to("cuda"))
    model = loadmaster.fit(model, (x,), memory="100%", search=SEARCH, quiet=True)
    assert fused_calls(model)
    torch.testing.assert_close(model(x).to("cuda"), expected)


def test_batch_norms_are_the_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve of them, in training: with another kernel than eager's, gradients would have few digits in common."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    layers = [
        layer for _ in range(12) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    ]
    plain = nn.Sequential(*layers)
    data = torch.randn(32, 64, 56, 56)
    model = loadmaster.fit(copy.deepcopy(plain), data, memory="75%", search=SEARCH, quiet=True)
    plain, near = plain.to("cuda"), data.to("cuda")
    for module in (plain, model):
        module.zero_grad()
        module(near).square().mean().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        # As far apart as convolutions of the same numbers are, for which there are several kernels.
        difference = (one.grad - other.grad.to("cuda")).abs().max()
        assert difference <= 1e-3 * one.grad.abs().max()


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_are_cudnns(kind: str) -> None:
    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cells = getattr(nn, kind)(256, 256, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(512, 16)

        def forward(self, x: Any) -> Any:
            return self.head(self.cells(x)[0]).square().mean()

    torch.manual_seed(0)
    plain, x = Tagger(), torch.randn(32, 50, 256)
    model = loadmaster.fit(copy.deepcopy(plain), x, memory="2GiB", search=SEARCH, quiet=True)
    plain.to("cuda")
    expected, found = plain(x.to("cuda")), model(x)
    expected.backward()
    found.backward()
    torch.testing.assert_close(found.cpu(), expected.cpu())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad.cpu(), rtol=1e-4, atol=1e-6)
    (graph,) = model.fitted.session.graphs
    assert f"loadmaster.{kind.lower()}_backward" in str(graph.prepared.graph)
