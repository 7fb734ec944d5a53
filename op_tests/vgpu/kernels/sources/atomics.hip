// Atomics of every operation, width and address space, with and without the old value.
#include "hip_names.h"

template <class T>
struct Slots {
  T add, sub, min, max, bit_and, bit_or, bit_xor, exchange, compare;
};

// Commutative ones are checked by their final value; exchange and compare by what all lanes saw.
template <int Scope, class T>
INLINE __device__ void touch_all(Slots<T>* slots, T value, T self) {
  __hip_atomic_fetch_add(&slots->add, value, RELAXED, Scope);
  __hip_atomic_fetch_sub(&slots->sub, value, RELAXED, Scope);
  __hip_atomic_fetch_min(&slots->min, value, RELAXED, Scope);
  __hip_atomic_fetch_max(&slots->max, value, RELAXED, Scope);
  __hip_atomic_fetch_and(&slots->bit_and, static_cast<T>(value | 0xf0), RELAXED, Scope);
  __hip_atomic_fetch_or(&slots->bit_or, static_cast<T>(value & 0x0f0f), RELAXED, Scope);
  __hip_atomic_fetch_xor(&slots->bit_xor, value, RELAXED, Scope);
  __hip_atomic_exchange(&slots->exchange, self, RELAXED, Scope);
  T expected = 3;
  __hip_atomic_compare_exchange_strong(&slots->compare, &expected, self, RELAXED, RELAXED, Scope);
}

#define GLOBAL_ATOMICS(T)                                                           \
  KERNEL global_atomics_##T(Slots<T>* slots, const T* in, int n) {                  \
    const u32 i = global_id();                                                      \
    if (i < static_cast<u32>(n)) touch_all<SCOPE_DEVICE>(slots, in[i], T(i + 100)); \
  }                                                                                 \
  KERNEL lds_atomics_##T(Slots<T>* slots, const T* in, int n) {                     \
    __shared__ Slots<T> local;                                                      \
    if (threadIdx.x == 0) local = *slots;                                           \
    __syncthreads();                                                                \
    const u32 i = global_id();                                                      \
    if (i < static_cast<u32>(n)) touch_all<SCOPE_BLOCK>(&local, in[i], T(i + 100)); \
    __syncthreads();                                                                \
    if (threadIdx.x == 0) *slots = local;                                           \
  }
GLOBAL_ATOMICS(i32)
GLOBAL_ATOMICS(u32)
GLOBAL_ATOMICS(i64)
GLOBAL_ATOMICS(u64)

// Old values: the tickets of a counter are a permutation; an exchange chain loses no value.
template <class T, int Scope>
INLINE __device__ void draw(T* tickets, T* chain, T* counter, T* link, u32 i) {
  tickets[i] = __hip_atomic_fetch_add(counter, T(1), RELAXED, Scope);
  chain[i] = __hip_atomic_exchange(link, T(i), RELAXED, Scope);
}
KERNEL tickets_u32(u32* tickets, u32* chain, u32* state, int n) {
  if (global_id() < static_cast<u32>(n)) {
    draw<u32, SCOPE_DEVICE>(tickets, chain, state, state + 1, global_id());
  }
}
KERNEL tickets_u64(u64* tickets, u64* chain, u64* state, int n) {
  if (global_id() < static_cast<u32>(n)) {
    draw<u64, SCOPE_DEVICE>(tickets, chain, state, state + 1, global_id());
  }
}
KERNEL tickets_lds(u32* tickets, u32* chain, u32* state) {
  __shared__ u32 counter, link;
  if (threadIdx.x == 0) counter = 0, link = 0xffffffffu;
  __syncthreads();
  draw<u32, SCOPE_BLOCK>(tickets, chain, &counter, &link, threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) state[0] = counter, state[1] = link;
}

// A value may be in LDS or in global memory: flat atomics.
NOINLINE __device__ u32 add_anywhere(u32* at, u32 value) {
  return __hip_atomic_fetch_add(at, value, RELAXED, SCOPE_DEVICE);
}
KERNEL flat_atomics(u32* totals, u32* old_sum, const u32* in, int n) {
  __shared__ u32 local;
  if (threadIdx.x == 0) local = 0;
  __syncthreads();
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) {
    u32* at = in[i] & 1 ? &local : totals;
    const u32 old = add_anywhere(at, in[i]);
    atomicAdd(old_sum, old & 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&totals[1], local);
}

// Any operation from compare-and-swap: here a saturating add.
KERNEL compare_loop(u32* slot, const u32* in, u32 limit, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u32 seen = __hip_atomic_load(slot, RELAXED, SCOPE_DEVICE);
  u32 wanted;
  do {
    wanted = seen + in[i] > limit ? limit : seen + in[i];
  } while (!__hip_atomic_compare_exchange_weak(slot, &seen, wanted, __ATOMIC_ACQ_REL,
                                               __ATOMIC_RELAXED, SCOPE_DEVICE));
}

KERNEL wrap_counters(u32* state, int n) {
  if (global_id() >= static_cast<u32>(n)) return;
  __builtin_amdgcn_atomic_inc32(&state[0], 6u, __ATOMIC_SEQ_CST, "agent");
  __builtin_amdgcn_atomic_dec32(&state[1], 6u, __ATOMIC_SEQ_CST, "agent");
}
