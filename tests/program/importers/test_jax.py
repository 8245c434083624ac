"""Importing JAX functions: structure, scopes, places, loops, names and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from loadmaster.errors import BadProgram
from loadmaster.program import Program, TensorKind, TieKind, load, save
from loadmaster.program.importers import jax as importer
from loadmaster.program.importers.jax.importer import import_jax_spec
from loadmaster.program.importers.jax.walk import read_stack


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


def import_jax(function: Any, args: Any, **options: Any) -> Program:
    """Import, and hold what every tie promises."""
    program = importer.import_jax(function, args, **options)
    start, readers = program.readers
    root = program.tensor_alias
    rows = (program.tie_kind, program.tie_source, program.tie_target, program.tie_at)
    for kind, source, target, at in zip(*rows, strict=True):
        if kind == TieKind.DONATED:
            continue
        assert root[source] == source and root[target] == target
        shared = np.flatnonzero(root == source)
        assert TensorKind.OUTPUT not in program.tensor_kind[shared]
        reads = [readers[start[t] : start[t + 1]] for t in shared]
        last = int(np.concatenate([*reads, [-1]]).max())
        assert last <= program.producer[target], "read after it was overwritten"
        if kind == TieKind.INPLACE and program.op_loop[at] >= 0:
            made = program.producer[source]
            carried = (program.tie_kind == TieKind.CARRIED) & (program.tie_source == source)
            assert carried.any() or program.op_loop[made] >= 0, "overwritten in each iteration"
    return program


def kinds(program: Program) -> list[str]:
    return list(program.op_kind)


def total_flops(program: Program, *, copies: bool = True) -> list[int]:
    flops = program.op_flops * program.op_repeat[:, None]
    if not copies:
        flops = flops[~program.op_kind.rows("copy")]
    return [int(n) for n in flops.sum(axis=0)]


def ties(program: Program) -> list[tuple[TieKind, str, str]]:
    names = program.tensor_name
    rows = zip(program.tie_kind, program.tie_source, program.tie_target, strict=True)
    return [(TieKind(kind), names[source], names[target]) for kind, source, target in rows]


def tensors_of(program: Program, kind: TensorKind) -> list[str]:
    return [n for n, k in zip(program.tensor_name, program.tensor_kind, strict=True) if k == kind]


# Arguments, results, names


def test_arguments_are_named_by_path_and_sorted_by_kind() -> None:
    def loss(params: Any, cache: Any, x: Any) -> Any:
        return (x @ params["dec0"]["w"] + params["b"][0] + cache).sum()

    params = {"dec0": {"w": f32(8, 4)}, "b": [f32(4)]}
    program = import_jax(loss, (params, f32(4), f32(2, 8)), name="loss", state=[1])
    assert tensors_of(program, TensorKind.WEIGHT) == ["params.b.0", "params.dec0.w"]
    assert tensors_of(program, TensorKind.STATE) == ["cache"]
    assert tensors_of(program, TensorKind.INPUT) == ["x"]
    assert tensors_of(program, TensorKind.OUTPUT) == ["reduce_sum.0"]
    assert program.order_source == "trace" and program.warnings == ()


def test_only_a_tree_is_taken_for_weights() -> None:
    program = import_jax(lambda x, y: x + y, (f32(4), f32(4)), name="add")
    assert tensors_of(program, TensorKind.INPUT) == ["x", "y"]
    program = import_jax(lambda x, y: x + y, (f32(4), f32(4)), name="add", weights=[1])
    assert tensors_of(program, TensorKind.WEIGHT) == ["y"]


def test_closed_over_arrays_are_weights_once() -> None:
    table = jnp.ones((3, 4))
    inner = jax.jit(lambda x: x * table)
    program = import_jax(lambda x: inner(x) + table, (f32(3, 4),), name="closed")
    assert tensors_of(program, TensorKind.WEIGHT) == ["const0"]
    assert kinds(program) == ["mul", "add"]


def test_names_are_unique_whatever_the_arguments_are_called() -> None:
    def clash(add: Any, x: Any) -> Any:
        return jnp.exp2(x) + jnp.exp(x) + add["0"]

    program = import_jax(clash, ({"0": f32(4)}, f32(4)), name="clash")
    assert program.tensor_name[0] == "add.0"
    assert len(set(program.tensor_name)) == program.n_tensors
    assert {"exp.0", "exp2.0"} <= set(program.op_name)


def test_several_results_and_an_argument_given_back() -> None:
    program = import_jax(lambda x: (x, lax.split(x, (1, 3))[1], 1.0), (f32(4),), name="several")
    assert kinds(program) == ["split"]
    assert tensors_of(program, TensorKind.OUTPUT) == ["split.0:1"]
    assert tensors_of(program, TensorKind.INPUT) == ["x"]


# Inlining, dead code, constants


def test_calls_are_inlined() -> None:
    @jax.custom_vjp
    def custom(x: Any) -> Any:
        return jnp.sin(x)

    custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))

    def calls(x: Any) -> Any:
        x = jax.jit(jax.jit(jnp.tanh))(x)
        x = jax.nn.relu(x)  # a custom_jvp around a jit
        return jax.checkpoint(lambda x: jnp.exp(x))(custom(x))

    assert kinds(import_jax(calls, (f32(4),), name="calls")) == ["tanh", "max", "sin", "exp"]


def test_gradients_of_a_call_are_summed_early_if_asked() -> None:
    def cell(x: Any, w: Any, b: Any) -> Any:
        return lax.tanh(lax.add(lax.dot(x, w), b))

    def step_of(cell: Any) -> Any:
        def loss(w: Any, b: Any, x: Any) -> Any:
            return lax.reduce_sum(cell(cell(cell(x, w, b), w, b), w, b), (0, 1))

        return jax.grad(loss, argnums=(0, 1))

    square = jax.ShapeDtypeStruct((4, 4), "float32")
    written, called = (step_of(each) for each in (cell, jax.jit(cell)))
    as_written = import_jax(written, [square] * 3, name="step").named_hash
    assert import_jax(called, [square] * 3, name="step", sum_early=True).named_hash == as_written
    assert import_jax(called, [square] * 3, name="step").named_hash != as_written
    assert import_jax(written, [square] * 3, name="step", sum_early=True).named_hash == as_written


def test_custom_gradient_takes_the_backward_rule() -> None:
    @jax.custom_vjp
    def custom(x: Any) -> Any:
        return jnp.sin(x)

    custom.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.logaddexp(x, g),))
    program = import_jax(jax.grad(lambda x: custom(x).sum()), (f32(4),), name="g")
    assert "log1p" in kinds(program) and "sin" not in kinds(program)


def test_remat_computes_again_in_the_same_scope() -> None:
    def loss(x: Any) -> Any:
        with jax.named_scope("layer"), jax.named_scope("cell"):
            return jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)))(x).sum()

    program = import_jax(jax.value_and_grad(loss), (f32(4),), name="remat")
    cosines = program.op_kind.rows("cos")
    assert cosines.sum() >= 2
    assert set(program.op_backward[cosines]) == {False, True}
    assert set(program.op_scope) == {"layer/cell"}


def test_dead_ops_and_results_are_dropped() -> None:
    def dead(x: Any) -> Any:
        jnp.sin(x)
        return lax.split(x, (1, 3))[0] + 0 * x[:1]

    program = import_jax(dead, (f32(4),), name="dead")
    assert "sin" not in kinds(program)


def test_no_common_subexpressions_and_no_folding_of_arrays() -> None:
    program = import_jax(lambda x: jnp.sin(x) * jnp.sin(x), (f32(4),), name="twice")
    assert kinds(program) == ["sin", "sin", "mul"]
    program = import_jax(
        lambda x: x + jnp.zeros(4) + lax.convert_element_type(2, "float32"), (f32(4),), name="constants"
    )
    assert kinds(program) == ["broadcast", "add", "add"]


# Views, scopes


def test_views_share_storage() -> None:
    def views(x: Any) -> Any:
        y = jnp.sin(x)
        z = lax.stop_gradient(lax.reshape(y, (1, 32)))
        return (lax.bitcast_convert_type(lax.squeeze(z, (0,)), "int32"), lax.expand_dims(y, (0,)), y.T)

    program = import_jax(views, (f32(4, 8),), name="views")
    assert kinds(program) == ["sin", "reshape", "stop_gradient", "squeeze", "bitcast", "reshape", "transpose"]
    assert list(program.op_view) == [False, True, True, True, True, True, False]
    root = program.tensor_name.index("sin.0")
    assert list(program.tensor_alias[2:7]) == [root] * 5
    assert program.read_bytes[program.op_view[program.read_op]].sum() == 0
    assert program.write_bytes[program.op_view[program.write_op]].sum() == 0


def test_forward_and_backward_share_a_scope() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("dec3"), jax.named_scope("t17"):
            return jnp.tanh(x @ w).sum()

    program = import_jax(jax.value_and_grad(loss), (f32(4, 4), f32(2, 4)), name="scopes")
    assert set(program.op_scope) == {"dec3/t17"}
    products = program.op_kind.rows("matmul")
    assert list(program.op_backward[products]) == [False, True]
    assert program.op_name[0] == "dec3/t17/dot_general.0"


@pytest.mark.parametrize(
    ("text", "scope", "backward"),
    [
        ("", "", False),
        ("dec3/t17", "dec3/t17", False),
        ("jvp(dec3)/t17", "dec3/t17", False),
        ("transpose(jvp(dec3))/t17", "dec3/t17", True),
        ("transpose(jvp())", "", True),
        ("jit(step)/jvp(jit(f))/vmap(a/b)/c", "a/b/c", False),
        ("jvp(conv(3x3))/relu", "conv(3x3)/relu", False),
        ("transpose(jvp(a))/b/jvp(a)/b/rematted_computation", "a/b", True),
        ("a/jvp(b)/a", "a/b/a", False),
        ("jvp(open/b", "jvp(open/b", False),
    ],
)
def test_name_stacks(text: str, scope: str, backward: bool) -> None:
    assert read_stack(text) == (scope, backward)


# Places


def adam_step(params: Any, m: Any, x: Any) -> Any:
    gradients = jax.grad(lambda p: jnp.tanh(x @ p["a"] @ p["b"]).sum())(params)
    new_params, new_m = {}, {}
    for name, weight in params.items():
        with jax.named_scope(f"update/{name}"):
            new_m[name] = 0.9 * m[name] + gradients[name]
            new_params[name] = weight - 0.1 * new_m[name]
    return new_params, new_m


STEP_ARGS = ({"a": f32(4, 4), "b": f32(4, 4)}, {"a": f32(4, 4), "b": f32(4, 4)}, f32(2, 4))


def test_updates_are_in_place_and_groups_hold_weight_moment_and_ops() -> None:
    program = import_jax(
        adam_step, STEP_ARGS, name="step", state=[1], updates={0: 0, 1: 1}, group_scope="update"
    )
    assert ties(program) == [
        (TieKind.INPLACE, f"{tree}.{leaf}", f"update/{leaf}/{op}.0")
        for tree, op in (("params", "sub"), ("m", "add"))
        for leaf in "ab"
    ]
    for leaf in "ab":
        ops = {
            int(program.op_group[i]) for i in range(program.n_ops) if program.op_scope[i] == f"update/{leaf}"
        }
        names = (f"params.{leaf}", f"m.{leaf}")
        tensors = {int(program.tensor_group[program.tensor_name.index(name)]) for name in names}
        assert len(ops) == 1 and ops == tensors != {-1}
    assert len(set(program.op_group)) == 3
    free = [g for g, s in zip(program.op_group, program.op_scope, strict=True) if not s]
    assert set(free) == {-1} and program.tensor_group[program.tensor_name.index("x")] == -1


def test_an_update_that_comes_before_the_last_read_is_only_donated() -> None:
    def early(w: Any, x: Any) -> Any:
        new = w - 1.0
        return new, x @ w

    program = import_jax(early, (f32(4, 4), f32(4, 4)), name="early", weights=[0], updates={0: 0})
    assert ties(program) == [(TieKind.DONATED, "w", "sub.0")]


def test_an_argument_that_is_also_given_back_stays() -> None:
    program = import_jax(lambda w: (w - 1.0, w), (f32(4),), name="both", state=[0], updates={0: 0})
    assert ties(program) == []


def test_a_place_that_something_else_took_is_only_donated() -> None:
    def other(cache: Any, part: Any) -> Any:
        return jnp.sin(lax.dynamic_update_slice(cache, part, (0,)))

    program = import_jax(other, (f32(8), f32(2)), name="other", state=[0], updates={0: 0})
    assert ties(program) == [
        (TieKind.INPLACE, "cache", "dynamic_update_slice.0"),
        (TieKind.DONATED, "cache", "sin.0"),
    ]


def test_updates_that_are_no_ops() -> None:
    def swap(a: Any, b: Any, c: Any) -> Any:
        return b, a, c

    args = (f32(4), f32(4), f32(4))
    program = import_jax(swap, args, name="swap", state=[0, 1, 2], updates={0: 0, 1: 1, 2: 2})
    assert kinds(program) == ["copy", "copy"]
    assert ties(program) == [
        (TieKind.DONATED, "a", "copy.0"),  # b is copied there while a is still to be read
        (TieKind.INPLACE, "b", "copy.1"),
    ]


def test_donated_arguments_go_to_results_of_their_type() -> None:
    step = jax.jit(lambda w, x, c: (x @ w, c + 1, w * 2.0), donate_argnums=(0, 2))
    program = import_jax(step, (f32(4, 4), f32(2, 4), i32(3)), name="donate")
    assert ties(program) == [(TieKind.INPLACE, "c", "add.0"), (TieKind.INPLACE, "w", "mul.0")]


def test_cache_is_written_in_place_all_the_way() -> None:
    def decode(cache: Any, key: Any, at: Any) -> Any:
        cache = lax.dynamic_update_slice(cache, key, (at, 0), allow_negative_indices=False)
        cache = lax.dynamic_update_slice(cache, key, (0, at), allow_negative_indices=False)
        return cache.sum(), cache

    args = (f32(64, 8), f32(1, 8), i32())
    kept = import_jax(decode, args, name="decode", state=[0], updates={0: 1})
    assert ties(kept) == [
        (TieKind.INPLACE, "cache", "dynamic_update_slice.0"),
        (TieKind.INPLACE, "dynamic_update_slice.0", "dynamic_update_slice.1"),
    ]
    assert kept.write_bytes[:2].tolist() == [32, 32]
    given = import_jax(decode, args, name="decode")
    assert [source for _, source, _ in ties(given)] == ["dynamic_update_slice.0"]
    assert given.write_bytes[:2].tolist() == [64 * 32, 32]


def test_no_write_over_what_is_read_later_or_given_back() -> None:
    def later(x: Any, part: Any) -> Any:
        y = jnp.sin(x)
        z = lax.dynamic_update_slice(y, part, (0,))
        return z, lax.reshape(y, (2, 4)).sum()

    assert ties(import_jax(later, (f32(8), f32(2)), name="later")) == []

    def returned(x: Any, part: Any) -> Any:
        y = jnp.sin(x)
        return y, lax.dynamic_update_slice(y, part, (0,))

    assert ties(import_jax(returned, (f32(8), f32(2)), name="returned")) == []


# Loops and branches


def recurrent(w: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        with jax.named_scope("cell"):
            h = jnp.tanh(h @ w + x)
        return h, h * 2.0

    with jax.named_scope("rnn"):
        h, ys = lax.scan(cell, jnp.zeros((2, 4)), xs)
    return h.sum() + ys.sum()


def test_scan_unrolled_and_as_a_loop_cost_the_same() -> None:
    args = (f32(4, 4), f32(10, 2, 4))
    unrolled = import_jax(recurrent, args, name="rnn")
    loop = import_jax(recurrent, args, name="rnn", unroll_limit=10)
    assert unrolled.n_loops == 0 and loop.n_loops == 1 and loop.loop_trips.tolist() == [10]
    assert unrolled.n_ops > loop.n_ops
    assert total_flops(unrolled) == total_flops(loop, copies=False)
    assert {"rnn/t0/cell", "rnn/t9/cell"} <= set(unrolled.op_scope)

    moved = [
        (p.read_bytes * p.op_repeat[p.read_op])[p.op_kind.rows("dynamic_slice")[p.read_op]]
        for p in (unrolled, loop)
    ]
    assert moved[0].sum() == moved[1].sum() == 10 * 2 * 4 * 4  # each slice is read once


def test_unrolled_scan_stacks_in_place() -> None:
    program = import_jax(recurrent, (f32(4, 4), f32(3, 2, 4)), name="rnn")
    stack = [f"rnn/t{i}/dynamic_update_slice.0" for i in range(3)]
    assert ties(program) == [(TieKind.INPLACE, stack[0], stack[1]), (TieKind.INPLACE, stack[1], stack[2])]
    writes = program.op_kind.rows("dynamic_update_slice")[program.write_op]
    assert program.write_bytes[writes].tolist() == [32, 32, 32]


def test_loop_carries_in_place() -> None:
    program = import_jax(recurrent, (f32(4, 4), f32(10, 2, 4)), name="rnn", unroll_limit=0)
    assert ties(program) == [(TieKind.CARRIED, "rnn/broadcast_in_dim.0", "rnn/cell/tanh.0")]
    assert "copy" not in kinds(program)


def test_loop_copies_what_it_may_not_overwrite() -> None:
    def power(x: Any) -> Any:
        return lax.scan(lambda c, _: (c * 2.0, None), x, None, length=9)[0]

    program = import_jax(power, (f32(4),), name="power", unroll_limit=0)
    assert kinds(program) == ["copy", "mul"]  # x is the caller's
    assert ties(program) == [(TieKind.CARRIED, "copy.0", "mul.0")]
    donated = import_jax(power, (f32(4),), name="power", unroll_limit=0, state=[0], updates={0: 0})
    assert ties(donated) == [(TieKind.CARRIED, "x", "mul.0")]
    assert kinds(donated) == ["mul"]


def test_loop_that_swaps_reads_before_it_writes() -> None:
    def swap(a: Any, b: Any) -> Any:
        body = lambda c, _: ((c[1], c[0], c[2] * 2.0), None)  # noqa: E731
        return lax.scan(body, (a, b, a), None, length=9)[0]

    program = import_jax(swap, (f32(4), f32(4)), name="swap", unroll_limit=0)
    producer = program.producer
    start, readers = program.readers
    carried = program.tie_kind == TieKind.CARRIED
    assert carried.sum() == 3
    pairs = zip(program.tie_source[carried], program.tie_target[carried], strict=True)
    for source, target in pairs:
        assert readers[start[source] : start[source + 1]].max() <= producer[target]


def test_buffer_carried_through_a_loop_is_updated_in_place() -> None:
    def fill(n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, b: b.at[i].set(1.0), jnp.zeros(64))

    program = import_jax(fill, (i32(),), name="fill", trips={"while.0": 64})
    assert program.loop_trips.tolist() == [64] and program.warnings == ()
    scatter = kinds(program).index("scatter")
    inside = [tie for tie in ties(program) if tie[0] == TieKind.INPLACE]
    assert inside == [(TieKind.INPLACE, "broadcast_in_dim.0", program.op_name[scatter])]
    assert program.write_bytes[program.write_op == scatter].tolist() == [4]
    assert "compare" in kinds(program)  # the loop has to know when to end


def test_loop_in_a_loop() -> None:
    def nested(x: Any) -> Any:
        inner = lambda c, _: (jnp.sin(c), None)  # noqa: E731
        outer = lambda c, _: (lax.scan(inner, c, None, length=5)[0] + 1.0, None)  # noqa: E731
        return lax.scan(outer, x, None, length=7)[0]

    unrolled = import_jax(nested, (f32(4),), name="nested")
    loops = import_jax(nested, (f32(4),), name="nested", unroll_limit=0)
    mixed = import_jax(nested, (f32(4),), name="nested", unroll_limit=20)  # 5 inside, 42 in all
    assert loops.loop_parent.tolist() == [-1, 0] and mixed.loop_trips.tolist() == [7]
    assert total_flops(unrolled) == [0, 7 * 4, 7 * 5 * 4]
    assert total_flops(loops, copies=False) == total_flops(mixed, copies=False) == [0, 28, 140]


def test_while_counts_once_with_a_warning_or_as_often_as_told() -> None:
    def halve(x: Any) -> Any:
        with jax.named_scope("search"):
            return lax.while_loop(lambda x: x.sum() > 1.0, lambda x: x * 0.5, x)

    program = import_jax(halve, (f32(4),), name="halve")
    assert len(program.warnings) == 1 and "--trip search/while.0=N" in program.warnings[0]
    given = import_jax(halve, (f32(4),), name="halve", trips={"search/while.0": 30})
    assert given.warnings == () and total_flops(given, copies=False)[1] == 30 * (4 + 1 + 4)
    assert total_flops(program, copies=False)[1] == 4 + 1 + 4
    with pytest.raises(BadProgram, match=r"no loop 'other'.*search/while.0"):
        import_jax(halve, (f32(4),), name="halve", trips={"other": 3})


def test_cond_takes_the_branch_with_most_flops() -> None:
    def branches(x: Any, i: Any) -> Any:
        x = lax.switch(i, [lambda x: x, lambda x: x @ x, jnp.sin], x)
        return lax.cond(i > 0, jnp.cos, lambda x: x * 0.0, x)

    program = import_jax(branches, (f32(4, 4), i32()), name="branches")
    assert kinds(program)[0] == "matmul" and "sin" not in kinds(program)
    assert len(program.warnings) == 1 and program.warnings[0].startswith("2 conditionals")


def test_what_a_loop_carries_is_not_overwritten_inside() -> None:
    def body(c: Any, part: Any) -> Any:
        y = jnp.sin(c)
        return y, lax.dynamic_update_slice(y, part, (0,)).sum()

    args = (f32(8), f32(5, 2))
    program = import_jax(lambda c, xs: lax.scan(body, c, xs)[1], args, name="keep", unroll_limit=0)
    assert [kind for kind, _, _ in ties(program)] == [TieKind.CARRIED]
    update = kinds(program).index("dynamic_update_slice")
    assert program.write_bytes[program.write_op == update].tolist() == [32]


def test_what_a_loop_leaves_may_be_overwritten_after_it() -> None:
    def after(x: Any, part: Any) -> Any:
        y = lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=9)[0]
        return lax.dynamic_update_slice(y, part, (0,))

    program = import_jax(after, (f32(8), f32(2)), name="after", unroll_limit=0)
    assert (TieKind.INPLACE, "sin.0", "dynamic_update_slice.0") in ties(program)


# Unknown primitives, refusals


def test_unknown_primitives_get_an_estimate_and_one_warning() -> None:
    def unknown(x: Any) -> Any:
        values, vectors = jnp.linalg.eigh(x)
        return values.sum() + jnp.linalg.cholesky(x) + jnp.linalg.cholesky(vectors)

    program = import_jax(unknown, (f32(4, 4),), name="unknown")
    assert program.warnings == ("3 ops of 2 unknown kinds got an estimate: cholesky ×2, eigh ×1",)
    op = kinds(program).index("unknown:cholesky")
    assert program.op_flops[op].tolist() == [0, 16, 0]
    with pytest.raises(BadProgram, match="3 ops of 2 unknown kinds"):
        import_jax(unknown, (f32(4, 4),), name="unknown", strict=True)


@pytest.mark.parametrize("options", [{"weights": [3]}, {"updates": {0: 4}}, {"updates": {0: 0}}])
def test_wrong_positions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadProgram):
        import_jax(lambda p, x: (x,), ({"a": f32(4)}, f32(4)), name="wrong", **options)


MODULE = """
import jax.numpy as jnp
def layer(w, x):
    return jnp.tanh(x @ w)
