"""Choices of repeats against all of them, one by one."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from generate_training import random_training
from loadmaster.offload.repeats import Choice, Network, RepeatCuts, choices
from loadmaster.program import Builder, Program, TensorKind
from loadmaster.program.repeats import repeatable


def kept_bytes(program: Program, ops: set[int]) -> int:
    """Bytes of what backward ops need of the forward pass if these ops are repeated."""
    root, maker = program.tensor_alias.tolist(), program.producer.tolist()
    late = [op for op in range(program.n_ops) if program.op_backward[op] and not program.op_view[op]]
    waiting = [root[tensor] for op in late for tensor in program.reads(op).tolist()]
    needed: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in needed or maker[tensor] < 0 or program.op_backward[maker[tensor]]:
            continue
        needed.add(tensor)
        if maker[tensor] in ops:
            waiting += [root[read] for read in program.reads(maker[tensor]).tolist()]
    outputs = {root[t] for t in np.flatnonzero(program.tensor_kind == TensorKind.OUTPUT).tolist()}
    kept = {tensor for tensor in needed if maker[tensor] not in ops} - outputs
    return sum(int(program.storage_bytes[tensor]) for tensor in kept)


def every_choice(program: Program, time: list[int]) -> list[tuple[int, int]]:
    """(bytes, time) of all sets of ops."""
    free = np.flatnonzero(repeatable(program)).tolist()
    sets = (set(ops) for count in range(len(free) + 1) for ops in combinations(free, count))
    return [(kept_bytes(program, ops), sum(time[op] for op in ops)) for ops in sets]


@pytest.mark.parametrize("seed", range(25))
def test_cuts_are_the_cheapest_of_all_choices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_training(rng, forward=9)
    assert program.costs is not None
    time = program.costs[:, 0]
    cuts, every = RepeatCuts(program, time), every_choice(program, time.tolist())
    for byte, picosecond in ((1, 1), (1, 0), (7, 1), (1, 7), (100, 1), (0, 1)):
        choice, cost = cuts.cheapest(byte, picosecond)
        assert cost == min(byte * size + picosecond * spent for size, spent in every)
        assert cost == byte * choice.kept + picosecond * choice.time
        assert choice.kept == kept_bytes(program, set(choice.ops))
        assert choice.time == int(time[list(choice.ops)].sum())
    assert cuts.nothing() == Choice((), kept_bytes(program, set()), 0)
    # From no repeats to the least bytes, all corners of the lower hull.
    found = choices(cuts, 1000)
    least = min(size for size, _ in every)
    assert (found[-1].kept, found[-1].time) == min(every)
    for less, more in pairwise(found):
        spent, spared = more.time - less.time, less.kept - more.kept
        assert spared >= 0 or less.kept == least
        line = spent * less.kept + spared * less.time
        assert all(spent * size + spared * time >= line for size, time in every)


def test_random_networks_against_all_cuts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        nodes = int(rng.integers(2, 8))
        arcs = [
            (int(a), int(b), int(rng.integers(0, 10))) for a, b in rng.integers(0, nodes, (14, 2)) if a != b
        ]
        network = Network(nodes)
        for arc in arcs:
            network.add(*arc)
        value, side = network.cut(0, nodes - 1)

        def room(ends: set[int], arcs: list[tuple[int, int, int]] = arcs) -> int:
            return sum(size for a, b, size in arcs if a not in ends and b in ends)

        inner = range(1, nodes - 1)
        sides = [{nodes - 1, *some} for count in range(nodes - 1) for some in combinations(inner, count)]
        least = min(map(room, sides))
        mine = {node for node in range(nodes) if side[node]}
        assert value == least == room(mine) and 0 not in mine
        assert all(mine <= other for other in sides if room(other) == least)


def layers(count: int) -> Program:
    """Layers in a row, each of a cheap large result and a dear small one; backward ops read all of them."""
    build = Builder("layers")
    last = build.tensor("x", bytes=64, kind="input")
    made = []
    for layer in range(count):
        wide = build.tensor(f"wide{layer}", bytes=4096)
        narrow = build.tensor(f"narrow{layer}", bytes=64)
        build.op(f"widen{layer}", "add", reads=[last], writes=[wide])
        build.op(f"narrow{layer}", "matmul", reads=[wide], writes=[narrow])
        made.append((wide, narrow))
        last = narrow
    for layer, (wide, narrow) in reversed(list(enumerate(made))):
        new = build.tensor(f"d{layer}", bytes=64, kind="output" if layer == 0 else "activation")
        build.op(f"back{layer}", "add", reads=[last, wide, narrow], writes=[new], backward=True)
        last = new
    return build.build()


def test_slopes_and_borders() -> None:
    program = layers(8)
    time = np.array([10, 100] * 8 + [10] * 8, dtype=np.int64)
    cheap = tuple(range(0, 16, 2))
    assert cheap in [choice.ops for choice in choices(RepeatCuts(program, time), 20)]
    # Like layers are not all repeated at once: the early ones first, or the late ones.
    early = [choice.ops for choice in choices(RepeatCuts(program, time, slope=0.5), 30)]
    late = [choice.ops for choice in choices(RepeatCuts(program, time, slope=-0.5), 30)]
    assert (0, 2, 4) in early and (10, 12, 14) in late
    # The least bytes repeat everything; with borders, what leads from part to part is kept.
    assert RepeatCuts(program, time).most().ops == tuple(range(16))
    cut = RepeatCuts(program, time, borders=4).most()
    assert set(cheap) <= set(cut.ops)
    assert len(set(range(16)) - set(cut.ops)) == 4 and cut.kept == 4 * 64
