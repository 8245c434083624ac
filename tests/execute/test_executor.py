"""The executor on a CPU: what a plan says is what happens, and the numbers are those of PyTorch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from generate_offload import HBM, OffloadPlans, handover, machine_with
from loadmaster.errors import BadMachine, BadPlan, BadProgram, Refused
from loadmaster.plan import NO_OFFSET, Plan
from loadmaster.plan.check import check

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.execute.pinned import HostMemory, RandomWeights, host_weights  # noqa: E402
from loadmaster.execute.placement import placed  # noqa: E402
from loadmaster.execute.script import FastResidency  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402

ROOM = 2**24


class Mixed(nn.Module):
    """Views of things that leave and come back, parts, a convolution, sums over long distances."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(0, 1, 64).reshape(64, 1))

    def forward(self, x: Any, y: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x)))
        rows = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows + self.table).chunk(3, dim=-1)
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        top, where = (self.out(a) + rows).topk(4, dim=-1)
        late = rows.reshape(2, -1)[:, ::2].sum(-1)
        return top.transpose(1, 2) + y, where, late, torch.arange(4) + y.sum().long()


class Growing(nn.Module):
    """A random chain in which later layers look back."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.layers = seed, nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x: Any) -> Any:
        rng, known = random.Random(self.seed), [x]
        for layer in self.layers:
            a, b = rng.choice(known), rng.choice(known)
            match rng.randrange(5):
                case 0:
                    known.append(layer(a) + b)
                case 1:
                    known.append(torch.cat([a, b], 1)[:, 3:9].t().contiguous().t())
                case 2:
                    known.append(layer(a).split(3, 1)[1].repeat(1, 2) * b)
                case 3:
                    known.append(a.t() @ torch.tanh(b))
                case _:
                    known += [layer(a.t()).t(), torch.sigmoid(b)]
        return tuple(known[-3:])


def weights_of(module: Any) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def captured_model(module: Any, *args: Any) -> Captured:
    return capture(module.eval(), args, name="model")


def ordinary(module: Any, *args: Any) -> list[Any]:
    with torch.no_grad():
        found = module(*args)
    return list(found) if isinstance(found, tuple) else [found]


def same(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True)
    )


@pytest.fixture(scope="module")
def mixed() -> tuple[Any, Captured, tuple[Any, ...]]:
    torch.manual_seed(1)
    args = (torch.randn(2, 3, 8, 8), torch.randn(2, 4, 64))
    module = Mixed().eval()
    return module, captured_model(module, *args), args


def late(seed: int) -> Any:
    rng = random.Random(seed)
    return lambda: rng.choice((0.0, 0.0, 0.001, 0.003))


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("seed", range(4))
def test_outputs_are_those_of_the_ordinary_run(mixed: Any, keep: float, seed: int) -> None:
    module, captured, args = mixed
    plan = OffloadPlans(captured.program, seed).make(keep, sliced=seed == 3)
    machine = machine_with(ROOM)
    assert check(captured.program, machine, plan) == []
    with Executor(captured, plan, machine, "cpu", weights_of(module), delay=late(seed)) as executor:
        for again in range(2):
            given = tuple(arg + again for arg in args)
            assert same(executor.run(*given).outputs, ordinary(module, *given))


def test_random_graphs_with_random_plans() -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        module, x = Growing(seed).eval(), torch.randn(6, 6)
        captured = captured_model(module, x)
        plans = OffloadPlans(captured.program, seed)
        for keep in (0.0, 0.3, 0.7):
            plan = plans.make(keep)
            executor = Executor(
                captured, plan, machine_with(ROOM), "cpu", weights_of(module), delay=late(seed)
            )
            with executor:
                assert same(executor.run(x).outputs, ordinary(module, x)), (seed, keep)


def test_offsets_are_real(mixed: Any) -> None:
    """Where the plan says so, it lies; two tensors at one address spoil each other."""
    module, captured, args = mixed
    plan = OffloadPlans(captured.program, 5).make(0.4)
    machine, weights = machine_with(ROOM), weights_of(module)
    with Executor(captured, plan, machine, "cpu", weights) as executor:
        residencies, offsets = executor.script.residencies, placed(executor.script.residencies, ROOM)
    spot = {(s.tensor, s.first): offset for s, offset in zip(residencies, offsets, strict=True)}
    rank = OffloadPlans(captured.program, 0).rank
    rows = [
        r._replace(offset=spot[r.tensor, -1 if r.first < 0 else rank[r.first]]) for r in plan.residency_rows
    ]
    good = Plan.of(residencies=rows, copies=plan.copy_rows)
    assert check(captured.program, machine, good) == []
    with Executor(captured, good, machine, "cpu", weights) as executor:
        assert same(executor.run(*args).outputs, ordinary(module, *args))
        peak = executor.script.peak
    far = Plan.of(residencies=[r._replace(offset=r.offset + 1024) for r in rows], copies=plan.copy_rows)
    with pytest.raises(BadMachine, match="offsets reach"):
        Executor(captured, far, machine, "cpu", weights, capacity=peak)
    bad = Plan.of(residencies=[r._replace(offset=0) for r in rows], copies=plan.copy_rows)
    with pytest.raises(Refused, match="not sound"):
        Executor(captured, bad, machine, "cpu", weights)
    with Executor(captured, bad, machine, "cpu", weights, checked=False) as executor:
        assert not same(executor.run(*args).outputs, ordinary(module, *args))


def test_copies_are_really_made_beside_the_ops(mixed: Any) -> None:
    """An op that does not wait for its copy reads too early; a plan that says so is refused."""
    module, captured, args = mixed
    plan = OffloadPlans(captured.program, 2).make(0.0)
    machine, weights = machine_with(ROOM), weights_of(module)
    with Executor(captured, plan, machine, "cpu", weights, delay=lambda: 0.01) as executor:
        script = executor.script
        hasty = tuple(replace(step, waits=()) for step in script.steps)
        executor._walk.script = replace(script, steps=hasty)
        assert not same(executor.run(*args).outputs, ordinary(module, *args))
        executor._walk.script = script
        assert same(executor.run(*args).outputs, ordinary(module, *args))
    end = captured.program.n_ops
    late = [c._replace(needed_by=end) if c.target == HBM else c for c in plan.copy_rows]
    with pytest.raises(Refused):
        Executor(captured, Plan.of(residencies=plan.residency_rows, copies=late), machine, "cpu", weights)


def test_a_budget_that_does_not_suffice_is_refused(mixed: Any) -> None:
    module, captured, _ = mixed
    plan = OffloadPlans(captured.program, 0).make(1.0)
    machine, weights = machine_with(ROOM), weights_of(module)
    with Executor(captured, plan, machine, "cpu", weights) as executor:
        peak = executor.script.peak
    with pytest.raises(BadMachine, match="too many by 1 bytes"):
        Executor(captured, plan, machine, "cpu", weights, capacity=peak - 1)
    with pytest.raises(BadMachine, match="workspace"):
        Executor(captured, plan, machine, "cpu", weights, capacity=peak, workspace=1)
    with pytest.raises(Refused, match="not sound"):
        Executor(captured, plan, machine_with(peak - 256), "cpu", weights)


def test_an_op_never_works_in_the_home_memory(mixed: Any) -> None:
    module, captured, _ = mixed
    with pytest.raises(Refused, match="works in memory 'hbm' alone"):
        Executor(captured, Plan(), machine_with(ROOM), "cpu", weights_of(module))


def test_what_does_not_belong_together_is_refused(mixed: Any) -> None:
    module, captured, args = mixed
    plan = OffloadPlans(captured.program, 0).make(1.0)
    machine, weights = machine_with(ROOM), weights_of(module)
    with pytest.raises(BadProgram, match=r"no weight 'qkv\.bias'"):
        short = {name: value for name, value in weights.items() if name != "qkv.bias"}
        Executor(captured, plan, machine, "cpu", short)
    with pytest.raises(BadProgram, match="captured as"):
        Executor(captured, plan, machine, "cpu", weights | {"out.bias": torch.zeros(3)})
    with pytest.raises(BadPlan, match="one by one"):
        Executor(captured, plan.changed(queue="fifo"), machine, "cpu", weights)
    with Executor(captured, plan, machine, "cpu", weights) as executor:
        with pytest.raises(BadProgram, match="takes 2 inputs and got 1"):
            executor.run(args[0])
        with pytest.raises(BadProgram, match="was captured as"):
            executor.run(args[0], args[1].double())


def test_room_is_not_reused_while_a_copy_reads_it() -> None:
    """A copy out that is done just before the next op, and a copy in that begins where it lay."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
    captured, x = captured_model(module, torch.zeros(64, 64)), torch.randn(64, 64)
    plan, hidden = handover(captured)
    with Executor(
        captured, plan, machine_with(2**16), "cpu", weights_of(module), delay=lambda: 0.01
    ) as executor:
        (fetch,) = executor.script.steps[1].fetches
        assert fetch.after == (1,)
        assert same(executor.run(x).outputs, ordinary(module, x))
        row = executor._walk.host[hidden]  # what was copied out is what the first layer made
        assert torch.equal(row.view(torch.float32).view(64, 64), module[0](x))


