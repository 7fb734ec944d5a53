"""What tests of small ops of their own share: HIP kernels, and the base class of their Kernel."""

from __future__ import annotations

from typing import Any

import torch

from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op
from rfops.jit import CompiledOp

SOURCE = """
#include "rfops/chip/types.h"
using namespace rfops;

struct Table { const float* rows[100]; };

// out[i] = act(a * x[i] + bias[i])
extern "C" __global__ void affine(float* out, const float* x, const float* bias, float a, u32 n) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i >= n) return;
  float y = a * x[i];
#if RFOPS_BIAS
  y += bias[i];
#endif
#if RFOPS_RELU
  y = y > 0 ? y : 0;
#endif
  out[i] = y;
}

// low[r], high[r] = least and largest of x[r, :]; one lane a row
extern "C" __global__ void extremes(float* low, float* high, const float* x, u32 n) {
  const u32 r = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float least = x[r * n], most = x[r * n];
  for (u32 i = 1; i < n; ++i) {
    least = x[r * n + i] < least ? x[r * n + i] : least;
    most = x[r * n + i] > most ? x[r * n + i] : most;
  }
  low[r] = least, high[r] = most;
}

// unit[r, :] = x[r, :] / peak[r], peak[r] = largest |x[r, :]|; one lane a row
extern "C" __global__ void normalise(float* unit, float* peak, const float* x, u32 n) {
  const u32 r = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float most = 0;
  for (u32 i = r * n; i < r * n + n; ++i) most = __builtin_fmaxf(most, __builtin_fabsf(x[i]));
  for (u32 i = r * n; i < r * n + n; ++i) unit[i] = x[i] / most;
  peak[r] = most;
}

// partial[g] = sum of 64 elements of x; one lane a group
extern "C" __global__ void partial_sums(float* partial, const float* x, u32 n) {
  const u32 g = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 i = g * 64; i < n && i < g * 64 + 64; ++i) sum += x[i];
  partial[g] = sum;
}

extern "C" __global__ void total(float* out, const float* partial, u32 groups) {
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 g = 0; g < groups; ++g) sum += partial[g];
  out[0] = sum;
}

// out[i] = x[i] * w[i], w stored from its end where RFOPS_REVERSED
extern "C" __global__ void scale_by(float* out, const float* x, const float* w, u32 n) {
  const u32 i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
#if RFOPS_REVERSED
  if (i < n) out[i] = x[i] * w[n - 1 - i];
#else
  if (i < n) out[i] = x[i] * w[i];
#endif
}

// starts[g] = the first i with group[i] >= g, of groups in order; count[0] = how many there are
extern "C" __global__ void find_starts(int* starts, int* count, const int* group, u32 n) {
  const u32 g = __builtin_amdgcn_workitem_id_x();
  u32 i = 0;
  while (i < n && static_cast<u32>(group[i]) < g) ++i;
  starts[g] = static_cast<int>(i);
  if (g == 0) count[0] = n == 0 ? 0 : group[n - 1] + 1;
}

// cache[slots[t], :] = x[t, :]
extern "C" __global__ void append(float* cache, const float* x, const int* slots, u32 n) {
  const u32 t = __builtin_amdgcn_workgroup_id_x(), i = __builtin_amdgcn_workitem_id_x();
  if (i < n) cache[slots[t] * n + i] = x[t * n + i];
}

// out[e] = sum of the 64 elements of rows[e]
extern "C" __global__ void gather(float* out, Table table) {
  const u32 e = __builtin_amdgcn_workgroup_id_x();
  if (__builtin_amdgcn_workitem_id_x()) return;
  float sum = 0;
  for (u32 i = 0; i < 64; ++i) sum += table.rows[e][i];
  out[e] = sum;
}
"""
MODULE = "small"


_count = 0


def unique(name: str) -> str:
    """An op of the same name would be replaced."""
    global _count
    _count += 1
    return f"test_{name}_{_count}"


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Small(Kernel):
    module = MODULE

    def __init__(self, op: CompiledOp) -> None:
        self.op, self.compiler_config = op, op.config


def op_call(op: Op, *args: Any) -> Any:
    """As a public function calls it."""
    call = op.traced if torch.compiler.is_dynamo_compiling() else op.call
    return call(*args)
