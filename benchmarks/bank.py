"""What a bank of plans saves: `python benchmarks/bank.py` writes benchmarks/results/bank.json and bank.md.

*The same question*: `lm.plan` with its defaults twice, the second time from the bank. *A like question*: the answer
for one capacity or batch is kept, then another capacity or batch is asked for, with as many evaluations, without
the bank and with it. How good the kept answer is depends on what was spent on it, so that is done twice: with as many
evaluations as the question gets (1 ×) and with ten times as many (10 ×).
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadmaster as lm
from loadmaster.host import host
from loadmaster.planner import PlanRequest, build_problem, parse_capacity
from loadmaster.runs import History, read_log
from loadmaster.runs.bank import Bank
from loadmaster.search.problem import Problem
from loadmaster.search.solver import Recalled

RESULTS = Path(__file__).parent / "results"
COMMAND = "python benchmarks/bank.py"
SAME = (
    ("bert", "nnp-i", "mapping"),
    ("resnet50-inf", "tpu-v4i", "malloc-game"),
    ("rnnlm-2", "p100x2", "graph"),
    ("inception-b32", "p100x2", "order"),
)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Question:
    """A program on a machine, with other capacities."""

    program: str
    machine: str
    kind: str
    capacity: tuple[str, ...] = ()

    def problem(self) -> Problem:
        request = PlanRequest(
            lm.load_model(self.program),
            lm.load_machine(self.machine),
            problem=self.kind,
            recompute=False if self.kind == "offload" else None,
            capacity=parse_capacity(self.capacity),
        )
        return build_problem(request)

    def __str__(self) -> str:
        return " ".join([self.program, *self.capacity])


@dataclass(frozen=True)
class Cell:
    """A question, one like it, and how it is solved."""

    kept: Question
    asked: Question
    solver: str
    evaluations: int


def cells() -> Iterator[Cell]:
    """Capacities 10 % lower and higher, and other batches, of four kinds of problems."""
    for program, memory, sizes in (
        ("bert", "sram", ("3.6MiB", "4.4MiB")),
        ("resnet101", "llc", ("21.6MiB", "26.4MiB")),
    ):
        kept = Question(program, "nnp-i", "mapping")
        for size in sizes:
            yield Cell(kept, Question(program, "nnp-i", "mapping", (f"{memory}={size}",)), "egrl", 200)
        yield Cell(kept, Question(f"{program}:batch=2", "nnp-i", "mapping"), "egrl", 200)
    for program in ("resnet50-inf", "inception-v3", "gpt-prefill", "transformer-6"):
        kept = Question(program, "tpu-v4i", "malloc-game", ("cmem=32MiB",))
        for size in ("28.8MiB", "35.2MiB"):
            asked = Question(program, "tpu-v4i", "malloc-game", (f"cmem={size}",))
            yield Cell(kept, asked, "auto", 200)
    kept = Question("inception-b32", "p100x2", "graph")
    yield Cell(kept, Question("inception-b64", "p100x2", "graph"), "auto", 300)
    kept = Question("inception-b32", "p100x2", "graph", ("hbm0=3.0GiB", "hbm1=3.0GiB"))
    asked = Question("inception-b32", "p100x2", "graph", ("hbm0=2.7GiB", "hbm1=2.7GiB"))
    yield Cell(kept, asked, "auto", 300)
    kept = Question("resnet152:batch=8", "h200", "offload", ("hbm=50%",))
    for size in ("45%", "55%"):
        yield Cell(kept, Question("resnet152:batch=8", "h200", "offload", (f"hbm={size}",)), "auto", 200)


@dataclass(frozen=True)
class Sought:
    """A search as it went."""

    value: int
    curve: list[tuple[int, int]]
    """(evaluations, value) of every improvement"""
    recalled: Recalled | None

    def reached(self, value: int) -> int | None:
        """Evaluations after which it was as good as that."""
        return next((evaluations for evaluations, found in self.curve if found <= value), None)


def seek(problem: Problem, solver: str, evaluations: int, seed: int = 0, bank: Bank | None = None) -> Sought:
    """Solve within so many evaluations, with no limit of time."""
    with tempfile.TemporaryDirectory() as folder:
        solution = lm.solve(
            problem, solver, seconds=None, evaluations=evaluations, seed=seed, folder=folder, bank=bank
        )
        assert solution.run is not None and solution.value is not None
        history = History(read_log(solution.run / "log.jsonl").lines)
        return Sought(solution.value, list(history.curve), solution.recalled)


def cpu_seconds() -> float:
    """Of this process and of those that it has started."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def measure_same(program: str, machine: str, kind: str, evaluations: int | None = None) -> dict[str, Any]:
    """The same question twice."""
    graph = lm.load_model(program)
    row: dict[str, Any] = {"what": "same", "program": program, "machine": machine, "kind": kind}
    with tempfile.TemporaryDirectory() as folder:
        plans = []
        for turn in ("first", "second"):
            cpu, wall = cpu_seconds(), time.perf_counter()
            found = lm.plan(
                graph,
                None if kind == "order" else machine,
                problem=kind,
                budget=evaluations,
                bank=Path(folder) / "bank",
            )
            row[f"{turn}_wall_seconds"] = round(time.perf_counter() - wall, 3)
            row[f"{turn}_cpu_seconds"] = round(cpu_seconds() - cpu, 3)
            row[f"{turn}_evaluations"] = found.evaluations
            assert found.plan is not None
            plans.append(found.plan.hash)
            row |= {"value": found.value, "unit": found.unit, "gap": found.gap, "status": str(found.status)}
    return {**row, "same_plan": plans[0] == plans[1]}


