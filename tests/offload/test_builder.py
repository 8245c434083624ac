"""From decisions to plans: sound for random programs and decisions, and as the slow reference has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster import planner
from loadmaster.errors import BadMachine, BadProgram
from loadmaster.offload.model import unmeasured_kernels
from loadmaster.offload.problem import LEADS, Offload
from loadmaster.offload.residencies import SMALL, occupied, repaired, residencies_of, schedule, settled
from loadmaster.plan import BEFORE, Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TieKind
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate
from offload_stack import gpu, problems
from reference import offload as slow
from reference.check.facts import Facts

HBM = 0


def random_vector(rng: np.random.Generator, problem: Offload) -> np.ndarray:
    keep = rng.random(problem.gaps) < rng.random()
    return problem.vector(keep, int(rng.integers(len(LEADS))), int(rng.choice([0, 0, 9])))


def test_any_decision_has_a_sound_plan_that_works_in_fast_memory_alone() -> None:
    plans = 0
    for number, problem in enumerate(problems(200)):
        rng = np.random.default_rng(number)
        for _ in range(3):
            decision = random_vector(rng, problem)
            value = problem.evaluate(decision)
            plan = problem.plan(decision)
            assert problem.violations(plan) == []
            line = simulate(problem.program, problem.machine, plan)
            assert line.total_ps == value >= problem.bound().value
            assert line.memory_peak[HBM] <= problem.model.capacity and not line.memory_over.any()
            assert_all_fast(problem, plan)
            plans += 1
    assert plans > 100


def assert_all_fast(problem: Offload, plan: Plan) -> None:
    """The checker's own view of who serves an access."""
    facts = Facts(problem.program, problem.machine, plan)
    for rank, step in enumerate(facts.steps):
        for tensor in (*step.reads, *step.writes):
            if facts.size[tensor]:
                assert facts.serves(rank, tensor)[0] == HBM


def test_repair_and_schedule_are_those_of_the_slow_reference() -> None:
    repairs = stalls = 0
    for number, problem in enumerate(problems(160, first=1_000)):
        rng, model = np.random.default_rng(number), problem.model
        keep = rng.random(problem.gaps) < 0.8
        kept = repaired(model, keep, model.capacity)
        assert kept.tolist() == slow.repaired(model, keep.tolist(), model.capacity)
        repairs += int((kept != keep).any())
        residencies = residencies_of(model, kept)
        assert occupied(model, residencies).tolist() == slow.room(model, kept.tolist())
        lead = int(rng.choice([0, 3, 50, 2**62]))
        made = schedule(model, residencies, model.capacity, lead)
        for row, timed in enumerate(slow.scheduled(model, residencies, model.capacity, lead)):
            got = [
                int(column[row])
                for column in (made.residencies.first, made.residencies.last, made.issued, made.out_needed)
            ]
            assert got == [timed.first, timed.last, timed.issued, timed.out_needed]
        stalls += int(occupied(model, made.residencies).max() <= model.capacity)
    assert repairs > 20 and stalls > 20


