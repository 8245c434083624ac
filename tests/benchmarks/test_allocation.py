"""The allocation suite without anybody's data: it says where that is published, and runs on its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.suites import Options, run_suite
from benchmarks.suites.packings import perfect_packing, training_like
from benchmarks.suites.pypto import read_pools
from loadmaster.errors import LoadmasterError
from loadmaster.search.registry import make_labelled


def test_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    rows = list(run_suite("allocation", Options(quick=True, cases=("fit", "least", "mobile", "pypto"))))
    assert {row.status for row in rows} == {"skipped"}
    assert "google/minimalloc" in rows[0].extra["published"]


def test_generated_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADMASTER_DATA", raising=False)
    rows = list(run_suite("allocation", Options(quick=True, cases=("perfect",))))
    assert len(rows) == 2 and all(row.value >= 0.9 for row in rows)


def test_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "allocation" / "minimalloc"
    folder.mkdir(parents=True)
    (folder / "A.1048576.csv").write_text("id,lower,upper,size\n0,0,4,1048576\n")
    rows = list(run_suite("allocation", Options(quick=True, cases=("fit", "least"), data=tmp_path)))
    assert [(row.case, row.status, row.value) for row in rows] == [
        ("fit/A", "optimal", 1_048_576.0),
        ("least/A", "optimal", 1_048_576.0),
    ]
    with pytest.raises(LoadmasterError, match="has no folder 'minimalloc'"):
        list(run_suite("allocation", Options(cases=("fit",), data=tmp_path / "allocation" / "minimalloc")))


def test_omnimalloc_is_a_peer_of_the_suite_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "minimalloc"
    folder.mkdir()
    (folder / "A.64.csv").write_text("id,lower,upper,size\n0,0,4,8\n1,2,6,8\n")
    options = Options(cases=("least",), solvers=("omnimalloc",), data=tmp_path)
    monkeypatch.setitem(sys.modules, "omnimalloc", None)
    (row,) = run_suite("allocation", options)
    assert row.status == "skipped" and "loadmaster[bench]" in row.extra["reason"]
    stacked = SimpleNamespace(
        Allocation=SimpleNamespace,
        allocate=lambda given, allocator: [SimpleNamespace(id=each.id, offset=8 * each.id) for each in given],
    )
    monkeypatch.setitem(sys.modules, "omnimalloc", stacked)
    monkeypatch.setitem(
        sys.modules, "omnimalloc.allocators", SimpleNamespace(SupermallocAllocator=lambda **options: None)
    )
    (row,) = run_suite("allocation", options)
    assert (row.status, row.value, row.solver) == ("optimal", 16.0, "omnimalloc")
    with pytest.raises(LoadmasterError, match="no solver 'omnimalloc' for allocation any more"):
        make_labelled("allocation", "omnimalloc")


def test_pools_of_kernels(tmp_path: Path) -> None:
    (tmp_path / "pools.csv").write_text("instance,pool,name,capacity,reserved\nk,1,Vec,256,0-32\n")
    (tmp_path / "buffers.csv").write_text(
        "instance,pool,id,lower,upper,size,alignment\nk,1,0,0,4,64,32\nk,1,1,5,9,64,32\n"
    )
    (tmp_path / "pairs.csv").write_text("instance,kind,a,b,weight,reason\nk,separation,0,1,,x\n")
    (pool,) = read_pools(tmp_path)
    from loadmaster.allocation.auto import allocate

    together, apart = (allocate(pool.problem(apart=apart).buffers) for apart in (False, True))
    assert (together.value, apart.value) == (96, 160)


@pytest.mark.parametrize("kind", ["guillotine", "pinwheel"])
def test_perfect_packings_have_no_waste(kind: str) -> None:
    buffers, height = perfect_packing(np.random.default_rng(0), 123, kind)
    _, live = buffers.live_profile()
    assert len(buffers) == 123 and set(live[:-1].tolist()) == {height}


def test_training_like_is_reproducible() -> None:
    one, two = (training_like(np.random.default_rng(3), 500) for _ in range(2))
    assert one.hash == two.hash and len(one) == 500
