"""A linear program below every plan of a MallocGame, in whole numbers.

Variables, all but the times between 0 and 1, and what they are for a given plan:
  fast[u]       site u is served by fast memory (tied sites share one)
  keep[u]       the same strand of residencies serves read u and the site before it
  back[b, t]    tensor b, written to fast memory, has been copied to slow memory by step t
  lead[u, k]    the copy that brings the tensor of read u is issued before step k, so that its
                strand is held there already (k from `lookback` steps before the read on)
  tail[b, k]    b's strand is held at step k for its copy to slow memory alone (likewise)
  time[i], stall[i]; clock[i]: what copies could have used when step i ends

Why every plan is a solution with an objective of at most its time (a plan of the fast and the slow
memory alone, where nothing is in fast memory before the program or twice at a time):
  * A read that is fast is served by a strand. Either it served the site before as well (keep), and
    then holds its bytes throughout; or a copy in brought them: copy[u] = fast[u] - keep[u].
  * A read that is not kept finds its bytes in slow memory, directly or by a copy. If they were
    written to fast memory, a copy back was needed by that step at the latest; an output's, by the
    end: back[b, t] >= fast[write] - keep[u]. `back` never falls. A copy in that is issued before
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
  * A step takes what `linear_steps` says, at least; what the game does not decide about may be fast
    all the same, and then takes no room here; a wait of step k costs `repeat` times its length with idle
    copies, else its length. Both sum up to the plan's time.
Times have upper limits, since plans slower than the all-slow one are above every bound.

There are as many windows as pairs of steps. Few matter, and those are found from a solution that
breaks them (`broken_windows`). Work is summed up over the steps once, so that a window names two sums
and what differs from them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loadmaster.arrays import Float64, Int64
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.linear_steps import add_step, find_undecided
from loadmaster.malloc_game.model import NEVER, GameModel
from loadmaster.program.program import Program, TieKind
from loadmaster.search.or_tools import FREE, Draft, Linear

Terms = list[tuple[int, int]]
"""(variable, coefficient) …"""
NONE = -1
"""As a variable: it is 0."""


def _no_sites() -> Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass
class GameLinear:
    """The program, and which variable is what."""

    model: GameModel
    ties: Ties
    unit: int
    """Picoseconds that variables of time count."""
    draft: Draft = field(default_factory=Draft)
    fast: Int64 = field(default_factory=_no_sites)
    """[N]"""
    keep: Int64 = field(default_factory=_no_sites)
    """[N] NONE for writes and for the first read of a given tensor"""
    back: list[list[tuple[int, int]]] = field(default_factory=list)
    """[B] (step, variable) in order; the last is the end's"""
    lead: list[dict[int, int]] = field(default_factory=list)
    """[N] step -> variable"""
    tail: list[dict[int, int]] = field(default_factory=list)
    """[B] step -> variable"""
    clock: list[int] = field(default_factory=list)
    stall: list[int] = field(default_factory=list)

    @property
    def most_time(self) -> int:
        """Of any plan of interest: that of the all-slow one, rounded up."""
        return -(-self.model.all_slow_ps // self.unit)

    @property
    def linear(self) -> Linear:
        return self.draft.linear(_no_sites(), ())

    def new(self, most: int = 1) -> int:
        """A variable of whole numbers up to `most` that costs nothing."""
        return self.draft.add([0], most, True)[0]

    def row(self, terms: Terms, lower: int, upper: int) -> None:
        """Tied sites share a variable, so one may come up twice."""
        merged: dict[int, int] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0) + coefficient
        self.draft.row(merged.items(), lower, upper)

    def made(self, tensor: int) -> int:
        """The step that writes a tensor; -1: it is given."""
        first = self.ties.sites[tensor][0]
        return int(self.model.site_step[first]) if self.model.site_write[first] else -1

    def copy(self, site: int, work: int) -> Terms:
        """`work` times the copy in before a read."""
        keep = int(self.keep[site])
        return [(int(self.fast[site]), work), *([(keep, -work)] if keep != NONE else [])]


def make_linear(
    program: Program, model: GameModel, machine: Machine, *, lookback: int, unit: int = 1
) -> GameLinear:
    """The program without windows (`add_window`). Copies under way take room over `lookback`
    steps before they are needed, or after they are issued; what they take beyond is left out."""
    game = GameLinear(model, find_ties(program, model), unit)
    _add_sites(game)
    for tensor in range(len(game.ties.sites)):
        _add_write_backs(game, tensor, lookback)
        add_leads(game, tensor, lookback)
    add_capacities(game)
    _add_times(game, find_undecided(program, machine, model))
    return game


