"""The production placements that come with Loadmaster, for the TPU programs of the zoo."""

from __future__ import annotations

from functools import lru_cache

from loadmaster.machine.machine import Machine
from loadmaster.plan.json import plan_from_json
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.zoo.tpu import DATA, manifest


def load_production_plan(program: Program, machine: Machine) -> Plan | None:
    """What the production compiler chose for this program on this machine; None if we have it not.

    A program is known by its hash and a machine by its name, so a machine's figures may change:
    a placement depends on the capacity alone.
    """
    name = _names().get(program.hash)
    if name is None or machine.name not in manifest()["programs"][name]["plans"]:
        return None
    file = DATA / f"{name}.{machine.name}.json"
    return plan_from_json(file.read_text(encoding="utf-8"), program, machine, file.name)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {record["hash"]: name for name, record in manifest()["programs"].items()}
