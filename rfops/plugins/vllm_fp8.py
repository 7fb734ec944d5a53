"""vLLM's FP8 linear layers with scales of 128 x 128 where aiter is not installed, by
rfops.linear_fp8_blockscale, which quantises few rows in the product's launch, and, of rows that
vLLM has quantised, by rfops.gemm_a8w8_blockscale; where the product has a HIP kernel."""

from __future__ import annotations

from typing import Any

import torch

from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale
from rfops.gemm.linear_fp8 import linear_fp8_blockscale
from rfops.quantization.fp8_blockscale import BLOCK

from .binding import Arguments, Key
from .callees import fp8_route
from .wrapper import Callee, RouteCall


def _facts(arguments: Arguments) -> Key:
    layer = arguments["self"]
    return tuple(layer.weight_group_shape), layer.config.out_dtype


def _check_blocks(self: Any) -> None:
    if tuple(self.weight_group_shape) != (BLOCK, BLOCK):
        raise ValueError(f"scales of {tuple(self.weight_group_shape)}, not of 128 x 128")


def _route(self: Any, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor) -> RouteCall:
    _check_blocks(self)
    return fp8_route(A, B, As, self.config.out_dtype, False)


def _product(
    self: Any, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
) -> torch.Tensor:
    return gemm_a8w8_blockscale(A, B, As, Bs, self.config.out_dtype)


PRODUCT = Callee(
    "vllm: TritonFp8BlockScaledMMKernel",
    "A B",
    _route,
    lambda: _product,
    dtyped="As Bs",
    extra_facts=_facts,
)


# ---------------------------------------------------------------- with the quantiser


def _layer_facts(arguments: Arguments) -> Key:
    kernel, params = arguments["self"], _params(arguments["self"], arguments["layer"])
    facts = params.weight.shape, params.weight.dtype, params.block_scale.dtype
    return facts, kernel.config.out_dtype, _quantiser_reason(kernel, params)


def _params(kernel: Any, layer: Any) -> Any:
    return kernel._get_layer_params(layer)


def _quantiser_reason(kernel: Any, params: Any) -> str | None:
    """What of vLLM's quantiser of rows is another than of 1 x 128, by scales of their own."""
    group = tuple(kernel.quant_fp8.group_shape)
    if group != (1, BLOCK):
        return f"rows quantised by {group}, not by 1 x 128"
    if not kernel.apply_input_quant or kernel.quant_fp8.use_ue8m0:
        return "rows that are not quantised, or by powers of two"
    is_dynamic = params.input_scale is None and params.input_scale_ub is None
    return None if is_dynamic else "a scale of rows that is given"


def _linear_route(self: Any, layer: Any, x: torch.Tensor) -> RouteCall:
    _check_blocks(self)
    params = _params(self, layer)
    if reason := _quantiser_reason(self, params):
        raise ValueError(reason)
    w = params.weight
    sizes = {"M": x.shape[:-1].numel(), "N": w.shape[0], "K": w.shape[1]}
    sizes |= {"x_dtype": w.dtype, "w_dtype": w.dtype, "dtype": self.config.out_dtype}
    return x.device, "gemm_a8w8_blockscale", sizes


def _linear(
    self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    params, dtype = _params(self, layer), self.config.out_dtype
    rows = x.view(-1, x.shape[-1])
    out = linear_fp8_blockscale(rows, params.weight, params.block_scale, dtype)
    out = out if bias is None else (out + bias).to(dtype)
    return out.view(*x.shape[:-1], out.shape[1])


LINEAR = Callee(
    "vllm: TritonFp8BlockScaledMMKernel, quantising",
    "x",
    _linear_route,
    lambda: _linear,
    extra_facts=_layer_facts,
)


def wrap(module: Any) -> None:
    """Put the ops into vLLM's Triton kernel of linear layers, of whose module this is."""
    kernel = module.TritonFp8BlockScaledMMKernel
    kernel.apply_block_scaled_mm = PRODUCT.wrap(kernel.apply_block_scaled_mm)
    kernel.apply_weights = LINEAR.wrap(kernel.apply_weights)
