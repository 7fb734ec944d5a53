"""Rotary position embedding (RoPE): tables of cosines and sines, the rotation in plain torch, and
how HIP kernels find rows of heads and of angles (csrc/attention/row_unit.h).

    low' = low cos - high sin,  high' = high cos + low sin

Pairs (low, high) of a row of R elements are d and d + R / 2 (NeoX style), or 2 d and 2 d + 1
(interleaved, GPT-J style). A table has a row a position: R / 2 cosines, then R / 2 sines; or two
tables have these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from rfops.dispatch.declare import Declaration
from rfops.dispatch.kernel import Call
from rfops.dispatch.strided import overlaps_itself, strides_of
from rfops.quantization.fp8_blockscale import IN_TYPES

__all__ = ["rope_cos_sin"]
THREADS = 256  # of a workgroup
VEC = 8  # elements that a lane loads at once, of aligned rows
INDEX_TYPES = {torch.int32: "i32", torch.int64: "Index64"}  # in csrc/
MAX_UNITS = 2**31 - THREADS

Refusal = tuple[str, str, str, str]


def rope_cos_sin(
    max_position: int,
    rotary_dim: int,
    base: float = 10000.0,
    factor: float = 1.0,
    original_max_position: int = 4096,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float = 1.0,
    mscale_all_dim: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Return the table [max_position, rotary_dim] of cosines, then sines, float32 or of `dtype`.

    Pair d turns by base^(-2 d / rotary_dim) a position. With factor > 1 by YaRN: pairs that turn
    less than beta_slow times in original_max_position are slowed by factor, those above beta_fast
    not, between them linearly; cosines and sines are multiplied by m(mscale) / m(mscale_all_dim),
    m(s) = 0.1 s ln(factor) + 1.

    Raises ValueError for an odd rotary_dim.

    Source: Su et al., RoFormer (arXiv:2104.09864); Peng et al., YaRN (arXiv:2309.00071).
    """
    if rotary_dim % 2:
        raise ValueError(
            f"rope_cos_sin: rotary_dim must be even, got {rotary_dim}. Pass the elements that turn."
        )
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    speeds, scale = base**-exponents, 1.0
    if factor > 1:

        def pair_of(turns: float) -> float:
            """The pair, counted in elements / 2, that turns so often in the original positions."""
            wavelength = original_max_position / (turns * 2 * math.pi)
            return rotary_dim * math.log(wavelength) / (2 * math.log(base))

        first = max(math.floor(pair_of(beta_fast)), 0)
        last = min(math.ceil(pair_of(beta_slow)), rotary_dim - 1)
        pairs = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
        slowed = ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
        speeds = speeds * (1 - slowed + slowed / factor)
        scale = _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all_dim)
    positions = torch.arange(max_position, dtype=torch.float64, device=device)
    angles = positions[:, None] * speeds
    return (torch.cat((angles.cos(), angles.sin()), -1) * scale).to(dtype)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


# ---------------------------------------------------------------- plain torch


