"""Tables and pictures of the published figures, from rows as the benchmarks record them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mapping_table import table
from benchmarks.suites.malloc_summary import Played
from loadmaster.export.figures.curves import COLOURS, draw_learning_curves, make_figure, save, use_style
from loadmaster.learn.policies import read_policy

Row = dict[str, Any]
"""As `benchmarks.suites.Row.as_dict` has it."""
Rows = Sequence[Row]
WORKLOADS = ("resnet50/nnp-i", "resnet101/nnp-i", "bert/nnp-i")
EVALUATIONS = 1_000
"""Of the mapping suite."""
EGRL = ("paper", "ea", "pg", "greedy-dp", "random", "egrl", "egrl-untrained", "scores-annealing", "density")
TPU = ("production", "msa", "msa-order", "paper", "paper-prod", "untrained", "muzero")
PLACEMENT = ("metis", "m-etf", "hdp", "go-zero-shot", "anneal-seeded", "large-neighbourhood", "go")
JOINT = ("critical-path", "classical", "anneal-seeded", "go-likeliest", "go-zero-shot")
BEFORE = ("egrl", "ea", "pg", "ageing-evolution", "annealing", "greedy-dp", "random")
CHECKPOINTS = ("gnn 25%", "gnn 50%", "gnn 100%", "learner 100%")
NOT_TRAINED = ("untrained", "random")
HELD_OUT = ("go", "go, untrained", "large-neighbourhood", "annealing-chains", "anneal-seeded", "paper", "hdp")


def of(rows: Rows, case: str, solver: str) -> list[Row]:
    """A solver's rows of a case, those that found a plan."""
    return [row for row in rows if row["case"] == case and row["solver"] == solver and row["value"] > 0]


