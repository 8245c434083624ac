"""Values of an ONNX graph while it is imported: their types, their sizes, and the numbers of small constants.

Every size must be known: inferred, stated in the file or given by the user. In exported models many
sizes are computed by the graph itself (Shape, Gather, Concat, Reshape). Since shapes are fixed here, such
arithmetic is constant: it is evaluated, with small arrays only, as the import goes along.
"""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.errors import BadProgram, nearest, require
from loadmaster.program.build import clean_name
from loadmaster.program.importers import malformed
from loadmaster.program.importers.onnx.read import STANDARD, results_of
from loadmaster.program.kinds import BITS, bytes_of

if TYPE_CHECKING:
    from loadmaster.program.importers.onnx.plan import Frame

SMALL = 4096
"""Elements up to which the numbers of a constant are kept."""
SMALL_FLOAT = 64
"""The same for floats: scales and ranges matter to shapes, a bias does not."""
_MOST_KEY, _MOST_KINDS = 1024, 4096
"""Bytes of attributes up to which nodes are compared, and how many kinds of nodes are remembered."""

Dims = tuple[int | str, ...]
"""Dimensions; a text is the name of one that is not known."""

_SIZE_OPS = """
Abs Add And Cast Ceil Concat Constant ConstantOfShape CumSum Div Equal Expand Flatten Floor Gather
GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not Or
Pad Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape ScatterElements ScatterND Shape Sign Size Slice
Split Sqrt Squeeze Sub Sum Tile TopK Transpose Unsqueeze Where Xor
"""
_SIZE_ARITHMETIC = frozenset(_SIZE_OPS.split())
"""Ops that exporters compute sizes with."""
_RESHAPES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Of them those that change no number."""
_WINDOWS = frozenset(("AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv"))
"""Ops that move a window over their first operand."""


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


@cache
def _type_words(number: int) -> tuple[str, str]:
    """(ONNX's word for a type, ours or '')."""
    onnx = require("onnx", "onnx")
    known = onnx.TensorProto.DataType
    word = known.Name(number) if number in known.values() else f"number {number}"
    dtype = {"DOUBLE": "f64", "FLOAT": "f32", "BOOL": "bool"}.get(word, "")
    for prefix, letter in (("BFLOAT", "bf"), ("FLOAT", "f"), ("UINT", "u"), ("INT", "i"), ("COMPLEX", "c")):
        if not dtype and word.startswith(prefix):
            dtype = letter + word.removeprefix(prefix).lower()
    return word, dtype


def element_type(name: str, number: int) -> str:
    """ONNX's FLOAT8E4M3FN as 'f8e4m3fn'; texts are refused, with the tensor's name."""
    word, dtype = _type_words(number)
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


class OpenInputs(BadProgram):
    """Inputs whose sizes the file leaves open and nobody gave."""

    inputs: Mapping[str, tuple[str, Dims | None]]
    """Name -> type and dimensions of each."""


def shape_words(shapes: Mapping[str, Sequence[int]], opened: Mapping[str, tuple[str, Dims | None]]) -> str:
    """The options that give these shapes; of several inputs by the names of their dimensions, if all have some."""
    named: dict[str, int] = {}
    for name, (_, dims) in opened.items():
        pairs = zip(dims or ("?",), shapes[name], strict=False)
        named |= {dim: size for dim, size in pairs if isinstance(dim, str)}
    texts = [f"{clean_name(name)}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    if len(opened) > 1 and "?" not in named and not named.keys() & opened.keys():
        texts = [f"{dim}={size}" for dim, size in named.items()]
    return " ".join(f"--shape {shlex.quote(text)}" for text in texts)


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
        raise malformed(f"weight '{name}' has the dimension {min(shape)}", name, min(shape))
    value = Value(name, element_type(name, tensor.data_type), shape, constant=True)
    if _is_small(value) and tensor.data_location != onnx.TensorProto.EXTERNAL:
        try:
            value.data = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise malformed(f"weight '{name}' can't be read: {error}", name, value.elements) from None
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
    """The numbers that a constant node makes, by output name; empty where nobody needs them.

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
    first = inputs[0] if node.op_type in _RESHAPES and inputs else None
    if first is not None and first.data is not None:  # the reference can't take each of them of a scalar
        ((name, shape),) = sizes.items()
        fits = shape is not None and math.prod(shape) == first.data.size
        return {name: first.data.reshape(shape)} if fits else {}
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
        return {}  # any failure in there only means that the numbers are not known
    return {name: np.asarray(data) for name, data in zip(node.output, results, strict=False) if name}


def _is_small(value: Value) -> bool:
    return _few(value.shape, value.dtype)


def _few(shape: Sequence[int], dtype: str) -> bool:
    return math.prod(shape) <= (SMALL if dtype[0] in "iu" or dtype == "bool" else SMALL_FLOAT)


class Sizes:
    """Finds the sizes of one model. None is ever guessed."""

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        self.onnx = require("onnx", "onnx")
        self.versions = {}
        """Of operator sets, by domain."""
        for opset in model.opset_import:
            domain = "" if opset.domain in STANDARD else str(opset.domain)
            self.versions[domain] = min(max(int(opset.version), 1), 2**31 - 1)
        self._opsets = [self.onnx.helper.make_opsetid(*pair) for pair in self.versions.items()]
        self._ir_version = model.ir_version
        self._shapes = {name: _sizes(name, sizes) for name, sizes in shapes.items()}
        self._met: set[str] = set()
        self._symbols: dict[str, int] = {}
        self._dimensions: list[str] = []
        """Names of dimensions of the inputs."""
        self._declared_holds = True
        """Sizes in the file may be used: the user changed none that was fixed."""
        self._inferred: dict[tuple[Any, ...], list[Any]] = {}

    def inputs(self, graph: Any) -> dict[str, Value]:
        """The program's inputs, by name: those of the graph that are no weights."""
        weights = {tensor.name for tensor in graph.initializer}  # old files list them as inputs too
        weights |= {sparse.values.name for sparse in graph.sparse_initializer}
        declared: dict[str, tuple[str, Dims | None]] = {}
        for info in graph.input:
            if info.name not in weights:
                declared[info.name] = tensor_type(clean_name(info.name), info.type)
        self._name_dimensions(declared)
        for name, (dtype, dims) in declared.items():
            if name in self._shapes:
                declared[name] = (dtype, self._given(name, dims))
        shapes = {name: self._merged(None, dims) for name, (_, dims) in declared.items()}
        unknown = {name: dims for name, dims in shapes.items() if known(dims) is None}
        if unknown:
            self.check_all_met(declared, may_come=results_of(graph))
            opened = {name: (declared[name][0], dims) for name, dims in unknown.items()}
            ones = {
                name: [1 if isinstance(d, str) else d for d in dims or ("?",)]
                for name, dims in unknown.items()
            }
            name, dims = next(iter(unknown.items()))
            first = unknown_dimension(clean_name(name), dims, f"give {shape_words(ones, opened)}")
            error = OpenInputs(first.message, object=first.object, number=first.number, remedy=first.remedy)
            error.inputs = opened
            raise error
        return {
            name: Value(clean_name(name), dtype, known(shapes[name]) or (), given=True)
            for name, (dtype, _) in declared.items()
        }

    def _name_dimensions(self, declared: Mapping[str, tuple[str, Dims | None]]) -> None:
        """A size may be given for the name that dimensions have in the file, as `batch=1`."""
        named = {dim for _, dims in declared.values() for dim in dims or () if isinstance(dim, str)}
        self._dimensions = sorted(named - {"?"})
        for name, sizes in self._shapes.items():
            if name in self._dimensions and name not in declared and len(sizes) == 1:
                self._symbols[name] = sizes[0]
                self._met.add(name)

    def _given(self, name: str, dims: Dims | None) -> Dims:
        given, label = self._shapes[name], clean_name(name)
        self._met.add(name)
        if dims is not None and len(dims) != len(given):
            raise BadProgram(
                f"input '{label}' has {len(dims)} dimensions and --shape gives {len(given)}",
                object=label,
                number=len(given),
                remedy="give them all",
            )
        for dim, size in zip(dims or (), given, strict=False):
            if isinstance(dim, int):
                self._declared_holds &= dim == size
            elif dim != "?" and self._symbols.setdefault(dim, size) != size:
                raise BadProgram(
                    f"dimension '{dim}' of input '{label}' is {size} here and {self._symbols[dim]} elsewhere",
                    object=label,
                    number=size,
                    remedy="give one size for one name",
                )
        return given

    def results(
        self, node: Any, inputs: Sequence[Value | None], frame: Frame, who: str, constant: bool
    ) -> list[Value | None]:
        """The values that a node makes; None for those nobody reads."""
        types = self._types(node, inputs, who)
        found: dict[str, tuple[str, Dims | None]] = {}
        for name in node.output:
            if name and frame.uses[name]:
                found[name] = self._completed(name, types.get(name), inputs, frame, who)
        data: dict[str, Any] = {}
        if constant:
            sizes = {name: known(dims) for name, (_, dims) in found.items()}
            dtypes = {name: dtype for name, (dtype, _) in found.items()}
            data = evaluate(node, inputs, self.versions.get("", 1), sizes, dtypes)
        values: list[Value | None] = []
        for name in node.output:
            if name not in found:
                values.append(None)
                continue
            dtype, dims = found[name]
            label = clean_name(frame.prefix + name)
            shape = tuple(data[name].shape) if name in data else known(dims)
            if shape is None:
                sizes_text = ",".join("1" if isinstance(dim, str) else str(dim) for dim in dims or ("1",))
                raise unknown_dimension(
                    clean_name(name), dims, f"give --shape {clean_name(name)}={sizes_text}"
                )
            values.append(Value(label, dtype, shape, constant, data.get(name)))
        return values

    def _types(self, node: Any, inputs: Sequence[Value | None], who: str) -> Mapping[str, Any]:
        """Inferred types by name. Nodes alike in all that inference looks at are looked at once."""
        parts = [attribute.SerializeToString() for attribute in node.attribute]
        if sum(map(len, parts)) > _MOST_KEY or any(v is not None and v.data is not None for v in inputs):
            return self._infer(node, inputs, who)
        forms = tuple(None if value is None else (value.dtype, value.shape) for value in inputs)
        named = tuple(bool(name) for name in node.output)
        key = (node.domain, node.op_type, named, forms, *parts)
        types = self._inferred.get(key)
        if types is None:
            found = self._infer(node, inputs, who)
            types = [found.get(name) for name in node.output]
            if len(self._inferred) < _MOST_KINDS:
                self._inferred[key] = types
        return dict(zip(node.output, types, strict=True))

    def _infer(self, node: Any, inputs: Sequence[Value | None], who: str) -> Mapping[str, Any]:
        domain = "" if node.domain in STANDARD else node.domain
        try:
            schema = self.onnx.defs.get_schema(node.op_type, self.versions.get(domain, 1), domain)
        except self.onnx.defs.SchemaError:
            return {}
        _check_axes(node, inputs, who)
        _check_window(node, inputs, who)
        _check_parts(node, inputs, who)
        present = {n: v for n, v in zip(node.input, inputs, strict=True) if v is not None}
        numbers = {
            n: self.onnx.numpy_helper.from_array(v.data) for n, v in present.items() if v.data is not None
        }
        node = self._with_defaults(node)
        make = self.onnx.helper.make_tensor_type_proto
        types = {n: make(_element_numbers()[v.dtype], v.shape) for n, v in present.items()}
        try:
            found: Mapping[str, Any] = self.onnx.shape_inference.infer_node_outputs(
                schema, node, types, numbers, opset_imports=self._opsets, ir_version=self._ir_version
            )
        except Exception as error:  # the schema, the inference and the bindings each raise their own
            raise BadProgram(
                f"{who} does not fit its operands: {clean_name(str(error))}",
                object=who,
                remedy="check the model with onnx.checker",
            ) from None
        return found

    def _with_defaults(self, node: Any) -> Any:
        """The node with what its schema takes for granted and shape inference (of onnx 1.23) takes otherwise."""
        if node.op_type != "STFT" or any(attribute.name == "onesided" for attribute in node.attribute):
            return node
        whole = self.onnx.NodeProto()
        whole.CopyFrom(node)
        whole.attribute.append(self.onnx.helper.make_attribute("onesided", 1))
        return whole

    def _completed(
        self, name: str, inferred: Any, inputs: Sequence[Value | None], frame: Frame, who: str
    ) -> tuple[str, Dims | None]:
        """The type that was inferred, its gaps filled from the file and from the user."""
        label = clean_name(name)
        stated = frame.declared.get(name) if self._declared_holds else None
        dtype, dims = tensor_type(label, inferred) if _says_something(inferred) else ("", None)
        if known(dims) is None and _says_something(stated):
            declared_dtype, declared = tensor_type(label, stated)
            dtype, dims = dtype or declared_dtype, self._merged(dims, declared)
        given = self._shapes.get(name)
        if given is not None:
            self._met.add(name)
            if dims is not None and not _agrees(dims, given):
                raise BadProgram(
                    f"tensor '{label}' has the shape {list(dims)} and --shape gives {list(given)}",
                    object=label,
                    number=str(list(given)),
                    remedy="give the shape it has",
                )
            dims = given
        first = next((value.dtype for value in inputs if value is not None), "")
        if not (dtype or first):
            raise BadProgram(
                f"{who} makes '{label}', and nothing says of which type",
                object=label,
                remedy="add it to the model's value_info",
            )
        return dtype or first, dims

    def _merged(self, dims: Dims | None, declared: Dims | None) -> Dims | None:
        if declared is not None:
            declared = tuple(self._symbols.get(d, d) if isinstance(d, str) else d for d in declared)
        if dims is None or declared is None or len(dims) != len(declared):
            return declared if dims is None else dims
        return tuple(b if isinstance(a, str) else a for a, b in zip(dims, declared, strict=True))

    def check_all_met(self, inputs: Iterable[str], may_come: Container[str] = ()) -> None:
        """Refuse shapes that were given for what the model does not have. `may_come`: what was not looked at yet."""
        for name in self._shapes:
            if name not in self._met and name not in may_come:
                inputs = list(inputs)
                options = list(dict.fromkeys([*inputs, *self._dimensions, *self._met]))
                dimensions = (
                    f", or a dimension: {', '.join(self._dimensions[:8])}" if self._dimensions else ""
                )
                raise BadProgram(
                    f"the model has no tensor '{clean_name(name)}'{nearest(name, options)}",
                    object=name,
                    remedy=f"name one of {', '.join(clean_name(each) for each in inputs[:8])}{dimensions}",
                )


@cache
def _element_numbers() -> dict[str, int]:
    numbers = require("onnx", "onnx").TensorProto.DataType
    return {element_type("", n): n for word, n in numbers.items() if word not in ("UNDEFINED", "STRING")}


def _check_axes(node: Any, inputs: Sequence[Value | None], who: str) -> None:
    """Refuse axes that no operand has: shape inference of some ops reads memory by them unchecked."""
    rank = max((len(value.shape) for value in inputs if value is not None), default=0)
    for attribute in node.attribute:
        if attribute.name in ("axis", "axes", "batch_axis", "batch_dims", "perm", "time_axis"):
            axes = [*attribute.ints, attribute.i]
            new = len(axes) if node.op_type in ("OneHot", "Unsqueeze") else 0
            wrong = [axis for axis in axes if not -rank - new <= axis <= rank + new]
            if wrong:
                raise malformed(
                    f"{who} has the {attribute.name} {wrong[0]}, and its operands have {rank} dimensions",
                    who,
                    wrong[0],
                )


def _check_window(node: Any, inputs: Sequence[Value | None], who: str) -> None:
    """Refuse a window that is larger than what it moves over: shape inference gives such an op a result, runtimes don't."""
    if node.op_type == "STFT" and inputs[0] is not None and len(inputs) > 2 and inputs[2] is not None:
        _check_room(inputs[0].shape[1:2], inputs[2].shape[:1], who)
    if node.op_type not in _WINDOWS or inputs[0] is None:
        return
    given = {a.name: list(a.ints) for a in node.attribute if a.ints}
    padded = next((a.s for a in node.attribute if a.name == "auto_pad"), b"NOTSET")
    sizes, weights = inputs[0].shape[2:], inputs[3 if node.op_type == "QLinearConv" else 1 :][:1]
    window = given.get("kernel_shape") or [
        s for value in weights if value is not None for s in value.shape[2:]
    ]
    if padded not in (b"NOTSET", b"VALID") or len(window) != len(sizes):
        return
    n = len(sizes)
    pads = given.get("pads") or [0] * (2 * n)
    dilations = given.get("dilations") or [1] * n
    if len(pads) != 2 * n or len(dilations) != n:
        return
    _check_room(
        [size + pads[i] + pads[n + i] for i, size in enumerate(sizes)],
        [(width - 1) * dilations[i] + 1 for i, width in enumerate(window)],
        who,
    )


def _check_room(rooms: Sequence[int], windows: Sequence[int], who: str) -> None:
    for room, needed in zip(rooms, windows, strict=False):
        if room < needed:
            raise BadProgram(
                f"{who} does not fit its operands: its window has {needed} elements and there are {room}",
                object=who,
                number=room,
                remedy="give larger sizes with --shape",
            )


def _check_parts(node: Any, inputs: Sequence[Value | None], who: str) -> None:
    """Refuse a Split into other than its results: shape inference of it reads memory unchecked too."""
    if node.op_type != "Split":
        return
    counts = [
        len(a.ints) if a.name == "split" else a.i
        for a in node.attribute
        if a.name in ("split", "num_outputs")
    ]
    if len(inputs) > 1 and inputs[1] is not None:
        counts += [int(np.prod(inputs[1].shape, dtype=np.float64))]
    for parts in counts:
        if parts != len(node.output):
            raise malformed(f"{who} splits into {parts} and has {len(node.output)} results", who, parts)


def _says_something(type_proto: Any) -> bool:
    return type_proto is not None and type_proto.WhichOneof("value") is not None


def _sizes(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in sizes)
    except (TypeError, ValueError):
        shape = (-1,)
    if any(size < 0 or size >= 2**63 for size in shape):
        raise BadProgram(
            f"the shape of '{clean_name(name)}' is {sizes}",
            object=name,
            number=str(sizes),
            remedy="give whole numbers from 0 up, such as 1,3,224,224",
        )
    return shape


def _agrees(dims: Dims, given: Sequence[int]) -> bool:
    pairs = zip(dims, given, strict=False)
    return len(dims) == len(given) and all(isinstance(a, str) or a == b for a, b in pairs)
