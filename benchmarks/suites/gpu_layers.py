"""Layers of the models that are measured on GPUs: transformers and a diffusion U-Net."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def turns(x: Any, side: int) -> tuple[Any, Any]:
    """Cosines and sines of the rotary positions of tokens [batch, tokens, …]."""
    places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    rates = 10_000 ** (-torch.arange(0, side, 2, device=x.device, dtype=torch.float32) / side)
    angles = torch.outer(places, rates).repeat(1, 2)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _turned(x: Any, cosine: Any, sine: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * cosine + torch.cat([-b, a], -1) * sine


class Attention(nn.Module):  # type: ignore[misc]
    """Attention to itself or to a context; fewer heads of keys than of queries; turns or none."""

    def __init__(
        self,
        width: int,
        heads: int,
        keys: int | None = None,
        *,
        causal: bool = False,
        bias: bool = False,
        context: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.causal, side = heads, keys or heads, causal, width // heads
        self.q, self.o = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.k, self.v = (nn.Linear(context or width, self.keys * side, bias=bias) for _ in range(2))

    def forward(self, x: Any, turn: tuple[Any, Any] | None = None, context: Any = None) -> Any:
        seen = x if context is None else context
        q, k, v = (
            self._apart(layer(y), heads)
            for layer, y, heads in (
                (self.q, x, self.heads),
                (self.k, seen, self.keys),
                (self.v, seen, self.keys),
            )
        )
        if turn is not None:
            q, k = _turned(q, *turn), _turned(k, *turn)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.keys != self.heads
        )
        return self.o(mixed.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def _apart(x: Any, heads: int) -> Any:
        return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class Gated(nn.Module):  # type: ignore[misc]
    """SwiGLU."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):  # type: ignore[misc]
    """Each token goes to its best experts; each expert takes its keenest tokens, up to its share.

    Shapes don't depend on data: an expert always takes as many tokens as it has room for.
    """

    def __init__(self, width: int, wide: int, count: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.choice = chosen, nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Gated(width, wide) for _ in range(count))

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, 1)
        odds = self.choice(tokens).softmax(-1)
        best, which = odds.topk(self.chosen, -1)
        wanted = torch.zeros_like(odds).scatter(-1, which, best / best.sum(-1, keepdim=True))
        room = len(tokens) * self.chosen // len(self.experts)
        shares, rows = wanted.t().topk(room, -1)
        total = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            share, row = shares[number], rows[number]
            total = total.index_add(0, row, expert(tokens[row]) * share.unsqueeze(-1))
        return total.view_as(x)


class Decoder(nn.Module):  # type: ignore[misc]
    """A Llama block; `wide` is its gated layer, or what takes its place."""

    def __init__(self, width: int, heads: int, keys: int, wide: Any) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.wide = Attention(width, heads, keys, causal=True), wide

    def forward(self, x: Any, turn: tuple[Any, Any]) -> Any:
        x = x + self.attention(self.before(x), turn)
        return x + self.wide(self.between(x))


class Block(nn.Module):  # type: ignore[misc]
    """A block of BERT, ViT and GPT, normalized before each half."""

    def __init__(self, width: int, heads: int, wide: int, *, causal: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, bias=True)
        self.wide = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.wide(self.between(x))


class Crossed(nn.Module):  # type: ignore[misc]
    """A U-Net's transformer block: itself, the text, a gated GELU."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Attention(width, heads), Attention(width, heads, context=context)
        self.wide, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, text: Any) -> Any:
        x = x + self.own(self.norms[0](x))
        x = x + self.text(self.norms[1](x), context=text)
        a, gate = self.wide(self.norms[2](x)).chunk(2, -1)
        return x + self.down(a * F.gelu(gate))


class Stage(nn.Module):  # type: ignore[misc]
    """A U-Net's residual block, told the time, and transformer blocks over its pixels."""

    def __init__(self, inputs: int, outputs: int, time: int, context: int, depth: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, 1, 1)
        )
        self.time = nn.Linear(time, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(groups, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, 1, 1)
        )
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        if depth:
            self.norm = nn.GroupNorm(groups, outputs)
            self.enter, self.leave = nn.Linear(outputs, outputs), nn.Linear(outputs, outputs)
        self.blocks = nn.ModuleList(Crossed(outputs, context) for _ in range(depth))

    def forward(self, x: Any, time: Any, text: Any) -> Any:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        x = self.short(x) + self.second(y)
        if not self.blocks:
            return x
        tokens = self.enter(self.norm(x).flatten(2).transpose(1, 2))
        for block in self.blocks:
            tokens = block(tokens, text)
        return x + self.leave(tokens).transpose(1, 2).reshape(x.shape)
