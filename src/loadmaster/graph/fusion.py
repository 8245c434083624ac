"""What may be fused: the rules that depend on the program alone, as columns, and checked in a plan.

| rule | detail |
| --- | --- |
| kinds | element-wise, broadcast, transpose, slice, split, concat, pad, reverse, iota, reductions, and a gather whose result is no larger than its source |
| size | at most 64 ops; outside inputs and results that leave at most 96 |
| reductions | one of 16 or more elements per result is not read inside; at most 8 of them |
| repetition | what a reader uses more than once costs at most 4 flops per element and is no reduction |
| one loop | results that leave have one loop size |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.arrays import Float64, Int8, Int64
from loadmaster.graph.groups import root_readers
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan
from loadmaster.program.hazards import root_writers
from loadmaster.program.kinds import BITS, ELEMENTWISE, REDUCTIONS, TRANSCENDENTAL
from loadmaster.program.op_costs import VECTOR_FLOPS
from loadmaster.program.program import Program, TensorKind, TieKind

NEVER = 1 / 16
"""A key below it: the results of this op are never fused."""
MOST_OPS = 64
MOST_ENDS = 96
MOST_REDUCTIONS = 8
BIG_REDUCTION = 16
CHEAP_FLOPS = 4

_FLOWING = frozenset((*ELEMENTWISE, *TRANSCENDENTAL))
_MOVING = frozenset(
    ("broadcast", "transpose", "slice", "dynamic_slice", "split", "concat", "pad", "reverse", "iota")
)
_REDUCING = frozenset(REDUCTIONS) - {"cumsum"}  # a running sum overlaps its windows
_SPREADING = _FLOWING | {"broadcast"}
"""Kinds that use an operand smaller than their result more than once."""


@dataclass(frozen=True, eq=False)
class FusionRules:
    """Columns over ops, tensors and reads (rows of the program's reads)."""

    fusible: Int8
    """[n_ops] not a barrier"""
    big_reduction: Int8
    """[n_ops]"""
    cheap: Int8
    """[n_ops] may be computed several times"""
    loop_size: Int64
    """[T] elements that the loop which makes a tensor goes over"""
    repeats: Int8
    """[reads] the op uses elements of the tensor more than once"""


def fusion_rules(program: Program) -> FusionRules:
    """The columns of a program."""
    elements = tensor_elements(program)
    kinds = np.array(program.op_kind.values, dtype=object)[program.op_kind.codes]
    known = {
        kind: kind in _FLOWING or kind in _MOVING or kind in _REDUCING for kind in program.op_kind.values
    }
    fusible = np.array([known[kind] for kind in kinds], dtype=bool) & ~program.op_view
    largest_read = np.zeros(program.n_ops, dtype=np.int64)
    np.maximum.at(largest_read, program.read_op, elements[program.read_tensor])
    result = np.zeros(program.n_ops, dtype=np.int64)
    np.maximum.at(result, program.write_op, elements[program.write_tensor])
    fusible |= (kinds == "gather") & (result <= largest_read) & ~program.op_view
    reduction = np.isin(kinds, list(_REDUCING))
    loop_size = elements.copy()
    of_reduction = reduction[program.write_op]
    loop_size[program.write_tensor[of_reduction]] = largest_read[program.write_op[of_reduction]]
    flops = _flops_per_element(program, result)
    spreads = np.isin(kinds, list(_SPREADING))
    repeats = spreads[program.read_op] & (result[program.read_op] > elements[program.read_tensor])
    return FusionRules(
        fusible=fusible.astype(np.int8),
        big_reduction=(reduction & (largest_read >= BIG_REDUCTION * result)).astype(np.int8),
        cheap=((flops <= CHEAP_FLOPS) & ~reduction).astype(np.int8),
        loop_size=loop_size,
        repeats=repeats.astype(np.int8),
    )


def tensor_elements(program: Program) -> Int64:
    """[T] elements of each tensor: of its shape, else of its bytes."""
    bits = np.array([BITS.get(name, 8) for name in program.tensor_dtype.values], dtype=np.int64)
    by_bytes = np.maximum(1, program.tensor_bytes * 8 // bits[program.tensor_dtype.codes])
    shaped = np.flatnonzero(np.diff(program.tensor_shape_start))
    exact: Int64 = by_bytes.copy()
    if len(shaped):
        # As floats: a hostile shape of many dimensions would wrap round.
        counts = np.multiply.reduceat(
            program.tensor_shape.astype(np.float64), program.tensor_shape_start[shaped]
        )
        exact[shaped] = np.minimum(counts, float(2**60)).astype(np.int64)
    return exact


def _flops_per_element(program: Program, result: Int64) -> Float64:
    weight = np.array([VECTOR_FLOPS.get(kind, 1) for kind in program.op_kind.values])
    flops = program.op_flops.astype(np.float64)
    total = flops[:, 0] + (flops[:, 1] + flops[:, 2]) * weight[program.op_kind.codes]
    return np.asarray(total / np.maximum(1, result))


def fusion_violations(program: Program, rules: FusionRules, plan: Plan) -> list[Violation]:
    """One for each cluster of a finished plan that breaks a rule; written apart from the pass that
    fuses."""
    if plan.fusion is None:
        return []
    clusters: dict[int, list[int]] = {}
    for op in np.flatnonzero((plan.fusion >= 0) & ~program.op_view).tolist():
        clusters.setdefault(int(plan.fusion[op]), []).append(op)
    judge = _Judge(program, rules)
    found = []
    for members in clusters.values():
        wrong = judge.wrong(members) if len(members) > 1 else None
        if wrong:
            first = members[0]
            message = f"the cluster of op {first} '{program.op_name[first]}' {wrong}: fuse fewer ops"
            found.append(Violation("fusion", message, op=first, number=len(members)))
    return found


class _Judge:
    def __init__(self, program: Program, rules: FusionRules) -> None:
        self.program = program
        self.readers, self.writer = root_readers(program), root_writers(program).tolist()
        self.read_start, self.write_start = program.read_start.tolist(), program.write_start.tolist()
        self.read_root = program.tensor_alias[program.read_tensor].tolist()
        self.write_root = program.tensor_alias[program.write_tensor].tolist()
        self.fusible, self.big_reduction = rules.fusible.tolist(), rules.big_reduction.tolist()
        self.repeats, self.cheap = rules.repeats.tolist(), rules.cheap.tolist()
        self.loop_size = rules.loop_size.tolist()
        outputs = program.tensor_alias[program.tensor_kind == TensorKind.OUTPUT]
        tied = program.tensor_alias[program.tie_target[program.tie_kind != TieKind.DONATED]]
        self.kept = {*outputs.tolist(), *tied.tolist()}

    def wrong(self, members: list[int]) -> str | None:
        """What is wrong with a cluster, or None."""
        inside = set(members)
        barrier = [op for op in members if not self.fusible[op]]
        if barrier:
            return f"holds {self.program.op_kind[barrier[0]]}, which is never fused"
        if len(members) > MOST_OPS:
            return f"has {len(members)} ops of at most {MOST_OPS}"
        reductions = sum(self.big_reduction[op] for op in members)
        if reductions > MOST_REDUCTIONS:
            return f"has {reductions} reductions of at most {MOST_REDUCTIONS}"
        inputs: set[int] = set()
        leaving: set[int] = set()
        for op in members:
            for row in range(self.read_start[op], self.read_start[op + 1]):
                root = self.read_root[row]
                maker = self.writer[root]
                if maker not in inside:
                    inputs.add(root)
                elif maker != op and self.big_reduction[maker]:
                    return f"reads the reduction of op {maker} inside"
                elif maker != op and self.repeats[row] and not self.cheap[maker]:
                    return f"computes op {maker} several times"
            for root in self.write_root[self.write_start[op] : self.write_start[op + 1]]:
                if root in self.kept or not inside.issuperset(self.readers[root]):
                    leaving.add(root)
        if len(inputs) + len(leaving) > MOST_ENDS:
            return f"has {len(inputs) + len(leaving)} inputs and results of at most {MOST_ENDS}"
        if len({self.loop_size[root] for root in leaving}) > 1:
            return "leaves results of several loop sizes"
        return None
