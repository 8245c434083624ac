"""Runs a solver in child processes, each of which kills itself with SIGKILL after so many steps.

    python crash.py FOLDER KILLS SEED EVALUATIONS

A step is something that a run has put on the disk: a line of its log, a plan, a checkpoint. Nothing
depends on the clock. Forked children start in a millisecond, so that fifty deaths take seconds.
Prints where each died, as JSON: [[what was written last, evaluations], …].
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import toy
from loadmaster.runs import folder as folders
from loadmaster.runs import observer, run_solver
from loadmaster.runs.log import Log
from loadmaster.search.solver import Budget

Step = Callable[[str, int | None], None]


def after_each_step(step: Step) -> None:
    """Have `step(what, evaluations)` called after everything that this process writes."""
    append, write, checkpoint = Log.append, folders.write_durable, observer.write_checkpoint

    def appended(log: Log, event: str, t: float, evals: int, **fields: Any) -> None:
        append(log, event, t, evals, **fields)
        step(event, evals)

    def written(path: Path, data: bytes) -> None:
        write(path, data)
        step(path.parent.name if path.parent.name == "plans" else path.name, None)

    def made(run: Any, meter: Any, state: Any, identity: str) -> tuple[str, str]:
        found = checkpoint(run, meter, state, identity)
        step("checkpoint without its line", meter.evaluations)
        return found

    Log.append = appended  # type: ignore[method-assign]
    folders.write_durable = written
    observer.write_checkpoint = made  # type: ignore[attr-defined]


def live(folder: Path, evaluations: int) -> None:
    """One session: new, or going on with the run that is there."""
    present = [path for path in folder.iterdir() if (path / "run.json").exists()]
    run_solver(
        toy.Climb(),
        toy.Toy(),
        Budget(evaluations=evaluations),
        7,
        folder=folder,
        resume=present[0] if present else None,
        checkpoint_seconds=0.0,
    )


def child(folder: Path, evaluations: int, steps: int, tell: int) -> None:
    """A session that dies after so many steps, and says where."""
    done, reached = 0, 0

    def step(what: str, evals: int | None) -> None:
        nonlocal done, reached
        done, reached = done + 1, reached if evals is None else evals
        if done == steps:
            os.write(tell, json.dumps([what, reached]).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        after_each_step(step)
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
    deaths = []
    for _ in range(kills):
        steps = chance.randint(1, 8)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            child(folder, evaluations, steps, write)
        os.close(write)
        _, status = os.waitpid(pid, 0)
        where = os.read(read, 1000)
        os.close(read)
        if os.WIFSIGNALED(status):
            deaths.append(json.loads(where))
        elif os.waitstatus_to_exitcode(status):
            sys.exit("a session failed")
    live(folder, evaluations)
    print(json.dumps(deaths))


if __name__ == "__main__":
    main()
