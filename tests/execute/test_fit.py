"""`fit` on a CPU: calls give what the ordinary module gives, bit for bit, in the memory that was given."""

from __future__ import annotations

import copy
import logging
import random
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import QUICK, WIDTH, Parts, Stack, fitted, gradients, pair, rows, same, session_of, step  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402
from loadmaster.execute.calls import CallExecutor  # noqa: E402

# Dynamo looks at `.grad` of every tensor that it meets.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Inference.


def test_a_model_gives_what_it_gave_in_less_memory() -> None:
    plain, model = pair(Stack, rows())
    session = session_of(model)
    assert session.memory is not None and session.memory < session.graphs[0].needed
    assert model.fitted.report["graphs"][0]["copies"] > 0
    with torch.no_grad():
        for seed in range(3):
            assert same(model(rows(seed=seed)), plain(rows(seed=seed)))


def test_a_module_that_was_made_in_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        model = Stack()
    with pytest.raises(LoadmasterError, match="inference mode: make it outside"):
        fitted(model, rows())


@torch.no_grad()
def test_weights_that_the_user_changes_are_seen() -> None:
    plain, model = pair(Stack, rows())
    for each in (plain, model):
        each(rows())
        each.layers[0].weight.mul_(1.5)
        each.layers[1].bias.data.add_(0.25)
    assert same(model(rows()), plain(rows()))
    for each in (plain, model):
        each.layers[3].weight.data.mul_(-1)
    assert same(model(rows()), plain(rows()))
    other = Stack().state_dict()
    for each in (plain, model):
        each.load_state_dict(other)
    assert same(model(rows()), plain(rows()))
    for each in (plain, model):
        each.load_state_dict({name: value * 2 for name, value in other.items()}, assign=True)
    assert same(model(rows()), plain(rows()))


