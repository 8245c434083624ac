"""Writes the part of docs/researchers.md about the Gymnasium environments, from their docstrings and their spaces.

python tools/envs_page.py [--check]
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.pages import rewrite
from loadmaster.envs import ENVIRONMENTS

PAGE = Path(__file__).parents[1] / "docs" / "researchers.md"
BEGIN, END = "<!-- environments: made by tools/envs_page.py -->", "<!-- end of environments -->"


def show(space: spaces.Space[Any]) -> str:
    """A space as it prints itself; many choices of one size in a row are counted."""
    if not isinstance(space, spaces.MultiDiscrete):
        return str(space)
    runs = [(int(size), len(list(group))) for size, group in itertools.groupby(space.nvec.tolist())]
    return f"MultiDiscrete({' + '.join(f'[{size}] * {count}' for size, count in runs)})"


def overview(name: str) -> str:
    """A line for the table of all environments, from the docstring."""
    module, _, kind = ENVIRONMENTS[name].partition(":")
    text = inspect.getdoc(getattr(importlib.import_module(module), kind)) or ""
    said = dict(re.findall(r"^- \*\*(\w+)\*\*: (.*)$", text, re.M))
    mask, ends = said["Mask"].partition(":")[0], re.split(r"\.| \(", said["Termination"])[0]
    return f"| [`{name}`](#{name.lower().replace('/', '')}) | {text.partition('.')[0].partition(':')[0]} | {mask} | {ends} |"


def section(name: str) -> str:
    """One environment: what it takes, its docstring, its spaces for what it makes by default."""
    env = gymnasium.make(name).unwrapped
    arguments = ", ".join(
        str(parameter.replace(annotation=parameter.empty))
        for parameter in inspect.signature(type(env)).parameters.values()
        if parameter.name != "render_mode"
    )
    assert isinstance(env.observation_space, spaces.Dict)
    rows = [(f"observation `{key}`", space) for key, space in env.observation_space.items()]
    rows.append(("action", env.action_space))
    table = "\n".join(f"| {what} | `{show(space)}` |" for what, space in rows)
    text = inspect.getdoc(type(env))
    return (
        f"### {name}\n\n`gymnasium.make({name!r}, {arguments})`\n\n{text}\n\n"
        f"| with its default program and machine | space |\n| --- | --- |\n{table}\n"
    )


def made() -> str:
    """All environments that are registered."""
    names = sorted(ENVIRONMENTS)
    lines = [
        "| id | an action | mask | an episode ends |",
        "| --- | --- | --- | --- |",
        *map(overview, names),
    ]
    return "\n".join([*lines, "", *map(section, names)]).rstrip()


if __name__ == "__main__":
    raise SystemExit(rewrite(PAGE, BEGIN, END, made()))
