// Memory instructions by their own names: 16-bit halves, atomics that return, scalar buffers.
#include "hip_names.h"

// Loads into one half of a register.
#define D16(text, ...)                                                                             \
  {                                                                                                \
    u32 value = 0xaaaa5555u;                                                                       \
    asm volatile(text "\n\ts_waitcnt vmcnt(0) lgkmcnt(0)" : "+v"(value) : __VA_ARGS__ : "memory"); \
    row[slot++] = value;                                                                           \
  }
#define GLOBAL_D16(name) D16(name " %0, %1, off offset:6", "v"(from))
#define FLAT_D16(name) D16(name " %0, %1 offset:2", "v"(from))
#define LDS_D16(name) D16(name " %0, %1 offset:3", "v"(lds))
#define BUFFER_D16(name) D16(name " %0, %1, %2, 0 offen offset:5", "v"(offset), "s"(resource))

KERNEL d16_loads(u32* out, const u8* in, u32 bytes) {
  __shared__ u8 shared[1024];
  const u32 self = threadIdx.x;
  for (u32 i = 0; i < 4; ++i) shared[self * 4 + i] = in[self * 4 + i];
  __syncthreads();
  const u64 from = reinterpret_cast<u64>(in + self * 2);
  const u32 offset = self * 2;
  const u32 lds = (u32)(u64)(__attribute__((address_space(3))) u8*)shared + self * 2;
  U32x4 resource = {static_cast<u32>(reinterpret_cast<u64>(in)),
                    static_cast<u32>(reinterpret_cast<u64>(in) >> 32) & 0xffffu, bytes,
                    0x00027000u};
  for (int i = 0; i < 4; ++i) resource[i] = __builtin_amdgcn_readfirstlane(resource[i]);
  u32* row = out + 24 * self;
  u32 slot = 0;
  // clang-format off
  GLOBAL_D16("global_load_ubyte_d16") GLOBAL_D16("global_load_ubyte_d16_hi")
  GLOBAL_D16("global_load_sbyte_d16") GLOBAL_D16("global_load_sbyte_d16_hi")
  GLOBAL_D16("global_load_short_d16") GLOBAL_D16("global_load_short_d16_hi")
  FLAT_D16("flat_load_ubyte_d16") FLAT_D16("flat_load_ubyte_d16_hi")
  FLAT_D16("flat_load_sbyte_d16") FLAT_D16("flat_load_sbyte_d16_hi")
  FLAT_D16("flat_load_short_d16") FLAT_D16("flat_load_short_d16_hi")
  LDS_D16("ds_read_u8_d16") LDS_D16("ds_read_u8_d16_hi") LDS_D16("ds_read_i8_d16")
  LDS_D16("ds_read_i8_d16_hi") LDS_D16("ds_read_u16_d16") LDS_D16("ds_read_u16_d16_hi")
  BUFFER_D16("buffer_load_ubyte_d16") BUFFER_D16("buffer_load_ubyte_d16_hi")
  BUFFER_D16("buffer_load_sbyte_d16") BUFFER_D16("buffer_load_sbyte_d16_hi")
  BUFFER_D16("buffer_load_short_d16") BUFFER_D16("buffer_load_short_d16_hi")
  // clang-format on
}

KERNEL d16_stores(u8* bytes, u16* shorts, u8* lds_out, const u32* in) {
  __shared__ u8 shared[256 * 4];
  const u32 value = in[threadIdx.x];
  const u64 byte_at = reinterpret_cast<u64>(bytes + threadIdx.x);
  const u64 short_at = reinterpret_cast<u64>(shorts + threadIdx.x);
  const u32 lds = (u32)(u64)(__attribute__((address_space(3))) u8*)shared + threadIdx.x * 4;
  asm volatile("global_store_byte_d16_hi %0, %1, off" ::"v"(byte_at), "v"(value) : "memory");
  asm volatile("global_store_short_d16_hi %0, %1, off" ::"v"(short_at), "v"(value) : "memory");
  asm volatile(
      "ds_write_b32 %0, %1\n\tds_write_b8_d16_hi %0, %1\n\tds_write_b16_d16_hi %0, %1 offset:2\n\t"
      "s_waitcnt vmcnt(0) lgkmcnt(0)" ::"v"(lds),
      "v"(value)
      : "memory");
  for (u32 i = 0; i < 4; ++i) lds_out[threadIdx.x * 4 + i] = shared[threadIdx.x * 4 + i];
}

// Every lane has a slot of its own: {old value, new value} of each operation.
#define LDS_RTN(T, name, ...)                                               \
  {                                                                         \
    shared[threadIdx.x] = a;                                                \
    T old;                                                                  \
    asm volatile("s_waitcnt lgkmcnt(0)\n\t" name "\n\ts_waitcnt lgkmcnt(0)" \
                 : "=v"(old)                                                \
                 : "v"(at), __VA_ARGS__                                     \
                 : "memory");                                               \
    row[2 * slot] = bits<decltype(row[0] + 0)>(old);                        \
    row[2 * slot + 1] = bits<decltype(row[0] + 0)>(shared[threadIdx.x]);    \
    ++slot;                                                                 \
  }
