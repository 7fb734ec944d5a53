"""aiter.ops.quant: rfops' quantisers under aiter's names, and its references in plain torch.

int8 and what the references say are computed by torch, all else by rfops' kernels. FP8 of gfx942 is
scaled to its largest number, 240."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rfops.compat import per_group_quant_hip
from rfops.dispatch.declare import E8M0, MX_BLOCK
from rfops.dispatch.guards import Guard, describe
from rfops.jit.errors import show
from rfops.moe.moe_dropins import QuantType
from rfops.quantization.fp8 import quant_fp8
from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
from rfops.quantization.mxfp4 import quant_mxfp4
from rfops.quantization.mxfp8 import quant_mxfp8

from . import shuffle as shuffle_
from .dtypes import fp4x2
from .mx_types import (
    MX_DEFAULT_ROUND_MODE,
    ROUNDINGS,
    e8m0_to_f32,
    f32_to_mx_e8m0_scale,
    f32_to_mxfp4,
)

Quantised = tuple[Tensor, Tensor | None]
_I8 = torch.int8


def _refuse(op: str, **arguments: Any) -> None:
    """Raise ValueError for an argument that rfops does not use, unless it is None, False or 1."""
    for name, value in arguments.items():
        if value is not None and value not in (False, 1):
            Guard(op).fail(name, "its default", show(value), "call the original")


def _max_of(dtype: torch.dtype) -> float:
    """Return the largest number of a floating-point or integer dtype."""
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return float(info.max)


def pertoken_quant(
    x: Tensor,
    scale: Tensor | None = None,
    x_scale: Tensor | None = None,
    scale_dtype: torch.dtype = torch.float32,
    quant_dtype: torch.dtype = _I8,
    dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x [..., K] in quant_dtype and its scales [..., 1] = amax / max, 1 for a row of zeros,
    in plain torch. x_scale is multiplied into x first; a given scale is used as it is."""
    values = x.float() if x_scale is None else x.float() * x_scale
    if scale is None:
        amax = values.abs().amax(-1, keepdim=True)
        scale = amax / (dtypeMax or _max_of(quant_dtype))
        scale = scale.masked_fill(scale == 0, 1.0)
    return (values / scale).to(quant_dtype), scale.to(scale_dtype)


