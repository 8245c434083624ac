"""TFLite files as Programs.

The order of the operators in the file is the order in which an interpreter runs them, and it runs
all of them: results that nobody reads still take memory, and arithmetic on shapes still takes time.
Only weights that are stored smaller than they are used (float16, sparse) are made once, before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadmaster.errors import BadProgram
from loadmaster.program.build import Access, Builder
from loadmaster.program.importers import malformed, note_estimates, refuse_unknown_loops
from loadmaster.program.importers.tflite.costs import (
    NOT_TENSORS,
    STORED_SMALLER,
    TYPED_BY_OPERAND,
    Site,
    cost,
    unknown_cost,
)
from loadmaster.program.importers.tflite.read import (
    ABSENT,
    Broken,
    Graph,
    Operator,
    Tensor,
    TfliteModel,
    read_bytes,
    read_tflite,
)
from loadmaster.program.kinds import is_unknown
from loadmaster.program.op_costs import Cost
from loadmaster.program.program import Program, TensorKind, TieKind


@dataclass
class Notes:
    """What the user should hear of after an import."""

    unknown: Counter[str] = field(default_factory=Counter)
    branches: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)
    folded: int = 0
    without_result: int = 0
    open: int = 0

    def trips(self, name: str, given: Mapping[str, int]) -> int:
        """How often a loop runs, at least once."""
        self.loops.append(name)
        if name not in given:
            self.guessed.append(name)
        return max(1, given.get(name, 1))

    def texts(self, strict: bool) -> list[str]:
        """The warnings; `strict` makes an error of the first."""
        texts = note_estimates(self.unknown, strict)
        if self.branches:
            names = ", ".join(self.branches[:8])
            texts.append(f"{len(self.branches)} branches: the one with most flops is taken at {names}")
        if self.guessed:
            texts.append(
                f"{len(self.guessed)} loops of unknown length count once: give --trip {self.guessed[0]}=N"
            )
        if self.open:
            texts.append(f"{self.open} tensors have open dimensions: the sizes in the file are taken")
        if self.without_result:
            texts.append(f"{self.without_result} operators without a result were left out")
        if self.folded:
            texts.append(
                f"{self.folded} weights are stored smaller than they are used: the sizes in use are taken"
            )
        return texts


class Variables:
    """Variables of a model: kept from run to run, read and written by ops.

    A variable is a state tensor. Each write makes a new tensor in the same place, so that reads before
    and after it differ, and the order of the ops keeps them apart too.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._handles: dict[tuple[int, int], str] = {}
        self._tensors: dict[Hashable, Tensor] = {}
        self._current: dict[Hashable, int] = {}
        self._before: dict[Hashable, int] = {}

    def name_handle(self, graph: Graph, operator: Operator) -> None:
        """VAR_HANDLE: a tensor that stands for the variable of a name."""
        text = "" if operator.options is None else operator.options.text(1)
        for number in operator.outputs:
            if number != ABSENT:
                self._handles[id(graph), number] = text or f"variable_{number}"

    def of_handle(self, graph: Graph, number: int, who: str) -> Hashable:
        if (id(graph), number) not in self._handles:
            raise malformed(f"{who} uses a variable that no VAR_HANDLE names", who)
        return self._handles[id(graph), number]

    def current(self, key: Hashable, tensor: Tensor) -> int:
        """The tensor that holds the variable now."""
        if key not in self._current:
            name = key if isinstance(key, str) else tensor.name
            self._tensors[key] = tensor
            self._current[key] = self._new(name, tensor, TensorKind.STATE)
        return self._current[key]

    def rewritten(self, key: Hashable) -> int:
        """The tensor that the next op writes over it; `tie` must follow."""
        tensor = self._tensors[key]
        before = self._before[key] = self._current[key]
        if self._builder.tensor_kind(before) == TensorKind.OUTPUT:
            self._builder.set_kind(before, TensorKind.ACTIVATION)  # it is not there at the end
        self._current[key] = self._new(f"{tensor.name}.next", tensor, TensorKind.OUTPUT)
        return self._current[key]

    def tie(self, key: Hashable, op: int) -> None:
        """Op `op` has written it."""
        self._builder.tie(TieKind.INPLACE, self._before[key], self._current[key], op)

    def _new(self, name: str, tensor: Tensor, kind: TensorKind) -> int:
        return self._builder.tensor(
            self._builder.free_name("tensor", name), shape=tensor.shape, dtype=tensor.dtype, kind=kind
        )


