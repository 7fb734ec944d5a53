// Module variables: constant tables, initialised and zeroed data, pointers between them.
#include "hip_names.h"

__constant__ u32 constant_table[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ i32 initialised[4] = {-1, 20, -300, 4000};
__device__ u32 launch_count;
__device__ u64 zeroed[128];
__device__ const u32* table_pointer = constant_table;
__device__ i32* middle_of_data = &initialised[2];
__constant__ float host_set[16];

struct Entry {
  const char* text;
  u32 length;
  const Entry* next;
};
__constant__ const Entry kLast = {"omega", 5, nullptr};
__constant__ const Entry kMiddle = {"delta-delta", 11, &kLast};
__constant__ const Entry kFirst = {"alpha", 5, &kMiddle};

KERNEL read_globals(u32* out) {
  const u32 i = threadIdx.x;
  out[i] = constant_table[i & 7] + static_cast<u32>(initialised[i & 3]) +
           table_pointer[7 - (i & 7)] + static_cast<u32>(*middle_of_data);
}

KERNEL write_globals(const u64* in) {
  zeroed[global_id() & 127] += in[global_id()];
  if (global_id() == 0) {
    launch_count += 1;
    initialised[3] = 17;
    *middle_of_data -= 1;
  }
}

KERNEL read_host_set(float* out, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = host_set[i & 15] * static_cast<float>(i);
}

// Follows pointers that the loader must have relocated.
KERNEL walk_list(u32* out) {
  u32 hash = 0;
  for (const Entry* at = &kFirst; at; at = at->next) {
    for (u32 i = 0; i < at->length; ++i) hash = hash * 31 + static_cast<u8>(at->text[i]);
  }
  out[threadIdx.x] = hash + threadIdx.x;
}

KERNEL local_table(u32* out, const u32* in, int n) {
  static const u32 kSquares[11] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100};
  static __device__ u32 calls = 5;
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = kSquares[in[i] % 11] + calls;
}
