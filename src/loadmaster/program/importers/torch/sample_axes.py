"""Where the samples of a batch are in a graph of inference: which axis of every tensor has them.

    batch = find_batch(graph, ["arg0_1", "arg3_1"])     # along axis 0 of these inputs

The axis is followed from the inputs through every op, by a rule for each. An op without one, or one that may mix
samples, refuses the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadmaster.errors import BadProgram
from loadmaster.program.importers.torch.graph import bind, is_getitem, is_random, op_name

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
    indices as the others; that as often as `rounds` says, where the rows of all samples are one axis, row by row."""

    size: int
    axes: dict[Any, Axes] = field(default_factory=dict)
    rules: dict[Any, Rule] = field(default_factory=dict)
    rounds: dict[Any, int] = field(default_factory=dict)
    """Of nodes where it is not one."""


def find_batch(graph: Any, inputs: Collection[str]) -> Batch:
    """The batch of these placeholders: the first axis of all that have the same number there."""
    given = [node for node in graph.nodes if node.op == "placeholder" and node.name in inputs]
    sizes: dict[int, int] = {}
    for node in given:
        value = node.meta["val"]
        if value.ndim and value.shape[0] > 1:
            size = int(value.shape[0])
            sizes[size] = sizes.get(size, 0) + int(value.numel() * value.element_size())
    reason = refused("no input has a batch", "")
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
        if op_name(node.target) in VIEWS:
            rule, rounds = _view(node, batch)
        else:
            rule = _rule(node, batch)
            rounds = _rounds(node, rule, batch)
        _check(node, rule, batch)
        batch.rules[node], batch.axes[node] = rule, rule.results
        if rounds > 1:
            batch.rounds[node] = rounds
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    leaves = [leaf for leaf in output.all_input_nodes if leaf in batch.axes]
    if any(batch.axes[leaf][0] is None or leaf in batch.rounds for leaf in leaves):
        raise refused("a result has no samples", leaves[0].name)
    if not leaves:
        raise refused("no result depends on the inputs", output.name)
    return batch


def refused(reason: str, name: str) -> BadProgram:
    """The error for a graph that can't be split; `name`: of a node."""
    return BadProgram(
        f"the batch can't be computed in parts: {reason}", object=name, remedy="use a smaller batch"
    )


def _mixed(node: Any) -> BadProgram:
    return refused(f"'{op_name(node.target)}' may mix samples", node.name)


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


def _rounds(node: Any, rule: Rule, batch: Batch) -> int:
    """How often all samples come along the axis: as in all operands."""
    found = {batch.rounds.get(each, 1) for each in rule.operands}
    if found <= {1}:
        return 1
    if len(found) > 1 or any(each not in batch.axes for each in rule.operands):
        raise _mixed(node)  # a part of what has no samples is one piece
    name = op_name(node.target)
    if _RULES.get(name, _pointwise) not in (_pointwise, _product, _linear, _norm, _along_dim, _permute):
        raise _mixed(node)
    return found.pop()


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


VIEWS = ("view", "_unsafe_view", "reshape")


def _view(node: Any, batch: Batch) -> tuple[Rule, int]:
    """The axis in which the samples begin, and how often they do: as many elements are before them as there were."""
    (source,), shape = node.all_input_nodes, shape_of(node)
    (axis,) = batch.axes[source]
    if axis is None:
        raise _mixed(node)
    before = math.prod(shape_of(source)[:axis]) * batch.rounds.get(source, 1)
    for new, length in enumerate(shape):
        outer = math.prod(shape[:new])
        if outer * length > before:
            if before % outer or length % (before // outer * batch.size):
                break
            return Rule((new,), {source: axis}), before // outer
    raise _mixed(node)


# The rules: what an op does with an axis. Each gets the axes of the operands that have samples; None: it mixes them.

Find = Callable[[Any, dict[Any, int]], Rule | None]


def shape_of(node: Any) -> tuple[int, ...]:
    """Sizes of a node's tensor."""
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
        own = axis - ndim + len(shape_of(each))
        if own >= 0 and shape_of(each)[own] > 1:
            found[each] = own
    return found


def _pointwise(node: Any, axes: dict[Any, int]) -> Rule:
    (operand, axis), ndim = next(iter(axes.items())), _parts(node.meta["val"])[0].ndim
    axis += ndim - len(shape_of(operand))
    return Rule(_all(node, axis), _along(node.all_input_nodes, axis, ndim))


def _attention(node: Any, axes: dict[Any, int]) -> Rule | None:
    if any(len(shape_of(each)) != 4 for each in node.all_input_nodes):
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
    named, ndim = _named(node), len(shape_of(node.args[0]))
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
        and (named["end"] is None or axis is None or named["end"] >= shape_of(node.args[0])[axis])
    )
    if axis is None or (axis in _dims(node) and not whole):
        return None
    return Rule((axis,), axes)


