"""Least-peak orders beside those of PyTorch Inductor, on Inductor's own graphs.

    python benchmarks/inductor_order.py [--seconds 20]

Needs torch (the CPU build will do). Every model goes through Inductor's front end on fake tensors,
nothing is computed: inference, and a training step (loss and all gradients) as one graph. Where its
scheduler orders the fused kernels for peak memory, this script takes its graph, the order that it came
with and those of Inductor's three rules (of which Inductor keeps the best), then stops the compiler.
The same graph is then put into order by `auto`; all peaks are our evaluator's, and each of Inductor's
must be what Inductor itself estimates. Writes `results/inductor_order.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.memory as rules
from torch import nn
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.problems import make_as
from loadmaster.host import host, versions
from loadmaster.order.problem import PeakOrder
from loadmaster.planner import solve_checked
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.solver import Budget

RESULTS = Path(__file__).parent / "results" / "inductor_order.json"


class Residual(nn.Module):
    """A stem, then blocks of two convolutions around which the input is added."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3)
        self.blocks = nn.ModuleList(Wide(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


class Wide(nn.Module):
    """Two convolutions with normalisation."""

    def __init__(self, width: int, out: int | None = None) -> None:
        super().__init__()
        out = out or width
        self.first, self.second = nn.Conv2d(width, out, 3, 1, 1), nn.Conv2d(out, out, 3, 1, 1)
        self.norm = nn.GroupNorm(8, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


class Branches(nn.Module):
    """Cells of parallel convolutions of different widths, joined and narrowed again."""

    def __init__(self, width: int = 32, cells: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.cells = nn.ModuleList(
            nn.ModuleList([Wide(width, part) for part in (16, 96, 48, 192)] + [nn.Conv2d(352, width, 1)])
            for _ in range(cells)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for cell in self.cells:
            *branches, join = cell
            x = join(torch.cat([branch(x) for branch in branches], 1))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Transformer blocks with the norm before each part."""

    def __init__(self, width: int = 256, heads: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(width),
                    nn.Linear(width, width),
                    nn.Linear(width, width),
                    nn.Linear(width, width),
                    nn.Linear(width, width),
                    nn.LayerNorm(width),
                    nn.Linear(width, 4 * width),
                    nn.Linear(4 * width, width),
                ]
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 1_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        for norm, q, k, v, out, norm2, up, down in self.blocks:
            y = norm(x)
            parts = [f(y).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (q, k, v)]
            scores = torch.softmax(parts[0] @ parts[1].transpose(2, 3) * 0.17, -1)
            x = x + out((scores @ parts[2]).transpose(1, 2).reshape(batch, tokens, width))
            x = x + down(nn.functional.gelu(up(norm2(x))))
        return self.head(x.mean(1))


class Hourglass(nn.Module):
    """Down and up again, with what was seen on the way down beside each step up."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down = nn.ModuleList(Wide(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(Wide(a + b, a) for a, b in pairwise(widths))
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for number, block in enumerate(self.down):
            x = block(nn.functional.avg_pool2d(x, 2) if number else x)
            seen.append(x)
        for block, beside in zip(reversed(self.up), reversed(seen[:-1]), strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), beside], 1))
        return self.head(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (8, 3, 64, 64)),
    "branches": (Branches, (8, 3, 32, 32)),
    "transformer": (Attention, (4, 128, 256)),
    "unet": (Hourglass, (4, 3, 64, 64)),
}


@dataclass
class Captured:
    """Inductor's kernels as a program, in the order they came in, and its orders of them."""

    program: Program
    orders: dict[str, np.ndarray]
    estimates: dict[str, int]


class _Enough(BaseException):
    """Stops the compiler once it has shown its orders."""


def captured(model: str, *, training: bool) -> Captured:
    """Send a model through Inductor as far as the order of the kernels."""
    make, shape = MODELS[model]
    found: list[Captured] = []

    def instead(
        nodes: list[Any], name_to_buf: dict[str, Any], fused: dict[str, Any], inputs: Any, outputs: Any
    ) -> None:
        _, given = rules.prepare_planning_info(nodes, name_to_buf, fused, inputs, outputs)
        orders = {
            "inductor-baseline": nodes,
            "inductor-lpmf": rules.topological_sort_lpmf(nodes, given, name_to_buf, outputs),
            "inductor-bfs": rules.topological_sort_bfs(nodes),
            "inductor-dfs": rules.topological_sort_dfs(nodes),
        }
        place = {node: number for number, node in enumerate(nodes)}
        found.append(
            Captured(
                as_program(f"{model}-{'training' if training else 'inference'}", nodes, given, outputs),
                {
                    name: np.array([place[node] for node in order], dtype=np.int32)
                    for name, order in orders.items()
                },
                {
                    name: int(rules.estimate_peak_memory(order, given, outputs)[0])
                    for name, order in orders.items()
                },
            )
        )
        raise _Enough

    with FakeTensorMode():
        module, x = make(), torch.randn(shape)
        weights = dict(module.named_parameters())

        def answer(values: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, dict(zip(weights, values, strict=True)), x)

        def step(values: list[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
            values = [value.detach().requires_grad_() for value in values]
            loss = answer(values, x).square().mean()
            return [loss.detach(), *torch.autograd.grad(loss, values)]

        values = [value.detach() for value in weights.values()]
        function = step if training else torch.no_grad()(answer)
        traced = make_fx(function, select_decomp_table())(values, x)
        usual, rules.reorder_for_peak_memory = rules.reorder_for_peak_memory, instead
        try:
            compile_fx_inner(_flat(traced), [*values, x])
        except _Enough:
            pass
        finally:
            rules.reorder_for_peak_memory = usual
    return found[0]


def _flat(traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With plain inputs and a tuple of outputs, as the compiler wants it."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for number, node in enumerate(each for each in traced.graph.nodes if each.op == "placeholder"):
        copies[node] = graph.placeholder(f"arg{number}_1")  # inputs by these names are never freed
        copies[node].meta = dict(node.meta)
    result = graph.graph_copy(traced.graph, copies)
    graph.output(tuple(result) if isinstance(result, (list, tuple)) else (result,))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(traced, graph)


def as_program(name: str, nodes: Sequence[Any], given: dict[str, Any], outputs: Any) -> Program:
    """A kernel is an op. Values have the bytes that Inductor counts; one more of no bytes for each
    kernel stands for the order that it asks for. Inputs that it does not free are left out."""
    build = Builder(name)
    place = {node: number for number, node in enumerate(nodes)}
    maker = {buffer.get_name(): number for number, node in enumerate(nodes) for buffer in node.get_outputs()}
    reads: list[set[int]] = [set() for _ in nodes]
    writes: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        token = build.tensor(f"after {number}", bytes=0)
        writes[number].append(token)
        for later in node.mpi_node.succ_nodes:
            reads[place[later]].add(token)
        for buffer in node.get_outputs():
            known = buffer.mpi_buffer
            if not known.size_free:
                continue
            kind = "output" if buffer.get_name() in outputs else "activation"
            tensor = build.tensor(buffer.get_name(), bytes=known.size_free, kind=kind)
            opener = number
            if not known.size_alloc:  # one of several results of an earlier kernel, which made it
                opener = maker[buffer.node.inputs[0].get_name()]
                reads[number].add(tensor)
            writes[opener].append(tensor)
            for later in known.succ_nodes:
                if place[later] != opener:
                    reads[place[later]].add(tensor)
    for input_name, buffer in given.items():
        tensor = build.tensor(input_name, bytes=buffer.mpi_buffer.size_free, kind="input")
        for later in buffer.mpi_buffer.succ_nodes:
            reads[place[later]].add(tensor)
    for number, node in enumerate(nodes):
        build.op(
            f"{number} {node.get_name()[:40]}", "kernel", reads=sorted(reads[number]), writes=writes[number]
        )
    return build.build()


def compare(model: str, *, training: bool, seconds: float) -> list[dict[str, Any]]:
    """Rows of all orders of one graph."""
    graph = captured(model, training=training)
    problem = make_as(PeakOrder, graph.program)
    rows: list[dict[str, Any]] = []
    for name, order in graph.orders.items():
        peak = problem.evaluate(order)
        if peak != graph.estimates[name]:
            raise SystemExit(
                f"error: {graph.program.name}, {name}: we count {peak}, Inductor {graph.estimates[name]}"
            )
        rows.append({"case": graph.program.name, "solver": name, "value": peak, "kernels": problem.nodes})
    # Inductor keeps the best of the four.
    rows.append(rows[0] | {"solver": "inductor", "value": min(row["value"] for row in rows)})
    found = solve_checked(problem, "auto", Budget(seconds=seconds))
    solution = found.solution
    return [
        *rows,
        rows[0]
        | {
            "solver": "auto",
            "value": int(solution.value or -1),
            "bound": int(solution.bound.value),
            "status": str(solution.status),
            "seconds": round(found.seconds, 3),
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each graph")
    arguments = parser.parse_args()
    rows = []
    for model in MODELS:
        for training in (False, True):
            rows += compare(model, training=training, seconds=arguments.seconds)
            print(
                *(f"{row['solver']} {row['value']:,}" for row in rows if row["case"] == rows[-1]["case"]),
                sep=", ",
                flush=True,
            )
    head = {
        "command": f"python benchmarks/inductor_order.py --seconds {arguments.seconds:g}",
        "unit": "bytes",
        "versions": versions() | {"torch": torch.__version__},
        "host": host(),
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    RESULTS.write_text(
        json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