#define LDS_OP(T, name) LDS_RTN(T, name " %0, %1, %2", "v"(b))
#define LDS_OP2(T, name) LDS_RTN(T, name " %0, %1, %2, %3", "v"(b), "v"(c))
#define LDS_BODY(T, columns)                                                                      \
  __shared__ volatile T shared[256];                                                              \
  const T a = in_a[threadIdx.x], b = in_b[threadIdx.x], c = in_c[threadIdx.x];                    \
  const u32 at = (u32)(u64)(__attribute__((address_space(3))) volatile T*)(shared + threadIdx.x); \
  auto* row = out + 2 * (columns) * threadIdx.x;                                                  \
  u32 slot = 0;

// clang-format off
KERNEL lds_returns_u32(u32* out, const u32* in_a, const u32* in_b, const u32* in_c) {
  LDS_BODY(u32, 16)
  LDS_OP(u32, "ds_add_rtn_u32") LDS_OP(u32, "ds_sub_rtn_u32") LDS_OP(u32, "ds_rsub_rtn_u32")
  LDS_OP(u32, "ds_inc_rtn_u32") LDS_OP(u32, "ds_dec_rtn_u32") LDS_OP(u32, "ds_min_rtn_i32")
  LDS_OP(u32, "ds_max_rtn_i32") LDS_OP(u32, "ds_min_rtn_u32") LDS_OP(u32, "ds_max_rtn_u32")
  LDS_OP(u32, "ds_and_rtn_b32") LDS_OP(u32, "ds_or_rtn_b32") LDS_OP(u32, "ds_xor_rtn_b32")
  LDS_OP(u32, "ds_wrxchg_rtn_b32") LDS_OP2(u32, "ds_cmpst_rtn_b32") LDS_OP2(u32, "ds_mskor_rtn_b32")
  LDS_OP2(u32, "ds_wrap_rtn_b32")
}
KERNEL lds_returns_u64(u64* out, const u64* in_a, const u64* in_b, const u64* in_c) {
  LDS_BODY(u64, 15)
  LDS_OP(u64, "ds_add_rtn_u64") LDS_OP(u64, "ds_sub_rtn_u64") LDS_OP(u64, "ds_rsub_rtn_u64")
  LDS_OP(u64, "ds_inc_rtn_u64") LDS_OP(u64, "ds_dec_rtn_u64") LDS_OP(u64, "ds_min_rtn_i64")
  LDS_OP(u64, "ds_max_rtn_i64") LDS_OP(u64, "ds_min_rtn_u64") LDS_OP(u64, "ds_max_rtn_u64")
  LDS_OP(u64, "ds_and_rtn_b64") LDS_OP(u64, "ds_or_rtn_b64") LDS_OP(u64, "ds_xor_rtn_b64")
  LDS_OP(u64, "ds_wrxchg_rtn_b64") LDS_OP2(u64, "ds_cmpst_rtn_b64") LDS_OP2(u64, "ds_mskor_rtn_b64")
}
KERNEL lds_returns_f32(u32* out, const float* in_a, const float* in_b, const float* in_c) {
  LDS_BODY(float, 4)
  LDS_OP(float, "ds_add_rtn_f32") LDS_OP(float, "ds_min_rtn_f32") LDS_OP(float, "ds_max_rtn_f32")
  LDS_OP2(float, "ds_cmpst_rtn_f32")
}
KERNEL lds_returns_f64(u64* out, const double* in_a, const double* in_b, const double* in_c) {
  LDS_BODY(double, 3)
  LDS_OP(double, "ds_add_rtn_f64") LDS_OP(double, "ds_min_rtn_f64") LDS_OP(double, "ds_max_rtn_f64")
  (void)c;
}
// clang-format on

#define GLOBAL_RTN(T, name, operand)                      \
  {                                                       \
    slots[global_id()] = a;                               \
    T old;                                                \
    asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)\n\t" name \
                 " %0, %1, %2, off sc0\n\t"               \
                 "s_waitcnt vmcnt(0)"                     \
                 : "=&v"(old)                             \
                 : "v"(at), "v"(operand)                  \
                 : "memory");                             \
    row[2 * slot] = old;                                  \
    row[2 * slot + 1] = slots[global_id()];               \
    ++slot;                                               \
  }
#define GLOBAL_BODY(T, columns)                              \
  const T a = in_a[global_id()], b = in_b[global_id()];      \
  const Vec<T, 2> pair = {b, in_c[global_id()]};             \
  const u64 at = reinterpret_cast<u64>(slots + global_id()); \
  T* row = out + 2 * (columns) * global_id();                \
  u32 slot = 0;

