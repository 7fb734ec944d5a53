// Products of 16-bit rows and weights, both [any, K]: up to kRows rows by 256 of weights, of which
// two halves of 128 may lie apart. For gfx950, whose loads bring 16 bytes a lane straight to LDS.
//
// Eight waves, 2 along rows and 4 along weights. LDS has two steps of 64 along K, in halves: X0,
// X1, W0, W1. pingpong_mainloop.h multiplies them.
//
// A wave has kTiles tiles of 16 rows, of X0 and X1 half each or X0 one more, and of each half of
// weights two tiles. Rows lie in LDS as lds_swizzle.h has them, and so do weights, or, where memory
// has them in tiles of 16 rows by 16 bytes (global_to_lds.h), as memory has them: a load brings 1
// KB in a row. So do weights [K, any], 256 bytes of each k in a row, and are turned round as they
// are read.
#pragma once

#include "moe/lds_tile_16bit.h"
#include "rfops/chip/buffer.h"
#include "rfops/chip/types.h"
#include "rfops/matrix/mfma_f16.h"
#include "rfops/tile/global_to_lds.h"
#include "rfops/tile/lds_swizzle.h"

namespace rfops {

#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx950__)

constexpr u32 kPingPongThreads = 512;
constexpr u32 kPingPongHalf = 128;  // rows of weights
constexpr u32 kPingPongRows = 32;   // of a tile of each wave along rows
constexpr u32 kPingPongStep = kRowBytes / 2;
constexpr u32 kPingPongLoad = kPingPongThreads * kVecBytes;  // bytes

struct PingPong {
  static constexpr u32 kMWaves = 2, kNWaves = 4, kWTiles = 2;
  static constexpr u32 kAtOnce = kPingPongThreads / kRowChunks;  // rows of a load
  static constexpr u32 kWLoads = kPingPongHalf / kAtOnce;
  // Of kTiles tiles of a wave, those in half `half` of rows; and the loads that bring such a half.
  static constexpr u32 tiles(u32 all, u32 half) { return (all + 1 - half) / 2; }
  static constexpr u32 loads(u32 all, u32 half) {
    return (tiles(all, half) * kPingPongRows + kAtOnce - 1) / kAtOnce;
  }

  // Row of the products that a lane has of its wave's tile i.
  template <u32 kTiles>
  __device__ static u32 row(u32 i, u32 lane) {
    constexpr u32 kFirst = tiles(kTiles, 0);
    const u32 wave = wave_id() / kNWaves, half = i < kFirst ? 0 : 1;
    const u32 own = half == 0 ? wave * kFirst + i : wave * tiles(kTiles, 1) + i - kFirst;
    return half * kFirst * kPingPongRows + own * kTileRows + lane % kTileRows;
  }
  // The first of the neighbours of a half that a lane has of one tile of weights, and of two after
  // `neighbours`.
  __device__ static u32 first_column() { return wave_id() % kNWaves * (kWTiles * kTileRows); }
  __device__ static u32 column(u32 lane) {
    const u32 group = lane / kTileRows;
    return first_column() + group % 2 * kTileRows + group / 2 * 8;
  }
};

// What a thread loads of kAtOnce rows: a row, its chunk of 16 bytes; and how operands are read.
template <class Order>
struct PingPongOrder {
  using Reader = RowReader;
  __device__ static u32 row(u32 thread) { return thread / kRowChunks; }
  __device__ static u32 chunk(u32 thread) { return thread % kRowChunks ^ lds_swizzle(row(thread)); }
};
template <>
struct PingPongOrder<OperandLayout<true>> {
  static constexpr u32 kChunk = kTileRows * kVecBytes;  // of all rows of a tile
  class Reader {
   public:
    __device__ Reader(const LdsBytes* memory, u32 lane, u32 first)
        : from_(memory + first * kRowBytes + lane * kVecBytes) {}
    template <u32 kAt = 0>
    __device__ Fragment read(u32 tile) const {
      const LdsBytes* const from = from_ + kAt + tile * kLdsTile;
      return {lds_load_b128(from), lds_load_b128(from + kRowChunks / 2 * kChunk)};
    }

