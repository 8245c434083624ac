"""Files for viewers: trace, node data, tables, metadata and the C header, of many kinds of plans."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generate import random_case
from generate_tflite import branchy
from loadmaster.allocation.buffers_csv import read_buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import BadPlan, Refused
from loadmaster.export import c_header, csv_files, trace, viewers
from loadmaster.export.plan_view import make_file_name
from loadmaster.export.plans import ExportRequest, NotExported
from loadmaster.machine import Machine, load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.first_fit import first_fit
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Occupancy, Plan
from loadmaster.plan.check import check
from loadmaster.program import Program
from loadmaster.program.build import Builder
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.program.zoo import load_workload
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate


def sound_cases(count: int) -> Iterator[tuple[Program, Machine, Plan]]:
    """Random plans of all kinds that the checker accepts."""
    for seed in range(100_000):
        program, machine, plan = random_case(np.random.default_rng(seed), valid_only=True)
        try:
            timeline = simulate(program, machine, plan)
        except BadPlan:
            continue
        if not check(program, machine, plan, timeline):
            yield program, machine, plan
            count -= 1
        if not count:
            return


def events_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]  # type: ignore[no-any-return]


def check_trace(request: ExportRequest) -> tuple[int, int, int]:
    """Numbers of copies, transfers and stalls in it."""
    trace.export(request)
    program, machine, plan = request.program, request.machine, request.plan
    timeline, events = simulate(program, machine, plan), events_of(request.out)
    timed = [event for event in events if event["ph"] != "M"]
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(timed))
    slices = [event for event in timed if event["ph"] == "X"]
    ends = [event["ts"] + event["dur"] for event in slices]
    assert max(ends, default=0) == pytest.approx(timeline.total_ps / 1e6, rel=1e-9, abs=1e-9)
    # Every op that is no view is in one slice, alone or fused with others.
    on_devices = [e for e in slices if e["pid"] == trace.DEVICES]
    shown = [name for e in on_devices for name in e["args"].get("fused", [e["name"]])]
    real = [program.op_name[op] for op in np.flatnonzero(~program.op_view)]
    assert sorted(shown) == sorted(real)
    links = [e for e in slices if e["pid"] == trace.LINKS]
    assert len(links) == len(plan.copy_rows) + len(timeline.transfers)
    waits = [e["dur"] for e in slices if e["pid"] == trace.STALLS]
    steps = set(Occupancy(program, machine, plan).steps.op.tolist())
    stalled = [int(timeline.op_stall[op]) for op in steps]
    assert sum(waits) == pytest.approx(sum(stalled) / 1e6, abs=1e-9)
    # The counters reach the peaks that the timeline states.
    for number, memory in enumerate(machine.memories):
        held = [e["args"]["bytes"] for e in timed if e["ph"] == "C" and e["name"] == memory.name]
        assert max(held, default=0) == timeline.memory_peak[number]
        assert min(held, default=0) >= 0
    arrows = [sum(e["ph"] == sign for e in timed) for sign in "sf"]
    awaited = sum(copy.needed_by < program.n_ops for copy in plan.copy_rows)
    assert arrows == [awaited, awaited]
    return len(plan.copy_rows), len(timeline.transfers), len(waits)


def test_traces_of_random_plans(tmp_path: Path) -> None:
    cases = [check_trace(ExportRequest("m", *case, tmp_path / "t.json.gz")) for case in sound_cases(60)]
    assert sum(transfers for _, transfers, _ in cases) > 10


def test_a_trace_with_copies_and_stalls(tmp_path: Path) -> None:
    problem = MallocGame(load_workload("bert:layers=1"), load_machine("imxrt1170:hyperram=64MiB"))
    solution = solve(make_labelled("malloc-game", "msa"), problem, Budget())
    assert solution.decision is not None
    plan = problem.plan(solution.decision)
    copies, _, _ = check_trace(
        ExportRequest("m", problem.program, problem.machine, plan, tmp_path / "t.json.gz")
    )
    assert copies > 5


def test_a_trace_of_many_ops_is_small_and_quick(tmp_path: Path) -> None:
    build = Builder("chain")
    last = build.tensor("x", bytes=64, kind="input")
    for i in range(8_000):
        out = build.tensor(f"t{i}", bytes=64)
        build.op(f"add{i}", "add", reads=[last], writes=[out], vector=64)
        last = out
    build.set_kind(last, "output")
    out_file = tmp_path / "t.json.gz"
    done = trace.export(ExportRequest("m", build.build(), load_machine("toy2"), Plan(), out_file))
    assert done.figures["slices"] == 8_000 and out_file.stat().st_size < 800_000


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def check_tables(request: ExportRequest) -> int:
    """How many placements there are."""
    done = csv_files.export(request)
    program, plan = request.program, request.plan
    timeline = simulate(program, request.machine, plan)
    ops, tensors, copies = (table(request.out / f"{name}.csv") for name in ("ops", "tensors", "copies"))
    assert [int(row["end_ps"]) for row in ops] == timeline.op_end.tolist()
    assert [int(row["end_ps"]) for row in copies] == timeline.copy_end.tolist()
    assert sum(row["offset"] != "" for row in tensors) == sum(r.offset >= 0 for r in plan.residency_rows)
    for path in done.files[3:]:
        buffers, capacity = read_buffers(path)
        problem = Allocation(buffers, capacity)
        assert problem.evaluate(buffers.pinned) is not None
        assert not problem.offset_violations(buffers.pinned)
    return len(done.files) - 3


def test_tables_read_back(tmp_path: Path) -> None:
    for number, case in enumerate(sound_cases(40)):
        check_tables(ExportRequest("m", *case, tmp_path / f"random{number}"))
    placements = 0
    for seed in range(20):
        request = tflite_case(tmp_path, seed)
        placements += check_tables(
            ExportRequest(request.model, request.program, request.machine, request.plan, tmp_path / str(seed))
        )
    assert placements > 40
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    last = ExportRequest("m", program, machine, first_fit(program, machine), tmp_path / "resnet")
    assert check_tables(last) == 2  # nothing is decided to be in DRAM


def test_node_data_of_a_plan(tmp_path: Path) -> None:
    program, machine = load_workload("resnet50"), load_machine("nnp-i")
    plan = first_fit(program, machine)
    done = viewers.export_node_data(ExportRequest("m", program, machine, plan, tmp_path / "me"))
    data = {path.stem: json.loads(path.read_text()) for path in done.files}
    assert set(data) == {"memory", "time_us", "bytes", "stall_us"}
    timeline = simulate(program, machine, plan)
    made = {program.tensor_name[t] for t in program.write_tensor.tolist()}
    for document in data.values():
        assert set(document["results"]) == made
    rank = {memory: i for i, memory in enumerate(machine.reach[0])}
    for row in plan.residency_rows:
        name = program.tensor_name[row.tensor]
        if name in made:
            assert data["memory"]["results"][name]["value"] == rank[row.memory]
    total = sum(int(timeline.op_end[op] - timeline.op_start[op]) for op in program.write_op)
    assert sum(r["value"] for r in data["time_us"]["results"].values()) == pytest.approx(total / 1e6)
    builder = pytest.importorskip("model_explorer.node_data_builder")
    for document in data.values():
        results = {key: builder.NodeDataResult(**value) for key, value in document.pop("results").items()}
        gradient = [builder.GradientItem(**item) for item in document.pop("gradient", [])]
        assert builder.GraphNodeData(results=results, gradient=gradient, **document).to_json_string()


def tflite_case(tmp_path: Path, seed: int, machine: str = "imxrt1170:tcm=1KiB,ocram=2KiB") -> ExportRequest:
    path = tmp_path / "m.tflite"
    path.write_bytes(branchy(seed, 20))
    program, there = import_tflite(path), load_machine(machine)
    problem = Mapping(program, there)
    return ExportRequest(str(path), program, there, problem.plan(problem.compiler), tmp_path / "plan.h")


@pytest.mark.parametrize("seed", range(8))
def test_a_header_has_a_place_for_every_tensor(seed: int, tmp_path: Path) -> None:
    request = tflite_case(tmp_path, seed)
    done = c_header.export(request)
    rows = c_header.read_rows(request.out.read_text())
    program = request.program
    # Each tensor of the file that is more than an attribute has a place in one of the memories.
    assert len({row[0] for row in rows}) == len(rows) == program.n_tensors
    assert len({row[2] for row in rows}) == 3
    for a, b in itertools.combinations(rows, 2):
        together = (a[5] < 0 or b[5] < 0 or (a[5] <= b[6] and b[5] <= a[6])) and a[2] == b[2]
        apart = a[3] + a[4] <= b[3] or b[3] + b[4] <= a[3]
        views = a[3] == b[3] and a[4] == b[4] and a[1] == b[1] == 2  # one shows the other
        assert apart or views or not together, (a, b)
    for memory in request.machine.memories:
        top = max((row[3] + row[4] for row in rows if request.machine.memories[row[2]] is memory), default=0)
        stated = int(done.figures[f"{memory.name}_bytes"])  # type: ignore[arg-type]
        assert top <= stated < top + 16 and stated <= memory.capacity


def test_a_header_compiles_whatever_the_names_are(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    build = Builder("*/ int evil(void) { return 1; } /*")
    x = build.tensor("a */ #error \\", bytes=8, kind="input")
    y = build.tensor("??/\n??)", bytes=8, kind="output")
    build.op("add", "add", reads=[x], writes=[y], vector=8, source=0)
    program, machine = build.build(), load_machine("imxrt1170")
    problem = Mapping(program, machine)
    request = ExportRequest("m", program, machine, problem.plan(problem.compiler), tmp_path / "plan.h")
    c_header.export(request)
    source = tmp_path / "main.c"
    source.write_text(
        '#include "plan.h"\n'
        "int main(void) { return (int)loadmaster_tensors[0].bytes - 8 + (int)loadmaster_order[0]; }\n"
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler, *flags, str(source), "-o", str(tmp_path / "main")], check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0


def test_a_header_needs_offsets_and_room(tmp_path: Path) -> None:
    request = tflite_case(tmp_path, 1)
    rows = request.plan.residencies
    assert rows is not None
    bare = rows.copy()
    bare[0, 2] = -1
    with pytest.raises(Refused, match="no offset"):
        c_header.export(
            ExportRequest(
                request.model,
                request.program,
                request.machine,
                request.plan.changed(residencies=bare),
                request.out,
            )
        )
    with pytest.raises(NotExported, match="devices"):
        c_header.export(ExportRequest("m", request.program, load_machine("p100x2"), Plan(), request.out))
    assert not request.out.exists()


def test_plans_that_are_not_sound_are_shown_nowhere(tmp_path: Path) -> None:
    request = tflite_case(tmp_path, 2)
    rows = request.plan.residencies
    assert rows is not None
    bad = rows.copy()
    bad[:, 2] = 0
    plan = request.plan.changed(residencies=bad)
    for export in (trace.export, csv_files.export, viewers.export_node_data, c_header.export):
        with pytest.raises(Refused):
            export(ExportRequest(request.model, request.program, request.machine, plan, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_onnx_metadata_changes_nothing_else(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from loadmaster.program.importers.onnx import import_onnx

    source = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    program, machine = import_onnx(source), load_machine("nnp-i")
    request = ExportRequest(
        str(source), program, machine, first_fit(program, machine), tmp_path / "marked.onnx"
    )
    done = viewers.export_onnx_metadata(request)
    old, new = onnx.load(source), onnx.load(request.out)
    assert viewers.strip_metadata(new) == old and done.figures["nodes"] > 60  # type: ignore[operator]
    marked = [{p.key: p.value for p in node.metadata_props} for node in new.graph.node]
    conv = next(m for node, m in zip(new.graph.node, marked, strict=True) if node.op_type == "Conv")
    assert conv["loadmaster.order"] == "0" and conv["loadmaster.out0.memory"] in ("sram", "llc", "dram")
    assert float(conv["loadmaster.end_us"]) > float(conv["loadmaster.start_us"]) >= 0
    again = ExportRequest(str(request.out), program, machine, request.plan, tmp_path / "twice.onnx")
    viewers.export_onnx_metadata(again)
    assert onnx.load(again.out) == new  # old marks are replaced, not added to
    ort = pytest.importorskip("onnxruntime")
    ort.InferenceSession(str(request.out), providers=["CPUExecutionProvider"])
    with pytest.raises(NotExported, match="the model itself"):
        viewers.export_onnx_metadata(
            ExportRequest(str(request.out), program, machine, request.plan, request.out)
        )


def test_file_names_are_tame() -> None:
    assert make_file_name("../../etc/passwd") == "_.._etc_passwd"
    assert (
        make_file_name("a b\x00c") == "a_b_c"
        and make_file_name("") == "plan"
        and len(make_file_name("x" * 999)) == 80
    )
