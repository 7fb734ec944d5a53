// Matrix instructions with a dense A.
//
// Order of additions: an element of D starts as C and accumulates the products in order of k, one
// fused multiply-add each. f8f6f4 sums each block of 32 k from zero in that order and adds the
// scaled block sum to the accumulator. i8 is exact. Hardware's own order is not published.
#include <algorithm>

#include "vgpu/exec/mfma_unpack.h"
#include "vgpu/exec/mfma_vector.h"
#include "vgpu/machine/fp_scope.h"

namespace vgpu {
namespace {

// C as rows of 64 lanes, and D. C is copied if writing D row by row could overwrite it.
class Accumulator {
 public:
  Accumulator(Wave& wave, const Inst& inst, u32 dwords) : d(wave.va(inst.dst)) {
    const Src& src = inst.src[2];
    if (src.kind != SrcKind::kVgpr) {
      std::fill_n(copy_, kLanes, read_scalar32(wave, src));
      c_ = copy_;
      constant_ = true;
      return;
    }
    c_ = wave.va(src.reg);
    const bool overlaps =
        src.reg != inst.dst && src.reg < inst.dst + dwords && inst.dst < src.reg + dwords;
    if (overlaps) {
      std::copy_n(c_, dwords * kLanes, copy_);
      c_ = copy_;
    }
  }
  const u32* c(u32 offset) const { return constant_ ? c_ : c_ + offset; }
  u32* const d;

 private:
  const u32* c_ = nullptr;
  bool constant_ = false;
  alignas(64) u32 copy_[32 * kLanes];
};

struct Inputs {
  Unpacked a, b;
  Runs a_runs, b_runs;