def measure_like(cell: Cell, times: int, seeds: tuple[int, ...] = SEEDS) -> Iterator[dict[str, Any]]:
    """The kept answer sought with `times` as many evaluations; a row for each seed."""
    kept, asked = cell.kept.problem(), cell.asked.problem()
    with tempfile.TemporaryDirectory() as folder:
        first = Bank(Path(folder) / "bank")
        seek(kept, cell.solver, times * cell.evaluations, 0, first)
        entries = {path: path.read_bytes() for path in first.folder.glob("*.jsonl")}
        for seed in seeds:
            for path in first.folder.glob("*.jsonl"):
                path.unlink()
            for path, text in entries.items():
                path.write_bytes(text)
            without = seek(asked, cell.solver, cell.evaluations, seed)
            banked = seek(asked, cell.solver, cell.evaluations, seed, Bank(first.folder))
            start = banked.recalled
            yield {
                "what": "like",
                "kind": cell.kept.kind,
                "kept": str(cell.kept),
                "asked": str(cell.asked),
                "machine": cell.asked.machine,
                "solver": cell.solver,
                "evaluations": cell.evaluations,
                "kept_evaluations": times * cell.evaluations,
                "seed": seed,
                "start": None if start is None else start.value,
                "without": without.value,
                "without_reached": without.reached(without.value),
                "banked": banked.value,
                "banked_reached": banked.reached(without.value),
                "bound": asked.bound().value,
            }


def record(quick: bool, only: str | None) -> None:
    """Both parts, or one of them again beside what is recorded of the other."""
    path, found = RESULTS / "bank.json", list[dict[str, Any]]()
    if only is not None and path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        found = [row for row in rows if row["what"] != only]

    def keep(row: dict[str, Any]) -> None:
        found.append(row)
        print(json.dumps(row), flush=True)
        document = {"command": COMMAND + (" --quick" if quick else ""), "host": host(), "rows": found}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    for program, machine, kind in () if only == "like" else SAME:
        keep(measure_same(program, machine, kind, 200 if quick else None))
    for times in () if only == "same" else (1, 10):
        for cell in cells():
            for row in measure_like(cell, times, SEEDS[:1] if quick else SEEDS):
                keep(row)
    write_page()


def outcome(row: dict[str, Any]) -> str:
    """'earlier', 'later' or 'never': when the search with the bank was as good as the one without at its end."""
    if row["banked_reached"] is None:
        return "never"
    return "earlier" if row["banked_reached"] < row["without_reached"] else "later"


