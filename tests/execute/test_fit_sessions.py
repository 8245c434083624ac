"""What the graphs of a fitted model share: memory, caches, plans that are made again."""

from __future__ import annotations

import gc
import importlib.metadata
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
# Dynamo looks at `.grad` of every tensor that it meets.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

from torch import nn  # noqa: E402

from fit_cases import QUICK, WIDTH, Parts, Stack, gradients, pair, rows, same, session_of, step  # noqa: E402
from loadmaster import torch_fit  # noqa: E402
from loadmaster.errors import LoadmasterError  # noqa: E402
from loadmaster.execute.calls import Rows, Trial  # noqa: E402
from loadmaster.execute.compile_backend import root_error, without_collection  # noqa: E402
from loadmaster.execute.graphs import PlannedGraph, Session, State  # noqa: E402
from loadmaster.execute.pinned import Fingerprint, Fingerprints, leave_locked, unlock_left  # noqa: E402
from loadmaster.execute.session import DeviceThread, Origin  # noqa: E402
from loadmaster.execute.walk import Walk  # noqa: E402
from loadmaster.machine import load_machine  # noqa: E402
from loadmaster.program.importers.torch.masks import lay_out_masks  # noqa: E402
from loadmaster.program.program import TensorKind  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_model_that_is_gone_leaves_nothing() -> None:
    """Dynamo keeps backends, and what it compiled of a function, as long as the process runs."""

    def trained() -> list[Any]:
        _, model = pair(Stack, rows(), training=True)
        model(rows()).sum().backward()
        session = session_of(model)
        return [weakref.ref(each) for each in (model, session, session.graphs[0])]

    for _ in range(2):
        left = trained()
        for _ in range(3):  # what a finalizer lets go of is collected next time
            gc.collect()
        assert [each() for each in left] == [None] * 3


def test_pages_are_unlocked_when_nobody_has_them_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked: list[int] = []
    runtime = SimpleNamespace(cudaHostUnregister=unlocked.append)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    weight, gone = torch.zeros(4), torch.zeros(4)
    places = [each.untyped_storage().data_ptr() for each in (weight, gone)]
    leave_locked([weight.untyped_storage(), gone.untyped_storage()])
    del gone
    unlock_left()
    assert unlocked == places[1:]  # somebody has the other one
    del weight
    unlock_left()
    unlock_left()
    assert unlocked == [places[1], places[0]]


# One budget.


def regions(session: Session) -> list[tuple[int, int, bool]]:
    """(first byte, end, whether it is the graph's own) that each graph's executor has of the block."""
    assert session._block is not None
    base, found = session._block.data_ptr(), []
    for graph in session.graphs:
        if graph._executor is not None:
            block = graph._executor._placement._block
            low = block.data_ptr() - base
            found.append((low, low + len(block), bool(graph.private)))
    return found


def holds(model: Any) -> None:
    """Nothing has more of the device than it may, and what graphs have for themselves nobody else has."""
    session = session_of(model)
    assert session.memory is not None
    assert len(session._block) + session.held_bytes + session.state_bytes_held <= session.memory
    found = regions(session)
    assert all(0 <= low <= high <= len(session._block) for low, high, _ in found)
    own = sorted((low, high) for low, high, private in found if private)
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(own))
    shared = max((high for _, high, private in found if not private), default=0)
    assert all(low >= shared for low, _ in own)


@settings(max_examples=3, derandomize=True, phases=[Phase.generate])  # each compiles for seconds
@given(
    depths=st.lists(st.integers(2, 4), min_size=2, max_size=3),
    share=st.sampled_from(["60%", "80%", "100%"]),
    dropout=st.sampled_from([0.0, 0.4]),
)
def test_stacks_with_breaks_share_one_budget(depths: list[int], share: str, dropout: float) -> None:
    torch._dynamo.reset()
    plain, model = pair(lambda: Parts(*depths, dropout=dropout), rows(), training=True, memory=share)
    found = []
    for each in (model, plain):
        torch.manual_seed(3)
        losses = [each(rows(seed=seed)).square().mean() for seed in range(2)]
        if each is model:
            holds(model)
        losses[1].backward()
        losses[0].backward()
        found.append([loss.detach() for loss in losses])
    holds(model)
    assert same(*found) and same(gradients(model), gradients(plain))
    with torch.no_grad():
        assert same(model.eval()(rows()), plain.eval()(rows()))
    holds(model)


