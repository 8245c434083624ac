"""What GO was trained on: the split that the benchmarks know, and nothing that is held out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.graph.go.cases import SPLITS, cases_of
from loadmaster.learn.policies import read_policy
from loadmaster.program.zoo.random_graphs import TEST_FAMILIES, TRAINING_FAMILIES

SPLIT = tomllib.loads(
    (Path(__file__).parents[3] / "benchmarks" / "splits" / "go.toml").read_text(encoding="utf-8")
)


def test_the_splits_are_those_of_the_benchmarks() -> None:
    for name, (workloads, first) in SPLITS.items():
        assert list(workloads) == SPLIT[name]["workloads"]
        assert first == SPLIT[name]["seeds"]["first"]
        assert list(TRAINING_FAMILIES) == SPLIT[name]["families"]


def test_cases_keep_to_their_split() -> None:
    for name in SPLITS:
        seeds = SPLIT[name]["seeds"]
        cases = cases_of(name, synthetic=3)
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            family, _, seed = case.graph.partition(":")
            if seed:
                assert family in SPLIT[name]["families"]
                assert seeds["first"] <= int(seed) <= seeds["last"]
            else:
                assert case.graph in SPLIT[name]["workloads"]
    with pytest.raises(LoadmasterError, match="no split 'held_out_family'"):
        cases_of("held_out_family")


def test_the_packaged_policy_saw_nothing_that_is_held_out() -> None:
    _, about = read_policy("pretrained:go", "go")
    assert about["split"] == "train"
    held = [
        *SPLIT["held_out_larger"]["workloads"],
        *SPLIT["held_out_family"]["workloads"],
        *SPLIT["validation"]["workloads"],
    ]
    graphs = {name.partition("@")[0] for name in about["cases"]}
    assert graphs.isdisjoint(held)
    assert not any(graph.startswith(tuple(TEST_FAMILIES)) for graph in graphs)
    for graph in graphs - set(SPLIT["train"]["workloads"]):
        family, _, seed = graph.rpartition("-")
        assert family in TRAINING_FAMILIES
        assert int(seed) <= SPLIT["train"]["seeds"]["last"]
