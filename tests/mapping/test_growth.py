"""What was made fast for a million ops beside the slow, obvious way to say the same."""

from __future__ import annotations

import numpy as np
import pytest

from generate import random_case, random_program
from generate_game import random_game
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.bounds import _least_side_by_side, side_by_side
from loadmaster.mapping.first_fit import _first_reader, first_fit_memories, sparse_tables
from loadmaster.mapping.model import make_model, weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.plan import BEFORE, HOME, NO_OFFSET, Plan, Residency, lifetimes_in_loops, static_plan
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind
from loadmaster.program.repeats import repeat

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_static_plan_has_a_residency_for_each_root_that_lives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program, machine, _ = random_case(rng)
    memory = rng.integers(HOME, len(machine.memories), program.n_tensors)
    offset = rng.integers(NO_OFFSET, 100, program.n_tensors)
    first, last = lifetimes_in_loops(program)
    rows = []
    for tensor in range(program.n_tensors):
        kind = program.tensor_kind[tensor]
        is_root = program.tensor_alias[tensor] == tensor
        if memory[tensor] >= 0 and is_root and kind != TensorKind.INPUT and last[tensor] >= first[tensor]:
            begin = BEFORE if kind in PERSISTENT else int(first[tensor])
            rows.append(Residency(tensor, int(memory[tensor]), int(offset[tensor]), begin, int(last[tensor])))
    found = static_plan(program, machine, memory, offset, in_loops=True)
    assert found.hash == Plan.of(residencies=rows).hash


@pytest.mark.parametrize("seed", SEEDS)
def test_places_are_what_ties_join(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    place = np.arange(program.n_tensors)
    shares = program.tie_kind != TieKind.DONATED
    ends = (program.tensor_alias[column[shares]] for column in (program.tie_source, program.tie_target))
    for one, other in zip(*ends, strict=True):
        both = sorted((place[one], place[other]))
        place[place == both[1]] = both[0]
    assert places(program).tolist() == place.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_first_fit_of_weights_looks_at_every_op(seed: int) -> None:
    program, machine = random_game(np.random.default_rng(seed))
    assert first_fit_memories(program, machine).tolist() == _slow_first_fit(program, machine)


def _slow_first_fit(program: Program, machine: Machine) -> list[int]:
    memories, (first, last) = machine.reach[0], lifetimes_in_loops(program)
    live = np.zeros((len(machine.memories), program.n_ops), dtype=np.int64)
    chosen = np.full(program.n_tensors, HOME)
    roots = np.flatnonzero(program.is_root & (last >= first))
    kept, given = program.is_persistent, program.tensor_kind == TensorKind.INPUT
    by_producer = roots[np.argsort(program.producer[roots], kind="stable")]
    by_reader = roots[np.argsort(_first_reader(program)[roots], kind="stable")]
    sparse = sparse_tables(program)
    for tensor in (
        *by_producer[given[by_producer]],
        *by_producer[~kept[by_producer] & ~given[by_producer]],
        *by_reader[kept[by_reader]],
    ):
        slow = given[tensor] or sparse[tensor] or not program.tensor_fast[tensor]
        span = slice(first[tensor], last[tensor] + 1)
        for number in memories[-1:] if slow else memories:
            align = machine.memories[number].alignment
            size = -(-int(program.storage_bytes[tensor]) // align) * align
            fits = live[number, span].max(initial=0) + size <= machine.memories[number].capacity
            if fits or number == memories[-1]:
                live[number, span] += size
                chosen[tensor] = HOME if given[tensor] else number
                break
    return chosen.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_capacity_rows_are_the_steps_with_most_alive(seed: int) -> None:
    program, machine = random_game(np.random.default_rng(seed))
    try:
        model = make_model(Mapping(program, machine))
    except LoadmasterError:
        pytest.skip("no mapping of it")
    alive = [
        frozenset(np.flatnonzero((model.piece_first <= step) & (step <= model.piece_last)).tolist())
        for step in range(program.n_ops)
    ]
    largest = sorted(
        {tuple(sorted(each)) for each in alive if each and not any(each < other for other in alive)}
    )
    found = [int(size.sum()) for entries, size in model.rows if len(entries)]
    assert len(largest) == len(found)
    expected = [int(model.piece_size[list(pieces)].sum()) for pieces in largest]
    assert sorted(found) == sorted(expected)


def test_least_times_of_steps_are_those_of_each_alone() -> None:
    rng = np.random.default_rng(0)
    fixed, step = rng.integers(0, 3, 50), np.sort(rng.integers(0, 50, 150))
    slow, fast = rng.integers(1, 4, 150), rng.integers(1, 3, 150)
    found = _least_side_by_side(fixed, step, slow, fast)
    for number in range(50):
        mine = list(zip(slow[step == number].tolist(), fast[step == number].tolist(), strict=True))
        assert found[number] == side_by_side(int(fixed[number]), mine)


def test_a_bound_from_nodes_that_are_alike_is_that_from_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.program.models import load_model

    problem = Mapping(load_model("resnet50"), load_machine("nnp-i"))
    monkeypatch.setattr(type(problem), "bound", lambda self: _nothing())
    one_by_one = weights_bound(problem)
    monkeypatch.setattr("loadmaster.mapping.model.MANY_NODES", 1)
    assert weights_bound(problem).value == pytest.approx(one_by_one.value, rel=1e-6)


def _nothing() -> object:
    from loadmaster.search.problem import Bound

    return Bound(0, "none")


def test_nothing_to_repeat_is_the_program_itself() -> None:
    for seed in range(5):
        program = random_program(np.random.default_rng(seed))
        again = repeat(program, [])
        assert again.program is program and again.origin.tolist() == list(range(program.n_ops))
