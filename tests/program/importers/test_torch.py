"""PyTorch modules through torch.export."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import BadProgram
from loadmaster.program.importers import (
    ImportOptions,
    as_module,
    import_model,
    load_function,
    takes_nothing,
    torch_result,
)
from loadmaster.program.models import load_model
from loadmaster.program.program import Program, TensorKind, TieKind
from loadmaster.program.storage import load, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from loadmaster.program.importers.torch import import_torch  # noqa: E402

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 10)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, scale=1.0):
        self.seen.add_(1)
        x = self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return self.head(x) * scale

def build():
    return Net(), (torch.zeros(2, 3, 6, 6),), {"scale": 2.0}

def jax_function(x):
    return x + 1

def nothing_of_the_kind():
    return 3

class Widths(nn.Module):
    # Its code computes with tensors how wide its layers are, as RegNet's does.
    def __init__(self):
        super().__init__()
        widths = (torch.arange(1, 4) * 8).tolist()
        self.layers = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:])))
        self.again = self.layers[0].weight
    def forward(self, x):
        return self.layers(x)[:, :8] @ self.again.t()

def widths():
    return Widths(), (torch.zeros(2, 8),)

class Scaled(nn.Linear):
    # Its code reads a weight.
    def __init__(self):
        super().__init__(8, 8)
        self.largest = float(self.weight.abs().max())
    def forward(self, x):
        return super().forward(x) * self.largest

def scaled():
    return Scaled(), (torch.zeros(2, 8),)

def raises():
    return [][3]

def exits():
    raise SystemExit(3)

def takes(size):
    return nn.Linear(size, size), (torch.zeros(2, size),)

def alone():
    return nn.Linear(8, 8)

def keywords():
    return nn.Linear(8, 8), (torch.zeros(2, 8),), [1]

class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

def branches():
    return Branches(), (torch.zeros(2),)

class Given:
    def __init__(self, value):
        self.value = value

class Objects(nn.Module):
    def forward(self, x):
        return Given([x * 2]), {"rest": x + 1}

def objects():
    return Objects(), (torch.zeros(2),)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_of_test.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "net_of_test", raising=False)
    return "net_of_test"


def flops_of(program: Program, kind: str) -> int:
    return int(program.op_flops[program.op_kind.rows(kind)].sum())


def test_a_module_becomes_a_program(module: str) -> None:
    program = import_model(f"{module}:build")
    kinds = [k for k, view in zip(program.op_kind, program.op_view, strict=True) if not view]
    assert kinds == ["add", "conv", "batchnorm", "relu", "reduce_sum", "matmul", "mul"]
    assert flops_of(program, "conv") == 2 * (2 * 8 * 36) * 27 + 2 * 8 * 36
    by_name = dict(zip(program.tensor_name, program.tensor_kind.tolist(), strict=True))
    assert by_name["conv.weight"] == TensorKind.WEIGHT
    assert by_name["seen"] == TensorKind.STATE
    assert by_name["x"] == TensorKind.INPUT
    assert "norm.num_batches_tracked" not in by_name  # nobody reads it
    assert program.tie_kind.tolist() == [TieKind.INPLACE]
    assert program.op_scope[program.op_name.index("linear")] == "head"
    assert program.order_source == "trace"
    assert program.warnings == ()


def test_it_is_saved_and_loaded(module: str, tmp_path: Path) -> None:
    program = import_model(f"{module}:build")
    save(program, tmp_path / "net.npz")
    assert load(tmp_path / "net.npz").named_hash == program.named_hash
    assert import_model(f"{module}:build").hash == program.hash


def test_functions_of_jax_and_pytorch_are_distinguished(module: str) -> None:
    assert takes_nothing(load_function(f"{module}:build"))
    assert torch_result(f"{module}:build") is not None
    assert torch_result(f"{module}:jax_function") is None
    assert torch_result(f"{module}:nothing_of_the_kind") is None
    with pytest.raises(BadProgram, match="does not return"):
        import_model(f"{module}:nothing_of_the_kind", "torch")
    with pytest.raises(BadProgram, match="did you mean 'build'"):
        import_model(f"{module}:biuld", "torch")


def test_a_function_is_named_by_its_file_too(module: str) -> None:
    assert as_module("net.py:build") == as_module("./net.py:build") == "net:build"
    assert as_module("models/net.py:build") == "models.net:build"
    for other in (
        "net:build",
        "net.py",
        "net.py:",
        "/far/net.py:build",
        "../net.py:build",
        "a b/net.py:build",
    ):
        assert as_module(other) == other
    assert load_model(f"{module}.py:build").hash == import_model(f"{module}:build").hash
    for reader in (load_model, load_function):
        with pytest.raises(BadProgram, match="go to the file's folder and write net:build"):
            reader("/far/a b/net.py:build")


def test_modules_whose_code_looks_at_values_are_built_without_weights(module: str) -> None:
    result = torch_result(f"{module}:widths")
    assert {p.device.type for p in result[0].parameters()} == {"meta"}
    assert result[0].again is result[0].layers[0].weight  # ties are kept
    assert import_model(f"{module}:widths").op_kind.rows("matmul").sum() == 3
    assert torch_result(f"{module}:scaled")[0].weight.device.type == "cpu"  # nothing else is left
    assert import_model(f"{module}:scaled").n_ops > 0


def test_a_function_that_fails_is_not_our_bug(module: str) -> None:
    for format in (None, "torch"):
        with pytest.raises(BadProgram, match=r"raises IndexError: .*net_of_test\.py, line \d+"):
            import_model(f"{module}:raises", format)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("exits", "raises SystemExit: 3"),
        ("takes", "can't be called without arguments"),
        ("alone", "it returns Linear: return the module and a tuple"),
        ("keywords", r"it returns \(Linear, tuple, list\)"),
        ("branches", r"it branches on a tensor's values \(net_of_test.py, line \d+: if x.sum\(\) > 0\)"),
    ],
)
def test_functions_that_give_no_model_are_refused(module: str, function: str, said: str) -> None:
    for format in ("torch",) if function == "takes" else (None, "torch"):
        with pytest.raises(BadProgram, match=said):
            import_model(f"{module}:{function}", format)


def test_a_script_that_ends_the_process_when_it_is_imported_is_named(module: str) -> None:
    Path("script_of_test.py").write_text("raise SystemExit(2)", encoding="utf-8")
    with pytest.raises(BadProgram, match="module 'script_of_test' can't be imported: SystemExit: 2"):
        load_function("script_of_test:build")


def test_objects_among_the_results_are_left_out(module: str) -> None:
    program = import_model(f"{module}:objects")
    assert [*program.op_kind] == ["add"]


def test_the_core_level_takes_layers_apart_and_keeps_the_flops(module: str) -> None:
    functional = import_model(f"{module}:build")
    core = import_model(f"{module}:build", None, ImportOptions(level="core"))
    assert int(functional.op_flops[:, 0].sum()) == int(core.op_flops[:, 0].sum())
    assert "permute" in " ".join(core.op_name)
    with pytest.raises(BadProgram, match="there is no level 'deep'"):
        import_model(f"{module}:build", None, ImportOptions(level="deep"))


def test_transposes_are_views_or_copies() -> None:
    class Turn(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x.transpose(0, 1) + 1

    args = (torch.zeros(4, 8),)
    view, copy = (import_torch(Turn(), args, name="t", views=v) for v in ("alias", "copy"))
    assert view.op_view.tolist() == [True, False]
    assert copy.op_view.tolist() == [False, False]
    assert [*copy.op_kind] == ["transpose", "add"]


def test_products_count_as_pytorch_counts_them() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    class Products(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 8, 3, stride=2, groups=2)
            self.back = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.head = torch.nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            y = self.head(self.back(self.conv(x)).flatten(2).transpose(1, 2))
            return torch.bmm(y, y.transpose(1, 2)) @ y

    module, x = Products().eval(), torch.zeros(2, 4, 9, 9)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    for level in ("functional", "core"):
        program = import_torch(module, (x,), name="products", level=level)
        assert int(program.op_flops[:, 0].sum()) == counter.get_total_flops()


def test_sizes_that_depend_on_data_are_refused() -> None:
    class Picks(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.nonzero(x)

    with pytest.raises(BadProgram, match=r"unknown dimension|can't read"):
        import_torch(Picks(), (torch.zeros(4),), name="picks")


def test_a_module_that_torch_export_refuses_is_named() -> None:
    class Branches(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(BadProgram, match=r"torch.export can't read 'branches'"):
        import_torch(Branches(), (torch.zeros(4),), name="branches")


def test_a_llama_of_seven_billion_parameters_takes_no_memory() -> None:
    program = import_model("benchmarks.suites.torch_models:llama_7b")
    weights = program.tensor_kind == TensorKind.WEIGHT
    assert int(program.tensor_bytes[weights].sum()) == 4 * 6_738_415_616
    # 6.6 billion products a token (the table of words is looked up, not multiplied), and attention.
    tokens, width, depth = 512, 4096, 32
    products = 2 * tokens * (6_738_415_616 - 32_000 * width - (2 * depth + 1) * width)
    attention = 2 * 2 * tokens * tokens * width * depth
    assert int(program.op_flops[:, 0].sum()) == products + attention
    assert program.warnings == ()
    assert math.isclose(program.n_ops, 1132, rel_tol=0.2)


def test_a_module_that_fails_by_itself_is_told_and_stays_as_it_was() -> None:
    class Looks(torch.nn.BatchNorm1d):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            found = super().forward(x)
            return found if found.sum() > 0 else -found

    module, state = Looks(4), torch.random.get_rng_state()
    with pytest.raises(
        BadProgram, match=r"'looks' itself fails on these inputs: .*see that it runs with them"
    ):
        import_torch(module, (torch.ones(3, 5),), name="looks")
    with pytest.raises(BadProgram, match="it branches on a tensor's values"):
        import_torch(module, (torch.ones(3, 4),), name="looks")
    assert module.num_batches_tracked == 0 and torch.equal(state, torch.random.get_rng_state())
