"""Programs and machines that EGRL's policy is trained on: thousands of them, each made from its number.

What is held out was chosen before any training and is never made here:

- models: ResNet, BERT, ShuffleNet and Llama of every size and source (the cells that results are given on);
- machines: the families nnp-i, tpu-v4i and ethos-u;
- importers: every model that comes from an ONNX or a TFLite file.

A case is a program (of the zoo at another batch, a random transformer, a random convolutional net, a random
graph) and a machine (a known device's rates per kind of op, scaled at random; two to four memories of random
capacities, bandwidths, latencies and rules). Cases in which nothing can be gained are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from loadmaster.arrays import Int32, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.learn.training import Own
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine, Memory
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.program.zoo import load_workload
from loadmaster.program.zoo.random_graphs import synthetic_graph
from loadmaster.simulate.costs import compute_times

HELD_OUT_MODELS = ("resnet", "bert", "shufflenet", "llama")
HELD_OUT_MACHINES = ("nnp-i", "tpu-v4i", "ethos-u")
HELD_OUT_IMPORTERS = ("onnx", "tflite")
ZOO = (
    "alexnet-inf",
    "alexnet-train",
    "alphatensor-net",
    "diffusion-unet",
    "gpt-decode",
    "gpt-prefill",
    "inception-v3",
    "mixer-b16",
    "moe-4",
    "transformer-2-train",
    "transformer-6",
    "vit-b16",
    "wavenet",
)
FAMILIES = ("layered", "branch_join", "cells", "wavefront")
"""Of random graphs; the others are held out."""
DEVICES = ("imxrt1170", "h200", "p100x2", "v100nv-x4", "k80x2")
"""Whose rates per kind of op machines start from."""
MOST_ENTRIES = 700
MOST_OWN, OWN_TRIES = 5_000, 20
"""Entries of a user's own program, and tries after which nothing can be gained there."""
LEAST_GAIN = 0.02
"""By which the best known map must beat all in the slowest memory."""

Rng = np.random.Generator
Tensor = int
"""A number of `Builder`."""


def make_case(number: int, seed: int = 0, own: Own = ()) -> Mapping:
    """The case of a number: the same one everywhere. With programs of one's `own` every second case is one
    of them, at another batch and with other capacities."""
    rng = np.random.default_rng([seed, number])
    for tries in itertools.count():
        try:
            if own and number % 2 and tries < OWN_TRIES:
                program, machine = _vary(rng, *own[int(rng.integers(len(own)))])
            else:
                program = _random_program(rng)
                machine = _random_machine(rng, program)
            problem = Mapping(program, machine)
        except LoadmasterError:
            continue  # a machine too small for this program, for example
        most = MOST_OWN if own and number % 2 else MOST_ENTRIES
        if 8 <= int(problem.live.sum()) <= most and _can_gain(problem):
            return problem
    raise AssertionError("random cases never end")


def _vary(rng: Rng, program: Program, machine: Machine) -> tuple[Program, Machine]:
    scaled = scale_batch(program, float(rng.choice([0.25, 0.5, 1, 1, 2, 4])))
    memories = tuple(
        replace(memory, capacity=max(memory.alignment, int(memory.capacity * _log_uniform(rng, 0.5, 2))))
        for memory in machine.memories
    )
    return scaled, replace(machine, memories=memories, text="")


def _can_gain(problem: Mapping) -> bool:
    """Whether greedy by density gains something, and is not plainly optimal."""
    from loadmaster.mapping.decoder import Decoder

    decoder = Decoder(problem)
    greedy = decoder.decode(np.zeros((1, *decoder.shape)), threads=1)
    slow, dense = problem.rectify(np.stack([problem.all_slowest(), greedy[0]]), threads=1)[0].tolist()
    best = min(dense, problem.compiler_ps)
    return bool(slow >= (1 + LEAST_GAIN) * best and best > 1.003 * problem.bound().value)


def _random_program(rng: Rng) -> Program:
    makers: Sequence[tuple[float, Callable[[Rng], Program]]] = (
        (0.35, _zoo_program),
        (0.30, random_transformer),
        (0.25, random_convnet),
        (0.10, _random_graph),
    )
    chosen = rng.choice(len(makers), p=[share for share, _ in makers])
    return makers[int(chosen)][1](rng)


@lru_cache(maxsize=len(ZOO))
def _workload(name: str) -> Program:
    return load_workload(name)


def _zoo_program(rng: Rng) -> Program:
    factor = float(rng.choice([0.125, 0.25, 0.5, 1, 1, 2, 4, 8]))
    return scale_batch(_workload(str(rng.choice(ZOO))), factor)


def _random_graph(rng: Rng) -> Program:
    return synthetic_graph(str(rng.choice(FAMILIES)), int(rng.integers(2**31)))


