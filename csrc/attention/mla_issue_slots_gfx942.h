// Schedule of the instructions between the 72 MFMAs of a tile's scores on gfx942
// (mla_wave_gfx942.h). An MFMA takes as long as four instructions, so three others fit after each;
// step u is after the u-th.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// Pieces of a tile loader from here on are single instructions, for issue slots with space for one;
// on gfx950 they are the first halves of the other pieces.
constexpr u32 kFill = 64;

struct IssueSlots {
  // Load piece of step u: two per 64 clk, because LDS has no time for a third beside the reads of
  // K. The first four are for key ends, then three per row.
  static constexpr u32 kBegin = 2, kRows = kBegin + 2 * 4, kRowsEnd = kRows + 2 * 12;
  static constexpr u32 piece(u32 u) { return u >= kBegin && u % 2 == 0 ? (u - kBegin) / 2 : ~0u; }

  // Free issue slots after pieces, reads of K and exp_scores().
  static constexpr u32 count(u32 u) {
    const bool is_read = u % 4 == 3;  // of a key; and the step behind waits for another
    if (u >= kBegin && u < kRows && u % 2 == 0) return 2;
    if (u >= kRows && u < kRowsEnd && u % 2 == 0) return (u - kRows) / 2 % 3 == 0 ? 0 : 1;
    if (u < kRowsEnd + 2) return is_read ? 1 : u < 4 ? 3 : 2;
    if (u < 52) return is_read || u % 4 == 1 ? 1 : u % 4 == 0 ? 3 : 2;
    // Then V is addressed and read, and P exchanged.
    if (u < 60) return u % 4 == 1 || u == 56 || u == 58 ? 2 : 0;
    return u < 66 && !is_read ? 2 : 0;
  }
  // Free issue slots of all earlier steps.
  static constexpr u32 count_before(u32 u) {
    return u == 0 ? 0 : count_before(u - 1) + count(u - 1);
  }
  // First single-instruction piece of step u.
  static constexpr u32 fill(u32 u) { return kFill + count_before(u); }
};

}  // namespace rfops
