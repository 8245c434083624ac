"""Production placements: hand-written texts replayed, dumps checked, and all that is shipped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import BadProgram
from loadmaster.machine import load_machine
from loadmaster.plan import NO_OFFSET, Copy, Plan, Residency
from loadmaster.plan.check import check
from loadmaster.plan.production import load_production_plan
from loadmaster.program.importers.hlo import import_hlo
from loadmaster.program.models import load_model
from loadmaster.program.zoo.tpu import DATA, SUMMARIES, manifest
from loadmaster.simulate import simulate
from tools.tpu.checks import check_accesses, check_order, check_sizes, check_totals
from tools.tpu.compile import compile_for_tpu
from tools.tpu.dumps import read_buffers
from tools.tpu.replay import Replay, replay
from tools.tpu.suite import SUITE

BEFORE = """HloModule tiny, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }

ENTRY %main (x: f32[1024], w: f32[8,1024]) -> (f32[8,1024], f32[1024]) {
  %x = f32[1024]{0:T(1024)} parameter(0)
  %w = f32[8,1024]{1,0:T(8,128)} parameter(1)
  %a = f32[1024]{0:T(1024)} negate(%x)
  %b = f32[1024]{0:T(1024)} exponential(%a)
  %c = f32[1024]{0:T(1024)} negate(%b)
  %d = f32[8,1024]{1,0:T(8,128)} negate(%w)
  %e = f32[1024]{0:T(1024)} add(%a, %c)
  ROOT %t = (f32[8,1024]{1,0:T(8,128)}, f32[1024]{0:T(1024)}) tuple(%d, %e)
}
"""
WIDE, FAST = "f32[8,1024]{1,0:T(8,128)}", "f32[1024]{0:T(1024)S(3)}"
AFTER = f"""HloModule tiny, is_scheduled=true

%one (p: f32[8,1024]) -> f32[4,1024] {{
  %p = {WIDE} parameter(0)
  ROOT %slice.1 = f32[4,1024]{{1,0:T(4,128)S(3)}} slice(%p), slice={{[0:4], [0:1024]}}
}}

%two (p.2: f32[8,1024]) -> f32[4,1024] {{
  %p.2 = {WIDE} parameter(0)
  ROOT %slice.2 = f32[4,1024]{{1,0:T(4,128)S(3)}} slice(%p.2), slice={{[4:8], [0:1024]}}
}}

ENTRY %main (x: f32[1024], w: f32[8,1024]) -> (f32[8,1024], f32[1024]) {{
  %x = f32[1024]{{0:T(1024)}} parameter(0)
  %copy-start = ({FAST}, f32[1024]{{0:T(1024)}}, u32[]{{:S(2)}}) copy-start(%x), cross_program_prefetch_index=0
  %w = {WIDE} parameter(1)
  %copy-done = {FAST} copy-done(%copy-start)
  %a = {FAST} negate(%copy-done)
  %copy-start.1 = (f32[1024]{{0:T(1024)}}, {FAST}, u32[]{{:S(2)}}) copy-start(%a)
  %slice-start.1 = (({WIDE}), f32[4,1024]{{1,0:T(4,128)S(3)}}, s32[]{{:S(2)}}) async-start(%w), calls=%one
  %b = {FAST} exponential(%a)
  %copy-done.1 = f32[1024]{{0:T(1024)}} copy-done(%copy-start.1)
  %c = f32[1024]{{0:T(1024)}} negate(%b)
  %slice-start.2 = (({WIDE}), f32[4,1024]{{1,0:T(4,128)S(3)}}, s32[]{{:S(2)}}) async-start(%w), calls=%two
  %slice-done.1 = f32[4,1024]{{1,0:T(4,128)S(3)}} async-done(%slice-start.1)
  %slice-done.2 = f32[4,1024]{{1,0:T(4,128)S(3)}} async-done(%slice-start.2)
  %joined = f32[8,1024]{{1,0:T(8,128)S(3)}} custom-call(%slice-done.1, %slice-done.2), custom_call_target="ConcatBitcast"
  %d = f32[8,1024]{{1,0:T(8,128)S(3)}} negate(%joined)
  %copy-start.3 = ({WIDE}, f32[8,1024]{{1,0:T(8,128)S(3)}}, u32[]{{:S(2)}}) copy-start(%d)
  %copy-start.4 = ({FAST}, f32[1024]{{0:T(1024)}}, u32[]{{:S(2)}}) copy-start(%x)
  %e = f32[1024]{{0:T(1024)}} add(%copy-done.1, %c)
  %copy-done.3 = {WIDE} copy-done(%copy-start.3)
  %copy-done.4 = {FAST} copy-done(%copy-start.4)
  ROOT %t = ({WIDE}, f32[1024]{{0:T(1024)}}) tuple(%copy-done.3, %e)
}}
"""
ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |f32[1024]| at ShapeIndex {}:
 value: <1 x @0> (size=4096,offset=0): f32[1024]{0:T(1024)}
allocation 1: size 49152, color 3, page 0, preallocated-temp:
 value: <2 copy-start{0} @3> (size=4096,offset=0): f32[1024]{0:T(1024)S(3)}
 value: <3 a @3> (size=4096,offset=40960): f32[1024]{0:T(1024)S(3)}
 value: <4 b @3> (size=4096,offset=16384): f32[1024]{0:T(1024)S(3)}
 value: <5 slice.1 @3> (size=16384,offset=0): f32[4,1024]{1,0:T(4,128)S(3)}
 value: <6 slice.2 @3> (size=16384,offset=16384): f32[4,1024]{1,0:T(4,128)S(3)}
 value: <7 joined @3> (size=32768,offset=0): f32[8,1024]{1,0:T(8,128)S(3)}
 value: <8 d @3> (size=32768,offset=0): f32[8,1024]{1,0:T(8,128)S(3)}
 value: <9 copy-start.4{0} @3> (size=4096,offset=0): f32[1024]{0:T(1024)S(3)}
"""
LIVE_RANGES = """HloLiveRange (max 8):
  InstructionSequence:
    0:x
    1:w
    2:a
    3:b
    4:c
    5:d
    6:e
    7:t
  BufferLiveRange:
    x{}:0-8
    w{}:0-5
    a{}:2-6
    b{}:3-4
    c{}:4-6
    d{}:5-8
    e{}:6-8
  Live ranges at 6 (peak):
    w{}: 32768 bytes
"""


