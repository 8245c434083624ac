"""Training steps that run ops again under a small memory: faster than copies alone, and never slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from generate_training import random_training
from loadmaster.errors import LoadmasterError
from loadmaster.offload.heuristics import Stream
from loadmaster.offload.model import Kernels
from loadmaster.offload.problem import Offload
from loadmaster.offload.repeats import Recomputed, least_bound, op_times, quick, with_repeats
from loadmaster.program import Builder, Program
from loadmaster.program.repeats import Repeated, repeat
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve
from offload_stack import gpu, small_gpu, stack

MIB = 2**20


def training(layers: int = 6, size: int = 64 * MIB) -> Program:
    """A layer: a dear matmul, then a cheap gelu four times as large; the backward pass reads both results."""
    build = Builder("training")
    value = build.tensor("x", bytes=size, kind="input")
    made, costs = [], []
    for layer in range(layers):
        weight = build.tensor(f"w{layer}", bytes=MIB, kind="weight")
        narrow = build.tensor(f"narrow{layer}", bytes=size)
        wide = build.tensor(f"wide{layer}", bytes=4 * size)
        build.op(f"matmul{layer}", "matmul", reads=[value, weight], writes=[narrow])
        build.op(f"gelu{layer}", "gelu", reads=[narrow], writes=[wide])
        costs += [[1e-3], [1e-4]]
        made.append((value, weight, narrow, wide))
        value = wide
    for layer, (first, weight, narrow, wide) in reversed(list(enumerate(made))):
        back = build.tensor(f"d{layer}", bytes=size)
        step = build.tensor(f"dw{layer}", bytes=MIB, kind="output")
        build.op(f"dgelu{layer}", "gelu_backward", reads=[value, narrow, wide], writes=[back], backward=True)
        build.op(f"dw{layer}", "matmul", reads=[back, first, weight], writes=[step], backward=True)
        costs += [[1e-4], [2e-3]]
        value = back
    return build.build(costs=costs)


def annealed(problem: Offload) -> Solution:
    return solve(make_labelled("offload", "anneal"), problem, Budget(120), seed=0)


def checked(found: Recomputed) -> Recomputed:
    problem, decision = found.problem, found.solution.decision
    assert problem.program is found.repeated.program and decision is not None
    assert problem.violations(problem.plan(decision)) == []
    assert problem.evaluate(decision) == found.value >= problem.bound().value
    return found


def test_cheap_large_results_are_made_again() -> None:
    base = training()
    need = Offload(base, gpu(2**40)).model.needed

    def make(repeated: Repeated) -> Offload:
        return Offload(repeated.program, gpu(need // 2))

    plain = annealed(make(repeat(base, [])))
    found = checked(with_repeats(base, make, annealed))
    names = {base.op_name[op] for op in found.repeated.ops.tolist()}
    assert names and all(name.startswith("gelu") for name in names)
    assert plain.value is not None and found.value < 0.8 * plain.value


def test_a_bound_tells_what_a_search_comes_near_to_where_a_quick_plan_does_not() -> None:
    base = training()
    need = Offload(base, gpu(2**40)).model.needed

    def make(repeated: Repeated, capacity: int = need // 2) -> Offload:
        return Offload(repeated.program, gpu(capacity))

    bound, found = least_bound(base, make), with_repeats(base, make, annealed)
    plain = quick(make(repeat(base, [])))
    assert bound is not None and plain.value is not None
    assert 0.9 * bound < found.value < 1.1 * bound < plain.value, "of a few choices: others may be below it"
    assert least_bound(base, lambda repeated: make(repeated, MIB)) is None, "nothing fits"


def test_with_room_for_everything_nothing_is_repeated() -> None:
    base = training(3)
    found = checked(with_repeats(base, lambda repeated: Offload(repeated.program, gpu(2**34)), quick))
    assert not len(found.repeated.ops) and found.repeated.program.hash == base.hash


def test_a_program_without_a_backward_pass_is_planned_as_it_is() -> None:
    base = stack(layers=4)
    found = checked(with_repeats(base, lambda repeated: Offload(repeated.program, gpu(2**31)), quick))
    assert found.repeated.program.hash == base.hash


@pytest.mark.parametrize("seed", range(12))
def test_never_slower_than_without_repeats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = random_training(rng, forward=12, backward=12)
    roomy = Offload(base, small_gpu(rng, 2**40))
    least = roomy.least
    machine = replace(
        roomy.machine,
        memories=(
            replace(
                roomy.machine.memories[0], capacity=least + int(rng.random() * (roomy.model.needed - least))
            ),
            *roomy.machine.memories[1:],
        ),
    )

    def make(repeated: Repeated) -> Offload:
        return Offload(repeated.program, machine)

    plain = annealed(make(repeat(base, [])))
    found = with_repeats(base, make, annealed)
    if plain.value is not None:
        assert checked(found).value <= plain.value


def test_what_is_known_of_ops_follows_them_and_no_room_is_refused() -> None:
    base = training(4)
    workspace = np.arange(base.n_ops, dtype=np.int64) * 1024
    kernels = Kernels(workspace)
    seen = []

    def make(repeated: Repeated, capacity: int = 2**30) -> Offload:
        own = replace(kernels, workspace=workspace[repeated.origin])
        seen.append((len(own.workspace), repeated.program.n_ops))
        return Offload(repeated.program, gpu(capacity), kernels=own)

    checked(with_repeats(base, make, quick))
    assert len(seen) > 3 and all(one == other for one, other in seen)
    with pytest.raises(LoadmasterError, match="gelu"):
        with_repeats(base, lambda repeated: make(repeated, 2**26), quick)


def test_the_first_results_leave_as_the_link_takes_them() -> None:
    """Two of six leave, the early ones, and nothing waits; spread evenly, the last would come back at once."""
    base = training(6)
    roomy = Offload(base, gpu(2**40))
    assert op_times(roomy).sum() == roomy.limit_ps
    problem = Offload(base, gpu(roomy.model.needed - 8 * 64 * MIB))
    value = {
        name: solve(make_labelled("offload", name), problem, Budget()).value for name in ("stream", "spread")
    }
    assert value["stream"] is not None and value["spread"] is not None
    assert value["stream"] <= value["spread"]
    gone = {
        base.tensor_name[problem.model.root[item]]
        for decision in Stream().make(problem)
        for item in problem.model.gap_item[np.asarray(decision)[:-2] == 0].tolist()
    }
    assert "wide0" in gone and "wide5" not in gone
