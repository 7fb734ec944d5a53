"""SGLang's FP8 linear layers whose few rows are quantised in the product's launch, on gfx950, by
rfops.linear_fp8_blockscale for every shape: the original has some, and returns None for others."""

from __future__ import annotations

from typing import Any

import torch

from rfops.dispatch.layout import Shuffled
from rfops.gemm.linear_fp8 import linear_fp8_blockscale

from . import layouts
from .callees import weight_layout
from .wrapper import Callee, RouteCall

_NAME = "try_smallm_fp8_bs_linear"


def _route(x: torch.Tensor, WQ: torch.Tensor) -> RouteCall:
    if layouts.mark(WQ) is None:
        raise ValueError("WQ must be marked by is_shuffled: the order of its elements is not known")
    sizes = {"M": x.shape[0], "N": WQ.shape[0], "K": x.shape[1], "x_dtype": WQ.dtype}
    layout = weight_layout(w=layouts.mark(WQ) == layouts.SHUFFLED)
    return x.device, "gemm_a8w8_blockscale", {**sizes, "w_dtype": WQ.dtype, **layout}


def _linear(x: torch.Tensor, WQ: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    is_shuffled = layouts.mark(WQ) == layouts.SHUFFLED
    return linear_fp8_blockscale(x, Shuffled(WQ, layouts.SHUFFLED) if is_shuffled else WQ, w_scale)


LINEAR = Callee(f"sglang: {_NAME}", "x WQ", _route, lambda: _linear, dtyped="w_scale", marked="WQ")


def wrap(module: Any) -> None:
    """Put the op into SGLang's module of that function."""
    setattr(module, _NAME, LINEAR.wrap(getattr(module, _NAME)))
