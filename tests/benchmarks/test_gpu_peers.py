"""Peers on a CPU: the same outputs and gradients as the ordinary run, whatever is streamed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.suites.gpu_peers import (  # noqa: E402  # noqa: E402
    INFERENCE,
    LEADING_SHARES,
    TRAINING,
    Setting,
    Streamed,
    blocks,
    bytes_of,
    leading,
    measure_peer,
    owned,
    place,
)


class Model(torch.nn.Module):  # type: ignore[misc]
    """An embedding, three blocks with a sequence inside, a tied head, a parameter of its own."""

    def __init__(self, loss: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.shift = torch.nn.Parameter(torch.zeros(8))
        self.register_buffer("scale", torch.ones(8), persistent=False)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU())
            for _ in range(3)
        )
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.loss = loss

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens) * self.scale + self.shift
        for layer in self.layers:
            x = x + layer(x)
        logits = self.head(x)
        return (
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) if self.loss else logits
        )


def setting(training: bool, **more: Any) -> tuple[Any, Setting]:
    torch.manual_seed(0)
    module = Model(training)
    values = {name: tensor.detach().clone() for name, _, _, tensor in owned(module)}

    def build() -> Any:
        with torch.device("meta"):
            return Model(training)

    tokens = torch.arange(10).reshape(2, 5)
    return module, Setting(build, values, (tokens,), torch.device("cpu"), training, **more)


def test_blocks_are_layers_and_what_stands_alone() -> None:
    module = Model()
    found = blocks(module)
    assert found[0] is module.embed and found[-1] is module.head
    assert found[1:-1] == list(module.layers)
    experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))
    outer = torch.nn.Sequential(torch.nn.ModuleDict({"gate": torch.nn.Linear(2, 2), "experts": experts}))
    assert blocks(outer)[1:] == list(experts)  # a block with a list inside is taken apart


def test_placed_values_keep_ties_and_buffers() -> None:
    module, given = setting(False)
    copy = given.build()
    place(copy, given.values)
    assert copy.head.weight is copy.embed.weight and copy.scale.tolist() == [1.0] * 8
    assert torch.equal(copy(given.inputs[0]), module(given.inputs[0]))


def test_as_many_leading_blocks_as_fit() -> None:
    assert leading([5, 5, 1], 10) == 2 and leading([5, 6, 1], 10) == 1 and leading([], 3) == 0


@pytest.mark.parametrize("name", [name for name in INFERENCE if name != "accelerate"])
@pytest.mark.parametrize("capacity", [None, 1300])
def test_streamed_weights_give_the_same_outputs(name: str, capacity: int | None) -> None:
    module, given = setting(False, capacity=capacity)
    if capacity is not None:
        assert bytes_of(module) > capacity
    found = measure_peer(name, given, repeats=3, keep_result=True)
    assert found.status == "ok" and found.seconds > 0 and found.repeats == 3
    with torch.no_grad():
        assert torch.equal(found.result, module(given.inputs[0]))


def test_a_budget_below_the_activations_is_refused() -> None:
    _, given = setting(False, capacity=1300, activation_bytes=900)
    found = measure_peer("prefetch-hooks", given, repeats=3)
    assert found.status == "refused" and "more than 1.27 KiB" in found.note


@pytest.mark.parametrize(
    ("name", "most", "share"),
    [
        ("layerwise-hooks", 3, 1.0),
        ("layerwise-hooks", 2, 0.8),
        ("prefetch-hooks", 1, 0.7),
        ("prefetch-hooks", 0, None),
    ],
)
def test_short_of_memory_fewer_blocks_stay(
    name: str, most: int, share: float | None, monkeypatch: Any
) -> None:
    """A device that holds only so many of the blocks, though the budget seems to allow three, or two."""
    module, given = setting(False, capacity=1700)
    stayed: list[int] = []

    class Short(Streamed):
        def __init__(self, parts: Any, *args: Any, **more: Any) -> None:
            super().__init__(parts, *args, **more)
            stayed.append(len(blocks(module)) - len(parts))
            if stayed[-1] > most:
                raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("benchmarks.suites.gpu_peers.Streamed", Short)
    found = measure_peer(name, given, repeats=3, keep_result=True)
    assert stayed == sorted(stayed, reverse=True)
    told = f"leading blocks in {share or 0.6:.0%} of the room that there seemed to be"
    if share is None:
        assert found.status == "out of memory" and len(stayed) == len(LEADING_SHARES)
        assert found.note == f"of 1.66 KiB; {told}"
        return
    assert found.status == "ok" and stayed[-1] == most and LEADING_SHARES[len(stayed) - 1] == share
    assert found.note == ("" if share == 1 else told)
    with torch.no_grad():
        assert torch.equal(found.result, module(given.inputs[0]))


@pytest.mark.parametrize("name", [name for name in TRAINING if name != "saved-on-stream"])
def test_training_peers_give_the_same_gradients(name: str) -> None:
    module, given = setting(True)
    found = measure_peer(name, given, repeats=3, keep_result=True)
    assert found.status == "ok", found.note
    loss = module(given.inputs[0])
    loss.backward()
    assert torch.equal(found.result[0], loss.detach())
    wanted = {name: p.grad for name, p in module.named_parameters()}
    got = {key.replace("_checkpoint_wrapped_module.", ""): value for key, value in found.result[1].items()}
    assert set(got) == set(wanted)
    for key, value in wanted.items():
        assert torch.allclose(got[key], value, atol=1e-6), key


def test_a_peer_whose_package_is_missing_says_so() -> None:
    try:
        import accelerate  # noqa: F401
    except ImportError:
        _, given = setting(False)
        assert measure_peer("accelerate", given).status == "not here"
