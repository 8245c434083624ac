"""Windows of a game's linear program: between two steps copies move no more than there is time for.

There are as many as pairs of steps. Few matter, and those are found from a solution that breaks
them (`broken`); `game_linear` says why they hold. Work is summed up over the steps once, so that a
window names two sums and what differs from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.malloc_game.linear import GameLinear, Terms
from loadmaster.malloc_game.model import NEVER
from loadmaster.search.linear import FREE

Float64 = npt.NDArray[np.float64]
Window = tuple[int, int, int]
"""(turn, i, k): copies of a turn that are issued after step i or later and needed by step k."""


@dataclass(frozen=True)
class Turn:
    """Copies that move one after another."""

    reads: list[tuple[int, int, int, int]]
    """(site, made, needed, work)"""
    writes: list[tuple[int, int, int]]
    """(tensor, made, work)"""
    given_sum: list[int]
    """[n + 1] variables: the work of copies of given tensors that are needed by step k"""
    made_sum: list[int]
    """[n + 1] of those of all others"""


def add_turns(game: GameLinear) -> list[Turn]:
    """Idle copies share one memory's time; others have engines, or no turn to wait for."""
    model, tensors = game.model, game.model.tensors
    reads = [
        (site, game.made(tensor), int(model.site_step[site]), int(tensors.copy_in[tensor]))
        for tensor, sites in enumerate(game.ties.sites)
        for site in sites
        if not model.site_write[site] and tensors.copy_in[tensor] != NEVER
    ]
    writes = [
        (tensor, game.made(tensor), int(tensors.copy_out[tensor]))
        for tensor, nodes in enumerate(game.back)
        if nodes and tensors.copy_out[tensor] != NEVER
    ]
    if model.idle_copies or (model.engines[0] == model.engines[1] >= 0):
        return [_turn(game, reads, writes)]
    _alone(game, reads if model.engines[0] < 0 else [], writes if model.engines[1] < 0 else [])
    found = [_turn(game, reads, [])] if model.engines[0] >= 0 else []
    return found + ([_turn(game, [], writes)] if model.engines[1] >= 0 else [])


def _alone(
    game: GameLinear, reads: list[tuple[int, int, int, int]], writes: list[tuple[int, int, int]]
) -> None:
    """The windows of copies that wait for no other: each by itself."""
    for site, made, needed, work in reads:
        for i, lead in (*game.lead[site].items(), (made, None)):
            held = [(lead, -work)] if lead is not None else []
            game.row([*game.copy(site, work), *held, *_span(game, i, needed)], -FREE, 0)
    for tensor, made, work in writes:
        for step, back in game.back[tensor]:
            game.row([(back, work), *_span(game, made, step)], -FREE, 0)


def _span(game: GameLinear, i: int, k: int) -> Terms:
    """Less the time from the end of step i to the start of step k."""
    ends = [(game.clock[k - 1], -game.unit)] if k else []
    return ends + [(game.stall[k], -game.unit)] + ([(game.clock[i], game.unit)] if i >= 0 else [])


def _turn(
    game: GameLinear, reads: list[tuple[int, int, int, int]], writes: list[tuple[int, int, int]]
) -> Turn:
    given: list[Terms] = [[] for _ in range(game.model.steps + 1)]
    made: list[Terms] = [[] for _ in range(game.model.steps + 1)]
    for site, maker, needed, work in reads:
        (given if maker < 0 else made)[needed] += game.copy(site, -work)
    for tensor, _, work in writes:
        before: Terms = []
        for step, back in game.back[tensor]:
            made[step] += [*before, (back, -work)]
            before = [(back, work)]
    turn = Turn(reads, writes, [], [])
    for terms, sums in ((given, turn.given_sum), (made, turn.made_sum)):
        for step in range(game.model.steps + 1):
            last = [(sums[-1], -game.unit)] if sums else []
            sums += game.draft.add([0], game.most_time, False)
            game.row([(sums[-1], game.unit), *last, *terms[step]], 0, 0)
    return turn


def add_window(game: GameLinear, turn: Turn, i: int, k: int) -> None:
    """The work of the copies of a window is at most the time there."""
    unit = game.unit
    row: Terms = [(turn.made_sum[k], unit), *_span(game, i, k)]
    if i < 0:
        row.append((turn.given_sum[k], unit))
    else:
        row.append((turn.made_sum[i], -unit))
        for site, made, needed, work in turn.reads:
            if made < i < needed <= k:  # it may be issued before: then it leads at i
                lead = game.lead[site].get(i)
                if made < 0 and lead is not None:
                    row += [*game.copy(site, work), (lead, -work)]
                elif made >= 0:
                    row += [(lead, -work)] if lead is not None else game.copy(site, -work)
        for tensor, made, work in turn.writes:
            nodes = game.back[tensor]
            if made < i < nodes[-1][0]:
                row += [(back, -work) for step, back in nodes if step <= k][-1:]
                row += [(back, work) for step, back in nodes if step <= i][-1:]
    game.row(row, -FREE, 0)


def broken(game: GameLinear, turns: list[Turn], values: Float64, least: float, most: int) -> list[Window]:
    """At most `most` windows that values exceed by more than `least` picoseconds, the worst first:
    one for each step where they begin and one for each where they end."""
    steps = game.model.steps
    clock = game.unit * np.concatenate([[0.0], values[game.clock]])  # of the end of step i - 1
    end = clock + game.unit * values[game.stall]
    begin_at, end_at = np.arange(-1, steps)[:, None], np.arange(steps + 1)[None]
    worst: list[tuple[float, Window]] = []
    for number, turn in enumerate(turns):
        over = np.cumsum(_demand(game, turn, values), axis=1) - (end[None] - clock[:, None])
        over[end_at <= begin_at] = -np.inf
        for rows, columns in (
            (np.arange(steps + 1), over.argmax(axis=1)),
            (over.argmax(axis=0), np.arange(steps + 1)),
        ):
            worst += [
                (-float(over[r, c]), (number, r - 1, c))
                for r, c in zip(rows.tolist(), columns.tolist(), strict=True)
                if over[r, c] > least
            ]
    return list(dict.fromkeys(window for _, window in sorted(worst)))[:most]


def _demand(game: GameLinear, turn: Turn, values: Float64) -> Float64:
    """[i + 1, k] work that is issued after step i or later and needed by step k exactly"""
    demand = np.zeros((game.model.steps + 1, game.model.steps + 1))
    for site, made, needed, work in turn.reads:
        stay = values[game.stay[site]] if game.stay[site] >= 0 else 0.0
        amount = work * (values[game.fast[site]] - stay)
        demand[: made + 2, needed] += amount
        for i, lead in game.lead[site].items():
            demand[i + 1, needed] += amount - work * values[lead]
    for tensor, made, work in turn.writes:
        before = 0.0
        for step, back in game.back[tensor]:
            demand[: made + 2, step] += work * (values[back] - before)
            before = values[back]
    return demand
