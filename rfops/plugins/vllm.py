"""vLLM's plugin, `vllm.general_plugins: rfops = rfops.plugins.vllm:register`.

With aiter, its functions and vLLM's own Triton ones are wrapped as soon as their modules are
imported: vLLM takes each callee inside the call. Without, there are an attention backend,
`--attention-backend RFOPS_MLA`, and experts without quantisation out of tree.
"""

from __future__ import annotations

from typing import Any

from rfops.later import when_imported

from . import around, targets
from .callees import AITER, VLLM
from .layouts import SHUFFLE


def register() -> None:
    """Wrap what RFOPS_PLUGIN names; in every process, any number of times. On a torch that is not
    ROCm's nothing is done. Raises ConfigError."""
    groups = targets.selected_groups()
    if not groups or not is_rocm():
        return
    has_aiter = targets.is_there("aiter")
    for callee in (*AITER, *VLLM, SHUFFLE) if has_aiter else VLLM:
        if callee.group in groups:
            around.wrap_when_imported(callee)
    if not has_aiter and "mla" in groups:
        when_imported("vllm.v1.attention.backends.registry", _add_backend)
    if not has_aiter and "moe" in groups:
        name = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
        when_imported(name, _add_experts)
    around.tell_at_exit()


def is_rocm() -> bool:
    import torch

    return torch.version.hip is not None


def _add_backend(registry: Any) -> None:
    if targets.VLLM_BACKEND not in registry.AttentionBackendEnum.__members__:
        registry.register_backend(targets.VLLM_BACKEND, "rfops.plugins.vllm_mla.RfopsMLABackend")


def _add_experts(module: Any) -> None:
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot

    from .vllm_moe import method_over

    name = "UnquantizedFusedMoEMethod"
    if name not in op_registry_oot:
        CustomOp.register_oot(name=name)(method_over(module.UnquantizedFusedMoEMethod))
