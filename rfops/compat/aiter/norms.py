"""aiter's norms, by rms_norm and rms_norm_quant: aiter.ops.rmsnorm's, those of q and k, and
aiter.ops.triton's that return what they make.

y is rounded to the dtype of its input before it is quantised (rfops/quantization/rows.py), where
aiter quantises fp32. gemma_norm multiplies by 1 + weight, in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.declare import DTYPES
from rfops.dispatch.guards import Guard, describe
from rfops.jit.errors import show
from rfops.moe.moe_dropins import QuantType
from rfops.quantization.fp8 import quant_fp8
from rfops.quantization.rows import FORMATS
from rfops.rowwise import dropins
from rfops.rowwise.rms_norm import rms_norm as _rms_norm
from rfops.rowwise.rms_norm_quant import rms_norm_quant as _rms_norm_quant

rms_norm = dropins.rmsnorm2d_fwd  # by both of aiter's names
_CALL = "call the original"
_Pair = tuple[Tensor, Tensor]


def _format(name: str, out: Tensor, scale: Tensor, group_size: int) -> str:
    """Return the quantisation by out's dtype, the scale's and the elements that share one."""
    is_fp4 = out.dtype in DTYPES["fp4"]
    if scale.element_size() == 1 or is_fp4:
        quant = "mxfp4" if is_fp4 else "mxfp8"
    else:
        quant = "fp8_group" if group_size else "fp8_token"
    if group_size != FORMATS[quant].block:
        expected = f"{FORMATS[quant].block} for {quant}"
        Guard(name).fail("group_size", expected, show(group_size), _CALL)
    if not out.is_floating_point() and not is_fp4:
        Guard(name).fail("out", "FP8 or MXFP4", describe(out), "rfops has no norms to int8")
    return quant


def _quantise(
    name: str,
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    epsilon: float,
    out: Tensor,
    scale: Tensor,
    group_size: int,
    shuffle_scale: bool,
) -> None:
    """out and scale = the norm of x [M, K], or of x + residual in place, quantised. shuffle_scale:
    the memory of scale, of any shape, holds [K/128, M]."""
    quant = _format(name, out, scale, group_size)
    if shuffle_scale and quant != "fp8_group":
        Guard(name).fail("shuffle_scale", f"False for {quant}", "True", "call e8m0_shuffle after")
    m, k = x.shape
    groups = k // group_size if group_size else 1
    memory = scale.T if shuffle_scale and not scale.is_contiguous() else scale
    memory = memory.view((groups, m) if shuffle_scale else (m, groups))
    values = epsilon, quant, None, shuffle_scale, out.dtype
    _rms_norm_quant(x, weight, residual, *values, out, memory)


def _sum_in(residual_in: Tensor, residual_out: Tensor) -> Tensor:
    """Return residual_out with the residual in it, to be added to in place."""
    if residual_out.data_ptr() != residual_in.data_ptr():
        residual_out.copy_(residual_in)
    return residual_out


def rmsnorm(
    out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False
) -> None:
    """out [M, K] = the norm of input."""
    _rms_norm(input, dropins.norm_weight(weight, gemma_norm), None, epsilon, out)


def add_rmsnorm(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
) -> None:
    """residual_out = input + residual_in, out = its norm."""
    dropins.rmsnorm2d_fwd_with_add(
        out, input, residual_in, residual_out, weight, epsilon, gemma_norm
    )


def rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    scale: Tensor,
    weight: Tensor,
    epsilon: float,
    group_size: int = 0,
    shuffle_scale: bool = False,
    gemma_norm: bool = False,
) -> None:
    """out and scale = the norm of input [M, K], quantised: FP8 by row (group_size 0) or by 128
    with fp32 scales, MX-FP8 or MXFP4 by 32 with e8m0. Raises ValueError for int8."""
    factor = dropins.norm_weight(weight, gemma_norm)
    quant_arguments = out, scale, group_size, shuffle_scale
    _quantise("rmsnorm_quant", input, factor, None, epsilon, *quant_arguments)


def add_rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    scale: Tensor,
    weight: Tensor,
    epsilon: float,
    group_size: int = 0,
    shuffle_scale: bool = False,
    gemma_norm: bool = False,
) -> None:
    """residual_out = input + residual_in; out and scale = its norm, as rmsnorm_quant's."""
    factor = dropins.norm_weight(weight, gemma_norm)
    quant_arguments = out, scale, group_size, shuffle_scale
    residual = _sum_in(residual_in, residual_out)
    _quantise("add_rmsnorm_quant", input, factor, residual, epsilon, *quant_arguments)


