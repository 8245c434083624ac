"""What the Mapping problem decides: one entry for the results of each node, one for its weights; and the
pins that decide some of them beforehand.

A node is an op that is no view. Tensors that an op writes are its activations; weights and state
belong to the first node that reads them. Tensors that share a place (in-place results, carried
state) are decided together, by the entry of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Bool, Int8, Int32, Int64, distinct
from loadmaster.errors import Refused
from loadmaster.machine.machine import Machine
from loadmaster.plan.live_ranges import place_lives
from loadmaster.plan.plan import NO_OFFSET, lifetimes_in_loops
from loadmaster.program.hazards import places
from loadmaster.program.program import Program, TensorKind
from loadmaster.search.pins import BadPin, Pins

OPEN = -1
"""As the memory of an entry: it is for solvers to decide."""


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
    is_root, kept = program.is_root, program.is_persistent
    roots = np.flatnonzero(is_root & (last >= first))
    place = places(program)
    entry_of = np.full(program.n_tensors, -1, dtype=np.int32)
    reader = _first_reader(program)
    entry_of[roots] = np.where(
        kept[roots],
        n + node_of[np.minimum(reader[roots], program.n_ops - 1)],
        node_of[program.producer[roots]],
    )
    given = program.tensor_kind == TensorKind.INPUT
    at_home = given | ~program.tensor_fast | (kept & (reader >= program.n_ops))
    # One place, one decision: a member that must stay at home keeps all of them there, even one
    # that nobody touches (an input that a loop starts with).
    decided, by_place = np.full(program.n_tensors, -1, dtype=np.int32), place[roots]
    for members in (roots, roots[kept[roots]]):  # weights come before results written over them
        _, smallest = np.unique(place[members], return_index=True)
        decided[place[members[smallest]]] = entry_of[members[smallest]]
    decided[place[is_root & at_home]] = -1
    of_tensor = np.full(program.n_tensors, -1, dtype=np.int32)
    of_tensor[roots] = decided[by_place]

    held = distinct(by_place[decided[by_place] >= 0])
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


def pinned_entries(program: Program, machine: Machine, entries: Entries, pins: Pins) -> Int8:
    """[2N] the memory (0: fastest) that each entry is pinned to, or OPEN.

    An entry holds all results or all weights of a node: a pin of one of them is a pin of all.
    """
    reach, found = machine.reach[0], np.full(2 * entries.nodes, OPEN, dtype=np.int8)
    by: dict[int, int] = {}
    for op, device in pins.device.items():
        if device != 0:
            raise BadPin(
                f"op '{program.op_name[op]}' can't be pinned to '{machine.devices[device].name}': here all "
                f"ops run on '{machine.devices[0].name}'",
                object=program.op_name[op],
                remedy="give --problem graph",
            )
    for tensor, (memory, _) in pins.memory.items():
        name, there = program.tensor_name[tensor], machine.memories[memory].name
        entry = int(entries.of_tensor[tensor])
        if entry < 0 or memory not in reach:
            if memory == machine.home[0]:
                continue  # that is where it stays
            why = "inputs and what may not move stay in the slowest memory"
            if entry >= 0:
                why = f"'{machine.devices[0].name}' does not reach it"
            raise BadPin(
                f"tensor '{name}' can't be pinned to '{there}': {why}",
                object=name,
                number=there,
                remedy=f"pin it to '{machine.memories[machine.home[0]].name}'",
            )
        position = reach.index(memory)
        if found[entry] not in (OPEN, position):
            other = program.tensor_name[by[entry]]
            raise Refused(
                f"'{other}' and '{name}' are pinned to two memories and are decided together",
                object=name,
                number=there,
                remedy="pin both to one memory",
            )
        found[entry], by[entry] = position, tensor
    return found


def check_offsets(program: Program, machine: Machine, pins: Pins) -> None:
    """Raise with a pin beyond the end of its memory, or two that want one byte at one time."""
    first, last = lifetimes_in_loops(program)
    place = places(program)
    fixed = [
        (tensor, memory, offset, offset + int(program.storage_bytes[tensor]))
        for tensor, (memory, offset) in pins.memory.items()
        if offset != NO_OFFSET and last[tensor] >= first[tensor]
    ]
    for tensor, memory, _, end in fixed:
        name, there = program.tensor_name[tensor], machine.memories[memory]
        if end > there.capacity:
            raise Refused(
                f"where '{name}' is pinned it ends at {end:,}, and '{there.name}' has {there.capacity:,} bytes",
                object=name,
                number=end,
                remedy="pin it lower",
            )
    for (a, memory, low, high), (b, beside, floor, top) in combinations(fixed, 2):
        at = max(int(first[a]), int(first[b]))
        together = at <= min(int(last[a]), int(last[b])) and place[a] != place[b]
        if memory == beside and together and low < top and floor < high:
            one, other = program.tensor_name[a], program.tensor_name[b]
            raise Refused(
                f"the pins of '{one}' and '{other}' overlap in '{machine.memories[memory].name}': both are "
                f"alive at op {at} '{program.op_name[at]}'",
                object=one,
                number=max(low, floor),
                remedy="pin one of them elsewhere",
            )


def order_pins_first(entries: Entries, pinned: Int8) -> Entries:
    """The entries with those that are pinned at the head of the rectifier's order: room is theirs."""
    order = entries.order[np.argsort(pinned[entries.order] == OPEN, kind="stable")]
    return replace(entries, order=order)


def check_room(
    program: Program,
    machine: Machine,
    entries: Entries,
    pinned: Int8,
    pins: Pins,
    moved: Callable[[Int8], float],
) -> None:
    """Raise with a set of pins that do not fit together, and would without any one of them."""
    if moved(pinned) == 0:
        return
    kept = pinned.copy()
    for entry in np.flatnonzero(pinned != OPEN).tolist():
        without = kept.copy()
        without[entry] = OPEN
        if moved(without) > 0:
            kept = without
    blamed = np.flatnonzero(kept != OPEN)
    memory = machine.memories[machine.reach[0][int(kept[blamed[0]])]]
    names = [program.tensor_name[t] for t in pins.memory if entries.of_tensor[t] in blamed]
    raise Refused(
        f"the pins of {', '.join(repr(name) for name in names)} do not fit '{memory.name}' together, which "
        f"has {memory.capacity:,} bytes",
        object=names[0],
        number=memory.capacity,
        remedy="leave one of them out",
    )
