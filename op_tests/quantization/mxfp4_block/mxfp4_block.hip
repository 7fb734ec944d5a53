// quant_block of rfops/number/mxfp4.h: a lane quantises the block of its thread, as GEMMs do in
// their loads.
#include "rfops/number/mxfp4.h"
using namespace rfops;

extern "C" __global__ void mxfp4_block(U32x4* __restrict__ payload, u32* __restrict__ scale,
                                       const U32x4* __restrict__ x) {
  constexpr u32 kWords = 4 * Mxfp4Float<RFOPS_IN>::kWordsPerEight;
  const u32 block_idx = workgroup_id_x() * kWaveSize + thread_id();
  u32 words[kWords];
#pragma unroll
  for (u32 i = 0; i < kWords; ++i) words[i] = x[block_idx * (kWords / 4) + i / 4][i % 4];
  const Mxfp4Block block = quant_block<RFOPS_IN, RFOPS_ROUNDING>(words);
  payload[block_idx] = block.codes;
  scale[block_idx] = block.scale;
}
