// Kernel arguments by value: odd sizes, padding, many of them.
#include "hip_names.h"

struct Bytes3 {
  u8 b[3];
};
struct Bytes5 {
  u8 b[5];
};
struct Mixed {
  char c;
  double d;
  i16 s;
  u8 tail;
};
struct Words13 {
  u32 w[13];
};
struct Nested {
  Mixed mixed[2];
  Bytes3 bytes;
  const float* pointer;
};

KERNEL odd_arguments(u32* out, Bytes3 three, Bytes5 five, u8 byte, Mixed mixed, u16 word, bool flag,
                     Words13 words, f16 half, Nested nested, i64 last) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < 3; ++i) out[i] = three.b[i];
  for (int i = 0; i < 5; ++i) out[3 + i] = five.b[i];
  out[8] = byte;
  out[9] = static_cast<u32>(mixed.c);
  out[10] = static_cast<u32>(mixed.d * 8);
  out[11] = static_cast<u32>(mixed.s);
  out[12] = mixed.tail;
  out[13] = word;
  out[14] = flag ? 100 : 200;
  for (int i = 0; i < 13; ++i) out[15 + i] = words.w[i];
  out[28] = static_cast<u32>(static_cast<float>(half) * 4);
  out[29] = static_cast<u32>(nested.mixed[1].d * 2);
  out[30] = nested.bytes.b[2];
  out[31] = static_cast<u32>(nested.pointer[3]);
  out[32] = static_cast<u32>(last >> 32);
}

// Indexing into an argument by a variable: the argument is read from memory, not from registers.
KERNEL indexed_argument(u32* out, const u32* index, Words13 words, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = words.w[index[i] % 13];
}

#define FOUR(T, name) T name##0, T name##1, T name##2, T name##3
#define SUM4(name) (name##0 + 3 * name##1 + 5 * name##2 + 7 * name##3)
KERNEL many_arguments(i64* out, FOUR(i8, a), FOUR(i32, b), FOUR(i64, c), FOUR(i16, d), FOUR(i64, e),
                      FOUR(u8, f), FOUR(i64, g), FOUR(i64, h), FOUR(i64, k), FOUR(i64, l)) {
  out[global_id()] = SUM4(a) + SUM4(b) + SUM4(c) + SUM4(d) + SUM4(e) + SUM4(f) + SUM4(g) + SUM4(h) +
                     SUM4(k) + SUM4(l) + global_id();
}

KERNEL no_arguments() {}
