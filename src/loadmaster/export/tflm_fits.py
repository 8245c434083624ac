"""Does a TFLite model fit a microcontroller's arena, and what would make it fit?

The answer is about the whole arena of TFLite Micro (`tflm_arena`), not its planned part alone. Ways are tried
from the one that changes least to the one that changes most: the file as it is, another order of its operators,
shared places, bands of rows (`tflm_rewrite`). A 'no' is proven for every order of the operators; that no
rewriting helps is searched, not proven, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError, NoAnswer, Refused, nearest
from loadmaster.export.plans import NotExported, check_other_file
from loadmaster.export.tflm import SEEDS, ArenaPlan
from loadmaster.export.tflm_arena import (
    ALIGNMENT,
    HOST,
    TARGETS,
    Arena,
    Target,
    carried_offsets,
    compute_arena,
    damaged,
    round_up,
    scratch_requests,
)
from loadmaster.export.tflm_bands import Smaller, make_smaller
from loadmaster.export.tflm_file import Micro, are_identical
from loadmaster.export.tflm_measure import (
    can_measure,
    check_survives,
    find_hindrance,
    measure_arena,
    read_arena,
)
from loadmaster.export.tflm_rewrite import Packed, make_buffers, make_draft, share
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import load_machine
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.plan import Plan
from loadmaster.planner.fitting import Fits, fits
from loadmaster.program.importers.tflite.importer import Imported, import_with_places
from loadmaster.program.importers.tflite.read import ABSENT, TfliteModel, read_bytes, read_tflite
from loadmaster.program.program import Program
from loadmaster.runs.bank import Bank
from loadmaster.search.pins import Pins
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, solve
from loadmaster.units import UNLIMITED

SECONDS = 20.0
AS_IT_IS, ORDER, SHARED, BANDS = "as it is", "order and offsets", "shared places", "bands of rows"
_CALLS = ("IF", "WHILE", "CALL")
_NAMED = 6
MOST_REWRITTEN = 2**25
"""Planned bytes: every byte of it is followed through all steps, and no microcontroller has as many."""


@dataclass(frozen=True)
class Way:
    """A model that computes the same, and its arena."""

    name: str
    arena: Arena
    text: str = ""
    smaller: Smaller | None = None

    @property
    def row(self) -> dict[str, Any]:
        draft = None if self.smaller is None else self.smaller.packed.draft
        arena = self.arena.account()
        return {
            "what": "way",
            "way": self.name,
            "arena_bytes": arena.total,
            "planned_bytes": arena.planned,
            "persistent_bytes": arena.persistent,
            "startup_bytes": arena.startup,
            "measured": arena.measured is not None,
            "extra_macs": 0.0 if draft is None else draft.extra_macs,
            "text": self.text,
        }


@dataclass(frozen=True)
class MicroFit:
    """The answer."""

    source: str
    machine: str
    target: str
    memory: str
    """The fastest memory that holds the arena of `way`; of none, the largest."""
    capacity: int
    answer: bool | None
    """None: no order was proven impossible, and none was found that fits."""
    ways: tuple[Way, ...]
    need: int
    """Proven: no order of the operators has an arena of fewer bytes, without shared places and bands."""
    blame: str
    """Who holds most at once, in a sentence."""
    flash_bytes: int
    """Of the file that fits, or of the file as it is: weights and all."""
    flash_capacity: int | None = None
    """Of the memory that the file lies in, where the machine names one."""
    memories: tuple[tuple[str, int], ...] = ()
    """Where an arena may lie, fastest first."""
    files: tuple[Path, ...] = ()
    advice: tuple[str, ...] = ()
    """What would help and is not ours to do."""
    budget: int | None = None
    """A limit of the user's own below the memories' bytes; None: they alone are the limit."""
    hindrance: str = ""
    """Why the interpreter that is installed here does not run the model, if so: an arena alone is not enough."""

    @property
    def room(self) -> str:
        """What there is for the arena, in words."""
        if self.budget is not None and self.capacity == self.budget:
            where = f" in '{self.memory}'" if self.answer else ""
            return f"the budget is {self.capacity:,} bytes{where}"
        return f"'{self.memory}' has {self.capacity:,} bytes"

    @property
    def way(self) -> Way:
        """The first way that fits, or the one that needs least."""
        fitting = [way for way in self.ways if way.arena.total <= self.capacity]
        return fitting[0] if fitting else min(self.ways, key=lambda way: way.arena.total)

    @property
    def excess(self) -> int:
        return max(0, self.way.arena.total - self.capacity) if self.answer is not True else 0

    def error(self) -> LoadmasterError | None:
        """What to raise where the answer is not yes."""
        if self.answer:
            return None
        if self.flash_capacity is not None and self.flash_bytes > self.flash_capacity:
            return Refused(
                f"the file has {self.flash_bytes:,} bytes and the flash {self.flash_capacity:,}",
                object=self.source,
                number=self.flash_bytes,
                remedy="give a smaller model, or a machine with more flash",
            )
        text = f"{self.room} and the arena needs {self.way.arena.total:,}"
        remedy = f"a memory of {self.way.arena.total:,} bytes"
        if self.answer is None:
            more = "give more --time-limit" if len(self.ways) > 1 or self.need else remedy
            return NoAnswer(text, object=self.memory, number=self.excess, remedy=more)
        return Refused(text, object=self.memory, number=self.excess, remedy=remedy)


def fit_micro(
    source: str,
    machine: Machine,
    *,
    target: str | None = None,
    budget: int | None = None,
    keep_order: bool = False,
    rewrite: bool = True,
    everything: bool = False,
    seconds: float = SECONDS,
    measure: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> MicroFit:
    """Say whether the arena of a .tflite file fits a machine, and by which way.

    Args:
      source: the file.
      machine: `arena:SIZE`, or a chip: then the memories of its table `export.tflm`, or all of them.
      target: 'host', 'cortex-m', 'cortex-m55' or '32-bit'; None: what the machine says, else the host.
      budget: a limit of the arena's bytes below the memories' own; the file in flash is not under it.
      keep_order: leave the operators in their order.
      rewrite: whether places may be shared and stretches split.
      everything: try every way, even where an earlier one fits.
      seconds: for the search of an order.
      measure: ask the interpreter; None: if it is installed, and the target is the host.
      say: hears what takes long.
    """
    data = read_bytes(source)
    model = read_tflite(data, source)
    about = machine.export.get("tflm", {})
    name = target or str(about.get("target", "host"))
    if name not in TARGETS:
        raise NotExported(
            f"there is no target '{name}'{nearest(name, list(TARGETS))}",
            object=name,
            remedy=f"use {', '.join(TARGETS)}",
        )
    memories = list_memories(machine)
    if budget is not None:
        memories = [(each, min(capacity, budget)) for each, capacity in memories]
    most = max(capacity for _, capacity in memories)
    search = _Search(source, data, model, TARGETS[name], measure, seconds, say)
    need = 0
    with damaged(source):
        ways = [search.as_it_is()]
        first = ways[0].arena
        blame = describe_startup(model, first) if first.is_startups else describe_peak(model, search.target)
        if everything or ways[0].arena.total > most:
            rewritable = (
                not {op.name for op in model.graphs[0].operators} & set(_CALLS)
                and ways[0].arena.planned <= MOST_REWRITTEN
            )
            if rewritable and not keep_order:
                found, need = search.other_order(ways[0])
                ways += [found] if found is not None else []
            if rewritable and rewrite and (everything or ways[-1].arena.total > most):
                ways += search.rewritten(ways, 0 if everything else most, keep_order)
    best = next((way for way in ways if way.arena.total <= most), None)
    flash = machine.memories[machine.memory(str(about["weights"]))].capacity if "weights" in about else None
    answer = True if best is not None else (False if need > most or keep_order else None)
    file_bytes = len(data if best is None or best.smaller is None else best.smaller.data)
    if flash is not None and file_bytes > flash:
        answer = False
    total = (best or min(ways, key=lambda way: way.arena.total)).arena.total
    memory, capacity = next(
        ((m, c) for m, c in memories if total <= c), max(memories, key=lambda each: each[1])
    )
    return MicroFit(
        source,
        machine.name,
        name,
        memory,
        capacity,
        answer,
        tuple(ways),
        need,
        blame,
        file_bytes,
        flash,
        tuple(memories),
        advice=tuple(give_advice(model, total, memories)),
        budget=budget,
        hindrance="" if measure is False else search.hindrance(ways[0].arena),
    )


def list_memories(machine: Machine) -> list[tuple[str, int]]:
    """Memories that an arena may lie in, fastest first, with their bytes."""
    named = machine.export.get("tflm", {}).get("arena")
    names = list(machine.devices[0].memories) if named is None else [str(each) for each in named]
    return [(name, machine.memories[machine.memory(name)].capacity) for name in names if name != "flash"][
        -1 if machine.name.startswith("arena:") else 0 :
    ]


def describe_peak(model: TfliteModel, target: Target = HOST) -> str:
    """Who holds most bytes at once, in the file's own order."""
    draft = make_draft(model)
    pieces = share(draft, in_place=False)
    buffers, roots = make_buffers(draft, pieces, target)
    times, live = buffers.live_profile()
    if not len(times) or not draft.steps:
        return "nothing is planned"
    peak = min(int(times[int(np.argmax(live))]), len(draft.steps) - 1)
    alive = [n for n, (first, end) in enumerate(draft.life) if first <= peak < end]
    here = []
    for root in roots:
        # Tensors that show one place have one buffer, which need not be in use from end to end.
        members = [n for n in alive if pieces[n].root == root]
        if members:
            low = min(pieces[n].at for n in members)
            high = max(pieces[n].at + draft.tensors[n].size for n in members)
            largest = max(members, key=lambda n: draft.tensors[n].size)
            here.append((draft.graph.tensors[largest].name, round_up(high - low)))
    source = draft.steps[peak].source
    if source is not None:
        requests = scratch_requests(draft.graph, draft.graph.operators[source], target)
        here += [("scratch", round_up(count)) for count in requests]
    here.sort(key=lambda each: -each[1])
    named = " + ".join(f"{count:,} ({_short(name)})" for name, count in here[:_NAMED])
    more = f" and {len(here) - _NAMED} more" if len(here) > _NAMED else ""
    return f"operator {peak} ({draft.steps[peak].name}) holds {int(live.max()):,} bytes: {named}{more}"


