// 32-bit integer operations: hashes, bit fields, counts, carries.
#include "hip_names.h"

INLINE __device__ u32 rotate_left(u32 value, int by) { return __builtin_rotateleft32(value, by); }
INLINE __device__ u32 mul_hi(u32 a, u32 b) { return (static_cast<u64>(a) * b) >> 32; }

KERNEL murmur(u32* out, const u32* in, u32 seed, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u32 hash = seed;
  for (u32 word = 0; word < 4; ++word) {
    u32 key = in[i] + word * 0x9e3779b9u;
    key = rotate_left(key * 0xcc9e2d51u, 15) * 0x1b873593u;
    hash = rotate_left(hash ^ key, 13) * 5 + 0xe6546b64u;
  }
  hash ^= hash >> 16;
  hash *= 0x85ebca6bu;
  hash ^= hash >> 13;
  hash *= 0xc2b2ae35u;
  out[i] = hash ^ (hash >> 16);
}

// Column j of out is operation j of a[i], b[i].
KERNEL bit_operations(u32* out, const u32* in_a, const u32* in_b, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const u32 a = in_a[i];
  const u32 b = in_b[i];
  u32* row = out + 20 * i;
  row[0] = mul_hi(a, b);
  row[1] = (static_cast<i64>(static_cast<i32>(a)) * static_cast<i32>(b)) >> 32;
  row[2] = a ? __builtin_clz(a) : 32;
  row[3] = a ? __builtin_ctz(a) : 32;
  row[4] = __builtin_popcount(a);
  row[5] = __builtin_ffs(static_cast<i32>(a));
  row[6] = __builtin_bitreverse32(a);
  row[7] = __builtin_bswap32(a);
  row[8] = rotate_left(a, b & 31);
  row[9] = __builtin_rotateright32(a, b & 31);
  row[10] = (a >> (b & 15)) & 0x3ff;
  row[11] = static_cast<u32>(static_cast<i32>(a << 7) >> 20);
  row[12] = (a & b) | (~a & 0x12345678u);
  row[13] = __builtin_amdgcn_alignbit(a, b, 11);
  row[14] = __builtin_amdgcn_perm(a, b, 0x07020500u);
  row[15] = (a & 0xffffffu) * (b & 0xffffffu) + 77u;
  row[16] = static_cast<u32>((static_cast<i32>(a << 8) >> 8) * (static_cast<i32>(b << 8) >> 8));
  row[17] = __builtin_amdgcn_ubfe(a, b & 31, 9);
  row[18] = __builtin_amdgcn_sbfe(a, b & 31, 9);
  row[19] = __builtin_amdgcn_sad_u8(a, b, 5u);
}

KERNEL mixed_logic(i32* out, const i32* in_a, const i32* in_b, const i32* in_c, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const i32 a = in_a[i];
  const i32 b = in_b[i];
  const i32 c = in_c[i];
  i32* row = out + 16 * i;
  row[0] = static_cast<i32>(static_cast<u32>(a) + b + c);
  row[1] = static_cast<i32>((static_cast<u32>(a) << 3) + b);
  row[2] = static_cast<i32>(((static_cast<u32>(a) + b)) << 5);
  row[3] = (a & b) | c;
  row[4] = a | b | c;
  row[5] = static_cast<i32>(static_cast<u32>(a) << 9) | c;
  row[6] = (a ^ b) ^ c;
  row[7] = ~(a ^ b);
  row[8] = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
  row[9] = a > b ? (a > c ? a : c) : (b > c ? b : c);
  row[10] = a < b ? (a < c ? a : c) : (b < c ? b : c);
  row[11] = a >> (b & 31);
  row[12] = static_cast<i32>(static_cast<u32>(a) >> (c & 31));
  row[13] = (a ^ b) - c;
  row[14] = a < 0 ? static_cast<i32>(-static_cast<u32>(a)) : a;
  row[15] = __builtin_elementwise_add_sat(a, b);
}

// FNV over 64-bit state: multiplications with carries.
KERNEL fnv_64(u64* out, const u8* text, int length, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u64 hash = 0xcbf29ce484222325ull + i;
  for (int at = 0; at < length; ++at) hash = (hash ^ text[at]) * 0x100000001b3ull;
  out[i] = hash;
}
