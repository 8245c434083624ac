"""Make the table of all results, and the README's five lines of it: never typed, never out of date.

`python benchmarks/readme_table.py` rewrites `benchmarks/results/README.md` and the lines between the
README's two marks; `--check` fails if either would change.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.board_table import Board, percent, standing
from benchmarks.suites.board import FEW
from benchmarks.suites.graph_summary import best_classical, saved_over_base, workload_cases
from benchmarks.suites.malloc_learned import lines as learned
from benchmarks.suites.malloc_learned import mean_speedup
from benchmarks.suites.malloc_summary import best_search, bound_of, played, suite_cases
from benchmarks.suites.mapping_cells import NINE, ROOM
from benchmarks.suites.mapping_summary import mean_gap_at, summaries

HERE = Path(__file__).parent
RIVALS = ("msa-order", "options + evolution", "untrained")
"""Beside the player."""
README = HERE.parent / "README.md"
ALL = HERE / "results" / "README.md"
BEGIN, END = "<!-- results: made by benchmarks/readme_table.py -->", "<!-- end of results -->"


def recorded(suite: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / "results" / f"{suite}.json").read_text(encoding="utf-8"))
    return document


def rows(document: dict[str, Any], case: str, solver: str | None = None) -> list[dict[str, Any]]:
    """Rows of the cases that begin so, of one solver ('ours' stands for whichever was chosen)."""
    return [
        row
        for row in document["rows"]
        if row["case"].startswith(case)
        and row["status"] != "skipped"
        and (solver is None or (row["solver"] or "").split(" ")[0] == solver)
    ]


HEAD = ["| what | result | beside it |", "| --- | --- | --- |"]
SHORT_HEAD = ["| what | ours | beside it | gap to the bound |", "| --- | --- | --- | --- |"]


def short_table() -> str:
    """One result for each kind of user in a few words; whether the last one is a loss, the rows say."""
    tpu, graph = malloc_figures("tpu-v4i"), graph_figures("joint", "classical")
    assert tpu is not None and graph is not None and graph.beside is not None
    allocation = recorded("allocation")
    least, others = rows(allocation, "least/", "ours"), _mean_gaps(allocation, "least/")
    rival = min(others, key=lambda name: others[name])
    optimal = sum(row["status"] == "optimal" for row in least)
    mapping = mapping_figures(ROOM)
    lines = [
        fit_line(),
        (
            f"copies into a TPU's fast memory, {tpu.programs} real programs | {tpu.speedup:.3f} × as fast | "
            f"as the production compiler's placement | {tpu.gap:.2%}"
        ),
        (
            f"MiniMalloc's {len(least)} hard instances, 10 s each | {optimal} proven optimal | "
            f"{rival}: gap {others[rival]:.2%} | {sum(row['gap'] for row in least) / len(least):.2%}"
        ),
        (
            f"several devices, {graph.graphs} training graphs | {graph.saved:.1%} less time than the base plan | "
            f"constructive methods: {graph.beside:.1%} | {graph.gap:.1%}"
        ),
        *([] if mapping is None else [mapping.short_line()]),
    ]
    return "\n".join([*SHORT_HEAD, *(f"| {line} |" for line in lines)])


def table() -> str:
    """Every suite that is recorded."""
    simulate, allocation = recorded("simulate"), recorded("allocation")
    lines = [
        *HEAD,
        *mapping_lines(),
        *malloc_lines(),
        *graph_lines(),
        *gpu_lines(),
        *allocation_lines(allocation),
        *simulate_lines(simulate),
    ]
    host = allocation["host"]
    lines.append("")
    lines.append(
        f"Measured on {host['cores']} cores ({host['cpu']}): `{allocation['command']}` and `{simulate['command']}`; "
        "recorded with commit and versions in `benchmarks/results/`. Gaps are to the proven lower bound."
    )
    return "\n".join(lines)


def mapping_lines() -> list[str]:
    """EGRL's gaps after 1 and 50 evaluations, beside who needs none or as many; nothing before it is recorded."""
    lines = []
    for what, cases in (("nine reference cells", NINE), ("eleven cells with room", ROOM)):
        figures = mapping_figures(cases)
        if figures is not None:
            lines.append(figures.line(what))
    return lines


