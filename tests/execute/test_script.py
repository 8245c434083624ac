"""Calls as a script has them: the same numbers wherever their tensors lie."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from generate_offload import OffloadPlans  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.execute.script import own_ops  # noqa: E402
from loadmaster.machine import load_machine  # noqa: E402
from loadmaster.program.importers.torch.captured import capture  # noqa: E402


class Scatters(nn.Module):
    """Ops that begin with a copy of an argument's storage, or count from its start: in an arena that is
    where other tensors lie."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> Any:
        kept = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            kept.append(x)
            y = x.clone()
            y[:, 1:9] = x[:, :8]
            y[3] = 2.0
            y.diagonal()[:] = x[0]
            windows = x.as_strided((4, 8), (16, 1), 3)
            x = y + windows.sum() + torch.as_strided_scatter(x, windows * 2, (4, 8), (16, 1), 5)
        return sum(each.sum() for each in kept) + x.square().mean()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_ops_that_look_at_whole_storages_see_their_arguments_alone(seed: int, training: bool) -> None:
    torch.manual_seed(0)
    module, x = Scatters(), torch.randn(16, 16)
    captured = capture(module, (x,), name="scatters", training=training)
    names = " ".join(str(node.target) for node in captured.graph.nodes)
    for each in ("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "as_strided."):
        assert each in names
    plan = OffloadPlans(captured.program, seed).make(0.3)
    with Executor(
        captured, plan, load_machine("h200:hbm=1MiB"), "cpu", dict(module.named_parameters())
    ) as executor:
        results = executor.run(x)
        with torch.set_grad_enabled(training):
            loss = module(x)
        assert torch.equal(results.outputs[0], loss)
        if training:
            loss.backward()
            for name, parameter in module.named_parameters():
                assert torch.equal(results.gradients[name], parameter.grad), name


def test_a_view_of_what_lies_otherwise_than_was_traced() -> None:
    """A view where there is one, else the same numbers: some kernels' results lie otherwise than their traced twins'."""
    view = own_ops(torch)[torch.ops.aten.view.default]
    rows = torch.arange(24.0).reshape(4, 6)
    assert view(rows, [2, 12]).data_ptr() == rows.data_ptr()
    assert torch.equal(view(rows.t(), [24]), rows.t().reshape(24))
