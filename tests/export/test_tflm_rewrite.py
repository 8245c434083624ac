"""Rewritten models: fewer bytes, the same numbers to the last bit."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest

from generate_tflite import CONV, I8, I32, GraphMaker, branchy, convolutional, tflite
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.export.tflm_arena import compute_arena
from loadmaster.export.tflm_bands import count_macs, find_stretches, make_smaller, split
from loadmaster.export.tflm_fits import fit_micro, verify_same
from loadmaster.export.tflm_measure import can_measure, measure_least
from loadmaster.export.tflm_rewrite import Draft, check_places, make_buffers, make_draft, pack, share
from loadmaster.machine import load_machine
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.program.importers.tflite.read import read_tflite


def bands_of(draft: Draft) -> list[Draft]:
    """Every split of every stretch."""
    stretches = {stretch: None for at in range(len(draft.steps)) for stretch in find_stretches(draft, at)}
    made = (split(draft, stretch, bands) for stretch in stretches for bands in (2, 3, 5))
    return [each for each in made if each is not None]


@pytest.mark.parametrize("seed", range(30))
def test_bands_compute_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, strides, paddings and ways around of all kinds, cut at every place."""
    data = convolutional(seed)
    draft = make_draft(read_tflite(data))
    made = bands_of(draft)
    for each in made[:: max(1, len(made) // 6)]:
        packed = pack(each, quick=True)  # checks its own places
        written = packed.write()
        assert written.endswith(data)
        model = read_tflite(written)
        assert compute_arena(model, offsets=packed.offsets).planned >= packed.bound
        assert count_macs(model) == pytest.approx(count_macs(draft.model) * (1 + each.extra_macs))
        if pytest.importorskip("tflite_micro"):
            verify_same(data, written, packed, "model", seeds=range(2))
            # The model that the others are of too has run in a process of its own now.
            monkeypatch.setattr("loadmaster.export.tflm_fits.check_survives", lambda *given: None)


@pytest.mark.parametrize("seed", range(12))
def test_shared_places_compute_the_same(seed: int) -> None:
    pytest.importorskip("tflite_micro")
    data = branchy(seed)
    packed = pack(make_draft(read_tflite(data)))
    apart = pack(make_draft(read_tflite(data)), in_place=False)
    assert packed.bound <= apart.bound
    verify_same(data, packed.write(), packed, "model", seeds=range(2))


def test_a_stretch_to_blame_is_found_and_split() -> None:
    data = convolutional(18, operators=9, side=40)
    model = read_tflite(data)
    before, after = compute_arena(model), make_smaller(model)
    assert after.arena.total < 0.75 * before.total and after.packed.draft.notes
    # With a total that is enough, the way that computes least again is taken.
    enough = (before.total + after.arena.total) // 2
    cheap = make_smaller(model, enough=enough)
    assert cheap.arena.total <= enough
    assert cheap.packed.draft.extra_macs <= after.packed.draft.extra_macs
    if pytest.importorskip("tflite_micro"):
        least = measure_least(after.data, after.arena.total)
        assert least is not None and 0.98 * after.arena.total <= least <= after.arena.total
        verify_same(data, after.data, after.packed, "model")


def test_what_was_rewritten_is_an_ordinary_model() -> None:
    data = convolutional(18, operators=9, side=40)
    again = import_tflite(make_smaller(read_tflite(data)).data)
    assert again.n_ops > import_tflite(data).n_ops


def test_wrong_places_are_seen() -> None:
    """The look at every step shares nothing with how places are found: any offset that harms is named."""
    rng = np.random.default_rng(0)
    refused = 0
    for seed in range(6):
        packed = pack(make_draft(read_tflite(branchy(seed))))
        placed = [n for n, offset in enumerate(packed.offsets) if offset >= 0]
        for _ in range(20):
            offsets = list(packed.offsets)
            a, b = (int(n) for n in rng.choice(placed, 2))
            offsets[a] = offsets[b]
            try:
                check_places(packed.draft, offsets)
            except Refused:
                refused += 1
    assert refused > 60


def test_lives_of_what_shares_bytes_are_exact() -> None:
    draft = make_draft(read_tflite(convolutional(18, operators=9, side=40)))
    made = bands_of(draft)
    whole, _ = make_buffers(draft, share(draft))
    assert any(make_buffers(each, share(each))[0].gaps for each in made)
    assert min(make_buffers(each, share(each))[0].max_live for each in made) < whole.max_live


@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_get_one_error_or_an_answer(seed: int, tmp_path: Path) -> None:
    """Options and shapes that no importer has looked at: nothing but our own errors."""
    rng = np.random.default_rng(seed)
    path, machine = tmp_path / "model.tflite", load_machine("arena:4KiB")
    answers = 0
    for _ in range(40):
        data = bytearray(convolutional(int(rng.choice([5, 8, 18])), operators=5))
        for _ in range(int(rng.integers(1, 5))):
            at = int(rng.integers(8, len(data) - 4))
            number = int(rng.choice([0, 1, -1, 3, 255, 65536, 2**31 - 1]))
            data[at : at + 4] = struct.pack("<i", number)
        path.write_bytes(data)
        with contextlib.suppress(LoadmasterError):
            fit_micro(str(path), machine, measure=False)
            answers += 1
    assert answers


def test_two_places_that_hold_as_much_are_relieved_one_after_the_other() -> None:
    """What leaves the first pair of convolutions is a result too: no stretch goes through it. Both pairs hold 20
    channels at once, so that a split of one alone brings nothing."""
    rng = np.random.default_rng(0)
    graph = GraphMaker()
    x = graph.tensor("input", [1, 64, 64, 4])
    graph.inputs = [x]
    channels = 4
    for number, to in enumerate((16, 4, 12, 4)):
        data = rng.integers(-127, 128, to * 9 * channels).astype(np.int8).tobytes()
        weights = graph.tensor(f"w{number}", [to, 3, 3, channels], I8, data)
        bias = graph.tensor(f"b{number}", [to], I32, rng.integers(-500, 500, to).astype("<i4").tobytes())
        out = graph.tensor(f"c{number}", [1, 64, 64, to])
        graph.op("CONV_2D", [x, weights, bias], [out], CONV)
        x, channels = out, to
        graph.outputs += [out] if number in (1, 3) else []
    data = tflite(graph)
    model = read_tflite(data)
    whole, split = make_smaller(model, bands=False), make_smaller(model)
    assert whole.arena.planned == 20 * 4096 and len(split.packed.draft.notes) >= 2
    assert split.arena.total < 0.8 * whole.arena.total
    if can_measure():
        verify_same(data, split.data, split.packed, "model", range(2))
