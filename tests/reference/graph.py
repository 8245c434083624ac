"""GraphOptimization done slowly, from its rules: the fusion pass, and what a vector stands for."""

from __future__ import annotations

import numpy as np

from loadmaster.graph import GraphOptimization
from loadmaster.plan.plan import Plan
from loadmaster.program.hazards import overwrite_waits
from loadmaster.program.program import GIVEN, Program, TensorKind, TieKind


class SlowFusion:
    """Clusters as sets of ops; every question is answered by looking at all of them."""

    def __init__(self, problem: GraphOptimization) -> None:
        self.problem, self.program, self.rules = problem, problem.program, problem.rules
        program = self.program
        root, views = program.tensor_alias.tolist(), program.op_view.tolist()
        self.ops = [op for op in range(program.n_ops) if not views[op]]
        self.reads = {
            op: [
                (root[int(t)], row)
                for row, t in enumerate(program.reads(op).tolist(), int(program.read_start[op]))
            ]
            for op in self.ops
        }
        self.writes = {op: [root[int(t)] for t in program.writes(op)] for op in self.ops}
        given = {t for t in range(program.n_tensors) if program.tensor_kind[t] in GIVEN}
        self.writer = {t: op for op in self.ops for t in self.writes[op] if t not in given}
        self.kept = {root[t] for t in range(program.n_tensors) if program.tensor_kind[t] == TensorKind.OUTPUT}
        self.kept |= {
            root[int(t)]
            for kind, t in zip(program.tie_kind, program.tie_target, strict=True)
            if kind != TieKind.DONATED
        }
        self.waits = [tuple(pair) for pair in overwrite_waits(program).T.tolist()]
        self.given_device = None
        if "placement" not in problem.tasks:
            by_group = problem.split(problem.vector())[1]
            self.given_device = dict(
                zip(problem.node_op.tolist(), by_group[problem.node_group].tolist(), strict=True)
            )

    def fuse(self, keys: np.ndarray) -> np.ndarray:
        key = dict(zip(self.problem.node_op.tolist(), keys.tolist(), strict=True))
        self.cluster = {op: frozenset([op]) for op in self.ops}
        for op in sorted(self.ops, key=lambda op: (-key[op], op)):
            if key[op] >= 1 / 16:
                self._visit(op)
        fusion = np.full(self.program.n_ops, -1, dtype=np.int32)
        for op, members in self.cluster.items():
            if len(members) > 1:
                fusion[op] = min(members)
        return fusion

    def _readers(self, tensor: int) -> list[int]:
        return [op for op in self.ops if any(t == tensor for t, _ in self.reads[op])]

    def _visit(self, op: int) -> None:
        for tensor in self.writes[op]:
            readers = [reader for reader in self._readers(tensor) if reader != op]
            if self.problem.readers == "all":
                self._try([op, *readers])
            else:
                for reader in readers:
                    self._try([op, reader])

    def _try(self, ops: list[int]) -> None:
        parts = {self.cluster[op] for op in ops}
        merged = frozenset().union(*parts)
        if len(parts) > 1 and self._legal(merged) and not self._cycle(merged):
            for op in merged:
                self.cluster[op] = merged

    def _legal(self, merged: frozenset[int]) -> bool:
        rules, program = self.rules, self.program
        if not all(rules.fusible[op] for op in merged) or len(merged) > 64:
            return False
        for column in (self.problem.hard, program.op_group):
            if len({int(column[op]) for op in merged if column[op] >= 0}) > 1:
                return False
        if len({int(program.op_loop[op]) for op in merged}) > 1:
            return False
        if self.given_device and len({self.given_device[op] for op in merged}) > 1:
            return False
        if sum(int(rules.big_reduction[op]) for op in merged) > 8:
            return False
        outside: set[int] = set()
        for op in merged:
            for tensor, row in self.reads[op]:
                maker = self.writer.get(tensor, -1)
                if maker not in merged:
                    outside.add(tensor)
                elif maker != op and (
                    rules.big_reduction[maker] or (rules.repeats[row] and not rules.cheap[maker])
                ):
                    return False
        leaving = {
            t
            for op in merged
            for t in self.writes[op]
            if t in self.kept or not merged.issuperset(self._readers(t))
        }
        sizes = {int(rules.loop_size[t]) for t in leaving}
        return len(outside) + len(leaving) <= 96 and len(sizes) <= 1

    def _after(self, members: frozenset[int]) -> set[frozenset[int]]:
        tensors = {t for op in members for t in self.writes[op]}
        waiting = {op for op in self.ops if any(t in tensors for t, _ in self.reads[op])}
        waiting |= {by for user, by in self.waits if user in members}
        return {self.cluster[op] for op in waiting}

    def _cycle(self, merged: frozenset[int]) -> bool:
        """Whether a path leaves the merged ops and comes back."""
        todo = [c for c in self._after(merged) if not c <= merged]
        seen = set(todo)
        while todo:
            for other in self._after(todo.pop()):
                if other <= merged:
                    return True
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return False


def decoded(problem: GraphOptimization, vector: np.ndarray) -> Plan:
    """The plan of a vector with its keys, as the rules say it."""
    program: Program = problem.program
    fusion_keys, device_of, keys = problem.split(vector)
    fusion = SlowFusion(problem).fuse(fusion_keys)
    group = dict(zip(problem.node_op.tolist(), problem.node_group.tolist(), strict=True))
    device = np.zeros(program.n_ops, dtype=np.int32)
    for op in group:
        members = [o for o in group if fusion[op] >= 0 and fusion[o] == fusion[op]] or [op]
        hard = [o for o in members if problem.hard[o] >= 0]
        device[op] = device_of[group[min(hard or members)]]
    priority = np.zeros(program.n_ops)
    if "schedule" in problem.tasks:
        priority[problem.node_op] = keys
        tie = problem.tie
    else:
        tie = str(problem.base.schedule)
    return Plan(
        device=device,
        queue="priority",
        priority=priority,
        tie=tie,
        fusion=fusion if np.any(fusion >= 0) else None,
    )
