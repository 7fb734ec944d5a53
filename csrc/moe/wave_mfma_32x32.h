// A wave's share of a tile of 32 x 32 MFMAs: fragments from LDS (lds_tile_16bit.h) and
// accumulators.
//
// Eight waves, kMWaves along rows and kNWaves along weights. A wave has every kMWaves-th tile of 32
// rows, kRowTiles in all, and 64 consecutive weight rows.
#pragma once

#include "moe/lds_tile_16bit.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

constexpr u32 kMWaves = 2, kNWaves = 4;
constexpr u32 kSub = 32;  // rows of an operand

template <u32 kRowTiles>
struct Accumulators {
  F32x16 acc[kRowTiles > 0 ? kRowTiles : 1][2];
};

// Fragments that a lane holds: 16 of K of the wave's weights and rows.
template <u32 kRowTiles>
struct Operands {
  U32x4 weights[2], rows[kRowTiles > 0 ? kRowTiles : 1];
};

// Reads a wave's fragments from LDS; Loader defines the layout of weights.
template <u32 kStep, class Loader>
class Reader {
  using Lds = Rows16<kStep>;

 public:
  __device__ Reader() {
    const u32 lane = lane_id(), wave = wave_id();
    rows_ = wave / kNWaves * kSub * Lds::kBytes + Lds::offset(lane % kSub, lane / kSub);
    weights_ = wave % kNWaves * 2 * kSub * Lds::kBytes + Loader::offset(lane % kSub, lane / kSub);
  }
  // Reads chunks `c` and `c` + 1 of K.
  template <u32 kRowTiles>
  __device__ Operands<kRowTiles> read(const LdsBytes* rows, const LdsBytes* weights, u32 c) const {
    Operands<kRowTiles> operands;
    read_weights(operands, weights, c);
#pragma unroll
    for (u32 i = 0; i < kRowTiles; ++i) read_rows(operands, i, rows, c);
    return operands;
  }
  template <u32 kRowTiles>
  __device__ void read_weights(Operands<kRowTiles>& operands, const LdsBytes* weights_of,
                               u32 c) const {
    const LdsBytes* weights = weights_of + xor_offset(weights_, c * Loader::kChunkBytes);
#pragma unroll
    for (u32 j = 0; j < 2; ++j)
      operands.weights[j] = lds_load_b128(weights + j * kSub * Lds::kBytes);
  }
  template <u32 kRowTiles>
  __device__ void read_rows(Operands<kRowTiles>& operands, u32 i, const LdsBytes* rows_of,
                            u32 c) const {
    const LdsBytes* rows = rows_of + xor_offset(rows_, c * kVecBytes);
    operands.rows[i] = lds_load_b128(rows + i * kMWaves * kSub * Lds::kBytes);
  }

 private:
  // Returns the lane's offset an even number of chunks on. It is computed where it is used, because
  // there are no registers for all of them.
  static __device__ u32 xor_offset(u32 offset, u32 chunks) {
    force_vgpr(offset);
    return offset ^ chunks;
  }
  u32 rows_, weights_;  // offsets of a lane's fragments
};

template <class Input, u32 kRowTiles>
__device__ inline void multiply(Accumulators<kRowTiles>& accumulators,
                                const Operands<kRowTiles>& operands, u32 i) {
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    accumulators.acc[i][j] =
        mfma_32x32x16<Input>(operands.weights[j], operands.rows[i], accumulators.acc[i][j]);
  }
}
template <class Input, u32 kRowTiles>
__device__ inline void multiply(Accumulators<kRowTiles>& accumulators,
                                const Operands<kRowTiles>& operands) {
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) multiply<Input>(accumulators, operands, i);
}

template <u32 kCount>
struct LoadCount {};

// Multiplies and reads the next fragments, chunks `c` and `c` + 1. Each replaces a fragment that
// has been multiplied, because there are no registers for two sets of rows. load(n), n < kLoads, is
// called between the MFMAs, so that memory accesses overlap with them.
template <class Input, u32 kLoads, u32 kRowTiles, class Reader, class Load>
__device__ inline void multiply_and_read(Accumulators<kRowTiles>& accumulators,
                                         Operands<kRowTiles>& current, const Reader& reader,
                                         const LdsBytes* rows, const LdsBytes* weights, u32 c,
                                         Load load) {
  Operands<kRowTiles> next;
  reader.read_weights(next, weights, c);
  sched_barrier();
#pragma unroll
  for (u32 i = 0; i < kRowTiles; ++i) {
    multiply<Input>(accumulators, current, i);
    reader.read_rows(next, i, rows, c);
    constexpr u32 kDivisor = kRowTiles > 0 ? kRowTiles : 1;
#pragma unroll
    for (u32 n = kLoads * i / kDivisor; n < kLoads * (i + 1) / kDivisor; ++n) load(n);
    sched_barrier();
  }
  if constexpr (kRowTiles == 0) {
#pragma unroll
    for (u32 n = 0; n < kLoads; ++n) load(n);
  }
  current = next;
}

