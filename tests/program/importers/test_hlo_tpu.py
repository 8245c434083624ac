"""What texts of a TPU's compiler have and others do not; the texts are written by hand."""

from __future__ import annotations

import pytest

from loadmaster.program.importers.hlo import import_hlo
from tools.tpu.hlo_placed import flatten_placed

TILED = """HloModule tiled, is_scheduled=true

%larger (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[]{:T(256)} parameter(0)
  %b = bf16[]{:T(256)} parameter(1)
  ROOT %m = bf16[]{:T(256)} maximum(%a, %b)
}

%taken (table: bf16[1000,256], rows: s32[1024]) -> bf16[1024,256] {
  %table = bf16[1000,256]{1,0:T(8,128)(2,1)} parameter(0)
  %rows = s32[1024]{0:T(1024)} parameter(1)
  ROOT %g = bf16[1024,256]{1,0:T(8,128)(2,1)} gather(%table, %rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,256}
}

ENTRY %main (table: bf16[1000,256], rows: s32[1024], n: s32[]) -> bf16[1024,256] {
  %table = bf16[1000,256]{1,0:T(8,128)(2,1)} parameter(0)
  %rows = s32[1024]{0:T(1024)} parameter(1)
  %n = s32[]{:T(128)} parameter(2)
  %least = bf16[]{:T(256)} constant(-inf)
  %scalar = s32[]{:T(128)S(6)} copy(%n)
  %gather_fusion = bf16[1024,256]{1,0:T(8,128)(2,1)} fusion(%table, %rows), kind=kCustom, calls=%taken
  %both = (bf16[1024,256]{1,0:T(8,128)(2,1)}, s32[]{:T(128)S(6)}) tuple(%gather_fusion, %scalar)
  %one = bf16[1024,256]{1,0:T(8,128)(2,1)} get-tuple-element(%both), index=0
  %top = bf16[1024,256]{1,0:T(8,128)(2,1)} reduce-window(%one, %least), window={size=1x511 pad=0_0x255_255}, to_apply=%larger
  %near = bf16[1024,256]{1,0:T(8,128)(2,1)} reduce-window(%one, %least), window={size=1x3 pad=0_0x1_1}, to_apply=%larger
  %last = s32[]{:T(128)S(6)} get-tuple-element(%both), index=1
  %more = s32[]{:T(128)S(6)} add(%last, %last)
  ROOT %sum = bf16[1024,256]{1,0:T(8,128)(2,1)} add(%top, %near)
}
"""


def test_a_gather_from_tiles_reads_eight_rows_for_one() -> None:
    row = 512
    for text, factor in (
        (TILED, 8),
        (TILED.replace("bf16[1000,256]{1,0:T(8,128)(2,1)}", "bf16[1000,256]{1,0}"), 1),
    ):
        program = import_hlo(text)
        op = program.op_name.index("gather_fusion")
        first = int(program.read_start[op])
        assert program.read_bytes[first : first + 2].tolist() == [1024 * row * factor, 4096]
        assert program.write_bytes[int(program.write_start[op])] == 1024 * row


def test_a_window_over_everything_is_a_reduction() -> None:
    program = import_hlo(TILED)
    flops = dict(zip(program.op_name, program.op_flops[:, 1].tolist(), strict=True))
    assert flops["top"] == 1024 + 255
    assert flops["near"] == 2 * 1024 * 256


def test_scalars_stay_where_they_are() -> None:
    program = import_hlo(TILED)
    fast = dict(zip(program.tensor_name, program.tensor_fast.tolist(), strict=True))
    assert fast == {
        "table": True,
        "rows": True,
        "n": True,
        "least": True,
        "scalar": False,
        "gather_fusion": True,
        "top": True,
        "near": True,
        "more": False,
        "sum": True,
    }


def test_live_ranges() -> None:
    flat, results = flatten_placed(TILED)
    seen = {flat.buffer[v]: (flat.first_seen[v], flat.last_seen[v]) for v in flat.buffer}
    assert flat.times[5:8] == ["gather_fusion", "both", "one"]
    assert seen["gather_fusion"] == (5, 9)  # not where another element of the tuple is taken
    assert seen["scalar"] == (4, 11)
    assert [flat.buffer[value] for value in results if value is not None] == ["sum"]


def test_slices_that_are_not_joined_are_ops() -> None:
    text = """HloModule sliced, is_scheduled=true

%half (p: f32[8,128]) -> f32[4,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %s = f32[4,128]{1,0:T(4,128)S(3)} slice(%p), slice={[0:4], [0:128]}
}

ENTRY %main (x: f32[8,128]) -> f32[4,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %slice-start = ((f32[8,128]{1,0:T(8,128)}), f32[4,128]{1,0:T(4,128)S(3)}, s32[]{:S(2)}) async-start(%x), calls=%half
  %slice-done = f32[4,128]{1,0:T(4,128)S(3)} async-done(%slice-start)
  ROOT %n = f32[4,128]{1,0:T(4,128)} negate(%slice-done)
}
"""
    flat, _ = flatten_placed(text)
    assert [step.name for step in flat.steps] == ["s", "n"] and not flat.moves


@pytest.mark.parametrize("slices", [2, 3, 5])
def test_joined_slices_are_one_value(slices: int) -> None:
    starts, names = [], []
    computations = []
    for n in range(slices):
        computations.append(
            f"%c{n} (p{n}: f32[{8 * slices},128]) -> f32[8,128] {{\n"
            f"  %p{n} = f32[{8 * slices},128]{{1,0:T(8,128)}} parameter(0)\n"
            f"  ROOT %s{n} = f32[8,128]{{1,0:T(8,128)S(3)}} slice(%p{n}), slice={{[{8 * n}:{8 * n + 8}], [0:128]}}\n}}\n"
        )
        starts.append(
            f"  %start{n} = ((f32[{8 * slices},128]{{1,0:T(8,128)}}), f32[8,128]{{1,0:T(8,128)S(3)}}, s32[]{{:S(2)}}) async-start(%x), calls=%c{n}\n"
            f"  %done{n} = f32[8,128]{{1,0:T(8,128)S(3)}} async-done(%start{n})\n"
        )
        names.append(f"%done{n}")
    whole = f"f32[{8 * slices},128]{{1,0:T(8,128)S(3)}}"
    text = (
        "HloModule joined, is_scheduled=true\n\n"
        + "\n".join(computations)
        + f"\nENTRY %main (x: f32[{8 * slices},128]) -> f32[{8 * slices},128] {{\n"
        + f"  %x = f32[{8 * slices},128]{{1,0:T(8,128)}} parameter(0)\n"
        + "".join(starts)
        + f'  %all = {whole} custom-call({", ".join(names)}), custom_call_target="ConcatBitcast"\n'
        + f"  ROOT %n = f32[{8 * slices},128]{{1,0:T(8,128)}} negate(%all)\n}}\n"
    )
    flat, _ = flatten_placed(text)
    assert [step.name for step in flat.steps] == ["n"]
    (read,) = flat.steps[0].reads
    assert flat.values[flat.tensor(read)].name == "x" and flat.buffer[read] == "all"
    assert {move.target for move in flat.moves} == {read}
    assert [(move.low, move.high) for move in flat.moves] == [
        (4096 * n, 4096 * n + 4096) for n in range(slices)
    ]
