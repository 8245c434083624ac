"""The models of the GPU benchmark, in plain PyTorch: nothing to download, no dropout.

Each gives (module, inputs) on the default device; on the meta device the full size costs no memory.
The shapes of layers follow published models. Batches of the inference models follow one rule: to copy
half of what the model needs over the link takes about 0.75 to 0.9 of the time of its ops (on one
H200), as in a stack of 24 transformer layers at 8,192 tokens. With less every prefetcher hides all
copies, with more every plan waits for them; variants (`of`) with other batches show both sides.
ResNet-50 has hardly any weights, and the training steps move activations: their batches are common ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


class Attention(nn.Module):
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


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
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
        gates = torch.zeros_like(odds).scatter(-1, which, best / best.sum(-1, keepdim=True))
        room = len(tokens) * self.chosen // len(self.experts)
        shares, rows = gates.t().topk(room, -1)
        total = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            share, row = shares[number], rows[number]
            total = total.index_add(0, row, expert(tokens[row]) * share.unsqueeze(-1))
        return total.view_as(x)


class Decoder(nn.Module):
    """A Llama block; `wide` is its gated layer, or what takes its place."""

    def __init__(self, width: int, heads: int, keys: int, wide: Any) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.wide = Attention(width, heads, keys, causal=True), wide

    def forward(self, x: Any, turn: tuple[Any, Any]) -> Any:
        x = x + self.attention(self.before(x), turn)
        return x + self.wide(self.between(x))


class Block(nn.Module):
    """A block of BERT, ViT and GPT, normalized before each half."""

    def __init__(self, width: int, heads: int, wide: int, *, causal: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, bias=True)
        self.wide = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.wide(self.between(x))


class Crossed(nn.Module):
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


class Stage(nn.Module):
    """A U-Net's residual block, given the time step, and transformer blocks over its pixels."""

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


Model = tuple[Any, tuple[Any, ...]]


@contextmanager
def _made_in(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Decoders(nn.Module):
    """A language model reading its prompt: what comes after the last word."""

    def __init__(self, words: int, width: int, heads: int, layers: list[Any]) -> None:
        super().__init__()
        self.tokens, self.side = nn.Embedding(words, width), width // heads
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        turn = turns(x, self.side)
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x[:, -1]))


def llama(
    depth: int, width: int, wide: int, heads: int, keys: int, words: int, batch: int, tokens: int
) -> Model:
    layers = [Decoder(width, heads, keys, Gated(width, wide)) for _ in range(depth)]
    return _Decoders(words, width, heads, layers), (_words(words, batch, tokens),)


def moe(
    depth: int,
    width: int,
    wide: int,
    heads: int,
    keys: int,
    experts: int,
    words: int,
    batch: int,
    tokens: int,
) -> Model:
    layers = [Decoder(width, heads, keys, Experts(width, wide, experts, 2)) for _ in range(depth)]
    return _Decoders(words, width, heads, layers), (_words(words, batch, tokens),)


