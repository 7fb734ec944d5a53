"""The model's constants of high confidence, each by a kernel that runs under the model: within 10 %
of what was published for hardware (README's "timing" says where from)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from support.vgpu.micro import Micro, Micros, chain

TOLERANCE = 0.10


def independent(line: str, count: int, unroll: int = 1) -> str:
    """`line` on registers {d}, {d1}, {d3}: accumulators that do not depend on each other."""
    lines = []
    for i in range(count * unroll):
        d = 8 + 4 * (i % count)
        lines.append("  " + line.format(d=d, d1=d + 1, d3=d + 3))
    return "\n".join(lines)


LANE_0 = "  s_mov_b64 exec, 1\n  v_mov_b32 v10, s4\n  v_mov_b32 v11, s5\n"
CHASE = "  flat_load_dwordx2 v[10:11], v[10:11]\n  s_waitcnt vmcnt(0) lgkmcnt(0)\n" * 8
SCALAR_CHASE = "  s_load_dwordx2 s[4:5], s[4:5], 0x0\n  s_waitcnt lgkmcnt(0)\n" * 8
LDS_CHASE = "  ds_read_b32 v10, v10\n  s_waitcnt lgkmcnt(0)\n" * 8
LDS_ZERO = "  v_mov_b32 v10, 0\n  ds_write_b32 v10, v10\n  s_waitcnt lgkmcnt(0)\n"
# The block's own word: read, add, barrier, write, barrier.
LDS_BLOCK = """
  ds_read_b32 v11, v10
  s_waitcnt lgkmcnt(0)
  v_add_f32 v11, v11, v11
  s_barrier
  ds_write_b32 v10, v11
  s_waitcnt lgkmcnt(0)
  s_barrier
"""
# All blocks read the same footprint of s9 bytes again and again, 16 bytes a lane.
SAME_DATA = """
  global_load_dwordx4 v[12:15], v10, s[4:5]
  global_load_dwordx4 v[16:19], v10, s[4:5] offset:1024
  global_load_dwordx4 v[20:23], v10, s[4:5] offset:2048
  global_load_dwordx4 v[24:27], v10, s[4:5] offset:3072
  v_add_u32 v10, v10, v2
  v_and_b32 v10, v3, v10
  s_waitcnt vmcnt(4)