def replayed(machine: str = "tpu-v4i") -> Replay:
    return replay(import_hlo(BEFORE), load_machine(machine), AFTER, ASSIGNMENT)


def test_copies_and_places_of_a_text() -> None:
    program = import_hlo(BEFORE)
    x, w, a, b, _, d, _ = range(7)
    assert program.tensor_name == ("x", "w", "a", "b", "c", "d", "e")
    found = replayed()
    assert found.as_issued.residency_rows == [
        Residency(x, 0, 0, 0, 0),
        Residency(a, 0, 40960, 0, 1),  # until its way out is over
        Residency(b, 0, 16384, 1, 2),
        Residency(w, 0, 0, 1, 3),
        Residency(d, 0, 0, 3, 4),
    ]
    assert found.as_issued.copy_rows == [
        Copy(x, 1, 0, -1, 0),
        Copy(a, 0, 1, 0, 2),
        Copy(w, 1, 0, 0, 3, 0, 16384),
        Copy(w, 1, 0, 2, 3, 16384, 32768),
        Copy(d, 0, 1, 3, 5),
    ]


def test_what_a_plan_cannot_say_loses_its_offset() -> None:
    found = replayed()
    assert not found.violations
    offsets = {row.tensor: row.offset for row in found.plan.residency_rows}
    # b lies where the second slice of w comes later, and d is written over w.
    assert offsets == {0: 0, 2: 40960, 3: 16384, 1: NO_OFFSET, 5: 0}
    assert found.partial == {
        "copies for the next run": 1,
        "offsets left out: slices take their room one by one": 1,
    }
    machine = load_machine("tpu-v4i")
    program = import_hlo(BEFORE)
    as_issued = simulate(program, machine, found.as_issued).total_ps
    assert simulate(program, machine, found.plan).total_ps == as_issued


def test_what_is_fetched_where_its_way_out_ends_comes_an_op_later() -> None:
    program, machine = import_hlo(BEFORE), load_machine("tpu-v4i")
    out = "  %copy-done.1 = f32[1024]{0:T(1024)} copy-done(%copy-start.1)\n"
    back = f"  %copy-start.5 = ({FAST}, f32[1024]{{0:T(1024)}}, u32[]{{:S(2)}}) copy-start(%copy-done.1)\n"
    text = AFTER.replace(out, out + back).replace(
        "  %e = f32[1024]{0:T(1024)} add(%copy-done.1, ",
        f"  %copy-done.5 = {FAST} copy-done(%copy-start.5)\n  %e = f32[1024]{{0:T(1024)}} add(%copy-done.5, ",
    )
    offset = " value: <10 copy-start.5{0} @3> (size=4096,offset=45056): f32[1024]{0:T(1024)S(3)}\n"
    found = replay(program, machine, text, ASSIGNMENT + offset)
    a = 2
    assert Copy(a, 1, 0, 1, 4) in found.as_issued.copy_rows
    assert Residency(a, 0, 45056, 2, 4) in found.as_issued.residency_rows
    assert Copy(a, 1, 0, 2, 4) in found.plan.copy_rows and not found.violations
    assert found.partial["copies issued later: the tensor is still on its way out"] == 1


