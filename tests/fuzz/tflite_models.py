"""TFLite: offsets, vtables, vectors and numbers of the flatbuffer, and what the file is made of."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from random import Random

from generate_tflite import CONV, F32, I8, I32, GraphMaker, branchy, convolutional, lstm, svdf, tflite
from loadmaster.export.tflm_arena import damaged
from loadmaster.export.tflm_file import Micro, probe_scratch
from loadmaster.export.tflm_fits import fit_micro
from loadmaster.export.tflm_measure import check_survives
from loadmaster.machine import load_machine
from loadmaster.program.importers.tflite.importer import import_tflite
from loadmaster.program.importers.tflite.read import read_tflite

from . import mutate
from .use import use_program


@cache
def seeds(place: Path) -> list[bytes]:
    return [branchy(1, 4), branchy(2, 6), _control(), loop()]


@cache
def micro_seeds(place: Path) -> list[bytes]:
    """Models that TFLite Micro runs: convolutions and what keeps a state."""
    return [branchy(1, 4), convolutional(5), convolutional(8), svdf(I8), svdf(F32), lstm(I8), lstm(F32)]


def _control() -> bytes:
    main, then, other = GraphMaker(), GraphMaker(), GraphMaker()
    for graph in (then, other):
        x, y = graph.tensor("x", [4], F32), graph.tensor("y", [4], F32)
        graph.op("ADD", [x, x], [y], {0: ("b", 0)})
        graph.inputs, graph.outputs = [x], [y]
    flag, x, y = main.tensor("flag", [], 6), main.tensor("x", [4], F32), main.tensor("y", [4], F32)
    main.op("IF", [flag, x], [y], {0: ("i", 1), 1: ("i", 2)})
    main.inputs, main.outputs = [flag, x], [y]
    return tflite(main, then, other)


def loop() -> bytes:
    main, condition, body = GraphMaker(), GraphMaker(), GraphMaker()
    i, limit, less = (condition.tensor("i", [], I32), condition.tensor("n", [], I32, struct.pack("<i", 5)), 0)
    less = condition.tensor("less", [], 6)
    condition.op("LESS", [i, limit], [less])
    condition.inputs, condition.outputs = [i], [less]
    i, one = body.tensor("i", [], I32), body.tensor("one", [], I32, struct.pack("<i", 1))
    after = body.tensor("next", [], I32)
    body.op("ADD", [i, one], [after], {0: ("b", 0)})
    body.inputs, body.outputs = [i], [after]
    x, image = main.tensor("x", [], I32), main.tensor("image", [1, 4, 4, 2], I8)
    end, out = main.tensor("end", [], I32), main.tensor("out", [1, 4, 4, 2], I8)
    weights = main.tensor("w", [2, 1, 1, 2], I8, bytes(4))
    main.op("WHILE", [x], [end], {0: ("i", 1), 1: ("i", 2)})
    main.op("CONV_2D", [image, weights], [out], CONV)
    main.inputs, main.outputs = [x, image], [end, out]
    return tflite(main, condition, body)


def changed(rng: Random, data: bytes) -> bytes:
    """Words of a flatbuffer are offsets, lengths, vtable entries and numbers: words are changed as words."""
    if rng.random() < 0.15:
        return mutate.octets(rng, data)
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        wide = rng.random() < 0.7
        size, code = (4, "<i") if wide else (2, "<H")
        if len(found) < 2 * size:
            break
        at = rng.randrange(len(found) // size) * size
        old = struct.unpack_from(code, found, at)[0]
        kind = rng.randrange(5)
        if kind == 0:
            value = old + rng.choice((-8, -4, -1, 1, 4, 8, 64))
        elif kind == 1:
            value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 65535, 32768, len(found), -at, 127))
        elif kind == 2:  # as far as some other place is
            value = rng.randrange(len(found)) - at
        elif kind == 3:
            value = struct.unpack_from(code, found, rng.randrange(len(found) // size) * size)[0]
        else:
            value = rng.randint(-4, 40)
        low, high = (-(2**31), 2**31 - 1) if wide else (0, 65535)
        struct.pack_into(code, found, at, max(low, min(high, value)))
    return bytes(found)


def read(data: bytes, place: Path) -> None:
    path = place / "model.tflite"
    path.write_bytes(data)
    use_program(import_tflite(path), place)


def fit(data: bytes, place: Path) -> None:
    """`loadmaster fits` in an arena that is too small: every way is tried."""
    path = place / "model.tflite"
    path.write_bytes(data)
    fit_micro(str(path), load_machine("arena:2KiB"), measure=False, seconds=0.2)


def interpret(data: bytes, place: Path) -> None:
    """What `export tflm` asks the interpreter: the scratch of every operator, and a run."""
    model = read_tflite(data)
    check_survives(data, 2**16)
    with damaged("model"):
        probe_scratch(model)
    Micro(data, 2**16).run(0, len(model.graphs[0].inputs), len(model.graphs[0].outputs))
