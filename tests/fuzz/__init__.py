"""Fuzzing: every reader is given inputs that somebody might have made to do harm.

    make fuzz MINUTES=5                                  # everything, the native core under sanitizers too
    python -m tests.fuzz --inputs 100000 --jobs 16       # from the root of the repository
    python -m tests.fuzz --replay build/fuzz/findings/plan-0123456789ab.bin

The rule: a reader answers with what it read, which is then used, or with one `LoadmasterError`,
within 5 seconds of processor time and 1 GiB of memory. Anything else is a finding.

| file | what is in it |
| --- | --- |
| `mutate.py` | changes to bytes, texts, numbers and JSON, drawn from a generator |
| `onnx_models.py` … `core_calls.py` | one format each: small valid inputs, how they are changed, how they are read |
| `use.py` | what is done with a program, a machine or a plan that was accepted |
| `readers.py` | the table of all readers |
| `worker.py`, `runner.py` | a process with limits that tries inputs, and who watches over such processes |
| `sanitized.py` | the native core under the address and undefined-behaviour sanitizers |
| `corpus.py` | inputs that once did harm, by name |
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = "LOADMASTER_FUZZ_CORE"
"""The environment's name for the path of another native core than the installed one."""

# The helpers beside this folder, as `tests/conftest.py` has them: `generate`, `generate_tflite`.
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))


def _load_core(path: str) -> None:
    """Import a native core in place of the installed one, whatever finders there are."""
    spec = importlib.util.spec_from_file_location("loadmaster._core", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is no module")
    core = importlib.util.module_from_spec(spec)
    sys.modules["loadmaster._core"] = core
    spec.loader.exec_module(core)


if CORE in os.environ and "loadmaster._core" not in sys.modules:
    _load_core(os.environ[CORE])
