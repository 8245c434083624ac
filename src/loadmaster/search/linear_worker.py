"""HiGHS on one `Linear` in a process of its own: `python -m loadmaster.search.linear_worker`.

It may print, hold its time limit loosely or end with an error, and none of that is felt outside.
Standard input: a line of settings (JSON), then the program (npz). Standard output: whatever HiGHS
says, and as the last line what was found (JSON).
"""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import fields

import numpy as np

from loadmaster.arrays import read_npz
from loadmaster.clock import engine_seconds
from loadmaster.errors import LoadmasterError
from loadmaster.search.engines import Answer, highs
from loadmaster.search.linear import Linear

RESERVE = 5.0
"""Seconds that it may take beyond its limit, to read, to presolve and to say what it has."""
_ARRAYS = [field.name for field in fields(Linear) if field.name not in ("constant", "groups")]


def solve_whole(linear: Linear, cutoff: int, seconds: float) -> Answer | None:
    """The best whole solution below the cutoff and a bound; None if HiGHS did not say."""
    file = io.BytesIO()
    np.savez(file, **{name: getattr(linear, name) for name in _ARRAYS})
    limit = engine_seconds(seconds)
    settings = {"cutoff": cutoff, "seconds": limit, "constant": linear.constant}
    try:
        worker = subprocess.run(
            [sys.executable, "-m", "loadmaster.search.linear_worker"],
            input=json.dumps(settings).encode() + b"\n" + file.getvalue(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=None if limit is None else limit + RESERVE,
        )
        said = json.loads(worker.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return None
    values = None if said["values"] is None else np.array(said["values"], dtype=np.float64)
    return Answer(int(said["bound"]), values, int(said["doubt"]), bool(said["closed"]))


def main() -> None:
    given = sys.stdin.buffer
    settings = json.loads(given.readline())
    arrays = read_npz(given.read(), LoadmasterError)
    linear = Linear(**{name: arrays[name] for name in _ARRAYS}, constant=int(settings["constant"]), groups=())
    seconds = math.inf if settings["seconds"] is None else settings["seconds"]
    answer = highs(linear, settings["cutoff"], seconds, 1, lambda _values, _bound: None)
    values = None if answer.values is None else answer.values.tolist()
    print()
    print(
        json.dumps({"bound": answer.bound, "values": values, "doubt": answer.doubt, "closed": answer.closed}),
        flush=True,
    )


if __name__ == "__main__":
    main()
