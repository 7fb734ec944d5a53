"""Each rule of advice: a kernel that triggers it, and one that does not."""

from __future__ import annotations

import functools
import re
from ctypes import c_int, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rfops
from rfops.cli.timing.micro import LINE, Micro, Micros
from rfops.vgpu import advice
from rfops.vgpu.counting import LaunchRecord
from support.vgpu.hip import Hip, compile_hip

ARCH, PART, CUS = "gfx942", "MI300X", 304
# v10: 16 bytes a lane, one after another, in 64 MB. v11: 4 bytes a lane. v12: a line a lane.
PLACES = """
  s_mul_i32 s9, s2, s9
  v_add_u32 v10, s9, v0
  v_lshlrev_b32 v11, 2, v10
  v_lshlrev_b32 v12, 7, v10
  v_lshlrev_b32 v10, 4, v10
  v_and_b32 v10, 0x3ffffff, v10
  v_and_b32 v12, 0x3ffffff, v12
"""
# Of one eighth as many workgroups: neighbours, which are of eight XCDs, access the same.
SHARED = "  s_lshr_b32 s2, s2, 3\n" + PLACES
WAIT = "  s_waitcnt vmcnt(0)\n"
LDS_READ = "  ds_read_b32 v3, v2\n  s_waitcnt lgkmcnt(0)\n"
SLEEP = "  s_sleep 127\n"
READ = "  global_load_dwordx4 v[20:23], v10, s[4:5]\n  v_add_u32 v10, 0x4000, v10\n"
# ROUND bytes a trip, and back to the start after 32 trips: 40 MB of each XCD, whose part of the
# Infinity Cache has 32. Barriers keep a wave from reading its own again at once.
GROUPS = 2 * CUS
ROUND = GROUPS * 1024 * 16
STREAM = f"  global_load_dwordx4 v[20:23], v10, s[4:5]\n  v_add_u32 v10, {ROUND:#x}, v10\n"
AGAIN = """
  s_sub_u32 s10, s10, 1
  s_cmp_eq_u32 s10, 0
  s_cbranch_scc0 on
  v_mov_b32 v10, v13
on:
  s_barrier
"""
MATRIX = "  v_mfma_f32_32x32x8_f16 a[{0}:{1}], v[2:3], v[4:5], a[{0}:{1}]\n"
FLAG = """
  s_mov_b64 exec, 1
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 wait_flag
  s_sleep 127
  s_sleep 127
  v_mov_b32 v3, 1
  global_store_dword v1, v3, s[4:5] sc0 sc1
  s_branch done
wait_flag:
  global_load_dword v2, v1, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s10, v2
  s_cmp_lt_u32 s10, 1
  s_cbranch_scc1 wait_flag
done:
"""
LATE = """
  v_readfirstlane_b32 s10, v0
  s_cmp_eq_u32 s10, 0
  s_cbranch_scc0 met_{0}
  s_sleep 64
met_{0}:
  s_barrier
"""
KERNELS = {
    "nothing": Micro("  s_nop 0\n"),
    "sleep": Micro(SLEEP),
    "lds_conflicts": Micro(LDS_READ, "  v_lshlrev_b32 v2, 7, v0\n", lds=1 << 15),
    "lds": Micro(LDS_READ, "  v_lshlrev_b32 v2, 2, v0\n", lds=1 << 15),
    "scattered": Micro("  global_load_dword v2, v12, s[4:5]\n" + WAIT, PLACES),
    "dwords": Micro("  global_load_dword v2, v11, s[4:5]\n" * 16 + WAIT, PLACES),
    "dword_x4": Micro("  global_load_dwordx4 v[20:23], v10, s[4:5]\n" * 16 + WAIT, PLACES),
    "one_load": Micro(READ + WAIT, PLACES),
    "many_vgprs": Micro(READ + WAIT, PLACES, vgprs=256),
    "much_lds": Micro(READ + WAIT, PLACES, lds=1 << 15),
    "late_wave": Micro(LATE.format("late")),
    "matrix_chain": Micro(MATRIX.format(0, 15), "", vgprs=128),
    "matrix": Micro("".join(MATRIX.format(i, i + 15) for i in (0, 16, 32, 48)), vgprs=128),
    "vector_chain": Micro("  v_add_f32 v2, v2, v3\n" * 16),
    "vector": Micro("".join(f"  v_fma_f32 v{i}, v{i}, v2, v3\n" for i in range(10, 42))),
    "long_code": Micro("  .rept 24000\n  v_mov_b32 v2, v3\n  .endr\n"),
    "own_lines": Micro("  global_atomic_add_f32 v11, v1, s[4:5]\n", PLACES, WAIT),
    "shared_lines": Micro("  global_atomic_add_f32 v11, v1, s[4:5]\n", SHARED, WAIT),
    "stream": Micro(STREAM, PLACES, WAIT),
    "stream_shared": Micro(STREAM, SHARED, WAIT),
    "stream_again": Micro(
        STREAM + WAIT + AGAIN, PLACES + "  v_mov_b32 v13, v10\n  s_mov_b32 s10, 32\n"
    ),
    "flag": Micro(FLAG),
}


@dataclass(frozen=True)
class Case:
    kernel: str
    blocks: int = CUS
    threads: int = 64
    trips: int = 16
    distinct: int = 0  # bytes read, where counters of the sample alone would not do