def value_at(row: Row, evaluations: int) -> float | None:
    """The best after so many evaluations."""
    curve = row["extra"].get("curve")
    if not curve:
        return float(row["value"])
    return next((float(point[1]) for point in reversed(curve) if point[0] <= evaluations), None)


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def geometric(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def show(value: float | None, form: str = "{:.3f} ×") -> str:
    """'–': no such row."""
    return "–" if value is None else form.format(value)


# EGRL


def egrl_speedups(rows: Rows) -> str:
    """Speed-up over the compiler stand-in after the suite's evaluations, mean over seeds; who has no map that fits
    counts as 0."""
    lines = []
    for case in WORKLOADS:
        here = [row for row in rows if row["case"] == case]
        if not here:
            continue
        room = here[0]["baseline"] / max(row["bound"] for row in here)
        cells = []
        for solver in EGRL:
            own = [row for row in here if row["solver"] == solver]
            found = [(value_at(row, EVALUATIONS) if row["value"] > 0 else None) for row in own]
            speed = mean(
                row["baseline"] / value if value else 0.0 for row, value in zip(own, found, strict=True)
            )
            cells.append(f"{show(speed)} ({len(own)})" if own else "–")
        lines.append([f"`{case}`", *cells, f"{room:.3f} ×"])
    return table(["speed-up (seeds)", *(f"`{name}`" for name in EGRL), "bound"], lines)


def egrl_before(rows: Rows) -> str:
    """The same after 4,000 evaluations at commit 616da11, whose `egrl` named memories, with two additions of ours."""
    lines = [
        [
            f"`{case}`",
            *(
                show(mean(row["baseline"] / row["value"] for row in of(rows, f"before/{case}", name)))
                for name in BEFORE
            ),
        ]
        for case in WORKLOADS
        if of(rows, f"before/{case}", "egrl")
    ]
    return table(["616da11, 4,000 evaluations, 5 seeds", *(f"`{name}`" for name in BEFORE)], lines)


def draw_egrl(rows: Rows, path: Path) -> None:
    """Learning curves on ResNet-101, or on the workload that there is."""
    case = next(case for case in (WORKLOADS[1], *WORKLOADS) if of(rows, case, "egrl"))
    here = [row for row in rows if row["case"] == case]
    end = min(EVALUATIONS, max(row["extra"]["budget"] for row in here if row["extra"].get("budget")))
    curves = {
        solver: [
            [(int(at), int(value)) for at, value in row["extra"]["curve"]] for row in of(here, case, solver)
        ]
        for solver in EGRL
        if solver != "density"
    }
    levels = {row["solver"]: int(row["value"]) for row in here if row["solver"] == "density"}
    figure = draw_learning_curves(
        {name: runs for name, runs in curves.items() if runs},
        int(here[0]["baseline"]),
        int(max(row["bound"] for row in here)),
        end,
        f"{case}: the best map after so many evaluations, simulated",
        levels,
    )
    save(figure, path)


def egrl_transfer(rows: Rows) -> str:
    """Speed-up over the compiler of the one map that a network makes of a workload that it has not seen (training:
    the same workload); commit 616da11, 4,000 evaluations of training, 5 seeds, after the rectifier."""
    models = ("resnet50", "resnet101", "bert")
    lines = []
    for tested in models:
        for trained in (*models, "none"):
            names = NOT_TRAINED if trained == "none" else CHECKPOINTS
            cells = [
                f"{name}: {show(mean(row['baseline'] / row['value'] for row in found))}"
                for name in names
                if (found := of(rows, f"transfer/{trained}/{tested}", name))
            ]
            if cells:
                lines.append([f"`{tested}`", f"`{trained}`", "; ".join(cells)])
    return table(["tested on", "trained on", "speed-up of one map"], lines)


def egrl_zero_shot(rows: Rows) -> str:
    """Today's EGRL: its first map. Every ResNet and BERT, and nnp-i, were held out of its training."""
    lines = []
    for case in WORKLOADS:
        here = [row for row in rows if row["case"] == case]
        cells = []
        for solver in ("egrl", "egrl-untrained", "density"):
            first = [(row["baseline"], value_at(row, 1)) for row in of(here, case, solver)]
            cells.append(show(mean(base / value for base, value in first if value)))
        if any(cell != "–" for cell in cells):
            lines.append([f"`{case}`", *cells, show(here[0]["baseline"] / max(row["bound"] for row in here))])
    return table(["first map", "`egrl`", "`egrl-untrained`", "`density`", "bound"], lines)


# mallocMuZero


def best_value(rows: Rows, case: str, solver: str) -> float | None:
    """Mean over seeds, after 150 evaluations where a curve tells."""
    own = of(rows, case, solver)
    if solver == "paper-prod":  # its curve is the agent's
        return mean(row["value"] for row in own)
    return mean(value for row in own if (value := value_at(row, 150)) is not None)


def production_of(rows: Rows, case: str) -> float | None:
    """The compiler's placement, as it issued it where our checker allows less."""
    own = of(rows, case, "production")
    return Played(tuple(own)).reference if own else None


def tpu_programs(rows: Rows, machine: str = "tpu-v4i", only: str = "") -> str:
    """Speed-up over the production compiler's placement, at most 200 games or 150 evaluations each."""
    lines: list[list[str]] = []
    over: dict[str, list[float]] = {name: [] for name in TPU}
    cases = sorted(
        {row["case"] for row in rows if row["case"].endswith(f"/{machine}") and row["case"].count("/") == 1}
    )
    for case in cases:
        production = production_of(rows, case)
        if not case.startswith(only) or not production:
            continue
        bound = max(row["bound"] for row in rows if row["case"] == case and row["bound"])
        cells = []
        for name in TPU:
            value = production if name == "production" else best_value(rows, case, name)
            if value:
                over[name].append(production / value)
            cells.append(show(production / value if value else None))
        lines.append([f"`{case}`", *cells, show(production / bound)])
    if len(lines) > 1:
        means = [f"{geometric(over[name]):.3f} × ({len(over[name])})" if over[name] else "–" for name in TPU]
        lines.append(["geometric mean (programs)", *means, ""])
        losses = [str(sum(value < 0.999 for value in over[name])) if over[name] else "–" for name in TPU]
        lines.append(["slower than production", *losses, ""])
    return table([f"over production, `{machine}`", *(f"`{name}`" for name in TPU), "bound"], lines)


def tpu_both(rows: Rows) -> str:
    return "\n\n".join(
        text for machine in ("tpu-v4i", "tpu-v4i-16m") if (text := tpu_programs(rows, machine))
    )


def tpu_alphatensor(rows: Rows) -> str:
    parts = (tpu_programs(rows, machine, "alphatensor-net/") for machine in ("tpu-v4i", "tpu-v4i-16m"))
    return "\n\n".join(text for text in parts if text)


def draw_tpu(rows: Rows, path: Path) -> None:
    """Bars: each program's speed-up over production, sorted by the published agent's."""
    shown = ("msa-order", "paper", "untrained", "muzero")
    found: dict[str, list[float | None]] = {}
    for case in sorted(
        {row["case"] for row in rows if row["case"].endswith("/tpu-v4i") and row["case"].count("/") == 1}
    ):
        production = production_of(rows, case)
        if production:
            values = [best_value(rows, case, name) for name in shown]
            found[case.partition("/")[0]] = [production / value if value else None for value in values]
    draw_bars(
        dict(sorted(found.items(), key=lambda item: item[1][1] or 0.0)),
        shown,
        "speed-up over the production placement",
        "TPU programs, 128 MiB of fast memory, simulated",
        path,
    )


def draw_bars(
    groups: dict[str, list[float | None]],
    names: Sequence[str],
    what: str,
    title: str,
    path: Path,
    level: float = 1.0,
) -> None:
    """Groups of bars that grow from `level`, losses to the other side."""
    with use_style():
        figure = make_figure(4.0)
        axes = figure.add_subplot()
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            known = [(at, values[i]) for at, values in enumerate(groups.values()) if values[i] is not None]
            if not known:
                continue
            axes.bar(
                [at + (i - (len(names) - 1) / 2) * width for at, _ in known],
                [value - level for _, value in known if value is not None],
                width,
                bottom=level,
                color=COLOURS[i % len(COLOURS)],
                label=name,
            )
        axes.axhline(level, color="#555555", linewidth=0.9)
        axes.set_xticks(range(len(groups)), list(groups), rotation=40, ha="right")
        axes.set(title=title, ylabel=what)
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", frameon=False, ncols=len(names))
    save(figure, path)


def malloc_ablation(rows: Rows) -> str:
    """Mean gap to the bound at equal games, small networks from scratch."""
    here = [row for row in rows if row["case"].startswith("ablation/")]
    cases = sorted({row["case"] for row in here})
    solvers = sorted({row["solver"] for row in here})
    lines = []
    for solver in solvers:
        gaps = [mean(row["gap"] for row in of(here, case, solver)) for case in cases]
        lines.append([f"`{solver}`", *(show(gap, "{:.2%}") for gap in gaps)])
    lines.sort(key=lambda line: line[1:])
    return table(["gap", *(f"`{case.removeprefix('ablation/')}`" for case in cases)], lines)


# GO


def saved(rows: Rows, part: str, solvers: Sequence[str], what: str) -> str:
    """Time saved over the base plan, mean over seeds; the base is the human expert's placement, where there is one."""
    lines: list[list[str]] = []
    all_saved: dict[str, list[float]] = {name: [] for name in solvers}
    for case in sorted({row["case"] for row in rows if row["case"].startswith(f"{part}/")}):
        here = [row for row in rows if row["case"] == case]
        base = here[0]["baseline"]
        cells = []
        for name in solvers:
            values = [1 - row["value"] / base for row in of(here, case, name)]
            all_saved[name] += [statistics.fmean(values)] if values else []
            cells.append(show(mean(values), "{:.1%}"))
        bound = max(row["bound"] for row in here if row["bound"])
        lines.append([f"`{case.removeprefix(f'{part}/')}`", *cells, f"{1 - bound / base:.1%}"])
    if len(lines) > 1:
        means = [f"{show(mean(all_saved[name]), '{:.1%}')} ({len(all_saved[name])})" for name in solvers]
        lines.append(["mean (graphs)", *means, ""])
    return table([what, *(f"`{name}`" for name in solvers), "at most (bound)"], lines)


def go_placement(rows: Rows) -> str:
    return saved(rows, "placement", PLACEMENT, "saved over the expert's placement")


def draw_placement(rows: Rows, path: Path) -> None:
    """Bars of time saved over the human expert."""
    names = ("hdp", "go-zero-shot", "anneal-seeded", "large-neighbourhood", "go")
    groups: dict[str, list[float | None]] = {}
    for case in sorted({row["case"] for row in rows if row["case"].startswith("placement/")}):
        here = [row for row in rows if row["case"] == case]
        groups[case.removeprefix("placement/")] = [
            mean(100 * (1 - row["value"] / row["baseline"]) for row in of(here, case, name)) for name in names
        ]
    title = "Placement alone, simulated; below 0: slower than the expert"
    draw_bars(groups, names, "% of time saved over the expert", title, path, level=0.0)


def go_convergence(rows: Rows) -> str:
    """Evaluations until the best that HDP found in all of its own."""
    names = ("anneal-seeded", "large-neighbourhood", "go")
    lines = []
    for case in sorted(
        {row["case"] for row in rows if row["solver"] == "hdp" and row["case"].startswith("placement/")}
    ):
        peer = of(rows, case, "hdp")[0]
        own = peer["extra"]["curve"][-1][0]
        cells = []
        for name in names:
            reached = [
                next((point[0] for point in row["extra"]["curve"] if point[1] <= peer["value"]), None)
                for row in of(rows, case, name)
            ]
            known = [at for at in reached if at is not None]
            text = "never"
            if known:
                needed = statistics.fmean(known)
                times = f"{own / needed:.0f}" if own >= 10 * needed else f"{own / needed:.1f}"
                text = f"{needed:.0f} (÷ {times})"
            cells.append(text if reached else "–")
        lines.append([f"`{case.removeprefix('placement/')}`", f"{own}", *cells])
    return table(
        [
            "evaluations to HDP's best (÷: of HDP's own, how many times fewer)",
            "`hdp` itself",
            *(f"`{name}`" for name in names),
        ],
        lines,
    )


def go_joint(rows: Rows) -> str:
    return saved(
        rows, "joint", JOINT, "saved over the default (expert, fixed fusion, first come first served)"
    )


def draw_joint(rows: Rows, path: Path) -> None:
    """Bars of time saved over the default."""
    names = ("critical-path", "classical", "anneal-seeded", "go-zero-shot")
    groups: dict[str, list[float | None]] = {}
    for case in sorted({row["case"] for row in rows if row["case"].startswith("joint/")}):
        here = [row for row in rows if row["case"] == case]
        groups[case.removeprefix("joint/")] = [
            mean(100 * (1 - row["value"] / row["baseline"]) for row in of(here, case, name)) for name in names
        ]
    title = "Fusion, placement and schedule together, simulated; below 0: slower than the default"
    draw_bars(groups, names, "% of time saved over the default", title, path, level=0.0)


def go_tuned(rows: Rows) -> str:
    """An earlier GO, which named devices: its policy as it was trained, tuned on the graph, and from scratch."""
    heads = (
        "zero-shot, 17 evaluations",
        "tuned, 1,667",
        "from scratch, 3,300",
        "`classical`",
        "`anneal-seeded`, 2,000",
    )
    lines = []
    for case in sorted({row["case"] for row in rows if row["case"].startswith("tuned/")}):
        joint = f"joint/{case.removeprefix('tuned/')}"
        own = (
            (case, "go-zero-shot"),
            (case, "go"),
            (case, "go-one"),
            (joint, "classical"),
            (joint, "anneal-seeded"),
        )
        cells = [show(mean(row["value"] / 1e9 for row in of(rows, *each)), "{:.1f}") for each in own]
        lines.append([f"`{case.removeprefix('tuned/')}`", *cells])
    return table(["simulated ms", *heads], lines)


def go_held_out(rows: Rows) -> str:
    """Today's GO beside its controls."""
    lines = []
    for case in sorted({row["case"] for row in rows if "@" in row["case"]}):
        shares = [mean(row["value"] / row["baseline"] for row in of(rows, case, name)) for name in HELD_OUT]
        lines.append([f"`{case}`", *(show(share, "{:.3f}") for share in shares)])
    head = "held-out graph, 512 evaluations: time over the best of eight hints"
    return table([head, *(f"`{name}`" for name in HELD_OUT)], lines)


def go_ablation(rows: Rows) -> str:
    """Milliseconds after 700 evaluations, one seed."""
    here = [row for row in rows if row["case"].startswith("ablation/")]
    cases = sorted({row["case"] for row in here})
    lines = [
        [
            f"`{solver}`",
            *(show(mean(row["value"] / 1e9 for row in of(here, case, solver)), "{:.1f}") for case in cases),
        ]
        for solver in sorted({row["solver"] for row in here})
    ]
    return table(["ms", *(f"`{case.removeprefix('ablation/')}`" for case in cases)], lines)


# All three: how the shipped policies were trained

ROOT = Path(__file__).parents[1]
POLICIES = {
    "egrl": ROOT / "src" / "loadmaster" / "mapping" / "egrl" / "pretrained" / "scores.npz",
    "muzero": ROOT / "src" / "loadmaster" / "malloc_game" / "muzero" / "pretrained" / "board.npz",
}


def training() -> dict[str, list[tuple[int, float]]]:
    """Policy -> (generation, percent of the time of the heuristic that it begins with, on validation cases)."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, file in POLICIES.items():
        about = read_policy(file, name.partition(",")[0])[1]
        for part in about["views"] if "views" in about else [about["training"]]:
            label = f"{name}, {part['view']}" if "view" in part else name
            label = f"{label}, second stage" if label in found else label
            found[label] = [(at, 100 * math.expm1(value)) for at, value in part["curve"]]
    return found


def training_table(_: Rows) -> str:
    """Of the files that ship; the best generation is what was kept."""
    lines = []
    for name, curve in training().items():
        at, best = min(curve, key=lambda point: point[1])
        lines.append(
            [
                f"`{name}`",
                f"{curve[0][1]:+.2f} %",
                f"{best:+.2f} % ({at})",
                f"{curve[-1][1]:+.2f} % ({curve[-1][0]})",
            ]
        )
    return table(
        [
            "shipped policies: time over the heuristic start, validation cases",
            "first",
            "best (generation)",
            "last",
        ],
        lines,
    )


def draw_training(_: Rows, path: Path) -> None:
    """Validation against generations."""
    with use_style():
        figure = make_figure(3.6)
        axes = figure.add_subplot()
        for i, (name, curve) in enumerate(training().items()):
            axes.plot(
                [at for at, _ in curve],
                [value for _, value in curve],
                color=COLOURS[i],
                linewidth=1.6,
                label=name,
            )
        axes.axhline(0, color="#555555", linewidth=0.9, linestyle="--")
        axes.set(
            title="The shipped policies in training",
            xlabel="generations",
            ylabel="% of time over the heuristic start",
        )
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", frameon=False, ncols=3)
    save(figure, path)
