"""The TPU programs as data: compiled before, read without JAX."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.program.program import Program
from loadmaster.program.storage import load

DATA = resources.files("loadmaster.program.zoo.tpu") / "data"
MANIFEST = "manifest.json"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """What was compiled, how, and how it was checked; `docs/tpu.md` tells the fields."""
    document: dict[str, Any] = json.loads((DATA / MANIFEST).read_text(encoding="utf-8"))
    return document


def load_tpu(name: str) -> Program:
    """A program of the suite, as the compiler scheduled it."""
    with resources.as_file(DATA / f"{name}.npz") as path:
        if not path.is_file():
            raise BadProgram(
                f"'{name}' has not been compiled",
                object=name,
                remedy=f"run 'python tools/extract_tpu.py {name}'",
            )
        return load(path)


def source_hash() -> str:
    """SHA-256 of the model functions: data made from others is out of date."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    shared = ("layers", "convolution", "training", "inception", "unet")
    own = ("blocks", "vision", "language", "others", "steps", "suite")
    for path in [here.parent / f"{name}.py" for name in shared] + [here / f"{name}.py" for name in own]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
