"""Writes docs/api.md: what `import loadmaster as lm` offers, from signatures and docstrings.

python tools/api_page.py [--check]
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import loadmaster as lm

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
PARTS = {
    "PyTorch models": ("fit",),
    "Models and machines": (
        "load_model",
        "ImportOptions",
        "load_machine",
        "Program",
        "Builder",
        "Machine",
        "needs",
    ),
    "Planning": ("plan", "Result", "Budget", "fits", "Fits", "fit"),
    "Problems": ("make_problem", "Problem", "Allocation", "read_buffers", "Pins", "parse_pins"),
    "Solving": (
        "solve",
        "Solution",
        "Solver",
        "Meter",
        "Observer",
        "make_solver",
        "solver_names",
        "allocate",
    ),
    "Plans": ("Plan", "check", "Occupancy", "simulate", "Timeline", "save_plan", "load_plan", "load_planned"),
    "Out": ("export_plan", "write_report"),
    "Errors": ("LoadmasterError", "BadProgram", "BadMachine", "BadPlan"),
}
HEAD = """# The library: `import loadmaster as lm`

Made by `tools/api_page.py` from the docstrings. Each name is imported when it is first used; NumPy is all that it needs,
and whatever else a model or a solver needs says its install line. [examples/ten_lines.py](../examples/ten_lines.py) is the
shortest whole story, [examples/own_solver.py](../examples/own_solver.py) adds a solver and a machine of one's own.
"""


def page() -> str:
    """The whole page."""
    left = set(lm.__all__) - {name for names in PARTS.values() for name in names}
    assert not left, f"no part of the page has {sorted(left)}"
    lines = [HEAD]
    for part, names in PARTS.items():
        lines.append(f"## {part}\n")
        for name in names:
            lines += _entry(name, lm.find(name))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, found: Any) -> list[str]:
    lines = [f"### `lm.{name}`\n"]
    if not inspect.isclass(found):
        lines.append(f"```python\n{_signature(name, found)}\n```\n")
    lines.append(f"{_prose(inspect.cleandoc(found.__doc__ or ''))}\n")
    if dataclasses.is_dataclass(found):
        lines.append(f"Fields: {', '.join(f'`{field.name}`' for field in dataclasses.fields(found))}.\n")
    methods = _methods(found) if inspect.isclass(found) else []
    if methods:
        lines += ["| method | what it does |", "| --- | --- |", *methods, ""]
    return lines


def _prose(text: str) -> str:
    """A docstring as Markdown: what stands indented below 'Arguments:' or 'Returns:' becomes a list."""
    lines: list[str] = []
    for line in text.split("\n"):
        entry = re.fullmatch(r" {2}(\S[^:]*): (.*)", line)
        if line in ("Args:", "Arguments:", "Returns:"):
            lines += [f"{line}", ""]
        elif entry:
            names = ", ".join(f"`{name.strip()}`" for name in entry[1].split(","))
            lines.append(f"- {names}: {entry[2]}")
        else:
            lines.append(line.removeprefix("  "))
    return "\n".join(lines)


def _signature(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    parts, star = [], False
    for each in signature.parameters.values():
        if each.kind == each.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parts.append(f"{each.name}: {each.annotation}{default}")
    result = signature.return_annotation
    text = f"{name}({', '.join(parts)}) -> {result}"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {result}"
    return text


def _methods(found: type) -> list[str]:
    rows = []
    for name, member in vars(found).items():
        if name.startswith("_") or not (callable(member) or isinstance(member, classmethod | property)):
            continue
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        text = inspect.cleandoc(getattr(plain, "__doc__", None) or "")
        if text and inspect.isfunction(plain):
            first = text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            rows.append(f"| `{name}{'' if isinstance(member, property) else '()'}` | {first} |")
    return rows


def main() -> None:
    made = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == made else f"{PAGE.name} is out of date")
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