// clang-format off
KERNEL global_returns_u32(u32* out, volatile u32* slots, const u32* in_a, const u32* in_b,
                          const u32* in_c) {
  GLOBAL_BODY(u32, 13)
  GLOBAL_RTN(u32, "global_atomic_add", b) GLOBAL_RTN(u32, "global_atomic_sub", b)
  GLOBAL_RTN(u32, "global_atomic_inc", b) GLOBAL_RTN(u32, "global_atomic_dec", b)
  GLOBAL_RTN(u32, "global_atomic_smin", b) GLOBAL_RTN(u32, "global_atomic_smax", b)
  GLOBAL_RTN(u32, "global_atomic_umin", b) GLOBAL_RTN(u32, "global_atomic_umax", b)
  GLOBAL_RTN(u32, "global_atomic_and", b) GLOBAL_RTN(u32, "global_atomic_or", b)
  GLOBAL_RTN(u32, "global_atomic_xor", b) GLOBAL_RTN(u32, "global_atomic_swap", b)
  GLOBAL_RTN(u32, "global_atomic_cmpswap", pair)
}
KERNEL global_returns_u64(u64* out, volatile u64* slots, const u64* in_a, const u64* in_b,
                          const u64* in_c) {
  GLOBAL_BODY(u64, 13)
  GLOBAL_RTN(u64, "global_atomic_add_x2", b) GLOBAL_RTN(u64, "global_atomic_sub_x2", b)
  GLOBAL_RTN(u64, "global_atomic_inc_x2", b) GLOBAL_RTN(u64, "global_atomic_dec_x2", b)
  GLOBAL_RTN(u64, "global_atomic_smin_x2", b) GLOBAL_RTN(u64, "global_atomic_smax_x2", b)
  GLOBAL_RTN(u64, "global_atomic_umin_x2", b) GLOBAL_RTN(u64, "global_atomic_umax_x2", b)
  GLOBAL_RTN(u64, "global_atomic_and_x2", b) GLOBAL_RTN(u64, "global_atomic_or_x2", b)
  GLOBAL_RTN(u64, "global_atomic_xor_x2", b) GLOBAL_RTN(u64, "global_atomic_swap_x2", b)
  GLOBAL_RTN(u64, "global_atomic_cmpswap_x2", pair)
}
// clang-format on

// 96-bit and strided LDS accesses by name.
KERNEL lds_tuples(u32* out, const u32* in) {
  __shared__ u32 shared[4096];
  const u32 self = threadIdx.x;
  const u32 at = (u32)(u64)(__attribute__((address_space(3))) u32*)shared + self * 16;
  const U32x3 three = {in[self], in[self] + 1, in[self] + 2};
  U32x3 back;
  u64 pair;
  asm volatile(
      "ds_write_b96 %2, %3\n\ts_waitcnt lgkmcnt(0)\n\tds_read_b96 %0, %2\n\t"
      "ds_read2_b32 %1, %2 offset0:2 offset1:1\n\ts_waitcnt lgkmcnt(0)"
      : "=&v"(back), "=&v"(pair)
      : "v"(at), "v"(three)
      : "memory");
  out[6 * self] = back.z;
  out[6 * self + 1] = back.x;
  out[6 * self + 2] = back.y;
  out[6 * self + 3] = static_cast<u32>(pair);
  out[6 * self + 4] = static_cast<u32>(pair >> 32);
  const u32 stride = (u32)(u64)(__attribute__((address_space(3))) u32*)shared + self * 4;
  u64 swapped, seen;
  asm volatile(
      "ds_write2st64_b32 %2, %3, %4 offset0:16 offset1:20\n\ts_waitcnt lgkmcnt(0)\n\t"
      "ds_wrxchg2st64_rtn_b32 %0, %2, %4, %3 offset0:16 offset1:20\n\ts_waitcnt lgkmcnt(0)\n\t"
      "ds_read2st64_b32 %1, %2 offset0:16 offset1:20\n\ts_waitcnt lgkmcnt(0)"
      : "=&v"(swapped), "=&v"(seen)
      : "v"(stride), "v"(three.x), "v"(three.y)
      : "memory");
  out[6 * self + 5] = static_cast<u32>(swapped) * 3 + static_cast<u32>(swapped >> 32) * 5 +
                      static_cast<u32>(seen) * 7 + static_cast<u32>(seen >> 32) * 11;
}

// Counters in LDS that a whole wave bumps at once.
KERNEL append_consume(u32* out) {
  __shared__ u32 counter;
  if (threadIdx.x == 0) counter = 100;
  __syncthreads();
  const u32 at = (u32)(u64)(__attribute__((address_space(3))) u32*)&counter;
  u32 before = 0, after = 0;
  if (threadIdx.x % 3 == 0) {
    asm volatile(
        "s_mov_b32 m0, %2\n\ts_nop 4\n\tds_append %0\n\ts_waitcnt lgkmcnt(0)\n\tds_consume %1\n\t"
        "s_waitcnt lgkmcnt(0)"
        : "=&v"(before), "=&v"(after)
        : "s"(__builtin_amdgcn_readfirstlane(at))
        : "memory");
  }
  out[2 * threadIdx.x] = before;
  out[2 * threadIdx.x + 1] = after;
}
