"""MXFP4 as the problems have it, on the CPU: payloads of two values a byte, e8m0 scales."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rfops.quantization.mxfp4 import ROUNDING, _quantise, dequant_mxfp4

BLOCK = 32


def mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] to bytes [M, K/2] and e8m0 bytes [M, K/32]; rounding "even"."""
    m, k = x.shape
    payload = torch.empty(m, k // 2, dtype=torch.uint8)
    scale = torch.empty(m, k // BLOCK, dtype=torch.uint8)
    if not isinstance(x, FakeTensor):  # of which only sizes are asked (record.unreal)
        _quantise(payload, scale, x, ROUNDING["even"])
    return payload, scale


def from_mxfp4(payload: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values in fp32; rows and columns that pad the scales are left out."""
    rows, half = payload.shape
    return dequant_mxfp4(payload, scale[:rows, : 2 * half // BLOCK])
