"""The backend of `torch.compile`: every graph that Dynamo finds becomes a `PlannedGraph`.

    torch.compile(model, backend="loadmaster", options={"memory": "12GiB"})

A model on the CPU runs on the GPU: its graphs are traced as if their tensors were there, and its weights stay where
they are. AOTAutograd makes one graph of a training step, which is planned as one; its partitioner is only asked which
results there are.
"""

from __future__ import annotations

import copy
import gc
import logging
import random
import types
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from loadmaster.errors import BadProgram, LoadmasterError, require
from loadmaster.execute.graphs import PlannedGraph
from loadmaster.execute.numbers import compile_with_numbers, has_numbers
from loadmaster.execute.pinned import dense_parts, version_of, wraps_others
from loadmaster.execute.session import Session
from loadmaster.program.importers.torch.compiled import Prepared, prepare
from loadmaster.program.importers.torch.importer import quiet
from loadmaster.program.importers.torch.masks import lay_out_masks, simplify_masks
from loadmaster.program.importers.torch.nested import inline_regions
from loadmaster.program.importers.torch.recurrent import keep_recurrent
from loadmaster.program.importers.torch.repeated_layers import LayersDiffer, expand_layers, share_layers


def compile_graph(session: Session, module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """What Dynamo calls with a graph of torch functions and its example inputs."""
    torch = require("torch", "torch")
    session.fill_origins()  # what could not be traced runs on the host
    session.defers = False
    if has_numbers(module):

        def run_as_it_is(*args: Any) -> Any:
            session.fill_origins()
            return module(*args)

        return compile_with_numbers(
            module, inputs, lambda *graph: compile_graph(session, *graph), run_as_it_is, _RECOMPILES
        )
    device = torch.device(session.device)
    inline_regions(module)
    simplify_masks(module)
    keep_recurrent(module)
    if device.type == "cuda":
        lay_out_masks(module)
    elsewhere = [each for each in inputs if each.device.type not in (device.type, "meta")]
    if not elsewhere:
        return _compiled(session, module, inputs)
    if any(each.device.type == device.type and each.ndim for each in inputs):
        raise BadProgram(
            f"a graph of '{type(module).__name__}' has tensors on {device} and on {elsewhere[0].device}",
            object=str(device),
            remedy="leave the model on the CPU and give it inputs that are there: its graphs run on the device "
            "all the same; or move all of it; where layers were put in after fit, call fit again",
        )
    with torch.device(device):
        return _compiled(session, retargeted(module, device), faked(inputs, device), moved=True)


def refuse_packed(prepared: Prepared, name: str) -> None:
    """A graph that was traced on the CPU runs on the device. Layers that pack their weights when they are called
    first have packed them for the CPU, and would for ever."""
    given = {node.name: node.meta["val"].dtype for node in _placeholders(prepared)}
    for at in sorted(prepared.replaced):
        if not given[prepared.primals[at]].is_floating_point:
            raise BadProgram(
                f"a layer of '{name}' packs its weight anew when it is called, and would do so for the CPU",
                object=name,
                number=at,
                remedy='give weights="device"',
            )


def _compiled(
    session: Session, module: Any, inputs: Sequence[Any], *, moved: bool = False
) -> Callable[..., Any]:
    """AOTAutograd's function over a graph, with planned ones in place of compiled ones. `moved`: to another device than
    it was traced on."""
    require("torch", "torch")
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    joint: list[Prepared] = []
    returned: list[int] = []
    own_name, here = session.name, weakref.ref(session)  # AOTAutograd keeps the functions below

    def planned(found: Prepared) -> PlannedGraph:
        session = here()
        assert session is not None, "whoever calls the model has its session"
        number = len(session.graphs)
        name = own_name if not number else f"{own_name} (graph {number + 1})"
        return PlannedGraph(found, session, name)

    def prepared(graph: Any, forward_outputs: int | None, primals: int) -> Prepared:
        found = prepare(graph, forward_outputs, primals, own_name)
        if moved:
            refuse_packed(found, own_name)
        return found

    def partition(joined: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        primals = len(joint_inputs[0])
        parts = default_partition(joined, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
        _save_something(parts[0], parts[1], num_fwd_outputs)
        expand_layers(joined)
        joint.append(prepared(joined, num_fwd_outputs, primals))
        returned.append(num_fwd_outputs)
        return parts

    def training(forward: Any, _: Any) -> Callable[[list[Any]], list[Any]]:
        graphs[:] = [planned(joint[-1])]
        leaves = next(node for node in reversed(forward.graph.nodes) if node.op == "output").args[0]
        saved = list(leaves)[returned[-1] :]
        position = {node.name: at for at, node in enumerate(_placeholders(forward))}

        def call(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            found, token = graphs[0].forward(given)
            kept = [given[position[node.name]] if node.name in position else token for node in saved]
            return [*found, *kept]

        call._boxed_call = True  # type: ignore[attr-defined]
        tokens[:] = [at for at, node in enumerate(saved) if node.name not in position][:1]
        return call

    def backward(_: Any, __: Any) -> Callable[[list[Any]], list[Any]]:
        count = len(joint[0].tangents)

        def call(args: list[Any]) -> list[Any]:
            tangents = args[len(args) - count :]
            token = args[tokens[0]]  # as long as somebody has it, calls of other threads keep the step
            args.clear()
            return graphs[0].backward(int(token), tangents)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def inference(forward: Any, example: Any) -> Callable[[list[Any]], list[Any]]:
        expand_layers(forward)
        graphs[:] = [planned(prepared(forward, None, len(example)))]

        def call(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            return graphs[0].forward(given)[0]

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    graphs: list[PlannedGraph] = []
    tokens: list[int] = []
    session.compiled.append(graphs)
    compiler = aot_autograd(
        fw_compiler=training,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    with quiet():
        shared = share_layers(module, inputs)
        for _ in range(_TRIES):
            if shared is None:
                break
            try:
                with shared.known():
                    return compiler(shared.module, list(inputs))  # type: ignore[no-any-return]
            except LayersDiffer as error:
                shared = shared.without(error.name)
            except LoadmasterError:
                raise
            except Exception:  # what has to do with the whole is said again
                break
        return compiler(module, list(inputs))  # type: ignore[no-any-return]


_TRIES = 3
"""How often a graph is traced with layers that are alike, if some turn out not to be, before it is traced as it is."""


def _save_something(forward: Any, backward: Any, outputs: int) -> None:
    """Let the forward graph save at least one tensor that it makes: in its place goes the token by which the backward
    call finds its step."""
    output = next(node for node in reversed(forward.graph.nodes) if node.op == "output")
    leaves = list(output.args[0])
    if any(node.op != "placeholder" for node in leaves[outputs:]):
        return
    made = next(
        node
        for node in forward.graph.nodes
        if hasattr(node.meta.get("val"), "dtype") and node.op != "placeholder"
    )
    output.args = ((*leaves, made),)
    tangent = _placeholders(backward)[len(leaves) - outputs]
    with backward.graph.inserting_before(tangent):
        placed = backward.graph.placeholder(made.name)
    placed.meta = dict(made.meta)
    for module in (forward, backward):
        module.recompile()


def _placeholders(module: Any) -> list[Any]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def faked(inputs: Sequence[Any], device: Any) -> list[Any]:
    """Tensors without data that claim to be on the device."""
    torch = require("torch", "torch")
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    def claim(each: Any) -> Any:
        if wraps_others(each):
            names, context = each.__tensor_flatten__()
            parts = {name: claim(getattr(each, name)) for name in names}
            context = tree_map_only(torch.device, lambda _: device, context)
            found = type(each).__tensor_unflatten__(parts, context, each.shape, each.stride())
        else:
            found = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device)
        return found.requires_grad_(each.requires_grad)

    with detect_fake_mode(list(inputs)) or FakeTensorMode():
        return [claim(each) for each in inputs]


def retargeted(module: Any, device: Any) -> Any:
    """A graph that Dynamo traced on the CPU, for another device: what names a device names that one."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map_only

    graph = module.graph
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        there = (node.args, node.kwargs)
        node.args, node.kwargs = tree_map_only(torch.device, lambda each: _moved(each, device), there)
        node.kwargs = {
            name: device if name == "device" and value == "cpu" else value
            for name, value in node.kwargs.items()
        }
        if node.op == "call_method" and node.target == "cpu":
            node.target, node.args = "to", (node.args[0], device)
        if node.op == "call_method" and node.target == "to":
            node.args = tuple(
                device if isinstance(each, str) and each == "cpu" else each for each in node.args
            )
        if getattr(node.target, "__name__", "") == "_enter_autocast" and node.args[0] == "cpu":
            dtype, *rest = node.args[1:]
            node.args = (device.type, torch.bfloat16 if dtype is None else dtype, *rest)
    for each in module.children():  # of higher-order ops
        if isinstance(each, torch.fx.GraphModule):
            retargeted(each, device)
    for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        module._parameters.pop(name, None)
        module._buffers[name] = value.detach().to(device)
    module.recompile()
    return module


def _moved(each: Any, device: Any) -> Any:
    return device if each.type == "cpu" else each


def own_function(self: Any) -> Callable[..., Any]:
    """A module's call as a function of its own code: Dynamo leaves out what only PyTorch's own files call, and keeps
    what it compiled by code. What it made stands among the function's globals: in a module's it would stay there. It is named `self`, as layers are called in graphs by what Dynamo finds them through."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return type(self)._call_impl(self, *args, **kwargs)

    code = call.__code__.replace(co_name="fitted_call")
    own = {name: globals()[name] for name in ("__builtins__", "__name__")}
    own["torch"] = require("torch", "torch")  # what Dynamo makes of it names that, before PyTorch 2.7
    return types.FunctionType(code, own, "fitted_call", None, call.__closure__)


def is_traced_otherwise() -> bool:
    """Whether somebody looks at the calls that are made who takes no compiled function: `torch.jit.trace` or `torch.fx`,
    the transforms of `torch.func`, derivatives that go forward, a mode of tensors without data."""
    torch = require("torch", "torch")
    fx = torch.fx._symbolic_trace
    is_fx = getattr(fx, "is_fx_symbolic_tracing", fx.is_fx_tracing)  # the latter in PyTorch 2.8
    return bool(
        torch.jit.is_tracing()
        or is_fx()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def hooks_of_all() -> tuple[int, ...]:
    """Which hooks there are that PyTorch calls for every module of the process: graphs that were traced without any do
    not see that one has come."""
    of_all = require("torch", "torch").nn.modules.module
    kinds = ("forward_pre", "forward", "backward_pre", "backward")
    return tuple(number for kind in kinds for number in getattr(of_all, f"_global_{kind}_hooks"))


class Traced(NamedTuple):
    """What Dynamo has done so far in this process, by its own count."""

    frames: int
    whole: int
    """Frames of which it made a graph."""
    breaks: int

    @classmethod
    def now(cls) -> Traced:
        require("torch", "torch")
        from torch._dynamo.utils import counters

        frames = counters["frames"]
        return cls(int(frames["total"]), int(frames["ok"]), sum(counters["graph_break"].values()))

    def since(self, before: Traced) -> Traced:
        """What was done since then."""
        return Traced(*(one - other for one, other in zip(self, before, strict=True)))


def break_reasons() -> Counter[str]:
    """Why Dynamo has ended graphs so far in this process: the first line of each reason, and how often."""
    require("torch", "torch")
    from torch._dynamo.utils import counters

    found = Counter[str]()
    for reason, count in counters["graph_break"].items():
        found[(str(reason).strip() or "no reason given").splitlines()[0][:200]] += int(count)
    return found


ONE_GRAPH = Traced(frames=1, whole=1, breaks=0)
"""A call was traced as one graph, from its beginning to its end."""
NOTHING = Traced(0, 0, 0)


def spare_zeros(found: Any) -> None:
    """Let results of a call that no loss depends on (logits, beside a loss of their own) come back without a gradient,
    in place of zeros of their size."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    for each in tree_leaves(found):
        maker = each.grad_fn if isinstance(each, torch.Tensor) else None
        if maker is not None and type(maker).__name__ == "CompiledFunctionBackward":
            maker.materialize_grads = False


_RECOMPILES = 64
"""New shapes and modes that one model may come with."""


def dynamo_options() -> dict[str, Any]:
    """How Dynamo looks at a fitted model: recurrent layers are ops, hooks that a user registers later are followed as
    well, and a message that a layer logs is left out rather than that it breaks the graph in two."""
    torch = require("torch", "torch")
    _break_at_packed()
    names = [
        name for name in dir(logging.Logger) if name.startswith(("debug", "info", "warn", "error", "log"))
    ]
    logged = _Functions(
        getattr(logging.Logger, name) for name in names
    )  # with those that libraries have added
    logged.update(getattr(torch._dynamo.config, "ignore_logging_functions", ()))
    options = {
        "allow_rnn": True,
        "recompile_limit": _RECOMPILES,
        "run_gc_after_compile": False,  # half a second of the first answer; Python's own collector comes soon enough
        "skip_nnmodule_hook_guards": False,
        "ignore_logging_functions": logged,  # PyTorch 2.8 has none
    }
    if not hasattr(torch._dynamo.config, "recompile_limit"):  # its name before PyTorch 2.7
        options["cache_size_limit"] = _RECOMPILES
    return {name: value for name, value in options.items() if hasattr(torch._dynamo.config, name)}


def _break_at_packed() -> None:
    """Lengths of packed sequences are numbers that a graph does not have. Before PyTorch 2.13 its tracer does not see
    that, and ends in an error."""
    torch = require("torch", "torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        torch._dynamo.disallow_in_graph(torch._VF._pad_packed_sequence)
        warnings.filterwarnings("ignore", "Dynamo does not know .*_pad_packed_sequence", UserWarning)


_COUNTERS = (r".*\.cumulative_length_int$",)
"""Where caches of transformers count what they have seen: no op reads it, and every token changes it."""


def counting_numbers() -> AbstractContextManager[Any]:
    """Let Dynamo take those numbers as inputs, not as a part of the graph that is another one for each of them."""
    config = require("torch", "torch").compiler.config
    if not hasattr(config, "dynamic_sources"):  # before PyTorch 2.8
        return nullcontext()
    own = [each for each in (config.dynamic_sources, *_COUNTERS) if each]
    return config.patch(dynamic_sources=",".join(own))  # type: ignore[no-any-return]


class _Functions(set[Any]):
    """Functions that are listed by name: some versions of Dynamo sort every option that is a set for their own log, and
    functions have no order."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({str(getattr(each, "__qualname__", each)) for each in super().__iter__()}))


def root_error(error: BaseException) -> LoadmasterError | None:
    """Ours behind an error of PyTorch's compiler."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, LoadmasterError):
            return seen
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    return None


def innermost(error: BaseException) -> BaseException:
    """What an error of PyTorch's compiler comes from."""
    inside = getattr(error, "inner_exception", None) or error.__cause__
    return error if inside is None else innermost(inside)


@contextmanager
def without_collection() -> Iterator[None]:
    """Tracing makes millions of objects that stay, and Python's collector would look at them again and again."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


_DUMPS = ("_subclasses.fake_tensor", "_dynamo.variables.tensor")


@contextmanager
def without_dumps() -> Iterator[None]:
    """Of an op that can't be traced PyTorch writes the stack on stderr, besides raising it; of numbers that a module
    looks at it says how its own compiler could take them."""
    loggers = [logging.getLogger(f"torch.{name}") for name in _DUMPS]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, disabled in zip(loggers, before, strict=True):
            each.disabled = disabled


@contextmanager
def leaving_nothing(model: Any, inputs: Any, overwritten: list[tuple[Any, Any]]) -> Iterator[None]:
    """Calls of a model are tried: what they do to weights and buffers, to plain attributes of layers (counters, lists of
    what was seen, generators), to the tensors that they are given and to random numbers of Python and NumPy is undone.
    `overwritten`: weights that graphs have changed, and what they were; nobody has copies of the others."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    layers = [each for each in model.modules() if not isinstance(each, torch.jit.ScriptModule)]
    buffers = [
        (layer, name, None if each is None else each.detach().clone())
        for layer in layers
        for name, each in layer._buffers.items()
    ]
    attributes = [(layer, _attributes(layer)) for layer in layers]
    hooks = _hooks(layers)
    weights = [(each, version_of(each)) for each in model.parameters()]
    given = [each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor)]
    plain = [each for each in given if not each.is_inference()]
    values = [
        (each, each._version, each.detach().to("cpu", copy=True)) for each in plain
    ]  # no room of a device
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002 (of whoever uses that one)
    try:
        yield
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])  # noqa: NPY002
        hooked = _hooks(layers) != hooks
        changed = [each for each, version in weights if version_of(each) != version]
        addresses = {part.data_ptr() for each in changed for part in dense_parts(each)}
        # What a first call does to weights for good (it divides them, or packs them) stays whole, and with it the
        # attribute that says so.
        stays = bool(addresses - {value.data_ptr() for value, _ in overwritten})
        for layer, known in [] if stays else attributes:
            _put_back_attributes(layer, known, keeps_new=hooked)
        with torch.no_grad():
            for value, before in [] if stays else reversed(overwritten):
                value.copy_(before)
            for layer, name, before in buffers:  # after those that graphs have changed: layers did so before
                put_back(layer, name, before)
            for each, version, before in values:
                if each._version != version:
                    each.copy_(before)
        overwritten.clear()


_COLLECTIONS = (list, dict, set, deque)


def _attributes(layer: Any) -> dict[str, tuple[Any, Any]]:
    """A layer's own attributes by name, not those that every module has, and what is in those that can change."""
    torch = require("torch", "torch")
    every = {*vars(torch.nn.Module()), "_compiled_call_impl"}  # the latter is `fit`'s own

    def content(value: Any) -> Any:
        if isinstance(value, torch.Generator):
            return value.get_state()
        return copy.copy(value) if type(value) in _COLLECTIONS else None

    return {name: (value, content(value)) for name, value in vars(layer).items() if name not in every}


def _hooks(layers: Sequence[Any]) -> list[tuple[int, ...]]:
    return [(*each._forward_pre_hooks, *each._forward_hooks) for each in layers]


def _put_back_attributes(layer: Any, known: Mapping[str, tuple[Any, Any]], *, keeps_new: bool) -> None:
    """`keeps_new`: a call has registered hooks, which stay (transformers: to collect hidden states), and with them the
    attribute that says so."""
    torch = require("torch", "torch")
    for name in () if keeps_new else _attributes(layer).keys() - known.keys():
        del vars(layer)[name]
    for name, (value, content) in known.items():
        vars(layer)[name] = value
        if isinstance(value, torch.Generator):
            value.set_state(content)
        elif content is not None:
            value.clear()
            (value.extend if isinstance(value, (list, deque)) else value.update)(content)


def put_back(layer: Any, name: str, before: Any) -> None:
    """A buffer as it was: some layers change theirs, others put another one in its place, of another shape."""
    torch, now = require("torch", "torch"), layer._buffers.get(name)
    if before is None or now is None or (now.shape, now.dtype) != (before.shape, before.dtype):
        layer._buffers[name] = before if now is None or before is None else before.to(now.device)
        return
    with torch.no_grad():
        if now.layout != torch.strided or not torch.equal(now, before.to(now.device)):
            now.copy_(before)
