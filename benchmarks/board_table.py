"""Write what is recorded of the player on the board into benchmarks/results/muzero.md.

python benchmarks/board_table.py [--check]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.suites.board import CELLS, FEW, GAP, MANY, WAYS
from benchmarks.suites.malloc_cells import HELD_OUT, PROGRAMS
from benchmarks.suites.malloc_summary import played
from benchmarks.suites.mapping_targets import Target

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "board.json"
OLD_RESULTS = HERE / "results" / "malloc.json"
PAGE = HERE / "results" / "muzero.md"
BEGIN, END = "<!-- results: made by benchmarks/board_table.py -->", "<!-- end of the board's results -->"
TIE = 0.001
NEAR = 0.0003
"""Above the best plan known: within it nothing is left to win."""
BUDGETS = (6, 8, 16, 32, 64, FEW)
"""Evaluations; the first five are the first state's."""
OLD = (
    "msa-order",
    "msa-order-2023",
    "es-moves",
    "anneal-moves",
    "climb",
    "random-best",
    "rounded",
    "production",
)
"""Whose recorded plans of the malloc suite are 'the best on record'."""
Rows = Mapping[tuple[str, str], list[dict[str, Any]]]
"""(case, way) -> rows, one a seed"""


def value_at(row: Mapping[str, Any], evaluations: int) -> float:
    """The best time after so many evaluations."""
    known = [value for count, value in row["extra"]["curve"] if count <= evaluations]
    return float(known[-1])


def value_within(row: Mapping[str, Any], seconds: float) -> float:
    known = [value for at, value in row["extra"]["clock"] if at <= seconds]
    return float(known[-1]) if known else math.inf


def mean_log(values: Iterable[float]) -> float:
    """The log of the geometric mean."""
    return statistics.fmean(math.log(value) for value in values)