@torch.no_grad()
def test_a_recorded_call_that_began_with_old_weights_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls as CUDA graphs begin before weights are looked at; here a recorded half is simply run again."""
    replays: list[int] = []

    def replay(self: CallExecutor, late: bool, half: Any) -> None:
        half()
        self._graphs.setdefault(late, "recorded")
        self._recorded = list(self._values)
        replays[-1] += 1

    monkeypatch.setattr(CallExecutor, "_replay", replay)
    plain, model = pair(Stack, rows(), memory="100%")
    model(rows())
    executor = session_of(model).graphs[0]._executor
    assert executor is not None and executor._weights
    executor._as_graph = True
    for turn in range(10):
        replays.append(0)
        if turn in (7, 9):
            for each in (plain, model):
                each.layers[0].weight.mul_(1.5)
        assert same(model(rows(seed=turn)), plain(rows(seed=turn))), turn
    assert session_of(model).graphs[0]._executor is executor
    assert replays[-5:] == [1, 1, 2, 1, 2]


@torch.no_grad()
def test_every_weight_of_every_layer_is_looked_at() -> None:
    plain, model = pair(Stack, rows())
    for at in range(6):
        for each in (plain, model):
            each.layers[at].weight.data.mul_(1.1)
            each.layers[at].bias.data.mul_(1.1)
        assert same(model(rows()), plain(rows())), at


@torch.no_grad()
def test_other_shapes_and_other_types_get_plans_of_their_own() -> None:
    plain, model = pair(Stack, rows())
    for count in (8, 32, 5):
        assert same(model(rows(count)), plain(rows(count)))
    assert len(session_of(model).graphs) == 3
    for each in (plain, model):
        each.to(torch.float64)
    wide = rows(dtype=torch.float64)
    session_of(model).memory *= 2  # type: ignore[operator]
    assert same(model(wide), plain(wide)) and model(wide).dtype == torch.float64


def test_results_that_a_caller_keeps_stay() -> None:
    _, model = pair(Stack, rows())
    with torch.no_grad():
        kept = [model(rows(seed=seed)) for seed in range(4)]
        again = [model(rows(seed=seed)) for seed in range(4)]
    assert same(kept, again)


def test_what_is_no_module_or_has_no_values_is_refused() -> None:
    with pytest.raises(LoadmasterError, match=r"fit takes an nn\.Module, not a function"):
        fitted(lambda x: x, rows())
    with torch.device("meta"):
        empty = Stack(1)
    with pytest.raises(LoadmasterError, match="has no values"):
        fitted(empty, rows())
    with pytest.raises(LoadmasterError, match="weights can't be 'disk'"):
        fitted(Stack(1), rows(), weights="disk")
    with pytest.raises(LoadmasterError, match="there is no device"):
        fitted(Stack(1), rows(), device="mps")
    for search in ("20s", -1, float("nan")):
        with pytest.raises(LoadmasterError, match=r"search can't be .*: give seconds, or a Budget"):
            fitted(Stack(1), rows(), search=search)
    for name, value in (("cache", 3), ("machine", 3), ("background", "no"), ("measure", "x"), ("quiet", 1)):
        with pytest.raises(LoadmasterError, match=f"{name} can't be {value!r}: give"):
            fitted(Stack(1), rows(), **{name: value})
    other = torch.optim.SGD(Stack(1).parameters(), 0.1)
    with pytest.raises(LoadmasterError, match="the optimizer steps no parameter of 'Stack'"):
        fitted(Stack(1), rows(), optimizer=other)


@pytest.mark.parametrize("training", [False, True])
def test_the_least_memory_is_said_and_is_the_least(training: bool) -> None:
    torch.manual_seed(0)
    plain = Stack().train(training)
    with pytest.raises(LoadmasterError, match=r"needs .* in all") as error:
        fitted(copy.deepcopy(plain), rows(), memory="70KiB")
    least = error.value.number
    assert isinstance(least, int) and f"{-(-least // 1024)}KiB" in str(error.value)
    assert ("torch.no_grad() less will do" in str(error.value)) is training
    model = fitted(copy.deepcopy(plain), rows(), memory=least)
    wanted = plain(rows())
    assert same(model(rows()).detach(), wanted.detach())
    torch._dynamo.reset()
    with pytest.raises(LoadmasterError, match=r"needs .* in all") as error:
        fitted(copy.deepcopy(plain), rows(), memory=least - 1024)
    assert error.value.number == least


@pytest.mark.parametrize("training", [False, True])
def test_all_of_what_a_model_needs_is_enough_with_its_weights_on_the_device(training: bool) -> None:
    plain, model = pair(Stack, rows(), training=training, memory="100%", weights="device")
    session = session_of(model)
    assert session.usable >= session.graphs[0].needed
    with torch.set_grad_enabled(training):
        assert same(model(rows()), plain(rows()))


@torch.no_grad()
def test_a_graph_break_makes_two_graphs_in_one_budget() -> None:
    plain, model = pair(lambda: Parts(3, 3), rows())
    for seed in range(2):
        assert same(model(rows(seed=seed)), plain(rows(seed=seed)))
    assert len(session_of(model).graphs) == 2


LOGGER = logging.getLogger("layers")


@torch.no_grad()
def test_a_message_breaks_no_graph() -> None:
    class Talking(Stack):
        def forward(self, x: Any) -> Any:
            LOGGER.warning("many rows")
            return super().forward(super().forward(x))

    plain, model = pair(Talking, rows())
    assert same(model(rows()), plain(rows())) and len(session_of(model).graphs) == 1


def test_a_model_in_which_no_graph_is_found_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Loop(nn.Module):
        """Its weights are nobody's but its own, and it ends graphs in a loop."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for weight in self.weights:
                x = x @ weight
                torch._dynamo.graph_break()
            return x

    plain, model = pair(Loop, rows(), quiet=False)
    said = capsys.readouterr().err
    assert said.count("no op of Loop could be traced") == 1 and "TORCH_LOGS=graph_breaks" in said
    with torch.no_grad():
        assert same(model(rows()), plain(rows()))


