"""vLLM's experts without quantisation, out of tree: rfops.fused_moe where its HIP kernel takes the
call, else the method that vLLM has."""

from __future__ import annotations

from typing import Any

import torch

from rfops.moe.fused_moe import fused_moe

from .binding import Arguments, Key
from .callees import moe_route
from .wrapper import Callee, RouteCall

_CLAMPS = ("swiglu_limit", "swiglu_alpha", "swiglu_beta")  # of a layer, as vLLM's method reads them


def _why_not(self: Any, layer: Any, shared_experts: Any) -> str | None:
    """What of a layer rfops does not compute."""
    if getattr(self.unquantized_backend, "name", None) != "TRITON":
        return "weights in the order of another backend"
    if getattr(layer.activation, "value", layer.activation) != "silu":
        return f"activation {layer.activation}"
    if any(getattr(layer, name, None) is not None for name in _CLAMPS):
        return "a limit of the activation"
    if getattr(self.moe, "swiglu_limit", None) is not None:
        return "a limit of the activation"
    if layer.apply_router_weight_on_input or self.moe.has_bias:
        return "a bias, or router weights on the input"
    # The runner computes shared experts before or beside this call, except where the kernel would.
    if shared_experts is not None and self.mk_can_overlap_shared_experts:
        return "shared experts, computed while tokens are sent"
    return None if layer.expert_map is None else "expert parallelism"


def _facts(arguments: Arguments) -> Key:
    layer = arguments["layer"]
    reason = _why_not(arguments["self"], layer, arguments["shared_experts"])
    return layer.w13_weight.shape, layer.w13_weight.dtype, reason


def _route(
    self: Any, layer: Any, x: torch.Tensor, topk_ids: torch.Tensor, shared_experts: Any
) -> RouteCall:
    reason = _why_not(self, layer, shared_experts)
    if reason is not None:
        raise ValueError(reason)
    return moe_route(x, layer.w13_weight, layer.w2_weight, topk_ids)


def _experts(
    self: Any,
    layer: Any,
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    shared_experts: Any,
    shared_experts_input: Any,
) -> torch.Tensor:
    return fused_moe(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids)


MOE = Callee("vllm: UnquantizedFusedMoEMethod", "x topk_ids", _route, lambda: _experts, more=_facts)


def method_over(base: Any) -> type:
    """A subclass of vLLM's method."""

    class RfopsUnquantizedFusedMoEMethod(base):  # type: ignore[misc]
        def forward_native(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = MOE.call(base.forward_native, self, *args, **kwargs)
            return result

    return RfopsUnquantizedFusedMoEMethod
