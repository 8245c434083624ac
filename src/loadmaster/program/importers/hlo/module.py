"""HLO text, parsed: `Module`, `Computation`, `Instruction`, `Shape` are plain data.

Reads what XLA prints: compiled programs (`compiled.as_text()`), dumps, and texts after memory space
assignment. It knows the syntax and the shapes; attributes are left as text, so one that it has never seen
is no error. Whatever is wrong is an `HloParseError`.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from loadmaster.errors import BadProgram
from loadmaster.program.kinds import BITS
from loadmaster.units import UNLIMITED

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
    """One computation of a module, such as a loop's body or a fusion."""

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
    """An HLO module: its computations and where it is entered."""

    name: str
    attributes: dict[str, str]
    computations: dict[str, Computation]
    """In the order of the text: each stands above those that call it."""
    entry: Computation

    @property
    def is_scheduled(self) -> bool:
        return self.attributes.get("is_scheduled") == "true"


__all__ = ["Computation", "HloParseError", "Instruction", "Module", "Shape", "padded_bytes", "parse_hlo"]

MAX_NESTING = 64
"""Of brackets, of tuple shapes, and of computations that call computations."""
MAX_CHARACTERS = 2**30

CALLS = (
    "calls",
    "to_apply",
    "condition",
    "body",
    "select",
    "scatter",
    "true_computation",
    "false_computation",
    "branch_computations",
    "called_computations",
)
"""Attributes that name computations."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_COMMENT = re.compile(rf"{_STRING}|/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_TABLES = re.compile(
    r"\s*(?:(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t]*\n(?:\d+ [^\n]*\n)*\s*)*"
)
_MODULE = re.compile(rf"\s*HloModule\s+({NAME})")
_COMPUTATION = re.compile(rf"\s*(ENTRY\s+)?%?({NAME})\s*([({{])")
_ARROW = re.compile(r"\s*->\s*")
_OPEN = re.compile(r"\s*\{")
_CLOSE = re.compile(r"\s*\}")
_END = re.compile(r"\s*\Z")
_OPEN_TUPLE = re.compile(r"\s*\(\s*")
_CLOSE_TUPLE = re.compile(r"\s*\)")
_COMMA = re.compile(r"\s*,\s*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_INSTRUCTION = re.compile(rf"\s*(ROOT\s+)?%?({NAME})\s*=\s*")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\[\]{}()]*)\](?:\{([^{}]*)\})?")
_OPCODE = re.compile(r"\s*([a-zA-Z][\w\-]*)\(")
_PLAIN_OPERANDS = re.compile(r'[^(){}\[\]"]*\)')
_ATTRIBUTE = re.compile(rf"\s*,\s*({NAME})(=?)")
_PLAIN_VALUE = re.compile(rf'[^,\s(){{}}\[\]"]+|{_STRING}|\{{[^{{}}"]*+(?:{_STRING}[^{{}}"]*+)*+\}}')
_BRACKET = re.compile(rf"{_STRING}|[(){{}}\[\]\"]", re.DOTALL)
_INNERMOST = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_WORD = re.compile(rf"%?({NAME})\s*$")
_DIMENSION = re.compile(r"\s*(?:<=)?(\d{1,19})\s*")
_TILES = re.compile(r"(?<![A-Z])T((?:\([\d,*\s]*\))+)")
_LAYOUT_NUMBER = r"(?<![A-Z]){}\((\d{{1,9}})\)"
_ELEMENT_SIZE = re.compile(_LAYOUT_NUMBER.format("E"))
_MEMORY_SPACE = re.compile(_LAYOUT_NUMBER.format("S"))


def parse_hlo(text: str) -> Module:
    """Parse a whole text, or raise `HloParseError` with line, column and remedy."""
    if len(text) > MAX_CHARACTERS:
        raise HloParseError(
            f"the text has {len(text)} characters", line=1, remedy=f"at most {MAX_CHARACTERS}"
        )
    return _Parser(text).module()


@dataclass
class _Parser:
    text: str
    at: int = 0
    line: int = 1
    counted: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Blanks keep every position, so errors still name the right line and column.
        blank = re.compile(r"[^\n]")
        self.text = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else blank.sub(" ", m[0]), self.text)

    def wrong(self, what: str, remedy: str = "give the whole text, as XLA prints it") -> HloParseError:
        starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect.bisect_right(starts, self.at)
        return HloParseError(what, line=line, column=self.at - starts[line - 1] + 1, remedy=remedy)

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            ends = not self.text[self.at :].strip()
            raise self.wrong(f"the text ends where {what} must stand" if ends else f"{what} must stand here")
        self.at = found.end()
        return found

    def module(self) -> Module:
        name = self.match(_MODULE, "'HloModule' and a name").group(1)
        attributes = self.attributes()
        self.match(_TABLES, "a computation")
        computations: dict[str, Computation] = {}
        entry: Computation | None = None
        while not _END.match(self.text, self.at):
            is_entry, computation = self.computation()
            if computation.name in computations or (is_entry and entry is not None):
                raise self.wrong(f"a second '{computation.name}', or a second ENTRY", "remove one")
            computations[computation.name] = computation
            entry = computation if is_entry else entry
        if entry is None:
            raise self.wrong("the text ends where an ENTRY computation must stand")
        return Module(name, attributes, computations, entry)

    def computation(self) -> tuple[bool, Computation]:
        header = self.match(_COMPUTATION, "a computation")
        name, root, depth = header.group(2), "", 1
        if header.group(3) == "(":
            self.at = self.closing(header.start(3))
            self.match(_ARROW, "'->'")
            self.shape()
            self.match(_OPEN, "'{'")
        instructions: dict[str, Instruction] = {}
        while not (end := _CLOSE.match(self.text, self.at)):
            is_root, instruction = self.instruction(instructions)
            instructions[instruction.name] = instruction
            root = instruction.name if is_root else root
            depth = max(depth, 1 + self.depth_below(instruction))
        self.at = end.end()
        if not instructions:
            raise self.wrong(f"computation '{name}' is empty", "give it a root")
        if depth > MAX_NESTING:
            raise self.wrong(f"'{name}' calls computations {depth} levels deep", f"at most {MAX_NESTING}")
        self.depth[name] = depth
        # Without a ROOT the last one is it, as in XLA's own parser.
        result = instructions[root or next(reversed(instructions))]
        return bool(header.group(1)), Computation(name, instructions, result, self.attributes())

    def depth_below(self, instruction: Instruction) -> int:
        depth = 0
        for key in instruction.attributes.keys() & CALLS:
            for name in instruction.calls(key):
                if name not in self.depth:
                    raise instruction.wrong(
                        f"calls '{name}', which does not stand above it", "give the whole text"
                    )
                depth = max(depth, self.depth[name])
        return depth

    def instruction(self, above: dict[str, Instruction]) -> tuple[bool, Instruction]:
        head = self.match(_INSTRUCTION, "an instruction or '}'")
        self.line += self.text.count("\n", self.counted, head.start(2))
        self.counted = head.start(2)
        column = self.counted - self.text.rfind("\n", 0, self.counted)
        shape = self.shape()
        opcode = self.match(_OPCODE, "an opcode and '('").group(1)
        start = self.at
        plain = _PLAIN_OPERANDS.match(self.text, start)
        self.at = plain.end() if plain else self.closing(start - 1)
        inside = self.text[start : self.at - 1]
        operands: tuple[str, ...] = ()
        if opcode not in ("constant", "parameter"):
            operands, inside = self.operands(inside, head.group(2), above), ""
        if head.group(2) in above:
            raise self.wrong(f"a second instruction '{head.group(2)}'", "rename one")
        instruction = Instruction(
            head.group(2), shape, opcode, operands, inside.strip(), self.attributes(), self.line, column
        )
        return head.group(1) is not None, instruction

    def operands(self, inside: str, name: str, above: dict[str, Instruction]) -> tuple[str, ...]:
        before = None
        while before != inside:  # shapes before the names, as older texts print them
            before, inside = inside, _INNERMOST.sub("", inside)
        names = []
        for operand in inside.split(",") if inside.strip() else ():
            word = _WORD.search(operand)
            if word is None or word.group(1) not in above:
                raise self.wrong(
                    f"'{name}' reads '{operand.strip()[:60]}', which does not stand above it",
                    "give the whole computation, in a valid order",
                )
            names.append(word.group(1))
        return tuple(names)

    def attributes(self) -> dict[str, str]:
        """`, key=value` as long as they come. The value may be a word, a string or brackets."""
        attributes: dict[str, str] = {}
        while found := _ATTRIBUTE.match(self.text, self.at):
            start = self.at = found.end()
            while found.group(2) and self.at < len(self.text):
                if piece := _PLAIN_VALUE.match(self.text, self.at):
                    self.at = piece.end()
                elif self.text[self.at] in "({[":
                    self.at = self.closing(self.at)
                else:
                    break
            value = self.text[start : self.at]
            attributes[found.group(1)] = value[1:-1] if value[:1] == '"' else value
        return attributes

    def closing(self, start: int) -> int:
        """The position behind the bracket that closes the one at `start`."""
        expected: list[str] = []
        for found in _BRACKET.finditer(self.text, start):
            token = found.group()
            if token in _CLOSING:
                expected.append(_CLOSING[token])
                if len(expected) > MAX_NESTING:
                    self.at = found.start()
                    raise self.wrong(f"more than {MAX_NESTING} brackets in one another", "nest less")
            elif len(token) == 1:
                if token != expected.pop():
                    self.at = found.start()
                    raise self.wrong(f"{token} closes nothing")
                if not expected:
                    return found.end()
        self.at = start
        raise self.wrong(f"{self.text[start]} is never closed")

    def shape(self, depth: int = 0) -> Shape:
        if found := _ARRAY.match(self.text, self.at):
            text = found.group()
            if text not in self.shapes:
                self.shapes[text] = self.array(found)
            self.at = found.end()
            return self.shapes[text]
        self.match(_OPEN_TUPLE, "a shape such as f32[8,128]")
        if depth >= MAX_NESTING:
            raise self.wrong(f"a tuple nests more than {MAX_NESTING} deep", "nest less")
        parts: list[Shape] = []
        while not (end := _CLOSE_TUPLE.match(self.text, self.at)):
            if parts:
                self.match(_COMMA, "',' or ')'")
            parts.append(self.shape(depth + 1))
        self.at = end.end()
        return Shape("tuple", parts=tuple(parts))

    def array(self, found: re.Match[str]) -> Shape:
        element, sizes, layout = found.group(1), found.group(2), found.group(3) or ""
        if element not in DTYPES and element not in WITHOUT_DATA:
            raise self.wrong(f"the element type '{element}' is not known", f"one of {', '.join(DTYPES)}")
        dims = tuple(self.dimension(size) for size in sizes.split(",")) if sizes.strip() else ()
        order, _, rest = layout.partition(":")
        minor_to_major = tuple(int(number) for number in re.findall(r"\d{1,9}", order))
        if layout and sorted(minor_to_major) != list(range(len(dims))):
            raise self.wrong(
                f"the layout {{{order[:60]}}} does not order {len(dims)} dimensions", "one number each"
            )
        tiles = tuple(
            self.tile(tile) for run in _TILES.findall(rest) for tile in re.findall(r"\(([^)]*)\)", run)
        )
        bits, space = _ELEMENT_SIZE.search(rest), _MEMORY_SPACE.search(rest)
        shape = Shape(
            element,
            dims,
            minor_to_major if layout else tuple(reversed(range(len(dims)))),
            tiles,
            int(bits.group(1)) if bits else 0,
            int(space.group(1)) if space else 0,
        )
        if shape.bytes > UNLIMITED:
            raise self.wrong(f"a shape of {element} takes more than 2^62 bytes", "give smaller sizes")
        return shape

    def dimension(self, text: str) -> int:
        found = _DIMENSION.fullmatch(text)
        if found is None or int(found.group(1)) >= 2**63:
            raise self.wrong(
                f"'{text.strip()[:60]}' is no size of a dimension", "give a static shape, below 2^63"
            )
        return int(found.group(1))

    def tile(self, text: str) -> tuple[int, ...]:
        sizes = tuple(COMBINED if size.strip() == "*" else self.dimension(size) for size in text.split(","))
        if 0 in sizes or sizes[-1] == COMBINED:
            raise self.wrong(f"the tile ({text[:60]}) has no size", "give sizes from 1")
        return sizes
