"""A program that runs twice in a row: what is kept between runs is one tensor for both.

The first run's ops and tensors keep their numbers. Those of the second come behind them, in their order;
weights and states, and what shows them before any op has, are the first run's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.program.labels import Labels
from loadmaster.program.program import PERSISTENT, Int64, Program
from loadmaster.program.repeats import gathered
from loadmaster.program.validate import validate

NEXT = "@next"
"""Ends the names of the second run."""


def twice(base: Program) -> Program:
    """Both runs as one program. That outputs may lie where inputs were, or loops carry values, is left out."""
    ops = np.tile(np.arange(base.n_ops), 2)
    shared = np.isin(base.tensor_kind, [int(kind) for kind in PERSISTENT]) & (base.producer < 0)
    other = np.flatnonzero(~shared)
    tensors = np.concatenate([np.arange(base.n_tensors), other])
    new = np.arange(base.n_tensors, dtype=np.int32)
    new[other] = base.n_tensors + np.arange(len(other), dtype=np.int32)
    loops = np.where(base.op_loop < 0, -1, base.op_loop + base.n_loops)
    parents = np.where(base.loop_parent < 0, -1, base.loop_parent + base.n_loops)
    shape_start, shape = gathered(base.tensor_shape_start, tensors)
    nobody = np.zeros(0, dtype=np.int32)

    def labels(column: Labels, rows: Int64) -> Labels:
        return Labels(column.values, column.codes[rows])  # still by first appearance

    def behind(start: Int64) -> Int64:
        return np.concatenate([start, start[1:] + start[-1]])

    return validate(
        replace(
            base,
            name=base.name + NEXT,
            op_name=base.op_name + tuple(name + NEXT for name in base.op_name),
            op_kind=labels(base.op_kind, ops),
            op_dtype=labels(base.op_dtype, ops),
            op_scope=labels(base.op_scope, ops),
            op_attributes=labels(base.op_attributes, ops),
            op_flops=base.op_flops[ops],
            op_other_bytes=base.op_other_bytes[ops],
            op_backward=base.op_backward[ops],
            op_view=base.op_view[ops],
            op_loop=np.concatenate([base.op_loop, loops]).astype(np.int32),
            op_group=base.op_group[ops],
            op_source=base.op_source[ops],
            loop_parent=np.concatenate([base.loop_parent, parents]).astype(np.int32),
            loop_trips=np.tile(base.loop_trips, 2),
            tensor_name=base.tensor_name
            + tuple(base.tensor_name[tensor] + NEXT for tensor in other.tolist()),
            tensor_bytes=base.tensor_bytes[tensors],
            tensor_dtype=labels(base.tensor_dtype, tensors),
            tensor_kind=base.tensor_kind[tensors],
            tensor_shape_start=shape_start,
            tensor_shape=base.tensor_shape[shape],
            tensor_group=base.tensor_group[tensors],
            tensor_fast=base.tensor_fast[tensors],
            tensor_alias=np.concatenate([base.tensor_alias, new[base.tensor_alias[other]]]),
            read_start=behind(base.read_start),
            read_bytes=np.tile(base.read_bytes, 2),
            read_tensor=np.concatenate([base.read_tensor, new[base.read_tensor]]),
            write_start=behind(base.write_start),
            write_bytes=np.tile(base.write_bytes, 2),
            write_tensor=np.concatenate([base.write_tensor, new[base.write_tensor]]),
            tie_kind=np.zeros(0, dtype=np.int8),
            tie_source=nobody,
            tie_target=nobody,
            tie_at=nobody,
            costs=None if base.costs is None else np.tile(base.costs, (2, 1)),
            repeats=None,
        )
    )
