// Calls: recursion, functions that stay functions, pointers to functions, arguments on the stack.
#include "hip_names.h"

NOINLINE __device__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL recurse_fibonacci(u32* out, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = fibonacci(i % 13);
}

NOINLINE __device__ u32 ackermann(u32 m, u32 n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
KERNEL recurse_ackermann(u32* out) {
  out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 7);
}

// Sorts a local array by recursion on its halves.
NOINLINE __device__ void quick_sort(i32* low, i32* high) {
  while (low < high) {
    const i32 pivot = low[(high - low) / 2];
    i32* left = low;
    i32* right = high;
    while (left <= right) {
      while (*left < pivot) ++left;
      while (*right > pivot) --right;
      if (left <= right) {
        const i32 swap = *left;
        *left++ = *right;
        *right-- = swap;
      }
    }
    quick_sort(low, right);
    low = left;
  }
}
KERNEL recurse_sort(i32* out, const i32* in) {
  i32 local[24];
  const u32 base = global_id() * 24;
  for (int i = 0; i < 24; ++i) local[i] = in[base + i];
  quick_sort(local, local + 23);
  for (int i = 0; i < 24; ++i) out[base + i] = local[i];
}

NOINLINE __device__ float add(float a, float b) { return a + b; }
NOINLINE __device__ float subtract(float a, float b) { return a - b; }
NOINLINE __device__ float multiply(float a, float b) { return a * b; }
NOINLINE __device__ float first(float a, float) { return a; }
using Binary = float (*)(float, float);
__constant__ const Binary kOperations[4] = {add, subtract, multiply, first};

// The target differs from lane to lane: the call loops over the distinct ones.
KERNEL call_by_pointer(float* out, const float* a, const float* b, const u32* which, int n) {
  const u32 i = global_id();
  if (i < static_cast<u32>(n)) out[i] = kOperations[which[i] & 3](a[i], b[i]);
}

struct Triple {
  i64 sum;
  i32 product;
  float ratio;
};
NOINLINE __device__ Triple combine(i32 a, i32 b, i64 c, float d) {
  return {a + b + c, a * b, d * 0.5f};
}
// More arguments than registers take: the rest travels through scratch.
NOINLINE __device__ i32 weigh(i32 a0, i32 a1, i32 a2, i32 a3, i32 a4, i32 a5, i32 a6, i32 a7,
                              i32 a8, i32 a9, i64 b0, i64 b1, i64 b2, i64 b3, i64 b4, i64 b5,
                              i64 b6, i64 b7, i64 b8, i64 b9, Triple by_value, i32 last) {
  i64 sum = a0 + 2 * a1 + 3 * a2 + 4 * a3 + 5 * a4 + 6 * a5 + 7 * a6 + 8 * a7 + 9 * a8 + 10 * a9;
  sum += b0 + 3 * b1 + 5 * b2 + 7 * b3 + 9 * b4 + 11 * b5 + 13 * b6 + 15 * b7 + 17 * b8 + 19 * b9;
  return static_cast<i32>(sum + by_value.sum * 31 + by_value.product) + last;
}
KERNEL call_with_many(i32* out, float* ratio, const i32* in, int n) {
  const i32 i = static_cast<i32>(global_id());
  if (i >= n) return;
  const i32 v = in[i];
  const Triple triple = combine(v, i, 1000000007ll, static_cast<float>(i));
  out[i] = weigh(v, v + 1, v + 2, v + 3, i, i + 1, i + 2, i + 3, 4, 5, v, v - 1, v - 2, v - 3, i,
                 i - 1, i - 2, i - 3, 6, 7, triple, v ^ i);
  ratio[i] = triple.ratio;
}

// A chain of calls that keep values alive across each other: callee-saved registers, spills.
NOINLINE __device__ u32 mix(u32 value) { return value * 2654435761u ^ (value >> 15); }
NOINLINE __device__ u32 mix_pair(u32 a, u32 b) { return mix(a) + 3 * mix(b) + mix(a ^ b); }
NOINLINE __device__ u32 mix_four(const u32* v) {
  return mix_pair(v[0], v[1]) ^ mix_pair(v[2], v[3]) ^ mix_pair(v[1], v[3]);
}
KERNEL call_chain(u32* out, const u32* in, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  u32 hash = i;
  for (int round = 0; round < 5; ++round) hash = mix_four(in + 4 * i) + mix(hash + round);
  out[i] = hash;
}

// Virtual functions: objects in private memory, tables of function addresses in the code object.
struct Figure {
  float factor;
  __device__ explicit Figure(float f) : factor(f) {}
  virtual __device__ float area(float side) const = 0;
};
struct Square : Figure {
  using Figure::Figure;
  NOINLINE __device__ float area(float side) const override { return side * side * factor; }
};
struct Triangle : Figure {
  using Figure::Figure;
  NOINLINE __device__ float area(float side) const override { return side * factor * 0.5f; }
};
extern "C" __device__ void __cxa_pure_virtual() { __builtin_trap(); }
KERNEL call_virtual(float* out, const float* side, const u32* which, int n) {
  const u32 i = global_id();
  if (i >= static_cast<u32>(n)) return;
  const Square square(3), large(7);
  const Triangle triangle(5);
  const Figure* const figures[] = {&square, &triangle, &large};
  out[i] = figures[which[i] % 3]->area(side[i]);
}
