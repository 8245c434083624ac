"""TFLite Micro's whole arena: what is planned, what stays for good, and what start-up needs at once.

The runtime allocates from both ends of one array. From the back, for good (the tail): its own objects, a
struct for every tensor and operator, the operators' options, what kernels keep, variables. In front (the
head): first, while it prepares, the requests for scratch and its lists of tensors and buffers; then, over
the same bytes, the tensors that it plans. The least arena is what the larger of the two needs:

    total = max(planned + persistent, start-up)

`compute_arena` follows that order of allocations with the sizes of the structs, for hosts of 64 bits and
targets of 32. `tflm_measure` asks the interpreter itself, where the package is installed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from loadmaster.errors import BadProgram
from loadmaster.export.tflm_kernels import (
    COPY_SHAPE,
    DECOMPRESSION,
    DSP,
    HELIUM,
    KERNELS,
    LSTM,
    MORE_DATA,
    RECENT_OPTIONS,
    REDUCTIONS,
    UNKNOWN,
    WEIGHT_OPS,
    Kernel,
    asked_again,
    cmsis_kept,
    cmsis_scratch,
    recurrent_scratch,
)
from loadmaster.program.importers.tflite.read import (
    ABSENT,
    GRAPH,
    MODEL,
    Broken,
    Graph,
    Operator,
    TfliteModel,
)

ALIGNMENT = 16
"""Of tensors, scratch and what kernels keep: micro_arena_constants.h, MicroArenaBufferAlignment."""
MOST_SCRATCH_REQUESTS = 12
"""Room for the requests of one operator: micro_allocator.cc, kMaxScratchBuffersPerOp."""
MOST_STEPS = 400_000
"""Operators, each as often as it is called."""
MOST_BUFFERS = 20_000
ONLINE = -1
"""As an offset: the runtime places the buffer. greedy_memory_planner.h, kOnlinePlannedBuffer."""


class Target(NamedTuple):
    """What the sizes depend on."""

    pointer: int
    """Bytes of a pointer, and of size_t."""
    kernels: str = "reference"
    """'reference', or 'cmsis-nn' and 'cmsis-nn-mve': `tflm_kernels`."""
    recording: bool = False
    """Whether allocations are recorded, as in the Python package."""
    compression: bool = False
    """Built with USE_TFLM_COMPRESSION, as the Python package is."""
    enum: int = 4
    """Bytes of an enum. Some compilers for bare-metal Arm pack it into one, others do not: the larger counts."""
    recent: bool = True
    """With what the interpreter of October 2026 keeps and one of March 2026 does not: RECENT_OPTIONS."""


HOST = Target(8, recording=True, compression=True)
"""The Python package `tflite-micro`."""
MCU = Target(4, DSP)
"""A Cortex-M4, M7 or M33 with Arm's kernels."""
TARGETS = {"host": HOST, "cortex-m": MCU, "cortex-m55": Target(4, HELIUM), "32-bit": Target(4)}


class Struct:
    """A C struct from its fields: a count and 'i' (32 bits), 'P' (a pointer), 'B' (a byte), 'e' (an enum)."""

    def __init__(self, fields: str) -> None:
        self._parts = [(int(n or 1), kind) for n, kind in re.findall(r"(\d*)([iPBe])", fields)]

    def size(self, target: Target) -> int:
        at = 0
        for count, kind in self._parts:
            width = _width(kind, target)
            at += -at % width + count * width
        return at + -at % self.alignment(target)

    def alignment(self, target: Target) -> int:
        return max((_width(kind, target) for _, kind in self._parts), default=1)


def _width(kind: str, target: Target) -> int:
    return {"i": 4, "P": target.pointer, "B": 1, "e": target.enum}[kind]