def test_a_model_that_cant_be_traced_is_told_why(capsys: pytest.CaptureFixture[str]) -> None:
    class Halves(nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(3):
                x = x / (x.sum().item() + 1)
            return x

    pair(Halves, rows(), quiet=False)
    said = capsys.readouterr().err
    assert "no op of Halves could be traced" in said and "TORCH_LOGS=graph_breaks says where" in said


@pytest.mark.parametrize(
    "norm", [lambda: nn.LayerNorm(16), lambda: nn.GroupNorm(4, 16), lambda: nn.BatchNorm1d(16)]
)
def test_norms_of_two_types_keep_their_statistics(norm: Any) -> None:
    """Under autocast a norm reads bfloat16 and has weights of float32: a CPU's kernels keep statistics in the latter."""

    def make() -> Any:
        return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), norm()) for _ in range(4)])

    plain, model = pair(make, training=True, memory="60%")
    for each in (plain, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = each(torch.linspace(-3, 5, 2048 * 16).view(2048, 16))
        found.float().square().sum().backward()
    assert same(gradients(model), gradients(plain))


def test_a_page_shows_the_plan(tmp_path: Path) -> None:
    with pytest.raises(LoadmasterError, match=r"there is no folder .* make the folder first"):
        fitted(Stack(2), rows()).plan_report(tmp_path / "no folder" / "fit.html")
    model = fitted(Stack(2), rows(), memory="75%")
    path = model.plan_report(tmp_path / "plan.html")
    assert "Stack" in path.read_text(encoding="utf-8")
    with pytest.raises(LoadmasterError, match="was not called yet"):
        fitted(Stack(2)).plan_report(tmp_path / "none.html")


def test_inputs_that_do_not_fit_are_refused_in_the_words_of_the_module(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = Stack(2)
    wrong = rows()[:, :-1]
    with pytest.raises(RuntimeError) as own:
        model(wrong)
    with pytest.raises(RuntimeError) as tried:
        fitted(model, wrong)
    fitted(model, rows())
    with pytest.raises(RuntimeError) as called:
        model(wrong)
    assert str(tried.value) == str(called.value) == str(own.value)
    assert same(model(rows()), model.fitted.module._call_impl(rows()))
    assert capfd.readouterr().err == ""


class Prepared(nn.Module):
    """Its first call changes a weight, and remembers that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.is_divided = nn.Linear(WIDTH, WIDTH), False

    def forward(self, x: Any) -> Any:
        if not self.is_divided:
            with torch.no_grad():
                self.layer.weight.div_(2)
            self.is_divided = True
        return self.layer(x)


@pytest.mark.parametrize("memory", ["75%", "1MiB"])
def test_what_a_first_call_does_to_weights_is_done_once(memory: str) -> None:
    plain = Prepared().eval()
    model = fitted(copy.deepcopy(plain), rows(), memory=memory)
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(model(rows()), plain(rows()), atol=1e-6)
    assert torch.equal(model.layer.weight, plain.layer.weight)


def test_who_gives_many_sizes_is_told_once_what_that_costs(capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted(Stack(2), rows(), quiet=False)
    with torch.no_grad():
        for count in [*range(1, 12), *range(1, 12)]:
            model(rows(count))
    said = [line for line in capsys.readouterr().err.splitlines() if "pad inputs to a few sizes" in line]
    assert len(said) == 1 and "8 calls" in said[0]


def test_without_examples_the_first_call_plans() -> None:
    plain, model = pair(Stack)
    assert not session_of(model).graphs
    with torch.no_grad():
        assert same(model(rows()), plain(rows()))  # all that it needs
        assert same(model(rows()), plain(rows()))  # three quarters of it
    assert session_of(model).graphs[0]._capacity < session_of(model).graphs[0].needed


def test_examples_come_as_a_tensor_a_tuple_or_a_dict() -> None:
    for args, kwargs in ((rows(), None), ((rows(),), None), ({"x": rows()}, None), ((), {"x": rows()})):
        torch._dynamo.reset()
        torch.manual_seed(0)
        plain = Stack(2)
        model = loadmaster.fit(copy.deepcopy(plain), args, kwargs, memory="75%", **QUICK)
        assert len(session_of(model).graphs) == 1
        with torch.no_grad():
            assert same(model(rows()), plain(rows()))


@torch._dynamo.disable
def drawn(generator: Any) -> Any:
    """Numbers of a generator of one's own, and one of Python's."""
    return torch.randn(WIDTH, generator=generator) * random.random()


class Remembers(nn.Module):
    """It counts, collects, draws and writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(2)
        self.calls, self.seen, self.random = 0, ["nothing"], torch.Generator().manual_seed(3)

    def forward(self, given: dict[str, Any]) -> Any:
        self.calls += 1
        self.seen.append("a call")
        self.last = given["x"].mul_(2)
        given["noise"] = drawn(self.random)
        return self.stack(given["x"]) + given["noise"]


def test_a_call_that_is_tried_leaves_nothing_behind() -> None:
    plain, examples, before = Remembers(), {"x": rows()}, random.getstate()
    model = fitted(copy.deepcopy(plain), examples)
    assert (model.calls, model.seen, hasattr(model, "last")) == (0, ["nothing"], False)
    assert random.getstate() == before
    assert same(examples, {"x": rows()})
    found = []
    for each in (model, plain):
        random.seed(5)
        with torch.no_grad():
            found.append([each({"x": rows()}) for _ in range(2)])
    assert same(*found)
    assert (model.calls, model.seen) == (plain.calls, plain.seen)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")  # its category depends on the version
def test_other_tracers_see_the_module_itself() -> None:
    plain, model = pair(lambda: Stack(2), rows())
    with torch.no_grad():
        for tracer in (lambda each: torch.jit.trace(each, rows()), torch.fx.symbolic_trace):
            assert same(tracer(nn.Sequential(model))(rows()), plain(rows()))
        assert same(model(rows()), plain(rows()))


def test_examples_by_name_are_a_mapping() -> None:
    with pytest.raises(LoadmasterError, match="kwargs can't be"):
        loadmaster.fit(Stack(2), rows(), [3], memory="75%", **QUICK)


class Turned(nn.Module):
    """Complex numbers between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(16, 16, dtype=torch.complex64) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.second(torch.view_as_complex(torch.view_as_real(self.first(x)).tanh()))


def test_complex_numbers() -> None:
    x = torch.randn(8, 16, dtype=torch.complex64)
    plain, model = pair(Turned, x)
    with torch.no_grad():
        assert same(model(x), plain(x))


class Attended(nn.Module):
    """A group norm of what an axis of one element was turned behind, as in the attention of a U-net."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm, self.last = nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Any) -> Any:
        mixed = self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        return self.last(self.norm(mixed + x))


@pytest.mark.parametrize("training", [False, True])
def test_a_group_norm_of_one_image_that_lies_otherwise_than_traced(training: bool) -> None:
    image = torch.randn(1, 8, 4, 4)
    plain, model = pair(Attended, image, training=training)
    found = []
    for each in (model, plain):
        result = each(image)
        result.square().mean().backward()
        found.append([result.detach(), *gradients(each).values()])
    torch.testing.assert_close(*found)


# Training.


@pytest.mark.parametrize("weights", ["host", "device"])
def test_a_training_step_has_the_same_loss_and_gradients(weights: str) -> None:
    plain, model = pair(Stack, rows(), training=True, weights=weights)
    for seed in range(3):
        for each in (plain, model):
            each.zero_grad()
        assert same(step(model, rows(seed=seed)), step(plain, rows(seed=seed)))
        assert same(gradients(model), gradients(plain))


class Odd(nn.Module):
    """Parameters that are unused, frozen, tied; a batch norm of which one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.third.requires_grad_(False)
        self.norm, self.frozen = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.third(self.frozen(self.second(torch.relu(self.norm(self.first(x))))))


def test_unused_frozen_and_tied_parameters_and_batch_norms_are_pytorchs() -> None:
    random = torch.get_rng_state()
    torch.manual_seed(0)
    plain = Odd().train()
    plain.frozen.running_mean.normal_()
    before = torch.get_rng_state()
    model = fitted(copy.deepcopy(plain), rows(), memory="75%")
    assert same(torch.get_rng_state(), before), "fit draws no numbers"
    assert same(dict(model.named_buffers()), dict(plain.named_buffers())), "and changes no buffers"
    assert all(grad is None for grad in gradients(model).values())
    for seed in range(3):
        assert same(step(model, rows(seed=seed)), step(plain, rows(seed=seed)))
        assert same(gradients(model), gradients(plain))
        assert same(dict(model.named_buffers()), dict(plain.named_buffers()))
    assert model.unused.weight.grad is None and model.third.weight.grad is None
    assert model.first.weight is model.second.weight and int(model.norm.num_batches_tracked) == 3
    with torch.no_grad():
        assert same(model.eval()(rows()), plain.eval()(rows()))
    torch.set_rng_state(random)


class Caching(nn.Module):  # type: ignore[misc]
    """Puts another buffer in the place of its own when it first sees a size, and one where there was none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("places", torch.zeros(1, 1), persistent=False)
        self.register_buffer("seen", None, persistent=False)

    def forward(self, x: Any) -> Any:
        if self.places.shape[0] != len(x):
            self.places = torch.arange(len(x), device=x.device, dtype=x.dtype)[:, None] / 3
            self.seen = x.mean(0).detach()
        return self.layer(x) + self.places * self.seen


@torch.no_grad()
def test_buffers_that_a_module_replaces_are_as_they_were_and_then_its_own() -> None:
    torch.manual_seed(0)
    plain = Caching().eval()
    model = fitted(copy.deepcopy(plain), rows(), memory="75%")
    assert model.places.shape == (1, 1) and not model.places.any() and model.seen is None
    for seed in (1, 2):
        assert same(model(rows(seed=seed)), plain(rows(seed=seed)))
    assert same(dict(model.named_buffers()), dict(plain.named_buffers()))


class Sparse(Stack):
    """Has buffers without a storage, of which it uses one."""

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("heads", torch.eye(4).to_sparse())
        self.register_buffer("edges", torch.eye(WIDTH).to_sparse())

    def forward(self, x: Any) -> Any:
        return super().forward(torch.sparse.mm(self.edges, x.t()).t())


@torch.no_grad()
def test_sparse_buffers_stay_where_they_are() -> None:
    plain, model = pair(Sparse, rows())
    assert same(model(rows()), plain(rows()))
    assert model.state_dict()["heads"].is_sparse and model.edges.is_sparse


class Counting(Stack):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x) / self.calls


@torch.no_grad()
def test_what_a_graph_changes_itself_comes_anew_and_is_no_changed_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, model = pair(Counting, rows())
    assert same(model(rows()), plain(rows()))
    # A changed weight is loaded before a call begins, and a CUDA graph may be recorded anew for it.
    monkeypatch.setattr(CallExecutor, "_renew", lambda *_: pytest.fail("no weight was changed"))
    for seed in (2, 3):
        assert same(model(rows(seed=seed)), plain(rows(seed=seed)))
        assert int(model.calls) == seed
    model.calls.fill_(7)
    assert same(model(rows()) * 8, plain(rows()) * 4)


class Branching(Stack):
    """Chooses a layer by what the one before has made."""

    def forward(self, x: Any) -> Any:
        first, second, third, last, *_ = self.layers
        x = first(x)
        return last(torch.cond(x.sum() > 0, lambda x: second(x).tanh(), lambda x: third(x).relu() * 2, (x,)))


class Looping(Stack):
    """Goes round as often as a value says."""

    def forward(self, x: Any) -> Any:
        rounds = x.abs().sum().long() % 5 + 1
        _, x = while_loop(
            lambda n, x: n > 0, lambda n, x: (n - 1, x * 1.1 + 0.1), (rounds, self.layers[0](x))
        )
        return self.layers[1](x)


class Flexible(Stack):
    """Attention with scores of its own."""

    def forward(self, x: Any) -> Any:
        query = self.layers[0](x).view(1, -1, 4, WIDTH // 4).transpose(1, 2)

        def near(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
            return score - (row - column).abs() * 0.1

        return self.layers[1](flex_attention(query, query, query, score_mod=near).transpose(1, 2).flatten(2))


class Solving(Stack):
    """Complains of a matrix that can't be inverted, which is an effect of an op that makes nothing."""

    def forward(self, x: Any) -> Any:
        return self.layers[1](torch.linalg.solve(x[:, : len(x)], self.layers[0](x)))


@torch.library.custom_op("loadmaster_tests::bump", mutates_args=("x",))  # type: ignore[untyped-decorator, unused-ignore]
def bump(x: torch.Tensor, by: float) -> None:
    x.add_(by)


class Writing(Stack):
    """Has an op of its own that writes over what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        x = self.layers[0](x)
        bump(x, 0.5)
        bump(self.sums, 1.0)
        return self.layers[1](x) * self.sums


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(
    "make, training",
    [
        (Branching, False),
        (Branching, True),
        (Looping, False),
        (Flexible, False),
        (Writing, False),
        (Solving, False),
        (Solving, True),
    ],
)
def test_calls_with_graphs_of_their_own_are_one_op_each(make: Any, training: bool) -> None:
    plain, model = pair(make, rows(), training=training, measure=True, cache=None)
    assert len(session_of(model).graphs) == 1
    for sign in (1, -1, 1):
        with torch.set_grad_enabled(training):
            assert same(model(sign * rows()), plain(sign * rows()))
        if training:
            assert same(step(model, sign * rows()), step(plain, sign * rows()))
            assert same(gradients(model), gradients(plain))


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch's own tracer leaves it out before 2.13")
@torch.no_grad()
def test_what_an_op_complains_of_is_heard() -> None:
    plain, model = pair(Solving, rows())
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        model(torch.zeros(32, WIDTH))
    assert same(model(rows()), plain(rows()))


class Asserting(Stack):
    """Looks at what it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.ones(()))

    def forward(self, x: Any) -> Any:
        x = super().forward(x)
        torch._assert_async((x.abs() <= self.limit).all(), "too large")  # as an `assert` outside of tests
        return x


@pytest.mark.parametrize("training", [False, True])
def test_what_a_model_asserts_of_values_is_looked_at_in_every_call(training: bool) -> None:
    plain, model = pair(Asserting, rows(), training=training, measure=True, cache=None)
    with torch.set_grad_enabled(training):
        assert same(model(rows()), plain(rows()))
        model.limit.zero_()
        with pytest.raises(RuntimeError, match="too large"):
            model(rows())
        model.limit.fill_(1)
        assert same(model(rows()), plain(rows()))
    if training:
        assert same(step(model, rows()), step(plain, rows()))
        assert same(gradients(model), gradients(plain))


def test_dropout_draws_the_numbers_that_the_module_would() -> None:
    plain, model = pair(lambda: Stack(dropout=0.5), rows(), training=True)
    for seed in range(2):
        found = []
        for each in (model, plain):
            torch.manual_seed(seed)
            found.append((step(each, rows()), gradients(each), torch.get_rng_state()))
        assert same(*found)


def test_gradients_are_added_up() -> None:
    plain, model = pair(Stack, rows(), training=True)
    for each in (plain, model):
        step(each, rows(seed=1))
        step(each, rows(seed=2))
    assert same(gradients(model), gradients(plain))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2, 0)])
