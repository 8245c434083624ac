"""Reading ONNX models: one parsed and inlined ModelProto, or one `BadProgram`.

The file may come from anywhere. Weights in other files are never opened; where they are
said to be is checked all the same, because exporters and runtimes will open them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from loadmaster.errors import BadProgram, require
from loadmaster.files import open_regular
from loadmaster.program.build import clean_name, topological_order
from loadmaster.program.importers import malformed

STANDARD = ("", "ai.onnx")
"""Names of ONNX's own operators' domain."""
LARGEST_FILE = 2**31 - 1
"""Bytes; protobuf can't hold more, and larger models keep their weights in other files."""
DEEPEST = 64
"""Graphs inside graphs, and functions that call functions."""
LARGEST_GRAPH = 1_000_000
"""Nodes after inlining: a few nested functions can stand for billions."""
_NAMED = 3
"""Weights, and files, that a note names."""

_EQUATION = re.compile(rb"(T(,T)*)(->T)?".replace(b"T", rb"[A-Za-z]*(\.\.\.[A-Za-z]*)?"))


def read_model(source: Any, *, slim: bool = False) -> tuple[Any, str]:
    """The model, its functions inlined and its structure checked, and a name for it. `slim`: without the numbers of
    large weights, for who needs their sizes alone and writes no model."""
    onnx = require("onnx", "onnx")
    if isinstance(source, onnx.ModelProto):
        model, folder, name = source, None, ""
    else:
        path = Path(source)
        model, folder, name = _parse(onnx, path, slim), path.parent, path.stem
    if not model.HasField("graph"):
        raise _broken(name, "it has no graph")
    if not model.graph.output:
        raise _broken(name, "its graph has no outputs")
    if not model.opset_import:
        raise _broken(name, "it names no operator set")
    if model.functions:
        model = _inlined(onnx, model, name)
    _check(onnx, model.graph, folder)
    return model, name or clean_name(model.graph.name) or "model"


def _parse(onnx: Any, path: Path, slim: bool) -> Any:
    message = require("google.protobuf.message", "onnx")
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise BadProgram(
                f"'{path}' has {size} bytes, and an ONNX file at most {LARGEST_FILE}",
                object=str(path),
                number=size,
                remedy="save the model with its weights as external data",
            )
        with open_regular(path, LARGEST_FILE) as file:
            return onnx.ModelProto.FromString(read_slim(file) if slim else file.read())
    except FileNotFoundError:
        raise BadProgram(f"there is no file '{path}'", object=str(path), remedy="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadProgram(
            f"'{path}' can't be read: {reason}", object=str(path), remedy="check the path"
        ) from None
    except message.DecodeError:
        raise BadProgram(
            f"'{path}' ({size} bytes) is not an ONNX model, or it is cut off",
            object=str(path),
            number=size,
            remedy="export or copy it again",
        ) from None


def _broken(name: str, reason: str) -> BadProgram:
    return BadProgram(
        f"'{clean_name(name) or 'the model'}' is not a whole ONNX model: {reason}",
        object=clean_name(name),
        remedy="export or copy it again",
    )


def _inlined(onnx: Any, model: Any, name: str) -> Any:
    # The size after inlining is found before it is done, by so many rounds as calls may nest.
    functions = {(f.domain, f.name): list(_all_nodes(f.node)) for f in model.functions}
    sizes = {key: len(nodes) for key, nodes in functions.items()}
    for _ in range(DEEPEST):
        last, sizes = (
            sizes,
            {
                key: sum(sizes.get((node.domain, node.op_type), 1) for node in nodes)
                for key, nodes in functions.items()
            },
        )
        if sizes == last or max(sizes.values()) > LARGEST_GRAPH:
            break
    else:
        raise _broken(name, f"its functions call each other more than {DEEPEST} deep")
    total = sum(sizes.get((node.domain, node.op_type), 1) for node in _all_nodes(model.graph.node))
    if max(total, *sizes.values()) > LARGEST_GRAPH:
        raise _broken(name, f"its functions stand for more than {LARGEST_GRAPH} nodes")
    try:
        return require("onnx.inliner", "onnx").inline_local_functions(model)
    except Exception as error:  # the checker, protobuf and the bindings each raise their own
        raise _broken(name, f"its functions can't be inlined: {error}") from None


def subgraphs(node: Any) -> list[Any]:
    """The graphs that a node carries: branches and bodies."""
    return [
        graph
        for attribute in node.attribute
        for graph in ([attribute.g] if attribute.HasField("g") else list(attribute.graphs))
    ]