# Structs of the runtime. Sources are files of github.com/tensorflow/tflite-micro, under tensorflow/lite. Read field by field,
# all but the recording allocators, the one of options and the compressed subgraph: those are what the interpreter showed.
# `benchmarks/tflm_target.py` measures the whole on an emulated Cortex-M55.
EVAL_TENSOR = Struct("2Pe")  # c/common.h, TfLiteEvalTensor: data, dims, type
# c/common.h, TfLiteTensor with TF_LITE_STATIC_MEMORY: quantization (an enum, a pointer), scale and zero point, data, dims,
# bytes, type, allocation, whether it is a variable
TENSOR = Struct("eP2i3P2eB")
QUANTIZATION = Struct("2Pi")  # c/common.h, TfLiteAffineQuantization: scale, zero point, dimension
NODE = Struct("6PiP")  # micro/micro_allocator.h, NodeAndRegistration: TfLiteNode and a pointer
SCRATCH_REQUEST = Struct("P2i")  # micro/micro_allocator.h, internal::ScratchBufferRequest
SCRATCH_HANDLE = Struct("P")  # micro/micro_allocator.h, ScratchBufferHandle
ALLOCATION_INFO = Struct("2P3iB")  # micro/micro_allocation_info.h, AllocationInfo
PLANNED_BUFFER = Struct("10i")  # memory_planner/greedy_memory_planner.h, per_buffer_size()
SUBGRAPH = Struct("2P")  # micro/micro_allocator.h, SubgraphAllocations
BUFFER_ALLOCATOR = Struct("9P")  # arena_allocator/single_arena_buffer_allocator.h
GREEDY_PLANNER = Struct("P2i4P2iPB")  # memory_planner/greedy_memory_planner.h
MICRO_ALLOCATOR = Struct("5PB3P")  # micro/micro_allocator.h
BUILTIN_ALLOCATOR = Struct("2P")  # micro/micro_allocator.cc, MicroBuiltinDataAllocator
VARIABLES = Struct("P2i")  # micro/micro_resource_variable.h, MicroResourceVariables
VARIABLE = Struct("4PB")  # micro/micro_resource_variable.h, MicroResourceVariable
COMPRESSED_SUBGRAPH = Struct("3P")
RECORDING_BUFFER_ALLOCATOR = Struct("13P")  # arena_allocator/recording_single_arena_buffer_allocator.h
RECORDING_MICRO_ALLOCATOR = Struct("5PB4P24P")  # micro/recording_micro_allocator.h: 8 records of 3 numbers


@dataclass(frozen=True)
class Arena:
    """Bytes of one model's arena."""

    planned: int
    """Tensors and scratch, in front."""
    persistent: int
    """What stays for good, behind."""
    startup: int
    """What the whole arena must have while the runtime prepares itself."""
    unknown: tuple[str, ...] = ()
    """Operators whose kernels' structs are guessed, if any."""
    measured: int | None = None
    """The least arena in which the interpreter itself has started and run, if it was asked."""
    listed: int = 0
    """What its lists of tensors and buffers need at the end of start-up, at least, whatever the order of the operators."""

    @property
    def total(self) -> int:
        """What `kTensorArenaSize` must be, at least; a multiple of 16."""
        if self.measured is not None:
            return round_up(self.measured)
        return max(round_up(self.planned) + self.persistent, self.startup)

    @property
    def is_startups(self) -> bool:
        """Whether start-up needs more at once than the tensors and what stays for good."""
        return self.startup > round_up(self.planned) + self.persistent

    def account(self) -> Arena:
        """The same with parts that add up to the total: where it was measured, it and not our sum is right."""
        if self.measured is None:
            return self
        if self.is_startups:
            return replace(self, startup=self.total)
        return replace(self, persistent=self.total - round_up(self.planned))

    def with_planned(self, planned: int) -> Arena:
        """The same model where its tensors take other bytes."""
        return replace(self, planned=planned, measured=None)


class Buffer(NamedTuple):
    """Something to plan: from when to when, in steps of the runtime's own count."""

    bytes: int
    first: int
    last: int
    offset: int = ONLINE


def compute_arena(
    model: TfliteModel,
    target: Target = HOST,
    *,
    scratch: Mapping[int, Sequence[int]] | None = None,
    offsets: Sequence[int] | None = None,
    persistent: Mapping[int, Sequence[int]] | None = None,
) -> Arena:
    """The arena of a model as its file is: the runtime's own planner, or the offsets that the file carries.

    Args:
      model: what was read.
      target: whose structs and kernels.
      scratch: operator of the first graph -> its requests in bytes, where they are known better.
      offsets: by tensor of all graphs, as the metadata `OfflineMemoryAllocation` has them.
      persistent: operator of the first graph -> what its kernel keeps, where that is known better.
    """
    return _Runtime(model, target, scratch or {}, persistent or {}).allocate(offsets)


