// Operand fetch and result commit of the VALU, common to all opcodes.
#include "vgpu/exec/lanes.h"

#include <cfenv>

namespace vgpu {
namespace {

// -------------------------------------------------------------------------------- DPP

constexpr u32 kNoLane = 64;

// Returns the lane that `lane` reads under DPP control `ctrl`, kNoLane if none.
u32 dpp_source(u32 ctrl, u32 lane) {
  const u32 row = lane & ~15u, row_lane = lane & 15, amount = ctrl & 15;
  if (ctrl < 0x100) return (lane & ~3u) | (ctrl >> (2 * (lane & 3)) & 3);  // quad_perm
  switch (ctrl >> 4) {
    case 0x10:
      return row_lane + amount < 16 ? lane + amount : kNoLane;  // row_shl
    case 0x11:
      return row_lane >= amount ? lane - amount : kNoLane;  // row_shr
    case 0x12:
      return row | ((row_lane - amount) & 15);  // row_ror
    case 0x15:
      return row | amount;  // row_newbcast
    default:
      break;
  }
  switch (ctrl) {
    case 0x130:
      return lane + 1;  // wave_shl: lane 63 has no source
    case 0x134:
      return (lane + 1) & 63;  // wave_rol
    case 0x138:
      return lane ? lane - 1 : kNoLane;  // wave_shr
    case 0x13c:
      return (lane - 1) & 63;  // wave_ror
    case 0x140:
      return row | (15 - row_lane);  // row_mirror
    case 0x141:
      return (lane & ~7u) | (7 - (lane & 7));  // row_half_mirror
    case 0x142:
      return row ? row - 1 : kNoLane;  // row_bcast:15
    case 0x143:
      return lane >= 32 ? 31 : kNoLane;  // row_bcast:31
    default:
      return kNoLane;
  }
}

bool dpp_valid(const Wave& wave, const Dpp& dpp, u32 src_lane) {
  return src_lane < kLanes && (dpp.fetch_inactive || wave.exec() & lane_bit(src_lane));
}

// Reads all sources before any write, because reductions use DPP in place.
void permute(const Wave& wave, const Dpp& dpp, const u32* src, u32 rows, u32* dst) {
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 source = dpp_source(dpp.ctrl, lane);
    const bool valid = dpp_valid(wave, dpp, source);
    for (u32 r = 0; r < rows; ++r) dst[r * kLanes + lane] = valid ? src[r * kLanes + source] : 0;
  }
}

// -------------------------------------------------------------------------------- SDWA

u32 select(u32 word, u32 sel, bool sext) {
  if (sel < 4) {
    const u32 byte = word >> (8 * sel) & 0xff;
    return sext ? static_cast<u32>(static_cast<i8>(byte)) : byte;
  }
  if (sel < 6) {
    const u32 half = word >> (16 * (sel - 4)) & 0xffff;
    return sext ? static_cast<u32>(static_cast<i16>(half)) : half;
  }
  return word;
}

u32 sdwa_merge(u32 old, u32 value, const Sdwa& sdwa) {
  if (sdwa.dst_sel >= 6) return value;
  const u32 width = sdwa.dst_sel < 4 ? 8 : 16;
  const u32 shift = sdwa.dst_sel < 4 ? 8u * sdwa.dst_sel : 16u * (sdwa.dst_sel - 4u);
  const u32 mask = ((1u << width) - 1) << shift;
  const u32 placed = value << shift & mask;
  switch (sdwa.dst_unused) {
    case 2:
      return placed | (old & ~mask);  // preserve
    case 1: {                         // sign-extends
      const bool negative = value >> (width - 1) & 1;
      const u32 upper_bits = ~(mask | (mask - 1u));
      return placed | (negative && shift + width < 32 ? upper_bits : 0);
    }
    default:
      return placed;
  }
}

// -------------------------------------------------------------------------------- source values

// Returns the raw dwords of a source, `rows` registers of lanes: the register itself or a
// broadcast.
const u32* raw_lanes(Wave& wave, const Src& src, u32 rows, u32* tmp) {
  if (src.kind == SrcKind::kVgpr) return wave.v(src.reg);
  const u64 value = read_scalar64(wave, src);
  broadcast(tmp, static_cast<u32>(value));
  if (rows == 2) broadcast(tmp + kLanes, static_cast<u32>(value >> 32));
  return tmp;
}

// Applies neg and abs to the sign bit of the type, then moves 16-bit values to the low half and
// widens floats.
void apply_modifiers(u32* lanes, Type type, bool high_half, bool abs, bool neg) {
  const u32 sign = is_16bit(type) ? 0x8000 : 0x80000000;
  u32* word = type == Type::kF64 ? lanes + kLanes : lanes;
  if (is_16bit(type)) {
    const u32 shift = high_half ? 16 : 0;
    VGPU_LANES { word[lane] = word[lane] >> shift & 0xffff; }
  }
  if (type != Type::kB32 && type != Type::kB64 && type != Type::kB16) {
    const u32 clear = abs ? sign : 0, flip = neg ? sign : 0;
    if (clear | flip) {
      VGPU_LANES { word[lane] = (word[lane] & ~clear) ^ flip; }
    }
  }
}

// Keeps signalling NaNs, because minimum, maximum and compares distinguish them. Half denormals
// become zero as the f16/f64 field of MODE (bits 7:6) says: 0 flushes sources and results, 1
// results, 2 sources, 3 neither.
void flush_halves(u32* lanes) {
  VGPU_LANES { lanes[lane] = lanes[lane] & 0x7c00 ? lanes[lane] : lanes[lane] & 0x8000; }
}
bool flush_half_sources(const Wave& wave) { return !(wave.mode >> 6 & 1); }
bool flush_half_results(const Wave& wave) { return !(wave.mode >> 7 & 1); }

// -------------------------------------------------------------------------------- result modifiers

// omod applies only if MODE disables IEEE rules and flushes denormal results; then a scaled
// denormal becomes zero and -0 becomes +0.
bool omod_works(const Wave& wave, Type type) {
  return !wave.ieee() && !(wave.mode >> (type == Type::kF32 ? 5 : 7) & 1);
}

template <class F>
F smallest_normal(Type type) {
  return static_cast<F>(type == Type::kF64 ? 0x1p-1022 : type == Type::kF16 ? 0x1p-14 : 0x1p-126);
}

template <class F>
void scale_and_clamp_as(const Wave& wave, const Inst& inst, Type type, u32* lanes) {
  constexpr f32 kScale[] = {1, 2, 4, 0.5f};
  const bool scaled = inst.omod && omod_works(wave, type);
  const F scale = kScale[inst.omod], smallest = smallest_normal<F>(type);
  const bool nan_to_zero = wave.dx10_clamp();
  for (u32 lane = 0; lane < kLanes; ++lane) {
    F x = load_lane<F>(lanes, lane);
    if (scaled) x = std::fabs(x * scale) < smallest ? F{0} : x * scale;
    if (inst.clamp) x = is_nan(x) ? (nan_to_zero ? F{0} : x) : x < 0 ? F{0} : x > 1 ? F{1} : x;
    store_lane<F>(lanes, lane, x);
  }
}

constexpr bool is_float(Type type) {
  return type == Type::kF32 || type == Type::kF64 || type == Type::kF16 || type == Type::kBf16;
}

}  // namespace

