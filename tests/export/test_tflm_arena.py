"""TFLite Micro's whole arena: what is computed is what the interpreter needs, and never less."""

from __future__ import annotations

import pytest

from generate_tflite import F32, GraphMaker, branchy, convolutional, tflite
from loadmaster.errors import BadProgram
from loadmaster.export.tflm_arena import (
    ALLOCATION_INFO,
    EVAL_TENSOR,
    HOST,
    MCU,
    NODE,
    TARGETS,
    TENSOR,
    Arena,
    Buffer,
    Struct,
    carried_offsets,
    compute_arena,
    greedy_height,
    measure_least,
    read_arena,
)
from loadmaster.export.tflm_file import Micro
from loadmaster.program.importers.tflite.read import read_tflite

MODELS = [*(branchy(seed) for seed in range(4)), *(convolutional(seed) for seed in range(8))]


def test_sizes_of_structs() -> None:
    assert [each.size(8) for each in (EVAL_TENSOR, TENSOR, NODE, ALLOCATION_INFO)] == [24, 64, 64, 32]
    assert [each.size(4) for each in (EVAL_TENSOR, TENSOR, NODE, ALLOCATION_INFO)] == [12, 40, 32, 24]
    assert Struct("iB").size(8) == 8 and Struct("BP").size(8) == 16 and Struct("").size(8) == 0


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_the_computed_total_is_what_the_interpreter_needs(number: int) -> None:
    pytest.importorskip("tflite_micro")
    data = MODELS[number]
    computed = compute_arena(read_tflite(data))
    least = measure_least(data, computed.total)
    assert least is not None and least <= computed.total <= 1.02 * least + 16
    measured = Micro(data, computed.total).arena()
    assert computed.planned == measured.head
    assert measured.tail <= computed.persistent <= measured.tail + 32
    again = read_arena(data, measure=True)
    assert again.measured == least and least <= again.total < least + 16
    # A guess that is far off costs time, not truth.
    if number % 6 == 0:
        assert measure_least(data, 16) == measure_least(data, 4 * least) == least


def test_what_can_not_run_has_no_least_arena() -> None:
    pytest.importorskip("tflite_micro")
    graph = GraphMaker()
    x, y = graph.tensor("x", [1, 4], F32), graph.tensor("y", [1, 4], F32)
    graph.op("CUSTOM", [x], [y])
    graph.inputs, graph.outputs = [x], [y]
    assert measure_least(tflite(graph, custom="nobody has this"), 2**20) is None


def test_targets_of_32_bits_need_less() -> None:
    for data in MODELS:
        model = read_tflite(data)
        host, plain, mcu = (compute_arena(model, TARGETS[name]) for name in ("host", "32-bit", "cortex-m"))
        assert plain.persistent < host.persistent and plain.startup < host.startup
        assert plain.planned == host.planned
        # Arm's kernels unfold windows of more than one pixel into scratch memory.
        assert mcu.planned >= plain.planned and (mcu.persistent >= plain.persistent)
        assert host.unknown == () and HOST != MCU


def test_the_larger_of_both_needs_counts() -> None:
    assert Arena(100, 64, 50).total == 112 + 64
    assert Arena(100, 64, 500).total == 500
    assert Arena(100, 64, 50, measured=171).total == 176
    assert Arena(100, 64, 50, measured=171).with_planned(0).total == 64


def test_the_runtimes_planner() -> None:
    # Given offsets first, whatever they overlap; then by size into the lowest gap.
    assert greedy_height([]) == 0
    assert greedy_height([Buffer(32, 0, 1), Buffer(16, 2, 3), Buffer(48, 1, 2)]) == 80
    assert greedy_height([Buffer(32, 0, 1, 64), Buffer(16, 0, 1), Buffer(48, 1, 1)]) == 96
    assert greedy_height([Buffer(32, 0, 1, 0), Buffer(32, 0, 1, 0)]) == 32


def test_offsets_that_the_runtime_would_not_take_do_not_count() -> None:
    from loadmaster.export.tflm_file import METADATA, with_plan

    model = read_tflite(branchy(1))
    assert carried_offsets(model) is None
    for table in (b"", b"abc", bytes(12), bytes(4096)):
        assert carried_offsets(read_tflite(with_plan(model, None, {METADATA: table}))) is None


def test_graphs_that_call_each_other_without_end_are_refused() -> None:
    """Each graph calls the next twice: two to the power of the graphs."""
    graphs = []
    for number in range(30):
        graph = GraphMaker()
        x, y, z = (graph.tensor(name, [4]) for name in "xyz")
        if number < 29:
            both = {0: ("i", number + 1), 1: ("i", number + 1)}
            graph.op("IF", [x, x], [y], both)
            graph.op("IF", [y, y], [z], both)
        graph.inputs, graph.outputs = [x], [z]
        graphs.append(graph)
    with pytest.raises(BadProgram, match="stand for more than"):
        compute_arena(read_tflite(tflite(*graphs)))
