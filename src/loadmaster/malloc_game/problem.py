"""`MallocGame`: one fast memory over one slow one; what is where, when and at which address.

A decision is either N preferred moves, int16[N] (Copy, NoCopy, Drop for each use of a tensor,
or a copy that starts earlier or later: `games.ACTIONS`; the game plays each if it is legal, else NoCopy, Copy
or Drop), or the rows int64[m, 7] of any plan
(`placement.encode`). Its value is the simulated time, stalls for copies included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import Int16, Int32, Int64
from loadmaster.errors import BadMachine, BadPlan, LoadmasterError
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.malloc_game.bounds import quick_bound
from loadmaster.malloc_game.games import (
    DECIDES,
    DROP,
    Games,
    Seen,
    decode,
    encode,
    make_options,
    moves_of,
    seen_arrays,
)
from loadmaster.malloc_game.model import GameModel, make_model
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import BEFORE, NO_OFFSET, WHOLE, Copy, Plan, Residency
from loadmaster.program.hazards import root_writers
from loadmaster.program.program import Program, TensorKind
from loadmaster.program.storage import load
from loadmaster.search.pins import BadPin, Pins
from loadmaster.search.problem import (
    BatchProblem,
    Bound,
    Decision,
    Scores,
    decided_elsewhere,
    recorded_bound,
    refuse_first_alone,
    within_core,
)
from loadmaster.simulate.simulator import get_simulator
from loadmaster.units import show_bytes

RETIRED = frozenset({"offsets", "min_overlap"})
"""Options of games in runs of old."""


@dataclass(frozen=True)
class Played:
    """B finished games."""

    actions: Int16
    """[B, N] the moves as they were played."""
    total: Int64
    """[B] judged time in picoseconds."""
    stall: Int64
    """[B] of it, waiting for copies."""
    backups: Int32
    """[B] dead ends."""


class MallocGame(BatchProblem):
    """`fast` names the fast memory (by default the device's first); `profile` and options: see
    `games.GameOptions`. Times are those of one run of the program, and nothing is in fast memory before it.
    Tensors that `pins` fix stay in slow memory and are not decided."""

    kind = "malloc-game"
    unit = "ps"

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        fast: str | None = None,
        profile: str = "loadmaster",
        pins: Pins | None = None,
        **options: Any,
    ) -> None:
        refuse_first_alone(machine, self.kind)
        self.program, self.machine, self.fast, self.pins = program, machine, fast, pins or Pins()
        self.model: GameModel = make_model(_without(program, machine, self.pins), machine, fast)
        self._options = make_options(profile, options)
        with within_core(program, machine):
            self.tables = _core.GameTables(self.model.columns())
        self._core = _core.Game(self.tables, self._options.values())
        known = recorded_bound(program, machine, self.kind) if fast is None else None
        self._bound = known or quick_bound(program, machine, self.model)
        self.all_slow_ps = self.model.all_slow_ps
        """T0"""
        self._planned: tuple[bytes, Plan] | None = None
        """The moves that a plan was made of last, and the plan: of a million it takes seconds."""
        self._check_slow()

    @property
    def moves(self) -> int:
        """N"""
        return self.model.sites

    @property
    def actions(self) -> int:
        """Moves that a mask lists."""
        return self._core.actions

    @property
    def scale_ps(self) -> int:
        """Z: what an optimum that reaches the bound saves; at least 1."""
        return max(1, self.all_slow_ps - self._bound.value)

    def options(self) -> dict[str, Any]:
        fast = {} if self.fast is None else {"fast": self.fast}
        pins = {"pins": self.pins.as_json()} if self.pins else {}
        return {**self._options.values(), **fast, **pins}

    def all_slow(self) -> Int16:
        """The moves that decide nothing."""
        return np.full(self.moves, DROP, dtype=np.int16)

    def published(self) -> MallocGame:
        """The same problem where all copies are hidden: Copy, NoCopy and Drop are all moves."""
        if self._options.starts == "hidden":
            return self
        own = {**self._options.values(), "starts": "hidden"}
        return MallocGame(self.program, self.machine, fast=self.fast, pins=self.pins, **own)

    def games(self, count: int, threads: int | None = None) -> Games:
        """A batch of games to be played move by move."""
        return Games(self, count, threads)

    def play(self, preferences: npt.NDArray[Any], threads: int | None = None) -> Played:
        """Complete games that prefer the moves [B, N]."""
        moves = np.ascontiguousarray(preferences, dtype=np.int16)
        if moves.ndim != 2 or moves.shape[1] != self.moves:
            raise ValueError(f"moves must be [B, {self.moves}], not {list(moves.shape)}")
        return Played(*self._core.play(moves, threads or cores()))

    def try_all(
        self, actions: npt.NDArray[Any], first: int = 0, last: int | None = None, threads: int | None = None
    ) -> Int64:
        """[B, N, actions] the times of complete games of legal moves [B, N] if, at one site, another move
        were made and what follows stayed as near to the game as is legal; -1: not a legal move, or
        the only one. With `first` and `last`: of sites [first, last) alone."""
        moves = np.ascontiguousarray(actions, dtype=np.int16)
        end = self.moves if last is None else last
        return self._core.try_all(moves, first, end, threads or cores())

    def observe_at(
        self,
        actions: npt.NDArray[Any],
        at: npt.NDArray[Any],
        count: int | None = None,
        threads: int | None = None,
    ) -> Seen:
        """What games with the legal moves [R, N] look like before move at[R]: arrays [R, ...] as in
        `games.SHAPES`; with `count`, before that many moves in a row: arrays [R, count, ...]."""
        moves = np.ascontiguousarray(actions, dtype=np.int16)
        shape = (len(moves),) if count is None else (len(moves), count)
        seen = seen_arrays(*shape, actions=self.actions)
        self._core.observe_at(
            moves,
            np.ascontiguousarray(at, dtype=np.int32),
            count or 1,
            seen,
            self.scale_ps,
            threads or cores(),
        )
        return seen

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Judged times of preferred moves [B, N], and the shares (T0 - T)/Z of what can be saved."""
        total = self.play(decisions).total
        return Scores(total, (self.all_slow_ps - total) / self.scale_ps)

    def evaluate(self, decision: Decision) -> int | None:
        if np.asarray(decision).dtype.kind not in "iu":
            return None
        if _is_moves(decision):
            return int(self.play(np.asarray(decision)[None]).total[0])
        try:
            plan = decode(decision)
            total = int(get_simulator(self.program, self.machine).run(plan).total_ps)
        except BadPlan:
            return None
        return None if self.outside(plan) else total

    def admits(self, decision: Decision) -> bool:
        return not self.violations(self.plan(decision))

    def plan(self, decision: Decision) -> Plan:
        if not _is_moves(decision):
            return decode(decision)
        key = np.ascontiguousarray(decision).tobytes()
        if self._planned is None or self._planned[0] != key:
            games = self.games(1, threads=1)
            games.replay(self.play(np.asarray(decision)[None]).actions)
            self._planned = (key, games.plan(0))
        return self._planned[1]

    def decision(self, plan: Plan) -> Decision:
        return encode(plan)

    def adapt(self, plan: Plan) -> Decision:
        return self.moves_of(plan)

    def moves_of(self, plan: Plan) -> Int16:
        """[N] the moves that come nearest to a plan. Where copies may start at any time, they are those of the
        plan; what loops carry, and copies in parts, may still end elsewhere."""
        return moves_of(self.model, plan, leads=self._options.starts == "all")[0]

    def replay(self, plan: Plan) -> Played:
        """The game of a plan's moves, everything at the plan's own offsets where it can be."""
        moves, offsets = moves_of(self.model, plan, leads=self._options.starts == "all")
        return Played(*self._core.play(moves[None], 1, offsets[None]))

    def outside(self, plan: Plan) -> list[Violation]:
        """Other memories than its two, tensors in fast memory before the program, outputs that are
        not in slow memory at the end, what is pinned elsewhere: its bounds do not hold there."""
        model = self.model
        own = (model.fast, model.slow)
        found = decided_elsewhere(plan, self.kind, DECIDES)

        def refuse(row: int, tensor: int, message: str) -> None:
            found.append(Violation(self.kind, message, tensor, number=row))

        held = np.empty((0, 5), dtype=np.int64) if plan.residencies is None else plan.residencies
        odd = ~np.isin(held[:, 1], own) | ((held[:, 3] == BEFORE) & (held[:, 1] == model.fast))
        for row in np.flatnonzero(odd).tolist():
            residency = Residency(*held[row].tolist())
            where, tensor = residency.memory, residency.tensor
            if where not in own:
                refuse(
                    row, tensor, f"residency {row} is in memory {where}, and the game has the memories {own}"
                )
            elif residency.first == BEFORE and where == model.fast:
                refuse(
                    row, tensor, f"residency {row} is in fast memory before the program runs: copy it there"
                )
        moved = np.empty((0, 7), dtype=np.int64) if plan.copies is None else plan.copies
        odd = ~np.isin(moved[:, 1:3], own).all(axis=1) | (moved[:, 5] != WHOLE)
        for row in np.flatnonzero(odd).tolist():
            copy = Copy(*moved[row].tolist())
            if copy.source not in own or copy.target not in own:
                refuse(row, copy.tensor, f"copy {row} leaves the memories {own} of the game")
            elif copy.low != WHOLE and not model.idle_copies and model.engines[copy.source == model.fast] < 0:
                # Nothing takes turns there: byte by byte, all of a tensor would be there at once.
                message = "moves a part of its tensor over a link without an engine: copy all of it"
                refuse(row, copy.tensor, f"copy {row} {message}")
        return found + self._kept_in_fast(plan) + self.pins.violations(plan)

    def _kept_in_fast(self, plan: Plan) -> list[Violation]:
        """Outputs that an op leaves in fast memory and no copies take to slow memory: who called the
        program looks for them there."""
        program, fast, slow = self.program, self.model.fast, self.model.slow
        root = program.tensor_alias
        is_output = np.zeros(program.n_tensors, dtype=bool)
        is_output[root[program.tensor_kind == TensorKind.OUTPUT]] = True
        writer = root_writers(program)
        copied: dict[int, list[tuple[int, int]]] = {}
        held, copies = (
            [] if table is None else table[is_output[table[:, 0]]].tolist()
            for table in (plan.residencies, plan.copies)
        )
        moved = [Copy(*row) for row in copies]
        for row in (Residency(*row) for row in held):
            if row.memory == fast:
                # One that copies fill serves when they are there: what is written before goes home.
                filled = [
                    copy.needed_by
                    for copy in moved
                    if (copy.tensor, copy.target) == (row.tensor, fast)
                    and row.first - 1 <= copy.issued_after
                    and copy.needed_by <= row.last
                ]
                if max([row.first, *filled]) <= writer[row.tensor] <= row.last:
                    copied[row.tensor] = []
        for copy in moved:
            if copy.tensor in copied and (copy.source, copy.target) == (fast, slow):
                size = int(program.storage_bytes[copy.tensor])
                copied[copy.tensor].append((0, size) if copy.low == WHOLE else (copy.low, copy.high))
        found = []
        for tensor, ranges in sorted(copied.items()):
            missing, reached = int(program.storage_bytes[tensor]), 0
            for low, high in sorted(ranges):
                missing -= max(0, high - max(low, reached))
                reached = max(reached, high)
            if missing > 0:
                name, memory = program.tensor_name[tensor], self.machine.memories[slow].name
                message = f"{missing:,} bytes of output '{name}' are not in memory '{memory}' at the end"
                message += ": copy them there"
                found.append(Violation(self.kind, message, tensor, int(writer[tensor]), missing))
        return found

    def bound(self) -> Bound:
        return self._bound

    def _check_slow(self) -> None:
        """The plan that decides nothing is always there to fall back on, or there is no game."""
        memory = self.machine.memories[self.model.slow]
        needed = int(get_simulator(self.program, self.machine).run(Plan()).memory_peak[self.model.slow])
        if needed > memory.capacity:
            raise BadMachine(
                f"memory '{memory.name}' of machine '{self.machine.name}' must hold all of "
                f"'{self.program.name}' and has {show_bytes(memory.capacity)}",
                object=memory.name,
                number=needed,
                remedy=f"raise its capacity to {needed:,} bytes, or let a larger memory be the device's last",
            )

    def save(self, folder: Path) -> None:
        (folder / "problem.json").write_text(json.dumps(self.options()), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> MallocGame:
        """What `save` wrote."""
        about = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
        pins = Pins.of_json(about.pop("pins", None))
        if retired := sorted(RETIRED & set(about)):
            raise LoadmasterError(
                f"the run is of a game with the rules {', '.join(retired)}, and there are no such rules any more",
                object=folder.name,
                number=retired[0],
                remedy="begin a new run",
            )
        program, machine = load(folder / "program.npz"), read_machine(folder / "machine.toml")
        return cls(program, machine, pins=pins, **about)


def _without(program: Program, machine: Machine, pins: Pins) -> Program:
    """The program of which pinned tensors may not be in fast memory."""
    fast = program.tensor_fast.copy()
    for tensor, (memory, offset) in pins.memory.items():
        if memory != machine.home[0] or offset != NO_OFFSET:
            name, home = program.tensor_name[tensor], machine.memories[machine.home[0]].name
            raise BadPin(
                f"tensor '{name}' can be pinned to '{home}' alone here, without an offset: what is in fast "
                "memory is decided use by use",
                object=name,
                number=machine.memories[memory].name,
                remedy="give --problem mapping, where a tensor has one memory for life",
            )
        fast[tensor] = False
    for op, device in pins.device.items():
        if device != 0:
            name = program.op_name[op]
            raise BadPin(
                f"op '{name}' can't be pinned: all ops run on '{machine.devices[0].name}'",
                object=name,
                remedy="give --problem graph",
            )
    return replace(program, tensor_fast=fast) if pins.memory else program


def _is_moves(decision: Decision) -> bool:
    return np.asarray(decision).ndim == 1
