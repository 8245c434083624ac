"""Workers: evaluations in other processes, here or on the machines of a Ray cluster."""

from loadmaster.runs.workers.pool import Address, Pool, WorkerLost, parse_workers
from loadmaster.runs.workers.share import Shared, sharing

__all__ = ["Address", "Pool", "Shared", "WorkerLost", "parse_workers", "sharing"]
