"""Machines as TOML: keys, types, sizes, counts, nesting."""

from __future__ import annotations

from pathlib import Path
from random import Random

from loadmaster.machine import preset_names, preset_text, read_machine

from . import mutate
from .use import use_machine

_MCU = """name = "mcu"
description = "a small one"
[rules]
ports = "serial"
overlap = 0.5
copies = "free"
[[memory]]
name = "sram"
capacity = "512KiB"
bandwidth = "1.6GB/s"
alignment = 16
[[memory]]
name = "flash"
count = 2
capacity = 4194304
read = "100MB/s"
write = "1MB/s"
latency = "100ns"
efficiency = 0.8
[[device]]
name = "core"
count = 2
memories = ["sram", "flash{i}"]
launch = "1us"
matrix = { i8 = "4Gflop/s", "*" = "1Gflop/s" }
vector = "1Gflop/s"
efficiency = { matrix = 0.7 }
units = [["matrix"], ["vector", "transcendental"]]
[[link]]
between = "flash"
bandwidth = "1GB/s"
[[link]]
source = "flash0"
target = "sram"
bandwidth = "10GB/s"
latency = "20us"
engines = ["dma", "out.{source}"]
"""
_DERIVED = """base = "nnp-i"
name = "derived"
[[memory]]
name = "sram"
capacity = "2MiB"
"""
_WORDS = (
    '"4GB/s"',
    '"1us"',
    "[1, 2]",
    "{ a = 1 }",
    "true",
    "nan",
    "-inf",
    "count",
    "between",
    "[[memory]]",
    "[[link]]",
    "[[device]]",
    '["x"]',
    "{}",
    "4096",
    "127",
    '"{i}"',
    '"99999999999999GiB"',
    "1979-05-27",
    '"1e400GB"',
    "base",
    '"nnp-i"',
)


def seeds(place: Path) -> list[bytes]:
    small = [name for name in preset_names() if name in ("nnp-i", "toy2", "xla-unit", "tpu-v4i", "h200")]
    return [text.encode() for text in (_MCU, _DERIVED, *map(preset_text, small))]


def changed(rng: Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    kind = rng.random()
    if kind < 0.03:
        return mutate.octets(rng, data)
    if kind < 0.06:
        text += "\nx = " + rng.choice("[{") * rng.choice((3, 100, 3000))
    elif kind < 0.1:
        text += f'\n[[memory]]\nname = "many"\ncapacity = 1\nbandwidth = 1\ncount = {rng.choice((0, 2, 40, 127, 4096, 10**9))}\n'
        text += rng.choice(("", '[[link]]\nbetween = "many"\nbandwidth = 1\n'))
    return mutate.encoded(rng, mutate.lines(rng, text, tokens=_WORDS))


def read(data: bytes, place: Path) -> None:
    path = place / "machine.toml"
    path.write_bytes(data)
    use_machine(read_machine(path))
