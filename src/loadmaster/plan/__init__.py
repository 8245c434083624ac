"""Plan: the decisions, their JSON, what lies where under them, and the checker."""

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
