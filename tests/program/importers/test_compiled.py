"""Graphs that AOTAutograd hands to a backend: prepared, and as Programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import prepared_graph  # noqa: E402
from loadmaster.errors import BadProgram  # noqa: E402
from loadmaster.execute import graphs  # noqa: E402
from loadmaster.offload.model import Kernels  # noqa: E402
from loadmaster.program.importers.torch import joined  # noqa: E402
from loadmaster.program.importers.torch.compiled import Prepared, Role, prepare  # noqa: E402
from loadmaster.program.importers.torch.graph import op_name  # noqa: E402
from loadmaster.program.program import TensorKind  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(prepared: Prepared, given: Any, module: Any) -> Any:
    """The one result of a graph of inference; all parameters of the module differ in shape."""
    known = {tuple(each.shape): each for each in (*module.parameters(), given)}
    nodes = {node.name: node for node in prepared.graph.nodes}
    args = [known[tuple(nodes[name].meta["val"].shape)] for name in prepared.primals]
    return torch.fx.Interpreter(torch.fx.GraphModule(nn.Module(), prepared.graph)).run(*args)[0]


def targets(prepared: Prepared) -> list[str]:
    return [op_name(node.target) for node in prepared.graph.nodes if node.op == "call_function"]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


def test_a_graph_of_inference_has_its_primals_and_no_backward_half() -> None:
    prepared = prepared_graph(Two(), torch.randn(4, 8))
    assert len(prepared.primals) == 5 and prepared.tangents == () and prepared.forward_outputs is None
    assert not prepared.backward and not prepared.updates and len(prepared.leaves) == 1
    roles = [Role(TensorKind.WEIGHT, f"w{at}") for at in range(4)]
    captured = prepared.captured("two", [*roles[:2], Role(), *roles[2:]])
    assert captured.forward_ops is None
    kinds = [given.kind for given in captured.given]
    assert kinds.count(TensorKind.WEIGHT) == 4 and kinds.count(TensorKind.INPUT) == 1


def test_the_forward_half_of_a_training_step_comes_first() -> None:
    prepared = prepared_graph(Two(), torch.randn(4, 8), training=True)
    nodes = [node.name for node in prepared.graph.nodes if node.op == "call_function"]
    late = [name in prepared.backward for name in nodes]
    assert late == sorted(late) and any(late) and not all(late)
    assert prepared.forward_outputs == 1 and len(prepared.tangents) == 1
    captured = prepared.captured("two", [Role()] * len(prepared.primals))
    assert captured.forward_ops is not None and 0 < captured.forward_ops < captured.program.n_ops
    assert [result.late for result in captured.results] == [False] + [True] * (len(prepared.leaves) - 1)
    assert [given.late for given in captured.given] == [False] * len(prepared.primals) + [True]


def test_what_the_caller_has_on_the_device_is_no_part_of_a_plan() -> None:
    prepared = prepared_graph(Two(), torch.randn(4, 8))
    plain = prepared.captured("two", [Role(TensorKind.WEIGHT, "w")] * 5)
    held = prepared.captured("two", [Role(TensorKind.WEIGHT, "w", held=True)] * 5, sinks=[0])
    assert held.results[0].sink and not plain.results[0].sink
    assert sum(held.program.storage_bytes) < sum(plain.program.storage_bytes)


def test_calls_that_give_their_argument_back_are_taken_out() -> None:
    def call(x: Any) -> Any:
        return (x.type_as(x).to(x.dtype) + 1).expand(4, 8) * 2

    assert targets(prepared_graph(call, torch.randn(4, 8))) == ["add_mul"]


def test_a_call_that_writes_over_its_argument_is_never_taken_out() -> None:
    """It gives its argument back as well; a version of PyTorch may have one that is not known here."""
    traced = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.relu_.default(x), x + 1)[1:])
    with torch._subclasses.FakeTensorMode() as fake:
        value = fake.from_tensor(torch.ones(4))
        for node in traced.graph.nodes:
            node.target = torch.ops.aten.add.Tensor if op_name(node.target) == "add" else node.target
            node.meta["val"] = value if node.op != "output" else None
    with pytest.raises(BadProgram, match=r"'it' has 'aten.relu_.default', which writes over its argument"):
        prepare(traced, None, 1, "it")


def test_tensors_beside_the_graph_become_constants() -> None:
    def call(x: Any) -> Any:
        return x + torch.tensor([1.0, 2.0, 3.0])

    prepared = prepared_graph(call, torch.zeros(3))
    assert list(prepared.constants) == ["constant_0"]
    assert torch.equal(prepared.constants["constant_0"], torch.tensor([1.0, 2.0, 3.0]))


def updates(call: Callable[..., Any], *args: Any) -> tuple[Prepared, list[bool]]:
    prepared = prepared_graph(call, *args)
    return prepared, [at in prepared.updated_in_place for at in prepared.updates]


def test_an_input_that_nobody_reads_after_its_update_is_updated_in_place() -> None:
    def call(cache: Any, x: Any, at: Any) -> Any:
        cache.index_copy_(0, at, x + 1)
        return cache.sum(0)

    prepared, found = updates(call, torch.zeros(8, 4), torch.ones(1, 4), torch.tensor([3]))
    assert len(prepared.updates) == 1 and found == [True]
    assert len(prepared.leaves) == 2, "the result, and the new value"
    assert "copy_" not in targets(prepared)


def written_over(call: Callable[..., Any]) -> list[bool]:
    """For a graph that writes over its first input at its end, as AOTAutograd's do."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(call, tracing_mode="fake")(torch.zeros(8, 4), torch.ones(8, 4))
    prepared = prepare(graph, None, 2, "it")
    return [at in prepared.updated_in_place for at in prepared.updates]


