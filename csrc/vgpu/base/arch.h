// The architectures that the virtual GPU knows: a row of facts each, and the bits by which opcodes
// and LDS phases say where they exist.
#pragma once

#include <iterator>

#include "vgpu/base/types.h"

namespace vgpu {

enum class Arch : u8 { kGfx942, kGfx950 };  // the number of its row

enum ArchMask : u8 {
  kOnGfx942 = 1 << static_cast<u32>(Arch::kGfx942),
  kOnGfx950 = 1 << static_cast<u32>(Arch::kGfx950),
};

struct ArchTraits {
  const char* name;
  u32 number;  // gfx942 is 942
  u32 major, minor;
  u32 elf_machine;  // the low byte of a code object's e_flags
  u32 wave_lanes;
  u32 vgprs;      // of a SIMD's lane, AGPRs among them
  u32 max_waves;  // of a SIMD
  u32 lds_bytes;  // of a CU, which one workgroup may take whole
  u32 lds_granule;
  u32 lds_banks;
  u32 lds_dma_base;   // bits of M0 that count as LDS-DMA's base
  bool wide_lds_dma;  // brings three and four dwords a lane, too
  bool fnuz;          // fp8 and bf8 without infinities and without a negative zero
  bool slow_f64;      // 16 x 16 f64 matrix instructions take twice the passes
  // Wait states behind matrix instructions, after LLVM: whether results take one more (not those of
  // two passes); a 16 x 16 f64 result until a vector instruction uses it, until it is a part of C.
  bool late_matrix;
  u32 f64_to_vector, f64_to_part;
};

inline constexpr ArchTraits kArchs[] = {
    {
        .name = "gfx942",
        .number = 942,
        .major = 9,
        .minor = 4,
        .elf_machine = 0x4c,
        .wave_lanes = 64,
        .vgprs = 512,
        .max_waves = 8,
        .lds_bytes = 64 << 10,
        .lds_granule = 512,
        .lds_banks = 32,
        .lds_dma_base = 0xfffc,
        .wide_lds_dma = false,
        .fnuz = true,
        .slow_f64 = false,
        .late_matrix = false,
        .f64_to_vector = 11,
        .f64_to_part = 9,
    },
    {
        .name = "gfx950",
        .number = 950,
        .major = 9,
        .minor = 5,
        .elf_machine = 0x4f,
        .wave_lanes = 64,
        .vgprs = 512,
        .max_waves = 8,
        .lds_bytes = 160 << 10,
        .lds_granule = 1280,
        .lds_banks = 64,
        .lds_dma_base = 0x3fffc,
        .wide_lds_dma = true,
        .fnuz = false,
        .slow_f64 = true,
        .late_matrix = true,
        .f64_to_vector = 19,
        .f64_to_part = 17,
    },
};
inline constexpr u32 kArchCount = std::size(kArchs);

constexpr const ArchTraits& traits_of(Arch arch) { return kArchs[static_cast<u32>(arch)]; }
constexpr const char* arch_name(Arch arch) { return traits_of(arch).name; }
constexpr bool has(u32 mask, Arch arch) { return mask >> static_cast<u32>(arch) & 1; }

// Lanes, registers and masks of lanes are of this size everywhere.
static_assert([] {
  for (const ArchTraits& row : kArchs) {
    if (row.wave_lanes != kLanes) return false;
  }
  return true;
}());

}  // namespace vgpu
