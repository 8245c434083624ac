"""Machine: devices, memories, links and rules; presets as TOML."""

from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.machine.presets import load_machine, preset_names, preset_text, read_machine

__all__ = [
    "Device",
    "Link",
    "Machine",
    "Memory",
    "Rules",
    "load_machine",
    "preset_names",
    "preset_text",
    "read_machine",
]
