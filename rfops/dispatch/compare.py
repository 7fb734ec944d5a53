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
_CHUNK_ELEMS = 1 << 26  # elements compared in float64 at once


def tolerance(
    exact: torch.Tensor, total: torch.Tensor, depth: float, dtype: torch.dtype
) -> torch.Tensor:
    """The bound of the head comment, elementwise; `total` is the sum of |products|."""
    smallest = torch.finfo(dtype).smallest_normal * HALF_ULP[dtype]
    return HALF_ULP[dtype] * exact.abs() + depth * HALF_ULP[torch.float32] * total + smallest


def assert_within(actual: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float) -> None:
    """Same shape, NaN and infinities at the same places, the rest within `bound` of `exact`."""
    if actual.shape != exact.shape:
        raise AssertionError(f"shape {list(actual.shape)}, expected {list(exact.shape)}")
    limits = torch.as_tensor(bound).to(exact.device).expand_as(exact)
    flat = [tensor.detach().reshape(-1) for tensor in (actual.to(exact.device), exact, limits)]
    worst: list[tuple[float, int, float, float, float]] = []  # excess, place, got, expected, limit
    num_wrong, special_indices = 0, []
    for begin in range(0, actual.numel(), _CHUNK_ELEMS):
        chunks = (tensor[begin : begin + _CHUNK_ELEMS].to(torch.float64) for tensor in flat)
        value, want, limit = chunks
        special = ~(torch.isfinite(want) & torch.isfinite(value))
        is_same = (value == want) | (value.isnan() & want.isnan())
        excess = torch.where(
            special, torch.where(is_same, 0.0, math.inf), (value - want).abs() - limit
        )
        num_wrong += int((excess > 0).sum())
        index = int(excess.argmax())
        values = (value[index].item(), want[index].item(), limit[index].item())
        worst.append((excess[index].item(), begin + index, *values))
        special_indices += [
            begin + index for index in (special & ~is_same).nonzero()[:8].flatten().tolist()
        ]
    if not num_wrong:
        return
    _, index, actual_value, expected_value, bound_value = max(
        worst, key=lambda candidate: candidate[0]
    )
    raise AssertionError(
        f"{num_wrong} of {actual.numel()} elements of {list(actual.shape)} "
        f"{actual.dtype} are wrong; "
        f"worst at {_unravel(index, actual.shape)}: got {actual_value!r}, "
        f"expected {expected_value!r} within {bound_value:.3g}; NaN or infinite in one only: "
        f"{[list(_unravel(index, actual.shape)) for index in special_indices[:8]]}"
    )


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(index), shape))
