"""How long the steps of a game take, as rows of a linear program.

A step of few sites has one variable for each way to serve them, so that the relaxation is the
convex hull of its true times and not a maximum of lines: half a tensor in fast memory saves half of
what a whole one does, even where the step's compute hides it. Others have lines, and the hull over
the sites that matter most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.arrays import Bool, Int64
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.model import MILLION, GameModel, find_accesses
from loadmaster.program.program import Program
from loadmaster.search.or_tools import FREE, Draft
from loadmaster.simulate.costs import compute_times

Affine = tuple[int, list[tuple[int, int]]]
"""(constant, (variable, coefficient) …)."""
MOST_SITES = 7
"""The hull is over so many sites."""


@dataclass(frozen=True)
class StepTime:
    """Picoseconds of one execution of a step."""

    elapsed: Affine
    slow: Affine
    """How long slow memory serves it."""


@dataclass(frozen=True)
class _Step:
    """The sites of a step by variable: tied ones share one."""

    number: int
    variables: list[int]
    slow: Int64
    fast: Int64
    size: Int64
    """[variables] bytes in fast memory; 0 where that may be counted with another"""
    base: int
    """Memory time whatever is decided, at least"""


def find_undecided(program: Program, machine: Machine, model: GameModel) -> tuple[Int64, Int64]:
    """([n] slow time of accesses that the game leaves slow and a plan need not, [n] the least they
    can take): tensors that are barred because no game could say who continues them, and such."""
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[model.step_op] = np.arange(model.steps)
    size = -(-program.storage_bytes // model.alignment) * model.alignment
    may = program.tensor_fast & (size <= model.capacity) & (model.tensors.of_root < 0)
    in_table = compute_times(program, machine)[1][:, 0] > 0
    access = find_accesses(program, machine, model.fast, model.slow)
    rows = np.flatnonzero(may[access.root] & (number[access.op] >= 0))
    op, slow = access.op[rows], access.slow[rows]
    fast = np.where(in_table[op] | model.parallel, 0, access.fast[rows])
    in_slow, least = np.zeros(model.steps, dtype=np.int64), np.zeros(model.steps, dtype=np.int64)
    np.add.at(in_slow, number[op], slow)
    np.add.at(least, number[op], np.minimum(slow, fast))
    return in_slow, least


def add_step(
    draft: Draft,
    model: GameModel,
    number: int,
    site_variable: Int64,
    site_place: Int64,
    loose: tuple[Int64, Int64],
    unit: int,
) -> StepTime:
    """A variable for the time above the least there can be; `loose`: see `find_undecided`; `unit`:
    picoseconds that a variable of time counts."""
    repeat, loose_slow = int(model.repeat[number]), int(loose[0][number])
    least_slow = int(model.base_slow[number]) - loose_slow
    step = _read(model, number, site_variable, site_place, least_slow + int(loose[1][number]))
    pairs = zip(step.variables, step.slow.tolist(), strict=True)
    slow_time: Affine = (least_slow + int(step.slow.sum()), [(v, -time) for v, time in pairs])
    hulled = np.argsort(-np.abs(step.slow - step.fast), kind="stable")[:MOST_SITES]
    rest = np.setdiff1d(np.arange(len(step.variables)), hulled)
    ways = (np.arange(2 ** len(hulled))[:, None] >> np.arange(len(hulled))) % 2 == 1
    ways = ways[ways @ step.size[hulled] <= model.capacity]
    # Sites beyond the hull take what is least for them: no port can be served for less.
    spare = 0 if model.parallel else int(np.minimum(step.slow[rest], step.fast[rest]).sum())
    slow, fast = ~ways @ step.slow[hulled], ways @ step.fast[hulled]
    times = model.step_times(step.base + spare + slow, fast, number)
    least = int(times.min())
    draft.constant += repeat * least
    if len(times) == 1 and not loose_slow:
        return StepTime((least, []), slow_time)
    most = step.slow.sum(keepdims=True) + model.base_slow[number]
    worst = model.step_times(most, step.fast.sum(keepdims=True), number)
    (time,) = draft.add([repeat * unit], -(-(int(worst[0]) - least) // unit) + 1, False)
    chosen = [step.variables[i] for i in hulled.tolist()]
    if chosen:
        _hull(draft, chosen, ways, times - least, (time, unit), exact=not (len(rest) or loose_slow))
    if len(rest):
        _lines(draft, model, step, (time, unit), least)
    return StepTime((least, [(time, unit)]), slow_time)


def _read(model: GameModel, number: int, site_variable: Int64, site_place: Int64, base: int) -> _Step:
    sites = np.arange(model.site_start[number], model.site_start[number + 1])
    variables = list(dict.fromkeys(site_variable[sites].tolist()))
    which = np.array([variables.index(v) for v in site_variable[sites].tolist()], dtype=np.int64)
    slow, fast, size = (np.zeros(len(variables), dtype=np.int64) for _ in range(3))
    np.add.at(slow, which, model.site_slow[sites])
    np.add.at(fast, which, model.site_fast[sites])
    np.maximum.at(size, which, model.tensors.size[model.site_tensor[sites]])
    owner: dict[int, int] = {}  # of each place, the first variable
    for place, variable in zip(site_place[sites].tolist(), which.tolist(), strict=True):
        if owner.setdefault(place, variable) != variable:
            size[variable] = 0
    return _Step(number, variables, slow, fast, size, base)


def _hull(
    draft: Draft, chosen: list[int], ways: Bool, times: Int64, time: tuple[int, int], *, exact: bool
) -> None:
    """The time is what the chosen way takes; or at least that, if it is not exact."""
    single = np.flatnonzero(ways.sum(axis=1) == 1)
    alone = np.zeros(len(chosen), dtype=np.int64)
    alone[ways[single].argmax(axis=1)] = times[single] - times[0]  # the first way: nothing is fast
    if len(ways) == 2 ** len(chosen) and (times == times[0] + ways @ alone).all():
        terms = zip(chosen, (-alone).tolist(), strict=True)  # a sum is its own hull
        draft.row([time, *terms], int(times[0]), int(times[0]) if exact else FREE)
        return
    way = np.array(draft.add([0] * len(ways), 1, False))
    draft.row([(v, 1) for v in way.tolist()], 1, 1)
    for k, variable in enumerate(chosen):
        draft.row([(variable, -1), *((v, 1) for v in way[ways[:, k]].tolist())], 0, 0)
    draft.row([time, *zip(way.tolist(), (-times).tolist(), strict=True)], 0, 0 if exact else FREE)


def _lines(draft: Draft, model: GameModel, step: _Step, time: tuple[int, int], least: int) -> None:
    """With `share` of the smaller added to the larger: time >= memory + share · compute and time >=
    compute + share · memory, whichever of the two is larger, for the memory time of every port."""
    base, compute = step.base, int(model.compute[step.number])
    launch, share = int(model.launch[step.number]), int(model.overlap[step.number])
    ports = [(base + int(step.slow.sum()), step.fast - step.slow)]
    if model.parallel:
        ports = [(base + int(step.slow.sum()), -step.slow), (0, step.fast)]
    for fixed, change in ports:
        for rate, constant in ((MILLION, compute * share), (share, compute * MILLION)):
            if rate:
                terms = zip(step.variables, (-rate * change).tolist(), strict=True)
                low = constant + rate * fixed + MILLION * (launch - least)
                draft.row([(time[0], MILLION * time[1]), *terms], low, FREE)
