"""vLLM's experts where aiter is not installed, by rfops.fused_moe where it has kernels for the
call, else by the method that vLLM has: without quantisation (out of tree), FP8 with scales of
128 x 128, and MXFP4 of Quark and of GPT-OSS, which vLLM would only emulate. GPT-OSS's biases and
clamped swiglu go by Triton kernels, all others by HIP."""

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
# Clamped swiglu by vLLM's name: whether rows of gate and up are interleaved.
_INTERLEAVED = {"swigluoai": True, "swigluoai_uninterleave": False}
_OTHER_ORDER = "weights in the order of another backend"


def _silu_reason(self: Any, layer: Any) -> str | None:
    """What of an activation and biases is more than silu; `self` is vLLM's method."""
    if _activation(layer) != "silu":
        return f"activation {layer.activation}"
    if _has_limits(self, layer):
        return "a limit of the activation"
    return "a bias" if self.moe.has_bias else None


def swiglu_reason(self: Any, layer: Any) -> str | None:
    """What of an activation is none of clamped swiglu with the method's own numbers."""
    if _activation(layer) not in _INTERLEAVED:
        return f"activation {layer.activation}"
    if _has_limits(self, layer):
        return "a limit of the activation beside the method's own"
    is_whole = None not in _swiglu_numbers(self).values()
    return None if is_whole else "swiglu without alpha, beta or limit"


def _activation(layer: Any) -> Any:
    return getattr(layer.activation, "value", layer.activation)


def _has_limits(self: Any, layer: Any) -> bool:
    given = [getattr(layer, name, None) for name in _CLAMPS]
    return any(v is not None for v in (*given, getattr(self.moe, "swiglu_limit", None)))


def _swiglu_numbers(self: Any) -> dict[str, Any]:
    config = self.moe_quant_config
    return {
        "alpha": config.gemm1_alpha,
        "beta": config.gemm1_beta,
        "limit": config.gemm1_clamp_limit,
    }


def layer_reason(self: Any, layer: Any, shared_experts: Any) -> str | None:
    """What of a layer rfops does not compute; `self` is vLLM's method."""
    if layer.apply_router_weight_on_input:
        return "router weights on the input"
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


def _quark_reason(self: Any) -> str | None:
    return _mxfp4_reason(self, self.ocp_mx_scheme)


def _gpt_oss_reason(self: Any) -> str | None:
    config = self.moe_quant_config
    return _mxfp4_reason(self, None if config is None else config.ocp_mx_scheme)


def _mxfp4_reason(self: Any, scheme: Any) -> str | None:
    if getattr(self.mxfp4_backend, "name", None) != "EMULATION":
        return _OTHER_ORDER
    scheme = getattr(scheme, "value", scheme)
    return None if scheme == "w_mxfp4_a_mxfp4" else f"formats {scheme}"


def _fp8_words(layer: Any) -> Mapping[str, Any]:
    scales = layer.w13_weight_scale_inv, layer.w2_weight_scale_inv
    return {"quant": "fp8_blockscale", "w1_scale": scales[0], "w2_scale": scales[1]}


def _mxfp4_words(layer: Any) -> Mapping[str, Any]:
    scales = layer.w13_weight_scale, layer.w2_weight_scale
    return {"quant": "mxfp4", "w1_scale": scales[0], "w2_scale": scales[1]}


def swiglu_words(self: Any, layer: Any) -> dict[str, Any]:
    """What fused_moe is told of clamped swiglu and biases."""
    return {
        "activation": "swiglu",
        "interleaved": _INTERLEAVED[_activation(layer)],
        **_swiglu_numbers(self),
        "bias1": getattr(layer, "w13_bias", None),
        "bias2": getattr(layer, "w2_bias", None),
    }


def swiglu_route_words(self: Any, layer: Any) -> dict[str, Any]:
    """Of them those that fused_moe's route depends on."""
    given = swiglu_words(self, layer)
    biases = {bias: given[bias] is not None for bias in ("bias1", "bias2")}
    return {word: given[word] for word in ("activation", "interleaved")} | biases


def _no_words(_layer: Any) -> Mapping[str, Any]:
    return {}


def _callee(
    name: str,
    reason_of: Callable[[Any], str | None],
    words: Callable[[Any], Mapping[str, Any]],
    gating_reason: Callable[[Any, Any], str | None] = _silu_reason,
    is_swiglu: bool = False,
) -> Callee:
    """The callee of a method of vLLM: what of the method itself is refused, what fused_moe is told
    beside the weights; which activations are refused, and whether it has clamped swiglu, which
    fused_moe's Triton kernels have: those methods emulate."""

    def why_not(self: Any, layer: Any, shared_experts: Any) -> str | None:
        reason = reason_of(self) or gating_reason(self, layer)
        return reason or layer_reason(self, layer, shared_experts)

    def of_route(self: Any, layer: Any) -> dict[str, Any]:
        return swiglu_route_words(self, layer) if is_swiglu else {}

    def facts(arguments: Arguments) -> Key:
        method, layer = arguments["self"], arguments["layer"]
        reason = why_not(method, layer, arguments["shared_experts"])
        gated = () if reason else tuple(of_route(method, layer).values())
        return layer.w13_weight.shape, layer.w13_weight.dtype, gated, reason

    def route(
        self: Any, layer: Any, x: torch.Tensor, topk_ids: torch.Tensor, shared_experts: Any
    ) -> RouteCall:
        reason = why_not(self, layer, shared_experts)
        if reason is not None:
            raise ValueError(reason)
        device, op, sizes = moe_route(x, layer.w13_weight, layer.w2_weight, topk_ids)
        return device, op, {**sizes, **of_route(self, layer)}

    def experts(
        self: Any,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: Any,
    ) -> torch.Tensor:
        named = {**words(layer), **(swiglu_words(self, layer) if is_swiglu else {})}
        return fused_moe(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids, **named)

    return Callee(
        f"vllm: {name}",
        "x topk_ids",
        route,
        lambda: experts,
        extra_facts=facts,
        takes_triton=is_swiglu,
    )


MOE = _callee("UnquantizedFusedMoEMethod", _plain_reason, _no_words)
FP8_MOE = _callee("Fp8MoEMethod", _fp8_reason, _fp8_words)
MXFP4_MOE = _callee("QuarkOCP_MX_MoEMethod", _quark_reason, _mxfp4_words)
GPT_OSS_MOE = _callee(
    "GptOssMxfp4MoEMethod", _gpt_oss_reason, _mxfp4_words, swiglu_reason, is_swiglu=True
)


def wrap_fp8(module: Any) -> None:
    """Put the op into vLLM's method of FP8 experts, of whose module this is."""
    module.Fp8MoEMethod.apply = FP8_MOE.wrap(module.Fp8MoEMethod.apply)


def wrap_mxfp4(module: Any) -> None:
    """Put the op into vLLM's method of Quark's MX experts, of whose module this is."""
    method = module.QuarkOCP_MX_MoEMethod
    method.apply = MXFP4_MOE.wrap(method.apply)


def wrap_gpt_oss(module: Any) -> None:
    """Put the op into vLLM's method of GPT-OSS's experts, of whose module this is."""
    method = module.GptOssMxfp4MoEMethod
    method.apply = GPT_OSS_MOE.wrap(method.apply)


def method_over(base: Any) -> type:
    """A subclass of vLLM's method."""

    class RfopsUnquantizedFusedMoEMethod(base):  # type: ignore[misc]
        def forward_native(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = MOE.call(base.forward_native, self, *args, **kwargs)
            return result

    return RfopsUnquantizedFusedMoEMethod
