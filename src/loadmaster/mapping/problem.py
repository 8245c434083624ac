"""`Mapping`: one memory for every activation and every weight, for its whole life (EGRL).

A decision is int8[2N] for N nodes and M memories: entry i is the memory of the activation of node
i, entry N + i that of its weights; 0 is the fastest memory, M - 1 the slowest. Entries that decide
nothing (`~live`) are ignored. Its value is the simulated time of one pass; a map that exceeds a
capacity is not legal. Inputs stay in memory M - 1, which must hold everything.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import _core
from loadmaster.allocation.pack import pack
from loadmaster.arrays import Bool, Float64, Int8, Int64
from loadmaster.errors import BadMachine, BadPlan, Refused
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.mapping.bytes_moved import counts_bytes
from loadmaster.mapping.entries import (
    Entries,
    check_offsets,
    check_room,
    find_entries,
    order_pins_first,
    pinned_entries,
)
from loadmaster.mapping.first_fit import first_fit_memories
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import HOME, NO_OFFSET, Plan, static_plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.champion import Leaders
from loadmaster.search.pins import Pins
from loadmaster.search.problem import (
    BatchProblem,
    Bound,
    Decision,
    Scores,
    decided_elsewhere,
    recorded_bound,
    refuse_first_alone,
)
from loadmaster.simulate.bounds import time_bounds
from loadmaster.simulate.simulator import Simulator
from loadmaster.units import show_bytes

PACK_SECONDS = 5.0


_FIRST_CHOICE = 30.0
"""A score above all that the time saved per byte could make of it: exp(30) is 10^13."""


class Mapping(BatchProblem):
    """One memory for every activation and every weight of a program, for its whole life.

    Args:
      invalid: what a map that does not fit earns: 'penalty' (minus the share of bytes that has to move)
        or 'repair' (what its rectified form earns).
      power: of the reward, (compiler's time / time) ** power.
      noise: standard deviation of a measured time: with it values are not repeatable, have no bound,
        and `remeasure(problem)` names the champion.
      pins: what they fix is not decided: it stands in every map, whatever the map says.
    """

    kind = "mapping"

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        invalid: str = "penalty",
        power: float = 2.0,
        noise: float = 0.0,
        noise_seed: int = 0,
        pins: Pins | None = None,
    ) -> None:
        if invalid not in ("penalty", "repair"):
            raise ValueError(f"invalid must be 'penalty' or 'repair', not {invalid!r}")
        if not 0 <= noise < 1 or not 0 < power <= 16:
            raise ValueError("noise must be in [0, 1) and power in (0, 16]")
        refuse_first_alone(machine, self.kind)
        self.program, self.machine = program, machine
        self.unit = "moved" if counts_bytes(machine) else "ps"
        self.invalid, self.power, self.noise, self.noise_seed = invalid, power, noise, noise_seed
        self.memories = machine.reach[0]
        """[M] the machine's memories that are decided over, fastest first."""
        if len(self.memories) < 2:
            raise BadMachine(
                f"machine '{machine.name}' gives its device '{machine.devices[0].name}' one memory",
                object=machine.name,
                number=len(self.memories),
                remedy="give a machine with two or more, such as nnp-i",
            )
        self.entries: Entries = find_entries(program, machine)
        self.pins = pins or Pins()
        self.pinned: Int8 = pinned_entries(program, machine, self.entries, self.pins)
        """[2N] the memory of each entry that is pinned, or -1."""
        self.live: Bool = self.entries.live & (self.pinned < 0)
        """[2N] whether an entry decides anything."""
        if self.pins:
            self.entries = order_pins_first(self.entries, self.pinned)
        # All ops run on the first device; the other devices only carry memories.
        self._simulator = Simulator(program, replace(machine, devices=machine.devices[:1]))
        self._simulator.run(Plan())  # refuses a program with an op that the device can't run
        self._core = _core.MapBatch(self._simulator.native, self.entries.columns())
        self._packed: dict[bytes, Int64 | None] = {}
        self.leaders = Leaders()
        """The best distinct maps that a search has submitted, where values are not repeatable."""
        self._check_slowest()
        if self.pins:
            check_room(program, machine, self.entries, self.pinned, self.pins, self._displaced)
            if self._offsets(self.all_slowest()) is None:
                check_offsets(program, machine, self.pins)
                raise Refused(
                    f"the offsets that are pinned on '{machine.name}' leave too little room",
                    object=machine.name,
                    number=len(self.pins.memory),
                    remedy="leave one of them out",
                )

    @property
    def repeatable(self) -> bool:
        """Whether a map has the same value at every evaluation."""
        return not self.noise

    @property
    def nodes(self) -> int:
        """N"""
        return self.entries.nodes

    @property
    def slowest(self) -> int:
        """M - 1"""
        return len(self.memories) - 1

    def all_slowest(self) -> Int8:
        """The map that is always legal: all that is not pinned in the slowest memory."""
        return np.where(self.pinned < 0, np.int8(self.slowest), self.pinned)

    def options(self) -> dict[str, Any]:
        noise = {"noise": self.noise, "noise_seed": self.noise_seed} if self.noise else {}
        pins = {"pins": self.pins.as_json()} if self.pins else {}
        return {"invalid": self.invalid, "power": self.power, **noise, **pins}

    def rectify(self, decisions: Int8, threads: int | None = None) -> tuple[Int64, Float64, Int8]:
        """(time_ps[B] of the rectified map, epsilon[B], rectified int8[B, 2N]) of maps int8[B, 2N].

        epsilon is the share of the decided bytes that had to move: 0 if the map is legal.
        """
        maps = np.ascontiguousarray(decisions, dtype=np.int8)
        if maps.ndim != 2 or maps.shape[1] != 2 * self.nodes:
            raise ValueError(f"maps must be [B, {2 * self.nodes}], not {list(maps.shape)}")
        return self._rectified(np.where(self.live, maps, self.all_slowest()), threads)

    def make_legal(self, decision: Decision) -> Int8:
        """[2N] the rectified form of one map [2N], which fits."""
        legal: Int8 = self.rectify(np.asarray(decision)[None])[2][0]
        return legal

    def _rectified(self, maps: Int8, threads: int | None = None) -> tuple[Int64, Float64, Int8]:
        rectified = np.empty_like(maps)
        total, moved = self._core.evaluate(maps, rectified, threads or cores())
        return total, moved / max(1, int(self.entries.bytes.sum())), rectified

    def _displaced(self, pinned: Int8) -> float:
        """The share of bytes that does not fit where it is pinned, all else in the slowest memory."""
        maps = np.where(pinned < 0, np.int8(self.slowest), pinned)
        return float(self._rectified(maps[None])[1][0])

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Values and rewards of maps int8[B, 2N]; `first` is the number of the first evaluation,
        which noise depends on."""
        total, epsilon, _ = self.rectify(decisions)
        legal = (epsilon == 0) | (self.invalid == "repair")
        measured = self._measured(total, first)
        reward = self.reward(measured, np.where(legal, 0.0, epsilon))
        return Scores(np.where(legal, measured, -1), reward)

    def reward(self, time_ps: Int64, epsilon: Float64) -> Float64:
        """(compiler's time / time) ** power for maps that fit, minus epsilon for the others."""
        gain = (self.compiler_ps / np.maximum(time_ps, 1)) ** self.power
        return np.where(epsilon == 0, gain, -epsilon)

    def _measured(self, total: Int64, first: int) -> Int64:
        if not self.noise:
            return total
        # A generator of its own for each evaluation: batches and threads never matter.
        z = np.array(
            [np.random.default_rng([self.noise_seed, first + i]).standard_normal() for i in range(len(total))]
        )
        return np.rint(total * np.maximum(0.5, 1 + self.noise * z)).astype(np.int64)

    def sample(self, decision: Decision | None, number: int) -> int:
        """One measured time, of the compiler's map if None, for `remeasure`."""
        chosen = self.compiler if decision is None else np.asarray(decision)
        return int(self._measured(self.rectify(chosen[None])[0], number)[0])

    def simulated_ps(self, decision: Decision) -> int:
        """The time without noise, of the rectified map should this one not fit."""
        return int(self.rectify(np.asarray(decision)[None])[0][0])

    def recall(self, decision: Decision, value: int) -> None:
        """A search has submitted this map, or an earlier session of it had: a candidate."""
        if not self.repeatable:
            self.leaders.add(self.make_legal(decision), value)

    def evaluate(self, decision: Decision) -> int | None:
        """The time without noise; None if the map does not fit."""
        total, epsilon, _ = self.rectify(np.asarray(decision)[None])
        return int(total[0]) if epsilon[0] == 0 or self.invalid == "repair" else None

    @cached_property
    def compiler(self) -> Int8:
        """The map of first fit, which stands for a chip's own compiler: the normaliser of rewards."""
        return self.of_tensors(first_fit_memories(self.program, self.machine))

    @cached_property
    def compiler_ps(self) -> int:
        """Its time; of its rectified form, should it not fit."""
        return int(self.rectify(self.compiler[None])[0][0])

    def of_tensors(self, memory: Int64) -> Int8:
        """A map from a memory per root (the machine's numbers, or HOME)."""
        decision, root = self.all_slowest(), self.entries.piece_root
        position = np.full(len(self.machine.memories), self.slowest, dtype=np.int8)
        position[list(self.memories)] = np.arange(len(self.memories))
        chosen = root[memory[root] != HOME]
        decision[self.entries.of_tensor[chosen]] = position[memory[chosen]]
        return decision

    def times(self, decisions: Int8) -> Int64:
        """[B] the times of maps int8[B, 2N] as they are, whether they fit or not."""
        return self._simulator.run_static(self.tensor_memories(decisions).astype(np.int8))[0]

    def tensor_memories(self, decision: Decision) -> Int64:
        """[..., T] the machine's memory of each root, HOME where nothing is decided."""
        decided = np.flatnonzero(self.entries.of_tensor >= 0)
        maps = np.asarray(decision, dtype=np.int64)
        memory = np.full((*maps.shape[:-1], self.program.n_tensors), HOME, dtype=np.int64)
        memory[..., decided] = np.array(self.memories)[maps[..., self.entries.of_tensor[decided]]]
        return memory

    def admits(self, decision: Decision) -> bool:
        """Whether offsets can be found for a legal map (nearly always, and at once)."""
        return self._offsets(self.make_legal(decision)) is not None

    def packable(self, decision: Decision) -> Int8:
        """The map, or one near it that has offsets: where some are pinned, bytes that fit may not. The
        largest entries go to the slowest memory first."""
        legal = self.make_legal(decision)
        loose = np.flatnonzero(self.live & (legal < self.slowest))
        loose = loose[np.argsort(-self.entries.bytes[loose], kind="stable")]

        def without(count: int) -> Int8:
            return np.where(np.isin(np.arange(len(legal)), loose[:count]), self.slowest, legal).astype(
                np.int8
            )

        low, high = -1, len(loose)  # pins alone have offsets
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.admits(without(middle)) else (middle, high)
        return without(high)

    def plan(self, decision: Decision) -> Plan:
        legal = self.make_legal(decision)
        offsets = self._offsets(legal)
        if offsets is None:
            raise BadPlan(
                f"no offsets were found for a map of '{self.program.name}'",
                object=self.program.name,
                number=PACK_SECONDS,
                remedy="use another map",
            )
        memory = self.tensor_memories(legal)
        return static_plan(self.program, self.machine, memory, offsets, in_loops=True)

    def decision(self, plan: Plan) -> Decision:
        memory = np.full(self.program.n_tensors, HOME, dtype=np.int64)
        if plan.residencies is not None:
            memory[plan.residencies[:, 0]] = plan.residencies[:, 1]
        return self.of_tensors(memory)

    def adapt(self, plan: Plan) -> Decision:
        """The plan's map with what does not fit in slower memories; or greedy by density with the plan's choices
        first, if that is better."""
        from loadmaster.mapping.decoder import Decoder

        own = self.packable(self.decision(plan))
        decoder = Decoder(self)
        chosen = self.decision(plan)[decoder.live][:, None] == np.arange(self.slowest)
        greedy = decoder.decode(np.where(chosen, _FIRST_CHOICE, 0.0)[None])[0]
        return min((own, self.packable(greedy)), key=self.simulated_ps)

    def outside(self, plan: Plan) -> list[Violation]:
        """Anything but one memory for the whole life of a tensor, the same for all that one entry
        decides; what is pinned elsewhere."""
        found = self.pins.violations(plan) + decided_elsewhere(plan, self.kind, ("residencies",))
        if found:
            return found
        decision = self.decision(plan)
        rows = np.empty((0, 5), dtype=np.int64) if plan.residencies is None else plan.residencies
        open_rows = np.flatnonzero(rows[:, 2] == NO_OFFSET)
        if len(open_rows) and not self.admits(decision):
            count = len(open_rows)
            message = f"{count:,} residencies have no offset, and none are found that fit: give them"
            found.append(Violation(self.kind, message, int(rows[open_rows[0], 0]), number=count))
        lives = static_plan(self.program, self.machine, self.tensor_memories(decision), in_loops=True)
        if lives.residencies is not None and _same_lives(rows, lives.residencies):
            return found
        expected = {(row.tensor, row.memory, row.first, row.last) for row in lives.residency_rows}
        for number, row in enumerate(plan.residency_rows):
            whole = (row.tensor, row.memory, row.first, row.last)
            if whole not in expected:
                name, where = self.program.tensor_name[row.tensor], self.machine.memories[row.memory].name
                message = f"residency {number} of '{name}' in '{where}' is not its one memory for life: "
                message += "give each tensor one, the same for all results or all weights of an op"
                found.append(Violation(self.kind, message, row.tensor, number=number))
            expected.discard(whole)
        return found + [
            Violation(
                self.kind,
                f"'{self.program.tensor_name[tensor]}' has no memory for life: keep it in "
                f"'{self.machine.memories[where].name}'",
                tensor,
            )
            for tensor, where, _, _ in sorted(expected)
        ]

    def bound(self) -> Bound:
        """The best recorded one, else every access in the memory that suits it best."""
        if not self.repeatable:
            return Bound(0, "none: noisy values")
        known = recorded_bound(self.program, self.machine)
        return known or Bound(
            time_bounds(self.program, self._simulator.machine).together, "every op alone, capacities left out"
        )

    def save(self, folder: Path) -> None:
        noise = {"noise": self.noise, "noise_seed": self.noise_seed}
        about = {"invalid": self.invalid, "power": self.power, **noise, "pins": self.pins.as_json()}
        (folder / "problem.json").write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Mapping:
        """What `save` wrote."""
        about = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
        if "measured" in about:
            from loadmaster.mapping.measured import load_measured

            return load_measured(folder, about)
        pins = Pins.of_json(about.pop("pins", None))
        program, machine = load(folder / "program.npz"), read_machine(folder / "machine.toml")
        return cls(program, machine, pins=pins, **about)

    def _offsets(self, legal: Int8) -> Int64 | None:
        key = legal.tobytes()
        if key not in self._packed:
            if len(self._packed) > 64:
                self._packed.clear()
            memory = self.tensor_memories(legal)
            offsets, fits = pack(self.program, self.machine, memory, PACK_SECONDS, self.pins)
            self._packed[key] = offsets if fits else None
        return self._packed[key]

    def _check_slowest(self) -> None:
        everything = np.full((1, self.program.n_tensors), HOME, dtype=np.int8)
        _, peak = self._simulator.run_static(everything)
        memory = self.machine.memories[self.memories[-1]]
        needed = int(peak[0, self.memories[-1]])
        if self.program.n_loops:  # what loops carry stays to their end, where it is mapped
            lives = self.tensor_memories(self.all_slowest())
            kept = static_plan(self.program, self.machine, lives, in_loops=True)
            needed = max(needed, int(self._simulator.run(kept).memory_peak[self.memories[-1]]))
        if needed > memory.capacity:
            raise BadMachine(
                f"memory '{memory.name}' of machine '{self.machine.name}' must hold all of "
                f"'{self.program.name}' and has {show_bytes(memory.capacity)}",
                object=memory.name,
                number=needed,
                remedy=f"raise its capacity to {needed:,} bytes, or let a larger memory be the device's last",
            )


def _same_lives(rows: Int64, expected: Int64) -> bool:
    """Whether residencies are the same but for their offsets, in whatever order."""
    columns = [0, 1, 3, 4]
    return bool(np.array_equal(rows[np.argsort(rows[:, 0], kind="stable")][:, columns], expected[:, columns]))
