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

        def pair_of(rotations: float) -> float:
            """Return the index of the pair that makes so many rotations in the original positions;
            it is not an integer."""
            wavelength = original_max_position / (rotations * 2 * math.pi)
            return rotary_dim * math.log(wavelength) / (2 * math.log(base))

        ramp_begin = max(math.floor(pair_of(beta_fast)), 0)
        ramp_end = min(math.ceil(pair_of(beta_slow)), rotary_dim - 1)
        pairs = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
        slowed = ((pairs - ramp_begin) / max(ramp_end - ramp_begin, 1e-3)).clamp(0, 1)
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
    """Return the cosines and sines at `positions` [T], each [T, R / 2] in float32; a position
    outside of the table has its last row."""
    last_row = len(cos_sin) - 1
    positions = positions.long()
    positions = positions.masked_fill((positions < 0) | (positions > last_row), last_row)
    rows = cos_sin[positions].float()
    if sin is None:
        cos, sines = rows.chunk(2, -1)
        return cos, sines
    return rows, sin[positions].float()


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Return x [T, ..., R], of any floating-point dtype, in float32 with its pairs rotated by the
    cosines and sines [T, R / 2]."""
    for _ in range(x.dim() - 2):
        cos, sin = cos[:, None], sin[:, None]
    x = x.float()
    low, high = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    halves = low * cos - high * sin, high * cos + low * sin
    return torch.stack(halves, -1).flatten(-2) if interleaved else torch.cat(halves, -1)


def sum_of_products(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Return the sum of |products| of each element of `rotated`, which bounds its rounding."""
    x, cos, sin = x.abs(), cos.abs(), sin.abs()
    low_sums = rotated(x, cos, -sin, interleaved)
    high_sums = rotated(x, cos, sin, interleaved)
    return torch.maximum(low_sums, high_sums)


# ---------------------------------------------------------------- HIP kernels


def rotary_dim(c: Call, columns: int | None = None) -> int:
    """Return how many elements of a head rotate with a table of `columns` columns, by default the
    call's."""
    columns = c.C if columns is None else columns
    return 2 * columns if c.has("sin") else columns


def head_strides(c: Call, name: str, heads: int, dim: int) -> tuple[int, int] | None:
    """Return the strides in elements between tokens and between heads of `name` [T, heads, dim];
    None where the elements of a head are not contiguous."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return heads * dim, dim
    token, head, element = strides_of(view, (c.T, heads, dim))
    return (token, head) if element == 1 or dim == 1 else None


def row_stride(c: Call, name: str, columns: int) -> int | None:
    """Return the stride in elements between rows of `name` [rows, columns]; None where the elements
    of a row are not contiguous."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return columns
    row, element = view.strides
    return int(row) if element == 1 or columns == 1 else None


def angle_rows(c: Call) -> tuple[int, int] | None:
    """Return the stride in elements between positions of the table, and the offset of the sines
    (0 where `sin` is a tensor of its own); None where cos_sin and sin differ in their strides."""
    rows = row_stride(c, "cos_sin", c.C)
    if not c.has("sin"):
        return None if rows is None else (rows, c.C // 2)
    return None if rows is None or row_stride(c, "sin", c.C) != rows else (rows, 0)


def angles_are_aligned(c: Call) -> bool:
    """Return whether every unit of 8 pairs of the table is aligned to 16 bytes."""
    rows = angle_rows(c)
    size = c.cos_sin_dtype.itemsize
    is_aligned = rows is not None and all(number * size % 16 == 0 for number in rows)
    return is_aligned and rotary_dim(c) % (2 * VEC) == 0 and c.align("cos_sin", "sin") >= 16


def angle_refusal(c: Call, columns: int) -> Refusal | None:
    """Return a refusal of a table whose row is not as many cosines as sines, or None."""
    if c.tensors.get("sin") is not None and c.sin_dtype != c.cos_sin_dtype:
        names = [str(dtype).removeprefix("torch.") for dtype in (c.cos_sin_dtype, c.sin_dtype)]
        return "sin", f"{names[0]}, as cos_sin is", names[1], "convert it first"
    if rotary_dim(c, columns) % 2 or columns == 0:
        columns_text = f"{columns} columns"
        return (
            "cos_sin",
            "of cosines and as many sines",
            columns_text,
            "pass [positions, rotary_dim]",
        )
    return None


def place_refusal(c: Call, declaration: Declaration, sizes: Mapping[str, int]) -> Refusal | None:
    """Return a refusal of a strided tensor that is written and has two elements at one address,
    with the call's strides and these sizes; None if there is none."""
    for arg in (*declaration.tensors, *declaration.passed):
        view = c.tensors.get(arg.name)
        if view is None or view.contiguous or not arg.strided:
            continue
        if not arg.written and arg not in declaration.passed:
            continue
        shape = [extent.of(sizes) for extent in arg.extents]
        if overlaps_itself(shape, view.strides):
            layout = f"{shape} of strides {list(view.strides)}"
            expected = "of elements with places of their own"
            return arg.name, expected, layout, "pass one that is not expanded"
    return None


def dtype_refusal(c: Call, reference_name: str, *names: str) -> Refusal | None:
    """Return a refusal of the first of the arguments `names` whose dtype is not that of the
    argument `reference_name`, or None."""
    expected = getattr(c, f"{reference_name}_dtype")
    for name in names:
        if c.tensors.get(name) is not None and getattr(c, f"{name}_dtype") != expected:
            dtype_names = [
                str(d).removeprefix("torch.") for d in (expected, getattr(c, f"{name}_dtype"))
            ]
            return (
                name,
                f"{dtype_names[0]}, as {reference_name} is",
                dtype_names[1],
                "convert it first",
            )
    return None


def define_values(c: Call) -> dict[str, Any]:
    """Return the defines of device code that say how rows rotate."""
    return {
        "ANGLE": IN_TYPES[c.cos_sin_dtype],
        "POSITION": INDEX_TYPES[c.positions_dtype],
        "ROTARY": rotary_dim(c),
        "INTERLEAVED": int(c.interleaved),
        "THREADS": THREADS,
    }
