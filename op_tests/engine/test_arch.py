"""Facts of the hardware stand once, in jit/arch.py: the virtual GPU and device code agree."""

from __future__ import annotations

import re

import pytest

from rfops.jit import paths
from rfops.jit.arch import ARCHS, ROWS


@pytest.mark.parametrize("name", ARCHS)
def test_the_virtual_gpu_is_that_chip(name: str) -> None:
    text = (paths.CSRC / "vgpu" / "base" / "device.cpp").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"\{\s*(\.arch = .*?)\n    \}", text, re.S) if name in b]
    row = ROWS[name]

    def field(key: str) -> int:
        found = re.search(rf"\.{key} = ([\d' <]+)", block)
        assert found is not None, key
        return int(eval(found[1].replace("'", "")))

    assert f"AMD Instinct {row.chip} " in block
    assert (field("compute_units"), field("xccs")) == (row.cus, row.xcds)
    assert (field("lds_bytes"), field("clock_khz")) == (row.lds_bytes, round(1e6 * row.ghz))


@pytest.mark.parametrize("name", ARCHS)
def test_device_code_has_the_same(name: str) -> None:
    text = (paths.INCLUDE / "rfops" / "arch.h").read_text(encoding="utf-8")
    (part,) = re.findall(rf"defined\(__{name}__\)\n(.*?)\n#", text, re.S)
    values = dict(re.findall(r"constexpr u32 (\w+) = (\d+);", part + text.split("#endif")[1]))
    row = ROWS[name]
    wanted = {"kLdsBytes": row.lds_bytes, "kLdsBanks": row.lds_banks, "kXcds": row.xcds}
    assert {key: int(value) for key, value in values.items()} == wanted


def test_rows_are_whole() -> None:
    for name, row in ROWS.items():
        assert row.name == name and row.hbm_tb_s <= row.hbm_peak_tb_s and row.cus > 0
        assert {"bf16", "fp8"} <= set(row.matrix_tflops)
    assert ARCHS == ("gfx942", "gfx950")