def per_tensor_quant(
    x: Tensor,
    scale: Tensor | None = None,
    scale_dtype: torch.dtype = torch.float32,
    quant_dtype: torch.dtype = _I8,
    dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x in quant_dtype and its scale [1] = amax / max, in plain torch."""
    if scale is None:
        scale = x.float().abs().max() / (dtypeMax or _max_of(quant_dtype))
    return (x.float() / scale).to(quant_dtype), scale.reshape(1).to(scale_dtype)


def _in_torch(op: str, x: Tensor, mode: Any) -> tuple[Tensor, Tensor]:
    """Return payload [..., K/2] and e8m0 [..., K/32] of x by plain torch, of any rounding."""
    if x.shape[-1] % MX_BLOCK:
        Guard(op).fail("x", "[..., 32 n]", describe(x), "pad it with zeros")
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    scale = f32_to_mx_e8m0_scale(blocks.abs().amax(-1), mode=mode)
    payload = f32_to_mxfp4((blocks / e8m0_to_f32(scale).unsqueeze(-1)).flatten(-2))
    return payload.view(fp4x2), scale


def per_1x32_f4_quant(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = fp4x2,
    shuffle: bool = False,
    pack_dim: int = -1,
    round_mode: Any = MX_DEFAULT_ROUND_MODE,
) -> tuple[Tensor, Tensor]:
    """Return x [..., K] as MXFP4 by plain torch: payload [..., K/2] and e8m0 [rows, K/32], shuffled
    where shuffle. pack_dim=0 quantises x [K, N] along K: [K/2, N] and [K/32, N]."""
    _refuse("per_1x32_f4_quant", scale=scale)
    payload, scales = _in_torch("per_1x32_f4_quant", x.T if pack_dim == 0 else x, round_mode)
    flat = scales.reshape(-1, scales.shape[-1])
    flat = _tensor(shuffle_.e8m0_shuffle(flat)) if shuffle else flat
    if pack_dim == 0:
        transposed = (t.view(torch.uint8).T.contiguous().view(t.dtype) for t in (payload, flat))
        payload, flat = transposed
    return payload, flat


def quant_mxfp4_hip(
    x: Tensor,
    group_size: int = 32,
    round_mode: Any = MX_DEFAULT_ROUND_MODE,
    e8m0_shuffle: bool = False,
    a16w4_shuffle: bool = False,
    gate_up: bool = False,
    shuffle_weight: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return x [..., K] as MXFP4: payload [..., K/2] and e8m0 [rows, K/32], by rfops' kernel, by
    torch where round_mode is Ceil.

    e8m0_shuffle and a16w4_shuffle give scales in the layouts of shuffle_scale and, for one expert,
    of shuffle_scale_a16w4; with shuffle_weight the payload has the weights' layout beside it.
    """
    name = "quant_mxfp4_hip"
    if group_size != MX_BLOCK:
        Guard(name).fail("group_size", "32", show(group_size), "MXFP4 has blocks of 32")
    word = ROUNDINGS.get(int(round_mode))
    payload, scale = quant_mxfp4(x, word, fp4x2) if word else _in_torch(name, x, round_mode)
    scale = scale.reshape(-1, scale.shape[-1])
    if a16w4_shuffle:
        scale = _tensor(shuffle_.shuffle_scale_a16w4(scale, 1, gate_up))
        if shuffle_weight:
            payload = shuffle_.shuffle_weight_a16w4(payload.unsqueeze(0), 16, gate_up).squeeze(0)
        return payload, scale
    return (
        shuffle_.shuffle_weight(payload) if shuffle_weight else payload,
        _tensor(shuffle_.e8m0_shuffle(scale)) if e8m0_shuffle else scale,
    )


def _tensor(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def per_1x32_mx_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = fp4x2,
    shuffle: bool = False,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
    scale_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x [M, K] as MXFP4, or as MX-FP8 where quant_dtype is float8_e4m3fn and scale_type
    e8m0; scales [M, K/32], in the layout of shuffle_scale where shuffle."""
    name = "per_1x32_mx_quant_hip"
    _refuse(name, scale=scale, num_rows=num_rows, num_rows_factor=num_rows_factor)
    if quant_dtype == fp4x2:
        return quant_mxfp4_hip(x, e8m0_shuffle=shuffle)
    if quant_dtype is not torch.float8_e4m3fn or scale_type != E8M0:
        formats = f"{show(quant_dtype)} with scale_type {show(scale_type)}"
        Guard(name).fail("quant_dtype", "fp4x2, or e4m3fn with e8m0 scales", formats, "cast it")
    payload, scales = quant_mxfp8(x)
    return payload, _tensor(shuffle_.e8m0_shuffle(scales)) if shuffle else scales


def per_1x32_f4_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = fp4x2,
    shuffle: bool = False,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return per_1x32_mx_quant_hip's MXFP4."""
    return per_1x32_mx_quant_hip(x, scale, quant_dtype, shuffle, num_rows, num_rows_factor)


def per_1x32_f4_quant_triton(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = fp4x2,
    shuffle: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return x [M, K] as MXFP4, rounding even, as aiter's Triton quantiser does."""
    _refuse("per_1x32_f4_quant_triton", scale=scale)
    payload, scales = quant_mxfp4(x, "even", quant_dtype)
    return payload, _tensor(shuffle_.e8m0_shuffle(scales)) if shuffle else scales


def mxfp4_quant(
    x: Tensor, block_size_m: int = 16, block_size_n: int = 256
) -> tuple[Tensor, Tensor]:
    """aiter.ops.triton.moe.moe_op_gemm_a4w4's: x [M, K] as bytes [M, K/2] and e8m0 [M, K/32], uint8
    both, rounding even; block sizes only tune."""
    payload, scales = quant_mxfp4(x, "even")
    return payload, scales.view(torch.uint8)


def dynamic_mxfp8_quant(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """aiter.ops.triton.quant's: x [..., K] as MX-FP8 and e8m0 [..., K/32] as uint8, in `scale`
    where given."""
    if quant_dtype is not torch.float8_e4m3fn:
        Guard("dynamic_mxfp8_quant").fail(
            "quant_dtype", "float8_e4m3fn", show(quant_dtype), "MX-FP8 is OCP's"
        )
    payload, scales = quant_mxfp8(x)
    e8m0_bytes = scales.view(torch.uint8)
    return payload, e8m0_bytes if scale is None else scale.copy_(e8m0_bytes.view(scale.shape))


# ---------------------------------------------------------------- scales of rows and of tensors


def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = input / scale, one number, in FP8 or int8, saturated."""
    if out.dtype is _I8:
        out.copy_((input.float() / scale).round().clamp(-128, 127))
    else:
        quant_fp8(input, "tensor", scale.view(1), out.dtype, out)


def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """scale [1] = amax / the largest number, out = input / scale, in FP8 or int8."""
    if out.dtype is _I8:
        scale.copy_((input.float().abs().max() / 127).view(scale.shape))
        static_per_tensor_quant(out, input, scale)
    else:
        quant_fp8(input, "tensor", None, out.dtype, out, scale.view(1, 1))


def dynamic_per_token_scaled_quant(
    out: Tensor,
    input: Tensor,
    scales: Tensor,
    scale_ub: Tensor | None = None,
    shuffle_scale: bool = False,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> None:
    """scales = amax / the largest number of each row of input [..., K], out = input / scales, in
    FP8 or int8. With shuffle_scale rows are groups of 128 of out's rows [M, 128 n], and the memory
    of scales holds [n, M]. Raises ValueError for scale_ub and num_rows."""
    name = "dynamic_per_token_scaled_quant"
    _refuse(name, scale_ub=scale_ub, num_rows=num_rows)
    if shuffle_scale:
        groups = out.shape[-1] // input.shape[-1]
        if input.shape[-1] != 128 or out.dtype is _I8:
            shapes = f"{describe(input)} to {describe(out)}"
            Guard(name).fail("input", "[rows, 128] to FP8 with shuffle_scale", shapes, "")
        payload, group_scales = quant_fp8_blockscale(
            input.view(-1, out.shape[-1]), (1, 128), True, out.dtype
        )
        out.copy_(payload.view(out.shape))
        scales.view(groups, -1).copy_(group_scales.T)
    elif out.dtype is _I8:
        payload, token_scales = pertoken_quant(input, quant_dtype=_I8)
        out.copy_(payload.view(out.shape))
        scales.copy_(token_scales.view(scales.shape))
    else:
        quant_fp8(input, "token", None, out.dtype, out.view(input.shape), scales.view(-1, 1))


def per_token_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = _I8,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return x [..., K] in quant_dtype and the scales of its rows [..., 1]."""
    _refuse("per_token_quant_hip", scale=scale)
    payload, token_scales = (
        x.new_empty(x.shape, dtype=quant_dtype),
        x.new_empty((*x.shape[:-1], 1), dtype=torch.float32),
    )
    dynamic_per_token_scaled_quant(payload, x.contiguous(), token_scales, num_rows=num_rows)
    return payload, token_scales


def per_tensor_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = _I8,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return x in quant_dtype and its scale [1], found or as given."""
    _refuse("per_tensor_quant_hip", num_rows=num_rows)
    payload = x.new_empty(x.shape, dtype=quant_dtype)
    if scale is None:
        scale = x.new_empty(1, dtype=torch.float32)
        dynamic_per_tensor_quant(payload, x, scale)
    else:
        static_per_tensor_quant(payload, x, scale)
    return payload, scale.view(1)


def _no_quant(x: Tensor, *_args: Any, **_kwargs: Any) -> Quantised:
    return x, None


def _by_blocks(x: Tensor, scale: Tensor | None = None, quant_dtype: Any = _I8) -> Quantised:
    """Return pertoken_quant of each 128 columns: payload [M, K], scales [M, K/128]."""
    m, k = x.shape
    payload, scales = pertoken_quant(x.reshape(-1, 128), scale, quant_dtype=quant_dtype)
    return payload.view(m, k), scales.view(m, k // 128)


Quantisers = Mapping[int, Callable[..., Any]]
_TORCH: Quantisers = MappingProxyType(
    {
        QuantType.No: _no_quant,
        QuantType.per_Tensor: per_tensor_quant,
        QuantType.per_Token: pertoken_quant,
        QuantType.per_1x32: per_1x32_f4_quant,
        QuantType.per_1x128: _by_blocks,
    }
)
_HIP: Quantisers = MappingProxyType(
    {
        QuantType.No: _no_quant,
        QuantType.per_Tensor: per_tensor_quant_hip,
        QuantType.per_Token: per_token_quant_hip,
        QuantType.per_1x32: per_1x32_mx_quant_hip,
        QuantType.per_1x128: functools.partial(per_group_quant_hip, group_size=128),
    }
)
_TRITON: Quantisers = MappingProxyType(
    {
        QuantType.No: _no_quant,
        QuantType.per_Tensor: per_tensor_quant_hip,
        QuantType.per_Token: per_token_quant_hip,
        QuantType.per_1x32: per_1x32_f4_quant_triton,
        QuantType.per_1x128: _HIP[QuantType.per_1x128],
    }
)


def _quantiser(table: Quantisers, getter: str, kind: Any) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        served = ", ".join(QuantType(k).name for k in table)
        name = f"aiter.{getter}({QuantType(int(kind)).name})"
        raise NotImplementedError(f"{name} is not served by rfops, which has {served}")

    return table.get(int(kind), refuse)


def get_torch_quant(qType: Any) -> Callable[..., Any]:
    """Return the reference quantiser of a QuantType; one that rfops lacks raises when called."""
    return _quantiser(_TORCH, "get_torch_quant", qType)


def get_hip_quant(qType: Any) -> Callable[..., Any]:
    """Return rfops' quantiser of a QuantType; one that rfops lacks raises when called."""
    return _quantiser(_HIP, "get_hip_quant", qType)


def get_triton_quant(qType: Any) -> Callable[..., Any]:
    """Return the quantiser that rounds as aiter's Triton one; others raise when called."""
    return _quantiser(_TRITON, "get_triton_quant", qType)
