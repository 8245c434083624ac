"""The TFLite importer: counts by hand, damaged and hostile files, control flow, variables."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_tflite import CONV, F32, I8, I32, RESOURCE, GraphMaker, branchy, tflite
from loadmaster.errors import BadProgram
from loadmaster.export.tflm_file import Head
from loadmaster.machine import load_machine
from loadmaster.order.problem import PeakOrder
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Program, load, save
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.program.importers.tflite.importer import import_with_places
from loadmaster.program.importers.tflite.read import OPERATORS, read_tflite
from loadmaster.program.program import TensorKind, TieKind
from loadmaster.simulate import simulate


def small() -> GraphMaker:
    """A convolution, a view and a dense layer."""
    graph = GraphMaker()
    x = graph.tensor("x", [1, 8, 8, 3])
    w = graph.tensor("conv/w", [5, 3, 3, 3], I8, bytes(135))
    b = graph.tensor("conv/b", [5], I32, bytes(20))
    y = graph.tensor("net/conv/Relu;net/bn", [1, 8, 8, 5])
    graph.op("CONV_2D", [x, w, b], [y], CONV)
    shape = graph.tensor("shape", [2], I32, struct.pack("<2i", 1, 320))
    flat = graph.tensor("flat", [1, 320])
    graph.op("RESHAPE", [y, shape], [flat], {})
    dense = graph.tensor("dense/w", [10, 320], I8, bytes(3200))
    out = graph.tensor("out", [1, 10])
    graph.op("FULLY_CONNECTED", [flat, dense, -1], [out], {0: ("b", 0)})
    graph.inputs, graph.outputs = [x], [out]
    return graph


def test_a_small_model_by_hand() -> None:
    program = import_tflite(tflite(small()), name="small")
    assert list(program.op_kind) == ["conv", "reshape", "matmul"]
    assert program.op_flops.tolist() == [
        [2 * 320 * 27, 3 * 320, 0],  # a bias and making whole numbers of sums
        [0, 0, 0],
        [2 * 10 * 320, 2 * 10, 0],  # no bias
    ]
    assert program.op_view.tolist() == [False, True, False]
    assert program.op_scope[0] == "net/conv" and program.order_source == "schedule"
    assert list(program.op_dtype) == ["i8", "i8", "i8"] and program.op_source.tolist() == [0, 1, 2]
    kinds = {program.tensor_name[t]: TensorKind(k).name for t, k in enumerate(program.tensor_kind)}
    assert kinds == {
        "x": "INPUT",
        "conv/w": "WEIGHT",
        "conv/b": "WEIGHT",
        "net/conv/Relu;net/bn": "ACTIVATION",
        "flat": "ACTIVATION",
        "dense/w": "WEIGHT",
        "out": "OUTPUT",
    }
    assert PeakOrder(program).reference == 192 + 320
    assert program.warnings == ()


def test_a_file_may_have_more_operators_than_loops_may_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.program.importers.tflite.importer.MOST_VISITS", 2)
    assert import_tflite(tflite(small()), name="small").n_ops == 3
    outer, inner = GraphMaker(), small()
    outer.inputs = [outer.tensor("x", [1, 8, 8, 3])]
    outer.outputs = [outer.tensor("out", [1, 10])]
    outer.op("IF", [*outer.inputs, *outer.inputs], outer.outputs, {0: ("i", 1), 1: ("i", 1)})
    with pytest.raises(BadProgram, match="loops and branches stand for more than 2 operators"):
        import_tflite(tflite(outer, inner))


def test_it_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    program = import_tflite(tflite(small()))
    save(program, tmp_path / "p.npz")
    assert load(tmp_path / "p.npz").named_hash == program.named_hash


@pytest.mark.parametrize("seed", range(20))
def test_cut_files_are_one_error(seed: int) -> None:
    data = branchy(seed)
    rng = np.random.default_rng(seed)
    for cut in rng.integers(0, len(data) - 1, 20).tolist():
        with pytest.raises(BadProgram):
            import_tflite(data[:cut])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 3), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_damaged_files_give_a_program_or_one_error(seed: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(branchy(seed, 4))
    for place, value in changes:
        data[place % len(data)] = value
    try:
        program = import_tflite(bytes(data))
    except BadProgram:
        return
    assert isinstance(program, Program)


def test_what_is_wrong_is_said() -> None:
    data = bytearray(tflite(small()))
    with pytest.raises(BadProgram, match="does not say TFL3"):
        import_tflite(bytes(data[:4]) + b"TFL9" + bytes(data[8:]))
    for wrong, words in ((8, "refers to tensor 8 of 8"), (-3, "refers to tensor -3 of 8")):
        graph = small()
        graph.operators[2] = ("FULLY_CONNECTED", [5, wrong, -1], [7], {})
        with pytest.raises(BadProgram, match=words):
            import_tflite(tflite(graph))
    graph = small()
    graph.operators.reverse()
    with pytest.raises(BadProgram, match="'flat', which nothing makes before it"):
        import_tflite(tflite(graph))
    graph = small()
    graph.operators.append(graph.operators[0])
    with pytest.raises(BadProgram, match="which is there already"):
        import_tflite(tflite(graph))
    graph = small()
    graph.tensors[1] = ("conv/w", [5, 3, 3, 3], I8, bytes(134), False)
    with pytest.raises(BadProgram, match="needs 135 bytes and the file has 134"):
        import_tflite(tflite(graph))
    graph = small()
    graph.tensors[0] = ("x", [1, 8, -8, 3], I8, None, False)
    with pytest.raises(BadProgram, match="has the shape"):
        import_tflite(tflite(graph))
    with pytest.raises(BadProgram, match="can't be read"):
        import_tflite("no such file.tflite")


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("CUSTOM", "IF", "WHILE")])
def test_operators_without_or_with_odd_operands_are_no_crash(name: str) -> None:
    for inputs, outputs in (([], [1]), ([-1], [1]), ([0], [-1]), ([0, 0, 0], [1, 2]), ([0], [])):
        graph = GraphMaker()
        for i in range(3):
            graph.tensor(f"t{i}", [2, 3])
        graph.op(name, inputs, outputs)
        graph.inputs, graph.outputs = [0], [n for n in outputs if n > 0] or [0]
        try:
            assert import_tflite(tflite(graph)).n_tensors > 0
        except BadProgram:
            continue


def test_hostile_names_are_harmless() -> None:
    graph = small()
    names = ["a\x1b[31m", "a\x1b[31m", "", "‮evil", "x" * 9_000, "</script>", "../../etc", "=1+1"]
    graph.tensors = [(name, *rest) for name, (_, *rest) in zip(names, graph.tensors, strict=True)]
    program = import_tflite(tflite(graph))
    assert len(set(program.tensor_name)) == program.n_tensors
    assert all(name.isprintable() and name for name in program.tensor_name)


def test_vectors_that_overlap_do_not_multiply() -> None:
    # Many operators share one long vector of operands: the file is small, what it says is not.
    graph = GraphMaker()
    x = graph.tensor("x", [1])
    graph.inputs = graph.outputs = [x]
    graph.op("ADD_N", [x] * 4000, [x])
    data = tflite(graph)
    model = read_tflite(data)
    table = model.root.tables(2)[0].tables(3)[0]
    begin = table.vector(1, 4)[0] - 4
    head = Head()
    operators = [head.table({0: ("I", 0), 1: ("reference", begin), 2: ("reference", begin)})] * 3000
    old = model.root.tables(2)[0]
    changed = head.changed(old, dict.fromkeys(range(5), "reference") | {5: "i"}, {3: head.vector(operators)})
    root = head.changed(
        model.root, {0: "I"} | dict.fromkeys(range(1, 10), "reference"), {2: head.vector([changed])}
    )
    with pytest.raises(BadProgram, match="overlap"):
        import_tflite(head.finish(root, data))


def test_unknown_ops_get_an_estimate() -> None:
    graph = GraphMaker()
    x, y = graph.tensor("x", [4], F32), graph.tensor("y", [7], F32)
    graph.op("CUSTOM", [x], [y])
    graph.inputs, graph.outputs = [x], [y]
    data = tflite(graph, custom="MyOp")
    program = import_tflite(data)
    assert program.op_kind[0] == "unknown:MyOp" and program.op_flops.tolist() == [[0, 7, 0]]
    assert program.warnings == ("1 ops of 1 unknown kinds got an estimate: MyOp ×1",)
    with pytest.raises(BadProgram, match="MyOp"):
        import_tflite(data, strict=True)


def test_an_output_that_shows_an_input_is_copied() -> None:
    graph = GraphMaker()
    x, y = graph.tensor("x", [4]), graph.tensor("y", [2, 2])
    graph.op("RESHAPE", [x], [y], {})
    graph.inputs, graph.outputs = [x], [y, x]
    program = import_tflite(tflite(graph))
    assert not program.op_view.any() and list(program.op_kind) == ["reshape", "copy"]
    assert sorted(program.tensor_kind.tolist()) == [TensorKind.INPUT, TensorKind.OUTPUT, TensorKind.OUTPUT]


def test_the_branch_with_more_work_is_taken() -> None:
    main, cheap, dear = GraphMaker(), GraphMaker(), GraphMaker()
    flag, x, y = main.tensor("flag", [1]), main.tensor("x", [4]), main.tensor("y", [4])
    main.op("IF", [flag, x], [y], {0: ("i", 1), 1: ("i", 2)})
    main.inputs, main.outputs = [flag, x], [y]
    for branch, times in ((cheap, 1), (dear, 3)):
        branch.inputs = [branch.tensor("in", [4])]
        for i in range(times):
            branch.op("RELU", [i], [branch.tensor(f"r{i}", [4])])
        branch.outputs = [times]
    program = import_tflite(tflite(main, cheap, dear))
    assert list(program.op_kind) == ["relu"] * 3 and program.op_source.tolist() == [0, 0, 0]
    assert program.warnings == ("1 branches: the one with most flops is taken at if_0",)
    assert program.tensor_kind[program.writes(2)[0]] == TensorKind.OUTPUT


def test_a_loop_runs_as_often_as_the_user_says() -> None:
    main, test, body = GraphMaker(), GraphMaker(), GraphMaker()
    x, y = main.tensor("x", [4]), main.tensor("y", [4])
    main.op("WHILE", [x], [y], {0: ("i", 1), 1: ("i", 2)})
    main.inputs, main.outputs = [x], [y]
    for graph, op in ((test, "REDUCE_ANY"), (body, "RELU")):
        graph.inputs = [graph.tensor("in", [4])]
        graph.op(op, [0], [graph.tensor("out", [4 if op == "RELU" else 1])])
        graph.outputs = [1]
    data = tflite(main, test, body)
    assert import_tflite(data).n_ops == 2 and "--trip while_0=N" in import_tflite(data).warnings[0]
    program = import_tflite(data, trips={"while_0": 3})
    assert list(program.op_kind) == ["reduce_or", "relu"] * 3 and not program.warnings
    with pytest.raises(BadProgram, match="no loop 'other'"):
        import_tflite(data, trips={"other": 3})
    endless = GraphMaker([*body.tensors], [("WHILE", [0], [1], {0: ("i", 1), 1: ("i", 2)})], [0], [1])
    with pytest.raises(BadProgram, match="nested"):
        import_tflite(tflite(main, test, endless))


def test_variables_are_state_that_ops_write_in_place() -> None:
    graph = GraphMaker()
    x, out = graph.tensor("x", [4]), graph.tensor("out", [4])
    handle, old, new = (graph.tensor("h", [1], RESOURCE), graph.tensor("old", [4]), graph.tensor("new", [4]))
    graph.op("VAR_HANDLE", [], [handle], {})
    graph.op("READ_VARIABLE", [handle], [old])
    graph.op("ADD", [x, old], [new], {0: ("b", 0)})
    graph.op("ASSIGN_VARIABLE", [handle, new], [])
    graph.op("RELU", [new], [out])
    graph.inputs, graph.outputs = [x], [out]
    program = import_tflite(tflite(graph))
    assert list(program.op_kind) == ["copy", "add", "copy", "relu"]
    assert program.tie_kind.tolist() == [TieKind.INPLACE] and program.tie_at.tolist() == [2]
    state = int(program.tie_source[0])
    assert program.tensor_kind[state] == TensorKind.STATE
    problem = PeakOrder(program)
    # The write may not come before the read, in any order that is legal.
    assert problem.evaluate(np.array([0, 1, 3, 2])) is not None
    assert problem.evaluate(np.array([2, 0, 1, 3])) is None
    machine = load_machine("toy2")
    assert not check(program, machine, Plan(), simulate(program, machine))


def test_scratch_lives_for_one_op() -> None:
    data = tflite(small())
    plain, more = import_tflite(data), import_with_places(data, scratch={0: 1000})
    assert PeakOrder(more.program).reference == PeakOrder(plain).reference + 1000
    machine = load_machine("toy2")
    assert simulate(more.program, machine).total_ps == simulate(plain, machine).total_ps


@pytest.mark.parametrize("seed", range(10))
def test_random_models_keep_their_order(seed: int) -> None:
    data = branchy(seed)
    model, program = read_tflite(data), import_tflite(data)
    names = [operator.name for operator in model.graphs[0].operators]
    assert [program.attributes(op)["tflite"] for op in range(program.n_ops)] == names
    weights = program.tensor_kind == TensorKind.WEIGHT
    stored = sum(t.stored for t in model.graphs[0].tensors if t.stored and t.name != "shape")
    assert program.tensor_bytes[weights].sum() == stored
