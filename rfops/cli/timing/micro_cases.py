"""`rfops bench timing --micro`: the model's constants of high confidence, each by a kernel that
runs under the model, beside what was published for hardware. The ids are rows of
csrc/vgpu/timing/constants.csv."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfops.cli.timing.micro import Micro, Micros, chain, zeros
from rfops.jit import settings
from rfops.jit.arch import PART_CUS

TOLERANCE = 0.10
KB, MB = 1 << 10, 1 << 20


def independent(line: str, count: int, unroll: int = 1) -> str:
    """`line` on registers {d}, {d1}, {d3}: accumulators that do not depend on each other."""
    lines = []
    for i in range(count * unroll):
        d = 8 + 4 * (i % count)
        lines.append("  " + line.format(d=d, d1=d + 1, d3=d + 3))
    return "\n".join(lines)


LANE_0 = "  s_mov_b64 exec, 1\n  v_mov_b32 v10, s4\n  v_mov_b32 v11, s5\n"
CHASE = "  flat_load_dwordx2 v[10:11], v[10:11]\n  s_waitcnt vmcnt(0) lgkmcnt(0)\n" * 8
# Each lane follows int32 indices of its own.
LANES_CHASE = """
  v_lshlrev_b32 v10, 2, v10
  global_load_dword v10, v10, s[4:5]
  s_waitcnt vmcnt(0)
"""
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

# Waves 32 KB apart.
SAME_APART = """
  v_lshrrev_b32 v10, 6, v0
  v_lshlrev_b32 v10, 15, v10
  v_and_b32 v4, 63, v0
  v_lshl_add_u32 v10, v4, 4, v10
  v_mov_b32 v2, 4096
"""

# A double a lane.
READ = "  global_load_dwordx2 v[12:13], v10, s[4:5]\n"
STORE = "  global_store_dwordx2 v10, v[12:13], s[6:7]\n"
# Of a second array, as far behind the result as that is behind the first.
SECOND_INDEX = "  s_sub_u32 s10, s6, s4\n  v_add_u32 v14, s10, v10\n"
READ_TOO = "  global_load_dwordx2 v[16:17], v14, s[6:7]\n"
WRITE = "  s_waitcnt vmcnt(0)\n" + STORE
READ_WIDE = "  global_load_dwordx4 v[12:15], v10, s[4:5]\n"
READ_INDEX = "  s_mul_i32 s9, s2, s9\n  v_add_u32 v10, s9, v0\n  v_lshlrev_b32 v10, 3, v10\n"
# What a wave of a first launch waits for its scalar loads, in c15's counters: 4609 clk.
DELAY = "  s_sleep 72\n"

# a=a*b+c, b=b*a+c, a=a*c+b, b=b*c+a, c a literal: instructions of 8 bytes.
FMA_LOOP = """
  v_fmaak_f32 v8, v8, v9, 0x3f8147ae
  v_fmaak_f32 v9, v9, v8, 0x3f8147ae
  v_fmamk_f32 v8, v8, 0x3f8147ae, v9
  v_fmamk_f32 v9, v9, 0x3f8147ae, v8
"""
LDS_FOUR = """
  ds_read_b32 v10, v10
  ds_read_b32 v11, v11
  ds_read_b32 v12, v12
  ds_read_b32 v13, v13
  s_waitcnt lgkmcnt(0)
