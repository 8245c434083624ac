"""The arrows of the architecture: a module imports only from those left of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import loadmaster

ROOT = Path(loadmaster.__file__).parent
ORDER = [
    "errors",
    "units",
    "clock",
    "signals",
    "json_text",
    "files",
    "arrays",
    "host",
    "program",
    "machine",
    "plan",
    "simulate",
    "search",
    "learn",
    "allocation",
    "mapping",
    "malloc_game",
    "order",
    "graph",
    "offload",
    "envs",
    "runs",
    "planner",
    "execute",
    "export",
    "report",
    "cli",
    "__main__",
]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module)
    return {name.split(".")[1] for name in names if name.startswith("loadmaster.")}


def test_imports_point_one_way() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in ORDER, f"'{part}' has no place in the order"
        later = [name for name in _imports(path) - {"_core"} if ORDER.index(name) > ORDER.index(part)]
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in later]
    assert not wrong, wrong


def test_the_checker_shares_no_code_with_simulator_or_solvers() -> None:
    allowed = {"errors", "units", "program", "machine", "plan"}
    for path in (ROOT / "plan" / "check").glob("*.py"):
        assert _imports(path) <= allowed, path.name
        assert "_core" not in path.read_text(encoding="utf-8"), path.name


def test_the_reference_shares_no_code_with_the_core() -> None:
    for path in (Path(__file__).parent / "reference" / "simulate").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("_core", "loadmaster.simulate.simulator", "loadmaster.simulate.costs"):
            assert word not in text, (path.name, word)


def test_the_library_needs_numpy_alone() -> None:
    code = (
        "import sys, loadmaster.program, loadmaster.machine, loadmaster.plan, loadmaster.simulate\n"
        "heavy = {'jax', 'onnx', 'torch', 'ortools', 'typer', 'rich', 'gymnasium', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_is_a_monster() -> None:
    long = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in ROOT.rglob("*.py")
    }
    # A file is one subject, as long as it needs: this only catches what has become two.
    assert max(long.values()) <= 600, {name: lines for name, lines in long.items() if lines > 600}
