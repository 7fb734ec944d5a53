// Simple float kernels whose times on MI300A and MI300X are published: what `rfops bench timing`
// holds the model of time against besides matrix kernels. Written from descriptions of the kernels
// that were measured: the same work a thread, the same workgroups (256 threads), no better.
//
// Every argument takes 8 bytes; sizes are int as there, so that index arithmetic costs the same.
#include "rfops/chip/types.h"
using namespace rfops;

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kTile = 16;  // rows and columns of a workgroup of gemm16 and transpose
constexpr u32 kPiece = 4;  // of a thread of transpose, rows and columns
constexpr u32 kWaves = kThreads / kWaveSize;

__device__ inline int thread_of_all() { return workgroup_id_x() * kThreads + thread_id(); }
__device__ inline f32 float_of(u64 bits) { return __builtin_bit_cast(f32, static_cast<u32>(bits)); }

// Of the lane `by` further on; the last ones keep their own.
__device__ inline f32 from_further(f32 value, u32 by) {
  const u32 lane = lane_id(), other = lane + by < kWaveSize ? lane + by : lane;
  const int bits = __builtin_bit_cast(int, value);
  return __builtin_bit_cast(f32, __builtin_amdgcn_ds_bpermute(other * 4, bits));
}

template <typename Op>
__device__ inline f32 reduce_wave(f32 value, Op op) {
#pragma unroll
  for (u32 by = kWaveSize / 2; by > 0; by /= 2) value = op(value, from_further(value, by));
  return value;
}

// Lane 0 of wave 0 has the result.
template <typename Op>
__device__ inline f32 reduce_group(f32 value, f32* parts, f32 nothing, Op op) {
  value = reduce_wave(value, op);
  if (lane_id() == 0) parts[thread_id() / kWaveSize] = value;
  workgroup_barrier();
  value = thread_id() < kWaves ? parts[thread_id()] : nothing;
  return thread_id() < kWaveSize ? reduce_wave(value, op) : value;
}

__device__ inline f32 add_of(f32 a, f32 b) { return a + b; }
__device__ inline f32 max_of(f32 a, f32 b) { return __builtin_fmaxf(a, b); }

// A value in two floats, high the nearest to it: how accurate libraries compute powers.
struct Pair {
  f32 high, low;
};

__device__ inline Pair sum_of(f32 a, f32 b) {
  const f32 s = a + b, back = s - a;
  return {s, (a - (s - back)) + (b - back)};
}
__device__ inline Pair normal(f32 high, f32 low) {
  const f32 s = high + low;
  return {s, low - (s - high)};
}
__device__ inline Pair add(Pair a, Pair b) {
  const Pair s = sum_of(a.high, b.high);
  return normal(s.high, s.low + (a.low + b.low));
}
__device__ inline Pair multiply(Pair a, Pair b) {
  const f32 p = a.high * b.high, error = __builtin_fmaf(a.high, b.high, -p);
  return normal(p, error + (a.high * b.low + a.low * b.high));
}
__device__ inline Pair divide(Pair a, Pair b) {
  const f32 q = a.high / b.high;
  const Pair product = multiply({q, 0.0f}, b);
  const f32 rest = (a.high - product.high) - product.low + a.low;
  return normal(q, rest / b.high);
}

// x^y of x >= 0: the logarithm of the mantissa by a series in (m - 1) / (m + 1), and back.
__device__ inline f32 power(f32 x, f32 y) {
  f32 m = __builtin_amdgcn_frexp_mantf(x);
  int e = __builtin_amdgcn_frexp_expf(x);
  const bool small = m < 0.70710678f;
  m = small ? m * 2.0f : m;
  e -= small;
  const Pair s = divide(sum_of(m, -1.0f), sum_of(m, 1.0f)), s2 = multiply(s, s);
  f32 p = __builtin_fmaf(s2.high, 0.2211f, 0.2857143f);
  p = __builtin_fmaf(s2.high, p, 0.4f);
  const Pair third = add({0.6666667f, -1.9868216e-8f}, multiply(s2, {p, 0.0f}));
  Pair ln = add({2.0f * s.high, 2.0f * s.low}, multiply(multiply(s, s2), third));
  ln = add(multiply({0.6931472f, -1.9046542e-9f}, {static_cast<f32>(e), 0.0f}), ln);
  const Pair exponent = multiply({y, 0.0f}, ln);
  const f32 whole = __builtin_rintf(exponent.high * 1.442695f);
  const Pair r = add(exponent, multiply({-0.6931472f, 1.9046542e-9f}, {whole, 0.0f}));
  f32 q = __builtin_fmaf(r.high, 1.3888889e-3f, 8.3333333e-3f);
  q = __builtin_fmaf(r.high, q, 4.1666667e-2f);
  q = __builtin_fmaf(r.high, q, 0.16666667f);
  q = __builtin_fmaf(r.high, q, 0.5f);
  const Pair tail = add(r, multiply(multiply(r, r), {q, 0.0f}));
  f32 value = __builtin_amdgcn_ldexpf(1.0f + (tail.high + tail.low), static_cast<int>(whole));
  value = exponent.high > 88.7f ? __builtin_inff() : value;
  value = exponent.high < -104.0f ? 0.0f : value;
  value = x == 0.0f ? (y > 0.0f ? 0.0f : __builtin_inff()) : value;
  value = x == 1.0f || y == 0.0f ? 1.0f : value;
  return x != x || y != y ? __builtin_nanf("") : value;
}

