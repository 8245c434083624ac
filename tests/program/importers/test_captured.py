"""Graphs that can be run, and Programs that describe them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from benchmarks.suites.gpu_models import GPU_MODELS  # noqa: E402
from loadmaster.errors import BadProgram  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402
from loadmaster.program.program import TensorKind  # noqa: E402


def values_of(captured: Captured, module: Any, args: Any) -> list[Any]:
    """What goes into the graph's placeholders."""
    named = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
        **captured.constants,
    }
    inputs = iter(captured.inputs(args))
    values = [named[g.source].detach().clone() if g.source else next(inputs) for g in captured.given]
    return [
        v if g.rows is None else v[slice(*g.rows)].clone()
        for g, v in zip(captured.given, values, strict=True)
    ]


class Watch(torch.fx.Interpreter):  # type: ignore[name-defined, misc]
    """Runs a graph and keeps every node's tensors."""

    def run_node(self, node: Any) -> Any:
        self.seen = getattr(self, "seen", {})
        self.seen[node.name] = super().run_node(node)
        return self.seen[node.name]


def run(captured: Captured, module: Any, args: Any) -> tuple[list[Any], dict[str, Any]]:
    graph = captured.on("cpu").graph
    watch = Watch(torch.fx.GraphModule(nn.Module(), graph))
    with torch.no_grad():
        results = watch.run(*values_of(captured, module, args))
    return list(results), watch.seen


def check_rows(captured: Captured, seen: dict[str, Any]) -> None:
    """Every op has a node, every tensor its bytes, and what shares storage is what aliases."""
    program = captured.program
    assert len(captured.op_node) == program.n_ops
    assert program.tie_kind.tolist() == []
    calls = [n.name for n in captured.graph.nodes if n.op == "call_function" and hasattr(n.target, "_schema")]
    assert list(captured.op_node) == calls
    placed: dict[int, Any] = {}
    for (name, part), row in captured.tensor_at.items():
        if row >= 0:
            value = seen[name]
            tensors = (
                [t for t in value if isinstance(t, torch.Tensor)]
                if isinstance(value, list | tuple)
                else [value]
            )
            tensor = tensors[part]
            assert program.shape(row) == tuple(tensor.shape)
            placed[row] = tensor
    assert sorted(placed) == list(range(program.n_tensors))
    root_of: dict[int, int] = {}
    for row, tensor in sorted(placed.items()):
        storage = tensor.untyped_storage()
        root = int(program.tensor_alias[row])
        if storage.nbytes():
            assert root_of.setdefault(storage._cdata, root) == root, program.tensor_name[row]
            if root == row:
                assert program.tensor_bytes[row] == storage.nbytes(), program.tensor_name[row]
    nodes = {n.name: n for n in captured.graph.nodes}
    rows: dict[str, set[int]] = {}
    for (name, _), row in captured.tensor_at.items():
        rows.setdefault(name, set()).add(row)
    for op, name in enumerate(captured.op_node):  # what a call is given is what the op reads
        given = set().union(*(rows[source.name] for source in nodes[name].all_input_nodes))
        assert set(program.reads(op).tolist()) == given


def reference(module: Any, args: Any, training: bool) -> tuple[Any, Any]:
    """The ordinary run of a copy: its output and the copy, with gradients and new buffers."""
    twin = copy.deepcopy(module)
    if training:
        output = twin(*args)
        (output if isinstance(output, torch.Tensor) else output[0]).backward()
        return output, twin
    with torch.no_grad():
        return twin(*args), twin


def expected_leaf(result: Any, output: Any, twin: Any) -> Any:
    if result.what in ("output", "loss"):
        return output
    named = dict(twin.named_parameters() if result.what == "gradient" else twin.named_buffers())
    value = named[result.name].grad if result.what == "gradient" else named[result.name]
    return value if result.rows is None else value[slice(*result.rows)]