class Board:
    """Recorded rows, by cell and way."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            found[row["case"], row["solver"]].append(row)
        self.rows: Rows = found
        self.cases = [
            f"{name}/{machine}" for name, machine in GAP if (f"{name}/{machine}", "muzero") in found
        ]

    def time(self, case: str, way: str, evaluations: int = FEW) -> float:
        """The geometric mean over seeds; of 4,000 evaluations those seeds that had as many."""
        rows = [row for row in self.rows[case, way] if row["extra"]["budget"] >= min(evaluations, WAYS[way])]
        return math.exp(mean_log(value_at(row, evaluations) for row in rows))

    def timer(self, way: str, evaluations: int = FEW) -> Callable[[str], float]:
        return lambda case: self.time(case, way, evaluations)

    def has(self, case: str, way: str, evaluations: int) -> bool:
        return any(row["extra"]["budget"] >= evaluations for row in self.rows.get((case, way), []))

    def both(self, way: str, evaluations: int) -> list[str]:
        """Cells that a way and the player both played so long."""
        least = min(evaluations, WAYS[way])
        return [case for case in self.cases if self.has(case, way, least)]

    def over(
        self, rival: Callable[[str], float], mine: Callable[[str], float], cases: list[str]
    ) -> list[float]:
        """[cells] log(rival / mine): positive where mine is faster."""
        return [math.log(rival(case) / mine(case)) for case in cases]


def standing(logs: list[float]) -> str:
    """Wins, ties, losses."""
    wins, losses = sum(each > TIE for each in logs), sum(each < -TIE for each in logs)
    return f"{wins} / {len(logs) - wins - losses} / {losses}"


def percent(logs: Iterable[float]) -> str:
    return f"{100 * statistics.fmean(logs):+.2f} %"


def ways(board: Board) -> str:
    """Each way beside msa-refined and msa-order."""
    rows = []
    for way in WAYS:
        cases = [case for case in board.both(way, FEW) if board.has(case, "msa-order", FEW)]
        if not cases:
            continue
        refined = board.over(board.timer("msa-refined"), board.timer(way), cases)
        order = board.over(board.timer("msa-order"), board.timer(way), cases)
        seeds = max(len(board.rows[case, way]) for case in cases)
        evaluations = min(FEW, WAYS[way])
        seconds = statistics.fmean(
            row["seconds"] * min(1.0, FEW / row["evaluations"])
            for case in cases
            for row in board.rows[case, way]
        )
        rows.append(
            [
                f"`{way}`",
                str(evaluations),
                str(seeds),
                percent(refined),
                percent(order),
                standing(order),
                f"{seconds:.2f}",
            ]
        )
    head = [
        "way",
        "evaluations",
        "seeds",
        "less time than `msa-refined`",
        "than `msa-order`",
        "wins / ties / losses",
        "seconds",
    ]
    return table(head, rows)


def best_known(board: Board) -> dict[str, float]:
    """Case -> the best plan of any way and seed."""
    known: dict[str, float] = {}
    for (case, _), rows in board.rows.items():
        known[case] = min([known.get(case, math.inf), *(row["value"] for row in rows)])
    return known


def budgets(board: Board, held_out: bool) -> str:
    """How far each way is from the best plan known, after more and more evaluations."""
    known, rows = best_known(board), []
    for way in WAYS:
        cases = [c for c in board.both(way, FEW) if (c.split("/")[0] in HELD_OUT) == held_out]
        if not cases or way.startswith("msa-refined"):
            continue
        left = [
            statistics.fmean(math.log(board.time(c, way, count) / known[c]) for c in cases)
            for count in BUDGETS
        ]
        rows.append([f"`{way}`", *(f"{100 * each:.2f} %" for each in left)])
    return table(["way", *(f"{count}" for count in BUDGETS)], rows)


def long_runs(board: Board) -> str:
    cases = _long(board)
    if not cases:
        return ""
    rows = []
    counts = [
        sum(row["extra"]["budget"] >= MANY for row in board.rows[case, way])
        for case in cases
        for way in ("msa-order", "muzero")
    ]
    seeds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    passes = "msa-order, passes"
    for name, mine in (
        (f"`msa-order`, {MANY:,}", board.timer("msa-order", MANY)),
        (f"`{passes}`, {MANY:,}", board.timer(passes, MANY)),
        (f"`muzero`, {FEW}", board.timer("muzero", FEW)),
        ("`muzero`, seconds of `msa-order`", lambda c: equal_seconds(board, c)),
        (f"`muzero`, {MANY:,}", board.timer("muzero", MANY)),
    ):
        had = [case for case in cases if passes not in name or board.has(case, passes, MANY)]
        if not had:
            continue
        refined = board.over(board.timer("msa-refined"), mine, had)
        order = board.over(board.timer("msa-order", MANY), mine, had)
        rows.append([name, str(len(had)), seeds, percent(refined), percent(order), standing(order)])
    head = [
        "way, evaluations",
        "cells",
        "seeds",
        "less time than `msa-refined`",
        f"than `msa-order` at {MANY:,}",
        "wins / ties / losses",
    ]
    return table(head, rows)


def groups(board: Board) -> str:
    """The player beside its rivals, apart for the held-out programs: nobody chose anything by them."""
    rows = []
    for name, held_out in (("programs of the folds", False), ("held-out programs", True)):
        cases = [c for c in board.cases if (c.split("/")[0] in HELD_OUT) == held_out]
        row = [name, str(len(cases))]
        for way in ("msa-order", "msa-order, passes", "options + evolution", "untrained"):
            both = [c for c in cases if (c, way) in board.rows]
            logs = board.over(board.timer(way), board.timer("muzero"), both)
            row.append(f"{percent(logs)} ({standing(logs)})" if logs else "–")
        rows.append(row)
    head = ["", "cells", "than `msa-order`", "with passes", "than options + evolution", "than untrained"]
    return table(head, rows)


def _long(board: Board) -> list[str]:
    return [c for c in board.cases if board.has(c, "msa-order", MANY) and board.has(c, "muzero", MANY)]


def equal_seconds(board: Board, case: str) -> float:
    """The player's time after the seconds that evolution took for 4,000 evaluations, seed by seed."""
    rivals = {
        row["seed"]: row["seconds"] for row in board.rows[case, "msa-order"] if row["extra"]["budget"] >= MANY
    }
    mine = [
        row for row in board.rows[case, "muzero"] if row["extra"]["budget"] >= MANY and row["seed"] in rivals
    ]
    return math.exp(mean_log(value_within(row, rivals[row["seed"]]) for row in mine))


