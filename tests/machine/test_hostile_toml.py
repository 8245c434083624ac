"""Machine files that somebody wrote to do harm: a machine or one worded error, and soon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmaster.errors import BadMachine
from loadmaster.machine import Machine, load_machine, preset_text, read_machine
from loadmaster.machine.dnn_partitioning import make_dnn_machine
from loadmaster.machine.machine import MOST_LINKS, Device, Link, Memory
from loadmaster.machine.presets import standalone_text
from loadmaster.machine.toml import parse_machine
from loadmaster.program.importers.dnn_partitioning import Graph
from loadmaster.units import parse_bytes, shorten

SMALL = """
name = "mcu"
[[memory]]
name = "sram"
capacity = "512KiB"
bandwidth = "1.6GB/s"
[[device]]
name = "core"
matrix = "2Gflop/s"
vector = "1Gflop/s"
"""
LINK = '[[link]]\nsource = "sram"\ntarget = "sram"\nbandwidth = 1\n'
MANY = """
name = "many"
[[memory]]
name = "hbm"
count = {memories}
capacity = 1000
bandwidth = 1000
[[device]]
name = "gpu"
count = {devices}
memories = ["hbm{{i}}"]
matrix = 1
vector = 1
[[link]]
between = "hbm"
bandwidth = 1
"""


def with_capacity(value: str) -> str:
    return SMALL.replace('"512KiB"', value)


def derived(lines: str) -> str:
    return f'base = "small"\n{lines}'


WRONG = {
    # Numbers.
    "5,000 digits": (with_capacity("9" * 5_000), "an integer of more than 30 digits"),
    "31 digits": (with_capacity("1" + "0" * 30), "an integer of more than 30 digits"),
    "long hexadecimal": (with_capacity("0x" + "f" * 50_000), "an integer of more than 30 digits"),
    "400 digits as text": (with_capacity(f'"{"9" * 400}"'), "capacity can't be read from"),
    "99 digits as text": (with_capacity(f'"{"9" * 99}"'), "above the limit 2\\^62"),
    "spaces": (with_capacity(f'"1{" " * 100_000}!"'), "capacity can't be read from"),
    "1e400 as text": (with_capacity('"1e400"'), "above the limit 2\\^62"),
    "1e400": (with_capacity("1e400"), "must be finite"),
    "infinite": (with_capacity("inf"), "must be finite"),
    "negative infinity": (with_capacity("-inf"), "must be finite"),
    "nan rate": (SMALL.replace('"2Gflop/s"', "nan"), "matrix.* must be finite"),
    "infinite rate": (SMALL.replace('"1.6GB/s"', "inf"), "bandwidth must be finite"),
    "negative rate": (SMALL.replace('"2Gflop/s"', "-1"), "must be finite and not negative"),
    "true as rate": (SMALL.replace('"2Gflop/s"', "true"), "must be a number"),
    "true as capacity": (with_capacity("true"), "must be a number"),
    "true as count": (SMALL + "count = true\n", "count True"),
    "fraction as count": (SMALL + "count = 1.0\n", "count 1.0"),
    "no count": (SMALL + "count = 0\n", "count 0"),
    "true as share": (SMALL.replace('1.6GB/s"', '1.6GB/s"\nefficiency = true'), "efficiency True"),
    "nan share": (SMALL.replace('1.6GB/s"', '1.6GB/s"\nefficiency = nan'), "efficiency nan"),
    "true as overlap": (SMALL + "[rules]\noverlap = true\n", "'overlap' has the value True"),
    "nan overlap": (SMALL + "[rules]\noverlap = nan\n", "'overlap' has the value nan"),
    "negative latency": (SMALL + "launch = -1\n", "launch must be finite and not negative"),
    "huge alignment": (SMALL.replace('1.6GB/s"', '1.6GB/s"\nalignment = "1TiB"'), "alignment"),
    # Types.
    "date": (with_capacity("1979-05-27"), "the date or time 1979-05-27"),
    "time in a list": (SMALL + "memories = [07:32:00]\n", "the date or time 07:32:00"),
    "list as capacity": (with_capacity("[1]"), "must be a number or text"),
    "table as capacity": (with_capacity("{a = 1}"), "must be a number or text"),
    "number as name": (SMALL.replace('"sram"', "3"), "a memory has no name"),
    "list as name": (SMALL.replace('"core"', '["core"]'), "a device has no name"),
    "number as units": (SMALL + "units = 3\n", "has units 3: put each of"),
    "text as units": (SMALL + 'units = "matrix"\n', "has units 'matrix'"),
    "text in units": (SMALL + 'units = [["matrix", "vector", "transcendental"], "x"]\n', "has units"),
    "number in a unit": (SMALL + 'units = [["matrix", 3], ["vector"]]\n', "has units"),
    "empty unit": (SMALL + 'units = [["matrix", "vector", "transcendental"], []]\n', "has units"),
    "no rates": (SMALL.replace('"2Gflop/s"', "{}"), "has no matrix rate in {}"),
    "rate of a rate": (SMALL.replace('"2Gflop/s"', "{f32 = {f32 = 1}}"), "must be a number"),
    "unknown type": (SMALL.replace('"2Gflop/s"', "{f33 = 1}"), "unknown type 'f33'"),
    "efficiency as number": (SMALL + "efficiency = 0.5\n", "has efficiency 0.5"),
    "efficiency of what": (SMALL + "efficiency = { matrx = 0.5 }\n", "has efficiency .*matrx"),
    "memories as text": (SMALL + 'memories = "sram"\n', "has memories 'sram'"),
    "memories as numbers": (SMALL + "memories = [3]\n", r"has memories \[3\]"),
    "engines as numbers": (SMALL + LINK + "engines = [3]\n", r"has engines \[3\]"),
    "rules as list": ("rules = [1]\n" + SMALL, "'rules' has no table"),
    "rule as list": (SMALL + "[rules]\nports = []\n", r"'ports' has the value \[\]"),
    "memory as number": ('memory = 3\nname = "x"\n', "'memory' has no list of tables"),
    "memory as numbers": ('memory = [3]\nname = "x"\n', "'memory' has no list of tables"),
    "description as list": ('description = ["x"]\n' + SMALL, "it has description"),
    "export as number": ("export = 3\n" + SMALL, "'export' has no tables"),
    "export of numbers": (SMALL + "[export]\nexecutorch = 3\n", "'export' has no tables"),
    # Names.
    "escape in a name": (SMALL.replace("sram", "s\\u001b[2J"), "the name 's.x1b"),
    "null in a name": (SMALL.replace("mcu", "m\\u0000"), "the name 'm.x00'"),
    "new line in a name": (SMALL.replace("core", "c\\nd"), "the name 'c.nd'"),
    "direction in a name": (SMALL.replace("sram", "a\\u202eb"), "the name 'a.u202eb'"),
    "surrogate in a name": (SMALL.replace("sram", "a\ud800"), "half a character"),
    "surrogate as escape": (SMALL.replace("sram", "a\\ud800"), "is not TOML"),
    "long name": (SMALL.replace("mcu", "m" * 201), "at most 200 characters"),
    "long key": (SMALL + "k" * 100_000 + " = 1\n", "unknown key 'kkk"),
    "escape in an engine": (SMALL + LINK + 'engines = ["\\u001b"]\n', "in its engines"),
    "engine grows": (SMALL + LINK + f'engines = ["{"{source}" * 25}{"x" * 101}"]\n', "in its engines"),
    # Bases.
    "number as base": ("base = 3\n" + SMALL, "it has base 3"),
    "list as base": ('base = ["nnp-i"]\n' + SMALL, "it has base"),
    "empty base": ('base = ""\n' + SMALL, "it has base ''"),
    "long base": (f'base = "{"x" * 5_000}"\n' + SMALL, "it has base 'xxx"),
    "list as name in a derived memory": (derived('[[memory]]\nname = ["x"]\n'), "has no name"),
    "table as name in a derived link": (derived("[[link]]\nbetween = {a = 1}\n"), "has no between"),
    "number as memory of a base": ('base = "numbers"\n', "machine 'numbers': 'memory' has no list"),
    "number as derived memory": (derived("memory = 3\n"), "'memory' has no list"),
    "base of itself": ('base = "circle"\n', "bases without end"),
    # Sizes.
    "3,000 brackets": ("a = " + "[" * 3_000, "nested deeper than 8"),
    "300 brackets": ("a = " + "[" * 300 + "]" * 300, "nested deeper than 8"),
    "300 tables": ("a = " + "{a = " * 300 + "1" + "}" * 300, "nested deeper than 8"),
    "a key of many parts": (".".join("a" * 100_000) + " = 1\n", "more than 200 dots"),
    "a header of many parts": ("[" + ".".join("a" * 100_000) + "]\n", "more than 200 dots"),
    "too long": ("#" * (4 * 2**20 + 1), "above the limit 4,194,304"),
    "4,096 memories": (MANY.format(memories=4096, devices=1), "count 4096: give .* 1 to 256"),
    "1,000 devices": (MANY.format(memories=128, devices=1000), "count 1000: give .* 1 to 256"),
    "links of 200 memories": (MANY.format(memories=200, devices=1), "39,800 links: give at most 16,384"),
    "memories of two entries": (
        MANY.format(memories=200, devices=1)
        + """
