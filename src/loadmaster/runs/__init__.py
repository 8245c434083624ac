"""Runs: the run folder, and everything that writes, resumes, replays and compares it."""

from loadmaster.runs.folder import RunFolder
from loadmaster.runs.history import History
from loadmaster.runs.log import BadRun, read_log
from loadmaster.runs.observer import Display, RunObserver, Standing
from loadmaster.runs.session import Interrupted, run_solver

__all__ = [
    "BadRun",
    "Display",
    "History",
    "Interrupted",
    "RunFolder",
    "RunObserver",
    "Standing",
    "read_log",
    "run_solver",
]
