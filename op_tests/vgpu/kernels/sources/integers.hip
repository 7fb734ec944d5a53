// Integer arithmetic of all widths: division and remainder by variables, 64-bit operations.
#include "hip_names.h"

template <class T>
INLINE __device__ void divide(T* quotient, T* remainder, const T* a, const T* b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  quotient[i] = a[i] / b[i];
  remainder[i] = a[i] % b[i];
}
#define DIVIDE(T)                                                               \
  KERNEL divide_##T(T* quotient, T* remainder, const T* a, const T* b, int n) { \
    divide(quotient, remainder, a, b, n);                                       \
  }
DIVIDE(i8)
DIVIDE(u8)
DIVIDE(i16)
DIVIDE(u16)
DIVIDE(i32)
DIVIDE(u32)
DIVIDE(i64)
DIVIDE(u64)

// The divisor is the same in all lanes: scalar paths.
KERNEL divide_uniform(i64* out, const i64* in, i64 by64, i32 by32, u32 by_unsigned, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  out[4 * i] = in[i] / by64;
  out[4 * i + 1] = static_cast<i32>(in[i]) % by32;
  out[4 * i + 2] = static_cast<u32>(in[i]) / by_unsigned;
  out[4 * i + 3] = by64 / by32 + n % by_unsigned;
}

KERNEL divide_by_constants(i32* out, const i32* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  i32* row = out + 8 * i;
  row[0] = in[i] / 3;
  row[1] = in[i] / 7;
  row[2] = in[i] % 10;
  row[3] = in[i] / -13;
  row[4] = static_cast<i32>(static_cast<u32>(in[i]) / 641u);
  row[5] = static_cast<i32>(static_cast<u32>(in[i]) % 1000003u);
  row[6] = in[i] / 16;
  row[7] = in[i] % 4096;
}

KERNEL wide_operations(u64* out, const u64* in_a, const u64* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u64 a = in_a[i];
  const u64 b = in_b[i];
  const i64 signed_a = static_cast<i64>(a);
  const i64 signed_b = static_cast<i64>(b);
  u64* row = out + 18 * i;
  row[0] = a + b;
  row[1] = a - b;
  row[2] = a * b;
  row[3] = a << (b & 63);
  row[4] = a >> (b & 63);
  row[5] = static_cast<u64>(signed_a >> (b & 63));
  row[6] = a ? __builtin_clzll(a) : 64;
  row[7] = a ? __builtin_ctzll(a) : 64;
  row[8] = __builtin_popcountll(a);
  row[9] = signed_a < signed_b ? a : b;
  row[10] = a < b ? b : a;
  row[11] = static_cast<u64>(signed_a < 0 ? -a : a);
  row[12] = static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64);
  row[13] = static_cast<u64>((static_cast<__int128>(signed_a) * signed_b) >> 64);
  row[14] = (a == b) + 2 * (a <= b) + 4 * (signed_a >= signed_b) + 8 * (a != b);
  row[15] = __builtin_bswap64(a) ^ __builtin_bitreverse64(b);
  row[16] = static_cast<u64>(static_cast<i32>(a)) * static_cast<u64>(static_cast<i32>(b)) + a;
  row[17] = __builtin_rotateleft64(a, b & 63);
}

// 128-bit accumulation: chains of carries through VCC and SCC.
KERNEL sum_128(u64* out, const u64* in, int n) {
  const u32 i = global_id();
  unsigned __int128 sum = i;
  for (int at = 0; at < n; ++at) sum += static_cast<unsigned __int128>(in[at]) * in[at] + i;
  out[2 * i] = static_cast<u64>(sum);
  out[2 * i + 1] = static_cast<u64>(sum >> 64);
}

// The same in scalar registers: everything is uniform.
KERNEL scalar_chain(u64* out, u64 a, u64 b, i32 rounds) {
  u64 state = a;
  for (i32 i = 0; i < rounds; ++i) {
    state = state * 6364136223846793005ull + b;
    state ^= state >> 29;
    state = (state << 17) | (state >> 47);
    if (__builtin_popcountll(state) & 1) state += __builtin_clzll(state | 1);
    state -= static_cast<u64>(static_cast<i64>(static_cast<i32>(state)) >> 3);
    if (static_cast<i64>(state) < 0) state = ~state & ~(a >> 1);
    state ^= __builtin_bitreverse64(state) >> (i & 31);
  }
  if (threadIdx.x == 0) out[blockIdx.x] = state;
}
