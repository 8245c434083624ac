"""Values of an ONNX graph while it is imported: their sizes, and the numbers of small constants.

Every size must be known, and in exported models many sizes are computed by the graph
itself (Shape, Gather, Concat, Reshape). Since shapes are fixed here, such arithmetic is
constant: it is evaluated, with small arrays only, as the import goes along.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.errors import BadProgram, require
from loadmaster.program.build import clean_name
from loadmaster.program.kinds import BITS, bytes_of

SMALL = 4096
"""Elements up to which the numbers of a constant are kept."""
SMALL_FLOAT = 64
"""The same for floats: scales and ranges matter to shapes, a bias does not."""

Dims = tuple[int | str, ...]
"""Dimensions; a text is the name of one that is not known."""

_SIZE_ARITHMETIC = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "CumSum",
        "Div",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "Or",
        "Pad",
        "Range",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sign",
        "Size",
        "Slice",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tile",
        "TopK",
        "Transpose",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)


@dataclass(eq=False, slots=True)
class Value:
    """One array of the graph. Names may repeat (in bodies of loops); the object is its identity."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    """A weight, or computed from weights and shapes alone."""
    data: Any = None
    """The numbers of a small constant, where they are known."""
    given: bool = False
    """An input of the program."""
    output: bool = False
    """An output of the program."""
    base: Value | None = None
    """Whose storage it shares, if it is a view."""
    stored: int | None = None
    """Bytes of a weight that is not stored densely."""
    tensor: int = -1
    """Its number in the program, once it has one."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape, self.dtype) if self.stored is None else self.stored

    @property
    def root(self) -> Value:
        return self if self.base is None else self.base.root


def element_type(name: str, number: int) -> str:
    """ONNX's FLOAT8E4M3FN as 'f8e4m3fn'; texts are refused, with the tensor's name."""
    onnx = require("onnx", "onnx")
    known = onnx.TensorProto.DataType
    word = known.Name(number) if number in known.values() else f"number {number}"
    dtype = {"DOUBLE": "f64", "FLOAT": "f32", "BOOL": "bool"}.get(word, "")
    for prefix, letter in (("BFLOAT", "bf"), ("FLOAT", "f"), ("UINT", "u"), ("INT", "i"), ("COMPLEX", "c")):
        if not dtype and word.startswith(prefix):
            dtype = letter + word.removeprefix(prefix).lower()
    if dtype not in BITS:
        raise BadProgram(
            f"tensor '{name}' has elements of type {word}",
            object=name,
            number=number,
            remedy="cut the model where it leaves numbers",
        )
    return dtype


def tensor_type(name: str, type_proto: Any) -> tuple[str, Dims | None]:
    """Element type and dimensions (None: not even their number is known)."""
    form = type_proto.WhichOneof("value")
    if form not in ("tensor_type", "sparse_tensor_type"):
        word = (form or "none").removesuffix("_type")
        raise BadProgram(
            f"tensor '{name}' is of type '{word}', not an array",
            object=name,
            remedy="cut the model where it leaves arrays",
        )
    tensor = getattr(type_proto, form)
    if not tensor.HasField("shape"):
        return element_type(name, tensor.elem_type), None
    dims = tuple(
        dim.dim_value
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
        else clean_name(str(dim.dim_param)) or "?"
        for dim in tensor.shape.dim
    )
    return element_type(name, tensor.elem_type), dims


def unknown_dimension(name: str, dims: Dims | None, remedy: str) -> BadProgram:
    """The error for a size that nobody gave. Sizes are never guessed."""
    if dims is None:
        return BadProgram(f"tensor '{name}' has an unknown number of dimensions", object=name, remedy=remedy)
    unknown = next(dim for dim in dims if isinstance(dim, str))
    return BadProgram(
        f"tensor '{name}' has unknown dimension '{unknown}'", object=name, number=unknown, remedy=remedy
    )


def known(dims: Dims | None) -> tuple[int, ...] | None:
    """The dimensions as numbers, or None if one is not known."""
    if dims is None or any(isinstance(dim, str) for dim in dims):
        return None
    return tuple(int(dim) for dim in dims)


def weight(tensor: Any) -> Value:
    """An initializer. Its bytes come from its dimensions: the numbers are read only if they are few."""
    onnx = require("onnx", "onnx")
    name = clean_name(tensor.name)
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise BadProgram(
            f"weight '{name}' has the dimension {min(shape)}",
            object=name,
            number=min(shape),
            remedy="export the model again",
        )
    value = Value(name, element_type(name, tensor.data_type), shape, constant=True)
    if _is_small(value) and tensor.data_location != onnx.TensorProto.EXTERNAL:
        try:
            value.data = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise BadProgram(
                f"weight '{name}' can't be read: {error}",
                object=name,
                number=value.elements,
                remedy="export the model again",
            ) from None
    return value


def sparse_weight(sparse: Any) -> Value:
    """A sparse initializer: its dense shape, with the bytes of what is stored."""
    values, indices = weight(sparse.values), weight(sparse.indices)
    shape = tuple(int(size) for size in sparse.dims)
    return Value(values.name, values.dtype, shape, constant=True, stored=values.bytes + indices.bytes)


def evaluate(
    node: Any,
    inputs: Sequence[Value | None],
    version: int,
    sizes: Mapping[str, tuple[int, ...] | None],
    types: Mapping[str, str],
) -> dict[str, Any]:
    """The numbers that a constant node makes, by output name; empty where they are not wanted.

    Runs only arithmetic on sizes, only on numbers that are known, and only where the
    results are known to be small: no model can make it slow.
    """
    if node.op_type not in _SIZE_ARITHMETIC:
        return {}
    small = all(shape is not None and _few(shape, types[name]) for name, shape in sizes.items())
    if node.op_type == "NonZero":  # what it finds is known from its numbers alone, and no more than they are
        small = inputs[0] is not None and _is_small(inputs[0])
    if not small:
        return {}
    feeds = {n: v for n, v in zip(node.input, inputs, strict=True) if v is not None}
    shape_only = node.op_type in ("Shape", "Size")
    if not shape_only and any(value.data is None for value in feeds.values()):
        return {}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            # An array for its shape alone repeats one zero, and takes no memory.
            arrays = {
                name: np.broadcast_to(np.float32(0), value.shape) if shape_only else value.data
                for name, value in feeds.items()
            }
            reference = require("onnx.reference", "onnx")
            results = reference.ReferenceEvaluator(node, opsets={"": version}).run(None, arrays)
    except Exception:
        return {}  # any failure in there only means that the numbers stay unknown
    return {name: np.asarray(data) for name, data in zip(node.output, results, strict=False) if name}


def _is_small(value: Value) -> bool:
    return _few(value.shape, value.dtype)


def _few(shape: Sequence[int], dtype: str) -> bool:
    return math.prod(shape) <= (SMALL if dtype[0] in "iu" or dtype == "bool" else SMALL_FLOAT)
