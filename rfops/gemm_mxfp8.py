"""gemm_mxfp8: y = x @ w^T for OCP MX-FP8, the linear layer of LLM decoding and of prefill.

Guards, plans, the torch ops and the reference; gemm_mxfp8_route.py has the kernels and the choice.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from . import routing
from .gemm_mxfp8_route import (
    CONFIG_KINDS,
    OP,
    OUT_DTYPES,
    Family,
    Launch,
    backend_of,
    scale_align,
    supports,
)
from .guards import Guard, check_dtype, check_layout, check_no_overlap
from .jit import Plans
from .quant_mxfp8 import BLOCK, E8M0, E8M0_BIAS, E8M0_NAN, FP8
from .registration import must_dispatch, register

ALIGN = 16  # bytes: a lane's load
SCALE_DTYPES = tuple(dict.fromkeys((torch.uint8, E8M0)))


_Plan = tuple[int, int, Launch]  # the sizes of out, and what fills it
_PLANS = Plans(out=4, sizes="M N K", shapes=("M,K", "N,K", "M,K/32", "N,K/32", "M,N"))


def gemm_mxfp8(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    config: Any = None,
) -> torch.Tensor:
    """out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m, k] * w[n, k].

    Parameters
    ----------
    x : [M, K] float8_e4m3fn, K a multiple of 32.
    w : [N, K] float8_e4m3fn.
    x_scale, w_scale : [M, K/32] and [N, K/32] e8m0 (uint8 or float8_e8m0fnu); 255 is NaN.
    dtype : of the result; bfloat16, float16 or float32.
    out : [M, N], written in place where given.
    config : takes that kernel in that variant, whatever the tuned table says: a GemvConfig, an
        MfmaConfig or Triton's TritonConfig.

    All tensors are contiguous and on one device (a GPU, or the cpu: the virtual GPU); x and w start
    at a multiple of 16 bytes. There is a result for every M, size and device, by the route that
    `rfops why gemm_mxfp8` prints. Deterministic for one config. Raises ValueError for what does not
    fit, ConfigError for a tuned table that cannot be read, and what building a kernel raises.
    """
    plan = None
    if not is_dynamo_compiling():  # which traces Python, and cannot trace `find`
        plan = _PLANS.find(x, w, x_scale, w_scale, out, dtype, config)
    if plan is None:
        check_dtype(OP, "dtype", dtype, OUT_DTYPES)
        if must_dispatch(x, w, x_scale, w_scale, out):
            done = _dispatch(x, w, x_scale, w_scale, dtype, out, config)
            if done is not None:
                return done
        plan = _add_plan(x, w, x_scale, w_scale, dtype, out, config)
    rows, columns, run = plan
    if out is None:
        # A tuple of sizes takes 0.5 us more.
        out = torch.empty(rows, columns, dtype=dtype, device=x.device)
    run(out, x, w, x_scale, w_scale)
    return out


def _add_plan(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: Any,
) -> _Plan:
    m, n, k = _check(x, w, x_scale, w_scale, dtype, out, config)
    args = x, w, x_scale, w_scale, out, dtype, config
    if not (m and n):
        plan: _Plan = m, n, _nothing
    else:
        family = Family(x.device, dtype, config, scale_align(x_scale, w_scale))
        plan = family(m, n, k)
        _PLANS.add_family(family, *args)
    _PLANS.add(plan, *args)
    return plan


def _nothing(*_args: torch.Tensor) -> None:
    """The launch of an empty out."""


gemm_mxfp8.supports = supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- guards


def _check(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: Any,
) -> tuple[int, int, int]:
    guard = Guard(OP, max_bytes=None)
    fp8 = "quantise it with rfops.quant_mxfp8 (float8_e4m3fnuz and e5m2 have other values)"
    guard.tensor("x", x, ("M", "K"), (FP8,), fp8)
    guard.tensor("w", w, ("N", "K"), (FP8,), fp8)
    m, n, k = guard.sizes["M"], guard.sizes["N"], guard.sizes["K"]
    if k == 0 or k % BLOCK:
        guard.fail("K", f"a positive multiple of {BLOCK}", f"K={k}", "pad x and w with zeros")
    guard.sizes["K/32"] = k // BLOCK
    raw = "pass the e8m0 bytes, one per 32 elements of K"
    guard.tensor("x_scale", x_scale, ("M", "K/32"), SCALE_DTYPES, raw)
    guard.tensor("w_scale", w_scale, ("N", "K/32"), SCALE_DTYPES, raw)
    if out is not None:
        guard.tensor("out", out, ("M", "N"), (dtype,), "pass one of that dtype, or none")
    if config is not None:
        backend_of(config)
    for name, tensor, align in (("x", x, ALIGN), ("w", w, ALIGN), ("x_scale", x_scale, 1),
                                ("w_scale", w_scale, 1)):  # fmt: skip
        check_layout(OP, name, tensor, align)
    if out is not None:
        check_layout(OP, "out", out, out.element_size())
        check_no_overlap(OP, out, {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale})
    return m, n, k


# ---------------------------------------------------------------- torch.ops.rfops


def _config_text(config: Any) -> str:
    return "" if config is None else f"{backend_of(config)} {routing.config_text(config)}"


_config_of = functools.partial(routing.given_config, OP, CONFIG_KINDS)


def as_fp8(payload: torch.Tensor) -> torch.Tensor:
    """The ops take bytes too: torch cannot compare float8, and its opcheck compares."""
    return payload.view(FP8) if payload.dtype == torch.uint8 else payload


def _functional(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    config: str,
) -> torch.Tensor:
    return gemm_mxfp8(as_fp8(x), as_fp8(w), x_scale, w_scale, dtype, config=_config_of(config))


def _mutating(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    config: str,
    out: torch.Tensor,
) -> None:
    gemm_mxfp8(as_fp8(x), as_fp8(w), x_scale, w_scale, dtype, out, config=_config_of(config))


def _fake(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    config: str,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[0]), dtype=dtype)


_INPUTS = "Tensor x, Tensor w, Tensor x_scale, Tensor w_scale, ScalarType dtype, str config"
_op = register(f"gemm_mxfp8({_INPUTS}) -> Tensor", _functional, _fake)
_op_out = register(
    f"gemm_mxfp8_out({_INPUTS}, Tensor(a!) out) -> ()", _mutating, lambda *_args: None
)


def _dispatch(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: Any,
) -> torch.Tensor | None:
    """The call as torch's op; None if an argument is none of a tensor, which the guards refuse."""
    tensors = (x, w, x_scale, w_scale) if out is None else (x, w, x_scale, w_scale, out)
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    text = _config_text(config)
    if out is None:
        result: torch.Tensor = _op(x, w, x_scale, w_scale, dtype, text)
        return result
    _op_out(x, w, x_scale, w_scale, dtype, text, out)
    return out


# ---------------------------------------------------------------- reference


def gemm_mxfp8_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The formula of `gemm_mxfp8` in plain fp32 torch, block by block, on any device."""
    check_dtype("gemm_mxfp8_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    x_byte = x_scale.view(torch.uint8).to(torch.int32)
    w_byte = w_scale.view(torch.uint8).to(torch.int32)
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    for block in range(x.shape[1] // BLOCK):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        dots = x[:, span].to(torch.float32) @ w[:, span].to(torch.float32).T
        x_e, w_e = x_byte[:, block, None], w_byte[None, :, block]
        is_nan = (x_e == E8M0_NAN) | (w_e == E8M0_NAN)
        scaled = _ldexp(dots, x_e + w_e - 2 * E8M0_BIAS)
        total += scaled.masked_fill(is_nan, float("nan"))
    return total.to(dtype)


def _ldexp(value: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """value * 2^exponent for |exponent| <= 254, in two exact factors that fp32 can hold."""
    half = exponent >> 1
    for part in (half, exponent - half):
        value = value * ((part + E8M0_BIAS).clamp(min=1) << 23).view(torch.float32)
    return value
