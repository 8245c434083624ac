"""Solvers of the mapping suite by the label that their rows have: EGRL's variants beside all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.suites.mapping_rivals import RIVALS
from loadmaster.mapping.egrl.search import OPERATORS, UNTRAINED, Settings
from loadmaster.mapping.search import WHITE_BOX
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Solver

EGRL = ("egrl", "egrl-untrained", "egrl-strict", "egrl-strict-untrained")
SCORES = tuple(RIVALS)
"""Plain searches on EGRL's own action space."""
MAPS = ("annealing", "ageing-evolution", "greedy-dp", "random")
"""Black boxes that name a memory for every tensor."""
PAPER = ("paper", "ea", "pg")
"""EGRL as published, and its parts; they need JAX."""
BLACK = ("egrl", "egrl-strict", "probe", *SCORES, *MAPS)
WHITE = ("all-slowest", "role-split", "compiler", "density", "exact")
SCHEDULED = ("probe", "scores-annealing", "annealing")
"""What they do first depends on how many evaluations they have."""
ONCE = (*WHITE, "greedy-dp")
"""No seed changes what they find."""


def variants() -> dict[str, dict[str, Any]]:
    """Label -> options of EGRL: what it knows, each of its operators alone, each added to those that it has by
    default, and all of them. Of two labels for the same settings the first stays."""
    default = Settings()
    found: dict[str, dict[str, Any]] = {
        "egrl": {},
        "egrl-untrained": {"init": UNTRAINED},
        "egrl-strict": {"view": "strict"},
        "egrl-strict-untrained": {"view": "strict", "init": UNTRAINED},
    }
    for name in OPERATORS:
        found[f"egrl-only-{name}"] = {other: float(other == name) for other in OPERATORS}
    for name in OPERATORS:
        if not getattr(default, name):
            found[f"egrl-plus-{name}"] = {name: 1.0}
    whole = dict.fromkeys(OPERATORS, 1.0)
    found["egrl-whole"] = whole
    found["egrl-whole-fixed-shares"] = {**whole, "adaptive": not default.adaptive}
    distinct: dict[str, dict[str, Any]] = {}
    for label, options in found.items():
        if all(_settings(options) != _settings(other) for other in distinct.values()):
            distinct[label] = options
    return distinct


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    return asdict(Settings(**options))


VARIANTS = variants()
PIECES = tuple(label for label in VARIANTS if label not in EGRL)
"""Variants that show what EGRL's parts are worth."""


def make_cell_solver(label: str, options: Mapping[str, Any] | None = None) -> Solver:
    """The solver of a label, made anew; `options` beside those that the label stands for."""
    if label in RIVALS:
        return RIVALS[label]()
    if label in VARIANTS:
        return make_labelled("mapping", "egrl", {**VARIANTS[label], **(options or {})})
    return make_labelled("mapping", label, options)


def is_white(label: str) -> bool:
    """Whether it reads the machine's times: its rows have no evaluations."""
    return label in WHITE_BOX
