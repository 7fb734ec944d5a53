"""fused_moe with quant="mxfp4": weights in MXFP4, x and h quantised too (fused_moe_mx.py).

| kernel | what it takes |
|---|---|
| hip (kernels/mx/hip.py) | gfx950: up to 512 experts, weights raw or shuffled |
| triton (kernels/mx/triton.py) | every architecture that Triton knows, weights widened to bf16 |
| torch | whatever is left, expert by expert |
"""

from __future__ import annotations

from rfops.dispatch.problem import grid

from .fused_moe_mx import MXFP4, MxMoe
from .kernels.mx.op import kernels_of
from .mx_terms import MxExpertsModel

# (D, I, E, K, R) of the challenge of 2026: one expert is everybody's. Its weights are shuffled.
CHALLENGE = [(7168, 256, 257, 8, 256), (7168, 512, 33, 8, 32)]
SHUFFLED = {"w_layout": ("16x16",), "scale_layout": ("32x8",)}


class _Model(MxExpertsModel):
    bits = 4


OP = MxMoe(
    "fused_moe_mxfp4",
    MXFP4,
    kernels=kernels_of(MXFP4),
    time_model=_Model,
    shapes={
        "published": [
            *grid("D I E K R", CHALLENGE, M=(16, 128, 512), **SHUFFLED),
            *grid("D I E K R", [(7168, 2048, 33, 8, 32)], M=(512,), **SHUFFLED),
        ],
    },
)


call = OP.call_experts
