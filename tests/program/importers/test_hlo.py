"""The HLO importer: goldens written by hand, XLA's own totals, and texts that are broken."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import BadProgram
from loadmaster.program import Program, TensorKind, TieKind, load, save
from loadmaster.program.importers.hlo.costs import _valid_positions
from loadmaster.program.importers.hlo.importer import import_hlo
from loadmaster.program.importers.hlo.module import HloParseError, padded_bytes, parse_hlo

TINY = """HloModule tiny, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0}, /*index=1*/f32[8,2]{1,0})->f32[4,2]{1,0}}

FileNames
1 "/home/somebody/secret/model.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(f32[] %a, f32[] %b)
}

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0), metadata={op_name="x"}
  %w = f32[8,2]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %y = f32[4,2]{1,0} dot(f32[4,8]{1,0} %x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp(layer1))/jit(inner)/attention/dot_general" source_file="/home/somebody/secret/model.py" source_line=3}
  %r = f32[4]{0} reduce(%y, %zero), dimensions={1}, to_apply=%sum
  %e = f32[4]{0} exponential(%r), sharding={devices=[2,1]<=[2]}, never_seen={[a(b)c]: "}"}
  %b = f32[4,2]{1,0} broadcast(%e), dimensions={0}
  ROOT %z = f32[4,2]{1,0} divide(%y, /*index=1*/%b)
}
"""

WHILE = """HloModule loop, is_scheduled=true

%double (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %d = f32[8]{0} add(%p, %p)
}

%cond (s: (s32[], f32[8], f32[8])) -> pred[] {
  %s = (s32[], f32[8]{0}, f32[8]{0}) parameter(0)
  %five = s32[] constant(5)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %less = pred[] compare(%i, %five), direction=LT
}

%body (t: (s32[], f32[8], f32[8])) -> (s32[], f32[8], f32[8]) {
  %t = (s32[], f32[8]{0}, f32[8]{0}) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %h = f32[8]{0} get-tuple-element(%t), index=1
  %k = f32[8]{0} get-tuple-element(%t), index=2
  %hk = f32[8]{0} multiply(%h, %k)
  %more = f32[8]{0} fusion(%hk), kind=kLoop, calls=%double
  ROOT %out = (s32[], f32[8]{0}, f32[8]{0}) tuple(%next, %more, %k)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %i0 = s32[] copy(%zero)
  %h0 = f32[8]{0} copy(%x)
  %in = (s32[], f32[8]{0}, f32[8]{0}) tuple(%i0, %h0, %x)
  %w = (s32[], f32[8]{0}, f32[8]{0}) while(%in), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"},"x":[[]]}
  %h5 = f32[8]{0} get-tuple-element(%w), index=1
  ROOT %z = f32[8]{0} negate(%h5)
}
"""

NESTED = """HloModule nested, is_scheduled=true

%inner_cond (a: (f32[4])) -> pred[] {
  %a = (f32[4]{0}) parameter(0)
  ROOT %t = pred[] constant(true)
}

%inner_body (b: (f32[4])) -> (f32[4]) {
  %b = (f32[4]{0}) parameter(0)
  %v = f32[4]{0} get-tuple-element(%b), index=0
  %s = f32[4]{0} sine(%v)
  ROOT %o = (f32[4]{0}) tuple(%s)
}

%outer_cond (c: (f32[4])) -> pred[] {
  %c = (f32[4]{0}) parameter(0)
  ROOT %u = pred[] constant(true)
}

%outer_body (d: (f32[4])) -> (f32[4]) {
  %d = (f32[4]{0}) parameter(0)
  %inner = (f32[4]{0}) while(%d), condition=%inner_cond, body=%inner_body, backend_config={"known_trip_count":{"n":"3"}}
  %v = f32[4]{0} get-tuple-element(%inner), index=0
  %n = f32[4]{0} negate(%v)
  ROOT %o = (f32[4]{0}) tuple(%n)
}

ENTRY %main (x: f32[4]) -> (f32[4]) {
  %x = f32[4]{0} parameter(0)
  %x0 = f32[4]{0} copy(%x)
  %in = (f32[4]{0}) tuple(%x0)
  ROOT %outer = (f32[4]{0}) while(%in), condition=%outer_cond, body=%outer_body
}
"""

CONDITIONAL = """HloModule branches, is_scheduled=true

