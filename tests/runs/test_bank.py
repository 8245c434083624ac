"""The bank of plans: the same question costs nothing, a like one begins no worse, and no entry is believed unseen."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loadmaster as lm
import solver_cases
from generate_mapping import layers, three_memories
from loadmaster.allocation.problem import Allocation
from loadmaster.files import locking
from loadmaster.graph import GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.runs import RunFolder
from loadmaster.runs import bank as module
from loadmaster.runs.bank import BadBank, Bank, Search
from loadmaster.runs.replay import replay
from loadmaster.runs.session import run_solver
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution
from loadmaster.units import UNLIMITED
from offload_stack import LAYER_BYTES, gpu, stack

SEARCHES = {
    "allocation": ("first-fit", 10),
    "mapping": ("annealing", 60),
    "malloc-game": ("climb", 200),
    "offload": ("anneal", 40),
    "graph": ("anneal", 60),
    "order": ("anneal", 60),
}
"""Kind -> a solver of it, and evaluations."""


def question(kind: str) -> Problem:
    """One whose bound these searches do not reach."""
    return solver_cases.Case(kind, SEARCHES[kind][0], 0).problem()


def sought(problem: Problem, bank: Bank | Path | None, seed: int = 0, **more: Any) -> Solution:
    solver, evaluations = SEARCHES[problem.kind]
    chosen = make_labelled(problem.kind, solver)
    given = {"evaluations": evaluations, **more}
    return lm.solve(problem, chosen, seconds=None, seed=seed, bank=bank, **given)


def entry_of(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def forge(path: Path, **changes: Any) -> None:
    """Change an entry's header."""
    header, plan = path.read_text().splitlines()
    path.write_text(json.dumps({**json.loads(header), **changes}) + "\n" + plan + "\n")