def scratch_requests(graph: Graph, operator: Operator, target: Target) -> list[int]:
    """Bytes of scratch that a kernel asks for, one number a request."""
    name = operator.name
    place = 2 if name == "TRANSPOSE_CONV" else 0  # its first input is the output's shape
    number = operator.inputs[place] if len(operator.inputs) > place else ABSENT
    x = None if number == ABSENT else graph.tensors[number]
    out = graph.tensors[operator.outputs[0]] if operator.outputs and operator.outputs[0] != ABSENT else None
    if x is None or out is None:
        return []
    if name in REDUCTIONS:  # an index of every dimension, the axes; measured, with what sums of 32 bits take
        sums = [4 * out.elements] if name in ("MEAN", "SUM") and x.dtype in ("i8", "u8", "i16") else []
        return [*sums, 4 * len(x.shape), 4 * graph.tensors[operator.inputs[1]].elements]
    if name == "ADD_N":  # measured: a pointer to every operand
        return [target.pointer * len(operator.inputs)]
    if name == "MIRROR_PAD":  # measured: the strides of both ends
        return [4 * len(x.shape), 4 * len(x.shape)]
    if name in ("SVDF", LSTM):
        return recurrent_scratch(graph, operator, target.kernels)
    if target.kernels != "reference":
        return cmsis_scratch(graph, operator, target.kernels)
    if name == "TRANSPOSE_CONV":  # kernels/transpose_conv.cc, Prepare: sums of 32 (64) bits
        return {"i8": [4 * out.elements], "i16": [8 * out.elements]}.get(x.dtype, [])
    return []


