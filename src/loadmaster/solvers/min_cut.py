"""`Network`: minimum cuts of small networks, with whole numbers of any size (Dinic's algorithm)."""

from __future__ import annotations


class Network:
    """Nodes are numbers; arcs have room for so much."""

    def __init__(self, nodes: int) -> None:
        self._to: list[int] = []
        self._room: list[int] = []  # arc 2i and its reverse 2i + 1
        self._arcs: list[list[int]] = [[] for _ in range(nodes)]

    def add(self, start: int, end: int, room: int) -> None:
        for node, other, size in ((start, end, room), (end, start, 0)):
            self._arcs[node].append(len(self._to))
            self._to.append(other)
            self._room.append(size)

    def cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """(the least room, [nodes] whether a node is on the sink's side of the cut, which is the smallest
        such side). It uses the network up."""
        total = 0
        while (level := self._levels(source, sink))[sink] >= 0:
            total += self._blocked(source, sink, level)
        return total, self._before(sink)

    def _levels(self, source: int, sink: int) -> list[int]:
        """[nodes] steps from the source along arcs with room, or -1."""
        level = [-1] * len(self._arcs)
        level[source] = 0
        queue = [source]
        for node in queue:  # it grows
            for arc in self._arcs[node]:
                if self._room[arc] and level[self._to[arc]] < 0:
                    level[self._to[arc]] = level[node] + 1
                    queue.append(self._to[arc])
            if level[sink] >= 0:
                break
        return level

    def _blocked(self, source: int, sink: int, level: list[int]) -> int:
        """Fill shortest ways until none is left; how much went."""
        to, room, arcs = self._to, self._room, self._arcs
        tried = [0] * len(arcs)
        total, node, path = 0, source, list[int]()
        while True:
            if node == sink:
                amount = min(room[arc] for arc in path)
                total += amount
                for arc in path:
                    room[arc] -= amount
                    room[arc ^ 1] += amount
                full = next(place for place, arc in enumerate(path) if not room[arc])
                node = to[path[full] ^ 1]
                del path[full:]
                continue
            here, at = arcs[node], tried[node]
            while at < len(here) and not (room[here[at]] and level[to[here[at]]] == level[node] + 1):
                at += 1
            tried[node] = at
            if at < len(here):
                path.append(here[at])
                node = to[here[at]]
            elif path:
                node = to[path.pop() ^ 1]
                tried[node] += 1
            else:
                return total

    def _before(self, sink: int) -> list[bool]:
        """[nodes] from which the sink can be reached along arcs with room."""
        met = [False] * len(self._arcs)
        met[sink] = True
        queue = [sink]
        for node in queue:  # it grows
            for arc in self._arcs[node]:
                if self._room[arc ^ 1] and not met[self._to[arc]]:
                    met[self._to[arc]] = True
                    queue.append(self._to[arc])
        return met