"""

# A double a lane.
READ = "  global_load_dwordx2 v[12:13], v10, s[4:5]\n"
READ_INDEX = "  s_mul_i32 s9, s2, s9\n  v_add_u32 v10, s9, v0\n  v_lshlrev_b32 v10, 3, v10\n"

KERNELS_942 = {
    "chase": Micro(CHASE, LANE_0),
    "scalar_chase": Micro(SCALAR_CHASE),
    "lds_block": Micro(LDS_BLOCK, "  v_lshlrev_b32 v10, 2, v0\n", lds=1024, vgprs=32),
    "fma_saturated": Micro("  v_fma_f32 v8, v8, v4, v5\n" * 32, vgprs=32),
    "pk_f32": Micro(independent("v_pk_fma_f32 v[{d}:{d1}], v[{d}:{d1}], v[4:5], v[6:7]", 2)),
    "f64": Micro(independent("v_fma_f64 v[{d}:{d1}], v[{d}:{d1}], v[4:5], v[6:7]", 4)),
    "pk_f16": Micro(independent("v_pk_fma_f16 v{d}, v{d}, v4, v5", 4)),
    "mad_u64": Micro(independent("v_mad_u64_u32 v[{d}:{d1}], vcc, v{d}, v4, v[6:7]", 4)),
    "f64_chain": Micro("  v_fma_f64 v[8:9], v[8:9], v[4:5], v[6:7]\n" * 4),
    "atomic": Micro("  global_atomic_add v1, v2, s[4:5]\n", "  v_mov_b32 v2, 1\n"),
    "same_l1": Micro(SAME_DATA, "  v_lshlrev_b32 v10, 4, v0\n  v_mov_b32 v2, 4096\n"
                     "  v_mov_b32 v3, 0x3fff\n", vgprs=32),
    "same_l2": Micro(SAME_DATA, "  v_lshrrev_b32 v10, 6, v0\n  v_lshlrev_b32 v10, 15, v10\n"
                     "  v_and_b32 v4, 63, v0\n  v_lshl_add_u32 v10, v4, 4, v10\n"
                     "  v_mov_b32 v2, 4096\n  v_mov_b32 v3, 0x3ffff\n", vgprs=32),
    "nothing": Micro("  s_nop 0\n"),
    "read": Micro(READ, READ_INDEX, "  s_waitcnt vmcnt(0)\n", 32, 32768),
    "turn": Micro(READ, READ_INDEX + "  v_and_b32 v10, 0x3ffff, v10\n",
                  "  s_waitcnt vmcnt(0)\n", 32, 65536),
    "wrapped": Micro(READ, READ_INDEX + "  v_and_b32 v10, 0x3ffffff, v10\n",
                     "  s_waitcnt vmcnt(0)\n", 32),
}  # fmt: skip
MFMA = "v_mfma_f32_16x16x32_f16 v[{d}:{d3}], v[40:43], v[44:47], v[{d}:{d3}]"
KERNELS_950 = {
    "fma_chain": Micro("  v_fma_f32 v8, v8, v4, v5\n" * 32),
    "mfma_chain": Micro(independent(MFMA, 1, 32)),
    "mfma": Micro(independent(MFMA, 4, 8)),
    "lds_chase": Micro(LDS_CHASE, LDS_ZERO, lds=1024),
}


@pytest.fixture(scope="module")
def gfx942() -> Micros:
    return Micros(KERNELS_942, "gfx942")


@pytest.fixture(scope="module")
def gfx950() -> Micros:
    return Micros(KERNELS_950, "gfx950")


@dataclass(frozen=True)
class Case:
    """A trip of `kernel` takes `per_trip` times the constant."""

    id: str
    part: str
    kernel: str
    clk: float  # published
    per_trip: int
    few: int = 8
    many: int = 24
    how: dict[str, Any] = field(default_factory=dict)
    nodes: int = 0  # of a chain to follow


KB, MB = 1 << 10, 1 << 20
CASES = [
    Case("c01 L1", "MI300X", "chase", 118, 8, 16, 32, nodes=8 * KB // 128),
    Case("c02 L2", "MI300X", "chase", 213, 8, 1024, 1536, nodes=512 * KB // 128),
    Case("c03 MALL", "MI300X", "chase", 455, 8, 64, 192, {"cold": False}, 16 * MB // 128),
    Case("c04 HBM", "MI300X", "chase", 880, 8, 64, 192, {}, 16 * MB // 128),
    Case("c09 K$", "MI300X", "scalar_chase", 68, 8, 16, 32, nodes=4 * KB // 128),
    Case("c10 scalar L2", "MI300X", "scalar_chase", 180, 8, 1024, 1536, nodes=512 * KB // 128),
    Case("c11 scalar MALL", "MI300X", "scalar_chase", 417, 8, 64, 192, {"cold": False},
         16 * MB // 128),
    Case("c12 scalar HBM", "MI300X", "scalar_chase", 690, 8, 64, 192, {}, 16 * MB // 128),
    Case("c17 LDS", "MI350X", "lds_chase", 69, 8),
    Case("c23 dependent FMA", "MI350X", "fma_chain", 8, 32),
    Case("c26 packed f32", "MI300X", "pk_f32", 36.1, 1),
    Case("c27 f64", "MI300X", "f64", 56.1, 1),
    Case("c28 packed f16", "MI300X", "pk_f16", 56.1, 1),
    Case("c30 dependent f64", "MI300A", "f64_chain", 55.5, 1),
    Case("c34 dependent MFMA", "MI350X", "mfma_chain", 18.4, 32),
    Case("c35 MFMA", "MI350X", "mfma", 16.75, 32),
    Case("c60 atomic", "MI300A", "atomic", 18 * 64, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_single_wave(case: Case, request: pytest.FixtureRequest) -> None:
    micros = request.getfixturevalue("gfx950" if case.part == "MI350X" else "gfx942")
    data = chain(case.nodes) if case.nodes else np.zeros(64, np.uint64)
    clk = micros.trip_clk(case.kernel, case.part, case.few, case.many, data=data, **case.how)
    assert clk / case.per_trip == pytest.approx(case.clk, rel=TOLERANCE)


def test_saturated_fma(gfx942: Micros) -> None:
    """c25: 4.16 clk a wave-instruction and SIMD, eight waves on each."""
    clk = gfx942.trip_clk("fma_saturated", "MI300A", 4, 12, blocks=1, threads=1024)
    assert clk / (32 * 4) == pytest.approx(4.16, rel=TOLERANCE)


def test_lds_of_a_full_compute_unit(gfx942: Micros) -> None:
    """c20: 28.4 clk for each block's iteration, eight blocks of four waves on a CU."""
    one_cu = 6 * 38
    clk = gfx942.trip_clk("lds_block", "MI300A", 8, 24, blocks=8 * one_cu, threads=256)
    assert clk / 8 == pytest.approx(28.4, rel=TOLERANCE)


