"""A jaxpr as a flat list of nodes over numbered values: calls inlined, loops unrolled or kept.

Nothing is decided here about memory. Where a loop needs a value in a place of its own, a
copy that may turn out to be unnecessary is written down (`Node.elidable`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.jax.costs import Type, cost_of, estimate, is_known
from loadmaster.program.kinds import BITS, from_numpy

_TRANSFORM_NAMES = """
jvp transpose vmap pmap remat checkpoint linearize vjp batch mutable shard_map custom_jvp custom_vjp
"""
_TRANSFORMS = frozenset(_TRANSFORM_NAMES.split())
"""Written around the first name inside them."""
_CALLS = {"jit", "pjit", "closed_call", "core_call", "xla_call", "named_call"}
"""Written around a function's name, which is no scope."""
_MARKS = {"rematted_computation", "checkpoint", "remat"}
"""Names that JAX adds by itself."""
_WRAPPED = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


@cache
def read_stack(text: str) -> tuple[str, bool]:
    """A name stack of JAX as (scope, whether it is backward): the user's names, without transformations.

    JAX writes `transpose(jvp(dec3))/t17` for the backward ops of `dec3/t17`, which gives ('dec3/t17', True).
    """
    names: list[str] = []
    restarts: list[int] = []
    backward = _collect(text, names, restarts)
    for start in restarts:
        # What remat computes again carries the stack of the backward pass and then its own:
        # transpose(jvp(a))/b/jvp(a)/b is a/b.
        if start and names[start : 2 * start] == names[:start]:
            names = names[start:]
            break
    return "/".join(names), backward


def join(outer: str, inner: str) -> str:
    """The scope of an op inside a call: that of the call, then its own."""
    return f"{outer}/{inner}" if outer and inner else outer or inner


def _collect(text: str, names: list[str], restarts: list[int]) -> bool:
    backward = False
    for part in _split(text):
        wrapped = _WRAPPED.fullmatch(part)
        if wrapped and wrapped[1] in _TRANSFORMS:
            restarts.append(len(names))
            backward |= wrapped[1] == "transpose"
            backward |= _collect(wrapped[2], names, restarts)
        elif part and part not in _MARKS and not (wrapped and wrapped[1] in _CALLS):
            names.append(part)
    return backward


def _split(text: str) -> list[str]:
    """At the slashes outside parentheses."""
    if "(" not in text:
        return text.split("/")
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


_BODIES = ("call_jaxpr", "fun_jaxpr", "jaxpr")
"""Params that hold what a call computes; a custom gradient has more jaxprs than that."""


class Reader:
    """What can be read off equations without walking them, remembered: types, callees, sizes, flops."""

    def __init__(self, unroll_limit: int) -> None:
        core = require("jax.extend.core", "agents")
        self._kinds = (core.Jaxpr, core.ClosedJaxpr)
        self._unroll_limit = unroll_limit
        self._types: dict[Any, Type] = {}
        self._sizes: dict[int, int] = {}

    def type_of(self, aval: Any) -> Type:
        shape = getattr(aval, "shape", None)
        if shape is None:  # a token: it orders effects and holds nothing
            return Type((), "u8", 0, 0)
        key = (shape, aval.dtype)
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = _new_type(shape, aval.dtype)
        return known

    def callee(self, equation: Any) -> Any:
        """The jaxpr that an equation stands for, if it is a call.

        Known by its params, because names of calls change between versions of JAX. What it
        takes and gives must be what the equation does: a kernel over blocks is no call.
        """
        if is_known(equation.primitive.name):
            return None
        params = equation.params
        likely = [params[key] for key in _BODIES if key in params]
        for body in (*likely, *params.values()):
            if isinstance(body, self._kinds):
                jaxpr = getattr(body, "jaxpr", body)
                inner, outer = (jaxpr.invars, jaxpr.outvars), (equation.invars, equation.outvars)
                if all(map(self._same, inner, outer)):
                    return body
        return None

    def is_unrolled(self, scan: Any) -> bool:
        return bool(scan.params["length"] * self.size(scan.params["jaxpr"]) <= self._unroll_limit)

    def size(self, body: Any) -> int:
        """How many ops its walk makes, loops unrolled as they will be."""
        jaxpr = getattr(body, "jaxpr", body)
        if id(jaxpr) not in self._sizes:
            self._sizes[id(jaxpr)] = sum(self._equation_size(equation) for equation in jaxpr.eqns)
        return self._sizes[id(jaxpr)]

    def flops(self, body: Any) -> int:
        """Flops of all classes, to compare branches."""
        return sum(self._equation_flops(e) for e in getattr(body, "jaxpr", body).eqns)

    def _same(self, inner: Sequence[Any], outer: Sequence[Any]) -> bool:
        return len(inner) == len(outer) and all(
            self.type_of(a.aval) == self.type_of(b.aval) for a, b in zip(inner, outer, strict=True)
        )

    def _equation_size(self, equation: Any) -> int:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            steps = params["length"] if self.is_unrolled(equation) else 1
            return int(steps) * self.size(params["jaxpr"])
        if name == "while":
            return self.size(params["cond_jaxpr"]) + self.size(params["body_jaxpr"])
        if name == "cond":
            return max(self.size(branch) for branch in params["branches"])
        body = self.callee(equation)
        return 1 if body is None else self.size(body)

    def _equation_flops(self, equation: Any) -> int:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return int(params["length"]) * self.flops(params["jaxpr"])
        if name == "while":
            return self.flops(params["cond_jaxpr"]) + self.flops(params["body_jaxpr"])
        if name == "cond":
            return max(self.flops(branch) for branch in params["branches"])
        body = self.callee(equation)
        if body is not None:
            return self.flops(body)
        operands = [self.type_of(var.aval) for var in equation.invars]
        results = [self.type_of(var.aval) for var in equation.outvars]
        cost = cost_of(name, params, operands, results) or estimate(name, results)
        return cost.flops


