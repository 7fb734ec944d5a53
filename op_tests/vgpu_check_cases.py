"""Pieces of assembly with one planted defect each, and clean ones, for test_vgpu_check.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BYTES = 4000  # of each buffer: less than a page, so that what lies behind is mapped
HERE = "// here"

HEAD = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  v_lshrrev_b32 v2, 6, v0
  v_readfirstlane_b32 s16, v2
  v_mov_b32 v3, 0
  v_mov_b32 v4, 1
  v_mov_b32 v5, 0
  v_mov_b32 v6, 0
  v_mov_b32 v7, 0
  s_mov_b64 s[8:9], 0
  s_mov_b64 s[10:11], 0
  s_mov_b32 m0, 0
  s_waitcnt lgkmcnt(0)
"""
DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 96
  .amdhsa_accum_offset 64
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 16
  .amdhsa_group_segment_fixed_size 4096
  .amdhsa_private_segment_fixed_size 256
.end_amdhsa_kernel
.text
"""
METADATA = """  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 256
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: 128
    .agpr_count: 64
    .max_flat_workgroup_size: 256
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
"""


@dataclass(frozen=True)
class Case:
    """`body` has `<fix>` where `fix` goes. s[4:5]: output, s[6:7]: input, v0: lane of the block,
    v1: 4 * v0, s16: the wave. v3 and v5 to v7 are 0, v4 is 1, s[8:11] and m0 are 0."""

    kind: str
    body: str
    fix: str
    words: str | tuple[str, ...]  # in the finding's text
    waves: int = 1
    lane: int | None = None
    wave: int | None = None
    address: Callable[[int], int] | None = None  # from that of the input buffer
    fresh: bool = False  # the input buffer is new: nobody has written it
    faults: bool = False


def memory(body: str, words: str, at: int, **rest: Any) -> Case:
    """An access that leaves the buffer; the fix is to keep all but the first lanes out."""
    fix = "s_mov_b64 exec, 0xff"
    return Case("out of bounds", body, fix, words, address=lambda base: base + at, **rest)


def undefined(body: str, fix: str, words: str, **rest: Any) -> Case:
    return Case("uninitialised", body, fix, words, **rest)


def hazard(body: str, fix: str, *words: str) -> Case:
    zeros = "".join(f"        v_mov_b32 v{i}, 0\n" for i in range(20, 40))
    return Case("MFMA hazard", f"\n{zeros}        s_nop 1{body}", fix, words)


CASES = {
    # ------------------------------------------------------------------ out of bounds
    "load": memory("""
        v_add_u32 v1, 0xf00, v1
        <fix>
        global_load_dword v8, v1, s[6:7]  // here
        s_waitcnt vmcnt(0)""", "reads 4 bytes 0 bytes behind the end", 4000, lane=40),
    "wide_load": memory("""
        v_lshlrev_b32 v1, 2, v1
        v_add_u32 v1, 0xf00 - 144, v1
        <fix>
        global_load_dwordx4 v[8:11], v1, s[6:7] offset:8  // here
        s_waitcnt vmcnt(0)""", "8 bytes beyond the end", 3992, lane=18),
    "store": memory("""
        v_mov_b32 v8, s6
        v_mov_b32 v9, s7
        v_cmp_eq_u32 vcc, 9, v0
        v_mov_b32 v10, 0xfa0
        v_cndmask_b32 v10, 0, v10, vcc
        v_mov_b32 v11, 0
        v_lshl_add_u64 v[8:9], v[10:11], 0, v[8:9]
        <fix>
        global_store_dword v[8:9], v4, off  // here
        """, "writes 4 bytes 0 bytes behind", 4000, lane=9),
    "atomic": memory("""
        v_add_u32 v1, 0xf00, v1
        <fix>
        global_atomic_add v1, v4, s[6:7]  // here
        """, "writes 4 bytes", 4000, lane=40),
    "buffer": memory("""
        s_mov_b64 s[12:13], s[6:7]
        s_mov_b32 s14, 0x1000
        s_mov_b32 s15, 0x27000
        v_add_u32 v1, 0xf00, v1
        <fix>
        buffer_load_dword v8, v1, s[12:15], 0 offen  // here
        s_waitcnt vmcnt(0)""", "reads 4 bytes", 4000, lane=40),
    "lds_dma_source": memory("""
        v_add_u32 v1, 0xf00, v1
        <fix>
        global_load_lds_dword v1, s[6:7]  // here
        """, "reads 4 bytes", 4000, lane=40),
    "flat": memory("""
        v_mov_b32 v8, s6
        v_mov_b32 v9, s7
        v_lshl_add_u64 v[8:9], v[8:9], 0, 0
        v_add_co_u32 v8, vcc, 0xf00, v8
        v_addc_co_u32 v9, vcc, 0, v9, vcc
        v_add_co_u32 v8, vcc, v8, v1
        v_addc_co_u32 v9, vcc, 0, v9, vcc
        <fix>
        flat_load_dword v10, v[8:9]  // here
        s_waitcnt vmcnt(0) lgkmcnt(0)""", "reads 4 bytes", 4000, lane=40),
    "scalar": Case("out of bounds", """
        s_movk_i32 s17, 4000
        <fix>
        s_load_dword s18, s[6:7], s17  // here
        s_waitcnt lgkmcnt(0)""", "s_movk_i32 s17, 3996", "reads", address=lambda base: base + 4000),
    # ------------------------------------------------------------------ missing waits
    "wait_load": Case("missing wait", """
        global_load_dword v8, v1, s[6:7]
        <fix>
        v_add_u32 v9, v8, v0  // here
        """, "s_waitcnt vmcnt(0)", "reads v8"),
    "wait_counted": Case("missing wait", """
        global_load_dword v8, v1, s[6:7]
        global_load_dword v9, v1, s[6:7]
        s_waitcnt vmcnt(1)
        v_add_u32 v10, v8, v0
        <fix>
        v_add_u32 v10, v9, v0  // here
        """, "s_waitcnt vmcnt(0)", "vmcnt(0)"),
    "wait_behind_store": Case("missing wait", """
        global_load_dword v8, v1, s[6:7]
        global_store_dword v1, v0, s[4:5]
        s_waitcnt vmcnt(2)
        <fix>
        v_add_u32 v10, v8, v0  // here
        """, "s_waitcnt vmcnt(1)", "vmcnt(1)"),
    "wait_overwrite": Case("missing wait", """
        global_load_dword v8, v1, s[6:7]
        <fix>
        v_mov_b32 v8, 0  // here
        """, "s_waitcnt vmcnt(0)", "overwrites v8"),
    "wait_tuple": Case("missing wait", """
        v_lshlrev_b32 v1, 1, v1
        global_load_dwordx2 v[8:9], v1, s[6:7]
        <fix>
        global_store_dword v1, v9, s[4:5]  // here
        """, "s_waitcnt vmcnt(0)", "reads v9"),
    "wait_scalar": Case("missing wait", """
        s_load_dwordx2 s[18:19], s[6:7], 0x0
        s_load_dword s20, s[6:7], 0x8
        s_waitcnt lgkmcnt(1)
        <fix>
        s_add_u32 s21, s19, 1  // here
        s_waitcnt lgkmcnt(0)
        """, "s_waitcnt lgkmcnt(0)", "reads s19"),
    "wait_scalar_in_vector": Case("missing wait", """
        s_load_dword s20, s[6:7], 0x8
        <fix>
        v_add_u32 v8, s20, v0  // here
        """, "s_waitcnt lgkmcnt(0)", "reads s20"),
    "wait_lds": Case("missing wait", """
        ds_write_b32 v1, v0
        ds_read_b32 v8, v1
        ds_read_b32 v9, v1
        s_waitcnt lgkmcnt(1)
        v_add_u32 v10, v8, v0
        <fix>
        v_add_u32 v10, v9, v0  // here
        """, "s_waitcnt lgkmcnt(0)", "lgkmcnt(0)"),
    "wait_permute": Case("missing wait", """
        ds_bpermute_b32 v8, v1, v0
        <fix>
        v_add_u32 v10, v8, v0  // here
        """, "s_waitcnt lgkmcnt(0)", "reads v8"),
    "wait_atomic": Case("missing wait", """
        global_atomic_add v8, v1, v4, s[6:7] sc0
        <fix>
        v_add_u32 v10, v8, v0  // here
        """, "s_waitcnt vmcnt(0)", "reads v8"),
    "wait_flat_lds": Case("missing wait", """
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_mov_b64 s[18:19], src_shared_base
        v_mov_b32 v8, v1
        v_mov_b32 v9, s19
        flat_load_dword v10, v[8:9]
        s_waitcnt vmcnt(0)
        <fix>
        v_add_u32 v10, v10, v0  // here
        """, "s_waitcnt lgkmcnt(0)", "lgkmcnt(0)"),
    "wait_agpr": Case("missing wait", """
        global_load_dword a3, v1, s[6:7]
        <fix>
        v_accvgpr_read_b32 v8, a3  // here
        """, "s_waitcnt vmcnt(0)", "reads a3"),
    # ------------------------------------------------------------------ LDS races
    "race_read": Case("LDS race", """
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        <fix>
        v_and_b32 v8, 0xff, v1
        ds_read_b32 v8, v8  // here
        s_waitcnt lgkmcnt(0)""", "s_barrier", "reads what wave 0 at", waves=2, wave=1,
        address=lambda base: 0),
    "race_write_read": Case("LDS race", """
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_or_b32 v8, 0x100, v1
        ds_read_b32 v9, v8
        s_waitcnt lgkmcnt(0)
        <fix>
        v_add_u32 v10, 1, v0
        ds_write_b32 v1, v10  // here
        s_waitcnt lgkmcnt(0)""", "s_barrier", "overwrites what wave 0 reads", waves=2, wave=1),
    "race_write": Case("LDS race", """
        <fix>
        v_mov_b32 v8, s16
        ds_write_b32 v3, v8 offset:8  // here
      1:
        s_waitcnt lgkmcnt(0)""", "s_cmp_eq_u32 s16, 0\n s_cbranch_scc0 1f",
        "overwrites what wave 0 at", waves=2, wave=1, address=lambda base: 8),
    "race_byte": Case("LDS race", """
        v_mov_b32 v8, s16
        v_add_u32 v9, 2, v8
        ds_write_b8 v9, v8
        s_waitcnt lgkmcnt(0)
        <fix>
        ds_read_u8 v10, v3 offset:2  // here
        s_waitcnt lgkmcnt(0)""", "s_barrier", "reads what wave 0 at", waves=2, wave=1,
        address=lambda base: 2),
    "race_in_flight": Case("LDS race", """
        ds_write_b32 v1, v0
        <fix>
        s_barrier
        v_xor_b32 v8, 0x100, v1
        ds_read_b32 v8, v8  // here
        s_waitcnt lgkmcnt(0)""", "s_waitcnt lgkmcnt(0)", "reads what wave", waves=2),
    "race_after_atomics": Case("LDS race", """
        ds_write_b32 v1, v3
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_lshlrev_b32 v8, 2, v4
        ds_add_u32 v8, v4  // here
        s_waitcnt lgkmcnt(0)
        <fix>
        ds_read_b32 v9, v8
        s_waitcnt lgkmcnt(0)""", "s_barrier", "overwrites what wave 0 at", waves=2, wave=1),
    "race_before_atomics": Case("LDS race", """
        ds_write_b32 v1, v3  // here
        s_waitcnt lgkmcnt(0)
        <fix>
        v_mov_b32 v8, 0x104
        ds_wrxchg_rtn_b32 v9, v8, v4
        s_waitcnt lgkmcnt(0)""", "s_barrier", "overwrites what wave 0 at", waves=2, wave=1,
        lane=1, address=lambda base: 0x104),
    "race_dma_own": Case("LDS race", """
        global_load_lds_dword v1, s[6:7]
        <fix>
        ds_read_b32 v8, v1  // here
        s_waitcnt lgkmcnt(0)""", "s_waitcnt vmcnt(0)", "LDS-DMA"),
    "race_dma_barrier": Case("LDS race", """
        s_lshl_b32 s17, s16, 8
        s_mov_b32 m0, s17
        s_nop 0
        global_load_lds_dword v1, s[6:7]
        <fix>
        s_barrier
        v_xor_b32 v8, 0x100, v1
        ds_read_b32 v8, v8  // here
        s_waitcnt lgkmcnt(0)""", "s_waitcnt vmcnt(0)", "reads what wave", waves=2),
    # ------------------------------------------------------------------ uninitialised
    "undefined_address": undefined("""
        <fix>
        v_and_b32 v20, 60, v20
        global_load_dword v8, v20, s[6:7]  // here
        s_waitcnt vmcnt(0)""", "v_mov_b32 v20, 0", "v20 was never written", lane=0),
    "undefined_base": undefined("""
        <fix>
        global_load_dword v8, v3, s[20:21]  // here
        s_waitcnt vmcnt(0)""", "s_mov_b64 s[20:21], s[6:7]", "s20 was never written", faults=True),
    "undefined_store": undefined("""
        <fix>
        v_add_f32 v21, v20, v4
        global_store_dword v1, v21, s[4:5]  // here
        """, "v_mov_b32 v20, 0", "v20 was never written", lane=0),
    "undefined_lanes": undefined("""
        s_mov_b64 exec, 0xff
        v_mov_b32 v20, 0
        s_mov_b64 exec, -1
        <fix>
        global_store_dword v1, v20, s[4:5]  // here
        """, "s_mov_b64 exec, 0xff", "v20 was never written", lane=8),
    "undefined_scc": undefined("""
        <fix>
        s_cmp_eq_u32 s20, 0
        s_cbranch_scc1 1f  // here
      1:""", "s_mov_b32 s20, 0", "s20 was never written"),
    "undefined_vcc": undefined("""
        <fix>
        v_cmp_eq_u32 vcc, 0x7fb0dea0, v20
        s_cbranch_vccnz 1f  // here
      1:""", "v_mov_b32 v20, 0", "v20 was never written"),
    "undefined_exec": undefined("""
        <fix>
        v_cmp_eq_u32 vcc, v20, v0
        s_and_saveexec_b64 s[20:21], vcc  // here
        """, "v_mov_b32 v20, 0", "v20 was never written", lane=0),
    "undefined_lds": undefined("""
        s_mov_b64 exec, 0xffff
        ds_write_b32 v1, v0
        s_mov_b64 exec, -1
        <fix>
        ds_read_b32 v8, v1
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v8, s[4:5]  // here
        """, "ds_write_b32 v1, v0", "read from LDS that nobody had written", lane=16),
    "undefined_in_lds": undefined("""
        <fix>
        ds_write_b32 v1, v20
        s_waitcnt lgkmcnt(0)
        ds_read_b32 v8, v1
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v8, s[4:5]  // here
        """, "v_mov_b32 v20, 0", "read from LDS", lane=0),
    "undefined_scratch": undefined("""
        <fix>
        scratch_load_dword v8, off, off offset:16
        s_waitcnt vmcnt(0)
        global_store_dword v1, v8, s[4:5]  // here
        """, "scratch_store_dword off, v0, off offset:16", "read from private memory", lane=0),
    "undefined_global": undefined("""
        <fix>
        global_load_dword v8, v1, s[6:7] offset:512
        s_waitcnt vmcnt(0)
        global_store_dword v1, v8, s[4:5]  // here
        """, "global_store_dword v1, v0, s[6:7] offset:512", "read from global memory", lane=0,
        fresh=True),
    "undefined_lds_atomic": undefined("""
        <fix>
        ds_add_u32 v1, v0  // here
        """, "ds_write_b32 v1, v0", "atomic on memory that nobody has written", lane=0,
        address=lambda base: 0),
    "undefined_dpp": undefined("""
        s_mov_b32 exec_hi, 0x7fffffff
        v_mov_b32 v20, 0
        s_mov_b64 exec, -1
        <fix>
        v_mov_b32 v21, 0
        s_nop 1
        v_mov_b32_dpp v21, v20 row_shl:1 row_mask:0xf bank_mask:0xf
        global_store_dword v1, v21, s[4:5]  // here
        """, "v_mov_b32 v20, 0", "v20 was never written", lane=62),
    "undefined_permute": undefined("""
        s_mov_b64 exec, 1
        v_mov_b32 v20, 0
        s_mov_b64 exec, -1
        <fix>
        v_mov_b32 v21, 0
        v_cmp_eq_u32 vcc, 5, v0
        v_cndmask_b32 v21, 0, v1, vcc
        ds_bpermute_b32 v22, v21, v20
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v22, s[4:5]  // here
        """, "v_mov_b32 v20, 0", "v20 was never written", lane=5),
    "undefined_matrix": undefined("""
        v_mov_b32 v24, 0
        v_mov_b32 v25, 0
        v_mov_b32 v26, 0
        v_mov_b32 v27, 0
        s_mov_b32 exec_lo, 0xffffffdf
        v_mov_b32 v20, 0
        v_mov_b32 v21, 0
        s_mov_b64 exec, -1
        <fix>
        s_nop 1
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[24:25], 0
        s_nop 15
        v_lshlrev_b32 v1, 2, v1
        global_store_dword v1, v25, s[4:5]  // here
        """, "v_mov_b32 v20, 0\n v_mov_b32 v21, 0", "v20 was never written", lane=16),
    # ------------------------------------------------------------------ MFMA hazards
    "hazard_read": hazard("""
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0
        s_nop 2
        <fix>
        v_add_f32 v28, v26, v26  // here
        """, "s_nop 4", "reads the result of", "after 3 wait states"),
    "hazard_store": hazard("""
        v_mfma_f32_32x32x8_f16 v[24:39], v[20:21], v[22:23], 0
        s_nop 7
        <fix>
        global_store_dword v1, v39, s[4:5]  // here
        """, "s_nop 3", "reads the result of", "after 8 wait states"),
    "hazard_overwrite": hazard("""
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0
        <fix>
        v_mov_b32 v27, 0  // here
        """, "s_nop 6", "overwrites the result of", "it needs 7"),
    "hazard_input": hazard("""
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0
        <fix>
        v_mfma_f32_16x16x16_f16 v[28:31], v[24:25], v[22:23], 0  // here
        """, "s_nop 7", "reads the result of", "after 3 wait states"),
    "hazard_part": hazard("""
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0
        <fix>
        v_mfma_f32_16x16x16_f16 v[26:29], v[20:21], v[22:23], v[26:29]  // here
        """, "s_nop 4", "adds to a part of the result of", "it needs 5"),
    "hazard_addend": hazard("""
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], v[28:31]
        <fix>
        v_mov_b32 v28, 0  // here
        """, "s_nop 2", "overwrites the addend of", "it needs 3"),
    "hazard_single": hazard("""
        v_mfma_f32_16x16x4_f32 v[24:27], v20, v22, 0
        s_nop 7
        <fix>
        v_mov_b32 v28, v24  // here
        """, "s_nop 1", "reads the result of", "it needs 10"),
    "hazard_double": hazard("""
        v_mfma_f64_4x4x4_4b_f64 v[24:25], v[20:21], v[22:23], 0
        s_nop 5
        v_mov_b32 v28, v24
        <fix>
        ds_write_b32 v1, v25  // here
        """, "s_nop 1", "reads the result of", "it needs 9"),
    "hazard_accumulator": hazard("""
        v_mfma_f32_16x16x16_f16 a[4:7], v[20:21], v[22:23], 0
        <fix>
        v_accvgpr_read_b32 v28, a5  // here
        """, "s_nop 7", "reads the result of", "after 0 wait states"),
    "hazard_vector": hazard("""
        v_mov_b32 v20, 0
        <fix>
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0  // here
        """, "s_nop 1", "v_mov_b32", "it needs 2"),
    # ------------------------------------------------------------------ barrier divergence
    "barriers": Case("barrier divergence", """
        s_cmp_eq_u32 s16, 0
        s_cbranch_scc1 1f
        <fix>
        s_barrier
      1:
        s_barrier  // here
        """, "s_branch 1f", "wave 1 waits at another one", waves=2, wave=0),
}
CLEAN = {
    # Undefined values that decide nothing.
    "copies": (1, """
        v_mov_b32 v21, v20
        v_add_f32 v22, v21, v20
        s_add_u32 s22, s20, s21
        v_xor_b32 v23, v20, v20
        v_cmp_eq_u32 vcc, v0, v0
        v_cndmask_b32 v24, v20, v0, vcc
        v_mul_u32_u24 v25, v23, v24
        global_store_dword v1, v25, s[4:5]"""),
    # How compilers join masks of lanes: the bits of inactive lanes stay undefined.
    "masks": (1, """
        s_mov_b64 exec, 0xff
        v_cmp_gt_u32 vcc, 4, v0
        s_andn2_b64 s[20:21], s[20:21], exec
        s_and_b64 s[22:23], vcc, exec
        s_or_b64 s[20:21], s[20:21], s[22:23]
        v_writelane_b32 v20, s20, 3
        v_writelane_b32 v20, s21, 4
        v_readlane_b32 s24, v20, 3
        v_readlane_b32 s25, v20, 4
        s_and_saveexec_b64 s[22:23], s[20:21]
        s_and_b64 vcc, s[20:21], exec
        s_cbranch_vccz 1f
        global_store_dword v1, v0, s[4:5]
      1:"""),
    # The high half of a 64-bit addend that is never used.
    "wide": (1, """
        v_mov_b32 v20, 8
        v_mad_u64_u32 v[22:23], s[20:21], v0, 4, v[20:21]
        global_store_dword v22, v0, s[4:5]"""),
    # Two waves in turns: one has a barrier more in front of its work, the other behind it.
    "turns": (2, """
        s_cmp_eq_u32 s16, 0
        s_cbranch_scc1 1f
        s_barrier
      1:
        s_barrier
        s_cmp_eq_u32 s16, 0
        s_cbranch_scc0 2f
        s_barrier
      2:"""),
    # A chain of additions to whole results runs without gaps.
    "accumulate": (1, """
        v_mov_b32 v20, 0
        v_mov_b32 v21, 0
        s_nop 1
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[20:21], 0
        v_mfma_f32_16x16x16_f16 v[28:31], v[20:21], v[20:21], 0
        v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[20:21], v[24:27]
        v_mfma_f32_16x16x16_f16 v[28:31], v[20:21], v[20:21], v[28:31]
        s_nop 7
        v_add_f32 v24, v24, v28
        global_store_dword v1, v24, s[4:5]"""),
    "scratch": (1, """
        scratch_store_dword off, v0, off offset:3
        scratch_load_dword v8, off, off offset:3
        s_waitcnt vmcnt(0)
        global_store_dword v1, v8, s[4:5]"""),
    "far": (1, """
        v_mov_b32 v8, 0
        v_mov_b32 v9, 0x1234
        global_load_dword v10, v[8:9], off
        s_waitcnt vmcnt(0)"""),
    # A write that changes nothing, flags that all waves set, waits by queue order.
    "same_value": (2, """
        ds_write_b32 v3, v4
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v8, v3
        s_waitcnt lgkmcnt(0)"""),
    "in_order": (1, """
        global_load_dword v8, v1, s[6:7]
        global_load_dword v9, v1, s[6:7]
        s_waitcnt vmcnt(1)
        v_add_u32 v8, v8, v0
        global_load_dword v9, v1, s[6:7] offset:4
        s_waitcnt vmcnt(0)
        v_add_u32 v9, v8, v9"""),
    "atomics_signal": (2, """
        ds_write_b32 v3, v3 offset:1024
        s_waitcnt lgkmcnt(0)
        s_barrier
        s_cmp_eq_u32 s16, 0
        s_cbranch_scc0 1f
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        ds_add_u32 v3, v4 offset:1024
        s_branch 2f
      1:
        ds_add_rtn_u32 v8, v3, v3 offset:1024
        s_waitcnt lgkmcnt(0)
        v_readfirstlane_b32 s17, v8
        s_cmp_eq_u32 s17, 0
        s_cbranch_scc1 1b
        v_xor_b32 v8, 0x100, v1
        ds_read_b32 v9, v8
        s_waitcnt lgkmcnt(0)
      2:"""),
}


def source(arch: str) -> str:
    """Both kernels of every case: `name` with the defect, `name_fixed`; and the clean ones."""
    kernels = {name: body for name, (_, body) in CLEAN.items()}
    for name, case in CASES.items():
        kernels[name] = case.body.replace("<fix>", "")
        kernels[name + "_fixed"] = case.body.replace("<fix>", case.fix)
    text, tail = [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n'], []
    for kernel, body in kernels.items():
        text.append(HEAD.format(name=kernel) + body + "\n  s_endpgm\n")
        text.append(DESCRIPTOR.format(name=kernel))
        tail.append(METADATA.format(name=kernel))
    head = ".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:\n"
    return "".join([*text, head, *tail, ".end_amdgpu_metadata\n"])