# By rule: a launch of which it speaks, and one of which it does not.
CASES = {
    "launch bound": (Case("nothing", trips=1), Case("sleep")),
    "few workgroups": (Case("sleep", blocks=64), Case("sleep")),
    "last round": (
        Case("sleep", blocks=2 * CUS + 100, threads=1024, trips=2),
        Case("sleep", blocks=2 * CUS, threads=1024, trips=2),
    ),
    "occupancy by VGPRs": (Case("many_vgprs", blocks=8 * CUS), Case("one_load", blocks=8 * CUS)),
    "occupancy by LDS": (Case("much_lds", blocks=2 * CUS), Case("one_load", blocks=8 * CUS)),
    "LDS bank conflicts": (Case("lds_conflicts"), Case("lds")),
    "scattered accesses": (Case("scattered"), Case("dwords")),
    "narrow accesses": (Case("dwords", threads=1024), Case("dword_x4", threads=1024)),
    "memory latency": (Case("one_load"), Case("vector")),
    "repeated HBM reads": (
        Case("stream_again", GROUPS, 1024, trips=64, distinct=32 * ROUND),
        Case("stream_again", GROUPS, 1024, trips=8, distinct=8 * ROUND),
    ),
    "lines shared by XCDs": (
        Case("stream_shared", GROUPS, 1024, trips=8),
        Case("stream", GROUPS, 1024, trips=8),
    ),
    "atomics of several XCDs": (
        Case("shared_lines", blocks=8 * CUS, threads=256),
        Case("own_lines", blocks=8 * CUS, threads=256),
    ),
    "HBM roof": (
        Case("stream", GROUPS, 1024, trips=8),
        Case("one_load"),
    ),
    "barriers": (Case("late_wave", threads=256), Case("lds", threads=256)),
    "dependent matrix instructions": (Case("matrix_chain"), Case("matrix", threads=256)),
    "dependent instructions": (Case("vector_chain"), Case("vector", threads=1024)),
    "instruction cache": (Case("long_code", trips=3), Case("sleep")),
    "vector unit": (Case("vector", threads=1024, trips=64), Case("sleep")),
    "matrix roof": (Case("matrix", threads=1024, trips=64), Case("matrix_chain")),
    "waits for other workgroups": (Case("flag", blocks=64, trips=1), Case("sleep", blocks=64)),
}


@functools.cache
def micros() -> Micros:
    return Micros(KERNELS, ARCH)


@functools.cache
def data() -> np.ndarray:
    return np.zeros(40 * ROUND // 8 + LINE, np.uint64)  # untouched pages cost the host nothing


@functools.cache
def launched(case: Case) -> LaunchRecord:
    data()[:64] = 0
    with rfops.vgpu.profile() as profile:
        micros().run(case.kernel, PART, case.trips, data(), case.blocks, case.threads, detail=True)
    (record,) = profile.launches
    if not case.distinct:
        return record
    lines = {**record.figures["global_read"], "lines_64B": case.distinct // 64}
    return LaunchRecord({**record.figures, "global_read": lines}, record.time)


def rules(record: LaunchRecord) -> dict[str, advice.Advice]:
    return {item.rule: item for item in advice.advise(record.time, record.figures)}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule(rule: str) -> None:
    wanted, unwanted = (launched(case) for case in CASES[rule])
    found = rules(wanted)
    shown = wanted.time.stalls, wanted.time.busy
    assert rule in found, f"only {[*found]}; {shown}"
    item = found[rule]
    assert re.search(r"\d", item.text) and 0 < item.weight <= 1
    offsets = {row["offset"] for row in wanted.time.pcs}
    assert item.offset is None or item.offset in offsets
    assert rule not in rules(unwanted), rules(unwanted)[rule].text
    assert f"{rule}: " in "\n".join(advice.lines(wanted))


SPILLS = """
extern "C" __attribute__((global)) void spills(float* p, int n) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = p[i];
  for (int i = 0; i < n; ++i) kept[(i * 7) & 63] += p[i];
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += kept[i];
  p[0] = sum;
}
extern "C" __attribute__((global)) void keeps(float* p, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += p[i];
  p[0] = sum;
}
"""


def test_spills(vgpu_path: Path, tmp_path: Path) -> None:
    """A private array that is indexed by a variable lives in scratch memory."""
    hip = Hip(vgpu_path)
    hip.select(ARCH)
    module = hip.load(compile_hip(SPILLS, ARCH, tmp_path))
    memory = np.zeros(256, np.float32)
    found = {}
    for name in ("spills", "keeps"):
        with rfops.vgpu.timing(PART), rfops.vgpu.profile() as profile:
            pointer = c_void_p(memory.ctypes.data)
            hip.launch(hip.function(module, name), pointer, c_int(100), block=(64,))
        (record,) = profile.launches
        found[name] = rules(record)
    assert "B of scratch a lane" in found["spills"]["spills"].text
    assert "spills" not in found["keeps"]


def test_every_rule_has_kernels() -> None:
    assert len(CASES) + 1 == len(advice.RULES)


def test_the_heaviest_comes_first() -> None:
    weights = [item.weight for item in advice.advise(launched(CASES["barriers"][0]).time)]
    assert weights == sorted(weights, reverse=True)
