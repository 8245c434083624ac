"""`GraphOptimization`: fusion, placement and schedule of one program on several devices."""

from __future__ import annotations

from loadmaster.graph.base import Base
from loadmaster.graph.problem import TASKS, UNFIT, GraphOptimization

__all__ = ["TASKS", "UNFIT", "Base", "GraphOptimization"]
