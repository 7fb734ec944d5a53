"""aiter's products of FP8 and MXFP4 weights, batched or with a scale format of their own. Where
rfops has no batched kernel, a launch for each matrix of the batch: right, and slow for many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops import compat
from rfops.dispatch.declare import E8M0, MX_BLOCK
from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.layout import Shuffled
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale
from rfops.gemm.a8wfp4 import gemm_a8wfp4 as _gemm_a8wfp4
from rfops.gemm.a16w8_blockscale import batched_gemm_a16w8_blockscale
from rfops.quantization.shuffle import WEIGHT

from .matmul import BLOCK, _refuse
from .mx_types import e8m0_to_f32

_BF16 = torch.bfloat16
_Config = dict[str, Any] | None
_ONE = 127  # e8m0 of 1


def batched_gemm_a8w8_prequant(
    X: Tensor,
    WQ: Tensor,
    w_scale: Tensor,
    group_size: int = 128,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = _BF16,
    splitK: int | None = None,
    YQ: Tensor | None = None,
    transpose_bm: bool | None = False,
    transpose_bm_in: bool | None = False,
    config: _Config = None,
) -> Tensor:
    """batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant: X [B, M, K] of 16
    bits, [M, B, K] with transpose_bm_in, times WQ [B, N, K]^T, FP8 with one scale; [B, M, N], or
    [M, B, N] with transpose_bm, in YQ where given. X is multiplied as it is, where aiter quantises
    groups of it."""
    _refuse("batched_gemm_a8w8_prequant", bias=bias)
    x = X.transpose(0, 1) if transpose_bm_in else X
    (batch, n, k), m = WQ.shape, x.shape[1]
    scale = w_scale.reshape(1, 1, 1).expand(batch, -(-n // BLOCK), -(-k // BLOCK))
    shape = (m, batch, n) if transpose_bm else (batch, m, n)
    out = YQ if YQ is not None else x.new_empty(shape, dtype=dtype or _BF16)
    result = out.transpose(0, 1) if transpose_bm else out
    batched_gemm_a16w8_blockscale(x, WQ, scale, out.dtype, result)
    return out


def batched_gemm_a8w8_mxscale(
    x: Tensor, wo_a: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype = _BF16
) -> Tensor:
    """[M, G, N] of x [M, G, K] times wo_a [G, N, K]^T, FP8, with e8m0 scales [M, G, K/128] and
    [G, N/128, K/128]: a launch for each of G."""
    out = x.new_empty(*x.shape[:2], wo_a.shape[1], dtype=dtype)
    x_factors, w_factors = e8m0_to_f32(x_scale), e8m0_to_f32(w_scale)
    for g, w in enumerate(wo_a):
        out[:, g] = gemm_a8w8_blockscale(x[:, g], w, x_factors[:, g], w_factors[g], dtype)
    return out


def batched_gemm_a16wfp4(
    x: Tensor,
    w: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None = _BF16,
    y: Tensor | None = None,
    config: _Config = None,
    transpose_bm: bool | None = False,
    prequant: bool | None = True,
    y_scale: Tensor | None = None,
) -> Tensor:
    """[B, M, N], or [M, B, N] with transpose_bm, of x [B, M, K] quantised to MXFP4 times w
    [B, N, K/2]^T with scales [B, N, K/32]; over y_scale, one number, where given; in y where given.
    A launch for each of B."""
    name = "batched_gemm_a16wfp4"
    if not prequant:
        Guard(name).fail("prequant", "True", "False", "x is quantised inside")
    _refuse(name, config=config)
    (batch, n, _), m = w.shape, x.shape[1]
    shape = (m, batch, n) if transpose_bm else (batch, m, n)
    out = y if y is not None else x.new_empty(shape, dtype=dtype or _BF16)
    result = out.transpose(0, 1) if transpose_bm else out
    product_dtype = torch.float32 if y_scale is not None else _BF16
    for b in range(batch):
        product = compat.gemm_a16wfp4(x[b].contiguous(), w[b], w_scales[b], dtype=product_dtype)
        result[b].copy_(product if y_scale is None else product / y_scale)
    return out


def gemm_a8wfp4(
    x: Tensor,
    w: Tensor,
    y: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None = _BF16,
    config: _Config = None,
) -> Tensor:
    """y [M, N], written and returned, of x [M, K] e4m3fn with fp32 scales of its rows [M, 1] times
    w [N, K/2]^T, MXFP4 with e8m0 scales [N, K/32]."""
    _refuse("gemm_a8wfp4", config=config)
    if x_scales.dtype is not torch.float32 or x_scales.numel() != len(x):
        expected = f"float32 [{len(x)}, 1]"
        Guard("gemm_a8wfp4").fail("x_scales", expected, describe(x_scales), "scale rows of x")
    ones = torch.full((len(x), x.shape[1] // MX_BLOCK), _ONE, dtype=torch.uint8, device=x.device)
    product = _gemm_a8wfp4(x, w, ones.view(E8M0), w_scales, torch.float32)
    return y.copy_(product * x_scales.view(-1, 1))


def gemm_afp4wfp4_pre_quant(
    x: Tensor,
    w: Tensor,
    w_scales: Tensor,
    dtype: torch.dtype | None = _BF16,
    y: Tensor | None = None,
    config: _Config = None,
) -> Tensor:
    """compat.gemm_a16wfp4 by its former name."""
    return compat.gemm_a16wfp4(x, w, w_scales, False, dtype, y, config)


def gemm_a8w8_blockscale_preshuffle(
    x: Tensor,
    w: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    dtype: torch.dtype | None = _BF16,
    y: Tensor | None = None,
    config: _Config = None,
    skip_reduce: bool | None = False,
    is_x_scale_tranposed: bool | None = True,
    kernel_type: str = "bandwidth_bound",
    backend: str | None = None,
) -> Tensor:
    """aiter.ops.triton's, for w [N/16, 16 K] in shuffle_weight's layout. x_scale is [M, K/128], in
    name only where is_x_scale_tranposed: memory that holds its transpose."""
    _refuse("gemm_a8w8_blockscale_preshuffle", config=config, skip_reduce=skip_reduce)
    weight = w.view(w.shape[0] * 16, -1)
    out_dtype = y.dtype if y is not None else dtype or _BF16
    if is_x_scale_tranposed:
        scales = x_scale, w_scale
        return compat.gemm_a8w8_blockscale_bpreshuffle(x, weight, *scales, out_dtype, y)
    return gemm_a8w8_blockscale(x, Shuffled(weight, WEIGHT), x_scale, w_scale, out_dtype, y)


def fused_gemm_afp4wfp4_split_cat(
    x: Tensor,
    w: Tensor,
    y: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    S1: int,
    S2: int,
    dtype: torch.dtype | None = _BF16,
    config: _Config = None,
) -> tuple[Tensor, Tensor]:
    """Return two parts of c [M, D, S1 + S2] = x times w^T in MXFP4: its first S1 columns followed
    by y [M, D, S3], and its last S2 columns."""
    product = compat.gemm_afp4wfp4(x, w, x_scale, w_scale, dtype, None, config)
    c_head, c_tail = product.view(*y.shape[:2], S1 + S2).split((S1, S2), -1)
    joined = torch.cat((c_head, y.to(c_head.dtype)), -1)
    return joined, c_tail.contiguous()