def test_what_is_tiny_leaves_only_if_nothing_else_can() -> None:
    others = 0
    for number, problem in enumerate(problems(80, first=2_000)):
        rng = np.random.default_rng(number)
        large = rng.random(problem.model.items) < 0.6
        model = replace(problem.model, size=np.where(large, problem.model.size << 20, problem.model.size))
        keep = np.ones(model.gaps, dtype=bool)
        need = int(occupied(model, residencies_of(model, settled(model, keep))).max())
        capacity = int(need * rng.choice([0.4, 0.6, 0.8]))
        kept = repaired(model, keep, capacity)
        assert kept.tolist() == slow.repaired(model, keep.tolist(), capacity)
        left = model.gap_item[~kept]
        others += bool(len(left)) and bool((model.size[left] > capacity // SMALL).all())
    assert others > 20


def chain(*sizes: int) -> Program:
    """x -> op0 -> op1 …, the first result read again by the last op."""
    build = Builder("chain")
    value = first = build.tensor("x", bytes=sizes[0], kind="input")
    for number, size in enumerate(sizes[1:]):
        weight = build.tensor(f"w{number}", bytes=512, kind="weight")
        made = build.tensor(
            f"t{number}", bytes=size, kind="output" if number == len(sizes) - 2 else "activation"
        )
        reads = [value, weight] + ([first] if number == len(sizes) - 2 else [])
        build.op(f"op{number}", "matmul", reads=reads, writes=[made])
        value, first = made, made if number == 0 else first
    return build.build(costs=np.full((len(sizes) - 1, 1), 1e-3))


def test_an_activation_leaves_and_comes_back_and_weights_do_only_come() -> None:
    problem = Offload(chain(1024, 1024, 1024, 1024, 1024, 1024), gpu(2**20))
    nothing = problem.plan(problem.vector(np.zeros(problem.gaps, dtype=bool)))
    ways = {(row.source, row.target): 0 for row in nothing.copy_rows}
    for row in nothing.copy_rows:
        ways[row.source, row.target] += 1
    assert ways == {(1, 0): 7, (0, 1): 1}  # x, five weights, t0 again; t0 out
    everything = problem.plan(problem.vector(np.ones(problem.gaps, dtype=bool)))
    assert [row.tensor for row in everything.copy_rows] == [0]  # the input alone
    resident = [row for row in everything.residency_rows if row.first == BEFORE]
    assert len(resident) == 5 and all(row.last == 4 for row in resident)


def test_an_op_that_does_not_fit_is_refused_with_its_name_and_the_bytes() -> None:
    with pytest.raises(
        BadMachine, match=r"op 'op4' reads and writes 3\.50 KiB at once and 'hbm' has 3\.00 KiB"
    ):
        Offload(chain(1024, 1024, 1024, 1024, 1024, 1024), gpu(3072))


@pytest.mark.parametrize(
    ("weight", "activation", "helps"),
    [(4096, 1024, "with --split"), (1024, 1024, "with --split"), (1024, 4096, "a smaller batch")],
)
def test_what_helps_an_op_that_does_not_fit(weight: int, activation: int, helps: str) -> None:
    build = Builder("large")
    given = build.tensor("x", bytes=activation, kind="input")
    own = build.tensor("w", bytes=weight, kind="weight")
    made = build.tensor("y", bytes=512, kind="output")
    build.op("op", "matmul", reads=[given, own], writes=[made])
    with pytest.raises(BadMachine, match=helps):
        Offload(build.build(), gpu(1024))


@pytest.mark.parametrize(("backward", "helps"), [(True, "with --split"), (False, "a smaller batch")])
def test_a_gradient_is_as_large_as_its_weight(backward: bool, helps: str) -> None:
    build = Builder("gradient")
    given = build.tensor("x", bytes=512, kind="input")
    own = build.tensor("w", bytes=4096, kind="weight")
    made = build.tensor("y", bytes=512, kind="output")
    build.op("op", "matmul", reads=[given, own], writes=[made])
    gradient = build.tensor("dw", bytes=4096, kind="output")
    more = build.tensor("more", bytes=1024, kind="input")
    build.op("back", "matmul", reads=[given, more], writes=[gradient], backward=backward)
    with pytest.raises(BadMachine, match=f"'back'.*{helps}"):
        Offload(build.build(), gpu(5120))


def test_what_is_larger_than_all_memories_together_is_refused_with_the_bytes() -> None:
    """It said that no plan was found, and to give more budget."""
    program = chain(*[1024] * 10)  # the input and nine weights
    machine = gpu(3584).with_capacity("host", 1024)
    words = r"take 5\.50 KiB .* have 4\.50 KiB together: give --capacity host=5632 or more"
    with pytest.raises(BadMachine, match=words):
        Offload(program, machine)


def test_a_slow_memory_that_is_too_small_is_named_where_nothing_fits() -> None:
    """Together they would hold it, and plans begin with all of it in the slow one."""
    program, machine = chain(*[1024] * 10), gpu(3584).with_capacity("host", 4096)
    found = planner.plan(program, machine, problem="offload", budget=4)
    assert found.plan is None and str(found.error).endswith(
        "needs 5.50 KiB of 'host', which has 4.00 KiB: give --capacity host=5632, or a smaller model"
    )
    assert (
        planner.plan(program, machine.with_capacity("host", 5632), problem="offload", budget=4).plan
        is not None
    )


def test_room_for_kernels_is_named_where_it_is_too_much() -> None:
    program = chain(1024, 1024, 1024)
    with pytest.raises(BadMachine, match=r"'hbm' has 26\.00 MiB, of which kernels have 52\.00 MiB"):
        Offload(program, gpu(26 * 2**20), kernels=unmeasured_kernels(program.n_ops))


def test_tied_tensors_are_refused_by_name() -> None:
    build = Builder("tied")
    first, last = (build.tensor("a", bytes=8, kind="input"), build.tensor("b", bytes=8, kind="output"))
    op = build.op("op", "add", reads=[first], writes=[last])
    build.tie(TieKind.INPLACE, first, last, op)
    with pytest.raises(BadProgram, match="'b' is written over another one"):
        Offload(build.build(), gpu(2**20))


def test_what_kernels_need_is_left_free() -> None:
    program = chain(1024, 1024, 1024, 1024, 1024, 1024)
    problem = Offload(program, gpu(6144), reserve=1024)
    plan = problem.plan(problem.vector(np.ones(problem.gaps, dtype=bool)))
    assert int(simulate(program, problem.machine, plan).memory_peak[HBM]) <= 5120
    greedy = Offload(program, gpu(6144)).plan(problem.vector(np.ones(problem.gaps, dtype=bool)))
    assert {each.rule for each in problem.violations(greedy)} == {"offload"}


def test_a_plan_that_works_in_the_host_is_refused() -> None:
    problem = Offload(chain(1024, 1024, 1024, 1024, 1024, 1024), gpu(2**20))
    assert problem.evaluate(problem.decision(Plan())) is None
    assert {each.rule for each in problem.violations(Plan())} == {"reach"}
    plan = problem.plan(problem.vector(np.ones(problem.gaps, dtype=bool)))
    short = plan.changed(residencies=plan.residencies[1:])
    assert any(each.rule == "reach" for each in problem.violations(short))


def test_a_plan_is_its_own_decision() -> None:
    problem = next(each for each in problems(40) if each.gaps > 4)
    plan = problem.plan(problem.vector(np.ones(problem.gaps, dtype=bool)))
    rows = problem.decision(plan)
    assert problem.plan(rows).hash == plan.hash
    assert problem.evaluate(rows) == simulate(problem.program, problem.machine, plan).total_ps


def test_a_program_of_views_alone_moves_nothing() -> None:
    build = Builder("views")
    given = build.tensor("x", bytes=256, kind="input")
    shown = build.tensor("y", bytes=256, kind="output", alias=given)
    build.op("reshape", "reshape", reads=[given], writes=[shown], view=True)
    problem = Offload(build.build(), gpu(1024))
    found = solve(make_labelled("offload", "auto"), problem, Budget(20))
    assert found.value == problem.bound().value == 0
    assert not len(problem.plan(found.decision).copy_rows)