def test_a_small_graph_has_memory_for_itself_until_another_needs_it() -> None:
    plain, model = pair(lambda: Parts(8, 1), rows(), memory="2MiB")
    session = session_of(model)
    with torch.no_grad():
        for _ in range(2):
            assert same(model(rows()), plain(rows()))
            holds(model)
    assert len([graph for graph in session.graphs if graph.private]) == 1
    assert session.share_all() and not session.share_all()
    with torch.no_grad():
        assert same(model(rows()), plain(rows()))
    holds(model)
    assert not any(graph.private for graph in session.graphs)


# Caches.


class Remembering(nn.Module):
    """A cache of its own, into which each call writes one row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Stack(4)
        self.register_buffer("cache", torch.zeros(16, WIDTH))

    def forward(self, x: Any, at: Any) -> Any:
        self.cache.index_copy_(0, at, self.inner(x))
        return self.cache.sum(0)


@torch.no_grad()
def test_a_cache_stays_on_the_device_and_is_right_over_calls() -> None:
    plain, model = pair(Remembering)
    session = session_of(model)
    session.state_least, session.memory = 1024, 2**20
    for at in range(4):
        where, x = torch.tensor([at]), rows(1, seed=at)
        assert same(model(x, where), plain(x, where)), at
    assert len(session.states) == 1
    assert same(dict(model.state_dict()), dict(plain.state_dict())), "what is saved is what is on the device"
    for each in (model, plain):
        each.cache.zero_()
    for at in range(4, 6):
        where, x = torch.tensor([at]), rows(1, seed=at)
        assert same(model(x, where), plain(x, where)), "the user's reset is seen"
    assert same(dict(model.state_dict()), dict(plain.state_dict()))
    other = {name: value * 2 for name, value in plain.state_dict().items()}
    for each in (model, plain):
        each.load_state_dict(other)
    assert same(model(rows(1), torch.tensor([7])), plain(rows(1), torch.tensor([7])))


class Several(nn.Module):  # type: ignore[misc]
    """Results of many kinds: early, late, a view, the input itself, one that is empty, one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = Stack(3), Stack(2)

    def forward(self, x: Any) -> Any:
        early = self.inner(x)
        late = self.other(early)
        return early, late.t()[1:], x, x[:0] * 2, {"again": late, "twice": early}


