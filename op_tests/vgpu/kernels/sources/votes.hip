// What lanes tell each other: votes, shuffles, DPP, swizzles, lane reads.
#include "hip_names.h"

KERNEL votes(u64* out, const i32* in) {
  const i32 value = in[global_id()];
  u64* row = out + 8 * global_id();
  row[0] = __ballot(value > 0);
  row[1] = __any(value == 77);
  row[2] = __all(value > -1000);
  row[3] = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 5));
  row[4] = static_cast<u32>(__builtin_amdgcn_readfirstlane(value));
  row[5] = static_cast<u32>(__builtin_amdgcn_readlane(value, 37));
  row[6] = 0;
  row[7] = 0;
  if (value & 1) {
    row[6] = __ballot(true);
    row[7] = static_cast<u32>(__builtin_amdgcn_readfirstlane(value));
  }
}

// The lanes that hold the same value, by a loop over the distinct ones.
KERNEL match_any(u64* out, const u32* in) {
  const u32 value = in[global_id()];
  u64 same = 0;
  for (bool pending = true; pending;) {
    const u32 leader = __builtin_amdgcn_readfirstlane(value);
    if (value == leader) {
      same = __ballot(true);
      pending = false;
    }
  }
  out[global_id()] = same;
}

KERNEL shuffles(i32* out, const i32* in, i32 source, u32 delta) {
  const i32 value = in[global_id()];
  i32* row = out + 12 * global_id();
  row[0] = __shfl(value, source);
  row[1] = __shfl(value, source, 16);
  row[2] = __shfl_up(value, delta);
  row[3] = __shfl_up(value, delta, 8);
  row[4] = __shfl_down(value, delta);
  row[5] = __shfl_down(value, delta, 32);
  row[6] = __shfl_xor(value, 5);
  row[7] = __shfl_xor(value, 33);
  row[8] = __shfl(value, value & 63);
  row[9] = __builtin_amdgcn_ds_permute(static_cast<int>((lane_id() * 5 + 3) & 63) * 4, value);
  row[10] = __builtin_amdgcn_ds_swizzle(value, 0x041f);  // bit mode: xor 1
  row[11] = __builtin_amdgcn_ds_swizzle(value, 0x80b1);  // quad mode: [1,0,3,2]
}

KERNEL shuffles_wide(double* out, i64* whole, const double* in, u32 delta) {
  const double value = in[global_id()];
  out[global_id()] = __shfl_down(value, delta) + __shfl_xor(value, 16);
  whole[global_id()] = __shfl(bits<i64>(value), 63 - static_cast<int>(lane_id()));
}

// Half of the lanes are off: a disabled lane's value does not arrive by DPP, and bound_ctrl
// decides what does.
#define DPP_ROW(slot, control) \
  row[slot] = __builtin_amdgcn_update_dpp(-1, value, control, 0xf, 0xf, false);
KERNEL dpp_controls(i32* out, const i32* in) {
  const i32 value = in[global_id()];
  i32* row = out + 20 * global_id();
  DPP_ROW(0, 0x1b)    // quad_perm [3,2,1,0]
  DPP_ROW(1, 0x101)   // row_shl:1
  DPP_ROW(2, 0x10f)   // row_shl:15
  DPP_ROW(3, 0x113)   // row_shr:3
  DPP_ROW(4, 0x125)   // row_ror:5
  DPP_ROW(5, 0x130)   // wave_shl:1
  DPP_ROW(6, 0x134)   // wave_rol:1
  DPP_ROW(7, 0x138)   // wave_shr:1
  DPP_ROW(8, 0x13c)   // wave_ror:1
  DPP_ROW(9, 0x140)   // row_mirror
  DPP_ROW(10, 0x141)  // row_half_mirror
  DPP_ROW(11, 0x142)  // row_bcast:15
  DPP_ROW(12, 0x143)  // row_bcast:31
  DPP_ROW(13, 0x153)  // row_newbcast:3
  row[14] = __builtin_amdgcn_update_dpp(-1, value, 0x111, 0x5, 0xf, false);
  row[15] = __builtin_amdgcn_update_dpp(-1, value, 0x111, 0xf, 0x6, false);
  row[16] = __builtin_amdgcn_update_dpp(-1, value, 0x112, 0xf, 0xf, true);
  i32 partial = -2;
  if (lane_id() & 1) partial = __builtin_amdgcn_update_dpp(-1, value, 0xb1, 0xf, 0xf, false);
  row[17] = partial;
  partial = -2;
  if (lane_id() & 1) partial = __builtin_amdgcn_update_dpp(-1, value, 0xb1, 0xf, 0xf, true);
  row[18] = partial;
  row[19] = 1 + __builtin_amdgcn_update_dpp(0, value, 0x118, 0xf, 0xf, true);
}

// Writes one lane, reads a lane whose number is computed.
KERNEL lane_writes(i32* out, const i32* in, i32 at) {
  i32 value = in[global_id()];
  asm("v_writelane_b32 %0, %1, 5\n\tv_writelane_b32 %0, 17, 60"
      : "+v"(value)
      : "s"(__builtin_amdgcn_readfirstlane(in[0] * 3)));
  const i32 taken = __builtin_amdgcn_readlane(value, (at + 9) & 63);
  out[global_id()] = value + taken * 1000;
}

// Rotation by the permute network, bytes within a dword.
KERNEL byte_permutes(u32* out, const u32* in, u32 selector) {
  const u32 value = in[global_id()];
  const u32 other = __shfl_xor(value, 1);
  out[2 * global_id()] = __builtin_amdgcn_perm(value, other, selector);
  out[2 * global_id() + 1] = __builtin_amdgcn_alignbyte(value, other, selector & 3);
}