def test_residencies_without_offsets_are_placed_apart() -> None:
    residencies = [
        FastResidency(0, -1, 9, 256, NO_OFFSET),
        FastResidency(1, 0, 2, 512, NO_OFFSET),
        FastResidency(2, 3, 4, 256, NO_OFFSET),
        FastResidency(3, 2, 3, 256, 256),
    ]
    assert placed(residencies, 2048) == [0, 512, 512, 256]
    with pytest.raises(Refused, match="in one piece"):
        placed(residencies, 512)


def test_timings_and_repeats(mixed: Any) -> None:
    module, captured, args = mixed
    plan = OffloadPlans(captured.program, 1).make(0.5)
    shared = host_weights(captured, weights_of(module), HostMemory(pinned=False))
    with Executor(captured, plan, machine_with(ROOM), "cpu", shared, timings=True) as executor:
        measured = executor.measure(*args, repeats=3, warmups=1)
        assert len(measured.runs) == 3 and measured.seconds > 0
        assert measured.peak_bytes == executor.script.peak
        spans = measured.last.op_seconds
        assert sorted(spans) == [
            op for op in range(captured.program.n_ops) if not captured.program.op_view[op]
        ]
        ends = [spans[op][1] for op in sorted(spans)]
        assert ends == sorted(ends) and ends[-1] <= measured.last.seconds


