"""rms_norm_quant: rms_norm, and its result quantised along rows (rfops/quantization/rows.py).

y of rms_norm, rounded to x's dtype, is quantised, so results are those of the quantiser on
rms_norm's result, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.kernel import Call
from rfops.dispatch.problem import InputGenerator
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.rows import (
    WORDS,
    RowQuantOp,
    fit_scale,
    payload_dtype,
    quantise_rows,
    quantised,
    row_refusal,
)

from .rms_norm import EPS, SHAPES, Hip, Torch, fit_residual, rms_norm_ref

__all__ = ["rms_norm_quant", "rms_norm_quant_ref"]


def rms_norm_quant_ref(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None,
    static_scale: torch.Tensor | None,
    eps: float,
    quant: str,
    transpose_scale: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y of rms_norm_ref, of x [M, K] bfloat16, float16 or float32, rounded to x's dtype and
    quantised in plain torch: payload and scale as rms_norm_quant returns them.

    Raises nothing of its own: torch's errors for what does not fit.

    Source: rms_norm_ref, and the quantiser's own page (rfops/quantization/rows.py).
    """
    y = rms_norm_ref(x, weight, residual, eps).to(x.dtype)
    return quantise_rows(y, quant, static_scale, transpose_scale, dtype)


class _RmsNormQuant(RowQuantOp):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        return row_refusal(c) or super().unsupported_reason(c, *sizes)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        return {**fit_residual(c, draw), **fit_scale(c)}


OP = _RmsNormQuant(
    "rms_norm_quant",
    f"""
    x: bf16|f16|f32[M, K] strided
    weight: bf16|f16|f32[K]
    residual: bf16|f16|f32[M, K]? inout
    static_scale: f32[1]?
    eps: float
    quant: {WORDS}
    transpose_scale: bool
    dtype: e4m3|e4m3fnuz|fp4
    -> payload: dtype[M, columns]
    -> scale: f32|e8m0[scale_rows, scale_columns]
    """,
    kernels=(Hip(), Torch()),
    max_bytes=None,
    positive="K",
    usual={"eps": EPS},
    hints={"x": "convert it first"},
    reference=rms_norm_quant_ref,
    shapes={"models": [shape for shape in SHAPES if shape["K"] % BLOCK == 0]},
)


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    eps: float = EPS,
    quant: str = "fp8_group",
    static_scale: torch.Tensor | None = None,
    transpose_scale: bool = False,
    dtype: torch.dtype | None = None,
    payload: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm, and its result quantised along rows.

    Parameters
    ----------
    x : [M, K] bfloat16, float16 or float32; strided rows.
    weight : [K] of one of these dtypes.
    residual : [M, K] of x's dtype, contiguous: x is added to it, in place.
    eps : added to the mean of squares.
    quant : fp8_group, fp8_token, fp8_tensor, mxfp4 or mxfp8 (rfops/quantization/rows.py).
    static_scale : [1] float32, of fp8_tensor alone: what payloads are to be multiplied by.
    transpose_scale : the memory of fp8_group's scale is column-major.
    dtype : the payload's; None: of FP8 what the device's matrix cores multiply.
    payload : as returned, of dtype: written and returned.
    scale : float32 or e8m0 as it lies in memory, written and returned.

    Returns
    -------
    payload : [M, K] of dtype, or [M, K/2] bytes of two e2m1.
    scale : [M, K/128] or [M, 1] float32, [M, K/32] e8m0, or static_scale.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: rms_norm's, and those of quant_fp8_blockscale, quant_mxfp4 and quant_mxfp8.
    """
    dtype = payload_dtype(quant, x) if dtype is None else dtype
    call = OP.traced if is_dynamo_compiling() else OP.call
    result, result_scale = call(
        x, weight, residual, static_scale, eps, quant, transpose_scale, dtype, payload, scale
    )
    return quantised(result, result_scale, static_scale, transpose_scale)
