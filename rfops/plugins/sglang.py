"""SGLang's plugin, `sglang.srt.plugins: rfops = rfops.plugins.sglang:register`: aiter's functions
through its registry of hooks, which also reaches copies that were imported before."""

from __future__ import annotations

import importlib.util

from . import around
from .callees import AITER, GROUPS
from .vllm import is_rocm


def register() -> None:
    """Hook what RFOPS_PLUGIN names, where aiter is installed and torch is ROCm's; in every process,
    any number of times. Raises ConfigError."""
    groups = around.wanted(GROUPS)
    if not groups or not is_rocm() or importlib.util.find_spec("aiter") is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for callee in AITER:
        known = [hook for _, hook, _ in HookRegistry._hooks.get(callee.target, ())]
        if callee.group in groups and callee.call not in known:
            HookRegistry.register(callee.target, callee.call, HookType.AROUND)
    around.tell_at_exit()