"""

KERNELS_942 = {
    "chase": Micro(CHASE, LANE_0),
    "lanes_chase": Micro(LANES_CHASE, "  v_mov_b32 v10, v0\n", vgprs=32),
    "scalar_chase": Micro(SCALAR_CHASE),
    "lds_block": Micro(LDS_BLOCK, "  v_lshlrev_b32 v10, 2, v0\n", lds=1024, vgprs=32),
    "fma_saturated": Micro("  v_fma_f32 v8, v8, v4, v5\n" * 32, vgprs=32),
    "pk_f32": Micro(independent("v_pk_fma_f32 v[{d}:{d1}], v[{d}:{d1}], v[4:5], v[6:7]", 2)),
    "f64": Micro(independent("v_fma_f64 v[{d}:{d1}], v[{d}:{d1}], v[4:5], v[6:7]", 4)),
    "pk_f16": Micro(independent("v_pk_fma_f16 v{d}, v{d}, v4, v5", 4)),
    "mad_u64": Micro(independent("v_mad_u64_u32 v[{d}:{d1}], vcc, v{d}, v4, v[6:7]", 4)),
    "fma_loop": Micro(FMA_LOOP),
    "vcopy": Micro(READ + WRITE, READ_INDEX, vgprs=32),
    "late_vcopy": Micro(READ + WRITE, READ_INDEX + DELAY, vgprs=32),
    "f64_chain": Micro("  v_fma_f64 v[8:9], v[8:9], v[4:5], v[6:7]\n" * 4),
    "atomic": Micro("  global_atomic_add v1, v2, s[4:5]\n", "  v_mov_b32 v2, 1\n"),
    "same_l1": Micro(
        SAME_DATA,
        "  v_lshlrev_b32 v10, 4, v0\n  v_mov_b32 v2, 4096\n  v_mov_b32 v3, 0x3fff\n",
        vgprs=32,
    ),
    "same_l2": Micro(SAME_DATA, SAME_APART + "  v_mov_b32 v3, 0x3ffff\n", vgprs=32),
    "same_l2_1m": Micro(SAME_DATA, SAME_APART + "  v_mov_b32 v3, 0xfffff\n", vgprs=32),
    "nothing": Micro("  s_nop 0\n"),
    "read": Micro(READ, READ_INDEX, "  s_waitcnt vmcnt(0)\n", 32, 32768),
    "write": Micro(STORE, READ_INDEX, vgprs=32, lds=32768),
    "scale": Micro(READ + WRITE, READ_INDEX, vgprs=32, lds=32768),
    "triad": Micro(READ + READ_TOO + WRITE, READ_INDEX + SECOND_INDEX, vgprs=32, lds=32768),
    "turn": Micro(
        READ, READ_INDEX + "  v_and_b32 v10, 0x3ffff, v10\n", "  s_waitcnt vmcnt(0)\n", 32, 65536
    ),
    "wrapped": Micro(
        READ, READ_INDEX + "  v_and_b32 v10, 0x3ffffff, v10\n", "  s_waitcnt vmcnt(0)\n", 32
    ),
}
MFMA = "v_mfma_f32_16x16x32_f16 v[{d}:{d3}], v[40:43], v[44:47], v[{d}:{d3}]"
# By the published loops of MFMA: the shape of each, its registers of an operand, products a lane.
LOOPS = {
    "f16": ("f32_32x32x16_f16", 4, 256),
    "bf16": ("f32_32x32x16_bf16", 4, 256),
    "i8": ("i32_32x32x32_i8", 4, 512),
    "f16_942": ("f32_32x32x8_f16", 2, 128),
    "bf16_942": ("f32_32x32x8_bf16", 2, 128),
    "i8_942": ("i32_32x32x16_i8", 2, 256),
}


def mfma_loop(shape: str, registers: int) -> Micro:
    """Four accumulators in turn."""
    operands = f"v[4:{3 + registers}], v[8:{7 + registers}]"
    lines = []
    for d in (16, 32, 48, 64):
        lines.append(f"  v_mfma_{shape} v[{d}:{d + 15}], {operands}, v[{d}:{d + 15}]")
    return Micro("\n".join(lines), vgprs=128)


KERNELS_950 = {
    "fma_chain": Micro("  v_fma_f32 v8, v8, v4, v5\n" * 32),
    "mfma_chain": Micro(independent(MFMA, 1, 32)),
    "mfma": Micro(independent(MFMA, 4, 8)),
    "lds_chase": Micro(LDS_CHASE, LDS_ZERO, lds=1024),
    "lds_four": Micro(
        LDS_FOUR * 8,
        f"{LDS_ZERO}  v_mov_b32 v11, 0\n  v_mov_b32 v12, 0\n  v_mov_b32 v13, 0\n",
        lds=1024,
    ),
    "vcopy": Micro(READ + WRITE, READ_INDEX, vgprs=32),
    "read_wide": Micro(
        READ_WIDE, READ_INDEX + "  v_lshlrev_b32 v10, 1, v10\n", "  s_waitcnt vmcnt(0)\n", 32
    ),
    **{name: mfma_loop(shape, registers) for name, (shape, registers, _) in LOOPS.items()},
}
MICROS: Mapping[str, Mapping[str, Micro]] = {"gfx942": KERNELS_942, "gfx950": KERNELS_950}


@dataclass(frozen=True)
class Case:
    """What was published, and how it is measured here."""

    id: str
    what: str
    part: str
    published: float
    unit: str
    measure: Callable[[Micros, str], float]  # on a part
    tolerance: float = TOLERANCE
    note: str = ""  # why that is not enough

    @property
    def arch(self) -> str:
        """The architecture of the case's GPU model."""
        return "gfx950" if self.part in ("MI350X", "MI355X") else "gfx942"

    @property
    def name(self) -> str:
        """Id, measured quantity and GPU model, as reports name the case."""
        return f"{self.id} {self.what} {self.part}"