@torch.no_grad()
def test_results_that_stay_on_the_device_are_kept_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU callers look at the block itself; here they get copies of it."""
    lent: list[int] = []

    def lend(_: Session, graph: PlannedGraph, row: Any) -> Any:
        lent.append(len(row))
        return row.clone()

    monkeypatch.setattr(PlannedGraph, "_lends", True)
    monkeypatch.setattr(Session, "lend", lend)
    plain, model = pair(Several, rows())
    graph = session_of(model).graphs[0]
    graph.deliver()
    for seed in range(3):
        assert same(model(rows(seed=seed)), plain(rows(seed=seed)))
    size = rows().nbytes
    assert lent == [size, size] * 3 and graph.delivered_bytes == 0
    program = graph._base.program  # type: ignore[union-attr]
    assert program.op_kind[-1] == "stay" and not (program.tensor_kind == TensorKind.OUTPUT).any()


def test_a_state_follows_its_tensor_and_writes_back() -> None:
    host = torch.arange(64.0)
    state = State(torch.empty(64))
    state.bring(host)
    assert same(state.value, host) and state.fits(torch.zeros(64))
    assert not state.fits(torch.zeros(65)) and not state.fits(torch.zeros(64, dtype=torch.int32))
    state.value.add_(1)
    state.bring(host)
    assert float(state.value[0]) == 1, "the host was not changed: what is on the device counts"
    state.write_back()
    assert same(host, torch.arange(64.0) + 1)
    state.bring(host)
    host.zero_()
    host.add_(7)  # more than the one change that a call makes
    state.bring(host)
    assert same(state.value, host)
    other = torch.full((64,), 3.0)
    state.bring(other)
    assert same(state.value, other), "another tensor"


def test_a_fingerprint_sees_changes_of_every_kind() -> None:
    value = torch.arange(1000.0)
    print_ = Fingerprint(value)
    assert not print_.changed(value)
    value[999] = 5
    assert print_.changed(value) and not print_.changed(value)
    value.data.mul_(2)
    assert print_.changed(value) and not print_.changed(value)
    assert print_.changed(value.clone())
    print_ = Fingerprint(value)
    value.add_(0)
    assert not print_.changed(value, expected=1)
    value.add_(0)
    value.add_(0)
    assert print_.changed(value, expected=1)
    assert not Fingerprint(torch.empty(0)).changed(torch.empty(0))


def test_inputs_are_read_where_the_caller_has_them_unless_they_were_changed() -> None:
    session = Session("it", torch.device("cpu"), load_machine("h200"), 2**20)
    theirs, copy_ = torch.ones(3), torch.ones(3)
    assert session.with_origins([copy_])[0] is copy_
    session.origins[copy_.data_ptr()] = Origin(theirs, copy_, copy_._version, copied=True)
    assert all(each is theirs for each in session.with_origins([copy_, copy_.detach()]))
    assert session.with_origins([copy_[:2]])[0] is not theirs
    copy_.add_(1)  # by a hook, before the graph
    assert session.with_origins([copy_])[0] is copy_ and torch.equal(copy_, theirs + 1)


def test_inputs_come_to_the_host_only_if_somebody_looks_at_them_there() -> None:
    session = Session("it", torch.device("cpu"), load_machine("h200"), 2**20)
    theirs, twin = torch.arange(6.0), torch.full((6,), -1.0)

    def given() -> Any:
        twin.fill_(-1.0)
        session.origins = {twin.data_ptr(): Origin(theirs, twin, twin._version)}
        return twin

    assert session.with_origins([given()])[0] is theirs and float(twin[0]) == -1.0
    part = given()[2:]
    assert session.with_origins([part])[0] is part and torch.equal(part, theirs[2:]), "a part of it is read"
    given()
    assert session.fill_origins() and torch.equal(twin, theirs)
    assert not session.fill_origins(), "they are there"
    assert session.with_origins([twin])[0] is theirs


def test_a_second_fit_leaves_no_host_memory_of_the_first() -> None:
    plain, model = pair(Stack, rows(), training=True)
    step(model, rows())
    first, got = session_of(model), gradients(model)
    assert first.rows.bytes > 0
    torch_fit.fit(model, rows(), memory="75%", **QUICK)
    assert first.rows.bytes == 0
    step(plain, rows())
    assert same(got, gradients(plain))  # what callers have is theirs


def test_what_is_begun_while_a_model_is_traced_is_waited_for() -> None:
    session = Session("it", torch.device("cpu"), load_machine("h200"), 2**20)
    done: list[str] = []
    traced = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        session._thread = DeviceThread(pool, -1, None)
        session.begin(lambda: (traced.wait(), done.append("pages"))[1], lambda: done.append("link"))
        assert not done, "nobody waits here"
        traced.set()
        session.wait_for_begun()
        session.wait_for_begun()
        assert done == ["pages", "link"], "each once, in order"
        session.begin(lambda: 1 // 0, lambda: done.append("never"))  # type: ignore[arg-type, return-value]
        with pytest.raises(ZeroDivisionError):
            session.wait_for_begun()
    assert done == ["pages", "link"]


@pytest.mark.parametrize("was", [True, False])
def test_pythons_collector_rests_while_a_model_is_traced(was: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if was else gc.disable()
        with pytest.raises(ZeroDivisionError), without_collection():
            assert not gc.isenabled()
            1 / 0  # noqa: B018
        assert gc.isenabled() is was
    finally:
        gc.enable() if before else gc.disable()


def test_fingerprints_of_many_say_which_changed() -> None:
    values = [torch.arange(40.0), torch.zeros(3), torch.empty(0), torch.ones(7)]
    prints = Fingerprints(values)
    assert prints.changed(values) == []
    values[0].data.mul_(2)  # moves no version
    values[3].add_(1)
    assert prints.changed(values) == [0, 3] and prints.changed(values) == []
    values[1] = values[1].clone()  # the same in another place
    assert prints.changed(values) == [1] and prints.changed(values) == []
    assert Fingerprints([]).changed([]) == []


@pytest.mark.parametrize(("plain", "graph"), [(3.0, 2.0), (2.0, 3.0)])
def test_calls_are_tried_both_ways_and_go_on_the_faster_one(plain: float, graph: float) -> None:
    trial, made = Trial(), []
    for _ in range(8):
        made.append(trial.as_graph)
        trial.note(made[-1], graph if made[-1] else plain)
    assert made == [False, False, True, True] + [graph < plain] * 4


def test_rows_are_used_again_when_nobody_looks_at_them() -> None:
    kept = Rows(pinned=False)
    first = kept.take(100)
    address = first.data_ptr()
    second = kept.take(100)
    assert second.data_ptr() != address and len(first) == len(second) == 100
    view = first.view(10, 10)[3:]
    del first
    assert kept.take(100).data_ptr() not in (address, second.data_ptr()), "a view still looks at it"
    del view
    assert kept.take(100).data_ptr() == address
    assert len(kept.take(7)) == 7


# Plans that are made again.


MANY = 2048
"""Rows with which a model needs more than a kernel is given, which is at least 2 MiB."""


class Scarce:
    """A walk in which a kernel takes more than was known, once: `late` in the backward call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
        self.raised, plain = 0, Walk.advance

        def advance(walk: Walk, values: Any, spans: Any, first: int, last: int) -> None:
            if self.raised or bool(first) != late:
                return plain(walk, values, spans, first, last)
            self.raised += 1
            plain(walk, values, spans, first, first + 1)
            raise RuntimeError(
                f"loadmaster: no room for 4096 bytes of a kernel beside the plan in step {first + 1}"
            )

        monkeypatch.setattr(Walk, "advance", advance)


