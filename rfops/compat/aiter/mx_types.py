"""aiter.utility.mx_types and fp4_utils: MX formats as plain torch tensors.

Values and roundings are those of rfops' quantisers (quantization/mxfp4.py has the table)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import torch
from torch import Tensor

from rfops.dispatch.declare import E8M0
from rfops.dispatch.guards import Guard
from rfops.jit.errors import show
from rfops.quantization.mxfp4 import fp4_codes, fp4_values, quant_mxfp4

from .shuffle import e8m0_shuffle

_NAN, _TINY = 255, 0x00400000  # byte of NaN; bits of 2^-127, which byte 0 stands for


class MxScaleRoundMode(IntEnum):
    """How a block's scale is rounded to a power of two; aiter's names and numbers."""

    RoundDown, RoundUp, Even, Ceil = 0, 1, 2, 3


class MxDtype(IntEnum):
    """Element formats of MX blocks; aiter's names and numbers."""

    FP4_E2M1, FP8_E4M3, FP8_E4M3_FNUZ = 0, 1, 2


MxScaleRoundModeInt, MxDtypeInt = MxScaleRoundMode, MxDtype
MX_DEFAULT_ROUND_MODE = MxScaleRoundMode.RoundUp
ROUNDINGS: Mapping[int, str] = MappingProxyType({0: "down", 1: "up", 2: "even"})  # rfops' words
# Of a format: exponent of the largest power of two, largest value, bits of mantissa.
_FORMATS = {
    MxDtype.FP4_E2M1: (2, 6.0, 1),
    MxDtype.FP8_E4M3: (8, 448.0, 3),
    MxDtype.FP8_E4M3_FNUZ: (7, 240.0, 3),
}


def f32_to_mx_e8m0_scale(
    amax: Tensor,
    *,
    mode: int = MX_DEFAULT_ROUND_MODE,
    dtype: int = MxDtype.FP4_E2M1,
) -> Tensor:
    """Return the e8m0 scale of blocks by their largest magnitude, fp32 of any shape; NaN's byte
    where that is not finite. Raises ValueError for an unknown mode or format.

    Source: OCP Microscaling Formats (MX) Specification, version 1.0, 6.3, whose rounding is
    RoundDown; the others raise the exponent where amax is beyond a share of it.
    """
    if int(mode) not in list(MxScaleRoundMode) or int(dtype) not in _FORMATS:
        name = "mode" if int(mode) not in list(MxScaleRoundMode) else "dtype"
        Guard("f32_to_mx_e8m0_scale").fail(name, "an MxScaleRoundMode, an MxDtype", show(mode), "")
    exponent, largest, mantissa_bits = _FORMATS[MxDtype(int(dtype))]
    amax = amax.float()
    is_finite = amax.isfinite()
    if mode == MxScaleRoundMode.RoundUp:
        bits = (amax / largest).view(torch.int32) + 0x7FFFFF
        exponent = 0
    else:
        bump = {0: 0, 2: 1 << 22 - mantissa_bits, 3: 0x7FFFFF}[int(mode)]
        bits = amax.view(torch.int32) + bump
    byte = ((bits >> 23) - exponent).clamp(0, _NAN).masked_fill(~is_finite, _NAN)
    return byte.to(torch.uint8).view(E8M0)


def e8m0_to_f32(scale: Tensor) -> Tensor:
    """Return the fp32 values of e8m0 bytes: 2^(byte - 127), NaN for byte 255."""
    byte = scale.view(torch.uint8).to(torch.int32)
    bits = torch.where(byte == 0, _TINY, byte << 23)
    return bits.view(torch.float32).masked_fill(byte == _NAN, float("nan"))


def mxfp4_to_f32(x: Tensor) -> Tensor:
    """Return e2m1 pairs [..., K/2], low nibble first, as fp32 [..., K]."""
    return fp4_values(x)


def f32_to_mxfp4(x: Tensor) -> Tensor:
    """Return fp32 [..., K], already divided by its scale, as pairs of e2m1 [..., K/2], uint8."""
    codes = fp4_codes(x.float())
    return codes[..., ::2] | codes[..., 1::2] << 4


def dynamic_mxfp4_quant(
    x: Tensor, scaling_mode: str = "even", shuffle: bool = False
) -> tuple[Tensor, Tensor]:
    """aiter.utility.fp4_utils.dynamic_mxfp4_quant: x [M, K] as payload [M, K/2], float4_e2m1fn_x2,
    and e8m0 scales [M up to 256s, K/32 up to 8s], in the layout of e8m0_shuffle where shuffle;
    padding is 1."""
    from .dtypes import fp4x2

    payload, scale = quant_mxfp4(x, scaling_mode, fp4x2)
    rows, blocks = scale.shape
    padded = scale.new_full((-(-rows // 256) * 256, -(-blocks // 8) * 8), 127, dtype=torch.uint8)
    padded[:rows, :blocks] = scale.view(torch.uint8)
    scales = padded.view(E8M0)
    return payload, e8m0_shuffle(scales) if shuffle else scales  # type: ignore[return-value]
