// What goes between the 72 matrix instructions of a tile's scores on gfx942 (mla_wave_gfx942.h), of
// which each lasts as long as four: three others, in step u those behind the u-th.
#pragma once

#include "rfops/chip/types.h"

namespace rfops {

// Pieces of what brings tiles, from here on: of one instruction each, for where there is room for
// one; on gfx950 the first halves of the others.
constexpr u32 kFill = 64;

struct IssueSlots {
  // The piece of what brings tiles: two every 64 clk. LDS has no room for three beside K's reads;
  // one would come late. The first four are of keys' ends, then there are three of each row.
  static constexpr u32 kBegin = 2, kRows = kBegin + 2 * 4, kRowsEnd = kRows + 2 * 12;
  static constexpr u32 piece(u32 u) { return u >= kBegin && u % 2 == 0 ? (u - kBegin) / 2 : ~0u; }

  // How many instructions there is room for besides pieces, keys' reads and weights (`soften`).
  static constexpr u32 count(u32 u) {
    const bool is_read = u % 4 == 3;  // of a key; and the step behind waits for another
    if (u >= kBegin && u < kRows && u % 2 == 0) return 2;
    if (u >= kRows && u < kRowsEnd && u % 2 == 0) return (u - kRows) / 2 % 3 == 0 ? 0 : 1;
    if (u < kRowsEnd + 2) return is_read ? 1 : u < 4 ? 3 : 2;
    if (u < 52) return is_read || u % 4 == 1 ? 1 : u % 4 == 0 ? 3 : 2;
    // Then values are aimed at and read, and weights exchanged.
    if (u < 60) return u % 4 == 1 || u == 56 || u == 58 ? 2 : 0;
    return u < 66 && !is_read ? 2 : 0;
  }
  // And in all steps before.
  static constexpr u32 count_before(u32 u) {
    return u == 0 ? 0 : count_before(u - 1) + count(u - 1);
  }
  // The first piece that is one instruction, of step u.
  static constexpr u32 fill(u32 u) { return kFill + count_before(u); }
};

}  // namespace rfops
