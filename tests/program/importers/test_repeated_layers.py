"""Layers that are alike are traced once: what comes of it is the graph that PyTorch makes of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fit_cases import gradients, pair, same, session_of, step  # noqa: E402
from loadmaster.execute import compile_backend  # noqa: E402
from loadmaster.execute.session import Session  # noqa: E402
from loadmaster.machine import load_machine  # noqa: E402
from loadmaster.program.importers.torch import repeated_layers  # noqa: E402
from loadmaster.program.importers.torch.compiled import Prepared  # noqa: E402
from loadmaster.program.importers.torch.graph import is_getitem  # noqa: E402

WIDTH = 16
SUMS_ARE_ANYWHERE = torch.__version__ < (2, 11)
"""Before, PyTorch counts sums of gradients among the layer that stands next."""


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: Any) -> Any:
    monkeypatch.setattr(repeated_layers, "LEAST_OPS", 3)
    monkeypatch.setattr(repeated_layers, "LEAST_SAVED", 3)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def calls(monkeypatch: Any) -> list[int]:
    """How many layers were one call each in the graph of every try, the last of which was taken."""
    tries: list[int] = []
    init = repeated_layers.Shared.__init__

    def counted(self: Any, module: Any, layers: Any) -> None:
        init(self, module, layers)
        tries.append(len(layers))

    monkeypatch.setattr(repeated_layers.Shared, "__init__", counted)
    return tries


def prepared(model: Any, *args: Any) -> Prepared:
    """The graph of a model's call, as a plan is made for it."""
    session = Session("it", torch.device("cpu"), load_machine("h200"), 2**30)
    with torch.set_grad_enabled(model.training):
        torch.compile(
            compile_backend.own_function(model),
            backend=lambda module, inputs: (
                compile_backend.compile_graph(session, module, inputs) and module.forward
            ),
            dynamic=False,
        )(*args)
    (graph,) = session.graphs
    return graph.prepared


def described(graph: Prepared, names: dict[Any, int]) -> tuple[list[int], Any]:
    """Every op that is no view, in order, by all that it is made of; and what is returned. `names`: of what is known so
    far, so that the same has the same number in two graphs. Views have no order: they are a part of what uses them."""
    known: dict[Any, Any] = {}
    given = {name: ("given", at) for at, name in enumerate((*graph.primals, *graph.tangents))}

    def look(value: Any) -> Any:
        if hasattr(value, "all_input_nodes"):
            return known[value]
        if isinstance(value, list | tuple):
            return tuple(look(each) for each in value)
        if isinstance(value, dict):
            return tuple((name, look(each)) for name, each in value.items())
        if isinstance(value, torch.Tensor):
            place = (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
            return (*place, value.is_conj(), value.untyped_storage().nbytes())
        return repr(value)

    ops: list[int] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            known[node] = given.get(node.name) or ("constant", graph.constants[node.name].tolist())
        elif node.op == "output":
            return ops, look(node.args[0])
        else:
            name = getattr(node.target, "__name__", "") or str(node.target)
            what = (
                name,
                *(look(each) for each in (node.args, node.kwargs, node.meta["val"])),
                shared_with(node),
            )
            if is_view(node):
                known[node] = what
            else:
                late = node.name in graph.backward
                layer = "" if late and SUMS_ARE_ANYWHERE else str(node.meta["nn_module_stack"])
                known[node] = names.setdefault(repr((what, layer, late)), len(names))
                ops.append(known[node])
    raise AssertionError("a graph has an output")


def shared_with(node: Any) -> list[bool]:
    """With which of the tensors that it reads a node's result shares its memory."""

    def places(node: Any) -> set[int]:
        values = node.meta["val"]
        parts = values if isinstance(values, list | tuple) else [values]
        return {each.untyped_storage()._cdata for each in parts if isinstance(each, torch.Tensor)}

    return [not places(each).isdisjoint(places(node)) for each in node.all_input_nodes]


def is_view(node: Any) -> bool:
    source = node.args[0] if is_getitem(node) else node
    return bool(getattr(source.target, "is_view", False))


def storages(graph: Prepared) -> list[int]:
    """Which ops share memory: of each, in order, the number of what it has."""
    seen: dict[int, int] = {}
    found = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not is_view(node):
            found.append(seen.setdefault(value.untyped_storage()._cdata, len(seen)))
    return found


def assert_as_if_whole(
    monkeypatch: Any, make: Callable[[], Any], *args: Any, training: bool, in_order: bool = True
) -> None:
    torch.manual_seed(0)
    model = make().train(training)
    ours = prepared(model, *args)
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setattr(compile_backend, "share_layers", lambda *_: None)
        whole = prepared(model, *args)
    names: dict[Any, int] = {}
    (ops, results), (their_ops, their_results) = described(ours, names), described(whole, names)
    assert results == their_results and sorted(ops) == sorted(their_ops)
    if in_order:
        assert ops == their_ops and storages(ours) == storages(whole)


class Block(nn.Module):
    """An ordinary layer: norm, product, activation, product, and what came."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.into, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(self.out(F.gelu(self.into(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, make: Callable[[], Any] = Block, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *rest)
        return self.head(x)


class Cached(Block):
    """Two parts of one product leave the layer, as keys and values do for a cache."""

    def forward(self, x: Any) -> Any:
        first, second = self.into(self.norm(x)).chunk(2, dim=-1)
        first = first.view(*first.shape[:-1], 2, -1).transpose(-3, -2)
        return x + first.transpose(-3, -2).flatten(-2) * second, first, second


class CachedNet(Net):
    def forward(self, x: Any, *rest: Any) -> Any:
        kept = []
        for layer in self.layers:
            x, *pair = layer(x)
            kept += pair
        return self.head(x), kept


class InPlace(Block):
    """It writes over what it has made itself."""

    def forward(self, x: Any) -> Any:
        torch._C._log_api_usage_once("a layer")
        return x + self.out(self.into(self.norm(x)).mul_(0.5).relu_())


class OverInput(Block):
    """It writes over what it is given."""

    def forward(self, x: Any) -> Any:
        return x.add_(self.out(F.gelu(self.into(torch.tanh(x)))))


class OverInputs(Net):
    def forward(self, x: Any, *rest: Any) -> Any:
        return super().forward(x.clone())


class Put(Block):
    """It puts numbers into what it has made."""

    def forward(self, x: Any) -> Any:
        found = self.into(self.norm(x))
        found[..., :2] = 0
        return x + self.out(found)


class WithConstant(Block):
    def forward(self, x: Any) -> Any:
        return x + self.out(F.gelu(self.into(self.norm(x)))) * torch.tensor([2.0, 3.0]).repeat(WIDTH // 2)


class Complex(Block):
    """Rotated by conjugates of complex numbers, as some positions are."""

    def forward(self, x: Any) -> Any:
        turned = torch.view_as_complex(self.norm(x).view(*x.shape[:-1], -1, 2)).conj()
        return x + self.out(
            F.gelu(self.into(torch.view_as_real((turned * turned).resolve_conj()).flatten(-2)))
        )


class WithNorm(nn.Module):
    """Running means change with every call of training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return x + F.relu(self.norm(self.conv(F.gelu(x))))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[WithNorm() for _ in range(4)])

    def forward(self, x: Any) -> Any:
        return self.layers(x).mean((2, 3)) ** 2