class MappingFigures(NamedTuple):
    """Mean gaps over cells; None: not measured in all of them."""

    at: dict[int, dict[str, float]]
    """After 1 and 50 evaluations: solver -> mean gap."""

    def line(self, what: str) -> str:
        ours = ", ".join(f"{gaps['egrl']:.2%} after {_evaluations(n)}" for n, gaps in self.at.items())
        beside = [
            f"{name} "
            + (
                f"{self.at[1][name]:.2%}"
                if name in ("density", "compiler")
                else " and ".join(f"{gaps[name]:.2%}" for gaps in self.at.values())
            )
            for name in ("density", "compiler", "probe", "egrl-untrained", "egrl-strict")
            if name in self.at[1]
        ]
        return f"| one memory per tensor (EGRL), {what} | mean gap {ours} | {', '.join(beside)} |"

    def short_line(self) -> str:
        """For the README."""
        few = self.at[50]
        loss = "**a loss**: " if few["egrl"] >= min(few["density"], few["compiler"]) else ""
        return (
            f"{loss}EGRL, 50 measurements, {len(ROOM)} cells | "
            f"gap {self.at[1]['egrl']:.1%} at the first | greedy rule {few['density']:.1%}, "
            f"compiler {few['compiler']:.1%} | {few['egrl']:.2%}"
        )


def _evaluations(count: int) -> str:
    return f"{count} evaluation" + ("s" if count > 1 else "")


def mapping_figures(cases: tuple[str, ...]) -> MappingFigures | None:
    """None: EGRL, density or the compiler is not recorded in all of these cells."""
    if not (HERE / "results" / "mapping.json").exists():
        return None
    found = summaries(recorded("mapping")["rows"])
    names = ("egrl", "density", "compiler", "probe", "egrl-untrained", "egrl-strict")
    at = {
        count: {name: gap for name in names if (gap := mean_gap_at(found, name, cases, count)) is not None}
        for count in (1, 50)
    }
    return MappingFigures(at) if {"egrl", "density", "compiler"} <= set(at[1]) else None


class MallocFigures(NamedTuple):
    """The best search over all programs of a machine."""

    programs: int
    speedup: float
    """Over the production compiler's placement; geometric mean, and the worst."""
    worst: float
    gap: float
    msa: float
    """Speed-up of memory space assignment as we wrote it."""


def malloc_figures(machine: str) -> MallocFigures | None:
    """None: nothing is recorded for this machine."""
    found = played(recorded("malloc")["rows"])
    cases = [case for case in suite_cases(found, machine) if (case, "production") in found]
    best = {case: search for case in cases if (search := best_search(found, case)) is not None}
    if not best:
        return None
    ratios = [found[case, "production"].reference / group.median for case, (_, group) in best.items()]
    gaps = [group.median / bound_of(found, case) - 1 for case, (_, group) in best.items()]
    msa = [found[case, "production"].reference / found[case, "msa"].median for case in best]
    return MallocFigures(len(best), _mean(ratios), min(ratios), sum(gaps) / len(gaps), _mean(msa))


def malloc_lines() -> list[str]:
    """Real TPU programs beside the production compiler's placement."""
    if not (HERE / "results" / "malloc.json").exists():
        return []
    found = played(recorded("malloc")["rows"])
    lines = []
    for machine, what in (("tpu-v4i", "128 MiB"), ("tpu-v4i-16m", "cut to 16 MiB")):
        figures = malloc_figures(machine)
        if figures is None:
            continue
        lines.append(
            f"| copies in and out of a TPU's fast memory ({what}), {figures.programs} real programs, simulated | "
            f"best search {figures.speedup:.3f} × the production compiler's placement (worst {figures.worst:.3f} ×), "
            f"mean gap to the bound {figures.gap:.2%} | our MSA {figures.msa:.3f} × |"
        )
    played_by_agent = learned(found, "tpu-v4i")
    if played_by_agent:
        alone = mean_speedup((line.production, line.agent) for line in played_by_agent)
        moves = mean_speedup((line.production, line.rival[1]) for line in played_by_agent)
        evolved = mean_speedup((line.production, line.evolution[1]) for line in played_by_agent)
        lines.append(
            f"| the same (128 MiB) by MuZero as published (`profile=paper`), {len(played_by_agent)} programs, at most "
            f"{max(line.games for line in played_by_agent)} games | {alone:.3f} × alone; never worse with `paper-prod` | equal games: "
            f"best search over moves {moves:.3f} ×, evolution of MSA's order or of moves {evolved:.3f} × |"
        )
    if (HERE / "results" / "board.json").exists():
        lines.append(board_line(found))
    return lines


