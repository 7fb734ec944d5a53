// Column-major operands in LDS, a step of 128 along K at a time: what lies side by side in memory
// are rows of one k.
//
// gfx950 keeps a step as memory has it, kRows bytes a k, and turns it round as it is read:
// ds_read_b64_tr_b8 takes 8 k of 16 rows by 16 lanes, of which lanes 2 i and 2 i + 1 say where the
// halves of k i lie, and gives lane j the 8 k of row j. gfx942 turns it on its way through the
// registers (transpose_loader.h).
//
// The first row and the distance from k to k are multiples of 4 bytes, and the rows a multiple of
// 4. Where fewer than kRows are there, what is loaded of the others is anything; sums of theirs are
// not stored.
#pragma once

#include "gemm/transpose_loader.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/sync.h"
#include "rfops/chip/types.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

#if defined(__gfx950__)

// Chunk c of 16 rows of k lies at kRows k + 16 (c ^ swizzle(k)).
template <u32 kRows>
struct ColumnOrder {
  static constexpr u32 kChunks = kRows / kVecBytes;
  static constexpr u32 kBytes = kRows * kTileK;
  static_assert(kRows == 64 || kRows == 128, "half of the banks a k, or a quarter");

  // 16 lanes read 8 neighbours along K, the next 16 lanes those 16 further on.
  static constexpr u32 swizzle(u32 k) {
    constexpr u32 kTogether = kLdsBanks * 4 / kRows;  // k that fill the banks once
    return k / kTogether % (kChunks / 2) + k / 16 % 2 * (kChunks / 2);
  }
  static constexpr u32 at(u32 k, u32 chunk) { return k * kRows + (chunk ^ swizzle(k)) * kVecBytes; }
  // What a lane says of the first of a tile's four reads; the others are 8, 64 and 72 k further on.
  static constexpr u32 read_at(u32 lane, u32 chunk) {
    return at(lane / 16 * 16 + lane % 16 / 2, chunk) + lane % 2 * 8;
  }
  static_assert(swizzle(8) == swizzle(0) && swizzle(72) == swizzle(64) && swizzle(64) == 0);
  static_assert(details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                          [](u32 l) { return read_at(l, 0); }) &&
                    details::conflict_free(details::kWritePhases, 32,
                                           [](u32 l) { return at(l / kChunks, l % kChunks); }),
                "neither reads nor writes have a bank conflict");
};

// Reads tiles of such operands, kTiles from row `first` on; that of a read lies kAt bytes from
// `memory`.
template <u32 kRows, u32 kTiles>
class ColumnReader {
 public:
  using Order = ColumnOrder<kRows>;

  __device__ ColumnReader(const LdsBytes* memory, u32 lane, u32 first) {
#pragma unroll
    for (u32 i = 0; i < kTiles; ++i) {
      from_[i] = memory + Order::read_at(lane, first / kTileRows + i);
      force_vgpr(from_[i]);  // or each read adds up what is beyond its offset
    }
  }
  template <u32 kAt = 0>
  __device__ Tile read(u32 tile) const {
    const LdsBytes* const from = from_[tile] + kAt;
    return {piece(from), piece(from + kPieceK * kRows)};
  }

 private:
  __device__ static U32x4 piece(const LdsBytes* from) {
    using I32x2 = i32 __attribute__((ext_vector_type(2)));
    const auto turned = [](const LdsBytes* at) {
      return __builtin_amdgcn_ds_read_tr8_b64_v2i32((RFOPS_LDS I32x2*)at);
    };
    const I32x2 low = turned(from), high = turned(from + 8 * kRows);
    return __builtin_bit_cast(U32x4, __builtin_shufflevector(low, high, 0, 1, 2, 3));
  }
  const LdsBytes* from_[kTiles];
};

// Through registers, as StagedLoader has it for rows.
template <u32 kRows, u32 kThreads>
class StagedColumns {
 public:
  using Order = ColumnOrder<kRows>;

  static constexpr u32 kTurns = 0;
  __device__ void turn(u32) {}

  __device__ explicit StagedColumns(const OperandView& rows) : rows_(rows) {
    const u32 k = thread_id() / Order::kChunks, chunk = thread_id() % Order::kChunks;
    from_ = k * rows.row_bytes + chunk * kVecBytes;
    to_ = Order::at(k, chunk);
  }

