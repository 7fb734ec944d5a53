// q of MLA decode, and the token's row of the latent KV cache, in one launch after q_b.
//
//     q         = q_nope k_up^T | rope(q_pe)      of 16 bits, or FP8 of (x / q_scale)
//     kv[slot]  = norm(kv_c) | rope(k_pe)         of 16 bits, or FP8 of (x / kv_scale)
//
// k_up has Input's type, or is FP8 with fp32 scales per 128 x 128 (kWeightFp8), and is widened to
// Input, which holds it exactly. norm is that of RMS with kNorm, otherwise kv_c as it is. With
// kKeyOut also k_pe_out = rope(k_pe). Slots and positions are as of mla_cache_write.hip.
//
// Layout. The first num_product_groups workgroups multiply: a wave has 16 rows of a head's k_up as
// MFMA operand A in registers and goes over the tokens, operand B, by 16. Then come workgroups of
// kv_c, a row to kLatentUnits neighbouring lanes, of k_pe and of q_pe, a unit of a row to a lane
// (attention/row_unit.h). So all waves of a workgroup run the same code.
//
// Guarantees: deterministic; rows of the cache and rope(q_pe) have the bits of mla_cache_write.hip.
// Requires: no slot twice; rows 16-byte aligned (8 of FP8); kNope a multiple of 32, kLatent of 128,
// kRotary of 16, and a power of two of kLatent / 16 units, at most 64.
#include "attention/row_unit.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;           // bf16 or f16
using Angle = RFOPS_ANGLE;        // bf16, f16 or f32
using Norm = RFOPS_NORM;          // bf16, f16 or f32: of kv_norm
using Position = RFOPS_POSITION;  // i32 or Index64
using SlotIdx = RFOPS_SLOT;       // i32 or Index64
constexpr u32 kVec = 8, kNope = RFOPS_NOPE, kRotary = RFOPS_ROTARY, kLatent = RFOPS_LATENT;
constexpr u32 kHeads = RFOPS_HEADS, kThreads = 256, kWaves = kThreads / kWaveSize;
constexpr bool kInterleaved = RFOPS_INTERLEAVED, kNested = RFOPS_NESTED, kNorm = RFOPS_NORMED;
constexpr bool kCacheFp8 = RFOPS_CACHE_FP8, kQueryFp8 = RFOPS_QUERY_FP8;
constexpr bool kWeightFp8 = RFOPS_WEIGHT_FP8, kKeyOut = RFOPS_KEY_OUT;
constexpr u32 kRotaryUnits = kRotary / (2 * kVec), kLatentUnits = kLatent / (2 * kVec);
constexpr u32 kColumnTiles = kLatent / kTileRows, kScaleBlock = 128;
constexpr u32 kStepK = kWaveSize / kTileRows * kVec, kSteps = kNope / kStepK;
constexpr u32 kStepsOfScale = kScaleBlock / kStepK;
constexpr u32 kScaleColumns = (kNope + kScaleBlock - 1) / kScaleBlock;
static_assert(kNope % kStepK == 0 && kLatent % kScaleBlock == 0 && kRotary % (2 * kVec) == 0);
static_assert(kLatentUnits <= kWaveSize && (kLatentUnits & (kLatentUnits - 1)) == 0);

using Unit = RowUnit<Input, kVec, kRotary>;
using Eight = Vec8<Input>;

// Eight neighbours of a row of k_up as they are loaded, and as an operand.
struct Weights {
  static constexpr u32 kDwords = kWeightFp8 ? 2 : 4;
  u32 dword[kDwords];

