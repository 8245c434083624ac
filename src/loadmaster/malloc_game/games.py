"""The game itself: its moves, the rules that can be chosen, how moves and plans become each other, and
`Games`, a batch of games that step together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import Int16, Int32, Int64, UInt8
from loadmaster.errors import BadPlan, LoadmasterError, nearest
from loadmaster.host import cores
from loadmaster.malloc_game.model import GameModel
from loadmaster.plan.plan import BEFORE, Copy, Plan
from loadmaster.search.problem import decided_elsewhere

if TYPE_CHECKING:
    from loadmaster.malloc_game.problem import MallocGame

Seen = dict[str, npt.NDArray[Any]]
"""Observations by name, as in `SHAPES`."""

COPY, NO_COPY, DROP, COPY_EARLY, COPY_HALF, COPY_TIGHT = range(6)
ACTIONS = ("Copy", "NoCopy", "Drop", "CopyEarly", "CopyHalf", "CopyTight")
PUBLISHED = ACTIONS[:3]
"""Those of the published game, and of every game with `starts = "hidden"`."""
LEAD = len(ACTIONS)
"""From here on a move is a Copy with a given lead: `LEAD + k - 1` is one with k steps from the one that
issues it to the one that needs it. Masks do not list them; any plan can be played with them."""

FALLBACK = (NO_COPY, COPY, DROP, COPY_HALF, COPY_TIGHT, COPY_EARLY)
"""What is played in place of a move that is not legal: the first of these that is."""

PROFILES: dict[str, dict[str, Any]] = {
    "loadmaster": {
        "supply": "idle",
        "ledger": "fifo",
        "reward": "telescoping",
        "backup": "retroactive",
        "repack": 4,
        "starts": "all",
    },
    "paper": {
        "supply": "elapsed",
        "ledger": "latest",
        "reward": "static",
        "backup": "rewind",
        "repack": 0,
        "starts": "hidden",
    },
}
"""'paper': the published game as far as its rules are known."""
_VALUES: dict[str, tuple[str, ...]] = {
    "supply": ("idle", "elapsed"),
    "ledger": ("fifo", "latest"),
    "reward": ("telescoping", "static", "judged"),
    "backup": ("retroactive", "rewind", "none"),
    "starts": ("all", "hidden"),
}


@dataclass(frozen=True)
class GameOptions:
    """The rules of a game that can be chosen."""

    supply: str = "idle"
    """What copies in may use of a step: the time in which it leaves slow memory idle (where copies
    have engines of their own: all of it), as far as is decided; or its all-slow time. Write-backs run
    beside steps that are still to be decided: they have the latter, or, where all copies are hidden, the least that
    steps can leave."""
    ledger: str = "fifo"
    """Copies in order of issue, and nobody is made late; or each as late as it can."""
    reward: str = "telescoping"
    """The time that a move saves, so that rewards add up to what the judge says; what it would save
    alone ('static'); or the difference of judged times."""
    backup: str = "retroactive"
    """At a dead end: drop what blocks; go back to the decision that began it, drop there, and play again what
    came after it, as far as is legal; or ('none') the game is lost, and everything is slow."""
    repack: int = 4
    """Where there is no room as things lie, so many tensors may be pushed out of their places, one after the
    other, to make some; then all are laid out anew. 0: offsets are final."""
    starts: str = "all"
    """Copies that steps hide (Copy), with twice that time (CopyEarly), with half of it (CopyHalf), beside one
    step (CopyTight), or with any given lead; or hidden ones alone."""
    stall_term: bool = True
    """The last move pays for all stalls (telescoping rewards only)."""
    max_idle_s: float | None = None
    """The longest time, at all-slow speed, that a tensor may wait in fast memory for its next use."""

    def values(self) -> dict[str, Any]:
        """As the native core and a run's keys take them."""
        return asdict(self)


def make_options(profile: str, changes: dict[str, Any]) -> GameOptions:
    """A profile with some options set otherwise."""
    if profile not in PROFILES:
        raise _bad("profile", profile, tuple(PROFILES))
    known = tuple(GameOptions.__dataclass_fields__)
    for name, value in changes.items():
        if name not in known:
            raise LoadmasterError(
                f"the game has no option '{name}'{nearest(name, known)}",
                object=name,
                remedy=f"use one of {', '.join(known)}",
            )
        if name in _VALUES and value not in _VALUES[name]:
            raise _bad(name, value, _VALUES[name])
    options = GameOptions(**{**PROFILES[profile], **changes})
    if options.repack < 0:
        raise LoadmasterError(
            f"repack is {options.repack}", object="repack", number=options.repack, remedy="give 0 or more"
        )
    if options.max_idle_s is not None and not options.max_idle_s >= 0:
        raise LoadmasterError(
            f"max_idle_s is {options.max_idle_s}",
            object="max_idle_s",
            number=options.max_idle_s,
            remedy="give at least 0, or None",
        )
    return options