struct Turn {
  f32 sine, cosine;
};

// For arguments below some 1e5: pi / 2 is taken off in three parts.
__device__ inline Turn turn(f32 x) {
  const f32 n = __builtin_rintf(x * 0.63661977f);
  f32 r = __builtin_fmaf(n, -1.5707964f, x);
  r = __builtin_fmaf(n, 4.3711388e-8f, r);
  r = __builtin_fmaf(n, 1.7151245e-15f, r);
  const f32 r2 = r * r;
  f32 s = __builtin_fmaf(r2, 2.6e-6f, -1.9810e-4f);
  s = __builtin_fmaf(r2, s, 8.3330255e-3f);
  s = __builtin_fmaf(r2, s, -0.16666657f);
  s = __builtin_fmaf(r * r2, s, r);
  f32 c = __builtin_fmaf(r2, 2.39e-5f, -1.3853e-3f);
  c = __builtin_fmaf(r2, c, 4.1665e-2f);
  c = __builtin_fmaf(r2, c, -0.5f);
  c = __builtin_fmaf(r2, c, 1.0f);
  const int quarter = static_cast<int>(n);
  const f32 sine = quarter & 1 ? c : s, cosine = quarter & 1 ? -s : c;
  return {quarter & 2 ? -sine : sine, quarter & 2 ? -cosine : cosine};
}

}  // namespace

extern "C" __global__ void copy(f32* out, const f32* x, u64 count) {
  const int i = thread_of_all(), n = count;
  if (i < n) out[i] = x[i];
}

extern "C" __global__ void vectoradd(f32* out, const f32* x, const f32* y, u64 count) {
  const int i = thread_of_all(), n = count;
  if (i < n) out[i] = x[i] + y[i];
}

