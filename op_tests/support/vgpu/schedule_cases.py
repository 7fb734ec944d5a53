"""Kernels whose result depends on how waves really run: in step, and with loads that take time.

A body starts as those of check_cases.py do (s[4:5]: output, s[6:7]: input, v0: number in the
block, v1: 4 * v0, s16: the wave); v8 and v9 are 7, v20 and v21 are what is stored, 256 dwords
each. The input's dword i is 1000 + i, its dword 1024 + i is 5000 + i; LDS's dword i holds 3000 + i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.vgpu.asm import source_of
from support.vgpu.check_cases import HEAD

START = """
  v_add_u32 v2, 0xbb8, v0
  ds_write_b32 v1, v2
  v_mov_b32 v8, 7
  v_mov_b32 v9, 7
  v_mov_b32 v20, 7
  v_mov_b32 v21, 7
  s_mov_b32 s20, 7
  s_waitcnt lgkmcnt(0)
  s_barrier
"""
END = """
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_mov_b64 exec, -1
  global_store_dword v1, v20, s[4:5]
  global_store_dword v1, v21, s[4:5] offset:1024
  s_endpgm
"""
LANES = np.arange(256, dtype=np.uint32)
OLD = np.full(256, 7, np.uint32)
LDS, INPUT, FAR = 3000 + LANES, 1000 + LANES, 5000 + LANES
INPUT_WORDS = 2048


@dataclass(frozen=True)
class Case:
    body: str
    expected: tuple[np.ndarray, np.ndarray]
    waves: int = 4


LOADS = {  # the load of v8, its wait, what it brings
    "lds": ("ds_read_b32 v8, v1", "lgkmcnt(0)", LDS),
    "global": ("global_load_dword v8, v1, s[6:7]", "vmcnt(0)", INPUT),
    "flat": (
        "v_mov_b32 v3, s7\nv_add_co_u32 v2, vcc, s6, v1\nv_addc_co_u32 v3, vcc, v3, 0, vcc\n"
        "flat_load_dword v8, v[2:3]",
        "vmcnt(0) lgkmcnt(0)",
        INPUT,
    ),
    "flat_lds": (
        "s_mov_b64 s[22:23], src_shared_base\nv_mov_b32 v3, s23\nv_mov_b32 v2, v1\n"
        "flat_load_dword v8, v[2:3]",
        "vmcnt(0) lgkmcnt(0)",
        LDS,
    ),
    "d16": ("global_load_short_d16 v8, v1, s[6:7]", "vmcnt(0)", INPUT),
    "permute": ("ds_bpermute_b32 v8, v1, v0", "lgkmcnt(0)", LANES),
    "agpr": (
        "v_accvgpr_write_b32 a3, 7\ns_nop 1\nglobal_load_dword a3, v1, s[6:7]\n"
        "v_accvgpr_read_b32 v8, a3",
        "vmcnt(0)\nv_accvgpr_read_b32 v9, a3\nv_mov_b32 v20, v8\nv_mov_b32 v8, v9",
        INPUT,
    ),
}


def before_and_after(load: str, wait: str, brings: np.ndarray) -> Case:
    """v20: the register right behind the load, v21: behind the wait."""
    body = f"{load}\nv_mov_b32 v20, v8\ns_waitcnt {wait}\nv_mov_b32 v21, v8"
    return Case(body, (OLD, brings))


DMA = "s_lshl_b32 s24, s16, 8\ns_mov_b32 m0, s24\ns_nop 0\nglobal_load_lds_dword v1, s[6:7]\n"
HAND_OVER = (
    "global_load_dword v8, v1, s[6:7]\ns_waitcnt vmcnt(0)\nds_write_b32 v1, v8\n"
    + "s_nop 0\n" * 24
    + "v_xor_b32 v2, 0x100, v1\nds_read_b32 v20, v2\n"
)

# Right on hardware though no wait or barrier says so.
RELYING = {f"late_{name}": before_and_after(*row) for name, row in LOADS.items()} | {
    "hand_over": Case(HAND_OVER, (INPUT[LANES ^ 64], OLD)),
    "late_scalar": Case(
        "s_load_dword s20, s[6:7], 0x8\ns_mov_b32 s21, s20\ns_waitcnt lgkmcnt(0)\n"
        "v_mov_b32 v20, s21\nv_mov_b32 v21, s20",
        (OLD, np.full(256, 1002, np.uint32)),
    ),
    "in_time": Case(
        "global_load_dword v8, v1, s[6:7]\ns_sleep 20\nv_mov_b32 v20, v8\n"
        "ds_read_b32 v9, v1\ns_sleep 3\nv_mov_b32 v21, v9",
        (INPUT, LDS),
    ),
    "dma": Case(
        DMA + "ds_read_b32 v20, v1\ns_waitcnt vmcnt(0)\nds_read_b32 v21, v1",
        (LDS, INPUT),
    ),
    # Pieces at one place come in the order of issue, whichever wave waits first.
    "dma_order": Case(
        "s_cmp_eq_u32 s16, 0\ns_cbranch_scc0 1f\ns_mov_b32 m0, 0\n"
        "global_load_lds_dword v1, s[6:7]\n" + "s_nop 0\n" * 40 + "s_branch 2f\n"
        "1:\ns_cmp_eq_u32 s16, 1\ns_cbranch_scc0 2f\n" + "s_nop 0\n" * 12 + "s_mov_b32 m0, 0\n"
        "global_load_lds_dword v1, s[6:7]\n"
        "2:\ns_waitcnt vmcnt(0)\ns_barrier\nv_and_b32 v2, 0xff, v1\nds_read_b32 v20, v2",
        (1064 + LANES % 64, OLD),
    ),
    "count_full": Case(
        "global_load_dword v8, v1, s[6:7]\n"
        + "global_load_dword v10, v1, s[6:7]\n" * 62
        + "v_mov_b32 v20, v8\nglobal_load_dword v10, v1, s[6:7]\nv_mov_b32 v21, v8",
        (OLD, INPUT),
    ),
    "count_full_lds": Case(
        "ds_read_b32 v8, v1\n"
        + "ds_read_b32 v10, v1\n" * 14
        + "v_mov_b32 v20, v8\nds_read_b32 v10, v1\nv_mov_b32 v21, v8",
        (OLD, LDS),
    ),
    "counted_wait": Case(
        "global_load_dword v8, v1, s[6:7]\ns_nop 7\nglobal_load_dword v9, v1, s[6:7]\n"
        "s_waitcnt vmcnt(1)\nv_mov_b32 v21, v9\nv_mov_b32 v20, v8",
        (INPUT, OLD),
        waves=1,
    ),
    # Only the lanes that were active when the load was issued get something.
    "exec": Case(
        "s_mov_b64 exec, 0xffff\nglobal_load_dword v8, v1, s[6:7]\ns_mov_b64 exec, -1\n"
        "v_mov_b32 v20, v8\ns_waitcnt vmcnt(0)\nv_mov_b32 v21, v8",
        (OLD, np.where(LANES % 64 < 16, INPUT, OLD)),
    ),
    # LDS is quicker than memory, so that the load issued first overwrites the second.
    "two_queues": Case(
        "global_load_dword v8, v1, s[6:7]\nds_read_b32 v8, v1\ns_waitcnt lgkmcnt(0)\n"
        "v_mov_b32 v20, v8\ns_waitcnt vmcnt(0)\nv_mov_b32 v21, v8",
        (LDS, INPUT),
    ),
    "one_queue": Case(
        "v_add_u32 v2, 0x1000, v1\nglobal_load_dword v8, v1, s[6:7]\nv_mov_b32 v20, v8\n"
        "global_load_dword v8, v2, s[6:7]\ns_waitcnt vmcnt(0)\nv_mov_b32 v21, v8",
        (OLD, FAR),
    ),
    # Each turn adds what the turn before has loaded: 7, then in[lane], then in[lane + 64] ...
    "loop": Case(
        "s_mov_b32 s24, 4\nv_mov_b32 v2, v1\nv_mov_b32 v20, 0\n"
        "1:\nglobal_load_dword v8, v2, s[6:7]\nv_add_u32 v2, 0x100, v2\nv_add_u32 v20, v20, v8\n"
        "s_waitcnt vmcnt(0)\ns_sub_u32 s24, s24, 1\ns_cmp_lg_u32 s24, 0\ns_cbranch_scc1 1b",
        (7 + 3 * INPUT + 64 + 128, OLD),
    ),
    # Nobody can see from the code where this goes.
    "jump": Case(
        "s_getpc_b64 s[24:25]\n0:\ns_add_u32 s24, s24, 1f-0b\ns_addc_u32 s25, s25, 0\n"
        "global_load_dword v8, v1, s[6:7]\ns_setpc_b64 s[24:25]\ns_endpgm\n"
        "1:\nv_mov_b32 v20, v8\ns_waitcnt vmcnt(0)\nv_mov_b32 v21, v8",
        (OLD, INPUT),
    ),
    "skipped": Case(
        "global_load_dword v8, v1, s[6:7]\ns_setvskip -1, 0\ns_nop 1\nv_mov_b32 v8, 5\n"
        "global_load_dword v9, v1, s[6:7]\nv_mov_b32 v20, 5\ns_waitcnt vmcnt(1)\n"
        "s_setvskip 0, 0\ns_nop 1\nv_mov_b32 v20, v8\ns_waitcnt vmcnt(0)\nv_mov_b32 v21, v8",
        (OLD, INPUT),
    ),
}

# Right whatever the schedule is.
LAWFUL = {
    "exchange": Case(
        "global_load_dword v8, v1, s[6:7]\ns_waitcnt vmcnt(0)\nds_write_b32 v1, v8\n"
        "s_waitcnt lgkmcnt(0)\ns_barrier\nv_xor_b32 v2, 0x3fc, v1\nds_read_b32 v20, v2\n"
        "s_waitcnt lgkmcnt(0)\ns_barrier\nv_xor_b32 v3, 0x100, v1\nds_write_b32 v3, v20\n"
        "s_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v21, v1\ns_waitcnt lgkmcnt(0)",
        (1255 - LANES, 1255 - (LANES ^ 64)),
    ),
    "dma": Case(
        DMA + "s_waitcnt vmcnt(0)\ns_barrier\nv_xor_b32 v2, 0x300, v1\nds_read_b32 v20, v2",
        (INPUT[LANES ^ 192], OLD),
    ),
    "pipeline": Case(
        "s_mov_b32 s24, 6\nv_mov_b32 v2, v1\nv_mov_b32 v20, 0\nv_mov_b32 v21, 0\n"
        "s_load_dword s26, s[6:7], 0x8\nglobal_load_dword v8, v2, s[6:7]\n"
        "1:\nv_add_u32 v2, 0x100, v2\nglobal_load_dword v9, v2, s[6:7]\ns_waitcnt vmcnt(1)\n"
        "v_add_u32 v20, v20, v8\nv_add_u32 v2, 0x100, v2\nglobal_load_dword v8, v2, s[6:7]\n"
        "s_waitcnt vmcnt(1) lgkmcnt(0)\nv_add_u32 v20, v20, v9\nv_add_u32 v21, s26, v21\n"
        "s_sub_u32 s24, s24, 2\ns_cmp_lg_u32 s24, 0\ns_cbranch_scc1 1b",
        (6 * INPUT + 64 * 15, np.full(256, 3 * 1002, np.uint32)),
    ),
}


def source(arch: str) -> str:
    kernels = {
        f"{kind}_{name}": f"{HEAD}{START}{case.body}{END}"
        for kind, group in (("relying", RELYING), ("lawful", LAWFUL))
        for name, case in group.items()
    }
    return source_of(kernels, arch, most=256, denormals=0)
