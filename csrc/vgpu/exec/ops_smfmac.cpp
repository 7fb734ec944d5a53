// Matrix instructions with a 4:2 sparse A: two of every four k are stored, and two index bits per
// element give their position. C is D. The order of additions is that of ops_mfma.cpp, over the
// stored k only.
#include <limits>

#include "vgpu/exec/mfma_unpack.h"
#include "vgpu/exec/mfma_vector.h"
#include "vgpu/machine/fp_scope.h"

namespace vgpu {
namespace {

struct SparseInputs {
  Unpacked a, b;
  Runs a_runs;        // over the stored k
  u16 b_row[32][64];  // [i][stored k]: offset of the matching row of B

  SparseInputs(Wave& wave, const Inst& inst, const MatrixShape& shape)
      : a_runs(shape.dim, 1, shape.a_k(), bits_of(shape.a)) {
    unpack(wave, shape.a, inst.src[0].reg, matrix_dwords(shape, inst, 0), a);
    unpack(wave, shape.b, inst.src[1].reg, matrix_dwords(shape, inst, 1), b);
    read_index(wave, inst, shape);
  }

 private:
  // Reads the index: a lane's bits are in the order of its elements of A. If they do not fill the
  // register, ABID selects a set, unless CBSZ is set. The index is never in an AGPR.
  void read_index(Wave& wave, const Inst& inst, const MatrixShape& shape) {
    const Runs b_runs(shape.dim, 1, shape.k, bits_of(shape.b));
    const u32 per_lane = shape.a_k() * shape.dim / kLanes;
    const u32 set_bits = 2 * per_lane;
    const u32 set = inst.cbsz & 3 ? 0 : inst.abid % (32 / set_bits);
    const u32* index = wave.v(inst.src[2].reg & 255);
    for (u32 kk = 0; kk < shape.a_k(); ++kk) {
      const u32 group = kk / per_lane * shape.dim, shift = set * set_bits + 2 * (kk % per_lane);
      for (u32 i = 0; i < shape.dim; ++i) {
        const u32 k = kk / 2 * 4 + (index[group + i] >> shift & 3);
        b_row[i][kk] =
            static_cast<u16>(b_runs.base[k / b_runs.length] + k % b_runs.length * kLanes);
      }
    }
  }
};

constexpr u32 kRows = 4;  // rows of D per iteration

template <u32 kDim>
struct SparseTile {
  static constexpr u32 kVectors = kDim / 16;
  Floats row[kRows][kVectors];

  void accumulate(const SparseInputs& inputs, u32 i0) {
    for (u32 run = 0, kk = 0; run < inputs.a_runs.count; ++run) {
      const f32* a = inputs.a.rows() + inputs.a_runs.base[run] + i0;
      for (u32 s = 0; s < inputs.a_runs.length; ++s, ++kk, a += kLanes) {
        for (u32 r = 0; r < kRows; ++r) {
          const f32* b = inputs.b.rows() + inputs.b_row[i0 + r][kk];
          for (u32 v = 0; v < kVectors; ++v)
            multiply_add(row[r][v], a[r], as_vector<Floats>(b + 16 * v));
        }
      }
    }
  }
};

// With MODE.FP16_OVFL an overflowing result saturates at the largest finite value.
u32 clamp_float(u32 word, bool inputs_finite) {
  return inputs_finite && (word & 0x7fffffff) == 0x7f800000 ? word - 1 : word;
}

u32 add_int(u32 c, i32 sum, bool saturating) {
  const i64 exact = i64{static_cast<i32>(c)} + sum;
  if (!saturating) return static_cast<u32>(exact);
  constexpr i64 kMin = std::numeric_limits<i32>::min(), kMax = std::numeric_limits<i32>::max();
  return static_cast<u32>(exact < kMin ? kMin : exact > kMax ? kMax : exact);
}

template <u32 kDim, bool kInt>
void multiply_sparse(const SparseInputs& inputs, u32* d, bool saturating, bool inputs_finite) {
  for (u32 i0 = 0; i0 < kDim; i0 += kRows) {
    SparseTile<kDim> tile;
    for (u32 r = 0; r < kRows; ++r) {
      const u32* c = d + result_row(kDim, 0, i0 + r);
      for (u32 v = 0; v < tile.kVectors; ++v)
        tile.row[r][v] = kInt ? Floats{} : as_vector<Floats>(c + 16 * v);
    }
    tile.accumulate(inputs, i0);
    for (u32 r = 0; r < kRows; ++r) {
      u32* out = d + result_row(kDim, 0, i0 + r);
      for (u32 j = 0; j < kDim; ++j) {
        const f32 sum = tile.row[r][j / 16][j % 16];
        if (kInt) {
          out[j] = add_int(out[j], static_cast<i32>(sum), saturating);
        } else {
          const bool finite = inputs_finite && (out[j] & 0x7f800000) != 0x7f800000;
          out[j] = clamp_float(bits<u32>(sum), saturating && finite);
        }
      }
    }
  }
}

template <bool kInt>
void exec_sparse(Wave& wave, const Inst& inst) {
  const NearestScope scope;
  const MatrixShape& shape = *matrix_shape(inst);
  const SparseInputs inputs(wave, inst, shape);
  const bool saturating = wave.fp16_ovfl();
  const u32 per_lane = shape.k * shape.dim / kLanes;
  const bool finite =
      saturating && all_finite(inputs.a, per_lane / 2) && all_finite(inputs.b, per_lane);
  u32* d = wave.va(inst.dst);
  if (shape.dim == 32) {
    multiply_sparse<32, kInt>(inputs, d, saturating, finite);
  } else {
    multiply_sparse<16, kInt>(inputs, d, saturating, finite);
  }
}

}  // namespace

void exec_smfmac_f32(Wave& wave, const Inst& inst) { exec_sparse<false>(wave, inst); }
void exec_smfmac_i32(Wave& wave, const Inst& inst) { exec_sparse<true>(wave, inst); }

}  // namespace vgpu
