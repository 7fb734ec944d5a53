// scale[m, b] = 2^e,  payload[m, k] = e2m1(x[m, k] / scale[m, k / 32])       (rfops/mxfp4.h)
//
// Two codes a byte, low nibble first; e8m0 scales, one a block of 32 along K. A block with an
// infinity or a NaN has scale 255 and payload 0. Any M, K a multiple of 32.
//
// Layout. 4 lanes hold a block, 8 elements each, which they load as 16 bytes (fp32: twice) and
// store as 4. With kInRows the rows of x are `pitch` apart, else they follow each other.
//
// Promises. Bit-exact to the torch route. The caller aligns each row of x to 16 bytes.
#include "rfops/mxfp4.h"
#include "rfops/reduce.h"
#include "rfops/types.h"

#if !defined(RFOPS_IN) || !defined(RFOPS_ROUNDING) || !defined(RFOPS_IN_ROWS)
#error "quant_mxfp4 needs the RFOPS_ constants below"
#endif

namespace {

using namespace rfops;

using In = RFOPS_IN;              // bf16, f16 or f32
using Rounding = RFOPS_ROUNDING;  // Even, Up or Down
constexpr bool kInRows = RFOPS_IN_ROWS;
constexpr u32 kThreads = 256, kEach = 8, kLanes = 32 / kEach;  // of a block
constexpr u32 kWords = Mxfp4From<In>::kWordsOfEight;

// Over the lanes of a block.
__device__ inline u32 most_of_block(u32 most) {
  const auto fold = [&](f32 other) {
    most = __builtin_elementwise_max(most, __builtin_bit_cast(u32, other));
  };
  fold(details::partner<1>(__builtin_bit_cast(f32, most)));
  fold(details::partner<2>(__builtin_bit_cast(f32, most)));
  return most;
}

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_mxfp4(u32* __restrict__ payload,  // [M, K / 8]: eight codes
            u8* __restrict__ scale,     // [M, K / 32]
            const In* __restrict__ x,   // [M, K], rows in steps of pitch
            u64 pitch, u32 m, u32 k) {
  const u32 eights = k / kEach;  // of a row
  const u64 index = u64{group_x()} * kThreads + thread_in_group();
  if (index >= u64{m} * eights) return;  // whole blocks: K is a multiple of 32
  u64 at = index * kEach;
  if constexpr (kInRows) {
    const u32 row = static_cast<u32>(index / eights);
    at = row * pitch + static_cast<u32>(index - u64{row} * eights) * kEach;
  }
  u32 words[kWords];
#pragma unroll
  for (u32 i = 0; i < kWords; i += 4) {
    const U32x4 four = reinterpret_cast<const U32x4*>(x + at)[i / 4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) words[i + j] = four[j];
  }
  const u32 most = most_of_block(Mxfp4From<In>::most(words));
  const u32 byte = Mxfp4From<In>::template scale<Rounding>(most);
  const u32 codes = fp4_of_eight<In>(words, byte);
  payload[index] = byte == kE8m0NanByte ? 0 : codes;
  if (index % kLanes == 0) scale[index / kLanes] = static_cast<u8>(byte);
}
