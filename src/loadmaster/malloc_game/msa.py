"""Memory space assignment in the style of XLA, for any machine with a fast and a slow memory.

Tensors in order of benefit, each whole: a use is served from fast memory if the tensor can stay there
since it was made or used last, or if a copy in fits under the steps before.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from loadmaster import _core
from loadmaster.arrays import Float64, Int8, Int16, Int32, Int64
from loadmaster.errors import nearest
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.model import NEVER, GameModel
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program.program import Program, TieKind
from loadmaster.search.solver import (
    BadOption,
    Meter,
    Solution,
    Solver,
    State,
    check_option,
    generator_state,
    restore_generator,
)
from loadmaster.units import PICOSECONDS

Rng = np.random.Generator


@dataclass(frozen=True)
class MsaOptions:
    """What can be set about memory space assignment. The defaults are those of XLA in 2023 with the ratios that its TPU compiler uses."""

    min_ratio: float = 1.0
    """A copy in has at least so many times its own duration between start and use."""
    preferred_ratio: float = 2.0
    max_ratio: float = 8.0
    """Unused in fast memory for so many times the duration of a copy that fills it, at most."""
    most_in: int = 40
    """Copies under way at once."""
    most_out: int = 40
    retries: int = 2
    repacks: int = 4
    inefficient_ratio: float = 0.0
    """A place in fast memory must serve so many times the bytes that are copied for it."""
    cross_program: int = 0
    """So many given tensors, the largest, are fetched before the first op."""
    loop_factor: float = 5.0
    """How often a loop is taken to run."""
    async_factor: float = 1.0
    """Of the rate at which copies are taken to run."""
    slices: int = 1
    """Copies in of large tensors go in so many parts, so that others can pass between them."""
    slice_bytes: int = 2**20
    """From this size on a tensor is large."""
    slice_need: float = 1.8
    """A copy in parts is only issued where so many times its own duration is left."""
    refinements: int = 0
    """So often it is run again with the times of ops that its own placement gives them."""
    strict_order: bool = False
    """A copy that starts earlier must not end later."""
    write_back: bool = False
    """When all is placed: what is read from slow memory is made in fast memory, where there is room, and written back
    under cover of other ops. XLA has no such pass."""
    stretch: bool = False
    """After that: copies out that would be late end later, and copies in start earlier, where there is room. Nor has it this one."""


STYLES = {
    "2023": MsaOptions(),
    "test": MsaOptions(min_ratio=0.8, preferred_ratio=1.5, max_ratio=10.0),
    "production": MsaOptions(inefficient_ratio=0.5, cross_program=1, slices=4),
    "refined": MsaOptions(refinements=4),
}
"""'test': the ratios of XLA's own tests. 'production': the options of the TPU compiler. 'refined':
ours, no longer XLA's: its copies fit what the simulator leaves to them."""


def make_options(style: str | int, changes: dict[str, Any]) -> MsaOptions:
    """A style with some options set otherwise; '2023' may come as a number."""
    style = str(style)
    known = [field.name for field in fields(MsaOptions)]
    for name, names in [(style, list(STYLES)), *((change, known) for change in changes)]:
        if name not in names:
            what = "style" if names is not known else "option"
            raise BadOption(
                f"msa has no {what} '{name}'{nearest(name, names)}",
                object=name,
                remedy=f"use {', '.join(names)}",
            )
    for field in fields(MsaOptions):
        if field.name in changes:
            check_option("msa", field.name, changes[field.name], str(field.type))
    chosen = replace(STYLES[style], **changes)
    for name, value in asdict(chosen).items():
        if value < 0 or (name in ("loop_factor", "async_factor", "slices") and value <= 0):
            raise BadOption(
                f"msa's option '{name}' is {value}", object=name, number=value, remedy="give a number above 0"
            )
    return chosen


@dataclass(frozen=True)
class Assigned:
    """A placement by rows of the model's tensors and by steps."""

    residencies: Int64
    """[r, 4] tensor, offset, first step, last step"""
    copies: Int64
    """[c, 5] tensor, 1 (in) or 0 (out), issued after step, needed by step, picoseconds of work"""
    slices: Int64
    """[c] which part of the tensor is copied, or -1: all of it"""
    is_fast: Int8
    """[N] which sites fast memory serves"""
    info: dict[str, int]
    """How often it repacked, gave a group up, and pinned inefficient sites"""


