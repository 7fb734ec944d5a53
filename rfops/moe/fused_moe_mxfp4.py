"""fused_moe with quant="mxfp4": weights in MXFP4, x and h quantised too (fused_moe_mx.py).

| kernel | what it takes |
|---|---|
| hip (kernels/mx/hip.py) | gfx950: up to 512 experts, weights raw or shuffled |
| triton (kernels/mx/triton.py) | every architecture that Triton knows, weights widened to bf16 |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.problem import grid

from .fused_moe_mx import MXFP4, MxMoe, Torch, arguments
from .kernels.mx.hip import HipMxMoe
from .kernels.mx.triton import TritonMxMoe

# (D, I, E, K, R) of the challenge of 2026: one expert is everybody's. Its weights are shuffled.
CHALLENGE = [(7168, 256, 257, 8, 256), (7168, 512, 33, 8, 32)]
SHUFFLED = {"w_layout": ("16x16",), "scale_layout": ("32x8",)}

OP = MxMoe(
    "fused_moe_mxfp4",
    MXFP4,
    table="M+ D I E K",
    kernels=(HipMxMoe(MXFP4), TritonMxMoe(MXFP4), Torch(MXFP4)),
    shapes={
        "published": [
            *grid("D I E K R", CHALLENGE, M=(16, 128, 512), **SHUFFLED),
            *grid("D I E K R", [(7168, 2048, 33, 8, 32)], M=(512,), **SHUFFLED),
        ],
    },
)


def call(x: Tensor, *weights: Any) -> Tensor:
    """Call the op with the arguments of fused_moe: w1, w2, scales, choice, num_shared, how,
    rounding, out, config."""
    *given, out, config = weights
    args = arguments(OP, x, *given)
    run = OP.traced if is_dynamo_compiling() else OP.call
    made: Tensor = run(*args, out, config)
    return made
