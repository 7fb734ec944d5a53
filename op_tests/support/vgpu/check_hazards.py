"""Hazards for test_vgpu_check.py: what stands one wait state too close to what it depends on.

Distances are those that LLVM's hazard recognizer keeps (its test mai-hazards-gfx942.mir has them
for both architectures). Each row is run one wait state short, which must be found, and at its
distance, which must be clean.
"""

from __future__ import annotations

from typing import NamedTuple

# Matrix instructions by the unit that runs them and its passes, with result v[24:...].
XDL2 = "v_mfma_f32_4x4x4_16b_f16 v[24:27], v[20:21], v[22:23], "
XDL4 = "v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], "
XDL8 = "v_mfma_f32_32x32x8_f16 v[24:39], v[20:21], v[22:23], "
XDL16 = "v_mfma_f32_32x32x4_2b_f16 v[24:55], v[20:21], v[22:23], "
SPARSE = "v_smfmac_f32_16x16x32_f16 v[24:27], v[40:41], v[42:45], v46"
SINGLE2 = "v_mfma_f32_4x4x1_16b_f32 v[24:27], v20, v22, "
SINGLE8 = "v_mfma_f32_16x16x4_f32 v[24:27], v20, v22, "
SINGLE16 = "v_mfma_f32_32x32x2_f32 v[24:39], v20, v22, "
DOUBLE4 = "v_mfma_f64_4x4x4_4b_f64 v[24:25], v[20:21], v[22:23], "
DOUBLE16 = "v_mfma_f64_16x16x4_f64 v[24:31], v[20:21], v[22:23], "
FP8 = "v_mfma_f32_16x16x128_f8f6f4 v[24:27], v[40:47], v[48:55], 0"
FP4 = "v_mfma_f32_16x16x128_f8f6f4 v[24:27], v[40:43], v[48:51], 0 cbsz:4 blgp:4"
# And with the result elsewhere, to use v[24:...].
NEXT = "v_mfma_f32_16x16x16_f16 v[56:59], v[20:21], v[22:23], "
NEXT_SINGLE = "v_mfma_f32_16x16x4_f32 v[56:59], v20, v22, "
NEXT_A = "v_mfma_f32_16x16x16_f16 v[56:59], v[24:25], v[22:23], 0"
NEXT_SPARSE = "v_smfmac_f32_16x16x32_f16 v[56:59], v[20:21], v[40:43], "
SCALED = "v_mfma_scale_f32_16x16x128_f8f6f4 v[56:59], v[40:47], v[48:55], v[56:59], "
READ, STORE = "v_mov_b32 v62, v24", "global_store_dword v1, v24, s[4:5]"
WRITE = "v_mov_b32 v24, 0"

RESULT, OVERWRITES = "reads the result of", "overwrites the result of"
ADDS_TO_RESULT, ADDS_TO_SLICE = "adds to the result of", "adds to a part of the result of"


class Hazard(NamedTuple):
    first: str
    second: str
    words: str
    gfx942: int | None  # wait states between them
    gfx950: int | None
    kind: str = "MFMA hazard"


def equal_distance(first: str, second: str, words: str, distance: int) -> Hazard:
    return Hazard(first, second, words, distance, distance)


def only_hazard(first: str, second: str, words: str, distance: int) -> Hazard:
    return Hazard(first, second, words, distance, distance, "hazard")


DOT = "v_dot2_f32_f16 v24, v20, v21, v22"
WIDE_STORE = "global_store_dwordx4 v1, v[24:27], s[4:5]"
BUFFER = "buffer_store_dwordx4 v[24:27], v1, s[12:15], "

