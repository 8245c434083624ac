"""Names of solvers: what a user types, what runs are recorded by, and what there was."""

from __future__ import annotations

import inspect

import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.search.registry import (
    UnknownSolver,
    kinds,
    kinds_with,
    make_labelled,
    make_solver,
    solver_label,
    solver_labels,
    solver_names,
    solver_variants,
)
from loadmaster.search.solver import BadOption


def test_every_label_is_the_name_of_its_solver() -> None:
    for kind in kinds():
        for label in solver_labels(kind):
            assert make_labelled(kind, label).name == label, (kind, label)


def test_a_variant_is_an_option() -> None:
    assert make_solver("graph", "heuristic", {"rule": "m-etf", "variants": 2}).name == "m-etf"
    assert make_solver("graph", "heuristic").name == "heft"
    assert make_solver("malloc-game", "search", {"method": "climb"}).name == "climb"
    with pytest.raises(UnknownSolver, match=r"no rule 'hefty' \(did you mean 'heft'\?\)"):
        make_solver("graph", "heuristic", {"rule": "hefty"})
    with pytest.raises(UnknownSolver, match="no option 'rules'"):
        make_solver("order", "heuristic", {"rules": "depth-first"})
    assert make_solver("mapping", "egrl", {"profile": "ea", "population": 8}).name == "ea"
    with pytest.raises(UnknownSolver, match="no option 'variant' any more") as refused:
        make_solver("mapping", "egrl", {"variant": "ea"})
    assert refused.value.remedy == "use --set profile=ea"
    with pytest.raises(LoadmasterError, match=r"no option 'batches' \(did you mean 'batch'\?\)"):
        make_solver("malloc-game", "muzero", {"batches": 4})


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        ("graph", "heft", "use --solver heuristic --set rule=heft"),
        ("malloc-game", "es", "use --solver search --set method=es-moves"),
        ("mapping", "ea", "use --solver egrl --set profile=ea"),
        ("mapping", "annealing", "use --solver search --set method=annealing"),
        ("mapping", "random", "use --solver search --set method=random"),
        ("malloc-game", "anneal", "use --solver search --set method=anneal-moves"),
        ("malloc-game", "rounded", "use --solver exact --set method=rounded"),
        ("offload", "evolution", "use --solver search --set method=evolution"),
        ("graph", "go+anneal", "use --solver auto"),
        ("graph", "brkga", "use --solver search --set method=brkga"),
        ("order", "peak-cut", "use --solver exact --set method=peak-cut"),
        ("order", "random-best", "use --solver search --set method=random-best"),
        ("offload", "game", "use --solver auto"),
        ("allocation", "random", "use --solver auto"),
        ("allocation", "omnimalloc", "use --solver exact"),
    ],
)
def test_old_names_are_refused_with_the_new_spelling(kind: str, name: str, remedy: str) -> None:
    assert name not in solver_names(kind)
    with pytest.raises(UnknownSolver) as refused:
        make_solver(kind, name)
    assert refused.value.remedy == remedy


def test_kinds_follow_from_names() -> None:
    assert kinds_with("es") == ["malloc-game"] and kinds_with("msa") == ["malloc-game", "offload"]
    assert kinds_with("egrl") == ["mapping"] and kinds_with("game") == ["offload"]
    assert kinds_with("auto") == kinds() and kinds_with("nobody") == []


def test_labels_follow_from_names_and_options() -> None:
    assert solver_label("order", "search", {"method": "peak-beam", "width": 4}) == "peak-beam"
    assert solver_label("order", "exact") == "peak-dp" and solver_label("order", "auto") == "auto"
    assert solver_label("order", "peak-beam") == "peak-beam"  # as a recorded run names it


def test_there_are_about_forty() -> None:
    assert sum(len(solver_names(kind)) for kind in kinds()) <= 40


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "allocation"])
def test_a_solver_records_what_makes_it_again(kind: str) -> None:
    for label in solver_labels(kind):
        solver = make_labelled(kind, label)
        takes = inspect.signature(type(solver).__init__).parameters.values()
        named = {each.name for each in takes if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
        if label != "auto":
            assert named - {"self", "threads"} <= set(solver.options), label


def test_no_solver_takes_the_option_that_chooses_it() -> None:
    for kind in kinds():
        for name in solver_names(kind):
            variants = solver_variants(kind, name)
            for label in () if variants is None else variants.makers:
                assert variants is not None and variants.option not in make_labelled(kind, label).options


@pytest.mark.parametrize("kind", kinds())
def test_options_of_a_wrong_type_are_refused_before_anything_runs(kind: str) -> None:
    for label in solver_labels(kind):
        for option in make_labelled(kind, label).options:
            for value in (object(), float("nan"), -1, 10**30):
                with pytest.raises((LoadmasterError, ValueError)):
                    make_labelled(kind, label, {option: value})


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("look_ahead", "no", "give true or false"),
        ("changes", 3, "give true or false"),
        ("threads", "x", "give a whole number"),
        ("threads", 10**6, "give a whole number from 0 to 4096"),
        ("screen", 2.5, "give a whole number"),
        ("batch", float("nan"), "give a whole number"),
        ("portfolio", -1, "give a whole number from 0 to 1000000000"),
        ("screen", -1, "give a whole number from 1 to 1000000000"),
        ("screen", 0, "give a whole number from 1 to 1000000000"),
        ("batch", 0, "give a whole number from 1 to 1000000000"),
    ],
)
def test_a_refused_option_says_what_it_takes(option: str, value: object, remedy: str) -> None:
    with pytest.raises(BadOption, match=f"solver 'go' can't work with {option} = ") as refused:
        make_solver("graph", "go", {option: value})
    assert remedy in str(refused.value.remedy) and refused.value.exit_code == 2
