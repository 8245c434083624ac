"""Solvers by name, and the problem of a run folder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from loadmaster.errors import BadProgram, LoadmasterError, nearest
from loadmaster.machine.presets import read_machine
from loadmaster.program.storage import load
from loadmaster.search.problem import COST_MODEL, Problem, keys
from loadmaster.search.solver import Solver, check_option


class UnknownSolver(LoadmasterError):
    """There is no solver of that name."""


@dataclass(frozen=True)
class Variants:
    """Solvers that are one in the list: an option says which, by default the first."""

    option: str
    makers: Mapping[str, str]
    """Value of the option -> 'module:class'. It is also the solver's own name (`Solver.name`), by which runs
    and results are recorded."""

    @property
    def default(self) -> str:
        return next(iter(self.makers))


_MAKERS: dict[str, dict[str, str | Variants]] = {
    "allocation": {
        "auto": "allocation.auto:make_auto",
        "exact": "allocation.exact:Exact",
        "large": "allocation.heuristics:Large",
        "heuristic": Variants(
            "rule",
            {
                "first-fit": "allocation.heuristics:SizeFirstFit",
                "xla-best-fit": "allocation.heuristics:XlaBestFit",
                "tvm-hill-climb": "allocation.heuristics:TvmHillClimb",
                "vela-hill-climb": "allocation.heuristics:VelaHillClimb",
            },
        ),
        "cp-sat": "allocation.exact:CpSat",
    },
    "mapping": {
        "auto": "mapping.search:make_auto",
        "egrl": Variants(
            "profile",
            {
                "egrl": "mapping.egrl.search:Egrl",
                "paper": "mapping.egrl.paper:PaperEgrl",
                "ea": "mapping.egrl.paper:EvolutionAlone",
                "pg": "mapping.egrl.paper:GradientAlone",
            },
        ),
        "probe": "mapping.search:Probe",
        "exact": "mapping.exact:Exact",
        "density": "mapping.heuristics:Density",
        "heuristic": Variants(
            "rule",
            {
                "compiler": "mapping.heuristics:Compiler",
                "all-slowest": "mapping.heuristics:AllSlowest",
                "role-split": "mapping.heuristics:RoleSplit",
                "one-arena": "mapping.heuristics:OneArena",
                "greedy-by-size": "mapping.heuristics:GreedyBySize",
            },
        ),
        "search": Variants(
            "method",
            {
                "annealing": "mapping.search:Annealing",
                "ageing-evolution": "mapping.search:AgeingEvolution",
                "greedy-dp": "mapping.search:GreedyDp",
                "random": "mapping.search:RandomMaps",
            },
        ),
    },
    "malloc-game": {
        "auto": "malloc_game.search:make_auto",
        "msa": "malloc_game.msa:Msa",
        "msa-order": "malloc_game.msa:MsaOrder",
        "production": "malloc_game.heuristics:Production",
        "heuristic": Variants(
            "rule",
            {
                "greedy-order": "malloc_game.heuristics:GreedyOrder",
                "greedy-density": "malloc_game.heuristics:GreedyDensity",
                "all-slow": "malloc_game.heuristics:AllSlow",
            },
        ),
        "search": Variants(
            "method",
            {
                "es-moves": "malloc_game.search:EsMoves",
                "anneal-moves": "malloc_game.search:AnnealMoves",
                "climb": "malloc_game.search:Climb",
                "random-best": "malloc_game.search:RandomBest",
            },
        ),
        "muzero": Variants(
            "profile",
            {
                "muzero": "malloc_game.muzero.search:MuZero",
                "paper": "malloc_game.muzero.paper:PaperMuZero",
                "paper-prod": "malloc_game.muzero.paper:PaperProd",
                "policy-only": "malloc_game.muzero.paper:PolicyOnly",
            },
        ),
        "exact": Variants(
            "method",
            {
                "cp-sat": "malloc_game.exact:CpSat",
                "exhaustive": "malloc_game.exact:Exhaustive",
                "rounded": "malloc_game.exact:Rounded",
            },
        ),
    },
    "offload": {
        "auto": "offload.search:make_auto",
        "heuristic": Variants(
            "rule",
            {
                "prefetch": "offload.heuristics:Prefetch",
                "layerwise": "offload.heuristics:Layerwise",
                "all-resident": "offload.heuristics:AllResident",
                "belady": "offload.heuristics:Belady",
                "static": "offload.heuristics:Static",
                "stream": "offload.heuristics:Stream",
                "spread": "offload.heuristics:Spread",
            },
        ),
        "msa": "offload.heuristics:FromMsa",
        "search": Variants(
            "method", {"anneal": "offload.search:Anneal", "evolution": "offload.search:Evolution"}
        ),
        "refined": "offload.measured:Refined",
    },
    "graph": {
        "auto": "graph.search:make_auto",
        "classical": "graph.pipeline:Classical",
        "heuristic": Variants(
            "rule",
            {
                "heft": "graph.list_placers:Heft",
                "m-etf": "graph.list_placers:MEtf",
                "m-sct": "graph.list_placers:MSct",
                "m-topo": "graph.placers:MTopo",
                "metis": "graph.list_placers:Metis",
                "expert": "graph.placers:Expert",
                "single": "graph.placers:Single",
                "round-robin": "graph.placers:RoundRobin",
                "critical-path": "graph.placers:CriticalPath",
                "fifo": "graph.placers:FirstCome",
                "fusion-none": "graph.placers:NoFusion",
                "fusion-fixed": "graph.placers:FixedFusion",
                "cost-model": "graph.placers:CostModel",
            },
        ),
        "go": Variants("profile", {"go": "graph.go.search:Go", "paper": "graph.go.paper.agent:PaperGo"}),
        "search": Variants(
            "method",
            {
                "anneal": "graph.anneal:Anneal",
                "large-neighbourhood": "graph.large_neighbourhood:LargeNeighbourhood",
                "annealing-chains": "graph.anneal:AnnealingChains",
                "brkga": "graph.search:Brkga",
                "random-best": "graph.search:RandomBest",
            },
        ),
        "cp-sat": "graph.exact:CpSat",
    },
    "order": {
        "auto": "order.search:make_auto",
        "exact": Variants("method", {"peak-dp": "order.exact:PeakDp", "peak-cut": "order.exact:PeakCut"}),
        "heuristic": Variants(
            "rule",
            {
                "peak-greedy": "order.search:PeakGreedy",
                "depth-first": "order.search:DepthFirst",
                "reverse-post-order": "order.search:ReversePostOrder",
                "program-order": "order.search:ProgramOrder",
            },
        ),
        "search": Variants(
            "method",
            {
                "anneal": "order.search:Anneal",
                "peak-beam": "order.search:PeakBeam",
                "random-best": "order.search:RandomBest",
            },
        ),
    },
}
"""Problem kind -> name -> 'module:class' in this package; modules are imported when used."""
_GONE = {
    "allocation": {"anneal": "auto", "random": "auto", "omnimalloc": "exact"},
    "offload": {"egrl": "auto", "game": "auto", "muzero": "auto"},
    "graph": {"go+anneal": "auto", "go+brkga": "auto"},
}
"""Problem kind -> name that there was -> what to use in its place."""
_SHORT = {"malloc-game": {"greedy-moves": "greedy-order", "es": "es-moves", "anneal": "anneal-moves"}}
"""Problem kind -> shorter name that there was -> label."""


def solver_names(kind: str) -> list[str]:
    """List the solvers of one kind of problem.

    Args:
      kind: 'allocation', 'mapping', 'malloc-game', 'order', 'graph' or 'offload' (`problem.kind`).

    Returns:
      names for `make_solver`; none for a kind that there is not.
    """
    return list(_MAKERS.get(kind, {}))


def solver_labels(kind: str) -> list[str]:
    """The same with every variant by its own label, under which results are recorded."""
    labels: list[str] = []
    for name, maker in _MAKERS.get(kind, {}).items():
        labels += [name] if isinstance(maker, str) else maker.makers
    return labels


def solver_label(kind: str, name: str, options: Mapping[str, Any] | None = None) -> str:
    """The label of what `make_solver` makes of a name and its options."""
    maker = _MAKERS[kind].get(name)
    return str((options or {}).get(maker.option, maker.default)) if isinstance(maker, Variants) else name


def solver_variants(kind: str, name: str) -> Variants | None:
    """The option that chooses among a solver's variants, and its values."""
    maker = _MAKERS[kind][name]
    return None if isinstance(maker, str) else maker


