"""Recurrent layers as one op each: the same numbers as PyTorch's own, in every road, and the graph breaks where it did."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import QUICK, session_of  # noqa: E402
from loadmaster.program.importers.torch.captured import capture  # noqa: E402
from loadmaster.program.importers.torch.graph import op_name  # noqa: E402
from loadmaster.program.importers.torch.recurrent import recurrent_ops  # noqa: E402

LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
OPTIONS = [
    dict(zip(("num_layers", "bidirectional", "batch_first", "bias"), each, strict=True))
    for each in itertools.product((1, 2), (False, True), (False, True), (False, True))
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def step(layer: Any, *given: Any) -> list[Any]:
    """All results and all gradients, with the same random numbers each time."""
    torch.manual_seed(1)
    layer.zero_grad()
    data = given[0].clone().requires_grad_()
    output, last = layer(data, *given[1:])
    results = [output, *(last if isinstance(last, tuple) else [last])]
    sum(each.square().sum() for each in results).backward()
    return [
        *(each.detach() for each in results),
        data.grad,
        *(each.grad.clone() for each in layer.parameters()),
    ]


def check_alike(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("kind", LAYERS)
def test_results_and_gradients_are_those_of_pytorch(kind: str) -> None:
    for options in OPTIONS:
        layer = LAYERS[kind](5, 7, dropout=0.5 * (options["num_layers"] > 1), **options)
        expected = step(layer, data := torch.randn(3, 4, 5))
        with recurrent_ops():
            check_alike(step(layer, data), expected)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
def test_projections_other_activations_and_a_state_that_is_given() -> None:
    data, state = torch.randn(3, 4, 5), torch.randn(1, 4, 7)
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (nn.LSTM(5, 7, proj_size=2), (data,)),
        (nn.RNN(5, 7, nonlinearity="relu"), (data, state)),
        (nn.LSTM(5, 7), (data, (state, state))),  # the same twice
        (nn.GRU(5, 7), (data[:1], state)),  # one step: the last state is the output
    ]
    for layer, given in cases:
        expected = step(layer, *given)
        with recurrent_ops():
            check_alike(step(layer, *given), expected)


def test_pytorchs_own_functions_are_there_again() -> None:
    before = torch._VF.lstm
    with pytest.raises(RuntimeError, match="stop"), recurrent_ops():
        assert torch._VF.lstm is not before
        raise RuntimeError("stop")
    assert torch._VF.lstm is before


class Tagger(nn.Module):
    """Words as most people tag them; lengths make packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 32)
        self.cells = nn.LSTM(32, 32, 2, batch_first=True, bidirectional=True, dropout=0.5)
        self.hidden, self.tags = nn.Linear(64, 96), nn.Linear(96, 9)

    def forward(self, words: Any, lengths: Any = None) -> Any:
        found = self.words(words)
        if lengths is None:
            found, _ = self.cells(found)
        else:
            packed = pack_padded_sequence(found, lengths, batch_first=True, enforce_sorted=False)
            found, _ = pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.tags(torch.relu(self.hidden(found)))


def trained(model: Any, *given: Any) -> list[Any]:
    """A step's result and gradients."""
    torch.manual_seed(1)
    model.zero_grad()
    found = model(*given)
    found.square().mean().backward()
    return [found.detach(), *(each.grad.clone() for each in model.parameters())]


def fitted_twin(model: Any, *given: Any, memory: str) -> tuple[Any, Any]:
    ordinary = copy.deepcopy(model)
    loadmaster.fit(model, given, memory=memory, **QUICK)
    return model, ordinary


def test_a_fitted_tagger_trains_as_one_graph() -> None:
    words = torch.randint(40, (4, 6))
    model, ordinary = fitted_twin(Tagger(), words, memory="80%")
    check_alike(trained(model, words), trained(ordinary, words))
    (graph,) = session_of(model).graphs
    names = [op_name(node.target) for node in graph.prepared.graph.nodes if node.op == "call_function"]
    assert names.count("lstm") == names.count("lstm_backward") == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_packed_sequences_run_between_two_graphs() -> None:
    given = torch.randint(40, (4, 6)), torch.tensor([6, 1, 4, 3])
    model, ordinary = fitted_twin(Tagger(), *given, memory="80%")
    check_alike(trained(model, *given), trained(ordinary, *given))
    assert len(session_of(model).graphs) == 2


def test_autocast_inside_a_model_is_that_of_the_layers() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cells, self.head = nn.Linear(8, 64), nn.GRU(64, 64), nn.Linear(64, 4)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.head(self.cells(self.first(x))[0])

    x = torch.randn(5, 3, 8)
    model, ordinary = fitted_twin(Cast().eval(), x, memory="1MiB")
    with torch.no_grad():
        found, expected = model(x), ordinary(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_a_batch_in_parts_keeps_its_samples() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(8, 64, batch_first=True)
            self.hidden, self.head = nn.Linear(64, 512), nn.Linear(512, 1)

        def forward(self, x: Any) -> Any:
            return self.head(torch.relu(self.hidden(self.cells(x)[0])))[:, -1]

    x = torch.randn(64, 10, 8)
    with torch.no_grad():
        model, ordinary = fitted_twin(Wide().eval(), x, memory="700KiB")
        torch.testing.assert_close(model(x), ordinary(x), rtol=1e-5, atol=1e-6)
    (graph,) = model.fitted.report["graphs"]
    assert graph["parts"] > 1


@pytest.mark.parametrize("training", [False, True])
def test_a_captured_layer_costs_what_its_products_do(training: bool) -> None:
    class Sums(nn.LSTM):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[0].sum()

    captured = capture(Sums(16, 32), (torch.randn(10, 4, 16),), name="sums", training=training)
    program = captured.program
    matrix = {kind: int(flops[0]) for kind, flops in zip(program.op_kind, program.op_flops, strict=True)}
    products = 2 * 10 * 4 * (4 * 32 * 16 + 4 * 32 * 32)
    assert matrix["lstm"] == products
    assert not training or matrix["lstm_backward"] == 3 * products
