"""Names that somebody might give to do harm."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.program.program import Program

HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "\"><b>bold</b>&amp;'",
    "right\u202eto-left\u2066marks",
    "long" * 2_500,
    "@@SCRIPT@@ @@CONTENT@@ ${window.harmed = 1}",
    "line\nbreak\ttab\x00null",
    "",
)


def renamed(program: Program) -> Program:
    """The same program with hostile names everywhere."""
    tensors = tuple(f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(program.n_tensors))
    ops = tuple(f"{HOSTILE[(i + 3) % len(HOSTILE)]}{i}" for i in range(program.n_ops))
    return replace(program, name=HOSTILE[1], tensor_name=tensors, op_name=ops)