def test_an_input_whose_old_value_is_read_later_is_not_updated_in_place() -> None:
    def late(cache: Any, x: Any) -> Any:
        before, new = cache.view(-1), cache + x
        after = before * 2  # through a view
        cache.copy_(new)
        return [after]

    def early(cache: Any, x: Any) -> Any:
        after = cache.view(-1) * 2
        cache.copy_(cache + x)
        return [after]

    assert written_over(late) == [False] and written_over(early) == [True]


def test_an_input_that_becomes_another_one_is_not_updated_in_place() -> None:
    def call(cache: Any, x: Any) -> Any:
        after = x * 2
        cache.copy_(x)
        return [after]

    assert written_over(call) == [False], "its new value is made by no op"


def test_batch_norms_buffers_are_results_of_the_forward_call() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train()
    prepared = prepared_graph(module, torch.randn(4, 8), training=True)
    assert len(prepared.updates) == 3, "mean, variance, number of batches"
    assert prepared.forward_outputs == 1 + 3


def test_what_is_done_to_elements_right_after_they_are_made_takes_no_place() -> None:
    w = torch.randn(8, 8)

    def call(x: Any) -> Any:
        wide = nn.functional.gelu(x @ w)
        return (wide @ w + x) * 2

    prepared = prepared_graph(call, torch.randn(2, 4, 8))
    ops = [name for name in targets(prepared) if name not in ("view", "_unsafe_view")]
    assert ops == ["mm_gelu", "mm_add_mul"]
    captured = prepared.captured("it", [Role()] * len(prepared.primals))
    made = [each for each in captured.program.tensor_name if each.startswith("mm")]
    assert len(made) == 2, "one place for each product"


@pytest.mark.parametrize(
    ("call", "ops"),
    [
        (lambda x: (y := x * 2, y.relu()), ["mul", "relu"]),  # both are results
        (lambda x: (y := x * 2).relu() + y, ["mul", "relu", "add"]),  # it is needed once more
        (lambda x: (x * 2).to(torch.float64).exp() + 1, ["mul", "_to_copy", "exp", "add"]),
        (lambda x: (x * 2) > 0, ["mul", "gt"]),  # of another type
        (lambda x: 1 / (x * 2)[:, :1], ["mul", "slice", "reciprocal", "mul"]),  # a part of it
        (lambda x: (x * 2) * x[:, :1], ["slice", "mul_mul"]),
        (lambda x: x[:, :1] - (x * 2), ["slice", "mul", "sub"]),  # it comes second
        (
            lambda x: x[:1] * x[:, :1] * torch.ones(3, 1, 1),
            ["slice", "slice", "mul", "ones", "mul"],
        ),  # it grows
    ],
)
def test_what_is_looked_at_or_lies_otherwise_keeps_its_place(call: Any, ops: list[str]) -> None:
    assert sorted(targets(prepared_graph(call, torch.randn(4, 8)))) == sorted(ops)


def test_copies_that_nobody_can_tell_are_taken_out() -> None:
    def call(x: Any) -> Any:
        y = x * 2
        return y.clone() @ x.clone(), y.clone(), y.t().clone(memory_format=torch.contiguous_format) + 1

    ops = targets(prepared_graph(call, torch.randn(8, 8)))
    assert ops.count("clone") == 3, "of what is given, of what is returned, of what lies otherwise"


