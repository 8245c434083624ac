"""What the player is trained on: random cells, each made from nothing but its number.

A cell is a program (of the suite at another batch, or a part of it; a random transformer or convolutional net, or
its training step; a random graph) and a machine (a TPU v4i with another fast memory and other bandwidths, or a small accelerator whose
copies run on links). Cells in which memory space assignment leaves nothing to gain are left out.

What is held out was chosen before any training:

- `HELD_OUT`: no training, no tuning and no choice of weights ever sees them;
- `FOLDS`: programs that are alike are left out together, so that results on each of them are of weights that
  have seen neither it nor its relatives.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

import numpy as np

from loadmaster.arrays import Int32, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.learn.training import Own
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.muzero.board import Board, first_board
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.build import Access, Builder
from loadmaster.program.program import Program, TensorKind, TieKind
from loadmaster.program.zoo import load_workload
from loadmaster.program.zoo.random_graphs import synthetic_graph
from loadmaster.program.zoo.random_nets import random_convnet, random_transformer, scale_batch

HELD_OUT = ("gpt-decode", "inception-v3", "diffusion-unet")
FOLDS = {
    "convolutions": ("alexnet-inf", "alexnet-train", "resnet50-inf", "resnet50-train"),
    "transformers": ("bert-base", "transformer-6", "transformer-2-train", "gpt-prefill"),
    "vision": ("vit-b16", "mixer-b16", "moe-4"),
    "others": ("wavenet", "alphatensor-net"),
}
PROGRAMS = tuple(itertools.chain.from_iterable(FOLDS.values()))
SHARES = {
    "suite": 0.35,
    "part": 0.2,
    "transformer": 0.07,
    "convnet": 0.07,
    "transformer-train": 0.12,
    "convnet-train": 0.12,
    "graph": 0.07,
}
FAMILIES = ("layered", "branch_join", "cells", "wavefront")
"""Of random graphs; the others are held out."""
BATCHES = (0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.5, 2.0)
MACHINES = {"tpu-v4i": 0.85, "nnp-i-dma": 0.15}
MOST_TENSORS, MOST_OWN, OWN_TRIES = 1_100, 5_000, 20
"""Of a cell; of one of a user's own, and tries after which nothing can be gained there."""
PAGE = 4096
LEAST_GAP = 0.004
"""By which the first plan must miss the bound."""
PROBES, LEAST_SPREAD = 8, 5e-4
"""Shaken orders of which the best and the worst must differ by so much: else order decides nothing."""

Rng = np.random.Generator


def left_out(fold: str | None) -> tuple[str, ...]:
    """The programs that weights of a fold never see; without a fold the held-out ones."""
    return HELD_OUT + (FOLDS[fold] if fold else ())


def make_case(number: int, seed: int = 0, without: Collection[str] = HELD_OUT, own: Own = ()) -> Board:
    """The cell of a number: the same one everywhere.

    Args:
      number, seed: of the cell.
      without: programs of the suite that it is not made from.
      own: with programs of one's own every second cell is one of them, at another batch and with another
        fast memory.
    """
    rng = np.random.default_rng([seed, number])
    for tries in itertools.count():
        is_own = bool(own) and number % 2 == 1 and tries < OWN_TRIES
        try:
            if is_own:
                program, machine = own[int(rng.integers(len(own)))]
                program = scale_batch(program, float(rng.choice(BATCHES)))
            else:
                program, machine = _random_program(rng, without), _random_preset(rng)
            problem = MallocGame(program, _vary(rng, program, machine))
        except LoadmasterError:  # a slow memory too small for this program, for example
            continue
        if 8 <= len(problem.model.tensors.size) <= (MOST_OWN if is_own else MOST_TENSORS):
            board = first_board(problem)
            if _can_gain(board, rng, problem.bound().value):
                return board
    raise AssertionError("random cells never end")


def _can_gain(board: Board, rng: Rng, bound: int) -> bool:
    shaken = board.own + 0.1 * rng.normal(size=(PROBES, board.tensors))
    shaken[0] = board.own
    total = board.place(shaken, np.zeros(PROBES, dtype=np.int64)).total
    return bool(total[0] > (1 + LEAST_GAP) * bound and total.max() > (1 + LEAST_SPREAD) * total.min())