def scale_batch(program: Program, factor: float) -> Program:
    """The program at another batch: bytes of what is no weight, and flops, grow alike."""
    loose = ~program.is_persistent[program.tensor_alias]

    def scale(amount: Int64, tensor: Int64 | Int32) -> Int64:
        grown = np.maximum(1, amount * factor).astype(np.int64)
        return np.where(loose[tensor] & (amount > 0), grown, amount)

    return replace(
        program,
        name=f"{program.name}-x{factor:g}",
        tensor_bytes=scale(program.tensor_bytes, np.arange(program.n_tensors)),
        read_bytes=scale(program.read_bytes, program.read_tensor),
        write_bytes=scale(program.write_bytes, program.write_tensor),
        op_flops=(program.op_flops * factor).astype(np.int64),
    )


class _Net:
    """A program that is written down layer by layer, with elements of `width` bytes."""

    def __init__(self, name: str, width: int) -> None:
        self.build, self.width = Builder(name), width
        self._count = 0

    def tensor(self, elements: float, kind: str = "activation") -> Tensor:
        self._count += 1
        return self.build.tensor(f"t{self._count}", bytes=max(1, int(elements * self.width)), kind=kind)

    def op(self, kind: str, reads: Sequence[Tensor], result: Tensor, **flops: float) -> Tensor:
        self._count += 1
        counted: dict[str, Any] = {name: int(amount) for name, amount in flops.items()}
        reads = list(dict.fromkeys(reads))
        self.build.op(f"o{self._count}", kind, reads=reads, writes=[result], dtype="i8", **counted)
        return result


