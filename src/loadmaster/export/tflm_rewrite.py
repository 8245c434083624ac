"""A TFLite model that computes the same in fewer bytes: shared places, and convolutions in bands of rows.

TFLite Micro follows whatever offsets a file carries. So tensors may share bytes: a reshape or a slice of whole
rows lies where its source lies, what is concatenated lies in the result from the start, and an elementwise
operator writes over an operand that nobody reads again. Their kernels then copy bytes onto themselves.

Where one stretch of convolutions is to blame, its result can be made in bands of rows: for each band the rows
that it needs are sliced (a place in the source, no copy), taken through the same operators, and concatenated
(again no copy). The tensors in between exist one band at a time; rows at the seams are computed twice. This is
patch-based inference (MCUNetV2, arXiv:2110.15352), written as a plain model that any interpreter runs.

`Draft` is a graph to be written; `share` says which tensors lie in one another; `check_places` goes through the
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

from loadmaster.allocation.auto import make_auto
from loadmaster.allocation.buffers import Buffers, Gap
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import Refused
from loadmaster.export.plans import NotExported
from loadmaster.export.tflm_arena import HOST, ONLINE, Arena, Target, compute_arena, scratch_requests
from loadmaster.export.tflm_file import ALIGNMENT, write_graph
from loadmaster.program.importers.tflite.read import ABSENT, Graph, Table, TfliteModel, read_tflite
from loadmaster.search.solver import Budget, solve

PACK_SECONDS = 5.0
MOST_OPERATORS = 24
"""Of a stretch that is made in bands."""
BANDS = (2, 3, 4, 6, 8, 12, 16)
MOST_TRIED = 6
"""Drafts that are packed of all that look good."""
MOST_ROUNDS = 3

_IN_PLACE = frozenset(
    "ADD SUB MUL DIV MAXIMUM MINIMUM RELU RELU6 RELU_N1_TO_1 LOGISTIC TANH HARD_SWISH LEAKY_RELU ELU ABS NEG "
    "SQUARE SQRT RSQRT EXP LOG SIN COS FLOOR CEIL ROUND PRELU QUANTIZE".split()
)
"""Kernels that read an element before they write the one in its place, and no other."""
_VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_WINDOWS = {
    "CONV_2D": (0, 1, 2, 4, 5),
    "DEPTHWISE_CONV_2D": (0, 1, 2, 5, 6),
    "MAX_POOL_2D": (0, 1, 2),
    "AVERAGE_POOL_2D": (0, 1, 2),
}
"""Operator -> fields of its options: padding, strides of columns and rows, dilations of columns and rows."""
_VALID = 1


@dataclass(frozen=True)
class Made:
    """A tensor of a draft."""

    source: int | None
    """The tensor of the file that it is a copy of; None: new whole numbers."""
    shape: tuple[int, ...]
    bytes: int
    is_planned: bool
    """Whether it needs a place in the arena."""
    data: bytes | None = None

    @property
    def row_bytes(self) -> int:
        return self.bytes // self.shape[1]


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
        last: dict[int, int] = {n: 1 for n in first}
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
            if in_place and step.name in _IN_PLACE:
                self._overwrite(at, step)
        return self.parent

    def _whole(self, number: int) -> bool:
        """Whether a tensor has all bytes of its root: it can be moved into another."""
        root = self.parent[number].root
        return self.draft.tensors[root].bytes == self.draft.tensors[number].bytes

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
            alike = tensors[number].shape == tensors[out].shape and tensors[number].bytes == tensors[out].bytes
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
            one.at < two.at + self.draft.tensors[b].bytes and two.at < one.at + self.draft.tensors[a].bytes
        )


def _views(draft: Draft, step: Step) -> Iterator[tuple[int, int, int]]:
    """(inner, outer, offset): pairs of tensors where one holds the same bytes as a part of the other."""
    tensors = draft.tensors
    if not step.inputs or not step.outputs or step.inputs[0] == ABSENT:
        return
    x, out = step.inputs[0], step.outputs[0]
    if step.name in _VIEWS and tensors[x].bytes == tensors[out].bytes:
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
    if sum(tensors[n].bytes for n in step.inputs) == tensors[out].bytes:
        at = 0
        for number in step.inputs:
            yield number, out, at
            at += tensors[number].bytes


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
    return model.root.tables(2)[0].tables(0)[number]


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


def make_buffers(draft: Draft, pieces: Sequence[Piece], target: Target = HOST) -> tuple[Buffers, list[int]]:
    """One buffer for every root, alive where any of its members is; and the roots."""
    members: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        if draft.life[number] != (0, 0):
            members.setdefault(piece.root, []).append(number)
    roots, lower, upper, size = list(members), [], [], []
    gaps: dict[int, list[Gap]] = {}
    for i, root in enumerate(roots):
        lives = [(*draft.life[n], pieces[n].at, pieces[n].at + draft.tensors[n].bytes) for n in members[root]]
        whole = _up(draft.tensors[root].bytes)
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
    return Buffers.of(lower, upper, size, alignment=ALIGNMENT, gaps=gaps), roots


def _scratch(draft: Draft, step: Step, target: Target) -> list[int]:
    if step.source is None:
        return []
    return scratch_requests(draft.graph, draft.graph.operators[step.source], target)


def pack(draft: Draft, *, in_place: bool = True, seconds: float = PACK_SECONDS) -> Packed:
    """Offsets for a draft, checked."""
    pieces = share(draft, in_place=in_place)
    buffers, roots = make_buffers(draft, pieces)
    problem = Allocation(buffers)
    found = solve(make_auto(), problem, Budget(seconds=seconds))
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
    tensors, life = draft.tensors, draft.life
    height = max((offsets[n] + t.bytes for n, t in enumerate(tensors) if offsets[n] >= 0), default=0)
    memory = np.full(height, -1, dtype=np.int64)
    made: dict[int, npt.NDArray[np.int64]] = {}
    fresh = 0

    def write(number: int, labels: npt.NDArray[np.int64] | None = None) -> None:
        nonlocal fresh
        count = tensors[number].bytes
        if labels is None:
            labels = np.arange(fresh, fresh + count, dtype=np.int64)
            fresh += count
        made[number] = labels
        memory[offsets[number] : offsets[number] + count] = labels

    def read(number: int, who: str) -> npt.NDArray[np.int64]:
        found = memory[offsets[number] : offsets[number] + tensors[number].bytes]
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
                write(out, values[source][offset : offset + tensors[out].bytes])
                continue
            span = range(offsets[out], offsets[out] + tensors[out].bytes)
            for n in inputs:
                other = range(offsets[n], offsets[n] + tensors[n].bytes)
                apart = span.start >= other.stop or other.start >= span.stop
                if not apart and not (step.name in _IN_PLACE and span == other):
                    raise Refused(
                        f"{who} would write over what it reads", object="arena", number=out, remedy="report it"
                    )
            write(out)
        del life
        life = draft.life
    for number in draft.outputs:
        if is_placed(number):
            read(number, "the caller")


# Bands of rows.


class Rows(NamedTuple):
    """The rows of a tensor that a band has: `height` of them from `origin`, good from `low` to `high`."""

    origin: int
    height: int
    low: int
    high: int
    full: int
    """How many the whole tensor has."""


@dataclass(frozen=True)
class Stretch:
    """Steps between two tensors, which nothing else looks into."""

    source: int
    target: int
    steps: tuple[int, ...]


def find_stretches(draft: Draft, through: int) -> Iterator[Stretch]:
    """Stretches with a given step in them."""
    users: dict[int, list[int]] = {}
    for at, step in enumerate(draft.steps):
        for number in step.inputs:
            users.setdefault(number, []).append(at)
    for source, tensor in enumerate(draft.tensors):
        if not tensor.is_planned or len(tensor.shape) != 4 or tensor.shape[0] != 1 or tensor.shape[1] < 2:
            continue
        reached, inside = {source}, []
        for at, step in enumerate(draft.steps):
            moving = [n for n in step.inputs if n != ABSENT and draft.tensors[n].is_planned]
            if not moving or not set(moving) <= reached or len(step.outputs) != 1:
                continue
            if not _is_splittable(draft, step) or len(inside) >= MOST_OPERATORS:
                continue
            inside.append(at)
            reached.add(step.outputs[0])
            stretch = _stretch_to(draft, source, step.outputs[0], inside, users)
            if stretch is not None and through in stretch.steps and len(stretch.steps) > 1:
                yield stretch


def _stretch_to(
    draft: Draft, source: int, target: int, inside: list[int], users: dict[int, list[int]]
) -> Stretch | None:
    """The steps that make `target` of `source`, if nothing else needs what they make in between."""
    maker = {draft.steps[at].outputs[0]: at for at in inside}
    needed: set[int] = set()
    waiting = [target]
    while waiting:
        number = waiting.pop()
        if number == source or number not in maker or maker[number] in needed:
            continue
        needed.add(maker[number])
        waiting += [n for n in draft.steps[maker[number]].inputs if n != ABSENT]
    between = {draft.steps[at].outputs[0] for at in needed} - {target}
    if between & set(draft.outputs) or any(set(users.get(n, [])) - needed for n in between):
        return None
    shape = draft.tensors[target].shape
    if len(shape) != 4 or shape[1] < 2:
        return None
    return Stretch(source, target, tuple(sorted(needed)))


def _is_splittable(draft: Draft, step: Step) -> bool:
    """Whether rows of its result need only some rows of what it reads."""
    tensors = draft.tensors
    shapes = [tensors[n].shape for n in (*step.inputs[:1], *step.outputs)]
    if any(len(shape) != 4 or shape[0] != 1 for shape in shapes) or step.source is None:
        return False
    if step.name in _WINDOWS:
        return draft.graph.operators[step.source].options is not None
    if step.name == "PAD":
        return _paddings(draft, step) is not None
    if step.name == "CONCATENATION":
        options = draft.graph.operators[step.source].options
        planned = all(tensors[n].is_planned for n in step.inputs)
        return planned and options is not None and options.number(0, "i") in (3, -1)
    if step.name in _IN_PLACE:
        out = tensors[step.outputs[0]].shape
        for number in step.inputs:
            shape = () if number == ABSENT else tensors[number].shape
            if number != ABSENT and tensors[number].is_planned and shape != out:
                return False
            if len(shape) > 4 or (
                number != ABSENT and not tensors[number].is_planned and len(shape) > 2 and shape[-3] != 1
            ):
                return False  # a constant that differs from row to row
        return True
    return False


def _paddings(draft: Draft, step: Step) -> npt.NDArray[np.int32] | None:
    """[4, 2] of a PAD with constant paddings of rows and columns alone."""
    source = draft.tensors[step.inputs[1]].source
    if source is None or draft.graph.tensors[source].dtype != "i32":
        return None
    tensor = draft.graph.tensors[source]
    if not tensor.constant or tensor.shape != (4, 2):
        return None
    buffer = draft.model.root.tables(4)[tensor.buffer]
    begin, count = buffer.vector(0, 1)
    found = np.frombuffer(buffer.data, "<i4", count // 4, begin)
    if len(found) != 8 or found[:2].any() or found[6:].any() or (found < 0).any():
        return None
    return found.reshape(4, 2).astype(np.int32)


def _rows_of(draft: Draft, step: Step, given: Sequence[Rows]) -> Rows | None:
    """The rows that a step makes of some rows; None where they can't be told."""
    full = draft.tensors[step.outputs[0]].shape[1]
    x = given[0]
    if step.name == "PAD":
        paddings = _paddings(draft, step)
        assert paddings is not None
        top, bottom = (int(count) for count in paddings[1])
        first, last = x.origin == 0, x.origin + x.height == x.full
        height = x.height + (top if first else 0) + (bottom if last else 0)
        low = 0 if first and x.low == 0 else x.low + top
        high = full if last and x.high == x.full else x.high + top
        return Rows(0 if first else x.origin + top, height, low, high, full)
    if step.name not in _WINDOWS:
        if len({(rows.origin, rows.height) for rows in given}) != 1:
            return None
        return x._replace(
            low=max(rows.low for rows in given), high=min(rows.high for rows in given), full=full
        )
    kernel, stride, padding = _window(draft, step)
    pad = inner = 0
    height = (x.height - kernel) // stride + 1
    if padding != _VALID:
        height = -(-x.height // stride)
        pad = max(0, (full - 1) * stride + kernel - x.full) // 2
        inner = max(0, (height - 1) * stride + kernel - x.height) // 2
    shift = x.origin + pad - inner
    if height < 1 or shift % stride:
        return None
    origin = shift // stride
    good = [
        row
        for row in range(max(0, origin), min(full, origin + height))
        if _is_good(x, row * stride - pad, row * stride - pad + kernel - 1)
    ]
    return Rows(origin, height, good[0], good[-1] + 1, full) if good else None


def _is_good(x: Rows, first: int, last: int) -> bool:
    """Whether a window sees right rows alone, and the border of the image where there is one."""
    above = first >= x.low if first >= 0 else x.origin == 0 and x.low == 0
    below = last < x.high if last < x.full else x.origin + x.height == x.full and x.high == x.full
    return above and below


def _window(draft: Draft, step: Step) -> tuple[int, int, int]:
    """(rows that a window spans, its stride, the padding's kind)."""
    assert step.source is not None
    options = draft.graph.operators[step.source].options
    assert options is not None
    fields = _WINDOWS[step.name]
    padding, stride = options.number(fields[0], "b"), max(1, options.number(fields[2], "i"))
    if len(fields) == 3:
        return max(1, options.number(4, "i")), stride, padding
    dilation = max(1, options.number(fields[4], "i", 1))
    return (draft.tensors[step.inputs[1]].shape[1] - 1) * dilation + 1, stride, padding


def _follow(draft: Draft, stretch: Stretch, begin: int, end: int) -> dict[int, Rows] | None:
    """The rows of every tensor of a stretch that follow from some of its source."""
    full = draft.tensors[stretch.source].shape[1]
    rows = {stretch.source: Rows(begin, end - begin, begin, end, full)}
    for at in stretch.steps:
        step = draft.steps[at]
        given = [rows[n] for n in step.inputs if n in rows]
        made = _rows_of(draft, step, given)
        if made is None:
            return None
        rows[step.outputs[0]] = made
    return rows


def _band(draft: Draft, stretch: Stretch, low: int, high: int) -> dict[int, Rows] | None:
    """The fewest rows of the source that give rows [low, high) of the target."""
    full, target = draft.tensors[stretch.source].shape[1], stretch.target
    ratio = full / draft.tensors[target].shape[1]

    def enough(begin: int, end: int) -> dict[int, Rows] | None:
        rows = _follow(draft, stretch, begin, end)
        if rows is None or rows[target].low > low or rows[target].high < high:
            return None
        return rows

    begin = next((b for b in range(min(full - 1, int(low * ratio)), -1, -1) if _reaches(enough, b, full)), None)
    if begin is None:
        return None
    for end in range(min(full, max(begin + 1, int((high - 1) * ratio))), full + 1):
        if (rows := enough(begin, end)) is not None:
            return rows
    return None


def _reaches(enough: object, begin: int, full: int) -> bool:
    assert callable(enough)
    # The last rows may be in the wrong phase for the seam above: a stride's worth of ends is tried.
    return any(enough(begin, end) is not None for end in range(full, max(begin, full - 1), -1))


def split(draft: Draft, stretch: Stretch, bands: int) -> Draft | None:
    """The draft with a stretch made in bands of rows; None where it can't be."""
    height = draft.tensors[stretch.target].shape[1]
    if bands > height:
        return None
    edges = [height * i // bands for i in range(bands + 1)]
    parts = [_band(draft, stretch, low, high) for low, high in pairwise(edges)]
    if any(part is None for part in parts):
        return None
    maker = _Bands(draft, stretch)
    for (low, high), rows in zip(pairwise(edges), parts, strict=True):
        assert rows is not None
        maker.add(rows, low, high)
    return maker.finish(bands)


class _Bands:
    """Writes the steps of each band."""

    def __init__(self, draft: Draft, stretch: Stretch) -> None:
        self.draft, self.stretch = draft, stretch
        self.tensors = list(draft.tensors)
        self.steps: list[Step] = []
        self.parts: list[int] = []
        self.numbers: dict[tuple[int, ...], int] = {}
        self.done = 0

    def _constant(self, values: Sequence[int], shape: tuple[int, ...] = (4,)) -> int:
        key = (*shape, *values)
        if key not in self.numbers:
            data = struct.pack(f"<{len(values)}i", *values)
            self.tensors.append(Made(None, shape, len(data), False, data))
            self.numbers[key] = len(self.tensors) - 1
        return self.numbers[key]

    def _rows(self, number: int, height: int) -> int:
        """A tensor like another with fewer rows."""
        old = self.draft.tensors[number]
        shape = (old.shape[0], height, *old.shape[2:])
        self.tensors.append(replace(old, shape=shape, bytes=old.row_bytes * height))
        return len(self.tensors) - 1

    def _slice(self, number: int, like: int, begin: int, height: int) -> int:
        out = self._rows(like, height)
        shape = self.tensors[out].shape
        begins, sizes = self._constant((0, begin, 0, 0)), self._constant(shape)
        self.steps.append(Step("SLICE", (number, begins, sizes), (out,), None))
        return out

    def add(self, rows: dict[int, Rows], low: int, high: int) -> None:
        source, target = self.stretch.source, self.stretch.target
        own = {source: source}
        if rows[source].height < rows[source].full:
            own[source] = self._slice(source, source, rows[source].origin, rows[source].height)
        for at in self.stretch.steps:
            step = self.draft.steps[at]
            made, out = rows[step.outputs[0]], step.outputs[0]
            whole = out == target and (made.origin, made.origin + made.height) == (low, high)
            own[out] = self._rows(out, made.height)
            inputs = [own.get(n, n) for n in step.inputs]
            if step.name == "PAD":
                inputs[1] = self._pad(step, rows[step.inputs[0]])
            self.steps.append(replace(step, inputs=tuple(inputs), outputs=(own[out],)))
            self.done += made.height * _macs_of_row(self.draft, step)
            if out == target:
                self.parts.append(
                    own[out] if whole else self._slice(own[out], out, low - made.origin, high - low)
                )

    def _pad(self, step: Step, x: Rows) -> int:
        paddings = _paddings(self.draft, step)
        assert paddings is not None
        cut = paddings.copy()
        cut[1] = (
            paddings[1, 0] if x.origin == 0 else 0,
            paddings[1, 1] if x.origin + x.height == x.full else 0,
        )
        return self._constant(cut.ravel().tolist(), (4, 2))

    def finish(self, bands: int) -> Draft:
        draft, stretch = self.draft, self.stretch
        inside = set(stretch.steps)
        # The bands stand where the stretch's last step stood: all it reads is there by then.
        steps = [step for at, step in enumerate(draft.steps) if at not in inside and at < stretch.steps[-1]]
        steps += [*self.steps, Step("CONCATENATION", tuple(self.parts), (stretch.target,), None, 1)]
        steps += draft.steps[stretch.steps[-1] + 1 :]
        before = sum(
            draft.tensors[draft.steps[at].outputs[0]].shape[1] * _macs_of_row(draft, draft.steps[at])
            for at in stretch.steps
        )
        extra = (self.done - before) / max(1, count_macs(draft.model))
        names = f"{draft.steps[stretch.steps[0]].name} … {draft.steps[stretch.steps[-1]].name}"
        note = (
            f"operators {draft.steps[stretch.steps[0]].source} to {draft.steps[stretch.steps[-1]].source} "
            f"({names}) in {bands} bands of rows: {extra:+.1%} multiply-adds"
        )
        return replace(
            draft,
            tensors=tuple(self.tensors),
            steps=tuple(steps),
            notes=(*draft.notes, note),
            extra_macs=draft.extra_macs + extra,
        )


def _macs_of_row(draft: Draft, step: Step) -> int:
    """Multiply-adds for one row of a step's result."""
    if step.name not in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        return 0
    weights, out = draft.tensors[step.inputs[1]].shape, draft.tensors[step.outputs[0]].shape
    per_pixel = int(np.prod(weights))
    return out[2] * per_pixel


def count_macs(model: TfliteModel) -> int:
    """Multiply-adds of a model's convolutions and dense layers."""
    graph, total = model.graphs[0], 0
    for operator in graph.operators:
        if operator.name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED") and ABSENT not in (
            *operator.inputs[:2],
            *operator.outputs[:1],
        ):
            weights, out = graph.tensors[operator.inputs[1]], graph.tensors[operator.outputs[0]]
            pixels = out.elements // max(1, out.shape[-1]) if out.shape else 1
            total += weights.elements * pixels
    return total


# The search.


@dataclass(frozen=True)
class Smaller:
    """A model that was made smaller."""

    packed: Packed
    data: bytes
    arena: Arena
    """Computed for the host."""


def make_smaller(
    model: TfliteModel,
    orders: Sequence[Sequence[int]] = (),
    *,
    in_place: bool = True,
    bands: bool = True,
    target: Target = HOST,
    enough: int = 0,
) -> Smaller:
    """The least arena that is found: other orders, shared places, and then bands where one stretch is to blame.

    Args:
      model: what to rewrite; it is not changed.
      orders: orders of its operators to try beside its own.
      in_place: whether elementwise operators may write over an operand.
      bands: whether stretches of convolutions may be split.
      target: whose arena.
      enough: a total at which to stop, bytes.
    """
    first = make_draft(model)
    drafts = [first, *(first.reordered(order) for order in orders)]
    best = min((_weigh(pack(draft, in_place=in_place), target) for draft in drafts), key=_total)
    if not bands:
        return best
    for _ in range(MOST_ROUNDS):
        if best.arena.total <= enough:
            break
        found = _split_once(best, in_place, target)
        if found is None or found.arena.total >= best.arena.total:
            break
        best = found
    return best


def _total(smaller: Smaller) -> tuple[int, int]:
    return smaller.arena.total, len(smaller.data)


def _weigh(packed: Packed, target: Target) -> Smaller:
    data = packed.write()
    written = read_tflite(data, "rewritten")
    offsets = packed.offsets + [ONLINE] * sum(len(graph.tensors) for graph in written.graphs[1:])
    return Smaller(packed, data, compute_arena(written, target, offsets=offsets))


def _split_once(best: Smaller, in_place: bool, target: Target) -> Smaller | None:
    draft = best.packed.draft
    buffers, _ = make_buffers(draft, best.packed.pieces, target)
    times, live = buffers.live_profile()
    peak = min(int(times[int(np.argmax(live))]), len(draft.steps) - 1)
    tried: list[tuple[int, int, Draft]] = []
    for stretch in find_stretches(draft, peak):
        for bands in BANDS:
            made = split(draft, stretch, bands)
            if made is None:
                break
            need = make_buffers(made, share(made, in_place=in_place), target)[0].max_live
            # What each further step and tensor keeps for good; the whole truth follows for the best.
            more = 200 * (len(made.steps) - len(draft.steps))
            tried.append((need + more, len(tried), made))
    chosen = [made for _, _, made in sorted(tried, key=lambda row: row[:2])[:MOST_TRIED]]
    return min((_weigh(pack(made, in_place=in_place), target) for made in chosen), key=_total, default=None)


def _up(count: int) -> int:
    return count + -count % ALIGNMENT
