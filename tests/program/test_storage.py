"""Programs survive a file unchanged; damaged files are refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from generate import random_program
from loadmaster.errors import BadProgram
from loadmaster.program import Builder, Labels, Program, load, save
from loadmaster.program.program import TieKind
from loadmaster.program.validate import validate


def same(a: Program, b: Program) -> None:
    for column in fields(Program):
        x, y = getattr(a, column.name), getattr(b, column.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype and np.array_equal(x, y), column.name
        elif isinstance(x, Labels):
            assert x.values == y.values and np.array_equal(x.codes, y.codes), column.name
        else:
            assert x == y, column.name


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(tmp_path: Path, seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    save(program, tmp_path / "p.npz")
    loaded = load(tmp_path / "p.npz")
    same(program, loaded)
    assert loaded.named_hash == program.named_hash
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"], "no temporary file is left"


def test_hostile_names_survive(tmp_path: Path) -> None:
    build = Builder("'; DROP TABLE\n")
    build.tensor("\ud800 lone surrogate", kind="input")
    build.tensor("<script>alert(1)</script>" * 400, kind="input")
    program = build.build()
    save(program, tmp_path / "p.npz")
    same(program, load(tmp_path / "p.npz"))


def test_truncated_at_any_point(tmp_path: Path) -> None:
    program = random_program(np.random.default_rng(3))
    save(program, tmp_path / "p.npz")
    whole = (tmp_path / "p.npz").read_bytes()
    cuts = np.random.default_rng(0).integers(0, len(whole), 40).tolist()
    for cut in [0, 1, *cuts, len(whole) - 1]:
        (tmp_path / "cut.npz").write_bytes(whole[:cut])
        with pytest.raises(BadProgram, match="is not a program file"):
            load(tmp_path / "cut.npz")


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    program = random_program(np.random.default_rng(4))
    save(program, tmp_path / "p.npz")
    whole = bytearray((tmp_path / "p.npz").read_bytes())
    rng = np.random.default_rng(1)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        (tmp_path / "bad.npz").write_bytes(damaged)
        try:
            load(tmp_path / "bad.npz")
        except BadProgram as error:
            assert "\n" not in error.message


def columns_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


SPOILS = {
    "read_tensor out of range": ("read_tensor", lambda c: c + 1000, "reads tensor"),
    "negative tensor": ("read_tensor", lambda c: c * 0 - 1, "reads tensor -1"),
    "wrong type": ("tensor_bytes", lambda c: c.astype(np.float64), "holds float64"),
    "too short": ("tensor_bytes", lambda c: c[:-1], "has .* rows and the table has"),
    "start not ascending": ("read_start", lambda c: c[::-1].copy(), "does not cut"),
    "alias out of range": ("tensor_alias", lambda c: c + 10**6, "must name the root"),
    "labels out of range": ("op_kind", lambda c: c + 10**6, "code out of range"),
    "kinds out of range": ("tensor_kind", lambda c: c * 0 + 9, "unknown kind"),
    "flops negative": ("op_flops", lambda c: c - 10**9, "flops"),
    "one dimension too many": ("tensor_bytes", lambda c: c[:, None], "dimensions"),
    "group too large": ("op_group", lambda c: np.full_like(c, 2**31 - 2), "is in group 2147483646: number"),
    "group below none": ("tensor_group", lambda c: c * 0 - 2, "is in group -2: number groups"),
    "bytes that wrap round": ("op_other_bytes", lambda c: c * 0 + 2**62, "in all their repeats"),
}


def starts_that_wrap(start: np.ndarray) -> np.ndarray:
    """First and last are right, and every difference is positive, modulo 2**64."""
    wrapped = start.copy()
    wrapped[1:3] = 2**63 - 1, -(2**63) + 4
    return wrapped


for cut in ("read_start", "write_start", "tensor_shape_start"):
    SPOILS[f"{cut} wraps round"] = (cut, starts_that_wrap, f"'{cut}' does not cut")


@pytest.mark.parametrize("case", SPOILS)
def test_hostile_columns_are_refused(tmp_path: Path, case: str) -> None:
    save(random_program(np.random.default_rng(7)), tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    name, spoil, message = SPOILS[case]
    columns[name] = spoil(columns[name])
    np.savez(tmp_path / "bad.npz", **columns)
    with pytest.raises(BadProgram, match=message):
        load(tmp_path / "bad.npz")


def text_column(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def header_text(**changes: object) -> str:
    header = {"loadmaster_program": 1, "name": "", "order_source": "", "warnings": []} | changes
    return json.dumps([json.dumps(header)])


TEXTS = {
    "deep": ("op_name", "[" * 5000, "nested deeper than 64 levels"),
    "no list": ("op_name", '"a"', "'op_name' is no list of texts"),
    "no texts": ("tensor_name", "[1]", "'tensor_name' is no list of texts"),
    "digits": ("header", "7" * 5000, "more than 64 digits"),
    "not JSON": ("op_kind.values", "[", "it is not JSON"),
    "half a character": ("op_scope.values", r'["\ud800"]', "half a character"),
    "deep within": ("header", json.dumps(["[" * 5000]), "nested deeper than 64 levels"),
    "infinite within": ("header", '["[1e400]"]', "not finite"),
    "no header": ("header", "[]", "header can't be read"),
    "a header that is no object": ("header", '["[]"]', "format None, and this version reads 1"),
    "warnings that are a number": ("header", header_text(warnings=3), "no list of warnings"),
    "repeats that are a text": ("header", header_text(repeats="x"), "which ops run again"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_hostile_texts_are_refused(tmp_path: Path, case: str) -> None:
    save(random_program(np.random.default_rng(7)), tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    name, text, message = TEXTS[case]
    columns[name] = text_column(text)
    np.savez(tmp_path / "bad.npz", **columns)
    with pytest.raises(BadProgram, match=message) as caught:
        load(tmp_path / "bad.npz")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["op_kind", "op_kind.values", "op_name", "header", "costs"])
def test_a_column_that_is_not_there(tmp_path: Path, name: str) -> None:
    program = random_program(np.random.default_rng(7))
    save(program, tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    columns.pop(name, None)
    np.savez(tmp_path / "less.npz", **columns)
    if name == "costs":  # may be left out
        assert load(tmp_path / "less.npz").costs is None
        return
    with pytest.raises(BadProgram, match=f"it has no (column|entry) '{name}'"):
        load(tmp_path / "less.npz")


def test_a_column_of_numbers_does_not_become_texts(tmp_path: Path) -> None:
    save(random_program(np.random.default_rng(7)), tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    columns["tensor_alias.values"] = text_column('["a"]')
    np.savez(tmp_path / "more.npz", **columns)
    same(load(tmp_path / "p.npz"), load(tmp_path / "more.npz"))


def looped(parents: list[int], trips: list[int], ops: list[int]) -> Program:
    """One op for each entry of `ops`, in that loop."""
    build = Builder("loops")
    for parent, count in zip(parents, trips, strict=True):
        build.loop(count, parent)
    for number, loop in enumerate(ops):
        build.op(f"op{number}", "add", writes=[build.tensor(f"t{number}")], loop=loop)
    return build.build()


def test_loops_one_after_another_multiply_nothing() -> None:
    program = looped([-1] * 5, [2**40] * 5, [0, 1, 2, 3, 4])
    assert program.op_repeat.tolist() == [2**40] * 5


def test_loops_in_loops_are_bounded() -> None:
    deep = list(range(-1, 63))
    assert looped(deep, [1] * 64, [63]).n_loops == 64
    with pytest.raises(BadProgram, match="loop 64 lies in 64 others, and 64 levels are the limit"):
        looped([*deep, 63], [1] * 65, [64])
    with pytest.raises(BadProgram, match="above the limit 2\\^62"):
        looped([-1, 0], [2**40, 2**40], [1])
    with pytest.raises(BadProgram, match="20,000 loops, above the limit 4,096"):
        looped([-1] * 20_000, [1] * 20_000, [])


def test_loops_that_are_interrupted_name_the_op() -> None:
    looped([-1, 0, 0, -1], [2] * 4, [-1, 0, 1, 1, 2, 0, 3, -1])
    with pytest.raises(BadProgram, match="loop 0 is interrupted by op 'op2'"):
        looped([-1, 0], [2, 2], [0, 1, -1, 1])
    with pytest.raises(BadProgram, match="loop 1 is interrupted by op 'op2'"):
        looped([-1, 0], [2, 2], [0, 1, 0, 1])


def test_attributes_that_are_no_object(tmp_path: Path) -> None:
    build = Builder("attributes")
    build.op("a", "add", attributes={"x": 1}, writes=[build.tensor("t")])
    save(build.build(), tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    for text, message in (("[1]", "no JSON object"), ("[" * 5000, "nested"), ("{", "not JSON")):
        columns["op_attributes.values"] = text_column(json.dumps([text]))
        np.savez(tmp_path / "bad.npz", **columns)
        with pytest.raises(BadProgram, match=f"attributes of op 'a' can't be read.*{message}"):
            load(tmp_path / "bad.npz").attributes(0)


def test_a_name_of_half_a_character_is_refused() -> None:
    program = random_program(np.random.default_rng(7))
    names = ("\ud800", *program.op_name[1:])
    with pytest.raises(BadProgram, match=r"'\\ud800' has half a character"):
        validate(replace(program, op_name=names))
    with pytest.raises(BadProgram, match="has 100,000 characters"):
        validate(replace(program, op_name=("x" * 100_000, *program.op_name[1:])))


def test_a_negative_dimension() -> None:
    build = Builder("shapes")
    for name, shape in (("scalar", ()), ("a", (2, 3)), ("b", (4,))):
        build.tensor(name, shape=shape, kind="input")
    with pytest.raises(BadProgram, match="tensor 'b' has a dimension of -4"):
        validate(replace(build.build(), tensor_shape=np.array([2, 3, -4])))


def test_a_cost_table_of_too_many_devices() -> None:
    program = random_program(np.random.default_rng(7))
    with pytest.raises(BadProgram, match="1,025 devices, above the limit 1,024"):
        validate(replace(program, costs=np.zeros((program.n_ops, 1025), np.int64)))


TIES = {
    "unknown kind": ({"tie_kind": 3}, "tie 0 is out of range"),
    "negative kind": ({"tie_kind": -1}, "tie 0 is out of range"),
    "source that is not there": ({"tie_source": 2}, "tie 0 is out of range"),
    "target below 0": ({"tie_target": -1}, "tie 0 is out of range"),
    "op that is not there": ({"tie_at": 1}, "tie 0 is out of range"),
    "op that does not write it": ({"tie_at": -1}, "'y' is not written by op -1"),
    "a loop that is not there": ({"tie_kind": 1, "tie_at": 0}, "tie 0 is out of range"),
}


@pytest.mark.parametrize("case", TIES)
def test_ties_out_of_range(case: str) -> None:
    build = Builder("tied")
    x, y = build.tensor("x", kind="input"), build.tensor("y", kind="output")
    op = build.op("a", "add", reads=[x], writes=[y])
    build.tie(TieKind.INPLACE, x, y, op)
    program, (changes, message) = build.build(), TIES[case]
    columns = {name: np.array([value], getattr(program, name).dtype) for name, value in changes.items()}
    with pytest.raises(BadProgram, match=message):
        validate(replace(program, **columns))


def test_pickle_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", header=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadProgram, match="is not a program file"):
        load(tmp_path / "bad.npz")


def test_other_format(tmp_path: Path) -> None:
    save(random_program(np.random.default_rng(7)), tmp_path / "p.npz")
    columns = columns_of(tmp_path / "p.npz")
    header = json.loads(json.loads(columns["header"].tobytes())[0])
    header["loadmaster_program"] = 99
    columns["header"] = np.frombuffer(json.dumps([json.dumps(header)]).encode(), dtype=np.uint8)
    np.savez(tmp_path / "bad.npz", **columns)
    with pytest.raises(BadProgram, match="format 99, and this version reads 1"):
        load(tmp_path / "bad.npz")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match="there is no file"):
        load(tmp_path / "none.npz")


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    program = random_program(np.random.default_rng(7))
    with pytest.raises(OSError):
        save(program, tmp_path / "missing" / "p.npz")
    assert list(tmp_path.iterdir()) == []
