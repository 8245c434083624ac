"""The exact solver of Mapping: equal to brute force, honest about time, and it stops when told."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clocks import Ticking
from generate import random_machine, random_program
from loadmaster.errors import LoadmasterError, MissingPackage
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.machine import Device, Memory, Rules
from loadmaster.mapping import linear as linear_module
from loadmaster.mapping.exact import Exact, linear_bound
from loadmaster.mapping.exact_worker import Search, model_bytes
from loadmaster.mapping.linear import make_linear, peak_cases, whole_case
from loadmaster.mapping.model import MappingModel, make_model
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.program.program import CANNOT_RUN, Program
from loadmaster.search.or_tools import lagrangian, relaxed
from loadmaster.search.problem import recorded_bound
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, Status, solve
from search.conformance import conforms

pytest.importorskip("ortools")

BEST = {
    ("resnet50", "nnp-i"): 109_325_638,
    ("resnet101", "nnp-i"): 366_363_357,
    ("bert", "nnp-i"): 1_146_249_721,
    ("resnet50", "nnp-i-half"): 243_516_621,
    ("resnet101", "nnp-i-half"): 539_121_818,
    ("bert", "nnp-i-half"): 1_322_994_789,
    ("resnet50", "nnp-i-12"): 103_201_699,
    ("resnet101", "nnp-i-12"): 194_091_196,
    ("bert", "nnp-i-12"): 586_954_644,
}
"""The best maps that the specification of EGRL knows, in picoseconds."""


def cell(model: str, machine: str) -> Mapping:
    return Mapping(load_model(model), load_machine(machine))


@pytest.fixture
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound on record: a proof has to be found."""
    monkeypatch.setattr("loadmaster.mapping.problem.recorded_bound", lambda program, machine: None)


def random_problems(count: int, max_ops: int, seed: int) -> Iterator[tuple[np.random.Generator, Mapping]]:
    """Problems with two memories or more that hold everything, cost tables and loops included."""
    made = 0
    for number in itertools.count():
        rng = np.random.default_rng([seed, number])
        machine = random_machine(rng)
        program = random_program(rng, max_ops, 1 if number % 4 == 0 else None)
        if program.costs is not None and (program.costs == CANNOT_RUN).any():
            continue
        try:
            problem = Mapping(program, machine)
        except LoadmasterError:
            continue
        if problem.live.any():
            yield rng, problem
            made += 1
        if made == count:
            return


def test_the_model_has_the_times_and_limits_of_the_problem() -> None:
    seen: set[tuple[str, bool, bool, bool]] = set()
    for rng, problem in random_problems(150, 12, 1):
        model, live = make_model(problem), np.flatnonzero(problem.live)
        maps = rng.integers(0, problem.slowest + 1, (40, 2 * problem.nodes)).astype(np.int8)
        total, epsilon, rectified = problem.rectify(maps)
        assert np.array_equal(model.time(rectified[:, live].astype(np.int64)), total)
        assert model.fits(rectified[:, live]).all()
        assert np.array_equal(model.fits(maps[:, live]), epsilon == 0)
        rules = problem.machine.rules
        seen.add(
            (
                rules.ports,
                rules.overlap > 0,
                problem.program.costs is not None,
                bool((model.repeat > 1).any()),
            )
        )
    assert len(seen) == 16, "every rule must have been met"


@pytest.mark.parametrize(("model", "rows"), [("resnet50", 40), ("resnet101", 74), ("bert", 303)])
def test_only_steps_that_are_maximal_have_rows(model: str, rows: int) -> None:
    assert len(list(make_model(cell(model, "nnp-i")).rows)) == rows


def least(problem: Mapping) -> int:
    """The best time of all maps."""
    live = np.flatnonzero(problem.live)
    maps = np.full((len(problem.memories) ** len(live), 2 * problem.nodes), problem.slowest, np.int8)
    maps[:, live] = list(np.ndindex(*[len(problem.memories)] * len(live)))
    total, epsilon, _ = problem.rectify(maps)
    return int(total[epsilon == 0].min())