   private:
    const LdsBytes* from_;
  };
  __device__ static u32 row(u32 thread) {
    return thread / (kRowChunks * kTileRows) * kTileRows + thread % kTileRows;
  }
  __device__ static u32 chunk(u32 thread) { return thread / kTileRows % kRowChunks; }
};
using PingPongX = PingPongOrder<OperandLayout<false>>;

// Weights [K, any]. ds_read_b64_tr_b16 takes 4 k of 16 columns by 16 lanes, each of which says
// where 4 columns of a k lie, and gives lane j the 4 k of column j. 32 lanes are served together,
// and have k 0..3 and 8..11, or those 16 further on: the two chunks of 16 columns of each lie in a
// pair of places of its own. Chunk c of k lies at 256 k + 16 (c ^ swizzle(k)).
struct InColumns {};
template <>
struct PingPongOrder<InColumns> {
  static constexpr u32 kBytes = kPingPongHalf * 2, kChunks = kBytes / kVecBytes;  // of a k
  static constexpr u32 kAtOnce = kPingPongThreads / kChunks;                      // k of a load
  static constexpr u32 swizzle(u32 k) { return 2 * (k % 4 + k / 8 % 2 * 4); }
  static constexpr u32 at(u32 k, u32 chunk) {
    return k * kBytes + (chunk ^ swizzle(k)) * kVecBytes;
  }
  // What a lane says of the first of a tile's four reads; the others are 4, 32 and 36 k further on.
  static constexpr u32 read_at(u32 lane, u32 tile) {
    const u32 piece = lane % 4;
    return at(lane / 16 * 8 + lane % 16 / 4, tile * 2 + piece / 2) + piece % 2 * 8;
  }
  class Reader {
   public:
    __device__ Reader(const LdsBytes* memory, u32 lane, u32 first) {
#pragma unroll
      for (u32 i = 0; i < PingPong::kWTiles; ++i) {
        from_[i] = memory + read_at(lane, first / kTileRows + i);
        force_vgpr(from_[i]);  // or each read adds up what is beyond its offset
      }
    }
    template <u32 kAt = 0>
    __device__ Fragment read(u32 tile) const {
      const LdsBytes* const from = from_[tile] + kAt;
      return {piece(from), piece(from + 32 * kBytes)};
    }

   private:
    __device__ static U32x4 piece(const LdsBytes* from) {
      const auto turned = [](const LdsBytes* at) {
        return __builtin_bit_cast(U32x2,
                                  __builtin_amdgcn_ds_read_tr16_b64_v4i16((RFOPS_LDS I16x4*)at));
      };
      return __builtin_shufflevector(turned(from), turned(from + 4 * kBytes), 0, 1, 2, 3);
    }
    const LdsBytes* from_[PingPong::kWTiles];
  };
  __device__ static u32 k(u32 thread) { return thread / kChunks; }
  __device__ static u32 chunk(u32 thread) { return thread % kChunks ^ swizzle(k(thread)); }
};
using PingPongColumns = PingPongOrder<InColumns>;
static_assert(PingPongColumns::kBytes * PingPongColumns::kAtOnce == kPingPongLoad);
static_assert(PingPongColumns::swizzle(4) == 0 && PingPongColumns::swizzle(32) == 0);
static_assert(details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                        [](u32 l) { return PingPongColumns::read_at(l, 0); }) &&
                  details::conflict_free<8>(details::kPhasesB64, kLdsBanks,
                                            [](u32 l) { return PingPongColumns::read_at(l, 5); }),
              "reads have no bank conflict");

