"""The GPU suite's figures: the best peer, the limit, what was asked, and the page made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import SUITES
from benchmarks.suites.gpu_plans import VARIANTS
from benchmarks.suites.gpu_summary import cells, differences, targets, variant_cells

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def row(
    case: str,
    solver: str,
    value: float,
    status: str = "ok",
    kind: str = "plan",
    bound: float = 90.0,
    simulated: float = 0.0,
) -> dict[str, Any]:
    extra = {
        "kind": kind,
        "limit": 90.0,
        "simulated": simulated or value,
        "capacity": 2**30,
        "peak": 2**29,
        "equal": True,
        "largest_difference": 0.0,
        "difference": (simulated or value) / value - 1,
        "half": 72.0,
        "again": 0,
    }
    return {
        "case": case,
        "solver": solver,
        "value": value,
        "status": status,
        "bound": bound,
        "baseline": 80.0,
        "machine": "m",
        "extra": extra,
    }


ROWS = [
    row("a@50", "auto", 94.0, simulated=90.0),
    row("a@50", "auto+graph", 93.0, simulated=90.0),
    row("a@50", "prefetch", 110.0),
    row("a@50", "prefetch+graph", 104.0),
    row("a@50", "msa", 20.0, status="wrong"),
    row("a@50", "layerwise-hooks", 105.0, kind="peer"),
    row("b@50", "auto", 100.0, bound=100.0),
    row("b@50", "prefetch", 99.5, bound=100.0),
    row("t@50", "auto", 100.0),
    row("t@50", "auto-copies+graph", 140.0, bound=130.0),
    row("t@50", "save_on_cpu", 170.0, kind="peer"),
    row("t@50", "checkpoint", 125.0, kind="peer"),
    row("a@100", "all-resident", 79.0),
    row("a@30", "auto", 200.0, simulated=230.0),
    row(f"{VARIANTS[0]}@50", "auto", 300.0, bound=295.0),
    row(f"{VARIANTS[0]}@50", "msa", 200.0),
]


def test_ours_and_the_best_peer_are_the_fastest_that_ran() -> None:
    found = {(cell.model, cell.percent): cell for cell in cells(ROWS)}
    half = found["a", 50]
    assert half.ours is not None and half.ours["solver"] == "auto+graph"
    assert half.best_peer is not None and half.best_peer["solver"] == "prefetch+graph"
    assert not half.copies_bind and found["b", 50].copies_bind
    assert half.ratio == 0.8 and half.saved == pytest.approx(1 - 93 / 104)
    assert found["a", 100].ours is None
    # A plan of 100 %, and the ordinary run.
    assert half.resident == 79.0 and found["b", 50].resident == 80.0


def test_what_computes_again_is_a_peer_and_no_bytes_have_to_move_then() -> None:
    trained = next(cell for cell in cells(ROWS) if cell.model == "t")
    assert trained.best_peer is not None and trained.best_peer["solver"] == "checkpoint"
    assert trained.limit == 90.0 and not trained.copies_bind  # not the 130 of copies alone
    assert trained.faster("auto-copies") is trained.rows["auto-copies+graph"]


def test_variants_are_apart() -> None:
    assert {cell.model for cell in cells(ROWS)} == {"a", "b", "t"}
    (other,) = variant_cells(ROWS)
    assert other.model == VARIANTS[0] and other.copies_bind and other.saved == -0.5


def test_targets_are_judged_by_the_rows() -> None:
    words = {target.goal: (target.result, target.word) for target in targets(ROWS)}
    assert [round(each, 3) for each in differences(ROWS)] == [-0.032, 0.0, 0.0, 0.15]
    assert words["simulated within 10 % of measured everywhere"] == (
        "at most 15.0% over 4 cells",
        "**missed**",
    )
    assert words["simulated within 5 % on average"][1] == "met"
    assert words["50 %: never slower than the best peer (1 % for noise)"] == ("slower on 0 of 3", "met")
    # b is bound by copies: the gain is that of a (10.6 %) and t (20 %).
    assert words["50 %: at least 10 % faster on average where copies don't bind"] == (
        "15.3% over 2 models",
        "met",
    )
    assert words["50 %: within 5 % of the limit on half of the models"] == ("2 of 3", "met")
    assert words["50 %, training: 1.5 times as fast as save_on_cpu"] == ("1.70", "met")
    assert {target.word for target in targets([])} == {"not measured"}


def test_the_page_names_what_ran_and_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("gpu_table", None)
    import gpu_table

    looped = row("a@50", "egrl+hardware", 9e10, kind="loop") | {"evaluations": 30}
    looped["extra"] |= {
        "search_seconds": 41.0,
        "first_ps": 9.9e10,
        "best_ps": None,
        "speedup": 1.01,
        "speedup_interval": [0.99, 1.03],
    }
    planned = [
        row("a@50", f"{name}+simulated", value, status="feasible", kind="simulated") | {"seconds": took}
        for name, value, took in (("auto", 9.1e10, 60.0), ("msa", 9.9e10, 0.1), ("muzero", -1.0, 60.0))
    ]
    for each in planned:
        each["extra"]["budget_seconds"] = 60.0
    text = gpu_table.page({"rows": [*ROWS, looped, *planned]})
    assert "| case | bound | `auto`, 60 s | `muzero`, 60 s | `msa` |" in text
    assert "| `a@50` | 0.0 | 91.0 | – | 99.0 |" in text and "`auto+simulated`" not in text
    assert "| `a` | 0.80 | 1.00 | 0.50 |" in text and "### A budget of 50 %" in text
    assert "| `a@50` | `msa` | wrong:" in text
    main, _, other = text.partition("### Other batches")
    assert VARIANTS[0] not in main and f"| `{VARIANTS[0]}` | 0.80 |" in other
    assert "| `t` | 50 % | 0.0 | 0 | 0.0 | 0.0 | 0.0 |" in other  # auto, copies, checkpoint, save_on_cpu
    assert "| `a@50` | `egrl` | 30 | 41 | 99.0 | – | 90.0 | 0.0 | 1.010 (0.990 to 1.030) |" in other


def test_the_suite_is_known() -> None:
    from benchmarks.suites.gpu import CASES

    assert SUITES["gpu"] == "benchmarks.suites.gpu" and len(CASES) >= 8


def test_models_of_the_suite_are_those_that_there_are() -> None:
    pytest.importorskip("torch")
    from benchmarks.suites.gpu import NAMES
    from benchmarks.suites.gpu_models import GPU_MODELS

    assert {*NAMES, *VARIANTS} == set(GPU_MODELS)
    for name in VARIANTS:
        base = GPU_MODELS[GPU_MODELS[name].of]
        assert name.startswith(f"{base.name}-") and GPU_MODELS[name].full != base.full


def test_four_stages_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measure, plan and execute a tiny model, and its peers; what is there is not done again."""
    pytest.importorskip("torch")
    from benchmarks.suites.gpu_stages import main
    from loadmaster.execute import speeds

    monkeypatch.setitem(speeds.EFFORT, "cpu", speeds.Effort(64, 64, 2**20, 2**20, 1))
    # On a busy computer the measured ones contradict each other, and are refused.
    monkeypatch.setattr(speeds, "_copy_seconds", lambda *given: 1e-6 + given[3] / 1e10)
    common = [
        "--folder",
        str(tmp_path),
        "--models",
        "vit",
        "--device",
        "cpu",
        "--size",
        "tiny",
        "--percents",
        "75",
        "3",
        "--solvers",
        "prefetch",
        "auto",
        "--evaluations",
        "20",
        "--repeats",
        "1",
    ]
    for _ in range(2):
        for stage in ("measure", "plan", "execute", "peers"):
            assert main([stage, *common]) == 0
    text = capsys.readouterr().out
    assert "FAILED" not in text, text
    rows = [json.loads(line)["rows"][0] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    by = {entry["solver"]: entry for entry in rows if entry["case"] != "vit@3"}
    assert len({(entry["case"], entry["solver"]) for entry in rows}) == len(rows) and {
        "prefetch",
        "auto",
        "all-resident",
        "layerwise-hooks",
    } <= set(by)
    refused = [entry for entry in rows if entry["case"] == "vit@3" and entry["extra"].get("kind") != "peer"]
    assert len(refused) == 2 and all("at once" in entry["extra"]["reason"] for entry in refused)
    for name in ("prefetch", "auto", "all-resident"):
        assert by[name]["status"] == "ok" and by[name]["extra"]["equal"], by[name]
        assert (
            by[name]["extra"]["simulated"] > 0 and by[name]["extra"]["peak"] <= by[name]["extra"]["capacity"]
        )
