"""HLO text: instructions, shapes, computations, attributes."""

from __future__ import annotations

from pathlib import Path
from random import Random

from loadmaster.program.importers.hlo.importer import import_hlo

from . import mutate
from .use import use_program

_DOT = """HloModule tiny, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, entry_computation_layout={(f32[4,8]{1,0}, /*index=1*/f32[8,2]{1,0})->f32[4,2]{1,0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(f32[] %a, f32[] %b)
}

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %w = f32[8,2]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %y = f32[4,2]{1,0} dot(f32[4,8]{1,0} %x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/layer/dot"}
  %r = f32[4]{0} reduce(%y, %zero), dimensions={1}, to_apply=%sum
  %e = f32[4]{0} exponential(%r), sharding={devices=[2,1]<=[2]}
  %p = f32[6]{0} pad(%e, %zero), padding=1_1
  %s = f32[4]{0} slice(%p), slice={[1:5]}
  %b = f32[4,2]{1,0} broadcast(%s), dimensions={0}
  ROOT %z = f32[4,2]{1,0} divide(%y, /*index=1*/%b)
}
"""
_WHILE = """HloModule loop, is_scheduled=true

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
  %in = (s32[], f32[8]{0}, f32[8]{0}) tuple(%zero, %x, %x)
  %w = (s32[], f32[8]{0}, f32[8]{0}) while(%in), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %o = f32[8]{0} get-tuple-element(%w), index=1
  %f = pred[] constant(true)
  ROOT %c = f32[8]{0} conditional(%f, %o, %o), true_computation=%double, false_computation=%double
}
"""
_CONV = """HloModule conv

ENTRY main {
  image = bf16[1,8,8,3]{3,2,1,0} parameter(0)
  kernel = bf16[3,3,3,4]{3,2,1,0:S(1)} parameter(1)
  conv = bf16[1,8,8,4]{3,2,1,0} convolution(image, kernel), window={size=3x3 pad=1_1x1_1 stride=1x1 rhs_dilate=1x1}, dim_labels=b01f_01io->b01f, feature_group_count=1
  start = (bf16[1,8,8,4]{3,2,1,0}, bf16[1,8,8,4]{3,2,1,0:S(1)}, u32[]) copy-start(conv)
  done = bf16[1,8,8,4]{3,2,1,0:S(1)} copy-done(start)
  i = s32[] constant(2)
  u = bf16[1,8,8,4]{3,2,1,0} dynamic-update-slice(conv, done, i, i, i, i)
  g = bf16[4,1,8,8]{3,2,1,0} transpose(u), dimensions={3,0,1,2}
  q = s8[4,64]{1,0} convert(g)
  cc = f32[4]{0} custom-call(q), custom_call_target="topk", backend_config="{}"
  ROOT out = (bf16[4,1,8,8]{3,2,1,0}, f32[4]{0}) tuple(g, cc)
}
"""
_WORDS = (
    "while",
    "fusion",
    "conditional",
    "call",
    "tuple",
    "get-tuple-element",
    "f32[2147483647,2147483647]",
    "f32[]",
    "token[]",
    "s4[7]",
    "f8e4m3fn[8]",
    "(f32[1], (f32[2], u8[3]))",
    "f32[<=8]",
    "index=7",
    "dimensions={9}",
    "calls=%body",
    "body=%body",
    "to_apply=%main",
    "{1,0}",
    "S(3)",
    "T(8,128)(2,1)",
    "/*",
    "*/",
    "constant({1,2})",
    "ROOT",
    "ENTRY",
    "reduce-window",
    "sort",
    "scatter",
    "rng",
    "async-start",
    "all-reduce",
    "%x",
    "%t",
)


def seeds(place: Path) -> list[bytes]:
    return [text.encode() for text in (_DOT, _WHILE, _CONV)]


def changed(rng: Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    kind = rng.random()
    if kind < 0.04:
        return mutate.octets(rng, data)
    if kind < 0.07:  # calls inside calls: sizes that double
        count = rng.choice((3, 20, 70))
        calls = "".join(
            f"\n%c{i} (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n"
            f"  %q = f32[8]{{0}} call(%p), to_apply=%c{i + 1}\n  ROOT %r = f32[8]{{0}} call(%q), to_apply=%c{i + 1}\n}}\n"
            for i in range(count)
        )
        text = text.replace("ENTRY", calls + "\nENTRY", 1).replace("to_apply=%sum", "to_apply=%c0")
        text = text.replace(
            f"to_apply=%c{count}", f"to_apply={rng.choice(('%double', '%c0', '%c1', '%sum'))}"
        )
    return mutate.encoded(rng, mutate.lines(rng, text, tokens=_WORDS))


def read(data: bytes, place: Path) -> None:
    path = place / "module.hlo"
    path.write_bytes(data)
    use_program(import_hlo(path), place)
