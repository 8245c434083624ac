"""A graph of ATen calls over values, from the nodes of torch.fx to the Program made of it.

First what a graph is (plain data, no PyTorch), then how a node becomes a call (shapes from the tracer,
arguments by the schema's names), then how the calls become ops.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.build import Access, Builder
from loadmaster.program.importers import note_estimates
from loadmaster.program.importers.torch.costs import TYPED_BY_OPERAND, Call, Type, cost_of, estimate
from loadmaster.program.importers.torch.nested import Nested
from loadmaster.program.kinds import BITS, from_numpy, is_unknown
from loadmaster.program.op_costs import Cost
from loadmaster.program.program import Program, TensorKind, TieKind


@dataclass(slots=True)
class Value:
    """A tensor. A view's `base` is what it shows."""

    type: Type
    name: str
    bytes: int
    base: Value | None = None
    given: TensorKind | None = None
    """Weight, input or state; None: a call makes it."""
    fast: bool = True
    tensor: int = -1

    @property
    def root(self) -> Value:
        value = self
        while value.base is not None:
            value = value.base
        return value


@dataclass(slots=True)
class Step:
    """One call. `operands` are aligned with `call.operands`, `results` with `call.results`."""

    name: str
    call: Call
    operands: list[Value]
    results: list[Value]
    scope: str = ""
    source: int = -1
    view: bool = False
    backward: bool = False
    random: bool = False
    """It gives other numbers each time."""
    cost: Cost = field(init=False)

    def __post_init__(self) -> None:
        self.cost = cost_of(self.call) or estimate(self.call)


@dataclass
class Graph:
    """All of it, in the order in which it runs."""

    given: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    updates: list[tuple[Value, Value]] = field(default_factory=list)
    """(state, what takes its place at the end)."""
    folded: int = 0
    """Nodes that move and compute nothing."""


def made(type: Type, name: str, base: Value | None = None) -> Value:
    """A value that a call makes. A view has no more bytes than what it shows: `expand` repeats them."""
    size = type.bytes if base is None else min(type.bytes, base.bytes)
    return Value(type, name, size, base)


def live(graph: Graph) -> list[Step]:
    """The steps whose results somebody needs."""
    needed = {id(value) for value in [*graph.outputs, *(new for _, new in graph.updates)]}
    kept: list[Step] = []
    for step in reversed(graph.steps):
        if any(id(result) in needed for result in step.results):
            kept.append(step)
            needed |= {id(operand) for operand in step.operands}
    return kept[::-1]


def own_updates(graph: Graph) -> None:
    """State needs a new value in a place of its own: what is given or taken twice is copied."""
    taken: set[int] = set()
    for number, (state, new) in enumerate(graph.updates):
        if new.root is state:
            continue
        if new.root.given is not None or id(new.root) in taken:
            call = Call("clone", {"self": new.type}, [new.type])
            copy = made(new.type, f"{state.name}.new")
            graph.steps.append(Step(f"copy_{state.name}", call, [new], [copy]))
            graph.updates[number] = (state, copy)
            new = copy
        taken.add(id(new.root))


def needed_results(steps: Sequence[Step], graph: Graph) -> set[int]:
    """Identities of values that are read or leave the program."""
    read = {id(operand) for step in steps for operand in step.operands}
    return read | {id(v) for v in graph.outputs} | {id(new) for _, new in graph.updates}


def type_of(value: Any, name: str) -> Type:
    """The type of a (fake) tensor. An unknown size is an error: it is never guessed."""
    for size in value.shape:
        if not isinstance(size, int) and not _is_plain(size):
            raise BadProgram(
                f"tensor '{name}' has unknown dimension '{size}'",
                object=name,
                number=str(size),
                remedy="give example inputs whose results have fixed shapes",
            )
    dtype = from_numpy(str(value.dtype).removeprefix("torch."))
    if dtype not in BITS:
        raise BadProgram(
            f"tensor '{name}' has the element type '{dtype}', which is not known",
            object=name,
            number=dtype,
            remedy=f"use one of {', '.join(BITS)}",
        )
    return Type(tuple(int(size) for size in value.shape), dtype)


