// Transposes column-major operands in registers before the LDS write, for gfx942, whose LDS cannot
// transpose.
//
// A thread loads 4 rows by kBytes of K, one dword per k, and transposes 4 x 4 bytes at a time. The
// lanes of a load have neighbouring rows, so the load touches few cache lines. 128 rows use the LDS
// tiles of lds_swizzle.h. With 64 rows a thread has 8 bytes, and the tiles have 8-byte chunks:
// chunk c of row r is at 128 r + 8 (c ^ r % 16).
//
// A thread writes its rows in an order in which lanes that LDS serves together use different banks:
// its row i is row i ^ first_row(lane) of the four. The first byte permutation produces that order.
#pragma once

#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

#if defined(__gfx942__)

template <u32 kRows, u32 kThreads>
class TransposeLoader {
 public:
  static constexpr u32 kBytes = kRows * kTileK / 4 / kThreads;
  static constexpr u32 kTransposeOps = 2 * kBytes;
  static_assert(kThreads == 256 && (kBytes == 16 || kBytes == 8), "a thread has 4 rows");

  __device__ explicit TransposeLoader(const OperandView& rows) : rows_(rows) {
    const u32 lane = lane_id(), chunk = wave_id() * (kWaveSize / kLanes);
    src_offset_ = (chunk + lane / kLanes) * kBytes * rows.row_bytes + lane % kLanes * 4;
    rows01_ = 0x05010400u ^ first_row(lane) * 0x01010101u;
    lds_dst_ = lds_write_offset(lane, chunk);
  }

  __device__ void issue(u32 k, bool in_bounds) {
    const Buffer step = k_step_buffer(k, in_bounds);
#pragma unroll
    for (u32 i = 0; i < kBytes; ++i) load(step, i);
  }
  // As issue(), one load at a time.
  __device__ Buffer k_step_buffer(u32 k, bool in_bounds) const {
    return rows_.k_step_buffer(k, in_bounds);
  }
  __device__ void load(const Buffer& step, u32 i) {
    staged_[i] = buffer_load_dwords<1>(step, src_offset_, i * rows_.row_bytes).dword[0];
  }

  // Executes the i-th byte permutation.
  __device__ void transpose(u32 i) {
    u32* const k = staged_ + i / 8 * 4;
    const u32 op = i % 8, pair = op % 4 / 2 * 2, half = op % 2;
    if (op < 4) {  // rows 0 and 1, or 2 and 3, of two k
      half_[op] = __builtin_amdgcn_perm(k[pair + 1], k[pair], rows01_ ^ half * 0x02020202);
      force_vgpr(half_[op]);
    } else {  // one row of four k
      const u32 half_idx = pair / 2, selector = half ? 0x07060302 : 0x05040100;
      k[op - 4] = __builtin_amdgcn_perm(half_[2 + half_idx], half_[half_idx], selector);
      force_vgpr(k[op - 4]);
    }
  }

  __device__ void commit(LdsBytes* tile) const {
    using Column = u32 __attribute__((ext_vector_type(kBytes / 4)));
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      Column column;
#pragma unroll
      for (u32 g = 0; g < kBytes / 4; ++g) column[g] = staged_[g * 4 + r];
      *reinterpret_cast<RFOPS_LDS Column*>(tile + (lds_dst_ ^ r * kRowXor)) = column;
    }
  }

  static constexpr u32 offset(u32 row, u32 chunk) {
    return kBytes == 16 ? lds_offset(row, chunk) : row * kRowBytes + (chunk ^ row % 16) * kBytes;
  }

 private:
  static constexpr u32 kLanes = kRows / 4;  // lanes that load one k
  // A row's number is part of its offset twice: in the row and in the swizzle.
  static constexpr u32 kRowXor = kRowBytes + kBytes;
  static constexpr u32 first_row(u32 lane) { return lane / (kBytes == 16 ? 2 : 4) % 4; }
  static constexpr u32 lds_write_offset(u32 lane, u32 chunk) {
    return offset(lane % kLanes * 4 + first_row(lane), chunk + lane / kLanes);
  }
  static_assert(offset(5, 3) == (offset(4, 3) ^ kRowXor) &&
                offset(6, 3) == (offset(4, 3) ^ 2 * kRowXor));
  static_assert(kBytes == 8 || details::conflict_free(details::kWritePhases, kLdsBanks,
                                                      [](u32 l) { return lds_write_offset(l, 0); }),
                "writes have no bank conflict");
  static_assert(kBytes == 16 ||
                    (details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                               [](u32 l) { return lds_write_offset(l, 0); }) &&
                     details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                               [](u32 l) { return offset(l % 16, l / 16); })),
                "neither writes nor reads have a bank conflict");

  OperandView rows_;
  u32 src_offset_, lds_dst_, rows01_;
  u32 staged_[kBytes], half_[4];
};

// Reads fragments of 64 such rows; this wave's begin at row row_begin.
class TransposedReader {
 public:
  __device__ TransposedReader(const LdsBytes* memory, u32 lane, u32 row_begin)
      : base_(memory + row_begin * kRowBytes) {
    // Lane l reads chunks 2 (l / 16), 2 (l / 16) + 1 and those 8 further.
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 chunk = lane / kTileRows * 2 + i % 2 + i / 2 * 8;
      offsets_[i] = TransposeLoader<64, 256>::offset(lane % kTileRows, chunk);
    }
  }
  __device__ Fragment read(u32 tile) const {
    const auto chunk = [&](u32 i) {
      return *reinterpret_cast<const RFOPS_LDS U32x2*>(base_ + tile * kLdsTile + offsets_[i]);
    };
    return {__builtin_shufflevector(chunk(0), chunk(1), 0, 1, 2, 3),
            __builtin_shufflevector(chunk(2), chunk(3), 0, 1, 2, 3)};
  }

 private:
  const LdsBytes* base_;
  u32 offsets_[4];
};

#endif

}  // namespace rfops
