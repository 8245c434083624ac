"""A program that runs twice does each time what it does once, with the same weights."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from generate import random_program
from generate_training import random_training
from loadmaster.program import Program, TensorKind
from loadmaster.program.repeats import NEXT, twice

KEPT = (TensorKind.WEIGHT, TensorKind.STATE)


def values(program: Program, op_name: tuple[str, ...], given_name: tuple[str, ...]) -> list[int]:
    """[T] what each tensor holds, ops in order, by the names of ops and of what is given."""
    held: dict[int, int] = {}
    for tensor in np.flatnonzero(program.producer < 0).tolist():
        held[tensor] = hash(given_name[tensor])
    for op in range(program.n_ops):
        operands = tuple(held[tensor] for tensor in program.reads(op).tolist())
        for place, tensor in enumerate(program.writes(op).tolist()):
            held[tensor] = hash((op_name[op], place, operands))
    return [held[tensor] for tensor in range(program.n_tensors)]


def once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.removesuffix(NEXT) for name in names)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_both_runs_compute_what_one_does(seed: int) -> None:
    base = random_training(np.random.default_rng(seed))
    both = twice(base)
    ops, tensors = base.n_ops, base.n_tensors
    assert both.n_ops == 2 * ops and both.op_name[:ops] == base.op_name
    held = values(both, once(both.op_name), once(both.tensor_name))
    alone = values(base, base.op_name, base.tensor_name)
    assert held[:tensors] == alone
    again = {
        name.removesuffix(NEXT): tensor for tensor, name in enumerate(both.tensor_name) if tensor >= tensors
    }
    for tensor, name in enumerate(base.tensor_name):
        kept = base.tensor_kind[tensor] in KEPT and base.producer[tensor] < 0
        assert (name in again) is not kept  # one for both runs, or one each
        if not kept:
            other = again[name]
            assert held[other] == alone[tensor]
            assert both.tensor_bytes[other] == base.tensor_bytes[tensor]
            assert both.shape(other) == base.shape(tensor)
    roots = both.tensor_alias[both.tensor_alias]
    assert np.array_equal(roots, both.tensor_alias)  # a place has one name in each run
    if base.costs is not None:
        assert np.array_equal(both.costs[:ops], base.costs) and np.array_equal(both.costs[ops:], base.costs)


def test_loops_come_twice() -> None:
    rng = np.random.default_rng(0)
    base = next(program for program in (random_program(rng) for _ in range(500)) if program.n_loops)
    both = twice(base)
    assert both.n_loops == 2 * base.n_loops
    inside = base.op_loop >= 0
    assert np.array_equal(both.op_loop[base.n_ops :][inside], base.op_loop[inside] + base.n_loops)
    assert (both.op_loop[base.n_ops :][~inside] == -1).all()
