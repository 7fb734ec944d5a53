"""The loops of gemm_a8w8_blockscale's kernels as the compiler made them: how busy they can keep the
matrix cores does not show in results."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from rfops.gemm.kernels.a8w8.deep import DeepConfig
from rfops.gemm.kernels.a8w8.pingpong import PingPongConfig
from rfops.gemm.kernels.a8w8.staged import StagedConfig
from rfops.gemm.kernels.a8w8.stream import StreamConfig
from support.assembly import assembly, counted, loop, number

BF16 = torch.bfloat16


def staged(arch: str, m: int, n: int) -> list[str]:
    return loop(assembly("a8w8_blockscale_staged", arch, StagedConfig(m, n).defines(BF16)))


def pingpong(m: int, n: int, pow2: int = 0) -> list[str]:
    config = PingPongConfig(m, n, pow2=pow2)
    return loop(assembly("a8w8_blockscale_pingpong", "gfx950", config.defines(BF16)))


def assert_unpacked(lines: list[str]) -> None:
    """Packed arithmetic and moves to accumulation registers do not run beside the matrix cores."""
    counts = counted(lines)
    assert number(counts, r"v_pk_|v_accvgpr|scratch_|v_cvt") == 0, counts


@pytest.mark.parametrize(("m", "n"), [(128, 128), (128, 64), (64, 64)])
@pytest.mark.parametrize(("arch", "steps"), [("gfx942", 4), ("gfx950", 1)])
def test_staged(arch: str, steps: int, m: int, n: int) -> None:
    """A K-step: one multiply-add an element of a partial sum, one or four beside an MFMA."""
    lines = staged(arch, m, n)
    counts = counted(lines)
    tiles = m * n // 4 // 256
    assert number(counts, "v_mfma") == tiles * steps
    assert number(counts, "v_fma") == tiles * 4
    if arch == "gfx942" and tiles == 16:
        # Of which a tenth loads scales, one K-step in four.
        assert number(counts, "v_(?!mfma)") <= 1.25 * number(counts, "v_mfma"), counts
    assert counts["ds_read_b128"] == 2 * (m + n) // 2 // 16
    assert counts["ds_write_b128"] == counts["buffer_load_dwordx4"] == (m + n) // 32
    assert counts["s_barrier"] == 2
    assert counts["s_nop"] <= 5
    assert_unpacked(lines)


@pytest.mark.parametrize(("m", "n", "wave_rows"), [(96, 128, 112), (80, 128, 112), (48, 64, 64)])
@pytest.mark.parametrize(("arch", "steps"), [("gfx942", 4), ("gfx950", 1)])
def test_deep(arch: str, steps: int, m: int, n: int, wave_rows: int) -> None:
    """Four K-steps: each read, write and load is beside a matrix instruction, and no wait, for
    operands or scales, is for loads of these K-steps' operands: those of two are in flight."""
    lines = loop(assembly("a8w8_blockscale_deep", arch, DeepConfig(m, n).defines(BF16)))
    counts, tiles, loads = counted(lines), m * n // 4 // 256, (m + 31) // 32 + n // 32
    assert number(counts, "v_mfma") == 4 * steps * tiles
    assert number(counts, "v_fma") == 4 * 4 * tiles
    assert counts["ds_read_b128"] == 4 * 2 * wave_rows // 16
    assert counts["ds_write_b128"] == counts["buffer_load_dwordx4"] == 4 * loads
    assert counts["s_barrier"] == 4 and counts["s_nop"] <= 12
    waits = [int(line.split("vmcnt(")[1].split(")")[0]) for line in lines if "vmcnt" in line]
    assert len(waits) >= 4 * loads - 1 and min(waits) >= 2 * loads, waits
    assert_unpacked(lines)


@pytest.mark.thin(3)
@pytest.mark.parametrize(("m", "n"), DeepConfig.TILES)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_deep_begins_and_ends(arch: str, m: int, n: int) -> None:
    """No wait before the first operands are loaded, which a register that a load of scales writes
    would cause; and tiles of a wave in pairs take half as many stores, of 16 bytes a lane."""
    lines = assembly("a8w8_blockscale_deep", arch, DeepConfig(m, n).defines(BF16))
    first = next(i for i, line in enumerate(lines) if line.startswith("buffer_load_dwordx4"))
    assert [line for line in lines[:first] if "vmcnt" in line] == []
    counts, tiles = counted(lines), m * n // 4 // 256
    assert counts["buffer_store_dwordx2"] == tiles
    assert counts["buffer_store_dwordx4"] == (0 if (m, n) == (48, 64) else tiles // 2)


COLUMNS = {"X_COLUMNS": 1, "W_COLUMNS": 1}


@pytest.mark.thin(2)
@pytest.mark.parametrize(("m", "n"), [(128, 128), (64, 64)])
def test_column_major_of_gfx942(m: int, n: int) -> None:
    """64 byte permutations more a K-step, 32 of half as many rows, and loads of a dword a k."""
    defines = {**StagedConfig(m, n).defines(BF16), **COLUMNS}
    lines = loop(assembly("a8w8_blockscale_staged", "gfx942", defines))
    counts = counted(lines)
    rows = (m + n) // 4
    assert counts["v_perm_b32"] == rows
    assert counts["buffer_load_dword"] == rows // 2 + m // 2 // 16, "and scales"
    offset = [i for i, line in enumerate(lines) if line.startswith("v_mfma")]
    beside = counted(lines[offset[0] : offset[-1]])
    if m * n == 128 * 128:  # beside the matrix cores, not after them
        assert number(counts, "v_(?!mfma)") <= 2.3 * number(counts, "v_mfma"), counts
        assert number(beside, "v_perm") == rows
    else:  # the loads, but for those of the first slot and of scales
        assert beside["buffer_load_dword"] >= rows // 2 - 2
    assert_unpacked(lines)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("a8w8_blockscale_staged", StagedConfig(128, 128)),
        ("a8w8_blockscale_staged", StagedConfig(64, 128)),
        ("a8w8_blockscale_pingpong", PingPongConfig(256, 256)),
        ("a8w8_blockscale_pingpong", PingPongConfig(256, 128)),
    ],
)
def test_column_major_of_gfx950(module: str, config: Any) -> None:
    """As rows: twice as many reads of half as many bytes, which turn them round; nothing else."""
    rows, columns = (
        counted(loop(assembly(module, "gfx950", {**config.defines(BF16), **more})))
        for more in ({}, COLUMNS)
    )
    assert columns["ds_read_b128"] == 0
    assert columns["ds_read_b64_tr_b8"] == 2 * rows["ds_read_b128"]
    for name in ("v_mfma_f32_16x16x128_f8f6f4", "buffer_load_dwordx4", "s_barrier"):
        assert columns[name] == rows[name]
    assert number(columns, "v_") <= number(rows, "v_")


