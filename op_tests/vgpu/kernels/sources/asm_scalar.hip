// Scalar instructions by their own names, each with the condition code it leaves.
#include "hip_names.h"

// out[2j] and out[2j+1]: result and SCC of operation j.
#define STORE(result, scc)                \
  if (threadIdx.x == 0) {                 \
    out[slot] = static_cast<u64>(result); \
    out[slot + 1] = scc;                  \
  }                                       \
  slot += 2;
#define BINARY(T, text, first, second)               \
  {                                                  \
    T result;                                        \
    u32 scc;                                         \
    asm(text " %0, %2, %3\n\ts_cselect_b32 %1, 1, 0" \
        : "=&s"(result), "=s"(scc)                   \
        : "s"(first), "s"(second)                    \
        : "scc");                                    \
    STORE(result, scc)                               \
  }
// SCC is set before, so that an instruction that leaves it alone shows.
#define UNARY(T, text, source)                                           \
  {                                                                      \
    T result;                                                            \
    u32 scc;                                                             \
    asm("s_cmp_eq_u32 0, 0\n\t" text " %0, %2\n\ts_cselect_b32 %1, 1, 0" \
        : "=&s"(result), "=s"(scc)                                       \
        : "s"(source)                                                    \
        : "scc");                                                        \
    STORE(result, scc)                                                   \
  }
#define S2(text) BINARY(u32, text, a, b)
#define D2(text) BINARY(u64, text, wide_a, wide_b)
#define DS(text) BINARY(u64, text, wide_a, b)
#define S1(text) UNARY(u32, text, a)
#define D1(text) UNARY(u64, text, wide_a)
#define COUNT(text) UNARY(u32, text, wide_a)
// These leave SCC alone: none is stored.
#define P2(text)                                             \
  {                                                          \
    u32 result;                                              \
    asm(text " %0, %1, %2" : "=s"(result) : "s"(a), "s"(b)); \
    STORE(result, 0)                                         \
  }
#define P1(text)                                 \
  {                                              \
    u32 result;                                  \
    asm(text " %0, %1" : "=s"(result) : "s"(a)); \
    STORE(result, 0)                             \
  }
#define CONDITION(text, first, second)                                                           \
  {                                                                                              \
    u32 scc;                                                                                     \
    asm(text " %1, %2\n\ts_cselect_b32 %0, 1, 0" : "=s"(scc) : "s"(first), "s"(second) : "scc"); \
    if (threadIdx.x == 0) out[slot] = scc;                                                       \
    ++slot;                                                                                      \
  }
#define C2(text) CONDITION(text, a, b)
#define CW(text) CONDITION(text, wide_a, wide_b)

KERNEL scalar_two(u64* out, u32 a, u32 b) {
  u32 slot = 0;
  // clang-format off
  S2("s_add_u32") S2("s_sub_u32") S2("s_add_i32") S2("s_sub_i32") S2("s_min_i32")
  S2("s_min_u32") S2("s_max_i32") S2("s_max_u32") S2("s_and_b32") S2("s_or_b32")
  S2("s_xor_b32") S2("s_andn2_b32") S2("s_orn2_b32") S2("s_nand_b32") S2("s_nor_b32")
  S2("s_xnor_b32") S2("s_lshl_b32") S2("s_lshr_b32") S2("s_ashr_i32") S2("s_bfe_u32")
  S2("s_bfe_i32") S2("s_absdiff_i32") S2("s_lshl1_add_u32") S2("s_lshl2_add_u32")
  S2("s_lshl3_add_u32") S2("s_lshl4_add_u32")
  // clang-format on
}

KERNEL scalar_plain(u64* out, u32 a, u32 b) {
  u32 slot = 0;
  // clang-format off
  P2("s_mul_i32") P2("s_mul_hi_u32") P2("s_mul_hi_i32") P2("s_bfm_b32") P2("s_pack_ll_b32_b16")
  P2("s_pack_lh_b32_b16") P2("s_pack_hh_b32_b16")
  P1("s_brev_b32") P1("s_ff0_i32_b32") P1("s_ff1_i32_b32") P1("s_flbit_i32_b32") P1("s_flbit_i32")
  P1("s_sext_i32_i8") P1("s_sext_i32_i16") P1("s_mov_b32")
  // clang-format on
}

KERNEL scalar_one(u64* out, u32 a) {
  u32 slot = 0;
  // clang-format off
  S1("s_not_b32") S1("s_wqm_b32") S1("s_bcnt0_i32_b32") S1("s_bcnt1_i32_b32") S1("s_abs_i32")
  S1("s_quadmask_b32")
  // clang-format on
}

KERNEL scalar_wide(u64* out, u64 wide_a, u64 wide_b, u32 b) {
  u32 slot = 0;
  // clang-format off
  D2("s_and_b64") D2("s_or_b64") D2("s_xor_b64") D2("s_andn2_b64") D2("s_orn2_b64")
  D2("s_nand_b64") D2("s_nor_b64") D2("s_xnor_b64") DS("s_lshl_b64") DS("s_lshr_b64")
  DS("s_ashr_i64") DS("s_bfe_u64") DS("s_bfe_i64") D1("s_not_b64") COUNT("s_bcnt0_i32_b64")
  COUNT("s_bcnt1_i32_b64")
  // clang-format on
}

KERNEL scalar_compare(u32* out, i32 a, i32 b, u64 wide_a, u64 wide_b) {
  u32 slot = 0;
  // clang-format off
  C2("s_cmp_eq_i32") C2("s_cmp_lg_i32") C2("s_cmp_gt_i32") C2("s_cmp_ge_i32") C2("s_cmp_lt_i32")
  C2("s_cmp_le_i32") C2("s_cmp_eq_u32") C2("s_cmp_lg_u32") C2("s_cmp_gt_u32") C2("s_cmp_ge_u32")
  C2("s_cmp_lt_u32") C2("s_cmp_le_u32") C2("s_bitcmp0_b32") C2("s_bitcmp1_b32")
  CW("s_cmp_eq_u64") CW("s_cmp_lg_u64")
  // clang-format on
}

// Immediate forms, carries, bit sets, conditional moves.
KERNEL scalar_immediate(u32* out, u32 a, u32 b) {
  u32 low = a, high = b, flags = a, moved = b, scaled = a, wide = 0;
  asm("s_add_u32 %0, %0, %2\n\ts_addc_u32 %1, %1, %3"
      : "+s"(low), "+s"(high)
      : "s"(b), "s"(a)
      : "scc");
  asm("s_bitset1_b32 %0, 7\n\ts_bitset0_b32 %0, 3" : "+s"(flags));
  asm("s_cmpk_gt_u32 %1, 0x1234\n\ts_cmovk_i32 %0, 0xff80" : "+s"(moved) : "s"(a) : "scc");
  asm("s_mulk_i32 %0, 0xfffd\n\ts_addk_i32 %0, 0x7fff" : "+s"(scaled) : : "scc");
  asm("s_movk_i32 %0, 0x8001\n\ts_cmp_lg_u32 %1, 0\n\ts_cmov_b32 %0, %1"
      : "+s"(wide)
      : "s"(b)
      : "scc");
  if (threadIdx.x == 0) {
    out[0] = low;
    out[1] = high;
    out[2] = flags;
    out[3] = moved;
    out[4] = scaled;
    out[5] = wide;
  }
}