@pytest.mark.parametrize("name", sorted(GPU_MODELS))
def test_models_of_the_gpu_suite(name: str) -> None:
    model = GPU_MODELS[name]
    torch.manual_seed(0)
    module, args = model.build("tiny")
    captured = capture(module, args, name=name, training=model.training)
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    output, twin = reference(module, args, model.training)
    for leaf, result in zip(results, captured.results, strict=True):
        torch.testing.assert_close(leaf, expected_leaf(result, output, twin))
    assert captured.program.warnings == ()
    assert bool(captured.program.op_backward.any()) == model.training
    if model.training:
        grads = {r.name for r in captured.results if r.what == "gradient"}
        assert grads == {n for n, p in module.named_parameters() if p.requires_grad}
    assert any("/" in scope for scope in captured.program.op_scope)


def test_a_model_without_data_gives_the_same_program() -> None:
    model = GPU_MODELS["llama"]
    module, args = model.build("tiny")
    with torch.device("meta"):
        on_meta, inputs = model.build("tiny")
    assert capture(module, args, name="a").program.hash == capture(on_meta, inputs, name="b").program.hash


class Odds(nn.Module):
    """Ops that may or may not be views, results that nobody reads, constants and state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.idle = nn.Parameter(torch.ones(7))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        self.count.add_(1)
        y = x.transpose(0, 1)
        copied = y.reshape(-1)  # strides demand a copy
        shaped = x.reshape(2, 6).contiguous()  # and here none
        best, _ = y.max(0)
        a, b = (x + 1).split(1, 0)[:2]
        wide = b.expand(5, 4).t().narrow(0, 1, 2)
        fixed = torch.tensor([1.0, 2.0, 3.0])
        like = torch.zeros_like(x) + self.table
        picked = like.unsqueeze(0).permute(2, 0, 1).select(0, 1).squeeze(0) * fixed
        return (
            {"out": copied.sum() + shaped.sum() * scale, "rest": [best, a.flatten(), wide.clone(), picked]},
            x,
            None,
        )


def test_views_copies_constants_and_state() -> None:
    module, args = Odds(), (torch.randn(3, 4),)
    captured = capture(module, args, {"scale": 2.0}, name="odds")
    assert captured.inputs(args, {"scale": 2.0})[0] is args[0]
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    kinds = {g.source or g.node: (g.kind, g.tensor) for g in captured.given}
    assert kinds["count"][0] == TensorKind.STATE
    assert kinds["idle"] == (TensorKind.WEIGHT, -1)
    assert len(captured.constants) == 1
    whats = [r.what for r in captured.results]
    assert whats.count("update") == 1 and captured.results[whats.index("update")].name == "count"
    handed = next(r for r in captured.results if r.node == "x")
    assert handed.tensor == -1
    twin = copy.deepcopy(module)
    answer, same, nothing = twin(*args, scale=2.0)
    expected = iter([answer["out"], *answer["rest"], same, nothing])
    for leaf, result in zip(results, captured.results, strict=True):
        value = twin.count if result.what == "update" else next(expected)
        assert (value is None and leaf is None) or torch.equal(leaf, value)


def test_calls_that_show_several_tensors_are_views_of_one_each() -> None:
    class Grid(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            rows, columns = torch.meshgrid(x, y, indexing="ij")
            one, other = torch.broadcast_tensors(x, columns.t())
            return rows * columns, one - other

    module, args = Grid(), (torch.rand(3), torch.rand(4))
    captured = capture(module, args, name="grid")
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    assert all(torch.equal(*pair) for pair in zip(results, module(*args), strict=True))


def test_names_of_nodes_stay_where_devices_change() -> None:
    module, args = GPU_MODELS["llama"].build("tiny")
    captured = capture(module, args, name="llama")
    moved = captured.on("meta")
    assert [n.name for n in moved.graph.nodes] == [n.name for n in captured.graph.nodes]
    devices = [str(n.kwargs["device"]) for n in moved.graph.nodes if n.kwargs.get("device")]
    assert devices and set(devices) == {"meta"}
    assert "meta" not in str([n.kwargs for n in captured.graph.nodes])


@pytest.mark.parametrize(("name", "limit"), [("llama", 9_000), ("gpt_train", 17_000)])
def test_large_weights_in_slices(name: str, limit: int) -> None:
    model = GPU_MODELS[name]
    torch.manual_seed(0)
    module, args = model.build("tiny")
    captured = capture(module, args, name=name, training=model.training, split_over=limit)
    program = captured.program
    sizes = {
        program.tensor_name[g.tensor]: int(program.tensor_bytes[g.tensor])
        for g in captured.given
        if g.tensor >= 0
    }
    linear = [size for given, size in sizes.items() if "[" in given]
    assert linear and max(linear) <= limit
    rows: dict[str, list[tuple[int, int]]] = {}
    for given in captured.given:
        if given.rows is not None:
            rows.setdefault(given.source, []).append(given.rows)
    weights = dict(module.named_parameters(remove_duplicate=False))
    for source, parts in rows.items():
        assert [low for low, _ in parts] == [0, *(high for _, high in parts[:-1])]
        assert parts[-1][1] == len(weights[source])
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    output, twin = reference(module, args, model.training)
    for leaf, result in zip(results, captured.results, strict=True):
        torch.testing.assert_close(leaf, expected_leaf(result, output, twin), rtol=1e-4, atol=1e-5)
    assert (
        program.op_flops[:, 0].sum()
        == capture(module, args, name=name, training=model.training).program.op_flops[:, 0].sum()
    )


def test_the_products_of_a_step_count_as_pytorch_counts_them() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, args = GPU_MODELS["resnet50_train"].build("tiny")
    with FlopCounterMode(display=False) as counter:
        module(*args).backward()
    program = capture(module, args, name="r", training=True).program
    assert int(program.op_flops[:, 0].sum()) == counter.get_total_flops()


def test_a_batch_in_slices_needs_less() -> None:
    module, args = GPU_MODELS["resnet50"].build("tiny")
    whole, sliced = (capture(module, args, name="r", batch_slices=n) for n in (1, 2))
    results, _ = run(sliced, module, args)
    with torch.no_grad():
        torch.testing.assert_close(results[0], module(*args))

    def largest(captured: Captured) -> int:
        program = captured.program
        return max(
            int(program.tensor_bytes[t])
            for t in range(program.n_tensors)
            if program.tensor_kind[t] == TensorKind.ACTIVATION and program.tensor_alias[t] == t
        )

    assert largest(sliced) * 2 == largest(whole)
    with pytest.raises(BadProgram, match="0 slices"):
        capture(module, args, name="r", batch_slices=0)


def test_what_cannot_be_captured_is_told() -> None:
    class Changes(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1)

    with pytest.raises(BadProgram, match="changes its input"):
        capture(Changes(), (torch.zeros(2),), name="changes")
    with pytest.raises(BadProgram, match=r"no gradients can be traced through 'many': .* to be a scalar"):
        capture(nn.Linear(2, 2), (torch.zeros(1, 2),), name="many", training=True)
    with pytest.raises(BadProgram, match="split over 0 bytes"):
        capture(nn.Linear(2, 2), (torch.zeros(1, 2),), name="u", split_over=0)


class Unused(nn.Module):
    """Parameters without a part in the loss, one of them under a second name of a used one."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.used = nn.Linear(2, 2), nn.Linear(2, 2)
        self.tied = self.used.weight

    def forward(self, x: Any) -> Any:
        return (self.used(x) * x).sum()


