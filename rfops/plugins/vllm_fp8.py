"""vLLM's FP8 linear layers with scales of 128 x 128 where aiter is not installed, by
rfops.gemm_a8w8_blockscale where its HIP kernel takes the call."""

from __future__ import annotations

from typing import Any

import torch

from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale
from rfops.quantization.fp8_blockscale import BLOCK

from .binding import Arguments, Key
from .callees import fp8_route
from .wrapper import Callee, RouteCall


def _facts(arguments: Arguments) -> Key:
    layer = arguments["self"]
    return tuple(layer.weight_group_shape), layer.config.out_dtype


def _route(self: Any, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor) -> RouteCall:
    if tuple(self.weight_group_shape) != (BLOCK, BLOCK):
        raise ValueError(f"scales of {tuple(self.weight_group_shape)}, not of 128 x 128")
    return fp8_route(A, B, As, self.config.out_dtype, False)


def _linear(
    self: Any, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
) -> torch.Tensor:
    return gemm_a8w8_blockscale(A, B, As, Bs, self.config.out_dtype)


LINEAR = Callee(
    "vllm: TritonFp8BlockScaledMMKernel",
    "A B",
    _route,
    lambda: _linear,
    dtyped="As Bs",
    extra_facts=_facts,
)


def wrap(module: Any) -> None:
    """Put the op into vLLM's Triton kernel of linear layers, of whose module this is."""
    kernel = module.TritonFp8BlockScaledMMKernel
    kernel.apply_block_scaled_mm = LINEAR.wrap(kernel.apply_block_scaled_mm)
