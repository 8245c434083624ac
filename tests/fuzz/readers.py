"""All readers: where their valid inputs come from, how those are changed, and how they are read."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Reader:
    """`module` has the three functions; it is imported when it is used."""

    module: str
    seeds: str = "seeds"
    """(folder to work in) -> valid inputs, always the same ones"""
    changed: str = "changed"
    """(generator, a valid input) -> another input"""
    read: str = "read"
    """(an input, an empty folder): reads it and uses what was read"""
    needs: tuple[str, ...] = ()
    """Packages without which it can't be tried."""
    core: bool = False
    """What it reads reaches the native core: it is tried under the sanitizers too."""
    answers: tuple[str, ...] = ()
    """Names of other exceptions than `LoadmasterError` that are proper answers."""

    def function(self, name: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(importlib.import_module(f".{self.module}", __package__), name)
        return found

    def missing(self) -> str | None:
        """A package that it needs and that is not installed."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)


READERS = {
    "onnx": Reader("onnx_models", needs=("onnx",)),
    "tflite": Reader("tflite_models"),
    "arena": Reader("tflite_models", seeds="micro_seeds", read="fit"),
    "interpreter": Reader("tflite_models", seeds="micro_seeds", read="interpret", needs=("tflite_micro",)),
    "hlo": Reader("hlo_texts"),
    "npz": Reader("npz_files", seeds="programs", read="program_file", core=True),
    "policy": Reader("npz_files", seeds="policies", read="policy_file"),
    "message": Reader("npz_files", seeds="messages", read="message"),
    "toml": Reader("machines", core=True),
    "plan": Reader("plans", core=True),
    "csv": Reader("buffers", core=True),
    "run": Reader("run_folders"),
    "checkpoint": Reader("run_folders", seeds="checkpoints", changed="changed_checkpoint", read="resume"),
    "dnn-partitioning": Reader("json_files", seeds="graph_seeds", read="graph_file"),
    "costs": Reader("json_files", seeds="cost_seeds", read="cost_file"),
    "core": Reader("core_calls", core=True, answers=("ValueError", "TypeError", "RuntimeError")),
}


class Made:
    """A reader with its seeds, which makes inputs by number."""

    def __init__(self, name: str, place: Path) -> None:
        reader = READERS[name]
        self.name, self.reader = name, reader
        self.seeds: list[bytes] = reader.function(reader.seeds)(place)  # type: ignore[assignment]
        self._changed, self._read = reader.function(reader.changed), reader.function(reader.read)

    def input(self, seed: int, number: int) -> bytes:
        """The input of this number; the first ones are the valid inputs themselves."""
        if number < len(self.seeds):
            return self.seeds[number]
        rng = Random(f"{self.name}/{seed}/{number}")
        return bytes(self._changed(rng, rng.choice(self.seeds)))  # type: ignore[arg-type]

    def read(self, data: bytes, place: Path) -> None:
        self._read(data, place)