def board_line(found: Any) -> str:
    """The player on the board, by weights that saw none of the programs."""
    board = Board(recorded("board")["rows"])
    rivals = [board.over(board.timer(way), board.timer("muzero"), board.cases) for way in RIVALS]
    beside = ", ".join(
        f"`{way}` {percent(logs)} ({standing(logs)})" for way, logs in zip(RIVALS, rivals, strict=True)
    )
    refined = board.over(board.timer("msa-refined"), board.timer("muzero"), board.cases)
    return (
        f"| the same, 16 to 128 MiB, {len(board.cases)} cells with a gap, by the learned player (mallocMuZero), {FEW} evaluations, programs "
        f"that its weights never saw | {percent(refined)} less time than `msa-refined` | less time than others at as many evaluations (wins / ties / losses): "
        f"{beside} |"
    )


class GraphFigures(NamedTuple):
    """The best classical solver over all training graphs."""

    graphs: int
    saved: float
    gap: float
    beside: float | None
    """What another method saves, on so many graphs."""
    known: int


def graph_figures(kind: str, beside: str) -> GraphFigures | None:
    """None: nothing is recorded of this kind."""
    found = played(recorded("graph")["rows"])
    best = {
        case: bar for case in workload_cases(found, kind) if (bar := best_classical(found, case)) is not None
    }
    if not best:
        return None
    ratios = [group.median / group.rows[0]["baseline"] for _, group in best.values()]
    gaps = [group.median / bound_of(found, case) - 1 for case, (_, group) in best.items()]
    known = [case for case in best if (case, beside) in found]
    share = saved_over_base(found, beside, known)
    return GraphFigures(len(best), 1 - _mean(ratios), sum(gaps) / len(gaps), share, len(known))


def graph_lines() -> list[str]:
    """Plans for several devices: the best classical solver beside the base plan and the bound."""
    if not (HERE / "results" / "graph.json").exists():
        return []
    lines = []
    for kind, what, beside in (
        ("joint", "fusion, placement and order", "classical"),
        ("placement", "placement alone", "expert"),
    ):
        figures = graph_figures(kind, beside)
        if figures is None:
            continue
        over = "–"
        if figures.beside is not None:
            over = f"`{beside}` saves {figures.beside:.1%} ({figures.known} graphs)"
        lines.append(
            f"| {what} on several devices, {figures.graphs} training graphs, simulated | best classical solver "
            f"saves {figures.saved:.1%} over the base plan, mean gap to the bound {figures.gap:.1%} | {over} |"
        )
    return lines


class GpuFigures(NamedTuple):
    """Half of the memory that a model needs, measured."""

    models: int
    over_peer: list[float]
    """Ours over the best peer, by model."""
    over_resident: list[float]
    """Ours over everything resident, where copies don't bind."""
    near: str
    """How far simulated and measured times differ."""


def gpu_figures() -> GpuFigures:
    """From the recorded rows."""
    from benchmarks.suites.gpu_summary import cells, targets

    found = recorded("gpu")["rows"]
    half = [cell for cell in cells(found) if cell.percent == 50 and cell.ours is not None]
    peers = [cell.ours["value"] / cell.best_peer["value"] for cell in half if cell.ours and cell.best_peer]
    slower = [
        cell.ours["value"] / cell.resident
        for cell in half
        if cell.ours and cell.resident and not cell.copies_bind
    ]
    return GpuFigures(len(half), peers, slower, targets(found)[1].result)


def fit_line() -> str:
    """Other people's models in half of what each needs, where ours and a peer are within it."""
    from benchmarks.fit_table import NOISE, cells

    found = recorded("fit")["rows"]
    half = [cell for mode in ("inference", "training") for cell in cells(found, mode) if cell.percent == 50]
    saved = [cell.saved for cell in half if cell.saved is not None]
    refused = sum(cell.ours is not None and not cell.fits and cell.best is not None for cell in half)
    return (
        f"half the GPU memory of {len(saved) + refused} others' models, **measured** | "
        f"{1 - _mean([1 - each for each in saved]):.1%} less time, faster on {sum(each > NOISE for each in saved)}, "
        f"failed {refused} | than the best peer | –"
    )