def _new_type(shape: Sequence[Any], dtype: Any) -> Type:
    try:
        sizes = tuple(int(size) for size in shape)
    except Exception:  # a symbolic size says in its own way that it is no number
        text = ",".join(str(size) for size in shape)
        raise BadProgram(
            f"an array of shape [{text}] has an unknown dimension",
            object=text,
            remedy="give whole numbers for all dimensions",
        ) from None
    name = from_numpy(str(dtype))
    if name.startswith("key<"):  # a random key is some 32-bit words
        sizes, name = (*sizes, dtype.itemsize // 4), "u32"
    elements = math.prod(sizes)
    bits = BITS.get(name, 8)  # a type that we don't know is refused where it is really used
    return Type(sizes, name, (elements * bits + 7) // 8, elements)


LITERAL = -1
"""In the place of a value: a number that the op carries with it."""
MAX_NESTING = 64

_FORWARDED = {
    "optimization_barrier",
    "sharding_constraint",
    "name",
    "pvary",
    "mesh_cast",
    "reshard",
    "device_put",
}
"""Results are the operands."""


@dataclass(slots=True)
class Node:
    """One application of a primitive."""

    primitive: str
    params: Mapping[str, Any]
    operands: list[int]
    operand_types: list[Type]
    results: list[int]
    scope: str
    backward: bool
    loop: int
    source: int
    elidable: bool = False
    """A copy between a loop and what is around it."""


@dataclass(slots=True)
class Loop:
    """A loop while it is walked: how often it runs, inside which, and what it carries."""

    parent: int
    trips: int
    carried: list[tuple[int, int]] = field(default_factory=list)
    """(the value it enters with, the value that each iteration leaves)."""
    condition: int = LITERAL
    """What decides whether it goes on."""


@dataclass(slots=True)
class Place:
    """Where in the program we are."""

    scope: str = ""
    backward: bool = False
    loop: int = -1
    depth: int = 0


class Walk:
    """Collects `nodes`, `loops` and the `types` of all values."""

    def __init__(self, *, trips: Mapping[str, int], unroll_limit: int) -> None:
        core = require("jax.extend.core", "agents")
        self._literal, self._closed = core.Literal, core.ClosedJaxpr
        self.read = Reader(unroll_limit)
        self.types: list[Type] = []
        self.nodes: list[Node] = []
        self.loops: list[Loop] = []
        self.constants: dict[int, tuple[int, Any]] = {}
        """Closed-over arrays: by identity, the value and the array (which keeps the identity)."""
        self.guessed: list[str] = []
        """Loops whose trip count nobody knows."""
        self.branches: Counter[int] = Counter()
        """How many conditionals had so many branches."""
        self._calls: list[tuple[int, int]] = []
        """Of each call, its first node and the one after its last."""
        self._trips = dict(trips)
        self._while_names: Counter[str] = Counter()

    def program(self, closed: Any) -> tuple[list[int], list[int]]:
        """Walk a whole closed jaxpr: the values of its arguments and of its results."""
        arguments = [self.value(self.read.type_of(var.aval)) for var in closed.jaxpr.invars]
        results = self._closed_body(closed, arguments, Place())
        if self._trips:
            name = next(iter(self._trips))
            known = ", ".join(self.guessed) or "none"
            raise BadProgram(
                f"there is no loop '{name}' of unknown length",
                object=name,
                remedy=f"the loops whose trips can be given: {known}",
            )
        return arguments, results

    def sum_early(self) -> None:
        """Move sums of gradients to where they were if their function were not jitted.

        The transposed call of a function gives all its gradients at its end, and they are added there to those
        of other calls; without the call, each is added right behind the op that makes it.
        """
        nodes = self.nodes
        made = {result: position for position, node in enumerate(nodes) for result in node.results}
        behind = list(range(len(nodes)))
        for first, end in self._calls:
            for at in range(end, len(nodes)):
                inside = [made.get(operand, -1) for operand in nodes[at].operands]
                inside = [position for position in inside if first <= position < end]
                if nodes[at].primitive != "add_any" or not inside:
                    break
                behind[at] = max(inside)
        self.nodes = [nodes[at] for at in sorted(range(len(nodes)), key=behind.__getitem__)]

    def value(self, type: Type) -> int:
        self.types.append(type)
        return len(self.types) - 1

    def node(
        self,
        primitive: str,
        operands: list[int],
        result: Type,
        place: Place,
        *,
        types: list[Type] | None = None,
        elidable: bool = False,
    ) -> int:
        """Add a node that no equation stands for; returns its result."""
        results = [self.value(result)]
        types = [self.types[operand] for operand in operands] if types is None else types
        at = (place.scope, place.backward, place.loop, len(self.nodes))
        self.nodes.append(Node(primitive, {}, operands, types, results, *at, elidable))
        return results[0]

    def _closed_body(self, closed: Any, arguments: Sequence[int], place: Place) -> list[int]:
        constants = [self._constant(array) for array in closed.consts]
        return self._body(closed.jaxpr, constants, arguments, place)

    def _constant(self, array: Any) -> int:
        if id(array) not in self.constants:
            type = self.read.type_of(array)
            self.constants[id(array)] = (self.value(type), array)
        return self.constants[id(array)][0]

    def _body(
        self, jaxpr: Any, constants: Iterable[int], arguments: Iterable[int], place: Place
    ) -> list[int]:
        if place.depth > MAX_NESTING:
            raise BadProgram(
                f"calls are nested more than {MAX_NESTING} deep",
                object=place.scope,
                number=place.depth,
                remedy="flatten the function",
            )
        values: dict[Any, int] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        literal = self._literal
        for equation in jaxpr.eqns:
            operands = [
                self._literal_value(var) if type(var) is literal else values[var] for var in equation.invars
            ]
            results = self._equation(equation, operands, place)
            values.update(zip(equation.outvars, results, strict=True))
        return [self._literal_value(var) if type(var) is literal else values[var] for var in jaxpr.outvars]

    def _literal_value(self, literal: Any) -> int:
        # An array that became a literal still has to lie somewhere.
        return self._constant(literal.val) if getattr(literal.aval, "shape", ()) else LITERAL

    def _equation(self, equation: Any, operands: list[int], place: Place) -> list[int]:
        name = equation.primitive.name
        if name in _FORWARDED:
            return operands
        scope, backward = read_stack(str(equation.source_info.name_stack))
        here = (join(place.scope, scope), place.backward or backward)
        if not is_known(name):
            inner = Place(*here, place.loop, place.depth + 1)
            if name == "scan":
                return self._scan(equation, operands, inner)
            if name == "while":
                return self._while(equation, operands, inner)
            if name == "cond":
                return self._cond(equation, operands, inner)
            body = self.read.callee(equation)
            if body is not None:
                first = len(self.nodes)
                made = self._call(body, operands, inner)
                self._calls.append((first, len(self.nodes)))
                return made
        results = [self.read.type_of(var.aval) for var in equation.outvars]
        if operands and {LITERAL}.issuperset(operands) and all(r.elements == 1 for r in results):
            return [LITERAL] * len(results)  # a constant: folded
        types = [self.read.type_of(var.aval) for var in equation.invars]
        if name == "convert_element_type" and types[0].dtype == results[0].dtype:
            return operands  # only JAX's weak typing changes
        values = [self.value(result) for result in results]
        self.nodes.append(
            Node(name, equation.params, operands, types, values, *here, place.loop, len(self.nodes))
        )
        return values

    def _call(self, body: Any, operands: Sequence[int], place: Place) -> list[int]:
        if isinstance(body, self._closed):
            return self._closed_body(body, operands, place)
        return self._body(body, (), operands, place)

    def _cond(self, equation: Any, operands: list[int], place: Place) -> list[int]:
        """The branch with most flops, as if it were always taken: what chose it is dead then."""
        branches = equation.params["branches"]
        self.branches[len(branches)] += 1
        heaviest = max(branches, key=lambda branch: self.read.flops(branch.jaxpr))
        return self._closed_body(heaviest, operands[1:], place)

    def _scan(self, equation: Any, operands: list[int], place: Place) -> list[int]:
        params = equation.params
        body, length = params["jaxpr"], params["length"]
        n_constants, n_carried = params["num_consts"], params["num_carry"]
        constants = operands[:n_constants]
        carried = operands[n_constants : n_constants + n_carried]
        sequences = operands[n_constants + n_carried :]
        slices = [self.read.type_of(var.aval) for var in body.jaxpr.invars[n_constants + n_carried :]]
        stacks = [self.read.type_of(var.aval) for var in equation.outvars[n_carried:]]

        def iteration(carried: list[int], stacked: list[int], at: Place) -> tuple[list[int], ...]:
            taken = [
                LITERAL if xs == LITERAL else self.node("dynamic_slice", [xs], type, at)
                for xs, type in zip(sequences, slices, strict=True)
            ]
            results = self._closed_body(body, [*constants, *carried, *taken], at)
            written = [
                self._stack(stack, result, type, at)
                for stack, result, type in zip(stacked, results[n_carried:], stacks, strict=True)
            ]
            return results[:n_carried], written

        stacked = [LITERAL] * len(stacks)
        if self.read.is_unrolled(equation):
            for step in reversed(range(length)) if params["reverse"] else range(length):
                scope = join(place.scope, f"t{step}")
                at = Place(scope, place.backward, place.loop, place.depth)
                carried, stacked = iteration(carried, stacked, at)
            if length == 0:
                stacked = [self.node("broadcast_in_dim", [], type, place) for type in stacks]
            return carried + stacked
        types = [self.read.type_of(var.aval) for var in equation.outvars[:n_carried]]
        inside, entered = self._enter(length, carried, types, place)
        left, stacked = iteration(entered, stacked, inside)
        return self._leave(inside, entered, left, types) + stacked

    def _stack(self, stack: int, result: int, type: Type, place: Place) -> int:
        # The first write makes the stack; every other one is over what the last one left.
        number = Type((), type.dtype, type.bytes // max(type.elements, 1), 1)
        part = number if result == LITERAL else self.types[result]
        return self.node("dynamic_update_slice", [stack, result], type, place, types=[type, part])

    def _while(self, equation: Any, operands: list[int], place: Place) -> list[int]:
        params = equation.params
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        types = [self.read.type_of(var.aval) for var in equation.outvars]
        base = join(place.scope, "while")
        name = f"{base}.{self._while_names[base]}"
        self._while_names[base] += 1
        trips = self._trips.pop(name, None)
        if trips is None:
            self.guessed.append(name)
        inside, entered = self._enter(trips or 1, operands[second:], types, place)
        (condition,) = self._closed_body(params["cond_jaxpr"], operands[:first] + entered, inside)
        self.loops[inside.loop].condition = condition
        left = self._closed_body(params["body_jaxpr"], operands[first:second] + entered, inside)
        return self._leave(inside, entered, left, types)

    def _enter(
        self, trips: int, carried: list[int], types: list[Type], place: Place
    ) -> tuple[Place, list[int]]:
        """A loop around what follows, and the values it enters with, each in its own place."""
        entered = [self._own(value, type, place) for value, type in zip(carried, types, strict=True)]
        self.loops.append(Loop(place.loop, trips))
        return Place(place.scope, place.backward, len(self.loops) - 1, place.depth), entered

    def _leave(self, inside: Place, entered: list[int], left: list[int], types: list[Type]) -> list[int]:
        """What each iteration leaves takes the place of what it entered with."""
        # Values that change places are read before any of them is overwritten.
        left = [
            self.node("copy", [new], type, inside) if new != old and new in entered else new
            for old, new, type in zip(entered, left, types, strict=True)
        ]
        results = []
        for old, new, type in zip(entered, left, types, strict=True):
            if new != old:
                new = self._own(new, type, inside)
                self.loops[inside.loop].carried.append((old, new))
            results.append(new)
        return results

    def _own(self, value: int, type: Type, place: Place) -> int:
        if value == LITERAL:
            return self.node("broadcast_in_dim", [], type, place)
        return self.node("copy", [value], type, place, elidable=True)
