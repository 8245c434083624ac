"""ONNX models as programs.

    program = import_onnx("model.onnx", shapes={"data": (1, 3, 224, 224)})

Sizes come from shape inference, node by node; weights are never loaded. Constants and
arithmetic on shapes are folded away, views share storage, what nobody needs is dropped.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram, nearest
from loadmaster.program.build import Access, Builder
from loadmaster.program.importers import note_estimates
from loadmaster.program.importers.onnx.plan import Items, Notes, Planner, Step, pruned
from loadmaster.program.importers.onnx.read import missing_data, read_model
from loadmaster.program.importers.onnx.values import Dims, OpenInputs, Value, shape_words
from loadmaster.program.kinds import ELEMENTWISE, TRANSCENDENTAL, is_unknown
from loadmaster.program.op_costs import each
from loadmaster.program.program import Program, TensorKind, TieKind


def import_onnx(
    source: str | Path | Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    strict: bool = False,
    inplace: Sequence[str] = (),
    trips: Mapping[str, int] | None = None,
) -> Program:
    """Read a model: a path or a `ModelProto`.

    `shapes` fixes inputs with unknown dimensions (and any other tensor whose size depends
    on data). `inplace` names kinds of one-input elementwise ops that overwrite their input
    where nobody needs it afterwards. `trips` gives the lengths of loops, by node name.
    `strict` refuses ops that would get an estimate.
    """
    model, name = read_model(source, slim=True)
    missing = missing_data(source, model.graph)
    planner = Planner(model, shapes or {}, trips or {})
    try:
        inputs, outputs, items = planner.program(model.graph)
    except OpenInputs as error:
        raise _with_proposal(error, model, shapes or {}, trips or {}) from None
    items += _program_outputs(model.graph, outputs)
    items = pruned(items, {id(value) for value in outputs})
    order, notes, nodes = planner.in_file_order, planner.notes, len(model.graph.node)
    del model, planner  # steps have all that is needed, and each goes when it is emitted
    emitter = _Emitter(Builder(name, order_source="file" if order else "topological"), keep=bool(inplace))
    for value in inputs:
        emitter.tensor(value)
    emitter.emit(items)
    emitter.tie_inplace(inplace, outputs)
    emitter.builder.warnings += _warnings(notes, nodes, emitter.unknown, strict) + missing
    return emitter.builder.build()


IMAGE_SIZES = (224, 640, 256, 320, 416, 512, 299, 384, 128, 96, 64, 32, 28)
SEQUENCES = (128, 64, 512, 256, 77, 32, 16, 8, 512, 512, 1, 1, 1)
"""Tried together, in this order, where a file leaves sizes open: what models of the field take."""
CHANNELS = (1, 3, 4)


def _with_proposal(
    error: OpenInputs, model: Any, shapes: Mapping[str, Sequence[int]], trips: Mapping[str, int]
) -> BadProgram:
    """The same error, with the first sizes for which the whole graph makes sense, each branch included if any do.
    They are proposed, never taken."""
    stated = _stated_sizes(model)
    tried = [*((size, size) for size in stated), *zip(IMAGE_SIZES, SEQUENCES, strict=True)]
    proposed: dict[str, list[int]] | None = None
    for image, sequence in tried:
        found = _fill(error.inputs, image, sequence)
        with contextlib.suppress(BadProgram):
            planner = Planner(model, {**shapes, **found}, trips)
            planner.program(model.graph)
            proposed = proposed or found
            if not planner.notes.refused:
                proposed = found
                break
    if proposed is None:
        return error
    remedy = f"give {shape_words(proposed, error.inputs)}"
    message = error.message.removesuffix(f": {error.remedy}")
    return BadProgram(message, object=error.object, number=error.number, remedy=remedy)


def _stated_sizes(model: Any) -> list[int]:
    """What the file's own metadata says of sizes, as `imgsz` of YOLO's: whole numbers of two to four digits."""
    texts = [
        prop.value
        for prop in model.metadata_props
        if "size" in prop.key.lower() or "imgsz" in prop.key.lower()
    ]
    found = [int(number) for text in texts for number in re.findall(r"(?<![0-9])[0-9]{2,4}(?![0-9])", text)]
    return list(dict.fromkeys(found))[:4]


def _fill(inputs: Mapping[str, tuple[str, Dims | None]], image: int, sequence: int) -> dict[str, list[int]]:
    """One size for every open dimension: a batch of one, three channels, and what is tried. One name has one size."""
    named: dict[str, int] = {}
    filled: dict[str, list[int]] = {}
    for name, (dtype, dims) in inputs.items():
        shape = dims or ("?",)
        is_image = (len(shape) == 4 and dtype[0] not in "iu") or (dtype == "uint8" and len(shape) == 4)
        last = is_image and shape[3] in CHANNELS and shape[1] not in CHANNELS
        # What a recurrent layer carries on: layers, batch, width.
        is_state = len(shape) == 3 and [isinstance(dim, str) for dim in shape] == [False, True, False]
        sizes = []
        for place, dim in enumerate(shape):
            if isinstance(dim, int):
                sizes.append(dim)
                continue
            inner = 3 if is_image and place == (3 if last else 1) else image if is_image else sequence
            size = named.get(dim, 1 if place == 0 or is_state or "batch" in dim.lower() else inner)
            if dim != "?":
                named[dim] = size
            sizes.append(size)
        filled[name] = sizes
    return filled


def _program_outputs(graph: Any, outputs: list[Value]) -> Items:
    """Mark the outputs; what no op makes for that output alone is copied into a tensor of its own."""
    copies: Items = []
    for i, (info, value) in enumerate(zip(graph.output, outputs, strict=True)):
        if value.constant or value.given or value.output:
            own = Value(info.name, value.dtype, value.shape)
            copies.append(Step(f"copy_{info.name}", each("copy", own.elements), [value], [own]))
            outputs[i] = value = own
        value.output = True
        value.name = info.name
    return copies


def _warnings(notes: Notes, nodes: int, unknown: Counter[str], strict: bool) -> list[str]:
    texts = note_estimates(unknown, strict)
    if notes.branches:
        names = ", ".join(notes.branches[:8])
        texts.append(f"{len(notes.branches)} branches: the one with most flops is taken at {names}")
    texts += notes.loops + notes.refused[:8]
    if notes.folded:
        texts.append(f"{notes.folded} of {nodes} nodes are constant and were folded away")
    return texts


class _Emitter:
    """Adds steps to a builder."""

    def __init__(self, builder: Builder, keep: bool) -> None:
        self.builder, self._keep = builder, keep
        self.unknown: Counter[str] = Counter()
        self._named: Counter[tuple[str, str]] = Counter()
        self._ops: list[tuple[Step, int]] = []
        """The step and the loop of every op, to be kept where ops may share places."""

    def tensor(self, value: Value) -> int:
        """The value's tensor, added when it is first met."""
        if value.tensor < 0:
            kind = TensorKind.WEIGHT if value.constant else TensorKind.ACTIVATION
            kind = TensorKind.INPUT if value.given else TensorKind.OUTPUT if value.output else kind
            value.tensor = self.builder.tensor(
                self._free_name("tensor", value.name),
                shape=value.shape,
                dtype=value.dtype,
                bytes=value.stored,
                kind=kind,
                alias=None if value.base is None else self.tensor(value.base),
            )
        return value.tensor

    def _free_name(self, table: str, name: str) -> str:
        # Thousands of nodes may have one name: the count saves trying all numbers for each.
        self._named[table, name] += 1
        number = self._named[table, name]
        return self.builder.free_name(table, name if number == 1 else f"{name}#{number}")

    def emit(self, items: Items, loop: int = -1) -> None:
        """All of them; the list is empty then."""
        items.reverse()
        while items:
            item = items.pop()
            if isinstance(item, Step):
                self._emit_op(item, loop)
                continue
            inner = self.builder.loop(item.trips, loop)
            self.emit(item.body, inner)
            for state, result in item.carried:
                self.builder.tie(TieKind.CARRIED, self.tensor(state), self.tensor(result), inner)

    def _emit_op(self, step: Step, loop: int) -> None:
        does = step.cost
        reads: list[Access] = [self.tensor(value) for value in step.reads]
        writes: list[Access] = [self.tensor(value) for value in step.writes]
        if does.view:
            reads, writes = [(step.reads[0].tensor, 0)], [(step.writes[0].tensor, 0)]
        elif does.partial is not None:
            reads[0] = (step.reads[0].tensor, sum(value.bytes for value in step.writes))
        elif step.write_bytes is not None:
            writes[0] = (step.writes[0].tensor, step.write_bytes)
        self.builder.op(
            self._free_name("op", step.name or f"{does.kind}_{self.builder.n_ops}"),
            does.kind,
            reads=reads,
            writes=writes,
            matrix=does.matrix,
            vector=does.vector,
            transcendental=does.transcendental,
            dtype=step.dtype,
            scope=step.scope,
            attributes=step.attributes,
            view=does.view,
            loop=loop,
            source=step.source,
        )
        if self._keep:
            self._ops.append((step, loop))
        if is_unknown(does.kind):
            self.unknown[does.kind] += 1

    def tie_inplace(self, kinds: Sequence[str], outputs: Sequence[Value]) -> None:
        """Let ops of these kinds overwrite an activation of the same size that nobody reads later."""
        for kind in kinds:
            words = {*ELEMENTWISE, *TRANSCENDENTAL}
            words |= {step.cost.kind for step, _ in self._ops if step.cost.elementwise}
            if kind not in words:
                raise BadProgram(
                    f"'{kind}' is no elementwise op{nearest(kind, sorted(words))}",
                    object=kind,
                    remedy="name kinds such as relu",
                )
        last_reader: dict[Value, int] = {}
        maker: dict[Value, int] = {}
        for op, (step, _) in enumerate(self._ops):
            last_reader.update((value.root, op) for value in step.reads)
            maker.update((value.root, op) for value in step.writes if value.base is None)
        kept = {value.root for value in outputs}
        for op, (step, loop) in enumerate(self._ops):
            if step.cost.kind not in kinds or not step.cost.elementwise or len(step.reads) != 1:
                continue
            source, target = step.reads[0], step.writes[0]
            root = source.root
            dies = root in maker and last_reader[root] == op and root not in kept
            if dies and root.bytes == target.bytes and self._ops[maker[root]][1] == loop:
                self.builder.tie(TieKind.INPLACE, source.tensor, target.tensor, op)
