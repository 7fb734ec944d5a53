"""batched_gemm_a16w16: out[b] = x[b] @ w[b]^T of bf16 or f16: MLA's absorbed weights by heads.

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

__all__ = ["batched_gemm_a16w16", "batched_gemm_a16w16_ref"]

# (N, K) of MLA's absorbed weights: into the latent space, out of it.
_ABSORBED = ((512, 128), (128, 512))

OP = Gemm16(
    "batched_gemm_a16w16",
    """
    x: bf16|f16[B, M, K] strided
    w: bf16|f16[B, N, K] strided
    dtype: bf16|f16|f32
    -> out: dtype[B, M, N] strided
    """,
    sizes="B M N K",
    table="B~ M+ N~ K~",
    max_bytes=None,
    shapes={"absorbed": grid("N K", _ABSORBED, B=(16, 128), M=DECODE_M)},
    kernels=(Stream(), TritonTiles(), Torch()),
    hints=HINTS,
)


def batched_gemm_a16w16(
    x: Tensor,
    w: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """out[b, m, n] = sum_k x[b, m, k] * w[b, n, k]: MLA's absorbed weights, by heads.

    Parameters
    ----------
    x : [B, M, K] bfloat16 or float16, any strides; x of [tokens, heads, K] is given as
        `x.transpose(0, 1)`.
    w : [B, N, K] of x's dtype, any strides; weights that lie [B, K, N] are given as `weights.mT`.
    dtype : of the result; bfloat16, float16 or float32.
    out : [B, M, N], written in place where given, any strides, so `out.transpose(0, 1)` for
        [tokens, heads, N]; no two elements in one place.
    config : a StreamConfig or TilesConfig instead of what `rfops why` says.

    Nothing is copied. Products are exact and sums are fp32. Deterministic for one config. Raises
    ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2: w_uk absorbed into w_q, w_uv into w_o.
    """
    call: Callable[..., Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(x, w, dtype, out, config)


batched_gemm_a16w16.supports = OP.supports  # type: ignore[attr-defined]


def batched_gemm_a16w16_ref(x: Tensor, w: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`batched_gemm_a16w16` in plain fp32 torch, on any device, of x [B, M, K] and w [B, N, K].

    dtype : of the result; bfloat16, float16, float32 or float64. Returns [B, M, N]. Raises
    ValueError for another dtype, and torch's RuntimeError for sizes that do not fit each other.

    Source: the matrix product, by batches.
    """
    check_dtype("batched_gemm_a16w16_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    return (x.float() @ w.float().mT).to(dtype)


OP.reference = batched_gemm_a16w16_ref
