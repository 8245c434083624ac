"""The problems as Gymnasium environments, registered when this module is imported:

import gymnasium, loadmaster.envs
env = gymnasium.make("Loadmaster/Mapping-v0", model="resnet50", machine="nnp-i")
"""

from __future__ import annotations

from loadmaster.errors import require

ENVIRONMENTS = {
    "Loadmaster/Allocation-v0": "loadmaster.allocation.env:AllocationEnv",
    "Loadmaster/Graph-v0": "loadmaster.graph.env:GraphEnv",
    "Loadmaster/MallocGame-v0": "loadmaster.malloc_game.env:MallocGameEnv",
    "Loadmaster/Mapping-v0": "loadmaster.mapping.env:MappingEnv",
}
"""Id -> 'module:class'."""


def _register() -> None:
    registration = require("gymnasium.envs.registration", "agents")
    for name, entry in ENVIRONMENTS.items():
        if name not in registration.registry:
            registration.register(id=name, entry_point=entry)


_register()
