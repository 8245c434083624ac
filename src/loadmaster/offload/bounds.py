"""What no plan can be faster than: the ops' own time, and the bytes that must cross each link."""

from __future__ import annotations

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.offload.model import Bool, Int32, Int64, OffloadModel
from loadmaster.program.program import Program
from loadmaster.search.problem import Bound
from loadmaster.units import PICOSECONDS

_BASE, _DIGITS = 10_000, 3
assert _BASE**_DIGITS == PICOSECONDS


def traffic(program: Program, model: OffloadModel) -> tuple[int, int]:
    """(bytes that must come in, bytes that must go out) in one run, at least.

    Take any step. Let R be the room of what lies in fast memory between runs, x that of other items
    which are there at this step and used before or at it as well as later, t that of items which
    the step touches for the last time. All three are there together, so R + x + t <= capacity. Of the
    W bytes of weights, W - R come in at least once; of the L bytes that are used both up to this step and
    later, L - x come in after it. Every input comes in once before that. Together that is no less than
    inputs + max(0, W + L + t - capacity). What an op made and is not there at the step went out: made
    items that are used or are outputs later, and t, less the capacity. The largest over all steps counts.
    (Sizes are bytes, room is rounded up: it can only be more than the bytes.)
    """
    size = program.storage_bytes[model.root]
    inputs = model.given & ~model.persistent
    weights = int(size[model.persistent].sum())
    across, ending = _over_steps(model, size, ~model.persistent)
    coming = int(size[inputs].sum()) + max(
        0, int((weights + across + ending).max(initial=0)) - model.capacity
    )
    made = ~model.given & ~model.persistent
    kept = np.where(model.output, model.steps, model.last_use).astype(np.int32)
    across, ending = _over_steps(model, size, made, kept)
    return coming, max(0, int((across + ending).max(initial=0)) - model.capacity)


def _over_steps(
    model: OffloadModel, size: Int64, which: Bool, last: Int32 | None = None
) -> tuple[Int64, Int64]:
    """([S] bytes used up to a step and later, [S] bytes that the step uses last)."""
    rows = np.flatnonzero(which)
    until = model.last_use if last is None else last
    change = np.zeros(model.steps + 1, dtype=np.int64)
    np.add.at(change, model.first_use[rows], size[rows])
    np.add.at(change, until[rows], -size[rows])
    ending = np.zeros(model.steps + 1, dtype=np.int64)
    np.add.at(ending, until[rows], size[rows])
    return np.cumsum(change)[:-1], ending[:-1]


def around_steps(program: Program, model: OffloadModel) -> tuple[Int64, Int64]:
    """([S] bytes that must go out before a step starts, [S] bytes that must come in after that), at least.

    When a step starts, fast memory holds all that it touches and some of what came before and is used
    after it, together no more than the capacity. What it does not hold, and is used again, comes in later:
    the room of a copy is taken when it is issued, so none of these bytes are on their way yet. What an
    op made before, is needed later or is an output, and is not held, has been copied out by then: its room is
    given up only after that. The two happen one after the other, whatever the step.
    """
    size = program.storage_bytes[model.root]
    since = np.where(model.given, -1, model.first_use).astype(np.int64)
    until = model.last_use.astype(np.int64)
    kept = np.where(model.output, model.steps, until).astype(np.int64)
    coming = _union(model, size, since, until, np.ones(model.items, dtype=bool))
    leaving = _union(model, size, since, kept, ~model.given)
    return np.maximum(0, leaving - model.capacity), np.maximum(0, coming - model.capacity)


def _union(model: OffloadModel, size: Int64, since: Int64, until: Int64, which: Bool) -> Int64:
    """[S] bytes of what a step touches, and of chosen items that are there before and needed after it."""
    change = np.zeros(model.steps + 2, dtype=np.int64)
    rows = np.flatnonzero(which & (until > since + 1))
    np.add.at(change, since[rows] + 1, size[rows])
    np.add.at(change, until[rows], -size[rows])
    across = np.cumsum(change)[: model.steps]
    item, step = model.use_item, model.use_step
    touched = np.zeros(model.steps, dtype=np.int64)
    counted = which[item] & (since[item] < step) & (step < until[item])
    np.add.at(touched, step[~counted], size[item[~counted]])
    return across + touched


def quick_bound(program: Program, machine: Machine, model: OffloadModel, duration: Int64) -> Bound:
    """The largest of these: steps run one by one, behind the inputs that they read; each link moves what it
    must; and around every step what is too much goes out before it and comes back after it."""
    coming, leaving = traffic(program, model)
    clock = np.concatenate([[0], np.cumsum(duration)])
    start = earliest_starts(program, machine, model, clock)
    best = ops_bound(start, clock)
    inward, outward = ((model.home, model.fast), (model.fast, model.home))
    for amount, way, what in (
        (coming, inward, "bytes that must come in"),
        (leaving, outward, "bytes that must go out"),
    ):
        best = max(best, Bound(_moving(machine, way, amount), what), key=lambda bound: bound.value)
    out, back = around_steps(program, model)
    before = np.maximum(start, _times(machine, outward, out))
    after = np.maximum(clock[-1] - clock[:-1], _times(machine, inward, back))
    both = int((before + after).max(initial=0))
    return max(best, Bound(both, "bytes that must go out and come back"), key=lambda bound: bound.value)


def earliest_starts(program: Program, machine: Machine, model: OffloadModel, clock: Int64) -> Int64:
    """[S] when each step can start, behind those before it and behind all inputs that they and it read."""
    rows = np.flatnonzero(model.given & ~model.persistent)
    first = np.zeros(model.steps, dtype=np.int64)
    np.add.at(first, model.first_use[rows], program.storage_bytes[model.root[rows]])
    arrived = _times(machine, (model.home, model.fast), np.cumsum(first))
    starts: Int64 = clock[:-1] + np.maximum.accumulate(np.maximum(0, arrived - clock[:-1]))
    return starts


def ops_bound(start: Int64, clock: Int64) -> Bound:
    """The end of the last step if nothing but inputs is waited for; `clock`: without them. It holds with ops that
    run again too: the others still run once each, in this order, and what more there is only takes time."""
    waited = int((start - clock[:-1]).max(initial=0))
    what = "inputs, and time of the ops behind them" if waited else "time of the ops"
    return Bound(int(clock[-1]) + waited, what)


def _moving(machine: Machine, way: tuple[int, int], amount: int) -> int:
    """Picoseconds that a link moves so many bytes; without an engine, copies run side by side."""
    link = machine.links[machine.link_between[way]]
    return amount * PICOSECONDS // link.bandwidth if link.engines else 0


def _times(machine: Machine, way: tuple[int, int], amounts: Int64) -> Int64:
    """`_moving` of each, digit by digit of base 10,000: a product with a million million has more than 64 bits."""
    link = machine.links[machine.link_between[way]]
    if not link.engines:
        return np.zeros(len(amounts), dtype=np.int64)
    if link.bandwidth >= 2**63 // _BASE:
        return np.array([_moving(machine, way, amount) for amount in amounts.tolist()], dtype=np.int64)
    time, rest = np.divmod(amounts, link.bandwidth)
    for _ in range(_DIGITS):
        digit, rest = np.divmod(rest * _BASE, link.bandwidth)
        time = time * _BASE + digit
    return time
