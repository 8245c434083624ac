"""What an op's operands hold while it is measured: how they lie, and what kernels take, without a look at a clock."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.execute import op_values
from loadmaster.execute.op_samples import distinct_ops, sample_ops
from loadmaster.execute.op_values import Fill, Operand, make_tensor, operand_of
from loadmaster.program.importers.torch.captured import capture
from loadmaster.program.importers.torch.graph import op_name

torch = pytest.importorskip("torch")
nn = torch.nn
CPU = torch.device("cpu")


def random() -> Any:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"])
def test_tensors_lie_as_they_did(dtype: str) -> None:
    base = torch.empty(3, 40, 7, dtype=getattr(torch, dtype))
    for like in (
        base,
        base.transpose(0, 2),
        base[:, 3:, 1:],
        base[:1].expand(5, 40, 7),
        base[:0],
        base[0, 0, 0],
    ):
        operand = operand_of(like)
        made = make_tensor(operand, CPU, random())
        assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)
        assert operand_of(made) == operand
        assert made.untyped_storage().nbytes() == operand.bytes <= base.nbytes + 256
        if dtype == "int64":
            assert not made.any()
        if dtype == "bool":
            assert made.all()
        if dtype == "float32" and made.numel() > 100:
            assert made.std() > 0.01 and made.isfinite().all()


def test_large_tensors_repeat_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_values, "_PATTERN", 4)
    made = make_tensor(Operand(torch.float32, (10,), (1,), 256), CPU, random())
    assert torch.equal(made[:4], made[4:8]) and torch.equal(made[:2], made[8:])
    drawn = make_tensor(Operand(torch.int64, (10,), (1,), 256), CPU, random(), Fill("below", 5))
    assert drawn.max() < 5 and drawn.any()


class Calls(nn.Module):  # type: ignore[misc, name-defined]
    """A function as a module."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(*args)


def fills(call: Any, *args: Any) -> dict[str, list[tuple[str, int]]]:
    """How operands of the ops of a call are filled, by op."""
    captured = capture(Calls(call), args, name="call")
    found = {op_name(op.call.target): list(op.fills.values()) for op in distinct_ops(captured, CPU)}
    measured = sample_ops(captured, "cpu")
    assert not measured.notes and measured.measured == measured.distinct  # kernels take them
    return {name: list(map(tuple, each)) for name, each in found.items() if each}


def test_indexes_are_all_over_what_they_choose_from() -> None:
    x, words = torch.zeros(6, 5, 4), torch.zeros(3, 2, dtype=torch.int64)
    rows = torch.zeros(3, dtype=torch.int64)
    assert fills(lambda t, w: nn.functional.embedding(w, t), x[0], words) == {"embedding": [("below", 5)]}
    assert fills(lambda x, i: x[:, i], x, rows) == {"index": [("below", 5)]}
    assert fills(lambda x, i, j: x[i, j], x, rows, rows + 1) == {"index": [("below", 6), ("below", 5)]}
    assert fills(lambda x, i: x[i, :, i], x, rows) == {"index": [("below", 4)]}  # both axes have as many
    assert fills(lambda x, i: x.index_put((i,), x[:3] + 1), x, rows) == {"index_put": [("below", 6)]}
    assert fills(lambda x, w: x[0].gather(1, w), x, words) == {"gather": [("below", 4)]}
    assert fills(lambda x, i: x.index_select(1, i), x, rows) == {"index_select": [("below", 5)]}
    assert fills(lambda x, w: x[0].scatter_add(0, w, x[1]), x, words) == {"scatter_add": [("below", 5)]}


def test_the_gradient_of_a_table_is_added_to_all_of_its_rows() -> None:
    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 4)

        def forward(self, words: Any) -> Any:
            return self.table(words).square().sum()

    words = torch.zeros(3, 5, dtype=torch.int64)
    ops = distinct_ops(capture(Net(), (words,), name="net", training=True), CPU)
    found = {op_name(op.call.target): list(op.fills.values()) for op in ops if op.fills}
    assert found == {"embedding": [("below", 50)], "embedding_dense_backward": [("below", 50)]}


def test_masks_choose_what_they_chose() -> None:
    x, mask = torch.zeros(6, 5), torch.zeros(6, dtype=torch.bool)
    assert fills(lambda x, mask: x.index_put((mask,), torch.tensor(1.0)), x, mask) == {}


def test_every_expert_gets_as_many_rows() -> None:
    """All at 0, no expert would get any, and the products would take no time."""
    operand = Operand(torch.int32, (4,), (1,), 256)
    assert make_tensor(operand, CPU, random(), Fill("ends", 256)).tolist() == [64, 128, 192, 256]
    assert make_tensor(operand, CPU, random(), Fill("ends", 100)).tolist() == [16, 32, 48, 100]
    assert make_tensor(operand, CPU, random(), Fill("ends", 3)).tolist() == [0, 0, 0, 3]

    def experts(rows: Any, weights: Any, ends: Any) -> Any:
        return torch.nn.functional.grouped_mm(rows, weights, offs=ends)

    rows, weights = torch.zeros(64, 32, dtype=torch.bfloat16), torch.zeros(4, 32, 16, dtype=torch.bfloat16)
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)
    assert fills(experts, rows, weights, ends) == {"_grouped_mm": [("ends", 64)]}


class Choosing(nn.Module):  # type: ignore[misc, name-defined]
    """As models that put images into texts do, then a loss of probabilities."""

    def forward(self, words: Any, mask: Any, images: Any) -> Any:
        mixed = words.masked_scatter(mask, images)
        drawn = torch.bernoulli(mixed.sigmoid())
        return nn.functional.binary_cross_entropy(mixed.sigmoid(), drawn, reduction="none")


def test_kernels_get_values_that_they_take() -> None:
    """A mask that chooses more than there is, or a probability of -0.1, would end the use of a GPU."""
    inputs = (torch.zeros(4, 8), torch.zeros(4, 8, dtype=torch.bool), torch.zeros(2, 8))
    found = sample_ops(captured := capture(Choosing(), inputs, name="choosing"), "cpu")
    assert not found.notes and found.measured == found.distinct
    by_name = {str(op.call.target).split(".")[1]: op for op in distinct_ops(captured, CPU)}
    mask = by_name["masked_scatter"].call.args[1].number
    assert by_name["masked_scatter"].fills == {mask: ("constant", 0)}
    assert set(by_name["bernoulli"].fills.values()) == {("constant", 1)}
    assert set(by_name["binary_cross_entropy"].fills.values()) == {("constant", 1)}
