// Private memory: local arrays with indices known at run time only, and pointers to them.
#include "hip_names.h"

KERNEL insertion_sort(i32* out, const i32* in, int count) {
  i32 local[40];
  const u32 base = global_id() * count;
  for (int i = 0; i < count; ++i) {
    const i32 value = in[base + i];
    int at = i;
    while (at > 0 && local[at - 1] > value) {
      local[at] = local[at - 1];
      --at;
    }
    local[at] = value;
  }
  for (int i = 0; i < count; ++i) out[base + i] = local[i];
}

KERNEL private_histogram(u8* out, const u8* in, int count) {
  u8 bins[64] = {};
  for (int i = 0; i < count; ++i) ++bins[in[global_id() * count + i] & 63];
  for (int i = 0; i < 64; ++i) out[global_id() * 64 + i] = bins[i];
}

KERNEL reverse_wide(u64* out, const u64* in, const u32* order) {
  u64 local[16];
  const u32 base = global_id() * 16;
  for (int i = 0; i < 16; ++i) local[order[i] & 15] = in[base + i];
  for (int i = 0; i < 16; ++i) out[base + i] = local[15 - i] + local[i & order[3] & 15];
}

// The pointer is to LDS, to private memory or to global memory: generic (flat) accesses.
NOINLINE __device__ i32 sum_through(const i32* from, int count) {
  i32 sum = 0;
  for (int i = 0; i < count; ++i) sum += from[i] * (i + 1);
  return sum;
}
NOINLINE __device__ void fill_through(i32* to, int count, i32 start) {
  for (int i = 0; i < count; ++i) to[i] = start + i * i;
}
KERNEL generic_pointers(i32* out, const i32* in, const u32* which, int n) {
  __shared__ i32 shared[16];
  i32 local[16];
  const u32 i = global_id();
  fill_through(local, 16, static_cast<i32>(i));
  if (threadIdx.x == 0) fill_through(shared, 16, 1000);
  __syncthreads();
  if (i >= static_cast<u32>(n)) return;
  const i32* from = which[i] == 0 ? shared : which[i] == 1 ? local : in;
  out[i] = sum_through(from, 16);
}

// Is a generic pointer in LDS or private memory? The apertures answer.
KERNEL pointer_kinds(u32* out, const u32* which) {
  __shared__ u32 shared[4];
  u32 local[4] = {1, 2, 3, threadIdx.x};
  const u32 kind = which[threadIdx.x];
  const u32* pointer = kind == 0 ? shared : kind == 1 ? local : which;
  if (threadIdx.x == 0) shared[0] = 5;
  __syncthreads();
  using Generic = const __attribute__((address_space(0))) void*;
  const bool in_lds = __builtin_amdgcn_is_shared((Generic)pointer);
  const bool in_private = __builtin_amdgcn_is_private((Generic)pointer);
  out[threadIdx.x] = (in_lds ? 1 : 0) + (in_private ? 2 : 0) + (pointer[0] << 4);
}

// Small structures in private memory: unaligned members, whole copies.
struct __attribute__((packed)) Record {
  u8 tag;
  u32 key;
  u16 weight;
  u64 payload;
};
KERNEL packed_records(u64* out, const u8* in, const u32* pick, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  Record records[6];
  __builtin_memcpy(records, in + i, sizeof(records));
  const Record chosen = records[pick[i] % 6];
  records[pick[i + 1] % 6] = records[0];
  out[2 * i] = chosen.tag + chosen.key + chosen.weight + chosen.payload;
  out[2 * i + 1] = records[5].payload ^ records[1].key;
}

// An array as long as the lane asks for: the stack grows at run time.
KERNEL variable_length(u32* out, const u32* lengths, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u32 length = lengths[i] % 33 + 1;
  u32* const table = static_cast<u32*>(__builtin_alloca(length * sizeof(u32)));
  for (u32 j = 0; j < length; ++j) table[j] = j * j + i;
  u32 sum = 0;
  for (u32 j = 0; j < length; ++j) sum += table[length - 1 - j] * (j + 1);
  out[i] = sum;
}
