"""Plans in ExecuTorch programs: written, read back, run."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError, Refused
from loadmaster.export.plans import ExportRequest, NotExported
from loadmaster.machine import Machine, load_machine
from loadmaster.plan.check import check
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program, TensorKind

pytest.importorskip("executorch")
pytestmark = pytest.mark.filterwarnings("ignore")

from loadmaster.export.executorch import export, verify, write_plan  # noqa: E402
from loadmaster.export.executorch_plans import (  # noqa: E402  # noqa: E402
    Placed,
    improve_plan,
    measure_difference,
    number_arenas,
    place_banked,
    place_greedy,
    run,
    run_eager,
    sample_inputs,
)
from loadmaster.program.importers.executorch import importer as lowering  # noqa: E402
from loadmaster.program.importers.executorch.importer import Lowered, lower  # noqa: E402

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 10)

    def forward(self, x, y):
        x = F.relu(self.a(x)) + y
        left, right = self.b(x).chunk(2, 1)
        x = F.max_pool2d(torch.cat([self.c(x), left * right], 1)[:, :8], 2)
        return self.head(x.flatten(2).mean(2)), x

def build():
    return Net(), (torch.randn(1, 3, 16, 16), torch.randn(1, 8, 16, 16))

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.add_(1)
        return x + self.seen

def stateful():
    return Counter(), (torch.zeros(4),)
"""
SPEC = "executorch_net_of_test:build"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("executorch")
    (where / "executorch_net_of_test.py").write_text(MODEL, encoding="utf-8")
    sys.path.insert(0, str(where))
    return where


@pytest.fixture(scope="module")
def lowered(folder: Path) -> Lowered:
    return lower(SPEC)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("ethos-u65").with_capacity("sram", 12 * 1024)


@pytest.fixture(scope="module")
def own(lowered: Lowered, machine: Machine) -> Placed:
    return place_greedy(lowered, machine)


@pytest.fixture(scope="module")
def plan(own: Placed, lowered: Lowered, machine: Machine) -> Plan:
    found = improve_plan(own.recorded.program, machine, [own.plan], most_bytes=own.bytes, kicks=20)
    assert found is not None
    return found


def random_order(program: Program, seed: int) -> list[int]:
    """Some order in which every op comes after those whose results it reads."""
    random = np.random.default_rng(seed)
    waits = [{int(program.producer[t]) for t in program.reads(op)} - {-1} for op in range(program.n_ops)]
    order: list[int] = []
    while len(order) < program.n_ops:
        ready = [op for op in range(program.n_ops) if op not in order and waits[op] <= set(order)]
        order.append(int(random.choice(ready)))
    return order


def kernels(program: Any) -> list[str]:
    """The names of the kernels that a finished program calls, one after another."""
    method = program.executorch_program.execution_plan[0]
    calls = [step.instr_args for step in method.chains[0].instructions]
    return [str(method.operators[call.op_index].name) for call in calls]


def test_the_program_is_what_executorch_runs(own: Placed) -> None:
    program = own.recorded.program
    assert program.warnings == ()
    assert program.op_name[0] == "inputs"
    kinds = dict(zip(program.tensor_name, program.tensor_kind.tolist(), strict=True))
    assert kinds["x.caller"] == TensorKind.INPUT
    assert kinds["a.weight"] == TensorKind.WEIGHT
    assert kinds["x"] == TensorKind.ACTIVATION
    weights = program.tensor_kind == TensorKind.WEIGHT
    assert not program.tensor_fast[weights].any()
    # Indices of the pool that nobody reads, and the head's weights turned round at run time.
    pool = next(name for name in program.tensor_name if name.endswith("with_indices_default:1"))
    assert program.shape(program.tensor_name.index(pool)) == (1, 8, 8, 8)
    assert "aten_permute_copy_default" in program.op_name


def test_its_own_placements_are_sound_plans(own: Placed, lowered: Lowered, machine: Machine) -> None:
    program = own.recorded.program
    banked = place_banked(lowered, machine, number_arenas(machine, {}))
    assert banked.recorded.program.hash == program.hash
    for placed in (own, banked):
        assert check(program, machine, placed.plan) == []
    assert {row.memory for row in banked.plan.residency_rows} == {0, 1}


