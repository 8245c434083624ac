"""Workers: evaluations in other processes, here or on the machines of a Ray cluster."""

from loadmaster.runs.workers.distributed import (
    Distributed,
    Island,
    distribute,
    distribute_function,
    search_islands,
)
from loadmaster.runs.workers.pool import Address, Pool, WorkerLost, parse_workers

__all__ = [
    "Address",
    "Distributed",
    "Island",
    "Pool",
    "WorkerLost",
    "distribute",
    "distribute_function",
    "parse_workers",
    "search_islands",
]