def kinds() -> list[str]:
    """The kinds of problems that have solvers."""
    return list(_MAKERS)


def kinds_with(name: str) -> list[str]:
    """The kinds of problems that have a solver of this name; where none has, those that had one."""
    known = [kind for kind in _MAKERS if name in (*solver_names(kind), *solver_labels(kind))]
    return known or [kind for kind in _MAKERS if _replacement(kind, name) is not None]


def make_solver(kind: str, name: str, options: Mapping[str, Any] | None = None) -> Solver:
    """Make a solver by its name.

    Args:
      kind: of the problem.
      name: one of `solver_names(kind)`.
      options: keyword arguments of its class, and which variant where it has some.

    Returns:
      a solver for `solve`; a name or an option that it does not have is refused with the nearest one.
    """
    known, given = _MAKERS.get(kind, {}), dict(options or {})
    if name not in known:
        other = _replacement(kind, name)
        if other is not None:
            raise UnknownSolver(
                f"there is no solver '{name}' for {kind} any more", object=name, remedy=f"use {other}"
            )
        raise UnknownSolver(
            f"there is no solver '{name}' for {kind}{nearest(name, (*known, *solver_labels(kind)))}",
            object=name,
            remedy=f"use one of {', '.join(known)}",
        )
    maker = known[name]
    if isinstance(maker, str):
        return _make(name, maker, given)
    old = str(given.get("variant"))
    if maker.option != "variant" and old in maker.makers:
        raise UnknownSolver(
            f"solver '{name}' has no option 'variant' any more",
            object="variant",
            remedy=f"use --set {maker.option}={old}",
        )
    variant = str(given.pop(maker.option, maker.default))
    if variant not in maker.makers:
        raise UnknownSolver(
            f"solver '{name}' has no {maker.option} '{variant}'{nearest(variant, tuple(maker.makers))}",
            object=variant,
            remedy=f"use one of {', '.join(maker.makers)}",
        )
    return _make(name, maker.makers[variant], given, maker.option)


