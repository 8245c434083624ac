"""Calls with graphs of their own among their arguments, in the graphs of `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from fit_cases import gradients, pair, prepared_graph, same, session_of, step  # noqa: E402
from loadmaster.errors import BadProgram  # noqa: E402
from loadmaster.execute.compile_backend import retargeted  # noqa: E402
from loadmaster.program.importers.torch.captured import capture  # noqa: E402
from loadmaster.program.importers.torch.graph import is_random  # noqa: E402
from loadmaster.program.importers.torch.nested import Nested, has_nested  # noqa: E402


def branching(x: Any) -> Any:
    def first(x: Any) -> Any:
        return x + torch.arange(3, device="cpu")

    def second(x: Any) -> Any:
        return x * torch.rand(3)

    return torch.cond(x.sum() > 0, first, second, (x,))


def test_graphs_become_arguments_and_one_that_draws_numbers_makes_the_call_random() -> None:
    prepared = prepared_graph(branching, torch.ones(3))
    (call,) = (node for node in prepared.graph.nodes if isinstance(node.target, Nested))
    assert not any(node.op == "get_attr" for node in prepared.graph.nodes)
    assert [isinstance(each, torch.fx.GraphModule) for each in call.args[:3]] == [False, True, True]
    assert str(call.target) == "higher_order.cond" and not call.target.is_loop and is_random(call)
    with pytest.raises(BadProgram, match="may mix samples"):
        prepared.batch([0])


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch's own tracer leaves it out before 2.13")
def test_a_call_that_does_something_beside_its_results_is_never_run_twice() -> None:
    prepared = prepared_graph(torch.linalg.inv, torch.eye(3))
    (call,) = (node for node in prepared.graph.nodes if isinstance(node.target, Nested))
    assert call.target.has_effects and is_random(call)
    prepared = prepared_graph(branching, torch.ones(3))
    assert not any(getattr(node.target, "has_effects", False) for node in prepared.graph.nodes)


def test_a_graph_without_such_calls_is_as_it_was() -> None:
    assert not has_nested(prepared_graph(torch.sin, torch.ones(3)).graph)


def test_branches_go_to_another_device_with_their_graph() -> None:
    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        found.append(module)
        return module.forward

    torch.compile(branching, backend=backend)(torch.ones(3))
    moved = retargeted(found[0], torch.device("meta"))
    codes = [each.code for each in moved.children()]
    assert len(codes) == 2 and "device(type='meta')" in "".join(codes) and "'cpu'" not in "".join(codes)


def test_a_captured_function_has_them_too() -> None:
    class Module(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    captured = capture(Module(), (torch.ones(3),), name="branching")
    assert has_nested(captured.graph) and "cond" in captured.program.op_name


class Region(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 64), nn.Linear(64, 16)

    @torch.compiler.nested_compile_region
    def forward(self, x: Any) -> Any:
        return x + self.out(torch.relu(self.into(x)) * torch.tensor([1.0, 2.0]).repeat(32))


class Regions(nn.Module):
    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.layers, self.checkpoints = nn.ModuleList(Region() for _ in range(3)), checkpoints

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return x


@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "in a checkpoint"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_what_is_compiled_once_is_planned_op_by_op(training: bool, checkpoints: bool) -> None:
    given = torch.randn(8, 16)
    plain, ours = pair(lambda: Regions(checkpoints), given, training=training)
    if training:
        assert same(step(ours, given), step(plain, given)) and same(gradients(ours), gradients(plain))
    else:
        with torch.no_grad():
            assert same(ours(given), plain(given))
    (graph,) = session_of(ours).graphs
    assert not has_nested(graph.prepared.graph)
    products = [node for node in graph.prepared.graph.nodes if "addmm" in str(node.target)]
    assert len(products) >= 6  # two in each layer, and those that a checkpoint runs again
