"""Play the cells of the board with the player and its rivals: `python benchmarks/board_runs.py --out rows.jsonl`.

One process and one thread, so that seconds compare; what is in the file already is not played again. Then
`python benchmarks/record.py board --rows rows.jsonl && python benchmarks/board_table.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.board import CELLS, GAP, WAYS, run_cell
from loadmaster.host import host, versions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--machines", nargs="+", help="by default all")
    parser.add_argument("--programs", nargs="+", help="by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, help="evaluations, in place of each row's own")
    parser.add_argument("--all", action="store_true", help="cells without a gap, too")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    args = parser.parse_args()
    made = {"versions": versions(), "host": host()}
    known = set()
    if args.out.exists():
        lines = args.out.read_text(encoding="utf-8").splitlines()
        known = {tuple(json.loads(line)["job"]) for line in lines}
    for program, machine in CELLS if args.all else GAP:
        if program not in (args.programs or [program]) or machine not in (args.machines or [machine]):
            continue
        for way in args.ways:
            for seed in args.seeds[:1] if way.startswith("msa-refined") else args.seeds:
                job = (f"{program}/{machine}", way, seed)
                if job in known:
                    continue
                row = run_cell(program, machine, way, seed, args.budget)
                print(
                    f"{row.case:34} {way:20} {seed} {row.value / 1e9:9.4f} ms {row.evaluations:5} "
                    f"{row.seconds:.1f} s",
                    flush=True,
                )
                line = {"job": job, "made": made, "rows": [row.as_dict()]}
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
