"""What HLO instructions cost: the rules of XLA's own cost analysis, for each place accessed.

Counts per element come from the table of all importers; products, windows, sorts and calls are counted
as XLA counts them, so that the two can be compared. Bytes are those of every operand and result. A fusion reads what its body reads and writes its
results; what it makes on the way costs no bytes. Ops that XLA does not know (custom
calls above all) get an estimate and say so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from loadmaster.program.importers.hlo.module import Computation, Instruction, Module, Shape, numbers
from loadmaster.program.op_costs import PER_ELEMENT
from loadmaster.units import UNLIMITED

Flops = tuple[int, int, int]
NONE: Flops = (0, 0, 0)

KINDS = {
    "dot": "matmul",
    "convolution": "conv",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
    "negate": "neg",
    "remainder": "rem",
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log-plus-one": "log1p",
    "power": "pow",
    "sine": "sin",
    "cosine": "cos",
    "concatenate": "concat",
    "round-nearest-afz": "round",
    "round-nearest-even": "round",
    "rng": "random",
    "rng-bit-generator": "random",
}
"""Where HLO has another word for the same; all others are the opcode, '-' as '_'."""

_COUNTED_AS = {
    "count-leading-zeros": "clz",
    "is-finite": "compare",
    "popcnt": "population_count",
    "reduce-precision": "convert",
    "stochastic-convert": "convert",
    # XLA's own counts: bits that change their type are a flop each, an all-reduce is a sum of two,
    # and a random number is one evaluation.
    "all-reduce": "add",
    "bitcast-convert": "convert",
    "rng": "exp",
    "rng-bit-generator": "exp",
}
"""Opcodes that cost what another word of the shared table costs."""
_EACH = """
abs add and ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite maximum
minimum multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even
select shift-left shift-right-arithmetic shift-right-logical sign stochastic-convert subtract xor
acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log log-plus-one
logistic power rsqrt sine sinh sqrt tan tanh
all-reduce bitcast-convert rng rng-bit-generator
"""


def _counts(opcode: str) -> tuple[int, int]:
    word = _COUNTED_AS.get(opcode) or KINDS.get(opcode) or opcode.replace("-", "_")
    return PER_ELEMENT[word]


EACH = {opcode: _counts(opcode) for opcode in _EACH.split()}
"""Vector flops and evaluations per element of the result."""
_WITHOUT_FLOPS = """
add-dependency after-all all-gather all-to-all async-done async-start async-update batch-norm-grad
batch-norm-inference batch-norm-training bitcast broadcast collective-broadcast collective-permute
concatenate constant copy copy-done copy-start domain dynamic-reshape dynamic-slice dynamic-update-slice
gather get-dimension-size get-tuple-element infeed iota opt-barrier optimization-barrier outfeed pad
parameter partition-id ragged-all-to-all recv recv-done reduce-scatter replica-id reshape reverse
rng-get-and-update-state send send-done set-dimension-size slice topk transpose tuple
"""
WITHOUT_FLOPS = frozenset(_WITHOUT_FLOPS.split())
_COUNTED = """
call cholesky conditional convolution dot fft fusion map reduce reduce-window scatter select-and-scatter
sort triangular-solve while
"""
COUNTED = frozenset(_COUNTED.split())
KNOWN = EACH.keys() | WITHOUT_FLOPS | COUNTED

UPDATE = {"dynamic-update-slice": 1, "scatter": -1}
"""In-place updates, and which operand they write into operand 0."""

SUBLANES = 8
"""Rows of a TPU's vector register."""
EXACT_POSITIONS = 2**20
"""Above this size in a spatial dimension, all positions of a convolution count as valid."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Flops by class (matrix, vector, transcendental) and bytes of one instruction."""

    flops: Flops
    reads: tuple[int | None, ...]
    """Bytes of each leaf of each operand; None: a fusion's body does not look at it."""
    writes: tuple[int, ...]
    """Bytes of each leaf of the result."""
    other_bytes: int = 0
    """Constants inside a fusion."""