%cheap (p: f32[4,4]) -> f32[4,4] {
  %p = f32[4,4]{1,0} parameter(0)
  ROOT %n = f32[4,4]{1,0} negate(%p)
}

%dear (q: f32[4,4]) -> f32[4,4] {
  %q = f32[4,4]{1,0} parameter(0)
  ROOT %m = f32[4,4]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (which: s32[], x: f32[4,4]) -> f32[4,4] {
  %which = s32[] parameter(0)
  %x = f32[4,4]{1,0} parameter(1)
  %c = f32[4,4]{1,0} conditional(%which, %x, %x), branch_computations={%cheap, %dear}
  ROOT %r = f32[4,4]{1,0} tanh(%c)
}
"""

UPDATE = """HloModule update, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%fused (c: f32[64,32], u: f32[1,32], i: s32[]) -> f32[64,32] {
  %c = f32[64,32]{1,0} parameter(0)
  %u = f32[1,32]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %o = s32[] constant(0)
  %twice = f32[1,32]{1,0} add(%u, %u)
  ROOT %s = f32[64,32]{1,0} dynamic-update-slice(%c, %twice, %i, %o)
}

ENTRY %main (cache: f32[64,32], u: f32[1,32], i: s32[]) -> (f32[64,32], f32[1,32]) {
  %cache = f32[64,32]{1,0} parameter(0)
  %u = f32[1,32]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %o = s32[] constant(0)
  %a = f32[64,32]{1,0} dynamic-update-slice(%cache, %u, %i, %o)
  %b = f32[64,32]{1,0} fusion(%a, %u, %i), kind=kLoop, calls=%fused
  %row = f32[1,32]{1,0} dynamic-slice(%READ, %i, %o), dynamic_slice_sizes={1,32}
  ROOT %t = (f32[64,32]{1,0}, f32[1,32]{1,0}) tuple(%b, %row)
}
"""
IN_PLACE = UPDATE.replace("%READ", "%b")
READ_LATER = UPDATE.replace("%READ", "%a")

FUSION = """HloModule fused, is_scheduled=true

%body (a: f32[4], b: f32[4], unused: f32[4]) -> f32[2,4] {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %unused = f32[4]{0} parameter(2)
  %table = f32[4]{0} constant({1, 2, 3, 4})
  %half = f32[] constant(0.5)
  %s = f32[4]{0} add(%a, %b)
  %t = f32[4]{0} multiply(%s, %a)
  %u = f32[4]{0} subtract(%t, %table)
  %v = f32[2,4]{1,0} broadcast(%a), dimensions={1}
  %w = f32[2,4]{1,0} broadcast(%u), dimensions={1}
  ROOT %x = f32[2,4]{1,0} power(%v, %w)
}

ENTRY %main (a: f32[4], b: f32[4], c: f32[4]) -> f32[4,4] {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %c = f32[4]{0} parameter(2)
  %f = f32[2,4]{1,0} fusion(%a, %b, %c), kind=kLoop, calls=%body
  ROOT %g = f32[4,4]{1,0} concatenate(%f, %f), dimensions={0}
}
"""

TUPLES = """HloModule tuples, is_scheduled=true

ENTRY %main (p: (f32[16], (s32[16], token[]))) -> (f32[16], f32[16]) {
  %p = (f32[16]{0}, (s32[16]{0}, token[])) parameter(0)
  %keys = f32[16]{0} get-tuple-element(%p), index=0
  %rest = (s32[16]{0}, token[]) get-tuple-element(%p), index=1
  %values = s32[16]{0} get-tuple-element(%rest), index=0
  %both = (f32[16]{0}, s32[16]{0}) custom-call(%keys, %values), custom_call_target="Sort2", output_to_operand_aliasing={{1}: (1, {})}
  %sorted = f32[16]{0} get-tuple-element(%both), index=0
  %view = f32[4,4]{1,0} bitcast(%sorted)
  %flat = f32[16]{0} bitcast(%view)
  ROOT %r = (f32[16]{0}, f32[16]{0}) tuple(%flat, %keys)
}
"""

COPIES = """HloModule after, is_scheduled=true

ENTRY %main (x: f32[256,128], w: f32[256,128]) -> f32[256,128] {
  %x = f32[256,128]{1,0:T(8,128)} parameter(0)
  %w = f32[256,128]{1,0:T(8,128)} parameter(1)
  %copy-start = (f32[256,128]{1,0:T(8,128)S(3)}, f32[256,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%w), cross_program_prefetch_index=0
  %slice-start = ((f32[256,128]{1,0:T(8,128)}), f32[128,128]{1,0:T(8,128)S(3)}, s32[]{:S(2)}) slice-start(%x), slice={[0:128], [0:128]}
  %slice-start.1 = ((f32[256,128]{1,0:T(8,128)}), f32[128,128]{1,0:T(8,128)S(3)}, s32[]{:S(2)}) slice-start(%x), slice={[128:256], [0:128]}
  %copy-done = f32[256,128]{1,0:T(8,128)S(3)} copy-done(%copy-start)
  %n = f32[256,128]{1,0:T(8,128)S(3)} negate(%copy-done)
  %slice-done = f32[128,128]{1,0:T(8,128)S(3)} slice-done(%slice-start)
  %slice-done.1 = f32[128,128]{1,0:T(8,128)S(3)} slice-done(%slice-start.1)
  %whole = f32[256,128]{1,0:T(8,128)S(3)} custom-call(%slice-done, %slice-done.1), custom_call_target="ConcatBitcast"
  %head-start = ((f32[256,128]{1,0:T(8,128)S(3)}), f32[8,128]{1,0:T(8,128)}, s32[]{:S(2)}) slice-start(%n), slice={[0:8], [0:128]}
  %head = f32[8,128]{1,0:T(8,128)} slice-done(%head-start)
  %m = f32[256,128]{1,0:T(8,128)S(3)} multiply(%whole, %n)
  ROOT %y = (f32[256,128]{1,0:T(8,128)S(3)}, f32[8,128]{1,0:T(8,128)}) tuple(%m, %head)
}
"""
GOLDEN = [TINY, WHILE, NESTED, CONDITIONAL, IN_PLACE, READ_LATER, FUSION, TUPLES, COPIES]


def reads(program: Program, op: int) -> dict[str, int]:
    start, end = program.read_start[op : op + 2]
    return {
        program.tensor_name[t]: int(b)
        for t, b in zip(program.read_tensor[start:end], program.read_bytes[start:end], strict=True)
    }


def writes(program: Program, op: int) -> dict[str, int]:
    start, end = program.write_start[op : op + 2]
    return {
        program.tensor_name[t]: int(b)
        for t, b in zip(program.write_tensor[start:end], program.write_bytes[start:end], strict=True)
    }


def ties(program: Program) -> list[tuple[str, str, str, int]]:
    name = program.tensor_name
    return [
        (TieKind(k).name, name[s], name[t], int(at))
        for k, s, t, at in zip(
            program.tie_kind, program.tie_source, program.tie_target, program.tie_at, strict=True
        )
    ]


def kind(program: Program, tensor: str) -> str:
    return TensorKind(program.tensor_kind[program.tensor_name.index(tensor)]).name


def test_plain_module() -> None:
    program = import_hlo(TINY, weights=[1])
    assert program.order_source == "schedule"
    assert list(program.op_kind) == ["matmul", "reduce_sum", "exp", "broadcast", "div"]
    assert program.op_flops.tolist() == [[2 * 4 * 2 * 8, 0, 0], [0, 4, 0], [0, 0, 4], [0, 0, 0], [0, 8, 0]]
    assert [kind(program, name) for name in ("x", "w", "zero", "y", "z")] == [
        "INPUT",
        "WEIGHT",
        "WEIGHT",
        "ACTIVATION",
        "OUTPUT",
    ]
    assert reads(program, 0) == {"x": 128, "w": 64} and writes(program, 0) == {"y": 32}
    assert program.op_scope[0] == "layer1/attention" and program.op_backward.tolist() == [True, *[False] * 4]
    assert program.op_source.tolist() == [3, 4, 5, 6, 7]  # parameters and constants take time, too
    assert program.warnings == ()


def test_no_file_path_is_stored(tmp_path: Path) -> None:
    save(import_hlo(TINY), tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        assert not any(b"secret" in file[name].tobytes() for name in file.files)


def test_while_is_kept() -> None:
    program = import_hlo(WHILE)
    assert program.op_name == ("i0", "h0", "less", "next", "hk", "more", "z")
    assert program.op_loop.tolist() == [-1, -1, 0, 0, 0, 0, -1]
    assert program.loop_trips.tolist() == [5]
    assert program.op_repeat.tolist() == [1, 1, 5, 5, 5, 5, 1]
    assert reads(program, 2) == {"i0": 4, "five": 4}  # a loop's parameter is the tensor that comes in
    assert reads(program, 4) == {"h0": 32, "x": 32}
    assert reads(program, 6) == {"more": 32}  # and behind the loop, what the body leaves
    assert ties(program) == [("CARRIED", "i0", "next", 0), ("CARRIED", "h0", "more", 0)]
    # XLA's time: 5 before the loop, then its condition (4), its body (9), itself
    assert program.op_source.tolist() == [2, 3, 8, 12, 15, 16, 20]
    assert import_hlo(WHILE, trips={"w": 9}).loop_trips.tolist() == [9]


def test_nested_while() -> None:
    program = import_hlo(NESTED)
    assert program.op_name == ("x0", "s", "n")
    assert program.loop_parent.tolist() == [-1, 0] and program.op_loop.tolist() == [-1, 1, 0]
    assert program.loop_trips.tolist() == [1, 3]
    assert "--trip outer=N" in program.warnings[0]
    assert ties(program) == [("CARRIED", "x0", "n", 0), ("CARRIED", "x0", "s", 1)]
    assert import_hlo(NESTED, trips={"outer": 7}).op_repeat.tolist() == [1, 21, 7]


def test_loop_that_still_needs_its_operand() -> None:
    later = WHILE.replace("negate(%h5)", "add(%h5, %h0)")
    program = import_hlo(later)
    assert ties(program) == [("CARRIED", "i0", "next", 0)]
    assert program.warnings == ("1 ties dropped, the first tensor is still needed: h0 -> more",)
    assert ties(import_hlo(WHILE.replace("tuple(%i0, %h0, %x)", "tuple(%i0, %x, %x)"))) == [
        ("CARRIED", "i0", "next", 0)
    ]


def test_loop_whose_operand_is_in_two_places() -> None:
    twice = WHILE.replace("tuple(%i0, %h0, %x)", "tuple(%i0, %h0, %h0)").replace(
        "tuple(%next, %more, %k)", "tuple(%next, %more, %hk)"
    )
    assert ties(import_hlo(twice)) == [("CARRIED", "i0", "next", 0)]


def test_result_that_only_the_next_iteration_reads() -> None:
    call = '%hk = (f32[8]{0}, f32[8]{0}) custom-call(%h, %k), custom_call_target="two"'
    both = WHILE.replace("%hk = f32[8]{0} multiply(%h, %k)", call).replace(
        "%more = f32[8]{0} fusion(%hk), kind=kLoop, calls=%double",
        "%more = f32[8]{0} get-tuple-element(%hk), index=1",
    )
    program = import_hlo(both.replace("negate(%h5)", "negate(%x)"))
    assert ("CARRIED", "h0", "hk:1", 0) in ties(program)


def test_update_in_a_loop() -> None:
    update = "%hk = f32[8]{0} dynamic-update-slice(%h, %row, %one)"
    row = "%row = f32[1]{0} slice(%k), slice={[0:1]}"
    loop = WHILE.replace("%hk = f32[8]{0} multiply(%h, %k)", f"{row}\n  {update}")
    assert ("INPLACE", "h0", "hk", 5) in ties(import_hlo(loop))
    # The next iteration starts with a constant here: h0 is not carried, so it must stay as it is.
    fixed = loop.replace("tuple(%next, %more, %k)", "tuple(%next, %fix, %k)").replace(
        "  ROOT %out", "  %fix = f32[8]{0} constant({0,0,0,0,0,0,0,0})\n  ROOT %out"
    )
    assert ties(import_hlo(fixed)) == [("CARRIED", "i0", "next", 0)]


def test_fusion_counts_what_its_body_reads() -> None:
    program = import_hlo(FUSION)
    # a: once for the broadcast, once for all others; c: not at all
    assert reads(program, 0) == {"a": 32, "b": 16} and writes(program, 0) == {"f": 32}
    assert program.op_other_bytes.tolist() == [16, 0]  # the table, not the scalar
    assert program.op_flops.tolist() == [[0, 12, 8], [0, 0, 0]]
    assert reads(program, 1) == {"f": 64}  # twice


def test_conditional_keeps_the_branch_with_most_flops() -> None:
    program = import_hlo(CONDITIONAL)
    assert program.op_name == ("m", "r") and reads(program, 1) == {"m": 64}
    assert program.op_source.tolist() == [5, 7]  # the other branch takes its time
    assert program.warnings == ("1 conditionals keep only their branch with most flops: c",)
    old = CONDITIONAL.replace(
        "branch_computations={%cheap, %dear}", "true_computation=%cheap, false_computation=%dear"
    )
    assert import_hlo(old).hash == program.hash


def test_update_in_place() -> None:
    program = import_hlo(IN_PLACE)
    assert reads(program, 0) == {"cache": 0, "u": 128, "i": 4, "o": 0} and writes(program, 0) == {"a": 128}
    assert reads(program, 1) == {"a": 0, "u": 128, "i": 4} and writes(program, 1) == {"b": 128}
    assert reads(program, 2) == {"b": 128, "i": 4, "o": 0}
    assert program.attributes(1) == {"fusion_kind": "loop", "root": "dynamic-update-slice"}
    assert program.op_flops[1].tolist() == [0, 32, 0]
    assert ties(program) == [
        ("INPLACE", "cache", "a", 0),
        ("INPLACE", "a", "b", 1),
        ("DONATED", "cache", "b", -1),
    ]
    assert kind(program, "cache") == "INPUT"


def test_no_tie_with_what_is_read_later_or_not_donated() -> None:
    program = import_hlo(READ_LATER)
    assert ties(program) == [("INPLACE", "cache", "a", 0), ("DONATED", "cache", "b", -1)]
    assert program.warnings == ("1 ties dropped, the first tensor is still needed: a -> b",)
    kept = import_hlo(re.sub(r", input_output_alias=.*", "", IN_PLACE))
    assert ties(kept) == [("INPLACE", "a", "b", 1)]


def test_tuples_tokens_and_bitcasts() -> None:
    program = import_hlo(TUPLES)
    assert program.tensor_name == ("p:0", "p:1", "both:0")  # both:1 is read by nobody
    assert reads(program, 0) == {"p:0": 64, "p:1": 64} and writes(program, 0) == {"both:0": 64}
    assert program.op_other_bytes.tolist() == [64]
    assert program.op_kind[0] == "custom_call" and program.op_flops[0].tolist() == [0, 32, 0]
    assert ties(program) == []  # p:1 is not donated, and its place has no taker
    assert kind(program, "p:0") == "INPUT" and kind(program, "both:0") == "OUTPUT"
    assert program.warnings == ("1 ops of 1 unknown kinds got an estimate: custom-call Sort2 ×1",)
    with pytest.raises(BadProgram, match="Sort2 ×1"):
        import_hlo(TUPLES, strict=True)


def test_copies_between_memories_are_no_ops() -> None:
    program = import_hlo(COPIES)
    assert list(program.op_kind) == ["neg", "slice", "mul"]
    assert reads(program, 0) == {"w": 131072}
    assert reads(program, 1) == {"n": 4096} and writes(program, 1) == {"head-start": 4096}
    assert reads(program, 2) == {"x": 131072, "n": 131072}
    entry = parse_hlo(COPIES).entry
    start = entry.instructions["copy-start"]
    assert [leaf.memory_space for leaf in start.shape.leaves] == [3, 0, 2]
    assert start.attributes == {"cross_program_prefetch_index": "0"}
    assert entry.instructions["slice-start.1"].attributes["slice"] == "{[128:256], [0:128]}"


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[10,130]{1,0:T(8,128)}", 16 * 256 * 4),
        ("f32[10,130]{0,1:T(8,128)}", 136 * 128 * 4),
        ("bf16[10,130]{1,0:T(8,128)(2,1)}", 16 * 256 * 2),
        ("bf16[3,5,7]{2,1,0:T(4,128)(2,1)S(3)}", 3 * 8 * 128 * 2),
        ("f32[300]{0:T(512)}", 512 * 4),
        ("f32[]{:T(128)}", 512),
        ("f32[5]{0:T(8,128)}", 4096),
        ("s8[300]{0:T(1024)(128)(4,1)}", 1024),
        ("f32[6,5,3]{2,1,0:T(*,8)}", 6 * 16 * 4),
        ("s4[33]{0:E(4)}", 17),
        ("s4[33]{0}", 33),
        ("pred[3,<=5]", 15),
        ("f8e4m3b11fnuz[7]", 7),
        ("c128[2]{0}", 32),
        ("(f32[2], (), (s8[3], token[]), opaque[])", 11),
        ("f32[0,4611686018427387904]{1,0}", 0),
    ],
)
def test_padded_bytes(shape: str, size: int) -> None:
    module = parse_hlo(f"HloModule m\nENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n")
    assert padded_bytes(module.entry.root.shape) == size


def one(line: str) -> str:
    return f"HloModule m\n\nENTRY e {{\n  a = f32[4]{{0}} parameter(0)\n  {line}\n}}\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("HloModule", 1, "a name"),
        ("HloModule m\n", 2, "ENTRY"),
        (TINY[:-3], 23, "text ends"),
        (one("b = q7[4] negate(a)"), 5, "element type 'q7'"),
        (one("b = f32[4] negate(c)"), 5, "reads 'c'"),
        (one("a = f32[4] negate(a)"), 5, "second instruction 'a'"),
        (one("b = f32[?] negate(a)"), 5, "no size"),
        (one("b = f32[9223372036854775808] negate(a)"), 5, "no size"),
        (one("b = f32[" + "9" * 5000 + "] negate(a)"), 5, "no size"),
        (one("b = f32[" + ",".join(["9" * 18] * 999) + "] negate(a)"), 5, "2^62"),
        (one("b = f32[4]{1} negate(a)"), 5, "layout"),
        (one("b = f32[4]{0:T(0)} negate(a)"), 5, "tile"),
        (one("b = f32[4] negate(a), x=[{]"), 5, "closes nothing"),
        (one("b = f32[4] negate(a), x=" + "[" * 99), 5, "64"),
        (one("b = " + "(" * 99 + "f32[]" + ")" * 99 + " negate(a)"), 5, "64 deep"),
        (one("b = f32[4] fusion(a), kind=kLoop, calls=none"), 5, "'none'"),
        (one("b = f32[4] get-tuple-element(a), index=3"), 5, "no element"),
        (one("b = f32[4] tuple(a, a)"), 5, "1 results and gets 2"),
        (one("b = f32[4] dot(a, a), lhs_contracting_dims={7}"), 5, "do not fit"),
        (one("b = f32[4] convolution(a, a), dim_labels=what"), 5, "do not fit"),
        (one("b = f32[4] while(a)"), 5, "condition"),
        (one("b = (f32[4], f32[4], f32[4]) dynamic-update-slice(a)"), 5, "do not fit"),
        (one("b = f32[4] conditional(a, a)"), 5, "branch"),
        (one("p = f32[4] parameter(2)"), 4, "number"),
        (
            one("b = f32[4] negate(a)").replace(
                "HloModule m", "HloModule m, input_output_alias={ {}: (9, {}, may-alias) }"
            ),
            5,
            "no element",
        ),
    ],
)
def test_errors_name_the_place(text: str, line: int, says: str) -> None:
    with pytest.raises(HloParseError) as caught:
        import_hlo(text)
    assert caught.value.line == line and f"line {line}, column " in str(caught.value)
    assert says in str(caught.value) and caught.value.remedy


def test_calls_that_multiply_or_nest_are_refused() -> None:
    def chain(levels: int) -> str:
        text = "HloModule m\nc0 {\n ROOT p = f32[] parameter(0)\n}\n"
        for n in range(levels):
            text += f"c{n + 1} {{\n p = f32[] parameter(0)\n a = f32[] call(p), to_apply=c{n}\n ROOT b = f32[] call(a), to_apply=c{n}\n}}\n"
        return (
            text + f"ENTRY e {{\n p = f32[] parameter(0)\n ROOT a = f32[] call(p), to_apply=c{levels}\n}}\n"
        )

    assert import_hlo(chain(4)).n_ops == 0
    with pytest.raises(BadProgram, match="once its calls are inlined"):
        import_hlo(chain(40))
    with pytest.raises(HloParseError, match="levels deep"):
        import_hlo(chain(80))


def test_options_and_unknown_ops() -> None:
    with pytest.raises(BadProgram, match="the loops are: w"):
        import_hlo(WHILE, trips={"ww": 3})
    with pytest.raises(BadProgram, match="parameters 0 to 1"):
        import_hlo(TINY, weights=[2])
    with pytest.raises(BadProgram, match="begins with 'HloModule'"):
        import_hlo("no such\x00file")
    three = import_hlo(one("b = (f32[4], f32[4], f32[4]) dynamic-update-slice(a, a)"))
    assert three.n_ops == 1
    program = import_hlo(one("b = f32[4] frobnicate(a), how=well"))
    assert program.op_kind[0] == "unknown:frobnicate" and program.op_flops[0].tolist() == [0, 4, 0]
    assert program.warnings == (
        "unscheduled: the order is that of the text",
        "1 ops of 1 unknown kinds got an estimate: frobnicate ×1",
    )
    assert program.order_source == "file"


@pytest.mark.parametrize("text", GOLDEN)
def test_round_trip(text: str, tmp_path: Path) -> None:
    program = import_hlo(text)
    save(program, tmp_path / "p.npz")
    assert load(tmp_path / "p.npz").named_hash == program.named_hash
    (tmp_path / "m.txt").write_text(text)
    assert (
        import_hlo(tmp_path / "m.txt").named_hash
        == import_hlo(str(tmp_path / "m.txt")).named_hash
        == program.named_hash
    )


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(-3, 6),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_valid_positions_of_a_convolution(
    kernel: int, image: int, result: int, stride: int, pad: int, base: int, dilation: int
) -> None:
    places = [r * stride + k * dilation - pad for k in range(kernel) for r in range(result)]
    valid = sum(0 <= place < base * image and place % base == 0 for place in places)
    assert (
        _valid_positions(
            kernel=kernel, image=image, result=result, stride=stride, pad=pad, base=base, dilation=dilation
        )
        == valid
    )


def broken(text: str, rng: random.Random) -> str:
    match rng.randrange(5):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            return "".join(c for c in text if rng.random() > 2 / len(text))
        case 2:
            return "".join(
                rng.choice('(){}[],=%"0129 \n/*') if rng.random() < 3 / len(text) else c for c in text
            )
        case 3:
            lines = text.split("\n")
            at = rng.randrange(len(lines))
            words = lines[at].split(", ")
            rng.shuffle(words)
            return "\n".join([*lines[:at], ", ".join(words), *lines[at + 1 :]])
    numbers = re.findall(r"\d+", text)
    return text.replace(
        rng.choice(numbers), rng.choice(["0", "7", str(2**40), str(2**63)]), rng.randrange(1, 4)
    )


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(GOLDEN), st.integers(0, 2**32))
def test_broken_texts_raise_one_kind_of_error(text: str, seed: int) -> None:
    try:
        import_hlo(broken(text, random.Random(seed)))
    except BadProgram as error:
        assert error.remedy and str(error)


def test_truncated_texts_raise() -> None:
    end = TINY.rindex("}")
    for cut in random.Random(0).sample(range(len("HloModule"), end), 60):
        with pytest.raises(HloParseError):
            import_hlo(TINY[:cut])


def test_order_of_attributes_does_not_matter() -> None:
    turned = TINY.replace(
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "rhs_contracting_dims={0}, lhs_contracting_dims={1}",
    )
    assert turned != TINY and import_hlo(turned).named_hash == import_hlo(TINY).named_hash


def test_ten_thousand_instructions() -> None:
    lines = "".join(
        f'  %v{n} = f32[64,64]{{1,0:T(8,128)}} add(%v{n - 1}, %v{max(0, n - 7)}), metadata={{op_name="jit(f)/layer{n % 9}/add" stack_frame_id={n}}}\n'
        for n in range(1, 10_000)
    )
    text = f"HloModule long, is_scheduled=true\n\nENTRY %e {{\n  %v0 = f32[64,64]{{1,0:T(8,128)}} parameter(0)\n{lines}}}\n"
    program = import_hlo(text)
    assert program.n_ops == 9_999 and program.tensor_bytes[5] == 64 * 128 * 4


# What XLA itself says of texts that it has just compiled.


def models() -> dict[str, tuple[Any, list[tuple[int, ...]]]]:
    jax = pytest.importorskip("jax")
    jnp, lax = jax.numpy, jax.lax

    def mlp(w1: Any, b1: Any, w2: Any, x: Any, y: Any) -> Any:
        def loss(w1: Any, b1: Any, w2: Any) -> Any:
            return -jnp.mean(jnp.sum(jax.nn.log_softmax(jax.nn.relu(x @ w1 + b1) @ w2) * y, -1))

        return jax.value_and_grad(loss, (0, 1, 2))(w1, b1, w2)

    def conv(w1: Any, w2: Any, w3: Any, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")

        def loss(w1: Any, w2: Any, w3: Any) -> Any:
            h = x
            for w in (w1, w2):
                h = jax.nn.relu(lax.conv_general_dilated(h, w, (2, 2), "SAME", None, None, layout))
            pooled = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            return (jnp.mean(pooled, (1, 2)) @ w3).sum()

        return jax.grad(loss, (0, 1, 2))(w1, w2, w3)

    def scan(w: Any, xs: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, Any]:
            h = jnp.tanh(h @ w + x)
            return h, h

        return lax.scan(step, h, xs)[1].sum()

    def block(wq: Any, wk: Any, wv: Any, wo: Any, up: Any, down: Any, x: Any) -> Any:
        def norm(x: Any) -> Any:
            mean = x.mean(-1, keepdims=True)
            return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

        h = norm(x)
        q, k, v = ((h @ w).reshape(2, 64, 4, 32).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
        a = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 32**0.5, -1) @ v
        x = x + a.transpose(0, 2, 1, 3).reshape(2, 64, 128) @ wo
        return x + jax.nn.gelu(norm(x) @ up) @ down

    def embedding(table: Any, w: Any) -> Any:
        return jax.nn.softmax(table[jnp.arange(8) * 7 % 5 + lax.convert_element_type(w[0, 0], jnp.int32)] @ w)

    return {
        "mlp": (mlp, [(784, 256), (256,), (256, 10), (32, 784), (32, 10)]),
        "conv": (conv, [(3, 3, 3, 16), (3, 3, 16, 32), (32, 10), (4, 32, 32, 3)]),
        "scan": (jax.grad(scan), [(64, 64), (20, 8, 64), (8, 64)]),
        "block": (block, [(128, 128)] * 4 + [(128, 512), (512, 128), (2, 64, 128)]),
        "embedding": (embedding, [(5000, 64), (64, 64)]),
    }


@pytest.mark.parametrize("name", ["mlp", "conv", "scan", "block", "embedding"])
def test_totals_are_those_of_xla(name: str, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    function, shapes = models()[name]
    compiled = jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, "float32") for s in shapes)).compile()
    text = compiled.as_text()
    program = import_hlo(text, strict=True)
    xla = compiled.cost_analysis()
    flops = program.op_flops.sum(axis=0)
    # XLA adds 32-bit floats: exact below 2^24, within its rounding above.
    assert flops[:2].sum() == pytest.approx(xla["flops"], rel=2**-22)
    assert flops[2] == xla.get("transcendentals", 0)
    bytes_ = int(program.read_bytes.sum() + program.write_bytes.sum() + program.op_other_bytes.sum())
    assert bytes_ + pointer_tables(text) + whole_operands(text) == pytest.approx(
        xla["bytes accessed"], rel=2**-20
    )
    assert program.order_source == "schedule" and program.warnings == ()
    # How XLA writes a convolution depends on its version: now and then as a loop.
    assert program.n_loops == text.count(" while(") and (name != "scan" or program.n_loops == 2)
    if name == "scan":
        assert program.loop_trips.tolist() == [20, 20]
    save(program, tmp_path / "p.npz")
    assert load(tmp_path / "p.npz").hash == program.hash
    for cut in random.Random(1).sample(range(len(text) - 3), 20):
        with pytest.raises(HloParseError):
            import_hlo(text[:cut] if text[:cut].startswith("HloModule") else "HloModule")


def pointer_tables(text: str) -> int:
    """XLA counts the pointers of tuple instructions; folded away here."""
    module = parse_hlo(text)
    inlined = [module.entry.name]
    for name in inlined:
        for i in module.computations[name].instructions.values():
            inlined += (
                i.calls("body") if i.opcode == "while" else i.calls("to_apply") if i.opcode == "call" else ()
            )
    tuples = [
        i for name in inlined for i in module.computations[name].instructions.values() if i.opcode == "tuple"
    ]
    return sum(8 * len(i.operands) for i in tuples)


def whole_operands(text: str) -> int:
    """XLA counts all of an array that a fusion gathers from or scatters into; here, the rows."""
    module = parse_hlo(text)
    extra = 0
    for fusion in module.entry.instructions.values():
        for i in (
            module.computations[fusion.calls("calls")[0]].instructions.values()
            if fusion.opcode == "fusion"
            else ()
        ):
            if i.opcode in ("gather", "scatter"):
                inside = module.computations[fusion.calls("calls")[0]]
                shapes = inside.operand_shapes(i)
                rows = i.shape if i.opcode == "gather" else shapes[2]
                extra += (shapes[0].bytes - rows.bytes) * (1 if i.opcode == "gather" else 2)
    return extra
