"""quant_mxfp8: a tensor to OCP MX-FP8, e4m3 payload and one e8m0 scale per 32 elements.

    scale[..., b]   = 2^e,  byte e + 127, with e from the block's largest magnitude (see rounding)
    payload[..., k] = e4m3(x[..., k] / scale[..., k // 32])   round to nearest even, saturated

All modes take the exponent of amax after adding a constant to its bits, which rounds the mantissa
up to the next power of two beyond a threshold, less e4m3's own largest exponent, 8:

| rounding | amax = m * 2^p, 1 <= m < 2, gives e | payload of amax | use |
|---|---|---|---|
| up (default) | p - 8, or p - 7 if m > 1.75 | up to 448 | the finest scale without saturation |
| floor | p - 8 | saturates if m > 1.75 | the conversion of the OCP specification |
| even | p - 8, or p - 7 if m >= 1.75 | up to 448 | Triton's dynamic_mxfp4/8_quant |
| ceil | p - 8, or p - 7 if m > 1 | up to 256 | never saturates, loses up to one bit of range |

`up` is the default because its error has a bound: half a unit of e4m3, |error| <= 2^-4 |x| for
normal payloads, 2^-10 scale below. `floor` can be wrong by 12.5 % on a block's largest element:
MiniLM's first feed-forward layer comes out 3.2 % off in the Frobenius norm, 2.7 % with the others.

A block of zeros has scale byte 0. e is clamped at -127, so denormal blocks keep what e4m3 can
hold of them. A block with an infinity or a NaN becomes NaN: scale 255, payload NaN. HIP, Triton and
torch give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import DTYPES, E8M0, MX_BLOCK
from rfops.dispatch.kernel import Call
from rfops.dispatch.problem import grid
from rfops.jit import compile_ops, u32, u64

from .mx_quant import (
    E8M0_BIAS,
    E8M0_NAN,
    IN_TYPES,
    HipQuant,
    MxQuant,
    TorchQuant,
    TritonQuant,
    scaled_blocks,
)

__all__ = ["quant_mxfp8"]

FP8 = torch.float8_e4m3fn
SCALE_DTYPES = DTYPES["e8m0"]
BLOCK = MX_BLOCK
E4M3_MAX = 448.0
E4M3_EMAX = 8

# Added to the bits of amax before its exponent is taken; 0x600000 is a mantissa of 1.75.
ROUNDING = MappingProxyType({"up": 0x1FFFFF, "floor": 0, "even": 0x200000, "ceil": 0x7FFFFF})


@compile_ops(
    "quant_mxfp8",
    kernel="quant_mxfp8",
    variants=lambda _arch: [
        {"IN": in_type, "BUMP": ROUNDING["up"], "IN_ROWS": 0} for in_type in IN_TYPES.values()
    ],
)
def quant_mxfp8_kernel(
    payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, pitch: u64, m: u32, k: u32
) -> None:
    """csrc/quantization/quant_mxfp8.hip: the shapes stand there."""


class Hip(HipQuant):
    """The HIP kernel to MX-FP8."""

    module = "quant_mxfp8"
    compiled = quant_mxfp8_kernel

    def rounding(self, c: Call) -> Mapping[str, Any]:
        """Return the define that selects the rounding in the kernel."""
        return {"BUMP": ROUNDING[c.rounding]}


def _quantise(payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, bump: int) -> None:
    scaled, byte, is_not_finite = scaled_blocks(x, bump, E4M3_EMAX)
    scaled = scaled.clamp(-E4M3_MAX, E4M3_MAX)
    scaled.masked_fill_(is_not_finite.unsqueeze(-1), float("nan"))
    payload.copy_(scaled.view(x.shape))
    scale.view(torch.uint8).copy_(byte)


OP = MxQuant(
    "quant_mxfp8",
    """
    x: bf16|f16|f32[*M, K] strided
    rounding: up|floor|even|ceil
    -> payload: e4m3[*M, K] new
    -> scale: e8m0[*M, K/32] new
    """,
    kernels=(Hip(), TritonQuant("quant_mxfp8", ROUNDING), TorchQuant(_quantise, ROUNDING)),
    max_bytes=None,
    shapes={"activations": grid("K", [(k,) for k in (2048, 6144)], M=(1, 16, 64, 1024))},
    hints={"x": "convert it first", "K": "pad x with zeros"},
)


def quant_mxfp8(x: torch.Tensor, rounding: str = "up") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise along the last dimension.

    Parameters
    ----------
    x : [..., K] fp32, bf16 or fp16; K a multiple of 32; any strides.
    rounding : how the scale is rounded to a power of two: up, floor, even or ceil (see module).

    Returns
    -------
    payload : [..., K] float8_e4m3fn.
    scale : [..., K/32] float8_e8m0fnu (uint8 where torch lacks that).

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0, 6.3, whose conversion is
    floor.
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    payload, scale = call(x, rounding)
    return payload, scale


quant_mxfp8.supports = OP.supports  # type: ignore[attr-defined]


def quant_mxfp8_ref(x: torch.Tensor, rounding: str = "up") -> tuple[torch.Tensor, torch.Tensor]:
    """The module's table in float64 by frexp; payloads in fp32, not yet rounded."""
    blocks = x.to(torch.float64).unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(dim=-1)
    half, power = torch.frexp(amax)  # amax = 2 half * 2^(power - 1)
    rounds_up = {"up": half > 0.875, "floor": half > 1, "even": half >= 0.875, "ceil": half > 0.5}
    e = (power - 1 + rounds_up[rounding].int() - E4M3_EMAX).masked_fill(amax == 0, -E8M0_BIAS)
    e = e.clamp(min=-E8M0_BIAS)
    scaled = torch.ldexp(blocks, -e.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX)
    is_not_finite = ~torch.isfinite(amax)
    payload = scaled.masked_fill(is_not_finite.unsqueeze(-1), float("nan")).flatten(-2)
    byte = (e + E8M0_BIAS).masked_fill(is_not_finite, E8M0_NAN).to(torch.uint8)
    return payload.to(torch.float32), byte.view(E8M0)


OP.reference = quant_mxfp8_ref


def dequant_mxfp8(
    payload: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The values of an MX-FP8 tensor: exact in float64, in float32 up to its range."""
    byte = scale.view(torch.uint8).to(torch.int64)
    factor = ((byte - E8M0_BIAS + 1023) << 52).view(torch.float64)
    factor = factor.masked_fill(byte == E8M0_NAN, float("nan"))
    blocks: torch.Tensor = payload.to(torch.float64).unflatten(-1, (-1, BLOCK))
    return (blocks * factor.unsqueeze(-1)).flatten(-2).to(dtype)
