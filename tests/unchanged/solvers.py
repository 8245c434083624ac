"""What every solver that repeats itself finds: plan, value, bound.

Small instances are those of `solver_cases`; the larger ones are real programs, for heuristics and native
searches. Left out: offload's 'refined' (it measures), mapping's 'egrl' and 'go' (their policies are trained anew now
and then). Of mapping's 'exact' and 'auto', which race two engines, only value and bound are the same again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from unchanged import parts

SEEDS = (0, 1)
FEW, MANY = 40, 120
SMALL = "small"
RACES = {("mapping", "exact"), ("mapping", "auto")}
LEFT_OUT = {
    ("mapping", "egrl"),
    ("malloc-game", "muzero"),
    ("malloc-game", "auto"),
    ("graph", "go"),
    ("offload", "refined"),
}
EXACT = {
    ("allocation", "auto"),
    ("allocation", "exact"),
    ("allocation", "large"),
    ("allocation", "cp-sat"),
    ("mapping", "auto"),
    ("mapping", "exact"),
    ("malloc-game", "cp-sat"),
    ("malloc-game", "exhaustive"),
    ("graph", "cp-sat"),
    ("malloc-game", "rounded"),
}
"""On small instances alone, where they take no second."""


def _buffers() -> Any:
    rng = np.random.default_rng(7)
    lower = rng.integers(0, 300, 80)
    return parts.Allocation(
        parts.Buffers.of(
            lower,
            lower + rng.integers(1, 40, 80),
            rng.integers(1, 5000, 80),
            alignment=rng.choice([1, 16, 64], 80),
        ),
        None,
        "buffers",
    )


def _on(maker: Callable[..., Any], model: str, machine: str) -> Callable[[], Any]:
    return lambda: maker(parts.load_model(model), parts.load_machine(machine))


LARGE: dict[tuple[str, str], Callable[[], Any]] = {
    ("allocation", "80-buffers"): _buffers,
    ("mapping", "resnet50@nnp-i"): _on(parts.Mapping, "resnet50", "nnp-i"),
    ("mapping", "bert@nnp-i-half"): _on(parts.Mapping, "bert", "nnp-i-half"),
    ("malloc-game", "alexnet-train@tpu-v4i-16m"): _on(parts.MallocGame, "alexnet-train", "tpu-v4i-16m"),
    ("malloc-game", "bert-base@tpu-v4i"): _on(parts.MallocGame, "bert-base", "tpu-v4i"),
    ("offload", "bert@h200"): _on(parts.Offload, "bert", "h200:hbm=40MiB"),
    ("offload", "stack-24"): lambda: parts.Offload(
        parts.offload_stack.stack(), parts.offload_stack.gpu(14 * parts.offload_stack.LAYER_BYTES)
    ),
    ("graph", "gnmt-2:steps=2@p100x2"): _on(parts.GraphOptimization, "gnmt-2:steps=2", "p100x2"),
    ("graph", "resnet50@p100x4"): _on(parts.GraphOptimization, "resnet50", "p100x4"),
    ("order", "inception-v3"): lambda: parts.PeakOrder(parts.load_model("inception-v3")),
    ("order", "straight-60"): lambda: parts.PeakOrder(parts.random_straight(np.random.default_rng(3), 60)),
}


@functools.cache
def _large(kind: str, instance: str) -> Any:
    return LARGE[kind, instance]()


def learned(kind: str, name: str) -> bool:
    """Whether a solver trains a network."""
    return (kind, name) in parts.solver_cases.LEARNED


def names() -> list[str]:
    """kind/solver/instance/seed"""
    found = []
    for kind in parts.kinds():
        for name in parts.solver_labels(kind):
            if learned(kind, name) or (kind, name) in LEFT_OUT:
                continue
            instances = [SMALL]
            if (kind, name) not in EXACT:
                instances += [instance for its_kind, instance in LARGE if its_kind == kind]
            found += [f"{kind}/{name}/{instance}/{seed}" for instance in instances for seed in SEEDS]
    return found


def compute(entry: str) -> dict[str, Any]:
    """The answer of one solver to one instance."""
    kind, name, *middle, seed = entry.split("/")
    instance = "/".join(middle)
    case = next(c for c in parts.solver_cases.CASES if (c.kind, c.name) == (kind, name))
    problem = case.problem() if instance == SMALL else _large(kind, instance)
    budget = FEW if instance == SMALL or kind in ("mapping", "allocation") else MANY
    try:
        found = parts.run_solver(problem, kind, name, case.options, budget, int(seed))
    except parts.LoadmasterError as error:
        return {"refused": type(error).__name__}
    answer = {"value": found.value, "bound": found.bound.value, "status": str(found.status)}
    if (kind, name) in RACES:
        return answer
    answer["evaluations"] = found.evaluations
    answer["plan"] = None if found.decision is None else plan_hash(problem, found.decision)
    return answer


def plan_hash(problem: Any, decision: Any) -> str:
    """Of the plan's JSON, whatever the order of its keys."""
    text = json.dumps(parts.plan_document(problem, decision), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