class CostModel:
    """The costs of one module's instructions; those of computations are computed once."""

    def __init__(self, module: Module) -> None:
        self.computations = module.computations
        self._flops: dict[str, Flops] = {}
        self._reads: dict[str, list[list[int | None]]] = {}

    def cost(self, instruction: Instruction, inside: Computation) -> Cost:
        """Of one instruction that is no call, loop or branch (their inner ops are costed)."""
        try:
            flops = self.flops(instruction, inside)
            if max(flops) > UNLIMITED:
                raise instruction.wrong("takes more than 2^62 flops", "check the shapes")
            if instruction.opcode == "fusion":
                return self._fusion(instruction, flops)
            return _accesses(instruction, inside.operand_shapes(instruction), flops)
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise _unfit(instruction) from error

    def computation_flops(self, name: str) -> Flops:
        """All instructions of a computation, each loop inside it once."""
        if name not in self._flops:
            inside = self.computations[name]
            total = NONE
            for instruction in inside.instructions.values():
                try:
                    total = _sum(total, self.flops(instruction, inside))
                except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
                    raise _unfit(instruction) from error
            self._flops[name] = total
        return self._flops[name]

    def heaviest(self, branches: tuple[str, ...]) -> int:
        """Which of these computations has most flops; the first among equals."""
        totals = [sum(self.computation_flops(name)) for name in branches]
        return totals.index(max(totals))

    def flops(self, instruction: Instruction, inside: Computation) -> Flops:
        opcode, elements = instruction.opcode, instruction.shape.elements
        if opcode in EACH:
            vector, evaluations = EACH[opcode]
            return (0, vector * elements, evaluations * elements)
        if opcode not in KNOWN:
            return (0, elements, 0)
        if opcode in WITHOUT_FLOPS:
            return NONE
        shapes = inside.operand_shapes(instruction)
        match opcode:
            case "dot":
                return (_dot(instruction, shapes), 0, 0)
            case "convolution":
                return (_convolution(instruction, shapes), 0, 0)
            case "sort":
                return (0, shapes[0].elements * max(shapes[0].elements - 1, 0).bit_length(), 0)
            case "fft":
                stages = [size.bit_length() - 1 for size in numbers(instruction.attributes["fft_length"])]
                return (0, 2 * 4 * math.prod(stages) * shapes[0].elements, 0)
            case "triangular-solve":
                return (0, 2 * shapes[0].dims[-1] * shapes[1].elements, 0)
            case "cholesky":
                return (0, shapes[0].dims[-1] * shapes[0].elements // 3, 0)
        return self._called(instruction, shapes)

    def _called(self, instruction: Instruction, shapes: list[Shape]) -> Flops:
        """Instructions whose flops are those of a computation, so many times."""
        result = instruction.shape.leaves[0].elements if instruction.shape.leaves else 0
        window = math.prod(size for size, *_ in windows(instruction))
        match instruction.opcode:
            case "while":
                times = {"condition": 1, "body": 1}
            case "conditional":
                branches = instruction.branches
                return self.computation_flops(branches[self.heaviest(branches)])
            case "map":
                times = {"to_apply": result}
            case "reduce":
                times = {"to_apply": max(0, shapes[0].elements - result)}
            case "reduce-window":
                times = {"to_apply": _window_reductions(instruction, shapes[0], result, window)}
            case "select-and-scatter":
                times = {"select": shapes[1].elements * (window - 1), "scatter": shapes[1].elements}
            case "scatter":
                times = {"to_apply": shapes[-1].elements}
            case opcode:
                times = {"calls" if opcode == "fusion" else "to_apply": 1}
        total = NONE
        for key, count in times.items():
            for name in instruction.calls(key):
                total = _sum(total, self.computation_flops(name), count)
        return total

    def _fusion(self, fusion: Instruction, flops: Flops) -> Cost:
        body = self.computations[fusion.calls("calls")[0]]
        reads = tuple(size for leaves in self._parameter_reads(body) for size in leaves)
        constants = sum(
            i.shape.bytes
            for i in body.instructions.values()
            if i.opcode == "constant" and i.shape.elements > 1
        )
        writes = tuple(
            body.instructions[root.operands[UPDATE[root.opcode]]].shape.bytes
            if root is not None and root.opcode in UPDATE
            else leaf.bytes
            for leaf, root in zip(fusion.shape.leaves, body.leaf_roots, strict=True)
        )
        return Cost(flops, reads, writes, constants)

    def _parameter_reads(self, body: Computation) -> list[list[int | None]]:
        if body.name not in self._reads:
            self._reads[body.name] = [self._leaf_reads(i, body) for i in body.parameters]
        return self._reads[body.name]

    def _leaf_reads(self, source: Instruction, body: Computation) -> list[int | None]:
        """Bytes read of each leaf of a fusion's parameter, or of a part of one."""
        if source.shape.parts is None:
            return [self._array_reads(source, body)]
        by_part: list[list[int | None]] = [[None] * len(part.leaves) for part in source.shape.parts]
        for user in body.users[source.name]:
            if user.opcode == "get-tuple-element":
                by_part[int(user.attributes["index"])] = self._leaf_reads(user, body)
        return [size for part in by_part for size in part]

    def _array_reads(self, source: Instruction, body: Computation) -> int | None:
        """Slices count themselves, broadcasts and reshapes a full read each, all others one in total.

        Gathers and scatters count the rows they touch, as they do outside a fusion; XLA does
        so in custom fusions and counts the whole operand in others.
        """
        size, shared = 0, False
        for user in body.users[source.name]:
            first = user.operands[0] == source.name
            if user.opcode == "fusion":
                inner = self._parameter_reads(self.computations[user.calls("calls")[0]])
                places = [place for place, name in enumerate(user.operands) if name == source.name]
                size += sum(read or 0 for place in places for read in inner[place])
            elif user.opcode == "slice" or (user.opcode == "dynamic-slice" and first):
                size += user.shape.bytes
            elif user.opcode == "gather" and first:
                size += _gathered(user, source.shape)
            elif user.opcode == "scatter" and first and any(user is root for root in body.leaf_roots):
                size += body.instructions[user.operands[-1]].shape.bytes
            elif user.opcode in ("broadcast", "reshape"):
                size += source.shape.bytes
            elif not (user.opcode == "dynamic-update-slice" and first) and not shared:
                size, shared = size + source.shape.bytes, True
        return size if body.users[source.name] else None


def windows(instruction: Instruction) -> list[tuple[int, int, int, int, int]]:
    """(size, stride, padding below, base dilation, window dilation) of each window dimension."""
    fields = dict(field.split("=", 1) for field in instruction.attributes.get("window", "{}")[1:-1].split())
    sizes = numbers(fields.get("size", ""))
    ones = [1] * len(sizes)
    pads = numbers(fields["pad"])[::2] if "pad" in fields else [0] * len(sizes)
    columns = [
        numbers(fields[key]) if key in fields else ones for key in ("stride", "lhs_dilate", "rhs_dilate")
    ]
    return list(zip(sizes, columns[0], pads, columns[1], columns[2], strict=True))


def _window_reductions(instruction: Instruction, source: Shape, result: int, window: int) -> int:
    """How often a reduce-window applies its function; XLA's count for one that covers all.

    A window that reaches every element from everywhere along one dimension is a reduction whose
    result is repeated, and XLA counts it so.
    """
    wide = [
        (size, pad, n)
        for (size, _, pad, *_), n in zip(windows(instruction), source.dims, strict=False)
        if size != 1
    ]
    if len(wide) == 1 and instruction.shape.dims == source.dims:
        size, pad, n = wide[0]
        if pad == n - 1 > 0 and size == 2 * pad + 1:
            return result // n + n - 1
    return (window - 1) * result


def _gathered(gather: Instruction, table: Shape) -> int:
    """Bytes that a gather reads of its table.

    In a tiled layout a row lies among seven others, and a TPU's compiler counts them all.
    """
    is_tiled = bool(table.tiles) and len(table.tiles[0]) > 1
    return gather.shape.bytes * (SUBLANES if is_tiled else 1)


def _sum(total: Flops, more: Flops, times: int = 1) -> Flops:
    return (total[0] + more[0] * times, total[1] + more[1] * times, total[2] + more[2] * times)


def _unfit(instruction: Instruction) -> Exception:
    return instruction.wrong("has attributes that do not fit its shapes", "give the text as XLA prints it")


def _accesses(instruction: Instruction, shapes: list[Shape], flops: Flops) -> Cost:
    """Everything in full, but for the ops that touch a part of an operand only."""
    reads = [leaf.bytes for shape in shapes for leaf in shape.leaves]
    writes = [leaf.bytes for leaf in instruction.shape.leaves]
    match instruction.opcode:
        case "slice":
            reads[0] = writes[0]
        case "gather":
            reads[0] = _gathered(instruction, shapes[0])
        case "dynamic-slice":
            reads[0] = writes[0]
            reads[2:] = [0] * len(reads[2:])  # XLA counts the first index alone
        case "dynamic-update-slice":
            writes[0] = reads[1]
            reads[0], reads[3:] = 0, [0] * len(reads[3:])
        case "scatter":
            arrays = len(shapes) // 2
            reads[:arrays] = writes[:] = reads[arrays + 1 :]
        case "triangular-solve":
            reads[0] //= 2
        case "cholesky":
            reads[0], writes[0] = reads[0] // 2, reads[0] // 2
    return Cost(flops, tuple(reads), tuple(writes))


def _dot(dot: Instruction, shapes: list[Shape]) -> int:
    contracted = numbers(dot.attributes.get("lhs_contracting_dims", ""))
    return 2 * dot.shape.elements * math.prod(shapes[0].dims[dimension] for dimension in contracted)


def _convolution(convolution: Instruction, shapes: list[Shape]) -> int:
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", convolution.attributes["dim_labels"])
    if labels is None:
        raise ValueError("dim_labels")
    image, kernel, result = labels.groups()
    groups, batch_groups = (
        int(convolution.attributes.get(f"{what}_group_count", 1)) for what in ("feature", "batch")
    )
    features = shapes[0].dims[image.index("f")] // groups
    batch = shapes[0].dims[image.index("b")] // batch_groups
    count = 2 * features * convolution.shape.dims[result.index("f")] * batch
    for axis, (_, stride, pad, base, dilation) in enumerate(windows(convolution)):
        count *= _valid_positions(
            kernel=shapes[1].dims[kernel.index(str(axis))],
            image=shapes[0].dims[image.index(str(axis))],
            result=convolution.shape.dims[result.index(str(axis))],
            stride=stride,
            pad=pad,
            base=base,
            dilation=dilation,
        )
    return count


def _valid_positions(
    *, kernel: int, image: int, result: int, stride: int, pad: int, base: int, dilation: int
) -> int:
    """Pairs (k, r) that meet an element: r * stride + k * dilation - pad is base * (0 … image - 1)."""
    if result < kernel:  # the roles are symmetric: walk over the smaller one
        kernel, result, stride, dilation = result, kernel, dilation, stride
    if kernel > EXACT_POSITIONS:
        return kernel * result
    common = math.gcd(stride, base)
    period = base // common
    inverse = pow(stride // common, -1, period)
    count = 0
    for k in range(kernel):
        offset = k * dilation - pad
        if offset % common:
            continue
        first = -offset // common * inverse % period  # the least r that lands on no dilation hole
        low = max(0, -(offset // stride))
        high = min(result - 1, (base * (image - 1) - offset) // stride)
        low += (first - low) % period
        count += max(0, (high - low) // period + 1)
    return count
