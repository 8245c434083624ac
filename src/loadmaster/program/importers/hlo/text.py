"""The parser of HLO text.

Reads what XLA prints: compiled programs (`compiled.as_text()`), dumps, and texts after
memory space assignment. It knows the syntax and the shapes; attributes stay text, so an
attribute it has never seen is no error. Whatever is wrong is an `HloParseError`.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from loadmaster.program.importers.hlo.module import (
    COMBINED,
    DTYPES,
    NAME,
    WITHOUT_DATA,
    Computation,
    HloParseError,
    Instruction,
    Module,
    Shape,
    padded_bytes,
)
from loadmaster.units import UNLIMITED

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
