"""TFLite Micro's whole arena: what is computed is what the interpreter needs, and never less."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import generate_tflite
from generate_tflite import F32, I8, I32, GraphMaker, branchy, convolutional, lstm, svdf, tflite
from loadmaster.errors import BadProgram
from loadmaster.export import tflm_arena
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
    Target,
    carried_offsets,
    compute_arena,
    greedy_height,
    scratch_requests,
)
from loadmaster.export.tflm_file import Micro
from loadmaster.export.tflm_kernels import KERNELS, MORE_DATA
from loadmaster.export.tflm_measure import measure_least, read_arena
from loadmaster.program.importers.tflite.read import read_tflite

MODELS = [*(branchy(seed) for seed in range(4)), *(convolutional(seed) for seed in range(8))]


def test_sizes_of_structs() -> None:
    structs = (EVAL_TENSOR, TENSOR, NODE, ALLOCATION_INFO)
    assert [each.size(HOST) for each in structs] == [24, 64, 64, 32]
    assert [each.size(MCU) for each in structs] == [12, 40, 32, 24]
    assert [each.size(MCU._replace(enum=1)) for each in structs] == [12, 32, 32, 24]
    assert Struct("iB").size(HOST) == 8 and Struct("BP").size(HOST) == 16 and Struct("").size(HOST) == 0
    assert Struct("3B").alignment(HOST) == 1 and Struct("eB").alignment(HOST) == 4


@pytest.mark.parametrize(
    ("compiler", "target"),
    [
        ("g++", HOST),
        ("g++ -m32", MCU),
        *((f"arm-none-eabi-g++ -mthumb -mcpu=cortex-m{n} -fno-short-enums", MCU) for n in (4, 7, 33, 55)),
        ("arm-none-eabi-g++ -mthumb -mcpu=cortex-m55", MCU._replace(enum=1)),
    ],
)
def test_structs_have_the_size_that_a_compiler_gives_them(
    compiler: str, target: Target, tmp_path: Path
) -> None:
    """Every struct that we compute with, written out: alignment and padding are the target's, not ours."""
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"{compiler.split()[0]} is not installed")
    fields = {text for kernel in KERNELS.values() for text in (kernel.options, kernel.data)}
    fields |= {KERNELS[name].data + more for name, more in MORE_DATA.items()}
    given = [Struct(text) for text in sorted(fields - {""})]
    given += [each for each in vars(tflm_arena).values() if isinstance(each, Struct)]
    words = {"i": "int", "P": "void *", "B": "char", "e": "E"}
    lines = ["enum E { first, last = 100 };"]
    for number, struct in enumerate(given):
        inside = " ".join(f"{words[kind]} f{n}[{count}];" for n, (count, kind) in enumerate(struct._parts))
        lines.append(f"struct S{number} {{ {inside} }};")
        lines.append(f'static_assert(sizeof(S{number}) == {struct.size(target)}, "{inside}");')
    (tmp_path / "sizes.cc").write_text("\n".join(lines))
    words_of_it = [*compiler.split(), "-std=c++17", "-fsyntax-only", str(tmp_path / "sizes.cc")]
    done = subprocess.run(words_of_it, capture_output=True, text=True)
    assert done.returncode == 0 and len(given) > 50, done.stderr


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
    assert 0 < computed.listed <= least, "what is said of every order holds for the file's own"
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


Ends = tuple[list[int], int, bytes | None]
STEPS = {0: ("b", 0), 1: ("i", 2), 2: ("i", 2)}


def numbers(*values: int) -> Ends:
    return [len(values)], I32, np.array(values, "<i4").tobytes()


def one(
    name: str, inputs: list[Ends], output: list[int], kind: int, options: dict[int, tuple[str, int]]
) -> bytes:
    graph = GraphMaker()
    ends = [graph.tensor(f"i{n}", shape, type_, data) for n, (shape, type_, data) in enumerate(inputs)]
    out = graph.tensor("o", output, kind)
    graph.op(name, ends, [out], options)
    graph.inputs = [end for end, (_, _, data) in zip(ends, inputs, strict=True) if data is None]
    graph.outputs = [out]
    return tflite(graph)


