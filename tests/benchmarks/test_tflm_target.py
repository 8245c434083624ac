"""The measurement on a target of 32 bits: what can be tested without its image."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from benchmarks.tflm_target import COMPILE, DRIVER, jump


def image(address: int, size: int) -> bytearray:
    """An ELF file with one loaded segment, of zeros."""
    head = bytearray(52)
    struct.pack_into("<I", head, 28, 52)
    struct.pack_into("<H", head, 44, 1)
    return head + struct.pack("<8I", 1, 84, address, address, size, size, 5, 4) + bytes(size)


def test_a_function_is_replaced_by_a_jump() -> None:
    data = image(0x1000, 64)
    jump(data, 0x1010, 0x90000124)
    # ldr.w pc, [pc]: the address behind it, with the bit that says Thumb
    assert data[84 + 0x10 : 84 + 0x18] == bytes.fromhex("dff800f025010090")
    assert not any(data[84 : 84 + 0x10]) and not any(data[84 + 0x18 :])
    with pytest.raises(SystemExit, match="nothing of the image lies at"):
        jump(data, 0x2000, 0x90000124)


def test_the_driver_compiles(tmp_path: Path) -> None:
    if shutil.which("arm-none-eabi-g++") is None:
        pytest.skip("arm-none-eabi-g++ is not installed")
    made = tmp_path / "driver.o"
    flags = [word for word in COMPILE.split() if not word.startswith("-Wl")]
    subprocess.run(
        [*flags, "-Wall", "-Werror", "-Wno-register", "-c", str(DRIVER), "-o", str(made)], check=True
    )
    found = subprocess.run(["arm-none-eabi-nm", "-u", str(made)], capture_output=True, text=True, check=True)
    theirs = [line.split()[-1] for line in found.stdout.splitlines()]
    assert len(theirs) == 11 and all("tflite" in name or "TestModel" in name for name in theirs)
    listed = subprocess.run(["arm-none-eabi-nm", "--defined-only", str(made)], capture_output=True, text=True)
    assert {"measure", "crash", "be_quiet"} <= {line.split()[-1] for line in listed.stdout.splitlines()}
