"""What users of PyTorch put around their models, and do to them, under `fit`: as without it."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from fit_cases import WIDTH, Stack, fitted, gradients, pair, rows, same, session_of, step  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402
from loadmaster.execute.graphs import PlannedGraph  # noqa: E402
from loadmaster.execute.module_calls import Calls  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function:UserWarning",
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Between steps.


def _steps(model: Any, count: int = 2) -> list[Any]:
    """Losses of a training of what is trained by now."""
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
    losses = []
    for seed in range(count):
        optimizer.zero_grad()
        losses.append(step(model, rows(seed=seed)))
        optimizer.step()
    return losses


def _parametrize(model: Any) -> Any:
    parametrizations.weight_norm(model.layers[1])
    return _steps(model)


def _prune(model: Any) -> Any:
    prune.l1_unstructured(model.layers[1], "weight", 0.5)
    losses = _steps(model)
    prune.remove(model.layers[1], "weight")
    return losses, _steps(model)


def _fill_from_vector(model: Any) -> Any:
    vector = nn.utils.parameters_to_vector(model.parameters()).detach() * 1.5
    nn.utils.vector_to_parameters(vector, model.parameters())
    with torch.no_grad():
        before = model(rows())
        vector.mul_(0.5)  # parameters look at it
        after = model(rows())
    return before, after, _steps(model)


def _replace_layers(model: Any) -> Any:
    with torch.no_grad():
        torch.manual_seed(1)
        model.layers[2] = nn.Linear(WIDTH, WIDTH)
        same_shape = model(rows())
        model.layers[2].weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        other_weight = model(rows())
    model.layers.append(nn.Linear(WIDTH, 3))
    return same_shape, other_weight, _steps(model)


def _freeze_in_the_middle(model: Any) -> Any:
    losses = _steps(model)
    model.layers[0].requires_grad_(False)
    losses += _steps(model)
    model.requires_grad_(True)
    return losses, _steps(model)


def _step_in_hooks(model: Any) -> Any:
    """An optimizer for each parameter, which steps as soon as the gradient is there and lets go of it."""
    optimizers = {each: torch.optim.SGD([each], 0.1) for each in model.parameters()}

    def take(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in optimizers:
        each.register_post_accumulate_grad_hook(take)
    return [step(model, rows(seed=seed)) for seed in range(3)]


def _checkpoint_calls(model: Any) -> Any:
    given = rows().requires_grad_()
    checkpoint(model, given, use_reentrant=False).square().mean().backward()
    return given.grad, gradients(model)


def _call_with_other_weights(model: Any) -> Any:
    others = {name: each.detach() * 1.5 for name, each in model.named_parameters()}
    given = torch.func.functional_call(model, others, rows())
    return given, torch.func.functional_call(model, {"layers.0.weight": others["layers.0.weight"]}, rows())


@pytest.mark.parametrize(
    "act",
    [
        _parametrize,
        _prune,
        _fill_from_vector,
        _replace_layers,
        _freeze_in_the_middle,
        _step_in_hooks,
        _checkpoint_calls,
        _call_with_other_weights,
    ],
)
def test_what_is_done_to_a_fitted_model_does_what_it_does(act: Callable[[Any], Any]) -> None:
    plain, model = pair(Stack, rows(), training=True)
    wanted, found = act(plain), act(model)
    assert same(found, wanted)
    assert same(model(rows()), plain(rows()))
    assert session_of(model).called, "that was no plan"


def test_adapters_come_and_go() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["0", "1"], init_lora_weights=False)

    def go(model: Any) -> Any:
        torch.manual_seed(1)
        tuned = peft.get_peft_model(model, config)
        losses = _steps(tuned)
        assert model.layers[0].base_layer.weight.grad is None
        with torch.no_grad():
            adapted = tuned(rows())
            with tuned.disable_adapter():
                bare = tuned(rows())
            tuned.merge_adapter()
            merged = tuned(rows())
            tuned.unmerge_adapter()
            return losses, adapted, bare, merged, tuned.merge_and_unload()(rows())

    plain, model = pair(lambda: Stack(3), rows(), training=True)
    wanted, found = go(plain), go(model)
    assert same(found, wanted)
    assert len(session_of(model).graphs) > 2


# Other threads, other processes.


def test_calls_of_several_threads() -> None:
    plain, model = pair(lambda: Stack(3), rows(), training=True)

    def gradient(model: Any, seed: int) -> Any:
        return torch.autograd.grad(model(rows(8 + 8 * (seed % 2), seed)).sum(), list(model.parameters()))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: gradient(model, seed), range(12)))
    assert same(found, [gradient(plain, seed) for seed in range(12)])


def test_a_step_that_waits_for_its_turn_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = pair(Stack, rows(), training=True)
    own = PlannedGraph.backward

    def after_another_thread(self: PlannedGraph, *args: Any) -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model, rows(seed=2)).result()
        return own(self, *args)

    monkeypatch.setattr(PlannedGraph, "backward", after_another_thread)
    assert same(step(model, rows()), step(plain, rows()))
    assert same(gradients(model), gradients(plain))


FORKS = """
import multiprocessing, torch
from fit_cases import Stack, pair, rows, same