def _all_nodes(nodes: Sequence[Any]) -> Iterator[Any]:
    waiting = [(node, 0) for node in nodes]
    while waiting:
        node, depth = waiting.pop()
        yield node
        if depth > DEEPEST:
            raise _broken(str(node.name), f"graphs nest more than {DEEPEST} deep")
        waiting += [(inner, depth + 1) for graph in subgraphs(node) for inner in graph.node]


def _check(onnx: Any, graph: Any, folder: Path | None) -> None:
    """Names are text, graphs do not nest for ever, and other files are in the model's folder."""
    graphs = [graph]
    for node in _all_nodes(graph.node):
        graphs += subgraphs(node)
        for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
            _text(name)
        for attribute in node.attribute:
            _text(attribute.name)
            if node.op_type == "Einsum" and attribute.name == "equation":
                _check_equation(node, bytes(attribute.s))
            for tensor in (attribute.t, *attribute.tensors):
                _check_location(onnx, tensor, folder)
    for part in graphs:
        for value in (*part.input, *part.output, *part.value_info):
            _text(value.name)
        sparse = [t for s in part.sparse_initializer for t in (s.values, s.indices)]
        for tensor in (*part.initializer, *sparse):
            _text(tensor.name)
            _check_location(onnx, tensor, folder)


def _text(name: Any) -> None:
    if not isinstance(name, str):  # protobuf gives bytes for what is no UTF-8
        text = clean_name(bytes(name)[:40].decode("utf-8", "backslashreplace"))
        raise BadProgram(
            f"the name '{text}' is not UTF-8", object=text, remedy="rename it and export the model again"
        )


def _check_equation(node: Any, equation: bytes) -> None:
    # onnx (1.23.2 too) never comes back from inferring the shape of some broken equations.
    if _EQUATION.fullmatch(equation.replace(b" ", b"")) is None:
        text = clean_name(equation[:80].decode("utf-8", "backslashreplace"))
        raise BadProgram(
            f"node '{node_name(node, 0)}' (Einsum) has the equation '{text}'",
            object=node_name(node, 0),
            number=text,
            remedy="write it like 'bij,bjk->bik'",
        )


