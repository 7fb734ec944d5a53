"""aiter's products of two kinds of operands, of 16 bits by gemm_a16w16, of FP8 with a scale per row
of each operand by gemm_a8w8_blockscale, whose blocks of K share their row's scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.layout import Shuffled
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale
from rfops.jit.errors import show
from rfops.quantization.shuffle import WEIGHT, unshuffle_weight

from .gemm16 import gemm_a16w16

BLOCK = 128
_BF16 = torch.bfloat16


def _refuse(name: str, **values: Any) -> None:
    """Raise ValueError for an argument that is a tensor, or neither None, False nor 0."""
    for argument, value in values.items():
        if value is not None and (isinstance(value, Tensor) or value):
            value_text = describe(value) if isinstance(value, Tensor) else show(value)
            Guard(name).fail(argument, "None", value_text, "call the original")


# ---------------------------------------------------------------- 16 bits


def triton_gemm(
    inp: Tensor,
    weights: Tensor,
    solidx: int,
    bias: Tensor | None = None,
    otype: torch.dtype | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_c: Tensor | None = None,
    bpreshuffle: bool | None = False,
    config: dict[str, Any] | None = None,
) -> Tensor:
    """aiter.tuned_gemm's of that name: the same for plain weights; solidx only tunes."""
    _refuse("triton_gemm", bpreshuffle=bpreshuffle)
    return gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


def wvSpltK(in_a: Tensor, in_b: Tensor, out_c: Tensor, N_in: int, CuCount: int) -> None:
    """out_c [N_in, M] = in_b [N_in, K] times in_a [M, K]^T."""
    out_c.copy_(gemm_a16w16(in_b[:N_in], in_a))


def hipb_create_extension() -> None:
    """Nothing: torch has its own handle of hipBLASLt."""


def hipb_mm(
    mat1: Tensor,
    mat2: Tensor,
    solution_index: int,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    scaleA: Tensor | None = None,
    scaleB: Tensor | None = None,
    scaleOut: Tensor | None = None,
    bpreshuffle: bool | None = None,
    use_gelu: bool | None = None,
) -> Tensor:
    """mat1 [M, K] times mat2 [K, N] plus bias: 16 bits by torch, FP8 with scaleA per row or one,
    scaleB per column or one; the transpose of mat2 as shuffle_weight left it with bpreshuffle."""
    _refuse("hipb_mm", scaleOut=scaleOut, use_gelu=use_gelu)
    dtype = out_dtype or mat1.dtype
    if mat1.itemsize == 1:
        one = torch.ones(1, device=mat1.device)
        x_factors, w_factors = (one if scale is None else scale for scale in (scaleA, scaleB))
        return _by_rows(
            "hipb_mm", mat1, mat2.T, x_factors, w_factors, bias, dtype, bool(bpreshuffle)
        )
    w = unshuffle_weight(mat2.T) if bpreshuffle else mat2.T
    return gemm_a16w16(mat1, w, bias, dtype)


def moe_sum(input: Tensor, output: Tensor) -> None:
    """output [M, D] = the sum of input [M, top_k, D] over its experts, by torch."""
    torch.sum(input, 1, out=output)


# ---------------------------------------------------------------- FP8 with scales of rows


def gemm_a8w8(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = _BF16,
    splitK: int | None = None,
) -> Tensor:
    """XQ [M, K] times WQ [N, K]^T, FP8 or int8 (by torch, in fp32), with fp32 scales of M rows and
    of N rows, or one; plus bias [N]. splitK only tunes. K of FP8 is a multiple of 128."""
    return _by_rows("gemm_a8w8", XQ, WQ, x_scale, w_scale, bias, dtype, False)


def gemm_a8w8_bpreshuffle(
    XQ: Tensor,
    WQ: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = _BF16,
    check: bool = False,
) -> Tensor:
    """The same for WQ as shuffle_weight left it, whose rows may be padded beyond K."""
    w = WQ
    if WQ.shape[-1] > XQ.shape[-1]:
        w = unshuffle_weight(WQ)[:, : XQ.shape[-1]]
        return _by_rows("gemm_a8w8_bpreshuffle", XQ, w, x_scale, w_scale, bias, dtype, False)
    return _by_rows("gemm_a8w8_bpreshuffle", XQ, w, x_scale, w_scale, bias, dtype, True)


def _by_rows(
    name: str,
    x: Tensor,
    w: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    is_shuffled: bool,
) -> Tensor:
    """Return x [M, K] times w [N, K]^T times the scales of their rows, each M or N of them or one,
    plus bias [N], rounded once to `dtype`. int8 is multiplied in fp32 by torch, FP8 by rfops.
    Raises ValueError for another number of scales."""
    (m, k), n = x.shape, w.shape[0]
    rows, columns = x_scale.reshape(-1, 1), w_scale.reshape(1, -1)
    if rows.shape[0] not in (1, m) or columns.shape[1] not in (1, n):
        scales_text = f"{describe(x_scale)} and {describe(w_scale)}"
        Guard(name).fail(
            "x_scale and w_scale", f"of {m} or 1 and {n} or 1", scales_text, "pass rows'"
        )
    if x.dtype is torch.int8:
        plain = unshuffle_weight(w) if is_shuffled else w
        product = (x.float() @ plain.float().T) * rows
    else:
        weight = Shuffled(w, WEIGHT) if is_shuffled else w
        blocks = max(k // BLOCK, 1)
        ones = torch.ones(1, 1, device=x.device).expand(-(-n // BLOCK), blocks)
        by_block = rows.expand(m, blocks).contiguous()
        product = gemm_a8w8_blockscale(x, weight, by_block, ones, torch.float32)
    product *= columns
    return (product if bias is None else product + bias).to(dtype)