@pytest.mark.parametrize("late", [False, True])
def test_a_kernel_that_takes_more_is_planned_for(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    plain, model = pair(lambda: Stack(dropout=0.5), rows(MANY), training=True)
    said: list[str] = []
    session_of(model).say = said.append
    torch.manual_seed(11)
    wanted = step(plain, rows(MANY))
    scarce = Scarce(monkeypatch, late)
    torch.manual_seed(11)
    assert same(step(model, rows(MANY)), wanted) and same(gradients(model), gradients(plain))
    assert scarce.raised == 1 and session_of(model).graphs[0].retries == 1
    assert sum("takes 4.00 KiB for itself: planning again" in each for each in said) == 1
    assert list(session_of(model).graphs[0]._learned.values()) == [8192]
    assert same(step(model, rows(MANY, seed=2)).isfinite(), torch.tensor(True))


def test_a_kernel_that_takes_more_after_results_are_to_be_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two calls of a step it was decided to capture the graph anew."""
    plain, model = pair(Stack, rows(MANY), training=True)
    wanted = step(plain, rows(MANY))
    scarce, loss = Scarce(monkeypatch, late=True), model(rows(MANY)).square().mean()
    session_of(model).graphs[0].deliver()
    loss.backward()
    assert scarce.raised == 1 and same(loss.detach(), wanted) and same(gradients(model), gradients(plain))


@torch.no_grad()
def test_a_kernel_that_takes_more_in_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = pair(Stack, rows(MANY), memory="5MiB")
    scarce = Scarce(monkeypatch, late=False)
    assert same(model(rows(MANY)), plain(rows(MANY))) and scarce.raised == 1
    assert same(model(rows(MANY, seed=2)), plain(rows(MANY, seed=2)))


@torch.no_grad()
def test_a_shortage_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = pair(Stack, rows())

    def advance(*_: Any) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(Walk, "advance", advance)
    with pytest.raises((torch.OutOfMemoryError, LoadmasterError)):
        model(rows())


@torch.no_grad()
def test_no_seconds_are_no_search(capsys: pytest.CaptureFixture[str]) -> None:
    _, model = pair(Stack, rows(), search=0, background=True, quiet=False)
    model.fitted.wait_for_plan()
    assert model.fitted.report["graphs"][0]["plan"] == "quick"
    assert "no better plan" not in capsys.readouterr().err


@torch.no_grad()
def test_no_search_outlives_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code that still runs when the interpreter ends aborts the process."""
    late, numbers = threading.Event(), itertools.count()

    def improve(*_: Any) -> None:
        if next(numbers) == 0:
            late.wait()

    monkeypatch.setattr(PlannedGraph, "_improve", improve)
    _, model = pair(Stack, rows(), background=True)
    session = session_of(model)
    model(rows())
    (graph,) = session.graphs
    graph.deliver()  # it is captured and planned again
    model(rows())
    first, second = graph._searches
    second.join()
    end = threading.Thread(target=session.end)
    end.start()
    end.join(0.1)
    assert end.is_alive() and first.is_alive()
    late.set()
    end.join()
    assert not first.is_alive()


# As a backend.


def named(name: str) -> bool:
    return any(each.name == name for each in importlib.metadata.entry_points(group="torch_dynamo_backends"))


@pytest.mark.parametrize("by", ["name", "function"])
def test_a_backend_of_torch_compile(by: str) -> None:
    if by == "name" and not named("loadmaster"):
        pytest.skip("the installed distribution does not name it")
    torch.manual_seed(0)
    plain = Stack()
    options = {"memory": "256KiB", **QUICK}
    model = torch.compile(
        plain, backend="loadmaster" if by == "name" else torch_fit.backend, options=options, dynamic=False
    )
    with torch.no_grad():
        assert same(model(rows()), plain(rows()))
    loss = model(rows()).square().mean()
    loss.backward()
    found = {name: each.clone() for name, each in gradients(plain).items()}
    plain.zero_grad()
    assert same(loss.detach(), step(plain, rows())) and same(found, gradients(plain))
    assert len({id(session) for *_, session in torch_fit._SESSIONS.values()}) >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (None, 'give options={"memory": "12GiB"}'),
        ({"memory": "plenty"}, "memory can't be 'plenty'"),
        ({"memory": "1MiB", "speed": 3}, "has no option 'speed'"),
        ({"memory": "1KiB", **QUICK}, "can't run in 1.00 KiB"),
        ([1], "options can't be"),
    ],
)
def test_what_the_backend_refuses_comes_as_an_error_of_ours(options: Any, said: str) -> None:
    model = torch.compile(Stack(1), backend=torch_fit.backend, options=options)
    for _ in range(2):
        with pytest.raises(LoadmasterError, match=said):
            model(rows())