class _Runtime:
    """The runtime's allocations, one after another, in its order."""

    def __init__(
        self,
        model: TfliteModel,
        target: Target,
        scratch: Mapping[int, Sequence[int]],
        persistent: Mapping[int, Sequence[int]],
    ) -> None:
        self.model, self.target = model, target
        self.tables = [graph.tables(GRAPH.TENSORS) for graph in model.root.tables(MODEL.GRAPHS)]
        self.scratch = {
            (g, i): list(scratch[i] if g == 0 and i in scratch else scratch_requests(graph, op, target))
            for g, graph in enumerate(model.graphs)
            for i, op in enumerate(graph.operators)
        }
        self.handles = [
            {
                op.outputs[0]: "" if op.options is None else op.options.text(1)
                for op in graph.operators
                if op.name == "VAR_HANDLE" and op.outputs
            }
            for graph in model.graphs
        ]
        """Of each graph: tensor that stands for a variable -> its name."""
        self.kept = persistent
        self.tail = 0
        self.most = 0
        self.unknown: set[str] = set()
        self.assigned: set[str] = set()

    def allocate(self, offsets: Sequence[int] | None) -> Arena:
        self._create()
        self._start()
        self._prepare()
        handles = sum(map(len, self.scratch.values())) * self._size(SCRATCH_HANDLE)
        if handles:
            self._keep(handles, self.target.pointer)
        for graph in self.model.graphs:
            for tensor in graph.tensors:
                if tensor.variable:
                    self._keep(tensor.bytes, ALIGNMENT)
        buffers = list(self._buffers(offsets))
        listed = self._plan(len(buffers))
        planned = greedy_height(buffers)
        # Room for the planned part and all that comes behind it is what `total` adds up.
        first = self.model.graphs[0]
        for ends in (first.inputs, first.outputs):
            self._keep(self.target.pointer * len(ends), ALIGNMENT)
            for number in ends:
                self._keep_tensor(0, number)
        # One more unit each: gaps between kernels' data depend on the order in which they ask.
        return Arena(
            planned,
            round_up(self.tail) + ALIGNMENT,
            round_up(self.most) + ALIGNMENT,
            tuple(sorted(self.unknown)),
            listed=max(0, listed - 4 * ALIGNMENT),  # a proof must not owe anything to what was rounded up
        )

    def _size(self, struct: Struct) -> int:
        return struct.size(self.target)

    def _keep(self, count: int, alignment: int) -> None:
        """Persistent bytes: the runtime rounds the address down."""
        self.tail += count
        self.tail += -self.tail % alignment

    def _need(self, front: int) -> None:
        """Bytes in front are in use at once with all that is kept by now."""
        self.most = max(self.most, front + self.tail)

    def _create(self) -> None:
        recording, word = self.target.recording, self.target.pointer
        self._keep(self._size(RECORDING_BUFFER_ALLOCATOR if recording else BUFFER_ALLOCATOR), word)
        self._keep(self._size(GREEDY_PLANNER), word)
        self._keep(self._size(RECORDING_MICRO_ALLOCATOR if recording else MICRO_ALLOCATOR), word)
        variables = len({name for names in self.handles for name in names.values()})
        if variables:
            self._keep(self._size(VARIABLES), ALIGNMENT)
            self._keep(self._size(VARIABLE) * variables, ALIGNMENT)

    def _start(self) -> None:
        """StartModelAllocation, and the operators' options from the file."""
        graphs, word = self.model.graphs, self.target.pointer
        self._keep(self._size(BUILTIN_ALLOCATOR), word)
        subgraph = COMPRESSED_SUBGRAPH if self.target.compression else SUBGRAPH
        self._keep(self._size(subgraph) * len(graphs), word)
        for graph in graphs:
            self._keep(self._size(EVAL_TENSOR) * len(graph.tensors), word)
        for graph in graphs:
            self._keep(self._size(NODE) * len(graph.operators), word)
        for graph in graphs:
            for operator in graph.operators:
                options = self._options(operator)
                if self._size(options):
                    self._keep(self._size(options), options.alignment(self.target))
        self._need(self._requests(0))

    def _kernel(self, operator: Operator) -> Kernel:
        kernel = KERNELS.get(operator.name, UNKNOWN)
        if not kernel.known:
            self.unknown.add(operator.name)
        return kernel

    def _options(self, operator: Operator) -> Struct:
        more = RECENT_OPTIONS.get(operator.name, "") if self.target.recent else ""
        return Struct(self._kernel(operator).options + more)

    def _data(self, operator: Operator) -> Struct:
        fields = self._kernel(operator).data
        if self.target.compression:
            fields += DECOMPRESSION.get(operator.name, "")
        if self.target.kernels != "reference":
            fields += MORE_DATA.get(operator.name, "")
        return Struct(fields)

    def _requests(self, count: int) -> int:
        return self._size(SCRATCH_REQUEST) * (count + MOST_SCRATCH_REQUESTS)

    def _prepare(self) -> None:
        """Init of every operator, then Prepare of every operator, with its tensors' structs for a while."""
        for g, graph in enumerate(self.model.graphs):
            for i, operator in enumerate(graph.operators):
                if g == 0 and i in self.kept:
                    continue
                data = self._data(operator)
                if self._size(data):
                    self._keep(self._size(data), ALIGNMENT)
        asked = 0
        for g, graph in enumerate(self.model.graphs):
            for i, operator in enumerate(graph.operators):
                # Nobody looks at the first input of a transposed convolution, which is a shape.
                first = 1 if operator.name == "TRANSPOSE_CONV" else 0
                ends = [n for n in (*operator.inputs[first:], *operator.outputs) if n != ABSENT]
                front = self._requests(asked) + sum(self._temporary(g, n) for n in ends)
                if operator.name in WEIGHT_OPS or not self._kernel(operator).known:
                    # All but the bias once more, where the kernel's data are computed: nothing is given back
                    # before the operator is done.
                    again = (*operator.inputs[first : first + 2], *operator.outputs)
                    front += sum(self._temporary(g, n) for n in again if n != ABSENT)
                else:
                    front += sum(self._temporary(g, n) for n in asked_again(graph, operator))
                for count in self.kept.get(i, ()) if g == 0 and i in self.kept else self._made(g, operator):
                    self._keep(count, ALIGNMENT)
                self._need(front)
                asked += len(self.scratch[g, i])
                self._need(self._requests(asked))

    def _made(self, g: int, operator: Operator) -> Iterator[int]:
        """What a kernel keeps once it knows its tensors."""
        graph = self.model.graphs[g]
        tensors = [None if n == ABSENT else graph.tensors[n] for n in operator.inputs]
        name = operator.name
        # The reference kernels make room for multipliers whatever the type, Arm's only for integers.
        is_plain = self.target.kernels == "reference"
        if name in WEIGHT_OPS and len(tensors) > 1 and tensors[1] is not None:
            has_multipliers = len(tensors[1].shape) == 4 and (is_plain or tensors[1].dtype != "f32")
            channels = tensors[1].shape[WEIGHT_OPS[name]] if has_multipliers else 0
            yield 4 * channels  # multipliers
            yield 4 * channels  # shifts
        if name == "FULLY_CONNECTED" and len(tensors) > 1 and operator.inputs[1] != ABSENT:
            channels = self._channels(g, operator.inputs[1])
            if channels > 1:
                yield 4 * channels
                yield 4 * channels
        if self.target.kernels != "reference":
            yield from cmsis_kept(graph, operator, self.target.kernels)
        if name in COPY_SHAPE and operator.outputs and operator.outputs[0] != ABSENT:
            yield 4 + 4 * len(graph.tensors[operator.outputs[0]].shape)
        if name == "ELU":
            yield 256  # measured: a table, for floats too
        if name == "BATCH_MATMUL" and len(tensors) == 2 and tensors[1] is not None:
            if tensors[0] is not None and tensors[0].dtype in ("i8", "i16"):
                yield 28  # kernels/batch_matmul.h, QuantizationOpDataBatchMatmul
            if operator.options is None or not operator.options.number(1, "B"):
                yield self._size(EVAL_TENSOR)
                yield 4 + 4 * len(tensors[1].shape)
                yield tensors[1].bytes
            if operator.options is not None and operator.options.number(0, "B") and tensors[0] is not None:
                yield self._size(EVAL_TENSOR)
                yield 4 + 4 * len(tensors[0].shape)
                yield tensors[0].bytes
        if name == "ASSIGN_VARIABLE" and len(tensors) == 2 and tensors[1] is not None:
            variable = self.handles[g].get(operator.inputs[0], "")
            if variable not in self.assigned:  # the first that writes a variable gives it its memory
                self.assigned.add(variable)
                yield tensors[1].bytes

    def _channels(self, g: int, number: int) -> int:
        """Scales of a tensor, if it has zero points too: without both it counts as not quantized."""
        quantized = self.tables[g][number].table(4)
        if quantized is None:
            return 0
        scales, zeros = quantized.vector(2, 4)[1], quantized.vector(3, 8)[1]
        return scales if scales and zeros else 0

    def _quantization(self, g: int, number: int) -> list[int]:
        channels = self._channels(g, number)
        return [self._size(QUANTIZATION), 4 + 4 * channels] if channels else []

    def _temporary(self, g: int, number: int) -> int:
        parts = [self._size(TENSOR), *self._quantization(g, number)]
        return sum(part + -part % self.target.pointer for part in parts)

    def _keep_tensor(self, g: int, number: int) -> None:
        self._keep(self._size(TENSOR), self.target.pointer)
        for part, alignment in zip(self._quantization(g, number), (self.target.pointer, 4), strict=False):
            self._keep(part, alignment)

    def _plan(self, buffers: int) -> int:
        """CommitStaticMemoryPlan: lists of all tensors and requests, then of what is to be planned."""
        word, requests = self.target.pointer, sum(map(len, self.scratch.values()))
        front = self._requests(requests)
        front += -front % word + word * len(self.model.graphs)
        tensors = sum(len(graph.tensors) for graph in self.model.graphs)
        front += -front % word + self._size(ALLOCATION_INFO) * (tensors + requests)
        front = round_up(front) + self._size(PLANNED_BUFFER) * buffers
        self.most = max(self.most, front + round_up(self.tail))
        return front + round_up(self.tail)

    def _buffers(self, offsets: Sequence[int] | None) -> Iterator[Buffer]:
        """What is planned, with its life as the runtime counts it (micro_allocation_info.cc)."""
        lives: list[list[list[int]]] = [[[-1, -1] for _ in graph.tensors] for graph in self.model.graphs]
        self._scratch_lives: dict[tuple[int, int], tuple[int, int]] = {}
        self._step = 0
        self._mark(0, lives, ())
        for graph, life, handles in zip(self.model.graphs, lives, self.handles, strict=True):
            for number, tensor in enumerate(graph.tensors):
                is_planned = not tensor.constant and not tensor.variable and number not in handles
                if is_planned and tensor.bytes:
                    # Only tensors of the first graph have offsets of their own: the runtime counts so.
                    offset = ONLINE if offsets is None else offsets[number]
                    yield Buffer(round_up(tensor.bytes), life[number][0], life[number][1], offset)
        for at, requests in self.scratch.items():
            first, last = self._scratch_lives.get(at, (-1, -1))
            for request in requests:
                yield Buffer(round_up(request), first, last)

    def _mark(self, g: int, lives: list[list[list[int]]], inside: tuple[int, ...]) -> None:
        graph, life = self.model.graphs[g], lives[g]
        if g in inside:
            return
        if self._step > MOST_STEPS:
            raise BadProgram(
                f"graphs that call each other stand for more than {MOST_STEPS:,} operators",
                object="graph",
                number=MOST_STEPS,
                remedy="give a model whose graphs are called less often",
            )
        for number in (*graph.inputs, *graph.outputs):
            if number != ABSENT:
                life[number] = [self._step, self._step]
        for i, operator in enumerate(graph.operators):
            self._step += 1
            begin = self._step
            for number in operator.outputs:
                if number != ABSENT:
                    life[number] = [self._step, self._step]
            for called in _calls(operator, len(self.model.graphs)):
                self._step += 1
                self._mark(called, lives, (*inside, g))
            for number in (*operator.inputs, *operator.outputs):
                if number != ABSENT:
                    life[number][1] = self._step
            self._scratch_lives[g, i] = (begin, self._step)
        for number in graph.outputs:
            if number != ABSENT:
                life[number][1] = self._step