  __device__ void issue(u32 k, bool is_there) {
    const Buffer buffer = rows_.step_of(k, is_there);
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_load_b128(buffer, from_, i * kAtOnce * rows_.row_bytes);
    }
  }

  __device__ void commit(LdsBytes* tile) const {
#pragma unroll
    for (u32 i = 0; i < kLoads; ++i) {
      *reinterpret_cast<RFOPS_LDS U32x4*>(tile + to_ + i * kAtOnce * kRows) = staged_[i];
    }
  }

 private:
  static constexpr u32 kAtOnce = kThreads / Order::kChunks;  // k
  static constexpr u32 kLoads = kTileK / kAtOnce;
  static_assert(kAtOnce % 32 == 0, "k of one load after another have the same permutation");
  OperandView rows_;
  u32 from_, to_;
  U32x4 staged_[kLoads];
};

// Straight to LDS, as LdsDmaLoader has it for rows.
template <u32 kRows, u32 kWaves>
class DirectColumns {
 public:
  using Order = ColumnOrder<kRows>;

  __device__ explicit DirectColumns(const OperandView& rows) : rows_(rows) {
    const u32 k = thread_id() / Order::kChunks, place = thread_id() % Order::kChunks;
    from_ = k * rows.row_bytes + (place ^ Order::swizzle(k)) * kVecBytes;
  }

  // The kRows rows from `row` on to kTile bytes into the memory of LdsDmaLoader::own_place.
  template <u32, u32 kTile = 0>
  __device__ void issue(u32 place, u32 row, u32 k, bool is_there) const {
    const u8* const first = rows_.first + u64{k} * rows_.row_bytes;
    each<0, kTile>(place, make_buffer_words(first, is_there ? rows_.bytes : 0), row);
  }

 private:
  static constexpr u32 kAtOnce = kWaves * kWaveSize / Order::kChunks;  // k
  static_assert(kAtOnce % 32 == 0, "k of one load after another have the same permutation");

  template <u32 kFirst, u32 kTile>
  __device__ void each(u32 place, U32x4 buffer, u32 row) const {
    if constexpr (kFirst < kTileK) {
      buffer_load_lds_b128<kTile>(buffer, from_, kFirst * rows_.row_bytes, row, place);
      each<kFirst + kAtOnce, kTile + kAtOnce * kRows>(place, buffer, row);
    }
  }

  OperandView rows_;
  u32 from_;
};

#endif

// How kRows rows of an operand get into LDS, and kTiles of a wave out of it, whichever way they lie
// in memory: through registers, by kThreads, or straight to LDS, by kWaves.
template <bool kColumns, u32 kRows, u32 kTiles, u32 kThreads, bool kShuffled>
struct StagedPath {
  using Loader = StagedLoader<kRows, kThreads, kShuffled>;
  using Reader = RowReader;
};
#if defined(__gfx950__)
template <u32 kRows, u32 kTiles, u32 kThreads>
struct StagedPath<true, kRows, kTiles, kThreads, false> {
  using Loader = StagedColumns<kRows, kThreads>;
  using Reader = ColumnReader<kRows, kTiles>;
};
template <bool kColumns, u32 kRows, u32 kTiles, u32 kWaves, bool kShuffled>
struct DirectWay {
  using Loader = LdsDmaLoader<kWaves, kShuffled>;
  using Reader = RowReader;
};
template <u32 kRows, u32 kTiles, u32 kWaves>
struct DirectWay<true, kRows, kTiles, kWaves, false> {
  using Loader = DirectColumns<kRows, kWaves>;
  using Reader = ColumnReader<kRows, kTiles>;
};
#else
template <u32 kTiles, u32 kThreads>
struct StagedPath<true, 128, kTiles, kThreads, false> {
  using Loader = TransposeLoader<128, kThreads>;
  using Reader = RowReader;
};
template <u32 kTiles, u32 kThreads>
struct StagedPath<true, 64, kTiles, kThreads, false> {
  using Loader = TransposeLoader<64, kThreads>;
  using Reader = TurnedReader;
};
#endif

}  // namespace rfops
