// Packed halves, a row of 128 per operation, in the host's vector units: v_pk_fma_f16 and similar
// with default MODE and modifiers.
//
// Products of halves are exact in float. A float sum converted to half is rounded twice, which is
// wrong only if the float lies half-way between two halves, or is a denormal half. In these cases
// the sum is rounded to odd (last bit set if inexact) first.
#pragma once

#include "vgpu/exec/lanes.h"

namespace vgpu {

enum class HalfOp : u8 { kNone, kFma, kAdd, kMul };

#if defined(__F16C__) && defined(__AVX2__) && defined(__FMA__)

inline __m256i sum_to_odd(__m256 product, __m256 c) {
  const __m256 sum = _mm256_add_ps(product, c);
  const __m256 second = _mm256_sub_ps(sum, product);
  const __m256 error =
      _mm256_add_ps(_mm256_sub_ps(product, _mm256_sub_ps(sum, second)), _mm256_sub_ps(c, second));
  const __m256i word = _mm256_castps_si256(sum), one = _mm256_set1_epi32(1);
  const __m256i inexact =
      _mm256_castps_si256(_mm256_cmp_ps(error, _mm256_setzero_ps(), _CMP_NEQ_OQ));
  const __m256i even = _mm256_cmpeq_epi32(_mm256_and_si256(word, one), _mm256_setzero_si256());
  // +1 (away from zero) if the error has the sign of the sum, otherwise -1.
  const __m256i signs = _mm256_xor_si256(word, _mm256_castps_si256(error));
  const __m256i step = _mm256_or_si256(_mm256_srai_epi32(signs, 31), one);
  return _mm256_add_epi32(word, _mm256_and_si256(step, _mm256_and_si256(inexact, even)));
}

// Selects NaN results as scalar arithmetic does: the first NaN operand, quieted (by the widening
// conversion), otherwise the host's default NaN.
template <HalfOp kOp>
__m256 select_nans(__m256 result, __m256 x, __m256 y, __m256 z) {
  const auto nans = [](__m256 v) { return _mm256_cmp_ps(v, v, _CMP_UNORD_Q); };
  const __m256 default_nan = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<i32>(0xffc00000)));
  __m256 nan = default_nan;
  if constexpr (kOp == HalfOp::kFma) {  // an invalid product takes precedence over the addend
    nan = _mm256_blendv_ps(nan, z, _mm256_andnot_ps(nans(_mm256_mul_ps(x, y)), nans(z)));
  }
  nan = _mm256_blendv_ps(nan, y, nans(y));
  nan = _mm256_blendv_ps(nan, x, nans(x));
  return _mm256_blendv_ps(result, nan, nans(result));
}

// Returns a mask of sums that need round to odd: NaN, denormal half, or half-way between two
// halves.
inline __m256i doubtful_sums(__m256 sum) {
  const __m256i word = _mm256_castps_si256(sum);
  const __m256i size = _mm256_and_si256(word, _mm256_set1_epi32(0x7fffffff));
  const __m256i middle = _mm256_cmpeq_epi32(_mm256_and_si256(word, _mm256_set1_epi32(0x1fff)),
                                            _mm256_set1_epi32(0x1000));
  const __m256i denormal =
      _mm256_andnot_si256(_mm256_cmpeq_epi32(size, _mm256_setzero_si256()),
                          _mm256_cmpgt_epi32(_mm256_set1_epi32(0x38800000), size));
  const __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
  return _mm256_or_si256(_mm256_or_si256(middle, denormal), nan);
}

template <HalfOp kOp>
__m256 half_result(__m256 x, __m256 y, __m256 z) {
  if constexpr (kOp == HalfOp::kFma) {
    const __m256 sum = _mm256_fmadd_ps(x, y, z);
    const __m256i doubtful = doubtful_sums(sum);
    if (_mm256_testz_si256(doubtful, doubtful)) [[likely]]
      return sum;
    const __m256i odd = sum_to_odd(_mm256_mul_ps(x, y), z);
    return select_nans<kOp>(_mm256_castsi256_ps(odd), x, y, z);
  }
  const __m256 result = kOp == HalfOp::kAdd ? _mm256_add_ps(x, y) : _mm256_mul_ps(x, y);
  if (!_mm256_movemask_ps(_mm256_cmp_ps(result, result, _CMP_UNORD_Q))) [[likely]]
    return result;
  return select_nans<kOp>(result, x, y, z);
}

template <HalfOp kOp>
void half_pairs(const u32* a, const u32* b, const u32* c, u32* out) {
  const auto floats = [](const u32* pairs) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(pairs)));
  };
  for (u32 lane = 0; lane < kLanes; lane += 4) {
    const __m256 x = floats(a + lane), y = floats(b + lane);
    const __m256 z = kOp == HalfOp::kFma ? floats(c + lane) : x;
    _mm_store_si128(reinterpret_cast<__m128i*>(out + lane),
                    _mm256_cvtps_ph(half_result<kOp>(x, y, z), _MM_FROUND_TO_NEAREST_INT));
  }
}

// Returns the pairs of a source with op_sel and neg applied.
inline const u32* fetch_pairs(Wave& w, const Inst& inst, u32 s, Lanes& tmp) {
  const Src& src = inst.src[s];
  const u32* pairs = tmp.word;
  if (src.kind == SrcKind::kVgpr) {
    pairs = w.v(src.reg);
  } else {
    broadcast(tmp.word, static_cast<u32>(read_scalar64(w, src)));
  }
  const u32 low = inst.opsel >> s & 1, high = inst.opsel_hi >> s & 1;
  const u32 flip = (inst.neg >> s & 1) << 15 | (inst.neg_hi >> s & 1) << 31;
  if (!low && high && !flip) return pairs;
  const u32 low_shift = low ? 16 : 0, high_shift = high ? 16 : 0;
  VGPU_LANES {
    const u32 word = pairs[lane];
    tmp.word[lane] = ((word >> low_shift & 0xffff) | word >> high_shift << 16) ^ flip;
  }
  return tmp.word;
}

// Returns whether the instruction was executed here.
template <HalfOp kOp>
bool run_half_pairs(Wave& w, const Inst& inst) {
  constexpr u32 kNearest = 0, kRoundBits = 3;
  if (w.fp_split || (w.mode & kRoundBits) != kNearest || w.fp16_ovfl() || inst.clamp) return false;
  Lanes tmp[3], out;
  const u32* a = fetch_pairs(w, inst, 0, tmp[0]);
  const u32* b = fetch_pairs(w, inst, 1, tmp[1]);
  const u32* c = kOp == HalfOp::kFma ? fetch_pairs(w, inst, 2, tmp[2]) : a;
  half_pairs<kOp>(a, b, c, out.word);
  store_masked(w, inst.dst, out.word, 1, w.exec());
  return true;
}

#else

template <HalfOp kOp>
bool run_half_pairs(Wave&, const Inst&) {
  return false;
}

#endif

}  // namespace vgpu
