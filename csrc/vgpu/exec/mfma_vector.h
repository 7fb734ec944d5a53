// Vectors of sixteen floats or eight doubles with a fused multiply-add; the compiler maps them to
// the host's vector unit.
#pragma once

#include "vgpu/base/types.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace vgpu {

// Unaligned and may_alias, because register rows are u32.
using Floats = f32 __attribute__((vector_size(64), may_alias, aligned(4)));
using Ints = i32 __attribute__((vector_size(64), may_alias, aligned(4)));
using Doubles = f64 __attribute__((vector_size(64), may_alias, aligned(8)));

template <class V, class T>
[[gnu::always_inline]] inline V& as_vector(T* ptr) {
  return *reinterpret_cast<V*>(ptr);
}
template <class V, class T>
[[gnu::always_inline]] inline const V& as_vector(const T* ptr) {
  return *reinterpret_cast<const V*>(ptr);
}

// sum += a * b, rounded once.
[[gnu::always_inline]] inline void multiply_add(Floats& sum, f32 a, const Floats& b) {
#if defined(__AVX512F__)
  sum = _mm512_fmadd_ps(_mm512_set1_ps(a), b, sum);
#else
  for (u32 j = 0; j < 16; ++j) sum[j] = __builtin_fmaf(a, b[j], sum[j]);
#endif
}

[[gnu::always_inline]] inline void multiply_add(Doubles& sum, const Doubles& a, const Doubles& b) {
#if defined(__AVX512F__)
  sum = _mm512_fmadd_pd(a, b, sum);
#else
  for (u32 j = 0; j < 8; ++j) sum[j] = __builtin_fma(a[j], b[j], sum[j]);
#endif
}

// Rows of a result tile: enough independent sums to hide the multiply-add latency.
inline constexpr u32 kTileRows = 8;

template <u32 kDim>
struct Tile {
  static constexpr u32 kVectors = kDim / 16;
  Floats row[kTileRows][kVectors];

  [[gnu::always_inline]] void clear() {
    for (auto& vectors : row) {
      for (Floats& v : vectors) v = Floats{};
    }
  }

  // Adds the products of `length` consecutive k; rows of A and of B are 64 floats apart.
  [[gnu::always_inline]] void accumulate(const f32* a, const f32* b, u32 length) {
    for (u32 s = 0; s < length; ++s, a += 64, b += 64) {
      for (u32 v = 0; v < kVectors; ++v) {
        const Floats columns = as_vector<Floats>(b + 16 * v);
        for (u32 r = 0; r < kTileRows; ++r) multiply_add(row[r][v], a[r], columns);
      }
    }
  }
};

}  // namespace vgpu
