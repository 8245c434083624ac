"""The test at full size, over all cores: counts, findings and how far the search gets."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from law.cases import CASES, has_exact
from law.search import Outcome, run_instance, told

CHUNK = 10
"""Instances that one process does at a time."""


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.law", description=__doc__)
    parser.add_argument("--problem", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--instances", type=int, default=100, help="of each problem")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--moves", type=int, default=300, help="of each search")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write counts and findings there")
    chosen = parser.parse_args(argv)
    kinds = chosen.problem or list(CASES)
    chunks = [
        (kind, seed, min(CHUNK, chosen.first + chosen.instances - seed), chosen.moves)
        for seed in range(chosen.first, chosen.first + chosen.instances, CHUNK)
        for kind in kinds
    ]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    findings: list[dict[str, Any]] = []
    for kind, counted, found in _done(chunks, chosen.jobs):
        counts[kind] += counted
        findings += found
        for each in found:
            print(each["text"], flush=True)
    summary = {kind: dict(sorted(counted.items())) for kind, counted in counts.items()}
    for kind, counted in summary.items():
        print(f"{kind:12}", ", ".join(f"{value:,} {name}" for name, value in counted.items()))
    print(
        f"{len(findings)} findings; OR-tools {'used' if has_exact() else 'absent: its comparisons were skipped'}"
    )
    if chosen.json is not None:
        about = {
            "instances": chosen.instances,
            "first": chosen.first,
            "moves": chosen.moves,
            "exact": has_exact(),
            "counts": summary,
            "findings": findings,
        }
        chosen.json.write_text(json.dumps(about, indent=1), encoding="utf-8")
    return 1 if findings else 0


Chunk = tuple[str, int, int, int]
Done = tuple[str, Counter[str], list[dict[str, Any]]]


def _done(chunks: list[Chunk], jobs: int) -> Iterator[Done]:
    if jobs <= 1:
        yield from map(run_chunk, chunks)
        return
    context = multiprocessing.get_context("spawn")
    turn = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, initializer=_alone, initargs=(turn,)) as pool:
        yield from pool.map(run_chunk, chunks)


def _alone(turn: Any) -> None:
    """One core for each process: solvers start as many threads as there are cores."""
    with turn.get_lock():
        number = turn.value
        turn.value += 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def run_chunk(chunk: Chunk) -> Done:
    """So many instances from a seed on."""
    kind, first, count, moves = chunk
    counted: Counter[str] = Counter()
    found = []
    for seed in range(first, first + count):
        outcome = run_instance(CASES[kind], seed, moves)
        counted += counts_of(outcome)
        for each in [] if outcome is None else outcome.findings:
            counted["findings"] += 1
            found.append({"kind": kind, "seed": seed, "rule": each.rule, "text": told(each)})
    return kind, counted, found


def counts_of(outcome: Outcome | None) -> Counter[str]:
    """What is told of an instance."""
    if outcome is None:
        return Counter({"not posed": 1})
    counted = Counter({"instances": 1}) + outcome.counts
    if outcome.best is None:
        counted["without a legal plan"] += 1
        return counted
    bound = outcome.claims[0].value if outcome.claims else 0
    counted["within 5 % of the bound"] += outcome.best * 20 < bound * 21
    if outcome.optimum is not None:
        counted["with an optimum"] += 1
        counted["optimum reached"] += outcome.best <= outcome.optimum
        counted["optimum reached without a solver"] += (
            outcome.own is not None and outcome.own <= outcome.optimum
        )
    return counted
