"""aiter's gated activations, by act_mul and act_mul_quant: aiter.ops.activation's, which write
`out`, and aiter.ops.triton's, which return what they make. x [..., 2 K] is gate, then up."""

from __future__ import annotations

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.jit.errors import show
from rfops.quantization.fp8 import quant_fp8
from rfops.quantization.fp8_blockscale import quant_fp8_blockscale
from rfops.quantization.mxfp8 import quant_mxfp8
from rfops.rowwise.act_mul import act_mul
from rfops.rowwise.act_mul_quant import act_mul_quant

from . import shuffle

_CALL = "call the original"
_Clamp = tuple[str, bool, float, float, float]


def _clamped(name: str, activation: str, limit: float) -> _Clamp:
    """Return act_mul's words: SiLU of a gate of at most limit times up within it; 0 is no limit."""
    if limit <= 0:
        return activation, False, 1.0, 0.0, 0.0
    if activation != "silu":
        Guard(name).fail("activation", "silu with a limit", show(activation), _CALL)
    return "swiglu", False, 1.0, float(limit), 0.0


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
    """out [..., K] = silu(gate) * up; with a limit gate is at most that, and up within it. A dtype
    of out that is not input's is converted to by torch."""
    _write(out, input, _clamped("silu_and_mul", "silu", limit))


def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """The same by gelu, with erf."""
    _write(out, input, _clamped("gelu_and_mul", "gelu", 0))


def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """The same by gelu, with tanh."""
    _write(out, input, _clamped("gelu_tanh_and_mul", "gelu_tanh", 0))


def _write(out: Tensor, x: Tensor, words: _Clamp) -> None:
    if out.dtype == x.dtype:
        act_mul(x, *words, out)
    else:
        out.copy_(act_mul(x, *words))


def swiglu_and_mul(out: Tensor, input: Tensor) -> None:
    """out = GPT-OSS's clamped swiglu, alpha 1.702, limit 7, of halves."""
    act_mul(input, "swiglu", out=out)


