// A memory access as an observer receives it.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

enum class Space : u8 { kGlobal, kLds, kScratch };

// Reported once per instruction and address space, before the access. `addresses` has 64 entries
// (one for a scalar access), of which those in `mask` access `bytes` each. In LDS, lanes of
// `out_of_bounds` lie outside the allocation: their reads return 0, their writes are dropped.
struct Access {
  Space space;
  bool is_write;
  u32 bytes;
  u64 mask;
  const u64* addresses;
  u64 out_of_bounds = 0;
};

}  // namespace vgpu
