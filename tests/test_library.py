"""`import loadmaster as lm`: every public name is there, documented, and costs nothing unused."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import loadmaster as lm

ROOT = Path(__file__).parent.parent


def test_every_name_is_there_and_has_a_docstring() -> None:
    for name in lm.__all__:
        found = getattr(lm, name)
        assert found.__doc__, name
        assert name in dir(lm)
    with pytest.raises(AttributeError, match="no attribute 'simulated'"):
        _ = lm.simulated


def test_types_and_values_come_from_the_same_modules() -> None:
    """What a type checker sees is what is imported at run time."""
    tree = ast.parse(Path(str(lm.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: (f"{line.module}", alias.name)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert set(typed) == set(lm.__all__) == set(lm._HOME)
    for name, (module, there) in typed.items():
        assert getattr(importlib.import_module(module), there) is lm.find(name), name


def test_importing_it_loads_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import loadmaster as lm\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before} - {'loadmaster'}\n"
        "assert not new - set(sys.stdlib_module_names), new\n"
        "lm.plan, lm.make_problem, lm.solve, lm.fits, lm.load_model, lm.export_plan\n"
        "heavy = {'jax', 'onnx', 'torch', 'ortools', 'typer', 'rich', 'gymnasium', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "tools/api_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_is_up_to_date() -> None:
    page = _script().page()
    assert (ROOT / "docs/api.md").read_text(encoding="utf-8") == page, "run tools/api_page.py"
    assert all(f"lm.{name}" in page for name in lm.__all__)


def test_a_problem_for_every_kind_of_machine() -> None:
    program = lm.load_model("resnet50")
    kinds = {"nnp-i": "mapping", "tpu-v4i": "malloc-game", "p100x4": "graph", "arena:64MiB": "allocation"}
    for name, kind in kinds.items():
        assert lm.make_problem(program, lm.load_machine(name)).kind == kind
    assert lm.make_problem(program, lm.load_machine("nnp-i"), objective="peak-memory").kind == "order"
    with pytest.raises(lm.LoadmasterError, match="no objective 'speed'"):
        lm.make_problem(program, lm.load_machine("nnp-i"), objective="speed")
    with pytest.raises(lm.LoadmasterError, match="did you mean 'mapping'"):
        lm.make_problem(program, lm.load_machine("nnp-i"), problem="maping")


def test_solve_keeps_a_run_and_takes_a_solver_by_name_or_as_an_object(tmp_path: Path) -> None:
    problem = lm.make_problem(lm.load_model("resnet50"), lm.load_machine("nnp-i"))
    found = lm.solve(problem, "density", folder=tmp_path)
    assert found.run is not None and (found.run / "best.json").is_file()
    again = lm.solve(problem, lm.make_solver("mapping", "density"))
    assert found.value == again.value and found.evaluations == 1
    plan = lm.load_plan(found.run / "best.json", problem.program, problem.machine)
    assert lm.check(problem.program, problem.machine, plan) == []
    assert lm.simulate(problem.program, problem.machine, plan).total_ps == found.value


def test_exports_are_refused_by_name_and_never_overwrite(tmp_path: Path) -> None:
    program, machine = lm.load_model("resnet50"), lm.load_machine("nnp-i")
    out = tmp_path / "x.trace.json.gz"
    with pytest.raises(lm.LoadmasterError, match="did you mean 'trace'"):
        lm.export_plan("trase", "resnet50", program, machine, lm.Plan(), out)
    out.write_text("mine")
    with pytest.raises(lm.LoadmasterError, match="is there already"):
        lm.export_plan("trace", "resnet50", program, machine, lm.Plan(), out)
    assert out.read_text() == "mine"


def test_plan_and_simulate_are_functions_and_packages() -> None:
    import loadmaster.plan
    import loadmaster.simulate
    from loadmaster.plan import Plan

    assert loadmaster.plan.Plan is Plan is lm.Plan and loadmaster.simulate.Timeline is lm.Timeline
    program, machine = lm.load_model("resnet50"), lm.load_machine("nnp-i")
    result = lm.plan(program, machine, solver="density")
    assert result.plan is not None and lm.check(program, machine, result.plan) == []
    assert lm.simulate(program, machine, result.plan).total_ps == result.value


def test_functions_say_what_goes_in_and_comes_out() -> None:
    for name in lm.__all__:
        found = lm.find(name)
        if inspect.isclass(found):
            continue
        text = inspect.getdoc(found) or ""
        signature = inspect.signature(found)
        listed = text.partition("Args:")[2].partition("Returns:")[0]
        missing = [each for each in signature.parameters if not re.search(rf"\b{each}\b.*:", listed)]
        assert not missing, (name, missing)
        assert "Returns:" in text or signature.return_annotation == "None", name
