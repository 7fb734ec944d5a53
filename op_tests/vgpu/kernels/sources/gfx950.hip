// What gfx950 alone has: row swaps between two registers, three-operand bit tables.
#include "hip_names.h"

KERNEL permlane_swaps(u32* out, const u32* in) {
  const u32 a = in[threadIdx.x];
  const u32 b = in[64 + threadIdx.x];
  const auto sixteen = __builtin_amdgcn_permlane16_swap(a, b, false, false);
  const auto thirty_two = __builtin_amdgcn_permlane32_swap(a, b, false, false);
  out[4 * threadIdx.x] = sixteen[0];
  out[4 * threadIdx.x + 1] = sixteen[1];
  out[4 * threadIdx.x + 2] = thirty_two[0];
  out[4 * threadIdx.x + 3] = thirty_two[1];
}

KERNEL bit_operations_950(u32* out, const u32* in_a, const u32* in_b, const u32* in_c, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u32 a = in_a[i];
  const u32 b = in_b[i];
  const u32 c = in_c[i];
  out[3 * i] = (a & ~b) | (c ^ a);
  out[3 * i + 1] = (a ^ b) & (b | c);
  out[3 * i + 2] = __builtin_amdgcn_bitop3_b32(a, b, c, 0x96);
}
