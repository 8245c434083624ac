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

from benchmarks.suites.mapping_cells import BLACK, CELLS, WORKLOADS
from benchmarks.suites.mapping_summary import (
    BEATS,
    LOSES,
    NEITHER,
    Summary,
    compare,
    mean_and_deviation,
    merged,
    summaries,
    verdict,
)
from benchmarks.suites.mapping_targets import SPEC, targets

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "mapping.json"
PAGE = HERE / "results" / "mapping.md"
BEGIN, END = "<!-- results: made by benchmarks/mapping_table.py -->", "<!-- end of results -->"
ROOM = [case for case in CELLS if case.startswith("room/")]
SHORT = {BEATS: "better", LOSES: "**worse**", NEITHER: "no difference"}
SEEDS = 5
"""Where there are fewer, the table says so."""
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


def with_spread(mean: float, deviation: float) -> str:
    """Two shares as '1.23 ± 0.45 %'."""
    return f"{100 * mean:.2f} ± {100 * deviation:.2f} %"


def gaps(found: Found, cases: Sequence[str]) -> str:
    """Black-box solvers: mean gap and deviation, one line a cell."""
    solvers = [s for s in BLACK if any((case, s) in found for case in cases)]
    rows = [
        [f"`{case}`", *(_gap(found.get((case, solver))) for solver in solvers)]
        for case in cases
        if any((case, solver) in found for solver in solvers)
    ]
    return table(["cell", *(f"`{solver}`" for solver in solvers)], rows)


