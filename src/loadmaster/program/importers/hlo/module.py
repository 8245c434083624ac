"""What HLO text says, as plain data: `Module`, `Computation`, `Instruction`, `Shape`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from loadmaster.errors import BadProgram
from loadmaster.program.types import BITS

DTYPES = {
    "pred": "bool",
    "s1": "i2",
    "u1": "u2",
    "f8e4m3b11fnuz": "f8",
    "f8e8m0fnu": "f8e8m0",
    "f4e2m1fn": "f4e2m1",
    "f6e2m3fn": "f6e2m3",
    "f6e3m2fn": "f6e3m2",
    **{f"s{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{name: name for name in BITS if name[0] in "ufbc" and name not in ("bool", "f8")},
}
"""HLO's element types, and their names in a Program."""
WITHOUT_DATA = ("token", "opaque")

NAME = r"[\w.\-]+"
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')

COMBINED = -1
"""In a tile, `*`: this dimension is merged with the next one."""


class HloParseError(BadProgram):
    """A text that is no HLO: where, what, and what to do."""

    def __init__(self, what: str, *, line: int, column: int = 1, remedy: str) -> None:
        super().__init__(f"line {line}, column {column}: {what}", number=line, remedy=remedy)
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Shape:
    """An array, a token or opaque value (no data), or a tuple (`parts`)."""

    element: str
    """HLO's element type; 'tuple' for a tuple."""
    dims: tuple[int, ...] = ()
    """Sizes; of a bounded dynamic dimension, its bound."""
    layout: tuple[int, ...] = ()
    """Dimensions from minor to major."""
    tiles: tuple[tuple[int, ...], ...] = ()
    element_bits: int = 0
    """`E(n)` of the layout; 0: not given, so elements take whole bytes."""
    memory_space: int = 0
    """`S(n)` of the layout; 0 is the default (slow) memory."""
    parts: tuple[Shape, ...] | None = None

    @cached_property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays and tokens of nested tuples in order; itself if it is no tuple."""
        return (self,) if self.parts is None else tuple(leaf for part in self.parts for leaf in part.leaves)

    @cached_property
    def starts(self) -> list[int]:
        """Of a tuple, the number of each part's first leaf, and at last the number of leaves."""
        return list(accumulate((len(part.leaves) for part in self.parts or ()), initial=0))

    def leaves_at(self, path: Sequence[int]) -> range:
        """Which leaves are behind a path of tuple indices; IndexError if it leads nowhere."""
        shape, first = self, 0
        for index in path:
            if shape.parts is None or not 0 <= index < len(shape.parts):
                raise IndexError(f"no element {list(path)}")
            first += shape.starts[index]
            shape = shape.parts[index]
        return range(first, first + len(shape.leaves))

    @cached_property
    def elements(self) -> int:
        """Over all leaves, without padding; a token has none."""
        if self.parts is not None:
            return sum(part.elements for part in self.parts)
        return math.prod(self.dims) if self.has_data else 0

    @property
    def has_data(self) -> bool:
        return self.element not in WITHOUT_DATA

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.element, "u8")

    @cached_property
    def bytes(self) -> int:
        """With the padding that the layout's tiles ask for; a tuple: the sum of its leaves."""
        if self.parts is not None:
            return sum(part.bytes for part in self.parts)
        if not self.has_data:
            return 0
        bits = self.element_bits or -(-BITS[self.dtype] // 8) * 8
        return -(-self._padded_elements() * bits // 8)

    def _padded_elements(self) -> int:
        physical = [self.dims[dimension] for dimension in reversed(self.layout)]
        for tile in self.tiles:
            physical = [1] * (len(tile) - len(physical)) + physical
            outer, inner, merged = physical[: len(physical) - len(tile)], [], 1
            for size, step in zip(physical[len(physical) - len(tile) :], tile, strict=True):
                merged *= size
                if step != COMBINED:
                    outer.append(-(-merged // step))
                    inner.append(step)
                    merged = 1
            physical = outer + inner
        return math.prod(physical)


def padded_bytes(shape: Shape) -> int:
    """Bytes of a shape as the compiler lays it out: tiles round the minor dimensions up."""
    return shape.bytes


def numbers(text: str) -> list[int]:
    """The whole numbers in an attribute such as '{1,0}' or '3x3'."""
    return [int(number) for number in re.findall(r"-?\d{1,19}", text)]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    """Names of instructions above it in the same computation."""
    literal: str
    """What stands in the brackets of a constant or parameter; else empty."""
    attributes: dict[str, str]
    """Each attribute's text, without the quotes of a string."""
    line: int
    column: int

    @property
    def op_name(self) -> str:
        """The framework's path of this op, such as 'jit(f)/layer1/dot_general', or empty."""
        match = _OP_NAME.search(self.attributes.get("metadata", ""))
        return match.group(1) if match else ""

    def calls(self, key: str) -> tuple[str, ...]:
        """The computations that an attribute names."""
        return tuple(re.findall(NAME, self.attributes.get(key, "")))

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional, in the order of their operands."""
        both = self.calls("true_computation") + self.calls("false_computation")
        branches = self.calls("branch_computations") or both
        if not branches or len(self.operands) != len(branches) + 1:
            raise self.wrong("needs one operand per branch", "name its branches")
        return branches

    def wrong(self, what: str, remedy: str) -> HloParseError:
        """An error in what this instruction says."""
        return HloParseError(
            f"{self.opcode} '{self.name}' {what}", line=self.line, column=self.column, remedy=remedy
        )


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: dict[str, Instruction]
    """In the order of the text, which is the schedule of a scheduled module."""
    root: Instruction
    attributes: dict[str, str]

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read each one, each once."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @cached_property
    def parameters(self) -> list[Instruction]:
        """By number."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        by_number = {int(i.literal): i for i in found if re.fullmatch(r"\d{1,9}", i.literal)}
        if sorted(by_number) != list(range(len(found))):
            raise found[0].wrong(
                "is not the only one, or numbers are missing", "number the parameters from 0"
            )
        return [by_number[number] for number in range(len(found))]

    @cached_property
    def leaf_roots(self) -> list[Instruction | None]:
        """What makes each leaf of the result, behind bitcasts; None where a tuple is handed on."""
        is_tuple = self.root.opcode == "tuple"
        parts = [self.instructions[name] for name in self.root.operands] if is_tuple else [self.root]
        return [
            self.unwrapped(part) if part.shape.parts is None else None
            for part in parts
            for _ in part.shape.leaves
        ]

    def unwrapped(self, instruction: Instruction) -> Instruction:
        """The instruction whose bytes a bitcast shows."""
        while instruction.opcode == "bitcast" and instruction.operands:
            instruction = self.instructions[instruction.operands[0]]
        return instruction

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        return [self.instructions[name].shape for name in instruction.operands]


@dataclass(frozen=True)
class Module:
    name: str
    attributes: dict[str, str]
    computations: dict[str, Computation]
    """In the order of the text: each stands above those that call it."""
    entry: Computation

    @property
    def is_scheduled(self) -> bool:
        return self.attributes.get("is_scheduled") == "true"
