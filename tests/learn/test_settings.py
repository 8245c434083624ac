"""Settings of agents: refused by name, of the right type, and the same for runs that compile the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.learn.session import check_settings, free_settings, keep_only, make_settings


@dataclass(frozen=True)
class Settings:
    width: int = 8
    rate: float = 0.5
    noisy: bool = True
    games: int | None = None

    def __post_init__(self) -> None:
        check_settings(
            "toy",
            self,
            lambda: {"width": self.width != 7},
            counts=("width", "games"),
            shares=("rate",),
            open_counts=("games",),
        )


def test_settings_come_from_options() -> None:
    made = make_settings(Settings, "toy", {"rate": 1, "games": 3}, {"noisy": False})
    assert made == Settings(rate=1, games=3, noisy=False)
    assert free_settings(made, {"noisy": False}) == {"width": 8, "rate": 1, "games": 3}
    assert make_settings(Settings, "toy", free_settings(made, {"noisy": False}), {"noisy": False}) == made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 2.0),
        ("width", True),
        ("width", 0),
        ("width", 7),
        ("rate", -0.1),
        ("rate", 1.5),
        ("games", 0),
        ("rate", float("nan")),
        ("games", 10**10),
        ("rate", "0.5"),
        ("noisy", 1),
        ("games", 2.0),
    ],
)
def test_what_it_can_not_work_with_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(LoadmasterError, match=f"toy can't work with {name} = ") as error:
        make_settings(Settings, "toy", {name: value}, {})
    assert error.value.object == "toy"
    assert "; the default is " in str(error.value.remedy)


@pytest.mark.parametrize("name", ["depth", "noisy"])
def test_unknown_and_fixed_options_are_refused(name: str) -> None:
    with pytest.raises(LoadmasterError, match=f"no option '{name}'") as error:
        make_settings(Settings, "toy", {name: False}, {"noisy": False})
    assert error.value.remedy == "use width, rate, games"


def test_runs_that_differ_in_what_is_not_compiled_share_their_settings() -> None:
    one, other = Settings(width=4, rate=0.1), Settings(width=4, rate=0.9)
    assert keep_only(one, ("width",)) == keep_only(other, ("width",)) == Settings(width=4)
