// scale[m, b] = 2^e,  payload[m, k] = e2m1(x[m, k] / scale[m, k / 32])       (rfops/number/mxfp4.h)
//
// Two codes per byte, low nibble first; one e8m0 scale per block of 32 along K. A block with an
// infinity or a NaN gets scale 255 and payload 0. Any M, K a multiple of 32.
//
// Layout. 4 lanes hold a block, 8 elements each, loaded as 16 bytes (fp32: twice) and stored as 4.
// With kStrided the rows of x are `pitch` elements apart, otherwise contiguous.
//
// Guarantees: bit-exact to the torch backend.
// Requires: each row of x 16-byte aligned.
#include "rfops/chip/types.h"
#include "rfops/number/mxfp4.h"
#include "rfops/wave/mx_block_amax.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;           // bf16, f16 or f32
using Rounding = RFOPS_ROUNDING;  // Even, Up or Down
constexpr bool kStrided = RFOPS_IN_ROWS;
constexpr u32 kThreads = 256;

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
quant_mxfp4(u32* __restrict__ payload,    // [M, K / 8]: eight codes
            u8* __restrict__ scale,       // [M, K / 32]
            const Input* __restrict__ x,  // [M, K], row stride `pitch` in elements
            u64 pitch, u32 m, u32 k) {
  const MxEight<Input, kThreads, kStrided> elems(x, pitch, m, k);
  if (!elems.in_bounds) return;
  const u32 byte = Mxfp4Float<Input>::template scale<Rounding>(elems.amax_bits);
  const u32 codes = quant_x8<Input>(elems.words, byte);
  payload[elems.index] = byte == kE8m0NanByte ? 0 : codes;
  if (elems.has_scale()) scale[elems.block()] = static_cast<u8>(byte);
}