"""


def test_function_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lm_test_user_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    specs = ["f32[128, 64]", "f32[8,128]"]
    program = import_jax_spec("lm_test_user_model:layer", specs, weights=[0])
    assert program.name == "layer" and kinds(program) == ["matmul", "tanh"]
    assert program.op_flops[0, 0] == 2 * 8 * 128 * 64
    for wrong in ("lm_test_user_model", "lm_test_user_model:layr", "no_such_module:f"):
        with pytest.raises(BadProgram) as error:
            import_jax_spec(wrong, specs)
        assert error.value.remedy
    for wrong_args in (["f32[8"], ["g32[8]"], specs[:1], ["f32[8,8]", "f32[3,3]"], ["f32[-1]"]):
        with pytest.raises(BadProgram) as error:
            import_jax_spec("lm_test_user_model:layer", wrong_args)
        assert error.value.remedy


# The whole


def test_same_function_same_program(tmp_path: Path) -> None:
    options: dict[str, Any] = {"name": "step", "state": [1], "updates": {0: 0, 1: 1}}
    first, second = (import_jax(adam_step, STEP_ARGS, **options) for _ in range(2))
    assert first.named_hash == second.named_hash
    save(first, tmp_path / "step.npz")
    loaded = load(tmp_path / "step.npz")
    assert (loaded.hash, loaded.named_hash) == (first.hash, first.named_hash)


def test_arrays_do_as_well_as_shapes() -> None:
    arrays = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), STEP_ARGS)
    shapes = import_jax(adam_step, STEP_ARGS, name="step")
    assert import_jax(adam_step, arrays, name="step").named_hash == shapes.named_hash


def test_a_long_program() -> None:
    def chain(x: Any) -> Any:
        for step in range(500):
            with jax.named_scope(f"t{step % 100}"):
                x = lax.mul(lax.tanh(lax.add(lax.neg(x), x)), x)
        return x

    traced = jax.jit(chain).trace(f32(8))

    class Traced:
        def trace(self, x: Any) -> Any:
            return traced

    program = import_jax(Traced(), (f32(8),), name="chain")
    assert program.n_ops == 2_000
