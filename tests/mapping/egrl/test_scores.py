"""What a policy sees, and what it makes of it: in range for any program, blind for what it must not see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from generate_mapping import layers, random_mapping, three_memories
from loadmaster.mapping.egrl.cases import make_case
from loadmaster.mapping.egrl.scores import VIEWS, Network, View
from loadmaster.mapping.egrl.training import SHIPPED, load_policy
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Builder
from loadmaster.program.program import Program
from mapping.egrl.rates import other_rates

BIG = 10**6


def one_op(size: int, work: int) -> Program:
    build = Builder("one op")
    x, w = build.tensor("x", bytes=size, kind="input"), build.tensor("w", bytes=size, kind="weight")
    build.op("op", "matmul", reads=[x, w], writes=[build.tensor("y", bytes=size)], matrix=work)
    return build.build()


def odd_problems() -> Iterator[Mapping]:
    """Random ones, one op alone, nothing to compute, much to compute, no room, room for all."""
    for seed in range(60):
        problem = Mapping(*random_mapping(np.random.default_rng(seed), 16))
        if len(problem.program.read_op):  # apart, below
            yield problem
    for size, work in ((1, 0), (1, 10**15), (BIG // 8, 0), (BIG // 8, 10**15)):
        yield Mapping(one_op(size, work), three_memories())
    for capacity in (0, 1, BIG):
        yield Mapping(layers(), three_memories().with_capacity("small", capacity))


@pytest.mark.parametrize("kind", VIEWS)
def test_features_are_finite_and_in_range(kind: str) -> None:
    width = load_policy(SHIPPED, kind).network.features
    seen = 0
    for problem in odd_problems():
        if problem.live.any():
            view = View(problem, kind)
            assert view.features.shape == (int(np.prod(view.shape)), width)
            assert view.features.dtype == np.float32
            assert np.isfinite(view.features).all() and np.abs(view.features).max(initial=0) <= 8
            seen += 1
    assert seen > 30


def test_a_program_that_reads_nothing_has_features() -> None:
    build = Builder("source")
    build.op("op", "add", reads=[], writes=[build.tensor("y", bytes=64, kind="output")], vector=3)
    view = View(Mapping(build.build(), three_memories()))
    assert np.isfinite(view.features).all()


def test_the_strict_view_knows_no_rates() -> None:
    rng, nominal_differs = np.random.default_rng(0), 0
    problems = [Mapping(layers(), three_memories()), *(make_case(number) for number in range(4))]
    for problem in problems:
        other = Mapping(problem.program, other_rates(problem.machine, rng))
        assert np.array_equal(View(problem, "strict").features, View(other, "strict").features)
        nominal_differs += not np.array_equal(View(problem).features, View(other).features)
        strict, again = View(problem, "strict"), View(other, "strict")
        scores = rng.normal(size=(3, *strict.shape))
        assert np.array_equal(strict.decode(scores, 0.01), again.decode(scores, 0.01))
    assert nominal_differs == len(problems)


def test_there_are_two_views() -> None:
    with pytest.raises(ValueError, match="nominal or strict, not 'blind'"):
        View(Mapping(layers(), three_memories()), "blind")


def network(view: View, hidden: int = 4) -> Network:
    width = view.features.shape[1]
    return Network(np.zeros(width, np.float32), np.ones(width, np.float32), hidden)


def test_nothing_learned_scores_nothing() -> None:
    problem = Mapping(layers(), three_memories())
    view = View(problem)
    net = network(view)
    features = net.normalise(view)
    parameters = np.stack([np.zeros(net.parameters), net.start(np.random.default_rng(0))])
    scores = net.score(features, parameters)
    assert scores.shape == (2, len(features)) and not scores.any()
    assert np.array_equal(*view.decode(scores))
    for kind in VIEWS:
        seen, policy = View(problem, kind), load_policy(SHIPPED, kind)
        assert not policy.untrained().score(seen).any() and policy.score(seen).any()


def test_a_network_is_its_formula() -> None:
    view, rng = View(Mapping(layers(), three_memories())), np.random.default_rng(1)
    net = network(view)
    parameters = rng.normal(size=(3, net.parameters))
    x, width, hidden = net.normalise(view), net.features, net.hidden
    assert np.abs(x).max() <= 5
    for mine, scores in zip(parameters, net.score(x, parameters), strict=True):
        linear, rest = mine[:width], mine[width:]
        inner = x @ rest[: width * hidden].reshape(width, hidden) + rest[width * hidden :][:hidden]
        leave = rest[width * hidden + hidden :][:hidden]
        expected = x @ linear + np.where(inner > 0, inner, 0.1 * inner) @ leave
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
    shares = net.linear_of(parameters * 100)
    assert shares.shape == (3,) and (shares > 0).all() and (shares < 0.5).all()


def test_scores_of_a_pair_do_not_depend_on_where_it_stands() -> None:
    view, rng = View(Mapping(layers(), three_memories())), np.random.default_rng(2)
    net = network(view)
    x, parameters = net.normalise(view), rng.normal(size=(2, net.parameters))
    order = rng.permutation(len(x))
    np.testing.assert_allclose(
        net.score(x[order], parameters), net.score(x, parameters)[:, order], rtol=1e-4, atol=1e-4
    )


def branches(turned: bool) -> Program:
    """Two layers and their sum; `turned`: all tensors are declared, and read, the other way round."""
    sizes = {"x": 96, "w0": 64, "w1": 200, "t0": 128, "t1": 80, "y": 48}
    kinds = {"x": "input", "w0": "weight", "w1": "weight", "y": "output"}
    build = Builder("branches")
    names = list(reversed(sizes)) if turned else list(sizes)
    tensor = {
        name: build.tensor(name, bytes=sizes[name], kind=kinds.get(name, "activation")) for name in names
    }
    for op, reads, writes in (("a", "x w0", "t0"), ("b", "x w1", "t1"), ("c", "t0 t1", "y")):
        read = [tensor[name] for name in reads.split()]
        build.op(op, "matmul", reads=read[::-1] if turned else read, writes=[tensor[writes]], matrix=500)
    return build.build()


@pytest.mark.parametrize("kind", VIEWS)
def test_the_order_of_declarations_and_reads_does_not_matter(kind: str) -> None:
    plain, turned = (View(Mapping(branches(each), three_memories()), kind) for each in (False, True))
    assert plain.shape == (5, 2)
    np.testing.assert_allclose(plain.features, turned.features, rtol=1e-5, atol=1e-5)


def test_features_mean_the_same_at_any_scale() -> None:
    """Twice the bytes in memories twice as large and twice as fast, at twice the work and rates."""

    def scaled(factor: int) -> View:
        program, machine = layers(), three_memories()
        program = replace(
            program,
            tensor_bytes=factor * program.tensor_bytes,
            read_bytes=factor * program.read_bytes,
            write_bytes=factor * program.write_bytes,
        )
        memories = tuple(
            replace(
                memory,
                capacity=factor * memory.capacity,
                read=factor * memory.read,
                write=factor * memory.write,
                alignment=factor * memory.alignment,
            )
            for memory in machine.memories
        )
        return View(Mapping(program, replace(machine, memories=memories, text="")))

    once, grown = scaled(1).features, scaled(16).features
    different = np.flatnonzero(~np.isclose(once, grown, rtol=0.02, atol=0.02).all(axis=0))
    # Flops per byte are another: that is a property of the program, and of its neighbours.
    assert len(different) <= 2