def _is_plain(size: Any) -> bool:
    """Whether a symbolic size stands for a number."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return bool(getattr(expression, "is_number", False))


def op_name(target: Any) -> str:
    """'conv2d' for aten.conv2d.default; the function's name for what is no ATen op."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def is_getitem(node: Any) -> bool:
    """Whether a node takes one part of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem


def is_random(node: Any) -> bool:
    """Whether a node draws random numbers. Attention may: only if it drops something."""
    tags = {str(tag) for tag in getattr(node.target, "tags", ())}
    if not any(tag.endswith("nondeterministic_seeded") for tag in tags):
        return False
    return bind(node, {})[0].get("dropout_p") != 0


def bind(node: Any, values: dict[Any, list[Value]]) -> tuple[dict[str, Any], list[Value]]:
    """Arguments by name, with types where tensors are, and the tensors in the order they come in."""
    operands: list[Value] = []

    def plain(argument: Any) -> Any:
        if hasattr(argument, "all_input_nodes"):  # a node
            if argument in values:
                found = values[argument]
                operands.extend(found)
                types = [value.type for value in found]
                return types[0] if len(types) == 1 else types
            return argument.meta.get("val")
        if isinstance(argument, list | tuple):
            return [plain(each) for each in argument]
        return argument

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        given = [*node.args, *getattr(node, "kwargs", {}).values()]
        named: Iterable[tuple[str, Any]] = ((str(i), each) for i, each in enumerate(given))
        return {name: plain(each) for name, each in named}, operands
    args: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.is_out:
            continue
        if position < len(node.args):
            args[argument.name] = plain(node.args[position])
        else:
            default = argument.default_value if argument.has_default_value() else None
            args[argument.name] = plain(node.kwargs.get(argument.name, default))
    return args, operands


def call_of(node: Any, values: dict[Any, list[Value]], results: list[Type]) -> tuple[Call, list[Value]]:
    """A node as a call whose cost can be looked up, and the values that it reads."""
    cost_call = getattr(node.target, "cost_call", None)
    if cost_call is not None:  # several calls as one
        return cost_call(node, values, results), bind(node, values)[1]
    args, operands = bind(node, values)
    return Call(op_name(node.target), args, results), operands


def part_of(node: Any, values: dict[Any, list[Value]]) -> Value:
    """What a getitem takes; parts that are no tensors have no values."""
    source, number = node.args
    before = list(source.meta["val"])[:number]
    return values[source][sum(hasattr(part, "dtype") for part in before)]


def results_of(node: Any) -> list[Type]:
    """The types of the tensors that a node makes."""
    value = node.meta.get("val")
    parts = list(value) if isinstance(value, list | tuple) else [value]
    return [type_of(part, node.name) for part in parts if hasattr(part, "dtype")]


def scope_of(node: Any) -> str:
    """The path of the innermost module that the node comes from, as 'layers/3/attention'."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix("L__self__").strip(".").replace(".", "/")


def placeholders(graph: Any) -> dict[str, Any]:
    """The nodes through which a torch.fx graph is given its values (PyTorch's word), by name."""
    return {node.name: node for node in graph.nodes if node.op == "placeholder"}


@dataclass(frozen=True)
class Given:
    """One tensor among the graph's placeholders."""

    node: str
    """Name of the fx node."""
    kind: TensorKind
    """WEIGHT (constants and unchanged buffers too), STATE or INPUT."""
    source: str = ""
    """Name of the parameter, buffer or constant; empty for a user's input."""
    position: int = -1
    """Number of a user's input among the leaves of (args, kwargs)."""
    tensor: int = -1
    """Row in the Program; -1 for a weight that nobody reads."""
    rows: tuple[int, int] | None = None
    """It is `source[low:high]`; None: all of it."""
    held: bool = False
    """The caller has it on the device: it takes no room of a plan, and is never copied."""
    late: bool = False
    """It comes with the backward call of a training step."""


@dataclass(frozen=True)
class Result:
    """One leaf of what the graph returns, in the order of the output node's arguments."""

    node: str
    """Name of the fx node; empty if the leaf is a number or None."""
    part: int = 0
    """Which of the node's tensors it is."""
    what: str = "output"
    """'output', 'loss', 'gradient' or 'update' (a buffer's new value)."""
    name: str = ""
    """The parameter of a gradient, the buffer of an update."""
    tensor: int = -1
    """Row in the Program; -1 for what was given and for what is no tensor."""
    rows: tuple[int, int] | None = None
    """It is the gradient of `name[low:high]`; None: of all of it."""
    sink: bool = False
    """The caller takes it on the device as soon as it is made: a plan need not keep it."""
    stays: bool = False
    """The caller takes it on the device at the end: a plan keeps it there."""
    late: bool = False
    """It belongs to the backward call of a training step."""


@dataclass
class Traced:
    """A functional graph and its roles, before there is a Program."""

    graph: Any
    """torch.fx.Graph: placeholders, calls of ATen overloads, getitems, output."""
    given: list[Given]
    results: list[Result]
    constants: dict[str, Any] = field(default_factory=dict)
    backward: set[str] = field(default_factory=set)
    """Names of the nodes of the backward pass."""


def stay(*_: Any) -> tuple[()]:
    """What the last op of a graph does with results that stay on the device: it needs them there."""
    return ()


