"""Machines: presets hold what their sources say, wrong files get one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmaster.errors import BadMachine
from loadmaster.machine import load_machine, preset_names, preset_text, read_machine
from loadmaster.machine.presets import standalone_text
from loadmaster.machine.toml import parse_machine
from loadmaster.units import UNLIMITED, parse_bytes, parse_rate, parse_time, show_bytes, show_time

SMALL = """
name = "mcu"
[[memory]]
name = "sram"
capacity = "512KiB"
bandwidth = "1.6GB/s"
[[memory]]
name = "flash"
capacity = "4MiB"
bandwidth = "100MB/s"
[[device]]
name = "core"
matrix = "2Gflop/s"
vector = "1Gflop/s"
launch = "3us"
"""


def parse(text: str):  # type: ignore[no-untyped-def]
    return parse_machine(text, "mcu.toml", preset_text)


def test_a_small_machine() -> None:
    machine = parse(SMALL)
    assert [m.capacity for m in machine.memories] == [512 * 1024, 4 * 2**20]
    assert machine.memories[1].read == machine.memories[1].write == 100_000_000
    assert machine.reach == ((0, 1),) and machine.home == (1,)
    assert machine.devices[0].launch == 3_000_000
    assert machine.hash == parse(SMALL + "\n# a comment changes nothing\n").hash
    assert machine.hash != parse(SMALL.replace("512KiB", "511KiB")).hash
    assert machine.with_capacity("sram", 7).memories[0].capacity == 7


@pytest.mark.parametrize("name", preset_names())
def test_presets_load_and_every_number_has_a_source(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name and machine.description
    lines = preset_text(name).splitlines()
    number = [
        i
        for i, line in enumerate(lines)
        if "=" in line.split("#")[0] and any(c.isdigit() for c in line.split("#")[0])
    ]
    # A number's source stands on its line, on a comment above it, or on a line of the same table.
    for i in number:
        table = next(j for j in range(i, -1, -1) if lines[j].startswith("[") or j == 0)
        end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith("[")), len(lines))
        assert lines[0].startswith("#") and (
            "#" in "".join(lines[table:end])
            or "base" in preset_text(name)
            or "test machine" in machine.description
        ), lines[i]


def test_numbers_of_the_presets() -> None:
    nnp = load_machine("nnp-i")
    assert [m.capacity for m in nnp.memories] == [4 * 2**20, 24 * 2**20, 16 * 2**30]
    assert [m.read for m in nnp.memories] == [6_800_000_000_000, 680_000_000_000, 67_200_000_000]
    assert nnp.devices[0].rates["matrix"]["*"] == 2 * 46_006_272_000_000
    assert nnp.devices[0].launch == 200_000
    assert load_machine("nnp-i-12").memories[0].capacity == 48 * 2**20
    assert load_machine("nnp-i-12").memories[1] == nnp.memories[1]
    tpu = load_machine("tpu-v4i-16m")
    assert tpu.memories[0].capacity == 16 * 2**20 and tpu.rules.copies == "idle"
    assert tpu.devices[0].units == (("matrix", "vector"), ("transcendental",))
    p100 = load_machine("p100x8")
    assert len(p100.devices) == 8 and len(p100.links) == 56 and len(p100.engines) == 16
    assert p100.memories[7].read == round(732e9 * 0.75)
    assert p100.devices[3].rates["matrix"]["f32"] == round(9.3e12 * 0.7)
    assert p100.rules.overlap == 50_000
    assert p100.links[0].engines == ("out.hbm0", "in.hbm1")
    h200 = load_machine("h200")
    assert h200.links[0].bandwidth == 51 * 2**30 and h200.memories[0].read == round(4.8e12 * 0.9)


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth", "vector", "bf16"),
    [
        ("a100-40", "hbm", 1.555e12, 19.5e12, 312e12),
        ("a100-80", "hbm", 2.039e12, 19.5e12, 312e12),
        ("h100", "hbm", 3.35e12, 67e12, 989e12),
        ("h200", "hbm", 4.8e12, 67e12, 989e12),
        ("l4", "vram", 0.3e12, 30.3e12, 121e12),
        ("l40s", "vram", 0.864e12, 91.6e12, 362e12),
        ("rtx3090", "vram", 0.936e12, 35.6e12, 71e12),
        ("rtx4090", "vram", 1.008e12, 82.6e12, 165e12),
        ("rtx5090", "vram", 1.792e12, 104.8e12, 209.5e12),
    ],
)
def test_gpus_have_the_peaks_of_their_data_sheets(
    name: str, memory: str, bandwidth: float, vector: float, bf16: float
) -> None:
    machine = load_machine(name)
    assert [each.name for each in machine.memories] == [memory, "host"] and machine.rules.reach == "first"
    assert [(link.source, link.target, link.engines) for link in machine.links] == [
        ("host", memory, ("h2d",)),
        (memory, "host", ("d2h",)),
    ]
    assert machine.memories[0].read == round(bandwidth * 0.9)
    rates = machine.devices[0].rates
    assert rates["vector"]["*"] == vector and rates["matrix"]["f32"] == rates["matrix"]["*"]
    assert rates["matrix"]["f16"] == rates["matrix"]["bf16"] == pytest.approx(0.8 * bf16)


def test_variants() -> None:
    base = load_machine("p100x4")
    assert load_machine("p100x4-free").engines == ()
    assert load_machine("p100x4-bus").engines == ("bus",)
    assert len(load_machine("p100x4-duplex").engines) == 4
    assert len({base.hash, *(load_machine(f"p100x4-{v}").hash for v in ("free", "bus", "duplex"))}) == 4


def test_other_capacities() -> None:
    small = load_machine("nnp-i:sram=2MiB,llc=12MiB")
    assert [m.capacity for m in small.memories[:2]] == [2 * 2**20, 12 * 2**20]
    assert small.name == "nnp-i:sram=2MiB,llc=12MiB" and small.hash != load_machine("nnp-i").hash
    with pytest.raises(BadMachine, match=r"no memory 'srm'.*did you mean 'sram'"):
        load_machine("nnp-i:srm=2MiB")
    with pytest.raises(BadMachine, match=r"the capacity of 'sram'.*write sram=2MiB"):
        load_machine("nnp-i:sram=lots")


def test_arena() -> None:
    machine = load_machine("arena:256KiB")
    assert machine.memories[0].capacity == 256 * 1024 and machine.memories[1].capacity == UNLIMITED


WRONG = {
    "missing capacity": (
        SMALL.replace('capacity = "512KiB"\n', ""),
        "machine 'mcu.toml': memory 'sram' has no capacity: add capacity = \"512KiB\"",
    ),
    "beyond 2^63": (SMALL.replace('"512KiB"', "99999999999999999999"), "above the limit 2\\^62"),
    "negative": (SMALL.replace('"512KiB"', "-1"), "must be finite and not negative"),
    "nan": (SMALL.replace('"512KiB"', "nan"), "must be finite and not negative"),
    "unit": (SMALL.replace("512KiB", "512parsecs"), "unknown unit 'parsecs'"),
    "no bandwidth": (SMALL.replace('bandwidth = "1.6GB/s"\n', ""), "memory 'sram' has no bandwidth"),
    "zero bandwidth": (SMALL.replace('"1.6GB/s"', "0"), "at least 1 per second"),
    "no rate": (SMALL.replace('matrix = "2Gflop/s"\n', ""), "device 'core' has no matrix rate"),
    "unknown key": (SMALL + 'memroies = ["sram"]\n', "unknown key 'memroies'"),
    "unknown memory": (SMALL + 'memories = ["dram"]\n', "has no memory 'dram'"),
    "twice": (SMALL.replace('"flash"', '"sram"'), "two memory entries are named 'sram'"),
    "no device": (SMALL.split("[[device]]")[0], "it has no device"),
    "no name": (SMALL.replace('name = "mcu"', ""), "has no name"),
    "not toml": (SMALL + "[[", "is not TOML"),
    "bad rule": (SMALL + '[rules]\nports = "sideways"\n', "rule 'ports' has the value 'sideways'"),
    "bad overlap": (SMALL + "[rules]\noverlap = 2\n", "rule 'overlap'"),
    "bad count": (SMALL + "count = 1000000000\n", "count 1000000000"),
    "link to nowhere": (
        SMALL + '[[link]]\nsource = "sram"\ntarget = "dram"\nbandwidth = 1\n',
        "has no memory 'dram'",
    ),
    "link to itself": (
        SMALL + '[[link]]\nsource = "sram"\ntarget = "sram"\nbandwidth = 1\n',
        "leads nowhere",
    ),
    "list of memories": (
        SMALL.replace("[[memory]]", "[memory]", 1).split("[[memory]]")[0],
        "'memory' has no list",
    ),
    "base of itself": ('base = "loop"\nname = "x"\n', "bases without end"),
    "idle with two devices": (
        SMALL + 'count = 2\n[rules]\ncopies = "idle"\n',
        "needs one device and there are 2",
    ),
    "units": (SMALL + 'units = [["matrix"]]\n', "put each of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(case: str) -> None:
    text, message = WRONG[case]
    find_base = (lambda name: 'base = "loop"\n') if case == "base of itself" else preset_text
    with pytest.raises(BadMachine, match=message) as caught:
        parse_machine(text, "mcu.toml", find_base)
    assert "\n" not in caught.value.message and caught.value.remedy


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(BadMachine, match="did you mean 'nnp-i'"):
        load_machine("npp-i")
    with pytest.raises(BadMachine, match="write arena:256KiB"):
        load_machine("arena:lots")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "nnp-i"\nname = "mine"\n[[memory]]\nname = "sram"\ncapacity = "1MiB"\n'
    )
    (tmp_path / "child.toml").write_text('base = "mine.toml"\nname = "child"\n')
    assert read_machine(tmp_path / "child.toml").memories[0].capacity == 2**20
    with pytest.raises(BadMachine, match="can't be read"):
        load_machine(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadMachine, match="it is not text"):
        load_machine(str(tmp_path / "binary.toml"))


def test_a_file_that_was_changed_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a relative one, in another folder."""
    names = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        for _ in range(2):
            text = standalone_text(load_machine("nnp-i")).replace('"nnp-i"', f'"m{len(names)}"', 1)
            Path("own.toml").write_text(text, encoding="utf-8")
            names.append(load_machine("own.toml").name)
    assert names == ["m0", "m1", "m2", "m3"]
    assert load_machine("nnp-i") is load_machine("nnp-i")