LOOP = """HloModule loop, is_scheduled=true

%cond (s: (s32[], f32[1024], f32[1024])) -> pred[] {
  %s = (s32[], FAST, f32[1024]{0:T(1024)}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %four = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %four), direction=LT
}

%body (t: (s32[], f32[1024], f32[1024])) -> (s32[], f32[1024], f32[1024]) {
  %t = (s32[], FAST, f32[1024]{0:T(1024)}) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %a.1 = FAST get-tuple-element(%t), index=1
  %y = f32[1024]{0:T(1024)} get-tuple-element(%t), index=2
  %z = f32[1024]{0:T(1024)} add(%a.1, %y)
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  ROOT %u = (s32[], FAST, f32[1024]{0:T(1024)}) tuple(%next, %a.1, %z)
}

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0:T(1024)} parameter(0)
  %zero = s32[] constant(0)
  %a = FAST negate(%x)
  %first = s32[] copy(%zero)
  %b = f32[1024]{0:T(1024)} exponential(%x)
  %v = (s32[], FAST, f32[1024]{0:T(1024)}) tuple(%first, %a, %b)
  %w = (s32[], FAST, f32[1024]{0:T(1024)}) while(%v), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %out = f32[1024]{0:T(1024)} get-tuple-element(%w), index=2
}
"""


def test_what_a_loop_reads_stays_for_all_of_it() -> None:
    before, after = LOOP.replace("FAST", FAST.replace("S(3)", "")), LOOP.replace("FAST", FAST)
    place = "allocation 0: size 1, color 3\n value: <3 a @3> (size=4096,offset=512): f32[1024]\n"
    program = import_hlo(before)
    found = replay(program, load_machine("tpu-v4i"), after, place)
    names = program.op_name
    assert names[-1] == "next" and names.index("z") < names.index("next")
    row = Residency(program.tensor_name.index("a"), 0, 512, names.index("a"), len(names) - 1)
    assert found.plan.residency_rows == [row] and not found.violations


def test_accesses_are_compared() -> None:
    program, machine = import_hlo(BEFORE), load_machine("tpu-v4i")
    right = check_accesses(program, machine, replayed().plan, AFTER)
    assert list(right.values()) == [4096 * 5 + 32768 * 2, 4096 * 4, 0, 0]
    nothing = check_accesses(program, machine, Plan(), AFTER)
    assert list(nothing.values()) == [0, 4096 * 4, 4096 * 5 + 32768 * 2, 0]


def test_without_room_the_times_give_way() -> None:
    machine = load_machine("tpu-v4i")
    small = replace(machine.memories[0], capacity=48 * 1024)
    tight = replace(machine, memories=(small, *machine.memories[1:]))
    found = replay(import_hlo(BEFORE), tight, AFTER, ASSIGNMENT)
    assert not found.violations
    rows = {row.tensor: row for row in found.plan.residency_rows}
    assert rows[1] == Residency(1, 0, 0, 3, 3) and 5 not in rows
    issued = [copy.issued_after for copy in found.plan.copy_rows if copy.tensor == 1]
    assert issued == [2, 2]
    assert found.partial["copies issued later: slices wait for room for the whole"] == 1
    assert found.partial["residencies left out: written over a donated input"] == 1


def test_other_ops_are_counted() -> None:
    more = AFTER.replace("  %slice-start.2 =", "  %n = f32[1024]{0:T(1024)} negate(%b)\n  %slice-start.2 =")
    found = replay(import_hlo(BEFORE), load_machine("tpu-v4i"), more, ASSIGNMENT)
    assert found.partial["ops added"] == 1 and not found.violations
    less = BEFORE.replace("  %d = f32", "  %more = f32[1024]{0:T(1024)} negate(%a)\n  %d = f32")
    found = replay(import_hlo(less), load_machine("tpu-v4i"), AFTER, ASSIGNMENT)
    assert found.partial["ops missing"] == 1 and not found.violations


