"""Graphs with numbers among their inputs, and with sizes that vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fit_cases import QUICK, WIDTH, Stack, rows  # noqa: E402
from loadmaster import torch_fit  # noqa: E402
from loadmaster.execute.numbers import compile_with_numbers, has_numbers  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Scaled(nn.Module):
    """A layer, a number that an op reads, and one that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, factor: int, count: int) -> Any:
        return self.layer(x) * factor, count + 1


def graphs_of(options: dict[str, Any]) -> int:
    """How many plans `torch.compile` with these options has."""
    return next(len(each[2].graphs) for each in torch_fit._SESSIONS.values() if each[0] is options)


@pytest.mark.parametrize("dynamic", [True, None])
def test_by_name_every_size_has_a_plan(dynamic: bool | None) -> None:
    options = {**QUICK, "memory": "4MiB"}
    model = Stack(3)
    compiled = torch.compile(model, backend="loadmaster", options=options, dynamic=dynamic)
    for _ in range(2):
        for count in (4, 7, 9):
            x = rows(count)
            assert torch.equal(compiled(x), model(x))
            with torch.no_grad():
                assert torch.equal(compiled(x), model(x))
    # Three for training, three without gradients; the first of each once more where sizes vary from the second on.
    assert graphs_of(options) == (6 if dynamic else 8)


def test_gradients_of_sizes_that_vary() -> None:
    model = Stack(3)
    compiled = torch.compile(model, backend="loadmaster", options={**QUICK, "memory": "4MiB"}, dynamic=True)
    for count in (4, 7):
        found = []
        for each in (compiled, model):
            x = rows(count).requires_grad_()
            each(x).square().mean().backward()
            found.append((x.grad, model.layers[0].weight.grad.clone()))
            model.zero_grad()
        assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


def test_numbers_that_ops_read_make_graphs_and_others_do_not() -> None:
    made: list[int] = []

    def compile_graph(module: Any, inputs: Any) -> Callable[..., Any]:
        assert all(isinstance(each, torch.Tensor) for each in inputs)
        made.append(len(inputs))
        return module.forward

    def backend(module: Any, inputs: Any) -> Callable[..., Any]:
        assert has_numbers(module)
        return compile_with_numbers(module, inputs, compile_graph, module.forward, 3)

    model = Scaled()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    x = rows(5)
    with torch.no_grad():
        for factor in (3, 4, 3, 4, 5, 6, 7):
            found, count = compiled(x, factor, 2 * factor)
            assert torch.equal(found, model.layer(x) * factor) and count == 2 * factor + 1
    assert len(made) == 3, "no more than there may be: the rest run as they are"