def production(board: Board, old: Any) -> tuple[str, dict[str, list[float]]]:
    """Beside the production placement, all 16 programs: a table, and the logs by machine."""
    rows, logs = [], {}
    for machine in ("tpu-v4i", "tpu-v4i-16m"):
        cases = [f"{name}/{machine}" for name in PROGRAMS]
        cases = [c for c in cases if (c, "muzero") in board.rows and (c, "production") in old]
        for evaluations in (FEW, MANY):
            known = [c for c in cases if board.has(c, "muzero", evaluations)]
            if not known:
                continue
            gains = [
                math.log(old[c, "production"].reference / board.time(c, "muzero", evaluations)) for c in known
            ]
            worse = sum(each < 0 for each in gains)
            mean = math.exp(statistics.fmean(gains))
            rows.append(
                [
                    f"`{machine}`",
                    f"{evaluations:,}",
                    str(len(known)),
                    f"{mean:.4f} ×",
                    f"{math.exp(min(gains)):.4f} ×",
                    str(worse),
                ]
            )
            logs[machine] = gains
    head = [
        "machine",
        "evaluations",
        "programs",
        "over production, geometric mean",
        "worst",
        "slower than it",
    ]
    return table(head, rows), logs


def targets(board: Board, old: Any) -> list[Target]:
    """Those of the player."""
    found = []
    cases = [c for c in board.cases if board.has(c, "msa-order", FEW)]

    time = board.timer

    def goal(text: str, logs: list[float], least: float) -> None:
        found.append(Target(text, percent(logs), statistics.fmean(logs) >= least))

    order = board.over(time("msa-order"), time("muzero"), cases)
    lost = sum(each < -TIE for each in order)
    goal(
        f"{FEW} evaluations: at least 1.0 % faster than `msa-order`, mean of {len(cases)} cells", order, 0.01
    )
    found.append(Target("and at most two losses", f"{lost}", lost <= 2))
    for way in ("options + evolution", "untrained"):
        if both := [c for c in cases if (c, way) in board.rows]:
            text = f"{FEW} evaluations: 0.8 % better than `{way}`"
            goal(text, board.over(time(way), time("muzero"), both), 0.008)
    if long := _long(board):
        goal(
            f"{FEW} evaluations: at least as fast as `msa-order` at {MANY:,}, {len(long)} cells",
            board.over(time("msa-order", MANY), time("muzero"), long),
            0.0,
        )
        goal(
            "seconds of `msa-order` at 4,000: 1.0 % better",
            board.over(time("msa-order", MANY), lambda c: equal_seconds(board, c), long),
            0.01,
        )
        best = {
            c: min(old[c, way].best for way in OLD if (c, way) in old)
            for c in long
            if (c, "msa-order") in old
        }
        if best:
            goal(
                f"{MANY:,} evaluations: 0.5 % better than the best on record, {len(best)} cells that have one",
                board.over(lambda c: best[c], time("muzero", MANY), list(best)),
                0.005,
            )
    recorded = [f"{name}/{machine}" for name, machine in CELLS if machine in ("tpu-v4i", "tpu-v4i-16m")]
    recorded = [c for c in recorded if board.has(c, "muzero", MANY)]
    if recorded:
        gaps = [board.time(c, "muzero", MANY) / board.rows[c, "muzero"][0]["bound"] - 1 for c in recorded]
        mean = statistics.fmean(gaps)
        text = f"mean gap to the bound below 2 %, {len(gaps)} cells with 16 and 128 MiB"
        found.append(Target(text, f"{mean:.2%}", mean < 0.02))
    _, logs = production(board, old)
    for machine, least in (("tpu-v4i", 1.08), ("tpu-v4i-16m", 1.05)):
        if machine in logs:
            mean, worse = math.exp(statistics.fmean(logs[machine])), sum(each < 0 for each in logs[machine])
            found.append(
                Target(
                    f"over production, `{machine}`: at least {least} ×, never worse",
                    f"{mean:.4f} ×, {worse} of {len(logs[machine])} worse",
                    mean >= least and not worse,
                )
            )
    if against := search_and_policy(board):
        kinds = [each.outcome for each in against]
        text = "search beats the bare policy at equal evaluations on at least 12 of 16 programs"
        wins, ties, losses = (kinds.count(word) for word in ("win", "tie", "loss"))
        result = f"{wins} of {len(kinds)}; {ties} at the best known with both, {losses} lost"
        found.append(Target(text, result, wins >= 12))
    return found


class Against(NamedTuple):
    """A program, played by search and by the bare policy: means over cells and seeds, at equal evaluations."""

    program: str
    cells: int
    ahead: float
    """log(bare policy / search)"""
    policy: float
    search: float
    """Above the best known"""

    @property
    def outcome(self) -> str:
        if max(self.policy, self.search) < NEAR:
            return "tie"
        return "win" if self.ahead > 0 else "loss"