MOST_NESTED = 64
MOST_VISITS = 400_000
"""Operators of branches and loops, each as often as it is met."""
_MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a cost rule raises where operands or options are not what the operator takes."""

Values = dict[int, int]
"""Tensor of a graph -> tensor of the program."""


class Walk:
    """Adds one model to a builder."""

    def __init__(
        self, model: TfliteModel, builder: Builder, trips: Mapping[str, int], scratch: Mapping[int, int]
    ) -> None:
        self.model, self.builder, self.trips, self.scratch = model, builder, trips, scratch
        self.notes = Notes()
        self.tensors: Values = {}
        self.scratch_of: dict[int, int] = {}
        self.variables = Variables(builder)
        self._weights: dict[int, int] = {}
        self._visits = 0

    def program(self) -> None:
        """The whole model: its first graph, with those that it calls in their places."""
        graph, values = self.model.graphs[0], self.tensors
        for number in graph.inputs:
            if number != ABSENT and number not in values and not graph.tensors[number].variable:
                values[number] = self._tensor(graph.tensors[number], TensorKind.INPUT)
        self._graph(graph, values, ())
        done: set[int] = set()
        for number in graph.outputs:
            if number == ABSENT or number in done:
                continue
            done.add(number)
            self._output(graph.tensors[number], self._value(graph, values, number, "the graph"))
        self.notes.open = sum(t.open for t in graph.tensors if not t.constant)
        refuse_unknown_loops(self.trips, self.notes.loops)

    def _output(self, tensor: Tensor, value: int) -> None:
        kind = self.builder.tensor_kind(value)
        if kind == TensorKind.ACTIVATION:
            self.builder.set_kind(value, TensorKind.OUTPUT)
        elif kind != TensorKind.OUTPUT:
            own = self._tensor(tensor, TensorKind.OUTPUT)
            self.builder.op(
                self.builder.free_name("op", f"copy_{tensor.name}"),
                "copy",
                reads=[value],
                writes=[own],
                vector=tensor.elements,
            )

    def _graph(self, graph: Graph, values: Values, inside: tuple[int, ...]) -> None:
        """Add a graph's operators; `inside` are the positions of the operators around it."""
        if len(inside) > MOST_NESTED:
            raise malformed(f"graphs are nested more than {MOST_NESTED} deep", "graph", len(inside))
        for position, operator in enumerate(graph.operators):
            self._visits += bool(inside)  # a file has room for those outside of all
            if self._visits > MOST_VISITS:
                raise BadProgram(
                    f"loops and branches stand for more than {MOST_VISITS} operators",
                    object="loops",
                    number=MOST_VISITS,
                    remedy="give fewer trips",
                )
            label = "_".join(map(str, (*inside, position)))
            match operator.name:
                case "IF":
                    self._branch(graph, operator, values, (*inside, position), label)
                case "WHILE":
                    self._loop(graph, operator, values, (*inside, position), label)
                case "CALL_ONCE":
                    continue  # before the first run, not in each
                case "VAR_HANDLE":
                    self.variables.name_handle(graph, operator)
                case "READ_VARIABLE" | "ASSIGN_VARIABLE":
                    self._variable(graph, operator, values, inside, position, label)
                case _:
                    self._operator(graph, operator, values, inside, position, label)

    def _operator(
        self,
        graph: Graph,
        operator: Operator,
        values: Values,
        inside: tuple[int, ...],
        position: int,
        label: str,
    ) -> None:
        who = f"operator {label} ({operator.name})"
        operands = [None if n == ABSENT else graph.tensors[n] for n in operator.inputs]
        results = [number for number in operator.outputs if number != ABSENT]
        if not results:
            self.notes.without_result += 1
            return
        stored = operator.name in STORED_SMALLER and bool(operands)
        if stored and operands[0] is not None and operands[0].constant:
            self._weight_of(graph, results[0], values, who)
            return
        does = self._cost(operator, operands, [graph.tensors[n] for n in results], who)
        skipped = NOT_TENSORS.get(operator.name, ())
        reads: list[Access] = []
        changed: list[int] = []
        for i, (number, operand) in enumerate(zip(operator.inputs, operands, strict=True)):
            if operand is None or (operand.constant and i in skipped) or not operand.elements:
                continue
            tensor = self._value(graph, values, number, who)
            if operand.variable and number not in changed:
                changed.append(number)
            written = sum(graph.tensors[n].bytes for n in results)
            partial = does.partial == i and written < operand.bytes
            reads.append((tensor, written) if partial else tensor)
        does = self._settled(does, graph, operator, reads, values)
        writes: list[Access]
        if does.view:
            base = reads[0] if isinstance(reads[0], int) else reads[0][0]
            view = self._made(graph, results[0], values, who, base)
            reads, writes = [(base, 0)], [(view, 0)]
        else:
            writes = [self._made(graph, number, values, who) for number in results]
        if not inside and self.scratch.get(position):
            self.scratch_of[position] = self.builder.tensor(
                self.builder.free_name("tensor", f"scratch_{label}"), bytes=self.scratch[position]
            )
            writes.append((self.scratch_of[position], 0))
        writes += [self.variables.rewritten((id(graph), number)) for number in changed]
        typed = does.kind in TYPED_BY_OPERAND
        x = operands[2 if operator.name == "TRANSPOSE_CONV" else 0] if operands else None
        op = self.builder.op(
            self.builder.free_name("op", f"{does.kind}_{label}"),
            does.kind,
            reads=reads,
            writes=writes,
            matrix=does.matrix,
            vector=does.vector,
            transcendental=does.transcendental,
            dtype=x.dtype if typed and x is not None else None,
            scope=_scope(graph.tensors[results[0]]),
            attributes={"tflite": operator.name.removeprefix("custom:")},
            view=does.view,
            source=position if not inside else inside[0],
        )
        for number in changed:
            self.variables.tie((id(graph), number), op)

    def _settled(
        self, does: Cost, graph: Graph, operator: Operator, reads: list[Access], values: Values
    ) -> Cost:
        """Whether what could be a view is one: of one array, and not an output beside its source."""
        if not does.view:
            return does
        if len(reads) != 1 or len(operator.outputs) != 1 or operator.inputs[0] == ABSENT:
            return does._replace(view=False)
        source, target = graph.tensors[operator.inputs[0]], graph.tensors[operator.outputs[0]]
        fits = source.bytes == target.bytes and not source.variable
        if graph is self.model.graphs[0] and operator.outputs[0] in graph.outputs:
            root = self.builder.root(reads[0] if isinstance(reads[0], int) else reads[0][0])
            kind = self.builder.tensor_kind(root)
            beside = (self.builder.root(values[n]) == root for n in graph.outputs if n in values)
            fits = fits and kind == TensorKind.ACTIVATION and not any(beside)
        return does._replace(view=fits)

    def _cost(
        self, operator: Operator, operands: list[Tensor | None], results: list[Tensor], who: str
    ) -> Cost:
        site = Site(operator.name, operands, results, operator.options)
        try:
            does = cost(site)
        except _MISFITS as error:
            raise malformed(f"{who} does not fit its operands: {type(error).__name__} {error}", who) from None
        if does is None:
            does = unknown_cost(site)
        if is_unknown(does.kind):
            self.notes.unknown[does.kind] += 1
        return does

    def _tensor(self, tensor: Tensor, kind: TensorKind, alias: int | None = None) -> int:
        stored = tensor.stored if kind == TensorKind.WEIGHT else None
        return self.builder.tensor(
            self.builder.free_name("tensor", tensor.name),
            shape=tensor.shape,
            dtype=tensor.dtype,
            bytes=stored,
            kind=kind,
            alias=alias,
        )

    def _value(self, graph: Graph, values: Values, number: int, who: str) -> int:
        tensor = graph.tensors[number]
        if tensor.variable:
            return self.variables.current((id(graph), number), tensor)
        if number not in values and tensor.constant:
            if tensor.buffer not in self._weights:
                self._weights[tensor.buffer] = self._tensor(tensor, TensorKind.WEIGHT)
            values[number] = self._weights[tensor.buffer]
        if number not in values:
            raise malformed(f"{who} reads '{tensor.name}', which nothing makes before it", tensor.name)
        return values[number]

    def _made(self, graph: Graph, number: int, values: Values, who: str, alias: int | None = None) -> int:
        tensor = graph.tensors[number]
        if number in values or tensor.constant or tensor.variable:
            raise malformed(f"{who} writes '{tensor.name}', which is there already", tensor.name)
        values[number] = self._tensor(tensor, TensorKind.ACTIVATION, alias)
        return values[number]

    def _weight_of(self, graph: Graph, number: int, values: Values, who: str) -> None:
        """A weight that is made when the model is loaded, from a smaller one."""
        if number in values:
            raise malformed(f"{who} writes '{graph.tensors[number].name}' a second time", who)
        values[number] = self._tensor(graph.tensors[number], TensorKind.WEIGHT)
        self.notes.folded += 1

    def _variable(
        self,
        graph: Graph,
        operator: Operator,
        values: Values,
        inside: tuple[int, ...],
        position: int,
        label: str,
    ) -> None:
        reads_it = operator.name == "READ_VARIABLE"
        if len(operator.inputs) != (1 if reads_it else 2) or len(operator.outputs) != int(reads_it):
            raise malformed(
                f"operator {label} ({operator.name}) has {len(operator.inputs)} operands",
                label,
                len(operator.inputs),
            )
        who = f"operator {label} ({operator.name})"
        key = self.variables.of_handle(graph, operator.inputs[0], who)
        number = operator.outputs[0] if reads_it else operator.inputs[1]
        tensor = graph.tensors[number]
        state = self.variables.current(key, tensor)
        if reads_it:
            reads, writes = [state], [self._made(graph, number, values, who)]
        else:
            reads = [self._value(graph, values, number, who)]
            writes = [self.variables.rewritten(key)]
        op = self.builder.op(
            self.builder.free_name("op", f"copy_{label}"),
            "copy",
            reads=reads,
            writes=writes,
            vector=tensor.elements,
            attributes={"tflite": operator.name},
            source=position if not inside else inside[0],
        )
        if not reads_it:
            self.variables.tie(key, op)

    def _called(
        self, graph: Graph, operator: Operator, values: Values, field: int, skip: int, label: str
    ) -> tuple[Graph, Values]:
        """The graph that an operator's option names, and its inputs' values."""
        number = -1 if operator.options is None else operator.options.number(field, "i")
        if not 0 < number < len(self.model.graphs):
            raise malformed(
                f"operator {label} ({operator.name}) calls graph {number} of {len(self.model.graphs)}",
                label,
                number,
            )
        called = self.model.graphs[number]
        given = operator.inputs[skip:]
        if len(given) != len(called.inputs) or ABSENT in (*given, *called.inputs):
            raise malformed(
                f"operator {label} ({operator.name}) gives {len(given)} values to graph {number}, which "
                f"takes {len(called.inputs)}",
                label,
                len(given),
            )
        outer = [self._value(graph, values, n, f"operator {label} ({operator.name})") for n in given]
        return called, dict(zip(called.inputs, outer, strict=True))

    def _branch(
        self, graph: Graph, operator: Operator, values: Values, inside: tuple[int, ...], label: str
    ) -> None:
        sides = [self._called(graph, operator, values, field, 1, label) for field in (0, 1)]
        called, inner = max(sides, key=lambda side: self._flops(side[0]))
        self.notes.branches.append(f"if_{label}")
        self._graph(called, inner, inside)
        self._results(graph, operator, values, called, inner, label)

    def _loop(
        self, graph: Graph, operator: Operator, values: Values, inside: tuple[int, ...], label: str
    ) -> None:
        name = f"while_{label}"
        trips = self.notes.trips(name, self.trips)
        current = [self._value(graph, values, number, name) for number in operator.inputs if number != ABSENT]
        for _ in range(trips):
            test, inner = self._called(graph, operator, values, 0, 0, label)
            self._graph(test, dict(zip(test.inputs, current, strict=True)), inside)
            called, inner = self._called(graph, operator, values, 1, 0, label)
            inner = dict(zip(called.inputs, current, strict=True))
            self._graph(called, inner, inside)
            current = [self._value(called, inner, number, name) for number in called.outputs]
            if len(current) != len(called.inputs):
                raise malformed(
                    f"the body of '{name}' takes {len(called.inputs)} values and leaves {len(current)}",
                    name,
                    len(current),
                )
        self._results(graph, operator, values, called, inner, label)

    def _results(
        self, graph: Graph, operator: Operator, values: Values, called: Graph, inner: Values, label: str
    ) -> None:
        if len(operator.outputs) != len(called.outputs):
            raise malformed(
                f"operator {label} ({operator.name}) has {len(operator.outputs)} results and its graph "
                f"{len(called.outputs)}",
                label,
                len(called.outputs),
            )
        for outer, number in zip(operator.outputs, called.outputs, strict=True):
            if outer != ABSENT and number != ABSENT:
                values[outer] = self._value(called, inner, number, f"operator {label}")

    def _flops(self, graph: Graph) -> int:
        """About how much a graph computes; what it calls is left out."""
        total = 0
        for operator in graph.operators:
            operands = [None if n == ABSENT else graph.tensors[n] for n in operator.inputs]
            results = [graph.tensors[n] for n in operator.outputs if n != ABSENT]
            try:
                does = cost(Site(operator.name, operands, results, operator.options))
            except _MISFITS:
                continue
            if does is not None:
                total += does.flops
        return total


