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

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.model import NEVER, GameModel, access_times
from loadmaster.program.program import Program, TieKind
from loadmaster.search.linear import FREE, Draft, Linear
from loadmaster.simulate.costs import compute_times

# ----------------------------------------------------------------------------
# Which sites of a game share a fate, and which tensors a place.

Int64 = npt.NDArray[np.int64]


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


# ----------------------------------------------------------------------------
# The linear program of a MallocGame in the making; `game_linear` says what it is.

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
    stay: Int64 = field(default_factory=_no_sites)
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
        """Of any plan worth while: that of the all-slow one, rounded up."""
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
        stay = int(self.stay[site])
        return [(int(self.fast[site]), work), *([(stay, -work)] if stay != NONE else [])]


# ----------------------------------------------------------------------------
# What copies under way and strands take of fast memory, step by step (see `game_linear`).


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
            held = [(tail, 1)] + ([(int(game.stay[gap]), 1)] if gap is not None else [])
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
                    held[step].setdefault(tensor, []).append((int(game.stay[site]), 1))
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


# ----------------------------------------------------------------------------
# How long the steps of a game take, as rows of a linear program.
#
# A step of few sites has one variable for each way to serve them, so that the relaxation is the
# convex hull of its true times and not a maximum of lines: half a tensor in fast memory is worth
# half of what a whole one is, even where the step's compute hides it. Others have lines, and the
# hull over the sites that matter most.

Bools = npt.NDArray[np.bool_]
Affine = tuple[int, list[tuple[int, int]]]
"""(constant, (variable, coefficient) …)."""
MOST_SITES = 7
"""The hull is over so many sites."""
MILLION = 10**6


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


def undecided(program: Program, machine: Machine, model: GameModel) -> tuple[Int64, Int64]:
    """([n] slow time of accesses that the game leaves slow and a plan need not, [n] the least they
    can take): tensors that are barred because no game could say who continues them, and such."""
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[model.step_op] = np.arange(model.steps)
    size = -(-program.storage_bytes // model.alignment) * model.alignment
    may = program.tensor_fast & (size <= model.capacity) & (model.tensors.of_root < 0)
    named = compute_times(program, machine)[1][:, 0] > 0
    in_slow, least = np.zeros(model.steps, dtype=np.int64), np.zeros(model.steps, dtype=np.int64)
    for write, op, tensor, amount in (
        (False, program.read_op, program.read_tensor, program.read_bytes),
        (True, program.write_op, program.write_tensor, program.write_bytes),
    ):
        rows = np.flatnonzero(may[program.tensor_alias[tensor]] & (number[op] >= 0))
        steps, amounts = number[op[rows]], np.ascontiguousarray(amount[rows])
        slow = access_times(machine, model.slow, amounts, write=write)
        fast = access_times(machine, model.fast, amounts, write=write)
        fast = np.where(named[op[rows]] | model.parallel, 0, fast)
        np.add.at(in_slow, steps, slow)
        np.add.at(least, steps, np.minimum(slow, fast))
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
    """A variable for the time above the least there can be; `loose`: see `undecided`; `unit`:
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
    times = _times(model, number, step.base + spare + slow, fast)
    least = int(times.min())
    draft.constant += repeat * least
    if len(times) == 1 and not loose_slow:
        return StepTime((least, []), slow_time)
    most = step.slow.sum(keepdims=True) + model.base_slow[number]
    worst = _times(model, number, most, step.fast.sum(keepdims=True))
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


def _times(model: GameModel, number: int, slow: Int64, fast: Int64) -> Int64:
    memory = np.maximum(slow, fast) if model.parallel else slow + fast
    compute = model.compute[number]
    small, large = np.minimum(compute, memory), np.maximum(compute, memory)
    extra = -((-small * model.overlap[number]) // MILLION)
    times: Int64 = np.maximum(1, model.launch[number] + large + extra)
    return times


def _hull(
    draft: Draft, chosen: list[int], ways: Bools, times: Int64, time: tuple[int, int], *, exact: bool
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
    _linear_times(game, undecided(program, machine, model))
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


def _linear_times(game: GameLinear, loose: tuple[Int64, Int64]) -> None:
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
