"""JAX functions as Programs: traced over shapes, nothing is computed.

    program = import_jax(step, (params, batch), name="step")

The jaxpr is walked (`walk`), it is decided which values share a place (`places`), and the nodes
become ops here. Scopes are the user's `jax.named_scope`s; an
iteration of an unrolled scan adds `t0`, `t1`, … .
"""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.errors import BadProgram, nearest, require
from loadmaster.program.build import Builder
from loadmaster.program.importers import load_function, no_collection, note_estimates
from loadmaster.program.importers.jax.costs import TYPED_BY_OPERAND
from loadmaster.program.importers.jax.places import Places
from loadmaster.program.importers.jax.walk import LITERAL, Node, Walk
from loadmaster.program.kinds import BITS, from_numpy, is_unknown
from loadmaster.program.op_costs import Cost
from loadmaster.program.program import Program, TensorKind, TieKind


class Emitter:
    """The last step from a walked jaxpr to a Program: writes the nodes of `places` into `build`.

    `given` names the tensors that no op makes.
    """

    def __init__(
        self,
        build: Builder,
        places: Places,
        given: Sequence[tuple[int, str, TensorKind]],
        group_scope: str | None,
    ) -> None:
        self._build = build
        self._places = places
        self._types = places.walk.types
        self._tensor: dict[int, int] = {}
        self._op: dict[int, int] = {}
        self._numbers: Counter[str] = Counter()
        self._groups: dict[str, int] = {}
        self._group_of: dict[str, int] = {}
        self._group_scope = group_scope
        self._given_names: set[str] = set()
        for value, name, kind in given:
            name = build.free_name("tensor", name)
            self._given_names.add(name)
            self._add_tensor(value, name, kind)

    def run(self, updates: Sequence[tuple[int, int]], *, strict: bool) -> None:
        places, build = self._places, self._build
        build.warnings += note_estimates(Counter(c.kind for c in places.costs if is_unknown(c.kind)), strict)
        for loop in places.walk.loops:
            build.loop(loop.trips, loop.parent)
        for position, node in enumerate(places.nodes):
            if not places.is_dropped(node):
                self._op[position] = self._add_op(position, node, places.costs[position])
        for result in places.results:
            value = places.value(result)
            if result != LITERAL and places.producer(value) >= 0:
                build.set_kind(self._tensor[value], TensorKind.OUTPUT)
        for kind, source, target, at in places.ties:
            at = self._op[at] if kind == TieKind.INPLACE else at
            build.tie(kind, self._tensor[source], self._tensor[target], at)
        for source, number in updates:
            self._join_group(source, places.results[number])

    def _add_tensor(self, value: int, name: str, kind: TensorKind, alias: int | None = None) -> int:
        type = self._types[value]
        tensor = self._build.tensor(
            name, shape=type.shape, dtype=type.dtype, bytes=type.bytes, kind=kind, alias=alias
        )
        self._tensor[value] = tensor
        return tensor

    def _add_op(self, position: int, node: Node, cost: Cost) -> int:
        name = self._name(node)
        operands = [LITERAL if v == LITERAL else self._places.value(v) for v in node.operands]
        alias = self._tensor[operands[0]] if cost.view else None
        written: list[int | tuple[int, int]] = []
        for number, result in enumerate(node.results):
            label = name if number == 0 else f"{name}:{number}"
            if label in self._given_names:
                label = self._build.free_name("tensor", label)
            written.append(self._add_tensor(result, label, TensorKind.ACTIVATION, alias))
        reads: list[int | tuple[int, int]] = []
        for number, operand in enumerate(operands):
            if operand != LITERAL and number == cost.partial:
                made = sum(self._types[result].bytes for result in node.results)
                reads.append((self._tensor[operand], min(made, node.operand_types[number].bytes)))
            elif operand != LITERAL:
                reads.append(self._tensor[operand])
        if cost.view:
            reads, written = [(self._tensor[operands[0]], 0)], [(written[0], 0)]  # type: ignore[list-item]
        elif cost.over is not None and position in self._places.inplace:
            there, update = cost.over
            if operands[0] != LITERAL:
                reads[0] = (self._tensor[operands[0]], there)
            written = [(written[0], update)]  # type: ignore[list-item]
        by_operand = cost.kind in TYPED_BY_OPERAND and node.operand_types
        return self._build.op(
            name,
            cost.kind,
            reads=reads,
            writes=written,
            matrix=cost.matrix,
            vector=cost.vector,
            transcendental=cost.transcendental,
            dtype=node.operand_types[0].dtype if by_operand else None,
            scope=node.scope,
            backward=node.backward,
            view=cost.view,
            loop=node.loop,
            group=self._group(node.scope),
            source=node.source,
        )

    def _name(self, node: Node) -> str:
        # A dot before the number: primitives hold none, so `exp2.1` is never `exp.21`.
        base = f"{node.scope}/{node.primitive}" if node.scope else node.primitive
        number = self._numbers[base]
        self._numbers[base] = number + 1
        return f"{base}.{number}"

    def _group(self, scope: str) -> int:
        """The hard group of a scope: one for each name right under the group scope."""
        if self._group_scope is None:
            return -1
        known = self._group_of.get(scope)
        if known is None:
            prefix = f"{self._group_scope}/"
            name = scope.removeprefix(prefix).split("/")[0] if scope.startswith(prefix) else ""
            known = self._groups.setdefault(name, len(self._groups)) if name else -1
            self._group_of[scope] = known
        return known

    def _join_group(self, source: int, result: int) -> None:
        made = self._places.producer(result) if result != LITERAL else -1
        group = self._group(self._places.nodes[made].scope) if made >= 0 else -1
        if group >= 0:
            self._build.set_group(self._tensor[source], group)


