"""Quantized weights, as tensors that wrap others, and what else weights may be: a fitted module gives what it gave."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import loadmaster
from loadmaster import LoadmasterError
from loadmaster.execute import module_calls
from loadmaster.execute.compile_backend import faked, refuse_packed
from loadmaster.execute.optimizer import state_bytes
from loadmaster.execute.pinned import dense_parts
from loadmaster.execute.statics import to_device
from loadmaster.program.kinds import from_numpy
from tests.fit_cases import WIDTH, fitted, gradients, pair, prepared_graph, rows, same, session_of, step

aten = torch.ops.aten


class Codes(torch.Tensor):
    """A weight of int8 codes and a scale for each row, read as float32, as libraries for quantization have them."""

    @staticmethod
    def __new__(cls, codes: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, codes.shape, dtype=scale.dtype, device=codes.device
        )

    def __init__(self, codes: Any, scale: Any) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, weight: Any) -> Codes:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def read(self) -> Any:
        return self.codes * self.scale

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Codes({tuple(self.shape)})"

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, _: Any, __: Any, ___: Any) -> Codes:
        return cls(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            return cls(*(func(each) for each in (args[0].codes, args[0].scale)))
        if func == aten._to_copy.default:
            return cls(args[0].codes, func(args[0].scale, **kwargs))
        plain = [each.read() if isinstance(each, Codes) else each for each in args]
        found = func(*plain, **(kwargs or {}))
        if func._schema.name.endswith("_") and isinstance(args[0], Codes):
            args[0].codes.copy_((plain[0] / args[0].scale).round())
            return args[0]
        return found


class Quantized(nn.Module):
    """Layers with quantized weights and small ones beside them that are trained."""

    def __init__(self, depth: int = 4, *, trained: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.adapters = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth))
        for layer in self.layers:
            layer.weight = nn.Parameter(Codes.of(layer.weight.detach()), requires_grad=trained)

    def forward(self, x: Any) -> Any:
        for layer, adapter in zip(self.layers, self.adapters, strict=True):
            x = torch.tanh(layer(x)) + adapter(x)
        return x


def test_a_weight_that_wraps_others_is_planned_by_those() -> None:
    x = rows()
    plain, model = pair(Quantized, x)
    with torch.no_grad():
        assert same(model(x), plain(x))
    session = session_of(model)
    (graph,) = session.graphs
    assert graph.report()["copies"] > 0
    for part in dense_parts(model.layers[1].weight):
        assert session.statics[part.untyped_storage().data_ptr()].name == "layers.1.weight"
    with torch.no_grad():
        model.layers[0].weight.codes.neg_()  # what it wraps is changed
        plain.layers[0].weight.codes.neg_()
        assert same(model(x), plain(x))
        assert same(copy.deepcopy(model)(x), plain(x))


@pytest.mark.parametrize("training", [False, True])
def test_the_type_of_quantized_weights_changes(training: bool) -> None:
    def make() -> Any:
        made = Quantized()
        made.layers[1].weight = made.layers[0].weight
        return made

    x = rows()
    plain, model = pair(make, x, training=training)
    for dtype in (torch.float64, torch.float32):
        for each in (plain, model):
            each.to(dtype)
        with torch.set_grad_enabled(training):
            assert same(model(x.to(dtype)), plain(x.to(dtype)))
    assert model.layers[1].weight is model.layers[0].weight


@pytest.mark.parametrize("trained", [False, True])
def test_training_beside_quantized_weights(trained: bool) -> None:
    x = rows()
    plain, model = pair(functools.partial(Quantized, trained=trained), x, training=True)
    assert same(step(model, x), step(plain, x))
    assert same(gradients(model), gradients(plain))
    assert (model.layers[0].weight.grad is not None) == trained


def test_an_optimizer_steps_weights_that_wrap_others() -> None:
    x = rows()
    torch.manual_seed(0)
    plain = Quantized(trained=True)
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(each.parameters(), 0.5) for each in (plain, model)]
    fitted(model, x, optimizer=optimizers[1])
    for _ in range(4):  # on the host and on the device
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            step(each, x)
            optimizer.step()
    assert same(model.layers[0].weight.codes, plain.layers[0].weight.codes)
    for one, other in zip(model.adapters, plain.adapters, strict=True):
        torch.testing.assert_close(one.weight, other.weight)


def test_a_graph_for_the_device_sees_what_is_wrapped_there() -> None:
    weight = Codes.of(torch.randn(8, 8))
    found, plain = faked([weight, torch.ones(2)], torch.device("cuda", 0))
    assert isinstance(found, Codes) and found.shape == weight.shape
    assert {str(each.device) for each in (found, plain, *dense_parts(found))} == {"cuda:0"}
    assert found.codes.dtype == torch.int8


def test_a_weight_that_can_not_be_moved_is_refused() -> None:
    class Stuck(Codes):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func == aten._to_copy.default:
                raise NotImplementedError("no such op")
            return super().__torch_dispatch__(func, types, args, kwargs)

    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(Stuck.of(model.weight.detach()), requires_grad=False)
    session: Any = SimpleNamespace(
        wait_for_begun=lambda: None, is_cuda=True, device=torch.device("meta"), name="it"
    )
    with pytest.raises(LoadmasterError, match=r"weights of 'it' can't be moved to meta .*on the CPU"):
        to_device(model, session)


# Layers that change their own weights when they are called.


class Renormed(nn.Linear):
    def forward(self, x: Any) -> Any:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.3)
        return super().forward(x)


class Shrinking(nn.Module):
    def __init__(self, size: int, _: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Any) -> Any:
        self.scale.data = self.scale.data * 0.9
        return x * self.scale


class Decaying(nn.Linear):
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.weight.mul_(0.9)
        return super().forward(x)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [Renormed, Shrinking, Decaying])
def test_a_layer_that_changes_its_weights(kind: Any, training: bool) -> None:
    x = rows()

    def make() -> Any:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), kind(WIDTH, WIDTH), nn.Tanh(), kind(WIDTH, WIDTH))

    plain, model = pair(make, x, training=training)
    for _ in range(3):
        if training:
            assert same(step(model, x), step(plain, x))
            assert same(gradients(model), gradients(plain))
        else:
            with torch.no_grad():
                assert same(model(x), plain(x))
        assert same(dict(model.state_dict()), dict(plain.state_dict()))


def test_whoever_shares_a_weight_that_is_replaced_keeps_the_old_one() -> None:
    _, model = pair(functools.partial(Renormed, WIDTH, WIDTH))
    shared = model.weight.data
    before = shared.clone()
    with torch.no_grad():
        model(rows())
    assert same(shared, before) and not same(model.weight.data, before)


def test_a_weight_that_is_packed_for_the_cpu_is_none_for_the_device() -> None:
    class Packing(nn.Module):
        def __init__(self, dtype: Any) -> None:
            super().__init__()
            self.register_buffer("codes", torch.ones(8, 8, dtype=dtype))

        def forward(self, x: Any) -> Any:
            self.codes.data = self.codes.data.t().contiguous()
            return x @ self.codes.to(x.dtype)

    with torch.no_grad():
        refuse_packed(prepared_graph(Packing(torch.float32), torch.ones(2, 8)), "it")
        with pytest.raises(LoadmasterError, match=r"a layer of 'it' packs its weight .*weights=\"device\""):
            refuse_packed(prepared_graph(Packing(torch.int8), torch.ones(2, 8)), "it")


# Weights of unusual kinds.


def test_tensors_of_inference_mode_among_plain_attributes() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = nn.Linear(WIDTH, WIDTH)
            with torch.inference_mode():
                self.meta = {"weight": torch.ones(WIDTH, WIDTH)}

        def forward(self, x: Any) -> Any:
            return x @ self.meta["weight"] + self.adapter(x)

    x, model = rows(), Kept()
    found = step(model, x)
    wanted = gradients(model)
    model.zero_grad(set_to_none=True)
    fitted(model, x)
    assert same(step(model, x), found) and same(gradients(model), wanted)


@pytest.mark.parametrize("view", [torch.conj, lambda each: each.conj().imag])
def test_weights_that_are_read_otherwise_than_they_lie(view: Any) -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", view(torch.randn(WIDTH, WIDTH, dtype=torch.complex64)))

        def forward(self, x: Any) -> Any:
            return (x.to(self.weight.dtype) @ self.weight).abs() @ torch.ones(WIDTH, WIDTH)

    x = rows()
    model = Read()
    with torch.no_grad():
        wanted = model(x)
        assert same(fitted(model, x)(x), wanted)
        model.weight.mul_(2)
        torch.testing.assert_close(model(x), 2 * wanted)


def test_names_of_small_types() -> None:
    assert from_numpy("float8_e8m0fnu") == "f8e8m0"
    assert from_numpy("float8_e4m3fnuz") == "f8e4m3fnuz"
    assert from_numpy("float4_e2m1fn_x2") == "u8"


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_inside_runs_as_it_is() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.rest = torch.jit.trace(nn.BatchNorm1d(WIDTH).eval(), rows())

        def forward(self, x: Any) -> Any:
            return self.rest(self.first(x))

    x, model = rows(), Scripted().eval()
    with torch.no_grad():
        wanted = model(x)
        assert same(fitted(model, x)(x), wanted)


# What can't be.


def test_a_model_that_only_the_compiler_fails_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise TypeError("as every version does for some models")

    monkeypatch.setattr(module_calls, "compile_graph", fails)
    model, x = nn.Linear(WIDTH, WIDTH), rows()
    before = set(vars(model))
    with pytest.raises(
        LoadmasterError,
        match="'Linear' can be called as it is, and PyTorch's compiler fails with TypeError: as every",
    ):
        fitted(model, x)
    assert set(vars(model)) == before and same(model(x), nn.functional.linear(x, model.weight, model.bias))


def test_an_error_of_the_model_is_its_own() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Any) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fitted(Wrong(WIDTH, WIDTH), rows())


def test_weights_of_several_devices_are_refused() -> None:
    class DTensor(torch.Tensor): ...

    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(DTensor))
    with pytest.raises(LoadmasterError, match="'weight' of 'Linear' is a DTensor, for several devices"):
        loadmaster.fit(model, memory="1MiB", device="cpu")


# Optimizers.


def test_a_compiled_step_is_the_streamed_one() -> None:
    x = rows()
    plain, model = pair(functools.partial(Quantized, 2))
    optimizers = [torch.optim.AdamW(each.adapters.parameters(), 1e-2) for each in (plain, model)]
    fitted(model, x, optimizer=optimizers[1])
    compiled = torch.compile(lambda: optimizers[1].step(), backend="eager")
    for _ in range(5):
        for each, act in ((plain, optimizers[0].step), (model, compiled)):
            each.zero_grad()
            step(each, x)
            act()
    for one, other in zip(model.adapters, plain.adapters, strict=True):
        torch.testing.assert_close(one.weight, other.weight, rtol=1e-4, atol=1e-6)


def test_what_an_optimizer_keeps_is_counted() -> None:
    class AdamW8bit(torch.optim.AdamW): ...

    class PagedLion8bit(torch.optim.SGD): ...

    weight = nn.Parameter(torch.randn(64, 64, dtype=torch.bfloat16))
    assert state_bytes(torch.optim.Adam([weight])) == 2 * 2 * 64 * 64
    assert state_bytes(torch.optim.SGD([weight])) == 2 * 64 * 64
    assert state_bytes(AdamW8bit([weight])) == 2 * 64 * 64
    adam = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    adam.step()
    assert state_bytes(adam) == 2 * 2 * 64 * 64 + 4  # and the number of the step
    adam.state[weight]["exp_avg"] = Codes.of(torch.randn(64, 64))
    assert state_bytes(adam) == 2 * 64 * 64 + 64 * 64 + 4 * 64 + 4
    assert state_bytes(PagedLion8bit([weight])) == 64 * 64