def describe_startup(model: TfliteModel, arena: Arena) -> str:
    """What an arena is for where start-up needs more of it than the tensors."""
    tensors = sum(len(graph.tensors) for graph in model.graphs)
    operators = sum(len(graph.operators) for graph in model.graphs)
    return (
        f"start-up, with {operators} operators and {tensors} tensors: {arena.persistent:,} bytes for them stay for good, "
        f"lists and requests take the rest while it lasts; planned tensors are {arena.planned:,}"
    )


def give_advice(model: TfliteModel, total: int, memories: list[tuple[str, int]]) -> Iterator[str]:
    """What would help and no rewriting does: other inputs, another memory."""
    graph = model.graphs[0]
    calling = sorted({operator.name for operator in graph.operators} & set(_CALLS))
    if calling:
        yield f"a model without {', '.join(calling)}: graphs that call others are not reordered, shared or split"
    for at, operator in enumerate(graph.operators):
        if (
            operator.name == "QUANTIZE"
            and operator.inputs[0] in graph.inputs
            and ABSENT not in operator.outputs
        ):
            x, out = graph.tensors[operator.inputs[0]], graph.tensors[operator.outputs[0]]
            if out.bytes < x.bytes:
                yield (
                    f"convert the model with {out.dtype} inputs: operator {at} (QUANTIZE) takes {x.bytes:,} bytes "
                    f"that would be {out.bytes:,}"
                )
    holding = [f"'{name}' ({capacity:,})" for name, capacity in memories if capacity >= total]
    if len(memories) > 1 and holding:
        yield f"memories that hold it: {', '.join(holding)}"