def _add_sites(game: GameLinear) -> None:
    model, ties = game.model, game.ties
    classes = int(ties.site_class.max(initial=-1)) + 1
    variables = np.array([game.new() for _ in range(classes)], dtype=np.int64)
    game.fast = variables[ties.site_class]
    game.keep = np.full(model.sites, NONE, dtype=np.int64)
    game.lead = [{} for _ in range(model.sites)]
    for tensor, sites in enumerate(ties.sites):
        for before, site in pairwise(sites):
            keep = game.new()
            game.keep[site] = keep
            for end in {int(game.fast[before]), int(game.fast[site])}:
                game.row([(end, 1), (keep, -1)], 0, FREE)
        if model.tensors.copy_in[tensor] == NEVER:
            for site in sites:
                if not model.site_write[site]:
                    game.row(game.copy(site, 1), -FREE, 0)


def _add_write_backs(game: GameLinear, tensor: int, lookback: int) -> None:
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
            game.row([(back, 1), (write, -1), (int(game.keep[reads[step]]), 1)], 0, FREE)
        if nodes:
            game.row([(back, 1), (nodes[-1][1], -1)], 0, FREE)
        nodes.append((step, back))
    if output:
        game.row([(nodes[-1][1], 1), (write, -1)], 0, FREE)
    add_tails(game, tensor, write, near)


def _add_times(game: GameLinear, loose: tuple[Int64, Int64]) -> None:
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


@dataclass(frozen=True)
class Ties:
    """Of N sites and B tensors."""

    sites: list[list[int]]
    """[B] the sites of each tensor in order"""
    site_class: Int64
    """[N] sites of one class are fast together, or slow"""
    place: Int64
    """[B] tensors of one place take room once"""


def find_ties(program: Program, model: GameModel) -> Ties:
    """In-place ops read and write one spot; a loop's steps find what it carries in one spot."""
    sites: list[list[int]] = [[] for _ in range(len(model.tensors.root))]
    for site, tensor in enumerate(model.site_tensor.tolist()):
        sites[tensor].append(site)
    alike, places = _Groups(model.sites), _Groups(len(sites))
    at = {(int(model.site_step[site]), tensor): site for tensor, own in enumerate(sites) for site in own}
    for tensor, over in enumerate(model.tensors.over.tolist()):
        if over >= 0:
            places.join([tensor, over])
            step = int(model.site_step[sites[tensor][0]])
            alike.join([at[step, tensor], *([at[step, over]] if (step, over) in at else [])])
    for group in np.unique(model.tensors.carried[model.tensors.carried >= 0]):
        places.join(np.flatnonzero(model.tensors.carried == group).tolist())
    _join_carried(program, model, sites, alike)
    return Ties(sites, alike.numbers(), places.numbers())


def _join_carried(program: Program, model: GameModel, sites: list[list[int]], alike: _Groups) -> None:
    root, rows = program.tensor_alias, model.tensors.of_root
    ties = zip(
        program.tie_kind.tolist(),
        root[program.tie_source].tolist(),
        root[program.tie_target].tolist(),
        program.tie_at.tolist(),
        strict=True,
    )
    for kind, source, target, loop in ties:
        if kind != TieKind.CARRIED or rows[source] < 0 or rows[target] < 0 or source == target:
            continue
        first, last = int(model.loop_first[loop]), int(model.loop_last[loop])
        both = [*sites[rows[source]], *sites[rows[target]]]
        alike.join([site for site in both if first <= model.site_step[site] <= last])


class _Groups:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def find(self, item: int) -> int:
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, items: list[int]) -> None:
        for item in items[1:]:
            self.parent[self.find(item)] = self.find(items[0])

    def numbers(self) -> Int64:
        """[count] equal for those that were joined, from 0 without gaps"""
        found = np.array([self.find(item) for item in range(len(self.parent))], dtype=np.int64)
        return np.unique(found, return_inverse=True)[1].astype(np.int64)


def add_leads(game: GameLinear, tensor: int, lookback: int) -> None:
    """The room of copies in over `lookback` steps before they are needed."""
    model, sites, made = game.model, game.ties.sites[tensor], game.made(tensor)
    for number, site in enumerate(sites):
        if model.site_write[site]:
            continue
        step, after, known = int(model.site_step[site]), game.copy(site, 1), game.lead[site]
        _copied_back(game, tensor, after, step)
        for point in range(step - 1, max(made, step - 1 - lookback, -1), -1):
            lead = game.new()
            game.row([*after, (lead, -1)], 0, FREE)
            known[point], after = lead, [(lead, 1)]
            _copied_back(game, tensor, after, point)
        for earlier in sites[:number]:  # one spot at a time: it may not be fast in another
            point = int(model.site_step[earlier])
            if point in known:
                game.row([(known[point], 1), (int(game.fast[earlier]), 1)], -FREE, 1)


