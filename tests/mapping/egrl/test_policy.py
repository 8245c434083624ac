"""Policies as files: what comes with the package can be used, and files that are none say so in one line."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.learn.policies import BadPolicy, pretrained_names, read_policy, save_policy
from loadmaster.mapping.egrl.scores import VIEWS, View
from loadmaster.mapping.egrl.training import SHIPPED, load_policy, transfer, zero_shot
from loadmaster.mapping.problem import Mapping
from mapping.egrl.paper.small import chain, roomy


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, header) of the policy that comes with the package."""
    arrays, about = read_policy(SHIPPED, "egrl")
    return dict(arrays), about


@pytest.mark.parametrize("name", pretrained_names("egrl"))
def test_every_policy_of_the_package_decides_at_once(name: str) -> None:
    problem = Mapping(chain(), roomy())
    for kind in VIEWS:
        decision = zero_shot(problem, f"pretrained:{name}", kind)
        assert problem.evaluate(decision) is not None
        scores = load_policy(f"pretrained:{name}", kind).score(View(problem, kind))
        assert np.isfinite(scores).all()


def test_a_policy_stands_beside_what_it_starts_from() -> None:
    rows = transfer(SHIPPED, [("chain", Mapping(chain(), roomy()))])
    assert {row["model"] for row in rows} == {"chain"} and len(rows) == 6
    by_name = {row["name"]: row for row in rows}
    assert by_name["compiler"]["speedup"] == 1 and by_name["all-slowest"]["speedup"] < 1


def test_a_policy_comes_back_to_the_bit(tmp_path: Path) -> None:
    arrays, about = parts()
    save_policy(tmp_path / "p.npz", arrays, about)
    for kind in VIEWS:
        mine, other = load_policy(str(tmp_path / "p.npz"), kind), load_policy(SHIPPED, kind)
        assert (
            np.array_equal(mine.parameters, other.parameters) and mine.network.hidden == other.network.hidden
        )


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
    "no header": lambda _: _npz(x=np.zeros(3)),
    "header of another kind": lambda _: _npz(about=np.frombuffer(b"[1]", dtype=np.uint8)),
    "header of another format": lambda _: _npz(
        about=np.frombuffer(b'{"loadmaster_policy": 2}', dtype=np.uint8)
    ),
    "header that is no text": lambda _: _npz(about=np.array([200, 0, 255], dtype=np.uint8)),
    "header of objects": lambda _: _npz(about=np.array([{"a": 1}], dtype=object)),
    "objects": lambda _: _npz(about=HEADER, **{"policy.nominal.mean": np.array([print], dtype=object)}),
    "no parameters": lambda _: _npz(about=HEADER),
}


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_are_no_policies(what: str, tmp_path: Path) -> None:
    arrays, about = parts()
    save_policy(tmp_path / "good.npz", arrays, about)
    path = tmp_path / "bad.npz"
    path.write_bytes(BROKEN[what]((tmp_path / "good.npz").read_bytes()))
    with pytest.raises(BadPolicy) as error:
        load_policy(str(path), "nominal")
    assert error.value.remedy and error.value.object == str(path) and "\n" not in error.value.message


def _changed(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        arrays[f"nominal.{name}"] = value(arrays[f"nominal.{name}"])

    return change


WRONG: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "not finite": _changed("parameters", lambda x: np.full_like(x, np.nan)),
    "too few parameters": _changed("parameters", lambda x: x[:-1]),
    "another shape": _changed("mean", lambda x: x[None]),
    "text": _changed("deviation", lambda x: np.full(x.shape, "one")),
    "nothing to divide by": _changed("deviation", lambda x: 0 * x),
    "one view alone": lambda arrays, about: [arrays.pop(name) for name in [*arrays] if "nominal" in name],
    "no hidden units": lambda arrays, about: about.pop("hidden"),
    "hidden units of another kind": lambda arrays, about: about.update(hidden="many"),
    "more hidden units than weights": lambda arrays, about: about.update(hidden=10**9),
}


@pytest.mark.parametrize("what", WRONG)
def test_networks_that_do_not_fit_their_parameters(what: str, tmp_path: Path) -> None:
    arrays, about = parts()
    WRONG[what](arrays, about)
    save_policy(tmp_path / "bad.npz", arrays, about)
    with pytest.raises(BadPolicy, match="nominal") as error:
        load_policy(str(tmp_path / "bad.npz"), "nominal")
    assert error.value.remedy


def test_a_member_that_claims_to_be_huge(tmp_path: Path) -> None:
    def npy(array: np.ndarray) -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    header = npy(np.zeros(1, dtype=np.float32)).replace(b"(1,)", b"(9999999999999,)")
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.npy", npy(HEADER))
        archive.writestr("policy.nominal.mean.npy", header)
    with pytest.raises(BadPolicy):
        load_policy(str(path), "nominal")


@pytest.mark.parametrize("name", ["nowhere/policy.npz", ".", "a\0b", "pretrained:nobody", ""])
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(BadPolicy) as error:
        load_policy(name, "nominal")
    assert error.value.remedy
