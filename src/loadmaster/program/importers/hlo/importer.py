"""HLO text -> Program.

The text's order is kept, loops are kept (each body once, with its trip count), a fusion is
one op, and what only forwards is folded away. A conditional keeps its branch with most flops.

    program = import_hlo(jax.jit(f).lower(*args).compile().as_text())
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram, nearest
from loadmaster.files import read_regular
from loadmaster.program.build import Builder
from loadmaster.program.importers.hlo.costs import KINDS, KNOWN, CostModel
from loadmaster.program.importers.hlo.flatten import Flattener, Leaves, Step, aliases, leaves_at
from loadmaster.program.importers.hlo.module import MAX_CHARACTERS, HloParseError, Module, Shape, parse_hlo
from loadmaster.program.program import Program, TensorKind, TieKind

__all__ = ["HloParseError", "import_hlo"]

REDUCTIONS = {
    "add": "reduce_sum",
    "maximum": "reduce_max",
    "minimum": "reduce_min",
    "multiply": "reduce_mul",
    "and": "reduce_and",
    "or": "reduce_or",
}

PLACED = (0, 1, 3)
"""The memory spaces between which XLA places tensors: the slow one, VMEM and CMEM. What a text
has elsewhere (scalars, flags) is left there."""

_WRAPPED = re.compile(r"(\w+)\((.*)\)")

Tie = tuple[TieKind, int, int, int]


def import_hlo(
    source: str | Path,
    *,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
    weights: Sequence[int] = (),
) -> Program:
    """Read HLO from a file, or from a text that begins with 'HloModule'.

    `trips` gives trip counts by the names of while instructions, `weights` the numbers of
    the entry parameters that are weights. `strict` refuses ops that need an estimate.
    """
    is_text = isinstance(source, str) and source.lstrip().startswith("HloModule")
    module = parse_hlo(str(source) if is_text else _read(Path(source)))
    _check_options(module, trips or {}, weights)
    flat = Flattener(module, CostModel(module), dict(trips or {}))
    flat.span(module.entry)  # refuses what would grow without end
    arguments = [
        flat.given(parameter, TensorKind.WEIGHT if number in weights else TensorKind.INPUT)
        for number, parameter in enumerate(module.entry.parameters)
    ]
    results = flat.inline(module.entry, arguments)
    if strict and flat.estimated:
        raise BadProgram(_estimates(flat), object=next(iter(flat.estimated)), remedy="import without strict")
    return _emit(flat, arguments, results)


def _read(path: Path) -> str:
    name = str(path)[:80]
    try:
        size = path.stat().st_size
        if size <= MAX_CHARACTERS:
            data = read_regular(path, MAX_CHARACTERS)
            # As reading a text file would: line ends of any kind become one.
            text = data.decode("utf-8-sig", errors="replace")
            return text.replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BadProgram(
            f"'{name}' can't be read: {reason}",
            object=name,
            remedy="give a file, or a text that begins with 'HloModule'",
        ) from None
    raise BadProgram(
        f"'{name}' has {size} bytes", object=name, number=size, remedy=f"at most {MAX_CHARACTERS}"
    )


def _check_options(module: Module, trips: Mapping[str, int], weights: Sequence[int]) -> None:
    loops = [
        i.name for c in module.computations.values() for i in c.instructions.values() if i.opcode == "while"
    ]
    for name in trips:
        if name not in loops:
            raise BadProgram(
                f"there is no while '{name}'{nearest(name, loops)}",
                object=name,
                remedy=f"the loops are: {', '.join(loops[:8]) or 'none'}",
            )
    count = len(module.entry.parameters)
    for number in weights:
        if not 0 <= number < count:
            raise BadProgram(
                f"weight {number} is no parameter",
                number=number,
                remedy=f"the module has parameters 0 to {count - 1}",
            )


def _emit(flat: Flattener, arguments: list[Leaves], results: Leaves) -> Program:
    """The flattened module as a Program."""
    outputs = {leaf for leaf in results if leaf is not None}
    for leaf in outputs:
        flat.values[leaf].last_read = len(flat.steps)
    donated = _donations(flat.module, arguments, results)
    ties, dropped = _possible_ties(flat, {source for _, source, _, _ in donated})

    build = Builder(flat.module.name, order_source="schedule" if flat.module.is_scheduled else "file")
    tensors: dict[int, int] = {}

    def tensor(leaf: int) -> int:
        if leaf not in tensors:
            value = flat.values[leaf]
            is_output = leaf in outputs and value.step >= 0
            tensors[leaf] = build.tensor(
                value.name,
                shape=value.shape.dims,
                dtype=value.shape.dtype,
                bytes=value.shape.bytes,
                kind=TensorKind.OUTPUT if is_output else value.kind,
                fast=value.shape.memory_space in PLACED,
            )
        return tensors[leaf]

    for leaf in (leaf for argument in arguments for leaf in argument if leaf is not None):
        tensor(leaf)
    for loop in flat.loops:
        build.loop(loop.trips, loop.parent)
    flat.steps.reverse()
    while flat.steps:  # each goes when it is emitted
        step = flat.steps.pop()
        made = [
            (leaf, size) for leaf, size in zip(step.writes, step.cost.writes, strict=True) if leaf is not None
        ]
        # A result that nobody reads is no tensor; one is kept, so that no op is without any.
        read = [(leaf, size) for leaf, size in made if flat.values[leaf].last_read >= 0] or made[:1]
        unread = sum(size for _, size in made) - sum(size for _, size in read)
        kind, attributes = _kind(step, flat.module)
        scope, backward = _scope(step.instruction.op_name)
        matrix, vector, transcendental = step.cost.flops
        build.op(
            step.name,
            kind,
            attributes=attributes,
            scope=scope,
            backward=backward,
            reads=[(tensor(leaf), size) for leaf, size in step.reads.items()],
            writes=[(tensor(leaf), size) for leaf, size in read],
            matrix=matrix,
            vector=vector,
            transcendental=transcendental,
            other_bytes=step.cost.other_bytes + unread,
            dtype=_matrix_dtype(step, flat.module),
            loop=step.loop,
            source=step.time,
        )
    for kind_of_tie, source, target, at in ties + donated:
        if source in tensors and target in tensors and flat.values[target].step >= 0:
            build.tie(kind_of_tie, tensors[source], tensors[target], at)
    build.warnings += _warnings(flat, dropped)
    return build.build()


def _donations(module: Module, arguments: list[Leaves], results: Leaves) -> list[Tie]:
    root = module.entry.root
    given = Shape("tuple", parts=tuple(parameter.shape for parameter in module.entry.parameters))
    leaves = [leaf for argument in arguments for leaf in argument]
    ties = []
    for result, parameter in aliases(module.attributes.get("input_output_alias", "")):
        for to, of in zip(
            leaves_at(root, root.shape, result), leaves_at(root, given, parameter), strict=False
        ):
            source, target = leaves[of], results[to]
            if source is not None and target is not None:
                ties.append((TieKind.DONATED, source, target, -1))
    return ties


def _possible_ties(flat: Flattener, donated: set[int]) -> tuple[list[Tie], list[str]]:
    """The wished ties whose source may be overwritten (nobody needs it any more), and the others.

    XLA's scheduled texts hold copies where they are needed, so there all wishes hold.
    """
    values, loops = flat.values, flat.loops
    carried: set[tuple[int, int]] = set()  # (loop, source) of accepted ties

    def may_overwrite(source: int, loop: int) -> bool:
        """Given values are kept unless donated; a value from outside a loop must be carried by it."""
        step = values[source].step
        home = flat.steps[step].loop if step >= 0 else -1
        while loop not in (home, -1):
            if (loop, source) not in carried:
                return False
            loop = loops[loop].parent
        return step >= 0 or source in donated

    # Outer loops first: what an inner one may overwrite depends on them. In-place ties last.
    wishes = sorted(flat.ties, key=lambda tie: (tie[0] == TieKind.INPLACE, tie[3]))
    uses = Counter((kind, end, at) for kind, *ends, at in wishes for end in dict.fromkeys(ends))
    accepted, dropped = [], []
    for kind, source, target, at in wishes:
        made, last_read = values[target].step, values[source].last_read
        if kind == TieKind.CARRIED:
            loop, inside = loops[at].parent, loops[at].start <= made < loops[at].end
        else:
            loop, inside = flat.steps[at].loop, True
        alone = uses[kind, source, at] == 1 and uses[kind, target, at] == 1
        same_size = values[source].shape.bytes == values[target].shape.bytes
        if inside and alone and same_size and last_read <= made and may_overwrite(source, loop):
            accepted.append((kind, source, target, at))
            if kind == TieKind.CARRIED:
                carried.add((at, source))
        elif values[target].last_read >= 0:
            dropped.append(f"{values[source].name} -> {values[target].name}")
    return accepted, dropped


def _warnings(flat: Flattener, dropped: list[str]) -> list[str]:
    lines = []
    if not flat.module.is_scheduled:
        lines.append("unscheduled: the order is that of the text")
    if flat.unknown_trips:
        names = ", ".join(f"--trip {name}=N" for name in flat.unknown_trips[:4])
        lines.append(f"{len(flat.unknown_trips)} loops have no known trip count and run once: {names}")
    if flat.conditionals:
        names = ", ".join(flat.conditionals[:4])
        lines.append(f"{len(flat.conditionals)} conditionals keep only their branch with most flops: {names}")
    if flat.estimated:
        lines.append(_estimates(flat))
    if dropped:
        lines.append(
            f"{len(dropped)} ties dropped, the first tensor is still needed: {', '.join(dropped[:4])}"
        )
    return lines


def _estimates(flat: Flattener) -> str:
    names = ", ".join(f"{name} ×{count}" for name, count in flat.estimated.most_common(8))
    return f"{flat.estimated.total()} ops of {len(flat.estimated)} unknown kinds got an estimate: {names}"


def _kind(step: Step, module: Module) -> tuple[str, dict[str, Any]]:
    i = step.instruction
    if i.opcode == "fusion":
        root = module.computations[i.calls("calls")[0]].root.opcode
        return "fusion", {"fusion_kind": i.attributes.get("kind", "").removeprefix("k").lower(), "root": root}
    if i.opcode == "custom-call":
        return "custom_call", {"target": i.attributes.get("custom_call_target", "")}
    if i.opcode not in KNOWN:
        return f"unknown:{i.opcode}", {}
    if i.opcode == "reduce" and i.calls("to_apply"):
        function = module.computations[i.calls("to_apply")[0]]
        if len(function.instructions) == 3:
            return REDUCTIONS.get(function.root.opcode, "reduce"), {}
    return KINDS.get(i.opcode, i.opcode.lower().replace("-", "_")), {}


def _matrix_dtype(step: Step, module: Module) -> str | None:
    """The type of the first operand of a dot: the matrix unit's rate depends on it."""
    i, inside = step.instruction, step.inside
    if not step.cost.flops[0]:
        return None
    if i.opcode == "fusion":
        inside = module.computations[i.calls("calls")[0]]
        found = (j for j in inside.instructions.values() if j.opcode in ("dot", "convolution"))
        i = next(found, i)
    return inside.operand_shapes(i)[0].dtype if i.opcode != "fusion" and i.operands else None


@lru_cache(maxsize=4096)
def _scope(op_name: str) -> tuple[str, bool]:
    """The layer's path and whether it is the backward pass.

    'jit(f)/transpose(jvp(layer1))/dot_general' is in the backward pass of 'layer1'.
    """
    scope, backward = [], False
    for element in op_name.split(";")[0].split("/")[:-1]:
        while wrapped := _WRAPPED.fullmatch(element):
            backward |= wrapped.group(1) == "transpose"
            element = "" if wrapped.group(1) in ("jit", "pjit") else wrapped.group(2)
        if element:
            scope.append(element)
    return "/".join(scope), backward
