"""A linear program below every plan of a MallocGame, in whole numbers.

Variables, all but the times between 0 and 1, and what they are for a given plan:
  fast[u]       site u is served by fast memory (tied sites share one)
  stay[u]       the same strand of residencies serves read u and the site before it
  back[b, t]    tensor b, written to fast memory, has been copied to slow memory by step t
  lead[u, k]    the copy that brings the tensor of read u is issued before step k, so that its
                strand is held there already (k from `lookback` steps before the read on)
  tail[b, k]    b's strand is held at step k for its copy to slow memory alone (likewise)
  time[i], stall[i]; clock[i]: what copies could have used when step i ends

Why every plan is a solution with an objective of at most its time (a plan of the fast and the slow
memory alone, where nothing is in fast memory before the program or twice at a time):
  * A read that is fast is served by a strand. Either it served the site before as well (stay), and
    then holds its bytes throughout; or a copy in brought them: copy[u] = fast[u] - stay[u].
  * A read that does not stay finds its bytes in slow memory, directly or by a copy. If they were
    written to fast memory, a copy back was needed by that step at the latest; an output's, by the
    end: back[b, t] >= fast[write] - stay[u]. `back` never falls. A copy in that is issued before
    step k needs that by k - 1: back[b, k - 1] >= fast[write] + lead[u, k] - 1.
  * A tensor has one spot in a memory at a time, so what it holds at a step is the sum of its
    variables there; all places together fit. A strand that is not held at k has been copied back
    by k, if ever: back[b, k] >= back[b, end] - held.
  * Copies issued after step i and needed by step k, or earlier, move in between: on machines with
    idle copies in the idle times of steps i+1 … k-1 (elapsed less slow, once, whatever `repeat`),
    else beside them, turn by turn on an engine; and while steps i+1 … k wait for them. That is
    window (i, k): their work is at most clock[k-1] + stall[k] - clock[i]. A copy in that does not
    lead at i is issued after i or later, and so is any copy of what step i or a later one writes.
    Partial copies of a tensor take no less together than one of it all.
  * A step takes what `game_steps` says, at least; what the game does not decide about may be fast
    all the same, and then takes no room here; a wait of step k costs `repeat` times its length with idle
    copies, else its length. Both sum up to the plan's time.
Times have upper limits, since plans slower than the all-slow one are above every bound.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.problems.malloc_game.tensors import NEVER
from loadmaster.program.program import Program
from loadmaster.solvers.exact.game_room import add_capacities, add_leads, add_tails
from loadmaster.solvers.exact.game_steps import add_step, undecided
from loadmaster.solvers.exact.game_ties import find_ties
from loadmaster.solvers.exact.game_variables import NONE, GameLinear, Terms
from loadmaster.solvers.exact.mapping_linear import FREE

Int64 = npt.NDArray[np.int64]


def game_linear(
    program: Program, model: GameModel, machine: Machine, *, lookback: int, unit: int = 1
) -> GameLinear:
    """The program without windows (`game_windows`). Copies under way take room over `lookback`
    steps before they are needed, or after they are issued; what they take beyond is left out."""
    game = GameLinear(model, find_ties(program, model), unit)
    _sites(game)
    for tensor in range(len(game.ties.sites)):
        _written_back(game, tensor, lookback)
        add_leads(game, tensor, lookback)
    add_capacities(game)
    _times(game, undecided(program, machine, model))
    return game


def _sites(game: GameLinear) -> None:
    model, ties = game.model, game.ties
    classes = int(ties.site_class.max(initial=-1)) + 1
    variables = np.array([game.new() for _ in range(classes)], dtype=np.int64)
    game.fast = variables[ties.site_class]
    game.stay = np.full(model.sites, NONE, dtype=np.int64)
    game.lead = [{} for _ in range(model.sites)]
    for tensor, sites in enumerate(ties.sites):
        for before, site in pairwise(sites):
            stay = game.new()
            game.stay[site] = stay
            for end in {int(game.fast[before]), int(game.fast[site])}:
                game.row([(end, 1), (stay, -1)], 0, FREE)
        if model.tensors.copy_in[tensor] == NEVER:
            for site in sites:
                if not model.site_write[site]:
                    game.row(game.copy(site, 1), -FREE, 0)


def _written_back(game: GameLinear, tensor: int, lookback: int) -> None:
    model, sites = game.model, game.ties.sites[tensor]
    nodes: list[tuple[int, int]] = []
    game.back.append(nodes)
    game.tail.append({})
    made = game.made(tensor)
    if made < 0:
        return
    write, most = int(game.fast[sites[0]]), int(model.tensors.copy_out[tensor] != NEVER)
    reads = {int(model.site_step[site]): site for site in sites[1:]}
    output = bool(model.tensors.output[tensor])
    last = model.steps if output else max(reads, default=made)
    near = range(made + 1, min(made + lookback + 1, last))
    before = {step - 1 for step in reads if step - 1 > made}  # the last moment to issue a copy in
    for step in sorted({*reads, *before, *near, *([last] if output else [])}):
        back = game.new(most)
        if step in reads:
            game.row([(back, 1), (write, -1), (int(game.stay[reads[step]]), 1)], 0, FREE)
        if nodes:
            game.row([(back, 1), (nodes[-1][1], -1)], 0, FREE)
        nodes.append((step, back))
    if output:
        game.row([(nodes[-1][1], 1), (write, -1)], 0, FREE)
    add_tails(game, tensor, write, near)


def _times(game: GameLinear, loose: tuple[Int64, Int64]) -> None:
    model, draft, unit = game.model, game.draft, game.unit
    site_place = game.ties.place[model.site_tensor]
    for step in range(model.steps + 1):
        repeat = int(model.repeat[step]) if model.idle_copies and step < model.steps else 1
        game.stall += draft.add([repeat * unit], game.most_time, False)
        if step == model.steps:
            break
        time = add_step(draft, model, step, game.fast, site_place, loose, unit)
        game.clock += draft.add([0], game.most_time, False)
        parts = [(1, time.elapsed), (-1, time.slow)]
        if not model.idle_copies:
            parts = [(int(model.repeat[step]), time.elapsed)]
        row: Terms = [(game.clock[step], unit), (game.stall[step], -unit)]
        row += [(game.clock[step - 1], -unit)] if step else []
        row += [(v, -times * c) for times, (_, terms) in parts for v, c in terms]
        constant = sum(times * fixed for times, (fixed, _) in parts)
        game.row(row, constant, constant)
