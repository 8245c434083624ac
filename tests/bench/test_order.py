"""Rows of the least-peak order."""

from __future__ import annotations

import pytest

from loadmaster.bench.order import cells, run_order


def test_every_graph_has_a_cell_and_a_row_tells_all() -> None:
    names = [cell.case for cell in cells()]
    assert len(names) == len(set(names)) == 23
    row = run_order("order/light_shufflenet", "auto", seconds=10)
    assert (row.value, row.bound, row.baseline, row.status) == (2_885_120, 2_885_120, 3_110_912, "optimal")  # fmt: skip
    worse = run_order("order/light_shufflenet", "anneal", budget=20)
    assert worse.evaluations == 20 and worse.gap == pytest.approx(worse.value / worse.bound - 1)
