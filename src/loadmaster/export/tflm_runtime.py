"""TFLite Micro's own interpreter, as its Python package has it: what it allocates, what it computes.

Its kernels are plain references: results are those of any port to the bit where models are of whole
numbers, times mean nothing.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.export.tflm_file import ALIGNMENT, one_operator
from loadmaster.program.importers.tflite.read import ABSENT, TfliteModel

RUNTIME = "tflite_micro.python.tflite_micro.runtime"
_MOST_ARENA = 2**31
_WITHOUT_KERNEL = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "IF", "WHILE")
"""Operators that ask for no scratch, and that can't be cut out of their model."""


class CannotRun(LoadmasterError):
    """The interpreter can't run a model."""


@dataclass(frozen=True)
class Arena:
    """Bytes of one model's arena: the head is planned, the tail is for good."""

    head: int
    tail: int


class Micro:
    """One model in the interpreter. `room`: about how many bytes its tensors may take."""

    def __init__(self, data: bytes, room: int) -> None:
        runtime = require(RUNTIME, "tflite")
        size = max(2 * room, 2**18)
        while True:
            try:
                with _errors() as said:
                    self._interpreter = runtime.Interpreter.from_bytes(data, arena_size=size)
                break
            except (RuntimeError, ValueError) as error:
                why = _one_line(said, error)
                if size >= _MOST_ARENA or not re.search(r"arena|allocat", why, re.IGNORECASE):
                    raise CannotRun(
                        f"TFLite Micro can't run the model: {why}",
                        object="model",
                        remedy="give --no-verify if another build of it can",
                    ) from None
                size *= 8

    def arena(self) -> Arena:
        with _errors() as said:
            self._interpreter.print_allocations()
        found = {
            word: int(count) for word, count in re.findall(r"Arena allocation (\w+) (\d+) bytes", said[0])
        }
        if not {"head", "tail"} <= found.keys():
            raise CannotRun(
                "TFLite Micro did not say what it allocated",
                object="print_allocations",
                remedy="install a version that does",
            )
        return Arena(found["head"], found["tail"])

    def run(self, seed: int, inputs: int, outputs: int) -> list[npt.NDArray[Any]]:
        """The results for seeded inputs, which are of the kind and shape that the model takes."""
        rng = np.random.default_rng(seed)
        for index in range(inputs):
            about = self._interpreter.get_input_details(index)
            self._interpreter.set_input(_random(rng, about["shape"], np.dtype(about["dtype"])), index)
        try:
            with _errors() as said:
                self._interpreter.invoke()
        except RuntimeError as error:
            raise CannotRun(
                f"TFLite Micro stopped: {_one_line(said, error)}",
                object="model",
                remedy="give --no-verify if another build of it can",
            ) from None
        return [np.array(self._interpreter.get_output(index)) for index in range(outputs)]


def probe_scratch(model: TfliteModel) -> dict[int, int]:
    """Operator of the first graph -> bytes of scratch that its kernel asks for while it runs.

    The file does not tell: each operator is cut out and allocated alone, and what the head has
    beyond its tensors is scratch."""
    graph, scratch = model.graphs[0], {}
    for number, operator in enumerate(graph.operators):
        if operator.name in _WITHOUT_KERNEL:
            continue
        used = {*operator.inputs, *operator.outputs} - {ABSENT}
        planned = [
            graph.tensors[n] for n in used if not graph.tensors[n].constant and not graph.tensors[n].variable
        ]
        own = sum(-(-tensor.bytes // ALIGNMENT) * ALIGNMENT for tensor in planned)
        head = Micro(one_operator(model, number), own + 2**16).arena().head
        if head > own:
            scratch[number] = head - own
    return scratch


def identical(first: Mapping[int, list[Any]], second: Mapping[int, list[Any]]) -> bool:
    """Whether two sets of results, by seed, agree to the last bit."""
    return first.keys() == second.keys() and all(
        len(first[seed]) == len(second[seed])
        and all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(first[seed], second[seed], strict=True)
        )
        for seed in first
    )


def _random(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    sizes = tuple(int(size) for size in shape)
    if dtype.kind in "iu":
        about = np.iinfo(dtype)
        # Numbers of 32 bits and more are indices and counts: small ones are safe.
        low, high = (about.min, about.max) if dtype.itemsize <= 2 else (0, 1)
        return rng.integers(low, high, sizes, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.integers(0, 2, sizes).astype(bool)
    return rng.standard_normal(sizes).astype(dtype)


def _one_line(said: list[str], error: Exception) -> str:
    return " ".join(f"{''.join(said)} {error}".split())[-160:]


@contextmanager
def _errors() -> Iterator[list[str]]:
    """What is written to standard error meanwhile, by C++ too; the list has it afterwards."""
    said: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
