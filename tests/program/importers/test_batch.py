"""Batches that are computed in parts: the same as the whole, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import QUICK, prepared_graph  # noqa: E402
from loadmaster.errors import BadMachine, BadProgram  # noqa: E402
from loadmaster.machine import load_machine  # noqa: E402
from loadmaster.offload.kind import kernel_room, make_offload  # noqa: E402
from loadmaster.program.importers.torch.compiled import Prepared, Role  # noqa: E402
from loadmaster.program.importers.torch.graph import op_name  # noqa: E402
from loadmaster.program.program import TensorKind  # noqa: E402
from loadmaster.program.repeats import repeat  # noqa: E402

BATCH, ROWS, WIDTH = 7, 5, 6


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def split(call: Callable[..., Any], *args: Any, parts: int, inputs: list[int] | None = None) -> Prepared:
    """The graph of a call in parts; `inputs`: numbers of arguments that are the caller's own, by default all."""
    prepared = prepared_graph(call, *args)
    assert len(prepared.primals) == len(args)
    return prepared.in_parts(prepared.batch(list(range(len(args))) if inputs is None else inputs), parts)


def run(prepared: Prepared, *args: Any) -> list[Any]:
    values = {**dict(zip(prepared.primals, args, strict=True)), **prepared.constants}
    names = [node.name for node in prepared.graph.nodes if node.op == "placeholder"]
    graph = torch.fx.GraphModule(nn.Module(), prepared.graph)
    with torch.no_grad():
        return list(torch.fx.Interpreter(graph).run(*(values[name] for name in names)))


def tokens(x: Any) -> Any:
    """[BATCH, ROWS, WIDTH] as whole numbers."""
    return (x.abs() * 3).long() % WIDTH


def masked(x: Any) -> Any:
    """As transformers makes masks: a sample's row by the sample's own number."""
    kept, rows = x[:, :, 0] > 0, torch.arange(x.shape[0])
    chosen = kept[rows[:, None, None, None], torch.arange(ROWS)[None, None, None, :]]
    return torch.where(chosen, x[:, None, :, :ROWS], 0.0)


def attention(x: Any) -> Any:
    heads = x.view(BATCH, ROWS, 2, 3).transpose(1, 2)
    return (
        F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        .transpose(1, 2)
        .reshape(BATCH, ROWS, WIDTH)
    )


