"""The bound against every legal plan of tiny graphs, and its native parts against slow ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate import Rng, chance, pick, whole
from generate_graph import random_graph, roomy
from loadmaster import _core
from loadmaster.errors import BadPlan
from loadmaster.graph import GraphOptimization
from loadmaster.graph.bounds import least_costs
from loadmaster.graph.fusion import fusion_violations
from loadmaster.machine import load_machine
from loadmaster.plan.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import TensorKind
from reference.graph import SlowFusion

FAR = 2**62 - 1


# --- plans -----------------------------------------------------------------------------------


def _partitions(ops: list[int]) -> Any:
    """All ways to put ops into clusters."""
    if not ops:
        yield []
        return
    for rest in _partitions(ops[1:]):
        yield [[ops[0]], *rest]
        for at, cluster in enumerate(rest):
            yield [*rest[:at], [ops[0], *cluster], *rest[at + 1 :]]


def _fusion(problem: GraphOptimization, clusters: list[list[int]]) -> np.ndarray:
    fusion = np.full(problem.program.n_ops, -1, dtype=np.int32)
    for cluster in clusters:
        if len(cluster) > 1:
            fusion[cluster] = min(cluster)
    return fusion


def _legal_clusters(problem: GraphOptimization, fusion: np.ndarray) -> bool:
    """Whether the rules allow these clusters, connected or not, and some order runs them."""
    plan = Plan(fusion=fusion, queue="ready")
    if np.any((fusion >= 0) & (problem.touched == 0)):
        return False
    if fusion_violations(problem.program, problem.rules, plan):
        return False
    try:
        problem.simulator.run(plan)
    except BadPlan as error:
        return "never happens" not in str(error) and "loops" not in str(error)
    return True


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_no_plan_of_a_tiny_graph_is_faster(seed: int) -> None:
    """All clusters, all devices, many orders; memories without limits."""
    rng = np.random.default_rng([7, seed])
    program, machine = random_graph(rng, 5)
    if len(program.op_view) - int(program.op_view.sum()) > 5 or len(machine.devices) > 3:
        return
    problem = GraphOptimization(program, roomy(machine), groups="op")
    bound = problem.bound().value
    nodes = problem.node_op.tolist()
    orders = [np.array(order, dtype=np.int32) for order in itertools.permutations(range(program.n_ops))]
    orders = [orders[i] for i in rng.permutation(len(orders))[:24]]
    for clusters in _partitions(nodes):
        fusion = _fusion(problem, clusters)
        if not _legal_clusters(problem, fusion):
            continue
        for placed in itertools.product(range(problem.devices), repeat=len(clusters)):
            device = np.zeros(program.n_ops, dtype=np.int32)
            for cluster, where in zip(clusters, placed, strict=True):
                device[cluster] = where
            for order in orders:
                plan = Plan(device=device, order=order, fusion=fusion, queue="ready")
                try:
                    total = problem.simulator.run(plan).total_ps
                except BadPlan:
                    break  # a device can't run it, or no link leads there
                assert total >= bound or problem.violations(plan)  # hard groups may be torn apart


def test_no_plan_of_a_search_over_plans_is_faster() -> None:
    """Clusters merged and split at random, connected or not; devices and orders with them."""
    tight = 0
    for seed in range(40):
        rng = np.random.default_rng([8, seed])
        program, machine = random_graph(rng, 14)
        problem = GraphOptimization(program, roomy(machine), groups=pick(rng, ("op", "auto")))
        bound = problem.bound().value
        plan = problem.plan(problem.vector()) if problem.evaluate(problem.vector()) is not None else None
        if plan is None or problem.violations(plan):
            continue
        best = problem.simulator.run(plan).total_ps
        for _ in range(150):
            trial, lucky = _changed(rng, problem, plan), chance(rng, 0.1)
            try:
                total = problem.simulator.run(trial).total_ps
            except BadPlan:
                continue
            # The checker takes most of the time: it looks at what is too fast, and at what the search goes on with.
            if (total < bound or total <= best or lucky) and not problem.violations(trial):
                assert total >= bound, seed
                best, plan = total, trial
        tight += best <= 1.1 * bound
    assert tight >= 5


def _changed(rng: Rng, problem: GraphOptimization, plan: Plan) -> Plan:
    n, nodes = problem.program.n_ops, problem.node_op
    fusion = np.full(n, -1, dtype=np.int32) if plan.fusion is None else plan.fusion.copy()
    device = np.zeros(n, dtype=np.int32) if plan.device is None else plan.device.copy()
    one, other = (int(nodes[whole(rng, 0, len(nodes) - 1)]) for _ in range(2))
    if chance(rng, 0.5):
        label = np.where(fusion >= 0, fusion, np.arange(n))
        together = np.flatnonzero((label == label[one]) | (label == label[other]))
        fusion[together] = together.min()
        device[together] = device[one]
    elif chance(rng, 0.3):
        fusion[one] = -1
    else:
        where = whole(rng, 0, problem.devices - 1)
        device[(fusion == fusion[one]) if fusion[one] >= 0 else np.array([one])] = where
        device[problem.op_group == problem.op_group[one]] = where
    return Plan(device=device, order=plan.order, queue="ready", fusion=fusion)


# --- what no fusion avoids -------------------------------------------------------------------


class SlowForced:
    """The argument of `time_bound`, points 1 to 3, with sets of all pairs."""

    def __init__(self, problem: GraphOptimization) -> None:
        slow = SlowFusion(problem)
        self.slow, self.problem, self.program = slow, problem, problem.program
        self.size = self.program.storage_bytes.tolist()
        self.readers = {
            t: [op for op in slow.ops if any(r == t for r, _ in slow.reads[op])] for t in self._tensors()
        }
        self.alone = {op for op in slow.ops if not problem.touched[op]}
        self.edges = {
            (slow.writer[t], op) for op in slow.ops for t, _ in slow.reads[op] if slow.writer.get(t, op) != op
        } | set(slow.waits)
        self.cut: set[tuple[int, int]] = set()
        sizes: dict[int, int] = {}
        for _ in range(4):
            self.apart = self._apart(sizes)
            self.leaves = {t for t, maker in slow.writer.items() if self._leaves(t, maker)}
            before = (dict(sizes), set(self.alone))
            for op in slow.ops:
                own = [int(problem.rules.loop_size[t]) for t in slow.writes[op] if t in self.leaves]
                if op not in self.alone and own:
                    sizes[op] = own[-1]
                    if len(set(own)) > 1:
                        self.alone.add(op)
            if (sizes, self.alone) == before:
                break

    def _tensors(self) -> set[int]:
        return {t for op in self.slow.ops for t, _ in self.slow.reads[op]}

    def _apart(self, sizes: dict[int, int]) -> set[tuple[int, int]]:
        """Pairs with a path that has a cut edge."""
        rules, loop = self.problem.rules, self.program.op_loop
        for one, other in self.edges:
            differ = one in sizes and other in sizes and sizes[one] != sizes[other]
            closed = any(
                self.slow.writer.get(t) == one
                and (rules.big_reduction[one] or (rules.repeats[row] and not rules.cheap[one]))
                for t, row in self.slow.reads[other]
            )
            if {one, other} & self.alone or loop[one] != loop[other] or differ or closed:
                self.cut.add((one, other))
        reach = {(op, op) for op in self.slow.ops}
        apart: set[tuple[int, int]] = set()
        for op in self.slow.ops:
            for one, other in self.edges:
                if other == op:
                    reach |= {(first, op) for first, last in reach if last == one}
        for one, other in self.cut:
            apart |= {(a, b) for a, to in reach if to == one for start, b in reach if start == other}
        self.cut |= apart & self.edges
        return apart

    def _leaves(self, tensor: int, maker: int) -> bool:
        others = [op for op in self.readers.get(tensor, []) if op != maker]
        return tensor in self.slow.kept or any(op in self.alone or (maker, op) in self.apart for op in others)

    def read(self) -> dict[int, int]:
        paid = dict.fromkeys(self.slow.ops, 0)
        for t in self._tensors():
            maker = self.slow.writer.get(t)
            bytes_of = {
                op: min(
                    self.size[t],
                    sum(int(self.program.read_bytes[row]) for r, row in self.slow.reads[op] if r == t),
                )
                for op in self.readers[t]
                if op not in self.alone
                and op != maker
                and (maker is None or maker in self.alone or (maker, op) in self.apart)
            }
            last = None
            for op, size in bytes_of.items():
                if sum(bytes_of.values()) <= self.size[t] or last is None or (last, op) in self.apart:
                    paid[op] += size
                    last = op
        return paid

    def write(self, op: int) -> int:
        if op in self.alone:
            return 0
        rows = range(self.program.write_start[op], self.program.write_start[op + 1])
        root = self.program.tensor_alias[self.program.write_tensor]
        return sum(int(self.program.write_bytes[row]) for row in rows if int(root[row]) in self.leaves)


@pytest.mark.parametrize("block", range(4))
def test_what_no_fusion_avoids_is_what_the_slow_search_finds(block: int) -> None:
    cut = paid = 0
    for seed in range(block * 40, block * 40 + 40):
        program, machine = random_graph(np.random.default_rng([9, seed]), 25)
        problem = GraphOptimization(program, machine)
        found, slow = problem.forced, SlowForced(problem)
        nodes = problem.node_op.tolist()
        assert {op for op in nodes if found["alone"][op]} == slow.alone, seed
        edges = list(
            zip(
                found["prev"].tolist(),
                np.repeat(np.arange(program.n_ops), np.diff(found["prev_start"])).tolist(),
                strict=True,
            )
        )
        assert set(edges) == slow.edges, seed
        assert {edge for edge, is_cut in zip(edges, found["cut"], strict=True) if is_cut} == slow.cut, seed
        assert [int(found["read"][op]) for op in nodes] == [slow.read()[op] for op in nodes], seed
        assert [int(found["write"][op]) for op in nodes] == [slow.write(op) for op in nodes], seed
        cut += len(slow.cut)
        paid += int((found["read"] + found["write"] > 0).sum())
    assert cut > 100 and paid > 100


@pytest.mark.parametrize("block", range(3))
def test_clusters_keep_to_it(block: int) -> None:
    """Legal clusters hold no op that is alone and no cut edge, and read and write what is paid for."""
    fused = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = np.random.default_rng([10, seed])
        program, machine = random_graph(rng, 20)
        problem = GraphOptimization(program, machine)
        fusion = np.full(program.n_ops, -1, dtype=np.int32)
        for _ in range(25 if problem.nodes else 0):  # any two ops, connected or not
            label = np.where(fusion >= 0, fusion, np.arange(program.n_ops))
            one, other = (label[int(pick(rng, problem.node_op.tolist()))] for _ in range(2))
            trial = fusion.copy()
            together = np.flatnonzero((label == one) | (label == other))
            trial[together] = together.min()
            if len(together) > 1 and one != other and _legal_clusters(problem, trial):
                fusion = trial
        _holds(problem, fusion)
        fused += len(np.unique(fusion[fusion >= 0]))
    assert fused > 20


def _holds(problem: GraphOptimization, fusion: np.ndarray) -> None:
    program, found, slow = problem.program, problem.forced, SlowFusion(problem)
    for number in np.unique(fusion[fusion >= 0]).tolist():
        members = set(np.flatnonzero(fusion == number).tolist())
        assert not any(found["alone"][op] for op in members)
        for op in members:
            rows = slice(found["prev_start"][op], found["prev_start"][op + 1])
            assert not any(
                is_cut and other in members
                for other, is_cut in zip(found["prev"][rows].tolist(), found["cut"][rows], strict=True)
            )
        read: dict[int, int] = {}
        for op in members:
            for t, row in slow.reads[op]:
                if slow.writer.get(t) not in members:
                    read[t] = min(
                        int(program.storage_bytes[t]), read.get(t, 0) + int(program.read_bytes[row])
                    )
        assert sum(int(found["read"][op]) for op in members) <= sum(read.values())
        assert sum(int(found["reads"][op]) for op in members) <= sum(size > 0 for size in read.values())
        # A cluster takes no less than what its members are charged with, by either measure.
        cost = problem.step_durations(fusion)[number]
        shares, _ = least_costs(problem)
        able = cost >= 0
        share = shares[np.isin(problem.node_op, list(members))].sum(axis=0)
        assert np.all(share[able] <= (cost * program.op_repeat[number])[able])


# --- chains ----------------------------------------------------------------------------------


def _timed_graph(rng: Rng, nodes: int, all_single: bool) -> dict[str, Any]:
    before = pick(rng, (1, 2, 3))
    edges = sorted((v, u) for v in range(nodes) for u in range(v) if chance(rng, min(0.9, before / (v + 1))))
    single = np.array([all_single or chance(rng, 0.6) for _ in range(nodes)], dtype=np.int8)
    compute, memory = rng.integers(1, 30, nodes), rng.integers(1, 30, nodes)
    groups = pick(rng, (1, 3, 8))
    return {
        "prev_start": np.searchsorted([v for v, _ in edges], np.arange(nodes + 1)).astype(np.int64),
        "prev": np.array([u for _, u in edges], dtype=np.int32),
        "cut": np.array([single[v] or single[u] or chance(rng, 0.3) for v, u in edges], dtype=np.int8),
        "move": rng.integers(0, pick(rng, (1, 20, 60)), len(edges)),
        "single": single,
        "compute": compute,
        "memory": np.where(single != 0, compute, memory),
        "launch": np.where(single != 0, 0, rng.integers(0, 5)).astype(np.int64),
        "group": np.where(
            (single != 0) & (rng.random(nodes) < 0.6), rng.integers(0, groups, nodes), -1
        ).astype(np.int32),
        "devices": whole(rng, 1, 3),
    }


class SlowTime:
    """`least_time` with sets of all pairs, given its chain."""

    def __init__(self, columns: dict[str, Any], chain: list[int]) -> None:
        self.c, self.chain = columns, chain
        self.n = len(columns["single"])
        self.prev = [
            [
                (int(columns["prev"][i]), i)
                for i in range(columns["prev_start"][v], columns["prev_start"][v + 1])
            ]
            for v in range(self.n)
        ]
        self.next: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        for v, row in enumerate(self.prev):
            for u, i in row:
                self.next[u].append((v, i))
        self.before: list[set[int]] = []
        for row in self.prev:
            self.before.append(set().union(*({u} | self.before[u] for u, _ in row)))
        larger = columns["compute"].sum() >= columns["memory"].sum()
        self.time = (columns["compute"] if larger else columns["memory"]).tolist()

    def inside(self, i: int, j: int) -> list[int]:
        """Nodes after link i and before link j."""
        count = len(self.chain)
        return [
            v
            for v in range(self.n)
            if (i < 0 or self.chain[i] in self.before[v]) and (j >= count or v in self.before[self.chain[j]])
        ]

    def by_work(self, i: int, j: int) -> int:
        c, nodes = self.c, self.inside(i, j)
        single = sum(int(c["compute"][v]) for v in nodes if c["single"][v])
        free = [v for v in nodes if not c["single"][v]]
        shared = max(sum(int(c[name][v]) for v in free) for name in ("compute", "memory"))
        launches = [int(c["launch"][v]) for v in range(self.n) if c["launch"][v] > 0]
        steps = -(-sum(c["launch"][v] > 0 for v in free) // 64)
        total = single + shared + steps * min(launches, default=0)
        groups = {int(c["group"][v]) for v in nodes if c["group"][v] >= 0}
        grouped = [sum(int(c["compute"][v]) for v in nodes if c["group"][v] == g) for g in groups]
        return max([-(-int(total) // c["devices"]), *grouped])

    def _distances(
        self, link: int, rows: list[list[tuple[int, int]]], order: range
    ) -> dict[int, tuple[int, int]]:
        """Node -> least time to it from the link if both are on one device, and if not."""
        group, known = self.c["group"], {link: (0, FAR)}
        for v in order:
            found = []
            for u, i in rows[v]:
                if u in known:
                    near, far = (min(FAR, d + (0 if u == link else self.time[u])) for d in known[u])
                    one = group[u] >= 0 and group[u] == group[v]
                    found.append((near, min(far, FAR if one else near + int(self.c["move"][i]))))
            if found:
                own = group[link] >= 0 and group[link] == group[v]
                known[v] = (max(f[0] for f in found), FAR if own else max(f[1] for f in found))
        return known

    def by_moves(self, i: int, j: int, least: int) -> int:
        first, last = self.chain[i], self.chain[j]
        into = self._distances(first, self.prev, range(first + 1, self.n))
        out = self._distances(last, self.next, range(last - 1, -1, -1))
        group, items = self.c["group"], {}
        for v in self.inside(i, j):
            items.setdefault(("group", group[v]) if group[v] >= 0 else v, []).append(v)
        while not self._enough(least, list(items.values()), into, out, first, last):
            least += 1
        return least

    def _enough(self, time: int, items: list[list[int]], into: Any, out: Any, first: int, last: int) -> bool:
        group, devices = self.c["group"], self.c["devices"]

        def least(item: list[int], a: int, b: int) -> int:
            """If it is on the first link's device (a = 0) or not, the second's (b = 0) or not."""
            each = max(into[v][a] + self.time[v] + out[v][b] for v in item)
            whole_item = sum(self.time[v] for v in item)
            return max(each, min(into[v][a] for v in item) + whole_item + min(out[v][b] for v in item))

        def load(chosen: list[list[int]]) -> int:
            return sum(self.time[v] for item in chosen for v in item)

        def room(chosen: list[list[int]], a: bool, b: bool) -> int:
            if not chosen:
                return 0
            start = min(into[v][1] for item in chosen for v in item) if a else 0
            return max(0, time - start - (min(out[v][1] for item in chosen for v in item) if b else 0))

        if time < into[last][0]:
            return False
        others = [item for item in items if least(item, 1, 1) <= time] if devices > 1 else []
        must = load([item for item in items if item not in others])
        if must <= time and load(items) <= time + (devices - 1) * room(others, True, True):
            return True
        if devices == 1 or (group[first] >= 0 and group[first] == group[last]) or time < into[last][1]:
            return False
        others = others if devices > 2 else []
        one = [item for item in items if least(item, 0, 1) <= time]
        two = [item for item in items if least(item, 1, 0) <= time]
        rooms = [room(one, False, True), room(two, True, False), (devices - 2) * room(others, True, True)]
        for chosen, space in zip((one, two, others), rooms, strict=True):
            rest = [each for each in (one, two, others) if each is not chosen]
            if load([item for item in chosen if not any(item in each for each in rest)]) > space:
                return False
        return all(item in one or item in two or item in others for item in items) and load(items) <= sum(
            rooms
        )

    def answer(self) -> tuple[int, int]:
        """(longest path, with the chain)."""
        return self._longest([]), self._longest(self.chain)

    def _longest(self, chain: list[int]) -> int:
        c, ends = self.c, []
        for v in range(self.n):
            single, own = bool(c["single"][v]), []
            launch = 0 if single else int(c["launch"][v])
            for mode, name in enumerate(("compute", "memory")):
                starts = [launch]
                for u, i in self.prev[v]:
                    apart = c["cut"][i] or single or c["single"][u]
                    starts.append(max(ends[u]) + launch if apart else ends[u][mode])
                own.append(max(starts) + int(c[name][v]))
            if v in chain:
                j, start = chain.index(v), max(own) - int(c["compute"][v])
                start = max([start, self.by_work(-1, j)])
                start = max([start, *(ends[chain[i]][0] + self.by_work(i, j) for i in range(j))])
                for i in range(j - 1, -1, -1):
                    start = max(start, ends[chain[i]][0] + self.by_moves(i, j, start - ends[chain[i]][0]))
                own = [start + int(c["compute"][v])] * 2
            ends.append(own)
        last, count = max((max(end) for end in ends), default=0), len(chain)
        if chain:
            last = max([last, self.by_work(-1, count)])
            last = max([last, *(ends[chain[i]][0] + self.by_work(i, count) for i in range(count))])
        return last


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_heads_of_a_chain_are_those_of_the_slow_way(seed: int) -> None:
    rng = np.random.default_rng([11, seed])
    columns = _timed_graph(rng, whole(rng, 1, 16), chance(rng, 0.3))
    path, work, chain = _core.least_time(columns)
    slow_path, slow_work = SlowTime(columns, chain.tolist()).answer()
    assert path == slow_path
    if len(chain):
        assert work == max(path, slow_work)


def _least_makespan(columns: dict[str, Any]) -> int:
    """Of all devices for all groups and all orders."""
    n, group = len(columns["single"]), columns["group"].tolist()
    rows = np.diff(columns["prev_start"])
    edges = list(
        zip(
            columns["prev"].tolist(),
            np.repeat(np.arange(n), rows).tolist(),
            columns["move"].tolist(),
            strict=True,
        )
    )
    item = [group[v] if group[v] >= 0 else -1 - v for v in range(n)]
    names = sorted(set(item))
    best = FAR
    for placed in itertools.product(range(columns["devices"]), repeat=len(names)):
        device = [placed[names.index(each)] for each in item]
        for order in itertools.permutations(range(n)):
            place = {v: at for at, v in enumerate(order)}
            if any(place[u] > place[v] for u, v, _ in edges):
                continue
            end, free = [0] * n, [0] * columns["devices"]
            for v in order:
                waits = [end[u] + (m if device[u] != device[v] else 0) for u, w, m in edges if w == v]
                end[v] = free[device[v]] = max([free[device[v]], *waits]) + int(columns["compute"][v])
            best = min(best, max(end))
    return best


def test_no_schedule_of_a_few_steps_is_shorter() -> None:
    """Every schedule there is; that moves share links is left out, which makes schedules shorter."""
    met = more = 0
    for seed in range(120):
        rng = np.random.default_rng([12, seed])
        columns = _timed_graph(rng, whole(rng, 3, 5), True)
        path, work, _ = _core.least_time(columns)
        least = _least_makespan(columns)
        assert path <= work <= least, seed
        met += work == least
        more += work > path
    assert met >= 40 and more >= 30


def test_shared_reads_are_paid_once() -> None:
    """Two readers that may be one cluster pay once for what both read; behind a barrier, twice."""
    build = Builder("shared")
    weight = build.tensor("w", shape=(1024,), dtype="f32", kind=TensorKind.WEIGHT)
    x = build.tensor("x", shape=(1024,), dtype="f32", kind=TensorKind.INPUT)
    a, b, c, d = (build.tensor(name, shape=(1024,), dtype="f32") for name in "abcd")
    out = build.tensor("out", shape=(1024,), dtype="f32", kind=TensorKind.OUTPUT)
    build.op("first", "mul", reads=[x, weight], writes=[a], vector=1024)
    build.op("second", "mul", reads=[a, weight], writes=[b], vector=1024)
    build.op("barrier", "matmul", reads=[b], writes=[c], matrix=1024)
    build.op("third", "mul", reads=[c, weight], writes=[d], vector=1024)
    build.op("fourth", "mul", reads=[d, x], writes=[out], vector=1024)
    found = GraphOptimization(build.build(), load_machine("toy2")).forced
    assert found["alone"].tolist() == [0, 0, 1, 0, 0]
    assert found["read"].tolist() == [8192, 0, 0, 8192, 4096]
    assert found["write"].tolist() == [0, 4096, 0, 0, 4096]
    assert found["cut"].tolist() == [0, 1, 1, 0]
