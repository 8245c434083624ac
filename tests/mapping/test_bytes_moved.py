"""Bytes as an objective: the time of a map on that machine is its bytes, but for a bounded rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from generate_mapping import random_mapping, random_maps
from loadmaster.machine import load_machine
from loadmaster.mapping.bytes_moved import bound_bytes, bytes_machine, counts_bytes, moved_bytes, noise_ps
from loadmaster.mapping.model import weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.units import MOVED_BYTE_PS


def test_times_are_bytes_but_for_noise_also_where_ops_compute_much() -> None:
    for seed in range(150):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng)
        if program.costs is not None:
            program = replace(program, costs=None)
        program = replace(program, op_flops=program.op_flops * 10 ** int(rng.integers(0, 9)))
        problem = Mapping(program, bytes_machine(machine))
        noise = noise_ps(program, problem.machine)
        times, _, maps = problem.rectify(random_maps(rng, problem, 8))
        for time, legal in zip(times.tolist(), maps, strict=True):
            moved = moved_bytes(program, problem.machine, problem.tensor_memories(legal))
            assert moved * MOVED_BYTE_PS <= time <= moved * MOVED_BYTE_PS + noise
            assert bound_bytes(program, problem.machine, time) <= moved


def test_no_plan_of_a_real_model_is_below_the_bound() -> None:
    # ResNet-50 computes for 1.8 ns even at the highest rate there is: more than a byte's worth.
    problem = Mapping(load_model("resnet50"), bytes_machine(load_machine("nnp-i")))
    found = solve(make_labelled("mapping", "density"), problem, Budget())
    assert found.decision is not None
    legal = problem.rectify(found.decision[None])[2][0]
    moved = moved_bytes(problem.program, problem.machine, problem.tensor_memories(legal))
    for bound in (found.bound, weights_bound(problem)):
        assert bound_bytes(problem.program, problem.machine, bound.value) <= moved == 150_528
    assert bound_bytes(problem.program, problem.machine, int(found.value or 0)) == moved


def test_a_machine_that_counts_bytes_is_known_by_its_rates_and_not_by_its_name() -> None:
    for name in ("nnp-i", "imxrt1170", "tpu-v4i"):
        machine = load_machine(name)
        assert not counts_bytes(machine) and not counts_bytes(replace(machine, name="x/bytes"))
        assert counts_bytes(replace(bytes_machine(machine), name="x"))
