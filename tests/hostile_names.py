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

TERMINAL = (
    "\x1b]0;title\x07\x1b[2J\x1b[31m"  # sets the title, clears the screen, writes in red
    "\b\b\r\x7f\x00\v\f"
    "\x9b31m\x90q\x9c\x85"  # the same with single characters above 127
    "\u202e\u2066\u200f\u2028\ufeff"  # turns the direction of text, ends lines
    "\nFORGED: all is well\n"
)
"""What a terminal would obey."""


def renamed(program: Program) -> Program:
    """The same program with hostile names everywhere."""
    tensors = tuple(f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(program.n_tensors))
    ops = tuple(f"{HOSTILE[(i + 3) % len(HOSTILE)]}{i}" for i in range(program.n_ops))
    return replace(program, name=HOSTILE[1], tensor_name=tensors, op_name=ops)
