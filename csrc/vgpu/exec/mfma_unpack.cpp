// Unpacks A and B of matrix instructions to floats.
#include "vgpu/exec/mfma_unpack.h"

#include "vgpu/base/formats.h"
#include "vgpu/machine/fp_scope.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace vgpu {
namespace {

constexpr f32 from_f32(u32 word) { return bits<f32>(word); }
// XF32 keeps 10 bits of the fraction.
constexpr f32 from_xf32(u32 word) { return bits<f32>(word & 0xffffe000); }
constexpr f32 from_bf16(u32 half) { return bits<f32>(half << 16); }
constexpr f32 from_i8(u32 byte) { return static_cast<f32>(static_cast<i32>(byte << 24) >> 24); }

// Elements whose width divides a dword.
template <u32 kBits, auto kDecode>
void unpack_words(const u32* regs, u32 dwords, f32* out) {
  constexpr u32 kMask = kBits == 32 ? ~0u : (1u << (kBits & 31)) - 1;
  for (u32 r = 0; r < dwords; ++r, regs += kLanes) {
    for (u32 shift = 0; shift < 32; shift += kBits, out += kLanes) {
      for (u32 lane = 0; lane < kLanes; ++lane) out[lane] = kDecode(regs[lane] >> shift & kMask);
    }
  }
}

// Six-bit elements: 32 of them packed in six dwords.
template <auto kDecode>
void unpack_sixes(const u32* regs, u32, f32* out) {
  for (u32 e = 0; e < 32; ++e, out += kLanes) {
    const u32 shift = 6 * e % 32;
    const u32* low = regs + 6 * e / 32 * kLanes;
    if (shift <= 26) {
      for (u32 lane = 0; lane < kLanes; ++lane) out[lane] = kDecode(low[lane] >> shift & 63);
    } else {  // the last bits are in the next dword
      for (u32 lane = 0; lane < kLanes; ++lane) {
        out[lane] = kDecode((low[lane] >> shift | low[lane + kLanes] << (32 - shift)) & 63);
      }
    }
  }
}

#if defined(__AVX512F__)
void unpack_halves(const u32* regs, u32 dwords, f32* out) {
  for (u32 r = 0; r < dwords; ++r, regs += kLanes, out += 2 * kLanes) {
    for (u32 lane = 0; lane < kLanes; lane += 16) {
      // Uses the maskz forms, because g++ 12 warns about the undefined source of the plain ones.
      const __m512i words = _mm512_loadu_si512(regs + lane);
      const __m512i shifted = _mm512_maskz_srli_epi32(0xffff, words, 16);
      const __m256i low = _mm512_maskz_cvtepi32_epi16(0xffff, words);
      const __m256i high = _mm512_maskz_cvtepi32_epi16(0xffff, shifted);
      _mm512_storeu_ps(out + lane, _mm512_maskz_cvtph_ps(0xffff, low));
      _mm512_storeu_ps(out + kLanes + lane, _mm512_maskz_cvtph_ps(0xffff, high));
    }
  }
}
#else
constexpr auto unpack_halves = unpack_words<16, decode_small<kHalf>>;
#endif

using UnpackFn = void (*)(const u32*, u32, f32*);

UnpackFn unpacker(Elem elem, bool fnuz) {
  switch (elem) {
    case Elem::kF32:
      return unpack_words<32, from_f32>;
    case Elem::kXf32:
      return unpack_words<32, from_xf32>;
    case Elem::kF16:
      return unpack_halves;
    case Elem::kBf16:
      return unpack_words<16, from_bf16>;
    case Elem::kI8:
      return unpack_words<8, from_i8>;
    case Elem::kFp8:
      return fnuz ? unpack_words<8, decode_small<kE4m3Fnuz>> : unpack_words<8, decode_small<kE4m3>>;
    case Elem::kBf8:
      return fnuz ? unpack_words<8, decode_small<kE5m2Fnuz>> : unpack_words<8, decode_small<kE5m2>>;
    case Elem::kFp6:
      return unpack_sixes<decode_small<kE2m3>>;
    case Elem::kBf6:
      return unpack_sixes<decode_small<kE3m2>>;
    default:
      return unpack_words<4, decode_small<kE2m1>>;
  }
}

void flush_denormals(f32* values, u32 count) {
  for (u32 i = 0; i < count; ++i) {
    const u32 word = bits<u32>(values[i]);
    values[i] = bits<f32>(word & kFloatInf ? word : word & 0x80000000);
  }
}

}  // namespace

void unpack(Wave& wave, Elem elem, u32 reg, u32 dwords, Unpacked& out) {
  const bool fnuz = arch_traits(wave.group->arch).fnuz;
  unpacker(elem, fnuz)(wave.va(reg), dwords, out.slot[0]);
  if (elem == Elem::kF32 && flush_float_sources(wave))
    flush_denormals(out.slot[0], dwords * kLanes);
}

bool all_finite(const u32* words, u32 count) {
  u32 finite = 1;
  for (u32 i = 0; i < count; ++i) finite &= (words[i] & kFloatInf) != kFloatInf;
  return finite;
}

bool all_finite(const Unpacked& values, u32 slots) {
  return all_finite(reinterpret_cast<const u32*>(values.slot), slots * kLanes);
}

void broadcast_blocks(Unpacked& a, u32 slots, const MatrixShape& shape, u32 cbsz, u32 abid) {
  const u32 requested = 1u << cbsz, blocks = requested < shape.blocks ? requested : shape.blocks;
  const u32 group = blocks * shape.dim, first_lane = abid % blocks * shape.dim;
  for (u32 s = 0; s < slots; ++s) {
    f32 old[kLanes];
    std::memcpy(old, a.slot[s], sizeof(old));
    for (u32 lane = 0; lane < kLanes; ++lane)
      a.slot[s][lane] = old[lane / group * group + first_lane + lane % shape.dim];
  }
}

void permute_lanes(Unpacked& b, u32 slots, u32 blgp) {
  // BLGP as a lane permutation: (lane + add) % modulus + base.
  constexpr struct {
    u8 add, modulus, base;
  } kTable[8] = {{0, 64, 0}, {0, 32, 0},  {0, 32, 32}, {16, 64, 0},
                 {0, 16, 0}, {0, 16, 16}, {0, 16, 32}, {0, 16, 48}};
  const auto [add, modulus, base] = kTable[blgp & 7];
  for (u32 s = 0; s < slots; ++s) {
    f32 old[kLanes];
    std::memcpy(old, b.slot[s], sizeof(old));
    for (u32 lane = 0; lane < kLanes; ++lane) b.slot[s][lane] = old[(lane + add) % modulus + base];
  }
}

}  // namespace vgpu
