// Global memory in every shape: unaligned, wide, narrow, non-temporal, volatile, copied whole.
#include "hip_names.h"

template <class T>
struct __attribute__((packed)) Unaligned {
  T value;
};
template <class T>
INLINE __device__ T load_unaligned(const u8* from) {
  return reinterpret_cast<const Unaligned<T>*>(from)->value;
}

KERNEL unaligned_loads(u64* out, const u8* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u64* row = out + 6 * i;
  row[0] = load_unaligned<u16>(in + i);
  row[1] = load_unaligned<u32>(in + i);
  row[2] = load_unaligned<u64>(in + i);
  const U32x4 four = load_unaligned<U32x4>(in + i);
  row[3] = four.x + static_cast<u64>(four.y) * four.z + four.w;
  const U32x3 three = load_unaligned<U32x3>(in + 3 * i);
  row[4] = three.x ^ three.y ^ three.z;
  row[5] = static_cast<u64>(static_cast<i64>(load_unaligned<i16>(in + 2 * i + 1)));
}

KERNEL unaligned_stores(u8* out, const u64* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u8* at = out + 15 * i;
  at[0] = static_cast<u8>(i);
  reinterpret_cast<Unaligned<u64>*>(at + 1)->value = in[i];
  reinterpret_cast<Unaligned<u32>*>(at + 9)->value = static_cast<u32>(in[i] >> 7);
  reinterpret_cast<Unaligned<u16>*>(at + 13)->value = static_cast<u16>(in[i] >> 13);
}

KERNEL copy_wide(U32x4* out, const U32x4* in, int n) {
  for (u32 i = global_id(); i < static_cast<u32>(n); i += global_threads()) out[i] = in[i];
}

KERNEL copy_nontemporal(u64* out, const u64* in, u8* bytes_out, const u8* bytes, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  __builtin_nontemporal_store(__builtin_nontemporal_load(in + i) + 1, out + i);
  __builtin_nontemporal_store(static_cast<u8>(__builtin_nontemporal_load(bytes + i) ^ 0x80),
                              bytes_out + i);
}

KERNEL narrow_types(i32* out, const i8* a, const u8* b, const i16* c, const u16* d, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = a[i] * 3 + b[i] * 5 + c[i] * 7 + d[i] * 11;
}

// Halves in both halves of a register: loads that keep the other half.
KERNEL half_pairs(F16x2* out, u16* low, const f16* a, const f16* b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const F16x2 pair = {a[i], b[n - 1 - i]};
  out[i] = pair + pair.yx;
  low[i] = bits<Vec<u16, 2>>(pair).y;
}

struct Block52 {
  u32 words[13];
};
struct Block7 {
  u8 bytes[7];
};
KERNEL copy_structs(Block52* out, Block7* small, const Block52* in, const Block7* small_in,
                    const u32* from, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  Block52 block = in[from[i]];
  block.words[i % 13] += 1;
  out[i] = block;
  small[i] = small_in[from[i]];
}

KERNEL volatile_updates(volatile u32* slots, int rounds) {
  for (int round = 0; round < rounds; ++round) slots[global_id()] = slots[global_id()] * 5 + 1;
}

// Global to LDS without a register in between.
KERNEL direct_to_lds(u32* out, const u32* in) {
  __shared__ u32 tile[256];
  using Global = __attribute__((address_space(1))) u32*;
  using Local = __attribute__((address_space(3))) u32*;
  const u32 wave = threadIdx.x / 64;
  __builtin_amdgcn_global_load_lds((Global) const_cast<u32*>(in + (global_id() ^ 21)),
                                   (Local)(tile + wave * 64), 4, 0, 0);
  __builtin_amdgcn_s_waitcnt(0);
  __syncthreads();
  out[global_id()] = tile[255 - threadIdx.x];
}

// Offsets beyond the instruction's immediate, negative ones, and 64-bit indices.
KERNEL far_offsets(u32* out, const u32* in, i64 index) {
  const u32* base = in + 4096 + threadIdx.x;
  out[threadIdx.x] = base[-4096] + base[-1000] + base[1000] + base[2000] + base[4000] + base[index];
}
