"""The functions of other libraries that rfops may stand for, by name, and which of them a user
wants. Importing this needs neither torch nor the libraries: `rfops doctor` asks it.

callees.py has what is known of each; tests hold the two together.
"""

from __future__ import annotations

import importlib.util
import sys

from rfops.jit import ConfigError, settings

_TRITON = "aiter.ops.triton"
# The group of each target, a word of RFOPS_PLUGIN.
AITER = {
    "aiter.mla.mla_decode_fwd": "mla",
    "aiter.fused_moe.fused_moe": "moe",
    "aiter.topk_softmax": "topk",
    "aiter.ops.topk.topk_gating": "topk",
    "aiter.fused_moe.fused_topk": "topk",
    "aiter.biased_grouped_topk": "topk",
    "aiter.grouped_topk": "topk",
    "aiter.gemm_a8w8_blockscale": "fp8",
    "aiter.gemm_a8w8_blockscale_bpreshuffle": "fp8",
    f"{_TRITON}.gemm_a8w8_blockscale.gemm_a8w8_blockscale": "fp8",
    "aiter.get_hip_quant": "fp8",
    "aiter.gemm_a4w4": "mxfp4",
    f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4": "mxfp4",
    f"{_TRITON}.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle": "mxfp4",
    f"{_TRITON}.quant.dynamic_mxfp4_quant": "mxfp4",
    "aiter.rms_norm": "rows",
    "aiter.rmsnorm2d_fwd": "rows",
    f"{_TRITON}.fused_fp8_quant.fused_rms_fp8_group_quant": "rows",
    "aiter.silu_and_mul": "rows",
    f"{_TRITON}.fusions.fused_clamp_act_mul.fused_clamp_act_mul": "rows",
    "aiter.ops.quant.dynamic_per_token_scaled_quant": "rows",
    "aiter.ops.quant.dynamic_per_tensor_quant": "rows",
    "aiter.ops.quant.static_per_tensor_quant": "rows",
    "aiter.per_token_quant_hip": "rows",
}
VLLM = {
    "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd": "mla",
    "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size": "moe",
}
VLLM_BACKEND = "RFOPS_MLA"  # of vLLM without aiter
GROUP_OF = AITER | VLLM
GROUPS = tuple(dict.fromkeys(GROUP_OF.values()))


def selected_groups() -> tuple[str, ...]:
    """Return the groups of RFOPS_PLUGIN: all if it is empty, none if it is off.

    Raises ConfigError for a word that is no group.
    """
    text = settings.text("RFOPS_PLUGIN")
    if text == "off":
        return ()
    names = [name_.strip() for name_ in text.split(",") if name_.strip()]
    for name_ in names:
        if name_ not in GROUPS:
            raise ConfigError(f"RFOPS_PLUGIN={text}: expected off, or some of {','.join(GROUPS)}")
    return tuple(names) or GROUPS


def is_there(package: str) -> bool:
    """Whether it can be imported; a module that a test or a shim made has no spec."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