def test_options_of_the_backend_that_were_changed_hold() -> None:
    options: dict[str, Any] = {"memory": "1KiB", **QUICK}
    with pytest.raises(LoadmasterError, match="can't run in"):
        torch.compile(Stack(1), backend=torch_fit.backend, options=options)(rows())
    options["memory"] = "4MiB"
    model = Stack(1).eval()
    assert same(torch.compile(model, backend=torch_fit.backend, options=options)(rows()), model(rows()))


def test_errors_behind_the_compilers_are_found() -> None:
    ours = LoadmasterError("no", object="it", remedy="none")
    outer = RuntimeError("compiler")
    outer.inner_exception = ours  # type: ignore[attr-defined]
    assert root_error(outer) is ours and root_error(RuntimeError()) is None


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_that_lies_otherwise_is_laid_out_for_fused_attention(dtype: Any) -> None:
    seen: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        lay_out_masks(module)
        calls = [node for node in module.graph.nodes if "scaled_dot" in str(node.target)]
        seen.extend(getattr(node.kwargs["attn_mask"], "target", None) for node in calls)
        return module.forward

    def attend(x: Any, keep: Any) -> Any:
        one = keep.to(dtype)[None, None, :, None].expand(2, 1, 8, 8)  # by query: along keys it repeats
        kinds = [one, torch.ones(8, 8, dtype=dtype).expand(2, 1, 8, 8), None]
        return [nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask) for mask in kinds]

    x = torch.randn(2, 4, 8, 16)
    keep = torch.ones(8, dtype=torch.bool)
    for mine, plain in zip(torch.compile(attend, backend=backend)(x, keep), attend(x, keep), strict=True):
        torch.testing.assert_close(mine, plain)
    assert seen.count("expand") == 2 and seen[0] == "expand", "a mask in rows stays as it is"
