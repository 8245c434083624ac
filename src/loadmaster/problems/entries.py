"""What the Mapping problem decides: one entry for the results of each node, one for its weights.

A node is an op that is no view. Tensors that an op writes are its activations; weights and state
belong to the first node that reads them. Tensors that share a place (in-place results, carried
state) are decided together, by the entry of the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.plan.static import lifetimes_in_loops
from loadmaster.problems.lives import place_lives
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Program, TensorKind

Bool = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """`N` nodes, `M` memories that the device reaches; entries 0..N-1 are activations, N..2N-1
    weights."""

    node_op: Int32
    """[N] the op of each node."""
    live: Bool
    """[2N] whether an entry decides anything."""
    of_tensor: Int32
    """[T] the entry of each root, or -1: it stays at home."""
    order: Int32
    """Live entries as the rectifier takes them: node by node, activation before weights."""
    bytes: Int64
    """[2N] aligned bytes in the slowest memory."""
    piece_start: Int64
    """[2N + 1] the places of each entry."""
    piece_root: Int32
    """[P] the first tensor of each place."""
    piece_first: Int32
    piece_last: Int32
    """[P] ops over which a place is needed, both included."""
    piece_always: Bool
    """[P] it holds weights or state: needed from before the program to its end."""
    piece_size: Int64
    """[P, M] aligned bytes in each memory, fastest first."""

    @property
    def nodes(self) -> int:
        return len(self.node_op)

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """As the native core takes them."""
        return {
            "order": self.order,
            "of_tensor": self.of_tensor,
            "bytes": self.bytes,
            "piece_start": self.piece_start,
            "piece_first": self.piece_first,
            "piece_last": self.piece_last,
            "piece_always": self.piece_always.astype(np.int8),
            "piece_size": self.piece_size,
        }


def find_entries(program: Program, machine: Machine) -> Entries:
    """The entries of a program on the first device of a machine."""
    node_op = np.flatnonzero(~program.op_view).astype(np.int32)
    n = len(node_op)
    node_of = np.cumsum(~program.op_view) - 1  # [ops]
    first, last = lifetimes_in_loops(program)
    is_root = program.tensor_alias == np.arange(program.n_tensors)
    roots = np.flatnonzero(is_root & (last >= first))
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    place = places(program)
    entry_of = np.full(program.n_tensors, -1, dtype=np.int32)
    reader = _first_reader(program)
    entry_of[roots] = np.where(
        kept[roots],
        n + node_of[np.minimum(reader[roots], program.n_ops - 1)],
        node_of[program.producer[roots]],
    )
    stays = (
        (program.tensor_kind == TensorKind.INPUT) | ~program.tensor_fast | (kept & (reader >= program.n_ops))
    )
    # One place, one decision: a member that must stay at home keeps all of them there, even one
    # that nobody touches (an input that a loop starts with).
    decided, by_place = np.full(program.n_tensors, -1, dtype=np.int32), place[roots]
    for root in roots[::-1]:
        decided[place[root]] = entry_of[root]  # the smallest comes last and stays
    for root in roots[kept[roots]][::-1]:
        decided[place[root]] = entry_of[root]  # but weights come before results written over them
    decided[place[is_root & stays]] = -1
    of_tensor = np.full(program.n_tensors, -1, dtype=np.int32)
    of_tensor[roots] = decided[by_place]

    held = np.unique(by_place[decided[by_place] >= 0])
    held = held[np.argsort(decided[held], kind="stable")]
    begin, end, size, always = place_lives(program, roots, place, first, last, kept)
    align = np.array([machine.memories[number].alignment for number in machine.reach[0]])
    piece_size = -(-size[held][:, None] // align) * align
    counts = np.bincount(decided[held], minlength=2 * n)
    bytes_ = np.zeros(2 * n, dtype=np.int64)
    np.add.at(bytes_, decided[held], piece_size[:, -1])
    order = np.stack([np.arange(n), n + np.arange(n)], axis=1).ravel()
    live = counts > 0
    return Entries(
        node_op=node_op,
        live=live,
        of_tensor=of_tensor,
        order=order[live[order]].astype(np.int32),
        bytes=bytes_,
        piece_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        piece_root=held.astype(np.int32),
        piece_first=begin[held].astype(np.int32),
        piece_last=end[held].astype(np.int32),
        piece_always=always[held],
        piece_size=np.ascontiguousarray(piece_size, dtype=np.int64),
    )


def _first_reader(program: Program) -> Int64:
    """[T] the first op that is no view and reads a root, or its views; `n_ops` if there is none."""
    reader = np.full(program.n_tensors, program.n_ops, dtype=np.int64)
    real = ~program.op_view[program.read_op]
    np.minimum.at(reader, program.tensor_alias[program.read_tensor[real]], program.read_op[real])
    return reader
