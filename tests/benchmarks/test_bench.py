"""The suites: rows as recorded, cases that can be chosen, placements that keep the rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.suites import SUITES, Options, Row, run_suite
from benchmarks.suites.simulate import anywhere, bundles, layers_in_turn
from generate import random_machine, random_program
from loadmaster.cli.main import app
from loadmaster.errors import LoadmasterError
from loadmaster.host import host, versions
from loadmaster.machine import load_machine
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Program, TieKind
from loadmaster.program.zoo import load_workload

KEYS = [
    "case",
    "machine",
    "solver",
    "seed",
    "evaluations",
    "seconds",
    "value",
    "unit",
    "baseline",
    "bound",
    "gap",
    "status",
    "extra",
]


def test_quick_static_mapping_and_help_give_rows() -> None:
    options = Options(quick=True, cases=("static*", "help"))
    rows = list(run_suite("simulate", options))
    assert {row.case for row in rows} >= {"static-mapping", "help"}
    for row in rows:
        assert list(row.as_dict()) == KEYS
        assert row.value > 0 and row.status in ("met", "missed") and row.evaluations > 0
        assert row.extra["target"] == row.goal


def test_the_command_prints_one_object() -> None:
    result = CliRunner().invoke(app, ["bench", "simulate", "--case", "help", "--json", "--seeds", "2"])
    document: dict[str, Any] = json.loads(result.stdout)
    assert [row["seed"] for row in document["rows"]] == [0, 1]
    assert all(list(row) == KEYS for row in document["rows"])
    assert document["suite"] == "simulate"
    assert document["versions"]["loadmaster"] and document["host"]["cores"] >= 1
    assert set(document["host"]) == {"cpu", "cores", "system", "load"}  # and not its name
    shown = CliRunner().invoke(app, ["bench", "simulate", "--case", "help", "--quiet"])
    assert "help" in shown.stdout and "< 0.3 s" in shown.stdout and shown.stderr == ""


def test_unknown_suites_and_cases_suggest_the_nearest() -> None:
    with pytest.raises(LoadmasterError, match="did you mean 'simulate'"):
        list(run_suite("simulte", Options()))
    with pytest.raises(LoadmasterError, match="has no case 'nope'"):
        list(run_suite("simulate", Options(cases=("nope",))))


def test_without_a_checkout_there_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.cli.bench import command

    monkeypatch.setattr("loadmaster.__file__", str(tmp_path / "site-packages" / "loadmaster" / "__init__.py"))
    with pytest.raises(LoadmasterError, match=r"benchmarks are not installed: .*pip install -e \."):
        command("simulate")


@pytest.mark.parametrize("script", ["record_bounds.py", "mapping_runs.py"])
@pytest.mark.parametrize("as_module", [False, True])
def test_scripts_run_by_their_file_and_as_modules(script: str, as_module: bool, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    words = ["-m", f"benchmarks.{script[:-3]}"] if as_module else [str(root / "benchmarks" / script)]
    where = root if as_module else tmp_path
    done = subprocess.run(
        [sys.executable, *words, "--help"], cwd=where, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage")


def test_every_suite_can_be_imported_and_rows_have_defaults() -> None:
    assert set(SUITES) >= {"simulate"}
    assert Row("c", 1.0, "s", "met").as_dict()["bound"] is None and Row("c", 1.0, "s", "met").goal == "–"
    assert versions()["numpy"] and host()["cpu"]


@pytest.mark.parametrize("seed", range(30))
def test_bundles_keep_hard_groups_and_in_place_ops_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program: Program = random_program(rng)
    machine = random_machine(rng)
    bundle = bundles(program)
    assert (bundle <= np.arange(program.n_ops)).all() and (bundle[bundle] == bundle).all()
    for group in set(program.op_group[program.op_group >= 0].tolist()):
        assert len(set(bundle[program.op_group == group].tolist())) == 1
    for tie in np.flatnonzero(program.tie_kind == TieKind.INPLACE):
        writer = program.producer[program.tensor_alias[program.tie_source[tie]]]
        if writer >= 0:
            assert bundle[writer] == bundle[program.tie_at[tie]]
    devices = len(machine.devices)
    for place in (anywhere, layers_in_turn):
        device = place(program, devices, seed)
        assert device.dtype == np.int32 and device.min() >= 0 and device.max() < devices


def test_a_traced_model_placed_by_layer_and_at_random_keeps_its_groups() -> None:
    pytest.importorskip("jax")
    program, machine = load_workload("gnmt-2:steps=2"), load_machine("p100x8")
    for place in (layers_in_turn, anywhere):
        device = place(program, len(machine.devices), 0)
        assert set(device.tolist()) == set(range(8))
        plan = Plan.of(
            device=device, queue="priority", priority=np.random.default_rng(0).random(program.n_ops)
        )
        rules = {violation.rule for violation in check(program, machine, plan)}
        assert not rules & {"colocation", "device", "shape"}
