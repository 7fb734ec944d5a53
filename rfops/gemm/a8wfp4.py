"""gemm_a8wfp4: y = x @ w^T with activations in OCP MX-FP8 and weights in MXFP4: the weights of
MXFP4 checkpoints where 4 bits of activations are too few.

| kernel | what it takes |
|---|---|
| stream (kernels/mxfp4/stream.py) | HIP on gfx950, M up to 64: w goes from memory to registers |
| tiles (kernels/mxfp4/tiles.py) | HIP on gfx950, any M: waves share x in LDS |
| triton (kernels/mxfp4/triton.py) | AMD's and NVIDIA's GPUs, any strides |
| torch | whatever is left |
"""

from __future__ import annotations

from typing import Any

import torch

from rfops.dispatch.layout import Shuffled

from . import mxfp4_op, mxfp4_shapes
from .kernels.mxfp4.stream import Stream
from .kernels.mxfp4.tiles import Tiles
from .kernels.mxfp4.triton import TritonGemm
from .mxfp4_op import Fp4Gemm, Torch

__all__ = ["gemm_a8wfp4", "gemm_a8wfp4_ref"]

OP = Fp4Gemm(
    "gemm_a8wfp4",
    "x: e4m3[M, K] strided" + mxfp4_op.SCALED,
    sizes="M N K XM XK SN SK",
    shapes=mxfp4_shapes.A8WFP4,
    kernels=(Stream(), Tiles(), TritonGemm(), Torch()),
    x_hint="quantise it with rfops.quant_mxfp8",
)


def gemm_a8wfp4(
    x: torch.Tensor,
    w: torch.Tensor | Shuffled,
    x_scale: torch.Tensor | Shuffled,
    w_scale: torch.Tensor | Shuffled,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    config: Any = None,
) -> torch.Tensor:
    """out[m, n] = bias[n]
        + sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m, k] * w[n, k].

    Parameters
    ----------
    x : [M, K] float8_e4m3fn, as rfops.quant_mxfp8 gives it; K a multiple of 32.
    w : [N, K/2], two e2m1 a byte, uint8 or float4_e2m1fn_x2; or what shuffle_weight made of it.
    x_scale, w_scale : [M, K/32] and [N, K/32] e8m0 (uint8 or float8_e8m0fnu), 255 is NaN; or what
        shuffle_scale made of them.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given.
    bias : [N] bfloat16, float16 or float32, added in fp32.
    config : takes that kernel in that variant, whatever the tuned table says.

    Devices, strides and order of sums are those of rfops.gemm_a16wfp4.

    Raises what rfops.gemm_a16wfp4 raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    scaled = x, w, x_scale, w_scale, bias
    return mxfp4_op.call_scaled(OP, *scaled, dtype, out, config)


gemm_a8wfp4.supports = OP.supports  # type: ignore[attr-defined]


OP.reference = gemm_a8wfp4_ref = mxfp4_op.scaled_reference