  Inputs(Wave& wave, const Inst& inst, const MatrixShape& shape)
      : a_runs(shape.dim, shape.blocks, shape.k, bits_of(matrix_elem(shape, inst, 0))),
        b_runs(shape.dim, shape.blocks, shape.k, bits_of(matrix_elem(shape, inst, 1))) {
    unpack(wave, matrix_elem(shape, inst, 0), inst.src[0].reg, matrix_dwords(shape, inst, 0), a);
    unpack(wave, matrix_elem(shape, inst, 1), inst.src[1].reg, matrix_dwords(shape, inst, 1), b);
    if (shape.a == Elem::kByField) return;  // there CBSZ and BLGP name formats
    const u32 per_lane = shape.k * shape.dim * shape.blocks / kLanes;
    if (inst.cbsz && shape.blocks > 1) broadcast_blocks(a, per_lane, shape, inst.cbsz, inst.abid);
    if (inst.blgp) permute_lanes(b, per_lane, inst.blgp);
  }
};

// Conversion of a tile of sums to the result.
enum class ResultKind { kFloat, kInt };

template <u32 kDim, ResultKind kResult>
void load_tile(Tile<kDim>& tile, const Accumulator& acc, u32 block, u32 i0) {
  if (kResult == ResultKind::kInt) return tile.clear();
  for (u32 r = 0; r < kTileRows; ++r) {
    const u32* c = acc.c(result_row(kDim, block, i0 + r));
    for (u32 v = 0; v < tile.kVectors; ++v) tile.row[r][v] = as_vector<Floats>(c + 16 * v);
  }
}

// Integer sums are exact in float (at most 128 products of 14 bits); C is added modulo 2^32.
template <u32 kDim, ResultKind kResult>
void store_tile(const Tile<kDim>& tile, const Accumulator& acc, u32 block, u32 i0) {
  for (u32 r = 0; r < kTileRows; ++r) {
    const u32 index = result_row(kDim, block, i0 + r);
    for (u32 v = 0; v < tile.kVectors; ++v) {
      if constexpr (kResult == ResultKind::kInt) {
        for (u32 j = 0; j < 16; ++j) {
          const u32 sum = static_cast<u32>(static_cast<i32>(tile.row[r][v][j]));
          acc.d[index + 16 * v + j] = acc.c(index)[16 * v + j] + sum;
        }
      } else {
        as_vector<Floats>(acc.d + index + 16 * v) = tile.row[r][v];
      }
    }
  }
}

template <u32 kDim, ResultKind kResult>
void multiply(const Inputs& inputs, const MatrixShape& shape, const Accumulator& acc) {
  for (u32 block = 0; block < shape.blocks; ++block) {
    const f32* a = inputs.a.rows() + block * kDim;
    const f32* b = inputs.b.rows() + block * kDim;
    for (u32 i0 = 0; i0 < kDim; i0 += kTileRows) {
      Tile<kDim> tile;
      load_tile<kDim, kResult>(tile, acc, block, i0);
      for (u32 r = 0; r < inputs.a_runs.count; ++r) {
        tile.accumulate(a + inputs.a_runs.base[r] + i0, b + inputs.b_runs.base[r],
                        inputs.a_runs.length);
      }
      store_tile<kDim, kResult>(tile, acc, block, i0);
    }
  }
}

template <ResultKind kResult>
void exec_dense(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const MatrixShape& shape = *matrix_shape(inst);
  const Inputs inputs(wave, inst, shape);
  const Accumulator acc(wave, inst, shape.out_dwords());
  if (shape.dim == 32) {
    multiply<32, kResult>(inputs, shape, acc);
  } else {
    multiply<16, kResult>(inputs, shape, acc);
  }
}

// -------------------------------------------------------------------------------- block scales

constexpr u32 kScaleBlock = 32;  // number of k per scale
constexpr i32 kNanScale = 128;   // E8M0 255

// Exponents of one operand: [k block][row of A or column of B].
struct Scales {
  i32 exponent[4][32] = {};
  bool any_nan = false;
};

// Reads E8M0 scale bytes; an inline constant supplies its exponent. Without scale operands all are
// 2^0.
Scales read_scales(Wave& wave, const Inst& inst, const MatrixShape& shape, u32 operand) {
  Scales scales;
  if (inst.format != Format::kVop3px2 || !(inst.abid & 1)) return scales;
  const Src& src = inst.scale[operand];
  const u32 shift = 8 * ((inst.opsel >> operand & 1) | (inst.opsel_hi >> operand & 1) << 1);
  const u32* lanes = src.kind == SrcKind::kVgpr ? wave.v(src.reg) : nullptr;
  const u32 scalar = lanes ? 0 : read_scalar32(wave, src);
  const u32 constant = src.kind == SrcKind::kConst ? scalar >> 23 & 255 : scalar >> shift & 255;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 byte = lanes ? lanes[lane] >> shift & 255 : constant;
    scales.exponent[lane / shape.dim][lane % shape.dim] = static_cast<i32>(byte) - 127;
    scales.any_nan |= byte == 255;
  }
  return scales;
}

// tile += sums * 2^(a + b). The power is applied as two factors, because it may exceed the float
// range although the product does not.
template <u32 kDim>
[[gnu::always_inline]] inline void add_scaled(Tile<kDim>& tile, const Tile<kDim>& sums,
                                              const i32* a, const i32* b) {
  for (u32 v = 0; v < tile.kVectors; ++v) {
    const Ints column = as_vector<Ints>(b + 16 * v);
    for (u32 r = 0; r < kTileRows; ++r) {
      const Ints power = column + a[r];
      const Ints half = power >> 1;
      const Ints low = (half + 127) << 23, high = (power - half + 127) << 23;
      tile.row[r][v] += sums.row[r][v] * as_vector<Floats>(&low) * as_vector<Floats>(&high);
    }
  }
}

// Sums the products of one block of k. A separate function keeps the sums in vector registers.
template <u32 kDim>
[[gnu::noinline]] void sum_block(Tile<kDim>& out, const Inputs& inputs, u32 i0, u32 block) {
  constexpr u32 kRunsInBlock = kScaleBlock / 16;
  Tile<kDim> sums;
  sums.clear();
  for (u32 r = block * kRunsInBlock; r < (block + 1) * kRunsInBlock; ++r) {
    sums.accumulate(inputs.a.rows() + inputs.a_runs.base[r] + i0,
                    inputs.b.rows() + inputs.b_runs.base[r], 16);
  }
  out = sums;
}

template <u32 kDim>
void multiply_scaled(const Inputs& inputs, const MatrixShape& shape, const Accumulator& acc,
                     const Scales& a_scale, const Scales& b_scale, bool scaled) {
  for (u32 i0 = 0; i0 < kDim; i0 += kTileRows) {
    Tile<kDim> tile;
    load_tile<kDim, ResultKind::kFloat>(tile, acc, 0, i0);
    for (u32 block = 0; block < shape.k / kScaleBlock; ++block) {
      Tile<kDim> sums;
      sum_block(sums, inputs, i0, block);
      if (scaled) {
        add_scaled(tile, sums, a_scale.exponent[block] + i0, b_scale.exponent[block]);
      } else {
        for (u32 r = 0; r < kTileRows; ++r) {
          for (u32 v = 0; v < tile.kVectors; ++v) tile.row[r][v] += sums.row[r][v];
        }
      }
    }
    store_tile<kDim, ResultKind::kFloat>(tile, acc, 0, i0);
  }
}

// With MODE.FP16_OVFL an overflowing sum of finite values saturates at the largest finite value.
void clamp_overflow(u32* d, u32 count) {
  for (u32 i = 0; i < count; ++i) d[i] -= (d[i] & 0x7fffffff) == 0x7f800000;
}

bool all_finite_inputs(const Inputs& inputs, const MatrixShape& shape, const Accumulator& acc) {
  const u32 per_lane = shape.k * shape.dim / kLanes;
  bool finite = all_finite(inputs.a, per_lane) && all_finite(inputs.b, per_lane);
  for (u32 i = 0; i < shape.dim; ++i)
    finite &= all_finite(acc.c(result_row(shape.dim, 0, i)), shape.dim);
  return finite;
}

// A NaN scale makes its row of D (for B, its column) NaN.
void spread_nan_scales(const MatrixShape& shape, const Accumulator& acc, const Scales& a,
                       const Scales& b) {
  bool row[32] = {}, column[32] = {};
  for (u32 block = 0; block < shape.k / kScaleBlock; ++block) {
    for (u32 i = 0; i < shape.dim; ++i) {
      row[i] |= a.exponent[block][i] == kNanScale;
      column[i] |= b.exponent[block][i] == kNanScale;
    }
  }
  for (u32 i = 0; i < shape.dim; ++i) {
    u32* d = acc.d + result_row(shape.dim, 0, i);
    for (u32 j = 0; j < shape.dim; ++j) d[j] = row[i] || column[j] ? 0x7fc00000u : d[j];
  }
}

}  // namespace

