"""The suite `export`: what runtimes make of our plans, beside what they do on their own."""

from __future__ import annotations

from benchmarks.suites import Case
from benchmarks.suites.export_executorch import CASES as EXECUTORCH
from benchmarks.suites.export_tflm import CASES as TFLM

CASES: dict[str, Case] = {**EXECUTORCH, **TFLM}
