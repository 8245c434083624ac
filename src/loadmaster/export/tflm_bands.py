"""Convolutions in bands of rows, and the search for the rewriting with the least arena.

Where one stretch of convolutions is to blame, its result can be made in bands of rows: for each band the rows
that it needs are sliced (a place in the source, no copy), taken through the same operators, and concatenated
(again no copy). The tensors in between exist one band at a time; rows at the seams are computed twice. This is
patch-based inference (MCUNetV2, arXiv:2110.15352), written as a plain model that any interpreter runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.buffers import Buffers
from loadmaster.export.tflm_arena import HOST, ONLINE, Arena, Target, compute_arena
from loadmaster.export.tflm_rewrite import (
    IN_PLACE,
    Draft,
    Made,
    Packed,
    Step,
    make_buffers,
    make_draft,
    pack,
    share,
)
from loadmaster.program.importers.tflite.read import ABSENT, MODEL, TfliteModel, read_tflite

MOST_OPERATORS = 24
"""Of a stretch that is made in bands."""
BANDS = (2, 3, 4, 5, 6, 8, 10)
"""How many; kernels/concatenation.cc takes ten parts at most."""
MOST_TRIED = 12
"""Drafts that are placed of all that look good."""
MOST_PACKED = 3
"""Of these, drafts whose offsets are sought for longer."""
MOST_ROUNDS = 3
STEP_BYTES = 250
"""Of one more operator in the persistent part, about."""
_WINDOWS = {
    "CONV_2D": (0, 1, 2, 4, 5),
    "DEPTHWISE_CONV_2D": (0, 1, 2, 5, 6),
    "MAX_POOL_2D": (0, 1, 2),
    "AVERAGE_POOL_2D": (0, 1, 2),
}
"""Operator -> fields of its options: padding, strides of columns and rows, dilations of columns and rows."""
_VALID = 1


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
        reached: set[int] = {source}
        inside: list[int] = []
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
    if step.name in IN_PLACE:
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
    buffer = draft.model.root.tables(MODEL.BUFFERS)[tensor.buffer]
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

    begins = range(min(full - 1, int(low * ratio)), -1, -1)
    begin = next((each for each in begins if enough(each, full) is not None), None)
    if begin is None:
        return None
    for end in range(min(full, max(begin + 1, int((high - 1) * ratio))), full + 1):
        if (rows := enough(begin, end)) is not None:
            return rows
    return None


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
        self.tensors.append(replace(old, shape=shape, size=old.row_bytes * height))
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

    def _unused(self) -> list[int]:
        """Tensors that were whole and are now made in parts."""
        made = {self.draft.steps[at].outputs[0] for at in self.stretch.steps}
        return sorted(made - {self.stretch.target})

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
        tensors, written = _without_holes(self.tensors, steps, len(draft.tensors), self._unused())
        return replace(
            draft,
            tensors=tensors,
            steps=written,
            notes=(*draft.notes, note),
            extra_macs=draft.extra_macs + extra,
        )


def _without_holes(
    tensors: Sequence[Made], steps: Sequence[Step], known: int, unused: Sequence[int]
) -> tuple[tuple[Made, ...], tuple[Step, ...]]:
    """Put the last new tensors into the places of unused ones: the runtime would give those memory. All others
    keep their numbers, by which signatures know them."""
    kept = list(tensors)
    moved: dict[int, int] = {}
    for hole in unused:
        if len(kept) > known:
            moved[len(kept) - 1] = hole
            kept[hole] = kept.pop()
        else:
            kept[hole] = replace(kept[hole], shape=(0,), size=0, is_planned=False)

    def renumbered(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(moved.get(number, number) for number in numbers)

    return tuple(kept), tuple(
        replace(step, inputs=renumbered(step.inputs), outputs=renumbered(step.outputs)) for step in steps
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
    latest = best
    for _ in range(MOST_ROUNDS if bands else 0):
        if best.arena.total <= enough:
            break
        split = _split_once(latest, in_place, target, enough)
        if split is None:
            break
        latest, best = split, min(best, split, key=_total)
    return best


def _total(smaller: Smaller) -> tuple[int, int]:
    return smaller.arena.total, len(smaller.data)


def _weigh(packed: Packed, target: Target) -> Smaller:
    data = packed.write()
    written = read_tflite(data, "rewritten")
    offsets = packed.offsets + [ONLINE] * sum(len(graph.tensors) for graph in written.graphs[1:])
    return Smaller(packed, data, compute_arena(written, target, offsets=offsets))


def _most_live(buffers: Buffers, first: int, last: int) -> int:
    """Most bytes alive at once from the first to the last of some steps."""
    times, live = buffers.live_profile()
    begin = max(0, int(np.searchsorted(times, first, side="right")) - 1)
    return int(live[begin : max(begin + 1, int(np.searchsorted(times, last, side="right")))].max())


def _split_once(best: Smaller, in_place: bool, target: Target, enough: int) -> Smaller | None:
    draft = best.packed.draft
    buffers, _ = make_buffers(draft, best.packed.pieces, target)
    times, live = buffers.live_profile()
    most = int(live.max())
    peak = min(int(times[int(np.argmax(live))]), len(draft.steps) - 1)
    tried: list[tuple[int, int, Draft]] = []
    relieved: list[tuple[int, int, Draft]] = []
    helps = False
    for stretch in find_stretches(draft, peak):
        for bands in BANDS:
            made = split(draft, stretch, bands)
            if made is None:
                break
            after = make_buffers(made, share(made, in_place=in_place), target)[0]
            more = len(made.steps) - len(draft.steps)
            # What each further step and tensor keeps for good, about; the whole truth follows for the best.
            kept = STEP_BYTES * more
            tried.append((after.max_live + kept, len(tried), made))
            helps |= after.max_live < most
            here = _most_live(after, stretch.steps[0], stretch.steps[-1] + more)
            if here < most:
                relieved.append((here + kept, len(tried), made))
    if relieved and not helps:
        # Another place holds as much: this one is relieved first, and the next round is about the other.
        return _weigh(pack(min(relieved, key=lambda row: row[:2])[2], in_place=in_place), target)
    tried.sort(key=lambda row: row[:2])
    room = enough - best.arena.persistent
    fitting = sorted((row for row in tried if row[0] <= room), key=lambda row: row[2].extra_macs)
    chosen = [made for _, _, made in [*fitting[: MOST_TRIED // 2], *tried[:MOST_TRIED]]]
    quick = [_weigh(pack(made, in_place=in_place, quick=True), target) for made in chosen]
    good = sorted(quick, key=_total)[:MOST_PACKED]
    found = quick + [_weigh(pack(each.packed.draft, in_place=in_place), target) for each in good]
    fits = [each for each in found if each.arena.total <= enough]
    if fits:  # what is enough with the fewest computations
        return min(fits, key=lambda each: (each.packed.draft.extra_macs, _total(each)))
    return min(found, key=_total, default=None)
