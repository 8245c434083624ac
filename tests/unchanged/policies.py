"""What the shipped policies say about fixed inputs, to five digits: the same on any processor.

The published MuZero has no NumPy way; it is run by JAX. The policies of EGRL, GO and the player are left out: they are
trained anew now and then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from unchanged import parts

SAMPLES = 40
TRAINED_ANEW = {("muzero", "board")}
INPUTS: dict[str, list[tuple[str, str]]] = {
    "muzero": [("alexnet-inf", "tpu-v4i-16m"), ("bert-base", "tpu-v4i")]
}
OUTPUTS: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, np.ndarray]]]] = {
    "muzero": (parts.MallocGame, parts.muzero_outputs)
}


def names() -> list[str]:
    """agent/policy, and agent/policy/model@machine"""
    found = []
    for agent, policies in parts.pretrained().items():
        for policy in policies:
            if (agent, policy) in TRAINED_ANEW:
                continue
            found.append(f"{agent}/{policy}")
            found += [f"{agent}/{policy}/{model}@{machine}" for model, machine in INPUTS[agent]]
    return found


def compute(entry: str) -> dict[str, Any]:
    """The parameters' hash, or the outputs."""
    agent, policy, *rest = entry.split("/")
    if not rest:
        arrays = parts.policy_parameters(agent, policy)
        digest = hashlib.sha256()
        for each in sorted(array.astype("<f4").tobytes() for array in arrays.values()):
            digest.update(hashlib.sha256(each).digest())
        return {"parameters": sum(a.size for a in arrays.values()), "hash": digest.hexdigest()[:16]}
    model, machine = rest[0].split("@")
    problem, outputs = OUTPUTS[agent]
    found = outputs(policy, problem(parts.load_model(model), parts.load_machine(machine)))
    return {name: _summary(array) for name, array in found.items()}


def _summary(array: np.ndarray) -> dict[str, Any]:
    flat = np.asarray(array, np.float64).ravel()
    at = np.unique(np.linspace(0, max(0, len(flat) - 1), SAMPLES).astype(int))
    return {
        "shape": list(array.shape),
        "sum": _digits(flat.sum()),
        "absolute": _digits(np.abs(flat).sum()),
        "some": [_digits(flat[i]) for i in at],
    }


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