def copied(graph: Any) -> Any:
    """A copy of a torch.fx graph in which nodes have the same names."""
    twin = require("torch", "torch").fx.Graph()
    own: dict[Any, Any] = {}
    twin.output(twin.graph_copy(graph, own))
    for theirs, node in own.items():
        node.name = theirs.name  # a copy avoids names of Python's own, such as 'input'
    return twin


_SHAPED_LIKE = {"expand_as": "expand", "view_as": "view", "reshape_as": "reshape"}
"""Views that read no more than another tensor's shape, and the same with the shape itself."""


def drop_idle(graph: Any) -> None:
    """Take out what only tells autograd something, and what reads a second tensor to no purpose: a view
    is of one tensor."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        name = op_name(node.target)
        if name in ("detach", "alias") or (name == "type_as" and _gives_back(node)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif name in _SHAPED_LIKE:
            node.target = getattr(require("torch", "torch").ops.aten, _SHAPED_LIKE[name]).default
            node.args = (node.args[0], [int(size) for size in node.meta["val"].shape])


def _gives_back(node: Any) -> bool:
    """Whether a call gives its first argument itself."""
    given, found = node.args[0].meta["val"], node.meta["val"]
    return bool(
        given.dtype == found.dtype and given.untyped_storage()._cdata == found.untyped_storage()._cdata
    )


def tidy(traced: Traced, name: str) -> None:
    """Leave nothing in the graph but calls of ATen ops that somebody needs, and those that check what they are given."""
    graph, given = traced.graph, {each.node for each in traced.given}
    for node in graph.nodes:
        value = node.meta.get("val")
        if is_getitem(node) and isinstance(value, bool | int | float):
            node.replace_all_uses_with(value)  # a part that is a plain number
        if node.op == "call_function" and op_name(node.target) == "as_strided":
            _relative(node)
        if checks(node):
            node.meta.setdefault("val", ())  # it makes nothing
    for node in reversed(list(graph.nodes)):
        tensor = node.op == "output" or (node.op == "placeholder" and node.name in given)
        kept = writes(node) or checks(node)  # the former are refused
        if not tensor and not node.users and not kept:
            graph.erase_node(node)
    for node in graph.nodes:
        known = node.op in ("placeholder", "output") or is_getitem(node)
        called = node.op == "call_function" and (
            hasattr(node.target, "_schema") or isinstance(node.target, Nested)
        )
        if not known and not called:
            raise BadProgram(
                f"'{name}' calls '{node.target}', which is no ATen op",
                object=name,
                number=node.name,
                remedy="write that part with plain tensor ops",
            )
        if writes(node):
            raise BadProgram(
                f"'{name}' has '{node.target}', which writes over its argument",
                object=name,
                number=node.name,
                remedy="use the op that returns a new tensor",
            )


def _relative(node: Any) -> None:
    """Let a strided view begin where its source begins, wherever a runtime puts that."""
    source, size, stride, *offset = node.args
    if offset and offset[0] == source.meta["val"].storage_offset():
        node.args = (source, size, stride)


def writes(node: Any) -> bool:
    """Whether a call writes over an argument of its own."""
    arguments = node.target._schema.arguments if hasattr(node.target, "_schema") else []
    aliases = (argument.alias_info for argument in arguments)
    return any(alias is not None and alias.is_write for alias in aliases)


def checks(node: Any) -> bool:
    """Whether a call makes nothing, and complains of a tensor that is not true: what becomes of `assert`."""
    return node.op == "call_function" and has_effects(node.target)


def has_effects(target: Any) -> bool:
    """Whether an op does something beside its results, and is not to be tried with values that are made up."""
    return getattr(target, "has_effects", False) or str(target) == "aten._assert_async.msg"


def emit(graph: Graph, name: str, *, strict: bool = False, fixed: bool = False) -> Program:
    """The Program of a graph. `fixed`: as it is, with results that nobody reads, each in a place of
    its own."""
    own_updates(graph)
    steps = graph.steps if fixed else live(graph)
    build = Builder(name, order_source="trace")
    kinds = Counter(step.call.op for step in steps if not step.view and is_unknown(step.cost.kind))
    build.warnings += note_estimates(kinds, strict)
    if graph.folded:
        build.warnings.append(f"{graph.folded} nodes compute nothing and were folded away")
    emitter = _Emitter(build, graph, steps, fixed)
    emitter.run()
    return build.build()


class _Emitter:
    """What shares a place, what is written over, and the ops themselves."""

    def __init__(self, build: Builder, graph: Graph, steps: list[Step], as_is: bool) -> None:
        self._build, self._graph, self._steps = build, graph, steps
        self._needed = None if as_is else needed_results(steps, graph)
        self._last_read: dict[int, int] = {}
        self._made: dict[int, int] = {}
        for position, step in enumerate(steps):
            self._last_read |= {id(operand.root): position for operand in step.operands}
            self._made |= {id(result): position for result in step.results}
        states = {id(state) for state, _ in graph.updates}
        self._fixed = {id(v) for v in graph.given if id(v) not in states}
        self._fixed |= {id(value.root) for value in graph.outputs}
        self._over: dict[int, Value] = {}
        """Root by root: the one whose place it continues."""
        self._overwritten: set[int] = set()
        self._op: dict[int, int] = {}

    def run(self) -> None:
        for value in self._graph.given:
            if value.given != TensorKind.WEIGHT or id(value) in self._last_read:
                self._tensor(value)
        for position, step in enumerate(self._steps):
            self._op[position] = self._add_op(position, step)
        for state, new in self._graph.updates:
            self._replace(state, new)
        for value in [*self._graph.outputs, *(new for _, new in self._graph.updates)]:
            if value.given is None:
                self._build.set_kind(self._tensor(value), TensorKind.OUTPUT)

    def _tensor(self, value: Value) -> int:
        if value.tensor < 0:
            value.tensor = self._build.tensor(
                self._build.free_name("tensor", value.name),
                shape=value.type.shape,
                dtype=value.type.dtype,
                bytes=value.bytes,
                fast=value.fast,
                kind=TensorKind.ACTIVATION if value.given is None else value.given,
                alias=None if value.base is None else self._tensor(value.base),
            )
        return value.tensor

    def _add_op(self, position: int, step: Step) -> int:
        cost, needed = step.cost, self._needed
        results = [r for r in step.results if needed is None or id(r) in needed]
        over = None if step.view else self._write_over(position, step)
        reads: Sequence[Access]
        writes: Sequence[Access]
        if step.view:
            reads = [(self._tensor(step.operands[0]), 0)]
            writes = [(self._tensor(result), 0) for result in results]
        else:
            reads = self._reads(step, over)
            writes = [self._tensor(result) for result in results]
            if over is not None:
                writes = [(self._tensor(results[0]), over[1])]
        by_operand = cost.kind in TYPED_BY_OPERAND and step.operands
        return self._build.op(
            self._build.free_name("op", step.name),
            _view_kind(step) if step.view else cost.kind,
            reads=reads,
            writes=writes,
            matrix=0 if step.view else cost.matrix,
            vector=0 if step.view else cost.vector,
            transcendental=0 if step.view else cost.transcendental,
            dtype=step.operands[0].type.dtype if by_operand else None,
            scope=step.scope,
            view=step.view,
            source=step.source,
            backward=step.backward,
            attributes={"random": True} if step.random else None,
        )

    def _reads(self, step: Step, over: tuple[int, int] | None) -> Sequence[Access]:
        reads = [(self._tensor(v), v.bytes) for v in step.operands]
        if step.call.op == stay.__name__:
            return [(tensor, 0) for tensor, _ in reads]
        if step.cost.unread:  # but a runtime takes the tensor itself
            first = [] if self._needed is not None else [(reads[0][0], 0)]
            return [*first, *reads[1:]]
        if reads and over is not None:
            reads[0] = (self._tensor(step.operands[0]), over[0])
        elif reads and step.cost.partial is not None:
            taken = sum(result.bytes for result in step.results)
            reads[0] = (self._tensor(step.operands[0]), min(taken, step.operands[0].bytes))
        return reads

    def _write_over(self, position: int, step: Step) -> tuple[int, int] | None:
        """The bytes that it reads and writes in its first operand's place, if it may work there."""
        if step.cost.over is None or self._needed is None:
            return None
        root, result = step.operands[0].root, step.results[0]
        key = id(root)
        dies = self._last_read[key] == position and key not in self._fixed
        if not dies or key in self._overwritten or root.bytes != result.bytes:
            return None
        self._build.tie(TieKind.INPLACE, self._tensor(root), self._tensor(result), position)
        self._over[id(result)] = root
        self._overwritten.add(key)
        return step.cost.over

    def _replace(self, state: Value, new: Value) -> None:
        """Let a new value take the place of state."""
        target = first = new.root
        while id(first) in self._over:
            first = self._over[id(first)]
        if first is state or target.given is not None:
            return
        at = self._made[id(first)]
        free = id(state) not in self._overwritten and self._last_read.get(id(state), -1) <= at
        if free and first.bytes == state.bytes:
            self._build.tie(TieKind.INPLACE, state.tensor, first.tensor, self._op[at])
        else:
            self._build.tie(TieKind.DONATED, state.tensor, target.tensor)


def _view_kind(step: Step) -> str:
    names = {
        "expand": "broadcast",
        "permute": "transpose",
        "t": "transpose",
        "select": "slice",
        "narrow": "slice",
        "split_with_sizes": "split",
        "chunk": "split",
        "unbind": "split",
    }
    known = ("transpose", "slice", "split", "squeeze", "unsqueeze", "flatten")
    return names.get(step.call.op, step.call.op if step.call.op in known else "reshape")
