// Rows of x of a tile of one expert on their way to LDS, MXFP4 or MX-FP8: a chunk of kChunk steps
// of 128 bytes at a time, gathered, straight from memory or through registers (gfx950).
//
// In LDS a chunk is step after step of kRows rows of 128 bytes, permuted as lds_offset_mxfp4 has
// it, then the rows' scales of the chunk, side by side as in memory.
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
  static constexpr u32 kScalesAt = kChunk * kStepBytes;
  static constexpr u32 kBytes = kScalesAt + kRows * Scales::kBlocks;  // of LDS

  // Of `rows` rows in all, each of `steps` steps: of x, or of h. ask and settle say which.
  __device__ RowChunkLoader(const u8* q, const u8* scales, u32 rows, u32 steps)
      : payload_(make_buffer_words(q, rows * steps * kRowBytes)),
        scales_(make_buffer_words(scales, rows * steps * Scales::kStepBlocks)),
        steps_(steps),
        scale_pitch_(kByChunks ? Scales::kBlocks : steps * Scales::kStepBlocks),
        chunk_pitch_(kByChunks ? rows * Scales::kBlocks : Scales::kBlocks) {}
  // row_of(row): which of them a row of the tile is, or kOutOfBounds.
  template <class RowOf>
  __device__ RowChunkLoader(const u8* q, const u8* scales, u32 rows, u32 steps, RowOf row_of)
      : RowChunkLoader(q, scales, rows, steps) {
    ask(row_of);
    scale_and_mask([](u32, u32 row) { return row; });
  }

  // The same in two: word_of(row) is on its way while others are asked for, row_of(row, word).
  template <class WordOf>
  __device__ void ask(WordOf word_of) {
#pragma unroll
    for (u32 i = 0; i < kOwnGroups; ++i) from_[i] = word_of(row_of_load(i));
#pragma unroll
    for (u32 i = 0; i < kOwnScales; ++i) scale_from_[i] = word_of(row_of_scale(i));
  }
  template <class RowOf>
  __device__ void scale_and_mask(RowOf row_of) {
    const u32 lane = lane_id(), slot = lane % kRowChunks;
#pragma unroll
    for (u32 i = 0; i < kOwnGroups; ++i) {
      const u32 row = row_of_load(i), number = row_of(row, from_[i]);
      const u32 at = number * steps_ * kRowBytes + (slot ^ row % kRowChunks) * kVecBytes;
      from_[i] = number == kOutOfBounds ? kOutOfBounds : at;
    }
#pragma unroll
    for (u32 i = 0; i < kOwnScales; ++i) {
      const u32 row = row_of_scale(i), number = row_of(row, scale_from_[i]);
      const u32 at = number * scale_pitch_ + lane % kDwords * 4;
      scale_from_[i] = number == kOutOfBounds || row >= kRows ? kOutOfBounds : at;
    }
  }

  // Chunk number `chunk` through registers: on its way, then to LDS. The compiler counts these
  // loads with those of weights, and waits for no more than it must; it does not count the others.
  __device__ void load(u32 chunk, bool is_there) {
    const Buffer payload = buffer_of(payload_, is_there);
    const Buffer scales = buffer_of(scales_, is_there);
#pragma unroll
    for (u32 i = 0; i < kIssues; ++i) {
      held_[i] = buffer_load_b128(payload, from_[kOwnGroups == 1 ? 0 : i % kOwnGroups],
                                  (chunk * kChunk + step_of(i)) * kRowBytes);
    }
#pragma unroll
    for (u32 i = 0; i < kOwnScales; ++i) {
      scale_held_[i] = buffer_load_dwords<1>(scales, scale_from_[i], chunk * chunk_pitch_).dword[0];
    }
    sched_barrier();
  }
  __device__ void put(LdsBytes* to) const {
    const u32 own = wave();
    u32 lane = lane_id();
    if constexpr (kScaleLanes < kWaveSize)
      force_vgpr(lane);  // else its mask is kept since the beginning
#pragma unroll
    for (u32 i = 0; i < kIssues; ++i) {
      if (kChunk * kGroups % kWaves != 0 && step_of(i) >= kChunk) break;
      *reinterpret_cast<RFOPS_LDS U32x4*>(to + place_of(i) + lane * kVecBytes) = held_[i];
    }
#pragma unroll
    for (u32 i = 0; i < kOwnScales; ++i) {
      const u32 number = own + i * kWaves;
      if (kScaleLoads % kWaves != 0 && number >= kScaleLoads) break;
      if (kScaleLanes < kWaveSize && lane >= kScaleLanes) break;
      *reinterpret_cast<RFOPS_LDS u32*>(to + kScalesAt + number * (kScaleLanes * 4) + lane * 4) =
          scale_held_[i];
    }
    sched_barrier();
  }

  // How many loads that is, of chunks of one step.
  __device__ static u32 loads_of(u32 rows) {
    return (rows + kRowsAtOnce - 1) / kRowsAtOnce + (rows + kScaleRows - 1) / kScaleRows;
  }
  // One step of a chunk straight to LDS, with its first one the chunk's scales; by one wave, and of
  // `rows` rows.
  __device__ void issue_step(LdsBytes* to, u32 chunk, u32 step, u32 rows) const {
    static_assert(kWaves == 1, "all rows are its own");
    const u32 base = readfirstlane(lds_address(to) + step * kStepBytes);
    const u32 at = readfirstlane((chunk * kChunk + step) * kRowBytes);
    rows = readfirstlane(rows);  // it is, but loops of several exits hide it from the compiler
#pragma unroll
    for (u32 i = 0; i < kGroups; ++i) {
      if (i * kRowsAtOnce < rows) {  // no break, of which nothing is unrolled
        buffer_load_lds_b128(payload_, from_[i], at, base + i * (kRowsAtOnce * kRowBytes));
      }
    }
    if (step == 0) issue_scales(to, readfirstlane(chunk), rows);
  }

  // Chunk number `chunk` straight to LDS; by all waves.
  __device__ void issue(LdsBytes* to, u32 chunk) const {
    issue_scales(to, chunk);
    issue<0, kIssues>(to, chunk);
  }
  __device__ void issue_scales(LdsBytes* to, u32 chunk) const { issue_scales(to, chunk, kRows); }
  // A wave's loads kFrom .. kTo - 1 of kIssues, without a branch: of rows there are, or zeros.
  template <u32 kFrom, u32 kTo>
  __device__ void issue(LdsBytes* to, u32 chunk, bool is_there = true) const {
    if constexpr (kFrom < kTo) {
      const u32 from = from_[kOwnGroups == 1 ? 0 : kFrom % kOwnGroups];
      buffer_load_lds_b128(payload_, from | (is_there ? 0 : kOutOfBounds),
                           (chunk * kChunk + step_of(kFrom)) * kRowBytes,
                           lds_address(to) + place_of(kFrom));
      issue<kFrom + 1, kTo>(to, chunk, is_there);
    }
  }

 private:
  static constexpr u32 kRowsAtOnce = kWaveSize / kRowChunks, kGroups = kRows / kRowsAtOnce;
  // Groups of rows that a wave loads: with as many waves or more, one at several steps.
  static constexpr u32 kOwnGroups = kGroups > kWaves ? (kGroups + kWaves - 1) / kWaves : 1;
  static_assert(kGroups > kWaves || kWaves % kGroups == 0, "a wave's rows are the same again");
  static constexpr u32 kDwords = Scales::kBlocks / 4;  // of a row's scales
  static constexpr u32 kScaleLanes = kRows * kDwords < kWaveSize ? kRows * kDwords : kWaveSize;
  static constexpr u32 kScaleRows = kScaleLanes / kDwords;
  static constexpr u32 kScaleLoads = (kRows + kScaleRows - 1) / kScaleRows;
  static constexpr u32 kLeftLanes = kRows * kDwords % kScaleLanes;  // of the last of them
  static_assert(kLeftLanes == 0 || kWaves == 1, "one wave knows which is the last");
  static constexpr u32 kOwnScales = (kScaleLoads + kWaves - 1) / kWaves;

 public:
  static constexpr u32 kMostLoads = kGroups + kScaleLoads;
  static constexpr u32 kIssues =
      kGroups > kWaves ? kChunk * kOwnGroups : (kChunk * kGroups + kWaves - 1) / kWaves;

 private:
  static constexpr bool kByChunks = kIsX && Scales::kXByChunks;
  // Which rows a wave's load `i` brings, of which step: with more waves than groups, of several.
  // The last group twice where waves do not share all out evenly.
  __device__ static u32 group_of(u32 i) {
    if constexpr (kGroups <= kWaves) return (wave() + i * kWaves) % kGroups;
    const u32 group = wave() + i % kOwnGroups * kWaves;
    if (kGroups % kWaves == 0 || i % kOwnGroups + 1 < kOwnGroups) return group;
    return group < kGroups ? group : kGroups - 1;
  }
  __device__ static u32 row_of_load(u32 i) {
    return group_of(i) * kRowsAtOnce + lane_id() / kRowChunks;
  }
  __device__ static u32 row_of_scale(u32 i) {
    return (wave() + i * kWaves) * kScaleRows + lane_id() / kDwords;
  }
  __device__ static u32 step_of(u32 i) {
    return kGroups > kWaves ? i / kOwnGroups : (wave() + i * kWaves) / kGroups;
  }
  __device__ static u32 place_of(u32 i) {
    return step_of(i) * kStepBytes + group_of(i) * (kRowsAtOnce * kRowBytes);
  }
  __device__ void issue_scales(LdsBytes* to, u32 chunk, u32 rows) const {
    const u32 own = wave(), base = readfirstlane(lds_address(to));
#pragma unroll
    for (u32 i = 0; i < kOwnScales; ++i) {
      const u32 number = own + i * kWaves;
      if (kScaleLoads % kWaves != 0 && number >= kScaleLoads) break;
      if (kWaves > 1 || number * kScaleRows < rows) {
        const u32 at = chunk * chunk_pitch_;
        const u32 place = base + kScalesAt + number * (kScaleLanes * 4);
        if (kLeftLanes > 0 && i + 1 == kOwnScales) {  // beyond lies what others load
          buffer_load_lds_b32<(kLeftLanes > 0 ? kLeftLanes : kScaleLanes)>(scales_, scale_from_[i],
                                                                           at, place);
        } else {
          buffer_load_lds_b32<kScaleLanes>(scales_, scale_from_[i], at, place);
        }
      }
    }
  }
  __device__ static u32 wave() { return kWaves > 1 ? wave_id() : 0; }  // of those that load
  __device__ static Buffer buffer_of(U32x4 words, bool is_there) {
    const u64 first = u64{words[1]} << 32 | words[0];
    return make_buffer(reinterpret_cast<const u8*>(first), is_there ? words[2] : 0);
  }
  __device__ static void buffer_load_lds_b128(U32x4 buffer, u32 from, u32 offset, u32 to) {
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dwordx4 %1, %2, %3 offen lds"
                 :
                 : "s"(to), "v"(from), "s"(buffer), "s"(offset)
                 : "memory");
  }

  U32x4 payload_, scales_;
  u32 steps_, scale_pitch_, chunk_pitch_;
  u32 from_[kOwnGroups], scale_from_[kOwnScales];
  U32x4 held_[kIssues];
  u32 scale_held_[kOwnScales];
};

}  // namespace rfops