def make_labelled(kind: str, label: str, options: Mapping[str, Any] | None = None) -> Solver:
    """A solver by its own name, one of `solver_labels(kind)`: for schedules, baselines and recorded runs."""
    for name, maker in _MAKERS.get(kind, {}).items():
        if isinstance(maker, Variants) and label in maker.makers:
            return make_solver(kind, name, {**(options or {}), maker.option: label})
    return make_solver(kind, label, options)


def _replacement(kind: str, name: str) -> str | None:
    """What a user types in place of a name that there was."""
    label = _SHORT.get(kind, {}).get(name, name)
    for new, maker in _MAKERS[kind].items():
        if isinstance(maker, Variants) and label in maker.makers and name != new:
            return f"--solver {new} --set {maker.option}={label}"
    gone = _GONE.get(kind, {}).get(name)
    return None if gone is None else f"--solver {gone}"


def _make(name: str, where: str, options: dict[str, Any], variant: str | None = None) -> Solver:
    module, _, attribute = where.partition(":")
    maker: Callable[..., Solver] = getattr(import_module(f"loadmaster.{module}"), attribute)
    parameters = inspect.signature(maker).parameters
    takes = [each for each in parameters if each not in ("args", "kwargs")]
    takes += [] if variant is None else [variant]
    checks_itself = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in takes and not checks_itself:
            raise UnknownSolver(
                f"solver '{name}' has no option '{option}'{nearest(option, takes)}",
                object=option,
                remedy=f"use {', '.join(takes)}" if takes else "it has none",
            )
    for option, value in options.items():
        if option in parameters:
            least = getattr(maker, "least_options", {}).get(option, 0)
            check_option(name, option, value, str(parameters[option].annotation), least)
    return maker(**options)


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