def model_of(name: str, kind: int) -> bytes:
    """A model of one operator, whose arena is mostly the runtime's own."""
    x: Ends = ([1, 4, 4, 4], kind, None)
    small: Ends = ([1, 2, 2, 4], kind, None)
    width = 1 if kind == I8 else 4
    if name == "TRANSPOSE_CONV":
        weights: Ends = ([4, 3, 3, 4], kind, bytes(144 * width))
        return one(name, [numbers(1, 8, 8, 4), weights, x], [1, 8, 8, 4], kind, STEPS)
    if name == "GATHER":
        return one(name, [x, numbers(0, 1)], [1, 2, 4, 4], kind, {0: ("i", 1)})
    if name == "MIRROR_PAD":
        pads: Ends = ([4, 2], I32, np.array([0, 0, 1, 1, 1, 1, 0, 0], "<i4").tobytes())
        return one(name, [x, pads], [1, 6, 6, 4], kind, {0: ("b", 0)})
    if name == "CONCATENATION":
        return one(name, [small, small], [1, 2, 2, 8], kind, {0: ("i", 3)})
    if name == "ADD_N":
        return one(name, [small] * 20, [1, 2, 2, 4], kind, {})
    if name == "CUMSUM":
        return one(name, [small, ([], I32, bytes(4))], [1, 2, 2, 4], kind, {})
    if name == "REVERSE_V2":
        return one(name, [small, numbers(1)], [1, 2, 2, 4], kind, {})
    if name in ("MEAN", "SUM", "REDUCE_MAX"):
        return one(name, [small, numbers(1, 2)], [1, 4], kind, {0: ("B", 0)})
    return one(name, [small], [1, 2, 2, 4], kind, {})


