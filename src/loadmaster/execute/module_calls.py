"""Calls of a fitted module: compiled once for every shape and mode, and run as the plans of its session say.

Who only looks at a call (`torch.func`, `torch.jit.trace`, a forked worker) gets the module's own.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster import clock
from loadmaster.errors import BadProgram, LoadmasterError, require
from loadmaster.execute.compile_backend import (
    NOTHING,
    ONE_GRAPH,
    Traced,
    compile_graph,
    counting_numbers,
    dynamo_options,
    hooks_of_all,
    is_traced_otherwise,
    own_function,
    root_error,
    spare_zeros,
    without_dumps,
)
from loadmaster.execute.pinned import dense_parts
from loadmaster.execute.session import MANY_NEW_GRAPHS, MoveWeights, Session
from loadmaster.execute.statics import to_device, to_host

SIZES_OF_A_LAYER = 3
"""With so many a layer that is traced by itself is left alone, where the model's calls make new graphs again and again."""


class Calls:
    """A module's calls, as the plans of a session say: of one that is fitted, or of a part of it that is called alone."""

    def __init__(self, module: Any, session: Session, whole: Any) -> None:
        torch = require("torch", "torch")
        self.module, self.session, self._whole = module, session, whole
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        """By the hooks that are called for every module, and which inputs share memory."""
        self._apart: dict[Any, Callable[..., Any]] = {}
        """Layers that are traced by themselves, and what is called in their place."""
        self._left: list[Any] = []
        """Those that were, and came in another size again and again."""
        # Whoever compiles what is around the module does not look in here.
        torch._dynamo.eval_frame.skip_code(type(self).__call__.__code__)
        self._planned = torch._dynamo.disable(self._in_turn)
        self._is_left_out = torch._dynamo.disable(self._looked_at)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        left_out = self._is_left_out()
        return self._planned(args, kwargs) if left_out is None else self.as_it_is(args, kwargs, left_out)

    def _looked_at(self) -> Any:
        """The module whose own call this is, if it is not made by a caller who wants the results of this one, on the
        device. Of a table of words that is a part, a few rows are read where it is."""
        nn = require("torch", "torch").nn
        caller = self._caller(nn.Module._wrapped_call_impl.__code__)
        if caller is not self.module:
            return caller
        is_table = self.module is not self._whole and isinstance(self.module, nn.Embedding)
        session = self.session
        is_looked_at = is_table or session.is_within or session.is_forked or is_traced_otherwise()
        return self.module if is_looked_at else None

    def _caller(self, wrapped_call: Any) -> Any:
        """The module that is called: another one, if somebody has copied this one's attributes into it, as libraries do
        that make a module of the same layers with weights of its own."""
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code is not Calls.__call__.__code__:
            frame = frame.f_back
        frame = None if frame is None else frame.f_back
        is_call = frame is not None and frame.f_code is wrapped_call
        return frame.f_locals["self"] if is_call else self.module

    def as_it_is(self, args: tuple[Any, ...], kwargs: dict[str, Any], module: Any = None) -> Any:
        """The module's own call, where its weights are."""
        torch, session, module = require("torch", "torch"), self.session, module or self.module
        if not session.is_cuda or module is not self.module:
            return type(module)._call_impl(module, *args, **kwargs)
        from torch.utils._pytree import tree_map_only

        where, home = session.home, _home(args, kwargs)
        moved = tree_map_only(torch.Tensor, lambda each: each.to(where), (args, kwargs))
        found = type(module)._call_impl(module, *moved[0], **moved[1])
        return tree_map_only(torch.Tensor, lambda each: each.to(home), found)

    def _in_turn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self.session
        if self._apart and session.calls_with_new_graphs >= MANY_NEW_GRAPHS:
            self._leave_those_that_vary()
        with session.turn(), session.counting_new_graphs():
            if session.is_cuda:
                with session.deferring():
                    return self._on_device(args, kwargs, _home(args, kwargs))
            session.called = Counter()
            found = self._called(*args, **kwargs)
            spare_zeros(found)
            session.settle_share()
            return found

    def _on_device(self, args: tuple[Any, ...], kwargs: dict[str, Any], home: Any) -> Any:
        """A call whose graphs run on a GPU; results go to `home`."""
        torch, session = require("torch", "torch"), self.session
        from torch.utils._pytree import tree_map_only

        # Weights are on the host or on the device, and graphs are traced where they are.
        while True:
            where = session.home
            moved = session.bring_all((args, kwargs), where)
            session.called, before, began = Counter(), Traced.now(), clock.now()
            try:
                found = self._called(*moved[0], **moved[1])
                if not session.called and session.fill_origins():  # it ran on the host, without its inputs
                    found = self._called(*moved[0], **moved[1])
                break
            except MoveWeights:
                session.graphs.clear()
                if session.hold_statics:
                    to_host(self._whole, session)
                else:
                    to_device(self._whole, session)
        session.origins = {}  # what callers gave is theirs again
        session.may_return &= session.is_trying
        traced = Traced.now().since(before)
        if traced != NOTHING:
            session.is_whole = traced == ONE_GRAPH and len(session.graphs) == 1
        elif session.called:
            session.host_seconds = min(session.entered - began, session.host_seconds or math.inf)
        session.is_whole &= session.called.total() == 1
        spare_zeros(found)
        session.settle_share()
        graph = next(iter(session.called), None)
        alone = session.called.total() == 1 and graph is not None and not graph.delivers
        if alone and graph is not None and home.type == "cuda" and not session.hold_statics:
            graph.deliver()  # nothing comes between it and the caller
        return tree_map_only(torch.Tensor, lambda each: each.to(home), found)

    def _function(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """The compiled one. Where a graph writes over what it is given, it is another one for inputs that share memory:
        of those that did not when it was traced PyTorch does not see it."""
        writes = any(graph.prepared.updates for graph in self.session.graphs)
        hooks = (*hooks_of_all(), *(overlapping((args, kwargs)) if writes else ()))
        if hooks not in self._compiled:
            function = own_function(self.module)
            self.session.codes.append(function.__code__)
            self._compiled[hooks] = require("torch", "torch").compile(
                function, backend=_backend_of(self.session), dynamic=False
            )
        return self._compiled[hooks]

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        torch, session, before = require("torch", "torch"), self.session, Traced.now()
        try:
            with torch._dynamo.config.patch(dynamo_options()), counting_numbers(), without_dumps():
                found = self._function(args, kwargs)(*args, **kwargs)
            count = len(self._apart)
            if Traced.now().since(before).breaks:
                self._take_apart()
            session.is_partial = len(self._apart) > count
            return found
        except LoadmasterError:
            raise
        except torch._dynamo.exc.TorchRuntimeError:
            if session.called:
                raise
        except Exception as error:
            ours = root_error(error)
            if ours is None:
                raise
            raise ours from error
        found = self.as_it_is(args, kwargs)  # of inputs that don't fit the module says so in its own words
        session.say(f"{session.name} can't be traced with these inputs: it runs where its weights are")
        return found

    def _take_apart(self) -> None:
        """Let layers whose weights no graph has read be traced by themselves from the next call on. Where a graph ends
        inside of a layer of PyTorch's own (`nn.Sequential`, `nn.Transformer`), Dynamo leaves out all that this calls, as
        it looks at no file of PyTorch's that is not called from a user's. Experts that get other rows with every call would
        have a plan for each number of them: if it comes to that, they are left again."""
        torch, session = require("torch", "torch"), self.session

        def is_unread(value: Any) -> bool:
            address = value.untyped_storage().data_ptr() if value.numel() else 0
            return address in session.statics and session.statics[address].name not in session.read

        for layer in self.module.modules():
            taken = layer is self.module or layer._compiled_call_impl is not None or layer in self._left
            if taken or isinstance(layer, (torch.jit.ScriptModule, torch.nn.Embedding)):
                continue
            if any(is_unread(part) for each in layer.parameters() for part in dense_parts(each)):
                layer._compiled_call_impl = self._apart[layer] = own_function(layer)
                session.codes.append(self._apart[layer].__code__)

    @property
    def is_apart(self) -> bool:
        """Whether some layers are traced by themselves."""
        return bool(self._apart)

    def _leave_those_that_vary(self) -> None:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

        varying = [
            layer
            for layer, function in self._apart.items()
            if len(_debug_get_cache_entry_list(function.__code__)) > SIZES_OF_A_LAYER
        ]
        # What is in them would be next.
        varying = list(
            dict.fromkeys(part for each in varying for part in each.modules() if part in self._apart)
        )
        if varying:
            kinds = ", ".join(sorted({type(each).__name__ for each in varying}))
            self.session.say(
                f"{len(varying)} layers of {self.session.name} ({kinds}) came in more than {SIZES_OF_A_LAYER} sizes, with a "
                "plan each: they run where their weights are from now on"
            )
        self._left += varying
        self.join(varying)

    def join(self, layers: Sequence[Any] | None = None) -> None:
        """Let layers that are traced by themselves be called as they are; None: all."""
        for each in list(self._apart) if layers is None else layers:
            function = self._apart.pop(each)
            if each._compiled_call_impl is function:  # and not what somebody has put there since
                del each._compiled_call_impl


def _backend_of(session: Session) -> Callable[..., Any]:
    """Dynamo has a list of all backends that lasts as long as the process: what a model needs must not be kept by it."""
    here = weakref.ref(session)

    def backend(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        found = here()
        assert found is not None, "whoever calls the model has its session"
        return once_differentiable(compile_graph(found, graph, inputs), found.name)

    return backend


def once_differentiable(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A compiled graph that refuses gradients of gradients in words of ours: PyTorch's name `torch.compile`."""
    torch = require("torch", "torch")

    def refuse(*_: Any) -> None:
        raise BadProgram(
            f"'{name}' is asked for gradients of its gradients, which a planned training step does not have",
            object=name,
            remedy="leave a module unfitted whose gradients are part of a loss (create_graph=True), and fit the others",
        )

    def refuse_next(inner: Any, _: Any) -> None:
        if torch.is_grad_enabled():  # somebody keeps this backward call for another one
            for node in {each.grad_fn for each in inner if each is not None and each.grad_fn is not None}:
                node.register_prehook(refuse)

    def watched(*args: Any) -> Any:
        found = call(*args)
        for each in found if torch.is_grad_enabled() else ():
            node: Any = getattr(each, "grad_fn", None)
            if type(node).__name__ == "CompiledFunctionBackward":
                node.materialize_grads = False  # results that nothing depends on get no gradient
                node.register_hook(refuse_next)
                break
        return found

    return watched


def overlapping(given: Any) -> tuple[tuple[int, int], ...]:
    """Pairs of tensors among inputs that have bytes in common."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    spans = []
    for at, each in enumerate(tree_leaves(given)):
        if isinstance(each, torch.Tensor) and each.layout == torch.strided and each.numel():
            last = sum((size - 1) * step for size, step in zip(each.shape, each.stride(), strict=True))
            begin = each.data_ptr()
            spans.append((begin, begin + (last + 1) * each.element_size(), at, id(each)))
    spans.sort()
    found, farthest = [], (0, 0, 0, 0)
    for span in spans:
        if span[0] < farthest[1] and span[3] != farthest[3]:
            found.append((farthest[2], span[2]))
        farthest = max(farthest, span, key=lambda each: each[1])
    return tuple(found)


def _home(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device where a caller has inputs, and wants results."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return next((each.device for each in tensors if each.device.type != "cpu"), torch.device("cpu"))
