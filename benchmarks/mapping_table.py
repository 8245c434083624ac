"""Make the tables of benchmarks/results/mapping.md from the recorded results: never typed, never out of date.

`python benchmarks/mapping_table.py` rewrites the lines between the two markers; `--check` fails if
they would change; `--rows FILE.jsonl` prints the tables of rows that are not recorded yet.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.mapping_cells import BUDGET, CELLS, NINE, NOISES, ROOM, TIMED_SECONDS
from benchmarks.suites.mapping_solvers import EGRL, MAPS, PAPER, PIECES, SCORES
from benchmarks.suites.mapping_summary import (
    BEATS,
    LOSES,
    NEITHER,
    Summary,
    at,
    compare,
    mean_excess_at,
    mean_gap_after,
    mean_gap_at,
    merged,
    summaries,
)
from benchmarks.suites.mapping_targets import EQUAL_SECONDS, HELD_OUT, targets

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "mapping.json"
PAGE = HERE / "results" / "mapping.md"
BEGIN, END = "<!-- results: made by benchmarks/mapping_table.py -->", "<!-- end of results -->"
AT = (1, 50, 200, 1_000)
RANKED = (*EGRL, "probe", *SCORES, *MAPS)
SEES = {
    "egrl": "rewards, the machine's description",
    "egrl-untrained": "the same",
    "egrl-strict": "rewards, graph, sizes, capacities",
    "egrl-strict-untrained": "the same",
    "probe": "rewards, graph, sizes, capacities (grey box)",
    **dict.fromkeys(SCORES, "rewards, the machine's description"),
    **dict.fromkeys(MAPS, "rewards"),
    "density": "everything (white box)",
    "compiler": "everything (white box)",
}
Found = dict[tuple[str, str], Summary]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(title: str, text: str, body: str) -> list[str]:
    """A heading, a sentence, a table; nothing where there is no table."""
    return [f"### {title}", "", text, "", body, ""] if body else []


def show(share: float | None) -> str:
    """In percent; '–' where nothing was measured."""
    return "–" if share is None else f"{100 * share:.2f} %"


def both(found: Found, solver: str, evaluations: int) -> str:
    """Mean gaps over the nine cells and over those with room."""
    means = [mean_gap_at(found, solver, cases, evaluations) for cases in (NINE, ROOM)]
    return "–" if means == [None, None] else " / ".join(show(mean) for mean in means)


def means(found: Found, solvers: Sequence[str]) -> str:
    """One line a solver: mean gaps at equal evaluations."""
    rows = []
    for solver in solvers:
        own = [found[case, solver] for case in (*NINE, *ROOM) if (case, solver) in found]
        if not own:
            continue
        white = own[0].white_box
        cells = [both(found, solver, number) for number in AT]
        if white:
            cells = [cells[0], *("" for _ in AT[1:])]
        seeds = min(len(each.rows) for each in own)
        rows.append([f"`{solver}`{_budget(own)}", SEES.get(solver, "as `egrl`"), *cells, str(seeds)])
    return table(["solver", "sees", *(f"{number:,}" for number in AT), "seeds"], rows)


def _budget(own: Sequence[Summary]) -> str:
    """What a row's name does not tell: evaluations of its run that are not those of all others."""
    budgets = {row["extra"].get("budget") for each in own for row in each.rows} - {None, BUDGET}
    return f" (runs of {', '.join(f'{budget:,}' for budget in sorted(budgets))})" if budgets else ""


def per_cell(found: Found, cases: Sequence[str], evaluations: int) -> str:
    """Mean gap ± deviation of each solver after so many evaluations, one line a cell."""
    solvers = [s for s in (*RANKED, "density", "compiler") if any((case, s) in found for case in cases)]
    rows = [
        [f"`{case}`", *(_gap(found, case, solver, evaluations) for solver in solvers)]
        for case in cases
        if any((case, solver) in found for solver in solvers)
    ]
    return table(["cell", *(f"`{solver}`" for solver in solvers)], rows)


def _gap(found: Found, case: str, solver: str, evaluations: int) -> str:
    known = at(found, case, solver, evaluations)
    if known is None:
        return "–"
    summary, times = known
    spread = statistics.stdev(times) / summary.bound if len(times) > 1 else 0.0
    text = f"{100 * summary.gap_of(times):.2f}" + (f" ± {100 * spread:.2f}" if len(times) > 1 else "")
    mark = " (to a loose bound)" if summary.loose else " (bound lowered)" if summary.lowered else ""
    return f"{text} %{mark}"


