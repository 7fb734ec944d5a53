// Vector instructions by their own names: what no source expression is sure to give.
#include "hip_names.h"

#define ROW(count)                        \
  const u32 i = global_id();              \
  if (i >= static_cast<u32>(n)) return;   \
  const u32 a = in_a[i];                  \
  const u32 b = in_b[i];                  \
  [[maybe_unused]] const u32 c = in_c[i]; \
  u32* row = out + (count) * i;           \
  u32 slot = 0;
#define OP1(text)                                 \
  asm(text " %0, %1" : "=v"(row[slot]) : "v"(a)); \
  ++slot;
#define OP2(text)                                             \
  asm(text " %0, %1, %2" : "=v"(row[slot]) : "v"(a), "v"(b)); \
  ++slot;
#define OP3(text)                                                         \
  asm(text " %0, %1, %2, %3" : "=v"(row[slot]) : "v"(a), "v"(b), "v"(c)); \
  ++slot;
// The instruction changes its destination.
#define CHANGE2(text, tail)                                         \
  {                                                                 \
    u32 changed = c;                                                \
    asm(text " %0, %1, %2 " tail : "+v"(changed) : "v"(a), "v"(b)); \
    row[slot++] = changed;                                          \
  }
#define SDWA(name, dst, unused, src0, src1) \
  CHANGE2(name "_sdwa",                     \
          "dst_sel:" #dst " dst_unused:UNUSED_" #unused " src0_sel:" #src0 " src1_sel:" #src1)

// clang-format off
KERNEL three_operands(u32* out, const u32* in_a, const u32* in_b, const u32* in_c, int n) {
  ROW(26)
  OP3("v_add3_u32") OP3("v_lshl_add_u32") OP3("v_add_lshl_u32") OP3("v_and_or_b32")
  OP3("v_or3_b32") OP3("v_lshl_or_b32") OP3("v_xad_u32") OP3("v_bfi_b32")
  OP3("v_alignbit_b32") OP3("v_alignbyte_b32") OP3("v_perm_b32") OP3("v_sad_u8")
  OP3("v_sad_hi_u8") OP3("v_sad_u16") OP3("v_sad_u32") OP3("v_mad_i32_i24")
  OP3("v_mad_u32_u24") OP3("v_med3_i32") OP3("v_med3_u32") OP3("v_min3_i32")
  OP3("v_max3_u32") OP3("v_min3_u32") OP3("v_max3_i32") OP3("v_mad_u16")
  OP3("v_mad_u32_u16") OP3("v_msad_u8")
}

KERNEL two_operands(u32* out, const u32* in_a, const u32* in_b, const u32* in_c, int n) {
  ROW(26)
  OP2("v_mul_i32_i24") OP2("v_mul_hi_i32_i24") OP2("v_mul_u32_u24") OP2("v_mul_hi_u32_u24")
  OP2("v_mul_lo_u32") OP2("v_mul_hi_u32") OP2("v_mul_hi_i32") OP2("v_lshlrev_b32")
  OP2("v_lshrrev_b32") OP2("v_ashrrev_i32") OP2("v_bcnt_u32_b32") OP2("v_bfm_b32")
  OP2("v_xnor_b32") OP2("v_sub_u32") OP2("v_subrev_u32") OP2("v_min_u16")
  OP2("v_max_i16") OP2("v_add_u16") OP2("v_sub_u16") OP2("v_mul_lo_u16")
  OP2("v_lshlrev_b16") OP2("v_ashrrev_i16") OP2("v_lshrrev_b16") OP2("v_mbcnt_lo_u32_b32")
  OP2("v_pack_b32_f16") OP2("v_cvt_pk_u16_u32")
}

// clang-format on

KERNEL one_operand(u32* out, const u32* in_a, const u32* in_b, const u32* in_c, int n) {
  ROW(8)
  row[7] = b + c;
  // clang-format off
  OP1("v_not_b32") OP1("v_bfrev_b32") OP1("v_ffbh_u32") OP1("v_ffbl_b32") OP1("v_ffbh_i32")
  OP1("v_sat_pk_u8_i16") OP1("v_mov_b32")
  // clang-format on
}

// Sub-dword selects: sources, sign extension, what becomes of the rest of the destination.
KERNEL sub_dword(u32* out, const u32* in_a, const u32* in_b, const u32* in_c, int n) {
  ROW(10)
  // clang-format off
  SDWA("v_add_u32", DWORD, PAD, BYTE_1, WORD_1)
  SDWA("v_add_u32", BYTE_2, PRESERVE, DWORD, BYTE_3)
  SDWA("v_sub_u32", WORD_0, SEXT, WORD_0, BYTE_0)
  SDWA("v_and_b32", WORD_1, PAD, WORD_1, WORD_0)
  SDWA("v_or_b32", BYTE_3, PRESERVE, BYTE_0, BYTE_0)
  SDWA("v_lshlrev_b32", DWORD, PAD, BYTE_0, WORD_1)
  // clang-format on
  {
    u32 changed = c;
    asm("v_add_u32_sdwa %0, sext(%1), sext(%2) dst_sel:DWORD dst_unused:UNUSED_PAD "
        "src0_sel:BYTE_2 src1_sel:WORD_0"
        : "+v"(changed)
        : "v"(a), "v"(b));
    row[slot++] = changed;
  }
  {
    u32 changed = c;
    asm("v_mov_b32_sdwa %0, sext(%1) dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3"
        : "+v"(changed)
        : "v"(a));
    row[slot++] = changed;
  }
  {
    u32 selected = 0;
    asm("v_cmp_gt_u32_sdwa vcc, %1, %2 src0_sel:BYTE_0 src1_sel:BYTE_1\n\t"
        "v_cndmask_b32_e32 %0, 0, %1, vcc"
        : "=v"(selected)
        : "v"(a), "v"(b)
        : "vcc");
    row[slot++] = selected;
  }
  {
    u32 changed = c;
    asm("v_xor_b32_sdwa %0, %1, %2 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_3 "
        "src1_sel:BYTE_2"
        : "+v"(changed)
        : "v"(a), "v"(b));
    row[slot++] = changed;
  }
}

// Carries in and out of lane masks, 64-bit products and shifts.
KERNEL carries(u64* out, const u64* in_a, const u64* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u64 a = in_a[i];
  const u64 b = in_b[i];
  const u32 a0 = static_cast<u32>(a), a1 = static_cast<u32>(a >> 32);
  const u32 b0 = static_cast<u32>(b), b1 = static_cast<u32>(b >> 32);
  u64* row = out + 8 * i;
  u32 low, high;
  asm("v_add_co_u32 %0, vcc, %2, %3\n\tv_addc_co_u32 %1, vcc, %4, %5, vcc"
      : "=&v"(low), "=v"(high)
      : "v"(a0), "v"(b0), "v"(a1), "v"(b1)
      : "vcc");
  row[0] = static_cast<u64>(high) << 32 | low;
  u64 mask;
  asm("v_sub_co_u32 %0, %2, %3, %4\n\tv_subb_co_u32 %1, %2, %5, %6, %2"
      : "=&v"(low), "=&v"(high), "=&s"(mask)
      : "v"(a0), "v"(b0), "v"(a1), "v"(b1));
  row[1] = static_cast<u64>(high) << 32 | low;
  u64 product;
  asm("v_mad_u64_u32 %0, vcc, %1, %2, %3" : "=v"(product) : "v"(a0), "v"(b1), "v"(b) : "vcc");
  row[2] = product;
  asm("v_mad_i64_i32 %0, %1, %2, %3, %4" : "=v"(product), "=s"(mask) : "v"(a0), "v"(b1), "v"(a));
  row[3] = product;
  u32 shift = b0 & 63;
  asm("v_lshlrev_b64 %0, %1, %2" : "=v"(row[4]) : "v"(shift), "v"(a));
  asm("v_ashrrev_i64 %0, %1, %2" : "=v"(row[5]) : "v"(shift), "v"(a));
  asm("v_lshl_add_u64 %0, %1, 3, %2" : "=v"(row[6]) : "v"(a), "v"(b));
  asm("v_mov_b64 %0, %1" : "=v"(row[7]) : "v"(b));
}

// Modifiers: negation, absolute value, output scale and clamp.
KERNEL float_modifiers(float* out, const float* in_a, const float* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const float a = in_a[i];
  const float b = in_b[i];
  float* row = out + 8 * i;
  asm("v_add_f32_e64 %0, -%1, |%2|" : "=v"(row[0]) : "v"(a), "v"(b));
  asm("v_mul_f32_e64 %0, %1, %2 clamp" : "=v"(row[1]) : "v"(a), "v"(b));
  asm("v_add_f32_e64 %0, -|%1|, %2 clamp" : "=v"(row[2]) : "v"(a), "v"(b));
  asm("v_fma_f32 %0, -%1, |%2|, 1.0" : "=v"(row[3]) : "v"(a), "v"(b));
  asm("v_max3_f32 %0, %1, -%2, 0.5" : "=v"(row[4]) : "v"(a), "v"(b));
  asm("v_fmac_f32_e32 %0, 2.0, %1" : "+v"(row[4]) : "v"(b));
  asm("v_fmaak_f32 %0, %1, %2, 0x40490000" : "=v"(row[5]) : "v"(a), "v"(b));
  asm("v_fmamk_f32 %0, %1, 0xc1200000, %2" : "=v"(row[6]) : "v"(a), "v"(b));
  asm("v_sub_f32_e32 %0, 0.15915494, %1" : "=v"(row[7]) : "v"(a));
}
