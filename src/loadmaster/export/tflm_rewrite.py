"""A TFLite model that computes the same in fewer bytes: tensors that share places.

TFLite Micro follows whatever offsets a file carries. So tensors may share bytes: a reshape or a slice of whole
rows lies where its source lies, what is concatenated lies in the result from the start, and an elementwise
operator writes over an operand that nobody reads again. Their kernels then copy bytes onto themselves.

Bands are made in `tflm_bands`. `Draft` is a graph to be written; `share` says which tensors lie in one another; `check_places` goes through the
operators and looks whether every one still finds what it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.buffers import Buffers, Gap
from loadmaster.allocation.heuristics import SizeFirstFit
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import Refused
from loadmaster.export.plans import NotExported
from loadmaster.export.tflm_arena import HOST, ONLINE, Target, scratch_requests
from loadmaster.export.tflm_file import (
    ALIGNMENT,
    BY_RUNTIME,
    GRAPH_FIELDS,
    METADATA,
    MODEL_FIELDS,
    OPERATOR_FIELDS,
    REFERENCE,
    TENSOR_FIELDS,
    VERSION,
    Head,
    check_simple,
)
from loadmaster.program.importers.tflite.read import (
    ABSENT,
    GRAPH,
    MODEL,
    OPERATOR,
    OPERATORS,
    Graph,
    Table,
    TfliteModel,
)
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.problem import Problem
from loadmaster.search.solver import Budget, solve

PACK_NODES = 20_000
PACK_EFFORT = 1_000_000
"""Work of the search for offsets: the same answer on every computer."""

_WORDS = """
ADD SUB MUL DIV MAXIMUM MINIMUM RELU RELU6 RELU_N1_TO_1 LOGISTIC TANH HARD_SWISH LEAKY_RELU ELU ABS NEG
SQUARE SQRT RSQRT EXP LOG SIN COS FLOOR CEIL ROUND PRELU QUANTIZE
"""
IN_PLACE = frozenset(_WORDS.split())
"""Kernels that read an element before they write the one in its place, and no other."""
_VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_I32 = 2
_CONCATENATION_OPTIONS = 10


@dataclass(frozen=True)
class Made:
    """A tensor of a draft."""

    source: int | None
    """The tensor of the file that it is a copy of; None: new whole numbers."""
    shape: tuple[int, ...]
    size: int
    is_planned: bool
    """Whether it needs a place in the arena."""
    data: bytes | None = None

    @property
    def row_bytes(self) -> int:
        return self.size // self.shape[1]


@dataclass(frozen=True)
class Step:
    """An operator of a draft."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    source: int | None
    """The operator of the file whose options it has; None: none, or `axis`."""
    axis: int | None = None


class Piece(NamedTuple):
    """Where a tensor lies: in which tensor's bytes, and how far in."""

    root: int
    at: int


