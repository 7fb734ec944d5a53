"""GPT-OSS's experts in SGLang on gfx950, where they go by aiter: MXFP4 weights and rows in bf16,
with biases and clamped swiglu.

SGLang puts the weights of a loaded layer into the order of aiter's kernels, in their own memory.
rfops takes them as they were loaded, so that step waits: until a call of the layer is left to
SGLang, after which all are. There is never a second copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rfops.moe.fused_moe import MXFP4_WEIGHTS, fused_moe
from rfops.moe.gated_experts import WEIGHT_ONLY

from .binding import Arguments, Key
from .callees import moe_sizes
from .wrapper import Callee, RouteCall

_AS_LOADED = "rfops_weights_as_loaded"  # the attribute of a layer
_IN_ORDER = "weights in the order of aiter's kernels, after an earlier call"


def _reason(method: Any, layer: Any) -> str | None:
    """What of a layer rfops does not compute; `method` is SGLang's."""
    config = method.moe_runner_config
    backend = method.runner.runner_backend
    if not backend.is_aiter():
        return f"experts by {getattr(backend, 'name', backend)}"
    if config.activation != "silu" or None in _numbers(config).values():
        return "another activation than clamped swiglu"
    if config.apply_router_weight_on_input or config.no_combine:
        return "router weights on the input, or rows that are not combined"
    if config.routed_scaling_factor not in (None, 1.0):
        return f"results scaled by {config.routed_scaling_factor}"
    return None if layer.moe_ep_size == 1 else "expert parallelism"


def _numbers(config: Any) -> dict[str, Any]:
    beta = 1.0 if config.gemm1_beta is None else config.gemm1_beta
    return {"alpha": config.gemm1_alpha, "beta": beta, "limit": config.gemm1_clamp_limit}


def _words(method: Any, layer: Any) -> dict[str, Any]:
    """What fused_moe is told of clamped swiglu and biases."""
    config = method.moe_runner_config
    return {
        "activation": "swiglu",
        "interleaved": config.gate_up_interleaved,
        **_numbers(config),
        "bias1": layer.w13_weight_bias if method.with_bias else None,
        "bias2": layer.w2_weight_bias if method.with_bias else None,
    }


def _route_words(method: Any, layer: Any) -> dict[str, Any]:
    """Of them those that fused_moe's route depends on."""
    words = _words(method, layer)
    biases = {bias: words[bias] is not None for bias in ("bias1", "bias2")}
    return {word: words[word] for word in ("activation", "interleaved")} | biases


def _call_reason(method: Any, layer: Any) -> str | None:
    return _reason(method, layer) or (None if hasattr(layer, _AS_LOADED) else _IN_ORDER)


def _facts(arguments: Arguments) -> Key:
    method, layer = arguments["method"], arguments["layer"]
    reason = _call_reason(method, layer)
    if reason is not None:
        return (reason,)
    return layer.w13_weight.shape, tuple(_route_words(method, layer).values())


def _route(method: Any, layer: Any, x: torch.Tensor, topk_ids: torch.Tensor) -> RouteCall:
    reason = _call_reason(method, layer)
    if reason is not None:
        raise ValueError(reason)
    device, op, sizes = moe_sizes(x, layer.w13_weight, layer.w2_weight, topk_ids.shape[1])
    return device, op, {**sizes, **_route_words(method, layer), WEIGHT_ONLY: True}


def _experts(
    method: Any,
    layer: Any,
    dispatch_output: Any,
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> Any:
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    y = fused_moe(
        x,
        layer.w13_weight.data,
        layer.w2_weight.data,
        topk_weights,
        topk_ids,
        quant=MXFP4_WEIGHTS,
        w1_scale=layer.w13_weight_scale.data,
        w2_scale=layer.w2_weight_scale.data,
        **_words(method, layer),
    )
    return StandardCombineInput(hidden_states=y)


GPT_OSS_MOE = Callee(
    "sglang: Mxfp4MoEMethod",
    "x topk_ids",
    _route,
    lambda: _experts,
    extra_facts=_facts,
    takes_triton=True,
)


def _waiting(set_up: Callable[..., Any]) -> Callable[..., Any]:
    """The method that puts a layer's weights into an order, which waits where rfops has them."""

    @functools.wraps(set_up)
    def set_up_or_wait(self: Any, layer: Any) -> Any:
        if _reason(self, layer) is not None:
            return set_up(self, layer)
        setattr(layer, _AS_LOADED, set_up)
        return None

    return set_up_or_wait


def _by_rfops(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The method that computes a layer."""

    def original(
        method: Any,
        layer: Any,
        dispatch_output: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
    ) -> Any:
        return by_sglang(method, layer, dispatch_output)

    def by_sglang(method: Any, layer: Any, dispatch_output: Any) -> Any:
        set_up = vars(layer).pop(_AS_LOADED, None)
        if set_up is not None:
            set_up(method, layer)
        return apply(method, layer, dispatch_output)

    wrapped = GPT_OSS_MOE.wrap(original)

    @functools.wraps(apply)
    def apply_or_rfops(self: Any, layer: Any, dispatch_output: Any) -> Any:
        topk: Any = getattr(dispatch_output, "topk_output", None)
        if not hasattr(topk, "topk_ids"):  # of DeepEP, or of Triton's own router
            return by_sglang(self, layer, dispatch_output)
        x = dispatch_output.hidden_states
        if x.shape[-1] < self.hidden_size:
            x = torch.nn.functional.pad(x, (0, self.hidden_size - x.shape[-1]))
        return wrapped(self, layer, dispatch_output, x, topk.topk_weights, topk.topk_ids)

    apply_or_rfops.rfops = GPT_OSS_MOE  # type: ignore[attr-defined]
    return apply_or_rfops


def wrap(module: Any) -> None:
    """Put the op into SGLang's method of MXFP4 experts, of whose module this is, once."""
    method = module.Mxfp4MoEMethod
    if hasattr(method.apply, "rfops"):
        return
    method.process_weights_after_loading = _waiting(method.process_weights_after_loading)
    method.apply = _by_rfops(method.apply)
