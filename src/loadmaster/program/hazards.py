"""Places that several tensors share, and who writes over whom.

In-place and carried ties put tensors into one *place*. What is written there later destroys what was
there before, so nobody may read that afterwards (docs/simulation.md, section 6). The order of the
program says who writes when; a plan may change the order, and keeps to these waits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import distinct
from loadmaster.errors import BadProgram
from loadmaster.program.program import Program, TensorKind, TieKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def places(program: Program) -> Int32:
    """[T] representative of the place of each root: roots that in-place and carried ties join."""
    shares = program.tie_kind != TieKind.DONATED
    ends = [
        program.tensor_alias[column[shares]].tolist() for column in (program.tie_source, program.tie_target)
    ]
    place = {tensor: tensor for column in ends for tensor in column}

    def find(tensor: int) -> int:
        while place[tensor] != tensor:
            place[tensor] = place[place[tensor]]
            tensor = place[tensor]
        return tensor

    for source, target in zip(*ends, strict=True):
        one, other = find(source), find(target)
        place[max(one, other)] = min(one, other)
    found = np.arange(program.n_tensors, dtype=np.int32)
    found[list(place)] = [find(tensor) for tensor in place]
    return found


def place_bytes(program: Program) -> Int64:
    """[T] bytes of each place, at its representative: the largest of the tensors there; 0 elsewhere."""
    size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(size, places(program)[program.tensor_alias], program.storage_bytes)
    return size


def root_writers(program: Program) -> Int32:
    """[T] the op that writes each root, or -1: given. Entries of views mean nothing."""
    return np.where(program.is_given, -1, program.producer).astype(np.int32)


def overwriters(program: Program) -> Int32:
    """[T] the op that writes over a root, the next one in its place by program order; -1: none.

    It must wait for every other op that reads or writes that root.
    """
    found = np.full(program.n_tensors, -1, dtype=np.int32)
    rows, place, writer = _shared(program)
    follows = place[1:] == place[:-1]
    found[rows[:-1][follows]] = writer[1:][follows]
    return found


def overwrite_waits(program: Program) -> Int32:
    """[2, E] pairs (op, op that writes over what it uses): the second waits for the first. Each once,
    sorted; no views."""
    over, real = overwriters(program), ~program.op_view
    pairs = []
    for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        by = over[program.tensor_alias[tensor]]
        kept = (by >= 0) & (by != op) & real[op]
        pairs.append(np.stack([op[kept], by[kept]]))
    found: Int32 = np.unique(np.concatenate(pairs, axis=1), axis=1).astype(np.int32)
    return found


def refuse_hazards(program: Program) -> None:
    """Raise `BadProgram` where an op reads what another has written over, or where nobody could say
    what lies in a place."""
    rows, place, writer = _shared(program)
    if not len(rows):
        return
    twice = np.flatnonzero((place[1:] == place[:-1]) & (writer[1:] == writer[:-1]))
    if len(twice):
        _refuse_two(program, int(rows[twice[0]]), int(rows[twice[0] + 1]), int(writer[twice[0]]))
    over = overwriters(program)
    root = program.tensor_alias
    reads = root[program.read_tensor]
    late = ~program.op_view[program.read_op] & (over[reads] >= 0) & (program.read_op > over[reads])
    if late.any():
        row = int(np.argmax(late))
        reader, tensor = program.op_name[program.read_op[row]], program.tensor_name[reads[row]]
        by = int(over[reads[row]])
        raise BadProgram(
            f"op '{reader}' reads '{tensor}' after op '{program.op_name[by]}' has written over it in place",
            object=reader,
            number=by,
            remedy="read it before that, or write a tensor of its own without the tie",
        )
    outputs = root[program.tensor_kind == TensorKind.OUTPUT]
    lost = outputs[over[outputs] >= 0]
    if len(lost):
        tensor, by = program.tensor_name[lost[0]], int(over[lost[0]])
        raise BadProgram(
            f"output '{tensor}' is not there at the end: op '{program.op_name[by]}' writes over it in place",
            object=tensor,
            number=by,
            remedy="make it an activation, or write a tensor of its own without the tie",
        )


def _shared(program: Program) -> tuple[Int32, Int32, Int32]:
    """(roots that share a place with another, their places, their writers), by place and writer."""
    shares = program.tie_kind != TieKind.DONATED
    source = program.tensor_alias[program.tie_source[shares]]
    target = program.tensor_alias[program.tie_target[shares]]
    rows = distinct(np.concatenate([source[source != target], target[source != target]]))
    if not len(rows):
        return rows, rows, rows
    place, writer = places(program)[rows], root_writers(program)[rows]
    order = np.lexsort((rows, writer, place))
    return rows[order].astype(np.int32), place[order], writer[order]


def _refuse_two(program: Program, one: int, other: int, writer: int) -> None:
    names = f"'{program.tensor_name[one]}' and '{program.tensor_name[other]}'"
    who = f"op '{program.op_name[writer]}' writes" if writer >= 0 else "the program is given"
    raise BadProgram(
        f"{who} {names}, which ties put into one place",
        object=program.tensor_name[other],
        number=writer,
        remedy="tie at most one of them to what was there before",
    )
