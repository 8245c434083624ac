"""Memory space assignment in the style of XLA, for any machine with a fast and a slow memory.

Tensors in order of benefit, each whole: a use is served from fast memory if the tensor can stay there
since it was made or used last, or if a copy in fits under the steps before.
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.problems.malloc_game.tensors import NEVER
from loadmaster.program.program import Program, TieKind
from loadmaster.solvers.heuristic.msa_switches import Switches, switches_of
from loadmaster.solvers.solver import Meter, Solution, State
from loadmaster.units import PICOSECONDS

__all__ = ["Assigned", "Assigner", "Msa", "Switches", "submit", "switches_of"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Assigned:
    """A placement by rows of the model's tensors and by steps."""

    residencies: Int64
    """[r, 4] tensor, offset, first step, last step"""
    copies: Int64
    """[c, 5] tensor, 1 (in) or 0 (out), issued after step, needed by step, picoseconds of work"""
    slices: Int64
    """[c] which part of the tensor is copied, or -1: all of it"""
    is_fast: npt.NDArray[np.int8]
    """[N] which sites fast memory serves"""
    info: dict[str, int]
    """How often it repacked, gave a group up, and pinned inefficient sites"""


class Assigner:
    """Memory space assignment for one model; `order` permutes its own order of tensors."""

    def __init__(self, program: Program, machine: Machine, model: GameModel, switches: Switches) -> None:
        self.model, self.n_ops = model, program.n_ops
        self._cuts = _cuts(program.storage_bytes[model.tensors.root], switches.slices)
        self.tables = _core.GameTables(model.columns())
        slices = _slice_work(model, machine, self._cuts, switches.slice_bytes)
        about = {
            "capacity_copy": _capacity_copy(model, machine),
            "site_bytes": model.site_bytes,
            "early": _early(program, model),
            "slice_work": slices,
        }
        self._options = {**asdict(switches), **about}
        self._take_times(model.all_slow, model.all_slow)

    def _take_times(self, elapsed: Int64, supply: Int64) -> None:
        """How long each step is taken to last, and how much of it to be left to copies."""
        times = {"elapsed": elapsed, "supply": supply}
        self._msa = _core.Msa(self.tables, {**self._options, **times})

    def refined(self) -> Assigner:
        """The same with the times of steps, and what they leave to copies, that its own placement
        gives them, instead of those with everything in slow memory."""
        model, is_fast = self.model, self.assign().is_fast.astype(bool)
        elapsed = model.elapsed(is_fast)
        busy = model.memory_times(is_fast)[0] if model.idle_copies else np.zeros_like(elapsed)
        again = copy(self)
        again._take_times(elapsed, np.maximum(0, elapsed - busy))
        return again

    @property
    def tensors(self) -> int:
        return len(self.model.tensors.size)

    @property
    def sorted(self) -> list[int]:
        """[B] rows of tensors in the order in which they are placed"""
        return self._msa.sorted

    @property
    def boundedness(self) -> list[float]:
        """[B] picoseconds per square root of a byte that fast memory would save"""
        return self._msa.boundedness

    def assign(self, order: Int32 | None = None) -> Assigned:
        residencies, copies, is_fast, info = self._msa.run(order)
        own = np.ascontiguousarray(copies[:, :5])
        return Assigned(residencies, own, copies[:, 5], is_fast.astype(np.int8), info)

    def totals(self, orders: Int32, threads: int) -> Int64:
        """[K] picoseconds of the plans of orders [K, B], as the simulator has them."""
        return self._msa.run_many(np.ascontiguousarray(orders, dtype=np.int32), threads)

    def plan(self, order: Int32 | None = None) -> Plan:
        found, model = self.assign(order), self.model
        op = [*model.step_op.tolist(), self.n_ops, BEFORE]  # the last: of step -1
        root = model.tensors.root.tolist()
        copies, filled = [], set()
        for (tensor, is_in, issued, needed, _), part in zip(
            found.copies.tolist(), found.slices.tolist(), strict=True
        ):
            ends = (model.slow, model.fast) if is_in else (model.fast, model.slow)
            span = self._cuts[tensor, part : part + 2].tolist() if part >= 0 else ()
            copies.append((root[tensor], *ends, op[issued], op[needed], *span))
            filled.add((tensor, issued + 1) if is_in else None)
        # What a copy fills begins right after its issue: views may stand between two steps.
        residencies = [
            (
                root[tensor],
                model.fast,
                offset,
                op[first - 1] + 1 if (tensor, first) in filled else op[first],
                op[last],
            )
            for tensor, offset, first, last in found.residencies.tolist()
        ]
        return Plan.of(residencies=residencies, copies=copies)