@pytest.mark.parametrize(("m", "n"), [(256, 256), (256, 128), (128, 256)])
def test_pingpong(m: int, n: int) -> None:
    """Two K-steps: each compute part has its MFMAs and four multiply-adds each, nothing else."""
    lines = pingpong(m, n)
    counts = counted(lines)
    tiles = m * n // 8 // 256
    assert number(counts, "v_mfma") == 2 * tiles
    valu = number(counts, "v_(?!mfma)")
    assert valu <= 4 * 2 * tiles + 2 * 4 * (m // 2 // 16 // 2) + 24, counts  # and scales' products
    assert number(counts, "s_(?!waitcnt|nop|barrier|setprio|load)") <= 100, counts
    assert counts["ds_read_b128"] == 2 * 2 * (m // 2 // 16 + n // 4 // 16)
    assert counts["buffer_load_dwordx4"] == 2 * (m + n) // 64
    assert counts["s_nop"] <= 16
    waits = [line for line in lines if line.startswith("s_waitcnt") and "vmcnt" in line]
    assert len(waits) == 8 and all(f"vmcnt({3 * (m + n) // 128})" in line for line in waits)
    assert_unpacked(lines)

    parts = [
        list(part)
        for is_barrier, part in itertools.groupby(lines, lambda line: line.startswith("s_barrier"))
        if not is_barrier
    ]
    computing = [counted(part) for part in parts if number(counted(part), "v_mfma")]
    assert len(computing) == 8
    for part in computing:
        assert number(part, "v_mfma") == tiles // 4
        assert number(part, "v_(?!mfma)") == number(part, "v_fma") == tiles
        assert number(part, "ds_|buffer_") == 0


def test_pingpong_of_powers_of_two() -> None:
    lines = pingpong(256, 256, pow2=1)
    counts = counted(lines)
    assert counts["v_mfma_scale_f32_16x16x128_f8f6f4"] == 64
    assert number(counts, "v_(?!mfma)") <= 0.6 * 64, counts
    assert counts["s_nop"] <= 16
    assert_unpacked(lines)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("a8w8_blockscale_stream", StreamConfig(1, 1, 4, 4, 2, 4)),
        ("a8w8_blockscale_staged", StagedConfig(128, 64, 2)),
        ("a8w8_blockscale_pingpong", PingPongConfig(256, 256, 2)),
    ],
)
def test_the_first_loads_wait_for_no_argument(module: str, config: Any, arch: str) -> None:
    """They are in registers when a wave begins, behind what loads them for old firmware."""
    if arch == "gfx942" and isinstance(config, PingPongConfig):
        arch = "gfx950"
    lines = assembly(module, arch, config.defines(BF16))
    begin = next(i for i, line in enumerate(lines) if line.startswith("s_branch")) + 1
    assert counted(lines[:begin])["s_waitcnt"] == 1 and begin < 10
    first = next(i for i, line in enumerate(lines) if line.startswith("buffer_load"))
    assert not [line for line in lines[begin:first] if line.startswith("s_waitcnt")]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(1, 1, 4, 4, 1, 4),
        StreamConfig(2, 2, 2, 7),
        *(StreamConfig(4, 1, 2, 8, x_first=order) for order in (1, 2, 3)),
    ],
)
def test_all_of_a_turn_is_in_flight_at_once(arch: str, config: StreamConfig) -> None:
    """Each load is issued before the first is waited for, in the order of x_first; before that x is
    brought to L2."""
    lines = assembly("a8w8_blockscale_stream", arch, config.defines(BF16))
    first = next(i for i, line in enumerate(lines) if "s_waitcnt" in line and "vmcnt" in line)
    issued = [line for line in lines[:first] if line.startswith("buffer_load")]
    w, x = 2 * config.n_tiles * config.steps, 2 * config.m_tiles * config.steps
    scales, streamed = [False] * config.m_tiles, [line.endswith(" nt") for line in issued]
    half, x_loads = w // 2, [False] * x
    orders = {
        0: [True] * w + x_loads + scales,
        1: x_loads + [True] * w + scales,
        2: x_loads + scales + [True] * w,
        3: [True] * half + x_loads + scales + [True] * half,
    }
    touched = [False] if config.x_first else []
    assert streamed == touched + orders[config.x_first]
    assert issued[0].startswith("buffer_load_dword ") == bool(touched)
