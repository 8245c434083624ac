"""A graph of inference that computes its batch in parts, one after another, so that most of what it makes is smaller.

    batch = find_batch(graph, ["arg0_1", "arg3_1"])     # samples along axis 0 of these inputs; refuses what mixes them
    graph = split_batch(graph, batch, parts=4)

Which axis of a tensor has the samples is followed from the inputs through every op. An op that is not known to keep
samples apart refuses the whole: nothing is split that is not proven to be the same. What does not depend on the
samples is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.costs import Call, Type
from loadmaster.program.importers.torch.graph import Value, bind, call_of, is_getitem, is_random, op_name
from loadmaster.program.importers.torch.joined import shows

Axes = tuple[int | None, ...]
"""Of each of an op's results the axis that has the samples; None: it may not be used."""


class Rule(NamedTuple):
    """What an op does with samples."""

    results: Axes
    operands: Mapping[Any, int]
    """Of its operands (nodes) those that have samples, and along which axis; it takes the others whole."""
    counted: frozenset[Any] = frozenset()
    """Of those the ones that number the samples: they begin at 0 in every part."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Which nodes of a graph have samples, and where. Along that axis samples come in order, each with as many
    indices as the others."""

    size: int
    axes: dict[Any, Axes] = field(default_factory=dict)
    rules: dict[Any, Rule] = field(default_factory=dict)


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


# Where the samples are.


def find_batch(graph: Any, inputs: Collection[str]) -> Batch:
    """The batch of these placeholders: the first axis of all that have the same number there."""
    given = [node for node in graph.nodes if node.op == "placeholder" and node.name in inputs]
    sizes: dict[int, int] = {}
    for node in given:
        value = node.meta["val"]
        if value.ndim and value.shape[0] > 1:
            size = int(value.shape[0])
            sizes[size] = sizes.get(size, 0) + int(value.numel() * value.element_size())
    reason = _refused("no input has a batch", "")
    for size in sorted(sizes, key=lambda size: -sizes[size]):
        try:
            return _follow(graph, given, size)
        except BadProgram as error:
            reason = error
    raise reason


def _follow(graph: Any, given: Sequence[Any], size: int) -> Batch:
    batch = Batch(size)
    for node in given:
        value = node.meta["val"]
        if value.ndim and value.shape[0] == size:
            batch.axes[node] = (0,)
    for node in graph.nodes:
        if node.op != "call_function" or not any(each in batch.axes for each in node.all_input_nodes):
            continue
        if is_getitem(node):
            source, part = node.args
            batch.axes[node] = (batch.axes[source][part],)
            continue
        rule = _rule(node, batch)
        _check(node, rule, batch)
        batch.rules[node], batch.axes[node] = rule, rule.results
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    leaves = [leaf for leaf in output.all_input_nodes if leaf in batch.axes]
    if any(batch.axes[leaf][0] is None for leaf in leaves):
        raise _refused("a result has no samples", leaves[0].name)
    if not leaves:
        raise _refused("no result depends on the inputs", output.name)
    return batch


def _refused(reason: str, name: str) -> BadProgram:
    return BadProgram(
        f"the batch can't be computed in parts: {reason}", object=name, remedy="use a smaller batch"
    )


def _mixed(node: Any) -> BadProgram:
    return _refused(f"'{op_name(node.target)}' may mix samples", node.name)


def _rule(node: Any, batch: Batch) -> Rule:
    name, tags = op_name(node.target), {str(tag) for tag in getattr(node.target, "tags", ())}
    pointwise = name in _POINTWISE or any(tag.endswith("pointwise") for tag in tags)
    find = _RULES.get(name) or (_pointwise if pointwise else None)
    if find is None and name.startswith("_scaled_dot_product"):
        find = _attention
    if find is None or is_random(node):
        raise _mixed(node)
    axes = {each: batch.axes[each][0] for each in node.all_input_nodes if each in batch.axes}
    known = {each: axis for each, axis in axes.items() if axis is not None}
    found = find(node, known) if len(known) == len(axes) else None
    if found is None:
        raise _mixed(node)
    return found


def _check(node: Any, rule: Rule, batch: Batch) -> None:
    """Every operand with samples is taken along their axis, and every tensor has as many samples."""
    for each in node.all_input_nodes:
        wanted = rule.operands.get(each)
        if each in batch.axes and wanted != batch.axes[each][0]:
            raise _mixed(node)
        if wanted is not None and each.meta["val"].shape[wanted] % batch.size:
            raise _mixed(node)
    for value, axis in zip(_parts(node.meta["val"]), rule.results, strict=True):
        if axis is not None and value.shape[axis] % batch.size:
            raise _mixed(node)


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# The rules: what an op does with an axis. Each gets the axes of the operands that have samples; None: it mixes them.

