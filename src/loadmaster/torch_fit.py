"""`fit`: any PyTorch model in the memory that there is, in one line.

    model = loadmaster.fit(model, example_inputs, memory="12GiB")
    loss = model(batch).loss; loss.backward(); optimizer.step()

The module stays the user's own: the same object, its parameters on the host where `state_dict`, optimizers and
checkpoints find them. Its calls go through `torch.compile` with Loadmaster's backend, which runs every graph on the
device as a plan says.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadmaster import clock
from loadmaster.errors import BadMachine, LoadmasterError, require
from loadmaster.execute import own_allocator
from loadmaster.execute.compile_backend import (
    break_reasons,
    compile_graph,
    innermost,
    leaving_nothing,
    without_collection,
)
from loadmaster.execute.generation import with_fixed_caches
from loadmaster.execute.measured_cache import cache_folder
from loadmaster.execute.module_calls import Calls
from loadmaster.execute.op_samples import sample_ops
from loadmaster.execute.optimizer import STREAM_BYTES, StreamedOptimizer, fuse, state_bytes, stream_optimizer
from loadmaster.execute.pinned import LARGE, dense_parts, leave_locked, lock_pages, unlock_left
from loadmaster.execute.session import Measure, Session, random_state, set_random_state
from loadmaster.execute.speeds import quick_machine
from loadmaster.execute.statics import apply_to_all, know, likely_on_device, measure_link, to_device, to_host
from loadmaster.machine import Machine, load_machine
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.measured_costs import MeasuredCosts
from loadmaster.search.registry import make_solver
from loadmaster.search.request import Bytes, Share, parse_capacity
from loadmaster.search.solver import Budget, solve
from loadmaster.units import PICOSECONDS, show_bytes, show_time

WEIGHTS = ("auto", "host", "device")
SEARCH_SECONDS = 20.0
_MENTIONED = 0.01
"""Share of the weights that may be in no graph without a word."""


class Fitted(Calls):
    """What `fit` has put behind a module: `model.fitted`."""

    def __init__(self, module: Any, session: Session) -> None:
        super().__init__(module, session, module)
        self.streamed: StreamedOptimizer | None = None
        self.seconds: dict[str, float] = {}
        self.hook: Any = None
        """Of `state_dict`."""
        self.before = vars(module).get("_compiled_call_impl")
        """Of a layer of a fitted model: by what that one calls it."""
        self.fit_again: Callable[[], Any] = lambda: None
        """After a refused `fit` of the same module: let this one's options hold again."""
        self._parts: dict[Any, Calls] = {}
        self.release = weakref.finalize(module, _release, session)
        self.release.atexit = False  # nothing to free then, and no thread to do it

    @contextmanager
    def with_parts(self, parts: Iterable[Any]) -> Iterator[None]:
        """Let calls of these parts of the module alone go through its plans as well."""
        before = {each: each._compiled_call_impl for each in parts}
        parts = [each for each, call in before.items() if call is None or each in self._apart]
        for each in parts:
            if each not in self._parts:
                self._parts[each] = Calls(each, self.session, self.module)
            each._compiled_call_impl = self._parts[each]
        try:
            yield
        finally:
            for each in parts:
                vars(each).pop("_compiled_call_impl", None)
                if before[each] is not None:
                    each._compiled_call_impl = before[each]

    @property
    def report(self) -> Mapping[str, Any]:
        """What the model needs and has, what is expected, and what planning took."""
        session = self.session
        graphs = [graph.report() for graph in session.graphs]
        # Of a call: graphs of other shapes and modes are no part of it.
        in_call = [graph.report() for graph in session.called] or graphs
        return {
            "memory_bytes": session.memory,
            "held_bytes": session.held_bytes,
            "weights": "device" if session.hold_statics else "host",
            "needed_bytes": max((each.get("needed_bytes", 0) for each in graphs), default=0)
            + session.held_bytes,
            "predicted_seconds": sum(each.get("predicted_seconds", 0.0) for each in in_call),
            "optimizer_seconds": session.step_seconds,
            "host_seconds": session.host_seconds or 0.0,
            "resident_seconds": sum(each.get("resident_seconds", 0.0) for each in in_call),
            "bound_seconds": sum(each.get("bound_seconds", 0.0) for each in in_call),
            "seconds": dict(self.seconds),
            "graphs": graphs,
        }

    def wait_for_plan(self, seconds: float | None = None) -> None:
        """Until the better plans are there; the next call takes them."""
        for graph in self.session.graphs:
            graph.wait(seconds)

    def plan_report(self, path: str | Path = "fit.html") -> Path:
        """Write the page that shows the largest graph's plan, beside one that streams layer by layer."""
        from loadmaster.report import write_plan_report

        if not Path(path).parent.is_dir():
            raise LoadmasterError(
                f"there is no folder '{Path(path).parent}'", object=str(path), remedy="make the folder first"
            )
        self.wait_for_plan()
        graph = max(self.session.graphs, key=lambda each: each.needed, default=None)
        if graph is None or graph.choice is None:
            raise BadMachine(
                "the model was not called yet: there is no plan to show",
                object=self.session.name,
                remedy="give fit example inputs, or call the model once",
            )
        choice, problem = graph.choice, graph.choice.problem
        layerwise = make_solver("offload", "heuristic", {"rule": "layerwise"})
        usual = solve(layerwise, problem, Budget(evaluations=1)).decision
        plans = [("layer by layer", problem.plan(usual))] if usual is not None else []
        plans.append((f"the plan in use ({choice.how})", choice.plan))
        write_plan_report(problem.program, problem.machine, plans, Path(path))
        return Path(path)


