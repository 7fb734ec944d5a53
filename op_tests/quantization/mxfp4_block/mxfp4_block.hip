// quant_block of rfops/number/mxfp4.h: a lane quantises the block of its thread, as GEMMs do in
// their loads.
#include "rfops/number/mxfp4.h"
using namespace rfops;

extern "C" __global__ void mxfp4_block(U32x4* __restrict__ payload, u32* __restrict__ scale,
                                       const U32x4* __restrict__ x) {
  constexpr u32 kWords = 4 * Mxfp4From<RFOPS_IN>::kWordsOfEight;
  const u32 at = workgroup_id_x() * kWaveSize + thread_id();
  u32 words[kWords];
#pragma unroll
  for (u32 i = 0; i < kWords; ++i) words[i] = x[at * (kWords / 4) + i / 4][i % 4];
  const Mxfp4Block block = quant_block<RFOPS_IN, RFOPS_ROUNDING>(words);
  payload[at] = block.codes;
  scale[at] = block.scale;
}
