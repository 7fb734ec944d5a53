"""Drop-ins for aiter's MXFP4 GEMMs and quantisation, which rfops.compat gives out.

Each has aiter's names and order of parameters and always has a result. What a function's name says
of the order of weights and scales in memory is taken as such: `gemm_a4w4` has shuffled scales, and
shuffled weights with bpreshuffle; `_preshuffle` both, as [N/16, 8 K] and [N/32, K]; the others raw
ones. Tiles are rfops' own: a `config` is refused, as is what would change the kind of the result.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.dispatch.layout import Shuffled
from rfops.jit.errors import show
from rfops.quantization.mxfp4 import quant_mxfp4
from rfops.quantization.shuffle import SCALE, TILE_ROWS, WEIGHT

from .a16wfp4 import gemm_a16wfp4 as _gemm_a16wfp4
from .afp4wfp4 import gemm_afp4wfp4 as _gemm_afp4wfp4

BF16 = torch.bfloat16
Dtype = torch.dtype | None
Config = dict[str, Any] | None


def _fail(op: str, name: str, expected: str, value: object, way_out: str) -> NoReturn:
    Guard(op).fail(name, expected, show(value), way_out)


def _refuse(op: str, **options: Any) -> None:
    """Refuse arguments that rfops has no use for, unless they are None or False."""
    for name, value in options.items():
        if value:
            way_out = "rfops takes its own tuned table" if name == "config" else "pass none"
            _fail(op, name, "None or False", value, way_out)


def gemm_a4w4(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = BF16,
    alpha: float | None = 1.0,
    beta: float | None = 0.0,
    bpreshuffle: bool | None = True,
    apreshuffle: bool | None = False,
    global_A_scale: Tensor | None = None,
    global_B_scale: Tensor | None = None,
) -> Tensor:
    """alpha * A @ B^T + bias, [..., N] of dtype: A [..., K/2] and B [N, K/2], two e2m1 a byte,
    scales as shuffle_scale leaves them, B as shuffle_weight does with bpreshuffle; bias [1, N] or
    [N].

    Older callers, vLLM among them, pass in bias' place an `out` of M rounded up to 32 rows, which
    is told by these rows; its first M are written, and it is returned."""
    _refuse("gemm_a4w4", apreshuffle=apreshuffle)
    for name, scale in (("global_A_scale", global_A_scale), ("global_B_scale", global_B_scale)):
        if scale is not None:
            _fail("gemm_a4w4", name, "None", describe(scale), "scales of a tensor are NVFP4's")
    if beta:
        _fail("gemm_a4w4", "beta", "0 or None", beta, "there is no C to add; add it to the result")
    x, n = A.view(-1, A.shape[-1]), B.shape[0]
    w = Shuffled(B, WEIGHT) if bpreshuffle else B
    scales = Shuffled(A_scale, SCALE), Shuffled(B_scale, SCALE)
    out = None
    if bias is not None and bias.dim() == 2 and bias.shape[0] >= TILE_ROWS:
        out, dtype, bias = bias, bias.dtype, None
    if bias is not None:
        bias = bias.reshape(-1)
    if alpha not in (None, 1.0):
        product = alpha * _gemm_afp4wfp4(x, w, *scales, torch.float32)
        product = (product if bias is None else product + bias).to(dtype)
        if out is None:
            return product.view(*A.shape[:-1], n)
        out[: x.shape[0]] = product
    elif out is None:
        return _gemm_afp4wfp4(x, w, *scales, dtype, bias=bias).view(*A.shape[:-1], n)
    else:
        _gemm_afp4wfp4(x, w, *scales, dtype, out[: x.shape[0]])
    return out


def gemm_a16wfp4(
    x: Tensor,
    w: Tensor,
    w_scales: Tensor,
    atomic_add: bool | None = False,
    dtype: Dtype = BF16,
    y: Tensor | None = None,
    config: Config = None,
) -> Tensor:
    """quant(x) @ w^T, [M, N]: x [M, K] of 16 bits, w [N, K/2], w_scales [N, K/32], all raw; in y
    where given, and added to it with atomic_add."""
    _refuse("gemm_a16wfp4", config=config)
    if y is not None and atomic_add:
        return y.add_(_gemm_a16wfp4(x, w, w_scales, torch.float32))
    return _gemm_a16wfp4(x, w, w_scales, _dtype(dtype, y), y)


def gemm_a16wfp4_preshuffle(
    x: Tensor,
    w: Tensor,
    w_scales: Tensor,
    prequant: bool | None = True,
    dtype: Dtype = BF16,
    y: Tensor | None = None,
    config: Config = None,
    skip_reduce: bool | None = False,
) -> Tensor:
    """The same for shuffled w [N/16, 8 K] and w_scales [N/32, K]."""
    _refuse("gemm_a16wfp4_preshuffle", config=config, skip_reduce=skip_reduce)
    if not prequant:
        _fail("gemm_a16wfp4_preshuffle", "prequant", "True", prequant, "x is quantised inside")
    return _gemm_a16wfp4(x, _weight(w), _scale(w_scales), _dtype(dtype, y), y)


def gemm_afp4wfp4(
    x: Tensor,
    w: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: Dtype = BF16,
    y: Tensor | None = None,
    config: Config = None,
    skip_reduce: bool | None = False,
) -> Tensor:
    """x @ w^T, [M, N]: x [M, K/2], w [N, K/2], scales [M, K/32] and [N, K/32] of any strides."""
    _refuse("gemm_afp4wfp4", config=config, skip_reduce=skip_reduce)
    return _gemm_afp4wfp4(x, w, x_scales, w_scales, _dtype(dtype, y), y)


def gemm_afp4wfp4_preshuffle(
    x_fp4: Tensor,
    w_preshuf: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: Dtype = BF16,
    y: Tensor | None = None,
    config: Config = None,
    skip_reduce: bool | None = False,
) -> Tensor:
    """The same for shuffled w [N/16, 8 K] and w_scales [N/32, K]; x_scales so too from M = 32 on,
    and raw [M, K/32] below."""
    _refuse("gemm_afp4wfp4_preshuffle", config=config, skip_reduce=skip_reduce)
    x_scale = _scale(x_scales) if x_fp4.shape[0] >= TILE_ROWS else x_scales
    w = _weight(w_preshuf)
    return _gemm_afp4wfp4(x_fp4, w, x_scale, _scale(w_scales), _dtype(dtype, y), y)


def gemm_afp4wfp4_preshuffled_weight_scales(
    x: Tensor,
    w: Tensor,
    x_scales: Tensor,
    w_scales: Tensor,
    dtype: Dtype = BF16,
    y: Tensor | None = None,
    config: Config = None,
) -> Tensor:
    """The former name of gemm_afp4wfp4_preshuffle, by which vLLM calls it."""
    return gemm_afp4wfp4_preshuffle(x, w, x_scales, w_scales, dtype, y, config)


def dynamic_mxfp4_quant(x: Tensor, scaling_mode: str = "even") -> tuple[Tensor, Tensor]:
    """Payload [M, K/2] and e8m0 [M, K/32] of x, both uint8: the same bytes for finite blocks below
    1.75 * 2^127, and NaN's scale for a block that is not finite. K a multiple of 32."""
    payload, scale = quant_mxfp4(x, scaling_mode)
    return payload, scale.view(torch.uint8)


def _dtype(dtype: torch.dtype | None, y: Tensor | None) -> torch.dtype:
    """A result that is given says its dtype, as with aiter."""
    return y.dtype if y is not None else dtype or BF16


def _weight(w: Tensor) -> Shuffled:
    """[N/16, 16 * K/2] as [N, K/2]."""
    return Shuffled(w.view(w.shape[0] * 16, w.shape[1] // 16), WEIGHT)


def _scale(scales: Tensor) -> Shuffled:
    """[N/32, 32 * K/32] as [N, K/32]."""
    return Shuffled(scales.view(scales.shape[0] * 32, scales.shape[1] // 32), SCALE)
