"""GraphOptimization of small graphs by CP-SAT: a plan that is timed like any other, and a bound.

Where fusion is decided there are two models: one of the base plan's clusters for an answer, and one
of single nodes at their least costs for the bound (see `find_units`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.errors import LoadmasterError, require
from loadmaster.graph import GraphOptimization
from loadmaster.graph.bounds import least_costs
from loadmaster.graph.groups import first_ops
from loadmaster.machine.machine import Machine
from loadmaster.program.hazards import overwrite_waits, place_bytes, places, root_writers
from loadmaster.program.program import Program, TensorKind
from loadmaster.search.or_tools import Value, run_cp_sat
from loadmaster.search.solver import Meter, Solution, Solver, State, Status
from loadmaster.units import PICOSECONDS

MOST_DEVICES = 4
MOST_STEPS_WITH_MEMORY = 60
"""Of larger graphs only what is held for ever counts."""
ANSWER_SHARE = 0.5
"""Of the time, where an answer and a bound have models of their own."""
_LARGEST = 2**42
"""Times above are divided: rounded down, which keeps the bound a bound."""

UNABLE = 2**61
"""Costs from here on: it can't run there."""


@dataclass
class Moving:
    """A root tensor that other steps than its writer read."""

    root: int
    writer: int
    """Its step, or -1: given."""
    home: int
    """The choice that says where it is at home, or -1: not known, so that no transfer counts."""
    readers: list[int] = field(default_factory=list)
    """Steps, each once."""
    repeat: int = 1


@dataclass
class Units:
    """What an exact model is about: steps, who decides where they run, and tensors that move between
    them. Steps are numbered by their smallest op; a choice is what goes to one device as a whole."""

    cost: Int64
    """[steps, D] ps, repeats included; UNABLE or more: it can't run there"""
    choice: list[int]
    """[steps]"""
    group: list[int]
    """[choices] the group that it stands for, or -1"""
    device: list[int]
    """[choices] where it is, or -1: to be decided"""
    tensors: list[Moving]
    waits: list[tuple[int, int]]
    """(step, step that writes over what it uses)"""
    kept: list[tuple[int, int]]
    """(choice, bytes) of places that weights and moments hold for ever"""
    first_node: Int64
    """[steps]"""
    step: Int32
    """[n] of each node"""

    @property
    def steps(self) -> int:
        return len(self.cost)


def find_units(problem: GraphOptimization, clusters: Int32 | None = None) -> Units:
    """The units of a problem; with `clusters` [n_ops], as if that fusion were given.

    With fusion given, steps are clusters. With fusion decided, every node is a step of its least cost:
    the members of a cluster fit one after another into its time on its device, so every plan is still
    one of the model, and the model's optimum a bound. A node that can be fused goes where its cluster
    goes, which need not be the device of its own group.
    """
    program, nodes = problem.program, problem.node_op
    free = "fusion" in problem.tasks and clusters is None
    cost, step = least_costs(problem, clusters)
    first = np.unique(step, return_index=True)[1].astype(np.int64)
    choice, group = _choices(problem, step, len(cost), free)
    device = [-1] * len(group)
    if "placement" not in problem.tasks:
        base = problem.split(problem.vector())[1]
        for number in range(len(cost)):
            device[choice[number]] = int(base[problem.node_group[first[number]]])
    step_of = np.full(program.n_ops, -1, dtype=np.int64)
    step_of[nodes] = step
    tensors = _tensors(program, step_of, choice, nodes[first], free)
    kept = _kept(program, _homes(program, step_of, choice, free))
    waits = np.unique(step_of[overwrite_waits(program)], axis=1).T.tolist()
    others = [(user, writer) for user, writer in waits if user != writer]
    return Units(cost, choice, group, device, tensors, others, kept, first, step)


