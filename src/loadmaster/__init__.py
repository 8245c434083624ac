"""Loadmaster: which memory every tensor lives in, when it moves, what runs where and in which order.

Program × Machine ──Problem──▶ Solver ──▶ Plan ──check──▶ simulate ──▶ Timeline

    import loadmaster as lm

The names here are all that most users need (docs/api.md lists them). Each is imported when it is
first used, and none needs more than NumPy until a model or a solver does.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.allocation.auto import allocate
    from loadmaster.allocation.buffers_csv import read_buffers
    from loadmaster.allocation.problem import Allocation
    from loadmaster.errors import BadMachine, BadPlan, BadProgram, LoadmasterError
    from loadmaster.export.plans import export_plan
    from loadmaster.machine import Machine, load_machine
    from loadmaster.plan import Occupancy, Plan, load_plan, load_planned, save_plan
    from loadmaster.plan.check import check
    from loadmaster.planner import Result, make_problem, plan
    from loadmaster.planner.fitting import Fits, fits
    from loadmaster.program import Builder, Program
    from loadmaster.program.importers import ImportOptions
    from loadmaster.program.models import load_model
    from loadmaster.report import write_report
    from loadmaster.runs.session import solve
    from loadmaster.search.pins import Pins, parse_pins
    from loadmaster.search.problem import Problem
    from loadmaster.search.registry import make_solver, solver_names
    from loadmaster.search.solver import Budget, Meter, Observer, Solution, Solver
    from loadmaster.simulate import Timeline
    from loadmaster.simulate.needs import needs
    from loadmaster.simulate.simulator import simulate
    from loadmaster.torch_fit import fit

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "BadMachine",
    "BadPlan",
    "BadProgram",
    "Budget",
    "Builder",
    "Fits",
    "ImportOptions",
    "LoadmasterError",
    "Machine",
    "Meter",
    "Observer",
    "Occupancy",
    "Pins",
    "Plan",
    "Problem",
    "Program",
    "Result",
    "Solution",
    "Solver",
    "Timeline",
    "allocate",
    "check",
    "export_plan",
    "fit",
    "fits",
    "load_machine",
    "load_model",
    "load_plan",
    "load_planned",
    "make_problem",
    "make_solver",
    "needs",
    "parse_pins",
    "plan",
    "read_buffers",
    "save_plan",
    "simulate",
    "solve",
    "solver_names",
    "write_report",
]

_HOME = {
    "Allocation": "allocation.problem",
    "BadMachine": "errors",
    "BadPlan": "errors",
    "BadProgram": "errors",
    "Budget": "search.solver",
    "Builder": "program",
    "Fits": "planner.fitting",
    "ImportOptions": "program.importers",
    "LoadmasterError": "errors",
    "Machine": "machine",
    "Meter": "search.solver",
    "Observer": "search.solver",
    "Occupancy": "plan",
    "Pins": "search.pins",
    "Plan": "plan",
    "Problem": "search.problem",
    "Program": "program",
    "Result": "planner",
    "Solution": "search.solver",
    "Solver": "search.solver",
    "Timeline": "simulate",
    "allocate": "allocation.auto",
    "check": "plan.check",
    "export_plan": "export.plans",
    "fit": "torch_fit",
    "fits": "planner.fitting",
    "load_machine": "machine",
    "load_model": "program.models",
    "load_plan": "plan",
    "load_planned": "plan",
    "make_problem": "planner",
    "make_solver": "search.registry",
    "needs": "simulate.needs",
    "parse_pins": "search.pins",
    "plan": "planner",
    "read_buffers": "allocation.buffers_csv",
    "save_plan": "plan",
    "simulate": "simulate.simulator",
    "solve": "runs.session",
    "solver_names": "search.registry",
    "write_report": "report",
}
"""Public name -> its module."""


class CallablePackage(ModuleType):
    """A package that shares its name with a function of the library: `lm.plan(...)` plans, and `loadmaster.plan`
    is where Plan lives."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(*args, **options)

    @property
    def _function(self) -> Any:
        return find(self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Any:
        """The function's, for `inspect.signature` and editors."""
        return signature(self._function)


def find(name: str) -> Any:
    """What a public name stands for; its module is imported."""
    return getattr(import_module(f"loadmaster.{_HOME[name]}"), name)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'loadmaster' has no attribute '{name}'")
    if name in ("plan", "simulate"):
        return import_module(f"loadmaster.{name}")  # a `CallablePackage`, which importing sets
    found = find(name)
    globals()[name] = found  # looked up once
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
