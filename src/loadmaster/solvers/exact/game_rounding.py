"""From values of a game's linear program to moves and to plans."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.plan.plan import Plan
from loadmaster.problems.malloc_game.moves import COPY, DROP, NO_COPY
from loadmaster.problems.malloc_game.placement import game_plan
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.exact.game_variables import NONE, GameLinear

Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]
Row = list[int]


def moves_from(game: GameLinear, values: Float64, threshold: Float64 | float = 0.5) -> Int8:
    """[N] preferred moves: what is at or above the threshold (one for all, or of each tensor)
    counts as whole."""
    model = game.model
    limits = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(game.ties.sites))
    moves = np.full(model.sites, DROP, dtype=np.int8)
    for tensor, sites in enumerate(game.ties.sites):
        limit, nodes = limits[tensor], game.back[tensor]
        for site in sites:
            if values[game.fast[site]] < limit:
                continue
            stay = int(game.stay[site])
            moves[site] = NO_COPY if stay != NONE and values[stay] >= limit else COPY
            if model.site_write[site]:
                moves[site] = COPY if nodes and values[nodes[-1][1]] >= limit else NO_COPY
    return moves


def placement_from(problem: MallocGame, game: GameLinear, values: Float64, offset: dict[int, int]) -> Plan:
    """The plan of a whole solution with offsets of sites; sites without one are slow."""
    is_one = values > 0.5
    stays: list[Row] = []
    copies: list[Row] = []
    for tensor, sites in enumerate(game.ties.sites):
        if sites[0] in offset:
            _strands(game, tensor, is_one, offset, stays, copies)
    tables = (
        np.array(rows, dtype=np.int64).reshape(len(rows), width) for rows, width in ((stays, 4), (copies, 5))
    )
    return game_plan(problem.model, problem.program.n_ops, *tables)


def _strands(
    game: GameLinear,
    tensor: int,
    is_one: npt.NDArray[np.bool_],
    offset: dict[int, int],
    stays: list[Row],
    copies: list[Row],
) -> None:
    model, sites = game.model, game.ties.sites[tensor]
    free_from = -1
    """The first step after which slow memory has the bytes."""
    for i, site in enumerate(sites):
        if not is_one[game.fast[site]] or (game.stay[site] != NONE and is_one[game.stay[site]]):
            continue
        step, last = int(model.site_step[site]), i
        while last + 1 < len(sites) and is_one[game.stay[sites[last + 1]]]:
            last += 1
        end = int(model.site_step[sites[last]])
        if model.site_write[site]:
            end += sum(bool(is_one[v]) for k, v in game.tail[tensor].items() if k > end)
            stays.append([tensor, offset[site], step, end])
            if game.back[tensor] and is_one[game.back[tensor][-1][1]]:
                free_from = min(end + 1, _overwritten(game, tensor))
                copies.append([tensor, 0, step, free_from, 0])
        else:
            issued = step - 1 - sum(bool(is_one[v]) for v in game.lead[site].values())
            issued = min(max(issued, free_from, game.made(tensor)), step - 1)
            copies.append([tensor, 1, issued, step, 0])
            stays.append([tensor, offset[site], issued + 1, end])


def _overwritten(game: GameLinear, tensor: int) -> int:
    """The step that writes over a tensor in place; the end if none does."""
    by = np.flatnonzero(game.model.tensors.over == tensor)
    return game.made(int(by[0])) if len(by) else game.model.steps