HAZARDS = {
    # The vector ALU's results, and EXEC.
    "valu_a": equal_distance("v_mov_b32 v20, 0", XDL4 + "0", RESULT, 2),
    "valu_c": equal_distance("v_mov_b32 v31, 0", NEXT + "v[28:31]", RESULT, 2),
    "valu_agpr": equal_distance(
        "v_accvgpr_write_b32 a6, 0",
        "v_mfma_f32_16x16x16_f16 a[0:3], v[20:21], v[22:23], a[4:7]",
        RESULT,
        2,
    ),
    "valu_double": equal_distance("v_mov_b32 v21, 0", DOUBLE4 + "0", RESULT, 2),
    "valu_index": equal_distance("v_mov_b32 v46, 0", SPARSE, RESULT, 2),
    "valu_scale_a": Hazard("v_mov_b32 v60, 0", SCALED + "v60, v61", RESULT, None, 2),
    "valu_scale_b": Hazard("v_mov_b32 v61, 0", SCALED + "v60, v61", RESULT, None, 2),
    "exec": equal_distance("v_cmpx_eq_u32 vcc, v3, v3", XDL4 + "0", "runs with the EXEC of", 4),
    # A result, read by the vector ALU and by memory instructions.
    "read_xdl2": equal_distance(XDL2 + "0", READ, RESULT, 5),
    "read_xdl4": Hazard(XDL4 + "0", READ, RESULT, 7, 8),
    "read_xdl8": Hazard(XDL8 + "0", "v_add_f32 v62, v39, v3", RESULT, 11, 12),
    "read_xdl16": equal_distance(XDL16 + "0", READ, RESULT, 19),
    "read_sparse": Hazard(SPARSE, READ, RESULT, 7, 8),
    "read_fp8": Hazard(FP8, READ, RESULT, None, 12),
    "read_fp4": Hazard(FP4, READ, RESULT, None, 8),
    "read_scaled": Hazard(SCALED + "v60, v61", "v_mov_b32 v62, v58", RESULT, None, 12),
    "read_single2": equal_distance(SINGLE2 + "0", READ, RESULT, 4),
    "read_single8": equal_distance(SINGLE8 + "0", READ, RESULT, 10),
    "read_single16": equal_distance(SINGLE16 + "0", READ, RESULT, 18),
    "read_double4": equal_distance(DOUBLE4 + "0", READ, RESULT, 6),
    "read_double16": Hazard(DOUBLE16 + "0", READ, RESULT, 11, 19),
    "read_agpr": Hazard(
        "v_mfma_f32_16x16x16_f16 a[4:7], v[20:21], v[22:23], 0",
        "v_accvgpr_read_b32 v62, a5",
        RESULT,
        7,
        8,
    ),
    "store_xdl4": Hazard(XDL4 + "0", STORE, RESULT, 7, 8),
    "store_lds": Hazard(XDL8 + "0", "ds_write_b32 v1, v30", RESULT, 11, 12),
    "store_double4": equal_distance(DOUBLE4 + "0", STORE, RESULT, 9),
    "store_double16": equal_distance(DOUBLE16 + "0", STORE, RESULT, 18),
    # A result as A or B, the index of a sparse A, or a scale, of the next one.
    "a_xdl2": equal_distance(XDL2 + "0", NEXT_A, RESULT, 5),
    "a_xdl4": Hazard(XDL4 + "0", NEXT_A, RESULT, 7, 8),
    "b_xdl8": Hazard(
        XDL8 + "0", "v_mfma_f32_16x16x16_f16 v[56:59], v[20:21], v[38:39], 0", RESULT, 11, 12
    ),
    "a_sparse": Hazard(SPARSE, NEXT_A, RESULT, 7, 8),
    "a_single8": equal_distance(SINGLE8 + "0", NEXT_A, RESULT, 10),
    "a_double4": equal_distance(DOUBLE4 + "0", NEXT_A, RESULT, 6),
    "a_double16": Hazard(DOUBLE16 + "0", NEXT_A, RESULT, 11, 19),
    "index_xdl4": Hazard(XDL4 + "0", NEXT_SPARSE + "v27", RESULT, 7, 8),
    "scale_xdl4": Hazard(XDL4 + "0", SCALED + "v24, v61", RESULT, None, 8),
    "scale_fp8": Hazard(FP8, SCALED + "v60, v24", RESULT, None, 12),
    # A result as C: the whole of it, or a part.
    "c_xdl2": equal_distance(XDL2 + "0", NEXT + "v[24:27]", ADDS_TO_RESULT, 2),
    "c_single2": equal_distance(SINGLE2 + "0", SPARSE, ADDS_TO_RESULT, 2),
    "c_double4": equal_distance(DOUBLE4 + "0", DOUBLE4 + "v[24:25]", ADDS_TO_RESULT, 4),
    "part_xdl2": Hazard(XDL2 + "0", NEXT + "v[26:29]", ADDS_TO_SLICE, 3, 4),
    "part_xdl2_single": equal_distance(XDL2 + "0", NEXT_SINGLE + "v[26:29]", ADDS_TO_SLICE, 3),
    "part_xdl4": Hazard(XDL4 + "0", NEXT + "v[26:29]", ADDS_TO_SLICE, 5, 6),
    "part_xdl4_single": Hazard(XDL4 + "0", NEXT_SINGLE + "v[26:29]", ADDS_TO_SLICE, 5, 6),
    "part_xdl8": Hazard(XDL8 + "0", NEXT + "v[24:27]", ADDS_TO_SLICE, 9, 10),
    "part_xdl16": Hazard(XDL16 + "0", NEXT + "v[52:55]", ADDS_TO_SLICE, 17, 18),
    "part_fp8": Hazard(FP8, NEXT + "v[26:29]", ADDS_TO_SLICE, None, 10),
    "part_fp4": Hazard(FP4, NEXT + "v[26:29]", ADDS_TO_SLICE, None, 6),
    "part_single8": equal_distance(SINGLE8 + "0", NEXT_SINGLE + "v[26:29]", ADDS_TO_SLICE, 8),
    "part_double4": equal_distance(
        DOUBLE4 + "0",
        "v_mfma_f64_16x16x4_f64 v[40:47], v[20:21], v[22:23], v[24:31]",
        ADDS_TO_SLICE,
        4,
    ),
    "part_double16": Hazard(
        DOUBLE16 + "0",
        "v_mfma_f64_16x16x4_f64 v[40:47], v[20:21], v[22:23], v[26:33]",
        ADDS_TO_SLICE,
        9,
        17,
    ),
    # A result or an addend, overwritten.
    "write_xdl2": equal_distance(XDL2 + "0", WRITE, OVERWRITES, 5),
    "write_xdl4": Hazard(XDL4 + "0", WRITE, OVERWRITES, 7, 8),
    "write_by_load": Hazard(XDL4 + "0", "global_load_dword v27, v1, s[6:7]", OVERWRITES, 7, 8),
    "write_single8": equal_distance(SINGLE8 + "0", WRITE, OVERWRITES, 10),
    "write_double4": equal_distance(DOUBLE4 + "0", WRITE, OVERWRITES, 6),
    "write_double16": equal_distance(DOUBLE16 + "0", WRITE, OVERWRITES, 11),
    "addend_xdl2": equal_distance(
        XDL2 + "v[28:31]", "v_mov_b32 v28, 0", "overwrites the addend of", 1
    ),
    "addend_xdl4": equal_distance(
        XDL4 + "v[28:31]", "v_mov_b32 v31, 0", "overwrites the addend of", 3
    ),
    "addend_xdl8": equal_distance(
        XDL8 + "v[40:55]", "v_mov_b32 v55, 0", "overwrites the addend of", 7
    ),
    # Others.
    "fma_double": equal_distance(
        DOUBLE4 + "0", "v_fma_f64 v[40:41], v[42:43], v[44:45], 0", "follows", 2
    ),
    "dot_read": only_hazard(DOT, READ, RESULT, 3),
    "dot_stored": only_hazard(DOT, STORE, RESULT, 3),
    "dot_as_a": only_hazard(DOT, "v_dot2_f32_f16 v25, v24, v21, v22", RESULT, 3),
    "dot_in_another": only_hazard(DOT, "v_dot4_i32_i8 v25, v20, v21, v24", RESULT, 3),
    "dot_overwritten": only_hazard(DOT, WRITE, OVERWRITES, 3),
    "dot_twice": only_hazard("v_dot2c_f32_f16 v24, v20, v21", READ, RESULT, 3),
    "wide_store": only_hazard(WIDE_STORE, "v_mov_b32 v27, 0", "overwrites the data of", 2),
    "wide_buffer_store": only_hazard(BUFFER + "0 offen", WRITE, "overwrites the data of", 2),
    "wide_buffer_store_offset": only_hazard(
        BUFFER + "s17 offen", WRITE, "overwrites the data of", 1
    ),
}

