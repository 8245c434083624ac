"""Random graphs: valid, the same every time, of the promised sizes, with the zoo's kinds."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import BadProgram
from loadmaster.graph.go.cases import SHARES, synthetic_case
from loadmaster.machine import load_machine
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Program, TensorKind
from loadmaster.program.kinds import MATRIX
from loadmaster.program.validate import validate
from loadmaster.program.zoo import MODELS
from loadmaster.program.zoo.random_graphs import (
    FAMILIES,
    KINDS,
    LEAST_OPS,
    MOST_OPS,
    TEST_FAMILIES,
    TRAINING_FAMILIES,
    Shape,
    synthetic_graph,
)
from loadmaster.simulate import simulate

SPLIT = Path(__file__).parents[2] / "benchmarks" / "splits" / "go.toml"


def edges(program: Program) -> set[tuple[int, int]]:
    producer = program.producer[program.read_tensor]
    made = producer >= 0
    return set(zip(producer[made].tolist(), program.read_op[made].tolist(), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_are_valid_and_of_the_promised_size(family: str) -> None:
    for seed in range(10):
        program = validate(synthetic_graph(family, seed))  # checks that every read follows its write
        assert LEAST_OPS <= program.n_ops <= MOST_OPS
        assert all(a < b for a, b in edges(program))
        assert program.name == f"{family}-{seed}"
        assert program.op_backward.any() == (seed % 2 == 1)
        assert not any(program.op_scope.values)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_makes_one_graph_and_another_seed_another(family: str) -> None:
    hashes = [synthetic_graph(family, seed).named_hash for seed in range(6)]
    assert hashes == [synthetic_graph(family, seed).named_hash for seed in range(6)]
    assert len(set(hashes)) == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_acyclic_and_have_what_was_asked_for(family: str) -> None:
    for seed, ops in enumerate((100, 101, 250, 1_000, 4_000)):
        shape: Shape = FAMILIES[family](np.random.default_rng(seed), ops)
        assert len(shape.inputs) == len(shape.site) == ops
        assert all(source < op for op, sources in enumerate(shape.inputs) for source in sources)
        assert all(sources == sorted(set(sources)) for sources in shape.inputs)
        per_op = sum(map(len, shape.inputs)) / ops
        assert 0.9 < per_op < 4.5


def test_the_backward_pass_mirrors_the_forward_pass() -> None:
    program = synthetic_graph("cells", 7)
    place = {name: op for op, name in enumerate(program.op_name)}
    forward = [name for name in program.op_name if name.startswith("op")]
    known = edges(program)
    for name in forward[1:]:
        number = name.removeprefix("op")
        there, back = place[name], place[f"back{number}"]
        assert (program.op_flops[back] == 2 * program.op_flops[there]).all()
        assert program.op_kind[back] == program.op_kind[there]
        for source in {a for a, b in known if b == there}:
            assert (source, back) in known, "activations are kept for the backward pass"
            source_back = program.op_name[source].replace("op", "back")
            if source_back in place:
                assert (back, place[source_back]) in known, "gradients flow the other way"


def test_every_weight_is_of_a_matrix_op_and_updated_in_place() -> None:
    for family in FAMILIES:
        program = synthetic_graph(family, 3)
        weights = np.flatnonzero(program.tensor_kind == TensorKind.WEIGHT)
        start, readers = program.readers
        updates = [op for op, name in enumerate(program.op_name) if name.startswith("update")]
        assert len(updates) == len(weights)
        for weight in weights.tolist():
            ops = readers[start[weight] : start[weight + 1]].tolist()
            assert all(program.op_kind[op] in MATRIX or op in updates for op in ops)
            update = next(op for op in ops if op in updates)
            assert program.op_group[update] == program.tensor_group[weight] >= 0
            tied = program.tie_target[program.tie_source == weight]
            assert program.producer[tied].tolist() == [update]


def test_an_unrolled_layer_shares_its_weight() -> None:
    program = next(
        p
        for p in (synthetic_graph("wavefront", s) for s in range(0, 40, 2))
        if (p.tensor_kind == TensorKind.WEIGHT).any()
    )
    weight = int(np.flatnonzero(program.tensor_kind == TensorKind.WEIGHT)[0])
    start, _ = program.readers
    assert start[weight + 1] - start[weight] > 5


def test_kinds_follow_the_zoo() -> None:
    counts: Counter[str] = Counter()
    for seed in range(0, 40, 2):
        counts.update(synthetic_graph("layered", seed).op_kind)
    total, listed = sum(counts.values()), sum(kind.percent for kind in KINDS)
    for kind in KINDS[:6]:
        assert counts[kind.name] / total == pytest.approx(kind.percent / listed, rel=0.15)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(BadProgram, match="did you mean 'layered'"):
        synthetic_graph("layerd", 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_capacities_are_drawn_around_the_peak(family: str) -> None:
    machine = load_machine("p100x4")
    for seed in range(4):
        program, drawn = synthetic_case(family, seed)
        peak = int(simulate(program, machine).memory_peak.max())
        sizes = {memory.capacity for memory in drawn.memories}
        assert len(sizes) == 1
        assert SHARES[0] * peak - 1 <= sizes.pop() <= SHARES[1] * peak
        assert drawn.hash == synthetic_case(family, seed)[1].hash


def test_a_graph_passes_the_checker_on_one_device() -> None:
    program, machine = synthetic_graph("branch_join", 2), load_machine("h100x8")
    plan = Plan()
    assert not check(program, machine, plan, simulate(program, machine, plan))


def test_the_split_names_what_there_is_and_holds_out_what_it_says() -> None:
    split = tomllib.loads(SPLIT.read_text(encoding="utf-8"))
    used: list[str] = []
    for part in split.values():
        used += part["workloads"]
    assert all(name in MODELS for name in used)
    assert len(used) == len(set(used)), "no workload is in two sets"
    assert split["train"]["families"] == split["validation"]["families"] == list(TRAINING_FAMILIES)
    assert split["held_out_family"]["families"] == list(TEST_FAMILIES)
    assert split["train"]["seeds"]["last"] < split["validation"]["seeds"]["first"]