def test_units_read_and_show() -> None:
    assert (
        parse_bytes("1.25MiB") == 1_310_720 and parse_bytes("1_000") == 1000 and parse_bytes(" 2 kb ") == 2000
    )
    assert parse_time("0.2us") == parse_time(2e-7) == 200_000 and parse_time("5 µs") == 5_000_000
    assert parse_rate("9.3Tflop/s") == 9_300_000_000_000 and parse_rate("51GiB/s") == 51 * 2**30
    assert show_bytes(1_806_336) == "1.72 MiB" and show_bytes(7) == "7 B"
    assert show_time(112_041_521) == "112.04 µs" and show_time(5) == "5 ps"
    for bad in (True, None, "", "-3", "1e400", [1], "0x10"):
        with pytest.raises(ValueError):
            parse_bytes(bad)


@pytest.mark.parametrize("text", ["10Gb", "64Kib", "1.5 Mb"])
def test_bits_are_not_taken_for_bytes(text: str) -> None:
    unit = text.lstrip("0123456789. ")
    with pytest.raises(ValueError, match=f"'{unit}', which means bits: give bytes, as {unit[:-1]}B$"):
        parse_bytes(text)
    with pytest.raises(ValueError, match=f"'{unit}/s', which means bits: give bytes, as {unit[:-1]}B/s$"):
        parse_rate(f"{text}/s")
    assert parse_bytes("10gb") == parse_bytes("10GB") == parse_rate("10gb/s") == 10**10
