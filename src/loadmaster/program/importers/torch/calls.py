"""One call of an ATen op as plain data, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadmaster.program.kinds import bytes_of


class Type(NamedTuple):
    """What a tensor is."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class Call:
    """A call: tensors among its arguments are `Type`s."""

    op: str
    """The name without namespace and overload, such as 'conv2d'."""
    args: Mapping[str, Any]
    """By the names of the op's schema, defaults filled in."""
    results: Sequence[Type]

    @property
    def operands(self) -> list[Type]:
        """The tensors among the arguments, in order."""
        return list(tensors_in(self.args.values()))

    @property
    def x(self) -> Type:
        return self.operands[0]

    @property
    def size(self) -> int:
        return self.results[0].elements

    def tensor(self, name: str) -> Type:
        value = self.args[name]
        if not isinstance(value, Type):
            raise KeyError(name)
        return value

    def has(self, name: str) -> bool:
        return isinstance(self.args.get(name), Type)


class Cost(NamedTuple):
    """What a call does."""

    kind: str
    matrix: int = 0
    vector: int = 0
    transcendental: int = 0
    partial: bool = False
    """Of its first operand it reads only as many bytes as it writes."""
    unread: bool = False
    """Its first operand tells a shape; the bytes are not read."""
    over: tuple[int, int] | None = None
    """If it may write over operand 0: the bytes it reads there and writes then."""
    typed_by_operand: bool = False
    """It computes in the type of operand 0, not in that of its result."""


def tensors_in(values: Iterable[Any]) -> Iterator[Type]:
    for value in values:
        if isinstance(value, Type):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
