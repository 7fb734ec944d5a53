// The modelled architectures: one row of properties each, and the mask bits with which opcodes and
// LDS phases name the architectures that have them.
#pragma once

#include <iterator>

#include "vgpu/base/types.h"

namespace vgpu {

enum class Arch : u8 { kGfx942, kGfx950 };  // index of the row in kArchs

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
  u32 vgprs;      // per lane of a SIMD, AGPRs included
  u32 max_waves;  // per SIMD
  u32 lds_bytes;  // per CU; one workgroup may use all of it
  u32 lds_granule;
  u32 lds_banks;
  u32 lds_dma_base;   // bits of M0 that form the LDS-DMA base
  bool wide_lds_dma;  // LDS-DMA of three and four dwords per lane exists
  bool fnuz;          // fp8 and bf8 have no infinity and no negative zero
  bool slow_f64;      // 16 x 16 f64 matrix instructions take twice as many passes
  // Wait states after matrix instructions, from LLVM. late_matrix: results take one more (except
  // after two passes). f64_to_*: from a 16 x 16 f64 result to a vector instruction that reads it,
  // and to a matrix instruction that overlaps it partly with C.
  bool late_matrix;
  u32 f64_to_vector, f64_to_partial;
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
        .f64_to_partial = 9,
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
        .f64_to_partial = 17,
    },
};
inline constexpr u32 kArchCount = std::size(kArchs);

constexpr const ArchTraits& arch_traits(Arch arch) { return kArchs[static_cast<u32>(arch)]; }
constexpr const char* arch_name(Arch arch) { return arch_traits(arch).name; }
constexpr bool includes(u32 mask, Arch arch) { return mask >> static_cast<u32>(arch) & 1; }

// All code assumes 64 lanes, 102 SGPRs and 64-bit lane masks.
static_assert([] {
  for (const ArchTraits& row : kArchs) {
    if (row.wave_lanes != kLanes) return false;
  }
  return true;
}());

}  // namespace vgpu