def _copied_back(game: GameLinear, tensor: int, copied: Terms, step: int) -> None:
    """A copy in that is issued before a step finds what was written in slow memory then."""
    made, nodes = game.made(tensor), dict(game.back[tensor])
    if made >= 0 and (step - 1 == made or step - 1 in nodes):
        write = (int(game.fast[game.ties.sites[tensor][0]]), 1)
        back = [(nodes[step - 1], -1)] if step - 1 in nodes else []
        game.row([*copied, write, *back], -FREE, 1)


def add_tails(game: GameLinear, tensor: int, write: int, near: range) -> None:
    """The room of a copy back at the steps `near` the write."""
    nodes = game.back[tensor]
    before: Terms = [(write, 1)]  # what holds it one step before: a tail has no beginning
    for step, back in nodes:
        if step not in near:
            continue
        site, gap = _at(game, tensor, step)
        if site is not None:
            held = [(int(game.fast[site]), 1)]
        else:
            tail = game.new()
            game.tail[tensor][step] = tail
            game.row([*before, (tail, -1)], 0, FREE)
            held = [(tail, 1)] + ([(int(game.keep[gap]), 1)] if gap is not None else [])
        game.row([(back, 1), (nodes[-1][1], -1), *held], 0, FREE)
        before = held


def _at(game: GameLinear, tensor: int, step: int) -> tuple[int | None, int | None]:
    """(the site at a step, the read whose gap contains the step)"""
    sites = game.ties.sites[tensor]
    steps = [int(game.model.site_step[site]) for site in sites]
    i = bisect_left(steps, step)
    if i == len(sites):
        return None, None
    return (sites[i], None) if steps[i] == step else (None, sites[i] if i else None)


def add_capacities(game: GameLinear) -> None:
    """All that is held at a step fits."""
    model = game.model
    held: list[dict[int, Terms]] = [{} for _ in range(model.steps)]  # step -> tensor -> variables
    for tensor, sites in enumerate(game.ties.sites):
        steps = [int(model.site_step[site]) for site in sites]
        for i, site in enumerate(sites):
            held[steps[i]][tensor] = [(int(game.fast[site]), 1)]
            if i:
                for step in range(steps[i - 1] + 1, steps[i]):
                    held[step].setdefault(tensor, []).append((int(game.keep[site]), 1))
            for point, lead in game.lead[site].items():
                if point not in steps:
                    held[point].setdefault(tensor, []).append((lead, 1))
        for point, tail in game.tail[tensor].items():
            held[point].setdefault(tensor, []).append((tail, 1))
    for by_tensor in held:
        places: dict[int, list[tuple[int, Terms]]] = {}
        for tensor, terms in by_tensor.items():
            places.setdefault(int(game.ties.place[tensor]), []).append((tensor, terms))
        row: Terms = []
        for members in places.values():
            size = max(int(model.tensors.size[tensor]) for tensor, _ in members)
            row += [(v, size * times) for v, times in _once(game, [terms for _, terms in members])]
        if sum(size for _, size in row) > model.capacity:
            game.row(row, -FREE, model.capacity)


def _once(game: GameLinear, members: list[Terms]) -> Terms:
    """Tensors of one place take room once: the largest of what they hold."""
    distinct = list({tuple(terms): terms for terms in members}.values())
    if len(distinct) == 1:
        return distinct[0]
    place = game.new()
    for terms in distinct:
        game.row([(place, 1), *((v, -times) for v, times in terms)], 0, FREE)
    return [(place, 1)]


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
    _add_lone_copies(game, reads if model.engines[0] < 0 else [], writes if model.engines[1] < 0 else [])
    found = [_turn(game, reads, [])] if model.engines[0] >= 0 else []
    return found + ([_turn(game, [], writes)] if model.engines[1] >= 0 else [])


def _add_lone_copies(
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


def broken_windows(
    game: GameLinear, turns: list[Turn], values: Float64, least: float, most: int
) -> list[Window]:
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
        kept = values[game.keep[site]] if game.keep[site] >= 0 else 0.0
        amount = work * (values[game.fast[site]] - kept)
        demand[: made + 2, needed] += amount
        for i, lead in game.lead[site].items():
            demand[i + 1, needed] += amount - work * values[lead]
    for tensor, made, work in turn.writes:
        before = 0.0
        for step, back in game.back[tensor]:
            demand[: made + 2, step] += work * (values[back] - before)
            before = values[back]
    return demand