def _calls(operator: Operator, graphs: int) -> list[int]:
    fields = {"IF": (0, 1), "WHILE": (0, 1), "CALL_ONCE": (0,)}.get(operator.name, ())
    numbers = [0 if operator.options is None else operator.options.number(f, "i") for f in fields]
    return [number for number in numbers if 0 < number < graphs]


def greedy_height(buffers: Sequence[Buffer]) -> int:
    """Bytes that the runtime's planner uses: given offsets first, then by size, each in the lowest gap."""
    if len(buffers) > MOST_BUFFERS:
        raise BadProgram(
            f"the model has {len(buffers):,} tensors to plan",
            object="model",
            number=len(buffers),
            remedy=f"give a model of at most {MOST_BUFFERS:,}",
        )
    given = [b for b in buffers if b.offset != ONLINE]
    # The runtime lists buffers from the last to the first and sorts them stably.
    online = sorted((b for b in reversed(buffers) if b.offset == ONLINE), key=lambda b: -b.bytes)
    placed: list[tuple[int, Buffer]] = []
    for buffer in (*given, *online):
        at = buffer.offset
        if at == ONLINE:
            at = 0
            for offset, other in placed:
                if other.first > buffer.last or buffer.first > other.last:
                    continue
                if offset - at >= buffer.bytes:
                    break
                at = max(at, offset + other.bytes)
        place = len(placed)
        while place and placed[place - 1][0] > at:
            place -= 1
        placed.insert(place, (at, buffer))
    return max((offset + buffer.bytes for offset, buffer in placed), default=0)


def round_up(count: int) -> int:
    """To a multiple of ALIGNMENT."""
    return count + -count % ALIGNMENT


@contextmanager
def damaged(name: str) -> Iterator[None]:
    """Operators' options and shapes are looked at here for the first time: what is wrong with them is one error."""
    try:
        yield
    except (Broken, LookupError, ArithmeticError, ValueError, TypeError, struct.error) as error:
        raise BadProgram(
            f"'{name}' has a damaged operator: {type(error).__name__} {error}"[:200],
            object=name,
            remedy="export or copy it again",
        ) from None


def carried_offsets(model: TfliteModel) -> list[int] | None:
    """The offsets that a file carries, by tensor; None if it has none that the runtime would take."""
    data = model.metadata.get("OfflineMemoryAllocation", b"")
    table = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data) // 4 * 4, 4)]
    count = sum(len(graph.tensors) for graph in model.graphs)
    return table[3:] if len(table) == 3 + count and table[2] == count else None
