"""Device code of rms_norm in Triton, for every GPU that Triton has: a program has a row."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    out,
    x,
    weight,
    residual,
    k,
    inner,
    x_outer,
    x_inner,
    out_outer,
    out_inner,
    EPS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of up to BLOCK elements: z * rsqrt(mean(z^2) + EPS) * weight; z = x, or x + residual,
    which replaces residual."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    is_there = at < k
    x += row // inner * x_outer + row % inner * x_inner
    out += row // inner * out_outer + row % inner * out_inner
    z = tl.load(x + at, mask=is_there, other=0)
    if RESIDUAL:
        other = tl.load(residual + row * k + at, mask=is_there, other=0)
        z = (z.to(tl.float32) + other.to(tl.float32)).to(z.dtype)
        tl.store(residual + row * k + at, z, mask=is_there)
    values = z.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / k + EPS)
    y = values * factor * tl.load(weight + at, mask=is_there, other=0).to(tl.float32)
    tl.store(out + at, y.to(z.dtype), mask=is_there)
