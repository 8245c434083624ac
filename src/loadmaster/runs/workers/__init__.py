"""Workers: evaluations in other processes, here or on the machines of a Ray cluster."""

from loadmaster.runs.workers.distributed import Distributed, distribute
from loadmaster.runs.workers.pool import Address, Pool, WorkerLost, parse_workers

__all__ = ["Address", "Distributed", "Pool", "WorkerLost", "distribute", "parse_workers"]