def test_l1_bandwidth(gfx942: Micros) -> None:
    """c41: 60.8 bytes a clk, blocks of 512 lanes that read the same 16 KB."""
    data = np.zeros(8 * KB, np.uint64)
    clk = gfx942.trip_clk("same_l1", "MI300X", 8, 24, data=data, blocks=8, threads=512)
    assert 8 * 4 * 1024 / clk == pytest.approx(60.8, rel=TOLERANCE)


def test_l2_bandwidth(gfx942: Micros) -> None:
    """c42: 43 bytes a clk and CU while all CUs read the same 256 KB."""
    data = np.zeros(64 * KB, np.uint64)
    clk = gfx942.trip_clk("same_l2", "MI300X", 16, 48, data=data, blocks=304, threads=512)
    assert 8 * 4 * 1024 / clk == pytest.approx(43, rel=TOLERANCE)


def stream_tb_s(micros: Micros, kernel: str, cold: bool, threads: int, most: int = 36) -> float:
    """8 bytes a lane."""
    few, many = 304 * 8 * most // 3, 304 * 8 * most
    data = np.zeros(many * threads + 64, np.uint64)  # untouched pages cost the host nothing
    first, second = (
        micros.run(kernel, "MI300X", 1, data=data, blocks=n, threads=threads, cold=cold).us
        for n in (few, many)
    )
    return float((many - few) * threads * 8 / (second - first)) / 1e6


def test_turn_around(gfx942: Micros) -> None:
    """c51: 600 clk from one workgroup of 128 lanes to the next, one at a time on a CU."""
    few, many = 304 * 6, 304 * 14
    data = np.zeros(1 << 16, np.uint64)
    first, second = (
        gfx942.run("turn", "MI300X", 1, data=data, blocks=n, threads=128).clocks
        for n in (few, many)
    )
    assert (second - first) / 8 == pytest.approx(600, rel=TOLERANCE)


@pytest.mark.parametrize("threads, tb_s", [(128, 1.049), (256, 1.959), (512, 3.098), (1024, 4.199)])
def test_memory_bandwidth_by_waves(gfx942: Micros, threads: int, tb_s: float) -> None:
    """c45, c48: what HBM gives to 4, 8, 16 and 32 waves a CU, two blocks."""
    assert stream_tb_s(gfx942, "read", True, threads) == pytest.approx(tb_s, rel=TOLERANCE)


def test_infinity_cache_bandwidth(gfx942: Micros) -> None:
    """c43: 64 MB again and again."""
    assert stream_tb_s(gfx942, "wrapped", False, 1024, 12) == pytest.approx(6.2, rel=TOLERANCE)


@pytest.mark.parametrize("threads, clk", [(64, 8.0), (1024, 1.09 * 16)])
def test_dispatch(gfx942: Micros, threads: int, clk: float) -> None:
    """c49, c50: an XCD starts a workgroup each 8 clk, a wave each 1.09."""
    few, many = 8 * 38 * 2, 8 * 38 * 2 * 12
    first, second = (
        gfx942.run("nothing", "MI300X", 1, blocks=n, threads=threads).clocks for n in (few, many)
    )
    assert (second - first) / ((many - few) / 8) == pytest.approx(clk, rel=TOLERANCE)


@pytest.mark.parametrize(
    "part, kind, us",
    [("MI300A", "event", 4.3), ("MI300X", "event", 5.65), ("MI300A", "graph", 2.23)],
)
def test_floor(gfx942: Micros, part: str, kind: str, us: float) -> None:
    """c52, c53, c56: what an empty launch takes by each kind of timing."""
    assert gfx942.run("nothing", part, 1, kind=kind).us == pytest.approx(us, rel=TOLERANCE)