def white(found: Found, cases: Sequence[str]) -> str:
    """White-box solvers in microseconds, the bound, and the room above it."""
    rows = []
    for case in cases:
        own = [summary for (name, _), summary in found.items() if name == case]
        if not own:
            continue
        times = [
            _microseconds(found.get((case, name)))
            for name in ("all-slowest", "role-split", "compiler", "density", "exact")
        ]
        bound, compiler = own[0].bound, own[0].baseline
        mark = " (loose)" if own[0].loose else " (lowered)" if own[0].lowered else ""
        rows.append([f"`{case}`", *times, f"{bound / 1e6:.3f}{mark}", f"{compiler / bound:.3f}"])
    return table(["cell", "all-slowest", "role-split", "compiler", "density", "exact", "bound", "room"], rows)


def _microseconds(summary: Summary | None) -> str:
    return "–" if summary is None else f"{summary.mean / 1e6:.3f}"


def verdicts(found: Found, cases: Sequence[str], solver: str = "egrl") -> str:
    """One solver against each other one."""
    rows = []
    for other in (*RANKED, *PIECES, "density", "compiler"):
        versus = compare(found, solver, other, cases, BUDGET)
        if other == solver or not versus.verdicts:
            continue
        losses = [case for case, word in versus.verdicts.items() if word == LOSES]
        rows.append(
            [
                f"`{other}`",
                *(str(versus.count(word)) for word in (BEATS, NEITHER, LOSES)),
                ", ".join(f"`{case}`" for case in losses) or "–",
            ]
        )
    return table(
        [f"`{solver}` against", "better in", "no difference shown in", "worse in", "worse where"], rows
    )


def equal_seconds(found: Found) -> str:
    """Mean gap over the twenty cells after equal seconds, evaluations without limit."""
    cases = [f"seconds/{case}" for case in (*NINE, *ROOM)]
    rows = []
    for solver in dict.fromkeys(solver for case, solver in found if case in cases):
        gaps = [mean_gap_after(found, solver, cases, seconds) for seconds in EQUAL_SECONDS]
        if any(gap is not None for gap in gaps):
            own = [found[case, solver] for case in cases if (case, solver) in found]
            evaluations = statistics.fmean(each.evaluations for each in own)
            rows.append([f"`{solver}`", *map(show, gaps), f"{evaluations:,.0f}"])
    rows.sort(key=lambda row: float(row[-2].split()[0]) if row[-2] != "–" else float("inf"))
    return table(["solver", *(f"{seconds:g} s" for seconds in EQUAL_SECONDS), "evaluations"], rows)


def cost(found: Found) -> str:
    """What a run of 1,000 evaluations costs: seconds, legality checks, runs on hardware, illegal maps."""
    rows = []
    for solver in (*RANKED, *PIECES, *PAPER):
        own = [
            row
            for case in (*NINE, *ROOM)
            if (case, solver) in found
            for row in found[case, solver].rows
            if row["extra"].get("budget") == BUDGET
        ]
        if not own:
            continue

        def mean(name: str, own: Sequence[Any] = own) -> float:
            return statistics.fmean(float(row["extra"].get(name) or 0) for row in own)

        rows.append(
            [
                f"`{solver}`",
                f"{statistics.fmean(row['seconds'] for row in own):.2f}",
                f"{statistics.fmean(row['evaluations'] for row in own):,.0f}",
                f"{mean('hardware_runs'):,.0f}",
                f"{mean('legality_checks'):,.0f}",
                f"{mean('unique_maps'):,.0f}",
                f"{mean('invalid_fraction'):.1%}",
            ]
        )
    head = (
        "solver",
        "seconds",
        "evaluations",
        "`hardware_runs`",
        "legality checks",
        "distinct maps",
        "illegal",
    )
    return table(head, rows)