_NAMED_LOOPS = 8
"""Loops that one warning names."""
_SPEC = re.compile(r"(\w+)\[([\d,\s]*)\]")


def import_jax(
    function: Any,
    args: Sequence[Any],
    *,
    name: str,
    weights: Sequence[int] | None = None,
    state: Sequence[int] = (),
    updates: Mapping[int, int] | None = None,
    group_scope: str | None = None,
    strict: bool = False,
    trips: Mapping[str, int] | None = None,
    unroll_limit: int = 20_000,
    sum_early: bool = False,
) -> Program:
    """Trace `function` over `args` (pytrees of `jax.ShapeDtypeStruct` or arrays).

    `weights` and `state` are positions of arguments; the rest are inputs. The default
    weight is argument 0 if it is a dict or another pytree. `updates` maps the position
    of an argument to that of the result that takes its place, leaf by leaf. With
    `group_scope="update"`, the ops in scope `update/NAME` and the arguments whose new
    values they make are one hard group. `trips` gives the counts of loops of unknown
    length by name. Loops of up to `unroll_limit` ops in all are unrolled. With `sum_early`,
    gradients of jitted functions are summed in the order of a step that has none (`Walk.sum_early`).
    """
    jax = require("jax", "agents")
    leaves = _leaves(jax, function, args, weights, state)
    with no_collection():
        jitted = function if hasattr(function, "trace") else jax.jit(function)
        traced = jitted.trace(*args)
        walk = Walk(trips=trips or {}, unroll_limit=unroll_limit)
        return _program(jax, traced, walk, name, leaves, updates or {}, group_scope, strict, sum_early)


def _program(
    jax: Any,
    traced: Any,
    walk: Walk,
    name: str,
    leaves: list[list[tuple[str, TensorKind]]],
    updates: Mapping[int, int],
    group_scope: str | None,
    strict: bool,
    sum_early: bool,
) -> Program:
    arguments, results = walk.program(traced.jaxpr)
    if sum_early:
        walk.sum_early()
    flat = [leaf for group in leaves for leaf in group]
    if len(arguments) != len(flat):
        raise BadProgram(
            f"'{name}' traces {len(arguments)} arrays and its arguments hold {len(flat)}",
            object=name,
            number=len(arguments),
            remedy="bind static arguments before the import",
        )
    pairs = _pairs(jax, traced, leaves, arguments, updates)
    pairs += _donated(jax, traced, walk, arguments, results, pairs)
    constants = [value for value, _ in walk.constants.values()]
    places = Places(walk, [*arguments, *constants], [source for source, _ in pairs], results)
    places.settle(pairs)
    given = [(value, *leaf) for value, leaf in zip(arguments, flat, strict=True)]
    given += [(value, f"const{i}", TensorKind.WEIGHT) for i, value in enumerate(constants)]
    build = Builder(name, order_source="trace")
    Emitter(build, places, given, group_scope).run(pairs, strict=strict)
    _warn(build, walk)
    return build.build()


