// q and k of [T, heads, head_dim], rotated in place by their positions (RoPE):
//
//     low' = low cos - high sin,  high' = high cos + low sin         (attention/row_unit.h)
//
// of `kRotary` elements of each head, from `first_elem` on; with kInverse sin is negated. The
// angles of position p are row p of cos and of sin; a position outside of the table counts as the
// last.
//
// Layout. A lane has one unit of one head; those of a token's q heads, then of its k heads follow
// each other, then those of the next token.
//
// Floor of a lone token, cold caches: the launch, 2.0 us, and the position, then the angles, 0.41
// us each on MI355X; rows and the arguments that are not preloaded come meanwhile. Then the
// rotation of eight pairs of a lane, 0.2 us. Estimated, 16 heads of 128 in bf16: MI355X 3.22 us,
// MI300X 3.37.
//
// Guarantees: deterministic; nothing but the rotated elements is read or written.
// Requires: kVec == 8: heads, `first_elem` and rows of angles
// 16-byte aligned, kRotary a multiple of 16.
#include "attention/row_unit.h"
#include "rfops/chip/types.h"

namespace {

using namespace rfops;

using Input = RFOPS_IN;           // bf16, f16 or f32
using Angle = RFOPS_ANGLE;        // bf16, f16 or f32
using Position = RFOPS_POSITION;  // i32 or Index64
constexpr u32 kVec = RFOPS_VEC;   // elements per load: 8, or 1 where rows are not aligned
constexpr u32 kRotary = RFOPS_ROTARY, kThreads = RFOPS_THREADS;
constexpr bool kInterleaved = RFOPS_INTERLEAVED, kInverse = RFOPS_INVERSE;
constexpr u32 kUnits = kRotary / (2 * kVec);  // of a head
static_assert(kRotary % (2 * kVec) == 0);

}  // namespace

// Returns index / divisor for index < 2^31 by its multiplier and shift (rfops/attention/rope.py).
__device__ inline u32 divide(u32 index, u32 multiplier, u32 shift) {
  return static_cast<u32>(u64{2 * index} * multiplier >> 32) >> shift;
}

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads))) rope(
    const Position* __restrict__ positions,  // [T]
    Input* q,                                // [T, heads, head_dim]
    Input* k, u32 num_units, u32 units_of_token, u32 multiplier,
    u32 shift,  // of the division by units_of_token
    u32 units_of_q, u32 first_elem, u32 q_head, u32 k_head,
    // Up to here arguments are preloaded: all that a position, and most of what a row is loaded by.
    u32 q_token, u32 k_token, u32 num_positions, u32 angle_row,
    u32 sin_offset,                     // of row 0 of the sines, from `sin` on
    const Angle* __restrict__ cos_sin,  // rows `angle_row` apart
    const Angle* __restrict__ sin) {
  const u32 index = workgroup_id_x() * kThreads + thread_id();
  // Lanes beyond the last unit load it, so that no load waits for a branch.
  const u32 last = num_units - 1, used_index = index < last ? index : last;
  const u32 token = divide(used_index, multiplier, shift);
  // Its lower half says all; of a whole one the register of the other half would be waited for.
  const u32 position = load_here(reinterpret_cast<const u32*>(positions + token));
  const u32 unit_of_token = used_index - token * units_of_token;
  const bool is_key = unit_of_token >= units_of_q;
  const u32 unit_of_rows = is_key ? unit_of_token - units_of_q : unit_of_token;
  const u32 head = unit_of_rows / kUnits, unit = unit_of_rows % kUnits;
  Input* const head_begin =
      pointer_in_vgpr((is_key ? k : q) + first_elem + u64{head} * (is_key ? k_head : q_head));
  Input* const row = pointer_in_vgpr(head_begin + u64{token} * (is_key ? k_token : q_token));
  RowUnit<Input, kVec, kRotary> elements(row, unit, !kInterleaved);
  sched_barrier();  // the row is in flight before the position is waited for
  const u64 angle_idx = angle_row_offset(position, num_positions, angle_row);
  UnitAngles<Angle, kVec> angles;
  angles.load(cos_sin + angle_idx, sin + sin_offset + angle_idx, unit);
  if constexpr (kInverse) angles.sin = -angles.sin;
  elements.rotate<kInterleaved>(angles);
  if (index < num_units) elements.store(row, unit, !kInterleaved);
}