const f32 kRuntimeOneF32 = 1;
const f64 kRuntimeOneF64 = 1;

void widen(const Wave& wave, Type type, u32* lanes) {
  if (type == Type::kF16) {
    if (wave.fp_split && flush_half_sources(wave)) flush_halves(lanes);
    widen_halves(lanes);
  } else if (type == Type::kBf16) {
    VGPU_LANES { lanes[lane] <<= 16; }
  }
}

void widen_halves(u32* lanes) {
#if defined(__AVX512F__)
  for (u32 lane = 0; lane < kLanes; lane += 16) {
    const __m512i words = _mm512_loadu_si512(lanes + lane);
    const __m512i mag = _mm512_and_si512(words, _mm512_set1_epi32(0x7fff));
    const __mmask16 signaling = _mm512_cmpgt_epi32_mask(mag, _mm512_set1_epi32(0x7c00)) &
                                _mm512_cmplt_epi32_mask(mag, _mm512_set1_epi32(0x7e00));
    const __m512i floats = _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)));
    const __m512i quiet_bit = _mm512_set1_epi32(0x400000);
    _mm512_storeu_si512(lanes + lane, _mm512_mask_xor_epi32(floats, signaling, floats, quiet_bit));
  }
#elif defined(__F16C__) && defined(__AVX2__)
  for (u32 lane = 0; lane < kLanes; lane += 8) {
    const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes + lane));
    const __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    const __m256i mag = _mm256_and_si256(words, _mm256_set1_epi32(0x7fff));
    const __m256i signaling = _mm256_and_si256(_mm256_cmpgt_epi32(mag, _mm256_set1_epi32(0x7c00)),
                                               _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7e00), mag));
    const __m256i quiet_bit = _mm256_and_si256(signaling, _mm256_set1_epi32(0x400000));
    const __m256i floats =
        _mm256_xor_si256(_mm256_castps_si256(_mm256_cvtph_ps(halves)), quiet_bit);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + lane), floats);
  }
