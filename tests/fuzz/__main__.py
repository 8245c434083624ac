"""`python -m tests.fuzz`: hostile inputs for every reader. Exit code 1 if one was not answered as it should be."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

from . import ROOT, sanitized
from .readers import READERS, Made
from .runner import Campaign, Row
from .worker import Limits, prepare, tried


def main() -> int:
    """Parse, try, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for everything together [5]")
    parser.add_argument("--inputs", type=int, metavar="N", help="so many for each reader, instead of minutes")
    parser.add_argument(
        "--reader", action="append", choices=list(READERS), help="only this one (may be repeated)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same inputs [0]")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time [1]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of processor time for one input [5]")
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="also with the native core under sanitizers, where it is reached",
    )
    parser.add_argument("--only-sanitized", action="store_true", help="nothing but that")
    parser.add_argument("--findings", type=Path, default=ROOT / "build" / "fuzz" / "findings", metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found as one JSON object")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="try one kept input, and show what happens"
    )
    given = parser.parse_args()
    if given.replay is not None:
        return _replay(given.replay, Limits(given.seconds))
    wanted = given.reader or list(READERS)
    skipped = {name: f"needs {READERS[name].missing()}" for name in wanted if READERS[name].missing()}
    names = [name for name in wanted if name not in skipped]
    reached = [name for name in names if READERS[name].core]
    phases: list[tuple[list[str], dict[str, str] | None]] = []
    if not given.only_sanitized:
        phases.append((names, None))
    if (given.sanitize or given.only_sanitized) and reached:
        phases.append((reached, sanitized.environment(sanitized.build())))
    total = sum(len(readers) for readers, _ in phases)
    rows: list[Row] = []
    findings = []
    for readers, environment in phases:
        seconds = None if given.inputs is not None else given.minutes * 60 * len(readers) / total
        campaign = Campaign(
            readers,
            given.seed,
            given.inputs,
            seconds,
            given.jobs,
            # Under the sanitizers everything takes several times as long.
            Limits(given.seconds * (1 if environment is None else 4)),
            environment,
            given.findings,
            sys.stdout,
        )
        campaign.run()
        rows += campaign.rows.values()
        findings += campaign.findings
    _table(rows, skipped)
    if given.json is not None:
        document = {
            "seed": given.seed,
            "python": platform.python_version(),
            "limits": {"seconds": given.seconds, "memory_bytes": Limits().memory},
            "rows": [{**vars(row), "per_second": row.per_second} for row in rows],
            "findings": [vars(finding) for finding in findings],
            "skipped": skipped,
        }
        given.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.findings for row in rows) else 0


def _table(rows: list[Row], skipped: dict[str, str]) -> None:
    print(
        f"{'reader':28}{'inputs':>10}{'accepted':>10}{'refused':>10}{'findings':>10}{'a second':>10}{'slowest':>9}"
    )
    for row in rows:
        print(
            f"{row.name:28}{row.inputs:>10,}{row.accepted:>10,}{row.refused:>10,}{row.findings:>10,}"
            f"{row.per_second:>10,.0f}{row.slowest:>8.2f}s"
        )
    for name, why in skipped.items():
        print(f"{name:28}skipped: {why}")


def _replay(path: Path, limits: Limits) -> int:
    name = next((name for name in READERS if path.name.startswith(f"{name}-")), None)
    if name is None:
        raise SystemExit(f"'{path.name}' does not begin with the name of a reader")
    data = path.read_bytes()
    prepare(sanitized=False)
    with tempfile.TemporaryDirectory(prefix="loadmaster-fuzz-") as folder:
        for part in ("seeds", "input"):
            (Path(folder) / part).mkdir()
        found = tried(Made(name, Path(folder) / "seeds"), data, Path(folder) / "input", limits)
    print(found.pop("trace", ""))
    print(found)
    return 1 if "kind" in found else 0


if __name__ == "__main__":
    sys.exit(main())
