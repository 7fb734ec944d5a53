"""act_mul_quant: act_mul, and its result quantised along rows (rfops/quantization/rows.py), with
the bits of the quantiser on act_mul's result."""

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
)

from . import act_mul as plain
from .act_mul import ALPHA, BETA, LIMIT, SHAPES, USUAL, Hip, Torch, act_mul_ref

__all__ = ["act_mul_quant", "act_mul_quant_ref"]


def act_mul_quant_ref(
    x: torch.Tensor,
    static_scale: torch.Tensor | None,
    activation: str,
    interleaved: bool,
    alpha: float,
    limit: float,
    beta: float,
    quant: str,
    transpose_scale: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """act_mul_ref of x [M, 2 K] bfloat16, float16 or float32, rounded to x's dtype and quantised in
    plain torch: payload and scale as act_mul_quant returns them.

    Raises nothing of its own: torch's errors for what does not fit.

    Source: act_mul_ref, and the quantiser's own page (rfops/quantization/rows.py).
    """
    y = act_mul_ref(x, activation, interleaved, alpha, limit, beta).to(x.dtype)
    return quantise_rows(y, quant, static_scale, transpose_scale, dtype)


class _ActMulQuant(RowQuantOp):
    def row_size(self, columns: int) -> int:
        return columns // 2

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        if sizes[-1] % 2:
            return "N", "a multiple of 2", f"N={sizes[-1]}", self.hints["N"]
        return super().unsupported_reason(c, *sizes)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        return fit_scale(c)


OP = _ActMulQuant(
    "act_mul_quant",
    f"""
    x: bf16|f16|f32[M, N] strided
    static_scale: f32[1]?
    activation: {plain.WORDS}
    interleaved: bool
    alpha: float
    limit: float
    beta: float
    quant: {WORDS}
    transpose_scale: bool
    dtype: e4m3|e4m3fnuz|fp4
    -> payload: dtype[M, columns]
    -> scale: f32|e8m0[scale_rows, scale_columns]
    """,
    kernels=(Hip(), Torch()),
    max_bytes=None,
    positive="N",
    usual=USUAL,
    hints={"x": "convert it first", "N": "pass gate and up of one size"},
    reference=act_mul_quant_ref,
    shapes={"models": [shape for shape in SHAPES if shape["N"] % (2 * BLOCK) == 0]},
)


def act_mul_quant(
    x: torch.Tensor,
    activation: str,
    quant: str = "fp8_group",
    static_scale: torch.Tensor | None = None,
    interleaved: bool = False,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    beta: float = BETA,
    transpose_scale: bool = False,
    dtype: torch.dtype | None = None,
    payload: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """act_mul, and its result quantised along rows.

    Parameters
    ----------
    x : [M, 2 K] bfloat16, float16 or float32: gate, then up; or pairs of them.
    activation, interleaved, alpha, limit, beta : as of act_mul.
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

    Source: act_mul's, and those of quant_fp8_blockscale, quant_mxfp4 and quant_mxfp8.
    """
    dtype = payload_dtype(quant, x) if dtype is None else dtype
    call = OP.traced if is_dynamo_compiling() else OP.call
    values = static_scale, activation, interleaved, alpha, limit, beta
    result, result_scale = call(x, *values, quant, transpose_scale, dtype, payload, scale)
    return quantised(result, result_scale, static_scale, transpose_scale)
