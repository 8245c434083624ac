"""What the rows of the GPU suite say: simulated against measured, the best peer, the limit, targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.suites.gpu_plans import GRAPH, OURS, PEER_SOLVERS, VARIANTS
from benchmarks.suites.mapping_targets import Target

TRAINED = ("save_on_cpu",)
BOUND_BY_COPIES = 1.02
"""Copies bind everything where the limit is so many times the time of the ops alone."""
RAN = ("ok", "timing")
"""`timing`: it ran under the budget, and its results were not compared."""
RowDict = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One model under one budget."""

    model: str
    percent: int
    rows: dict[str, RowDict]
    """By solver or peer, only those that ran and fit."""
    resident: float | None = None
    """The least time that was measured with everything resident: the ordinary run, or a plan of 100 %."""

    def faster(self, *solvers: str) -> RowDict | None:
        """The fastest row of these solvers, op by op or as a CUDA graph."""
        mine = [row for name, row in self.rows.items() if name.removesuffix(GRAPH) in solvers]
        return min(mine, key=lambda row: row["value"], default=None)

    @property
    def ours(self) -> RowDict | None:
        """Our plan as it would be run."""
        return self.faster(*OURS)

    @property
    def best_peer(self) -> RowDict | None:
        """The fastest of what others do under the budget, as plans or with hooks; some compute again, as
        ours may."""
        hooks = [name for name, row in self.rows.items() if row["extra"].get("kind") == "peer"]
        return self.faster(*PEER_SOLVERS, *hooks)

    @property
    def limit(self) -> float:
        """max(time of the ops, bytes that must move / link); where ops may run again no bytes must."""
        known = self.ours or max(self.rows.values(), key=lambda row: row["bound"] or 0.0)
        return float(known["bound"] or 0.0)

    @property
    def copies_bind(self) -> bool:
        ours = self.ours
        return ours is not None and self.limit > BOUND_BY_COPIES * ours["extra"]["limit"]

    @property
    def ratio(self) -> float | None:
        """Time to copy half of what the model needs / time of the ops."""
        extra = {} if self.ours is None else self.ours["extra"]
        return extra["half"] / extra["limit"] if extra.get("half") and extra["limit"] else None

    @property
    def saved(self) -> float | None:
        """Share of the best peer's time."""
        ours, peer = self.ours, self.best_peer
        return None if ours is None or peer is None else 1 - _value(ours) / _value(peer)


def cells(rows: Iterable[RowDict]) -> list[Cell]:
    """The rows by model and budget, in their order; what failed is left out, and so are variants."""
    return [cell for cell in _every_cell(rows) if cell.model not in VARIANTS]


def variant_cells(rows: Iterable[RowDict]) -> list[Cell]:
    """The same of models with other batches, by how much copies weigh."""
    found = [cell for cell in _every_cell(rows) if cell.model in VARIANTS and cell.ours is not None]
    return sorted(found, key=lambda cell: -(cell.ratio or 0.0))


def _every_cell(rows: Iterable[RowDict]) -> list[Cell]:
    found: dict[tuple[str, int], dict[str, RowDict]] = {}
    for row in rows:
        model, _, percent = row["case"].rpartition("@")
        if percent.isdigit() and row["status"] in RAN and row["value"] > 0:
            found.setdefault((model, int(percent)), {})[row["solver"]] = row
    return [Cell(model, percent, group, _resident(model, found)) for (model, percent), group in found.items()]


def _resident(model: str, found: dict[tuple[str, int], dict[str, RowDict]]) -> float | None:
    groups = {percent: group for (name, percent), group in found.items() if name == model}
    ordinary = [
        row["baseline"]
        for group in groups.values()
        for row in group.values()
        if row["baseline"] and row["extra"].get("kind") != "loop"
    ]
    return min([*ordinary, *map(_value, groups.get(100, {}).values())], default=None)


def differences(rows: Iterable[RowDict]) -> list[float]:
    """simulated / measured - 1 of our plans, under every budget."""
    return [
        cell.ours["extra"]["difference"]
        for cell in cells(rows)
        if cell.ours is not None and cell.percent < 100
    ]


def gains(found: Iterable[Cell]) -> list[float]:
    """What was saved over the best peer where copies don't bind everything."""
    return [cell.saved for cell in found if cell.saved is not None and not cell.copies_bind]


def targets(rows: list[RowDict]) -> list[Target]:
    """The figures that are required."""
    found = [cell for cell in cells(rows) if cell.ours is not None]
    off = [abs(each) for each in differences(rows)]
    half = [cell for cell in found if cell.percent == 50]
    against = [cell for cell in half if cell.best_peer is not None]
    saved = gains(half)
    close = [cell for cell in half if _value(cell.ours) <= 1.05 * cell.limit]
    losses = [cell for cell in against if _value(cell.ours) > 1.01 * _value(cell.best_peer)]
    trained = [
        _value(cell.rows[name]) / _value(cell.ours) for cell in half for name in TRAINED if name in cell.rows
    ]
    return [
        Target(
            "simulated within 10 % of measured everywhere",
            f"at most {max(off, default=0):.1%} over {len(off)} cells",
            max(off) <= 0.10 if off else None,
        ),
        Target(
            "simulated within 5 % on average",
            f"{statistics.fmean(off) if off else 0:.1%}",
            statistics.fmean(off) <= 0.05 if off else None,
        ),
        Target(
            "50 %: never slower than the best peer (1 % for noise)",
            f"slower on {len(losses)} of {len(against)}",
            not losses if against else None,
        ),
        Target(
            "50 %: at least 10 % faster on average where copies don't bind",
            f"{statistics.fmean(saved) if saved else 0:.1%} over {len(saved)} models",
            statistics.fmean(saved) >= 0.10 if saved else None,
        ),
        Target(
            "50 %: within 5 % of the limit on half of the models",
            f"{len(close)} of {len(half)}",
            2 * len(close) >= len(half) if half else None,
        ),
        Target(
            "50 %, training: 1.5 times as fast as save_on_cpu",
            ", ".join(f"{each:.2f}" for each in trained) or "–",
            min(trained) >= 1.5 if trained else None,
        ),
    ]


def _value(row: RowDict | None) -> float:
    assert row is not None
    return float(row["value"])