def search_and_policy(board: Board) -> list[Against]:
    known, found = best_known(board), []
    for program in PROGRAMS:
        cases = [c for c in board.both("bare policy", FEW) if c.split("/")[0] == program]
        if cases:
            times = [(board.time(c, "bare policy"), board.time(c, "muzero"), known[c]) for c in cases]
            policy, search = (
                statistics.fmean(math.log(each[way] / each[2]) for each in times) for way in range(2)
            )
            found.append(Against(program, len(cases), policy - search, policy, search))
    return found


def versus_policy(board: Board) -> str:
    """Search and bare policy, program by program."""
    rows = [
        [
            f"**`{each.program}`**" if each.program in HELD_OUT else f"`{each.program}`",
            str(each.cells),
            f"{100 * each.policy:.3f} %",
            f"{100 * each.search:.3f} %",
            f"{100 * each.ahead:+.3f} %",
            each.outcome,
        ]
        for each in search_and_policy(board)
    ]
    head = ["program", "cells", "bare policy above the best known", "search", "search ahead by", ""]
    return table(head, rows)


def cells(board: Board) -> str:
    rows = []
    for name, machine in CELLS:
        case = f"{name}/{machine}"
        if case not in board.cases:
            continue
        bound = board.rows[case, "muzero"][0]["bound"]
        columns = [
            (way, FEW) for way in ("msa-refined", "msa-order", "options + evolution", "untrained", "muzero")
        ]
        columns += [("msa-order", MANY), ("muzero", MANY)]
        times = [
            board.time(case, way, count) if board.has(case, way, min(count, WAYS[way])) else math.nan
            for way, count in columns
        ]
        best = min(each for each in times if not math.isnan(each))
        shown = ["–" if math.isnan(each) else f"{each / 1e9:.4g}" for each in times]
        label = f"**`{name}`**" if name in HELD_OUT else f"`{name}`"
        rows.append(
            [
                label,
                machine.removeprefix("tpu-v4i") or "-128m",
                *shown,
                f"{bound / 1e9:.4g}",
                f"{best / bound - 1:.2%}",
            ]
        )
    head = [
        "program",
        "",
        "`msa-refined`",
        "`msa-order`",
        "options + evolution",
        "untrained",
        "**`muzero`**",
        f"`msa-order` {MANY:,}",
        f"`muzero` {MANY:,}",
        "bound",
        "gap of the best",
    ]
    return table(head, rows)


def page(document: Mapping[str, Any], old_rows: list[dict[str, Any]]) -> str:
    board, old = Board(document["rows"]), played(old_rows)
    goals = targets(board, old)
    text = [
        (
            "All times are **simulated**, in milliseconds; geometric means over cells and seeds. Every row of a learned way is of weights that saw neither the "
            "program nor its relatives; held-out programs (bold) are played by the weights that ship. `untrained` is the same search with nothing learned; "
            "`bare policy` samples around its openings. `passes`: memory space assignment with the two passes that the player's settings have. Seconds are of the processor."
        ),
        "",
        "### Targets",
        "",
        table(["target", "measured", ""], [[t.goal, t.result, t.word] for t in goals]),
        "",
        f"### {len(board.cases)} cells with a gap, {FEW} evaluations",
        "",
        ways(board),
        "",
        f"Less time of `muzero`, {FEW} evaluations (wins / ties / losses):",
        "",
        groups(board),
        "",
        "### What learning is worth when evaluations are few",
        "",
        "Time above the best plan that any way found with any seed, in the mean. Five evaluations are `msa-refined`. Programs of the folds:",
        "",
        budgets(board, False),
        "",
        "Held-out programs:",
        "",
        budgets(board, True),
        "",
        "### Search and bare policy",
        "",
        (
            f"{FEW} evaluations, programs as means over their cells and seeds. A tie: both are within {100 * NEAR:.2f} % of the best plan that any way found "
            "with any seed, so that nothing is left to win."
        ),
        "",
        versus_policy(board),
        "",
        f"### {MANY:,} evaluations, and equal seconds",
        "",
        long_runs(board),
        "",
        "### Beside the production placement",
        "",
        production(board, old)[0],
        "",
        "### Cells",
        "",
        cells(board),
    ]
    return "\n".join(text).rstrip()


def main() -> int:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    old = json.loads(OLD_RESULTS.read_text(encoding="utf-8"))["rows"]
    return rewrite(PAGE, BEGIN, END, page(document, old))


if __name__ == "__main__":
    sys.exit(main())
