"""What holds for all of the package: which way imports point, and what is no part of it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import loadmaster

ROOT = Path(loadmaster.__file__).parent
CHECKOUT = Path(__file__).parents[1]
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
    "torch_fit",
    "cli",
    "__main__",
]
"""A module imports only from its own part and from those before it."""
TABLES = {
    "search/registry.py": "names of problems and solvers -> their modules, which are imported when used",
    "learn/policies.py": "names of agents -> the packages that their trained policies lie in",
}
"""Where modules are named in strings: the one way to reach a part that comes later."""
MOST_LINES = 800
MOST_FILES = 340
NOT_PACKAGED = {"bench", "benchmarks", "hdp", "reference", "tests", "tools"}


@cache
def _sources() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
    ]


def _imports(tree: ast.Module, name: str = "") -> set[str]:
    """Modules that are imported anywhere: at the top, inside functions, and for types alone."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _named(tree: ast.Module) -> set[str]:
    """Modules of the package that are named in strings."""
    return {
        node.value.partition(":")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"loadmaster\.[a-z_]+\.[a-z_.]+(:\w+)?", node.value)
    }


def _parts(modules: set[str]) -> set[str]:
    """Parts of the package that some modules belong to; `loadmaster._core` and names of the package are none."""
    return {
        module.split(".")[1] for module in modules if module.startswith("loadmaster.") and "." in module
    } & set(ORDER)


def _later(part: str, modules: set[str]) -> list[str]:
    return sorted(other for other in _parts(modules) if ORDER.index(other) > ORDER.index(part))


def test_imports_point_one_way() -> None:
    wrong = []
    for name, tree in _sources():
        part = name.split("/")[0].removesuffix(".py")
        if part == "__init__":  # the public API: it names what it gives
            continue
        assert part in ORDER, f"'{part}' has no place in the order"
        wrong += [f"{name} imports {other}" for other in _later(part, _imports(tree, name))]
        if name not in TABLES:
            wrong += [f"{name} names {other}" for other in _later(part, _named(tree))]
    assert not wrong, wrong


def test_wrong_imports_are_seen() -> None:
    """The search itself can find something, lazy imports included."""
    lines = (
        "def f():\n    from loadmaster.cli.main import main",
        "from loadmaster import report",
        "import loadmaster.cli",
    )
    for line in lines:
        assert _later("plan", _imports(ast.parse(line))), line
    assert _later("plan", _named(ast.parse("x = 'loadmaster.cli.main:main'"))) == ["cli"]
    assert not _later("plan", _imports(ast.parse("from loadmaster import __version__, units")))


def test_the_tables_are_what_names_modules() -> None:
    for name in TABLES:
        assert _later(name.split("/")[0].removesuffix(".py"), _named(ast.parse((ROOT / name).read_text()))), (
            name
        )


def _internals_of_the_checker(tree: ast.Module) -> list[str]:
    inside = [path.stem for path in (ROOT / "plan" / "check").glob("*.py")]
    return sorted(
        module
        for module in _imports(tree) | _named(tree)
        if module.startswith("loadmaster.plan.check.") and module.split(".")[3] in inside
    )


def test_only_the_checker_looks_into_the_checker() -> None:
    """Others take `check` and its verdicts; what lies where is told by `plan.occupancy`."""
    for name, tree in _sources():
        if not name.startswith("plan/check/"):
            assert not _internals_of_the_checker(tree), name
    for line in (
        "from loadmaster.plan.check.facts import Facts",
        "from loadmaster.plan.check import overlap",
    ):
        assert _internals_of_the_checker(ast.parse(line)), line
    assert not _internals_of_the_checker(ast.parse("from loadmaster.plan.check import Violation, check"))


def test_the_checker_shares_no_code_with_simulator_or_solvers() -> None:
    allowed = {"errors", "units", "program", "machine", "plan"}
    for name, tree in _sources():
        if name.startswith("plan/check/"):
            assert _parts(_imports(tree)) <= allowed and "loadmaster._core" not in _imports(tree), name


def test_the_reference_shares_no_code_with_the_core() -> None:
    shared = {"loadmaster.simulate.simulator.Int64", "loadmaster.simulate.simulator.Timeline"}
    for path in (Path(__file__).parent / "reference" / "simulate").glob("*.py"):
        imports = _imports(ast.parse(path.read_text(encoding="utf-8")))
        core = {name for name in imports if name.startswith(("loadmaster._core", "loadmaster.simulate"))}
        assert core <= shared, (path.name, core)


def test_the_library_needs_numpy_alone() -> None:
    code = (
        "import sys, loadmaster.program, loadmaster.machine, loadmaster.plan, loadmaster.simulate\n"
        "heavy = {'jax', 'onnx', 'torch', 'ortools', 'typer', 'rich', 'gymnasium', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measurements_twins_and_the_tpu_compiler_are_not_packaged() -> None:
    """They are beside the package: what `pip install loadmaster` gives is what users need."""
    build = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]
    assert build["wheel"]["packages"] == ["src/loadmaster"]
    for name, tree in _sources():
        assert not NOT_PACKAGED & set(name.split("/")[:-1]), name
        outside = {module.split(".")[0] for module in _imports(tree)} & NOT_PACKAGED
        assert not outside or name == "cli/bench.py", (name, outside)


def test_no_file_is_a_monster() -> None:
    long = {name: tree.body[-1].end_lineno or 0 for name, tree in _sources() if tree.body}
    # A file is one subject, as long as it needs: this only catches what has become two.
    assert max(long.values()) <= MOST_LINES, {name: n for name, n in long.items() if n > MOST_LINES}


def test_files_stay_few() -> None:
    assert len(_sources()) <= MOST_FILES, "a file is one subject: does the new one belong to a neighbour?"


def test_the_formatter_decides() -> None:
    folders = ("src", "tests", "benchmarks", "tools", "examples")
    marks = ("# fmt: " + "skip", "# fmt: " + "off")
    for path in (path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not any(mark in text for mark in marks), path
