// Gather loads of a tile of one expert's rows to LDS, MXFP4 or MX-FP8, one chunk of kChunk K-steps
// of 128 bytes at a time, direct-to-LDS or through registers (gfx950).
//
// LDS layout of a chunk: for each K-step kRows rows of 128 bytes, swizzled as in lds_offset_mxfp4;
// then the scales of the rows, in the order of memory.
#pragma once

#include "moe/mx_format.h"
#include "rfops/chip/sync.h"
#include "rfops/tile/mxfp4_k_step.h"

namespace rfops {

template <class Format, u32 kRows, u32 kChunk, u32 kWaves, bool kIsX>
class RowChunkLoader {
 public:
  using Scales = ScaleLayout<Format, kChunk>;
  static constexpr u32 kSteps = kChunk;
  static constexpr u32 kStepBytes = kRows * kRowBytes;
  static constexpr u32 kScalesOffset = kChunk * kStepBytes;
  static constexpr u32 kBytes = kScalesOffset + kRows * Scales::kBlocks;  // of LDS per chunk

  // The matrix (x or h) has `rows` rows of `steps` K-steps. load_indices and init_offsets select
  // the rows of the tile.
  __device__ RowChunkLoader(const u8* q, const u8* scales, u32 rows, u32 steps)
      : payload_(make_buffer_words(q, rows * steps * kRowBytes)),
        scales_(make_buffer_words(scales, rows * steps * Scales::kStepBlocks)),
        steps_(steps),
        scale_row_stride_(kByChunks ? Scales::kBlocks : steps * Scales::kStepBlocks),
        scale_chunk_stride_(kByChunks ? rows * Scales::kBlocks : Scales::kBlocks) {}
  // row_of(row) returns the matrix row of a row of the tile, or kOutOfBounds.
  template <class RowOf>
  __device__ RowChunkLoader(const u8* q, const u8* scales, u32 rows, u32 steps, RowOf row_of)
      : RowChunkLoader(q, scales, rows, steps) {
    load_indices(row_of);
    init_offsets([](u32, u32 row) { return row; });
  }

  // The same in two steps, with other loads in between: word_of(row) is in flight until
  // row_of(row, word) uses it.
  template <class WordOf>
  __device__ void load_indices(WordOf word_of) {
#pragma unroll
    for (u32 i = 0; i < kWaveGroups; ++i) row_src_[i] = word_of(row_of_load(i));
#pragma unroll
    for (u32 i = 0; i < kWaveScaleLoads; ++i) scale_src_[i] = word_of(row_of_scale(i));
  }
  template <class RowOf>
  __device__ void init_offsets(RowOf row_of) {
    const u32 lane = lane_id(), chunk_pos = lane % kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kWaveGroups; ++i) {
      const u32 row = row_of_load(i), number = row_of(row, row_src_[i]);
      const u32 offset = number * steps_ * kRowBytes + (chunk_pos ^ row % kRowChunks) * kVecBytes;
      row_src_[i] = number == kOutOfBounds ? kOutOfBounds : offset;
    }
#pragma unroll
    for (u32 i = 0; i < kWaveScaleLoads; ++i) {
      const u32 row = row_of_scale(i), number = row_of(row, scale_src_[i]);
      const u32 offset = number * scale_row_stride_ + lane % kDwords * 4;
      scale_src_[i] = number == kOutOfBounds || row >= kRows ? kOutOfBounds : offset;
    }
  }

