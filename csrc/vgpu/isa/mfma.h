// Shapes of the matrix instructions, for executors, counters and checks.
#pragma once

#include "vgpu/isa/isa.h"

namespace vgpu {

enum class Elem : u8 {
  kF64,
  kF32,
  kXf32,
  kF16,
  kBf16,
  kI8,
  kFp8,
  kBf8,
  kFp6,
  kBf6,
  kFp4,
  kByField,  // f8f6f4: CBSZ selects the format of A, BLGP that of B
};

constexpr u32 bits_of(Elem elem) {
  switch (elem) {
    case Elem::kF64:
      return 64;
    case Elem::kF32:
    case Elem::kXf32:
      return 32;
    case Elem::kF16:
    case Elem::kBf16:
      return 16;
    case Elem::kFp6:
    case Elem::kBf6:
      return 6;
    case Elem::kFp4:
      return 4;
    default:
      return 8;
  }
}

// D[b] = C[b] + A[b] * B[b] for `blocks` independent blocks: A is dim x k, B k x dim, D dim x dim.
// A sparse A stores two of every four k, and C is D.
struct MatrixShape {
  u16 opcode;
  const char* name;
  u8 dim, k, blocks;
  Elem a, b;
  u8 passes;  // of 4 cycles each, on one matrix core
  Traits traits = {};
  bool sparse = false;

  constexpr u32 a_k() const { return sparse ? k / 2u : k; }  // elements of a row of A as stored
  constexpr u32 out_bits() const { return a == Elem::kF64 ? 64 : 32; }
  constexpr u32 out_dwords() const { return dim * dim * blocks * out_bits() / (64 * 32); }
  constexpr u32 macs() const { return u32{dim} * dim * k * blocks; }
};

// Returns the shape of a matrix instruction; null for v_accvgpr_* and all others.
const MatrixShape* matrix_shape(const Inst& inst);

// Returns the element type of operand 0 (A) or 1 (B).
Elem matrix_elem(const MatrixShape& shape, const Inst& inst, u32 operand);

// Returns the registers of operand 0 (A), 1 (B), 2 (C, or the index of a sparse A), 3 (D).
u32 matrix_dwords(const MatrixShape& shape, const Inst& inst, u32 operand);

// Returns the passes on one matrix core (4 cycles each).
u32 matrix_passes(const MatrixShape& shape, const Inst& inst, Arch arch);

// Executors (ops_mfma.cpp, ops_smfmac.cpp).
void exec_mfma_f32(Wave& wave, const Inst& inst);  // f32 out, 16x16 and 32x32
void exec_mfma_i32(Wave& wave, const Inst& inst);  // i8 in, 16x16 and 32x32
void exec_mfma_4x4(Wave& wave, const Inst& inst);  // 16 blocks, f32 or i32 out
void exec_mfma_f64(Wave& wave, const Inst& inst);
void exec_mfma_f8f6f4(Wave& wave, const Inst& inst);  // with or without block scales
void exec_smfmac_f32(Wave& wave, const Inst& inst);
void exec_smfmac_i32(Wave& wave, const Inst& inst);
void exec_accvgpr_read(Wave& wave, const Inst& inst);
void exec_accvgpr_write(Wave& wave, const Inst& inst);

}  // namespace vgpu
