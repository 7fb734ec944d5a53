"""SGLang's plugin, `sglang.srt.plugins: rfops = rfops.plugins.sglang:register`: aiter's functions
through its registry of hooks, which also reaches copies that were imported before; and SGLang's own
FP8 linear layers of few rows and GPT-OSS's experts."""

from __future__ import annotations

from typing import Any

from rfops.later import when_imported

from . import around, targets
from .callees import AITER
from .layouts import SHUFFLE
from .vllm import is_rocm


def register() -> None:
    """Hook what RFOPS_PLUGIN names, where aiter is installed and torch is ROCm's; in every process,
    any number of times. Raises ConfigError."""
    groups = targets.selected_groups()
    if not groups or not is_rocm() or not targets.is_there("aiter"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for (
        aiter_callee
    ) in AITER:  # before the registry wraps rfops.compat's own, where aiter is rfops'
        aiter_callee.function = aiter_callee.drop_in
    for callee in (*AITER, SHUFFLE):
        if callee.group not in groups:
            continue
        hooks = [hook for _, hook, _ in HookRegistry._hooks.get(callee.target, ())]
        if callee.call not in hooks:
            HookRegistry.register(callee.target, callee.call, HookType.AROUND)
        callee.is_hooked = True
        around.wrap_when_loaded(callee)  # the registry wraps a module once
    if "fp8" in groups:
        when_imported(SMALL_LINEARS, _add_small_linears)
    if "moe" in groups:
        when_imported(MXFP4_EXPERTS, _add_mxfp4_experts)
    around.tell_at_exit()


SMALL_LINEARS = "sglang.kernels.ops.gemm.smallm_fp8_blockscale_gfx950"
MXFP4_EXPERTS = "sglang.srt.layers.quantization.mxfp4"


def _add_small_linears(module: Any) -> None:
    from .sglang_fp8 import wrap

    wrap(module)


def _add_mxfp4_experts(module: Any) -> None:
    from .sglang_gpt_oss import wrap

    wrap(module)