def trip(
    kernel: str,
    per_trip: float = 1,
    few: int = 8,
    many: int = 24,
    nodes: int = 0,
    constants: str = "",
    **options: Any,
) -> Callable[[Micros, str], float]:
    """clk of a trip of the kernel's loop, a `per_trip`-th of it; `nodes` of a chain to follow,
    constants of the model that differ."""

    def measure(micros: Micros, part: str) -> float:
        data = chain(nodes) if nodes else zeros(64)
        with settings.put("RFOPS_VGPU_TIMING_SET", constants):
            return micros.trip_clk(kernel, part, few, many, **{"data": data, **options}) / per_trip

    return measure


def footprint(kb: int) -> Callable[[Micros, str], float]:
    """clk of a hop when all has been followed once."""
    return trip("chase", 8, kb, 2 * kb, kb * KB // 128, cold=False)


def lanes_chase(micros: Micros, part: str, kb: int) -> float:
    """clk of a hop of 64 lanes, in a random cycle of int32 indices."""
    data = zeros(kb * KB // 8)
    order = np.random.default_rng(0).permutation(kb * KB // 4).astype(np.int32)
    data.view(np.int32)[order] = np.roll(order, -1)
    return micros.trip_clk("lanes_chase", part, 512, 1536, data=data, cold=False)


def bytes_a_clk(
    kernel: str, footprint: int, few: int, many: int, blocks: int
) -> Callable[[Micros, str], float]:
    """Of blocks of 512 lanes that read the same data, four times 16 bytes a lane and trip."""

    def measure(micros: Micros, part: str) -> float:
        data = zeros(footprint // 8)
        clk = micros.trip_clk(kernel, part, few, many, data=data, blocks=blocks, threads=512)
        return 8 * 4 * 1024 / clk

    return measure


def stream_tb_s(
    kernel: str, cold: bool, threads: int, waves_per_cu: int = 36, lane_bytes: int = 8
) -> Callable[[Micros, str], float]:
    """Of a lane that reads (and writes) so many bytes, by two lengths of the stream."""

    def measure(micros: Micros, part: str) -> float:
        few, many = PART_CUS[part] * 8 * waves_per_cu // 3, PART_CUS[part] * 8 * waves_per_cu
        data = zeros(3 * many * threads)
        few_us, many_us = (
            micros.run(kernel, part, 1, data, n, threads, cold, stride=8 * many * threads).us
            for n in (few, many)
        )
        return float((many - few) * threads * lane_bytes / (many_us - few_us)) / 1e6

    return measure


def mfma_p_s(kernel: str) -> Callable[[Micros, str], float]:
    """10^15 operations a second of two workgroups of four waves a CU."""

    def measure(micros: Micros, part: str) -> float:
        blocks, few, many = 2 * PART_CUS[part], 16, 64
        few_us, many_us = (
            micros.run(kernel, part, n, blocks=blocks, threads=256).us for n in (few, many)
        )
        operations = 2 * LOOPS[kernel][2] * 4 * (many - few) * blocks * 256
        return float(operations / (many_us - few_us)) / 1e9

    return measure


def clk_a_group(
    kernel: str, few: int, many: int, group_size: int, threads: int
) -> Callable[[Micros, str], float]:
    """clk of one more of the workgroups that a `group_size`-th of the chip has."""

    def measure(micros: Micros, part: str) -> float:
        data = zeros(1 << 16)
        few_us, many_us = (
            micros.run(kernel, part, 1, data=data, blocks=n, threads=threads).clocks
            for n in (few, many)
        )
        return float(many_us - few_us) / ((many - few) / group_size)

    return measure


def floor_us(kind: str) -> Callable[[Micros, str], float]:
    """Return a measure of a launch that does nothing, in us, timed as `kind` says."""
    return lambda micros, part: float(micros.run("nothing", part, 1, kind=kind).us)


def vcopy_latency(micros: Micros, part: str) -> float:
    """A double a lane, 8 MB to 8 MB, issue to done, loads and stores."""
    lanes = 1 << 20
    data = zeros(2 * lanes)
    launch = micros.run("late_vcopy", part, 1, data, lanes // 256, 256, stride=8 * lanes)
    return float(launch.vmem_latency)


DIP = "a dip of what was measured: 3.49 TB/s by 15 waves, 3.70 by 17"
Points = tuple[tuple[int, float, float, str], ...]
WRITES: tuple[tuple[str, str, int, Points], ...] = (
    (
        "written",
        "write",
        8,
        (
            (2, 1.03, TOLERANCE, ""),
            (4, 1.948, TOLERANCE, ""),
            (8, 3.377, TOLERANCE, ""),
            (16, 4.319, TOLERANCE, ""),
            (32, 4.801, TOLERANCE, ""),
        ),
    ),
    (
        "copied",
        "scale",
        16,
        (
            (2, 0.855, TOLERANCE, ""),
            (4, 1.534, TOLERANCE, ""),
            (8, 2.729, TOLERANCE, ""),
            (16, 3.427, 0.18, DIP),
            (32, 3.997, TOLERANCE, ""),
        ),
    ),
)
POWER = "the model's clock is that of GEMMs; operands that do not change seem to take less power"
RATES = (
    ("c70", "f16", 1.8),
    ("c70", "bf16", 2.0),
    ("c70", "i8", 4.2),
    ("c71", "f16_942", 1.02),
    ("c71", "bf16_942", 1.125),
    ("c71", "i8_942", 2.19),
)
SMALL_L2 = "l2_bytes=32768"  # so that the part of a chain that is followed does not fit
_FULL: dict[str, Any] = {"blocks": 1, "threads": 1024}
_ONE_CU: dict[str, Any] = {"blocks": 8 * 6 * 38, "threads": 256}
CASES = [
    Case("c01", "L1, load to use", "MI300X", 118, "clk", trip("chase", 8, 16, 32, 8 * KB // 128)),
    Case(
        "c02",
        "L2, load to use",
        "MI300X",
        213,
        "clk",
        trip("chase", 8, 1024, 1536, 512 * KB // 128),
    ),
    Case(
        "c03",
        "Infinity Cache, load to use",
        "MI300X",
        455,
        "clk",
        trip("chase", 8, 64, 192, 16 * MB // 128, SMALL_L2, cold=False),
    ),
    Case(
        "c04", "HBM, load to use", "MI300X", 880, "clk", trip("chase", 8, 64, 192, 16 * MB // 128)
    ),
    # The curve over the footprint, at the edges of the caches.
    *(
        Case("curve", f"load to use, a footprint of {kb} KB", "MI300X", clk, "clk", footprint(kb))
        for kb, clk in (
            (22, 119.5),
            (38, 213),
            (1102, 213.5),
            (2333, 212.6),
            (3387, 213.6),
            (4914, 455.5),
        )
    ),
    *(
        Case(
            id,
            f"64 lanes on their own ways through {kb} KB",
            "MI300A",
            clk,
            "clk",
            functools.partial(lanes_chase, kb=kb),
            tolerance,
            note,
        )
        for id, kb, clk, tolerance, note in (
            ("c06", 4, 159, TOLERANCE, ""),
            ("c07", 1024, 290, TOLERANCE, ""),
            ("c08", 16384, 639, 0.18, "address translation is not modelled"),
        )
    ),
    Case(
        "c09",
        "scalar cache, load to use",
        "MI300X",
        68,
        "clk",
        trip("scalar_chase", 8, 16, 32, 4 * KB // 128),
    ),
    Case(
        "c10",
        "L2, scalar load to use",
        "MI300X",
        180,
        "clk",
        trip("scalar_chase", 8, 1024, 1536, 512 * KB // 128),
    ),
    Case(
        "c11",
        "Infinity Cache, scalar load to use",
        "MI300X",
        417,
        "clk",
        trip("scalar_chase", 8, 64, 192, 16 * MB // 128, SMALL_L2, cold=False),
    ),
    Case(
        "c12",
        "HBM, scalar load to use",
        "MI300X",
        690,
        "clk",
        trip("scalar_chase", 8, 64, 192, 16 * MB // 128),
    ),
    Case(
        "c15",
        "vector memory under load, a copy of 8 MB",
        "MI300X",
        942,
        "clk",
        vcopy_latency,
        0.40,
        "a first launch, 631 to 1294: its waves come apart by scalar loads of 4609 clk",
    ),
    Case("c05", "L1, load to use", "MI300A", 116, "clk", trip("chase", 8, 16, 32, 8 * KB // 128)),
    Case("c17", "LDS, dependent reads", "MI350X", 69, "clk", trip("lds_chase", 8)),
    Case(
        "c17",
        "LDS, four independent reads, each",
        "MI350X",
        28.4,
        "clk",
        trip("lds_four", 32),
        0.30,
        "a compiled loop of four waves, whose other instructions are not published",
    ),
    Case(
        "c20",
        "LDS, iteration of a block, full CU",
        "MI300A",
        28.4,
        "clk",
        trip("lds_block", 8, **_ONE_CU),
    ),
    Case("c23", "dependent v_fma_f32", "MI350X", 8, "clk", trip("fma_chain", 32)),
    Case(
        "c24",
        "loop of 4 dependent v_fmaak_f32 and 3 scalar",
        "MI300A",
        44.6,
        "clk",
        trip("fma_loop"),
    ),
    Case(
        "c25",
        "v_fma_f32, eight waves a SIMD",
        "MI300A",
        4.16,
        "clk",
        trip("fma_saturated", 32 * 4, 4, 12, **_FULL),
    ),
    Case("c26", "loop of 2 v_pk_fma_f32 and 3 scalar", "MI300X", 36.1, "clk", trip("pk_f32")),
    Case("c27", "loop of 4 v_fma_f64 and 3 scalar", "MI300X", 56.1, "clk", trip("f64")),
    Case("c28", "loop of 4 v_pk_fma_f16 and 3 scalar", "MI300X", 56.1, "clk", trip("pk_f16")),
    Case("c29", "loop of 4 v_mad_u64_u32 and 3 scalar", "MI300X", 68.2, "clk", trip("mad_u64")),
    Case(
        "c30",
        "loop of 4 dependent v_fma_f64 and 3 scalar",
        "MI300A",
        55.5,
        "clk",
        trip("f64_chain"),
    ),
    Case("c34", "dependent MFMA 16x16x32 f16", "MI350X", 18.4, "clk", trip("mfma_chain", 32)),
    Case("c35", "independent MFMA 16x16x32 f16", "MI350X", 16.75, "clk", trip("mfma", 32)),
    Case(
        "c41",
        "L1, the same 16 KB",
        "MI300X",
        60.8,
        "B/clk and CU",
        bytes_a_clk("same_l1", 64 * KB, 8, 24, 8),
    ),
    Case(
        "c42",
        "L2, the same 256 KB by all CUs",
        "MI300X",
        43,
        "B/clk and CU",
        bytes_a_clk("same_l2", 512 * KB, 16, 48, 304),
    ),
    Case(
        "c42",
        "L2, the same 1 MB by all CUs",
        "MI300X",
        42.6,
        "B/clk and CU",
        bytes_a_clk("same_l2_1m", 2 * MB, 208, 272, 304),
    ),
    Case(
        "c43",
        "Infinity Cache, read",
        "MI300X",
        6.2,
        "TB/s",
        stream_tb_s("wrapped", False, 1024, 12),
    ),
    Case(
        "c44",
        "Infinity Cache, read",
        "MI300A",
        4.25,
        "TB/s",
        stream_tb_s("wrapped", False, 1024, 12),
    ),
    *(
        Case(
            "c48" if waves < 32 else "c45",
            f"HBM, read by {waves} waves a CU",
            "MI300X",
            tb_s,
            "TB/s",
            stream_tb_s("read", True, 32 * waves),
        )
        for waves, tb_s in ((2, 0.554), (4, 1.049), (8, 1.959), (16, 3.098), (32, 4.199))
    ),
    Case("c46", "HBM, read", "MI300A", 3.0, "TB/s", stream_tb_s("read", True, 1024)),
    Case(
        "c46",
        "HBM, written by 32 waves a CU",
        "MI300A",
        3.069,
        "TB/s",
        stream_tb_s("write", True, 1024),
        0.13,
        "other tables have streams of 3.0 to 3.8 TB/s",
    ),
    Case(
        "c46",
        "HBM, copied by 32 waves a CU",
        "MI300A",
        2.956,
        "TB/s",
        stream_tb_s("scale", True, 1024, 36, 16),
    ),
    Case(
        "c45",
        "HBM, triad by 32 waves a CU",
        "MI300X",
        3.866,
        "TB/s",
        stream_tb_s("triad", True, 1024, 36, 24),
    ),
    Case(
        "curve",
        "HBM, a copy by 32 waves a CU",
        "MI300X",
        4.0,
        "TB/s",
        stream_tb_s("vcopy", True, 256, 36, 16),
    ),
    *(
        Case(
            "c45",
            f"HBM, {what} by {waves} waves a CU",
            "MI300X",
            tb_s,
            "TB/s",
            stream_tb_s(kernel, True, 32 * waves, 36, lane_bytes),
            tolerance,
            note,
        )
        for what, kernel, lane_bytes, points in WRITES
        for waves, tb_s, tolerance, note in points
    ),
    Case(
        "c49",
        "dispatch, a workgroup an XCD",
        "MI300X",
        8.0,
        "clk",
        clk_a_group("nothing", 8 * 38 * 2, 8 * 38 * 24, 8, 64),
    ),
    Case(
        "c50",
        "dispatch, a wave an XCD, of 16",
        "MI300X",
        1.09 * 16,
        "clk",
        clk_a_group("nothing", 8 * 38 * 2, 8 * 38 * 24, 8, 1024),
    ),
    Case(
        "c55",
        "dispatch, a workgroup an XCD, of 4 waves",
        "MI300X",
        8.06,
        "clk",
        clk_a_group("nothing", 8 * 38 * 2, 8 * 38 * 24, 8, 256),
    ),
    Case(
        "curve",
        "dispatch, a workgroup an XCD, of a copy",
        "MI300A",
        6.27,
        "clk",
        clk_a_group("nothing", 6 * 38 * 2, 6 * 38 * 24, 6, 256),
    ),
    Case(
        "c51",
        "from a workgroup to the next, one a CU",
        "MI300X",
        600,
        "clk",
        clk_a_group("turn", 304 * 6, 304 * 14, 304, 128),
    ),
    Case("c52", "an empty launch, by events", "MI300A", 4.3, "us", floor_us("event")),
    Case("c53", "an empty launch, by events", "MI300X", 5.65, "us", floor_us("event")),
    Case("c56", "an empty launch of a row", "MI300A", 2.23, "us", floor_us("graph")),
    Case("c60", "atomics of a wave on one address", "MI300A", 18 * 64, "clk", trip("atomic")),
    Case(
        "c67",
        "HBM, read, 16 bytes a lane",
        "MI350X",
        6.91,
        "TB/s",
        stream_tb_s("read_wide", True, 1024, 36, 16),
    ),
    *(
        Case(
            id,
            f"MFMA in a loop, {LOOPS[name][0][4:]}",
            "MI350X",
            rate,
            "P/s",
            mfma_p_s(name),
            0.27,
            POWER,
        )
        for id, name, rate in RATES
    ),
    Case(
        "c68", "HBM, a plain copy", "MI350X", 5.6, "TB/s", stream_tb_s("vcopy", True, 256, 36, 16)
    ),
]


@functools.cache
def micros(arch: str) -> Micros:
    """Assembled on first use. Raises ToolchainNotFound, BuildError."""
    return Micros(MICROS[arch], arch)


def measured(case: Case) -> float:
    """Return the figure that timing mode gives for the case, in the case's unit."""
    return case.measure(micros(case.arch), case.part)


def records() -> Iterator[dict[str, Any]]:
    """Yield one record per case: published and predicted figure, unit, note."""
    for case in CASES:
        yield {
            "id": case.id,
            "what": case.what,
            "part": case.part,
            "published": case.published,
            "unit": case.unit,
            "predicted": measured(case),
            "note": case.note,
        }


HEAD = (
    f"{'':5} {'microkernel':47} {'part':6} {'publ.':>8} {'predicted':>9} {'unit':12} {'error':>6}"
)


def line(record: Mapping[str, Any]) -> str:
    """Return a microkernel's record as a line of text; more than 10 % off is marked."""
    error = record["predicted"] / record["published"] - 1
    mark = "" if abs(error) <= TOLERANCE else f"  beyond 10 %: {record['note']}"
    return (
        f"{record['id']:5} {record['what']:47} {record['part']:6} {record['published']:8.4g} "
        f"{record['predicted']:9.4g} {record['unit']:12} {error:+6.1%}{mark}"
    )


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """Return how many records are within the tolerance, as one line."""
    num_inside = sum(abs(r["predicted"] / r["published"] - 1) <= TOLERANCE for r in records)
    return f"{num_inside} of {len(records)} microkernels within {TOLERANCE:.0%}"
