"""Drop-ins with the names, signatures and meaning of vLLM's and aiter's ops on rows.

vLLM 0.33's of torch.ops._C write into the tensors that they are given, as here. aiter's are those
of commit 0bc300f. Results are rounded once, where theirs may round a norm before its weight; FP8 of
gfx942 is scaled to its largest number, 240, where vLLM takes 224. What rfops computes nothing for
is refused by name (ValueError), so that a caller can keep the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rfops.dispatch.guards import Guard
from rfops.jit.errors import show
from rfops.quantization.fp8 import quant_fp8

from .act_mul import act_mul
from .act_mul_quant import act_mul_quant
from .rms_norm import rms_norm as _rms_norm
from .rms_norm_quant import rms_norm_quant

NAMES = (
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "fused_add_rms_norm",
    "fused_add_rms_norm_static_fp8_quant",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "rmsnorm2d_fwd",
    "rmsnorm2d_fwd_with_add",
    "silu_and_mul",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_quant",
    "silu_and_mul_with_clamp",
    "static_scaled_fp8_quant",
    "swigluoai_and_mul",
)


def _refuse(name: str, **values: Any) -> None:
    """Refuse what is not at its neutral value, given as (value, neutral)."""
    for argument, (value, neutral) in values.items():
        if value is not neutral and value != neutral:
            Guard(name).fail(argument, show(neutral), show(value), "call the original")


def _required_weight(name: str, weight: Tensor | None) -> Tensor:
    if weight is None:
        Guard(name).fail("weight", "a tensor", "None", "call the original")
    assert weight is not None
    return weight


# ---------------------------------------------------------------- norms


def rms_norm(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """vLLM's: result [..., hidden] = input over its root mean square, times weight."""
    _rms_norm(input, _required_weight("rms_norm", weight), None, epsilon, result)


def fused_add_rms_norm(
    input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float
) -> None:
    """vLLM's: residual += input, input = rms_norm(residual), both in place."""
    _rms_norm(input, _required_weight("fused_add_rms_norm", weight), residual, epsilon, input)


def rms_norm_static_fp8_quant(
    result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float
) -> None:
    """vLLM's: result = fp8(rms_norm(input) / scale), scale one number."""
    _static(result, input, weight, None, scale, epsilon)


def fused_add_rms_norm_static_fp8_quant(
    result: Tensor,
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
) -> None:
    """vLLM's: residual += input in place, result = fp8(rms_norm(residual) / scale)."""
    _static(result, input, weight, residual, scale, epsilon)


def _static(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    epsilon: float,
) -> None:
    x, payload = _rows(input), _rows(result)
    residual_rows = None if residual is None else _rows(residual)
    values = epsilon, "fp8_tensor", scale.view(1), False, result.dtype
    rms_norm_quant(x, weight, residual_rows, *values, payload)


def rms_norm_dynamic_per_token_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
) -> None:
    """vLLM's: result = fp8(rms_norm(input, or residual += input) / scale), scale [tokens, 1]."""
    _refuse("rms_norm_dynamic_per_token_quant", scale_ub=(scale_ub, None))
    residual_rows = None if residual is None else _rows(residual)
    values = epsilon, "fp8_token", None, False, result.dtype
    rms_norm_quant(_rows(input), weight, residual_rows, *values, _rows(result), scale.view(-1, 1))


def rms_norm_per_block_quant(
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    epsilon: float,
    scale_ub: Tensor | None,
    residual: Tensor | None,
    group_size: int,
    is_scale_transposed: bool,
) -> None:
    """vLLM's: the same with a scale for 128 elements, [tokens, groups], whose memory is
    column-major where is_scale_transposed."""
    refused = {"scale_ub": (scale_ub, None), "group_size": (group_size, 128)}
    _refuse("rms_norm_per_block_quant", **refused)
    residual_rows = None if residual is None else _rows(residual)
    values = epsilon, "fp8_group", None, is_scale_transposed, result.dtype
    memory = scale.T if is_scale_transposed else scale
    rms_norm_quant(_rows(input), weight, residual_rows, *values, _rows(result), memory)