void exec_mfma_f32(Wave& wave, const Inst& inst) { exec_dense<ResultKind::kFloat>(wave, inst); }
void exec_mfma_i32(Wave& wave, const Inst& inst) { exec_dense<ResultKind::kInt>(wave, inst); }

void exec_mfma_f8f6f4(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const MatrixShape& shape = *matrix_shape(inst);
  if (inst.cbsz > 4 || inst.blgp > 4)
    fault(wave, inst, "f8f6f4 format code above 4 (cbsz for A, blgp for B)");
  const Inputs inputs(wave, inst, shape);
  const Scales a = read_scales(wave, inst, shape, 0), b = read_scales(wave, inst, shape, 1);
  const bool scaled = inst.format == Format::kVop3px2;
  const Accumulator acc(wave, inst, shape.out_dwords());
  const bool clamp = wave.fp16_ovfl() && all_finite_inputs(inputs, shape, acc);
  if (shape.dim == 32) {
    multiply_scaled<32>(inputs, shape, acc, a, b, scaled);
  } else {
    multiply_scaled<16>(inputs, shape, acc, a, b, scaled);
  }
  if (clamp) clamp_overflow(acc.d, shape.out_dwords() * kLanes);
  if (a.any_nan || b.any_nan) spread_nan_scales(shape, acc, a, b);
}

// Sixteen blocks: lane 4 * b + j of register i holds D[b][i][j].
void exec_mfma_4x4(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const MatrixShape& shape = *matrix_shape(inst);
  const bool is_int = shape.a == Elem::kI8;
  const Inputs inputs(wave, inst, shape);
  const Accumulator acc(wave, inst, shape.out_dwords());
  for (u32 i = 0; i < 4; ++i) {
    const u32* c = acc.c(i * kLanes);
    u32* d = acc.d + i * kLanes;
    alignas(64) f32 sum[kLanes] = {}, element[kLanes];
    if (!is_int) std::memcpy(sum, c, sizeof(sum));
    for (u32 k = 0; k < shape.k; ++k) {
      const f32 *a = inputs.a.slot[k] + i, *b = inputs.b.slot[k];
      for (u32 lane = 0; lane < kLanes; ++lane) element[lane] = a[lane & ~3u];
      for (u32 lane = 0; lane < kLanes; ++lane)
        sum[lane] = __builtin_fmaf(element[lane], b[lane], sum[lane]);
    }
    for (u32 lane = 0; lane < kLanes; ++lane) {
      d[lane] =
          is_int ? c[lane] + static_cast<u32>(static_cast<i32>(sum[lane])) : bits<u32>(sum[lane]);
    }
  }
}