Find = Callable[[Any, dict[Any, int]], Rule | None]


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)


def _named(node: Any) -> dict[str, Any]:
    """Arguments by their names in the schema."""
    return bind(node, {})[0]


def _only(node: Any, axes: Mapping[Any, int]) -> int | None:
    """The axis of the first argument, if no other has samples."""
    return axes[node.args[0]] if list(axes) == [node.args[0]] else None


def _all(node: Any, axis: int) -> Axes:
    """The same axis of all results."""
    return (axis,) * len(_parts(node.meta["val"]))


def _along(operands: Sequence[Any], axis: int, ndim: int) -> dict[Any, int]:
    """Of operands that are broadcast to so many axes, those that are longer than one along an axis."""
    found = {}
    for each in operands:
        own = axis - ndim + len(_shape(each))
        if own >= 0 and _shape(each)[own] > 1:
            found[each] = own
    return found


def _pointwise(node: Any, axes: dict[Any, int]) -> Rule:
    (operand, axis), ndim = next(iter(axes.items())), _parts(node.meta["val"])[0].ndim
    axis += ndim - len(_shape(operand))
    return Rule(_all(node, axis), _along(node.all_input_nodes, axis, ndim))


def _attention(node: Any, axes: dict[Any, int]) -> Rule | None:
    if any(len(_shape(each)) != 4 for each in node.all_input_nodes):
        return None
    later = (None,) * (len(_parts(node.meta["val"])) - 1)
    return Rule((0, *later), _along(node.all_input_nodes, 0, 4))