def test_several_forward_calls_wait_for_their_backward_calls(order: tuple[int, ...]) -> None:
    plain, model = pair(lambda: Stack(dropout=0.3), rows(), training=True)
    for each in (plain, model):
        torch.manual_seed(5)
        losses = [each(rows(seed=seed)).square().mean() for seed in range(len(order))]
        for at in order:
            losses[at].backward()
    assert same(gradients(model), gradients(plain))


def test_one_loss_of_two_forward_calls() -> None:
    plain, model = pair(Stack, rows(), training=True)
    for each in (plain, model):
        (each(rows(seed=1)) * each(rows(seed=2))).mean().backward()
    assert same(gradients(model), gradients(plain))


def test_a_backward_call_that_never_comes_costs_nothing() -> None:
    plain, model = pair(Stack, rows(), training=True)
    for _ in range(3):
        model(rows(seed=9))
    assert same(step(model, rows()), step(plain, rows()))
    assert same(gradients(model), gradients(plain))
    assert not session_of(model).graphs[0]._waiting


def test_a_batch_of_no_rows_has_gradients_of_zeros() -> None:
    plain, model = pair(lambda: Stack(3), rows(), training=True)
    for each in (model, plain):
        each(rows(0)).sum().backward()
    assert same(gradients(model), gradients(plain))


