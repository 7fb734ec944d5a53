"""fused_moe with quant="mxfp8": weights in MX-FP8, x and h quantised too (fused_moe_mx.py).

| kernel | what it takes |
|---|---|
| hip (kernels/mx/hip.py) | gfx950: up to 512 experts, weights raw or shuffled |
| triton (kernels/mx/triton.py) | every architecture that Triton knows, weights widened to bf16 |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

from rfops.dispatch.problem import grid

from .fused_moe_mx import MXFP8, MxMoe
from .kernels.mx.op import kernels_of
from .mx_terms import MxExpertsModel

# (D, I, E, K, R) of MiniMax-M3 class models over 4 and 8 GPUs, one expert everybody's; weights are
# shuffled. (Scales are not where I is no multiple of 256.)
MINIMAX = (6144, 768, 129, 4, 128), (6144, 384, 129, 4, 128)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512)


class _Model(MxExpertsModel):
    bits = 8


OP = MxMoe(
    "fused_moe_mxfp8",
    MXFP8,
    kernels=kernels_of(MXFP8),
    time_model=_Model,
    shapes={
        "published": [
            *grid("D I E K R", MINIMAX[:1], M=TOKENS, w_layout=("16x16",), scale_layout=("32x8",)),
            *grid("D I E K R", MINIMAX[1:], M=TOKENS, w_layout=("16x16",)),
        ],
    },
)


call = OP.call_experts
