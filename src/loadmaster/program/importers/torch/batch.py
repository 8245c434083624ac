"""A graph of inference that computes its batch in parts, one after another, so that most of what it makes is smaller.

    batch = find_batch(graph, ["arg0_1", "arg3_1"])     # of `sample_axes`
    graph = split_batch(graph, batch, parts=4)

Every op of a part is the same call over a part of the samples; what does not depend on them is computed once. Results
are put together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from loadmaster.errors import require
from loadmaster.program.importers.torch.costs import Call, Type
from loadmaster.program.importers.torch.graph import Value, bind, call_of, is_getitem, op_name
from loadmaster.program.importers.torch.joined import shows
from loadmaster.program.importers.torch.sample_axes import VIEWS, Batch, Rule, refused, shape_of


class Assembled:
    """A result as a whole of which the parts are made one after another: by the same call each, or before (`target` is
    None). `part`: which of the call's results it is. `like`: the whole as it was traced."""

    namespace = "aten"

    def __init__(
        self, target: Any, part: int | None, axis: int, like: Any, named: Mapping[str, Any] | None = None
    ) -> None:
        self.target, self.part, self.axis, self.named = target, part, axis, dict(named or {})
        self.shape, self.stride, self.dtype = tuple(map(int, like.shape)), dense_strides(like), like.dtype

    def __call__(self, *parts: Sequence[Any]) -> Any:
        torch = require("torch", "torch")
        device = next(_tensors(parts)).device
        found, low = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device), 0
        for args in parts:
            value = args[0] if self.target is None else self.target(*args, **self.named)
            value = value if self.part is None else value[self.part]
            found.narrow(self.axis, low, value.shape[self.axis]).copy_(value)
            low += value.shape[self.axis]
        return found

    def __str__(self) -> str:
        return f"assembled {self.target} {self.named} {self.part} {self.axis} {self.shape} {self.stride} {self.dtype}"

    @property
    def __name__(self) -> str:
        return "cat" if self.target is None else f"sliced_{op_name(self.target).strip('_')}"

    def cost_call(self, node: Any, values: dict[Any, list[Value]], results: list[Type]) -> Call:
        """It costs what it does as a whole, nearly."""
        if self.target is None:
            return Call("cat", {"tensors": bind(node, values)[0]}, results)
        first = SimpleNamespace(target=self.target, args=node.args[0], kwargs=self.named)
        return call_of(first, values, results)[0]


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "device"):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def dense_strides(value: Any) -> tuple[int, ...]:
    """Of a tensor without holes whose elements come in the same order."""
    strides, step = [0] * value.ndim, 1
    for axis in sorted(range(value.ndim), key=lambda axis: (value.stride(axis), value.shape[axis], -axis)):
        strides[axis] = step
        step *= max(1, int(value.shape[axis]))
    return tuple(strides)


def split_batch(graph: Any, batch: Batch, parts: int) -> Any:
    """A graph that gives the same, one part of the samples after another."""
    return _Split(graph, batch, parts).graph


