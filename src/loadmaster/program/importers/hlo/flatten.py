"""An HLO module as one list of steps, in the order in which XLA flattens it.

Called computations stand where they are called: calls and the kept branch of a conditional
are inlined, a loop's condition and body stand once. Values flow through what only
forwards (tuples, bitcasts, copies between memories), which leaves no step.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from loadmaster.errors import BadProgram
from loadmaster.program.importers.hlo.costs import KNOWN, UPDATE, Cost, CostModel
from loadmaster.program.importers.hlo.module import Computation, Instruction, Module, Shape, numbers
from loadmaster.program.program import TensorKind, TieKind

MAX_INSTRUCTIONS = 2_000_000
"""After inlining: calls of calls can multiply without end."""

INLINED = {
    "call": ("to_apply",),
    "async-start": ("calls",),
    "while": ("condition", "body"),
    "conditional": ("true_computation", "false_computation", "branch_computations"),
}
"""Instructions whose computations are flattened, and the attributes that name them, in order."""
FORWARDED = (
    "bitcast",
    "tuple",
    "opt-barrier",
    "optimization-barrier",
    "domain",
    "copy-start",
    "async-update",
)
"""Their result is their operands, in another shape or another memory."""

_TRIP_COUNT = re.compile(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d{1,18})')
_ALIAS = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d{1,9})\s*,\s*\{([\d,\s]*)\}")

Leaves = list[int | None]
"""The values of a result's leaves; None: a token."""


@dataclass(slots=True)
class Value:
    """A tensor to be; `step` makes it, or it is given (-1)."""

    name: str
    shape: Shape
    kind: TensorKind
    step: int
    last_read: int = -1


@dataclass(slots=True)
class Step:
    """An op to be."""

    name: str
    instruction: Instruction
    inside: Computation
    cost: Cost
    reads: dict[int, int]
    """Bytes of each value; a value that is read twice counts twice."""
    writes: Leaves
    loop: int
    time: int


@dataclass(slots=True)
class Loop:
    """A while loop of the flattened program: how often, inside which, and which steps."""

    trips: int
    parent: int
    start: int
    end: int = 0
    """The step after its last one."""


