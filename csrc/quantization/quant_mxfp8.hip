// scale[m, b] = 2^e,  payload[m, k] = e4m3(x[m, k] / scale[m, k / 32])
//
//     byte e + 127 = exponent field of (|x|max + kBump) - 8, at least 0     (as fp32 bits)
//
// One e8m0 scale per block of 32 along K; OCP e4m3, rounded to nearest even, saturated at 448. A
// block with an infinity or a NaN gets scale 255 and payloads 0x7f, NaN. Any M, K a multiple of 32.
//
// Layout. 4 lanes hold a block, 8 elements each, loaded as 16 bytes (fp32: twice) and stored as 8.
// With kStrided the rows of x are `pitch` elements apart, otherwise contiguous.
//
// Guarantees: bit-exact to the torch backend.
// Requires: each row of x 16-byte aligned.
#include "quantization/e4m3.h"
#include "rfops/chip/types.h"
#include "rfops/wave/mx_block_amax.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;            // bf16, f16 or f32
constexpr u32 kBump = RFOPS_BUMP;  // rounding of the scale: added to the bits of amax
constexpr bool kStrided = RFOPS_IN_ROWS;
constexpr u32 kThreads = 256;
constexpr u32 kEmax = 8;  // 448 = 1.75 * 2^8 is the largest e4m3
constexpr f32 kMaxE4m3 = 448.0f * kE4m3Half;
constexpr u32 kInfinity = 0x7f800000, kNanByte = 255, kFourNans = 0x7f7f7f7f;

struct Fp8x8 {
  u32 low, high;
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_mxfp8(Fp8x8* __restrict__ payload,  // [M, K / 8]: eight codes
            u8* __restrict__ scale,       // [M, K / 32]
            const Input* __restrict__ x,  // [M, K], row stride `pitch` in elements
            u64 pitch, u32 m, u32 k) {
  const MxEight<Input, kThreads, kStrided> elems(x, pitch, m, k);
  if (!elems.in_bounds) return;
  const u32 amax_bits = __builtin_bit_cast(u32, MxFloat<Input>::amax_value(elems.amax_bits));
  const u32 byte = __builtin_elementwise_sub_sat((amax_bits + kBump) >> 23, kEmax);
  const bool is_nan = amax_bits >= kInfinity;
  // 2^(127 - byte): byte is at most 247 if the block is finite.
  const f32 inverse = __builtin_bit_cast(f32, (254 - byte) << 23) * kE4m3Half;
  const auto quantise4 = [&](u32 begin) {
    f32 scaled[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const f32 value = elems.element(begin + i) * inverse;
      scaled[i] = __builtin_fminf(__builtin_fmaxf(value, -kMaxE4m3), kMaxE4m3);
    }
    return is_nan ? kFourNans : e4m3_of_four(scaled);
  };
  payload[elems.index] = {quantise4(0), quantise4(4)};
  if (elems.has_scale()) scale[elems.block()] = static_cast<u8>(is_nan ? kNanByte : byte);
}