def gpu_lines() -> list[str]:
    """Measured, not simulated: half of the memory that a model needs."""
    if not (HERE / "results" / "gpu.json").exists():
        return []
    figures = gpu_figures()
    line = (
        f"| half of the HBM that a model needs, {figures.models} models on one H200, **measured** | "
        f"{1 - _mean(figures.over_peer):.1%} less time than the best peer (worst {1 - max(figures.over_peer):+.1%}); "
        f"where copies don't bind, {_mean(figures.over_resident):.3f} × the time with everything resident | "
        f"simulated and measured differ by {figures.near} on average |"
    )
    return [line]


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def allocation_lines(document: dict[str, Any]) -> list[str]:
    lines = []
    fit, least = rows(document, "fit/", "ours"), rows(document, "least/", "ours")
    if fit:
        solved = sum(row["status"] in ("optimal", "feasible") for row in fit)
        total, longest = sum(row["seconds"] for row in fit), max(row["seconds"] for row in fit)
        lines.append(
            f"| MiniMalloc's {len(fit)} hard instances at 1 MiB | {solved} of {len(fit)} in {total:.2f} s, longest {longest:.3f} s "
            f"| {_peers(document, 'fit/')} |"
        )
    if least:
        optimal = sum(row["status"] == "optimal" for row in least)
        gap = sum(row["gap"] for row in least) / len(least)
        lines.append(
            f"| the same, least capacity, 10 s each | {optimal} proven optimal, mean gap {gap:.2%} | {_gaps(document, 'least/')} |"
        )
    for case, what in (
        ("large/somas_pangu", "training graph, 18,692 buffers"),
        ("large/iopddl_Y", "62,185 buffers"),
        ("large/generated-1000000", "a million generated buffers"),
    ):
        for row in rows(document, case, "ours"):
            others = _gaps(document, row["case"])
            lines.append(f"| {what} | gap {row['gap']:.2%} in {row['seconds']:.2f} s | {others or '–'} |")
    for row in rows(document, "perfect/"):
        count = row["extra"]["problems"]
        lines.append(
            f"| {count} generated perfect packings ({row['case'].split('/')[1]}), 1 s each | {row['value']:.1%} solved, "
            f"median {row['extra']['median_ms']:.1f} ms | – |"
        )
    return lines


def _peers(document: dict[str, Any], case: str) -> str:
    texts = []
    for solver in ("cp-sat",):
        found = rows(document, case, solver)
        if found:
            solved = sum(row["status"] in ("optimal", "feasible") for row in found)
            texts.append(f"CP-SAT: {solved} of {len(found)} in 10 s each")
    return "; ".join(texts) or "–"


def _gaps(document: dict[str, Any], case: str) -> str:
    return ", ".join(f"{name} {gap:.2%}" for name, gap in _mean_gaps(document, case).items())


def _mean_gaps(document: dict[str, Any], case: str) -> dict[str, float]:
    """Other planners -> the mean of their gaps."""
    names = {
        "first-fit": "first fit",
        "xla-best-fit": "XLA best fit",
        "tvm-hill-climb": "TVM hill climb",
        "vela-hill-climb": "Vela hill climb",
        "omnimalloc": "OmniMalloc",
        "cp-sat": "CP-SAT",
    }
    means = {}
    for solver, name in names.items():
        found = [row["gap"] for row in rows(document, case, solver) if row["gap"] is not None]
        if found:
            means[name] = sum(found) / len(found)
    return means


def simulate_lines(document: dict[str, Any]) -> list[str]:
    lines = []
    for row in document["rows"]:
        goal = row["extra"].get("target", "–")
        lines.append(
            f"| simulator: {row['case']} | {row['value']:.4g} {row['unit']} ({row['status']}) | target {goal} |"
        )
    return lines


def main(check: bool) -> int:
    head, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    pages = {
        README: f"{head}{BEGIN}\n{short_table()}\n{END}{tail}",
        ALL: f"# Recorded results\n\n{BEGIN}\n{table()}\n{END}\n",
    }
    if check:
        return int(any(page.read_text(encoding="utf-8") != text for page, text in pages.items()))
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