def rmsnorm2d_fwd_with_dynamicquant(
    out: Tensor,
    input: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    """rmsnorm_quant by its former name."""
    _refuse_t5("rmsnorm2d_fwd_with_dynamicquant", use_model_sensitive_rmsnorm)
    rmsnorm_quant(out, input, yscale, weight, epsilon, group_size, shuffle_scale)


def rmsnorm2d_fwd_with_add_dynamicquant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    """add_rmsnorm_quant by its former name."""
    _refuse_t5("rmsnorm2d_fwd_with_add_dynamicquant", use_model_sensitive_rmsnorm)
    residuals = residual_in, residual_out
    add_rmsnorm_quant(out, input, *residuals, yscale, weight, epsilon, group_size, shuffle_scale)


def _refuse_t5(name: str, sensitive: int) -> None:
    if sensitive:
        Guard(name).fail("use_model_sensitive_rmsnorm", "0", show(sensitive), _CALL)


# ---------------------------------------------------------------- norms of q and k


def norms_of_q_and_k(
    q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor, k_weight: Tensor, k_eps: float
) -> _Pair:
    """The norms of q [M, K] and k [M, K'], new: fused_qk_rmsnorm of aiter before its pull request
    2958."""
    return _fused_qk_rmsnorm(None, q, q_weight, q_eps, None, k, k_weight, k_eps)


def _fused_qk_rmsnorm(
    q_out: Tensor | None,
    q: Tensor,
    q_weight: Tensor,
    q_eps: float,
    k_out: Tensor | None,
    k: Tensor,
    k_weight: Tensor,
    k_eps: float,
) -> _Pair:
    """The norms of q and k, in q_out and k_out where given."""
    normed = _rms_norm(q, q_weight, None, q_eps, q_out)
    return normed, _rms_norm(k, k_weight, None, k_eps, k_out)


def fused_qk_rmsnorm_group_quant(
    q_out_quantized: Tensor | None = None,
    q_out_scale: Tensor | None = None,
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
    q_epsilon: float = 1e-6,
    q_out_unquantized: Tensor | None = None,
    k_out: Tensor | None = None,
    q_res_out: Tensor | None = None,
    k: Tensor | None = None,
    k_weight: Tensor | None = None,
    k_epsilon: float | None = None,
    q_residual: Tensor | None = None,
    group_size: int = 128,
    transpose_scale: bool = False,
    gemma_norm: bool = False,
) -> None:
    """q_out_quantized and q_out_scale = the norm of q [M, K], or of q_res_out = q + q_residual,
    quantised as rmsnorm_quant does; q_out_unquantized = the norm itself; k_out = that of k. Without
    q_out_scale nothing is quantised."""
    name = "fused_qk_rmsnorm_group_quant"
    if q is None or q_weight is None or (q_residual is not None and q_res_out is None):
        Guard(name).fail("q, q_weight and q_res_out", "tensors", "None", "pass them")
    assert q is not None and q_weight is not None
    factor, residual, x = dropins.norm_weight(q_weight, gemma_norm), None, q
    if q_residual is not None:
        assert q_res_out is not None
        residual = _sum_in(q_residual, q_res_out)
    if q_out_scale is not None:
        if q_out_quantized is None:
            Guard(name).fail("q_out_quantized", "a tensor", "None", "pass it with q_out_scale")
        assert q_out_quantized is not None
        quant_arguments = q_out_quantized, q_out_scale, group_size, transpose_scale
        _quantise(name, x, factor, residual, q_epsilon, *quant_arguments)
        x, residual = (x, None) if residual is None else (residual, None)  # the sum is made
    if q_out_unquantized is not None:
        _rms_norm(x, factor, residual, q_epsilon, q_out_unquantized)
    if k is not None:
        if k_weight is None:
            Guard(name).fail("k_weight", "a tensor", "None", "pass it with k")
        assert k_weight is not None
        eps = q_epsilon if k_epsilon is None else k_epsilon
        _rms_norm(k, dropins.norm_weight(k_weight, gemma_norm), None, eps, k_out)


def fused_qk_rmsnorm_per_token_quant(
    q_out_quantized: Tensor,
    q_out_scale: Tensor,
    q: Tensor,
    q_weight: Tensor,
    q_epsilon: float,
    q_out_unquantized: Tensor | None = None,
    k_out: Tensor | None = None,
    q_res_out: Tensor | None = None,
    k: Tensor | None = None,
    k_weight: Tensor | None = None,
    k_epsilon: float | None = None,
    q_residual: Tensor | None = None,
    gemma_norm: bool = False,
) -> None:
    """The same with a scale for each row of q, q_out_scale [M, 1]."""
    of_q = q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized
    of_k = k_out, q_res_out, k, k_weight, k_epsilon
    fused_qk_rmsnorm_group_quant(*of_q, *of_k, q_residual, 0, False, gemma_norm)


def fused_qk_rmsnorm(
    q_out_quantized: Tensor | None = None,
    q_out_scale: Tensor | None = None,
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
    q_epsilon: float = 1e-6,
    q_out_unquantized: Tensor | None = None,
    k_out: Tensor | None = None,
    q_res_out: Tensor | None = None,
    k: Tensor | None = None,
    k_weight: Tensor | None = None,
    k_epsilon: float | None = None,
    q_residual: Tensor | None = None,
    gemma_norm: bool = False,
    quant_type: Any = QuantType.No,
    group_size: int | None = None,
    transpose_scale: bool = False,
) -> None:
    """The norms of q and k by quant_type: No (into q_out_quantized, which is then not quantised),
    per_Token, per_1x128 and its kin, per_1x32."""
    kind = QuantType(int(quant_type))
    of_k = k_out, q_res_out, k, k_weight, k_epsilon
    if kind is QuantType.No:
        if gemma_norm or q_residual is not None:  # which aiter's leaves out, in silence
            argument = "gemma_norm" if gemma_norm else "q_residual"
            hint = "call fused_qk_rmsnorm_group_quant without q_out_scale"
            Guard("fused_qk_rmsnorm").fail("quant_type", f"another with {argument}", "No", hint)
        rows = (None, None, q, q_weight, q_epsilon, q_out_quantized)
        fused_qk_rmsnorm_group_quant(*rows, *of_k)
        return
    if kind is QuantType.per_Tensor:
        Guard("fused_qk_rmsnorm").fail("quant_type", "another", "per_Tensor", "take per_Token")
    block = 32 if kind is QuantType.per_1x32 else 128
    size = 0 if kind is QuantType.per_Token else group_size or block
    of_q = q_out_quantized, q_out_scale, q, q_weight, q_epsilon, q_out_unquantized
    fused_qk_rmsnorm_group_quant(*of_q, *of_k, q_residual, size, transpose_scale, gemma_norm)


# ---------------------------------------------------------------- aiter.ops.triton


def _second(x: Tensor | None, weight: Tensor | None, epsilon: float | None) -> Tensor | None:
    return None if x is None else dropins.rmsnorm2d_fwd(x, weight, epsilon)  # type: ignore[arg-type]


def _copied(residual: Tensor | None) -> Tensor | None:
    return None if residual is None else residual.clone(memory_format=torch.contiguous_format)


def fused_rms_fp8_group_quant(
    inp1: Tensor,
    inp1_weight: Tensor,
    inp1_epsilon: float,
    inp2: Tensor | None = None,
    inp2_weight: Tensor | None = None,
    inp2_epsilon: float | None = None,
    group_size: int = 128,
    dtype_quant: torch.dtype | None = None,
    res1: Tensor | None = None,
    output_unquantized_inp1: bool = False,
    transpose_scale: bool = False,
    is_x_scale_strided: bool = False,
) -> tuple[_Pair, Tensor | None, Tensor | None, Tensor | None]:
    """(payload [M, K], scale [M, K/128]) of the norm of inp1, or of the sum inp1 + res1; the norm
    itself where output_unquantized_inp1; the norm of inp2; the sum.

    transpose_scale: the scale's memory holds its transpose, which its strides say where
    is_x_scale_strided, else not.
    """
    if group_size != 128:
        Guard("fused_rms_fp8_group_quant").fail("group_size", "128", show(group_size), _CALL)
    total = _copied(res1)
    values = inp1_epsilon, "fp8_group", None, transpose_scale, dtype_quant
    payload, scale = _rms_norm_quant(inp1, inp1_weight, total, *values)
    if transpose_scale and not is_x_scale_strided:
        scale = scale.T.view(scale.shape)
    x = inp1 if total is None else total
    normed = _rms_norm(x, inp1_weight, None, inp1_epsilon) if output_unquantized_inp1 else None
    return (payload, scale), normed, _second(inp2, inp2_weight, inp2_epsilon), total


def fused_rms_fp8_per_tensor_static_quant(
    inp1: Tensor,
    inp1_weight: Tensor,
    inp1_epsilon: float,
    inp1_scale: Tensor,
    inp2: Tensor | None = None,
    inp2_weight: Tensor | None = None,
    inp2_epsilon: float | None = None,
    dtype_quant: torch.dtype | None = None,
    res1: Tensor | None = None,
    output_unquantized_inp1: bool = False,
    rmsnorm_convert_to_inp1_type: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The payload for the given scale, one number; then as fused_rms_fp8_group_quant. The norm is
    rounded to inp1's dtype before, whatever rmsnorm_convert_to_inp1_type says."""
    total = _copied(res1)
    values = inp1_epsilon, "fp8_tensor", inp1_scale.view(1), False, dtype_quant
    payload, _ = _rms_norm_quant(inp1, inp1_weight, total, *values)
    x = inp1 if total is None else total
    normed = _rms_norm(x, inp1_weight, None, inp1_epsilon) if output_unquantized_inp1 else None
    return payload, normed, _second(inp2, inp2_weight, inp2_epsilon), total


def fused_add_rmsnorm_pad(
    x: Tensor,
    weight: Tensor,
    epsilon: float,
    res: Tensor | None = None,
    x_pad_to_multiple: int = 0,
) -> Tensor | _Pair:
    """The norm of x [M, K], or of the sum x + res, with zeros up to a multiple of
    x_pad_to_multiple columns; and the sum where there is one."""
    m, k = x.shape
    total, out = _copied(res), None
    padding = -k % x_pad_to_multiple if x_pad_to_multiple else 0
    if padding:
        out = x.new_zeros(m, k + padding)
    normed = _rms_norm(x, weight, total, epsilon, None if out is None else out[:, :k])
    normed = normed if out is None else out
    return normed if total is None else (normed, total)


def rms_norm_triton(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm of input [M, K], new."""
    return _rms_norm(input, weight, None, epsilon)


def rmsnorm2d_fwd_with_add_triton(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
) -> None:
    """add_rmsnorm."""
    add_rmsnorm(out, input, residual_in, residual_out, weight, epsilon)


def fused_rms_gated_fp8_group_quant(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor,
    eps: float,
    *,
    norm_before_gate: bool = True,
    use_ue8m0: bool = False,
    activation: str = "silu",
    out_dtype: torch.dtype | None = None,
    fp8_min: float | None = None,
    fp8_max: float | None = None,
    fp8_min_scaling_factor: float | None = None,
    group_size: int | None = None,
) -> _Pair:
    """payload [M, K] and scale [M, K/group_size] (without group_size of a row, [M]) of the norm of
    x, plus bias, times silu or sigmoid of z; without norm_before_gate x is multiplied before. Norm
    and quantisation are rfops' kernels on fp32, the gate is torch's; the smallest scale is
    quant_fp8's. Raises ValueError for e8m0 scales and for bounds of FP8."""
    name = "fused_rms_gated_fp8_group_quant"
    bounds = {
        "fp8_min": fp8_min,
        "fp8_max": fp8_max,
        "fp8_min_scaling_factor": fp8_min_scaling_factor,
    }
    for argument, value in {"use_ue8m0": use_ue8m0 or None, **bounds}.items():
        if value is not None:
            Guard(name).fail(argument, "its default", show(value), _CALL)
    if activation not in ("silu", "swish", "sigmoid"):
        Guard(name).fail("activation", "silu, swish or sigmoid", show(activation), _CALL)
    gate = torch.sigmoid(z.float())
    gate = gate if activation == "sigmoid" else gate * z.float()
    y = _rms_norm(x.float() if norm_before_gate else x.float() * gate, weight, None, eps)
    y = y if bias is None else y + bias
    y = y * gate if norm_before_gate else y
    payload, scale = quant_fp8(y.view(-1, group_size or y.shape[-1]), "token", None, out_dtype)
    return payload.view(x.shape), scale.view(-1) if group_size is None else scale.view(len(x), -1)
