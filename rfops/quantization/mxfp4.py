"""quant_mxfp4: a tensor to OCP MXFP4, e2m1 payload, two elements a byte, and one e8m0 scale per 32.

    scale[..., b]   = 2^e,  byte e + 127, with e from the block's largest magnitude (see rounding)
    payload[..., k] = e2m1(x[..., k] / scale[..., k // 32])   to nearest even, saturated at 6

Of a byte the low nibble is the element of even k. All modes take the exponent of amax after adding
a constant to its fp32 bits, which rounds the mantissa up to the next power of two beyond a
threshold, less e2m1's own largest exponent, 2:

| rounding | amax = m * 2^p, 1 <= m < 2, gives e | payload of amax | use |
|---|---|---|---|
| even (default) | p - 2, or p - 1 if m >= 1.75 | off by up to 1/7 | aiter's dynamic_mxfp4_quant |
| up | p - 2, or p - 1 if m > 1.5 | nothing saturates | aiter's quantisation in HIP and torch |
| down | p - 2 | saturates if m > 1.5 | the conversion of the OCP specification |

`even` is the default because it is what MXFP4 models are served with and checked against, and it
has the least error of the three on normal data: below 1.75 a saturated amax costs less than what
the other 31 lose to a scale twice as coarse.

A block of zeros has scale byte 0. e is clamped at -127, so denormal blocks keep what e2m1 can hold
of them. A block with an infinity or a NaN has scale 255, which is NaN, and payload 0. HIP, Triton
and torch give the same bits, and `even` those of dynamic_mxfp4_quant where amax is below
1.75 * 2^127: from there on its power of two is an infinity and it loses the block, it saturates
infinities and makes 1.5 of NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import DTYPES, E8M0
from rfops.dispatch.kernel import Call
from rfops.dispatch.problem import grid
from rfops.jit import compile_ops, u32, u64

from .mx_quant import (
    E8M0_BIAS,
    E8M0_NAN,
    HipQuant,
    MxQuant,
    TorchQuant,
    TritonQuant,
    scaled_blocks,
)
from .mxfp8 import BLOCK

__all__ = ["quant_mxfp4"]

FP4_DTYPES = DTYPES["fp4"]  # bytes, and torch's own where it has one
EMAX = 2

# Added to the bits of amax before its exponent is taken; 0x600000 is a mantissa of 1.75.
ROUNDING = MappingProxyType({"even": 0x200000, "up": 0x3FFFFF, "down": 0})
# The least magnitudes of codes 1 to 7, and whether they are their own: ties go to the even code.
_STEPS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@compile_ops(
    "quant_mxfp4",
    kernel="quant_mxfp4",
    variants=lambda _arch: [{"IN": "bf16", "ROUNDING": "Even", "IN_ROWS": 0}],
)
def quant_mxfp4_kernel(
    payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, pitch: u64, m: u32, k: u32
) -> None:
    """csrc/quantization/quant_mxfp4.hip: the shapes stand there."""


class Hip(HipQuant):
    """The HIP kernel to MXFP4."""

    module = "quant_mxfp4"
    compiled = quant_mxfp4_kernel

    def rounding(self, c: Call) -> Mapping[str, Any]:
        """Return the define that selects the rounding in the kernel."""
        return {"ROUNDING": c.rounding.capitalize()}


def _quantise(payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, bump: int) -> None:
    scaled, byte, is_not_finite = scaled_blocks(x, bump, EMAX)
    codes = fp4_codes(scaled).masked_fill_(is_not_finite.unsqueeze(-1), 0).flatten(-2)
    payload.view(torch.uint8).copy_(codes[..., ::2] | codes[..., 1::2] << 4)
    scale.view(torch.uint8).copy_(byte)


OP = MxQuant(
    "quant_mxfp4",
    """
    x: bf16|f16|f32[*M, K] strided
    rounding: even|up|down
    dtype: fp4
    -> payload: dtype[*M, K/2] new
    -> scale: e8m0[*M, K/32] new
    """,
    kernels=(Hip(), TritonQuant("quant_mxfp4", ROUNDING), TorchQuant(_quantise, ROUNDING)),
    max_bytes=None,
    shapes={"activations": grid("K", [(k,) for k in (512, 2048, 7168)], M=(1, 16, 64, 1024))},
    hints={"x": "convert it first", "K": "pad x with zeros"},
)


def quant_mxfp4(
    x: torch.Tensor, rounding: str = "even", dtype: torch.dtype = torch.uint8
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise along the last dimension.

    Parameters
    ----------
    x : [..., K] fp32, bf16 or fp16; K a multiple of 32; any strides.
    rounding : how the scale is rounded to a power of two: even, up or down (see module).
    dtype : of the payload: uint8, which checkpoints have and all of torch takes, or
        float4_e2m1fn_x2, where torch has it; the bytes are the same.

    Returns
    -------
    payload : [..., K/2] of dtype.
    scale : [..., K/32] float8_e8m0fnu (uint8 where torch lacks that).

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0, 6.3, whose conversion is down.
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    payload, scale = call(x, rounding, dtype)
    return payload, scale


quant_mxfp4.supports = OP.supports  # type: ignore[attr-defined]


def fp4_codes(values: torch.Tensor) -> torch.Tensor:
    """e2m1 codes of floats, a byte each: to nearest even, saturated; the sign of zero is kept."""
    magnitudes = values.abs()
    codes = torch.signbit(values).to(torch.uint8) << 3
    for threshold, is_inclusive in _STEPS:
        codes += magnitudes >= threshold if is_inclusive else magnitudes > threshold
    return codes


def quant_mxfp4_ref(
    x: torch.Tensor, rounding: str = "even", dtype: torch.dtype = torch.uint8
) -> tuple[torch.Tensor, torch.Tensor]:
    """The module's table in float64 by frexp, and the nearest of e2m1's values."""
    blocks = x.to(torch.float64).unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(dim=-1)
    half, power = torch.frexp(amax)  # amax = 2 half * 2^(power - 1)
    rounds_up = {"even": half >= 0.875, "up": half > 0.75, "down": half > 1}[rounding]
    e = (
        (power - 1 + rounds_up.int() - EMAX)
        .masked_fill(amax == 0, -E8M0_BIAS)
        .clamp(min=-E8M0_BIAS)
    )
    scaled = torch.ldexp(blocks, -e.unsqueeze(-1))
    values = torch.tensor(_VALUES, dtype=torch.float64, device=x.device)
    # Half an ulp of preference for even codes decides ties, and nothing else: values are 24 bits.
    distance = (scaled.abs().unsqueeze(-1) - values).abs()
    tie_break = torch.arange(8, device=x.device) % 2 * 2.0**-40
    codes = (distance + tie_break).argmin(-1).to(torch.uint8) | torch.signbit(blocks).to(
        torch.uint8
    ) << 3
    is_not_finite = ~torch.isfinite(amax)
    codes = codes.masked_fill(is_not_finite.unsqueeze(-1), 0).flatten(-2)
    byte = (e + E8M0_BIAS).masked_fill(is_not_finite, E8M0_NAN).to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(dtype), byte.view(E8M0)


OP.reference = quant_mxfp4_ref


def dequant_mxfp4(
    payload: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The values of an MXFP4 tensor: exact in float64, in float32 and bf16 up to their range."""
    byte = scale.view(torch.uint8).to(torch.int64)
    factor = ((byte - E8M0_BIAS + 1023) << 52).view(torch.float64)
    factor = factor.masked_fill(byte == E8M0_NAN, float("nan")).unsqueeze(-1)
    blocks = fp4_values(payload).to(torch.float64).unflatten(-1, (-1, BLOCK))
    values: torch.Tensor = (blocks * factor).flatten(-2).to(dtype)
    return values


def fp4_values(payload: torch.Tensor) -> torch.Tensor:
    """The e2m1 values of [..., K/2] bytes as float32 [..., K]; no copy from the host, so that a
    graph can capture it."""
    data = payload.view(torch.uint8)
    codes = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2).to(torch.int32)
    size = codes & 7
    normal = (size << 22) + (126 << 23) | (codes & 8) << 28  # exponent, mantissa and sign
    small = torch.copysign(0.5 * size, normal.view(torch.float32))
    return torch.where(size < 2, small, normal.view(torch.float32))