def missing_data(source: Any, graph: Any) -> list[str]:
    """A note where the files with the numbers of weights are not beside the model; none for a model in memory."""
    onnx = require("onnx", "onnx")
    if isinstance(source, onnx.ModelProto):
        return []
    folder = Path(source).parent
    graphs = [graph, *(part for node in _all_nodes(graph.node) for part in subgraphs(node))]
    weights = [
        (clean_name(str(tensor.name)), _location(tensor))
        for part in graphs
        for tensor in part.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    gone = {place for place in {place for _, place in weights} if not (folder / place).is_file()}
    names = [name for name, place in weights if place in gone]
    if not names:
        return []
    some = ", ".join(f"'{name}'" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    files = ", ".join(f"'{clean_name(place)}'" for place in sorted(gone)[:_NAMED])
    return [f"the numbers of weights {some}{more} are not there ({files}): only their sizes are used"]


def _location(tensor: Any) -> str:
    """Where a weight's numbers are, as the model says it."""
    return next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")


def _check_location(onnx: Any, tensor: Any, folder: Path | None) -> None:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    name, location = clean_name(str(tensor.name)), _location(tensor)
    windows = PureWindowsPath(location)
    parts = {*PurePosixPath(location).parts, *windows.parts}
    inside = bool(location) and not windows.anchor and not location.startswith("/") and ".." not in parts
    if inside and folder is not None:
        try:
            inside = (folder / location).resolve().is_relative_to(folder.resolve())
        except (OSError, ValueError, RuntimeError):  # a link to itself, a null character
            inside = False
    if not inside:
        raise BadProgram(
            f"the data of weight '{name}' is outside the model's folder, at '{clean_name(location)}'",
            object=name,
            number=clean_name(location),
            remedy="keep external data beside the model",
        )


def uses(node: Any) -> list[str]:
    """The names a node takes from around it, those of its branches and bodies included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        made = {value.name for value in (*graph.input, *graph.initializer)}
        made |= {sparse.values.name for sparse in graph.sparse_initializer}
        made |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in uses(inner)]
        read += [output.name for output in graph.output]
        names += [name for name in read if name not in made]
    return names


def results_of(graph: Any) -> set[str]:
    """The names of all that its nodes make, those of branches and bodies included."""
    return {name for node in _all_nodes(graph.node) for name in node.output}


def sorted_nodes(graph: Any) -> tuple[list[tuple[int, Any]], bool]:
    """The nodes with their positions, in file order if that is valid, and whether it is."""
    maker: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if maker.setdefault(name, position) != position:
                raise malformed(
                    f"tensor '{clean_name(name)}' is written by two nodes", clean_name(name), position
                )
    needs = [sorted({maker[name] for name in uses(node) if name in maker}) for node in graph.node]
    if all(not sources or sources[-1] < position for position, sources in enumerate(needs)):
        return list(enumerate(graph.node)), True
    names = [node_name(node, position) for position, node in enumerate(graph.node)]
    return [(position, graph.node[position]) for position in topological_order(needs, names)], False


def node_name(node: Any, position: int) -> str:
    """What people call the node: its name, else its first result, else its place."""
    made = next((name for name in node.output if name), "")
    return clean_name(node.name or made or f"{node.op_type}_{position}")


# A file without the numbers of its large weights: they are most of it, and sizes alone are needed. It is read field by
# field (protobuf: a tag, then a number, eight or four bytes, or a length and so many bytes). Of the initializers of its
# graph that are large, the fields with numbers are left out, and the lengths around them written anew; all else is passed
# on as it is. What makes no sense is passed on too: protobuf says what is wrong with it.

LARGE = 2**16
"""Bytes of an initializer from which on its numbers are left out; above what constants are folded of."""
_GRAPH, _INITIALIZER = 7, 5
"""Fields of ModelProto and of GraphProto."""
_NUMBERS = frozenset({4, 5, 6, 7, 9, 10, 11})
"""Fields of TensorProto: float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST = 10
"""Bytes of a varint."""


class _Odd(Exception):
    """Not what protobuf writes."""


class _Field:
    """One field: its number, where its tag begins, where its content is."""

    __slots__ = ("begin", "content", "end", "number", "wire")

    def __init__(self, number: int, wire: int, begin: int, content: int, end: int) -> None:
        self.number, self.wire, self.begin, self.content, self.end = number, wire, begin, content, end


def read_slim(file: BinaryIO) -> bytes:
    """The bytes of an ONNX model without the numbers of large initializers."""
    size = os.fstat(file.fileno()).st_size
    parts: list[bytes] = []
    try:
        for field in _fields(file, 0, size):
            if field.number == _GRAPH and field.wire == _BYTES:
                parts += _with_length(_GRAPH, _slim_graph(file, field))
            else:
                parts.append(_read(file, field.begin, field.end))
    except _Odd:
        file.seek(0)
        return file.read()
    return b"".join(parts)


def _slim_graph(file: BinaryIO, graph: _Field) -> list[bytes]:
    parts: list[bytes] = []
    kept = graph.content  # what follows is not copied yet
    for field in _fields(file, graph.content, graph.end):
        large = field.end - field.content >= LARGE
        if field.number != _INITIALIZER or field.wire != _BYTES or not large:
            continue
        parts.append(_read(file, kept, field.begin))
        inner = [
            _read(file, part.begin, part.end)
            for part in _fields(file, field.content, field.end)
            if part.number not in _NUMBERS
        ]
        parts += _with_length(_INITIALIZER, inner)
        kept = field.end
    parts.append(_read(file, kept, graph.end))
    return parts


def _fields(file: BinaryIO, begin: int, end: int) -> Iterator[_Field]:
    """The fields of a message that lies there."""
    while begin < end:
        tag, content = _varint(file, begin, end)
        number, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            length, content = _varint(file, content, end)
            after = content + length
        elif wire == _VARINT:
            after = _varint(file, content, end)[1]
        elif wire in (_EIGHT, _FOUR):
            after = content + (8 if wire == _EIGHT else 4)
        else:
            raise _Odd
        if number == 0 or after > end:
            raise _Odd
        yield _Field(number, wire, begin, content, after)
        begin = after


def _varint(file: BinaryIO, at: int, end: int) -> tuple[int, int]:
    """The number that lies there, and where it ends."""
    file.seek(at)
    value = 0
    for place, byte in enumerate(file.read(min(_LONGEST, end - at))):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _Odd


def _read(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)


def _with_length(number: int, parts: list[bytes]) -> list[bytes]:
    return [_encode(number << 3 | _BYTES), _encode(sum(map(len, parts))), *parts]


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
