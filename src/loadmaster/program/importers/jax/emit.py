"""Nodes as ops: the last step from a walked jaxpr to a Program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmaster.errors import BadProgram
from loadmaster.program.build import Builder
from loadmaster.program.importers.jax.costs import Cost
from loadmaster.program.importers.jax.places import Places
from loadmaster.program.importers.jax.walk import LITERAL, Node
from loadmaster.program.kinds import is_unknown
from loadmaster.program.program import TensorKind, TieKind


class Emitter:
    """Writes the nodes of `places` into `build`; `given` names the tensors that no op makes."""

    def __init__(
        self,
        build: Builder,
        places: Places,
        given: Sequence[tuple[int, str, TensorKind]],
        group_scope: str | None,
    ) -> None:
        self._build = build
        self._places = places
        self._types = places.walk.types
        self._tensor: dict[int, int] = {}
        self._op: dict[int, int] = {}
        self._numbers: Counter[str] = Counter()
        self._groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self._group_scope = group_scope
        self._given_names: set[str] = set()
        for value, name, kind in given:
            name = build.free_name("tensor", name)
            self._given_names.add(name)
            self._add_tensor(value, name, kind)

    def run(self, updates: Sequence[tuple[int, int]], *, strict: bool) -> None:
        places, build = self._places, self._build
        self._unknown(strict)
        for loop in places.walk.loops:
            build.loop(loop.trips, loop.parent)
        for position, node in enumerate(places.nodes):
            if not places.is_dropped(node):
                self._op[position] = self._add_op(position, node, places.costs[position])
        for result in places.results:
            value = places.value(result)
            if result != LITERAL and places.producer(value) >= 0:
                build.set_kind(self._tensor[value], TensorKind.OUTPUT)
        for kind, source, target, at in places.ties:
            at = self._op[at] if kind == TieKind.INPLACE else at
            build.tie(kind, self._tensor[source], self._tensor[target], at)
        for source, number in updates:
            self._join_group(source, places.results[number])

    def _add_tensor(self, value: int, name: str, kind: TensorKind, alias: int | None = None) -> int:
        type = self._types[value]
        tensor = self._build.tensor(
            name, shape=type.shape, dtype=type.dtype, bytes=type.bytes, kind=kind, alias=alias
        )
        self._tensor[value] = tensor
        return tensor

    def _add_op(self, position: int, node: Node, cost: Cost) -> int:
        name = self._name(node)
        operands = [LITERAL if v == LITERAL else self._places.value(v) for v in node.operands]
        alias = self._tensor[operands[0]] if cost.view else None
        written: list[int | tuple[int, int]] = []
        for number, result in enumerate(node.results):
            label = name if number == 0 else f"{name}:{number}"
            if label in self._given_names:
                label = self._build.free_name("tensor", label)
            written.append(self._add_tensor(result, label, TensorKind.ACTIVATION, alias))
        reads: list[int | tuple[int, int]] = []
        for number, operand in enumerate(operands):
            if operand != LITERAL:
                size = cost.reads[number] if cost.reads else None
                reads.append(self._tensor[operand] if size is None else (self._tensor[operand], size))
        if cost.view:
            reads, written = [(self._tensor[operands[0]], 0)], [(written[0], 0)]  # type: ignore[list-item]
        elif cost.over is not None and position in self._places.inplace:
            there, update = cost.over
            if operands[0] != LITERAL:
                reads[0] = (self._tensor[operands[0]], there)
            written = [(written[0], update)]  # type: ignore[list-item]
        by_operand = cost.typed_by_operand and node.operand_types
        return self._build.op(
            name,
            cost.kind,
            reads=reads,
            writes=written,
            matrix=cost.matrix,
            vector=cost.vector,
            transcendental=cost.transcendental,
            dtype=node.operand_types[0].dtype if by_operand else None,
            scope=node.scope,
            backward=node.backward,
            view=cost.view,
            loop=node.loop,
            group=self._group(node.scope),
            source=node.source,
        )

    def _name(self, node: Node) -> str:
        # A dot before the number: primitives hold none, so `exp2.1` is never `exp.21`.
        base = f"{node.scope}/{node.primitive}" if node.scope else node.primitive
        number = self._numbers[base]
        self._numbers[base] = number + 1
        return f"{base}.{number}"

    def _group(self, scope: str) -> int:
        """The hard group of a scope: one for each name right under the group scope."""
        if self._group_scope is None:
            return -1
        known = self._group_of.get(scope)
        if known is None:
            prefix = f"{self._group_scope}/"
            name = scope.removeprefix(prefix).split("/")[0] if scope.startswith(prefix) else ""
            known = self._groups.setdefault(name, len(self._groups)) if name else -1
            self._group_of[scope] = known
        return known

    def _join_group(self, source: int, result: int) -> None:
        made = self._places.producer(result) if result != LITERAL else -1
        group = self._group(self._places.nodes[made].scope) if made >= 0 else -1
        if group >= 0:
            self._build.set_group(self._tensor[source], group)

    def _unknown(self, strict: bool) -> None:
        kinds = Counter(c.kind.split(":", 1)[1] for c in self._places.costs if is_unknown(c.kind))
        if not kinds:
            return
        names = ", ".join(f"{name} ×{count}" for name, count in kinds.most_common())
        total = f"{kinds.total()} ops of {len(kinds)} unknown kinds"
        if strict:
            raise BadProgram(
                f"{total}: {names}",
                object=next(iter(kinds)),
                number=kinds.total(),
                remedy="import without strict to estimate them",
            )
        self._build.warnings.append(f"{total} got an estimate: {names}")
