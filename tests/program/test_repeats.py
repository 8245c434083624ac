"""Programs with repeats compute what they did: each op is a hash of what it is and of what it reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_training import random_training
from loadmaster.errors import BadProgram
from loadmaster.program import Builder, Program, TensorKind, TieKind
from loadmaster.program.repeats import AGAIN, repeat, repeatable


def values(program: Program, origin: list[int]) -> list[int]:
    """[T] what each tensor holds, ops in order; a read before the write fails."""
    held: dict[int, int] = {}
    for tensor in np.flatnonzero(program.producer < 0).tolist():
        held[tensor] = hash(("given", tensor))
    for op in range(program.n_ops):
        operands = tuple(held[tensor] for tensor in program.reads(op).tolist())
        for place, tensor in enumerate(program.writes(op).tolist()):
            held[tensor] = hash((origin[op], place, operands))
    return [held[tensor] for tensor in range(program.n_tensors)]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_repeats_change_no_value(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    base = random_training(rng)
    chosen = [op for op in np.flatnonzero(repeatable(base)).tolist() if rng.random() < share]
    found = repeat(base, chosen)
    program, origin = found.program, found.origin.tolist()
    before, after = values(base, list(range(base.n_ops))), values(program, origin)
    assert after[: base.n_tensors] == before
    assert set(found.ops.tolist()) <= set(chosen)
    assert np.array_equal(found.origin[~found.again], np.arange(base.n_ops))
    assert repeat(base, found.ops.tolist()).program.hash == program.hash
    late = program.op_backward
    needed = False
    for op in reversed(range(program.n_ops)):
        assert program.op_name[op] == base.op_name[origin[op]] + AGAIN * bool(found.again[op])
        for side in ("reads", "writes"):
            rows, old = (getattr(program, side)(op).tolist(), getattr(base, side)(origin[op]).tolist())
            assert len(rows) == len(old)
            for tensor, same in zip(rows, old, strict=True):
                assert after[tensor] == before[same]
                assert tensor == same or (late[op] and tensor >= base.n_tensors)
        if found.again[op]:  # it is read, and right behind the repeats comes a backward op
            assert late[op] and needed
            results = program.writes(op)
            assert np.isin(program.read_tensor[program.read_op > op], results).any()
        else:
            needed = bool(late[op])
    # What is made again is no longer read in the backward pass as it was made first.
    first = np.isin(program.producer, np.flatnonzero(np.isin(found.origin, found.ops) & ~found.again))
    assert not late[program.read_op[first[program.read_tensor]]].any()
    assert (program.tensor_kind[base.n_tensors :] == TensorKind.ACTIVATION).all()


def chain() -> Builder:
    """x -> a -> (view) -> b -> c; backward: dc reads b, db reads the view of a."""
    build = Builder("chain")
    x = build.tensor("x", bytes=8, kind="input")
    a, b, c, dc, db = (build.tensor(name, bytes=8) for name in ("a", "b", "c", "dc", "db"))
    view = build.tensor("view", bytes=8, alias=a)
    build.op("A", "exp", reads=[x], writes=[a])
    build.op("V", "reshape", reads=[a], writes=[view], view=True)
    build.op("B", "exp", reads=[view], writes=[b])
    build.op("C", "exp", reads=[b], writes=[c])
    build.op("dC", "mul", reads=[c, b], writes=[dc], backward=True)
    build.op("dB", "mul", reads=[dc, view], writes=[db], backward=True)
    return build


def test_a_chain_by_hand() -> None:
    base = chain().build()
    found = repeat(base, [2])
    assert found.program.op_name == ("A", "V", "B", "C", "B@again", "dC", "dB")
    found = repeat(base, [0, 2])
    names = found.program.op_name
    assert names == ("A", "V", "B", "C", "A@again", "V@again", "B@again", "dC", "dB")
    assert found.ops.tolist() == [0, 2]
    assert found.origin.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5]
    program, tensor = found.program, found.program.tensor_name
    assert [tensor[t] for t in program.reads(7)] == ["c", "b@again"]
    assert [tensor[t] for t in program.reads(8)] == ["dc", "view@again"]
    assert tensor[program.tensor_alias[tensor.index("view@again")]] == "a@again"
    # C is read by a backward op; A alone is needed by dB only, so it comes as late as that.
    assert repeat(base, [0]).program.op_name[4:] == ("dC", "A@again", "V@again", "dB")
    assert repeat(base, [3]).program.op_name[4:6] == ("C@again", "dC")


def test_costs_and_ties_follow_their_ops() -> None:
    build = chain()
    extra = build.tensor("extra", bytes=8, kind="output")
    last = build.op("last", "add", reads=[5], writes=[extra], backward=True)
    build.tie(TieKind.INPLACE, 5, extra, last)
    base = build.build(costs=[[float(op)] for op in range(7)])
    found = repeat(base, [0, 2])
    assert found.program.costs is not None and base.costs is not None
    assert np.array_equal(found.program.costs, base.costs[found.origin])
    assert found.program.op_name[found.program.tie_at[0]] == "last"


def test_what_can_not_be_repeated_is_refused() -> None:
    build = Builder("mixed")
    x = build.tensor("x", bytes=8, kind="input")
    t = [build.tensor(f"t{i}", bytes=8) for i in range(6)]
    loop = build.loop(3)
    build.op("noise", "random", writes=[t[0]])
    build.op("over", "add", reads=[x], writes=[t[1]])
    place = build.op("in place", "add", reads=[t[1]], writes=[t[2]])
    build.tie(TieKind.INPLACE, t[1], t[2], place)
    build.op("looped", "add", reads=[x], writes=[t[3]], loop=loop)
    build.op("good", "add", reads=[x], writes=[t[4]])
    build.op("back", "add", reads=[t[0], *t[2:5]], writes=[t[5]], backward=True)
    base = build.build()
    assert np.flatnonzero(repeatable(base)).tolist() == [4]
    for op in (0, 1, 2, 3, 5):
        with pytest.raises(BadProgram, match=base.op_name[op]):
            repeat(base, [op])
    with pytest.raises(BadProgram, match="has 6 ops"):
        repeat(base, [6])


def test_what_a_loop_needs_is_made_before_it() -> None:
    build = Builder("looped")
    x = build.tensor("x", bytes=8, kind="input")
    a, b, c = (build.tensor(name, bytes=8) for name in "abc")
    loop = build.loop(2)
    inner = build.loop(2, loop)
    build.op("A", "exp", reads=[x], writes=[a])
    build.op("dB", "mul", reads=[x], writes=[b], backward=True, loop=loop)
    build.op("dA", "mul", reads=[a, b], writes=[c], backward=True, loop=inner)
    assert repeat(build.build(), [0]).program.op_name == ("A", "A@again", "dB", "dA")