def noisy(found: Found) -> str:
    """Mean true gap of the champion with noise, over the cells that have it."""
    rows = []
    for budget in (50, 200):
        for noise in NOISES:
            prefix = f"noise-{noise:g}-{budget}/"
            cases = [case for case in CELLS if case.startswith(prefix)]
            own = [
                s for s in ("egrl", "egrl-strict", "probe", "density", "compiler") if _all(found, cases, s)
            ]
            if not own:
                continue
            quiet = [mean_gap_at(found, "egrl", [case.removeprefix(prefix) for case in cases], budget)]
            gaps = {s: statistics.fmean(found[case, s].gap for case in cases) for s in own}
            words = [show(gaps.get(s)) for s in ("egrl", "egrl-strict", "probe", "density", "compiler")]
            rows.append([f"{budget}", f"{noise:.0%}", *words, *map(show, quiet)])
    return table(
        [
            "evaluations",
            "noise",
            "`egrl`",
            "`egrl-strict`",
            "`probe`",
            "`density`",
            "`compiler`",
            "`egrl` without noise",
        ],
        rows,
    )


def _all(found: Found, cases: Sequence[str], solver: str) -> bool:
    return bool(cases) and all((case, solver) in found for case in cases)


def misdescribed(found: Found) -> str:
    """Mean gaps where the description is wrong, nine / room."""
    rows = []
    for solver in ("egrl", "egrl-untrained", "egrl-strict", "probe", "density", "compiler"):
        cells = []
        for evaluations in (1, 50, 200):
            pair = [
                mean_gap_at(found, solver, [f"wrong/{case}" for case in cases], evaluations)
                for cases in (NINE, ROOM)
            ]
            cells.append("–" if pair == [None, None] else " / ".join(map(show, pair)))
        if any(cell != "–" for cell in cells):
            rows.append([f"`{solver}`", *cells])
    return table(["solver", "1", "50", "200"], rows)


def held_out(found: Found) -> str:
    """Mean excess over the best that anyone found, by what was held out."""
    rows = []
    for name, prefix in HELD_OUT.items():
        cases = [case for case in CELLS if case.startswith(prefix)]
        for solver in (*EGRL, "probe", "density", "compiler"):
            over = [mean_excess_at(found, solver, cases, number) for number in (1, 50, 200)]
            if any(each is not None for each in over):
                rows.append([f"{name} ({len(cases)} cells)", f"`{solver}`", *map(show, over)])
    return table(["unseen in training", "solver", "1", "50", "200"], rows)


def held_out_cells(found: Found) -> str:
    """Each held-out cell: excess over the best found after 1, 50 and 200 evaluations."""
    solvers = ("egrl", "egrl-untrained", "egrl-strict", "egrl-strict-untrained")
    rows = []
    for case in CELLS:
        if not case.startswith("held-out-") or not all((case, solver) in found for solver in solvers):
            continue
        own = [found[case, solver] for solver in solvers]
        cells = [
            " / ".join(f"{100 * each.excess_of(each.times_at(number)):.2f}" for number in (1, 50, 200))
            for each in own
        ]
        bound = "proven" if not own[0].loose else f"≤ {100 * (own[0].best / own[0].bound - 1):.1f} %"
        rows.append([f"`{case}`", *cells, bound])
    return table(["cell", *(f"`{solver}`" for solver in solvers), "best found above the bound"], rows)


def loose(found: Found) -> str:
    """Cells whose bound nobody has proven to be reachable."""
    cases = [case for case in CELLS if case.startswith("ports-parallel/")]
    return per_cell(found, cases, BUDGET)


def paper(found: Found) -> str:
    """EGRL as published beside EGRL, where both ran."""
    rows = []
    for case in CELLS:
        own = [found.get((case, solver)) for solver in PAPER]
        if any(own):
            rows.append(
                [
                    f"`{case}`",
                    *("–" if each is None else _published(found, each) for each in own),
                    _gap(found, case, "egrl", BUDGET),
                ]
            )
    return table(["cell", *(f"`{solver}`" for solver in PAPER), "`egrl`"], rows)


def _published(found: Found, summary: Summary) -> str:
    illegal = statistics.fmean(row["extra"]["invalid_fraction"] for row in summary.rows)
    return (
        f"{_gap(found, summary.case, summary.solver, BUDGET)}, {illegal:.0%} illegal, {summary.seconds:.0f} s"
    )


