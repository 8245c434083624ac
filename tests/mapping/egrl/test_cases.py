"""Cases to train on: each the same from its number, and none with anything that is held out."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from loadmaster.machine import load_machine
from loadmaster.machine.presets import preset_names
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.egrl import cases
from loadmaster.mapping.egrl.cases import (
    DEVICES,
    FAMILIES,
    HELD_OUT_IMPORTERS,
    HELD_OUT_MACHINES,
    HELD_OUT_MODELS,
    LEAST_GAIN,
    MOST_ENTRIES,
    ZOO,
    make_case,
)
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.program.program import PERSISTENT
from loadmaster.program.zoo.random_nets import random_convnet, random_transformer, scale_batch
from loadmaster.search.problem import keys

SOME = range(24)


def test_a_case_is_made_from_its_number() -> None:
    assert [keys(make_case(number)) for number in SOME] == [keys(make_case(number)) for number in SOME]
    programs = {make_case(number).program.hash for number in SOME}
    machines = {make_case(number).machine.hash for number in SOME}
    assert len(programs) > len(SOME) * 0.8 and len(machines) == len(SOME)
    assert keys(make_case(0)) != keys(make_case(0, seed=1))


def test_in_a_case_there_is_something_to_gain() -> None:
    memories, ports = set(), set()
    for number in SOME:
        problem = make_case(number)
        assert 8 <= problem.live.sum() <= MOST_ENTRIES
        decoder = Decoder(problem)
        greedy = decoder.decode(np.zeros((1, *decoder.shape)))[0]
        best = min(problem.simulated_ps(greedy), problem.compiler_ps)
        assert problem.simulated_ps(problem.all_slowest()) >= (1 + LEAST_GAIN) * best
        assert best > problem.bound().value
        memories.add(len(problem.memories))
        ports.add(problem.machine.rules.ports)
    assert len(memories) >= 2 and ports == {"serial", "parallel"}


def held_out(name: str, what: tuple[str, ...]) -> bool:
    return any(each in name.lower() for each in what)


def test_no_list_names_what_is_held_out() -> None:
    assert not [name for name in ZOO if held_out(name, HELD_OUT_MODELS)]
    assert not [name for name in DEVICES if held_out(name, HELD_OUT_MACHINES)]
    assert not [name for name in (*ZOO, *FAMILIES) if held_out(name, HELD_OUT_IMPORTERS)]
    # What is held out exists: a name that nothing has would hold nothing out.
    for family in HELD_OUT_MACHINES:
        assert [name for name in preset_names() if family in name]


def test_no_case_is_made_of_what_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, set[str]] = {"load_workload": set(), "load_machine": set(), "synthetic_graph": set()}
    for function, names in used.items():
        real = getattr(cases, function)

        def spied(name: str, *rest: object, real: object = real, names: set[str] = names) -> object:
            names.add(name)
            return real(name, *rest)  # type: ignore[operator]

        monkeypatch.setattr(cases, function, spied)
    cases._workload.cache_clear()
    for number in range(60):
        for seed in (0, 1):
            program = make_case(number, seed).program
            assert not held_out(program.name, (*HELD_OUT_MODELS, *HELD_OUT_IMPORTERS))
    assert used["load_workload"] <= set(ZOO) and len(used["load_workload"]) > 8
    assert used["load_machine"] <= set(DEVICES) and used["synthetic_graph"] <= set(FAMILIES)


def test_no_case_comes_from_an_importer() -> None:
    code = (
        "import json, sys\n"
        "from loadmaster.mapping.egrl.cases import make_case\n"
        "[make_case(number) for number in range(30)]\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert not [name for name in loaded if name.startswith(("onnx", "tflite", "tensorflow"))]
    importers = [name for name in loaded if name.startswith("loadmaster.program.importers.")]
    assert not [name for name in importers if held_out(name, HELD_OUT_IMPORTERS)]


@pytest.mark.parametrize("maker", [random_transformer, random_convnet])
def test_generated_programs_are_valid(maker: object) -> None:
    machine, sizes = load_machine("nnp-i").with_capacity("dram", 2**50), set()
    for seed in range(30):
        program = maker(np.random.default_rng(seed))  # type: ignore[operator]
        assert program.hash == maker(np.random.default_rng(seed)).hash  # type: ignore[operator]
        assert (np.diff(program.write_start) == 1).all() and (np.diff(program.read_start) >= 1).all()
        # All weights are read, and all results but the last.
        read = np.bincount(program.read_tensor, minlength=program.n_tensors)
        weights = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
        assert weights.any() and (read[weights] > 0).all()
        problem = Mapping(program, machine)
        assert problem.violations(problem.plan(problem.compiler)) == []
        sizes.add(program.n_ops)
    assert len(sizes) > 8


def test_another_batch_leaves_weights_alone() -> None:
    program = load_model("alexnet-inf")
    grown = scale_batch(program, 4)
    weights = program.is_persistent[program.tensor_alias]
    assert np.array_equal(grown.tensor_bytes[weights], program.tensor_bytes[weights])
    assert np.array_equal(grown.tensor_bytes[~weights], 4 * program.tensor_bytes[~weights])
    assert np.array_equal(grown.op_flops, 4 * program.op_flops)
    assert grown.name == "alexnet-inf-x4"
