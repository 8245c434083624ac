"""Make the tables of benchmarks/results/fit.md from what `fit_peers.py` recorded: never typed, never out of date.

`python benchmarks/fit_table.py [JSON] [PAGE]` rewrites the lines between the two markers, or makes the page; `--check`
fails if they would change.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "fit.json"
PAGE = HERE / "results" / "fit.md"
BEGIN, END = "<!-- results: made by benchmarks/fit_table.py -->", "<!-- end of results -->"
OURS, EAGER, COMPILED = "loadmaster", "eager", "inductor"
UPPER = (EAGER, COMPILED)
NOISE = 0.01
EMPTY_PAGE = f"# `fit` against what PyTorch users have: results\n\n{BEGIN}\n{END}\n"
INTRODUCTION = (
    "All times are **measured**, in milliseconds: medians of 5 passes after 2 warm-ups, or of 3 where a pass takes more than 1.5 s. The budget "
    "is a share of the bytes of tensors at the peak of eager PyTorch with everything resident (*resident*). PyTorch's allocator is "
    "limited to it; of ours, *measured GiB* is the larger of what the allocator held and of what the process held beyond its context and the libraries. "
    "*Saved* is the share of the best peer's time that ours does not need: negative where ours loses. *Predicted* is what `fit` said beforehand. "
    "`–`: not run, or it does not fit."
)
WAYS = {
    "prefetch-spread": "a hook of 20 lines: layers that do not fit are spread over the model and come one ahead on a stream",
    "prefetch-first": "the same; as many first layers stay as fit",
    "split-batch": "weights resident, the batch in 2, 4, 8 or 16 parts: the fewest that fit",
    "accelerate-map": "`infer_auto_device_map` with the `max_memory` at which the measured peak is just below the budget",
    "accelerate-offload": "`accelerate.cpu_offload`",
    "group-block": "diffusers' `apply_group_offloading`, by block, `use_stream=True`",
    "group-leaf": "the same, by leaf",
    "checkpoint": "`torch.utils.checkpoint` on 34, 67 or 100 % of the layers, then with the optimizer's state on the host: the first that fits",
    "grad-accumulation": "2, 4 or 8 micro-batches, then with checkpoints, then with the optimizer's state on the host: the first that fits",
    "host-optimizer": "AdamW on the device, its state streamed from pinned memory",
    "save_on_cpu": "`torch.autograd.graph.save_on_cpu(pin_memory=True)`, then with the optimizer's state on the host",
    "activation-budget": "`torch.compile` with AOTAutograd's `activation_memory_budget`: the share for which there seems to be room, then 0",
}
Rows = list[dict[str, Any]]


class Cell:
    """A model under a budget."""

    def __init__(self, model: str, percent: int, rows: Rows, uppers: dict[str, dict[str, Any]]) -> None:
        self.model, self.percent, self.uppers = model, percent, uppers
        self.rows = {row["solver"]: row for row in rows}
        self.ours = self.rows.get(OURS)
        self.peers = [row for name, row in self.rows.items() if name != OURS and row["status"] == "ok"]
        self.best = min(self.peers, key=lambda row: row["value"], default=None)

    @property
    def fits(self) -> bool:
        return self.ours is not None and self.ours["status"] == "ok"

    @property
    def saved(self) -> float | None:
        """Of the best peer's time."""
        return 1 - self.ours["value"] / self.best["value"] if self.fits and self.ours and self.best else None

    @property
    def budget(self) -> int | None:
        return next(
            (row["extra"]["budget"] for row in self.rows.values() if row["extra"].get("budget")), None
        )


def ms(row: dict[str, Any] | None) -> str:
    return f"{row['value'] / 1e9:.1f}" if row is not None and row["value"] > 0 else "–"


def gib(count: float | None) -> str:
    return "–" if not count else f"{count / 2**30:.2f}"


def signed(number: float | None) -> str:
    return "–" if number is None else f"{number:+.1%}"


def cells(rows: Rows, mode: str) -> list[Cell]:
    mine = [row for row in rows if row["extra"]["mode"] == mode]
    found = []
    for case in dict.fromkeys(row["case"] for row in mine if row["solver"] not in UPPER):
        model, percent = case.split("@")
        uppers = {
            row["solver"]: row
            for row in mine
            if row["extra"]["model"] == model and row["solver"] in UPPER and row["status"] == "ok"
        }
        found.append(Cell(model, int(percent), [row for row in mine if row["case"] == case], uppers))
    return found


def judged(cell: Cell) -> str:
    """Our time; where it took more memory than the budget, by how much: that is no win."""
    if cell.ours is None:
        return "–"
    if cell.ours["status"] == "over budget" and cell.budget:
        return f"{ms(cell.ours)}, {cell.ours['extra']['measured'] / cell.budget - 1:.1%} over budget"
    return f"**{ms(cell.ours)}**" if cell.fits else str(cell.ours["status"])


def main_table(found: Sequence[Cell]) -> str:
    lines = []
    for cell in found:
        ours, best = cell.ours, cell.best
        extra = ours["extra"] if ours else {}
        lines.append(
            [
                f"`{cell.model}`",
                gib(cell.budget),
                gib(extra.get("measured")),
                ms(cell.uppers.get(EAGER)),
                ms(cell.uppers.get(COMPILED)),
                judged(cell),
                "–" if best is None else f"{ms(best)} (`{best['solver']}`)",
                signed(cell.saved),
                "–" if extra.get("predicted") is None else f"{extra['predicted'] * 1e3:.1f}",
                signed(extra.get("prediction_error")),
                "–" if extra.get("fit_seconds") is None else f"{extra['fit_seconds']:.1f}",
                "–" if extra.get("difference") is None else f"{extra['difference']:.1g}",
            ]
        )
    head = [
        "model",
        "budget, GiB",
        "measured GiB",
        "resident",
        "resident, compiled",
        "ours",
        "best peer",
        "saved",
    ]
    return table([*head, "predicted", "predicted − measured", "fit, s", "differs by"], lines)