#else
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 mag = lanes[lane] & 0x7fff;
    const u32 quiet_bit = mag > 0x7c00 && mag < 0x7e00 ? 0x400000 : 0;
    lanes[lane] = bits<u32>(half_to_float(static_cast<u16>(lanes[lane]))) ^ quiet_bit;
  }
#endif
}

// Rounds as MODE says, because the host's control word follows MODE.
void narrow_halves(u32* lanes) {
#if defined(__AVX512F__)
  for (u32 lane = 0; lane < kLanes; lane += 16) {
    const __m512 floats = _mm512_loadu_ps(lanes + lane);
    const __m256i halves = _mm512_cvtps_ph(floats, _MM_FROUND_CUR_DIRECTION);
    _mm512_storeu_si512(lanes + lane, _mm512_cvtepu16_epi32(halves));
  }
#elif defined(__F16C__) && defined(__AVX2__)
  for (u32 lane = 0; lane < kLanes; lane += 8) {
    const __m256 floats = _mm256_load_ps(reinterpret_cast<const f32*>(lanes + lane));
    const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_CUR_DIRECTION);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + lane), _mm256_cvtepu16_epi32(halves));
  }
#else
  for (u32 lane = 0; lane < kLanes; ++lane) lanes[lane] = float_to_half(bits<f32>(lanes[lane]));
#endif
}

void narrow(const Wave& wave, Type type, u32* lanes) {
  if (type == Type::kF16) {
    narrow_halves(lanes);
    if (wave.fp_split && flush_half_results(wave)) flush_halves(lanes);
    if (wave.fp16_ovfl()) {  // finite overflow saturates instead of becoming infinite
      VGPU_LANES { lanes[lane] -= (lanes[lane] & 0x7fff) == 0x7c00; }
    }
  } else if (type == Type::kBf16) {
    VGPU_LANES { lanes[lane] = float_to_bf16(bits<f32>(lanes[lane])); }
  }
}

