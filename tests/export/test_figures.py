"""Pictures of mapping runs: the numbers behind them, and files that repeat byte for byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.export.figures.curves import Room, measure_room, scale_capacities
from loadmaster.export.figures.data import (
    collect_learning_curves,
    count_transitions,
    measure_contiguity,
    measure_distances,
    read_cells,
    scale_to_plane,
)
from loadmaster.export.figures.maps import draw_pictures, select_maps, select_near_maps
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.program.models import load_model
from loadmaster.program.program import Program
from loadmaster.runs.log import BadRun
from loadmaster.runs.session import run_solver
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget

pytest.importorskip("matplotlib")


def chain(*sizes: tuple[int, int]) -> Program:
    """Ops in a row; (activation bytes, weight bytes) of each, 0: none."""
    build = Builder("chain")
    last = build.tensor("x", bytes=64, kind="input")
    for i, (out, weight) in enumerate(sizes):
        reads = [last]
        if weight:
            reads.append(build.tensor(f"w{i}", bytes=weight, kind="weight"))
        kind = "output" if i == len(sizes) - 1 else "activation"
        last = build.tensor(f"a{i}", bytes=out, kind=kind)
        build.op(f"op{i}", "matmul", reads=reads, writes=[last], matrix=1000)
    return build.build()


@pytest.fixture(scope="module")
def small() -> Mapping:
    # Entries 0..2: activations of 64, 128 and 64 bytes; 3..5: weights of 256 bytes, none, 512.
    return Mapping(chain((64, 256), (128, 0), (64, 512)), load_machine("nnp-i"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("figures") / "runs"
    problem = Mapping(load_model("resnet50"), load_machine("nnp-i-half"))
    for name, seed in (("random", 0), ("random", 1), ("annealing", 0), ("density", 0)):
        run_solver(make_labelled("mapping", name), problem, Budget(150), seed, folder=parent)
    return parent


def test_a_curve_is_0_before_the_first_legal_map_and_holds_its_best() -> None:
    curves = collect_learning_curves([[(3, 200), (5, 100)], [(1, 400)]], compiler_ps=200, end=8)
    assert curves.at.tolist() == [0, 1, 3, 5, 8]
    assert curves.runs.tolist() == [[0, 0, 1, 2, 2], [0, 0.5, 0.5, 0.5, 0.5]]
    assert curves.mean.tolist() == [0, 0.25, 0.75, 1.25, 1.25]
    assert curves.deviation[-1] == pytest.approx(1.5 / np.sqrt(2))
    alone = collect_learning_curves([[(9, 100)]], compiler_ps=200, end=8)
    assert alone.runs.tolist() == [[0, 0]] and alone.deviation.tolist() == [0, 0]


def test_transitions_count_live_entries_alone(small: Mapping) -> None:
    before = np.array([0, 0, 1, 2, 0, 1], dtype=np.int8)
    after = np.array([0, 2, 1, 0, 1, 1], dtype=np.int8)  # entry 4 decides nothing
    found = count_transitions(small, before, after)
    assert found["activations"].bytes.tolist() == [[64, 0, 128], [0, 64, 0], [0, 0, 0]]
    assert found["activations"].count.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert found["weights"].bytes.tolist() == [[0, 0, 0], [0, 512, 0], [256, 0, 0]]
    assert found["weights"].count.sum() == 2


def test_distance_is_the_share_of_bytes_elsewhere(small: Mapping) -> None:
    a = small.all_slowest()
    b, c = a.copy(), a.copy()
    b[0], c[5], c[4] = 0, 1, 0  # 64 and 512 of 1,024 bytes; entry 4 decides nothing
    apart = measure_distances(small, np.array([a, b, c]))
    expected = np.array([[0, 64, 512], [64, 0, 576], [512, 576, 0]]) / 1024
    assert apart == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_the_plane_keeps_distances_that_fit_in_it(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(12, 2))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    found, shown = scale_to_plane(apart)
    again = np.linalg.norm(found[:, None] - found[None], axis=2)
    assert again == pytest.approx(apart, abs=1e-9) and shown == pytest.approx(1)


def test_the_plane_says_what_it_hides() -> None:
    apart = np.ones((4, 4)) - np.eye(4)  # a tetrahedron: three equal dimensions
    assert scale_to_plane(apart)[1] == pytest.approx(2 / 3)
    points, shown = scale_to_plane(np.zeros((3, 3)))
    assert (points == 0).all() and shown == 1
    assert scale_to_plane(np.zeros((1, 1)))[0].shape == (1, 2)


def test_contiguity_of_edges_and_weights(small: Mapping) -> None:
    found = measure_contiguity(small, np.array([0, 0, 1, 2, 0, 2], dtype=np.int8))
    assert (found.activations, found.weights) == (0.5, 1.0)
    found = measure_contiguity(small, np.array([0, 1, 2, 2, 2, 0], dtype=np.int8))
    assert (found.activations, found.weights) == (0.0, 0.0)
    one = Mapping(chain((64, 0)), load_machine("nnp-i"))
    assert measure_contiguity(one, one.all_slowest()).activations is None


def test_runs_become_cells_and_groups(folder: Path) -> None:
    (cell,) = read_cells([folder])
    groups = cell.groups()
    assert {name: len(runs) for name, runs in groups.items()} == {"annealing": 1, "density": 1, "random": 2}
    assert cell.bound_ps >= cell.problem.bound().value
    for run in cell.runs:
        assert {value for value, _ in run.maps} <= {value for _, value in run.improvements}
        assert run.maps[-1][0] == run.improvements[-1][1]
        assert all(cell.problem.evaluate(decision) == value for value, decision in run.maps)
    assert select_maps(cell)["density"].tolist() == groups["density"][0].maps[-1][1].tolist()
    assert next(iter(select_maps(cell))) == "compiler"
    limit = 1.05 * cell.problem.compiler_ps
    assert all(v <= limit for run in cell.runs for v, _ in select_near_maps(run, cell.problem.compiler_ps))


def test_other_settings_are_another_group(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "runs")
    about = next((tmp_path / "runs").glob("*-random-1")) / "run.json"
    document = json.loads(about.read_text())
    document["solver"]["options"] = {"uniform": True}
    about.write_text(json.dumps(document))
    (cell,) = read_cells([tmp_path / "runs"])
    assert {"random", "random #2"} <= set(cell.groups())


def test_every_picture_is_made_and_repeats(folder: Path, tmp_path: Path) -> None:
    from loadmaster.export.figures.curves import save

    (cell,) = read_cells([folder])
    names = []
    for (name, figure), (_, again) in zip(draw_pictures(cell), draw_pictures(cell), strict=True):
        names.append(name)
        for ending in ("svg", "png"):
            one = save(figure, tmp_path / f"{name}.{ending}").read_bytes()
            assert one == save(again, tmp_path / f"again.{ending}").read_bytes(), name
        width, height = struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24])
        assert 800 <= width <= 1300 and 200 <= height <= 1300
    assert set(names) == {
        "curves",
        "embedding",
        "contiguity",
        "strips",
        "transitions-annealing",
        "transitions-density",
        "transitions-random",
    }
    with pytest.raises(LoadmasterError, match="no ending of a picture"):
        save(figure, tmp_path / "x.pdf")


def test_pictures_leave_the_users_style_alone(folder: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    (cell,) = read_cells([folder])
    for _ in draw_pictures(cell):
        assert dict(matplotlib.rcParams) == before


def test_the_lines_of_a_curve_are_the_numbers(folder: Path) -> None:
    (cell,) = read_cells([folder])
    _, figure = next(draw_pictures(cell))
    axes = figure.axes[0]
    heights = [float(np.asarray(line.get_ydata())[0]) for line in axes.get_lines()]
    density = cell.problem.compiler_ps / cell.best_maps()["density"][0]
    assert {1.0, cell.problem.compiler_ps / cell.bound_ps, density} <= set(heights)
    means = [line for line in axes.get_lines() if line.get_label() == "random"]
    runs = [run.improvements[-1][1] for run in cell.groups()["random"]]
    final = np.mean([cell.problem.compiler_ps / value for value in runs])
    assert np.asarray(means[0].get_ydata())[-1] == pytest.approx(final)


def test_scaling_leaves_the_slowest_memory(small: Mapping) -> None:
    half = scale_capacities(load_machine("nnp-i"), 0.5)
    assert [m.capacity for m in half.memories] == [2 * 2**20, 12 * 2**20, 16 * 2**30]


def test_room_is_what_the_exact_solver_proves() -> None:
    pytest.importorskip("ortools")
    rows = list(measure_room(load_model("resnet50"), load_machine("nnp-i"), (0.5, 1.0)))
    assert [(r.compiler_ps, r.density_ps, r.best_ps, r.bound_ps) for r in rows] == [
        (287_647_771, 245_647_590, 243_516_621, 243_516_621),
        (112_041_521, 109_325_638, 109_325_638, 109_325_638),
    ]
    assert rows[0].compiler == pytest.approx(1.181, abs=1e-3) and rows[0].best == 1


def test_the_picture_of_room(tmp_path: Path) -> None:
    from loadmaster.export.figures.curves import draw_room, save

    figure = draw_room([Room(0.125, 150, 120, 101, 100), Room(12, 100, 100, 100, 100)], "x on y")
    lines: dict[Any, Any] = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(lines["compiler / bound"].get_ydata()) == [1.5, 1.0]
    assert list(lines["density / bound"].get_ydata()) == [1.2, 1.0]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["1/8", "12"]
    assert save(figure, tmp_path / "room.svg").stat().st_size > 1000


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match="there is no run in"):
        read_cells([tmp_path])