def searched(model: MappingModel, method: str) -> tuple[int, int]:
    """(best time, bound) of a search in this process, from the slowest map."""
    slowest = np.full((1, model.entries), model.memories - 1)
    start = int(model.time(slowest)[0])
    settings = {
        "method": method,
        "seconds": None,
        "best": start,
        "gap": 0.0,
        "threads": 1,
        "backwards": False,
    }
    search = Search(model, settings, lambda **what: None)
    search.run()
    return search.best, min(search.bounds)


@pytest.mark.parametrize("ways", [linear_module.MOST_WAYS, 1])
def test_brute_force_finds_the_same(ways: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables of all ways, and with lines: those know an overlap but for its rounding."""
    monkeypatch.setattr(linear_module, "MOST_WAYS", ways)
    tight = 0
    for number, (rng, problem) in enumerate(random_problems(80, 5, 2)):
        model = make_model(problem)
        if model.memories**model.entries > 20_000:
            continue
        truth = least(problem)
        method = ("highs", "cp-sat")[number % 2]
        best, bound = searched(model, method)
        rounding = 0 if ways > 1 or method == "cp-sat" else int(model.repeat.sum())
        assert truth <= best <= truth + rounding
        assert truth - rounding <= bound <= truth
        program = make_linear(model, whole_case(model))
        assert lagrangian(program, rng.normal(0, 5, len(program.row_lower))) <= truth
        assert linear_bound(problem).value <= truth
        tight += bool(truth > model.time(np.zeros((1, model.entries), dtype=np.int64))[0])
    assert tight > 10, "capacities must matter"


def tiered(rng: np.random.Generator, program: Program) -> Machine:
    """Memories that get slower and larger, too small for everything: what cases are made for."""
    total = int(program.storage_bytes.sum())
    memories = [
        Memory(f"m{i}", int(share * total) if i < 2 else 2**40, rate, rate, 0, int(rng.choice([1, 4])))
        for i, (share, rate) in enumerate(
            zip(rng.uniform(0.05, 0.6, 3), (4 * 10**12, 10**12, 10**11), strict=True)
        )
    ]
    rates = {kind: {"*": 10 ** int(rng.integers(10, 13))} for kind in ("matrix", "vector")}
    device = Device("d", tuple(memory.name for memory in memories), rates, int(rng.integers(0, 9)))
    overlap = int(rng.choice([0, 333_333]))
    return Machine("tiered", (device,), tuple(memories), (), Rules("serial", overlap))


def test_cases_hold_a_best_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines where there are several, which random ones rarely are."""
    several = hard = 0
    for number in range(400):
        rng = np.random.default_rng([3, number])
        program = random_program(rng, 7)
        problem = Mapping(program, tiered(rng, program))
        model = make_model(problem)
        cases = len(peak_cases(model))
        if cases < 3 or model.memories**model.entries > 60_000:
            continue
        truth = least(problem)
        monkeypatch.setattr(linear_module, "MOST_TERMS", 0 if number % 3 else 10**6)
        assert searched(model, ("highs", "cp-sat")[number % 2]) == (truth, truth)
        several += 1
        hard += min(relaxed(make_linear(model, case), math.inf) for case in peak_cases(model)) < truth
    assert several > 40 and hard > 4, (several, hard)


@pytest.mark.usefixtures("from_nothing")
@pytest.mark.parametrize("name", [("resnet50", "nnp-i"), ("resnet101", "nnp-i"), ("resnet50", "nnp-i-half")])
def test_proofs(name: tuple[str, str]) -> None:
    problem = cell(*name)
    solution = solve(Exact(), problem, Budget())
    assert solution.status == Status.OPTIMAL
    assert solution.value == solution.bound.value == BEST[name]
    assert solution.decision is not None
    assert problem.violations(problem.plan(solution.decision)) == []


@pytest.mark.usefixtures("from_nothing")
def test_a_gap_ends_it_sooner_and_is_no_proof() -> None:
    solution = solve(
        make_labelled("mapping", "exact", {"methods": "highs", "gap": 0.02}),
        cell("resnet101", "nnp-i"),
        Budget(),
    )
    assert solution.gap is not None and 0 < solution.gap <= 0.02
    assert solution.status == Status.FEASIBLE


@pytest.mark.usefixtures("from_nothing")
@pytest.mark.parametrize("looks", [0, 1, 4, 40])
def test_a_time_out_is_no_proof(looks: int) -> None:
    """However many looks at the clock the time is enough for; the engines need far more for a proof."""
    problem = cell("bert", "nnp-i")
    solution = solve(Exact(), problem, Budget(seconds=float(looks)), clock=Ticking(1.0))
    assert solution.value is not None and solution.value >= BEST["bert", "nnp-i"] >= solution.bound.value
    assert (solution.status == Status.OPTIMAL) == (solution.value == solution.bound.value)


class _Stopper(Observer):
    """Stops before the start, at the first map, at the first bound, or there by Ctrl-C."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.stop = when, when == "start"

    def improved(self, meter: Meter) -> None:
        self.stop |= self.when == "map"

    def bounded(self, meter: Meter) -> None:
        self.stop |= self.when == "bound"
        if self.when == "ctrl-c":
            raise KeyboardInterrupt


@pytest.mark.usefixtures("from_nothing")
@pytest.mark.parametrize(("when", "engines"), [("start", 0), ("map", 0), ("bound", 2), ("ctrl-c", 2)])
def test_it_stops_when_told(when: str, engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours before a proof; that it ends is half of the test."""
    workers: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            workers.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    problem, observer = cell("bert", "nnp-i"), _Stopper(when)
    solution = solve(Exact(), problem, Budget(), observer=observer)
    assert solution.status == Status.FEASIBLE and observer.stop
    assert len(workers) == engines
    assert all(worker.poll() is not None for worker in workers)


@pytest.mark.usefixtures("from_nothing")
def test_engines_that_die_are_named_and_the_map_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    solution = solve(Exact(), cell("resnet50", "nnp-i"), Budget())
    assert solution.status == Status.FEASIBLE and solution.value == BEST["resnet50", "nnp-i"]
    assert solution.metrics["failed"] == dict.fromkeys(("highs", "cp-sat"), "its process ended with code 1")


@pytest.mark.parametrize("seconds", [0.5, None])
def test_a_worker_ends_with_its_time_and_with_its_master(seconds: float | None) -> None:
    """Its own clock ends it in order; without one, the end of its input does, long before a proof."""
    problem = cell("bert", "nnp-i")
    command = [sys.executable, "-m", "loadmaster.mapping.exact_worker"]
    settings = {
        "method": "highs",
        "best": BEST["bert", "nnp-i"],
        "gap": 0.0,
        "threads": 1,
        "backwards": False,
    }
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        text = json.dumps({**settings, "seconds": seconds}).encode() + b"\n"
        worker.stdin.write(text + model_bytes(make_model(problem)))
        worker.stdin.flush()
        assert {"case", "bound", "method"} == set(json.loads(worker.stdout.readline()))
        if seconds is None:
            worker.stdin.close()
        assert worker.wait() == 0


def test_without_ortools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cell("resnet50", "nnp-i")
    monkeypatch.setitem(sys.modules, "ortools", None)
    for ask in (lambda: solve(Exact(), problem, Budget()), lambda: linear_bound(problem)):
        with pytest.raises(MissingPackage, match=r"pip install 'loadmaster\[exact\]'"):
            ask()


def test_options_and_programs_it_cannot_take() -> None:
    with pytest.raises(LoadmasterError, match="did you mean 'highs'"):
        Exact(methods="higs")
    with pytest.raises(LoadmasterError, match="gap"):
        Exact(gap=1.0)
    machine = load_machine("nnp-i")
    program = next(problem.program for _, problem in random_problems(1, 8, 4))
    assert not make_model(Mapping(program, machine)).too_long
    slow = replace(program, costs=np.full((program.n_ops, 1), 2**55))
    with pytest.raises(LoadmasterError, match="too long"):
        solve(Exact(), Mapping(slow, machine), Budget())


@pytest.mark.usefixtures("from_nothing")
def test_it_conforms() -> None:
    problem = cell("resnet50", "nnp-i-half")
    conforms(Exact, problem, evaluations=(1, 30), seeds=(0,))


@pytest.mark.parametrize("name", BEST)
def test_bounds_on_record_hold(name: tuple[str, str]) -> None:
    problem = cell(*name)
    known = recorded_bound(problem.program, problem.machine)
    assert known is not None, "record it: python benchmarks/record_bounds.py"
    assert problem.bound() == known
    assert 0.999 * BEST[name] < known.value <= BEST[name]
    if name[0] != "bert":
        assert linear_bound(problem).value <= known.value
