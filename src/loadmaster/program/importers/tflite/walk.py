"""From a TFLite graph to the ops of a program, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadmaster.errors import BadProgram
from loadmaster.program.build import Access, Builder
from loadmaster.program.importers.tflite.costs import (
    NOT_TENSORS,
    STORED_SMALLER,
    Cost,
    Site,
    cost,
    unknown_cost,
)
from loadmaster.program.importers.tflite.notes import Notes
from loadmaster.program.importers.tflite.read import ABSENT, Graph, Operator, Tensor, TfliteModel
from loadmaster.program.importers.tflite.variables import Variables
from loadmaster.program.kinds import is_unknown
from loadmaster.program.program import TensorKind

MOST_NESTED = 64
MOST_VISITS = 400_000
"""Operators of branches and loops, each as often as it is met."""
_TYPED_BY_INPUT = ("argmax", "argmin", "compare", "conv", "lstm", "matmul", "quantize", "svdf")
"""Kinds that compute in the type of what they read, not of what they write."""
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
        self.notes.check_loops(self.trips)

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
            raise BadProgram(
                f"graphs are nested more than {MOST_NESTED} deep",
                object="graph",
                number=len(inside),
                remedy="export the model again",
            )
        for position, operator in enumerate(graph.operators):
            self._visits += 1
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
        typed = does.kind in _TYPED_BY_INPUT
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
            return replace(does, view=False)
        source, target = graph.tensors[operator.inputs[0]], graph.tensors[operator.outputs[0]]
        fits = source.bytes == target.bytes and not source.variable
        if graph is self.model.graphs[0] and operator.outputs[0] in graph.outputs:
            root = self.builder.root(reads[0] if isinstance(reads[0], int) else reads[0][0])
            kind = self.builder.tensor_kind(root)
            shown = (self.builder.root(values[n]) == root for n in graph.outputs if n in values)
            fits = fits and kind == TensorKind.ACTIVATION and not any(shown)
        return replace(does, view=fits)

    def _cost(
        self, operator: Operator, operands: list[Tensor | None], results: list[Tensor], who: str
    ) -> Cost:
        site = Site(operator.name, operands, results, operator.options)
        try:
            does = cost(site)
        except _MISFITS as error:
            raise BadProgram(
                f"{who} does not fit its operands: {type(error).__name__} {error}",
                object=who,
                remedy="export the model again",
            ) from None
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
            raise BadProgram(
                f"{who} reads '{tensor.name}', which nothing makes before it",
                object=tensor.name,
                remedy="export the model again",
            )
        return values[number]

    def _made(self, graph: Graph, number: int, values: Values, who: str, alias: int | None = None) -> int:
        tensor = graph.tensors[number]
        if number in values or tensor.constant or tensor.variable:
            raise BadProgram(
                f"{who} writes '{tensor.name}', which is there already",
                object=tensor.name,
                remedy="export the model again",
            )
        values[number] = self._tensor(tensor, TensorKind.ACTIVATION, alias)
        return values[number]

    def _weight_of(self, graph: Graph, number: int, values: Values, who: str) -> None:
        """A weight that is made when the model is loaded, from a smaller one."""
        if number in values:
            raise BadProgram(
                f"{who} writes '{graph.tensors[number].name}' a second time",
                object=who,
                remedy="export the model again",
            )
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
            raise BadProgram(
                f"operator {label} ({operator.name}) has {len(operator.inputs)} operands",
                object=label,
                number=len(operator.inputs),
                remedy="export the model again",
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
            raise BadProgram(
                f"operator {label} ({operator.name}) calls graph {number} of {len(self.model.graphs)}",
                object=label,
                number=number,
                remedy="export the model again",
            )
        called = self.model.graphs[number]
        given = operator.inputs[skip:]
        if len(given) != len(called.inputs) or ABSENT in (*given, *called.inputs):
            raise BadProgram(
                f"operator {label} ({operator.name}) gives {len(given)} values to graph {number}, which "
                f"takes {len(called.inputs)}",
                object=label,
                number=len(given),
                remedy="export the model again",
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
                raise BadProgram(
                    f"the body of '{name}' takes {len(called.inputs)} values and leaves {len(current)}",
                    object=name,
                    number=len(current),
                    remedy="export the model again",
                )
        self._results(graph, operator, values, called, inner, label)

    def _results(
        self, graph: Graph, operator: Operator, values: Values, called: Graph, inner: Values, label: str
    ) -> None:
        if len(operator.outputs) != len(called.outputs):
            raise BadProgram(
                f"operator {label} ({operator.name}) has {len(operator.outputs)} results and its graph "
                f"{len(called.outputs)}",
                object=label,
                number=len(called.outputs),
                remedy="export the model again",
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
                total += does.matrix + does.vector + does.transcendental
        return total


def _scope(tensor: Tensor) -> str:
    """A fused layer's tensor names its parts with semicolons; the first part's path is its scope."""
    return tensor.name.partition(";")[0].rpartition("/")[0].strip("/")
