"""The memory plan for TFLite Micro: written, read back, refused where it must be, run where it can be."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import numpy as np
import pytest

from generate_tflite import I8, RESOURCE, GraphMaker, branchy, svdf, tflite
from loadmaster import make_problem
from loadmaster.errors import BadProgram, LoadmasterError, Refused
from loadmaster.export.plans import Exported, ExportRequest, NotExported
from loadmaster.export.tflm import METADATA, export, plan_arena, read_offsets, read_scratch
from loadmaster.export.tflm_file import CannotRun, Micro, with_plan
from loadmaster.machine import load_machine
from loadmaster.order.problem import PeakOrder
from loadmaster.plan import Plan
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.program.importers.tflite.read import read_tflite
from loadmaster.program.program import TensorKind
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.units import UNLIMITED

ARENA = load_machine(f"arena:{UNLIMITED}")


def make_request(tmp_path: Path, data: bytes, plan: Plan | None = None, **more: object) -> ExportRequest:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    program = import_tflite(data)
    return ExportRequest(str(path), program, ARENA, plan or Plan(), tmp_path / "out.tflite", **more)  # type: ignore[arg-type]


def least_peak(data: bytes) -> Plan:
    problem = PeakOrder(import_tflite(data), ARENA)
    solution = solve(make_labelled("order", "auto"), problem, Budget())
    assert solution.decision is not None
    return problem.plan(solution.decision)


def overlaps(data: bytes, offsets: list[int]) -> bool:
    """By a plain look at the file: whether two tensors that live together share bytes."""
    graph = read_tflite(data).graphs[0]
    end = len(graph.operators) - 1
    life: dict[int, tuple[int, int]] = dict.fromkeys(graph.inputs, (0, 0))
    for at, operator in enumerate(graph.operators):
        for n in (*operator.inputs, *operator.outputs):
            if n >= 0 and not graph.tensors[n].constant:
                life[n] = (life.get(n, (at, at))[0], at)
    life |= {n: (life[n][0], end) for n in graph.outputs}
    views = {frozenset((op.inputs[0], op.outputs[0])) for op in graph.operators if op.name == "RESHAPE"}
    rows = [(n, *life[n], offsets[n], offsets[n] + graph.tensors[n].bytes) for n in life if offsets[n] >= 0]
    return any(
        a[1] <= b[2] and b[1] <= a[2] and a[3] < b[4] and b[3] < a[4] and frozenset((a[0], b[0])) not in views
        for i, a in enumerate(rows)
        for b in rows[:i]
    )


def with_variable() -> bytes:
    """x is added to a variable, and once more to that."""
    graph = GraphMaker()
    x, out = graph.tensor("x", [1, 8]), graph.tensor("out", [1, 8])
    handle, old, new = (
        graph.tensor("h", [1], RESOURCE),
        graph.tensor("old", [1, 8]),
        graph.tensor("new", [1, 8]),
    )
    graph.op("VAR_HANDLE", [], [handle], {})
    graph.op("READ_VARIABLE", [handle], [old])
    graph.op("ADD", [x, old], [new], {0: ("b", 0)})
    graph.op("ASSIGN_VARIABLE", [handle, new], [])
    graph.op("ADD", [new, x], [out], {0: ("b", 0)})
    graph.inputs, graph.outputs = [x], [out]
    return tflite(graph)


@pytest.mark.parametrize("seed", range(25))
def test_what_is_written_holds_the_plan(seed: int, tmp_path: Path) -> None:
    data = branchy(seed)
    plan = least_peak(data) if seed % 2 else Plan()
    done = export(make_request(tmp_path, data, plan, verify=False))
    assert done.verdict == "unverified" and done.files == (tmp_path / "out.tflite",)
    written = (tmp_path / "out.tflite").read_bytes()
    model, old = read_tflite(written), read_tflite(data)
    offsets = read_offsets(model)
    assert len(offsets) == len(old.graphs[0].tensors) and all(o % 16 == 0 for o in offsets if o >= 0)
    assert not overlaps(written, offsets)
    placed = {n for n, o in enumerate(offsets) if o >= 0}
    assert placed == {n for n, t in enumerate(old.graphs[0].tensors) if not t.constant}
    head = max(o + old.graphs[0].tensors[n].bytes for n, o in enumerate(offsets) if o >= 0)
    assert head <= int(done.figures["head_bytes"]) < head + 16  # type: ignore[arg-type]
    if seed % 2:
        assert done.figures["head_bytes"] >= done.figures["bound_bytes"]  # type: ignore[operator]
    # Nothing else has changed, and what was aligned still is.
    assert written.endswith(data) and (len(written) - len(data)) % 16 == 0
    assert model.graphs[0].tensors == old.graphs[0].tensors
    by_result = {op.outputs: op for op in old.graphs[0].operators}
    assert {op.outputs for op in model.graphs[0].operators} == set(by_result)
    assert import_tflite(written).op_flops.sum() == import_tflite(data).op_flops.sum()
    assert (tmp_path / "model.tflite").read_bytes() == data


def test_an_older_plan_is_replaced(tmp_path: Path) -> None:
    data = branchy(3)
    once = with_plan(read_tflite(data), None, {METADATA: struct.pack("<4i", 1, 1, 1, 7), "other": b"kept"})
    export(make_request(tmp_path, once, verify=False))
    metadata = read_tflite((tmp_path / "out.tflite").read_bytes()).metadata
    assert metadata["other"] == b"kept" and len(metadata) == 2
    assert struct.unpack_from("<i", metadata[METADATA])[0] == 1 and len(metadata[METADATA]) > 16


def test_damaged_plans_of_a_file_are_named() -> None:
    model = read_tflite(branchy(0))
    for data in (b"", b"123", struct.pack("<4i", 1, 1, 2, 0), struct.pack("<3i", 2, 1, 0)):
        broken = read_tflite(with_plan(model, None, {METADATA: data}))
        with pytest.raises(NotExported, match="no memory plan"):
            read_offsets(broken)


def test_offsets_of_the_plan_are_kept(tmp_path: Path) -> None:
    data = branchy(5)
    model = read_tflite(data)
    planned = plan_arena(model, {}, Plan())
    # Everything 4096 bytes higher: sound, and not what a solver would do.
    rows = planned.plan.residencies.copy()  # type: ignore[union-attr]
    rows[rows[:, 2] >= 0, 2] += 4096
    lifted = planned.plan.changed(residencies=rows)
    again = plan_arena(model, {}, lifted)
    assert again.head == planned.head + 4096
    assert [o - 4096 for o in again.offsets() if o >= 0] == [o for o in planned.offsets() if o >= 0]
    # And with scratch, which goes where there is room: here below.
    scratch = {2: 160}
    assert plan_arena(model, scratch, lifted).head == again.head


def test_a_plan_for_several_memories_leaves_variables_to_the_runtime(tmp_path: Path) -> None:
    """It has a place for what is written over a variable, which the arena has none for."""
    data = with_variable()
    request = make_request(tmp_path, data, verify=False)
    machine = load_machine("imxrt1170")
    mapping = make_problem(request.program, machine, problem="mapping")
    plan = mapping.plan(mapping.compiler)
    states = {int(t) for t in np.flatnonzero(request.program.tensor_kind == TensorKind.STATE)}
    assert states & {row.tensor for row in plan.residency_rows}
    done = export(dataclasses.replace(request, machine=machine, plan=plan))
    assert done.verdict == "unverified" and not done.left_out


def test_unsound_plans_are_not_written(tmp_path: Path) -> None:
    data = branchy(7)
    program = import_tflite(data)
    rng = np.random.default_rng(0)
    model = read_tflite(data)
    good = plan_arena(model, {}, Plan())
    refused = 0
    for _ in range(80):
        rows = good.plan.residencies.copy()  # type: ignore[union-attr]
        row = int(rng.integers(len(rows)))
        match int(rng.integers(4)):
            case 0:
                rows[row, 2] = rows[int(rng.integers(len(rows))), 2]
            case 1:
                rows[row, 2] += int(rng.integers(1, 64))
            case 2:
                rows[row, 4] = max(rows[row, 3], rows[row, 4] - 1)
            case 3:
                rows[row, 3] = min(rows[row, 4], rows[row, 3] + 1)
        out = tmp_path / "out.tflite"
        request = make_request(tmp_path, data, good.plan.changed(residencies=rows), verify=False)
        try:
            export(request)
        except LoadmasterError:
            refused += 1
            assert not out.exists()
            continue
        assert not overlaps(out.read_bytes(), read_offsets(read_tflite(out.read_bytes())))
        out.unlink()
    assert refused > 20
    order = np.arange(program.n_ops, dtype=np.int32)[::-1].copy()
    with pytest.raises(Refused, match="checker refuses"):
        export(make_request(tmp_path, data, Plan(order=order), verify=False))


def test_the_model_is_never_written_over(tmp_path: Path) -> None:
    request = make_request(tmp_path, branchy(1), verify=False)
    link = tmp_path / "link.tflite"
    link.symlink_to(tmp_path / "model.tflite")
    hard = tmp_path / "hard.tflite"
    hard.hardlink_to(tmp_path / "model.tflite")
    for out in (tmp_path / "model.tflite", link, hard):
        with pytest.raises(NotExported, match="the model itself"):
            export(ExportRequest(request.model, request.program, ARENA, Plan(), out, verify=False))


def test_another_program_and_a_small_arena_are_refused(tmp_path: Path) -> None:
    request = make_request(tmp_path, branchy(1), verify=False)
    other = import_tflite(branchy(2))
    with pytest.raises(NotExported, match="not what"):
        export(ExportRequest(request.model, other, ARENA, Plan(), request.out, verify=False))
    scratch = tmp_path / "scratch.csv"
    scratch.write_text("operator,bytes\n0,100000\n")
    small = load_machine("arena:20KiB")
    with pytest.raises(Refused, match="with the kernels' scratch"):
        export(
            ExportRequest(request.model, request.program, small, Plan(), request.out, False, scratch=scratch)
        )


def test_scratch_files(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("operator,bytes\n0,100\n\n3, 16\n")
    assert read_scratch(path, 4) == {0: 100, 3: 16}
    for text in ("0,1,2\n", "4,1\n", "a,b\n", "1,-1\n", "1,9999999999\n"):
        path.write_text(text)
        with pytest.raises(NotExported, match="line 1"):
            read_scratch(path, 4)
    with pytest.raises(NotExported, match="can't be read"):
        read_scratch(tmp_path / "none.csv", 4)


def test_graphs_that_call_others_are_refused(tmp_path: Path) -> None:
    main, branch = GraphMaker(), GraphMaker()
    x, y = main.tensor("x", [4]), main.tensor("y", [4])
    main.op("IF", [x, x], [y], {0: ("i", 1), 1: ("i", 1)})
    main.inputs, main.outputs = [x], [y]
    branch.inputs, branch.outputs = [branch.tensor("a", [4], I8)], [branch.tensor("b", [4], I8)]
    branch.op("RELU", [0], [1])
    with pytest.raises(NotExported, match="IF"):
        export(make_request(tmp_path, tflite(main, branch), verify=False))


class TestRuntime:
    """With the interpreter itself."""

    @pytest.fixture(autouse=True)
    def _needs_it(self) -> None:
        pytest.importorskip("tflite_micro")

    def test_measured_as_planned_and_bit_identical(self, tmp_path: Path) -> None:
        found: list[Exported] = []
        for seed in range(12):
            data = branchy(seed, 20)
            done = export(make_request(tmp_path, data, least_peak(data), force=True))
            assert done.verdict == "verified"
            assert done.figures["measured_head_bytes"] == done.figures["head_bytes"]
            found.append(done)
        won = [d for d in found if d.figures["head_bytes"] < d.figures["runtime_head_bytes"]]  # type: ignore[operator]
        assert len(won) > 4

    def test_no_gain_no_file(self, tmp_path: Path) -> None:
        graph = GraphMaker()
        last = graph.tensor("x", [1, 4, 4, 4])
        graph.inputs = [last]
        for i in range(4):
            w = graph.tensor(f"w{i}", [4, 1, 1, 4], I8, bytes(range(16)))
            b = graph.tensor(f"b{i}", [4], 2, bytes(16))
            out = graph.tensor(f"y{i}", [1, 4, 4, 4])
            graph.op(
                "CONV_2D",
                [last, w, b],
                [out],
                {0: ("b", 0), 1: ("i", 1), 2: ("i", 1), 3: ("b", 0), 4: ("i", 1), 5: ("i", 1)},
            )
            last = out
        graph.outputs = [last]
        done = export(make_request(tmp_path, tflite(graph)))
        assert done.verdict == "already optimal" and not done.files
        assert not (tmp_path / "out.tflite").exists()
        assert done.figures["runtime_head_bytes"] == done.figures["bound_bytes"] == 128

    def test_a_worse_plan_is_refused(self, tmp_path: Path) -> None:
        data = branchy(4, 20)
        program = import_tflite(data)
        problem = PeakOrder(program, ARENA)
        orders = problem.from_keys(np.random.default_rng(0).random((500, problem.nodes)))
        worst = orders[int(problem.score(orders).value.argmax())]
        with pytest.raises(Refused, match="runtime's own arena"):
            export(make_request(tmp_path, data, problem.plan(worst)))
        done = export(make_request(tmp_path, data, problem.plan(worst), force=True))
        assert done.verdict == "verified" and done.files

    def test_overlapping_offsets_give_wrong_numbers(self, tmp_path: Path) -> None:
        """Why all the checking: the runtime takes anything."""
        from loadmaster.export.tflm_file import Micro, are_identical

        data = branchy(6, 20)
        model = read_tflite(data)
        tensors = model.graphs[0].tensors
        zeros = [-1 if t.constant else 0 for t in tensors]
        bad = with_plan(model, None, {METADATA: struct.pack(f"<{3 + len(zeros)}i", 1, 1, len(zeros), *zeros)})
        runs = [{seed: Micro(d, 10**6).run(seed, 1, 1) for seed in range(3)} for d in (data, bad)]
        assert not are_identical(*runs)

    def test_what_it_cannot_run_is_said(self, tmp_path: Path) -> None:
        graph = GraphMaker()
        x, y = graph.tensor("x", [4]), graph.tensor("y", [4])
        graph.op("CUSTOM", [x], [y])
        graph.inputs, graph.outputs = [x], [y]
        with pytest.raises(LoadmasterError, match="TFLite Micro can't run the model"):
            export(make_request(tmp_path, tflite(graph, custom="Mine")))
        assert (
            export(make_request(tmp_path, tflite(graph, custom="Mine"), verify=False)).verdict == "unverified"
        )

    def test_a_damaged_model_does_not_reach_it(self, tmp_path: Path) -> None:
        with pytest.raises(BadProgram):
            make_request(tmp_path, branchy(0)[:-40])

    def test_a_model_that_crashes_the_interpreter_does_not_end_us(self, tmp_path: Path) -> None:
        """Its kernel divides by the rank without a look at it: found by fuzzing, as a signal."""
        pytest.importorskip("tflite_micro")
        with pytest.raises(CannotRun, match="crashes when it runs"):
            export(make_request(tmp_path, svdf(I8, said=0)))

    def test_what_the_package_cannot_read_is_one_error(self) -> None:
        """The package looks into the file itself, before its interpreter does."""
        pytest.importorskip("tflite_micro")
        data = branchy(1)
        root = int.from_bytes(data[:4], "little")
        for place in (root, root - 4, 0):
            broken = data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :]
            with pytest.raises(CannotRun):
                Micro(broken, 2**16)

    def test_the_package_s_own_model(self, tmp_path: Path) -> None:
        """Golden numbers of a real file, and that a chain has nothing to win."""
        package = pytest.importorskip("tflite_micro")
        path = Path(package.__path__[0]) / "python/tflite_micro/sine_float.tflite"
        program = import_tflite(path)
        weights = program.tensor_kind == TensorKind.WEIGHT
        assert (program.n_ops, program.n_tensors) == (3, 10)
        assert program.tensor_bytes[weights].sum() == 1_284
        assert program.op_flops[:, 0].sum() == 2 * 288
        assert PeakOrder(program).reference == 128
        done = export(ExportRequest(str(path), program, ARENA, Plan(), tmp_path / "out.tflite"))
        assert done.verdict == "already optimal" and not done.files

    def test_a_model_with_variables_runs_on(self, tmp_path: Path) -> None:
        """State is carried from run to run in both, and the handle's operators keep their places."""
        data = with_variable()
        done = export(make_request(tmp_path, data, least_peak(data), force=True))
        assert done.verdict == "verified"
        names = [op.name for op in read_tflite((tmp_path / "out.tflite").read_bytes()).graphs[0].operators]
        assert names.index("VAR_HANDLE") < names.index("READ_VARIABLE") < names.index("ASSIGN_VARIABLE")