  // Loads a chunk through registers; write_lds stores it. The compiler counts these loads together
  // with those of weights and waits for no more than it must; it does not count direct-to-LDS
  // loads.
  __device__ void load(u32 chunk, bool in_bounds) {
    const Buffer payload = buffer_of(payload_, in_bounds);
    const Buffer scales = buffer_of(scales_, in_bounds);
#pragma unroll
    for (u32 i = 0; i < kIssues; ++i) {
      staged_[i] = buffer_load_b128(payload, row_src_[kWaveGroups == 1 ? 0 : i % kWaveGroups],
                                    (chunk * kChunk + step_of(i)) * kRowBytes);
    }
#pragma unroll
    for (u32 i = 0; i < kWaveScaleLoads; ++i) {
      staged_scales_[i] =
          buffer_load_dwords<1>(scales, scale_src_[i], chunk * scale_chunk_stride_).dword[0];
    }
    sched_barrier();
  }
  __device__ void write_lds(LdsBytes* lds_dst) const {
    const u32 wave_idx = wave();
    u32 lane = lane_id();
    if constexpr (kScaleLanes < kWaveSize)
      force_vgpr(lane);  // otherwise its mask is kept in registers from the start of the kernel
#pragma unroll
    for (u32 i = 0; i < kIssues; ++i) {
      if (kChunk * kGroups % kWaves != 0 && step_of(i) >= kChunk) break;
      *reinterpret_cast<RFOPS_LDS U32x4*>(lds_dst + lds_offset_of(i) + lane * kVecBytes) =
          staged_[i];
    }
#pragma unroll
    for (u32 i = 0; i < kWaveScaleLoads; ++i) {
      const u32 number = wave_idx + i * kWaves;
      if (kScaleLoads % kWaves != 0 && number >= kScaleLoads) break;
      if (kScaleLanes < kWaveSize && lane >= kScaleLanes) break;
      *reinterpret_cast<RFOPS_LDS u32*>(lds_dst + kScalesOffset + number * (kScaleLanes * 4) +
                                        lane * 4) = staged_scales_[i];
    }
    sched_barrier();
  }

  // Returns how many loads issue_step issues, for chunks of one K-step.
  __device__ static u32 loads_of(u32 rows) {
    return (rows + kRowsPerLoad - 1) / kRowsPerLoad + (rows + kScaleRows - 1) / kScaleRows;
  }
  // Loads one K-step of a chunk direct to LDS, and with the first one the chunk's scales; called by
  // one wave for `rows` rows.
  __device__ void issue_step(LdsBytes* lds_dst, u32 chunk, u32 step, u32 rows) const {
    static_assert(kWaves == 1, "one wave must load all rows");
    const u32 base = readfirstlane(lds_address(lds_dst) + step * kStepBytes);
    const u32 offset = readfirstlane((chunk * kChunk + step) * kRowBytes);
    rows = readfirstlane(rows);  // uniform, but not provably after a loop with several exits
#pragma unroll
    for (u32 i = 0; i < kGroups; ++i) {
      if (i * kRowsPerLoad < rows) {  // no break, because it would prevent unrolling
        buffer_load_lds_b128(payload_, row_src_[i], offset, base + i * (kRowsPerLoad * kRowBytes));
      }
    }
    if (step == 0) issue_scales(lds_dst, readfirstlane(chunk), rows);
  }

  // Loads a chunk direct to LDS; called by all waves.
  __device__ void issue(LdsBytes* lds_dst, u32 chunk) const {
    issue_scales(lds_dst, chunk);
    issue<0, kIssues>(lds_dst, chunk);
  }
  __device__ void issue_scales(LdsBytes* lds_dst, u32 chunk) const {
    issue_scales(lds_dst, chunk, kRows);
  }
  // Issues loads kBegin .. kEnd - 1 of a wave's kIssues, without a branch; out-of-range rows load
  // zeros.
  template <u32 kBegin, u32 kEnd>
  __device__ void issue(LdsBytes* lds_dst, u32 chunk, bool in_bounds = true) const {
    if constexpr (kBegin < kEnd) {
      const u32 src = row_src_[kWaveGroups == 1 ? 0 : kBegin % kWaveGroups];
      buffer_load_lds_b128(payload_, src | (in_bounds ? 0 : kOutOfBounds),
                           (chunk * kChunk + step_of(kBegin)) * kRowBytes,
                           lds_address(lds_dst) + lds_offset_of(kBegin));
      issue<kBegin + 1, kEnd>(lds_dst, chunk, in_bounds);
    }
  }

