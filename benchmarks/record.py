"""Record a suite for a release: `python benchmarks/record.py allocation [--data DIR]`.

Runs `loadmaster bench SUITE --json`, adds the command and the commit, and writes
`benchmarks/results/SUITE.json`. The README's table is made from these files by `readme_table.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(suite: str, *options: str) -> None:
    shown = [
        word for word in options if not Path(word).is_absolute()
    ]  # a folder of data is nobody's business
    run = [sys.executable, "-m", "loadmaster.cli.main", "bench", suite, *options, "--json"]
    answer = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    )
    document = {
        "suite": suite,
        "command": " ".join(["loadmaster", "bench", suite, *shown, "--json"]),
        "commit": commit.stdout.strip(),
        **{key: answer[key] for key in ("versions", "host", "rows")},
    }
    path = HERE / "results" / f"{suite}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.name}: {len(document['rows'])} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