def _choices(problem: GraphOptimization, step: Int32, steps: int, free: bool) -> tuple[list[int], list[int]]:
    """([steps] choice of each step, [choices] group or -1)."""
    hard = problem.hard[problem.node_op] >= 0
    known: dict[int, int] = {}
    choice, lead = [-1] * steps, [-1] * steps
    group: list[int] = []
    for node, number in enumerate(step.tolist()):  # the first with a hard group, else the first
        if lead[number] < 0 or (hard[node] and not hard[lead[number]]):
            lead[number] = node
    follows = problem.touched[problem.node_op] == 0
    for number, node in enumerate(lead):
        of = int(problem.node_group[node])
        if free and not follows[node] and not hard[node]:
            choice[number] = len(group)
            group.append(-1)
            continue
        if of not in known:
            known[of] = len(group)
            group.append(of)
        choice[number] = known[of]
    return choice, group


def _homes(program: Program, step_of: Int64, choice: list[int], free: bool) -> dict[int, int]:
    """Weight or moment -> choice of its home, as far as it is known."""
    first_op = first_ops(program)
    readers: dict[int, int] = {}
    roots = program.tensor_alias[program.read_tensor].tolist()
    for root, op in zip(roots, program.read_op.tolist(), strict=True):
        if not program.op_view[op]:
            readers[root] = min(readers.get(root, 2**31), int(step_of[op]))
    homes = {}
    for root in np.flatnonzero(program.is_root & program.is_persistent).tolist():
        op = first_op.get(int(program.tensor_group[root]), -1)
        if op >= 0:
            homes[root] = choice[int(step_of[op])]
        elif not free and root in readers:  # which step reads first depends on fusion
            homes[root] = choice[readers[root]]
    return homes


def _tensors(
    program: Program, step_of: Int64, choice: list[int], first_op: Int32, free: bool
) -> list[Moving]:
    writers = root_writers(program)
    homes = _homes(program, step_of, choice, free)
    found: dict[int, Moving] = {}
    roots = program.tensor_alias[program.read_tensor].tolist()
    for root, op in sorted(zip(roots, program.read_op.tolist(), strict=True)):
        if program.op_view[op] or program.tensor_kind[root] == TensorKind.INPUT:
            continue
        maker, reader = int(writers[root]), int(step_of[op])
        writer = int(step_of[maker]) if maker >= 0 else -1
        if writer == reader:
            continue
        if root not in found:
            home = choice[writer] if writer >= 0 else homes.get(root, -1)
            repeat = int(program.op_repeat[first_op[writer]]) if writer >= 0 else 1
            found[root] = Moving(root, writer, home, repeat=repeat)
        if reader not in found[root].readers:
            found[root].readers.append(reader)
    return list(found.values())


def _kept(program: Program, homes: dict[int, int]) -> list[tuple[int, int]]:
    """Each place once, at the home of one of its weights or moments."""
    place, size = places(program), place_bytes(program)
    at: dict[int, int] = {}
    for root, home in homes.items():
        at.setdefault(int(place[root]), home)
    return [(home, int(size[number])) for number, home in at.items()]