const u32* fetch_slow(Wave& wave, const Inst& inst, u32 s, Type type, Lanes& tmp) {
  const Src& src = inst.src[s];
  const u32 rows = dwords_of(type);
  const u32* raw = raw_lanes(wave, src, rows, tmp.word);
  if (inst.lane_mod == LaneMod::kDpp && s == 0) {
    if (raw == tmp.word) return raw;  // a constant is the same in all lanes
    permute(wave, inst.dpp, raw, rows, tmp.word);
  } else if (inst.lane_mod == LaneMod::kSdwa && s < 2) {
    const u32 sel = inst.sdwa.sel[s];
    const bool sext = inst.sdwa.sext[s];
    VGPU_LANES { tmp.word[lane] = select(raw[lane], sel, sext); }
  } else if (raw != tmp.word) {
    std::memcpy(tmp.word, raw, rows * kLanes * sizeof(u32));
  }
  // A constant is always in its low half; op_sel applies to registers only.
  const bool high_half = inst.opsel >> s & 1 && src.kind != SrcKind::kConst;
  apply_modifiers(tmp.word, type, high_half, inst.abs >> s & 1, inst.neg >> s & 1);
  widen(wave, type, tmp.word);
  return tmp.word;
}

const u32* fetch_packed(Wave& wave, const Inst& inst, u32 s, u32 half, Type type, Lanes& tmp) {
  const Src& src = inst.src[s];
  const u32 pick = (half ? inst.opsel_hi : inst.opsel) >> s & 1;
  const bool neg = (half ? inst.neg_hi : inst.neg) >> s & 1;
  const bool pair = type == Type::kF32 || type == Type::kB32;
  if (pair) {  // op_sel selects a register of the pair
    if (src.kind == SrcKind::kVgpr) {
      const u32* row = wave.v(src.reg + pick);
      if (!neg || type == Type::kB32) return row;
      VGPU_LANES { tmp.word[lane] = row[lane] ^ 0x80000000; }
      return tmp.word;
    }
    const u64 value = read_scalar64(wave, src);
    broadcast(tmp.word, static_cast<u32>(value >> (pick ? 32 : 0)) ^
                            (neg && type == Type::kF32 ? 0x80000000 : 0));
    return tmp.word;
  }
  const u32* raw = raw_lanes(wave, src, 1, tmp.word);
  if (raw != tmp.word) std::memcpy(tmp.word, raw, kLanes * sizeof(u32));
  apply_modifiers(tmp.word, type, pick, false, neg);
  widen(wave, type, tmp.word);
  return tmp.word;
}

u64 mask_of(const u32* flags) {
  u64 mask = 0;
#if defined(__AVX512F__)
  for (u32 lane = 0; lane < kLanes; lane += 16) {
    const __m512i words = _mm512_loadu_si512(flags + lane);
    mask |= static_cast<u64>(_mm512_test_epi32_mask(words, words)) << lane;
  }
#elif defined(__AVX2__)
  for (u32 lane = 0; lane < kLanes; lane += 8) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags + lane));
    const __m256i clear = _mm256_cmpeq_epi32(words, _mm256_setzero_si256());
    const u32 zero = static_cast<u32>(_mm256_movemask_ps(_mm256_castsi256_ps(clear)));
    mask |= static_cast<u64>(~zero & 0xff) << lane;
  }
#else
  for (u32 lane = 0; lane < kLanes; ++lane) mask |= u64{flags[lane] != 0} << lane;
#endif
  return mask;
}

u64 write_mask(const Wave& wave, const Inst& inst) {
  u64 mask = wave.exec();
  if (inst.lane_mod != LaneMod::kDpp) return mask;
  const Dpp& dpp = inst.dpp;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const bool selected = dpp.row_mask >> (lane / 16) & 1 && dpp.bank_mask >> (lane / 4 % 4) & 1;
    const bool src_mask = dpp.bound_ctrl || dpp_valid(wave, dpp, dpp_source(dpp.ctrl, lane));
    if (!selected || !src_mask) mask &= ~lane_bit(lane);
  }
  return mask;
}