@dataclass
class Flattener:
    """Call `inline` with the entry computation; then `steps`, `values` and `ties` are filled."""

    module: Module
    costs: CostModel
    trips: dict[str, int]
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    ties: list[tuple[TieKind, int, int, int]] = field(default_factory=list)
    """(kind, source, target, step or loop): wishes, which may turn out impossible."""
    conditionals: list[str] = field(default_factory=list)
    unknown_trips: list[str] = field(default_factory=list)
    """Loops whose trip count is not known."""
    estimated: Counter[str] = field(default_factory=Counter)
    time: int = 0
    """XLA's logical time: it counts what is folded away here, too."""
    _names: Counter[str] = field(default_factory=Counter)
    _spans: dict[str, int] = field(default_factory=dict)

    def span(self, computation: Computation) -> int:
        """How long a computation takes in `time`, with all that it calls."""
        if computation.name not in self._spans:
            span = len(computation.instructions)
            for i in computation.instructions.values():
                for name in (name for key in INLINED.get(i.opcode, ()) for name in i.calls(key)):
                    span += self.span(self.module.computations[name])
            if span > MAX_INSTRUCTIONS:
                raise BadProgram(
                    f"'{computation.name}' has {span} instructions once its calls are inlined",
                    object=computation.name,
                    number=span,
                    remedy=f"at most {MAX_INSTRUCTIONS}",
                )
            self._spans[computation.name] = span
        return self._spans[computation.name]

    def given(self, instruction: Instruction, kind: TensorKind) -> Leaves:
        """Values that no step makes: inputs and constants."""
        return self._new_values(self._new_name(instruction.name), instruction.shape, kind, -1)

    def inline(self, computation: Computation, arguments: list[Leaves], loop: int = -1) -> Leaves:
        """Flatten a computation; returns its result."""
        results: dict[str, Leaves] = {}
        for i in computation.instructions.values():
            operands = [results[name] for name in i.operands]
            if i.opcode == "parameter":
                _fit(i, len(arguments), len(computation.parameters), "parameters")
                leaves = arguments[int(i.literal)]
            else:
                leaves = self._result(i, computation, operands, loop)
            if not i.opcode.endswith("-start"):  # whose shape holds operands and results
                _fit(i, len(leaves), len(i.shape.leaves), "results")
            results[i.name] = leaves
            self._passed(i, operands, leaves)
            self.time += 1
        return results[computation.root.name]

    def _passed(self, i: Instruction, operands: list[Leaves], leaves: Leaves) -> None:
        """Called for every instruction, also for those that leave no step."""

    def _result(self, i: Instruction, inside: Computation, operands: list[Leaves], loop: int) -> Leaves:
        leaves = [leaf for operand in operands for leaf in operand]
        match i.opcode:
            case "constant":
                return self.given(i, TensorKind.WEIGHT)
            case "after-all":
                return [None]
            case "add-dependency":
                return leaves[:1]
            case "get-tuple-element":
                return _element(i, inside, leaves)
            case "while":
                return self._while(i, leaves, loop)
            case "conditional":
                return self._conditional(i, operands, loop)
            case "call" | "async-start":
                if is_sliced_copy(i, inside):
                    return leaves
                return self.inline(self._callee(i, *INLINED[i.opcode]), operands, loop)
        if i.opcode in FORWARDED or (i.opcode.endswith("-done") and _starts(i, inside)):
            return leaves
        if i.opcode.endswith("-start"):
            done = next((user for user in inside.users[i.name] if user.opcode.endswith("-done")), None)
            if is_sliced_copy(i, inside):
                return leaves
            i = replace(i, opcode=i.opcode.removesuffix("-start"), shape=done.shape if done else i.shape)
        elif i.attributes.get("custom_call_target") == "ConcatBitcast" and len(set(leaves)) == 1:
            return leaves[:1]  # the slices of a sliced copy: the tensor itself, in another memory
        return self._step(i, inside, leaves, loop)

    def _step(self, i: Instruction, inside: Computation, leaves: Leaves, loop: int) -> Leaves:
        cost = self.costs.cost(i, inside)
        _fit(i, len(leaves), len(cost.reads), "operands")
        reads: dict[int, int] = {}
        number = len(self.steps)
        for leaf, size in zip(leaves, cost.reads, strict=True):
            if leaf is not None and size is not None:
                reads[leaf] = reads.get(leaf, 0) + size
                self.values[leaf].last_read = number
        name = self._new_name(i.name)
        results = self._new_values(name, i.shape, TensorKind.ACTIVATION, number)
        _fit(i, len(cost.writes), len(results), "results")
        if i.opcode not in KNOWN:
            target = i.attributes.get("custom_call_target", "")
            self.estimated[f"{i.opcode} {target}".strip()] += 1
        self.steps.append(Step(name, i, inside, cost, reads, results, loop, self.time))
        for result, operand in self._in_place(i, inside):
            source, target_value = leaves[operand], results[result]
            if source is not None and target_value is not None:
                self.ties.append((TieKind.INPLACE, source, target_value, number))
        return results

    def _while(self, i: Instruction, leaves: Leaves, parent: int) -> Leaves:
        known = _TRIP_COUNT.search(i.attributes.get("backend_config", ""))
        trips = self.trips.get(i.name, int(known.group(1)) if known else 0)
        if i.name not in self.trips and not known:
            self.unknown_trips.append(i.name)
            trips = 1
        loop = len(self.loops)
        self.loops.append(Loop(trips, parent, len(self.steps)))
        self.inline(self._callee(i, "condition"), [leaves], loop)
        results = self.inline(self._callee(i, "body"), [leaves], loop)
        self.loops[loop].end = len(self.steps)
        _fit(i, len(results), len(leaves), "results")
        for source, target in zip(leaves, results, strict=True):
            if source is None or target is None:
                continue
            value = self.values[target]  # the next iteration needs it
            value.last_read = max(value.last_read, self.loops[loop].end - 1)
            if source != target:
                self.ties.append((TieKind.CARRIED, source, target, loop))
        return results

    def _conditional(self, i: Instruction, operands: list[Leaves], loop: int) -> Leaves:
        results: Leaves = []
        branches = i.branches
        kept = self.costs.heaviest(branches)
        for number, name in enumerate(branches):
            computation = self.module.computations[name]
            if number == kept:
                results = self.inline(computation, [operands[1 + number]], loop)
            else:
                self.time += self.span(computation)
        self.conditionals.append(i.name)
        return results

    def _callee(self, i: Instruction, key: str) -> Computation:
        if len(i.calls(key)) != 1:
            raise i.wrong(f"must name one computation as '{key}'", "give the text as XLA prints it")
        return self.module.computations[i.calls(key)[0]]

    def _in_place(self, i: Instruction, inside: Computation) -> list[tuple[int, int]]:
        """(leaf of the result, leaf of the operands) that share their place."""
        aliased = aliases(i.attributes.get("output_to_operand_aliasing", ""))
        if not aliased and i.opcode not in (*UPDATE, "fusion"):
            return []
        operands = Shape("tuple", parts=tuple(inside.operand_shapes(i)))
        pairs: list[tuple[int, int]] = []
        for result, operand in aliased:
            pairs += zip(leaves_at(i, i.shape, result), leaves_at(i, operands, operand), strict=False)
        if i.opcode in UPDATE:
            pairs += [(n, n) for n in range(min(len(i.shape.leaves), len(operands.leaves)))]
        elif i.opcode == "fusion":
            body = self._callee(i, "calls")
            _fit(i, len(i.operands), len(body.parameters), "parameters")
            for leaf, root in enumerate(body.leaf_roots):
                if root is not None and root.opcode in UPDATE:
                    source = body.unwrapped(body.instructions[root.operands[0]])
                    if source.opcode == "parameter":
                        pairs.append((leaf, operands.starts[int(source.literal)]))
        return list(dict.fromkeys(pairs))

    def _new_name(self, name: str) -> str:
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else f"{name}#{count}"

    def _new_values(self, name: str, shape: Shape, kind: TensorKind, step: int) -> Leaves:
        leaves: Leaves = []
        for number, leaf in enumerate(shape.leaves):
            leaves.append(len(self.values) if leaf.has_data else None)
            if leaf.has_data:
                # ':' is in no HLO name, so these are new names
                own = name if shape.parts is None else f"{name}:{number}"
                self.values.append(Value(own, leaf, kind, step))
        return leaves


