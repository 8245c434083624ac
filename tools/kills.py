"""Kills runs of every solver and compares what becomes of each with its unbroken run.

    python tools/kills.py [--kills 200] [--jobs N] [--only TEXT] [--seed 0] [--json FILE]

Every case is a solver on a small problem of its kind (tests/solver_cases.py). A session kills itself
with SIGKILL after the n-th thing that it has put on the disk (tests/runs/crash.py); the next one
resumes, is killed too, and so on; the last one comes to its end. Best plan, counts and log, but for
times, must be those of a run that nobody killed. Solvers that say that they are not deterministic
must come to a run that `replay` holds for good. Prints a table; exit code 1: some run differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "runs")]


def session(number: int, folder: Path, steps: int) -> None:
    """One session of a case, new or resumed, that dies after so many steps (0: it does not)."""
    from crash import after_each_step

    from loadmaster.errors import MissingPackage
    from loadmaster.runs import run_solver
    from loadmaster.search.solver import Budget
    from solver_cases import CASES

    done = 0

    def step(what: str, evaluations: int | None) -> None:
        nonlocal done
        done += 1
        if done == steps:
            where = {"died": what, "evaluations": evaluations}
            (folder / "died.json").write_text(json.dumps(where))
            os.kill(os.getpid(), signal.SIGKILL)

    after_each_step(step)
    case = CASES[number]
    present = [path for path in folder.iterdir() if (path / "run.json").exists()]
    try:
        found = run_solver(
            case.solver(),
            case.problem(),
            Budget(case.evaluations),
            3,
            folder=folder,
            resume=present[0] if present else None,
            checkpoint_seconds=0.0,
        )
    except MissingPackage as missing:
        sys.exit(f"missing: {missing.message}")
    print(json.dumps({"evaluations": found.evaluations, "value": found.value, "steps": done}))


def started(number: int, folder: Path, steps: int = 0) -> subprocess.CompletedProcess[str]:
    """A session in a process of its own, with one core: many are at work at once."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--session", str(number), str(folder), str(steps)]
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false"
    # Flags of the caller's own win: not every version of XLA knows these.
    settings = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"} | os.environ
    return subprocess.run(command, capture_output=True, text=True, env=settings)


def run_in(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if (path / "run.json").exists())


def killed_and_compared(number: int, kills: int, seed: int) -> dict[str, Any]:
    """A case with so many kills: its row of the table."""
    from solver_cases import CASES

    case, chance = CASES[number], random.Random(f"{seed} {number}")
    row: dict[str, Any] = {
        "kind": case.kind,
        "solver": case.name,
        "kills": 0,
        "died": [],
        "deterministic": case.solver().deterministic,
    }
    with tempfile.TemporaryDirectory() as place:
        whole = started(number, Path(place) / "whole")
        if whole.returncode:
            missing = whole.stderr.strip().splitlines()[-1:]
            row["skipped" if "missing: " in whole.stderr else "fault"] = (missing or ["it failed"])[0]
            return row
        row |= {
            name: json.loads(whole.stdout.splitlines()[-1])[name]
            for name in ("evaluations", "value", "steps")
        }
        broken = Path(place) / "broken"
        while row["kills"] < kills:
            # Where a run is short, most of its places are hit; a new one is begun when it has ended.
            steps = chance.randint(1, max(1, row["steps"] // 2))
            done = started(number, broken, steps)
            if done.returncode == -signal.SIGKILL:
                row["kills"] += 1
                row["died"].append(json.loads((broken / "died.json").read_text()))
            elif done.returncode:
                row["fault"] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
                return row
            else:
                row["fault"] = row.get("fault") or _fault(case, broken, Path(place) / "whole")
                broken = Path(place) / f"broken{row['kills']}-{steps}"
        done = started(number, broken)
        if done.returncode:
            row["fault"] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            return row
        row["fault"] = row.get("fault") or _fault(case, broken, Path(place) / "whole")
    return row


def _fault(case: Any, broken: Path, whole: Path) -> str | None:
    from loadmaster.runs import RunFolder
    from loadmaster.runs.replay import replay
    from unbroken import difference

    if case.solver().deterministic:
        return difference(run_in(broken), run_in(whole))
    claims = replay(RunFolder.open(run_in(broken))).broken
    return str(claims[0]) if claims else None


def main() -> None:
    if sys.argv[1:2] == ["--session"]:
        return session(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    from solver_cases import CASES

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="of all cases together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = [number for number, case in enumerate(CASES) if args.only in str(case)]
    if not cases:
        sys.exit(f"no case is named '{args.only}'")
    each = -(-args.kills // len(cases))
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda number: killed_and_compared(number, each, args.seed), cases))
    print(f"{'kind':<12} {'solver':<16} {'evaluations':>11} {'kills':>5}  result")
    for row in rows:
        good = "equal" if row["deterministic"] else "good by replay (not deterministic)"
        result = row.get("fault") or row.get("skipped") or good
        print(
            f"{row['kind']:<12} {row['solver']:<16} {row.get('evaluations', '–'):>11} {row['kills']:>5}  {result}"
        )
    faults = [row for row in rows if row.get("fault")]
    total = sum(row["kills"] for row in rows)
    print(f"{total} kills, {len(rows)} solvers, {len(faults)} differ")
    if args.json is not None:
        args.json.write_text(json.dumps({"seed": args.seed, "kills": total, "rows": rows}, indent=1) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
