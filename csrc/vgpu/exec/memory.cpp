// The rare sides of memory accesses: faults, ranges, private memory, LDS-DMA.
#include "vgpu/exec/memory.h"

#include <cfenv>
#include <cstdio>

#include "vgpu/exec/atomics.h"
#include "vgpu/exec/landing.h"

namespace vgpu {
namespace {

std::string lane_text(const char* format, u32 lane, u64 address) {
  char text[160];
  std::snprintf(text, sizeof(text), format, lane, static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

void check_global_slow(Wave& wave, const Inst& inst, const u64* at, u64 mask) {
  for_lanes(mask, [&](u32 lane) {
    if ((at[lane] - 4096) >> 47) {
      fault(wave, inst,
            lane_text("lane %u accesses address 0x%llx, which is no memory", lane, at[lane]));
    }
  });
}

void misaligned_atomic(Wave& wave, const Inst& inst, const u64* at, u32 bytes, u64 mask, u64 base) {
  for_lanes(mask, [&](u32 lane) {
    if (at[lane] & (bytes - 1)) {
      fault(wave, inst,
            lane_text("misaligned atomic: lane %u, address 0x%llx", lane, at[lane] - base));
    }
  });
}

u64 lds_inside_slow(const Workgroup& group, u64* at, u32 bytes, u64 mask) {
  u64 inside = 0;
  for_lanes(mask, [&](u32 lane) {
    const u64 offset = at[lane] - host_address(group.lds);
    if (offset + bytes <= group.lds_bytes) inside |= lane_bit(lane);
  });
  return inside;
}

void lds_dma(Wave& wave, const Inst& inst, const u64* at, u64 mask, u64 inside, Transfer transfer,
             u32 bytes) {
  Arrivals::Piece& piece = wave.group->arrivals->next();
  if (inside != ~u64{0}) std::memset(piece.rows, 0, sizeof(piece.rows));
  transfer(piece.rows, at, inside);
  const u32 dwords = piece.dwords = dwords_for(bytes);
  const u32 step = dwords == 1 ? 4 : 16;  // three dwords skip the fourth
  const u32 base = wave.sgpr[kM0] & traits_of(wave.group->arch).lds_dma_base;
  u64* to = piece.to.at;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    to[lane] = base + static_cast<u32>(inst.imm) + lane * step;
  }
  piece.mask = lds_resolve(*wave.group, to, 4 * dwords, mask);
  touch(wave, inst, {Space::kLds, true, 4 * dwords, piece.mask, to, mask & ~piece.mask});
  if (piece.mask) wave.landing->hold(wave, wave.group->arrivals->send());
}

// -------------------------------------------------------------------------------- private memory

namespace {

// Where byte `offset` of lane `lane` lies: dwords of the 64 lanes are interleaved.
u32 scratch_place(u32 lane, u32 offset) {
  return offset / 4 * (4 * kLanes) + lane * 4 + offset % 4;
}

// Calls copy(place, position in the lane's bytes, bytes) for the pieces that lie together.
template <class Copy>
void scratch_pieces(u32 lane, u32 offset, u32 bytes, Copy copy) {
  for (u32 done = 0; done < bytes;) {
    const u32 at = offset + done, room = 4 - at % 4, left = bytes - done;
    const u32 piece = left < room ? left : room;
    copy(scratch_place(lane, at), done, piece);
    done += piece;
  }
}

}  // namespace

void scratch_read(const Wave& wave, u32 lane, u32 offset, u32 bytes, u8* to) {
  scratch_pieces(lane, offset, bytes, [&](u32 place, u32 at, u32 piece) {
    if (piece == 4) return store<u32>(to + at, load<u32>(wave.scratch + place));
    for (u32 b = 0; b < piece; ++b) to[at + b] = wave.scratch[place + b];
  });
}

void scratch_write(Wave& wave, u32 lane, u32 offset, u32 bytes, const u8* from) {
  scratch_pieces(lane, offset, bytes, [&](u32 place, u32 at, u32 piece) {
    if (piece == 4) return store<u32>(wave.scratch + place, load<u32>(from + at));
    for (u32 b = 0; b < piece; ++b) wave.scratch[place + b] = from[at + b];
  });
}

void check_scratch(Wave& wave, const Inst& inst, const u64* at, u32 bytes, u64 mask) {
  for_lanes(mask, [&](u32 lane) {
    if (at[lane] < wave.scratch_bytes && at[lane] + bytes <= wave.scratch_bytes) return;
    char text[160];
    std::snprintf(
        text, sizeof(text),
        "stack overflow: lane %u accesses %u bytes at 0x%llx of its %u bytes of private memory",
        lane, bytes, static_cast<unsigned long long>(at[lane]), wave.scratch_bytes);
    fault(wave, inst, text);
  });
}

// -------------------------------------------------------------------------------- float mode

#if defined(__SSE__)
CacheFpMode::CacheFpMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
CacheFpMode::~CacheFpMode() { _mm_setcsr(saved_); }
#else
CacheFpMode::CacheFpMode() : saved_(static_cast<u32>(std::fegetround())) {
  std::fesetround(FE_TONEAREST);
}
CacheFpMode::~CacheFpMode() { std::fesetround(static_cast<int>(saved_)); }
#endif

}  // namespace vgpu