@pytest.mark.parametrize("between", [False, True])
def test_a_graph_that_is_retained_is_run_again(between: bool) -> None:
    plain, model = pair(lambda: Parts(3, 2, dropout=0.4), rows(), training=True, memory="60%")
    drawn = []
    for each in (plain, model):
        torch.manual_seed(3)
        loss = each(rows()).square().mean()
        loss.backward(retain_graph=True)
        weight = each.rest.first.layers[1].weight
        (alone,) = torch.autograd.grad(
            loss, weight, retain_graph=True
        )  # as adaptive weights of losses are made
        if between:
            step(each, rows(seed=2))
        (loss * alone.norm()).backward()
        drawn.append(torch.rand(4))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert same(gradients(model), gradients(plain)) and same(*drawn)
    with torch.no_grad():  # and life goes on
        assert same(model.eval()(rows()), plain.eval()(rows()))
    assert not any(graph._over for graph in session_of(model).graphs), "nothing is kept that nobody wants"


@pytest.mark.parametrize("changed", ["a weight", "running means"])
def test_a_second_backward_call_through_what_has_changed_is_refused(changed: str) -> None:
    make = Stack if changed == "a weight" else Odd
    _, model = pair(make, rows(), training=True)
    loss = model(rows()).square().mean()
    loss.backward(retain_graph=True)
    if changed == "a weight":
        with torch.no_grad():
            next(model.parameters()).mul_(2)
    with pytest.raises(LoadmasterError, match="call was made before, and what it was given has changed"):
        loss.backward()
    step(model, rows())  # and life goes on


