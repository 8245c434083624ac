"""Workers: evaluations in other processes, here or on the machines of a Ray cluster."""

from loadmaster.runs.workers.distributed import Distributed, distribute, distribute_function
from loadmaster.runs.workers.pool import Address, Pool, WorkerLost, parse_workers

__all__ = [
    "Address",
    "Distributed",
    "Pool",
    "WorkerLost",
    "distribute",
    "distribute_function",
    "parse_workers",
]
