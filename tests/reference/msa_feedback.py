"""What a plan of memory space assignment says about itself, use by use and step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.msa import Assigned


@dataclass
class Feedback:
    """As `malloc_game.msa.Placements`, of one plan."""

    kept: list[float]
    lost: list[float]
    blamed: list[float]
    pressure: list[float] = field(default_factory=list)


def feedback(model: GameModel, plan: Assigned) -> Feedback:
    tensors, steps = len(model.tensors.size), model.steps
    found = Feedback([0.0] * tensors, [0.0] * tensors, [0.0] * tensors)
    fast = plan.is_fast.astype(bool)

    def elapsed(step: int, served: list[bool]) -> int:
        return int(model.elapsed(np.array(served))[step])

    all_fast = [True] * model.sites
    missed = [0.0] * model.sites
    for site, (step, tensor) in enumerate(
        zip(model.site_step.tolist(), model.site_tensor.tolist(), strict=True)
    ):
        now, repeat = elapsed(step, fast.tolist()), int(model.repeat[step])
        if fast[site]:
            without = fast.copy()
            without[site] = False
            found.kept[tensor] += repeat * max(0, elapsed(step, without.tolist()) - now)
            continue
        less = [
            max(0, int(slow) - int(quick))
            for slow, quick in zip(model.site_slow, model.site_fast, strict=True)
        ]
        beside = [s for s in range(model.sites) if model.site_step[s] == step and not fast[s]]
        if total := sum(less[s] for s in beside):
            missed[site] = repeat * max(0, now - elapsed(step, all_fast)) * less[site] / total
        found.lost[tensor] += missed[site]
    held = [
        [
            int(model.tensors.size[tensor])
            for tensor, _, first, last in plan.residencies.tolist()
            if first <= step <= last
        ]
        for step in range(steps)
    ]
    found.pressure = [sum(bytes_) / model.capacity for bytes_ in held]
    for site in range(model.sites):
        tensor, step = int(model.site_tensor[site]), int(model.site_step[site])
        earlier = [
            int(model.site_step[other])
            for other in range(site)
            if model.site_tensor[other] == tensor and model.site_step[other] < step
        ]
        start = max(earlier) if earlier else step if model.site_write[site] else max(0, step - 1)
        for at in range(start, step + 1):
            each = missed[site] / (step - start + 1)
            for owner, _, first, last in plan.residencies.tolist():
                if first <= at <= last and sum(held[at]):
                    found.blamed[owner] += each * int(model.tensors.size[owner]) / sum(held[at])
    return found