def test_evaluation_between_forward_and_backward() -> None:
    plain, model = pair(Stack, rows(), training=True)
    for each in (plain, model):
        loss = each(rows()).square().mean()
        with torch.no_grad():
            each.eval()
            shown = each(rows(seed=7))
            each.train()
        loss.backward()
        each.shown = shown
    assert same(model.shown, plain.shown) and same(gradients(model), gradients(plain))


@pytest.mark.parametrize("weights", ["host", "device"])
def test_graph_breaks_in_a_training_step(weights: str) -> None:
    plain, model = pair(lambda: Parts(2, 2, 2), rows(), training=True, weights=weights)
    for seed in range(2):
        assert same(step(model, rows(seed=seed)), step(plain, rows(seed=seed)))
        assert same(gradients(model), gradients(plain))
    assert len(session_of(model).graphs) >= 3


class Repeated(nn.Module):
    """One function that is compiled once and called for several layers, with a break in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.one(layer.weight, layer.bias, x)
        return x

    @torch._dynamo.disable(recursive=False)
    def one(self, weight: Any, bias: Any, x: Any) -> Any:
        return _layer(weight, bias, x)


def _layer(weight: Any, bias: Any, x: Any) -> Any:
    return torch.tanh(nn.functional.linear(x, weight, bias)) + x


def test_one_graph_for_several_layers() -> None:
    plain, model = pair(Repeated, rows(), training=True)
    for seed in range(2):
        assert same(step(model, rows(seed=seed)), step(plain, rows(seed=seed)))
        assert same(gradients(model), gradients(plain))
    with torch.no_grad():
        assert same(model(rows()), plain(rows()))
    assert len(session_of(model).graphs) == 3, "for an input without a gradient, for others, for inference"


def test_the_gradient_of_an_input_is_there() -> None:
    plain, model = pair(Stack, rows(), training=True)
    mine, theirs = rows().requires_grad_(), rows().requires_grad_()
    step(model, mine)
    step(plain, theirs)
    assert same(mine.grad, theirs.grad) and same(gradients(model), gradients(plain))


# Optimizers and checkpoints.


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_five_steps_of_an_optimizer(name: str) -> None:
    torch.manual_seed(0)
    plain = Stack().train()
    ours = copy.deepcopy(plain)
    options = {"lr": 1e-2, "momentum": 0.9} if name == "SGD" else {"lr": 1e-2}
    optimizers = [getattr(torch.optim, name)(each.parameters(), **options) for each in (plain, ours)]
    model = fitted(ours, rows(), optimizer=optimizers[1], memory="75%")
    for seed in range(5):
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            step(each, rows(seed=seed))
            optimizer.step()
    wanted = dict(plain.named_parameters())
    far = max(float((value - wanted[key]).detach().abs().max()) for key, value in model.named_parameters())
    assert far < 1e-6


def test_a_checkpoint_in_the_middle() -> None:
    plain, model = pair(Odd, rows(), training=True)
    for each in (plain, model):
        step(each, rows())
    saved = copy.deepcopy(model.state_dict())
    assert same(dict(saved), dict(plain.state_dict()))
    for each in (plain, model):
        step(each, rows(seed=4))
        each.load_state_dict(saved)
        each.zero_grad()
        step(each, rows(seed=5))
    assert same(gradients(model), gradients(plain))
    assert same(dict(model.state_dict()), dict(plain.state_dict()))


def test_a_model_changes_its_type_after_fit() -> None:
    plain, model = pair(Stack, rows(), training=True, memory="2MiB")
    for each in (plain, model):
        each.to(torch.float64)
    wide = rows(dtype=torch.float64)
    assert same(step(model, wide), step(plain, wide)) and same(gradients(model), gradients(plain))
    assert model.layers[0].weight.grad.dtype == torch.float64


def test_a_loss_in_the_module_and_labels_beside_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scored(Stack):
        def forward(self, x: Any, labels: Any = None) -> Any:
            scores = super().forward(x)
            return {"loss": nn.functional.cross_entropy(scores, labels), "scores": scores}

    came: list[int] = []
    backward = CallExecutor.backward

    def watched(self: Any, args: Any, tangents: Any) -> Any:
        came.append(sum(each is not None for each in tangents))
        return backward(self, args, tangents)

    monkeypatch.setattr(CallExecutor, "backward", watched)
    labels = torch.arange(32)
    plain, model = pair(Scored, rows(), labels, training=True)
    for both in (False, True, False):
        found = [each(rows(), labels=labels) for each in (model, plain)]
        for each in found:
            (each["loss"] + each["scores"].sum() if both else each["loss"]).backward()
        assert same(
            {k: v.detach() for k, v in found[0].items()}, {k: v.detach() for k, v in found[1].items()}
        )
        assert same(gradients(model), gradients(plain))
    assert came[-3:] == [1, 2, 1]  # no zeros for scores that no loss depends on


@pytest.mark.parametrize("memory", ["100%", "80%", "50%", "45%"])
def test_results_can_be_written_over(memory: str) -> None:
    """As a trainer does that scales a loss, whatever of the model lies on the host."""

    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Linear(WIDTH, WIDTH), Stack(3)

        def forward(self, x: Any) -> Any:
            hidden = self.first(x)
            return hidden.square().mean(), self.rest(hidden), self.rest(x).bfloat16().float()

    def gradients_of(model: Any) -> list[Any]:
        loss, found, rounded = model(rows())
        kept = found.exp()  # has it for its derivative
        loss *= 0.5
        rounded.add_(1)
        assert not any(each._is_view() for each in (loss, found, rounded))
        (loss + kept.sum() + rounded.square().mean()).backward()
        return [each.grad.detach_() for each in model.parameters()]

    plain, model = pair(Early, rows(), memory=memory)
    for _ in range(2):
        for ours, wanted in zip(gradients_of(model), gradients_of(plain), strict=True):
            assert same(ours, wanted)


def test_a_refused_fit_leaves_the_earlier_one() -> None:
    plain, model = pair(Stack, rows(), memory="16MiB")
    first = model.fitted
    for wrong in ({"memory": "1KiB"}, {"memory": "plenty"}, {"memory": "1MiB", "device": ["cpu"]}):
        with pytest.raises(LoadmasterError):
            loadmaster.fit(model, rows(), **{**QUICK, **wrong})
    assert same(model(rows()), plain(rows()))
    assert session_of(model).memory == 16 * 2**20 and session_of(model).graphs
    assert first is not model.fitted, "its plans were given up for the second"


def test_a_model_without_weights_is_planned_for_gradients_of_its_inputs() -> None:
    plain, model = pair(
        lambda: nn.Sequential(nn.Tanh(), nn.Softmax(-1)), rows().requires_grad_(), training=True
    )
    x, other = rows().requires_grad_(), rows().requires_grad_()
    model(x).square().sum().backward()
    plain(other).square().sum().backward()
    assert same(x.grad, other.grad) and len(session_of(model).graphs) == 1


def test_what_a_compiler_fails_on_is_said() -> None:
    class Overwriting(nn.Linear):
        def forward(self, x: Any) -> Any:
            return torch.relu(super().forward(x)).mul_(2)

    with pytest.raises(LoadmasterError, match="modified by an inplace operation"):
        fitted(Overwriting(WIDTH, WIDTH), rows())


def test_where_no_plan_is_found_the_error_says_how_much_will_do() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(16)

        def forward(self, x: Any) -> Any:
            found = nn.functional.unfold(torch.relu(self.norm(self.first(x))), 3, padding=1)
            return self.last(nn.functional.fold(found, (16, 16), 3, padding=1))

    x = torch.randn(4, 3, 16, 16)
    with pytest.raises(LoadmasterError, match="no plan was found for 'Folded'") as error:
        fitted(Folded(), x, memory="640KiB")
    enough = re.search(r'give memory="(\d+KiB)" or more', str(error.value))
    assert enough
    assert session_of(fitted(Folded(), x, memory=enough[1])).graphs


@pytest.mark.parametrize("given", [{1: torch.ones(2)}, 3])
def test_inputs_of_no_kind_are_refused(given: Any) -> None:
    with pytest.raises(LoadmasterError, match="input"):
        loadmaster.fit(nn.Linear(2, 2), given, memory="1MiB", device="cpu")
