"""What vLLM 0.33's call sites need: its modules' settings, and the mark of a case."""

from __future__ import annotations

import functools
from typing import Any

from rfops.dispatch.declare import fp8_of

from .cases import (
    case,
)
from .engine_code import World

MLA = "vllm.v1.attention.backends.mla"
MOE = "vllm.model_executor.layers.fused_moe"
vllm = functools.partial(case, "vllm")


def prepare(world: World) -> None:
    """What vLLM's modules ask when they are imported."""
    platform = world.stub("vllm.platforms").current_platform
    platform.fp8_dtype = lambda: fp8_of(world.arch)
    platform.is_rocm = lambda: True
    platform.is_fp8_fnuz = lambda: world.arch == "gfx942"
    rocm = world.stub("vllm.platforms.rocm")
    for name in ("gfx942", "gfx950"):
        setattr(rocm, f"on_{name}", lambda name=name: world.arch == name)
    rocm.on_mi3xx = lambda: True
    world.stub("vllm.envs").VLLM_ROCM_AITER_MOE_DISPATCH_POLICY = 0
    rocm.get_cdna_version = lambda: 4 if world.arch == "gfx950" else 3
    world.stub("vllm.v1.worker.workspace").is_workspace_manager_initialized = lambda: False
    world.load(f"{MOE}.activation")
    world.load("vllm._aiter_ops")


def ops(world: World) -> Any:
    return world.load("vllm._aiter_ops").rocm_aiter_ops
