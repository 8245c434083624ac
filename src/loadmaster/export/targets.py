"""Targets of `loadmaster export`: for each, a function from what is asked to what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.export.rules import Asked, Exported


@dataclass(frozen=True)
class Target:
    """Who can take a plan."""

    export: Callable[[Asked], Exported]
    summary: str
    ending: str
    """Of the file that is written, or '' if a folder is."""
    format: str | None = None
    """How the model is read for it, if not by its ending."""
    beside: str = ""
    """The ending of a second file that is written."""

    def files(self, out: Path) -> tuple[Path, ...]:
        """What a target with an ending writes: the file, its note, and what else there is."""
        more = (out.with_suffix(self.beside),) if self.beside else ()
        return (out, out.with_name(f"{out.name}.json"), *more)


def _ort(asked: Asked) -> Exported:
    from loadmaster.export.onnx_order import export

    return export(asked)


def _tflm(asked: Asked) -> Exported:
    from loadmaster.export.tflm import export

    return export(asked)


def _header(asked: Asked) -> Exported:
    from loadmaster.export.c_header import export

    return export(asked)


def _trace(asked: Asked) -> Exported:
    from loadmaster.export.trace import export

    return export(asked)


def _model_explorer(asked: Asked) -> Exported:
    from loadmaster.export.model_explorer import export

    return export(asked)


def _csv(asked: Asked) -> Exported:
    from loadmaster.export.csv_files import export

    return export(asked)


def _onnx_metadata(asked: Asked) -> Exported:
    from loadmaster.export.onnx_metadata import export

    return export(asked)


def _executorch(asked: Asked) -> Exported:
    from loadmaster.export.executorch import export

    return export(asked)


TARGETS: dict[str, Target] = {
    "executorch": Target(_executorch, "a program with memories, offsets and order", ".pte", "executorch"),
    "ort": Target(_ort, "an ONNX model whose nodes stand in the plan's order", ".onnx", beside=".py"),
    "tflm": Target(_tflm, "a TFLite model that carries its memory plan and order", ".tflite"),
    "header": Target(_header, "a C header with the memory and offset of every tensor", ".h"),
    "trace": Target(_trace, "the times, for Perfetto and Chrome", ".trace.json.gz"),
    "model-explorer": Target(_model_explorer, "numbers for Model Explorer's nodes", ""),
    "csv": Target(_csv, "tables, and placements in MiniMalloc's form", ""),
    "onnx-metadata": Target(_onnx_metadata, "an ONNX model that tells its plan", ".onnx"),
}
"""Name -> target. A module of a target is imported when it is used."""
