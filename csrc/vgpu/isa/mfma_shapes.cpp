// The matrix opcodes: one line each, from which the opcode table rows are generated.
#include <array>

#include "vgpu/isa/mfma.h"

namespace vgpu {
namespace {

using enum Elem;

// Pass counts are those of LLVM's scheduling model.
constexpr MatrixShape kShapes[] = {
    // opcode, name, M = N, K, blocks, A, B, passes
    {64, "v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, kF32, kF32, 16},
    {65, "v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, kF32, kF32, 8},
    {66, "v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, kF32, kF32, 2},
    {68, "v_mfma_f32_32x32x2_f32", 32, 2, 1, kF32, kF32, 16},
    {69, "v_mfma_f32_16x16x4_f32", 16, 4, 1, kF32, kF32, 8},
    {62, "v_mfma_f32_16x16x8_xf32", 16, 8, 1, kXf32, kXf32, 4, kOnGfx942},
    {63, "v_mfma_f32_32x32x4_xf32", 32, 4, 1, kXf32, kXf32, 8, kOnGfx942},
    {72, "v_mfma_f32_32x32x4_2b_f16", 32, 4, 2, kF16, kF16, 16},
    {73, "v_mfma_f32_16x16x4_4b_f16", 16, 4, 4, kF16, kF16, 8},
    {74, "v_mfma_f32_4x4x4_16b_f16", 4, 4, 16, kF16, kF16, 2},
    {76, "v_mfma_f32_32x32x8_f16", 32, 8, 1, kF16, kF16, 8},
    {77, "v_mfma_f32_16x16x16_f16", 16, 16, 1, kF16, kF16, 4},
    {84, "v_mfma_f32_16x16x32_f16", 16, 32, 1, kF16, kF16, 4, kOnGfx950},
    {85, "v_mfma_f32_32x32x16_f16", 32, 16, 1, kF16, kF16, 8, kOnGfx950},
    {93, "v_mfma_f32_32x32x4_2b_bf16", 32, 4, 2, kBf16, kBf16, 16},
    {94, "v_mfma_f32_16x16x4_4b_bf16", 16, 4, 4, kBf16, kBf16, 8},
    {95, "v_mfma_f32_4x4x4_16b_bf16", 4, 4, 16, kBf16, kBf16, 2},
    {96, "v_mfma_f32_32x32x8_bf16", 32, 8, 1, kBf16, kBf16, 8},
    {97, "v_mfma_f32_16x16x16_bf16", 16, 16, 1, kBf16, kBf16, 4},
    {53, "v_mfma_f32_16x16x32_bf16", 16, 32, 1, kBf16, kBf16, 4, kOnGfx950},
    {55, "v_mfma_f32_32x32x16_bf16", 32, 16, 1, kBf16, kBf16, 8, kOnGfx950},
    {80, "v_mfma_i32_32x32x4_2b_i8", 32, 4, 2, kI8, kI8, 16},
    {81, "v_mfma_i32_16x16x4_4b_i8", 16, 4, 4, kI8, kI8, 8},
    {82, "v_mfma_i32_4x4x4_16b_i8", 4, 4, 16, kI8, kI8, 2},
    {86, "v_mfma_i32_32x32x16_i8", 32, 16, 1, kI8, kI8, 8},
    {87, "v_mfma_i32_16x16x32_i8", 16, 32, 1, kI8, kI8, 4},
    {54, "v_mfma_i32_16x16x64_i8", 16, 64, 1, kI8, kI8, 4, kOnGfx950},
    {56, "v_mfma_i32_32x32x32_i8", 32, 32, 1, kI8, kI8, 8, kOnGfx950},
    {110, "v_mfma_f64_16x16x4_f64", 16, 4, 1, kF64, kF64, 8},
    {111, "v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, kF64, kF64, 4},
    {112, "v_mfma_f32_16x16x32_bf8_bf8", 16, 32, 1, kBf8, kBf8, 4},
    {113, "v_mfma_f32_16x16x32_bf8_fp8", 16, 32, 1, kBf8, kFp8, 4},
    {114, "v_mfma_f32_16x16x32_fp8_bf8", 16, 32, 1, kFp8, kBf8, 4},
    {115, "v_mfma_f32_16x16x32_fp8_fp8", 16, 32, 1, kFp8, kFp8, 4},
    {116, "v_mfma_f32_32x32x16_bf8_bf8", 32, 16, 1, kBf8, kBf8, 8},
    {117, "v_mfma_f32_32x32x16_bf8_fp8", 32, 16, 1, kBf8, kFp8, 8},
    {118, "v_mfma_f32_32x32x16_fp8_bf8", 32, 16, 1, kFp8, kBf8, 8},
    {119, "v_mfma_f32_32x32x16_fp8_fp8", 32, 16, 1, kFp8, kFp8, 8},
    {45, "v_mfma_f32_16x16x128_f8f6f4", 16, 128, 1, kByField, kByField, 8, kOnGfx950},
    {46, "v_mfma_f32_32x32x64_f8f6f4", 32, 64, 1, kByField, kByField, 16, kOnGfx950},
    // 4:2 sparse A.
    {98, "v_smfmac_f32_16x16x32_f16", 16, 32, 1, kF16, kF16, 4, kNoTraits, true},
    {100, "v_smfmac_f32_32x32x16_f16", 32, 16, 1, kF16, kF16, 8, kNoTraits, true},
    {102, "v_smfmac_f32_16x16x32_bf16", 16, 32, 1, kBf16, kBf16, 4, kNoTraits, true},
    {104, "v_smfmac_f32_32x32x16_bf16", 32, 16, 1, kBf16, kBf16, 8, kNoTraits, true},
    {106, "v_smfmac_i32_16x16x64_i8", 16, 64, 1, kI8, kI8, 4, kNoTraits, true},
    {108, "v_smfmac_i32_32x32x32_i8", 32, 32, 1, kI8, kI8, 8, kNoTraits, true},
    {120, "v_smfmac_f32_16x16x64_bf8_bf8", 16, 64, 1, kBf8, kBf8, 4, kNoTraits, true},
    {121, "v_smfmac_f32_16x16x64_bf8_fp8", 16, 64, 1, kBf8, kFp8, 4, kNoTraits, true},
    {122, "v_smfmac_f32_16x16x64_fp8_bf8", 16, 64, 1, kFp8, kBf8, 4, kNoTraits, true},
    {123, "v_smfmac_f32_16x16x64_fp8_fp8", 16, 64, 1, kFp8, kFp8, 4, kNoTraits, true},
    {124, "v_smfmac_f32_32x32x32_bf8_bf8", 32, 32, 1, kBf8, kBf8, 8, kNoTraits, true},
    {125, "v_smfmac_f32_32x32x32_bf8_fp8", 32, 32, 1, kBf8, kFp8, 8, kNoTraits, true},
    {126, "v_smfmac_f32_32x32x32_fp8_bf8", 32, 32, 1, kFp8, kBf8, 8, kNoTraits, true},
    {127, "v_smfmac_f32_32x32x32_fp8_fp8", 32, 32, 1, kFp8, kFp8, 8, kNoTraits, true},
    {90, "v_smfmac_f32_16x16x64_f16", 16, 64, 1, kF16, kF16, 4, kOnGfx950, true},
    {91, "v_smfmac_f32_32x32x32_f16", 32, 32, 1, kF16, kF16, 8, kOnGfx950, true},
    {57, "v_smfmac_f32_16x16x64_bf16", 16, 64, 1, kBf16, kBf16, 4, kOnGfx950, true},
    {70, "v_smfmac_f32_32x32x32_bf16", 32, 32, 1, kBf16, kBf16, 8, kOnGfx950, true},
    {58, "v_smfmac_i32_16x16x128_i8", 16, 128, 1, kI8, kI8, 4, kOnGfx950, true},
    {71, "v_smfmac_i32_32x32x64_i8", 32, 64, 1, kI8, kI8, 8, kOnGfx950, true},
    {59, "v_smfmac_f32_16x16x128_bf8_bf8", 16, 128, 1, kBf8, kBf8, 4, kOnGfx950, true},
    {60, "v_smfmac_f32_16x16x128_bf8_fp8", 16, 128, 1, kBf8, kFp8, 4, kOnGfx950, true},
    {61, "v_smfmac_f32_16x16x128_fp8_bf8", 16, 128, 1, kFp8, kBf8, 4, kOnGfx950, true},
    {67, "v_smfmac_f32_16x16x128_fp8_fp8", 16, 128, 1, kFp8, kFp8, 4, kOnGfx950, true},
    {75, "v_smfmac_f32_32x32x64_bf8_bf8", 32, 64, 1, kBf8, kBf8, 8, kOnGfx950, true},
    {78, "v_smfmac_f32_32x32x64_bf8_fp8", 32, 64, 1, kBf8, kFp8, 8, kOnGfx950, true},
    {79, "v_smfmac_f32_32x32x64_fp8_bf8", 32, 64, 1, kFp8, kBf8, 8, kOnGfx950, true},
    {83, "v_smfmac_f32_32x32x64_fp8_fp8", 32, 64, 1, kFp8, kFp8, 8, kOnGfx950, true},
};

// The 16-byte encoding, whose first half names the scale operands.
constexpr MatrixShape kScaleShapes[] = {
    {45, "v_mfma_scale_f32_16x16x128_f8f6f4", 16, 128, 1, kByField, kByField, 8, kOnGfx950},
    {46, "v_mfma_scale_f32_32x32x64_f8f6f4", 32, 64, 1, kByField, kByField, 16, kOnGfx950},
};

constexpr u32 input_dwords(const MatrixShape& shape, u32 k, Elem elem) {
  return shape.dim * k * shape.blocks * bits_of(elem) / (64 * 32);
}

constexpr Type tuple_of(u32 dwords) {
  switch (dwords) {
    case 1:
      return Type::kB32;
    case 2:
      return Type::kB64;
    case 4:
      return Type::kB128;
    case 6:
      return Type::kB192;
    case 8:
      return Type::kB256;
    case 16:
      return Type::kB512;
    default:
      return Type::kB1024;
  }
}

constexpr ExecFn exec_of(const MatrixShape& shape) {
  const bool integer = shape.a == kI8;
  if (shape.sparse) return integer ? exec_smfmac_i32 : exec_smfmac_f32;
  if (shape.a == kF64) return exec_mfma_f64;
  if (shape.a == kByField) return exec_mfma_f8f6f4;
  if (shape.dim == 4) return exec_mfma_4x4;
  return integer ? exec_mfma_i32 : exec_mfma_f32;
}

constexpr OpInfo row_of(const MatrixShape& shape) {
  const Type a = tuple_of(input_dwords(shape, shape.a_k(), shape.a));
  const Type b = tuple_of(input_dwords(shape, shape.k, shape.b));
  const bool single_f64 = shape.out_bits() == 64 && shape.out_dwords() == 2;
  const Type d = single_f64 ? Type::kF64 : tuple_of(shape.out_dwords());
  constexpr Traits kMfmaTraits = Category::kMfma | kMatrix | Spread::kMatrix;
  const Traits text = shape.a == kByField ? Syntax::kByFormat
                      : shape.a == kF64   ? Syntax::kNegated
                                          : Syntax::kDefault;
  return {shape.opcode,
          shape.name,
          exec_of(shape),
          d,
          {a, b, shape.sparse ? Type::kB32 : d},
          kMfmaTraits | text | shape.traits | (shape.sparse ? kReadsDst : kNoTraits)};
}

constexpr u32 kShapeCount = std::size(kShapes);
constexpr u32 kMoves = 2;  // v_accvgpr_read, v_accvgpr_write follow the shapes

constexpr auto kRows = [] {
  std::array<OpInfo, kShapeCount + kMoves> rows{};
  for (u32 i = 0; i < kShapeCount; ++i) rows[i] = row_of(kShapes[i]);
  constexpr Traits kMove = kVector | kMatrix;
  rows[kShapeCount] = {88,         "v_accvgpr_read_b32", exec_accvgpr_read,
                       Type::kB32, {Type::kB32},         kMove | kAccSrc};
  rows[kShapeCount + 1] = {89,         "v_accvgpr_write_b32", exec_accvgpr_write,
                           Type::kB32, {Type::kB32},          kMove | kAccDst};
  return rows;
}();

constexpr std::array<OpInfo, 2> kScaleRows = {row_of(kScaleShapes[0]), row_of(kScaleShapes[1])};

}  // namespace

extern const OpTable kMfmaTable;
extern const OpTable kMfmaScaleTable;
const OpTable kMfmaTable = {Format::kVop3p, kRows.data(), static_cast<u32>(kRows.size())};
const OpTable kMfmaScaleTable = {Format::kVop3px2, kScaleRows.data(),
                                 static_cast<u32>(kScaleRows.size())};

const MatrixShape* matrix_shape(const Inst& inst) {
  const OpInfo* op = inst.op;
  if (op >= kRows.data() && op < kRows.data() + kShapeCount) return &kShapes[op - kRows.data()];
  if (op >= kScaleRows.data() && op < kScaleRows.data() + kScaleRows.size()) {
    return &kScaleShapes[op - kScaleRows.data()];
  }
  return nullptr;
}

Elem matrix_elem(const MatrixShape& shape, const Inst& inst, u32 operand) {
  constexpr Elem kFormats[8] = {kFp8, kBf8, kFp6, kBf6, kFp4, kFp8, kFp8, kFp8};
  const Elem elem = operand ? shape.b : shape.a;
  return elem == kByField ? kFormats[(operand ? inst.blgp : inst.cbsz) & 7] : elem;
}

u32 matrix_dwords(const MatrixShape& shape, const Inst& inst, u32 operand) {
  switch (operand) {
    case 0:
      return input_dwords(shape, shape.a_k(), matrix_elem(shape, inst, 0));
    case 1:
      return input_dwords(shape, shape.k, matrix_elem(shape, inst, 1));
    case 2:
      return shape.sparse ? 1 : shape.out_dwords();
    default:
      return shape.out_dwords();
  }
}

u32 matrix_passes(const MatrixShape& shape, const Inst& inst, Arch arch) {
  if (shape.a == kByField) {  // 6- and 4-bit pairs run at twice the rate
    const bool wide =
        bits_of(matrix_elem(shape, inst, 0)) == 8 || bits_of(matrix_elem(shape, inst, 1)) == 8;
    return wide ? shape.passes : shape.passes / 2u;
  }
  const bool half_rate_f64 = shape.a == kF64 && shape.dim == 16 && arch_traits(arch).slow_f64;
  return half_rate_f64 ? 2u * shape.passes : shape.passes;
}

}  // namespace vgpu