  __device__ explicit Weights() {}
  __device__ void load(const void* k_up, u64 elem) {
    if constexpr (kWeightFp8) {
      const auto loaded = *reinterpret_cast<const U32x2*>(static_cast<const u8*>(k_up) + elem);
      dword[0] = loaded[0], dword[1] = loaded[1];
    } else {
      const auto loaded = *reinterpret_cast<const U32x4*>(static_cast<const Input*>(k_up) + elem);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) dword[i % kDwords] = loaded[i];
    }
  }
  __device__ U32x4 operand() const {
    if constexpr (kWeightFp8) {
      Eight wide;
#pragma unroll
      for (u32 i = 0; i < kDwords; ++i) {
        const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(dword[i]), false);
        const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(dword[i]), true);
        wide[4 * i] = static_cast<Input>(low[0]), wide[4 * i + 1] = static_cast<Input>(low[1]);
        wide[4 * i + 2] = static_cast<Input>(high[0]);
        wide[4 * i + 3] = static_cast<Input>(high[1]);
      }
      return __builtin_bit_cast(U32x4, wide);
    } else {
      return {dword[0], dword[1], dword[2], dword[kDwords - 1]};
    }
  }
};

}  // namespace

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads)))
mla_absorb_cache_write(
    // What rows of kv_c need comes first, since they take the longest.
    u32 num_product_groups, u32 num_kv_c_groups, u32 num_tokens, u32 num_slots,
    const Input* __restrict__ kv_c,            // [T, kLatent]
    const Norm* __restrict__ kv_norm,          // [kLatent]
    const SlotIdx* __restrict__ slot_indices,  // [num_slots]
    const f32* __restrict__ kv_scale, u32 kv_c_row, u32 num_k_pe_groups, void* __restrict__ kv,
    u32 num_cache_slots, u32 page, u32 page_stride, u32 slot_stride, f32 eps,
    const Input* __restrict__ q_nope,    // [T, heads, kNope]
    const void* __restrict__ k_up,       // [heads, kLatent, kNope]
    const f32* __restrict__ k_up_scale,  // [heads, kLatent / 128, kScaleColumns], strided
    void* __restrict__ q,                // [T, heads, kLatent + kRotary]
    u32 q_nope_token, u32 q_nope_head, u32 k_up_head, u32 k_up_row, u32 q_token, u32 q_head,
    u32 k_up_scale_head, u32 k_up_scale_row, u32 k_up_scale_column, const f32* __restrict__ q_scale,
    const Position* __restrict__ positions,  // [T]
    const Input* __restrict__ k_pe,          // [T, kRotary]
    const Input* __restrict__ q_pe,          // [T, heads, kRotary]
    u32 k_pe_row, u32 q_pe_token, u32 q_pe_head, const Angle* __restrict__ cos_sin,
    const Angle* __restrict__ sin, u32 angle_row, u32 num_positions,
    u32 sin_offset,  // of row 0 of the sines, from `sin` on
    u32 k_pe_out_row,
    Input* __restrict__ k_pe_out) {  // [T, kRotary]
  u32 group = workgroup_id_x();
  const u32 lane = lane_id();
  if (group < num_product_groups) {
    const u32 tile = group * kWaves + wave_id(), head = tile / kColumnTiles;
    if (head >= kHeads) return;
    const u32 column = tile % kColumnTiles * kTileRows, tile_row = lane % kTileRows;
    const u32 k0 = lane / kTileRows * kVec;
    Weights w[kSteps];
#pragma unroll
    for (u32 s = 0; s < kSteps; ++s) {
      w[s].load(k_up, u64{head} * k_up_head + u64{column + tile_row} * k_up_row + k0 + s * kStepK);
    }
    f32 scales[kScaleColumns];
#pragma unroll
    for (u32 b = 0; b < kScaleColumns; ++b) {
      const u32 row = head * k_up_scale_head + column / kScaleBlock * k_up_scale_row;
      scales[b] = kWeightFp8 ? k_up_scale[row + b * k_up_scale_column] : 1.0f;
    }
    const f32 factor = inverse_scale<kQueryFp8>(q_scale);
    for (u32 begin = 0; begin < num_tokens; begin += kTileRows) {
      const u32 token = begin + tile_row, loaded = token < num_tokens ? token : num_tokens - 1;
      const Input* const row = q_nope + u64{loaded} * q_nope_token + u64{head} * q_nope_head;
      U32x4 x[kSteps];
#pragma unroll
      for (u32 s = 0; s < kSteps; ++s)
        x[s] = *reinterpret_cast<const U32x4*>(row + k0 + s * kStepK);
      sched_barrier();  // all loads come before the first is waited for
      F32x4 sum = {};
#pragma unroll
      for (u32 b = 0; b < kScaleColumns; ++b) {
        F32x4 partial = {};
#pragma unroll
        for (u32 s = b * kStepsOfScale; s < kSteps && s < (b + 1) * kStepsOfScale; ++s)
          partial = mfma_16x16x32<Input>(w[s].operand(), x[s], partial);
        sum = kWeightFp8 ? sum + partial * scales[b] : sum + partial;
      }
      if (token >= num_tokens) continue;
      const auto values = __builtin_convertvector(sum, Vec4<Input>);
      const u64 dst = u64{token} * q_token + u64{head} * q_head + column + lane / kTileRows * 4;
      if constexpr (kQueryFp8) {
        const auto element = [&](u32 i) { return static_cast<f32>(values[i]) * factor; };
        *reinterpret_cast<u32*>(static_cast<u8*>(q) + dst) =
            fp8_saturated(element(0), element(1), element(2), element(3));
      } else {
        *reinterpret_cast<Vec4<Input>*>(static_cast<Input*>(q) + dst) = values;
      }
    }
    return;
  }
  group -= num_product_groups;

  const CacheSlots<kNested> cache{num_cache_slots, page, page_stride, slot_stride};
  const auto slot_of = [&](u32 token) {
    return token < num_slots ? static_cast<Index64>(slot_indices[token]) : Index64{-1};
  };
  if (group < num_kv_c_groups) {
    const u32 index = group * kThreads + thread_id(), unit = index % kLatentUnits;
    const u32 row_idx = index / kLatentUnits,
              token = row_idx < num_tokens ? row_idx : num_tokens - 1;
    // Every load that needs no other comes first, because a lone token is bound by latency.
    const Index64 slot_idx = slot_of(token);
    Unit elements(kv_c + u64{token} * kv_c_row, unit, false);
    UnitWeights<Norm, kVec> weights;
    if constexpr (kNorm) weights.load(kv_norm, unit);
    const f32 factor = inverse_scale<kCacheFp8>(kv_scale);
    if constexpr (kNorm) {
      weights.keep();
      elements.normalise<kLatentUnits>(weights, eps);
    }
    if (row_idx >= num_tokens || !cache.contains(slot_idx)) return;
    elements.store_as<kCacheFp8>(kv, cache.offset(slot_idx), unit, false, factor);
    return;
  }
  group -= num_kv_c_groups;

  UnitAngles<Angle, kVec> angles;
  const auto load_angles = [&](Position position, u32 unit) {
    const u64 row = angle_row_offset(position, num_positions, angle_row);
    angles.load(cos_sin + row, sin + (row + sin_offset), unit);
  };
  if (group < num_k_pe_groups) {
    const u32 index = group * kThreads + thread_id();
    const u32 token = index / kRotaryUnits, unit = index % kRotaryUnits;
    if (token >= num_tokens) return;
    const Index64 slot_idx = slot_of(token);
    Unit elements(k_pe + u64{token} * k_pe_row, unit, !kInterleaved);
    const Position position = positions[token];
    const f32 factor = inverse_scale<kCacheFp8>(kv_scale);  // while positions are on their way
    load_angles(position, unit);
    if (!kKeyOut && !cache.contains(slot_idx)) return;
    elements.rotate<kInterleaved>(angles);
    if constexpr (kKeyOut) {
      elements.store(k_pe_out + u64{token} * k_pe_out_row, unit, !kInterleaved);
      if (!cache.contains(slot_idx)) return;
    }
    elements.store_as<kCacheFp8>(kv, cache.offset(slot_idx) + kLatent, unit, !kInterleaved, factor);
    return;
  }
  group -= num_k_pe_groups;

  const HeadUnit<kHeads, kRotaryUnits> head_unit(group * kThreads + thread_id());
  if (head_unit.token >= num_tokens) return;
  Unit elements(q_pe + head_unit.row(q_pe_token, q_pe_head), head_unit.unit, !kInterleaved);
  const Position position = positions[head_unit.token];
  const f32 factor = inverse_scale<kQueryFp8>(q_scale);
  load_angles(position, head_unit.unit);
  elements.rotate<kInterleaved>(angles);
  elements.store_as<kQueryFp8>(q, head_unit.row(q_token, q_head) + kLatent, head_unit.unit,
                               !kInterleaved, factor);
}