def test_a_plan_is_written_read_back_and_run(
    own: Placed, lowered: Lowered, machine: Machine, plan: Plan
) -> None:
    written = write_plan(lowered, machine, plan, number_arenas(machine, {}))
    assert written.plan.hash == plan.hash
    assert sum(written.arenas) <= own.bytes
    assert written.arenas[3] > 0  # the fast arena is in use
    differs = verify(lowered, written, own)
    assert differs["differs_from_greedy"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_followed(own: Placed, lowered: Lowered, machine: Machine, seed: int) -> None:
    program = own.recorded.program
    order = random_order(program, seed)
    written = write_plan(lowered, machine, Plan.of(order=order), number_arenas(machine, {}))
    real = [op for op in written.order if not program.op_view[op] and program.op_name[op] != "inputs"]
    assert real == [op for op in order if op in real]
    assert real != sorted(real)
    by_op = dict(zip(sorted(real), kernels(own.recorded.own), strict=True))
    assert kernels(written.own) == [by_op[op] for op in real]
    assert verify(lowered, written, own)["differs_from_greedy"] == 0


def test_wrong_offsets_give_wrong_numbers_which_is_why_plans_are_checked(
    own: Placed, lowered: Lowered, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row._replace(offset=0) for row in own.plan.residency_rows]
    overlapping = Plan.of(residencies=rows)
    arenas = number_arenas(machine, {})
    with pytest.raises(Refused, match="the checker refuses"):
        write_plan(lowered, machine, overlapping, arenas)
    monkeypatch.setattr("loadmaster.export.executorch.check_sound", lambda *_: None)
    written = write_plan(lowered, machine, overlapping, arenas)
    inputs = sample_inputs(lowered)
    assert measure_difference(run(written.own, inputs), run_eager(lowered, inputs)) > 0.01
    with pytest.raises(NotExported, match="gives other numbers"):
        verify(lowered, written, own)


def make_request(
    program: Program, machine: Machine, plan: Plan, out: Path, *, force: bool = False
) -> ExportRequest:
    return ExportRequest(SPEC, program, machine, plan, out, force=force)


def test_the_target_writes_a_program(own: Placed, machine: Machine, plan: Plan, tmp_path: Path) -> None:
    source = Path(sys.modules["executorch_net_of_test"].__file__ or "")
    before = hashlib.sha256(source.read_bytes()).hexdigest()
    done = export(make_request(own.recorded.program, machine, plan, tmp_path / "net.pte", force=True))
    assert done.verdict == "verified"
    assert done.files == (tmp_path / "net.pte",)
    assert done.figures["bytes"] == sum(v for k, v in done.figures.items() if "arena" in k)  # type: ignore[misc]
    assert float(str(done.figures["seconds"])) <= float(str(done.figures["banked_seconds"]))
    data = (tmp_path / "net.pte").read_bytes()
    assert data[4:8].startswith(b"ET")
    assert hashlib.sha256(source.read_bytes()).hexdigest() == before


def test_nothing_is_written_that_is_no_better(own: Placed, machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "net.pte"
    with pytest.raises(Refused, match=r"own placement \('banked'\) is better"):
        export(make_request(own.recorded.program, machine, own.plan, out))
    with pytest.raises(NotExported, match=r"let it end in \.pte"):
        export(make_request(own.recorded.program, machine, own.plan, tmp_path / "net.txt"))
    assert list(tmp_path.iterdir()) == []


def test_broken_plans_are_never_written(own: Placed, machine: Machine, plan: Plan, tmp_path: Path) -> None:
    """Overlaps, offsets off the grid, lives too short, beyond the end of a memory."""
    program, random = own.recorded.program, np.random.default_rng(0)
    refused = 0
    for number in range(100):
        rows = list(plan.residency_rows)
        at = int(random.integers(len(rows)))
        row = rows[at]
        if not program.tensor_bytes[row.tensor]:
            continue
        other = rows[int(random.integers(len(rows)))]
        rows[at] = [
            row._replace(offset=other.offset, memory=other.memory),
            row._replace(offset=row.offset + 8),
            row._replace(last=max(row.first, row.last - 1)),
            row._replace(offset=machine.memories[row.memory].capacity),
        ][number % 4]
        broken = Plan.of(residencies=rows)
        if check(program, machine, broken):
            refused += 1
            with pytest.raises(LoadmasterError):
                export(make_request(program, machine, broken, tmp_path / "net.pte", force=True))
    assert refused > 60
    assert list(tmp_path.iterdir()) == []


def test_what_plans_cannot_express_is_refused(folder: Path) -> None:
    from loadmaster.program.importers import import_model

    with pytest.raises(LoadmasterError, match="changes its buffer 'seen'"):
        import_model("executorch_net_of_test:stateful", "executorch")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "VERSIONS", ("0.1.",))
    with pytest.raises(LoadmasterError, match="was never tried"):
        lower(SPEC)


def test_the_command_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from loadmaster.cli.main import app

    monkeypatch.chdir(tmp_path)
    machine = ["--machine", "ethos-u65", "--json"]
    done = CliRunner().invoke(
        app,
        [
            "plan",
            SPEC,
            "--format",
            "executorch",
            *machine,
            "--no-run",
            "--out",
            "plan.json",
            "--budget",
            "200",
        ],
    )
    assert done.exit_code == 0, done.output
    numbers = ["--mem-id", "sram=1", "--mem-id", "dram=2", "--out", "net.pte", "--force"]
    done = CliRunner().invoke(app, ["export", "executorch", SPEC, "plan.json", *machine, *numbers])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["verdict"] == "verified"
    assert row["bytes_arena_1"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "net.pte", "net.pte.json"}
    assert json.loads((tmp_path / "net.pte.json").read_text())["figures"]["differs_from_greedy"] == 0