def fit(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: str | int,
    device: str | None = None,
    optimizer: Any = None,
    weights: str = "auto",
    machine: str | Machine | None = None,
    search: float | Budget = SEARCH_SECONDS,
    background: bool = True,
    measure: bool = True,
    cache: str | Path | None = None,
    quiet: bool = False,
) -> Any:
    """Let a module run within so much device memory, whatever it needs; returns the module itself.

    Args:
      model: an nn.Module, wherever it is.
      args, kwargs: example inputs; a tensor, a tuple or a dict. One forward pass is made with them, of which nothing
        is left behind, so that what can't work is said here. Without them the first call does it.
      memory: what the process may take of the device beside its context: '12GiB', bytes, or '75%' of what the
        model needs.
      device: 'cuda' where there is a GPU, else 'cpu', where a bounded arena plays the device.
      optimizer: its step is made for weights on the host: there, or on the device in pieces.
      weights: 'host': parameters stay there and come when they are needed; 'device': they lie on the device, and
        plans have the rest; 'auto': the faster by simulation.
      machine: rates and links; by default they are measured, and kept on disk.
      search: seconds, or a budget, for a better plan than the first one, which is found while that one runs; 0: none.
      background: search while the model runs; else before its first answer.
      measure: time every distinct op once, and keep the times on disk.
      cache: the folder for them, if not the user's own.
      quiet: say nothing on stderr.

    Returns:
      the module. `model.fitted.report` has figures, `model.plan_report()` writes a page.
    """
    began = clock.now()
    positional, named = _as_args(args)
    _check_type("kwargs", kwargs, (Mapping, type(None)), "example inputs by name")
    named |= dict(kwargs or {})
    for name in named:
        _check_type(
            "an input's name", name, (str,), "inputs by name, or a tuple of what the module is called with"
        )
    _check(model, (positional, named), optimizer)
    if weights not in WEIGHTS:
        raise BadMachine(
            f"weights can't be '{weights}'",
            object="weights",
            number=weights,
            remedy=f"use {', '.join(WEIGHTS)}",
        )
    options: dict[str, Any] = {
        "memory": memory,
        "device": device,
        "weights": weights,
        "machine": machine,
        "search": search,
        "background": background,
        "measure": measure,
        "cache": cache,
        "quiet": quiet,
    }
    session = _session(type(model).__name__, **options)
    earlier = getattr(model, "fitted", None)
    if isinstance(earlier, Fitted):
        _detach(model)
    if session.is_cuda:
        session.on_thread(unlock_left)
    to_host(model, session, lambda: measure_link(model, session) if measure and machine is None else None)
    fitted = Fitted(model, session)
    fitted.seconds["prepare"] = clock.now() - began
    _attach(model, fitted)
    if optimizer is not None:
        session.state_bytes = state_bytes(optimizer)
    if weights == "device" or likely_on_device(session):
        to_device(model, session)
    if positional or named:
        known = break_reasons()
        try:
            _try_once(fitted, positional, named)
        except BaseException:
            _detach(model)  # it is as it was
            if isinstance(earlier, Fitted):
                earlier.fit_again()
            raise
        reason = next(iter(break_reasons() - known), "")
        why = f" ({reason}; TORCH_LOGS=graph_breaks says where)" if reason else ""
        if not session.graphs:
            session.say(f"no op of {session.name} could be traced: it runs on the CPU, as it is{why}")
        elif reason and session.unread_bytes > session.static_bytes * _MENTIONED:
            session.say(
                f"{show_bytes(session.unread_bytes)} of the {show_bytes(session.static_bytes)} of weights of "
                f"{session.name} are in no graph: those layers run where the weights are, or not at all{why}"
            )
    if optimizer is not None and session.hold_statics and session.is_cuda:
        fuse(optimizer)
    elif optimizer is not None:
        _stream(fitted, optimizer)
    session.wait_for_begun()
    here = weakref.ref(model)  # whoever keeps what stands behind a module keeps no module
    fitted.fit_again = lambda: fit(
        here(), optimizer=optimizer, **{**options, "memory": session.memory or memory}
    )
    fitted.seconds["fit"] = clock.now() - began
    for graph in session.graphs:
        session.say(_line(graph.report()))
    return model