@pytest.mark.parametrize("kind", SEARCHES)
def test_the_same_question_is_answered_without_searching(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sought(question(kind), tmp_path / "bank")
    assert first.recalled is None and first.decision is not None
    solver = make_labelled(kind, SEARCHES[kind][0])
    monkeypatch.setattr(type(solver), "run", lambda *_: pytest.fail("it searches"))
    problem = question(kind)
    again = sought(problem, tmp_path / "bank")
    assert again.recalled is not None and again.recalled.settled and again.recalled.same
    assert (again.value, again.evaluations, again.warnings) == (first.value, 0, [])
    assert again.decision is not None
    assert problem.plan(again.decision).hash == problem.plan(first.decision).hash
    assert again.status == first.status and again.bound.value == first.bound.value


@pytest.mark.parametrize("kind", SEARCHES)
def test_another_seed_begins_with_the_answer(kind: str, tmp_path: Path) -> None:
    first = sought(question(kind), tmp_path / "bank")
    other = sought(question(kind), tmp_path / "bank", seed=7, evaluations=3)
    assert first.value is not None and other.value is not None
    assert other.recalled is not None and other.recalled.same
    assert other.value <= first.value and other.evaluations > 0
    assert sought(question(kind), tmp_path / "bank", seed=7, evaluations=3).evaluations == 0
    assert sought(question(kind), tmp_path / "bank").evaluations == 0, "both searches are known"


@pytest.mark.parametrize("case", [case for case in solver_cases.CASES if not case.learned], ids=str)
def test_every_solver_can_begin_with_a_known_plan(case: solver_cases.Case, tmp_path: Path) -> None:
    """Whether it makes something of it or not: it is never worse."""
    first = sought(case.problem(), tmp_path / "bank")
    assert first.value is not None
    bank, problem = Bank(tmp_path / "bank", starts_only=True), case.problem()
    again = lm.solve(problem, case.solver(), seconds=None, evaluations=40, seed=1, bank=bank)
    assert again.value is not None and again.recalled is not None and again.recalled.same
    steadier = case.kind == "offload"  # it may choose one that is slower by a little and bears more
    assert again.value <= first.value * (1.003 if steadier else 1)
    assert not again.refused and not bank.warnings
    assert not problem.violations(problem.plan(again.decision))


def like(kind: str, less: int = 0) -> Problem:
    """A question of each kind, and those like it with a little less room or more bytes."""
    if kind == "mapping":
        return Mapping(layers(), three_memories().with_capacity("middle", 700 - 48 * less))
    if kind == "malloc-game":
        return MallocGame(synthetic(36), load_machine(f"tpu-v4i:cmem={1024 - 96 * less}KiB"))
    if kind == "offload":
        return Offload(stack(layers=8), gpu(4 * LAYER_BYTES + 4 * 80_000_000 - 50_000_000 * less))
    if kind == "graph":
        case = question("graph")
        flops = case.program.op_flops * (1 + less)
        return GraphOptimization(replace(case.program, op_flops=flops), case.machine)
    if kind == "order":
        return PeakOrder(larger(question("order").program, 1 + less))
    case = question("allocation")
    assert isinstance(case, Allocation)
    sizes = case.buffers.size + np.arange(len(case.buffers)) % 3 * less
    return Allocation(case.buffers.changed(size=sizes), None, case.name)


def larger(program: Program, times: int) -> Program:
    """As with a larger batch."""
    return replace(
        program,
        tensor_bytes=program.tensor_bytes * times,
        read_bytes=program.read_bytes * times,
        write_bytes=program.write_bytes * times,
        op_flops=program.op_flops * times,
    )


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_like_question_begins_no_worse_than_the_adapted_plan(kind: str, tmp_path: Path) -> None:
    kept = sought(like(kind), tmp_path / "bank", evaluations=None if kind == "allocation" else 100)
    assert kept.value is not None
    problem = like(kind, 1)
    asked = Search("any")
    recalled = Bank(tmp_path / "bank").recall(problem, asked)
    assert recalled is not None and not recalled.same and not recalled.settled and recalled.bound is None
    assert problem.evaluate(recalled.decision) == recalled.value
    assert not problem.violations(problem.plan(recalled.decision))
    # With one evaluation there is nothing but the start.
    found = sought(problem, tmp_path / "bank", evaluations=1)
    assert found.value is not None and found.value <= recalled.value
    assert not problem.violations(problem.plan(found.decision))


def test_the_nearest_of_like_questions_is_taken(tmp_path: Path) -> None:
    for less in (0, 1, 4):
        sought(like("mapping", less), tmp_path / "bank")
    recalled = Bank(tmp_path / "bank").recall(like("mapping", 3), Search("any"))
    assert recalled is not None
    capacity = like("mapping", 4).machine.memories[1].capacity
    header = json.loads(
        min(tmp_path.glob("bank/*.jsonl"), key=_far_from(capacity)).read_text().splitlines()[0]
    )
    assert recalled.about == header["about"]


def _far_from(capacity: int) -> Any:
    at = 2 + 3  # after bytes and flops, and three numbers of the first memory
    return lambda path: abs(json.loads(path.read_text().splitlines()[0])["sizes"][at] - np.log2(1 + capacity))


def test_other_graphs_and_machines_are_not_alike(tmp_path: Path) -> None:
    sought(like("mapping"), tmp_path / "bank")
    bank = Bank(tmp_path / "bank")
    assert bank.recall(Mapping(layers(13), three_memories()), Search("any")) is None
    machine = three_memories()
    renamed = replace(machine.memories[0], name="other")
    device = replace(machine.devices[0], memories=("other", "middle", "large"))
    elsewhere = replace(machine, memories=(renamed, *machine.memories[1:]), devices=(device,))
    assert bank.recall(Mapping(layers(), elsewhere), Search("any")) is None
    assert bank.recall(Mapping(layers(), machine, noise=0.1), Search("any")) is None, "values are measured"
    assert bank.warnings == []


def test_names_do_not_count(tmp_path: Path) -> None:
    sought(like("mapping"), tmp_path / "bank")
    program, machine = layers(), replace(three_memories(), name="mine")
    names = tuple(f"other {number}" for number in range(program.n_tensors))
    again = sought(Mapping(replace(program, name="mine", tensor_name=names), machine), tmp_path / "bank")
    assert again.recalled is not None and again.recalled.settled


# What settles a question.


def test_how_much_was_searched() -> None:
    made = Search("auto", {"width": 8}, 3, 100, 60.0)
    assert made.covers(Search("auto", {"width": 8}, 3, 100, 60.0))
    assert made.covers(Search("auto", {"width": 8}, 3, 50, 10.0))
    assert made.covers(Search("auto", {"width": 8}, 3, 100, 60.5)), (
        "what is left of a time limit differs a little"
    )
    for other in (
        Search("egrl", {"width": 8}, 3, 100, 60.0),
        Search("auto", {"width": 9}, 3, 100, 60.0),
        Search("auto", {"width": 8}, 4, 100, 60.0),
        Search("auto", {"width": 8}, 3, 200, 60.0),
        Search("auto", {"width": 8}, 3, None, 60.0),
        Search("auto", {"width": 8}, 3, 100, 70.0),
        Search("auto", {"width": 8}, 3, 100, None),
        Search("auto", {"width": 8}, 3, 100, 60.0, optimum_seconds=1.0),
    ):
        assert not made.covers(other)
    assert replace(made, ended=True).covers(Search("auto", {"width": 8}, 3))
    assert Search("auto").covers(Search("auto", evaluations=9, seconds=9.0))


def test_a_proof_is_final_whatever_is_asked(tmp_path: Path) -> None:
    problem = solver_cases.Case("order", "auto", 0).problem()
    proven = lm.solve(problem, "auto", seconds=None, bank=tmp_path / "bank")
    assert proven.status == "optimal" and proven.bound.value > problem.bound().value
    again = sought(question("order"), tmp_path / "bank", seed=5, evaluations=10_000)
    assert again.status == "optimal" and again.evaluations == 0
    assert again.bound.method.endswith("recorded in the bank")
    # Who takes starts alone proves for himself.
    alone = Bank(tmp_path / "bank", starts_only=True)
    other = lm.solve(question("order"), "auto", seconds=None, bank=alone)
    assert other.status == "optimal" and not other.bound.method.endswith("recorded in the bank")
    assert other.recalled is not None and other.recalled.same and not other.recalled.settled


def test_who_takes_starts_alone_searches_again(tmp_path: Path) -> None:
    first = sought(question("mapping"), tmp_path / "bank")
    again = sought(question("mapping"), Bank(tmp_path / "bank", starts_only=True))
    assert again.evaluations > 0 and again.value is not None and again.value <= (first.value or 0)


def test_a_false_bound_is_found_out(tmp_path: Path) -> None:
    """It can't be seen by looking; once something better is found, it is known, told and forgotten."""
    problem = question("mapping")
    assert isinstance(problem, Mapping)
    bank, slow = Bank(tmp_path / "bank"), problem.all_slowest()
    value = problem.evaluate(slow)
    assert value is not None
    keep(bank, problem, slow)
    forge(entry_of(bank.folder), bound={"value": value - 1, "method": "exact search"})
    found = sought(question("mapping"), bank)
    assert found.value is not None and found.value < value - 1
    assert found.status == "feasible" and found.bound.value == problem.bound().value
    assert any("is false" in warning for warning in found.warnings)
    assert bank.entries()[0].bound.value == problem.bound().value


def keep(
    bank: Bank, problem: Problem, decision: Any, bound: Bound | None = None, search: Search | None = None
) -> None:
    bank.keep(
        problem,
        problem.plan(decision),
        decision,
        bound or problem.bound(),
        search,
        finder="test",
        seed=0,
        evaluations=1,
        seconds=0.0,
    )


def test_a_no_never_rests_on_the_word_of_a_bank(tmp_path: Path) -> None:
    """Whether something fits: plans are taken from a bank, bounds are not."""
    build = Builder("two branches")  # both large ones at once, or one after the other
    x = build.tensor("x", bytes=16, kind="input")
    large = [build.tensor(f"large{i}", bytes=400, kind="activation") for i in range(2)]
    small = [build.tensor(f"small{i}", bytes=16, kind="activation") for i in range(2)]
    out = build.tensor("out", bytes=16, kind="output")
    for i in range(2):
        build.op(f"grow{i}", "add", reads=[x], writes=[large[i]], vector=4)
    for i in range(2):
        build.op(f"shrink{i}", "add", reads=[large[i]], writes=[small[i]], vector=4)
    build.op("join", "add", reads=small, writes=[out], vector=4)
    program, machine = build.build(), load_machine("arena:512")
    free = PeakOrder(program, load_machine(f"arena:{UNLIMITED}"))
    bank = Bank(tmp_path / "bank")
    keep(bank, free, free.program_order)
    value = bank.entries()[0].value
    assert value > 512
    forge(entry_of(bank.folder), bound={"value": value, "method": "exact search"})
    assert lm.solve(free, "auto", seconds=None, bank=bank).status == "optimal", (
        "a lie, said to be the bank's word"
    )
    found = lm.fits(program, machine, bank=bank)
    assert found.answer is True and found.plan is not None and found.plan.order is not None
    again = lm.fits(program, machine, bank=bank)
    assert again.answer is True and again.plan is not None and again.plan.hash == found.plan.hash
    assert lm.fits(program, load_machine("arena:300"), bank=bank).answer is False


# Writers.


def test_a_worse_answer_does_not_replace_a_better_one(tmp_path: Path) -> None:
    problem, bank = question("mapping"), Bank(tmp_path / "bank")
    assert isinstance(problem, Mapping)
    good = sought(problem, None).decision
    keep(bank, problem, good, search=Search("good"))
    best = bank.entries()[0].value
    keep(bank, problem, problem.all_slowest(), Bound(best - 1, "proof"), Search("slow"))
    entry = bank.entries()[0]
    assert entry.value == best and entry.bound == Bound(best - 1, "proof")
    assert [each.solver for each in entry.searches] == ["slow", "good"]
    # The other way round, too.
    other = Bank(tmp_path / "other")
    keep(other, problem, problem.all_slowest(), search=Search("slow"))
    keep(other, problem, good, search=Search("good"))
    assert other.entries()[0].value == best and len(other.entries()[0].searches) == 2


def test_a_claim_to_be_better_is_checked_before_it_stays(tmp_path: Path) -> None:
    problem, bank = question("mapping"), Bank(tmp_path / "bank")
    good = sought(problem, None).decision
    keep(bank, problem, good)
    true = bank.entries()[0].value
    forge(entry_of(bank.folder), value=1, bound={"value": 1, "method": "trust me"})
    keep(bank, problem, good)
    assert bank.entries()[0].value == true and bank.entries()[0].bound.value == problem.bound().value


def test_many_writers_at_once_keep_the_best(tmp_path: Path) -> None:
    problem = question("mapping")
    assert isinstance(problem, Mapping)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, (12, 2 * problem.nodes)).astype(np.int8)
    maps = [problem.make_legal(np.where(problem.live, row, problem.slowest)) for row in drawn]
    banks = [Bank(tmp_path / "bank") for _ in maps]
    problems = [question("mapping") for _ in maps]
    threads = [
        threading.Thread(target=keep, args=(bank, each, row))
        for bank, each, row in zip(banks, problems, maps, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [warning for bank in banks for warning in bank.warnings] == []
    assert banks[0].entries()[0].value == min(problem.evaluate(row) or 0 for row in maps)


def test_who_does_not_get_the_lock_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.files._PAUSE_SECONDS", 0.0)
    bank = Bank(tmp_path / "bank")
    with locking(bank.folder / ".lock") as alone:
        assert alone
        found = sought(question("order"), bank)
    assert found.value is not None and not list(bank.folder.glob("*.jsonl"))
    assert found.warnings == [
        f"bank '{bank.folder}': the answer was not kept: another process holds the lock"
    ]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, problem = Bank(tmp_path / "bank"), question("order")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", interrupt)
        keep(bank, problem, problem.program_order)  # type: ignore[attr-defined]
    assert sorted(path.name for path in bank.folder.iterdir()) == [".lock", "bank.json"]
    # What a killed writer left goes with the next one; what is not ours stays.
    (bank.folder / ".loadmaster-0123456789abcdef.tmp").write_text("half")
    (bank.folder / "notes.txt").write_text("mine")
    keep(bank, problem, problem.program_order)  # type: ignore[attr-defined]
    assert {path.suffix for path in bank.folder.iterdir()} == {"", ".json", ".jsonl", ".txt"}


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    questions = [like("mapping", less) for less in range(4)]
    bank = Bank(tmp_path / "bank")
    files = []
    for moment, problem in enumerate(questions[:3]):
        before = set(bank.folder.glob("*.jsonl"))
        sought(problem, bank)
        files += set(bank.folder.glob("*.jsonl")) - before
        os.utime(files[-1], (moment, moment))
    bank.recall(questions[0], Search("any"))  # used just now
    small = Bank(bank.folder, most_bytes=sum(path.stat().st_size for path in files) + 10)
    sought(questions[3], small)
    assert [path.exists() for path in files] == [True, False, True]
    assert len(list(bank.folder.glob("*.jsonl"))) == 3


def test_what_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRY_BYTES", 500)
    found = sought(question("order"), tmp_path / "bank")
    assert found.value is not None and not list((tmp_path / "bank").glob("*.jsonl"))
    assert "was not kept: it takes" in found.warnings[0] and "above 500 B" in found.warnings[0]
    many = sought(question("mapping"), tmp_path / "bank")  # seen before it is made into text
    assert "was not kept: it takes more than" in many.warnings[0]


# Hostile entries.


@pytest.fixture(scope="module", params=["mapping", "graph"])
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A bank with one answer, and its bytes."""
    folder = tmp_path_factory.mktemp("bank") / request.param
    sought(like(request.param), folder)
    path = entry_of(folder)
    return path, path.read_bytes()


def looked_at(path: Path) -> Bank:
    """Both ways to read a bank: whatever it holds, what comes out is legal and has its own value."""
    bank, kind = Bank(path.parent), path.parent.name
    for problem in (like(kind), like(kind, 1)):
        recalled = bank.recall(problem, Search("any"))
        if recalled is not None:
            assert problem.evaluate(recalled.decision) == recalled.value
            assert not problem.violations(problem.plan(recalled.decision))
            assert recalled.bound is None or recalled.bound.value <= recalled.value
    bank.entries()
    assert len(bank.warnings) <= 1 and all("\n" not in warning for warning in bank.warnings)
    return bank


def hostile(name: str, text: bytes) -> bytes:
    header, plan, _ = text.split(b"\n")
    about = json.loads(header)
    forged = {
        "question": {**about, "question": "0" * 64},
        "like": {**about, "like": "0" * 32},
        "value": {**about, "value": about["value"] - 1},
        "text for a value": {**about, "value": "1"},
        "true for a value": {**about, "value": True},
        "bound above the value": {**about, "bound": {"value": about["value"] + 1, "method": "x"}},
        "no bound": {key: each for key, each in about.items() if key != "bound"},
        "a list": [about],
        "searches": {**about, "searches": [{}]},
        "too many searches": {**about, "searches": about["searches"] * 17},
        "sizes": {**about, "sizes": [-1.0, 1e300]},
        "other format": {**about, "loadmaster_bank": 2},
        "about": {**about, "about": []},
    }
    if name in forged:
        return json.dumps(forged[name]).encode() + b"\n" + plan + b"\n"
    document = json.loads(plan)
    if name == "plan of nothing":
        plan = json.dumps({"loadmaster_plan": 1}).encode()
    elif name == "plan with other numbers":
        rows = document["residencies"] or [{"tensor": 0, "memory": "x", "offset": 0, "first": 0, "last": 0}]
        plan = json.dumps({**document, "residencies": [{**row, "tensor": 10**6} for row in rows]}).encode()
    elif name == "plan that is text":
        plan = b'"plan"'
    elif name == "nested":
        plan = b"[" * 100_000 + b"]" * 100_000
    elif name == "not finite":
        plan = plan.replace(b"1", b"1e999", 3)
    elif name == "decision":
        plan = json.dumps({**document, "decision": [1e300] * len(document.get("decision", [0]))}).encode()
    elif name == "truncated":
        return text[: len(text) // 2]
    elif name == "empty":
        return b""
    elif name == "one line":
        return header + b"\n"
    elif name == "zeros":
        return b"\0" * len(text)
    elif name == "long header":
        return header[:-1] + b" " * 2**17 + b"}\n" + plan + b"\n"
    return header + b"\n" + plan + b"\n"


HOSTILE = [
    "question",
    "like",
    "value",
    "text for a value",
    "true for a value",
    "bound above the value",
    "no bound",
    "a list",
    "searches",
    "too many searches",
    "sizes",
    "other format",
    "about",
    "plan of nothing",
    "plan with other numbers",
    "plan that is text",
    "nested",
    "not finite",
    "decision",
    "truncated",
    "empty",
    "one line",
    "zeros",
    "long header",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_entry_is_left_out_with_one_line(honest: tuple[Path, bytes], name: str) -> None:
    path, text = honest
    path.write_bytes(hostile(name, text))
    try:
        bank = looked_at(path)
        harmless = name == "decision" and path.parent.name == "mapping"  # it has none: plans tell theirs
        assert bool(bank.warnings) != harmless, "what is left out is told"
        again = sought(like(path.parent.name), path.parent)
        assert again.value is not None
    finally:
        path.write_bytes(text)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_bytes_an_entry_has(honest: tuple[Path, bytes], data: st.DataObject) -> None:
    path, text = honest
    spoilt = bytearray(text)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        how = data.draw(st.sampled_from(["change", "cut", "insert", "repeat"]))
        if how == "change":
            spoilt[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del spoilt[at : at + data.draw(st.integers(1, 50))]
        elif how == "insert":
            spoilt[at:at] = data.draw(
                st.sampled_from([b"-1", b"9" * 30, b"null", b"[", b'"', b"\n", b"true", b"0.5"])
            )
        else:
            spoilt[at:at] = spoilt[at : at + data.draw(st.integers(1, 200))]
        if not spoilt:
            break
    path.write_bytes(bytes(spoilt))
    try:
        looked_at(path)
    finally:
        path.write_bytes(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_values_an_entry_has(honest: tuple[Path, bytes], data: st.DataObject) -> None:
    """Well-formed, and something in it is something else."""
    path, text = honest
    lines = [json.loads(line) for line in text.splitlines()]
    place: Any = lines[data.draw(st.integers(0, 1))]
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = inner
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        looked_at(path)
    finally:
        path.write_bytes(text)


def test_only_regular_files_are_entries(honest: tuple[Path, bytes], tmp_path: Path) -> None:
    path, text = honest
    (tmp_path / "true").write_bytes(text)
    path.unlink()
    try:
        for put in (
            lambda: path.symlink_to(tmp_path / "true"),
            lambda: path.symlink_to(tmp_path / "nothing"),
            path.mkdir,
            lambda: os.mkfifo(path),
        ):
            put()
            assert "it is no regular file" in looked_at(path).warnings[0]
            found = sought(like(path.parent.name), path.parent)  # what is in its place is not written over
            assert found.value is not None and len(found.warnings) == 2
            path.rmdir() if path.is_dir() else path.unlink()
        with path.open("wb") as file:
            file.truncate(module.MOST_ENTRY_BYTES + 1)
        assert "larger than 32.00 MiB" in looked_at(path).warnings[0]
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(text)


def test_an_entry_of_another_problem_is_left_out_once(honest: tuple[Path, bytes]) -> None:
    """What it says of itself is shown with its value: bytes are no picoseconds."""
    path, text = honest
    entry = json.loads(text.splitlines()[0])["about"]
    for name, other in (("problem", "order"), ("unit", "ps")):
        path.write_bytes(
            text.replace(f'"{name}": "{entry[name]}"'.encode(), f'"{name}": "{other}x"'.encode())
        )
        (warning,) = looked_at(path).warnings
        assert "it says that it is about another problem" in warning and "more" not in warning
    path.write_bytes(text)


# The folder.


def test_a_folder_that_is_no_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadBank, match="is no folder: give the folder of a bank, or a new name"):
        Bank(tmp_path / "file")
    with pytest.raises(BadBank, match="is no bank of plans and not empty: give a bank, or a new name"):
        Bank(tmp_path)
    with pytest.raises(BadBank, match="can't be used: No such file"):
        Bank(tmp_path / "no" / "bank")
    with pytest.raises(BadBank, match="can't be used"):
        Bank(tmp_path / "nul\0l")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    with pytest.raises(BadBank, match="can't be used: it is a link that leads nowhere"):
        Bank(tmp_path / "nowhere")
    Bank(tmp_path / "bank")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadBank, match="can't be written: give one that is yours to write"):
        Bank(tmp_path / "bank")


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('{"loadmaster_bank": 2}', "is of format 2, and this version knows 1: give another bank"),
        ('{"accounts": []}', "its bank.json says nothing of one: give another bank"),
        ("[1]", "its bank.json says nothing of one"),
        ('{"loadmaster_bank": "1"}', "its bank.json says nothing of one"),
        ("\x00\xff{", "its bank.json says nothing of one"),
        ("[" * 20_000, "its bank.json says nothing of one"),
        ("", "its bank.json says nothing of one"),
    ],
)
def test_a_mark_of_something_else(tmp_path: Path, mark: str, message: str) -> None:
    """A later version's bank, or somebody's own file of that name: nothing is put beside it."""
    (tmp_path / "bank.json").write_bytes(mark.encode("latin-1"))
    with pytest.raises(BadBank, match=message):
        Bank(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["bank.json"]


def test_two_processes_may_make_a_bank_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The other has made the folder after we looked, and is writing its mark.
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / f".loadmaster-{'0' * 16}.tmp").write_text("{")
    there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self.name != "bank" and there(self))
    assert Bank(tmp_path / "bank").entries() == []


# Runs.


def test_a_run_of_the_bank_is_a_run_like_any_other(tmp_path: Path) -> None:
    sought(like("mapping"), tmp_path / "bank")
    answered = sought(like("mapping"), tmp_path / "bank", folder=tmp_path / "runs")
    assert answered.run is not None and answered.evaluations == 0
    assert not replay(RunFolder.open(answered.run)).broken
    begun = sought(like("mapping", 1), tmp_path / "bank", folder=tmp_path / "runs")
    assert begun.run is not None and not replay(RunFolder.open(begun.run)).broken


def test_a_resumed_run_begins_with_the_same_plan(tmp_path: Path) -> None:
    """One that was ended before its first checkpoint does all of it again, and the bank need not be there."""
    sought(like("mapping"), tmp_path / "bank")
    problem, solver = like("mapping", 1), make_labelled("mapping", "annealing")
    recalled = Bank(tmp_path / "bank").recall(problem, Search("any"))
    whole = run_solver(solver, problem, Budget(30), 1, recalled=recalled)
    part = run_solver(solver, problem, Budget(12), 1, recalled=recalled, folder=tmp_path / "runs")
    again = run_solver(solver, problem, Budget(30), 1, resume=part.run)
    assert (again.value, again.evaluations) == (whole.value, whole.evaluations)