def random_transformer(rng: Rng) -> Program:
    """Encoder or decoder, fused or op by op, with or without a cache of keys and values."""
    net = _Net("transformer", int(rng.choice([1, 2])))
    layers, size = int(rng.integers(2, 10)), int(rng.choice([128, 256, 384, 512, 768, 1024]))
    batch, tokens = int(2 ** rng.uniform(0, 5)), int(2 ** rng.uniform(4, 10))
    heads, inner = max(1, size // 64), int(rng.choice([2, 3, 4])) * size
    fused, decoder, before = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.5
    one_product, rows = rng.random() < 0.5, batch * tokens
    cached = int(2 ** rng.uniform(6, 10))

    def linear(x: Tensor, inputs: int, outputs: int) -> Tensor:
        weight, y = net.tensor(inputs * outputs, "weight"), net.tensor(rows * outputs)
        net.op("matmul", [x, weight], y, matrix=2 * rows * inputs * outputs)
        if fused:
            return y
        bias = net.tensor(outputs, "weight")
        return net.op("add", [y, bias], net.tensor(rows * outputs), vector=rows * outputs)

    def normalise(x: Tensor) -> Tensor:
        weight, y = net.tensor(2 * size, "weight"), net.tensor(rows * size)
        return net.op("layernorm", [x, weight], y, vector=6 * rows * size, transcendental=rows)

    def add(x: Tensor, y: Tensor) -> Tensor:
        return net.op("add", [x, y], net.tensor(rows * size), vector=rows * size)

    x = net.tensor(rows * size, "input")
    if rng.random() < 0.5:
        table, ids = (
            net.tensor(int(rng.integers(1000, 30_000)) * size, "weight"),
            net.tensor(rows * 4, "input"),
        )
        looked_up = net.tensor(rows * size)
        read = (table, rows * size * net.width)
        net.build.op("embed", "gather", reads=[ids, read], writes=[looked_up], dtype="i8", vector=rows * size)
        x = looked_up
    for _ in range(layers):
        y = normalise(x) if before else x
        if one_product:
            query = key = value = linear(y, size, 3 * size)
        else:
            query, key, value = (linear(y, size, size) for _ in range(3))
        if decoder:
            key = value = net.tensor(2 * batch * cached * size, "state")
        pairs = batch * heads * tokens * (cached if decoder else tokens)
        scores = net.op("matmul", [query, key], net.tensor(pairs), matrix=2 * pairs * size / heads)
        shares = net.op("softmax", [scores], net.tensor(pairs), vector=3 * pairs, transcendental=pairs)
        mixed = net.op("matmul", [shares, value], net.tensor(rows * size), matrix=2 * pairs * size / heads)
        x = add(x, linear(mixed, size, size))
        x = x if before else normalise(x)
        y = linear(normalise(x) if before else x, size, inner)
        y = net.op(
            "gelu", [y], net.tensor(rows * inner), vector=4 * rows * inner, transcendental=rows * inner
        )
        x = add(x, linear(y, inner, size))
        x = x if before else normalise(x)
    net.op("add", [x], net.tensor(rows * size, "output"), vector=rows * size)
    return net.build.build()


def random_convnet(rng: Rng) -> Program:
    """Bottlenecks, inverted bottlenecks, branches or plain; sometimes with a way back up."""
    net = _Net("convnet", int(rng.choice([1, 2])))
    batch, side = int(2 ** rng.uniform(0, 4.5)), int(rng.choice([64, 96, 128, 160, 224]))
    channels, style = int(rng.choice([16, 32, 48, 64])), int(rng.integers(4))
    apart = rng.random() < 0.4  # bias and activation are ops of their own

    def conv(
        x: Tensor, inputs: int, outputs: int, kernel: int, groups: int = 1, stride: int = 1, *also: Tensor
    ) -> Tensor:
        pixels = batch * (side // stride) ** 2
        weight, y = net.tensor(inputs * outputs * kernel**2 / groups, "weight"), net.tensor(pixels * outputs)
        work = 2 * pixels * outputs * inputs * kernel**2 / groups
        net.op("conv", [x, weight, *also], y, matrix=work, vector=0 if apart else pixels * outputs)
        if not apart:
            return y
        return net.op("relu", [y], net.tensor(pixels * outputs), vector=pixels * outputs)

    x = conv(net.tensor(batch * side**2 * 3, "input"), 3, channels, 3, 1, 2)
    side //= 2
    skips: list[Tensor] = []
    for _ in range(int(rng.integers(3, 5))):
        for _ in range(int(rng.integers(1, 7))):
            if style == 0:
                inner = max(8, channels // 4)
                y = conv(conv(x, channels, inner, 1), inner, inner, 3)
                x = conv(y, inner, channels, 1, 1, 1, x)
            elif style == 1:
                inner = channels * int(rng.choice([3, 4, 6]))
                y = conv(conv(x, channels, inner, 1), inner, inner, 3, inner)
                x = conv(y, inner, channels, 1, 1, 1, x)
            elif style == 2:
                part = max(1, channels // 4)
                branches = [conv(x, channels, part, 1)]
                branches += [conv(conv(x, channels, part, 1), part, part, k) for k in (3, 5)]
                branches.append(conv(x, channels, part, 1))
                whole = batch * side**2 * 4 * part
                x, channels = net.op("concat", branches, net.tensor(whole), vector=whole), 4 * part
            else:
                x = conv(x, channels, channels, 3)
        skips.append(x)
        wider = min(2 * channels, int(rng.choice([512, 1024, 2048])))
        x = conv(x, channels, wider, 1 if style == 0 else 3, 1, 2)
        side, channels = side // 2, wider
        if side < 7:
            break
    if rng.random() < 0.3:
        for skip in reversed(skips[-3:]):
            side, narrower = side * 2, max(16, channels // 2)
            x = conv(x, channels, narrower, 3, 1, 1, skip)
            channels = narrower
    pooled = net.op("pool", [x], net.tensor(batch * channels), vector=batch * side**2 * channels)
    weight = net.tensor(channels * 1000, "weight")
    net.op("matmul", [pooled, weight], net.tensor(batch * 1000, "output"), matrix=2 * batch * channels * 1000)
    return net.build.build()


def _random_machine(rng: Rng, program: Program) -> Machine:
    """A device of `DEVICES` with rates scaled by kind, before memories that make this program interesting:
    from nearly bound by compute to waiting for memory alone, with room for a little to a third of it."""
    base = load_machine(str(rng.choice(DEVICES))).with_reach("all")
    device = base.devices[0]
    rates = {
        unit: {kind: max(1, int(rate * factor)) for kind, rate in by_type.items()}
        for unit, by_type in device.rates.items()
        for factor in [float(np.exp(0.7 * rng.normal()))]
    }
    device = replace(device, rates=rates, launch=int(device.launch * rng.choice([0, 0, 1])))
    one = replace(base, devices=(device,))
    compute = float(compute_times(program, one)[0][:, 0] @ program.op_repeat.astype(np.float64)) / 1e12
    moved = float(program.read_bytes @ program.op_repeat[program.read_op])
    moved += float(program.write_bytes @ program.op_repeat[program.write_op])
    slowest = moved / max(1e-12, compute) * _log_uniform(rng, 0.01, 2)
    count = int(rng.choice([2, 3, 4], p=[0.3, 0.6, 0.1]))
    fastest = slowest * _log_uniform(rng, 4, 120)
    steps = np.sort(rng.uniform(0.25, 0.75, count - 2))
    bandwidth = [fastest * (slowest / fastest) ** step for step in (0.0, *steps, 1.0)]
    live = float(program.storage_bytes[program.is_root].sum())
    capacity = [live * _log_uniform(rng, 0.004, 0.3)]
    for _ in range(count - 2):
        capacity.append(capacity[-1] * _log_uniform(rng, 1.5, 12))
    capacity.append(live * 1000)
    latency = int(rng.choice([0, 0, 100_000])) if compute > 1e-3 else 0
    memories = tuple(
        Memory(
            f"m{number}",
            int(size) + 64,
            int(rate) + 1,
            int(rate * rng.choice([1, 1, 0.5])) + 1,
            latency if number == count - 1 else 0,
            64,
        )
        for number, (size, rate) in enumerate(zip(capacity, bandwidth, strict=True))
    )
    rules = replace(
        base.rules,
        ports="parallel" if rng.random() < 0.2 else "serial",
        overlap=int(rng.choice([0, 0, 0, 100_000, 500_000])),
        reach="all",
    )
    names = tuple(memory.name for memory in memories)
    device = replace(device, memories=names)
    return Machine("random", (device,), memories, rules=rules)


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
