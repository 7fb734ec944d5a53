"""The public names of rfops: each module's `__all__`. Written by `rfops new --names`.

A module is imported when the first of its names is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops import vgpu
    from rfops.attention.kv_cache_write import kv_cache_write, kv_cache_write_ref
    from rfops.attention.mla_absorb_cache_write import (
        mla_absorb_cache_write,
        mla_absorb_cache_write_ref,
    )
    from rfops.attention.mla_cache_write import (
        mla_cache_write,
        mla_cache_write_ref,
        mla_rope_cache_write,
        mla_rope_cache_write_ref,
        mla_rope_concat_cache_write,
        mla_rope_concat_cache_write_ref,
    )
    from rfops.attention.mla_decode import mla_decode, mla_decode_ref
    from rfops.attention.mla_layer_decode import mla_layer_decode, mla_layer_decode_ref, rope_angles
    from rfops.attention.mla_layer_decode_fp8 import mla_layer_decode_fp8, mla_layer_decode_fp8_ref
    from rfops.attention.rope import rope, rope_ref
    from rfops.attention.rotary import rope_cos_sin
    from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale, gemm_a8w8_blockscale_ref
    from rfops.gemm.a8wfp4 import gemm_a8wfp4, gemm_a8wfp4_ref
    from rfops.gemm.a16w8_blockscale import (
        batched_gemm_a16w8_blockscale,
        batched_gemm_a16w8_blockscale_ref,
    )
    from rfops.gemm.a16w16 import gemm_a16w16, gemm_a16w16_ref
    from rfops.gemm.a16wfp4 import gemm_a16wfp4, gemm_a16wfp4_ref
    from rfops.gemm.afp4wfp4 import gemm_afp4wfp4, gemm_afp4wfp4_ref
    from rfops.gemm.batched_a16w16 import batched_gemm_a16w16, batched_gemm_a16w16_ref
    from rfops.gemm.linear_fp8 import linear_fp8_blockscale, linear_fp8_blockscale_ref
    from rfops.gemm.mxfp8 import gemm_mxfp8, gemm_mxfp8_ref
    from rfops.moe.align_block_size import moe_align_block_size
    from rfops.moe.fused_moe import fused_moe, fused_moe_ref, moe_layer
    from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8, grouped_gemm_mxfp8_ref
    from rfops.moe.grouped_topk import grouped_topk, grouped_topk_ref
    from rfops.moe.router import moe_router, moe_router_ref
    from rfops.moe.topk_align import moe_topk_align, moe_topk_align_ref
    from rfops.moe.topk_softmax import topk_softmax, topk_softmax_ref
    from rfops.quantization.fp8 import quant_fp8, quant_fp8_ref
    from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
    from rfops.quantization.mxfp4 import quant_mxfp4
    from rfops.quantization.mxfp8 import quant_mxfp8
    from rfops.quantization.shuffle import (
        shuffle_scale,
        shuffle_weight,
        unshuffle_scale,
        unshuffle_weight,
    )
    from rfops.rowwise.act_mul import act_mul, act_mul_ref, gelu_mul, silu_mul, swiglu_mul
    from rfops.rowwise.act_mul_quant import act_mul_quant, act_mul_quant_ref
    from rfops.rowwise.rms_norm import rms_norm, rms_norm_ref
    from rfops.rowwise.rms_norm_quant import rms_norm_quant, rms_norm_quant_ref

MODULES: dict[str, tuple[str, ...]] = {
    "vgpu": (),
    "attention.kv_cache_write": ("kv_cache_write", "kv_cache_write_ref"),
    "attention.mla_absorb_cache_write": ("mla_absorb_cache_write", "mla_absorb_cache_write_ref"),
    "attention.mla_cache_write": (
        "mla_cache_write",
        "mla_cache_write_ref",
        "mla_rope_cache_write",
        "mla_rope_cache_write_ref",
        "mla_rope_concat_cache_write",
        "mla_rope_concat_cache_write_ref",
    ),
    "attention.mla_decode": ("mla_decode", "mla_decode_ref"),
    "attention.mla_layer_decode": ("mla_layer_decode", "mla_layer_decode_ref", "rope_angles"),
    "attention.mla_layer_decode_fp8": ("mla_layer_decode_fp8", "mla_layer_decode_fp8_ref"),
    "attention.rope": ("rope", "rope_ref"),
    "attention.rotary": ("rope_cos_sin",),
    "gemm.a8w8_blockscale": ("gemm_a8w8_blockscale", "gemm_a8w8_blockscale_ref"),
    "gemm.a8wfp4": ("gemm_a8wfp4", "gemm_a8wfp4_ref"),
    "gemm.a16w8_blockscale": ("batched_gemm_a16w8_blockscale", "batched_gemm_a16w8_blockscale_ref"),
    "gemm.a16w16": ("gemm_a16w16", "gemm_a16w16_ref"),
    "gemm.a16wfp4": ("gemm_a16wfp4", "gemm_a16wfp4_ref"),
    "gemm.afp4wfp4": ("gemm_afp4wfp4", "gemm_afp4wfp4_ref"),
    "gemm.batched_a16w16": ("batched_gemm_a16w16", "batched_gemm_a16w16_ref"),
    "gemm.linear_fp8": ("linear_fp8_blockscale", "linear_fp8_blockscale_ref"),
    "gemm.mxfp8": ("gemm_mxfp8", "gemm_mxfp8_ref"),
    "moe.align_block_size": ("moe_align_block_size",),
    "moe.fused_moe": ("fused_moe", "fused_moe_ref", "moe_layer"),
    "moe.grouped_gemm_mxfp8": ("grouped_gemm_mxfp8", "grouped_gemm_mxfp8_ref"),
    "moe.grouped_topk": ("grouped_topk", "grouped_topk_ref"),
    "moe.router": ("moe_router", "moe_router_ref"),
    "moe.topk_align": ("moe_topk_align", "moe_topk_align_ref"),
    "moe.topk_softmax": ("topk_softmax", "topk_softmax_ref"),
    "quantization.fp8": ("quant_fp8", "quant_fp8_ref"),
    "quantization.fp8_blockscale": ("quant_fp8_blockscale",),
    "quantization.mxfp4": ("quant_mxfp4",),
    "quantization.mxfp8": ("quant_mxfp8",),
    "quantization.shuffle": (
        "shuffle_scale",
        "shuffle_weight",
        "unshuffle_scale",
        "unshuffle_weight",
    ),
    "rowwise.act_mul": ("act_mul", "act_mul_ref", "gelu_mul", "silu_mul", "swiglu_mul"),
    "rowwise.act_mul_quant": ("act_mul_quant", "act_mul_quant_ref"),
    "rowwise.rms_norm": ("rms_norm", "rms_norm_ref"),
    "rowwise.rms_norm_quant": ("rms_norm_quant", "rms_norm_quant_ref"),
}

__all__ = [
    "act_mul",
    "act_mul_quant",
    "act_mul_quant_ref",
    "act_mul_ref",
    "batched_gemm_a16w8_blockscale",
    "batched_gemm_a16w8_blockscale_ref",
    "batched_gemm_a16w16",
    "batched_gemm_a16w16_ref",
    "fused_moe",
    "fused_moe_ref",
    "gelu_mul",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_ref",
    "gemm_a8wfp4",
    "gemm_a8wfp4_ref",
    "gemm_a16w16",
    "gemm_a16w16_ref",
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
    "kv_cache_write",
    "kv_cache_write_ref",
    "linear_fp8_blockscale",
    "linear_fp8_blockscale_ref",
    "mla_absorb_cache_write",
    "mla_absorb_cache_write_ref",
    "mla_cache_write",
    "mla_cache_write_ref",
    "mla_decode",
    "mla_decode_ref",
    "mla_layer_decode",
    "mla_layer_decode_fp8",
    "mla_layer_decode_fp8_ref",
    "mla_layer_decode_ref",
    "mla_rope_cache_write",
    "mla_rope_cache_write_ref",
    "mla_rope_concat_cache_write",
    "mla_rope_concat_cache_write_ref",
    "moe_align_block_size",
    "moe_layer",
    "moe_router",
    "moe_router_ref",
    "moe_topk_align",
    "moe_topk_align_ref",
    "quant_fp8",
    "quant_fp8_blockscale",
    "quant_fp8_ref",
    "quant_mxfp4",
    "quant_mxfp8",
    "rms_norm",
    "rms_norm_quant",
    "rms_norm_quant_ref",
    "rms_norm_ref",
    "rope",
    "rope_angles",
    "rope_cos_sin",
    "rope_ref",
    "shuffle_scale",
    "shuffle_weight",
    "silu_mul",
    "swiglu_mul",
    "topk_softmax",
    "topk_softmax_ref",
    "unshuffle_scale",
    "unshuffle_weight",
    "vgpu",
]