class GraphModel:
    """Steps, transfers and memory as a CP-SAT model.

    Every plan that fits is one of its solutions, with starts of its own, so that the least makespan is
    a bound of them all; a plan may wait on purpose.

    Args:
      most: a time that some plan is known to keep, or None.
      memory: whether results take room as well, where there are few steps.
    """

    def __init__(
        self, cp_model: Any, problem: GraphOptimization, units: Units, most: int | None, memory: bool
    ) -> None:
        self.problem, self.units = problem, units
        self.model = cp_model.CpModel()
        machine = problem.machine
        self.devices = range(problem.devices)
        self.homes = sorted({machine.home[d] for d in self.devices})
        self.transfer_ps = {moving.root: self._transfers(moving) for moving in units.tensors}
        horizon = most if most is not None else self._horizon()
        self.unit = max(1, -(-horizon // _LARGEST))  # nothing may take any time
        self.horizon = horizon // self.unit
        self.end = self.model.new_int_var(0, self.horizon, "end")
        self._choose()
        self._steps()
        self.sent: dict[tuple[int, int, int], tuple[Any, Any, Any]] = {}
        """(root, from home, to home) -> its literal, start and end."""
        self._move()
        self._hold_for_ever()
        if memory and units.steps <= MOST_STEPS_WITH_MEMORY:
            self._hold_results()
        self.model.minimize(self.end)

    def _transfers(self, moving: Moving) -> dict[tuple[int, int], int]:
        """(from, to) -> ps, for pairs of memories with a link."""
        machine, bytes_ = self.problem.machine, int(self.problem.program.storage_bytes[moving.root])
        found = {}
        for ends, number in machine.link_between.items():
            link = machine.links[number]
            once = max(1, link.latency - (-bytes_ * PICOSECONDS // link.bandwidth))
            found[ends] = once * moving.repeat
        return found

    def _horizon(self) -> int:
        """All steps and all transfers one after another, on the slowest."""
        able = np.where(self.units.cost < UNABLE, self.units.cost, 0).max(axis=1)
        total = sum(int(cost) for cost in able)
        for of in self.transfer_ps.values():
            total += max(of.values(), default=0) * len(self.homes)
        return total

    def _choose(self) -> None:
        """Where each choice is: a literal for every device, and for every memory."""
        model, machine = self.model, self.problem.machine
        self.on: list[list[Any]] = []
        self.at: list[dict[int, Any]] = []
        for given in self.units.device:
            row = [model.new_bool_var("") for _ in self.devices]
            model.add_exactly_one(row)
            if given >= 0:
                model.add(row[given] == 1)
            self.on.append(row)
            memories: dict[int, Any] = {}
            for home in self.homes:
                near = [row[d] for d in self.devices if machine.home[d] == home]
                memories[home] = near[0] if len(near) == 1 else sum(near)
            self.at.append(memories)

    def _steps(self) -> None:
        model, units = self.model, self.units
        self.start, self.stop = [], []
        by_device: list[list[Any]] = [[] for _ in self.devices]
        work: list[list[Any]] = [[] for _ in self.devices]
        for step in range(units.steps):
            start = model.new_int_var(0, self.horizon, "")
            stop = model.new_int_var(0, self.horizon, "")
            model.add(stop <= self.end)
            on, lengths = self.on[units.choice[step]], []
            for d in self.devices:
                cost = int(units.cost[step, d])
                if cost >= UNABLE:
                    model.add(on[d] == 0)
                    continue
                length = cost // self.unit
                lengths.append(length * on[d])
                work[d].append(length * on[d])
                by_device[d].append(model.new_optional_fixed_size_interval_var(start, length, on[d], ""))
            model.add(stop == start + sum(lengths))
            self.start.append(start)
            self.stop.append(stop)
        for user, writer in units.waits:
            model.add(self.start[writer] >= self.stop[user])
        for d in self.devices:
            model.add_no_overlap(by_device[d])
            if work[d]:
                model.add(sum(work[d]) <= self.end)

    def _move(self) -> None:
        """A tensor is sent once to each memory from which somebody else reads it."""
        model, units = self.model, self.units
        engines: dict[str, list[Any]] = {}
        for moving in units.tensors:
            if moving.writer >= 0:
                for reader in moving.readers:
                    model.add(self.start[reader] >= self.stop[moving.writer])
            away = sorted({units.choice[r] for r in moving.readers} - {moving.home})
            if moving.home < 0 or not away:
                continue
            for to in self.homes:
                for source in self.homes:
                    if source != to:
                        self._send(moving, away, source, to, engines)
        for intervals in engines.values():
            model.add_no_overlap(intervals)

    def _send(
        self, moving: Moving, away: list[int], source: int, to: int, engines: dict[str, list[Any]]
    ) -> None:
        """A tensor from one memory to another, if it is at home in the one and choices `away` are in the
        other; its interval joins those of the engines that carry it."""
        model, machine = self.model, self.problem.machine
        here = self.at[moving.home][source]
        length = self.transfer_ps[moving.root].get((source, to))
        if length is None:  # no way: not both
            for choice in away:
                model.add(here + self.at[choice][to] <= 1)
            return
        length //= self.unit
        sent = model.new_bool_var("")
        start = model.new_int_var(0, self.horizon, "")
        for choice in away:
            model.add(sent >= here + self.at[choice][to] - 1)
        model.add(sent <= here)
        interval = model.new_optional_fixed_size_interval_var(start, length, sent, "")
        for engine in machine.links[machine.link_between[source, to]].engines:
            engines.setdefault(engine, []).append(interval)
        if moving.writer >= 0:
            model.add(start >= self.stop[moving.writer]).only_enforce_if(sent)
        self.sent[moving.root, source, to] = (sent, start, start + length)
        for reader in moving.readers:
            choice = self.units.choice[reader]
            if choice != moving.home:
                self._when(sent, self.at[choice][to], self.start[reader] >= start + length)

    def _when(self, a: Any, b: Any, constraint: Any) -> None:
        """If both: `b` may be a sum of literals, of which at most one is true."""
        both = self.model.new_bool_var("")
        self.model.add(both >= a + b - 1)
        self.model.add(constraint).only_enforce_if(both)

    def _hold_for_ever(self) -> None:
        machine = self.problem.machine
        for home in self.homes:
            held = [_aligned(size, machine, home) * self.at[choice][home] for choice, size in self.units.kept]
            if held:
                self.model.add(sum(held) <= machine.memories[home].capacity)

    def _hold_results(self) -> None:
        """Results from the start of their step to the end of their last use, in their own memory
        and as copies in others. Tensors that share a place, and inputs, are left out."""
        model, units, program = self.model, self.units, self.problem.program
        machine, place = self.problem.machine, places(program)
        alone = np.bincount(place[program.is_root], minlength=program.n_tensors) == 1
        rooms: dict[int, list[tuple[Any, int]]] = {home: [] for home in self.homes}
        for choice, size in units.kept:
            for home in self.homes:
                whole = model.new_optional_fixed_size_interval_var(
                    0, self.horizon, self._literal(self.at[choice][home]), ""
                )
                rooms[home].append((whole, _aligned(size, machine, home)))
        for moving in units.tensors:
            if not alone[moving.root] or moving.writer < 0 or moving.home < 0:
                continue
            size = int(program.storage_bytes[moving.root])
            kept = program.tensor_kind[moving.root] == TensorKind.OUTPUT
            for home in self.homes:
                here = self._literal(self.at[moving.home][home])
                last = model.new_int_var(0, self.horizon, "")
                model.add(last >= self.stop[moving.writer])
                if kept:
                    model.add(last >= self.end).only_enforce_if(here)
                for reader in moving.readers:
                    self._when(here, self.at[units.choice[reader]][home], last >= self.stop[reader])
                for to in self.homes:
                    if (moving.root, home, to) in self.sent:
                        sent, _, end = self.sent[moving.root, home, to]
                        model.add(last >= end).only_enforce_if(sent)
                        copy = self._copy(moving, sent, home, to)
                        rooms[to].append((copy, _aligned(size, machine, to)))
                span = self._span(self.start[moving.writer], last, here)
                rooms[home].append((span, _aligned(size, machine, home)))
        for home, held in rooms.items():
            room = machine.memories[home].capacity
            model.add_cumulative([span for span, _ in held], [size for _, size in held], room)

    def _copy(self, moving: Moving, sent: Any, home: int, to: int) -> Any:
        _, start, end = self.sent[moving.root, home, to]
        last = self.model.new_int_var(0, self.horizon, "")
        self.model.add(last >= end).only_enforce_if(sent)
        for reader in moving.readers:
            self._when(sent, self.at[self.units.choice[reader]][to], last >= self.stop[reader])
        return self._span(start, last, sent)

    def _span(self, start: Any, last: Any, present: Any) -> Any:
        length = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_optional_interval_var(start, length, last, present, "")

    def _literal(self, of: Any) -> Any:
        """A sum of literals of which at most one is true, as a literal."""
        literal = self.model.new_bool_var("")
        self.model.add(literal == of)
        return literal


def _aligned(size: int, machine: Machine, home: int) -> int:
    alignment = machine.memories[home].alignment
    return -(-size // alignment) * alignment


class CpSat(Solver):
    """`most_groups`, `most_steps`: larger graphs are refused, since nothing would be proved. `work`:
    see `run_cp_sat`."""

    name, problem_kind = "cp-sat", "graph"
    summary = "OR-tools' CP-SAT on small graphs, with a bound (needs: pip install 'loadmaster[exact]')"
    deterministic = True

    def __init__(self, most_groups: int = 150, most_steps: int = 1_000, work: float | None = None) -> None:
        self.most_groups, self.most_steps = int(most_groups), int(most_steps)
        self.work = work
        self.options = {"most_groups": self.most_groups, "most_steps": self.most_steps, "work": work}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        self._check(problem)
        cp_model = require("ortools.sat.python.cp_model", "exact")
        if not meter.exhausted:
            meter.evaluate(problem.vector())
        if not meter.exhausted and "schedule" in problem.tasks:
            meter.evaluate(problem.vector(schedule=np.zeros(problem.nodes)))
        infeasible = False
        if "fusion" in problem.tasks:
            if not meter.exhausted:
                answer = find_units(problem, problem.base_clusters)
                _solve(cp_model, meter, problem, answer, seed, self.work, share=ANSWER_SHARE, proves=False)
            if not meter.exhausted:
                infeasible = _solve(
                    cp_model, meter, problem, find_units(problem), seed, self.work, answers=False
                )
        elif not meter.exhausted:
            infeasible = _solve(cp_model, meter, problem, find_units(problem), seed, self.work)
        return meter.solution(infeasible=infeasible)

    def _check(self, problem: GraphOptimization) -> None:
        for what, count, most in (
            ("groups", problem.groups, self.most_groups),
            ("devices", problem.devices, MOST_DEVICES),
            ("ops", problem.nodes, self.most_steps),
        ):
            if count > most:
                raise LoadmasterError(
                    f"'{problem.program.name}' has {count} {what}, too many for cp-sat (at most {most})",
                    object=problem.program.name,
                    number=count,
                    remedy="use anneal or brkga",
                )


def _solve(
    cp_model: Any,
    meter: Meter,
    problem: GraphOptimization,
    units: Units,
    seed: int,
    work: float | None,
    *,
    share: float = 1.0,
    answers: bool = True,
    proves: bool = True,
) -> bool:
    """Solve one model: submit what it finds if it `answers`, raise the bound if it `proves`. True:
    no plan fits."""
    # The best so far is a plan of the model, unless its clusters are others.
    most = meter.best_value if proves else None
    made = GraphModel(cp_model, problem, units, most, memory=answers)

    def submit(value: Value) -> None:
        devices = [next(d for d in made.devices if value(row[d])) for row in made.on]
        _submit(meter, problem, units, devices, [value(v) for v in made.start])

    result = run_cp_sat(made.model, meter, seed, found=submit if answers else None, work=work, share=share)
    if not proves:
        return False
    if result.status == Status.INFEASIBLE:
        return most is None
    if result.bound is not None:
        bound = result.bound * made.unit
        if most is not None:
            bound = min(bound, meter.best_value if meter.best_value is not None else most)
        meter.raise_bound(bound, "CP-SAT")
    return False


def _submit(
    meter: Meter, problem: GraphOptimization, units: Units, devices: list[int], starts: list[int]
) -> None:
    """The devices with the order in which steps start, and with the order left to the ties."""
    device = problem.split(problem.vector())[1].copy()
    for group, where in zip(units.group, devices, strict=True):
        if group >= 0:
            device[group] = where
    keys: list[Float64 | None] = [None]
    if "schedule" in problem.tasks:
        rank = np.unique(np.array(starts), return_inverse=True)[1][units.step]
        keys = [1.0 - rank / (rank.max(initial=0) + 1), np.zeros(problem.nodes)]
    for key in keys:
        if meter.evaluations_left != 0:
            meter.evaluate(problem.vector(device=device, schedule=key))
