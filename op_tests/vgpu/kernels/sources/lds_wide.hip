// LDS accesses of every width, pairs, strides, and sub-dword halves.
#include "hip_names.h"

KERNEL lds_vectors(U32x4* out, U32x3* out3, const U32x4* in) {
  __shared__ U32x4 wide[64];
  __shared__ u32 words[3 * 64 + 1];
  const u32 self = threadIdx.x;
  const U32x4 value = in[self];
  wide[self] = value;
  words[3 * self] = value.x;
  words[3 * self + 1] = value.y;
  words[3 * self + 2] = value.z;
  __syncthreads();
  out[self] = wide[63 - self] + wide[(self + 5) & 63].yxwz;
  const u32* at = words + 3 * (self ^ 9);
  out3[self] = U32x3{at[0], at[1], at[2]};
}

KERNEL lds_pairs(u64* out, const u64* in) {
  __shared__ u64 wide[512];
  __shared__ u32 words[1024];
  const u32 self = threadIdx.x;
  wide[self] = in[self];
  wide[self + 64] = in[self + 64];
  wide[self + 256] = in[self] * 3;
  words[self] = static_cast<u32>(in[self]);
  words[self + 17] = 0;
  words[self + 640] = static_cast<u32>(in[self] >> 32);
  words[self + 128] = self;
  __syncthreads();
  const u32 other = 63 - self;
  out[self] = wide[other] + wide[other + 64] + wide[other + 256];
  out[self + 64] = static_cast<u64>(words[self + 128]) * words[self + 640] + words[other + 128];
}

KERNEL lds_narrow(i32* out, const i32* in) {
  __shared__ i8 bytes[256];
  __shared__ u16 shorts[256];
  __shared__ f16 halves[256];
  const u32 self = threadIdx.x;
  bytes[self] = static_cast<i8>(in[self]);
  shorts[self] = static_cast<u16>(in[self] >> 4);
  halves[self] = static_cast<f16>(in[self] & 1023);
  __syncthreads();
  const u32 other = (self * 7 + 3) & 255;
  const F16x2 pair = {halves[other], halves[255 - self]};
  const F16x2 sum = pair + pair.yx;
  out[self] = bytes[other] + static_cast<u8>(bytes[255 - other]) + shorts[other] +
              static_cast<i16>(shorts[self ^ 1]) + static_cast<i32>(sum.x);
}

// Unaligned wide accesses in LDS.
struct __attribute__((packed)) Loose {
  u64 value;
};
KERNEL lds_unaligned(u64* out, const u8* in) {
  __shared__ u8 bytes[512];
  const u32 self = threadIdx.x;
  for (u32 i = 0; i < 8; ++i) bytes[self * 8 + i] = in[self * 8 + i];
  __syncthreads();
  out[self] = reinterpret_cast<const Loose*>(bytes + self * 7 + (self & 3))->value;
}
