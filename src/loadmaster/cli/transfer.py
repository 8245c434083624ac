"""`loadmaster transfer`: what a trained policy decides for models that it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.model import MachineOption, Model
from loadmaster.cli.progress import gap_text
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.mapping.problem import Int8, Mapping


def command(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="pretrained:bert, or a file of 'train'.")],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to decide for.")],
    machine: MachineOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random map.")] = 0,
) -> Answer:
    """One greedy pass of a policy on each model: no search, nothing learned, one evaluation.

    A map that does not fit is rectified (tensors move to the next slower memory) before it is
    timed; the share of bytes that had to move is shown.

    Example: loadmaster transfer pretrained:bert resnet50 resnet101 --machine nnp-i
    """
    from loadmaster.errors import require

    require("jax", "agents"), require("equinox", "agents")
    from loadmaster.mapping.egrl.agent import random_map, untrained_map, zero_shot
    from loadmaster.mapping.problem import Mapping

    rows: list[dict[str, Any]] = []
    for name in models:
        model = Model(name)
        problem = Mapping(model.load(), model.machine(machine))
        maps = {
            "policy": zero_shot(policy, problem),
            "untrained": untrained_map(problem, seed),
            "random": random_map(problem, seed),
            "all-slowest": problem.all_slowest(),
            "compiler": problem.compiler,
        }
        rows += [_row(name, problem, what, decision) for what, decision in maps.items()]
    cells = [
        (
            row["model"],
            row["name"],
            "white box" if row["white_box"] else "black box",
            "yes" if row["fits"] else "no",
            f"{100 * row['epsilon']:.1f} %",
            show_time(row["picoseconds"]),
            f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
        )
        for row in rows
    ]
    columns = (
        "model",
        "map",
        "kind",
        "fits as it is",
        "bytes moved",
        "time",
        "over compiler",
        "gap to bound",
    )
    return Answer(rows, [Table(columns, cells, policy)], more={"policy": policy})


def _row(model: str, problem: Mapping, name: str, decision: Int8) -> dict[str, Any]:
    time_ps, epsilon, _ = problem.rectify(decision[None])
    value, bound = int(time_ps[0]), problem.bound()
    return {
        "model": model,
        "machine": problem.machine.name,
        "name": name,
        "white_box": name in ("all-slowest", "compiler"),
        "fits": bool(epsilon[0] == 0),
        "epsilon": float(epsilon[0]),
        "picoseconds": value,
        "seconds": value / 10**12,
        "speedup": problem.compiler_ps / value,
        "gap": value / bound.value - 1 if bound.value else None,
    }