def _summary(rows: list[dict[str, Any]]) -> str:
    counts = {name: sum(outcome(row) == name for row in rows) for name in ("earlier", "later", "never")}
    better = sum(row["banked"] < row["without"] for row in rows)
    worse = sum(row["banked"] > row["without"] for row in rows)
    late = [row["banked_reached"] - row["without_reached"] for row in rows if outcome(row) == "later"]
    return (
        f"{len(rows)} runs: as good earlier in {counts['earlier']}, later in {counts['later']} (by {max(late, default=0)} "
        f"evaluations at most: what it costs to look at the start), never in {counts['never']}; the answer is better in "
        f"{better}, equal in {len(rows) - better - worse}, worse in {worse}."
    )


def write_page() -> None:
    """benchmarks/results/bank.md, of the recorded rows."""
    document = json.loads((RESULTS / "bank.json").read_text(encoding="utf-8"))
    same = [row for row in document["rows"] if row["what"] == "same"]
    like = [row for row in document["rows"] if row["what"] == "like"]
    lines = [
        "# A bank of plans",
        "",
        f"Made by `{document['command']}` (`bank.json`), on two cores that were shared with other jobs.",
        "",
        "## The same question",
        "",
        "`lm.plan` with its defaults, twice. The second answer is the bank's: checked and evaluated again, beside the same",
        "baselines, which are worked out again too.",
        "",
        "| program | machine | problem | first | second | CPU first | CPU second | evaluations | gap | same plan |",
        "| --- | --- | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for row in same:
        gap = "–" if row["gap"] is None else f"{row['gap']:.2%}"
        lines.append(
            f"| {row['program']} | {row['machine']} | {row['kind']} | {row['first_wall_seconds']:.2f} s "
            f"| {row['second_wall_seconds']:.2f} s | {row['first_cpu_seconds']:.2f} s "
            f"| {row['second_cpu_seconds']:.2f} s | {row['first_evaluations']:,} and {row['second_evaluations']} "
            f"| {gap} | {'yes' if row['same_plan'] else '**no**'} |"
        )
    lines += [
        "",
        "## A question like it",
        "",
        "Evaluations after which the search with the bank is as good as the one without it is at its end; after how many",
        "that one was. `start`: the adapted plan, and `end`: the answer, over the answer without the bank (below 0 is",
        "better). `never`: not within as many evaluations. One row a seed; the rows of a loss are bold.",
        "",
    ]
    for times in sorted({row["kept_evaluations"] // row["evaluations"] for row in like}):
        rows = [row for row in like if row["kept_evaluations"] == times * row["evaluations"]]
        lines += [
            f"### What is kept was sought with {times} × the evaluations",
            "",
            _summary(rows),
            "",
            "| kept | asked | problem | solver | seed | evaluations | without | with | start | end |",
            "| --- | --- | --- | --- | --: | --: | --: | --: | --: | --: |",
        ]
        for row in rows:
            mark = "**" if row["banked"] > row["without"] else ""
            reached = "never" if row["banked_reached"] is None else f"{row['banked_reached']:,}"
            start = "–" if row["start"] is None else f"{row['start'] / row['without'] - 1:+.3%}"
            lines.append(
                f"| {row['kept']} | {row['asked']} | {row['kind']} | {row['solver']} | {row['seed']} "
                f"| {row['evaluations']:,} | {row['without_reached']:,} | {mark}{reached}{mark} | {start} "
                f"| {mark}{row['banked'] / row['without'] - 1:+.4%}{mark} |"
            )
        lines.append("")
    (RESULTS / "bank.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, and fewer evaluations")
    parser.add_argument("--page", action="store_true", help="the page again, from the recorded rows")
    parser.add_argument("--only", choices=("same", "like"), help="measure this part alone")
    given = parser.parse_args()
    if given.page:
        write_page()
    else:
        record(given.quick, given.only)


if __name__ == "__main__":
    main()