SETUP = (
    "".join(f"  v_mov_b32 v{i}, 0\n" for i in range(20, 64))
    + "".join(f"  v_accvgpr_write_b32 a{i}, 0\n" for i in range(8))
    + """
  s_mov_b64 s[12:13], s[4:5]
  s_movk_i32 s14, 0x1000
  s_mov_b32 s15, 0x27000
  s_mov_b32 s17, 0
  s_nop 7
"""
)

# Chains that need no gap.
CLEAN = """
  v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0
  v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], v[24:27]
  v_smfmac_f32_16x16x32_f16 v[24:27], v[40:41], v[42:45], v46
  v_smfmac_f32_16x16x32_f16 v[24:27], v[40:41], v[42:45], v46
  v_mfma_f32_16x16x4_f32 v[32:35], v20, v22, 0
  v_mfma_f32_16x16x16_f16 v[56:59], v[20:21], v[22:23], v[34:37]
  v_mfma_f64_16x16x4_f64 v[24:31], v[20:21], v[22:23], 0
  v_mfma_f64_16x16x4_f64 v[24:31], v[20:21], v[22:23], v[24:31]
  v_mov_b32 v20, 0
  v_dot2_f32_f16 v50, v20, v21, v22
  v_dot2_f32_f16 v50, v20, v21, v50
  v_dot2c_f32_f16 v51, v20, v21
  v_dot2c_f32_f16 v51, v20, v21
  global_store_dwordx2 v1, v[40:41], s[4:5]
  v_mov_b32 v40, 0
  global_store_dwordx4 v1, v[40:43], s[4:5]
  s_nop 0
  v_mov_b32 v44, 0
  v_mov_b32 v43, 0
  s_nop 1
  v_mfma_f32_16x16x16_f16 v[56:59], v[20:21], v[22:23], v[40:43]
  global_load_dword v40, v1, s[6:7]
"""


def wait_states(count: int) -> str:
    nops = [8] * (count // 8) + [count % 8] * (count % 8 > 0)
    return "".join(f"\n  s_nop {n - 1}" for n in nops)
