"""HLO text after memory space assignment: the same steps, and where each of them finds its tensors.

There a tensor has several values: the one that is made, and one for every copy of it in another
memory. Slices that are copied one by one and joined (`ConcatBitcast`) are one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.program.importers.hlo.costs import CostModel
from loadmaster.program.importers.hlo.flatten import Flattener, Leaves, is_sliced_copy
from loadmaster.program.importers.hlo.module import Computation, Instruction, Shape, parse_hlo
from loadmaster.program.program import TensorKind


@dataclass(slots=True)
class Move:
    """A copy of a value, or of its bytes [low, high), into another one."""

    name: str
    source: int
    target: int
    issued: int
    """The number of steps before it is issued,"""
    needed: int
    """and before something waits for it; -1: nothing does."""
    low: int
    high: int


@dataclass
class PlacedFlattener(Flattener):
    """Like `Flattener`, but copies between memories make new values."""

    origin: dict[int, int] = field(default_factory=dict)
    """Value -> the value that it is a copy of, where it is one."""
    buffer: dict[int, str] = field(default_factory=dict)
    """Value -> its name in the compiler's buffer assignment, such as 'fusion.3{1}'."""
    moves: list[Move] = field(default_factory=list)
    parts: set[int] = field(default_factory=set)
    """Values that are slices of another one."""
    first_seen: dict[int, int] = field(default_factory=dict)
    last_seen: dict[int, int] = field(default_factory=dict)
    """Value -> XLA's time of the first and the last instruction that has it."""
    times: list[str] = field(default_factory=list)
    """The instruction at every time."""
    _arriving: dict[int, list[Move]] = field(default_factory=dict)

    def tensor(self, value: int) -> int:
        """The value that was made or given, of which this one is a copy."""
        return self.origin.get(value, value)

    def _passed(self, i: Instruction, operands: list[Leaves], leaves: Leaves) -> None:
        self.times.append(i.name)
        # Whoever takes one element of a tuple does not look at the others.
        seen = [] if i.opcode == "get-tuple-element" else [leaf for o in operands for leaf in o]
        for leaf in seen + leaves:
            if leaf is not None:
                self.first_seen.setdefault(leaf, self.time)
                self.last_seen[leaf] = self.time

    def _result(self, i: Instruction, inside: Computation, operands: list[Leaves], loop: int) -> Leaves:
        leaves = [leaf for operand in operands for leaf in operand]
        if i.opcode == "copy-start" and leaves[0] is not None:
            shape = i.shape.leaves[0]
            return [self._copied(i.name, f"{i.name}{{0}}", shape, leaves[0], 0, shape.bytes)]
        if i.opcode.endswith("-start") and is_sliced_copy(i, inside) and leaves[0] is not None:
            root = self._callee(i, "calls").root
            size = root.shape.bytes
            return [self._copied(i.name, root.name, root.shape, leaves[0], 0, size)]
        if i.opcode.endswith("-done"):
            for leaf in leaves:
                for move in self._arriving.get(-1 if leaf is None else leaf, ()):
                    move.needed = len(self.steps)
        if i.attributes.get("custom_call_target") == "ConcatBitcast":
            slices = [leaf for leaf in leaves if leaf is not None]
            if len({self.tensor(leaf) for leaf in slices}) == 1:
                return [self._joined(i, slices)]
        return super()._result(i, inside, operands, loop)

    def _copied(self, name: str, buffer: str, shape: Shape, source: int, low: int, high: int) -> int:
        target = self._add(self._new_name(name), buffer, shape, self.tensor(source))
        move = Move(name, source, target, len(self.steps), -1, low, high)
        self.moves.append(move)
        self._arriving[target] = [move]
        return target

    def _joined(self, i: Instruction, slices: list[int]) -> int:
        """One value out of slices, which lie behind one another."""
        target = self._add(self._new_name(i.name), i.name, i.shape, self.tensor(slices[0]))
        arriving, low = [], 0
        self.parts |= set(slices)
        for part in slices:
            for move in self._arriving[part]:
                move.low, move.high, move.target = low, low + move.high - move.low, target
                low = move.high
                arriving.append(move)
        self._arriving[target] = arriving
        return target

    def _add(self, name: str, buffer: str, shape: Shape, origin: int) -> int:
        number = len(self.values)
        (leaf,) = super()._new_values(name, shape, TensorKind.ACTIVATION, len(self.steps))
        assert leaf == number
        self.origin[number], self.buffer[number] = origin, buffer
        return number

    def _new_values(self, name: str, shape: Shape, kind: TensorKind, step: int) -> Leaves:
        leaves = super()._new_values(name, shape, kind, step)
        for leaf, path in zip(leaves, _paths(shape), strict=True):
            if leaf is not None:
                self.buffer[leaf] = name + path
        return leaves


def _paths(shape: Shape, above: tuple[int, ...] = ()) -> list[str]:
    """The place of each leaf, as a buffer assignment writes it."""
    if shape.parts is None:
        return ["{" + ",".join(map(str, above)) + "}" if above else ""]
    return [path for n, part in enumerate(shape.parts) for path in _paths(part, (*above, n))]


def flatten_placed(text: str) -> tuple[PlacedFlattener, Leaves]:
    """A text after memory space assignment, flattened, and the leaves of its result."""
    module = parse_hlo(text)
    flat = PlacedFlattener(module, CostModel(module), {})
    arguments = [flat.given(i, TensorKind.INPUT) for i in module.entry.parameters]
    return flat, flat.inline(module.entry, arguments)