def _permute(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, ndim = _only(node, axes), len(shape_of(node))
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
    return None if axis is None else Rule((axis + (node.args[1] % len(shape_of(node)) <= axis),), axes)


def _squeeze(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, dims = _only(node, axes), _dims(node)
    if axis is None or not dims or axis in dims:
        return None
    shape = shape_of(node.args[0])
    return Rule((axis - sum(each < axis and shape[each] == 1 for each in dims),), axes)


def _expand(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis = _only(node, axes)
    return None if axis is None else Rule((axis + len(shape_of(node)) - len(shape_of(node.args[0])),), axes)


def _as_strided(node: Any, axes: dict[Any, int]) -> Rule | None:
    """What names other strides for axes of one element alone, as pools of some layouts do."""
    source, value = node.args[0].meta["val"], node.meta["val"]
    same = source.shape == value.shape and source.storage_offset() == value.storage_offset()
    strides = zip(source.shape, source.stride(), value.stride(), strict=False)
    if _only(node, axes) != 0 or not same or any(n > 1 and one != other for n, one, other in strides):
        return None
    return Rule((0,), axes)


def _repeat(node: Any, axes: dict[Any, int]) -> Rule | None:
    found = _expand(node, axes)
    return found if found is not None and node.args[1][found.results[0]] == 1 else None


def _cat(node: Any, axes: dict[Any, int]) -> Rule | None:
    (axis, *others), tensors = axes.values(), node.args[0]
    stacked = op_name(node.target) == "stack"
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(shape_of(node))
    if any(each != axis for each in others) or (dim == axis and not stacked):
        return None
    if any(len(shape_of(each)) != len(shape_of(tensors[0])) for each in tensors):
        return None  # one of no elements
    return Rule((axis + (stacked and dim <= axis),), dict.fromkeys(tensors, axis))


def _pad(node: Any, axes: dict[Any, int]) -> Rule | None:
    axis, pads = _only(node, axes), node.args[1]
    if axis is None:
        return None
    from_last = 2 * (len(shape_of(node)) - 1 - axis)  # two for each axis, the last axis first
    return None if any(pads[from_last : from_last + 2]) else Rule((axis,), axes)


def _product(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Rows of the first matrix, or columns of the second, or both of a batch of matrices."""
    one, other = node.args[-2:]
    added, ndim = node.args[:-2], len(shape_of(node))
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
    return None if axis is None or axis == len(shape_of(node)) - 1 else Rule((axis,), axes)


def _norm(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Layer norm and its like: over the last axes."""
    axis = _only(node, axes)
    if axis is None or axis >= len(shape_of(node.args[0])) - len(node.args[1]):
        return None
    return Rule(_all(node, axis), axes)


def _batch_norm(node: Any, axes: dict[Any, int]) -> Rule | None:
    """With the statistics of before; or each channel by itself, where those of all samples stand side by side, as an
    instance norm has them."""
    axis, later = _only(node, axes), (None,) * (len(_parts(node.meta["val"])) - 1)
    if axis == 1:
        return Rule((axis, *later), {**dict.fromkeys(node.all_input_nodes, 0), **axes})
    if axis is None or _named(node).get("training", False):
        return None
    return Rule((axis, *later), axes)


def _images(least: int) -> Find:
    """Something happens to each of the first axis, if there are so many axes."""

    def find(node: Any, axes: dict[Any, int]) -> Rule | None:
        if _only(node, axes) != 0 or len(shape_of(node.args[0])) < least:
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
    width = max(len(shape_of(each)) for each in chosen)
    if list(axes) == [source]:
        axis = axes[source]
        if axis not in places:
            return Rule((axis if axis < first else axis - count + width,), axes)
        number, size = indices[axis], shape_of(source)[axis]
        own = [at for at, length in enumerate(shape_of(number)) if length > 1]
        if len(own) != 1 or shape_of(number)[own[0]] != size or not _counts(number):
            return None
        axis = own[0] + width - len(shape_of(number))
        along = _along(chosen, axis, width)
        if list(along) != [number] or chosen.count(number) > 1:
            return None
        return Rule((first + axis,), {**axes, **along}, frozenset([number]))
    if source in axes:
        return None
    index, axis = next(iter(axes.items()))
    axis += width - len(shape_of(index))
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
    if axis in _dims(node) or shape_of(source)[axis] != shape_of(index)[axis]:
        return None
    return Rule((axis,), {source: axis, index: axis})


def _recurrent(node: Any, axes: dict[Any, int]) -> Rule | None:
    """Steps come first, samples next, in the state as well."""
    data, state, _ = node.args[:3]
    if set(axes.values()) != {1} or data not in axes or not {data, *state} >= set(axes):
        return None
    return Rule(_all(node, 1), dict.fromkeys([data, *state], 1))


def _last_axes(count: int) -> Find:
    """Something happens within the last so many axes of the operand."""

    def find(node: Any, axes: dict[Any, int]) -> Rule | None:
        axis = _only(node, axes)
        return None if axis is None or axis >= len(shape_of(node.args[0])) - count else Rule((axis,), axes)

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

_EACH_IMAGE = {
    3: [
        "convolution",
        "native_group_norm",
        "avg_pool1d",
        "col2im",
        "reflection_pad1d",
        "replication_pad1d",
        "upsample_linear1d",
        "upsample_nearest1d",
    ],
    4: [
        "_adaptive_avg_pool2d",
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "adaptive_max_pool2d",
        "avg_pool2d",
        "im2col",
        "max_pool2d_with_indices",
        "pixel_shuffle",
        "pixel_unshuffle",
        "reflection_pad2d",
        "replication_pad2d",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_nearest2d",
    ],
    5: [
        "_adaptive_avg_pool3d",
        "avg_pool3d",
        "max_pool3d_with_indices",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    ],
}
"""What is done to each of the first axis, if there are so many axes."""

_RULES: dict[str, Find] = {
    **dict.fromkeys(
        ["_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum"], _along_dim
    ),
    **dict.fromkeys(
        [
            "cumprod",
            "glu",
            "flip",
            "roll",
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
    **dict.fromkeys(["permute", "transpose", "t"], _permute),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "as_strided": _as_strided,
    "repeat": _repeat,
    **dict.fromkeys(["cat", "stack"], _cat),
    "constant_pad_nd": _pad,
    **dict.fromkeys(["mm", "addmm", "bmm", "baddbmm"], _product),
    "linear": _linear,
    **dict.fromkeys(["native_layer_norm", "_fused_rms_norm"], _norm),
    **dict.fromkeys(
        [
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "native_batch_norm",
            "cudnn_batch_norm",
        ],
        _batch_norm,
    ),
    **{name: _images(least) for least, names in _EACH_IMAGE.items() for name in names},
    "embedding": _embedding,
    **dict.fromkeys(["index", "_unsafe_index"], _index),
    "gather": _gather,
    **dict.fromkeys(["gru", "lstm", "rnn_relu", "rnn_tanh"], _recurrent),
    **dict.fromkeys(["tril", "triu"], _last_axes(2)),
    "view_as_complex": _last_axes(1),
    "view_as_real": _last_axes(0),
}
