"""The placement that a person would choose, read from the scopes: whole layers on neighbours.

Recurrent models (a scope per time step) put layer i of L on device ⌊i·D/L⌋, encoder and decoder
alike, embeddings and attention with the first layer, the softmax with the top one. All others are
cut into contiguous runs of blocks, cells, layers or stacks of equal number, what comes before them
with the first, what comes behind with the last. Updates go with their weight.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from loadmaster.program.program import Program

Int32 = npt.NDArray[np.int32]

_NUMBERED = re.compile(r"(.*?)(\d+)")
_TIME_STEP = re.compile(r"t\d+")
_LAST = frozenset(("softmax", "head", "loss", "logits", "out", "output"))
UPDATE = "update"
"""The scope of the optimiser: 'update/<layer>.<weight>'."""


def expert_devices(program: Program, devices: int) -> Int32 | None:
    """[n_ops] the device of each op, or None if the scopes don't tell layers apart."""
    layers = _layers(program)
    if len(layers) < 2:
        return None
    recurrent = any(
        _TIME_STEP.fullmatch(part) for scope in program.op_scope.values for part in scope.split("/")
    )
    place = _by_layer(layers, devices) if recurrent else _by_block(layers, devices)
    by_scope = [place.get(_layer(scope), 0) for scope in program.op_scope.values]
    return np.array(by_scope, dtype=np.int32)[program.op_scope.codes]


def expert_placement(program: Program, group: Int32, groups: int, devices: int) -> Int32 | None:
    """[groups] the device of each group's first op, or None."""
    by_op = expert_devices(program, devices)
    if by_op is None:
        return None
    placement = np.zeros(groups, dtype=np.int32)
    real = np.flatnonzero(group >= 0)[::-1]
    placement[group[real]] = by_op[real]  # the first op of a group comes last and stays
    return placement


def _layer(scope: str) -> str:
    """'dec3' of 'dec3/t17' and of 'update/dec3.w'."""
    head, _, rest = scope.partition("/")
    return re.split(r"[./]", rest)[0] if head == UPDATE and rest else head


def _layers(program: Program) -> list[str]:
    """The layers in the order in which the program comes to them."""
    scopes = [scope for scope in program.op_scope.values if scope.partition("/")[0] != UPDATE]
    return list(dict.fromkeys(_layer(scope) for scope in scopes if scope))


def _by_layer(layers: list[str], devices: int) -> dict[str, int]:
    families: dict[str, list[tuple[int, str]]] = {}
    for name in layers:
        if match := _NUMBERED.fullmatch(name):
            families.setdefault(match[1], []).append((int(match[2]), name))
    place = {name: (devices - 1 if name in _LAST else 0) for name in layers}
    for members in families.values():
        for rank, (_, name) in enumerate(sorted(members)):
            place[name] = rank * devices // len(members)
    top = max((place[name] for family in families.values() for _, name in family), default=0)
    return {name: min(device, top) if name in _LAST else device for name, device in place.items()}


def _by_block(layers: list[str], devices: int) -> dict[str, int]:
    blocks = [name for name in layers if _NUMBERED.fullmatch(name)]
    blocks = blocks or [name for name in layers if name not in _LAST]
    place: dict[str, int] = {}
    device = 0
    for name in layers:
        if name in blocks:
            device = blocks.index(name) * devices // len(blocks)
        place[name] = device
    last = max(place.values(), default=0)
    return {name: last if name in _LAST else device for name, device in place.items()}