def _along_dim(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Something happens along other axes, which stay."""
    axis, dims = _only(node, axes), _dims(node)
    if axis is None or not dims or axis in dims:
        return None
    return Rule(_all(node, axis), axes)


def _reduced(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Other axes go, or stay with one element."""
    axis, dims = _only(node, axes), _dims(node)
    if axis is None or not dims or axis in dims:
        return None
    kept = bool(_named(node).get("keepdim", False))
    return Rule(_all(node, axis if kept else axis - sum(each < axis for each in dims)), axes)


def _dims(node: Any) -> set[int]:
    named, ndim = _named(node), len(_shape(node.args[0]))
    dims = named.get("dim", named.get("dims", named.get("dimension")))
    return {each % ndim for each in ([dims] if isinstance(dims, int) else dims or [])}


def _one_less(node: Any, axes: dict[Any, int]) -> Rule | None:
    """One index of another axis."""
    axis, dims = _only(node, axes), _dims(node)
    if axis is None or axis in dims:
        return None
    return Rule((axis - sum(each < axis for each in dims),), axes)


def _unbind(node: Any, axes: dict[Any, int]) -> Rule | None:
    found = _one_less(node, axes)
    return None if found is None else Rule(found.results * len(_parts(node.meta["val"])), axes)


def _slice(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, named = _only(node, axes), _named(node)
    whole = (
        not named["start"]
        and named["step"] == 1
        and (named["end"] is None or axis is None or named["end"] >= _shape(node.args[0])[axis])
    )
    if axis is None or (axis in _dims(node) and not whole):
        return None
    return Rule((axis,), axes)


def _view(node: Any, axes: dict[Any, int]) -> Rule | None:
    """As many elements before the axis, and samples are still the slowest there."""
    axis, shape = _only(node, axes), _shape(node)
    if axis is None:
        return None
    before, size = math.prod(_shape(node.args[0])[:axis]), _shape(node.args[0])[axis]
    for new, length in enumerate(shape):
        if math.prod(shape[:new]) == before and length > 1:
            return Rule((new,), axes) if length % size == 0 or size % length == 0 else None
    return None


def _permute(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, ndim = _only(node, axes), len(_shape(node))
    if axis is None:
        return None
    name, order = op_name(node.target), list(range(ndim))
    if name == "permute":
        order = [each % ndim for each in node.args[1]]
    elif ndim > 1:
        one, other = (0, 1) if name == "t" else (each % ndim for each in node.args[1:3])
        order[one], order[other] = order[other], order[one]
    return Rule((order.index(axis),), axes)


def _unsqueeze(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis = _only(node, axes)
    return None if axis is None else Rule((axis + (node.args[1] % len(_shape(node)) <= axis),), axes)


def _squeeze(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, dims = _only(node, axes), _dims(node)
    if axis is None or not dims or axis in dims:
        return None
    shape = _shape(node.args[0])
    return Rule((axis - sum(each < axis and shape[each] == 1 for each in dims),), axes)


def _expand(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis = _only(node, axes)
    return None if axis is None else Rule((axis + len(_shape(node)) - len(_shape(node.args[0])),), axes)


def _repeat(node: Any, axes: dict[Any, int]) -> Rule | None:
    found = _expand(node, axes)
    return found if found is not None and node.args[1][found.results[0]] == 1 else None


def _cat(node: Any, axes: dict[Any, int]) -> Rule | None:
    (axis, *others), tensors = axes.values(), node.args[0]
    stacked = op_name(node.target) == "stack"
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(_shape(node))
    if any(each != axis for each in others) or (dim == axis and not stacked):
        return None
    if any(len(_shape(each)) != len(_shape(tensors[0])) for each in tensors):
        return None  # one of no elements
    return Rule((axis + (stacked and dim <= axis),), dict.fromkeys(tensors, axis))


def _pad(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, pads = _only(node, axes), node.args[1]
    if axis is None:
        return None
    from_last = 2 * (len(_shape(node)) - 1 - axis)  # two for each axis, the last axis first
    return None if any(pads[from_last : from_last + 2]) else Rule((axis,), axes)


def _product(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Rows of the first matrix, or columns of the second, or both of a batch of matrices."""
    one, other = node.args[-2:]
    added, ndim = node.args[:-2], len(_shape(node))
    if axes.get(one) == axes.get(other) == 0 and ndim == 3:
        axis, along = 0, [one, other]
    elif one in axes and other not in axes and axes[one] < ndim - 1:
        axis, along = axes[one], [one, *([other] if ndim == 3 and axes[one] == 0 else [])]
    elif other in axes and one not in axes and (axes[other] == ndim - 1 or (ndim == 3 and axes[other] == 0)):
        axis, along = axes[other], [other, *([one] if axes[other] == 0 else [])]
    else:
        return None
    return Rule((axis,), {**dict.fromkeys(along, axis), **_along(added, axis, ndim)})


def _linear(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis = _only(node, axes)
    return None if axis is None or axis == len(_shape(node)) - 1 else Rule((axis,), axes)


def _norm(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Layer norm and its like: over the last axes."""
    axis = _only(node, axes)
    if axis is None or axis >= len(_shape(node.args[0])) - len(node.args[1]):
        return None
    return Rule(_all(node, axis), axes)


def _batch_norm(node: Any, axes: dict[Any, int]) -> Rule | None:
    """With the statistics of before."""
    axis = _only(node, axes)
    if axis in (None, 1) or _named(node).get("training", False):
        return None
    return Rule((axis, *(None,) * (len(_parts(node.meta["val"])) - 1)), axes)


def _images(least: int) -> Find:
    """Something happens to each of the first axis, if there are so many axes."""

    def find(node: Any, axes: dict[Any, int]) -> Rule | None:
        if _only(node, axes) != 0 or len(_shape(node.args[0])) < least:
            return None
        return Rule(_all(node, 0), axes)

    return find


def _embedding(node: Any, axes: dict[Any, int]) -> Rule | None:
    indices = node.args[1]
    return Rule((axes[indices],), axes) if list(axes) == [indices] else None


def _index(node: Any, axes: dict[Any, int]) -> Rule | None:
    """`x[indices]`, where the indices stand side by side. Samples may be chosen by their own numbers."""
    source, indices = node.args
    places = [at for at, each in enumerate(indices) if each is not None]
    chosen = [indices[at] for at in places]
    first, count = places[0], len(places)
    if places != list(range(first, first + count)) or any(
        "bool" in str(each.meta["val"].dtype) or "uint8" in str(each.meta["val"].dtype) for each in chosen
    ):
        return None
    width = max(len(_shape(each)) for each in chosen)
    if list(axes) == [source]:
        axis = axes[source]
        if axis not in places:
            return Rule((axis if axis < first else axis - count + width,), axes)
        number, size = indices[axis], _shape(source)[axis]
        own = [at for at, length in enumerate(_shape(number)) if length > 1]
        if len(own) != 1 or _shape(number)[own[0]] != size or not _counts(number):
            return None
        axis = own[0] + width - len(_shape(number))
        along = _along(chosen, axis, width)
        if list(along) != [number] or chosen.count(number) > 1:
            return None
        return Rule((first + axis,), {**axes, **along}, frozenset([number]))
    if source in axes:
        return None
    index, axis = next(iter(axes.items()))
    axis += width - len(_shape(index))
    return Rule((first + axis,), _along(chosen, axis, width))


def _counts(node: Any) -> bool:
    """Whether a tensor of one axis that is longer than one is 0, 1, 2 and so on."""
    while op_name(node.target) in ("unsqueeze", "view", "reshape", "clone", "_unsafe_view"):
        node = node.args[0]
    if op_name(node.target) != "arange":
        return False
    named = _named(node)
    return bool(named.get("start", 0) == 0 and named.get("step", 1) == 1)


def _gather(node: Any, axes: dict[Any, int]) -> Rule | None:
    source, _, index = node.args[:3]
    axis = next(iter(axes.values()))
    if axis in _dims(node) or _shape(source)[axis] != _shape(index)[axis]:
        return None
    return Rule((axis,), {source: axis, index: axis})


def _last_axes(count: int) -> Find:
    """Something happens within the last so many axes of the operand."""

    def find(node: Any, axes: dict[Any, int]) -> Rule | None:
        axis = _only(node, axes)
        return None if axis is None or axis >= len(_shape(node.args[0])) - count else Rule((axis,), axes)

    return find


_POINTWISE = frozenset(
    [
        "_to_copy",
        "_prelu_kernel",
        "copy",
        "empty_like",
        "fill",
        "floor_divide",
        "full_like",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "masked_fill",
        "ones_like",
        "zeros_like",
    ]
)
"""Beside those that PyTorch says are."""

_RULES: dict[str, Find] = {
    **dict.fromkeys(
        ["_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum"], _along_dim
    ),
    **dict.fromkeys(
        [
            "cumprod",
            "glu",
            "flip",
            "sort",
            "topk",
            "_fft_c2c",
            "_fft_r2c",
            "unfold",
            "split",
            "split_with_sizes",
        ],
        _along_dim,
    ),
    **dict.fromkeys(["sum", "mean", "amax", "amin", "any", "all", "var", "std", "var_mean"], _reduced),
    **dict.fromkeys(["linalg_vector_norm", "logsumexp", "argmax", "argmin", "max", "min", "prod"], _reduced),
    "select": _one_less,
    "unbind": _unbind,
    "slice": _slice,
    **dict.fromkeys(["view", "_unsafe_view", "reshape"], _view),
    **dict.fromkeys(["permute", "transpose", "t"], _permute),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "repeat": _repeat,
    **dict.fromkeys(["cat", "stack"], _cat),
    "constant_pad_nd": _pad,
    **dict.fromkeys(["mm", "addmm", "bmm", "baddbmm"], _product),
    "linear": _linear,
    **dict.fromkeys(["native_layer_norm", "_fused_rms_norm"], _norm),
    **dict.fromkeys(
        ["_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm"], _batch_norm
    ),
    **dict.fromkeys(["convolution", "native_group_norm", "avg_pool1d", "upsample_nearest1d"], _images(3)),
    **dict.fromkeys(["max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"], _images(4)),
    **dict.fromkeys(["upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d"], _images(4)),
    **dict.fromkeys(["pixel_shuffle", "pixel_unshuffle", "reflection_pad2d", "im2col"], _images(4)),
    "embedding": _embedding,
    **dict.fromkeys(["index", "_unsafe_index"], _index),
    "gather": _gather,
    **dict.fromkeys(["tril", "triu"], _last_axes(2)),
    "view_as_complex": _last_axes(1),
    "view_as_real": _last_axes(0),
}


# The graph in parts.


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
        tails = {tail: _is_late(tail) for tail in map(_tail, leaves) if tail.op != "placeholder"}
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
        each = _shape(node)[axis] // self._batch.size
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
                raise _refused(f"'{op_name(node.target)}' does not take a part", node.name) from error
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


def _tail(leaf: Any) -> Any:
    """What a result shows."""
    while leaf.op == "call_function" and not is_getitem(leaf) and shows(leaf):
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
    if rule is None or name not in ("view", "_unsafe_view", "reshape", "expand", "native_group_norm"):
        return None
    if name == "native_group_norm":
        args[3] = args[3] // size * count
        return args
    axis, sizes = rule.results[0], list(_shape(node))
    assert axis is not None
    sizes[axis] = sizes[axis] // size * count
    args[1] = sizes
    return args


def _mapped(value: Any, own: Callable[[Any], Any]) -> Any:
    """Arguments with other nodes in place of their own."""
    require("torch", "torch")
    from torch.fx.node import map_arg

    return map_arg(value, own)
