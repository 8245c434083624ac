"""Lower bounds of the game: no plan that its rules allow is faster. Two are quick:

*Ideal*: every step by itself, every access in the memory that suits the step best, if the tensor
may be in fast memory and fits at all. Where the ports work side by side, accesses are split so that
both memories end together, which no whole split beats.

*Traffic*: what is given must leave slow memory, and outputs must reach it, at least once: each
tensor by accesses of at least `min(size, all its accesses)` bytes, or by a copy of its size. In idle
time, copies move only while no access does, so all of it takes its turn. On links with engines,
copies move beside the accesses, R bytes in and W out at most `T * link` of them: what is left for
accesses is `(R - T*in)/read + (W - T*out)/write <= T`. Without engines there is no such bound.

A third takes a few seconds for a thousand sites: the relaxation of the linear program in `linear`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.arrays import Float64, Int64
from loadmaster.clock import now
from loadmaster.errors import require
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.linear import GameLinear, add_turns, add_window, broken_windows, make_linear
from loadmaster.malloc_game.model import GameModel, access_times, find_accesses
from loadmaster.program.program import Program, TensorKind
from loadmaster.search.or_tools import Linear, relaxation, solve_whole
from loadmaster.search.problem import Bound
from loadmaster.simulate.costs import compute_times
from loadmaster.units import PICOSECONDS

if TYPE_CHECKING:
    from loadmaster.malloc_game.problem import MallocGame


SCALE = 1 << 20
"""Weights of means are multiples of 1 / SCALE."""


def quick_bound(program: Program, machine: Machine, model: GameModel) -> Bound:
    """The larger of the two, rounded down."""
    ideal, traffic = ideal_bound(program, machine, model), traffic_bound(program, machine, model)
    if traffic > ideal:
        return Bound(traffic, "bytes that slow memory has to move")
    return Bound(ideal, "every op alone, all that may be fast is")


def ideal_bound(program: Program, machine: Machine, model: GameModel) -> int:
    """Picoseconds."""
    n = model.steps
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[model.step_op] = np.arange(n)
    size = -(-program.storage_bytes // model.alignment) * model.alignment
    may = program.tensor_fast & (size <= model.capacity)
    access = find_accesses(program, machine, model.fast, model.slow)
    step = number[access.op]
    is_free = may[access.root] & (step >= 0)
    fixed = np.array(_other_times(program, machine, model), dtype=np.int64)
    stuck = ~is_free & (step >= 0)
    np.add.at(fixed, step[stuck], access.slow[stuck])
    least = _least_side_by_side if model.parallel else _least_one_by_one
    memory = least(fixed, step[is_free], access.slow[is_free], access.fast[is_free])
    return int((model.step_times(memory, np.zeros_like(memory)) * model.repeat).sum())


def _least_one_by_one(fixed: Int64, step: Int64, slow: Int64, fast: Int64) -> Int64:
    """[n] the least times of steps whose accesses share a port: each in its faster memory."""
    least = fixed.copy()
    np.add.at(least, step, np.minimum(slow, fast))
    return least


def _least_side_by_side(fixed: Int64, step: Int64, slow: Int64, fast: Int64) -> Int64:
    """[n] `side_by_side` of every step: steps alike, as those of layers are, are looked at once."""
    by_step = np.lexsort((fast, slow, step))
    start = np.searchsorted(step[by_step], np.arange(len(fixed) + 1))
    pairs = np.stack([slow[by_step], fast[by_step]], axis=1)
    least, count = np.empty_like(fixed), np.diff(start)
    for size in np.unique(count).tolist():
        steps = np.flatnonzero(count == size)
        rows = pairs[start[steps][:, None] + np.arange(size)].reshape(len(steps), 2 * size)
        alike, which = np.unique(np.column_stack([fixed[steps], rows]), axis=0, return_inverse=True)
        times = [side_by_side(row[0], list(zip(row[1::2], row[2::2], strict=True))) for row in alike.tolist()]
        least[steps] = np.array(times, dtype=np.int64)[which.ravel()]
    return least


def side_by_side(fixed: int, free: list[tuple[int, int]]) -> int:
    """The larger of the two memories' times is at least any mean of them, and each access can be
    put where it adds least to the mean: the best of the means at which one changes sides."""
    best = 0
    for slow, fast in [(1, 0), *free]:
        share = (fast * SCALE) // (slow + fast) if slow + fast else SCALE
        for weight in {share, min(SCALE, share + 1), SCALE - 1}:
            mean = weight * fixed + sum(
                min(weight * in_slow, (SCALE - weight) * in_fast) for in_slow, in_fast in free
            )
            best = max(best, -(-mean // SCALE))
    return best


def _other_times(program: Program, machine: Machine, model: GameModel) -> list[int]:
    """[n] times of what is always in slow memory; a time of the cost table has it already."""
    times = access_times(machine, model.slow, program.op_other_bytes, write=False)
    in_table = compute_times(program, machine)[1][:, 0] > 0
    kept: list[int] = np.where(in_table, 0, times)[model.step_op].tolist()
    return kept


def traffic_bound(program: Program, machine: Machine, model: GameModel) -> int:
    """Picoseconds; 0 where there is no such bound."""
    root, real = program.tensor_alias, ~program.op_view
    given = program.is_given
    read = np.zeros(program.n_tensors, dtype=np.int64)
    reads = real[program.read_op]
    np.add.at(read, root[program.read_tensor[reads]], program.read_bytes[reads])
    written = np.zeros(program.n_tensors, dtype=np.int64)
    writes = real[program.write_op]
    np.add.at(written, root[program.write_tensor[writes]], program.write_bytes[writes])
    output = np.zeros(program.n_tensors, dtype=bool)
    output[root[program.tensor_kind == TensorKind.OUTPUT]] = True
    size = program.storage_bytes
    coming = int(np.minimum(size, read)[given].sum())
    leaving = int(np.minimum(size, written)[output & ~given].sum())
    slow = machine.memories[model.slow]
    alone = Fraction(coming, slow.read) + Fraction(leaving, slow.write)
    beside = Fraction(1)
    if not model.idle_copies:
        pairs = ((model.slow, model.fast, slow.read), (model.fast, model.slow, slow.write))
        for engine, (source, target, rate) in zip(model.engines, pairs, strict=True):
            link = machine.link_between.get((source, target))
            if link is not None and engine < 0:
                return 0
            if link is not None:
                beside += Fraction(machine.links[link].bandwidth, rate)
    return int(alone / beside * PICOSECONDS)


METHOD = "linear relaxation"
LOOKBACK = 20
"""Steps over which the room of a copy under way is counted; more hardly ever raised a bound."""
MOST_WINDOWS = 500
"""In each round."""
TOLERANCE = 1e-7
"""Of the all-slow time: windows that are broken by less are let be."""


def game_bound(problem: MallocGame, seconds: float = 60.0, *, whole: bool = False) -> Bound:
    """The best of the problem's own bound and of the linear one, within so many seconds.

    Args:
      whole: what is left of the time is for HiGHS to prove that whole tensors do no better.
    """
    require("ortools", "exact")
    deadline = now() + seconds
    relaxed = relax_game(problem, seconds)
    found = Bound(relaxed.bound, METHOD)
    left = deadline - now()
    if whole and left > 0 and problem.moves:
        answer = solve_whole(relaxed.game.linear, problem.all_slow_ps + 1, left)
        if answer is not None and answer.bound > relaxed.bound:
            found = Bound(min(answer.bound, problem.all_slow_ps), "HiGHS")
    return max(problem.bound(), found, key=lambda bound: bound.value)


@dataclass(frozen=True)
class Relaxed:
    """What the linear relaxation of a game gives."""

    game: GameLinear
    """With the windows that matter."""
    values: Float64 | None
    """Of its variables; None: time ran out before the first were there."""
    bound: int
    """Picoseconds: that of the dual solution in exact arithmetic. Rounding errors of the engine can
    make it smaller, and never wrong."""


def relax_game(problem: MallocGame, seconds: float) -> Relaxed:
    """Solve, add the windows that are broken, and again until none is; when time runs out, what
    the rounds before gave stands."""
    deadline = now() + seconds
    model, machine = problem.model, problem.machine
    unit = max(1, model.all_slow_ps // 10**6)
    game = make_linear(problem.program, model, machine, lookback=LOOKBACK, unit=unit)
    turns, best, known = add_turns(game), 0, None
    for turn in turns:
        add_window(game, turn, -1, model.steps)
    while True:
        bound, values = _solved(game.linear, deadline - now())
        best, known = max(best, bound), known if values is None else values
        if values is None or now() >= deadline:
            break
        windows = broken_windows(game, turns, values, TOLERANCE * model.all_slow_ps, MOST_WINDOWS)
        for number, first, last in windows:
            add_window(game, turns[number], first, last)
        if not windows:
            break
    return Relaxed(game, known, min(best, model.all_slow_ps))


def _solved(linear: Linear, seconds: float) -> tuple[int, Float64 | None]:
    try:
        return relaxation(linear, seconds, "HIGHS")
    except Exception:  # whatever it may raise: an internal error of one engine is not the other's
        return relaxation(linear, seconds, "GLOP")