def aliases(text: str) -> list[tuple[list[int], list[int]]]:
    """Pairs (path in the result, path in the operands or parameters) of an aliasing attribute."""
    return [(numbers(result), numbers(f"{operand},{path}")) for result, operand, path in _ALIAS.findall(text)]


def leaves_at(i: Instruction, shape: Shape, path: list[int]) -> range:
    """`Shape.leaves_at`, with an error that names the instruction."""
    try:
        return shape.leaves_at(path)
    except IndexError as error:
        raise i.wrong(f"has {error}", "give the text as XLA prints it") from None


def _element(i: Instruction, inside: Computation, leaves: Leaves) -> Leaves:
    """The leaves of one element of a tuple."""
    tuples = inside.operand_shapes(i)
    index = numbers(i.attributes.get("index", ""))
    _fit(i, len(tuples) + len(index), 2, "operands and indices")
    part = leaves_at(i, tuples[0], index)
    return leaves[part.start : part.stop]


def _starts(done: Instruction, inside: Computation) -> bool:
    before = [inside.instructions[name] for name in done.operands]
    return len(before) == 1 and before[0].opcode.endswith(("-start", "-update"))


def is_sliced_copy(start: Instruction, inside: Computation) -> bool:
    """Whether an asynchronous slice only moves one slice of a tensor, to be joined by ConcatBitcast."""
    if not start.opcode.endswith("-start"):
        return False
    ends, waiting = [], [*inside.users[start.name]]
    seen = set()
    while waiting:
        step = waiting.pop()
        if not step.opcode.endswith(("-done", "bitcast")):
            ends.append(step)
        elif step.name not in seen:
            seen.add(step.name)
            waiting += inside.users[step.name]
    return bool(ends) and all(user.attributes.get("custom_call_target") == "ConcatBitcast" for user in ends)


def _fit(i: Instruction, got: int, expected: int, what: str) -> None:
    if got != expected:
        raise i.wrong(f"has {expected} {what} and gets {got}", "give the text as XLA prints it")
