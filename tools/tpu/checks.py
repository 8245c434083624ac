"""Is what we took from the compiler what the compiler says? Counts, to be kept beside the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.plan import Occupancy, Plan
from loadmaster.program.importers.hlo.flatten import aliases
from loadmaster.program.program import Program
from tools.tpu.dumps import FAST_COLOUR, read_buffers, read_live_ranges
from tools.tpu.hlo_placed import PlacedFlattener, flatten_placed

SHOWN = 4
"""How many deviations are named."""


def check_totals(program: Program, counted: dict[str, float]) -> dict[str, Any]:
    """Flops and bytes of the whole program beside the compiler's, which sums in 32-bit floats.

    A loop's body counts once, and an estimate (a custom call) counts with us alone.
    """
    matrix, vector, transcendental = program.op_flops.sum(0).tolist()
    read, written = int(program.read_bytes.sum()), int(program.write_bytes.sum())
    ours = {
        "flops": matrix + vector,
        "transcendentals": transcendental,
        "bytes accessed": read + written + int(program.op_other_bytes.sum()),
    }
    return {
        name: {"ours": value, "compiler": counted[name], "ratio": _ratio(value, counted[name])}
        for name, value in ours.items()
    }


def _ratio(ours: float, theirs: float) -> float:
    return 1.0 if ours == theirs else round(ours / theirs, 7) if theirs else 0.0


def check_order(program: Program, text: str, live_ranges: str) -> dict[str, Any]:
    """The flattened order and the live range of every value, beside the compiler's dump.

    `text` and `live_ranges` are those of one compilation with everything in slow memory.
    """
    flat, results = flatten_placed(text)
    dump = read_live_ranges(live_ranges)
    misplaced = [
        name
        for name, time in zip(program.op_name, program.op_source.tolist(), strict=True)
        if not 0 <= time < len(dump.order) or dump.order[time] != name.partition("#")[0]
    ]
    ours = _ranges(flat, results)
    differ = [name for name, range_ in ours.items() if dump.of.get(name) != range_]
    return {
        "instructions": len(dump.order),
        "order differs": sum(a != b for a, b in zip(flat.times, dump.order, strict=False))
        + abs(len(flat.times) - len(dump.order)),
        "ops misplaced": len(misplaced),
        "values": len(ours),
        "live ranges differ": len(differ),
        "the first": [f"{name}: {ours[name]}, {dump.of.get(name)}" for name in differ[:SHOWN]],
    }


def _ranges(flat: PlacedFlattener, results: list[int | None]) -> dict[str, tuple[int, int]]:
    """From its definition to its last use or position; results, and inputs that are not donated, to
    the end."""
    module = flat.module
    pairs = aliases(module.attributes.get("input_output_alias", ""))
    donated = {parameter for _, (parameter, *_) in pairs}
    given = {i.name: number for number, i in enumerate(module.entry.parameters)}
    end = len(flat.times)
    ranges = {}
    for value, name in flat.buffer.items():
        number = given.get(name.partition("{")[0])
        start = flat.first_seen.get(value, 0) if number is None else 0
        stays = value in results or (number is not None and number not in donated)
        ranges[name] = (start, end if stays else flat.last_seen.get(value, start))
    return ranges


def check_sizes(text: str, assignment: str) -> dict[str, Any]:
    """The padded size of every value of a text, and the fast ones' places, beside the assignment."""
    flat, _ = flatten_placed(text)
    buffers, fast = read_buffers(assignment), read_buffers(assignment, FAST_COLOUR)
    known = {value: name for value, name in flat.buffer.items() if name in buffers}
    differ = [
        f"{name}: {flat.values[value].shape.bytes}, {buffers[name].size}"
        for value, name in known.items()
        if flat.values[value].shape.bytes != buffers[name].size
    ]
    in_fast = {
        name for value, name in flat.buffer.items() if flat.values[value].shape.memory_space == FAST_COLOUR
    }
    return {
        "values": len(known),
        "sizes differ": len(differ),
        "the first": differ[:SHOWN],
        "fast values": len(in_fast),
        "without an offset": len(in_fast - fast.keys()),
        "offsets that no value has": len(fast.keys() - in_fast),
    }


def check_accesses(program: Program, machine: Machine, plan: Plan, text: str) -> dict[str, int]:
    """Bytes that the ops access in the memory where the compiler has them, and elsewhere."""
    flat, _ = flatten_placed(text)
    occupancy = Occupancy(program, machine, plan)
    ops = {name: op for op, name in enumerate(program.op_name)}
    tensors = {name: tensor for tensor, name in enumerate(program.tensor_name)}
    found = {"fast": 0, "slow": 0, "fast, and slow in the plan": 0, "slow, and fast in the plan": 0}
    names = list(found)
    accesses: list[tuple[int, int, bool, int]] = []
    for step in flat.steps:
        written = zip(step.writes, step.cost.writes, strict=True)
        for value, size in [*step.reads.items(), *written]:
            tensor = -1 if value is None else _tensor(flat, value, tensors)
            if value is None or tensor < 0 or step.name not in ops:
                continue
            is_fast = flat.values[value].shape.memory_space == FAST_COLOUR
            accesses.append((int(occupancy.steps.of_op[ops[step.name]]), tensor, is_fast, size))
    steps, tensors_used = np.array([access[:2] for access in accesses], dtype=np.int64).reshape(-1, 2).T
    memories, _ = occupancy.find_serving(steps, tensors_used)
    for memory, (_, _, is_fast, size) in zip(memories.tolist(), accesses, strict=True):
        found[names[2 * (is_fast != (memory == 0)) + (not is_fast)]] += size
    return found


def _tensor(flat: PlacedFlattener, value: int, tensors: dict[str, int]) -> int:
    return tensors.get(flat.values[flat.tensor(value)].name, -1)
