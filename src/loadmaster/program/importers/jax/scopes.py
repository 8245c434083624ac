"""Name stacks of JAX as scopes: the names that the user gave, without the transformations.

JAX writes `transpose(jvp(dec3))/t17` for the backward ops of `dec3/t17`. A scope here is
`dec3/t17` for both, and a flag says which is which.
"""

from __future__ import annotations

import re
from functools import cache

_TRANSFORMS = {
    "jvp",
    "transpose",
    "vmap",
    "pmap",
    "remat",
    "checkpoint",
    "linearize",
    "vjp",
    "batch",
    "mutable",
    "shard_map",
    "custom_jvp",
    "custom_vjp",
}
"""Written around the first name inside them."""
_CALLS = {"jit", "pjit", "closed_call", "core_call", "xla_call", "named_call"}
"""Written around a function's name, which is no scope."""
_MARKS = {"rematted_computation", "checkpoint", "remat"}
"""Names that JAX adds by itself."""
_WRAPPED = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


@cache
def read_stack(text: str) -> tuple[str, bool]:
    """('dec3/t17', True) for 'transpose(jvp(dec3))/t17': the scope, and whether it is backward."""
    names: list[str] = []
    restarts: list[int] = []
    backward = _collect(text, names, restarts)
    for start in restarts:
        # What remat computes again carries the stack of the backward pass and then its own:
        # transpose(jvp(a))/b/jvp(a)/b is a/b.
        if start and names[start : 2 * start] == names[:start]:
            names = names[start:]
            break
    return "/".join(names), backward


def join(outer: str, inner: str) -> str:
    """The scope of an op inside a call: that of the call, then its own."""
    return f"{outer}/{inner}" if outer and inner else outer or inner


def _collect(text: str, names: list[str], restarts: list[int]) -> bool:
    backward = False
    for part in _split(text):
        wrapped = _WRAPPED.fullmatch(part)
        if wrapped and wrapped[1] in _TRANSFORMS:
            restarts.append(len(names))
            backward |= wrapped[1] == "transpose"
            backward |= _collect(wrapped[2], names, restarts)
        elif part and part not in _MARKS and not (wrapped and wrapped[1] in _CALLS):
            names.append(part)
    return backward


def _split(text: str) -> list[str]:
    """At the slashes outside parentheses."""
    if "(" not in text:
        return text.split("/")
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
