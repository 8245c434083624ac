"""What HDP sees: of an op its kind, its results' shapes and its neighbours; of a group their sums.

The ops of HDP are the placement groups of the problem: an op is told by its first node, and a
group of ops by all of their nodes and edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization
from loadmaster.program.program import Program
from loadmaster.solvers.hdp.settings import Settings

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
UNKNOWN = -1.0


@dataclass(frozen=True)
class Features:
    """Of `ops` ops; `group_rows` follows the grouping."""

    ops: Float32
    """[ops, 1 + results · dimensions + neighbours], unscaled as in the published code."""
    node_op: Int32
    """[nodes]"""
    node_kind: Int32
    node_shape: Float32
    """[nodes, results · dimensions]; 0 where there is no dimension"""
    edges: Int32
    """[2, edges] of ops, within an op too"""
    kinds: int

    def group_rows(self, grouping: Int32, groups: int) -> Float32:
        """[groups, 2 · groups + kinds + results · dimensions] of ops in groups: edges to and from
        every group, how many nodes of each kind, and the sums of their shapes; each row scaled."""
        links = np.zeros((groups, groups), dtype=np.float32)
        np.add.at(links, (grouping[self.edges[0]], grouping[self.edges[1]]), 1)
        of_node = grouping[self.node_op]
        kinds = np.zeros((groups, self.kinds), dtype=np.float32)
        np.add.at(kinds, (of_node, self.node_kind), 1)
        shapes = np.zeros((groups, self.node_shape.shape[1]), dtype=np.float32)
        np.add.at(shapes, of_node, self.node_shape)
        rows: Float32 = np.concatenate([links, links.T, kinds, shapes], axis=1)
        rows /= rows.max(axis=1, keepdims=True) + 1
        return rows

    def width(self, groups: int) -> int:
        """Columns of `group_rows`."""
        return 2 * groups + self.kinds + int(self.node_shape.shape[1])


def features_of(problem: GraphOptimization, settings: Settings) -> Features:
    """The features of a problem's groups."""
    program, nodes = problem.program, problem.node_op
    kinds, node_kind = np.unique(program.op_kind.codes[nodes], return_inverse=True)
    shape = _shapes(program, nodes, settings)
    _, first = np.unique(problem.node_group, return_index=True)
    edges = problem.node_group[problem.edges]
    columns = [
        node_kind[first][:, None],
        np.where(shape[first] > 0, shape[first], UNKNOWN),
        _neighbours(edges, problem.groups, settings.neighbours),
    ]
    return Features(
        np.concatenate(columns, axis=1).astype(np.float32),
        problem.node_group,
        node_kind.astype(np.int32),
        shape,
        edges,
        len(kinds),
    )


def _shapes(program: Program, nodes: Int32, settings: Settings) -> Float32:
    rows = np.zeros((len(nodes), settings.results, settings.dimensions), dtype=np.float32)
    for row, op in enumerate(nodes.tolist()):
        for place, tensor in enumerate(program.writes(op)[: settings.results].tolist()):
            sizes = program.shape(tensor)[: settings.dimensions]
            rows[row, place, : len(sizes)] = sizes
    return rows.reshape(len(nodes), -1)


def _neighbours(edges: Int32, ops: int, width: int) -> Float32:
    """[ops, width] index and direction (1: it reads from here, -1: from there) of each neighbour, in
    the order of the edges, as many as there is room for."""
    between = np.unique(edges[:, edges[0] != edges[1]], axis=1)
    rows: list[list[int]] = [[] for _ in range(ops)]
    for source, target in between.T.tolist():
        rows[source] += [target, 1]
        rows[target] += [source, -1]
    return np.array([(row + [0] * width)[:width] for row in rows], dtype=np.float32)
