"""gemm_a16wfp4: y = quant(x) @ w^T, x of 16 bits, which is quantised to MXFP4 on the way in, and
MXFP4 weights: the linear layer of MXFP4 checkpoints.

| kernel | what it takes |
|---|---|
| stream (kernels/mxfp4/stream.py) | HIP on gfx950, M up to 64: w goes from memory to registers |
| tiles (kernels/mxfp4/tiles.py) | HIP on gfx950, any M: waves share x in LDS |
| deep (kernels/mxfp4/deep.py) | HIP on gfx950, any M: K-steps of both operands are prefetched |
| loop (kernels/mxfp4/loop.py) | HIP on gfx950, any M: bound by the matrix cores |
| triton (kernels/mxfp4/triton.py) | AMD's and NVIDIA's GPUs, any strides |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.layout import Shuffled, unwrap
from rfops.quantization.mxfp4 import quant_mxfp4_ref

from . import mxfp4_op, mxfp4_shapes
from .kernels.mxfp4.deep import Deep
from .kernels.mxfp4.loop import Loop
from .kernels.mxfp4.stream import Stream
from .kernels.mxfp4.tiles import Tiles
from .kernels.mxfp4.triton import TritonGemm
from .mxfp4_op import RAW, Fp4Gemm, Torch

__all__ = ["gemm_a16wfp4", "gemm_a16wfp4_ref"]

OP = Fp4Gemm(
    "gemm_a16wfp4",
    """
    x: bf16|f16[M, K] strided
    w: fp4[N, K/2] strided
    w_scale: e8m0[SN, SK] strided
    bias: bf16|f16|f32[N]?
    dtype: bf16|f16|f32
    w_layout: raw|16x16
    w_scale_layout: raw|32x8
    rounding: even|up|down
    -> out: dtype[M, N]
    """,
    sizes="M N K SN SK",
    shapes=mxfp4_shapes.A16WFP4,
    kernels=(Stream(), Tiles(), Deep(), Loop(), TritonGemm(), Torch()),
    x_hint="convert it first",
)


def gemm_a16wfp4(
    x: torch.Tensor,
    w: torch.Tensor | Shuffled,
    w_scale: torch.Tensor | Shuffled,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    rounding: str = "even",
    bias: torch.Tensor | None = None,
    config: Any = None,
) -> torch.Tensor:
    """out[m, n] = bias[n] + sum_k xq[m, k] * wq[n, k], xq the values of quant_mxfp4(x, rounding),
    wq those of w and w_scale.

    Parameters
    ----------
    x : [M, K] bfloat16 or float16; K a multiple of 32.
    w : [N, K/2], two e2m1 a byte, uint8 or float4_e2m1fn_x2; or what shuffle_weight made of it.
    w_scale : [N, K/32] e8m0, uint8 or float8_e8m0fnu; or what shuffle_scale made of it.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given.
    rounding : of x's scales: even, up or down (rfops.quant_mxfp4).
    bias : [N] bfloat16, float16 or float32, added in fp32.
    config : takes that kernel in that variant, whatever the tuned table says.

    All tensors are on one device (a GPU, or the cpu: the virtual GPU). Plain tensors may have any
    strides; what HIP's kernels do not take goes to Triton or torch. Sums are fp32, in an order that
    the config fixes: deterministic. Raises ValueError for what does not fit, ConfigError for a
    tuned table that cannot be read, and what building a kernel raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    weight, layout = unwrap(w)
    scale, scale_layout = unwrap(w_scale)
    return call(x, weight, scale, bias, dtype, layout, scale_layout, rounding, out, config)


gemm_a16wfp4.supports = OP.supports  # type: ignore[attr-defined]


def gemm_a16wfp4_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    w_layout: str = RAW,
    w_scale_layout: str = RAW,
    rounding: str = "even",
) -> torch.Tensor:
    """The formula of `gemm_a16wfp4` in plain float64 torch, in which products are exact.

    Takes x [M, K], w, w_scale, bias and rounding as the op does, on any device; w_layout and
    w_scale_layout name the orders of plain tensors ("raw", "16x16", "32x8"). Returns [M, N] of any
    float dtype. Raises KeyError for another rounding, and torch's RuntimeError for sizes that do
    not fit each other.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0.
    """
    pair = quant_mxfp4_ref(x, rounding)
    return mxfp4_op.reference(*pair, w, w_scale, bias, dtype, RAW, w_layout, w_scale_layout)


OP.reference = gemm_a16wfp4_ref
