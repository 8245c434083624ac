"""ResNet-50, -101 and -152 for inference at layer level: one op per layer, as EGRL maps them.

Batch norm, ReLU and the residual add are folded into the convolution before them: its bias is
4 bytes per output channel, and the add's second operand is an extra input of the last
convolution of a block. Version 1.5 (the stride is on the 3x3 convolution), 224 x 224 x 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.program.build import Builder
from loadmaster.program.program import Program

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


@dataclass(frozen=True)
class _Image:
    tensor: int
    side: int
    channels: int


def resnet(depth: int, *, batch: int = 1, element_bytes: int = 1) -> Program:
    """A ResNet; `element_bytes` is 1 for int8 (EGRL's setting) or 2 for 16-bit."""
    net = _Network(f"resnet{depth}", batch, element_bytes)
    image = _Image(net.build.tensor("image", bytes=net.size(224, 3), kind="input"), 224, 3)
    x = net.conv("stem", [image], 64, kernel=7, stride=2)
    x = net.pool("maxpool", x, side=56, window=3, stride=2)
    for stage, count in enumerate(BLOCKS[depth]):
        width = 64 * 2**stage
        for block in range(count):
            name = f"stage{stage + 1}.block{block + 1}"
            stride = 2 if stage > 0 and block == 0 else 1
            narrow = net.conv(f"{name}.conv1", [x], width, kernel=1, stride=1)
            middle = net.conv(f"{name}.conv2", [narrow], width, kernel=3, stride=stride)
            skip = net.conv(f"{name}.proj", [x], 4 * width, kernel=1, stride=stride) if block == 0 else x
            x = net.conv(f"{name}.conv3", [middle, skip], 4 * width, kernel=1, stride=1)
    x = net.pool("avgpool", x, side=1, window=7, stride=7)
    x = net.dense("fc", x, 1000)
    net.softmax("softmax", x)
    return net.build.build()


class _Network:
    def __init__(self, name: str, batch: int, element_bytes: int) -> None:
        self.build = Builder(name, order_source="file")
        self.batch, self.element = batch, element_bytes
        self.dtype = {1: "i8", 2: "f16", 4: "f32"}[element_bytes]

    def size(self, side: int, channels: int) -> int:
        return self.batch * side * side * channels * self.element

    def _op(
        self,
        name: str,
        kind: str,
        inputs: list[_Image],
        out: _Image | None,
        side: int,
        channels: int,
        weight: int | None,
        macs: int,
        vector: int,
        **attributes: int,
    ) -> _Image:
        role = "output" if kind == "softmax" else "activation"
        shape = (self.batch, side, side, channels) if side > 1 else (self.batch, channels)
        result = self.build.tensor(f"{name}.out", shape=shape, dtype=self.dtype, kind=role)
        reads = [image.tensor for image in inputs]
        if weight is not None:
            reads.append(self.build.tensor(f"{name}.w", bytes=weight, kind="weight"))
        first = inputs[0]
        self.build.op(
            name,
            kind,
            reads=reads,
            writes=[result],
            matrix=2 * macs,
            vector=vector,
            dtype=self.dtype,
            scope=name.rpartition(".")[0],
            attributes={
                "ifm": [first.side, first.side, first.channels],
                "ofm": [side, side, channels],
                "batch": self.batch,
                **attributes,
            },
        )
        return _Image(result, side, channels)

    def conv(self, name: str, inputs: list[_Image], channels: int, *, kernel: int, stride: int) -> _Image:
        """The first input is convolved; a second one is the residual."""
        first = inputs[0]
        side = first.side // stride
        filters = kernel * kernel * first.channels * channels
        weight = filters * self.element + 4 * channels
        macs = self.batch * side * side * filters
        return self._op(
            name,
            "conv",
            inputs,
            None,
            side,
            channels,
            weight,
            macs,
            0,
            kernel=kernel,
            stride=stride,
            pad=kernel // 2,
            dilation=1,
            groups=1,
        )

    def pool(self, name: str, x: _Image, *, side: int, window: int, stride: int) -> _Image:
        vector = self.batch * side * side * x.channels * window * window
        return self._op(
            name,
            "pool",
            [x],
            None,
            side,
            x.channels,
            None,
            0,
            vector,
            kernel=window,
            stride=stride,
            pad=window // 2 if stride < window else 0,
        )

    def dense(self, name: str, x: _Image, channels: int) -> _Image:
        weight = x.channels * channels * self.element + 4 * channels
        return self._op(name, "matmul", [x], None, 1, channels, weight, self.batch * x.channels * channels, 0)

    def softmax(self, name: str, x: _Image) -> _Image:
        return self._op(name, "softmax", [x], None, 1, x.channels, None, 0, 6 * self.batch * x.channels)