def _bad(name: str, value: object, known: tuple[str, ...]) -> LoadmasterError:
    return LoadmasterError(
        f"{name} can't be '{value}'", object=name, number=str(value), remedy=f"use one of {', '.join(known)}"
    )


_MOST_LEAD = int(np.iinfo(np.int16).max) - LEAD
RESIDENCY = -2
"""In the last two columns of a row: it is a residency (tensor, memory, offset, first, last), and no
copy (tensor, source, target, issued after, needed by, low, high)."""
WIDTH = 7
DECIDES = ("residencies", "copies")
"""Parts of a plan: those that rows can hold."""


def encode(plan: Plan) -> Int64:
    """[m, 7] the residencies, then the copies of a plan that decides nothing else."""
    for row in decided_elsewhere(plan, "malloc-game", DECIDES):
        raise BadPlan(row.message, object="plan", remedy="give residencies and copies alone")
    residencies = np.empty((0, 5), dtype=np.int64) if plan.residencies is None else plan.residencies
    copies = np.empty((0, WIDTH), dtype=np.int64) if plan.copies is None else plan.copies
    marked = np.pad(residencies, ((0, 0), (0, 2)), constant_values=RESIDENCY)
    return np.concatenate([marked, copies]).astype(np.int64)


def decode(rows: npt.NDArray[np.integer]) -> Plan:
    """The plan of `encode`'s rows."""
    table = np.asarray(rows, dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != WIDTH:
        raise BadPlan(
            f"a placement is [m, {WIDTH}] and this is {list(table.shape)}",
            object="placement",
            number=WIDTH,
            remedy="give the rows of encode(plan)",
        )
    is_residency = table[:, 5] == RESIDENCY
    residencies, copies = table[is_residency, :5], table[~is_residency]
    return Plan(residencies=residencies if len(residencies) else None, copies=copies if len(copies) else None)


def make_plan(model: GameModel, n_ops: int, residencies: Int64, copies: Int64) -> Plan:
    """The plan of a placement by rows of the model's tensors and by steps, as the core gives it."""
    op, root = model.step_op.tolist(), model.tensors.root.tolist()
    # A window begins right after the op before it, so that a copy issued there belongs to it even
    # if a view lies between.
    begin = [0, *(each + 1 for each in op)]
    return Plan.of(
        residencies=[
            (root[tensor], model.fast, offset, begin[first], op[last])
            for tensor, offset, first, last in residencies.tolist()
        ],
        copies=[
            (
                root[tensor],
                *((model.slow, model.fast) if into else (model.fast, model.slow)),
                op[issued] if issued >= 0 else BEFORE,
                op[needed] if needed < len(op) else n_ops,
            )
            for tensor, into, issued, needed, _ in copies.tolist()
        ],
    )


def moves_of(model: GameModel, plan: Plan, leads: bool = True) -> tuple[Int16, Int64]:
    """([N] the moves that come nearest to a plan, [N] the offsets of what they bring to fast memory, or -1): a
    fast site is a copy with the plan's own lead if one brought the tensor for it, or takes it from there; NoCopy
    if not; all others are Drop. Without `leads` copies are plain ones."""
    moves = np.full(model.sites, DROP, dtype=np.int16)
    offsets = np.full(model.sites, -1, dtype=np.int64)
    row_of, carried = model.tensors.of_root, model.tensors.carried
    sites: list[list[int]] = [[] for _ in range(len(model.tensors.root))]
    for site, tensor in enumerate(model.site_tensor.tolist()):
        sites[tensor].append(site)
    step_op = model.step_op.tolist()
    op_of = [step_op[step] for step in model.site_step.tolist()]
    copies: dict[int, list[Copy]] = {}
    for copy in plan.copy_rows:
        copies.setdefault(copy.tensor, []).append(copy)

    def copied(copy: Copy) -> int:
        """The move that is this copy."""
        lead = bisect_left(step_op, copy.needed_by) - bisect_right(step_op, copy.issued_after) + 1
        return LEAD + lead - 1 if leads and 0 < lead < _MOST_LEAD else COPY

    for residency in sorted(plan.residency_rows, key=lambda row: (row.tensor, row.first, row.last)):
        tensor = int(row_of[residency.tensor])
        if tensor < 0 or residency.memory != model.fast:
            continue
        own = copies.get(residency.tensor, [])
        fills = [
            copy
            for copy in own
            if copy.target == model.fast
            and copy.issued_after >= residency.first - 1
            and copy.needed_by <= residency.last
        ]
        leaves = [copy for copy in own if copy.source == model.fast]
        ready = max([residency.first, *(copy.needed_by for copy in fills)])
        served = [u for u in sites[tensor] if ready <= op_of[u] <= residency.last]
        offsets[served[:1]] = residency.offset
        for place, site in enumerate(served):
            if model.site_write[site]:
                moves[site] = copied(leaves[0]) if leaves else NO_COPY
            else:
                moves[site] = copied(fills[0]) if fills and place == 0 else NO_COPY
    _settle_groups(model, carried, moves)
    return moves, offsets


def _settle_groups(model: GameModel, carried: Int32, moves: Int16) -> None:
    """A group is decided at its first site: Copy where any of it comes or goes."""
    group_of = carried[model.site_tensor]
    for group in np.unique(group_of[group_of >= 0]).tolist():
        members = np.flatnonzero(group_of == group)
        tensors = np.flatnonzero(carried == group)
        moving = (model.tensors.given[tensors] | model.tensors.output[tensors]).any()
        fast = moves[members[0]] != DROP
        moves[members] = NO_COPY if fast else DROP
        if fast and moving:
            moves[members[0]] = COPY


SHAPES: dict[str, tuple[tuple[int, ...], type[Any]]] = {
    "grid": ((128, 64, 4), np.uint8),
    "series": ((128, 8), np.float32),
    "current": ((24,), np.float32),
    "ahead": ((32, 16), np.float32),
    "back": ((32, 16), np.float32),
    "globals": ((8,), np.float32),
    "mask": ((len(PUBLISHED),), np.uint8),
}
"""Of one game's observation, whatever the program; a mask has as many places as the game lists moves."""
MOST = 16.0
"""No number of an observation is larger, nor smaller than -MOST; `grid` has shares of 255."""


def seen_arrays(*count: int, actions: int = len(PUBLISHED)) -> Seen:
    """Room for observations [*count, ...] whose masks list so many moves."""
    seen: Seen = {name: np.zeros((*count, *shape), kind) for name, (shape, kind) in SHAPES.items()}
    return {**seen, "mask": np.zeros((*count, actions), np.uint8)}


class Games:
    """B games of one problem, all at their first move. Results do not depend on `threads`."""

    def __init__(self, problem: MallocGame, count: int, threads: int | None = None) -> None:
        self.problem, self.count = problem, count
        self.threads = threads or cores()
        self.native = _core.Game(problem.tables, problem.options())
        self.native.reset(count, self.threads)
        self._seen: Seen = {}

    def observe(self, into: Seen | None = None) -> Seen:
        """Arrays [B, ...] as in `SHAPES`; the next call writes over them. `into`: arrays to fill."""
        if into is None:
            self._seen = into = self._seen or seen_arrays(self.count, actions=self.problem.actions)
        self.native.observe(into, self.problem.scale_ps)
        return into

    def reset(self) -> None:
        """All at their first move again."""
        self.native.reset(self.count, self.threads)

    @property
    def cursors(self) -> Int64:
        """[B] the move that comes next; N: the game is over."""
        return self.native.cursors()

    def masks(self) -> UInt8:
        """[B, actions] which moves are legal; none in a game that is over."""
        return self.native.masks()

    def step(self, actions: Int16) -> Int64:
        """[B] picoseconds that legal moves [B] earn; a game that is over takes none."""
        return self.native.step(np.ascontiguousarray(actions, dtype=np.int16))

    def step_towards(self, preferences: Int16) -> Int64:
        """The same for moves that need not be legal: if not, NoCopy, else Copy, else Drop, else any."""
        return self.native.step_towards(np.ascontiguousarray(preferences, dtype=np.int16))

    def finish(self, preferences: Int16) -> tuple[Int16, Int64, UInt8]:
        """To the end, moves as near to [B, N] as is legal: (played [B, N], earned [B, N], legal
        [B, N, actions]), zero before the moves that were next."""
        return self.native.finish(np.ascontiguousarray(preferences, dtype=np.int16))

    def replay(self, actions: Int16) -> None:
        """From the start, legal moves [B, k]."""
        self.native.replay(np.ascontiguousarray(actions, dtype=np.int16))

    def undo(self) -> None:
        """Take each game's last move back."""
        self.native.undo()

    def backups(self, game: int) -> int:
        """Dead ends of a game so far."""
        return int(self.native.backups()[game])

    def judged(self) -> tuple[Int64, Int64]:
        """([B] total, [B] of it stalls) in picoseconds; what is not decided yet is slow."""
        return self.native.judged()

    def plan(self, game: int) -> Plan:
        """What a game's moves so far amount to."""
        residencies, copies, _ = self.native.placement(game)
        return make_plan(self.problem.model, self.problem.program.n_ops, residencies, copies)
