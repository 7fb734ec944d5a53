"""vLLM's plugin, `vllm.general_plugins: rfops = rfops.plugins.vllm:register`.

With aiter, its functions and vLLM's own Triton ones are wrapped as soon as their modules are
imported: vLLM takes each callee inside the call. Without, there are an attention backend,
`--attention-backend RFOPS_MLA`, experts in bf16, FP8 with scales of 128 x 128 and MXFP4 of Quark
and GPT-OSS, and linear layers in that FP8.
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
    for group, module, hook in () if has_aiter else _HOOKS:
        if group in groups:
            when_imported(module, hook)
    around.tell_at_exit()


def is_rocm() -> bool:
    """Return whether torch is a build for ROCm."""
    import torch

    return torch.version.hip is not None


def backend() -> Any:
    """Return the member RFOPS_MLA of vLLM's backends, in a process that may not have it yet."""
    from vllm.v1.attention.backends import registry

    _add_backend(registry)
    return registry.AttentionBackendEnum[targets.VLLM_BACKEND]


def _add_backend(registry: Any) -> None:
    if targets.VLLM_BACKEND not in registry.AttentionBackendEnum.__members__:
        registry.register_backend(targets.VLLM_BACKEND, "rfops.plugins.vllm_mla.RfopsMLABackend")
        # An engine's process unpickles its config before it loads plugins.
        member = registry.AttentionBackendEnum[targets.VLLM_BACKEND]
        member.__reduce_ex__ = lambda _protocol: (backend, ())


def _add_fp8_linear(module: Any) -> None:
    from .vllm_fp8 import wrap

    wrap(module)


def _add_fp8_experts(module: Any) -> None:
    from .vllm_moe import wrap_fp8

    wrap_fp8(module)


def _add_mxfp4_experts(module: Any) -> None:
    from .vllm_moe import wrap_mxfp4

    wrap_mxfp4(module)


def _add_gpt_oss_experts(module: Any) -> None:
    from . import vllm_gpt_oss
    from .vllm_moe import wrap_gpt_oss

    wrap_gpt_oss(module)
    vllm_gpt_oss.wrap(module)


def _add_experts(module: Any) -> None:
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot

    from .vllm_moe import method_over

    name = "UnquantizedFusedMoEMethod"
    if name not in op_registry_oot:
        CustomOp.register_oot(name=name)(method_over(module.UnquantizedFusedMoEMethod))


_LAYERS = "vllm.model_executor.layers"
# Without aiter: the word of RFOPS_PLUGIN, the module of vLLM, and what is put there.
_HOOKS = (
    ("mla", "vllm.v1.attention.backends.registry", _add_backend),
    ("moe", f"{_LAYERS}.fused_moe.unquantized_fused_moe_method", _add_experts),
    ("moe", f"{_LAYERS}.quantization.fp8", _add_fp8_experts),
    ("moe", f"{_LAYERS}.quantization.quark.quark_moe", _add_mxfp4_experts),
    ("moe", f"{_LAYERS}.quantization.mxfp4", _add_gpt_oss_experts),
    ("fp8", "vllm.model_executor.kernels.linear.scaled_mm.triton", _add_fp8_linear),
)
