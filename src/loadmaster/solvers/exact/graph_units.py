"""What an exact model of GraphOptimization is about: steps, who decides where they run, and tensors
that move between them.

With fusion given, steps are clusters. With fusion decided, every node is a step of its least cost:
the members of a cluster fit one after another into its time on its device, so every plan is still
one of the model, and the model's optimum a bound. A node that can be fused goes where its cluster
goes, which need not be the device of its own group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization
from loadmaster.problems.graph.bounds import least_costs
from loadmaster.problems.graph.groups import first_ops
from loadmaster.program.hazards import overwrite_waits, places, root_writers
from loadmaster.program.program import PERSISTENT, Program, TensorKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

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
    """Steps are numbered by their smallest op; a choice is what goes to one device as a whole."""

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


def units_of(problem: GraphOptimization, clusters: Int32 | None = None) -> Units:
    """Of a problem; with `clusters`, as if that fusion were given."""
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
    for root in _roots(program, PERSISTENT):
        op = first_op.get(int(program.tensor_group[root]), -1)
        if op >= 0:
            homes[root] = choice[int(step_of[op])]
        elif not free and root in readers:  # which step reads first depends on fusion
            homes[root] = choice[readers[root]]
    return homes


def _roots(program: Program, kinds: tuple[TensorKind, ...]) -> list[int]:
    own = program.tensor_alias == np.arange(program.n_tensors)
    found = np.flatnonzero(own & np.isin(program.tensor_kind, [int(kind) for kind in kinds]))
    return [int(root) for root in found]


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
    place = places(program)
    size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(size, place[program.tensor_alias], program.storage_bytes)
    at: dict[int, int] = {}
    for root, home in homes.items():
        at.setdefault(int(place[root]), home)
    return [(home, int(size[number])) for number, home in at.items()]
