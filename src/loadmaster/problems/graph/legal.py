"""The rules of fusion, asked of a finished plan. Written apart from the pass that fuses."""

from __future__ import annotations

import numpy as np

from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan
from loadmaster.problems.graph.groups import root_readers
from loadmaster.problems.graph.rules import MOST_ENDS, MOST_OPS, MOST_REDUCTIONS, FusionRules
from loadmaster.program.hazards import root_writers
from loadmaster.program.program import Program, TensorKind, TieKind


def fusion_violations(program: Program, rules: FusionRules, plan: Plan) -> list[Violation]:
    """One for each cluster that breaks a rule."""
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
        self.program, self.rules = program, rules
        self.readers, self.writer = root_readers(program), root_writers(program)
        self.root = program.tensor_alias.tolist()
        outputs = program.tensor_alias[program.tensor_kind == TensorKind.OUTPUT]
        tied = program.tensor_alias[program.tie_target[program.tie_kind != TieKind.DONATED]]
        self.kept = {*outputs.tolist(), *tied.tolist()}

    def wrong(self, members: list[int]) -> str | None:
        """What is wrong with a cluster, or None."""
        program, rules, inside = self.program, self.rules, set(members)
        barrier = [op for op in members if not rules.fusible[op]]
        if barrier:
            return f"holds {program.op_kind[barrier[0]]}, which is never fused"
        if len(members) > MOST_OPS:
            return f"has {len(members)} ops of at most {MOST_OPS}"
        reductions = int(rules.big_reduction[members].sum())
        if reductions > MOST_REDUCTIONS:
            return f"has {reductions} reductions of at most {MOST_REDUCTIONS}"
        inputs: set[int] = set()
        leaving: set[int] = set()
        for op in members:
            for row in range(program.read_start[op], program.read_start[op + 1]):
                root = self.root[program.read_tensor[row]]
                maker = int(self.writer[root])
                if maker not in inside:
                    inputs.add(root)
                elif maker != op and rules.big_reduction[maker]:
                    return f"reads the reduction of op {maker} inside"
                elif maker != op and rules.repeats[row] and not rules.cheap[maker]:
                    return f"computes op {maker} several times"
            for root in (self.root[tensor] for tensor in program.writes(op)):
                if root in self.kept or not inside.issuperset(self.readers[root]):
                    leaving.add(root)
        if len(inputs) + len(leaving) > MOST_ENDS:
            return f"has {len(inputs) + len(leaving)} inputs and results of at most {MOST_ENDS}"
        if len({int(rules.loop_size[root]) for root in leaving}) > 1:
            return "leaves results of several loop sizes"
        return None