def page(document: dict[str, Any]) -> str:
    """All tables."""
    found = summaries(document["rows"])
    goals = [[target.goal, target.result, target.word] for target in targets(found)]
    measured = any(solver == "egrl" for _, solver in found)
    lines = [
        *section(
            "Targets",
            "As they were set before the new EGRL was measured; a missed one stays in the list.",
            table(["target of `egrl`", "result", ""], goals) if measured else "",
        ),
        *section(
            "Mean gap at equal evaluations, nine / room cells",
            "Mean over cells of the mean over seeds. Who has no map that fits yet counts as all in the slowest "
            "memory. White-box solvers make one map. `probe` and annealing share out their evaluations: theirs at 50 and "
            "200 are of runs that had no more.",
            means(found, (*RANKED, "density", "compiler")),
        ),
        *section(
            "What EGRL's parts are worth, nine / room cells",
            "`only`: one operator makes all children; `plus`, `no`: an operator more or less than by default; "
            "`fixed-shares`: operators have equal shares whatever their success.",
            means(found, ("egrl", *PIECES)) if any(solver in PIECES for _, solver in found) else "",
        ),
        *section(
            "Equal seconds",
            f"Mean gap over the twenty cells; {TIMED_SECONDS:g} s on one core, evaluations without limit. "
            "A run that reached the proven optimum ended there.",
            equal_seconds(found),
        ),
        *section(
            "What a run costs",
            f"Means over the twenty cells, up to {BUDGET:,} evaluations. `hardware_runs`: evaluations that a board "
            "would have seen, which a map that does not fit never does; legality checks: maps whose fit somebody "
            "looked at, evaluated or not.",
            cost(found),
        ),
        *section(
            "Gap after 50 evaluations: nine cells", "Mean ± standard deviation.", per_cell(found, NINE, 50)
        ),
        *section("Gap after 50 evaluations: cells with room", "As above.", per_cell(found, ROOM, 50)),
        *section(f"Gap after {BUDGET:,} evaluations: nine cells", "As above.", per_cell(found, NINE, BUDGET)),
        *section(
            f"Gap after {BUDGET:,} evaluations: cells with room", "As above.", per_cell(found, ROOM, BUDGET)
        ),
        *section(
            "Verdicts",
            f"All twenty cells after {BUDGET:,} evaluations. Two solvers differ only if the 95 % bootstrap interval of "
            "the difference of mean times excludes 0.",
            verdicts(found, (*NINE, *ROOM)),
        ),
        *section(
            "White box, beside them",
            "Simulated microseconds. Room is compiler / bound: no method can gain more.",
            white(found, (*NINE, *ROOM)),
        ),
        *section(
            "Noise",
            "Mean true gap over six cells of the map that wins when the five best measured are measured twenty times "
            "more each (not counted as evaluations). `density` and `compiler` measure nothing.",
            noisy(found),
        ),
        *section(
            "A machine that is not as described, nine / room cells",
            "Every rate and bandwidth of the description is off by a factor e^N(0, 0.5) of its own, another "
            "description for each seed; gaps are to the true machine's optimum. `density` believes the description.",
            misdescribed(found),
        ),
        *section(
            "What training has not seen",
            "Mean excess over the best map that anyone found in the cell. The twenty cells above are held out too.",
            held_out(found),
        ),
        *section(
            "What training has not seen, cell by cell",
            "Excess in percent over the best found, after 1 / 50 / 200 evaluations.",
            held_out_cells(found),
        ),
        *section(
            "Ports side by side: loose bounds",
            f"Gaps after {BUDGET:,} evaluations to bounds that nobody has reached: how much of a gap is the bound's "
            "fault is not known.",
            loose(found),
        ),
        *section(
            "As published",
            f"`paper` (`profile=paper`) and its parts with {BUDGET:,} evaluations, illegal maps and all.",
            paper(found),
        ),
    ]
    return "\n".join(lines).rstrip()


def read_rows(path: Path) -> dict[str, Any]:
    """A file of `mapping_runs.py` as a document."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {"rows": merged([], [row for line in lines for row in json.loads(line)["rows"]])}


def main(*words: str) -> int:
    if words[:1] == ("--rows",):
        print(page(read_rows(Path(words[1]))))
        return 0
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    made = page(json.loads(RESULTS.read_text(encoding="utf-8")))
    new = f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}"
    if "--check" in words:
        return 0 if new == text else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
