"""aiter's GEMMs of 16-bit operands: gates, heads and absorbed weights, by gemm_a16w16 and
batched_gemm_a16w16."""

from __future__ import annotations

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.gemm.a16w16 import gemm_a16w16 as _gemm
from rfops.gemm.batched_a16w16 import batched_gemm_a16w16 as _batched
from rfops.quantization.shuffle import unshuffle_weight


def gemm_a16w16(
    A: Tensor,
    B: Tensor,
    bias: Tensor | None = None,
    otype: torch.dtype | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_c: Tensor | None = None,
) -> Tensor:
    """aiter.tuned_gemm's: A [..., K] @ B [N, K]^T + bias [N] in otype, by default A's dtype; B as
    shuffle_weight left it, where so marked. Raises ValueError for scales, which only FP8 has, and
    what gemm_a16w16 raises."""
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b), ("scale_c", scale_c)):
        if scale is not None:
            Guard("gemm_a16w16").fail(name, "None", describe(scale), "multiply the result by it")
    w = unshuffle_weight(B) if getattr(B, "is_shuffled", False) else B
    result = gemm_a16w16_triton(A.reshape(-1, A.shape[-1]), w, bias, otype or A.dtype)
    return result.view(*A.shape[:-1], B.shape[0])


class TunedGemm:
    """What aiter.tuned_gemm.tgemm is."""

    mm = staticmethod(gemm_a16w16)


tgemm = TunedGemm()


def gemm_a16w16_triton(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    y: Tensor | None = None,
    config: dict[str, object] | None = None,
    activation: str | None = None,
    skip_reduce: bool = False,
    kernel_type: str = "bandwidth_bound",
    backend: str | None = None,
) -> Tensor:
    """x [M, K] @ w [N, K]^T + bias [N] in dtype, into y [M, N] where given; config, kernel_type and
    backend only tune. Raises ValueError for an activation and for skip_reduce."""
    for name, value in (("activation", activation), ("skip_reduce", skip_reduce)):
        if value:
            Guard("gemm_a16w16").fail(name, "None or False", repr(value), "apply it to the result")
    if bias is None:
        return _gemm(x, w, dtype, y)
    return _biased(_gemm(x, w, torch.float32), bias, dtype, y)


def batched_gemm_bf16(
    XQ: Tensor, WQ: Tensor, out: Tensor, bias: Tensor | None = None, splitK: int = 0
) -> Tensor:
    """out [B, M, N], written and returned: XQ [B, M, K] @ WQ [B, N, K]^T + bias [B, 1, N]; splitK
    only tunes."""
    return batched_gemm_bf16_triton(XQ, WQ, bias, out.dtype, None, out)


def batched_gemm_bf16_triton(
    XQ: Tensor,
    WQ: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
    YQ: Tensor | None = None,
    config: dict[str, object] | None = None,
    kernel_type: str = "bandwidth_bound",
    backend: str | None = None,
) -> Tensor:
    """XQ [B, M, K] @ WQ [B, N, K]^T + bias [B, 1, N] in dtype, into YQ where given; splitK, config,
    kernel_type and backend only tune."""
    if bias is None:
        return _batched(XQ, WQ, dtype, YQ)
    return _biased(_batched(XQ, WQ, torch.float32), bias, dtype, YQ)


def _biased(sums: Tensor, bias: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """fp32 sums + bias, rounded once."""
    result = sums.add_(bias)
    return result.to(dtype) if out is None else out.copy_(result)