def _gap(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    mark = f" ({summary.found_nothing} found nothing)" if summary.found_nothing else ""
    count = len(summary.rows)
    few = "" if count >= SEEDS else f" ({count} seed{'s' if count > 1 else ''})"
    # What a cell's name does not tell: rows of its own solver with other options.
    given = CELLS[summary.case].solver if summary.case in CELLS else {}
    changed = {
        f" ({name}={value})"
        for row in summary.rows
        for name, value in row["extra"].get("options", {}).items()
        if name not in given
    }
    options = "".join(sorted(changed))
    return with_spread(summary.gap, summary.gap_deviation) + mark + few + options


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
        proven = min(s.mean for s in own) <= bound
        rows.append(
            [
                f"`{case}`",
                *times,
                f"{bound / 1e6:.3f}{'' if proven else ' (open)'}",
                f"{compiler / bound:.3f}",
            ]
        )
    return table(["cell", "all-slowest", "role-split", "compiler", "density", "exact", "bound", "room"], rows)


def _microseconds(summary: Summary | None) -> str:
    return "–" if summary is None else f"{summary.mean / 1e6:.3f}"


def verdicts(found: Found, cases: Sequence[str], solver: str = "egrl") -> str:
    """One solver against each other black-box one."""
    rows = []
    for other in BLACK:
        versus = compare(found, solver, other, cases)
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


def to_gain(found: Found, cases: Sequence[str]) -> str:
    """Evaluations until 95 % of a solver's own final gain."""
    rows = []
    for case in cases:
        pair = [
            found[case, s].median("to_95pct_of_gain") if (case, s) in found else None for s in ("egrl", "ea")
        ]
        if pair[0] is not None and pair[1] is not None:
            rows.append([f"`{case}`", f"{pair[0]:,.0f}", f"{pair[1]:,.0f}", f"{pair[0] / pair[1]:.2f}"])
    return table(["cell", "`egrl`", "`ea`", "ratio"], rows)


def clock(found: Found, cases: Sequence[str]) -> str:
    """Mean seconds of a run, and where EGRL's go."""
    rows = []
    for case in cases:
        own = [found.get((case, solver)) for solver in BLACK]
        if any(own):
            rows.append([f"`{case}`", *map(_took, own), _split(found.get((case, "egrl")))])
    return table(["cell", *(f"`{s}`" for s in BLACK), "of `egrl`: evaluate, forward, gradient, evolve"], rows)


def _took(summary: Summary | None) -> str:
    """Of the rows without a GPU where there are any."""
    if summary is None:
        return "–"
    rows, mark = (summary.on_cpu, "") if summary.on_cpu else (summary.rows, " (gpu)")
    return f"{statistics.fmean(row['seconds'] for row in rows):.1f}{mark}"


def _split(summary: Summary | None) -> str:
    rows = () if summary is None else summary.on_cpu or summary.rows
    parts = [row["extra"].get("seconds_split") for row in rows]
    if not parts or not all(parts):
        return "–"
    names = ("evaluate", "forward", "gradient", "evolve")
    return ", ".join(f"{statistics.fmean(part[name] for part in parts):.1f}" for name in names)


def champions(found: Found, cases: Sequence[str]) -> str:
    """Who found EGRL's best map."""
    rows = [
        [
            f"`{case}`",
            ", ".join(f"{kind} {n}" for kind, n in found[case, "egrl"].counted("champion_kind").items()),
        ]
        for case in cases
        if (case, "egrl") in found
    ]
    return table(["cell", "champion's kind over seeds"], rows)


def ablations(found: Found) -> str:
    """Each switch beside the default. Other rules or noise are other problems: no verdict."""
    base = found.get(("ablation/default", "egrl")) or found.get(("resnet101/nnp-i", "egrl"))
    rows = []
    for case in CELLS:
        summary = found.get((case, "egrl"))
        if not case.startswith("ablation/") or summary is None:
            continue
        other = CELLS[case].parallel_ports or base is None or summary is base
        word = "–" if other or base is None else SHORT[verdict(summary.times, base.times)]
        rows.append(
            [
                case.removeprefix("ablation/"),
                _gap(summary),
                f"{summary.speedup:.4f}",
                f"{summary.seconds:.0f}",
                word,
            ]
        )
    return table(["switch", "gap", "over compiler", "seconds", "against default"], rows)


def transfer(found: Found) -> str:
    """Trained x tested: speed-up over the compiler after rectification, and how many maps fitted."""
    names = list(
        dict.fromkeys((case.split("/")[1], solver) for case, solver in found if case.startswith("transfer/"))
    )
    rows = []
    for trained, solver in names:
        cells = [found.get((f"transfer/{trained}/{model}", solver)) for model in WORKLOADS]
        rows.append([trained if trained != "none" else "–", solver, *map(_transferred, cells)])
    for name in ("all-slowest", "compiler") if rows else ():
        cells = [found.get((f"{model}/nnp-i", name)) for model in WORKLOADS]
        if any(cells):
            rows.append(["–", f"{name} (white box)", *(f"{s.speedup:.3f}" if s else "–" for s in cells)])
    return table(["trained on", "policy", *(f"tested on {model}" for model in WORKLOADS)], rows)


def _transferred(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    mean, deviation = mean_and_deviation([summary.baseline / time for time in summary.times])
    valid = sum(bool(row["extra"]["valid"]) for row in summary.rows)
    epsilon = statistics.fmean(row["extra"]["epsilon"] for row in summary.rows)
    return f"{mean:.3f} ± {deviation:.3f} ({valid}/{len(summary.rows)} fit, ε {epsilon:.2f})"


def warm(found: Found) -> str:
    """Few evaluations from a trained policy, beside starts from nothing."""
    rows = []
    for model in WORKLOADS:
        cells = [
            found.get((case, "egrl"))
            for case in (f"warm/{model}/200", f"cold/{model}/200", f"cold/{model}/2000")
        ]
        if all(cells):
            start, _, cold = cells
            assert start is not None and cold is not None
            word = SHORT[verdict(start.times, cold.times)]
            policy = CELLS[f"warm/{model}/200"].solver["init"]
            rows.append([f"`{model}/nnp-i`", f"`{policy}`", *map(_gap, cells), word])
    return table(
        ["cell", "policy", "warm, 200", "cold, 200", "cold, 2,000", "warm 200 against cold 2,000"], rows
    )


def page(document: dict[str, Any]) -> str:
    """All tables."""
    found = summaries(document["rows"])
    seeds = max((len(s.seeds) for s in found.values()), default=0)
    goals = [[target.goal, target.result, target.word] for target in targets(found)]
    lines = [
        *section(
            "Targets",
            "As they were set before anything was measured.",
            table(["target of `egrl`", "result", ""], goals) if found else "",
        ),
        *section(
            "Black box: gap to the bound",
            f"Mean ± standard deviation over {seeds} seeds at equal evaluations. "
            "These solvers see only how long the maps take that they try.",
            gaps(found, SPEC),
        ),
        *section(
            "White box, beside them",
            "Simulated microseconds. These solvers read the program and the machine, so they are not "
            "ranked with the others. Room is compiler / bound: no method can gain more.",
            white(found, SPEC),
        ),
        *section(
            "Verdicts",
            "Two solvers differ only if the 95 % bootstrap interval of the difference of mean times excludes 0.",
            verdicts(found, SPEC),
        ),
        *section(
            "Where there is room: black box",
            "Larger batches, 16-bit numbers, other machines.",
            gaps(found, ROOM),
        ),
        *section("Where there is room: white box", "Simulated microseconds.", white(found, ROOM)),
        *section("Where there is room: verdicts", "As above.", verdicts(found, ROOM)),
        *section(
            "Evaluations until 95 % of the gain",
            "Median over seeds. The gain is the final speed-up beyond all in the slowest memory, "
            "each solver's own.",
            to_gain(found, [*SPEC, *ROOM]),
        ),
        *section(
            "Seconds",
            "Mean of a run on one or two cores; (gpu): many runs at once beside one GPU, compiling among it.",
            clock(found, [*SPEC, *ROOM]),
        ),
        *section(
            "Who found it", "The kind of member that proposed the best map.", champions(found, [*SPEC, *ROOM])
        ),
        *section("Ablations", "ResNet-101 on nnp-i, one switch at a time.", ablations(found)),
        *section(
            "Zero-shot transfer",
            "Speed-up over the compiler of one greedy map, rectified; mean ± deviation over seeds.",
            transfer(found),
        ),
        *section("Warm start", "Gap after few evaluations.", warm(found)),
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