// -------------------------------------------------------------------------------- f64

namespace {

void load_doubles(const u32* rows, f64* out) {
  for (u32 lane = 0; lane < kLanes; ++lane)
    out[lane] = bits<f64>(rows[lane] | u64{rows[lane + kLanes]} << 32);
}

void store_doubles(const f64* src, u32* rows) {
  for (u32 lane = 0; lane < kLanes; ++lane) {
    rows[lane] = static_cast<u32>(bits<u64>(src[lane]));
    rows[lane + kLanes] = static_cast<u32>(bits<u64>(src[lane]) >> 32);
  }
}

// Returns the element of A for eight lanes of a row: each block of kDim lanes has its own.
template <u32 kDim>
Doubles block_elements(const f64* a) {
  const f64 x = a[0], y = a[4 / kDim * kDim];
  return Doubles{x, x, x, x, y, y, y, y};
}

// Each lane holds one element of A and of B, and in register pair i / 4 of D row i of its block:
// dim * blocks is 16, so 16 lanes hold a row of all blocks. BLGP negates A, B, C.
template <u32 kDim>
void multiply_doubles(Wave& wave, const Inst& inst, const MatrixShape& shape) {
  constexpr u32 kWidth = 16, kRows = kLanes / kWidth, kPairs = kDim / kRows;
  f64 a[kLanes], b[kLanes], d[kPairs][kLanes];
  load_doubles(wave.va(inst.src[0].reg), a);
  load_doubles(wave.va(inst.src[1].reg), b);
  const Src& src = inst.src[2];
  for (u32 pair = 0; pair < kPairs; ++pair) {
    if (src.kind == SrcKind::kVgpr) {
      load_doubles(wave.va(src.reg) + 2 * pair * kLanes, d[pair]);
    } else {
      std::fill_n(d[pair], kLanes, bits<f64>(src.value));
    }
  }
  const f64 sign_ab = (inst.blgp & 1) != (inst.blgp >> 1 & 1) ? -1.0 : 1.0;
  const f64 sign_c = inst.blgp & 4 ? -1.0 : 1.0;
  for (f64& element : a) element *= sign_ab;
  for (u32 i = 0; i < kDim; ++i) {
    f64* row = d[i / kRows] + i % kRows * kWidth;
    Doubles low = as_vector<Doubles>(row) * sign_c, high = as_vector<Doubles>(row + 8) * sign_c;
    for (u32 k = 0; k < shape.k; ++k) {
      const f64 *row = b + k * kWidth, *column = a + k * kWidth + i;
      multiply_add(low, block_elements<kDim>(column), as_vector<Doubles>(row));
      multiply_add(high, block_elements<kDim>(column + 8 / kDim * kDim),
                   as_vector<Doubles>(row + 8));
    }
    as_vector<Doubles>(row) = low;
    as_vector<Doubles>(row + 8) = high;
  }
  for (u32 pair = 0; pair < kPairs; ++pair)
    store_doubles(d[pair], wave.va(inst.dst) + 2 * pair * kLanes);
}

}  // namespace

void exec_mfma_f64(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const MatrixShape& shape = *matrix_shape(inst);
  if (shape.dim == 16) {
    multiply_doubles<16>(wave, inst, shape);
  } else {
    multiply_doubles<4>(wave, inst, shape);
  }
}

// -------------------------------------------------------------------------------- AGPR moves
// Copies of registers: unlike the matrix instructions they follow EXEC.

namespace {

void copy_masked(u32* dst, const u32* src, u64 mask) {
  for (u32 lane = 0; lane < kLanes; ++lane) dst[lane] = mask >> lane & 1 ? src[lane] : dst[lane];
}

}  // namespace

void exec_accvgpr_read(Wave& wave, const Inst& inst) {
  copy_masked(wave.va(inst.dst), wave.va(inst.src[0].reg), wave.exec());
}

void exec_accvgpr_write(Wave& wave, const Inst& inst) {
  const Src& src = inst.src[0];
  if (src.kind == SrcKind::kVgpr)
    return copy_masked(wave.va(inst.dst), wave.va(src.reg), wave.exec());
  u32 value[kLanes];
  std::fill_n(value, kLanes, read_scalar32(wave, src));
  copy_masked(wave.va(inst.dst), value, wave.exec());
}

}  // namespace vgpu