def scaled_silu_and_mul(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = fp8(silu(gate) * up / scale), scale one number."""
    rows, result = input.view(-1, input.shape[-1]), out.view(-1, out.shape[-1])
    act_mul_quant(rows, "silu", "fp8_tensor", scale.view(1), dtype=out.dtype, payload=result)


def silu_and_mul_quant(
    out: Tensor,
    input: Tensor,
    scale: Tensor,
    group_size: int,
    limit: float = 0.0,
    shuffle_scale: bool = False,
) -> None:
    """out [M, K] and scale = silu(gate) * up in FP8 by rows (group_size 0), by 128, or by another
    number of elements, in two launches; scale's memory holds [K/128, M] with shuffle_scale."""
    name = "silu_and_mul_quant"
    if not out.is_floating_point() or out.shape[-1] * 2 != input.shape[-1]:
        Guard(name).fail("out", "FP8 [M, K]", describe(out), _CALL)
    if group_size not in (0, 128):
        if shuffle_scale:
            Guard(name).fail("shuffle_scale", "False but for 128", "True", _CALL)
        y = act_mul(input, *_clamped(name, "silu", limit)).view(-1, group_size)
        quant_fp8(y, "token", None, out.dtype, out.view(y.shape), scale.view(-1, 1))
        return
    (m, k), quant = out.shape, "fp8_group" if group_size else "fp8_token"
    groups = k // 128 if group_size else 1
    memory = scale.T if shuffle_scale and not scale.is_contiguous() else scale
    act_mul_quant(
        input,
        *_split_quant(_clamped(name, "silu", limit), quant),
        transpose_scale=shuffle_scale,
        dtype=out.dtype,
        payload=out,
        scale=memory.view((groups, m) if shuffle_scale else (m, groups)),
    )


def _split_quant(words: _Clamp, quant: str) -> tuple[str, str, None, bool, float, float, float]:
    """act_mul's words as act_mul_quant takes them."""
    activation, interleaved, *numbers = words
    alpha, limit, beta = numbers
    return activation, quant, None, interleaved, alpha, limit, beta


# ---------------------------------------------------------------- aiter.ops.triton


def act_mul_and_fp8_group_quant(
    x: Tensor, activation: str, group_size: int, dtype_quant: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """payload [M, K] and scale [M, K/128] of activation(gate) * up: silu, gelu or gelu_tanh."""
    if group_size != 128:
        Guard("act_mul_and_fp8_group_quant").fail("group_size", "128", show(group_size), _CALL)
    return act_mul_quant(x, activation, dtype=dtype_quant)


def fused_clamp_act_mul(
    inp: Tensor,
    out: Tensor | None = None,
    scale: Tensor | None = None,
    swiglu_limit: float = 0,
    activation: str = "silu",
    weights: Tensor | None = None,
    dtype_quant: torch.dtype | None = None,
    transpose_scale: bool = False,
    quant_block_size: int = 128,
    scale_dtype_fmt: str = "fp32",
    shuffle_scale: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out [M, K] = activation(gate) * up, clamped where swiglu_limit is more than 0, times weights
    [M, 1] or [M, K] (in torch). With dtype_quant (out, scale): FP8 with fp32 scales of
    128, [K/128, M] with transpose_scale; or "ue8m0" of 32, uint8, which is MX-FP8, in
    shuffle_scale's layout where so said."""
    name = "fused_clamp_act_mul"
    words = _clamped(name, activation, swiglu_limit)
    if dtype_quant is None and weights is None and (out is None or out.dtype == inp.dtype):
        return act_mul(inp, *words, out)
    is_mx = scale_dtype_fmt == "ue8m0"
    if dtype_quant is not None and quant_block_size != (32 if is_mx else 128):
        expected = "32 for ue8m0, 128 for fp32"
        Guard(name).fail("quant_block_size", expected, show(quant_block_size), _CALL)
    if weights is not None or dtype_quant is None:
        y = act_mul(inp, *words)
        y = y if weights is None else (y.float() * weights).to(inp.dtype)
        if dtype_quant is None:
            return y if out is None else out.copy_(y)
        results = quant_mxfp8(y) if is_mx else _by_groups(y, transpose_scale, dtype_quant)
    else:
        quant = "mxfp8" if is_mx else "fp8_group"
        values = _split_quant(words, quant)
        payload, scales = act_mul_quant(
            inp, *values, transpose_scale=transpose_scale, dtype=dtype_quant
        )
        results = payload, scales.T if transpose_scale else scales
    return _placed(results, out, scale, shuffle_scale)


def _by_groups(y: Tensor, transposed: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return y [M, K] in FP8 `dtype` and its fp32 scales of 128, [K/128, M] where transposed."""
    payload, scales = quant_fp8_blockscale(y, (1, 128), transposed, dtype)
    return payload, scales.T if transposed else scales


def _placed(
    results: tuple[Tensor, Tensor], out: Tensor | None, scale: Tensor | None, shuffled: bool
) -> tuple[Tensor, Tensor]:
    """Return payload and scales, written to `out` and `scale` where these are tensors; e8m0 scales
    as bytes, in shuffle_scale's layout where shuffled."""
    payload, scales = results
    if scales.element_size() == 1:
        tiles = shuffle.e8m0_shuffle(scales) if shuffled else scales
        assert tiles is not None
        scales = tiles.view(torch.uint8)
    return (
        payload if out is None else out.copy_(payload),
        scales if scale is None else scale.copy_(scales),
    )


def fused_flatten_fp8_group_quant(
    x: Tensor,
    group_size: int,
    dtype_quant: torch.dtype | None = None,
    transpose_scale: bool = False,
) -> tuple[Tensor, Tensor]:
    """payload [M, N1 * N2] of x [M, N1, N2] and scale [M, N1 * N2 / 128], column-major with
    transpose_scale."""
    if group_size != 128:
        Guard("fused_flatten_fp8_group_quant").fail("group_size", "128", show(group_size), _CALL)
    return quant_fp8_blockscale(x.reshape(len(x), -1), (1, 128), transpose_scale, dtype_quant)


def downcast_to_static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """fp8(x / scale) of x [M, K], scale one number, saturated."""
    return quant_fp8(x, "tensor", scale.view(1))[0]


def fused_sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x times the sigmoid of gate, by torch, in fp32 before it is rounded."""
    return (x.float() * gate.float().sigmoid()).to(x.dtype)
