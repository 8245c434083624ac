"""Types and sizes of the values of an ONNX graph: inferred, stated in the file, or given by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from loadmaster.errors import BadProgram, nearest, require
from loadmaster.program.build import clean_name
from loadmaster.program.importers.onnx.read import STANDARD
from loadmaster.program.importers.onnx.steps import Frame
from loadmaster.program.importers.onnx.values import (
    Dims,
    Value,
    element_type,
    evaluate,
    known,
    tensor_type,
    unknown_dimension,
)


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
        self._declared_holds = True
        """Sizes in the file may be used: the user changed none that was fixed."""

    def inputs(self, graph: Any) -> dict[str, Value]:
        """The program's inputs, by name: those of the graph that are no weights."""
        weights = {tensor.name for tensor in graph.initializer}  # old files list them as inputs too
        weights |= {sparse.values.name for sparse in graph.sparse_initializer}
        declared: dict[str, tuple[str, Dims | None]] = {}
        for info in graph.input:
            if info.name not in weights:
                declared[info.name] = tensor_type(clean_name(info.name), info.type)
        for name, (dtype, dims) in declared.items():
            if name in self._shapes:
                declared[name] = (dtype, self._given(name, dims))
        shapes = {name: self._merged(None, dims) for name, (_, dims) in declared.items()}
        unknown = {name: dims for name, dims in shapes.items() if known(dims) is None}
        if unknown:
            remedy = "give " + " ".join(
                f"--shape {clean_name(name)}="
                + ",".join("1" if isinstance(d, str) else str(d) for d in dims or ("1",))
                for name, dims in unknown.items()
            )
            name, dims = next(iter(unknown.items()))
            raise unknown_dimension(clean_name(name), dims, remedy)
        return {
            name: Value(clean_name(name), dtype, known(shapes[name]) or (), given=True)
            for name, (dtype, _) in declared.items()
        }

    def _given(self, name: str, dims: Dims | None) -> Dims:
        given, shown = self._shapes[name], clean_name(name)
        self._met.add(name)
        if dims is not None and len(dims) != len(given):
            raise BadProgram(
                f"input '{shown}' has {len(dims)} dimensions and --shape gives {len(given)}",
                object=shown,
                number=len(given),
                remedy="give them all",
            )
        for dim, size in zip(dims or (), given, strict=False):
            if isinstance(dim, int):
                self._declared_holds &= dim == size
            elif dim != "?" and self._symbols.setdefault(dim, size) != size:
                raise BadProgram(
                    f"dimension '{dim}' of input '{shown}' is {size} here and {self._symbols[dim]} elsewhere",
                    object=shown,
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
            shown = clean_name(frame.prefix + name)
            shape = tuple(data[name].shape) if name in data else known(dims)
            if shape is None:
                sizes_text = ",".join("1" if isinstance(dim, str) else str(dim) for dim in dims or ("1",))
                raise unknown_dimension(
                    clean_name(name), dims, f"give --shape {clean_name(name)}={sizes_text}"
                )
            values.append(Value(shown, dtype, shape, constant, data.get(name)))
        return values

    def _types(self, node: Any, inputs: Sequence[Value | None], who: str) -> Mapping[str, Any]:
        domain = "" if node.domain in STANDARD else node.domain
        try:
            schema = self.onnx.defs.get_schema(node.op_type, self.versions.get(domain, 1), domain)
        except self.onnx.defs.SchemaError:
            return {}
        _check_axes(node, inputs, who)
        _check_parts(node, inputs, who)
        present = {n: v for n, v in zip(node.input, inputs, strict=True) if v is not None}
        numbers = {
            n: self.onnx.numpy_helper.from_array(v.data) for n, v in present.items() if v.data is not None
        }
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

    def _completed(
        self, name: str, inferred: Any, inputs: Sequence[Value | None], frame: Frame, who: str
    ) -> tuple[str, Dims | None]:
        """The type that was inferred, its gaps filled from the file and from the user."""
        shown = clean_name(name)
        stated = frame.declared.get(name) if self._declared_holds else None
        dtype, dims = tensor_type(shown, inferred) if _says_something(inferred) else ("", None)
        if known(dims) is None and _says_something(stated):
            declared_dtype, declared = tensor_type(shown, stated)
            dtype, dims = dtype or declared_dtype, self._merged(dims, declared)
        given = self._shapes.get(name)
        if given is not None:
            self._met.add(name)
            if dims is not None and not _agrees(dims, given):
                raise BadProgram(
                    f"tensor '{shown}' has the shape {list(dims)} and --shape gives {list(given)}",
                    object=shown,
                    number=str(list(given)),
                    remedy="give the shape it has",
                )
            dims = given
        first = next((value.dtype for value in inputs if value is not None), "")
        if not (dtype or first):
            raise BadProgram(
                f"{who} makes '{shown}', and nothing says of which type",
                object=shown,
                remedy="add it to the model's value_info",
            )
        return dtype or first, dims

    def _merged(self, dims: Dims | None, declared: Dims | None) -> Dims | None:
        if declared is not None:
            declared = tuple(self._symbols.get(d, d) if isinstance(d, str) else d for d in declared)
        if dims is None or declared is None or len(dims) != len(declared):
            return declared if dims is None else dims
        return tuple(b if isinstance(a, str) else a for a, b in zip(dims, declared, strict=True))

    def check_all_met(self, inputs: Mapping[str, Value]) -> None:
        """Refuse shapes that were given for what the model does not have."""
        for name in self._shapes:
            if name not in self._met:
                options = [*inputs, *self._met]
                raise BadProgram(
                    f"the model has no tensor '{clean_name(name)}'{nearest(name, options)}",
                    object=name,
                    remedy=f"name one of {', '.join(options[:8])}",
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
                raise BadProgram(
                    f"{who} has the {attribute.name} {wrong[0]}, and its operands have {rank} dimensions",
                    object=who,
                    number=wrong[0],
                    remedy="export the model again",
                )


def _check_parts(node: Any, inputs: Sequence[Value | None], who: str) -> None:
    """Refuse a Split into other than its results: shape inference of it reads memory unchecked too."""
    if node.op_type != "Split":
        return
    told = [
        len(a.ints) if a.name == "split" else a.i
        for a in node.attribute
        if a.name in ("split", "num_outputs")
    ]
    if len(inputs) > 1 and inputs[1] is not None:
        told += [int(np.prod(inputs[1].shape, dtype=np.float64))]
    for parts in told:
        if parts != len(node.output):
            raise BadProgram(
                f"{who} splits into {parts} and has {len(node.output)} results",
                object=who,
                number=parts,
                remedy="export the model again",
            )


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