def _early(program: Program, model: GameModel) -> Int32:
    """Given tensors that could be fetched before the program, the largest first. What is donated
    to an output changes from run to run, so compilers leave it where it is."""
    donated = program.tie_source[program.tie_kind == TieKind.DONATED]
    tensors = model.tensors
    rows = np.flatnonzero((tensors.given > 0) & ~np.isin(tensors.root, program.tensor_alias[donated]))
    return rows[np.argsort(-tensors.size[rows], kind="stable")].astype(np.int32)


def _cuts(size: Int64, parts: int) -> Int64:
    """[B, parts + 1] where tensors are cut into equal parts"""
    return size[:, None] * np.arange(parts + 1) // parts


def _rate(model: GameModel, machine: Machine) -> tuple[int, int]:
    """(bytes per second, latency) of a copy in; without a link, of slow memory itself."""
    link = machine.link_between.get((model.slow, model.fast))
    home = machine.memories[model.slow].read
    if link is None:
        return home, 0
    about = machine.links[link]
    rate = min(about.bandwidth, home) if model.idle_copies else about.bandwidth
    return rate, about.latency


def _slice_work(model: GameModel, machine: Machine, cuts: Int64, least: int) -> Int64:
    """[B * parts] picoseconds of a copy in of each part; NEVER: it is too small to be cut"""
    rate, latency = _rate(model, machine)
    size = np.diff(cuts, axis=1)
    flat = np.ascontiguousarray(size.reshape(-1))
    times = _core.ceil_times(flat, np.full(len(flat), rate, dtype=np.int64)).reshape(size.shape)
    too_small = (cuts[:, -1] < max(least, size.shape[1]))[:, None]
    return np.where(too_small, NEVER, np.maximum(1, times + latency)).reshape(-1)


def _capacity_copy(model: GameModel, machine: Machine) -> float:
    """Picoseconds of a copy from slow memory that fills the fast one."""
    rate, latency = _rate(model, machine)
    return latency + model.capacity * PICOSECONDS / rate


def submit(meter: Meter, problem: MallocGame, switches: Switches) -> tuple[Assigner, int]:
    """Evaluate its plan, and those of its refinements. Returns the one with the best plan, and how
    often that one is refined."""
    assigner = Assigner(problem.program, problem.machine, problem.model, switches)
    best, best_pass, best_value = assigner, 0, None
    for number in range(switches.refinements + 1):
        value = meter.evaluate(problem.decision(assigner.plan()))
        if value is not None and (best_value is None or value < best_value):
            best, best_pass, best_value = assigner, number, value
        if meter.exhausted or number == switches.refinements:
            break
        assigner = assigner.refined()
    return best, best_pass


class Msa:
    """One placement and its refinements; `style` and switches as in `Switches`."""

    name = "msa"
    problem_kind = "malloc-game"
    deterministic = True
    summary = "memory space assignment in the style of XLA (white box)"

    def __init__(self, style: str | int = "2023", **switches: Any) -> None:
        self.chosen = switches_of(style, switches)
        self.switches = {"style": str(style), **asdict(self.chosen)}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if not meter.exhausted:
            submit(meter, problem, self.chosen)
        return meter.solution(white_box=True)