def rmsnorm2d_fwd(
    input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0
) -> Tensor:
    """aiter's, of which its rms_norm is an alias: rms_norm of input, new. A T5-like rounding
    (use_model_sensitive_rmsnorm) is refused."""
    _refuse("rmsnorm2d_fwd", use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, 0))
    return _rms_norm(input, weight, None, epsilon)


def rmsnorm2d_fwd_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool = False,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """aiter's: residual_out = input + residual_in, out = rms_norm(residual_out), times 1 + weight
    where gemma_norm."""
    sensitive = (use_model_sensitive_rmsnorm, 0)
    _refuse("rmsnorm2d_fwd_with_add", use_model_sensitive_rmsnorm=sensitive)
    if residual_out.data_ptr() != residual_in.data_ptr():
        residual_out.copy_(residual_in)
    _rms_norm(input, norm_weight(weight, gemma_norm), residual_out, epsilon, out)


def norm_weight(weight: Tensor, is_gemma: bool) -> Tensor:
    """Return the factor of a norm: weight, or Gemma's 1 + weight in fp32."""
    return weight.float() + 1 if is_gemma else weight


# ---------------------------------------------------------------- activations


def silu_and_mul(result: Tensor, input: Tensor) -> None:
    """vLLM's: result [..., d] = silu(input[..., :d]) * input[..., d:]."""
    act_mul(input, "silu", out=result)


def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """vLLM's: the same by gelu, with erf."""
    act_mul(input, "gelu", out=out)


def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """vLLM's: the same by gelu, with tanh."""
    act_mul(input, "gelu_tanh", out=out)


def swigluoai_and_mul(out: Tensor, input: Tensor, alpha: float = 1.702, limit: float = 7.0) -> None:
    """vLLM's: GPT-OSS's clamped swiglu of pairs of gate and up."""
    act_mul(input, "swiglu", True, alpha, limit, 1.0, out)


def silu_and_mul_with_clamp(
    result: Tensor, input: Tensor, limit: float, alpha: float = 1.0, beta: float = 0.0
) -> None:
    """vLLM's: the clamped swiglu of halves."""
    act_mul(input, "swiglu", False, alpha, limit, beta, result)


def silu_and_mul_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """vLLM's: result = fp8(silu(gate) * up / scale), scale one number."""
    values = "silu", "fp8_tensor", scale.view(1)
    act_mul_quant(_rows(input), *values, dtype=result.dtype, payload=_rows(result))


def silu_and_mul_per_block_quant(
    out: Tensor,
    input: Tensor,
    scales: Tensor,
    group_size: int,
    scale_ub: Tensor | None = None,
    is_scale_transposed: bool = False,
) -> None:
    """vLLM's: the same with a scale for 128 elements, as of rms_norm_per_block_quant."""
    refused = {"scale_ub": (scale_ub, None), "group_size": (group_size, 128)}
    _refuse("silu_and_mul_per_block_quant", **refused)
    memory = scales.T if is_scale_transposed else scales
    act_mul_quant(
        input,
        "silu",
        transpose_scale=is_scale_transposed,
        dtype=out.dtype,
        payload=out,
        scale=memory,
    )


# ---------------------------------------------------------------- quantisers


def static_scaled_fp8_quant(
    result: Tensor,
    input: Tensor,
    scale: Tensor,
    group_shape: Sequence[int] | None = None,
) -> None:
    """vLLM's: result = fp8(input / scale), scale one number; scales of groups are refused."""
    _refuse("static_scaled_fp8_quant", group_shape=(group_shape, None))
    quant_fp8(input, "tensor", scale.view(1), result.dtype, result)


def dynamic_scaled_fp8_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """vLLM's: scale [1] and result = fp8(input / scale) for the tensor."""
    quant_fp8(input, "tensor", None, result.dtype, result, scale.view(1, 1))


def dynamic_per_token_scaled_fp8_quant(
    result: Tensor, input: Tensor, scale: Tensor, scale_ub: Tensor | None
) -> None:
    """vLLM's: scale [tokens, 1] and result = fp8(input / scale) for each row."""
    _refuse("dynamic_per_token_scaled_fp8_quant", scale_ub=(scale_ub, None))
    quant_fp8(input, "token", None, result.dtype, result, scale.view(-1, 1))


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor.view(-1, tensor.shape[-1])
