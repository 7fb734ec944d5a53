#include "vgpu/machine/lds_banks.h"

#include <array>

namespace vgpu {
namespace {

// The lanes that LDS serves together in one phase: lane masks of the first half wave; the second
// half follows with the same masks 32 lanes higher. Measured on MI355X (read of 64, 96, 128 bits,
// write of 64) and documented for MI300X (read and write of 128 bits); see README, "Counters".
struct Phases {
  u32 archs;  // an ArchMask
  u32 bytes;
  bool write;
  u32 banks;
  u32 count;                 // per half wave
  std::array<u32, 8> lanes;  // masks over 32 lanes
};

constexpr u32 span(u32 first, u32 end_lane) {
  return (end_lane == 31 ? ~0u : (1u << (end_lane + 1)) - 1) & ~((1u << first) - 1);
}

constexpr u32 kQuads[] = {span(0, 3) | span(20, 23), span(4, 7) | span(16, 19),
                          span(8, 11) | span(28, 31), span(12, 15) | span(24, 27)};
constexpr Phases kRows[] = {
    {kOnGfx950,
     16,
     false,
     64,
     2,
     {span(0, 3) | span(12, 15) | span(20, 27), span(4, 11) | span(16, 19) | span(28, 31)}},
    {kOnGfx950, 8, false, 64, 1, {~0u}},
    {kOnGfx950, 12, false, 32, 4, {kQuads[0], kQuads[1], kQuads[2], kQuads[3]}},
    {kOnGfx950, 8, true, 32, 2, {span(0, 15), span(16, 31)}},
    {kOnGfx942, 16, false, 32, 4, {kQuads[0], kQuads[1], kQuads[2], kQuads[3]}},
    {kOnGfx942, 16, true, 32, 4, {span(0, 7), span(8, 15), span(16, 23), span(24, 31)}},
};

// Phases of unpublished widths: consecutive lanes, as many as fill 32 banks once.
constexpr Phases common(u32 bytes, bool write) {
  if (bytes <= 4) return {0, bytes, write, 32, 1, {~0u}};
  if (bytes <= 8) return {0, bytes, write, 32, 2, {span(0, 15), span(16, 31)}};
  return {0, bytes, write, 32, 4, {span(0, 7), span(8, 15), span(16, 23), span(24, 31)}};
}

Phases find(Arch arch, u32 bytes, bool write) {
  for (const Phases& row : kRows)
    if (includes(row.archs, arch) && row.bytes == bytes && row.write == write) return row;
  return common(bytes, write);
}

// Returns the maximum number of distinct dwords that one bank has to serve; lanes that read the
// same dword share it.
u32 busiest_bank(const Access& access, u64 base, u64 lanes, u32 banks) {
  std::array<std::array<u32, kLanes>, 64> distinct;
  std::array<u32, 64> count{};
  u32 max_accesses = 0;
  for (; lanes; lanes &= lanes - 1) {
    const u32 lane = static_cast<u32>(std::countr_zero(lanes));
    const u32 first = static_cast<u32>(access.addresses[lane] - base) / 4;
    const u32 last_dword = static_cast<u32>(access.addresses[lane] - base + access.bytes - 1) / 4;
    for (u32 dword = first; dword <= last_dword; ++dword) {
      const u32 bank = dword % banks;
      bool is_duplicate = false;
      for (u32 i = 0; i < count[bank]; ++i) is_duplicate |= distinct[bank][i] == dword;
      if (is_duplicate || count[bank] == kLanes) continue;
      distinct[bank][count[bank]++] = dword;
      max_accesses = count[bank] > max_accesses ? count[bank] : max_accesses;
    }
  }
  return max_accesses;
}

}  // namespace

LdsCycles lds_cycles(Arch arch, const Access& access, u64 base) {
  const Phases phases = find(arch, access.bytes, access.is_write);
  LdsCycles total{0, 0};
  for (u32 half = 0; half < 2; ++half) {
    for (u32 p = 0; p < phases.count; ++p) {
      const u64 lanes = access.mask & u64{phases.lanes[p]} << (32 * half);
      if (!lanes) continue;
      const u32 cycles = busiest_bank(access, base, lanes, phases.banks);
      total.cycles += cycles;
      total.conflicts += cycles - 1;
    }
  }
  return total;
}

}  // namespace vgpu