def _scope(tensor: Tensor) -> str:
    """A fused layer's tensor names its parts with semicolons; the first part's path is its scope."""
    return tensor.name.partition(";")[0].rpartition("/")[0].strip("/")


Place = tuple[int, int]
"""A graph of the file and a tensor in it."""


@dataclass(frozen=True)
class Imported:
    """A program, and which of the file's tensors and operators it came from."""

    program: Program
    tensors: dict[int, int]
    """Tensor of the file's first graph -> tensor of the program."""
    scratch: dict[int, int]
    """Operator of the first graph -> the tensor that stands for its scratch memory."""


def import_tflite(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
) -> Program:
    """Read a model: a path, or the bytes of a file. `trips` gives the lengths of loops by op name;
    `strict` refuses ops that would get an estimate."""
    return import_with_places(source, name=name, strict=strict, trips=trips).program


def import_with_places(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
    scratch: Mapping[int, int] | None = None,
) -> Imported:
    """The same, with where things came from. `scratch`: bytes that an operator's kernel needs while it
    runs, by operator; they become tensors that live for that op alone."""
    data = source if isinstance(source, bytes) else read_bytes(source)
    stem = name or ("model" if isinstance(source, bytes) else Path(source).stem)
    model = read_tflite(data, stem if isinstance(source, bytes) else str(source))
    walk = Walk(model, Builder(stem, order_source="schedule"), trips or {}, scratch or {})
    try:
        walk.program()
    except Broken as error:
        raise BadProgram(
            f"'{stem}' has a damaged operator: {error}", object=stem, remedy="export or copy it again"
        ) from None
    walk.builder.warnings += walk.notes.texts(strict)
    return Imported(walk.builder.build(), walk.tensors, walk.scratch_of)
