// Facts of the architecture that the code is compiled for. jit/arch.py holds the same facts with
// their sources; op_tests/engine/test_arch.py compares the two.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

#if defined(__gfx950__)
constexpr u32 kLdsBytes = 163840;  // LDS of one CU
constexpr u32 kLdsBanks = 64;
#elif defined(__gfx942__)
constexpr u32 kLdsBytes = 65536;
constexpr u32 kLdsBanks = 32;
#endif
constexpr u32 kXcds = 8;

}  // namespace rfops
