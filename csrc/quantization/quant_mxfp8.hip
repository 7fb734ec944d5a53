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
#include "rfops/chip/types.h"
#include "rfops/number/mxfp8_quant.h"
#include "rfops/wave/mx_block_amax.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;            // bf16, f16 or f32
constexpr u32 kBump = RFOPS_BUMP;  // rounding of the scale: added to the bits of amax
constexpr bool kStrided = RFOPS_IN_ROWS;
constexpr u32 kThreads = 256;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_mxfp8(U32x2* __restrict__ payload,  // [M, K / 8]: eight codes
            u8* __restrict__ scale,       // [M, K / 32]
            const Input* __restrict__ x,  // [M, K], row stride `pitch` in elements
            u64 pitch, u32 m, u32 k) {
  const MxEight<Input, kThreads, kStrided> elems(x, pitch, m, k);
  if (!elems.in_bounds) return;
  const Mxfp8Block<Input, kBump> block(elems.amax_bits);
  payload[elems.index] = block.convert(elems);
  if (elems.has_scale()) scale[elems.block()] = block.scale();
}
