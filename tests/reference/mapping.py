"""The Mapping problem as plainly as it can be said: lives, rectifier and time in Python lists.

Written from the text of the problem and docs/simulation.md; it shares no code with the entries of
`loadmaster.problems` nor with the native core.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.machine.machine import Machine
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind
from reference.simulate.costs import Access, step_duration


@dataclass
class Piece:
    """Tensors that share one place."""

    roots: list[int]
    bytes: int
    alive: range
    """Ops."""


class SlowMapping:
    """One device, which reaches memories 0 (fastest) to M - 1."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine, self.reach = program, machine, machine.reach[0]
        self.slowest = len(self.reach) - 1
        self.ops = range(program.n_ops)
        self.root = program.tensor_alias.tolist()
        self.kind = [TensorKind(kind) for kind in program.tensor_kind]
        node_ops = [op for op in self.ops if not program.op_view[op]]
        self.node_of = {op: node for node, op in enumerate(node_ops)}
        self.nodes = len(node_ops)
        self.accesses = {op: self._accesses(op) for op in node_ops}
        self.pieces: dict[int, list[Piece]] = {}
        """By entry."""
        self.entry_of: dict[int, int] = {}
        """By root; roots that are not there stay at home."""
        for roots in self._places():
            self._enter(roots)

    def _accesses(self, op: int) -> list[tuple[int, int, bool]]:
        """(root, bytes, is a write)"""
        p = self.program
        reads = range(p.read_start[op], p.read_start[op + 1])
        writes = range(p.write_start[op], p.write_start[op + 1])
        return [
            *((self.root[p.read_tensor[row]], int(p.read_bytes[row]), False) for row in reads),
            *((self.root[p.write_tensor[row]], int(p.write_bytes[row]), True) for row in writes),
        ]

    def _places(self) -> list[list[int]]:
        p = self.program
        sets = {root: {root} for root in self.root}
        for kind, source, target in zip(p.tie_kind, p.tie_source, p.tie_target, strict=True):
            if kind != TieKind.DONATED:
                both = sets[self.root[source]] | sets[self.root[target]]
                for root in both:
                    sets[root] = both
        return sorted({min(one): sorted(one) for one in sets.values()}.values())

    def _enter(self, roots: list[int]) -> None:
        """Decide which entry a place belongs to, if any, and when it is alive."""
        p = self.program
        weights = [root for root in roots if self.kind[root] in PERSISTENT]
        reader = {root: self._touched(root, reads_only=True) for root in weights}
        if any(self.kind[root] == TensorKind.INPUT or not p.tensor_fast[root] for root in roots):
            return
        if any(not ops for ops in reader.values()):
            return
        alive = [op for root in roots for op in self._life(root)]
        if not alive:
            return
        if weights:
            entry = self.nodes + self.node_of[reader[weights[0]][0]]
        else:
            used = [root for root in roots if self._life(root)]
            entry = self.node_of[int(p.producer[used[0]])]
        size = max(int(p.storage_bytes[root]) for root in roots)
        piece = Piece(roots, size, range(min(alive), max(alive) + 1))
        self.pieces.setdefault(entry, []).append(piece)
        self.entry_of |= dict.fromkeys(roots, entry)

    def _touched(self, root: int, reads_only: bool = False) -> list[int]:
        return [
            op
            for op, rows in self.accesses.items()
            if any(t == root and not (w and reads_only) for t, _, w in rows)
        ]

    def _life(self, root: int) -> list[int]:
        p = self.program
        if self.kind[root] in PERSISTENT:
            return list(self.ops)
        touched = self._touched(root)
        if any(self.root[t] == root and self.kind[t] == TensorKind.OUTPUT for t in range(p.n_tensors)):
            touched.append(self.ops[-1])
        if touched:
            for kind, *ends, loop in zip(p.tie_kind, p.tie_source, p.tie_target, p.tie_at, strict=True):
                if kind == TieKind.CARRIED and root in [self.root[t] for t in ends]:
                    touched += [op for op in self.ops if self._inside(op, loop)]
        start = int(p.producer[root])
        return [op for op in touched if op >= start]

    def _inside(self, op: int, loop: int) -> bool:
        around = self.program.op_loop[op]
        while around >= 0 and around != loop:
            around = self.program.loop_parent[around]
        return bool(around == loop)

    def aligned(self, piece: Piece, memory: int) -> int:
        align = self.machine.memories[self.reach[memory]].alignment
        return -(-piece.bytes // align) * align

    def capacity(self, memory: int) -> int:
        return self.machine.memories[self.reach[memory]].capacity

    def valid(self, decision: list[int]) -> bool:
        """No op at which the decided tensors of a memory exceed it; the slowest holds everything."""
        for memory in range(self.slowest):
            held = [
                piece
                for entry, pieces in self.pieces.items()
                for piece in pieces
                if decision[entry] == memory
            ]
            for op in self.ops:
                if sum(self.aligned(piece, memory) for piece in held if op in piece.alive) > self.capacity(
                    memory
                ):
                    return False
        return True

    def rectify(self, decision: list[int]) -> tuple[list[int], float]:
        """The map after one pass, and epsilon."""
        live = [[0] * len(self.ops) for _ in self.reach]
        result, moved, total = [self.slowest] * (2 * self.nodes), 0, 0
        for node in range(self.nodes):
            for entry in (node, self.nodes + node):
                pieces = self.pieces.get(entry, [])
                memory = decision[entry] if pieces else self.slowest
                while memory < self.slowest and not self._fits(pieces, memory, live):
                    memory += 1
                self._place(pieces, memory, live)
                size = sum(self.aligned(piece, self.slowest) for piece in pieces)
                total += size
                moved += size if pieces and memory != decision[entry] else 0
                result[entry] = memory
        return result, moved / max(1, total)

    def _fits(self, pieces: list[Piece], memory: int, live: list[list[int]]) -> bool:
        after = [row.copy() for row in live]
        self._place(pieces, memory, after)
        touched = {op for piece in pieces for op in piece.alive}
        return all(after[memory][op] <= self.capacity(memory) for op in touched)

    def _place(self, pieces: list[Piece], memory: int, live: list[list[int]]) -> None:
        for piece in pieces:
            for op in piece.alive:
                live[memory][op] += self.aligned(piece, memory)

    def time(self, decision: list[int]) -> int:
        """The ops run one after another, each as long as docs/simulation.md, section 3, says."""
        total = 0
        for op, rows in self.accesses.items():
            accesses = [Access(t, size, self.memory_of(decision, t), True, write) for t, size, write in rows]
            once = step_duration(self.program, self.machine, [op], 0, accesses)
            total += once * int(self.program.op_repeat[op])
        return total

    def memory_of(self, decision: list[int], root: int) -> int:
        """By the machine's number."""
        entry = self.entry_of.get(root)
        return self.reach[-1] if entry is None else self.reach[decision[entry]]


def textbook_time(slow: SlowMapping, decision: list[int]) -> int:
    """The formula of the paper's chip alone, term by term: serial ports, full overlap, int8."""
    machine, total = slow.machine, 0
    device, rates = machine.devices[0], machine.devices[0].rates
    for op, rows in slow.accesses.items():
        memory = 0
        for root, size, _ in rows:
            rate = machine.memories[slow.memory_of(decision, root)].read
            memory += -(-size * 10**12 // rate)
        macs, vector, other = (int(work) for work in slow.program.op_flops[op])
        assert other == 0
        compute = -(-macs * 10**12 // rates["matrix"]["*"]) + -(-vector * 10**12 // rates["vector"]["*"])
        total += device.launch + max(compute, memory)
    return total