def _random_program(rng: Rng, without: Collection[str]) -> Program:
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind.startswith(("transformer", "convnet")):
        net = random_transformer(rng) if kind.startswith("transformer") else random_convnet(rng)
        return train_step(net) if kind.endswith("train") else net
    if kind == "graph":
        return synthetic_graph(str(rng.choice(FAMILIES)), int(rng.integers(2**31)))
    name = str(rng.choice([each for each in PROGRAMS if each not in without]))
    program = scale_batch(_workload(name), float(rng.choice(BATCHES)))
    if kind == "part":
        first, last = np.sort(rng.choice(program.n_ops, 2, replace=False)).tolist()
        program = cut(program, first, last)
    return program


@lru_cache(maxsize=len(PROGRAMS))
def _workload(name: str) -> Program:
    return load_workload(name)


@lru_cache(maxsize=len(MACHINES))
def _preset(name: str) -> Machine:
    return load_machine(name)


def _random_preset(rng: Rng) -> Machine:
    return _preset(str(rng.choice(list(MACHINES), p=list(MACHINES.values()))))


def _vary(rng: Rng, program: Program, base: Machine) -> Machine:
    """With a fast memory of a usual size, or of 1 to 40 % of the program's bytes, and half of the time with
    another bandwidth of the slow one."""
    fast, slow = _memories(base)
    memories = list(base.memories)
    bytes_ = float(program.storage_bytes[program.is_root].sum())
    if rng.random() < 0.5:
        capacity = 2 ** int(rng.integers(2, 8)) * 2**20
    else:
        capacity = int(np.exp(rng.uniform(np.log(0.01), np.log(0.4))) * bytes_)
    step = memories[fast].alignment
    memories[fast] = replace(memories[fast], capacity=max(64, capacity // step) * step)
    factor = float(np.exp(rng.choice([0.0, 1.0]) * rng.uniform(np.log(0.5), np.log(2))))
    room = max(memories[slow].capacity, int(8 * bytes_) // PAGE * PAGE)
    read, write = (int(rate * factor) for rate in (memories[slow].read, memories[slow].write))
    memories[slow] = replace(memories[slow], read=read, write=write, capacity=room)
    links = tuple(replace(link, bandwidth=max(1, int(link.bandwidth * factor))) for link in base.links)
    return replace(base, memories=tuple(memories), links=links, text="")


def _memories(machine: Machine) -> tuple[int, int]:
    """(fast, slow)"""
    slow = machine.home[0]
    names = [memory.name for memory in machine.memories]
    fast = next(names.index(name) for name in machine.devices[0].memories if names.index(name) != slow)
    return fast, slow


# Programs made from others, to train on: a part of one, and the training step of a net.

ELEMENTWISE = frozenset({"add", "concat", "pool"})
"""Kinds of ops whose gradient needs nothing of what they read."""


def cut(program: Program, first: int, last: int) -> Program:
    """Ops `first` to `last` alone: what they read and do not make is given, what is read later is an output.
    Of a program without loops and views."""
    build = Builder(f"{program.name}-{first}-{last}")
    reads, writes = program.read_op, program.write_op
    inside = [(at >= first) & (at <= last) for at in (reads, writes)]
    used = np.union1d(program.read_tensor[inside[0]], program.write_tensor[inside[1]])
    read_later = np.isin(used, program.read_tensor[reads > last])
    made = np.isin(used, program.write_tensor[inside[1]])
    names: dict[int, int] = {}
    for tensor, is_made, is_read_later in zip(used.tolist(), made.tolist(), read_later.tolist(), strict=True):
        kind = TensorKind(program.tensor_kind[tensor])
        if is_made:
            kind = TensorKind.OUTPUT if is_read_later else kind
        elif kind in (TensorKind.ACTIVATION, TensorKind.OUTPUT):
            kind = TensorKind.INPUT
        size, fast = int(program.tensor_bytes[tensor]), bool(program.tensor_fast[tensor])
        names[tensor] = build.tensor(f"t{tensor}", bytes=size, kind=kind, fast=fast)
    for op in range(first, last + 1):
        _copy_op(build, program, op, names)
    for kind, source, target, at in zip(
        program.tie_kind.tolist(),
        program.tie_source.tolist(),
        program.tie_target.tolist(),
        program.tie_at.tolist(),
        strict=True,
    ):
        if kind == TieKind.INPLACE and first <= at <= last:
            build.tie(TieKind.INPLACE, names[source], names[target], at - first)
        elif kind == TieKind.DONATED and source in names and target in names:
            build.tie(TieKind.DONATED, names[source], names[target])
    return build.build()


def train_step(program: Program) -> Program:
    """The forward pass and, in reverse, for every op one that makes the gradients of what it read, and one that
    changes its weights (gradient descent)."""
    build = Builder(f"{program.name}-train")
    names: dict[int, int] = {}
    kinds = [TensorKind(kind) for kind in program.tensor_kind.tolist()]
    sizes = program.tensor_bytes.tolist()
    for tensor, kind in enumerate(kinds):
        kept = TensorKind.ACTIVATION if kind == TensorKind.OUTPUT else kind
        names[tensor] = build.tensor(f"t{tensor}", bytes=sizes[tensor], kind=kept)
    for op in range(program.n_ops):
        _copy_op(build, program, op, names)
    gradients: dict[int, int] = {}
    count = 0

    def new(size: int, kind: TensorKind = TensorKind.ACTIVATION) -> int:
        nonlocal count
        count += 1
        return build.tensor(f"g{count}", bytes=size, kind=kind)

    for op in reversed(range(program.n_ops)):
        written = program.write_tensor[program.write_start[op] : program.write_start[op + 1]].tolist()
        for tensor in written:
            if tensor not in gradients:  # the loss
                gradients[tensor] = new(sizes[tensor])
                build.op(
                    f"loss{tensor}", "loss", reads=[names[tensor]], writes=[gradients[tensor]], dtype="i8"
                )
        read = program.read_tensor[program.read_start[op] : program.read_start[op + 1]].tolist()
        weights = [tensor for tensor in read if kinds[tensor] == TensorKind.WEIGHT]
        values = [tensor for tensor in read if kinds[tensor] in (TensorKind.ACTIVATION, TensorKind.OUTPUT)]
        given = [gradients[tensor] for tensor in written]
        flops = dict(zip(("matrix", "vector", "transcendental"), program.op_flops[op].tolist(), strict=True))
        word = program.op_kind[op]
        if values:
            needed = [] if word in ELEMENTWISE else [names[tensor] for tensor in read]
            summed = [gradients[tensor] for tensor in values if tensor in gradients]
            for tensor in values:
                gradients[tensor] = new(sizes[tensor])
            made = [gradients[tensor] for tensor in values]
            reads = list(dict.fromkeys([*given, *needed, *summed]))
            build.op(f"b{op}", word, reads=reads, writes=made, dtype="i8", backward=True, **flops)
        for weight in weights:
            after = new(sizes[weight], TensorKind.OUTPUT)
            reads = [*given, *(names[tensor] for tensor in read)]
            build.op(f"u{op}.{weight}", word, reads=reads, writes=[after], dtype="i8", backward=True, **flops)
            build.tie(TieKind.DONATED, names[weight], after)
    return build.build()


def _copy_op(build: Builder, program: Program, op: int, names: dict[int, int]) -> None:
    def accesses(start: Int64, tensor: Int32, size: Int64) -> list[Access]:
        rows = slice(int(start[op]), int(start[op + 1]))
        return [(names[t], b) for t, b in zip(tensor[rows].tolist(), size[rows].tolist(), strict=True)]

    matrix, vector, transcendental = program.op_flops[op].tolist()
    build.op(
        f"o{op}",
        program.op_kind[op],
        reads=accesses(program.read_start, program.read_tensor, program.read_bytes),
        writes=accesses(program.write_start, program.write_tensor, program.write_bytes),
        matrix=matrix,
        vector=vector,
        transcendental=transcendental,
        other_bytes=int(program.op_other_bytes[op]),
        dtype=program.op_dtype[op],
        backward=bool(program.op_backward[op]),
    )