APART: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: torch.tanh(x) * 2 + torch.arange(WIDTH),
    "shared operands with samples": lambda x: x + torch.arange(BATCH * ROWS).view(BATCH, ROWS, 1),
    "a product of rows": lambda x: x.reshape(BATCH * ROWS, WIDTH) @ torch.ones(WIDTH, 3),
    "columns": lambda x: torch.ones(2, WIDTH) @ x.reshape(-1, WIDTH).t(),
    "products of pairs": lambda x: x @ x.transpose(1, 2),
    "products with one matrix each": lambda x: torch.bmm(x, torch.ones(BATCH, WIDTH, 2)),
    "linear": lambda x: F.linear(x, torch.ones(4, WIDTH), torch.arange(4.0)),
    "softmax": lambda x: F.softmax(x, -1) + F.log_softmax(x, 1),
    "reduced": lambda x: x.mean(1) + x.amax(1) + x.var(1) + x.sum(1, keepdim=True)[:, 0],
    "reduced before the samples": lambda x: x.permute(1, 0, 2).sum(0),
    "the largest": lambda x: (
        x.max(-1).values + x.argmax(-1) + x.topk(2).values[..., 0] + x.sort(1).indices[..., 0]
    ),
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "group norm": lambda x: F.group_norm(x.transpose(1, 2), 3),
    "batch norm of inference": lambda x: F.batch_norm(
        x.transpose(1, 2), torch.zeros(WIDTH), torch.ones(WIDTH)
    ),
    "instance norm": lambda x: F.instance_norm(x, weight=torch.arange(1.0, ROWS + 1), bias=torch.ones(ROWS)),
    "instance norm by what was before": lambda x: F.instance_norm(
        x, torch.arange(ROWS * 1.0), torch.arange(1.0, ROWS + 1), use_input_stats=False
    ),
    "convolution": lambda x: F.conv1d(x, torch.ones(2, ROWS, 3), padding=1),
    "pools": lambda x: (
        F.max_pool2d(x[:, None], 2) + F.avg_pool2d(x[:, None], 2) + F.adaptive_avg_pool2d(x[:, None], 1)
    ),
    "pools of volumes": lambda x: (
        F.max_pool3d(x[:, None, None], 1) + F.adaptive_avg_pool3d(x[:, None, None], 1)
    ),
    "padded with what is there": lambda x: F.pad(x[:, None], (1, 2, 1, 1), mode="reflect"),
    "channels as pixels": lambda x: F.pixel_shuffle(x.reshape(BATCH, -1)[:, :4, None, None], 2),
    "upsampled": lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bilinear"),
    "padded": lambda x: F.pad(x, (1, 2, 3, 0)),
    "embedding": lambda x: F.embedding(tokens(x), torch.arange(WIDTH * 2.0).view(WIDTH, 2)),
    "indices": lambda x: (
        torch.arange(WIDTH * 2.0).view(WIDTH, 2)[tokens(x)] + x[:, :, torch.tensor([1, 0])][..., None, :]
    ),
    "gather": lambda x: x.gather(2, tokens(x)),
    "views": lambda x: (
        x.view(BATCH, ROWS, 2, 3).permute(2, 1, 0, 3).unsqueeze(0).squeeze(0).transpose(0, 2).flatten(2)
    ),
    "rows of all samples": lambda x: torch.tanh(
        x.transpose(0, 1).reshape(ROWS * BATCH, WIDTH) @ torch.ones(WIDTH, 4) + torch.arange(4.0)
    ).view(ROWS, BATCH, 4),
    "rows of all samples and heads": lambda x: F.softmax(
        x.transpose(0, 1).contiguous().view(ROWS, BATCH * 2, 3).transpose(0, 1).reshape(BATCH * 2, ROWS * 3),
        -1,
    ),
    "rolled": lambda x: x.roll((1, 2), (1, 2)),
    "parts of others": lambda x: torch.cat([*x.split(2, dim=1), x[:, 1:3], x[:, None, 0]], 1),
    "stacked": lambda x: torch.stack([x, torch.zeros(BATCH, ROWS, WIDTH)], 0) + torch.stack(x.unbind(1), 1),
    "expanded": lambda x: x[:, None].expand(-1, 4, -1, -1).reshape(BATCH * 4, ROWS, WIDTH),
    "constants like another": lambda x: x + x.new_zeros(ROWS, WIDTH) + x[:, 0].new_ones(BATCH, 1, WIDTH),
    "other strides": lambda x: x[:, :1, :1].contiguous().as_strided((BATCH, 1, 1), (1, 9, 8)) * 2,
    "repeated": lambda x: x.repeat(1, 2, 1),
    "triangle": lambda x: torch.tril(x),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(BATCH, ROWS, 3, 2)) * 1j),
    "sums so far": lambda x: x.cumsum(1),
    "attention": attention,
    "masks by number": masked,
    "what depends on no sample": lambda x: (x * torch.linspace(0, 1, WIDTH).softmax(0), torch.ones(BATCH)),
}


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("name", APART)
def test_parts_are_the_same_as_the_whole(name: str, parts: int) -> None:
    x = torch.randn(BATCH, ROWS, WIDTH)
    expected = APART[name](x)
    prepared = split(APART[name], x, parts=parts)
    found = run(prepared, x)
    for one, other in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(one, other)
        assert one.shape == other.shape and one.dtype == other.dtype


