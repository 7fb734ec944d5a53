"""vLLM 0.33's call sites: its own functions, called with tensors as its layers have them.

Importing it declares the cases of all vllm_* modules.
"""

from __future__ import annotations

from . import rows, vllm_attention, vllm_experts, vllm_linear, vllm_routing
from .engine_code import World
from .vllm_common import ops, prepare, vllm

__all__ = ["prepare", "rows", "vllm_attention", "vllm_experts", "vllm_linear", "vllm_routing"]


@vllm()
def signatures(world: World) -> None:
    """A wrapper has its callee's parameters, by which vLLM decides what it passes."""
    module, served_ops = world.load("vllm._aiter_ops"), ops(world)
    world.covers("_check_aiter_mla_fp8_support", "mla_decode_fwd")
    assert module._check_aiter_mla_fp8_support()
    for name, target in (
        ("fused_moe_supports_gate_mode", "fused_moe"),
        ("fused_moe_supports_quant_dtype_a", "fused_moe"),
        ("mla_decode_supports_non_causal", "mla_decode_fwd"),
        ("topk_softmax_supports_fused_sigmoid", "topk_softmax"),
    ):
        world.covers(f"rocm_aiter_ops.{name}", target)
        assert getattr(served_ops, name)(), name
