"""Policies as files: a round trip, files that are none, and runs that start from one."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")

import jax

from loadmaster.learn.policies import BadPolicy, policy_arrays, pretrained_names, read_policy, save_policy
from loadmaster.machine import load_machine
from loadmaster.mapping.egrl.agent import Egrl, EvolutionAlone, load_policy, zero_shot
from loadmaster.mapping.egrl.network import Actor
from loadmaster.mapping.egrl.settings import Settings
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Budget, solve
from mapping.egrl.small import SMALL, Recording, chain, chain_problem, roomy

SETTINGS = Settings(**SMALL)
ABOUT = {"memories": 3, "seed": 7}


@pytest.fixture(scope="module")
def actor() -> Actor:
    return Actor(3, SETTINGS, jax.random.key(5))


@pytest.fixture(scope="module")
def policy(actor: Actor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.npz"
    save_policy(path, policy_arrays(actor), ABOUT)
    return path


def test_a_policy_comes_back_to_the_bit(policy: Path, actor: Actor) -> None:
    arrays, about = read_policy(policy, "egrl")
    assert about["seed"] == 7 and about["loadmaster_policy"] == 1
    assert "body.first.weight" in arrays and len(arrays) == len(jax.tree.leaves(actor))
    again = load_policy(policy, Actor(3, SETTINGS, jax.random.key(6)))
    for mine, other in zip(jax.tree.leaves(again), jax.tree.leaves(actor), strict=True):
        assert np.array_equal(mine, other) and mine.dtype == np.float32
    assert jax.tree.structure(again) == jax.tree.structure(actor)


@pytest.mark.parametrize(
    ("memories", "changes"), [(2, {}), (4, {}), (3, {"width": 16}), (3, {"depth": 2}), (3, {"heads": 4})]
)
def test_other_shapes_are_refused(policy: Path, memories: int, changes: dict[str, Any]) -> None:
    like = Actor(memories, Settings(**SMALL | changes), jax.random.key(0))
    with pytest.raises(BadPolicy, match="trained for 3 memories") as error:
        load_policy(policy, like)
    assert error.value.remedy and "\n" not in error.value.message


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


HEADER = np.frombuffer(b'{"loadmaster_policy": 1}', dtype=np.uint8)
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"a policy, honestly",
    "cut in half": lambda good: good[: len(good) // 2],
    "cut by a byte": lambda good: good[:-1],
    "damaged": lambda good: good[:60] + bytes(x ^ 255 for x in good[60:90]) + good[90:],
    "one array": lambda _: _npy(np.zeros(3)),
    "no header": lambda _: _npz(x=np.zeros(3)),
    "header of another kind": lambda _: _npz(about=np.frombuffer(b"[1]", dtype=np.uint8)),
    "header of another format": lambda _: _npz(
        about=np.frombuffer(b'{"loadmaster_policy": 2}', dtype=np.uint8)
    ),
    "header that is no text": lambda _: _npz(about=np.array([200, 0, 255], dtype=np.uint8)),
    "header of objects": lambda _: _npz(about=np.array([{"a": 1}], dtype=object)),
    "objects": lambda _: _npz(about=HEADER, **{"policy.embedding": np.array([print], dtype=object)}),
    "no parameters": lambda _: _npz(about=HEADER),
}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_are_no_policies(what: str, policy: Path, actor: Actor, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(BROKEN[what](policy.read_bytes()))
    with pytest.raises(BadPolicy) as error:
        load_policy(path, actor)
    assert error.value.remedy and error.value.object == str(path)


@pytest.mark.parametrize("value", ["text", "nan", "complex", "whole"])
def test_parameters_must_be_finite_numbers(value: str, actor: Actor, tmp_path: Path) -> None:
    arrays = policy_arrays(actor)
    shape = arrays["embedding"].shape
    arrays["embedding"] = {
        "text": np.full(shape, "1.0"),
        "nan": np.full(shape, np.nan, dtype=np.float32),
        "complex": np.ones(shape, dtype=np.complex64),
        "whole": np.ones(shape, dtype=np.int64),
    }[value]
    path = tmp_path / "bad.npz"
    save_policy(path, arrays, ABOUT)
    with pytest.raises(BadPolicy, match="embedding"):
        load_policy(path, actor)


def test_a_member_that_claims_to_be_huge(actor: Actor, tmp_path: Path) -> None:
    header = _npy(np.zeros(1, dtype=np.float32)).replace(b"(1,)", b"(9999999999999,)")
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.npy", _npy(HEADER))
        archive.writestr("policy.embedding.npy", header)
    with pytest.raises(BadPolicy):
        load_policy(path, actor)


@pytest.mark.parametrize("name", ["nowhere/policy.npz", ".", "a\0b", "pretrained:nobody", ""])
def test_names_of_nothing(name: str, actor: Actor) -> None:
    with pytest.raises(BadPolicy) as error:
        load_policy(name, actor)
    assert error.value.remedy


def test_every_pretrained_policy_can_be_used() -> None:
    like = Actor(3, Settings(), jax.random.key(0))
    for name in pretrained_names("egrl"):
        load_policy(f"pretrained:{name}", like)


def test_zero_shot_is_one_greedy_map(policy: Path) -> None:
    problem = chain_problem()
    found = zero_shot(policy, problem, SETTINGS)
    assert found.dtype == np.int8 and found.shape == (2 * problem.nodes,)
    assert (found[~problem.live] == problem.slowest).all() and not problem.live.all()
    assert found.min() >= 0 and found.max() < 3
    assert np.array_equal(found, zero_shot(policy, problem, SETTINGS))
    with pytest.raises(BadPolicy, match="memories"):
        zero_shot(policy, Mapping(chain(), load_machine("h200-zero-copy")), SETTINGS)


@pytest.mark.parametrize("solver", [Egrl, EvolutionAlone])
def test_a_run_starts_from_its_policy(policy: Path, solver: type[Egrl]) -> None:
    learned = zero_shot(policy, chain_problem(), SETTINGS)
    first = []
    for init in (str(policy), None):
        problem = Recording(chain(), roomy())
        solve(solver(init=init, **SMALL), problem, Budget(evaluations=6))
        first.append([np.array_equal(row, learned) for row in problem.asked[:4]])
    assert sum(first[0]) >= 2  # half of the GNNs
    assert not any(first[1])


def test_what_a_run_learned_is_a_policy(tmp_path: Path) -> None:
    solution = solve(EvolutionAlone(**SMALL), chain_problem(), Budget(evaluations=20))
    save_policy(tmp_path / "policy.npz", solution.policy, ABOUT)
    assert zero_shot(tmp_path / "policy.npz", chain_problem(), SETTINGS).dtype == np.int8


def test_a_bad_policy_stops_a_run_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(BadPolicy, match="is no policy") as error:
        solve(Egrl(init=str(path), **SMALL), chain_problem(), Budget(evaluations=6))
    assert "\n" not in error.value.message