class Assigner:
    """Memory space assignment for one model; `order` permutes its own order of tensors."""

    def __init__(self, program: Program, machine: Machine, model: GameModel, options: MsaOptions) -> None:
        self.program, self.machine, self.model, self.n_ops = program, machine, model, program.n_ops
        self.tables = _core.GameTables(model.columns())
        self._take(options, model.all_slow, model.all_slow)

    def _take(self, options: MsaOptions, elapsed: Int64, supply: Int64) -> None:
        """Its options; how long each step is taken to last, and how much of it to be left to copies."""
        model, machine = self.model, self.machine
        self.options, self._times = options, (elapsed, supply)
        self._cuts = _cuts(self.program.storage_bytes[model.tensors.root], options.slices)
        about = {
            "capacity_copy": _capacity_copy(model, machine),
            "site_bytes": model.site_bytes,
            "early": _early(self.program, model),
            "slice_work": _slice_work(model, machine, self._cuts, options.slice_bytes),
            "elapsed": elapsed,
            "supply": supply,
        }
        self._msa = _core.Msa(self.tables, {**asdict(options), **about})

    def varied(self, options: MsaOptions) -> Assigner:
        """The same model and times with other options."""
        other = copy(self)
        other._take(options, *self._times)
        return other

    def refined(self) -> Assigner:
        """The same with the times of steps, and what they leave to copies, that its own placement
        gives them, instead of those with everything in slow memory."""
        model, is_fast = self.model, self.assign().is_fast.astype(bool)
        elapsed = model.elapsed(is_fast)
        busy = model.memory_times(is_fast)[0] if model.idle_copies else np.zeros_like(elapsed)
        again = copy(self)
        again._take(self.options, elapsed, np.maximum(0, elapsed - busy))
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


@dataclass(frozen=True)
class Placements:
    """K runs of memory space assignment, and what each says about itself. Picoseconds of the whole program."""

    total: Int64
    """[K] as the simulator has them"""
    kept: Float64
    """[K, B] lost if a tensor's fast uses became slow, one at a time"""
    lost: Float64
    """[K, B] its share of what steps would save with everything in fast memory"""
    blamed: Float64
    """[K, B] of what others lose, its share by the bytes and steps that it lies in their way"""
    pressure: Float64
    """[K, n] bytes in fast memory, as a share of its capacity"""

    def __getitem__(self, row: int) -> Placements:
        one = slice(row, row + 1)
        return Placements(
            self.total[one], self.kept[one], self.lost[one], self.blamed[one], self.pressure[one]
        )


def place_many(assigners: Sequence[Assigner], which: Int64, orders: Int32, threads: int) -> Placements:
    """Runs of one model with orders [K, B], each with the options of assigner which[K]."""
    rows = np.ascontiguousarray(which, dtype=np.int32), np.ascontiguousarray(orders, dtype=np.int32)
    return Placements(*_core.run_msas([each._msa for each in assigners], *rows, threads))


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


MSA_STEPS = 50_000
"""Above so many steps it is no baseline: where memory is short its time grows with their square."""


def msa_moves(problem: MallocGame) -> Int16:
    """[N] the moves that come nearest to the placement of XLA in 2023."""
    assigner = Assigner(problem.program, problem.machine, problem.model, STYLES["2023"])
    return problem.moves_of(assigner.plan())


def submit(meter: Meter, problem: MallocGame, options: MsaOptions) -> tuple[Assigner, int]:
    """Evaluate its plan, and those of its refinements. Returns the one with the best plan, and how
    often that one is refined."""
    assigner = Assigner(problem.program, problem.machine, problem.model, options)
    best, best_pass, best_value = assigner, 0, None
    for number in range(options.refinements + 1):
        value = meter.evaluate(problem.decision(assigner.plan()))
        if value is not None and (best_value is None or value < best_value):
            best, best_pass, best_value = assigner, number, value
        if meter.exhausted or number == options.refinements:
            break
        assigner = assigner.refined()
    return best, best_pass