def test_a_parameter_without_a_part_in_the_loss_has_no_gradient() -> None:
    module, args = Unused(), (torch.randn(1, 2),)
    captured = capture(module, args, name="unused", training=True)
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    grads = [r.name for r in captured.results if r.what == "gradient"]
    assert sorted(grads) == ["tied", "used.bias"]  # the first name that the module has for it
    output, twin = reference(module, args, True)
    for leaf, result in zip(results, captured.results, strict=True):
        assert torch.equal(leaf, expected_leaf(result, output, twin))


class Same(nn.Module):
    """Two biases with one gradient, as an LSTM's, beside a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        return (x + (self.first + self.second)).square().sum()


class Keeps(nn.Module):
    """A mask that is made at the first call and kept for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(4, 4), None

    def forward(self, x: Any) -> Any:
        if self.mask is None:
            self.mask = x.new_ones(x.shape[-1])
        return (self.linear(x) * self.mask).square().sum()


class Weighted(nn.Module):
    """Its layer has a weight that is made of parameters, which is no leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        return self.linear(x).square().sum()


@pytest.mark.parametrize("make", [Same, Keeps])
def test_steps_of_modules_that_make_or_keep_more_than_parameters(make: Any) -> None:
    module, args = make(), (torch.randn(3, 4),)
    attributes = dict(vars(module))
    captured = capture(module, args, name="step", training=True)
    assert vars(module) == attributes
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    output, twin = reference(module, args, True)
    trained = [name for name, each in twin.named_parameters() if each.grad is not None]
    assert sorted(r.name for r in captured.results if r.what == "gradient") == sorted(trained)
    for leaf, result in zip(results, captured.results, strict=True):
        assert torch.equal(leaf, expected_leaf(result, output, twin))


def test_a_weight_that_is_made_of_parameters_is_traced() -> None:
    module, args = Weighted(), (torch.randn(3, 4),)
    captured = capture(module, args, name="weighted", training=True)
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    module(*args).backward()
    own = {name: each.grad for name, each in module.named_parameters()}
    found = {r.name: leaf for r, leaf in zip(captured.results, results, strict=True) if r.what == "gradient"}
    assert found.keys() == own.keys() == {"linear.bias", "linear.weight_g", "linear.weight_v"}
    assert all(torch.equal(found[name], own[name]) for name in own)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_norms_have_the_weights_type_under_autocast(training: bool) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.linear(self.norm(x)).float().sum()

    module, args = Cast(), (torch.randn(8, 16).bfloat16(),)
    captured = capture(module, args, name="cast", training=training)
    _, seen = run(captured, module, args)
    check_rows(captured, seen)  # every tensor has the bytes that its kernel makes


def test_an_error_of_the_exporter_is_ours_in_all_of_its_steps() -> None:
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    second.running_mean = first.running_mean  # written over twice, under two names
    with pytest.raises(BadProgram, match=r"torch.export can't read 'twice'"):
        capture(nn.Sequential(first, second), (torch.randn(3, 4),), name="twice")


class Remakes(nn.Module):
    """Constants of its own code, views of them, and calls that read a second tensor to no purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        grid = torch.arange(4.0).unsqueeze(0)
        y = (x * self.weight).type_as(x) + grid.expand_as(x) * torch.tensor(0.5)
        z = y.type_as(x).view_as(x).reshape_as(x)
        return (z * y).sum(), z


