// Many-way branches: a divergent switch, a uniform one, and an interpreter.
#include "hip_names.h"

INLINE __device__ i32 apply(u32 operation, i32 a, i32 b) {
  switch (operation) {
    case 0:
      return a + b;
    case 1:
      return a - b;
    case 2:
      return a * b;
    case 3:
      return a & b;
    case 4:
      return a | b;
    case 5:
      return a ^ b;
    case 6:
      return a << (b & 31);
    case 7:
      return a >> (b & 31);
    case 8:
      return a < b;
    case 9:
      return a == b;
    case 10:
      return b ? a / b : 0;
    case 11:
      return b ? a % b : 0;
    case 12:
      return a > b ? a : b;
    case 13:
      return __builtin_popcount(a) + b;
    case 14:
      return ~a;
    case 15:
      return a * 17 + 3;
    case 17:
      return b - a;
    case 19:
      return (a + b) / 2;
    case 23:
      return a + 100;
    case 29:
      return 7;
    case 31:
      return -a;
    case 1000:
      return a * a;
    case 100000:
      return b * b;
    default:
      return static_cast<i32>(operation);
  }
}

KERNEL switch_divergent(i32* out, const u32* operation, const i32* a, const i32* b, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = apply(operation[i], a[i], b[i]);
}

KERNEL switch_uniform(i32* out, u32 operation, i32 a, i32 b) {
  const i32 value = apply(operation, a, b);
  if (threadIdx.x == 0) *out = value;
}

// A stack machine: byte code from memory, operands in a local array.
KERNEL interpret(i32* out, const u8* program, int length, int n) {
  const i32 self = static_cast<i32>(global_id());
  if (self >= n) return;
  i32 stack[8] = {};
  int depth = 0;
  for (int at = 0; at < length && depth >= 0;) {
    const u8 code = program[at++];
    switch (code) {
      case 0:
        stack[depth++ & 7] = program[at++];
        break;  // push a byte
      case 1:
        stack[depth++ & 7] = self;
        break;  // push the lane's index
      case 2:
        --depth;
        stack[(depth - 1) & 7] += stack[depth & 7];
        break;
      case 3:
        --depth;
        stack[(depth - 1) & 7] *= stack[depth & 7];
        break;
      case 4:
        stack[depth & 7] = stack[(depth - 1) & 7];
        ++depth;
        break;   // duplicate
      case 5: {  // jump back when top is odd
        const u8 by = program[at++];
        stack[(depth - 1) & 7] = (stack[(depth - 1) & 7] & 0x7fffffff) >> 1;
        if (stack[(depth - 1) & 7] & 1) at -= by;
        break;
      }
      default:
        depth = -1;
    }
  }
  out[self] = depth > 0 ? stack[(depth - 1) & 7] : -1;
}