class _Split:
    def __init__(self, graph: Any, batch: Batch, parts: int) -> None:
        torch = require("torch", "torch")
        self._batch, self._parts, self.graph = batch, min(parts, batch.size), torch.fx.Graph()
        self._shared: dict[Any, Any] = {}
        self._wholes: dict[Any, Any] = {}
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        for node in graph.nodes:
            if node.op != "output" and node not in batch.axes:
                self._shared[node] = self._copied(node, self._shared)
            elif node.op == "placeholder":
                self._wholes[node] = self._copied(node, {})
        leaves = [leaf for leaf in output.all_input_nodes if leaf in batch.axes]
        found = [_tail(leaf, batch) for leaf in leaves]
        tails = {tail: _is_late(tail) for tail in found if tail.op != "placeholder"}
        needed = _needed(tails, batch)
        self._made = [self._part(needed, *bounds) for bounds in self._bounds()]
        for tail, late in tails.items():
            self._wholes[tail] = self._assembled(tail, late)
        self.graph.output(_mapped(output.args[0], lambda leaf: self._shared.get(leaf) or self._whole(leaf)))

    def _bounds(self) -> Iterator[tuple[int, int]]:
        size, parts = self._batch.size, self._parts
        for part in range(parts):
            yield part * size // parts, (part + 1) * size // parts

    def _part(self, needed: Sequence[Any], low: int, high: int) -> dict[Any, Any]:
        """Nodes of one part by those of the whole."""
        made: dict[Any, Any] = {}
        narrow: dict[tuple[Any, int, int], Any] = {}
        batch = self._batch
        for node in needed:
            if node.op == "placeholder":
                made[node] = self._narrow(self._wholes[node], 0, low, high)
                continue
            rule = batch.rules.get(node)
            own = dict(made)
            for each in node.all_input_nodes:
                if each in made:
                    continue
                axis = None if rule is None else rule.operands.get(each)
                if axis is None:
                    own[each] = self._shared[each]
                    continue
                begin = low if rule is None or each not in rule.counted else 0
                if (each, axis, begin) not in narrow:
                    narrow[each, axis, begin] = self._narrow(
                        self._shared[each], axis, begin, begin + high - low
                    )
                own[each] = narrow[each, axis, begin]
            made[node] = self._copied(node, own, _resized(node, rule, high - low, batch.size))
        return made

    def _narrow(self, node: Any, axis: int, low: int, high: int) -> Any:
        aten = require("torch", "torch").ops.aten
        each = shape_of(node)[axis] // self._batch.size
        made = self.graph.call_function(aten.slice.Tensor, (node, axis, low * each, high * each))
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}
        made.meta["val"] = made.target(node.meta["val"], *made.args[1:])
        return made

    def _copied(self, node: Any, own: Mapping[Any, Any], args: Sequence[Any] | None = None) -> Any:
        """A node over others; it is traced anew if its operands are."""
        given = _mapped(tuple(node.args if args is None else args), own.__getitem__)
        named = _mapped(dict(node.kwargs), own.__getitem__)
        made = self.graph.create_node(node.op, node.target, given, named, node.name)
        made.meta = dict(node.meta)
        if node.op == "placeholder":
            made.name = node.name
        if node.op == "call_function" and any(
            own[each].meta.get("val") is not each.meta.get("val") for each in node.all_input_nodes
        ):
            values = _mapped((given, named), lambda each: each.meta["val"])
            try:
                made.meta["val"] = node.target(*values[0], **values[1])
            except RuntimeError as error:  # a view that a part of the tensor does not allow
                raise refused(f"'{op_name(node.target)}' does not take a part", node.name) from error
        return made

    def _assembled(self, tail: Any, late: bool) -> Any:
        """A node for all parts of one: of what they are made of, or of them."""
        axis = self._batch.axes[tail][0]
        assert axis is not None
        call = tail.args[0] if is_getitem(tail) else tail
        if late:
            rule, args = self._batch.rules[call], []
            for own, (low, high) in zip(self._made, self._bounds(), strict=True):
                known = dict(own)
                for each in call.all_input_nodes:
                    if each not in own:
                        there, at = self._shared[each], rule.operands.get(each)
                        known[each] = there if at is None else self._narrow(there, at, low, high)
                resized = _resized(call, rule, high - low, self._batch.size)
                args.append(list(_mapped(tuple(resized or call.args), known.__getitem__)))
            part = tail.args[1] if is_getitem(tail) else None
            target = Assembled(call.target, part, axis, tail.meta["val"], call.kwargs)
        else:
            args = [[own[tail]] for own in self._made]
            target = Assembled(None, None, axis, tail.meta["val"])
        made = self.graph.call_function(target, tuple(args))
        made.meta = dict(tail.meta)
        like = tail.meta["val"]
        made.meta["val"] = like.new_empty_strided(target.shape, target.stride)
        return made

    def _whole(self, leaf: Any) -> Any:
        """A result as it was: what was assembled, and views of it."""
        if leaf not in self._wholes:
            source = leaf.args[0]
            self._wholes[leaf] = self._copied(leaf, {source: self._whole(source)})
        return self._wholes[leaf]


def _tail(leaf: Any, batch: Batch) -> Any:
    """What a result shows, if its samples come once."""
    while leaf.op == "call_function" and not is_getitem(leaf) and shows(leaf):
        if leaf.args[0] in batch.rounds:
            return leaf
        leaf = leaf.args[0]
    return leaf


_CHOOSES = ("_unsafe_index", "embedding", "gather", "index")
"""What is asked for numbers that have to be there."""


def _is_late(tail: Any) -> bool:
    """Whether a result is larger than what it is made of: then its parts are made when it is assembled."""
    call = tail.args[0] if is_getitem(tail) else tail
    named = any(hasattr(each, "all_input_nodes") for each in call.kwargs.values())
    if shows(tail) or named or op_name(call.target) in _CHOOSES:
        return False
    read = sum(each.meta["val"].untyped_storage().nbytes() for each in call.all_input_nodes)
    return bool(read < tail.meta["val"].untyped_storage().nbytes())


def _needed(tails: Mapping[Any, bool], batch: Batch) -> list[Any]:
    """Nodes with samples that are made part by part, in order."""
    found: set[Any] = set()
    stack: list[Any] = []
    for tail, late in tails.items():
        call = tail.args[0] if is_getitem(tail) else tail
        stack += call.all_input_nodes if late else [tail]
    while stack:
        node = stack.pop()
        if node in batch.axes and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return [node for node in batch.axes if node in found]


def _resized(node: Any, rule: Rule | None, count: int, size: int) -> list[Any] | None:
    """The arguments of a call for so many samples, where they name a size."""
    name, args = op_name(node.target), list(node.args)
    if rule is None or name not in (*VIEWS, "as_strided", "expand", "native_group_norm"):
        return None
    if name == "native_group_norm":
        args[3] = args[3] // size * count
        return args
    axis, sizes = rule.results[0], list(shape_of(node))
    assert axis is not None
    sizes[axis] = sizes[axis] // size * count
    args[1] = sizes
    return args


def _mapped(value: Any, own: Callable[[Any], Any]) -> Any:
    """Arguments with other nodes in place of their own."""
    require("torch", "torch")
    from torch.fx.node import map_arg

    return map_arg(value, own)
