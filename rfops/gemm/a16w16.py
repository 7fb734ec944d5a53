"""gemm_a16w16: out = x @ w^T of bf16 or f16 with few rows of x: gates, heads of a model.

| kernel | what it takes |
|---|---|
| stream (kernels/a16w16/stream.py) | HIP: rows of x side by side along K, those of w along K or N |
| triton (kernels/a16w16/triton.py) | AMD's and NVIDIA's GPUs, any strides |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import OUT_DTYPES, check_dtype
from rfops.dispatch.problem import grid

from .a16w16_op import DECODE_M, HINTS, Config, Gemm16, Torch
from .kernels.a16w16.stream import Stream
from .kernels.a16w16.triton import TritonTiles

__all__ = ["gemm_a16w16", "gemm_a16w16_ref"]

# (N, K) of gates: DeepSeek-V3, Kimi K2, Qwen3-235B, GPT-OSS.
_GATES = ((256, 7168), (384, 7168), (128, 4096), (128, 2880))

OP = Gemm16(
    "gemm_a16w16",
    """
    x: bf16|f16[M, K] strided
    w: bf16|f16[N, K] strided
    dtype: bf16|f16|f32
    -> out: dtype[M, N] strided
    """,
    sizes="M N K",
    table="M+ N K",
    max_bytes=None,
    shapes={
        "gates": grid("N K", _GATES, M=DECODE_M),
        "head": grid("N K", [(16160, 7168), (18992, 4096)], M=(1, 16, 64)),  # TP8
    },
    kernels=(Stream(), TritonTiles(), Torch()),
    hints=HINTS,
)


def gemm_a16w16(
    x: Tensor,
    w: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """out[m, n] = sum_k x[m, k] * w[n, k]: a gate, or another product with few rows of x.

    Parameters
    ----------
    x : [M, K] bfloat16 or float16, any strides.
    w : [N, K] of x's dtype, any strides; weights that lie [K, N] are given as `weights.T`.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given, any strides; no two elements in one place.
    config : a StreamConfig or TilesConfig instead of what `rfops why` says.

    Products are exact and sums are fp32. Deterministic for one config. Raises ValueError for what
    does not fit, and what building the kernel raises.

    Source: the matrix product; nothing of it is particular.
    """
    call: Callable[..., Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(x, w, dtype, out, config)


gemm_a16w16.supports = OP.supports  # type: ignore[attr-defined]


def gemm_a16w16_ref(x: Tensor, w: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`gemm_a16w16` in plain fp32 torch, on any device, of x [M, K] and w [N, K].

    dtype : of the result; bfloat16, float16, float32 or float64. Returns [M, N]. Raises ValueError
    for another dtype, and torch's RuntimeError for sizes that do not fit each other.

    Source: the matrix product.
    """
    check_dtype("gemm_a16w16_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    return (x.float() @ w.float().mT).to(dtype)


OP.reference = gemm_a16w16_ref