extern "C" __global__ void relu(f32* out, const f32* x, u64 count) {
  const int i = thread_of_all(), n = count;
  if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

extern "C" __global__ void triad(f32* out, const f32* x, const f32* y, u64 count, u64 factor) {
  const int i = thread_of_all(), n = count;
  if (i < n) out[i] = x[i] + float_of(factor) * y[i];
}

extern "C" __global__ void swiglu(f32* out, const f32* gate, const f32* up, u64 count) {
  const int i = thread_of_all(), n = count;
  if (i < n) out[i] = gate[i] / (1.0f + __builtin_expf(-gate[i])) * up[i];
}

// One workgroup a row, three passes; the second leaves exp(x - max) in the output.
extern "C" __global__ void softmax(f32* out, const f32* in, u64 columns) {
  __shared__ f32 parts[kWaves], shared_max, shared_sum;
  const int n = columns, first = thread_id();
  const f32* x = in + static_cast<int>(workgroup_id_x()) * n;
  f32* y = out + static_cast<int>(workgroup_id_x()) * n;
  f32 most = -__builtin_inff();
  for (int i = first; i < n; i += kThreads) most = max_of(most, x[i]);
  most = reduce_group(most, parts, -__builtin_inff(), max_of);
  if (first == 0) shared_max = most;
  workgroup_barrier();
  most = shared_max;
  f32 sum = 0.0f;
  for (int i = first; i < n; i += kThreads) {
    const f32 value = __builtin_expf(x[i] - most);
    y[i] = value;
    sum += value;
  }
  sum = reduce_group(sum, parts, 0.0f, add_of);
  if (first == 0) shared_sum = sum;
  workgroup_barrier();
  const f32 scale = 1.0f / shared_sum;
  for (int i = first; i < n; i += kThreads) y[i] *= scale;
}

// One workgroup a row, two passes.
extern "C" __global__ void layernorm(f32* out, const f32* in, const f32* gamma, const f32* beta,
                                     u64 columns) {
  __shared__ f32 parts[kWaves], shared_mean, shared_scale;
  const int n = columns, first = thread_id();
  const f32* x = in + static_cast<int>(workgroup_id_x()) * n;
  f32* y = out + static_cast<int>(workgroup_id_x()) * n;
  f32 sum = 0.0f, squares = 0.0f;
  for (int i = first; i < n; i += kThreads) {
    sum += x[i];
    squares += x[i] * x[i];
  }
  sum = reduce_group(sum, parts, 0.0f, add_of);
  workgroup_barrier();
  squares = reduce_group(squares, parts, 0.0f, add_of);
  if (first == 0) {
    const f32 mean = sum / n;
    shared_mean = mean;
    shared_scale = __builtin_amdgcn_rsqf(squares / n - mean * mean + 1e-5f);
  }
  workgroup_barrier();
  const f32 mean = shared_mean, scale = shared_scale;
  for (int i = first; i < n; i += kThreads) y[i] = gamma[i] * (x[i] - mean) * scale + beta[i];
}

// A thread turns one pair of q and of k, [batch, positions, heads, size].
extern "C" __global__ void rope(f32* q, f32* k, u64 batches, u64 positions, u64 heads, u64 size,
                                u64 base) {
  const int pairs = static_cast<int>(size) / 2, head_count = heads, length = positions;
  const int i = thread_of_all();
  if (i >= static_cast<int>(batches) * length * head_count * pairs) return;
  const int pair = i % pairs, row = i / pairs;
  const int head = row % head_count, place = row / head_count;
  const int position = place % length, batch = place / length;
  const f32 exponent = 2.0f * pair / static_cast<int>(size);
  const auto [sine, cosine] = turn(position * (1.0f / power(float_of(base), exponent)));
  const int at = ((batch * length + position) * head_count + head) * static_cast<int>(size);
  const int low = at + 2 * pair, high = low + 1;
  const f32 q0 = q[low], q1 = q[high];
  q[low] = q0 * cosine - q1 * sine;
  q[high] = q0 * sine + q1 * cosine;
  const f32 k0 = k[low], k1 = k[high];
  k[low] = k0 * cosine - k1 * sine;
  k[high] = k0 * sine + k1 * cosine;
}

// c = alpha a b + beta c, row-major, by tiles of 16 x 16 in LDS, one element a thread.
extern "C" __global__ void gemm16(f32* c, const f32* a, const f32* b, u64 m, u64 n, u64 k,
                                  u64 alpha, u64 beta) {
  __shared__ f32 tile_a[kTile][kTile], tile_b[kTile][kTile];
  const int tx = __builtin_amdgcn_workitem_id_x(), ty = __builtin_amdgcn_workitem_id_y();
  const int rows = m, columns = n, depth = k;
  const int row = workgroup_id_y() * kTile + ty, column = workgroup_id_x() * kTile + tx;
  f32 sum = 0.0f;
  for (int t = 0; t < (depth + static_cast<int>(kTile) - 1) / static_cast<int>(kTile); ++t) {
    const int at = t * kTile + tx, bt = t * kTile + ty;
    tile_a[ty][tx] = row < rows && at < depth ? a[row * depth + at] : 0.0f;
    tile_b[ty][tx] = bt < depth && column < columns ? b[bt * columns + column] : 0.0f;
    workgroup_barrier();
#pragma unroll
    for (u32 i = 0; i < kTile; ++i) sum += tile_a[ty][i] * tile_b[i][tx];
    workgroup_barrier();
  }
  if (row >= rows || column >= columns) return;
  const int at = row * columns + column;
  c[at] = float_of(alpha) * sum + float_of(beta) * c[at];
}

// 64 x 64 elements a workgroup through LDS, 4 x 4 a thread; workgroups go along diagonals.
extern "C" __global__ void transpose(F32x4* out, const F32x4* in, u64 quads, u64 tiles) {
  __shared__ F32x4 lds[kTile * kTile * kPiece];
  const u32 tx = __builtin_amdgcn_workitem_id_x(), ty = __builtin_amdgcn_workitem_id_y();
  const u32 width = quads, row_tile = workgroup_id_x();
  const u32 column_tile = (workgroup_id_x() + workgroup_id_y()) % static_cast<u32>(tiles);
  const u32 from = column_tile * kTile + tx + (row_tile * kTile + ty) * width * kPiece;
  const u32 put = ty * kTile * kPiece + tx;
#pragma unroll
  for (u32 i = 0; i < kPiece; ++i) lds[put + i * kTile] = in[from + i * width];
  workgroup_barrier();
  const u32 take = tx * kTile * kPiece + ty;
  F32x4 piece[kPiece];
#pragma unroll
  for (u32 i = 0; i < kPiece; ++i) piece[i] = lds[take + i * kTile];
  const u32 to = row_tile * kTile + tx + (column_tile * kTile + ty) * width * kPiece;
#pragma unroll
  for (u32 i = 0; i < kPiece; ++i)
    out[to + i * width] = F32x4{piece[0][i], piece[1][i], piece[2][i], piece[3][i]};
}
