"""Plan: the decisions, their JSON, the checker, and what lies where (`occupancy`). Called, it is `lm.plan`."""

import sys

from loadmaster import CallablePackage
from loadmaster.plan.json import load_plan, load_planned, plan_from_json, plan_to_json, save_plan
from loadmaster.plan.occupancy import Occupancy
from loadmaster.plan.plan import BEFORE, NO_OFFSET, QUEUES, TIES, WHOLE, Copy, Plan, Residency, Transfer

__all__ = [
    "BEFORE",
    "NO_OFFSET",
    "QUEUES",
    "TIES",
    "WHOLE",
    "Copy",
    "Occupancy",
    "Plan",
    "Residency",
    "Transfer",
    "load_plan",
    "load_planned",
    "plan_from_json",
    "plan_to_json",
    "save_plan",
]

sys.modules[__name__].__class__ = CallablePackage
