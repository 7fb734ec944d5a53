"""Comparing results: tolerances from arithmetic, and failures that say where.

A kernel that sums n products in fp32 and rounds to `dtype` is within
    half an ULP of dtype * |exact|  +  depth * 2^-24 * sum of |products|
of the exact result, `depth` being the longest chain of roundings that a product passes through.
"""

from __future__ import annotations

import math

import torch

# Half a unit in the last place, relative: 2^-(bits of the significand).
HALF_ULP = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}


def tolerance(
    exact: torch.Tensor, total: torch.Tensor, depth: int, dtype: torch.dtype
) -> torch.Tensor:
    """The bound of the head comment, elementwise; `total` is the sum of |products|."""
    least = torch.finfo(dtype).smallest_normal * HALF_ULP[dtype]
    return HALF_ULP[dtype] * exact.abs() + depth * HALF_ULP[torch.float32] * total + least


def assert_within(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Same shape, NaN and infinities at the same places, the rest within `bound` of `exact`."""
    assert got.shape == exact.shape, f"shape {list(got.shape)}, expected {list(exact.shape)}"
    value = got.detach().cpu().to(torch.float64)
    exact = exact.detach().cpu().to(torch.float64)
    limit = torch.as_tensor(bound, dtype=torch.float64).cpu().expand_as(exact)
    special = ~(torch.isfinite(exact) & torch.isfinite(value))
    same = (value == exact) | (value.isnan() & exact.isnan())
    excess = torch.where(special, torch.where(same, 0.0, math.inf), (value - exact).abs() - limit)
    if excess.numel() == 0 or excess.max() <= 0:
        return
    worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    wrong = int((excess > 0).sum())
    raise AssertionError(
        f"{wrong} of {excess.numel()} elements of {list(got.shape)} {got.dtype} are wrong; "
        f"worst at {worst}: got {value[worst].item()!r}, expected {exact[worst].item()!r} within "
        f"{limit[worst].item():.3g}; NaN or infinite in one only: {_places(special & ~same)}"
    )


def _places(mask: torch.Tensor) -> list[list[int]]:
    """The first places where the mask is set."""
    found: list[list[int]] = mask.nonzero()[:8].tolist()
    return found
