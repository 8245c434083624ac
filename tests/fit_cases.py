"""Small modules for `fit`, and the ordinary module beside the fitted one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import loadmaster
from loadmaster.execute.graphs import Session
from loadmaster.program.importers.torch.compiled import Prepared, prepare
from loadmaster.program.importers.torch.importer import quiet
from loadmaster.search.solver import Budget

QUICK: Mapping[str, Any] = {
    "device": "cpu",
    "search": Budget(evaluations=20),
    "background": False,
    "measure": False,
    "quiet": True,
}
WIDTH = 128


class Stack(nn.Module):
    """Linear layers, each 64 KiB of weights."""

    def __init__(self, depth: int = 6, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return x


class Parts(nn.Module):
    """Stacks that PyTorch compiles one by one: its graph breaks between them."""

    def __init__(self, *depths: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = Stack(depths[0], dropout=dropout)
        self.rest = Parts(*depths[1:], dropout=dropout) if len(depths) > 1 else None

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        if self.rest is None:
            return x
        torch._dynamo.graph_break()
        return self.rest(x) + x


def fitted(model: Any, *args: Any, memory: str | int = "75%", **options: Any) -> Any:
    """`fit` with a short search and no clock."""
    return loadmaster.fit(model, args, memory=memory, **{**QUICK, **options})


def pair(
    make: Callable[[], Any], *args: Any, training: bool = False, memory: str | int = "75%", **options: Any
) -> tuple[Any, Any]:
    """The ordinary module, and the same one fitted."""
    torch.manual_seed(0)
    plain = make().train(training)
    return plain, fitted(copy.deepcopy(plain), *args, memory=memory, **options)


def rows(count: int = 32, seed: int = 1, **options: Any) -> Any:
    """Inputs for a `Stack`."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed), **options)


def same(one: Any, other: Any) -> bool:
    """Whether both have the same tensors, bit for bit."""
    (mine, shape), (theirs, their_shape) = tree_flatten(one), tree_flatten(other)
    return shape == their_shape and all(
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(mine, theirs, strict=True)
    )


def gradients(model: Any) -> dict[str, Any]:
    """By parameter."""
    return {name: each.grad for name, each in model.named_parameters()}


def step(model: Any, *args: Any) -> Any:
    """One training step's loss; gradients are added to those that are there."""
    loss = model(*args).square().mean()
    loss.backward()
    return loss.detach()


def session_of(model: Any) -> Session:
    """What `fit` keeps for a model."""
    found: Session = model.fitted.session
    return found


def prepared_graph(call: Callable[..., Any], *args: Any, training: bool = False) -> Prepared:
    """What `prepare` makes of the one graph of a call."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    found: list[Prepared] = []

    def partition(joined: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        found.append(prepare(joined, num_fwd_outputs, len(inputs[0]), "it"))
        return default_partition(joined, inputs, num_fwd_outputs=num_fwd_outputs, **options)

    def inference(graph: Any, inputs: Any) -> Any:
        found.append(prepare(graph, None, len(inputs), "it"))
        return graph

    backend = aot_autograd(
        fw_compiler=lambda graph, _: graph,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    with quiet(), torch.set_grad_enabled(training):
        torch.compile(call, backend=backend, dynamic=False)(*args)
    (one,) = found
    return one
