"""Models in plain PyTorch, written for the benchmark and the tests: nothing to download.

Each function gives (module, example inputs), as `loadmaster plan benchmarks.suites.torch_models:vit
--machine …` wants it. The shapes of the layers follow the published models; images are small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Model = tuple[Any, tuple[Any, ...]]


class _Residual(nn.Module):
    """What its layers give, added to (a projection of) their input."""

    def __init__(self, layers: Any, shortcut: Any = None, after: Any = None) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.after(self.shortcut(x) + self.layers(x))


def _conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, activation: Any = nn.ReLU
) -> Any:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")  # or signals die out on the way
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([activation()] if activation else []))


def mobilenet_v2(size: int = 96, classes: int = 10) -> Model:
    """MobileNetV2: inverted residuals."""
    layers, channels = [_conv(3, 32, stride=2, activation=nn.ReLU6)], 32
    for expand, outputs, count, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for number in range(count):
            step, wide = stride if number == 0 else 1, channels * expand
            block = nn.Sequential(
                _conv(channels, wide, 1, activation=nn.ReLU6) if expand > 1 else nn.Identity(),
                _conv(wide, wide, 3, step, groups=wide, activation=nn.ReLU6),
                _conv(wide, outputs, 1, activation=None),
            )
            layers.append(_Residual(block) if step == 1 and channels == outputs else block)
            channels = outputs
    head = [
        _conv(channels, 1280, 1, activation=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, classes),
    ]
    return nn.Sequential(*layers, *head).eval(), (torch.randn(1, 3, size, size),)


def resnet18(size: int = 96, classes: int = 10) -> Model:
    """ResNet-18: basic blocks."""
    layers, channels = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        block = nn.Sequential(_conv(channels, outputs, 3, stride), _conv(outputs, outputs, activation=None))
        project = stride != 1 or channels != outputs
        shortcut = _conv(channels, outputs, 1, stride, activation=None) if project else None
        layers.append(_Residual(block, shortcut, nn.ReLU()))
        channels = outputs
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers, *head).eval(), (torch.randn(1, 3, size, size),)


def ds_cnn() -> Model:
    """DS-CNN, large: keywords in speech features of 49 times 10 numbers."""
    layers: list[Any] = [_conv(1, 276, 5, 2)]
    for _ in range(5):
        layers += [_conv(276, 276, groups=276), _conv(276, 276, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(276, 12)]
    return nn.Sequential(*layers, *head).eval(), (torch.randn(1, 1, 49, 10),)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inputs, self.output = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = [
            p.reshape(batch, tokens, self.heads, -1).transpose(1, 2) for p in self.inputs(x).chunk(3, -1)
        ]
        mixed = F.scaled_dot_product_attention(*parts)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class _Patches(nn.Module):
    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: Any) -> Any:
        return self.conv(x).flatten(2).transpose(1, 2)


class _Encoder(nn.Module):
    """A transformer's encoder over what `stem` gives, and a class for the whole."""

    def __init__(self, stem: Any, tokens: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.stem, self.place = stem, nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        blocks = []
        for _ in range(depth):
            wide = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            blocks += [
                _Residual(nn.Sequential(nn.LayerNorm(width), _Attention(width, heads))),
                _Residual(wide),
            ]
        self.blocks, self.head = nn.Sequential(*blocks, nn.LayerNorm(width)), nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.stem(x) + self.place).mean(1))


def vit(size: int = 96, classes: int = 10) -> Model:
    """ViT-Tiny: 12 blocks, 3 heads of 64."""
    model = _Encoder(_Patches(8, 192), (size // 8) ** 2, 192, 12, 3, classes)
    return model.eval(), (torch.randn(1, 3, size, size),)


def keyword_transformer() -> Model:
    """A keyword transformer: 98 frames of 40 numbers, 6 blocks."""
    return _Encoder(nn.Linear(40, 128), 98, 128, 6, 2, 12).eval(), (torch.randn(1, 98, 40),)


def text_encoder(tokens: int = 128) -> Model:
    """A small BERT: 4 blocks of width 256."""
    model = _Encoder(nn.Embedding(1000, 256), tokens, 256, 4, 4, 2)
    return model.eval(), (torch.randint(0, 1000, (1, tokens)),)


class _Dense(nn.Module):
    """Every layer sees what all before it gave."""

    def __init__(self, inputs: int, count: int, growth: int) -> None:
        super().__init__()
        widths = [inputs + number * growth for number in range(count)]
        self.layers = nn.ModuleList(
            nn.Sequential(_conv(width, 4 * growth, 1), _conv(4 * growth, growth)) for width in widths
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet(size: int = 96, classes: int = 10) -> Model:
    """A DenseNet with a growth of 16."""
    layers, channels = [_conv(3, 32, 3, 2)], 32
    for count in (4, 6, 8, 6):
        layers.append(_Dense(channels, count, 16))
        channels += 16 * count
        layers += [_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head).eval(), (torch.randn(1, 3, size, size),)


class _Unet(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(nn.Sequential(_conv(a, b), _conv(b, b)) for a, b in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[:0:-1])
        self.up = nn.ModuleList(nn.Sequential(_conv(2 * a, a), _conv(a, a)) for a, b in pairs[:0:-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Any) -> Any:
        kept: list[Any] = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        return self.head(x)


def unet(size: int = 64) -> Model:
    """A U-Net of four levels: what the way down makes waits for the way up."""
    return _Unet((16, 32, 64, 128)).eval(), (torch.randn(1, 3, size, size),)


class _Llama(nn.Module):
    """One decoder block: rotary positions, causal attention, gated layer."""

    def __init__(self, width: int, wide: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        batch, tokens, width = x.shape
        y = self.before(x)
        q, k, v = (
            p(y).reshape(batch, tokens, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        q, k = (self._turned(p, cosine, sine) for p in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def _turned(self, x: Any, cosine: Any, sine: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * cosine + torch.cat([-b, a], -1) * sine


class _LlamaStack(nn.Module):
    def __init__(self, words: int, width: int, wide: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(_Llama(width, wide, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.side = width // heads

    def forward(self, tokens: Any) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rates = 10_000 ** (-torch.arange(0, self.side, 2, device=tokens.device) / self.side)
        angles = torch.outer(places, rates).repeat(1, 2)
        x, cosine, sine = self.tokens(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def llama_7b(tokens: int = 512) -> Model:
    """The 7-billion-parameter Llama: 32 blocks of width 4096. On the meta device it takes no memory."""
    model = _LlamaStack(32_000, 4096, 11_008, 32, 32)
    return model.eval(), (torch.zeros(1, tokens, dtype=torch.int64),)