def every_table(found: Sequence[Cell]) -> str:
    """All rows; what does not fit with the GiB that it needs."""
    names = [name for name in (OURS, *WAYS) if any(name in cell.rows for cell in found)]

    def shown(row: dict[str, Any] | None) -> str:
        if row is None:
            return ""
        if row["status"] in ("does not fit", "over budget"):
            return f"needs {gib(row['extra'].get('needs'))} GiB"
        return ms(row) if row["status"] == "ok" else row["status"]

    lines = [[f"`{cell.model}`", *(shown(cell.rows.get(name)) for name in names)] for cell in found]
    return table(["model", *(f"`{name}`" for name in names)], lines)


def summary(found: Sequence[Cell]) -> str:
    """By mode and budget: how often ours wins, by how much, and how often it alone fits."""
    lines = []
    for mode, percent, group in found_groups(found):
        saved = [cell.saved for cell in group if cell.saved is not None]
        ratios = [1 / (1 - each) for each in saved]
        errors = [
            abs(cell.ours["extra"]["prediction_error"])
            for cell in group
            if cell.fits and cell.ours and cell.ours["extra"].get("prediction_error") is not None
        ]
        lines.append(
            [
                f"{mode}, {percent} %",
                str(len(group)),
                str(sum(each > NOISE for each in saved)),
                str(sum(-NOISE <= each <= NOISE for each in saved)),
                str(sum(each < -NOISE for each in saved)),
                str(sum(cell.fits and cell.best is None for cell in group)),
                str(sum(not cell.fits and cell.ours is not None and cell.best is not None for cell in group)),
                str(sum(cell.ours is None for cell in group)),
                f"{statistics.geometric_mean(ratios):.2f}" if ratios else "–",
                f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–",
                f"{statistics.fmean(errors):.1%}, at most {max(errors):.1%}" if errors else "–",
            ]
        )
    head = [
        "",
        "models",
        "faster",
        f"within {NOISE:.0%}",
        "slower",
        "only ours fits",
        "only peers fit",
        "not run",
    ]
    return table([*head, "best peer / ours, mean", "range", "prediction error"], lines)


def found_groups(found: Sequence[Cell]) -> list[tuple[str, int, list[Cell]]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in found:
        mode = next(iter(cell.rows.values()))["extra"]["mode"]
        groups.setdefault((mode, cell.percent), []).append(cell)
    return [(mode, percent, group) for (mode, percent), group in groups.items()]


def losses(found: Sequence[Cell]) -> str:
    lines = [
        [
            f"`{cell.model}`",
            f"{cell.percent} %",
            ms(cell.ours),
            f"{ms(cell.best)} (`{cell.best['solver']}`)",
            signed(cell.saved),
        ]
        for cell in found
        if cell.best is not None and (cell.saved is None or cell.saved < -NOISE) and cell.ours is not None
    ]
    return table(["model", "budget", "ours", "best peer", "saved"], lines)


def troubles(rows: Rows) -> str:
    lines = [
        [
            f"`{row['case']}`",
            f"`{row['solver']}`",
            f"{row['status']}: {row['extra'].get('reason') or ''}"[:160].replace("|", "/").replace("\n", " "),
        ]
        for row in rows
        if row["status"] in ("failed", "timeout", "skipped")
    ]
    return table(["case", "by", "what happened"], lines)


def page(document: dict[str, Any]) -> str:
    rows = document["rows"]
    found = [*cells(rows, "inference"), *cells(rows, "training")]
    words = [f"{name} {version}" for name, version in document.get("versions", {}).items()]
    lines = [
        *(["**A rehearsal with tiny models: its times mean nothing.**", ""] if document.get("tiny") else []),
        INTRODUCTION,
        "",
        f"{document['host'].get('gpu') or 'CPU'}; {', '.join(words)}.",
        "",
        summary(found),
        "",
    ]
    for mode, percent, group in sorted(found_groups(found), key=lambda each: (each[0], -each[1])):
        lines += [f"### {mode.capitalize()}, {percent} % of the memory", "", main_table(group), ""]
        lines += ["Everything that ran:", "", every_table(group), ""]
    if lost := losses(found):
        lines += ["### Where ours loses", "", lost, ""]
    names = list(dict.fromkeys(row["solver"] for row in rows if row["solver"] in WAYS))
    lines += [
        "### Peers",
        "",
        table(["peer", "what it does"], [[f"`{name}`", WAYS[name]] for name in names]),
        "",
    ]
    lines += [document.get("not_compared", ""), ""]
    notes = {row["extra"]["model"]: row["extra"]["note"] for row in rows}
    lines += ["### Models", "", table(["model", "what it is"], [[f"`{n}`", w] for n, w in notes.items()]), ""]
    if trouble := troubles(rows):
        lines += ["### What did not run", "", trouble, ""]
    return "\n".join(lines).rstrip()


def main() -> int:
    files = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    results, target = [*files, *(RESULTS, PAGE)[len(files) :]]
    document = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {"rows": []}
    if not target.exists():
        target.write_text(EMPTY_PAGE, encoding="utf-8")
    return rewrite(target, BEGIN, END, page(document) if document["rows"] else "Not recorded yet.")


if __name__ == "__main__":
    sys.exit(main())
