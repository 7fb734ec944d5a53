"""vLLM's experts without quantisation, out of tree: rfops.fused_moe where its HIP kernel takes the
call, else the method that vLLM has."""

from __future__ import annotations

from typing import Any

import torch

from rfops.moe.fused_moe import fused_moe

from .around import Args, Callee, Given, Key, Words
from .callees import moe_route

_NAMES = ("method", "layer", "x", "topk_weights", "topk_ids", "shared_experts",
          "shared_experts_input")  # fmt: skip


def _why_not(method: Any, layer: Any, shared_experts: Any) -> str | None:
    """What of a layer rfops does not compute."""
    if getattr(method.unquantized_backend, "name", None) != "TRITON":
        return "weights in the order of another backend"
    if getattr(layer.activation, "value", layer.activation) != "silu":
        return f"activation {layer.activation}"
    if shared_experts is not None or layer.apply_router_weight_on_input or method.moe.has_bias:
        return "shared experts, a bias, or router weights on the input"
    return None if layer.expert_map is None else "expert parallelism"


def _key(args: Args, words: Words) -> Key:
    if words:  # as vLLM calls it
        args = (*args, *(words[name] for name in _NAMES[len(args) :]))
    method, layer, x, _, topk_ids, shared_experts, _ = args
    why = _why_not(method, layer, shared_experts)
    return x.shape, x.dtype, layer.w13_weight.shape, topk_ids.shape, why


def _route(
    method: Any, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
    shared_experts: Any, shared_experts_input: Any,
) -> Given:  # fmt: skip
    why = _why_not(method, layer, shared_experts)
    if why is not None:
        raise ValueError(why)
    return moe_route(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids)


def _experts(
    method: Any, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
    shared_experts: Any, shared_experts_input: Any,
) -> torch.Tensor:  # fmt: skip
    return fused_moe(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids)


MOE = Callee("vllm: UnquantizedFusedMoEMethod", "moe", _key, _route, _experts)


def method_over(base: Any) -> type:
    """A subclass of vLLM's method."""

    class RfopsUnquantizedFusedMoEMethod(base):  # type: ignore[misc]
        def forward_native(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            made: torch.Tensor = MOE.call(base.forward_native, self, *args, **kwargs)
            return made

    return RfopsUnquantizedFusedMoEMethod
