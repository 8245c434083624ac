"""Solvers by name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from loadmaster.errors import BadProgram, LoadmasterError, nearest
from loadmaster.machine.presets import read_machine
from loadmaster.program.storage import load
from loadmaster.search.problem import COST_MODEL, Problem, keys
from loadmaster.search.solver import Solver


class UnknownSolver(LoadmasterError):
    """There is no solver of that name."""


_MAKERS: dict[str, dict[str, str]] = {
    "allocation": {
        "auto": "loadmaster.allocation.auto:make_auto",
        "exact": "loadmaster.allocation.exact:Exact",
        "large": "loadmaster.allocation.heuristics:Large",
        "first-fit": "loadmaster.allocation.heuristics:SizeFirstFit",
        "xla-best-fit": "loadmaster.allocation.heuristics:XlaBestFit",
        "tvm-hill-climb": "loadmaster.allocation.heuristics:TvmHillClimb",
        "vela-hill-climb": "loadmaster.allocation.heuristics:VelaHillClimb",
        "anneal": "loadmaster.allocation.search:Anneal",
        "random": "loadmaster.allocation.search:RandomOrders",
        "cp-sat": "loadmaster.allocation.exact:CpSat",
        "omnimalloc": "loadmaster.allocation.exact:OmniMalloc",
    },
    "mapping": {
        "auto": "loadmaster.mapping.auto:make_auto",
        "egrl": "loadmaster.mapping.egrl.agent:Egrl",
        "ea": "loadmaster.mapping.egrl.agent:EvolutionAlone",
        "pg": "loadmaster.mapping.egrl.agent:GradientAlone",
        "exact": "loadmaster.mapping.exact:Exact",
        "all-slowest": "loadmaster.mapping.heuristics:AllSlowest",
        "role-split": "loadmaster.mapping.heuristics:RoleSplit",
        "compiler": "loadmaster.mapping.heuristics:Compiler",
        "density": "loadmaster.mapping.heuristics:Density",
        "one-arena": "loadmaster.mapping.heuristics:OneArena",
        "greedy-by-size": "loadmaster.mapping.heuristics:GreedyBySize",
        "greedy-dp": "loadmaster.mapping.search:GreedyDp",
        "random": "loadmaster.mapping.search:RandomMaps",
        "annealing": "loadmaster.mapping.search:Annealing",
        "ageing-evolution": "loadmaster.mapping.search:AgeingEvolution",
    },
    "malloc-game": {
        "auto": "loadmaster.malloc_game.auto:make_auto",
        "msa": "loadmaster.malloc_game.msa:Msa",
        "msa-order": "loadmaster.malloc_game.msa:MsaOrder",
        "production": "loadmaster.malloc_game.heuristics:Production",
        "all-slow": "loadmaster.malloc_game.heuristics:AllSlow",
        "greedy-order": "loadmaster.malloc_game.heuristics:GreedyOrder",
        "greedy-density": "loadmaster.malloc_game.heuristics:GreedyDensity",
        "es-moves": "loadmaster.malloc_game.search:EsMoves",
        "anneal-moves": "loadmaster.malloc_game.search:AnnealMoves",
        "climb": "loadmaster.malloc_game.search:Climb",
        "random-best": "loadmaster.malloc_game.search:RandomBest",
        "muzero": "loadmaster.malloc_game.muzero.agent:MuZero",
        "muzero-prod": "loadmaster.malloc_game.muzero.agent:MuZeroProd",
        "policy-only": "loadmaster.malloc_game.muzero.agent:PolicyOnly",
        "cp-sat": "loadmaster.malloc_game.exact:CpSat",
        "exhaustive": "loadmaster.malloc_game.exact:Exhaustive",
        "rounded": "loadmaster.malloc_game.exact:Rounded",
    },
    "offload": {
        "auto": "loadmaster.offload.auto:make_auto",
        "all-resident": "loadmaster.offload.heuristics:AllResident",
        "layerwise": "loadmaster.offload.heuristics:Layerwise",
        "prefetch": "loadmaster.offload.heuristics:Prefetch",
        "belady": "loadmaster.offload.heuristics:Belady",
        "static": "loadmaster.offload.heuristics:Static",
        "msa": "loadmaster.offload.other_problems:FromMsa",
        "game": "loadmaster.offload.game:Played",
        "muzero": "loadmaster.offload.game:MuZeroPlayed",
        "egrl": "loadmaster.offload.other_problems:FromMapping",
        "spread": "loadmaster.offload.streaming:Spread",
        "stream": "loadmaster.offload.streaming:Stream",
        "anneal": "loadmaster.offload.search:Anneal",
        "evolution": "loadmaster.offload.search:Evolution",
        "refined": "loadmaster.offload.refined:Refined",
    },
    "graph": {
        "classical": "loadmaster.graph.pipeline:Classical",
        "expert": "loadmaster.graph.placers:Expert",
        "single": "loadmaster.graph.placers:Single",
        "round-robin": "loadmaster.graph.placers:RoundRobin",
        "metis": "loadmaster.graph.list_placers:Metis",
        "m-topo": "loadmaster.graph.placers:MTopo",
        "m-etf": "loadmaster.graph.list_placers:MEtf",
        "m-sct": "loadmaster.graph.list_placers:MSct",
        "heft": "loadmaster.graph.list_placers:Heft",
        "critical-path": "loadmaster.graph.placers:CriticalPath",
        "fifo": "loadmaster.graph.placers:FirstCome",
        "fusion-none": "loadmaster.graph.placers:NoFusion",
        "fusion-fixed": "loadmaster.graph.placers:FixedFusion",
        "cost-model": "loadmaster.graph.placers:CostModel",
        "auto": "loadmaster.graph.auto:make_auto",
        "go": "loadmaster.graph.go.agent:Go",
        "random-best": "loadmaster.graph.search:RandomBest",
        "anneal": "loadmaster.graph.anneal:Anneal",
        "brkga": "loadmaster.graph.search:Brkga",
        "go+anneal": "loadmaster.graph.go.search:GoAnneal",
        "go+brkga": "loadmaster.graph.go.search:GoBrkga",
        "cp-sat": "loadmaster.graph.exact:CpSat",
    },
    "order": {
        "auto": "loadmaster.order.auto:make_auto",
        "peak-cut": "loadmaster.order.exact:PeakCut",
        "peak-dp": "loadmaster.order.exact:PeakDp",
        "peak-beam": "loadmaster.order.search:PeakBeam",
        "peak-greedy": "loadmaster.order.heuristics:PeakGreedy",
        "depth-first": "loadmaster.order.heuristics:DepthFirst",
        "reverse-post-order": "loadmaster.order.heuristics:ReversePostOrder",
        "program-order": "loadmaster.order.heuristics:ProgramOrder",
        "random-best": "loadmaster.order.search:RandomBest",
        "anneal": "loadmaster.order.search:Anneal",
    },
}
"""Problem kind -> name -> 'module:class'; modules are imported when used."""
_SHORT = {"malloc-game": {"greedy-moves": "greedy-order", "es": "es-moves", "anneal": "anneal-moves"}}
"""Problem kind -> shorter name -> name."""


def solver_names(kind: str) -> list[str]:
    """The solvers of one kind of problem."""
    return list(_MAKERS.get(kind, {}))


def kinds() -> list[str]:
    """The kinds of problems that have solvers."""
    return list(_MAKERS)


def kinds_with(name: str) -> list[str]:
    """The kinds of problems that a solver of this name can solve."""
    return [kind for kind, known in _MAKERS.items() if name in known or name in _SHORT.get(kind, {})]


def make_solver(kind: str, name: str, options: Mapping[str, Any] | None = None) -> Solver:
    """A solver by name; `options` are keyword arguments of its class."""
    known = _MAKERS.get(kind, {})
    name = _SHORT.get(kind, {}).get(name, name)
    if name not in known:
        raise UnknownSolver(
            f"there is no solver '{name}' for {kind}{nearest(name, tuple(known))}",
            object=name,
            remedy=f"use one of {', '.join(known)}",
        )
    module, _, attribute = known[name].partition(":")
    maker: Callable[..., Solver] = getattr(import_module(module), attribute)
    parameters = inspect.signature(maker).parameters
    takes = [name for name in parameters if name not in ("args", "kwargs")]
    checks_itself = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    for option in options or {}:
        if option not in takes and not checks_itself:
            raise UnknownSolver(
                f"solver '{name}' has no option '{option}'{nearest(option, takes)}",
                object=option,
                remedy=f"use {', '.join(takes)}" if takes else "it has none",
            )
    return maker(**(options or {}))


# ----------------------------------------------------------------------------
# Problems by kind: `load_problem(folder)` makes the problem of a run folder again.

KINDS: dict[str, str] = {
    "allocation": "loadmaster.allocation.problem:Allocation",
    "mapping": "loadmaster.mapping.problem:Mapping",
    "malloc-game": "loadmaster.malloc_game.problem:MallocGame",
    "offload": "loadmaster.offload.problem:Offload",
    "order": "loadmaster.order.problem:PeakOrder",
    "graph": "loadmaster.graph.problem:GraphOptimization",
}
"""Kind -> 'module:class'; the class has a method `load(folder)`, the inverse of `save(folder)`."""


def load_problem(folder: Path) -> Problem:
    """The problem that a run was about.

    Raises if the files in the folder are not those that its run.json speaks of. The version of
    the cost model may differ: whoever compares values has to say so.
    """
    for path in folder.iterdir():
        if path.is_symlink():
            raise _bad(path, "is a link", "put the file itself there")
    about = folder / "run.json"
    try:
        claimed = json.loads(about.read_bytes())["keys"]
        kind = str(claimed["problem"]["kind"])
    except FileNotFoundError:
        raise _bad(folder, "is no run: it has no run.json", "see 'loadmaster runs'") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _bad(about, "does not say what was solved", "restore it from a copy") from None
    if kind not in KINDS:
        raise _bad(
            about, f"is about the unknown kind of problem '{kind}'", f"this version knows {', '.join(KINDS)}"
        )
    module, _, name = KINDS[kind].partition(":")
    # Some problems are made from other files; these two are claims of the run all the same.
    stored = {
        "program": load(folder / "program.npz").hash,
        "machine": read_machine(folder / "machine.toml").hash,
    }
    _compare(folder, {key: claimed.get(key) for key in stored}, stored)
    try:
        problem = cast(Problem, getattr(import_module(module), name).load(folder))
        found = json.loads(json.dumps(keys(problem), default=str))
    except LoadmasterError:
        raise
    except FileNotFoundError as error:
        missing = Path(str(error.filename))
        raise _bad(missing, "is not there", "give the whole folder of a run") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        RecursionError,
        OverflowError,
        AttributeError,
    ) as error:
        raise _bad(folder, f"holds no {kind} problem: {error}", "restore it from a copy") from None
    _compare(folder, claimed, {**found, "cost_model": claimed.get("cost_model", COST_MODEL)})
    return problem


def _compare(folder: Path, claimed: dict[str, Any], found: dict[str, Any]) -> None:
    for key in dict.fromkeys([*claimed, *found]):
        if claimed.get(key) != found.get(key):
            raise _bad(folder, f"holds another {key} than its run.json says", "restore its files from a copy")


def _bad(path: Path, what: str, remedy: str) -> BadProgram:
    return BadProgram(f"'{path}' {what}", object=str(path), remedy=remedy)
