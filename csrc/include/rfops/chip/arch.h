// What device code must know of the chip it is compiled for. jit/arch.py has the same with sources;
// op_tests/engine/test_arch.py holds the two together.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

#if defined(__gfx950__)
constexpr u32 kLdsBytes = 163840;  // of a CU
constexpr u32 kLdsBanks = 64;
#elif defined(__gfx942__)
constexpr u32 kLdsBytes = 65536;
constexpr u32 kLdsBanks = 32;
#endif
constexpr u32 kXcds = 8;

}  // namespace rfops
