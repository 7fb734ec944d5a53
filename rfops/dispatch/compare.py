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
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e4m3fnuz: 2.0**-4,
}
_AT_ONCE = 1 << 26  # elements compared in float64 at once


def tolerance(
    exact: torch.Tensor, total: torch.Tensor, depth: float, dtype: torch.dtype
) -> torch.Tensor:
    """The bound of the head comment, elementwise; `total` is the sum of |products|."""
    least = torch.finfo(dtype).smallest_normal * HALF_ULP[dtype]
    return HALF_ULP[dtype] * exact.abs() + depth * HALF_ULP[torch.float32] * total + least


def assert_within(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Same shape, NaN and infinities at the same places, the rest within `bound` of `exact`."""
    if got.shape != exact.shape:
        raise AssertionError(f"shape {list(got.shape)}, expected {list(exact.shape)}")
    limits = torch.as_tensor(bound).to(exact.device).expand_as(exact)
    flat = [tensor.detach().reshape(-1) for tensor in (got.to(exact.device), exact, limits)]
    found: list[tuple[float, int, float, float, float]] = []  # excess, place, got, expected, limit
    wrong, odd = 0, []
    for first in range(0, got.numel(), _AT_ONCE):
        parts = (tensor[first : first + _AT_ONCE].to(torch.float64) for tensor in flat)
        value, want, limit = parts
        special = ~(torch.isfinite(want) & torch.isfinite(value))
        same = (value == want) | (value.isnan() & want.isnan())
        excess = torch.where(
            special, torch.where(same, 0.0, math.inf), (value - want).abs() - limit
        )
        wrong += int((excess > 0).sum())
        at = int(excess.argmax())
        seen = (value[at].item(), want[at].item(), limit[at].item())
        found.append((excess[at].item(), first + at, *seen))
        odd += [first + at for at in (special & ~same).nonzero()[:8].flatten().tolist()]
    if not wrong:
        return
    _, at, value_there, wanted, limit_there = max(found, key=lambda one: one[0])
    raise AssertionError(
        f"{wrong} of {got.numel()} elements of {list(got.shape)} {got.dtype} are wrong; "
        f"worst at {_place(at, got.shape)}: got {value_there!r}, expected {wanted!r} within "
        f"{limit_there:.3g}; NaN or infinite in one only: "
        f"{[list(_place(one, got.shape)) for one in odd[:8]]}"
    )


def _place(at: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))
