// Inclusive and exclusive scans.
#include "hip_names.h"

KERNEL scan_block(int* out, const int* in, int n) {
  __shared__ int buffer[2][256];
  const u32 self = threadIdx.x;
  const u32 at = global_id();
  int from = 0;
  buffer[0][self] = at < static_cast<u32>(n) ? in[at] : 0;
  for (u32 step = 1; step < 256; step *= 2) {
    __syncthreads();
    int value = buffer[from][self];
    if (self >= step) value += buffer[from][self - step];
    from ^= 1;
    buffer[from][self] = value;
  }
  if (at < static_cast<u32>(n)) out[at] = buffer[from][self];
}

template <class T>
INLINE __device__ T wave_scan(T value) {
  for (u32 step = 1; step < 64; step *= 2) {
    const T below = __shfl_up(value, step);
    if (lane_id() >= step) value += below;
  }
  return value;
}

__launch_bounds__(1024) KERNEL scan_1024(i64* out, const i32* in) {
  __shared__ i64 wave_total[16];
  const u32 wave = threadIdx.x / 64;
  i64 value = wave_scan(static_cast<i64>(in[global_id()]));
  if (lane_id() == 63) wave_total[wave] = value;
  __syncthreads();
  if (threadIdx.x < 64) {
    const i64 total = wave_scan(threadIdx.x < 16 ? wave_total[threadIdx.x] : 0);
    if (threadIdx.x < 16) wave_total[threadIdx.x] = total;
  }
  __syncthreads();
  if (wave > 0) value += wave_total[wave - 1];
  out[global_id()] = value;
}

// Exclusive scan of flags by counting the ballot below the lane: stream compaction of one wave.
KERNEL compact_odd(int* out, int* count, const int* in) {
  const int value = in[threadIdx.x];
  const bool keep = value & 1;
  const u64 mask = __ballot(keep);
  const u32 rank = __builtin_amdgcn_mbcnt_hi(mask >> 32, __builtin_amdgcn_mbcnt_lo(mask, 0));
  if (keep) out[rank] = value;
  if (threadIdx.x == 0) *count = __builtin_popcountll(mask);
}