_SESSIONS: dict[int, tuple[Any, dict[str, Any], Session]] = {}
"""By identity of the options, and what was in them: all graphs of one `torch.compile` share a session."""


def backend(
    module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """`torch.compile(model, backend="loadmaster", options={"memory": "12GiB"})`, for models on the CPU.

    Options are those of `fit`: memory, device, machine, search, background, measure, cache, quiet.
    """
    try:
        return _backend(module, inputs, options)
    except LoadmasterError as error:
        refused = error

    def refuse(*_: Any) -> Any:
        """What is raised here reaches the caller; from a backend it would come as an error of PyTorch's compiler."""
        raise refused.with_traceback(None)

    return refuse


def _backend(module: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None) -> Callable[..., Any]:
    torch = require("torch", "torch")
    _check_type("options", options, (Mapping, type(None)), 'options={"memory": "12GiB"}')
    chosen = dict(options or {})
    if "memory" not in chosen:
        raise BadMachine(
            "the backend 'loadmaster' does not know how much memory it may take",
            object="options",
            remedy='give options={"memory": "12GiB"}',
        )
    takes = [name for name in inspect.signature(_session).parameters if name not in ("name", "weights")]
    unknown = sorted(set(chosen) - set(takes))
    if unknown:
        raise BadMachine(
            f"the backend 'loadmaster' has no option '{unknown[0]}'",
            object="options",
            number=unknown[0],
            remedy=f"use {', '.join(takes)}",
        )
    known = _SESSIONS.get(id(options))
    if known is None or options is None or known[1] != chosen:
        known = _SESSIONS[id(options)] = (options, chosen, _session("torch.compile", **chosen))
    session = known[2]
    for node, each in zip(
        (node for node in module.graph.nodes if node.op == "placeholder"), inputs, strict=False
    ):
        static = isinstance(each, torch.nn.Parameter) or "_dynamo_static_input_type" in node.meta.get(
            "tensor_dict", {}
        )
        if not static:
            continue
        know(session, node.name, each)
        for part in dense_parts(each):
            if session.is_cuda and part.numel() and not part.is_cuda and not part.is_pinned():
                pinned = part.untyped_storage().nbytes() >= LARGE and lock_pages(part.untyped_storage())
                session.pinned += [part.untyped_storage()] if pinned else []
                session.as_graphs &= pinned  # a CUDA graph copies from locked pages alone
    return compile_graph(session, module, inputs)


def _budget(search: Any) -> Budget:
    if isinstance(search, Budget):
        return search
    try:
        seconds = float(search)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds >= 0:
        raise BadMachine(
            f"search can't be {search!r}",
            object="search",
            number=str(search),
            remedy="give seconds, or a Budget",
        )
    return Budget(seconds=seconds)


def _session(
    name: str,
    *,
    memory: str | int,
    device: str | None = None,
    weights: str = "host",
    machine: str | Machine | None = None,
    search: float | Budget = SEARCH_SECONDS,
    background: bool = True,
    measure: bool = True,
    cache: str | Path | None = None,
    quiet: bool = False,
) -> Session:
    """What the graphs of a model share, by the options of `fit`."""
    where = _device(device)
    size = _parse_memory(memory, where)
    _check_type("cache", cache, (str, os.PathLike, type(None)), "the path of a folder")
    _check_type("machine", machine, (str, Machine, type(None)), "a machine or its name")
    for word, given in (("background", background), ("measure", measure), ("quiet", quiet)):
        _check_type(word, given, (bool,), "True or False")
    folder = None if cache is None else Path(cache)
    known = load_machine(machine) if isinstance(machine, str) else machine
    session = Session(
        name=name,
        device=where,
        machine=known or load_machine("h200"),
        memory=None if isinstance(size, Share) else size.count,
        share=size.part if isinstance(size, Share) else None,
        budget=_budget(search),
        background=background,
        choose_weights=weights == "auto" and where.type == "cuda",
        say=_silent if quiet else _say,
    )
    if measure:
        session.machine = known or _measured_machine(session, folder)
        session.measure = _measure(session, folder)
    return session


def _check_type(name: str, value: Any, types: tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, types):
        raise BadMachine(
            f"{name} can't be {value!r}", object=name, number=str(value), remedy=f"give {wanted}"
        )


def _as_args(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as a call takes them."""
    torch = require("torch", "torch")
    if given is None:
        return (), {}
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    raise BadMachine(
        f"example inputs can't be a {type(given).__name__}",
        object="args",
        number=type(given).__name__,
        remedy="give a tensor, a tuple of what the module is called with, or a dict of it by name",
    )


def _check(model: Any, inputs: Any, optimizer: Any) -> None:
    """Refuse what can't be fitted, before anything is changed."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    def refuse(message: str, remedy: str) -> None:
        raise BadMachine(message, object=name, remedy=remedy)

    name, parallel = type(model).__name__, torch.nn.parallel
    if not isinstance(model, torch.nn.Module):
        refuse(f"fit takes an nn.Module, not a {name}", "give the module itself")
    if isinstance(model, torch.jit.ScriptModule):
        refuse(f"'{name}' is TorchScript, which can't be traced", "give the module it was made of")
    if isinstance(model, (parallel.DataParallel, parallel.DistributedDataParallel)):
        refuse(f"'{name}' is for several devices, and fit for one", "give its .module")
    for path, each in model.named_modules():
        if _is_moved(each):
            refuse(
                f"accelerate moves the weights of '{path or name}' between devices, and fit would as well",
                "load the model without device_map, or call remove_hook_from_submodules(model) of accelerate.hooks",
            )
    for path, each in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(each):
            refuse(f"'{path}' of '{name}' has no shape yet", "call the module once")
        if each.is_meta:
            refuse(f"'{path}' of '{name}' has no values", "load its weights first")
        if any(kind.__name__ == "DTensor" for kind in type(each).__mro__):
            refuse(
                f"'{path}' of '{name}' is a DTensor, for several devices, and fit for one",
                "fit the module as it was before",
            )
        if each.is_inference():
            refuse(
                f"'{path}' of '{name}' was made in inference mode",
                "make it outside, or under torch.no_grad()",
            )
    if any(isinstance(each, torch.Tensor) and each.is_meta for each in tree_leaves(inputs)):
        refuse("an example input is on the meta device and has no values", "give real inputs")
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        refuse(f"optimizer can't be a {type(optimizer).__name__}", "give an optimizer of torch.optim")
    own = {id(each) for each in model.parameters()}
    if not any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
        refuse(f"the optimizer steps no parameter of '{name}'", "give the optimizer of this very module")


def _is_moved(layer: Any) -> bool:
    """Whether a hook of accelerate (`device_map`, CPU offloading) brings the layer or its inputs to a device."""
    hook = vars(layer).get("_hf_hook")
    hooks = getattr(hook, "hooks", (hook,))
    return any(getattr(each, "execution_device", None) is not None for each in hooks)


def _parse_memory(memory: str | int, device: Any) -> Share | Bytes:
    """Bytes, or a share of what the model will turn out to need."""
    torch = require("torch", "torch")
    try:
        size = parse_capacity({"memory": memory})["memory"]
        count = 1 if isinstance(size, Share) else size.count
    except LoadmasterError:
        count = 0
    if count <= 0:
        raise BadMachine(
            f"memory can't be {memory!r}",
            object="memory",
            number=str(memory),
            remedy='give "12GiB", a number of bytes, or "75%" of what the model needs',
        )
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count > there:
        raise BadMachine(
            f"memory={memory!r} is more than the {show_bytes(there)} of {device}",
            object="memory",
            number=count,
            remedy="give what the model may take of it",
        )
    return size


def _device(name: str | None) -> Any:
    torch = require("torch", "torch")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cuda", "cpu"):
        raise BadMachine(
            f"there is no device '{name}'", object="device", number=name, remedy="use cuda or cpu"
        )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise BadMachine(
                "this computer has no CUDA device that PyTorch can use",
                object="device",
                number=name,
                remedy='use device="cpu", or run where an NVIDIA GPU is',
            )
        own_allocator.install()  # if CUDA was used before, PyTorch's allocator has to do
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device


def _measured_machine(session: Session, cache: Path | None) -> Machine:
    """The machine that this computer is."""
    return session.on_thread(
        lambda: quick_machine(
            session.device, load_machine("h200"), cache=cache or cache_folder(), say=session.say
        )
    )


def _measure(session: Session, cache: Path | None) -> Measure:
    """Times and workspaces of a graph's ops, each distinct one measured once."""

    def measure(captured: Captured) -> MeasuredCosts:
        if not any(graph.is_waiting for graph in session.graphs):
            session.drop_block()  # an op alone may take all of the memory
        code = session.grown_bytes  # is no part of what the allocator has
        with session.growing():
            found = sample_ops(
                captured,
                session.device,
                cache=cache or cache_folder(),
                say=session.say,
                memory=None if session.memory is None else session.memory - code,
            )
        for note in found.notes:
            session.say(note)
        return found.costs(captured.program, session.machine.devices[0].name)

    return measure


_METHODS = ("to", "cuda", "cpu", "compile", "generate", "_apply", "__getstate__")
_FOR_SCRIPT = "__jit_ignored_attributes__"
_OWN = frozenset(("fitted", "plan_report", "_compiled_call_impl", _FOR_SCRIPT, *_METHODS))
"""What `_attach` gives to a module; its class has its own."""


def _attach(model: Any, fitted: Fitted) -> None:
    """The module's calls go through the plan; moving it is refused, as its plan says where it lies."""
    session = fitted.session

    def to(*args: Any, **kwargs: Any) -> Any:
        torch = require("torch", "torch")
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            session.say(f"{session.name} stays where its plan has it: it is fitted to the device")
        return model if dtype is None else type(model).to(model, dtype)

    def compile_again(*_: Any, **__: Any) -> None:
        session.say(f"{session.name} is fitted: compile() changes nothing")

    def apply(*args: Any, **kwargs: Any) -> Any:
        """What `half()`, `to(dtype)` and those of a module around it come to."""
        apply_to_all(model, *args, **kwargs)
        if session.hold_statics:
            to_device(model, session)
        else:
            to_host(model, session)
        return model

    def state() -> Any:
        """For copies and pickles, which are modules like others: not fitted."""
        session.on_thread(session.write_back)
        found: Any = type(model).__getstate__.__get__(model)()
        if isinstance(found, dict):
            found = {name: value for name, value in found.items() if name not in _OWN}
            hooks = found.get("_state_dict_pre_hooks", {})
            found["_state_dict_pre_hooks"] = type(hooks)(
                (number, hook) for number, hook in hooks.items() if number != fitted.hook.id
            )
        return found

    fitted.hook = model.register_state_dict_pre_hook(lambda *_: session.on_thread(session.write_back))
    model.fitted = fitted
    model.plan_report = fitted.plan_report
    model.to = to
    model.cuda = model.cpu = lambda *_, **__: to("cpu")
    model._apply = apply
    if type(model).compile is require("torch", "torch").nn.Module.compile:
        model.compile = compile_again  # it would take the place of the plans
    model.__getstate__ = state
    if hasattr(model, "generate") and hasattr(model, "generation_config"):
        model.generate = with_fixed_caches(model)
    model._compiled_call_impl = fitted
    setattr(model, _FOR_SCRIPT, [*getattr(model, _FOR_SCRIPT, ()), *_OWN])  # TorchScript would compile them


def _detach(model: Any) -> None:
    """The module as it was before `fit`, and the memory of its plans free."""
    fitted, session = model.fitted, model.fitted.session
    session.on_thread(session.write_back)
    fitted.hook.remove()
    for each in (fitted, *fitted._parts.values()):
        each.join()
    for name in _OWN:
        vars(model).pop(name, None)
    if fitted.before is not None:
        model._compiled_call_impl = fitted.before
    if fitted.streamed is not None:
        fitted.streamed.restore()
    session.end()
    session.on_thread(lambda: [graph.let_go() for graph in session.graphs])
    fitted.release()


def _release(session: Session) -> None:
    """No search and no memory of the device any more, but for steps that still wait for their backward call. It runs
    whenever the module is collected, perhaps while another model's graph is recorded: the device is not asked."""
    session.observer.stop = True
    leave_locked(session.pinned)
    for _ in session.graphs:  # a step has the results of another graph's, which keep that one's
        for graph in session.graphs:
            graph.forget()
    for each in session.compiled:
        if all(graph.forget() for graph in each):
            each.clear()
    session.compiled.clear()
    session.graphs.clear()
    session.called.clear()
    session.lent.clear()
    session.states.clear()
    session._free_states.clear()
    session.rows.clear()
    while session.codes:  # Dynamo would keep what it compiled of them for as long as the process runs
        require("torch", "torch")._dynamo.eval_frame.remove_from_cache(session.codes.pop())
    session._block = None


def _try_once(fitted: Fitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One forward pass that leaves nothing behind, no random numbers drawn either: of training in training mode. A module
    that takes gradients itself (forces of an energy) needs them in evaluation too."""
    torch, model = require("torch", "torch"), fitted.module
    from torch.utils._pytree import tree_leaves

    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    training = model.training and any(each.requires_grad for each in (*model.parameters(), *given))
    try:
        _try(fitted, args, kwargs, training)
    except LoadmasterError:
        raise
    except Exception as error:
        if training or not torch.is_grad_enabled() or own_allocator.is_shortage(error):
            raise
        try:
            _try(fitted, args, kwargs, True)
        except LoadmasterError:
            raise
        except Exception:
            raise error from None


def _try(fitted: Fitted, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> None:
    """The same, with gradients or without."""
    torch, model, session = require("torch", "torch"), fitted.module, fitted.session
    from torch.utils._pytree import tree_map

    def own(each: Any) -> Any:
        return copy.copy(each) if isinstance(each, Mapping) else each  # modules may write into it

    def call(module: Callable[..., Any]) -> None:
        own_args, own_kwargs = tree_map(own, (args, kwargs))
        module(*own_args, **own_kwargs)

    random = random_state(session.device)
    slopes = [
        (each, each.grad, None if each.grad is None else each.grad.clone()) for each in model.parameters()
    ]
    shared, session.is_trying = session.memory is None, True
    try:
        undone = leaving_nothing(model, (args, kwargs), session.overwritten)
        with torch.set_grad_enabled(training), without_collection(), undone:
            try:
                call(fitted)
                if fitted.is_apart:  # what is traced by itself has not been called yet
                    call(fitted)
                if shared:  # now in the share of what it took
                    call(fitted)
            except LoadmasterError:
                raise
            except Exception as error:  # of the module itself, or of what compiles it
                if own_allocator.is_shortage(error):
                    raise
                session.say(f"{session.name} fails ({type(error).__name__}): it is tried as it is")
                try:
                    call(lambda *args, **kwargs: fitted.as_it_is(args, kwargs))
                except Exception:
                    raise error from None
                cause = innermost(error)
                said = str(cause).strip().splitlines() or [""]
                raise BadMachine(
                    f"'{session.name}' can be called as it is, and PyTorch's compiler fails with "
                    f"{type(cause).__name__}: {said[0][:200]}",
                    object=session.name,
                    remedy="leave it unfitted, or put torch.compiler.disable on what can't be compiled",
                ) from error
    finally:
        session.may_return = session.is_trying = False
        set_random_state(random, session.device)
        for each, slope, values in slopes:  # a module may call `backward` itself
            if each.grad is None or values is None:
                each.grad = slope
            else:  # where the parameter is by now
                each.grad.copy_(values)


def _stream(fitted: Fitted, optimizer: Any) -> None:
    """Let the optimizer's step be made for weights on the host: there, or on the device in the memory of the plans,
    which is nobody's between two steps."""
    session = fitted.session

    def room() -> Any:
        session.take_back()
        for graph in session.graphs:
            graph.step_aside()
        return session.free_block(STREAM_BYTES)

    fitted.streamed = stream_optimizer(optimizer, session.device, room=room)
    own_step = optimizer.step

    @functools.wraps(getattr(own_step, "__func__", own_step))  # with the marks that schedulers look for
    def step(_: Any, *args: Any, **kwargs: Any) -> Any:
        return session.on_thread(lambda: own_step(*args, **kwargs))

    # Somebody may compile what calls it.
    optimizer.step = types.MethodType(require("torch", "torch")._dynamo.disable(step), optimizer)


def _line(about: Mapping[str, Any]) -> str:
    """What a graph needs, what it has, and what that costs."""
    if "needed_bytes" not in about:
        return f"{about['name']}: not planned yet"
    slower = about["predicted_seconds"] / max(1e-12, about["resident_seconds"])
    bound = about["bound_seconds"] / max(1e-12, about["resident_seconds"])
    return (
        f"{about['name']}: needs {show_bytes(about['needed_bytes'])}, has {show_bytes(about['capacity_bytes'])}; "
        f"{show_time(round(about['predicted_seconds'] * PICOSECONDS))} a pass is expected, "
        f"{slower:.2f} times the ops' own time (no plan is below {bound:.2f})"
    )


def _say(text: str) -> None:
    shown = "".join(each if each.isprintable() else "?" for each in text)  # names may be anything
    print(f"loadmaster: {shown}", file=sys.stderr, flush=True)


def _silent(text: str) -> None: ...