class Msa(Solver):
    """One placement and its refinements; `style` and options as in `MsaOptions`."""

    name = "msa"
    problem_kind = "malloc-game"
    deterministic = True
    summary = "memory space assignment in the style of XLA (white box)"

    def __init__(self, style: str | int = "2023", **options: Any) -> None:
        self.chosen = make_options(style, options)
        self.options = {"style": str(style), **asdict(self.chosen)}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if not meter.exhausted:
            submit(meter, problem, self.chosen)
        return meter.solution()


_ELITE, _MUTANTS, _BIAS = 0.2, 0.15, 0.7


class MsaOrder(Solver):
    """Evolution of the order in which memory space assignment takes the tensors.

    An individual is one random number per tensor: sorted, they permute the assignment's own order.
    The best of each generation are kept, pairs of one of the best and one of the others have children
    that take each number from the better parent with a fixed likelihood, and the rest is drawn anew.

    `style` and options as of `msa`; half of the first generation are its own order, shaken. What
    is refined, is so once, before the evolution.
    """

    name = "msa-order"
    problem_kind = "malloc-game"
    deterministic = True
    summary = "evolution of the order of memory space assignment (white box)"

    def __init__(
        self, style: str | int = "refined", population: int = 64, threads: int | None = None, **options: Any
    ) -> None:
        if population < 8:
            raise ValueError("population must be at least 8")
        self.chosen = make_options(style, options)
        self.options = {"style": str(style), "population": population, **asdict(self.chosen)}
        self.population = population
        self.threads = threads or cores()

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if meter.exhausted:
            return meter.solution()
        if state is None:
            rng = np.random.default_rng(seed)
            assigner, refined = submit(meter, problem, self.chosen)
            keys = self._first(rng, assigner.tensors)
            values = self._scored(meter, assigner, keys)
        else:
            rng, keys = restore_generator(state["rng"]), np.array(state["keys"])
            values, refined = np.array(state["values"]), int(state["refined"])
            assigner = Assigner(problem.program, problem.machine, problem.model, self.chosen)
            for _ in range(refined):
                assigner = assigner.refined()
        while not meter.exhausted and assigner.tensors > 1:
            best_first = np.argsort(values, kind="stable")
            keys, values = keys[best_first], values[best_first]
            meter.checkpoint(
                {"rng": generator_state(rng), "keys": keys, "values": values, "refined": np.array(refined)}
            )
            meter.progress(mean_ps=float(values.mean()))
            elite = round(_ELITE * self.population)
            keys[elite:] = self._next(rng, keys, elite)
            values[elite:] = self._scored(meter, assigner, keys[elite:])
        return meter.solution()

    def _first(self, rng: Rng, tensors: int) -> Float64:
        """Its own order, that order more and more shaken, and orders at random."""
        own = (np.arange(tensors) + 0.5) / max(1, tensors)
        keys = rng.random((self.population, tensors))
        shaken = self.population // 2
        strength = np.linspace(0.0, 0.5, shaken)[:, None]
        keys[:shaken] = own + strength * (keys[:shaken] - 0.5)
        return keys

    def _next(self, rng: Rng, keys: Float64, elite: int) -> Float64:
        """All but the elite of the next generation; `keys` are sorted, the best first."""
        children = self.population - elite - round(_MUTANTS * self.population)
        better = keys[rng.integers(0, elite, children)]
        other = keys[rng.integers(elite, self.population, children)]
        crossed = np.where(rng.random(better.shape) < _BIAS, better, other)
        mutants = rng.random((self.population - elite - children, keys.shape[1]))
        return np.concatenate([crossed, mutants])

    def _scored(self, meter: Meter, assigner: Assigner, keys: Float64) -> Int64:
        """[K] times; those beyond the budget are left out of the count."""
        orders: Int32 = np.argsort(keys, axis=1, kind="stable").astype(np.int32)
        values = assigner.totals(orders, self.threads)
        problem = meter.problem
        meter.take_many(values, lambda row: problem.decision(assigner.plan(orders[row])))
        return values
