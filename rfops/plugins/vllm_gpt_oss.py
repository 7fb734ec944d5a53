"""GPT-OSS's experts in vLLM by its default kernels where aiter is not installed: Triton's, of MXFP4
weights and rows in bf16, which route the tokens themselves.

vLLM hands those kernels transposed views of the checkpoint's weights and scales in an order of
theirs. rfops takes both as they were loaded: a layer keeps its own references, of which the scales
alone are a copy that vLLM would have freed. rfops' Triton kernels make five launches of a call, and
torch two copies of rows, where vLLM's make eight. Estimated, MI355X, a layer of the tests' tiny
model, 12 tokens: vLLM's 69.3 us, rfops' 28.6 us without the copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rfops.moe.fused_moe import MXFP4_WEIGHTS, fused_moe
from rfops.moe.gated_experts import WEIGHT_ONLY
from rfops.moe.topk_softmax import topk_softmax

from .binding import Arguments, Key
from .callees import moe_sizes
from .vllm_moe import layer_reason, swiglu_reason, swiglu_route_words, swiglu_words
from .wrapper import Callee, RouteCall

_LOADED = "rfops_loaded_weights"  # the attribute of a layer


@dataclass(frozen=True)
class _Loaded:
    """Weights as the checkpoint has them."""

    w1: torch.Tensor  # [E, 2I, D / 2]
    w2: torch.Tensor  # [E, D, I / 2]
    w1_scale: torch.Tensor  # [E, 2I, D / 32]
    w2_scale: torch.Tensor  # [E, D, I / 32]


def keeping_weights(set_up: Callable[..., Any]) -> Callable[..., Any]:
    """The method that puts a layer's weights into the kernels' order, which keeps them too."""

    @functools.wraps(set_up)
    def set_up_and_keep(
        self: Any,
        layer: Any,
        w13: torch.Tensor,
        w2: torch.Tensor,
        w13_scale: torch.Tensor,
        w2_scale: torch.Tensor,
        *biases: Any,
        **named_biases: Any,
    ) -> Any:
        tensors = w13, w2, w13_scale, w2_scale
        if _backend(self) == "TRITON":
            setattr(layer, _LOADED, _Loaded(*(tensor.data for tensor in tensors)))
        return set_up(self, layer, *tensors, *biases, **named_biases)

    return set_up_and_keep


def _backend(method: Any) -> Any:
    return getattr(method.mxfp4_backend, "name", None)


def _reason(self: Any, layer: Any) -> str | None:
    """What of a call rfops does not compute; `self` is vLLM's method."""
    if _backend(self) != "TRITON":
        return f"experts by {_backend(self)}"
    if not hasattr(layer, _LOADED):
        return "weights that were loaded before rfops"
    return swiglu_reason(self, layer) or layer_reason(self, layer, None)


def _facts(arguments: Arguments) -> Key:
    method, layer = arguments["self"], arguments["layer"]
    reason = _reason(method, layer)
    if reason is not None:
        return (reason,)
    kernel = method.moe_kernel.fused_experts
    words = tuple(swiglu_route_words(method, layer).values())
    return getattr(layer, _LOADED).w1.shape, words, kernel.topk, kernel.renormalize


def _route(self: Any, layer: Any, x: torch.Tensor) -> RouteCall:
    reason = _reason(self, layer)
    if reason is not None:
        raise ValueError(reason)
    loaded = getattr(layer, _LOADED)
    device, op, sizes = moe_sizes(x, loaded.w1, loaded.w2, self.moe_kernel.fused_experts.topk)
    return device, op, {**sizes, **swiglu_route_words(self, layer), WEIGHT_ONLY: True}


def _experts(
    self: Any, layer: Any, x: torch.Tensor, router_logits: torch.Tensor, input_ids: Any = None
) -> torch.Tensor:
    kernel, loaded = self.moe_kernel.fused_experts, getattr(layer, _LOADED)
    return fused_moe(
        x,
        loaded.w1,
        loaded.w2,
        *topk_softmax(router_logits, kernel.topk, kernel.renormalize),
        quant=MXFP4_WEIGHTS,
        w1_scale=loaded.w1_scale,
        w2_scale=loaded.w2_scale,
        **swiglu_words(self, layer),
    )


GPT_OSS_TRITON_MOE = Callee(
    "vllm: GptOssMxfp4MoEMethod, Triton",
    "x router_logits",
    _route,
    lambda: _experts,
    extra_facts=_facts,
    takes_triton=True,
)


def wrap(module: Any) -> None:
    """Put the op into vLLM's method of GPT-OSS's experts, of whose module this is."""
    method = module.GptOssMxfp4MoEMethod
    method._setup_kernel = keeping_weights(method._setup_kernel)
    method.apply_monolithic = GPT_OSS_TRITON_MOE.wrap(method.apply_monolithic)
