"""Program: ops, tensors, and who reads and writes what."""

from loadmaster.program.build import Builder
from loadmaster.program.program import (
    CANNOT_RUN,
    COMPUTED,
    FLOP_CLASSES,
    GIVEN,
    PERSISTENT,
    Labels,
    Program,
    TensorKind,
    TieKind,
)
from loadmaster.program.storage import load, save

__all__ = [
    "CANNOT_RUN",
    "COMPUTED",
    "FLOP_CLASSES",
    "GIVEN",
    "PERSISTENT",
    "Builder",
    "Labels",
    "Program",
    "TensorKind",
    "TieKind",
    "load",
    "save",
]
