"""Solvers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from loadmaster.errors import LoadmasterError, nearest
from loadmaster.solvers.solver import Solver


class UnknownSolver(LoadmasterError):
    """There is no solver of that name."""


_MAKERS: dict[str, dict[str, str]] = {
    "allocation": {
        "auto": "loadmaster.solvers.allocate:Auto",
        "exact": "loadmaster.solvers.exact.allocation:Exact",
        "large": "loadmaster.solvers.heuristic.allocation:Large",
        "first-fit": "loadmaster.solvers.heuristic.allocation:SizeFirstFit",
        "xla-best-fit": "loadmaster.solvers.heuristic.allocation:XlaBestFit",
        "tvm-hill-climb": "loadmaster.solvers.heuristic.allocation:TvmHillClimb",
        "vela-hill-climb": "loadmaster.solvers.heuristic.allocation:VelaHillClimb",
        "anneal": "loadmaster.solvers.search.allocation:Anneal",
        "random": "loadmaster.solvers.search.allocation:RandomOrders",
        "cp-sat": "loadmaster.solvers.exact.cp_sat:CpSat",
        "omnimalloc": "loadmaster.solvers.exact.omnimalloc:OmniMalloc",
    },
    "mapping": {
        "auto": "loadmaster.solvers.mapping:Auto",
        "egrl": "loadmaster.solvers.egrl.agent:Egrl",
        "ea": "loadmaster.solvers.egrl.agent:EvolutionAlone",
        "pg": "loadmaster.solvers.egrl.agent:GradientAlone",
        "exact": "loadmaster.solvers.exact.mapping:Exact",
        "all-slowest": "loadmaster.solvers.heuristic.mapping:AllSlowest",
        "role-split": "loadmaster.solvers.heuristic.mapping:RoleSplit",
        "compiler": "loadmaster.solvers.heuristic.mapping:Compiler",
        "density": "loadmaster.solvers.heuristic.mapping:Density",
        "one-arena": "loadmaster.solvers.heuristic.mapping_firmware:OneArena",
        "greedy-by-size": "loadmaster.solvers.heuristic.mapping_firmware:GreedyBySize",
        "greedy-dp": "loadmaster.solvers.search.mapping:GreedyDp",
        "random": "loadmaster.solvers.search.mapping:RandomMaps",
        "annealing": "loadmaster.solvers.search.mapping:Annealing",
        "ageing-evolution": "loadmaster.solvers.search.mapping:AgeingEvolution",
    },
    "malloc-game": {
        "auto": "loadmaster.solvers.game:Auto",
        "msa": "loadmaster.solvers.heuristic.msa:Msa",
        "msa-order": "loadmaster.solvers.search.msa_order:MsaOrder",
        "production": "loadmaster.solvers.game:Production",
        "all-slow": "loadmaster.solvers.heuristic.game:AllSlow",
        "greedy-order": "loadmaster.solvers.heuristic.game:GreedyOrder",
        "greedy-density": "loadmaster.solvers.heuristic.game:GreedyDensity",
        "es-moves": "loadmaster.solvers.search.game:EsMoves",
        "anneal-moves": "loadmaster.solvers.search.game:AnnealMoves",
        "climb": "loadmaster.solvers.search.game_climb:Climb",
        "random-best": "loadmaster.solvers.search.game:RandomBest",
        "muzero": "loadmaster.solvers.muzero.agent:MuZero",
        "muzero-prod": "loadmaster.solvers.muzero.agent:MuZeroProd",
        "policy-only": "loadmaster.solvers.muzero.agent:PolicyOnly",
        "cp-sat": "loadmaster.solvers.exact.game_cp_sat:CpSat",
        "exhaustive": "loadmaster.solvers.exact.game_exhaustive:Exhaustive",
        "rounded": "loadmaster.solvers.exact.game_rounded:Rounded",
    },
    "offload": {
        "auto": "loadmaster.solvers.offload.auto:Auto",
        "all-resident": "loadmaster.solvers.offload.simple:AllResident",
        "layerwise": "loadmaster.solvers.offload.simple:Layerwise",
        "prefetch": "loadmaster.solvers.offload.simple:Prefetch",
        "belady": "loadmaster.solvers.offload.simple:Belady",
        "static": "loadmaster.solvers.offload.simple:Static",
        "msa": "loadmaster.solvers.offload.others:FromMsa",
        "game": "loadmaster.solvers.offload.game:Played",
        "muzero": "loadmaster.solvers.offload.game:MuZeroPlayed",
        "egrl": "loadmaster.solvers.offload.others:FromMapping",
        "spread": "loadmaster.solvers.offload.spread:Spread",
        "stream": "loadmaster.solvers.offload.stream:Stream",
        "anneal": "loadmaster.solvers.offload.search:Anneal",
        "evolution": "loadmaster.solvers.offload.search:Evolution",
        "refined": "loadmaster.solvers.offload.refined:Refined",
    },
    "graph": {
        "classical": "loadmaster.solvers.heuristic.graph_pipeline:Classical",
        "expert": "loadmaster.solvers.heuristic.graph_simple:Expert",
        "single": "loadmaster.solvers.heuristic.graph_simple:Single",
        "round-robin": "loadmaster.solvers.heuristic.graph_simple:RoundRobin",
        "metis": "loadmaster.solvers.heuristic.graph_metis:Metis",
        "m-topo": "loadmaster.solvers.heuristic.graph_simple:MTopo",
        "m-etf": "loadmaster.solvers.heuristic.graph_lists:MEtf",
        "m-sct": "loadmaster.solvers.heuristic.graph_lists:MSct",
        "heft": "loadmaster.solvers.heuristic.graph_lists:Heft",
        "critical-path": "loadmaster.solvers.heuristic.graph_simple:CriticalPath",
        "fifo": "loadmaster.solvers.heuristic.graph_simple:FirstCome",
        "fusion-none": "loadmaster.solvers.heuristic.graph_simple:NoFusion",
        "fusion-fixed": "loadmaster.solvers.heuristic.graph_simple:FixedFusion",
        "cost-model": "loadmaster.solvers.heuristic.graph_simple:CostModel",
        "auto": "loadmaster.solvers.graph:Auto",
        "hdp": "loadmaster.solvers.hdp.agent:Hdp",
        "go": "loadmaster.solvers.go.agent:Go",
        "random-best": "loadmaster.solvers.search.graph_brkga:RandomBest",
        "anneal": "loadmaster.solvers.search.graph_anneal:Anneal",
        "brkga": "loadmaster.solvers.search.graph_brkga:Brkga",
        "go+anneal": "loadmaster.solvers.go.search:GoAnneal",
        "go+brkga": "loadmaster.solvers.go.search:GoBrkga",
        "cp-sat": "loadmaster.solvers.exact.graph_cp_sat:CpSat",
    },
    "order": {
        "auto": "loadmaster.solvers.order:Auto",
        "peak-cut": "loadmaster.solvers.exact.order_cut:PeakCut",
        "peak-dp": "loadmaster.solvers.exact.order:PeakDp",
        "peak-beam": "loadmaster.solvers.search.order:PeakBeam",
        "peak-greedy": "loadmaster.solvers.heuristic.order:PeakGreedy",
        "depth-first": "loadmaster.solvers.heuristic.order:DepthFirst",
        "reverse-post-order": "loadmaster.solvers.heuristic.order:ReversePostOrder",
        "program-order": "loadmaster.solvers.heuristic.order:ProgramOrder",
        "random-best": "loadmaster.solvers.search.order:RandomBest",
        "anneal": "loadmaster.solvers.search.order:Anneal",
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
