"""Steps as a Program: what shares a place, what is written over, and the ops themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmaster.program.build import Access, Builder
from loadmaster.program.importers import note_estimates
from loadmaster.program.importers.torch.costs import TYPED_BY_OPERAND
from loadmaster.program.importers.torch.graph import Graph, Step, Value, live, needed_results, own_updates
from loadmaster.program.kinds import is_unknown
from loadmaster.program.program import Program, TensorKind, TieKind


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
        if step.cost.unread:  # but a runtime wants the tensor itself
            shown = [] if self._needed is not None else [(reads[0][0], 0)]
            return [*shown, *reads[1:]]
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
