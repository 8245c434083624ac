"""Random transformers and convolutional nets, and programs at another batch: what agents are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.arrays import Int32, Int64
from loadmaster.program.build import Builder
from loadmaster.program.program import Program

Rng = np.random.Generator
Tensor = int
"""A number of `Builder`."""


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