def import_jax_spec(spec: str, arg_specs: Sequence[str], **options: Any) -> Program:
    """`import_jax` for 'module:function' from the current directory, arguments as 'f32[8,128]'."""
    jax = require("jax", "agents")
    args = [_argument(jax, text) for text in arg_specs]
    function = load_function(spec)
    options.setdefault("name", spec.partition(":")[2])
    try:
        return import_jax(function, args, **options)
    except (TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadProgram(
            f"'{spec}' does not take {', '.join(arg_specs) or 'no arguments'}: {reason}",
            object=spec,
            number=len(args),
            remedy="give one --arg for each argument that the function takes, as --arg 'f32[8,128]'",
        ) from error


def _argument(jax: Any, text: str) -> Any:
    match = _SPEC.fullmatch(text.strip())
    names = {from_numpy(str(dtype)): dtype for dtype in _dtypes(jax)}
    if not match or match[1] not in names:
        known = match[1] if match else ""
        raise BadProgram(
            f"'{text}' is no array type{nearest(known, list(names)) if known else ''}",
            object=text,
            remedy="write it like f32[8,128] or i32[]",
        )
    shape = tuple(int(size) for size in match[2].split(",") if size.strip())
    return jax.ShapeDtypeStruct(shape, names[match[1]])


def _dtypes(jax: Any) -> list[Any]:
    numpy = jax.numpy
    names = ["bool_", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
    names += [f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)]
    names += ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    dtypes = [numpy.dtype(getattr(numpy, name)) for name in names if hasattr(numpy, name)]
    return [dtype for dtype in dtypes if from_numpy(str(dtype)) in BITS]


def _leaves(
    jax: Any, function: Any, args: Sequence[Any], weights: Sequence[int] | None, state: Sequence[int]
) -> list[list[tuple[str, TensorKind]]]:
    """Names and kinds of the arrays of each argument."""
    tree = jax.tree_util
    if weights is None:
        weights = [0] if args and not tree.all_leaves([args[0]]) else []
    for position in (*weights, *state):
        if not 0 <= position < len(args):
            raise BadProgram(
                f"there is no argument {position}",
                object="arguments",
                number=position,
                remedy=f"give positions from 0 to {len(args) - 1}",
            )
    kinds = dict.fromkeys(weights, TensorKind.WEIGHT) | dict.fromkeys(state, TensorKind.STATE)
    rows = []
    for position, (label, arg) in enumerate(zip(_argument_names(function, len(args)), args, strict=True)):
        kind = kinds.get(position, TensorKind.INPUT)
        paths = [path for path, _ in tree.tree_flatten_with_path(arg)[0]]
        names = [".".join([label, *(tree.keystr((key,), simple=True) for key in path)]) for path in paths]
        rows.append([(leaf, kind) for leaf in names])
    return rows


def _argument_names(function: Any, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [names[i] if i < len(names) else f"arg{i}" for i in range(count)]


def _pairs(
    jax: Any,
    traced: Any,
    leaves: Sequence[Sequence[Any]],
    arguments: Sequence[int],
    updates: Mapping[int, int],
) -> list[tuple[int, int]]:
    """(value of an argument, number of the result that takes its place), leaf by leaf."""
    if not updates:
        return []
    tree = jax.tree_util
    results = traced.out_info
    results = list(results) if isinstance(results, tuple | list) else [results]
    groups = [tree.tree_leaves(result) for result in results]
    pairs: list[tuple[int, int]] = []
    for argument, result in updates.items():
        if not (0 <= argument < len(leaves) and 0 <= result < len(groups)):
            raise BadProgram(
                f"there is no argument {argument} or no result {result} to update",
                object="updates",
                number=argument,
                remedy="check the positions",
            )
        start = sum(len(group) for group in leaves[:argument])
        first = sum(len(group) for group in groups[:result])
        old = arguments[start : start + len(leaves[argument])]
        structures = [tree.tree_structure(t) for t in (_subtree(traced, argument), results[result])]
        if structures[0] != structures[1]:
            raise BadProgram(
                f"argument {argument} and result {result} differ in structure",
                object="updates",
                number=argument,
                remedy="update an argument by a result with the same leaves",
            )
        pairs += [(value, first + number) for number, value in enumerate(old)]
    return pairs


def _subtree(traced: Any, argument: int) -> Any:
    return traced.args_info[0][argument]


def _donated(
    jax: Any,
    traced: Any,
    walk: Walk,
    arguments: Sequence[int],
    results: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Donated arguments go to results of the same type, in order, as JAX does it."""
    infos = jax.tree_util.tree_leaves(traced.args_info)
    paired = {source for source, _ in pairs}
    waiting: dict[Any, deque[int]] = defaultdict(deque)
    for value, info in zip(arguments, infos, strict=True):
        if info.donated and value not in paired:
            waiting[walk.types[value]].append(value)
    taken = {number for _, number in pairs}
    more = []
    for number, var in enumerate(traced.jaxpr.jaxpr.outvars):
        queue = waiting.get(walk.read.type_of(var.aval))
        if queue and number not in taken:
            more.append((queue.popleft(), number))
    return more


def _warn(build: Builder, walk: Walk) -> None:
    if walk.guessed:
        flags = ", ".join(f"--trip {loop}=N" for loop in walk.guessed[:_NAMED_LOOPS])
        count = len(walk.guessed)
        loops = "1 loop of unknown length counts" if count == 1 else f"{count} loops of unknown length count"
        build.warnings.append(f"{loops} as one iteration: give {flags}{', …' * (count > _NAMED_LOOPS)}")
    if walk.branches:
        count = walk.branches.total()
        several = max(walk.branches)
        build.warnings.append(
            f"{count} conditional{'s' if count > 1 else ''} of up to {several} branches "
            "count as the branch with most flops"
        )
