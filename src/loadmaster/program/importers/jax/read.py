"""What can be read off equations without walking them: types, callees, sizes, flops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.jax.costs import Type, cost_of, estimate, is_known
from loadmaster.program.types import BITS, from_numpy

_BODIES = ("call_jaxpr", "fun_jaxpr", "jaxpr")
"""Params that hold what a call computes; a custom gradient has more jaxprs than that."""


class Reader:
    """Answers about equations, remembered."""

    def __init__(self, unroll_limit: int) -> None:
        core = require("jax.extend.core", "agents")
        self._kinds = (core.Jaxpr, core.ClosedJaxpr)
        self._unroll_limit = unroll_limit
        self._types: dict[Any, Type] = {}
        self._sizes: dict[int, int] = {}

    def type_of(self, aval: Any) -> Type:
        shape = getattr(aval, "shape", None)
        if shape is None:  # a token: it orders effects and holds nothing
            return Type((), "u8", 0, 0)
        key = (shape, aval.dtype)
        known = self._types.get(key)
        if known is None:
            known = self._types[key] = _new_type(shape, aval.dtype)
        return known

    def callee(self, equation: Any) -> Any:
        """The jaxpr that an equation stands for, if it is a call.

        Known by its params, because names of calls change between versions of JAX. What it
        takes and gives must be what the equation does: a kernel over blocks is no call.
        """
        if is_known(equation.primitive.name):
            return None
        params = equation.params
        likely = [params[key] for key in _BODIES if key in params]
        for body in (*likely, *params.values()):
            if isinstance(body, self._kinds):
                jaxpr = getattr(body, "jaxpr", body)
                inner, outer = (jaxpr.invars, jaxpr.outvars), (equation.invars, equation.outvars)
                if all(map(self._same, inner, outer)):
                    return body
        return None

    def is_unrolled(self, scan: Any) -> bool:
        return bool(scan.params["length"] * self.size(scan.params["jaxpr"]) <= self._unroll_limit)

    def size(self, body: Any) -> int:
        """How many ops its walk makes, loops unrolled as they will be."""
        jaxpr = getattr(body, "jaxpr", body)
        if id(jaxpr) not in self._sizes:
            self._sizes[id(jaxpr)] = sum(self._equation_size(equation) for equation in jaxpr.eqns)
        return self._sizes[id(jaxpr)]

    def flops(self, body: Any) -> int:
        """Flops of all classes, to compare branches."""
        return sum(self._equation_flops(e) for e in getattr(body, "jaxpr", body).eqns)

    def _same(self, inner: Sequence[Any], outer: Sequence[Any]) -> bool:
        return len(inner) == len(outer) and all(
            self.type_of(a.aval) == self.type_of(b.aval) for a, b in zip(inner, outer, strict=True)
        )

    def _equation_size(self, equation: Any) -> int:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            steps = params["length"] if self.is_unrolled(equation) else 1
            return int(steps) * self.size(params["jaxpr"])
        if name == "while":
            return self.size(params["cond_jaxpr"]) + self.size(params["body_jaxpr"])
        if name == "cond":
            return max(self.size(branch) for branch in params["branches"])
        body = self.callee(equation)
        return 1 if body is None else self.size(body)

    def _equation_flops(self, equation: Any) -> int:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return int(params["length"]) * self.flops(params["jaxpr"])
        if name == "while":
            return self.flops(params["cond_jaxpr"]) + self.flops(params["body_jaxpr"])
        if name == "cond":
            return max(self.flops(branch) for branch in params["branches"])
        body = self.callee(equation)
        if body is not None:
            return self.flops(body)
        operands = [self.type_of(var.aval) for var in equation.invars]
        results = [self.type_of(var.aval) for var in equation.outvars]
        cost = cost_of(name, params, operands, results) or estimate(name, results)
        return cost.matrix + cost.vector + cost.transcendental


def _new_type(shape: Sequence[Any], dtype: Any) -> Type:
    try:
        sizes = tuple(int(size) for size in shape)
    except Exception:  # a symbolic size says in its own way that it is no number
        text = ",".join(str(size) for size in shape)
        raise BadProgram(
            f"an array of shape [{text}] has an unknown dimension",
            object=text,
            remedy="give whole numbers for all dimensions",
        ) from None
    name = from_numpy(str(dtype))
    if name.startswith("key<"):  # a random key is some 32-bit words
        sizes, name = (*sizes, dtype.itemsize // 4), "u32"
    elements = math.prod(sizes)
    bits = BITS.get(name, 8)  # a type that we don't know is refused where it is really used
    return Type(sizes, name, (elements * bits + 7) // 8, elements)
