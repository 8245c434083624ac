"""The suite `export`: what runtimes make of our plans, beside what they do on their own."""

from __future__ import annotations

from loadmaster.bench import Case
from loadmaster.bench.export_executorch import CASES as EXECUTORCH
from loadmaster.bench.export_tflm import CASES as TFLM

CASES: dict[str, Case] = {**EXECUTORCH, **TFLM}
