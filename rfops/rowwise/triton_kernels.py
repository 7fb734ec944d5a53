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
    columns = tl.arange(0, BLOCK)
    is_there = columns < k
    x += row // inner * x_outer + row % inner * x_inner
    out += row // inner * out_outer + row % inner * out_inner
    z = tl.load(x + columns, mask=is_there, other=0)
    if RESIDUAL:
        residual_values = tl.load(residual + row * k + columns, mask=is_there, other=0)
        z = (z.to(tl.float32) + residual_values.to(tl.float32)).to(z.dtype)
        tl.store(residual + row * k + columns, z, mask=is_there)
    values = z.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / k + EPS)
    y = values * factor * tl.load(weight + columns, mask=is_there, other=0).to(tl.float32)
    tl.store(out + columns, y.to(z.dtype), mask=is_there)
