// Operands of matrix instructions as rows of 64 floats, and the positions of elements in them.
#pragma once

#include "vgpu/isa/mfma.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// Element `slot` of each lane of A or B; at most 32 per lane.
struct alignas(64) Unpacked {
  f32 slot[32][kLanes];
  const f32* rows() const { return reinterpret_cast<const f32*>(slot); }  // contiguous
};

// Reads and converts the operand's registers; finite values convert exactly.
void unpack(Wave& wave, Elem elem, u32 reg, u32 dwords, Unpacked& out);

// Returns whether no float is infinite or NaN.
bool all_finite(const u32* words, u32 count);
bool all_finite(const Unpacked& values, u32 slots);

// CBSZ/ABID: all blocks of a group of 2^CBSZ blocks read block ABID of the group. (According to
// AMD's calculator and instruction notes; the ISA manual's formula differs if there are fewer
// groups than blocks.) BLGP: permutation of B's lanes.
void broadcast_blocks(Unpacked& a, u32 slots, const MatrixShape& shape, u32 cbsz, u32 abid);
void permute_lanes(Unpacked& b, u32 slots, u32 blgp);

// Positions of the k of a matrix: runs of `length` consecutive k in consecutive slots. A group is
// the dim * blocks lanes that hold one k; a lane's elements are consecutive k, except that 8- and
// 16-bit elements beyond 16 bytes come in 16-byte chunks that alternate between the groups.
struct Runs {
  u32 length = 0, count = 0;
  u16 base[64] = {};  // offset of run r in Unpacked: slot * 64 + first lane of its group

  Runs(u32 dim, u32 blocks, u32 k, u32 bits) {
    const u32 group_lanes = dim * blocks, groups = kLanes / group_lanes, per_lane = k / groups;
    const u32 chunk = bits >= 8 ? 128 / bits : 16;
    const bool interleaved = bits >= 8 && per_lane > chunk;
    length = per_lane < chunk ? per_lane : chunk;
    count = k / length;
    for (u32 r = 0; r < count; ++r) {
      const u32 first = r * length;
      const u32 group = interleaved ? r % groups : first / per_lane;
      const u32 slot = interleaved ? r / groups * length : first % per_lane;
      base[r] = static_cast<u16>(slot * kLanes + group * group_lanes);
    }
  }
};

// Returns the position of row i of block b of a 32-bit result: register * 64 + lane; its columns
// are consecutive lanes. dim is 16 or 32.
constexpr u32 result_row(u32 dim, u32 block, u32 i) {
  const u32 halves = kLanes / dim;  // matrix rows per register
  const u32 reg = block * (dim * dim / kLanes) + i / (4 * halves) * 4 + i % 4;
  return reg * kLanes + i / 4 % halves * dim;
}

}  // namespace vgpu
