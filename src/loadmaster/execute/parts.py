"""Graphs of inference that fit in no other way, in smaller pieces: of convolutions, or of the batch.

Kernels may round otherwise for fewer samples, so graphs that fit stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loadmaster.errors import BadMachine, BadProgram
from loadmaster.machine.machine import Machine
from loadmaster.offload.kind import kernel_room, make_offload
from loadmaster.offload.model import Kernels
from loadmaster.offload.repeats import quick
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.importers.torch.compiled import Prepared
from loadmaster.program.importers.torch.sample_axes import Batch
from loadmaster.program.program import Program
from loadmaster.program.repeats import repeat
from loadmaster.units import UNLIMITED

FASTER = 0.97
"""Of the time with fewer parts of a batch: more parts have to take less."""
MOST_PARTS, MOST_OPS = 8, 12_000
"""How many times as many parts as the fewest that fit are tried, and from how many ops on no more are."""


def large_nodes(captured: Captured, program: Program, kernels: Kernels | None, most: int) -> set[str]:
    """Nodes whose ops alone need more than so many bytes."""
    found = set()
    for op, node in enumerate(captured.op_node):
        there = set(program.reads(op).tolist()) | set(program.writes(op).tolist())
        size = sum(int(program.storage_bytes[tensor]) for tensor in there)
        if size + (0 if kernels is None else int(kernels.workspace[op])) > most:
            found.add(node)
    return found


class Parts(NamedTuple):
    """A graph that computes its batch in so many parts."""

    prepared: Prepared
    number: int
    picoseconds: float
    """Simulated, without measured ops."""


def find_parts(
    whole: Prepared,
    batch: Batch,
    more_than: int,
    capture: Callable[[Prepared], Captured],
    machine: Machine,
    device: str,
) -> tuple[Parts | None, int]:
    """The fewest parts of a batch that fit, or more if that is faster; and the least bytes that some number of parts
    would need. `more_than`: so many are known not to fit."""
    best: Parts | None = None
    least, count, ops = UNLIMITED, more_than, 0
    roomy = machine.with_capacity(machine.memories[machine.reach[0][0]].name, UNLIMITED)
    while count < batch.size and ops < MOST_OPS and (best is None or count < MOST_PARTS * best.number):
        count = min(2 * count, batch.size)
        try:
            prepared = whole.in_parts(batch, count)
            plain = repeat(capture(prepared).program, [])
            ops = plain.program.n_ops
            room = kernel_room(ops, None, device)
            needs = make_offload(plain, roomy, room)
            least = min(least, needs.least + needs.for_kernels)
            problem = make_offload(plain, machine, room)
            found = quick(problem).value
        except (BadMachine, BadProgram):
            continue
        if found is not None and (best is None or found < FASTER * best.picoseconds):
            best = Parts(prepared, count, float(found))
        if found is not None and FASTER * found <= problem.limit_ps:
            break  # about as fast as with everything on the device
    return best, least
