"""The targets of `loadmaster export`. A target's module is imported when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.export.plans import Exported, ExportRequest


@dataclass(frozen=True)
class Target:
    """Who can take a plan."""

    exporter: str
    """module:function of this package, from an `ExportRequest` to what was written."""
    summary: str
    ending: str
    """Of the file that is written, or '' if a folder is."""
    format: str | None = None
    """How the model is read for it, if not by its ending."""
    beside: str = ""
    """The ending of a second file that is written."""
    reads_model: bool = False
    """Whether the model itself is read, which is in no run."""
    model_ending: str = ""
    """Of the models that it takes, if it takes one format alone."""

    def export(self, request: ExportRequest) -> Exported:
        """Write the plan of a request; what came of it."""
        module, _, name = self.exporter.partition(":")
        done: Exported = getattr(import_module(f"loadmaster.export.{module}"), name)(request)
        return done

    def files(self, out: Path) -> tuple[Path, ...]:
        """What a target with an ending writes: the file, its note, and what else there is."""
        more = (out.with_suffix(self.beside),) if self.beside else ()
        return (out, out.with_name(f"{out.name}.json"), *more)


TARGETS: dict[str, Target] = {
    "executorch": Target(
        "executorch:export",
        "a program with memories, offsets and order",
        ".pte",
        "executorch",
        reads_model=True,
    ),
    "ort": Target(
        "onnx_order:export",
        "an ONNX model whose nodes stand in the plan's order",
        ".onnx",
        beside=".py",
        reads_model=True,
        model_ending=".onnx",
    ),
    "tflm": Target(
        "tflm:export",
        "a TFLite model that carries its memory plan and order",
        ".tflite",
        reads_model=True,
        model_ending=".tflite",
    ),
    "header": Target("c_header:export", "a C header with the memory and offset of every tensor", ".h"),
    "trace": Target("trace:export", "the times, for Perfetto and Chrome", ".trace.json.gz"),
    "model-explorer": Target("viewers:export_node_data", "numbers for Model Explorer's nodes", ""),
    "csv": Target("csv_files:export", "tables, and placements in MiniMalloc's form", ""),
    "onnx-metadata": Target(
        "viewers:export_onnx_metadata",
        "an ONNX model that tells its plan",
        ".onnx",
        reads_model=True,
        model_ending=".onnx",
    ),
}
"""Name -> target."""
