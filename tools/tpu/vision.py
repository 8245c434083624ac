"""Programs that look at images: AlexNet, ResNet-50, Inception-v3, ViT, MLP-Mixer, a diffusion U-Net."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from loadmaster.program.zoo.layers import (
    conv,
    double,
    group_norm,
    layer_norm,
    linear,
    max_pool,
    mean_over_space,
    mean_pool,
    relu,
    silu,
)
from loadmaster.program.zoo.training import Array, Batch, Weights
from loadmaster.program.zoo.vision import BLOCKS, Step, residual
from tools.tpu.blocks import (
    batch_norm,
    block,
    conv_relu,
    feed_forward,
    patches,
    scaled,
    self_attention,
    with_first,
)

Norm = Callable[[Weights, str, Array], Array]


def alexnet(weights: Weights, data: Batch, *, classes: int = 1000) -> Array:
    """Krizhevsky et al. 2012 as one tower (64, 192, 384, 256, 256 channels), no dropout."""
    x = conv_relu(weights, "c0", data["images"], 64, (11, 11), stride=4, padding="VALID")
    x = conv_relu(weights, "c1", max_pool(x, stride=2, padding="VALID"), 192, (5, 5))
    x = max_pool(x, stride=2, padding="VALID")
    for number, size in enumerate((384, 256, 256)):
        x = conv_relu(weights, f"c{2 + number}", x, size, (3, 3))
    x = max_pool(x, stride=2, padding="VALID")
    x = lax.reshape(x, (x.shape[0], x.size // x.shape[0]))
    for number in range(2):
        x = relu(linear(weights, f"d{number}", x, 4096))
    return linear(weights, "d2", x, classes)


def resnet50(weights: Weights, data: Batch, *, training: bool = False) -> Array:
    """He et al. 2016, with the stride in the 3 × 3 convolution."""
    norm: Norm = batch_norm if training else scaled
    x = conv(weights, "stem", data["images"], 64, (7, 7), stride=2)
    x = max_pool(relu(norm(weights, "stem", x)), stride=2)
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            with jax.named_scope(f"s{stage}b{number}"):
                stride = 2 if stage and not number else 1
                x = _bottleneck(weights, f"s{stage}b{number}", x, 64 << stage, stride, norm)
    return linear(weights, "head", mean_over_space(x), 1000)


def _bottleneck(weights: Weights, name: str, x: Array, size: int, stride: int, norm: Norm) -> Array:
    y = relu(norm(weights, f"{name}.c0", conv(weights, f"{name}.c0", x, size)))
    y = conv(weights, f"{name}.c1", y, size, (3, 3), stride=stride)
    y = relu(norm(weights, f"{name}.c1", y))
    y = norm(weights, f"{name}.c2", conv(weights, f"{name}.c2", y, 4 * size))
    if x.shape != y.shape:
        x = conv(weights, f"{name}.skip", x, 4 * size, stride=stride)
        x = norm(weights, f"{name}.skip", x)
    return relu(lax.add(x, y))


def inception_v3(weights: Weights, data: Batch) -> Array:
    """Szegedy et al. 2016 in inference form, without the auxiliary head."""
    x = _unit(weights, "stem.c0", data["images"], 32, "3x3/2")
    x = _unit(weights, "stem.c1", x, 32, "3x3", "VALID")
    x = max_pool(_unit(weights, "stem.c2", x, 64, "3x3"), stride=2, padding="VALID")
    x = _unit(weights, "stem.c4", _unit(weights, "stem.c3", x, 80, "1x1"), 192, "3x3", "VALID")
    x = max_pool(x, stride=2, padding="VALID")
    for number, branches in enumerate(BLOCKS):
        with jax.named_scope(f"mixed{number}"):
            parts: list[Array] = []
            for index, branch in enumerate(branches):
                ends = [x]
                for place, what in enumerate(branch):
                    name = f"mixed{number}.b{index}.c{place}"
                    forks = what if isinstance(what, list) else [what]
                    ends = [_step(weights, f"{name}.f{i}", ends[0], f) for i, f in enumerate(forks)]
                parts += ends
            x = lax.concatenate(parts, 3)
    return linear(weights, "head", mean_over_space(x), 1000)


def _step(weights: Weights, name: str, x: Array, what: Step) -> Array:
    if isinstance(what, tuple):
        return _unit(weights, name, x, *what)
    return mean_pool(x) if what == "mean" else max_pool(x, stride=2, padding="VALID")


def _unit(weights: Weights, name: str, x: Array, size: int, form: str, padding: str | None = None) -> Array:
    """Convolution, scale and shift, ReLU; `form` is 'height x width', '/2' with a stride of 2."""
    kernel, _, stride = form.partition("/")
    sides = [int(side) for side in kernel.split("x")]
    padding = padding or ("VALID" if stride else "SAME")
    y = conv(weights, name, x, size, sides, stride=int(stride or 1), padding=padding)
    return relu(scaled(weights, name, y))


def vit_b16(weights: Weights, data: Batch) -> Array:
    """Dosovitskiy et al. 2021, "Base": 12 blocks of 768, 12 heads."""
    x = with_first(weights, patches(weights, data["images"], 16, 768))
    for layer in range(12):
        x = block(weights, f"block{layer}", x, 12, 3072)
    first = lax.squeeze(lax.slice_in_dim(x, 0, 1, axis=1), (1,))
    return linear(weights, "head", layer_norm(weights, "head.norm", first), 1000)


def mixer_b16(weights: Weights, data: Batch) -> Array:
    """Tolstikhin et al. 2021, "Base": 12 blocks of 768, 384 between tokens, 3,072 within them."""
    x = patches(weights, data["images"], 16, 768)
    for layer in range(12):
        name = f"block{layer}"
        with jax.named_scope(name):
            read = lax.transpose(layer_norm(weights, f"{name}.norm0", x), (0, 2, 1))
            mixed = feed_forward(weights, f"{name}.tokens", read, 384)
            x = lax.add(x, lax.transpose(mixed, (0, 2, 1)))
            read = layer_norm(weights, f"{name}.norm1", x)
            x = lax.add(x, feed_forward(weights, f"{name}.channels", read, 3072))
    total = lax.reduce_sum(layer_norm(weights, "head.norm", x), (1,))
    return linear(weights, "head", lax.mul(total, total.dtype.type(1 / x.shape[1])), 1000)


def diffusion_unet(weights: Weights, data: Batch, *, channels: int = 128) -> Array:
    """Like Ho et al. 2020: four levels of 64², 32², 16², 8², self-attention at 16², 8 heads."""
    with jax.named_scope("time"):
        time = silu(linear(weights, "time.l0", data["level"], 4 * channels))
        time = silu(linear(weights, "time.l1", time, 4 * channels))
    x = conv(weights, "in", data["images"], channels, (3, 3), bias=True)
    kept = [x]
    for level, factor in enumerate((1, 2, 2, 2)):
        for number in range(2):
            x = _unit_at(weights, f"down{level}.r{number}", x, factor * channels, time)
            kept.append(x)
        if level < 3:
            x = conv(weights, f"down{level}.half", x, x.shape[3], (3, 3), stride=2, bias=True)
            kept.append(x)
    for number in range(2):
        x = _unit_at(weights, f"middle.r{number}", x, x.shape[3], time)
    for level, factor in reversed(list(enumerate((1, 2, 2, 2)))):
        for number in range(3):
            x = lax.concatenate([x, kept.pop()], 3)
            x = _unit_at(weights, f"up{level}.r{number}", x, factor * channels, time)
        if level > 0:
            x = conv(weights, f"up{level}.double", double(x), x.shape[3], (3, 3), bias=True)
    x = silu(group_norm(weights, "out.norm", x))
    return conv(weights, "out", x, data["images"].shape[3], (3, 3), bias=True)


def _unit_at(weights: Weights, name: str, x: Array, size: int, time: Array) -> Array:
    """A residual block, and attention where the image is 16 × 16."""
    with jax.named_scope(name):
        x = residual(weights, name, x, size, time)
        if x.shape[1] != 16:
            return x
        points = lax.reshape(group_norm(weights, f"{name}.norm", x), (x.shape[0], 256, size))
        mixed = self_attention(weights, f"{name}.attention", points, 8)
        return lax.add(x, lax.reshape(mixed, x.shape))
