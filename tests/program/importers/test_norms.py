"""Batch norms of training steps: another kernel where PyTorch would choose one, forward and backward, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import loadmaster  # noqa: E402
from loadmaster.program.importers.torch import norms  # noqa: E402
from loadmaster.search.solver import Budget  # noqa: E402


def net() -> Any:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def fit_net(monkeypatch: pytest.MonkeyPatch, *, chosen: bool | None) -> tuple[Any, set[str]]:
    """A fitted net, and the names of the batch norm's calls in its graphs. `chosen`: whether another kernel is said to
    be PyTorch's choice; None: PyTorch is asked, which on a CPU has none."""
    torch._dynamo.reset()
    if chosen is not None:
        monkeypatch.setattr(norms, "_has_other_kernel", lambda _: chosen)
    seen: set[str] = set()
    monkeypatch.setattr("loadmaster.program.importers.torch.compiled.restore_norms", spying(seen))
    model = loadmaster.fit(
        net(), torch.randn(4, 3, 8, 8), memory="75%", device="cpu", search=Budget(evaluations=20), quiet=True
    )
    return model, seen


def spying(seen: set[str]) -> Any:
    def spy(graph: Any) -> None:
        norms.restore_norms(graph)
        seen.update(name for name in map(str, (node.target for node in graph.nodes)) if "batch_norm" in name)

    return spy


NATIVE = {"aten._native_batch_norm_legit_functional.default", "aten.native_batch_norm_backward.default"}
OTHER = {"aten._batch_norm_with_update_functional.default", "aten.batch_norm_backward.default"}


@pytest.mark.parametrize(("chosen", "calls"), [(None, NATIVE), (False, NATIVE), (True, OTHER)])
def test_steps_are_the_modules_own(
    chosen: bool | None, calls: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = fit_net(monkeypatch, chosen=chosen)
    plain, x = net(), torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert seen == calls
    for module in (plain, model, plain, model):  # running means move with every step
        module.zero_grad()
        module(x).square().mean().backward()
    gradients = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in gradients)
    assert all(torch.equal(one, other) for one, other in zip(plain.buffers(), model.buffers(), strict=True))


def test_without_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training mode, under no_grad: means move, and nothing is kept."""
    model, seen = fit_net(monkeypatch, chosen=True)
    seen.clear()
    plain, x = net(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert seen == {"aten._batch_norm_with_update_functional.default"}
    assert all(torch.equal(one, other) for one, other in zip(plain.buffers(), model.buffers(), strict=True))


def test_what_looks_at_saved_means_keeps_its_kernel() -> None:
    """Someone else than the backward call reads what a kernel saves, which need not be the same in another."""
    aten, graph = torch.ops.aten, torch.fx.Graph()
    data, weight = graph.placeholder("data"), graph.placeholder("weight")
    node = graph.call_function(
        aten._native_batch_norm_legit_functional.default,
        (data, weight, weight, weight, weight, True, 0.1, 1e-5),
    )
    saved = graph.call_function(norms.operator.getitem, (node, 1))
    graph.output((graph.call_function(aten.neg.default, (saved,)),))
    norms.restore_norms(graph)
    assert node in graph.nodes