MIXED: dict[str, Callable[[Any], Any]] = {
    "a sum": lambda x: x.sum(0),
    "a sum of all": lambda x: x / x.sum(),
    "the norm of all": lambda x: x / torch.linalg.vector_norm(x),
    "softmax": lambda x: F.softmax(x, 0),
    "batch norm of training": lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
    "layer norm": lambda x: F.layer_norm(x, tuple(x.shape)),
    "products with others": lambda x: x[:, 0] @ x[:, 0].t(),
    "inner products": lambda x: x.reshape(BATCH * ROWS, WIDTH).t() @ x.reshape(BATCH * ROWS, WIDTH),
    "another order": lambda x: x.flip(0),
    "the next one": lambda x: x[1:] - x[:-1],
    "one of them": lambda x: x - x[0],
    "sorted": lambda x: x.sort(0).values,
    "sums so far": lambda x: x.cumsum(0),
    "rows that run over samples": lambda x: x.reshape(ROWS, BATCH, WIDTH).softmax(1),
    "rows of all samples in another order": lambda x: (
        x.transpose(0, 1).reshape(ROWS * BATCH, WIDTH) + torch.arange(ROWS * BATCH)[:, None]
    ).view(ROWS, BATCH, WIDTH),
    "rows of all samples as a result": lambda x: x.transpose(0, 1).reshape(ROWS * BATCH, WIDTH) * 2,
    "rolled": lambda x: x.roll(1, 0),
    "overlapping strides": lambda x: x.as_strided((BATCH, ROWS, WIDTH), (1, 1, 1)) * 2,
    "channels": lambda x: F.conv1d(x.transpose(0, 1), torch.ones(2, BATCH, 3)),
    "other indices": lambda x: x[torch.arange(BATCH - 1, -1, -1)],
    "scattered": lambda x: torch.zeros(WIDTH).index_add(0, tokens(x)[:, 0, 0], x[:, 0, 0]),
    "padded": lambda x: F.pad(x, (0, 0, 0, 0, 1, 1)),
    "random": lambda x: F.dropout(x, 0.5, training=True),
    "samples against samples": lambda x: x[:, None, :, 0] + x[None, :, :, 0],
    "attention over samples": lambda x: F.scaled_dot_product_attention(*[x.permute(1, 0, 2)[None]] * 3),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_refused(name: str) -> None:
    x = torch.randn(BATCH, ROWS, WIDTH)
    prepared = prepared_graph(MIXED[name], x)
    with pytest.raises(BadProgram, match="can't be computed in parts"):
        prepared.batch([0])


def test_inputs_without_the_batch_are_taken_whole() -> None:
    def call(x: Any, scale: Any) -> Any:
        return x * scale

    x, scale = torch.randn(6, 4), torch.randn(4)
    prepared = split(call, x, scale, parts=3)
    torch.testing.assert_close(run(prepared, x, scale)[0], x * scale, rtol=0, atol=0)
    with pytest.raises(BadProgram, match="no input has a batch"):
        prepared.batch([])


def test_inputs_that_are_changed_and_training_are_refused() -> None:
    def call(x: Any) -> Any:
        x.add_(1)
        return x * 2

    changed = prepared_graph(call, torch.randn(4, 3))
    trained = prepared_graph(lambda x: x.sin().sum(), torch.randn(4, 3, requires_grad=True), training=True)
    for prepared in (changed, trained):
        with pytest.raises(BadProgram, match="can't be computed in parts"):
            prepared.batch([0])


def test_a_result_that_is_larger_than_what_it_is_made_of_is_made_in_its_place() -> None:
    x, weight = torch.randn(6, 4), torch.randn(4, 50)
    prepared = split(lambda x, w: (torch.tanh(x) @ w).view(6, 5, 10), x, weight, parts=3, inputs=[0])
    calls = [op_name(node.target) for node in prepared.graph.nodes if node.op == "call_function"]
    assert calls.count("tanh") == 3 and calls[-2:] == ["sliced_mm", "view"] and "mm" not in calls
    torch.testing.assert_close(run(prepared, x, weight)[0], (torch.tanh(x) @ weight).view(6, 5, 10))


@torch.no_grad()
@pytest.mark.parametrize("first", [True, False])
def test_pytorchs_own_attention_in_parts(first: bool) -> None:
    module = nn.MultiheadAttention(
        8, 2, batch_first=first
    ).train()  # in evaluation it is one op that is not known
    given = torch.randn(6, 5, 8)

    def call(x: Any) -> Any:
        x = x if first else x.transpose(0, 1)
        found = module(x, x, x, need_weights=False)[0]
        return found if first else found.transpose(0, 1)

    prepared = prepared_graph(call, given)
    names = {
        node.name: tuple(node.meta["val"].shape) for node in prepared.graph.nodes if node.op == "placeholder"
    }
    known = {tuple(each.shape): each for each in (*module.parameters(), given)}
    inputs = [at for at, name in enumerate(prepared.primals) if len(names[name]) == 3]
    parts = prepared.in_parts(prepared.batch(inputs), 3)
    torch.testing.assert_close(run(parts, *(known[names[name]] for name in prepared.primals))[0], call(given))


class Encoder(nn.Module):
    """Attention over rows that each sample has for itself: activations, not weights, need the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            q, k, v = (
                each.view(*x.shape[:2], 4, 8).transpose(1, 2) for each in self.into(x).chunk(3, dim=-1)
            )
            found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = self.norm(x + self.out(found))
        return x.mean(1)


def least(prepared: Prepared) -> int:
    """Bytes without which no plan fits."""
    roles = [
        Role(TensorKind.WEIGHT, str(at)) if at < len(prepared.primals) - 1 else Role()
        for at in range(len(prepared.primals))
    ]
    program = prepared.captured("it", roles).program
    problem = make_offload(repeat(program, []), load_machine("h200"), kernel_room(program.n_ops, None, "cpu"))
    return problem.least


@torch.no_grad()
def test_the_least_memory_falls_with_the_parts() -> None:
    prepared = prepared_graph(Encoder().eval(), torch.randn(32, 16, 32))
    inputs = [
        at
        for at, name in enumerate(prepared.primals)
        for node in prepared.graph.nodes
        if node.name == name and node.meta["val"].ndim == 3
    ]
    batch = prepared.batch(inputs)
    sizes = [least(prepared), *(least(prepared.in_parts(batch, parts)) for parts in (2, 4, 8))]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes), sizes
    assert sizes[-1] < 0.4 * sizes[0], sizes


@torch.no_grad()
def test_a_model_that_fits_in_no_other_way_runs_in_parts() -> None:
    module, x = Encoder().eval(), torch.randn(32, 16, 32)
    expected = module(x)
    model = loadmaster.fit(module, (x,), memory="160KiB", **QUICK)
    graph = model.fitted.session.graphs[0]
    assert "slice" in [op_name(n.target) for n in graph.prepared.graph.nodes if n.op == "call_function"]
    for given in (x, x.flip(0)):
        torch.testing.assert_close(model(given), expected if given is x else expected.flip(0))


@torch.no_grad()
def test_what_fits_as_a_whole_stays_as_it_is() -> None:
    module, x = Encoder().eval(), torch.randn(32, 16, 32)
    expected = module(x)
    model = loadmaster.fit(module, (x,), memory="90%", **QUICK)
    names = [op_name(n.target) for n in model.fitted.session.graphs[0].prepared.graph.nodes]
    assert not any("cat" in name for name in names)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


@torch.no_grad()
def test_too_little_for_any_part_is_refused_with_the_least_that_would_do() -> None:
    module, x = Encoder().eval(), torch.randn(32, 16, 32)
    with pytest.raises(BadMachine, match="even with its batch in parts") as refused:
        loadmaster.fit(module, (x,), memory="16KiB", **QUICK)
    enough = refused.value.number
    assert isinstance(enough, int)
    model = loadmaster.fit(module, (x,), memory=2 * enough, **QUICK)
    torch.testing.assert_close(model(x), module.forward(x))