template <u32 kRows>
struct PingPongMemory {
  static constexpr u32 kX0 = PingPong::loads(kRows / kPingPongRows, 0) * PingPong::kAtOnce;
  static constexpr u32 kX1 = PingPong::loads(kRows / kPingPongRows, 1) * PingPong::kAtOnce;
  u8 x0[2][kX0 * kRowBytes], x1[2][kX1 * kRowBytes], w[2][2][kPingPongHalf * kRowBytes];
};

// Rows that lie where offset_of(row) says, the byte of the row's first element, or nowhere.
template <u32 kTiles>
struct PingPongRows {
  template <class OffsetOf>
  __device__ PingPongRows(u32 thread, Span span, OffsetOf offset_of)
      : buffer(make_buffer_words(span.first, span.bytes)) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 count = PingPong::tiles(kTiles, half) * kPingPongRows;
      const u32 before = half * PingPong::tiles(kTiles, 0) * kPingPongRows;
#pragma unroll
      for (u32 i = 0; i < PingPong::loads(kTiles, half); ++i) {
        const u32 row = PingPongX::row(thread) + i * PingPong::kAtOnce;
        const u32 place = row < count ? offset_of(before + row) : kOutOfBounds;
        from[half][i] = place + PingPongX::chunk(thread) * kVecBytes;
      }
    }
  }
  U32x4 buffer;
  u32 from[2][PingPong::loads(kTiles, 0)];
};

// 128 rows of weights from n0 on, and those `further` rows on.
template <class Order>
class PingPongWeights {
 public:
  __device__ PingPongWeights(u32 thread, Span span, u32 n0, u32 further, u32 row_bytes)
      : buffer_(make_buffer_words(span.first, span.bytes)),
        from_(Order::offset(n0 + PingPongOrder<Order>::row(thread),
                            PingPongOrder<Order>::chunk(thread), row_bytes)),
        k_(PingPongOrder<Order>::chunk(thread) * (kVecBytes / 2)),
        next_(PingPong::kAtOnce * row_bytes),
        second_(further * row_bytes) {}

  // The two loads of half kHalf of step `at` of k elements; they bring it to `place` + kTo.
  template <u32 kTo, u32 kHalf>
  __device__ void start(u32 at, u32 k, u32 place) const {
    const u32 from = from_ | (at * kPingPongStep + k_ < k ? 0 : kOutOfBounds);
    const u32 base = kHalf == 0 ? 0 : second_, further = at * kRowBytes * Order::kKStrideBytes;
    buffer_load_lds_b128<kTo>(buffer_, from, base, further, place);
    buffer_load_lds_b128<kTo + kPingPongLoad>(buffer_, from, base + next_, further, place);
  }

 private:
  U32x4 buffer_;
  u32 from_, k_, next_, second_;
};

// 128 columns of weights, and as many of the same matrix or of another one, rows row_bytes apart.
// What is loaded of columns that are not there is anything; of K that is not there, zeros.
template <>
class PingPongWeights<InColumns> {
  using Columns = PingPongColumns;

 public:
  __device__ PingPongWeights(u32 thread, Span first, Span second, u32 row_bytes)
      : buffer_{make_buffer_words(first.first, first.bytes),
                make_buffer_words(second.first, second.bytes)},
        from_(Columns::k(thread) * row_bytes + Columns::chunk(thread) * kVecBytes),
        next_(Columns::kAtOnce * row_bytes) {}

  template <u32 kTo, u32 kHalf>
  __device__ void start(u32 at, u32, u32 place) const {
    const u32 further = at * (kPingPongStep / Columns::kAtOnce) * next_;
    buffer_load_lds_b128<kTo>(buffer_[kHalf], from_, 0, further, place);
    buffer_load_lds_b128<kTo + kPingPongLoad>(buffer_[kHalf], from_, next_, further, place);
  }

 private:
  U32x4 buffer_[2];
  u32 from_, next_;
};

template <u32 kTiles>
struct PingPongSums {
  F32x4 of[kTiles][2][PingPong::kWTiles];
};

#endif

}  // namespace rfops