def test_what_is_written_in_part_is_not_copied_before() -> None:
    """A copy into a strided part has holes, which kernels fill otherwise than the tracer says."""

    def written(x: Any) -> Any:
        y = torch.zeros_like(x)
        y[:, :4] = x[:, :4] * 2
        z = torch.empty_like(x).copy_(x * 3)
        return y.t() + z, z[:2] - 1

    def looked_at(x: Any) -> Any:
        y = torch.zeros(8, 8)[:, :4].copy_(x[:, :4] * 2)
        return y.t().reshape(-1) + 1

    def made_of_nothing(x: Any) -> Any:
        return torch.empty(8, 8).copy_(x * 3)[:2] - 1, torch.rand(8, 8).copy_(x * 5) + 1

    prepared = prepared_graph(written, x := torch.randn(8, 8))
    ops = targets(prepared)
    assert "copy" not in ops and "empty_like" not in ops and "slice_scatter" in ops
    prepared_too = prepared_graph(made_of_nothing, x)
    ops = targets(prepared_too)
    assert "copy" not in ops and "empty" not in ops and "rand" in ops, "what draws numbers draws them"
    assert all(map(torch.equal, interpreted(prepared_too, x), made_of_nothing(x)))
    assert all(map(torch.equal, interpreted(prepared, x), written(x)))
    assert torch.equal(interpreted(prepared_graph(looked_at, x), x)[0], looked_at(x))


def interpreted(prepared: Prepared, *args: Any) -> Any:
    return torch.fx.Interpreter(torch.fx.GraphModule({}, prepared.graph)).run(*args)


class Normed(nn.Module):
    """A block as convolutional nets have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 2, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.norm(self.conv(x))))


@torch.no_grad()
@pytest.mark.parametrize(
    ("large", "ops"), [(True, ["convolution_batch_norm_relu"]), (False, ["convolution"])]
)
def test_a_large_batch_norm_takes_no_place_of_its_own(
    large: bool, ops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = Normed().eval(), torch.randn(7, 3, 8, 8)
    module.norm.running_mean.uniform_(-1, 1)
    module.norm.running_var.uniform_(0.5, 2)
    expected = module(x)
    monkeypatch.setattr(joined, "NORM_BYTES", 2 * 5 * 36 * 4)  # two images at a time: the last is alone
    if large:
        monkeypatch.setattr(joined, "SLICE_BYTES", expected.nbytes)
    model = loadmaster.fit(module, (x,), memory="100%", device="cpu", measure=False, search=0.1, quiet=True)
    graph = model.fitted.session.graphs[0].prepared
    assert targets(graph)[: len(ops)] == ops
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


class Residual(nn.Module):
    """What is added has a row for every image, what is multiplied has not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 3, 3, padding=1), nn.Parameter(torch.rand(3, 1, 1))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.conv(x) * self.scale + x)