@pytest.mark.parametrize("training", [False, True])
def test_constants_and_calls_that_give_back_what_they_got(training: bool) -> None:
    module, args = Remakes(), (torch.randn(3, 4),)
    captured = capture(module, args, name="remakes", training=training)
    names = {str(node.target) for node in captured.graph.nodes}
    assert not any(name.startswith(("aten.type_as", "aten.expand_as")) for name in names)
    results, seen = run(captured, module, args)
    check_rows(captured, seen)
    (loss, z), twin = reference(module, args, training)
    expected = [loss, z, twin.weight.grad] if training else [loss, z]
    for leaf, value in zip(results, expected, strict=True):
        assert torch.equal(leaf, value)


def test_layers_of_a_training_step_keep_their_modes() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 2, 3))
    module.train()
    module[1].eval()  # as in fine-tuning: statistics are frozen, the rest is trained
    whole = nn.Sequential(module, Sum())
    args = (torch.randn(2, 3, 8, 8),)
    captured = capture(whole, args, name="frozen", training=True)
    assert not [r for r in captured.results if r.what == "update"]
    torch.manual_seed(3)
    results, _ = run(captured, whole, args)
    torch.manual_seed(3)
    output, twin = reference(whole, args, True)
    for leaf, result in zip(results, captured.results, strict=True):
        assert torch.equal(leaf, expected_leaf(result, output, twin))


class Sum(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.square().mean()
