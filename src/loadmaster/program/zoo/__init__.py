"""The workloads: models by name, as Programs.

Layer-level ones (ResNet, BERT) are built at once. Traced ones need JAX the first time and are
then read from a cache on disk (`$LOADMASTER_CACHE`, by default `~/.cache/loadmaster`). Those for
TPU v4i were compiled before and are read from the package.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram, LoadmasterError, MissingPackage, nearest
from loadmaster.program.program import Program
from loadmaster.program.storage import load, save
from loadmaster.program.zoo.bert import bert
from loadmaster.program.zoo.resnet import resnet
from loadmaster.program.zoo.tpu import SUMMARIES, load_tpu, task_of
from loadmaster.program.zoo.traced import TRACED, Workload, trace


@dataclass(frozen=True)
class Model:
    """A workload as `loadmaster models` lists it."""

    name: str
    task: str
    """'inference' or 'training'"""
    machine: str
    """The preset it is meant for."""
    summary: str
    build: Callable[[], Program]
    """Makes the Program, without the cache."""
    traced: Workload | None = None
    source: str = "built at layer level"


def _layer_level() -> list[Model]:
    rows: list[tuple[str, str, Callable[[], Program]]] = [
        (f"resnet{depth}", f"ResNet-{depth} at layer level, 224 × 224, int8, batch 1", partial(resnet, depth))
        for depth in (50, 101, 152)
    ]
    rows.append(("bert", "BERT-base as 376 ops, 128 tokens, int8, batch 1", bert))
    return [Model(name, "inference", "nnp-i", summary, build) for name, summary, build in rows]


COMPILED = "compiled for TPU v4i"

MODELS: dict[str, Model] = {model.name: model for model in _layer_level()}
MODELS |= {
    w.name: Model(w.name, "training", w.machine, w.summary, partial(trace, w), w, "traced with JAX")
    for w in TRACED.values()
}
MODELS |= {
    name: Model(name, task_of(name), "tpu-v4i", summary, partial(load_tpu, name), None, COMPILED)
    for name, summary in SUMMARIES.items()
}


def load_workload(name: str) -> Program:
    """A workload by name, such as 'resnet50', 'resnet50:batch=16,element_bytes=2' or
    'gnmt-8:steps=5'."""
    model, workload = _find(name)
    return model.build() if workload is None else _cached(workload)


def is_cached(name: str) -> bool:
    """Whether a workload is there at once: built without tracing, or traced before."""
    _, workload = _find(name)
    return workload is None or _path(workload).exists()


def _find(name: str) -> tuple[Model, Workload | None]:
    stem, _, changes = name.partition(":")
    if stem not in MODELS:
        raise BadProgram(
            f"there is no model '{name}'{nearest(stem, tuple(MODELS))}",
            object=name,
            remedy="see 'loadmaster models', or give a file or module:function",
        )
    model = MODELS[stem]
    if not changes:
        return model, model.traced
    if model.source == COMPILED:
        raise BadProgram(
            f"model '{stem}' comes in one size and can't take '{changes}'",
            object=name,
            remedy=f"write '{stem}'; docs/tpu.md tells how to compile another size",
        )
    parameters = _parameters(stem, changes)
    if model.traced is None:
        return _layer_level_with(model, parameters), None
    return model, model.traced.with_parameters(**parameters)


def _parameters(name: str, changes: str) -> dict[str, int]:
    parameters = {}
    for change in changes.split(","):
        key, _, value = change.partition("=")
        if not value.isdigit() or not 1 <= int(value) <= 4096:
            raise BadProgram(
                f"model '{name}' can't take '{change}'",
                object=name,
                number=value,
                remedy="write NAME:parameter=NUMBER, for example gnmt-8:steps=5",
            )
        parameters[key] = int(value)
    return parameters


def _layer_level_with(model: Model, parameters: dict[str, int]) -> Model:
    known = [p.name for p in inspect.signature(model.build).parameters.values() if p.kind == p.KEYWORD_ONLY]
    for key, value in parameters.items():
        if key not in known:
            raise BadProgram(
                f"model '{model.name}' has no parameter '{key}'{nearest(key, known)}",
                object=key,
                remedy=f"use {', '.join(known)}",
            )
        if key == "element_bytes" and value not in (1, 2, 4):
            raise BadProgram(
                f"model '{model.name}' can't take '{key}={value}'",
                object=key,
                number=value,
                remedy="use 1, 2 or 4",
            )
    return replace(model, build=partial(model.build, **parameters))


def cache_folder() -> Path:
    """Where traced programs are kept."""
    given = os.environ.get("LOADMASTER_CACHE")
    return (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "loadmaster"
    )


def _cached(workload: Workload) -> Program:
    path = _path(workload)
    if path.exists():
        try:
            return load(path)
        except LoadmasterError:
            path.unlink(missing_ok=True)  # a damaged cache is made again
    try:
        program = trace(workload)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise BadProgram(
            f"model '{workload.name}' has a parameter that its family '{workload.family}' does not know",
            object=workload.name,
            remedy="see 'loadmaster models NAME'",
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(program, path)
    except OSError:
        pass  # a cache that can't be written costs time, nothing else
    return program


def _path(workload: Workload) -> Path:
    return cache_folder() / f"{workload.name.replace(':', '-')}-{_key(workload)}.npz"


def _key(workload: Workload) -> str:
    try:
        jax = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackage(
            f"model '{workload.name}' is traced with JAX, which is not installed",
            object="jax",
            remedy="pip install 'loadmaster[agents]'",
        ) from None
    parts: dict[str, Any] = {
        "family": workload.family,
        "parameters": workload.parameters,
        "jax": jax,
        "sources": _sources(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _sources() -> str:
    # Defaults live in the model functions and costs in the importer: a change of either is a new key.
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted(
        [*here.glob("*.py"), *here.parent.glob("importers/jax/*.py"), *here.parent.glob("*.py")]
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()