void store_masked(Wave& wave, u32 dst, const u32* src, u32 rows, u64 mask) {
  u32* dst_rows = wave.v(dst);
  if (mask == ~u64{0}) {
    std::memcpy(dst_rows, src, rows * kLanes * sizeof(u32));
    return;
  }
  for (u32 r = 0; r < rows; ++r, dst_rows += kLanes, src += kLanes) {
#if defined(__AVX512F__)
    for (u32 lane = 0; lane < kLanes; lane += 16) {
      _mm512_mask_storeu_epi32(dst_rows + lane, static_cast<__mmask16>(mask >> lane),
                               _mm512_loadu_si512(src + lane));
    }
#else
    for (u32 word = 0; word < 2; ++word) {
      const u32 bitsOfWord = static_cast<u32>(mask >> (32 * word));
      for (u32 l = 0; l < 32; ++l) {
        const u32 at = 32 * word + l;
        to[at] = bitsOfWord >> l & 1 ? from[at] : to[at];
      }
    }
#endif
  }
}

void scale_and_clamp(const Wave& wave, const Inst& inst, Type type, u32* lanes) {
  if (!inst.omod && !inst.clamp) return;
  if (type == Type::kF64) {
    scale_and_clamp_as<f64>(wave, inst, type, lanes);
  } else {
    scale_and_clamp_as<f32>(wave, inst, type, lanes);
  }
}

void commit_slow(Wave& wave, const Inst& inst, Type type, Lanes& tmp) {
  const u32 rows = dwords_of(type);
  if (is_float(type)) scale_and_clamp(wave, inst, type, tmp.word);
  narrow(wave, type, tmp.word);
  u32* old = wave.v(inst.dst);
  if (inst.lane_mod == LaneMod::kSdwa) {
    VGPU_LANES { tmp.word[lane] = sdwa_merge(old[lane], tmp.word[lane], inst.sdwa); }
  } else if (is_16bit(type)) {
    if (inst.opsel & 8) {
      VGPU_LANES { tmp.word[lane] = (old[lane] & 0xffff) | tmp.word[lane] << 16; }
    } else if (inst.op->flags & kKeepHigh) {
      VGPU_LANES { tmp.word[lane] = (old[lane] & 0xffff0000) | (tmp.word[lane] & 0xffff); }
    }
  }
  store_masked(wave, inst.dst, tmp.word, rows, write_mask(wave, inst));
}

// ------------------------------------------------------------ floating-point mode
// The host's control word follows MODE: its rounding field has the same order (nearest, up,
// down, zero) but for a swap, and flush-to-zero / denormals-are-zero are MODE's result and source
// flush.

#if defined(__SSE__)
u32 save_host_fp_mode() { return _mm_getcsr(); }
void restore_host_fp_mode(u32 saved) { _mm_setcsr(saved); }
static void set_host_mode(u32 round, u32 denormals) {
  constexpr u32 kRound[] = {
      0, 2, 1, 3};  // MODE: nearest, +inf, -inf, zero; MXCSR: nearest, -inf, +inf, zero
  const u32 flush = (denormals & 2 ? 0u : 0x8000u) | (denormals & 1 ? 0u : 0x40u);
  _mm_setcsr(0x1f80u | kRound[round & 3] << 13 | flush);
}
#else  // denormals are kept, independently of MODE
u32 save_host_fp_mode() { return static_cast<u32>(std::fegetround()); }
void restore_host_fp_mode(u32 saved) { std::fesetround(static_cast<int>(saved)); }
static void set_host_mode(u32 round, u32) {
  constexpr int kRound[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  std::fesetround(kRound[round & 3]);
}
#endif

void enter_fp_mode(Wave& wave) {
  const u32 round32 = wave.mode & 3, round64 = wave.mode >> 2 & 3;
  const u32 denorm32 = wave.mode >> 4 & 3, denorm64 = wave.mode >> 6 & 3;
  wave.fp_split = round32 != round64 || denorm32 != denorm64 || denorm64 != 3;
  set_host_mode(round32, denorm32);
}

void FpGuard::enter(const Wave& wave) {
  saved = save_host_fp_mode();
  set_host_mode(wave.mode >> 2 & 3, wave.mode >> 6 & 3);
}
void FpGuard::exit() { restore_host_fp_mode(saved); }

}  // namespace vgpu