class Autocast(Block):
    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            found = self.out(F.gelu(self.into(self.norm(x))))
        return x + found


class Within(Net):
    """An autocast around layers."""

    def forward(self, x: Any, *rest: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class Frozen(Net):
    """The first layers are not trained, and the second is computed without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[:2].requires_grad_(False)

    def forward(self, x: Any, *rest: Any) -> Any:
        with torch.no_grad():
            y = self.layers[2](self.layers[1](x))
        return super().forward(x + y)


class Shared(Net):
    """One layer's weights, again and again."""

    def forward(self, x: Any, *rest: Any) -> Any:
        for _ in range(4):
            x = self.layers[0](x)
        return self.head(x)


class Attended(Block):
    """What comes from elsewhere is read twice in every layer: gradients are added up in the order of the calls."""

    def forward(self, x: Any, other: Any) -> Any:
        return x + self.out(F.gelu(self.into(self.norm(x)))) * torch.tanh(other) + torch.sin(other)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.net = nn.Linear(WIDTH, WIDTH), Net(Attended)

    def forward(self, x: Any) -> Any:
        return self.net(x, self.encode(x))


class Everything(Net):
    """All that is between layers is returned: the last is read by nobody else."""

    def forward(self, x: Any, *rest: Any) -> Any:
        found = [x]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found


class Same(Block):
    """`to` gives its argument back."""

    def forward(self, x: Any) -> Any:
        x = x.to(torch.float32)
        return x + self.out(F.gelu(self.into(x * torch.rsqrt(x.square().mean(-1, keepdim=True)))))


class Between(Net):
    """The same module's part and what is around it read one tensor."""

    def __init__(self) -> None:
        super().__init__(Same)
        self.gate = nn.ModuleList(Same() for _ in range(4))

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer, gate in zip(self.layers, self.gate, strict=True):
            x = layer(x) * torch.sigmoid(gate(x)) + x
        return self.head(x)


class SameBefore(Net):
    """What gives its argument back stands before the layer."""

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer in self.layers:
            x = layer(x.to(torch.float32)) * x
        return self.head(x)


class Slice(Net):
    """Every layer is given a part of the same tensor, which does not begin where that does."""

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer in self.layers:
            x = layer(torch.cat([x, x.square()])[2:])
        return self.head(x)


class Viewing(Block):
    def forward(self, x: Any) -> Any:
        return x + self.out(F.gelu(self.into(x.flatten(0, 1).tanh()))).view(x.shape)


class Attention(Block):
    """Three parts of one product are kept for the backward pass."""

    def forward(self, x: Any) -> Any:
        query, key, value = torch.cat([self.into(self.norm(x)), x], -1).unflatten(-1, (3, WIDTH)).unbind(-2)
        return x + torch.softmax(query @ key.mT, -1) @ value


class Collected(Net):
    """Results are written into a tensor that is returned: they are trained, and no edge of the graph says so."""

    def forward(self, x: Any, *rest: Any) -> Any:
        found = x.new_zeros(len(self.layers), *x.shape)
        for at, layer in enumerate(self.layers):
            found[at] = layer(x)
        return found.sin()


class Unused(Net):
    """Half of what a layer gives is for nobody."""

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer in self.layers:
            x, unused = layer(x)
            self.last = unused.detach()
        return self.head(x)


class Pair(Block):
    def forward(self, x: Any) -> Any:
        found = self.into(self.norm(x))
        return x + self.out(F.gelu(found)), found


class Masked(Net):
    """A transform of `torch.func` in front of the layers, as masks are made."""

    def forward(self, x: Any, *rest: Any) -> Any:
        return super().forward(x * torch.vmap(lambda row: row.cos() + row.sin())(x.detach()))


class Summed(Net):
    """The gradient of the last layer's result lies otherwise than that of the others."""

    def forward(self, x: Any, *rest: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


class Apart(Net):
    """The gradient of no layer's result lies as it was thought."""

    def forward(self, x: Any, *rest: Any) -> Any:
        return sum(layer(x).sum() for layer in self.layers)


CASES: list[tuple[str, Callable[[], Any], int | None, int | None]] = [
    # What it is, and how many layers are calls in inference and in training, where the first reads what is not trained. After
    # the third try that fails a graph is traced as it is.
    ("ordinary", Net, 4, 3),
    ("dropout", lambda: Net(lambda: Block(dropout=0.5)), 4, 3),
    ("views leave a layer", lambda: CachedNet(Cached), 4, 0),
    ("writes over its own", lambda: Net(InPlace), 4, 3),
    ("writes over what it is given", lambda: OverInputs(OverInput), 0, 0),
    ("puts into its own", lambda: Net(Put), 4, 3),
    ("constants", lambda: Net(WithConstant), 4, 3),
    ("complex numbers", lambda: Net(Complex), 4, None),  # PyTorch's own fails to train them
    ("autocast inside", lambda: Net(Autocast), 4, 3),
    ("autocast around", Within, 4, 3),
    ("frozen", Frozen, 6, 2),
    ("shared weights", Shared, 4, 3),
    ("read twice, and by others", Encoder, 4, 0),
    ("all results", Everything, 4, 0),
    ("what is between", Between, 8, 2),
    ("a part of a tensor", lambda: Slice(Viewing), 4, 3),
    ("parts of one product", lambda: Net(Attention), 4, 3),
    ("results that are written elsewhere", lambda: Collected(Block), 4, 4),
    ("results that are not trained", lambda: Unused(Pair), 4, 2),
    ("a transform in front", Masked, 4, 3),
    ("what is before", lambda: SameBefore(Same), 4, 0),
    ("sum of the last", Summed, 4, 2),
    ("sum of each", Apart, 4, 2),
]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("make", "counts"), [(make, counts) for _, make, *counts in CASES], ids=[each[0] for each in CASES]
)
def test_the_graph_is_that_of_the_whole(
    make: Callable[[], Any], counts: list[int | None], training: bool, calls: list[int], monkeypatch: Any
) -> None:
    count = counts[training]
    if count is None:
        return
    in_order = make is not Shared  # gradients of the same weights are added up behind a layer, not within
    assert_as_if_whole(monkeypatch, make, torch.randn(2, 5, WIDTH), training=training, in_order=in_order)
    assert (calls or [0])[-1] == count


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_buffers_that_layers_change_are_changed_in_the_whole_graph(
    training: bool, calls: list[int], monkeypatch: Any
) -> None:
    assert_as_if_whole(monkeypatch, Images, torch.randn(2, 3, 6, 6), training=training)
    assert bool(calls) != training


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_call_under_an_autocast_is_that_of_the_whole(
    training: bool, calls: list[int], monkeypatch: Any
) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_if_whole(monkeypatch, Net, torch.randn(2, 5, WIDTH), training=training)
    assert calls[-1] == (3 if training else 4)


def test_a_fitted_model_with_layers_that_are_alike_is_the_ordinary_one(calls: list[int]) -> None:
    given = torch.randn(8, 5, WIDTH, requires_grad=True)
    plain, ours = pair(lambda: Net(lambda: Block(dropout=0.5)), given, training=True)
    for _ in range(2):
        found = []
        for model in (plain, ours):
            torch.manual_seed(3)
            found.append(step(model, given))
        assert same(*found) and same(gradients(ours), gradients(plain))
    assert calls[-1] == 4
    layers = {
        scope.split("/")[1]
        for scope in session_of(ours).graphs[0].choice.captured.program.op_scope
        if "/" in scope
    }
    assert len(layers) == 4
