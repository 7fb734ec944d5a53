// What an observer sees of a memory access.
#pragma once

#include "vgpu/base/types.h"

namespace vgpu {

enum class Space : u8 { kGlobal, kLds, kScratch };

// Once an instruction and space, before it happens. `at` holds 64 entries (one for a scalar
// access); those of `mask` are accessed, `bytes` each. In LDS, lanes of `dropped` lie outside the
// allocation: they read 0, and their writes are lost.
struct Access {
  Space space;
  bool is_write;
  u32 bytes;
  u64 mask;
  const u64* at;
  u64 dropped = 0;
};

}  // namespace vgpu
