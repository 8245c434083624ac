"""What an op's operands hold while it is measured: how they lie, and values that its kernel takes and that take it the
usual time.

    fills = fills_of(call, operands)
    tensor = make_tensor(operands[slot], device, random, fills.get(slot))

Most kernels take as long whatever they are given. What chooses among others' rows does not: with all indexes 0 a table
would be read from a cache, and experts that get no rows would cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadmaster.errors import require
from loadmaster.execute.script import Call, Slot
from loadmaster.program.importers.torch.graph import op_name

ALIGNED = 256
"""Bytes: kernels see no difference above."""
_PATTERN = 2**22
"""Elements that are made up; larger tensors repeat them."""
_WHOLE = 16
"""Groups of rows begin at multiples of this, as kernels want them."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an op reads."""

    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    alignment: int
    """Bytes; 256: that or more."""

    @property
    def offset(self) -> int:
        """Elements before the first one."""
        return 0 if self.alignment == ALIGNED else int(self.alignment // self.dtype.itemsize)

    @property
    def elements(self) -> int:
        """Of the storage, up to the last element."""
        if 0 in self.shape:
            return self.offset
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.offset + last + 1

    @property
    def bytes(self) -> int:
        return int(self.elements * self.dtype.itemsize)


def operand_of(tensor: Any) -> Operand:
    """How a (fake) tensor lies in its storage."""
    bytes_before = int(tensor.storage_offset()) * tensor.dtype.itemsize
    return Operand(
        tensor.dtype,
        tuple(int(size) for size in tensor.shape),
        tuple(int(step) for step in tensor.stride()),
        math.gcd(bytes_before, ALIGNED),
    )


class Fill(NamedTuple):
    """How an operand is filled where random numbers, or zeros for integers, would not do."""

    how: str
    """'below': integers are drawn below `number`. 'constant': all are `number`, since a kernel takes no others: on a GPU
    it does not say so but ends the process's use of the device. 'ends': where each of as many equal groups of `number`
    rows ends."""
    number: int


def fills_of(call: Call, operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """By slot, for those operands of a call that need it."""
    rule = _RULES.get(op_name(call.target))
    return {} if rule is None else rule([*call.args, *[None] * 8], operands)


Rule = Callable[[list[Any], Mapping[int, Operand]], dict[int, Fill]]


def _below(slot: Any, size: int, operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """Indexes below a size, if the slot has any: masks choose as well."""
    is_index = type(slot) is Slot and str(operands[slot.number].dtype) in ("torch.int32", "torch.int64")
    return {slot.number: Fill("below", size)} if is_index and size > 0 else {}


def _rows_of(table: int, indexes: int) -> Rule:
    """Indexes are of rows of a table."""

    def rule(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
        if type(args[table]) is not Slot:
            return {}
        return _below(args[indexes], operands[args[table].number].shape[0], operands)

    return rule


def _of_so_many(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """The table's gradient: its size is a number."""
    return _below(args[1], args[2] if type(args[2]) is int else 0, operands)


def _along_dim(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """`gather(x, dim, index)` and its like."""
    if type(args[0]) is not Slot or type(args[1]) is not int:
        return {}
    shape = operands[args[0].number].shape
    return _below(args[2], shape[args[1]] if shape else 1, operands)


def _by_axis(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """`x[i, j]`: each tensor has indexes of the axis in its place."""
    if type(args[0]) is not Slot or not isinstance(args[1], list | tuple):
        return {}
    found: dict[int, Fill] = {}
    for size, index in zip(operands[args[0].number].shape, args[1], strict=False):
        if index is not None and not _below(index, size, operands):
            return {}  # a mask takes as many axes as it has
        for slot, fill in ({} if index is None else _below(index, size, operands)).items():
            found[slot] = min(fill, found.get(slot, fill))
    return found


def _groups(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """Products of groups of rows with a matrix each, as experts get them: all get as many. Two plain matrices are
    taken apart along what they have in common, a batch of matrices and one along its columns."""
    one, other, ends = args[:3]
    if type(ends) is not Slot or type(one) is not Slot or type(other) is not Slot:
        return {}
    rows, columns = operands[one.number].shape, operands[other.number].shape
    size = rows[0] if len(columns) == 3 else rows[-1] if len(rows) == 2 else columns[-1]
    return {ends.number: Fill("ends", size)}


def _mask(args: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """A mask must choose no more than there is to put there."""
    return {args[1].number: Fill("constant", 0)} if type(args[1]) is Slot else {}


def _chances(_: list[Any], operands: Mapping[int, Operand]) -> dict[int, Fill]:
    """Probabilities, also those that a loss compares with, lie between 0 and 1, not all of them 0."""
    return {slot: Fill("constant", 1) for slot, each in operands.items() if each.dtype.is_floating_point}


_RULES: dict[str, Rule] = {
    "embedding": _rows_of(0, 1),
    "embedding_dense_backward": _of_so_many,
    **dict.fromkeys(["index", "_unsafe_index", "index_put", "_unsafe_index_put"], _by_axis),
    **dict.fromkeys(
        ["gather", "index_add", "index_copy", "index_select", "scatter", "scatter_add", "scatter_reduce"],
        _along_dim,
    ),
    "_grouped_mm": _groups,
    "masked_scatter": _mask,
    **dict.fromkeys(
        ["bernoulli", "multinomial", "binary_cross_entropy", "binary_cross_entropy_backward"], _chances
    ),
}


def make_tensor(operand: Operand, device: Any, random: Any, fill: Fill | None = None) -> Any:
    """A tensor that lies as `operand` says, with made-up values; integers are 0, which is valid wherever they count or
    choose."""
    torch = require("torch", "torch")
    dtype, count = operand.dtype, operand.elements
    flat = torch.empty(count, dtype=dtype, device=device)
    head = flat[:_PATTERN]
    if fill is not None and fill.how == "ends":
        each = fill.number // max(1, count) // _WHOLE * _WHOLE
        head.copy_(torch.arange(1, len(head) + 1, dtype=dtype, device=device) * each)
        head[-1:].fill_(fill.number)
    elif fill is not None and fill.how == "constant":
        head.fill_(fill.number)
    elif dtype == torch.bool:
        head.fill_(True)
    elif dtype.is_floating_point and dtype.itemsize == 1:
        head.view(torch.uint8).random_(0, 64, generator=random)  # small numbers in every such type
    elif dtype.is_floating_point or dtype.is_complex:
        head.normal_(0.0, 0.1, generator=random)
    elif fill is not None:
        head.random_(0, fill.number, generator=random)
    else:
        head.zero_()
    for low in range(_PATTERN, count, _PATTERN):
        part = flat[low : low + _PATTERN]
        part.copy_(head[: len(part)])
    return flat.as_strided(operand.shape, operand.stride, operand.offset)
