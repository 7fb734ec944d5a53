"""The public names of rfops: each module's `__all__`. Written by `rfops new --names`.

A module is imported when the first of its names is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops import vgpu
    from rfops.attention.mla_decode import mla_decode, mla_decode_ref
    from rfops.attention.mla_layer_decode import mla_layer_decode, mla_layer_decode_ref, rope_angles
    from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale, gemm_a8w8_blockscale_ref
    from rfops.gemm.a8wfp4 import gemm_a8wfp4, gemm_a8wfp4_ref
    from rfops.gemm.a16w8_blockscale import (
        batched_gemm_a16w8_blockscale,
        batched_gemm_a16w8_blockscale_ref,
    )
    from rfops.gemm.a16wfp4 import gemm_a16wfp4, gemm_a16wfp4_ref
    from rfops.gemm.afp4wfp4 import gemm_afp4wfp4, gemm_afp4wfp4_ref
    from rfops.gemm.mxfp8 import gemm_mxfp8, gemm_mxfp8_ref
    from rfops.moe.align_block_size import moe_align_block_size
    from rfops.moe.fused_moe import fused_moe, fused_moe_ref, moe_layer
    from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8, grouped_gemm_mxfp8_ref
    from rfops.moe.grouped_topk import grouped_topk, grouped_topk_ref
    from rfops.moe.router import moe_router, moe_router_ref
    from rfops.moe.topk_softmax import topk_softmax, topk_softmax_ref
    from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
    from rfops.quantization.mxfp4 import quant_mxfp4
    from rfops.quantization.mxfp8 import quant_mxfp8
    from rfops.quantization.shuffle import (
        shuffle_scale,
        shuffle_weight,
        unshuffle_scale,
        unshuffle_weight,
    )

MODULES: dict[str, tuple[str, ...]] = {
    "vgpu": (),
    "attention.mla_decode": ("mla_decode", "mla_decode_ref"),
    "attention.mla_layer_decode": ("mla_layer_decode", "mla_layer_decode_ref", "rope_angles"),
    "gemm.a8w8_blockscale": ("gemm_a8w8_blockscale", "gemm_a8w8_blockscale_ref"),
    "gemm.a8wfp4": ("gemm_a8wfp4", "gemm_a8wfp4_ref"),
    "gemm.a16w8_blockscale": ("batched_gemm_a16w8_blockscale", "batched_gemm_a16w8_blockscale_ref"),
    "gemm.a16wfp4": ("gemm_a16wfp4", "gemm_a16wfp4_ref"),
    "gemm.afp4wfp4": ("gemm_afp4wfp4", "gemm_afp4wfp4_ref"),
    "gemm.mxfp8": ("gemm_mxfp8", "gemm_mxfp8_ref"),
    "moe.align_block_size": ("moe_align_block_size",),
    "moe.fused_moe": ("fused_moe", "fused_moe_ref", "moe_layer"),
    "moe.grouped_gemm_mxfp8": ("grouped_gemm_mxfp8", "grouped_gemm_mxfp8_ref"),
    "moe.grouped_topk": ("grouped_topk", "grouped_topk_ref"),
    "moe.router": ("moe_router", "moe_router_ref"),
    "moe.topk_softmax": ("topk_softmax", "topk_softmax_ref"),
    "quantization.fp8_blockscale": ("quant_fp8_blockscale",),
    "quantization.mxfp4": ("quant_mxfp4",),
    "quantization.mxfp8": ("quant_mxfp8",),
    "quantization.shuffle": (
        "shuffle_scale",
        "shuffle_weight",
        "unshuffle_scale",
        "unshuffle_weight",
    ),
}

__all__ = [
    "batched_gemm_a16w8_blockscale",
    "batched_gemm_a16w8_blockscale_ref",
    "fused_moe",
    "fused_moe_ref",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_ref",
    "gemm_a8wfp4",
    "gemm_a8wfp4_ref",
    "gemm_a16wfp4",
    "gemm_a16wfp4_ref",
    "gemm_afp4wfp4",
    "gemm_afp4wfp4_ref",
    "gemm_mxfp8",
    "gemm_mxfp8_ref",
    "grouped_gemm_mxfp8",
    "grouped_gemm_mxfp8_ref",
    "grouped_topk",
    "grouped_topk_ref",
    "mla_decode",
    "mla_decode_ref",
    "mla_layer_decode",
    "mla_layer_decode_ref",
    "moe_align_block_size",
    "moe_layer",
    "moe_router",
    "moe_router_ref",
    "quant_fp8_blockscale",
    "quant_mxfp4",
    "quant_mxfp8",
    "rope_angles",
    "shuffle_scale",
    "shuffle_weight",
    "topk_softmax",
    "topk_softmax_ref",
    "unshuffle_scale",
    "unshuffle_weight",
    "vgpu",
]
