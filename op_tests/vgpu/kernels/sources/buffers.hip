// Buffer instructions: range checks by the resource, scalar and immediate offsets, all widths.
#include "hip_names.h"

constexpr u32 kRawFlags = 0x00027000;  // 32-bit data, no swizzle

INLINE __device__ __amdgpu_buffer_rsrc_t resource(const void* base, u32 bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, kRawFlags);
}

// Lanes past the end read zero and store nothing.
KERNEL guarded_copy(u32* out, const u32* in, u32 in_bytes, u32 out_bytes) {
  const auto source = resource(in, in_bytes);
  const auto sink = resource(out, out_bytes);
  const u32 offset = global_id() * 4;
  const u32 value = __builtin_amdgcn_raw_buffer_load_b32(source, offset, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(value + 1, sink, offset, 0, 0);
}

// A wide access straddles the end: each dword is checked on its own.
KERNEL guarded_wide(U32x4* out4, U32x3* out3, U32x2* out2, const u32* in, u32 in_bytes) {
  const auto source = resource(in, in_bytes);
  const u32 i = global_id();
  out4[i] = __builtin_amdgcn_raw_buffer_load_b128(source, i * 16, 0, 0);
  out3[i] = __builtin_amdgcn_raw_buffer_load_b96(source, i * 12, 0, 0);
  out2[i] = __builtin_amdgcn_raw_buffer_load_b64(source, i * 8, 4, 0);
}

KERNEL guarded_stores(u32* out4, u32* out2, const u32* in, u32 bytes) {
  const u32 i = global_id();
  const U32x4 value = *reinterpret_cast<const U32x4*>(in + 4 * i);
  __builtin_amdgcn_raw_buffer_store_b128(value, resource(out4, bytes), i * 16, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b64(U32x2{value.x, value.w}, resource(out2, bytes), i * 8, 8,
                                        0);
}

KERNEL guarded_narrow(u32* out, u8* bytes, u16* shorts, const u8* in, u32 in_bytes, u32 base) {
  const auto source = resource(in, in_bytes);
  const u32 i = global_id();
  const u8 byte = __builtin_amdgcn_raw_buffer_load_b8(source, i, base, 0);
  const u16 half = __builtin_amdgcn_raw_buffer_load_b16(source, 2 * i + 64, base, 0);
  out[2 * i] = byte + static_cast<u32>(static_cast<i32>(static_cast<i8>(byte)) << 8);
  out[2 * i + 1] = half;
  __builtin_amdgcn_raw_buffer_store_b8(byte + 1, resource(bytes, in_bytes), i, base, 0);
  __builtin_amdgcn_raw_buffer_store_b16(half ^ 0x55aa, resource(shorts, in_bytes), 2 * i, 0, 0);
}

// A negative VGPR offset is a large unsigned one: out of range as well, and it stays so when the
// instruction's offset is added. Cache policy bits change nothing.
KERNEL guarded_window(i32* out, const i32* in, int n, int shift) {
  const auto source = resource(in, n * 4);
  const int at = static_cast<int>(global_id()) - shift;
  out[global_id()] =
      static_cast<i32>(__builtin_amdgcn_raw_buffer_load_b32(source, at * 4, 0, 3)) +
      static_cast<i32>(__builtin_amdgcn_raw_buffer_load_b32(source, at * 4 + 4, 0, 17));
}
