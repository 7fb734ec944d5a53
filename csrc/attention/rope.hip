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

extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(kThreads, kThreads))) rope(
    const Position* __restrict__ positions,  // [T]
    Input* q,                                // [T, heads, head_dim]
    Input* k, u32 num_units, u32 units_of_token, u32 units_of_q, u32 first_elem, u32 q_token,
    u32 q_head, u32 k_token, u32 k_head, u32 num_positions, u32 angle_row,
    u32 sin_offset,                     // of row 0 of the sines, from `sin` on
    const Angle* __restrict__ cos_sin,  // rows `angle_row` apart
    const Angle* __restrict__ sin) {
  const u32 index = workgroup_id_x() * kThreads + thread_id();
  if (index >= num_units) return;
  const u32 token = index / units_of_token, unit_of_token = index % units_of_token;
  const u64 angle_idx = angle_row_offset(positions[token], num_positions, angle_row);
  const bool is_key = unit_of_token >= units_of_q;
  const u32 unit_of_rows = is_key ? unit_of_token - units_of_q : unit_of_token;
  const u32 head = unit_of_rows / kUnits, unit = unit_of_rows % kUnits;
  Input* const row = (is_key ? k : q) + first_elem + u64{token} * (is_key ? k_token : q_token) +
                     u64{head} * (is_key ? k_head : q_head);
  RowUnit<Input, kVec, kRotary> elements(row, unit, !kInterleaved);
  UnitAngles<Angle, kVec> angles;
  angles.load(cos_sin + angle_idx, sin + sin_offset + angle_idx, unit);
  if constexpr (kInverse) angles.sin = -angles.sin;
  elements.rotate<kInterleaved>(angles);
  elements.store(row, unit, !kInterleaved);
}