[[memory]]\nname = "more"\ncount = 57\ncapacity = 1\nbandwidth = 1\n""",
        "257 memories: give at most 256",
    ),
    "many memories of a device": (SMALL + "memories = [" + '"sram", ' * 300 + "]\n", "300 memories"),
    "many engines": (SMALL + LINK + "engines = [" + '"e", ' * 9 + "]\n", "9 engines: give at most 8"),
}

BASES = {"small": SMALL, "numbers": 'name = "x"\nmemory = 3\n', "circle": 'base = "circle"\n'}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(BadMachine, match=message) as caught:
        parse_machine(text, "mcu.toml", lambda name: BASES[name])
    assert "\n" not in caught.value.message and caught.value.remedy
    assert len(caught.value.message) < 600


def test_the_largest_machine() -> None:
    machine = parse_machine(MANY.format(memories=128, devices=128), "m", preset_text)
    assert len(machine.links) == 128 * 127 <= MOST_LINKS
    assert machine.link_between[127, 126] == len(machine.links) - 1
    again = parse_machine(standalone_text(machine.with_capacity("hbm0", 1000)), "m", preset_text)
    assert again.hash == machine.hash


def test_machines_that_are_no_file_have_the_same_limits() -> None:
    memories = tuple(Memory(f"m{i}", 1, 1, 1) for i in range(257))
    device = Device("d", ("m0",), {"matrix": {"*": 1}, "vector": {"*": 1}})
    with pytest.raises(BadMachine, match="257 memories: give at most 256"):
        Machine("x", (device,), memories)
    with pytest.raises(BadMachine, match="257 devices"):
        Machine("x", (device,) * 257, memories[:1])
    with pytest.raises(BadMachine, match="16,385 links"):
        Machine("x", (device,), memories[:2], (Link("m0", "m1", 1),) * 16_385)
    with pytest.raises(BadMachine, match="39,800 links"):
        make_dnn_machine(Graph("g", (), {}, 200, 0, 1))
    assert Machine("x", (device,), memories[:2]).memory("m1") == 1


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "bytes", "none", "null"])
def test_bases_that_are_no_files(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    words = {
        "pipe": "a pipe and no regular file",
        "device": "a device",
        "large": "larger than 4.00 MiB",
        "bytes": "not text",
        "null": "no file can have this name",
    }
    name = "a\\u0000b" if kind == "null" else kind
    path = tmp_path / "machine.toml"
    path.write_text(f'base = "{name}"\n{SMALL}')
    with pytest.raises(BadMachine, match=words.get(kind, f"there is no machine '{kind}'")):
        read_machine(path)
    if kind in words and kind != "null":
        with pytest.raises(BadMachine, match=words[kind]):
            load_machine(str(tmp_path / kind))


@pytest.mark.parametrize(
    "name",
    [
        "x" * 5_000,
        "a\0b",
        "a\0b.toml",
        "\ud800",
        "arena:" + "9" * 400,
        "arena:1e400",
        "nnp-i:sram=" + "9" * 400,
        "nnp-i:sram",
    ],
)
def test_names_that_are_no_machines(name: str) -> None:
    with pytest.raises(BadMachine):
        load_machine(name)


def test_units_take_any_number() -> None:
    with pytest.raises(ValueError, match=r"beyond 10\^300, above the limit"):
        parse_bytes(10**5_000)
    with pytest.raises(ValueError, match=r"a number of some 5,000 digits"):
        parse_bytes(-(10**5_000))
    assert shorten("x" * 1_000) == "'" + "x" * 76 + "..."