@torch.no_grad()
@pytest.mark.parametrize("last", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_that_is_made_some_images_at_a_time_is_the_same(
    last: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = Residual().to(memory_format=last), torch.randn(7, 3, 8, 8).to(memory_format=last)
    prepared = prepared_graph(module, x)
    assert targets(prepared) == ["convolution_mul_add_relu"]
    names = [node.name for node in prepared.graph.nodes]
    assert not joined.slice_convolutions(prepared.graph, names), "it is small"
    monkeypatch.setattr(joined, "SLICE_BYTES", 2 * 3 * 3 * 64 * 4)  # three images: the last is alone
    assert not joined.slice_convolutions(prepared.graph, []), "nobody asked for it"
    assert joined.slice_convolutions(prepared.graph, names)
    assert targets(prepared) == ["sliced_convolution_mul_add_relu"]
    found = run(prepared, x, module)
    torch.testing.assert_close(found, module(x))  # kernels for one image may round otherwise
    assert found.stride() == module(x).stride()
    assert not joined.slice_convolutions(prepared.graph, [node.name for node in prepared.graph.nodes])


@torch.no_grad()
def test_convolutions_are_sliced_where_they_alone_need_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that takes as much again as it writes: whole it does not fit, some images at a time it does."""
    module, x = Normed().eval(), torch.randn(16, 3, 32, 32)
    expected, real = module(x), graphs.kernel_room

    def room(ops: int, costs: Any, device: str) -> Any:
        graph = fitted[0].prepared.graph
        calls = [node for node in graph.nodes if node.op == "call_function"]
        sizes = [0 if "sliced" in op_name(node.target) else 4 * node.meta["val"].nbytes for node in calls]
        workspace = np.array(sizes[:ops] + [0] * (ops - len(sizes)), dtype=np.int64)
        return replace(real(ops, costs, device), kernels=Kernels(workspace))

    fitted: list[Any] = []
    make = graphs.PlannedGraph.__init__

    def noted(self: Any, *args: Any) -> None:
        fitted[:] = [self]
        make(self, *args)

    monkeypatch.setattr(graphs.PlannedGraph, "__init__", noted)
    monkeypatch.setattr(graphs, "kernel_room", room)
    monkeypatch.setattr(joined, "SLICE_BYTES", 2**16)
    options: dict[str, Any] = {"device": "cpu", "measure": False, "search": 0.1}
    model = loadmaster.fit(module, (x,), memory="1MiB", quiet=True, **options)
    assert "sliced" in targets(fitted[0].prepared)[0]
    torch.testing.assert_close(model(x), expected)


class Dropped(nn.Module):
    """As the layers of many encoders: what is dropped between two products is nothing in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 6)

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.dropout(nn.functional.gelu(self.first(x)), 0.1, training=False).clone()
        left, right = self.second(hidden).clone().split(3, dim=-1)
        return left.transpose(0, 1) * right.transpose(0, 1)


@torch.no_grad()
def test_views_of_a_copy_that_is_taken_out_are_views_all_the_same() -> None:
    module, x = Dropped(), torch.randn(2, 4, 8)
    prepared = prepared_graph(module, x)
    captured = prepared.captured("dropped", [Role()] * len(prepared.primals))
    program = captured.program
    ops = [captured.op_node[op] for op in range(program.n_ops) if not program.op_view[op]]
    assert ops == ["addmm_gelu", "addmm_1", "mul"]
    torch.testing.assert_close(run(prepared, x, module), module(x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_cross_entropys_gradient_is_one_op(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "SLICE_BYTES", 1)

    def call(x: Any, t: Any) -> Any:
        return torch.nn.functional.cross_entropy(x, t, reduction=reduction)

    logits, target = torch.randn(6, 11, requires_grad=True), torch.tensor([3, 0, -100, 10, 5, 5])
    prepared = prepared_graph(call, logits, target, training=True)
    names = targets(prepared)
    assert "cross_entropy_backward" in names and "nll_loss_backward" not in names
    last = next(node for node in prepared.graph.nodes if op_name(node.target) == "cross_entropy_backward")
    assert last.name in prepared.backward
    tangent = torch.rand(6) if reduction == "none" else torch.tensor(1.7)
    (expected,) = torch.autograd.grad(call(logits, target), logits, tangent)
    log_probs = logits.detach().log_softmax(1)
    weight = torch.tensor(5.0)  # as many rows are not ignored
    found = last.target(tangent, log_probs, target, weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_a_weighted_cross_entropy_keeps_its_two_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Any, t: Any, w: Any) -> Any:
        return torch.nn.functional.cross_entropy(x, t, w)

    monkeypatch.setattr(joined, "SLICE_BYTES", 1)
    given = torch.randn(6, 11, requires_grad=True), torch.arange(6), torch.rand(11)
    assert "nll_loss_backward" in targets(prepared_graph(call, *given, training=True))


class Mlp(nn.Module):
    """Rows that get wider and narrow again, with what transformers and ConvNeXt do in between and after."""

    def __init__(self, *, moved: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8, bias=False)
        self.scale, self.moved = nn.Parameter(torch.randn(8)), moved

    def forward(self, x: Any) -> Any:
        rows = x.permute(0, 2, 3, 1) if self.moved else x
        found = self.scale * self.down(nn.functional.gelu(self.up(rows)))
        return x + (found.permute(0, 3, 1, 2) if self.moved else found)


@pytest.mark.parametrize("moved", [False, True])
def test_two_products_run_a_slice_of_rows_at_a_time(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "SLICE_BYTES", 1024)  # 8 rows of 32 numbers
    module = Mlp(moved=moved).eval()
    given = (
        torch.randn(2, 8, 3, 5).contiguous(memory_format=torch.channels_last)
        if moved
        else torch.randn(3, 7, 8)
    )
    prepared = prepared_graph(module, given)
    (name,) = [name for name in targets(prepared) if "addmm" in name]
    assert name == "addmm_gelu_mm_mul_add"
    with torch.no_grad():
        torch.testing.assert_close(run(prepared, given, module), module(given))
    captured = prepared.captured("mlp", [Role()] * len(prepared.primals))
    rows = given.numel() // 8
    assert int(captured.program.op_flops[:, 0].max()) == 2 * rows * 32 * 16
    assert 4 * rows * 32 not in captured.program.storage_bytes.tolist()  # what is between has no place


def test_products_stay_apart_where_others_read_what_is_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "SLICE_BYTES", 64)
    up, down = nn.Linear(8, 32), nn.Linear(32, 8)

    def both(x: Any) -> Any:
        between = up(x)
        return down(between), between

    def narrow(x: Any) -> Any:
        return up(down(x))

    assert len(targets(prepared_graph(both, torch.randn(9, 8)))) > 1
    torch._dynamo.reset()
    assert targets(prepared_graph(narrow, torch.randn(9, 32))).count("addmm") == 2
    monkeypatch.setattr(joined, "SLICE_BYTES", 2**20)
    torch._dynamo.reset()
    assert "addmm_addmm" not in targets(prepared_graph(lambda x: down(up(x)), torch.randn(9, 8)))