def _short(name: str) -> str:
    tail = name.split(";")[-1]
    return tail if len(tail) <= 32 else f"…{tail[-31:]}"


class _Search:
    def __init__(
        self,
        source: str,
        data: bytes,
        model: TfliteModel,
        target: Target,
        measure: bool | None,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self.source, self.data, self.model, self.target, self.say = source, data, model, target, say
        self.measure = (can_measure() if measure is None else measure) and target == HOST
        self.seconds = seconds
        self.orders: list[list[int]] = []
        self.floor = 0

    def _measured(self, data: bytes, computed: Arena) -> Arena:
        return measure_arena(data, computed) if self.measure else computed

    def as_it_is(self) -> Way:
        computed = compute_arena(self.model, self.target, offsets=carried_offsets(self.model))
        return Way(AS_IT_IS, self._measured(self.data, computed), "TFLite Micro's own planner")

    def hindrance(self, arena: Arena) -> str:
        if arena.measured is not None:
            return ""
        return find_hindrance(self.data, arena.total)

    def other_order(self, first: Way) -> tuple[Way | None, int]:
        """The order with the least peak; and what every order needs, by proof."""
        self.say(f"{self.source}: seeking another order of the operators")
        scratch = {
            i: sum(requests)
            for i, op in enumerate(self.model.graphs[0].operators)
            if (requests := scratch_requests(self.model.graphs[0], op, self.target))
        }
        imported = import_with_places(self.data, scratch=scratch)
        arena = _aligned_arena()
        problem = PeakOrder(imported.program, arena)
        solution = solve(make_solver("order", "auto"), problem, Budget(seconds=self.seconds))
        need = max(int(solution.bound.value) + self._least_persistent(first.arena), first.arena.listed)
        if solution.decision is None:
            return None, need
        order = _operator_order(self.model, imported, arena, problem.plan(solution.decision))
        self.orders = [order]
        found = make_smaller(self.model, [order], in_place=False, bands=False, target=self.target)
        proven = solution.value is not None and solution.value <= solution.bound.value
        text = "order and offsets" + (", proven least of all orders" if proven else "")
        way = Way(ORDER, self._measured(found.data, found.arena), text, found)
        return (way if way.arena.total < first.arena.total else None), need

    def _least_persistent(self, arena: Arena) -> int:
        """What stays for good, at least: a proof must not owe anything to what was rounded up."""
        if not self.measure or arena.measured is None:
            return max(0, arena.persistent - 4 * ALIGNMENT)
        return Micro(self.data, arena.total).arena().tail - ALIGNMENT

    def rewritten(self, known: list[Way], enough: int, keep_order: bool) -> list[Way]:
        """Shared places; and bands of rows where these are not enough."""
        orders = [] if keep_order else self.orders
        self.say(f"{self.source}: seeking places to share and stretches to split")
        shared = make_smaller(self.model, orders, bands=False, target=self.target)
        least = min(way.arena.total for way in known)
        ways = []
        if shared.arena.total < least:
            ways = [Way(SHARED, self._measured(shared.data, shared.arena), "in place, no copies", shared)]
            if enough and ways[0].arena.total <= enough:
                return ways
        split = make_smaller(self.model, orders, target=self.target, enough=enough)
        if split.packed.draft.notes and split.arena.total < min(least, shared.arena.total):
            text = "; ".join(split.packed.draft.notes)
            ways.append(Way(BANDS, self._measured(split.data, split.arena), text, split))
        return ways


def _aligned_arena() -> Machine:
    machine = load_machine(f"arena:{UNLIMITED}")
    memories = tuple(replace(memory, alignment=16) for memory in machine.memories)
    return replace(machine, memories=memories, text="")


def _operator_order(model: TfliteModel, imported: Imported, machine: Machine, plan: Plan) -> list[int]:
    return ArenaPlan(model, imported, {}, machine, plan, 0).operators()


def fit_plan(
    source: str,
    program: Program,
    machine: Machine,
    pins: Pins,
    seconds: float,
    keep_order: bool,
    seed: int,
    bank: Bank | None = None,
) -> tuple[Fits, Arena]:
    """The answer of `plan --fits` for a .tflite file in one arena: offsets and order, about the whole arena."""
    data = read_bytes(source)
    arena = read_arena(data, measure=can_measure(), name=source)
    name = machine.memories[machine.home[0]].name
    capacity = machine.memories[machine.home[0]].capacity
    persistent = arena.persistent
    if arena.measured is not None:
        persistent = Micro(data, arena.total).arena().tail
    room = max(1, (capacity - persistent) // ALIGNMENT * ALIGNMENT)
    # The runtime rounds every tensor up to 16 bytes.
    memories = tuple(replace(m, alignment=max(m.alignment, ALIGNMENT)) for m in machine.memories)
    aligned = replace(machine, memories=memories, text="")
    inside = aligned if capacity >= UNLIMITED else aligned.with_capacity(name, room)
    found = fits(program, inside, seconds=seconds, keep_order=keep_order, pins=pins, seed=seed, bank=bank)
    least = arena.startup - ALIGNMENT
    enough = None if found.enough is None else max(least, found.enough + persistent)
    need = max(least, found.need + persistent)
    planned = found.need if found.enough is None else found.enough
    about = {**found.extra, "planned_bytes": planned}
    total = replace(found, capacity=capacity, need=need, enough=enough, extra=about)
    if need > capacity and found.answer is not False:
        total = replace(
            total, answer=False, plan=None, any_order=True, proof="start-up of TFLite Micro", op=None
        )
    return total, replace(arena, persistent=persistent)


def write_smaller(found: MicroFit, out: Path, *, verify: bool = True) -> MicroFit:
    """Write the model of the way that fits; it is run beside the original first, where it can be.

    Both must agree to the last bit, ours in an arena of exactly the bytes that are claimed."""
    check_other_file(found.source, out)
    way = found.way
    data = read_bytes(found.source) if way.smaller is None else way.smaller.data
    if verify and way.smaller is not None:
        # A target's arena is smaller than the host's structs would need.
        exact = way.arena.total if TARGETS[found.target] == HOST else None
        verify_same(read_bytes(found.source), data, way.smaller.packed, found.source, exact=exact)
    with replacing(out) as temporary:
        temporary.write_bytes(data)
    return replace(found, files=(out,), flash_bytes=len(data))


def verify_same(
    before: bytes,
    after: bytes,
    packed: Packed,
    name: str,
    seeds: Sequence[int] = SEEDS,
    exact: int | None = None,
) -> None:
    """Run both files on the same inputs, the second in an arena of `exact` bytes; other numbers are an error."""
    graph = packed.draft.graph
    room = sum(tensor.bytes for tensor in graph.tensors if not tensor.constant)
    check_survives(before, room, name)
    theirs, ours = Micro(before, room), Micro(after, room, exact)
    ends = len(graph.inputs), len(graph.outputs)
    first, second = ({seed: micro.run(seed, *ends) for seed in seeds} for micro in (theirs, ours))
    if not are_identical(first, second):
        raise Refused(
            "the rewritten model computes other numbers than the model",
            object=name,
            remedy="report this as a bug",
        )