def test_random_weights_are_the_same_each_time(mixed: Any) -> None:
    _, captured, _ = mixed
    one, other = (dict(RandomWeights(captured, "cpu", seed=3)) for _ in range(2))
    assert set(one) == set(weights_of(mixed[0]))  # unread ones too: the module may want them
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["qkv.weight"], RandomWeights(captured, "cpu", seed=4)["qkv.weight"])
    assert "" not in RandomWeights(captured, "cpu")  # what is no weight has no source


class Step(nn.Module):
    """A training step: the loss comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )

    def forward(self, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.net(x), y)


@pytest.mark.parametrize("keep", [0.8, 0.0])
def test_gradients_are_those_of_autograd(keep: float) -> None:
    torch.manual_seed(0)
    module = Step().train()
    args = (torch.randn(5, 3, 8, 8), torch.randint(10, (5,)))
    captured = capture(module, args, name="step", training=True)
    weights = {name: value.detach().clone() for name, value in weights_of(module).items()}
    loss = module(*args)
    loss.backward()
    for seed in range(3):
        plan = OffloadPlans(captured.program, seed).make(keep)
        with Executor(captured, plan, machine_with(ROOM), "cpu", weights, delay=late(seed)) as executor:
            results = executor.run(*args)
            assert torch.allclose(results.outputs[0], loss)
            assert set(results.gradients) == dict(module.named_parameters()).keys()
            for name, parameter in module.named_parameters():
                assert torch.allclose(results.gradients[name], parameter.grad, atol=1e-6), name
            for name, buffer in module.named_buffers():
                assert torch.allclose(results.updates[name].to(buffer.dtype), buffer), name
