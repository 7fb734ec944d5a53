"""vLLM's experts where aiter is not installed, by rfops.fused_moe where its HIP kernel takes the
call, else by the method that vLLM has: without quantisation (out of tree), FP8 with scales of
128 x 128, and MXFP4 of Quark, which vLLM would only emulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rfops.moe.fused_moe import fused_moe
from rfops.quantization.fp8_blockscale import BLOCK

from .binding import Arguments, Key
from .callees import moe_route
from .wrapper import Callee, RouteCall

_CLAMPS = ("swiglu_limit", "swiglu_alpha", "swiglu_beta")  # of a layer, as vLLM's method reads them
_OTHER_ORDER = "weights in the order of another backend"


def _layer_reason(self: Any, layer: Any, shared_experts: Any) -> str | None:
    """What of a layer rfops does not compute; `self` is vLLM's method."""
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


# ---------------------------------------------------------------- each method's own


def _plain_reason(self: Any) -> str | None:
    is_triton = getattr(self.unquantized_backend, "name", None) == "TRITON"
    return None if is_triton else _OTHER_ORDER


def _fp8_reason(self: Any) -> str | None:
    if not self.block_quant or tuple(self.moe_block_shape) != (BLOCK, BLOCK):
        return "scales of another kind than 128 x 128"
    if self.quant_config.activation_scheme != "dynamic":
        return f"activations quantised by {self.quant_config.activation_scheme} scales"
    return None if getattr(self.fp8_backend, "name", None) == "TRITON" else _OTHER_ORDER


def _mxfp4_reason(self: Any) -> str | None:
    scheme = getattr(self.ocp_mx_scheme, "value", self.ocp_mx_scheme)
    if scheme != "w_mxfp4_a_mxfp4":
        return f"formats {scheme}"
    is_raw = getattr(self.mxfp4_backend, "name", None) == "EMULATION"
    return None if is_raw else _OTHER_ORDER


def _fp8_words(layer: Any) -> Mapping[str, Any]:
    scales = layer.w13_weight_scale_inv, layer.w2_weight_scale_inv
    return {"quant": "fp8_blockscale", "w1_scale": scales[0], "w2_scale": scales[1]}


def _mxfp4_words(layer: Any) -> Mapping[str, Any]:
    scales = layer.w13_weight_scale, layer.w2_weight_scale
    return {"quant": "mxfp4", "w1_scale": scales[0], "w2_scale": scales[1]}


def _no_words(_layer: Any) -> Mapping[str, Any]:
    return {}


def _callee(
    name: str, reason_of: Callable[[Any], str | None], words: Callable[[Any], Mapping[str, Any]]
) -> Callee:
    """The callee of a method of vLLM: what of the method itself is refused, and what fused_moe is
    told beside the weights."""

    def why_not(self: Any, layer: Any, shared_experts: Any) -> str | None:
        return reason_of(self) or _layer_reason(self, layer, shared_experts)

    def facts(arguments: Arguments) -> Key:
        layer = arguments["layer"]
        reason = why_not(arguments["self"], layer, arguments["shared_experts"])
        return layer.w13_weight.shape, layer.w13_weight.dtype, reason

    def route(
        self: Any, layer: Any, x: torch.Tensor, topk_ids: torch.Tensor, shared_experts: Any
    ) -> RouteCall:
        reason = why_not(self, layer, shared_experts)
        if reason is not None:
            raise ValueError(reason)
        return moe_route(x, layer.w13_weight, layer.w2_weight, topk_ids)

    def experts(
        self: Any,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: Any,
    ) -> torch.Tensor:
        weights = layer.w13_weight, layer.w2_weight
        return fused_moe(x, *weights, topk_weights, topk_ids, **words(layer))

    return Callee(f"vllm: {name}", "x topk_ids", route, lambda: experts, extra_facts=facts)


MOE = _callee("UnquantizedFusedMoEMethod", _plain_reason, _no_words)
FP8_MOE = _callee("Fp8MoEMethod", _fp8_reason, _fp8_words)
MXFP4_MOE = _callee("QuarkOCP_MX_MoEMethod", _mxfp4_reason, _mxfp4_words)


def wrap_fp8(module: Any) -> None:
    """Put the op into vLLM's method of FP8 experts, of whose module this is."""
    module.Fp8MoEMethod.apply = FP8_MOE.wrap(module.Fp8MoEMethod.apply)


def wrap_mxfp4(module: Any) -> None:
    """Put the op into vLLM's method of Quark's MX experts, of whose module this is."""
    method = module.QuarkOCP_MX_MoEMethod
    method.apply = MXFP4_MOE.wrap(method.apply)


def method_over(base: Any) -> type:
    """A subclass of vLLM's method."""

    class RfopsUnquantizedFusedMoEMethod(base):  # type: ignore[misc]
        def forward_native(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = MOE.call(base.forward_native, self, *args, **kwargs)
            return result

    return RfopsUnquantizedFusedMoEMethod
