"""Plans at addresses: nothing lies where another does, copies included, and kernels have their room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from loadmaster.machine.presets import standalone_text
from loadmaster.offload.model import GRAIN, SLACK, Kernels
from loadmaster.offload.problem import LEADS, Offload
from loadmaster.offload.residencies import FETCHED, _table, pack, repaired, residencies_of
from loadmaster.plan import Plan
from loadmaster.program.storage import save
from offload_stack import problems
from reference.placed import runs, scheduled_placed

MIB, SCALE = 2**20, 97 * 1024


def random_problem(number: int, small: Offload) -> tuple[np.random.Generator, Offload, Kernels]:
    """The same with tensors of about a MiB, and kernels that take some."""
    rng = np.random.default_rng(number)
    program = replace(small.program, tensor_bytes=small.program.tensor_bytes * SCALE)
    own = np.where(rng.random(program.n_ops) < 0.3, rng.integers(1, 4 * MIB, program.n_ops), 0)
    kernels = Kernels(own.astype(np.int64), int(rng.integers(0, 3 * MIB)), int(rng.integers(0, MIB)))
    capacity = small.machine.memories[0].capacity * SCALE + kernels.kept + kernels.spare + 7 * MIB
    return rng, Offload(program, small.machine.with_capacity("hbm", capacity), kernels=kernels), kernels


def largest_gap(plan: Plan, problem: Offload, step: int) -> int:
    """Bytes in one piece that no stay has while the op of a step runs."""
    op, size = int(problem.model.step_op[step]), problem.program.storage_bytes
    there = sorted(
        (row.offset, row.offset + int(size[row.tensor]))
        for row in plan.residency_rows
        if row.memory == problem.model.fast and row.first <= op <= row.last
    )
    low = best = 0
    for begin, end in there:
        best, low = max(best, begin - low), max(low, end)
    return max(best, problem.model.capacity - low)


def test_kernels_have_their_room_in_one_piece() -> None:
    plans = pieces = early = 0
    for number, small in enumerate(problems(60)):
        rng, problem, kernels = random_problem(number, small)
        left = problem.machine.memories[0].capacity - problem.model.capacity
        assert left >= kernels.kept + kernels.spare
        for _ in range(3):
            decision = problem.vector(rng.random(problem.gaps) < rng.random(), int(rng.integers(len(LEADS))))
            made = problem.scheduled(decision)
            if not problem.admits(decision):
                continue
            plan, plans = problem.plan(decision), plans + 1
            assert problem.violations(plan) == []
            fetched = made.residencies.begins == FETCHED
            early += int((made.residencies.first < made.needed)[fetched].sum())
            for step in np.flatnonzero(problem.model.taken).tolist():
                assert largest_gap(plan, problem, step) >= problem.model.taken[step]
                pieces += 1
    assert plans > 100 and pieces > 300 and early > 100


def test_room_of_kernels_is_rounded_and_has_some_slack() -> None:
    room = Kernels(np.array([0, 1, GRAIN, GRAIN + 1], dtype=np.int64)).room(
        np.array([3, 0, 1, 2], dtype=np.int32)
    )
    assert room.tolist() == [2 * GRAIN + SLACK, 0, GRAIN + SLACK, GRAIN + SLACK]


def test_kernels_survive_saving_and_loading(tmp_path: Path) -> None:
    for number, small in enumerate(problems(4)):
        _, before, kernels = random_problem(number, small)
        folder = tmp_path / str(number)
        folder.mkdir()
        save(before.program, folder / "program.npz")
        (folder / "machine.toml").write_text(standalone_text(before.machine), encoding="utf-8")
        before.save(folder)
        loaded = Offload.load(folder)
        again = loaded.kernels
        assert again is not None and again.workspace.tolist() == kernels.workspace.tolist()
        assert (again.kept, again.spare) == (kernels.kept, kernels.spare)
        assert loaded.options() == before.options()
        assert np.array_equal(loaded.model.taken, before.model.taken)
        Offload(before.program, before.machine).save(folder)
        assert Offload.load(folder).kernels is None


def test_copies_at_addresses_are_those_of_the_slow_reference() -> None:
    compared = early = moves = beside = 0
    for number, problem in enumerate(problems(160, first=5_000)):
        rng, model = np.random.default_rng(number), problem.model
        kept = repaired(model, rng.random(problem.gaps) < rng.random(), model.capacity)
        residencies = residencies_of(model, kept)
        found = pack(model, residencies, model.capacity)
        if found is None or not len(residencies.item):
            continue
        # Kernels' own room, wherever a byte is free in a step.
        scratch = []
        for step in range(model.steps):
            there = np.zeros(model.capacity, dtype=bool)
            for row in np.flatnonzero((residencies.first <= step) & (step <= residencies.last)):
                there[found[0][row] : found[0][row] + model.size[residencies.item[row]]] = True
            if rng.random() < 0.3 and not there.all():
                low, high = runs(~there)[-1]
                scratch.append([step, low, int(rng.integers(low, high)) + 1])
        lead = int(rng.choice([0, model.copy_in.max(initial=0), 10**15]))
        wanted, low, moved = scheduled_placed(
            model, residencies, model.capacity, lead, scratch, found[0].tolist()
        )
        times, offset = model.tables.scheduled_placed(
            _table(residencies),
            model.capacity,
            lead,
            np.array(scratch, dtype=np.int64).reshape(-1, 3),
            found[0],
        )
        assert (times.tolist(), offset.tolist()) == (wanted, low)
        compared, moves, beside = compared + 1, moves + moved, beside + len(scratch)
        early += int((times[:, 0] < residencies.first).sum() + (times[:, 1] > residencies.last).sum())
    assert compared > 80 and early > 200 and moves > 30 and beside > 100