torch.set_num_threads(1)  # as in PyTorch's own workers: with another number there would be another graph
with torch.no_grad():
    plain, model = pair(Stack, rows())
    model(rows())  # threads that copy have begun
    here, there = multiprocessing.Pipe(duplex=False)

    def work():
        there.send(model(rows()).numpy())

    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    there.close()  # so that a worker that dies is the end of the pipe
    found = torch.from_numpy(here.recv())
    worker.join()
    print(same(found, plain(rows())))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_a_forked_worker_has_the_module_itself() -> None:
    # In an interpreter without what other tests have begun: JAX allows no forks beside its threads.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


# Those who look at calls.


def _transforms(model: Any) -> Any:
    state = {name: each.detach() for name, each in model.named_parameters()}

    def loss(state: Any, x: Any) -> Any:
        return torch.func.functional_call(model, state, (x[None],)).square().mean()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, rows(3))


def _forward_derivative(model: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(rows(), rows(seed=2)))).tangent


def _shapes(model: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return list(model(torch.empty(4, WIDTH)).shape)


def _script(model: Any) -> Any:
    return torch.jit.script(model)(rows())


class Two(nn.Module):
    """As TorchScript takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.filterwarnings("ignore:`torch.jit")  # its category depends on the version
@pytest.mark.parametrize("look", [_transforms, _forward_derivative, _shapes, _script])
def test_other_ways_of_looking_at_calls_see_the_module_itself(look: Callable[[Any], Any]) -> None:
    plain, model = pair(Two, rows())
    assert same(look(model), look(plain))


@torch.no_grad()
def test_hooks_for_every_module_are_called_whenever_they_come() -> None:
    _, model = pair(lambda: Stack(2), rows())
    seen: list[str] = []
    calls = [seen]

    def see(layer: Any, *_: Any) -> None:
        calls[0].append(type(layer).__name__)

    hook = nn.modules.module.register_module_forward_hook(see)
    try:
        model(rows())
    finally:
        hook.remove()
    assert sorted(set(seen)) == ["Dropout", "Linear", "Stack"]
    model(rows())
    assert seen.count("Stack") == 1


@torch.no_grad()
def test_a_fitted_model_is_compiled_already() -> None:
    plain, model = pair(Stack, rows())
    for compiled in (model.compile(backend="eager") or model, torch.compile(model, backend="eager")):
        session_of(model).called.clear()
        assert same(compiled(rows()), plain(rows()))
        assert session_of(model).called, "that was no plan"


def test_weights_that_accelerate_moves_are_refused() -> None:
    model = Stack()
    vars(model.layers[1])["_hf_hook"] = SimpleNamespace(execution_device="cpu")
    with pytest.raises(LoadmasterError, match=r"'layers\.1' between devices.*without device_map"):
        fitted(model, rows())
    vars(model.layers[1])["_hf_hook"] = SimpleNamespace()  # one that moves nothing
    fitted(model, rows())


# What `generate` calls by itself.


class Wrapper(nn.Module):
    """A model inside, as adapters have it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.generation_config = model.generation_config

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def generate(self, *args: Any, **options: Any) -> Any:
        return self.model.generate(*args, **options)


def _t5() -> Any:
    transformers = pytest.importorskip("transformers")
    config = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "vocab_size": 64}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**config, decoder_start_token_id=0, pad_token_id=0)
    )
    return model.eval()


