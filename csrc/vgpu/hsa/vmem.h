// Virtual memory: reserved address ranges into which memory handles are mapped.
#pragma once

#include <optional>

#include "vgpu/hsa/hsa_types.h"

namespace vgpu {

struct MappedRange {
  u64 begin, end;
};

// Returns the mapping that contains an address.
std::optional<MappedRange> find_mapped(u64 address);

}  // namespace vgpu
