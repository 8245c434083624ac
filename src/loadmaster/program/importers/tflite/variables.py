"""Variables of a TFLite model: kept from run to run, read and written by ops.

A variable is a state tensor. Each write makes a new tensor in the same place, so that reads before
and after it are told apart, and the order of the ops keeps them apart too.
"""

from __future__ import annotations

from collections.abc import Hashable

from loadmaster.errors import BadProgram
from loadmaster.program.build import Builder
from loadmaster.program.importers.tflite.read import ABSENT, Graph, Operator, Tensor
from loadmaster.program.program import TensorKind, TieKind


class Variables:
    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._handles: dict[tuple[int, int], str] = {}
        self._tensors: dict[Hashable, Tensor] = {}
        self._current: dict[Hashable, int] = {}
        self._before: dict[Hashable, int] = {}

    def name_handle(self, graph: Graph, operator: Operator) -> None:
        """VAR_HANDLE: a tensor that stands for the variable of a name."""
        text = "" if operator.options is None else operator.options.text(1)
        for number in operator.outputs:
            if number != ABSENT:
                self._handles[id(graph), number] = text or f"variable_{number}"

    def of_handle(self, graph: Graph, number: int, who: str) -> Hashable:
        if (id(graph), number) not in self._handles:
            raise BadProgram(
                f"{who} uses a variable that no VAR_HANDLE names", object=who, remedy="export the model again"
            )
        return self._handles[id(graph), number]

    def current(self, key: Hashable, tensor: Tensor) -> int:
        """The tensor that holds the variable now."""
        if key not in self._current:
            name = key if isinstance(key, str) else tensor.name
            self._tensors[key] = tensor
            self._current[key] = self._new(name, tensor, TensorKind.STATE)
        return self._current[key]

    def rewritten(self, key: Hashable) -> int:
        """The tensor that the next op writes over it; `tie` must follow."""
        tensor = self._tensors[key]
        before = self._before[key] = self._current[key]
        if self._builder.tensor_kind(before) == TensorKind.OUTPUT:
            self._builder.set_kind(before, TensorKind.ACTIVATION)  # it is not there at the end
        self._current[key] = self._new(f"{tensor.name}.next", tensor, TensorKind.OUTPUT)
        return self._current[key]

    def tie(self, key: Hashable, op: int) -> None:
        """Op `op` has written it."""
        self._builder.tie(TieKind.INPLACE, self._before[key], self._current[key], op)

    def _new(self, name: str, tensor: Tensor, kind: TensorKind) -> int:
        return self._builder.tensor(
            self._builder.free_name("tensor", name), shape=tensor.shape, dtype=tensor.dtype, kind=kind
        )