def test_what_generate_calls_by_itself_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Wrapper(_t5())
    model = fitted(copy.deepcopy(plain), memory="8MiB")
    planned: set[str] = set()
    own = Calls._called

    def spy(self: Calls, *args: Any, **options: Any) -> Any:
        planned.add(type(self.module).__name__)
        return own(self, *args, **options)

    monkeypatch.setattr(Calls, "_called", spy)
    words = torch.tensor([[5, 6, 7, 8]])
    options: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False}
    assert torch.equal(model.generate(words, **options), plain.generate(words, **options))
    assert planned == {"T5Stack", "T5ForConditionalGeneration"}
    assert not any("_compiled_call_impl" in vars(each) for each in model.modules() if each is not model)


class Asked(nn.Module):
    """Gives back what `generate` was asked for."""

    generation_config = SimpleNamespace()
    _can_compile_fullgraph = True

    def generate(self, **options: Any) -> Any:
        self.meanwhile()
        return options

    def meanwhile(self) -> None: ...


def test_learned_prompts_get_no_cache_of_one_size() -> None:
    model = fitted(Asked())
    assert model.generate() == {"cache_implementation": "static"}
    model.active_peft_config = SimpleNamespace(is_prompt_learning=True)
    assert model.generate() == {}


def test_generations_of_several_threads_come_one_after_another() -> None:
    model, free = fitted(Asked()), []

    def meanwhile() -> None:
        turn = session_of(model)._generation
        with ThreadPoolExecutor(1) as pool:
            free.append(pool.submit(turn.acquire, blocking=False).result())

    model.meanwhile = meanwhile
    model.generate()
    assert free == [False]
    meanwhile()
    assert free == [False, True]


class Looking(nn.Linear):
    """Ends a graph, as it looks at a number."""

    def forward(self, x: Any) -> Any:
        found = super().forward(x)
        return found * 2 if found.abs().max().item() > 100 else found


def _ended_inside() -> Any:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return nn.Sequential(*layers[:2], Looking(WIDTH, WIDTH), *layers[2:])


def _hooked() -> Any:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)])
    model[1].register_full_backward_hook(lambda *_: None)
    return model


