"""Facts of the hardware stand once, in jit/arch.py: the virtual GPU and device code agree."""

from __future__ import annotations

import re

import pytest

from rfops.jit import paths, settings
from rfops.jit.arch import ARCH_SPECS, ARCHS, MAX_WAVES, PART_CUS, REGISTERS, WAVE


def field(block: str, key: str) -> int:
    match = re.search(rf"\.{key} = (0x[\da-f]+|[\d' <]+),", block)
    assert match is not None, key
    return int(eval(match[1].replace("'", "")))


@pytest.mark.parametrize("name", ARCHS)
def test_the_virtual_gpu_is_that_chip(name: str) -> None:
    text = (paths.CSRC / "vgpu" / "base" / "device.cpp").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"\{\s*(\.arch = .*?)\n    \}", text, re.S) if name in b]
    row = ARCH_SPECS[name]
    assert f"AMD Instinct {row.chip} " in block
    assert (field(block, "compute_units"), field(block, "xccs")) == (row.cus, row.xcds)
    assert field(block, "clock_khz") == round(1e6 * row.ghz)


def test_the_virtual_gpu_has_these_architectures() -> None:
    text = (paths.CSRC / "vgpu" / "base" / "arch.h").read_text(encoding="utf-8")
    blocks = {b[1]: b[0] for b in re.findall(r'\{\s*(\.name = "(\w+)".*?)\n    \}', text, re.S)}
    assert tuple(blocks) == ARCHS
    for name, block in blocks.items():
        row = ARCH_SPECS[name]
        keys = ("number", "elf_machine", "lds_bytes", "lds_banks")
        expected = (int(name[3:]), row.elf_machine, row.lds_bytes, row.lds_banks)
        assert tuple(field(block, key) for key in keys) == expected
        limits = tuple(field(block, key) for key in ("wave_lanes", "vgprs", "max_waves"))
        assert limits == (WAVE, REGISTERS, MAX_WAVES)


@pytest.mark.parametrize("name", ARCHS)
def test_device_code_has_the_same(name: str) -> None:
    text = (paths.INCLUDE / "rfops" / "chip" / "arch.h").read_text(encoding="utf-8")
    (part,) = re.findall(rf"defined\(__{name}__\)\n(.*?)\n#", text, re.S)
    values = dict(re.findall(r"constexpr u32 (\w+) = (\d+);", part + text.split("#endif")[1]))
    row = ARCH_SPECS[name]
    expected = {"kLdsBytes": row.lds_bytes, "kLdsBanks": row.lds_banks, "kXcds": row.xcds}
    assert {key: int(value) for key, value in values.items()} == expected


def test_rows_are_whole() -> None:
    for name, row in ARCH_SPECS.items():
        assert row.name == name and row.hbm_tb_s <= row.hbm_peak_tb_s and row.cus > 0
        assert {"bf16", "fp8"} <= set(row.matrix_tflops)
    assert ARCHS == ("gfx942", "gfx950")


def test_parts_are_those_of_the_virtual_gpu() -> None:
    text = (paths.CSRC / "vgpu" / "base" / "device.cpp").read_text(encoding="utf-8")
    parts = dict(re.findall(r'\{Arch::k\w+, "(\w+)", "[^"]+",? ?\s*(\d+),', text))
    units = {name: int(cus) for name, cus in parts.items()} | {
        r.chip: r.cus for r in ARCH_SPECS.values()
    }
    assert {name: units[name] for name in PART_CUS} == PART_CUS
    assert {*PART_CUS} == {*settings.PARTS}