def split_angles(
    cos_sin: torch.Tensor, sin: torch.Tensor | None, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of these positions, of the last row for one outside of the table: each
    [T, R / 2] in float32."""
    last = len(cos_sin) - 1
    positions = positions.long()
    positions = positions.where((positions >= 0) & (positions < last), positions.new_tensor(last))
    rows = cos_sin[positions].float()
    if sin is None:
        cos, sines = rows.chunk(2, -1)
        return cos, sines
    return rows, sin[positions].float()


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """x [T, ..., R] of any floating-point dtype with its pairs turned, in float32."""
    for _ in range(x.dim() - 2):
        cos, sin = cos[:, None], sin[:, None]
    x = x.float()
    low, high = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    parts = low * cos - high * sin, high * cos + low * sin
    return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)


def sum_of_products(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """The sum of |products| of each element of `rotated`, by which its rounding is bounded."""
    x, cos, sin = x.abs(), cos.abs(), sin.abs()
    turned = rotated(x, cos, -sin, interleaved)
    other = rotated(x, cos, sin, interleaved)
    return torch.maximum(turned, other)


# ---------------------------------------------------------------- HIP kernels


def rotary_dim(c: Call, columns: int | None = None) -> int:
    """The elements of a head that turn, by the columns of a table; without, the call's own."""
    columns = c.C if columns is None else columns
    return 2 * columns if c.has("sin") else columns


def head_strides(c: Call, name: str, heads: int, dim: int) -> tuple[int, int] | None:
    """Elements from token to token and from head to head of [T, heads, dim]; None where a head's
    elements are not neighbours."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return heads * dim, dim
    token, head, element = strides_of(view, (c.T, heads, dim))
    return (token, head) if element == 1 or dim == 1 else None


def row_stride(c: Call, name: str, columns: int) -> int | None:
    """Elements from row to row of [rows, columns]; None where a row's are not neighbours."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return columns
    row, element = view.strides
    return int(row) if element == 1 or columns == 1 else None


def angle_rows(c: Call) -> tuple[int, int] | None:
    """Elements from position to position, and where the sines begin; None where cos_sin and sin do
    not lie alike."""
    rows = row_stride(c, "cos_sin", c.C)
    if not c.has("sin"):
        return None if rows is None else (rows, c.C // 2)
    return None if rows is None or row_stride(c, "sin", c.C) != rows else (rows, 0)


def angles_are_aligned(c: Call) -> bool:
    """Whether units of 8 pairs load at multiples of 16 bytes if tables begin there."""
    rows = angle_rows(c)
    size = c.cos_sin_dtype.itemsize
    is_aligned = rows is not None and all(number * size % 16 == 0 for number in rows)
    return is_aligned and rotary_dim(c) % (2 * VEC) == 0 and c.align("cos_sin", "sin") >= 16


def angle_refusal(c: Call, columns: int) -> Refusal | None:
    """A table that has not one row of cosines and sines a position: a refusal, or None."""
    if c.tensors.get("sin") is not None and c.sin_dtype != c.cos_sin_dtype:
        names = [str(dtype).removeprefix("torch.") for dtype in (c.cos_sin_dtype, c.sin_dtype)]
        return "sin", f"{names[0]}, as cos_sin is", names[1], "convert it first"
    if rotary_dim(c, columns) % 2 or columns == 0:
        got = f"{columns} columns"
        return "cos_sin", "of cosines and as many sines", got, "pass [positions, rotary_dim]"
    return None


def place_refusal(c: Call, declaration: Declaration, sizes: Mapping[str, int]) -> Refusal | None:
    """Of strided tensors that are written, one whose elements share places at these sizes, with the
    call's strides: a refusal, or None."""
    for arg in (*declaration.tensors, *declaration.passed):
        view = c.tensors.get(arg.name)
        if view is None or view.contiguous or not arg.strided:
            continue
        if not arg.written and arg not in declaration.passed:
            continue
        shape = [extent.of(sizes) for extent in arg.extents]
        if overlaps_itself(shape, view.strides):
            got = f"{shape} of strides {list(view.strides)}"
            expected = "of elements with places of their own"
            return arg.name, expected, got, "pass one that is not expanded"
    return None


def dtype_refusal(c: Call, first: str, *others: str) -> Refusal | None:
    """A tensor whose dtype is not that of `first`: a refusal, or None."""
    expected = getattr(c, f"{first}_dtype")
    for name in others:
        if c.tensors.get(name) is not None and getattr(c, f"{name}_dtype") != expected:
            names = [str(d).removeprefix("torch.") for d in (expected, getattr(c, f"{name}_dtype"))]
            return name, f"{names[0]}, as {first} is", names[1], "convert it first"
    return None


def define_values(c: Call) -> dict[str, Any]:
    """The constants of device code that say how rows turn."""
    return {
        "ANGLE": IN_TYPES[c.cos_sin_dtype],
        "POSITION": INDEX_TYPES[c.positions_dtype],
        "ROTARY": rotary_dim(c),
        "INTERLEAVED": int(c.interleaved),
        "THREADS": THREADS,
    }