class _Encoder(nn.Module):
    """BERT and ViT: a class for the whole."""

    def __init__(
        self, stem: Any, places: int, width: int, wide: int, depth: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.stem, self.place = stem, nn.Parameter(torch.randn(1, places, width) * 0.02)
        self.layers = nn.ModuleList(Block(width, heads, wide) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = (x.flatten(2).transpose(1, 2) if x.ndim == 4 else x) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def bert(depth: int, width: int, heads: int, words: int, batch: int, tokens: int) -> Model:
    model = _Encoder(nn.Embedding(words, width), tokens, width, 4 * width, depth, heads, 2)
    return model, (_words(words, batch, tokens),)


def vit(depth: int, width: int, wide: int, heads: int, patch: int, batch: int, size: int) -> Model:
    stem = nn.Conv2d(3, width, patch, patch)
    model = _Encoder(stem, (size // patch) ** 2, width, wide, depth, heads, 1000)
    return model, (torch.randn(batch, 3, size, size),)


class _Unet(nn.Module):
    """A latent diffusion model's U-Net: two residual stages per level, three on the way up."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], context: int, groups: int) -> None:
        super().__init__()
        width, time = widths[0], 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter, self.down, self.shrink = nn.Conv2d(4, width, 3, 1, 1), nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        kept = [width]
        for level, (wide, depth) in enumerate(zip(widths, depths, strict=True)):
            for _ in range(2):
                self.down.append(Stage(width, wide, time, context, depth, groups))
                width = wide
                kept.append(wide)
            if level + 1 < len(widths):
                self.shrink.append(nn.Conv2d(wide, wide, 3, 2, 1))
                kept.append(wide)
        self.mid = nn.ModuleList(Stage(width, width, time, context, d, groups) for d in (depths[-1], 0))
        for level, (wide, depth) in reversed(list(enumerate(zip(widths, depths, strict=True)))):
            for _ in range(3):
                self.up.append(Stage(width + kept.pop(), wide, time, context, depth, groups))
                width = wide
            if level:
                self.grow.append(nn.Conv2d(wide, wide, 3, 1, 1))
        self.leave = nn.Sequential(nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, 4, 3, 1, 1))

    def forward(self, x: Any, time: Any, text: Any) -> Any:
        time, x = self.time(time), self.enter(x)
        kept = [x]
        for number, stage in enumerate(self.down):
            x = stage(x, time, text)
            kept.append(x)
            if number % 2 and number // 2 < len(self.shrink):
                x = self.shrink[number // 2](x)
                kept.append(x)
        for stage in self.mid:
            x = stage(x, time, text)
        for number, stage in enumerate(self.up):
            x = stage(torch.cat([x, kept.pop()], 1), time, text)
            if number % 3 == 2 and number // 3 < len(self.grow):
                x = self.grow[number // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(x)


def unet(
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    context: int,
    groups: int,
    batch: int,
    size: int,
    words: int,
) -> Model:
    text, time = torch.randn(batch, words, context), torch.randn(batch, widths[0])
    return _Unet(widths, depths, context, groups), (torch.randn(batch, 4, size, size), time, text)


class _Mean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean((2, 3))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * inner
        self.layers = nn.Sequential(
            _conv(inputs, inner, 1), _conv(inner, inner, 3, stride), _conv(inner, outputs, 1, last=True)
        )
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else _conv(inputs, outputs, 1, stride, last=True)

    def forward(self, x: Any) -> Any:
        return F.relu(self.short(x) + self.layers(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, *, last: bool = False) -> Any:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([] if last else [nn.ReLU()]))


def resnet50(counts: tuple[int, ...], width: int, batch: int, size: int) -> Model:
    layers, inputs = [_conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)], width
    for level, count in enumerate(counts):
        for number in range(count):
            stride = 2 if level and not number else 1
            layers.append(_Bottleneck(inputs, width << level, stride))
            inputs = 4 * (width << level)
    head = [_Mean(), nn.Linear(inputs, 1000)]
    # Convolutions in 16 bits are at home in this layout; in the other each would turn its input.
    model = nn.Sequential(*layers, *head).to(memory_format=torch.channels_last)
    return model, (torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last),)


class _Loss(nn.Module):
    """How wrong a model is about classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, classes: Any) -> Any:
        return F.cross_entropy(self.model(x).flatten(0, -2).float(), classes.flatten())


def resnet50_train(counts: tuple[int, ...], width: int, batch: int, size: int) -> Model:
    model, (images,) = resnet50(counts, width, batch, size)
    return _Loss(model), (images, _words(1000, batch))


class _Gpt(nn.Module):
    def __init__(self, words: int, places: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(places, width) * 0.02)
        self.layers = nn.ModuleList(Block(width, heads, 4 * width, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt_train(depth: int, width: int, heads: int, words: int, batch: int, tokens: int) -> Model:
    model = _Loss(_Gpt(words, tokens, width, depth, heads))
    return model, (_words(words, batch, tokens), _words(words, batch, tokens))


def _words(words: int, *shape: int) -> Any:
    return torch.randint(0, words, shape)


@dataclass(frozen=True)
class GpuModel:
    """One model of the suite, in its full size and in one for tests."""

    name: str
    description: str
    function: Callable[..., Model]
    full: Mapping[str, Any]
    tiny: Mapping[str, Any]
    training: bool = False
    dtype: str = "bfloat16"
    batch_slices: int = 1
    """In how many parts to compute the batch where memory is short (`capture`): its layers' inputs
    and results alone are all that the model needs."""
    of: str = ""
    """The model that it is with another batch."""

    def build(self, size: str = "full", **changes: Any) -> Model:
        """(module, inputs) on the default device; tiny ones are of 32 bits, to be run anywhere."""
        sizes = {"full": self.full, "tiny": self.tiny}[size]
        with _made_in(getattr(torch, self.dtype if size == "full" else "float32")):
            module, args = self.function(**{**sizes, **changes})
        return module.train(self.training), args

    def variant(self, name: str, description: str, **changes: Any) -> GpuModel:
        """The same with another batch."""
        return replace(
            self,
            name=f"{self.name}-{name}",
            description=description,
            of=self.name,
            full={**self.full, **changes},
        )


_MODELS = (
    GpuModel(
        "llama",
        "Llama-3-like prefill: 24 layers of 436 MB, 7 texts of 1024 words",
        llama,
        {
            "depth": 24,
            "width": 4096,
            "wide": 14336,
            "heads": 32,
            "keys": 8,
            "words": 32000,
            "batch": 7,
            "tokens": 1024,
        },
        {"depth": 2, "width": 64, "wide": 96, "heads": 4, "keys": 2, "words": 100, "batch": 2, "tokens": 16},
    ),
    GpuModel(
        "moe",
        "mixture-of-experts prefill: 14 layers, two of eight experts, 15 texts of 1024 words",
        moe,
        {
            "depth": 14,
            "width": 4096,
            "wide": 4096,
            "heads": 32,
            "keys": 8,
            "experts": 8,
            "words": 32000,
            "batch": 15,
            "tokens": 1024,
        },
        {
            "depth": 2,
            "width": 64,
            "wide": 48,
            "heads": 4,
            "keys": 2,
            "experts": 4,
            "words": 100,
            "batch": 2,
            "tokens": 16,
        },
    ),
    GpuModel(
        "bert",
        "BERT of 3.9 billion parameters, 14 texts of 512 words",
        bert,
        {"depth": 48, "width": 2560, "heads": 40, "words": 30522, "batch": 14, "tokens": 512},
        {"depth": 2, "width": 64, "heads": 4, "words": 100, "batch": 2, "tokens": 16},
    ),
    GpuModel(
        "vit",
        "ViT-e, 3.9 billion parameters, 22 images",
        vit,
        {"depth": 56, "width": 1792, "wide": 15360, "heads": 16, "patch": 14, "batch": 22, "size": 224},
        {"depth": 2, "width": 64, "wide": 160, "heads": 4, "patch": 8, "batch": 2, "size": 32},
    ),
    GpuModel(
        "unet",
        "SDXL-like diffusion U-Net, 2.6 billion parameters, 4 images of 1024 pixels",
        unet,
        {
            "widths": (320, 640, 1280),
            "depths": (0, 2, 10),
            "context": 2048,
            "groups": 32,
            "batch": 4,
            "size": 128,
            "words": 77,
        },
        {
            "widths": (16, 64),
            "depths": (0, 1),
            "context": 24,
            "groups": 4,
            "batch": 2,
            "size": 16,
            "words": 5,
        },
    ),
    GpuModel(
        "resnet50",
        "ResNet-50, 2048 images",
        resnet50,
        {"counts": (3, 4, 6, 3), "width": 64, "batch": 2048, "size": 224},
        {"counts": (1, 1, 1, 1), "width": 8, "batch": 8, "size": 32},
        batch_slices=8,
    ),
    GpuModel(
        "gpt_train",
        "training step of a GPT-2 large, 8 texts of 1024 words",
        gpt_train,
        {"depth": 36, "width": 1280, "heads": 20, "words": 50304, "batch": 8, "tokens": 1024},
        {"depth": 2, "width": 64, "heads": 4, "words": 100, "batch": 2, "tokens": 16},
        True,
    ),
    GpuModel(
        "resnet50_train",
        "training step of ResNet-50, 256 images",
        resnet50_train,
        {"counts": (3, 4, 6, 3), "width": 64, "batch": 256, "size": 224},
        {"counts": (1, 1, 1, 1), "width": 8, "batch": 4, "size": 32},
        True,
    ),
)
_BY_NAME = {model.name: model for model in _MODELS}
_VARIANTS = (
    _BY_NAME["llama"].variant("small-batch", "2 texts of 1024 words", batch=2),
    _BY_NAME["llama"].variant("large-batch", "8 texts of 2048 words", batch=8, tokens=2048),
    _BY_NAME["bert"].variant("large-batch", "32 texts of 512 words", batch=32),
    _BY_NAME["vit"].variant("large-batch", "64 images", batch=64),
    _BY_NAME["moe"].variant("large-batch", "8 texts of 4096 words", batch=8, tokens=4096),
    _BY_NAME["unet"].variant("large-batch", "8 images", batch=8),
)
GPU_MODELS: dict[str, GpuModel] = {model.name: model for model in (*_MODELS, *_VARIANTS)}
