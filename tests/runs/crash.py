"""Runs a solver in child processes and kills each with SIGKILL after a random, short time.

    python crash.py FOLDER KILLS SEED EVALUATIONS

Forked children start in a millisecond, so that fifty deaths take seconds. Prints the number of
children that were killed while they worked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent))

import toy
from loadmaster.runs import run_solver
from loadmaster.solvers.solver import Budget


def live(folder: Path, evaluations: int) -> None:
    """One session: new, or going on with the run that is there."""
    present = [path for path in folder.iterdir() if (path / "run.json").exists()]
    problem = toy.Toy(pause=0.0002)
    run_solver(
        toy.Climb(), problem, Budget(evaluations=evaluations), 7, folder=folder,
        resume=present[0] if present else None, checkpoint_seconds=0.0,
    )  # fmt: skip


def child(folder: Path, evaluations: int) -> NoReturn:
    try:
        live(folder, evaluations)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    folder, kills, seed, evaluations = Path(sys.argv[1]), *map(int, sys.argv[2:])
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    toy.Toy()  # all is imported before the first fork
    killed = 0
    for _ in range(kills):
        pid = os.fork()
        if pid == 0:
            child(folder, evaluations)
        time.sleep(chance.uniform(0.003, 0.1))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.waitstatus_to_exitcode(status):
            sys.exit("a session failed")
    live(folder, evaluations)
    print(killed)


if __name__ == "__main__":
    main()