@dataclass(frozen=True)
class Draft:
    """A first graph, to be written in place of the model's."""

    model: TfliteModel
    tensors: tuple[Made, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    notes: tuple[str, ...] = ()
    """What was changed, for the user."""
    extra_macs: float = 0.0
    """Multiply-adds that are done again, as a share of the model's."""

    @cached_property
    def graph(self) -> Graph:
        return self.model.graphs[0]

    @cached_property
    def life(self) -> list[tuple[int, int]]:
        """Of each tensor: from which step, to before which; (0, 0) if it is never there."""
        count = len(self.steps)
        first = {n: 0 for n in self.inputs if n != ABSENT}
        last = dict.fromkeys(first, 1)
        for at, step in enumerate(self.steps):
            for number in step.outputs:
                first[number] = last[number] = at
            for number in (*step.inputs, *step.outputs):
                last[number] = max(last.get(number, 0), at + 1)
        for number in self.outputs:
            last[number] = count
        return [
            (first[n], last[n]) if n in first and tensor.is_planned else (0, 0)
            for n, tensor in enumerate(self.tensors)
        ]

    def reordered(self, order: Sequence[int]) -> Draft:
        """The same steps in another order, by their numbers here."""
        moved = tuple(self.steps[number] for number in order)
        return self if moved == self.steps else replace(self, steps=moved)


def make_draft(model: TfliteModel) -> Draft:
    """The model as it is."""
    graph = model.graphs[0]
    handles = {n for op in graph.operators if op.name == "VAR_HANDLE" for n in op.outputs}
    tensors = tuple(
        Made(n, t.shape, t.bytes, not t.constant and not t.variable and n not in handles and t.bytes > 0)
        for n, t in enumerate(graph.tensors)
    )
    steps = tuple(Step(op.name, op.inputs, op.outputs, i) for i, op in enumerate(graph.operators))
    return Draft(model, tensors, steps, graph.inputs, graph.outputs)


# Which tensors share bytes.


def share(draft: Draft, *, in_place: bool = True) -> list[Piece]:
    """Where each tensor lies: in itself, or in another whose bytes it may have."""
    return _Sharing(draft).pieces(in_place)


class _Sharing:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.parent: list[Piece] = [Piece(n, 0) for n in range(len(draft.tensors))]
        self.members: dict[int, list[int]] = {n: [n] for n in range(len(draft.tensors))}

    def pieces(self, in_place: bool) -> list[Piece]:
        for at, step in enumerate(self.draft.steps):
            for view, source, offset in _views(self.draft, step):
                self._place(view, source, offset)
            if in_place and step.name in IN_PLACE:
                self._overwrite(at, step)
        return self.parent

    def _whole(self, number: int) -> bool:
        """Whether a tensor has all bytes of its root: it can be moved into another."""
        root = self.parent[number].root
        return self.draft.tensors[root].size == self.draft.tensors[number].size

    def _place(self, inner: int, outer: int, offset: int) -> bool:
        """Put the bytes of `inner`, and all that lies in them, into those of `outer`."""
        tensors = self.draft.tensors
        a, b = self.parent[inner], self.parent[outer]
        if not (tensors[inner].is_planned and tensors[outer].is_planned and self._whole(inner)):
            return False
        if a.root == b.root:
            return a.at == b.at + offset
        together = {*self.members[a.root], *self.members[b.root]}
        if together & set(self.draft.inputs) and together & set(self.draft.outputs):
            return False  # who writes the next input may still read the last output
        for number in self.members.pop(a.root):
            self.parent[number] = Piece(b.root, b.at + offset + self.parent[number].at)
            self.members[b.root].append(number)
        return True

    def _overwrite(self, at: int, step: Step) -> None:
        tensors, life = self.draft.tensors, self.draft.life
        if len(step.outputs) != 1 or not self._whole(step.outputs[0]):
            return
        out = step.outputs[0]
        for number in dict.fromkeys(step.inputs[:1] if step.name == "PRELU" else step.inputs):
            if number == ABSENT or not tensors[number].is_planned:
                continue
            # Elements that become smaller are written behind those that are still to be read.
            fewer = step.name == "QUANTIZE" and tensors[out].size <= tensors[number].size
            alike = tensors[number].shape == tensors[out].shape
            alike = alike and (fewer or tensors[number].size == tensors[out].size)
            others = [n for n in step.inputs if n not in (ABSENT, number)]
            here = self.parent[number]
            if not alike or any(self._overlaps(n, number) for n in others):
                continue
            sharing = [n for n in self.members[here.root] if self._overlaps(n, number)]
            if all(life[n][1] <= at + 1 and n not in self.draft.outputs for n in sharing) and self._place(
                out, number, 0
            ):
                return

    def _overlaps(self, a: int, b: int) -> bool:
        one, two = self.parent[a], self.parent[b]
        return one.root == two.root and (
            one.at < two.at + self.draft.tensors[b].size and two.at < one.at + self.draft.tensors[a].size
        )


def _views(draft: Draft, step: Step) -> Iterator[tuple[int, int, int]]:
    """(inner, outer, offset): pairs of tensors where one holds the same bytes as a part of the other."""
    tensors = draft.tensors
    if not step.inputs or not step.outputs or step.inputs[0] == ABSENT:
        return
    x, out = step.inputs[0], step.outputs[0]
    if step.name in _VIEWS and tensors[x].size == tensors[out].size:
        yield out, x, 0
    elif step.name == "SLICE" and (begin := _row_slice(draft, step)) is not None:
        yield out, x, begin
    elif step.name == "CONCATENATION":
        yield from _concatenated(draft, step)


def _row_slice(draft: Draft, step: Step) -> int | None:
    """How far into its source a slice of our own begins: rows are one behind another."""
    begin = draft.tensors[step.inputs[1]].data
    if begin is None:
        return None
    return int(np.frombuffer(begin, "<i4")[1]) * draft.tensors[step.inputs[0]].row_bytes


def _concatenated(draft: Draft, step: Step) -> Iterator[tuple[int, int, int]]:
    """Parts of a concatenation lie in its result, if they are one behind another there."""
    tensors, out = draft.tensors, step.outputs[0]
    axis = step.axis
    if axis is None:
        options = None if step.source is None else draft.graph.operators[step.source].options
        axis = 0 if options is None else options.number(0, "i")
        if options is not None and options.number(1, "b"):
            return  # an activation changes the numbers
    shape = tensors[out].shape
    axis += len(shape) if axis < 0 else 0
    alike = len(set(step.inputs)) == len(step.inputs) and _same_scales(draft, (*step.inputs, out))
    if not 0 <= axis < len(shape) or any(size != 1 for size in shape[:axis]) or not alike:
        return
    if sum(tensors[n].size for n in step.inputs) == tensors[out].size:
        at = 0
        for number in step.inputs:
            yield number, out, at
            at += tensors[number].size


def _same_scales(draft: Draft, numbers: Sequence[int]) -> bool:
    """Whether tensors mean the same by a number: else a concatenation computes."""
    return len({_scale(draft, number) for number in numbers}) == 1


def _scale(draft: Draft, number: int) -> tuple[bytes, ...]:
    source = draft.tensors[number].source
    table = None if source is None else _tensor_table(draft.model, source)
    quantized = None if table is None else table.table(4)
    if quantized is None:
        return ()
    (a, n), (b, m) = quantized.vector(2, 4), quantized.vector(3, 8)
    return (quantized.data[a : a + 4 * n], quantized.data[b : b + 8 * m])


def _tensor_table(model: TfliteModel, number: int) -> Table:
    return model.root.tables(MODEL.GRAPHS)[0].tables(GRAPH.TENSORS)[number]


# Offsets for what shares bytes, and the look at each step that they are sound.


@dataclass(frozen=True)
class Packed:
    """A draft with an offset for every tensor."""

    draft: Draft
    pieces: list[Piece]
    offsets: list[int]
    """By tensor of the draft; ONLINE: constants, variables, and what the runtime places."""
    bound: int
    """Bytes alive at once: with these steps and shared places no offsets need less."""

    def write(self) -> bytes:
        return write_graph(self.draft, self.offsets)

    def buffers(self) -> tuple[Buffers, npt.NDArray[np.int64]]:
        """What lies where, for a picture: roots alone, scratch is the runtime's to place."""
        buffers, roots = make_buffers(self.draft, self.pieces, Target(8, "none"))
        kept = range(len(roots))
        offsets = np.array([self.offsets[root] for root in roots], dtype=np.int64)
        return Buffers.of(
            buffers.lower[kept],
            buffers.upper[kept],
            buffers.size[kept],
            ids=buffers.ids[: len(roots)],
            gaps={b: list(gaps) for b, gaps in buffers.gaps.items() if b < len(roots)},
        ), offsets


def make_buffers(draft: Draft, pieces: Sequence[Piece], target: Target = HOST) -> tuple[Buffers, list[int]]:
    """One buffer for every root, alive where any of its members is; and the roots."""
    members: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        if draft.life[number] != (0, 0):
            members.setdefault(piece.root, []).append(number)
    roots, lower, upper, size = list(members), [], [], []
    gaps: dict[int, list[Gap]] = {}
    for i, root in enumerate(roots):
        lives = [(*draft.life[n], pieces[n].at, pieces[n].at + draft.tensors[n].size) for n in members[root]]
        whole = _up(draft.tensors[root].size)
        lower.append(min(life[0] for life in lives))
        upper.append(max(life[1] for life in lives))
        size.append(whole)
        times = sorted({t for life in lives for t in life[:2]})
        for begin, end in pairwise(times):
            here = [life for life in lives if life[0] < end and begin < life[1]]
            low = min((life[2] for life in here), default=0) // ALIGNMENT * ALIGNMENT
            high = _up(max((life[3] for life in here), default=0))
            if (low, high) != (0, whole):
                rows = gaps.setdefault(i, [])
                if rows and rows[-1].end == begin and rows[-1][2:] == (low, high):
                    rows[-1] = rows[-1]._replace(end=end)
                else:
                    rows.append(Gap(begin, end, low, high))
    for at, step in enumerate(draft.steps):
        for request in _scratch(draft, step, target):
            lower.append(at)
            upper.append(at + 1)
            size.append(_up(request))
    ids = [f"{root} {_name(draft, root)}" for root in roots]
    ids += [f"scratch {number}" for number in range(len(size) - len(ids))]
    return Buffers.of(lower, upper, size, ids=ids, alignment=ALIGNMENT, gaps={**gaps}), roots


def _name(draft: Draft, number: int) -> str:
    source = draft.tensors[number].source
    return "" if source is None else draft.graph.tensors[source].name


def _scratch(draft: Draft, step: Step, target: Target) -> list[int]:
    if step.source is None:
        return []
    return scratch_requests(draft.graph, draft.graph.operators[step.source], target)


def _make_packer() -> Auto:
    def schedule(problem: Problem) -> list[Stage]:
        return [Stage("exact", {"nodes": PACK_NODES}), Stage("large", {"effort": PACK_EFFORT})]

    return Auto("allocation", schedule, summary="exact search and greedy portfolio, limited by their work")


def pack(draft: Draft, *, in_place: bool = True, quick: bool = False) -> Packed:
    """Offsets for a draft, checked; `quick`: by first fit in order of size alone."""
    pieces = share(draft, in_place=in_place)
    buffers, roots = make_buffers(draft, pieces)
    problem = Allocation(buffers)
    solver = SizeFirstFit() if quick else _make_packer()
    found = solve(solver, problem, Budget())
    if found.decision is None or problem.offset_violations(found.decision):
        raise NotExported("no offsets were found", object="arena", remedy="report this as a bug")
    at = dict(zip(roots, found.decision.tolist(), strict=False))
    offsets = [
        at[piece.root] + piece.at if draft.life[n] != (0, 0) else ONLINE for n, piece in enumerate(pieces)
    ]
    check_places(draft, offsets)
    return Packed(draft, pieces, offsets, int(found.bound.value))


def check_places(draft: Draft, offsets: Sequence[int]) -> None:
    """Go through the steps with a memory of labels: each must find its operands as they were made.

    It knows nothing of roots and lives: only what kernels read and write, byte by byte."""
    tensors = draft.tensors
    height = max((offsets[n] + t.size for n, t in enumerate(tensors) if offsets[n] >= 0), default=0)
    memory = np.full(height, -1, dtype=np.int64)
    made: dict[int, npt.NDArray[np.int64]] = {}
    fresh = 0

    def write(number: int, labels: npt.NDArray[np.int64] | None = None) -> None:
        nonlocal fresh
        count = tensors[number].size
        if labels is None:
            labels = np.arange(fresh, fresh + count, dtype=np.int64)
            fresh += count
        made[number] = labels
        memory[offsets[number] : offsets[number] + count] = labels

    def read(number: int, who: str) -> npt.NDArray[np.int64]:
        found = memory[offsets[number] : offsets[number] + tensors[number].size]
        if number not in made or not np.array_equal(found, made[number]):
            raise Refused(
                f"{who} would read tensor {number} where something else lies",
                object="arena",
                number=number,
                remedy="report this as a bug",
            )
        return found.copy()

    def is_placed(number: int) -> bool:
        return number != ABSENT and offsets[number] >= 0

    for number in draft.inputs:
        if is_placed(number):
            write(number)
    for at, step in enumerate(draft.steps):
        who = f"step {at} ({step.name})"
        inputs = [n for n in step.inputs if is_placed(n)]
        values = {n: read(n, who) for n in inputs}
        copied = {out: (source, offset) for out, source, offset in _views(draft, step)}
        for out in (n for n in step.outputs if is_placed(n)):
            if step.name == "CONCATENATION" and all(n in copied for n in step.inputs):
                write(out, np.concatenate([values[n] for n in step.inputs]))
                continue
            if out in copied:
                source, offset = copied[out]
                write(out, values[source][offset : offset + tensors[out].size])
                continue
            span = range(offsets[out], offsets[out] + tensors[out].size)
            for n in inputs:
                other = range(offsets[n], offsets[n] + tensors[n].size)
                apart = span.start >= other.stop or other.start >= span.stop
                same = span == other or (step.name == "QUANTIZE" and span.start == other.start)
                if not apart and not (step.name in IN_PLACE and same and len(span) <= len(other)):
                    raise Refused(
                        f"{who} would write over what it reads",
                        object="arena",
                        number=out,
                        remedy="report it",
                    )
            write(out)
    for number in draft.outputs:
        if is_placed(number):
            read(number, "the caller")


def write_graph(draft: Draft, offsets: Sequence[int]) -> bytes:
    """A model whose first graph is a draft's, with an offset for each of its tensors."""
    return _Writer(draft).file(offsets)


class _Writer:
    """Tables of a draft in front of the old file: what has not changed is referred to."""

    def __init__(self, draft: Draft) -> None:
        check_simple(draft.model)
        self.draft, self.head, self.root = draft, Head(), draft.model.root
        self.graphs = self.root.tables(MODEL.GRAPHS)
        self.buffers = [table.at for table in self.root.tables(MODEL.BUFFERS)]
        self.codes = [table.at for table in self.root.tables(MODEL.CODES)]
        self.tensors = self.graphs[0].tables(GRAPH.TENSORS)
        self.operators = self.graphs[0].tables(GRAPH.OPERATORS)
        self.code: dict[str, int] = {}

    def file(self, offsets: Sequence[int]) -> bytes:
        head, model = self.head, self.draft.model
        tensors = [self._tensor(made) for made in self.draft.tensors]
        steps = [self._operator(step) for step in self.draft.steps]
        graph = head.changed(
            self.graphs[0],
            GRAPH_FIELDS,
            {GRAPH.TENSORS: head.vector(tensors), GRAPH.OPERATORS: head.vector(steps)},
        )
        entries = [t.at for t in self.root.tables(MODEL.METADATA) if t.text(0) != METADATA]
        others = sum(len(graph.tensors) for graph in model.graphs[1:])
        table = [VERSION, len(self.graphs), len(offsets) + others, *offsets, *[BY_RUNTIME] * others]
        number = self._buffer(struct.pack(f"<{len(table)}i", *table))
        entries.append(head.table({0: (REFERENCE, head.text(METADATA)), 1: ("I", number)}))
        new = {
            MODEL.CODES: head.vector(self.codes),
            MODEL.GRAPHS: head.vector([graph, *(each.at for each in self.graphs[1:])]),
            MODEL.BUFFERS: head.vector(self.buffers),
            MODEL.METADATA: head.vector(entries),
        }
        return head.finish(head.changed(self.root, MODEL_FIELDS, new), self.root.data)

    def _buffer(self, data: bytes) -> int:
        self.buffers.append(self.head.table({0: (REFERENCE, self.head.blob(data))}))
        return len(self.buffers) - 1

    def _tensor(self, made: Made) -> int:
        head = self.head
        if made.source is None:
            assert made.data is not None
            shape = head.numbers(made.shape)
            return head.table({0: (REFERENCE, shape), 1: ("b", _I32), 2: ("I", self._buffer(made.data))})
        if made.shape == self.draft.graph.tensors[made.source].shape:
            return self.tensors[made.source].at
        shape_alone: dict[int, int | None] = {0: head.numbers(made.shape), 7: None}
        return head.changed(self.tensors[made.source], TENSOR_FIELDS, shape_alone)

    def _operator(self, step: Step) -> int:
        head = self.head
        if step.source is not None:
            old = self.draft.graph.operators[step.source]
            if (old.inputs, old.outputs) == (step.inputs, step.outputs):
                return self.operators[step.source].at
        ends = {OPERATOR.INPUTS: head.numbers(step.inputs), OPERATOR.OUTPUTS: head.numbers(step.outputs)}
        if step.source is not None:
            return head.changed(self.operators[step.source], OPERATOR_FIELDS, ends)
        if step.name not in self.code:
            number = OPERATORS.index(step.name)
            self.codes.append(head.table({0: ("b", min(number, 127)), 2: ("i", 1), 3: ("i", number)}))
            self.code[step.name] = len(self.codes) - 1
        fields: dict[int, tuple[str, int]] = {OPERATOR.CODE: ("I", self.code[step.name])}
        fields |= {field: (REFERENCE, address) for field, address in ends.items()}
        if step.axis is not None:
            options = head.table({0: ("i", step.axis)})
            fields[OPERATOR.OPTIONS_TYPE] = ("B", _CONCATENATION_OPTIONS)
            fields[OPERATOR.OPTIONS] = (REFERENCE, options)
        return head.table(fields)


def _up(count: int) -> int:
    return count + -count % ALIGNMENT