// LDS-shuffled store of a wave's 32 rows of 32 x 32 MFMA accumulators: adjacent lanes store
// adjacent 16-byte chunks of a row.
//
// LDS layout: rows are contiguous; chunk c of row r is stored at chunk c ^ f, where f counts the
// groups of rows that span all banks. A lane's four neighbours fill half a chunk; in every second
// group of eight rows the halves of a chunk are exchanged. Writes and reads are free of bank
// conflicts.
//
// kColumns: columns of a wave, 16 bits each.
template <class Out, u32 kColumns>
class WaveStore32 {
  static constexpr u32 kRows = 32, kRowSize = kColumns * sizeof(Out);
  static constexpr u32 kChunks = kRowSize / kVecBytes, kRowsPerStore = kWaveSize / kChunks;
  static constexpr u32 kSpread = kRowBytes / kRowSize;  // rows that span all banks
  static_assert(sizeof(Out) == 2 && (kColumns == 32 || kColumns == 64), "64 or 128 bytes per row");

  static constexpr u32 half_of(u32 row) { return row / 8 % 2; }
  static constexpr u32 offset(u32 row, u32 chunk) {
    return row * kRowSize + (chunk ^ row / kSpread % kChunks) * kVecBytes;
  }
  static constexpr u32 write_offset(u32 lane) {
    return offset(lane % kRows, 0) + (lane / kRows ^ half_of(lane % kRows)) * 8;
  }
  static constexpr u32 read_offset(u32 lane) { return offset(lane / kChunks, lane % kChunks); }
  static constexpr u32 kWritePhases[] = {details::lanes(0, 15), details::lanes(16, 31)};
  static constexpr bool conflict_free_layout() {
    return details::conflict_free<8>(kWritePhases, 32, [](u32 l) { return write_offset(l); }) &&
           details::conflict_free(details::kReadPhases, 32, [](u32 l) { return read_offset(l); });
  }

 public:
  static constexpr u32 kBytes = kRows * kRowSize;  // of LDS per wave

  // `buffer` has rows of row_bytes, a multiple of 16. The wave's columns start at `column`; columns
  // from n on, a multiple of 8, are not stored.
  __device__ WaveStore32(Buffer buffer, u32 lane, u32 column, u32 n, u32 row_bytes, LdsBytes* lds)
      : buffer_(buffer), lane_(lane), row_bytes_(row_bytes), lds_(lds) {
    static_assert(conflict_free_layout());
    const u32 col = column + lane % kChunks * (kVecBytes / sizeof(Out));
    dst_offset_ = col < n ? lane / kChunks * row_bytes + col * sizeof(Out) : kOutOfBounds;
  }
  // Stores 32 rows from `row` of the buffer on. values(j, q) returns the lane's four values of 32 x
  // 32 tile j, columns 8 q on.
  template <class Values>
  __device__ void store(u32 row, Values values) const {
    u32 lds_dst = write_offset(lane_);
    force_vgpr(lds_dst);
#pragma unroll
    for (u32 j = 0; j < kColumns / kRows; ++j) {
#pragma unroll
      for (u32 q = 0; q < 4; ++q) {
        *reinterpret_cast<RFOPS_LDS Vec4<Out>*>(lds_ + (lds_dst ^ (j * 4 + q) * kVecBytes)) =
            __builtin_convertvector(values(j, q), Vec4<Out>);
      }
    }
    sched_barrier();
#pragma unroll
    for (u32 read = 0; read < kRows / kRowsPerStore; ++read) {
      const u32 row_begin = read * kRowsPerStore;
      const U32x4 loaded = lds_load_b128(lds_ + row_begin * kRowSize + read_offset(lane_));
      const bool is_exchanged = half_of(row_begin + lane_ / kChunks) != 0;
      const U32x4 chunk =
          is_exchanged ? __builtin_shufflevector(loaded, loaded, 2, 3, 0, 1) : loaded;
      // The offset stays in a VGPR: with an SGPR the compiler counts no wait states after the
      // store.
      __builtin_amdgcn_raw_buffer_store_b128(chunk, buffer_.rsrc,
                                             dst_offset_ + (row + row_begin) * row_bytes_, 0, 0);
    }
    sched_barrier();
  }

 private:
  Buffer buffer_;
  u32 lane_, row_bytes_, dst_offset_;
  LdsBytes* lds_;
};

}  // namespace rfops