 private:
  static constexpr u32 kRowsPerLoad = kWaveSize / kRowChunks, kGroups = kRows / kRowsPerLoad;
  // Groups of rows that a wave loads: one group, of several K-steps, if there are as many waves.
  static constexpr u32 kWaveGroups = kGroups > kWaves ? (kGroups + kWaves - 1) / kWaves : 1;
  static_assert(kGroups > kWaves || kWaves % kGroups == 0, "a wave's rows must be the same again");
  static constexpr u32 kDwords = Scales::kBlocks / 4;  // scales of a row
  static constexpr u32 kScaleLanes = kRows * kDwords < kWaveSize ? kRows * kDwords : kWaveSize;
  static constexpr u32 kScaleRows = kScaleLanes / kDwords;
  static constexpr u32 kScaleLoads = (kRows + kScaleRows - 1) / kScaleRows;
  static constexpr u32 kTailLanes = kRows * kDwords % kScaleLanes;  // of the last scale load
  static_assert(kTailLanes == 0 || kWaves == 1, "only a single wave knows the last load");
  static constexpr u32 kWaveScaleLoads = (kScaleLoads + kWaves - 1) / kWaves;

 public:
  static constexpr u32 kMaxLoads = kGroups + kScaleLoads;
  static constexpr u32 kIssues =
      kGroups > kWaves ? kChunk * kWaveGroups : (kChunk * kGroups + kWaves - 1) / kWaves;

 private:
  static constexpr bool kByChunks = kIsX && Scales::kXByChunks;
  // The rows and the K-step of a wave's load `i`: with more waves than groups, several K-steps. If
  // the groups do not divide evenly, the last group is loaded twice.
  __device__ static u32 group_of(u32 i) {
    if constexpr (kGroups <= kWaves) return (wave() + i * kWaves) % kGroups;
    const u32 group = wave() + i % kWaveGroups * kWaves;
    if (kGroups % kWaves == 0 || i % kWaveGroups + 1 < kWaveGroups) return group;
    return group < kGroups ? group : kGroups - 1;
  }
  __device__ static u32 row_of_load(u32 i) {
    return group_of(i) * kRowsPerLoad + lane_id() / kRowChunks;
  }
  __device__ static u32 row_of_scale(u32 i) {
    return (wave() + i * kWaves) * kScaleRows + lane_id() / kDwords;
  }
  __device__ static u32 step_of(u32 i) {
    return kGroups > kWaves ? i / kWaveGroups : (wave() + i * kWaves) / kGroups;
  }
  __device__ static u32 lds_offset_of(u32 i) {
    return step_of(i) * kStepBytes + group_of(i) * (kRowsPerLoad * kRowBytes);
  }
  __device__ void issue_scales(LdsBytes* lds_dst, u32 chunk, u32 rows) const {
    const u32 wave_idx = wave(), base = readfirstlane(lds_address(lds_dst));
#pragma unroll
    for (u32 i = 0; i < kWaveScaleLoads; ++i) {
      const u32 number = wave_idx + i * kWaves;
      if (kScaleLoads % kWaves != 0 && number >= kScaleLoads) break;
      if (kWaves > 1 || number * kScaleRows < rows) {
        const u32 offset = chunk * scale_chunk_stride_;
        const u32 lds_offset = base + kScalesOffset + number * (kScaleLanes * 4);
        if (kTailLanes > 0 && i + 1 == kWaveScaleLoads) {  // what follows belongs to other loads
          buffer_load_lds_b32<(kTailLanes > 0 ? kTailLanes : kScaleLanes)>(scales_, scale_src_[i],
                                                                           offset, lds_offset);
        } else {
          buffer_load_lds_b32<kScaleLanes>(scales_, scale_src_[i], offset, lds_offset);
        }
      }
    }
  }
  __device__ static u32 wave() { return kWaves > 1 ? wave_id() : 0; }  // index among the loaders
  __device__ static Buffer buffer_of(U32x4 words, bool in_bounds) {
    const u64 base = u64{words[1]} << 32 | words[0];
    return make_buffer(reinterpret_cast<const u8*>(base), in_bounds ? words[2] : 0);
  }
  __device__ static void buffer_load_lds_b128(U32x4 buffer, u32 lane_offset, u32 offset,
                                              u32 lds_dst) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dwordx4 %1, %2, %3 offen lds"
                 :
                 : "s"(lds_dst), "v"(lane_offset), "s"(buffer), "s"(offset)
                 : "memory");
  }

  U32x4 payload_, scales_;
  u32 steps_, scale_row_stride_, scale_chunk_stride_;
  u32 row_src_[kWaveGroups], scale_src_[kWaveScaleLoads];
  U32x4 staged_[kIssues];
  u32 staged_scales_[kWaveScaleLoads];
};

}  // namespace rfops
