"""What is pinned is where it is pinned, whatever solver decides the rest; bad pins are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generate_graph import random_graph
from generate_mapping import layers, random_mapping, three_memories
from loadmaster.allocation.problem import ProgramAllocation
from loadmaster.errors import LoadmasterError, MissingPackage, Refused
from loadmaster.graph import GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan
from loadmaster.planner import make_problem
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.runs.session import solve
from loadmaster.search.pins import BadPin, Pins, parse_pins
from loadmaster.search.problem import Problem, keys
from loadmaster.search.registry import load_problem, make_labelled, solver_labels
from search.test_conformance import GAME_OPTIONS, GRAPH_TESTED_APART, MAPPING_OPTIONS

LEARNED = {"paper", "paper-prod", "policy-only"}
"""They play the same game as the searches, through the same moves."""


def _solved(problem: Problem, name: str, options: Any = None) -> Plan | None:
    try:
        solver = make_labelled(problem.kind, name, options)
        found = solve(problem, solver, seconds=None, evaluations=60)
    except MissingPackage as missing:
        pytest.skip(missing.message)
    if found.decision is None:
        return None
    plan = problem.plan(found.decision)
    assert problem.violations(plan) == []
    assert problem.value_of(plan) == found.value
    return plan


SLOW_TO_COMPILE = {"paper", "ea", "pg"}
MAPPED = [
    (name, ports)
    for name in solver_labels("mapping")
    for ports in ("serial", "parallel")
    if name not in SLOW_TO_COMPILE or (name, ports) == ("paper", "serial")
]


@pytest.mark.parametrize(("name", "ports"), MAPPED)
def test_mapping_solvers_keep_pins(name: str, ports: str) -> None:
    program, machine = layers(), three_memories(ports)
    pins = parse_pins(program, machine, ["t3=small@32", "w7=middle", "t5=large", "w2=small"])
    plan = _solved(Mapping(program, machine, pins=pins), name, MAPPING_OPTIONS.get(name))
    if plan is None:  # a search of few steps that begins with maps that do not fit
        assert name in ("ageing-evolution", "paper")
        return
    where = {program.tensor_name[row.tensor]: row for row in plan.residency_rows}
    memory = {n: machine.memories[row.memory].name for n, row in where.items()}
    assert [memory[n] for n in ("t3", "w7", "t5", "w2")] == ["small", "middle", "large", "small"]
    assert where["t3"].offset == 32


def test_pinned_maps_are_the_best_among_those_that_keep_the_pins() -> None:
    """Exact solving with pins against all maps of small random programs."""
    pytest.importorskip("ortools")
    tried = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng, 5)
        problem = Mapping(program, machine)
        live = np.flatnonzero(problem.live)
        if not 2 <= len(live) <= 4 or tried >= 6:
            continue
        entry = int(rng.choice(live))
        root = int(np.flatnonzero(problem.entries.of_tensor == entry)[0])
        memory = int(rng.integers(len(problem.memories)))
        pins = Pins({root: (problem.memories[memory], -1)})
        try:
            pinned = Mapping(program, machine, pins=pins)
        except Refused:  # it is larger than that memory
            alone = problem.all_slowest()
            alone[entry] = memory
            assert problem.evaluate(alone) is None
            continue
        every = np.array(list(np.ndindex(*[len(problem.memories)] * len(live))), dtype=np.int8)
        maps = np.tile(problem.all_slowest(), (len(every), 1))
        maps[:, live] = every
        values = problem.score(maps[maps[:, entry] == memory]).value
        best = min((int(v) for v in values if v >= 0), default=None)
        found = solve(pinned, "exact", seconds=None)
        if found.value is not None and not np.isin(-1, values).all():
            assert found.value == best, (seed, found.bound)
            assert found.bound.value <= found.value
            tried += 1
    assert tried == 6


@pytest.mark.parametrize("name", [n for n in solver_labels("graph") if n not in {*GRAPH_TESTED_APART, "go"}])
def test_graph_solvers_keep_pins(name: str) -> None:
    rng = np.random.default_rng(181)
    program, machine = random_graph(rng, 24)
    free = GraphOptimization(program, machine)
    can_run = free.durations >= 0
    ops = [int(op) for op, row in zip(free.node_op, can_run, strict=True) if row.all()][::5]
    chosen = {op: (number + 1) % len(machine.devices) for number, op in enumerate(ops[:3])}
    assert chosen and len(machine.devices) > 1
    try:
        problem = GraphOptimization(program, machine, pins=Pins({}, chosen))
    except Refused:
        pytest.fail("these pins do not contradict each other")
    plan = _solved(problem, name)
    assert plan is None or {op: int(plan.device[op]) for op in chosen} == chosen  # type: ignore[index]
    if name in ("anneal", "brkga", "classical", "random"):
        assert plan is not None


@pytest.mark.parametrize(
    "name", [n for n in solver_labels("malloc-game") if n not in {"production"} | LEARNED]
)
def test_game_solvers_keep_pins(name: str) -> None:
    program, machine = synthetic(4), load_machine("tpu-v4i:cmem=1MiB")
    free = MallocGame(program, machine)
    chosen = free.model.tensors.root[::2].tolist()
    problem = MallocGame(program, machine, pins=Pins(dict.fromkeys(chosen, (machine.home[0], -1))))
    assert problem.moves < free.moves
    plan = _solved(problem, name, GAME_OPTIONS.get(name))
    assert plan is not None
    fast = machine.reach[0][0]
    assert not {row.tensor for row in plan.residency_rows if row.memory == fast} & set(chosen)


@pytest.mark.parametrize("name", solver_labels("allocation"))
def test_allocation_solvers_keep_pins(name: str) -> None:
    program, machine = layers(), load_machine("arena:2KiB")
    pins = parse_pins(program, machine, ["t3=arena@512", "t4=arena@0", "w1=flash"])
    plan = _solved(ProgramAllocation(program, machine, pins=pins), name)
    if name in ("auto", "exact", "large"):
        assert plan is not None
    if plan is not None:
        offset = {program.tensor_name[row.tensor]: row.offset for row in plan.residency_rows}
        assert (offset["t3"], offset["t4"]) == (512, 0)


def test_pins_survive_a_run_folder(tmp_path: Path) -> None:
    program, machine = layers(), three_memories()
    pins = parse_pins(program, machine, ["t3=small@32", "w7=middle"])
    arena = load_machine("arena:2KiB")
    in_arena = parse_pins(program, arena, ["t3=arena@512"])
    graph, devices = random_graph(np.random.default_rng(181), 24)
    for problem in (
        Mapping(program, machine, pins=pins),
        ProgramAllocation(program, arena, pins=in_arena),
        GraphOptimization(graph, devices, pins=Pins({}, {int(np.flatnonzero(~graph.op_view)[0]): 0})),
    ):
        found = solve(problem, seconds=None, evaluations=50, folder=tmp_path)
        again = load_problem(found.run)
        assert again.pins == problem.pins and keys(again) == keys(problem)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("pins", "error", "words"),
    [
        (["t3=small", "t3=large"], Refused, "'t3=small' and --pin 't3=large' are about one place"),
        (["t33=small"], BadPin, "did you mean"),
        (["t3=smal"], LoadmasterError, "did you mean 'small'"),
        (["t3"], BadPin, "is not TENSOR=MEMORY"),
        (["t3=small@x"], BadPin, "no offset behind the '@'"),
        (["t3=small@7"], BadPin, "a multiple of 16"),
        (
            ["w3=large@0", "w4=large@16"],
            Refused,
            "the pins of 'w3' and 'w4' overlap in 'large': both are alive at op",
        ),
        (["w3=small@1048576"], Refused, "it ends at"),
        (["x=small"], BadPin, "stay in the slowest memory"),
        (
            ["t0=small", "t1=small", "t2=small", "t3=small", "w4=small"],
            Refused,
            "do not fit 'small' together",
        ),
    ],
)
def test_bad_pins_are_named(pins: list[str], error: type[LoadmasterError], words: str) -> None:
    program, machine = layers(), three_memories()
    with pytest.raises(error, match=words.replace("'", ".")):
        Mapping(program, machine, pins=parse_pins(program, machine, pins))


def test_the_blamed_pins_fit_without_any_one_of_them() -> None:
    program, machine = layers(), three_memories()
    texts = [f"t{i}=small" for i in range(8)] + [f"w{i}=small" for i in range(4)]
    with pytest.raises(Refused) as refused:
        Mapping(program, machine, pins=parse_pins(program, machine, texts))
    blamed = [text for text in texts if f"'{text.partition('=')[0]}'" in refused.value.message]
    assert 2 <= len(blamed) < len(texts)
    with pytest.raises(Refused):
        Mapping(program, machine, pins=parse_pins(program, machine, blamed))
    for text in blamed:
        Mapping(program, machine, pins=parse_pins(program, machine, [b for b in blamed if b != text]))


def test_pins_that_a_problem_does_not_decide_are_refused() -> None:
    program, arena = layers(), load_machine("arena:2KiB")
    with pytest.raises(Refused, match="overlap: both are alive"):
        ProgramAllocation(program, arena, pins=parse_pins(program, arena, ["t3=arena@0", "t4=arena@8"]))
    with pytest.raises(Refused, match="ends at"):
        ProgramAllocation(program, arena, pins=parse_pins(program, arena, ["t3=arena@2040"]))
    with pytest.raises(BadPin, match="--problem mapping"):
        ProgramAllocation(program, arena, pins=parse_pins(program, arena, ["t3=flash"]))
    tpu, game = load_machine("tpu-v4i:cmem=1MiB"), synthetic(4)
    name = game.tensor_name[int(MallocGame(game, tpu).model.tensors.root[0])]
    with pytest.raises(BadPin, match="use by use"):
        MallocGame(game, tpu, pins=parse_pins(game, tpu, [f"{name}=cmem"]))
    graph, machine = random_graph(np.random.default_rng(181), 24)
    op, tensor = graph.op_name[0], graph.tensor_name[0]
    with pytest.raises(Refused, match=r"puts .* on"):
        parse_pins(graph, machine, [], [f"{op}={machine.devices[0].name}", f"{op}={machine.devices[1].name}"])
    with pytest.raises(BadPin, match="--pin-op"):
        memory = machine.memories[0].name
        make_problem(graph, machine, problem="graph", pins=parse_pins(graph, machine, [f"{tensor}={memory}"]))