@pytest.mark.parametrize("kind", [I8, F32])
@pytest.mark.parametrize(
    "name",
    [
        "TRANSPOSE_CONV",
        "GATHER",
        "MIRROR_PAD",
        "CONCATENATION",
        "MEAN",
        "SUM",
        "REDUCE_MAX",
        "RELU",
        "RELU6",
        "ELU",
        "ADD_N",
        "CUMSUM",
        "REVERSE_V2",
    ],
)
def test_operators_that_no_real_model_shows_are_not_below(
    name: str, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was predicted below the least arena, or guessed, before models of one operator were measured."""
    pytest.importorskip("tflite_micro")
    more = {"TRANSPOSE_CONV": 49, "GATHER": 23, "MIRROR_PAD": 77, "MEAN": 27, "SUM": 27, "REDUCE_MAX": 27}
    more |= {"ADD_N": 75, "CUMSUM": 105, "REVERSE_V2": 77}
    for operator, number in {**more, "RELU": 0, "RELU6": 0, "ELU": 0}.items():
        monkeypatch.setitem(generate_tflite._OPTIONS, operator, number)
    data = model_of(name, kind)
    computed = compute_arena(read_tflite(data))
    least = measure_least(data, computed.total)
    assert least is not None and least <= computed.total <= 1.25 * least
    assert computed.unknown == ()


RECURRENT = {
    "svdf of floats": svdf(F32, batch=2),
    "svdf of int8": svdf(I8),
    "three layers of svdf": svdf(I8, inputs=80, filters=256, rank=1, layers=3),
    "lstm of floats": lstm(F32, batch=2, steps=16, inputs=20, hidden=40),
    "lstm of int8": lstm(I8),
    "large lstm of int8": lstm(I8, steps=30, inputs=40, hidden=64),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_are_within_two_percent_and_not_below(name: str) -> None:
    pytest.importorskip("tflite_micro")
    data = RECURRENT[name]
    computed = compute_arena(read_tflite(data))
    least = measure_least(data, computed.total)
    assert least is not None and least <= computed.total <= 1.02 * least
    assert computed.unknown == () and computed.planned == Micro(data, computed.total).arena().head


def test_recurrent_kernels_of_arm() -> None:
    """kernels/cmsis_nn: sums of the weights stay for good, and an LSTM of integers has one request less."""
    graph = read_tflite(svdf(I8)).graphs[0]
    assert [scratch_requests(graph, graph.operators[0], TARGETS[t]) for t in TARGETS] == [[48, 24]] * len(
        TARGETS
    )
    plain, dsp, helium = (
        compute_arena(read_tflite(svdf(I8)), TARGETS[t]) for t in ("32-bit", "cortex-m", "cortex-m55")
    )
    assert dsp.persistent == plain.persistent and helium.persistent == dsp.persistent + 4 * 12
    graph = read_tflite(lstm(I8)).graphs[0]
    requests = {t: scratch_requests(graph, graph.operators[0], TARGETS[t]) for t in TARGETS}
    assert requests["32-bit"] == [20] * 4 and requests["cortex-m"] == requests["cortex-m55"] == [20] * 3
    plain, dsp = (compute_arena(read_tflite(lstm(I8)), TARGETS[t]) for t in ("32-bit", "cortex-m"))
    # Eight sums of ten numbers of 32 bits, each rounded up to 16 bytes; 55 words more of parameters.
    assert dsp.persistent - plain.persistent in range(8 * 48 + 4 * 55 - 32, 8 * 48 + 4 * 55 + 32)


def convolution(name: str, window: int, channels: int, **options: int) -> list[list[int]]:
    """Scratch of an int8 convolution of 8 x 8 pixels: with the DSP extension, with Helium."""
    count = channels if name == "DEPTHWISE_CONV_2D" else 6
    shape = [1 if count == channels else count, window, window, channels]
    graph = GraphMaker()
    x, y = graph.tensor("x", [1, 8, 8, channels]), graph.tensor("y", [1, 8, 8, count])
    w = graph.tensor("w", shape, I8, bytes(int(np.prod(shape))))
    first = 5 if name == "DEPTHWISE_CONV_2D" else 4
    steps = options.get("step", 1)
    spread = {first: ("i", options.get("spread", 1)), first + 1: ("i", options.get("spread", 1))}
    graph.op(name, [x, w], [y], {0: ("b", 0), 1: ("i", steps), 2: ("i", steps), **spread})
    graph.inputs, graph.outputs = [x], [y]
    read = read_tflite(tflite(graph)).graphs[0]
    return [scratch_requests(read, read.operators[0], TARGETS[t]) for t in ("cortex-m", "cortex-m55")]


def test_scratch_of_arms_kernels() -> None:
    # Two windows of 16 bits padded to 4 elements; four of 8 bits padded to 16.
    assert convolution("CONV_2D", 3, 3) == [[4 * 28], [4 * 32]]
    assert convolution("CONV_2D", 1, 8) == [[4 * 8], []]
    assert convolution("CONV_2D", 1, 8, step=2) == [[], []]
    assert convolution("CONV_2D", 1, 8, spread=2) == [[4 * 8], [4 * 16]]
    assert convolution("DEPTHWISE_CONV_2D", 3, 8) == [[], [4 * 124 * 9]]
    assert convolution("DEPTHWISE_CONV_2D", 5, 8) == [[2 * 25 * 8], [4 * 124 * 25]]
    assert convolution("DEPTHWISE_CONV_2D", 3, 8, spread=2) == [[], []]


def depthwise(channels: int, kind: int = I8) -> bytes:
    """A depthwise convolution of one channel into many, or of many into as many."""
    graph = GraphMaker()
    x, y = graph.tensor("x", [1, 8, 8, channels], kind), graph.tensor("y", [1, 8, 8, 8], kind)
    w = graph.tensor("w", [1, 5, 5, 8], kind, bytes(200 if kind == I8 else 800))
    graph.op(
        "DEPTHWISE_CONV_2D", [x, w], [y], {0: ("b", 0), 1: ("i", 1), 2: ("i", 1), 5: ("i", 1), 6: ("i", 1)}
    )
    graph.inputs, graph.outputs = [x], [y]
    return tflite(graph)


def test_what_an_emulated_cortex_m55_showed() -> None:
    """`benchmarks/tflm_target.py`: each was computed otherwise before it was measured."""
    graph = read_tflite(depthwise(1)).graphs[0]
    requests = [scratch_requests(graph, graph.operators[0], TARGETS[t]) for t in ("cortex-m", "cortex-m55")]
    # With Helium it is made a convolution: four windows padded to 16, and its weights transposed.
    assert requests == [[], [4 * 32 + 200]]
    # Arm's kernels keep multipliers and shifts of 8 channels for integers, the reference kernels always.
    kept = {
        (kind, target): compute_arena(read_tflite(depthwise(8, kind)), TARGETS[target]).persistent
        for kind in (I8, F32)
        for target in ("32-bit", "cortex-m")
    }
    assert kept[I8, "32-bit"] == kept[F32, "32-bit"]
    assert kept[I8, "cortex-m"] == kept[F32, "cortex-m"] + 2 * 32


def test_parts_add_up_to_what_was_measured() -> None:
    tensors, startup = Arena(100, 64, 50, measured=171), Arena(100, 64, 500, measured=480)
    assert not tensors.is_startups and tensors.account().persistent == 176 - 112
    assert startup.is_startups and startup.account().startup == startup.total == 480
    assert Arena(100, 64, 50).account() == Arena(100, 64, 50)


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
