"""BERT-base for inference at the level of EGRL's graph: 376 ops, 31 for each of 12 layers.

Which ops a layer breaks into is our reading (the published graph has 376 nodes, and no list).
Weights and activations are int8 by default; biases and norms are 4-byte values.
"""

from __future__ import annotations

from loadmaster.program.build import Builder
from loadmaster.program.program import Program

WIDTH, HEADS, INNER, VOCABULARY, POSITIONS, SEGMENTS = 768, 12, 3072, 30_522, 512, 2


def bert(*, layers: int = 12, tokens: int = 128, batch: int = 1, element_bytes: int = 1) -> Program:
    """BERT-base with a classifier of two classes."""
    net = _Network(tokens, batch, element_bytes)
    x = net.embed()
    for layer in range(layers):
        x = net.layer(f"layer{layer}", x)
    net.classify(x)
    return net.build.build()


class _Network:
    def __init__(self, tokens: int, batch: int, element_bytes: int) -> None:
        self.build = Builder("bert", order_source="file")
        self.tokens, self.batch, self.element = tokens, batch, element_bytes
        self.dtype = {1: "i8", 2: "f16", 4: "f32"}[element_bytes]
        self.rows = tokens * batch
        self.mask = self.build.tensor("mask", bytes=self.rows, kind="input")

    def op(
        self,
        name: str,
        kind: str,
        inputs: list[int | tuple[int, int]],
        elements: int,
        *,
        weight: int = 0,
        macs: int = 0,
        vector: int = 0,
        role: str = "activation",
        weight_read: int | None = None,
        result_bytes: int | None = None,
        shape: tuple[int, int, int] | None = None,
    ) -> int:
        """One op with one result; `shape` is (tokens, 1, channels) or (tokens, tokens, heads)."""
        result = self.build.tensor(
            f"{name}.out",
            dtype=self.dtype,
            kind=role,
            bytes=elements * self.element if result_bytes is None else result_bytes,
        )
        reads: list[int | tuple[int, int]] = list(inputs)
        if weight:
            tensor = self.build.tensor(f"{name}.w", bytes=weight, kind="weight")
            reads.append(tensor if weight_read is None else (tensor, weight_read))
        self.build.op(
            name,
            kind,
            reads=reads,
            writes=[result],
            matrix=2 * macs,
            vector=vector,
            dtype=self.dtype,
            scope=name.rpartition(".")[0],
            attributes={"ofm": list(shape or (self.tokens, 1, WIDTH)), "batch": self.batch},
        )
        return result

    def embed(self) -> int:
        rows, e = self.rows, self.element
        ids = self.build.tensor("ids", bytes=3 * rows * 4, kind="input")
        table = (VOCABULARY + POSITIONS + SEGMENTS) * WIDTH * e
        x = self.op(
            "embed.lookup",
            "gather",
            [ids],
            rows * WIDTH,
            weight=table,
            weight_read=3 * rows * WIDTH * e,
            vector=2 * rows * WIDTH,
        )
        return self.op(
            "embed.norm", "layernorm", [x], rows * WIDTH, weight=8 * WIDTH, vector=7 * rows * WIDTH
        )

    def layer(self, name: str, x: int) -> int:
        e, wide, scores = self.element, self.rows * WIDTH, self.batch * HEADS * self.tokens**2
        grid = (self.tokens, self.tokens, HEADS)
        split = {part: self.branch(f"{name}.{part}", x) for part in ("q", "k", "v")}
        s = self.op(
            f"{name}.scores", "matmul", [split["q"], split["k"]], scores, macs=self.tokens * wide, shape=grid
        )
        s = self.op(f"{name}.scale", "mul", [s], scores, vector=scores, shape=grid)
        s = self.op(f"{name}.mask", "add", [s, self.mask], scores, vector=scores, shape=grid)
        s = self.op(f"{name}.softmax.exp", "softmax", [s], scores, vector=4 * scores, shape=grid)
        s = self.op(f"{name}.softmax.div", "softmax", [s], scores, vector=2 * scores, shape=grid)
        y = self.op(f"{name}.context", "matmul", [s, split["v"]], wide, macs=self.tokens * wide)
        y = self.op(f"{name}.merge", "transpose", [y], wide, vector=wide)
        y = self.op(f"{name}.out.matmul", "matmul", [y], wide, weight=WIDTH * WIDTH * e, macs=wide * WIDTH)
        y = self.op(f"{name}.out.bias", "add", [y], wide, weight=4 * WIDTH, vector=wide)
        y = self.op(f"{name}.res1", "add", [y, x], wide, vector=wide)
        x = self.norm(f"{name}.ln1", y)
        long, inner = self.rows * INNER, (self.tokens, 1, INNER)
        y = self.op(
            f"{name}.ffn1.matmul",
            "matmul",
            [x],
            long,
            weight=WIDTH * INNER * e,
            macs=wide * INNER,
            shape=inner,
        )
        y = self.op(f"{name}.ffn1.bias", "add", [y], long, weight=4 * INNER, vector=long, shape=inner)
        y = self.op(f"{name}.gelu", "gelu", [y], long, vector=8 * long, shape=inner)
        y = self.op(f"{name}.ffn2.matmul", "matmul", [y], wide, weight=INNER * WIDTH * e, macs=wide * INNER)
        y = self.op(f"{name}.ffn2.bias", "add", [y], wide, weight=4 * WIDTH, vector=wide)
        y = self.op(f"{name}.res2", "add", [y, x], wide, vector=wide)
        return self.norm(f"{name}.ln2", y)

    def branch(self, name: str, x: int) -> int:
        wide = self.rows * WIDTH
        y = self.op(
            f"{name}.matmul", "matmul", [x], wide, weight=WIDTH * WIDTH * self.element, macs=wide * WIDTH
        )
        y = self.op(f"{name}.bias", "add", [y], wide, weight=4 * WIDTH, vector=wide)
        return self.op(f"{name}.split", "transpose", [y], wide, vector=wide)

    def norm(self, name: str, x: int) -> int:
        wide = self.rows * WIDTH
        moments = self.op(
            f"{name}.moments", "reduce_sum", [x], 0, result_bytes=8 * self.rows, vector=3 * wide
        )
        y = self.op(f"{name}.normalise", "layernorm", [x, moments], wide, vector=2 * wide)
        return self.op(f"{name}.affine", "mul", [y], wide, weight=8 * WIDTH, vector=2 * wide)

    def classify(self, x: int) -> None:
        e, batch, one = self.element, self.batch, (1, 1, WIDTH)
        first = (x, batch * WIDTH * e)  # the pooler reads the first token alone
        y = self.op(
            "pooler",
            "matmul",
            [first],
            batch * WIDTH,
            weight=WIDTH * WIDTH * e + 4 * WIDTH,
            macs=batch * WIDTH * WIDTH,
            shape=one,
        )
        self.op(
            "classifier",
            "matmul",
            [y],
            batch * 2,
            weight=2 * WIDTH * e + 4 * 2,
            macs=batch * WIDTH * 2,
            role="output",
            shape=(1, 1, 2),
        )