class Sequences(nn.Module):
    """PyTorch's own transformer looks whether a mask hides what comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Transformer(WIDTH, 4, 1, 1, WIDTH, dropout=0.0, batch_first=True)

    def forward(self, x: Any) -> Any:
        words = x[None]
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.whole(words, words, tgt_mask=mask)


@pytest.mark.parametrize("make", [_ended_inside, _hooked, Sequences])
def test_layers_around_what_ends_a_graph_have_graphs_of_their_own(make: Callable[[], Any]) -> None:
    plain, model = pair(make, rows(), training=True)
    session = session_of(model)
    assert session.memory is not None and not session.unread_bytes
    for seed in (1, 2):
        assert same(step(model, rows(seed=seed)), step(plain, rows(seed=seed)))
        assert same(gradients(model), gradients(plain))
        assert len(session.called) > 1, "they are used, not only made"
    twin = copy.deepcopy(model)
    assert not any("_compiled_call_impl" in vars(layer) for layer in twin.modules())
    fitted(model, rows(), memory="16MiB")
    assert same(step(model, rows()), step(plain, rows()))


def test_experts_that_get_other_rows_each_time_have_no_plan_for_every_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))

        def forward(self, x: Any) -> Any:
            hidden = self.first(x)
            found = torch.zeros_like(hidden)
            for number, expert in enumerate(self.experts):
                mine = (hidden[:, 0] > 0) == bool(number)
                found[mine] = expert(hidden[mine])
            return found

    plain, model = pair(Routed, rows(), memory="2MiB", quiet=False)
    with torch.no_grad():
        for seed in range(30):
            assert same(model(rows(seed=seed)), plain(rows(seed=seed)))
    assert len(session_of(model).graphs) < 30 and len(session_of(model).called) == 1, "the first layer's"
    assert "4 layers of Routed (Linear, Sequential) came in more than 3 sizes" in capsys.readouterr().err


def test_a_layer_of_a_model_in_pieces_may_be_fitted_too() -> None:
    """Whoever calls a layer in another way goes on doing so when the model leaves it."""
    plain, model = pair(_ended_inside, rows(), memory="2MiB")
    fitted(model[0], rows(), memory="1MiB")
    with pytest.raises(LoadmasterError, match="can't run in"):
        fitted(model[1], rows(), memory="1KiB")
    with torch.no_grad():
        for count in range(4, 16):
            assert same(model(rows(count)), plain(rows(count)))
    assert model[0]._compiled_call_impl is model[0].fitted
    twin = fitted(model, rows(), memory="3MiB")
    assert same(twin(rows()), plain(rows()))


def test_buffers_are_what_they_were_before_a_model_in_pieces_was_tried() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), Looking(WIDTH, WIDTH))

    plain, model = pair(make, rows(), training=True)
    assert same(dict(model.named_buffers()), dict(plain.named_buffers()))
    for _ in range(2):
        assert same(step(model, rows()), step(plain, rows()))
        assert same(dict(model.named_buffers()), dict(plain.named_buffers()))


def test_a_model_in_pieces_that_is_gone_leaves_nothing() -> None:
    """Dynamo compiles functions for the rest of a call that many models have: it keeps those."""

    def trained() -> list[Any]:
        _, model = pair(_ended_inside, rows(), training=True)
        model(rows()).sum().backward()
        session = session_of(model)
        return [weakref.ref(each) for each in (model, session, *session.graphs)]

    left = trained()
    for _ in range(4):  # what a finalizer lets go of is collected next time
        gc.collect()
    assert not any(each() is not None for each in left)


@pytest.mark.parametrize("memory", ["100%", "50%"])
def test_weights_that_change_before_a_backward_call_are_refused(memory: str) -> None:
    plain, model = pair(lambda: Stack(3), rows(), training=True, memory=memory)

    def changed(each: Any, which: str) -> Any:
        torch.manual_seed(0)
        found = each(rows()).square().mean()
        with torch.no_grad():
            dict(each.named_parameters())[which].mul_(1.5)
        found.backward()
        return gradients(each)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed(plain, "layers.2.weight")
    with pytest.raises(LoadmasterError, match=r"'layers.2.weight' of 'Stack' was modified in place"):
        changed(model, "layers.2.weight")
    for each in (plain, model):
        each.zero_grad()
    # Neither needs the first one for a gradient of its own.
    assert same(changed(model, "layers.2.bias"), changed(plain, "layers.2.bias"))


def test_what_is_in_no_graph_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Tables(nn.Module):
        """The last weight is read between two graphs."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.table = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            found = self.first(x)
            torch._dynamo.graph_break()
            return by_hand(found, self.table)

    by_hand = torch.compiler.disable(lambda x, table: x @ table)
    plain, model = pair(Tables, rows(), quiet=False)
    assert same(model(rows()), plain(rows()))
    assert "64.00 KiB of the 128.50 KiB of weights of Tables are in no graph" in capsys.readouterr().err