def test_dumps_are_compared() -> None:
    program = import_hlo(BEFORE)
    right = check_order(program, BEFORE, LIVE_RANGES)
    assert right["order differs"] == right["ops misplaced"] == right["live ranges differ"] == 0
    assert (right["instructions"], right["values"]) == (8, 7)
    swapped = LIVE_RANGES.replace("3:b", "3:c").replace("4:c", "4:b")
    assert check_order(program, BEFORE, swapped)["order differs"] == 2
    assert check_order(program, BEFORE, swapped)["ops misplaced"] == 2
    longer = check_order(program, BEFORE, LIVE_RANGES.replace("a{}:2-6", "a{}:2-7"))
    assert longer["live ranges differ"] == 1 and longer["the first"] == ["a: (2, 6), (2, 7)"]

    sizes = check_sizes(AFTER, ASSIGNMENT)
    assert sizes["sizes differ"] == sizes["without an offset"] == 0
    assert sizes["offsets that no value has"] == 0 and sizes["fast values"] == 8
    wrong = ASSIGNMENT.replace("b @3> (size=4096", "b @3> (size=8192")
    assert check_sizes(AFTER, wrong)["the first"] == ["b: 4096, 8192"]
    assert read_buffers(ASSIGNMENT, 3)["copy-start{0}"] == (4096, 0)

    counted = {"flops": 12288.0, "transcendentals": 1024.0, "bytes accessed": 1e5}
    totals = check_totals(program, counted)
    assert totals["flops"] == {"ours": 11264, "compiler": 12288.0, "ratio": round(11264 / 12288, 7)}
    assert totals["transcendentals"]["ratio"] == 1.0


def fake(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_crash_of_the_compiler_is_an_error(tmp_path: Path) -> None:
    flags = {"xla_flag": "wrong"}
    python = fake(tmp_path, "echo 'F0101 Check failed: value' >&2; kill -ABRT $$")
    with pytest.raises(BadProgram, match="'bert-base' with xla_flag=wrong failed: F0101 Check"):
        compile_for_tpu("bert-base", flags, python=python)
    with pytest.raises(BadProgram, match=r"took more than 0\.2 s"):
        compile_for_tpu("bert-base", flags, python=fake(tmp_path, "exec sleep 600"), seconds=0.2)
    with pytest.raises(BadProgram, match="wrote no"):
        compile_for_tpu("bert-base", flags, python=fake(tmp_path, "exit 0"))
    with pytest.raises(BadProgram, match="can't be run"):
        compile_for_tpu("bert-base", flags, python=str(tmp_path / "nowhere"))


def test_the_manifest_tells_all() -> None:
    text = (DATA / "manifest.json").read_text(encoding="utf-8")
    assert not re.search(r'["\s](/|[A-Z]:\\)\w', text), "no absolute paths"
    assert list(manifest()["programs"]) == sorted(SUITE) and list(SUITE) == list(SUMMARIES)
    for name, record in manifest()["programs"].items():
        assert name in record["command"] and record["versions"]["libtpu"]
        assert {"tpu-v4i", "tpu-v4i-16m"} <= set(record["plans"])
        checks = record["checks"]
        for what in ("flops", "transcendentals"):
            assert checks["totals"][what]["ratio"] == pytest.approx(1, abs=2e-6), (name, what)
        assert checks["totals"]["bytes accessed"]["ratio"] == pytest.approx(1, abs=0.01), name
        order = checks["order"]
        assert order["order differs"] == order["ops misplaced"] == 0, name
        assert order["live ranges differ"] == 0, name
        for sizes in [checks["sizes"], *(plan["sizes"] for plan in record["plans"].values())]:
            assert sizes["sizes differ"] == sizes["without an offset"] == 0, name


@pytest.mark.parametrize("name", SUITE)
def test_shipped_placements_are_sound(name: str) -> None:
    record = manifest()["programs"][name]
    program = load_model(name)
    assert (program.hash, program.n_ops, program.name) == (record["hash"], record["ops"], name)
    assert program.order_source == "schedule"
    for machine_name, about in record["plans"].items():
        machine = load_machine(machine_name)
        plan = load_production_plan(program, machine)
        assert plan is not None
        assert len(plan.residency_rows) == about["residencies"]
        timeline = simulate(program, machine, plan)
        assert check(program, machine, plan, timeline) == []
        if machine.hash == about["machine_hash"]:
            assert timeline.total_ps == about["simulated_ps"]
            assert simulate(program, machine, Plan()).total_ps == about["all_slow_ps"]


def test_nothing_is_known_of_others() -> None:
    program = load_model("alexnet-inf")
    assert load_production_plan(program, load_machine("nnp-i")) is None
    other = replace(program, op_other_bytes=np.ones_like(program.op_other_bytes))
    assert load_production_plan(other, load_machine("tpu-v4i")) is None


def test_programs_are_there_without_jax() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from loadmaster.program.models import load_model\n"
        "print(load_model('bert-base').n_ops)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) == manifest()["programs"]["bert-base"]["ops"]


def test_they_come_in_one_size() -> None:
    with pytest.raises(BadProgram, match="comes in one size"):
        load_model("bert-base:batch=2")


def test_data_is_small() -> None:
    files = [file for file in DATA.iterdir() if file.name != "__init__.py"]
    assert sum(len(file.read_bytes()) for file in files) < 5e6
    assert all(json.loads(f.read_text())["machine"]["hash"] is None for f in files if f.name.count(".") == 2)
